/* Rows of a table by index, and the adjoint: rows added up by index, in the order of the indices,
 * whoever computes them (no atomics). An index outside the table gives a row of NaN; inputs are
 * checked when the host writes them. */

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
    dti_args_gather a = {.n = (uint32_t)dti_view_elements(index),
                         .table_rows = (uint32_t)table.dim[0]};
    a.cols = (uint32_t)cols;
    a.index_offset = (uint32_t)index->offset;
    bool scatter = kernel == DTI_K_SCATTER_ADD;
    a.table_offset = (uint32_t)(scatter ? e->out.offset : rows->offset);
    a.y_offset = (uint32_t)(scatter ? rows->offset : e->out.offset);
    dti_launch *l = dti_emit_launch(e, kernel, (uint64_t)dti_view_elements(&e->out), sizeof a);
    l->args.gather = a;
    dti_bind(l, rows->value, index->value, e->out.value, DTI_UNBOUND);
}

static void dti_gather_emit(dti_emit *e) {
    dti_view table = dti_emit_dense_in(e, 0), index = dti_emit_dense_in(e, 1);
    dt_shape s = e->graph->nodes[dti_input_id(e->graph, e->node, 0)].shape;
    dti_gather_launch(e, DTI_K_GATHER, s, &table, &index);
}

DT_API dt_tensor dt_gather(dt_tensor table, dt_tensor index) {
    return dti_append2(DTI_OP_GATHER, table, index, NULL);
}

/* ---- scatter_add (dy, index): attr = the table's shape. */
static bool dti_scatter_add_labels(const dt_graph *g, const dti_node *n, dti_labels *out) {
    (void)g;
    *out = (dti_labels){.input = 1, .classes = (int32_t)n->shape.dim[0]};
    return true;
}

static bool dti_scatter_add_shape(dti_build *b) {
    if (b->in[1]->dtype != DT_I32)
        return dti_build_fail(b, "the index must be i32");
    b->out.shape = dti_attr_shape(&b->out.attr);
    b->out.samples = false;
    return true;
}

static void dti_scatter_add_grad(dti_grad *g) {
    if (g->wanted[0])
        g->dx[0] = dt_gather(g->dy, g->in[1]);
}

static void dti_scatter_add_emit(dti_emit *e) {
    dti_view dy = dti_emit_dense_in(e, 0), index = dti_emit_dense_in(e, 1);
    dti_gather_launch(e, DTI_K_SCATTER_ADD, e->node->shape, &dy, &index);
}

/* ---- Reference */
#ifdef DT_REFERENCE

static void dti_gather_ref(const dti_ref *r) {
    int64_t n = r->in[1].elements, cols = n ? r->out.elements / n : 0;
    int64_t rows = cols ? r->in[0].elements / cols : 0;
    for (int64_t i = 0; i < n * cols; i++) {
        int64_t row = (int64_t)r->in[1].data[i / cols];
        bool inside = row >= 0 && row < rows;
        r->out.data[i] = inside ? r->in[0].data[row * cols + i % cols] : NAN;
    }
}

static void dti_scatter_add_ref(const dti_ref *r) {
    int64_t rows = r->node->shape.dim[0], cols = rows ? r->out.elements / rows : 0;
    for (int64_t i = 0; i < r->out.elements; i++)
        r->out.data[i] = 0;
    for (int64_t i = 0; i < r->in[1].elements * cols; i++) {
        int64_t row = (int64_t)r->in[1].data[i / cols];
        if (row >= 0 && row < rows)
            r->out.data[row * cols + i % cols] += r->in[0].data[i];
    }
}

#endif

/* ---- CPU */

static void dti_cpu_gather(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
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

/* The owner of a range of the table goes over the indices in order, so each sum has one order. */
static void dti_cpu_scatter_add(const dti_cpu_task *task, int64_t begin, int64_t end,
                                void *scratch) {
    (void)scratch;
    const dti_args_gather *a = &task->launch->args.gather;
    const float *dy = dti_cpu_in(task, 0, a->y_offset);
    const dti_word *index = (const dti_word *)task->buf[1] + a->index_offset;
    float *table = dti_cpu_out(task, 2, a->table_offset);
    const int64_t cols = a->cols, first_row = begin / cols, last_row = (end - 1) / cols;
    memset(table + begin, 0, (size_t)(end - begin) * sizeof *table);
    for (int64_t i = 0; i < a->n; i++, dy += cols) {
        const int64_t row = index[i];
        if (row < first_row || row > last_row)
            continue;
        int64_t from = DTI_MAX(begin, row * cols), to = DTI_MIN(end, (row + 1) * cols);
        task->k->binary[DTI_B_ADD](table + from, table + from, 1, dy + (from - row * cols), 1,
                                   to - from);
    }
}

/* Each piece goes over all indices: a piece for each thread. */
static int64_t dti_cpu_grain_scatter_add(const dti_cpu_task *task) {
    int64_t items = (int64_t)task->launch->items;
    return DTI_MAX((items + task->threads - 1) / task->threads, 4096);
}

/* ---- Rows of the tables */

/* (table, index, y) item = element of y */
DTI_KERNEL(GATHER, gather, "rrw", ITEM, .run = dti_cpu_gather, .grain = dti_cpu_grain_copy);

static dti_effort dti_scatter_add_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_gather *a = &l->args.gather;
    (void)variant, (void)local;
    return (dti_effort){a->n, (uint64_t)a->n * a->table_rows * a->cols};
}

/* (dy, index, dtable) item = element of dtable */
DTI_KERNEL(SCATTER_ADD, scatter_add, "rrw", ITEM, .run = dti_cpu_scatter_add,
           .grain = dti_cpu_grain_scatter_add, .effort = dti_scatter_add_effort);

DTI_FAMILY(gather, .shape = dti_gather_shape, .grad = dti_gather_grad, .labels = dti_gather_labels);

DTI_FAMILY(scatter_add, .shape = dti_scatter_add_shape, .grad = dti_scatter_add_grad,
           .labels = dti_scatter_add_labels);
