/* ZeRO-2 and 3: each replica has a part of gradients, and of parameters (lower/units.c has the
 * code's side). A unit is a bucket. Lists of actions say when a replica gathers a unit's parameters
 * to where its code has them (step/actions.c). Within a process they come from the owners' parts,
 * which nobody writes during a step; what other ranks own comes by broadcasts in a group of their
 * own. Lists have units in one order, the same on all ranks, so the next unit is in flight while
 * this one is computed with: two lie on the host of each process at a time. Gradients of a unit are
 * summed in the tree over batch slices, and only its owners get the sum, so that its place is free
 * for another unit.
 *
 * Norm and clipping: each replica measures its own blocks; the pairs of all are joined in the order
 * of one table, so their sum has the same bits as without ZeRO.
 *
 * Cost of a step, for G bytes of parameters on R ranks: each sends and receives G (R - 1) / R of
 * parameters forward, the same backward if they are freed in between, the same of gradients, and a
 * 128th of G for pairs. Memory: see dt_trainer_desc.parallel.zero_stage. */

static bool dti_units_are(const dti_parallel *par) {
    return par->sharded && par->desc.level >= DT_SHARD_GRADIENTS;
}

/* The host's side of what a replica keeps of parameters. */
static float *dti_units_params(const dti_replica *r) {
    const dt_store *s = r->store;
    if (s->host)
        return s->host->backend->memory_host(s->own[0]);
    return r->mirror ? r->mirror : s->device->backend->memory_host(s->units[0]);
}

static float *dti_units_gradients(const dti_replica *r) {
    const dt_store *s = r->store;
    return s->host ? s->host->backend->memory_host(s->own[1]) : r->gradients;
}

/* The same of its own part of parameters (0) or gradients (1), at an element. */
static float *dti_units_own(const dti_parallel *par, uint32_t replica, int gradients,
                            uint64_t element) {
    const dti_replica *r = &par->replicas[replica];
    return (gradients ? dti_units_gradients(r) : dti_units_params(r)) +
           (element - r->store->layout.own_begin);
}

static const dti_code *dti_units_code(const dti_replica *r) {
    return dti_program_code(dti_parallel_last(r));
}

/* What this process's replicas own of a range, to or from host memory in which it begins. */
static void dti_units_move(const dti_parallel *par, dti_bucket range, float *host, int gradients,
                           bool out) {
    for (uint32_t r = 0; r < par->job.local; r++) {
        const dti_bucket part =
            dti_bucket_overlap(range, dti_owners_range(par, par->job.first + r));
        const size_t bytes = dti_bucket_elements(part) * sizeof(float);
        if (!bytes)
            continue;
        float *own = dti_units_own(par, r, gradients, part.begin);
        float *at = host + (part.begin - range.begin);
        memcpy(out ? at : own, out ? own : at, bytes);
    }
}

/* ---- gradients: from where a bucket was summed to its owners */

static float *dti_units_window(const dti_parallel *par, uint32_t r, uint32_t b, uint32_t slot) {
    const dti_replica *replica = &par->replicas[r];
    const dti_code *code = dti_units_code(replica);
    return replica->gradients + code->unit_gradient[b] + slot * code->unit_stride;
}

static dti_sums_operands dti_unit_operands(const dti_parallel *par, uint32_t b, uint32_t r) {
    return (dti_sums_operands){dti_units_window(par, r, b, 0),
                               dti_units_code(&par->replicas[r])->unit_stride,
                               &par->replicas[r].subtrees};
}

/* Elements [at, at + n) of a bucket's sum, to those here that own some. */
static void dti_unit_spread(const dti_parallel *par, uint32_t b, uint64_t at, uint64_t n) {
    const uint64_t begin = par->buckets[b].begin + at;
    dti_units_move(par, (dti_bucket){begin, begin + n}, par->sums.list[b].total + at, 1, false);
}

/* To each rank that owns some of it. Subtrees lie one behind the other as a whole, so where there
 * are several the bucket goes to all. */
static dt_result dti_unit_post(dti_parallel *par, uint32_t b) {
    const dti_bucket bucket = par->buckets[b];
    dti_sum *s = &par->sums.list[b];
    dt_result result = DT_OK;
    if (par->units.whole)
        return dti_sum_post_range(s, (dti_bucket){0, s->elements}, -1);
    for (uint32_t rank = 0; rank < par->mesh.world && !result; rank++) {
        const dti_bucket own = dti_bucket_overlap(bucket, dti_owners_rank(par, rank));
        const dti_bucket range = {own.begin - bucket.begin, own.end - bucket.begin};
        if (dti_bucket_elements(range))
            result = dti_sum_post_range(s, range, (int)rank);
    }
    return result;
}

static const dti_sum_kind dti_unit_kind = {
    .operands = dti_unit_operands, .spread = dti_unit_spread, .post = dti_unit_post, .early = true};

/* ---- parameters of other ranks */

static float *dti_units_staged(const dti_parallel *par, uint32_t number) {
    return par->units.staging + number % DTI_UNITS_STAGED * par->units.largest;
}

