/* All values and state of a model that is split over devices, in the store that the application
 * sees. It has no arenas until the application asks. Then values are gathered from stages, tensor
 * ranks or owners. The next step frees the memory. If the application reads a grid's between steps,
 * it stays, and the steps keep it up to date. */

static dt_store *dti_full_store(const dti_parallel *par) {
    return par->replicas[0].store;
}

/* Values that no device reads lie only on the host, where a store with units keeps untrained
 * ones. */
static dt_result dti_full_open(dti_parallel *par) {
    const dti_values_map map = dti_values_map_of(par);
    dt_store *all = dti_full_store(par);
    dti_layout *l = &all->layout;
    dti_values_place p;
    l->fixed = 0;
    all->apart = true;
    for (uint32_t i = l->param_count; i-- > 0;) {
        if (map.find(par, 0, 0, i, &p))
            continue;
        l->params[i].rest = l->fixed;
        l->fixed += dti_full_blocks(l->params[i].elements);
    }
    return l->fixed ? all->device->backend->memory_create(all->device, dti_arena_bytes(l->fixed),
                                                          DTI_MEMORY_DEVICE, &all->units[0])
                    : DT_OK;
}

/* Moves these to its arena, or back. */
static dt_result dti_full_rest(dt_store *all, bool show) {
    for (uint32_t i = 0; i < all->layout.param_count; i++) {
        const dti_param *p = &all->layout.params[i];
        if (p->rest == DTI_NO_REST)
            continue;
        float *rest = (float *)all->device->backend->memory_host(all->units[0]) + p->rest;
        DTI_TRY(show ? dti_store_array_write(all, 0, p->offset, p->elements, rest)
                     : dti_store_array_read(all, 0, p->offset, p->elements, rest));
    }
    return DT_OK;
}

static bool dti_full_is_there(const dti_parallel *par) {
    return (dti_pipe_of(par) ? !par->kept : dti_units_are(par)) &&
           dti_full_store(par)->memories[DTI_ARENA_PARAM];
}

static dt_result dti_full_hide(dti_parallel *par) {
    if (!dti_pipe_of(par))
        return dti_units_hide(par);
    dti_full_old(par);
    dti_store_arenas_drop(dti_full_store(par), true);
    return DT_OK;
}

static void dti_full_old(dti_parallel *par) {
    const bool apart = dti_pipe_of(par) || dti_units_are(par);
    for (uint32_t i = 0; i < par->job.local && apart; i++)
        par->replicas[i].store->apart = true;
}

static dt_result dti_full_given(dti_parallel *par) {
    dt_store *all = dti_full_store(par);
    if (!dti_pipe_of(par) || !all->written || !dti_values_are_made(par))
        return DT_OK;
    all->written = false;
    DTI_TRY(dti_full_rest(all, false));
    return dti_values_scatter(par);
}

static dt_result dti_full_gather(dti_parallel *par) {
    dt_store *all = dti_full_store(par);
    if (dti_units_are(par))
        return dti_units_show(par);
    if (!dti_grid_is(par) || !all->apart)
        return DT_OK;
    dt_result result = dti_agree_result(par, dti_store_arenas(all, true));
    all->apart = false;
    if (!result)
        result = dti_values_gather(par);
    if (!result)
        result = dti_agree_result(par, dti_full_rest(all, true));
    all->apart = result != DT_OK;
    dti_store_unbound(all);
    return result;
}

static dt_result dti_full_show(dti_parallel *par) {
    par->kept = par->kept || dti_pipe_of(par);
    return dti_full_gather(par);
}
