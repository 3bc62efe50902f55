/* Ops that move no data: the same value seen with other dimensions, strides and offset. A reshape
 * copies if axes that it merges are not contiguous. attr.dim, i[0] = the new shape and rank
 * (reshape, expand), i[1] = sample axis (expand); the permutation (permute); axis i[0], start
 * dim[0] and length dim[1] (slice). */

enum { DTI_VIEW_RESHAPE, DTI_VIEW_PERMUTE, DTI_VIEW_SLICE, DTI_VIEW_EXPAND, DTI_VIEW_DETACH };

static dt_shape dti_attr_shape(const dti_attr *attr) {
    dt_shape s = {.rank = attr->i[0]};
    memcpy(s.dim, attr->dim, sizeof s.dim);
    return s;
}

static dti_attr dti_shape_attr(dt_shape s) {
    dti_attr attr = {.i = {s.rank}};
    dti_shape_store(attr.dim, s);
    return attr;
}

static bool dti_reshape_shape(dti_build *b) {
    dt_shape s = dti_attr_shape(&b->out.attr);
    int unknown = -1;
    int64_t known = 1, all = dti_shape_elements(b->in[0]->shape);
    for (int i = 0; i < s.rank; i++) {
        if (s.dim[i] == -1 && unknown < 0)
            unknown = i;
        else if (s.dim[i] < 0)
            return dti_build_fail(
                b, "dimension %d of the new shape is %lld; it must be at least 0, or -1 once", i,
                (long long)s.dim[i]);
        else if (s.dim[i] && known > INT32_MAX / s.dim[i])
            return dti_build_fail(b, "the new shape has more than 2^31 elements");
        else
            known *= s.dim[i];
    }
    if (unknown >= 0 && known == 0)
        return dti_build_fail(b, "-1 is ambiguous beside a dimension of 0: give the size");
    if (unknown >= 0)
        s.dim[unknown] = all / known;
    if ((unknown >= 0 ? known * s.dim[unknown] : known) != all) {
        return dti_build_fail(b, "%lld elements cannot have the shape %s", (long long)all,
                              dti_shape_print(s, b->out.samples).text);
    }
    b->out.shape = s;
    return true;
}

static bool dti_permute_shape(dti_build *b) {
    dt_shape axes = dti_attr_shape(&b->out.attr), s = b->in[0]->shape;
    unsigned seen = 0;
    for (int i = 0; i < axes.rank && axes.rank == s.rank; i++) {
        if (axes.dim[i] < 0 || axes.dim[i] >= s.rank)
            break;
        seen |= 1u << axes.dim[i];
        b->out.shape.dim[i] = s.dim[axes.dim[i]];
    }
    if (axes.rank != s.rank || seen != (1u << s.rank) - 1u) {
        return dti_build_fail(b, "the axes %s do not name each of the %d dimensions once",
                              dti_shape_print(axes, false).text, (int)s.rank);
    }
    b->out.shape.rank = s.rank;
    return true;
}

static bool dti_slice_shape(dti_build *b) {
    dt_shape s = b->in[0]->shape;
    int axis = b->out.attr.i[0];
    int64_t start = b->out.attr.dim[0], length = b->out.attr.dim[1];
    if (axis < 0 || axis >= s.rank)
        return dti_build_fail(b, "%s", dti_axis_text(axis, s.rank).text);
    if (start < 0 || length < 0 || start > s.dim[axis] || length > s.dim[axis] - start) {
        return dti_build_fail(b, "%lld elements from element %lld on exceed axis %d of size %lld",
                              (long long)length, (long long)start, axis, (long long)s.dim[axis]);
    }
    s.dim[axis] = length;
    b->out.shape = s;
    return true;
}

static bool dti_expand_shape(dti_build *b) {
    dt_shape s = dti_attr_shape(&b->out.attr), both;
    if (!dti_shape_broadcast(b->in[0]->shape, s, &both) || !dti_shape_equal(both, s)) {
        return dti_build_fail(b, "does not expand to %s", dti_shape_print(s, b->out.samples).text);
    }
    b->out.shape = s;
    b->out.samples = b->out.samples || b->out.attr.i[1];
    return true;
}

