/* Finds the op that made a NaN, in a step or an evaluation that has one. By then later values
 * have overwritten earlier ones. So all ranks execute their lists once more, with inputs,
 * parameters, messages and sync points as before. Forward and backward segments run launch by
 * launch, and the results of each are scanned. Gradients are not summed, and nothing is written.
 *
 * The error names the first such launch of all devices, by (micro-batch, part of the model,
 * launch). A device computes no launch after its own first one. Stale values do no harm: their
 * readers come later in this order.
 *
 * Cost: a step that runs launch by launch. Only skipped steps pay, and the first batch of an
 * evaluation that is not finite. */

#define DTI_SEARCH_NOTHING ((uint64_t)INT64_MAX)
enum { DTI_SEARCH_MICRO = 40, DTI_SEARCH_PART = 24 }; /* bits after them; launches have the rest */

static dt_result dti_search_make(dti_parallel *par, uint32_t devices) {
    dti_free(par->base, par->findings);
    par->findings = dti_alloc_array(par->base, devices, sizeof *par->findings);
    par->finding_count = par->findings ? devices : 0;
    return par->findings ? DT_OK : DT_ERROR_MEMORY;
}

static void dti_search_begin(dti_parallel *par) {
    for (uint32_t i = 0; i < par->finding_count; i++)
        par->findings[i].at = DTI_SEARCH_NOTHING;
}

/* ---- on a device's thread */

static void dti_search_put(dti_finding *f, uint64_t at, const dt_program *p) {
    f->at = at;
    snprintf(f->text, sizeof f->text, "%.*s", (int)sizeof f->text - 1, p->base->error);
}

static void dti_search_update(dti_parallel *par, uint32_t index, dt_program *p, uint32_t part) {
    dti_finding *f = &par->findings[index];
    if (part < f->at && dti_program_attribute(p))
        dti_search_put(f, part, p);
}

static dt_result dti_search_segments(dti_parallel *par, uint32_t index, dt_program *p,
                                     const dti_action *a, uint32_t part) {
    const uint64_t at = (uint64_t)a->micro << DTI_SEARCH_MICRO | (uint64_t)part << DTI_SEARCH_PART;
    dti_finding *f = &par->findings[index];
    dt_report report = {0};
    uint32_t launch;
    if (f->at >> DTI_SEARCH_PART <= at >> DTI_SEARCH_PART)
        return DT_OK;
    const dt_result result = dti_step_search(p, &report, a->from, a->what + 1u, &launch);
    if (result == DT_ERROR_NUMERIC)
        dti_search_put(f, at + launch, p);
    return result == DT_ERROR_NUMERIC ? DT_OK : result;
}

static dt_result dti_search_act(dti_parallel *par, uint32_t index, const dti_action *a) {
    const dti_action_calls *calls = par->strategy->calls;
    const bool sums = a->kind == DTI_ACTION_SUM || a->kind == DTI_ACTION_ZEROS,
               runs = a->kind == DTI_ACTION_FORWARD || a->kind == DTI_ACTION_BACKWARD;
    return sums ? DT_OK : (runs ? calls->search : calls->act)(par, index, a);
}

/* ---- on all ranks together */

static dt_result dti_search_first(dti_parallel *par, const dti_finding **out) {
    const dti_finding *own = &par->findings[0];
    for (uint32_t i = 1; i < par->finding_count; i++)
        own = par->findings[i].at < own->at ? &par->findings[i] : own;
    int64_t first = -(int64_t)own->at;
    *out = NULL;
    DTI_TRY(dti_ranks_reduce(par, par->desc.comm, &first, 1, DT_I64, DT_COMM_MAX));
    if (own->at != DTI_SEARCH_NOTHING && first == -(int64_t)own->at)
        *out = own;
    return DT_OK;
}

static dt_result dti_search_lists(dti_parallel *par, const dti_finding **out) {
    *out = NULL;
    dti_search_begin(par);
    par->strategy->rewind(par);
    par->searches = true;
    const dt_result result = dti_protocol_lists(par);
    par->searches = false;
    return result ? result : dti_search_first(par, out);
}

static dt_result dti_search_tell(dti_parallel *par, const dti_finding *f) {
    return dti_agree_result(par, f ? dti_fail(par->base, DT_ERROR_NUMERIC, "%s", f->text) : DT_OK);
}

static dt_result dti_search_step(dti_parallel *par) {
    const dti_finding *first;
    dti_search_begin(par);
    par->strategy->team(par, par->strategy->updates);
    DTI_TRY(dti_search_first(par, &first));
    DTI_TRY(dti_search_tell(par, first));
    DTI_TRY(dti_search_lists(par, &first));
    return dti_search_tell(par, first);
}
