/* The strategy of replicas with and without ZeRO in the commit protocol (protocol.h). */

/* ---- all devices */

static dt_program *dti_parallel_last(const dti_replica *r) {
    const dti_runs *runs = r->runs->count ? r->runs : &r->full;
    return runs->runs[runs->count - 1].program;
}

static void dti_replica_phase(void *arg, uint32_t index) {
    const dti_phase_call *p = arg;
    p->par->replicas[index].result = p->fn(p->par, index);
}

static void dti_replicas_team(dti_parallel *par, dti_phase_fn *fn) {
    dti_phase_call phase = {par, fn};
    for (uint32_t i = 0; i < par->job.local && par->one_thread; i++)
        dti_replica_phase(&phase, i);
    if (!par->one_thread)
        dti_device_team_run(par->device_team, dti_replica_phase, &phase);
}

/* Replica i's failure, in the job's words, if its context has a text. */
static dt_result dti_replica_failed(dti_parallel *par, uint32_t i, dt_result result) {
    const dti_base *base = dti_ctx_base(par->replicas[i].ctx);
    return result && i && base->error[0]
               ? dti_fail(par->base, result, "replica %u: %s", i, base->error)
               : result;
}

static dt_result dti_replicas_result(dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++) {
        if (par->replicas[i].result)
            return dti_replica_failed(par, i, par->replicas[i].result);
    }
    return DT_OK;
}

static dt_result dti_replicas_phase(dti_parallel *par, dti_phase_fn *fn) {
    dti_replicas_team(par, fn);
    return dti_replicas_result(par);
}

/* ---- AGREE and RUN */

static void dti_replicas_runs(dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++) {
        dti_replica *r = &par->replicas[i];
        r->runs = par->now->rows == r->full.rows ? &r->full : &r->tail;
    }
}

/* Lists begin. */
static void dti_replicas_rewind(dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++) {
        dti_replica *r = &par->replicas[i];
        r->busy_ns = 0;
        r->walk = (dti_list_walk){0};
        r->arrived = 0;
        atomic_store(&r->failed, false);
    }
    for (uint32_t i = 0; i < DTI_UNITS_COUNTERS; i++)
        atomic_store(&par->counters[i], 0);
}

static void dti_replicas_prepare(dti_parallel *par) {
    dti_replicas_runs(par);
    dti_replicas_rewind(par);
    dti_exchange_begin(par);
    dti_sync_points_begin(par);
    if (par->undo)
        memcpy(par->undo, par->statistics.buffers, par->statistics.values * sizeof(float));
}

static dt_result dti_replicas_run(dti_parallel *par) {
    DTI_TRY(par->one_thread ? dti_replicas_walk(par)
                            : dti_replicas_phase(par, dti_parallel_backward));
    return dti_exchange_finish(par);
}

/* Writes to the first replica now; the others copy it later. */
static dt_result dti_replicas_statistics(dti_parallel *par) {
    const dt_result result =
        dti_statistics_sum(par, &par->statistics, par->desc.comm,
                           (dt_comm_span){par->first_batch_slice, par->batch_slices});
    if (!result && !dti_units_are(par))
        dti_statistics_put(par, &par->replicas[0]);
    return result;
}

static uint64_t dti_replicas_waited(const dti_parallel *par) {
    return dti_now_ns() - par->replicas[0].passed - par->now->validate_ns;
}

/* ---- VALIDATE and WRITE */

static dt_result dti_replica_validated(dti_parallel *par, dti_replica *r, dt_program *p) {
    bool faulty = false;
    const dt_result result = dti_program_validate(p, &r->norm, &faulty);
    if (faulty)
        atomic_store(&par->now->faulty, true);
    return result;
}

/* Whether this replica's findings are those of all. It is the only one, and its losses, which the
 * device does not check, are finite. */
