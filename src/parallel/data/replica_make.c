/* Allocates a job's memory for a number of batch slices and rows. That is each replica's programs,
 * for full batches and the short last one, the buckets, and every buffer of the exchange.
 * Afterwards a step allocates nothing. */

#define DTI_BUCKET_FIRST ((uint64_t)1 << 20)   /* small, so that the network starts early */
#define DTI_BUCKET_GAP (16384u)                /* elements not trained that travel along */
#define DTI_BUCKETS_MAX (DTI_SEGMENTS_MAX - 8) /* each may end a segment */
_Static_assert(DTI_BUCKETS_MAX <= DTI_UNITS_MAX, "a bit of a mask for each");

/* ---- buckets */

static uint32_t dti_buckets_make(const dti_parallel *par, const dt_store *s, dti_bucket *buckets) {
    uint64_t most =
        par->desc.parallel.bucket_bytes ? par->desc.parallel.bucket_bytes : DTI_BUCKET_BYTES;
    most = DTI_MAX(most, dti_arena_bytes(s->layout.elements) / (DTI_BUCKETS_MAX / 2)) /
           dti_arena_bytes(1);
    const uint64_t first =
        par->desc.parallel.bucket_bytes ? most : DTI_BUCKET_FIRST / dti_arena_bytes(1);
    bool open = false;
    uint32_t count = 0;
    for (uint32_t i = s->layout.param_count; i-- > 0;) { /* in the arena's order */
        const dti_param *param = &s->layout.params[i];
        if (!dti_param_is_trained(&s->graph->nodes[param->node], par->desc.program.params))
            continue;
        dti_bucket *b = &buckets[count - open];
        const bool near = open && param->offset - b->end <= DTI_BUCKET_GAP;
        if (open && (!near || b->end - b->begin >= (b == buckets ? first : most)) &&
            count < DTI_BUCKETS_MAX)
            open = false;
        if (!open)
            buckets[count++] = (dti_bucket){.begin = param->offset};
        open = true;
        buckets[count - 1].end =
            param->offset + (param->elements + DTI_BLOCK - 1) / DTI_BLOCK * DTI_BLOCK;
    }
    return count;
}

/* ---- programs */

static bool dti_micro_same(const dti_micro_run *a, const dti_micro_run *b) {
    bool same = a->piece_count == b->piece_count && a->any_part == b->any_part &&
                a->last == b->last && a->before.count == b->before.count &&
                !memcmp(a->before.at, b->before.at, a->before.count * sizeof *a->before.at);
    for (uint32_t i = 0; same && i < a->piece_count; i++) {
        const dti_piece *x = &a->pieces[i], *y = &b->pieces[i];
        same = x->rows == y->rows && x->leaf == y->leaf &&
               (a->any_part || (x->begins == y->begins && x->ends == y->ends));
    }
    return same;
}

/* The replica's copy of a tensor of the application's graph. A tensor of another graph stays as it
 * is and is reported. */
static dt_tensor dti_replica_tensor(const dti_parallel *par, const dti_replica *r, dt_tensor x) {
    if (x.graph == par->replicas[0].graph)
        x.graph = r->graph;
    return x;
}

static dt_program_desc dti_replica_desc(const dti_parallel *par, const dti_replica *r) {
    dt_program_desc d = par->desc.program;
    d.label = "train";
    d.optim = &par->desc.optim;
    d.loss = dti_replica_tensor(par, r, d.loss);
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        d.losses[i].term = dti_replica_tensor(par, r, d.losses[i].term);
        d.metrics[i] = dti_replica_tensor(par, r, d.metrics[i]);
    }
    return d;
}

