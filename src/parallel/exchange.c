/* The exchange of gradients: from the replicas of this process to one sum, from the processes to
 * the sum of all, and back. A bucket is folded in slices by whichever thread is idle, each element
 * in the fixed order of the tree, so the bits do not depend on who does it. Between processes a
 * bucket is one operation of dt_comm in tree mode; buckets are posted strictly in order. */

#define DTI_SLICE 16384 /* elements: 64 KiB of each replica */

static dt_result dti_parallel_comm_failed(dti_parallel *par, dt_result result) {
    if (!result)
        return DT_OK;
    result = dti_comm_cause(par->desc.comm, result, par->lost);
    par->lost = true;
    if (!par->replicas || !par->replicas[0].store) /* in the middle of dt_trainer_create */
        return dti_fail(par->base, result, "%s", dt_comm_error(par->desc.comm));
    return dti_fail(par->base, result, "%s; %s of step %llu", dt_comm_error(par->desc.comm),
                    dti_units_are(par)
                        ? "other ranks' shards of the parameters are lost; those here are"
                        : "the weights are those",
                    (unsigned long long)par->replicas[0].store->steps);
}

/* Where a replica has a bucket of one of its subtrees. */
static float *dti_exchange_slot(const dti_parallel *par, uint32_t replica, uint32_t b,
                                uint32_t slot) {
    if (dti_units_are(par))
        return dti_units_window(par, replica, b, slot);
    return par->replicas[replica].gradients + slot * par->elements + par->buckets[b].begin;
}

/* Where subtree k of bucket b is summed for this process. */
static float *dti_exchange_target(const dti_parallel *par, uint32_t b, uint32_t k) {
    const dti_bucket *bucket = &par->buckets[b];
    if (!par->partial)
        return dti_exchange_slot(par, 0, b, 0);
    uint64_t before = 0;
    if (dti_units_are(par))
        return par->partial + b % DTI_UNITS_STAGED * par->units.largest * par->subtrees.count +
               k * dti_bucket_elements(*bucket);
    for (uint32_t i = 0; i < b; i++)
        before += dti_bucket_elements(par->buckets[i]);
    return par->partial + before * par->subtrees.count + k * dti_bucket_elements(*bucket);
}

/* The replicas' subtrees within this process's subtree k, `at` elements into the bucket. */
static uint32_t dti_exchange_operands(const dti_parallel *par, uint32_t b, uint32_t k, uint64_t at,
                                      dti_operand *operands) {
    const dt_comm_span span = par->subtrees.at[k];
    uint32_t count = 0;
    for (uint32_t r = 0; r < par->job.local; r++) {
        const dti_replica *replica = &par->replicas[r];
        for (uint32_t i = 0; i < replica->subtrees.count; i++) {
            const dt_comm_span own = replica->subtrees.at[i];
            if (own.first < span.first || own.first >= span.first + span.count)
                continue;
            operands[count++] = (dti_operand){dti_exchange_slot(par, r, b, i) + at, DT_F32, own};
        }
    }
    return count;
}

/* Without other processes a slice is final once it is folded: every replica gets it while it is in
 * the cache, in place of its own part, which nobody reads again. */
static void dti_exchange_spread(const dti_parallel *par, const float *sum, uint64_t at,
                                uint64_t n) {
    for (uint32_t r = 1; r < par->job.local; r++)
        memcpy(par->replicas[r].gradients + at, sum, n * sizeof *sum);
}

static void dti_exchange_slice(dti_parallel *par, uint32_t b, uint32_t slice) {
    const dti_bucket *bucket = &par->buckets[b];
    const uint64_t from = (uint64_t)slice * DTI_SLICE;
    const uint64_t n = DTI_MIN(dti_bucket_elements(*bucket) - from, (uint64_t)DTI_SLICE);
    dti_operand operands[DTI_OPERANDS_MAX];
    for (uint32_t k = 0; k < par->subtrees.count; k++) {
        uint32_t count = dti_exchange_operands(par, b, k, from, operands);
        float *to = dti_exchange_target(par, b, k) + from;
        if (count > 1 || operands[0].data != to)
            dti_fold(to, operands, count, n, DT_F32, DT_COMM_SUM, !par->desc.comm, 1);
    }
    if (!par->desc.comm && dti_units_are(par))
        dti_units_take_slice(par, dti_exchange_target(par, b, 0) + from, bucket->begin + from, n);
    else if (!par->desc.comm)
        dti_exchange_spread(par, dti_exchange_target(par, b, 0) + from, bucket->begin + from, n);
    atomic_fetch_add(&par->states[b].done, 1);
}

static bool dti_any_failed(const dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++) {
        if (atomic_load(&par->replicas[i].failed))
            return true;
    }
    return false;
}

static void dti_exchange_begin(dti_parallel *par) {
    par->posted = par->received = 0;
    par->posting = DT_OK;
    for (uint32_t b = 0; b < par->bucket_count; b++) {
        dti_bucket_state *s = &par->states[b];
        const uint64_t n = dti_bucket_elements(par->buckets[b]);
        /* it is where it must be, or moves when it has come from the network */
        const bool alone =
            par->job.local == 1 && !par->partial && (par->desc.comm || !dti_units_are(par));
        s->slices = alone ? 0 : (uint32_t)((n + DTI_SLICE - 1) / DTI_SLICE);
        atomic_store(&s->arrived, 0);
        atomic_store(&s->next, 0);
        atomic_store(&s->done, 0);
    }
}

