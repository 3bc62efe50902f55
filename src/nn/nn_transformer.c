/* Feed-forward parts of transformers: a gate times what passes it (Shazeer, "GLU variants improve
 * transformer", 2020), under Llama's names. */

static dt_tensor dti_nn_gated(dt_tensor x, const char *op, const char *name, int64_t hidden,
                              bool gelu) {
    static const dt_linear_desc bare = {.no_bias = true, .tensor = DT_TENSOR_COLUMN};
    static const dt_linear_desc back = {.no_bias = true, .tensor = DT_TENSOR_ROW};
    char text[3][DTI_NN_NAME_SIZE];
    dti_nn nn;
    if (!dti_nn_begin(&nn, x, op, name))
        return dti_nil(x.graph);
    const dt_shape s = dti_tensor_shape(x);
    if (hidden < 1 || s.rank < 1)
        dti_graph_fail(x.graph,
                       "%s '%s': hidden size %lld for x %s; x needs a last dimension, and "
                       "the size must be at least 1",
                       op, name, (long long)hidden, dti_shape_of(x).text);
    const char *g = dti_nn_name(x.graph, text[0], name, "gate_proj");
    const char *u = dti_nn_name(x.graph, text[1], name, "up_proj");
    const char *d = dti_nn_name(x.graph, text[2], name, "down_proj");
    if (x.graph->error[0])
        return dti_nn_end(&nn, dti_nil(x.graph));
    dt_tensor h = dt_nn_linear_with(x, g, hidden, &bare);
    h = gelu ? dt_gelu(h) : dt_silu(h);
    dt_tensor up = dt_nn_linear_with(x, u, hidden, &bare);
    return dti_nn_end(&nn, dt_nn_linear_with(dt_mul(h, up), d, s.dim[s.rank - 1], &back));
}

DT_API dt_tensor dt_nn_swiglu(dt_tensor x, const char *name, int64_t hidden) {
    return dti_nn_gated(x, "swiglu", name, hidden, false);
}

DT_API dt_tensor dt_nn_geglu(dt_tensor x, const char *name, int64_t hidden) {
    return dti_nn_gated(x, "geglu", name, hidden, true);
}

DT_API dt_tensor dt_nn_lora(dt_tensor y, dt_tensor x, const char *name, int64_t rank, float alpha) {
    static const dt_linear_desc down = {.no_bias = true};
    static const dt_linear_desc up = {.no_bias = true, .weight = {DT_INIT_CONSTANT, 0.0f, 0.0f}};
    char text[2][DTI_NN_NAME_SIZE];
    dti_nn nn;
    DTI_NEED_TENSOR(y, "lora");
    if (!dti_nn_begin(&nn, x, "lora", name))
        return dti_nil(y.graph);
    const dt_shape s = dti_tensor_shape(x), t = dti_tensor_shape(y);
    bool fits = s.rank > 0 && s.rank == t.rank && rank > 0 && dti_fits_f32((double)alpha);
    for (int i = 0; i + 1 < s.rank && fits; i++)
        fits = s.dim[i] == t.dim[i];
    if (!fits)
        dti_graph_fail(x.graph,
                       "lora '%s': rank %lld and alpha %g for x %s and y %s: the rank must be at "
                       "least 1, alpha finite, and x and y differ only in their last dimension",
                       name, (long long)rank, (double)alpha, dti_tensor_print(x).text,
                       dti_tensor_print(y).text);
    const char *a = dti_nn_name(x.graph, text[0], name, "lora_A");
    const char *b = dti_nn_name(x.graph, text[1], name, "lora_B");
    if (x.graph->error[0])
        return dti_nn_end(&nn, dti_nil(x.graph));
    dt_tensor h = dt_nn_linear_with(x, a, rank, &down);
    h = dt_nn_linear_with(h, b, t.dim[t.rank - 1], &up);
    return dti_nn_end(&nn, dt_add(y, dt_affine(h, alpha / (float)rank, 0.0f)));
}
