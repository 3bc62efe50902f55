/* Finds the NaN or infinity in a step of a grid. The first chunk with such a value reports its op
 * or parameter. All ranks go through the chunks in one order, so all report the same. It costs a
 * message for each chunk, only in skipped steps. */

static bool dti_pipe_binding_finite(const dti_parallel *par, const dti_pipe_chunk *chunk,
                                    uint32_t node, bool gradient) {
    const dti_pipe_run *run = dti_pipe_run_of(par, chunk, dti_pipe_runs_now(par, chunk)->count - 1);
    const dti_code *code = dti_program_code(run->program);
    const dti_binding *binding = dti_code_binding(code, node, true, gradient);
    const dt_dtype dtype = code->work->nodes[node].dtype;
    if (!binding || dti_is_whole(dtype))
        return true;
    return dti_all_finite(dti_micro_slot_host(run->program, run->micro_slot, binding), dtype,
                          binding->bytes / dti_dtype_bytes(dtype));
}

/* Whether a chunk's outputs are finite: forward, or backward and for its own parameters. */
static bool dti_pipe_chunk_finite(const dti_parallel *par, const dti_pipe_chunk *chunk,
                                  bool backward) {
    const dti_pipe_cut *cut = &par->pipe->plan->cut;
    const dt_program *p = dti_pipe_last(par, chunk);
    const dti_code *code = dti_program_code(p);
    bool finite = true;
    for (uint32_t i = 0; i < cut->link_count && finite; i++) {
        const dti_pipe_link *l = &cut->links[i];
        if (!backward && l->from == chunk->index)
            finite = dti_pipe_binding_finite(par, chunk, l->node, false);
        if (backward && l->to == chunk->index && l->gradient)
            finite = dti_pipe_binding_finite(par, chunk, l->node, true);
    }
    for (uint32_t i = 0; i < code->loss_count && !backward; i++)
        finite = finite && dti_all_finite(dti_program_out(p) + code->terms[i].word, DT_F32, 2);
    const float *pairs = dti_micro_slot_pairs(p); /* (sum of squares, whether one is not finite) */
    for (uint32_t i = 0; i < 2 * code->pairs_own && backward; i++)
        finite = finite && (i % 2 ? pairs[i] == 0.0f : dti_finite_f64((double)pairs[i]));
    return finite;
}

static dt_result dti_pipe_name(dti_parallel *par, const dti_pipe_chunk *chunk, uint32_t segments) {
    dt_report report = {0};
    dt_program *p = dti_pipe_last(par, chunk);
    if (!dti_pipe_runs_now(par, chunk)->count || dti_pipe_has_units(par)) /* its units are no longer
                                                                             in memory */
        return dti_program_attribute(p, false)
                   ? dti_fail(par->base, DT_ERROR_NUMERIC, "%s", p->base->error)
                   : DT_OK;
    dt_result result = dti_step_fault(p, &report, segments);
    return report.fault_op ? dti_fail(par->base, result, "%s", p->base->error) : DT_OK;
}

enum {
    DTI_PIPE_ATTRIBUTE_FORWARD,
    DTI_PIPE_ATTRIBUTE_BACKWARD,
    DTI_PIPE_ATTRIBUTE_ALL,
    DTI_PIPE_BLAMES
};

/* A chunk in all pipelines of this rank. */
static dt_result dti_pipe_attribute_chunk(dti_parallel *par, uint32_t c, int what) {
    const dti_pipe *pipe = par->pipe;
    for (uint32_t i = 0; i < pipe->pipeline_count; i++) {
        const dti_pipe_chunk *chunk = dti_pipe_chunk_of(pipe, i, c);
        const bool rows = chunk->store && dti_pipe_runs_now(par, chunk)->count;
        const bool forward = what == DTI_PIPE_ATTRIBUTE_FORWARD;
        if (!chunk->store || (!rows && what != DTI_PIPE_ATTRIBUTE_ALL))
            continue;
        if (what != DTI_PIPE_ATTRIBUTE_ALL && dti_pipe_chunk_finite(par, chunk, !forward))
            continue;
        DTI_TRY(dti_pipe_name(par, chunk,
                              forward ? dti_program_forward(dti_pipe_last(par, chunk))
                                      : dti_program_segments(dti_pipe_last(par, chunk))));
    }
    return DT_OK;
}

static const char *dti_pipe_statistics_fault(const dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    const char *fault = NULL;
    for (uint32_t s = 0; s < pipe->stage_count && !fault; s++) {
        const dti_pipe_stage *stage = &pipe->stages[s];
        if (stage->chunk)
            fault = dti_statistics_fault(&stage->statistics, stage->chunk->graph);
    }
    return fault;
}

static dt_result dti_pipe_attribute(dti_parallel *par) {
    const uint32_t count = par->pipe->chunk_count;
    dt_result result = DT_OK;
    for (int what = dti_pipe_has_units(par) ? DTI_PIPE_ATTRIBUTE_ALL : 0;
         what < DTI_PIPE_BLAMES && !result; what++) {
        for (uint32_t i = 0; i < count && !result; i++) {
            const uint32_t c = what == DTI_PIPE_ATTRIBUTE_BACKWARD ? count - 1 - i : i;
            result = dti_agree_result(par, dti_pipe_attribute_chunk(par, c, what));
        }
    }
    if (result)
        return result;
    const char *fault = dti_pipe_statistics_fault(par);
    return dti_agree_result(par, fault ? dti_parallel_not_finite_text(par, fault) : DT_OK);
}
