/* The optimizers, as torch.optim has them: one section each. A formula is written once for GLSL
 * and the CPU's vectors, in the words of math_body.h, with the host's values. Another one is
 * a dt_optim_kind in src/api/program.h, and here a line of the list and a section.
 *
 * DTI_OPTIM_PART says which part an includer wants; without it there is only the list.
 *   1: constants_x(w, t, c): what an update needs beyond the group's words, by block and not by
 *      element: c from the words w and t, the number of steps before this one.
 *   2: update_x(v, g, w, t, c): the weight v[0] and the moments v[1], v[2] ... by the gradient g,
 *      which is clipped already. A moment that the parameter does not have is 0, and is not kept.
 *   4: C only: the row of the table (src/optim/optim.h).
 *   8: of those that need a whole parameter, what is measured of it: see optim_whole_body.h. */

#ifndef DTI_OPTIM_LIST
/* X(number, ID, name, least, most): dt_optim_kind and selector of the kernel; it has the least
 * number of moments, or the most. */
#define DTI_OPTIM_LIST(X)                                                                          \
    X(1, SGD, sgd, 0, 1)                                                                           \
    X(2, ADAM, adam, 2, 2)                                                                         \
    X(3, ADAMW, adamw, 2, 2)                                                                       \
    X(4, AMSGRAD, amsgrad, 3, 3)                                                                   \
    X(5, AMSGRADW, amsgradw, 3, 3)                                                                 \
    X(6, RMSPROP, rmsprop, 1, 3)                                                                   \
    X(7, ADAGRAD, adagrad, 1, 1)                                                                   \
    X(8, ADADELTA, adadelta, 2, 2)                                                                 \
    X(9, ADAMAX, adamax, 2, 2)                                                                     \
    X(10, NADAM, nadam, 3, 3)                                                                      \
    X(11, RADAM, radam, 2, 2)                                                                      \
    X(12, RPROP, rprop, 2, 2)                                                                      \
    X(13, LION, lion, 1, 1)                                                                        \
    DTI_OPTIM_WHOLE_LIST(X)
/* What needs more than an element: their sections are in optim_whole_body.h. */
#define DTI_OPTIM_WHOLE_LIST(X)                                                                    \
    X(14, LAMB, lamb, 2, 2)                                                                        \
    X(15, LARS, lars, 0, 1)                                                                        \
    X(16, MUON, muon, 2, 2)                                                                        \
    X(17, ADAFACTOR, adafactor, 0, 1)
/* X(member of dt_optim_desc, kinds that use it): C only. */
#define DTI_OPTIM_BIT(ID) (1u << DT_OPTIM_##ID)
#define DTI_OPTIM_ADAMS                                                                            \
    (DTI_OPTIM_BIT(ADAM) | DTI_OPTIM_BIT(ADAMW) | DTI_OPTIM_BIT(AMSGRAD) |                         \
     DTI_OPTIM_BIT(AMSGRADW) | DTI_OPTIM_BIT(ADAMAX) | DTI_OPTIM_BIT(NADAM) |                      \
     DTI_OPTIM_BIT(RADAM) | DTI_OPTIM_BIT(LAMB) | DTI_OPTIM_BIT(MUON))
#define DTI_OPTIM_MEMBERS(X)                                                                       \
    X(weight_decay, ~DTI_OPTIM_BIT(RPROP))                                                         \
    X(momentum,                                                                                    \
      DTI_OPTIM_BIT(SGD) | DTI_OPTIM_BIT(RMSPROP) | DTI_OPTIM_BIT(LARS) | DTI_OPTIM_BIT(MUON))     \
    X(dampening, DTI_OPTIM_BIT(SGD) | DTI_OPTIM_BIT(LARS))                                         \
    X(nesterov, DTI_OPTIM_BIT(SGD) | DTI_OPTIM_BIT(LARS) | DTI_OPTIM_BIT(MUON))                    \
    X(beta1, DTI_OPTIM_ADAMS | DTI_OPTIM_BIT(LION))                                                \
    X(beta2, DTI_OPTIM_ADAMS | DTI_OPTIM_BIT(LION) | DTI_OPTIM_BIT(ADAFACTOR))                     \
    X(eps, DTI_OPTIM_ADAMS | DTI_OPTIM_BIT(RMSPROP) | DTI_OPTIM_BIT(ADAGRAD) |                     \
               DTI_OPTIM_BIT(ADADELTA) | DTI_OPTIM_BIT(LARS) | DTI_OPTIM_BIT(ADAFACTOR))           \
    X(alpha, DTI_OPTIM_BIT(RMSPROP))                                                               \
    X(centered, DTI_OPTIM_BIT(RMSPROP))                                                            \
    X(rho, DTI_OPTIM_BIT(ADADELTA))                                                                \
    X(lr_decay, DTI_OPTIM_BIT(ADAGRAD))                                                            \
    X(initial_accumulator, DTI_OPTIM_BIT(ADAGRAD))                                                 \
    X(trust_coefficient, DTI_OPTIM_BIT(LARS))
