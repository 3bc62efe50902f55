/* The loop over epochs (src/api/fit.h): it owns when a model is validated, what is the best, and
 * why training ends. It computes nothing of its own: steps, evaluation, checkpoints are the
 * trainer's. All that decides is the same on all ranks, but for what a callback asks for, on which
 * they agree after each step.
 *
 * The other files of this folder:
 *
 *   lr_find.c                  the range test of learning rates
 *   metric.c                   metrics on the host
 *   summary.c                  a model as a table
 *   progress.c                 a bar of one line
 *   log_fit.c, profile_fit.c   what a fit tells a log, and a trace */

#define DTI_FIT_SKIPS 8
#define DTI_FIT_ENTRIES 64 /* of a history at first */

typedef struct dti_fit {
    dt_trainer *t;
    const dt_fit_desc *d;
    dt_history *history;
    dt_fit_state s;
    uint64_t began;     /* nanoseconds */
    uint64_t first;     /* steps committed before this call */
    uint64_t failed;    /* checkpoints, before this call */
    uint64_t in_a_row;  /* skipped steps */
    uint64_t empty;     /* steps in a row without a target */
    uint64_t valueless; /* of .not_finite: nothing counted */
    uint64_t seen_step; /* the newest validation's or watched epoch's */
    int watches;        /* number of the value */
    bool asked;         /* to stop, in the middle of a round of local steps; */
    dt_result held;     /* or what a callback failed with there */
    char *best;         /* weights of the first store at their best; NULL: not wanted */
    uint64_t best_bytes;
    bool have_best;
    bool resumed; /* what an interrupted fit watched */
} dti_fit;

/* ---- what is asked for */

static dt_result dti_fit_no_metric(const dt_trainer *t, const char *metric) {
    dti_text names = dti_text_open(t->base);
    for (int i = 0; i < DTI_VALUES; i++) {
        dti_value_room room;
        const char *name = dti_value_name(t, i, &room);
        if (name)
            dti_text_add(&names, i ? ", '%s'" : "'%s'", name);
    }
    dt_result result =
        dti_fail(t->base, DT_ERROR_INVALID, "fit: .watch.metric is '%s'; this trainer has %s",
                 dti_show(metric).text, names.ok ? names.data : "more");
    dti_text_free(&names);
    return result;
}

static dt_result dti_fit_check_watch(const dt_trainer *t, const dt_watch *w) {
    if (dti_value_find(t, w->metric) < 0)
        return dti_fit_no_metric(t, w->metric);
    if (w->patience < 0 || !(w->min_delta >= 0.0) || !dti_finite_f64(w->min_delta))
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "fit: .watch.patience is %d, .watch.min_delta %g; both must be 0 or more",
                        w->patience, w->min_delta);
    if (w->restore_best && t->desc.averaged)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "fit: .watch.restore_best cannot be combined with the trainer's .averaged; "
                        "give .watch.save a file");
    return DT_OK;
}

/* What the first validation would find wrong after an epoch of training. */
static dt_result dti_fit_check_validation(dt_trainer *t, const dt_fit_desc *d) {
    dti_base *base = t->base;
    const dt_logger logger = base->logger;
    base->logger = (dt_logger){0}; /* one line, with the field */
    dt_result result = dti_evaluation_check(t, d->validation, d->validation_batch);
    base->logger = logger;
    return result ? dti_fail(base, result, "fit: .validation: %s", base->error) : DT_OK;
}