static dt_result dti_micro_program(dti_parallel *par, dti_replica *r, dti_runs *runs, uint32_t i) {
    const bool local = dti_parallel_is_local(par);
    dti_micro_run *run = &runs->runs[i];
    const bool rows = local || par->alone; /* are all that such a program knows of its run */
    for (uint32_t k = 0; k < i; k++) {
        if (rows ? run->rows == runs->runs[k].rows : dti_micro_same(run, &runs->runs[k])) {
            run->program = runs->runs[k].program;
            return DT_OK;
        }
    }
    r->store->layout.parts = par->job.parts;
    if (par->alone)
        return dti_alone_program(par, r, run);
    dt_program_desc d = dti_replica_desc(par, r);
    d.batch = (int)run->rows;
    d.accumulate = local && par->job.parts > 1;
    const dti_batch_slices batch_slices = {.pieces = run->pieces,
                                           .piece_count = run->piece_count,
                                           .leaves = par->job.batch_slices,
                                           .before = run->before,
                                           .any_part = run->any_part,
                                           .last = run->last && !dti_parallel_keeps_gradients(par),
                                           .buckets = par->buckets,
                                           .bucket_count = par->bucket_count,
                                           .one_run = par->job.parts == 1};
    DTI_TRY(dti_program_create(r->store, &d, local ? NULL : &batch_slices, &run->program));
    return local || par->desc.worker ? DT_OK : dti_host_weights_make(run->program);
}

typedef struct dti_runs_of { /* whose list is written */
    const dti_parallel *par;
    const dti_replica *replica;
    const dti_runs *runs;
    uint32_t most; /* runs of any replica of the job */
} dti_runs_of;

/* Of a run after a replica's own: the others' values. */
static const dti_micro_run *dti_runs_list_run(const dti_runs_of *o, uint32_t i) {
    const dti_runs *of = i < o->runs->count ? o->runs : &o->replica->full;
    return &of->runs[i < of->count ? i : 0];
}

/* Units are where they were as far as the next run's code has the same places. */
static void dti_runs_list_units(dti_list_units *units, const dti_code *code) {
    if (units->code && memcmp(code->unit_param, units->code->unit_param, sizeof code->unit_param))
        units->resident = 0;
    units->code = code;
}

static void dti_runs_list_write(void *of, dti_list *list) {
    const dti_runs_of *o = of;
    const bool zero = dti_units_are(o->par);
    dti_list_units units = {.ranks = zero && dti_shards_span(o->par)};
    for (uint32_t i = 0; i < DTI_MAX(o->most, 1u); i++) {
        const dti_micro_run *run = dti_runs_list_run(o, i);
        const dti_code *code = dti_program_code(run->program);
        const bool idle = i >= o->runs->count,
                   gradients_leave = !o->runs->count && code->units_leave;
        const dti_list_micro micro = {
            .written = i == 0,
            .idle = idle,
            .units = zero ? &units : NULL,
            .forward = dti_program_forward(run->program),
            .segments = dti_program_segments(run->program),
            .buckets = run->last && (!idle || gradients_leave) ? code->segment_buckets : NULL,
            .sync_points = code->sync_points,
            .sync_point_count = code->sync_point_count};
        dti_runs_list_units(&units, code);
        if (!idle)
            dti_list_add_micro(list, i, &micro);
        else
            dti_list_add_none(list, i, &micro,
                              o->runs->count || i || gradients_leave ? 0 : o->par->bucket_count);
    }
}

static dt_result dti_runs_list_make(dti_parallel *par, dti_replica *r, dti_runs *runs) {
    dti_runs_of of = {par, r, runs, runs->count};
    if (dti_units_are(par) && dti_shards_span(par))
        DTI_TRY(dti_runs_most(par->base, &par->job, runs->rows, &of.most));
    return dti_list_make(par->base, &runs->list, dti_runs_list_write, &of);
}

static dt_result dti_replica_programs(dti_parallel *par, dti_replica *r, dti_runs *runs,
                                      uint32_t replica, uint32_t rows) {
    dt_result result = dti_runs_make(par->base, &par->job, par->job.first + replica, rows, runs);
    r->store->slots = DTI_MAX(r->store->slots, runs->slots);
    for (uint32_t i = 0; i < runs->count && !result; i++)
        result = dti_micro_program(par, r, runs, i);
    if (!result && r->full.count && !par->alone && !dti_parallel_is_local(par))
        result = dti_runs_list_make(par, r, runs);
    return dti_replica_failed(par, replica, result);
}

