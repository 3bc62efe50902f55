/* The step of a job with one replica and one batch slice, on a device that runs asynchronously.
 * Nothing is exchanged or agreed. So each micro-batch is a step of a program, which AGREE starts
 * and RUN waits for. Gradients stay on the device, and the next step begins while this one is in
 * flight. Replicas and ranks cannot do that. Their sums pass through the host between backward part
 * and commit, and no forward part may begin before the commit.
 *
 * The program's step slots are a ring of micro-batches. So one is written while another computes.
 * AGREE waits for the oldest if the ring is full, which may belong to the step before. */

/* The device moves running statistics with each micro-batch; statistics.c joins those of all. */
static bool dti_graph_has_statistics(const dt_graph *g) {
    bool any = false;
    for (uint32_t id = 1; id < g->count; id++)
        any = any ||
              (g->nodes[id].op == DTI_OP_PARAM && g->nodes[id].buffer && g->nodes[id].attr.i[2]);
    return any;
}

/* An asynchronous device is the whole job. */
static bool dti_parallel_is_one_device(const dti_parallel *par) {
    const dti_partition *job = &par->job;
    return !dti_parallel_is_local(par) && !dti_pipe_of(par) && !par->desc.parallel.offload &&
           par->mesh.world == 1 && job->replicas == 1 && !job->bounds &&
           par->desc.parallel.balance == DT_BALANCE_EQUAL && !par->desc.worker &&
           par->replicas[0].store->device->info.kind != DT_DEVICE_CPU;
}

/* On the CPU a step has run when its start returns, so there is nothing to go ahead of. */
static bool dti_parallel_is_alone(const dti_parallel *par) {
    const bool statistics = dti_graph_has_statistics(par->replicas[0].graph);
    return dti_parallel_is_one_device(par) && par->job.batch_slices == 1 &&
           (par->job.parts == 1 || (!statistics && !par->desc.skip_empty));
}

static bool dti_parallel_keeps_gradients(const dti_parallel *par) {
    return par->alone || dti_parallel_is_local(par) ||
           (dti_parallel_is_one_device(par) && !dti_units_are(par) &&
            !dti_graph_has_statistics(par->replicas[0].graph));
}

static dt_result dti_alone_program(dti_parallel *par, dti_replica *r, dti_micro_run *run) {
    dt_program_desc d = dti_replica_desc(par, r);
    d.batch = (int)run->rows;
    d.accumulate = par->job.parts > 1;
    d.in_flight = par->desc.in_flight == 1 && par->job.parts == 1 ? 1 : 2;
    d.skip_empty = par->desc.skip_empty;
    DTI_TRY(dti_program_create(r->store, &d, NULL, &run->program));
    return d.accumulate ? dti_host_weights_make(run->program) : DT_OK;
}

static uint64_t dti_alone_committed(const dti_parallel *par) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < par->under_way; i++)
        count += par->steps[(par->oldest + i) % DTI_STEP_SLOTS_MAX].committed;
    return count;
}

static bool dti_alone_faulty(const dti_parallel *par) {
    bool faulty = false;
    for (uint32_t i = 0; i < par->under_way; i++)
        faulty = faulty || par->steps[(par->oldest + i) % DTI_STEP_SLOTS_MAX].faulty;
    return faulty;
}

/* A step after a faulty one does not run: the trainer computes its batch again. */
static bool dti_alone_waits(const dti_parallel *par, uint32_t rows, const dt_step_desc *step) {
    return par->under_way == DTI_STEP_SLOTS_MAX || dti_alone_faulty(par);
}

static void dti_alone_fault(dti_step *s, const char *said, bool not_run) {
    if (s->faulty)
        return;
    s->faulty = true;
    s->not_run = not_run;
    snprintf(s->said, sizeof s->said, "%s", said);
}

/* Waits for the oldest micro-batch, which is of `s`. A NaN or infinity skips its step. */
static dt_result dti_alone_take(dti_parallel *par, dti_step *s) {
    dt_report report = {0};
    const dt_result result = dt_program_wait(par->replicas[0].store->running, &report);
    s->ended++;
    dti_terms_add(s->terms, &report);
    s->norm = report.gradient_norm;
    s->empty = report.empty;
    s->committed = report.committed;
    if (result == DT_ERROR_NUMERIC)
        dti_alone_fault(s, par->base->error, report.not_run);
    return result == DT_ERROR_NUMERIC ? DT_OK : result;
}

