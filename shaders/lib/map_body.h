/* The elementwise functions of unary_list.h and their gradients: one text for GLSL, scalar C and
 * the CPU's vectors, in the words of math_body.h. f: y of x; f_grad: dx of x and dy, = dy * f'(x).
 * p0 and p1 are the function's parameters. Values and gradients at kinks are PyTorch's: abs, relu
 * and the step have gradient 0 at 0. */

#ifndef VULKAN
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* all take p0 and p1 */
#endif
#define DTI_M_MAP(name) DTI_M_FN DTI_M_F DTI_M(map_##name)(DTI_M_F x, DTI_M_F p0, DTI_M_F p1)
#define DTI_M_GRAD(name)                                                                           \
    DTI_M_FN DTI_M_F DTI_M(grad_##name)(DTI_M_F x, DTI_M_F dy, DTI_M_F p0, DTI_M_F p1)
#define DTI_M_ZERO DTI_M_K(0.0f)
#define DTI_M_ONE DTI_M_K(1.0f)
#define DTI_M_NEG(x) DTI_M_ASFLOAT(DTI_M_IXOR(DTI_M_ASINT(x), DTI_M_KI(~0x7fffffff)))
#define DTI_M_POSITIVE(x, y, n) DTI_M_SELECT(DTI_M_LT(DTI_M_ZERO, x), y, n)

DTI_M_MAP(neg) { return DTI_M_NEG(x); }
DTI_M_GRAD(neg) { return DTI_M_NEG(dy); }

DTI_M_MAP(abs) { return DTI_M_ABS(x); }
DTI_M_MAP(sign)
{
    DTI_M_F minus = DTI_M_SELECT(DTI_M_LT(x, DTI_M_ZERO), DTI_M_K(-1.0f), DTI_M_ZERO);
    return DTI_M_POSITIVE(x, DTI_M_ONE, minus);
}
DTI_M_GRAD(abs) { return DTI_M_MUL(dy, DTI_M(map_sign)(x, p0, p1)); }
DTI_M_GRAD(sign) { return DTI_M_ZERO; }

DTI_M_MAP(exp) { return DTI_M(exp)(x); }
DTI_M_GRAD(exp) { return DTI_M_MUL(dy, DTI_M(exp)(x)); }

DTI_M_MAP(log) { return DTI_M(log)(x); }
DTI_M_GRAD(log) { return DTI_M_DIV(dy, x); }

DTI_M_MAP(log1p) { return DTI_M(log1p)(x); }
DTI_M_GRAD(log1p) { return DTI_M_DIV(dy, DTI_M_ADD(x, DTI_M_ONE)); }

DTI_M_MAP(expm1) { return DTI_M(expm1)(x); }
DTI_M_GRAD(expm1) { return DTI_M_MUL(dy, DTI_M(exp)(x)); }

DTI_M_MAP(sqrt) { return DTI_M_SQRT(x); }
DTI_M_GRAD(sqrt) { return DTI_M_DIV(DTI_M_MUL(dy, DTI_M_K(0.5f)), DTI_M_SQRT(x)); }

DTI_M_MAP(rsqrt) { return DTI_M_DIV(DTI_M_ONE, DTI_M_SQRT(x)); }
DTI_M_GRAD(rsqrt)
{
    DTI_M_F y = DTI_M(map_rsqrt)(x, p0, p1);
    return DTI_M_MUL(DTI_M_MUL(dy, DTI_M_K(-0.5f)), DTI_M_MUL(DTI_M_MUL(y, y), y));
}

DTI_M_MAP(reciprocal) { return DTI_M_DIV(DTI_M_ONE, x); }
DTI_M_GRAD(reciprocal)
{
    DTI_M_F y = DTI_M_DIV(DTI_M_ONE, x);
    return DTI_M_MUL(DTI_M_NEG(dy), DTI_M_MUL(y, y));
}

DTI_M_MAP(square) { return DTI_M_MUL(x, x); }
DTI_M_GRAD(square) { return DTI_M_MUL(dy, DTI_M_ADD(x, x)); }

DTI_M_MAP(sin) { return DTI_M(sin)(x); }
DTI_M_GRAD(sin) { return DTI_M_MUL(dy, DTI_M(cos)(x)); }
DTI_M_MAP(cos) { return DTI_M(cos)(x); }
DTI_M_GRAD(cos) { return DTI_M_MUL(DTI_M_NEG(dy), DTI_M(sin)(x)); }

DTI_M_MAP(tanh) { return DTI_M(tanh)(x); }
DTI_M_GRAD(tanh)
{
    DTI_M_F y = DTI_M(tanh)(x);
    return DTI_M_MUL(dy, DTI_M_FMA(DTI_M_NEG(y), y, DTI_M_ONE));
}

DTI_M_MAP(sigmoid) { return DTI_M(sigmoid)(x); }
DTI_M_GRAD(sigmoid)
{
    DTI_M_F y = DTI_M(sigmoid)(x);
    return DTI_M_MUL(dy, DTI_M_MUL(y, DTI_M_SUB(DTI_M_ONE, y)));
}

/* NaN stays NaN, and passes dy. */
DTI_M_MAP(relu) { return DTI_M_SELECT(DTI_M_LT(x, DTI_M_ZERO), DTI_M_ZERO, x); }
DTI_M_GRAD(relu) { return DTI_M_SELECT(DTI_M_LE(x, DTI_M_ZERO), DTI_M_ZERO, dy); }

DTI_M_MAP(leaky_relu) { return DTI_M_POSITIVE(x, x, DTI_M_MUL(x, p0)); }
DTI_M_GRAD(leaky_relu) { return DTI_M_POSITIVE(x, dy, DTI_M_MUL(dy, p0)); }

/* x/2 (1 + erf(x / sqrt 2)) */
DTI_M_MAP(gelu)
{
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

/* x/2 (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3) */
DTI_M_FN DTI_M_F DTI_M(gelu_inner)(DTI_M_F x)
{
    DTI_M_F s = DTI_M_FMA(DTI_M_MUL(x, x), DTI_M_K(0.0356774081f), DTI_M_K(0.797884561f));
    return DTI_M(tanh)(DTI_M_MUL(x, s));
}
DTI_M_MAP(gelu_tanh)
{
    DTI_M_F h = DTI_M_MUL(x, DTI_M_K(0.5f));
    return DTI_M_FMA(h, DTI_M(gelu_inner)(x), h);
}
DTI_M_GRAD(gelu_tanh)
{
    DTI_M_F t = DTI_M(gelu_inner)(x);
    DTI_M_F slope = DTI_M_FMA(DTI_M_MUL(x, x), DTI_M_K(0.107032224f), DTI_M_K(0.797884561f));
    DTI_M_F bend = DTI_M_MUL(DTI_M_FMA(DTI_M_NEG(t), t, DTI_M_ONE), slope);
    DTI_M_F half_bend = DTI_M_MUL(x, DTI_M_K(0.5f));
    DTI_M_F cdf = DTI_M_FMA(t, DTI_M_K(0.5f), DTI_M_K(0.5f));
    return DTI_M_MUL(dy, DTI_M_FMA(half_bend, bend, cdf));
}

DTI_M_MAP(silu) { return DTI_M_MUL(x, DTI_M(sigmoid)(x)); }
DTI_M_GRAD(silu)
{
    DTI_M_F s = DTI_M(sigmoid)(x);
    DTI_M_F t = DTI_M_FMA(x, DTI_M_SUB(DTI_M_ONE, s), DTI_M_ONE);
    return DTI_M_MUL(dy, DTI_M_MUL(s, t));
}

DTI_M_MAP(softplus) { return DTI_M(softplus)(x); }
DTI_M_GRAD(softplus)
{
    DTI_M_F slope = DTI_M_MUL(dy, DTI_M(sigmoid)(x));
    return DTI_M_SELECT(DTI_M_LT(DTI_M_K(20.0f), x), dy, slope);
}

DTI_M_MAP(elu)
{
    DTI_M_F below = DTI_M_MUL(p0, DTI_M(expm1)(x));
    return DTI_M_POSITIVE(x, x, below);
}
DTI_M_GRAD(elu)
{
    DTI_M_F below = DTI_M_MUL(dy, DTI_M_MUL(p0, DTI_M(exp)(x)));
    return DTI_M_POSITIVE(x, dy, below);
}

DTI_M_MAP(erf) { return DTI_M(erf)(x); }
DTI_M_GRAD(erf)
{
    DTI_M_F e = DTI_M(exp)(DTI_M_NEG(DTI_M_MUL(x, x)));
    return DTI_M_MUL(dy, DTI_M_MUL(e, DTI_M_K(1.12837917f)));
}

DTI_M_MAP(floor) { return DTI_M(floor)(x); }
DTI_M_GRAD(floor) { return DTI_M_ZERO; }
DTI_M_MAP(step) { return DTI_M_POSITIVE(x, DTI_M_ONE, DTI_M_ZERO); }
DTI_M_GRAD(step) { return DTI_M_ZERO; }
DTI_M_MAP(affine) { return DTI_M_FMA(p0, x, p1); }
DTI_M_GRAD(affine) { return DTI_M_MUL(dy, p0); }
DTI_M_MAP(copy) { return x; }
DTI_M_GRAD(copy) { return dy; }
DTI_M_MAP(fill) { return p0; }
DTI_M_GRAD(fill) { return DTI_M_ZERO; }

/* ---- of two tensors; a comparison gives 1 or 0 */
#define DTI_M_PAIR(name) DTI_M_FN DTI_M_F DTI_M(pair_##name)(DTI_M_F x, DTI_M_F y)
#define DTI_M_TRUTH(m) DTI_M_SELECT(m, DTI_M_ONE, DTI_M_ZERO)
DTI_M_PAIR(add) { return DTI_M_ADD(x, y); }
DTI_M_PAIR(sub) { return DTI_M_SUB(x, y); }
DTI_M_PAIR(mul) { return DTI_M_MUL(x, y); }
DTI_M_PAIR(div) { return DTI_M_DIV(x, y); }
DTI_M_PAIR(max) /* NaN wins, as in PyTorch */
{
    DTI_M_F larger = DTI_M_SELECT(DTI_M_LT(x, y), y, x);
    return DTI_M_SELECT(DTI_M_IS_NAN(y), y, larger);
}
DTI_M_PAIR(min)
{
    DTI_M_F smaller = DTI_M_SELECT(DTI_M_LT(y, x), y, x);
    return DTI_M_SELECT(DTI_M_IS_NAN(y), y, smaller);
}
DTI_M_PAIR(pow) { return DTI_M(pow)(x, y); }
DTI_M_PAIR(eq) { return DTI_M_TRUTH(DTI_M_EQ(x, y)); }
DTI_M_PAIR(lt) { return DTI_M_TRUTH(DTI_M_LT(x, y)); }
DTI_M_PAIR(le) { return DTI_M_TRUTH(DTI_M_LE(x, y)); }
DTI_M_PAIR(gt) { return DTI_M_TRUTH(DTI_M_LT(y, x)); }
DTI_M_PAIR(ge) { return DTI_M_TRUTH(DTI_M_LE(y, x)); }
#ifndef VULKAN
#pragma GCC diagnostic pop
#endif
