/* Pooling and resizing on the CPU: an item is one plane. Vectors go across windows. Windows that an
 * edge cuts are computed one by one. */

/* ---- CPU */

/* Rows (or columns) [begin, end) of the plane that window `p` covers. */
typedef struct dti_window {
    int64_t begin, end;
} dti_window;

static dti_window dti_pooling_window(int64_t p, int64_t stride, int64_t pad, int64_t k,
                                     int64_t in) {
    int64_t begin = p * stride - pad;
    return (dti_window){DTI_MAX(begin, 0), DTI_MIN(begin + k, in)};
}

static dti_window dti_pooling_rows(const dti_args_pool *a, int64_t p) {
    return dti_pooling_window(p, a->stride_h, a->pad_h, a->kh, a->ih);
}
static dti_window dti_pooling_cols(const dti_args_pool *a, int64_t q) {
    return dti_pooling_window(q, a->stride_w, a->pad_w, a->kw, a->iw);
}

/* The place of the first of the largest, or of the last NaN; -1 of nothing. */
static int64_t dti_pooling_largest(const float *x, int64_t iw, dti_window rows, dti_window cols) {
    int64_t at = -1;
    float best = 0;
    for (int64_t i = rows.begin; i < rows.end; i++)
        for (int64_t j = cols.begin; j < cols.end; j++) {
            const float v = x[i * iw + j];
            if (at < 0 || dti_nan_f32(v) || (!dti_nan_f32(best) && v > best))
                best = v, at = i * iw + j;
        }
    return at;
}

/* Windows [begin, end) of a row that are whole along it. */
static dti_window dti_pooling_whole(const dti_args_pool *a) {
    const int64_t last = (int64_t)a->iw + a->pad_w - a->kw; /* where a window may begin, less pad */
    dti_window w = {((int64_t)a->pad_w + a->stride_w - 1) / a->stride_w,
                    last < 0 ? 0 : last / a->stride_w + 1};
    w.end = DTI_MIN(w.end, (int64_t)a->ow);
    w.begin = DTI_MIN(w.begin, w.end);
    w.end = DTI_MAX(w.end, w.begin);
    return w;
}

enum { DTI_POOL_PART = 64 }; /* windows whose places are kept at once */

/* at[i] = where window q + i of row p is largest, as a place in the plane. */
static void dti_pooling_places(const dti_cpu_task *task, const float *x, int64_t p, int64_t q,
                               int64_t n, int32_t *at) {
    const dti_args_pool *a = &task->launch->args.pool;
    const dti_window rows = dti_pooling_rows(a, p), whole = dti_pooling_whole(a);
    const int64_t begin = DTI_MIN(DTI_MAX(whole.begin - q, 0), n);
    const int64_t end = rows.begin < rows.end ? DTI_MIN(DTI_MAX(whole.end - q, begin), n) : begin;
    for (int64_t i = 0; i < n; i++)
        if (i < begin || i >= end)
            at[i] = (int32_t)dti_pooling_largest(x, a->iw, rows, dti_pooling_cols(a, q + i));
    if (begin == end)
        return;
    const int64_t first = rows.begin * a->iw + (q + begin) * a->stride_w - a->pad_w;
    task->k->pool_max(NULL, at + begin, x + first, rows.end - rows.begin, a->kw, a->iw, a->stride_w,
                      end - begin);
    for (int64_t i = begin; i < end; i++)
        at[i] += (int32_t)(first + (i - begin) * a->stride_w);
}

/* y = g where x is largest; g is x itself mostly. */
static void dti_pooling_row(const dti_cpu_task *task, float *y, const float *x, const float *g,
                            int64_t p) {
    const dti_args_pool *a = &task->launch->args.pool;
    const dti_window rows = dti_pooling_rows(a, p), whole = dti_pooling_whole(a);
    int32_t at[DTI_POOL_PART];
    int64_t q = 0;
    while (q < a->ow) {
        if (g == x && q == whole.begin && q < whole.end && rows.begin < rows.end) {
            task->k->pool_max(y + q, NULL, x + rows.begin * a->iw + q * a->stride_w - a->pad_w,
                              rows.end - rows.begin, a->kw, a->iw, a->stride_w, whole.end - q);
            q = whole.end;
            continue;
        }
        const int64_t end = g == x && q < whole.begin ? whole.begin : a->ow;
        const int64_t n = DTI_MIN(end - q, DTI_POOL_PART);
        dti_pooling_places(task, x, p, q, n, at);
        for (int64_t i = 0; i < n; i++, q++)
            y[q] = at[i] < 0 ? 0 : g[at[i]];
    }
}

