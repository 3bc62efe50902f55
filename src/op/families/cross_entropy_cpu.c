/* Cross-entropy on the CPU: a buffer full of rows goes through exp together. */

#define DTI_XENT_RUN 128 /* floats of a buffer on the stack */

typedef struct dti_row_sums {
    int64_t rows;                /* that were done */
    float high[DTI_XENT_RUN];    /* of each row: its maximum */
    float log_sum[DTI_XENT_RUN]; /* log sum exp(x - high) */
} dti_row_sums;

static int64_t dti_rows_at_once(int64_t rows, int64_t classes) {
    return DTI_MAX(1, DTI_MIN(rows, DTI_XENT_RUN / classes));
}

/* One row, longer than the buffer; runs of it are added in order, in double. */
static float dti_row_exp_sum(const dti_isa_kernels *k, const float *x, int64_t n, float high) {
    float buf[DTI_XENT_RUN];
    double sum = 0;
    for (int64_t i = 0; i < n; i += DTI_XENT_RUN) {
        int64_t run = DTI_MIN(n - i, DTI_XENT_RUN);
        k->unary[DTI_U_AFFINE](buf, x + i, run, 1.0f, -high);
        k->unary[DTI_U_EXP](buf, buf, run, 0, 0);
        sum += (double)k->row_sum(buf, run);
    }
    return (float)sum;
}

static void dti_rows_log_sum(const dti_isa_kernels *k, const float *x, int64_t rows,
                             int64_t classes, dti_row_sums *s) {
    float buf[DTI_XENT_RUN];
    s->rows = dti_rows_at_once(rows, classes);
    for (int64_t r = 0; r < s->rows; r++)
        s->high[r] = k->row_max(x + r * classes, classes);
    if (classes > DTI_XENT_RUN) {
        s->log_sum[0] = dti_row_exp_sum(k, x, classes, s->high[0]);
    } else {
        for (int64_t r = 0; r < s->rows; r++) {
            for (int64_t c = r * classes; c < (r + 1) * classes; c++)
                buf[c] = x[c] - s->high[r];
        }
        k->unary[DTI_U_EXP](buf, buf, s->rows * classes, 0, 0);
        for (int64_t r = 0; r < s->rows; r++) {
            s->log_sum[r] = k->row_sum(buf + r * classes, classes);
        }
    }
    k->unary[DTI_U_LOG](s->log_sum, s->log_sum, s->rows, 0, 0);
}

/* Values that are the same for all rows. */
typedef struct dti_xent_job {
    const dti_args_xent *args;
    const float *x, *weight; /* weight NULL: 1 for each class */
    const dti_word *target;
    uint32_t mode;
} dti_xent_job;

static dti_xent_job dti_xent_job_of(const dti_cpu_task *task) {
    const dti_args_xent *a = &task->launch->args.xent;
    dti_xent_job j = {
        .args = a, .x = dti_cpu_in(task, 0, a->x_offset), .mode = task->launch->spec[0]};
    j.target = (const dti_word *)task->buf[1] + a->t_offset;
    if (task->launch->spec[1])
        j.weight = dti_cpu_in(task, 2, a->s_offset);
    return j;
}

static float dti_xent_weight(const dti_xent_job *j, int64_t c) {
    return j->weight ? j->weight[c * j->args->s_stride] : 1.0f;
}

/* Sums are of products of two floats in double: exact, so contraction cannot change them. */
static float dti_xent_loss(const dti_xent_job *j, const float *x, float high, float log_sum,
                           int64_t target) {
    float loss = dti_xent_weight(j, target) * (log_sum - (x[target] - high));
    const float smoothing = j->args->smoothing;
    if (smoothing == 0.0f)
        return loss;
    double sum = 0;
    for (int64_t c = 0; c < j->args->classes; c++) {
        float minus_log_p = log_sum - (x[c] - high);
        sum += (double)dti_xent_weight(j, c) * (double)minus_log_p;
    }
    float share = smoothing / (float)j->args->classes, keep = 1.0f - smoothing, spread = (float)sum;
    return (float)((double)keep * (double)loss + (double)share * (double)spread);
}

