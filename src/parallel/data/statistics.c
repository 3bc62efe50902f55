/* Batch norm's running statistics, and buffers that follow weights. The latter are equal in all
 * batch slices. Each batch slice has (n, mean, variance) of a channel. They are joined in the tree
 * over all batch slices of the job (Chan, Golub and LeVeque, 1979). The buffers change once a step,
 * at the commit. DDP keeps the statistics of rank 0; these cover the whole batch. They are computed
 * in double, on the host: a few thousand values. */

static dt_result dti_statistics_make(dti_base *base, const dti_partition *job, const dti_code *code,
                                     dti_statistics *s) {
    *s = (dti_statistics){.stats = code->stats, .count = code->stat_count};
    s->at = dti_alloc_array(base, s->count + 1u, sizeof *s->at);
    if (!s->at)
        return DT_ERROR_MEMORY;
    for (uint32_t i = 0; i < s->count; i++) {
        uint32_t same = 0;
        while (same < i && s->stats[same].at.word != s->stats[i].at.word)
            same++;
        s->at[i] = same < i ? s->at[same] : s->width;
        s->width += same < i ? 0 : 2 * s->stats[i].channels;
        s->values += s->stats[i].channels;
    }
    const size_t pieces = (size_t)job->batch_slices * job->parts;
    s->pieces = dti_alloc_array(base, pieces * s->width + 1, sizeof(float));
    s->buffers = dti_alloc_array(base, s->values + 1u, sizeof(float));
    return s->pieces && s->buffers ? DT_OK : DT_ERROR_MEMORY;
}

static void dti_statistics_free(dti_base *base, dti_statistics *s) {
    DTI_FREE(base, s->at, s->pieces, s->buffers);
    *s = (dti_statistics){0};
}

static float *dti_statistics_row(const dti_statistics *s, uint32_t piece) {
    return s->pieces + (size_t)piece * s->width;
}

static void dti_statistics_take(dti_statistics *s, const dti_micro_run *run, const dt_program *p) {
    const dti_code *code = dti_program_code(p);
    for (uint32_t i = 0; i < code->stat_count; i++) { /* an evaluation has none */
        for (uint32_t k = 0; k < run->piece_count; k++) {
            if (!run->pieces[k].rows)
                continue;
            const float *from = dti_program_words(p, code->stats[i].at, k);
            float *to = dti_statistics_row(s, run->first_piece + k) + s->at[i];
            for (uint32_t c = 0; c < 2 * code->stats[i].channels; c++)
                to[c] = from[c] + 0.0f; /* no -0: others add zeros to it */
        }
    }
}

typedef struct dti_welford {
    double n, mean, m2;
} dti_welford;

static dti_welford dti_welford_join(dti_welford a, dti_welford b) {
    if (a.n == 0.0 || b.n == 0.0)
        return a.n == 0.0 ? b : a;
    const double n = a.n + b.n, delta = b.mean - a.mean, share = delta * b.n / n;
    double more = delta * (a.n * share);
    DTI_FENCE(more);
    return (dti_welford){n, a.mean + share, a.m2 + b.m2 + more};
}

typedef struct dti_welford_of { /* a channel of a statistic, over a batch */
    const dti_statistics *s;
    const dti_partition *job;
    uint32_t rows, stat, channel;
} dti_welford_of;

static dti_welford dti_welford_tree(const dti_welford_of *of, uint32_t first, uint32_t count) {
    if (count > 1) {
        const uint32_t left = dti_tree_split(count);
        return dti_welford_join(dti_welford_tree(of, first, left),
                                dti_welford_tree(of, first + left, count - left));
    }
    const dti_statistics *s = of->s;
    const float *pair = dti_statistics_row(s, first) + s->at[of->stat] + 2 * of->channel;
    const double n =
        (double)dti_partition_piece(of->job, first, of->rows) * s->stats[of->stat].spatial;
    if (n == 0.0)
        return (dti_welford){0};
    return (dti_welford){n, (double)pair[0], (double)pair[1] * n};
}