static void dti_cpu_max_pool(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_pool *a = &task->launch->args.pool;
    for (int64_t plane = begin; plane < end; plane++) {
        const float *x = dti_cpu_in(task, 0, a->x_offset) + plane * a->ih * a->iw;
        const float *g = dti_cpu_in(task, 1, a->g_offset) + plane * a->ih * a->iw;
        float *y = dti_cpu_out(task, 2, a->y_offset) + plane * a->oh * a->ow;
        for (int64_t p = 0; p < a->oh; p++)
            dti_pooling_row(task, y + p * a->ow, x, g, p);
    }
}

/* 2 x 2 side by side: no window adds to another's elements, so nothing is set to 0 first. */
static bool dti_pooling_is_pairs(const dti_args_pool *a) {
    return a->kh == 2 && a->kw == 2 && a->stride_h == 2 && a->stride_w == 2 && a->pad_h == 0 &&
           a->pad_w == 0 && a->oh * 2 == a->ih && a->ow * 2 == a->iw;
}

static void dti_max_pool_grad_plane(const dti_cpu_task *task, float *g, const float *x,
                                    const float *y) {
    const dti_args_pool *a = &task->launch->args.pool;
    const bool relu = task->launch->spec[1] == DTI_EPILOGUE_RELU_GRAD;
    const int64_t windows = (int64_t)a->oh * a->ow;
    int32_t at[DTI_POOL_PART];
    memset(g, 0, (size_t)a->ih * a->iw * sizeof *g);
    for (int64_t w = 0, n; w < windows; w += n, y += n) {
        n = DTI_MIN(a->ow - w % a->ow, DTI_POOL_PART);
        dti_pooling_places(task, x, w / a->ow, w % a->ow, n, at);
        for (int64_t i = 0; i < n; i++)
            if (at[i] >= 0)
                g[at[i]] += !relu || x[at[i]] > 0 ? y[i] : 0;
    }
}

static void dti_cpu_max_pool_grad(const dti_cpu_task *task, int64_t begin, int64_t end,
                                  void *scratch) {
    const dti_args_pool *a = &task->launch->args.pool;
    const bool pairs = dti_pooling_is_pairs(a),
               relu = task->launch->spec[1] == DTI_EPILOGUE_RELU_GRAD;
    for (int64_t plane = begin; plane < end; plane++) {
        const float *x = dti_cpu_in(task, 0, a->x_offset) + plane * a->ih * a->iw;
        const float *y = dti_cpu_in(task, 1, a->y_offset) + plane * a->oh * a->ow;
        float *g = dti_cpu_out(task, 2, a->g_offset) + plane * a->ih * a->iw;
        if (!pairs)
            dti_max_pool_grad_plane(task, g, x, y);
        for (int64_t p = 0; pairs && p < a->oh; p++)
            task->k->pool_pairs(g + 2 * p * a->iw, y + p * a->ow, x + 2 * p * a->iw, a->iw, a->ow,
                                relu);
    }
}

/* The elements that window (p, q) covers, and 1 / the divisor of its sum. */
typedef struct dti_average {
    dti_window rows, cols;
    float share;
} dti_average;

