/* Rules that several families share for tensors that are split over tensor ranks (dti_parting). */

static bool dti_parted_equal(const dti_parted *a, const dti_parted *b) {
    return a->axis == b->axis && a->rows == b->rows && !memcmp(a->group, b->group, sizeof a->group);
}

/* ---- marks: of a parameter's attr.dim the second to the last */

static void dti_param_part(dt_tensor w, int axis, int64_t unit, int64_t first, int64_t rest) {
    if (dti_is_nil(w))
        return;
    int64_t *dim = dti_node_of(w)->attr.dim;
    dim[1] = axis + 1, dim[2] = unit, dim[3] = first, dim[4] = rest;
}

static dti_parted dti_param_parted(const dti_node *n, int64_t *unit) {
    const int64_t *dim = n->attr.dim;
    dti_parted p = {.axis = (int8_t)(dim[1] - 1), .group = {dim[3], dim[4], dim[4]}};
    *unit = dim[2];
    return p;
}

DTI_PUBLIC_GET(dt_tensor, dt_tensor_parallel, (dt_tensor w, int axis), w.graph, DTI_OF(dt_graph),
               (w, axis)) {
    DTI_NEED_TENSOR(w, "dt_tensor_parallel");
    const dti_node *n = dti_node_of(w);
    const int at = axis < 0 ? axis + n->shape.rank : axis;
    if (n->op != DTI_OP_PARAM || n->buffer || at < 0 || at >= n->shape.rank)
        return dti_graph_fail(
            w.graph, "dt_tensor_parallel: axis is %d of %s; it must be an axis of a parameter",
            axis, dti_tensor_print(w).text);
    dti_param_part(w, at, 1, n->shape.dim[at], 0);
    w.graph->changes++;
    return w;
}

/* ---- rules */

static const dti_node *dti_parted_input(const dti_parting *s, uint32_t k) {
    return &s->g->nodes[dti_input_id(s->g, s->n, k)];
}

static dti_parted dti_parted_of(int axis, int64_t size) {
    return (dti_parted){.axis = (int8_t)axis, .group = {size}};
}

static bool dti_parted_same(dti_parting *s) {
    s->out = s->in[0];
    return true;
}

/* Runs of rows with no axis before them are contiguous in a sample. */
static bool dti_parted_rows_alone(dti_parting *s) {
    s->out = s->in[0];
    return s->in[0].rows && s->in[0].axis == 0;
}

static bool dti_parted_broadcast(dti_parting *s) {
    s->out = dti_parted_whole;
    for (uint32_t k = 0; k < s->n->count; k++) {
        dti_parted in = s->in[k];
        if (in.axis < 0)
            continue;
        in.axis = (int8_t)(in.axis + s->n->shape.rank - dti_parted_input(s, k)->shape.rank);
        if (s->out.axis >= 0 && !dti_parted_equal(&in, &s->out))
            return false;
        s->out = in;
    }
    for (uint32_t k = 0; k < s->n->count; k++) {
        const dt_shape x = dti_parted_input(s, k)->shape;
        const int axis = s->out.axis - (s->n->shape.rank - x.rank);
        if (s->in[k].axis >= 0 || axis < 0 || x.dim[axis] == 1)
            continue;
        if (!s->out.rows || dti_parted_input(s, k)->dtype != DT_F32)
            return false;
        s->own |= 1u << k;
    }
    return true;
}
