/* Makes a grid of pipelines: the cut, the schedules, and a context for each device. Each chunk of
 * this rank gets a graph and a store. Its programs have a micro-batch slot for each live
 * micro-batch of the schedule. Afterwards a step allocates nothing. Failures of one rank are
 * reported to all before the next collective. It refuses shares by speed. */

/* Where each parameter's blocks begin in the table of the whole model: of parts tensor rank by
 * tensor rank. */
static dt_result dti_pipe_blocks(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const dti_code *code = pipe->code;
    uint64_t at = 0;
    pipe->blocks = dti_alloc_array(par->base, code->layout->param_count + 1u, sizeof *pipe->blocks);
    if (!pipe->blocks)
        return DT_ERROR_MEMORY;
    for (int buffers = 0; buffers < 2; buffers++) {
        for (uint32_t i = code->layout->param_count; i-- > 0;) {
            uint32_t blocks = dti_table_blocks(code, i, buffers);
            if (dti_pipe_is_part(pipe, i))
                blocks = dti_tp_blocks(pipe->shared, i, buffers) * pipe->mesh->tensor;
            pipe->blocks[i] = blocks ? at : pipe->blocks[i];
            at += blocks;
        }
    }
    pipe->block_count = at;
    return DT_OK;
}

/* ---- chunks */

/* The name of a position of the grid in texts. */
static const char *dti_pipe_word(const dti_pipe *pipe) {
    return pipe->chunk_count > 1 ? "stage" : "tensor rank";
}

/* A stage's, or of a tensor rank its position in the job. */
static uint32_t dti_pipe_word_number(const dti_pipe *pipe, const dti_pipe_chunk *chunk) {
    const dti_pipeline *pipeline = &pipe->pipelines[chunk->pipeline];
    return pipe->chunk_count > 1
               ? chunk->index
               : dti_pipe_position(pipe->mesh, dti_pipeline_number(pipe, pipeline), 0);
}

static dt_result dti_pipe_blame(dti_parallel *par, const dti_pipe_chunk *chunk, dt_result result,
                                const char *text) {
    const dti_pipe *pipe = par->pipe;
    return dti_fail(par->base, result, "%s %u: %s", dti_pipe_word(pipe),
                    dti_pipe_word_number(pipe, chunk), text);
}

/* The text of a stage's program has its label. */
static dt_result dti_pipe_chunk_failed(dti_parallel *par, const dti_pipe_chunk *chunk,
                                       dt_result result) {
    const char *text = chunk->store->base->error;
    return !result                       ? DT_OK
           : par->pipe->chunk_count == 1 ? dti_pipe_blame(par, chunk, result, text)
                                         : dti_fail(par->base, result, "%s", text);
}

static dt_result dti_pipe_stage_params(dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dt_graph *g = par->pipe->graph;
    const dti_layout *layout = &chunk->store->layout;
    dti_pipe_stage *stage = dti_pipe_stage_of(par->pipe, chunk);
    if (stage->params)
        return DT_OK;
    stage->params = dti_alloc_array(par->base, layout->param_count + 1u, sizeof *stage->params);
    for (uint32_t i = 0; stage->params && i < layout->param_count; i++)
        stage->params[i] = (uint32_t)g->nodes[layout->params[i].node].attr.i[0];
    return stage->params ? DT_OK : DT_ERROR_MEMORY;
}

/* A chunk of the model, or of its tensor rank's. */
static dt_result dti_pipe_chunk_graph(dti_parallel *par, dti_pipe_chunk *chunk, dt_ctx *ctx) {
    const dti_pipe *pipe = par->pipe;
    const uint32_t tp_rank = pipe->pipelines[chunk->pipeline].tp_rank;
    dt_graph *g = NULL;
    dt_result result = DT_OK;
    if (!tp_rank)
        return dti_pipe_cut_graph(&pipe->plan->cut, pipe->graph, chunk->index, ctx, &chunk->graph);
    result = dti_tp_graph(par, pipe->shared, ctx, tp_rank, &g);
    if (!result)
        result = dti_pipe_cut_graph(&pipe->plan->cut, g, chunk->index, ctx, &chunk->graph);
    dt_graph_destroy(g);
    return result;
}

