/* A trainer's steps and epochs. All ranks make their collective calls in the same order, whatever
 * error one of them finds. */

static void dti_report_add_terms(dt_train_report *r, const double *terms) {
    double *const of[] = {r->loss_sum, r->loss_weight, r->metric_sum, r->metric_weight};
    for (uint32_t i = 0; i < DTI_COUNT(of) * DT_MAX_TERMS; i++)
        of[i / DT_MAX_TERMS][i % DT_MAX_TERMS] += terms[i];
}

static void dti_report_terms(const dt_train_report *r, double *terms) {
    const double *const of[] = {r->loss_sum, r->loss_weight, r->metric_sum, r->metric_weight};
    for (size_t i = 0; i < DTI_COUNT(of); i++)
        memcpy(terms + i * DT_MAX_TERMS, of[i], sizeof r->loss_sum);
}

static void dti_report_add(dt_train_report *r, const dti_parallel_result *step) {
    dti_report_add_terms(r, step->terms);
    r->empty += step->empty;
    if (step->committed)
        r->gradient_norm = step->norm;
    r->wait_seconds += step->wait_seconds;
}

static void dti_report_close(const dt_trainer *t, dt_train_report *r) {
    r->loss = 0.0;
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        r->loss += t->coefficients[i] * dti_term_value(r->loss_sum[i], r->loss_weight[i]);
        r->metric[i] = dti_term_value(r->metric_sum[i], r->metric_weight[i]);
    }
    r->step = t->par.replicas[0].store->steps;
    r->round = t->par.round.count;
}

static dt_result dti_trainer_lost(dt_trainer *t) {
    return dti_fail(
        t->base, DT_ERROR_REVOKED,
        "the job ended at step %llu, as a rank or a device was lost; save the weights if "
        "dt_trainer_store has them, or create a new trainer and continue from a checkpoint",
        (unsigned long long)t->par.replicas[0].store->steps);
}

static dt_result dti_trainer_goes_on(dt_trainer *t) {
    DTI_TRY(dti_check_forked(t->base));
    dti_sharing_settle(t);
    return t->par.lost ? dti_trainer_lost(t) : DT_OK;
}

/* The replicas have what the application wrote since the last step; buffers have a copy. The same
 * holds for values that another trainer of these replicas wrote. */
static dt_result dti_trainer_look(dt_trainer *t) {
    dt_store *s = t->par.replicas[0].store;
    dt_trainer *first = dti_trainer_first(t);
    if (!s->written && first->stepped == t)
        return DT_OK;
    if (dti_pipe_of(&t->par))
        return dti_full_given(&t->par);
    s->written = false;
    first->stepped = t;
    return dti_statistics_load(&t->par.statistics, s);
}

static void dti_trainer_move_on(dt_trainer *t, bool last) {
    t->index = last ? 0 : t->index + 1;
    t->epoch += last;
}

/* Makes one step, and adds it, or a step that ended for it, to *r. *used: its samples are used up,
 * also if a NaN skipped it. A step that failed otherwise is to be tried again, on all ranks. At
 * most `keep` steps stay in flight. */
static dt_result dti_trainer_step(dt_trainer *t, uint32_t keep, dt_train_report *r, bool *used) {
    const uint64_t start = dti_now_ns();
    const dti_batch *batch = NULL;
    *used = false;
    DTI_TRY(dti_trainer_goes_on(t));
    if (dti_serves(t))
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "a server's trainer makes no steps itself; call dt_server_run, which lets "
                        "workers make them");
    if (dti_worker_of(t))
        return dti_server_worker.step(t, r, used);
    const bool wanted = t->par.asked = atomic_exchange(&t->wanted, 0) != 0;
    dt_result own = dti_loader_next(t->loader, &batch);
    if (!own)
        own = dti_trainer_look(t);
    if (!own)
        own = dti_shared_written(t);
    r->data_seconds += 1e-9 * (double)(dti_now_ns() - start);
    dt_step_desc desc = {.seed = t->desc.seed,
                         .step = t->par.replicas[0].store->steps + 1,
                         .lr = dti_trainer_lr(t, dti_trainer_number(t)),
                         .coefficients = t->coefficients};
    r->epoch = t->epoch;
    r->round_ended = false;
    dt_result result = dti_trainer_make_step(t, batch, own, &desc, keep, r, used);
    r->seconds += 1e-9 * (double)(dti_now_ns() - start);
    if (*used)
        return result;
    if (wanted)
        atomic_store(&t->wanted, 1); /* with the next one */
    dt_result again = t->par.lost ? DT_OK : dti_trainer_seek(t);
    return again ? again : result;
}

