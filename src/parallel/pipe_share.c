/* ZeRO-1 in a grid of pipelines (see owners.c): of each chunk a replica has moments and averages of
 * a run of blocks, updates that run, and gets the others' from their owners. Gradients, norms and
 * findings are as without, so the bits are too.
 *
 * After the commit each replica copies what it wrote to where the sum of gradients lies, which
 * nobody reads any more; the ranks that have the stage exchange it, and each takes the others'. A
 * step: each rank gets the trained elements of its stages that it does not update, 4 bytes, once.
 * If that fails stages may be a step apart, and the job ends. */

/* Before programs are made. */
static void dti_pipe_own(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe *pipe = par->pipe;
    dti_layout *l = &chunk->store->layout;
    const uint32_t replica = pipe->pipelines[chunk->pipeline].replica;
    const bool whole = dti_owners_full(par);
    if (!par->desc.level || pipe->mesh->data == 1)
        return;
    l->own_begin = dti_owners_begin(l, replica, pipe->mesh->data, whole);
    l->own_end = dti_owners_begin(l, replica + 1, pipe->mesh->data, whole);
    l->parted = true;
    l->level = par->desc.level;
}

static uint64_t *dti_pipe_bound(const dti_pipe *pipe, uint32_t chunk, uint32_t replica) {
    return &pipe->bounds[(size_t)chunk * (pipe->mesh->data + 1) + replica];
}

/* Of a chunk that is here: which blocks each replica has, and where its parameters lie. */
static void dti_pipe_bounds_of(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe *pipe = par->pipe;
    const dti_layout *l = &chunk->store->layout;
    const bool whole = dti_owners_full(par);
    for (uint32_t d = 0; d <= pipe->mesh->data; d++)
        *dti_pipe_bound(pipe, chunk->index, d) = dti_owners_begin(l, d, pipe->mesh->data, whole);
    for (uint32_t i = 0; i < l->param_count; i++)
        pipe->offsets[dti_pipe_stage_of(pipe, chunk)->params[i]] = l->params[i].offset;
}

/* On all ranks together: who has a chunk knows, and the others are told. */
static dt_result dti_pipe_bounds_make(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const uint32_t params = par->replicas[0].store->layout.param_count;
    const size_t count = (size_t)pipe->chunk_count * (pipe->mesh->data + 1);
    if (!par->desc.level || pipe->mesh->data == 1)
        return DT_OK;
    pipe->bounds = dti_alloc_array(par->base, count + params, sizeof *pipe->bounds);
    dt_result result = dti_agree_result(par, pipe->bounds ? DT_OK : DT_ERROR_MEMORY);
    if (result)
        return result;
    pipe->offsets = pipe->bounds + count;
    for (uint32_t i = 0; i < pipe->pipeline_count * pipe->chunk_count; i++) {
        if (pipe->chunks[i].store)
            dti_pipe_bounds_of(par, &pipe->chunks[i]);
    }
    if (!par->desc.comm)
        return DT_OK;
    return dti_parallel_comm_failed(par,
                                    dt_comm_all_reduce(par->desc.comm, pipe->bounds, pipe->bounds,
                                                       count + params, DT_I64, DT_COMM_MAX));
}

static dti_bucket dti_pipe_owns(const dti_pipe *pipe, uint32_t replica, uint32_t chunk,
                                uint32_t param, dti_bucket range) {
    const uint64_t at = pipe->offsets[param];
    const dti_bucket own = {*dti_pipe_bound(pipe, chunk, replica),
                            *dti_pipe_bound(pipe, chunk, replica + 1)};
    const dti_bucket here = {at + range.begin, at + range.end};
    const dti_bucket part = dti_bucket_overlap(here, own);
    return (dti_bucket){part.begin - at, part.end - at};
}

/* ---- new parameters from who made them */

/* The next run of what is trained, in the arenas' order: *i counts down the parameters. */
static bool dti_pipe_trained(const dti_code *code, uint32_t *i, dti_bucket *run) {
    *run = (dti_bucket){0, 0};
    for (; *i > 0; (*i)--) {
        const dti_param *p = &code->layout->params[*i - 1];
        const bool trained = dti_table_blocks(code, *i - 1, false) > 0;
        if (run->end && (!trained || p->offset != run->end))
            return true;
        if (!trained)
            continue;
        run->begin = run->end ? run->begin : p->offset;
        run->end = p->offset + dti_full_blocks(p->elements);
    }
    return run->end > 0;
}

typedef dt_result dti_pipe_range_fn(dti_parallel *par, const dti_pipe_chunk *chunk,
                                    dti_bucket range);

