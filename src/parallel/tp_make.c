/* Makes a tensor group: a context, a graph, a store and programs for each tensor rank. After it a
 * step allocates nothing. */

/* ---- the whole model's code, and what there is of each parameter */

static dt_result dti_tp_runs(dti_parallel *par) {
    dti_tp *tp = par->tp;
    dti_replica *r = &par->replicas[0];
    const uint32_t rows[2] = {par->desc.batch, par->desc.tail};
    dt_result result = DT_OK;
    par->elements = r->store->layout.elements;
    for (uint32_t k = 0; k < 2 && rows[k] && !result; k++) {
        result = dti_grid_runs_make(par, tp->groups[0].replica, rows[k], k ? &r->tail : &r->full);
        for (uint32_t i = 0; i < tp->group_count && !result; i++)
            result =
                dti_grid_runs_make(par, tp->groups[i].replica, rows[k], &tp->groups[i].runs[k]);
    }
    return result;
}

static uint32_t dti_tp_blocks(const dti_tp *tp, uint32_t i, bool buffers) {
    const uint64_t all = tp->code->layout->params[i].elements;
    const uint64_t own = tp->parts[i].of.axis >= 0 ? all / tp->size : all;
    return dti_table_blocks(tp->code, i, buffers) ? (uint32_t)((own + DTI_BLOCK - 1) / DTI_BLOCK)
                                                  : 0;
}

static void dti_tp_blocks_count(dti_parallel *par) {
    dti_tp *tp = par->tp;
    for (uint32_t i = 0; i < tp->code->layout->param_count; i++) {
        for (int buffers = 0; buffers < 2; buffers++)
            tp->blocks +=
                dti_tp_blocks(tp, i, buffers) * (tp->parts[i].of.axis >= 0 ? tp->size : 1u);
    }
}

/* ---- tensor ranks */

static dt_result dti_tp_alike(dti_parallel *par, const dti_device *a, const dti_device *b) {
    if (a->backend == b->backend && a->info.kind == b->info.kind)
        return DT_OK;
    return dti_fail(par->base, DT_ERROR_INVALID,
                    "%s = %u: devices %s and %s round differently, but replicated tensors must be "
                    "equal on all tensor ranks; name devices of one kind",
                    dti_grid_setting(par), par->desc.tensor, a->info.id, b->info.id);
}

static dt_result dti_tp_open_rank(dti_parallel *par, uint32_t m, const char *name, int threads) {
    dti_tp_rank *tp_rank = &par->tp->ranks[m];
    const dt_store_desc d = {.device = name, .seed = par->desc.seed};
    const uint32_t begin = m - m % par->tp->each; /* of its device's */
    dt_result result = DT_OK;
    if (m > begin)
        tp_rank->ctx = par->tp->ranks[begin].ctx;
    else
        result = dti_context_beside(par, par->replicas[0].graph, "tensor rank", m, threads,
                                    &tp_rank->ctx);
    if (!result)
        result = dti_tp_graph(par, par->tp, tp_rank->ctx, tp_rank->number, &tp_rank->graph);
    if (result)
        return result;
    result = dt_store_create(tp_rank->graph, &d, &tp_rank->store);
    if (result)
        return dti_fail(par->base, result, "tensor rank %u: %s", m,
                        dti_ctx_base(tp_rank->ctx)->error);
    tp_rank->store->device->one_thread = threads <= 1;
    return dti_tp_alike(par, par->tp->ranks[0].store->device, tp_rank->store->device);
}

static dt_result dti_tp_open_all(dti_parallel *par, const char *names, int threads) {
    dti_device_walk w = {.at = names && names[0] ? names : "auto"};
    dt_result result = DT_OK;
    uint32_t m = 0;
    while (!result && dti_device_next(&w)) {
        for (uint32_t k = 0; k < w.times * par->tp->each && !result; k++)
            result = dti_tp_open_rank(par, m++, w.name, threads);
    }
    return result;
}

