/* Making a squad: a context, a graph, a store and programs for each member. After it a step
 * allocates nothing. */

/* ---- the whole model's code, and what there is of each parameter */

static dt_result dti_squad_runs(dti_parallel *par) {
    dti_replica *r = &par->replicas[0];
    par->job.shards = par->shards = 1;
    par->job.replicas = 1;
    par->job.first = 0;
    par->job.parts = par->desc.parts;
    par->job.batch = par->desc.batch;
    par->elements = r->store->layout.elements;
    dt_result result = dti_runs_make(par->base, &par->job, 0, par->desc.batch, &r->full);
    if (!result && par->desc.tail)
        result = dti_runs_make(par->base, &par->job, 0, par->desc.tail, &r->tail);
    return result;
}

static dt_result dti_squad_whole_code(dti_parallel *par) {
    dti_replica *r = &par->replicas[0];
    const dti_micro_run *run = &r->full.runs[0];
    dt_program_desc d = dti_replica_desc(par, r);
    d.batch = (int)run->rows;
    d.memory_bytes = 0; /* of a member, and nothing runs */
    const dti_shards shards = {.pieces = run->pieces,
                               .piece_count = run->piece_count,
                               .leaves = 1,
                               .any_part = run->any_part};
    dt_result result = dti_code_take(r->store, &d, &shards, NULL, &par->squad->code);
    return result ? result : dti_store_train_elsewhere(r->store, par->squad->code);
}

static dt_result dti_squad_optim(dti_parallel *par) {
    const dt_optim_desc optim = dti_optim_resolved(&par->desc.optim);
    if (!dti_optim_is_whole(dti_optim_row_of(optim.kind)))
        return DT_OK;
    return dti_fail(
        par->base, DT_ERROR_UNSUPPORTED,
        "tensor = %u: this optimizer looks at whole parameters, and members have parts; "
        "take one that goes element by element, as Adam",
        par->squad->size);
}

/* The blocks of parameter i in a member's table, or in its own half of that; 0: it is in none. */
static uint32_t dti_squad_blocks(const dti_parallel *par, uint32_t i, bool buffers) {
    const dti_squad *squad = par->squad;
    const uint64_t all = squad->code->layout->params[i].elements;
    const uint64_t own = squad->parts[i].of.axis >= 0 ? all / squad->size : all;
    return dti_table_blocks(squad->code, i, buffers) ? (uint32_t)((own + DTI_BLOCK - 1) / DTI_BLOCK)
                                                     : 0;
}

static void dti_squad_blocks_count(dti_parallel *par) {
    dti_squad *squad = par->squad;
    for (uint32_t i = 0; i < squad->code->layout->param_count; i++) {
        for (int buffers = 0; buffers < 2; buffers++)
            squad->blocks += dti_squad_blocks(par, i, buffers) *
                             (squad->parts[i].of.axis >= 0 ? squad->size : 1u);
    }
}

/* ---- members */

static dt_result dti_squad_open_member(dti_parallel *par, uint32_t m, const char *name,
                                       int threads) {
    dti_squad_member *member = &par->squad->members[m];
    const dt_store_desc d = {.device = name, .seed = par->desc.seed};
    dt_result result =
        dti_context_beside(par, par->replicas[0].graph, "member", m, threads, &member->ctx);
    if (!result)
        result = dti_squad_graph(par, member->ctx, &member->graph);
    if (result)
        return result;
    result = dt_store_create(member->graph, &d, &member->store);
    if (result)
        return dti_fail(par->base, result, "member %u: %s", m, dti_ctx_base(member->ctx)->error);
    member->store->device->one_thread = threads <= 1;
    const dti_device *a = par->squad->members[0].store->device, *b = member->store->device;
    if (a->backend == b->backend && a->info.kind == b->info.kind)
        return DT_OK;
    return dti_fail(par->base, DT_ERROR_INVALID,
                    "tensor = %u: devices %s and %s round differently, and what members compute "
                    "alike must be the same; name devices of one kind",
                    par->squad->size, a->info.id, b->info.id);
}

/* How many each rank has. */
static dt_result dti_squad_count(dti_parallel *par, const char *names) {
    dti_squad *squad = par->squad;
    uint32_t sum = 0;
    squad->local = dti_devices_count(par->base, names);
    squad->firsts = dti_alloc_array(par->base, par->world + 1u, sizeof *squad->firsts);
    dt_result result = dti_agree_result(par, !squad->local    ? DT_ERROR_INVALID
                                             : !squad->firsts ? DT_ERROR_MEMORY
                                                              : DT_OK);
    if (!result && par->desc.comm)
        result = dti_parallel_comm_failed(
            par, dt_comm_all_gather(par->desc.comm, &squad->local, squad->firsts, 1, DT_I32));
    else if (!result)
        squad->firsts[0] = squad->local;
    for (uint32_t r = 0; r <= par->world && !result; r++) {
        const uint32_t here = r < par->world ? squad->firsts[r] : 0;
        squad->firsts[r] = sum;
        sum += here;
    }
    if (result)
        return result;
    if (sum != squad->size)
        return dti_fail(par->base, DT_ERROR_INVALID,
                        "tensor = %u needs as many devices, and \"%s\"%s names %u", squad->size,
                        names ? names : "auto", par->desc.comm ? ", with those of all ranks," : "",
                        sum);
    squad->first = squad->firsts[par->rank];
    squad->members = dti_alloc_array(par->base, squad->local, sizeof *squad->members);
    return dti_agree_result(par, squad->members ? DT_OK : DT_ERROR_MEMORY);
}

