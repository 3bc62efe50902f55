/* Recurrent nets on the CPU. A block of samples goes through all steps, one product a step, whose
 * weights stay in the cache. The state lies in memory of the worker. The number of threads decides
 * a block's samples. No sample sees another, so no result depends on threads. With operands in 16
 * bits the products' are rounded to that type; the state, the cell and the gates are floats, which
 * are rounded where they are kept. */

#define DTI_RECURRENCE_BLOCK 48         /* samples whose sums stay in L2 with the weights */
#define DTI_RECURRENCE_PACKED (1 << 20) /* floats of weights that a worker packs once, at most */

/* Weights of one of the products, as its kernel reads them: packed by a block's first step. */
typedef struct dti_recurrence_weight {
    float *at; /* NULL: each step packs them */
    bool ready;
} dti_recurrence_weight;

/* A worker's memory, and the block it is at. */
typedef struct dti_recurrence_work {
    const dti_cpu_task *task;
    const dti_args_recurrence *a;
    dti_recurrence s;
    int64_t first, count;
    float *h, *c, *sums, *unit, *gemm;  /* of each sample: [size], [hidden], [gates][hidden] */
    int64_t *length;                    /* [hidden] */
    dti_recurrence_weight packed[2];    /* recurrent weights, the projection */
    dt_dtype type;                      /* of x, weights and results */
    bool half;                          /* it has 16 bits: */
    uint16_t *round;                    /* an operand, rounded */
    float *line, *kept, *before, *bias; /* of a step of a sample, as floats; GRU's bias */
} dti_recurrence_work;

static int64_t dti_recurrence_block(const dti_args_recurrence *a, int threads) {
    const int64_t share = (a->samples + (int64_t)threads - 1) / threads;
    return DTI_MAX(1, DTI_MIN(share, DTI_RECURRENCE_BLOCK));
}

/* Memory for operands in 16 bits; sums: of a sample. */
static void dti_recurrence_lay_half(dti_recurrence_work *w, int64_t sums, float *memory,
                                    size_t *at) {
    const dti_args_recurrence *a = w->a;
    const int64_t rows = DTI_RECURRENCE_BLOCK, most = DTI_MAX(sums, a->size);
    w->round = (void *)dti_scratch_take(memory, at, (rows * most + 1) / 2);
    w->line = dti_scratch_take(memory, at, DTI_MAX(most, w->s.slopes));
    w->kept = dti_scratch_take(memory, at, dti_recurrence_kept(&w->s));
    w->before = dti_scratch_take(memory, at, a->hidden);
    w->bias = dti_scratch_take(memory, at, a->hidden);
    w->gemm = dti_scratch_take(memory, at, dti_half_block_floats(rows, most, most));
}

/* Memory for weights of k * n elements. It does not pay for one step. */
static float *dti_recurrence_lay_packed(const dti_recurrence_work *w, int64_t k, int64_t n,
                                        float *memory, size_t *at) {
    const int64_t floats = dti_gemm_kept(n, w->half ? (k + 1) / 2 : k);
    if (w->s.steps == 1 || floats > DTI_RECURRENCE_PACKED)
        return NULL;
    return dti_scratch_take(memory, at, floats);
}

