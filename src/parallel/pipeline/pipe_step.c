/* A grid of pipelines: its strategy of the commit protocol (protocol.h), and the actions of its
 * devices' lists (pipe_list.c). A forward part reads the outputs of earlier chunks, which stay
 * until their backward part of that micro-batch. A backward part writes the gradients of its inputs
 * to the chunks that sent these, into the waiting micro-batch slot. A device with several slices
 * computes them alternately. */

static dti_runs *dti_pipe_runs_now(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    return &par->pipe->pipelines[chunk->pipeline].runs[par->pipe->shape];
}

static const dti_pipe_run *dti_pipe_run_of(const dti_parallel *par, const dti_pipe_chunk *chunk,
                                           uint32_t micro) {
    return &chunk->runs[par->pipe->shape][micro];
}

static dt_program *dti_pipe_take(const dti_parallel *par, const dti_pipe_chunk *chunk,
                                 uint32_t micro) {
    const dti_pipe_run *run = dti_pipe_run_of(par, chunk, micro);
    dti_micro_slot_take(run->program, run->micro_slot);
    return run->program;
}

static dt_program *dti_pipe_last(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipeline *pipeline = &par->pipe->pipelines[chunk->pipeline];
    const uint32_t shape = dti_pipe_runs_now(par, chunk)->count ? par->pipe->shape : 0;
    return chunk->runs[shape][pipeline->runs[shape].count - 1].program;
}

static void dti_pipe_device_ended(dti_pipe *pipe, uint32_t device, dt_result result) {
    pipe->devices[device].result = result;
    if (result)
        atomic_store(&pipe->failed, true);
}

static void dti_pipe_phase(void *arg, uint32_t device) {
    const dti_phase_call *p = arg;
    dti_pipe *pipe = p->par->pipe;
    const dti_pipe_device *own = &pipe->devices[device];
    dt_result result = DT_OK;
    for (uint32_t c = own->place; c < pipe->chunk_count; c += pipe->mesh->stages) {
        for (uint32_t k = 0; k < pipe->each && !result; k++)
            result = p->fn(p->par, (own->pipeline + k) * pipe->chunk_count + c);
    }
    dti_pipe_device_ended(pipe, device, result);
}

static void dti_pipe_team(dti_parallel *par, dti_phase_fn *fn) {
    dti_phase_call phase = {par, fn};
    dti_device_team_run(par->pipe->device_team, dti_pipe_phase, &phase);
}

/* ---- inputs and weights */

static dt_result dti_pipe_write(const dti_parallel *par, const dti_pipe_chunk *chunk,
                                uint32_t micro, dt_program *p) {
    const dti_micro_run *run = &dti_pipe_runs_now(par, chunk)->runs[micro];
    const dti_tp *shared = par->pipe->shared;
    return dti_batch_write(par->now->batch, run->row, run->rows, p, shared ? shared->stands : NULL,
                           false, false);
}

static double *dti_pipe_leaf(const dti_parallel *par, const dti_scalar_sum *s,
                             const dti_pipe_chunk *chunk, uint32_t micro) {
    const dti_micro_run *run = &dti_pipe_runs_now(par, chunk)->runs[micro];
    return s->leaves + (size_t)run->pieces[0].leaf * s->width;
}

/* Tensor ranks have the same targets: the first one's are used. */
static dt_result dti_pipe_weigh(dti_parallel *par, uint32_t part) {
    const dti_pipe_chunk *chunk = &par->pipe->chunks[part];
    const dti_pipe_stage *stage = dti_pipe_stage_of(par->pipe, chunk);
    const bool tells = par->pipe->pipelines[chunk->pipeline].tp_rank == 0;
    const uint32_t count = tells ? dti_pipe_runs_now(par, chunk)->count : 0;
    for (uint32_t m = 0; m < count; m++) {
        dt_program *p = dti_pipe_take(par, chunk, m);
        double *leaf = dti_pipe_leaf(par, &par->weights, chunk, m), weights[DT_MAX_TERMS] = {0};
        if (dti_program_weighs(p) || dti_program_labels(p))
            DTI_TRY(dti_pipe_write(par, chunk, m, p));
        DTI_TRY(dti_program_weigh(p, weights));
        for (uint32_t i = 0; i < dti_program_code(p)->loss_count; i++)
            leaf[stage->losses[i]] += weights[i];
    }
    return DT_OK;
}

