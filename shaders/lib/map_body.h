/* The elementwise functions of one and of two tensors: one section each, with its value and
 * gradient. It is written once for GLSL, scalar C and the CPU's vectors, in the words of
 * math_body.h; for C also its derivative in rows. Values and gradients at kinks are PyTorch's: abs,
 * relu and the step have gradient 0 at 0. Another one needs a declaration in src/api/tensor.h and a
 * row of src/op/op_table.h. Here it needs a line at the end of the list and a section. Tests
 * compare with tests/reference/unary.h.
 *
 * DTI_MAP_PART says what an includer wants; without it there are only the lists.
 *   1: the formulas. map_x: y of x; grad_x: dx of x and dy, = dy * f'(x); pair_x: of two tensors.
 *   2: C only, for src/op/families/unary.c. */

#ifndef DTI_UNARY_LIST
/* A row is PLAIN, WITH or INNER of (ID, name, slope). Its place in the list is its number, which
 * selects the function (spec0). That is DTI_U_ID, in C of an enumeration, in GLSL of ./build.sh
 * shaders. slope: f' is SLOPE (another function of x), FLAT (0: no gradient flows) or LINEAR (p0,
 * of f = p0 * x + p1). PLAIN: only of x, with a public function each. WITH: also of parameters p0
 * (slope, alpha, scale, low) and p1 (offset, high). INNER: only of launches; fill: p0. */
#define DTI_UNARY_ROWS(PLAIN, WITH, INNER)                                                         \
    PLAIN(NEG, neg, LINEAR)                                                                        \
    PLAIN(ABS, abs, SLOPE)                                                                         \
    PLAIN(SIGN, sign, FLAT)                                                                        \
    PLAIN(EXP, exp, SLOPE)                                                                         \
    PLAIN(LOG, log, SLOPE)                                                                         \
    PLAIN(LOG1P, log1p, SLOPE)                                                                     \
    PLAIN(EXPM1, expm1, SLOPE)                                                                     \
    PLAIN(SQRT, sqrt, SLOPE)                                                                       \
    PLAIN(RSQRT, rsqrt, SLOPE)                                                                     \
    PLAIN(RECIPROCAL, reciprocal, SLOPE)                                                           \
    PLAIN(SQUARE, square, SLOPE)                                                                   \
    PLAIN(SIN, sin, SLOPE)                                                                         \
    PLAIN(COS, cos, SLOPE)                                                                         \
    PLAIN(TANH, tanh, SLOPE)                                                                       \
    PLAIN(SIGMOID, sigmoid, SLOPE)                                                                 \
    PLAIN(RELU, relu, SLOPE)                                                                       \
    WITH(LEAKY_RELU, leaky_relu, SLOPE)                                                            \
    PLAIN(GELU, gelu, SLOPE)                                                                       \
    PLAIN(GELU_TANH, gelu_tanh, SLOPE)                                                             \
    PLAIN(SILU, silu, SLOPE)                                                                       \
    PLAIN(SOFTPLUS, softplus, SLOPE)                                                               \
    WITH(ELU, elu, SLOPE)                                                                          \
    PLAIN(ERF, erf, SLOPE)                                                                         \
    PLAIN(FLOOR, floor, FLAT)                                                                      \
    PLAIN(HEAVISIDE, heaviside, FLAT)                                                              \
    WITH(AFFINE, affine, LINEAR)                                                                   \
    INNER(COPY, copy, SLOPE)                                                                       \
    INNER(FILL, fill, SLOPE)                                                                       \
    PLAIN(LOG_SIGMOID, log_sigmoid, SLOPE)                                                         \
    WITH(LOG_FLOOR, log_floor, SLOPE)                                                              \
    PLAIN(HARDSWISH, hardswish, SLOPE)                                                             \
    PLAIN(HARDSIGMOID, hardsigmoid, SLOPE)                                                         \
    PLAIN(MISH, mish, SLOPE)                                                                       \
    PLAIN(SELU, selu, SLOPE)                                                                       \
    PLAIN(SOFTSIGN, softsign, SLOPE)                                                               \
    PLAIN(ROUND, round, FLAT)                                                                      \
    PLAIN(CEIL, ceil, FLAT)                                                                        \
    WITH(CLAMP, clamp, SLOPE)                                                                      \
    PLAIN(ERFINV, erfinv, SLOPE)                                                                   \
    PLAIN(ATAN, atan, SLOPE)
