/* The driver of the commit protocol (protocol.h). Every rank makes the same operations in the same
 * order, also after an error on one of them. Failures of one rank (a sample's callback, a label out
 * of range, a device) are reported with the weights, before any exchange. A device that is lost
 * after that ends the group, because the others wait for its gradients. One that is lost after all
 * gradients have come, while it validates the update, is reported with the losses. */

static const dti_strategy *dti_strategy_of(const dti_parallel *par) {
    return par->alone                   ? &dti_alone_strategy
           : dti_pipe_of(par)           ? &dti_pipe_strategy
           : dti_units_are(par)         ? &dti_units_strategy
           : dti_parallel_is_local(par) ? &dti_inner_strategy
                                        : &dti_replicas_strategy;
}

/* ---- the newest error's text, for one that says more, or to stay */

typedef struct dti_error_text {
    char text[sizeof((dti_base *)0)->error];
} dti_error_text;

static dti_error_text dti_error_of(const dti_parallel *par) {
    dti_error_text error;
    memcpy(error.text, par->base->error, strlen(par->base->error) + 1); /* in most steps 1 byte */
    return error;
}

static void dti_error_back(const dti_parallel *par, const dti_error_text *error) {
    memcpy(par->base->error, error->text, strlen(error->text) + 1);
}

static dt_result dti_protocol_phase(dti_parallel *par, dti_phase_fn *fn) {
    par->strategy->team(par, fn);
    return par->strategy->result(par);
}

/* The same, after `start` where one thread drives all devices. */
static dt_result dti_protocol_phases(dti_parallel *par, dti_phase_fn *start, dti_phase_fn *fn) {
    DTI_TRY(par->one_thread && start ? dti_protocol_phase(par, start) : DT_OK);
    return dti_protocol_phase(par, fn);
}

static void dti_parallel_prepare(dti_parallel *par, const dti_batch *batch,
                                 const dt_step_desc *step) {
    if (!par->strategy)
        par->strategy = dti_strategy_of(par);
    const size_t leaves = par->strategy->split ? par->job.batch_slices : par->batch_slices;
    par->now = &par->steps[(par->oldest + par->under_way) % DTI_STEP_SLOTS_MAX];
    *par->now = (dti_step){.batch = batch, .rows = batch->rows, .desc = *step};
    memset(par->weights.leaves, 0, leaves * par->weights.width * sizeof(double));
    memset(par->terms.leaves, 0, leaves * par->terms.width * sizeof(double));
    par->strategy->prepare(par);
}

/* ---- a few doubles of all ranks */

/* Where this rank adds numbers that belong to no batch slice. */
static double *dti_protocol_leaf(const dti_parallel *par, const dti_scalar_sum *s) {
    return s->leaves + (par->strategy->split ? (size_t)par->first_batch_slice * s->width : 0);
}

static dt_result dti_protocol_sum_begin(dti_parallel *par, dti_scalar_sum *s) {
    return par->strategy->split ? dti_grid_scalars(par, s) : dti_scalar_sum_begin(par, s);
}

static dt_result dti_protocol_sum_end(dti_parallel *par, dti_scalar_sum *s) {
    return par->strategy->split ? DT_OK : dti_scalar_sum_end(par, s);
}

/* ---- AGREE */

/* Other ranks failed, and report why; the text names one. */
static dt_result dti_parallel_given_up(dti_parallel *par) {
    const double *sum = par->weights.sum;
    char who[32] = "several ranks";
    if (sum[DTI_WEIGHTS_FAULT] < 1.5)
        snprintf(who, sizeof who, "rank %u", (uint32_t)sum[DTI_WEIGHTS_WHO]);
    return dti_fail(par->base, DT_ERROR_CANCELLED,
                    "step %llu was cancelled: %s failed and reports why; nothing has changed",
                    (unsigned long long)par->now->desc.step, who);
}

