/* Metrics on the host: sums in double over batches and ranks, and the measures computed from them.
 * It owns the sums and, for an exact binary metric, the samples. It must not know programs: the
 * application passes the values that it has read. */

/* Where the sums are. */
enum {
    DTI_METRIC_WEIGHT,
    DTI_METRIC_HITS,
    DTI_METRIC_TOP,
    DTI_METRIC_LOG,
    DTI_METRIC_CONFUSION,
    DTI_METRIC_ABS = 1,
    DTI_METRIC_ROWS, /* whatever they weigh */
    DTI_METRIC_SQUARE,
    DTI_METRIC_T, /* a pair: the sum, then its rounding error; so is the next */
    DTI_METRIC_TT = DTI_METRIC_T + 2,
    DTI_METRIC_TT_LOW,
    DTI_METRIC_VALUES,
    DTI_METRIC_CLASSES_MAX = 4096 /* with a confusion matrix: 128 MiB */
};

typedef struct dti_scored { /* a sample of an exact binary metric */
    float score, positive;
    double weight;
} dti_scored;

struct dt_metric {
    dti_base *base;
    dt_metric_desc desc; /* resolved */
    double *sums;
    size_t count;
    dti_scored *samples;
    size_t sample_count, sample_capacity;
};

/* ---- life */

static dt_metric_desc dti_metric_resolved(const dt_metric_desc *given) {
    dt_metric_desc d = *given;
    d.kind = d.kind ? d.kind : DT_METRIC_CLASSES;
    d.top_k = d.top_k ? d.top_k : DTI_MIN(5, d.classes);
    d.ignore_index = (int32_t)dti_or(d.ignore_index, -100);
    d.peak = dti_or(d.peak, 1.0);
    return d;
}

static const char *dti_metric_wrong(const dt_metric_desc *d) {
    if (d->kind < DT_METRIC_DEFAULT || d->kind > DT_METRIC_REGRESSION)
        return ".kind must be a dt_metric_kind";
    if (d->kind == DT_METRIC_CLASSES && d->classes < 2)
        return ".classes must be at least 2";
    if (d->kind == DT_METRIC_CLASSES && (d->top_k < 1 || d->top_k > d->classes))
        return ".top_k must be from 1 to .classes";
    if (d->kind == DT_METRIC_CLASSES && d->classes > DTI_METRIC_CLASSES_MAX && !d->no_confusion)
        return "the confusion matrix is too large for more than 4096 .classes; set .no_confusion";
    if (d->bins < 0 || d->bins > 1 << 24)
        return ".bins must be from 0 to 2^24";
    return d->peak > 0.0 && isfinite(d->peak) ? NULL : ".peak must be above 0 and finite";
}

static size_t dti_metric_count(const dt_metric_desc *d) {
    const size_t classes = (size_t)d->classes;
    if (d->kind == DT_METRIC_REGRESSION)
        return DTI_METRIC_VALUES;
    if (d->kind == DT_METRIC_BINARY)
        return 1 + 2 * (size_t)d->bins;
    return DTI_METRIC_CONFUSION + (d->no_confusion ? 0 : classes * classes + classes);
}

DTI_PUBLIC_NEW(dt_metric_create, (dt_ctx * ctx, const dt_metric_desc *desc, dt_metric **out), ctx,
               DTI_CTX, (ctx, desc, out), dt_metric_destroy) {
    dti_base *base = dti_ctx_base(ctx);
    DTI_NEED(base, desc);
    const dt_metric_desc d = dti_metric_resolved(desc);
    const char *wrong = dti_metric_wrong(&d);
    if (wrong)
        return dti_fail(base, DT_ERROR_INVALID, "dt_metric_create: %s", wrong);
    dt_metric *m = *out = dti_alloc(base, sizeof *m);
    DTI_HAVE(m);
    *m = (dt_metric){.base = base, .desc = d, .count = dti_metric_count(&d)};
    m->sums = dti_alloc_array(base, m->count, sizeof *m->sums);
    DTI_HAVE(m->sums);
    dt_metric_reset(m);
    return DT_OK;
}