/* Returns how many floats there are. */
static size_t dti_recurrence_lay(dti_recurrence_work *w, const dti_launch *l, float *memory) {
    const dti_args_recurrence *a = &l->args.recurrence;
    const dti_attr attr = {.i = {(int32_t)l->spec[0], (int32_t)a->flags}};
    const int64_t rows = DTI_RECURRENCE_BLOCK,
                  sums = dti_recurrence_gates[l->spec[0]] * (int64_t)a->hidden;
    const dti_gemm widest = {.m = rows, .n = DTI_MAX(sums, a->size), .k = DTI_GEMM_KC};
    size_t at = 0;
    *w = (dti_recurrence_work){.a = a, .type = (dt_dtype)l->dtype[0]};
    w->half = dti_is_half(w->type);
    w->s = dti_recurrence_sizes(&attr, (dt_shape){2, {sums, a->size}});
    w->s.steps = a->steps;
    w->h = dti_scratch_take(memory, &at, rows * a->size);
    w->c = dti_scratch_take(memory, &at, rows * a->hidden);
    w->sums = dti_scratch_take(memory, &at, rows * sums);
    w->unit = dti_scratch_take(memory, &at, rows * DTI_MAX(a->hidden, a->size));
    w->length = (void *)dti_scratch_take(memory, &at, rows * 2);
    const bool back = l->kernel == DTI_K_RECURRENCE_GRAD;
    w->packed[0].at =
        dti_recurrence_lay_packed(w, back ? sums : a->size, back ? a->size : sums, memory, &at);
    if (a->flags & DTI_RECURRENCE_PROJECTED)
        w->packed[1].at = dti_recurrence_lay_packed(w, back ? a->size : a->hidden,
                                                    back ? a->hidden : a->size, memory, &at);
    if (w->half)
        dti_recurrence_lay_half(w, sums, memory, &at);
    else
        w->gemm = dti_scratch_take(memory, &at,
                                   (int64_t)(dti_gemm_scratch_bytes(&widest) / sizeof(float)));
    return at;
}

static size_t dti_cpu_scratch_recurrence(const dti_launch *l, int threads) {
    dti_recurrence_work w;
    return dti_recurrence_lay(&w, l, NULL) * sizeof(float);
}

static int64_t dti_cpu_items_recurrence(const dti_cpu_task *task) {
    const dti_args_recurrence *a = &task->launch->args.recurrence;
    const int64_t block = dti_recurrence_block(a, task->threads);
    return (a->samples + block - 1) / block;
}

/* Steps of a sample: its state ends with them. */
static int64_t dti_recurrence_length(const dti_recurrence *s, const float *state) {
    const float n = s->flags & DTI_RECURRENCE_LENGTHS ? state[s->size + s->cell] : (float)s->steps;
    return n >= (float)s->steps ? s->steps : n > 0 ? (int64_t)n : 0;
}

/* The step that a walk comes to as number `i`. */
static int64_t dti_recurrence_step(const dti_recurrence *s, int64_t i) {
    return s->flags & DTI_RECURRENCE_REVERSE ? s->steps - 1 - i : i;
}

/* Floats as an operand of a product. */
static const void *dti_recurrence_rounded(const dti_recurrence_work *w, const float *x, int64_t n) {
    if (!w->half)
        return x;
    w->task->k->narrow[w->type](w->round, x, n);
    return w->round;
}

/* c (+)= a times weights in binding 1, whose rows are contiguous: one row for each sample of the
 * block. projection: those of W_hr. */
static void dti_recurrence_product(dti_recurrence_work *w, const void *a, int64_t a_row, int64_t k,
                                   bool projection, float *c, int64_t n, bool add) {
    const void *b = dti_cpu_at(w->task, 1, projection ? w->a->e_offset : w->a->w_offset);
    dti_recurrence_weight *packed = &w->packed[projection];
    dti_gemm_block g = {.m = w->count,
                        .n = n,
                        .k = k,
                        .a_row = a_row,
                        .a_col = 1,
                        .b_row = projection ? n : w->a->w_row,
                        .b_col = 1,
                        .c = c,
                        .c_row = n,
                        .c_col = 1,
                        .add = add,
                        .kept = packed->at,
                        .is_kept = packed->ready};
    packed->ready = packed->at != NULL;
    if (w->half) {
        dti_half_block_run(w->task->k, &(dti_half_block){g, a, b, w->type}, w->gemm);
        return;
    }
    g.a = a, g.b = b;
    w->task->k->gemm_block(&g, w->gemm);
}

/* The state, followed by the operand's sample. */
static const float *dti_recurrence_state(const dti_recurrence_work *w, int64_t i) {
    return dti_cpu_in(w->task, 2, w->a->s_offset) + (w->first + i) * w->a->s_sample;
}
/* Where a sample's results and its operand begin, in elements. */
static int64_t dti_recurrence_out(const dti_recurrence_work *w, int64_t i) {
    return w->a->y_offset + (w->first + i) * w->a->y_sample;
}
static int64_t dti_recurrence_in(const dti_recurrence_work *w, int64_t i) {
    return w->a->x_offset + (w->first + i) * w->a->x_sample;
}

