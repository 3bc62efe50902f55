/* Rows of the op table that only tests have, for what no row of the library needs yet. They are
 * tested as all rows are: against a reference, by finite differences, in parts of a batch. Included
 * by main.c twice: the rows before the library, their families after it. */
#ifndef OWN_ROWS_FAMILIES

#define DTI_OP_LIST_TESTS(X)                                                                       \
    X(TEST_MIX, test_mix, "7", ROWWISE, F32, test_mix, 0, "a b c d e f g, element by element")     \
    X(TEST_SPLIT, test_split, "1", ROWWISE, F32, test_split, 0, "(x^2, -x, x): three outputs")

#else

static bool own_row(int op) {
    return op == DTI_OP_TEST_MIX || op == DTI_OP_TEST_SPLIT;
}

/* Each gradient is the product of the others and dy. */
static void dti_test_mix_grad(dti_grad *g) {
    for (uint32_t i = 0; i < g->node.count; i++) {
        dt_tensor y = g->dy;
        for (uint32_t k = 0; g->wanted[i] && k < g->node.count; k++)
            y = k == i ? y : dt_mul(y, g->in[k]);
        if (g->wanted[i])
            g->dx[i] = y;
    }
}

static void dti_test_mix_emit(dti_emit *e) {
    dti_view y = dti_emit_in(e, 0);
    for (uint32_t k = 1; k < e->node->count; k++) {
        dti_view x = dti_emit_in(e, k);
        dti_emit_map2_views(e, DTI_K_MAP2, DTI_B_MUL, &y, &x, &e->out, (const float[2]){0, 0});
        y = e->out;
    }
}

static void ref_test_mix(const ref_call *r) {
    for (int64_t i = 0; i < r->out.elements; i++) {
        r->out.data[i] = 1;
        for (uint32_t k = 0; k < r->node->count; k++)
            r->out.data[i] *= r->in[k].data[i];
    }
}

/* The outputs have other shapes: [n], [1, n] and [n, 1]. */
static void dti_test_split_outputs(const dt_graph *g, const dti_node *n, dti_outputs *out) {
    const int64_t x = dti_shape_elements(g->nodes[dti_input_id(g, n, 0)].shape);
    *out = (dti_outputs){3, {{1, {x}}, {2, {1, x}}, {2, {x, 1}}}};
}

static bool dti_test_split_shape(dti_build *b) {
    b->out.shape = (dt_shape){1, {3 * dti_shape_elements(b->in[0]->shape)}};
    return true;
}

static void dti_test_split_grad(dti_grad *g) {
    const dt_shape s = dti_node_of(g->in[0])->shape;
    dt_tensor part[3], sum = {0};
    for (int k = 0; k < 3; k++) {
        if (dti_is_nil(g->dys[k]))
            continue;
        part[k] = dt_reshape(g->dys[k], s);
        part[k] = k == 0 ? dt_mul(part[k], dt_affine(g->in[0], 2, 0))
                         : dt_affine(part[k], k == 1 ? -1 : 1, 0);
        sum = dti_is_nil(sum) ? part[k] : dt_add(sum, part[k]);
    }
    g->dx[0] = sum;
}

static dti_view dti_test_split_output(const dti_emit *e, uint32_t k) {
    const dti_outputs o = dti_outputs_of(e->graph, e->node);
    dti_node output = *e->node;
    output.shape = o.shape[k];
    return dti_output_view(&e->out, &output, dti_output_start(&o, k));
}

static void dti_test_split_emit(dti_emit *e) {
    const uint32_t function[] = {DTI_U_SQUARE, DTI_U_NEG};
    dti_view x = dti_emit_dense_in(e, 0);
    for (uint32_t k = 0; k < 3; k++) {
        dti_view y = dti_test_split_output(e, k), in = x;
        memcpy(in.dim, y.dim, sizeof in.dim);
        memcpy(in.stride, y.stride, sizeof in.stride);
        in.stride[0] = x.stride[0];
        if (k < 2)
            dti_emit_map1(e, DTI_K_MAP1, function[k], &in, &y, (const float[2]){0, 0});
        else
            dti_emit_copy(e, &in, &y, DTI_COPY_WORD);
    }
}

static void ref_test_split(const ref_call *r) {
    const int64_t n = r->in[0].dim[0] ? r->in[0].elements / r->in[0].dim[0] : 0;
    for (int64_t i = 0; i < r->in[0].elements; i++) {
        const double x = r->in[0].data[i];
        double *y = r->out.data + i / n * 3 * n + i % n;
        y[0] = x * x, y[n] = -x, y[2 * n] = x;
    }
}

DTI_FAMILY(test_split, .shape = dti_test_split_shape, .outputs = dti_test_split_outputs,
           .grad = dti_test_split_grad);
DTI_FAMILY(test_mix, .shape = dti_shape_same, .grad = dti_test_mix_grad);

#endif