static bool dti_replica_decides(const dti_parallel *par) {
    bool fine = !par->bucket_count && dti_parallel_keeps_gradients(par);
    for (uint32_t i = 0; i < par->batch_slices && fine && !par->desc.program.no_check; i++)
        fine = dti_losses_finite(par->terms.leaves + (size_t)i * par->terms.width);
    return fine;
}

/* Brings the sum of all to each replica, and starts to look at it. */
static dt_result dti_parallel_validate_start(dti_parallel *par, uint32_t index) {
    dti_replica *r = &par->replicas[index];
    /* received from other processes; else dti_bucket_spread has done it */
    for (uint32_t b = 0; b < par->bucket_count && index && par->desc.comm; b++) {
        const dti_bucket *bucket = &par->buckets[b];
        memcpy(r->gradients + bucket->begin, par->replicas[0].gradients + bucket->begin,
               (bucket->end - bucket->begin) * sizeof(float));
    }
    if (index)
        dti_statistics_put(par, r);
    if (!r->runs->count)
        dti_program_begin_commit(dti_parallel_last(r), &par->now->desc);
    return dti_program_validate_start(dti_parallel_last(r), dti_replica_decides(par));
}

/* Each says whether it can be committed. */
static dt_result dti_parallel_validate(dti_parallel *par, uint32_t index) {
    dti_replica *r = &par->replicas[index];
    DTI_TRY(par->one_thread ? DT_OK : dti_parallel_validate_start(par, index));
    return dti_replica_validated(par, r, dti_parallel_last(r));
}

static dt_result dti_parallel_commit_start(dti_parallel *par, uint32_t index) {
    DTI_TRY(DTI_HAS_ZERO && par->undo ? dti_owners_keep(par, index) : DT_OK);
    return dti_program_commit_start(dti_parallel_last(&par->replicas[index]));
}

static dt_result dti_parallel_commit(dti_parallel *par, uint32_t index) {
    DTI_TRY(par->one_thread ? DT_OK : dti_parallel_commit_start(par, index));
    DTI_TRY(dti_program_commit(dti_parallel_last(&par->replicas[index])));
    return dti_units_are(par) ? dti_unit_committed(&par->units.parts[index]) : DT_OK;
}

static dt_result dti_replicas_publish(dti_parallel *par) {
    return dti_is_sharded(par) ? dti_owners_gather(par) : DT_OK;
}

static void dti_replicas_report(dti_parallel *par, dti_parallel_result *out) {
    out->norm = par->replicas[0].norm;
}

/* ---- a step that is not made */

static dt_result dti_replica_update(dti_parallel *par, uint32_t index) {
    dti_search_update(par, index, dti_parallel_last(&par->replicas[index]), 0);
    return DT_OK;
}

static const char *dti_replicas_statistic(const dti_parallel *par) {
    return dti_statistics_fault(&par->statistics, par->replicas[0].graph);
}

static dt_result dti_replicas_load(dti_parallel *par) {
    return dti_statistics_load(&par->statistics, par->replicas[0].store);
}

static void dti_parallel_drop_all(dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++) {
        dt_program *p = par->replicas[i].store->running;
        if (p)
            dt_program_cancel(p, NULL);
        par->replicas[i].store->summed = 0;
    }
}

/* ---- lists by themselves: of an evaluation, or to search */

/* Nothing is summed, so nothing waits for a sum. The first micro-batch has a program of its own, so
 * its inputs are still there. */
static void dti_replicas_again(dti_parallel *par) {
    dti_parallel_drop_all(par);
    if (dti_units_are(par))
        dti_units_rewind(par);
    else
        dti_replicas_rewind(par);
    atomic_store(&par->counters[par->units.counters + DTI_UNITS_SUMMED], UINT32_MAX);
    dti_sync_points_begin(par);
}

static dt_result dti_replica_list(dti_parallel *par, uint32_t index) {
    dti_replica *r = &par->replicas[index];
    const dt_result result = dti_list_run(par, index, r->runs->list.count);
    if (result)
        atomic_store(&r->failed, true);
    return result;
}

