/* Steps of a trainer that are under way while the next is prepared (parallel/one.c): of which
 * batches they are, and what their ends mean. A step behind one that was skipped has not run: its
 * batch is next again, with the number that it would have had if it had been started only then. */

static dti_inflight_batch *dti_trainer_ahead(dt_trainer *t, uint32_t i) {
    return &t->ahead[(t->ahead_first + i) % DTI_STEP_SLOTS_MAX];
}

/* Those behind a step that failed; from the first of them on it goes on. */
static dt_result dti_trainer_go_back(dt_trainer *t) {
    dti_parallel_result none;
    if (!t->ahead_count)
        return DT_OK;
    t->epoch = dti_trainer_ahead(t, 0)->epoch;
    t->index = dti_trainer_ahead(t, 0)->index;
    for (bool ran; t->ahead_count && !t->par.lost; t->ahead_count--)
        dti_alone_end(&t->par, &none, &ran);
    t->ahead_count = 0;
    t->again = true;
    return t->par.lost ? DT_OK : dti_trainer_seek(t);
}

/* Ends the oldest step, into *r. Not *used: its samples are to come again. */
static dt_result dti_trainer_end_oldest(dt_trainer *t, dt_train_report *r, bool *used) {
    const dti_inflight_batch ended = *dti_trainer_ahead(t, 0);
    char text[sizeof t->base->error];
    dti_parallel_result step;
    bool ran;
    dt_result result = dti_alone_end(&t->par, &step, &ran);
    *used = !result || step.skipped;
    t->ahead_count = t->par.lost ? 0 : t->ahead_count - 1;
    t->ahead_first = (t->ahead_first + 1) % DTI_STEP_SLOTS_MAX;
    if (*used) {
        r->steps++;
        r->samples += ended.samples;
        r->epoch = ended.epoch;
        r->epoch_ended = ended.last;
        r->lr = ended.lr;
        dti_report_add(r, &step);
    }
    if (!result)
        return DT_OK;
    memcpy(text, t->base->error, sizeof text);
    dt_result again = dti_trainer_go_back(t);
    if (!again)
        memcpy(t->base->error, text, sizeof text);
    return again ? again : result;
}

/* Until `keep` are left; the first error. */
static dt_result dti_trainer_end_to(dt_trainer *t, uint32_t keep, dt_train_report *r, bool *used) {
    dt_result result = DT_OK;
    while (t->ahead_count > keep && !result)
        result = dti_trainer_end_oldest(t, r, used);
    return result;
}

/* What is under way, before the store is looked at or the next step is another one. What it has to
 * say is for the next step's report. */
static void dti_trainer_drain(dt_trainer *t) {
    bool used;
    dt_result result = dti_trainer_end_to(t, 0, &t->pending, &used);
    if (!result)
        return;
    t->pending_result = result;
    snprintf(t->said, sizeof t->said, "%s", t->base->error);
}

/* The next step's number. */
static uint64_t dti_trainer_number(const dt_trainer *t) {
    return t->par.replicas[0].store->steps + 1 + t->ahead_count;
}

/* How many of `keep` steps may stay under way behind the newest, which is of `batch`. */
static uint32_t dti_trainer_keeps(const dt_trainer *t, const dti_batch *batch, uint32_t keep) {
    const uint64_t every = (uint64_t)t->desc.checkpoint.every_steps;
    const bool saves = t->par.asked || (every && (dti_trainer_number(t) - 1) % every == 0);
    return batch->last || saves ? 0 : keep;
}

/* Starts the step of a batch, as soon as it can be without waiting twice. */
static dt_result dti_trainer_start_step(dt_trainer *t, const dti_batch *batch, dt_step_desc *desc,
                                        dt_train_report *r, bool *used) {
    dt_result result = DT_OK;
    while (!result && t->ahead_count && dti_alone_waits(&t->par, batch->rows, desc))
        result = dti_trainer_end_oldest(t, r, used);
    if (result) { /* this batch, or one before it, is next again */
        dt_result again = t->par.lost ? DT_OK : dti_trainer_seek(t);
        t->again = *used;
        return again ? again : result;
    }
    desc->step = dti_trainer_number(t);
    desc->lr = dti_trainer_lr(t, desc->step);
    result = dti_alone_start(&t->par, batch, desc);
    *used = !result;
    if (result)
        return result;
    *dti_trainer_ahead(t, t->ahead_count++) = (dti_inflight_batch){.epoch = t->epoch,
                                                                   .index = t->index,
                                                                   .samples = batch->real,
                                                                   .last = batch->last,
                                                                   .lr = dti_trainer_rate(t, desc)};
    dti_trainer_move_on(t, batch->last);
    return DT_OK;
}

/* A call makes a step, whatever befell the one before it; what that one says stays. */
static dt_result dti_trainer_step_again(dt_trainer *t, dt_step_desc *desc, uint32_t keep,
                                        dt_train_report *r, dt_result before) {
    const dti_batch *batch;
    char text[sizeof t->base->error];
    bool used;
    t->again = false;
    memcpy(text, t->base->error, sizeof text);
    dt_result result = t->par.lost ? before : dti_loader_next(t->loader, &batch);
    if (!result)
        result = dti_trainer_start_step(t, batch, desc, r, &used);
    if (!result)
        dti_trainer_end_to(t, dti_trainer_keeps(t, batch, keep), r, &used);
    else if (!t->par.lost)
        dti_trainer_seek(t);
    memcpy(t->base->error, text, sizeof text);
    return before;
}

/* One more step; of those under way, `keep` at most are left so. */
static dt_result dti_trainer_step_ahead(dt_trainer *t, const dti_batch *batch, dt_result own,
                                        dt_step_desc *desc, uint32_t keep, dt_train_report *r,
                                        bool *used) {
    char text[sizeof t->base->error];
    bool before;
    dt_result result = own ? own : dti_trainer_start_step(t, batch, desc, r, used);
    if (!result)
        result = dti_trainer_end_to(t, dti_trainer_keeps(t, batch, keep), r, used);
    if (t->again)
        return dti_trainer_step_again(t, desc, keep, r, result);
    if (!result || *used)
        return result;
    memcpy(text, t->base->error, sizeof text); /* of this one: it will be tried again */
    dt_result other = dti_trainer_end_to(t, 0, r, &before);
    if (!other)
        memcpy(t->base->error, text, sizeof text);
    return other ? other : result;
}
