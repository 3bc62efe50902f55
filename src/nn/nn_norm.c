/* Normalisation layers: weights of ones, biases of zeros, running statistics as buffers. Also
 * weights that are normalised with buffers. */

static const dt_init dti_nn_ones = {DT_INIT_CONSTANT, 1.0f, 0.0f}, dti_nn_zeros = {0};

/* A layer that is being made. */
typedef struct dti_nn_norm {
    dti_nn nn;
    dt_shape over;  /* of weights */
    dt_tensor w, b; /* ones, and zeros or {0} */
} dti_nn_norm;

/* Begins one over x's channels, where `dims` is NULL, or over its last dimensions. */
static bool dti_nn_norm_begin(dti_nn_norm *n, dt_tensor x, const char *op, const char *name,
                              const int *dims, bool bias) {
    const dt_shape s = dti_tensor_shape(x);
    *n = (dti_nn_norm){.over = {.rank = dims ? *dims : 1}};
    if (!dti_nn_begin(&n->nn, x, op, name))
        return false;
    if (dims && (*dims < 1 || *dims > s.rank))
        return dti_graph_refuse(x.graph, "%s '%s': x %s must have at least %d dimensions", op, name,
                                dti_shape_of(x).text, *dims);
    if (!dims && (s.rank < 1 || s.dim[0] < 1))
        return dti_graph_refuse(x.graph, "%s '%s': x %s has no channels", op, name,
                                dti_shape_of(x).text);
    memcpy(n->over.dim, s.dim + (dims ? s.rank - *dims : 0), (size_t)n->over.rank * sizeof *s.dim);
    n->w = dti_nn_param(&n->nn, name, "weight", n->over, dti_nn_ones);
    if (bias)
        n->b = dti_nn_param(&n->nn, name, "bias", n->over, dti_nn_zeros);
    return true;
}

DT_API dt_tensor dt_nn_batch_norm(dt_tensor x, const char *name, const dt_batch_norm_desc *desc) {
    dti_nn_norm n;
    if (!dti_nn_norm_begin(&n, x, "batch_norm", name, NULL, true))
        return dti_nil(x.graph);
    dt_tensor mean = dti_nn_buffer(&n.nn, name, "running_mean", n.over, dti_nn_zeros);
    dt_tensor var = dti_nn_buffer(&n.nn, name, "running_var", n.over, dti_nn_ones);
    return dti_nn_end(&n.nn, dt_batch_norm(x, n.w, n.b, mean, var, desc));
}

DT_API dt_tensor dt_nn_layer_norm(dt_tensor x, const char *name, int dims) {
    dti_nn_norm n;
    if (!dti_nn_norm_begin(&n, x, "layer_norm", name, &dims, true))
        return dti_nil(x.graph);
    return dti_nn_end(&n.nn, dt_layer_norm(x, dims, n.w, n.b, 0.0f));
}

DT_API dt_tensor dt_nn_rms_norm(dt_tensor x, const char *name, int dims) {
    dti_nn_norm n;
    if (!dti_nn_norm_begin(&n, x, "rms_norm", name, &dims, false))
        return dti_nil(x.graph);
    return dti_nn_end(&n.nn, dt_rms_norm(x, dims, n.w, 0.0f));
}

DT_API dt_tensor dt_nn_group_norm(dt_tensor x, const char *name, int groups) {
    dti_nn_norm n;
    if (!dti_nn_norm_begin(&n, x, "group_norm", name, NULL, true))
        return dti_nil(x.graph);
    return dti_nn_end(&n.nn, dt_group_norm(x, groups, n.w, n.b, 0.0f));
}

/* ---- spectral norm: W of [out, rest] over sigma = u . W v. Vectors are rows: u [1, out], v [1,
 * rest]. */

typedef struct dti_spectral {
    dt_graph *graph;
    int32_t iterations;
    float eps;
    int64_t out, rest;
} dti_spectral;

