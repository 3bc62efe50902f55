/* Attention on the CPU. A block of queries goes over its keys block by block. Scores are a product
 * of the queries and the transposed keys, in memory of the worker. A query's result is a sum in the
 * order of keys. A key's gradient is a sum in the order of heads and queries. So nothing depends on
 * threads. With more keys or queries than DTI_ATTENTION_SPAN, sums of spans are added in double.
 * Operands in 16 bits are multiplied where they lie, and so are weights and slopes rounded to that
 * type; scores, statistics and sums are floats. */

#define DTI_ATTENTION_QUERIES 64 /* of a block: their scores and sums stay in L2 */
#define DTI_ATTENTION_KEYS 256
#define DTI_ATTENTION_ITEM 256  /* queries of an item; keys are transposed once for each */
#define DTI_ATTENTION_SPAN 4096 /* keys, or queries, that are added up in float */

/* A matrix of floats, or of the type of q, k and v. */
typedef struct dti_attention_matrix {
    const void *at;
    int64_t row, col;
} dti_attention_matrix;

/* A worker's memory, and the head it is at. */
typedef struct dti_attention_work {
    const dti_cpu_task *task;
    const dti_args_attention *a;
    uint32_t flags;
    dt_dtype type;             /* of q, k, v and dy */
    bool half;                 /* it has 16 bits */
    float q_scale, s_scale;    /* of queries, exact in that type; of scores */
    const uint16_t *k16, *v16; /* the head's, in place */
    uint16_t *q16, *s16, *ds16;
    float *dq, *dk, *dv;    /* sums that are narrowed when they are complete */
    float *kt, *vt, *k, *v; /* of the head: transposed [size][ld], and [tk][size to a vector] */
    float *q, *s, *ds, *m, *gemm;
    double *sum, *wide, *wide_keys; /* of rows of weights; of spans: of queries, dk and dv */
    int64_t ld, d16, dv16;
    int64_t sample, head, kv; /* kv: sample and head of keys that lie ready, up to `ready` */
    int64_t ready;
} dti_attention_work;

static int64_t dti_to_16(int64_t n) {
    return (n + 15) / 16 * 16;
}

/* Whether the gradient adds up more queries than a span for each key. */
static bool dti_attention_is_long(const dti_launch *l) {
    const dti_args_attention *a = &l->args.attention;
    return l->kernel == DTI_K_ATTENTION_GRAD &&
           (int64_t)a->tq * (a->heads / a->kv_heads) > DTI_ATTENTION_SPAN;
}

/* A power of two scales queries without rounding; the rest of the factor scales their scores. */
static void dti_attention_split_scale(dti_attention_work *w) {
    const float scale = w->a->scale;
    w->q_scale = w->half ? dti_f32_from_bits(dti_bits_from_f32(scale) & 0xff800000u) : scale;
    if (w->q_scale == 0)
        w->q_scale = 1;
    w->s_scale = w->half ? scale / w->q_scale : 1;
}

/* Memory for operands in 16 bits. */
static void dti_attention_lay_half(dti_attention_work *w, bool grad, float *memory, size_t *at) {
    const dti_args_attention *a = w->a;
    const int64_t scores = DTI_ATTENTION_QUERIES * DTI_ATTENTION_KEYS;
    w->q16 = (void *)dti_scratch_take(memory, at, DTI_ATTENTION_QUERIES * w->d16 / 2);
    w->s16 = (void *)dti_scratch_take(memory, at, scores / 2);
    w->ds16 = (void *)dti_scratch_take(memory, at, grad ? scores / 2 : 0);
    w->dq = dti_scratch_take(memory, at, grad ? DTI_ATTENTION_QUERIES * (int64_t)a->d : 0);
    w->dk = dti_scratch_take(memory, at, grad ? (int64_t)a->tk * a->d : 0);
    w->dv = dti_scratch_take(memory, at, grad ? (int64_t)a->tk * a->dv : 0);
    w->gemm = dti_scratch_take(
        memory, at,
        dti_half_block_floats(DTI_ATTENTION_KEYS, DTI_ATTENTION_KEYS, DTI_ATTENTION_KEYS));
}

