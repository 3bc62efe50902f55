/* Normalisation layers: weights of ones, biases of zeros, running statistics as buffers. */

static dt_tensor dti_nn_ones(dt_tensor x, const char *name, const char *part, dt_shape shape) {
    char text[DTI_NN_NAME_SIZE];
    return dt_param(x.graph, dti_nn_name(x.graph, text, name, part), shape,
                    (dt_init){DT_INIT_CONSTANT, 1.0f, 0.0f});
}

static dt_tensor dti_nn_zeros(dt_tensor x, const char *name, const char *part, dt_shape shape) {
    char text[DTI_NN_NAME_SIZE];
    return dt_param(x.graph, dti_nn_name(x.graph, text, name, part), shape, (dt_init){0});
}

/* The first dimension of x, which is not nil; an error where there is none. */
static bool dti_nn_channels(dt_tensor x, const char *op, const char *name, dt_shape *channels) {
    dt_shape s = dt_tensor_shape(x);
    *channels = (dt_shape){1, {s.dim[0]}};
    if (s.rank >= 1 && s.dim[0] >= 1)
        return true;
    dti_graph_fail(x.graph, "%s '%s': x %s has no channels", op, name,
                   dti_shape_print(s, dt_tensor_has_samples(x)).text);
    return false;
}

DT_API dt_tensor dt_nn_batch_norm(dt_tensor x, const char *name, const dt_batch_norm_desc *desc) {
    dti_nn nn;
    dt_shape channels;
    char text[DTI_NN_NAME_SIZE];
    if (!dti_nn_begin(&nn, x, "batch_norm", name) ||
        !dti_nn_channels(x, "batch_norm", name, &channels))
        return dti_nil(x.graph);
    dt_tensor w = dti_nn_ones(x, name, "weight", channels);
    dt_tensor b = dti_nn_zeros(x, name, "bias", channels);
    dt_tensor mean = dt_buffer(x.graph, dti_nn_name(x.graph, text, name, "running_mean"), channels,
                               (dt_init){0});
    dt_tensor var = dt_buffer(x.graph, dti_nn_name(x.graph, text, name, "running_var"), channels,
                              (dt_init){DT_INIT_CONSTANT, 1.0f, 0.0f});
    return dti_nn_end(&nn, dti_is_nil(var) ? var : dt_batch_norm(x, w, b, mean, var, desc));
}

static bool dti_nn_last(dt_tensor x, const char *op, const char *name, int dims, dt_shape *last) {
    dt_shape s = dt_tensor_shape(x);
    if (dims < 1 || dims > s.rank) {
        dti_graph_fail(x.graph, "%s '%s': x %s has no %d dimensions", op, name,
                       dti_shape_print(s, dt_tensor_has_samples(x)).text, dims);
        return false;
    }
    *last = (dt_shape){.rank = dims};
    memcpy(last->dim, s.dim + s.rank - dims, (size_t)dims * sizeof *last->dim);
    return true;
}

DT_API dt_tensor dt_nn_layer_norm(dt_tensor x, const char *name, int dims) {
    dti_nn nn;
    dt_shape last;
    if (!dti_nn_begin(&nn, x, "layer_norm", name) ||
        !dti_nn_last(x, "layer_norm", name, dims, &last))
        return dti_nil(x.graph);
    dt_tensor w = dti_nn_ones(x, name, "weight", last), b = dti_nn_zeros(x, name, "bias", last);
    return dti_nn_end(&nn, dti_is_nil(b) ? b : dt_layer_norm(x, dims, w, b, 0.0f));
}

DT_API dt_tensor dt_nn_rms_norm(dt_tensor x, const char *name, int dims) {
    dti_nn nn;
    dt_shape last;
    if (!dti_nn_begin(&nn, x, "rms_norm", name) || !dti_nn_last(x, "rms_norm", name, dims, &last))
        return dti_nil(x.graph);
    dt_tensor w = dti_nn_ones(x, name, "weight", last);
    return dti_nn_end(&nn, dti_is_nil(w) ? w : dt_rms_norm(x, dims, w, 0.0f));
}

DT_API dt_tensor dt_nn_group_norm(dt_tensor x, const char *name, int groups) {
    dti_nn nn;
    dt_shape channels;
    if (!dti_nn_begin(&nn, x, "group_norm", name) ||
        !dti_nn_channels(x, "group_norm", name, &channels))
        return dti_nil(x.graph);
    dt_tensor w = dti_nn_ones(x, name, "weight", channels);
    dt_tensor b = dti_nn_zeros(x, name, "bias", channels);
    return dti_nn_end(&nn, dti_is_nil(b) ? b : dt_group_norm(x, groups, w, b, 0.0f));
}