/* A NaN is the largest; among equals the first wins. */
static int64_t dti_row_argmax(const dti_isa_kernels *k, const float *x, int64_t n) {
    const float high = k->row_max(x, n);
    const bool nan = dti_nan_f32(high);
    for (int64_t c = 0; c < n; c++) {
        if (nan ? dti_nan_f32(x[c]) : x[c] == high)
            return c;
    }
    return 0;
}

static void dti_xent_pair(const dti_cpu_task *task, const dti_xent_job *j, int64_t row, float high,
                          float log_sum, float *pair) {
    const int32_t target = (int32_t)j->target[row];
    const float *x = j->x + row * j->args->classes;
    pair[0] = pair[1] = 0.0f;
    if (target == j->args->ignore_index)
        return;
    if ((uint32_t)target >= j->args->classes) {
        pair[0] = pair[1] = dti_f32_from_bits(DTI_F32_NAN);
    } else if (j->mode == DTI_XENT_ACCURACY) {
        pair[0] = dti_row_argmax(task->k, x, j->args->classes) == target ? 1.0f : 0.0f;
        pair[1] = 1.0f;
    } else {
        if (j->mode == DTI_XENT_LOSS || j->mode == DTI_XENT_NLL) /* NLL: high and log_sum are 0 */
            pair[0] = dti_xent_loss(j, x, high, log_sum, target);
        pair[1] = dti_xent_weight(j, target);
    }
}

static void dti_cpu_xent(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_xent_job j = dti_xent_job_of(task);
    float *y = dti_cpu_out(task, 3, j.args->y_offset);
    dti_row_sums s;
    for (int64_t row = begin; row < end; row += s.rows) {
        s.rows = 1;
        s.high[0] = s.log_sum[0] = 0.0f;
        if (j.mode == DTI_XENT_LOSS) {
            dti_rows_log_sum(task->k, j.x + row * j.args->classes, end - row, j.args->classes, &s);
        }
        for (int64_t r = 0; r < s.rows; r++) {
            dti_xent_pair(task, &j, row + r, s.high[r], s.log_sum[r], y + 2 * (row + r));
        }
    }
}

/* From p = softmax(row) in y: (1 - eps) s[t] (p - hot) + eps / classes (p sum(s) - s[c]) */
static void dti_xent_grad_row(const dti_cpu_task *task, const dti_args_xent *a, const float *s,
                              float *y, int64_t target) {
    const float own = (1.0f - a->smoothing) * s[target * a->s_stride], p = y[target];
    const float share = a->smoothing / (float)a->classes;
    double scale = own, sum = 0;
    if (a->smoothing != 0.0f) {
        for (int64_t c = 0; c < a->classes; c++)
            sum += (double)s[c * a->s_stride];
        scale += (double)share * (double)(float)sum;
    }
    const float factor = (float)scale;
    float minus = a->s_stride == 0 && a->smoothing != 0.0f ? -share * s[0] : 0.0f;
    task->k->unary[DTI_U_AFFINE](y, y, a->classes, factor, minus);
    if (a->s_stride != 0 && a->smoothing != 0.0f) {
        for (int64_t c = 0; c < a->classes; c++) {
            float part = share * s[c * a->s_stride];
            DTI_FENCE(part);
            y[c] = y[c] - part;
        }
    }
    float rest =
        share * s[target * a->s_stride]; /* the target's own, without the difference p - 1 */
    double spread = (double)share * (double)(float)sum;
    y[target] = (float)((double)own * (double)(p - 1.0f) +
                        ((double)(float)spread * (double)p - (double)rest));
}

static void dti_cpu_xent_grad(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_xent *a = &task->launch->args.xent;
    const float *x = dti_cpu_in(task, 0, a->x_offset), *s = dti_cpu_in(task, 2, a->s_offset);
    const dti_word *targets = (const dti_word *)task->buf[1] + a->t_offset;
    float *y = dti_cpu_out(task, 3, a->y_offset);
    const int64_t classes = a->classes;
    for (int64_t row = begin; row < end; row++) {
        const int32_t target = (int32_t)targets[row];
        float *to = y + row * classes;
        if (target != a->ignore_index && (uint32_t)target < a->classes) {
            task->k->softmax(to, x + row * classes, classes);
            dti_xent_grad_row(task, a, s, to, target);
            continue;
        }
        float fill = target == a->ignore_index ? 0.0f : dti_f32_from_bits(DTI_F32_NAN);
        for (int64_t c = 0; c < classes; c++)
            to[c] = fill;
    }
}
