/* Normalisation on the CPU. Elements come in runs of `spatial` elements of one channel. Where
 * spatial is 1, they are rows of all channels, which are walked by columns. Sums over runs are kept
 * in double. */

/* ---- CPU */

enum { DTI_NORM_BLOCK = 128 }; /* columns at a time */

/* 1 / sqrt(variance + eps) */
static float dti_norm_factor(const dti_cpu_task *task, float variance) {
    float y, x = variance + task->launch->args.norm.eps;
    task->k->unary[DTI_U_RSQRT](&y, &x, 1, 0.0f, 0.0f);
    return y;
}

/* ---- statistics. The first mean is sum / count, which rounds. For a thousand times 1000.1 it is
 * not 1000.1, and over sqrt(eps) the difference is noise. Deviations from it and their squares are
 * summed too, and correct mean and variance (Chan, Golub and LeVeque, 1983). So the mean of equal
 * values is that value, and their variance is 0. */

/* An overflow is NaN: of an infinite variance (x - mean) / sqrt(variance) would be 0. */
static float dti_norm_variance(double variance) {
    const float v = (float)variance;
    return dti_finite_f32(v) ? v : NAN;
}

/* stats: (first mean, -) -> (mean, variance); sums of (x - first mean) and of its square. */
static void dti_norm_correct(float stats[2], double sum, double squares, double count) {
    const double shift = sum / count, variance = squares / count - shift * shift;
    stats[0] = (float)((double)stats[0] + shift);
    stats[1] = variance < 0 ? 0.0f : dti_norm_variance(variance);
}

static void dti_norm_stats_columns(const dti_cpu_task *task, int64_t c, int64_t cols) {
    const dti_args_norm *a = &task->launch->args.norm;
    float *stats = dti_cpu_out(task, 1, a->s_offset) + 2 * c;
    const int64_t rows = a->n / a->channels, each = DTI_CPU_AT_ONCE(task, 0, DTI_SUM_CHAIN, rows);
    double sums[3][DTI_NORM_BLOCK] = {{0}};
    float mean[DTI_NORM_BLOCK];
    for (int64_t pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < rows; i += each) {
            int64_t ld = a->channels, n = DTI_MIN(rows - i, each);
            const float *x = dti_cpu_rows(task, 0, a->x_offset + c + i * ld, n, cols, &ld, 0);
            if (pass)
                task->k->norm_moments((double *const[2]){sums[0], sums[1]}, x, mean, n, cols, ld);
            else
                task->k->col_sum(sums[2], x, n, cols, ld);
        }
        for (int64_t j = 0; j < cols && !pass; j++)
            mean[j] = (float)(sums[2][j] / (double)rows);
    }
    for (int64_t j = 0; j < cols; j++) {
        stats[2 * j] = mean[j];
        dti_norm_correct(stats + 2 * j, sums[0][j], sums[1][j], (double)rows);
    }
}

/* The sum of n values from element `at` on. */
static float dti_norm_sum_of(const dti_cpu_task *task, int64_t at, int64_t n) {
    const int64_t each = DTI_CPU_AT_ONCE(task, 0, 64 * DTI_SUM_CHAIN, n);
    double sum = 0;
    for (int64_t i = 0; i < n; i += each) {
        const int64_t run = DTI_MIN(n - i, each);
        sum += (double)task->k->row_sum(dti_cpu_row(task, 0, at + i, run, 0), run);
    }
    return (float)sum;
}

/* Of `runs` runs of n values at a stride, from element `at` on. */
static void dti_norm_stats_runs(const dti_cpu_task *task, bool rms, float stats[2], int64_t at,
                                int64_t n, int64_t runs, int64_t stride) {
    const int64_t each = DTI_CPU_AT_ONCE(task, 0, 32 * DTI_SUM_CHAIN, n);
    const double count = (double)n * (double)runs;
    double sum = 0, moments[2] = {0, 0};
    for (int64_t i = 0; i < runs && !rms; i++)
        sum += (double)dti_norm_sum_of(task, at + i * stride, n);
    stats[0] = (float)(sum / count);
    for (int64_t i = 0; i < runs; i++) {
        for (int64_t j = 0; j < n; j += each) {
            const int64_t run = DTI_MIN(n - j, each);
            task->k->norm_moment(moments, dti_cpu_row(task, 0, at + i * stride + j, run, 0), run,
                                 stats[0]);
        }
    }
    stats[1] = dti_norm_variance(moments[1] / count);
    if (!rms)
        dti_norm_correct(stats, moments[0], moments[1], count);
}

