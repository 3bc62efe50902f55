/* ZeRO-1 in a grid of pipelines (see owners.c). A replica has moments and averages for a run of
 * blocks of each chunk. It updates that run, and gets the other blocks from their owners.
 * Gradients, norms and findings are as without ZeRO, so the bits are the same.
 *
 * After the commit each replica copies the new values into the memory of gradient sums, which
 * nobody reads any more. The ranks with that stage exchange them. In a step each rank receives,
 * once, 4 bytes for each trained element of its stages that it does not update. If that fails,
 * stages may be a step apart, and the job ends. */

static uint64_t *dti_pipe_bound(const dti_pipe *pipe, uint32_t chunk, uint32_t replica) {
    return &pipe->bounds[(size_t)chunk * (pipe->mesh->data + 1) + replica];
}

static dti_values_shared dti_pipe_shared(const dti_pipe *pipe, uint32_t s) {
    return (dti_values_shared){
        dti_mesh_along(pipe->mesh, DTI_MESH_DATA, dti_pipe_stage_position(pipe, s)),
        dti_pipe_bound(pipe, s % pipe->chunk_count, 0)};
}

static dt_result dti_pipe_own(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe *pipe = par->pipe;
    const dti_layout *l = &chunk->store->layout;
    if (!pipe->bounds)
        return DT_OK;
    dti_owners_part(par, chunk->store, pipe->pipelines[chunk->pipeline].replica, pipe->mesh->data,
                    dti_pipe_bound(pipe, chunk->index, 0));
    for (uint32_t i = 0; i < l->param_count; i++)
        pipe->offsets[dti_pipe_stage_of(pipe, chunk)->params[i]] = l->params[i].offset;
    return dti_pipe_units_own(par, chunk);
}

static dt_result dti_pipe_bounds_make(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const size_t count = (size_t)pipe->chunk_count * (pipe->mesh->data + 1);
    if (!par->desc.parallel.zero_stage || pipe->mesh->data == 1)
        return DT_OK;
    pipe->bound_count = count + par->replicas[0].store->layout.param_count;
    pipe->bounds = dti_alloc_array(par->base, pipe->bound_count, sizeof *pipe->bounds);
    DTI_HAVE(pipe->bounds);
    pipe->offsets = pipe->bounds + count;
    return DT_OK;
}

/* ---- new parameters from their owners */

static dti_values_update dti_pipe_update(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe_stage *stage = dti_pipe_stage_of(par->pipe, chunk);
    return (dti_values_update){
        .trained.code = dti_program_code(dti_pipe_last(par, chunk)),
        .shared = dti_pipe_shared(par->pipe, (uint32_t)(stage - par->pipe->stages)),
        .host = stage->sum->total,
        .comm = stage->sum->comm};
}

static dt_result dti_pipe_share_put(dti_parallel *par, uint32_t part) {
    const dti_pipe_chunk *chunk = &par->pipe->chunks[part];
    const dti_values_update u = dti_pipe_update(par, chunk);
    return dti_values_give(&u, chunk->store);
}

static dt_result dti_pipe_share_take(dti_parallel *par, uint32_t part) {
    const dti_pipe_chunk *chunk = &par->pipe->chunks[part];
    const dti_values_update u = dti_pipe_update(par, chunk);
    return dti_values_take(&u, chunk->store);
}

static dt_result dti_pipe_share_params(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    if (!pipe->bounds || dti_pipe_has_units(par))
        return DT_OK;
    dt_result result = dti_protocol_phase(par, dti_pipe_share_put);
    for (uint32_t s = 0; s < pipe->stage_count && !result; s++) {
        if (!pipe->stages[s].chunk)
            continue;
        const dti_values_update u = dti_pipe_update(par, pipe->stages[s].chunk);
        result = dti_parallel_comm_failed(par, dti_values_share(par, &u));
    }
    return result ? result : dti_protocol_phase(par, dti_pipe_share_take);
}