static void dti_exchange_arrive(dti_parallel *par, uint32_t from, uint32_t to) {
    for (uint32_t b = from; b < to; b++)
        atomic_fetch_add(&par->states[b].arrived, 1);
}

static bool dti_bucket_folded(const dti_parallel *par, uint32_t b) {
    const dti_bucket_state *s = &par->states[b];
    return atomic_load(&s->arrived) == par->job.local && atomic_load(&s->done) == s->slices;
}

/* In the order of buckets, so that the network gets the first one first. True: all are folded. */
static bool dti_exchange_fold(dti_parallel *par) {
    bool all = true;
    for (uint32_t b = 0; b < par->bucket_count; b++) {
        dti_bucket_state *s = &par->states[b];
        if (atomic_load(&s->arrived) < par->job.local || !dti_units_may_fold(par, b))
            return false;
        /* looked at before it is raised: who waits comes by very often */
        for (uint32_t i;
             atomic_load(&s->next) < s->slices && (i = atomic_fetch_add(&s->next, 1)) < s->slices;)
            dti_exchange_slice(par, b, i);
        all = all && atomic_load(&s->done) == s->slices;
    }
    return all;
}

static dt_result dti_exchange_post(dti_parallel *par, uint32_t b) {
    const dti_bucket *bucket = &par->buckets[b];
    const dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE,
                           .in = dti_exchange_target(par, b, 0),
                           .out = par->replicas[0].gradients + bucket->begin,
                           .count = bucket->end - bucket->begin,
                           .dtype = DT_F32,
                           .tree = true};
    return dti_parallel_comm_failed(par, dt_comm_begin(par->desc.comm, &op, &par->states[b].work));
}

static dt_result dti_exchange_post_ready(dti_parallel *par) {
    dt_result result = DT_OK;
    while (par->desc.comm && !result && par->posted < par->bucket_count &&
           dti_bucket_folded(par, par->posted)) {
        result = dti_exchange_post(par, par->posted);
        par->posted += !result;
    }
    return result;
}

static bool dti_exchange_help(dti_parallel *par, uint32_t replica, bool last) {
    if (dti_units_are(par))
        return dti_units_help(par, replica);
    bool all = dti_exchange_fold(par);
    if (replica == 0 && !par->posting && (last || !par->desc.no_overlap))
        par->posting = dti_exchange_post_ready(par);
    return all;
}

/* Waits for what is posted; the first one's error. */
static dt_result dti_exchange_drain(dti_parallel *par) {
    dt_result result = DT_OK;
    for (; par->received < par->posted; par->received++) {
        const dt_comm_work work = par->states[par->received].work;
        dt_result one = dt_comm_wait(par->desc.comm, work, -1);
        if (!result)
            result = dti_parallel_comm_failed(par, one);
    }
    return result;
}

/* A bucket that could not be posted, because the group had ended, is less to say than why one
 * before it failed. */
static dt_result dti_exchange_finish(dti_parallel *par) {
    if (dti_units_are(par))
        return dti_units_finish(par);
    if (!par->posting)
        par->posting = dti_exchange_post_ready(par);
    dt_result result = dti_exchange_drain(par);
    return result ? result : par->posting;
}

/* ---- a few doubles */

/* The tree over `count` leaves, in place: the sum is where the first was. */
static void dti_scalar_tree(double *leaves, uint32_t count, uint32_t width) {
    if (count < 2)
        return;
    const uint32_t left = dti_tree_split(count);
    double *right = leaves + (size_t)left * width;
    dti_scalar_tree(leaves, left, width);
    dti_scalar_tree(right, count - left, width);
    for (uint32_t i = 0; i < width; i++)
        leaves[i] += right[i];
}

static dt_result dti_scalar_sum_begin(dti_parallel *par, dti_scalar_sum *s) {
    const bool alone = !par->desc.comm;
    for (uint32_t k = 0; k < par->subtrees.count; k++) {
        const dt_comm_span span = par->subtrees.at[k];
        double *to = alone ? s->sum : s->spans + (size_t)k * s->width;
        double *leaves = s->leaves + (size_t)(span.first - par->first_batch_slice) * s->width;
        dti_scalar_tree(leaves, span.count, s->width);
        memcpy(to, leaves, s->width * sizeof *to);
    }
    if (alone)
        return DT_OK;
    const dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE,
                           .in = s->spans,
                           .out = s->sum,
                           .count = s->width,
                           .dtype = DT_F64,
                           .tree = true};
    return dti_parallel_comm_failed(par, dt_comm_begin(par->desc.comm, &op, &s->work));
}

static dt_result dti_scalar_sum_end(dti_parallel *par, dti_scalar_sum *s) {
    if (!par->desc.comm)
        return DT_OK;
    return dti_parallel_comm_failed(par, dt_comm_wait(par->desc.comm, s->work, -1));
}
