/* The optimizers, as torch.optim has them: one section each, with its formula once for GLSL and for
 * the CPU's vectors, in the words of math_body.h, and what the host knows of it. Another one is a
 * dt_optim_kind in src/api/program.h, and here a line of the list and a section.
 *
 * DTI_OPTIM_PART says which part an includer wants; without it there is the list alone.
 *   1: constants_x(w, t, c): what an update needs beyond the group's words, by block and not by
 *      element: c from the words w and t, the number of steps before this one.
 *   2: update_x(v, g, w, t, c): the weight v[0] and the moments v[1], v[2] ... by the gradient g,
 *      which is clipped already. A moment that the parameter does not have is 0, and is not kept.
 *   4: C only: the row of the table (src/optim/optim.h). */

#ifndef DTI_OPTIM_LIST
/* X(number, ID, name, least, most): dt_optim_kind and selector of the kernel; it has the least
 * number of moments, or the most. */
#define DTI_OPTIM_LIST(X)    \
    X(1, SGD, sgd, 0, 1)     \
    X(2, ADAM, adam, 2, 2)   \
    X(3, ADAMW, adamw, 2, 2) \
    X(4, AMSGRAD, amsgrad, 3, 3)
#define DTI_OPTIM_STANDARD 3 /* what {0} is */
#define DTI_OPTIM_KINDS 5
#define DTI_MOMENTS_MAX 3
#define DTI_OPTIM_VALUES (1 + DTI_MOMENTS_MAX) /* the weight, then the moments */
#define DTI_EACH_MOMENT(X) X(1) X(2) X(3)
#define DTI_EACH_VALUE(X) X(0) DTI_EACH_MOMENT(X)
#define DTI_OPTIM_CONSTANTS 4

/* Words of a parameter group in the step block, f32. Those from 2 on are the optimizer's own. */
#define DTI_GROUP_LR 0
#define DTI_GROUP_DECAY 1
#define DTI_GROUP_WORDS 8
#endif

#ifdef DTI_OPTIM_PART
#undef DTI_OPTIM_CONSTANTS_OF
#undef DTI_OPTIM_UPDATE_OF
#ifdef VULKAN
#define DTI_OPTIM_CONSTANTS_OF(name)                                                               \
    void dti_m_constants_##name(float w[DTI_GROUP_WORDS], float t,                                 \
                                inout float c[DTI_OPTIM_CONSTANTS])
#define DTI_OPTIM_UPDATE_OF(name)                                                                  \
    void dti_m_update_##name(inout DTI_M_F v[DTI_OPTIM_VALUES], DTI_M_F g,                         \
                             float w[DTI_GROUP_WORDS], float t, float c[DTI_OPTIM_CONSTANTS])
#else
#define DTI_OPTIM_CONSTANTS_OF(name)                                                               \
    DTI_M_FN void DTI_M(constants_##name)(const float *w, float t, DTI_M_F *c)
#define DTI_OPTIM_UPDATE_OF(name)                                                                  \
    DTI_M_FN void DTI_M(update_##name)(DTI_M_F * v, DTI_M_F g, const float *w, float t,         \
                                       const float *c)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* all take all of them */
#endif

/* ---- SGD. The first step takes the gradient as it is, even with dampening. */
#define DTI_SGD_MOMENTUM 2
#define DTI_SGD_DAMPED 3 /* 1 - dampening */
#define DTI_SGD_NESTEROV 4

#if DTI_OPTIM_PART & 1
DTI_OPTIM_CONSTANTS_OF(sgd) {}
#endif
#if DTI_OPTIM_PART & 2
DTI_OPTIM_UPDATE_OF(sgd)
{
    if (w[DTI_GROUP_DECAY] != 0.0f)
        g = DTI_M_FMA(DTI_M_K(w[DTI_GROUP_DECAY]), v[0], g);
    if (w[DTI_SGD_MOMENTUM] != 0.0f) {
        DTI_M_F momentum = DTI_M_K(w[DTI_SGD_MOMENTUM]), m = g;
        if (t != 0.0f)
            m = DTI_M_FMA(DTI_M_K(w[DTI_SGD_DAMPED]), g, DTI_M_MUL(momentum, v[1]));
        v[1] = m;
        if (w[DTI_SGD_NESTEROV] != 0.0f)
            g = DTI_M_FMA(momentum, m, g);
        else
            g = m;
    }
    v[0] = DTI_M_FMA(DTI_M_K(-w[DTI_GROUP_LR]), g, v[0]);
}
#endif
#if DTI_OPTIM_PART & 4
static uint32_t dti_sgd_moments(const dt_optim_desc *d) {
    return d->momentum != 0.0 ? 1 : 0;
}
static void dti_sgd_words(const dt_optim_desc *d, float *w) {
    w[DTI_SGD_MOMENTUM] = (float)d->momentum;
    w[DTI_SGD_DAMPED] = 1.0f - (float)d->dampening;
    w[DTI_SGD_NESTEROV] = d->nesterov ? 1.0f : 0.0f;
}
static bool dti_sgd_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    const double momentum = r->optim->momentum, rest = fabs(1.0 - r->optim->dampening);
    const double d = g + r->decay * v[0], damped = rest * d + momentum * v[1];
    const double m = momentum != 0.0 ? DTI_MAX(d, damped) : d; /* d: a first step's */
    const double step = r->optim->nesterov ? d + momentum * m : m;
    if (momentum != 0.0)
        v[1] = m * (1.0 + 1e-6);
    v[0] = (v[0] + r->lr * step) * (1.0 + 1e-6);
    return m <= DTI_PROVEN_MAX && step <= DTI_PROVEN_MAX && v[0] <= DTI_PROVEN_MAX;
}
static const dti_optim_row dti_optim_sgd = {
    "SGD", 1e-3, 0.0, dti_sgd_moments, dti_sgd_words, dti_sgd_bound, dti_optim_emit_blocks};
