/* Hashes: CRC32C (Castagnoli) against accidents in files and on wires, FNV-1a 64 for plans and
 * caches, SHA-256 (FIPS 180-4) to name contents. None is meant to be fast. */

/* Half a byte at a time: 16 entries instead of 256. The polynomial 0x1EDC6F41, bits reversed. */
static uint32_t dti_crc32c(uint32_t crc, const void *data, size_t bytes) {
    static const uint32_t table[16] = {0x00000000, 0x105EC76F, 0x20BD8EDE, 0x30E349B1,
                                       0x417B1DBC, 0x5125DAD3, 0x61C69362, 0x7198540D,
                                       0x82F63B78, 0x92A8FC17, 0xA24BB5A6, 0xB21572C9,
                                       0xC38D26C4, 0xD3D3E1AB, 0xE330A81A, 0xF36E6F75};
    const uint8_t *at = data;
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        crc = table[crc & 15] ^ crc >> 4;
        crc = table[crc & 15] ^ crc >> 4;
    }
    return ~crc;
}

static uint64_t dti_hash64(uint64_t hash, const void *data, size_t bytes) {
    const uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 1099511628211u;
    return hash;
}

DTI_INLINE uint32_t dti_rotate_right(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static void dti_sha256_init(dti_sha256 *s) {
    *s = (dti_sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                            0x1f83d9ab, 0x5be0cd19}};
}

/* The message schedule: 16 words of the block, then 48 made of them. */
static void dti_sha256_schedule(uint32_t w[64], const uint8_t block[64]) {
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        uint32_t s0 = dti_rotate_right(a, 7) ^ dti_rotate_right(a, 18) ^ a >> 3;
        uint32_t s1 = dti_rotate_right(b, 17) ^ dti_rotate_right(b, 19) ^ b >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
}

static void dti_sha256_block(uint32_t h[8], const uint8_t block[64]) {
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t w[64], v[8];
    dti_sha256_schedule(w, block);
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t s1 = dti_rotate_right(e, 6) ^ dti_rotate_right(e, 11) ^ dti_rotate_right(e, 25);
        uint32_t s0 = dti_rotate_right(a, 2) ^ dti_rotate_right(a, 13) ^ dti_rotate_right(a, 22);
        uint32_t t1 = v[7] + s1 + ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        uint32_t t2 = s0 + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
}

static void dti_sha256_add(dti_sha256 *s, const void *data, size_t bytes) {
    const uint8_t *at = data;
    while (bytes) {
        size_t used = s->bytes % 64, take = DTI_MIN(64 - used, bytes);
        memcpy(s->block + used, at, take);
        s->bytes += take;
        at += take;
        bytes -= take;
        if (used + take == 64)
            dti_sha256_block(s->h, s->block);
    }
}

static void dti_sha256_end(dti_sha256 *s, uint8_t digest[32]) {
    static const uint8_t pad[64] = {0x80};
    uint64_t bits = s->bytes * 8;
    uint8_t size[8];
    for (int i = 0; i < 8; i++)
        size[i] = (uint8_t)(bits >> (56 - 8 * i));
    dti_sha256_add(s, pad, 1 + (119 - s->bytes % 64) % 64);
    dti_sha256_add(s, size, 8);
    for (int i = 0; i < 32; i++)
        digest[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}
