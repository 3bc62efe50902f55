/* Sums over the shards of a job, chunk by chunk. A line computes its shards one after the other;
 * what the arena has at a shard's end is pushed onto a stack of subtrees on the host, as a
 * replica's program has in slots of the arena. Then the lines of this rank that have the chunk are
 * folded, and the ranks that have it make one sum in tree mode, in a group of their own, while
 * chunks in front of it still compute. Shards are the leaves, whoever has them, so the bits are
 * those of one device. With one shard the arena has the sum.
 *
 * Cost: an all-reduce of a chunk's gradients over the ranks that have it; on the host a copy of
 * them for each subtree of a line, and for the sum. */

/* ---- making */

/* How many slots a stack of a line's shards needs: one more than it ever has, for the newest. */
static uint32_t dti_pipe_depth(const dti_parallel *par, const dti_pipe_line *line) {
    dti_subtrees s = {.count = 0};
    uint32_t most = 1;
    for (uint32_t i = line->first_shard; i < line->end_shard; i++) {
        dti_subtrees_add(&s, &(dti_piece){.leaf = i, .begins = true});
        most = DTI_MAX(most, s.count);
        while (dti_subtrees_join(&s, par->job.shards)) {
        }
    }
    return most;
}

static dt_result dti_pipe_slots_make(dti_parallel *par, dti_pipe_chunk *chunk) {
    const dti_pipe_line *line = &par->pipe->lines[chunk->line];
    const uint64_t elements = par->pipe->stages[chunk->index].elements;
    const bool cpu = chunk->store->device->info.kind == DT_DEVICE_CPU;
    if (line->end_shard - line->first_shard == 1 && cpu) /* the arena is read where it lies */
        return DT_OK;
    const uint64_t bytes = dti_arena_bytes(elements) * dti_pipe_depth(par, line);
    chunk->slots = dti_alloc(par->base, (size_t)bytes);
    par->subtree_bytes += bytes;
    return chunk->slots ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_pipe_stage_sum(dti_parallel *par, uint32_t c) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_stage *stage = &pipe->stages[c];
    if (!stage->lines || par->job.shards == 1)
        return DT_OK;
    const uint32_t first = pipe->lines[stage->first].first_shard,
                   end = pipe->lines[stage->first + stage->lines - 1].end_shard;
    stage->summed = true;
    stage->subtrees = dti_partition_subtrees(&par->job, first, end);
    stage->total = dti_alloc(par->base, (size_t)dti_arena_bytes(stage->elements));
    par->staging_bytes += dti_arena_bytes(stage->elements);
    dt_result result = stage->total ? DT_OK : DT_ERROR_MEMORY;
    if (!result && end - first < par->job.shards) {
        const uint64_t bytes = dti_arena_bytes(stage->elements) * stage->subtrees.count;
        stage->partial = dti_alloc(par->base, (size_t)bytes);
        par->staging_bytes += bytes;
        result = stage->partial ? DT_OK : DT_ERROR_MEMORY;
    }
    for (uint32_t i = 0; i < stage->lines && !result; i++)
        result = dti_pipe_slots_make(par, dti_pipe_chunk_of(pipe, stage->first + i, c));
    return result;
}

/* The ranks that have a chunk, in order: how many. */
static int dti_pipe_ranks_of(const dti_parallel *par, uint32_t c, int *ranks) {
    int count = 0;
    for (uint32_t d = 0; d < par->pipe->data; d++) {
        const int rank = (int)dti_pipe_rank(par, d, c);
        if (!count || ranks[count - 1] != rank)
            ranks[count++] = rank;
    }
    return count;
}

/* A group for each chunk that several ranks have; on all ranks together. */
static dt_result dti_pipe_stage_group(dti_parallel *par, uint32_t c, int *ranks) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_stage *stage = &pipe->stages[c];
    const int count = dti_pipe_ranks_of(par, c, ranks);
    if (count < 2)
        return DT_OK;
    dt_result result = dti_parallel_comm_failed(
        par, dt_comm_group_create(par->desc.comm, ranks, count, &stage->comm));
    if (result || !stage->comm)
        return result;
    const uint32_t first = pipe->lines[stage->first].first_shard,
                   end = pipe->lines[stage->first + stage->lines - 1].end_shard;
    return dti_parallel_comm_failed(
        par, dt_comm_set_leaves(stage->comm, first, end - first, par->job.shards, NULL,
                                (dt_comm_span[DTI_SUBTREES_MAX]){{0, 0}}));
}

