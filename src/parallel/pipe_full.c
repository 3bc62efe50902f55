/* All values of a pipeline's model, on the host. Chunks have the same parameters at other offsets,
 * so values move one parameter and one array at a time: its values, moments, average and step
 * count. Where replicas shard the state, all of them have parts of a stage's moments
 * (pipe_share.c). */

typedef struct dti_pipe_place { /* of a parameter in a store */
    dt_store *store;
    uint32_t param;
} dti_pipe_place;

typedef struct dti_pipe_move { /* of a parameter between the host and a chunk */
    const dti_pipe_chunk *chunk;
    dti_pipe_place own, all;
    bool gather; /* to the host */
} dti_pipe_move;

/* Elements [at, at + n) of array number `array` of a parameter: 0 its values, else moment
 * array - 1. */
static dt_result dti_pipe_array_read(const dti_pipe_place *p, uint32_t array, uint64_t at,
                                     uint64_t n, float *to) {
    const uint64_t from = p->store->layout.params[p->param].offset + at;
    return array ? dti_state_read_part(p->store, array - 1, from, n, to)
                 : p->store->device->backend->memory_read(p->store->memories[DTI_ARENA_PARAM],
                                                          dti_arena_bytes(from), to,
                                                          dti_arena_bytes(n));
}

/* Of a moment what the store has. */
static dt_result dti_pipe_array_write(const dti_pipe_place *p, uint32_t array, uint64_t at,
                                      uint64_t n, const float *from) {
    const uint64_t to = p->store->layout.params[p->param].offset + at;
    return array ? dti_state_write_part(p->store, array - 1, to, n, from)
                 : p->store->device->backend->memory_write(p->store->memories[DTI_ARENA_PARAM],
                                                           dti_arena_bytes(to), from,
                                                           dti_arena_bytes(n));
}

/* What the chunk's stage has, here. */
static dt_result dti_pipe_stage_read(const dti_pipe *pipe, const dti_pipe_move *m, uint32_t array,
                                     uint64_t at, uint64_t n, float *to) {
    const uint32_t s = (uint32_t)(dti_pipe_stage_of(pipe, m->chunk) - pipe->stages);
    dt_result result = DT_OK;
    if (!pipe->bounds || !array)
        return dti_pipe_array_read(&m->own, array, at, n, to);
    for (uint32_t i = 0; i < pipe->stages[s].pipelines && !result; i++) {
        const dti_pipe_chunk *chunk = dti_pipe_alike_chunk(pipe, s, i);
        const dti_pipe_place own = {chunk->store, m->own.param};
        const dti_bucket part =
            dti_pipe_owns(pipe, pipe->pipelines[chunk->pipeline].replica, m->chunk->index,
                          m->all.param, (dti_bucket){at, at + n});
        if (part.begin < part.end)
            result = dti_pipe_array_read(&own, array, part.begin, part.end - part.begin,
                                         to + (part.begin - at));
    }
    return result;
}

/* Between the host's parameter and a tensor rank's part of an array. */
static dt_result dti_pipe_copy_part(const dti_pipe *pipe, const dti_pipe_move *m, uint32_t array) {
    const dti_tp *tp = pipe->shared;
    const uint64_t part = m->own.store->layout.params[m->own.param].elements,
                   whole = m->all.store->layout.params[m->all.param].elements;
    dt_result result = dti_pipe_array_read(&m->all, array, 0, whole, tp->whole);
    if (!result && m->gather)
        result = dti_pipe_stage_read(pipe, m, array, 0, part, tp->part);
    if (result)
        return result;
    dti_tp_part_copy(tp, &tp->parts[m->all.param], pipe->pipelines[m->chunk->pipeline].tp_rank,
                     m->gather);
    return m->gather ? dti_pipe_array_write(&m->all, array, 0, whole, tp->whole)
                     : dti_pipe_array_write(&m->own, array, 0, part, tp->part);
}