/* ---- data between chunks of a rank */

/* Copies a micro-batch's outputs to where another chunk reads them. */
static void dti_pipe_carry(const dti_pipe_run *from, const dti_pipe_run *to, const dti_pipe_link *l,
                           bool gradient) {
    const dti_binding *out = dti_pipe_binding(from, l, true, gradient),
                      *in = dti_pipe_binding(to, l, false, gradient);
    if (in)
        memcpy(dti_micro_slot_host(to->program, to->micro_slot, in),
               dti_micro_slot_host(from->program, from->micro_slot, out), (size_t)in->bytes);
}

/* ---- actions: of a chunk's micro-batch, in each slice of the device */

typedef dt_result dti_pipe_act(dti_parallel *par, dti_pipe_chunk *chunk, const dti_action *a);

static dt_result dti_pipe_act_write(dti_parallel *par, dti_pipe_chunk *chunk, const dti_action *a) {
    return dti_pipe_write(par, chunk, a->micro, dti_pipe_take(par, chunk, a->micro));
}

static dt_result dti_pipe_act_open(dti_parallel *par, dti_pipe_chunk *chunk, const dti_action *a) {
    const dti_pipe_stage *stage = dti_pipe_stage_of(par->pipe, chunk);
    dt_step_desc step = par->now->desc;
    if (par->pipe->plan->forward)
        return dti_forward_open(par, chunk, a);
    dti_grid_number(dti_pipe_runs_now(par, chunk), a->micro, &step);
    step.coefficients = stage->coefficients;
    return dti_micro_slot_begin(dti_pipe_take(par, chunk, a->micro), &step, stage->weights);
}

static dt_result dti_pipe_act_receive(dti_parallel *par, dti_pipe_chunk *chunk,
                                      const dti_action *a) {
    const dti_pipe_cut *cut = &par->pipe->plan->cut;
    for (uint32_t i = 0; i < cut->link_count; i++) {
        const dti_pipe_link *l = &cut->links[i];
        const dti_pipe_chunk *from = dti_pipe_chunk_of(par->pipe, chunk->pipeline, l->from);
        if (l->to == chunk->index && from->store)
            dti_pipe_carry(dti_pipe_run_of(par, from, a->micro),
                           dti_pipe_run_of(par, chunk, a->micro), l, false);
        else if (l->to == chunk->index)
            dti_pipe_unpack(par, chunk->pipeline, i, a->micro);
    }
    return DT_OK;
}

static dt_result dti_pipe_act_segments(dti_parallel *par, dti_pipe_chunk *chunk,
                                       const dti_action *a) {
    return dti_micro_slot_run(dti_pipe_take(par, chunk, a->micro), a->what - a->from + 1u);
}

static dt_result dti_pipe_act_send(dti_parallel *par, dti_pipe_chunk *chunk, const dti_action *a) {
    const dti_pipe_cut *cut = &par->pipe->plan->cut;
    for (uint32_t i = 0; i < cut->link_count; i++) {
        const dti_pipe_link *l = &cut->links[i];
        const dti_pipe_chunk *back = dti_pipe_chunk_of(par->pipe, chunk->pipeline, l->back);
        if (l->to == chunk->index && l->gradient && back->store)
            dti_pipe_carry(dti_pipe_run_of(par, chunk, a->micro),
                           dti_pipe_run_of(par, back, a->micro), l, true);
    }
    return DT_OK;
}