static bool dti_view_shape(dti_build *b) {
    b->out.dtype = b->in[0]->dtype;
    switch (dti_op_info_of(b->out.op)->selector) {
    case DTI_VIEW_RESHAPE: return dti_reshape_shape(b);
    case DTI_VIEW_PERMUTE: return dti_permute_shape(b);
    case DTI_VIEW_SLICE: return dti_slice_shape(b);
    case DTI_VIEW_EXPAND: return dti_expand_shape(b);
    default: b->out.shape = b->in[0]->shape; return true;
    }
}

static bool dti_view_flat(const dti_node *n) {
    return n->op == DTI_OP_DETACH;
}

static void dti_element_expand(dti_element *e, dt_shape s, dt_shape in) {
    int64_t stride[DT_MAX_DIMS] = {0}, all = 1;
    for (int i = 1; i <= in.rank; i++) {
        stride[s.rank - i] = in.dim[in.rank - i] == 1 ? 0 : all;
        all *= in.dim[in.rank - i];
    }
    dti_element_stride(e, s, stride);
}

static void dti_element_permute(dti_element *e, const dti_node *n, dt_shape in) {
    int64_t stride[DT_MAX_DIMS] = {0}, dense[DT_MAX_DIMS] = {0}, all = 1;
    for (int i = in.rank - 1; i >= 0; i--) {
        dense[i] = all;
        all *= in.dim[i];
    }
    for (int i = 0; i < in.rank; i++)
        stride[i] = dense[n->attr.dim[i]];
    dti_element_stride(e, n->shape, stride);
}

static bool dti_view_source(const dt_graph *g, const dti_node *n, dti_element *e) {
    const dt_shape in = g->nodes[e->node].shape;
    const int axis = n->attr.i[0];
    switch (dti_op_info_of(n->op)->selector) {
    case DTI_VIEW_EXPAND: dti_element_expand(e, n->shape, in); return true;
    case DTI_VIEW_PERMUTE: dti_element_permute(e, n, in); return true;
    case DTI_VIEW_SLICE: return dti_element_shift(e, n->shape, axis, n->attr.dim[0], in.dim[axis]);
    default: return true;
    }
}

static bool dti_view_packs(const dti_node *n) {
    return n->op == DTI_OP_RESHAPE;
}

static void dti_view_grad(dti_grad *g) {
    dt_shape s = dti_node_of(g->in[0])->shape;
    dti_attr attr = dti_shape_attr(s);
    switch (dti_op_info_of(g->node.op)->selector) {
    case DTI_VIEW_RESHAPE: g->dx[0] = dt_reshape(g->dy, s); return;
    case DTI_VIEW_PERMUTE:
        for (int i = 0; i < s.rank; i++)
            attr.dim[g->node.attr.dim[i]] = i;
        g->dx[0] = dti_append1(DTI_OP_PERMUTE, g->dy, &attr);
        return;
    case DTI_VIEW_SLICE:
        attr.i[1] = g->node.attr.i[0];
        attr.i[2] = (int32_t)g->node.attr.dim[0];
        g->dx[0] = dti_append1(DTI_OP_PAD, g->dy, &attr);
        return;
    case DTI_VIEW_EXPAND: g->dx[0] = dti_sum_to(g->dy, g->in[0]); return;
    default: return;
    }
}

/* Gives y's axes, except the sample axis, strides over x's elements. False if axes of x that are
 * merged are not contiguous. */
static bool dti_view_regroup(const dti_view *x, dti_view *y) {
    int i = DTI_AXES, j = DTI_AXES;
    if (dti_view_elements(x) == 0)
        return false;
    while (i > 1 || j > 1) {
        const int x_end = i, y_end = j;
        int64_t a = i > 1 ? x->dim[--i] : 1, b = j > 1 ? y->dim[--j] : 1;
        while (a != b) {
            if (a < b)
                a *= x->dim[--i];
            else
                b *= y->dim[--j];
        }
        int64_t stride = dti_view_as_one(x, i, x_end);
        if (stride < 0)
            return false;
        for (int axis = y_end - 1; axis >= j; axis--) {
            y->stride[axis] = y->dim[axis] == 1 ? 0 : stride;
            stride *= y->dim[axis];
        }
    }
    return true;
}

