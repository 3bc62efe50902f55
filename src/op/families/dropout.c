/* Dropout and random numbers. They are a function of seed, step, the op's stream and the element's
 * place in the global batch. So they are the same for any number of replicas and micro-batches, and
 * on any device. Dropout's gradient is the same op applied to dy. attr.f[0] = p, attr.i[0] =
 * stream. On a tensor rank that has a run of each sample, attr.dim[0] = elements of a whole sample
 * (0: it has them all), [1] = where the run begins. */

static bool dti_dropout_shape(dti_build *b) {
    float p = b->out.attr.f[0];
    if (!(p >= 0.0f && p <= 1.0f))
        return dti_build_fail(b, "p is %g; it must be in [0, 1]", (double)p);
    return dti_shape_same(b);
}

static void dti_dropout_grad(dti_grad *g) {
    g->dx[0] = dti_append1(DTI_OP_DROPOUT, g->dy, &g->node.attr);
}

static bool dti_dropout_idle(const dti_node *n, bool train) {
    return !train; /* its input's memory, like a view */
}

/* p = 1: one value in 2^32 is kept, times 0, as a threshold of 0 asks for the word itself. */
static dti_dropout_odds dti_dropout_odds_of(float p) {
    if (p == 1.0f)
        return (dti_dropout_odds){1, 0.0f};
    const double keep = 1.0 - (double)p, threshold = keep * 4294967296.0;
    return (dti_dropout_odds){threshold >= 4294967295.0 ? 0xffffffffu : (uint32_t)threshold,
                              (float)(1.0 / keep)};
}

static void dti_dropout_launch(dti_emit *e, dti_view x, dti_args_dropout a) {
    int64_t n = dti_view_elements(&e->out);
    a.n = (uint32_t)n;
    a.stream = (uint32_t)e->node->attr.i[0];
    const int64_t run = dti_shape_elements(e->node->shape), all = e->node->attr.dim[0];
    a.run = all ? (uint32_t)run : 0;
    a.skip = all ? (uint32_t)(all - run) : 0;
    a.row_elements = e->node->samples ? (uint32_t)(all ? all : run) : 0;
    a.first = (uint32_t)e->first_row * a.row_elements + (uint32_t)e->node->attr.dim[1];
    a.x_offset = (uint32_t)x.offset;
    a.y_offset = (uint32_t)e->out.offset;
    DTI_EMIT(e, DTI_K_DROPOUT, (uint64_t)n, a, x.value, e->out.value)->spec[0] = all != 0;
}

static void dti_dropout_emit(dti_emit *e) {
    if (!e->train) { /* identity: the same memory */
        e->out = dti_emit_in(e, 0);
        return;
    }
    const dti_dropout_odds odds = dti_dropout_odds_of(e->node->attr.f[0]);
    const dti_args_dropout a = {.threshold = odds.threshold, .scale = odds.scale};
    dti_dropout_launch(e, dti_emit_dense_in(e, 0), a);
}

DT_API dt_tensor dt_dropout(dt_tensor x, float p) {
    DTI_NEED_TENSOR(x, "dropout");
    if (p == 0.0f)
        return x;
    return dti_append1(DTI_OP_DROPOUT, x,
                       &(dti_attr){.f = {p}, .i = {(int32_t)x.graph->streams++}});
}

/* ---- Random numbers: attr.f[0], f[1] = scale and offset of an odd number between +-2^23,
 * attr.i[0] = stream. Of the input the shape alone counts. */

static bool dti_random_shape(dti_build *b) {
    b->out.shape = b->in[0]->shape;
    return true;
}

static void dti_random_emit(dti_emit *e) {
    const float *f = e->node->attr.f;
    dti_dropout_launch(e, e->out, (dti_args_dropout){.scale = f[0], .offset = f[1]});
}

static dt_tensor dti_random(dt_tensor like, float scale, float offset) {
    DTI_NEED_TENSOR(like, "random");
    const int32_t stream = (int32_t)like.graph->streams++;
    return dti_append1(DTI_OP_RANDOM, like, &(dti_attr){.f = {scale, offset}, .i = {stream}});
}

DT_API dt_tensor dt_random_uniform(dt_tensor like) {
    return dti_random(like, 0x1p-24f, 0.5f);
}

DT_API dt_tensor dt_random_normal(dt_tensor like) {
    return dt_affine(dt_erfinv(dti_random(like, 0x1p-23f, 0.0f)), 1.41421356f, 0.0f);
}

/* ---- CPU */

/* Elements that lie in one run. */
static void dti_cpu_dropout_run(const dti_cpu_task *task, int64_t begin, int64_t end) {
    const dti_args_dropout *a = &task->launch->args.dropout;
    const dti_dropout d = {
        .seed = (uint64_t)task->step[DTI_STEP_SEED_HI] << 32 | task->step[DTI_STEP_SEED_LO],
        .index = (uint64_t)task->step[DTI_STEP_FIRST_ROW] * a->row_elements + a->first +
                 (uint64_t)begin + (a->run ? (uint64_t)begin / a->run * a->skip : 0),
        .step = task->step[DTI_STEP_NUMBER],
        .stream = a->stream,
        .threshold = a->threshold,
        .scale = a->scale,
        .offset = a->offset};
    const float *x = dti_cpu_in(task, 0, a->x_offset) + begin;
    task->k->dropout(dti_cpu_out(task, 1, a->y_offset) + begin, x, end - begin, &d);
}

static void dti_cpu_dropout(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const int64_t run = task->launch->args.dropout.run;
    while (begin < end) {
        const int64_t to = run ? DTI_MIN((begin / run + 1) * run, end) : end;
        dti_cpu_dropout_run(task, begin, to);
        begin = to;
    }
}

/* ---- Rows of the tables */

/* Of rows of a sequence: the bits of the whole one. */
static bool dti_dropout_parted(dti_parting *s) {
    const int64_t all = dti_shape_elements(s->n->shape);
    s->attr.dim[0] = all;
    s->attr.dim[1] = s->tp_rank * (all / s->tp_ranks);
    return dti_parted_rows_alone(s);
}

static bool dti_dropout_in_step(const dti_launch *l, int binding) {
    return l->args.dropout.x_offset == l->args.dropout.y_offset;
}

static void dti_dropout_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_dropout *a = &l->args.dropout;
    spec[2] = dti_fours(a->n, a->x_offset | a->y_offset | a->run);
}

static dti_stage dti_dropout_stage(const dti_launch *l, int b) {
    return (dti_stage){1, b ? l->args.dropout.y_offset : l->args.dropout.x_offset};
}

DTI_KERNEL(DROPOUT, dropout, "rw", ITEM, .run = dti_cpu_dropout, .halves = true,
           .stage = dti_dropout_stage, .grid_halves = dti_launch_any_half,
           .grain = DTI_GRAIN_FUNCTION, .in_step = dti_dropout_in_step, .tile = dti_dropout_tile,
           .rounds = dti_rounds_few, .invocations = dti_fours_invocations);

DTI_FAMILY(dropout, .halves = DTI_HALF_ALL, .shape = dti_dropout_shape, .grad = dti_dropout_grad,
           .idle = dti_dropout_idle, .part = dti_dropout_parted);
DTI_FAMILY(random, .halves = DTI_HALF_OUT, .shape = dti_random_shape);