#endif

/* ---- Adam: decay is added to the gradient. AdamW: decay shrinks the weight. AMSGrad: Adam by the
 * largest second moment that there has been, which is a third one. 1 - beta and 1 - beta^t come
 * from the logarithm of beta: the difference would lose half of its digits. */
#define DTI_ADAM_BETA2 2
#define DTI_ADAM_EPS 3
#define DTI_ADAM_LN_BETA1 4 /* natural logarithms, rounded from double */
#define DTI_ADAM_LN_BETA2 5
#define DTI_ADAM_KEEP 6 /* 1 - lr * decay */

#define DTI_ADAM_REST1 0 /* 1 - beta1 */
#define DTI_ADAM_REST2 1
#define DTI_ADAM_RATE 2  /* -lr / (1 - beta1^steps) */
#define DTI_ADAM_BIAS2 3 /* sqrt(1 - beta2^steps) */

#if DTI_OPTIM_PART & 1
DTI_OPTIM_CONSTANTS_OF(adam)
{
    DTI_M_F steps = DTI_M_K(t + 1.0f);
    DTI_M_F ln_beta1 = DTI_M_K(w[DTI_ADAM_LN_BETA1]), ln_beta2 = DTI_M_K(w[DTI_ADAM_LN_BETA2]);
    DTI_M_F bias1 = DTI_M_NEG(DTI_M(expm1)(DTI_M_MUL(steps, ln_beta1)));
    DTI_M_F bias2 = DTI_M_NEG(DTI_M(expm1)(DTI_M_MUL(steps, ln_beta2)));
    c[DTI_ADAM_REST1] = DTI_M_NEG(DTI_M(expm1)(ln_beta1));
    c[DTI_ADAM_REST2] = DTI_M_NEG(DTI_M(expm1)(ln_beta2));
    c[DTI_ADAM_RATE] = DTI_M_DIV(DTI_M_K(-w[DTI_GROUP_LR]), bias1);
    c[DTI_ADAM_BIAS2] = DTI_M_SQRT(bias2);
}
DTI_OPTIM_CONSTANTS_OF(adamw) { DTI_M(constants_adam)(w, t, c); }
DTI_OPTIM_CONSTANTS_OF(amsgrad) { DTI_M(constants_adam)(w, t, c); }
#endif
#if DTI_OPTIM_PART & 2
/* m / (sqrt(second) / bias2 + eps) */
DTI_M_FN DTI_M_F DTI_M(adam_ratio)(DTI_M_F m, DTI_M_F second, DTI_M_F bias2, DTI_M_F eps)
{
    DTI_M_F root = DTI_M_DIV(DTI_M_SQRT(second), bias2);
    return DTI_M_DIV(m, DTI_M_ADD(root, eps));
}
DTI_OPTIM_UPDATE_OF(adam_moments)
{
    DTI_M_F rest2 = DTI_M_MUL(DTI_M_K(c[DTI_ADAM_REST2]), g);
    v[1] = DTI_M_FMA(DTI_M_SUB(g, v[1]), DTI_M_K(c[DTI_ADAM_REST1]), v[1]);
    v[2] = DTI_M_FMA(rest2, g, DTI_M_MUL(DTI_M_K(w[DTI_ADAM_BETA2]), v[2]));
}
DTI_OPTIM_UPDATE_OF(adam_step)
{
    DTI_M(update_adam_moments)(v, g, w, t, c);
    DTI_M_F bias2 = DTI_M_K(c[DTI_ADAM_BIAS2]), eps = DTI_M_K(w[DTI_ADAM_EPS]);
    DTI_M_F ratio = DTI_M(adam_ratio)(v[1], v[2], bias2, eps);
    v[0] = DTI_M_FMA(DTI_M_K(c[DTI_ADAM_RATE]), ratio, v[0]);
}
DTI_OPTIM_UPDATE_OF(adam)
{
    if (w[DTI_GROUP_DECAY] != 0.0f)
        g = DTI_M_FMA(DTI_M_K(w[DTI_GROUP_DECAY]), v[0], g);
    DTI_M(update_adam_step)(v, g, w, t, c);
}
DTI_OPTIM_UPDATE_OF(adamw)
{
    v[0] = DTI_M_MUL(v[0], DTI_M_K(w[DTI_ADAM_KEEP]));
    DTI_M(update_adam_step)(v, g, w, t, c);
}
DTI_OPTIM_UPDATE_OF(amsgrad)
{
    if (w[DTI_GROUP_DECAY] != 0.0f)
        g = DTI_M_FMA(DTI_M_K(w[DTI_GROUP_DECAY]), v[0], g);
    DTI_M(update_adam_moments)(v, g, w, t, c);
    v[3] = DTI_M_SELECT(DTI_M_LT(v[3], v[2]), v[2], v[3]);
    DTI_M_F bias2 = DTI_M_K(c[DTI_ADAM_BIAS2]), eps = DTI_M_K(w[DTI_ADAM_EPS]);
    DTI_M_F ratio = DTI_M(adam_ratio)(v[1], v[3], bias2, eps);
    v[0] = DTI_M_FMA(DTI_M_K(c[DTI_ADAM_RATE]), ratio, v[0]);
}
#endif
#if DTI_OPTIM_PART & 4
static uint32_t dti_adam_moments(const dt_optim_desc *d) {
    (void)d;
    return 2;
}
static uint32_t dti_amsgrad_moments(const dt_optim_desc *d) {
    (void)d;
    return 3;
}
static void dti_adam_words(const dt_optim_desc *d, float *w) {
    w[DTI_ADAM_BETA2] = (float)d->beta2;
    w[DTI_ADAM_EPS] = (float)d->eps;
    w[DTI_ADAM_LN_BETA1] = (float)dti_ln_beta(d->beta1);
    w[DTI_ADAM_LN_BETA2] = (float)dti_ln_beta(d->beta2);
    w[DTI_ADAM_KEEP] = fmaf(-w[DTI_GROUP_LR], w[DTI_GROUP_DECAY], 1.0f);
}
/* Bias corrections are at least 1 - beta; the root in the denominator only makes a step smaller. d:
 * the gradient with what is added to it; keep: what the weight is multiplied by. */
