/* A step of a pipeline. Each device's thread works off its list; a part begins when those that it
 * needs have ended, which two counters a chunk tell. A forward part fetches what it needs from
 * where earlier chunks left it, which stays until their backward part of that micro-batch; a
 * backward part brings the gradients of what it got to the chunks that gave it, whose lanes of that
 * micro-batch wait for them. Nothing changes in any store before all have judged. */

static dti_runs *dti_pipe_runs_now(const dti_parallel *par) {
    dti_replica *r = &par->replicas[0];
    return par->pipe->tail ? &r->tail : &r->full;
}

static const dti_pipe_run *dti_pipe_run_of(const dti_parallel *par, uint32_t chunk,
                                           uint32_t micro) {
    return &par->pipe->chunks[chunk].runs[par->pipe->tail][micro];
}

static dt_program *dti_pipe_take(const dti_parallel *par, uint32_t chunk, uint32_t micro) {
    const dti_pipe_run *run = dti_pipe_run_of(par, chunk, micro);
    dti_lane_take(run->program, run->lane);
    return run->program;
}

/* The program whose lane made the last backward part: its step commits. */
static dt_program *dti_pipe_last(const dti_parallel *par, uint32_t chunk) {
    return dti_pipe_run_of(par, chunk, dti_pipe_runs_now(par)->count - 1)->program;
}

/* ---- inputs and weights */

static dt_result dti_pipe_write(const dti_parallel *par, uint32_t chunk, uint32_t micro,
                                dt_program *p) {
    const dti_micro_run *run = &dti_pipe_runs_now(par)->runs[micro];
    const dti_batch *batch = par->batch;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < par->columns && !result; i++) {
        const size_t size = par->input_bytes[i];
        const char *data = batch->values[i];
        const dt_tensor input = {par->pipe->chunks[chunk].graph, par->inputs[i].id};
        const uint32_t at = run->row - batch->first;
        if (dti_code_port(dti_program_code(p), input.id, false, false))
            result = dti_program_write_rows(p, input, data + at * size, run->rows * size,
                                            batch->sources + at);
    }
    return result;
}

/* A parameter that goes over, to the chunk's micro-batches that weigh targets by it. */
static dt_result dti_pipe_weigh_by(const dti_parallel *par, const dti_pipe_link *l,
                                   const dti_pipe_chunk *owner) {
    const dti_layout *layout = &owner->store->layout;
    uint32_t i = 0;
    dt_result result = DT_OK;
    while (i < layout->param_count && layout->params[i].node != l->node)
        i++;
    for (uint32_t m = 0; i < layout->param_count && m < dti_pipe_runs_now(par)->count; m++) {
        const dti_pipe_run *run = dti_pipe_run_of(par, l->to, m);
        const dti_port *in = dti_code_port(dti_program_code(run->program), l->node, false, false);
        if (!in || !dti_program_weighs(run->program) || result)
            continue;
        result = owner->store->device->backend->memory_read(
            owner->store->memories[DTI_ARENA_PARAM], dti_arena_bytes(layout->params[i].offset),
            dti_lane_host(run->program, run->lane, in), (size_t)in->bytes);
    }
    return result;
}

static dt_result dti_pipe_weigh_by_all(const dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < pipe->cut.link_count; i++) {
        const dti_pipe_link *l = &pipe->cut.links[i];
        for (uint32_t c = 0; c < pipe->chunk_count && !result; c++)
            if (c != l->to)
                result = dti_pipe_weigh_by(par, l, &pipe->chunks[c]);
    }
    return result;
}

static dt_result dti_pipe_weigh_chunk(dti_parallel *par, uint32_t c) {
    dti_pipe_chunk *chunk = &par->pipe->chunks[c];
    dt_result result = DT_OK;
    for (uint32_t m = 0; m < dti_pipe_runs_now(par)->count && !result; m++) {
        dt_program *p = dti_pipe_take(par, c, m);
        if (dti_program_weighs(p) || dti_program_labels(p))
            result = dti_pipe_write(par, c, m, p);
        if (!result)
            result = dti_program_weigh(p, chunk->weights);
    }
    return result;
}

