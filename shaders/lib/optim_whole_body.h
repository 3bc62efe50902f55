/* The optimizers that need a whole parameter before they change an element of it. They are a part
 * of optim_body.h, which has the list, and describes the parts. For each parameter that is not
 * plain (dt_optim_group.elementwise) OPTIM_PAIRS measures two sums of squares, block by block.
 * OPTIM_SUMS makes of them the parameter's share, which updates find as c[DTI_OPTIM_SHARE]; 0: it
 * is plain.
 *
 *   8: measure_x(v, g, w, t, c, a, b): what is squared and summed, of one element; nothing is kept.
 *  16: share_x(a, b, n, t, w): of the roots of both sums, of the number of elements and of that of
 *      steps with this one, in scalars. A sum that is not finite gives NaN, which the dry pass finds:
 *      bounds keep squares far from that. */

#ifndef DTI_OPTIM_WHOLE
#define DTI_OPTIM_WHOLE
#define DTI_SHARE_LEAST 1e-30f /* a share is never 0, which means none */
#define DTI_MUON_EPS 1e-7f     /* the least norm that a matrix is divided by */
#define DTI_SQUARED_MAX 1e14   /* what up to 2^32 may be, so that their squares add up to an f32 */
#define DTI_ADAFACTOR_EPS 1.1920929e-7f     /* torch's epsilon1: f32's own */
#define DTI_ADAFACTOR_LEAST 1.42108547e-14f /* its square */
#endif

#undef DTI_OPTIM_MEASURE_OF
#undef DTI_OPTIM_SHARE_OF
#ifdef VULKAN
#define DTI_OPTIM_MEASURE_OF(name)                                                                 \
    void dti_m_measure_##name(DTI_M_F v[DTI_OPTIM_VALUES], DTI_M_F g, float w[DTI_GROUP_WORDS],    \
                              float t, float c[DTI_OPTIM_CONSTANTS], out DTI_M_F a, out DTI_M_F b)
#define DTI_OPTIM_SHARE_OF(name)                                                                   \
    float dti_m_share_##name(float a, float b, float n, float t, float w[DTI_GROUP_WORDS])
#define DTI_OUT(x) x
#else
#define DTI_OPTIM_MEASURE_OF(name)                                                                 \
    DTI_M_FN void DTI_M(measure_##name)(DTI_M_F * v, DTI_M_F g, const float *w, float t,           \
                                        const float *c, DTI_M_F *a, DTI_M_F *b)
#define DTI_OPTIM_SHARE_OF(name)                                                                   \
    static float dti_m_share_##name(float a, float b, float n, float t, const float *w)
#define DTI_OUT(x) *x
#endif

/* ---- LAMB (You et al. 2020, algorithm 2, with both bias corrections): AdamW's direction with the
 * decay in it, as long as the weight is. */
#define DTI_LAMB_REST 4 /* 1 / (1 - beta1^steps) */

#if DTI_OPTIM_PART & 1
DTI_OPTIM_CONSTANTS_OF(lamb) {
    DTI_M(constants_adam)(w, t, c);
    DTI_M_F power = DTI_M_MUL(DTI_M_K(t + 1.0f), DTI_M_K(w[DTI_ADAM_LN_BETA1]));
    c[DTI_LAMB_REST] = DTI_M_DIV(DTI_M_K(-1.0f), DTI_M(expm1)(power));
}
#endif
#if DTI_OPTIM_PART & 2
/* Changes the moments, as if they were kept. */
DTI_OPTIM_UPDATE_OF(lamb_direction) {
    DTI_M(update_adam_moments)(v, g, w, t, c);
    DTI_M_F bias2 = DTI_M_K(c[DTI_ADAM_BIAS2]), eps = DTI_M_K(w[DTI_ADAM_EPS]);
    DTI_M_F ratio = DTI_M(adam_ratio)(v[1], v[2], bias2, eps);
    ratio = DTI_M_MUL(ratio, DTI_M_K(c[DTI_LAMB_REST]));
    v[3] = DTI_M_FMA(DTI_M_K(w[DTI_GROUP_DECAY]), v[0], ratio);
}
DTI_OPTIM_UPDATE_OF(lamb) {
    float share = c[DTI_OPTIM_SHARE];
    float rate = share == 0.0f ? w[DTI_GROUP_LR] : w[DTI_GROUP_LR] * share;
    DTI_M_F x[DTI_OPTIM_VALUES];
    x[0] = v[0], x[1] = v[1], x[2] = v[2], x[3] = v[0];
    DTI_M(update_lamb_direction)(x, g, w, t, c);
    v[0] = DTI_M_FMA(DTI_M_K(-rate), x[3], v[0]);
    v[1] = x[1];
    v[2] = x[2];
}
#endif
#if DTI_OPTIM_PART & 8
DTI_OPTIM_MEASURE_OF(lamb) {
    DTI_M_F x[DTI_OPTIM_VALUES];
    x[0] = v[0], x[1] = v[1], x[2] = v[2], x[3] = v[0];
    DTI_M(update_lamb_direction)(x, g, w, t, c);
    DTI_OUT(a) = v[0];
    DTI_OUT(b) = x[3];
}
#endif
#if DTI_OPTIM_PART & 16
DTI_OPTIM_SHARE_OF(lamb) {
    return a > 0.0f && b > 0.0f ? a / b : 1.0f;
}
#endif
#if DTI_OPTIM_PART & 4
/* No element of a step is longer than the whole weight, of fewer than 2^32 elements; or, without a
 * share, than the direction. */
