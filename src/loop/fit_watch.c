/* The watched value of a fit: whether it is the best, and the weights of that time. */

/* ---- the best weights */

static dt_result dti_fit_keep(dti_fit *f) {
    if (!f->best.values)
        return DT_OK;
    f->have_best = true;
    return dti_values_snapshot_take(&f->t->par, &f->best);
}

static const char dti_fit_save_how[] =
    "give .watch.save a file in a folder that is there and can be written";

static dt_result dti_fit_save(dti_fit *f) {
    dt_trainer *t = f->t;
    if (!f->d->watch.save)
        return DT_OK;
    t->base->io_how = dti_fit_save_how;
    const dt_result result = dti_weights_save(t, f->d->watch.save, t->desc.averaged);
    t->base->io_how = NULL;
    return result;
}

/* Whether .watch.save can be written, before the steps whose best weights it is for. */
static dt_result dti_fit_probe(const dti_fit *f) {
    dti_base *base = f->t->base;
    dti_writer *w;
    if (!f->d->watch.save || f->t->par.mesh.rank)
        return DT_OK;
    base->io_how = dti_fit_save_how;
    const dt_result result = dti_writer_open(base, f->d->watch.save, 0, &w);
    base->io_how = NULL;
    return result ? result : dti_writer_close(w, false);
}

static dt_result dti_fit_restore(dti_fit *f) {
    return !f->have_best || f->s.best_step == f->s.step
               ? DT_OK
               : dti_values_snapshot_restore(&f->t->par, &f->best);
}

/* ---- validation and the watched value */

/* Nothing does: no step of the epoch was made, or all targets are ignored. */
static bool dti_fit_weighs(const dt_train_report *r, int value) {
    const int term = value - DTI_VALUE_TERM;
    bool weighs = false;
    for (int i = 0; i < DT_MAX_TERMS; i++)
        weighs = weighs || ((!value || term == i) && r->loss_weight[i] != 0.0) ||
                 (value == i + 1 && r->metric_weight[i] != 0.0);
    return weighs;
}

static double dti_fit_value(const dt_train_report *r, int value) {
    return dti_fit_weighs(r, value) ? dti_value_of(r, value) : (double)NAN;
}

typedef struct dti_fit_name {
    char text[320];
} dti_fit_name;

static dti_fit_name dti_fit_watches(const dti_fit *f) {
    dti_value_room room;
    dti_fit_name name;
    snprintf(name.text, sizeof name.text, "the %s%s", f->d->validation ? "validation " : "",
             dti_value_name(f->t, f->watches, &room));
    return name;
}

/* A validation makes no step, and has samples. */
static const char *dti_fit_lack(const dti_fit *f, const dt_train_report *r) {
    if (dti_fit_weighs(r, f->watches))
        return isnan(f->s.value) ? "is NaN" : f->s.value > 0.0 ? "is infinite" : "is -infinite";
    return f->d->validation || r->steps ? "has no target that counts" : "has no completed step";
}

/* why: an error's text, or "". */
static void dti_fit_not_finite(dti_fit *f, const dt_train_report *r, const char *why) {
    f->s.not_finite++;
    f->valueless += !dti_fit_weighs(r, f->watches);
    dti_log(f->t->base, DT_LOG_WARNING,
            "fit: after epoch %llu (step %llu) %s %s, which does not count as better%s%s",
            (unsigned long long)f->s.epoch, (unsigned long long)f->s.step, dti_fit_watches(f).text,
            dti_fit_lack(f, r), why[0] ? ": " : "", why);
}

/* A value that is not finite is never better. */
static bool dti_fit_is_better(const dti_fit *f, double value) {
    const dt_watch *w = &f->d->watch;
    if (!dti_finite_f64(value))
        return false;
    if (!f->s.best_step)
        return true;
    return w->maximize ? value - f->s.best > w->min_delta : f->s.best - value > w->min_delta;
}

static dt_result dti_fit_remember(dti_fit *f) {
    dt_history *h = f->history;
    const dt_fit_state *s = &f->s;
    if (!h)
        return DT_OK;
    DTI_HAVE(DTI_RESERVE(f->t->base, h->entries, h->capacity, h->count + 1));
    dt_history_entry *e = &h->entries[h->count++];
    *e = (dt_history_entry){.epoch = s->epoch,
                            .step = s->step,
                            .seconds = s->seconds,
                            .lr = s->train.lr,
                            .loss = s->train.loss,
                            .validation_loss = s->validation.loss,
                            .better = s->better};
    memcpy(e->metric, s->train.metric, sizeof e->metric);
    memcpy(e->validation_metric, s->validation.metric, sizeof e->validation_metric);
    return DT_OK;
}

