/* Sums, maxima and minima over axes. attr.i[0] = bit set of the shape's axes, i[1] = over samples
 * too, i[2] = keep axes with size 1; attr.f[0] = factor of a sum (mean = sum * 1/n).
 *
 * Two kernels, chosen by shape only: one work item per result that adds serially (columns, short
 * rows), or a workgroup per result (rows of 64 and more). */

static bool dti_reduce_shape(dti_build *b) {
    if (!dti_build_real(b))
        return false;
    dt_shape s = b->in[0]->shape;
    const dti_attr *attr = &b->out.attr;
    int64_t count = 1;
    for (int i = 0; i < s.rank; i++) {
        bool gone = (attr->i[0] >> i) & 1;
        if (gone)
            count *= s.dim[i];
        if (!gone || attr->i[2])
            b->out.shape.dim[b->out.shape.rank++] = gone ? 1 : s.dim[i];
    }
    if (attr->i[1])
        b->out.samples = false;
    if (count == 0 && dti_op_info_of(b->out.op)->selector != DTI_R_SUM) {
        return dti_build_fail(b, "has no elements, so no maximum or minimum");
    }
    return true;
}

/* The result's gradient with the reduced axes put back as size 1. */
static dt_tensor dti_reduce_restore(dti_grad *g, dt_tensor v) {
    dt_shape s = dti_node_of(g->in[0])->shape;
    for (int i = 0; i < s.rank; i++) {
        if ((g->node.attr.i[0] >> i) & 1)
            s.dim[i] = 1;
    }
    return dti_expand_like(dt_reshape(v, s), g->in[0]);
}

static void dti_reduce_grad(dti_grad *g) {
    dt_tensor dy = dti_reduce_restore(g, g->dy);
    if (dti_op_info_of(g->node.op)->selector == DTI_R_SUM) {
        g->dx[0] = g->node.attr.f[0] == 1.0f ? dy : dt_affine(dy, g->node.attr.f[0], 0.0f);
        return;
    }
    dt_tensor hit = dt_eq(g->in[0], dti_reduce_restore(g, g->y));
    dti_attr attr = g->node.attr;
    attr.f[0] = 1.0f;
    dt_tensor ties = dti_reduce_restore(g, dti_append1(DTI_OP_SUM, hit, &attr));
    g->dx[0] = dt_mul(dy, dt_div(hit, ties));
}

/* Moves the axes of `v` whose bit in `gone` is `which` after those already in `to`, merging
 * neighbours, right-aligned in [begin, end). Returns the product of their sizes. */
static int64_t dti_reduce_axes(const dti_view *v, unsigned gone, unsigned which, int begin, int end,
                               uint32_t *dim, uint32_t *stride) {
    int64_t n = 1;
    int at = end;
    for (int i = begin; i < end; i++) {
        dim[i] = 1;
        stride[i] = 0;
    }
    for (int axis = DTI_AXES - 1; axis >= 0; axis--) {
        if (((gone >> axis) & 1u) != which || v->dim[axis] == 1)
            continue;
        n *= v->dim[axis];
        if (at < end && v->stride[axis] == (int64_t)stride[at] * dim[at]) {
            dim[at] *= (uint32_t)v->dim[axis];
        } else {
            at--;
            dim[at] = (uint32_t)v->dim[axis];
            stride[at] = (uint32_t)v->stride[axis];
        }
    }
    return n;
}

/* Along lines of samples: first each line, then the lines' results. One launch would have a
 * workgroup for each result, and two axes to divide by. The CPU adds in this order anyway. */
static bool dti_reduce_by_lines(const dti_args_reduce *a, const dti_node *node) {
    const int outer = DTI_AXES - 2, inner = DTI_AXES - 1;
    if (!node->attr.i[1] || a->kept > (uint32_t)outer || a->x_stride[inner] != 1 ||
        a->dim[inner] < 64 || a->dim[outer] < 2)
        return false;
    return (uint64_t)a->dim[inner] * a->dim[outer] == a->r; /* there is no third axis */
}

