/* Making a pipeline: the cut, a context for each device, a graph and a store for each chunk, the
 * schedules, and the programs with as many lanes as the schedule keeps micro-batches alive. After
 * it a step allocates nothing. Refuses several ranks, shards and shares by speed. */

static const char *dti_pipe_names[] = {"1F1B", "fill-drain", "interleaved 1F1B", "zero bubble"};

/* ---- the whole model's code */

static dt_result dti_pipe_whole_code(dti_parallel *par) {
    dti_replica *r = &par->replicas[0];
    const dti_micro_run *run = &r->full.runs[0];
    dt_program_desc d = dti_replica_desc(par, r);
    d.batch = (int)run->rows;
    d.memory_bytes = 0; /* of a stage, and nothing runs */
    const dti_shards shards = {.pieces = run->pieces,
                               .piece_count = run->piece_count,
                               .leaves = 1,
                               .any_part = run->any_part};
    dt_result result = dti_code_take(r->store, &d, &shards, NULL, &par->pipe->code);
    return result ? result : dti_store_train_elsewhere(r->store, par->pipe->code);
}

/* Where each parameter's blocks begin in the table of the whole model. */
static dt_result dti_pipe_blocks(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const dti_code *code = pipe->code;
    uint64_t at = 0;
    pipe->blocks = dti_alloc_array(par->base, code->layout->param_count + 1u, sizeof *pipe->blocks);
    if (!pipe->blocks)
        return DT_ERROR_MEMORY;
    for (int buffers = 0; buffers < 2; buffers++) {
        for (uint32_t i = code->layout->param_count; i-- > 0;) {
            const uint32_t blocks = dti_table_blocks(code, i, buffers);
            pipe->blocks[i] = blocks ? at : pipe->blocks[i];
            at += blocks;
        }
    }
    return DT_OK;
}

/* ---- chunks */

static dt_result dti_pipe_chunk_params(dti_parallel *par, dti_pipe_chunk *chunk) {
    const dt_graph *g = par->replicas[0].graph;
    const dti_layout *layout = &chunk->store->layout;
    chunk->params = dti_alloc_array(par->base, layout->param_count + 1u, sizeof *chunk->params);
    for (uint32_t i = 0; chunk->params && i < layout->param_count; i++)
        chunk->params[i] = (uint32_t)g->nodes[layout->params[i].node].attr.i[0];
    return chunk->params ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_pipe_chunk_open(dti_parallel *par, uint32_t c, const char *name, int threads) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_chunk *chunk = &pipe->chunks[c];
    const dt_store_desc d = {.device = name, .seed = par->desc.seed};
    chunk->device = c % pipe->device_count;
    dt_ctx *ctx = pipe->devices[chunk->device].ctx;
    dt_result result =
        dti_pipe_cut_graph(&pipe->cut, par->replicas[0].graph, c, ctx, &chunk->graph);
    if (!result)
        result = dt_store_create(chunk->graph, &d, &chunk->store);
    if (result)
        return dti_fail(par->base, result, "stage %u: %s", c, dti_ctx_base(ctx)->error);
    chunk->store->device->one_thread = threads <= 1;
    return dti_pipe_chunk_params(par, chunk);
}

static dt_result dti_pipe_chunks_open(dti_parallel *par, const char *names, int threads) {
    dti_pipe *pipe = par->pipe;
    dti_device_walk w = {.at = names && names[0] ? names : "auto"};
    dt_result result = DT_OK;
    for (uint32_t d = 0; !result && dti_device_next(&w);) {
        for (uint32_t k = 0; k < w.times && !result; k++, d++) {
            result = dti_context_beside(par, par->replicas[0].graph, "stage", d, threads,
                                        &pipe->devices[d].ctx);
            for (uint32_t c = d; c < pipe->chunk_count && !result; c += pipe->device_count)
                result = dti_pipe_chunk_open(par, c, w.name, threads);
        }
    }
    return result;
}

/* ---- programs */

