/* Finds the op that made a NaN, with ZeRO-2 and 3. The units that the launches read are no longer
 * in memory. So all ranks work off the lists of their replicas once more, with the same GATHERs. In
 * place of a segment's start its launches run one by one, and the result of each is scanned
 * (exec_find_fault). Nothing is summed and nothing waits for a sum: gradients of units take each
 * other's places.
 *
 * It scans the last of a replica's micro-batches, whose inputs are still in memory. It costs the
 * gathers of a step, in skipped steps and in an evaluation's first such batch. */

static dt_result dti_search_segments(dti_parallel *par, uint32_t index, const dti_action *a) {
    dti_replica *r = &par->replicas[index];
    if (r->fault != UINT32_MAX || a->micro + 1 != r->runs->count)
        return DT_OK;
    return dti_step_find_fault(dti_list_micro_of(r, a)->program, a->from, a->what + 1u, &r->fault);
}

static dt_result dti_search_act(dti_parallel *par, uint32_t index, const dti_action *a) {
    const bool runs = a->kind == DTI_ACTION_FORWARD || a->kind == DTI_ACTION_BACKWARD;
    return runs                           ? dti_search_segments(par, index, a)
           : a->kind == DTI_ACTION_GATHER ? dti_unit_gather(par, index, a)
                                          : DT_OK;
}

static const dti_action_calls dti_search_calls = {.walk = dti_replica_walk,
                                                  .act = dti_search_act,
                                                  .failed = dti_any_failed,
                                                  .help = dti_replica_help};

static const dti_strategy dti_search_strategy = {
    .calls = &dti_search_calls, .team = dti_replicas_team, .result = dti_replicas_result};

static dt_result dti_unit_list_run(dti_parallel *par, uint32_t index) {
    dti_replica *r = &par->replicas[index];
    const dt_result result = dti_list_run(par, index, r->runs->list.count);
    if (result)
        atomic_store(&r->failed, true);
    return result;
}

/* By par's strategy, after dti_units_rewind. Others wait, so a failure ends the job. */
static dt_result dti_unit_lists_run(dti_parallel *par) {
    dt_result result = dti_replicas_phase(par, dti_unit_list_run);
    result = result ? result : par->sums.error;
    return result ? dti_protocol_over(par, result, par->desc.comm ? dti_parallel_leave : NULL,
                                      dti_parallel_drop_all)
                  : DT_OK;
}

static dt_result dti_units_search(dti_parallel *par) {
    const dti_strategy *strategy = par->strategy;
    dti_units_rewind(par);
    atomic_store(&par->counters[par->units.counters + DTI_UNITS_SUMMED], UINT32_MAX);
    for (uint32_t i = 0; i < par->job.local; i++)
        par->replicas[i].fault = UINT32_MAX;
    par->strategy = &dti_search_strategy;
    const dt_result result = dti_unit_lists_run(par);
    par->strategy = strategy;
    return result;
}

/* The first replica that found one is quoted. */
static dt_result dti_units_attribute(dti_parallel *par) {
    DTI_TRY(dti_units_search(par));
    for (uint32_t i = 0; i < par->job.local; i++) {
        dti_replica *r = &par->replicas[i];
        dt_program *p = dti_parallel_last(r);
        dt_report report = {0};
        if (r->runs->count)
            dti_step_fault_at(p, &report, dti_program_code(p)->commit_segment, r->fault);
        if (r->runs->count ? report.fault_op : dti_program_attribute(p, false))
            return i == 0
                       ? DT_ERROR_NUMERIC
                       : dti_fail(par->base, DT_ERROR_NUMERIC, "%s", dti_ctx_base(r->ctx)->error);
    }
    return DT_OK;
}
