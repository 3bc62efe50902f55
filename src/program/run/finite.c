/* Keeps an update from writing a value that is not finite. It owns the bound. The largest weight
 * and moment give the largest gradient norm with which nothing can overflow. The commit compares
 * the norm with it (DTI_STEP_PROVEN). Up to that norm an update costs nothing more. Above it, or
 * where the store's values are not known, a dry pass computes the update first. Every update
 * reports how large weights are, or the bound would grow from step to step (for rows that are left
 * unread, the update after a dry pass does). The dry pass reports how large moments are; from there
 * norms bound them. */

static float dti_status_f32(const uint32_t *status, uint32_t word) {
    return dti_f32_from_bits(status[word]);
}

static void dti_store_unbound(dt_store *s) {
    dti_host_copy_stale(s);
    for (uint32_t i = 0; i < s->layout.param_count; i++)
        s->kept[i].bounded = 0;
}

/* How much larger a weight (0) or moment is at most, as it is stored. */
static double dti_store_slack(const dt_store *s, int value) {
    const bool half = value ? s->layout.state == DT_STATE_BF16 : s->layout.dtype != DT_F32;
    return half ? DTI_STORED_SLACK : 1.0;
}

/* Whether no update by a gradient of this norm overflows, in any group; see the row's bound. The
 * update is that of the step in slot `t`. */
static bool dti_reach_step(const dt_program *p, const dti_step_slot *t, double norm,
                           double x[DTI_OPTIM_VALUES]) {
    dt_optim_desc room;
    const dt_optim_desc *d = dti_optim_at(&p->code->optim, t->step, &room);
    const dti_optim_row *row = dti_optim_row_of(d->kind);
    double before[DTI_OPTIM_VALUES], now[DTI_OPTIM_VALUES];
    memcpy(before, x, sizeof before);
    bool fits = true;
    if (d->clip_norm > 0.0)
        norm = DTI_MIN(norm, d->clip_norm);
    /* the sum of squares is rounded, and those below 1e-38 are lost in it */
    double g = 2.0 * norm + 1e-18;
    if (d->clip_value > 0.0)
        g = DTI_MIN(g, d->clip_value);
    for (uint32_t i = 0; i < DT_MAX_GROUPS; i++) {
        const dti_optim_rates rates = dti_code_rates(p->code, d, t->lr, i);
        if (i && !d->groups[i - 1].params)
            continue;
        memcpy(now, before, sizeof now);
        fits = row->bound(&rates, now, g) && fits;
        for (int k = 0; k < DTI_OPTIM_VALUES; k++)
            x[k] = DTI_MAX(x[k], now[k] * dti_store_slack(p->store, k));
    }
    return fits;
}

/* While steps with unknown results are under way, values may be as large as those steps can make
 * them. They stay within bounds that leave room for another step, because no proof begins above the
 * norm `ahead`. */
static double dti_step_proven(dt_program *p) {
    static const double norms[] = {3e38, 1e18, 1e12, 1e6, 1.0, 1e-6};
    const double ahead = 1e12;
    double start[DTI_OPTIM_VALUES];
    memcpy(start, p->store->largest, sizeof start);
    for (uint32_t i = 0; i < p->store->layout.param_count; i++) {
        if (p->code->trained[i] && p->store->kept[i].bounded <= dti_optim_moments(&p->code->optim))
            return -1.0;
    }
    for (uint32_t i = p->ended; i < p->started; i++) {
        const dti_step_slot *t = dti_step_slot_ahead(p, i);
        if (!t->commits)
            continue;
        if (t->proven < 0.0f || !dti_reach_step(p, t, (double)t->proven, start))
            return -1.0;
    }
    for (size_t i = 0; i < DTI_COUNT(norms); i++) {
        double x[DTI_OPTIM_VALUES];
        memcpy(x, start, sizeof x);
        if (dti_reach_step(p, p->now, norms[i], x) &&
            (p->step_slot_count == 1 || norms[i] <= ahead))
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
static void dti_store_bound(dt_program *p, const double x[DTI_OPTIM_VALUES]) {
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
    double x[DTI_OPTIM_VALUES];
    memcpy(x, s->largest, sizeof x);
    const bool proven = norm <= p->now->proven;
    for (uint32_t i = p->ended; i < p->started && !proven; i++)
        dti_step_slot_ahead(p, i)->proven = -1.0f; /* the device looks at these too */
    for (uint32_t i = 0; i < DTI_OPTIM_VALUES && finite; i++) {
        finite = status[DTI_STATUS_LARGEST(i)] < 0x7f800000u;
        if (finite && !proven && i)
            x[i] =
                (double)dti_status_f32(status, DTI_STATUS_LARGEST(i)) * dti_store_slack(s, (int)i);
    }
    if (finite && proven)
        dti_reach_step(p, p->now, (double)norm, x);
    for (uint32_t i = 0; i < s->layout.param_count && !finite; i++)
        s->kept[i].bounded = p->code->trained[i] ? 0 : s->kept[i].bounded;
    if (!finite)
        return;
    /* skipped rows report nothing: they are as large as they were */
    const double rest = proven && dti_code_is_sparse(p->code) ? s->largest[0] : 0.0;
    x[0] = DTI_MAX(rest,
                   (double)dti_status_f32(status, DTI_STATUS_LARGEST(0)) * dti_store_slack(s, 0));
    dti_store_bound(p, x);
}

/* ---- the fault */

/* Reports the parameter; false: no parameter. */
static bool dti_update_fault(dt_program *p, dt_report *r, const char *kept) {
    static const char *const whose[] = {[DTI_BAD_MOMENT] = "its first moment",
                                        "its second moment",
                                        "its third moment",
                                        "its fourth moment",
                                        "its fifth moment",
                                        [DTI_BAD_WEIGHT] = "its value"};
    _Static_assert(DTI_BAD_MOMENT + DTI_MOMENTS_MAX <= DTI_BAD_WEIGHT, "a code of each moment");
    const dt_store *s = p->store;
    const uint32_t *status = dti_program_out(p);
    const uint32_t bad = status[DTI_STATUS_BAD], index = bad >> 3, what = bad & 7u;
    if (!p->now->commits || !status[DTI_STATUS_ABORT] || bad == DTI_BAD_NONE ||
        index >= s->layout.param_count || what > DTI_BAD_WEIGHT)
        return false;
    const char *name = s->graph->nodes[s->layout.params[index].node].label;
    const unsigned long long step = (unsigned long long)p->now->step;
    r->fault_op = "optimizer";
    if (what == DTI_BAD_BEFORE)
        dti_fail(p->base, DT_ERROR_NUMERIC,
                 "program '%s', step %llu: parameter '%s' or its moments were written with a NaN "
                 "or an infinity; %s",
                 p->code->label, step, name, kept);
    else
        dti_fail(p->base, DT_ERROR_NUMERIC,
                 "program '%s', step %llu: the update of parameter '%s' would make %s a NaN or an "
                 "infinity (learning rate %g, gradient norm %g); %s",
                 p->code->label, step, name, whose[what], p->now->lr,
                 (double)dti_status_f32(status, DTI_STATUS_NORM), kept);
    return true;
}