/* n elements of a binding as floats: where they lie, or in `room`. */
static const float *dti_recurrence_floats(const dti_recurrence_work *w, int binding, int64_t at,
                                          int64_t n, float *room) {
    const void *x = dti_cpu_at(w->task, binding, at);
    if (!w->half)
        return x;
    w->task->k->widen[w->type](room, x, n);
    return room;
}

/* Floats to the result from element `at` on; NULL: zeros. */
static void dti_recurrence_store(const dti_recurrence_work *w, int64_t at, const float *x,
                                 int64_t n) {
    void *to = dti_cpu_at(w->task, 3, at);
    if (!x)
        memset(to, 0, dti_bytes(w->type, (uint64_t)n));
    else if (w->half)
        w->task->k->narrow[w->type](to, x, n);
    else if (x != to)
        memcpy(to, x, (size_t)n * sizeof *x);
}

/* A step of a sample of the block. */
typedef struct dti_recurrence_point {
    int64_t i, t;
} dti_recurrence_point;

/* The step after step t of sample i. */
static dti_recurrence_point dti_recurrence_next(const dti_recurrence_work *w, int64_t i, int64_t t,
                                                bool back) {
    const bool down = ((w->s.flags & DTI_RECURRENCE_REVERSE) != 0) != back;
    if (i + 1 < w->count)
        return (dti_recurrence_point){i + 1, t};
    return (dti_recurrence_point){0, DTI_MAX(0, DTI_MIN(w->s.steps - 1, t + (down ? -1 : 1)))};
}

/* n elements of a binding, which the cell before fetches. */
static dti_cell_run dti_recurrence_ahead(const dti_recurrence_work *w, int binding, int64_t at,
                                         int64_t n) {
    const int64_t bytes = (int64_t)dti_dtype_bytes(w->type);
    return (dti_cell_run){dti_cpu_at(w->task, binding, at), n / w->s.hidden * bytes};
}

/* ---- forward */

static void dti_recurrence_begin(const dti_recurrence_work *w) {
    const dti_recurrence *s = &w->s;
    for (int64_t i = 0; i < w->count; i++) {
        const float *state = dti_recurrence_state(w, i);
        w->length[i] = dti_recurrence_length(s, state);
        memcpy(w->h + i * s->size, state, (size_t)s->size * sizeof *state);
        memcpy(w->c + i * s->hidden, state + s->size, (size_t)s->cell * sizeof *state);
    }
}

/* Where a step's kept elements lie, from where the sample's results begin. */
static int64_t dti_recurrence_kept_at(const dti_recurrence *s, int64_t t) {
    return s->steps * s->size + s->size + s->cell + t * dti_recurrence_kept(s);
}

static void dti_recurrence_cell(const dti_recurrence_work *w, int64_t i, int64_t t) {
    const dti_recurrence *s = &w->s;
    const dti_isa_kernels *k = w->task->k;
    dti_cell_fn *const cells[] = {k->lstm, k->gru, k->rnn_tanh, k->rnn_relu};
    const bool projected = (s->flags & DTI_RECURRENCE_PROJECTED) != 0;
    const int64_t wide = dti_recurrence_kept(s), all = s->gates * s->hidden;
    const int64_t at = dti_recurrence_out(w, i) + dti_recurrence_kept_at(s, t);
    const dti_recurrence_point next = dti_recurrence_next(w, i, t, false);
    const int64_t next_kept = dti_recurrence_out(w, next.i) + dti_recurrence_kept_at(s, next.t);
    float *h = w->h + i * s->size, *kept = w->half ? w->kept : dti_cpu_at(w->task, 3, at);
    memcpy(kept + wide - s->size, h, (size_t)s->size * sizeof *h);
    cells[s->kind](&(dti_cell){
        .x = dti_recurrence_floats(w, 0, dti_recurrence_in(w, i) + t * all, all, w->line),
        .w = w->sums + i * all,
        .b = w->half ? w->bias : dti_cpu_in(w->task, 1, w->a->e_offset),
        .kept = kept,
        .h = projected ? w->unit + i * s->hidden : h,
        .c = w->c + i * s->hidden,
        .n = s->hidden,
        .ahead = {dti_recurrence_ahead(w, 0, dti_recurrence_in(w, next.i) + next.t * all, all),
                  dti_recurrence_ahead(w, 3, next_kept, wide)}});
    if (projected)
        memcpy(kept + s->units, w->unit + i * s->hidden, (size_t)s->hidden * sizeof *h);
    dti_recurrence_store(w, at, kept, wide);
}

