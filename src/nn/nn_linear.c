/* Layers with weights: named parameters in PyTorch's shapes and initial distributions, then ops. */

#define DTI_NN_NAME_SIZE 256

/* A layer that is being made. If it fails, the nodes that it has appended are removed, so its name
 * is free for the next try. */
typedef struct dti_nn {
    dt_graph *graph;
    dti_graph_mark mark;
} dti_nn;

/* False: there is no name for the parameters. */
static bool dti_nn_open(dti_nn *nn, dt_graph *graph, const char *op, const char *name) {
    *nn = (dti_nn){graph, dti_graph_mark_of(graph)};
    if (name && name[0])
        return true;
    return dti_graph_refuse(graph,
                            "dt_nn_%s: the layer's name is %s; give one, such as \"fc1\", whose "
                            "weight is \"fc1.weight\"",
                            op, name ? "empty" : "NULL");
}

/* False: x is nil too. */
static bool dti_nn_begin(dti_nn *nn, dt_tensor x, const char *op, const char *name) {
    if (!dti_is_nil(x))
        return dti_nn_open(nn, x.graph, op, name);
    dti_nil_of(x, op);
    return false;
}

static dt_tensor dti_nn_end(const dti_nn *nn, dt_tensor y) {
    if (dti_is_nil(y))
        dti_graph_undo(nn->graph, nn->mark);
    return y;
}

/* "layer.part" in `text`; a name that does not fit is an error of the graph, never cut. */
static const char *dti_nn_name(dt_graph *graph, char text[DTI_NN_NAME_SIZE], const char *layer,
                               const char *part) {
    int size = snprintf(text, DTI_NN_NAME_SIZE, "%s.%s", layer, part);
    if (size >= DTI_NN_NAME_SIZE)
        dti_graph_fail(graph, "layer '%.40s...': its name has more than %d characters", layer,
                       DTI_NN_NAME_SIZE - 8);
    return text;
}

static dt_tensor dti_nn_param(const dti_nn *nn, const char *layer, const char *part, dt_shape shape,
                              dt_init init) {
    char text[DTI_NN_NAME_SIZE];
    return dt_param(nn->graph, dti_nn_name(nn->graph, text, layer, part), shape, init);
}

static dt_tensor dti_nn_buffer(const dti_nn *nn, const char *layer, const char *part,
                               dt_shape shape, dt_init init) {
    char text[DTI_NN_NAME_SIZE];
    return dt_buffer(nn->graph, dti_nn_name(nn->graph, text, layer, part), shape, init);
}

/* Uniform in +-1/sqrt(fan_in), or the user's choice. */
static dt_init dti_nn_init(dt_init asked, double fan_in) {
    const float bound = (float)(1.0 / sqrt(fan_in));
    return asked.kind ? asked : (dt_init){DT_INIT_UNIFORM, -bound, bound};
}

DT_API dt_tensor dt_nn_linear_with(dt_tensor x, const char *name, int64_t out,
                                   const dt_linear_desc *desc) {
    dti_nn nn;
    if (!dti_nn_begin(&nn, x, "linear", name))
        return dti_nil(x.graph);
    dt_linear_desc d = desc ? *desc : (dt_linear_desc){0};
    dt_shape s = dti_tensor_shape(x);
    if (s.rank < 1 || out < 1 || s.dim[s.rank - 1] < 1) {
        return dti_graph_fail(x.graph, "linear '%s': x %s has no last dimension to map to %lld",
                              name, dti_shape_of(x).text, (long long)out);
    }
    if ((unsigned)d.tensor > DT_TENSOR_ROW)
        return dti_graph_fail(x.graph, "linear '%s': .tensor is %d, not a dt_tensor_style", name,
                              (int)d.tensor);
    const int64_t in = s.dim[s.rank - 1];
    dt_tensor w = dti_nn_param(&nn, name, "weight", (dt_shape){2, {out, in}},
                               dti_nn_init(d.weight, (double)in));
    dt_tensor b = {0};
    if (!d.no_bias)
        b = dti_nn_param(&nn, name, "bias", (dt_shape){1, {out}}, dti_nn_init(d.bias, (double)in));
    if (d.tensor == DT_TENSOR_COLUMN) {
        dti_param_part(w, 0, 1, out, 0);
        dti_param_part(b, 0, 1, out, 0);
    } else if (d.tensor == DT_TENSOR_ROW) {
        dti_param_part(w, 1, 1, in, 0);
    }
    return dti_nn_end(&nn, dti_is_nil(w) ? w : dt_linear(x, w, b));
}

DT_API dt_tensor dt_nn_linear(dt_tensor x, const char *name, int64_t out) {
    return dt_nn_linear_with(x, name, out, NULL);
}

DT_API dt_tensor dt_nn_bilinear(dt_tensor x1, dt_tensor x2, const char *name, int64_t out) {
    dti_nn nn;
    DTI_NEED_TENSOR(x2, "bilinear");
    if (!dti_nn_begin(&nn, x1, "bilinear", name))
        return dti_nil(x2.graph);
    const dt_shape s = dti_tensor_shape(x1), t = dti_tensor_shape(x2);
    bool fits = x1.graph == x2.graph && s.rank > 0 && s.rank == t.rank && s.rank < DT_MAX_DIMS &&
                out > 0 && out <= INT32_MAX && s.dim[s.rank - 1] > 0 && t.dim[t.rank - 1] > 0;
    for (int i = 0; i + 1 < s.rank && fits; i++)
        fits = s.dim[i] == t.dim[i];
    if (!fits) {
        return dti_graph_fail(x1.graph,
                              "bilinear '%s': x1 %s and x2 %s for %lld outputs; they must be of "
                              "one graph, of one to four dimensions, and differ only in the last",
                              name, dti_shape_of(x1).text, dti_shape_print(t, false).text,
                              (long long)out);
    }
    const int64_t in1 = s.dim[s.rank - 1], in2 = t.dim[t.rank - 1];
    const dt_init uniform = dti_nn_init((dt_init){0}, (double)in1);
    dt_tensor w = dti_nn_param(&nn, name, "weight", (dt_shape){3, {out, in1, in2}}, uniform);
    dt_tensor b = dti_nn_param(&nn, name, "bias", (dt_shape){1, {out}}, uniform);
    if (x1.graph->error[0])
        return dti_nn_end(&nn, dti_nil(x1.graph));
    dt_shape pairs = s, beside = t;
    pairs.dim[s.rank - 1] = out, pairs.dim[pairs.rank++] = in2;
    beside.dim[t.rank - 1] = 1, beside.dim[beside.rank++] = in2;
    w = dt_reshape(dt_permute(w, (dt_shape){3, {0, 2, 1}}), (dt_shape){2, {out * in2, in1}});
    dt_tensor y = dt_reshape(dt_linear(x1, w, (dt_tensor){0}), pairs);
    y = dt_mul(y, dt_reshape(x2, beside));
    y = dt_sum(y, (dt_shape){1, {s.rank}}, false);
    return dti_nn_end(&nn, dt_add(y, b));
}