/* Memory for operands in f32. */
static void dti_attention_lay_float(dti_attention_work *w, bool grad, float *memory, size_t *at) {
    const dti_args_attention *a = w->a;
    const dti_gemm widest = {.m = DTI_ATTENTION_KEYS, .n = DTI_ATTENTION_KEYS, .k = DTI_GEMM_KC};
    w->kt = dti_scratch_take(memory, at, w->ld * a->d);
    w->vt = dti_scratch_take(memory, at, grad ? w->ld * a->dv : 0);
    w->k = dti_scratch_take(memory, at, grad ? w->d16 * a->tk : 0);
    w->v = dti_scratch_take(memory, at, grad ? 0 : w->dv16 * a->tk);
    w->q = dti_scratch_take(memory, at, DTI_ATTENTION_QUERIES * w->d16);
    w->gemm =
        dti_scratch_take(memory, at, (int64_t)(dti_gemm_scratch_bytes(&widest) / sizeof(float)));
}

static double *dti_attention_take_wide(float *memory, size_t *used, int64_t n) {
    return (double *)(void *)dti_scratch_take(memory, used, 2 * n);
}

/* Returns how many floats there are. */
static size_t dti_attention_lay(dti_attention_work *w, const dti_launch *l, float *memory) {
    const dti_args_attention *a = &l->args.attention;
    const bool grad = l->kernel == DTI_K_ATTENTION_GRAD;
    const int64_t scores = DTI_ATTENTION_QUERIES * DTI_ATTENTION_KEYS;
    size_t at = 0;
    *w = (dti_attention_work){.a = a, .flags = l->spec[0], .kv = -1, .type = (dt_dtype)l->dtype[0]};
    w->half = dti_is_half(w->type);
    dti_attention_split_scale(w);
    w->ld = dti_to_16(a->tk);
    w->d16 = dti_to_16(a->d);
    w->dv16 = dti_to_16(a->dv);
    (w->half ? dti_attention_lay_half : dti_attention_lay_float)(w, grad, memory, &at);
    w->s = dti_scratch_take(memory, &at, scores);
    w->ds = dti_scratch_take(memory, &at, grad ? scores : 0);
    w->m = dti_scratch_take(memory, &at, DTI_ATTENTION_QUERIES);
    w->sum = dti_attention_take_wide(memory, &at, DTI_ATTENTION_QUERIES);
    w->wide = dti_attention_take_wide(
        memory, &at,
        a->tk > DTI_ATTENTION_SPAN ? DTI_ATTENTION_QUERIES * (int64_t)(grad ? a->d : a->dv) : 0);
    w->wide_keys = dti_attention_take_wide(
        memory, &at, dti_attention_is_long(l) ? (int64_t)a->tk * (a->d + a->dv) : 0);
    return at;
}

static size_t dti_cpu_scratch_attention(const dti_launch *l, int threads) {
    dti_attention_work w;
    return dti_attention_lay(&w, l, NULL) * sizeof(float);
}

/* Keys [lo, hi) that query i may see, by its place. */
static void dti_attention_range(const dti_attention_work *w, int64_t i, int64_t *lo, int64_t *hi) {
    const int64_t window = w->a->window, tk = w->a->tk;
    *lo = window ? DTI_MAX(0, i - window + 1) : 0;
    *hi = window ? DTI_MIN(tk, i + window) : tk;
    if (w->flags & DTI_ATTENTION_CAUSAL)
        *hi = DTI_MIN(*hi, i + 1);
}

