/* Rows with several outputs (statistics, states, largest values with their places). Such a row has
 * one value: for each sample, its outputs follow each other. output_of is a view of one of them.
 * dti_append_outputs makes both, so that a family's user sees tensors. A gradient rule finds each
 * output's gradient in g->dys; a row that is taken apart gets them packed. attr.i[0] = which,
 * dim[0] = where it starts. */

static dti_outputs dti_outputs_of(const dt_graph *g, const dti_node *n) {
    dti_outputs o = {0};
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    if (family->outputs)
        family->outputs(g, n, &o);
    return o;
}

static int64_t dti_output_start(const dti_outputs *o, uint32_t k) {
    int64_t start = 0;
    for (uint32_t i = 0; i < k; i++)
        start += dti_shape_elements(o->shape[i]);
    return start;
}

static bool dti_output_of_shape(dti_build *b) {
    const dti_outputs o = dti_outputs_of(b->graph, b->in[0]);
    const uint32_t k = (uint32_t)b->out.attr.i[0];
    if (k >= o.count)
        return dti_build_fail(b, "there is no output %u", k);
    b->out.shape = o.shape[k];
    b->out.attr.dim[0] = dti_output_start(&o, k);
    b->out.dtype = b->in[0]->dtype;
    return true;
}

static bool dti_append_outputs(dt_graph *g, dti_op op, const dt_tensor *in, uint32_t count,
                               const dti_attr *attr, dt_tensor *packed, dt_tensor *out) {
    *packed = dti_append(g, op, in, count, attr);
    if (dti_is_nil(*packed))
        return false;
    const dti_outputs o = dti_outputs_of(g, dti_node_of(*packed));
    bool good = true;
    for (uint32_t k = 0; k < o.count; k++) {
        out[k] = dti_append1(DTI_OP_OUTPUT_OF, *packed, &(dti_attr){.i = {(int32_t)k}});
        good = good && !dti_is_nil(out[k]);
    }
    return good;
}

/* ---- gradients. The views of a row's outputs follow it directly, so it finds their gradients.
 * Where a pass over the graph has separated them, the gradients are added up in the packed
 * value. */

static bool dti_is_output(const dt_graph *g, uint32_t packed, uint32_t k) {
    const uint32_t id = packed + 1 + k;
    return id < g->count && g->nodes[id].op == DTI_OP_OUTPUT_OF &&
           g->nodes[id].attr.i[0] == (int32_t)k && dti_input_id(g, &g->nodes[id], 0) == packed;
}

static dt_tensor dti_grad_packed(dti_grad *g) {
    const dti_outputs o = dti_outputs_of(g->graph, &g->node);
    dt_tensor flat[DTI_OUTPUTS_MAX];
    for (uint32_t k = 0; k < o.count; k++) {
        const dt_shape line = {1, {dti_shape_elements(o.shape[k])}};
        flat[k] =
            dti_is_nil(g->dys[k]) ? dt_fill(g->graph, line, 0.0f) : dt_reshape(g->dys[k], line);
    }
    dt_tensor all = dt_reshape(dt_concat(flat, (int)o.count, 0), g->node.shape);
    return dti_is_nil(g->dy) ? all : dt_add(g->dy, all);
}

/* For a rule of its own: the gradient of the packed value belongs to its outputs too. */
static void dti_grad_unpacked(dti_grad *g) {
    const dti_outputs o = dti_outputs_of(g->graph, &g->node);
    for (uint32_t k = 0; k < o.count && !dti_is_nil(g->dy); k++) {
        const int64_t start = dti_output_start(&o, k), n = dti_shape_elements(o.shape[k]);
        dt_tensor line = dt_reshape(g->dy, (dt_shape){1, {dti_shape_elements(g->node.shape)}});
        dt_tensor part = dt_reshape(dt_slice(line, 0, start, n), o.shape[k]);
        g->dys[k] = dti_is_nil(g->dys[k]) ? part : dt_add(g->dys[k], part);
    }
}

static void dti_grad_outputs(dti_grad *g) {
    const dti_op_family *family = dti_op_info_of(g->node.op)->family;
    if (family->outputs && family->grad)
        dti_grad_unpacked(g);
    else if (family->outputs)
        g->dy = dti_grad_packed(g);
}

static void dti_output_of_grad(dti_grad *g) {
    const dti_node *packed = dti_node_of(g->in[0]);
    const dt_shape own = packed->shape, line = {1, {dti_shape_elements(own)}};
    if (dti_is_output(g->graph, g->in[0].id, (uint32_t)g->node.attr.i[0]) &&
        g->y.id == g->in[0].id + 1 + (uint32_t)g->node.attr.i[0])
        return; /* the row itself looks */
    dti_attr attr = dti_shape_attr(line);
    attr.i[2] = (int32_t)g->node.attr.dim[0];
    dt_tensor flat = dt_reshape(g->dy, (dt_shape){1, {dti_shape_elements(g->node.shape)}});
    g->dx[0] = dt_reshape(dti_append1(DTI_OP_PAD, flat, &attr), own);
}

/* ---- launches */

static dti_view dti_output_view(const dti_view *packed, const dti_node *output, int64_t start) {
    dti_view out = dti_view_dense(packed->value, output, packed->dim[0]);
    out.offset = packed->offset + start;
    out.stride[0] = output->samples ? packed->stride[0] : 0;
    return out;
}

/* Outputs that lie apart are rows along axis 4. */
static void dti_output_of_emit(dti_emit *e) {
    const dti_view in = dti_emit_in(e, 0);
    const dti_node *n = &e->graph->nodes[dti_input_id(e->graph, e->node, 0)];
    if (dti_op_info_of(n->op)->family->apart) {
        e->out = dti_output_view(&in, e->node, e->node->attr.i[0] * in.stride[DTI_AXES - 2]);
        return;
    }
    const dti_view packed = dti_emit_dense_in(e, 0);
    e->out = dti_output_view(&packed, e->node, e->node->attr.dim[0]);
}

static bool dti_outputs_apart(dti_emit *e, const uint32_t *places, dti_view *out) {
    const dti_op_family *family = dti_op_info_of(e->node->op)->family;
    const dti_view a = {.value = places[0]}, b = {.value = places[1]};
    uint32_t value, at[2];
    if (!family->apart || !places[0] || !places[1] ||
        !dti_emit_span(e, &a, &b, &value, &at[0], &at[1]))
        return false;
    out->value = value;
    out->offset = at[0];
    out->stride[DTI_AXES - 2] = (int64_t)at[1] - at[0];
    return true;
}

static bool dti_output_of_source(const dt_graph *g, const dti_node *n, dti_element *e) {
    e->at += n->attr.dim[0];
    return true;
}

static bool dti_output_of_packs(const dti_node *n) {
    return true;
}

/* ---- Rows of the tables */

DTI_FAMILY(output_of, .shape = dti_output_of_shape, .grad = dti_output_of_grad, .view = true,
           .packs = dti_output_of_packs, .source = dti_output_of_source);
