/* Secrets: HMAC-SHA256 (RFC 2104) with a prepared key, HKDF (RFC 5869), comparison in constant
 * time, wiping, and random bytes from the system. It is not a cipher, and does not stretch
 * passphrases: a key has 256 random bits already. */

static void dti_wipe(void *memory, size_t bytes) {
    if (bytes)
        memset(memory, 0, bytes);
    __asm__ volatile("" : : "r"(memory) : "memory"); /* reads it, from the compiler's view */
}

static bool dti_equal_secret(const void *a, const void *b, size_t bytes) {
    const volatile uint8_t *x = a, *y = b; /* volatile: no way out at the first difference */
    uint8_t differ = 0;
    for (size_t i = 0; i < bytes; i++)
        differ = (uint8_t)(differ | (x[i] ^ y[i]));
    return differ == 0;
}

/* ---- HMAC */

static void dti_hmac_prepare(dti_hmac_key *key, const void *secret, size_t bytes) {
    uint8_t block[64] = {0};
    dti_sha256 s;
    if (bytes > sizeof block) {
        dti_sha256_init(&s);
        dti_sha256_add(&s, secret, bytes);
        dti_sha256_end(&s, block);
    } else if (bytes) {
        memcpy(block, secret, bytes);
    }
    for (int i = 0; i < 64; i++)
        block[i] ^= 0x36;
    dti_sha256_init(&s);
    dti_sha256_blocks(s.h, block, 1);
    memcpy(key->inner, s.h, sizeof key->inner);
    for (int i = 0; i < 64; i++)
        block[i] ^= 0x36 ^ 0x5C;
    dti_sha256_init(&s);
    dti_sha256_blocks(s.h, block, 1);
    memcpy(key->outer, s.h, sizeof key->outer);
    dti_wipe(block, sizeof block);
    dti_wipe(&s, sizeof s);
}

static void dti_hmac_begin(dti_sha256 *s, const dti_hmac_key *key) {
    memcpy(s->h, key->inner, sizeof s->h);
    s->bytes = 64; /* the key's block */
}

/* The outer hash, of one block: 32 bytes of `inner`, the end mark, the length. */
static void dti_hmac_outer(const dti_hmac_key *key, const uint32_t inner[8], uint8_t tag[32]) {
    uint8_t block[64] = {[32] = 0x80, [62] = 0x03}; /* (64 + 32) * 8 bits */
    uint32_t h[8];
    memcpy(h, key->outer, sizeof h);
    for (int i = 0; i < 8; i++)
        dti_sha256_put(block + 4 * i, inner[i]);
    dti_sha256_blocks(h, block, 1);
    for (int i = 0; i < 8; i++)
        dti_sha256_put(tag + 4 * i, h[i]);
}

static void dti_hmac_end(dti_sha256 *s, const dti_hmac_key *key, uint8_t tag[32]) {
    uint8_t digest[32];
    dti_sha256_end(s, digest);
    dti_hmac_outer(key, s->h, tag);
}

static void dti_hmac(const dti_hmac_key *key, const void *data, size_t bytes, uint8_t tag[32]) {
    dti_sha256 s;
    dti_hmac_begin(&s, key);
    if (bytes > 55) {
        dti_sha256_add(&s, data, bytes);
        dti_hmac_end(&s, key, tag);
        return;
    }
    memset(s.block, 0, sizeof s.block); /* like end(), in half the time */
    if (bytes)
        memcpy(s.block, data, bytes);
    s.block[bytes] = 0x80;
    dti_sha256_put(s.block + 60, (uint32_t)(64 + bytes) << 3);
    dti_sha256_blocks(s.h, s.block, 1);
    dti_hmac_outer(key, s.h, tag);
}

/* ---- HKDF */

static void dti_hkdf(const void *secret, size_t secret_bytes, const void *salt, size_t salt_bytes,
                     const void *info, size_t info_bytes, void *out, size_t out_bytes) {
    dti_hmac_key key;
    uint8_t block[32], *to = out;
    dti_hmac_prepare(&key, salt, salt_bytes);
    dti_hmac(&key, secret, secret_bytes, block);
    dti_hmac_prepare(&key, block, sizeof block);
    size_t before = 0; /* bytes of the block before this one: 0 for the first */
    for (uint8_t number = 1; out_bytes; number++) {
        size_t take = DTI_MIN(out_bytes, sizeof block);
        dti_sha256 s;
        dti_hmac_begin(&s, &key);
        dti_sha256_add(&s, block, before);
        dti_sha256_add(&s, info, info_bytes);
        dti_sha256_add(&s, &number, 1);
        dti_hmac_end(&s, &key, block);
        dti_wipe(&s, sizeof s);
        memcpy(to, block, take);
        to += take;
        out_bytes -= take;
        before = sizeof block;
    }
    dti_wipe(&key, sizeof key);
    dti_wipe(block, sizeof block);
}