static dt_result dti_pipe_copy_array(const dti_pipe *pipe, const dti_pipe_move *m, uint32_t array) {
    const uint64_t all = m->own.store->layout.params[m->own.param].elements;
    float piece[DTI_STORE_PIECE / 16];
    dt_result result = DT_OK;
    if (dti_pipe_is_part(pipe, m->all.param))
        return dti_pipe_copy_part(pipe, m, array);
    for (uint64_t at = 0; at < all && !result; at += DTI_COUNT(piece)) {
        const uint64_t n = DTI_MIN(all - at, (uint64_t)DTI_COUNT(piece));
        result = m->gather ? dti_pipe_stage_read(pipe, m, array, at, n, piece)
                           : dti_pipe_array_read(&m->all, array, at, n, piece);
        if (!result)
            result = dti_pipe_array_write(m->gather ? &m->all : &m->own, array, at, n, piece);
    }
    return result;
}

static uint64_t dti_pipe_count_at(const dti_pipe_place *p) {
    return DTI_WORD_BYTES * (dti_state_t_offset(&p->store->layout) + p->param);
}

static dt_result dti_pipe_count(const dti_pipe_place *p, uint32_t *count, bool write) {
    const dti_backend *b = p->store->device->backend;
    dti_memory *memory = p->store->memories[DTI_ARENA_STATE];
    return write ? b->memory_write(memory, dti_pipe_count_at(p), count, sizeof *count)
                 : b->memory_read(memory, dti_pipe_count_at(p), count, sizeof *count);
}

static dt_result dti_pipe_copy_param(const dti_pipe *pipe, const dti_pipe_move *m) {
    const dti_pipe_place *from = m->gather ? &m->own : &m->all, *to = m->gather ? &m->all : &m->own;
    uint32_t count;
    dt_result result = dti_pipe_count(from, &count, false);
    if (!result)
        result = dti_pipe_count(to, &count, true);
    for (uint32_t array = 0; array <= from->store->moments && !result; array++)
        result = dti_pipe_copy_array(pipe, m, array);
    to->store->kept[to->param].averaged = from->store->kept[from->param].averaged;
    to->store->kept[to->param].from = from->store->kept[from->param].from;
    return result;
}

/* Says it in the first context, where it is a chunk's. */
static dt_result dti_pipe_said(dti_parallel *par, const dti_pipe_chunk *chunk, dt_result result) {
    const dti_base *base = chunk->store->base;
    return result && base->error[0] ? dti_pipe_blame(par, chunk, result, base->error) : result;
}

static dt_result dti_pipe_scatter_chunk(dti_parallel *par, dti_pipe_chunk *chunk) {
    dt_store *whole = par->replicas[0].store;
    dti_pipe_stage *stage = dti_pipe_stage_of(par->pipe, chunk);
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < chunk->store->layout.param_count && !result; i++) {
        const dti_pipe_move m = {
            .chunk = chunk, .own = {chunk->store, i}, .all = {whole, stage->params[i]}};
        result = dti_pipe_copy_param(par->pipe, &m);
    }
    chunk->store->steps = whole->steps;
    if (!result)
        dti_store_unbound(chunk->store);
    if (!result)
        result = dti_statistics_load(&stage->statistics, chunk->store);
    return dti_pipe_said(par, chunk, result);
}

static dt_result dti_pipe_scatter(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < pipe->pipeline_count * pipe->chunk_count && !result; i++) {
        if (pipe->chunks[i].store)
            result = dti_pipe_scatter_chunk(par, &pipe->chunks[i]);
    }
    return result;
}

/* ---- from their owners: those of the first replica */

/* The first pipeline of a replica that is here as a whole; pipeline_count: there is none. */
static uint32_t dti_pipe_full_pipeline(const dti_pipe *pipe) {
    uint32_t i = 0;
    for (; i < pipe->pipeline_count; i += pipe->mesh->tensor) {
        uint32_t k = 0;
        while (k < pipe->stage_count && dti_pipe_chunk_of(pipe, i, k)->store)
            k++;
        if (k == pipe->stage_count)
            break;
    }
    return i;
}

