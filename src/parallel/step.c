/* A step of the whole job. Every rank makes the same operations in the same order, also after an
 * error on one of them. What can fail by itself (a sample's callback, a label out of range, a
 * device) is reported with the weights, before any gradient is exchanged. A device that is lost
 * after that point ends the group, because the others wait for its gradients. One that is lost
 * after all gradients have come, while it validates the update, is reported with the losses. */

/* ---- commit, or not */

static dt_program *dti_parallel_last(const dti_replica *r) {
    const dti_runs *runs = r->runs->count ? r->runs : &r->full;
    return runs->runs[runs->count - 1].program;
}

/* Brings the sum of all to each replica, which then says whether it can be committed. */
static void dti_parallel_validate(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    dti_replica *r = &par->replicas[index];
    /* what came from other processes; else dti_exchange_spread has done it */
    for (uint32_t b = 0; b < par->bucket_count && index && par->desc.comm; b++) {
        const dti_bucket *bucket = &par->buckets[b];
        memcpy(r->gradients + bucket->begin, par->replicas[0].gradients + bucket->begin,
               (bucket->end - bucket->begin) * sizeof(float));
    }
    if (index)
        dti_statistics_put(par, r);
    if (!r->runs->count)
        dti_program_begin_commit(dti_parallel_last(r), &par->step);
    r->result = dti_program_validate(dti_parallel_last(r), &r->norm, &r->faulty);
}

/* A device that fails here is told like what is not finite: nothing has changed on any rank. */
static dt_result dti_parallel_validate_all(dti_parallel *par) {
    double *leaf = dti_scalar_leaf(par, &par->terms, par->first_batch_slice);
    const uint64_t start = dti_now_ns();
    dt_result result = DT_OK;
    if (dti_units_are(par)) {
        result = dti_units_validate_all(par);
    } else {
        dti_statistics_put(par, &par->replicas[0]); /* now: then the others copy what is around */
        dti_device_team_run(par->device_team, dti_parallel_validate, par);
    }
    for (uint32_t i = 0; i < par->job.local; i++) {
        if (par->replicas[i].result || par->replicas[i].faulty)
            leaf[DTI_TERMS_FAULT] = 1.0;
    }
    par->validate_ns = dti_now_ns() - start;
    return result;
}

static void dti_parallel_commit(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    dti_replica *r = &par->replicas[index];
    r->result = par->undo ? dti_owners_keep(par, index) : DT_OK;
    if (!r->result)
        r->result = dti_program_commit(dti_parallel_last(r));
    if (!r->result && dti_units_are(par))
        r->result = dti_units_committed(r);
}

static void dti_parallel_drop_all(dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++) {
        dt_program *p = par->replicas[i].store->running;
        if (p)
            dt_program_cancel(p, NULL);
        par->replicas[i].store->summed = 0;
    }
}

/* ---- the step */

/* What replica i failed with, in the job's words. */
static dt_result dti_replica_failed(dti_parallel *par, uint32_t i, dt_result result) {
    return i == 0 || !result ? result
                             : dti_fail(par->base, result, "replica %u: %s", i,
                                        dti_ctx_base(par->replicas[i].ctx)->error);
}

static dt_result dti_replicas_result(dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++) {
        if (par->replicas[i].result)
            return dti_replica_failed(par, i, par->replicas[i].result);
    }
    return DT_OK;
}

/* Others wait for gradients that never come. The operation that they are in, or come to next, is
 * given up, so they get an error that names this rank. */
static void dti_parallel_leave(dti_parallel *par) {
    const bool comm = par->desc.comm != NULL, units = dti_units_are(par);
    if (units)
        dti_units_leave(par);
    else if (comm && par->received == par->posted && par->posted < par->bucket_count &&
             (dti_compress_is_on(par) ? dti_compress_post(par, par->posted)
                                      : dti_exchange_post(par, par->posted)) == DT_OK)
        par->posted++;
    par->lost = true;
    for (; comm && !units && par->received < par->posted; par->received++)
        dt_comm_cancel(par->desc.comm, par->states[par->received].work);
    const dt_comm_work small[] = {par->weights.work, par->statistics.work, par->terms.work};
    for (size_t i = 0; comm && i < DTI_COUNT(small); i++)
        dt_comm_cancel(par->desc.comm, small[i]); /* those that have ended are none any more */
}

