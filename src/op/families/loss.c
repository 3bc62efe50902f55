/* Losses as terms: a pair (sum, weight). A term's gradient starts from its seed, which is
 * coefficient / (weight of the whole global batch); so the rows here never divide by a batch. Those
 * over classes are in cross_entropy.c. */

/* ---- mse (y, t), mean_loss (x) */

#define DTI_TERM_CHUNK 1024 /* values that make one pair */

static bool dti_mse_shape(dti_build *b) {
    if (!dti_build_f32(b))
        return false;
    if (!dti_shape_equal(b->in[0]->shape, b->in[1]->shape))
        return dti_build_fail(b, "y and t must have one shape");
    if (b->in[0]->samples != b->in[1]->samples) {
        return dti_build_fail(b,
                              "%s has samples (B) and %s has none; for one target of all samples "
                              "use dt_mean_loss(dt_square(dt_sub(y, t)))",
                              b->in[0]->samples ? "y" : "t", b->in[0]->samples ? "t" : "y");
    }
    return dti_term_shape(b);
}

/* The selector: DTI_TERM_*, of two inputs or of one. */
static void dti_term_emit(dti_emit *e) {
    const dti_view x = dti_emit_dense_in(e, 0),
                   y = e->node->count > 1 ? dti_emit_dense_in(e, 1) : x;
    const int64_t n = dti_view_elements(&x), pairs = (n + DTI_TERM_CHUNK - 1) / DTI_TERM_CHUNK;
    const uint32_t value = dti_emit_scratch(e, DT_F32, 2 * (uint64_t)pairs);
    const dti_args_term a = {.n = (uint32_t)n,
                             .chunk = DTI_TERM_CHUNK,
                             .a_offset = (uint32_t)x.offset,
                             .b_offset = (uint32_t)y.offset};
    DTI_EMIT(e, DTI_K_TERM, (uint64_t)pairs, a, x.value, y.value, value)->spec[0] =
        dti_op_info_of(e->node->op)->selector;
    dti_emit_term_sum(e, value, pairs);
}

static void dti_mse_grad_of_mse(dti_grad *g) {
    dt_tensor in[3] = {g->in[0], g->in[1], g->dy};
    dt_tensor d = dti_append(g->graph, DTI_OP_MSE_GRAD, in, 3, NULL);
    if (g->wanted[0])
        g->dx[0] = d;
    if (g->wanted[1])
        g->dx[1] = dt_neg(d);
}

DT_API dt_tensor dt_mse(dt_tensor y, dt_tensor t) {
    return dti_append2(DTI_OP_MSE, y, t, NULL);
}

static dt_tensor dti_mse_grad_lower(dti_grad *g) {
    return dt_mul(dt_affine(dt_sub(g->in[0], g->in[1]), 2.0f, 0.0f), g->in[2]);
}

static void dti_mse_grad_emit(dti_emit *e) {
    dti_view y = dti_emit_dense_in(e, 0), t = dti_emit_dense_in(e, 1), s = dti_emit_dense_in(e, 2);
    const dti_args_term a = {.n = (uint32_t)dti_view_elements(&e->out),
                             .a_offset = (uint32_t)y.offset,
                             .b_offset = (uint32_t)t.offset,
                             .y_offset = (uint32_t)e->out.offset,
                             .chunk = (uint32_t)s.offset}; /* where the seed is */
    DTI_EMIT(e, DTI_K_TERM_GRAD, a.n, a, y.value, t.value, s.value, e->out.value);
}

static bool dti_mean_loss_shape(dti_build *b) {
    return dti_build_f32(b) && dti_term_shape(b);
}

static void dti_mean_loss_grad(dti_grad *g) {
    g->dx[0] = dti_expand_like(g->dy, g->in[0]);
}

DT_API dt_tensor dt_mean_loss(dt_tensor x) {
    return dti_append1(DTI_OP_MEAN_LOSS, x, NULL);
}

/* ---- weighted_loss (x, w), weight_sum (w): x and w have one shape */

static bool dti_weighted_loss_shape(dti_build *b) {
    if (!dti_build_f32(b))
        return false;
    if (!dti_shape_equal(b->in[0]->shape, b->in[1]->shape) ||
        b->in[0]->samples != b->in[1]->samples)
        return dti_build_fail(b, "x and its weights must have one shape");
    return dti_term_shape(b);
}

