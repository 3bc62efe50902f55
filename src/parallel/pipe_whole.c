/* All values of a pipeline's model, on the host. Chunks have the same parameters at other offsets,
 * so values go one parameter at a time: its weights, its count of steps, its moments and
 * average. */

typedef struct dti_pipe_place { /* of a parameter in a store */
    dt_store *store;
    uint32_t param;
} dti_pipe_place;

typedef struct dti_pipe_move { /* of a parameter between the host and a chunk */
    dti_pipe_place own, all;
    uint32_t member; /* of the chunk's stage */
    bool gather;     /* to the host */
} dti_pipe_move;

static dt_result dti_pipe_copy(const dti_pipe_place *from, const dti_pipe_place *to,
                               dti_arena arena, uint64_t from_at, uint64_t to_at, uint64_t bytes) {
    const dti_backend *a = from->store->device->backend, *b = to->store->device->backend;
    char piece[DTI_STORE_PIECE / 4];
    dt_result result = DT_OK;
    for (uint64_t at = 0; at < bytes && !result; at += sizeof piece) {
        const uint64_t n = DTI_MIN(bytes - at, (uint64_t)sizeof piece);
        result = a->memory_read(from->store->memories[arena], from_at + at, piece, n);
        if (!result)
            result = b->memory_write(to->store->memories[arena], to_at + at, piece, n);
    }
    return result;
}

static uint64_t dti_pipe_state_at(const dti_pipe_place *p, uint32_t moment) {
    const dti_layout *layout = &p->store->layout;
    return DTI_WORD_BYTES *
           (dti_state_moment_offset(layout, moment) + layout->params[p->param].offset);
}

static uint64_t dti_pipe_count_at(const dti_pipe_place *p) {
    return DTI_WORD_BYTES * (dti_state_t_offset(&p->store->layout) + p->param);
}

/* Between the host's parameter and a member's part of an array; gather: from that. */
static dt_result dti_pipe_copy_part(const dti_squad *squad, const dti_pipe_move *m, dti_arena arena,
                                    uint64_t own_at, uint64_t all_at) {
    dti_memory *own = m->own.store->memories[arena], *all = m->all.store->memories[arena];
    const dti_backend *a = m->own.store->device->backend, *b = m->all.store->device->backend;
    const size_t part = (size_t)dti_arena_bytes(m->own.store->layout.params[m->own.param].elements),
                 whole =
                     (size_t)dti_arena_bytes(m->all.store->layout.params[m->all.param].elements);
    dt_result result = b->memory_read(all, all_at, squad->whole, whole);
    if (!result && m->gather)
        result = a->memory_read(own, own_at, squad->part, part);
    if (result)
        return result;
    dti_squad_part_copy(squad, &squad->parts[m->all.param], m->member, m->gather);
    return m->gather ? b->memory_write(all, all_at, squad->whole, whole)
                     : a->memory_write(own, own_at, squad->part, part);
}

static dt_result dti_pipe_copy_array(const dti_pipe *pipe, const dti_pipe_move *m, dti_arena arena,
                                     uint64_t own_at, uint64_t all_at) {
    const uint64_t bytes = dti_arena_bytes(m->own.store->layout.params[m->own.param].elements);
    if (dti_pipe_is_part(pipe, m->all.param))
        return dti_pipe_copy_part(pipe->shared, m, arena, own_at, all_at);
    return m->gather ? dti_pipe_copy(&m->own, &m->all, arena, own_at, all_at, bytes)
                     : dti_pipe_copy(&m->all, &m->own, arena, all_at, own_at, bytes);
}

static dt_result dti_pipe_copy_param(const dti_pipe *pipe, const dti_pipe_move *m) {
    const dti_pipe_place *own = &m->own, *all = &m->all, *from = m->gather ? own : all,
                         *to = m->gather ? all : own;
    const uint64_t own_at = dti_arena_bytes(own->store->layout.params[own->param].offset),
                   all_at = dti_arena_bytes(all->store->layout.params[all->param].offset);
    dt_result result = dti_pipe_copy_array(pipe, m, DTI_ARENA_PARAM, own_at, all_at);
    if (!result)
        result = dti_pipe_copy(from, to, DTI_ARENA_STATE, dti_pipe_count_at(from),
                               dti_pipe_count_at(to), DTI_WORD_BYTES);
    for (uint32_t i = 0; i < from->store->moments && !result; i++)
        result = dti_pipe_copy_array(pipe, m, DTI_ARENA_STATE, dti_pipe_state_at(own, i),
                                     dti_pipe_state_at(all, i));
    to->store->kept[to->param].averaged = from->store->kept[from->param].averaged;
    to->store->kept[to->param].from = from->store->kept[from->param].from;
    return result;
}

