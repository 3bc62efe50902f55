/* SHA-256 (FIPS 180-4): identifies contents, and is the base of hmac.c. Owns the choice between the
 * CPU's instructions and plain C. */

static const uint32_t dti_sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static void dti_sha256_init(dti_sha256 *s) {
    *s = (dti_sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                            0x1f83d9ab, 0x5be0cd19}};
}

DTI_INLINE uint32_t dti_rotate_right(uint32_t x, int n) {
    return x >> n | x << (32 - n);
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

/* One round; instead of moving the eight words on, the next one names them one place on. */
#define DTI_SHA_ROUND(a, b, c, d, e, f, g, h, i)                                                   \
    h += (dti_rotate_right(e, 6) ^ dti_rotate_right(e, 11) ^ dti_rotate_right(e, 25)) +            \
         ((e & f) ^ (~e & g)) + dti_sha256_k[i] + w[i];                                            \
    d += h;                                                                                        \
    h += (dti_rotate_right(a, 2) ^ dti_rotate_right(a, 13) ^ dti_rotate_right(a, 22)) +            \
         ((a & b) ^ (a & c) ^ (b & c))

static void dti_sha256_block_portable(uint32_t state[8], const uint8_t block[64]) {
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    dti_sha256_schedule(w, block);
    for (int i = 0; i < 64; i += 8) {
        DTI_SHA_ROUND(a, b, c, d, e, f, g, h, i);
        DTI_SHA_ROUND(h, a, b, c, d, e, f, g, i + 1);
        DTI_SHA_ROUND(g, h, a, b, c, d, e, f, i + 2);
        DTI_SHA_ROUND(f, g, h, a, b, c, d, e, i + 3);
        DTI_SHA_ROUND(e, f, g, h, a, b, c, d, i + 4);
        DTI_SHA_ROUND(d, e, f, g, h, a, b, c, i + 5);
        DTI_SHA_ROUND(c, d, e, f, g, h, a, b, i + 6);
        DTI_SHA_ROUND(b, c, d, e, f, g, h, a, i + 7);
    }
    const uint32_t added[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++)
        state[i] += added[i];
}

static void dti_sha256_portable(uint32_t h[8], const uint8_t *at, size_t blocks) {
    for (; blocks; at += 64, blocks--)
        dti_sha256_block_portable(h, at);
}

#if DTI_X86
/* Four rounds: `w` has their words. */
#define DTI_SHA_ROUNDS(i, w)                                                                       \
    sum = _mm_add_epi32(w,                                                                         \
                        _mm_loadu_si128((const __m128i *)(const void *)(dti_sha256_k + 4 * (i)))); \
    cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);                                                 \
    abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E))

/* The words 16 on from those in `a`; b, c and d have the twelve between. */
#define DTI_SHA_NEXT(a, b, c, d)                                                                   \
    a = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(a, b), _mm_alignr_epi8(d, c, 4)), d)

#define DTI_SHA_SIXTEEN(i)                                                                         \
    DTI_SHA_NEXT(w0, w1, w2, w3);                                                                  \
    DTI_SHA_ROUNDS(i, w0);                                                                         \
    DTI_SHA_NEXT(w1, w2, w3, w0);                                                                  \
    DTI_SHA_ROUNDS(i + 1, w1);                                                                     \
    DTI_SHA_NEXT(w2, w3, w0, w1);                                                                  \
    DTI_SHA_ROUNDS(i + 2, w2);                                                                     \
    DTI_SHA_NEXT(w3, w0, w1, w2);                                                                  \
    DTI_SHA_ROUNDS(i + 3, w3)