static void dti_weighted_loss_grad(dti_grad *g) {
    if (g->wanted[1]) {
        dti_graph_fail(g->graph, "weighted_loss: there is no gradient of the weights; dt_detach "
                                 "them, or make them an input");
        return;
    }
    g->dx[0] = dt_mul(g->dy, g->in[1]);
}

static dt_tensor dti_weighted_loss_weight_of(dt_graph *g, const dti_node *n) {
    dt_tensor w = dti_input_of(g, n, 1);
    return dti_append1(DTI_OP_WEIGHT_SUM, w, NULL);
}

DT_API dt_tensor dt_weighted_loss(dt_tensor x, dt_tensor w) {
    if (dti_is_nil(x) || dti_is_nil(w))
        return dti_append2(DTI_OP_WEIGHTED_LOSS, x, w, NULL);
    dt_shape s;
    const dti_node *nx = dti_node_of(x), *nw = dti_node_of(w);
    const bool samples = nx->samples || nw->samples;
    if (x.graph == w.graph && dti_shape_broadcast(nx->shape, nw->shape, &s)) {
        x = dti_expand_to(x, s, samples);
        w = dti_expand_to(w, s, samples);
    }
    return dti_append2(DTI_OP_WEIGHTED_LOSS, x, w, NULL);
}

/* ---- tp_loss (x, w, targets, class weights): weighted_loss whose w is made from targets. Its
 * weight is made from them before anything is computed. attr.i[0] = ignore_index, [1] = classes. */

static bool dti_parted_loss_shape(dti_build *b) {
    const dti_node *x = b->in[0], *w = b->in[1];
    if (x->dtype != DT_F32 || w->dtype != DT_F32 || !dti_shape_equal(x->shape, w->shape) ||
        x->samples != w->samples)
        return dti_build_fail(b, "x and its weights must be f32 of one shape");
    return dti_term_shape(b);
}

static void dti_parted_loss_grad(dti_grad *g) {
    if (g->wanted[0])
        g->dx[0] = dt_mul(g->dy, g->in[1]);
}

static dt_tensor dti_parted_loss_weight(dt_graph *g, const dti_node *n) {
    return dti_class_weight_of(g, n, 2, n->attr.i[1]);
}

/* ---- CPU */

#define DTI_LOSS_RUN 128 /* floats of a buffer on the stack */

/* The sum of a op b, or of its squares: runs are added in order, in double; a run by 16 lanes. */
static float dti_sum_of_pairs(const dti_isa_kernels *k, int op, bool square, const float *a,
                              const float *b, int64_t n) {
    float buf[DTI_LOSS_RUN];
    double sum = 0;
    for (int64_t i = 0; i < n; i += DTI_LOSS_RUN) {
        int64_t run = DTI_MIN(n - i, DTI_LOSS_RUN);
        k->binary[op](buf, a + i, 1, b + i, 1, run);
        sum += (double)(square ? k->row_sum_sq(buf, run) : k->row_sum(buf, run));
    }
    return (float)sum;
}

static float dti_term_of(const dti_isa_kernels *k, uint32_t mode, const float *a, const float *b,
                         int64_t n) {
    switch (mode) {
    case DTI_TERM_SUM: return k->row_sum(a, n);
    case DTI_TERM_SQUARE: return dti_sum_of_pairs(k, DTI_B_SUB, true, a, b, n);
    case DTI_TERM_WEIGHTED: return dti_sum_of_pairs(k, DTI_B_MUL, false, a, b, n);
    default: return 0.0f;
    }
}

static void dti_cpu_term(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_term *t = &task->launch->args.term;
    const uint32_t mode = task->launch->spec[0];
    float *y = dti_cpu_out(task, 2, t->y_offset);
    for (int64_t pair = begin; pair < end; pair++) {
        const int64_t from = pair * t->chunk, n = DTI_MIN((int64_t)t->n - from, (int64_t)t->chunk);
        const float *a = dti_cpu_in(task, 0, t->a_offset) + from;
        const float *b = dti_cpu_in(task, 1, t->b_offset) + from;
        y[2 * pair] = dti_term_of(task->k, mode, a, b, n);
        y[2 * pair + 1] = mode >= DTI_TERM_WEIGHTED ? task->k->row_sum(b, n) : (float)n;
    }
}