static dt_result dti_pipe_act_close(dti_parallel *par, dti_pipe_chunk *chunk, const dti_action *a) {
    const dt_program *p = dti_pipe_take(par, chunk, a->micro);
    dti_pipe_stage *stage = dti_pipe_stage_of(par->pipe, chunk);
    if (par->pipe->plan->forward)
        return dti_forward_done(par, chunk, a);
    if (par->pipe->pipelines[chunk->pipeline].tp_rank == 0)
        dti_leaf_terms(dti_pipe_leaf(par, &par->terms, chunk, a->micro), p, 0, stage->losses,
                       stage->metrics);
    dti_statistics_take(&stage->statistics, &dti_pipe_runs_now(par, chunk)->runs[a->micro], p);
    return DT_OK;
}

/* Gradients of a micro-batch's parameters have been computed. */
static dt_result dti_pipe_act_sum(dti_parallel *par, dti_pipe_chunk *chunk, const dti_action *a) {
    dt_program *p = dti_pipe_take(par, chunk, a->micro);
    if (a->micro + 1 < dti_pipe_runs_now(par, chunk)->count)
        dti_micro_slot_end(p);
    return dti_pipe_summed(par, chunk, a->micro);
}

static dti_pipe_act *const dti_pipe_acts[DTI_ACTION_KINDS] = {
    [DTI_ACTION_WRITE] = dti_pipe_act_write,       [DTI_ACTION_OPEN] = dti_pipe_act_open,
    [DTI_ACTION_RECEIVE] = dti_pipe_act_receive,   [DTI_ACTION_FORWARD] = dti_pipe_act_segments,
    [DTI_ACTION_BACKWARD] = dti_pipe_act_segments, [DTI_ACTION_SEND] = dti_pipe_act_send,
    [DTI_ACTION_CLOSE] = dti_pipe_act_close,       [DTI_ACTION_SUM] = dti_pipe_act_sum,
    [DTI_ACTION_ZEROS] = dti_pipe_summed_none,     [DTI_ACTION_GATHER] = dti_pipe_units_gather,
};

/* Tensor ranks of a stage, those of this device together. */
static dt_result dti_pipe_act_meet(dti_parallel *par, uint32_t device, const dti_action *a) {
    const dti_pipe *pipe = par->pipe;
    dti_pipe_device *own = &pipe->devices[device];
    const uint32_t c = pipe->chunks[a->part].index;
    dt_program *programs[DTI_TP_MAX];
    for (uint32_t k = 0; k < pipe->each; k++)
        programs[k] = dti_pipe_take(par, dti_pipe_chunk_of(pipe, own->pipeline + k, c), a->micro);
    const dti_tp_run run = {.place = own->tp,
                            .device = device,
                            .number = pipe->pipelines[own->pipeline].tp_rank,
                            .count = pipe->each,
                            .programs = programs};
    return dti_tp_meet(par, &run, &dti_program_code(programs[0])->sync_points[a->what], a->met,
                       &own->walk.given_up);
}

/* An evaluation knows which micro-batch is not finite; those of a step are looked at one after the
 * other. */
static dt_result dti_pipe_look(dti_parallel *par, uint32_t device, const dti_action *a) {
    const dti_pipe *pipe = par->pipe;
    const dti_pipe_evaluation *f = pipe->plan->forward;
    const uint32_t c = pipe->chunks[a->part].index;
    const uint32_t part = a->kind == DTI_ACTION_FORWARD ? c : 2 * pipe->chunk_count - 1 - c;
    for (uint32_t k = 0; k < pipe->each; k++) {
        const dti_pipe_chunk *chunk =
            dti_pipe_chunk_of(pipe, pipe->devices[device].pipeline + k, c);
        const dti_micro_run *run = &dti_pipe_runs_now(par, chunk)->runs[a->micro];
        if (!f || run->pieces[0].leaf + 1 == f->fault)
            DTI_TRY(dti_search_segments(par, device, dti_pipe_take(par, chunk, a->micro), a, part));
    }
    return DT_OK;
}

static dt_result dti_pipe_perform(dti_parallel *par, uint32_t device, const dti_action *a) {
    const dti_pipe *pipe = par->pipe;
    const uint32_t c = pipe->chunks[a->part].index;
    if (a->kind == DTI_ACTION_COLLECTIVE)
        return dti_pipe_act_meet(par, device, a);
    for (uint32_t k = 0; k < pipe->each; k++)
        DTI_TRY(dti_pipe_acts[a->kind](
            par, dti_pipe_chunk_of(pipe, pipe->devices[device].pipeline + k, c), a));
    return DT_OK;
}