static dt_program_desc dti_pipe_desc(dti_parallel *par, uint32_t c, dti_joint *joint) {
    dti_pipe_chunk *chunk = &par->pipe->chunks[c];
    dt_program_desc d = dti_replica_desc(par, &par->replicas[0]);
    *joint = (dti_joint){.blocks = par->pipe->code->table_entries,
                         .split = par->desc.schedule == DT_PIPELINE_ZERO_BUBBLE};
    dti_pipe_cut_desc(&par->pipe->cut, c, chunk->graph, &d, joint, chunk->losses, chunk->metrics);
    return d;
}

/* Of all micro-batches with as many rows as run i: which of them it is, and how many they are. */
static uint32_t dti_pipe_alike(const dti_runs *runs, uint32_t i, uint32_t *first, uint32_t *all) {
    uint32_t number = 0;
    *first = i;
    *all = 0;
    for (uint32_t k = runs->count; k-- > 0;) {
        const bool alike = runs->runs[k].rows == runs->runs[i].rows;
        *first = alike ? k : *first;
        *all += alike;
        number += alike && k < i;
    }
    return number;
}

static dt_result dti_pipe_program(dti_parallel *par, uint32_t c, uint32_t tail, uint32_t i,
                                  uint32_t lanes, dt_program **out) {
    const dti_runs *runs = tail ? &par->replicas[0].tail : &par->replicas[0].full;
    const bool parts = par->desc.parts > 1;
    const dti_piece piece = {.rows = runs->runs[i].rows, .begins = !parts, .ends = !parts};
    const dti_shards shards = {.pieces = &piece, .piece_count = 1, .leaves = 1, .any_part = parts};
    dti_joint joint;
    dt_program_desc d = dti_pipe_desc(par, c, &joint);
    char label[32];
    snprintf(label, sizeof label, "stage %u", c);
    d.label = label;
    d.batch = (int)piece.rows;
    dt_result result =
        dti_program_create_lanes(par->pipe->chunks[c].store, &d, &shards, &joint, lanes, out);
    return result ? dti_fail(par->base, result, "%s", par->pipe->chunks[c].store->base->error)
                  : DT_OK;
}

static dt_result dti_pipe_programs(dti_parallel *par, uint32_t c, uint32_t tail) {
    dti_pipe *pipe = par->pipe;
    const dti_runs *runs = tail ? &par->replicas[0].tail : &par->replicas[0].full;
    dti_pipe_run *all = dti_alloc_array(par->base, runs->count + 1u, sizeof *all);
    dt_result result = all ? DT_OK : DT_ERROR_MEMORY;
    pipe->chunks[c].runs[tail] = all;
    for (uint32_t i = 0; i < runs->count && !result; i++) {
        uint32_t first, alike;
        const uint32_t number = dti_pipe_alike(runs, i, &first, &alike);
        const uint32_t lanes = DTI_MIN(pipe->schedules[tail].lanes[c], alike);
        if (first == i)
            result = dti_pipe_program(par, c, tail, i, lanes, &all[i].program);
        all[i] = (dti_pipe_run){all[first].program, number % lanes};
    }
    return result;
}

static dt_result dti_pipe_fill(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const dti_runs *runs[2] = {&par->replicas[0].full, &par->replicas[0].tail};
    const uint32_t each = pipe->chunk_count / pipe->device_count;
    dt_result result = DT_OK;
    for (uint32_t k = 0; k < 2 && !result; k++) {
        if (runs[k]->count)
            result = dti_pipe_schedule_make(par->base, par->desc.schedule, pipe->device_count, each,
                                            runs[k]->count, &pipe->schedules[k]);
        for (uint32_t c = 0; c < pipe->chunk_count && runs[k]->count && !result; c++)
            result = dti_pipe_programs(par, c, k);
    }
    for (uint32_t c = 0; c < pipe->chunk_count && !result; c++) {
        dti_pipe_chunk *chunk = &pipe->chunks[c];
        result = dti_statistics_make(
            par->base, &par->job, dti_program_code(chunk->runs[0][0].program), &chunk->statistics);
    }
    return result;
}

