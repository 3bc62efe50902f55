/* Local steps: each replica makes a step of its own part of a batch, by a program that commits by
 * itself. Replicas exchange nothing until the round ends (round.c), or until two ranks average
 * (gossip.c). So gradients never leave a device, and a loss is divided by the weight of the
 * replica's own rows. Faulty samples are found before the computation, so no replica of this
 * process has changed. The step is tried again. A NaN or infinity skips the step of that replica
 * only. */

static bool dti_parallel_is_local(const dti_parallel *par) {
    return DTI_HAS_LOCAL && par->desc.round.steps > 0;
}

/* ---- how rounds are made */

static dt_result dti_round_desc_check(dti_base *base, const dt_local_desc *d) {
    if ((uint64_t)d->gossip * (uint64_t)d->steps <= UINT32_MAX)
        return DT_OK;
    return dti_fail(base, DT_ERROR_INVALID,
                    ".local.gossip is %d and .local.steps is %d; their product must be at most %u",
                    d->gossip, d->steps, UINT32_MAX);
}

static dti_round_desc dti_round_resolve(const dt_local_desc *d, const dt_parallel_desc *parallel) {
    const uint32_t steps = (uint32_t)DTI_MAX(d->steps, 1);
    return (dti_round_desc){.steps = d->gossip > 1 ? steps * (uint32_t)d->gossip : steps,
                            .gossip_steps = d->gossip > 1 ? steps : 0,
                            .lr = (float)d->outer.lr,
                            .momentum = (float)d->outer.momentum,
                            .nesterov = !d->outer.no_nesterov,
                            .compress = (uint8_t)parallel->compress,
                            .keep = parallel->compress_ratio};
}

static void dti_round_log(const dti_parallel *par) {
    const dti_round_desc *round = &par->desc.round;
    dti_log(par->base, DT_LOG_INFO,
            "local steps: %u a round, then an outer step with rate %g and %smomentum %g; results "
            "depend on the number of replicas, which is %u",
            round->steps, (double)round->lr, round->nesterov ? "Nesterov's " : "",
            (double)round->momentum, par->job.replicas);
    if (round->gossip_steps)
        dti_log(par->base, DT_LOG_INFO,
                "gossip: every %u steps of a round each rank averages its weights with one other "
                "of %u ranks, %s; results also depend on how replicas are spread over processes",
                round->gossip_steps, par->mesh.world,
                par->mesh.world & (par->mesh.world - 1) ? "each in turn (round robin)"
                                                        : "whose number differs in one bit");
    if (round->compress)
        dti_log(par->base, DT_LOG_INFO, "%s",
                dti_compress_is_on(par)
                    ? "compressed differences: results also depend on how replicas are spread over "
                      "processes, and a checkpoint lacks the error feedback"
                    : "compressed differences: this is one process, so nothing is compressed");
}

/* ---- a local step */

/* Samples to all programs, for their labels; the first one's are written last, and stay. */
static dt_result dti_inner_write(dti_parallel *par, uint32_t index) {
    dti_replica *r = &par->replicas[index];
    memset(r->weights, 0, DT_MAX_TERMS * sizeof *r->weights);
    for (uint32_t i = r->runs->count; i-- > 0;) {
        const dti_micro_run *run = &r->runs->runs[i];
        DTI_TRY(dti_micro_write(par, run));
        if (r->runs->count > 1 || par->desc.skip_empty)
            DTI_TRY(dt_program_add_loss_weights(run->program, r->weights));
    }
    return DT_OK;
}

static dt_result dti_inner_micro(dti_parallel *par, dti_replica *r, const dti_micro_run *run,
                                 double *terms) {
    dt_step_desc step = par->now->desc;
    dt_report report;
    step.first_row = run->row;
    step.micro_batch = run->micro;
    step.micro_batches = r->runs->count;
    DTI_TRY(run->micro ? dti_micro_write(par, run) : DT_OK);
    DTI_TRY(r->runs->count > 1 ? dti_program_run_weighed(run->program, &step, r->weights, &report)
                               : dt_program_run(run->program, &step, &report));
    dti_terms_add(terms, &report);
    r->norm = report.gradient_norm;
    return DT_OK;
}