/* Brings a head's keys and values up to `end` to where products take them. */
static void dti_attention_prepare(dti_attention_work *w, int64_t end) {
    const dti_args_attention *a = w->a;
    const dti_isa_kernels *kernels = w->task->k;
    const int64_t kv_head = w->head / (a->heads / a->kv_heads);
    const int64_t kv = w->sample * a->kv_heads + kv_head, most = DTI_ATTENTION_KEYS;
    const bool grad = w->task->launch->kernel == DTI_K_ATTENTION_GRAD;
    const int64_t k_at = a->k_offset + w->sample * a->k_sample + kv_head * a->k_head;
    const int64_t v_at = a->v_offset + w->sample * a->v_sample + kv_head * a->v_head;
    const float *k = dti_cpu_at(w->task, !grad, k_at), *v = dti_cpu_at(w->task, !grad, v_at);
    w->k16 = (const void *)k, w->v16 = (const void *)v;
    if (w->half)
        return;
    if (kv != w->kv)
        w->ready = 0;
    w->kv = kv;
    for (; w->ready < end; w->ready += DTI_MIN(most, a->tk - w->ready)) {
        const int64_t j0 = w->ready, n = DTI_MIN(most, a->tk - j0);
        kernels->turn(w->kt + j0, w->ld, k + j0 * a->k_row, a->k_row, n, a->d);
        if (grad)
            kernels->turn(w->vt + j0, w->ld, v + j0 * a->v_row, a->v_row, n, a->dv);
        for (int64_t j = j0; j < j0 + n; j++) {
            if (grad)
                memcpy(w->k + j * w->d16, k + j * a->k_row, a->d * sizeof *k);
            else
                memcpy(w->v + j * w->dv16, v + j * a->v_row, a->dv * sizeof *v);
        }
    }
}

/* Keys from j0 on, [n][d] or transposed. */
static dti_attention_matrix dti_attention_keys(const dti_attention_work *w, int64_t j0,
                                               bool turned) {
    const int64_t row = w->a->k_row;
    if (w->half)
        return (dti_attention_matrix){w->k16 + j0 * row, turned ? 1 : row, turned ? row : 1};
    return turned ? (dti_attention_matrix){w->kt + j0, w->ld, 1}
                  : (dti_attention_matrix){w->k + j0 * w->d16, w->d16, 1};
}

/* Values from j0 on, [n][dv] or transposed. */
static dti_attention_matrix dti_attention_values(const dti_attention_work *w, int64_t j0,
                                                 bool turned) {
    const int64_t row = w->a->v_row;
    if (w->half)
        return (dti_attention_matrix){w->v16 + j0 * row, turned ? 1 : row, turned ? row : 1};
    return turned ? (dti_attention_matrix){w->vt + j0, w->ld, 1}
                  : (dti_attention_matrix){w->v + j0 * w->dv16, w->dv16, 1};
}

/* rows x n of scores as an operand: the floats, or rounded to 16 bits. */
static dti_attention_matrix dti_attention_rounded(const dti_attention_work *w, const float *s,
                                                  uint16_t *s16, int64_t rows, int64_t n) {
    for (int64_t i = 0; w->half && i < rows; i++)
        w->task->k->narrow[w->type](s16 + i * DTI_ATTENTION_KEYS, s + i * DTI_ATTENTION_KEYS, n);
    return (dti_attention_matrix){w->half ? (const void *)s16 : s, DTI_ATTENTION_KEYS, 1};
}

static dti_attention_matrix dti_attention_turned(dti_attention_matrix a) {
    return (dti_attention_matrix){a.at, a.col, a.row};
}

/* c (+)= a b; rows of c are contiguous. */
static void dti_attention_product(const dti_attention_work *w, dti_gemm_block g,
                                  dti_attention_matrix a, dti_attention_matrix b) {
    g.a_row = a.row, g.a_col = a.col, g.b_row = b.row, g.b_col = b.col;
    g.c_col = 1;
    if (w->half) {
        dti_half_block_run(w->task->k, &(dti_half_block){g, a.at, b.at, w->type}, w->gemm);
        return;
    }
    g.a = a.at, g.b = b.at;
    w->task->k->gemm_block(&g, w->gemm);
}