#define DTI_OPTIM_STANDARD 3 /* what {0} is */
#define DTI_OPTIM_KINDS 18
#define DTI_MOMENTS_MAX 3
#define DTI_OPTIM_VALUES (1 + DTI_MOMENTS_MAX) /* the weight, then the moments */
#define DTI_EACH_MOMENT(X) X(1) X(2) X(3)
#define DTI_EACH_VALUE(X) X(0) DTI_EACH_MOMENT(X)
#define DTI_OPTIM_CONSTANTS 6
/* The last constant is not of constants_x, but the parameter's own, of its whole; 0: it has none. */
#define DTI_OPTIM_SHARE 5

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
#define DTI_OPTIM_CONSTANTS_OF(name) /* once a block: several call Adam's */                       \
    static void DTI_M(constants_##name)(const float *w, float t, DTI_M_F *c)
#define DTI_OPTIM_UPDATE_OF(name)                                                                  \
    DTI_M_FN void DTI_M(update_##name)(DTI_M_F * v, DTI_M_F g, const float *w, float t,            \
                                       const float *c)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* all take all of them */
#endif

/* mean + rest (x - mean). With a large rest as two products. The rounding of a large old mean would
 * otherwise stay in a small new one. Equal values stay what they are, and a rest of 1 gives x. */
#if DTI_OPTIM_PART & 3 /* in GLSL of one element, and of four */
DTI_M_FN DTI_M_F DTI_M(lerp)(DTI_M_F mean, DTI_M_F x, float rest) {
    if (rest < 0.5f)
        return DTI_M_FMA(DTI_M_SUB(x, mean), DTI_M_K(rest), mean);
    return DTI_M_FMA(x, DTI_M_K(rest), DTI_M_MUL(DTI_M_K(1.0f - rest), mean));
}
#endif

/* ---- SGD. The first step takes the gradient as it is, even with dampening. */
#define DTI_SGD_MOMENTUM 2
#define DTI_SGD_DAMPED 3 /* 1 - dampening */
#define DTI_SGD_NESTEROV 4

#if DTI_OPTIM_PART & 1
DTI_OPTIM_CONSTANTS_OF(sgd) {
}
#endif
#if DTI_OPTIM_PART & 2
DTI_OPTIM_UPDATE_OF(sgd_step) {
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
DTI_OPTIM_UPDATE_OF(sgd) {
    if (w[DTI_GROUP_DECAY] != 0.0f)
        g = DTI_M_FMA(DTI_M_K(w[DTI_GROUP_DECAY]), v[0], g);
    DTI_M(update_sgd_step)(v, g, w, t, c);
}
#endif
#if DTI_OPTIM_PART & 4
static uint32_t dti_sgd_moments(const dt_optim_desc *d) {
    return d->momentum != 0.0 ? 1 : 0;
}
static void dti_sgd_words(const dt_optim_desc *d, float *w) {
    w[DTI_SGD_MOMENTUM] = (float)d->momentum;
    w[DTI_SGD_DAMPED] = (float)(1.0 - d->dampening);
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
static const dti_optim_row dti_optim_sgd = {.name = "SGD",
                                            .lr = 1e-3,
                                            .moments = dti_sgd_moments,
                                            .words = dti_sgd_words,
                                            .bound = dti_sgd_bound};
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
DTI_OPTIM_CONSTANTS_OF(adam) {
    DTI_M_F steps = DTI_M_K(t + 1.0f);
    DTI_M_F ln_beta1 = DTI_M_K(w[DTI_ADAM_LN_BETA1]), ln_beta2 = DTI_M_K(w[DTI_ADAM_LN_BETA2]);
    DTI_M_F bias1 = DTI_M_NEG(DTI_M(expm1)(DTI_M_MUL(steps, ln_beta1)));
    DTI_M_F bias2 = DTI_M_NEG(DTI_M(expm1)(DTI_M_MUL(steps, ln_beta2)));
    c[DTI_ADAM_REST1] = DTI_M_NEG(DTI_M(expm1)(ln_beta1));
    c[DTI_ADAM_REST2] = DTI_M_NEG(DTI_M(expm1)(ln_beta2));
    c[DTI_ADAM_RATE] = DTI_M_DIV(DTI_M_K(-w[DTI_GROUP_LR]), bias1);
    c[DTI_ADAM_BIAS2] = DTI_M_SQRT(bias2);
}
DTI_OPTIM_CONSTANTS_OF(adamw) {
    DTI_M(constants_adam)(w, t, c);
}
DTI_OPTIM_CONSTANTS_OF(amsgrad) {
    DTI_M(constants_adam)(w, t, c);
}
#endif
#if DTI_OPTIM_PART & 2
/* m / (sqrt(second) / bias2 + eps) */
DTI_M_FN DTI_M_F DTI_M(adam_ratio)(DTI_M_F m, DTI_M_F second, DTI_M_F bias2, DTI_M_F eps) {
    DTI_M_F root = DTI_M_DIV(DTI_M_SQRT(second), bias2);
    return DTI_M_DIV(m, DTI_M_ADD(root, eps));
}
DTI_OPTIM_UPDATE_OF(adam_moments) {
    DTI_M_F rest2 = DTI_M_MUL(DTI_M_K(c[DTI_ADAM_REST2]), g);
    v[1] = DTI_M(lerp)(v[1], g, c[DTI_ADAM_REST1]);
    v[2] = DTI_M_FMA(rest2, g, DTI_M_MUL(DTI_M_K(w[DTI_ADAM_BETA2]), v[2]));
}
DTI_OPTIM_UPDATE_OF(adam_step) {
    DTI_M(update_adam_moments)(v, g, w, t, c);
    DTI_M_F bias2 = DTI_M_K(c[DTI_ADAM_BIAS2]), eps = DTI_M_K(w[DTI_ADAM_EPS]);
    DTI_M_F ratio = DTI_M(adam_ratio)(v[1], v[2], bias2, eps);
    v[0] = DTI_M_FMA(DTI_M_K(c[DTI_ADAM_RATE]), ratio, v[0]);
}
DTI_OPTIM_UPDATE_OF(adam) {
    if (w[DTI_GROUP_DECAY] != 0.0f)
        g = DTI_M_FMA(DTI_M_K(w[DTI_GROUP_DECAY]), v[0], g);
    DTI_M(update_adam_step)(v, g, w, t, c);
}
DTI_OPTIM_UPDATE_OF(adam_kept) {
    v[0] = DTI_M_MUL(v[0], DTI_M_K(w[DTI_ADAM_KEEP]));
    DTI_M(update_adam_step)(v, g, w, t, c);
}
DTI_OPTIM_UPDATE_OF(adamw) {
    DTI_M(update_adam_kept)(v, g, w, t, c);
}
DTI_OPTIM_UPDATE_OF(amsgrad_step) {
    DTI_M(update_adam_moments)(v, g, w, t, c);
    v[3] = DTI_M_SELECT(DTI_M_LT(v[3], v[2]), v[2], v[3]);
    DTI_M_F bias2 = DTI_M_K(c[DTI_ADAM_BIAS2]), eps = DTI_M_K(w[DTI_ADAM_EPS]);
    DTI_M_F ratio = DTI_M(adam_ratio)(v[1], v[3], bias2, eps);
    v[0] = DTI_M_FMA(DTI_M_K(c[DTI_ADAM_RATE]), ratio, v[0]);
}
DTI_OPTIM_UPDATE_OF(amsgrad) {
    if (w[DTI_GROUP_DECAY] != 0.0f)
        g = DTI_M_FMA(DTI_M_K(w[DTI_GROUP_DECAY]), v[0], g);
    DTI_M(update_amsgrad_step)(v, g, w, t, c);
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
static const dti_optim_row dti_optim_adam = {.name = "Adam",
                                             .lr = 1e-3,
                                             .moments = dti_adam_moments,
                                             .words = dti_adam_words,
                                             .bound = dti_adam_bound};
static const dti_optim_row dti_optim_adamw = {.name = "AdamW",
                                              .lr = 1e-3,
                                              .weight_decay = 1e-2,
                                              .moments = dti_adam_moments,
                                              .words = dti_adam_words,
                                              .bound = dti_adamw_bound};
static const dti_optim_row dti_optim_amsgrad = {.name = "AMSGrad",
                                                .lr = 1e-3,
                                                .moments = dti_amsgrad_moments,
                                                .words = dti_adam_words,
                                                .bound = dti_amsgrad_bound};
#endif

/* ---- RMSprop. The root of the mean of squares, or of the variance, that is around the mean. */
#define DTI_RMS_ALPHA 2
#define DTI_RMS_EPS 3
#define DTI_RMS_MOMENTUM 4
#define DTI_RMS_CENTERED 5
#define DTI_RMS_REST 6 /* 1 - alpha */

#if DTI_OPTIM_PART & 1
DTI_OPTIM_CONSTANTS_OF(rmsprop) {
}
#endif
#if DTI_OPTIM_PART & 2
DTI_M_FN DTI_M_F DTI_M(mean_square)(DTI_M_F mean, DTI_M_F g, float keep, float rest) {
    return DTI_M_FMA(DTI_M_MUL(DTI_M_K(rest), g), g, DTI_M_MUL(DTI_M_K(keep), mean));
}
DTI_OPTIM_UPDATE_OF(rmsprop) {
    DTI_M_F zero = DTI_M_K(0.0f);
    if (w[DTI_GROUP_DECAY] != 0.0f)
        g = DTI_M_FMA(DTI_M_K(w[DTI_GROUP_DECAY]), v[0], g);
    v[1] = DTI_M(mean_square)(v[1], g, w[DTI_RMS_ALPHA], w[DTI_RMS_REST]);
    DTI_M_F second = v[1];
    if (w[DTI_RMS_CENTERED] != 0.0f) {
        v[3] = DTI_M(lerp)(v[3], g, w[DTI_RMS_REST]);
        second = DTI_M_SUB(second, DTI_M_MUL(v[3], v[3]));
        second = DTI_M_SELECT(DTI_M_LT(zero, second), second, zero);
    }
    g = DTI_M_DIV(g, DTI_M_ADD(DTI_M_SQRT(second), DTI_M_K(w[DTI_RMS_EPS])));
    if (w[DTI_RMS_MOMENTUM] != 0.0f) {
        v[2] = DTI_M_FMA(DTI_M_K(w[DTI_RMS_MOMENTUM]), v[2], g);
        g = v[2];
    }
    v[0] = DTI_M_FMA(DTI_M_K(-w[DTI_GROUP_LR]), g, v[0]);
}
#endif
#if DTI_OPTIM_PART & 4
static uint32_t dti_rmsprop_moments(const dt_optim_desc *d) {
    return d->momentum != 0.0 || d->centered ? 3 : 1;
}
static void dti_rmsprop_words(const dt_optim_desc *d, float *w) {
    w[DTI_RMS_ALPHA] = (float)d->alpha;
    w[DTI_RMS_EPS] = (float)d->eps;
    w[DTI_RMS_MOMENTUM] = (float)d->momentum;
    w[DTI_RMS_CENTERED] = d->centered ? 1.0f : 0.0f;
    w[DTI_RMS_REST] = (float)(1.0 - d->alpha);
}
/* A weight moves by at most rate * step; d: the gradient with what is added to it. */
static bool dti_optim_bounded(double v[DTI_OPTIM_VALUES], double d, double rate, double step) {
    v[0] = (v[0] + rate * step) * (1.0 + 1e-6);
    return d <= DTI_PROVEN_MAX && step <= DTI_PROVEN_MAX && rate <= DTI_PROVEN_MAX &&
           v[0] <= DTI_PROVEN_MAX && v[1] <= DTI_PROVEN_MAX && v[2] <= DTI_PROVEN_MAX;
}
static bool dti_rmsprop_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    const double d = g + r->decay * v[0], eps = r->optim->eps, momentum = r->optim->momentum;
    double step = d / DTI_MAX(eps, 1e-45);
    v[1] = DTI_MAX(v[1], d * d) * (1.0 + 1e-6);
    v[3] = DTI_MAX(v[3], d);
    if (momentum != 0.0)
        v[2] = step = (momentum * v[2] + step) * (1.0 + 1e-6);
    return eps >= DTI_PROVEN_EPS && dti_optim_bounded(v, d, r->lr, step);
}
static const dti_optim_row dti_optim_rmsprop = {.name = "RMSprop",
                                                .lr = 1e-2,
                                                .moments = dti_rmsprop_moments,
                                                .words = dti_rmsprop_words,
                                                .bound = dti_rmsprop_bound};
#endif

/* ---- Adagrad. The sum is kept without what it begins with. */
#define DTI_ADAGRAD_EPS 2
#define DTI_ADAGRAD_FALL 3 /* lr / (1 + steps * this) */
#define DTI_ADAGRAD_BEGIN 4

#if DTI_OPTIM_PART & 1
DTI_OPTIM_CONSTANTS_OF(adagrad) {
    DTI_M_F fall = DTI_M_FMA(DTI_M_K(t), DTI_M_K(w[DTI_ADAGRAD_FALL]), DTI_M_K(1.0f));
    c[0] = DTI_M_DIV(DTI_M_K(-w[DTI_GROUP_LR]), fall);
}
#endif
#if DTI_OPTIM_PART & 2
DTI_OPTIM_UPDATE_OF(adagrad) {
    if (w[DTI_GROUP_DECAY] != 0.0f)
        g = DTI_M_FMA(DTI_M_K(w[DTI_GROUP_DECAY]), v[0], g);
    v[1] = DTI_M_FMA(g, g, v[1]);
    DTI_M_F root = DTI_M_SQRT(DTI_M_ADD(v[1], DTI_M_K(w[DTI_ADAGRAD_BEGIN])));
    DTI_M_F step = DTI_M_DIV(g, DTI_M_ADD(root, DTI_M_K(w[DTI_ADAGRAD_EPS])));
    v[0] = DTI_M_FMA(DTI_M_K(c[0]), step, v[0]);
}
#endif
#if DTI_OPTIM_PART & 4
static uint32_t dti_optim_one_moment(const dt_optim_desc *d) {
    (void)d;
    return 1;
}
static void dti_adagrad_words(const dt_optim_desc *d, float *w) {
    w[DTI_ADAGRAD_EPS] = (float)d->eps;
    w[DTI_ADAGRAD_FALL] = (float)d->lr_decay;
    w[DTI_ADAGRAD_BEGIN] = (float)d->initial_accumulator;
}
static bool dti_adagrad_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    const double d = g + r->decay * v[0], eps = r->optim->eps;
    v[1] = (v[1] + d * d) * (1.0 + 1e-6);
    return eps >= DTI_PROVEN_EPS && r->optim->initial_accumulator <= DTI_PROVEN_MAX &&
           dti_optim_bounded(v, d, r->lr, d / DTI_MAX(eps, 1e-45));
}
static const dti_optim_row dti_optim_adagrad = {.name = "Adagrad",
                                                .lr = 1e-2,
                                                .moments = dti_optim_one_moment,
                                                .words = dti_adagrad_words,
                                                .bound = dti_adagrad_bound,
                                                .eps = 1e-10};
#endif

/* ---- Adadelta. Moments: means of squares of gradients and of steps. */
#define DTI_ADADELTA_RHO 2
#define DTI_ADADELTA_EPS 3
#define DTI_ADADELTA_REST 4

#if DTI_OPTIM_PART & 1
DTI_OPTIM_CONSTANTS_OF(adadelta) {
}
#endif
#if DTI_OPTIM_PART & 2
DTI_OPTIM_UPDATE_OF(adadelta) {
    DTI_M_F eps = DTI_M_K(w[DTI_ADADELTA_EPS]);
    if (w[DTI_GROUP_DECAY] != 0.0f)
        g = DTI_M_FMA(DTI_M_K(w[DTI_GROUP_DECAY]), v[0], g);
    v[1] = DTI_M(mean_square)(v[1], g, w[DTI_ADADELTA_RHO], w[DTI_ADADELTA_REST]);
    DTI_M_F ratio = DTI_M_DIV(DTI_M_SQRT(DTI_M_ADD(v[2], eps)), DTI_M_SQRT(DTI_M_ADD(v[1], eps)));
    DTI_M_F step = DTI_M_MUL(ratio, g);
    v[2] = DTI_M(mean_square)(v[2], step, w[DTI_ADADELTA_RHO], w[DTI_ADADELTA_REST]);
    v[0] = DTI_M_FMA(DTI_M_K(-w[DTI_GROUP_LR]), step, v[0]);
}
#endif
#if DTI_OPTIM_PART & 4
static void dti_adadelta_words(const dt_optim_desc *d, float *w) {
    w[DTI_ADADELTA_RHO] = (float)d->rho;
    w[DTI_ADADELTA_EPS] = (float)d->eps;
    w[DTI_ADADELTA_REST] = (float)(1.0 - d->rho);
}
static bool dti_adadelta_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    const double d = g + r->decay * v[0], eps = r->optim->eps;
    const double step = d * sqrt((v[2] + eps) / DTI_MAX(eps, 1e-45)) * (1.0 + 1e-6);
    v[1] = DTI_MAX(v[1], d * d) * (1.0 + 1e-6);
    v[2] = DTI_MAX(v[2], step * step) * (1.0 + 1e-6);
    return eps >= DTI_PROVEN_EPS && dti_optim_bounded(v, d, r->lr, step);
}
static const dti_optim_row dti_optim_adadelta = {.name = "Adadelta",
                                                 .lr = 1.0,
                                                 .moments = dti_adam_moments,
                                                 .words = dti_adadelta_words,
                                                 .bound = dti_adadelta_bound,
                                                 .eps = 1e-6};
#endif

/* ---- Adamax: the second moment is a maximum that fades. */
#if DTI_OPTIM_PART & 1
DTI_OPTIM_CONSTANTS_OF(adamax) {
    DTI_M(constants_adam)(w, t, c);
}
#endif
#if DTI_OPTIM_PART & 2
DTI_OPTIM_UPDATE_OF(adamax) {
    if (w[DTI_GROUP_DECAY] != 0.0f)
        g = DTI_M_FMA(DTI_M_K(w[DTI_GROUP_DECAY]), v[0], g);
    v[1] = DTI_M(lerp)(v[1], g, c[DTI_ADAM_REST1]);
    DTI_M_F size = DTI_M_SELECT(DTI_M_LT(g, DTI_M_K(0.0f)), DTI_M_NEG(g), g);
    DTI_M_F faded = DTI_M_MUL(DTI_M_K(w[DTI_ADAM_BETA2]), v[2]);
    size = DTI_M_ADD(size, DTI_M_K(w[DTI_ADAM_EPS]));
    v[2] = DTI_M_SELECT(DTI_M_LT(faded, size), size, faded);
    v[0] = DTI_M_FMA(DTI_M_K(c[DTI_ADAM_RATE]), DTI_M_DIV(v[1], v[2]), v[0]);
}
#endif
#if DTI_OPTIM_PART & 4
static bool dti_adamax_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    const double d = g + r->decay * v[0], eps = r->optim->eps;
    const double rate = r->lr / (1.0 - r->optim->beta1);
    v[1] = DTI_MAX(v[1], d);
    v[2] = DTI_MAX(v[2], (d + eps) * (1.0 + 1e-6));
    return eps >= DTI_PROVEN_EPS && dti_optim_bounded(v, d, rate, v[1] / DTI_MAX(eps, 1e-45));
}
static const dti_optim_row dti_optim_adamax = {.name = "Adamax",
                                               .lr = 2e-3,
                                               .moments = dti_adam_moments,
                                               .words = dti_adam_words,
                                               .bound = dti_adamax_bound};
