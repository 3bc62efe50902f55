/* A copy of the values that the stores here have, such as a fit's best weights. Each rank has its
 * parts of it and no more. It lies by parameter and place. Replicas with the same values share a
 * run, so that a process has one copy of each. */

#define DTI_VALUES_NONE UINT64_MAX

static dti_bucket dti_values_snapshot_has(const dti_values_move *m, const dti_values_place *p) {
    const uint64_t all = dti_values_host(m)->layout.params[m->param].elements;
    const uint64_t n = m->part ? all / m->map.tp->size : all;
    const dti_bucket range = {p->offset, p->offset + n};
    return dti_values_are_units(m) ? dti_bucket_overlap(range, p->moments) : range;
}

/* The run of place `i` here: an earlier replica's with the same values, or NONE. */
static uint64_t dti_values_snapshot_twin(const dti_values_move *m, const uint64_t *starts,
                                         uint32_t i) {
    const uint32_t tensor = m->par->mesh.tensor;
    uint64_t start = DTI_VALUES_NONE;
    for (uint32_t k = i % tensor; k < i && start == DTI_VALUES_NONE; k += tensor)
        start = starts[k];
    return dti_values_are_units(m) ? DTI_VALUES_NONE : start;
}

/* Without parts it lies as in the arena, which files have. */
static void dti_values_snapshot_lay(dti_values_move *m, dti_values_snapshot *s) {
    const bool apart = dti_values_are_apart(m->par);
    const dti_layout *layout = &dti_values_host(m)->layout;
    dti_values_place p;
    s->elements = apart ? 0 : layout->elements;
    for (uint32_t param = 0; param < layout->param_count; param++) {
        uint64_t *starts = s->starts + (size_t)param * s->places;
        dti_values_array(m, param, 0);
        for (uint32_t i = 0; i < s->places; i++)
            starts[i] = DTI_VALUES_NONE;
        for (uint32_t i = 0; dti_values_next(m, &i, &p); i++) {
            starts[i] = dti_values_snapshot_twin(m, starts, i);
            if (starts[i] != DTI_VALUES_NONE)
                continue;
            starts[i] = apart ? s->elements : p.offset;
            s->elements += apart ? dti_bucket_elements(dti_values_snapshot_has(m, &p)) : 0;
        }
    }
}

static dt_result dti_values_snapshot_make(dti_parallel *par, dti_values_snapshot *s) {
    const dti_mesh *mesh = &par->mesh;
    const uint32_t params = par->replicas[0].store->layout.param_count;
    dti_values_move m;
    dti_values_begin(par, &m, NULL);
    dti_values_snapshot_free(par, s);
    s->places = dti_mesh_replicas(mesh, mesh->rank).count * mesh->tensor;
    s->starts = dti_alloc_array(par->base, (size_t)params * s->places + 1, sizeof *s->starts);
    DTI_HAVE(s->starts);
    dti_values_snapshot_lay(&m, s);
    s->values = dti_alloc(par->base, (size_t)dti_arena_bytes(s->elements + 1));
    return s->values ? DT_OK : DT_ERROR_MEMORY;
}

static void dti_values_snapshot_free(dti_parallel *par, dti_values_snapshot *s) {
    DTI_FREE(par->base, s->values, s->starts);
    *s = (dti_values_snapshot){0};
}

static float *dti_values_snapshot_at(const dti_values_move *m, const dti_values_place *p,
                                     uint32_t replica, uint32_t tensor, uint64_t at) {
    const dti_values_snapshot *s = m->snapshot;
    const dti_mesh *mesh = &m->par->mesh;
    const uint32_t i =
        (replica - dti_mesh_replicas(mesh, mesh->rank).first) * mesh->tensor + tensor;
    return s->values + s->starts[(size_t)m->param * s->places + i] +
           (at - dti_values_snapshot_has(m, p).begin);
}

/* From the stores, or to them. */
static dt_result dti_values_snapshot_copy(dti_parallel *par, const dti_values_snapshot *s,
                                          bool restore) {
    const uint32_t params = par->replicas[0].store->layout.param_count;
    dti_values_move m;
    dti_values_place p;
    dti_values_begin(par, &m, NULL);
    for (uint32_t param = 0; param < params && !m.result; param++) {
        const uint64_t *starts = s->starts + (size_t)param * s->places;
        dti_values_array(&m, param, 0);
        for (uint32_t i = 0; dti_values_next(&m, &i, &p); i++) {
            const dti_bucket has = dti_values_snapshot_has(&m, &p);
            const uint64_t n = dti_bucket_elements(has);
            float *run = s->values + starts[i];
            if (n && restore)
                dti_values_add(&m, &p, dti_store_array_write(p.store, 0, has.begin, n, run));
            else if (n && dti_values_snapshot_twin(&m, starts, i) == DTI_VALUES_NONE)
                dti_values_add(&m, &p, dti_store_array_read(p.store, 0, has.begin, n, run));
        }
    }
    return m.result;
}

static dt_result dti_values_snapshot_take(dti_parallel *par, const dti_values_snapshot *s) {
    DTI_TRY(dti_full_given(par));
    return dti_values_snapshot_copy(par, s, false);
}

static dt_result dti_values_snapshot_restore(dti_parallel *par, const dti_values_snapshot *s) {
    dt_result result = dti_units_are(par) ? dti_units_hide(par) : dti_full_given(par);
    if (!result)
        result = dti_values_snapshot_copy(par, s, true);
    dti_full_old(par);
    if (!result)
        result = dti_values_given(par);
    for (uint32_t i = 0; i < par->job.local; i++)
        dti_host_copy_stale(par->replicas[i].store);
    result = dti_agree_result(par, result);
    return result || !par->kept ? result : dti_full_gather(par);
}