static dt_result dti_pipe_chunk_open(dti_parallel *par, dti_pipe_chunk *chunk, const char *name,
                                     int threads) {
    dti_pipe *pipe = par->pipe;
    const dt_store_desc d = {.device = name, .seed = par->desc.seed};
    dt_ctx *ctx = pipe->devices[chunk->device].ctx;
    dt_result result = dti_pipe_chunk_graph(par, chunk, ctx);
    if (!result)
        result = dti_store_create_bare(chunk->graph, &d, &chunk->store);
    if (result)
        return dti_pipe_blame(par, chunk, result, dti_ctx_base(ctx)->error);
    chunk->store->device->one_thread = threads <= 1;
    DTI_TRY(dti_pipe_stage_params(par, chunk));
    DTI_TRY(dti_pipe_own(par, chunk));
    return pipe->shared
               ? dti_tp_alike(par, dti_pipe_first(pipe)->store->device, chunk->store->device)
               : DT_OK;
}

static dt_result dti_pipe_device_open(dti_parallel *par, uint32_t d, const char *name,
                                      int threads) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_device *device = &pipe->devices[d];
    dt_result result = dti_context_beside(
        par, par->replicas[0].graph, dti_pipe_word(pipe),
        dti_mesh_own(pipe->mesh, pipe->mesh->rank).first + d * pipe->each, threads, &device->ctx);
    for (uint32_t k = 0; k < pipe->each; k++) {
        for (uint32_t c = device->place; c < pipe->chunk_count && !result; c += pipe->mesh->stages)
            result = dti_pipe_chunk_open(par, dti_pipe_chunk_of(pipe, device->pipeline + k, c),
                                         name, threads);
    }
    return result;
}

static dt_result dti_pipe_chunks_open(dti_parallel *par, const char *names, int threads) {
    dti_device_walk w = {.at = names && names[0] ? names : "auto"};
    for (uint32_t d = 0; dti_device_next(&w);) {
        for (uint32_t k = 0; k < w.times; k++, d++)
            DTI_TRY(dti_pipe_device_open(par, d, w.name, threads));
    }
    return DT_OK;
}

/* ---- all of it */

/* The first tensor rank's graph, at the places where the model is cut. The others' graphs have the
 * same number of nodes. */
static dt_result dti_pipe_cut_tp_rank(dti_parallel *par, const dti_pipe_cut *model) {
    dti_pipe *pipe = par->pipe;
    dt_graph *g = NULL;
    pipe->shared->size = pipe->mesh->tensor;
    pipe->shared->code = pipe->code;
    DTI_TRY(dti_tp_model(par, pipe->shared));
    const dt_result result = dti_tp_graph(par, pipe->shared, par->replicas[0].graph->ctx, 0, &g);
    if (g) { /* it ends with the pipe, also where its marks do not divide */
        dti_disown(&par->base->owned, &g->owned);
        pipe->graph = g;
    }
    DTI_TRY(result);
    const dt_program_desc d = dti_pipe_model_desc(par);
    return dti_pipe_cut_like(par->base, g, &d, model, pipe->shared->firsts, &pipe->plan->cut);
}

static dt_result dti_pipe_cut_model(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_cut model;
    const dt_program_desc d = dti_replica_desc(par, &par->replicas[0]);
    /* The bounds of the job's first micro-batch. This rank's own may differ, and all ranks need the
     * same cut. */
    const uint32_t rows = DTI_MAX(dti_partition_piece(&par->job, 0, par->job.batch), 1u);
    pipe->graph = par->replicas[0].graph;
    const uint32_t micros = par->job.batch_slices * par->job.parts / pipe->mesh->data;
    dt_result result =
        dti_pipe_cut_make(par->base, pipe->graph, &d, pipe->chunk_count, rows, DTI_MAX(micros, 1u),
                          pipe->mesh->tensor > 1 ? &model : &pipe->plan->cut);
    if (pipe->mesh->tensor == 1)
        return result;
    if (!result) {
        pipe->shared = dti_alloc(par->base, sizeof *pipe->shared);
        result = pipe->shared ? dti_pipe_cut_tp_rank(par, &model) : DT_ERROR_MEMORY;
    }
    dti_pipe_cut_free(par->base, &model);
    return result;
}

