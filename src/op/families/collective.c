/* Rows whose value all pieces of the job's batch make together. Replicas, threads and ranks compute
 * those pieces. In code for a replica's share of a step the segment ends at such a row. The host
 * makes the value from all operands, and the next segment reads it like an input (sync_points.c,
 * sync_point.c). In other code the program has the whole batch, and the launches here make the
 * value.
 *
 * A sync point has no gradient rule. Rows that read one append the gradient's sync points in their
 * own rules; those cannot be differentiated again. */

enum { DTI_ALL_SPATIAL = 2 }; /* attr.i, as of the norm that they are for */

static bool dti_meet_shape(dti_build *b) {
    b->out.samples = false;
    return dti_build_f32(b) && dti_shape_same(b);
}

static dt_tensor dti_meet_again(dt_graph *g) {
    return dti_graph_fail(g, "the gradient of a batch_norm with .sync cannot be differentiated "
                             "again, which is not supported; leave .sync out where second "
                             "derivatives are wanted");
}

/* A row along axis 4: norm_dw's two may lie apart, in any order. */
static dti_view dti_meet_row(const dti_view *v, int64_t row) {
    dti_view one = *v;
    one.offset += row * v->stride[DTI_AXES - 2];
    one.dim[DTI_AXES - 2] = 1;
    one.stride[DTI_AXES - 2] = 0;
    return one;
}

static void dti_meet_emit(dti_emit *e) {
    const dti_view x = dti_emit_in(e, 0);
    if (dti_op_info_of(e->node->op)->selector == DTI_MEET_STATS) {
        dti_emit_copy(e, &x, &e->out, DTI_COPY_WORD);
        return;
    }
    const float none[2] = {0.0f, 0.0f};
    const double count = (double)e->batch * e->node->attr.i[DTI_ALL_SPATIAL];
    const dti_view one = dti_view_line(dti_emit_scratch(e, DT_F32, 1), 1, 1, 0);
    dti_emit_fill(e, &one, DTI_COPY_FILL_F32, (float)count);
    for (int64_t row = 0; row < x.dim[DTI_AXES - 2]; row++) {
        const dti_view from = dti_meet_row(&x, row), to = dti_meet_row(&e->out, row);
        dti_emit_map2_views(e, DTI_K_MAP2, DTI_B_DIV, &from, &one, &to, none);
    }
}

/* ---- a tensor group: the ranks that one model is split over (Shoeybi et al., "Megatron-LM",
 * 2019). All have the sum, so each already has its gradient. A value that all read gets a part of
 * its gradient from each. */

static bool dti_parted_sum_shape(dti_build *b) {
    return dti_build_f32(b) && dti_shape_same(b);
}

static dt_tensor dti_parted_summed(dt_tensor x) {
    return dti_append1(DTI_OP_TP_SUM, x, NULL);
}

static dt_tensor dti_parted_copied(dt_tensor x) {
    return dti_append1(DTI_OP_TP_COPY, x, NULL);
}

static void dti_parted_copy_grad(dti_grad *g) {
    g->dx[0] = dti_parted_summed(g->dy);
}

/* ---- the maximum, for values without a gradient */

static bool dti_parted_most_flat(const dti_node *n) {
    return true;
}

static dt_tensor dti_parted_most(dt_tensor x) {
    return dti_append1(DTI_OP_TP_MOST, x, NULL);
}

/* ---- parts along an axis (all_gather and reduce_scatter; Korthikanti et al., "Reducing activation
 * recomputation in large transformer models", 2022): attr.i = axis, number of tensor ranks, this
 * rank's index. Outside of a tensor group there is one. */

enum { DTI_ALONG_AXIS, DTI_ALONG_TP_RANKS, DTI_ALONG_TP_RANK };

static dt_tensor dti_parted_along(dti_parted_way way, dt_tensor x, int axis, int64_t tp_ranks,
                                  int64_t tp_rank) {
    const dti_attr attr = {.i = {axis, (int32_t)tp_ranks, (int32_t)tp_rank}};
    return dti_append1((dti_op)(DTI_OP_TP_SPREAD + way), x, &attr);
}

