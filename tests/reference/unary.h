/* The elementwise functions of one tensor (shaders/lib/map_body.h) in double, value and slope, by
 * other formulas where there are any.
 *
 * REF_UNARY(name, value's bound, slope's bound, value, slope). A bound is how far the CPU's may be
 * off over all floats, as two numbers. They are units in the last place of the exact one, or a
 * distance. Either will do. Tests hold kernels to them; docs/ops.md prints them. */

#define REF_SQRT_HALF 0.70710678118654752440
#define REF_SQRT_2_PI 0.79788456080286535588 /* sqrt(2 / pi) */
#define REF_2_SQRT_PI 1.12837916709551257390 /* 2 / sqrt(pi) */
static double ref_sigmoid_f64(double x) {
    return 1 / (1 + exp(-x));
}
static double ref_sigmoid_slope_f64(double x) {
    return ref_sigmoid_f64(x) * ref_sigmoid_f64(-x); /* 1 - sigmoid(x) would cancel */
}
/* 1 + tanh(u) = 2 sigmoid(2 u), which does not cancel. */
static double ref_gelu_tanh_f64(double x) {
    return x * ref_sigmoid_f64(2 * REF_SQRT_2_PI * (x + 0.044715 * x * x * x));
}
static double ref_gelu_tanh_slope_f64(double x) {
    double u = 2 * REF_SQRT_2_PI * (x + 0.044715 * x * x * x);
    double du = 2 * REF_SQRT_2_PI * (1 + 3 * 0.044715 * x * x);
    return ref_sigmoid_f64(u) + x * (ref_sigmoid_slope_f64(u) * du);
}
static double ref_softplus_f64(double x) {
    return x > 20 ? x : log1p(exp(x));
}
static double ref_mish_slope_f64(double x) {
    double t = tanh(ref_softplus_f64(x));
    return t + x * (1 - t * t) * ref_sigmoid_f64(x);
}
/* The quantile of the normal distribution, put right by a step of Newton's. */
static double ref_erfinv_f64(double x) {
    if (!(fabs(x) < 1))
        return fabs(x) > 1 || isnan(x) ? NAN : x * INFINITY;
    const double y = dti_normal_quantile(0.5 * (1 + x)) * REF_SQRT_HALF;
    const double off = x > 0.5 ? (1 - x) - erfc(y) : x < -0.5 ? erfc(-y) - (1 + x) : erf(y) - x;
    return y - off / (REF_2_SQRT_PI * exp(-y * y));
}

#define REF_UNARY(name, ulps, off, slope_ulps, slope_off, value, slope)                            \
    static double ref_value_##name(double x, double p0, double p1) {                               \
        return value;                                                                              \
    }                                                                                              \
    static double ref_slope_##name(double x, double p0, double p1) {                               \
        return slope;                                                                              \
    }                                                                                              \
    static const double ref_bounds_##name[2][2] = {{ulps, off}, {slope_ulps, slope_off}};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* all take the parameters */
REF_UNARY(neg, 0, 0, 0, 0, -x, -1)
REF_UNARY(sign, 0, 0, 0, 0, (x > 0 ? 1 : x < 0 ? -1 : 0), 0) /* NaN too, as PyTorch */
REF_UNARY(abs, 0, 0, 0, 0, fabs(x), x > 0 ? 1 : x < 0 ? -1 : 0)
REF_UNARY(exp, 1.3, 0, 1.3, 0, exp(x), exp(x))
REF_UNARY(log, 1.2, 0, 0.5, 0, log(x), 1 / x)
REF_UNARY(log1p, 1.5, 0, 1.6, 0, log1p(x), 1 / (1 + x))
REF_UNARY(expm1, 1.6, 0, 1.3, 0, expm1(x), exp(x))
REF_UNARY(sqrt, 0.5, 0, 1.6, 0, sqrt(x), 0.5 / sqrt(x))
REF_UNARY(rsqrt, 1.6, 0, 6, 0, 1 / sqrt(x), x == 0 ? -0.5 / sqrt(x) : -0.5 / (x * sqrt(x)))
REF_UNARY(reciprocal, 0.5, 0, 2, 0, 1 / x, -1 / (x * x))
REF_UNARY(square, 0.5, 0, 0, 0, (x * x), 2 * x)
REF_UNARY(sin, 1.6, 0, 1.6, 0, sin(x), cos(x))
REF_UNARY(cos, 1.6, 0, 1.6, 0, cos(x), -sin(x))
REF_UNARY(tanh, 1.6, 0, 2, 1.4e-7, tanh(x), 1 / (cosh(x) * cosh(x)))
REF_UNARY(sigmoid, 2.6, 0, 4, 1e-7, ref_sigmoid_f64(x), ref_sigmoid_slope_f64(x))
REF_UNARY(relu, 0, 0, 0, 0, x < 0 ? 0 : x, x <= 0 ? 0 : 1)
REF_UNARY(leaky_relu, 0.5, 0, 0, 0, x > 0 ? x : p0 * x, x > 0 ? 1 : p0)
REF_UNARY(gelu, 1, 4.5e-7, 1, 1.5e-7, 0.5 * x * erfc(-x * REF_SQRT_HALF),
          0.5 * erfc(-x * REF_SQRT_HALF) + 0.5 * x * REF_SQRT_2_PI * exp(-0.5 * x * x))
