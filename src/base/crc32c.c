/* CRC32C (Castagnoli; RFC 3720, appendix B.4), against accidents on wires and in files. Owns the
 * choice between the CPU's instruction and a table; both give the same values. It refuses to be a
 * protection against intent.
 *
 * x86's instruction takes three cycles, and one can begin in each cycle. So three streams run side
 * by side, joined by carry-less products (Gopal et al., "Fast CRC Computation for iSCSI Polynomial
 * Using CRC32 Instruction", Intel 2011). With AVX-512, carry-less products fold 64 bytes at a time
 * onto the message's end (Gopal et al., "Fast CRC Computation for Generic Polynomials Using
 * PCLMULQDQ Instruction", Intel 2009), and the instruction finishes it. ARMv8 is compiled for it or
 * not. Else eight tables, eight bytes at a time (Kounavis and Berry, "A Systematic Approach to
 * Building High Performance Software-based CRC generators", 2005). x86 without the instruction
 * (before 2009) has one table, for it is 7 KB smaller. */

#if defined __ARM_FEATURE_CRC32
#include <arm_acle.h>
#endif

/* Entry n of a slice: the remainder of the byte n, the sum of its bits' remainders. */
#define DTI_CRC_BIT(n, bit, x) ((n) >> bit & 1 ? x : 0u)
#define DTI_CRC_1(n, a, b, c, d, e, f, g, h)                                                       \
    DTI_CRC_BIT(n, 0, a) ^ DTI_CRC_BIT(n, 1, b) ^ DTI_CRC_BIT(n, 2, c) ^ DTI_CRC_BIT(n, 3, d) ^    \
        DTI_CRC_BIT(n, 4, e) ^ DTI_CRC_BIT(n, 5, f) ^ DTI_CRC_BIT(n, 6, g) ^ DTI_CRC_BIT(n, 7, h)
#define DTI_CRC_4(n, ...)                                                                          \
    DTI_CRC_1((n), __VA_ARGS__), DTI_CRC_1((n) + 1, __VA_ARGS__), DTI_CRC_1((n) + 2, __VA_ARGS__), \
        DTI_CRC_1((n) + 3, __VA_ARGS__)
#define DTI_CRC_16(n, ...)                                                                         \
    DTI_CRC_4((n), __VA_ARGS__), DTI_CRC_4((n) + 4, __VA_ARGS__), DTI_CRC_4((n) + 8, __VA_ARGS__), \
        DTI_CRC_4((n) + 12, __VA_ARGS__)
#define DTI_CRC_64(n, ...)                                                                         \
    DTI_CRC_16((n), __VA_ARGS__), DTI_CRC_16((n) + 16, __VA_ARGS__),                               \
        DTI_CRC_16((n) + 32, __VA_ARGS__), DTI_CRC_16((n) + 48, __VA_ARGS__)
#define DTI_CRC_SLICE(...)                                                                         \
    {                                                                                              \
        DTI_CRC_64(0, __VA_ARGS__), DTI_CRC_64(64, __VA_ARGS__), DTI_CRC_64(128, __VA_ARGS__),     \
            DTI_CRC_64(192, __VA_ARGS__)                                                           \
    }

/* Slice k: a byte that k more bytes follow. Each constant is one step of the shift register further
 * than the one before it. The order goes from the first row's last constant on, right to left in a
 * row. The polynomial is 0x1EDC6F41 with its bits reversed, 0x82F63B78. */