/* Of a tensor rank behind the first, its parts. */
static dt_result dti_pipe_gather_chunk(dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe *pipe = par->pipe;
    const uint32_t *params = dti_pipe_stage_of(pipe, chunk)->params,
                   tp_rank = pipe->pipelines[chunk->pipeline].tp_rank;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < chunk->store->layout.param_count && !result; i++) {
        const dti_pipe_move m = {.chunk = chunk,
                                 .own = {chunk->store, i},
                                 .all = {par->replicas[0].store, params[i]},
                                 .gather = true};
        if (!tp_rank || dti_pipe_is_part(pipe, params[i]))
            result = dti_pipe_copy_param(pipe, &m);
    }
    return dti_pipe_said(par, chunk, result);
}

static dt_result dti_pipe_gather_here(dti_parallel *par, uint32_t pipeline) {
    const dti_pipe *pipe = par->pipe;
    dt_result result = DT_OK;
    for (uint32_t k = 0; k < pipe->stage_count && !result; k++) /* pipeline by pipeline */
        result = dti_pipe_gather_chunk(par, dti_pipe_chunk_of(pipe, pipeline, k));
    return result;
}

/* A parameter of the model, and the chunk that has it. */
typedef struct dti_pipe_owned {
    uint32_t param;
    uint16_t chunk;
} dti_pipe_owned;

/* Where a pipeline of the job has it, if that is here; else no store. */
static dti_pipe_place dti_pipe_owned_place(const dti_pipe *pipe, const dti_pipe_owned *o,
                                           uint32_t pipeline) {
    const uint32_t here = dti_pipeline_of(pipe, pipeline);
    dti_pipe_place own = {NULL, 0};
    if (here >= pipe->pipeline_count)
        return own;
    const dti_pipe_chunk *chunk = dti_pipe_chunk_of(pipe, here, o->chunk);
    own.store = chunk->store;
    while (own.store && dti_pipe_stage_of(pipe, chunk)->params[own.param] != o->param)
        own.param++;
    return own;
}

/* Elements [at, at + n) of a tensor rank's array, from whoever has them to all ranks. What a device
 * of one rank says does not keep the others from going on. */
static dt_result dti_pipe_tell(dti_parallel *par, const dti_pipe_owned *o, uint32_t tp_rank,
                               uint32_t array, dti_bucket range, float *to) {
    const dti_pipe *pipe = par->pipe;
    dt_result result = DT_OK;
    for (uint32_t d = 0; d < (pipe->bounds && array ? pipe->mesh->data : 1) && !par->lost; d++) {
        const uint32_t pipeline = d * pipe->mesh->tensor + tp_rank;
        const dti_bucket part =
            pipe->bounds && array ? dti_pipe_owns(pipe, d, o->chunk, o->param, range) : range;
        const dti_pipe_place own = dti_pipe_owned_place(pipe, o, pipeline);
        const uint64_t n = part.end - part.begin;
        float *here = to + (part.begin - range.begin);
        if (part.begin >= part.end)
            continue;
        const dt_result one =
            own.store ? dti_pipe_array_read(&own, array, part.begin, n, here) : DT_OK;
        const dt_result told = dti_parallel_comm_failed(
            par, dt_comm_broadcast(par->desc.comm, here, n, DT_F32,
                                   (int)dti_pipe_rank(par, pipeline, o->chunk)));
        result = result ? result : told ? told : one;
    }
    return result;
}

/* All tensor ranks' parts of an array, to the host of each rank. */
static dt_result dti_pipe_spread_parts(dti_parallel *par, const dti_pipe_owned *o, uint32_t array) {
    dti_pipe *pipe = par->pipe;
    const dti_tp *tp = pipe->shared;
    const dti_pipe_place all = {par->replicas[0].store, o->param};
    const uint64_t n = all.store->layout.params[o->param].elements;
    dt_result result = DT_OK;
    for (uint32_t m = 0; m < pipe->mesh->tensor && !par->lost; m++) {
        const dt_result one =
            dti_pipe_tell(par, o, m, array, (dti_bucket){0, n / tp->size}, tp->part);
        dti_tp_part_copy(tp, &tp->parts[o->param], m, true);
        result = result ? result : one;
    }
    const dt_result put = dti_pipe_array_write(&all, array, 0, n, tp->whole);
    return result ? result : put;
}

