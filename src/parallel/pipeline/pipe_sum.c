/* Gradient sums over the batch slices of a job, chunk by chunk. A pipeline computes its batch
 * slices one after the other. The pipelines of this rank with the chunk are summed first. Then its
 * ranks make one sum (step/reducer.c) while earlier chunks still compute. */

static dti_sums_operands dti_pipe_operands(const dti_parallel *par, uint32_t s, uint32_t part) {
    return dti_batch_slice_operands(&dti_pipe_alike_chunk(par->pipe, s, part)->sum);
}

static const dti_sum_kind dti_pipe_sum_kinds[] = {
    {.operands = dti_pipe_operands}, {.operands = dti_pipe_operands, .post = dti_pipe_units_post}};

/* ---- making */

static dt_result dti_pipe_stage_sum(dti_parallel *par, uint32_t s) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_stage *stage = &pipe->stages[s];
    uint64_t operands = 0;
    dt_result result = DT_OK;
    stage->sum = &par->sums.list[s];
    for (uint32_t i = 0; i < stage->pipelines && !result; i++) {
        dti_pipe_chunk *chunk = dti_pipe_alike_chunk(pipe, s, i);
        result = dti_batch_slice_stack_make(par, &chunk->sum, chunk->runs[0][0].program,
                                            pipe->pipelines[chunk->pipeline].replica);
        operands += dti_partition_subtrees(&par->job, chunk->sum.first, chunk->sum.end).count;
    }
    if (result || !stage->chunk)
        return result;
    const dti_batch_slice_stack *first = &stage->chunk->sum;
    result =
        dti_batch_slice_sum_make(par, stage->sum, stage->pipelines, first->elements,
                                 dti_pipe_stage_position(pipe, s), stage->buckets ? first : NULL);
    return result ? result : dti_operands_fit(par, stage->pipelines, operands);
}

/* The comm's pending operations that messages, sync points and units leave free. Half is for sums
 * in their order, half for sums that are posted ahead. */
static uint32_t dti_pipe_sums_window(const dti_parallel *par, uint32_t each) {
    const uint32_t others = dti_pipe_messages(par->pipe) + dti_pipe_units_pending(par);
    return others + 4 * each < DTI_PENDING_MAX ? (DTI_PENDING_MAX - others) / 2 / each : 1;
}

static dt_result dti_pipe_sums_make(dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    const bool units = dti_pipe_has_units(par);
    const uint32_t count = pipe->stage_count,
                   each = units ? DTI_MIN(par->mesh.world, par->mesh.data) : 1;
    dt_result result = dti_sums_make(par, &dti_pipe_sum_kinds[units], count, count, each);
    par->sums.window = dti_pipe_sums_window(par, each);
    for (uint32_t s = 0; s < count && !result; s++)
        result = dti_pipe_stage_sum(par, s);
    result = dti_agree_result(par, result);
    for (uint32_t s = 0; s < count && !result && par->desc.comm; s++)
        result = dti_mesh_group(par, DTI_MESH_DATA, dti_pipe_stage_position(pipe, s),
                                &par->sums.list[s].comm);
    return result;
}

static void dti_pipe_sums_free(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    dti_batch_slice_sums_free(par);
    for (uint32_t i = 0; pipe->chunks && i < pipe->pipeline_count * pipe->chunk_count; i++)
        dti_batch_slice_stack_free(par, &pipe->chunks[i].sum);
}

/* ---- a step */

static void dti_pipe_sums_begin(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    dti_sums_begin(par);
    pipe->ahead = 0;
    for (uint32_t i = 0; i < pipe->pipeline_count * pipe->chunk_count; i++)
        dti_batch_slice_stack_begin(&pipe->chunks[i].sum);
}

/* Other ranks' come while this one computes on. */
static void dti_pipe_sum_post(dti_parallel *par, uint32_t s) {
    dti_pipe *pipe = par->pipe;
    if (!par->sums.list[s].comm || !pipe->locks_comm)
        return;
    dti_pipe_comm_lock(pipe);
    if (!pipe->said && pipe->ahead < par->sums.window) {
        pipe->said = dti_sum_post(par, s);
        pipe->ahead++;
    }
    if (pipe->said)
        atomic_store(&pipe->failed, true);
    dti_pipe_comm_unlock(pipe);
}

static void dti_pipe_sums_help(dti_parallel *par) {
    for (uint32_t s = 0; s < par->sums.count; s++) {
        if (dti_sum_fold(par, s))
            dti_pipe_sum_post(par, s);
    }
}

static void dti_pipe_sum_ready(dti_parallel *par, const dti_pipe_chunk *chunk) {
    const uint32_t s = (uint32_t)(dti_pipe_stage_of(par->pipe, chunk) - par->pipe->stages);
    dti_exchange_arrive(par, s, s + 1);
    if (!par->sums.list[s].slices) /* of one part, which has arrived */
        dti_pipe_sum_post(par, s);
    dti_pipe_sums_help(par);
}