#define DTI_NO_ROW(ID, name, slope)
#define DTI_UNARY_PLAIN(X) DTI_UNARY_ROWS(X, DTI_NO_ROW, DTI_NO_ROW)
#define DTI_UNARY_WITH(X) DTI_UNARY_ROWS(DTI_NO_ROW, X, DTI_NO_ROW)
#define DTI_UNARY_INNER(X) DTI_UNARY_ROWS(DTI_NO_ROW, DTI_NO_ROW, X)
/* All, in the order that the shaders' cases have. */
#define DTI_UNARY_LIST(X) DTI_UNARY_PLAIN(X) DTI_UNARY_WITH(X) DTI_UNARY_INNER(X)
/* X(ID, name), DTI_B_ID. NaN in either gives NaN, as in PyTorch; a comparison gives 1 or 0. */
#define DTI_BINARY_LIST(X)                                                                         \
    X(ADD, add)                                                                                    \
    X(SUB, sub)                                                                                    \
    X(MUL, mul)                                                                                    \
    X(DIV, div)                                                                                    \
    X(MAXIMUM, maximum)                                                                            \
    X(MINIMUM, minimum)                                                                            \
    X(POW, pow)                                                                                    \
    X(EQ, eq)                                                                                      \
    X(LT, lt)                                                                                      \
    X(LE, le)                                                                                      \
    X(GT, gt)                                                                                      \
    X(GE, ge)                                                                                      \
    X(MASK, mask)                                                                                  \
    X(MASK_INV, mask_inv)
#endif

