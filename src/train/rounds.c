/* A trainer whose steps are local: what its description must be, what reports say within a round
 * and at its end, and what may not happen in the middle of one. */

#define DTI_LOCAL_STEPS 100 /* 50 to 500 in the paper; less where links are fast */

static void dti_trainer_resolve_local(dt_trainer *t) {
    const dt_trainer_desc *d = &t->desc;
    dti_round_desc *round = &t->par.desc.round;
    if (d->mode != DT_TRAIN_LOCAL)
        return;
    round->steps = (uint32_t)(d->local.steps > 0 ? d->local.steps : DTI_LOCAL_STEPS);
    if (d->local.gossip > 1) {
        round->gossip_steps = round->steps;
        round->steps *= (uint32_t)d->local.gossip;
    }
    round->lr = (float)dti_or(d->local.outer.lr, 0.7);
    round->momentum = (float)dti_or(d->local.outer.momentum, 0.9);
    round->nesterov = !d->local.outer.no_nesterov;
    round->compress = (uint8_t)d->local.compress;
    round->keep = dti_or(d->local.compress_ratio, 0.01);
}

static dt_result dti_trainer_check_local(const dt_trainer *t) {
    const dt_trainer_desc *d = &t->desc;
    const double lr = dti_or(d->local.outer.lr, 0.7),
                 momentum = dti_or(d->local.outer.momentum, 0.9);
    if ((unsigned)d->mode > DT_TRAIN_SERVER)
        return dti_fail(t->base, DT_ERROR_INVALID, ".mode is %d, not a dt_train_mode",
                        (int)d->mode);
    if (d->local.steps < 0)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".local.steps is %d; it must be at least 1 (0 = the default)",
                        d->local.steps);
    if (d->local.gossip < 0 ||
        (uint64_t)d->local.gossip * (uint64_t)(d->local.steps ? d->local.steps : DTI_LOCAL_STEPS) >
            UINT32_MAX)
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            ".local.gossip is %d, .local.steps %d; from 0, and their product is at most %u",
            d->local.gossip, d->local.steps, UINT32_MAX);
    if (!dti_fits_f32(lr) || (float)lr <= 0.0f || !dti_fits_f32(momentum) || momentum < 0.0 ||
        (float)momentum >= 1.0f)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".local.outer.lr is %g, .local.outer.momentum %g; lr must be above 0, "
                        "momentum in [0, 1) (0 is DT_ZERO)",
                        lr, momentum);
    const double keep = dti_or(d->local.compress_ratio, 0.01);
    if ((unsigned)d->local.compress > DT_COMPRESS_TOPK || !(keep > 0.0 && keep <= 1.0))
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            ".local.compress is %d, .local.compress_ratio %g; a dt_compress, and above 0 to 1",
            (int)d->local.compress, keep);
    if (d->local.compress_ratio != 0.0 && d->local.compress != DT_COMPRESS_TOPK)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".local.compress_ratio is %g, and only .local.compress = DT_COMPRESS_TOPK "
                        "uses it; set that, or leave the ratio out",
                        d->local.compress_ratio);
    if (d->mode != DT_TRAIN_LOCAL && d->local.compress)
        return dti_fail(t->base, DT_ERROR_UNSUPPORTED,
                        ".local.compress needs .mode = DT_TRAIN_LOCAL: gradients of synchronous "
                        "steps are not compressed");
    if (d->mode != DT_TRAIN_LOCAL)
        return d->local.steps || d->local.gossip || d->local.outer.lr != 0.0 ||
                       d->local.outer.momentum != 0.0 || d->local.outer.no_nesterov
                   ? dti_fail(
                         t->base, DT_ERROR_INVALID,
                         ".local.steps, .local.gossip and .local.outer need .mode = DT_TRAIN_LOCAL")
                   : DT_OK;
    if (d->parallel.batch_slices || d->parallel.balance == DT_BALANCE_MEASURED)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "DT_TRAIN_LOCAL: each replica has one batch slice, all of equal size; "
                        "leave .parallel.batch_slices (%d) and .parallel.balance at 0",
                        d->parallel.batch_slices);
    if (d->parallel.pipeline > 1)
        return dti_fail(t->base, DT_ERROR_UNSUPPORTED,
                        ".parallel.pipeline = %d cannot be combined with DT_TRAIN_LOCAL: a replica "
                        "is one device",
                        d->parallel.pipeline);
    if (t->par.desc.optim.average.kind)
        return dti_fail(t->base, DT_ERROR_UNSUPPORTED,
                        ".optim->average cannot be combined with DT_TRAIN_LOCAL: the outer step "
                        "does not move averages");
    return DT_OK;
}

