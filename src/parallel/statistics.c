/* Batch norm's running statistics, and buffers that follow weights, of which all pieces have the
 * same. Each piece has (n, mean, variance) of a channel; those of the
 * whole job are joined in the tree over pieces (Chan, Golub and LeVeque, 1979), and the buffers
 * move once a step, at the commit. DDP keeps what rank 0 saw; this is what all have seen. In
 * double, on the host: a few thousand values. */

static float *dti_statistics_row(const dti_parallel *par, uint32_t piece) {
    return par->stat_pieces + (size_t)piece * par->stat_width;
}

static void dti_statistics_take(dti_parallel *par, const dti_micro_run *run) {
    const dt_program *p = run->program;
    const dti_code *code = dti_program_code(p);
    for (uint32_t i = 0; i < par->stat_count; i++) {
        for (uint32_t k = 0; k < run->piece_count; k++) {
            if (!run->pieces[k].rows)
                continue;
            const float *from = dti_program_stat(p, &code->stats[i], k);
            float *to = dti_statistics_row(par, run->first_piece + k) + par->stat_at[i];
            for (uint32_t c = 0; c < 2 * code->stats[i].channels; c++)
                to[c] = from[c] + 0.0f; /* no -0: others add zeros to it */
        }
    }
}

static dt_result dti_statistics_begin(dti_parallel *par) {
    const uint32_t parts = par->job.parts, pieces = par->job.shards * parts;
    if (!par->stat_width || !par->desc.comm)
        return DT_OK;
    const size_t row = par->stat_width * sizeof(float);
    const uint32_t end = par->first_shard + par->shards;
    memset(par->stat_pieces, 0, par->first_shard * parts * row);
    memset(dti_statistics_row(par, end * parts), 0, (pieces - end * parts) * row);
    const dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE,
                           .in = par->stat_pieces,
                           .out = par->stat_pieces,
                           .count = (uint64_t)pieces * par->stat_width,
                           .dtype = DT_F32};
    return dti_parallel_comm_failed(par, dt_comm_begin(par->desc.comm, &op, &par->stat_work));
}

typedef struct dti_welford {
    double n, mean, m2;
} dti_welford;

static dti_welford dti_welford_join(dti_welford a, dti_welford b) {
    if (a.n == 0.0 || b.n == 0.0)
        return a.n == 0.0 ? b : a;
    const double n = a.n + b.n, delta = b.mean - a.mean, share = delta * b.n / n;
    const double more = delta * (a.n * share);
    return (dti_welford){n, a.mean + share, a.m2 + b.m2 + more};
}

static dti_welford dti_welford_tree(const dti_parallel *par, uint32_t stat, uint32_t channel,
                                    uint32_t first, uint32_t count) {
    if (count > 1) {
        const uint32_t left = dti_tree_split(count);
        return dti_welford_join(dti_welford_tree(par, stat, channel, first, left),
                                dti_welford_tree(par, stat, channel, first + left, count - left));
    }
    const float *pair = dti_statistics_row(par, first) + par->stat_at[stat] + 2 * channel;
    const double n =
        (double)dti_partition_piece(&par->job, first, par->rows) * par->stats[stat].spatial;
    if (n == 0.0)
        return (dti_welford){0};
    return (dti_welford){n, (double)pair[0], (double)pair[1] * n};
}

static dt_result dti_statistics_end(dti_parallel *par) {
    const uint32_t pieces = par->job.shards * par->job.parts;
    float *value = par->buffers;
    if (par->stat_width && par->desc.comm) {
        dt_result result =
            dti_parallel_comm_failed(par, dt_comm_wait(par->desc.comm, par->stat_work, -1));
        if (result)
            return result;
    }
    for (uint32_t i = 0; i < par->stat_count; i++) {
        const dti_stat *s = &par->stats[i];
        for (uint32_t c = 0; c < s->channels; c++, value++) {
            const dti_welford all = dti_welford_tree(par, i, c, 0, pieces);
            double now = s->variance ? all.m2 / DTI_MAX(all.n - 1.0, 1.0) : all.mean;
            double moved = (double)s->momentum * (now - (double)*value);
            DTI_FENCE(moved);
            *value = s->momentum == 1.0f ? (float)now : (float)((double)*value + moved);
        }
    }
    return DT_OK;
}

static dt_result dti_statistics_load(dti_parallel *par) {
    float *value = par->buffers;
    dt_store *store = par->replicas[0].store;
    for (uint32_t i = 0; i < par->stat_count; i++) {
        const size_t bytes = par->stats[i].channels * sizeof *value;
        dt_result result =
            dt_store_read(store, (int)par->stats[i].param, DT_VALUE_PARAM, value, bytes);
        if (result)
            return result;
        value += par->stats[i].channels;
    }
    return DT_OK;
}

/* The commit takes a buffer's new value from where its gradient would lie. */
static void dti_statistics_put(dti_parallel *par, dti_replica *replica) {
    const float *value = par->buffers;
    for (uint32_t i = 0; i < par->stat_count; i++) {
        const dti_stat *s = &par->stats[i];
        memcpy(replica->gradients + replica->store->layout.params[s->param].offset, value,
               s->channels * sizeof *value);
        value += s->channels;
    }
}