static void dti_norm_stats_group(const dti_cpu_task *task, bool rms, int64_t i) {
    const dti_args_norm *a = &task->launch->args.norm;
    const int64_t x = a->x_offset;
    float *stats = dti_cpu_out(task, 1, a->s_offset) + 2 * i;
    if (a->batch)
        dti_norm_stats_runs(task, rms, stats, x + i * a->spatial, a->spatial, a->cols / a->spatial,
                            (int64_t)a->channels * a->spatial);
    else
        dti_norm_stats_runs(task, rms, stats, x + i * a->cols, a->cols, 1, 0);
}

/* The CPU needs no chunks: the pairs of groups [begin, end) are 0. */
static void dti_norm_no_pairs(const dti_cpu_task *task, int binding, int64_t begin, int64_t end) {
    const dti_args_norm *a = &task->launch->args.norm;
    const int64_t each = 2 * (int64_t)a->chunks;
    if (a->chunks > 1)
        memset(dti_cpu_out(task, binding, a->p_offset) + begin * each, 0,
               (size_t)((end - begin) * each) * sizeof(float));
}

static void dti_cpu_norm_stats(const dti_cpu_task *task, int64_t begin, int64_t end,
                               void *scratch) {
    const dti_args_norm *a = &task->launch->args.norm;
    const bool columns = a->batch && a->spatial == 1;
    dti_norm_no_pairs(task, 1, begin, end);
    for (int64_t c = begin; columns && c < end; c += DTI_NORM_BLOCK)
        dti_norm_stats_columns(task, c, DTI_MIN(end - c, DTI_NORM_BLOCK));
    for (int64_t i = begin; !columns && i < end; i++)
        dti_norm_stats_group(task, task->launch->spec[0] != 0, i);
}

/* ---- y. A piece has one mean, and one channel or its channels side by side. */

typedef struct dti_norm_piece {
    int64_t size, group, channel;
    bool across; /* an element is a channel */
} dti_norm_piece;

/* The piece that begins at element e. */
static dti_norm_piece dti_norm_piece_at(const dti_args_norm *a, bool affine, int64_t e) {
    const int64_t row = (int64_t)a->channels * a->spatial, at = affine || a->batch ? e % row : 0;
    dti_norm_piece p = {.across = affine && a->spatial == 1,
                        .group = a->batch ? at / a->spatial : e / a->cols,
                        .channel = at / a->spatial};
    p.size = a->batch ? a->spatial : a->cols - e % a->cols;
    if (affine)
        p.size = DTI_MIN(p.size, p.across ? row - at : a->spatial - at % a->spatial);
    return p;
}

/* Means and factors of n groups, `apart` from group `first` on. */
static void dti_norm_factors(const dti_cpu_task *task, int64_t first, int64_t apart, int64_t n,
                             float *mean, float *factor) {
    const dti_args_norm *a = &task->launch->args.norm;
    const float *stats = dti_cpu_in(task, 1, a->s_offset) + 2 * first;
    for (int64_t i = 0; i < n; i++) {
        mean[i] = stats[2 * i * apart];
        factor[i] = stats[2 * i * apart + 1] + a->eps;
    }
    task->k->unary[DTI_U_RSQRT](factor, factor, n, 0.0f, 0.0f);
}

static dti_norm_line dti_norm_line_of(const dti_cpu_task *task) {
    const uint32_t kind = task->launch->spec[0];
    const dti_args_norm *a = &task->launch->args.norm;
    const float *w = dti_cpu_in(task, 2, a->w_offset);
    return (dti_norm_line){.w = kind == DTI_NORM_PLAIN ? NULL : w,
                           .b = kind == DTI_NORM_AFFINE ? dti_cpu_in(task, 2, a->b_offset) : NULL,
                           .affine_step = 1,
                           .relu = task->launch->spec[1] == DTI_EPILOGUE_RELU};
}

/* Rows of channels, each with its own statistics. */
static void dti_norm_rows(const dti_cpu_task *task, int64_t begin, int64_t end, float *scratch) {
    const dti_args_norm *a = &task->launch->args.norm;
    dti_norm_line l = dti_norm_line_of(task);
    l.mean = scratch, l.factor = scratch + a->channels, l.step = 1;
    dti_norm_factors(task, 0, 1, a->channels, scratch, scratch + a->channels);
    for (int64_t i = begin * a->channels; i < end * a->channels; i += a->channels)
        task->k->norm_line(dti_cpu_out(task, 3, a->y_offset) + i,
                           dti_cpu_in(task, 0, a->x_offset) + i, a->channels, &l);
}

