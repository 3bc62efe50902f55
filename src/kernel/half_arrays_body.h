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