static uint64_t dti_parallel_mark(const dti_parallel *par) {
    const double lr =
        dti_optim_lr_at(&dti_parallel_code(par)->optim, par->now->desc.lr, par->now->desc.step);
    uint64_t hash = dti_hash64(DTI_HASH_START, &par->now->desc.step, sizeof par->now->desc.step);
    hash = dti_hash64(hash, &lr, sizeof lr);
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        const double value = par->now->desc.coefficients[i] + 0.0; /* no -0 */
        hash = dti_hash64(hash, &value, sizeof value);
    }
    return hash;
}

/* Parts of 16 bits. */
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
        same = same && par->mesh.world * (uint64_t)sums[DTI_MARKS + i] == all * all;
    }
    return same;
}

static dt_result dti_parallel_same(dti_parallel *par) {
    if (dti_mark_same(par, par->weights.sum + DTI_WEIGHTS_MARK))
        return DT_OK;
    par->now->told = true;
    return dti_fail(par->base, DT_ERROR_INVALID,
                    "step %llu: the ranks have different learning rates or coefficients of losses; "
                    "set the same on all; nothing has changed",
                    (unsigned long long)par->now->desc.step);
}

/* Of trainers that share replicas, all ranks step the same one: rank 0's. */
static dt_result dti_parallel_called(dti_parallel *par) {
    const double *sum = par->weights.sum + DTI_WEIGHTS_CALLED;
    uint64_t first = par->number;
    if (par->mesh.world * sum[1] == sum[0] * sum[0])
        return DT_OK;
    par->now->told = true;
    DTI_TRY(dti_ranks_tell(par, &first, 1, DT_I64));
    const dt_result own =
        first == par->number
            ? DT_OK
            : dti_fail(par->base, DT_ERROR_INVALID,
                       "step %llu: rank %u steps trainer %u of those that share replicas, but rank "
                       "0 steps trainer %llu (0 is the first, then those with .replicas_of in "
                       "order of creation); step the same one on all ranks; nothing has changed",
                       (unsigned long long)par->now->desc.step, par->mesh.rank, par->number,
                       (unsigned long long)first);
    return dti_agree_result(par, own);
}

/* Weights to all ranks, and whether all of them can go on. */
static dt_result dti_protocol_exchange_weights(dti_parallel *par, dt_result own) {
    const dti_strategy *s = par->strategy;
    double *leaf = dti_protocol_leaf(par, &par->weights);
    leaf[DTI_WEIGHTS_FAULT] = own ? 1.0 : 0.0;
    leaf[DTI_WEIGHTS_WHO] = own ? par->mesh.rank : 0.0;
    leaf[DTI_WEIGHTS_ASKED] = par->asked ? 1.0 : 0.0;
    leaf[DTI_WEIGHTS_CALLED] = par->number;
    leaf[DTI_WEIGHTS_CALLED + 1] = (double)par->number * par->number;
    dti_mark_put(par->desc.comm ? dti_parallel_mark(par) : 0, leaf + DTI_WEIGHTS_MARK);
    dt_result result = dti_protocol_sum_begin(par, &par->weights);
    if (!result && !own && par->desc.comm && !s->others_wait)
        s->team(par, s->forward);
    if (!result)
        result = dti_protocol_sum_end(par, &par->weights);
    par->asked = !result && par->weights.sum[DTI_WEIGHTS_ASKED] > 0.0;
    par->now->told = !result && par->weights.sum[DTI_WEIGHTS_FAULT] > 0.0;
    return result;
}

/* This rank's own failure, before the sum. */
static dt_result dti_protocol_own(dti_parallel *par, dt_result own) {
    const dti_strategy *s = par->strategy;
    const dti_error_text error = dti_error_of(par);
    /* on all ranks, whatever own is, except if nobody waits for it */
    const bool over = own && s->scope == DTI_STEP_OF_REPLICA;
    const dt_result before = s->before && !over ? s->before(par) : DT_OK;
    if (own)
        dti_error_back(par, &error);
    if (own || before)
        return own ? own : before;
    return dti_protocol_phase(par, s->others_wait || par->desc.comm ? s->weigh : s->weigh_forward);
}

