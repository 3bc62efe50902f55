/* Which position has which chunk of which pipeline. */

static const char *dti_pipe_names[] = {"1F1B", "fill-drain", "interleaved 1F1B", "zero bubble"};

static uint32_t dti_pipe_position(const dti_mesh *mesh, uint32_t pipeline, uint32_t chunk) {
    const dti_mesh_place at = {pipeline / mesh->tensor, chunk % mesh->stages,
                               pipeline % mesh->tensor};
    return dti_mesh_position(mesh, at);
}

static uint32_t dti_pipe_stage_position(const dti_pipe *pipe, uint32_t s) {
    return dti_pipe_position(pipe->mesh, s / pipe->chunk_count, s % pipe->chunk_count);
}

static uint32_t dti_pipe_rank(const dti_parallel *par, uint32_t pipeline, uint32_t chunk) {
    return dti_mesh_rank(&par->mesh, dti_pipe_position(&par->mesh, pipeline, chunk));
}

static void dti_pipeline_open(dti_pipe *pipe, uint32_t i) {
    const dti_mesh *mesh = pipe->mesh;
    dti_pipeline *pipeline = &pipe->pipelines[i];
    pipeline->replica = dti_mesh_replicas(mesh, mesh->rank).first + i / mesh->tensor;
    pipeline->tp_rank = i % mesh->tensor;
    for (uint32_t c = 0; c < pipe->chunk_count; c++) {
        dti_pipe_chunk *chunk = dti_pipe_chunk_of(pipe, i, c);
        chunk->pipeline = i;
        chunk->index = c;
        chunk->device = (dti_pipe_position(mesh, dti_pipeline_number(pipe, pipeline), c) -
                         dti_mesh_own(mesh, mesh->rank).first) /
                        pipe->each;
        if (chunk->device >= pipe->device_count) /* another rank's */
            continue;
        dti_pipe_stage *stage = dti_pipe_stage_of(pipe, chunk);
        stage->chunk = stage->chunk ? stage->chunk : chunk;
        stage->pipelines++;
    }
}

/* Its pipeline and place in that, and where tensor ranks of its stage meet. */
static void dti_pipe_device_place(dti_pipe *pipe, uint32_t d) {
    const dti_mesh *mesh = pipe->mesh;
    dti_pipe_device *device = &pipe->devices[d];
    const uint32_t position = dti_mesh_own(mesh, mesh->rank).first + d * pipe->each;
    const dti_mesh_place at = dti_mesh_at(mesh, position);
    device->pipeline =
        (at.data - dti_mesh_replicas(mesh, mesh->rank).first) * mesh->tensor + at.tensor;
    device->place = at.stage;
    if (mesh->tensor == 1)
        return;
    const uint32_t first = dti_mesh_rows(mesh, mesh->rank, mesh->tensor).first;
    device->tp = &pipe->tp_groups[position / mesh->tensor - first];
    dti_tp_place_open(mesh, device->tp, position);
}

static void dti_pipe_counts(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const dti_mesh *mesh = pipe->mesh;
    pipe->chunk_count = mesh->stages * par->desc.chunks;
    pipe->stage_count = pipe->chunk_count * mesh->tensor;
    pipe->each = par->desc.slices;
    pipe->device_count = dti_mesh_own(mesh, mesh->rank).count / pipe->each;
    pipe->pipeline_count = dti_mesh_replicas(mesh, mesh->rank).count * mesh->tensor;
    pipe->tp_count = dti_mesh_rows(mesh, mesh->rank, mesh->tensor).count;
}

static dt_result dti_pipe_grid_make(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_counts(par);
    pipe->devices = dti_alloc_array(par->base, pipe->device_count, sizeof *pipe->devices);
    pipe->pipelines = dti_alloc_array(par->base, pipe->pipeline_count, sizeof *pipe->pipelines);
    pipe->stages = dti_alloc_array(par->base, pipe->stage_count, sizeof *pipe->stages);
    pipe->tp_groups = dti_alloc_array(par->base, pipe->tp_count, sizeof *pipe->tp_groups);
    pipe->chunks = dti_alloc_array(par->base, (size_t)pipe->pipeline_count * pipe->chunk_count,
                                   sizeof *pipe->chunks);
    if (!pipe->devices || !pipe->pipelines || !pipe->stages || !pipe->chunks || !pipe->tp_groups)
        return DT_ERROR_MEMORY;
    for (uint32_t d = 0; d < pipe->device_count; d++)
        dti_pipe_device_place(pipe, d);
    for (uint32_t i = 0; i < pipe->pipeline_count; i++)
        dti_pipeline_open(pipe, i);
    dti_mesh_cut(par);
    return DT_OK;
}

/* ---- the log */