static dt_result dti_pipe_sums_make(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    par->subtree_bytes = par->staging_bytes = 0;
    int *ranks = dti_alloc_array(par->base, pipe->data, sizeof *ranks);
    dt_result result = ranks ? DT_OK : DT_ERROR_MEMORY;
    for (uint32_t c = 0; c < pipe->chunk_count && !result; c++)
        result = dti_pipe_stage_sum(par, c);
    result = dti_agree_result(par, result);
    for (uint32_t c = 0; c < pipe->chunk_count && !result && par->desc.comm; c++)
        result = dti_pipe_stage_group(par, c, ranks);
    dti_free(par->base, ranks);
    return result;
}

static void dti_pipe_sums_free(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    for (uint32_t c = pipe->stages ? pipe->chunk_count : 0; c-- > 0;) {
        dt_comm_destroy(pipe->stages[c].comm);
        dti_free(par->base, pipe->stages[c].partial);
        dti_free(par->base, pipe->stages[c].total);
    }
    for (uint32_t i = 0; pipe->chunks && i < pipe->line_count * pipe->chunk_count; i++)
        dti_free(par->base, pipe->chunks[i].slots);
}

/* ---- a line's shards */

static void dti_pipe_sums_begin(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    for (uint32_t c = 0; c < pipe->chunk_count; c++) {
        atomic_store(&pipe->stages[c].ready, 0);
        pipe->stages[c].work.id = 0;
    }
    for (uint32_t i = 0; i < pipe->line_count * pipe->chunk_count; i++) {
        pipe->chunks[i].sums.count = 0;
        pipe->chunks[i].shards = 0;
    }
}

static float *dti_pipe_arena(const dti_pipe_chunk *chunk) {
    return chunk->store->device->backend->memory_host(chunk->store->memories[DTI_ARENA_GRADIENT]);
}

static void dti_pipe_fold(float *to, const dti_operand two[2], uint64_t n) {
    for (uint64_t at = 0; at < n; at += DTI_SLICE) {
        const uint64_t some = DTI_MIN(n - at, (uint64_t)DTI_SLICE);
        dti_operand now[2] = {two[0], two[1]};
        for (int i = 0; i < 2; i++)
            now[i].data = (const float *)two[i].data + at;
        dti_fold(to + at, now, 2, some, DT_F32, DT_COMM_SUM, false, 1);
    }
}

/* The next shard's sum: what the arena has, or zeros. Two siblings become one. */
static dt_result dti_pipe_push(dti_parallel *par, dti_pipe_chunk *chunk, bool zeros) {
    const uint32_t leaf = par->pipe->lines[chunk->line].first_shard + chunk->shards++;
    const uint64_t n = par->pipe->stages[chunk->index].elements;
    dt_result result = DT_OK;
    const uint32_t at = dti_subtrees_add(&chunk->sums, &(dti_piece){.leaf = leaf, .begins = true});
    float *to = chunk->slots + at * n;
    if (zeros)
        memset(to, 0, (size_t)dti_arena_bytes(n));
    else
        result = chunk->store->device->backend->memory_read(
            chunk->store->memories[DTI_ARENA_GRADIENT], 0, to, (size_t)dti_arena_bytes(n));
    for (;;) {
        const dt_comm_span right = chunk->sums.at[chunk->sums.count - 1];
        if (!dti_subtrees_join(&chunk->sums, par->job.shards))
            return result;
        float *a = chunk->slots + (chunk->sums.count - 1) * n;
        const dt_comm_span both = chunk->sums.at[chunk->sums.count - 1];
        const dti_operand two[2] = {{a, DT_F32, {both.first, both.count - right.count}},
                                    {a + n, DT_F32, right}};
        dti_pipe_fold(a, two, n);
    }
}

/* ---- all lines here, then all ranks */

static uint32_t dti_pipe_operands(const dti_parallel *par, uint32_t c, dt_comm_span span,
                                  uint64_t at, dti_operand *operands) {
    const dti_pipe *pipe = par->pipe;
    const dti_pipe_stage *stage = &pipe->stages[c];
    uint32_t count = 0;
    for (uint32_t l = stage->first; l < stage->first + stage->lines; l++) {
        const dti_pipe_chunk *chunk = dti_pipe_chunk_of(pipe, l, c);
        const dti_subtrees one = {.at = {{pipe->lines[l].first_shard, 1}}, .count = 1};
        const dti_subtrees *own = chunk->slots ? &chunk->sums : &one;
        const float *from = chunk->slots ? chunk->slots : dti_pipe_arena(chunk);
        for (uint32_t i = 0; i < own->count; i++) {
            if (own->at[i].first >= span.first && own->at[i].first < span.first + span.count)
                operands[count++] =
                    (dti_operand){from + i * stage->elements + at, DT_F32, own->at[i]};
        }
    }
    return count;
}