DTI_PUBLIC_VOID(dt_metric_destroy, (dt_metric * m), m, DTI_OF(dt_metric) | DTI_UNUSED, (m)) {
    DTI_FREE(m->base, m->samples, m->sums, m);
}

DTI_PUBLIC_VOID(dt_metric_reset, (dt_metric * m), m, DTI_OF(dt_metric), (m)) {
    for (size_t i = 0; i < m->count; i++)
        m->sums[i] = 0.0;
    m->sample_count = 0;
}

/* ---- adding */

static dt_result dti_metric_row(const dt_metric *m, size_t row, const char *what, double value) {
    return dti_fail(m->base, DT_ERROR_INVALID, "dt_metric_add: row %zu: %s %g", row, what, value);
}

/* `columns` scores of a row: none may be a NaN. */
static dt_result dti_metric_check_scores(const dt_metric *m, const float *y, size_t row,
                                         int columns) {
    for (int c = 0; c < columns; c++) {
        if (isnan(y[row * (size_t)columns + (size_t)c]))
            return dti_fail(m->base, DT_ERROR_INVALID,
                            "dt_metric_add: row %zu, column %d: the score is NaN, which cannot be "
                            "ordered; leave the row out, or check the model's output",
                            row, c);
    }
    return DT_OK;
}

static dt_result dti_metric_check_row(const dt_metric *m, const float *y, const void *t, size_t i) {
    const dt_metric_desc *d = &m->desc;
    if (d->kind == DT_METRIC_REGRESSION)
        return DT_OK;
    if (d->kind == DT_METRIC_CLASSES) {
        const int32_t target = ((const int32_t *)t)[i];
        if (target == d->ignore_index)
            return DT_OK;
        return target >= 0 && target < d->classes
                   ? dti_metric_check_scores(m, y, i, d->classes)
                   : dti_metric_row(m, i, "there is no class", target);
    }
    const double target = (double)((const float *)t)[i];
    if (!(target == 0.0 || target == 1.0))
        return dti_metric_row(m, i, "the target must be 0 or 1, not", target);
    if (d->bins && (y[i] < 0.0f || y[i] > 1.0f))
        return dti_metric_row(m, i, "the score must be from 0 to 1, not", y[i]);
    return dti_metric_check_scores(m, y, i, 1);
}

static dt_result dti_metric_check(const dt_metric *m, const float *y, const void *t,
                                  const float *weights, size_t rows) {
    for (size_t i = 0; i < rows; i++) {
        if (weights && !(weights[i] >= 0.0f && isfinite(weights[i])))
            return dti_metric_row(m, i, "the weight is", (double)weights[i]);
        DTI_TRY(dti_metric_check_row(m, y, t, i));
    }
    return DT_OK;
}

/* As dt_accuracy: among equals the first wins. */
static bool dti_metric_beats(const float *y, int a, int b) {
    return y[a] > y[b] || (y[a] == y[b] && a < b);
}

static double dti_metric_log_loss(const float *y, int classes, int target) {
    double high = -INFINITY, sum = 0.0;
    for (int c = 0; c < classes; c++)
        high = fmax(high, (double)y[c]);
    for (int c = 0; c < classes; c++)
        sum += dti_exp((double)y[c] - high);
    return isfinite(sum) ? dti_ln(sum) - ((double)y[target] - high) : NAN;
}

/* Rows that a class is the target or the prediction of, whatever they weigh. */
static double *dti_metric_seen(const dt_metric *m, int c) {
    const size_t classes = (size_t)m->desc.classes;
    return &m->sums[DTI_METRIC_CONFUSION + classes * classes + (size_t)c];
}