/* ---- programs */

static dt_program_desc dti_tp_desc(const dti_parallel *par, const dti_tp *tp, dt_graph *graph) {
    const uint32_t *stands = tp->stands;
    dt_program_desc d = dti_replica_desc(par, &par->replicas[0]);
    d.loss = (dt_tensor){0};
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        if (d.losses[i].term.id)
            d.losses[i].term = (dt_tensor){graph, stands[d.losses[i].term.id]};
        if (d.metrics[i].id)
            d.metrics[i] = (dt_tensor){graph, stands[d.metrics[i].id]};
    }
    return d;
}

static dt_result dti_tp_program(dti_parallel *par, uint32_t m, uint32_t tail, uint32_t i) {
    dti_tp_rank *tp_rank = &par->tp->ranks[m];
    const dti_runs *runs = &dti_tp_group_of(par->tp, m)->runs[tail];
    for (uint32_t k = 0; k < i; k++) {
        if (runs->runs[k].rows != runs->runs[i].rows)
            continue;
        tp_rank->runs[tail][i] = tp_rank->runs[tail][k];
        return DT_OK;
    }
    const bool parts = par->desc.parts > 1;
    const dti_piece piece = {.rows = runs->runs[i].rows, .begins = !parts, .ends = !parts};
    const dti_batch_slices batch_slices = {
        .pieces = &piece, .piece_count = 1, .leaves = 1, .any_part = parts};
    const dti_staged staged = {.blocks = par->tp->blocks, .tp_ranks = par->tp->size};
    dt_program_desc d = dti_tp_desc(par, par->tp, tp_rank->graph);
    tp_rank->store->layout.parts = par->desc.parts;
    d.batch = (int)piece.rows;
    dt_result result = dti_program_create_micro_slots(tp_rank->store, &d, &batch_slices, &staged, 1,
                                                      &tp_rank->runs[tail][i]);
    if (!result)
        dti_micro_slot_take(tp_rank->runs[tail][i], 0);
    return result
               ? dti_fail(par->base, result, "tensor rank %u: %s", m, tp_rank->store->base->error)
               : DT_OK;
}

static dt_result dti_tp_programs(dti_parallel *par, uint32_t m) {
    dti_tp_rank *tp_rank = &par->tp->ranks[m];
    const dti_runs *runs = dti_tp_group_of(par->tp, m)->runs;
    dt_result result = DT_OK;
    for (uint32_t tail = 0; tail < 2 && !result; tail++) {
        tp_rank->runs[tail] =
            dti_alloc_array(par->base, runs[tail].count + 1u, sizeof *tp_rank->runs[tail]);
        result = tp_rank->runs[tail] ? DT_OK : DT_ERROR_MEMORY;
        for (uint32_t i = 0; i < runs[tail].count && !result; i++)
            result = dti_tp_program(par, m, tail, i);
    }
    return result ? result
                  : dti_batch_slice_stack_make(par, &tp_rank->sum, tp_rank->store,
                                               dti_tp_group_of(par->tp, m)->replica);
}

/* ---- between ranks */

static dt_result dti_tp_same(dti_parallel *par, const dti_device *device) {
    const dt_device_info *info = &device->info;
    const bool cpu = info->kind == DT_DEVICE_CPU;
    char text[400];
    const int size = snprintf(text, sizeof text, "tensor on devices of kind %d%s%.300s\n",
                              (int)info->kind, cpu ? "" : ", ", cpu ? "" : info->driver);
    return dti_agree_text(par, text, (size_t)size);
}

/* Room for what a tensor group's ranks here send to others, and receive. */
static dt_result dti_tp_group_links(dti_parallel *par, dti_tp_group *tp_group) {
    size_t most = 1;
    for (uint32_t tail = 0; tail < 2; tail++) {
        for (uint32_t i = 0; i < tp_group->runs[tail].count; i++)
            most = dti_tp_most(par->tp->ranks[tp_group->first].runs[tail][i], most);
    }
    return dti_tp_place_make(par, &tp_group->place, most);
}

