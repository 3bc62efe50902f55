/* Writes a fit's steps to a trace, by the times of their reports. */

static void dti_profile_span(dt_profile *p, const char *name, double begin, double seconds) {
    if (seconds <= 0.0)
        return;
    dti_profile_open(p, name, "trainer", 0, begin, seconds * 1e6);
    dti_profile_close(p);
}

DTI_PUBLIC(dt_profile_fit, (void *profile, dt_fit_state *state), profile, DTI_OF(dt_profile),
           (profile, state)) {
    dt_profile *p = profile;
    const dt_fit_state *s = state;
    DTI_NEED(p->base, state);
    DTI_NEED(p->base, state->trainer);
    if (s->event != DT_FIT_STEP || !s->last.steps || p->steps < 1)
        return DT_OK;
    const dt_train_report *r = &s->last;
    const double end = dti_profile_now(p), begin = end - r->seconds * 1e6;
    p->steps--;
    dti_profile_open(p, "step", "trainer", 0, begin, end - begin);
    dti_profile_argument(p, "step", s->step);
    dti_profile_argument(p, "samples", r->samples);
    dti_profile_close(p);
    /* one after the other, although a pipeline's alternate */
    const struct {
        const char *name;
        double seconds;
    } parts[] = {{"waits for samples", r->data_seconds},
                 {"forward", r->forward_seconds},
                 {"backward", r->backward_seconds},
                 {"waits for sums", r->wait_seconds},
                 {"commit", r->commit_seconds}};
    double at = begin;
    for (size_t i = 0; i < DTI_COUNT(parts); i++) {
        dti_profile_span(p, parts[i].name, at, parts[i].seconds);
        at += parts[i].seconds * 1e6;
    }
    return DT_OK;
}
