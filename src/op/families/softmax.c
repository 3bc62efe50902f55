/* softmax and log_softmax over the last dimension, and their gradients as one row each.
 * Differentiated again, those come apart into plain rows. Other axes are permuted to the end. */

static bool dti_softmax_shape(dti_build *b) {
    if (b->in[0]->shape.rank < 1)
        return dti_build_fail(b, "needs a dimension to work along");
    return dti_shape_same(b);
}

static void dti_softmax_grad_rule(dti_grad *g) {
    dti_op op =
        dti_op_info_of(g->node.op)->selector ? DTI_OP_LOG_SOFTMAX_GRAD : DTI_OP_SOFTMAX_GRAD;
    g->dx[0] = dti_append2(op, g->y, g->dy, NULL);
}

/* Of x, and the gradient's of (y, dy). */
static void dti_softmax_emit(dti_emit *e) {
    const bool grad = e->node->count > 1;
    const dti_view x = dti_emit_dense_in(e, 0), dy = grad ? dti_emit_dense_in(e, 1) : e->out;
    const int64_t cols = e->out.dim[5], rows = cols ? dti_view_elements(&e->out) / cols : 0;
    const dti_args_rows a = {.rows = (uint32_t)rows,
                             .cols = (uint32_t)cols,
                             .x_offset = (uint32_t)x.offset,
                             .dy_offset = grad ? (uint32_t)dy.offset : 0,
                             .y_offset = (uint32_t)e->out.offset};
    DTI_EMIT(e, grad ? DTI_K_SOFTMAX_GRAD : DTI_K_SOFTMAX, (uint64_t)rows, a, x.value, dy.value,
             grad ? e->out.value : DTI_UNBOUND)
        ->spec[0] = dti_op_info_of(e->node->op)->selector;
}

static dt_tensor dti_softmax_along(dti_op op, dt_tensor x, int axis) {
    DTI_NEED_TENSOR(x, dti_op_info_of(op)->name);
    const int rank = dti_node_of(x)->shape.rank, at = dti_axis_of(x, axis);
    if (at < 0 || at >= rank)
        return dti_graph_fail(x.graph, "%s(%s): %s", dti_op_info_of(op)->name, dti_shape_of(x).text,
                              dti_axis_text(axis, rank).text);
    return dti_swap_last(dti_append1(op, dti_swap_last(x, at), NULL), at);
}

DT_API dt_tensor dt_softmax(dt_tensor x, int axis) {
    return dti_softmax_along(DTI_OP_SOFTMAX, x, axis);
}

DT_API dt_tensor dt_log_softmax(dt_tensor x, int axis) {
    return dti_softmax_along(DTI_OP_LOG_SOFTMAX, x, axis);
}

/* ---- the gradient rows (y, dy) */

static dt_tensor dti_softmax_grad_lower(dti_grad *g) {
    dt_tensor y = g->in[0], dy = g->in[1];
    dt_shape last = dt_dims_of(1, (const int64_t[]){0, -1});
    if (dti_op_info_of(g->node.op)->selector) {
        dt_tensor sum = dt_sum(dy, last, true);
        return dt_sub(dy, dt_mul(dt_exp(y), sum));
    }
    return dt_mul(y, dt_sub(dy, dt_sum(dt_mul(y, dy), last, true)));
}

/* ---- CPU */

static void dti_cpu_softmax(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_rows *a = &task->launch->args.rows;
    const float *x = dti_cpu_in(task, 0, a->x_offset) + begin * a->cols;
    float *y = dti_cpu_out(task, 1, a->y_offset) + begin * a->cols;
    dti_row_fn *row = task->launch->spec[0] ? task->k->log_softmax : task->k->softmax;
    for (int64_t i = begin; i < end; i++, x += a->cols, y += a->cols)
        row(y, x, a->cols);
}

static void dti_cpu_softmax_grad(const dti_cpu_task *task, int64_t begin, int64_t end,
                                 void *scratch) {
    const dti_args_rows *a = &task->launch->args.rows;
    const float *y = dti_cpu_in(task, 0, a->x_offset) + begin * a->cols;
    const float *dy = dti_cpu_in(task, 1, a->dy_offset) + begin * a->cols;
    float *dx = dti_cpu_out(task, 2, a->y_offset) + begin * a->cols;
    dti_row_grad_fn *row =
        task->launch->spec[0] ? task->k->log_softmax_grad : task->k->softmax_grad;
    for (int64_t i = begin; i < end; i++, y += a->cols, dy += a->cols, dx += a->cols)
        row(dx, y, dy, a->cols);
}

/* ---- Rows of the tables */

static void dti_softmax_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_rows *a = &l->args.rows;
    spec[3] = dti_row_lies(a->cols, a->x_offset | a->y_offset | a->dy_offset);
}

/* Three passes at most, in fours if rows lie so. */
static uint64_t dti_softmax_rounds(const dti_launch *l, uint32_t local) {
    return dti_rounds_of(dti_row_width(l), 3, local);
}

/* Rows of (x, y) or (y, dy, dx). */
static dti_stage dti_softmax_stage(const dti_launch *l, int b) {
    const dti_args_rows *a = &l->args.rows;
    const uint32_t last = l->kernel == DTI_K_SOFTMAX ? 1 : 2;
    return (dti_stage){a->cols, b == 0                ? a->x_offset
                                : (uint32_t)b == last ? a->y_offset
                                                      : a->dy_offset};
}

/* spec0: 1 = log */
DTI_KERNEL(SOFTMAX, softmax, "rw", GROUP, .run = dti_cpu_softmax, .halves = true,
           .stage = dti_softmax_stage, .grain = 4096, .grid_halves = dti_launch_any_half,
           .each = DTI_WORD(rows, cols), .width = dti_row_width, .tile = dti_softmax_tile,
           .rounds = dti_softmax_rounds, .passes = 3, .effort = dti_row_effort);

/* (y, dy, dx); spec0: 1 = log */
DTI_KERNEL(SOFTMAX_GRAD, softmax_grad, "rrw", GROUP, .run = dti_cpu_softmax_grad, .halves = true,
           .stage = dti_softmax_stage, .grain = 4096, .grid_halves = dti_launch_any_half,
           .each = DTI_WORD(rows, cols), .width = dti_row_width, .tile = dti_softmax_tile,
           .rounds = dti_softmax_rounds, .passes = 2, .effort = dti_row_effort);

DTI_FAMILY(softmax, .halves = DTI_HALF_ALL, .shape = dti_softmax_shape,
           .grad = dti_softmax_grad_rule);

DTI_FAMILY_BY(softmax_grad, softmax, .halves = DTI_HALF_ALL, .shape = dti_shape_same,
              .lower = dti_softmax_grad_lower);
