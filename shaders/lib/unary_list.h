/* The elementwise functions of one and of two tensors, numbered for C and GLSL (specialisation
 * constants, op table) alike. In C, X(ID, name) lists them in the order of the numbers. */

#define DTI_U_NEG 0
#define DTI_U_ABS 1
#define DTI_U_SIGN 2
#define DTI_U_EXP 3
#define DTI_U_LOG 4
#define DTI_U_LOG1P 5
#define DTI_U_EXPM1 6
#define DTI_U_SQRT 7
#define DTI_U_RSQRT 8
#define DTI_U_RECIPROCAL 9
#define DTI_U_SQUARE 10
#define DTI_U_SIN 11
#define DTI_U_COS 12
#define DTI_U_TANH 13
#define DTI_U_SIGMOID 14
#define DTI_U_RELU 15
#define DTI_U_LEAKY_RELU 16 /* p0: slope */
#define DTI_U_GELU 17
#define DTI_U_GELU_TANH 18
#define DTI_U_SILU 19
#define DTI_U_SOFTPLUS 20
#define DTI_U_ELU 21 /* p0: alpha */
#define DTI_U_ERF 22
#define DTI_U_FLOOR 23
#define DTI_U_STEP 24
#define DTI_U_AFFINE 25 /* p0 * x + p1 */
#define DTI_U_COPY 26
#define DTI_U_FILL 27 /* p0 */
#define DTI_U_COUNT 28

#define DTI_B_ADD 0
#define DTI_B_SUB 1
#define DTI_B_MUL 2
#define DTI_B_DIV 3
#define DTI_B_MAX 4
#define DTI_B_MIN 5
#define DTI_B_POW 6
#define DTI_B_EQ 7
#define DTI_B_LT 8
#define DTI_B_LE 9
#define DTI_B_GT 10
#define DTI_B_GE 11
#define DTI_B_COUNT 12

#ifndef VULKAN
#define DTI_UNARY_LIST(X)                                                                          \
    X(NEG, neg)                                                                                    \
    X(ABS, abs)                                                                                    \
    X(SIGN, sign)                                                                                  \
    X(EXP, exp)                                                                                    \
    X(LOG, log)                                                                                    \
    X(LOG1P, log1p)                                                                                \
    X(EXPM1, expm1)                                                                                \
    X(SQRT, sqrt)                                                                                  \
    X(RSQRT, rsqrt)                                                                                \
    X(RECIPROCAL, reciprocal)                                                                      \
    X(SQUARE, square)                                                                              \
    X(SIN, sin)                                                                                    \
    X(COS, cos)                                                                                    \
    X(TANH, tanh)                                                                                  \
    X(SIGMOID, sigmoid)                                                                            \
    X(RELU, relu)                                                                                  \
    X(LEAKY_RELU, leaky_relu)                                                                      \
    X(GELU, gelu)                                                                                  \
    X(GELU_TANH, gelu_tanh)                                                                        \
    X(SILU, silu)                                                                                  \
    X(SOFTPLUS, softplus)                                                                          \
    X(ELU, elu)                                                                                    \
    X(ERF, erf)                                                                                    \
    X(FLOOR, floor)                                                                                \
    X(STEP, step)                                                                                  \
    X(AFFINE, affine)                                                                              \
    X(COPY, copy)                                                                                  \
    X(FILL, fill)
#define DTI_BINARY_LIST(X)                                                                         \
    X(ADD, add)                                                                                    \
    X(SUB, sub)                                                                                    \
    X(MUL, mul)                                                                                    \
    X(DIV, div)                                                                                    \
    X(MAX, max)                                                                                    \
    X(MIN, min)                                                                                    \
    X(POW, pow)                                                                                    \
    X(EQ, eq)                                                                                      \
    X(LT, lt)                                                                                      \
    X(LE, le)                                                                                      \
    X(GT, gt)                                                                                      \
    X(GE, ge)
#endif
