/* Checks a fit's description: against the trainer, the set to validate on, and the descriptions of
 * the other ranks. */

/* ---- the members of a description */

#define DTI_FIT_RANGES(X)                                                                          \
    X(FIT_INT, .most = (double)INT_MAX)                                                            \
    X(MIN_DELTA, .most = DBL_MAX)
DTI_RANGES(dti_fit_ranges, DTI_FIT_RANGES);

/* clang-format off */
#define DTI_FIT_FIELDS(X)                                                                          \
    X(dt_fit_desc, epochs, U64, ALL, ANY, 1)                                                       \
    X(dt_fit_desc, steps, U64, ALL, ANY, 1)                                                        \
    X(dt_fit_desc, validation, POINTER, ALL, ANY, 1)                                               \
    X(dt_fit_desc, validation_batch, INT, ALL, FIT_INT, 1)                                         \
    X(dt_fit_desc, validation_steps, U64, ALL, ANY, 1)                                             \
    X(dt_fit_desc, validation_epochs, U64, ALL, ANY, 1)                                            \
    X(dt_fit_desc, watch.metric, TEXT, CODE, ANY, 1)                                               \
    X(dt_fit_desc, watch.maximize, BOOL, ALL, ANY, 1)                                              \
    X(dt_fit_desc, watch.min_delta, F64, ALL, MIN_DELTA, 1)                                        \
    X(dt_fit_desc, watch.patience, INT, ALL, FIT_INT, 1)                                           \
    X(dt_fit_desc, watch.restore_best, BOOL, ALL, ANY, 1)                                          \
    X(dt_fit_desc, watch.save, POINTER, ALL, ANY, 1)                                               \
    X(dt_fit_desc, no_resume, BOOL, ALL, ANY, 1)                                                   \
    X(dt_fit_desc, max_skips, U64, ALL, ANY, 1)                                                    \
    X(dt_fit_desc, callbacks, OTHER, CODE, ANY, 1)
/* clang-format on */
DTI_FIELDS(dti_fit_fields, DTI_FIT_FIELDS, dti_fit_ranges);

/* ---- checks by one rank */

static dt_result dti_fit_no_metric(const dt_trainer *t, const char *metric) {
    dti_text names = dti_text_open(t->base);
    for (int i = 0; i < DTI_VALUES; i++) {
        dti_value_room room;
        const char *name = dti_value_name(t, i, &room);
        if (name)
            dti_text_add(&names, i ? ", '%s'" : "'%s'", name);
    }
    dt_result result =
        dti_fail(t->base, DT_ERROR_INVALID, "fit: .watch.metric is '%s'; this trainer has %s",
                 dti_show(metric).text, names.ok ? names.data : "more");
    dti_text_free(&names);
    return result;
}

static dt_result dti_fit_check_watch(const dt_trainer *t, const dt_watch *w) {
    if (dti_value_find(t, w->metric) < 0)
        return dti_fit_no_metric(t, w->metric);
    if (w->restore_best && t->desc.averaged)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "fit: .watch.restore_best cannot be combined with the trainer's .averaged; "
                        "give .watch.save a file");
    return DT_OK;
}

/* Checks that the first validation would otherwise make after an epoch of training. */
static dt_result dti_fit_check_validation(dt_trainer *t, const dt_fit_desc *d) {
    dti_base *base = t->base;
    const dt_logger logger = base->logger;
    base->logger = (dt_logger){0}; /* one line, with the field */
    dt_result result = dti_evaluation_check(t, d->validation, d->validation_batch);
    base->logger = logger;
    return result ? dti_fail(base, result, "fit: .validation: %s", base->error) : DT_OK;
}

static dt_result dti_fit_check_own(dt_trainer *t, const dt_fit_desc *d) {
    DTI_TRY(dti_fields_check(t->base, "fit: ", &dti_fit_fields, d));
    if (!d->epochs && !d->steps)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "fit: neither .epochs nor .steps is set; give one");
    if (!d->validation && (d->validation_batch || d->validation_steps || d->validation_epochs))
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            "fit: .validation_batch, .validation_steps and .validation_epochs need .validation");
    if (d->validation_steps && dti_parallel_is_local(&t->par))
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "fit: .validation_steps cannot be combined with DT_TRAIN_LOCAL: replicas "
                        "have the same weights only at rounds' ends; give .validation_epochs");
    if (d->validation_steps && d->validation_epochs)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "fit: .validation_steps and .validation_epochs are both set; give one");
    if (dti_dataset_endless(&t->desc.data) &&
        (!d->steps || d->epochs || (d->validation && !d->validation_steps)))
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            "fit: .data.rows is 0, so an epoch of the stream has no end; give .data.rows, or "
            ".steps (and .validation_steps with .validation) without .epochs");
    const dt_result result = dti_fit_check_watch(t, &d->watch);
    return result || !d->validation ? result : dti_fit_check_validation(t, d);
}

/* ---- checks between ranks */

static dt_result dti_fit_check(dt_trainer *t, const dt_fit_desc *d) {
    dti_text text = dti_text_open(t->base);
    dt_result result = dti_fit_check_own(t, d);
    if (!result) {
        dti_fields_describe(&text, "fit: ", &dti_fit_fields, d, false);
        dti_text_add(&text, "fit: .watch.metric is value %d\n", dti_value_find(t, d->watch.metric));
        if (d->validation)
            dti_text_add(&text, "fit: .validation->rows %llu\n",
                         (unsigned long long)d->validation->rows);
        result = text.ok ? DT_OK : DT_ERROR_MEMORY;
    }
    result = dti_agree_result(&t->par, result);
    if (!result)
        result = dti_agree_text(&t->par, text.data, text.size);
    dti_text_free(&text);
    return result;
}