static void dti_metric_add_class(dt_metric *m, const float *y, int32_t target, double weight) {
    const int classes = m->desc.classes;
    int best = 0, above = 0;
    if (target == m->desc.ignore_index)
        return;
    for (int c = 0; c < classes; c++) {
        best = dti_metric_beats(y, c, best) ? c : best;
        above += dti_metric_beats(y, c, target);
    }
    m->sums[DTI_METRIC_WEIGHT] += weight;
    m->sums[DTI_METRIC_HITS] += above == 0 ? weight : 0.0;
    m->sums[DTI_METRIC_TOP] += above < m->desc.top_k ? weight : 0.0;
    m->sums[DTI_METRIC_LOG] += weight * dti_metric_log_loss(y, classes, target);
    if (m->desc.no_confusion)
        return;
    m->sums[DTI_METRIC_CONFUSION + (size_t)target * (size_t)classes + (size_t)best] += weight;
    *dti_metric_seen(m, target) += 1.0;
    *dti_metric_seen(m, best) += target != best ? 1.0 : 0.0;
}

static void dti_metric_add_score(dt_metric *m, float score, bool positive, double weight) {
    const size_t bins = (size_t)m->desc.bins;
    m->sums[DTI_METRIC_WEIGHT] += weight;
    if (!bins) {
        m->samples[m->sample_count++] = (dti_scored){score, positive, weight};
        return;
    }
    const size_t bin = DTI_MIN((size_t)((double)score * (double)bins), bins - 1);
    m->sums[1 + bin + (positive ? 0 : bins)] += weight;
}

/* Sums of targets and of their squares are pairs (sum, rounding error). If the mean is far from 0,
 * the variance is a small difference of large numbers. */

/* The first 26 bits: products of such halves are exact (Dekker, 1971). */
static double dti_metric_high(double x) {
    double c = 134217729.0 * x, rest;
    DTI_FENCE(c);
    rest = c - x;
    DTI_FENCE(rest);
    return c - rest;
}

static void dti_metric_pair_add(double sum[2], double x) {
    double s = sum[0] + x, more;
    DTI_FENCE(s);
    more = s - sum[0];
    DTI_FENCE(more);
    double rest = s - more;
    DTI_FENCE(rest);
    sum[1] += (sum[0] - rest) + (x - more);
    sum[0] = s;
}

/* sum += a b */
static void dti_metric_pair_product(double sum[2], double a, double b) {
    const double ah = dti_metric_high(a), bh = dti_metric_high(b), al = a - ah, bl = b - bh;
    dti_metric_pair_add(sum, ah * bh);
    dti_metric_pair_add(sum, ah * bl);
    dti_metric_pair_add(sum, al * bh);
    sum[1] += al * bl;
}

/* Sums with few bits add up over ranks without an error. */
static void dti_metric_pair_cut(double sum[2]) {
    const double high = dti_metric_high(sum[0]);
    sum[1] += sum[0] - high;
    sum[0] = high;
}

/* Sum of w (t - mean)^2 = sum of w t t - 2 mean sum of w t + mean^2 weight; 0 where it is no more
 * than these roundings: of floats that are not all equal it is. */
static double dti_metric_spread(const double *s) {
    const double weight = s[DTI_METRIC_WEIGHT], *t = s + DTI_METRIC_T;
    double sum[2] = {s[DTI_METRIC_TT], s[DTI_METRIC_TT_LOW]}, all[2] = {0, 0};
    if (!(weight > 0.0))
        return 0.0;
    const double mean = (t[0] + t[1]) / weight;
    dti_metric_pair_product(all, mean, weight);
    dti_metric_pair_add(all, -2.0 * t[0]);
    dti_metric_pair_add(all, -2.0 * t[1]);
    dti_metric_pair_product(sum, mean, all[0]);
    const double spread = sum[0] + (sum[1] + mean * all[1]);
    return spread <= 0x1p-92 * s[DTI_METRIC_TT] ? 0.0 : spread;
}

