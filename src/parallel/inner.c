/* Local steps: each replica makes a step of its own part of a batch, by a program that commits by
 * itself. Replicas exchange nothing until the round ends (round.c), or until two ranks average
 * (gossip.c). So gradients never leave a device, and a loss is divided by the weight of the
 * replica's own rows. Faulty samples are found before anything is computed: then no replica of this
 * process has moved, and the step is tried again. A NaN or infinity skips the step of that replica
 * only. */

static bool dti_parallel_is_local(const dti_parallel *par) {
    return par->desc.round.steps > 0;
}

static dt_result dti_inner_program(dti_parallel *par, dti_replica *r, dti_micro_run *run) {
    dt_program_desc d = dti_replica_desc(par, r);
    d.batch = (int)run->rows;
    d.accumulate = par->job.parts > 1;
    return dti_program_create(r->store, &d, NULL, &run->program);
}

/* Samples to all programs, for their labels; the first one's are written last, and stay. */
static void dti_inner_write(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    dti_replica *r = &par->replicas[index];
    memset(r->weights, 0, DT_MAX_TERMS * sizeof *r->weights);
    for (uint32_t i = r->runs->count; i-- > 0 && !r->result;) {
        const dti_micro_run *run = &r->runs->runs[i];
        r->result = dti_micro_write(par, run);
        if (!r->result && (r->runs->count > 1 || par->desc.skip_empty))
            r->result = dt_program_add_loss_weights(run->program, r->weights);
    }
}

static void dti_inner_add(double sum[DTI_TERMS_WIDTH], const dt_report *r) {
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        sum[i] += r->loss_sum[i];
        sum[DTI_TERMS_WEIGHT + i] += r->loss_weight[i];
        sum[DTI_TERMS_METRIC + i] += r->metric_sum[i];
        sum[DTI_TERMS_METRIC_WEIGHT + i] += r->metric_weight[i];
    }
}

static dt_result dti_inner_micro(dti_parallel *par, dti_replica *r, const dti_micro_run *run,
                                 double *terms) {
    dt_step_desc step = par->step;
    dt_report report;
    step.first_row = run->row;
    step.micro_batch = run->micro;
    step.micro_batches = r->runs->count;
    dt_result result = run->micro ? dti_micro_write(par, run) : DT_OK;
    if (!result)
        result = r->runs->count > 1
                     ? dti_program_run_weighed(run->program, &step, r->weights, &report)
                     : dt_program_run(run->program, &step, &report);
    if (result)
        return result;
    dti_inner_add(terms, &report);
    r->norm = report.gradient_norm;
    return DT_OK;
}

static bool dti_inner_is_empty(const double *weights) {
    bool empty = true;
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++)
        empty = empty && weights[i] == 0.0;
    return empty;
}

/* Steps count whether they were left out or not, so that all replicas are at the same one. */
static void dti_inner_run(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    dti_replica *r = &par->replicas[index];
    double *now = par->round.terms + (size_t)index * 2 * DTI_TERMS_WIDTH;
    memset(now, 0, DTI_TERMS_WIDTH * sizeof *now);
    const bool out = par->desc.skip_empty && dti_inner_is_empty(r->weights);
    for (uint32_t i = 0; i < r->runs->count && !r->result && !out; i++)
        r->result = dti_inner_micro(par, r, &r->runs->runs[i], now);
    r->faulty = r->result == DT_ERROR_NUMERIC;
    r->empty = r->runs->count && !r->faulty && dti_inner_is_empty(now + DTI_TERMS_WEIGHT);
    if (r->faulty)
        memset(now, 0, DTI_TERMS_WIDTH * sizeof *now);
    for (uint32_t i = 0; i < DTI_TERMS_WIDTH; i++)
        now[DTI_TERMS_WIDTH + i] += now[i];
    if (!r->result || r->faulty)
        r->store->steps = par->step.step;
}