/* The instructions hold the state as (A, B, E, F) and (C, D, G, H), the first in the highest. */
__attribute__((target("sha,sse4.1,ssse3"))) DTI_NOINLINE void
dti_sha256_x86(uint32_t h[8], const uint8_t *at, size_t blocks) {
    const __m128i swap = _mm_set_epi64x(0x0C0D0E0F08090A0B, 0x0405060700010203);
    __m128i *state = (__m128i *)(void *)h;
    __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(state), 0xB1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(state + 1), 0x1B);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
    for (; blocks; at += 64, blocks--) {
        const __m128i *words = (const __m128i *)(const void *)at;
        __m128i abef_before = abef, cdgh_before = cdgh, sum;
        __m128i w0 = _mm_shuffle_epi8(_mm_loadu_si128(words), swap);
        __m128i w1 = _mm_shuffle_epi8(_mm_loadu_si128(words + 1), swap);
        __m128i w2 = _mm_shuffle_epi8(_mm_loadu_si128(words + 2), swap);
        __m128i w3 = _mm_shuffle_epi8(_mm_loadu_si128(words + 3), swap);
        DTI_SHA_ROUNDS(0, w0);
        DTI_SHA_ROUNDS(1, w1);
        DTI_SHA_ROUNDS(2, w2);
        DTI_SHA_ROUNDS(3, w3);
        DTI_SHA_SIXTEEN(4);
        DTI_SHA_SIXTEEN(8);
        DTI_SHA_SIXTEEN(12);
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128(state, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128(state + 1, _mm_alignr_epi8(dchg, feba, 8));
}

/* It is asked once. */
static bool dti_sha256_has_x86(void) {
    static _Atomic int known; /* 0: not yet; 1: no; 2: yes. Threads can only write the same */
    int has = atomic_load_explicit(&known, memory_order_relaxed);
    if (!has) {
        uint32_t b, d;
        dti_isa_features(&b, &d);
        __builtin_cpu_init();
        has = b >> 29 & 1 && __builtin_cpu_supports("sse4.1") ? 2 : 1;
        atomic_store_explicit(&known, has, memory_order_relaxed);
    }
    return has == 2;
}
#endif

#if defined __ARM_FEATURE_SHA2 && !defined __AARCH64EB__
static void dti_sha256_arm(uint32_t h[8], const uint8_t *at, size_t blocks) {
    uint32x4_t abcd = vld1q_u32(h), efgh = vld1q_u32(h + 4);
    for (; blocks; at += 64, blocks--) {
        uint32x4_t abcd_before = abcd, efgh_before = efgh, w[4];
        for (int i = 0; i < 4; i++)
            w[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(at + 16 * i)));
        for (int i = 0; i < 16; i++) {
            uint32x4_t sum = vaddq_u32(w[i % 4], vld1q_u32(dti_sha256_k + 4 * (i))), old = abcd;
            abcd = vsha256hq_u32(abcd, efgh, sum);
            efgh = vsha256h2q_u32(efgh, old, sum);
            w[i % 4] = vsha256su1q_u32(vsha256su0q_u32(w[i % 4], w[(i + 1) % 4]), w[(i + 2) % 4],
                                       w[(i + 3) % 4]);
        }
        abcd = vaddq_u32(abcd, abcd_before);
        efgh = vaddq_u32(efgh, efgh_before);
    }
    vst1q_u32(h, abcd);
    vst1q_u32(h + 4, efgh);
}
#endif

/* Compresses the given number of blocks of 64 bytes. */
static void dti_sha256_blocks(uint32_t h[8], const uint8_t *at, size_t blocks) {
#if DTI_X86
    if (dti_sha256_has_x86()) {
        dti_sha256_x86(h, at, blocks);
        return;
    }
#endif
#if defined __ARM_FEATURE_SHA2 && !defined __AARCH64EB__
    dti_sha256_arm(h, at, blocks);
#else
    dti_sha256_portable(h, at, blocks);
#endif
}

static void dti_sha256_add(dti_sha256 *s, const void *data, size_t bytes) {
    const uint8_t *at = data;
    size_t used = s->bytes % 64;
    if (!bytes)
        return;
    s->bytes += bytes;
    if (used) {
        size_t take = DTI_MIN(64 - used, bytes);
        memcpy(s->block + used, at, take);
        if (used + take < 64)
            return;
        dti_sha256_blocks(s->h, s->block, 1);
        at += take;
        bytes -= take;
    }
    if (bytes >= 64)
        dti_sha256_blocks(s->h, at, bytes / 64);
    if (bytes % 64)
        memcpy(s->block, at + bytes / 64 * 64, bytes % 64);
}

/* Big-endian. Not byte by byte: GCC 12 makes 200 vector instructions of that. */
DTI_INLINE void dti_sha256_put(uint8_t *to, uint32_t word) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap32(word);
#endif
    memcpy(to, &word, sizeof word);
}

static void dti_sha256_end(dti_sha256 *s, uint8_t digest[32]) {
    size_t used = s->bytes % 64;
    s->block[used++] = 0x80;
    memset(s->block + used, 0, 64 - used);
    if (used > 56) {
        dti_sha256_blocks(s->h, s->block, 1);
        memset(s->block, 0, 56);
    }
    dti_sha256_put(s->block + 56, (uint32_t)(s->bytes >> 29));
    dti_sha256_put(s->block + 60, (uint32_t)(s->bytes << 3));
    dti_sha256_blocks(s->h, s->block, 1);
    for (int i = 0; i < 8; i++)
        dti_sha256_put(digest + 4 * i, s->h[i]);
}