static void dti_metric_add_value(dt_metric *m, double y, double t, double weight) {
    m->sums[DTI_METRIC_WEIGHT] += weight;
    m->sums[DTI_METRIC_ROWS] += 1.0;
    m->sums[DTI_METRIC_ABS] += weight * fabs(y - t);
    m->sums[DTI_METRIC_SQUARE] += weight * (y - t) * (y - t);
    dti_metric_pair_add(m->sums + DTI_METRIC_T, weight * t); /* exact */
    dti_metric_pair_product(m->sums + DTI_METRIC_TT, weight * t, t);
}

DTI_PUBLIC(dt_metric_add,
           (dt_metric * m, const float *y, const void *t, const float *weights, size_t rows), m,
           DTI_OF(dt_metric), (m, y, t, weights, rows)) {
    DTI_NEED(m->base, y);
    DTI_NEED(m->base, t);
    dt_result result = dti_metric_check(m, y, t, weights, rows);
    if (!result && m->desc.kind == DT_METRIC_BINARY && !m->desc.bins)
        if (!DTI_RESERVE(m->base, m->samples, m->sample_capacity, m->sample_count + rows))
            result = DT_ERROR_MEMORY;
    for (size_t i = 0; i < rows && !result; i++) {
        const double weight = weights ? (double)weights[i] : 1.0;
        if (m->desc.kind == DT_METRIC_CLASSES)
            dti_metric_add_class(m, y + i * (size_t)m->desc.classes, ((const int32_t *)t)[i],
                                 weight);
        else if (m->desc.kind == DT_METRIC_BINARY)
            dti_metric_add_score(m, y[i], ((const float *)t)[i] == 1.0f, weight);
        else
            dti_metric_add_value(m, (double)y[i], (double)((const float *)t)[i], weight);
    }
    if (m->desc.kind == DT_METRIC_REGRESSION) {
        dti_metric_pair_cut(m->sums + DTI_METRIC_T);
        dti_metric_pair_cut(m->sums + DTI_METRIC_TT);
    }
    return result;
}

DTI_PUBLIC_GET(double *, dt_metric_sums, (dt_metric * m, size_t *count), m, DTI_OF(dt_metric),
               (m, count)) {
    const bool exact = m && m->desc.kind == DT_METRIC_BINARY && !m->desc.bins;
    if (count)
        *count = m && !exact ? m->count : 0;
    return m && !exact ? m->sums : NULL;
}

DTI_PUBLIC(dt_metric_reduce, (dt_metric * m, dt_comm *comm), m, DTI_OF(dt_metric), (m, comm)) {
    DTI_NEED(m->base, comm);
    size_t count;
    double *sums = dt_metric_sums(m, &count);
    if (!sums)
        return dti_fail(
            m->base, DT_ERROR_INVALID,
            "dt_metric_reduce: a metric without .bins cannot be summed over ranks; set .bins");
    return dt_comm_all_reduce(comm, sums, sums, count, DT_F64, DT_COMM_SUM);
}

/* ---- values: classes */

typedef struct dti_counts {
    double hit, wrong, missed; /* TP, FP, FN */
} dti_counts;

static dti_counts dti_metric_counts(const dt_metric *m, size_t c) {
    const size_t classes = (size_t)m->desc.classes;
    const double *matrix = m->sums + DTI_METRIC_CONFUSION;
    dti_counts n = {.hit = matrix[c * classes + c]};
    for (size_t k = 0; k < classes; k++) {
        n.missed += k == c ? 0.0 : matrix[c * classes + k];
        n.wrong += k == c ? 0.0 : matrix[k * classes + c];
    }
    return n;
}

static double dti_metric_share(double part, double whole) {
    return whole > 0.0 ? part / whole : 0.0;
}

/* `measure` of one class, or of all. */
static double dti_counts_value(dti_counts n, dt_measure measure) {
    switch (measure) {
    case DT_MEASURE_PRECISION: return dti_metric_share(n.hit, n.hit + n.wrong);
    case DT_MEASURE_RECALL: return dti_metric_share(n.hit, n.hit + n.missed);
    case DT_MEASURE_F1: return dti_metric_share(2 * n.hit, 2 * n.hit + n.wrong + n.missed);
    default: return dti_metric_share(n.hit, n.hit + n.wrong + n.missed);
    }
}