/* Of all pipelines here. */
static dt_result dti_pipe_runs_make(dti_parallel *par, const dti_partition *grid, uint32_t rows,
                                    uint32_t shape) {
    const dti_pipe *pipe = par->pipe;
    for (uint32_t i = 0; i < pipe->pipeline_count; i++)
        DTI_TRY(dti_grid_runs_make(par, grid, pipe->pipelines[i].replica, rows,
                                   &pipe->pipelines[i].runs[shape]));
    return DT_OK;
}

static dt_result dti_pipe_runs(dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    dti_replica *r = &par->replicas[0];
    par->elements = r->store->layout.elements;
    const dti_partition grid = dti_grid_partition(par);
    for (uint32_t tail = 0; tail < (par->desc.tail ? 2u : 1u); tail++) {
        const uint32_t rows = tail ? par->desc.tail : par->desc.batch;
        dti_runs *host = tail ? &r->tail : &r->full;
        DTI_TRY(dti_grid_runs_make(par, &grid, pipe->pipelines[0].replica, rows, host));
        DTI_TRY(dti_pipe_runs_make(par, &grid, rows, tail));
    }
    return DT_OK;
}

/* Room for values of all ranks, and the table of all blocks. */
static dt_result dti_pipe_rooms(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    pipe->pairs =
        dti_alloc_array(par->base, (size_t)2 * pipe->block_count + 1, sizeof *pipe->pairs);
    DTI_TRY(dti_search_make(par, pipe->device_count));
    if (par->desc.comm)
        pipe->piece = dti_alloc(par->base, DTI_AGREE_PIECE);
    return pipe->pairs && (pipe->piece || !par->desc.comm) ? dti_scalar_sums_make(par)
                                                           : DT_ERROR_MEMORY;
}

/* ---- tensor ranks of a stage between ranks */

static dt_result dti_pipe_tp_make(dti_parallel *par, uint32_t d) {
    const dti_pipe *pipe = par->pipe;
    const dti_pipe_device *device = &pipe->devices[d];
    const dti_pipeline *pipeline = &pipe->pipelines[device->pipeline];
    size_t most = 1;
    for (uint32_t c = device->place; c < pipe->chunk_count; c += pipe->mesh->stages) {
        const dti_pipe_chunk *chunk = dti_pipe_chunk_of(pipe, device->pipeline, c);
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t shape = dti_pipe_shape(pipe, i);
            for (uint32_t m = 0; m < pipeline->runs[shape].count; m++)
                most = chunk->runs[shape][m].program
                           ? dti_tp_most(chunk->runs[shape][m].program, most)
                           : most;
        }
    }
    return dti_tp_place_make(par, device->tp, most);
}

/* For the sync points of the plan in use. */
static dt_result dti_pipe_tp_rooms(dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    dt_result result = DT_OK;
    for (uint32_t d = 0; d < pipe->device_count && !result; d++) {
        const dti_tp_place *place = pipe->devices[d].tp;
        if (place->count < place->size)
            result = dti_pipe_tp_make(par, d);
    }
    return result;
}

/* On all ranks together. */
static dt_result dti_pipe_tp_groups_make(dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    const dti_mesh *mesh = pipe->mesh;
    if (!par->desc.comm)
        return DT_OK;
    dt_result result = DT_OK;
    DTI_TRY(dti_tp_same(par, dti_pipe_first(pipe)->store->device));
    DTI_TRY(dti_agree_result(par, dti_pipe_tp_rooms(par)));
    const uint32_t begin = dti_mesh_rows(mesh, mesh->rank, mesh->tensor).first;
    for (uint32_t q = 0; q < mesh->data * mesh->stages && !result; q++) {
        const uint32_t at = q - begin; /* beyond: not here */
        dt_comm *elsewhere = NULL;
        result = dti_mesh_group(par, DTI_MESH_TENSOR, q * mesh->tensor,
                                at < pipe->tp_count ? &pipe->tp_groups[at].comm : &elsewhere);
    }
    return result;
}

/* A model that is cut into one chunk is that chunk's graph: all have the same nodes. */
static void dti_pipe_graph_drop(dti_pipe *pipe) {
    dt_graph_destroy(pipe->graph);
    pipe->graph = dti_pipe_chunk_of(pipe, pipe->devices[0].pipeline, 0)->graph;
    pipe->graph_of_chunk = true;
}

