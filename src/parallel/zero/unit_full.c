/* All parameters in the stores of all replicas, for the application and files, which read or write
 * them between steps. They are gathered on demand, on all ranks together. The next step takes its
 * parts and frees the rest. Where the application has programs on a store its memory stays, and is
 * out of date in between. */

static dt_result dti_units_arenas(dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++)
        DTI_TRY(dti_replica_failed(par, i, dti_store_arenas(par->replicas[i].store, false)));
    return DT_OK;
}

/* Copies untrained values, which each replica has in both. */
static dt_result dti_unit_rest(const dti_unit_part *part, bool show) {
    dt_store *s = part->store;
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        const dti_param *p = &s->layout.params[i];
        if (p->rest == DTI_NO_REST)
            continue;
        float *rest = part->params + p->rest;
        DTI_TRY(show ? dti_store_array_write(s, 0, p->offset, p->elements, rest)
                     : dti_store_array_read(s, 0, p->offset, p->elements, rest));
    }
    return DT_OK;
}

/* Sends a unit from its owners to all stores. Other ranks need not know yet of a failed write
 * here. */
static dt_result dti_units_show_unit(dti_parallel *par, uint32_t unit, dt_result *own) {
    dti_units *u = &par->units;
    const dti_bucket range = u->buckets[unit];
    bool ended = true;
    dt_result result = DT_OK;
    u->posted = 0;
    if (u->comm) {
        result = dti_units_send(par, u, unit);
        const dt_result came = dti_works_end(u->comm, &u->sends[0], true, &ended);
        result = dti_parallel_comm_failed(par, result ? result : came);
    } else {
        dti_units_move(u, range, u->staging, false, true);
    }
    if (!result && !*own)
        *own = dti_values_put(par, 0, range.begin, dti_bucket_elements(range), u->staging);
    return result;
}

static dt_result dti_units_lost(dti_parallel *par) {
    return (dti_shards_span(par) && par->lost) || !dti_values_are_made(par)
               ? dti_values_lost(par,
                                 "ranks' shards of the parameters are lost (.parallel.zero_stage)")
               : DT_OK;
}

static void dti_units_mark(dti_parallel *par, bool apart) {
    for (uint32_t i = 0; i < par->job.local; i++)
        par->replicas[i].store->apart = apart;
}

static dt_result dti_units_show(dti_parallel *par) {
    if (!dti_units_are(par) || !par->replicas[0].store->apart)
        return DT_OK;
    DTI_TRY(dti_units_lost(par));
    dt_result own = DT_OK, result = dti_units_arenas(par);
    for (uint32_t i = 0; i < par->job.local && !result; i++) /* buffers may have been written */
        result = dti_replica_failed(par, i, dti_unit_mirror(&par->units.parts[i], false));
    result = dti_agree_result(par, result);
    dti_units_mark(par, false); /* values are written to whole parameters */
    for (uint32_t b = 0; b < par->bucket_count && !result; b++)
        result = dti_units_show_unit(par, b, &own);
    for (uint32_t i = 0; i < par->job.local && !result && !own; i++)
        own = dti_replica_failed(par, i, dti_unit_rest(&par->units.parts[i], true));
    result = dti_agree_result(par, result ? result : own);
    dti_units_mark(par, result != DT_OK);
    return result;
}

/* Copies each replica's own part, and the values that each has, from its store. */
static dt_result dti_units_take(dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++) {
        const dti_unit_part *p = &par->units.parts[i];
        const dti_bucket own = dti_values_own(p->store);
        if (own.begin < own.end)
            DTI_TRY(dti_replica_failed(
                par, i,
                dti_store_array_read(p->store, 0, own.begin, dti_bucket_elements(own), p->params)));
        DTI_TRY(dti_replica_failed(par, i, dti_unit_rest(p, false)));
        DTI_TRY(dti_replica_failed(par, i, dti_unit_mirror(p, true)));
    }
    return DT_OK;
}

/* Also where they went to their owners already, after averages. */
static dt_result dti_units_hide(dti_parallel *par) {
    DTI_TRY(par->replicas[0].store->apart ? DT_OK : dti_units_take(par));
    dti_units_mark(par, true);
    for (uint32_t i = 0; i < par->job.local; i++)
        dti_store_arenas_drop(par->replicas[i].store, false);
    return DT_OK;
}