/* Elements [begin, end), which end where pieces do. */
static void dti_norm_elements(const dti_cpu_task *task, int64_t begin, int64_t end) {
    const dti_args_norm *a = &task->launch->args.norm;
    const dti_norm_line all = dti_norm_line_of(task);
    const float *stats = dti_cpu_in(task, 1, a->s_offset);
    dti_norm_piece p;
    for (int64_t e = begin; e < end; e += p.size) {
        p = dti_norm_piece_at(a, all.w != NULL, e);
        const float factor = dti_norm_factor(task, stats[2 * p.group + 1]);
        dti_norm_line l = all;
        l.mean = stats + 2 * p.group, l.factor = &factor, l.affine_step = p.across;
        l.w = all.w ? all.w + p.channel : NULL, l.b = all.b ? all.b + p.channel : NULL;
        task->k->norm_line(dti_cpu_out(task, 3, a->y_offset) + e,
                           dti_cpu_in(task, 0, a->x_offset) + e, p.size, &l);
    }
}

static void dti_cpu_norm(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_norm *a = &task->launch->args.norm;
    const int64_t unit = a->batch ? a->spatial : a->cols;
    if (a->batch && a->spatial == 1)
        dti_norm_rows(task, begin, end, scratch);
    else
        dti_norm_elements(task, begin * unit, end * unit);
}

/* For chunks, the statistics are computed already. */
static void dti_cpu_norm_group(const dti_cpu_task *task, int64_t begin, int64_t end,
                               void *scratch) {
    const dti_args_norm *a = &task->launch->args.norm;
    const uint32_t kind = task->launch->spec[2];
    dti_cpu_task t = *task; /* with NORM's bindings */
    t.buf[1] = task->buf[3], t.buf[2] = task->buf[1], t.buf[3] = task->buf[2];
    if (!(kind & DTI_NORM_GROUP_WHOLE)) {
        dti_cpu_norm(&t, begin, end, scratch);
        return;
    }
    const int64_t row = (int64_t)a->channels * a->spatial, spatial = a->spatial;
    for (int64_t i = begin; i < end; i++) {
        dti_norm_stats_group(&t, (kind & DTI_NORM_GROUP_RMS) != 0, i);
        if (!a->batch)
            dti_norm_elements(&t, i * a->cols, (i + 1) * a->cols);
        for (int64_t e = i * spatial; a->batch && e < a->n; e += row)
            dti_norm_elements(&t, e, e + spatial);
    }
}

/* ---- dx of groups that are contiguous */

/* (sum of dy * w, sum of dy * w * (x - mean)) over group `i`. */
static void dti_norm_dots_of(const dti_cpu_task *task, int64_t i, float mean, double sums[2]) {
    const dti_args_norm *a = &task->launch->args.norm;
    const bool affine = task->launch->spec[1] == 1;
    const float *w = dti_cpu_in(task, 2, a->w_offset);
    dti_norm_piece p;
    sums[0] = sums[1] = 0;
    for (int64_t e = i * a->cols; e < (i + 1) * a->cols; e += p.size) {
        double part[2];
        p = dti_norm_piece_at(a, affine, e);
        task->k->norm_dots(part, dti_cpu_in(task, 1, a->dy_offset) + e,
                           dti_cpu_in(task, 0, a->x_offset) + e, p.across ? w + p.channel : NULL,
                           p.size, mean);
        const double factor = affine && !p.across ? (double)w[p.channel] : 1.0;
        for (int j = 0; j < 2; j++) {
            /* exact: no fusing can change the sum */
            double product = (double)(float)part[j] * factor;
            sums[j] += product;
        }
    }
}