static const uint32_t dti_crc_slices[][256] = {
    DTI_CRC_SLICE(0xF26B8303, 0xE13B70F7, 0xC79A971F, 0x8AD958CF, 0x105EC76F, 0x20BD8EDE,
                  0x417B1DBC, 0x82F63B78),
#if !DTI_X86
    DTI_CRC_SLICE(0x13A29877, 0x274530EE, 0x4E8A61DC, 0x9D14C3B8, 0x3FC5F181, 0x7F8BE302,
                  0xFF17C604, 0xFBC3FAF9),
    DTI_CRC_SLICE(0xA541927E, 0x4F6F520D, 0x9EDEA41A, 0x38513EC5, 0x70A27D8A, 0xE144FB14,
                  0xC76580D9, 0x8B277743),
    DTI_CRC_SLICE(0xDD45AAB8, 0xBF672381, 0x7B2231F3, 0xF64463E6, 0xE964B13D, 0xD725148B,
                  0xABA65FE7, 0x52A0C93F),
    DTI_CRC_SLICE(0x38116FAC, 0x7022DF58, 0xE045BEB0, 0xC5670B91, 0x8F2261D3, 0x1BA8B557,
                  0x37516AAE, 0x6EA2D55C),
    DTI_CRC_SLICE(0xEF306B19, 0xDB8CA0C3, 0xB2F53777, 0x6006181F, 0xC00C303E, 0x85F4168D,
                  0x0E045BEB, 0x1C08B7D6),
    DTI_CRC_SLICE(0x68032CC8, 0xD0065990, 0xA5E0C5D1, 0x4E2DFD53, 0x9C5BFAA6, 0x3D5B83BD,
                  0x7AB7077A, 0xF56E0EF4),
    DTI_CRC_SLICE(0x493C7D27, 0x9278FA4E, 0x211D826D, 0x423B04DA, 0x847609B4, 0x0D006599,
                  0x1A00CB32, 0x34019664)
#endif
};

/* crc here and below: the register as it is, not inverted. */
static uint32_t dti_crc32c_portable(uint32_t crc, const uint8_t *at, size_t bytes) {
    const uint32_t(*t)[256] = dti_crc_slices;
#if !DTI_X86
    for (; bytes >= 8; at += 8, bytes -= 8) {
        crc ^=
            (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = t[7][crc & 255] ^ t[6][crc >> 8 & 255] ^ t[5][crc >> 16 & 255] ^ t[4][crc >> 24] ^
              t[3][at[4]] ^ t[2][at[5]] ^ t[1][at[6]] ^ t[0][at[7]];
    }
#endif
    for (; bytes; at++, bytes--)
        crc = t[0][(crc ^ *at) & 255] ^ crc >> 8;
    return crc;
}

#if DTI_X86
/* Its own feature since Clang 14, which sse4.2 implies unless it was turned off: zig cc does so. */
#if defined __clang__ && __clang_major__ >= 14
#define DTI_CRC_FEATURES "sse4.2,crc32,pclmul"
#else
#define DTI_CRC_FEATURES "sse4.2,pclmul"
#endif
#define DTI_CRC_TARGET __attribute__((target(DTI_CRC_FEATURES)))

DTI_INLINE uint64_t dti_crc_word(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

/* What the streams before the last one add, as 64 bits for the last word. These are the registers
 * times x^(16 * stride - 33) and x^(8 * stride - 33), the two halves of `shift`. */
DTI_CRC_TARGET DTI_INLINE uint64_t dti_crc_join(uint64_t first, uint64_t second,
                                                const uint32_t shift[2]) {
    __m128i a = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)first),
                                     _mm_cvtsi32_si128((int)shift[0]), 0);
    __m128i b = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)second),
                                     _mm_cvtsi32_si128((int)shift[1]), 0);
    /* cvtsi32 clears the bits above its 32 */
    return (uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(a, b));
}

/* 3 * stride bytes. */
DTI_CRC_TARGET DTI_INLINE uint64_t dti_crc_three(uint64_t crc, const uint8_t *at, size_t stride,
                                                 const uint32_t shift[2]) {
    uint64_t a = crc, b = 0, c = 0;
    const uint8_t *end = at + stride - 8;
    for (; at < end; at += 8) {
        a = _mm_crc32_u64(a, dti_crc_word(at));
        b = _mm_crc32_u64(b, dti_crc_word(at + stride));
        c = _mm_crc32_u64(c, dti_crc_word(at + 2 * stride));
    }
    a = _mm_crc32_u64(a, dti_crc_word(at));
    b = _mm_crc32_u64(b, dti_crc_word(at + stride));
    return _mm_crc32_u64(c, dti_crc_word(at + 2 * stride) ^ dti_crc_join(a, b, shift));
}

