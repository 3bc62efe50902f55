/* Rules that several families have for tensors that a squad shares out (dti_parting). */

static const dti_parted dti_parted_whole = {.axis = -1};

static bool dti_parted_equal(const dti_parted *a, const dti_parted *b) {
    return a->axis == b->axis && !memcmp(a->group, b->group, sizeof a->group);
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

/* ---- rules */

static const dti_node *dti_parted_input(const dti_parting *s, uint32_t k) {
    return &s->g->nodes[dti_input_id(s->g, s->n, k)];
}

/* All of an axis as one group. */
static dti_parted dti_parted_of(int axis, int64_t size) {
    return (dti_parted){.axis = (int8_t)axis, .group = {size}};
}

static bool dti_parted_same(dti_parting *s) {
    s->out = s->in[0];
    return true;
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
        if (s->in[k].axis < 0 && axis >= 0 && x.dim[axis] != 1)
            return false;
    }
    return true;
}