static const dti_code *dti_parallel_code(const dti_parallel *par) {
    return dti_pipe_of(par) ? dti_pipe_of(par)->code
                            : dti_program_code(par->replicas[0].full.runs[0].program);
}

static void dti_parallel_bind(dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local && par->bucket_count; i++)
        par->replicas[i].gradients = dti_program_gradients(par->replicas[i].full.runs[0].program);
}

/* A gradient arena has a slot for each sum that the replica cannot add up by itself. It has room
 * for the most slots that full and short batches need. */
static dt_result dti_replica_build(dti_parallel *par, uint32_t i) {
    dti_replica *r = &par->replicas[i];
    uint32_t first, end, most = 0;
    dti_partition_batch_slices(&par->job, par->job.first + i, &first, &end);
    r->subtrees = dti_partition_subtrees(&par->job, first, end);
    for (int tail = 1; tail >= 0; tail--) {
        dti_runs probe;
        const uint32_t rows = tail ? par->desc.tail : par->desc.batch;
        if (!rows)
            continue;
        DTI_TRY(dti_runs_make(par->base, &par->job, par->job.first + i, rows, &probe));
        most = DTI_MAX(most, probe.slots);
        dti_runs_free(par->base, &probe);
    }
    const bool inside = dti_parallel_keeps_gradients(par);
    const bool host = !inside && !r->store->exchange; /* from now on the host reads them */
    r->store->exchange = r->store->exchange || !inside;
    if (r->store->memories[DTI_ARENA_GRADIENT] && (host || most > DTI_MAX(r->store->slots, 1u)))
        DTI_TRY(
            dti_arena_grow(r->store, DTI_ARENA_GRADIENT, dti_arena_bytes(par->elements) * most, 0));
    r->store->slots = DTI_MAX(r->store->slots, most);
    DTI_TRY(dti_replica_programs(par, r, &r->full, i, par->desc.batch));
    if (par->desc.tail)
        DTI_TRY(dti_replica_programs(par, r, &r->tail, i, par->desc.tail));
    if (!r->full.count)
        return dti_fail(par->base, DT_ERROR_INVALID,
                        "replica %u has no sample, as .batch is %u; give a larger .batch, or fewer "
                        "batch slices or replicas",
                        par->job.first + i, par->desc.batch);
    const size_t pieces = (size_t)DTI_MAX(r->full.piece_count, r->tail.piece_count);
    r->weights = dti_alloc_array(par->base, pieces * DT_MAX_TERMS, sizeof *r->weights);
    if (par->bucket_count)
        r->gradients = dti_program_gradients(r->full.runs[0].program);
    return r->weights ? DT_OK : DT_ERROR_MEMORY;
}

/* Their programs too, which some of them share. */
static void dti_runs_unbuild(dti_parallel *par, dti_runs *runs) {
    for (uint32_t i = runs->count; i-- > 0;) {
        bool own = runs->runs[i].program != NULL;
        for (uint32_t before = 0; before < i; before++)
            own = own && runs->runs[before].program != runs->runs[i].program;
        if (own)
            dt_program_destroy(runs->runs[i].program);
    }
    dti_runs_free(par->base, runs);
}

static void dti_replica_unbuild(dti_parallel *par, dti_replica *r) {
    dti_runs_unbuild(par, &r->full);
    dti_runs_unbuild(par, &r->tail);
    dti_free(par->base, r->weights);
    r->weights = NULL;
}

/* ---- buffers */

static dt_result dti_operands_fit(dti_parallel *par, uint32_t replicas, uint64_t operands) {
    if (operands <= DTI_OPERANDS_MAX)
        return DT_OK;
    return dti_fail(par->base, DT_ERROR_INVALID,
                    ".parallel.batch_slices is %u for %u replicas of this process, which makes "
                    "%llu partial sums, more than %d; use a multiple of the number of replicas",
                    par->job.batch_slices, replicas, (unsigned long long)operands,
                    DTI_OPERANDS_MAX);
}