static void dti_norm_dx_group(const dti_cpu_task *task, int64_t i) {
    const dti_args_norm *a = &task->launch->args.norm;
    const bool affine = task->launch->spec[1] == 1;
    const float *x = dti_cpu_in(task, 0, a->x_offset), *w = dti_cpu_in(task, 2, a->w_offset);
    float stats[2];
    double sums[2];
    dti_norm_stats_runs(task, task->launch->spec[0] != 0, stats, a->x_offset + i * a->cols, a->cols,
                        1, 0);
    dti_norm_dots_of(task, i, stats[0], sums);
    const double factor = (double)dti_norm_factor(task, stats[1]), share = factor / a->cols;
    const float b = task->launch->spec[0] ? 0.0f : (float)(-share * sums[0]);
    const float c = (float)(-share * factor * factor * sums[1]);
    dti_norm_piece p;
    for (int64_t e = i * a->cols; e < (i + 1) * a->cols; e += p.size) {
        p = dti_norm_piece_at(a, affine, e);
        const float slope = affine && !p.across ? (float)factor * w[p.channel] : (float)factor;
        dti_norm_slope s = {.mean = stats, .a = &slope, .b = &b, .c = &c};
        s.w = p.across ? w + p.channel : NULL;
        task->k->norm_slope(dti_cpu_out(task, 3, a->y_offset) + e,
                            dti_cpu_in(task, 1, a->dy_offset) + e, x + e, p.size, &s);
    }
}

static void dti_cpu_norm_dx(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    for (int64_t i = begin; i < end; i++)
        dti_norm_dx_group(task, i);
}

/* ---- dw and db */

/* Columns at a time: whole rows in most cases, which are read ahead. */
#define DTI_NORM_DW_BLOCK (DTI_ROOM / 2)

/* Sums of a block of columns: of a few rows, and of all. mean, factor: of columns, or of rows. */
typedef struct dti_norm_dw_sums {
    float part[2][DTI_NORM_DW_BLOCK], mean[DTI_NORM_DW_BLOCK], factor[DTI_NORM_DW_BLOCK];
    double wide[2][DTI_NORM_DW_BLOCK];
} dti_norm_dw_sums;

/* Adds columns [c, c + cols) of rows [row, row + rows), whose groups are whole columns. */
static void dti_norm_dw_rows(const dti_cpu_task *task, dti_norm_dw_sums *s, int64_t row,
                             int64_t rows, int64_t c, int64_t cols) {
    const dti_args_norm *a = &task->launch->args.norm;
    memset(s->part[0], 0, (size_t)cols * sizeof(float));
    memset(s->part[1], 0, (size_t)cols * sizeof(float));
    for (int64_t j = 0, size; j < cols; j += size) {
        const int64_t first = row * a->channels + c + j;
        size = a->batch ? cols : DTI_MIN(cols - j, a->cols - (c + j) % a->cols);
        if (!a->batch)
            dti_norm_factors(task, first / a->cols, a->channels / a->cols, rows, s->mean,
                             s->factor);
        for (int64_t i = 0; i < rows; i++) {
            const int64_t e = first + i * a->channels, group = a->batch ? 0 : i;
            task->k->norm_columns(s->part[0] + j, s->part[1] + j,
                                  dti_cpu_row(task, 2, a->dy_offset + e, size, 0),
                                  dti_cpu_row(task, 0, a->x_offset + e, size, DTI_NORM_DW_BLOCK),
                                  s->mean + group, s->factor + group, (int)a->batch, size);
        }
    }
    task->k->col_sum(s->wide[0], s->part[0], 1, cols, cols);
    task->k->col_sum(s->wide[1], s->part[1], 1, cols, cols);
}

static void dti_norm_dw_columns(const dti_cpu_task *task, int64_t c, int64_t cols,
                                dti_norm_dw_sums *s) {
    const dti_args_norm *a = &task->launch->args.norm;
    float *dw = dti_cpu_out(task, 3, a->y_offset) + c, *db = dti_cpu_out(task, 3, a->b_offset) + c;
    memset(s->wide, 0, sizeof s->wide);
    if (a->batch)
        dti_norm_factors(task, c, 1, cols, s->mean, s->factor);
    const int64_t rows = a->n / a->channels;
    for (int64_t i = 0; i < rows; i += DTI_SUM_CHAIN)
        dti_norm_dw_rows(task, s, i, DTI_MIN(rows - i, DTI_SUM_CHAIN), c, cols);
    for (int64_t j = 0; j < cols; j++) {
        dw[j] = (float)s->wide[0][j];
        db[j] = (float)s->wide[1][j];
    }
}

