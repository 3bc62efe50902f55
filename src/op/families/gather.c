/* Rows of a table by index. And the adjoint: rows added up by index, always in the order of the
 * indices (no atomics). An index outside the table gives a row of NaN; inputs are checked when the
 * host writes them. */

static bool dti_gather_shape(dti_build *b) {
    const dti_node *table = b->in[0], *index = b->in[1];
    if (table->dtype != DT_F32 || index->dtype != DT_I32)
        return dti_build_fail(b, "needs an f32 table and an i32 index");
    if (table->shape.rank < 1 || table->samples)
        return dti_build_fail(b, "the table must be [rows, ...], without samples");
    dt_shape s = index->shape;
    for (int i = 1; i < table->shape.rank; i++) {
        if (s.rank >= DT_MAX_DIMS)
            return dti_build_fail(b, "the result has more than %d dimensions", DT_MAX_DIMS);
        s.dim[s.rank++] = table->shape.dim[i];
    }
    b->out.shape = s;
    return true;
}

static bool dti_gather_labels(const dt_graph *g, const dti_node *n, dti_labels *out) {
    const dt_shape table = g->nodes[dti_input_id(g, n, 0)].shape;
    *out = (dti_labels){.input = 1, .classes = (int32_t)table.dim[0]};
    return true;
}

static void dti_gather_grad(dti_grad *g) {
    if (!g->wanted[0])
        return;
    dti_attr attr = dti_shape_attr(dti_node_of(g->in[0])->shape);
    g->dx[0] = dti_append2(DTI_OP_SCATTER_ADD, g->dy, g->in[1], &attr);
}

static void dti_gather_launch(dti_emit *e, dti_kernel_id kernel, dt_shape table,
                              const dti_view *rows, const dti_view *index) {
    int64_t cols = 1;
    for (int i = 1; i < table.rank; i++)
        cols *= table.dim[i];
    const bool scatter = kernel == DTI_K_SCATTER_ADD;
    const dti_args_gather a = {.n = (uint32_t)dti_view_elements(index),
                               .table_rows = (uint32_t)table.dim[0],
                               .cols = (uint32_t)cols,
                               .index_offset = (uint32_t)index->offset,
                               .table_offset = (uint32_t)(scatter ? e->out.offset : rows->offset),
                               .y_offset = (uint32_t)(scatter ? rows->offset : e->out.offset)};
    DTI_EMIT(e, kernel, (uint64_t)dti_view_elements(&e->out), a, rows->value, index->value,
             e->out.value);
}

static void dti_gather_emit(dti_emit *e) {
    dti_view table = dti_emit_dense_in(e, 0), index = dti_emit_dense_in(e, 1);
    dt_shape s = e->graph->nodes[dti_input_id(e->graph, e->node, 0)].shape;
    dti_gather_launch(e, DTI_K_GATHER, s, &table, &index);
}

DT_API dt_tensor dt_embedding(dt_tensor table, dt_tensor index) {
    return dti_append2(DTI_OP_EMBEDDING, table, index, NULL);
}

/* ---- of a tensor group. Split by rows, a tensor rank looks up its own rows; others' are zeros in
 * the sum. Split by columns, it has its columns of each row. */

static dt_tensor dti_gather_parts(const dti_parting *s, const dt_tensor *in) {
    const dt_shape index = dti_tensor_shape(in[1]);
    const int64_t own = dti_tensor_shape(in[0]).dim[0];
    const dti_labels of = {.classes = (int32_t)(own * s->tp_ranks)};
    dt_tensor at = dti_parted_labels(in[1], &of);
    at = dt_affine(at, 1.0f, (float)(-s->tp_rank * own));
    dt_tensor near = dt_clamp(at, 0.0f, (float)(own - 1)), is = dt_eq(at, near);
    near = dt_cast(dt_reshape(near, index), DT_I32);
    return dt_mask(dt_embedding(in[0], near), is);
}

/* Numbers of rows are compared as f32. */
static bool dti_gather_parted(dti_parting *s) {
    const dt_shape table = dti_parted_input(s, 0)->shape, index = dti_parted_input(s, 1)->shape;
    s->out = s->in[0];
    if (s->in[1].axis >= 0 || table.rank != 2 || s->in[0].group[1])
        return false;
    s->out.axis = (int8_t)(index.rank - 1 + s->in[0].axis);
    if (s->in[0].axis > 0)
        return true;
    s->out = dti_parted_whole;
    s->sum = true;
    s->make = dti_gather_parts;
    return table.dim[0] <= (1 << 24) && index.rank < DT_MAX_DIMS;
}

/* ---- CPU */

static void dti_cpu_gather(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_gather *a = &task->launch->args.gather;
    const dti_word *table = (const dti_word *)task->buf[0] + a->table_offset;
    const dti_word *index = (const dti_word *)task->buf[1] + a->index_offset;
    dti_word *y = (dti_word *)task->buf[2] + a->y_offset;
    const int64_t cols = a->cols;
    for (int64_t i = begin, row = begin / cols; i < end; row++) {
        int64_t col = i - row * cols, n = DTI_MIN(cols - col, end - i);
        if (index[row] < a->table_rows) { /* a negative one is beyond the table */
            memcpy(y + i, table + (int64_t)index[row] * cols + col, (size_t)n * sizeof *y);
        } else {
            for (int64_t c = 0; c < n; c++)
                y[i + c] = DTI_F32_NAN;
        }
        i += n;
    }
}

/* ---- Rows of the tables */

static void dti_gather_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_gather *a = &l->args.gather;
    spec[2] = (a->cols | a->table_offset | a->y_offset) % 4 ? 0 : DTI_FOURS;
}

static dti_stage dti_gather_stage(const dti_launch *l, int b) {
    return (dti_stage){b == 2 ? 1 : DTI_STAGE_NONE, l->args.gather.y_offset};
}

/* (table, index, y) item = element of y */
DTI_KERNEL(GATHER, gather, "rrw", ITEM, .run = dti_cpu_gather, .halves = true,
           .stage = dti_gather_stage, .grid_halves = dti_launch_halves_as_cpu,
           .grain = DTI_GRAIN_COPY, .divides = {1, DTI_WORD(gather, by), {DTI_WORD(gather, cols)}},
           .tile = dti_gather_tile, .invocations = dti_fours_invocations);

DTI_FAMILY(gather, .halves = DTI_HALF_OUT, .shape = dti_gather_shape, .grad = dti_gather_grad,
           .labels = dti_gather_labels, .part = dti_gather_parted, .picks = true);
