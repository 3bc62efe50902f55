/* Where an element of a tensor comes from, through ops that move values and compute nothing. What
 * holds for an input's elements holds after such ops too. Elements are those of one sample, row
 * after row. */

/* The element `by` further along an axis, in a tensor whose axis has `size`. False: no such
 * element. */
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

static bool dti_element_back(const dt_graph *g, dti_element *e) {
    const dti_node *n = &g->nodes[e->node];
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    if (!n->count || !family->source)
        return false;
    dti_element in = {dti_input_id(g, n, 0), e->at};
    const bool moved = family->source(g, n, &in);
    if (moved)
        *e = in;
    return moved;
}
