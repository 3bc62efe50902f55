/* The words of shaders/lib/math_body.h for vectors: DTI_E(m_exp), DTI_E(m_map_gelu) and so on. The
 * formulas are not here. */

#ifndef DTI_M_FN /* the words name DTI_E, so one definition serves every instruction set */
#define DTI_M_FN DTI_E_FN
#define DTI_M(name) DTI_E(m_##name)
#define DTI_M_F DTI_EF
#define DTI_M_I DTI_EI
#define DTI_M_B DTI_EM
#define DTI_M_K(c) DTI_E(set1)(c)
#define DTI_M_KI(c) DTI_E(iset1)(c)
#define DTI_M_PRECISE
#define DTI_M_FMA(x, y, z) DTI_E(fma)(x, y, z)
#define DTI_M_ADD(x, y) DTI_E(add)(x, y)
#define DTI_M_SUB(x, y) DTI_E(sub)(x, y)
#define DTI_M_MUL(x, y) DTI_E(mul)(x, y)
#define DTI_M_DIV(x, y) DTI_E(div)(x, y)
#define DTI_M_QUOTIENT(x, y) DTI_E(div)(x, y)
#define DTI_M_SQRT(x) DTI_E(sqrt)(x)
#define DTI_M_LT(x, y) DTI_E(lt)(x, y)
#define DTI_M_LE(x, y) DTI_E(le)(x, y)
#define DTI_M_EQ(x, y) DTI_E(eq)(x, y)
#define DTI_M_ILT(x, y) DTI_E(ilt)(x, y)
#define DTI_M_BOTH(x, y) DTI_E(both)(x, y)
#define DTI_M_EITHER(x, y) DTI_E(either)(x, y)
#define DTI_M_SELECT(m, x, y) DTI_E(select)(m, x, y)
#define DTI_M_IAND(x, y) DTI_E(iand)(x, y)
#define DTI_M_IOR(x, y) DTI_E(ior)(x, y)
#define DTI_M_IXOR(x, y) DTI_E(ixor)(x, y)
#define DTI_M_IADD(x, y) DTI_E(iadd)(x, y)
#define DTI_M_ISUB(x, y) DTI_E(isub)(x, y)
#define DTI_M_SHL(x, n) DTI_E(shl)(x, n)
#define DTI_M_SAR(x, n) DTI_E(sar)(x, n)
#define DTI_M_ASINT(x) DTI_E(bits)(x)
#define DTI_M_ASFLOAT(n) DTI_E(float)(n)
#define DTI_M_FROM_INT(n) DTI_E(from_int)(n)
#define DTI_M_TO_INT(x) DTI_E(to_int)(x)
#define DTI_M_IS_NAN(x) DTI_E(nan)(x)
#define DTI_M_CLAMP(x, low, high) DTI_E(max)(DTI_E(min)(x, DTI_M_K(high)), DTI_M_K(low))
#define DTI_M_AT_MOST(x, high) DTI_E(min)(x, high)
#define DTI_M_EXP_NEAR(x) DTI_M(exp_near)(x)
#define DTI_M_SCALE(x, n) DTI_E(scale)(x, n)
#define DTI_M_ANY(m) DTI_E(any)(m)
#define DTI_M_FAR_ANGLES(x, r, n) DTI_E(far_angles)(&x, &r, &n)
#endif

/* The lanes of r and n where |x| is above DTI_ANGLE_FAR. */
DTI_NOINLINE void DTI_E(far_angles)(const DTI_EF *x, DTI_EF *r, DTI_EI *n) {
    float from[DTI_E_LANES], rest[DTI_E_LANES];
    int32_t quadrants[DTI_E_LANES];
    _Static_assert(sizeof *x == sizeof from && sizeof *n == sizeof quadrants, "a lane each");
    memcpy(from, x, sizeof from);
    memcpy(rest, r, sizeof rest);
    memcpy(quadrants, n, sizeof quadrants);
    for (int i = 0; i < DTI_E_LANES; i++)
        if (from[i] > DTI_ANGLE_FAR || from[i] < -DTI_ANGLE_FAR)
            rest[i] = dti_far_angle(from[i], &quadrants[i]);
    memcpy(r, rest, sizeof rest);
    memcpy(n, quadrants, sizeof quadrants);
}

#include "../../shaders/lib/math_body.h"
#define DTI_MAP_PART 1
#include "../../shaders/lib/map_body.h"
#undef DTI_MAP_PART
#define DTI_OPTIM_PART 11
#include "../../shaders/lib/optim_body.h"
#undef DTI_OPTIM_PART

#if DTI_LANES == 4 && DTI_X86 || DTI_LANES == 8 /* for rows, on 16 lanes */
DTI_V1(DTI_VF, m_exp, DTI_VF)
DTI_V1(DTI_VF, m_log, DTI_VF)
DTI_V2(DTI_VF, m_pair_maximum, DTI_VF)
#endif