/* The bytes of parameters (0), of gradients (1). */
static unsigned long long dti_pipe_store_bytes(const dt_store *s, int kind) {
    return dti_arena_bytes(s->units[kind] ? s->unit_elements[kind] : s->layout.elements);
}

static void dti_pipe_log_chunk(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe *pipe = par->pipe;
    const dt_store *store = chunk->store;
    const uint32_t c = chunk->index;
    const dti_pipeline *pipeline = &pipe->pipelines[chunk->pipeline];
    char of[64] = "";
    int n = 0;
    if (pipe->mesh->tensor > 1)
        n = snprintf(of, sizeof of, ", tensor rank %u of %u", pipeline->tp_rank,
                     pipe->mesh->tensor);
    if (pipe->mesh->data > 1 && n >= 0)
        snprintf(of + n, sizeof of - (size_t)n, " of replica %u", pipeline->replica);
    dti_log(par->base, DT_LOG_INFO,
            "pipeline: stage %u%s on device %u, %s: nodes %u to %u, %.0f%% of the work, %u "
            "parameters; %llu bytes of parameters, %llu of gradients, %llu of state%s, %llu of "
            "transients in %u micro-batch slots",
            c, of, dti_mesh_own(pipe->mesh, pipe->mesh->rank).first / pipe->each + chunk->device,
            store->device->info.id, pipe->plan->cut.starts[c], pipe->plan->cut.starts[c + 1] - 1,
            100.0 * pipe->plan->cut.work[c], store->layout.param_count,
            dti_pipe_store_bytes(store, 0), dti_pipe_store_bytes(store, 1),
            (unsigned long long)dti_state_bytes(&store->layout, store->moments),
            store->layout.parted ? " (a shard)" : "",
            (unsigned long long)dti_pipe_chunk_transients(chunk),
            pipeline->schedules[0].micro_slots[c]);
}

/* Whether it is a tensor group by itself. */
static void dti_pipe_log_tensor(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe *pipe = par->pipe;
    const dt_store *store = chunk->store;
    const dti_pipeline *pipeline = &pipe->pipelines[chunk->pipeline];
    uint32_t parts = 0;
    char of[32] = "";
    if (pipe->mesh->data > 1)
        snprintf(of, sizeof of, " of replica %u", pipeline->replica);
    for (uint32_t i = 0; i < store->layout.param_count; i++)
        parts += pipe->shared->parts[i].of.axis >= 0;
    dti_log(par->base, DT_LOG_INFO,
            "tensor: tensor rank %u%s on device %u, %s: %u of %u parameters split, the others "
            "replicated; %llu bytes of parameters, %llu of gradients, %llu of state%s, %llu of "
            "transients",
            pipeline->tp_rank, of,
            dti_mesh_own(pipe->mesh, pipe->mesh->rank).first / pipe->each + chunk->device,
            store->device->info.id, parts, store->layout.param_count,
            dti_pipe_store_bytes(store, 0), dti_pipe_store_bytes(store, 1),
            (unsigned long long)dti_state_bytes(&store->layout, store->moments),
            store->layout.parted ? " (a shard)" : "",
            (unsigned long long)dti_pipe_chunk_transients(chunk));
}

static void dti_pipe_log_collectives(const dti_parallel *par) {
    const dti_code *code = dti_program_code(dti_pipe_any(par->pipe, 0));
    uint64_t elements = 0;
    for (uint32_t i = 0; i < code->sync_point_count; i++)
        elements += code->sync_points[i].given;
    dti_log(par->base, DT_LOG_INFO,
            "tensor: %u collectives of a tensor group a micro-batch, %llu bytes from each rank",
            code->sync_point_count, (unsigned long long)dti_bytes(DT_F32, elements));
}

static void dti_pipe_log_schedule(const dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    const dti_pipe_schedule *s = &pipe->pipelines[0].schedules[0];
    dti_log(par->base, s->micros < pipe->mesh->stages ? DT_LOG_WARNING : DT_LOG_INFO,
            "pipeline: %s, %u micro-batches through %u devices: estimated idle time is %.0f%% of "
            "compute time; at most %u live micro-batches on a device%s",
            dti_pipe_names[par->desc.parallel.schedule], s->micros, s->devices, 100.0 * s->bubble,
            s->alive, s->micros < pipe->mesh->stages ? "; raise .accumulate" : "");
}

static void dti_pipe_log(const dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    const bool stages = pipe->chunk_count > 1;
    dti_mesh_log(par);
    for (dti_pipe_chunk *chunk = NULL; (chunk = dti_pipe_next(pipe, chunk)) != NULL;)
        (stages ? dti_pipe_log_chunk : dti_pipe_log_tensor)(par, chunk);
    if (stages)
        dti_pipe_log_schedule(par);
    else
        dti_pipe_log_collectives(par);
}
