/* An evaluation or prediction with ZeRO-2 and 3. A batch is a list of forward segments with the
 * GATHERs of a step. So no rank needs room for all parameters. Ranks wait for each other in every
 * batch. A failure on one rank (a sample, a label) is reported to all before the batch's first
 * GATHER. A replica without rows only gathers. With averages each owner gives those in its weights'
 * place.
 *
 * Cost of a batch, for G bytes of parameters on R ranks: each receives G (R - 1) / R, and two small
 * messages. Memory: a unit's window and transients, as in a step; with averages the own part of
 * them once more, on the host. */

static dti_batch_slices dti_unit_pass_slices(const dti_parallel *par, const dti_piece *rows) {
    return (dti_batch_slices){.pieces = rows,
                              .piece_count = 1,
                              .leaves = 1,
                              .buckets = par->buckets,
                              .bucket_count = par->bucket_count};
}

/* ---- its memory */

static uint64_t dti_unit_pass_own(const dti_parallel *par, uint32_t replica) {
    return dti_bucket_elements(dti_values_own(par->replicas[replica].store));
}

static void dti_unit_pass_free(dti_parallel *par, dti_unit_pass *pass) {
    for (uint32_t i = 0; pass->runs && i < 2 * par->job.local; i++) {
        dti_list_free(par->base, &pass->runs[i].first.list);
        dti_list_free(par->base, &pass->runs[i].next.list);
    }
    for (uint32_t i = 0; pass->averages && i < par->job.local; i++)
        dti_free(par->base, pass->averages[i]);
    par->staging_bytes -= pass->bytes;
    DTI_FREE(par->base, pass->runs, pass->averages);
    *pass = (dti_unit_pass){0};
}

static dt_result dti_unit_pass_averages(dti_parallel *par, dti_unit_pass *pass) {
    pass->averages = dti_alloc_array(par->base, par->job.local, sizeof *pass->averages);
    DTI_HAVE(pass->averages);
    for (uint32_t i = 0; i < par->job.local; i++) {
        const uint64_t bytes = dti_arena_bytes(dti_unit_pass_own(par, i) + DTI_BLOCK);
        pass->averages[i] = dti_alloc(par->base, (size_t)bytes);
        DTI_HAVE(pass->averages[i]);
        pass->bytes += bytes;
        par->staging_bytes += bytes;
    }
    return DT_OK;
}

static dt_result dti_unit_pass_make(dti_parallel *par, dti_unit_pass *pass, bool averaged) {
    pass->runs = dti_alloc_array(par->base, 2 * (size_t)par->job.local, sizeof *pass->runs);
    DTI_HAVE(pass->runs);
    return averaged ? dti_unit_pass_averages(par, pass) : DT_OK;
}

/* ---- its lists */

typedef struct dti_unit_list_of { /* whose list is written */
    const dti_parallel *par;
    const dti_unit_pass_run *run;
    bool idle;
    uint64_t there, left; /* units in memory before it, and after it */
} dti_unit_list_of;

static void dti_unit_pass_write(void *of, dti_list *list) {
    dti_unit_list_of *o = of;
    const dt_program *p = o->run->micro.program;
    const dti_code *code = dti_program_code(p);
    dti_list_units units = {.ranks = dti_shards_span(o->par), .code = code, .resident = o->there};
    const dti_list_micro micro = {.written = true,
                                  .idle = o->idle,
                                  .units = &units,
                                  .forward = dti_program_forward(p),
                                  .segments = dti_program_forward(p),
                                  .sync_points = code->sync_points,
                                  .sync_point_count = code->sync_point_count};
    if (micro.idle)
        dti_list_add_none(list, 0, &micro, 0);
    else
        dti_list_add_micro(list, 0, &micro);
    o->left = units.resident;
}

/* Units stay from batch to batch, as far as they have the same places. */
static dt_result dti_unit_pass_lists(dti_parallel *par, const dti_unit_pass_run *full,
                                     dti_unit_pass_run *run) {
    const dt_program *before = full->micro.program;
    const dti_code *code = dti_program_code(run->micro.program);
    dti_unit_list_of of = {par, run, !run->first.count, 0, 0};
    DTI_TRY(dti_list_make(par->base, &run->first.list, dti_unit_pass_write, &of));
    run->left = of.left;
    if (before &&
        !memcmp(code->unit_param, dti_program_code(before)->unit_param, sizeof code->unit_param))
        of.there = full->left;
    return dti_list_make(par->base, &run->next.list, dti_unit_pass_write, &of);
}

static dt_result dti_unit_pass_put(dti_parallel *par, dti_unit_pass *pass, bool tail,
                                   uint32_t replica, dt_program *program, uint32_t of,
                                   dti_micro_run rows) {
    dti_unit_pass_run *run = &pass->runs[tail * par->job.local + replica];
    uint32_t end;
    run->piece = (dti_piece){.rows = rows.rows, .begins = true, .ends = true};
    dti_partition_batch_slices(&par->job, par->job.first + replica, &run->piece.leaf, &end);
    run->micro = rows;
    run->micro.pieces = &run->piece;
    run->micro.piece_count = 1;
    run->micro.program = program;
    run->first = run->next = (dti_runs){.rows = of,
                                        .runs = &run->micro,
                                        .count = rows.rows > 0,
                                        .pieces = &run->piece,
                                        .piece_count = 1};
    return dti_unit_pass_lists(par, &pass->runs[replica], run);
}

/* ---- before its first batch */

