/* DT_BALANCE_MEASURED: each replica's share of the batch follows its speed. After a few steps, and
 * after each epoch, ranks exchange the time of a sample on each replica. If other shares would make
 * a step a tenth shorter, batch slices get other rows, and programs for them. This is the only code
 * that allocates between two steps. */

#define DTI_BALANCE_WARM 3    /* steps that are not looked at: caches, clocks, drivers */
#define DTI_BALANCE_STEPS 8   /* and that are, before the first change */
#define DTI_BALANCE_GAIN 0.10 /* of a step's time */

static void dti_balance_add(dt_trainer *t) {
    const uint64_t step = t->par.replicas[0].store->steps;
    if (t->desc.parallel.balance != DT_BALANCE_MEASURED || step <= DTI_BALANCE_WARM)
        return;
    for (uint32_t i = 0; i < t->par.job.local; i++) {
        dti_replica *r = &t->par.replicas[i];
        for (uint32_t k = 0; k < r->runs->count; k++)
            r->timed_rows += r->runs->runs[k].rows;
        r->timed_ns += r->busy_ns;
    }
    t->timed++;
}

/* Seconds a sample of every replica of the job, in order. */
static dt_result dti_balance_gather(dt_trainer *t) {
    dti_parallel *par = &t->par;
    memset(t->speeds, 0, par->job.replicas * sizeof *t->speeds);
    for (uint32_t i = 0; i < par->job.local; i++) {
        dti_replica *r = &par->replicas[i];
        t->speeds[par->job.first + i] =
            (double)r->timed_ns / (double)DTI_MAX(r->timed_rows, (uint64_t)1);
        r->timed_ns = r->timed_rows = 0;
    }
    t->timed = 0;
    return dti_ranks_reduce(par, par->desc.comm, t->speeds, par->job.replicas, DT_F64, DT_COMM_SUM);
}

/* The time of a step with these first rows: the slowest replica's. */
static double dti_balance_time(const dt_trainer *t, const uint32_t *bounds) {
    double worst = 0.0;
    for (uint32_t i = 0; i < t->par.job.replicas; i++)
        worst = DTI_MAX(worst, t->speeds[i] * (double)(bounds[i + 1] - bounds[i]));
    return worst;
}

/* Rows in proportion to speed, at least one each. */
static void dti_balance_bounds(const dt_trainer *t, uint32_t *bounds) {
    const uint32_t n = t->par.job.replicas, batch = t->par.desc.batch;
    double total = 0.0, sum = 0.0;
    for (uint32_t i = 0; i < n; i++)
        total += 1.0 / DTI_MAX(t->speeds[i], 1e-3);
    bounds[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += 1.0 / DTI_MAX(t->speeds[i], 1e-3);
        const uint32_t end = (uint32_t)(sum / total * batch + 0.5);
        bounds[i + 1] = DTI_MIN(DTI_MAX(end, bounds[i] + 1), batch - (n - 1 - i));
    }
    bounds[n] = batch;
}

static dt_result dti_balance_apply(dt_trainer *t, const uint32_t *bounds) {
    const uint32_t n = t->par.job.replicas;
    memcpy(t->bounds, bounds, (n + 1) * sizeof *t->bounds);
    t->bounded = true;
    DTI_TRY(dti_trainer_build(t, n));
    DTI_TRY(dti_agree_result(&t->par,
                             dti_statistics_load(&t->par.statistics, t->par.replicas[0].store)));
    dti_log(t->base, DT_LOG_INFO,
            "balance: the first replica of this process now computes %d of %d samples",
            (int)(t->bounds[t->par.job.first + 1] - t->bounds[t->par.job.first]),
            (int)t->par.desc.batch);
    return dti_agree_result(&t->par, dti_trainer_seek(t));
}

/* Between two steps; all ranks come here after the same one, with the same speeds. */
static dt_result dti_balance_look(dt_trainer *t, bool epoch_ended) {
    const uint32_t n = t->par.job.replicas;
    if (t->desc.parallel.balance != DT_BALANCE_MEASURED || !t->timed ||
        (t->bounded ? !epoch_ended : t->timed < DTI_BALANCE_STEPS))
        return DT_OK;
    DTI_TRY(dti_balance_gather(t));
    uint32_t *next = t->bounds + n + 1, *now = next + n + 1;
    for (uint32_t i = 0, first, end; i < n; i++) {
        dti_partition_batch_slices(&t->par.job, i, &first, &end);
        now[i] = dti_partition_bound(&t->par.job, first);
    }
    now[n] = t->par.desc.batch;
    dti_balance_bounds(t, next);
    if (dti_balance_time(t, next) > (1.0 - DTI_BALANCE_GAIN) * dti_balance_time(t, now))
        return DT_OK;
    return dti_balance_apply(t, next);
}

static dt_result dti_balance_make(dt_trainer *t) {
    if (t->desc.parallel.balance != DT_BALANCE_MEASURED)
        return DT_OK;
    const size_t n = t->par.job.replicas;
    t->speeds = dti_alloc_array(t->base, n, sizeof *t->speeds);
    t->bounds = dti_alloc_array(t->base, 3 * (n + 1), sizeof *t->bounds);
    return t->speeds && t->bounds ? DT_OK : DT_ERROR_MEMORY;
}