/* Long strides first: a join takes as long as a hundred bytes. */
DTI_CRC_TARGET DTI_NOINLINE uint32_t dti_crc32c_sse(uint32_t crc, const uint8_t *at, size_t bytes) {
    static const struct {
        size_t stride;
        uint32_t shift[2];
    } steps[] = {{2048, {0x82F89C77, 0xA51B6135}},
                 {256, {0xDD7E3B0C, 0xB9E02B86}},
                 {64, {0x0D3B6092, 0x9E4ADDF8}}};
    uint64_t state = crc;
    for (size_t s = 0; s < DTI_COUNT(steps); s++) {
        size_t take = 3 * steps[s].stride;
        for (; bytes >= take; at += take, bytes -= take)
            state = dti_crc_three(state, at, steps[s].stride, steps[s].shift);
    }
    for (; bytes >= 8; at += 8, bytes -= 8)
        state = _mm_crc32_u64(state, dti_crc_word(at));
    crc = (uint32_t)state;
    for (; bytes; at++, bytes--)
        crc = _mm_crc32_u8(crc, *at);
    return crc;
}

#define DTI_CRC_WIDE_TARGET __attribute__((target("avx512f,avx512vl,vpclmulqdq," DTI_CRC_FEATURES)))
#define DTI_CRC_WIDE_BYTES 512 /* below, the streams are as fast */

/* Moves the 128-bit lanes of `sum` on to `next`. `shift` has x^(d + 32) and x^(d - 32), for a
 * distance of d bits. */
DTI_CRC_WIDE_TARGET DTI_INLINE __m512i dti_crc_fold(__m512i sum, __m512i shift, __m512i next) {
    __m512i low = _mm512_clmulepi64_epi128(sum, shift, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(sum, shift, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96); /* the sum of all three */
}

/* At least 256 bytes; four sums side by side hide the products' latency. */
DTI_CRC_WIDE_TARGET DTI_NOINLINE uint32_t dti_crc32c_wide(uint32_t crc, const uint8_t *at,
                                                          size_t bytes) {
    const __m512i by_2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(0xB9E02B86, 0xDCB17AA4));
    const __m512i by_512 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x9E4ADDF8, 0x740EEF02));
    uint8_t rest[64];
    __m512i a = _mm512_loadu_si512(at), b = _mm512_loadu_si512(at + 64);
    __m512i c = _mm512_loadu_si512(at + 128), d = _mm512_loadu_si512(at + 192);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (at += 256, bytes -= 256; bytes >= 256; at += 256, bytes -= 256) {
        a = dti_crc_fold(a, by_2048, _mm512_loadu_si512(at));
        b = dti_crc_fold(b, by_2048, _mm512_loadu_si512(at + 64));
        c = dti_crc_fold(c, by_2048, _mm512_loadu_si512(at + 128));
        d = dti_crc_fold(d, by_2048, _mm512_loadu_si512(at + 192));
    }
    d = dti_crc_fold(dti_crc_fold(dti_crc_fold(a, by_512, b), by_512, c), by_512, d);
    _mm512_storeu_si512(rest, d);
    _mm256_zeroupper(); /* GCC omits it at -Os; later code would be slow */
    return dti_crc32c_sse(dti_crc32c_sse(0, rest, sizeof rest), at, bytes);
}
#endif

#if defined __ARM_FEATURE_CRC32
/* Its instruction takes two cycles or one: one stream is enough for every wire. */
static uint32_t dti_crc32c_arm(uint32_t crc, const uint8_t *at, size_t bytes) {
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        crc = __crc32cd(crc, word);
    }
    for (; bytes; at++, bytes--)
        crc = __crc32cb(crc, *at);
    return crc;
}
#endif

static uint32_t dti_crc32c(uint32_t crc, const void *data, size_t bytes) {
#if DTI_X86
    if (bytes >= DTI_CRC_WIDE_BYTES && __builtin_cpu_supports("vpclmulqdq") &&
        __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"))
        return ~dti_crc32c_wide(~crc, data, bytes);
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
        return ~dti_crc32c_sse(~crc, data, bytes);
#endif
#if defined __ARM_FEATURE_CRC32
    return ~dti_crc32c_arm(~crc, data, bytes);
#else
    return ~dti_crc32c_portable(~crc, data, bytes);
#endif
}
