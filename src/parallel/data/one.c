/* The step of a job that is one replica with one batch slice, on a device that runs on its own.
 * Nothing is exchanged or agreed, so it is a program by itself, which AGREE starts and RUN waits
 * for: gradients stay on the device, and the next step begins while this one is in flight. Replicas
 * and ranks cannot do that: their sums pass through the host between backward part and commit, and
 * no forward part may begin before the commit. */

/* On the CPU a step has run when its start returns, so there is nothing to go ahead of. */
static bool dti_parallel_is_alone(const dti_parallel *par) {
    const dti_partition *job = &par->job;
    return !dti_parallel_is_local(par) && !par->desc.parallel.offload && par->mesh.world == 1 &&
           job->replicas == 1 && job->batch_slices == 1 && job->parts == 1 && !job->bounds &&
           par->desc.parallel.balance == DT_BALANCE_EQUAL && !par->desc.worker &&
           par->replicas[0].store->device->info.kind != DT_DEVICE_CPU;
}

static dt_result dti_alone_program(dti_parallel *par, dti_replica *r, dti_micro_run *run) {
    dt_program_desc d = dti_replica_desc(par, r);
    d.batch = (int)run->rows;
    d.in_flight = par->desc.in_flight == 1 ? 1 : 2;
    d.skip_empty = par->desc.skip_empty;
    return dti_program_create(r->store, &d, NULL, &run->program);
}

static bool dti_alone_waits(const dti_parallel *par, uint32_t rows, const dt_step_desc *step) {
    const dti_replica *r = &par->replicas[0];
    dt_program *p = (rows == r->full.rows ? &r->full : &r->tail)->runs[0].program;
    const dt_store *s = p->store;
    return s->running && (s->running != p || dti_inflight_waits(p, step));
}

static dt_result dti_alone_start(dti_parallel *par, uint32_t index) {
    const dti_micro_run *run = &par->replicas[index].runs->runs[0];
    dt_result result = dti_micro_write(par, run);
    if (!result)
        result = dt_program_start(run->program, &par->now->desc);
    par->lost = par->lost || result == DT_ERROR_DEVICE_LOST;
    return result;
}

/* What is not finite skips this step. One behind it that was in flight has not run. */
static dt_result dti_alone_wait(dti_parallel *par) {
    dti_replica *r = &par->replicas[0];
    dt_report report = {0};
    const dt_result result = dt_program_wait(r->store->running, &report);
    memset(par->terms.leaves, 0, DTI_TERMS_WIDTH * sizeof *par->terms.leaves);
    dti_terms_add(par->terms.leaves, &report);
    r->norm = report.gradient_norm;
    r->empty = report.empty;
    r->faulty = result == DT_ERROR_NUMERIC;
    par->now->not_run = report.not_run;
    return r->faulty ? DT_OK : result;
}

static dt_result dti_alone_done(dti_parallel *par, dti_parallel_result *out) {
    const dti_replica *r = &par->replicas[0];
    memcpy(out->terms, par->terms.leaves, sizeof out->terms);
    out->norm = r->norm;
    out->empty = r->empty;
    out->committed = !r->faulty && !(r->empty && par->desc.skip_empty);
    out->skipped = r->faulty && !par->now->not_run;
    return r->faulty ? DT_ERROR_NUMERIC : DT_OK;
}

static const dti_strategy dti_alone_strategy = {.scope = DTI_STEP_OF_REPLICA,
                                                .prepare = dti_replicas_runs,
                                                .team = dti_replicas_team,
                                                .result = dti_replicas_result,
                                                .weigh = dti_alone_start,
                                                .weigh_forward = dti_alone_start,
                                                .run = dti_alone_wait,
                                                .done = dti_alone_done,
                                                .leave = dti_parallel_leave,
                                                .waits = dti_alone_waits};
