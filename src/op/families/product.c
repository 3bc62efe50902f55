/* Matrix products: matmul of any transposition and batch, and the linear layer's three rows
 * (forward, gradient of input, gradient of weight), which differentiate into each other. All are
 * the GEMM kernel; a transposition is a pair of strides. */

static uint64_t dti_gemm_flops(const dti_args_gemm *a) {
    return 2ull * a->m * a->n * a->k * a->batch0 * a->batch1;
}

static void dti_emit_gemm_to(dti_emit *e, const dti_args_gemm *args, uint32_t a, uint32_t b,
                             uint32_t c, uint32_t bias) {
    const uint64_t items = (uint64_t)args->m * args->n * args->batch0 * args->batch1;
    DTI_EMIT(e, DTI_K_GEMM, items, *args, a, b, c, bias)->spec[0] = bias != DTI_UNBOUND;
}

/* In parts of `part` k. Of several batches in batch1 the results follow each other in c. */
static void dti_emit_gemm_apart(dti_emit *e, const dti_args_gemm *args, uint32_t a, uint32_t b,
                                uint32_t bias, uint32_t part) {
    dti_args_gemm g = *args;
    dti_gemm_set_apart(&g, part);
    const uint32_t x = dti_emit_scratch(e, DT_F32, (uint64_t)g.batch0 * g.c_batch0);
    dti_emit_gemm_to(e, &g, a, b, x, DTI_UNBOUND);
    dti_emit_product_sum(e, args, g.batch0, x, bias);
}

/* Batches in parts: together those that follow each other in c, while all parts are few. */
static void dti_emit_gemm_batches(dti_emit *e, const dti_args_gemm *args, uint32_t a, uint32_t b,
                                  uint32_t bias, uint32_t part) {
    const uint64_t each = (uint64_t)args->m * args->n, parts = dti_ceil_div(args->k, part);
    const bool dense = args->c_row == args->n && args->c_batch1 == each;
    const uint64_t most = dense ? DTI_GEMM_APART_ELEMENTS / DTI_MAX(each * parts, 1) : 1;
    dti_args_gemm g = *args;
    g.batch0 = 1;
    for (uint32_t i = 0; i < args->batch0; i++)
        for (uint32_t j = 0; j < args->batch1; j += g.batch1) {
            g.batch1 = (uint32_t)DTI_MIN(DTI_MAX(most, 1), (uint64_t)(args->batch1 - j));
            g.a_offset = args->a_offset + i * args->a_batch0 + j * args->a_batch1;
            g.b_offset = args->b_offset + i * args->b_batch0 + j * args->b_batch1;
            g.c_offset = args->c_offset + i * args->c_batch0 + j * args->c_batch1;
            dti_emit_gemm_apart(e, &g, a, b, bias, part);
        }
}

/* cut: of k, on a device that runs workgroups; see chunk.c. */
static void dti_emit_gemm(dti_emit *e, const dti_args_gemm *args, uint32_t a, uint32_t b,
                          uint32_t bias, dti_gemm_cuts cut) {
    dti_args_gemm g = *args;
    g.chunk = e->workgroups ? cut.chunk : 0;
    e->list->flops += dti_gemm_flops(args);
    const uint32_t parts = e->apart && cut.beside ? dti_gemm_chunk_parts(&g) : 1;
    if (e->workgroups && cut.part)
        dti_emit_gemm_batches(e, &g, a, b, bias, cut.part);
    else if (parts > 1)
        dti_emit_gemm_apart(e, &g, a, b, bias, g.chunk);
    else
        dti_emit_gemm_to(e, &g, a, b, e->out.value, bias);
}

/* If chunks are added in C, and the result has 16 bits, it is made in f32. It is rounded after its
 * last product. Returns the place of the result. */
static dti_view dti_product_begin(dti_emit *e, dti_gemm_cuts cut) {
    const dti_view out = e->out;
    if (e->workgroups && cut.chunk && dti_is_half(out.dtype)) {
        const uint64_t n = (uint64_t)dti_view_elements(&out);
        e->out = dti_view_packed(dti_emit_scratch(e, DT_F32, n), &out, 0);
        e->out.dtype = DT_F32;
    }
    return out;
}

