/* Where an element of a tensor comes from, through ops that move values and compute none: what is
 * promised of an input's elements holds behind them. Elements are those of one sample, row
 * after row. */

typedef struct dti_element {
    uint32_t node;
    int64_t at;
} dti_element;

/* The element at `by` more along an axis, in a tensor whose axis has `size`. False: none is. */
static bool dti_element_shift(dti_element *e, dt_shape s, int axis, int64_t by, int64_t size) {
    int64_t inner = 1;
    for (int i = axis + 1; i < s.rank; i++)
        inner *= s.dim[i];
    const int64_t line = e->at / inner, at = line % s.dim[axis] + by;
    e->at = (line / s.dim[axis] * size + at) * inner + e->at % inner;
    return at >= 0 && at < size;
}

/* Along axis i of the result (s) it lies `stride[i]` elements of the input apart. */
static void dti_element_stride(dti_element *e, dt_shape s, const int64_t *stride) {
    int64_t rest = e->at;
    e->at = 0;
    for (int i = s.rank - 1; i >= 0; i--) {
        e->at += rest % s.dim[i] * stride[i];
        rest /= s.dim[i];
    }
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

/* Which of a concat's inputs it is of. */
static uint32_t dti_element_concat(dti_element *e, const dt_graph *g, const dti_node *n) {
    const int axis = n->attr.i[0];
    int64_t before = 0;
    for (uint32_t k = 0; k < n->count; k++) {
        const int64_t size = g->nodes[dti_input_id(g, n, k)].shape.dim[axis];
        dti_element in = *e;
        if (dti_element_shift(&in, n->shape, axis, -before, size)) {
            *e = in;
            return k;
        }
        before += size;
    }
    return 0;
}

/* One op back. False: the op computes, or it is a leaf. */
static bool dti_element_back(const dt_graph *g, dti_element *e) {
    const dti_node *n = &g->nodes[e->node];
    if (!n->count)
        return false;
    uint32_t k = 0;
    const dt_shape in = g->nodes[dti_input_id(g, n, 0)].shape;
    const int slice = n->attr.i[0], pad = n->attr.i[1];
    switch (n->op) {
    case DTI_OP_RESHAPE:
    case DTI_OP_DETACH:
    case DTI_OP_COPY: break;
    case DTI_OP_OUTPUT_OF: e->at += n->attr.dim[0]; break;
    case DTI_OP_EXPAND: dti_element_expand(e, n->shape, in); break;
    case DTI_OP_PERMUTE: dti_element_permute(e, n, in); break;
    case DTI_OP_CONCAT: k = dti_element_concat(e, g, n); break;
    case DTI_OP_SLICE: dti_element_shift(e, n->shape, slice, n->attr.dim[0], in.dim[slice]); break;
    case DTI_OP_PAD:
        if (!dti_element_shift(e, n->shape, pad, -(int64_t)n->attr.i[2], in.dim[pad]))
            return false;
        break;
    default: return false;
    }
    e->node = dti_input_id(g, n, k);
    return true;
}