/* (sum of dy, sum of dy * (x - mean)) over the run of a channel that begins at element e. */
static void dti_norm_dw_dots(const dti_cpu_task *task, int64_t e, float mean, double sums[2]) {
    const dti_args_norm *a = &task->launch->args.norm;
    const int64_t half = DTI_CPU_AT_ONCE(task, 0, 32 * DTI_SUM_CHAIN, a->spatial);
    const int64_t each = DTI_CPU_AT_ONCE(task, 2, 32 * DTI_SUM_CHAIN, half);
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < a->spatial; i += each) {
        const int64_t n = DTI_MIN(a->spatial - i, each);
        const float *dy = dti_cpu_row(task, 2, a->dy_offset + e + i, n, 0);
        const float *x = dti_cpu_row(task, 0, a->x_offset + e + i, n, DTI_ROOM / 2);
        double part[2];
        task->k->norm_dots(part, dy, x, NULL, n, mean);
        sums[0] += part[0];
        sums[1] += part[1];
    }
}

static void dti_norm_dw_channel(const dti_cpu_task *task, int64_t c) {
    const dti_args_norm *a = &task->launch->args.norm;
    const float *stats = dti_cpu_in(task, 1, a->s_offset);
    double sums[2] = {0, 0};
    for (int64_t e = c * a->spatial; e < a->n; e += (int64_t)a->channels * a->spatial) {
        const int64_t group = a->batch ? c : e / a->cols;
        double part[2];
        dti_norm_dw_dots(task, e, stats[2 * group], part);
        const float factor = dti_norm_factor(task, stats[2 * group + 1]);
        double product = (double)(float)part[1] * (double)factor;
        sums[0] += product; /* exact, as in dti_norm_dots_of */
        sums[1] += part[0];
    }
    dti_cpu_out(task, 3, a->y_offset)[c] = (float)sums[0];
    dti_cpu_out(task, 3, a->b_offset)[c] = (float)sums[1];
}

static void dti_cpu_norm_dw(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_norm *a = &task->launch->args.norm;
    dti_norm_no_pairs(task, 3, begin, end);
    for (int64_t c = begin; a->chunks > 1 && c < end; c++) {
        float *own = dti_cpu_out(task, 3, 0);
        own[2 * c] = own[2 * c + 1] = own[4 * a->channels + c] = 0.0f;
    }
    if (a->spatial == 1) {
        for (int64_t c = begin; c < end; c += DTI_NORM_DW_BLOCK)
            dti_norm_dw_columns(task, c, DTI_MIN(end - c, DTI_NORM_DW_BLOCK), scratch);
        return;
    }
    for (int64_t c = begin; c < end; c++)
        dti_norm_dw_channel(task, c);
}

/* ---- the results of chunks, brought to their places */

static void dti_cpu_norm_finish(const dti_cpu_task *task, int64_t begin, int64_t end,
                                void *scratch) {
    const dti_args_norm *a = &task->launch->args.norm;
    const int64_t channels = a->channels;
    float *pack = dti_cpu_out(task, 0, 0), *y = dti_cpu_out(task, 3, 0);
    if (task->launch->spec[0] == DTI_NORM_FINISH_STATS) {
        memcpy(y + a->s_offset + 2 * begin, pack + 2 * begin,
               (size_t)(2 * (end - begin)) * sizeof *y);
        return;
    }
    const float *stats = dti_cpu_in(task, 1, a->s_offset), *w = dti_cpu_in(task, 2, a->w_offset);
    for (int64_t c = begin; c < end; c++) {
        y[a->y_offset + c] = pack[2 * channels + c];
        y[a->b_offset + c] = pack[3 * channels + c];
        if (!task->launch->spec[1])
            continue;
        pack[2 * c] = stats[2 * c];
        pack[2 * c + 1] = stats[2 * c + 1];
        pack[4 * channels + c] = w[c];
    }
}

/* ---- dx of batch norm, from its dw and db */

/* dx = a dy + b + c (x - mean) of channel i; without `train` the statistics are constants. */
static void dti_batch_slope(const dti_cpu_task *task, int64_t i, float abc[3]) {
    const dti_args_norm *args = &task->launch->args.norm;
    const int64_t channels = args->channels;
    const float *stats = dti_cpu_in(task, 2, args->s_offset), *dw = stats + 2 * channels;
    const float *db = dw + channels, *w = db + channels;
    const double factor = (double)dti_norm_factor(task, stats[2 * i + 1]);
    const double slope = factor * (double)w[i], share = -slope / args->cols;
    abc[0] = (float)slope;
    abc[1] = task->launch->spec[0] ? (float)(share * (double)db[i]) : 0.0f;
    abc[2] = task->launch->spec[0] ? (float)(share * factor * (double)dw[i]) : 0.0f;
}