/* The output's dimensions in six axes; strides are still those of a dense tensor. */
static void dti_view_emit(dti_emit *e) {
    dti_view x = dti_emit_in(e, 0);
    const dti_node *in = &e->graph->nodes[dti_input_id(e->graph, e->node, 0)];
    const dti_attr *attr = &e->node->attr;
    int first = DTI_AXES - in->shape.rank;
    e->out.dtype = x.dtype;
    switch (dti_op_info_of(e->node->op)->selector) {
    case DTI_VIEW_RESHAPE:
        if (dti_view_regroup(&x, &e->out))
            e->out.stride[0] = x.stride[0];
        else
            e->out = dti_view_packed(0, &e->out, 0), x = dti_emit_dense_in(e, 0);
        e->out.value = x.value;
        e->out.offset = x.offset;
        return;
    case DTI_VIEW_PERMUTE:
        for (int i = 0; i < in->shape.rank; i++) {
            e->out.stride[first + i] = x.stride[first + attr->dim[i]];
        }
        e->out.stride[0] = x.stride[0];
        e->out.value = x.value;
        e->out.offset = x.offset;
        return;
    case DTI_VIEW_SLICE: {
        int axis = first + attr->i[0];
        x.offset += attr->dim[0] * x.stride[axis];
        x.dim[axis] = attr->dim[1];
        if (attr->dim[1] == 1)
            x.stride[axis] = 0;
        e->out = x;
        return;
    }
    case DTI_VIEW_EXPAND: e->out = dti_view_broadcast(&x, e->out.dim); return;
    default: e->out = x; return;
    }
}

static bool dti_view_rank_fits(dt_tensor x, const char *op, dt_shape shape) {
    if (dti_is_nil(x) || (shape.rank >= 0 && shape.rank <= DT_MAX_DIMS))
        return true;
    return dti_graph_refuse(x.graph, "%s: rank is %d; it must be from 0 to %d", op, (int)shape.rank,
                            DT_MAX_DIMS);
}

DT_API dt_tensor dt_reshape(dt_tensor x, dt_shape shape) {
    if (!dti_view_rank_fits(x, "reshape", shape))
        return dti_nil(x.graph);
    dti_attr attr = dti_shape_attr(shape);
    return dti_append1(DTI_OP_RESHAPE, x, &attr);
}

DT_API dt_tensor dt_flatten(dt_tensor x) {
    return dt_reshape(x, (dt_shape){.rank = 1, .dim = {-1}});
}

DT_API dt_tensor dt_permute(dt_tensor x, dt_shape axes) {
    dti_attr attr = dti_shape_attr(axes);
    return dti_append1(DTI_OP_PERMUTE, x, &attr);
}

static int dti_axis_of(dt_tensor x, int axis) {
    return axis < 0 && !dti_is_nil(x) ? axis + dti_node_of(x)->shape.rank : axis;
}

static dt_tensor dti_swap_last(dt_tensor x, int axis) {
    const dt_shape s = dti_tensor_shape(x);
    if (s.rank < 1)
        return x;
    dt_shape axes = {.rank = s.rank};
    for (int i = 0; i < s.rank; i++)
        axes.dim[i] = i;
    axes.dim[axis] = s.rank - 1;
    axes.dim[s.rank - 1] = axis;
    return axis == s.rank - 1 ? x : dt_permute(x, axes);
}

DT_API dt_tensor dt_slice(dt_tensor x, int axis, int64_t start, int64_t length) {
    return dti_append1(DTI_OP_SLICE, x,
                       &(dti_attr){.i = {dti_axis_of(x, axis)}, .dim = {start, length}});
}

static dt_tensor dti_expand_to(dt_tensor x, dt_shape shape, bool samples) {
    if (dti_is_nil(x))
        return x;
    const dti_node *n = dti_node_of(x);
    if (dti_shape_equal(n->shape, shape) && n->samples == samples)
        return x;
    dti_attr attr = dti_shape_attr(shape);
    attr.i[1] = samples;
    return dti_append1(DTI_OP_EXPAND, x, &attr);
}