#endif

/* ---- NAdam. The third moment is 1 - mu(1) mu(2) ... mu(steps), which no step knows by itself. */
#define DTI_NADAM_BETA1 6
#define DTI_NADAM_LN_FALL 7 /* momentum_decay * ln(0.96) */

#define DTI_NADAM_MU 2
#define DTI_NADAM_NEXT 4

#if DTI_OPTIM_PART & 1
DTI_M_FN DTI_M_F DTI_M(nadam_mu)(DTI_M_F steps, DTI_M_F beta1, DTI_M_F ln_fall) {
    DTI_M_F fallen = DTI_M(exp)(DTI_M_MUL(steps, ln_fall));
    return DTI_M_MUL(beta1, DTI_M_SUB(DTI_M_K(1.0f), DTI_M_MUL(DTI_M_K(0.5f), fallen)));
}
DTI_OPTIM_CONSTANTS_OF(nadam) {
    DTI_M_F beta1 = DTI_M_K(w[DTI_NADAM_BETA1]), ln_fall = DTI_M_K(w[DTI_NADAM_LN_FALL]);
    DTI_M(constants_adam)(w, t, c);
    c[DTI_NADAM_MU] = DTI_M(nadam_mu)(DTI_M_K(t + 1.0f), beta1, ln_fall);
    c[DTI_NADAM_NEXT] = DTI_M(nadam_mu)(DTI_M_K(t + 2.0f), beta1, ln_fall);
}
#endif
#if DTI_OPTIM_PART & 2
DTI_OPTIM_UPDATE_OF(nadam) {
    DTI_M_F one = DTI_M_K(1.0f), mu = DTI_M_K(c[DTI_NADAM_MU]), next = DTI_M_K(c[DTI_NADAM_NEXT]);
    if (w[DTI_GROUP_DECAY] != 0.0f)
        g = DTI_M_FMA(DTI_M_K(w[DTI_GROUP_DECAY]), v[0], g);
    DTI_M(update_adam_moments)(v, g, w, t, c);
    DTI_M_F product = DTI_M_MUL(DTI_M_SUB(one, v[3]), mu);
    v[3] = DTI_M_SUB(one, product);
    DTI_M_F of_g = DTI_M_DIV(DTI_M_MUL(DTI_M_SUB(one, mu), g), v[3]);
    DTI_M_F of_m = DTI_M_DIV(DTI_M_MUL(next, v[1]), DTI_M_SUB(one, DTI_M_MUL(product, next)));
    DTI_M_F bias2 = DTI_M_K(c[DTI_ADAM_BIAS2]), eps = DTI_M_K(w[DTI_ADAM_EPS]);
    DTI_M_F ratio = DTI_M(adam_ratio)(DTI_M_ADD(of_g, of_m), v[2], bias2, eps);
    v[0] = DTI_M_FMA(DTI_M_K(-w[DTI_GROUP_LR]), ratio, v[0]);
}
#endif
#if DTI_OPTIM_PART & 4
static void dti_nadam_words(const dt_optim_desc *d, float *w) {
    dti_adam_words(d, w);
    w[DTI_NADAM_BETA1] = (float)d->beta1;
    w[DTI_NADAM_LN_FALL] = (float)(4e-3 * dti_ln(0.96));
}
static bool dti_nadam_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    const double d = 2.0 * (g + r->decay * v[0]); /* of the gradient, and of its mean */
    v[3] = 1.0;
    return dti_adam_bound_of(r, v, d, 1.0);
}
static const dti_optim_row dti_optim_nadam = {.name = "NAdam",
                                              .lr = 2e-3,
                                              .moments = dti_amsgrad_moments,
                                              .words = dti_nadam_words,
                                              .bound = dti_nadam_bound};