static dt_result dti_fit_check(dt_trainer *t, const dt_fit_desc *d) {
    if (!d->epochs && !d->steps)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "fit: neither .epochs nor .steps is set; give one");
    if (d->validation_batch < 0)
        return dti_fail(t->base, DT_ERROR_INVALID, "fit: .validation_batch is %d; 0 or more",
                        d->validation_batch);
    if (!d->validation && (d->validation_batch || d->validation_steps || d->validation_epochs))
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            "fit: .validation_batch, .validation_steps and .validation_epochs need .validation");
    if (d->validation_steps && dti_parallel_is_local(&t->par))
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "fit: .validation_steps cannot be combined with DT_TRAIN_LOCAL: replicas "
                        "have the same weights only at rounds' ends; give .validation_epochs");
    if (d->validation_steps && d->validation_epochs)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "fit: .validation_steps and .validation_epochs are both set; give one");
    if (dti_dataset_endless(&t->desc.data) &&
        (!d->steps || d->epochs || (d->validation && !d->validation_steps)))
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "fit: an epoch of a stream has no end: give .steps, not .epochs, and "
                        ".validation_steps with .validation; or .data.rows, the samples of an "
                        "epoch");
    const dt_result result = dti_fit_check_watch(t, &d->watch);
    return result || !d->validation ? result : dti_fit_check_validation(t, d);
}

/* ---- the best weights */

static dt_result dti_fit_keep(dti_fit *f) {
    dt_store *s = f->t->par.replicas[0].store;
    if (!f->best)
        return DT_OK;
    f->have_best = true;
    dt_result result = dti_full_gather(&f->t->par);
    return result ? result : dti_store_array_read(s, 0, 0, s->layout.elements, f->best);
}

static const char dti_fit_save_how[] =
    "give .watch.save a file in a folder that is there and can be written";