static void dti_product_end(dti_emit *e, const dti_view *out) {
    if (e->out.value != out->value)
        dti_emit_copy(e, &e->out, out, DTI_COPY_WORD);
    e->out = *out;
}

/* ---- matmul: attr.i[0], i[1] = transpose a, b. */
/* K is in both, and of a and b only the result is known. */
static double dti_matmul_macs(const dt_graph *g, const dti_node *n) {
    const dt_shape a = g->nodes[dti_input_id(g, n, 0)].shape;
    return (double)dti_shape_elements(n->shape) * (double)a.dim[a.rank - 1 - (n->attr.i[0] != 0)];
}

static bool dti_matmul_shape(dti_build *b) {
    if (!dti_build_real(b))
        return false;
    dt_shape x = b->in[0]->shape, y = b->in[1]->shape, batch = {0};
    if (x.rank < 2 || y.rank < 2) {
        return dti_build_fail(b, "both need 2 dimensions; for rows of one matrix use dt_linear");
    }
    int ta = b->out.attr.i[0] != 0, tb = b->out.attr.i[1] != 0;
    int64_t m = x.dim[x.rank - 2 + ta], k = x.dim[x.rank - 1 - ta];
    int64_t k2 = y.dim[y.rank - 2 + tb], n = y.dim[y.rank - 1 - tb];
    if (k != k2)
        return dti_build_fail(b, "the inner sizes %lld and %lld differ", (long long)k,
                              (long long)k2);
    x.rank -= 2;
    y.rank -= 2;
    if (!dti_shape_broadcast(x, y, &batch))
        return dti_build_fail(b, "the leading dimensions do not broadcast");
    b->out.shape = batch;
    b->out.shape.dim[b->out.shape.rank++] = m;
    b->out.shape.dim[b->out.shape.rank++] = n;
    return true;
}

/* A parameter's gradient is a sum in f32, though the product reads 16-bit copies. */
static dt_tensor dti_matmul_sum(dt_tensor dx, dt_tensor x) {
    if (!dti_is_nil(dx) && dti_grad_dtype(x) == DT_F32)
        dti_node_of(dx)->dtype = DT_F32;
    return dti_sum_to(dx, x);
}

static void dti_matmul_grad(dti_grad *g) {
    bool ta = g->node.attr.i[0] != 0, tb = g->node.attr.i[1] != 0;
    dt_tensor a = g->in[0], b = g->in[1], dy = g->dy;
    if (g->wanted[0]) {
        dt_tensor da =
            ta ? dt_matmul_transposed(b, dy, tb, true) : dt_matmul_transposed(dy, b, false, !tb);
        g->dx[0] = dti_matmul_sum(da, a);
    }
    if (g->wanted[1]) {
        dt_tensor db =
            tb ? dt_matmul_transposed(dy, a, true, ta) : dt_matmul_transposed(a, dy, !ta, false);
        g->dx[1] = dti_matmul_sum(db, b);
    }
}

static dti_gemm_cuts dti_matmul_cuts(const dti_view *y, int64_t k) {
    return dti_gemm_cuts_parts((uint64_t)k, 0,
                               dti_gemm_chain((uint64_t)y->dim[4], (uint64_t)y->dim[5]));
}