static dt_result dti_pipe_open(dti_parallel *par, const char *names, int threads) {
    DTI_TRY(dti_pipe_grid_make(par));
    DTI_TRY(dti_pipe_runs(par));
    DTI_TRY(dti_grid_code(par, &par->pipe->code));
    DTI_TRY(dti_pipe_cut_model(par));
    DTI_TRY(dti_pipe_blocks(par));
    DTI_TRY(dti_pipe_rooms(par));
    DTI_TRY(dti_pipe_bounds_make(par));
    DTI_TRY(dti_pipe_chunks_open(par, names, threads));
    if (par->pipe->chunk_count == 1)
        dti_pipe_graph_drop(par->pipe);
    return dti_pipe_fill(par);
}

/* Whether several threads would use the comm at once. */
static bool dti_pipe_locks_comm(const dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    uint32_t speakers = 0;
    for (uint32_t i = 0; i < pipe->tp_count; i++)
        speakers += pipe->tp_groups[i].comm != NULL;
    return pipe->plan->flow_count || pipe->chunk_count > 1 || speakers > 1 ||
           dti_pipe_has_units(par);
}

static void dti_pipe_plans_open(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    pipe->mesh = &par->mesh;
    for (uint32_t i = 0; i < DTI_PIPE_PLANS; i++)
        pipe->plans[i].number = i;
    dti_pipe_use(par, DTI_PIPE_TRAIN);
}

static dt_result dti_pipe_create(dti_parallel *par, uint32_t batch_slices, const char *names,
                                 int threads, bool pin) {
    dti_pipe_destroy(par);
    par->pipe = dti_alloc(par->base, sizeof *par->pipe);
    par->subtree_bytes = par->staging_bytes = 0;
    if (par->pipe)
        dti_pipe_plans_open(par);
    dt_result result = par->pipe ? dti_grid_begin(par, batch_slices) : DT_ERROR_MEMORY;
    if (!result)
        result = dti_pipe_open(par, names, threads);
    DTI_TRY(dti_agree_result(par, result));
    dti_pipe *pipe = par->pipe;
    if (pipe->shared)
        DTI_TRY(dti_pipe_tp_groups_make(par));
    DTI_TRY(dti_pipe_wires_make(par));
    if (pipe->bounds) /* only ranks with the chunk know it; they inform the others */
        DTI_TRY(dti_ranks_reduce(par, par->desc.comm, pipe->bounds, pipe->bound_count, DT_I64,
                                 DT_COMM_MAX));
    DTI_TRY(dti_pipe_units_make(par));
    DTI_TRY(dti_pipe_sums_make(par));
    pipe->reads = dti_pipe_reads(par);
    pipe->locks_comm = dti_pipe_locks_comm(par);
    DTI_TRY(dti_agree_result(par, dti_pipe_lists_make(par)));
    result = dti_pipe_units_agree(par);
    if (!result)
        result = dti_device_team_create(par->base, par->desc.comm, pipe->device_count, pin,
                                        &pipe->device_team);
    return dti_agree_result(par, result);
}

static void dti_pipe_stage_close(dti_parallel *par, dti_pipe_stage *stage) {
    dti_statistics_free(par->base, &stage->statistics);
    dti_free(par->base, stage->params);
}

static void dti_pipe_chunk_close(dti_parallel *par, dti_pipe_chunk *chunk) {
    dti_store_free(chunk->store);                                       /* and its programs */
    DTI_FREE(par->base, chunk->mirror, chunk->runs[0], chunk->runs[1]); /* forward plans are gone */
}

static void dti_pipeline_close(dti_parallel *par, dti_pipeline *pipeline) {
    for (uint32_t shape = 0; shape < DTI_PIPE_SHAPES; shape++) {
        dti_pipe_schedule_free(par->base, &pipeline->schedules[shape]);
        dti_runs_free(par->base, &pipeline->runs[shape]);
    }
}