static void dti_pipe_weigh(void *arg, uint32_t device) {
    dti_parallel *par = arg;
    dti_pipe *pipe = par->pipe;
    dt_result result = DT_OK;
    for (uint32_t c = device; c < pipe->chunk_count && !result; c += pipe->device_count)
        result = dti_pipe_weigh_chunk(par, c);
    pipe->devices[device].result = result;
}

/* ---- what goes from chunk to chunk */

static void dti_pipe_fetch(const dti_parallel *par, uint32_t c, uint32_t micro) {
    const dti_pipe_cut *cut = &par->pipe->cut;
    const dti_pipe_run *own = dti_pipe_run_of(par, c, micro);
    for (uint32_t i = 0; i < cut->link_count; i++) {
        const dti_pipe_link *l = &cut->links[i];
        if (l->to != c)
            continue;
        const dti_pipe_run *from = dti_pipe_run_of(par, l->from, micro);
        const dti_port *out = dti_code_port(dti_program_code(from->program), l->node, true, false),
                       *in = dti_code_port(dti_program_code(own->program), l->node, false, false);
        if (in)
            memcpy(dti_lane_host(own->program, own->lane, in),
                   dti_lane_host(from->program, from->lane, out), (size_t)in->bytes);
    }
}

static void dti_pipe_bring_back(const dti_parallel *par, uint32_t c, uint32_t micro) {
    const dti_pipe_cut *cut = &par->pipe->cut;
    const dti_pipe_run *own = dti_pipe_run_of(par, c, micro);
    for (uint32_t i = 0; i < cut->link_count; i++) {
        const dti_pipe_link *l = &cut->links[i];
        if (l->to != c || !l->gradient)
            continue;
        const dti_pipe_run *to = dti_pipe_run_of(par, l->back, micro);
        const dti_port *out = dti_code_port(dti_program_code(own->program), l->node, true, true),
                       *in = dti_code_port(dti_program_code(to->program), l->node, false, true);
        if (in)
            memcpy(dti_lane_host(to->program, to->lane, in),
                   dti_lane_host(own->program, own->lane, out), (size_t)in->bytes);
    }
}

/* ---- the parts */

static dt_result dti_pipe_forward(dti_parallel *par, uint32_t c, uint32_t micro) {
    dti_pipe_chunk *chunk = &par->pipe->chunks[c];
    const dti_runs *runs = dti_pipe_runs_now(par);
    dt_program *p = dti_pipe_take(par, c, micro);
    dt_step_desc step = par->step;
    step.first_row = runs->runs[micro].row;
    step.micro = micro;
    step.micros = runs->count;
    step.coefficients = chunk->coefficients;
    dt_result result = dti_pipe_write(par, c, micro, p);
    if (!result)
        result = dti_lane_begin(p, &step, chunk->weights);
    if (result)
        return result;
    dti_pipe_fetch(par, c, micro);
    return dti_lane_run(p, 1);
}

static void dti_pipe_terms(dti_pipe_chunk *chunk, const dt_program *p) {
    const dti_code *code = dti_program_code(p);
    for (uint32_t i = 0; i < code->loss_count + code->metric_count; i++) {
        const uint32_t at = i < code->loss_count ? i : DTI_TERMS_METRIC + i - code->loss_count;
        double pair[2];
        dti_program_term(p, i, 0, pair);
        chunk->terms[at] += pair[0];
        chunk->terms[at + DTI_TERMS_WEIGHT] += pair[1];
    }
}

static dt_result dti_pipe_backward(dti_parallel *par, uint32_t c, uint32_t micro) {
    dti_pipe_chunk *chunk = &par->pipe->chunks[c];
    const dti_runs *runs = dti_pipe_runs_now(par);
    const bool split = par->pipe->schedules[par->pipe->tail].split;
    dt_program *p = dti_pipe_take(par, c, micro);
    dt_result result = dti_lane_run(p, split ? 1 : dti_program_segments(p) - 1);
    if (result)
        return result;
    dti_pipe_bring_back(par, c, micro);
    dti_pipe_terms(chunk, p);
    dti_statistics_take(&chunk->statistics, &runs->runs[micro], p);
    if (micro + 1 < runs->count && !split)
        dti_lane_end(p);
    return DT_OK;
}

