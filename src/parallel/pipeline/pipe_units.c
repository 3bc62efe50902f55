/* ZeRO-2 and 3 in a grid of pipelines. The replicas' copies of a chunk shard its parameters and
 * gradients: each has a run of blocks (see pipe_share.c, unit_step.c).
 *
 * Gradients stay whole until a chunk's last micro-batch, since their sums have one order. Then the
 * stage's sum goes to its owners, and each copies its part to where the update reads it. Parameters
 * are gathered once a step, before the first micro-batch, and stay until the last one (ZeRO-2); or
 * for each forward and backward part, unit by unit (ZeRO-3). Between steps only owners have them.
 *
 * Between ranks all replicas gather a stage's units in one order. So they all have the lists of the
 * replica with most micro-batches. A replica without one of these only gathers, and computes
 * nothing. It cannot deadlock: a unit waits only for parts that come earlier in the lists of all
 * replicas.
 *
 * Cost of a step, for G bytes of a stage's parameters on R ranks: each receives G (R - 1) / R for
 * gradients. It receives the same each time that parameters are gathered. */

static bool dti_pipe_has_units(const dti_parallel *par) {
    return DTI_HAS_ZERO && dti_grid_is(par) &&
           par->desc.parallel.zero_stage >= DT_SHARD_GRADIENTS && par->mesh.data > 1;
}

static dti_unit_part *dti_pipe_unit_part(const dti_pipe *pipe, const dti_pipe_chunk *chunk) {
    const dti_pipe_stage *stage = dti_pipe_stage_of(pipe, chunk);
    const size_t after = (size_t)(chunk - stage->chunk);
    return &stage->units.parts[after / (pipe->mesh->tensor * pipe->chunk_count)];
}

static dt_result dti_pipe_units_own(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    dti_pipe_stage *stage = dti_pipe_stage_of(par->pipe, chunk);
    if (!dti_pipe_has_units(par))
        return DT_OK;
    if (stage->buckets)
        return DT_OK;
    stage->buckets = dti_alloc_array(par->base, DTI_BUCKETS_MAX + 1u, sizeof *stage->buckets);
    if (!stage->buckets)
        return DT_ERROR_MEMORY;
    stage->bucket_count = dti_buckets_make(par, chunk->store, stage->buckets);
    return DT_OK;
}

static dt_result dti_pipe_units_micros(const dti_parallel *par, const dti_partition *grid,
                                       uint32_t rows, uint32_t *most) {
    return dti_pipe_has_units(par) && par->desc.comm ? dti_runs_most(par->base, grid, rows, most)
                                                     : DT_OK;
}

/* ---- making, after programs exist */

static dt_result dti_pipe_unit_part_make(dti_parallel *par, dti_pipe_chunk *chunk) {
    dti_unit_part *p = dti_pipe_unit_part(par->pipe, chunk);
    dt_store *s = chunk->store;
    const dti_backend *b = s->device->backend;
    *p = (dti_unit_part){.store = s, .params = b->memory_host(s->units[0])};
    if (s->device->info.kind == DT_DEVICE_CPU)
        return DT_OK;
    const size_t own = (size_t)dti_bucket_elements(dti_values_own(s));
    p->params = chunk->mirror = dti_alloc_array(par->base, own + 1, sizeof *chunk->mirror);
    return p->params ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_pipe_stage_units_make(dti_parallel *par, uint32_t s) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_stage *stage = &pipe->stages[s];
    dti_units *u = &stage->units;
    u->parts = dti_alloc_array(par->base, stage->pipelines, sizeof *u->parts);
    DTI_HAVE(u->parts);
    for (; u->part_count < stage->pipelines; u->part_count++)
        DTI_TRY(dti_pipe_unit_part_make(par, dti_pipe_alike_chunk(pipe, s, u->part_count)));
    u->shared = dti_pipe_shared(pipe, s);
    u->whole = dti_units_whole(par, u->shared.line);
    u->buckets = stage->buckets;
    u->bucket_count = stage->bucket_count;
    u->part = (uint16_t)(stage->chunk - pipe->chunks);
    if (dti_mesh_is_within(pipe->mesh, u->shared.line))
        return DT_OK;
    const dt_result result = dti_units_open(par, u);
    par->staging_bytes += dti_arena_bytes(DTI_UNITS_STAGED * u->largest);
    return result;
}