/* staging: host memory beside the model's; subtrees: gradients of a replica's second and further
 * slots. */
static dt_result dti_exchange_make(dti_parallel *par) {
    uint64_t gradients = 0, operands = 0;
    const bool rounded = dti_sums_are_rounded(par), units = dti_units_are(par);
    const bool merged = par->subtrees.count == 1 && (par->job.local == 1 || rounded);
    for (uint32_t b = 0; b < par->bucket_count; b++)
        gradients += dti_bucket_elements(par->buckets[b]);
    if (units)
        gradients = DTI_UNITS_STAGED * par->units.largest;
    const uint64_t partial =
        par->desc.comm && !merged ? dti_arena_bytes(gradients) * par->subtrees.count : 0;
    const uint64_t half = rounded ? gradients * sizeof *par->rounded : 0;
    par->staging_bytes = partial + half + (units ? dti_arena_bytes(gradients) : 0);
    par->subtree_bytes = 0;
    for (uint32_t i = 0; i < par->job.local; i++) {
        const dti_replica *r = &par->replicas[i];
        const dt_store *s = r->store;
        const uint64_t kept = s->layout.fixed * (s->host ? 2 : 1);
        const uint64_t elements =
            units ? s->unit_elements[1] + kept : par->elements * DTI_MAX(s->slots, 1u);
        const uint64_t arena = dti_arena_bytes(elements);
        operands += r->subtrees.count;
        if (!units) /* theirs are counted with the gradients' arena */
            par->subtree_bytes += arena - dti_arena_bytes(par->elements);
        if (r->store->device->info.kind != DT_DEVICE_CPU && !dti_parallel_keeps_gradients(par))
            par->staging_bytes += arena;
    }
    DTI_TRY(dti_operands_fit(par, par->job.local, operands));
    par->partial = partial ? dti_alloc(par->base, (size_t)partial) : NULL;
    par->rounded = half ? dti_alloc(par->base, (size_t)half) : NULL;
    if ((partial && !par->partial) || (half && !par->rounded))
        return DT_ERROR_MEMORY;
    DTI_TRY(dti_scalar_sums_make(par));
    return dti_bucket_sums_make(par);
}

static dt_result dti_batch_slices_fit(dti_parallel *par, uint32_t batch_slices) {
    const uint32_t data = par->mesh.data, batch = par->desc.batch;
    const uint32_t most = (batch_slices + data - 1) / data; /* of a replica */
    const bool grid = dti_grid_is(par);
    const char *what = par->desc.stages > 1 ? "pipeline" : "split model";
    if (batch_slices < data)
        return dti_fail(par->base, DT_ERROR_INVALID,
                        ".parallel.batch_slices is %u for %u replicas%s%s: each needs one; use "
                        "fewer replicas or more batch slices",
                        batch_slices, data, grid ? " of a " : "", grid ? what : "");
    if (batch < data && !grid)
        return dti_fail(par->base, DT_ERROR_INVALID,
                        ".batch is %u for %u replicas: each needs a sample; use a larger batch",
                        batch, data);
    if (batch_slices > batch)
        return dti_fail(par->base, DT_ERROR_INVALID,
                        ".parallel.batch_slices is %u and .batch is %u; it must be at most %u",
                        batch_slices, batch, batch);
    if (grid && par->desc.parts * (uint64_t)most > DTI_PIPE_MICROS_MAX)
        return dti_fail(par->base, DT_ERROR_INVALID,
                        ".accumulate is %u, with %u batch slices a replica of a %s; their product "
                        "must be at most %d",
                        par->desc.parts, most, what, DTI_PIPE_MICROS_MAX);
    return DT_OK;
}

/* Up to this number of gradients, threads cost more than they save. */
#define DTI_ONE_THREAD_BYTES ((uint64_t)1 << 20)