/* What a split backward part has left: gradients of parameters. */
static dt_result dti_pipe_weight(dti_parallel *par, uint32_t c, uint32_t micro) {
    dt_program *p = dti_pipe_take(par, c, micro);
    dt_result result = dti_lane_run(p, dti_program_segments(p) - 2);
    if (!result && micro + 1 < dti_pipe_runs_now(par)->count)
        dti_lane_end(p);
    return result;
}

/* ---- a device's list */

/* Whether what the part needs has ended. Only the chunk before, or behind, is looked at: that has
 * waited for the others. */
static bool dti_pipe_may(const dti_pipe *pipe, dti_pipe_action a) {
    if (a.kind == DTI_PIPE_FORWARD)
        return a.chunk == 0 || atomic_load(&pipe->chunks[a.chunk - 1].forward) > a.micro;
    return a.kind == DTI_PIPE_WEIGHT || a.chunk + 1u == pipe->chunk_count ||
           atomic_load(&pipe->chunks[a.chunk + 1].backward) > a.micro;
}

static dt_result dti_pipe_act(dti_parallel *par, dti_pipe_action a) {
    dti_pipe_chunk *chunk = &par->pipe->chunks[a.chunk];
    const bool forward = a.kind == DTI_PIPE_FORWARD;
    if (a.kind == DTI_PIPE_WEIGHT)
        return dti_pipe_weight(par, a.chunk, a.micro);
    dt_result result = forward ? dti_pipe_forward(par, a.chunk, a.micro)
                               : dti_pipe_backward(par, a.chunk, a.micro);
    if (!result)
        atomic_fetch_add(forward ? &chunk->forward : &chunk->backward, 1);
    return result;
}

static void dti_pipe_list_run(void *arg, uint32_t device) {
    dti_parallel *par = arg;
    dti_pipe *pipe = par->pipe;
    const dti_pipe_schedule *s = &pipe->schedules[pipe->tail];
    const dti_pipe_action *list = dti_pipe_list(s, device);
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < s->each && !result && !atomic_load(&pipe->failed);) {
        if (!dti_pipe_may(pipe, list[i])) {
            dti_thread_yield();
            continue;
        }
        result = dti_pipe_act(par, list[i++]);
    }
    pipe->devices[device].result = result;
    if (result)
        atomic_store(&pipe->failed, true);
}

/* ---- the update */

/* A buffer's new value lies where its gradient would. */
static dt_result dti_pipe_statistics(dti_parallel *par, dti_pipe_chunk *chunk) {
    dti_statistics *s = &chunk->statistics;
    dti_memory *gradients = chunk->store->memories[DTI_ARENA_GRADIENT];
    dti_statistics_move(s, &par->job, par->rows);
    const float *value = s->buffers;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < s->count && !result; value += s->stats[i].channels, i++)
        result = chunk->store->device->backend->memory_write(
            gradients, dti_arena_bytes(chunk->store->layout.params[s->stats[i].param].offset),
            value, dti_arena_bytes(s->stats[i].channels));
    return result;
}

/* `each` for the chunks of a device, until one fails. */
typedef dt_result dti_pipe_each(dti_parallel *par, uint32_t chunk);

static void dti_pipe_for_each(dti_parallel *par, uint32_t device, dti_pipe_each *each) {
    dti_pipe *pipe = par->pipe;
    dt_result result = DT_OK;
    for (uint32_t c = device; c < pipe->chunk_count && !result; c += pipe->device_count)
        result = each(par, c);
    pipe->devices[device].result = result;
}

static dt_result dti_pipe_norm_chunk(dti_parallel *par, uint32_t c) {
    dt_result result = dti_pipe_statistics(par, &par->pipe->chunks[c]);
    return result ? result : dti_lane_run(dti_pipe_last(par, c), 1);
}