static void dti_emit_reduce_launch(dti_emit *e, dti_kernel_id kernel, const dti_args_reduce *a,
                                   uint32_t from, uint32_t to) {
    DTI_EMIT(e, kernel, a->n, *a, from, to)->spec[0] = dti_op_info_of(e->node->op)->selector;
}

static void dti_emit_reduce_lines(dti_emit *e, const dti_view *x, const dti_args_reduce *a) {
    const uint32_t lines = a->dim[DTI_AXES - 2];
    const uint32_t value = dti_emit_scratch(e, DT_F32, (uint64_t)lines * a->n);
    dti_args_reduce first = {.n = lines * a->n,
                             .r = a->dim[DTI_AXES - 1],
                             .kept = a->kept + 1,
                             .dim = {lines, 1, 1, 1, 1, a->dim[DTI_AXES - 1]},
                             .x_stride = {a->x_stride[DTI_AXES - 2], 0, 0, 0, 0, 1},
                             .x_offset = a->x_offset,
                             .scale = 1.0f};
    memcpy(first.dim + 1, a->dim, a->kept * sizeof *a->dim);
    memcpy(first.x_stride + 1, a->x_stride, a->kept * sizeof *a->x_stride);
    dti_emit_reduce_launch(e, DTI_K_REDUCE_ROW, &first, x->value, value);
    dti_emit_sum_parts(e, value, lines, a->n, &e->out, a->scale)->spec[0] =
        dti_op_info_of(e->node->op)->selector; /* of any reduction */
}

static void dti_emit_reduce(dti_emit *e, const dti_view *x, unsigned gone) {
    const dti_node *node = e->node;
    int kept = 0;
    for (int axis = 0; axis < DTI_AXES; axis++)
        kept += !((gone >> axis) & 1u);
    dti_args_reduce a = {.kept = (uint32_t)kept};
    int64_t n = dti_reduce_axes(x, gone, 0, 0, kept, a.dim, a.x_stride);
    int64_t r = dti_reduce_axes(x, gone, 1, kept, DTI_AXES, a.dim, a.x_stride);
    a.n = (uint32_t)n;
    a.r = (uint32_t)r;
    a.x_offset = (uint32_t)x->offset;
    a.y_offset = (uint32_t)e->out.offset;
    a.scale = dti_op_info_of(node->op)->selector == DTI_R_SUM ? node->attr.f[0] : 1.0f;
    if (dti_reduce_by_lines(&a, node)) {
        dti_emit_reduce_lines(e, x, &a);
        return;
    }
    bool rows = kept < DTI_AXES && a.x_stride[DTI_AXES - 1] == 1;
    bool by_group = r >= 64 && (rows || (node->attr.i[1] && n < 64));
    dti_kernel_id kernel = by_group ? DTI_K_REDUCE_ROW : DTI_K_REDUCE;
    if (!by_group && r >= 64)
        kernel = DTI_K_REDUCE_COLUMN;
    dti_emit_reduce_launch(e, kernel, &a, x->value, e->out.value);
}

/* x is read dense. The order of additions is the kernel's way through memory. It must not depend on
 * other readers of x, nor on how many pieces a program computes. */
static void dti_reduce_emit(dti_emit *e) {
    dti_view x = dti_emit_dense_in(e, 0);
    const dti_node *in = &e->graph->nodes[dti_input_id(e->graph, e->node, 0)];
    unsigned gone = e->node->attr.i[1] && in->samples ? 1u : 0u;
    gone |= (unsigned)e->node->attr.i[0] << (DTI_AXES - in->shape.rank);
    dti_emit_reduce(e, &x, gone);
}

