/* What an update may not do: write what is not finite. The largest gradient is at most the norm of
 * all, so from the largest weight and moments follows how large a norm may be before anything could
 * overflow; the commit compares (DTI_STEP_PROVEN). Up to there an update costs nothing more; above,
 * or where the store's values are not known, a dry pass computes it first. How large weights are
 * is told by every update, since by proof alone the bound would grow from step to step; how large
 * moments are by the dry pass, and from there it follows from the norms. */

#define DTI_PROVEN_MAX 1e37  /* a thirtieth of the largest f32: room for all rounding */
#define DTI_PROVEN_EPS 1e-30 /* a smaller one may be 0 to a device, and 0 proves nothing */

static float dti_status_f32(const uint32_t *status, uint32_t word) {
    float value;
    memcpy(&value, status + word, sizeof value);
    return value;
}

static void dti_store_unbound(dt_store *s) {
    for (uint32_t i = 0; i < s->layout.param_count; i++)
        s->kept[i].bounded = 0;
}

/* One group's constants as the device has them. */
typedef struct dti_reach {
    double lr, decay, beta1, beta2, eps;
    bool momentum, nesterov, decoupled;
} dti_reach;

/* Whether no update of values up to x by gradients up to g overflows; x[1] and x[2] become what the
 * moments are within after it. */
static bool dti_reach_sgd(const dti_reach *c, double x[3], double g) {
    const double momentum = c->momentum ? c->beta1 : 0.0;
    const double d = g + c->decay * x[0], damped = fabs(1.0 - c->beta2) * d + momentum * x[1];
    const double m = c->momentum ? DTI_MAX(d, damped) : d; /* d: a first step's */
    const double step = c->nesterov ? d + momentum * m : m;
    if (c->momentum)
        x[1] = m * (1.0 + 1e-6);
    return m <= DTI_PROVEN_MAX && step <= DTI_PROVEN_MAX && x[0] + c->lr * step <= DTI_PROVEN_MAX;
}

/* Bias corrections are at least 1 - beta; the root in the denominator only makes a step smaller. */
static bool dti_reach_adam(const dti_reach *c, double x[3], double g) {
    const double d = c->decoupled ? g : g + c->decay * x[0], v = DTI_MAX(x[2], d * d);
    const double rate = c->lr / (1.0 - c->beta1), ratio = (d + x[1]) / DTI_MAX(c->eps, 1e-45);
    const double keep = c->decoupled ? 1.0 + c->lr * c->decay : 1.0;
    const bool fits = c->eps >= DTI_PROVEN_EPS && d + x[1] <= DTI_PROVEN_MAX &&
                      v <= DTI_PROVEN_MAX && rate <= DTI_PROVEN_MAX && ratio <= DTI_PROVEN_MAX &&
                      keep <= DTI_PROVEN_MAX && keep * x[0] + rate * ratio <= DTI_PROVEN_MAX;
    x[1] = DTI_MAX(x[1], d);
    x[2] = v;
    return fits;
}

static dti_reach dti_reach_of(const dt_program *p, uint32_t group) {
    const dt_optim_desc *d = &p->code->optim;
    return (dti_reach){.lr = p->lr * p->code->groups[group].lr,
                       .decay = p->code->groups[group].decay,
                       .beta1 = d->kind == DT_SGD ? d->momentum : d->beta1,
                       .beta2 = d->kind == DT_SGD ? d->dampening : d->beta2,
                       .eps = d->eps,
                       .momentum = d->momentum != 0.0,
                       .nesterov = d->nesterov,
                       .decoupled = d->kind == DT_ADAMW};
}

/* The same for all groups together, with a gradient of this norm. */
static bool dti_reach_step(const dt_program *p, double norm, double x[3]) {
    const dt_optim_desc *d = &p->code->optim;
    const double before[3] = {x[0], x[1], x[2]};
    bool fits = true;
    if (d->clip_norm > 0.0)
        norm = DTI_MIN(norm, d->clip_norm);
    /* the sum of squares is rounded, and those below 1e-38 are lost in it */
    double g = 2.0 * norm + 1e-18;
    if (d->clip_value > 0.0)
        g = DTI_MIN(g, d->clip_value);
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        double now[3] = {before[0], before[1], before[2]};
        const dti_reach c = dti_reach_of(p, i);
        if (i && !d->groups[i - 1].match)
            continue;
        fits = (d->kind == DT_SGD ? dti_reach_sgd(&c, now, g) : dti_reach_adam(&c, now, g)) && fits;
        x[1] = DTI_MAX(x[1], now[1]);
        x[2] = DTI_MAX(x[2], now[2]);
    }
    return fits;
}