static dt_tensor dti_spectral_unit(const dti_spectral *s, dt_tensor x) {
    dt_tensor size = dt_sqrt(dt_sum(dt_square(x), (dt_shape){1, {-1}}, true));
    size = dt_maximum(size, dt_fill(s->graph, (dt_shape){0}, s->eps));
    return dt_div(x, size);
}

/* In training the result of the power method, which the commit keeps. Else the buffer, scaled to
 * length 1 even if nothing has trained it yet. */
static dt_tensor dti_spectral_vector(const dti_spectral *s, dt_tensor buffer, dt_tensor moved) {
    moved = dti_buffer_becomes(buffer, moved);
    dt_tensor kept = dt_reshape(buffer, (dt_shape){2, {1, -1}});
    kept = dti_spectral_unit(s, kept);
    return dti_composed_dt_where(dti_train_mode(s->graph), moved, kept);
}

/* u . W v, with a gradient only in W. */
static dt_tensor dti_spectral_sigma(const dti_nn *nn, const dti_spectral *s, const char *name,
                                    dt_tensor w) {
    static const dt_init normal = {DT_INIT_NORMAL, 0.0f, 1.0f};
    dt_tensor u =
        dti_nn_buffer(nn, name, "parametrizations.weight.0._u", (dt_shape){1, {s->out}}, normal);
    dt_tensor v =
        dti_nn_buffer(nn, name, "parametrizations.weight.0._v", (dt_shape){1, {s->rest}}, normal);
    dt_tensor none = {0}, left = none, still = dt_detach(w);
    dt_tensor right = dt_reshape(v, (dt_shape){2, {1, -1}});
    for (int32_t i = 0; i < s->iterations; i++) {
        left = dti_spectral_unit(s, dt_linear(right, still, none));
        right = dti_spectral_unit(s, dt_matmul(left, still));
    }
    left = dti_spectral_vector(s, u, left);
    right = dti_spectral_vector(s, v, right);
    return dt_sum(dt_mul(left, dt_linear(right, w, none)), (dt_shape){0}, false);
}

static bool dti_spectral_fits(const char *name, dt_shape shape, const dti_spectral *s) {
    const bool matrix = shape.rank >= 2 && dti_shape_valid(shape) && dti_shape_elements(shape) > 0;
    if (!matrix)
        dti_graph_fail(s->graph,
                       "spectral_norm '%s': weight %s must be [out, ...], of two dimensions or "
                       "more and not empty",
                       name, dti_shape_print(shape, false).text);
    else if (s->iterations < 1 || s->iterations > 100 || !(s->eps > 0.0f) || s->eps == INFINITY)
        dti_graph_fail(s->graph,
                       "spectral_norm '%s': %d iterations and eps %g; they must be 1 to 100 and "
                       "above 0",
                       name, (int)s->iterations, (double)s->eps);
    return !s->graph->error[0];
}

DT_API dt_tensor dt_nn_spectral_norm(dt_graph *graph, const char *name, dt_shape shape,
                                     const dt_spectral_norm_desc *desc) {
    const dt_spectral_norm_desc d = desc ? *desc : (dt_spectral_norm_desc){0};
    dti_spectral s = {graph, d.iterations ? d.iterations : 1, d.eps != 0.0f ? d.eps : 1e-12f, 0, 0};
    dti_nn nn;
    if (!graph || graph->error[0] || !dti_nn_open(&nn, graph, "spectral_norm", name) ||
        !dti_spectral_fits(name, shape, &s))
        return dti_nil(graph);
    s.out = shape.dim[0], s.rest = dti_shape_elements(shape) / s.out;
    dt_tensor w = dti_nn_param(&nn, name, "parametrizations.weight.original", shape,
                               dti_nn_init(d.weight, (double)s.rest));
    dt_tensor matrix = dt_reshape(w, (dt_shape){2, {s.out, s.rest}});
    return dti_nn_end(&nn, dt_div(w, dti_spectral_sigma(&nn, &s, name, matrix)));
}