static int dti_reduce_mask(dt_tensor x, dt_shape axes, const char *op) {
    int rank = dti_node_of(x)->shape.rank, mask = 0;
    if (axes.rank == 0)
        return (1 << rank) - 1;
    if (axes.rank < 0 || axes.rank > DT_MAX_DIMS) {
        dti_graph_fail(x.graph, "%s: the list of axes has rank %d; it must be from 0 to %d", op,
                       (int)axes.rank, DT_MAX_DIMS);
        return -1;
    }
    for (int i = 0; i < axes.rank; i++) {
        int64_t axis = axes.dim[i] < 0 ? axes.dim[i] + rank : axes.dim[i];
        if (axis < 0 || axis >= rank) {
            dti_graph_fail(x.graph, "%s(%s): %s", op, dti_shape_of(x).text,
                           dti_axis_text(axes.dim[i], rank).text);
            return -1;
        }
        if (mask & 1 << axis) {
            dti_graph_fail(x.graph, "%s(%s): axis %lld is listed twice; list each axis once", op,
                           dti_shape_of(x).text, (long long)axis);
            return -1;
        }
        mask |= 1 << axis;
    }
    return mask;
}

static dt_tensor dti_reduce(dti_op op, dt_tensor x, dt_shape axes, bool keep, bool mean) {
    DTI_NEED_TENSOR(x, dti_op_info_of(op)->name);
    int mask = dti_reduce_mask(x, axes, mean ? "mean" : dti_op_info_of(op)->name);
    if (mask < 0)
        return dti_nil(x.graph);
    double count = 1.0;
    dt_shape s = dti_node_of(x)->shape;
    for (int i = 0; i < s.rank; i++) {
        if ((mask >> i) & 1)
            count *= (double)s.dim[i];
    }
    dti_attr attr = {.f = {mean ? (float)(1.0 / count) : 1.0f}, .i = {mask, 0, keep}};
    return dti_append1(op, x, &attr);
}

DT_API dt_tensor dt_sum(dt_tensor x, dt_shape axes, bool keep) {
    return dti_reduce(DTI_OP_SUM, x, axes, keep, false);
}

/* attr.dim, i[0] = the axes, i[1] = keep. */
static dt_tensor dti_mean_make(dt_graph *g, const dti_call *c) {
    return dti_reduce(DTI_OP_SUM, dti_call_in(g, c, 0), dti_attr_shape(&c->attr), c->attr.i[1] != 0,
                      true);
}

DT_API dt_tensor dt_mean(dt_tensor x, dt_shape axes, bool keep) {
    dti_attr attr = dti_shape_attr(axes);
    attr.i[1] = keep;
    return dti_compose("mean", dti_mean_make, 1, (dti_inputs){{x}}, attr);
}

DT_API dt_tensor dt_max(dt_tensor x, dt_shape axes, bool keep) {
    return dti_reduce(DTI_OP_MAX, x, axes, keep, false);
}

DT_API dt_tensor dt_min(dt_tensor x, dt_shape axes, bool keep) {
    return dti_reduce(DTI_OP_MIN, x, axes, keep, false);
}

DT_API dt_tensor dt_sum_samples(dt_tensor x) {
    DTI_NEED_TENSOR(x, "sum_samples");
    if (!dti_node_of(x)->samples) {
        return dti_graph_fail(x.graph, "sum_samples(%s): has no sample axis (B)",
                              dti_shape_print(dti_node_of(x)->shape, false).text);
    }
    return dti_append1(DTI_OP_SUM, x, &(dti_attr){.f = {1.0f}, .i = {0, 1, 0}});
}

static dt_dtype dti_grad_dtype(dt_tensor x) {
    const dti_node *n = dti_node_of(x);
    const dti_node *of = n->op == DTI_OP_CAST ? dti_node_of(dti_input_of(x.graph, n, 0)) : n;
    if (of->op == DTI_OP_PARAM)
        return DT_F32;
    return n->samples || of->low ? (dt_dtype)n->dtype : (dt_dtype)of->dtype;
}