/* Queries [i0, i0 + rows) times their scale. */
static dti_attention_matrix dti_attention_queries(const dti_attention_work *w, int64_t i0,
                                                  int64_t rows) {
    const dti_args_attention *a = w->a;
    const dti_isa_kernels *k = w->task->k;
    const int64_t at = a->q_offset + w->sample * a->q_sample + w->head * a->q_head;
    for (int64_t i = 0; i < rows; i++) {
        const void *q = dti_cpu_at(w->task, 0, at + (i0 + i) * a->q_row);
        if (w->half)
            k->widen[w->type](w->s, q, a->d);
        k->unary[DTI_U_AFFINE](w->half ? w->s : w->q + i * w->d16, w->half ? w->s : q, a->d,
                               w->q_scale, 0);
        if (w->half)
            k->narrow[w->type](w->q16 + i * w->d16, w->s, a->d);
    }
    return (dti_attention_matrix){w->half ? (const void *)w->q16 : w->q, w->d16, 1};
}

/* Adds places and the mask to scores of query i with keys [lo, hi); s: the row's, of key 0. */
static void dti_attention_bias(const dti_attention_work *w, int64_t i, int64_t lo, int64_t hi,
                               float *s) {
    const dti_args_attention *a = w->a;
    const float *mask = dti_cpu_in(w->task, 2, a->mask_offset) + w->sample * a->mask_sample;
    mask += w->head * a->mask_head + i * a->mask_row;
    if (w->flags & DTI_ATTENTION_ALIBI) {
        const float slope = (float)dti_alibi_slope(a->heads, w->head);
        for (int64_t j = lo; j < hi; j++)
            s[j] -= slope * (float)(i > j ? i - j : j - i);
    }
    if (w->flags & DTI_ATTENTION_ADD) {
        for (int64_t j = lo; j < hi; j++)
            s[j] += mask[j * a->mask_col];
    }
    if (w->flags & DTI_ATTENTION_KEEP) {
        for (int64_t j = lo; j < hi; j++)
            s[j] = mask[j * a->mask_col] != 0 ? s[j] : -(float)INFINITY;
    }
}

static void dti_attention_scale(const dti_attention_work *w, float *x, int64_t n, float factor) {
    w->task->k->unary[DTI_U_AFFINE](x, x, n, factor, 0);
}

/* Scores of the block of queries with keys [j0, j0 + n). */
static void dti_attention_block(const dti_attention_work *w, dti_attention_matrix q, int64_t i0,
                                int64_t rows, int64_t j0, int64_t n) {
    const dti_gemm_block g = {
        .m = rows, .n = n, .k = w->a->d, .c = w->s, .c_row = DTI_ATTENTION_KEYS};
    dti_attention_product(w, g, q, dti_attention_keys(w, j0, true));
    for (int64_t i = 0; w->s_scale != 1 && i < rows; i++)
        dti_attention_scale(w, w->s + i * DTI_ATTENTION_KEYS, n, w->s_scale);
    if (!(w->flags & (DTI_ATTENTION_ALIBI | DTI_ATTENTION_MASKED)))
        return;
    for (int64_t i = i0; i < i0 + rows; i++) {
        int64_t lo, hi;
        dti_attention_range(w, i, &lo, &hi);
        dti_attention_bias(w, i, DTI_MAX(lo, j0), DTI_MIN(hi, j0 + n),
                           w->s + (i - i0) * DTI_ATTENTION_KEYS - j0);
    }
}

/* Of query i: which keys of [j0, j0 + n) it sees, from j0 on; the row is 0 elsewhere. */
static bool dti_attention_cut(const dti_attention_work *w, int64_t i, int64_t j0, int64_t n,
                              float *row, int64_t *from, int64_t *to) {
    int64_t lo, hi;
    dti_attention_range(w, i, &lo, &hi);
    *from = DTI_MIN(DTI_MAX(lo - j0, 0), n);
    *to = DTI_MAX(DTI_MIN(hi - j0, n), *from);
    memset(row, 0, (size_t)*from * sizeof *row);
    memset(row + *to, 0, (size_t)(n - *to) * sizeof *row);
    return *to > *from;
}