static dti_list_walk *dti_pipe_walk(const dti_parallel *par, uint32_t device) {
    return &par->pipe->devices[device].walk;
}

static bool dti_pipe_failed(const dti_parallel *par) {
    return atomic_load(&par->pipe->failed);
}

static const dti_action_calls dti_pipe_calls = {.walk = dti_pipe_walk,
                                                .act = dti_pipe_perform,
                                                .search = dti_pipe_look,
                                                .failed = dti_pipe_failed,
                                                .help = dti_pipe_speak};

static void dti_pipe_compute(void *arg, uint32_t device) {
    dti_parallel *par = arg;
    dti_pipe_device_ended(par->pipe, device,
                          dti_list_run(par, device, par->pipe->devices[device].walk.list->count));
}

/* ---- the update */

static dt_result dti_pipe_norm(dti_parallel *par, uint32_t part) {
    const dti_pipe_chunk *chunk = &par->pipe->chunks[part];
    dt_program *p = dti_pipe_last(par, chunk);
    dt_result result = dti_pipe_sums_put(par, chunk);
    if (!result && !dti_pipe_runs_now(par, chunk)->count) {
        result = dti_program_begin_commit(p, &par->now->desc);
        p->store->running = NULL;
    }
    return result ? result : dti_micro_slot_run(p, 1);
}

static dt_result dti_pipe_validate(dti_parallel *par, uint32_t part) {
    dti_pipe_chunk *chunk = &par->pipe->chunks[part];
    dt_program *p = dti_pipe_last(par, chunk);
    DTI_TRY(dti_micro_slot_run(p, 1));
    const uint32_t *status = dti_program_out(p);
    chunk->norm = (double)dti_status_f32(status, DTI_STATUS_NORM);
    if (status[DTI_STATUS_ABORT])
        atomic_store(&par->now->faulty, true);
    return DT_OK;
}

static dt_result dti_pipe_commit(dti_parallel *par, uint32_t part) {
    const dti_pipe_chunk *chunk = &par->pipe->chunks[part];
    const dt_result result = dti_program_commit(dti_pipe_last(par, chunk));
    return result ? result : dti_pipe_units_written(par, chunk);
}

/* ---- the step */

static dt_result dti_pipe_result(dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    uint32_t d = 0;
    while (d < pipe->device_count && !pipe->devices[d].result)
        d++;
    if (d == pipe->device_count)
        return DT_OK;
    const dti_pipe_device *own = &pipe->devices[d];
    if (par->lost) /* a comm that failed has said so */
        return own->result;
    return dti_pipe_chunk_failed(par, dti_pipe_chunk_of(pipe, own->pipeline, own->place),
                                 own->result);
}

/* Nothing has begun, in the plan and shape that are in use. */
static void dti_pipe_prepare(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    atomic_store(&pipe->failed, false);
    for (uint32_t d = 0; d < pipe->device_count; d++)
        pipe->devices[d].walk = (dti_list_walk){.list = &pipe->devices[d].lists[pipe->shape]};
    for (uint32_t i = 0; i < pipe->plan->counter_count; i++)
        atomic_store(&par->counters[i], 0);
    dti_pipe_wires_begin(par);
    dti_pipe_units_begin(par);
}

static void dti_pipe_step_prepare(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    pipe->shape = dti_pipe_shape(pipe, par->now->rows != par->desc.batch && par->desc.tail);
    for (uint32_t s = 0; s < pipe->stage_count; s++) {
        dti_pipe_stage *stage = &pipe->stages[s];
        for (int i = 0; i < DT_MAX_TERMS; i++)
            stage->coefficients[i] = par->now->desc.coefficients[stage->losses[i]];
    }
    dti_pipe_prepare(par);
    dti_pipe_sums_begin(par);
}