REF_UNARY(gelu_tanh, 1, 4.5e-7, 1, 6e-7, ref_gelu_tanh_f64(x), ref_gelu_tanh_slope_f64(x))
REF_UNARY(silu, 6, 1.2e-38, 4, 1e-6, x / (1 + exp(-x)),
          ref_sigmoid_f64(x) + x * ref_sigmoid_slope_f64(x))
REF_UNARY(softplus, 2, 0, 2.6, 0, ref_softplus_f64(x), x > 20 ? 1 : ref_sigmoid_f64(x))
REF_UNARY(log_sigmoid, 2, 0, 2.6, 0, (x < 0 ? x : 0) - log1p(exp(-fabs(x))), ref_sigmoid_f64(-x))
REF_UNARY(log_floor, 1.2, 0, 0.5, 0, log(x) < p0 ? p0 : log(x), 1 / (x < 1e-12 ? 1e-12 : x))
REF_UNARY(elu, 1.6, 0, 2.2, 0, x > 0 ? x : p0 * expm1(x), x > 0 ? 1 : p0 * exp(x))
REF_UNARY(selu, 2, 0, 2.2, 0, x > 0 ? 1.05070098735548 * x : 1.75809934084738 * expm1(x),
          x > 0 ? 1.05070098735548 : 1.75809934084738 * exp(x))
REF_UNARY(mish, 6, 1.2e-38, 8, 6e-7, (x * tanh(ref_softplus_f64(x))), ref_mish_slope_f64(x))
REF_UNARY(softsign, 1.6, 0, 4, 3e-39, x / (1 + fabs(x)), 1 / ((1 + fabs(x)) * (1 + fabs(x))))
REF_UNARY(clamp, 0, 0, 0, 0, x > p1 ? p1 : x < p0 ? p0 : x, x >= p1 || x <= p0 ? 0 : 1)
REF_UNARY(hardsigmoid, 1, 0, 0.5, 0,
          (x < -3  ? 0
           : x > 3 ? 1
                   : (x + 3) / 6),
          x <= -3 || x >= 3 ? 0 : 1.0 / 6)
REF_UNARY(hardswish, 2, 0, 2, 1e-7,
          (x < -3  ? 0 * x
           : x > 3 ? x
                   : x * (x + 3) / 6),
          x <= -3  ? 0
          : x >= 3 ? 1
                   : x / 3 + 0.5)
REF_UNARY(erf, 1.3, 0, 80, 0, erf(x), (REF_2_SQRT_PI * exp(-x * x)))
REF_UNARY(erfinv, 6, 0, 160, 0, ref_erfinv_f64(x),
          exp(ref_erfinv_f64(x) * ref_erfinv_f64(x)) / REF_2_SQRT_PI)
REF_UNARY(atan, 2.5, 0, 2.5, 3e-39, atan(x), 1 / (1 + x * x))
REF_UNARY(floor, 0, 0, 0, 0, floor(x), 0)
REF_UNARY(ceil, 0, 0, 0, 0, ceil(x), 0)
REF_UNARY(round, 0, 0, 0, 0, rint(x), 0)
REF_UNARY(heaviside, 0, 0, 0, 0, x > 0 ? 1 : 0, 0)
REF_UNARY(affine, 1, 2.4e-7, 0, 0, (p0 * x + p1), p0)
#pragma GCC diagnostic pop

typedef struct ref_unary_row {
    double (*value)(double x, double p0, double p1), (*slope)(double x, double p0, double p1);
    const double (*bounds)[2]; /* of value and slope */
} ref_unary_row;

static const ref_unary_row ref_unary_rows[DTI_U_COUNT] = {
#define REF_ROW(ID, name, slope)                                                                   \
    [DTI_U_##ID] = {ref_value_##name, ref_slope_##name, ref_bounds_##name},
    DTI_UNARY_PLAIN(REF_ROW) DTI_UNARY_WITH(REF_ROW)
#undef REF_ROW
};