/* Programs were made again, so a store's kept values may lie elsewhere. */
static void dti_pipe_units_moved(const dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    dti_pipe_chunk *chunk = NULL;
    while (dti_pipe_has_units(par) && (chunk = dti_pipe_next(pipe, chunk)) != NULL) {
        const dt_store *s = chunk->store;
        if (!chunk->mirror)
            dti_pipe_unit_part(pipe, chunk)->params = s->device->backend->memory_host(s->units[0]);
    }
}

/* The most operations that a unit of the stage is. */
static uint32_t dti_pipe_units_pieces(const dti_parallel *par, const dti_units *u) {
    uint32_t most = 0;
    for (uint32_t b = 0; b < u->bucket_count && u->comm; b++) {
        dti_values_owner own = {.root = -1};
        uint32_t pieces = 0;
        while (dti_values_next_owner(&par->mesh, &u->shared, u->buckets[b], &own))
            pieces++;
        most = DTI_MAX(most, pieces);
    }
    return most;
}

static dt_result dti_pipe_units_make(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    dt_result result = DT_OK;
    if (!dti_pipe_has_units(par))
        return DT_OK;
    for (uint32_t s = 0; s < pipe->stage_count && !result; s++) {
        if (pipe->stages[s].chunk)
            result = dti_pipe_stage_units_make(par, s);
    }
    result = dti_agree_result(par, result);
    for (uint32_t s = 0; s < pipe->stage_count && !result && par->desc.comm; s++) {
        dti_units *u = &pipe->stages[s].units;
        result = dti_mesh_group(par, DTI_MESH_DATA, dti_pipe_stage_position(pipe, s), &u->comm);
        u->pieces = dti_pipe_units_pieces(par, u);
    }
    const uint32_t others = DTI_MIN(dti_pipe_messages(pipe), (uint32_t)DTI_PENDING_MAX);
    pipe->units_ahead = (DTI_PENDING_MAX - others) / 4;
    return result;
}

/* The most operations of parameters that this rank has under way at a time. */
static uint32_t dti_pipe_units_pending(const dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    uint32_t count = 0, most = 0;
    for (uint32_t s = 0; s < pipe->stage_count; s++) {
        count += DTI_UNITS_STAGED * pipe->stages[s].units.pieces;
        most = DTI_MAX(most, pipe->stages[s].units.pieces);
    }
    return DTI_MIN(count, pipe->units_ahead + pipe->device_count * most);
}

static dt_result dti_pipe_units_agree(dti_parallel *par) {
    return dti_pipe_has_units(par) && par->desc.comm
               ? dti_units_same_order(par, par->pipe->stage_count)
               : DT_OK;
}

static void dti_pipe_units_free(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    for (uint32_t s = pipe->stages ? pipe->stage_count : 0; s-- > 0;) {
        dti_pipe_stage *stage = &pipe->stages[s];
        dt_comm_destroy(stage->units.comm);
        dti_units_free(par, &stage->units);
        dti_free(par->base, stage->buckets);
    }
}

/* ---- gradients */

/* Elements of a stage's sum that come before element `at` of the arenas. */
static uint64_t dti_pipe_units_before(const dti_units *u, uint64_t at) {
    const dti_values_ranges trained = {.buckets = u->buckets, .bucket_count = u->bucket_count};
    return dti_values_elements(&trained, (dti_bucket){0, at});
}

static dt_result dti_pipe_units_post(dti_parallel *par, uint32_t s) {
    const dti_units *u = &par->pipe->stages[s].units;
    dti_sum *sum = &par->sums.list[s];
    dti_values_owner own = {.root = -1};
    dt_result result = DT_OK;
    if (u->whole)
        return dti_sum_post_range(sum, (dti_bucket){0, sum->elements}, -1);
    const dti_bucket all = {0, u->shared.bounds[u->shared.line.count]};
    while (!result && dti_values_next_owner(&par->mesh, &u->shared, all, &own)) {
        const dti_bucket piece = {dti_pipe_units_before(u, own.piece.begin),
                                  dti_pipe_units_before(u, own.piece.end)};
        if (piece.begin < piece.end)
            result = dti_sum_post_range(sum, piece, own.root);
    }
    return result;
}