static dt_result dti_protocol_agree(dti_parallel *par, dt_result own) {
    par->now->state = DTI_PROTOCOL_AGREE;
    own = dti_protocol_own(par, own);
    if ((own && par->lost) || par->strategy->scope == DTI_STEP_OF_REPLICA)
        return own;
    const dti_error_text error = dti_error_of(par);
    dt_result result = dti_protocol_exchange_weights(par, own);
    if (own)
        dti_error_back(par, &error);
    if (result || own)
        return own ? own : result;
    if (par->now->told)
        return dti_parallel_given_up(par);
    DTI_TRY(dti_parallel_called(par));
    DTI_TRY(dti_parallel_same(par));
    return par->strategy->result(par);
}

static bool dti_weights_none(const double *weights) {
    bool none = true;
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++)
        none = none && weights[i] == 0.0;
    return none;
}

static bool dti_parallel_leaves_out(const dti_parallel *par, dti_parallel_result *out) {
    out->empty = par->strategy->scope == DTI_STEP_OF_JOB && dti_weights_none(par->weights.sum);
    return out->empty && par->desc.skip_empty;
}

/* ---- a failure */

static dt_result dti_protocol_over(dti_parallel *par, dt_result result, dti_parallel_clean *leave,
                                   dti_parallel_clean *drop) {
    const dti_error_text error = dti_error_of(par); /* the rest of the report is unchanged */
    if (leave)
        leave(par);
    if (drop)
        drop(par);
    dti_error_back(par, &error);
    return result;
}

static dt_result dti_protocol_lists(dti_parallel *par) {
    const dti_strategy *s = par->strategy;
    const dt_result result = s->lists(par);
    return result ? dti_protocol_over(par, result, par->desc.comm ? s->leave : NULL, s->drop)
                  : DT_OK;
}

/* Before WRITE: step s stays. Ranks that took part go on together with the next step. */
static dt_result dti_protocol_failed(dti_parallel *par, dt_result result) {
    const dti_strategy *s = par->strategy;
    if (par->now->state == DTI_PROTOCOL_AGREE &&
        (s->others_wait || s->scope == DTI_STEP_OF_REPLICA))
        return result; /* nothing has begun */
    return dti_protocol_over(par, result, par->now->told ? NULL : s->leave, s->drop);
}

static dt_result dti_protocol_partial_commit(dti_parallel *par, dt_result result) {
    const dti_strategy *s = par->strategy;
    if (s->partial_commit)
        return s->partial_commit(par, result);
    const dti_error_text error = dti_error_of(par);
    s->leave(par);
    return dti_fail(
        par->base, result,
        "%.800s; %s may be a step apart; create a new trainer and continue from a checkpoint",
        error.text, s->parts);
}

/* ---- values that are not finite */