/* Rows that only fill up a batch are no reason for a step. */
static void dti_inner_prepare(dti_parallel *par, const dti_batch *batch, const dt_step_desc *step) {
    par->batch = batch;
    par->rows = batch->rows;
    par->step = *step;
    par->times = (dti_step_times){0};
    par->round.skipped_now = par->round.empty_now = 0;
    for (uint32_t i = 0; i < par->job.local; i++) {
        dti_replica *r = &par->replicas[i];
        r->runs = batch->rows == r->full.rows ? &r->full : &r->tail;
        if (r->runs->count && r->runs->runs[0].row >= batch->real)
            r->runs = &par->round.none;
        r->result = DT_OK;
        atomic_store(&r->failed, false);
    }
}

/* A NaN or infinity is not an error of the step; the first one's reason is told with the round. */
static dt_result dti_inner_skipped(dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++) {
        dti_replica *r = &par->replicas[i];
        par->round.empty_now += r->empty;
        if (!r->faulty)
            continue;
        r->result = DT_OK;
        par->round.skipped_now++;
        if (!par->round.said[0])
            snprintf(par->round.said, sizeof par->round.said, "replica %u: %.470s",
                     par->job.first + i, dti_ctx_base(r->ctx)->error);
    }
    par->round.skipped += par->round.skipped_now;
    par->round.empty += par->round.empty_now;
    return dti_replicas_result(par);
}

/* Of this process alone. */
static void dti_inner_report(const dti_parallel *par, dti_parallel_result *out) {
    double sum[DTI_TERMS_WIDTH] = {0};
    for (uint32_t i = 0; i < par->job.local; i++) {
        for (uint32_t k = 0; k < DTI_TERMS_WIDTH; k++)
            sum[k] += par->round.terms[(size_t)i * 2 * DTI_TERMS_WIDTH + k];
    }
    dti_terms_report(sum, out);
    out->norm = par->replicas[0].norm;
    out->steps = 1;
    out->samples = par->batch->real;
    out->left_out = par->round.skipped_now;
    out->empty = par->round.empty_now;
    out->committed = true;
}

/* A schedule of the application's may give anything: then the step has not begun. */
static dt_result dti_inner_rate(dti_parallel *par, const dt_step_desc *step) {
    const dt_optim_desc optim = dti_optim_resolved(&par->desc.optim);
    const double lr = dti_optim_lr_at(&optim, step->lr, step->step);
    if (dti_optim_lr_fits(&optim, lr))
        return DT_OK;
    return dti_fail(par->base, DT_ERROR_INVALID,
                    "step %llu: a learning rate of %g; it must be from 0 to %g",
                    (unsigned long long)step->step, lr, dti_optim_lr_max(&optim));
}

static dt_result dti_inner_step(dti_parallel *par, const dti_batch *batch, dt_result own,
                                const dt_step_desc *step, dti_parallel_result *out) {
    *out = (dti_parallel_result){0};
    if (own)
        return own;
    dti_inner_prepare(par, batch, step);
    dt_result result = par->round.done ? DT_OK : dti_round_open(par);
    if (result)
        return dti_parallel_partial_commit(par, result, false);
    result = dti_inner_rate(par, step);
    if (result)
        return result;
    dti_device_team_run(par->device_team, dti_inner_write, par);
    result = dti_replicas_result(par);
    if (result)
        return result;
    dti_device_team_run(par->device_team, dti_inner_run, par);
    result = dti_inner_skipped(par);
    if (result)
        return dti_round_partial_commit(par, result);
    const uint64_t mark = dti_parallel_mark(par);
    par->round.mark = dti_hash64(par->round.mark, &mark, sizeof mark);
    par->round.samples += batch->real;
    par->round.done++;
    dti_inner_report(par, out);
    const bool ends = par->round.done == par->desc.round.steps || batch->last;
    if (ends)
        return dti_round_close(par, out);
    return dti_gossip_is_due(par) ? dti_gossip_meet(par, out) : DT_OK;
}