static void dti_trainer_log_local(const dt_trainer *t) {
    const dti_round_desc *round = &t->par.desc.round;
    dti_log(t->base, DT_LOG_INFO,
            "local steps: %u a round, then an outer step with rate %g and %smomentum %g; results "
            "depend on the number of replicas, which is %u",
            round->steps, (double)round->lr, round->nesterov ? "Nesterov's " : "",
            (double)round->momentum, t->par.job.replicas);
    if (round->gossip_steps)
        dti_log(t->base, DT_LOG_INFO,
                "gossip: every %u steps of a round each rank averages its weights with one other "
                "of %u, %s; results also depend on how replicas are spread over processes",
                round->gossip_steps, t->par.mesh.world,
                t->par.mesh.world & (t->par.mesh.world - 1) ? "each in turn (round robin)"
                                                            : "whose number differs in one bit");
    if (round->compress)
        dti_log(t->base, DT_LOG_INFO, "%s",
                dti_compress_is_on(&t->par)
                    ? "compressed differences: results also depend on how replicas are spread over "
                      "processes, and a checkpoint lacks the error feedback"
                    : "compressed differences: this is one process, so nothing is compressed");
}

static dt_result dti_trainer_whole(const dt_trainer *t, const char *what) {
    if (!t->par.round.done)
        return DT_OK;
    return dti_fail(t->base, DT_ERROR_INVALID,
                    "%u of %u local steps of a round are made, and each replica has weights of its "
                    "own: nothing would %s; go on until a report says round_ended, as at an "
                    "epoch's end",
                    t->par.round.done, t->par.desc.round.steps, what);
}

/* ---- reports */

static void dti_report_round(dt_train_report *r, const dti_parallel_result *step) {
    dti_report_add(r, step);
    r->gradient_norm = step->norm;
    r->steps += step->steps;
    r->samples += step->samples;
    r->skipped += step->left_out;
}

static void dti_report_part(const dt_trainer *t, dt_train_report *r) {
    dti_report_round(r, &t->part);
}

/* ---- steps */

/* Where the round began: a file that is saved after this goes on from there. */
static void dti_trainer_lose_round(dt_trainer *t) {
    t->epoch = t->round_epoch;
    t->index = t->round_index;
}

static dt_result dti_trainer_step_local(dt_trainer *t, const dti_batch *batch, dt_result own,
                                        const dt_step_desc *desc, dt_train_report *r, bool *used) {
    dti_parallel *par = &t->par;
    dti_parallel_result step;
    r->epoch = t->epoch;
    r->round_ended = false;
    if (!par->round.done) {
        t->round_epoch = t->epoch;
        t->round_index = t->index;
    }
    dt_result result = dti_inner_step(par, batch, own, desc, &step);
    if (par->lost && step.round_ended && step.committed)
        dti_trainer_move_on(t, batch->last); /* the weights are those behind it */
    else if (par->lost)
        dti_trainer_lose_round(t);
    *used = !par->lost && (!result || step.skipped);
    if (!*used)
        return result;
    r->epoch_ended = batch->last;
    r->round_ended = step.round_ended;
    if (step.round_ended)
        dti_report_round(r, &step);
    else if (par->asked) { /* at the round's end */
        atomic_store(&t->wanted, 1);
        par->asked = false;
    }
    t->part = step;
    dti_trainer_move_on(t, batch->last);
    return result;
}