#endif

/* ---- RAdam: while rho = rho_inf - 2 t b^t / (1 - b^t) is at most 5, a step without the second
 * moment. rho is a small difference of large numbers: with L = -ln b, x = t L it is, for small x,
 * L / 6 + t - (2 / L) (x^2 / 12 - x^4 / 720 + ...), from the series of x / (e^x - 1). */
#define DTI_RADAM_RHO 6 /* 2 / (1 - beta2) - 1 */
#define DTI_RADAM_RECT 4

#if DTI_OPTIM_PART & 1
DTI_OPTIM_CONSTANTS_OF(radam) {
    DTI_M(constants_adam)(w, t, c);
    DTI_M_F one = DTI_M_K(1.0f), steps = DTI_M_K(t + 1.0f), most = DTI_M_K(w[DTI_RADAM_RHO]);
    DTI_M_F l = DTI_M_NEG(DTI_M_K(w[DTI_ADAM_LN_BETA2])), x = DTI_M_MUL(steps, l);
    DTI_M_F two = DTI_M_DIV(DTI_M_K(2.0f), l), s = DTI_M_MUL(x, x);
    DTI_M_F term = DTI_M_FMA(s, DTI_M_K(3.30687831e-5f), DTI_M_K(-1.38888889e-3f));
    term = DTI_M_MUL(s, DTI_M_FMA(term, s, DTI_M_K(8.33333358e-2f)));
    DTI_M_F near = DTI_M_FMA(l, DTI_M_K(0.166666667f), steps);
    near = DTI_M_SUB(near, DTI_M_MUL(two, term));
    DTI_M_F fade = DTI_M_DIV(DTI_M_MUL(DTI_M_K(2.0f), steps), DTI_M(expm1)(x));
    DTI_M_F rho = DTI_M_SELECT(DTI_M_LT(x, one), near, DTI_M_SUB(most, fade));
    DTI_M_F four = DTI_M_K(4.0f),
            up = DTI_M_MUL(DTI_M_SUB(rho, four), DTI_M_SUB(rho, DTI_M_K(2.0f)));
    DTI_M_F down = DTI_M_MUL(DTI_M_SUB(most, four), DTI_M_SUB(most, DTI_M_K(2.0f)));
    DTI_M_F part = DTI_M_MUL(DTI_M_DIV(up, down), DTI_M_DIV(most, rho));
    DTI_M_F good = DTI_M_SELECT(DTI_M_LT(DTI_M_K(5.0f), rho), part, DTI_M_K(0.0f));
    c[DTI_RADAM_RECT] = DTI_M_SQRT(good);
}
#endif
#if DTI_OPTIM_PART & 2
DTI_OPTIM_UPDATE_OF(radam) {
    if (w[DTI_GROUP_DECAY] != 0.0f)
        g = DTI_M_FMA(DTI_M_K(w[DTI_GROUP_DECAY]), v[0], g);
    DTI_M(update_adam_moments)(v, g, w, t, c);
    DTI_M_F step = v[1];
    if (c[DTI_RADAM_RECT] != 0.0f) { /* bias2 / (root + eps) */
        DTI_M_F root = DTI_M_ADD(DTI_M_SQRT(v[2]), DTI_M_K(w[DTI_ADAM_EPS]));
        DTI_M_F rect = DTI_M_K(c[DTI_RADAM_RECT] * c[DTI_ADAM_BIAS2]);
        step = DTI_M_DIV(DTI_M_MUL(rect, step), root);
    }
    v[0] = DTI_M_FMA(DTI_M_K(c[DTI_ADAM_RATE]), step, v[0]);
}
#endif
#if DTI_OPTIM_PART & 4
static void dti_radam_words(const dt_optim_desc *d, float *w) {
    dti_adam_words(d, w);
    w[DTI_RADAM_RHO] = (float)(2.0 / (1.0 - d->beta2) - 1.0);
}
static bool dti_radam_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    const double d = g + r->decay * v[0], eps = r->optim->eps;
    const double rate = r->lr / (1.0 - r->optim->beta1) * 2.0;
    v[1] = DTI_MAX(v[1], d) * (1.0 + 1e-6);
    v[2] = DTI_MAX(v[2], d * d) * (1.0 + 1e-6);
    return eps >= DTI_PROVEN_EPS &&
           dti_optim_bounded(v, d, rate, v[1] * DTI_MAX(1.0, 1.0 / DTI_MAX(eps, 1e-45)));
}
static const dti_optim_row dti_optim_radam = {.name = "RAdam",
                                              .lr = 1e-3,
                                              .moments = dti_adam_moments,
                                              .words = dti_radam_words,
                                              .bound = dti_radam_bound};