static dt_result dti_replicas_lists(dti_parallel *par) {
    const dt_result result = dti_replicas_phase(par, dti_replica_list);
    return result ? result : par->sums.error;
}

static dt_result dti_parallel_comm_failed(dti_parallel *par, dt_result result) {
    if (!result)
        return DT_OK;
    result = dti_comm_cause(par->desc.comm, result, par->lost);
    par->lost = true;
    if (!par->replicas || !par->replicas[0].store) /* in the middle of dt_trainer_create */
        return dti_fail(par->base, result, "%s", dt_comm_error(par->desc.comm));
    const bool units =
        dti_pipe_of(par) ? dti_pipe_has_units(par) : dti_units_are(par) && dti_shards_span(par);
    return dti_fail(par->base, result, "%s; %s of step %llu", dt_comm_error(par->desc.comm),
                    units ? "other ranks' shards of the parameters are lost; those here are"
                    : dti_pipe_of(par) ? "the weights here are those"
                                       : "the weights are those",
                    (unsigned long long)par->replicas[0].store->steps);
}

/* Others wait for gradients that never come: they get an error that names this rank. */
static void dti_parallel_leave(dti_parallel *par) {
    const dt_comm_work small[] = {par->weights.work, par->terms.work};
    par->lost = true;
    dti_comm_give_up(par->desc.comm);
    dti_sums_cancel(par);
    for (size_t i = 0; par->desc.comm && i < DTI_COUNT(small); i++) {
        if (small[i].id) /* 0: not posted, or it has ended */
            dt_comm_cancel(par->desc.comm, small[i]);
    }
    dti_units_leave(&par->units);
}

/* This process is neither at the old step nor at the new one. */
static dt_result dti_parallel_partial_commit(dti_parallel *par, dt_result result, bool mixed) {
    const dti_error_text error = dti_error_of(par);
    dti_comm_give_up(par->desc.comm);
    par->lost = true;
    if (mixed || dti_units_are(par))
        return dti_fail(par->base, result,
                        "%.800s; the weights may be of two different steps; create a new trainer "
                        "and continue from a checkpoint",
                        error.text);
    return dti_fail(par->base, result,
                    "%.800s; the weights of the first replica are those of step %llu", error.text,
                    (unsigned long long)par->replicas[0].store->steps);
}

static dt_result dti_replicas_partial_commit(dti_parallel *par, dt_result result) {
    return dti_parallel_partial_commit(par, result, dti_is_sharded(par) && !dti_units_are(par));
}

/* The part that ZeRO-2 and ZeRO-3 share with plain replicas. */
#define DTI_REPLICAS_STEP                                                                          \
    .calls = &dti_replica_calls, .team = dti_replicas_team, .result = dti_replicas_result,         \
    .weigh = dti_parallel_weigh, .run = dti_replicas_run, .statistics = dti_replicas_statistics,   \
    .waited = dti_replicas_waited, .write = dti_parallel_commit, .report = dti_replicas_report,    \
    .statistic = dti_replicas_statistic, .updates = dti_replica_update,                            \
    .rewind = dti_replicas_again, .lists = dti_replicas_lists, .load = dti_replicas_load,          \
    .drop = dti_parallel_drop_all, .leave = dti_parallel_leave,                                    \
    .partial_commit = dti_replicas_partial_commit

static const dti_strategy dti_replicas_strategy = {DTI_REPLICAS_STEP,
                                                   .prepare = dti_replicas_prepare,
                                                   .forward = dti_parallel_forward,
                                                   .weigh_forward = dti_parallel_weigh_forward,
                                                   .validate_start = dti_parallel_validate_start,
                                                   .write_start = dti_parallel_commit_start,
                                                   .validate = dti_parallel_validate,
                                                   .publish = dti_replicas_publish};
