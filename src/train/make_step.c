/* A trainer's step, from its batch to its report. It begins with AGREE, and ends with the rest of
 * the commit protocol (protocol.h). On an asynchronous device (one.c) the next one begins before
 * it ends. A step begun after a step that was skipped has not run. The next step takes
 * its batch again, with the number of a step that begins only then. */

static dti_step_batch *dti_trainer_step_of(dt_trainer *t, uint32_t i) {
    return &t->begun[(t->par.oldest + i) % DTI_STEP_SLOTS_MAX];
}

static void dti_trainer_move_to(dt_trainer *t, const dti_step_batch *step) {
    t->epoch = step->epoch;
    t->index = step->index;
}

/* Steps that began after one that failed. The trainer goes on from the first of them. */
static dt_result dti_trainer_go_back(dt_trainer *t) {
    dti_parallel_result none;
    if (!t->par.under_way)
        return DT_OK;
    if (!t->par.lost) /* else it stays where the lost step was */
        dti_trainer_move_to(t, dti_trainer_step_of(t, 0));
    while (t->par.under_way && !t->par.lost)
        dti_parallel_end(&t->par, &none);
    t->par.under_way = 0; /* on a lost device no step ends */
    t->again = !t->par.lost;
    return t->par.lost ? DT_OK : dti_trainer_seek(t);
}

/* ---- its end */

static void dti_report_times(dt_train_report *r, const dti_step_times *t) {
    r->forward_seconds += 1e-9 * (double)t->forward;
    r->backward_seconds += 1e-9 * (double)t->backward;
    r->commit_seconds += 1e-9 * (double)t->commit;
}

static void dti_trainer_used(dt_trainer *t, const dti_step_batch *ended,
                             const dti_parallel_result *step, dt_train_report *r) {
    r->epoch = ended->epoch;
    r->epoch_ended = ended->last;
    r->lr = ended->lr;
    if (dti_parallel_is_local(&t->par)) {
        dti_trainer_round_step(t, step, r);
        return;
    }
    r->steps++;
    r->samples += ended->samples;
    dti_report_add(r, step);
    dti_report_times(r, &t->par.now->times);
    dti_balance_add(t);
}

/* Ends the oldest step, into *r. Not *used: its samples are to come again. */
static dt_result dti_trainer_end_oldest(dt_trainer *t, dt_train_report *r, bool *used) {
    const dti_step_batch ended = *dti_trainer_step_of(t, 0);
    const uint64_t rounds = t->par.round.count;
    dti_parallel_result step;
    const dt_result result = dti_parallel_end(&t->par, &step);
    *used = !t->par.lost && (!result || step.skipped);
    if (*used)
        dti_trainer_used(t, &ended, &step, r);
    else if (t->par.round.count == rounds) /* else the weights are those after it */
        dti_trainer_move_to(t, t->par.lost && dti_parallel_is_local(&t->par) ? &t->round_begun
                                                                             : &ended);
    if (!result)
        return DT_OK;
    const dti_error_text error = dti_error_of(&t->par);
    const dt_result again = dti_trainer_go_back(t);
    if (!again)
        dti_error_back(&t->par, &error);
    return again ? again : result;
}

/* Until `keep` are left; the first error. */
static dt_result dti_trainer_end_to(dt_trainer *t, uint32_t keep, dt_train_report *r, bool *used) {
    dt_result result = DT_OK;
    while (t->par.under_way > keep && !result)
        result = dti_trainer_end_oldest(t, r, used);
    return result;
}

/* ---- its beginning */

/* The next step's number. */
static uint64_t dti_trainer_number(const dt_trainer *t) {
    return t->par.replicas[0].store->steps + 1 + t->par.under_way - dti_alone_committed(&t->par);
}

/* How many of `keep` steps may stay in flight after the newest, which uses `batch`. */
static uint32_t dti_trainer_keeps(const dt_trainer *t, const dti_batch *batch, uint32_t keep) {
    const bool saves = t->par.asked || dti_checkpoint_is_due(t, dti_trainer_number(t) - 1);
    return batch->last || saves || !t->par.alone ? 0 : keep;
}