/* ---- all of it */

/* Each stage computes a loss, or gets a gradient from one behind it. */
static dt_result dti_pipe_cut_reached(const dti_parallel *par, const dt_program_desc *d,
                                      uint32_t chunk) {
    const dti_pipe_cut *cut = &par->pipe->cut;
    bool reached = false;
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++)
        reached = reached || (d->losses[i].term.id && cut->home[d->losses[i].term.id] == chunk);
    for (uint32_t i = 0; i < cut->link_count; i++)
        reached = reached || (cut->links[i].gradient && cut->links[i].back == chunk);
    return reached ? DT_OK
                   : dti_fail(par->base, DT_ERROR_INVALID,
                              "stage %u of the pipeline gets no gradient from those behind it; cut "
                              "elsewhere",
                              chunk);
}

static dt_result dti_pipe_cut_all(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const dt_graph *g = par->replicas[0].graph;
    const dt_program_desc d = dti_replica_desc(par, &par->replicas[0]);
    const uint32_t rows = par->replicas[0].full.runs[0].rows;
    dt_result result = dti_pipe_cut_make(par->base, g, &d, pipe->chunk_count, rows, &pipe->cut);
    for (uint32_t c = pipe->chunk_count; c-- > 0 && !result;)
        result = dti_pipe_cut_flows(&pipe->cut, c, g, &d);
    for (uint32_t c = 0; c < pipe->chunk_count && !result; c++)
        result = dti_pipe_cut_reached(par, &d, c);
    return result;
}

static dt_result dti_pipe_runs(dti_parallel *par) {
    dti_replica *r = &par->replicas[0];
    par->job.shards = 1;
    par->job.parts = par->desc.parts;
    par->job.batch = par->desc.batch;
    par->shards = 1;
    par->elements = r->store->layout.elements;
    dt_result result = dti_runs_make(par->base, &par->job, 0, par->desc.batch, &r->full);
    if (!result && par->desc.tail)
        result = dti_runs_make(par->base, &par->job, 0, par->desc.tail, &r->tail);
    return result;
}

static dt_result dti_pipe_open(dti_parallel *par, const char *names, int threads, bool pin) {
    dti_pipe *pipe = par->pipe;
    pipe->device_count = par->desc.stages;
    pipe->chunk_count = par->desc.stages * par->desc.chunks;
    pipe->devices = dti_alloc_array(par->base, pipe->device_count, sizeof *pipe->devices);
    pipe->chunks = dti_alloc_array(par->base, pipe->chunk_count, sizeof *pipe->chunks);
    dt_result result = pipe->devices && pipe->chunks ? dti_pipe_runs(par) : DT_ERROR_MEMORY;
    if (!result)
        result = dti_pipe_whole_code(par);
    if (!result)
        result = dti_pipe_blocks(par);
    if (!result)
        result = dti_pipe_cut_all(par);
    if (!result)
        result = dti_pipe_chunks_open(par, names, threads);
    if (!result)
        result = dti_pipe_fill(par);
    return result ? result : dti_crew_create(par->base, pipe->device_count, pin, &pipe->crew);
}

static dt_result dti_pipe_create(dti_parallel *par, const char *names, int threads, bool pin) {
    par->pipe = dti_alloc(par->base, sizeof *par->pipe);
    return par->pipe ? dti_pipe_open(par, names, threads, pin) : DT_ERROR_MEMORY;
}

static void dti_pipe_chunk_close(dti_parallel *par, dti_pipe_chunk *chunk) {
    dti_statistics_free(par->base, &chunk->statistics);
    dti_store_free(chunk->store); /* and its programs */
    dti_free(par->base, chunk->params);
    dti_free(par->base, chunk->runs[0]);
    dti_free(par->base, chunk->runs[1]);
}

