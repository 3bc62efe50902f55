/* A fit: steps, callbacks, its beginning and end. */

#define DTI_FIT_SKIPS 8
#define DTI_FIT_ENTRIES 64 /* of a history at first */

/* ---- callbacks */

static void dti_fit_times(dti_fit *f) {
    dt_fit_state *s = &f->s;
    const uint64_t made = s->step - f->first;
    s->seconds = 1e-9 * (double)(dti_now_ns() - f->began);
    s->seconds_left = -1.0;
    if (made && s->steps >= s->step)
        s->seconds_left = s->seconds / (double)made * (double)(s->steps - s->step);
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

/* A request or failure of one rank's callbacks holds for all: the largest of the numbers. */
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

/* How many steps may be in flight after the next one: 0 if something is due after it. Callbacks see
 * each step before the next one begins, unless .in_flight = 2. */
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
                    "fit: %llu steps in a row were skipped (.max_skips is %llu); lower the "
                    "learning rate, or check the data: %s",
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
    return dti_fail(t->base, DT_ERROR_INVALID,
                    "fit: .skip_empty skipped every step of an epoch, as all targets are ignored, "
                    "so .steps = %llu is never reached; check the targets, or give .epochs",
                    (unsigned long long)f->d->steps);
}

/* What other ranks learn only at the end of a round of local steps. Before that they would wait for
 * this rank. */
static dt_result dti_fit_alone(dti_fit *f, dt_result result) {
    dti_parallel *par = &f->t->par;
    if (!result || !dti_parallel_is_local(par) || !par->desc.comm || par->lost)
        return result;
    if (par->round.done)
        dti_trainer_move_to(f->t, &f->t->round_begun);
    return dti_round_give_up(par, result);
}

/* Makes one step, or begins one and ends an older one; *r is the ended step. */
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
    if (result && !dti_parallel_is_local(&t->par)) /* a skipped sum is not a number */
        *r = (dt_train_report){.step = r->step, .epoch = r->epoch, .epoch_ended = r->epoch_ended};
    return dti_fit_skipped(f, result);
}

/* Writes checkpoints: at an epoch's end, at the fit's end, by .checkpoint.every_steps, or on
 * request. A failed checkpoint stops nothing. */
static dt_result dti_fit_checkpoint(dti_fit *f, bool epoch_ended) {
    dt_trainer *t = f->t;
    dti_fit_watched(f);
    if (epoch_ended)
        t->watched.train = (dt_train_report){.epoch = f->s.epoch};
    dt_result result = dti_trainer_between(t, epoch_ended);
    const bool due = epoch_ended || f->s.stop != DT_FIT_STOP_NONE;
    if (!result && due && t->desc.checkpoint.folder && t->saved != f->s.step && !t->par.lost)
        result = dt_trainer_checkpoint(t);
    return dti_checkpoint_is_lost(t, result) ? DT_OK : result;
}

/* What follows the last step of an epoch. */
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

static void dti_fit_whether_done(dti_fit *f) {
    const bool epochs = f->d->epochs && f->t->epoch >= f->d->epochs;
    const bool steps = f->d->steps && dti_trainer_number(f->t) > f->d->steps &&
                       !f->t->par.round.done; /* ranks agree at rounds' ends */
    if (f->s.stop == DT_FIT_STOP_NONE && (epochs || steps))
        f->s.stop = DT_FIT_STOP_DONE;
}

static dt_result dti_fit_between(dti_fit *f, const dt_train_report *r) {
    dt_result result = DT_OK;
    if (dti_fit_validates_behind(f, f->s.step))
        result = dti_fit_validate(f);
    if (!result && r->epoch_ended)
        result = dti_fit_epoch(f);
    dti_fit_whether_done(f);
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

/* Does the work that was due after the last step of an interrupted fit. */
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
        dti_log(
            f->t->base, DT_LOG_INFO,
            "dt_trainer_fit: %llu of %llu steps are done already%s; nothing to do. Raise .epochs "
            "or .steps, or start with another .checkpoint.folder",
            (unsigned long long)f->s.step, (unsigned long long)f->s.steps,
            f->s.stop == DT_FIT_STOP_EARLY ? ", and .watch.patience is over" : "");
    while (!result && f->s.stop == DT_FIT_STOP_NONE)
        result = dti_fit_once(f);
    return result;
}

/* ---- begin and end */

static dt_result dti_fit_resume(dti_fit *f) {
    dt_trainer *t = f->t;
    bool found = false;
    if (t->desc.checkpoint.folder && !f->d->no_resume && !t->par.replicas[0].store->steps)
        DTI_TRY(dt_trainer_resume(t, &found));
    dti_fit_take_watched(f);
    if ((found || f->resumed) && (f->d->watch.patience || f->d->watch.restore_best) &&
        (!f->s.best_step || (f->best.values && !f->have_best)))
        dti_log(t->base, DT_LOG_INFO, "fit: goes on after step %llu; no %s, so %s",
                (unsigned long long)t->par.replicas[0].store->steps,
                f->s.best_step ? "weights of the best value were read (the checkpoint lacks them, "
                                 "or dt_trainer_resume or _load read it, which ignore them)"
                               : "best value of .watch was read",
                f->s.best_step ? "they are restored only if a better value follows"
                               : ".watch starts from the beginning");
    return DT_OK;
}

/* Allocates before anything changes: the best weights, the first entries of the history. */
static dt_result dti_fit_room(dti_fit *f) {
    bool room = true;
    if (f->d->watch.restore_best)
        room = !dti_values_snapshot_make(&f->t->par, &f->best);
    if (room && f->history)
        room = DTI_RESERVE(f->t->base, f->history->entries, f->history->capacity, DTI_FIT_ENTRIES);
    return room ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_fit_open(dti_fit *f) {
    dt_trainer *t = f->t;
    const dt_store *s = t->par.replicas[0].store;
    dt_result result = dti_agree_result(&t->par, dti_fit_room(f));
    t->watched.weights = f->best.values ? &f->best : NULL;
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
    if (!result)
        result = dti_trainer_lock(t);
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
    dt_result result = dti_fit_check(t, desc);
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
    dti_values_snapshot_free(&t->par, &f.best);
    return result;
}

DT_API void dt_history_destroy(dt_history *history) {
    if (history && dti_free_public(history->ctx, history->entries, __func__))
        *history = (dt_history){0};
}