/* No rank found an op or a parameter. */
static dt_result dti_parallel_not_finite_text(dti_parallel *par, const char *statistic) {
    const unsigned long long step = (unsigned long long)par->now->desc.step;
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

/* A device of another rank failed in NORM or VALIDATE. */
static dt_result dti_protocol_device_lost(dti_parallel *par) {
    return dti_fail(par->base, DT_ERROR_CANCELLED,
                    "step %llu was cancelled, and nothing has changed: %.800s",
                    (unsigned long long)par->now->desc.step, dti_error_of(par).text);
}

/* All ranks drop the step: why. */
static dt_result dti_protocol_not_finite(dti_parallel *par, dti_parallel_result *out) {
    const dti_strategy *s = par->strategy;
    const char *statistic = s->statistic(par);
    const dt_result device = s->result(par); /* one that failed in NORM or VALIDATE */
    dt_result own = dti_agree_result(par, device),
              result; /* first: others may have its old pairs */
    if (!own)
        own = dti_search_step(par);
    if (!own && s->split) /* of a stage */
        own =
            dti_agree_result(par, statistic ? dti_parallel_not_finite_text(par, statistic) : DT_OK);
    const dti_error_text error = dti_error_of(par);
    s->drop(par);
    const dt_result loaded = s->load(par);
    if (own)
        dti_error_back(par, &error);
    result = own ? own : dti_agree_result(par, loaded);
    if (!result)
        result = dti_parallel_not_finite_text(par, statistic);
    else if (result != DT_ERROR_NUMERIC && !device && !loaded && !par->lost)
        result = dti_protocol_device_lost(par);
    out->skipped = result == DT_ERROR_NUMERIC;
    return result;
}

/* ---- RUN to BARRIER */

/* A device that fails here is reported like a value that is not finite: nothing has changed on any
 * rank. */
static dt_result dti_protocol_validate(dti_parallel *par) {
    const dti_strategy *s = par->strategy;
    const uint64_t start = dti_now_ns();
    par->now->state = DTI_PROTOCOL_NORM;
    dt_result own = s->norm ? dti_protocol_phase(par, s->norm) : DT_OK;
    DTI_TRY(s->pairs ? s->pairs(par) : DT_OK);
    par->now->state = DTI_PROTOCOL_VALIDATE;
    if (!own)
        own = dti_protocol_phases(par, s->validate_start, s->validate);
    if (own || atomic_load(&par->now->faulty))
        dti_protocol_leaf(par, &par->terms)[DTI_TERMS_FAULT] = 1.0;
    par->now->validate_ns = dti_now_ns() - start;
    return DT_OK;
}

/* All gradients have been summed: checks that all can write the results. */
static dt_result dti_protocol_settle(dti_parallel *par) {
    const dti_strategy *s = par->strategy;
    DTI_TRY(s->statistics ? s->statistics(par) : DT_OK);
    DTI_TRY(s->check ? DT_OK : dti_protocol_validate(par));
    /* all ranks have arrived, so all have every sum; the result says whether all can write */
    par->now->state = DTI_PROTOCOL_BARRIER;
    DTI_TRY(dti_protocol_sum_begin(par, &par->terms));
    return dti_protocol_sum_end(par, &par->terms);
}

static dt_result dti_protocol_run(dti_parallel *par, dti_parallel_result *out) {
    const dti_strategy *s = par->strategy;
    par->now->state = DTI_PROTOCOL_RUN;
    dt_result result = s->run(par);
    if (!result && s->scope == DTI_STEP_OF_JOB)
        result = dti_protocol_settle(par);
    if (!result && s->waited)
        out->wait_seconds = 1e-9 * (double)s->waited(par);
    return result;
}

/* ---- WRITE to DONE */

static dt_result dti_protocol_write(dti_parallel *par) {
    const dti_strategy *s = par->strategy;
    const uint64_t start = dti_now_ns();
    par->now->state = DTI_PROTOCOL_WRITE;
    dt_result result = dti_protocol_phases(par, s->write_start, s->write);
    if (s->split)
        dti_full_old(par);
    if (result)
        return dti_protocol_partial_commit(par, result);
    par->now->state = DTI_PROTOCOL_PUBLISH;
    if (s->publish)
        result = s->publish(par);
    par->now->times.commit = par->now->validate_ns + dti_now_ns() - start;
    return result;
}

static void dti_terms_add(double *sum, const dt_report *r) {
    const double *const of[] = {r->loss_sum, r->loss_weight, r->metric_sum, r->metric_weight};
    for (uint32_t i = 0; i < DTI_COUNT(of) * DT_MAX_TERMS; i++)
        sum[i] += of[i / DT_MAX_TERMS][i % DT_MAX_TERMS];
}

static bool dti_losses_finite(const double *terms) {
    bool fine = true;
    for (uint32_t i = 0; i < DTI_TERMS_METRIC; i++)
        fine = fine && dti_finite_f64(terms[i]);
    return fine;
}

/* After BARRIER, alike on all ranks: why there is no update. */
static dt_result dti_protocol_check(dti_parallel *par, dti_parallel_result *out) {
    const dti_strategy *s = par->strategy;
    memcpy(out->terms, par->terms.sum, sizeof out->terms);
    if (!s->check) {
        const bool fine = par->desc.program.no_check || dti_losses_finite(out->terms);
        return fine && par->terms.sum[DTI_TERMS_FAULT] == 0.0 ? DT_OK
                                                              : dti_protocol_not_finite(par, out);
    }
    par->now->state = DTI_PROTOCOL_VALIDATE;
    s->team(par, s->validate);
    const dt_result result = s->check(par);
    if (!result)
        return DT_OK;
    s->report(par, out);
    out->skipped = true;
    return dti_protocol_over(par, result, NULL, s->drop);
}

static dt_result dti_protocol_finish(dti_parallel *par, dti_parallel_result *out) {
    const dti_strategy *s = par->strategy;
    const bool writes = s->scope == DTI_STEP_OF_JOB;
    DTI_TRY(writes ? dti_protocol_check(par, out) : DT_OK);
    DTI_TRY(writes ? dti_protocol_write(par) : DT_OK);
    par->now->state = DTI_PROTOCOL_DONE;
    if (s->report)
        s->report(par, out);
    out->committed = true;
    const dt_result result = par->kept ? dti_full_gather(par) : DT_OK;
    if (result)
        return dti_protocol_partial_commit(par, result);
    return s->done ? s->done(par, out) : DT_OK;
}

/* After RUN or before it. */
static dt_result dti_protocol_end(dti_parallel *par, dt_result result, dti_parallel_result *out) {
    return result ? dti_protocol_failed(par, result) : dti_protocol_finish(par, out);
}

static dt_result dti_parallel_conclude(dti_parallel *par, dti_parallel_result *out) {
    par->now->state = DTI_PROTOCOL_RUN;
    return dti_protocol_end(par, dti_protocol_settle(par), out);
}

/* ---- the step */

/* The plan that comes after a step. */
static dt_result dti_protocol_next(dti_parallel *par, dti_parallel_result *out) {
    const dti_strategy *s = par->strategy, *next = s->next ? s->next(par) : NULL;
    if (!next)
        return DT_OK;
    par->strategy = next;
    next->prepare(par);
    const dt_result result = dti_protocol_end(par, dti_protocol_run(par, out), out);
    par->strategy = s;
    return result;
}

static dt_result dti_parallel_start(dti_parallel *par, const dti_batch *batch, dt_result own,
                                    const dt_step_desc *step) {
    dti_parallel_prepare(par, batch, step);
    const dt_result result = dti_protocol_agree(par, own);
    par->under_way += !result;
    return result ? dti_protocol_failed(par, result) : DT_OK;
}

static bool dti_parallel_waits(const dti_parallel *par, uint32_t rows, const dt_step_desc *step) {
    return par->under_way && (!par->strategy->waits || par->strategy->waits(par, rows, step));
}

static dt_result dti_parallel_end(dti_parallel *par, dti_parallel_result *out) {
    *out = (dti_parallel_result){0};
    par->now = &par->steps[par->oldest];
    par->oldest = (par->oldest + 1) % DTI_STEP_SLOTS_MAX;
    par->under_way--;
    if (dti_parallel_leaves_out(par, out)) {
        if (!par->strategy->others_wait)
            par->strategy->drop(par);
        return DT_OK;
    }
    const dt_result result = dti_protocol_end(par, dti_protocol_run(par, out), out);
    return result ? result : dti_protocol_next(par, out);
}
