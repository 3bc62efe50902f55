/* Which position has which chunk of which line. */

static const char *dti_pipe_names[] = {"1F1B", "fill-drain", "interleaved 1F1B", "zero bubble"};

/* Of a line of the job, the position that has a chunk. */
static uint32_t dti_pipe_position(const dti_pipe *pipe, uint32_t line, uint32_t chunk) {
    const uint32_t squad = line / pipe->members * pipe->across + chunk % pipe->across;
    return squad * pipe->members + line % pipe->members;
}

static uint32_t dti_pipe_rank(const dti_parallel *par, uint32_t line, uint32_t chunk) {
    return dti_grid_rank_of(par, dti_pipe_position(par->pipe, line, chunk));
}

static void dti_pipe_line_open(dti_parallel *par, uint32_t i) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_line *line = &pipe->lines[i];
    line->replica = pipe->first / (pipe->across * pipe->members) + i / pipe->members;
    line->member = i % pipe->members;
    const dti_partition grid = {.replicas = pipe->data, .shards = par->job.shards};
    dti_partition_shards(&grid, line->replica, &line->first_shard, &line->end_shard);
    for (uint32_t c = 0; c < pipe->chunk_count; c++) {
        dti_pipe_chunk *chunk = dti_pipe_chunk_of(pipe, i, c);
        chunk->line = i;
        chunk->index = c;
        chunk->device = dti_pipe_position(pipe, dti_pipe_line_number(pipe, line), c) - pipe->first;
        if (chunk->device >= pipe->device_count) /* another rank's */
            continue;
        dti_pipe_stage *stage = dti_pipe_stage_of(pipe, chunk);
        stage->first = stage->lines ? stage->first : i;
        stage->lines++;
    }
}

/* Where members meet: of the stages of this rank. */
static void dti_pipe_squad_open(dti_pipe *pipe, uint32_t d) {
    dti_pipe_device *device = &pipe->devices[d];
    const uint32_t size = pipe->members, at = pipe->first + d;
    if (size == 1)
        return;
    device->squad = &pipe->squads[at / size - pipe->first / size];
    if (device->squad->count++ == 0) {
        device->squad->size = size;
        device->squad->first = at % size;
        device->squad->failed = &pipe->failed;
        device->squad->speaking = &pipe->speaking;
        device->squad->apart = true;
    }
}

static void dti_pipe_counts(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    pipe->members = DTI_MAX(par->desc.tensor, 1u);
    pipe->across = par->desc.stages;
    pipe->chunk_count = par->desc.stages * par->desc.chunks;
    pipe->stage_count = pipe->chunk_count * pipe->members;
    pipe->data = dti_parallel_width(par);
    pipe->first = par->firsts[par->rank];
    pipe->device_count = par->firsts[par->rank + 1] - pipe->first;
    const uint32_t last = pipe->first + pipe->device_count - 1, size = pipe->members,
                   each = pipe->across * size;
    pipe->line_count = (last / each - pipe->first / each + 1) * size;
    pipe->squad_count = last / size - pipe->first / size + 1;
}

static dt_result dti_pipe_grid_make(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_counts(par);
    pipe->devices = dti_alloc_array(par->base, pipe->device_count, sizeof *pipe->devices);
    pipe->lines = dti_alloc_array(par->base, pipe->line_count, sizeof *pipe->lines);
    pipe->stages = dti_alloc_array(par->base, pipe->stage_count, sizeof *pipe->stages);
    pipe->squads = dti_alloc_array(par->base, pipe->squad_count, sizeof *pipe->squads);
    pipe->chunks = dti_alloc_array(par->base, (size_t)pipe->line_count * pipe->chunk_count,
                                   sizeof *pipe->chunks);
    if (!pipe->devices || !pipe->lines || !pipe->stages || !pipe->chunks || !pipe->squads)
        return DT_ERROR_MEMORY;
    for (uint32_t d = 0; d < pipe->device_count; d++) {
        const uint32_t size = pipe->members, each = pipe->across * size, at = pipe->first + d;
        pipe->devices[d].line = (at / each - pipe->first / each) * size + at % size;
        pipe->devices[d].place = at / size % pipe->across;
        dti_pipe_squad_open(pipe, d);
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
    const dti_pipe_line *line = &pipe->lines[chunk->line];
    char of[64] = "";
    int n = 0;
    if (pipe->members > 1)
        n = snprintf(of, sizeof of, ", member %u of %u", line->member, pipe->members);
    if (pipe->data > 1 && n >= 0)
        snprintf(of + n, sizeof of - (size_t)n, " of replica %u", line->replica);
    dti_log(par->base, DT_LOG_INFO,
            "pipeline: stage %u%s on device %u, %s: nodes %u to %u, %.0f%% of the work, %u "
            "parameters; %llu bytes of them, as many of gradients, %llu of state%s, %llu of "
            "transients in %u lanes",
            c, of, pipe->first + chunk->device, store->device->info.id, pipe->cut.starts[c],
            pipe->cut.starts[c + 1] - 1, 100.0 * pipe->cut.work[c], store->layout.param_count,
            (unsigned long long)dti_arena_bytes(store->layout.elements),
            (unsigned long long)dti_state_bytes(&store->layout, store->moments),
            store->layout.parted ? " (a share)" : "",
            (unsigned long long)dti_pipe_chunk_transients(chunk), line->schedules[0].lanes[c]);
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