static void dti_pipe_norm(void *arg, uint32_t device) {
    dti_pipe_for_each(arg, device, dti_pipe_norm_chunk);
}

static dt_result dti_pipe_judge_chunk(dti_parallel *par, uint32_t c) {
    dt_program *p = dti_pipe_last(par, c);
    dt_result result = dti_lane_run(p, 1);
    if (result)
        return result;
    const uint32_t *status = dti_program_out(p);
    par->pipe->chunks[c].norm = (double)dti_status_f32(status, DTI_STATUS_NORM);
    par->pipe->chunks[c].faulty = status[DTI_STATUS_ABORT] != 0;
    return DT_OK;
}

static void dti_pipe_judge(void *arg, uint32_t device) {
    dti_pipe_for_each(arg, device, dti_pipe_judge_chunk);
}

static dt_result dti_pipe_commit_chunk(dti_parallel *par, uint32_t c) {
    return dti_program_commit(dti_pipe_last(par, c));
}

static void dti_pipe_commit(void *arg, uint32_t device) {
    dti_pipe_for_each(arg, device, dti_pipe_commit_chunk);
}

/* A chunk's pairs, which lie in its table's order, to their places in the table of all. */
static void dti_pipe_pairs_of(const dti_parallel *par, uint32_t c, uint32_t to) {
    const dti_pipe *pipe = par->pipe;
    const dti_pipe_chunk *chunk = &pipe->chunks[c];
    const dt_program *p = dti_pipe_last(par, c);
    const dti_code *code = dti_program_code(p);
    const float *from = dti_lane_pairs(p);
    float *all = dti_lane_pairs_of_all(dti_pipe_last(par, to));
    for (int buffers = 0; buffers < 2; buffers++) {
        for (uint32_t i = code->layout->param_count; i-- > 0;) {
            const uint32_t blocks = dti_table_blocks(code, i, buffers);
            memcpy(all + 2 * pipe->blocks[chunk->params[i]], from, 2 * blocks * sizeof *from);
            from += 2 * (size_t)blocks;
        }
    }
}

/* The pairs of all chunks to each, in the order that they have in one model. */
static void dti_pipe_pairs(const dti_parallel *par) {
    for (uint32_t to = 0; to < par->pipe->chunk_count; to++) {
        for (uint32_t c = 0; c < par->pipe->chunk_count; c++)
            dti_pipe_pairs_of(par, c, to);
    }
}

/* ---- what was not finite */

static bool dti_pipe_port_finite(const dti_parallel *par, uint32_t c, uint32_t node,
                                 bool gradient) {
    const dti_pipe_run *run = dti_pipe_run_of(par, c, dti_pipe_runs_now(par)->count - 1);
    const dti_code *code = dti_program_code(run->program);
    const dti_port *port = dti_code_port(code, node, true, gradient);
    const dt_dtype dtype = code->work->nodes[node].dtype;
    if (!port || dti_is_whole(dtype))
        return true;
    return dti_all_finite(dti_lane_host(run->program, run->lane, port), dtype,
                          port->bytes / dti_dtype_bytes(dtype));
}

/* Whether what leaves a chunk is finite: forward, or backward and for its own parameters. */
static bool dti_pipe_chunk_finite(const dti_parallel *par, uint32_t c, bool backward) {
    const dti_pipe_cut *cut = &par->pipe->cut;
    const dt_program *p = dti_pipe_last(par, c);
    const dti_code *code = dti_program_code(p);
    bool finite = true;
    for (uint32_t i = 0; i < cut->link_count && finite; i++) {
        const dti_pipe_link *l = &cut->links[i];
        if (!backward && l->from == c)
            finite = dti_pipe_port_finite(par, c, l->node, false);
        if (backward && l->to == c && l->gradient)
            finite = dti_pipe_port_finite(par, c, l->node, true);
    }
    for (uint32_t i = 0; i < code->loss_count && !backward; i++)
        finite = finite && dti_all_finite(dti_program_out(p) + code->term_slot[i], DT_F32, 2);
    const float *pairs = dti_lane_pairs(p); /* (sum of squares, whether one is not finite) */
    for (uint32_t i = 0; i < 2 * code->table_entries && backward; i++)
        finite = finite && (i % 2 ? pairs[i] == 0.0f : dti_finite_f64((double)pairs[i]));
    return finite;
}

