/* half.h for one instruction set. */

#define DTI_HALF(name) DTI_ISA(dti_half_##name)
#define DTI_HALF_BYTES (DTI_LANES * 4)
#include "../base/half_body.h"

#define DTI_H(name) DTI_ISA(dti_half_##name)
#define DTI_HALF_ARRAYS(name)                                                                      \
    static void DTI_H(widen_##name)(float *y, const void *x_, int64_t n) {                         \
        const size_t count = (size_t)n;                                                            \
        uint8_t *to = (uint8_t *)y;                                                                \
        const uint8_t *from = x_;                                                                  \
        DTI_HALF_EACH(DTI_H(half), DTI_H(f32), DTI_LANES, DTI_H(widen_##name##_of)(x));            \
    }                                                                                              \
    static void DTI_H(narrow_##name)(void *y, const float *x_, int64_t n) {                        \
        const size_t count = (size_t)n;                                                            \
        uint8_t *to = y;                                                                           \
        const uint8_t *from = (const uint8_t *)x_;                                                 \
        DTI_HALF_EACH(DTI_H(f32), DTI_H(half), DTI_LANES, DTI_H(name##_of)(x));                    \
    }
DTI_HALF_ARRAYS(bf16)
DTI_HALF_ARRAYS(f16)

/* Values between the largest number of bf16 and infinity are cut off. */
DTI_INLINE DTI_H(half) DTI_H(bf16_drawn)(DTI_H(f32) x, DTI_H(i32) draw) {
    const DTI_H(i32) bits = (DTI_H(i32))x, size = bits & 0x7FFFFFFF;
    const DTI_H(i32) up = draw & (DTI_H(i32))(size < 0x7F7F0000);
    const DTI_H(i32) quiet = (DTI_H(i32))(size > 0x7F800000) & 0x400000;
    const DTI_H(u32) sum = (DTI_H(u32))bits + (DTI_H(u32))up;
    return __builtin_convertvector((sum | (DTI_H(u32))quiet) >> 16, DTI_H(half));
}

/* `used` is a constant where all lanes are. */
DTI_INLINE void DTI_H(bf16_draw_some)(uint16_t *y, const float *x, const uint32_t *words, int shift,
                                      size_t used) {
    DTI_H(f32) value = {0};
    DTI_H(i32) draw = {0};
    memcpy(&value, x, used * sizeof *x);
    memcpy(&draw, words, used * sizeof *words);
    const DTI_H(half) half = DTI_H(bf16_drawn)(value, draw >> shift & 0xFFFF);
    memcpy(y, &half, used * sizeof *y);
}
DTI_ISA_FUNCTION(H, draw, bf16_draw);
static void DTI_H(bf16_draw)(void *y_, const float *x, int64_t n, const uint32_t *words,
                             int shift) {
    uint16_t *y = y_;
    int64_t i = 0;
    for (; i + DTI_LANES <= n; i += DTI_LANES)
        DTI_H(bf16_draw_some)(y + i, x + i, words + i, shift, DTI_LANES);
    if (i < n)
        DTI_H(bf16_draw_some)(y + i, x + i, words + i, shift, (size_t)(n - i));
}
