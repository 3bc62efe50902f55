/* ZeRO-2 and 3: each replica has a part of gradients, and of parameters (lower/units.c has the
 * code's side). A unit is a bucket. Lists of actions say when a replica gathers a unit's parameters
 * to where its code has them (step/actions.c). Within a process they come from the owners' parts,
 * which nobody writes during a step. Other ranks broadcast what they own, in a group of their own.
 * Lists have units in one order, the same on all ranks. So the next unit is in flight while one
 * computes. Two lie on the host of each process at a time. Gradients of a unit are summed in the
 * tree over batch slices. Only its owners get the sum, so its place is free for another unit.
 *
 * Norm and clipping: each replica measures its own blocks. The pairs of all are joined in the order
 * of one table. So the norm has the same bits as without ZeRO.
 *
 * Cost of a step, for G bytes of parameters on R ranks. Each sends and receives G (R - 1) / R of
 * parameters forward. It is the same backward if they are freed in between, and the same of
 * gradients. Pairs are a 128th of G. Memory: see dt_trainer_desc.parallel.zero_stage. */

static bool dti_units_are(const dti_parallel *par) {
    return dti_is_sharded(par) && par->desc.parallel.zero_stage >= DT_SHARD_GRADIENTS;
}

/* Copies the ranges that parts here own, to or from host memory, where the range begins. */
static void dti_units_move(const dti_units *u, dti_bucket range, float *host, bool gradients,
                           bool out) {
    for (uint32_t i = 0; i < u->part_count; i++) {
        const dti_bucket own = dti_values_own(u->parts[i].store),
                         part = dti_bucket_overlap(range, own);
        float *has = gradients ? u->parts[i].gradients : u->parts[i].params;
        float *at = host + (part.begin - range.begin);
        if (part.begin == part.end)
            continue;
        has += part.begin - own.begin;
        memcpy(out ? at : has, out ? has : at, dti_bucket_elements(part) * sizeof *at);
    }
}

/* ---- gradients: from where a bucket was summed to its owners */

static float *dti_unit_window(const dti_unit_part *p, uint32_t b) {
    return p->windows + p->code->unit_gradient[b];
}

static dti_sums_operands dti_unit_operands(const dti_parallel *par, uint32_t b, uint32_t part) {
    const dti_unit_part *p = &par->units.parts[part];
    return (dti_sums_operands){dti_unit_window(p, b), p->code->unit_stride, p->subtrees};
}

/* Elements [at, at + n) of a bucket's sum, to those here that own some. */
static void dti_unit_spread(const dti_parallel *par, uint32_t b, uint64_t at, uint64_t n) {
    const uint64_t begin = par->buckets[b].begin + at;
    dti_units_move(&par->units, (dti_bucket){begin, begin + n}, par->sums.list[b].total + at, true,
                   false);
}

/* To each rank that owns some of it. A bucket's subtrees lie one after the other, so if there are
 * several the bucket goes to all ranks. */
static dt_result dti_unit_post(dti_parallel *par, uint32_t b) {
    const dti_units *u = &par->units;
    dti_sum *s = &par->sums.list[b];
    dt_result result = DT_OK;
    if (u->whole)
        return dti_sum_post_range(s, (dti_bucket){0, s->elements}, -1);
    dti_values_owner own = {.root = -1};
    while (!result && dti_values_next_owner(&par->mesh, &u->shared, u->buckets[b], &own))
        result = dti_sum_post_range(s, own.piece, own.root);
    return result;
}

static const dti_sum_kind dti_unit_kind = {
    .operands = dti_unit_operands, .spread = dti_unit_spread, .post = dti_unit_post, .early = true};

/* ---- parameters of other ranks */

static float *dti_units_staged(const dti_units *u, uint32_t number) {
    return u->staging + number % DTI_UNITS_STAGED * u->largest;
}

/* Each rank's part of a unit, to all. */
static dt_result dti_units_send(const dti_parallel *par, dti_units *u, uint32_t unit) {
    float *host = dti_units_staged(u, u->posted);
    dti_works *w = &u->sends[u->posted % DTI_UNITS_STAGED];
    w->count = w->ended = 0;
    dti_units_move(u, u->buckets[unit], host, false, true);
    return dti_values_post_range(&par->mesh, u->comm, w, &u->shared, u->buckets[unit], host);
}

/* The next one that comes from other ranks: all replicas have it in their lists. NULL: none is
 * left, or it has no place yet. */
static const dti_action *dti_units_next(const dti_parallel *par, dti_units *u) {
    const dti_list *list = u->list;
    while (u->at < list->count &&
           (list->actions[u->at].kind < DTI_ACTION_GATHER || list->actions[u->at].part != u->part))
        u->at++;
    const uint32_t slot = u->posted % DTI_UNITS_STAGED, before = u->posted / DTI_UNITS_STAGED;
    const uint32_t taken = atomic_load(&par->counters[u->counters + DTI_UNITS_TAKEN + slot]);
    return u->at < list->count && taken >= before * u->part_count ? &list->actions[u->at] : NULL;
}