static dti_average dti_average_at(const dti_args_pool *a, uint32_t kind, int64_t p, int64_t q) {
    dti_average w = {dti_pooling_rows(a, p), dti_pooling_cols(a, q), 0};
    int64_t h = w.rows.end - w.rows.begin, v = w.cols.end - w.cols.begin;
    if (kind == DTI_POOL_ADAPTIVE) {
        w.rows = (dti_window){p * a->ih / a->oh, ((p + 1) * a->ih + a->oh - 1) / a->oh};
        w.cols = (dti_window){q * a->iw / a->ow, ((q + 1) * a->iw + a->ow - 1) / a->ow};
        h = w.rows.end - w.rows.begin, v = w.cols.end - w.cols.begin;
    } else if (kind == DTI_POOL_INCLUDE_PAD) {
        int64_t i = p * a->stride_h - a->pad_h, j = q * a->stride_w - a->pad_w;
        h = DTI_MIN(i + a->kh, (int64_t)a->ih + a->pad_h) - i;
        v = DTI_MIN(j + a->kw, (int64_t)a->iw + a->pad_w) - j;
    }
    w.share = h > 0 && v > 0 ? (float)(h * v) : 1.0f;
    return w;
}

/* Of at most DTI_SUM_CHAIN rows and columns: as pool_mean. Else one by one, in double. */
static float dti_average_of(const float *x, int64_t iw, const dti_average *w, bool large) {
    double all = 0;
    float sum = 0;
    for (int64_t i = w->rows.begin; i < w->rows.end; i++) {
        float row = 0;
        for (int64_t j = w->cols.begin; j < w->cols.end; j++) {
            if (large)
                all += (double)x[i * iw + j];
            else
                row += x[i * iw + j];
        }
        sum += row;
    }
    return (large ? (float)all : sum) / w->share;
}

static void dti_average_row(const dti_cpu_task *task, float *y, const float *x, int64_t p) {
    const dti_args_pool *a = &task->launch->args.pool;
    const uint32_t kind = task->launch->spec[0];
    const bool adaptive = kind == DTI_POOL_ADAPTIVE;
    bool large = a->kh > DTI_SUM_CHAIN || a->kw > DTI_SUM_CHAIN;
    const dti_window whole = adaptive || large ? (dti_window){a->ow, a->ow} : dti_pooling_whole(a);
    for (int64_t q = 0; q < a->ow; q++) {
        const dti_average w = dti_average_at(a, kind, p, q);
        if (q == whole.begin && q < whole.end) {
            task->k->pool_mean(y + q, x + w.rows.begin * a->iw + w.cols.begin,
                               w.rows.end - w.rows.begin, a->kw, a->iw, a->stride_w, whole.end - q,
                               w.share);
            q = whole.end - 1;
            continue;
        }
        if (adaptive)
            large = w.rows.end - w.rows.begin > DTI_SUM_CHAIN ||
                    w.cols.end - w.cols.begin > DTI_SUM_CHAIN;
        y[q] = dti_average_of(x, a->iw, &w, large);
    }
}

static void dti_cpu_avg_pool(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_pool *a = &task->launch->args.pool;
    for (int64_t plane = begin; plane < end; plane++) {
        const float *x = dti_cpu_in(task, 0, a->x_offset) + plane * a->ih * a->iw;
        float *y = dti_cpu_out(task, 1, a->y_offset) + plane * a->oh * a->ow;
        for (int64_t p = 0; p < a->oh; p++)
            dti_average_row(task, y + p * a->ow, x, p);
    }
}

static void dti_cpu_avg_pool_grad(const dti_cpu_task *task, int64_t begin, int64_t end,
                                  void *scratch) {
    const dti_args_pool *a = &task->launch->args.pool;
    for (int64_t plane = begin; plane < end; plane++) {
        const float *y = dti_cpu_in(task, 0, a->y_offset) + plane * a->oh * a->ow;
        float *x = dti_cpu_out(task, 1, a->x_offset) + plane * a->ih * a->iw;
        memset(x, 0, (size_t)a->ih * a->iw * sizeof *x);
        for (int64_t p = 0; p < a->oh; p++)
            for (int64_t q = 0; q < a->ow; q++, y++) {
                dti_average w = dti_average_at(a, task->launch->spec[0], p, q);
                const float share = *y / w.share;
                for (int64_t i = w.rows.begin; i < w.rows.end; i++)
                    for (int64_t j = w.cols.begin; j < w.cols.end; j++)
                        x[i * a->iw + j] += share;
            }
    }
}