static dt_result dti_squad_open_all(dti_parallel *par, const char *names, int threads) {
    dti_device_walk w = {.at = names && names[0] ? names : "auto"};
    dt_result result = DT_OK;
    uint32_t m = 0;
    while (!result && dti_device_next(&w)) {
        for (uint32_t k = 0; k < w.times && !result; k++)
            result = dti_squad_open_member(par, m++, w.name, threads);
    }
    return result;
}

/* ---- programs */

static dt_program_desc dti_squad_desc(const dti_parallel *par, const dti_squad_member *member) {
    const uint32_t *stands = par->squad->stands;
    dt_program_desc d = dti_replica_desc(par, &par->replicas[0]);
    d.loss = (dt_tensor){0};
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        if (d.losses[i].term.id)
            d.losses[i].term = (dt_tensor){member->graph, stands[d.losses[i].term.id]};
        if (d.metrics[i].id)
            d.metrics[i] = (dt_tensor){member->graph, stands[d.metrics[i].id]};
    }
    return d;
}

static dt_result dti_squad_program(dti_parallel *par, uint32_t m, uint32_t tail, uint32_t i) {
    dti_squad_member *member = &par->squad->members[m];
    const dti_runs *runs = tail ? &par->replicas[0].tail : &par->replicas[0].full;
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
    dt_program_desc d = dti_squad_desc(par, member);
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
    const dti_runs *runs[2] = {&par->replicas[0].full, &par->replicas[0].tail};
    dt_result result = DT_OK;
    for (uint32_t tail = 0; tail < 2 && !result; tail++) {
        member->runs[tail] =
            dti_alloc_array(par->base, runs[tail]->count + 1u, sizeof *member->runs[tail]);
        result = member->runs[tail] ? DT_OK : DT_ERROR_MEMORY;
        for (uint32_t i = 0; i < runs[tail]->count && !result; i++)
            result = dti_squad_program(par, m, tail, i);
    }
    if (!result)
        result = dti_statistics_make(par->base, &par->job, dti_program_code(member->runs[0][0]),
                                     &member->statistics);
    return result;
}

/* ---- between ranks */

/* The same kind of devices everywhere: what members compute alike must be the same. */
static dt_result dti_squad_same(dti_parallel *par) {
    const dt_device_info *info = &par->squad->members[0].store->device->info;
    const bool cpu = info->kind == DT_DEVICE_CPU;
    char text[400];
    const int size = snprintf(text, sizeof text, "tensor on devices of kind %d%s%.300s\n",
                              (int)info->kind, cpu ? "" : ", ", cpu ? "" : info->driver);
    return dti_agree_text(par, text, (size_t)size);
}

