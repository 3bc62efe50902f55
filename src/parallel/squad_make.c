/* Making a squad: a context, a graph, a store and programs for each member. After it a step
 * allocates nothing. */

/* ---- the whole model's code, and what there is of each parameter */

static dt_result dti_squad_runs(dti_parallel *par) {
    dti_squad *squad = par->squad;
    dti_replica *r = &par->replicas[0];
    const uint32_t rows[2] = {par->desc.batch, par->desc.tail};
    dt_result result = DT_OK;
    par->elements = r->store->layout.elements;
    for (uint32_t k = 0; k < 2 && rows[k] && !result; k++) {
        result = dti_grid_runs_make(par, squad->lines[0].replica, rows[k], k ? &r->tail : &r->full);
        for (uint32_t i = 0; i < squad->line_count && !result; i++)
            result =
                dti_grid_runs_make(par, squad->lines[i].replica, rows[k], &squad->lines[i].runs[k]);
    }
    return result;
}

static dt_result dti_squad_optim(dti_parallel *par, const dti_squad *squad) {
    const dt_optim_desc optim = dti_optim_resolved(&par->desc.optim);
    if (!dti_optim_is_whole(dti_optim_row_of(optim.kind)))
        return DT_OK;
    return dti_fail(par->base, DT_ERROR_UNSUPPORTED,
                    "%s = %u: this optimizer looks at whole parameters, and members have parts; "
                    "take one that goes element by element, as Adam",
                    dti_grid_setting(par), squad->size);
}

static uint32_t dti_squad_blocks(const dti_squad *squad, uint32_t i, bool buffers) {
    const uint64_t all = squad->code->layout->params[i].elements;
    const uint64_t own = squad->parts[i].of.axis >= 0 ? all / squad->size : all;
    return dti_table_blocks(squad->code, i, buffers) ? (uint32_t)((own + DTI_BLOCK - 1) / DTI_BLOCK)
                                                     : 0;
}

static void dti_squad_blocks_count(dti_parallel *par) {
    dti_squad *squad = par->squad;
    for (uint32_t i = 0; i < squad->code->layout->param_count; i++) {
        for (int buffers = 0; buffers < 2; buffers++)
            squad->blocks += dti_squad_blocks(squad, i, buffers) *
                             (squad->parts[i].of.axis >= 0 ? squad->size : 1u);
    }
}

/* ---- members */

static dt_result dti_squad_alike(dti_parallel *par, const dti_device *a, const dti_device *b) {
    if (a->backend == b->backend && a->info.kind == b->info.kind)
        return DT_OK;
    return dti_fail(par->base, DT_ERROR_INVALID,
                    "%s = %u: devices %s and %s round differently, and what members compute "
                    "alike must be the same; name devices of one kind",
                    dti_grid_setting(par), par->desc.tensor, a->info.id, b->info.id);
}

static dt_result dti_squad_open_member(dti_parallel *par, uint32_t m, const char *name,
                                       int threads) {
    dti_squad_member *member = &par->squad->members[m];
    const dt_store_desc d = {.device = name, .seed = par->desc.seed};
    const uint32_t begin = m - m % par->squad->each; /* of its device's */
    dt_result result = DT_OK;
    if (m > begin)
        member->ctx = par->squad->members[begin].ctx;
    else
        result =
            dti_context_beside(par, par->replicas[0].graph, "member", m, threads, &member->ctx);
    if (!result)
        result = dti_squad_graph(par, par->squad, member->ctx, member->number, &member->graph);
    if (result)
        return result;
    result = dt_store_create(member->graph, &d, &member->store);
    if (result)
        return dti_fail(par->base, result, "member %u: %s", m, dti_ctx_base(member->ctx)->error);
    member->store->device->one_thread = threads <= 1;
    return dti_squad_alike(par, par->squad->members[0].store->device, member->store->device);
}

static dt_result dti_squad_open_all(dti_parallel *par, const char *names, int threads) {
    dti_device_walk w = {.at = names && names[0] ? names : "auto"};
    dt_result result = DT_OK;
    uint32_t m = 0;
    while (!result && dti_device_next(&w)) {
        for (uint32_t k = 0; k < w.times * par->squad->each && !result; k++)
            result = dti_squad_open_member(par, m++, w.name, threads);
    }
    return result;
}

/* ---- programs */