static dt_tensor dti_sum_to(dt_tensor x, dt_tensor like) {
    if (dti_is_nil(x) || dti_is_nil(like))
        return (dt_tensor){0};
    dt_shape s = dti_node_of(x)->shape, t = dti_node_of(like)->shape;
    bool over_samples = dti_node_of(x)->samples && !dti_node_of(like)->samples;
    int mask = 0, lead = s.rank - t.rank;
    for (int i = 0; i < s.rank; i++) {
        if (i < lead || (t.dim[i - lead] == 1 && s.dim[i] != 1))
            mask |= 1 << i;
    }
    if (!mask && !over_samples)
        return x;
    const dt_dtype dtype = dti_grad_dtype(like); /* sums of 16 bits are made in f32 */
    dt_tensor y = dti_append1(DTI_OP_SUM, dt_cast(x, DT_F32),
                              &(dti_attr){.f = {1.0f}, .i = {mask, over_samples, 1}});
    y = dt_cast(y, dtype);
    return lead ? dt_reshape(y, t) : y;
}

/* ---- CPU. Columns (the inner kept axis is contiguous) go over j in runs, vectors going across
 * results; contiguous rows of 8 and more by 16 lanes; the rest one by one. Sums of runs are added
 * in double (vec.h). The shape alone decides. */

#define DTI_REDUCE_RUN 128
#define DTI_REDUCE_COLUMNS DTI_ROOM /* at once: whole rows in most cases, which are read ahead */
#define DTI_REDUCE_NARROW 64        /* at most: sums stay in registers */

/* A walk over axes [first, last): at[] and the offset that it has. */
typedef struct dti_lines {
    const uint32_t *dim, *stride;
    int first, last;
    uint32_t at[DTI_AXES];
    int64_t offset;
} dti_lines;

static dti_lines dti_lines_at(const dti_args_reduce *a, int first, int last, int64_t index) {
    dti_lines l = {.dim = a->dim, .stride = a->x_stride, .first = first, .last = last};
    for (int axis = last - 1; axis >= first; axis--) {
        l.at[axis] = (uint32_t)(index % a->dim[axis]);
        index /= a->dim[axis];
        l.offset += (int64_t)l.at[axis] * a->x_stride[axis];
    }
    return l;
}

/* The next element, or back to the first and false. */
static bool dti_lines_next(dti_lines *l) {
    for (int axis = l->last - 1; axis >= l->first; axis--) {
        l->offset += l->stride[axis];
        if (++l->at[axis] < l->dim[axis])
            return true;
        l->offset -= (int64_t)l->stride[axis] * l->dim[axis];
        l->at[axis] = 0;
    }
    return false;
}

static float dti_reduce_fold_identity(uint32_t kind) {
    return kind == DTI_R_SUM ? 0.0f
                             : dti_f32_from_bits(kind == DTI_R_MAX ? 0xff800000u : 0x7f800000u);
}

/* A NaN wins. */
static float dti_reduce_fold_max(float a, float b) {
    if (dti_nan_f32(a))
        return a;
    return dti_nan_f32(b) || b >= a ? b : a;
}

static float dti_reduce_fold_min(float a, float b) {
    if (dti_nan_f32(a))
        return a;
    return dti_nan_f32(b) || b <= a ? b : a;
}

static float dti_reduce_fold_f32(uint32_t kind, float a, float b) {
    return kind == DTI_R_MAX ? dti_reduce_fold_max(a, b) : dti_reduce_fold_min(a, b);
}

static double dti_reduce_strided_sum(double sum, const float *x, int64_t stride, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i * stride];
    return sum;
}

static float dti_reduce_fold_strided(uint32_t kind, float value, const float *x, int64_t stride,
                                     int64_t n) {
    if (kind == DTI_R_MAX) {
        for (int64_t i = 0; i < n; i++)
            value = dti_reduce_fold_max(value, x[i * stride]);
    } else {
        for (int64_t i = 0; i < n; i++)
            value = dti_reduce_fold_min(value, x[i * stride]);
    }
    return value;
}

