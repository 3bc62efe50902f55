/* A trainer whose steps are local: what its description must be, what reports say within a round
 * and at its end, and what may not happen in the middle of one. */

static void dti_trainer_resolve_local(dt_trainer *t) {
    const dt_trainer_desc *d = &t->desc;
    dti_round_desc *round = &t->par.desc.round;
    if (d->mode != DT_TRAIN_LOCAL)
        return;
    round->steps = (uint32_t)DTI_MAX(d->local.steps, 1);
    if (d->local.gossip > 1) {
        round->gossip_steps = round->steps;
        round->steps *= (uint32_t)d->local.gossip;
    }
    round->lr = (float)d->local.outer.lr;
    round->momentum = (float)d->local.outer.momentum;
    round->nesterov = !d->local.outer.no_nesterov;
    round->compress = (uint8_t)d->local.compress;
    round->keep = d->local.compress_ratio;
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

/* Who asks for a checkpoint within a round gets it at the round's end. */
static void dti_trainer_round_step(dt_trainer *t, const dti_parallel_result *step,
                                   dt_train_report *r) {
    r->round_ended = step->round_ended;
    if (step->round_ended) {
        dti_report_round(r, step);
    } else if (t->par.asked) {
        atomic_store(&t->wanted, 1);
        t->par.asked = false;
    }
    t->part = *step;
}