/* Says it in the first context, where it is a chunk's. */
static dt_result dti_pipe_said(dti_parallel *par, const dti_pipe_chunk *chunk, dt_result result) {
    const dti_base *base = chunk->store->base;
    return result && base->error[0]
               ? dti_fail(par->base, result, "stage %u: %s", chunk->index, base->error)
               : result;
}

static dt_result dti_pipe_scatter_chunk(dti_parallel *par, dti_pipe_chunk *chunk) {
    dt_store *whole = par->replicas[0].store;
    dti_pipe_stage *stage = dti_pipe_stage_of(par->pipe, chunk);
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < chunk->store->layout.param_count && !result; i++) {
        const dti_pipe_move m = {.own = {chunk->store, i},
                                 .all = {whole, stage->params[i]},
                                 .member = par->pipe->lines[chunk->line].member};
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
    for (uint32_t i = 0; i < pipe->line_count * pipe->chunk_count && !result; i++) {
        if (pipe->chunks[i].store)
            result = dti_pipe_scatter_chunk(par, &pipe->chunks[i]);
    }
    return result;
}

/* ---- from their owners: those of the first replica */

/* The first line of a replica that is here as a whole; line_count: there is none. */
static uint32_t dti_pipe_whole_line(const dti_pipe *pipe) {
    uint32_t i = 0;
    for (; i < pipe->line_count; i += pipe->members) {
        uint32_t k = 0;
        while (k < pipe->stage_count && dti_pipe_chunk_of(pipe, i, k)->store)
            k++;
        if (k == pipe->stage_count)
            break;
    }
    return i;
}

/* Of a member behind the first, its parts. */
static dt_result dti_pipe_gather_chunk(dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe *pipe = par->pipe;
    const uint32_t *params = dti_pipe_stage_of(pipe, chunk)->params,
                   member = pipe->lines[chunk->line].member;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < chunk->store->layout.param_count && !result; i++) {
        const dti_pipe_move m = {.own = {chunk->store, i},
                                 .all = {par->replicas[0].store, params[i]},
                                 .member = member,
                                 .gather = true};
        if (!member || dti_pipe_is_part(pipe, params[i]))
            result = dti_pipe_copy_param(pipe, &m);
    }
    return dti_pipe_said(par, chunk, result);
}

static dt_result dti_pipe_gather_here(dti_parallel *par, uint32_t line) {
    const dti_pipe *pipe = par->pipe;
    dt_result result = DT_OK;
    for (uint32_t k = 0; k < pipe->stage_count && !result; k++) /* line by line */
        result = dti_pipe_gather_chunk(par, dti_pipe_chunk_of(pipe, line, k));
    return result;
}

/* A range of an arena of whoever has it (`own`, on the rank `root`) to all ranks. What a device of
 * one rank says does not keep the others from going on. */
static dt_result dti_pipe_spread(dti_parallel *par, const dti_pipe_place *own, uint32_t root,
                                 dti_arena arena, uint64_t from, uint64_t to, uint64_t bytes) {
    dt_store *whole = par->replicas[0].store;
    char *piece = par->pipe->piece;
    dt_result result = DT_OK;
    for (uint64_t at = 0; at < bytes && !par->lost; at += DTI_AGREE_PIECE) {
        const uint64_t n = DTI_MIN(bytes - at, (uint64_t)DTI_AGREE_PIECE);
        dt_result one = DT_OK;
        if (root == par->rank)
            one = own->store->device->backend->memory_read(own->store->memories[arena], from + at,
                                                           piece, (size_t)n);
        const dt_result told = dti_parallel_comm_failed(
            par, dt_comm_broadcast(par->desc.comm, piece, n, DT_U8, (int)root));
        if (!one && !told)
            one = whole->device->backend->memory_write(whole->memories[arena], to + at, piece,
                                                       (size_t)n);
        result = result ? result : told ? told : one;
    }
    return result;
}

/* What the first replica's members of a chunk have of a parameter. */
typedef struct dti_pipe_owned {
    uint32_t param; /* of the model */
    uint16_t chunk;
} dti_pipe_owned;

/* Where a member that is here has it; else no store. */
static dti_pipe_place dti_pipe_owned_place(const dti_pipe *pipe, const dti_pipe_owned *o,
                                           uint32_t member) {
    dti_pipe_place own = {NULL, 0};
    if (pipe->lines[member].replica == 0)
        own.store = dti_pipe_chunk_of(pipe, member, o->chunk)->store;
    const uint32_t *params = pipe->stages[member * pipe->chunk_count + o->chunk].params;
    while (own.store && params[own.param] != o->param)
        own.param++;
    return own;
}