static bool dti_adam_bound_of(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double d,
                              double keep) {
    const double most = DTI_MAX(v[2], d * d), eps = r->optim->eps;
    const double rate = r->lr / (1.0 - r->optim->beta1), ratio = (d + v[1]) / DTI_MAX(eps, 1e-45);
    const bool fits = eps >= DTI_PROVEN_EPS && d + v[1] <= DTI_PROVEN_MAX &&
                      most <= DTI_PROVEN_MAX && rate <= DTI_PROVEN_MAX && ratio <= DTI_PROVEN_MAX &&
                      keep <= DTI_PROVEN_MAX && keep * v[0] + rate * ratio <= DTI_PROVEN_MAX;
    v[0] = (keep * v[0] + rate * ratio) * (1.0 + 1e-6);
    v[1] = DTI_MAX(v[1], d);
    v[2] = most;
    return fits;
}
static bool dti_adam_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    return dti_adam_bound_of(r, v, g + r->decay * v[0], 1.0);
}
static bool dti_adamw_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    return dti_adam_bound_of(r, v, g, 1.0 + r->lr * r->decay);
}
static bool dti_amsgrad_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    const bool fits = dti_adam_bound(r, v, g);
    v[3] = DTI_MAX(v[3], v[2]);
    return fits;
}
static const dti_optim_row dti_optim_adam = {
    "Adam", 1e-3, 0.0, dti_adam_moments, dti_adam_words, dti_adam_bound, dti_optim_emit_blocks};
static const dti_optim_row dti_optim_adamw = {
    "AdamW", 1e-3, 1e-2, dti_adam_moments, dti_adam_words, dti_adamw_bound, dti_optim_emit_blocks};
static const dti_optim_row dti_optim_amsgrad = {
    "AMSGrad",      1e-3,  0.0, dti_amsgrad_moments, dti_adam_words, dti_amsgrad_bound,
    dti_optim_emit_blocks};
#endif

#ifndef VULKAN
#pragma GCC diagnostic pop
#endif
#endif