static dt_result dti_fit_save(dti_fit *f) {
    dt_trainer *t = f->t;
    dt_store *s = t->par.replicas[0].store;
    const char *path = f->d->watch.save;
    if (!path)
        return DT_OK;
    const bool apart =
        t->desc.averaged && dti_is_sharded(&t->par); /* they come to the weights' place */
    dt_result result = apart ? dti_owners_show(&t->par) : dti_full_gather(&t->par);
    t->base->io_how = dti_fit_save_how;
    if (t->par.mesh.rank == 0 && !result)
        result = dt_store_save_matching(s, path,
                                        &(dt_save_desc){.averaged = t->desc.averaged && !apart});
    t->base->io_how = NULL;
    const dt_result back = apart ? dti_owners_hide(&t->par) : DT_OK;
    return dti_agree_result(&t->par, result ? result : back);
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

/* Each rank has them, and each replica gets them. */
static dt_result dti_fit_restore(dti_fit *f) {
    dt_result result = DT_OK;
    if (!f->have_best || f->s.best_step == f->s.step)
        return DT_OK;
    result = dti_full_gather(&f->t->par); /* the next step gives stages all of it */
    for (uint32_t i = 0; i < f->t->par.job.local && !result; i++) {
        dt_store *s = f->t->par.replicas[i].store;
        result = dti_store_array_write(s, 0, 0, s->layout.elements, f->best);
        s->written = true;
        dti_store_unbound(s);
        dti_host_copy_stale(s);
    }
    return dti_agree_result(&f->t->par, result);
}

/* ---- callbacks */

static void dti_fit_times(dti_fit *f) {
    dt_fit_state *s = &f->s;
    const uint64_t made = s->step - f->first;
    s->seconds = 1e-9 * (double)(dti_now_ns() - f->began);
    s->seconds_left = -1.0;
    if (made && s->steps >= s->step)
        s->seconds_left = s->seconds / (double)made * (double)(s->steps - s->step);
}

/* What a checkpoint keeps of this, wherever one is written. */
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

/* Whether callbacks may not destroy this object. */
static bool dti_fit_uses(const void *by, const void *object) {
    const dti_fit *f = by;
    bool uses =
        dti_trainer_uses(f->t, object) || (f->d->validation && f->d->validation->user == object);
    for (int i = 0; i < DT_MAX_CALLBACKS && f->d->callbacks[i].call; i++)
        uses = uses || f->d->callbacks[i].user == object;
    return uses;
}

/* Where a call of its own on this context has just failed with that result, it has a text. */
static dt_result dti_fit_call(dti_fit *f, int i) {
    const dt_callback *callback = &f->d->callbacks[i];
    dti_base *base = f->t->base;
    dti_visit visit;
    base->result = DT_OK;
    dti_visit_host(&visit, base, DTI_IN_FIT);
    visit.also = f->t->comm_base;
    visit.uses = dti_fit_uses;
    visit.by = f;
    const dt_result result = callback->call(callback->user, &f->s);
    dti_visit_returned(&visit);
    if (result == base->result || !result)
        return result;
    return dti_fail(base, result, "dt_trainer_fit: callback %d returned %d (%s) at step %llu", i,
                    (int)result, dt_result_text(result), (unsigned long long)f->s.step);
}

static dt_result dti_fit_tell(dti_fit *f, dt_fit_event event) {
    f->s.event = event;
    f->s.checkpoints_failed = f->t->checkpoints_failed - f->failed;
    f->s.checkpoint_error = f->s.checkpoints_failed ? f->t->checkpoint_error : "";
    dti_fit_watched(f);
    dti_fit_times(f);
    for (int i = 0; i < DT_MAX_CALLBACKS && f->d->callbacks[i].call; i++)
        DTI_TRY(dti_fit_call(f, i));
    return DT_OK;
}

/* Ranks have no word for each other in the middle of a round: it waits for the round's end. */
static dt_result dti_fit_hold(dti_fit *f, dt_result own) {
    f->asked = f->asked || f->s.stop == DT_FIT_STOP_CALLBACK;
    f->held = f->held ? f->held : own;
    if (f->s.stop == DT_FIT_STOP_CALLBACK)
        f->s.stop = DT_FIT_STOP_NONE;
    return DT_OK;
}

/* What one rank's callbacks ask for, or fail with, holds for all: the largest of the numbers. */
static dt_result dti_fit_agree(dti_fit *f, dt_result own) {
    dti_parallel *par = &f->t->par;
    if (par->round.done && !par->lost)
        return dti_fit_hold(f, own);
    own = own ? own : f->held;
    if (f->asked)
        f->s.stop = DT_FIT_STOP_CALLBACK;
    f->asked = false;
    int32_t most = own ? 2 : f->s.stop == DT_FIT_STOP_CALLBACK;
    if (par->lost || !par->desc.comm)
        return own;
    dt_result result = dti_ranks_reduce(par, par->desc.comm, &most, 1, DT_I32, DT_COMM_MAX);
    if (!result && most == 1)
        f->s.stop = DT_FIT_STOP_CALLBACK;
    if (!result && most == 2)
        result = dti_agree_result(par, own);
    return own ? own : result;
}

/* ---- validation and what is watched */

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

/* What is not finite is never better. */
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

/* The newest value of what is watched has come; why: of one that is not finite, or "". */
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

/* ---- steps */

static void dti_report_join(const dt_trainer *t, dt_train_report *to, const dt_train_report *r) {
    double terms[4 * DT_MAX_TERMS];
    dti_report_terms(r, terms);
    dti_report_add_terms(to, terms);
    to->step = r->step;
    to->samples += r->samples;
    to->steps += r->steps;
    to->skipped += r->skipped;
    to->empty += r->empty;
    to->seconds += r->seconds;
    to->wait_seconds += r->wait_seconds;
    to->data_seconds += r->data_seconds;
    to->forward_seconds += r->forward_seconds;
    to->backward_seconds += r->backward_seconds;
    to->commit_seconds += r->commit_seconds;
    to->gradient_norm = r->steps ? r->gradient_norm : to->gradient_norm;
    to->lr = r->steps ? r->lr : to->lr;
    to->epoch = r->epoch;
    to->epoch_ended = r->epoch_ended;
    to->round = r->round;
    to->round_ended = r->round_ended;
    dti_report_close(t, to);
}

static bool dti_fit_validates_behind(const dti_fit *f, uint64_t step) {
    const uint64_t every = f->d->validation_steps;
    return every && step && step % every == 0 && step != f->seen_step;
}

/* How many steps may be under way behind the next one: none where something is due behind it.
 * Callbacks see each step before the next one begins, but where .in_flight = 2 asks for more. */
static uint32_t dti_fit_ahead(const dti_fit *f) {
    const uint64_t next = dti_trainer_number(f->t);
    const bool due = dti_fit_validates_behind(f, next) || (f->s.steps && next >= f->s.steps);
    const int asked = f->t->par.desc.in_flight;
    return !due && (f->d->callbacks[0].call ? asked == 2 : asked != 1);
}

/* A NaN skips a step, as in dt_trainer_epoch; too many in a row are an end. */
static dt_result dti_fit_skipped(dti_fit *f, dt_result result) {
    const uint64_t most = f->d->max_skips ? f->d->max_skips : DTI_FIT_SKIPS;
    if (result != DT_ERROR_NUMERIC)
        return result;
    f->s.skipped++;
    if (++f->in_a_row < most)
        return DT_OK;
    return dti_fail(f->t->base, result,
                    "fit: %llu steps in a row were skipped (.max_skips is %llu); lower the rate, "
                    "or look at the data: %s",
                    (unsigned long long)f->in_a_row, (unsigned long long)most, f->t->base->error);
}

/* Without .epochs only steps end a fit, and .skip_empty may leave out all of them. */
static dt_result dti_fit_empty(dti_fit *f, const dt_train_report *r) {
    const dt_trainer *t = f->t;
    if (r->steps)
        f->empty = r->empty == r->steps ? f->empty + r->steps : 0;
    if (f->d->epochs || !t->desc.skip_empty || dti_parallel_is_local(&t->par) ||
        f->empty <= f->s.epoch_steps)
        return DT_OK;
    return dti_fail(
        t->base, DT_ERROR_INVALID,
        "fit: .skip_empty left out every step of an epoch, since no target counts, so .steps = "
        "%llu is never reached; check the targets, or give .epochs",
        (unsigned long long)f->d->steps);
}

/* What other ranks do not hear of before the end of a round of local steps, where they would wait
 * for this one. */
static dt_result dti_fit_alone(dti_fit *f, dt_result result) {
    dti_parallel *par = &f->t->par;
    if (!result || !dti_parallel_is_local(par) || !par->desc.comm || par->lost)
        return result;
    if (par->round.done)
        dti_trainer_move_to(f->t, &f->t->round_begun);
    return dti_round_give_up(par, result);
}

/* Makes one step, or begins one and ends an older; *r is what ended. */
static dt_result dti_fit_step(dti_fit *f, dt_train_report *r) {
    dt_trainer *t = f->t;
    bool used;
    const dt_result before = dti_report_open(t, r);
    dt_result result = dti_trainer_step(t, dti_fit_ahead(f), r, &used);
    dti_report_close(t, r);
    result = dti_trainer_told(t, before, result);
    f->s.step = r->step;
    f->s.epoch = t->epoch;
    if (!result && r->steps)
        f->in_a_row = 0;
    if (result && !used)
        return dti_fit_alone(f, result);
    if (result && !dti_parallel_is_local(&t->par)) /* sums of what was skipped are no numbers */
        *r = (dt_train_report){.step = r->step, .epoch = r->epoch, .epoch_ended = r->epoch_ended};
    return dti_fit_skipped(f, result);
}

/* At an epoch's end, where a callback stops, and what .checkpoint.every_steps or somebody asked
 * for. A checkpoint that cannot be written costs nothing but itself. */
static dt_result dti_fit_checkpoint(dti_fit *f, bool epoch_ended) {
    dt_trainer *t = f->t;
    dti_fit_watched(f);
    if (epoch_ended)
        t->watched.train = (dt_train_report){.epoch = f->s.epoch};
    dt_result result = dti_trainer_between(t, epoch_ended);
    const bool due = epoch_ended || f->s.stop == DT_FIT_STOP_CALLBACK;
    if (!result && due && t->desc.checkpoint.folder && t->saved != f->s.step && !t->par.lost)
        result = dt_trainer_checkpoint(t);
    return dti_checkpoint_is_lost(t, result) ? DT_OK : result;
}

/* What comes behind the last step of an epoch. */
static dt_result dti_fit_epoch(dti_fit *f) {
    const uint64_t every = f->d->validation_epochs ? f->d->validation_epochs : 1;
    dt_result result = DT_OK;
    const bool due = f->d->validation && !f->d->validation_steps && f->s.epoch % every == 0;
    f->s.validation_follows = due;
    if (!f->d->validation)
        result = dti_fit_look(f, &f->s.train, "");
    if (!result)
        result = dti_fit_agree(f, dti_fit_tell(f, DT_FIT_EPOCH));
    f->s.validation_follows = false;
    return result || !due ? result : dti_fit_validate(f);
}

static dt_result dti_fit_between(dti_fit *f, const dt_train_report *r) {
    dt_result result = DT_OK;
    if (dti_fit_validates_behind(f, f->s.step))
        result = dti_fit_validate(f);
    if (!result && r->epoch_ended)
        result = dti_fit_epoch(f);
    if (!result)
        result = dti_fit_checkpoint(f, r->epoch_ended);
    if (r->epoch_ended)
        f->s.train = (dt_train_report){.epoch = f->s.epoch};
    return result;
}

static dt_result dti_fit_once(dti_fit *f) {
    dt_train_report r;
    const uint64_t skipped = f->s.skipped;
    dt_result result = dti_fit_step(f, &r);
    if (result || (f->t->par.under_way && !r.steps && f->s.skipped == skipped))
        return result; /* a step has begun, and none has ended */
    f->s.last = r;
    DTI_TRY(dti_fit_empty(f, &r));
    if (dti_parallel_is_local(&f->t->par) && !r.round_ended) {
        dti_report_part(f->t, &f->s.last); /* this process's own */
        dti_report_close(f->t, &f->s.last);
    }
    dti_report_join(f->t, &f->s.train, &r);
    result = dti_fit_agree(f, dti_fit_tell(f, DT_FIT_STEP));
    return result ? result : dti_fit_between(f, &r);
}

static void dti_fit_whether_done(dti_fit *f) {
    const bool epochs = f->d->epochs && f->t->epoch >= f->d->epochs;
    const bool steps = f->d->steps && dti_trainer_number(f->t) > f->d->steps &&
                       !f->t->par.round.done; /* ranks agree at rounds' ends */
    if (f->s.stop == DT_FIT_STOP_NONE && (epochs || steps))
        f->s.stop = DT_FIT_STOP_DONE;
}

/* What was due behind the last step of an interrupted fit, and did not come any more. */
static dt_result dti_fit_overdue(dti_fit *f) {
    const bool ended = f->s.train.steps && f->s.train.epoch < f->s.epoch;
    dt_result result = DT_OK;
    if (!f->resumed || f->s.stop != DT_FIT_STOP_NONE)
        return DT_OK;
    if (dti_fit_validates_behind(f, f->s.step))
        result = dti_fit_validate(f);
    if (!result && ended && f->seen_step != f->s.step)
        result = dti_fit_epoch(f);
    if (ended)
        f->s.train = (dt_train_report){.epoch = f->s.epoch};
    return result;
}

static dt_result dti_fit_loop(dti_fit *f) {
    dt_result result = dti_fit_agree(f, dti_fit_tell(f, DT_FIT_BEGIN));
    if (!result)
        result = dti_fit_overdue(f);
    dti_fit_whether_done(f);
    if (!result && f->s.stop && f->s.stop != DT_FIT_STOP_CALLBACK && f->s.event == DT_FIT_BEGIN)
        dti_log(f->t->base, DT_LOG_INFO,
                "dt_trainer_fit: %llu of %llu steps are already made%s; nothing to do",
                (unsigned long long)f->s.step, (unsigned long long)f->s.steps,
                f->s.stop == DT_FIT_STOP_EARLY ? ", and .watch.patience is over" : "");
    while (!result && f->s.stop == DT_FIT_STOP_NONE) {
        result = dti_fit_once(f);
        dti_fit_whether_done(f);
    }
    return result;
}

/* ---- begin and end */

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
    f->have_best = f->best && w->have;
    f->resumed = true;
    f->s.train = w->train;
    dti_report_close(f->t, &f->s.train);
    const dt_step_desc newest = {.step = f->s.train.step,
                                 .lr = dti_trainer_lr(f->t, f->s.train.step)};
    f->s.train.lr = f->s.train.steps ? dti_trainer_rate(f->t, &newest) : 0.0;
    if (asked->patience && f->s.validations_since_best >= (uint64_t)asked->patience)
        f->s.stop = DT_FIT_STOP_EARLY;
}