/* Copies the chunk's own part of its stage's sum to where its update reads it. */
static dt_result dti_pipe_units_put(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe_stage *stage = dti_pipe_stage_of(par->pipe, chunk);
    const dti_units *u = &stage->units;
    const dti_bucket own = dti_values_own(chunk->store);
    dt_store *s = chunk->store;
    for (uint32_t b = 0; b < u->bucket_count; b++) {
        const dti_bucket part = dti_bucket_overlap(u->buckets[b], own);
        if (part.begin < part.end)
            DTI_TRY(s->device->backend->memory_write(
                s->units[1], dti_arena_bytes(part.begin - own.begin),
                stage->sum->total + dti_pipe_units_before(u, part.begin),
                dti_arena_bytes(dti_bucket_elements(part))));
    }
    return DT_OK;
}

/* ---- parameters */

/* Operations that have not ended. */
static uint32_t dti_units_coming(const dti_parallel *par, const dti_units *u) {
    return (u->posted - atomic_load(&par->counters[u->counters + DTI_UNITS_ARRIVED])) * u->pieces;
}

static void dti_pipe_units_begin(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    for (uint32_t s = 0; s < pipe->stage_count; s++) {
        dti_units *u = &pipe->stages[s].units;
        u->posted = u->at = 0;
        if (u->parts)
            u->list = &pipe->devices[pipe->stages[s].chunk->device].lists[pipe->shape];
    }
}

/* A collective that a device waits for is always posted, so lists in one common order go on. Later
 * ones are posted only up to the comm's limit. */
static dt_result dti_pipe_units_speak(const dti_parallel *par, const dti_action *wait) {
    const dti_pipe *pipe = par->pipe;
    const dti_pipe_stage *waits = wait && wait->kind == DTI_ACTION_GATHER
                                      ? dti_pipe_stage_of(pipe, &pipe->chunks[wait->part])
                                      : NULL;
    uint32_t under_way = 0;
    dt_result result = DT_OK;
    for (uint32_t s = 0; s < pipe->stage_count; s++)
        under_way += dti_units_coming(par, &pipe->stages[s].units);
    for (uint32_t s = 0; s < pipe->stage_count && !result; s++) {
        dti_units *u = &pipe->stages[s].units;
        const uint32_t before = u->posted;
        const bool may = under_way + u->pieces <= pipe->units_ahead ||
                         (&pipe->stages[s] == waits && wait->met >= before);
        result = dti_units_stream(par, u, may);
        under_way += (u->posted - before) * u->pieces;
    }
    return result;
}

static void dti_pipe_units_leave(const dti_pipe *pipe) {
    for (uint32_t s = 0; s < pipe->stage_count; s++)
        dti_units_leave(&pipe->stages[s].units);
}

static const dt_program *dti_pipe_units_program(const dti_pipe *pipe, const dti_pipe_chunk *chunk,
                                                uint32_t shape, uint32_t micro) {
    const dti_runs *runs = pipe->pipelines[chunk->pipeline].runs;
    const dti_pipe_run *own = chunk->runs[shape], *any = own ? own : chunk->runs[0];
    return any[micro < runs[shape].count ? micro : 0].program;
}

static dt_result dti_pipe_units_gather(dti_parallel *par, dti_pipe_chunk *chunk,
                                       const dti_action *a) {
    const dti_pipe *pipe = par->pipe;
    const dt_program *p = dti_pipe_units_program(pipe, chunk, pipe->shape, a->micro);
    return dti_unit_fetch(&dti_pipe_stage_of(pipe, chunk)->units, dti_pipe_unit_part(pipe, chunk),
                          dti_program_code(p), a);
}

static dt_result dti_pipe_units_written(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_unit_part *p = dti_pipe_has_units(par) ? dti_pipe_unit_part(par->pipe, chunk) : NULL;
    return p ? dti_unit_committed(p) : DT_OK;
}
