/* Gradients of replicas, bucket by bucket. They are summed over this process's replicas, then over
 * all processes, and come back to each replica. */

static bool dti_any_failed(const dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++) {
        if (atomic_load(&par->replicas[i].failed))
            return true;
    }
    return false;
}

/* ---- the operands of a bucket's sum */

static dti_sums_operands dti_bucket_operands(const dti_parallel *par, uint32_t b,
                                             uint32_t replica) {
    const dti_replica *r = &par->replicas[replica];
    return (dti_sums_operands){r->gradients + par->buckets[b].begin, par->elements, &r->subtrees};
}

/* Every replica gets a slice while it is in the cache. It replaces the replica's own part, which
 * nobody reads again. */
static void dti_bucket_spread(const dti_parallel *par, uint32_t b, uint64_t at, uint64_t n) {
    const float *sum = par->sums.list[b].total + at;
    for (uint32_t r = 1; r < par->job.local; r++)
        memcpy(par->replicas[r].gradients + par->buckets[b].begin + at, sum, n * sizeof *sum);
}

static const dti_sum_kind dti_bucket_kind = {.operands = dti_bucket_operands,
                                             .spread = dti_bucket_spread};

static dt_result dti_bucket_sums_make(dti_parallel *par) {
    const bool units = dti_units_are(par);
    const dti_sum_kind *own = units ? &dti_unit_kind : dti_round_sums(par);
    const dti_sum_kind *kind = own ? own : &dti_bucket_kind;
    dt_result result =
        dti_sums_make(par, kind, par->bucket_count, units ? DTI_UNITS_STAGED : par->bucket_count,
                      units ? par->mesh.world : 1);
    uint64_t before = 0;
    for (uint32_t b = 0; b < par->bucket_count && !result; b++) {
        const uint64_t n = dti_bucket_elements(par->buckets[b]);
        const uint64_t at = units ? b % DTI_UNITS_STAGED * par->units.largest : before;
        dti_sum *s = &par->sums.list[b];
        s->elements = n;
        s->parts = par->job.local;
        s->subtrees = par->subtrees;
        s->partial = par->partial ? par->partial + at * par->subtrees.count : NULL;
        s->rounded = par->rounded ? par->rounded + at : NULL;
        s->comm = par->desc.comm;
        /* it is where it must be, or moves when it has come from the network */
        if (kind->operands && (s->parts > 1 || s->partial || s->rounded || (units && !s->comm)))
            s->slices = (uint32_t)((n + DTI_SLICE - 1) / DTI_SLICE);
        before += n;
    }
    return result;
}

/* ---- in a step */

static void dti_exchange_begin(dti_parallel *par) {
    dti_sums_begin(par);
    for (uint32_t b = 0; b < par->bucket_count; b++)
        par->sums.list[b].total = dti_units_are(par)
                                      ? dti_unit_window(&par->units.parts[0], b)
                                      : par->replicas[0].gradients + par->buckets[b].begin;
}

static bool dti_exchange_help(dti_parallel *par, uint32_t replica, bool last) {
    if (!last && par->desc.parallel.no_overlap && !dti_units_are(par))
        return false;
    const bool all = dti_sums_fold(par);
    dti_sums_advance(par);
    if (replica || par->sums.error)
        return all;
    par->sums.error = dti_parallel_comm_failed(par, dti_units_stream(par, &par->units, UINT32_MAX));
    if (!par->sums.error)
        par->sums.error = dti_sums_speak(par);
    if (par->sums.error) /* it ends all waiting */
        atomic_store(&par->replicas[0].failed, true);
    return all;
}