/* The four leading axes as at most two batch axes; the host loops over the rest. */
static void dti_matmul_emit(dti_emit *e) {
    bool ta = e->node->attr.i[0] != 0, tb = e->node->attr.i[1] != 0;
    dti_view a = dti_emit_in(e, 0), b = dti_emit_in(e, 1);
    const dti_gemm_cuts cut = dti_matmul_cuts(&e->out, a.dim[ta ? 4 : 5]);
    const dti_view out = dti_product_begin(e, cut), c = e->out;
    int64_t dim[DTI_AXES];
    memcpy(dim, c.dim, sizeof dim);
    dim[4] = dim[5] = 1;
    dti_view wide_a = dti_view_broadcast(&a, dim), wide_b = dti_view_broadcast(&b, dim);
    dti_walk w = dti_walk_make(dim, (const dti_view *const[]){&wide_a, &wide_b, &c}, 3);
    dti_args_gemm g = {
        .m = (uint32_t)c.dim[4], .n = (uint32_t)c.dim[5], .k = (uint32_t)a.dim[ta ? 4 : 5]};
    g.a_row = (uint32_t)a.stride[ta ? 5 : 4];
    g.a_col = (uint32_t)a.stride[ta ? 4 : 5];
    g.b_row = (uint32_t)b.stride[tb ? 5 : 4];
    g.b_col = (uint32_t)b.stride[tb ? 4 : 5];
    g.c_row = (uint32_t)c.dim[5];
    g.batch0 = w.dim[4];
    g.batch1 = w.dim[5];
    g.a_batch0 = w.stride[0][4];
    g.a_batch1 = w.stride[0][5];
    g.b_batch0 = w.stride[1][4];
    g.b_batch1 = w.stride[1][5];
    g.c_batch0 = w.stride[2][4];
    g.c_batch1 = w.stride[2][5];
    uint64_t loops = (uint64_t)w.dim[0] * w.dim[1] * w.dim[2] * w.dim[3];
    for (uint64_t i = 0; i < loops; i++) {
        uint64_t rest = i, at[3] = {(uint64_t)a.offset, (uint64_t)b.offset, (uint64_t)c.offset};
        for (int axis = 3; axis >= 0; axis--) {
            for (int t = 0; t < 3; t++)
                at[t] += rest % w.dim[axis] * w.stride[t][axis];
            rest /= w.dim[axis];
        }
        g.a_offset = (uint32_t)at[0];
        g.b_offset = (uint32_t)at[1];
        g.c_offset = (uint32_t)at[2];
        dti_emit_gemm(e, &g, a.value, b.value, DTI_UNBOUND, cut);
    }
    dti_product_end(e, &out);
}

DT_API dt_tensor dt_matmul_transposed(dt_tensor a, dt_tensor b, bool transpose_a,
                                      bool transpose_b) {
    return dti_append2(DTI_OP_MATMUL, a, b, &(dti_attr){.i = {transpose_a, transpose_b}});
}

DT_API dt_tensor dt_matmul(dt_tensor a, dt_tensor b) {
    return dt_matmul_transposed(a, b, false, false);
}

/* ---- linear (x, w, b), linear_dx (dy, w), linear_dw (dy, x). Rows are all dimensions but the
 * last. */

static bool dti_linear_weight_fits(dti_build *b, const dti_node *x, const dti_node *w, int side) {
    if (w->shape.rank != 2 || w->samples)
        return dti_build_fail(b, "the weight must be [out, in], without samples");
    if (x->shape.rank < 1)
        return dti_build_fail(b, "x needs a last dimension");
    if (x->shape.dim[x->shape.rank - 1] != w->shape.dim[side]) {
        return dti_build_fail(b, "the last dimension %lld of x is not the weight's %s, %lld",
                              (long long)x->shape.dim[x->shape.rank - 1], side ? "in" : "out",
                              (long long)w->shape.dim[side]);
    }
    return true;
}

static bool dti_linear_shape(dti_build *b) {
    if (!dti_build_product(b) || !dti_linear_weight_fits(b, b->in[0], b->in[1], 1))
        return false;
    if (b->count > 2) {
        const dti_node *bias = dti_node_of(b->inputs[2]);
        if (b->count > 3 || bias->shape.rank != 1 || bias->samples ||
            bias->shape.dim[0] != b->in[1]->shape.dim[0]) {
            return dti_build_fail(b, "the bias must be [out], without samples");
        }
    }
    b->out.shape = b->in[0]->shape;
    b->out.shape.dim[b->out.shape.rank - 1] = b->in[1]->shape.dim[0];
    return true;
}

static void dti_linear_grad(dti_grad *g) {
    if (g->wanted[0])
        g->dx[0] = dti_append2(DTI_OP_LINEAR_DX, g->dy, g->in[1], NULL);
    if (g->wanted[1])
        g->dx[1] = dti_append2(DTI_OP_LINEAR_DW, g->dy, g->in[0], NULL);
    if (g->wanted[2])
        g->dx[2] = dti_sum_to(g->dy, g->in[2]);
}

/* By the rows of a sample, or all rows if there are no samples. */
static dti_gemm_cuts dti_linear_cuts(const dti_view *y, const dti_args_gemm *g) {
    return dti_gemm_cuts_rowwise(g->m / (uint64_t)DTI_MAX(y->dim[0], 1), g->n, g->k);
}

