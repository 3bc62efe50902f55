/* Elementary functions of float. There is one text for GLSL, scalar C and the CPU's vectors, so
 * that their formulas cannot drift apart. Every word in capitals is the includer's. DTI_M_F is
 * float or a vector of floats, DTI_M_I int, DTI_M_B bool or a mask, DTI_M_K(c) a constant; a choice
 * is DTI_M_SELECT and both sides are computed. Infinities and NaN are recognised by their bits,
 * since GLSL may assume that they do not occur. No integer is wider than 32 bits and no float than
 * 32.
 *
 * The largest errors over all floats are in tests/reference/unary.h; that of pow is 1.78 units in
 * the last place, of 3 million pairs.
 * Polynomials: minimax by Remez exchange (exp, log, tanh); erf, sin, cos and the scheme of pow's
 * extended logarithm: N. Juffa, public domain. */

#define DTI_M_INF DTI_M_ASFLOAT(DTI_M_KI(0x7f800000))
#define DTI_M_NAN DTI_M_ASFLOAT(DTI_M_KI(0x7fc00000))
#define DTI_M_ABS(x) DTI_M_ASFLOAT(DTI_M_IAND(DTI_M_ASINT(x), DTI_M_KI(0x7fffffff)))
#define DTI_M_SIGN(x) DTI_M_IAND(DTI_M_ASINT(x), DTI_M_KI(~0x7fffffff))
#define DTI_M_WITH_SIGN(x, sign) DTI_M_ASFLOAT(DTI_M_IOR(DTI_M_ASINT(x), sign))
/* What vectors have instructions for (src/kernel/vmath_body.h), with the same bits. */
#ifndef DTI_M_IS_NAN
#define DTI_M_IS_NAN(x)                                                                            \
    DTI_M_ILT(DTI_M_KI(0x7f800000), DTI_M_IAND(DTI_M_ASINT(x), DTI_M_KI(0x7fffffff)))
#define DTI_M_CLAMP(x, low, high)                                                                  \
    DTI_M_SELECT(DTI_M_LT(x, DTI_M_K(low)), DTI_M_K(low),                                          \
                 DTI_M_SELECT(DTI_M_LT(DTI_M_K(high), x), DTI_M_K(high), x))
#define DTI_M_AT_MOST(x, high) DTI_M_SELECT(DTI_M_LT(high, x), high, x)
#define DTI_M_EXP_NEAR(x) DTI_M(exp)(x) /* |x| < 80 */
#endif
/* 2^n as a float, -126 <= n <= 127. */
#define DTI_M_POW2(n) DTI_M_ASFLOAT(DTI_M_SHL(DTI_M_IADD(n, DTI_M_KI(127)), 23))
/* The integer nearest to x * c, |x * c| < 2^22: 1.5 * 2^23 pushes the fraction out. */
#define DTI_M_NEAREST(x, c)                                                                        \
    DTI_M_ISUB(DTI_M_ASINT(DTI_M_FMA(x, DTI_M_K(c), DTI_M_K(12582912.0f))), DTI_M_KI(0x4b400000))

/* x - n * ln 2, |.| <= ln(2)/2 */
DTI_M_FN DTI_M_F DTI_M(exp_reduced)(DTI_M_F x, DTI_M_I n)
{
    DTI_M_F f = DTI_M_FROM_INT(n);
    DTI_M_F r = DTI_M_FMA(f, DTI_M_K(-0.693145752f), x);
    return DTI_M_FMA(f, DTI_M_K(-1.42860677e-6f), r);
}