static double dti_metric_over_classes(const dt_metric *m, dt_measure measure) {
    const bool micro = measure >= DT_MEASURE_PRECISION_MICRO;
    const dt_measure of =
        micro ? measure - DT_MEASURE_PRECISION_MICRO + DT_MEASURE_PRECISION : measure;
    dti_counts all = {0};
    double sum = 0.0, present = 0.0;
    for (int c = 0; c < m->desc.classes; c++) {
        const dti_counts n = dti_metric_counts(m, (size_t)c);
        all = (dti_counts){all.hit + n.hit, all.wrong + n.wrong, all.missed + n.missed};
        sum += dti_counts_value(n, of);
        present += n.hit + n.wrong + n.missed > 0.0 || *dti_metric_seen(m, c) > 0.0;
    }
    return micro ? dti_counts_value(all, of) : dti_metric_share(sum, present);
}

/* ---- values: scores, from the highest to the lowest; equal ones are one step */

static int dti_scored_before(const void *a, const void *b) {
    const float x = ((const dti_scored *)a)->score, y = ((const dti_scored *)b)->score;
    return (x < y) - (x > y);
}

/* The weights of the next step; `at` is left after them. False: there is no next step. */
static bool dti_metric_step(const dt_metric *m, size_t *at, double *positive, double *negative) {
    const size_t bins = (size_t)m->desc.bins;
    *positive = *negative = 0.0;
    if (bins) {
        const size_t bin = bins - 1 - *at;
        if (*at >= bins)
            return false;
        *positive = m->sums[1 + bin];
        *negative = m->sums[1 + bins + bin];
        ++*at;
        return true;
    }
    const size_t first = *at;
    for (; *at < m->sample_count && m->samples[*at].score == m->samples[first].score; ++*at)
        *(m->samples[*at].positive != 0.0f ? positive : negative) += m->samples[*at].weight;
    return *at > first;
}

static dt_result dti_metric_scores(const dt_metric *m, dt_measure measure, double *value) {
    double positive, negative, above = 0.0, wrong = 0.0, area = 0.0, precision = 0.0;
    if (!m->desc.bins && m->sample_count) /* in place: their order means nothing */
        qsort(m->samples, m->sample_count, sizeof *m->samples, dti_scored_before);
    for (size_t at = 0; dti_metric_step(m, &at, &positive, &negative);) {
        area += negative * (above + 0.5 * positive);
        above += positive;
        wrong += negative;
        precision += positive * dti_metric_share(above, above + wrong);
    }
    if (measure == DT_MEASURE_AVERAGE_PRECISION) {
        *value = dti_metric_share(precision, above);
        return DT_OK;
    }
    if (!(above > 0.0 && wrong > 0.0))
        return dti_fail(m->base, DT_ERROR_INVALID,
                        "dt_metric_get: AUROC needs samples of target 1 and of target 0");
    *value = area / (above * wrong);
    return DT_OK;
}

/* ---- values: regression */

static double dti_metric_psnr(double peak, double square, double weight) {
    const double ln_10 = 2.30258509299404568402;
    if (!(square > 0.0))
        return weight > 0.0 ? INFINITY : 0.0;
    return 10.0 / ln_10 * (dti_ln(peak) - dti_ln(square));
}

