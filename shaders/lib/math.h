/* The elementary and elementwise functions for one float, in GLSL and in C. C's are the reference
 * of the vector kernels. The algorithms are math_body.h and map_body.h, one text for both; this
 * file says what their words mean for scalars. */

#ifndef VULKAN /* the vector kernels have used the words before */
#undef DTI_M_FN
#undef DTI_M
#undef DTI_M_F
#undef DTI_M_I
#undef DTI_M_B
#undef DTI_M_K
#undef DTI_M_KI
#undef DTI_M_ADD
#undef DTI_M_SUB
#undef DTI_M_MUL
#undef DTI_M_DIV
#undef DTI_M_QUOTIENT
#undef DTI_M_LT
#undef DTI_M_LE
#undef DTI_M_EQ
#undef DTI_M_ILT
#undef DTI_M_BOTH
#undef DTI_M_EITHER
#undef DTI_M_SELECT
#undef DTI_M_ISELECT
#undef DTI_M_IAND
#undef DTI_M_IOR
#undef DTI_M_IXOR
#undef DTI_M_SAR
#undef DTI_M_PRECISE
#undef DTI_M_ASINT
#undef DTI_M_ASFLOAT
#undef DTI_M_FROM_INT
#undef DTI_M_TO_INT
#undef DTI_M_SQRT
#undef DTI_M_IADD
#undef DTI_M_ISUB
#undef DTI_M_SHL
#undef DTI_M_FMA
#undef DTI_M_ANY
#undef DTI_M_IS_NAN
#undef DTI_M_CLAMP
#undef DTI_M_AT_MOST
#undef DTI_M_EXP_NEAR
#undef DTI_M_SCALE
#undef DTI_M_FAR_ANGLES
#endif
#ifdef VULKAN
#define DTI_M_FN
#else
#define DTI_M_FN static inline
#endif
#define DTI_M(name) dti_m_##name
#define DTI_M_F float
#define DTI_M_I int
#define DTI_M_B bool
#define DTI_M_K(c) (c)
#define DTI_M_KI(c) (c)
#define DTI_M_ADD(x, y) ((x) + (y))
#define DTI_M_SUB(x, y) ((x) - (y))
#define DTI_M_MUL(x, y) ((x) * (y))
#define DTI_M_DIV(x, y) ((x) / (y))
#define DTI_M_LT(x, y) ((x) < (y))
#define DTI_M_LE(x, y) ((x) <= (y))
#define DTI_M_EQ(x, y) ((x) == (y))
#define DTI_M_ILT(x, y) ((x) < (y))
#define DTI_M_BOTH(x, y) ((x) && (y))
#define DTI_M_EITHER(x, y) ((x) || (y))
#define DTI_M_SELECT(m, x, y) ((m) ? (x) : (y))
#define DTI_M_ISELECT(m, x, y) ((m) ? (x) : (y))
#define DTI_M_IAND(x, y) ((x) & (y))
#define DTI_M_IOR(x, y) ((x) | (y))
#define DTI_M_IXOR(x, y) ((x) ^ (y))
#define DTI_M_SAR(x, n) ((x) >> (n))
#define DTI_M_ANY(m) (m)
#ifdef VULKAN
#include "quotient.glsl"
#define DTI_M_QUOTIENT(x, y) dti_quotient(x, y)
#define DTI_M_PRECISE precise
#undef DTI_M_FMA
#define DTI_M_FMA(x, y, z) fma(x, y, z)
#define DTI_M_ASINT(x) floatBitsToInt(x)
#define DTI_M_ASFLOAT(n) intBitsToFloat(n)
#define DTI_M_FROM_INT(n) float(n)
#define DTI_M_TO_INT(x) int(x)
#define DTI_M_SQRT(x) sqrt(x)
#define DTI_M_IADD(x, y) ((x) + (y))
#define DTI_M_ISUB(x, y) ((x) - (y))
#define DTI_M_SHL(x, n) ((x) << (n))
#define DTI_M_FAR_ANGLES(x, r, n) r = dti_far_angle(x, n)
#include "angle.h"
#else
#define DTI_M_QUOTIENT(x, y) ((x) / (y))
#define DTI_M_PRECISE
#define DTI_M_FMA(x, y, z) fmaf(x, y, z)
#define DTI_M_ASINT(x) dti_m_asint(x)
#define DTI_M_ASFLOAT(n) dti_m_asfloat(n)
#define DTI_M_FROM_INT(n) ((float)(n))
#define DTI_M_TO_INT(x) ((int)(x))
#define DTI_M_SQRT(x) sqrtf(x)
#define DTI_M_IADD(x, y) ((int)((unsigned)(x) + (unsigned)(y)))
#define DTI_M_ISUB(x, y) ((int)((unsigned)(x) - (unsigned)(y)))
#define DTI_M_SHL(x, n) ((int)((unsigned)(x) << (n)))
#define DTI_M_FAR_ANGLES(x, r, n) r = dti_far_angle(x, &n)
static inline int dti_m_asint(float x)
{
    int n;
    memcpy(&n, &x, sizeof n);
    return n;
}
static inline float dti_m_asfloat(int n)
{
    float x;
    memcpy(&x, &n, sizeof x);
    return x;
}
#endif
#include "math_body.h"
#define DTI_MAP_PART 1
#include "map_body.h"
#undef DTI_MAP_PART
