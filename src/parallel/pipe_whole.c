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
static dt_result dti_pipe_said(dti_parallel *par, uint32_t chunk, dt_result result) {
    const dti_base *base = par->pipe->chunks[chunk].store->base;
    return result && base->error[0]
               ? dti_fail(par->base, result, "stage %u: %s", chunk, base->error)
               : result;
}

static dt_result dti_pipe_move(dti_parallel *par, bool gather) {
    dt_store *whole = par->replicas[0].store;
    dt_result result = DT_OK;
    for (uint32_t c = 0; c < par->pipe->chunk_count && !result; c++) {
        dti_pipe_chunk *chunk = &par->pipe->chunks[c];
        for (uint32_t i = 0; i < chunk->store->layout.param_count && !result; i++) {
            const dti_pipe_place own = {chunk->store, i}, all = {whole, chunk->params[i]};
            result = gather ? dti_pipe_copy_param(&own, &all) : dti_pipe_copy_param(&all, &own);
        }
        if (!gather)
            chunk->store->steps = whole->steps;
        if (!gather && !result)
            dti_store_unbound(chunk->store);
        result = dti_pipe_said(par, c, result);
    }
    return result;
}

static dt_result dti_pipe_scatter(dti_parallel *par) {
    dt_result result = dti_pipe_move(par, false);
    for (uint32_t c = 0; c < par->pipe->chunk_count && !result; c++)
        result = dti_pipe_said(
            par, c,
            dti_statistics_load(&par->pipe->chunks[c].statistics, par->pipe->chunks[c].store));
    par->pipe->ahead = false;
    return result;
}

static dt_result dti_pipe_gather(dti_parallel *par) {
    if (!par->pipe || !par->pipe->ahead)
        return DT_OK;
    dt_result result = dti_pipe_move(par, true);
    if (result)
        return result;
    dti_store_unbound(par->replicas[0].store);
    par->pipe->ahead = false;
    return DT_OK;
}