static dt_result dti_squad_links(dti_parallel *par) {
    dti_squad *squad = par->squad;
    size_t most = 1;
    for (uint32_t tail = 0; tail < 2; tail++) {
        const dti_runs *runs = tail ? &par->replicas[0].tail : &par->replicas[0].full;
        for (uint32_t i = 0; i < runs->count; i++) {
            const dti_code *code = dti_program_code(squad->members[0].runs[tail][i]);
            for (uint32_t k = 0; k < code->meeting_count; k++)
                most = DTI_MAX(most, (size_t)code->meetings[k].elements);
        }
    }
    squad->subtrees.count = 0;
    for (uint32_t m = 0; m < squad->local; m++) {
        const dti_piece leaf = {.leaf = squad->first + m, .begins = true};
        dti_subtrees_add(&squad->subtrees, &leaf);
        while (dti_subtrees_join(&squad->subtrees, squad->size)) {
        }
    }
    squad->said = dti_alloc_array(par->base, most * squad->subtrees.count, sizeof(float));
    squad->heard = dti_alloc_array(par->base, most, sizeof(float));
    par->weights.sum = dti_alloc_array(par->base, DTI_WEIGHTS_WIDTH, sizeof(double));
    return squad->said && squad->heard && par->weights.sum ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_squad_join(dti_parallel *par) {
    const dti_squad *squad = par->squad;
    if (!par->desc.comm)
        return DT_OK;
    dt_result result = dti_squad_same(par);
    if (!result)
        result = dti_agree_result(par, dti_squad_links(par));
    if (!result)
        result = dti_parallel_comm_failed(
            par, dt_comm_set_leaves(par->desc.comm, squad->first, squad->local, squad->size, NULL,
                                    (dt_comm_span[DTI_SUBTREES_MAX]){{0, 0}}));
    return result;
}

/* ---- all of it */

static dt_result dti_squad_room(dti_parallel *par) {
    dti_squad *squad = par->squad;
    const dti_layout *layout = &par->replicas[0].store->layout;
    uint64_t most = 1;
    for (uint32_t i = 0; i < layout->param_count; i++)
        most = DTI_MAX(most, layout->params[i].elements);
    squad->whole = dti_alloc_array(par->base, (size_t)most, sizeof(float));
    squad->part = dti_alloc_array(par->base, (size_t)most, sizeof(float));
    return squad->whole && squad->part ? DT_OK : DT_ERROR_MEMORY;
}

/* By itself: other ranks know at the end. */
static dt_result dti_squad_open_here(dti_parallel *par, const char *names, int threads, bool pin) {
    dti_squad *squad = par->squad;
    const dt_graph *g = par->replicas[0].graph;
    squad->stands = dti_alloc_array(par->base, g->count, sizeof *squad->stands);
    squad->parts = dti_alloc_array(par->base, g->param_count + 1u, sizeof *squad->parts);
    dt_result result = squad->stands && squad->parts ? dti_squad_optim(par) : DT_ERROR_MEMORY;
    if (!result)
        result = dti_squad_runs(par);
    if (!result)
        result = dti_squad_whole_code(par);
    if (!result)
        result = dti_squad_room(par);
    if (!result)
        result = dti_squad_open_all(par, names, threads);
    if (!result)
        dti_squad_blocks_count(par);
    for (uint32_t m = 0; m < squad->local && !result; m++)
        result = dti_squad_programs(par, m);
    if (!result) {
        squad->entries = dti_program_code(squad->members[0].runs[0][0])->table_entries;
        squad->pairs = dti_alloc_array(par->base, 2 * (size_t)squad->entries * squad->size + 1,
                                       sizeof *squad->pairs);
        result = squad->pairs ? DT_OK : DT_ERROR_MEMORY;
    }
    return result ? result : dti_crew_create(par->base, squad->local, pin, &squad->crew);
}

static dt_result dti_squad_open(dti_parallel *par, const char *names, int threads, bool pin) {
    par->squad->size = par->desc.tensor;
    dt_result result = dti_squad_count(par, names);
    if (!result)
        result = dti_agree_result(par, dti_squad_open_here(par, names, threads, pin));
    return result ? result : dti_squad_join(par);
}

static dt_result dti_squad_create(dti_parallel *par, const char *names, int threads, bool pin) {
    par->squad = dti_alloc(par->base, sizeof *par->squad);
    dt_result result = dti_agree_result(par, par->squad ? DT_OK : DT_ERROR_MEMORY);
    return result ? result : dti_squad_open(par, names, threads, pin);
}

static void dti_squad_destroy(dti_parallel *par) {
    dti_squad *squad = par->squad;
    if (!squad)
        return;
    dti_crew_destroy(squad->crew);
    for (uint32_t m = 0; squad->members && m < squad->local; m++) {
        dti_squad_member *member = &squad->members[m];
        dti_statistics_free(par->base, &member->statistics);
        dti_store_free(member->store); /* and its programs */
        dti_free(par->base, member->runs[0]);
        dti_free(par->base, member->runs[1]);
        dt_ctx_destroy(member->ctx);
    }
    dti_code_release(par->replicas[0].store, squad->code);
    void *all[] = {squad->members, squad->stands, squad->parts, squad->whole, squad->part,
                   squad->firsts,  squad->pairs,  squad->said,  squad->heard};
    for (size_t i = 0; i < DTI_COUNT(all); i++)
        dti_free(par->base, all[i]);
    dti_free(par->base, squad);
    par->squad = NULL;
}

/* ---- shared inputs */

static dt_result dti_squad_share(dti_parallel *par, uint32_t node, const void *values,
                                 size_t bytes) {
    const dti_squad *squad = par->squad;
    const uint32_t counts[2] = {par->replicas[0].full.count, par->replicas[0].tail.count};
    dt_result result = DT_OK;
    for (uint32_t m = 0; m < squad->local; m++) {
        for (uint32_t i = 0; i < counts[0] + counts[1] && !result; i++) {
            const uint32_t tail = i >= counts[0];
            dt_program *p = squad->members[m].runs[tail][i - (tail ? counts[0] : 0)];
            const dt_tensor x = {squad->members[m].graph, squad->stands[node]};
            if (dti_code_port(dti_program_code(p), x.id, false, false))
                result = dt_program_write(p, x, values, bytes);
        }
    }
    return result;
}