/* ---- resizing */

/* A position's two source rows (or columns) and their weights. */
typedef struct dti_resize_tap {
    int64_t at[2];
    float weight[2];
} dti_resize_tap;

static dti_resize_tap dti_resize_at(int64_t p, float scale, int64_t in, bool bilinear) {
    if (!bilinear) {
        int64_t at = DTI_MIN((int64_t)floorf((float)p * scale), in - 1);
        return (dti_resize_tap){{at, at}, {1, 0}};
    }
    float product = ((float)p + 0.5f) * scale;
    DTI_FENCE(product);
    const float source = DTI_MAX(product - 0.5f, 0.0f);
    const int64_t i = DTI_MIN((int64_t)source, in - 1);
    const float part = source - (float)i;
    return (dti_resize_tap){{i, DTI_MIN(i + 1, in - 1)}, {1.0f - part, part}};
}

static float dti_resize_mix(const float *x, const dti_resize_tap *t) {
    return __builtin_fmaf(t->weight[1], x[t->at[1]], t->weight[0] * x[t->at[0]]);
}

static void dti_cpu_resize(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_resize *a = &task->launch->args.resize;
    const bool bilinear = task->launch->spec[0] == 1;
    for (int64_t plane = begin; plane < end; plane++) {
        const float *x = dti_cpu_in(task, 0, a->x_offset) + plane * a->ih * a->iw;
        float *y = dti_cpu_out(task, 1, a->y_offset) + plane * a->oh * a->ow;
        for (int64_t p = 0; p < a->oh; p++) {
            dti_resize_tap row = dti_resize_at(p, a->scale_h, a->ih, bilinear);
            for (int64_t q = 0; q < a->ow; q++, y++) {
                dti_resize_tap col = dti_resize_at(q, a->scale_w, a->iw, bilinear);
                if (!bilinear) {
                    *y = x[row.at[0] * a->iw + col.at[0]];
                    continue;
                }
                const float up = dti_resize_mix(x + row.at[0] * a->iw, &col);
                const float low = dti_resize_mix(x + row.at[1] * a->iw, &col);
                *y = __builtin_fmaf(row.weight[1], low, row.weight[0] * up);
            }
        }
    }
}

/* Many elements of y for each of x are added in double. */
static size_t dti_cpu_scratch_resize_grad(const dti_launch *l, int threads) {
    const dti_args_resize *a = &l->args.resize;
    const uint64_t in = (uint64_t)a->ih * a->iw;
    return (uint64_t)a->oh * a->ow > in * (DTI_SUM_CHAIN / 4) ? (size_t)in * sizeof(double) : 0;
}

static void dti_cpu_resize_grad(const dti_cpu_task *task, int64_t begin, int64_t end,
                                void *scratch) {
    const dti_args_resize *a = &task->launch->args.resize;
    const bool bilinear = task->launch->spec[0] == 1;
    const bool wide = dti_cpu_scratch_resize_grad(task->launch, 1) != 0;
    const int64_t size = (int64_t)a->ih * a->iw;
    double *sums = scratch;
    for (int64_t plane = begin; plane < end; plane++) {
        const float *y = dti_cpu_in(task, 0, a->y_offset) + plane * a->oh * a->ow;
        float *x = dti_cpu_out(task, 1, a->x_offset) + plane * size;
        memset(x, 0, (size_t)size * sizeof *x);
        if (wide)
            memset(sums, 0, (size_t)size * sizeof *sums);
        for (int64_t p = 0; p < a->oh; p++) {
            dti_resize_tap row = dti_resize_at(p, a->scale_h, a->ih, bilinear);
            for (int64_t q = 0; q < a->ow; q++, y++) {
                dti_resize_tap col = dti_resize_at(q, a->scale_w, a->iw, bilinear);
                for (int i = 0; i < (bilinear ? 2 : 1); i++)
                    for (int j = 0; j < (bilinear ? 2 : 1); j++) {
                        const int64_t to = row.at[i] * a->iw + col.at[j];
                        const float share = row.weight[i] * col.weight[j];
                        if (wide)
                            sums[to] += (double)share * (double)*y;
                        else
                            x[to] = __builtin_fmaf(share, *y, x[to]);
                    }
            }
        }
        for (int64_t i = 0; wide && i < size; i++)
            x[i] = (float)sums[i];
    }
}