static bool dti_parted_along_shape(dti_build *b) {
    const int32_t *i = b->out.attr.i;
    if (!dti_parted_sum_shape(b) || i[DTI_ALONG_AXIS] >= b->out.shape.rank)
        return false;
    int64_t *size = &b->out.shape.dim[i[DTI_ALONG_AXIS]];
    if (dti_op_info_of(b->out.op)->selector == DTI_MEET_ROWS) {
        *size *= i[DTI_ALONG_TP_RANKS];
        return true;
    }
    if (*size % i[DTI_ALONG_TP_RANKS])
        return dti_build_fail(b, "the axis must divide into %d equal parts", i[DTI_ALONG_TP_RANKS]);
    *size /= i[DTI_ALONG_TP_RANKS];
    return true;
}

/* Two and two are each other's: SPREAD and SHARE, GATHER and OWN. */
static void dti_parted_along_grad(dti_grad *g) {
    const uint32_t op = DTI_OP_TP_SPREAD + ((g->node.op - DTI_OP_TP_SPREAD) ^ 1u);
    g->dx[0] = dti_append1((dti_op)op, g->dy, &g->node.attr);
}

/* Elements of an own part that are contiguous: the product of its axis and those after it. */
static dti_meet dti_meet_of(const dti_node *n) {
    dti_meet m = {.kind = (dti_meet_kind)dti_op_info_of(n->op)->selector};
    if (m.kind <= DTI_MEET_MEAN)
        m.spatial = (uint32_t)n->attr.i[DTI_ALL_SPATIAL];
    if (m.kind < DTI_MEET_ROWS)
        return m;
    m.run = 1;
    for (int i = n->attr.i[DTI_ALONG_AXIS]; i < n->shape.rank; i++)
        m.run *= n->shape.dim[i];
    m.run /= m.kind == DTI_MEET_ROWS ? n->attr.i[DTI_ALONG_TP_RANKS] : 1;
    return m;
}

static void dti_parted_cut_emit(dti_emit *e) {
    const int32_t *i = e->node->attr.i;
    const int axis = DTI_AXES - e->node->shape.rank + i[DTI_ALONG_AXIS];
    dti_view x = dti_emit_in(e, 0);
    x.dim[axis] /= i[DTI_ALONG_TP_RANKS];
    x.offset += i[DTI_ALONG_TP_RANK] * x.dim[axis] * x.stride[axis];
    if (x.dim[axis] == 1)
        x.stride[axis] = 0;
    e->out = x;
}

/* ---- class numbers: attr.i = classes, ignore_index, whether there is one */

static bool dti_parted_labels_labels(const dt_graph *g, const dti_node *n, dti_labels *out) {
    *out = (dti_labels){
        .classes = n->attr.i[0], .ignore_index = n->attr.i[1], .ignores = n->attr.i[2] != 0};
    return n->dtype == DT_I32 && n->attr.i[0] > 0;
}

static dt_tensor dti_parted_labels(dt_tensor labels, const dti_labels *of) {
    const dti_attr attr = {.i = {of->classes, of->ignore_index, of->ignores}};
    labels = dti_append1(DTI_OP_TP_LABELS, labels, &attr);
    dt_shape s = dti_tensor_shape(labels);
    if (dti_is_nil(labels) || s.rank == DT_MAX_DIMS)
        return dti_nil(labels.graph);
    s.dim[s.rank++] = 1;
    return dt_reshape(dt_cast(labels, DT_F32), s);
}

/* ---- Rows of the tables */

DTI_FAMILY_BY(parted_sum, copy, .shape = dti_parted_sum_shape, .grad = dti_grad_of_result,
              .meet = dti_meet_of);

DTI_FAMILY_BY(parted_copy, same, .halves = DTI_HALF_ALL, .shape = dti_shape_same,
              .grad = dti_parted_copy_grad, .view = true);

DTI_FAMILY_BY(parted_most, copy, .shape = dti_parted_sum_shape, .flat = dti_parted_most_flat,
              .meet = dti_meet_of);

DTI_FAMILY_BY(parted_whole, copy, .shape = dti_parted_along_shape, .grad = dti_parted_along_grad,
              .meet = dti_meet_of);

DTI_FAMILY_BY(parted_own, copy, .shape = dti_parted_along_shape, .grad = dti_parted_along_grad,
              .meet = dti_meet_of);

DTI_FAMILY(parted_cut, .shape = dti_parted_along_shape, .grad = dti_parted_along_grad,
           .view = true);

DTI_FAMILY_BY(parted_labels, same, .shape = dti_shape_of_input, .labels = dti_parted_labels_labels,
              .view = true);

DTI_FAMILY(meet, .shape = dti_meet_shape, .meet = dti_meet_of);
