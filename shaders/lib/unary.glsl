/* The elementwise functions that spec0 (DTI_U_* of unary_list.h) chooses from, and their gradients.
 * Their text is map_body.h, which the CPU uses too. */
#include "unary_list.h"

/* X(ID, name) for each of them. */
#define DTI_EACH_UNARY(X)                                                                          \
    X(NEG, neg) X(ABS, abs) X(SIGN, sign) X(EXP, exp) X(LOG, log) X(LOG1P, log1p)                  \
    X(EXPM1, expm1) X(SQRT, sqrt) X(RSQRT, rsqrt) X(RECIPROCAL, reciprocal) X(SQUARE, square)      \
    X(SIN, sin) X(COS, cos) X(TANH, tanh) X(SIGMOID, sigmoid) X(RELU, relu)                        \
    X(LEAKY_RELU, leaky_relu) X(GELU, gelu) X(GELU_TANH, gelu_tanh) X(SILU, silu)                  \
    X(SOFTPLUS, softplus) X(ELU, elu) X(ERF, erf) X(FLOOR, floor) X(STEP, step)                    \
    X(AFFINE, affine) X(COPY, copy) X(FILL, fill)

float dti_unary(float x, float p0, float p1)
{
    switch (spec0) {
#define DTI_CASE(ID, name) case DTI_U_##ID: return dti_m_map_##name(x, p0, p1);
        DTI_EACH_UNARY(DTI_CASE)
#undef DTI_CASE
    }
    return DTI_NAN;
}

float dti_unary_grad(float x, float dy, float p0, float p1)
{
    switch (spec0) {
#define DTI_CASE(ID, name) case DTI_U_##ID: return dti_m_grad_##name(x, dy, p0, p1);
        DTI_EACH_UNARY(DTI_CASE)
#undef DTI_CASE
    }
    return DTI_NAN;
}