static bool dti_lamb_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    const double eps = r->optim->eps, ratio = (g + v[1]) / DTI_MAX(eps, 1e-45);
    const double most = ratio / (1.0 - r->optim->beta1) + r->decay * v[0], w = v[0];
    v[1] = DTI_MAX(v[1], g) * (1.0 + 1e-6);
    v[2] = DTI_MAX(v[2], g * g) * (1.0 + 1e-6);
    return eps >= DTI_PROVEN_EPS && w <= DTI_SQUARED_MAX && most <= DTI_SQUARED_MAX &&
           dti_optim_bounded(v, g, r->lr, DTI_MAX(most, 65536.0 * w));
}
static const dti_optim_row dti_optim_lamb = {.name = "LAMB",
                                             .lr = 1e-3,
                                             .weight_decay = 1e-2,
                                             .moments = dti_adam_moments,
                                             .words = dti_adam_words,
                                             .bound = dti_lamb_bound,
                                             .whole = dti_optim_emit_shares,
                                             .eps = 1e-6};
#endif

/* ---- LARS (You et al. 2017): SGD by gradients that are as long as a part of the weight. */
#define DTI_LARS_TRUST 5
#define DTI_LARS_EPS 6

#if DTI_OPTIM_PART & 1
DTI_OPTIM_CONSTANTS_OF(lars) {
}
#endif
#if DTI_OPTIM_PART & 2
DTI_OPTIM_UPDATE_OF(lars) {
    float share = c[DTI_OPTIM_SHARE];
    if (w[DTI_GROUP_DECAY] != 0.0f)
        g = DTI_M_FMA(DTI_M_K(w[DTI_GROUP_DECAY]), v[0], g);
    if (share != 0.0f)
        g = DTI_M_MUL(g, DTI_M_K(share));
    DTI_M(update_sgd_step)(v, g, w, t, c);
}
#endif
#if DTI_OPTIM_PART & 8
DTI_OPTIM_MEASURE_OF(lars) {
    DTI_OUT(a) = v[0];
    DTI_OUT(b) = g;
}
#endif
#if DTI_OPTIM_PART & 16
DTI_OPTIM_SHARE_OF(lars) {
    float length = b + w[DTI_GROUP_DECAY] * a + w[DTI_LARS_EPS];
    return a > 0.0f && b > 0.0f ? w[DTI_LARS_TRUST] * a / length : 1.0f;
}
#endif
#if DTI_OPTIM_PART & 4
static void dti_lars_words(const dt_optim_desc *d, float *w) {
    dti_sgd_words(d, w);
    w[DTI_LARS_TRUST] = (float)d->trust_coefficient;
    w[DTI_LARS_EPS] = (float)d->eps;
}
/* As SGD by the longest gradient that it may make: of fewer than 2^32 elements. */
static bool dti_lars_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    const dti_optim_rates plain = {r->optim, r->lr, 0.0};
    const double own = g + r->decay * v[0], w = v[0];
    return w <= DTI_SQUARED_MAX && own <= DTI_SQUARED_MAX &&
           dti_sgd_bound(&plain, v, DTI_MAX(own, r->optim->trust_coefficient * 65536.0 * w));
}
static const dti_optim_row dti_optim_lars = {.name = "LARS",
                                             .lr = 1.0,
                                             .moments = dti_sgd_moments,
                                             .words = dti_lars_words,
                                             .bound = dti_lars_bound,
                                             .whole = dti_optim_emit_shares};
