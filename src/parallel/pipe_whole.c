/* All values of a pipeline's model, on the host. Chunks have the same parameters at other offsets,
 * so values go one parameter at a time: its weights, its count of steps, its moments and
 * average. */

typedef struct dti_pipe_place { /* of a parameter in a store */
    dt_store *store;
    uint32_t param;
} dti_pipe_place;

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

static dt_result dti_pipe_copy_param(const dti_pipe_place *from, const dti_pipe_place *to) {
    const dti_param *a = &from->store->layout.params[from->param],
                    *b = &to->store->layout.params[to->param];
    const uint64_t bytes = dti_arena_bytes(a->elements);
    dt_result result = dti_pipe_copy(from, to, DTI_ARENA_PARAM, dti_arena_bytes(a->offset),
                                     dti_arena_bytes(b->offset), bytes);
    if (!result)
        result = dti_pipe_copy(from, to, DTI_ARENA_STATE, dti_pipe_count_at(from),
                               dti_pipe_count_at(to), DTI_WORD_BYTES);
    for (uint32_t i = 0; i < from->store->moments && !result; i++)
        result = dti_pipe_copy(from, to, DTI_ARENA_STATE, dti_pipe_state_at(from, i),
                               dti_pipe_state_at(to, i), bytes);
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
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < chunk->store->layout.param_count && !result; i++) {
        const dti_pipe_place own = {chunk->store, i},
                             all = {whole, par->pipe->stages[chunk->index].params[i]};
        result = dti_pipe_copy_param(&all, &own);
    }
    chunk->store->steps = whole->steps;
    if (!result)
        dti_store_unbound(chunk->store);
    if (!result)
        result = dti_statistics_load(&par->pipe->stages[chunk->index].statistics, chunk->store);
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

/* A line that is here as a whole; line_count: there is none. */
static uint32_t dti_pipe_whole_line(const dti_pipe *pipe) {
    uint32_t i = 0;
    for (; i < pipe->line_count; i++) {
        uint32_t c = 0;
        while (c < pipe->chunk_count && dti_pipe_chunk_of(pipe, i, c)->store)
            c++;
        if (c == pipe->chunk_count)
            break;
    }
    return i;
}

static dt_result dti_pipe_gather_here(dti_parallel *par, uint32_t line) {
    const dti_pipe *pipe = par->pipe;
    dt_result result = DT_OK;
    for (uint32_t c = 0; c < pipe->chunk_count && !result; c++) {
        dti_pipe_chunk *chunk = dti_pipe_chunk_of(pipe, line, c);
        for (uint32_t i = 0; i < chunk->store->layout.param_count && !result; i++) {
            const dti_pipe_place own = {chunk->store, i},
                                 all = {par->replicas[0].store, pipe->stages[c].params[i]};
            result = dti_pipe_copy_param(&own, &all);
        }
        result = dti_pipe_said(par, chunk, result);
    }
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

/* Values, count of steps, moments and average of a parameter. */
static dt_result dti_pipe_gather_param(dti_parallel *par, const dti_pipe_place *own, uint32_t root,
                                       uint32_t param) {
    const dti_pipe_place all = {par->replicas[0].store, param};
    const dti_param *b = &all.store->layout.params[param];
    const uint64_t bytes = dti_arena_bytes(b->elements);
    const bool here = root == par->rank;
    uint64_t kept[2] = {0, 0};
    dt_result result =
        dti_pipe_spread(par, own, root, DTI_ARENA_PARAM,
                        here ? dti_arena_bytes(own->store->layout.params[own->param].offset) : 0,
                        dti_arena_bytes(b->offset), bytes);
    dt_result one =
        dti_pipe_spread(par, own, root, DTI_ARENA_STATE, here ? dti_pipe_count_at(own) : 0,
                        dti_pipe_count_at(&all), DTI_WORD_BYTES);
    result = result ? result : one;
    for (uint32_t i = 0; i < all.store->moments; i++) {
        one = dti_pipe_spread(par, own, root, DTI_ARENA_STATE, here ? dti_pipe_state_at(own, i) : 0,
                              dti_pipe_state_at(&all, i), bytes);
        result = result ? result : one;
    }
    if (here) {
        kept[0] = own->store->kept[own->param].averaged;
        kept[1] = own->store->kept[own->param].from;
    }
    if (!par->lost) {
        one = dti_parallel_comm_failed(
            par, dt_comm_broadcast(par->desc.comm, kept, 2, DT_I64, (int)root));
        result = result ? result : one;
    }
    all.store->kept[param].averaged = kept[0] != 0;
    all.store->kept[param].from = kept[1];
    return result;
}

/* In the model's order, on all ranks. Parameters that no chunk reads are everywhere the same. */
static dt_result dti_pipe_gather_ranks(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const dt_graph *g = par->replicas[0].graph;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < par->replicas[0].store->layout.param_count && !par->lost; i++) {
        const uint16_t c = pipe->cut.home[g->params[i]];
        if (c == DTI_PIPE_NOWHERE)
            continue;
        const uint32_t root = dti_pipe_rank(par, 0, c);
        dti_pipe_place own = {NULL, 0};
        if (root == par->rank) {
            own.store = dti_pipe_chunk_of(pipe, 0, c)->store;
            while (pipe->stages[c].params[own.param] != i)
                own.param++;
        }
        const dt_result one = dti_pipe_gather_param(par, &own, root, i);
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
