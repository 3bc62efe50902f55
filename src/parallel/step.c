/* A step of the whole job. Every rank makes the same operations in the same order, also when
 * something has gone wrong on one of them: what can fail by itself (a sample's callback, a label
 * out of range, a device) is told with the weights, before any gradient is exchanged. A device that
 * is lost behind that point ends the group, because the others wait for its gradients; one that is
 * lost when all have come, while it judges the update, is told with the losses. */

#define DTI_MARKS 4
enum {
    DTI_WEIGHTS_FAULT = DT_MAX_TERMS, /* ranks that cannot go on, and the sum of their numbers */
    DTI_WEIGHTS_WHO,
    DTI_WEIGHTS_ASKED,
    /* A mark of rates and coefficients in parts: sums over ranks, of each and of its square. */
    DTI_WEIGHTS_MARK,
    DTI_WEIGHTS_SQUARE = DTI_WEIGHTS_MARK + DTI_MARKS,
    DTI_WEIGHTS_WIDTH = DTI_WEIGHTS_SQUARE + DTI_MARKS
};
enum {
    DTI_TERMS_WEIGHT = DT_MAX_TERMS, /* sums of losses, weights, sums of metrics, weights */
    DTI_TERMS_METRIC = 2 * DT_MAX_TERMS,
    DTI_TERMS_METRIC_WEIGHT = 3 * DT_MAX_TERMS,
    DTI_TERMS_FAULT = 4 * DT_MAX_TERMS, /* processes whose judge says no */
    DTI_TERMS_WIDTH
};

static double *dti_scalar_leaf(const dti_parallel *par, const dti_scalar_sum *s, uint32_t shard) {
    return s->leaves + (size_t)(shard - par->first_shard) * s->width;
}

/* ---- inputs */

static dt_result dti_micro_write(dti_parallel *par, dti_replica *r, const dti_micro_run *run) {
    const dti_batch *batch = par->batch;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < par->columns && !result; i++) {
        const size_t size = par->input_bytes[i];
        const char *data = batch->values[i];
        dt_tensor input = {r->graph, par->inputs[i].id};
        const uint32_t at = run->row - batch->first;
        result = dti_program_write_rows(run->program, input, data + at * size, run->rows * size,
                                        batch->sources + at);
    }
    return result;
}

static dt_result dti_micro_open(dti_parallel *par, dti_replica *r, const dti_micro_run *run) {
    dt_step_desc step = par->step;
    step.first_row = run->row;
    step.micro = run->micro;
    step.micros = r->runs->count;
    return dt_program_begin(run->program, &step);
}

/* ---- weights */

static dt_result dti_micro_weigh(dti_replica *r, const dti_micro_run *run) {
    double *weights = r->weights + (run->pieces - r->runs->pieces) * DT_MAX_TERMS;
    memset(weights, 0, (size_t)run->piece_count * DT_MAX_TERMS * sizeof *weights);
    return dti_program_weigh(run->program, weights);
}

/* Piece by piece in their order, whatever runs they are computed in. */
static void dti_parallel_leaf_weights(dti_parallel *par, const dti_replica *r) {
    for (uint32_t k = 0; k < r->runs->piece_count && r->runs->count; k++) {
        double *leaf = dti_scalar_leaf(par, &par->weights, r->runs->pieces[k].leaf);
        for (uint32_t i = 0; i < DT_MAX_TERMS; i++)
            leaf[i] += r->weights[k * DT_MAX_TERMS + i];
    }
}

/* The first run comes last, and its inputs stay where they are. */
static void dti_parallel_weigh(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    dti_replica *r = &par->replicas[index];
    r->result = DT_OK;
    for (uint32_t i = r->runs->count; i-- > 0 && !r->result;) {
        const dti_micro_run *run = &r->runs->runs[i];
        if (i == 0 || dti_program_weighs(run->program) || dti_program_labels(run->program))
            r->result = dti_micro_write(par, r, run);
        if (!r->result)
            r->result = dti_micro_weigh(r, run);
    }
    if (!r->result)
        dti_parallel_leaf_weights(par, r);
}