static void dti_attention_drop(const dti_attention_work *w, int64_t i, int64_t j, float *p,
                               int64_t n) {
    const dti_args_attention *a = w->a;
    const uint32_t *step = w->task->step;
    uint64_t row = (uint64_t)w->sample + a->first_row;
    if (!(w->flags & DTI_ATTENTION_DROPOUT))
        return;
    if (w->flags & DTI_ATTENTION_SAMPLES)
        row += step[DTI_STEP_FIRST_ROW];
    const uint64_t weights = (row * a->heads + (uint64_t)w->head) * a->tq + (uint64_t)i;
    const dti_dropout d = {.seed = (uint64_t)step[DTI_STEP_SEED_HI] << 32 | step[DTI_STEP_SEED_LO],
                           .index = weights * a->tk + (uint64_t)j,
                           .step = step[DTI_STEP_NUMBER],
                           .stream = a->stream,
                           .threshold = a->threshold,
                           .scale = a->keep_scale};
    w->task->k->dropout(p, p, n, &d);
}

/* ---- forward */

/* Weights of a block of keys, not yet divided; rows of y, and `wide` ones of spans before, are
 * brought to the new largest score. */
static void dti_attention_soften(const dti_attention_work *w, int64_t i0, int64_t rows, int64_t j0,
                                 int64_t n, float *y, int64_t y_row, bool wide) {
    for (int64_t i = 0; i < rows; i++) {
        float *s = w->s + i * DTI_ATTENTION_KEYS;
        int64_t from, to;
        if (!dti_attention_cut(w, i0 + i, j0, n, s, &from, &to))
            continue;
        const float factor = w->task->k->attention_row(s + from, to - from, &w->m[i], &w->sum[i]);
        if (factor != 1.0f && y)
            dti_attention_scale(w, y + i * y_row, w->a->dv, factor);
        for (int64_t j = 0; factor != 1.0f && wide && j < w->a->dv; j++)
            w->wide[i * w->a->dv + j] *= (double)factor;
        dti_attention_drop(w, i0 + i, j0 + from, s + from, to - from);
    }
}

/* Divides rows of y and writes the largest scores, and the logarithms after those of all heads. */
static void dti_attention_finish(const dti_attention_work *w, int64_t rows, float *y, int64_t y_row,
                                 float *largest) {
    for (int64_t i = 0; i < rows; i++) {
        const float sum = (float)w->sum[i];
        const bool none = sum == 0.0f;
        float log_sum = (float)DTI_ATTENTION_NONE;
        if (!none)
            w->task->k->unary[DTI_U_LOG](&log_sum, &sum, 1, 0, 0);
        dti_attention_scale(w, y + i * y_row, w->a->dv, none ? 0 : 1.0f / sum);
        largest[i * y_row] = none ? 0.0f : w->m[i];
        largest[i * y_row + w->a->heads] = log_sum;
    }
}

static void dti_attention_forward(dti_attention_work *w, int64_t i0, int64_t rows) {
    const dti_args_attention *a = w->a;
    const int64_t y_row = (int64_t)a->heads * (a->dv + 2), most = DTI_ATTENTION_KEYS;
    float *out = dti_cpu_out(w->task, 3, a->y_offset) + (w->sample * a->tq + i0) * y_row;
    float *y = out + w->head * a->dv;
    int64_t lo, hi, rest;
    dti_attention_range(w, i0, &lo, &rest);
    dti_attention_range(w, i0 + rows - 1, &rest, &hi);
    dti_attention_prepare(w, hi);
    const dti_attention_matrix q = dti_attention_queries(w, i0, rows);
    for (int64_t i = 0; i < rows; i++) {
        w->m[i] = -(float)INFINITY;
        w->sum[i] = 0;
        if (lo >= hi)
            memset(y + i * y_row, 0, a->dv * sizeof *y);
    }
    int64_t done = 0, spans = 0; /* keys of the span; spans before it */
    for (int64_t j0 = lo / most * most; j0 < hi; j0 += most, done += most) {
        const int64_t n = DTI_MIN(most, hi - j0);
        if (done == DTI_ATTENTION_SPAN) {
            dti_wide_add((dti_wide){w->wide, y, rows, a->dv, y_row, 1}, spans++ == 0);
            done = 0;
        }
        dti_attention_block(w, q, i0, rows, j0, n);
        dti_attention_soften(w, i0, rows, j0, n, done ? y : NULL, y_row, spans > 0);
        dti_attention_product(
            w,
            (dti_gemm_block){
                .m = rows, .n = a->dv, .k = n, .c = y, .c_row = y_row, .add = done > 0},
            dti_attention_rounded(w, w->s, w->s16, rows, n), dti_attention_values(w, j0, false));
    }
    if (spans) {
        dti_wide_add((dti_wide){w->wide, y, rows, a->dv, y_row, 1}, false);
        dti_wide_take((dti_wide){w->wide, y, rows, a->dv, y_row, 1});
    }
    dti_attention_finish(w, rows, y, y_row, out + a->heads * a->dv + w->head);
}

