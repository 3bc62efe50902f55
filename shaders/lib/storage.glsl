/* DTI_S, the type of an element in a buffer, and DTI_A, the one that it is computed in: a kernel
 * that says its operands in these words, and reads and writes them by DTI_LOAD and DTI_STORE (of four
 * at once: DTI_S4, DTI_LOAD4, DTI_STORE4), is one text for each type of floats. ./build.sh shaders compiles it with -DDTI_STORAGE for each. 16 bits are
 * converted by integers, as base/half.c does: a device's own conversion may round as it likes. */
#define DTI_STORAGE_F32 0
#define DTI_STORAGE_BF16 1
#define DTI_STORAGE_F16 2
#ifndef DTI_STORAGE
#define DTI_STORAGE DTI_STORAGE_F32
#endif

#define DTI_A float

#if DTI_STORAGE == DTI_STORAGE_F32
#define DTI_S float
#define DTI_LOAD(s) (s)
#define DTI_STORE(a) (a)
#define DTI_S4 vec4
#define DTI_LOAD4(s) (s)
#define DTI_STORE4(a) (a)
#else
#extension GL_EXT_shader_16bit_storage : require
#define DTI_S uint16_t
#define DTI_LOAD(s) dti_widen(uint(s))
#define DTI_STORE(a) uint16_t(dti_narrow(a))
#define DTI_S4 u16vec4
#define DTI_LOAD4(s) vec4(DTI_LOAD(s.x), DTI_LOAD(s.y), DTI_LOAD(s.z), DTI_LOAD(s.w))
#define DTI_STORE4(a)                                                                              \
    u16vec4(uvec4(dti_narrow(a.x), dti_narrow(a.y), dti_narrow(a.z), dti_narrow(a.w)))

/* bits >> shift, to nearest even; 1 <= shift <= 31. */
uint dti_shift_round(uint bits, uint shift)
{
    return (bits + (1u << (shift - 1u)) - 1u + (bits >> shift & 1u)) >> shift;
}

#if DTI_STORAGE == DTI_STORAGE_BF16
DTI_A dti_widen(uint bits)
{
    return uintBitsToFloat(bits << 16);
}

uint dti_narrow(DTI_A x)
{
    uint bits = floatBitsToUint(x);
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : dti_shift_round(bits, 16u);
}
#else
DTI_A dti_widen(uint bits)
{
    uint sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
    if (size >= 0x7c00u)
        return uintBitsToFloat(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    if (size >= 0x400u)
        return uintBitsToFloat(sign | ((size << 13) + 0x38000000u));
    DTI_A small = float(size) * 5.9604644775390625e-8; /* 2^-24: a denormal half */
    return uintBitsToFloat(sign | floatBitsToUint(small));
}

uint dti_narrow(DTI_A x)
{
    uint bits = floatBitsToUint(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u)
        return 0x7e00u;
    if (size >= 0x47800000u)
        return sign | 0x7c00u;
    if (size >= 0x38800000u) /* 2^-14: the smallest normal half */
        return sign | dti_shift_round(size - 0x38000000u, 13u);
    if (size < 0x33000000u) /* below half the smallest denormal */
        return sign;
    return sign | dti_shift_round((size & 0x7fffffu) | 0x800000u, 126u - (size >> 23));
}
#endif
#endif