/* Each rank's part of a unit, to all. */
static dt_result dti_units_send(dti_parallel *par, dti_bucket range, float *host, dti_works *w) {
    dt_result result = DT_OK;
    w->count = w->ended = 0;
    dti_units_move(par, range, host, 0, true);
    for (uint32_t rank = 0; rank < par->mesh.world && !result; rank++) {
        const dti_bucket part = dti_bucket_overlap(range, dti_owners_rank(par, rank));
        float *at = host + (part.begin - range.begin);
        const dt_comm_op op = {.kind = DT_COMM_BROADCAST,
                               .in = at,
                               .out = at,
                               .count = dti_bucket_elements(part),
                               .dtype = DT_F32,
                               .root = (int)rank};
        if (op.count)
            result = dti_works_post(par->units.comm, w, &op);
    }
    return result;
}

/* The next one that comes from other ranks: all replicas have it in their lists. NULL: none is
 * left, or it has no place yet. */
static const dti_action *dti_units_next(dti_parallel *par) {
    dti_units *u = &par->units;
    const dti_list *list = &par->replicas[0].runs->list;
    while (u->at < list->count && list->actions[u->at].kind < DTI_ACTION_GATHER)
        u->at++;
    const uint32_t slot = u->posted % DTI_UNITS_STAGED, before = u->posted / DTI_UNITS_STAGED;
    return u->at < list->count &&
                   atomic_load(&par->counters[DTI_UNITS_TAKEN + slot]) >= before * par->job.local
               ? &list->actions[u->at]
               : NULL;
}

/* On the first replica's thread: posts as far as there is room, and looks what has come. */
static dt_result dti_units_stream(dti_parallel *par) {
    dti_units *u = &par->units;
    _Atomic uint32_t *arrived = &par->counters[DTI_UNITS_ARRIVED];
    dt_result result = DT_OK;
    bool ended = true;
    for (const dti_action *a; u->comm && !result && (a = dti_units_next(par)) != NULL;) {
        result = dti_units_send(par, par->buckets[a->what], dti_units_staged(par, u->posted),
                                &u->sends[u->posted % DTI_UNITS_STAGED]);
        u->posted += !result;
        u->at += !result;
    }
    while (u->comm && !result && ended && atomic_load(arrived) < u->posted) {
        const uint32_t next = atomic_load(arrived);
        result = dti_works_end(u->comm, &u->sends[next % DTI_UNITS_STAGED], false, &ended);
        atomic_store(arrived, next + (!result && ended));
    }
    return dti_parallel_comm_failed(par, result);
}

/* ---- what a replica gathers */

static dt_result dti_units_write(const dti_replica *r, uint64_t at, const float *from, uint64_t n) {
    const dt_store *s = r->store;
    return s->device->backend->memory_write(s->units[0], dti_arena_bytes(at), from,
                                            dti_arena_bytes(n));
}

/* From the owners, which are all of this process. */
static dt_result dti_units_copy(dti_parallel *par, uint32_t index, dti_bucket range, uint64_t to) {
    dt_result result = DT_OK;
    for (uint32_t r = 0; r < par->job.local && !result; r++) {
        const dti_bucket part =
            dti_bucket_overlap(range, dti_owners_range(par, par->job.first + r));
        if (part.begin < part.end)
            result =
                dti_units_write(&par->replicas[index], to + (part.begin - range.begin),
                                dti_units_own(par, r, 0, part.begin), dti_bucket_elements(part));
    }
    return result;
}

static dt_result dti_unit_gather(dti_parallel *par, uint32_t index, const dti_action *a) {
    const dti_replica *r = &par->replicas[index];
    const dti_bucket range = par->buckets[a->what];
    const uint64_t to = dti_program_code(dti_list_micro_of(r, a)->program)->unit_param[a->what];
    return par->units.comm
               ? dti_units_write(r, to, dti_units_staged(par, a->met), dti_bucket_elements(range))
               : dti_units_copy(par, index, range, to);
}

static void dti_units_prepare(dti_parallel *par) {
    dti_units *u = &par->units;
    dti_replicas_prepare(par);
    memset(u->pairs, 0, u->pair_count * sizeof *u->pairs);
    u->posted = u->at = 0;
}

/* ---- norm */

static void dti_units_measure(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    dti_replica *r = &par->replicas[index];
    dt_program *p = dti_parallel_last(r);
    const dti_code *code = dti_program_code(p);
    dti_statistics_put(par, r);
    if (!r->runs->count)
        dti_program_begin_commit(p, &par->now->desc);
    r->result = dti_program_measure(p);
    if (r->result)
        return;
    const float *pairs = dti_micro_slot_pairs(p);
    float *all = par->units.pairs;
    memcpy(all + 2 * (size_t)code->pair_first, pairs, 2 * sizeof *all * code->own_entries);
    if (par->job.first + index == 0) /* buffers, which all have alike */
        memcpy(all + 2 * (size_t)(code->table_entries - code->buffer_entries),
               pairs + 2 * (size_t)code->own_entries, 2 * sizeof *all * code->buffer_entries);
}

static void dti_units_validate(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    dti_replica *r = &par->replicas[index];
    dt_program *p = dti_parallel_last(r);
    memcpy(dti_micro_slot_pairs_of_all(p), par->units.pairs, par->units.pair_count * sizeof(float));
    dti_replica_validated(par, r, p);
}

/* Of all ranks, each of which has its own and else zeros. */
static dt_result dti_units_pairs(dti_parallel *par) {
    return dti_sum_disjoint(par, par->desc.comm, par->units.pairs, par->units.pair_count, DT_F32);
}

static const dti_strategy dti_units_strategy = {
    DTI_REPLICAS_STEP,         .others_wait = true,      .prepare = dti_units_prepare,
    .norm = dti_units_measure, .pairs = dti_units_pairs, .validate = dti_units_validate};