/* ---- forward: of the first run, while the weights are on their way */

static void dti_parallel_forward(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    dti_replica *r = &par->replicas[index];
    const uint64_t start = dti_now_ns();
    if (!r->runs->count)
        return;
    r->result = dti_micro_open(par, r, &r->runs->runs[0]);
    if (!r->result)
        r->result = dti_micro_start(par, &r->runs->runs[0], index);
    r->busy_ns = dti_now_ns() - start;
    if (!index)
        par->times.forward += r->busy_ns;
}

static void dti_parallel_weigh_forward(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    dti_parallel_weigh(par, index);
    if (!par->replicas[index].result)
        dti_parallel_forward(par, index);
}

/* ---- backward */

static void dti_micro_terms(dti_parallel *par, const dti_micro_run *run) {
    const dt_program *p = run->program;
    const dti_code *code = dti_program_code(p);
    for (uint32_t k = 0; k < run->piece_count; k++) {
        double *leaf = dti_scalar_leaf(par, &par->terms, run->pieces[k].leaf), pair[2];
        for (uint32_t i = 0; i < code->loss_count + code->metric_count; i++) {
            uint32_t at = i < code->loss_count ? i : DTI_TERMS_METRIC + i - code->loss_count;
            dti_program_term(p, i, k, pair);
            leaf[at] += pair[0];
            leaf[at + DTI_TERMS_WEIGHT] += pair[1];
        }
    }
}

typedef struct dti_micro_walk { /* over segments */
    uint32_t reached;           /* the next that is to end */
    uint32_t done;              /* buckets that have arrived */
} dti_micro_walk;

/* Buckets that are finished with segment `segment`. */
static void dti_micro_arrive(dti_parallel *par, const dti_micro_run *run, uint32_t segment,
                             uint32_t *done, uint32_t replica) {
    if (!run->last)
        return;
    const uint32_t now = dti_program_buckets(run->program, segment);
    dti_exchange_arrive(par, *done, now);
    *done = now;
    if (!par->desc.no_overlap)
        dti_exchange_help(par, replica, false);
}

/* A segment that was started, and all before it, have ended. */
static dt_result dti_micro_reach(dti_parallel *par, const dti_micro_run *run, uint32_t segment,
                                 dti_micro_walk *walk, uint32_t replica) {
    dt_result result = DT_OK;
    for (; walk->reached <= segment && !result; walk->reached++) {
        result = dti_drive_reach(run->program, walk->reached);
        if (!result)
            dti_micro_arrive(par, run, walk->reached, &walk->done, replica);
    }
    return result;
}

/* The meeting behind a segment, if there is one. */
static dt_result dti_micro_meet(dti_parallel *par, const dti_micro_run *run, uint32_t segment,
                                dti_micro_walk *walk, uint32_t replica) {
    const dti_code *code = dti_program_code(run->program);
    dti_replica *r = &par->replicas[replica];
    if (r->met == code->meeting_count || code->meetings[r->met].segment != segment)
        return DT_OK;
    dt_result result = dti_micro_reach(par, run, segment, walk, replica);
    return result ? result : dti_meeting_make(par, replica, r->met++, run, &r->given_up);
}

/* The first one is started already. */
static dt_result dti_micro_forward(dti_parallel *par, const dti_micro_run *run, uint32_t replica) {
    const dti_replica *r = &par->replicas[replica];
    dti_micro_walk walk = {.done = 0};
    dt_result result = dti_micro_meet(par, run, 0, &walk, replica);
    for (uint32_t i = 1; i < dti_program_forward(run->program) && !result && !r->given_up; i++) {
        result = dti_micro_start(par, run, replica);
        if (!result && !r->given_up)
            result = dti_micro_meet(par, run, i, &walk, replica);
    }
    return result;
}

/* A device that runs on its own gets all segments at once, up to a meeting, and is then waited for
 * bucket by bucket. */