/* Steps count whether they were left out or not, so that all replicas are at the same one. */
static dt_result dti_inner_run(dti_parallel *par, uint32_t index) {
    dti_replica *r = &par->replicas[index];
    double *now = dti_scalar_leaf(par, &par->terms, par->first_batch_slice + index);
    const bool out = par->desc.skip_empty && dti_weights_none(r->weights);
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < r->runs->count && !result && !out; i++)
        result = dti_inner_micro(par, r, &r->runs->runs[i], now);
    r->faulty = result == DT_ERROR_NUMERIC;
    r->empty = r->runs->count && !r->faulty && dti_weights_none(now + DTI_TERMS_WEIGHT);
    if (r->faulty) {
        memset(now, 0, DTI_TERMS_WIDTH * sizeof *now);
        result = DT_OK; /* the round's report has the reason */
    }
    for (uint32_t i = 0; i < DTI_TERMS_WIDTH; i++)
        par->round.terms[(size_t)index * DTI_TERMS_WIDTH + i] += now[i];
    if (!result)
        r->store->steps = par->now->desc.step;
    return result;
}

/* Rows that only fill up a batch do not make a step. */
static void dti_inner_prepare(dti_parallel *par) {
    dti_replicas_prepare(par);
    for (uint32_t i = 0; i < par->job.local; i++) {
        dti_replica *r = &par->replicas[i];
        if (r->runs->count && r->runs->runs[0].row >= par->now->batch->real)
            r->runs = &par->round.none;
    }
}

/* A schedule of the application's may give any rate: then the step has not begun. */
static dt_result dti_inner_before(dti_parallel *par) {
    const dt_optim_desc *optim = &dti_parallel_code(par)->optim;
    const double lr = dti_optim_lr_at(optim, par->now->desc.lr, par->now->desc.step);
    const dt_result result = par->round.done ? DT_OK : dti_round_open(par);
    if (result)
        return dti_parallel_partial_commit(par, result, false);
    if (dti_optim_lr_fits(optim, lr))
        return DT_OK;
    return dti_fail(par->base, DT_ERROR_INVALID,
                    "step %llu: the learning rate is %g; it must be from 0 to %g",
                    (unsigned long long)par->now->desc.step, lr, dti_optim_lr_max(optim));
}

static dt_result dti_inner_run_all(dti_parallel *par) {
    return dti_round_began(par, dti_protocol_phase(par, dti_inner_run));
}

/* Of this process only. The round's report has the first reason of a skipped step. */
static void dti_inner_report(dti_parallel *par, dti_parallel_result *out) {
    dti_round *round = &par->round;
    const uint64_t mark = dti_parallel_mark(par);
    double sum[DTI_TERMS_WIDTH] = {0};
    for (uint32_t i = 0; i < par->job.local; i++) {
        const dti_replica *r = &par->replicas[i];
        for (uint32_t k = 0; k < DTI_TERMS_WIDTH; k++)
            sum[k] += dti_scalar_leaf(par, &par->terms, par->first_batch_slice + i)[k];
        out->empty += r->empty;
        out->left_out += r->faulty;
        if (r->faulty && !round->said[0])
            snprintf(round->said, sizeof round->said, "replica %u: %.470s", par->job.first + i,
                     dti_ctx_base(r->ctx)->error);
    }
    memcpy(out->terms, sum, sizeof out->terms);
    out->norm = par->replicas[0].norm;
    out->steps = 1;
    out->samples = par->now->batch->real;
    round->mark = dti_hash64(round->mark, &mark, sizeof mark);
    round->samples += par->now->batch->real;
    round->skipped += out->left_out;
    round->empty += out->empty;
    round->done++;
}

/* Rounds end with epochs. */
static const dti_strategy *dti_inner_next(const dti_parallel *par) {
    return par->round.done == par->desc.round.steps || par->now->batch->last ? &dti_round_strategy
           : dti_gossip_is_due(par)                                          ? &dti_gossip_strategy
                                                                             : NULL;
}

static const dti_strategy dti_inner_strategy = {DTI_ROUND_PLAN,
                                                .scope = DTI_STEP_OF_REPLICA,
                                                .prepare = dti_inner_prepare,
                                                .before = dti_inner_before,
                                                .weigh = dti_inner_write,
                                                .weigh_forward = dti_inner_write,
                                                .run = dti_inner_run_all,
                                                .report = dti_inner_report,
                                                .next = dti_inner_next};