/* W_hr times the cells' outputs, which lie in `unit`; the product in `sums`. */
static void dti_recurrence_project(dti_recurrence_work *w, int64_t t) {
    const dti_recurrence *s = &w->s;
    dti_recurrence_product(w, dti_recurrence_rounded(w, w->unit, w->count * s->hidden), s->hidden,
                           s->hidden, true, w->sums, s->size, false);
    for (int64_t i = 0; i < w->count; i++) {
        if (t < w->length[i])
            memcpy(w->h + i * s->size, w->sums + i * s->size, (size_t)s->size * sizeof *w->h);
    }
}

/* After the sample's end all is 0. */
static void dti_recurrence_put(const dti_recurrence_work *w, int64_t i, int64_t t) {
    const dti_recurrence *s = &w->s;
    const int64_t y = dti_recurrence_out(w, i);
    const bool on = t < w->length[i];
    dti_recurrence_store(w, y + t * s->size, on ? w->h + i * s->size : NULL, s->size);
    if (!on)
        dti_recurrence_store(w, y + dti_recurrence_kept_at(s, t), NULL, dti_recurrence_kept(s));
}

static void dti_recurrence_forward(dti_recurrence_work *w) {
    const dti_recurrence *s = &w->s;
    dti_recurrence_begin(w);
    memset(w->unit, 0, (size_t)(w->count * s->hidden) * sizeof *w->unit);
    if (w->half && s->kind == DTI_RECURRENCE_GRU)
        dti_recurrence_floats(w, 1, w->a->e_offset, s->hidden, w->bias);
    for (int64_t step = 0; step < s->steps; step++) {
        const int64_t t = dti_recurrence_step(s, step);
        dti_recurrence_product(w, dti_recurrence_rounded(w, w->h, w->count * s->size), s->size,
                               s->size, false, w->sums, s->gates * s->hidden, false);
        for (int64_t i = 0; i < w->count; i++) {
            if (t < w->length[i])
                dti_recurrence_cell(w, i, t);
        }
        if (s->flags & DTI_RECURRENCE_PROJECTED)
            dti_recurrence_project(w, t);
        for (int64_t i = 0; i < w->count; i++)
            dti_recurrence_put(w, i, t);
    }
    for (int64_t i = 0; i < w->count; i++) {
        const int64_t last = dti_recurrence_out(w, i) + s->steps * s->size;
        dti_recurrence_store(w, last, w->h + i * s->size, s->size);
        dti_recurrence_store(w, last + s->size, w->c + i * s->hidden, s->cell);
    }
}

/* ---- gradient */

/* Where the incoming gradients lie, from the sample's place on. They are of all steps, of the last
 * h and c, and of the state before, whose cell is first[1]. NULL: no gradient. */
typedef struct dti_recurrence_flows {
    const float *y, *h, *c, *state;
} dti_recurrence_flows;

static dti_recurrence_flows dti_recurrence_flows_of(const dti_recurrence_work *w, int64_t i) {
    const dti_recurrence *s = &w->s;
    dti_recurrence_flows f = {.y = dti_recurrence_state(w, i)};
    f.state = f.y + s->steps * s->size;
    if (s->flags & DTI_RECURRENCE_DH)
        f.h = f.state, f.state += s->size;
    if (s->flags & DTI_RECURRENCE_DC)
        f.c = f.state, f.state += s->cell;
    return f;
}

static void dti_recurrence_copy(float *to, const float *from, int64_t n) {
    if (from)
        memcpy(to, from, (size_t)n * sizeof *to);
    else
        memset(to, 0, (size_t)n * sizeof *to);
}