static dt_result dti_micro_backward(dti_parallel *par, const dti_micro_run *run, uint32_t replica) {
    dt_program *p = run->program;
    const dti_replica *r = &par->replicas[replica];
    const uint32_t segments = dti_program_segments(p);
    dti_micro_walk walk = {.reached = dti_program_forward(p)};
    dt_result result = DT_OK;
    for (uint32_t i = walk.reached; i < segments && !result && !r->given_up; i++) {
        const uint32_t before =
            dti_units_are(par) ? dti_units_before(par, dti_program_code(p), i, replica) : 0;
        result = before ? dti_micro_reach(par, run, before - 1, &walk, replica) : DT_OK;
        if (!result)
            result = dti_micro_start(par, run, replica);
        if (result || r->given_up)
            break;
        result = dti_drive_poll(p);
        for (; !result && !dti_drive_is_busy(p) && walk.reached <= i; walk.reached++)
            dti_micro_arrive(par, run, walk.reached, &walk.done, replica);
        if (!result)
            result = dti_micro_meet(par, run, i, &walk, replica);
    }
    if (result || r->given_up)
        return result;
    return dti_micro_reach(par, run, segments - 1, &walk, replica);
}

static dt_result dti_micro_step(dti_parallel *par, dti_replica *r, const dti_micro_run *run,
                                uint32_t replica) {
    const uint64_t start = dti_now_ns();
    dt_result result = DT_OK;
    if (run->micro > 0) {
        result = dti_micro_write(par, r, run);
        if (!result)
            result = dti_micro_open(par, r, run);
        if (!result)
            result = dti_micro_start(par, run, replica);
    }
    if (!result && !r->given_up)
        result = dti_micro_forward(par, run, replica);
    if (result || r->given_up)
        return result;
    const uint64_t turned = dti_now_ns();
    dti_program_set_weights(run->program, par->weights.sum);
    result = dti_micro_backward(par, run, replica);
    if (!result && !run->last)
        result = dti_program_end(run->program);
    if (result || r->given_up)
        return result;
    dti_micro_terms(par, run);
    dti_statistics_take(&par->statistics, run, run->program);
    if (!replica) {
        par->times.forward += turned - start;
        par->times.backward += dti_now_ns() - turned;
    }
    return DT_OK;
}

/* Without rows: it comes to meetings, and brings zeros. */
static dt_result dti_parallel_attend(dti_parallel *par, dti_replica *r, uint32_t index) {
    dt_result result = DT_OK;
    while (r->met < par->meetings.count && !result && !r->given_up)
        result = dti_meeting_make(par, index, r->met++, NULL, &r->given_up);
    return result;
}

static void dti_parallel_backward(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    dti_replica *r = &par->replicas[index];
    const bool units = dti_units_are(par);
    if (!r->runs->count && !units) { /* no rows: zeros, at once */
        memset(r->gradients, 0, r->subtrees.count * par->elements * sizeof(float));
        dti_exchange_arrive(par, 0, par->bucket_count);
    }
    if (units)
        dti_parallel_forward(par, index);
    const uint64_t start = dti_now_ns();
    for (uint32_t i = 0; i < r->runs->count && !r->result && !r->given_up; i++)
        r->result = dti_micro_step(par, r, &r->runs->runs[i], index);
    if (!r->runs->count)
        r->result = dti_parallel_attend(par, r, index);
    if (units && !r->result && !r->given_up)
        r->result = dti_units_attend(par, index);
    r->passed = dti_now_ns();
    r->busy_ns += r->passed - start;
    if (r->result)
        atomic_store(&r->failed, true);
    while (!dti_any_failed(par) && !dti_exchange_help(par, index, true))
        dti_thread_yield();
}

/* ---- commit, or not */

static dt_program *dti_parallel_last(const dti_replica *r) {
    const dti_runs *runs = r->runs->count ? r->runs : &r->full;
    return runs->runs[runs->count - 1].program;
}

/* Brings the sum of all to each replica, which then says whether it can be committed. */
static void dti_parallel_judge(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    dti_replica *r = &par->replicas[index];
    /* what came from other processes; else dti_exchange_spread has done it */
    for (uint32_t b = 0; b < par->bucket_count && index && par->desc.comm; b++) {
        const dti_bucket *bucket = &par->buckets[b];
        memcpy(r->gradients + bucket->begin, par->replicas[0].gradients + bucket->begin,
               (bucket->end - bucket->begin) * sizeof(float));
    }
    if (index)
        dti_statistics_put(par, r);
    if (!r->runs->count)
        dti_program_begin_commit(dti_parallel_last(r), &par->step);
    r->result = dti_program_judge(dti_parallel_last(r), &r->norm, &r->faulty);
}

