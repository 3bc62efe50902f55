/* Which position has which chunk of which line. */

static const char *dti_pipe_names[] = {"1F1B", "fill-drain", "interleaved 1F1B", "zero bubble"};

static uint32_t dti_pipe_rank(const dti_parallel *par, uint32_t replica, uint32_t chunk) {
    const uint32_t across = par->pipe->across;
    return dti_grid_rank_of(par, replica * across + chunk % across);
}

static void dti_pipe_line_open(dti_parallel *par, uint32_t i) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_line *line = &pipe->lines[i];
    line->replica = pipe->first / pipe->across + i;
    const dti_partition grid = {.replicas = pipe->data, .shards = par->job.shards};
    dti_partition_shards(&grid, line->replica, &line->first_shard, &line->end_shard);
    for (uint32_t c = 0; c < pipe->chunk_count; c++) {
        const uint32_t at = line->replica * pipe->across + c % pipe->across;
        dti_pipe_chunk *chunk = dti_pipe_chunk_of(pipe, i, c);
        chunk->line = i;
        chunk->index = c;
        chunk->device = at - pipe->first; /* beyond them: another rank's */
        if (chunk->device >= pipe->device_count)
            continue;
        pipe->stages[c].first = pipe->stages[c].lines ? pipe->stages[c].first : i;
        pipe->stages[c].lines++;
    }
}

static dt_result dti_pipe_grid_make(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    pipe->across = par->desc.stages;
    pipe->chunk_count = par->desc.stages * par->desc.chunks;
    pipe->data = par->firsts[par->world] / pipe->across;
    pipe->first = par->firsts[par->rank];
    pipe->device_count = par->firsts[par->rank + 1] - pipe->first;
    const uint32_t last = pipe->first + pipe->device_count - 1;
    pipe->line_count = last / pipe->across - pipe->first / pipe->across + 1;
    pipe->devices = dti_alloc_array(par->base, pipe->device_count, sizeof *pipe->devices);
    pipe->lines = dti_alloc_array(par->base, pipe->line_count, sizeof *pipe->lines);
    pipe->stages = dti_alloc_array(par->base, pipe->chunk_count, sizeof *pipe->stages);
    pipe->chunks = dti_alloc_array(par->base, (size_t)pipe->line_count * pipe->chunk_count,
                                   sizeof *pipe->chunks);
    if (!pipe->devices || !pipe->lines || !pipe->stages || !pipe->chunks)
        return DT_ERROR_MEMORY;
    for (uint32_t d = 0; d < pipe->device_count; d++) {
        const uint32_t at = pipe->first + d;
        pipe->devices[d].line = at / pipe->across - pipe->first / pipe->across;
        pipe->devices[d].place = at % pipe->across;
    }
    for (uint32_t i = 0; i < pipe->line_count; i++)
        dti_pipe_line_open(par, i);
    par->first_shard = pipe->lines[0].first_shard;
    par->shards = pipe->lines[pipe->line_count - 1].end_shard - par->first_shard;
    return DT_OK;
}

/* ---- what the log says */

static void dti_pipe_log_chunk(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe *pipe = par->pipe;
    const dt_store *store = chunk->store;
    const uint32_t c = chunk->index;
    char of[32] = "";
    if (pipe->data > 1)
        snprintf(of, sizeof of, " of replica %u", pipe->lines[chunk->line].replica);
    dti_log(par->base, DT_LOG_INFO,
            "pipeline: stage %u%s on device %u, %s: nodes %u to %u, %.0f%% of the work, %u "
            "parameters; %llu bytes of them, as many of gradients, %llu of state, %llu of "
            "transients in %u lanes",
            c, of, pipe->first + chunk->device, store->device->info.id, pipe->cut.starts[c],
            pipe->cut.starts[c + 1] - 1, 100.0 * pipe->cut.work[c], store->layout.param_count,
            (unsigned long long)dti_arena_bytes(store->layout.elements),
            (unsigned long long)dti_state_bytes(&store->layout, store->moments),
            (unsigned long long)dti_pipe_chunk_transients(chunk),
            pipe->lines[chunk->line].schedules[0].lanes[c]);
}

static void dti_pipe_log(const dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    const dti_pipe_schedule *s = &pipe->lines[0].schedules[0];
    dti_grid_log(par);
    for (uint32_t i = 0; i < pipe->line_count * pipe->chunk_count; i++) {
        if (pipe->chunks[i].store)
            dti_pipe_log_chunk(par, &pipe->chunks[i]);
    }
    dti_log(par->base, s->micros < pipe->across ? DT_LOG_WARNING : DT_LOG_INFO,
            "pipeline: %s, %u micro-batches through %u devices: by unit times devices are idle "
            "for %.0f%% of the time that they work; at most %u micro-batches are alive on one%s",
            dti_pipe_names[par->desc.schedule], s->micros, s->devices, 100.0 * s->bubble, s->alive,
            s->micros < pipe->across ? "; use more: .accumulate" : "");
}