/* The smallest is minus the largest of the negated. */
static float dti_row_min(const dti_isa_kernels *k, const float *x, int64_t n) {
    float buf[DTI_REDUCE_RUN], value = dti_reduce_fold_identity(DTI_R_MAX);
    for (int64_t i = 0; i < n; i += DTI_REDUCE_RUN) {
        int64_t run = DTI_MIN(n - i, DTI_REDUCE_RUN);
        k->unary[DTI_U_NEG](buf, x + i, run, 0.0f, 0.0f);
        value = dti_reduce_fold_max(value, k->row_max(buf, run));
    }
    return -value;
}

static float dti_reduce_fold_row(const dti_isa_kernels *k, uint32_t kind, const float *x,
                                 int64_t n) {
    return kind == DTI_R_MAX ? k->row_max(x, n) : dti_row_min(k, x, n);
}

/* Values that all results of a launch share. */
typedef struct dti_reduce_plan {
    const dti_cpu_task *task;
    const dti_args_reduce *args;
    const dti_isa_kernels *k;
    uint32_t kind;
    int kept;
    int64_t line, line_stride; /* the inner reduced axis */
} dti_reduce_plan;

/* A line's elements from `at` on: added to *sum, or *value is the largest or smallest. */
static void dti_reduce_line(const dti_reduce_plan *p, int64_t at, double *sum, float *value) {
    const bool vector = p->line_stride == 1 && p->line >= 8;
    const int64_t run = vector ? 64 * DTI_SUM_CHAIN : DTI_ROOM_ROWS; /* row_sum's own runs */
    const int64_t each = DTI_CPU_AT_ONCE(p->task, 0, run, p->line);
    double all = 0;
    for (int64_t i = 0; i < p->line; i += each) {
        const int64_t n = DTI_MIN(p->line - i, each);
        int64_t ld = vector ? n : p->line_stride;
        const float *x = dti_cpu_rows(p->task, 0, at + i * p->line_stride, vector ? 1 : n,
                                      vector ? n : 1, &ld, 0);
        if (p->kind == DTI_R_SUM && vector)
            all += (double)p->k->row_sum(x, n);
        else if (p->kind == DTI_R_SUM)
            all = dti_reduce_strided_sum(all, x, ld, n);
        else if (vector)
            *value = dti_reduce_fold_f32(p->kind, *value, dti_reduce_fold_row(p->k, p->kind, x, n));
        else
            *value = dti_reduce_fold_strided(p->kind, *value, x, ld, n);
    }
    *sum += vector ? (double)(float)all : all;
}

static float dti_reduce_one(const dti_reduce_plan *p, int64_t at) {
    float value = dti_reduce_fold_identity(p->kind);
    double sum = 0;
    dti_lines l = dti_lines_at(p->args, p->kept, DTI_AXES - 1, 0);
    do {
        dti_reduce_line(p, at + l.offset, &sum, &value);
    } while (p->kept < DTI_AXES && dti_lines_next(&l));
    return p->kind == DTI_R_SUM ? (float)sum : value;
}

/* Adds up to DTI_ROOM_ROWS rows of columns from element `at` on to sums. acc: room for a row. */
static void dti_reduce_add_rows(const dti_reduce_plan *p, double *sums, float *acc, int64_t at,
                                int64_t rows, int64_t cols) {
    int64_t ld = p->line_stride;
    if (cols <= DTI_REDUCE_NARROW) {
        const float *x = dti_cpu_rows(p->task, 0, at, rows, cols, &ld, 0);
        p->k->col_sum(sums, x, rows, cols, ld);
        return;
    }
    memset(acc, 0, (size_t)cols * sizeof *acc);
    for (int64_t j = 0; j < rows; j++) {
        const float *x = dti_cpu_row(p->task, 0, at + j * ld, cols, 0);
        p->k->binary[DTI_B_ADD](acc, acc, 1, x, 1, cols);
    }
    p->k->col_sum(sums, acc, 1, cols, cols);
}