static int64_t dti_attention_items_of_head(const dti_args_attention *a) {
    return (a->tq + DTI_ATTENTION_ITEM - 1) / DTI_ATTENTION_ITEM;
}

static void dti_cpu_attention(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_attention *a = &task->launch->args.attention;
    const int64_t items = dti_attention_items_of_head(a);
    dti_attention_work w;
    dti_attention_lay(&w, task->launch, scratch);
    w.task = task;
    for (int64_t item = begin; item < end; item++) {
        const int64_t first = item % items * DTI_ATTENTION_ITEM;
        w.head = item / items % a->heads;
        w.sample = item / items / a->heads;
        for (int64_t i = first; i < DTI_MIN(first + DTI_ATTENTION_ITEM, (int64_t)a->tq);
             i += DTI_ATTENTION_QUERIES)
            dti_attention_forward(&w, i, DTI_MIN(DTI_ATTENTION_QUERIES, a->tq - i));
    }
}

static int64_t dti_cpu_items_attention(const dti_cpu_task *task) {
    const dti_args_attention *a = &task->launch->args.attention;
    return (int64_t)a->samples * a->heads * dti_attention_items_of_head(a);
}

static int64_t dti_cpu_grain_attention(const dti_cpu_task *task) {
    const dti_args_attention *a = &task->launch->args.attention;
    return 1 + 16384 / (1 + DTI_MIN((int64_t)a->tq, DTI_ATTENTION_ITEM) * a->tk * a->d);
}

/* ---- gradient */

/* Where dq, dk and dv of a head are summed: in the result, or in the worker's memory. Also the
 * distance between positions. at: the places in the result. */
typedef struct dti_attention_result {
    float *x;
    int64_t row, at, out_row, size;
} dti_attention_result;
typedef struct dti_attention_places {
    dti_attention_result q, k, v;
} dti_attention_places;

static dti_attention_result dti_attention_place(const dti_attention_work *w, float *sums,
                                                int64_t at, int64_t row, int64_t size) {
    if (w->half)
        return (dti_attention_result){sums, size, at, row, size};
    return (dti_attention_result){dti_cpu_at(w->task, 3, at), row, at, row, size};
}

static dti_attention_places dti_attention_places_of(const dti_attention_work *w) {
    const dti_args_attention *a = w->a;
    const int64_t q = (int64_t)a->heads * a->d, k = (int64_t)a->kv_heads * a->d;
    const int64_t v = (int64_t)a->kv_heads * a->dv, kv = w->head / (a->heads / a->kv_heads);
    const bool rows = a->tq == a->tk;
    const int64_t y = a->y_offset + w->sample * (a->tq * q + a->tk * (k + v));
    const int64_t all = q + k + v, tq = rows ? 1 : a->tq, tk = rows ? 1 : a->tk;
    return (dti_attention_places){
        dti_attention_place(w, w->dq, y + w->head * a->d, rows ? all : q, a->d),
        dti_attention_place(w, w->dk, y + tq * q + kv * a->d, rows ? all : k, a->d),
        dti_attention_place(w, w->dv, y + tq * q + tk * k + kv * a->dv, rows ? all : v, a->dv)};
}