static double dti_metric_regression(const dt_metric *m, dt_measure measure) {
    const double *s = m->sums, weight = s[DTI_METRIC_WEIGHT];
    const double square = dti_metric_share(s[DTI_METRIC_SQUARE], weight);
    const double spread = dti_metric_spread(s);
    if (isnan(s[DTI_METRIC_SQUARE])) /* whatever the weights and the spread are */
        return s[DTI_METRIC_SQUARE];
    switch (measure) {
    case DT_MEASURE_MAE: return dti_metric_share(s[DTI_METRIC_ABS], weight);
    case DT_MEASURE_MEAN_SQUARE: return square;
    case DT_MEASURE_RMSE: return sqrt(square);
    case DT_MEASURE_PSNR: return dti_metric_psnr(m->desc.peak * m->desc.peak, square, weight);
    default: /* R2; of one row and of targets that are all equal as scikit-learn */
        if (s[DTI_METRIC_ROWS] == 1.0)
            return (double)NAN;
        if (spread > 0.0 || isnan(spread)) /* NaN: of infinite targets */
            return 1.0 - s[DTI_METRIC_SQUARE] / spread;
        return weight > 0.0 && s[DTI_METRIC_SQUARE] == 0.0 ? 1.0 : 0.0;
    }
}

/* ---- asking */

static bool dti_metric_has(const dt_metric *m, dt_measure measure) {
    switch (m->desc.kind) {
    case DT_METRIC_BINARY:
        return measure == DT_MEASURE_AUROC || measure == DT_MEASURE_AVERAGE_PRECISION;
    case DT_METRIC_REGRESSION: return measure >= DT_MEASURE_MAE && measure <= DT_MEASURE_PSNR;
    default:
        return measure >= DT_MEASURE_ACCURACY &&
               measure < (m->desc.no_confusion ? DT_MEASURE_PRECISION : DT_MEASURE_AUROC);
    }
}

static dt_result dti_metric_lacks(const dt_metric *m, dt_measure measure) {
    return dti_fail(m->base, DT_ERROR_INVALID,
                    "dt_metric_get: this metric does not have measure %d%s", (int)measure,
                    m->desc.no_confusion ? ", as it keeps no confusion matrix" : "");
}

static double dti_metric_of_classes(const dt_metric *m, dt_measure measure) {
    const double weight = m->sums[DTI_METRIC_WEIGHT];
    switch (measure) {
    case DT_MEASURE_ACCURACY: return dti_metric_share(m->sums[DTI_METRIC_HITS], weight);
    case DT_MEASURE_TOP_K: return dti_metric_share(m->sums[DTI_METRIC_TOP], weight);
    case DT_MEASURE_PERPLEXITY:
        return weight > 0.0 ? dti_exp(m->sums[DTI_METRIC_LOG] / weight) : 0.0;
    default: return dti_metric_over_classes(m, measure);
    }
}

DTI_PUBLIC(dt_metric_get, (const dt_metric *m, dt_measure measure, double *value), m,
           DTI_OF(dt_metric), (m, measure, value)) {
    DTI_NEED(m->base, value);
    *value = 0.0;
    if (measure == DT_MEASURE_WEIGHT) {
        *value = m->sums[DTI_METRIC_WEIGHT];
        return DT_OK;
    }
    if (!dti_metric_has(m, measure))
        return dti_metric_lacks(m, measure);
    if (m->desc.kind == DT_METRIC_BINARY)
        return dti_metric_scores(m, measure, value);
    *value = m->desc.kind == DT_METRIC_REGRESSION ? dti_metric_regression(m, measure)
                                                  : dti_metric_of_classes(m, measure);
    return DT_OK;
}

DTI_PUBLIC(dt_metric_get_class,
           (const dt_metric *m, dt_measure measure, int class_index, double *value), m,
           DTI_OF(dt_metric), (m, measure, class_index, value)) {
    DTI_NEED(m->base, value);
    *value = 0.0;
    const bool one = measure >= DT_MEASURE_PRECISION && measure <= DT_MEASURE_IOU;
    if (!one || !dti_metric_has(m, measure))
        return dti_metric_lacks(m, measure);
    if (class_index < 0 || class_index >= m->desc.classes)
        return dti_fail(m->base, DT_ERROR_INVALID, "dt_metric_get_class: there is no class %d",
                        class_index);
    *value = dti_counts_value(dti_metric_counts(m, (size_t)class_index), measure);
    return DT_OK;
}
