/* The words of shaders/lib/math_body.h for 16 lanes: DTI_V(m_exp), DTI_V(m_map_gelu) and so on. The
 * formulas are not here. */

#ifndef DTI_M_FN /* the words name DTI_V, so one definition serves every instruction set */
#define DTI_M_FN DTI_INLINE
#define DTI_M(name) DTI_V(m_##name)
#define DTI_M_F DTI_VF
#define DTI_M_I DTI_VI
#define DTI_M_B DTI_VM
#define DTI_M_K(c) DTI_V(set1)(c)
#define DTI_M_KI(c) DTI_V(iset1)(c)
#define DTI_M_PRECISE
#define DTI_M_FMA(x, y, z) DTI_V(fma)(x, y, z)
#define DTI_M_ADD(x, y) DTI_V(add)(x, y)
#define DTI_M_SUB(x, y) DTI_V(sub)(x, y)
#define DTI_M_MUL(x, y) DTI_V(mul)(x, y)
#define DTI_M_DIV(x, y) DTI_V(div)(x, y)
#define DTI_M_SQRT(x) DTI_V(sqrt)(x)
#define DTI_M_LT(x, y) DTI_V(lt)(x, y)
#define DTI_M_LE(x, y) DTI_V(le)(x, y)
#define DTI_M_EQ(x, y) DTI_V(eq)(x, y)
#define DTI_M_ILT(x, y) DTI_V(ilt)(x, y)
#define DTI_M_BOTH(x, y) DTI_V(both)(x, y)
#define DTI_M_EITHER(x, y) DTI_V(either)(x, y)
#define DTI_M_SELECT(m, x, y) DTI_V(select)(m, x, y)
#define DTI_M_IAND(x, y) DTI_V(iand)(x, y)
#define DTI_M_IOR(x, y) DTI_V(ior)(x, y)
#define DTI_M_IXOR(x, y) DTI_V(ixor)(x, y)
#define DTI_M_IADD(x, y) DTI_V(iadd)(x, y)
#define DTI_M_ISUB(x, y) DTI_V(isub)(x, y)
#define DTI_M_SHL(x, n) DTI_V(shl)(x, n)
#define DTI_M_SAR(x, n) DTI_V(sar)(x, n)
#define DTI_M_ASINT(x) DTI_V(bits)(x)
#define DTI_M_ASFLOAT(n) DTI_V(float)(n)
#define DTI_M_FROM_INT(n) DTI_V(from_int)(n)
#define DTI_M_TO_INT(x) DTI_V(to_int)(x)
#endif

#include "../../shaders/lib/math_body.h"
#define DTI_MAP_PART 1
#include "../../shaders/lib/map_body.h"
#undef DTI_MAP_PART
#define DTI_OPTIM_PART 3
#include "../../shaders/lib/optim_body.h"
#undef DTI_OPTIM_PART
