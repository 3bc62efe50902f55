/* The range test of learning rates (Smith, "Cyclical Learning Rates for Training Neural Networks",
 * 2017, section 3.3): steps at rates that grow geometrically, and how their losses go. A checkpoint
 * restores the job afterwards, so the test supports replicas, ranks and stages. */

#define DTI_LR_STEPS 100
#define DTI_LR_DIVERGED 4.0 /* times the smallest smoothed loss: nothing more is learnt */

typedef struct dti_lr_find {
    dt_trainer *t;
    dt_lr_find_desc d; /* no 0 in it that means another number */
    dt_lr_curve *curve;
    double lr;      /* the rate before the test; the file lacks it */
    uint64_t saved; /* the step of the newest checkpoint */
    dti_watched watched;
    double mean, best; /* of losses, exponentially; its smallest value */
} dti_lr_find;

static dt_lr_find_desc dti_lr_resolved(const dt_lr_find_desc *given) {
    dt_lr_find_desc d = given ? *given : (dt_lr_find_desc){0};
    d.min = d.min != 0.0 ? d.min : 1e-7;
    d.max = d.max != 0.0 ? d.max : 10.0;
    d.steps = d.steps ? d.steps : DTI_LR_STEPS;
    d.smoothing = d.smoothing == (double)DT_ZERO ? 0.0 : d.smoothing != 0.0 ? d.smoothing : 0.9;
    d.file = d.file ? d.file : "dtrain.lr_find.state";
    return d;
}

/* An existing file would be replaced, and then removed; it may be the only copy of a job's
 * state. */
static dt_result dti_lr_check_file(const dti_lr_find *f) {
    uint64_t size;
    int stream;
    if (f->t->par.mesh.rank || dti_stream_open(f->d.file, &stream, &size))
        return DT_OK; /* a path that cannot be written is an error of saving */
    dti_stream_close(stream);
    return size ? dti_fail(f->t->base, DT_ERROR_INVALID,
                           "dt_lr_find: .file is '%s', which exists, and would be replaced and "
                           "then removed; move it, or name another .file",
                           f->d.file)
                : DT_OK;
}

static dt_result dti_lr_check(const dti_lr_find *f) {
    const dt_lr_find_desc *d = &f->d;
    dti_base *base = f->t->base;
    if (!(d->min > 0.0 && d->min < d->max) || !dti_fits_f32(d->max))
        return dti_fail(
            base, DT_ERROR_INVALID,
            "dt_lr_find: .min is %g and .max is %g; it must be 0 < .min < .max, both finite as f32",
            d->min, d->max);
    if (d->steps < 5 || d->steps > 1000000)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_lr_find: .steps is %d; it must be from 5 to 1000000", d->steps);
    if (!(d->smoothing >= 0.0 && d->smoothing < 1.0))
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_lr_find: .smoothing is %g; it must be at least 0 and below 1",
                        d->smoothing);
    if (dti_parallel_is_local(&f->t->par))
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        "dt_lr_find: .mode is DT_TRAIN_LOCAL, where only the end of a round shows "
                        "what a rate does; use a trainer with DT_TRAIN_SYNCHRONOUS");
    const dt_stream_desc *stream = f->t->desc.data.stream;
    if (stream && !stream->seek)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_lr_find: .data.stream has no .seek, which the return to the state "
                        "before the test requires");
    const dt_result result = dti_worker_has_no(f->t, "rates to try");
    return result ? result : dti_lr_check_file(f);
}

/* The number of the point decides its rate, so all ranks take the same. */
static double dti_lr_rate(const dti_lr_find *f, int i) {
    return f->d.min * dti_exp((double)i / (double)(f->d.steps - 1) * dti_ln(f->d.max / f->d.min));
}

/* Whether the test goes on after point i. A step that was skipped for a NaN has no loss. */
static bool dti_lr_add(dti_lr_find *f, int i, double lr, double loss) {
    const double keep = f->d.smoothing;
    if (!dti_finite_f64(loss))
        return false;
    f->mean = keep * f->mean + (1.0 - keep) * loss;
    const double smooth = f->mean / (1.0 - dti_rate_power(keep, (uint64_t)i + 1));
    f->best = i && f->best < smooth ? f->best : smooth;
    f->curve->points[f->curve->count++] = (dt_lr_point){lr, loss, smooth};
    return i < f->d.steps / 10 || smooth <= f->best + (DTI_LR_DIVERGED - 1.0) * fabs(f->best);
}