/* A device that fails here is told like what is not finite: nothing has changed on any rank. */
static dt_result dti_parallel_judge_all(dti_parallel *par) {
    double *leaf = dti_scalar_leaf(par, &par->terms, par->first_shard);
    const uint64_t start = dti_now_ns();
    dt_result result = DT_OK;
    if (dti_units_are(par)) {
        result = dti_units_judge_all(par);
    } else {
        dti_statistics_put(par, &par->replicas[0]); /* now: then the others copy what is around */
        dti_crew_run(par->crew, dti_parallel_judge, par);
    }
    for (uint32_t i = 0; i < par->job.local; i++) {
        if (par->replicas[i].result || par->replicas[i].faulty)
            leaf[DTI_TERMS_FAULT] = 1.0;
    }
    par->judge_ns = dti_now_ns() - start;
    return result;
}

static void dti_parallel_commit(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    dti_replica *r = &par->replicas[index];
    r->result = par->undo ? dti_owners_keep(par, index) : DT_OK;
    if (!r->result)
        r->result = dti_program_commit(dti_parallel_last(r));
    if (!r->result && dti_units_are(par))
        r->result = dti_units_committed(r);
}

static void dti_parallel_drop_all(dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++) {
        dt_program *p = par->replicas[i].store->running;
        if (p)
            dt_program_cancel(p);
        par->replicas[i].store->summed = 0;
    }
}

/* ---- the step */

static dt_result dti_replicas_result(dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++) {
        const dti_replica *r = &par->replicas[i];
        if (r->result)
            return i == 0 ? r->result
                          : dti_fail(par->base, r->result, "replica %u: %s", i,
                                     dti_ctx_base(r->ctx)->error);
    }
    return DT_OK;
}

/* Others wait for gradients that never come. The operation that they are in, or come to next, is
 * given up, so they get an error that names this rank. */
static void dti_parallel_leave(dti_parallel *par) {
    const bool comm = par->desc.comm != NULL, units = dti_units_are(par);
    if (units)
        dti_units_leave(par);
    else if (comm && par->received == par->posted && par->posted < par->bucket_count &&
             (dti_compress_is_on(par) ? dti_compress_post(par, par->posted)
                                      : dti_exchange_post(par, par->posted)) == DT_OK)
        par->posted++;
    par->lost = true;
    for (; comm && !units && par->received < par->posted; par->received++)
        dt_comm_cancel(par->desc.comm, par->states[par->received].work);
    const dt_comm_work small[] = {par->weights.work, par->statistics.work, par->terms.work};
    for (size_t i = 0; comm && i < DTI_COUNT(small); i++)
        dt_comm_cancel(par->desc.comm, small[i]); /* those that have ended are none any more */
}

/* This process is neither at the old step nor at the new one. */
static dt_result dti_parallel_torn(dti_parallel *par, dt_result result, bool gather) {
    char text[sizeof par->base->error];
    memcpy(text, par->base->error, sizeof text);
    if (gather)
        dti_owners_leave(par);
    else if (par->desc.comm && dti_scalar_sum_begin(par, &par->weights) == DT_OK)
        dt_comm_cancel(par->desc.comm, par->weights.work);
    par->lost = true;
    if (gather || dti_units_are(par))
        return dti_fail(par->base, result,
                        "%.800s; weights here may be of two steps: make a new trainer, and go on "
                        "from a checkpoint",
                        text);
    return dti_fail(par->base, result,
                    "%.800s; the weights of the first replica are those of step %llu", text,
                    (unsigned long long)par->replicas[0].store->steps);
}

