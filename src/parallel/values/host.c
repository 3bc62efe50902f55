/* All values and state of a model that is split over devices, in the store that the application
 * sees: gathered from stages, tensor ranks or owners, and scattered to those. After every step that
 * store is out of date (par->whole), and its memory is not in use, until somebody asks for values.
 * If values are read between steps, the steps keep it up to date. */

static void dti_full_forget_param(dt_store *all, uint32_t param) {
    const dti_param *p = &all->layout.params[param];
    const uint64_t at = dti_arena_bytes(p->offset), bytes = dti_arena_bytes(p->elements);
    void (*forget)(dti_memory *, uint64_t, uint64_t) = all->device->backend->memory_forget;
    forget(all->memories[DTI_ARENA_PARAM], at, bytes);
    if (all->memories[DTI_ARENA_GRADIENT])
        forget(all->memories[DTI_ARENA_GRADIENT], at, bytes);
    for (uint32_t i = 0; i < all->moments; i++)
        forget(all->memories[DTI_ARENA_STATE],
               at + DTI_WORD_BYTES * dti_state_moment_offset(&all->layout, i), bytes);
}

static void dti_full_old(dti_parallel *par) {
    dt_store *all = par->replicas[0].store;
    const dti_values_map map = dti_values_map_of(par);
    dti_values_place p;
    const bool keeps = par->whole.old || par->whole.shown || !all->device->backend->memory_forget;
    for (uint32_t i = 0; i < all->layout.param_count && !keeps; i++) {
        if (map.find(par, 0, 0, i, &p)) /* what no stage reads is on the host alone */
            dti_full_forget_param(all, i);
    }
    par->whole.old = true;
}

static dt_result dti_full_scatter(dti_parallel *par) {
    par->whole.old = false;
    return dti_values_scatter(par);
}

static dt_result dti_full_given(dti_parallel *par) {
    DTI_TRY(dti_agree_result(par, dti_full_scatter(par)));
    par->replicas[0].store->written = false; /* they have it: a step need not give it again */
    if (!par->whole.shown)
        dti_full_old(par);
    return DT_OK;
}

static dt_result dti_full_gather(dti_parallel *par) {
    if (dti_units_are(par))
        return dti_units_show(par);
    if (!DTI_HAS_MODEL_PARALLEL || !par->whole.old)
        return DT_OK;
    DTI_TRY(dti_values_gather(par));
    dti_store_unbound(par->replicas[0].store);
    par->whole.old = false;
    return DT_OK;
}

static dt_result dti_full_show(dti_parallel *par) {
    par->whole.shown = par->whole.shown || dti_pipe_of(par);
    return dti_full_gather(par);
}