static dt_result dti_fit_resume(dti_fit *f) {
    dt_trainer *t = f->t;
    bool found = false;
    if (t->desc.checkpoint.folder && !f->d->no_resume && !t->par.replicas[0].store->steps)
        DTI_TRY(dt_trainer_resume(t, &found));
    dti_fit_take_watched(f);
    if ((found || f->resumed) && (f->d->watch.patience || f->d->watch.restore_best) &&
        (!f->s.best_step || (f->best && !f->have_best)))
        dti_log(t->base, DT_LOG_INFO, "fit: goes on after step %llu; no %s, so %s",
                (unsigned long long)t->par.replicas[0].store->steps,
                f->s.best_step
                    ? "weights of the best value were read (the checkpoint has none, or was "
                      "read by dt_trainer_resume or _load, which have no room for them)"
                    : "best value of .watch was read",
                f->s.best_step ? "they are restored only if a better one comes"
                               : ".watch starts again");
    return DT_OK;
}

/* What it takes before anything changes: the best weights, the first entries of the history. */
static dt_result dti_fit_room(dti_fit *f) {
    const dt_store *s = f->t->par.replicas[0].store;
    bool room = true;
    if (f->d->watch.restore_best) {
        f->best_bytes = dti_arena_bytes(s->layout.elements);
        f->best = dti_alloc(f->t->base, (size_t)f->best_bytes);
        room = f->best != NULL;
    }
    if (room && f->history)
        room = DTI_RESERVE(f->t->base, f->history->entries, f->history->capacity, DTI_FIT_ENTRIES);
    return room ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_fit_open(dti_fit *f) {
    dt_trainer *t = f->t;
    const dt_store *s = t->par.replicas[0].store;
    dt_result result = dti_agree_result(&t->par, dti_fit_room(f));
    t->watched.weights = f->best;
    t->watched.bytes = f->best_bytes;
    if (!result)
        result = dti_fit_resume(f);
    if (result)
        return result;
    f->failed = t->checkpoints_failed;
    f->s.trainer = t;
    f->s.epoch_steps = dti_loader_epoch_batches(t->loader);
    f->s.epochs = f->d->epochs;
    f->s.steps = f->d->steps ? f->d->steps : UINT64_MAX;
    if (f->d->epochs && f->d->epochs <= f->s.steps / f->s.epoch_steps)
        f->s.steps = f->d->epochs * f->s.epoch_steps;
    f->s.step = f->first = s->steps;
    f->s.epoch = t->epoch;
    if (!f->s.train.steps)
        f->s.train.epoch = t->epoch;
    f->began = dti_now_ns();
    if (f->s.step >= f->s.steps || f->s.stop)
        return DT_OK;
    result = dti_trainer_folder(t);
    return result ? result : dti_agree_result(&t->par, dti_fit_probe(f));
}

static void dti_fit_history_end(const dti_fit *f) {
    dt_history *h = f->history;
    if (!h)
        return;
    h->stop = f->s.stop;
    h->best = f->s.best;
    h->best_step = f->s.best_step;
    h->not_finite = f->s.not_finite;
    h->skipped = f->s.skipped;
    h->epochs = f->s.epoch;
    h->steps = f->s.step;
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        dti_value_room room;
        const char *name = dti_value_name(f->t, i + 1, &room);
        snprintf(h->names[i], sizeof h->names[i], "%s", name ? name : "");
    }
    h->checkpoints_failed = f->s.checkpoints_failed;
    snprintf(h->checkpoint_error, sizeof h->checkpoint_error, "%s", f->s.checkpoint_error);
}