static dt_result dti_pipe_name(dti_parallel *par, uint32_t c, uint32_t segments) {
    dt_report report = {0};
    dt_program *p = dti_pipe_last(par, c);
    dt_result result = dti_step_fault(p, &report, segments);
    return report.fault_op ? dti_fail(par->base, result, "%s", p->base->error) : DT_OK;
}

/* The first of the last micro-batch's parts that gave something not finite; else an update. */
static dt_result dti_pipe_blame(dti_parallel *par) {
    const uint32_t count = par->pipe->chunk_count;
    dt_result result = DT_OK;
    for (uint32_t c = 0; c < count && !result; c++) {
        if (!dti_pipe_chunk_finite(par, c, false))
            result = dti_pipe_name(par, c, 1);
    }
    for (uint32_t c = count; c-- > 0 && !result;) {
        if (!dti_pipe_chunk_finite(par, c, true))
            result = dti_pipe_name(par, c, dti_program_segments(dti_pipe_last(par, c)));
    }
    for (uint32_t c = 0; c < count && !result; c++)
        result = dti_pipe_name(par, c, dti_program_segments(dti_pipe_last(par, c)));
    return result;
}

static const char *dti_pipe_statistics_fault(const dti_parallel *par) {
    const char *fault = NULL;
    for (uint32_t c = 0; c < par->pipe->chunk_count && !fault; c++)
        fault = dti_statistics_fault(&par->pipe->chunks[c].statistics, par->pipe->chunks[c].graph);
    return fault;
}

/* ---- the step */

static dt_result dti_pipe_result(dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    for (uint32_t d = 0; d < pipe->device_count; d++) {
        if (pipe->devices[d].result)
            return dti_fail(par->base, pipe->devices[d].result, "%s",
                            dti_ctx_base(pipe->devices[d].ctx)->error);
    }
    return DT_OK;
}

static dt_result dti_pipe_phase(dti_parallel *par, dti_crew_fn *fn) {
    dti_crew_run(par->pipe->crew, fn, par);
    return dti_pipe_result(par);
}

static void dti_pipe_prepare(dti_parallel *par, const dti_batch *batch, const dt_step_desc *step) {
    dti_pipe *pipe = par->pipe;
    par->batch = batch;
    par->rows = batch->rows;
    par->step = *step;
    pipe->tail = batch->rows != par->replicas[0].full.rows;
    atomic_store(&pipe->failed, false);
    for (uint32_t c = 0; c < pipe->chunk_count; c++) {
        dti_pipe_chunk *chunk = &pipe->chunks[c];
        memset(chunk->weights, 0, sizeof chunk->weights);
        memset(chunk->terms, 0, sizeof chunk->terms);
        for (int i = 0; i < DT_MAX_TERMS; i++)
            chunk->coefficients[i] = step->coefficients[chunk->losses[i]];
        atomic_store(&chunk->forward, 0);
        atomic_store(&chunk->backward, 0);
    }
}

static void dti_pipe_drop(dti_parallel *par) {
    const uint32_t micros = dti_pipe_runs_now(par)->count;
    for (uint32_t c = 0; c < par->pipe->chunk_count; c++) {
        for (uint32_t m = 0; m < micros; m++)
            dti_lane_end(dti_pipe_run_of(par, c, m)->program);
    }
}