#ifdef DTI_M_SCALE
DTI_M_FN DTI_M_F DTI_M(exp_near)(DTI_M_F t)
{
#else
DTI_M_FN DTI_M_F DTI_M(exp)(DTI_M_F x)
{
    DTI_M_F t = DTI_M_CLAMP(x, -104.0f, 89.0f); /* to 0 and infinity */
#endif
    DTI_M_I n = DTI_M_NEAREST(t, 1.44269504f);
    DTI_M_F r = DTI_M(exp_reduced)(t, n);
    DTI_M_F p = DTI_M_K(0.00139464810f);
    p = DTI_M_FMA(p, r, DTI_M_K(0.00836660154f));
    p = DTI_M_FMA(p, r, DTI_M_K(0.0416662805f));
    p = DTI_M_FMA(p, r, DTI_M_K(0.166665435f));
    p = DTI_M_FMA(p, r, DTI_M_K(0.5f));
    p = DTI_M_FMA(p, r, DTI_M_K(1.0f));
    p = DTI_M_FMA(p, r, DTI_M_K(1.0f));
#ifdef DTI_M_SCALE
    return DTI_M_SCALE(p, n);
}
DTI_M_FN DTI_M_F DTI_M(exp)(DTI_M_F x)
{
    DTI_M_F y = DTI_M(exp_near)(DTI_M_CLAMP(x, -104.0f, 89.0f)); /* to 0 and infinity */
#else
    /* 2^n in two factors: n is outside what a float's exponent holds at both ends */
    DTI_M_I h = DTI_M_SAR(n, 1);
    DTI_M_PRECISE DTI_M_F y = DTI_M_MUL(p, DTI_M_POW2(h));
    y = DTI_M_MUL(y, DTI_M_POW2(DTI_M_ISUB(n, h)));
#endif
    return DTI_M_SELECT(DTI_M_IS_NAN(x), x, y);
}

DTI_M_FN DTI_M_F DTI_M(expm1)(DTI_M_F x)
{
    DTI_M_F t = DTI_M_CLAMP(x, -25.0f, 89.0f);
    DTI_M_I n = DTI_M_NEAREST(t, 1.44269504f);
    DTI_M_F r = DTI_M(exp_reduced)(t, n);
    DTI_M_F p = DTI_M_K(0.000199142072f);
    p = DTI_M_FMA(p, r, DTI_M_K(0.00139410363f));
    p = DTI_M_FMA(p, r, DTI_M_K(0.00833327323f));
    p = DTI_M_FMA(p, r, DTI_M_K(0.0416663550f));
    p = DTI_M_FMA(p, r, DTI_M_K(0.166666672f));
    p = DTI_M_FMA(p, r, DTI_M_K(0.5f));
    p = DTI_M_FMA(DTI_M_MUL(r, r), p, r); /* e^r - 1 */
    /* 2^n (p + 1) - 1 by halves: n may be 128 */
    DTI_M_F s = DTI_M_POW2(DTI_M_ISUB(n, DTI_M_KI(1)));
    DTI_M_F y = DTI_M_FMA(p, s, DTI_M_SUB(s, DTI_M_K(0.5f)));
    y = DTI_M_ADD(y, y);
    DTI_M_B tiny = DTI_M_LT(DTI_M_ABS(x), DTI_M_K(1.0e-8f)); /* x itself; keeps -0 */
    return DTI_M_SELECT(DTI_M_EITHER(tiny, DTI_M_IS_NAN(x)), x, y);
}

/* log(1 + m), -0.25 <= m <= 0.5 */
DTI_M_FN DTI_M_F DTI_M(log1p_reduced)(DTI_M_F m)
{
    DTI_M_F p = DTI_M_K(-0.0449097045f);
    p = DTI_M_FMA(p, m, DTI_M_K(0.104483403f));
    p = DTI_M_FMA(p, m, DTI_M_K(-0.131622329f));
    p = DTI_M_FMA(p, m, DTI_M_K(0.144820601f));
    p = DTI_M_FMA(p, m, DTI_M_K(-0.166477665f));
    p = DTI_M_FMA(p, m, DTI_M_K(0.199906066f));
    p = DTI_M_FMA(p, m, DTI_M_K(-0.250000536f));
    p = DTI_M_FMA(p, m, DTI_M_K(0.333334535f));
    p = DTI_M_FMA(p, m, DTI_M_K(-0.5f));
    return DTI_M_FMA(DTI_M_MUL(m, m), p, m);
}

/* The results of log for u = 0, below 0, infinite and NaN. */
DTI_M_FN DTI_M_F DTI_M(log_edges)(DTI_M_F u, DTI_M_F y)
{
    y = DTI_M_SELECT(DTI_M_EQ(u, DTI_M_K(0.0f)), DTI_M_ASFLOAT(DTI_M_KI(~0x7fffff)), y);
    y = DTI_M_SELECT(DTI_M_LT(u, DTI_M_K(0.0f)), DTI_M_NAN, y);
    DTI_M_I top = DTI_M_IAND(DTI_M_ASINT(u), DTI_M_KI(0x7f800000));
    DTI_M_B finite = DTI_M_ILT(top, DTI_M_KI(0x7f800000));
    DTI_M_B negative = DTI_M_ILT(DTI_M_ASINT(u), DTI_M_KI(0));
    DTI_M_F odd = DTI_M_SELECT(negative, DTI_M_NAN, u); /* -inf; NaN and +inf give themselves */
    return DTI_M_SELECT(finite, y, odd);
}

DTI_M_FN DTI_M_F DTI_M(log)(DTI_M_F x)
{
    DTI_M_B low = DTI_M_LT(x, DTI_M_K(1.17549435e-38f)); /* denormal */
    DTI_M_F t = DTI_M_SELECT(low, DTI_M_MUL(x, DTI_M_K(8388608.0f)), x);
    DTI_M_I n = DTI_M_ISUB(DTI_M_ASINT(t), DTI_M_KI(0x3f400000)); /* bits of 0.75 */
    DTI_M_I e = DTI_M_IAND(n, DTI_M_KI(~0x7fffff));
    DTI_M_F m = DTI_M_SUB(DTI_M_ASFLOAT(DTI_M_ISUB(DTI_M_ASINT(t), e)), DTI_M_K(1.0f));
    DTI_M_F f = DTI_M_SELECT(low, DTI_M_K(-23.0f), DTI_M_K(0.0f));
    f = DTI_M_FMA(DTI_M_FROM_INT(e), DTI_M_K(1.1920929e-7f), f);
    return DTI_M(log_edges)(x, DTI_M_FMA(f, DTI_M_K(0.693147182f), DTI_M(log1p_reduced)(m)));
}

DTI_M_FN DTI_M_F DTI_M(log1p)(DTI_M_F x)
{
    DTI_M_F u = DTI_M_ADD(x, DTI_M_K(1.0f)); /* only its exponent is used */
    DTI_M_I n = DTI_M_ISUB(DTI_M_ASINT(u), DTI_M_KI(0x3f400000));
    DTI_M_I e = DTI_M_IAND(n, DTI_M_KI(~0x7fffff));
    /* m = (x + 1) / 2^e - 1, of two exact terms; s = 4 / 2^e, since 1 / 2^e may be denormal */
    DTI_M_F s = DTI_M_ASFLOAT(DTI_M_ISUB(DTI_M_KI(0x40800000), e));
    DTI_M_F scaled = DTI_M_MUL(DTI_M_MUL(x, DTI_M_K(0.25f)), s);
    DTI_M_F m = DTI_M_ADD(scaled, DTI_M_FMA(s, DTI_M_K(0.25f), DTI_M_K(-1.0f)));
    DTI_M_F f = DTI_M_MUL(DTI_M_FROM_INT(e), DTI_M_K(1.1920929e-7f));
    DTI_M_F y = DTI_M_FMA(f, DTI_M_K(0.693147182f), DTI_M(log1p_reduced)(m));
    y = DTI_M(log_edges)(u, y);
    DTI_M_B tiny = DTI_M_LT(DTI_M_ABS(x), DTI_M_K(1.0e-8f));
    return DTI_M_SELECT(tiny, x, y);
}

DTI_M_FN DTI_M_F DTI_M(tanh)(DTI_M_F x)
{
    DTI_M_F t = DTI_M_ABS(x);
    t = DTI_M_AT_MOST(t, DTI_M_K(10.0f));
    DTI_M_F e = DTI_M_EXP_NEAR(DTI_M_ADD(t, t));
    DTI_M_F big = DTI_M_DIV(DTI_M_K(2.0f), DTI_M_ADD(e, DTI_M_K(1.0f)));
    big = DTI_M_SUB(DTI_M_K(1.0f), big);
    DTI_M_F s = DTI_M_MUL(x, x);
    DTI_M_F p = DTI_M_K(-0.00603349973f);
    p = DTI_M_FMA(p, s, DTI_M_K(0.0209029987f));
    p = DTI_M_FMA(p, s, DTI_M_K(-0.0538120829f));
    p = DTI_M_FMA(p, s, DTI_M_K(0.133322150f));
    p = DTI_M_FMA(p, s, DTI_M_K(-0.333333075f));
    DTI_M_F small = DTI_M_FMA(DTI_M_MUL(p, s), x, x);
    DTI_M_F y = DTI_M_SELECT(DTI_M_LT(t, DTI_M_K(0.58f)), small, big);
    y = DTI_M_WITH_SIGN(y, DTI_M_SIGN(x)); /* of -0 too */
    return DTI_M_SELECT(DTI_M_IS_NAN(x), x, y);
}

DTI_M_FN DTI_M_F DTI_M(sigmoid)(DTI_M_F x)
{
    DTI_M_F e = DTI_M(exp)(DTI_M_ASFLOAT(DTI_M_IOR(DTI_M_ASINT(x), DTI_M_KI(~0x7fffffff))));
    DTI_M_B negative = DTI_M_ILT(DTI_M_ASINT(x), DTI_M_KI(0));
    DTI_M_F top = DTI_M_SELECT(negative, e, DTI_M_K(1.0f));
    DTI_M_F y = DTI_M_DIV(top, DTI_M_ADD(e, DTI_M_K(1.0f)));
    return DTI_M_SELECT(DTI_M_IS_NAN(x), x, y);
}

/* log(1 + e^x), and x above 20 as PyTorch has it. */
DTI_M_FN DTI_M_F DTI_M(softplus)(DTI_M_F x)
{
    DTI_M_F y = DTI_M(log1p)(DTI_M(exp)(x));
    return DTI_M_SELECT(DTI_M_LT(DTI_M_K(20.0f), x), x, y);
}

DTI_M_FN DTI_M_F DTI_M(erf)(DTI_M_F x)
{
    DTI_M_F t = DTI_M_ABS(x);
    t = DTI_M_AT_MOST(t, DTI_M_K(5.0f)); /* 1 from 3.92 on */
    DTI_M_F s = DTI_M_MUL(t, t);
    DTI_M_F p = DTI_M_FMA(DTI_M_K(-1.72853470e-5f), t, DTI_M_K(3.83197126e-4f));
    DTI_M_F q = DTI_M_FMA(DTI_M_K(-3.88396438e-3f), t, DTI_M_K(2.42546219e-2f));
    p = DTI_M_FMA(p, s, q);
    p = DTI_M_FMA(p, t, DTI_M_K(-1.06777877e-1f));
    p = DTI_M_FMA(p, t, DTI_M_K(-6.34846687e-1f));
    p = DTI_M_FMA(p, t, DTI_M_K(-1.28717512e-1f));
    p = DTI_M_FMA(p, t, DTI_M_ASFLOAT(DTI_M_IXOR(DTI_M_ASINT(t), DTI_M_KI(~0x7fffffff))));
    DTI_M_F big = DTI_M_SUB(DTI_M_K(1.0f), DTI_M_EXP_NEAR(p));
    big = DTI_M_WITH_SIGN(big, DTI_M_SIGN(x));
    p = DTI_M_K(-5.96761703e-4f);
    p = DTI_M_FMA(p, s, DTI_M_K(4.99119423e-3f));
    p = DTI_M_FMA(p, s, DTI_M_K(-2.67681349e-2f));
    p = DTI_M_FMA(p, s, DTI_M_K(1.12819925e-1f));
    p = DTI_M_FMA(p, s, DTI_M_K(-3.76125336e-1f));
    p = DTI_M_FMA(p, s, DTI_M_K(1.28379166e-1f));
    DTI_M_F small = DTI_M_FMA(p, x, x);
    DTI_M_F y = DTI_M_SELECT(DTI_M_LT(DTI_M_K(0.927734375f), t), big, small);
    return DTI_M_SELECT(DTI_M_IS_NAN(x), x, y);
}

/* x * p(log(1 - x^2)), p by Remez exchange in two pieces; +-infinity at +-1, NaN outside. */
DTI_M_FN DTI_M_F DTI_M(erfinv)(DTI_M_F x)
{
    DTI_M_F one = DTI_M_K(1.0f);
    DTI_M_F t = DTI_M(log)(DTI_M_MUL(DTI_M_SUB(one, x), DTI_M_ADD(one, x)));
    DTI_M_F p = DTI_M_K(5.44013234e-9f);
    p = DTI_M_FMA(p, t, DTI_M_K(1.43296361e-7f));
    p = DTI_M_FMA(p, t, DTI_M_K(1.22774929e-6f));
    p = DTI_M_FMA(p, t, DTI_M_K(1.12766138e-7f));
    p = DTI_M_FMA(p, t, DTI_M_K(-5.61541165e-5f));
    p = DTI_M_FMA(p, t, DTI_M_K(-1.47699713e-4f));
    p = DTI_M_FMA(p, t, DTI_M_K(2.31469143e-3f));
    p = DTI_M_FMA(p, t, DTI_M_K(1.15392627e-2f));
    p = DTI_M_FMA(p, t, DTI_M_K(-2.3201552e-1f));
    DTI_M_F near = DTI_M_FMA(p, t, DTI_M_K(8.86226892e-1f));
    p = DTI_M_K(2.69604838e-10f);
    p = DTI_M_FMA(p, t, DTI_M_K(2.63299498e-8f));
    p = DTI_M_FMA(p, t, DTI_M_K(1.1080657e-6f));
    p = DTI_M_FMA(p, t, DTI_M_K(2.59908884e-5f));
    p = DTI_M_FMA(p, t, DTI_M_K(3.61767248e-4f));
    p = DTI_M_FMA(p, t, DTI_M_K(2.76386202e-3f));
    p = DTI_M_FMA(p, t, DTI_M_K(3.49152484e-3f));
    p = DTI_M_FMA(p, t, DTI_M_K(-2.68486798e-1f));
    p = DTI_M_FMA(p, t, DTI_M_K(8.35276783e-1f));
    p = DTI_M_SELECT(DTI_M_LT(t, DTI_M_K(-6.125f)), p, near);
    p = DTI_M_SELECT(DTI_M_EQ(DTI_M_ABS(x), one), DTI_M_INF, p);
    return DTI_M_MUL(x, p);
}

/* Of x, -1 / x or (x - 1) / (x + 1), whichever is within tan(pi / 8); p by Remez exchange. */
DTI_M_FN DTI_M_F DTI_M(atan)(DTI_M_F x)
{
    DTI_M_F one = DTI_M_K(1.0f), zero = DTI_M_K(0.0f), t = DTI_M_ABS(x);
    DTI_M_B wide = DTI_M_LT(DTI_M_K(2.41421356f), t), middle = DTI_M_LT(DTI_M_K(0.414213562f), t);
    DTI_M_F top = DTI_M_SELECT(middle, DTI_M_SUB(t, one), t);
    DTI_M_F bottom = DTI_M_SELECT(middle, DTI_M_ADD(t, one), one);
    DTI_M_F turn = DTI_M_SELECT(middle, DTI_M_K(0.785398163f), zero);
    top = DTI_M_SELECT(wide, DTI_M_K(-1.0f), top);
    bottom = DTI_M_SELECT(wide, t, bottom);
    turn = DTI_M_SELECT(wide, DTI_M_K(1.57079633f), turn);
    DTI_M_F r = DTI_M_DIV(top, bottom), s = DTI_M_MUL(r, r);
    DTI_M_F p = DTI_M_K(8.05372074e-2f);
    p = DTI_M_FMA(p, s, DTI_M_K(-1.38776779e-1f));
    p = DTI_M_FMA(p, s, DTI_M_K(1.99777097e-1f));
    p = DTI_M_FMA(p, s, DTI_M_K(-3.33329499e-1f));
    p = DTI_M_FMA(DTI_M_MUL(p, s), r, r);
    p = DTI_M_FMA(turn, DTI_M_K(-2.78275342e-8f), p); /* what the turns lack as floats */
    return DTI_M_WITH_SIGN(DTI_M_ADD(turn, p), DTI_M_SIGN(x));
}

/* x - n * pi/2 for n below 2^16, with the same error whether FMAs fuse or not. pi/2 is in parts of
 * 8 bits (Cody and Waite), whose products with n are exact. The rounding of the differences is
 * carried along. */
DTI_M_FN DTI_M_F DTI_M(sin_reduced)(DTI_M_F x, DTI_M_F n)
{
    DTI_M_PRECISE DTI_M_F r = DTI_M_SUB(x, DTI_M_MUL(n, DTI_M_K(1.5703125f)));
    r = DTI_M_SUB(r, DTI_M_MUL(n, DTI_M_K(4.82559204e-4f)));
    DTI_M_PRECISE DTI_M_F h = DTI_M_MUL(n, DTI_M_K(1.26659870e-6f));
    DTI_M_PRECISE DTI_M_F high = DTI_M_SUB(r, h);
    DTI_M_PRECISE DTI_M_F lost = DTI_M_SUB(DTI_M_SUB(r, high), h);
    h = DTI_M_SUB(DTI_M_MUL(n, DTI_M_K(9.89530236e-10f)), lost);
    r = DTI_M_SUB(high, h);
    lost = DTI_M_SUB(DTI_M_SUB(high, r), h);
    return DTI_M_SUB(r, DTI_M_SUB(DTI_M_MUL(n, DTI_M_K(2.56334429e-12f)), lost));
}

/* sin(x + quarter * pi/2). Angles of more than 2^16 quadrants are seldom: each by itself. */
DTI_M_FN DTI_M_F DTI_M(sin_shifted)(DTI_M_F x, int quarter)
{
    DTI_M_B far = DTI_M_LT(DTI_M_K(DTI_ANGLE_FAR), DTI_M_ABS(x));
    DTI_M_F t = DTI_M_SELECT(far, DTI_M_K(0.0f), x);
    DTI_M_I n = DTI_M_NEAREST(t, 0.636619747f);
    DTI_M_F r = DTI_M(sin_reduced)(t, DTI_M_FROM_INT(n));
    if (DTI_M_ANY(far))
        DTI_M_FAR_ANGLES(x, r, n);
    DTI_M_F s = DTI_M_MUL(r, r);
    DTI_M_F p = DTI_M_K(2.86567956e-6f);
    p = DTI_M_FMA(p, s, DTI_M_K(-1.98559923e-4f));
    p = DTI_M_FMA(p, s, DTI_M_K(8.33338592e-3f));
    p = DTI_M_FMA(p, s, DTI_M_K(-1.66666672e-1f));
    DTI_M_F sine = DTI_M_FMA(p, DTI_M_MUL(r, s), r);
    p = DTI_M_K(2.44677067e-5f);
    p = DTI_M_FMA(p, s, DTI_M_K(-1.38877297e-3f));
    p = DTI_M_FMA(p, s, DTI_M_K(4.16666567e-2f));
    p = DTI_M_FMA(p, s, DTI_M_K(-0.5f));
    DTI_M_F cosine = DTI_M_FMA(p, s, DTI_M_K(1.0f));
    n = DTI_M_IADD(n, DTI_M_KI(quarter));
    DTI_M_B even = DTI_M_ILT(DTI_M_IAND(n, DTI_M_KI(1)), DTI_M_KI(1));
    DTI_M_F y = DTI_M_SELECT(even, sine, cosine);
    DTI_M_I sign = DTI_M_SHL(DTI_M_IAND(n, DTI_M_KI(2)), 30);
    y = DTI_M_ASFLOAT(DTI_M_IXOR(DTI_M_ASINT(y), sign));
    DTI_M_I top = DTI_M_IAND(DTI_M_ASINT(x), DTI_M_KI(0x7f800000));
    return DTI_M_SELECT(DTI_M_ILT(top, DTI_M_KI(0x7f800000)), y, DTI_M_NAN);
}
DTI_M_FN DTI_M_F DTI_M(sin)(DTI_M_F x)
{
    DTI_M_F y = DTI_M(sin_shifted)(x, 0);
    return DTI_M_SELECT(DTI_M_EQ(x, DTI_M_K(0.0f)), x, y); /* keeps -0 */
}
DTI_M_FN DTI_M_F DTI_M(cos)(DTI_M_F x)
{
    return DTI_M(sin_shifted)(x, 1);
}

DTI_M_FN DTI_M_F DTI_M(floor)(DTI_M_F x)
{
    DTI_M_B small = DTI_M_LT(DTI_M_ABS(x), DTI_M_K(8388608.0f)); /* else whole, infinite or NaN */
    DTI_M_F t = DTI_M_SELECT(small, x, DTI_M_K(0.0f));
    DTI_M_F whole = DTI_M_FROM_INT(DTI_M_TO_INT(t));
    DTI_M_F less = DTI_M_SUB(whole, DTI_M_K(1.0f));
    whole = DTI_M_SELECT(DTI_M_LT(t, whole), less, whole);
    return DTI_M_SELECT(small, DTI_M_WITH_SIGN(whole, DTI_M_SIGN(x)), x);
}

/* a^b for a > 0, finite: log(a) to about 45 bits as high + low, times b, through exp. */
DTI_M_FN DTI_M_F DTI_M(pow_positive)(DTI_M_F a, DTI_M_F b)
{
    DTI_M_B tiny = DTI_M_LT(a, DTI_M_K(1.17549435e-38f));
    DTI_M_F t = DTI_M_SELECT(tiny, DTI_M_MUL(a, DTI_M_K(8388608.0f)), a);
    DTI_M_I n = DTI_M_ISUB(DTI_M_ASINT(t), DTI_M_KI(0x3f3504f3)); /* bits of sqrt(1/2) */
    DTI_M_I e = DTI_M_IAND(n, DTI_M_KI(~0x7fffff));
    DTI_M_PRECISE DTI_M_F m = DTI_M_ASFLOAT(DTI_M_ISUB(DTI_M_ASINT(t), e));
    DTI_M_F f = DTI_M_SELECT(tiny, DTI_M_K(-23.0f), DTI_M_K(0.0f));
    f = DTI_M_FMA(DTI_M_FROM_INT(e), DTI_M_K(1.1920929e-7f), f);
    /* q = (m - 1) / (m + 1) as high + low; log(m) = 2 atanh(q) */
    DTI_M_PRECISE DTI_M_F r = DTI_M_DIV(DTI_M_K(1.0f), DTI_M_ADD(m, DTI_M_K(1.0f)));
    m = DTI_M_SUB(m, DTI_M_K(1.0f));
    DTI_M_PRECISE DTI_M_F q = DTI_M_MUL(m, r);
    DTI_M_F minus_q = DTI_M_SUB(DTI_M_K(0.0f), q);
    DTI_M_PRECISE DTI_M_F ql = DTI_M_FMA(minus_q, DTI_M_K(2.0f), m);
    ql = DTI_M_MUL(r, DTI_M_FMA(minus_q, m, ql));
    DTI_M_PRECISE DTI_M_F s = DTI_M_MUL(q, q);
    DTI_M_F p = DTI_M_K(0.1293334961f);
    p = DTI_M_FMA(p, s, DTI_M_K(0.1419928074f));
    p = DTI_M_FMA(p, s, DTI_M_K(0.2000148296f));
    p = DTI_M_FMA(p, s, DTI_M_K(0.3333332539f));
    /* s + sl = q^2, c + cl = q^3 */
    DTI_M_PRECISE DTI_M_F sl = DTI_M_FMA(q, q, DTI_M_SUB(DTI_M_K(0.0f), s));
    sl = DTI_M_FMA(q, DTI_M_ADD(ql, ql), sl);
    DTI_M_PRECISE DTI_M_F c = DTI_M_MUL(s, q);
    DTI_M_PRECISE DTI_M_F cl = DTI_M_FMA(s, q, DTI_M_SUB(DTI_M_K(0.0f), c));
    cl = DTI_M_FMA(s, ql, DTI_M_FMA(sl, q, cl));
    s = DTI_M_FMA(p, c, DTI_M_FMA(p, cl, ql));
    r = DTI_M_ADD(q, q);
    DTI_M_PRECISE DTI_M_F high = DTI_M_FMA(f, DTI_M_K(0.693147182f), r);
    DTI_M_PRECISE DTI_M_F low = DTI_M_FMA(f, DTI_M_K(-0.693147182f), high);
    low = DTI_M_FMA(s, DTI_M_K(2.0f), DTI_M_SUB(r, low));
    low = DTI_M_FMA(f, DTI_M_K(-1.90465421e-9f), low);
    DTI_M_PRECISE DTI_M_F lg = DTI_M_ADD(high, low);
    low = DTI_M_ADD(DTI_M_SUB(high, lg), low);
    /* b * log(a) */
    DTI_M_PRECISE DTI_M_F x = DTI_M_MUL(lg, b);
    x = DTI_M_CLAMP(x, -110.0f, 88.7228317f); /* the largest with a finite e^x */
    DTI_M_PRECISE DTI_M_F xl = DTI_M_FMA(lg, b, DTI_M_SUB(DTI_M_K(0.0f), x));
    xl = DTI_M_FMA(low, b, xl);
    DTI_M_F y = DTI_M(exp)(x);
    DTI_M_B normal = DTI_M_LT(DTI_M_K(-104.0f), x);
    DTI_M_F corrected = DTI_M_FMA(y, xl, y); /* or infinite */
    return DTI_M_SELECT(normal, corrected, y);
}

/* C's powf with its special cases. */
DTI_M_FN DTI_M_F DTI_M(pow)(DTI_M_F a, DTI_M_F b)
{
    DTI_M_F zero = DTI_M_K(0.0f), one = DTI_M_K(1.0f), u = DTI_M_ABS(a);
    DTI_M_F half_b = DTI_M_MUL(b, DTI_M_K(0.5f));
    DTI_M_B whole = DTI_M_EQ(DTI_M(floor)(b), b);
    DTI_M_B even = DTI_M_EQ(DTI_M(floor)(half_b), half_b);
    DTI_M_B b_negative = DTI_M_LT(b, zero);
    DTI_M_B u_infinite = DTI_M_EQ(u, DTI_M_INF), u_zero = DTI_M_EQ(u, zero);
    DTI_M_F inside = DTI_M_SELECT(DTI_M_EITHER(u_infinite, u_zero), one, u);
    DTI_M_F y = DTI_M(pow_positive)(inside, b);
    /* 0 and infinity, with b's sign: one is the other's inverse */
    y = DTI_M_SELECT(u_zero, DTI_M_SELECT(b_negative, DTI_M_INF, zero), y);
    y = DTI_M_SELECT(u_infinite, DTI_M_SELECT(b_negative, zero, DTI_M_INF), y);
    DTI_M_F at_infinity = DTI_M_SELECT(DTI_M_LT(u, one), DTI_M_SELECT(b_negative, DTI_M_INF, zero),
                                       DTI_M_SELECT(b_negative, zero, DTI_M_INF));
    at_infinity = DTI_M_SELECT(DTI_M_EQ(u, one), one, at_infinity);
    y = DTI_M_SELECT(DTI_M_EQ(DTI_M_ABS(b), DTI_M_INF), at_infinity, y);
    /* negative base: the sign of an odd power, NaN between whole ones */
    DTI_M_F odd = DTI_M_WITH_SIGN(y, DTI_M_SIGN(a));
    DTI_M_F with_sign = DTI_M_SELECT(even, y, odd);
    DTI_M_F between = DTI_M_SELECT(DTI_M_BOTH(DTI_M_LT(a, zero), DTI_M_LT(u, DTI_M_INF)),
                                   DTI_M_NAN, y);
    y = DTI_M_SELECT(whole, with_sign, between);
    DTI_M_B one_anyway = DTI_M_EITHER(DTI_M_EQ(a, one), DTI_M_EQ(b, zero));
    y = DTI_M_SELECT(DTI_M_EITHER(DTI_M_IS_NAN(a), DTI_M_IS_NAN(b)), DTI_M_NAN, y);
    return DTI_M_SELECT(one_anyway, one, y);
}