static void dti_cpu_batch_dx(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_norm *a = &task->launch->args.norm;
    const float *stats = dti_cpu_in(task, 2, a->s_offset);
    const int64_t channels = a->channels, unit = a->spatial == 1 ? channels : a->spatial;
    float *mean = scratch, abc[3];
    dti_norm_slope s = {mean, mean + channels, mean + 2 * channels, mean + 3 * channels,
                        NULL, a->spatial == 1};
    for (int64_t c = 0; s.step && c < channels; c++) {
        dti_batch_slope(task, c, abc);
        mean[c] = stats[2 * c];
        for (int j = 0; j < 3; j++)
            mean[(j + 1) * channels + c] = abc[j];
    }
    for (int64_t i = begin; i < end; i++) {
        if (!s.step) {
            dti_batch_slope(task, i % channels, abc);
            s = (dti_norm_slope){stats + 2 * (i % channels), abc, abc + 1, abc + 2, NULL, 0};
        }
        task->k->norm_slope(dti_cpu_out(task, 3, a->y_offset) + i * unit,
                            dti_cpu_in(task, 1, a->dy_offset) + i * unit,
                            dti_cpu_in(task, 0, a->x_offset) + i * unit, unit, &s);
    }
}

/* ---- running statistics */

static void dti_cpu_running(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_running *a = &task->launch->args.running;
    const bool first = task->step[DTI_STEP_FLAGS] & DTI_FLAG_FIRST;
    for (int64_t k = begin; k < end; k++) {
        const bool second = k >= a->n;
        const int64_t i = second ? k - a->n : k;
        const float *s = dti_cpu_in(task, 1, a->s_offset + second);
        const float *x = dti_cpu_in(task, 0, second ? a->x2_offset : a->x_offset);
        float *y = dti_cpu_out(task, 2, second ? a->y2_offset : a->y_offset);
        const float old = first ? x[i] : y[i];
        y[i] = __builtin_fmaf(second ? a->take2 : a->take, s[2 * i], a->keep * old);
    }
}

/* ---- items and grains: a group or a channel, or a run of elements */

static int64_t dti_norm_unit(const dti_args_norm *a) {
    int64_t unit = !a->batch ? a->cols : a->spatial == 1 ? a->channels : a->spatial;
    return DTI_MAX(unit, 1);
}
static int64_t dti_cpu_items_norm(const dti_cpu_task *task) {
    return task->launch->args.norm.n / dti_norm_unit(&task->launch->args.norm);
}
static int64_t dti_cpu_items_norm_groups(const dti_cpu_task *task) {
    return task->launch->args.norm.groups;
}
static int64_t dti_cpu_items_norm_group(const dti_cpu_task *task) {
    const bool whole = (task->launch->spec[2] & DTI_NORM_GROUP_WHOLE) != 0;
    return whole ? dti_cpu_items_norm_groups(task) : dti_cpu_items_norm(task);
}
static int64_t dti_cpu_items_norm_dw(const dti_cpu_task *task) {
    return task->launch->args.norm.channels;
}
static int64_t dti_cpu_grain_norm(const dti_cpu_task *task) {
    return 1 + 8192 / dti_norm_unit(&task->launch->args.norm);
}
static int64_t dti_cpu_items_batch_dx(const dti_cpu_task *task) {
    const dti_args_norm *a = &task->launch->args.norm;
    return a->n / DTI_MAX(1, a->spatial == 1 ? a->channels : a->spatial);
}
static int64_t dti_cpu_grain_norm_groups(const dti_cpu_task *task) {
    const dti_args_norm *a = &task->launch->args.norm;
    int64_t grain = 1 + 8192 / (1 + (int64_t)a->cols);
    return a->batch && a->spatial == 1 ? DTI_MAX(grain, 16) : grain; /* whole cache lines */
}
static int64_t dti_cpu_grain_norm_dw(const dti_cpu_task *task) {
    const dti_args_norm *a = &task->launch->args.norm;
    int64_t grain = 1 + 8192 / (1 + (int64_t)(a->n / DTI_MAX(a->channels, 1)));
    return a->spatial == 1 ? DTI_MAX(grain, 16) : grain;
}
static size_t dti_cpu_scratch_norm(const dti_launch *launch, int threads) {
    const dti_args_norm *a = &launch->args.norm;
    return a->spatial == 1 ? 4 * (size_t)a->channels * sizeof(float) : 0;
}

static size_t dti_cpu_scratch_norm_dw(const dti_launch *launch, int threads) {
    return launch->args.norm.spatial == 1 ? sizeof(dti_norm_dw_sums) : 0;
}