static void dti_reduce_fold_rows(const dti_reduce_plan *p, float *acc, int64_t at, int64_t rows,
                                 int64_t cols) {
    const int op = p->kind == DTI_R_MAX ? DTI_B_MAXIMUM : DTI_B_MINIMUM;
    for (int64_t j = 0; j < rows; j++) {
        const float *x = dti_cpu_row(p->task, 0, at + j * p->line_stride, cols, 0);
        p->k->binary[op](acc, acc, 1, x, 1, cols);
    }
}

static void dti_reduce_columns(const dti_reduce_plan *p, float *y, int64_t at, int64_t cols,
                               double *sums) {
    const bool sum = p->kind == DTI_R_SUM;
    memset(sums, 0, (size_t)(cols + 15) / 16 * 16 * sizeof *sums);
    for (int64_t c = 0; c < cols; c++)
        y[c] = dti_reduce_fold_identity(p->kind);
    dti_lines l = dti_lines_at(p->args, p->kept, DTI_AXES - 1, 0);
    do {
        for (int64_t j = 0; j < p->line; j += DTI_SUM_CHAIN) {
            const int64_t rows = DTI_MIN(p->line - j, DTI_SUM_CHAIN);
            const int64_t from = at + l.offset + j * p->line_stride;
            if (sum)
                dti_reduce_add_rows(p, sums, y, from, rows, cols);
            else
                dti_reduce_fold_rows(p, y, from, rows, cols);
        }
    } while (p->kept < DTI_AXES && dti_lines_next(&l));
    if (sum)
        p->k->narrow_sums(y, sums, cols, p->args->scale);
    for (int64_t c = 0; c < cols && !sum; c++)
        y[c] *= p->args->scale;
}

static void dti_cpu_reduce(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_reduce *a = &task->launch->args.reduce;
    dti_reduce_plan p = {.task = task,
                         .args = a,
                         .k = task->k,
                         .kind = task->launch->spec[0],
                         .kept = (int)a->kept,
                         .line = 1};
    if (p.kept < DTI_AXES) {
        p.line = a->dim[DTI_AXES - 1];
        p.line_stride = a->x_stride[DTI_AXES - 1];
    }
    float *y = dti_cpu_out(task, 1, a->y_offset);
    if (a->r == 0) {
        for (int64_t i = begin; i < end; i++)
            y[i] = dti_reduce_fold_identity(p.kind) * a->scale;
        return;
    }
    const int inner = p.kept - 1;
    const bool columns = inner >= 0 && a->x_stride[inner] == 1 && a->dim[inner] >= 4;
    dti_lines l = dti_lines_at(a, 0, p.kept, begin);
    for (int64_t i = begin; i < end;) {
        if (!columns) {
            y[i++] = dti_reduce_one(&p, a->x_offset + l.offset) * a->scale;
            dti_lines_next(&l);
            continue;
        }
        int64_t cols =
            DTI_MIN(DTI_MIN((int64_t)a->dim[inner] - l.at[inner], end - i), DTI_REDUCE_COLUMNS);
        dti_reduce_columns(&p, y + i, a->x_offset + l.offset, cols, scratch);
        l.at[inner] += (uint32_t)cols - 1; /* dti_lines_next does the last */
        l.offset += cols - 1;
        dti_lines_next(&l);
        i += cols;
    }
}

/* ---- Rows of the tables */

/* On a device that runs workgroups: a workgroup's invocations and results, and the number of
 * invocations for each result. */
#define DTI_REDUCE_LOCAL 128
#define DTI_REDUCE_BESIDE 16
#define DTI_REDUCE_SHARE (DTI_REDUCE_LOCAL / DTI_REDUCE_BESIDE)

/* Invocations that make a result. */
static uint32_t dti_reduce_share(const dti_launch *l, uint32_t local) {
    return l->kernel == DTI_K_REDUCE ? 1 : l->kernel == DTI_K_REDUCE_ROW ? local : DTI_REDUCE_SHARE;
}

