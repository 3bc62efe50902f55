/* Loops of the folds for one instruction set. They fold two arrays into one, sum several float
 * arrays in one pass, and convert between element and sum types. Included once per set, with
 * DTI_ISA(name) and DTI_FOLD_BYTES, the bytes of a vector. Pointers have any alignment. It knows
 * nothing of leaves. NaN is found by integer operations, because no floating-point flag of the host
 * can change those. */

#define DTI_F(name) DTI_ISA(dti_fold_##name)
#define DTI_HALF(name) DTI_F(name)
#define DTI_HALF_BYTES DTI_FOLD_BYTES
#include "../../base/half_body.h"

typedef double DTI_F(f64) __attribute__((vector_size(DTI_FOLD_BYTES)));
typedef int64_t DTI_F(i64) __attribute__((vector_size(DTI_FOLD_BYTES)));
typedef uint8_t DTI_F(u8) __attribute__((vector_size(DTI_FOLD_BYTES)));
typedef uint64_t DTI_F(u64) __attribute__((vector_size(DTI_FOLD_BYTES)));

/* ---- one vector */

DTI_INLINE DTI_F(i64) DTI_F(nan_f64)(DTI_F(f64) x) {
    return (DTI_F(i64))(((DTI_F(i64))x & 0x7FFFFFFFFFFFFFFF) > 0x7FF0000000000000);
}