/* Rows that begin *row apart: of a slice as they lie, where that leaves a GPU its loads of four. */
static dti_view dti_linear_rows(dti_emit *e, uint32_t i, uint32_t *row) {
    dti_view v = dti_emit_in(e, i);
    const int64_t step = dti_view_as_one(&v, 0, DTI_AXES - 1), k = v.dim[DTI_AXES - 1];
    if (v.stride[DTI_AXES - 1] != 1 || step < k || (e->workgroups && (step | v.offset) % 4)) {
        v = dti_emit_dense_in(e, i);
        *row = (uint32_t)k;
        return v;
    }
    *row = (uint32_t)step;
    return v;
}

/* Rows of x, or of dy, with the weight or its transpose; linear_dw: a sum over the rows of x and
 * dy. */
static void dti_linear_emit(dti_emit *e) {
    const bool dw = e->node->op == DTI_OP_LINEAR_DW;
    dti_args_gemm g = {.batch0 = 1, .batch1 = 1, .a_row = 1, .a_col = 1, .b_row = 1, .b_col = 1};
    const dti_view a = dti_linear_rows(e, 0, dw ? &g.a_col : &g.a_row);
    const dti_view b = dw ? dti_linear_rows(e, 1, &g.b_row) : dti_emit_dense_in(e, 1);
    const int64_t n = e->out.dim[5], last = a.dim[5];
    const int64_t rows = dw ? dti_view_elements(&a) / DTI_MAX(last, 1)
                            : dti_view_elements(&e->out) / DTI_MAX(n, 1); /* last may be 0 */
    g.m = (uint32_t)(dw ? last : rows);
    g.n = g.c_row = (uint32_t)n;
    g.k = (uint32_t)(dw ? rows : last);
    if (!dw)
        *(e->node->op == DTI_OP_LINEAR ? &g.b_col : &g.b_row) = (uint32_t)b.dim[5];
    g.a_offset = (uint32_t)a.offset;
    g.b_offset = (uint32_t)b.offset;
    const uint32_t bias = dti_emit_given(e, 2, &g.bias_offset);
    const dti_gemm_cuts cut =
        dw ? dti_gemm_cuts_over_rows(g.m, g.n, g.k) : dti_linear_cuts(&e->out, &g);
    const dti_view out = dti_product_begin(e, cut);
    g.c_offset = (uint32_t)e->out.offset;
    dti_emit_gemm(e, &g, a.value, b.value, bias, cut);
    dti_product_end(e, &out);
}

DT_API dt_tensor dt_linear(dt_tensor x, dt_tensor w, dt_tensor b) {
    dt_tensor in[3] = {x, w, b};
    return dti_append(x.graph, DTI_OP_LINEAR, in, dti_is_nil(b) && !b.graph ? 2 : 3, NULL);
}

static bool dti_linear_dx_shape(dti_build *b) {
    if (!dti_build_real(b) || !dti_linear_weight_fits(b, b->in[0], b->in[1], 0))
        return false;
    b->out.shape = b->in[0]->shape;
    b->out.shape.dim[b->out.shape.rank - 1] = b->in[1]->shape.dim[1];
    return true;
}

static void dti_linear_dx_grad(dti_grad *g) {
    if (g->wanted[0])
        g->dx[0] = dt_linear(g->dy, g->in[1], (dt_tensor){0});
    if (g->wanted[1])
        g->dx[1] = dti_append2(DTI_OP_LINEAR_DW, g->in[0], g->dy, NULL);
}

static bool dti_linear_dw_shape(dti_build *b) {
    if (!dti_build_real(b))
        return false;
    const dti_node *dy = b->in[0], *x = b->in[1];
    dt_shape s = dy->shape, t = x->shape;
    if (s.rank < 1 || t.rank != s.rank)
        return dti_build_fail(b, "dy and x must have one rank");
    int64_t out = s.dim[s.rank - 1], in = t.dim[t.rank - 1];
    s.dim[s.rank - 1] = t.dim[t.rank - 1] = 0;
    if (!dti_shape_equal(s, t) || dy->samples != x->samples)
        return dti_build_fail(b, "dy and x differ in rows");
    b->out.shape = (dt_shape){.rank = 2, .dim = {out, in}};
    b->out.samples = false;
    return true;
}

