/* Gradient sums over the batch slices of a job, chunk by chunk. A pipeline computes its batch
 * slices one after the other. The pipelines of this rank that have the chunk are folded, and the
 * ranks that have it make one sum (step/reducer.c) while earlier chunks still compute. */

static dti_sums_operands dti_pipe_operands(const dti_parallel *par, uint32_t s, uint32_t part) {
    return dti_batch_slice_operands(&dti_pipe_alike_chunk(par->pipe, s, part)->sum);
}

static const dti_sum_kind dti_pipe_sum_kind = {.operands = dti_pipe_operands};

/* ---- making */

static dt_result dti_pipe_stage_sum(dti_parallel *par, uint32_t s) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_stage *stage = &pipe->stages[s];
    uint64_t operands = 0;
    stage->sum = &par->sums.list[s];
    dt_result result = dti_batch_slice_sum_make(par, stage->sum, stage->pipelines, stage->elements,
                                                dti_pipe_stage_position(pipe, s));
    for (uint32_t i = 0; i < stage->pipelines && !result; i++) {
        dti_pipe_chunk *chunk = dti_pipe_alike_chunk(pipe, s, i);
        result = dti_batch_slice_stack_make(par, &chunk->sum, chunk->store,
                                            pipe->pipelines[chunk->pipeline].replica);
        operands += dti_partition_subtrees(&par->job, chunk->sum.first, chunk->sum.end).count;
    }
    return result ? result : dti_operands_fit(par, stage->pipelines, operands);
}

/* What messages and sync points leave of the comm's pending operations: half is for sums in their
 * order, and half for sums that are posted ahead. */
static uint32_t dti_pipe_sums_window(const dti_pipe *pipe) {
    uint32_t others = pipe->tp_count;
    for (uint32_t i = 0; i < pipe->flow_count; i++)
        others += pipe->flows[i].link_count * DTI_PIPE_WINDOW;
    return others + 4 < DTI_PENDING_MAX ? (DTI_PENDING_MAX - others) / 2 : 1;
}

static dt_result dti_pipe_sums_make(dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    const uint32_t count = pipe->stage_count;
    par->subtree_bytes = par->staging_bytes = 0;
    dt_result result = dti_sums_make(par, &dti_pipe_sum_kind, count, count, 1);
    par->sums.window = dti_pipe_sums_window(pipe);
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
static void dti_pipe_sums_help(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    for (uint32_t s = 0; s < par->sums.count; s++) {
        if (!dti_sum_fold(par, s) || !par->sums.list[s].comm || !pipe->locks_comm)
            continue;
        dti_pipe_comm_lock(pipe);
        if (!pipe->said && pipe->ahead < par->sums.window) {
            pipe->said = dti_sum_post(par, s);
            pipe->ahead++;
        }
        if (pipe->said)
            atomic_store(&pipe->failed, true);
        dti_pipe_comm_unlock(pipe);
    }
}

static void dti_pipe_sum_ready(dti_parallel *par, const dti_pipe_chunk *chunk) {
    const uint32_t s = (uint32_t)(dti_pipe_stage_of(par->pipe, chunk) - par->pipe->stages);
    dti_exchange_arrive(par, s, s + 1);
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

static dt_result dti_pipe_summed_none(dti_parallel *par, dti_pipe_chunk *chunk) {
    const dt_result result = dti_batch_slice_pushed_none(par, &chunk->sum);
    if (!result)
        dti_pipe_sum_ready(par, chunk);
    return result;
}

static dt_result dti_pipe_sums_put(dti_parallel *par, dti_pipe_chunk *chunk) {
    const dti_pipe_stage *stage = dti_pipe_stage_of(par->pipe, chunk);
    const dt_result result = dti_batch_slice_sum_put(stage->sum, chunk->store);
    return result ? result : dti_statistics_write(&stage->statistics, chunk->store);
}

/* ---- running statistics, norms, losses */

static dt_result dti_pipe_statistics(dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    dt_result result = DT_OK;
    for (uint32_t s = 0; s < pipe->stage_count && !result; s++) {
        dti_pipe_stage *stage = &pipe->stages[s];
        if (stage->pipelines)
            result = dti_statistics_sum(par, &stage->statistics, stage->sum->comm,
                                        dti_mesh_slices_of(par, dti_pipe_stage_position(pipe, s)));
    }
    return result;
}

/* A chunk's pairs, which lie in its table's order, to their places in the table of all. What is no
 * part all tensor ranks have: the first one's count. */
static void dti_pipe_pairs_of(const dti_parallel *par, const dti_pipe_chunk *chunk) {
    const dti_pipe *pipe = par->pipe;
    const dt_program *p = dti_pipe_last(par, chunk);
    const dti_code *code = dti_program_code(p);
    const float *from = dti_micro_slot_pairs(p);
    const uint32_t tp_rank = pipe->pipelines[chunk->pipeline].tp_rank;
    for (int buffers = 0; buffers < 2; buffers++) {
        for (uint32_t i = code->layout->param_count; i-- > 0;) {
            const uint32_t blocks = dti_table_blocks(code, i, buffers);
            const uint32_t param = dti_pipe_stage_of(pipe, chunk)->params[i];
            const bool part = dti_pipe_is_part(pipe, param);
            const uint64_t at = pipe->blocks[param] + (part ? tp_rank * blocks : 0);
            if (part || !tp_rank)
                memcpy(pipe->pairs + 2 * at, from, 2 * blocks * sizeof *from);
            from += 2 * (size_t)blocks;
        }
    }
}

/* The first replica's, so that all have the same numbers; others' are zeros, and as whole numbers
 * their sum has all bits. */
static dt_result dti_pipe_pairs(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const size_t count = (size_t)2 * pipe->block_count;
    memset(pipe->pairs, 0, count * sizeof *pipe->pairs);
    for (uint32_t i = 0; i < pipe->pipeline_count * pipe->chunk_count; i++) {
        const dti_pipe_chunk *chunk = &pipe->chunks[i];
        if (pipe->pipelines[chunk->pipeline].replica == 0 && chunk->store)
            dti_pipe_pairs_of(par, chunk);
    }
    const dt_result result = dti_sum_disjoint(par, par->desc.comm, pipe->pairs, count, DT_I32);
    for (uint32_t i = 0; i < pipe->pipeline_count * pipe->chunk_count && !result; i++) {
        if (pipe->chunks[i].store)
            memcpy(dti_micro_slot_pairs_of_all(dti_pipe_last(par, &pipe->chunks[i])), pipe->pairs,
                   count * sizeof *pipe->pairs);
    }
    return result;
}