/* Every value of what is watched was a NaN or infinity: success, and the text says so. */
static void dti_fit_best_none(const dti_fit *f) {
    dti_base *base = f->t->base;
    if (f->s.best_step || !f->s.not_finite)
        return;
    snprintf(base->error, sizeof base->error,
             "fit: %s %s in %llu values, so there is no best step%s", dti_fit_watches(f).text,
             f->valueless == f->s.not_finite ? "never had a target or a step that counts"
                                             : "was never finite",
             (unsigned long long)f->s.not_finite, f->best ? ", and no weights to restore" : "");
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

/* The callbacks see the end, whatever it is; a text of an error stays. */
static dt_result dti_fit_end(dti_fit *f, dt_result result) {
    dti_error_text error = dti_error_of(&f->t->par);
    dti_trainer_drain(f->t);
    if (!result && f->t->pending_result) {
        dt_train_report r;
        memcpy(f->t->base->error, f->t->said, sizeof f->t->said);
        result = dti_fit_skipped(f, dti_report_open(f->t, &r));
        error = dti_error_of(&f->t->par);
    }
    const dt_result written = dti_checkpoint_settle(f->t);
    if (written && !result)
        error = dti_error_of(&f->t->par);
    result = result ? result : written;
    f->s.step = f->t->par.replicas[0].store->steps;
    f->s.epoch = f->t->epoch;
    const dt_result put = dti_fit_put_back(f, result);
    if (put && !result)
        error = dti_error_of(&f->t->par);
    result = put;
    f->s.stop = result ? DT_FIT_STOP_FAILED : f->s.stop;
    const dt_result told = dti_fit_tell(f, DT_FIT_END);
    dti_fit_history_end(f);
    if (result)
        dti_error_back(&f->t->par, &error);
    else if (!told)
        dti_fit_best_none(f);
    return result ? result : dti_fit_agree(f, told);
}

DTI_PUBLIC(dt_trainer_fit, (dt_trainer * t, const dt_fit_desc *desc, dt_history *history), t,
           DTI_OF(dt_trainer) | DTI_LACKING | DTI_WITH | DTI_UNUSED, (t, desc, history)) {
    if (history)
        *history = (dt_history){.ctx = t ? t->graph->ctx : NULL, .stop = DT_FIT_STOP_FAILED};
    DTI_NEED(NULL, t);
    DTI_NEED(t->base, desc);
    DTI_TRY(dti_trainer_goes_on(t));
    dti_trainer_drain(t);
    dti_fit f = {.t = t, .d = desc, .history = history};
    dt_result result = dti_agree_result(&t->par, dti_fit_check(t, desc));
    f.watches = dti_value_find(t, desc->watch.metric);
    if (!result)
        result = dti_fit_open(&f);
    if (!result) {
        result = dti_fit_loop(&f);
        result = dti_fit_end(&f, result);
    }
    if (result && history)
        history->stop = DT_FIT_STOP_FAILED; /* also where a callback fails at the end */
    t->watched.weights = NULL;
    dti_free(t->base, f.best);
    return result;
}

DT_API void dt_history_destroy(dt_history *history) {
    if (history && dti_free_public(history->ctx, history->entries, __func__))
        *history = (dt_history){0};
}