static void dti_parallel_prepare(dti_parallel *par, const dti_batch *batch,
                                 const dt_step_desc *step) {
    par->batch = batch;
    par->rows = batch->rows;
    par->step = *step;
    par->times = (dti_step_times){0};
    memset(par->weights.leaves, 0, par->shards * par->weights.width * sizeof(double));
    memset(par->terms.leaves, 0, par->shards * par->terms.width * sizeof(double));
    for (uint32_t i = 0; i < par->job.local; i++) {
        dti_replica *r = &par->replicas[i];
        r->runs = batch->rows == r->full.rows ? &r->full : &r->tail;
        r->result = DT_OK;
        r->busy_ns = 0;
        r->met = 0;
        r->given_up = false;
        atomic_store(&r->failed, false);
    }
    dti_exchange_begin(par);
    dti_meetings_begin(par);
    dti_units_prepare(par);
    if (par->undo)
        memcpy(par->undo + par->undo_bytes / sizeof(float) - par->buffer_values,
               par->statistics.buffers, par->buffer_values * sizeof(float));
}

/* By others, who say why; one of them can be named. */
static dt_result dti_parallel_given_up(dti_parallel *par) {
    const double *sum = par->weights.sum;
    char who[32] = "several ranks";
    if (sum[DTI_WEIGHTS_FAULT] < 1.5)
        snprintf(who, sizeof who, "rank %u", (uint32_t)sum[DTI_WEIGHTS_WHO]);
    return dti_fail(par->base, DT_ERROR_CANCELLED,
                    "step %llu was given up: %s could not make its part, and says why; nothing has "
                    "changed",
                    (unsigned long long)par->step.step, who);
}

/* What a rank sets by itself from step to step, as a hash; another in every step. */
static uint64_t dti_parallel_mark(const dti_parallel *par) {
    const dt_optim_desc optim = dti_optim_resolved(&par->desc.optim);
    const double lr = dti_optim_lr_at(&optim, par->step.lr, par->step.step);
    uint64_t hash = dti_hash64(DTI_HASH_START, &par->step.step, sizeof par->step.step);
    hash = dti_hash64(hash, &lr, sizeof lr);
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        const double value = par->step.coefficients[i] + 0.0; /* no -0 */
        hash = dti_hash64(hash, &value, sizeof value);
    }
    return hash;
}

/* In parts of 16 bits, whose sums and squares are exact in a double for any number of ranks: to
 * parts[2 * DTI_MARKS]. */
static void dti_mark_put(uint64_t mark, double *parts) {
    for (int i = 0; i < DTI_MARKS; i++) {
        const double part = (double)(mark >> 16 * i & 0xffffu);
        parts[i] = part;
        parts[DTI_MARKS + i] = part * part;
    }
}

/* Ranks with one mark have no variance. */
static bool dti_mark_same(const dti_parallel *par, const double *sums) {
    bool same = true;
    for (int i = 0; i < DTI_MARKS; i++) {
        const uint64_t all = (uint64_t)sums[i];
        same = same && par->world * (uint64_t)sums[DTI_MARKS + i] == all * all;
    }
    return same;
}

static dt_result dti_parallel_same(dti_parallel *par) {
    if (dti_mark_same(par, par->weights.sum + DTI_WEIGHTS_MARK))
        return DT_OK;
    par->told = true;
    return dti_fail(par->base, DT_ERROR_INVALID,
                    "step %llu: the ranks have different learning rates or coefficients of losses; "
                    "set the same on all of them; nothing has changed",
                    (unsigned long long)par->step.step);
}

