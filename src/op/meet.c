/* Rows whose value is made of what all members of a group have: here the pieces of the job's batch,
 * which replicas, threads and ranks share out. Where a code is one replica's share of a step, its
 * segment ends at such a row, the host makes the value from everybody's operands, and the next
 * segment finds it like an input (lower/meetings.c, parallel/meeting.c). Elsewhere the batch is all
 * there is, and the launches here make it.
 *
 * A meeting has no gradient: rules of rows that read one put the meetings of the gradient where
 * they belong, and cannot be differentiated again. */

enum { DTI_ALL_SPATIAL = 2 }; /* attr.i, as of the norm that they are for */

static bool dti_meet_shape(dti_build *b) {
    b->out.samples = false;
    return dti_build_f32(b) && dti_shape_same(b);
}

static dti_meet dti_meet_of(const dti_node *n) {
    return (dti_meet){.kind = (dti_meet_kind)dti_op_info_of(n->op)->selector,
                      .spatial = (uint32_t)n->attr.i[DTI_ALL_SPATIAL]};
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
    dti_view one = {.value = dti_emit_scratch(e, DT_F32, 1), .dtype = DT_F32};
    for (int axis = 0; axis < DTI_AXES; axis++)
        one.dim[axis] = 1;
    dti_emit_fill(e, &one, DTI_COPY_FILL_F32, (float)count);
    for (int64_t row = 0; row < x.dim[DTI_AXES - 2]; row++) {
        const dti_view from = dti_meet_row(&x, row), to = dti_meet_row(&e->out, row);
        dti_emit_map2_views(e, DTI_K_MAP2, DTI_B_DIV, &from, &one, &to, none);
    }
}

/* ---- a squad: members that share out one model (Shoeybi et al., "Megatron-LM", 2019). Their sum
 * is everybody's, so its gradient is what each has anyhow; what all read alike gets a part of its
 * gradient from each. */

static bool dti_parted_sum_shape(dti_build *b) {
    return dti_build_f32(b) && dti_shape_same(b);
}

static bool dti_parted_copy_shape(dti_build *b) {
    b->out.dtype = b->in[0]->dtype;
    return dti_shape_same(b);
}

static dti_meet dti_parted_sum_of(const dti_node *n) {
    (void)n;
    return (dti_meet){.kind = DTI_MEET_SUM};
}

static dt_tensor dti_parted_summed(dt_tensor x) {
    return dti_append1(DTI_OP_SQUAD_SUM, x, NULL);
}

static dt_tensor dti_parted_copied(dt_tensor x) {
    return dti_append1(DTI_OP_SQUAD_COPY, x, NULL);
}

static void dti_parted_sum_grad(dti_grad *g) {
    g->dx[0] = g->dy;
}

static void dti_parted_copy_grad(dti_grad *g) {
    g->dx[0] = dti_parted_summed(g->dy);
}

static void dti_parted_sum_emit(dti_emit *e) { /* of one member */
    const dti_view x = dti_emit_in(e, 0);
    dti_emit_copy(e, &x, &e->out, DTI_COPY_WORD);
}

static void dti_parted_copy_emit(dti_emit *e) {
    e->out = dti_emit_in(e, 0);
}

/* ---- Reference */
#ifdef DT_REFERENCE

static void dti_meet_ref(const dti_ref *r) {
    const double count = (double)r->batch * r->node->attr.i[DTI_ALL_SPATIAL];
    const bool mean = dti_op_info_of(r->node->op)->selector == DTI_MEET_MEAN;
    for (int64_t i = 0; i < r->out.elements; i++)
        r->out.data[i] = r->in[0].data[i] / (mean ? count : 1.0);
}

static void dti_parted_sum_ref(const dti_ref *r) {
    memcpy(r->out.data, r->in[0].data, (size_t)r->out.elements * sizeof *r->out.data);
}

static void dti_parted_copy_ref(const dti_ref *r) {
    dti_parted_sum_ref(r);
}

#endif

/* ---- Rows of the tables */

DTI_FAMILY(parted_sum, .shape = dti_parted_sum_shape, .grad = dti_parted_sum_grad,
           .meet = dti_parted_sum_of);

DTI_FAMILY(parted_copy, .shape = dti_parted_copy_shape, .grad = dti_parted_copy_grad, .view = true);

DTI_FAMILY(meet, .shape = dti_meet_shape, .meet = dti_meet_of);