#define DTI_FOLD_REAL(real, bits)                                                                  \
    DTI_INLINE DTI_F(real) DTI_F(sum_##real)(DTI_F(real) x, DTI_F(real) y) {                       \
        return x + y;                                                                              \
    }                                                                                              \
    DTI_INLINE DTI_F(real) DTI_F(product_##real)(DTI_F(real) x, DTI_F(real) y) {                   \
        return x * y;                                                                              \
    }                                                                                              \
    DTI_INLINE DTI_F(real) DTI_F(min_##real)(DTI_F(real) x, DTI_F(real) y) {                       \
        DTI_F(bits) less = (DTI_F(bits))(y < x) | DTI_F(nan_##real)(y);                            \
        less &= ~DTI_F(nan_##real)(x);                                                             \
        return (DTI_F(real))DTI_HALF_PICK(less, (DTI_F(bits))x, (DTI_F(bits))y);                   \
    }                                                                                              \
    DTI_INLINE DTI_F(real) DTI_F(max_##real)(DTI_F(real) x, DTI_F(real) y) {                       \
        DTI_F(bits) more = (DTI_F(bits))(y > x) | DTI_F(nan_##real)(y);                            \
        more &= ~DTI_F(nan_##real)(x);                                                             \
        return (DTI_F(real))DTI_HALF_PICK(more, (DTI_F(bits))x, (DTI_F(bits))y);                   \
    }
DTI_FOLD_REAL(f32, i32)
DTI_FOLD_REAL(f64, i64)

/* Sums and products are made unsigned: they wrap around. */
#define DTI_FOLD_WHOLE(whole, wraps)                                                               \
    DTI_INLINE DTI_F(whole) DTI_F(sum_##whole)(DTI_F(whole) x, DTI_F(whole) y) {                   \
        return (DTI_F(whole))((DTI_F(wraps))x + (DTI_F(wraps))y);                                  \
    }                                                                                              \
    DTI_INLINE DTI_F(whole) DTI_F(product_##whole)(DTI_F(whole) x, DTI_F(whole) y) {               \
        return (DTI_F(whole))((DTI_F(wraps))x * (DTI_F(wraps))y);                                  \
    }                                                                                              \
    DTI_INLINE DTI_F(whole) DTI_F(min_##whole)(DTI_F(whole) x, DTI_F(whole) y) {                   \
        return DTI_HALF_PICK((DTI_F(whole))(y < x), x, y);                                         \
    }                                                                                              \
    DTI_INLINE DTI_F(whole) DTI_F(max_##whole)(DTI_F(whole) x, DTI_F(whole) y) {                   \
        return DTI_HALF_PICK((DTI_F(whole))(y > x), x, y);                                         \
    }
DTI_FOLD_WHOLE(i32, u32)
DTI_FOLD_WHOLE(i64, u64)
DTI_FOLD_WHOLE(u8, u8)

DTI_INLINE DTI_F(f32) DTI_F(f32_of)(DTI_F(f32) x) {
    return (DTI_F(f32))DTI_HALF_PICK(DTI_F(nan_f32)(x), (DTI_F(i32))x, 0x7FC00000);
}
DTI_INLINE DTI_F(f64) DTI_F(f64_of)(DTI_F(f64) x) {
    return (DTI_F(f64))DTI_HALF_PICK(DTI_F(nan_f64)(x), (DTI_F(i64))x, 0x7FF8000000000000);
}

/* ---- arrays. The last elements, fewer than a vector, go through one filled up with zeros. */

#define DTI_FOLD_PAIR(op, type)                                                                    \
    static void DTI_F(pair_##op##_##type)(void *out, const void *a, const void *b, size_t bytes) { \
        uint8_t *to = out;                                                                         \
        const uint8_t *left = a, *right = b;                                                       \
        DTI_F(type) x = {0}, y = {0};                                                              \
        size_t i = 0;                                                                              \
        for (; i + sizeof x <= bytes; i += sizeof x) {                                             \
            memcpy(&x, left + i, sizeof x);                                                        \
            memcpy(&y, right + i, sizeof y);                                                       \
            x = DTI_F(op##_##type)(x, y);                                                          \
            memcpy(to + i, &x, sizeof x);                                                          \
        }                                                                                          \
        if (i < bytes) {                                                                           \
            memcpy(&x, left + i, bytes - i);                                                       \
            memcpy(&y, right + i, bytes - i);                                                      \
            x = DTI_F(op##_##type)(x, y);                                                          \
            memcpy(to + i, &x, bytes - i);                                                         \
        }                                                                                          \
    }
#define DTI_FOLD_PAIRS(type)                                                                       \
    DTI_FOLD_PAIR(sum, type)                                                                       \
    DTI_FOLD_PAIR(min, type) DTI_FOLD_PAIR(max, type) DTI_FOLD_PAIR(product, type)
DTI_FOLD_PAIRS(f32)
DTI_FOLD_PAIRS(f64)
DTI_FOLD_PAIRS(i32)
DTI_FOLD_PAIRS(i64)
DTI_FOLD_PAIRS(u8)

#define DTI_FOLD_WIDEN(name)                                                                       \
    static void DTI_F(name)(void *out, const void *in, size_t count) {                             \
        uint8_t *to = out;                                                                         \
        const uint8_t *from = in;                                                                  \
        DTI_HALF_EACH(DTI_F(half), DTI_F(f32), DTI_FOLD_BYTES / 4, DTI_F(name##_of)(x));           \
    }
DTI_FOLD_WIDEN(widen_bf16)
DTI_FOLD_WIDEN(widen_f16)

/* Divided, when the divisor is not 1, rounded, every NaN the canonical one. */
#define DTI_FOLD_FINISH(name, real, element, out_type)                                             \
    static void DTI_F(finish_##name)(void *out, const void *in, size_t count, uint32_t divisor) {  \
        const DTI_F(real) d = (DTI_F(real)){0} + (element)divisor;                                 \
        uint8_t *to = out;                                                                         \
        const uint8_t *from = in;                                                                  \
        if (divisor == 1)                                                                          \
            DTI_HALF_EACH(DTI_F(real), DTI_F(out_type), DTI_FOLD_BYTES / sizeof(element),          \
                          DTI_F(name##_of)(x));                                                    \
        else                                                                                       \
            DTI_HALF_EACH(DTI_F(real), DTI_F(out_type), DTI_FOLD_BYTES / sizeof(element),          \
                          DTI_F(name##_of)(x / d));                                                \
    }
DTI_FOLD_FINISH(f32, f32, float, f32)
DTI_FOLD_FINISH(bf16, f32, float, half)
DTI_FOLD_FINISH(f16, f32, float, half)
DTI_FOLD_FINISH(f64, f64, double, f64)

/* ---- float sums in one pass over 2, 3, 4 or 8 arrays */

/* Loads by a type without alignment: GCC keeps what memcpy fills in memory. */
typedef float DTI_F(loose) __attribute__((vector_size(DTI_FOLD_BYTES), aligned(1), may_alias));

DTI_INLINE DTI_F(f32) DTI_F(pair_at)(const uint8_t *const *in, size_t i) {
    return *(const DTI_F(loose) *)(const void *)(in[0] + i) +
           *(const DTI_F(loose) *)(const void *)(in[1] + i);
}

DTI_INLINE DTI_F(f32) DTI_F(many_at)(const uint8_t *const in[8], size_t i, int arrays) {
    DTI_F(f32) x = DTI_F(pair_at)(in, i);
    if (arrays == 3)
        x += *(const DTI_F(loose) *)(const void *)(in[2] + i);
    if (arrays >= 4)
        x += DTI_F(pair_at)(in + 2, i);
    if (arrays == 8)
        x += DTI_F(pair_at)(in + 4, i) + DTI_F(pair_at)(in + 6, i);
    return x;
}

DTI_INLINE DTI_F(f32) DTI_F(many_end)(DTI_F(f32) x, bool finish, bool divide, DTI_F(f32) divisor) {
    if (divide)
        x = x / divisor;
    return finish ? DTI_F(f32_of)(x) : x;
}

/* arrays, finish, divide: constants at every call. */
DTI_INLINE void DTI_F(many_loop)(uint8_t *to, const void *const *arrays_in, size_t bytes,
                                 int arrays, bool finish, bool divide, DTI_F(f32) divisor) {
    uint8_t rest[8][DTI_FOLD_BYTES];
    const uint8_t *in[8];
    DTI_F(f32) x;
    size_t i = 0;
    for (int k = 0; k < arrays; k++)
        in[k] = arrays_in[k];
    for (; i + sizeof x <= bytes; i += sizeof x) {
        x = DTI_F(many_end)(DTI_F(many_at)(in, i, arrays), finish, divide, divisor);
        memcpy(to + i, &x, sizeof x);
    }
    if (i == bytes)
        return;
    memset(rest, 0, sizeof rest);
    for (int k = 0; k < arrays; k++) {
        memcpy(rest[k], in[k] + i, bytes - i);
        in[k] = rest[k];
    }
    x = DTI_F(many_end)(DTI_F(many_at)(in, 0, arrays), finish, divide, divisor);
    memcpy(to + i, &x, bytes - i);
}

#define DTI_FOLD_MANY(n)                                                                           \
    static void DTI_F(many_##n)(void *out, const void *const *in, size_t count, bool finish,       \
                                uint32_t divisor) {                                                \
        const DTI_F(f32) d = (DTI_F(f32)){0} + (float)divisor;                                     \
        if (!finish)                                                                               \
            DTI_F(many_loop)(out, in, count * 4, n, false, false, d);                              \
        else if (divisor == 1)                                                                     \
            DTI_F(many_loop)(out, in, count * 4, n, true, false, d);                               \
        else                                                                                       \
            DTI_F(many_loop)(out, in, count * 4, n, true, true, d);                                \
    }
DTI_FOLD_MANY(2)
DTI_FOLD_MANY(3)
DTI_FOLD_MANY(4)
DTI_FOLD_MANY(8)

#define DTI_FOLD_ROW(type)                                                                         \
    {                                                                                              \
        [DT_COMM_SUM] = DTI_F(pair_sum_##type), [DT_COMM_MEAN] = DTI_F(pair_sum_##type),           \
        [DT_COMM_MIN] = DTI_F(pair_min_##type), [DT_COMM_MAX] = DTI_F(pair_max_##type),            \
        [DT_COMM_PRODUCT] = DTI_F(pair_product_##type)                                             \
    }
static const dti_fold_kernels DTI_F(kernels) = {
    .pair = {[DT_F32] = DTI_FOLD_ROW(f32),
             [DT_F64] = DTI_FOLD_ROW(f64),
             [DT_I32] = DTI_FOLD_ROW(i32),
             [DT_I64] = DTI_FOLD_ROW(i64),
             [DT_U8] = DTI_FOLD_ROW(u8)},
    .widen_bf16 = DTI_F(widen_bf16),
    .widen_f16 = DTI_F(widen_f16),
    .finish = {[DT_F32] = DTI_F(finish_f32),
               [DT_F64] = DTI_F(finish_f64),
               [DT_BF16] = DTI_F(finish_bf16),
               [DT_F16] = DTI_F(finish_f16)},
    .many = {[2] = DTI_F(many_2), [3] = DTI_F(many_3), [4] = DTI_F(many_4), [8] = DTI_F(many_8)}};