static dt_result dti_tp_join(dti_parallel *par) {
    const dti_tp *tp = par->tp;
    dt_result own = DT_OK;
    if (!par->desc.comm)
        return DT_OK;
    dt_result result = dti_tp_same(par, tp->ranks[0].store->device);
    for (uint32_t i = 0; i < tp->group_count && !own; i++) {
        if (tp->groups[i].count < tp->size)
            own = dti_tp_group_links(par, &tp->groups[i]);
    }
    if (!result)
        result = dti_agree_result(par, own);
    return result ? result : dti_tp_groups(par);
}

/* ---- all of it */

static dt_result dti_tp_room(dti_parallel *par, dti_tp *tp) {
    const dti_layout *layout = &par->replicas[0].store->layout;
    uint64_t most = 1;
    for (uint32_t i = 0; i < layout->param_count; i++)
        most = DTI_MAX(most, layout->params[i].elements);
    tp->whole = dti_alloc_array(par->base, (size_t)most, sizeof(float));
    tp->part = dti_alloc_array(par->base, (size_t)most, sizeof(float));
    return tp->whole && tp->part ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_tp_sums(dti_parallel *par) {
    dti_tp *tp = par->tp;
    dt_result result = DT_OK;
    for (uint32_t k = 0; k < tp->size && !result; k++)
        result =
            dti_batch_slice_sum_make(par, &tp->sums[k], tp->ranks[0].store->layout.elements, k);
    return result;
}

static dt_result dti_tp_tables(dti_parallel *par) {
    dti_tp *tp = par->tp;
    const dti_code *code = dti_program_code(tp->ranks[0].runs[0][0]);
    tp->entries = code->table_entries;
    tp->pairs = dti_alloc_array(par->base, 2 * (size_t)tp->entries * tp->size + 1, sizeof(float));
    dt_result result = tp->pairs ? dti_grid_scalars_make(par) : DT_ERROR_MEMORY;
    return result ? result : dti_statistics_make(par->base, &par->job, code, &tp->statistics);
}

static dt_result dti_tp_model(dti_parallel *par, dti_tp *tp) {
    const dt_graph *g = par->replicas[0].graph;
    tp->stands = dti_alloc_array(par->base, g->count, sizeof *tp->stands);
    tp->parts = dti_alloc_array(par->base, g->param_count + 1u, sizeof *tp->parts);
    tp->firsts = dti_alloc_array(par->base, g->count + 1u, sizeof *tp->firsts);
    if (!tp->stands || !tp->parts || !tp->firsts)
        return DT_ERROR_MEMORY;
    return dti_tp_room(par, tp);
}

static void dti_tp_model_free(dti_parallel *par, dti_tp *tp) {
    void *all[] = {tp->stands, tp->firsts, tp->parts, tp->whole, tp->part};
    for (size_t i = 0; i < DTI_COUNT(all); i++)
        dti_free(par->base, all[i]);
}

/* By itself: other ranks know at the end. */
static dt_result dti_tp_open_here(dti_parallel *par, const char *names, int threads, bool pin) {
    dti_tp *tp = par->tp;
    par->subtree_bytes = par->staging_bytes = 0;
    dt_result result = dti_tp_grid_make(par);
    if (!result)
        result = dti_tp_model(par, tp);
    if (!result)
        result = dti_tp_runs(par);
    if (!result)
        result = dti_grid_code(par, &tp->code);
    if (!result)
        result = dti_tp_open_all(par, names, threads);
    if (!result)
        dti_tp_blocks_count(par);
    for (uint32_t m = 0; m < tp->local && !result; m++)
        result = dti_tp_programs(par, m);
    if (!result)
        result = dti_tp_tables(par);
    if (!result)
        result = dti_tp_sums(par);
    return result ? result
                  : dti_device_team_create(par->base, par->desc.comm, tp->local / tp->each, pin,
                                           &tp->device_team);
}

static dt_result dti_tp_create(dti_parallel *par, uint32_t batch_slices, const char *names,
                               int threads, bool pin) {
    dti_tp_destroy(par);
    par->tp = dti_alloc(par->base, sizeof *par->tp);
    dt_result result = par->tp ? dti_grid_begin(par, batch_slices) : DT_ERROR_MEMORY;
    if (!result)
        result = dti_tp_open_here(par, names, threads, pin);
    result = dti_agree_result(par, result);
    return result ? result : dti_tp_join(par);
}

static void dti_tp_rank_close(dti_parallel *par, dti_tp_rank *tp_rank) {
    dti_batch_slice_stack_free(par, &tp_rank->sum);
    dti_store_free(tp_rank->store); /* and its programs */
    dti_free(par->base, tp_rank->runs[0]);
    dti_free(par->base, tp_rank->runs[1]);
}

static void dti_tp_group_close(dti_parallel *par, dti_tp_group *tp_group) {
    dti_tp_place_free(par, &tp_group->place);
    dti_runs_free(par->base, &tp_group->runs[0]);
    dti_runs_free(par->base, &tp_group->runs[1]);
}

static void dti_tp_destroy(dti_parallel *par) {
    dti_tp *tp = par->tp;
    if (!tp)
        return;
    dti_device_team_destroy(tp->device_team);
    for (uint32_t k = tp->sums ? tp->size : 0; k-- > 0;)
        dti_batch_slice_sum_free(par, &tp->sums[k]);
    for (uint32_t i = tp->groups ? tp->group_count : 0; i-- > 0;)
        dti_tp_group_close(par, &tp->groups[i]);
    for (uint32_t m = 0; tp->ranks && m < tp->local; m++)
        dti_tp_rank_close(par, &tp->ranks[m]);
    for (uint32_t m = 0; tp->ranks && m < tp->local; m += tp->each)
        dt_ctx_destroy(tp->ranks[m].ctx);
    if (tp->code)
        dti_code_release(par->replicas[0].store, tp->code);
    dti_statistics_free(par->base, &tp->statistics);
    dti_scalar_sum_free(par, &par->weights);
    dti_scalar_sum_free(par, &par->terms);
    dti_runs_free(par->base, &par->replicas[0].full);
    dti_runs_free(par->base, &par->replicas[0].tail);
    dti_tp_model_free(par, tp);
    void *all[] = {tp->ranks, tp->groups, tp->sums, tp->pairs};
    for (size_t i = 0; i < DTI_COUNT(all); i++)
        dti_free(par->base, all[i]);
    dti_free(par->base, tp);
    par->tp = NULL;
}

/* ---- shared inputs */

static dt_result dti_tp_share_rank(dti_parallel *par, uint32_t m, uint32_t node, const void *values,
                                   size_t bytes) {
    const dti_tp_rank *tp_rank = &par->tp->ranks[m];
    const dt_tensor x = {tp_rank->graph, par->tp->stands[node]};
    const dti_runs *runs = dti_tp_group_of(par->tp, m)->runs;
    dt_result result = DT_OK;
    for (uint32_t tail = 0; tail < 2; tail++) {
        for (uint32_t i = 0; i < runs[tail].count && !result; i++) {
            dt_program *p = tp_rank->runs[tail][i];
            if (dti_code_binding(dti_program_code(p), x.id, false, false))
                result = dt_program_write(p, x, values, bytes);
        }
    }
    return result;
}

static dt_result dti_tp_share(dti_parallel *par, uint32_t node, const void *values, size_t bytes) {
    dt_result result = DT_OK;
    for (uint32_t m = 0; m < par->tp->local && !result; m++)
        result = dti_tp_share_rank(par, m, node, values, bytes);
    return result;
}