static dt_program_desc dti_squad_desc(const dti_parallel *par, const dti_squad *squad,
                                      dt_graph *graph) {
    const uint32_t *stands = squad->stands;
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

static dt_result dti_squad_program(dti_parallel *par, uint32_t m, uint32_t tail, uint32_t i) {
    dti_squad_member *member = &par->squad->members[m];
    const dti_runs *runs = &dti_squad_line_of(par->squad, m)->runs[tail];
    for (uint32_t k = 0; k < i; k++) {
        if (runs->runs[k].rows != runs->runs[i].rows)
            continue;
        member->runs[tail][i] = member->runs[tail][k];
        return DT_OK;
    }
    const bool parts = par->desc.parts > 1;
    const dti_piece piece = {.rows = runs->runs[i].rows, .begins = !parts, .ends = !parts};
    const dti_shards shards = {.pieces = &piece, .piece_count = 1, .leaves = 1, .any_part = parts};
    const dti_joint joint = {.blocks = par->squad->blocks, .members = par->squad->size};
    dt_program_desc d = dti_squad_desc(par, par->squad, member->graph);
    member->store->layout.parts = par->desc.parts;
    d.batch = (int)piece.rows;
    dt_result result =
        dti_program_create_lanes(member->store, &d, &shards, &joint, 1, &member->runs[tail][i]);
    if (!result)
        dti_lane_take(member->runs[tail][i], 0);
    return result ? dti_fail(par->base, result, "member %u: %s", m, member->store->base->error)
                  : DT_OK;
}

static dt_result dti_squad_programs(dti_parallel *par, uint32_t m) {
    dti_squad_member *member = &par->squad->members[m];
    const dti_runs *runs = dti_squad_line_of(par->squad, m)->runs;
    dt_result result = DT_OK;
    for (uint32_t tail = 0; tail < 2 && !result; tail++) {
        member->runs[tail] =
            dti_alloc_array(par->base, runs[tail].count + 1u, sizeof *member->runs[tail]);
        result = member->runs[tail] ? DT_OK : DT_ERROR_MEMORY;
        for (uint32_t i = 0; i < runs[tail].count && !result; i++)
            result = dti_squad_program(par, m, tail, i);
    }
    member->sum.store = member->store;
    return result ? result : dti_shard_stack_make(par, &member->sum);
}

/* ---- between ranks */

static dt_result dti_squad_same(dti_parallel *par, const dti_device *device) {
    const dt_device_info *info = &device->info;
    const bool cpu = info->kind == DT_DEVICE_CPU;
    char text[400];
    const int size = snprintf(text, sizeof text, "tensor on devices of kind %d%s%.300s\n",
                              (int)info->kind, cpu ? "" : ", ", cpu ? "" : info->driver);
    return dti_agree_text(par, text, (size_t)size);
}

/* What a line's members here say to others, and hear of them. */
static dt_result dti_squad_line_links(dti_parallel *par, dti_squad_line *line) {
    size_t most = 1;
    for (uint32_t tail = 0; tail < 2; tail++) {
        for (uint32_t i = 0; i < line->runs[tail].count; i++)
            most = dti_squad_most(par->squad->members[line->first].runs[tail][i], most);
    }
    return dti_squad_place_make(par, &line->place, most);
}

static dt_result dti_squad_join(dti_parallel *par) {
    const dti_squad *squad = par->squad;
    dt_result own = DT_OK;
    if (!par->desc.comm)
        return DT_OK;
    dt_result result = dti_squad_same(par, squad->members[0].store->device);
    for (uint32_t i = 0; i < squad->line_count && !own; i++) {
        if (squad->lines[i].count < squad->size)
            own = dti_squad_line_links(par, &squad->lines[i]);
    }
    if (!result)
        result = dti_agree_result(par, own);
    return result ? result : dti_squad_groups(par);
}

/* ---- all of it */

static dt_result dti_squad_room(dti_parallel *par, dti_squad *squad) {
    const dti_layout *layout = &par->replicas[0].store->layout;
    uint64_t most = 1;
    for (uint32_t i = 0; i < layout->param_count; i++)
        most = DTI_MAX(most, layout->params[i].elements);
    squad->whole = dti_alloc_array(par->base, (size_t)most, sizeof(float));
    squad->part = dti_alloc_array(par->base, (size_t)most, sizeof(float));
    return squad->whole && squad->part ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_squad_sums(dti_parallel *par) {
    dti_squad *squad = par->squad;
    dt_result result = DT_OK;
    for (uint32_t k = 0; k < squad->size && !result; k++) {
        const dt_comm_span own = dti_squad_lines_of(squad, k);
        if (own.count)
            result =
                dti_shard_sum_make(par, &squad->sums[k], squad->members[0].store->layout.elements,
                                   squad->lines[own.first].first_shard,
                                   squad->lines[own.first + own.count - 1].end_shard);
    }
    return result;
}

static dt_result dti_squad_tables(dti_parallel *par) {
    dti_squad *squad = par->squad;
    const dti_code *code = dti_program_code(squad->members[0].runs[0][0]);
    squad->entries = code->table_entries;
    squad->pairs =
        dti_alloc_array(par->base, 2 * (size_t)squad->entries * squad->size + 1, sizeof(float));
    dt_result result = squad->pairs ? dti_grid_scalars_make(par) : DT_ERROR_MEMORY;
    return result ? result : dti_statistics_make(par->base, &par->job, code, &squad->statistics);
}

static dt_result dti_squad_model(dti_parallel *par, dti_squad *squad) {
    const dt_graph *g = par->replicas[0].graph;
    squad->stands = dti_alloc_array(par->base, g->count, sizeof *squad->stands);
    squad->parts = dti_alloc_array(par->base, g->param_count + 1u, sizeof *squad->parts);
    squad->firsts = dti_alloc_array(par->base, g->count + 1u, sizeof *squad->firsts);
    if (!squad->stands || !squad->parts || !squad->firsts)
        return DT_ERROR_MEMORY;
    const dt_result result = dti_squad_optim(par, squad);
    return result ? result : dti_squad_room(par, squad);
}

static void dti_squad_model_free(dti_parallel *par, dti_squad *squad) {
    void *all[] = {squad->stands, squad->firsts, squad->parts, squad->whole, squad->part};
    for (size_t i = 0; i < DTI_COUNT(all); i++)
        dti_free(par->base, all[i]);
}

/* By itself: other ranks know at the end. */
static dt_result dti_squad_open_here(dti_parallel *par, const char *names, int threads, bool pin) {
    dti_squad *squad = par->squad;
    par->subtree_bytes = par->staging_bytes = 0;
    dt_result result = dti_squad_grid_make(par);
    if (!result)
        result = dti_squad_model(par, squad);
    if (!result)
        result = dti_squad_runs(par);
    if (!result)
        result = dti_grid_code(par, &squad->code);
    if (!result)
        result = dti_squad_open_all(par, names, threads);
    if (!result)
        dti_squad_blocks_count(par);
    for (uint32_t m = 0; m < squad->local && !result; m++)
        result = dti_squad_programs(par, m);
    if (!result)
        result = dti_squad_tables(par);
    if (!result)
        result = dti_squad_sums(par);
    return result ? result
                  : dti_crew_create(par->base, par->desc.comm, squad->local / squad->each, pin,
                                    &squad->crew);
}

static dt_result dti_squad_create(dti_parallel *par, uint32_t shards, const char *names,
                                  int threads, bool pin) {
    dti_squad_destroy(par);
    par->squad = dti_alloc(par->base, sizeof *par->squad);
    dt_result result = par->squad ? dti_grid_begin(par, shards) : DT_ERROR_MEMORY;
    if (!result)
        result = dti_squad_open_here(par, names, threads, pin);
    result = dti_agree_result(par, result);
    return result ? result : dti_squad_join(par);
}

static void dti_squad_member_close(dti_parallel *par, dti_squad_member *member) {
    dti_shard_stack_free(par, &member->sum);
    dti_store_free(member->store); /* and its programs */
    dti_free(par->base, member->runs[0]);
    dti_free(par->base, member->runs[1]);
}

static void dti_squad_line_close(dti_parallel *par, dti_squad_line *line) {
    dti_squad_place_free(par, &line->place);
    dti_runs_free(par->base, &line->runs[0]);
    dti_runs_free(par->base, &line->runs[1]);
}

static void dti_squad_destroy(dti_parallel *par) {
    dti_squad *squad = par->squad;
    if (!squad)
        return;
    dti_crew_destroy(squad->crew);
    for (uint32_t k = squad->sums ? squad->size : 0; k-- > 0;)
        dti_shard_sum_free(par, &squad->sums[k]);
    for (uint32_t i = squad->lines ? squad->line_count : 0; i-- > 0;)
        dti_squad_line_close(par, &squad->lines[i]);
    for (uint32_t m = 0; squad->members && m < squad->local; m++)
        dti_squad_member_close(par, &squad->members[m]);
    for (uint32_t m = 0; squad->members && m < squad->local; m += squad->each)
        dt_ctx_destroy(squad->members[m].ctx);
    if (squad->code)
        dti_code_release(par->replicas[0].store, squad->code);
    dti_statistics_free(par->base, &squad->statistics);
    dti_scalar_sum_free(par, &par->weights);
    dti_scalar_sum_free(par, &par->terms);
    dti_runs_free(par->base, &par->replicas[0].full);
    dti_runs_free(par->base, &par->replicas[0].tail);
    dti_squad_model_free(par, squad);
    void *all[] = {squad->members, squad->lines, squad->sums, squad->pairs};
    for (size_t i = 0; i < DTI_COUNT(all); i++)
        dti_free(par->base, all[i]);
    dti_free(par->base, squad);
    par->squad = NULL;
}

/* ---- shared inputs */

static dt_result dti_squad_share_member(dti_parallel *par, uint32_t m, uint32_t node,
                                        const void *values, size_t bytes) {
    const dti_squad_member *member = &par->squad->members[m];
    const dt_tensor x = {member->graph, par->squad->stands[node]};
    const dti_runs *runs = dti_squad_line_of(par->squad, m)->runs;
    dt_result result = DT_OK;
    for (uint32_t tail = 0; tail < 2; tail++) {
        for (uint32_t i = 0; i < runs[tail].count && !result; i++) {
            dt_program *p = member->runs[tail][i];
            if (dti_code_port(dti_program_code(p), x.id, false, false))
                result = dt_program_write(p, x, values, bytes);
        }
    }
    return result;
}

static dt_result dti_squad_share(dti_parallel *par, uint32_t node, const void *values,
                                 size_t bytes) {
    dt_result result = DT_OK;
    for (uint32_t m = 0; m < par->squad->local && !result; m++)
        result = dti_squad_share_member(par, m, node, values, bytes);
    return result;
}