static dti_effort dti_reduce_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_reduce *a = &l->args.reduce;
    return (dti_effort){dti_ceil_div(a->r, dti_reduce_share(l, local)), (uint64_t)a->n * a->r};
}

/* Axes that are reduced are the last ones, and merged where they can be. */
static bool dti_reduce_is_line(const dti_args_reduce *a) {
    return a->r == 1 || a->dim[DTI_AXES - 1] == a->r;
}

static void dti_reduce_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_reduce *a = &l->args.reduce;
    spec[2] = dti_reduce_is_line(a) ? DTI_REDUCE_LINE : 0;
    for (uint32_t axis = 0; axis < DTI_AXES; axis++)
        if (a->dim[axis] > 1)
            spec[2] |= 1u << (axis + (axis < a->kept ? DTI_REDUCE_KEPT : DTI_REDUCE_GONE));
}

/* Of a line eight at a time, then one by one; then a tree. */
static uint64_t dti_reduce_rounds(const dti_launch *l, uint32_t local) {
    const uint64_t own = dti_ceil_div(l->args.reduce.r, dti_reduce_share(l, local));
    return (dti_reduce_is_line(&l->args.reduce) ? own / 8 + 9 : own + 1) + 16;
}

static size_t dti_cpu_scratch_reduce(const dti_launch *l, int threads) {
    return ((size_t)DTI_MIN(l->args.reduce.n, DTI_REDUCE_COLUMNS) + 15) / 16 * 16 * sizeof(double);
}

/* Results lie one after the other. */
static dti_stage dti_reduce_stage(const dti_launch *l, int b) {
    return (dti_stage){b ? 1 : DTI_STAGE_OWN, b ? l->args.reduce.y_offset : 0};
}

#define DTI_REDUCE_DIM(axis) DTI_WORD(reduce, dim) + axis
#define DTI_REDUCE_ANY                                                                             \
    .halves = true, .stage = dti_reduce_stage, .grid_halves = dti_launch_any_half,                 \
    .run = dti_cpu_reduce, .grain = 16384, .scratch_bytes = dti_cpu_scratch_reduce,                \
    .each = DTI_WORD(reduce, r), .tile = dti_reduce_tile, .effort = dti_reduce_effort,             \
    .divides = {6,                                                                                 \
                DTI_WORD(reduce, by),                                                              \
                {DTI_REDUCE_DIM(0), DTI_REDUCE_DIM(1), DTI_REDUCE_DIM(2), DTI_REDUCE_DIM(3),       \
                 DTI_REDUCE_DIM(4), DTI_REDUCE_DIM(5)}}

/* spec0: DTI_R_*; serial over j */
DTI_KERNEL(REDUCE, reduce, "rw", ITEM, DTI_REDUCE_ANY, .rounds = dti_reduce_rounds);

static uint64_t dti_reduce_column_invocations(const dti_launch *l, uint32_t variant,
                                              const uint32_t spec[4]) {
    return DTI_REDUCE_LOCAL * dti_ceil_div(l->args.reduce.n, DTI_REDUCE_BESIDE);
}

/* spec0: DTI_R_*; a workgroup over j of neighbouring results */
DTI_KERNEL(REDUCE_COLUMN, reduce_column, "rw", GROUP, DTI_REDUCE_ANY, .local = {DTI_REDUCE_LOCAL},
           .invocations = dti_reduce_column_invocations, .rounds = dti_reduce_rounds);

/* spec0: DTI_R_*; a workgroup over j */
DTI_KERNEL(REDUCE_ROW, reduce_row, "rw", GROUP, DTI_REDUCE_ANY, .width = dti_row_length,
           .rounds = dti_reduce_rounds);

DTI_FAMILY(reduce, .halves = DTI_HALF_ALL, .shape = dti_reduce_shape, .grad = dti_reduce_grad);