/* The newest value of the watched metric has come. why: why it is not finite, or "". */
static dt_result dti_fit_look(dti_fit *f, const dt_train_report *r, const char *why) {
    const dt_watch *w = &f->d->watch;
    dt_result result = DT_OK;
    f->seen_step = f->s.step;
    f->s.value = dti_fit_value(r, f->watches);
    f->s.better = dti_fit_is_better(f, f->s.value);
    f->s.validations_since_best = f->s.better ? 0 : f->s.validations_since_best + 1;
    const bool finite = dti_finite_f64(f->s.value);
    if (!finite)
        dti_fit_not_finite(f, r, why);
    if (dti_trainer_has_plateau(f->t))
        result = dt_trainer_report_metric(f->t, finite ? f->s.value : (double)NAN);
    if (f->s.better && !result) {
        f->s.best = f->s.value;
        f->s.best_step = f->s.step;
        result = dti_agree_result(&f->t->par, dti_fit_keep(f));
        if (!result)
            result = dti_fit_save(f);
    }
    if (w->patience && f->s.validations_since_best >= (uint64_t)w->patience &&
        f->s.stop == DT_FIT_STOP_NONE)
        f->s.stop = DT_FIT_STOP_EARLY;
    dti_fit_times(f);
    return result ? result : dti_agree_result(&f->t->par, dti_fit_remember(f));
}

/* A loss that is not finite ends no fit: it is a value that is not better. */
static dt_result dti_fit_validate(dti_fit *f) {
    char why[sizeof f->t->base->error] = "";
    dt_result result =
        dt_trainer_evaluate(f->t, f->d->validation, f->d->validation_batch, &f->s.validation);
    if (result == DT_ERROR_NUMERIC)
        memcpy(why, f->t->base->error, sizeof why);
    else if (result)
        return result;
    f->s.validations++;
    result = dti_fit_look(f, &f->s.validation, why);
    return result ? result : dti_fit_agree(f, dti_fit_tell(f, DT_FIT_VALIDATED));
}

/* ---- in checkpoints, and at the end */

/* The part of this in a checkpoint, wherever one is written. */
static void dti_fit_watched(dti_fit *f) {
    dti_watched *w = &f->t->watched;
    w->of = dti_watched_of(f->watches, f->d->watch.maximize);
    w->best = f->s.best;
    w->best_step = f->s.best_step;
    w->waited = f->s.validations_since_best;
    w->seen_step = f->seen_step;
    w->train = f->s.train;
    w->have = f->have_best;
    w->loaded = false;
}

/* Whatever an interrupted fit had watched: this one goes on as if it were that one. */
static void dti_fit_take_watched(dti_fit *f) {
    const dti_watched *w = &f->t->watched;
    const dt_watch *asked = &f->d->watch;
    if (!w->loaded || f->d->no_resume || w->of != dti_watched_of(f->watches, asked->maximize))
        return;
    f->s.best = w->best;
    f->s.best_step = w->best_step;
    f->s.validations_since_best = w->waited;
    f->seen_step = w->seen_step;
    f->have_best = f->best.values && w->have;
    f->resumed = true;
    f->s.train = w->train;
    dti_report_close(f->t, &f->s.train);
    const dt_step_desc newest = {.step = f->s.train.step,
                                 .lr = dti_trainer_lr(f->t, f->s.train.step)};
    f->s.train.lr = f->s.train.steps ? dti_trainer_rate(f->t, &newest) : 0.0;
    if (asked->patience && f->s.validations_since_best >= (uint64_t)asked->patience)
        f->s.stop = DT_FIT_STOP_EARLY;
}

/* Every value of the watched metric was a NaN or infinity: success, and the text reports it. */
static void dti_fit_best_none(const dti_fit *f) {
    dti_base *base = f->t->base;
    if (f->s.best_step || !f->s.not_finite)
        return;
    snprintf(base->error, sizeof base->error,
             "fit: %s %s in %llu values, so there is no best step%s", dti_fit_watches(f).text,
             f->valueless == f->s.not_finite ? "never had a target or a step that counts"
                                             : "was never finite",
             (unsigned long long)f->s.not_finite,
             f->best.values ? ", and no weights to restore" : "");
    dti_log(base, DT_LOG_WARNING, "%s", base->error);
}

/* Also where too many steps in a row were not finite: all ranks know it. The text stays. */
static dt_result dti_fit_put_back(dti_fit *f, dt_result result) {
    const bool diverged = result == DT_ERROR_NUMERIC && !f->t->par.lost;
    const dt_result put = !result || diverged ? dti_fit_restore(f) : DT_OK;
    if (put && result)
        dti_log(f->t->base, DT_LOG_WARNING, "fit: the best weights are not restored: %s",
                f->t->base->error);
    return result ? result : put;
}