static void dti_pipe_destroy(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    if (!pipe)
        return;
    dti_crew_destroy(pipe->crew);
    for (uint32_t c = 0; pipe->chunks && c < pipe->chunk_count; c++)
        dti_pipe_chunk_close(par, &pipe->chunks[c]);
    for (uint32_t d = 0; pipe->devices && d < pipe->device_count; d++)
        dt_ctx_destroy(pipe->devices[d].ctx);
    for (int k = 0; k < 2; k++)
        dti_pipe_schedule_free(par->base, &pipe->schedules[k]);
    dti_code_release(par->replicas[0].store, pipe->code);
    dti_pipe_cut_free(par->base, &pipe->cut);
    dti_free(par->base, pipe->blocks);
    dti_free(par->base, pipe->devices);
    dti_free(par->base, pipe->chunks);
    dti_free(par->base, pipe);
    par->pipe = NULL;
}

/* ---- shared inputs, and what the log says */

static dt_result dti_pipe_share(dti_parallel *par, uint32_t node, const void *values,
                                size_t bytes) {
    dti_pipe *pipe = par->pipe;
    const uint32_t counts[2] = {par->replicas[0].full.count, par->replicas[0].tail.count};
    dt_result result = DT_OK;
    for (uint32_t c = 0; c < pipe->chunk_count; c++) {
        dti_pipe_chunk *chunk = &pipe->chunks[c];
        for (uint32_t i = 0; i < counts[0] + counts[1] && !result; i++) {
            const uint32_t tail = i >= counts[0];
            dt_program *p = chunk->runs[tail][i - (tail ? counts[0] : 0)].program;
            if (dti_code_port(dti_program_code(p), node, false, false))
                result = dt_program_write(p, (dt_tensor){chunk->graph, node}, values, bytes);
        }
        result = dti_pipe_said(par, c, result);
    }
    return result;
}

/* Distinct programs of a chunk, with the lanes of each. */
static uint64_t dti_pipe_chunk_transients(const dti_pipe_chunk *chunk) {
    uint64_t bytes = 0;
    for (const dt_program *p = chunk->store->programs; p; p = p->next)
        bytes += p->code->transient_bytes * p->turn_count;
    return bytes;
}

static uint64_t dti_pipe_transients(const dti_pipe *pipe) {
    uint64_t most = 0;
    for (uint32_t d = 0; d < pipe->device_count; d++) {
        uint64_t all = 0;
        for (uint32_t c = d; c < pipe->chunk_count; c += pipe->device_count)
            all += dti_pipe_chunk_transients(&pipe->chunks[c]);
        most = DTI_MAX(most, all);
    }
    return most;
}

static void dti_pipe_log(const dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    const dti_pipe_schedule *s = &pipe->schedules[0];
    for (uint32_t c = 0; c < pipe->chunk_count; c++) {
        const dti_pipe_chunk *chunk = &pipe->chunks[c];
        const dt_store *store = chunk->store;
        dti_log(par->base, DT_LOG_INFO,
                "pipeline: stage %u on device %u, %s: nodes %u to %u, %.0f%% of the work, %u "
                "parameters; %llu bytes of them, as many of gradients, %llu of state, %llu of "
                "transients in %u lanes",
                c, chunk->device, store->device->info.id, pipe->cut.starts[c],
                pipe->cut.starts[c + 1] - 1, 100.0 * pipe->cut.work[c], store->layout.param_count,
                (unsigned long long)dti_arena_bytes(store->layout.elements),
                (unsigned long long)dti_state_bytes(&store->layout, store->moments),
                (unsigned long long)dti_pipe_chunk_transients(chunk), s->lanes[c]);
    }
    dti_log(par->base, s->micros < pipe->device_count ? DT_LOG_WARNING : DT_LOG_INFO,
            "pipeline: %s, %u micro-batches through %u devices: by unit times devices are idle "
            "for %.0f%% of the time that they work; at most %u micro-batches are alive on one%s",
            dti_pipe_names[par->desc.schedule], s->micros, s->devices, 100.0 * s->bubble, s->alive,
            s->micros < pipe->device_count ? "; use more: .accumulate" : "");
}
