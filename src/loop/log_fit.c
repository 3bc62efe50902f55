/* Writes a fit's results to a log. A log that fails closes itself and reports that; training goes
 * on. */

static void dti_log_values(dt_run_log *log, const dt_trainer *t, const char *group, uint64_t step,
                           const dt_train_report *r) {
    for (int i = 0; i < DTI_VALUES; i++) {
        dti_value_room room;
        const char *name = dti_value_name(t, i, &room);
        if (name)
            dti_run_log_number(log, dti_log_join(log, group, name), step, dti_value_of(r, i));
    }
}

static void dti_log_step(dt_run_log *log, const dt_fit_state *s) {
    const dt_train_report *r = &s->last;
    dti_log_values(log, s->trainer, "train", s->step, r);
    dti_run_log_number(log, "train/gradient_norm", s->step, r->gradient_norm);
    if (!dti_worker_of(s->trainer)) /* whose servers have it */
        dti_run_log_number(log, "train/lr", s->step, r->lr);
    if (r->seconds > 0.0)
        dti_run_log_number(log, "train/samples_per_second", s->step,
                           (double)r->samples / r->seconds);
}

static dt_result dti_run_log_see(dt_run_log *run_log, const dt_fit_state *state) {
    dt_run_log *log = run_log;
    const dt_fit_state *s = state;
    dti_base *base = log ? log->base : s && s->trainer ? s->trainer->base : NULL;
    DTI_NEED(base, run_log);
    DTI_NEED(base, state);
    DTI_NEED(base, state->trainer);
    if (s->trainer->par.mesh.rank || log->closed)
        return DT_OK;
    dti_run_log_begin(log);
    if (s->event == DT_FIT_BEGIN && s->step)
        dti_run_log_restarts(log, s->step);
    const uint64_t before = s->step - s->last.steps; /* two steps may end together */
    if (s->event == DT_FIT_STEP && s->last.steps && s->step / log->every > before / log->every)
        dti_log_step(log, s);
    if (s->event == DT_FIT_EPOCH && s->train.steps)
        dti_log_values(log, s->trainer, "epoch", s->step, &s->train);
    if (s->event == DT_FIT_VALIDATED)
        dti_log_values(log, s->trainer, "validation", s->step, &s->validation);
    dti_run_log_write(log);
    return DT_OK;
}

/* Without a log it is a call on the trainer, whose context has the text. */
DT_API dt_result dt_run_log_fit(void *run_log, dt_fit_state *state) {
    dti_visit visit;
    const bool taken = run_log
                           ? dti_enter(run_log, &visit, DTI_OF(dt_run_log) | DTI_TELLS, __func__)
                           : dti_enter(state ? state->trainer : NULL, &visit,
                                       DTI_OF(dt_trainer) | DTI_TELLS, __func__);
    return dti_leave(&visit, !DTI_HERE
                                 ? dti_fail_off(taken ? visit.base : NULL, __func__, DTI_HERE_OFF)
                             : taken ? dti_run_log_see(run_log, state)
                                     : DT_ERROR_INVALID);
}
