/* Trainers with local steps. This file owns their reports within a round and at its end. It refuses
 * calls that cannot be made in the middle of a round. */

static dt_result dti_trainer_whole(const dt_trainer *t, const char *what) {
    if (!t->par.round.done)
        return DT_OK;
    return dti_fail(
        t->base, DT_ERROR_INVALID,
        "%u of %u local steps of the round are done, so replicas have different weights and cannot "
        "%s; step until a report has round_ended, as at the end of an epoch",
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

/* A checkpoint that is requested within a round is written at the round's end. */
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