#endif

/* ---- Rprop, only by signs, for whole batches. Moments: the last gradient, the step's size. */
#if DTI_OPTIM_PART & 1
DTI_OPTIM_CONSTANTS_OF(rprop) {
}
#endif
#if DTI_OPTIM_PART & 2
DTI_OPTIM_UPDATE_OF(rprop) {
    DTI_M_F zero = DTI_M_K(0.0f), most = DTI_M_K(50.0f), least = DTI_M_K(1e-6f);
    DTI_M_F size = v[2], both = DTI_M_MUL(g, v[1]);
    if (t == 0.0f)
        size = DTI_M_K(w[DTI_GROUP_LR]);
    DTI_M_F grown = DTI_M_MUL(size, DTI_M_K(1.2f)), shrunk = DTI_M_MUL(size, DTI_M_K(0.5f));
    size = DTI_M_SELECT(DTI_M_LT(zero, both), grown, size);
    size = DTI_M_SELECT(DTI_M_LT(both, zero), shrunk, size);
    size = DTI_M_SELECT(DTI_M_LT(most, size), most, size);
    size = DTI_M_SELECT(DTI_M_LT(size, least), least, size);
    g = DTI_M_SELECT(DTI_M_LT(both, zero), zero, g);
    v[1] = g;
    v[2] = size;
    DTI_M_F step = DTI_M_SELECT(DTI_M_LT(zero, g), DTI_M_NEG(size), zero);
    v[0] = DTI_M_ADD(v[0], DTI_M_SELECT(DTI_M_LT(g, zero), size, step));
}
#endif
#if DTI_OPTIM_PART & 4
static void dti_rprop_words(const dt_optim_desc *d, float *w) {
    (void)d, (void)w;
}
static bool dti_rprop_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    (void)r;
    v[1] = g;
    v[2] = 50.0 * (1.0 + 1e-6);
    return g <= 1e18 && dti_optim_bounded(v, g, 1.0, 50.0); /* the product of two is finite */
}
static const dti_optim_row dti_optim_rprop = {.name = "Rprop",
                                              .lr = 1e-2,
                                              .moments = dti_adam_moments,
                                              .words = dti_rprop_words,
                                              .bound = dti_rprop_bound};