static void dti_recurrence_begin_back(const dti_recurrence_work *w) {
    const dti_recurrence *s = &w->s;
    for (int64_t i = 0; i < w->count; i++) {
        const dti_recurrence_flows f = dti_recurrence_flows_of(w, i);
        w->length[i] = dti_recurrence_length(s, f.state);
        dti_recurrence_copy(w->h + i * s->size, f.h, s->size);
        dti_recurrence_copy(w->c + i * s->hidden, f.c, s->cell);
    }
}

/* The gradient of h of the step: it is kept where it is the projection's. */
static void dti_recurrence_gather(const dti_recurrence_work *w, int64_t i, int64_t t) {
    const dti_recurrence *s = &w->s;
    float *h = w->h + i * s->size;
    const bool on = t < w->length[i];
    if (on)
        w->task->k->axpy(h, 1.0f, dti_recurrence_flows_of(w, i).y + t * s->size, s->size);
    if (!(s->flags & DTI_RECURRENCE_PROJECTED))
        return;
    dti_recurrence_store(w, dti_recurrence_out(w, i) + s->steps * s->slopes + t * s->size,
                         on ? h : NULL, s->size);
    if (on)
        memset(h, 0, (size_t)s->size * sizeof *h);
}

/* LSTM's cell before step t. */
static const float *dti_recurrence_cell_before(const dti_recurrence_work *w, int64_t i, int64_t t) {
    const dti_recurrence *s = &w->s;
    const bool reverse = (s->flags & DTI_RECURRENCE_REVERSE) != 0;
    if (reverse ? t == w->length[i] - 1 : t == 0)
        return dti_recurrence_flows_of(w, i).state + s->size;
    const int64_t at = dti_recurrence_kept_at(s, reverse ? t + 1 : t - 1) + 4 * s->hidden;
    return dti_recurrence_floats(w, 0, dti_recurrence_in(w, i) + at, s->hidden, w->before);
}

/* Gradients of the gates' sums go to the results. Only for GRU do those of the product with the
 * state differ: they stay in `sums`. */
static void dti_recurrence_cell_back(const dti_recurrence_work *w, int64_t i, int64_t t) {
    const dti_recurrence *s = &w->s;
    const dti_isa_kernels *k = w->task->k;
    dti_cell_back_fn *const cells[] = {k->lstm_back, k->gru_back, k->rnn_tanh_back,
                                       k->rnn_relu_back};
    const bool projected = (s->flags & DTI_RECURRENCE_PROJECTED) != 0;
    const bool gru = s->kind == DTI_RECURRENCE_GRU;
    const int64_t wide = dti_recurrence_kept(s), all = s->gates * s->hidden;
    const int64_t read = gru ? wide : s->units;
    const int64_t x = dti_recurrence_in(w, i), d = dti_recurrence_out(w, i) + t * s->slopes;
    const dti_recurrence_point next = dti_recurrence_next(w, i, t, true);
    const int64_t next_kept = dti_recurrence_in(w, next.i) + dti_recurrence_kept_at(s, next.t);
    const int64_t next_d = dti_recurrence_out(w, next.i) + next.t * s->slopes;
    float *sums = w->sums + i * all, *dx = w->half ? w->line : dti_cpu_at(w->task, 3, d);
    const float *kept =
        dti_recurrence_floats(w, 0, x + dti_recurrence_kept_at(s, t), read, w->kept);
    cells[s->kind](&(dti_cell_back){
        .kept = kept,
        .h_now = s->units ? NULL : dti_recurrence_floats(w, 0, x + t * s->size, s->size, w->line),
        .before = s->cell ? dti_recurrence_cell_before(w, i, t) : kept + wide - s->size,
        .dh = (projected ? w->unit + i * s->hidden : w->h + i * s->size),
        .dc = w->c + i * s->hidden,
        .d = gru ? sums : dx,
        .dx = dx,
        .n = s->hidden,
        .ahead = {dti_recurrence_ahead(w, 0, next_kept, read),
                  dti_recurrence_ahead(w, 3, next_d, s->slopes)}});
    if (gru)
        memcpy(dx + all, sums + 2 * s->hidden, (size_t)s->hidden * sizeof *dx);
    dti_recurrence_store(w, d, dx, s->slopes);
}