#ifdef DTI_MAP_PART
#ifndef VULKAN
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* all take the parameters */
#endif
#if DTI_MAP_PART == 1
#define DTI_M_MAP(name) DTI_M_FN DTI_M_F DTI_M(map_##name)(DTI_M_F x, DTI_M_F p0, DTI_M_F p1)
#define DTI_M_GRAD(name)                                                                           \
    DTI_M_FN DTI_M_F DTI_M(grad_##name)(DTI_M_F x, DTI_M_F dy, DTI_M_F p0, DTI_M_F p1)
#define DTI_M_ZERO DTI_M_K(0.0f)
#define DTI_M_ONE DTI_M_K(1.0f)
#define DTI_M_NEG(x) DTI_M_ASFLOAT(DTI_M_IXOR(DTI_M_ASINT(x), DTI_M_KI(~0x7fffffff)))
#define DTI_M_POSITIVE(x, y, n) DTI_M_SELECT(DTI_M_LT(DTI_M_ZERO, x), y, n)
#else
/* f' of x in rows: any order of derivative can be had. */
#define DTI_PRIME(name) static dt_tensor dti_prime_##name(dt_tensor x, const float *p)
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(neg) {
    return DTI_M_NEG(x);
}
DTI_M_GRAD(neg) {
    return DTI_M_NEG(dy);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(sign) {
    DTI_M_F minus = DTI_M_SELECT(DTI_M_LT(x, DTI_M_ZERO), DTI_M_K(-1.0f), DTI_M_ZERO);
    return DTI_M_POSITIVE(x, DTI_M_ONE, minus);
}
DTI_M_GRAD(sign) {
    return DTI_M_ZERO;
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(abs) {
    return DTI_M_ABS(x);
}
DTI_M_GRAD(abs) {
    return DTI_M_MUL(dy, DTI_M(map_sign)(x, p0, p1));
}
#else
DTI_PRIME(abs) {
    return dt_sign(x);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(exp) {
    return DTI_M(exp)(x);
}
DTI_M_GRAD(exp) {
    return DTI_M_MUL(dy, DTI_M(exp)(x));
}
#else
DTI_PRIME(exp) {
    return dt_exp(x);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(log) {
    return DTI_M(log)(x);
}
DTI_M_GRAD(log) {
    return DTI_M_QUOTIENT(dy, x);
}
#else
DTI_PRIME(log) {
    return dt_reciprocal(x);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(log1p) {
    return DTI_M(log1p)(x);
}
DTI_M_GRAD(log1p) {
    return DTI_M_QUOTIENT(dy, DTI_M_ADD(x, DTI_M_ONE));
}
#else
DTI_PRIME(log1p) {
    return dt_reciprocal(dt_affine(x, 1.0f, 1.0f));
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(expm1) {
    return DTI_M(expm1)(x);
}
DTI_M_GRAD(expm1) {
    return DTI_M_MUL(dy, DTI_M(exp)(x));
}
#else
DTI_PRIME(expm1) {
    return dt_exp(x);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(sqrt) {
    return DTI_M_SQRT(x);
}
DTI_M_GRAD(sqrt) {
    return DTI_M_DIV(DTI_M_MUL(dy, DTI_M_K(0.5f)), DTI_M_SQRT(x));
}
#else
DTI_PRIME(sqrt) {
    return dt_affine(dt_rsqrt(x), 0.5f, 0.0f);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(rsqrt) {
    return DTI_M_DIV(DTI_M_ONE, DTI_M_SQRT(x));
}
DTI_M_GRAD(rsqrt) {
    DTI_M_F y = DTI_M(map_rsqrt)(x, p0, p1);
    return DTI_M_MUL(dy, DTI_M_MUL(DTI_M_MUL(y, y), DTI_M_MUL(y, DTI_M_K(-0.5f))));
}
#else
DTI_PRIME(rsqrt) {
    dt_tensor inverse = dt_reciprocal(x);
    return dt_affine(dt_mul(dt_rsqrt(x), inverse), -0.5f, 0.0f);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(reciprocal) {
    return DTI_M_DIV(DTI_M_ONE, x);
}
DTI_M_GRAD(reciprocal) {
    DTI_M_F y = DTI_M_DIV(DTI_M_ONE, x);
    return DTI_M_MUL(DTI_M_NEG(dy), DTI_M_MUL(y, y));
}
#else
DTI_PRIME(reciprocal) {
    return dt_neg(dt_square(dt_reciprocal(x)));
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(square) {
    return DTI_M_MUL(x, x);
}
DTI_M_GRAD(square) {
    return DTI_M_MUL(dy, DTI_M_ADD(x, x));
}
#else
DTI_PRIME(square) {
    return dt_affine(x, 2.0f, 0.0f);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(sin) {
    return DTI_M(sin)(x);
}
DTI_M_GRAD(sin) {
    return DTI_M_MUL(dy, DTI_M(cos)(x));
}
#else
DTI_PRIME(sin) {
    return dt_cos(x);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(cos) {
    return DTI_M(cos)(x);
}
DTI_M_GRAD(cos) {
    return DTI_M_MUL(DTI_M_NEG(dy), DTI_M(sin)(x));
}
#else
DTI_PRIME(cos) {
    return dt_neg(dt_sin(x));
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(tanh) {
    return DTI_M(tanh)(x);
}
DTI_M_GRAD(tanh) {
    DTI_M_F y = DTI_M(tanh)(x);
    return DTI_M_MUL(dy, DTI_M_FMA(DTI_M_NEG(y), y, DTI_M_ONE));
}
#else
DTI_PRIME(tanh) {
    return dt_affine(dt_square(dt_tanh(x)), -1.0f, 1.0f);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(sigmoid) {
    return DTI_M(sigmoid)(x);
}
DTI_M_GRAD(sigmoid) {
    DTI_M_F y = DTI_M(sigmoid)(x);
    return DTI_M_MUL(dy, DTI_M_MUL(y, DTI_M_SUB(DTI_M_ONE, y)));
}
#else
DTI_PRIME(sigmoid) {
    dt_tensor s = dt_sigmoid(x);
    return dt_mul(s, dt_affine(s, -1.0f, 1.0f));
}
#endif

#if DTI_MAP_PART == 1
/* NaN stays NaN, and passes dy. */
DTI_M_MAP(relu) {
    return DTI_M_SELECT(DTI_M_LT(x, DTI_M_ZERO), DTI_M_ZERO, x);
}
DTI_M_GRAD(relu) {
    return DTI_M_SELECT(DTI_M_LE(x, DTI_M_ZERO), DTI_M_ZERO, dy);
}
#else
DTI_PRIME(relu) {
    return dt_heaviside(x);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(leaky_relu) {
    return DTI_M_POSITIVE(x, x, DTI_M_MUL(x, p0));
}
DTI_M_GRAD(leaky_relu) {
    return DTI_M_POSITIVE(x, dy, DTI_M_MUL(dy, p0));
}
#else
DTI_PRIME(leaky_relu) {
    return dt_affine(dt_heaviside(x), 1.0f - p[0], p[0]);
}
#endif

#if DTI_MAP_PART == 1
/* x/2 (1 + erf(x / sqrt 2)) */
DTI_M_MAP(gelu) {
    DTI_M_F h = DTI_M_MUL(x, DTI_M_K(0.5f));
    return DTI_M_FMA(h, DTI_M(erf)(DTI_M_MUL(x, DTI_M_K(0.707106781f))), h);
}
DTI_M_GRAD(gelu) /* the distribution + x times its density */
{
    DTI_M_F e = DTI_M(erf)(DTI_M_MUL(x, DTI_M_K(0.707106781f)));
    DTI_M_F density = DTI_M(exp)(DTI_M_MUL(DTI_M_MUL(x, x), DTI_M_K(-0.5f)));
    DTI_M_F cdf = DTI_M_FMA(e, DTI_M_K(0.5f), DTI_M_K(0.5f));
    return DTI_M_MUL(dy, DTI_M_FMA(DTI_M_MUL(x, DTI_M_K(0.398942280f)), density, cdf));
}
#else
DTI_PRIME(gelu) {
    dt_tensor cdf = dt_affine(dt_erf(dt_affine(x, 0.70710678118654752f, 0.0f)), 0.5f, 0.5f);
    dt_tensor pdf =
        dt_affine(dt_exp(dt_affine(dt_square(x), -0.5f, 0.0f)), 0.39894228040143268f, 0.0f);
    return dt_add(cdf, dt_mul(x, pdf));
}
#endif

#if DTI_MAP_PART == 1
/* x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3) */
DTI_M_FN DTI_M_F DTI_M(gelu_inner)(DTI_M_F x) {
    DTI_M_F s = DTI_M_FMA(DTI_M_MUL(x, x), DTI_M_K(0.0356774081f), DTI_M_K(0.797884561f));
    return DTI_M(tanh)(DTI_M_MUL(x, s));
}
DTI_M_MAP(gelu_tanh) {
    DTI_M_F h = DTI_M_MUL(x, DTI_M_K(0.5f));
    return DTI_M_FMA(h, DTI_M(gelu_inner)(x), h);
}
DTI_M_GRAD(gelu_tanh) {
    DTI_M_F t = DTI_M(gelu_inner)(x);
    /* the inner slope, finite wherever it is multiplied by 0 */
    DTI_M_F xx = DTI_M_MUL(x, x), most = DTI_M_K(1.0e18f);
    xx = DTI_M_SELECT(DTI_M_LT(most, xx), most, xx);
    DTI_M_F slope = DTI_M_FMA(xx, DTI_M_K(0.107032224f), DTI_M_K(0.797884561f));
    DTI_M_F bend = DTI_M_MUL(DTI_M_FMA(DTI_M_NEG(t), t, DTI_M_ONE), slope);
    DTI_M_F half_bend = DTI_M_MUL(x, DTI_M_K(0.5f));
    DTI_M_F cdf = DTI_M_FMA(t, DTI_M_K(0.5f), DTI_M_K(0.5f));
    return DTI_M_MUL(dy, DTI_M_FMA(half_bend, bend, cdf));
}
#else
DTI_PRIME(gelu_tanh) {
    const float k = 0.79788456080286536f, c = 0.044715f;
    dt_tensor xx = dt_square(x);
    dt_tensor inner = dt_affine(xx, c, 1.0f);
    dt_tensor t = dt_tanh(dt_mul(dt_affine(x, k, 0.0f), inner));
    dt_tensor slope = dt_affine(xx, 3.0f * c * k, k);
    dt_tensor rest = dt_affine(dt_square(t), -1.0f, 1.0f);
    dt_tensor bend = dt_mul(dt_mul(dt_affine(x, 0.5f, 0.0f), rest), slope);
    return dt_add(dt_affine(t, 0.5f, 0.5f), bend);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(silu) {
    return DTI_M_MUL(x, DTI_M(sigmoid)(x));
}
DTI_M_GRAD(silu) {
    DTI_M_F s = DTI_M(sigmoid)(x);
    DTI_M_F t = DTI_M_FMA(x, DTI_M_SUB(DTI_M_ONE, s), DTI_M_ONE);
    return DTI_M_MUL(dy, DTI_M_MUL(s, t));
}
#else
DTI_PRIME(silu) {
    dt_tensor s = dt_sigmoid(x);
    return dt_mul(s, dt_affine(dt_mul(x, dt_affine(s, -1.0f, 1.0f)), 1.0f, 1.0f));
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(softplus) {
    return DTI_M(softplus)(x);
}
DTI_M_GRAD(softplus) {
    DTI_M_F slope = DTI_M_MUL(dy, DTI_M(sigmoid)(x));
    return DTI_M_SELECT(DTI_M_LT(DTI_M_K(20.0f), x), dy, slope);
}
#else
DTI_PRIME(softplus) {
    return dt_sigmoid(x);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(log_sigmoid) {
    DTI_M_F low = DTI_M_SELECT(DTI_M_LT(DTI_M_ZERO, x), DTI_M_ZERO, x);
    return DTI_M_SUB(low, DTI_M(log1p)(DTI_M(exp)(DTI_M_NEG(DTI_M_ABS(x)))));
}
DTI_M_GRAD(log_sigmoid) {
    return DTI_M_MUL(dy, DTI_M(sigmoid)(DTI_M_NEG(x)));
}
#else
DTI_PRIME(log_sigmoid) {
    return dt_sigmoid(dt_neg(x));
}
#endif

#if DTI_MAP_PART == 1
/* What binary cross-entropy takes of probabilities, which may be 0. */
DTI_M_MAP(log_floor) {
    DTI_M_F y = DTI_M(log)(x);
    return DTI_M_SELECT(DTI_M_LT(y, p0), p0, y);
}
DTI_M_GRAD(log_floor) {
    DTI_M_F low = DTI_M_K(1e-12f);
    return DTI_M_QUOTIENT(dy, DTI_M_SELECT(DTI_M_LT(x, low), low, x));
}
#else
DTI_PRIME(log_floor) {
    dt_tensor low = dt_cast(dt_fill(x.graph, dt_dims_of(0, NULL), 1e-12f), dt_tensor_dtype(x));
    return dt_reciprocal(dt_maximum(x, low));
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(elu) {
    DTI_M_F below = DTI_M_MUL(p0, DTI_M(expm1)(x));
    return DTI_M_POSITIVE(x, x, below);
}
DTI_M_GRAD(elu) {
    DTI_M_F below = DTI_M_MUL(dy, DTI_M_MUL(p0, DTI_M(exp)(x)));
    return DTI_M_POSITIVE(x, dy, below);
}
#else
DTI_PRIME(elu) {
    dt_tensor above = dt_heaviside(x), zero = dt_fill(x.graph, dt_dims_of(0, NULL), 0.0f);
    zero = dt_cast(zero, dt_tensor_dtype(x));
    dt_tensor below = dt_affine(dt_exp(dt_minimum(x, zero)), p[0], 0.0f);
    return dt_add(above, dt_mul(dt_affine(above, -1.0f, 1.0f), below));
}
#endif

#if DTI_MAP_PART == 1
/* PyTorch's constants, which keep mean 0 and variance 1: below 0 alpha * lambda (e^x - 1) */
DTI_M_MAP(selu) {
    DTI_M_F below = DTI_M_MUL(DTI_M_K(1.75809934f), DTI_M(expm1)(x));
    return DTI_M_POSITIVE(x, DTI_M_MUL(x, DTI_M_K(1.05070099f)), below);
}
DTI_M_GRAD(selu) {
    DTI_M_F below = DTI_M_MUL(dy, DTI_M_MUL(DTI_M_K(1.75809934f), DTI_M(exp)(x)));
    return DTI_M_POSITIVE(x, DTI_M_MUL(dy, DTI_M_K(1.05070099f)), below);
}
#else
DTI_PRIME(selu) {
    dt_tensor above = dt_heaviside(x), below = dt_exp(dt_neg(dt_relu(dt_neg(x))));
    below = dt_mask_inv(dt_affine(below, 1.75809934084738f, 0.0f), above);
    return dt_add(dt_affine(above, 1.05070098735548f, 0.0f), below);
}
#endif

#if DTI_MAP_PART == 1
/* x tanh(log(1 + e^x)), x above 20 */
DTI_M_MAP(mish) {
    return DTI_M_MUL(x, DTI_M(tanh)(DTI_M(softplus)(x)));
}
DTI_M_GRAD(mish) {
    DTI_M_F t = DTI_M(tanh)(DTI_M(softplus)(x));
    DTI_M_F bend = DTI_M_MUL(DTI_M_FMA(DTI_M_NEG(t), t, DTI_M_ONE), DTI_M(sigmoid)(x));
    return DTI_M_MUL(dy, DTI_M_FMA(x, bend, t));
}
#else
DTI_PRIME(mish) {
    dt_tensor t = dt_tanh(dt_softplus(x));
    dt_tensor s = dt_sigmoid(x);
    dt_tensor bend = dt_mul(dt_affine(dt_square(t), -1.0f, 1.0f), s);
    return dt_add(t, dt_mul(x, bend));
}
#endif

#if DTI_MAP_PART == 1
/* x / (1 + |x|) */
DTI_M_MAP(softsign) {
    return DTI_M_QUOTIENT(x, DTI_M_ADD(DTI_M_ABS(x), DTI_M_ONE));
}
DTI_M_GRAD(softsign) {
    DTI_M_F d = DTI_M_ADD(DTI_M_ABS(x), DTI_M_ONE);
    return DTI_M_QUOTIENT(dy, DTI_M_MUL(d, d));
}
#else
DTI_PRIME(softsign) {
    return dt_square(dt_reciprocal(dt_affine(dt_abs(x), 1.0f, 1.0f)));
}
#endif

#if DTI_MAP_PART == 1
/* NaN stays NaN; p0 and p1 themselves do not pass dy. */
DTI_M_MAP(clamp) {
    DTI_M_F above = DTI_M_SELECT(DTI_M_LT(x, p0), p0, x);
    return DTI_M_SELECT(DTI_M_LT(p1, above), p1, above);
}
DTI_M_GRAD(clamp) {
    DTI_M_F under = DTI_M_SELECT(DTI_M_LE(p1, x), DTI_M_ZERO, dy);
    return DTI_M_SELECT(DTI_M_LE(x, p0), DTI_M_ZERO, under);
}
#else
DTI_PRIME(clamp) {
    dt_tensor low = dt_heaviside(dt_affine(x, 1.0f, -p[0]));
    dt_tensor high = dt_heaviside(dt_affine(x, -1.0f, p[1]));
    return dt_mask(low, high);
}
#endif

#if DTI_MAP_PART == 1
/* min(max(x + 3, 0), 6) / 6 */
DTI_M_MAP(hardsigmoid) {
    DTI_M_F six = DTI_M_K(6.0f), t = DTI_M(map_clamp)(DTI_M_ADD(x, DTI_M_K(3.0f)), DTI_M_ZERO, six);
    return DTI_M_DIV(t, six);
}
DTI_M_GRAD(hardsigmoid) {
    DTI_M_F slope = DTI_M_DIV(dy, DTI_M_K(6.0f));
    return DTI_M(grad_clamp)(x, slope, DTI_M_K(-3.0f), DTI_M_K(3.0f));
}
#else
DTI_PRIME(hardsigmoid) {
    const float ends[2] = {-3.0f, 3.0f};
    return dt_affine(dti_prime_clamp(x, ends), 1.0f / 6.0f, 0.0f);
}
#endif

#if DTI_MAP_PART == 1
/* x * hardsigmoid(x) */
DTI_M_MAP(hardswish) {
    return DTI_M_MUL(x, DTI_M(map_hardsigmoid)(x, p0, p1));
}
DTI_M_GRAD(hardswish) {
    DTI_M_F t = DTI_M_FMA(x, DTI_M_K(0.333333333f), DTI_M_K(0.5f));
    DTI_M_F slope = DTI_M_SELECT(DTI_M_LE(DTI_M_K(3.0f), x), dy, DTI_M_MUL(dy, t));
    return DTI_M_SELECT(DTI_M_LE(x, DTI_M_K(-3.0f)), DTI_M_ZERO, slope);
}
#else
DTI_PRIME(hardswish) {
    dt_tensor high = dt_affine(dt_heaviside(dt_affine(x, -1.0f, 3.0f)), -1.0f, 1.0f);
    dt_tensor inside = dt_mask_inv(dt_affine(x, 1.0f / 3.0f, 0.5f), high);
    dt_tensor low = dt_heaviside(dt_affine(x, 1.0f, 3.0f));
    return dt_mask(dt_add(inside, high), low);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(erf) {
    return DTI_M(erf)(x);
}
DTI_M_GRAD(erf) {
    DTI_M_F e = DTI_M(exp)(DTI_M_NEG(DTI_M_MUL(x, x)));
    return DTI_M_MUL(dy, DTI_M_MUL(e, DTI_M_K(1.12837917f)));
}
#else
DTI_PRIME(erf) {
    return dt_affine(dt_exp(dt_neg(dt_square(x))), 1.1283791670955126f, 0.0f);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(erfinv) {
    return DTI_M(erfinv)(x);
}
DTI_M_GRAD(erfinv) {
    DTI_M_F y = DTI_M(erfinv)(x);
    return DTI_M_MUL(dy, DTI_M_MUL(DTI_M(exp)(DTI_M_MUL(y, y)), DTI_M_K(0.886226925f)));
}
#else
DTI_PRIME(erfinv) {
    return dt_affine(dt_exp(dt_square(dt_erfinv(x))), 0.88622692545275801f, 0.0f);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(atan) {
    return DTI_M(atan)(x);
}
DTI_M_GRAD(atan) {
    return DTI_M_QUOTIENT(dy, DTI_M_FMA(x, x, DTI_M_K(1.0f)));
}
#else
DTI_PRIME(atan) {
    return dt_reciprocal(dt_affine(dt_square(x), 1.0f, 1.0f));
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(floor) {
    return DTI_M(floor)(x);
}
DTI_M_GRAD(floor) {
    return DTI_M_ZERO;
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(ceil) {
    return DTI_M_NEG(DTI_M(floor)(DTI_M_NEG(x)));
}
DTI_M_GRAD(ceil) {
    return DTI_M_ZERO;
}
#endif

#if DTI_MAP_PART == 1
/* Halves to even. From floor and what is left of x, which is exact. */
DTI_M_MAP(round) {
    DTI_M_F low = DTI_M(floor)(x), rest = DTI_M_SUB(x, low), mid = DTI_M_K(0.5f);
    DTI_M_F two = DTI_M(floor)(DTI_M_MUL(low, mid));
    DTI_M_F odd = DTI_M_SUB(low, DTI_M_ADD(two, two));
    DTI_M_F at_half = DTI_M_SELECT(DTI_M_EQ(rest, mid), odd, DTI_M_ZERO);
    DTI_M_F up = DTI_M_SELECT(DTI_M_LT(mid, rest), DTI_M_ONE, at_half);
    DTI_M_F y = DTI_M_WITH_SIGN(DTI_M_ADD(low, up), DTI_M_SIGN(x)); /* -0 below 0 */
    return DTI_M_SELECT(DTI_M_EQ(rest, DTI_M_ZERO), x, y);
}
DTI_M_GRAD(round) {
    return DTI_M_ZERO;
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(heaviside) {
    return DTI_M_POSITIVE(x, DTI_M_ONE, DTI_M_ZERO);
}
DTI_M_GRAD(heaviside) {
    return DTI_M_ZERO;
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(affine) {
    return DTI_M_FMA(p0, x, p1);
}
DTI_M_GRAD(affine) {
    return DTI_M_MUL(dy, p0);
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(copy) {
    return x;
}
DTI_M_GRAD(copy) {
    return dy;
}
#endif

#if DTI_MAP_PART == 1
DTI_M_MAP(fill) {
    return p0;
}
DTI_M_GRAD(fill) {
    return DTI_M_ZERO;
}
#endif

#if DTI_MAP_PART == 1
/* ---- of two tensors; a comparison gives 1 or 0 */
#define DTI_M_PAIR(name) DTI_M_FN DTI_M_F DTI_M(pair_##name)(DTI_M_F x, DTI_M_F y)
#define DTI_M_TRUTH(m) DTI_M_SELECT(m, DTI_M_ONE, DTI_M_ZERO)
DTI_M_PAIR(add) {
    return DTI_M_ADD(x, y);
}
DTI_M_PAIR(sub) {
    return DTI_M_SUB(x, y);
}
DTI_M_PAIR(mul) {
    return DTI_M_MUL(x, y);
}
DTI_M_PAIR(div) {
    return DTI_M_QUOTIENT(x, y);
}
DTI_M_PAIR(maximum) /* NaN wins, as in PyTorch */
{
    DTI_M_F larger = DTI_M_SELECT(DTI_M_LT(x, y), y, x);
    return DTI_M_SELECT(DTI_M_IS_NAN(y), y, larger);
}
DTI_M_PAIR(minimum) {
    DTI_M_F smaller = DTI_M_SELECT(DTI_M_LT(y, x), y, x);
    return DTI_M_SELECT(DTI_M_IS_NAN(y), y, smaller);
}
DTI_M_PAIR(pow) {
    return DTI_M(pow)(x, y);
}
DTI_M_PAIR(eq) {
    return DTI_M_TRUTH(DTI_M_EQ(x, y));
}
DTI_M_PAIR(lt) {
    return DTI_M_TRUTH(DTI_M_LT(x, y));
}
DTI_M_PAIR(le) {
    return DTI_M_TRUTH(DTI_M_LE(x, y));
}
DTI_M_PAIR(gt) {
    return DTI_M_TRUTH(DTI_M_LT(y, x));
}
DTI_M_PAIR(ge) {
    return DTI_M_TRUTH(DTI_M_LE(y, x));
}
DTI_M_PAIR(mask) /* a choice, not a product: what is not kept may be NaN */
{
    return DTI_M_SELECT(DTI_M_EQ(y, DTI_M_ZERO), DTI_M_ZERO, x);
}
DTI_M_PAIR(mask_inv) {
    return DTI_M_SELECT(DTI_M_EQ(y, DTI_M_ZERO), x, DTI_M_ZERO);
}
#endif
#ifndef VULKAN
#pragma GCC diagnostic pop
#endif
#endif