static void dti_pipe_tp_ranks_close(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const uint32_t chunks = pipe->chunks ? pipe->pipeline_count * pipe->chunk_count : 0;
    for (uint32_t i = 0; i < chunks; i++)
        dti_pipe_chunk_close(par, &pipe->chunks[i]);
    for (uint32_t d = 0; pipe->devices && d < pipe->device_count; d++)
        dt_ctx_destroy(pipe->devices[d].ctx);
    for (uint32_t i = 0; pipe->pipelines && i < pipe->pipeline_count; i++)
        dti_pipeline_close(par, &pipe->pipelines[i]);
    for (uint32_t s = 0; pipe->stages && s < pipe->stage_count; s++)
        dti_pipe_stage_close(par, &pipe->stages[s]);
    for (uint32_t i = pipe->tp_groups ? pipe->tp_count : 0; i-- > 0;)
        dti_tp_place_free(par, &pipe->tp_groups[i]);
}

/* The known facts of the model. */
static void dti_pipe_model_close(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    if (pipe->code)
        dti_code_release(par->replicas[0].store, pipe->code);
    dti_pipe_cut_free(par->base, &pipe->plan->cut);
    if (!pipe->shared)
        return;
    if (pipe->graph != par->replicas[0].graph && !pipe->graph_of_chunk)
        dt_graph_destroy(pipe->graph);
    dti_tp_model_free(par, pipe->shared);
    dti_free(par->base, pipe->shared);
}

static void dti_pipe_destroy(dti_parallel *par) {
    dti_pipe *pipe = dti_pipe_of(par);
    if (!pipe)
        return;
    dti_device_team_destroy(pipe->device_team);
    dti_forward_close(par, DTI_PIPE_PREDICT);
    dti_forward_close(par, DTI_PIPE_EVALUATE);
    dti_pipe_lists_free(par);
    dti_pipe_sums_free(par);
    dti_pipe_units_free(par);
    dti_pipe_wires_free(par);
    dti_pipe_tp_ranks_close(par);
    dti_pipe_model_close(par);
    dti_scalar_sum_free(par, &par->weights);
    dti_scalar_sum_free(par, &par->terms);
    dti_runs_free(par->base, &par->replicas[0].full);
    dti_runs_free(par->base, &par->replicas[0].tail);
    DTI_FREE(par->base, pipe->weighs, pipe->blocks, pipe->pairs, pipe->piece, pipe->devices,
             pipe->pipelines, pipe->chunks, pipe->stages, pipe->tp_groups, pipe->bounds, pipe);
    par->pipe = NULL;
}

/* ---- shared inputs */

/* Says it in the first context, where it is a chunk's. */
static dt_result dti_pipe_said(dti_parallel *par, const dti_pipe_chunk *chunk, dt_result result) {
    const dti_base *base = chunk->store->base;
    return result && base->error[0] ? dti_pipe_blame(par, chunk, result, base->error) : result;
}

static dt_result dti_pipe_share(dti_parallel *par, uint32_t node, const void *values,
                                size_t bytes) {
    const dti_pipe *pipe = par->pipe;
    const uint32_t own = dti_pipe_node(pipe, node);
    dti_pipe_chunk *chunk = NULL;
    while (pipe->device_team && (chunk = dti_pipe_next(pipe, chunk)) != NULL) {
        for (dt_program *p = chunk->store->programs; p; p = p->next) {
            const dt_tensor input = {chunk->graph, own};
            if (dti_code_binding(dti_program_code(p), own, false, false))
                DTI_TRY(dti_pipe_said(par, chunk, dt_program_write(p, input, values, bytes)));
        }
    }
    return DT_OK;
}

/* Distinct programs of a chunk, with the micro-batch slots of each. */
static uint64_t dti_pipe_chunk_transients(const dti_pipe_chunk *chunk) {
    uint64_t bytes = 0;
    for (const dt_program *p = chunk->store->programs; p; p = p->next)
        bytes += dti_micro_slot_transients(p);
    return bytes;
}

static uint64_t dti_pipe_transients(const dti_pipe *pipe) {
    uint64_t most = 0;
    for (uint32_t d = 0; d < pipe->device_count; d++) {
        uint64_t all = 0;
        for (uint32_t c = pipe->devices[d].place; c < pipe->chunk_count; c += pipe->mesh->stages)
            all += pipe->each *
                   dti_pipe_chunk_transients(dti_pipe_chunk_of(pipe, pipe->devices[d].pipeline, c));
        most = DTI_MAX(most, all);
    }
    return most;
}
