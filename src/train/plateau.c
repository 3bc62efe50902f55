/* A schedule's plateau: the history of a metric, and the factor by which it has lowered the rate.
 * The application reports the metric between two steps. The state is part of checkpoints. Paper:
 * none; PyTorch's ReduceLROnPlateau. */

static const dt_schedule *dti_plateau_of(const dt_optim_desc *resolved) {
    for (int k = 0; k < DT_MAX_PHASES; k++)
        if (resolved->schedule[k].kind == DT_SCHEDULE_PLATEAU)
            return &resolved->schedule[k];
    return NULL;
}

static bool dti_trainer_has_plateau(const dt_trainer *t) {
    return dti_plateau_of(&t->optim) != NULL;
}

static void dti_plateau_reset(dt_trainer *t) {
    const dt_schedule *s = dti_plateau_of(&t->optim);
    t->plateau = (dti_plateau){.best = s && s->maximize ? -INFINITY : INFINITY, .scale = 1.0};
}

/* Where a schedule is at that step: of several trainers that share replicas each counts its own
 * batches. */
static uint64_t dti_plateau_step(const dt_trainer *t, uint64_t step) {
    if (!t->shares)
        return step;
    const uint64_t next = t->epoch * dti_loader_epoch_batches(t->loader) + t->index + 1;
    return next + step - dti_trainer_number(t);
}

/* The value that a step gets instead of its own; 0: nothing. */
static double dti_trainer_lr(const dt_trainer *t, uint64_t step) {
    if (t->lr != 0.0 || (t->plateau.scale == 1.0 && !t->shares))
        return t->lr;
    const double lr = dti_optim_lr_at(&t->optim, 0.0, dti_plateau_step(t, step)) * t->plateau.scale;
    return lr == 0.0 ? (double)DT_ZERO : lr;
}

static double dti_trainer_rate(const dt_trainer *t, const dt_step_desc *step) {
    return dti_worker_of(t) ? 0.0 : dti_optim_lr_at(&t->optim, step->lr, step->step);
}

static bool dti_plateau_better(const dt_schedule *s, double value, double best) {
    const double margin = s->threshold_absolute ? s->threshold : best * s->threshold;
    return s->maximize ? value > (isfinite(best) ? best + margin : best)
                       : value < (isfinite(best) ? best - margin : best);
}

static void dti_plateau_reduce(dti_plateau *p, const dt_schedule *s, double lr) {
    const double old = lr * p->scale, now = DTI_MAX(old * s->gamma, s->lr_min);
    if (old - now > 1e-8) /* as PyTorch's eps */
        p->scale = now / lr;
}

static void dti_plateau_look(dti_plateau *p, const dt_schedule *s, double lr, double value) {
    const bool better = dti_plateau_better(s, value, p->best);
    p->best = better ? value : p->best;
    p->bad = better || p->cooldown ? 0 : p->bad + 1;
    p->cooldown -= p->cooldown > 0;
    if (p->bad <= (uint64_t)s->patience)
        return;
    dti_plateau_reduce(p, s, lr);
    p->bad = 0;
    p->cooldown = (uint64_t)s->cooldown;
}

DTI_PUBLIC(dt_trainer_report_metric, (dt_trainer * t, double value), t, DTI_OF(dt_trainer),
           (t, value)) {
    const dt_schedule *s = dti_plateau_of(&t->optim);
    uint64_t n;
    if (!s)
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            "dt_trainer_report_metric: the optimizer's schedule has no phase DT_SCHEDULE_PLATEAU");
    if (dti_rate_phase(&t->optim, dti_plateau_step(t, dti_trainer_number(t)), &n) == s)
        dti_plateau_look(&t->plateau, s, t->optim.lr, value);
    return DT_OK;
}