static void dti_linear_dw_grad(dti_grad *g) {
    if (g->wanted[0])
        g->dx[0] = dt_linear(g->in[1], g->dy, (dt_tensor){0});
    if (g->wanted[1])
        g->dx[1] = dti_append2(DTI_OP_LINEAR_DX, g->in[0], g->dy, NULL);
}

/* ---- CPU: items are tiles of C, or whole batch elements when those are enough for all threads.
 * Neither changes bits. */

static int dti_gemm_threads(const dti_launch *l, int threads) {
    uint64_t batch = (uint64_t)l->args.gemm.batch0 * l->args.gemm.batch1;
    return batch >= (uint64_t)threads || l->args.gemm.apart ? 1 : threads;
}

static dti_gemm dti_gemm_of_args(const dti_launch *l) {
    const dti_args_gemm *a = &l->args.gemm;
    return (dti_gemm){.m = a->m,
                      .n = a->n,
                      .k = a->apart ? a->apart : a->k,
                      .a_row = a->a_row,
                      .a_col = a->a_col,
                      .b_row = a->b_row,
                      .b_col = a->b_col,
                      .c_row = a->c_row,
                      .c_col = 1,
                      .bias_stride = 1,
                      .epilogue = (int)l->spec[1]};
}

static char *dti_gemm_operand(const dti_cpu_task *task, int binding, uint64_t offset) {
    return (char *)task->buf[binding] + dti_bytes(task->launch->dtype[binding], offset);
}

/* The operands of batch element (i, j). */
static dti_gemm_half dti_gemm_half_of(const dti_cpu_task *task, uint64_t i, uint64_t j) {
    const dti_launch *l = task->launch;
    const dti_args_gemm *a = &l->args.gemm;
    const uint64_t c = i * a->c_batch0 + j * a->c_batch1;
    const int bias = l->spec[0] == DTI_BIAS ? 3 : 1;
    const bool reads = l->spec[1] == DTI_GEMM_RELU_GRAD || l->spec[1] == DTI_GEMM_ADD;
    return (dti_gemm_half){
        .a = dti_gemm_operand(task, 0, a->a_offset + i * a->a_batch0 + j * a->a_batch1),
        .b = dti_gemm_operand(task, 1, a->b_offset + i * a->b_batch0 + j * a->b_batch1),
        .c = dti_gemm_operand(task, 2, a->c_offset + c),
        .bias = l->spec[0] ? dti_gemm_operand(task, bias, a->bias_offset) : NULL,
        .operand = reads ? dti_gemm_operand(task, 3, a->operand_offset + c) : NULL,
        .a_type = l->dtype[0],
        .b_type = l->dtype[1],
        .c_type = l->dtype[2],
        .bias_type = l->dtype[bias],
        .operand_type = l->dtype[3],
        .rounds = l->rounds >> 1 & 1};
}

/* The bias, and the operand of the epilogue, which begins `at` elements on. */
static void dti_gemm_extras(const dti_cpu_task *task, uint64_t at, dti_gemm *g) {
    const dti_args_gemm *a = &task->launch->args.gemm;
    const uint32_t where = task->launch->spec[0];
    g->bias = where ? dti_cpu_in(task, where == DTI_BIAS ? 3 : 1, a->bias_offset) : NULL;
    if (g->epilogue == DTI_GEMM_RELU_GRAD)
        g->mask = dti_cpu_in(task, 3, a->operand_offset) + at;
    if (g->epilogue == DTI_GEMM_ADD)
        g->addend = dti_cpu_in(task, 3, a->operand_offset) + at;
}