/* An array of it, moment + 1, or 0: its values. */
static uint64_t dti_pipe_array_at(const dti_pipe_place *p, uint32_t array) {
    return array ? dti_pipe_state_at(p, array - 1)
                 : dti_arena_bytes(p->store->layout.params[p->param].offset);
}

/* All members' parts of an array, to the host of each rank. */
static dt_result dti_pipe_spread_parts(dti_parallel *par, const dti_pipe_owned *o, uint32_t array) {
    dti_pipe *pipe = par->pipe;
    const dti_squad *squad = pipe->shared;
    const dti_pipe_place all = {par->replicas[0].store, o->param};
    const dti_arena arena = array ? DTI_ARENA_STATE : DTI_ARENA_PARAM;
    const uint64_t n = all.store->layout.params[o->param].elements;
    dt_result result = DT_OK;
    for (uint32_t m = 0; m < pipe->members && !par->lost; m++) {
        const dti_pipe_place own = dti_pipe_owned_place(pipe, o, m);
        dt_result one = DT_OK;
        if (own.store)
            one = own.store->device->backend->memory_read(
                own.store->memories[arena], dti_pipe_array_at(&own, array), squad->part,
                dti_arena_bytes(n / squad->size));
        const int root = (int)dti_pipe_rank(par, m, o->chunk);
        const dt_result told = dti_parallel_comm_failed(
            par, dt_comm_broadcast(par->desc.comm, squad->part, n / squad->size, DT_F32, root));
        dti_squad_part_copy(squad, &squad->parts[o->param], m, true);
        result = result ? result : told ? told : one;
    }
    const dt_result put = all.store->device->backend->memory_write(
        all.store->memories[arena], dti_pipe_array_at(&all, array), squad->whole,
        dti_arena_bytes(n));
    return result ? result : put;
}

static dt_result dti_pipe_spread_array(dti_parallel *par, const dti_pipe_owned *o, uint32_t array) {
    const dti_pipe_place all = {par->replicas[0].store, o->param},
                         own = dti_pipe_owned_place(par->pipe, o, 0);
    if (dti_pipe_is_part(par->pipe, o->param))
        return dti_pipe_spread_parts(par, o, array);
    return dti_pipe_spread(
        par, &own, dti_pipe_rank(par, 0, o->chunk), array ? DTI_ARENA_STATE : DTI_ARENA_PARAM,
        own.store ? dti_pipe_array_at(&own, array) : 0, dti_pipe_array_at(&all, array),
        dti_arena_bytes(all.store->layout.params[o->param].elements));
}

/* Its count of steps, and whether there is an average. */
static dt_result dti_pipe_spread_count(dti_parallel *par, const dti_pipe_owned *o) {
    const dti_pipe_place all = {par->replicas[0].store, o->param},
                         own = dti_pipe_owned_place(par->pipe, o, 0);
    const uint32_t root = dti_pipe_rank(par, 0, o->chunk);
    uint64_t kept[2] = {0, 0};
    dt_result result =
        dti_pipe_spread(par, &own, root, DTI_ARENA_STATE, own.store ? dti_pipe_count_at(&own) : 0,
                        dti_pipe_count_at(&all), DTI_WORD_BYTES);
    if (own.store) {
        kept[0] = own.store->kept[own.param].averaged;
        kept[1] = own.store->kept[own.param].from;
    }
    if (!par->lost) {
        const dt_result one = dti_parallel_comm_failed(
            par, dt_comm_broadcast(par->desc.comm, kept, 2, DT_I64, (int)root));
        result = result ? result : one;
    }
    all.store->kept[o->param].averaged = kept[0] != 0;
    all.store->kept[o->param].from = kept[1];
    return result;
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

/* Without the others' stages there is nothing to bring. */
static dt_result dti_pipe_gather(dti_parallel *par) {
    const uint32_t line = dti_pipe_whole_line(par->pipe);
    const bool alone = !par->desc.comm || par->lost;
    if (alone && line == par->pipe->line_count)
        return dti_fail(par->base, DT_ERROR_REVOKED,
                        "the job ended at step %llu, and with it the values of stages that other "
                        "ranks had: make a new trainer and go on from a checkpoint",
                        (unsigned long long)par->replicas[0].store->steps);
    return alone ? dti_pipe_gather_here(par, line) : dti_pipe_gather_ranks(par);
}