static dt_result dti_pipe_summed(dti_parallel *par, dti_pipe_chunk *chunk, uint32_t micro) {
    const dti_runs *runs = dti_pipe_runs_now(par, chunk);
    const uint32_t batch_slice = runs->runs[micro].pieces[0].leaf;
    const bool last = micro + 1 == runs->count;
    if (!last && runs->runs[micro + 1].pieces[0].leaf == batch_slice)
        return DT_OK;
    const dt_result result = dti_batch_slice_pushed(par, &chunk->sum, batch_slice, last);
    if (last && !result)
        dti_pipe_sum_ready(par, chunk);
    return result;
}

static dt_result dti_pipe_summed_none(dti_parallel *par, dti_pipe_chunk *chunk,
                                      const dti_action *a) {
    const dt_result result = dti_batch_slice_pushed_none(par, &chunk->sum);
    if (!result)
        dti_pipe_sum_ready(par, chunk);
    return result;
}

static dt_result dti_pipe_sums_put(dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe_stage *stage = dti_pipe_stage_of(par->pipe, chunk);
    const dt_result result = stage->buckets ? dti_pipe_units_put(par, chunk)
                                            : dti_batch_slice_sum_put(stage->sum, chunk->store);
    return result ? result : dti_statistics_write(&stage->statistics, chunk->store);
}

/* ---- running statistics, norms, losses */

static dt_result dti_pipe_statistics(dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    for (uint32_t s = 0; s < pipe->stage_count; s++) {
        dti_pipe_stage *stage = &pipe->stages[s];
        if (stage->chunk)
            DTI_TRY(dti_statistics_sum(par, &stage->statistics, stage->sum->comm,
                                       dti_mesh_slices_of(par, dti_pipe_stage_position(pipe, s))));
    }
    return DT_OK;
}

/* Of a chunk's trained blocks, in their order, those whose pairs it gives. These are its own
 * blocks; blocks that all replicas have are the first one's. */
static dti_bucket dti_pipe_pairs_given(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_code *code = dti_program_code(dti_pipe_last(par, chunk));
    if (dti_code_has_units(code))
        return (dti_bucket){code->pair_first, code->pair_first + code->own_entries};
    const bool first = par->pipe->pipelines[chunk->pipeline].replica == 0;
    return (dti_bucket){0, first ? code->table_entries : 0};
}

/* Moves a chunk's pairs, in its table's order, to their places in the table of all. All tensor
 * ranks have the replicated parameters: the first one's count. */
static void dti_pipe_pairs_of(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe *pipe = par->pipe;
    const dt_program *p = dti_pipe_last(par, chunk);
    const dti_code *code = dti_program_code(p);
    const dti_bucket given = dti_pipe_pairs_given(par, chunk);
    const float *from = dti_micro_slot_pairs(p);
    const uint32_t tp_rank = pipe->pipelines[chunk->pipeline].tp_rank;
    const bool first = pipe->pipelines[chunk->pipeline].replica == 0;
    for (uint64_t buffers = 0, k = 0; buffers < 2; buffers++) {
        for (uint32_t i = code->layout->param_count; i-- > 0;) {
            const uint32_t blocks = dti_table_blocks(code, i, buffers);
            const uint32_t param = dti_pipe_stage_of(pipe, chunk)->params[i];
            const bool part = dti_pipe_is_part(pipe, param);
            const dti_bucket all = {k, k + blocks},
                             own = buffers ? (dti_bucket){k, first ? k + blocks : k}
                                           : dti_bucket_overlap(all, given);
            const uint64_t at = pipe->blocks[param] + (part ? tp_rank * blocks : 0) + own.begin - k;
            const size_t values = 2 * (size_t)dti_bucket_elements(own);
            if (part || !tp_rank)
                memcpy(pipe->pairs + 2 * at, from, values * sizeof *from);
            from += values;
            k += blocks;
        }
    }
}

/* Each block's pair is one replica's, so that all have the same numbers; others' are zeros, and as
 * whole numbers their sum has all bits. */
static dt_result dti_pipe_pairs(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const size_t count = (size_t)2 * pipe->block_count;
    memset(pipe->pairs, 0, count * sizeof *pipe->pairs);
    dti_pipe_chunk *chunk = NULL;
    while ((chunk = dti_pipe_next(pipe, chunk)) != NULL)
        dti_pipe_pairs_of(par, chunk);
    const dt_result result =
        dti_ranks_reduce(par, par->desc.comm, pipe->pairs, count, DT_I32, DT_COMM_SUM);
    while (!result && (chunk = dti_pipe_next(pipe, chunk)) != NULL)
        memcpy(dti_micro_slot_pairs_of_all(dti_pipe_last(par, chunk)), pipe->pairs,
               count * sizeof *pipe->pairs);
    return result;
}