/* ---- items and grains */

static int64_t dti_cpu_items_planes(const dti_cpu_task *task) {
    return task->launch->args.pool.n; /* and resize's */
}
static int64_t dti_cpu_grain_pool(const dti_cpu_task *task) {
    const dti_args_pool *a = &task->launch->args.pool;
    return 1 + 16384 / (1 + (int64_t)a->ih * a->iw + (int64_t)a->oh * a->ow);
}
static int64_t dti_cpu_grain_resize(const dti_cpu_task *task) {
    const dti_args_resize *a = &task->launch->args.resize;
    return 1 + 16384 / (1 + (int64_t)a->ih * a->iw + 8 * (int64_t)a->oh * a->ow);
}

/* ---- Rows of the tables */

/* It reads x: that must be the mask. */
static bool dti_max_pool_grad_takes(const dti_launch *l, uint32_t epilogue, const dti_view *mask) {
    return epilogue == DTI_EPILOGUE_RELU_GRAD && l->value[0] == mask->value &&
           l->args.pool.x_offset == (uint32_t)mask->offset;
}

/* Of a window; of an adaptive one, of the largest. */
static dti_effort dti_pool_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_pool *a = &l->args.pool;
    const bool adaptive = l->kernel == DTI_K_AVG_POOL && l->spec[0] == DTI_POOL_ADAPTIVE;
    const uint64_t rows = adaptive ? dti_ceil_div(a->ih, a->oh) : a->kh;
    const uint64_t cols = adaptive ? dti_ceil_div(a->iw, a->ow) : a->kw;
    return (dti_effort){rows * cols, rows * cols * a->n * a->oh * a->ow};
}

/* Windows that hold an element, along one axis. */
static uint64_t dti_pool_windows(const dti_launch *l, uint64_t in, uint64_t k, uint64_t stride,
                                 uint64_t out) {
    const bool adaptive = l->kernel == DTI_K_AVG_POOL_GRAD && l->spec[0] == DTI_POOL_ADAPTIVE;
    return DTI_MIN(out, adaptive ? dti_ceil_div(out, in) + 1 : dti_ceil_div(k, stride));
}

static uint64_t dti_pool_rounds(const dti_launch *l, uint32_t local) {
    const dti_args_pool *a = &l->args.pool;
    const bool adaptive = l->kernel == DTI_K_AVG_POOL && l->spec[0] == DTI_POOL_ADAPTIVE;
    const uint64_t rows = adaptive ? dti_ceil_div(a->ih, a->oh) + 1 : a->kh;
    const uint64_t cols = adaptive ? dti_ceil_div(a->iw, a->ow) + 1 : a->kw;
    return DTI_MIN(rows, a->ih) * (DTI_MIN(cols, a->iw) + 1) + DTI_ROUNDS_FEW;
}

/* Windows, and of MAX_POOL_GRAD their elements. */
static uint64_t dti_pool_grad_rounds(const dti_launch *l, uint32_t local) {
    const dti_args_pool *a = &l->args.pool;
    const uint64_t rows = dti_pool_windows(l, a->ih, a->kh, a->stride_h, a->oh);
    const uint64_t cols = dti_pool_windows(l, a->iw, a->kw, a->stride_w, a->ow);
    const uint64_t each = l->kernel == DTI_K_MAX_POOL_GRAD ? dti_pool_rounds(l, local) : 0;
    return rows * (cols * (each + 1) + 1) + DTI_ROUNDS_FEW;
}

static uint64_t dti_resize_grad_rounds(const dti_launch *l, uint32_t local) {
    const dti_args_resize *a = &l->args.resize;
    const uint64_t rows = DTI_MIN((uint64_t)a->oh, 2 * dti_ceil_div(a->oh, a->ih) + 5);
    const uint64_t cols = DTI_MIN((uint64_t)a->ow, 2 * dti_ceil_div(a->ow, a->iw) + 5);
    return rows * (cols + 1) + DTI_ROUNDS_FEW;
}