/* Weights to all ranks, and whether all of them can go on. */
static dt_result dti_parallel_agree(dti_parallel *par, dt_result own) {
    const bool apart = par->desc.comm != NULL; /* the weights travel during the forward part; */
    const bool later = dti_units_are(par);     /* but not where replicas wait for others in it */
    if (!own) {
        dti_crew_run(par->crew, apart || later ? dti_parallel_weigh : dti_parallel_weigh_forward,
                     par);
        own = dti_replicas_result(par);
    }
    double *leaf = dti_scalar_leaf(par, &par->weights, par->first_shard);
    leaf[DTI_WEIGHTS_FAULT] = own ? 1.0 : 0.0;
    leaf[DTI_WEIGHTS_WHO] = own ? par->rank : 0.0;
    leaf[DTI_WEIGHTS_ASKED] = par->asked ? 1.0 : 0.0;
    dti_mark_put(dti_parallel_mark(par), leaf + DTI_WEIGHTS_MARK);
    dt_result result = dti_scalar_sum_begin(par, &par->weights);
    if (!result && !own && apart && !later)
        dti_crew_run(par->crew, dti_parallel_forward, par);
    if (!result)
        result = dti_scalar_sum_end(par, &par->weights);
    par->asked = !result && par->weights.sum[DTI_WEIGHTS_ASKED] > 0.0;
    par->told = !result && par->weights.sum[DTI_WEIGHTS_FAULT] > 0.0;
    if (result || own)
        return own ? own : result;
    if (par->told)
        return dti_parallel_given_up(par);
    result = dti_parallel_same(par);
    return result ? result : dti_replicas_result(par);
}

/* The sums of all gradients are there: whether all can write what comes of them. */
static dt_result dti_parallel_settle(dti_parallel *par) {
    dt_result result = dti_statistics_begin(par);
    if (!result)
        result = dti_statistics_end(par);
    if (result)
        return result;
    result = dti_parallel_judge_all(par);
    if (result)
        return result;
    /* all ranks have posted this one, so all have every bucket, and it says whether all can write
     * what comes of it: the commit barrier */
    result = dti_scalar_sum_begin(par, &par->terms);
    return result ? result : dti_scalar_sum_end(par, &par->terms);
}

static dt_result dti_parallel_exchange(dti_parallel *par) {
    dti_crew_run(par->crew, dti_parallel_backward, par);
    dt_result result = dti_replicas_result(par);
    if (!result)
        result = dti_exchange_finish(par);
    return result ? result : dti_parallel_settle(par);
}

static void dti_terms_report(const double sum[DTI_TERMS_WIDTH], dti_parallel_result *out) {
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        out->loss_sum[i] = sum[i];
        out->loss_weight[i] = sum[DTI_TERMS_WEIGHT + i];
        out->metric_sum[i] = sum[DTI_TERMS_METRIC + i];
        out->metric_weight[i] = sum[DTI_TERMS_METRIC_WEIGHT + i];
    }
}

static void dti_parallel_report(const dti_parallel *par, dti_parallel_result *out) {
    const double *sum = par->terms.sum;
    dti_terms_report(sum, out);
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        if (par->weights.sum[i] > 0.0)
            out->loss += par->step.coefficients[i] * sum[i] / par->weights.sum[i];
    }
}

/* Every replica looks for the parameter or op; the first that finds one is quoted. */
static dt_result dti_parallel_blame(dti_parallel *par) {
    for (uint32_t i = 0; i < par->job.local; i++) {
        dti_replica *r = &par->replicas[i];
        if (!dti_program_blame(dti_parallel_last(r), r->runs->count > 0))
            continue;
        return i == 0 ? DT_ERROR_NUMERIC
                      : dti_fail(par->base, DT_ERROR_NUMERIC, "%s", dti_ctx_base(r->ctx)->error);
    }
    return DT_OK;
}

/* No rank found an op or a parameter. */
static dt_result dti_parallel_not_finite_text(dti_parallel *par, const char *statistic) {
    const unsigned long long step = (unsigned long long)par->step.step;
    if (statistic)
        return dti_fail(par->base, DT_ERROR_NUMERIC,
                        "step %llu: the running statistic '%s' would be a NaN or an infinity; the "
                        "weights are unchanged",
                        step, statistic);
    return dti_fail(par->base, DT_ERROR_NUMERIC,
                    "step %llu: the gradient of the whole batch is not finite; the weights are "
                    "unchanged",
                    step);
}