/* By the pieces, which are here, of a batch of `rows` rows. */
static void dti_statistics_move(dti_statistics *s, const dti_partition *job, uint32_t rows) {
    const uint32_t pieces = job->batch_slices * job->parts;
    float *value = s->buffers;
    for (uint32_t i = 0; i < s->count; i++) {
        const dti_stat *stat = &s->stats[i];
        for (uint32_t c = 0; c < stat->channels; c++, value++) {
            const dti_welford_of of = {s, job, rows, i, c};
            const dti_welford all = dti_welford_tree(&of, 0, pieces);
            double now = stat->variance ? all.m2 / DTI_MAX(all.n - 1.0, 1.0) : all.mean;
            double moved = (double)stat->momentum * (now - (double)*value);
            DTI_FENCE(moved);
            *value = stat->momentum == 1.0f ? (float)now : (float)((double)*value + moved);
        }
    }
}

static dt_result dti_statistics_sum(dti_parallel *par, dti_statistics *s, dt_comm *comm,
                                    dt_comm_span own) {
    const uint32_t parts = par->job.parts, pieces = par->job.batch_slices * parts;
    const uint32_t first = own.first * parts, end = first + own.count * parts;
    const size_t row = s->width * sizeof(float);
    if (!s->width)
        return DT_OK;
    memset(s->pieces, 0, first * row);
    memset(dti_statistics_row(s, end), 0, (pieces - end) * row);
    const dt_result result =
        dti_ranks_reduce(par, comm, s->pieces, (uint64_t)pieces * s->width, DT_F32, DT_COMM_SUM);
    if (!result)
        dti_statistics_move(s, &par->job, par->now->rows);
    return result;
}

static dt_result dti_statistics_load(dti_statistics *s, dt_store *store) {
    float *value = s->buffers;
    for (uint32_t i = 0; i < s->count; i++) {
        const size_t bytes = s->stats[i].channels * sizeof *value;
        DTI_TRY(dt_store_read(store, (int)s->stats[i].param, DT_VALUE_PARAM, value, bytes));
        value += s->stats[i].channels;
    }
    return DT_OK;
}

/* The commit takes a buffer's new value from where its gradient would lie. */
static void dti_statistics_put(dti_parallel *par, dti_replica *replica) {
    const dti_statistics *s = &par->statistics;
    const float *value = s->buffers;
    float *gradients = dti_units_are(par) ? par->units.parts[replica - par->replicas].gradients
                                          : replica->gradients;
    for (uint32_t i = 0; i < s->count; i++) {
        const dti_param *p = &replica->store->layout.params[s->stats[i].param];
        const uint64_t at = dti_units_are(par) ? p->rest : p->offset;
        memcpy(gradients + at, value, s->stats[i].channels * sizeof *value);
        value += s->stats[i].channels;
    }
}

static dt_result dti_statistics_write(const dti_statistics *s, dt_store *store) {
    dti_memory *units = store->units[1],
               *gradients = units ? units : store->memories[DTI_ARENA_GRADIENT];
    const float *value = s->buffers;
    for (uint32_t i = 0; i < s->count; value += s->stats[i].channels, i++) {
        const dti_param *p = &store->layout.params[s->stats[i].param];
        DTI_TRY(store->device->backend->memory_write(gradients,
                                                     dti_arena_bytes(units ? p->rest : p->offset),
                                                     value, dti_arena_bytes(s->stats[i].channels)));
    }
    return DT_OK;
}

static const char *dti_statistics_fault(const dti_statistics *s, const dt_graph *g) {
    const float *value = s->buffers;
    for (uint32_t i = 0; i < s->count; value += s->stats[i].channels, i++) {
        if (!dti_all_finite(value, DT_F32, s->stats[i].channels))
            return g->nodes[g->params[s->stats[i].param]].label;
    }
    return NULL;
}