#endif

/* ---- Muon (Jordan et al. 2024), as torch.optim.Muon computes it. For matrices the direction is
 * the mean of gradients, leaning to the last one, made orthogonal (src/optim/whole.c); other
 * parameters have AdamW. The update comes in two launches. The first updates the moment by the
 * gradient. The second, with a negative share, updates the weight by the direction, which lies as a
 * gradient. */
#define DTI_MUON_REST 7 /* 1 - momentum */

#if DTI_OPTIM_PART & 1
DTI_OPTIM_CONSTANTS_OF(muon) {
    DTI_M(constants_adam)(w, t, c);
}
#endif
#if DTI_OPTIM_PART & 2
DTI_OPTIM_UPDATE_OF(muon) {
    if (c[DTI_OPTIM_SHARE] == 0.0f)
        DTI_M(update_adam_kept)(v, g, w, t, c);
    else if (c[DTI_OPTIM_SHARE] > 0.0f)
        v[1] = DTI_M(lerp)(v[1], g, w[DTI_MUON_REST]);
    else {
        DTI_M_F kept = DTI_M_MUL(v[0], DTI_M_K(w[DTI_ADAM_KEEP]));
        v[0] = DTI_M_FMA(DTI_M_K(-w[DTI_GROUP_LR]), g, kept);
    }
}
#endif
#if DTI_OPTIM_PART & 8
DTI_OPTIM_MEASURE_OF(muon) {
    DTI_M_F mean = DTI_M(lerp)(v[1], g, w[DTI_MUON_REST]);
    DTI_OUT(a) = DTI_M_K(0.0f);
    DTI_OUT(b) = DTI_M(lerp)(mean, g, w[DTI_MUON_REST]);
}
#endif
#if DTI_OPTIM_PART & 16
DTI_OPTIM_SHARE_OF(muon) {
    return 1.0f / (b > DTI_MUON_EPS ? b : DTI_MUON_EPS);
}
#endif
#if DTI_OPTIM_PART & 4
static void dti_muon_words(const dt_optim_desc *d, float *w) {
    dti_adam_words(d, w);
    w[DTI_MUON_REST] = (float)(1.0 - d->momentum);
}
/* A direction has singular values below 2, times the root of at most 2^32. */
static bool dti_muon_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    const bool squares = v[1] <= DTI_SQUARED_MAX && g <= DTI_SQUARED_MAX;
    return squares && dti_adam_bound_of(r, v, g, 1.0 + r->lr * r->decay) &&
           dti_optim_bounded(v, g, r->lr, 131072.0);
}
static const dti_optim_row dti_optim_muon = {.name = "Muon",
                                             .lr = 1e-3,
                                             .weight_decay = 0.1,
                                             .momentum = 0.95,
                                             .moments = dti_adam_moments,
                                             .words = dti_muon_words,
                                             .bound = dti_muon_bound,
                                             .matrix = dti_optim_emit_matrix,
                                             .apply = dti_optim_apply_matrix};
#endif

/* ---- Adafactor (Shazeer and Stern 2018), as torch.optim.Adafactor computes it. A step is the
 * gradient over the root of a mean of squares. Its length is at most that of a parameter of ones,
 * times the root of the weight's mean square. For parameters of two axes and more the mean is the
 * product of those of its row and its column (src/optim/whole.c). These lie in place of the moment,
 * and an update is two launches. One updates the weight by the direction, with a negative share.
 * The other, without a share, updates the moment, which lies as a gradient. */
#define DTI_ADAFACTOR_POWER 2
#define DTI_ADAFACTOR_SIZE 3 /* the least of a weight */
#define DTI_ADAFACTOR_PART 0 /* of the mean is this step's: steps^-power */

