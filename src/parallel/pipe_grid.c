/* Which position has which chunk of which pipeline. */

static const char *dti_pipe_names[] = {"1F1B", "fill-drain", "interleaved 1F1B", "zero bubble"};

/* Of a pipeline of the job, the position that has a chunk. */
static uint32_t dti_pipe_position(const dti_pipe *pipe, uint32_t pipeline, uint32_t chunk) {
    const uint32_t tp = pipeline / pipe->tp_ranks * pipe->across + chunk % pipe->across;
    return tp * pipe->tp_ranks + pipeline % pipe->tp_ranks;
}

static uint32_t dti_pipe_rank(const dti_parallel *par, uint32_t pipeline, uint32_t chunk) {
    return dti_grid_rank_of(par, dti_pipe_position(par->pipe, pipeline, chunk));
}

static void dti_pipeline_open(dti_parallel *par, uint32_t i) {
    dti_pipe *pipe = par->pipe;
    dti_pipeline *pipeline = &pipe->pipelines[i];
    pipeline->replica = pipe->first / (pipe->across * pipe->tp_ranks) + i / pipe->tp_ranks;
    pipeline->tp_rank = i % pipe->tp_ranks;
    const dti_partition grid = {.replicas = pipe->data, .batch_slices = par->job.batch_slices};
    dti_partition_batch_slices(&grid, pipeline->replica, &pipeline->first_batch_slice,
                               &pipeline->end_batch_slice);
    for (uint32_t c = 0; c < pipe->chunk_count; c++) {
        dti_pipe_chunk *chunk = dti_pipe_chunk_of(pipe, i, c);
        chunk->pipeline = i;
        chunk->index = c;
        chunk->device =
            dti_pipe_position(pipe, dti_pipeline_number(pipe, pipeline), c) - pipe->first;
        if (chunk->device >= pipe->device_count) /* another rank's */
            continue;
        dti_pipe_stage *stage = dti_pipe_stage_of(pipe, chunk);
        stage->first = stage->pipelines ? stage->first : i;
        stage->pipelines++;
    }
}

/* Where tensor ranks meet: of the stages of this rank. */
static void dti_pipe_tp_open(dti_pipe *pipe, uint32_t d) {
    dti_pipe_device *device = &pipe->devices[d];
    const uint32_t size = pipe->tp_ranks, at = pipe->first + d;
    if (size == 1)
        return;
    device->tp = &pipe->tp_groups[at / size - pipe->first / size];
    if (device->tp->count++ == 0) {
        device->tp->size = size;
        device->tp->first = at % size;
        device->tp->failed = &pipe->failed;
        device->tp->speaking = &pipe->speaking;
        device->tp->apart = true;
    }
}

static void dti_pipe_counts(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    pipe->tp_ranks = DTI_MAX(par->desc.tensor, 1u);
    pipe->across = par->desc.stages;
    pipe->chunk_count = par->desc.stages * par->desc.chunks;
    pipe->stage_count = pipe->chunk_count * pipe->tp_ranks;
    pipe->data = dti_parallel_width(par);
    pipe->first = par->firsts[par->rank];
    pipe->device_count = par->firsts[par->rank + 1] - pipe->first;
    const uint32_t last = pipe->first + pipe->device_count - 1, size = pipe->tp_ranks,
                   each = pipe->across * size;
    pipe->pipeline_count = (last / each - pipe->first / each + 1) * size;
    pipe->tp_count = last / size - pipe->first / size + 1;
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
    for (uint32_t d = 0; d < pipe->device_count; d++) {
        const uint32_t size = pipe->tp_ranks, each = pipe->across * size, at = pipe->first + d;
        pipe->devices[d].pipeline = (at / each - pipe->first / each) * size + at % size;
        pipe->devices[d].place = at / size % pipe->across;
        dti_pipe_tp_open(pipe, d);
    }
    for (uint32_t i = 0; i < pipe->pipeline_count; i++)
        dti_pipeline_open(par, i);
    par->first_batch_slice = pipe->pipelines[0].first_batch_slice;
    par->batch_slices =
        pipe->pipelines[pipe->pipeline_count - 1].end_batch_slice - par->first_batch_slice;
    return DT_OK;
}

/* ---- what the log says */

static void dti_pipe_log_chunk(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe *pipe = par->pipe;
    const dt_store *store = chunk->store;
    const uint32_t c = chunk->index;
    const dti_pipeline *pipeline = &pipe->pipelines[chunk->pipeline];
    char of[64] = "";
    int n = 0;
    if (pipe->tp_ranks > 1)
        n = snprintf(of, sizeof of, ", tensor rank %u of %u", pipeline->tp_rank, pipe->tp_ranks);
    if (pipe->data > 1 && n >= 0)
        snprintf(of + n, sizeof of - (size_t)n, " of replica %u", pipeline->replica);
    dti_log(par->base, DT_LOG_INFO,
            "pipeline: stage %u%s on device %u, %s: nodes %u to %u, %.0f%% of the work, %u "
            "parameters; %llu bytes of parameters, the same of gradients, %llu of state%s, %llu of "
            "transients in %u micro-batch slots",
            c, of, pipe->first + chunk->device, store->device->info.id, pipe->cut.starts[c],
            pipe->cut.starts[c + 1] - 1, 100.0 * pipe->cut.work[c], store->layout.param_count,
            (unsigned long long)dti_arena_bytes(store->layout.elements),
            (unsigned long long)dti_state_bytes(&store->layout, store->moments),
            store->layout.parted ? " (a shard)" : "",
            (unsigned long long)dti_pipe_chunk_transients(chunk),
            pipeline->schedules[0].micro_slots[c]);
}

static void dti_pipe_log(const dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    const dti_pipe_schedule *s = &pipe->pipelines[0].schedules[0];
    dti_grid_log(par);
    for (uint32_t i = 0; i < pipe->pipeline_count * pipe->chunk_count; i++) {
        if (pipe->chunks[i].store)
            dti_pipe_log_chunk(par, &pipe->chunks[i]);
    }
    dti_log(par->base, s->micros < pipe->across ? DT_LOG_WARNING : DT_LOG_INFO,
            "pipeline: %s, %u micro-batches through %u devices: estimated idle time is %.0f%% of "
            "compute time; at most %u live micro-batches on a device%s",
            dti_pipe_names[par->desc.schedule], s->micros, s->devices, 100.0 * s->bubble, s->alive,
            s->micros < pipe->across ? "; raise .accumulate" : "");
}