/* This process is neither at the old step nor at the new one. */
static dt_result dti_parallel_partial_commit(dti_parallel *par, dt_result result, bool gather) {
    char text[sizeof par->base->error];
    memcpy(text, par->base->error, sizeof text);
    if (gather)
        dti_owners_leave(par);
    else if (par->desc.comm && dti_scalar_sum_begin(par, &par->weights) == DT_OK)
        dt_comm_cancel(par->desc.comm, par->weights.work);
    par->lost = true;
    if (gather || dti_units_are(par))
        return dti_fail(par->base, result,
                        "%.800s; weights here may be of two steps: create a new trainer, and go on "
                        "from a checkpoint",
                        text);
    return dti_fail(par->base, result,
                    "%.800s; the weights of the first replica are those of step %llu", text,
                    (unsigned long long)par->replicas[0].store->steps);
}

static void dti_parallel_prepare(dti_parallel *par, const dti_batch *batch,
                                 const dt_step_desc *step) {
    par->batch = batch;
    par->rows = batch->rows;
    par->step = *step;
    par->times = (dti_step_times){0};
    memset(par->weights.leaves, 0, par->batch_slices * par->weights.width * sizeof(double));
    memset(par->terms.leaves, 0, par->batch_slices * par->terms.width * sizeof(double));
    for (uint32_t i = 0; i < par->job.local; i++) {
        dti_replica *r = &par->replicas[i];
        r->runs = batch->rows == r->full.rows ? &r->full : &r->tail;
        r->result = DT_OK;
        r->busy_ns = 0;
        r->met = 0;
        r->given_up = false;
        atomic_store(&r->failed, false);
    }
    dti_exchange_begin(par);
    dti_sync_points_begin(par);
    dti_units_prepare(par);
    if (par->undo)
        memcpy(par->undo + par->undo_bytes / sizeof(float) - par->buffer_values,
               par->statistics.buffers, par->buffer_values * sizeof(float));
}

/* By others, who say why; one of them can be named. */
static dt_result dti_parallel_given_up(dti_parallel *par) {
    const double *sum = par->weights.sum;
    char who[32] = "several ranks";
    if (sum[DTI_WEIGHTS_FAULT] < 1.5)
        snprintf(who, sizeof who, "rank %u", (uint32_t)sum[DTI_WEIGHTS_WHO]);
    return dti_fail(par->base, DT_ERROR_CANCELLED,
                    "step %llu was given up: %s failed and reports why; nothing has changed",
                    (unsigned long long)par->step.step, who);
}

/* What a rank sets by itself from step to step, as a hash; another in every step. */
static uint64_t dti_parallel_mark(const dti_parallel *par) {
    const dt_optim_desc optim = dti_optim_resolved(&par->desc.optim);
    const double lr = dti_optim_lr_at(&optim, par->step.lr, par->step.step);
    uint64_t hash = dti_hash64(DTI_HASH_START, &par->step.step, sizeof par->step.step);
    hash = dti_hash64(hash, &lr, sizeof lr);
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        const double value = par->step.coefficients[i] + 0.0; /* no -0 */
        hash = dti_hash64(hash, &value, sizeof value);
    }
    return hash;
}

/* In parts of 16 bits, whose sums and squares are exact in a double for any number of ranks: to
 * parts[2 * DTI_MARKS]. */
static void dti_mark_put(uint64_t mark, double *parts) {
    for (int i = 0; i < DTI_MARKS; i++) {
        const double part = (double)(mark >> 16 * i & 0xffffu);
        parts[i] = part;
        parts[DTI_MARKS + i] = part * part;
    }
}

/* Ranks with one mark have no variance. */
static bool dti_mark_same(const dti_parallel *par, const double *sums) {
    bool same = true;
    for (int i = 0; i < DTI_MARKS; i++) {
        const uint64_t all = (uint64_t)sums[i];
        same = same && par->mesh.world * (uint64_t)sums[DTI_MARKS + i] == all * all;
    }
    return same;
}

static dt_result dti_parallel_same(dti_parallel *par) {
    if (dti_mark_same(par, par->weights.sum + DTI_WEIGHTS_MARK))
        return DT_OK;
    par->told = true;
    return dti_fail(par->base, DT_ERROR_INVALID,
                    "step %llu: the ranks have different learning rates or coefficients of losses; "
                    "set the same on all; nothing has changed",
                    (unsigned long long)par->step.step);
}