/* A step that the sample does not have. */
static void dti_recurrence_no_cell(const dti_recurrence_work *w, int64_t i, int64_t t) {
    const dti_recurrence *s = &w->s;
    const int64_t all = s->gates * s->hidden;
    dti_recurrence_store(w, dti_recurrence_out(w, i) + t * s->slopes, NULL, s->slopes);
    memset(w->sums + i * all, 0, (size_t)all * sizeof *w->sums);
}

/* The gradient through the recurrent weights to the state before step t. */
static void dti_recurrence_product_back(dti_recurrence_work *w, int64_t t) {
    const dti_recurrence *s = &w->s;
    const int64_t all = s->gates * s->hidden, at = dti_recurrence_out(w, 0) + t * s->slopes;
    const bool gru = s->kind == DTI_RECURRENCE_GRU;
    const void *d =
        gru ? dti_recurrence_rounded(w, w->sums, w->count * all) : dti_cpu_at(w->task, 3, at);
    dti_recurrence_product(w, d, gru ? all : w->a->y_sample, all, false, w->h, s->size, true);
}

/* The gradient through the projection to units of step t. */
static void dti_recurrence_project_back(dti_recurrence_work *w, int64_t t) {
    const dti_recurrence *s = &w->s;
    const int64_t at = dti_recurrence_out(w, 0) + s->steps * s->slopes + t * s->size;
    dti_recurrence_product(w, dti_cpu_at(w->task, 3, at), w->a->y_sample, s->size, true, w->unit,
                           s->hidden, false);
}

static void dti_recurrence_backward(dti_recurrence_work *w) {
    const dti_recurrence *s = &w->s;
    dti_recurrence_begin_back(w);
    for (int64_t step = s->steps - 1; step >= 0; step--) {
        const int64_t t = dti_recurrence_step(s, step);
        for (int64_t i = 0; i < w->count; i++)
            dti_recurrence_gather(w, i, t);
        if (s->flags & DTI_RECURRENCE_PROJECTED)
            dti_recurrence_project_back(w, t);
        for (int64_t i = 0; i < w->count; i++)
            (t < w->length[i] ? dti_recurrence_cell_back : dti_recurrence_no_cell)(w, i, t);
        dti_recurrence_product_back(w, t);
    }
    for (int64_t i = 0; i < w->count && s->flags & DTI_RECURRENCE_STATE; i++) {
        const int64_t to = dti_recurrence_out(w, i) + dti_recurrence_grad_all(s) - s->state;
        dti_recurrence_store(w, to, w->h + i * s->size, s->size);
        dti_recurrence_store(w, to + s->size, w->c + i * s->hidden, s->cell);
        if (s->flags & DTI_RECURRENCE_LENGTHS)
            dti_recurrence_store(w, to + s->state - 1, NULL, 1);
    }
}

/* ---- blocks */

static void dti_recurrence_blocks(const dti_cpu_task *task, int64_t begin, int64_t end,
                                  void *scratch, void (*run)(dti_recurrence_work *w)) {
    dti_recurrence_work w;
    dti_recurrence_lay(&w, task->launch, scratch);
    w.task = task;
    const int64_t block = dti_recurrence_block(w.a, task->threads);
    for (int64_t item = begin; item < end; item++) {
        w.first = item * block;
        w.count = DTI_MIN(block, (int64_t)w.a->samples - w.first);
        w.packed[0].ready = w.packed[1].ready = false;
        run(&w);
    }
}

static void dti_cpu_recurrence(const dti_cpu_task *task, int64_t begin, int64_t end,
                               void *scratch) {
    dti_recurrence_blocks(task, begin, end, scratch, dti_recurrence_forward);
}

static void dti_cpu_recurrence_grad(const dti_cpu_task *task, int64_t begin, int64_t end,
                                    void *scratch) {
    dti_recurrence_blocks(task, begin, end, scratch, dti_recurrence_backward);
}
