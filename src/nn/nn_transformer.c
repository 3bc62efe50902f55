/* Feed-forward parts of transformers: a gate times its value (Shazeer, "GLU variants improve
 * transformer", 2020), under Llama's names. */

/* "layer.part" */
static dt_tensor dti_nn_linear_part(dt_tensor x, const char *layer, const char *part, int64_t out,
                                    const dt_linear_desc *desc) {
    char text[DTI_NN_NAME_SIZE];
    return dt_nn_linear_with(x, dti_nn_name(x.graph, text, layer, part), out, desc);
}

static dt_tensor dti_nn_gated(dt_tensor x, const char *op, const char *name, int64_t hidden,
                              bool gelu) {
    static const dt_linear_desc bare = {.no_bias = true, .tensor = DT_TENSOR_COLUMN};
    static const dt_linear_desc back = {.no_bias = true, .tensor = DT_TENSOR_ROW};
    dti_nn nn;
    if (!dti_nn_begin(&nn, x, op, name))
        return dti_nil(x.graph);
    const dt_shape s = dti_tensor_shape(x);
    if (hidden < 1 || s.rank < 1)
        return dti_graph_fail(x.graph,
                              "%s '%s': hidden size %lld for x %s; x needs a last dimension, and "
                              "the size must be at least 1",
                              op, name, (long long)hidden, dti_shape_of(x).text);
    dt_tensor h = dti_nn_linear_part(x, name, "gate_proj", hidden, &bare);
    h = gelu ? dt_gelu(h) : dt_silu(h);
    h = dt_mul(h, dti_nn_linear_part(x, name, "up_proj", hidden, &bare));
    return dti_nn_end(&nn, dti_nn_linear_part(h, name, "down_proj", s.dim[s.rank - 1], &back));
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
                       "lora '%s': rank %lld and alpha %g for x %s and y %s; the rank must be at "
                       "least 1, alpha finite, and x and y differ only in their last dimension",
                       name, (long long)rank, (double)alpha, dti_tensor_print(x).text,
                       dti_tensor_print(y).text);
    if (x.graph->error[0])
        return dti_nn_end(&nn, dti_nil(x.graph));
    dt_tensor h = dti_nn_linear_part(x, name, "lora_A", rank, &down);
    h = dti_nn_linear_part(h, name, "lora_B", t.dim[t.rank - 1], &up);
    return dti_nn_end(&nn, dt_add(y, dt_affine(h, alpha / (float)rank, 0.0f)));
}