/* For asynchronous devices that do not wait for each other between segments. */
static bool dti_replicas_are_one_thread(const dti_parallel *par) {
    bool own = par->job.local > 1 && !par->desc.comm && !dti_pipe_of(par) && !dti_is_sharded(par) &&
               !dti_units_are(par) && !dti_parallel_is_local(par) && !par->sync_points.count &&
               par->desc.parallel.balance == DT_BALANCE_EQUAL &&
               par->subtree_bytes + dti_arena_bytes(par->elements) * par->job.local <=
                   DTI_ONE_THREAD_BYTES;
    for (uint32_t i = 0; i < par->job.local; i++)
        own = own && par->replicas[i].store->device->info.kind != DT_DEVICE_CPU;
    return own;
}

static dt_result dti_parallel_make(dti_parallel *par) {
    dti_partition *job = &par->job;
    DTI_TRY(dti_batch_slices_fit(par, job->batch_slices));
    dti_mesh_cut(par);
    par->subtrees = dti_partition_subtrees(job, par->first_batch_slice,
                                           par->first_batch_slice + par->batch_slices);
    par->elements = par->replicas[0].store->layout.elements;
    par->alone = dti_parallel_is_alone(par);
    par->buckets = dti_alloc_array(par->base, DTI_BUCKETS_MAX + 1u, sizeof *par->buckets);
    par->counters = dti_alloc_array(par->base, DTI_UNITS_COUNTERS, sizeof *par->counters);
    if (!par->buckets || !par->counters)
        return DT_ERROR_MEMORY;
    DTI_TRY(dti_search_make(par, job->local));
    if (dti_parallel_is_local(par) || !dti_parallel_keeps_gradients(par))
        par->bucket_count = dti_buckets_make(par, par->replicas[0].store, par->buckets);
    DTI_TRY(dti_owners_cut(par));
    for (uint32_t i = 0; i < job->local; i++)
        DTI_TRY(dti_replica_build(par, i));
    DTI_TRY(dti_units_make(par));
    DTI_TRY(dti_exchange_make(par));
    DTI_TRY(dti_statistics_make(par->base, job, dti_parallel_code(par), &par->statistics));
    DTI_TRY(dti_sync_points_open(par));
    DTI_TRY(dti_owners_make(par));
    par->one_thread = dti_replicas_are_one_thread(par);
    return dti_parallel_is_local(par) ? dti_round_make(par) : DT_OK;
}

static dt_result dti_parallel_build(dti_parallel *par, uint32_t batch_slices,
                                    const uint32_t *bounds) {
    dti_parallel_unbuild(par);
    par->job.batch_slices = batch_slices;
    par->job.parts = par->desc.parts;
    par->job.batch = par->desc.batch;
    par->job.bounds = bounds;
    DTI_TRY(dti_agree_result(par, dti_parallel_make(par)));
    DTI_TRY(dti_sync_points_agree(par));
    DTI_TRY(dti_shards_group(par));
    DTI_TRY(dti_units_agree(par));
    const dt_comm_span own = {par->first_batch_slice, par->batch_slices};
    return par->desc.comm ? dti_mesh_leaves(par, par->desc.comm, own, batch_slices) : DT_OK;
}

static void dti_parallel_unbuild(dti_parallel *par) {
    for (uint32_t i = 0; par->replicas && i < par->job.local; i++)
        dti_replica_unbuild(par, &par->replicas[i]);
    dti_scalar_sum_free(par, &par->weights);
    dti_scalar_sum_free(par, &par->terms);
    dti_round_free(par);
    dti_statistics_free(par->base, &par->statistics);
    dti_sync_points_free(par);
    dti_units_free(par, &par->units);
    dti_sums_free(par);
    DTI_FREE(par->base, par->buckets, par->partial, par->rounded, par->undo, par->owners,
             par->counters, par->findings);
    par->buckets = NULL;
    par->bucket_count = 0; /* get_info may come before they are made again */
    par->partial = par->undo = NULL;
    par->rounded = NULL;
    par->owners = NULL;
    par->counters = NULL;
    par->findings = NULL;
    par->strategy = NULL; /* another number of batch slices may shard nothing */
}