static void dti_pipe_fold_stage(dti_parallel *par, uint32_t c) {
    dti_pipe_stage *stage = &par->pipe->stages[c];
    dti_operand operands[DTI_OPERANDS_MAX];
    for (uint32_t k = 0; k < stage->subtrees.count; k++) {
        float *to = stage->partial ? stage->partial + k * stage->elements : stage->total;
        for (uint64_t at = 0; at < stage->elements; at += DTI_SLICE) {
            const uint64_t n = DTI_MIN(stage->elements - at, (uint64_t)DTI_SLICE);
            const uint32_t count = dti_pipe_operands(par, c, stage->subtrees.at[k], at, operands);
            dti_fold(to + at, operands, count, n, DT_F32, DT_COMM_SUM, !stage->partial, 1);
        }
    }
}

/* Other ranks' come while this one computes on. */
static void dti_pipe_sum_post(dti_parallel *par, dti_pipe_stage *stage) {
    dti_pipe *pipe = par->pipe;
    const dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE,
                           .in = stage->partial,
                           .out = stage->total,
                           .count = stage->elements,
                           .dtype = DT_F32,
                           .tree = true};
    dti_pipe_hush(pipe);
    if (!pipe->said)
        pipe->said = dt_comm_begin(stage->comm, &op, &stage->work);
    if (pipe->said)
        atomic_store(&pipe->failed, true);
    dti_pipe_unhush(pipe);
}

/* The last line's thread folds. */
static void dti_pipe_sum_ready(dti_parallel *par, uint32_t c) {
    dti_pipe_stage *stage = &par->pipe->stages[c];
    if (!stage->summed || atomic_fetch_add(&stage->ready, 1) + 1 < stage->lines)
        return;
    dti_pipe_fold_stage(par, c);
    if (stage->comm)
        dti_pipe_sum_post(par, stage);
}

static dt_result dti_pipe_summed(dti_parallel *par, dti_pipe_chunk *chunk, uint32_t micro) {
    const dti_runs *runs = dti_pipe_runs_now(par, chunk);
    const dti_pipe_line *line = &par->pipe->lines[chunk->line];
    const uint32_t shard = runs->runs[micro].pieces[0].leaf;
    const bool last = micro + 1 == runs->count;
    dt_result result = DT_OK;
    if (!last && runs->runs[micro + 1].pieces[0].leaf == shard)
        return DT_OK;
    while (chunk->slots && !result && line->first_shard + chunk->shards < shard)
        result = dti_pipe_push(par, chunk, true);
    if (chunk->slots && !result)
        result = dti_pipe_push(par, chunk, false);
    while (chunk->slots && !result && last && line->first_shard + chunk->shards < line->end_shard)
        result = dti_pipe_push(par, chunk, true);
    if (last && !result)
        dti_pipe_sum_ready(par, chunk->index);
    return result;
}

static dt_result dti_pipe_summed_none(dti_parallel *par, dti_pipe_chunk *chunk) {
    const dti_pipe_line *line = &par->pipe->lines[chunk->line];
    const uint64_t bytes = dti_arena_bytes(par->pipe->stages[chunk->index].elements);
    dt_result result = DT_OK;
    if (!chunk->slots)
        memset(dti_pipe_arena(chunk), 0, (size_t)bytes);
    while (chunk->slots && !result && line->first_shard + chunk->shards < line->end_shard)
        result = dti_pipe_push(par, chunk, true);
    if (!result)
        dti_pipe_sum_ready(par, chunk->index);
    return result;
}

static dt_result dti_pipe_sums_end(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    dt_result result = DT_OK;
    for (uint32_t c = 0; c < pipe->chunk_count; c++) {
        dti_pipe_stage *stage = &pipe->stages[c];
        if (!stage->work.id)
            continue;
        const dt_result one =
            dti_parallel_comm_failed(par, dt_comm_wait(stage->comm, stage->work, -1));
        stage->work.id = 0;
        result = result ? result : one;
    }
    return result;
}