static dt_result dti_lr_steps(dti_lr_find *f) {
    dt_trainer *t = f->t;
    for (int i = 0; i < f->d.steps; i++) {
        dt_train_report r = {0};
        const double lr = dti_lr_rate(f, i);
        bool used;
        dt_result result = dt_trainer_set_lr(t, lr);
        if (!result)
            result = dti_trainer_step(t, 0, &r, &used);
        dti_report_close(t, &r);
        f->curve->diverged = result == DT_ERROR_NUMERIC;
        if (result)
            return f->curve->diverged ? DT_OK : result;
        if (!dti_lr_add(f, i, lr, r.loss)) {
            f->curve->diverged = true;
            return DT_OK;
        }
    }
    return DT_OK;
}

/* Where the smoothed loss falls fastest by the logarithm of the rate, which grows by equal steps.
 * The first tenth is left out: few losses have been seen there. */
static double dti_lr_suggestion(const dt_lr_curve *c) {
    double steepest = 0.0, lr = 0.0;
    for (size_t i = c->count / 10 + 1; i + 1 < c->count; i++) {
        const double slope = c->points[i + 1].smooth - c->points[i - 1].smooth;
        if (slope < steepest) {
            steepest = slope;
            lr = c->points[i].lr;
        }
    }
    return lr;
}

/* The file stays: it is all that has the state. */
static dt_result dti_lr_not_back(dti_lr_find *f, dt_result result) {
    return dti_fail(f->t->base, result,
                    "%s; the state before the test is in '%s'; call dt_trainer_load with it",
                    f->t->base->error, f->d.file);
}

/* Restores the job: from the file, and the state that it lacks. */
static dt_result dti_lr_back(dti_lr_find *f, dt_result result) {
    dt_trainer *t = f->t;
    const dti_error_text error = dti_error_of(&t->par);
    t->lr = f->lr;
    const dt_result loaded = t->par.lost ? DT_OK : dt_trainer_load(t, f->d.file);
    t->saved = f->saved;
    t->watched = f->watched;
    if (loaded)
        return dti_lr_not_back(f, loaded);
    if (t->par.mesh.rank == 0 && !t->par.lost)
        dti_file_remove(f->d.file);
    if (result)
        dti_error_back(&t->par, &error);
    return result;
}

static dt_result dti_lr_run(dti_lr_find *f) {
    DTI_TRY(dti_agree_result(&f->t->par, dti_lr_check(f)));
    f->curve->points = dti_alloc_array(f->t->base, (size_t)f->d.steps, sizeof *f->curve->points);
    DTI_TRY(dti_agree_result(&f->t->par, f->curve->points ? DT_OK : DT_ERROR_MEMORY));
    dti_trainer_drain(f->t);
    f->lr = f->t->lr;
    f->saved = f->t->saved;
    f->watched = f->t->watched;
    DTI_TRY(dt_trainer_save(f->t, f->d.file));
    dt_result result = dti_lr_back(f, dti_lr_steps(f));
    if (!result)
        f->curve->suggestion = dti_lr_suggestion(f->curve);
    return result;
}

DTI_PUBLIC(dt_lr_find, (dt_trainer * t, const dt_lr_find_desc *desc, dt_lr_curve *curve), t,
           DTI_OF(dt_trainer) | DTI_LACKING | DTI_WITH | DTI_UNUSED, (t, desc, curve)) {
    if (curve)
        *curve = (dt_lr_curve){.ctx = t ? t->graph->ctx : NULL};
    DTI_NEED(NULL, t);
    DTI_NEED(t->base, curve);
    dt_result result = dti_trainer_goes_on(t);
    dti_lr_find f = {.t = t, .d = dti_lr_resolved(desc), .curve = curve};
    if (!result)
        result = dti_lr_run(&f);
    if (result)
        dt_lr_curve_destroy(curve);
    return result;
}

DT_API void dt_lr_curve_destroy(dt_lr_curve *curve) {
    if (curve && dti_free_public(curve->ctx, curve->points, __func__))
        *curve = (dt_lr_curve){0};
}