/* Parameters that were brought for others go back to their owners. */
static dt_result dti_trainer_part(dt_trainer *t) {
    return dti_full_is_there(&t->par) ? dti_full_hide(&t->par) : DT_OK;
}

/* Begins as soon as possible without waiting twice. A rank with an error begins too, so all ranks
 * learn of it. */
static dt_result dti_trainer_begin_step(dt_trainer *t, const dti_batch *batch, dt_result own,
                                        dt_step_desc *desc, dt_train_report *r, bool *used) {
    const dti_batch none = {0};
    dt_result result = DT_OK;
    while (!own && !result && dti_parallel_waits(&t->par, batch->rows, desc))
        result = dti_trainer_end_oldest(t, r, used);
    if (result) { /* this batch, or one before it, is next again */
        const dt_result again = t->par.lost ? DT_OK : dti_trainer_seek(t);
        t->again = *used;
        return again ? again : result;
    }
    desc->step = dti_trainer_number(t);
    desc->lr = dti_trainer_lr(t, desc->step);
    const dt_result parted = dti_trainer_part(t); /* in any case, so that all ranks have */
    const dti_step_batch step = {.epoch = t->epoch,
                                 .index = t->index,
                                 .samples = batch ? batch->real : 0,
                                 .last = batch && batch->last,
                                 .lr = dti_trainer_rate(t, desc)};
    if (!t->par.round.done)
        t->round_begun = step;
    result = dti_parallel_start(&t->par, batch ? batch : &none, own ? own : parted, desc);
    *used = !result;
    if (result)
        return result;
    *dti_trainer_step_of(t, t->par.under_way - 1) = step;
    dti_trainer_move_on(t, batch->last);
    return DT_OK;
}

/* A call always makes a step. It returns the error of the step before. */
static dt_result dti_trainer_step_again(dt_trainer *t, dt_step_desc *desc, uint32_t keep,
                                        dt_train_report *r, dt_result before) {
    const dti_error_text error = dti_error_of(&t->par);
    const dti_batch *batch;
    bool used;
    t->again = false;
    dt_result result = t->par.lost ? before : dti_loader_next(t->loader, &batch);
    if (!result)
        result = dti_trainer_begin_step(t, batch, DT_OK, desc, r, &used);
    if (!result)
        dti_trainer_end_to(t, dti_trainer_keeps(t, batch, keep), r, &used);
    else if (!t->par.lost)
        dti_trainer_seek(t);
    dti_error_back(&t->par, &error);
    return before;
}

/* On all ranks together: one more step; of those under way, `keep` at most are left so. */
static dt_result dti_trainer_make_step(dt_trainer *t, const dti_batch *batch, dt_result own,
                                       dt_step_desc *desc, uint32_t keep, dt_train_report *r,
                                       bool *used) {
    dt_result result = dti_trainer_begin_step(t, batch, own, desc, r, used);
    if (!result)
        result = dti_trainer_end_to(t, dti_trainer_keeps(t, batch, keep), r, used);
    if (t->again)
        return dti_trainer_step_again(t, desc, keep, r, result);
    if (!result || *used)
        return result;
    const dti_error_text error = dti_error_of(&t->par); /* this step will be tried again */
    bool before;
    const dt_result other = dti_trainer_end_to(t, 0, r, &before);
    if (!other)
        dti_error_back(&t->par, &error);
    return other ? other : result;
}

/* Ends steps in flight, before the store is read or written. Their results and error go into the
 * next report. */
static void dti_trainer_drain_own(dt_trainer *t) {
    bool used;
    dt_result result = dti_trainer_end_to(t, 0, &t->pending, &used);
    if (!result)
        return;
    t->pending_result = result;
    snprintf(t->said, sizeof t->said, "%s", t->base->error);
}

static void dti_trainer_drain(dt_trainer *t) {
    dti_sharing_settle(t);
    dti_trainer_drain_own(t);
}