/* Sums of positions [i0, i0 + rows) to the result, which are complete. */
static void dti_attention_put(const dti_attention_work *w, const dti_attention_result *s,
                              int64_t i0, int64_t rows, float factor) {
    for (int64_t i = 0; w->half && i < rows; i++) {
        float *x = s->x + i * s->row;
        if (factor != 1)
            dti_attention_scale(w, x, s->size, factor);
        w->task->k->narrow[w->type](dti_cpu_at(w->task, 3, s->at + (i0 + i) * s->out_row), x,
                                    s->size);
    }
}

/* s: weights, dropped; ds: the scores' gradients. dy: of the head. */
static void dti_attention_slopes_block(const dti_attention_work *w, int64_t i0, int64_t rows,
                                       int64_t j0, int64_t n, dti_attention_matrix dy) {
    const dti_args_attention *a = w->a;
    const float *logs = dti_cpu_in(w->task, 2, 0) + w->head;
    logs += (w->sample * a->tq + i0) * 3 * a->heads;
    const dti_gemm_block g = {
        .m = rows, .n = n, .k = a->dv, .c = w->ds, .c_row = DTI_ATTENTION_KEYS};
    dti_attention_product(w, g, dy, dti_attention_values(w, j0, true));
    for (int64_t i = 0; i < rows; i++, logs += 3 * a->heads) {
        float *s = w->s + i * DTI_ATTENTION_KEYS, *ds = w->ds + i * DTI_ATTENTION_KEYS;
        int64_t from, to;
        dti_attention_cut(w, i0 + i, j0, n, ds, &from, &to);
        if (!dti_attention_cut(w, i0 + i, j0, n, s, &from, &to))
            continue;
        w->task->k->attention_weights(s + from, to - from, logs[0], logs[a->heads]);
        dti_attention_drop(w, i0 + i, j0 + from, ds + from, to - from);
        w->task->k->attention_slope(ds + from, s + from, to - from, logs[2 * a->heads]);
        dti_attention_drop(w, i0 + i, j0 + from, s + from, to - from);
    }
}

/* The contributions of keys [j0, j0 + n) and a block of queries to each other. */
static void dti_attention_backward_block(const dti_attention_work *w, const dti_attention_places *p,
                                         int64_t rows, int64_t j0, int64_t n,
                                         dti_attention_matrix q, dti_attention_matrix dy, float *dq,
                                         bool add) {
    const dti_args_attention *a = w->a;
    const dti_attention_matrix weights = dti_attention_rounded(w, w->s, w->s16, rows, n);
    const dti_attention_matrix slopes = dti_attention_rounded(w, w->ds, w->ds16, rows, n);
    dti_gemm_block g = {.m = n, .n = a->dv, .k = rows, .add = true};
    g.c = p->v.x + j0 * p->v.row, g.c_row = p->v.row;
    dti_attention_product(w, g, dti_attention_turned(weights), dy);
    g.n = a->d, g.c = p->k.x + j0 * p->k.row, g.c_row = p->k.row;
    dti_attention_product(w, g, dti_attention_turned(slopes), q);
    g = (dti_gemm_block){.m = rows, .n = a->d, .k = n, .c = dq, .c_row = p->q.row, .add = add};
    dti_attention_product(w, g, slopes, dti_attention_keys(w, j0, false));
}

