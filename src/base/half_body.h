/* The conversions of half.c on a vector of one instruction set. They give the same bits, except
 * that a rounded NaN becomes the canonical one. Included where a set's loops are compiled, with
 * DTI_HALF(name) and DTI_HALF_BYTES, the bytes of a vector of floats. They use integers, as half.c
 * does, except for denormals of f16. Those are made by an exact subtraction, and rounded by an
 * addition. */

#ifndef DTI_HALF
#define DTI_HALF(name) dti_half_##name
#define DTI_HALF_BYTES 16
#endif

typedef float DTI_HALF(f32) __attribute__((vector_size(DTI_HALF_BYTES)));
typedef int32_t DTI_HALF(i32) __attribute__((vector_size(DTI_HALF_BYTES)));
typedef uint32_t DTI_HALF(u32) __attribute__((vector_size(DTI_HALF_BYTES)));
typedef uint16_t DTI_HALF(half) __attribute__((vector_size(DTI_HALF_BYTES / 2)));

DTI_INLINE DTI_HALF(i32) DTI_HALF(nan_f32)(DTI_HALF(f32) x) {
    return (DTI_HALF(i32))(((DTI_HALF(i32))x & 0x7FFFFFFF) > 0x7F800000);
}

/* y where the mask is set, else x. */
#define DTI_HALF_PICK(mask, x, y) (((x) & ~(mask)) | ((y) & (mask)))

DTI_INLINE DTI_HALF(f32) DTI_HALF(widen_bf16_of)(DTI_HALF(half) x) {
    return (DTI_HALF(f32))(__builtin_convertvector(x, DTI_HALF(u32)) << 16);
}

/* dti_f32_from_f16 on a vector; a denormal is taken apart by a subtraction that is exact. */
DTI_INLINE DTI_HALF(f32) DTI_HALF(widen_f16_of)(DTI_HALF(half) x) {
    DTI_HALF(i32) bits = (DTI_HALF(i32)) __builtin_convertvector(x, DTI_HALF(u32));
    DTI_HALF(i32) sign = (bits & 0x8000) << 16, size = (bits & 0x7FFF) << 13;
    DTI_HALF(i32)
    small = (DTI_HALF(i32))(size < 0x00800000), large = (DTI_HALF(i32))(size >= 0x0F800000);
    DTI_HALF(i32) normal = size + 0x38000000 + (large & 0x38000000);
    DTI_HALF(f32) denormal = (DTI_HALF(f32))(size + 0x38800000) - 0x1p-14f;
    return (DTI_HALF(f32))(sign | DTI_HALF_PICK(small, normal, (DTI_HALF(i32))denormal));
}

/* Rounds to nearest even; a NaN becomes the canonical one. */
DTI_INLINE DTI_HALF(half) DTI_HALF(bf16_of)(DTI_HALF(f32) x) {
    DTI_HALF(i32) nan = DTI_HALF(nan_f32)(x);
    DTI_HALF(u32) bits = (DTI_HALF(u32))x;
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return __builtin_convertvector(DTI_HALF_PICK((DTI_HALF(u32))nan, bits, 0x7FC0u),
                                   DTI_HALF(half));
}

/* To f16, as bf16_of. Added to 0.5, whose last place is 2^-24, a number below 2^-14 is
 * rounded where a denormal half ends. */
DTI_INLINE DTI_HALF(half) DTI_HALF(f16_of)(DTI_HALF(f32) x) {
    DTI_HALF(i32) bits = (DTI_HALF(i32))x, sign = (bits >> 16) & 0x8000, size = bits & 0x7FFFFFFF;
    DTI_HALF(i32) normal = (size - 0x38000000 + 0x0FFF + (size >> 13 & 1)) >> 13;
    DTI_HALF(i32) denormal = (DTI_HALF(i32))((DTI_HALF(f32))size + 0.5f) - 0x3F000000;
    DTI_HALF(i32)
    small = (DTI_HALF(i32))(size < 0x38800000), large = (DTI_HALF(i32))(size >= 0x47800000);
    DTI_HALF(i32) half = DTI_HALF_PICK(small, normal, denormal);
    half = sign | DTI_HALF_PICK(large, half, 0x7C00);
    half = DTI_HALF_PICK((DTI_HALF(i32))(size > 0x7F800000), half, 0x7E00);
    return __builtin_convertvector((DTI_HALF(u32))half, DTI_HALF(half));
}

/* ---- arrays. The last elements, fewer than a vector, go through one filled up with zeros. */

/* Elements of `in_type` by way of `expression` of the vector x to `out_type`. */
#define DTI_HALF_EACH(in_type, out_type, lanes, expression)                                        \
    do {                                                                                           \
        const size_t in_size = sizeof(in_type) / (lanes), out_size = sizeof(out_type) / (lanes);   \
        in_type x = {0};                                                                           \
        out_type result;                                                                           \
        size_t i = 0;                                                                              \
        for (; i + (lanes) <= count; i += (lanes)) {                                               \
            memcpy(&x, from + i * in_size, sizeof x);                                              \
            result = expression;                                                                   \
            memcpy(to + i * out_size, &result, sizeof result);                                     \
        }                                                                                          \
        if (i < count) {                                                                           \
            memcpy(&x, from + i * in_size, (count - i) * in_size);                                 \
            result = expression;                                                                   \
            memcpy(to + i * out_size, &result, (count - i) * out_size);                            \
        }                                                                                          \
    } while (0)

#undef DTI_HALF
#undef DTI_HALF_BYTES