static void dti_cpu_term_sum(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_term *t = &task->launch->args.term;
    const float *pairs = dti_cpu_in(task, 0, t->a_offset);
    float *y = dti_cpu_out(task, 1, t->y_offset);
    double sum = 0, weight = 0;
    for (int64_t i = 0; i < t->n; i++) {
        sum += (double)pairs[2 * i];
        weight += (double)pairs[2 * i + 1];
    }
    y[0] = (float)sum;
    y[1] = (float)weight;
}

static void dti_cpu_term_grad(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_term *t = &task->launch->args.term;
    const float *a = dti_cpu_in(task, 0, t->a_offset), *b = dti_cpu_in(task, 1, t->b_offset);
    const float scale = 2.0f * *dti_cpu_in(task, 2, t->chunk); /* where the seed is */
    float *y = dti_cpu_out(task, 3, t->y_offset);
    for (int64_t i = begin; i < end; i += 2048) { /* stays in the first cache */
        int64_t n = DTI_MIN(end - i, 2048);
        task->k->binary[DTI_B_SUB](y + i, a + i, 1, b + i, 1, n);
        task->k->unary[DTI_U_AFFINE](y + i, y + i, n, scale, 0.0f);
    }
}

static void dti_cpu_seed(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_seed *a = &task->launch->args.seed;
    float weight = dti_step_f32(task->step, DTI_STEP_WEIGHT + a->index);
    if (!(weight > 0.0f))
        weight = dti_cpu_in(task, 0, a->term_offset)[1];
    float coefficient = dti_step_f32(task->step, DTI_STEP_COEFFICIENT + a->index);
    *dti_cpu_out(task, 1, a->y_offset) = weight == 0.0f ? 0.0f : coefficient / weight;
}

/* ---- Rows of the tables */

static dti_effort dti_term_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_term *a = &l->args.term;
    return (dti_effort){dti_effort_rows(1, DTI_MIN(a->n, a->chunk), 1, local).steps, 2ull * a->n};
}

/* spec0: DTI_TERM_*; -> pairs [ceil(n/chunk), 2] */
DTI_KERNEL(TERM, term, "rrw", GROUP, .run = dti_cpu_term, .grain = 16384,
           .each = DTI_WORD(term, chunk), .passes = 1, .rounds = dti_row_rounds,
           .effort = dti_term_effort);

/* n pairs -> 1 pair, one workgroup */
DTI_KERNEL(TERM_SUM, term_sum, "rw", GROUP, .run = dti_cpu_term_sum, .rounds = dti_row_rounds,
           .each = DTI_WORD(term, n), .passes = 1, .effort = dti_row_effort);

static void dti_term_grad_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_term *a = &l->args.term;
    spec[2] = dti_fours(a->n, a->a_offset | a->b_offset | a->y_offset);
}

/* (a, b, seed, da); TERM args, chunk: where the seed is */
DTI_KERNEL(TERM_GRAD, term_grad, "rrrw", ITEM, .run = dti_cpu_term_grad, .grain = DTI_GRAIN_FLAT,
           .tile = dti_term_grad_tile, .invocations = dti_fours_invocations);

/* (term, seed) */
DTI_KERNEL(SEED, seed, "rw", ITEM, .run = dti_cpu_seed);

DTI_FAMILY_BY(mse, term, .shape = dti_mse_shape, .grad = dti_mse_grad_of_mse);

DTI_FAMILY(mse_grad, .shape = dti_shape_same, .lower = dti_mse_grad_lower);

DTI_FAMILY_BY(mean_loss, term, .shape = dti_mean_loss_shape, .grad = dti_mean_loss_grad);

DTI_FAMILY_BY(weighted_loss, term, .shape = dti_weighted_loss_shape, .grad = dti_weighted_loss_grad,
              .weight = dti_weighted_loss_weight_of);

DTI_FAMILY_BY(parted_loss, term, .shape = dti_parted_loss_shape, .grad = dti_parted_loss_grad,
              .weight = dti_parted_loss_weight);

DTI_FAMILY_BY(weight_sum, term, .shape = dti_mean_loss_shape);