static void dti_pipe_weights_take(dti_parallel *par) {
    for (uint32_t s = 0; s < par->pipe->stage_count; s++) {
        dti_pipe_stage *stage = &par->pipe->stages[s];
        for (int i = 0; i < DT_MAX_TERMS; i++)
            stage->weights[i] = par->weights.sum[stage->losses[i]];
    }
}

/* All lists, all messages. */
static dt_result dti_pipe_lists(dti_parallel *par) {
    dti_device_team_run(par->pipe->device_team, dti_pipe_compute, par);
    const dt_result result = dti_pipe_result(par);
    return result ? result : dti_parallel_comm_failed(par, dti_pipe_wires_end(par));
}

/* And all sums. */
static dt_result dti_pipe_run_all(dti_parallel *par) {
    dti_pipe_weights_take(par);
    DTI_TRY(dti_pipe_lists(par));
    return dti_exchange_finish(par);
}

static uint64_t dti_pipe_waited(const dti_parallel *par) {
    return par->pipe->devices[0].walk.waited;
}

static dt_result dti_pipe_publish(dti_parallel *par) {
    const dt_result result = dti_pipe_share_params(par);
    return result ? dti_protocol_partial_commit(par, result) : DT_OK;
}

static void dti_pipe_report(dti_parallel *par, dti_parallel_result *out) {
    const dti_pipe_chunk *chunk = dti_pipe_first(par->pipe);
    par->replicas[0].store->steps = chunk->store->steps;
    out->norm = chunk->norm;
}

/* ---- a step that is not made */

static const char *dti_pipe_statistic(const dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    const char *fault = NULL;
    for (uint32_t s = 0; s < pipe->stage_count && !fault; s++) {
        const dti_pipe_stage *stage = &pipe->stages[s];
        if (stage->chunk)
            fault = dti_statistics_fault(&stage->statistics, stage->chunk->graph);
    }
    return fault;
}

static dt_result dti_pipe_update_look(dti_parallel *par, uint32_t part) {
    const dti_pipe_chunk *chunk = &par->pipe->chunks[part];
    dti_search_update(par, chunk->device, dti_pipe_last(par, chunk), chunk->index);
    return DT_OK;
}

static void dti_pipe_drop(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    for (dti_pipe_chunk *chunk = NULL; (chunk = dti_pipe_next(pipe, chunk)) != NULL;) {
        for (uint32_t m = 0; m < dti_pipe_runs_now(par, chunk)->count; m++)
            dti_micro_slot_end(dti_pipe_run_of(par, chunk, m)->program);
        dti_micro_slot_end(dti_pipe_last(par, chunk));
    }
}

static dt_result dti_pipe_load(dti_parallel *par) {
    for (uint32_t s = 0; s < par->pipe->stage_count; s++) {
        dti_pipe_stage *stage = &par->pipe->stages[s];
        if (stage->chunk)
            DTI_TRY(dti_statistics_load(&stage->statistics, stage->chunk->store));
    }
    return DT_OK;
}

static const dti_strategy dti_pipe_strategy = {.others_wait = true,
                                               .calls = &dti_pipe_calls,
                                               .split = true,
                                               .prepare = dti_pipe_step_prepare,
                                               .team = dti_pipe_team,
                                               .result = dti_pipe_result,
                                               .before = dti_pipe_weigh_by_all,
                                               .weigh = dti_pipe_weigh,
                                               .run = dti_pipe_run_all,
                                               .statistics = dti_pipe_statistics,
                                               .waited = dti_pipe_waited,
                                               .norm = dti_pipe_norm,
                                               .pairs = dti_pipe_pairs,
                                               .validate = dti_pipe_validate,
                                               .write = dti_pipe_commit,
                                               .publish = dti_pipe_publish,
                                               .report = dti_pipe_report,
                                               .statistic = dti_pipe_statistic,
                                               .updates = dti_pipe_update_look,
                                               .rewind = dti_pipe_prepare,
                                               .lists = dti_pipe_lists,
                                               .load = dti_pipe_load,
                                               .drop = dti_pipe_drop,
                                               .leave = dti_pipe_leave,
                                               .parts = "stages"};