/* Weights to all ranks, and whether all of them can go on. */
static dt_result dti_parallel_agree(dti_parallel *par, dt_result own) {
    const bool apart = par->desc.comm != NULL; /* the weights travel during the forward part; */
    const bool later = dti_units_are(par);     /* but not where replicas wait for others in it */
    if (!own) {
        dti_device_team_run(par->device_team,
                            apart || later ? dti_parallel_weigh : dti_parallel_weigh_forward, par);
        own = dti_replicas_result(par);
    }
    double *leaf = dti_scalar_leaf(par, &par->weights, par->first_batch_slice);
    leaf[DTI_WEIGHTS_FAULT] = own ? 1.0 : 0.0;
    leaf[DTI_WEIGHTS_WHO] = own ? par->mesh.rank : 0.0;
    leaf[DTI_WEIGHTS_ASKED] = par->asked ? 1.0 : 0.0;
    dti_mark_put(dti_parallel_mark(par), leaf + DTI_WEIGHTS_MARK);
    dt_result result = dti_scalar_sum_begin(par, &par->weights);
    if (!result && !own && apart && !later)
        dti_device_team_run(par->device_team, dti_parallel_forward, par);
    if (!result)
        result = dti_scalar_sum_end(par, &par->weights);
    par->asked = !result && par->weights.sum[DTI_WEIGHTS_ASKED] > 0.0;
    par->told = !result && par->weights.sum[DTI_WEIGHTS_FAULT] > 0.0;
    if (result || own)
        return own ? own : result;
    if (par->told)
        return dti_parallel_given_up(par);
    result = dti_parallel_same(par);
    return result ? result : dti_replicas_result(par);
}

/* The sums of all gradients are there: whether all can write what comes of them. */
static dt_result dti_parallel_settle(dti_parallel *par) {
    dt_result result = dti_statistics_begin(par);
    if (!result)
        result = dti_statistics_end(par);
    if (result)
        return result;
    result = dti_parallel_validate_all(par);
    if (result)
        return result;
    /* all ranks have posted this one, so all have every bucket, and it says whether all can write
     * what comes of it: the commit barrier */
    result = dti_scalar_sum_begin(par, &par->terms);
    return result ? result : dti_scalar_sum_end(par, &par->terms);
}

static dt_result dti_parallel_exchange(dti_parallel *par) {
    dti_device_team_run(par->device_team, dti_parallel_backward, par);
    dt_result result = dti_replicas_result(par);
    if (!result)
        result = dti_exchange_finish(par);
    return result ? result : dti_parallel_settle(par);
}

static void dti_terms_report(const double sum[DTI_TERMS_WIDTH], dti_parallel_result *out) {
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        out->loss_sum[i] = sum[i];
        out->loss_weight[i] = sum[DTI_TERMS_WEIGHT + i];
        out->metric_sum[i] = sum[DTI_TERMS_METRIC + i];
        out->metric_weight[i] = sum[DTI_TERMS_METRIC_WEIGHT + i];
    }
}

/* Every replica looks for the parameter or op; the first that finds one is quoted. */
static dt_result dti_parallel_attribute(dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++) {
        dti_replica *r = &par->replicas[i];
        if (!dti_program_attribute(dti_parallel_last(r), r->runs->count > 0))
            continue;
        return i == 0 ? DT_ERROR_NUMERIC
                      : dti_fail(par->base, DT_ERROR_NUMERIC, "%s", dti_ctx_base(r->ctx)->error);
    }
    return DT_OK;
}

/* No rank found an op or a parameter. */
static dt_result dti_parallel_not_finite_text(dti_parallel *par, const char *statistic) {
    const unsigned long long step = (unsigned long long)par->step.step;
    if (statistic)
        return dti_fail(par->base, DT_ERROR_NUMERIC,
                        "step %llu: the running statistic '%s' would be a NaN or an infinity; the "
                        "weights are unchanged",
                        step, statistic);
    return dti_fail(par->base, DT_ERROR_NUMERIC,
                    "step %llu: the gradient of the whole batch is not finite; the weights are "
                    "unchanged",
                    step);
}

