/* Parts of a set. Rows are put in a random order, then, stably, in that of their classes; of this
 * order every k-th row validates, so each class has its share. */

#define DTI_SPLIT_LABELS_MAX ((uint32_t)1 << 24)

/* Rows in the order of their classes, as they come in `order`; counts: [classes + 1] zeros. */
static void dti_split_by_class(const uint32_t *labels, uint32_t rows, const uint32_t *order,
                               uint32_t classes, uint32_t *counts, uint32_t *sorted) {
    for (uint32_t i = 0; i < rows; i++)
        counts[labels[i] + 1]++;
    for (uint32_t c = 0; c < classes; c++)
        counts[c + 1] += counts[c];
    for (uint32_t i = 0; i < rows; i++)
        sorted[counts[labels[order[i]]]++] = order[i];
}

static dt_result dti_split_classes(dti_base *base, const uint32_t *labels, uint32_t rows,
                                   uint32_t *classes) {
    *classes = 1;
    for (uint32_t i = 0; i < rows; i++) {
        if (labels[i] >= DTI_SPLIT_LABELS_MAX)
            return dti_fail(base, DT_ERROR_INVALID, "row %u has class %u; it must be from 0 to %u",
                            i, labels[i], DTI_SPLIT_LABELS_MAX - 1);
        *classes = DTI_MAX(*classes, labels[i] + 1);
    }
    return DT_OK;
}

/* Whether place i of the order validates. */
static bool dti_split_validates(const dt_data_split_desc *d, uint32_t i) {
    const double share = dti_or(d->share, 0.2);
    if (d->folds)
        return i % (uint32_t)d->folds == (uint32_t)d->fold;
    return floor((i + 1.0) * share + 1e-9) > floor(i * share + 1e-9);
}

static dt_result dti_split_check(dti_base *base, const dt_data_split_desc *d) {
    const double share = dti_or(d->share, 0.2);
    if (!d->rows)
        return dti_fail(base, DT_ERROR_INVALID, "dt_data_split: .rows is 0; it must be at least 1");
    if (d->folds ? d->folds < 2 || d->fold < 0 || d->fold >= d->folds
                 : !(share > 0.0 && share < 1.0) || d->fold)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_data_split: .fold is %d of %d, .share %g; give a .share between 0 and "
                        "1, or .folds of 2 or more and a .fold below it",
                        d->fold, d->folds, d->share);
    return DT_OK;
}

static dt_result dti_split_order(dti_base *base, const dt_data_split_desc *d, uint32_t *order) {
    uint32_t classes;
    if (!d->labels) {
        dt_shuffle(order, d->rows, d->seed, 0);
        return DT_OK;
    }
    DTI_TRY(dti_split_classes(base, d->labels, d->rows, &classes));
    uint32_t *counts = dti_alloc_array(base, (size_t)classes + 1, sizeof *counts);
    uint32_t *shuffled = counts ? dti_alloc_array(base, d->rows, sizeof *shuffled) : NULL;
    const dt_result result = shuffled ? DT_OK : DT_ERROR_MEMORY;
    dt_shuffle(shuffled, d->rows, d->seed, 0);
    if (!result)
        dti_split_by_class(d->labels, d->rows, shuffled, classes, counts, order);
    DTI_FREE(base, shuffled, counts);
    return result;
}

DTI_PUBLIC(dt_data_split,
           (dt_ctx * ctx, const dt_data_split_desc *desc, uint32_t *train, uint32_t *train_count,
            uint32_t *valid, uint32_t *valid_count),
           ctx, DTI_CTX, (ctx, desc, train, train_count, valid, valid_count)) {
    dti_base *base = dti_ctx_base(ctx);
    DTI_NEED(base, desc);
    DTI_NEED(base, train);
    DTI_NEED(base, train_count);
    DTI_NEED(base, valid);
    DTI_NEED(base, valid_count);
    DTI_TRY(dti_split_check(base, desc));
    DTI_TRY(dti_split_order(base, desc, valid));
    uint8_t *validates = dti_alloc(base, desc->rows);
    DTI_HAVE(validates);
    uint32_t counts[2] = {0, 0};
    for (uint32_t i = 0; i < desc->rows; i++)
        validates[valid[i]] = dti_split_validates(desc, i);
    for (uint32_t i = 0; i < desc->rows; i++)
        (validates[i] ? valid : train)[counts[validates[i]]++] = i;
    dti_free(base, validates);
    if (!counts[0] || !counts[1])
        return dti_fail(
            base, DT_ERROR_INVALID,
            "dt_data_split: of %u rows %u would train and %u validate; neither part may be "
            "empty",
            desc->rows, counts[0], counts[1]);
    *train_count = counts[0];
    *valid_count = counts[1];
    return DT_OK;
}

DTI_PUBLIC(dt_balanced_weights,
           (dt_ctx * ctx, const uint32_t *labels, uint32_t rows, float *weights), ctx, DTI_CTX,
           (ctx, labels, rows, weights)) {
    dti_base *base = dti_ctx_base(ctx);
    DTI_NEED(base, labels);
    DTI_NEED(base, weights);
    uint32_t classes;
    if (!rows)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_balanced_weights: rows is 0; it must be at least 1");
    DTI_TRY(dti_split_classes(base, labels, rows, &classes));
    uint32_t *counts = dti_alloc_array(base, classes, sizeof *counts);
    DTI_HAVE(counts);
    for (uint32_t i = 0; i < rows; i++)
        counts[labels[i]]++;
    for (uint32_t i = 0; i < rows; i++)
        weights[i] = 1.0f / (float)counts[labels[i]];
    dti_free(base, counts);
    return DT_OK;
}