static void dti_cpu_gemm(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_gemm *args = &task->launch->args.gemm;
    const bool is_half = dti_launch_is_half(task->launch);
    dti_gemm g = dti_gemm_of_args(task->launch);
    int threads = dti_gemm_threads(task->launch, task->threads);
    int64_t tiles = dti_gemm_tiles(&g, threads);
    for (int64_t item = begin; item < end;) {
        int64_t batch = item / tiles, tile = item - batch * tiles,
                last = DTI_MIN(tiles, tile + end - item);
        uint64_t i = (uint64_t)batch / args->batch1, j = (uint64_t)batch - i * args->batch1;
        if (args->apart)
            g.k = (int64_t)DTI_MIN(args->apart, args->k - i * args->apart);
        if (is_half) {
            const dti_gemm_half half = dti_gemm_half_of(task, i, j);
            g.half = &half;
            dti_gemm_run(task->k, &g, threads, tile, last, scratch);
            item += last - tile;
            continue;
        }
        g.a = dti_cpu_in(task, 0, args->a_offset) + i * args->a_batch0 + j * args->a_batch1;
        g.b = dti_cpu_in(task, 1, args->b_offset) + i * args->b_batch0 + j * args->b_batch1;
        g.c = dti_cpu_out(task, 2, args->c_offset) + i * args->c_batch0 + j * args->c_batch1;
        dti_gemm_extras(task, i * args->c_batch0 + j * args->c_batch1, &g);
        dti_gemm_run(task->k, &g, threads, tile, last, scratch);
        item += last - tile;
    }
}

static int64_t dti_cpu_items_gemm(const dti_cpu_task *task) {
    const dti_args_gemm *a = &task->launch->args.gemm;
    dti_gemm g = dti_gemm_of_args(task->launch);
    int64_t tiles = dti_gemm_tiles(&g, dti_gemm_threads(task->launch, task->threads));
    return tiles * a->batch0 * a->batch1;
}

/* Tiles are cut so that each is worth a thread; whole batch elements may be tiny. */
static int64_t dti_cpu_grain_gemm(const dti_cpu_task *task) {
    const dti_args_gemm *a = &task->launch->args.gemm;
    if (dti_gemm_threads(task->launch, task->threads) > 1)
        return 1;
    return 1 + DTI_GEMM_TILE_MACS / (1 + (int64_t)a->m * a->n * DTI_MAX(a->k, 1));
}

static size_t dti_cpu_scratch_gemm(const dti_launch *launch, int threads) {
    dti_gemm g = dti_gemm_of_args(launch);
    return dti_launch_is_half(launch) ? dti_gemm_half_scratch_bytes(&g)
                                      : dti_gemm_scratch_bytes(&g);
}

/* ---- Rows of the tables; the kernel's is in product_grid.c */

DTI_FAMILY(matmul, .halves = DTI_HALF_ALL, .rounds = 2, .shape = dti_matmul_shape,
           .grad = dti_matmul_grad, .macs = dti_matmul_macs);

/* (x, w, b). By columns: rows of w and b, and a part of y from all of x, or all rows of it. By
 * rows: columns of w for a part of x, and a sum, to which b is added. */
static bool dti_linear_part(dti_parting *s) {
    const dti_parted *x = &s->in[0], *w = &s->in[1], *b = s->n->count > 2 ? &s->in[2] : NULL;
    const int last = dti_parted_input(s, 0)->shape.rank - 1;
    if (w->axis == 0 && (x->axis < 0 || x->rows) && (!b || dti_parted_equal(b, w))) {
        s->all = x->rows;
        s->out = *w;
        s->out.axis = (int8_t)last;
        return true;
    }
    s->sum = w->axis == 1 && x->axis == last && (!b || b->axis < 0) &&
             !memcmp(w->group, x->group, sizeof w->group);
    s->out = s->sum ? dti_parted_whole : *x;
    return s->sum || (w->axis < 0 && x->axis >= 0 && x->axis < last && (!b || b->axis < 0));
}

DTI_FAMILY(linear, .halves = DTI_HALF_ALL, .rounds = 2, .shape = dti_linear_shape,
           .grad = dti_linear_grad, .macs = dti_weighted_macs, .part = dti_linear_part);

DTI_FAMILY_BY(linear_dx, linear, .halves = DTI_HALF_ALL, .rounds = 2, .shape = dti_linear_dx_shape,
              .grad = dti_linear_dx_grad, .macs = dti_weighted_dx_macs);

DTI_FAMILY_BY(linear_dw, linear, .halves = DTI_HALF_ALL, .shape = dti_linear_dw_shape,
              .grad = dti_linear_dw_grad, .macs = dti_weighted_dw_macs);
