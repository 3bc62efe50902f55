/* Sharded averages (ZeRO) in the weights' place, for an evaluation. With ZeRO-1 the weights wait in
 * the memory of gradients. Replicas exchange averages as they exchange new weights. With ZeRO-2 and
 * 3 each owner swaps its own weights and averages, and swaps them back after the evaluation. So
 * weights come back without the network. */

/* Memory of an arena to another one's; room: of DTI_AGREE_PIECE. */
static dt_result dti_average_copy(dt_store *s, dti_arena from, dti_arena to, char *room) {
    const uint64_t all = dti_layout_bytes(&s->layout, s->layout.elements);
    const dti_backend *b = s->device->backend;
    dt_result result = DT_OK;
    for (uint64_t at = 0; at < all && !result; at += DTI_AGREE_PIECE) {
        const uint64_t n = DTI_MIN(all - at, (uint64_t)DTI_AGREE_PIECE);
        result = b->memory_read(s->memories[from], at, room, n);
        if (!result)
            result = b->memory_write(s->memories[to], at, room, n);
    }
    return result;
}

/* A run of an average to its weights; exchange: and these to its place. */
static dt_result dti_average_move(dt_store *s, uint32_t average, dti_bucket range, bool exchange,
                                  float *room) {
    const uint64_t most = DTI_AGREE_PIECE / (2 * sizeof *room);
    float *weights = room, *averages = room + most;
    dt_result result = DT_OK;
    for (uint64_t at = range.begin; at < range.end && !result; at += most) {
        const uint64_t n = DTI_MIN(range.end - at, most);
        result = dti_store_array_read(s, average, at, n, averages);
        if (!result && exchange)
            result = dti_store_array_read(s, 0, at, n, weights);
        if (!result)
            result = dti_store_array_write(s, 0, at, n, averages);
        if (!result && exchange)
            result = dti_store_array_write(s, average, at, n, weights);
    }
    return result;
}

/* A chunk's own averages. */
static dt_result dti_average_own(const dti_parallel *par, const dti_pipe_chunk *chunk, char *room) {
    dt_store *s = chunk->store;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < s->layout.param_count && !result; i++) {
        const dti_param *p = &s->layout.params[i];
        const dti_bucket all = {p->offset, p->offset + p->elements};
        if (p->average && s->kept[i].averaged)
            result = dti_average_move(s, p->average, dti_bucket_overlap(all, dti_values_own(s)),
                                      dti_pipe_has_units(par), (float *)(void *)room);
    }
    return result ? result : dti_pipe_units_written(par, chunk);
}

static dt_result dti_average_chunk(dti_parallel *par, dti_pipe_chunk *chunk, char *room) {
    const bool units = dti_pipe_has_units(par);
    dt_result result = DT_OK;
    if (!units && !chunk->averages)
        result = dti_average_copy(chunk->store, DTI_ARENA_PARAM, DTI_ARENA_GRADIENT, room);
    else if (!units)
        result = dti_average_copy(chunk->store, DTI_ARENA_GRADIENT, DTI_ARENA_PARAM, room);
    const bool back = !units && chunk->averages;
    chunk->averages = result ? chunk->averages : !chunk->averages;
    return result || back ? result : dti_average_own(par, chunk, room);
}

/* Swaps averages of all chunks here, or of those that have them: back. */
static dt_result dti_average_all(dti_parallel *par, bool back) {
    dti_pipe_chunk *chunk = NULL;
    dt_result result = DT_OK;
    while (!result && (chunk = dti_pipe_next(par->pipe, chunk)) != NULL) {
        if (chunk->averages == back)
            result = dti_pipe_said(par, chunk, dti_average_chunk(par, chunk, par->pipe->room));
    }
    return result;
}

static dt_result dti_forward_show(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const dti_strategy *strategy = par->strategy;
    if (!pipe->bounds)
        return DT_OK;
    pipe->room = dti_alloc(par->base, DTI_AGREE_PIECE);
    DTI_TRY(dti_agree_result(par, pipe->room ? DT_OK : DT_ERROR_MEMORY));
    par->strategy = &dti_forward_strategy;
    dt_result result = dti_agree_result(par, dti_average_all(par, false));
    if (!result)
        result = dti_agree_result(par, dti_pipe_share_params(par));
    par->strategy = strategy;
    return result;
}

static dt_result dti_forward_hide(dti_parallel *par) {
    const dti_strategy *strategy = par->strategy;
    par->strategy = &dti_forward_strategy;
    dt_result result = dti_average_all(par, true);
    if (result)
        result = dti_protocol_partial_commit(par, result);
    par->strategy = strategy;
    dti_free(par->base, par->pipe->room);
    par->pipe->room = NULL;
    return result;
}