#endif

/* ---- Lion (Chen et al. 2023): the sign of a mean that leans to the gradient; decay shrinks the
 * weight. */
#define DTI_LION_REST1 2
#define DTI_LION_REST2 3

#if DTI_OPTIM_PART & 1
DTI_OPTIM_CONSTANTS_OF(lion) {
}
#endif
#if DTI_OPTIM_PART & 2
DTI_OPTIM_UPDATE_OF(lion) {
    DTI_M_F zero = DTI_M_K(0.0f), rate = DTI_M_K(w[DTI_GROUP_LR]);
    DTI_M_F lean = DTI_M(lerp)(v[1], g, w[DTI_LION_REST1]);
    v[0] = DTI_M_MUL(v[0], DTI_M_K(w[DTI_ADAM_KEEP]));
    DTI_M_F step = DTI_M_SELECT(DTI_M_LT(zero, lean), DTI_M_NEG(rate), zero);
    v[0] = DTI_M_ADD(v[0], DTI_M_SELECT(DTI_M_LT(lean, zero), rate, step));
    v[1] = DTI_M(lerp)(v[1], g, w[DTI_LION_REST2]);
}
#endif
#if DTI_OPTIM_PART & 4
static void dti_lion_words(const dt_optim_desc *d, float *w) {
    w[DTI_LION_REST1] = (float)(1.0 - d->beta1);
    w[DTI_LION_REST2] = (float)(1.0 - d->beta2);
    w[DTI_ADAM_KEEP] = fmaf(-w[DTI_GROUP_LR], w[DTI_GROUP_DECAY], 1.0f);
}
static bool dti_lion_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    v[0] *= 1.0 + r->lr * r->decay;
    v[1] = DTI_MAX(v[1], g) * (1.0 + 1e-6);
    return v[1] <= DTI_PROVEN_MAX / 4 && dti_optim_bounded(v, g, r->lr, 1.0);
}
static const dti_optim_row dti_optim_lion = {.name = "Lion",
                                             .lr = 1e-4,
                                             .moments = dti_optim_one_moment,
                                             .words = dti_lion_words,
                                             .bound = dti_lion_bound,
                                             .beta2 = 0.99};