static dt_result dti_pipe_sums_put(dti_parallel *par, dti_pipe_chunk *chunk) {
    const dti_pipe_stage *stage = &par->pipe->stages[chunk->index];
    const dti_statistics *s = &stage->statistics;
    const dti_backend *backend = chunk->store->device->backend;
    dti_memory *gradients = chunk->store->memories[DTI_ARENA_GRADIENT];
    dt_result result = DT_OK;
    if (stage->summed)
        result = backend->memory_write(gradients, 0, stage->total,
                                       (size_t)dti_arena_bytes(stage->elements));
    const float *value = s->buffers; /* a buffer's new value lies where its gradient would */
    for (uint32_t i = 0; i < s->count && !result; value += s->stats[i].channels, i++)
        result = backend->memory_write(
            gradients, dti_arena_bytes(chunk->store->layout.params[s->stats[i].param].offset),
            value, dti_arena_bytes(s->stats[i].channels));
    return result;
}

/* ---- running statistics, norms, losses */

/* The pieces of all lines. */
static dt_result dti_pipe_statistics_all(dti_parallel *par, const dti_pipe_stage *stage) {
    const dti_pipe *pipe = par->pipe;
    const dti_statistics *s = &stage->statistics;
    const uint32_t parts = par->job.parts, pieces = par->job.shards * parts;
    const uint32_t first = pipe->lines[stage->first].first_shard * parts,
                   end = pipe->lines[stage->first + stage->lines - 1].end_shard * parts;
    const size_t row = s->width * sizeof(float);
    memset(s->pieces, 0, first * row);
    memset(dti_statistics_row(s, end), 0, (pieces - end) * row);
    return dti_parallel_comm_failed(par, dt_comm_all_reduce(stage->comm, s->pieces, s->pieces,
                                                            (uint64_t)pieces * s->width, DT_F32,
                                                            DT_COMM_SUM));
}

static dt_result dti_pipe_statistics(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    dt_result result = DT_OK;
    for (uint32_t c = 0; c < pipe->chunk_count && !result; c++) {
        dti_pipe_stage *stage = &pipe->stages[c];
        if (!stage->lines || !stage->statistics.width)
            continue;
        if (stage->comm)
            result = dti_pipe_statistics_all(par, stage);
        if (!result)
            dti_statistics_move(&stage->statistics, &par->job, par->rows);
    }
    return result;
}

/* A chunk's pairs, which lie in its table's order, to their places in the table of all. */
static void dti_pipe_pairs_of(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe *pipe = par->pipe;
    const dt_program *p = dti_pipe_last(par, chunk);
    const dti_code *code = dti_program_code(p);
    const float *from = dti_lane_pairs(p);
    for (int buffers = 0; buffers < 2; buffers++) {
        for (uint32_t i = code->layout->param_count; i-- > 0;) {
            const uint32_t blocks = dti_table_blocks(code, i, buffers);
            const uint32_t param = pipe->stages[chunk->index].params[i];
            memcpy(pipe->pairs + 2 * pipe->blocks[param], from, 2 * blocks * sizeof *from);
            from += 2 * (size_t)blocks;
        }
    }
}

/* The first replica's, so that all have the same numbers; others' are zeros, and as whole numbers
 * their sum has all bits. */
static dt_result dti_pipe_pairs(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const size_t count = (size_t)2 * pipe->code->table_entries;
    dt_result result = DT_OK;
    memset(pipe->pairs, 0, count * sizeof *pipe->pairs);
    for (uint32_t c = 0; c < pipe->chunk_count; c++) {
        const dti_pipe_chunk *chunk = dti_pipe_chunk_of(pipe, 0, c);
        if (pipe->lines[0].replica == 0 && chunk->store)
            dti_pipe_pairs_of(par, chunk);
    }
    if (par->desc.comm)
        result = dti_parallel_comm_failed(par, dt_comm_all_reduce(par->desc.comm, pipe->pairs,
                                                                  pipe->pairs, count, DT_I32,
                                                                  DT_COMM_SUM));
    for (uint32_t i = 0; i < pipe->line_count * pipe->chunk_count && !result; i++) {
        if (pipe->chunks[i].store)
            memcpy(dti_lane_pairs_of_all(dti_pipe_last(par, &pipe->chunks[i])), pipe->pairs,
                   count * sizeof *pipe->pairs);
    }
    return result;
}

/* Each number is one rank's, so it does not matter in which order they are added. */
static dt_result dti_pipe_scalars(dti_parallel *par, dti_scalar_sum *s) {
    dt_result result = DT_OK;
    if (par->desc.comm)
        result = dti_parallel_comm_failed(
            par, dt_comm_all_reduce(par->desc.comm, s->leaves, s->leaves,
                                    (uint64_t)par->job.shards * s->width, DT_F64, DT_COMM_SUM));
    dti_scalar_tree(s->leaves, par->job.shards, s->width);
    memcpy(s->sum, s->leaves, s->width * sizeof *s->sum);
    return result;
}