/* Nothing has changed. */
static dt_result dti_parallel_not_finite(dti_parallel *par, dti_parallel_result *out) {
    const char *statistic = dti_statistics_fault(&par->statistics, par->replicas[0].graph);
    dt_result own = dti_replicas_result(par); /* a device that failed while it judged */
    if (!own)
        own = dti_parallel_attribute(par);
    dt_result result = dti_statistics_load(&par->statistics, par->replicas[0].store);
    result = dti_agree_result(par, own ? own : result);
    if (!result)
        result = dti_parallel_not_finite_text(par, statistic);
    else if (result != DT_ERROR_NUMERIC && !own && !par->lost) {
        char text[sizeof par->base->error];
        memcpy(text, par->base->error, sizeof text);
        result = dti_fail(par->base, DT_ERROR_CANCELLED,
                          "step %llu was given up, and nothing has changed: %.800s",
                          (unsigned long long)par->step.step, text);
    }
    out->skipped = result == DT_ERROR_NUMERIC;
    return result;
}

static bool dti_losses_finite(const dti_parallel_result *out) {
    bool fine = true;
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++)
        fine = fine && dti_finite_f64(out->loss_sum[i]) && dti_finite_f64(out->loss_weight[i]);
    return fine;
}

static dt_result dti_parallel_over(dti_parallel *par, dt_result result, dti_parallel_clean *leave,
                                   dti_parallel_clean *drop) {
    char text[sizeof par->base->error]; /* what the rest of it says is no news */
    memcpy(text, par->base->error, sizeof text);
    if (leave)
        leave(par);
    drop(par);
    memcpy(par->base->error, text, sizeof text);
    return result;
}

static dt_result dti_parallel_apart(dti_parallel *par, dt_result result, dti_parallel_clean *leave,
                                    const char *who) {
    char text[sizeof par->base->error];
    memcpy(text, par->base->error, sizeof text);
    leave(par);
    return dti_fail(
        par->base, result,
        "%.800s; %s may be a step apart: create a new trainer and go on from a checkpoint", text,
        who);
}

/* Before the commit: step s stays. Those who know of it go on together with the next step. */
static dt_result dti_parallel_failed(dti_parallel *par, dt_result result) {
    return dti_parallel_over(par, result, par->told ? NULL : dti_parallel_leave,
                             dti_parallel_drop_all);
}

static dt_result dti_parallel_update(dti_parallel *par) {
    dti_device_team_run(par->device_team, dti_parallel_commit, par);
    dt_result result = dti_replicas_result(par);
    const bool gathers = par->sharded && !dti_units_are(par);
    if (result)
        return dti_parallel_partial_commit(par, result, gathers);
    return gathers ? dti_owners_gather(par) : DT_OK;
}

/* When all have met: the update, or why there is none. */
static dt_result dti_parallel_finish(dti_parallel *par, dti_parallel_result *out) {
    dti_terms_report(par->terms.sum, out);
    if (par->terms.sum[DTI_TERMS_FAULT] > 0.0 ||
        (!par->desc.program.no_check && !dti_losses_finite(out))) {
        dti_parallel_drop_all(par);
        return dti_parallel_not_finite(par, out);
    }
    const uint64_t start = dti_now_ns();
    dt_result result = dti_parallel_update(par);
    par->times.commit = par->validate_ns + dti_now_ns() - start;
    if (result)
        return result;
    out->norm = par->replicas[0].norm;
    out->committed = true;
    return DT_OK;
}

static dt_result dti_parallel_conclude(dti_parallel *par, dti_parallel_result *out) {
    dt_result result = dti_parallel_settle(par);
    return result ? dti_parallel_failed(par, result) : dti_parallel_finish(par, out);
}

/* Whether no target of the whole batch counts, and such a step is left out: all ranks know it. */
static bool dti_parallel_leaves_out(const dti_parallel *par, dti_parallel_result *out) {
    out->empty = 1;
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++)
        out->empty = out->empty && par->weights.sum[i] == 0.0;
    return out->empty && par->desc.skip_empty;
}

static dt_result dti_parallel_step(dti_parallel *par, const dti_batch *batch, dt_result own,
                                   const dt_step_desc *step, dti_parallel_result *out) {
    *out = (dti_parallel_result){0};
    if (par->pipe)
        return dti_pipe_step(par, batch, own, step, out);
    if (par->tp)
        return dti_tp_step(par, batch, own, step, out);
    dti_parallel_prepare(par, batch, step);
    dt_result result = dti_parallel_agree(par, own);
    if (!result && dti_parallel_leaves_out(par, out)) {
        dti_parallel_drop_all(par);
        return DT_OK;
    }
    if (!result)
        result = dti_parallel_exchange(par);
    if (result)
        return dti_parallel_failed(par, result);
    out->wait_seconds = 1e-9 * (double)(dti_now_ns() - par->replicas[0].passed - par->validate_ns);
    return dti_parallel_finish(par, out);
}