#endif

/* ---- AdamW by the largest second moment. */
#if DTI_OPTIM_PART & 1
DTI_OPTIM_CONSTANTS_OF(amsgradw) {
    DTI_M(constants_adam)(w, t, c);
}
#endif
#if DTI_OPTIM_PART & 2
DTI_OPTIM_UPDATE_OF(amsgradw) {
    v[0] = DTI_M_MUL(v[0], DTI_M_K(w[DTI_ADAM_KEEP]));
    DTI_M(update_amsgrad_step)(v, g, w, t, c);
}
#endif
#if DTI_OPTIM_PART & 4
static bool dti_amsgradw_bound(const dti_optim_rates *r, double v[DTI_OPTIM_VALUES], double g) {
    const bool fits = dti_adamw_bound(r, v, g);
    v[3] = DTI_MAX(v[3], v[2]);
    return fits;
}
static const dti_optim_row dti_optim_amsgradw = {.name = "AMSGradW",
                                                 .lr = 1e-3,
                                                 .weight_decay = 1e-2,
                                                 .moments = dti_amsgrad_moments,
                                                 .words = dti_adam_words,
                                                 .bound = dti_amsgradw_bound};
#endif

#include "optim_whole_body.h"

#ifndef VULKAN
#pragma GCC diagnostic pop
#endif
#endif
