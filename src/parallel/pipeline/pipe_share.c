/* ZeRO-1 in a grid of pipelines (see owners.c): of each chunk a replica has moments and averages of
 * a run of blocks, updates that run, and gets the others' from their owners. Gradients, norms and
 * findings are as without, so the bits are too.
 *
 * After the commit each replica copies what it wrote to where the sum of gradients lies, which
 * nobody reads any more; the ranks that have the stage exchange it, and each takes the others'. A
 * step: each rank gets the trained elements of its stages that it does not update, 4 bytes, once.
 * If that fails stages may be a step apart, and the job ends. */

/* Before programs are made. */
static dt_result dti_pipe_own(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe *pipe = par->pipe;
    dti_layout *l = &chunk->store->layout;
    const uint32_t replica = pipe->pipelines[chunk->pipeline].replica;
    const bool whole = dti_owners_full(par);
    if (!par->desc.parallel.zero_stage || pipe->mesh->data == 1)
        return DT_OK;
    l->own_begin = dti_owners_begin(l, replica, pipe->mesh->data, whole);
    l->own_end = dti_owners_begin(l, replica + 1, pipe->mesh->data, whole);
    l->parted = true;
    l->level = (uint8_t)par->desc.parallel.zero_stage;
    return dti_pipe_units_own(par, chunk);
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
    if (!par->desc.parallel.zero_stage || pipe->mesh->data == 1)
        return DT_OK;
    pipe->bounds = dti_alloc_array(par->base, count + params, sizeof *pipe->bounds);
    DTI_TRY(dti_agree_result(par, pipe->bounds ? DT_OK : DT_ERROR_MEMORY));
    pipe->offsets = pipe->bounds + count;
    for (uint32_t i = 0; i < pipe->pipeline_count * pipe->chunk_count; i++) {
        if (pipe->chunks[i].store)
            dti_pipe_bounds_of(par, &pipe->chunks[i]);
    }
    return dti_ranks_reduce(par, par->desc.comm, pipe->bounds, count + params, DT_I64, DT_COMM_MAX);
}

/* ---- new parameters from who made them */

static float *dti_pipe_staging(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    return dti_pipe_stage_of(par->pipe, chunk)->sum->total;
}

static dti_values_ranges dti_pipe_trained(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    return (dti_values_ranges){.code = dti_program_code(dti_pipe_last(par, chunk))};
}

static dt_result dti_pipe_share_put(dti_parallel *par, uint32_t part) {
    const dti_pipe_chunk *chunk = &par->pipe->chunks[part];
    const dti_values_ranges trained = dti_pipe_trained(par, chunk);
    const dti_layout *l = &chunk->store->layout;
    const dti_bucket own = {l->own_begin, l->own_end};
    return dti_values_copy_trained(
        chunk->store,
        (dti_values_copy){.trained = &trained, .part = own, .host = dti_pipe_staging(par, chunk)});
}

static dt_result dti_pipe_share_take(dti_parallel *par, uint32_t part) {
    const dti_pipe_chunk *chunk = &par->pipe->chunks[part];
    const dti_values_ranges trained = dti_pipe_trained(par, chunk);
    const dti_layout *l = &chunk->store->layout;
    return dti_values_take(chunk->store, &trained, (dti_bucket){l->own_begin, l->own_end},
                           dti_pipe_staging(par, chunk));
}

static dt_result dti_pipe_share_stage(dti_parallel *par, uint32_t s) {
    const dti_pipe *pipe = par->pipe;
    const dti_pipe_chunk *chunk = dti_pipe_alike_chunk(pipe, s, 0);
    const dti_values_ranges trained = dti_pipe_trained(par, chunk);
    const dti_values_shared shared = {
        dti_mesh_along(pipe->mesh, DTI_MESH_DATA, dti_pipe_stage_position(pipe, s)),
        dti_pipe_bound(pipe, chunk->index, 0)};
    return dti_parallel_comm_failed(par, dti_values_share(par, pipe->stages[s].sum->comm, &shared,
                                                          &trained, dti_pipe_staging(par, chunk)));
}

static dt_result dti_pipe_share_params(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    if (!pipe->bounds || dti_pipe_has_units(par))
        return DT_OK;
    dt_result result = dti_protocol_phase(par, dti_pipe_share_put);
    for (uint32_t s = 0; s < pipe->stage_count && !result; s++) {
        if (pipe->stages[s].pipelines && pipe->stages[s].sum->comm)
            result = dti_pipe_share_stage(par, s);
    }
    return result ? result : dti_protocol_phase(par, dti_pipe_share_take);
}