/* Of a step in flight, or of the one that begins. */
static dt_result dti_alone_take_oldest(dti_parallel *par) {
    uint32_t i = par->oldest;
    while (par->steps[i].ended == par->steps[i].begun)
        i = (i + 1) % DTI_STEP_SLOTS_MAX;
    return dti_alone_take(par, &par->steps[i]);
}

/* False: the store runs nothing, or a program of the host's. */
static bool dti_alone_runs(const dti_parallel *par) {
    bool any = false;
    for (uint32_t i = 0; i < DTI_STEP_SLOTS_MAX; i++)
        any = any || par->steps[i].ended != par->steps[i].begun;
    return any;
}

/* Until a micro-batch of `p` can be started without waiting. */
static dt_result dti_alone_room(dti_parallel *par, dt_program *p, const dt_step_desc *step) {
    const dt_store *s = p->store;
    dt_result result = DT_OK;
    while (!result && dti_alone_runs(par) && s->running &&
           (s->running != p || dti_inflight_waits(p, step)))
        result = dti_alone_take_oldest(par);
    return result;
}

/* Weighs all micro-batches, before the first is started. If the host has no copy of the targets,
 * the device does it. */
static dt_result dti_alone_weigh(dti_parallel *par, const dti_runs *runs) {
    dt_result result = DT_OK;
    memset(par->weights.sum, 0, DT_MAX_TERMS * sizeof(double));
    for (uint32_t i = 0; i < runs->count && runs->count > 1 && !result; i++) {
        dt_program *p = runs->runs[i].program;
        while (!result && !dti_micro_is_weighed_apart(&runs->runs[i]) && dti_alone_runs(par))
            result = dti_alone_take_oldest(par);
        if (!result)
            result = dti_micro_write_host_weights(par, &runs->runs[i]);
        if (!result)
            result = dti_program_weigh(p, par->weights.sum);
    }
    return result;
}

static dt_result dti_alone_micro(dti_parallel *par, const dti_runs *runs,
                                 const dti_micro_run *run) {
    dt_step_desc step = par->now->desc;
    step.first_row = run->row;
    step.micro_batch = run->micro;
    step.micro_batches = runs->count;
    DTI_TRY(dti_alone_room(par, run->program, &step));
    if (dti_alone_faulty(par))
        dti_alone_fault(par->now, "", true);
    if (par->now->faulty)
        return DT_OK;
    DTI_TRY(dti_micro_write(par, run));
    DTI_TRY(dti_program_start(run->program, &step, runs->count > 1 ? par->weights.sum : NULL));
    par->now->begun++;
    return DT_OK;
}

/* A step whose next micro-batch cannot be started: waits for all in flight. */
static dt_result dti_alone_abandon(dti_parallel *par, dt_result result) {
    const dti_error_text error = dti_error_of(par);
    while (par->now->ended < par->now->begun && !dti_alone_take_oldest(par)) {
    }
    return dti_fail(par->base, result, "%s", error.text);
}

static dt_result dti_alone_start(dti_parallel *par, uint32_t index) {
    const dti_runs *runs = par->replicas[index].runs;
    dt_result result = dti_alone_weigh(par, runs);
    for (uint32_t i = 0; i < runs->count && !result; i++)
        result = dti_alone_micro(par, runs, &runs->runs[i]);
    par->lost = par->lost || result == DT_ERROR_DEVICE_LOST;
    return result && par->now->begun ? dti_alone_abandon(par, result) : result;
}

static dt_result dti_alone_wait(dti_parallel *par) {
    dt_result result = DT_OK;
    while (!result && par->now->ended < par->now->begun)
        result = dti_alone_take(par, par->now);
    return result;
}

/* A step that is left out reports no metric, as where it is not even computed. */
static dt_result dti_alone_done(dti_parallel *par, dti_parallel_result *out) {
    const dti_step *s = par->now;
    const bool left_out = s->empty && par->desc.skip_empty;
    if (!left_out)
        memcpy(out->terms, s->terms, sizeof out->terms);
    out->norm = s->norm;
    out->empty = s->empty;
    out->committed = !s->faulty && !left_out;
    out->skipped = s->faulty && !s->not_run;
    return s->faulty ? dti_fail(par->base, DT_ERROR_NUMERIC, "%s", s->said) : DT_OK;
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