/* Owners' averages, as far as a step has made them, and else weights. */
static dt_result dti_unit_pass_average(dti_parallel *par, uint32_t replica, float *to) {
    dti_unit_part *part = &par->units.parts[replica];
    dt_store *s = part->store;
    const dti_bucket own = dti_values_own(s);
    dt_result result = DT_OK;
    memcpy(to, part->params, (size_t)dti_bucket_elements(own) * sizeof *to);
    for (uint32_t i = 0; i < s->layout.param_count && !result; i++) {
        const dti_param *p = &s->layout.params[i];
        const dti_bucket here =
            dti_bucket_overlap(own, (dti_bucket){p->offset, p->offset + p->elements});
        if (p->average && s->kept[i].averaged && here.begin < here.end)
            result = dti_store_array_read(s, p->average, here.begin, dti_bucket_elements(here),
                                          to + (here.begin - own.begin));
    }
    part->params = to;
    return dti_replica_failed(par, replica, result);
}

static void dti_unit_pass_end(dti_parallel *par) {
    for (uint32_t i = 0; i < par->units.part_count; i++) {
        par->units.parts[i].params = dti_unit_part_of(&par->replicas[i]).params;
        par->replicas[i].runs = &par->replicas[i].full; /* a prediction's are freed */
    }
}

/* Updates the owners' values. The arenas may have moved, and the application may have written to
 * gathered parameters. */
static dt_result dti_unit_pass_values(dti_parallel *par, const dti_unit_pass *pass) {
    dti_unit_pass_end(par);
    DTI_TRY(par->replicas[0].store->apart ? DT_OK : dti_units_take(par));
    for (uint32_t i = 0; i < par->job.local && pass->averages; i++)
        DTI_TRY(dti_unit_pass_average(par, i, pass->averages[i]));
    return DT_OK;
}

/* Sums of replicas here, and of all ranks. */
static dt_result dti_unit_pass_same(dti_parallel *par, const dti_unit_pass *pass) {
    enum { orders = 4 };
    int64_t own[2 * orders] = {0};
    size_t bad = orders, here = orders;
    for (uint32_t i = 0; i < orders * par->job.local && dti_shards_span(par); i++) {
        const uint32_t kind = i / par->job.local;
        const dti_unit_pass_run *run = &pass->runs[i % (2 * par->job.local)];
        const dti_list *list = kind < 2 ? &run->first.list : &run->next.list;
        const int64_t order = list->actions ? dti_units_order(list, 0, false) : 0;
        here = own[kind] && order != own[kind] ? kind : here;
        own[kind] = order;
    }
    DTI_TRY(dti_ranks_same(par, own, orders, &bad));
    if (DTI_MIN(bad, here) == orders)
        return dti_agree_result(par, DT_OK);
    return dti_agree_result(
        par, dti_fail(par->base, DT_ERROR_UNSUPPORTED,
                      ".parallel.zero_stage is %d, but replicas read parameters in different "
                      "orders in an evaluation; give all replicas the same devices, or a stage "
                      "below %d",
                      par->desc.parallel.zero_stage, DT_SHARD_GRADIENTS));
}

static dt_result dti_unit_pass_begin(dti_parallel *par, dti_unit_pass *pass, dt_result own) {
    pass->begun = pass->searched = false;
    DTI_TRY(dti_agree_result(par, own ? own : dti_unit_pass_values(par, pass)));
    return dti_unit_pass_same(par, pass);
}

/* ---- a batch */

static void dti_unit_pass_prepare(dti_parallel *par, dti_unit_pass *pass, const dti_batch *batch,
                                  const dt_step_desc *step) {
    par->strategy = &dti_units_strategy;
    par->now = &par->steps[par->oldest];
    *par->now = (dti_step){.batch = batch, .rows = batch->rows, .desc = *step};
    memset(par->terms.leaves, 0,
           (size_t)par->batch_slices * par->terms.width * sizeof *par->terms.leaves);
    for (uint32_t i = 0; i < par->job.local; i++) {
        dti_unit_pass_run *run = &pass->runs[i];
        run += batch->rows == run->first.rows ? 0 : par->job.local;
        par->replicas[i].runs = pass->begun ? &run->next : &run->first;
    }
    pass->begun = true;
    dti_units_rewind(par);
    dti_sums_begin(par);
}

static dt_result dti_unit_pass_batch(dti_parallel *par, dti_unit_pass *pass, const dti_batch *batch,
                                     const dt_step_desc *step, dt_result own) {
    DTI_TRY(dti_agree_result(par, own));
    dti_unit_pass_prepare(par, pass, batch, step);
    return dti_protocol_lists(par);
}

static bool dti_unit_pass_terms(const dti_parallel *par, uint32_t replica, double *sum) {
    const dti_runs *runs = par->replicas[replica].runs;
    const double *terms = dti_scalar_leaf(par, &par->terms, runs->pieces[0].leaf);
    for (uint32_t i = 0; i < 4 * DT_MAX_TERMS; i++)
        sum[i] += terms[i];
    return dti_losses_finite(terms);
}

static dt_result dti_unit_pass_fault(dti_parallel *par, dti_unit_pass *pass, const bool *faulty) {
    int32_t any = 0;
    for (uint32_t i = 0; i < par->job.local; i++)
        any = any || faulty[i];
    if (pass->searched)
        return DT_OK;
    DTI_TRY(dti_ranks_reduce(par, par->desc.comm, &any, 1, DT_I32, DT_COMM_MAX));
    if (!any)
        return DT_OK;
    pass->searched = true;
    const dti_finding *first;
    DTI_TRY(dti_search_lists(par, &first));
    const uint32_t i = first ? (uint32_t)(first - par->findings) : 0;
    return !first ? DT_OK
           : i    ? dti_fail(par->base, DT_ERROR_NUMERIC, "replica %u: %s", i, first->text)
                  : dti_fail(par->base, DT_ERROR_NUMERIC, "%s", first->text);
}