/* Nothing has changed. */
static dt_result dti_parallel_not_finite(dti_parallel *par, dti_parallel_result *out) {
    const char *statistic = dti_statistics_fault(&par->statistics, par->replicas[0].graph);
    dt_result own = dti_replicas_result(par); /* a device that failed while it judged */
    if (!own)
        own = dti_parallel_blame(par);
    dt_result result = dti_statistics_load(&par->statistics, par->replicas[0].store);
    result = dti_agree_result(par, own ? own : result);
    if (!result)
        result = dti_parallel_not_finite_text(par, statistic);
    else if (result != DT_ERROR_NUMERIC && !own && !par->lost) {
        char text[sizeof par->base->error];
        memcpy(text, par->base->error, sizeof text);
        result = dti_fail(par->base, DT_ERROR_CANCELLED,
                          "step %llu was given up, and nothing has changed: %.800s",
                          (unsigned long long)par->step.step, text);
    }
    out->skipped = result == DT_ERROR_NUMERIC;
    return result;
}

static bool dti_losses_finite(const dti_parallel_result *out) {
    bool fine = true;
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++)
        fine = fine && dti_finite_f64(out->loss_sum[i]) && dti_finite_f64(out->loss_weight[i]);
    return fine;
}

static dt_result dti_parallel_over(dti_parallel *par, dt_result result, dti_parallel_clean *leave,
                                   dti_parallel_clean *drop) {
    char text[sizeof par->base->error]; /* what the rest of it says is no news */
    memcpy(text, par->base->error, sizeof text);
    if (leave)
        leave(par);
    drop(par);
    memcpy(par->base->error, text, sizeof text);
    return result;
}

static dt_result dti_parallel_apart(dti_parallel *par, dt_result result, dti_parallel_clean *leave,
                                    const char *who) {
    char text[sizeof par->base->error];
    memcpy(text, par->base->error, sizeof text);
    leave(par);
    return dti_fail(par->base, result,
                    "%.800s; %s may be a step apart: make a new trainer and go on from a "
                    "checkpoint",
                    text, who);
}

/* Before the commit: step s stays. Those who know of it go on together with the next step. */
static dt_result dti_parallel_failed(dti_parallel *par, dt_result result) {
    return dti_parallel_over(par, result, par->told ? NULL : dti_parallel_leave,
                             dti_parallel_drop_all);
}

static dt_result dti_parallel_update(dti_parallel *par) {
    dti_crew_run(par->crew, dti_parallel_commit, par);
    dt_result result = dti_replicas_result(par);
    const bool gathers = par->sharded && !dti_units_are(par);
    if (result)
        return dti_parallel_torn(par, result, gathers);
    return gathers ? dti_owners_gather(par) : DT_OK;
}

/* When all have met: the update, or why there is none. */
static dt_result dti_parallel_finish(dti_parallel *par, dti_parallel_result *out) {
    dti_parallel_report(par, out);
    if (par->terms.sum[DTI_TERMS_FAULT] > 0.0 ||
        (!par->desc.program.no_check && !dti_losses_finite(out))) {
        dti_parallel_drop_all(par);
        return dti_parallel_not_finite(par, out);
    }
    const uint64_t start = dti_now_ns();
    dt_result result = dti_parallel_update(par);
    par->times.commit = par->judge_ns + dti_now_ns() - start;
    if (result)
        return result;
    out->norm = par->replicas[0].norm;
    out->committed = true;
    return DT_OK;
}

static dt_result dti_parallel_conclude(dti_parallel *par, dti_parallel_result *out) {
    dt_result result = dti_parallel_settle(par);
    return result ? dti_parallel_failed(par, result) : dti_parallel_finish(par, out);
}

static dt_result dti_parallel_step(dti_parallel *par, const dti_batch *batch, dt_result own,
                                   const dt_step_desc *step, dti_parallel_result *out) {
    *out = (dti_parallel_result){0};
    if (par->pipe)
        return dti_pipe_step(par, batch, own, step, out);
    if (par->squad)
        return dti_squad_step(par, batch, own, step, out);
    dti_parallel_prepare(par, batch, step);
    dt_result result = dti_parallel_agree(par, own);
    if (!result)
        result = dti_parallel_exchange(par);
    if (result)
        return dti_parallel_failed(par, result);
    out->wait_seconds = 1e-9 * (double)(dti_now_ns() - par->replicas[0].passed - par->judge_ns);
    return dti_parallel_finish(par, out);
}