static void dti_attention_backward(dti_attention_work *w, const dti_attention_places *p, int64_t i0,
                                   int64_t rows) {
    const dti_args_attention *a = w->a;
    const int64_t dy_row = (int64_t)a->heads * a->dv, most = DTI_ATTENTION_KEYS;
    const int64_t dy_at = a->dy_offset + (w->sample * a->tq + i0) * dy_row + w->head * a->dv;
    const dti_attention_matrix dy = {dti_cpu_at(w->task, 1, dy_at), dy_row, 1};
    const dti_attention_matrix q = dti_attention_queries(w, i0, rows);
    float *dq = p->q.x + (w->half ? 0 : i0 * p->q.row);
    int64_t lo, hi, rest;
    dti_attention_range(w, i0, &lo, &rest);
    dti_attention_range(w, i0 + rows - 1, &rest, &hi);
    for (int64_t i = 0; i < rows && lo >= hi; i++)
        memset(dq + i * p->q.row, 0, a->d * sizeof *dq);
    int64_t done = 0, spans = 0;
    for (int64_t j0 = lo / most * most; j0 < hi; j0 += most, done += most) {
        const int64_t n = DTI_MIN(most, hi - j0);
        if (done == DTI_ATTENTION_SPAN) {
            dti_wide_add((dti_wide){w->wide, dq, rows, a->d, p->q.row, 1}, spans++ == 0);
            done = 0;
        }
        dti_attention_block(w, q, i0, rows, j0, n);
        dti_attention_slopes_block(w, i0, rows, j0, n, dy);
        dti_attention_backward_block(w, p, rows, j0, n, q, dy, dq, done > 0);
    }
    if (spans) {
        dti_wide_add((dti_wide){w->wide, dq, rows, a->d, p->q.row, 1}, false);
        dti_wide_take((dti_wide){w->wide, dq, rows, a->d, p->q.row, 1});
    }
    for (int64_t i = 0; i < rows && lo < hi; i++)
        dti_attention_scale(w, dq + i * p->q.row, a->d, a->scale);
    dti_attention_put(w, &p->q, i0, rows, 1);
}

static void dti_attention_clear(const dti_attention_work *w, const dti_attention_places *p) {
    for (int64_t j = 0; j < w->a->tk; j++) {
        memset(p->k.x + j * p->k.row, 0, w->a->d * sizeof(float));
        memset(p->v.x + j * p->v.row, 0, w->a->dv * sizeof(float));
    }
}

/* After a span of queries: dk and dv begin again. After the last span they are the sums of all
 * spans. */
static void dti_attention_span(const dti_attention_work *w, const dti_attention_places *p,
                               bool first, bool last) {
    const dti_args_attention *a = w->a;
    double *dv = w->wide_keys + (int64_t)a->tk * a->d;
    dti_wide_add((dti_wide){w->wide_keys, p->k.x, a->tk, a->d, p->k.row, 1}, first);
    dti_wide_add((dti_wide){dv, p->v.x, a->tk, a->dv, p->v.row, 1}, first);
    dti_attention_clear(w, p);
    if (!last)
        return;
    dti_wide_take((dti_wide){w->wide_keys, p->k.x, a->tk, a->d, p->k.row, 1});
    dti_wide_take((dti_wide){dv, p->v.x, a->tk, a->dv, p->v.row, 1});
}

static void dti_cpu_attention_grad(const dti_cpu_task *task, int64_t begin, int64_t end,
                                   void *scratch) {
    const dti_args_attention *a = &task->launch->args.attention;
    const int64_t group = a->heads / a->kv_heads;
    dti_attention_work w;
    dti_attention_lay(&w, task->launch, scratch);
    w.task = task;
    for (int64_t item = begin; item < end; item++) {
        w.sample = item / a->kv_heads;
        w.head = item % a->kv_heads * group;
        dti_attention_places p = dti_attention_places_of(&w);
        const bool wide = dti_attention_is_long(task->launch);
        int64_t done = 0, spans = 0;
        dti_attention_clear(&w, &p);
        dti_attention_prepare(&w, a->tk);
        for (int64_t h = 0; h < group; h++, w.head++) {
            p.q = dti_attention_places_of(&w).q;
            for (int64_t i = 0; i < a->tq; i += DTI_ATTENTION_QUERIES) {
                if (wide && done >= DTI_ATTENTION_SPAN) {
                    dti_attention_span(&w, &p, spans++ == 0, false);
                    done = 0;
                }
                dti_attention_backward(&w, &p, i, DTI_MIN(DTI_ATTENTION_QUERIES, a->tq - i));
                done += DTI_ATTENTION_QUERIES;
            }
        }
        if (wide)
            dti_attention_span(&w, &p, spans == 0, true);
        dti_attention_put(&w, &p.k, 0, a->tk, w.s_scale);
        dti_attention_put(&w, &p.v, 0, a->tk, 1);
    }
}

static int64_t dti_cpu_items_attention_grad(const dti_cpu_task *task) {
    const dti_args_attention *a = &task->launch->args.attention;
    return (int64_t)a->samples * a->kv_heads;
}