static dt_result dti_pipe_spread_array(dti_parallel *par, const dti_pipe_owned *o, uint32_t array) {
    const dti_pipe_place all = {par->replicas[0].store, o->param};
    const uint64_t n = all.store->layout.params[o->param].elements,
                   most = DTI_AGREE_PIECE / dti_arena_bytes(1);
    float *piece = (float *)(void *)par->pipe->piece;
    dt_result result = DT_OK;
    if (dti_pipe_is_part(par->pipe, o->param))
        return dti_pipe_spread_parts(par, o, array);
    for (uint64_t at = 0; at < n && !par->lost; at += most) {
        const dti_bucket range = {at, DTI_MIN(at + most, n)};
        const dt_result told = dti_pipe_tell(par, o, 0, array, range, piece);
        const dt_result one =
            told ? told : dti_pipe_array_write(&all, array, at, range.end - at, piece);
        result = result ? result : one;
    }
    return result;
}

/* Its count of steps, and whether there is an average. */
static dt_result dti_pipe_spread_count(dti_parallel *par, const dti_pipe_owned *o) {
    const dti_pipe_place all = {par->replicas[0].store, o->param},
                         own = dti_pipe_owned_place(par->pipe, o, 0);
    uint64_t kept[3] = {0};
    uint32_t count = 0;
    dt_result result = own.store ? dti_pipe_count(&own, &count, false) : DT_OK;
    if (own.store) {
        kept[0] = count;
        kept[1] = own.store->kept[own.param].averaged;
        kept[2] = own.store->kept[own.param].from;
    }
    if (par->lost)
        return result;
    const dt_result told =
        dti_parallel_comm_failed(par, dt_comm_broadcast(par->desc.comm, kept, 3, DT_I64,
                                                        (int)dti_pipe_rank(par, 0, o->chunk)));
    count = (uint32_t)kept[0];
    const dt_result put = dti_pipe_count(&all, &count, true);
    all.store->kept[o->param].averaged = kept[1] != 0;
    all.store->kept[o->param].from = kept[2];
    return result ? result : told ? told : put;
}

/* In the model's order, on all ranks. Parameters that no chunk reads are everywhere the same. */
static dt_result dti_pipe_gather_ranks(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const dt_graph *g = par->replicas[0].graph;
    const dt_store *all = par->replicas[0].store;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < all->layout.param_count && !par->lost; i++) {
        const dti_pipe_owned o = {i, pipe->cut.home[dti_pipe_node(pipe, g->params[i])]};
        if (o.chunk == DTI_PIPE_NOWHERE)
            continue;
        for (uint32_t array = 0; array <= all->moments; array++) {
            const dt_result one = dti_pipe_spread_array(par, &o, array);
            result = result ? result : one;
        }
        const dt_result one = dti_pipe_spread_count(par, &o);
        result = result ? result : one;
    }
    return dti_agree_result(par, result);
}

/* Whether all values and state are here: those of a replica; of sharded state all of them. */
static bool dti_pipe_is_here(const dti_parallel *par, uint32_t pipeline) {
    const dti_pipe *pipe = par->pipe;
    return pipe->bounds ? pipe->device_count * pipe->each == dti_mesh_size(&par->mesh)
                        : pipeline < pipe->pipeline_count;
}

/* Without the others' stages there is nothing to bring. */
static dt_result dti_pipe_gather(dti_parallel *par) {
    const uint32_t pipeline = dti_pipe_full_pipeline(par->pipe);
    const bool alone = !par->desc.comm || par->lost;
    if (alone && !dti_pipe_is_here(par, pipeline))
        return dti_fail(par->base, DT_ERROR_REVOKED,
                        "the job ended at step %llu, and other ranks' stages are lost: create a "
                        "new trainer and go on from a checkpoint",
                        (unsigned long long)par->replicas[0].store->steps);
    return alone ? dti_pipe_gather_here(par, pipeline) : dti_pipe_gather_ranks(par);
}