static void dti_pipe_report_chunk(const dti_parallel *par, const dti_pipe_chunk *chunk,
                                  dti_parallel_result *out) {
    const dti_code *code = dti_program_code(chunk->runs[0][0].program);
    for (uint32_t i = 0; i < code->loss_count; i++) {
        const uint32_t of = chunk->losses[i];
        out->loss_sum[of] = chunk->terms[i];
        out->loss_weight[of] = chunk->terms[DTI_TERMS_WEIGHT + i];
        if (chunk->weights[i] > 0.0)
            out->loss += par->step.coefficients[of] * chunk->terms[i] / chunk->weights[i];
    }
    for (uint32_t i = 0; i < code->metric_count; i++) {
        out->metric_sum[chunk->metrics[i]] = chunk->terms[DTI_TERMS_METRIC + i];
        out->metric_weight[chunk->metrics[i]] = chunk->terms[DTI_TERMS_METRIC_WEIGHT + i];
    }
}

/* *fine: all is finite, and no chunk says no. */
static void dti_pipe_report(const dti_parallel *par, dti_parallel_result *out, bool *fine) {
    *fine = true;
    for (uint32_t c = 0; c < par->pipe->chunk_count; c++) {
        dti_pipe_report_chunk(par, &par->pipe->chunks[c], out);
        *fine = *fine && !par->pipe->chunks[c].faulty;
    }
    out->norm = par->pipe->chunks[0].norm;
    *fine = *fine && dti_losses_finite(out);
}

static dt_result dti_pipe_not_finite(dti_parallel *par, dti_parallel_result *out) {
    const char *statistic = dti_pipe_statistics_fault(par);
    dt_result result = dti_pipe_blame(par);
    if (!result)
        result = dti_parallel_not_finite_text(par, statistic);
    dti_pipe_drop(par);
    for (uint32_t c = 0; c < par->pipe->chunk_count; c++)
        dti_statistics_load(&par->pipe->chunks[c].statistics, par->pipe->chunks[c].store);
    out->skipped = result == DT_ERROR_NUMERIC;
    return result;
}

/* A device failed: before the update all stores are as they were. */
static dt_result dti_pipe_failed(dti_parallel *par, dt_result result) {
    char text[sizeof par->base->error];
    memcpy(text, par->base->error, sizeof text);
    par->lost = true;
    dti_pipe_drop(par);
    memcpy(par->base->error, text, sizeof text);
    return result;
}

static dt_result dti_pipe_torn(dti_parallel *par, dt_result result) {
    char text[sizeof par->base->error];
    memcpy(text, par->base->error, sizeof text);
    par->lost = true;
    return dti_fail(par->base, result,
                    "%.800s; stages may be a step apart: make a new trainer and go on from a "
                    "checkpoint",
                    text);
}

static dt_result dti_pipe_compute(dti_parallel *par) {
    dt_result result = dti_pipe_phase(par, dti_pipe_list_run);
    if (!result)
        result = dti_pipe_phase(par, dti_pipe_norm);
    if (result)
        return result;
    dti_pipe_pairs(par);
    return dti_pipe_phase(par, dti_pipe_judge);
}

static dt_result dti_pipe_step(dti_parallel *par, const dti_batch *batch, dt_result own,
                               const dt_step_desc *step, dti_parallel_result *out) {
    *out = (dti_parallel_result){0};
    if (own)
        return own;
    bool fine;
    dti_pipe_prepare(par, batch, step);
    dt_result result = dti_pipe_weigh_by_all(par);
    if (!result)
        result = dti_pipe_phase(par, dti_pipe_weigh); /* labels too: nothing has begun */
    if (result)
        return result;
    result = dti_pipe_compute(par);
    if (result)
        return dti_pipe_failed(par, result);
    dti_pipe_report(par, out, &fine);
    if (!fine)
        return dti_pipe_not_finite(par, out);
    result = dti_pipe_phase(par, dti_pipe_commit);
    par->pipe->ahead = true;
    if (result)
        return dti_pipe_torn(par, result);
    par->replicas[0].store->steps = par->pipe->chunks[0].store->steps;
    out->committed = true;
    result = par->pipe->shown ? dti_pipe_gather(par) : DT_OK;
    return result ? dti_pipe_torn(par, result) : DT_OK;
}
