/* The step of a job that is one replica with one batch slice, on a device that runs on its own.
 * Nothing is exchanged or agreed, so it is a program by itself: gradients stay on the device, and
 * the next step is started while this one is in flight. Replicas and ranks cannot do that: their
 * sums pass through the host between backward part and commit, and no forward part may begin before
 * the commit. */

/* On the CPU a step has run when its start returns, so there is nothing to go ahead of. */
static bool dti_parallel_is_alone(const dti_parallel *par) {
    const dti_partition *job = &par->job;
    return !dti_parallel_is_local(par) && !par->desc.offload && par->mesh.world == 1 &&
           job->replicas == 1 && job->batch_slices == 1 && job->parts == 1 && !job->bounds &&
           !par->desc.measured && !par->desc.worker &&
           par->replicas[0].store->device->info.kind != DT_DEVICE_CPU;
}

static dt_result dti_alone_program(dti_parallel *par, dti_replica *r, dti_micro_run *run) {
    dt_program_desc d = dti_replica_desc(par, r);
    d.batch = (int)run->rows;
    d.in_flight = par->desc.in_flight == 1 ? 1 : 2;
    d.skip_empty = par->desc.skip_empty;
    return dti_program_create(r->store, &d, NULL, &run->program);
}

static dt_program *dti_alone_of(const dti_parallel *par, uint32_t rows) {
    const dti_replica *r = &par->replicas[0];
    return rows == r->full.rows ? r->full.runs[0].program : r->tail.runs[0].program;
}

static bool dti_alone_waits(const dti_parallel *par, uint32_t rows, const dt_step_desc *step) {
    dt_program *p = dti_alone_of(par, rows);
    const dt_store *s = p->store;
    return s->running && (s->running != p || dti_inflight_waits(p, step));
}

static dt_result dti_alone_start(dti_parallel *par, const dti_batch *batch,
                                 const dt_step_desc *step) {
    dti_replica *r = &par->replicas[0];
    const dti_runs *runs = batch->rows == r->full.rows ? &r->full : &r->tail;
    par->batch = batch;
    dt_result result = dti_micro_write(par, &runs->runs[0]);
    if (!result)
        result = dt_program_start(runs->runs[0].program, step);
    par->lost = par->lost || result == DT_ERROR_DEVICE_LOST;
    return result;
}

static dt_result dti_alone_end(dti_parallel *par, dti_parallel_result *out, bool *ran) {
    dt_program *p = par->replicas[0].store->running;
    dt_report report = {0};
    *out = (dti_parallel_result){0};
    dt_result result = dt_program_wait(p, &report);
    *ran = !report.not_run;
    par->lost = par->lost || (result && result != DT_ERROR_NUMERIC);
    memcpy(out->loss_sum, report.loss_sum, sizeof out->loss_sum);
    memcpy(out->loss_weight, report.loss_weight, sizeof out->loss_weight);
    memcpy(out->metric_sum, report.metric_sum, sizeof out->metric_sum);
    memcpy(out->metric_weight, report.metric_weight, sizeof out->metric_weight);
    out->norm = report.gradient_norm;
    out->committed = !result && !(report.empty && par->desc.skip_empty);
    out->empty = report.empty;
    out->skipped = result == DT_ERROR_NUMERIC && *ran;
    return result;
}