DT_API dt_tensor dt_expand(dt_tensor x, dt_shape shape) {
    if (!dti_view_rank_fits(x, "expand", shape))
        return dti_nil(x.graph);
    return dti_is_nil(x) ? dti_nil_of(x, "expand") : dti_expand_to(x, shape, false);
}

static dt_tensor dti_expand_like(dt_tensor x, dt_tensor like) {
    if (dti_is_nil(like))
        return like;
    const dti_node *n = dti_node_of(like);
    return dti_expand_to(x, n->shape, n->samples);
}

DT_API dt_tensor dt_detach(dt_tensor x) {
    return dti_append1(DTI_OP_DETACH, x, NULL);
}

/* ---- parts of tensors */

/* The axis of the new shape that the tensor ranks split. It begins where the old axis does, and
 * divides by their number. */
static bool dti_reshape_part(dti_parting *s) {
    const dt_shape x = dti_parted_input(s, 0)->shape, y = s->n->shape;
    int64_t before = 1, outer = 1;
    for (int i = 0; i < s->in[0].axis; i++)
        before *= x.dim[i];
    if (s->in[0].group[1]) /* parts of several runs stay apart */
        return false;
    for (int i = 0; i < y.rank; outer *= y.dim[i++]) {
        if (outer != before || y.dim[i] == 1 || y.dim[i] % s->tp_ranks)
            continue;
        s->out = dti_parted_of(i, y.dim[i]);
        s->out.rows = s->in[0].rows;
        s->attr = dti_shape_attr(y);
        s->attr.dim[i] /= s->tp_ranks;
        return true;
    }
    return false;
}

static bool dti_permute_part(dti_parting *s) {
    s->out = s->in[0];
    for (int i = 0; i < s->n->shape.rank; i++)
        s->out.axis = s->n->attr.dim[i] == s->in[0].axis ? (int8_t)i : s->out.axis;
    return true;
}

/* Along the axis one group, or several, become a part of their own. */
static bool dti_slice_part(dti_parting *s) {
    int64_t start = s->n->attr.dim[0], length = s->n->attr.dim[1];
    s->out = s->in[0];
    if (s->n->attr.i[0] != s->in[0].axis)
        return true;
    s->attr.dim[0] = start / s->tp_ranks;
    s->attr.dim[1] = length / s->tp_ranks;
    int i = 0;
    for (; i < DTI_PARTED_GROUPS && start > 0; i++)
        start -= s->in[0].group[i];
    memset(s->out.group, 0, sizeof s->out.group);
    for (int k = 0; i < DTI_PARTED_GROUPS && length > 0; i++, k++) {
        s->out.group[k] = s->in[0].group[i];
        length -= s->in[0].group[i];
        if (!s->in[0].group[i])
            return false;
    }
    return start == 0 && length == 0;
}

static bool dti_expand_part(dti_parting *s) {
    const dt_shape x = dti_parted_input(s, 0)->shape;
    s->out = s->in[0];
    s->out.axis = (int8_t)(s->in[0].axis + s->n->shape.rank - x.rank);
    s->attr.dim[s->out.axis] /= s->tp_ranks;
    return x.dim[s->in[0].axis] == s->n->shape.dim[s->out.axis];
}

static bool dti_view_part(dti_parting *s) {
    switch (dti_op_info_of(s->n->op)->selector) {
    case DTI_VIEW_RESHAPE: return dti_reshape_part(s);
    case DTI_VIEW_PERMUTE: return dti_permute_part(s);
    case DTI_VIEW_SLICE: return dti_slice_part(s);
    case DTI_VIEW_EXPAND: return dti_expand_part(s);
    default: return dti_parted_same(s);
    }
}

/* ---- Rows of the tables */

DTI_FAMILY(view, .shape = dti_view_shape, .grad = dti_view_grad, .flat = dti_view_flat,
           .view = true, .packs = dti_view_packs, .source = dti_view_source, .part = dti_view_part);