/* Posts as far as there is room, and checks for received ones. */
static dt_result dti_units_stream(const dti_parallel *par, dti_units *u, uint32_t most) {
    _Atomic uint32_t *arrived = &par->counters[u->counters + DTI_UNITS_ARRIVED];
    dt_result result = DT_OK;
    bool ended = true;
    for (const dti_action *a;
         u->comm && !result && most > 0 && (a = dti_units_next(par, u)) != NULL; most--) {
        result = dti_units_send(par, u, a->what);
        u->posted += !result;
        u->at += !result;
    }
    while (u->comm && !result && ended && atomic_load(arrived) < u->posted) {
        const uint32_t next = atomic_load(arrived);
        result = dti_works_end(u->comm, &u->sends[next % DTI_UNITS_STAGED], false, &ended);
        atomic_store(arrived, next + (!result && ended));
    }
    return result;
}

/* ---- the values that a replica gathers */

static dt_result dti_unit_write(const dti_unit_part *p, uint64_t at, const float *from,
                                uint64_t n) {
    return p->store->device->backend->memory_write(p->store->units[0], dti_arena_bytes(at), from,
                                                   dti_arena_bytes(n));
}

/* From the owners of the part's group, which are all of this process. */
static dt_result dti_unit_copy(const dti_units *u, const dti_unit_part *p, dti_bucket range,
                               uint64_t to) {
    const uint32_t count = u->shared.line.count, first = (uint32_t)(p - u->parts) / count * count;
    for (uint32_t i = first; i < first + count; i++) {
        const dti_bucket own = dti_values_own(u->parts[i].store),
                         part = dti_bucket_overlap(range, own);
        if (part.begin < part.end)
            DTI_TRY(dti_unit_write(p, to + (part.begin - range.begin),
                                   u->parts[i].params + (part.begin - own.begin),
                                   dti_bucket_elements(part)));
    }
    return DT_OK;
}

static dt_result dti_unit_fetch(const dti_units *u, const dti_unit_part *p, const dti_code *code,
                                const dti_action *a) {
    const dti_bucket range = u->buckets[a->what];
    const uint64_t to = code->unit_param[a->what];
    return u->comm ? dti_unit_write(p, to, dti_units_staged(u, a->met), dti_bucket_elements(range))
                   : dti_unit_copy(u, p, range, to);
}

static dt_result dti_unit_gather(dti_parallel *par, uint32_t index, const dti_action *a) {
    const dt_program *run = dti_list_micro_of(&par->replicas[index], a)->program;
    return dti_unit_fetch(&par->units, &par->units.parts[index], dti_program_code(run), a);
}

static void dti_units_rewind(dti_parallel *par) {
    dti_units *u = &par->units;
    u->posted = u->at = 0;
    u->list = &par->replicas[0].runs->list;
    dti_replicas_rewind(par);
}

static void dti_units_prepare(dti_parallel *par) {
    dti_units *u = &par->units;
    memset(u->pairs, 0, u->pair_count * sizeof *u->pairs);
    dti_replicas_runs(par);
    dti_units_rewind(par);
    for (uint32_t i = 0; i < u->part_count; i++)
        u->parts[i].code = dti_program_code(dti_parallel_last(&par->replicas[i]));
    dti_replicas_prepare(par);
}

/* ---- norm */

static dt_result dti_units_measure(dti_parallel *par, uint32_t index) {
    dti_replica *r = &par->replicas[index];
    dt_program *p = dti_parallel_last(r);
    const dti_code *code = dti_program_code(p);
    dti_statistics_put(par, r);
    if (!r->runs->count)
        dti_program_begin_commit(p, &par->now->desc);
    DTI_TRY(dti_program_measure(p));
    if (par->job.first + index >= dti_shards(par))
        return DT_OK; /* the first group has all */
    const float *pairs = dti_micro_slot_pairs(p);
    float *all = par->units.pairs;
    memcpy(all + 2 * (size_t)code->pair_first, pairs, 2 * sizeof *all * code->own_entries);
    if (par->job.first + index == 0) /* buffers, which all have alike */
        memcpy(all + 2 * (size_t)(code->table_entries - code->buffer_entries),
               pairs + 2 * (size_t)code->own_entries, 2 * sizeof *all * code->buffer_entries);
    return DT_OK;
}

static dt_result dti_units_validate(dti_parallel *par, uint32_t index) {
    dti_replica *r = &par->replicas[index];
    dt_program *p = dti_parallel_last(r);
    memcpy(dti_micro_slot_pairs_of_all(p), par->units.pairs, par->units.pair_count * sizeof(float));
    return dti_replica_validated(par, r, p);
}

/* Sums over all ranks, each with its own values and else zeros. */
static dt_result dti_units_pairs(dti_parallel *par) {
    return dti_ranks_reduce(par, par->desc.comm, par->units.pairs, par->units.pair_count, DT_F32,
                            DT_COMM_SUM);
}

static const dti_strategy dti_units_strategy = {
    DTI_REPLICAS_STEP,         .others_wait = true,      .prepare = dti_units_prepare,
    .norm = dti_units_measure, .pairs = dti_units_pairs, .validate = dti_units_validate};