static double dti_step_proven(const dt_program *p) {
    static const double norms[] = {3e38, 1e18, 1e12, 1e6, 1.0, 1e-6};
    for (uint32_t i = 0; i < p->store->layout.param_count; i++) {
        if (p->code->trained[i] && p->store->kept[i].bounded <= dti_optim_moments(&p->code->optim))
            return -1.0;
    }
    for (size_t i = 0; i < DTI_COUNT(norms); i++) {
        double x[3] = {p->store->largest[0], p->store->largest[1], p->store->largest[2]};
        if (dti_reach_step(p, norms[i], x))
            return norms[i];
    }
    return -1.0;
}

/* Whether other parameters than the program's are bounded too: they may be larger. */
static bool dti_store_others(const dt_program *p) {
    for (uint32_t i = 0; i < p->store->layout.param_count; i++) {
        if (p->store->kept[i].bounded && !p->code->trained[i])
            return true;
    }
    return false;
}

/* After an update: x of its parameters. A moment that it does not have stays as it is. */
static void dti_store_bound(dt_program *p, const double x[3]) {
    dt_store *s = p->store;
    const uint32_t moments = dti_optim_moments(&p->code->optim);
    const bool others = dti_store_others(p);
    for (uint32_t i = 0; i <= moments; i++)
        s->largest[i] = others ? DTI_MAX(s->largest[i], x[i]) : x[i];
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        if (p->code->trained[i])
            s->kept[i].bounded = (uint8_t)DTI_MAX(s->kept[i].bounded, moments + 1);
    }
}

static void dti_store_remember(dt_program *p, const uint32_t *status) {
    dt_store *s = p->store;
    const float norm = dti_status_f32(status, DTI_STATUS_NORM);
    bool finite = !p->code->desc.no_check;
    double x[3] = {s->largest[0], s->largest[1], s->largest[2]};
    const bool proven = norm <= p->proven;
    for (uint32_t i = 0; i < 3 && finite; i++) {
        finite = status[DTI_STATUS_LARGEST(i)] < 0x7f800000u;
        if (finite && !proven && i)
            x[i] = (double)dti_status_f32(status, DTI_STATUS_LARGEST(i));
    }
    if (finite && proven)
        dti_reach_step(p, (double)norm, x);
    for (uint32_t i = 0; i < s->layout.param_count && !finite; i++)
        s->kept[i].bounded = p->code->trained[i] ? 0 : s->kept[i].bounded;
    if (!finite)
        return;
    x[0] = (double)dti_status_f32(status, DTI_STATUS_LARGEST(0));
    dti_store_bound(p, x);
}

/* ---- the fault */

/* Says which parameter it was; false: none. */
static bool dti_update_fault(dt_program *p, dt_report *r, const char *kept) {
    static const char *const what[] = {[DTI_BAD_MOMENT1] = "its first moment",
                                       [DTI_BAD_MOMENT2] = "its second moment",
                                       [DTI_BAD_WEIGHT] = "its value"};
    const dt_store *s = p->store;
    const uint32_t *status = s->device->backend->memory_host(p->memories[DTI_ARENA_OUT]);
    const uint32_t bad = status[DTI_STATUS_BAD], index = bad >> 2;
    if (!p->commits || !status[DTI_STATUS_ABORT] || bad == DTI_BAD_NONE ||
        index >= s->layout.param_count)
        return false;
    const char *name = s->graph->nodes[s->layout.params[index].node].label;
    const unsigned long long step = (unsigned long long)p->step;
    r->fault_op = "optimizer";
    if ((bad & 3u) == DTI_BAD_BEFORE)
        dti_fail(p->base, DT_ERROR_NUMERIC,
                 "program '%s', step %llu: parameter '%s' or its moments hold a NaN or an infinity "
                 "that was written there; %s",
                 p->code->label, step, name, kept);
    else
        dti_fail(p->base, DT_ERROR_NUMERIC,
                 "program '%s', step %llu: the update of parameter '%s' would make %s a NaN or an "
                 "infinity, at a learning rate of %g and a gradient of norm %g; %s",
                 p->code->label, step, name, what[bad & 3u], p->lr,
                 (double)dti_status_f32(status, DTI_STATUS_NORM), kept);
    return true;
}