#if DTI_OPTIM_PART & 1
DTI_OPTIM_CONSTANTS_OF(adafactor) {
    DTI_M_F power = DTI_M_MUL(DTI_M_K(-w[DTI_ADAFACTOR_POWER]), DTI_M(log)(DTI_M_K(t + 1.0f)));
    c[DTI_ADAFACTOR_PART] = DTI_M(exp)(power);
}
#endif
#if DTI_OPTIM_PART & 2
DTI_M_FN DTI_M_F DTI_M(adafactor_mean)(DTI_M_F mean, DTI_M_F g, float part) {
    return DTI_M(lerp)(mean, DTI_M_MUL(g, g), part);
}
DTI_M_FN DTI_M_F DTI_M(adafactor_direction)(DTI_M_F g, DTI_M_F mean) {
    DTI_M_F least = DTI_M_K(DTI_ADAFACTOR_LEAST);
    return DTI_M_DIV(g, DTI_M_SQRT(DTI_M_SELECT(DTI_M_LT(mean, least), least, mean)));
}
DTI_OPTIM_UPDATE_OF(adafactor) {
    float share = c[DTI_OPTIM_SHARE];
    DTI_M_F kept = DTI_M_MUL(v[0], DTI_M_K(w[DTI_ADAM_KEEP]));
    if (share == 0.0f)
        v[1] = g;
    else if (share > 0.0f) {
        v[1] = DTI_M(adafactor_mean)(v[1], g, c[DTI_ADAFACTOR_PART]);
        v[0] = DTI_M_FMA(DTI_M_K(-share), DTI_M(adafactor_direction)(g, v[1]), kept);
    } else
        v[0] = DTI_M_FMA(DTI_M_K(share), g, kept);
}
#endif
#if DTI_OPTIM_PART & 8
DTI_OPTIM_MEASURE_OF(adafactor) {
    DTI_OUT(a) = v[0];
    DTI_OUT(b) = g;
    if (c[DTI_OPTIM_SHARE] == 0.0f) {
        DTI_M_F mean = DTI_M(adafactor_mean)(v[1], g, c[DTI_ADAFACTOR_PART]);
        DTI_OUT(b) = DTI_M(adafactor_direction)(g, mean);
    }
}
#endif
#if DTI_OPTIM_PART & 16
DTI_OPTIM_SHARE_OF(adafactor) {
    float size = a / n, length = b / n, rate = 1.0f / t;
    size = size > w[DTI_ADAFACTOR_SIZE] ? size : w[DTI_ADAFACTOR_SIZE];
    rate = rate < w[DTI_GROUP_LR] ? rate : w[DTI_GROUP_LR];
    return length > 1.0f ? size * rate / length : size * rate;
}
#endif
#if DTI_OPTIM_PART & 4
static void dti_adafactor_words(const dt_optim_desc *d, float *w) {
    w[DTI_ADAFACTOR_POWER] = (float)d->beta2;
    w[DTI_ADAFACTOR_SIZE] = (float)d->eps;
    w[DTI_ADAM_KEEP] = fmaf(-w[DTI_GROUP_LR], w[DTI_GROUP_DECAY], 1.0f);
}
/* A direction's element is at most its gradient over eps. After the division by its length it is at
 * most the root of fewer than 2^32 elements. Sums of that number of means stay far below. So does
 * the product of a row's mean, at most that number times the mean of all, with a column's. */
static bool dti_adafactor_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    const double step = DTI_MIN(g / (double)DTI_ADAFACTOR_EPS, 65536.0) * 1.01;
    const double size = DTI_MAX(v[0], r->optim->eps) * 1.01, w = v[0];
    v[0] *= 1.0 + r->lr * r->decay;
    v[1] = DTI_MAX(v[1], g * g) * (1.0 + 1e-6);
    return w <= DTI_SQUARED_MAX && g <= DTI_SQUARED_MAX * (double)DTI_ADAFACTOR_EPS &&
           v[1] <= 1e26 && size <= DTI_PROVEN_MAX && dti_optim_bounded(v, g, r->lr, size * step);
}
static const dti_optim_row dti_optim_adafactor = {.name = "Adafactor",
                                                  .lr = 1e-2,
                                                  .moments = dti_optim_one_moment,
                                                  .words = dti_adafactor_words,
                                                  .bound = dti_adafactor_bound,
                                                  .whole = dti_optim_emit_shares,
                                                  .matrix = dti_optim_emit_factored,
                                                  .apply = dti_optim_apply_factored,
                                                  .apart = true,
                                                  .beta2 = 0.8,
                                                  .eps = 1e-3};
#endif
#undef DTI_OUT