/* Planes, of which the smaller is y. */
static dti_stage dti_pool_stage(const dti_launch *l, int b) {
    const dti_args_pool *a = &l->args.pool;
    const bool max = l->kernel == DTI_K_MAX_POOL || l->kernel == DTI_K_MAX_POOL_GRAD;
    const int y = l->kernel == DTI_K_MAX_POOL ? 2 : l->kernel == DTI_K_AVG_POOL_GRAD ? 0 : 1;
    if (b == y)
        return (dti_stage){(int64_t)a->oh * a->ow, a->y_offset};
    return (dti_stage){(int64_t)a->ih * a->iw, max && b > 0 ? a->g_offset : a->x_offset};
}

#define DTI_POOL_ROW                                                                               \
    .halves = true, .stage = dti_pool_stage, .grid_halves = dti_launch_any_half,                   \
    .outer = dti_cpu_items_planes, .grain_of = dti_cpu_grain_pool,                                 \
    .divides = {6,                                                                                 \
                DTI_WORD(pool, by),                                                                \
                {DTI_WORD(pool, ih), DTI_WORD(pool, iw), DTI_WORD(pool, oh), DTI_WORD(pool, ow),   \
                 DTI_WORD(pool, stride_h), DTI_WORD(pool, stride_w)}}

/* (x, g, y): y = g where x is largest */
DTI_KERNEL(MAX_POOL, max_pool, "rrw", ITEM, DTI_POOL_ROW, .run = dti_cpu_max_pool,
           .effort = dti_pool_effort, .rounds = dti_pool_rounds);

/* (x, y, g): its adjoint; spec1 */
DTI_KERNEL(MAX_POOL_GRAD, max_pool_grad, "rrw", ITEM, DTI_POOL_ROW, .run = dti_cpu_max_pool_grad,
           .takes = dti_max_pool_grad_takes, .rounds = dti_pool_grad_rounds);

/* (x, y); spec0: DTI_POOL_* */
DTI_KERNEL(AVG_POOL, avg_pool, "rw", ITEM, DTI_POOL_ROW, .run = dti_cpu_avg_pool,
           .effort = dti_pool_effort, .rounds = dti_pool_rounds);

/* (y, x) */
DTI_KERNEL(AVG_POOL_GRAD, avg_pool_grad, "rw", ITEM, DTI_POOL_ROW, .run = dti_cpu_avg_pool_grad,
           .rounds = dti_pool_grad_rounds);

static dti_stage dti_resize_stage(const dti_launch *l, int b) {
    const dti_args_resize *a = &l->args.resize;
    if (b == (l->kernel == DTI_K_RESIZE ? 1 : 0))
        return (dti_stage){(int64_t)a->oh * a->ow, a->y_offset};
    return (dti_stage){(int64_t)a->ih * a->iw, a->x_offset};
}

#define DTI_RESIZE_ROW                                                                             \
    .halves = true, .stage = dti_resize_stage, .outer = dti_cpu_items_planes,                      \
    .grain_of = dti_cpu_grain_resize,                                                              \
    .divides = {                                                                                   \
        4,                                                                                         \
        DTI_WORD(resize, by),                                                                      \
        {DTI_WORD(resize, ih), DTI_WORD(resize, iw), DTI_WORD(resize, oh), DTI_WORD(resize, ow)}}

/* (x, y); spec0: 1 = bilinear */
DTI_KERNEL(RESIZE, resize, "rw", ITEM, DTI_RESIZE_ROW, .run = dti_cpu_resize);

/* (y, x) */
DTI_KERNEL(RESIZE_GRAD, resize_grad, "rw", ITEM, DTI_RESIZE_ROW, .run = dti_cpu_resize_grad,
           .scratch_bytes = dti_cpu_scratch_resize_grad, .rounds = dti_resize_grad_rounds);