/* Of each run what lies in `own`. */
static dt_result dti_pipe_ranges(dti_parallel *par, const dti_pipe_chunk *chunk, dti_bucket own,
                                 dti_pipe_range_fn *each) {
    const dti_code *code = dti_program_code(dti_pipe_last(par, chunk));
    uint32_t i = code->layout->param_count;
    dti_bucket run;
    dt_result result = DT_OK;
    while (!result && dti_pipe_trained(code, &i, &run)) {
        const dti_bucket range = dti_bucket_overlap(run, own);
        if (range.begin < range.end)
            result = each(par, chunk, range);
    }
    return result;
}

static float *dti_pipe_staging(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    return dti_pipe_stage_of(par->pipe, chunk)->sum.total;
}

/* To the parameters from where the sum lies, or the other way. */
static dt_result dti_pipe_range_move(dti_parallel *par, const dti_pipe_chunk *chunk,
                                     dti_bucket range, bool take) {
    const dt_store *s = chunk->store;
    const dti_backend *b = s->device->backend;
    dti_memory *memory = s->memories[DTI_ARENA_PARAM];
    float *sum = dti_pipe_staging(par, chunk) + range.begin;
    const uint64_t at = dti_arena_bytes(range.begin);
    const uint64_t bytes = dti_arena_bytes(range.end - range.begin);
    return take ? b->memory_write(memory, at, sum, bytes) : b->memory_read(memory, at, sum, bytes);
}

static dt_result dti_pipe_range_put(dti_parallel *par, const dti_pipe_chunk *chunk,
                                    dti_bucket range) {
    return dti_pipe_range_move(par, chunk, range, false);
}

static dt_result dti_pipe_range_take(dti_parallel *par, const dti_pipe_chunk *chunk,
                                     dti_bucket range) {
    return dti_pipe_range_move(par, chunk, range, true);
}

static dt_result dti_pipe_share_put(dti_parallel *par, dti_pipe_chunk *chunk) {
    const dti_layout *l = &chunk->store->layout;
    return dti_pipe_ranges(par, chunk, (dti_bucket){l->own_begin, l->own_end}, dti_pipe_range_put);
}

static dt_result dti_pipe_share_take(dti_parallel *par, dti_pipe_chunk *chunk) {
    const dti_layout *l = &chunk->store->layout;
    dt_result result =
        dti_pipe_ranges(par, chunk, (dti_bucket){0, l->own_begin}, dti_pipe_range_take);
    return result ? result
                  : dti_pipe_ranges(par, chunk, (dti_bucket){l->own_end, l->elements},
                                    dti_pipe_range_take);
}

static void dti_pipe_put(void *arg, uint32_t device) {
    dti_pipe_for_each(arg, device, dti_pipe_share_put);
}

static void dti_pipe_get(void *arg, uint32_t device) {
    dti_pipe_for_each(arg, device, dti_pipe_share_take);
}

/* From the stage's rank number pipe->root of its group. */
static dt_result dti_pipe_range_tell(dti_parallel *par, const dti_pipe_chunk *chunk,
                                     dti_bucket range) {
    return dt_comm_broadcast(dti_pipe_stage_of(par->pipe, chunk)->sum.comm,
                             dti_pipe_staging(par, chunk) + range.begin, range.end - range.begin,
                             DT_F32, par->pipe->root);
}

/* What the ranks of a stage have, rank by rank, whose replicas follow each other. */
static dt_result dti_pipe_share_stage(dti_parallel *par, uint32_t s) {
    dti_pipe *pipe = par->pipe;
    const dti_pipe_chunk *chunk = dti_pipe_alike_chunk(pipe, s, 0);
    const dti_mesh_line line =
        dti_mesh_along(pipe->mesh, DTI_MESH_DATA, dti_pipe_stage_position(pipe, s));
    dt_result result = DT_OK;
    uint32_t d = 0;
    for (pipe->root = 0; d < line.count && !result; pipe->root++) {
        const uint32_t rank = dti_mesh_rank(pipe->mesh, line.first + d * line.step), first = d,
                       c = s % pipe->chunk_count;
        d += dti_mesh_share(pipe->mesh, line, rank).count;
        const dti_bucket own = {*dti_pipe_bound(pipe, c, first), *dti_pipe_bound(pipe, c, d)};
        result =
            dti_parallel_comm_failed(par, dti_pipe_ranges(par, chunk, own, dti_pipe_range_tell));
    }
    return result;
}

static dt_result dti_pipe_share_params(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    if (!pipe->bounds)
        return DT_OK;
    dt_result result = dti_protocol_phase(par, dti_pipe_put);
    for (uint32_t s = 0; s < pipe->stage_count && !result; s++) {
        if (pipe->stages[s].pipelines && pipe->stages[s].sum.comm)
            result = dti_pipe_share_stage(par, s);
    }
    return result ? result : dti_protocol_phase(par, dti_pipe_get);
}