static dt_result dti_trainer_checkpoints(dt_trainer *t) {
    const bool due = !t->par.round.done &&
                     (t->par.asked || dti_checkpoint_is_due(t, t->par.replicas[0].store->steps));
    return due && t->desc.checkpoint.folder ? dt_trainer_checkpoint(t) : DT_OK;
}

/* The work between two steps. */
static dt_result dti_trainer_between(dt_trainer *t, bool epoch_ended) {
    if (t->par.under_way)
        return DT_OK;
    dt_result result = t->par.lost ? DT_OK : dti_balance_look(t, epoch_ended);
    return result ? result : dti_trainer_checkpoints(t);
}

/* After a step whose samples are used; *r counts failures. */
static dt_result dti_trainer_after(dt_trainer *t, dt_train_report *r) {
    const uint64_t failed = t->checkpoints_failed;
    const dt_result result = dti_trainer_between(t, r->epoch_ended);
    r->checkpoints_failed += t->checkpoints_failed - failed;
    return result;
}

/* Adds steps that ended since the last report. */
static dt_result dti_report_open(dt_trainer *t, dt_train_report *r) {
    const dt_result result = t->pending_result;
    *r = t->pending;
    t->pending = (dt_train_report){0};
    t->pending_result = DT_OK;
    return result;
}

/* An earlier failure is reported unless a worse one follows. */
static dt_result dti_trainer_told(dt_trainer *t, dt_result before, dt_result now) {
    return before && !now ? dti_fail(t->base, before, "%s", t->said) : now;
}

DTI_PUBLIC_REPORT(dt_trainer_step, (dt_trainer * t, dt_train_report *report), t,
                  DTI_OF(dt_trainer) | DTI_WITH | DTI_UNUSED, (t, report)) {
    dt_train_report local, *r = report ? report : &local;
    const dt_result before = dti_report_open(t, r);
    bool used;
    dt_result result = dti_trainer_step(t, t->desc.limits.in_flight == 2, r, &used);
    dt_result after = used ? dti_trainer_after(t, r) : DT_OK;
    if (used && dti_parallel_is_local(&t->par) && !r->round_ended)
        dti_report_part(t, r);
    dti_report_close(t, r);
    return dti_trainer_told(t, before, result ? result : after);
}

/* A skipped step, or a checkpoint that could not be written, is reported at the end. */
DTI_PUBLIC_REPORT(dt_trainer_epoch, (dt_trainer * t, dt_train_report *report), t,
                  DTI_OF(dt_trainer) | DTI_WITH | DTI_UNUSED, (t, report)) {
    dt_train_report local, *r = report ? report : &local;
    if (dti_dataset_endless(&t->desc.data))
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".data.rows is 0, so an epoch of the stream has no end; give the samples "
                        "of an epoch, or call dt_trainer_step");
    const dt_result before = dti_report_open(t, r);
    dt_result kept = DT_OK, result = DT_OK;
    bool used = true;
    while (used && !r->epoch_ended && !t->par.lost) {
        result = dti_trainer_step(t, t->par.desc.in_flight != 1, r, &used);
        dt_result after = used ? dti_trainer_after(t, r) : DT_OK;
        result = result ? result : after;
        kept = used && result ? result : kept;
    }
    dti_report_close(t, r);
    return dti_trainer_told(t, before, !used || t->par.lost ? result : kept);
}

DTI_PUBLIC_REPORT(dt_trainer_wait, (dt_trainer * t, dt_train_report *report), t,
                  DTI_OF(dt_trainer) | DTI_WITH | DTI_UNUSED, (t, report)) {
    dt_train_report local, *r = report ? report : &local;
    DTI_TRY(dti_check_forked(t->base));
    dti_trainer_drain(t);
    const dt_result before = dti_report_open(t, r);
    const uint64_t failed = t->checkpoints_failed;
    const dt_result written = dti_checkpoint_wait(t);
    r->checkpoints_failed += t->checkpoints_failed - failed;
    dti_report_close(t, r);
    return dti_trainer_told(t, before, written);
}
