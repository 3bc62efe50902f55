/* Convolution layers: PyTorch's names, shapes and initial distributions, uniform in
 * +-1/sqrt(fan_in) with fan_in = dimension 1 of the weight times the kernel's area. */

typedef struct dti_conv_layer {
    const char *op, *name;
    dt_conv_layer_desc desc;
    int64_t in, out;
    dt_shape weight;
} dti_conv_layer;

/* Checks here, with the layer's name, what an op's own check would report about parameters that the
 * user never saw. */
static bool dti_conv_layer_fits(dt_tensor x, const dti_conv_layer *l, int rank, int64_t kernel) {
    int64_t groups = l->desc.conv.groups ? l->desc.conv.groups : 1;
    if (dti_tensor_shape(x).rank != rank) {
        dti_graph_fail(x.graph, "%s '%s': x %s must be [channels, %s]%s", l->op, l->name,
                       dti_shape_of(x).text, rank == 3 ? "height, width" : "length",
                       dti_image_rank_hint(dti_tensor_shape(x).rank, rank));
    } else if (l->in < 1 || l->out < 1 || kernel < 1 || l->desc.kernel_w < 0) {
        dti_graph_fail(
            x.graph,
            "%s '%s': %lld channels in, %lld out, a kernel of %lld x %lld; all must be at least 1",
            l->op, l->name, (long long)l->in, (long long)l->out, (long long)kernel,
            (long long)(l->desc.kernel_w ? l->desc.kernel_w : kernel));
    } else if (groups < 1 || l->in % groups || l->out % groups) {
        dti_graph_fail(x.graph, "%s '%s': %lld groups do not divide %lld channels in and %lld out",
                       l->op, l->name, (long long)groups, (long long)l->in, (long long)l->out);
    }
    /* It may be intended, so it is not an error; deeper in a network narrow images are usual. */
    const char *hint = dti_image_hint(dti_tensor_shape(x), 0);
    if (!x.graph->error[0] && hint[0] && dti_node_of(x)->op == DTI_OP_INPUT)
        dti_log(x.graph->base, DT_LOG_WARNING, "%s '%s': x %s is taken as %lld channels%s", l->op,
                l->name, dti_shape_of(x).text, (long long)l->in, hint);
    return x.graph->error[0] == 0;
}

/* The padding of a layer: `axes` of them, the outermost first. */
typedef struct dti_conv_padding {
    int axes;
    int64_t kernel[3];
    const int32_t *stride, *dilation;
    int32_t *padding; /* the padding that is left to the convolution: zeros, the same number on both
                       * sides */
} dti_conv_padding;

static bool dti_conv_padding_fits(dt_tensor x, const dti_conv_layer *l, const dti_conv_padding *p) {
    static const char *const names[] = {"ZEROS", "REFLECT", "REPLICATE", "CIRCULAR"};
    const dt_padding_mode mode = l->desc.padding_mode;
    if ((unsigned)mode > DT_PADDING_CIRCULAR)
        dti_graph_fail(x.graph, "%s '%s': .padding_mode is %d, not a dt_padding_mode", l->op,
                       l->name, (int)mode);
    for (int i = 0; i < p->axes && !x.graph->error[0]; i++) {
        const int64_t size = dti_tensor_shape(x).dim[1 + i], most = dti_pad_most(mode, size);
        if (l->desc.same && (p->padding[i] || p->stride[i] > 1))
            dti_graph_fail(
                x.graph,
                "%s '%s': .same cannot be combined with stride %d or padding %d; leave both 0",
                l->op, l->name, (int)p->stride[i], (int)p->padding[i]);
        else if (mode && (p->padding[i] < 0 || p->padding[i] > most))
            dti_graph_fail(x.graph,
                           "%s '%s': padding %d of x %s, axis %d: padding_mode %s takes 0 to %lld",
                           l->op, l->name, (int)p->padding[i], dti_shape_of(x).text, 1 + i,
                           names[mode], (long long)most);
    }
    return x.graph->error[0] == 0;
}

/* x with all padding that the convolution does not have itself. Of an odd one `same` has the
 * larger half at the end. */
static dt_tensor dti_conv_padded(dt_tensor x, const dti_conv_layer *l, const dti_conv_padding *p) {
    for (int i = 0; i < p->axes; i++) {
        int64_t before = p->padding[i], after = before;
        if (l->desc.same) {
            const int64_t all = (p->dilation[i] ? p->dilation[i] : 1) * (p->kernel[i] - 1);
            before = all / 2, after = all - before;
        }
        const bool own = !l->desc.padding_mode && before == after && before <= INT32_MAX;
        p->padding[i] = own ? (int32_t)before : 0;
        if (!own && l->desc.padding_mode)
            x = dti_pad_with(x, 1 + i, before, after, l->desc.padding_mode);
        else if (!own)
            x = dt_pad(x, 1 + i, before, after);
    }
    return x;
}

/* The layer's weight and bias; nil and nil after an error. */
static dt_tensor dti_conv_layer_params(const dti_nn *nn, const dti_conv_layer *l, dt_tensor *b) {
    double fan_in = 1.0;
    for (int i = 1; i < l->weight.rank; i++)
        fan_in *= (double)l->weight.dim[i];
    dt_tensor w =
        dti_nn_param(nn, l->name, "weight", l->weight, dti_nn_init(l->desc.weight, fan_in));
    *b = (dt_tensor){0};
    if (!l->desc.no_bias)
        *b = dti_nn_param(nn, l->name, "bias", (dt_shape){1, {l->out}},
                          dti_nn_init(l->desc.bias, fan_in));
    return w;
}

static dti_conv_layer dti_conv_layer_of(dt_tensor x, const char *op, const char *name, int64_t out,
                                        const dt_conv_layer_desc *desc) {
    dti_conv_layer l = {.op = op, .name = name, .out = out};
    if (desc)
        l.desc = *desc;
    l.in = dti_tensor_shape(x).rank > 0 ? dti_tensor_shape(x).dim[0] : 0;
    return l;
}

/* x with its padding, and w, b of the layer. The shape of x has been checked. False: an error. */
static bool dti_conv_layer_make(const dti_nn *nn, dti_conv_layer *l, const dti_conv_padding *p,
                                dt_tensor *x, dt_tensor *w, dt_tensor *b) {
    const int64_t groups = l->desc.conv.groups ? l->desc.conv.groups : 1;
    l->weight = (dt_shape){2 + p->axes, {l->out, l->in / groups}};
    memcpy(l->weight.dim + 2, p->kernel, (size_t)p->axes * sizeof *p->kernel);
    *w = *b = dti_nil(x->graph);
    if (!dti_conv_padding_fits(*x, l, p))
        return false;
    *w = dti_conv_layer_params(nn, l, b);
    if (dti_is_nil(*w))
        return false;
    *x = dti_conv_padded(*x, l, p);
    return true;
}

/* Of one or two axes. */
static dt_tensor dti_nn_conv(dt_tensor x, const char *op, const char *name, int64_t out,
                             int64_t kernel, int axes, const dt_conv_layer_desc *desc) {
    dti_nn nn;
    if (!dti_nn_begin(&nn, x, op, name))
        return dti_nil(x.graph);
    dti_conv_layer l = dti_conv_layer_of(x, op, name, out, desc);
    if (!dti_conv_layer_fits(x, &l, 1 + axes, kernel))
        return dti_nil(x.graph);
    dt_conv_desc *c = &l.desc.conv;
    const int64_t width = l.desc.kernel_w ? l.desc.kernel_w : kernel;
    const dti_conv_padding padding = {axes, {kernel, width}, c->stride, c->dilation, c->padding};
    dt_tensor w, b;
    if (!dti_conv_layer_make(&nn, &l, &padding, &x, &w, &b))
        return dti_nn_end(&nn, w);
    return dti_nn_end(&nn, axes == 1 ? dt_conv1d(x, w, b, c) : dt_conv2d(x, w, b, c));
}

DT_API dt_tensor dt_nn_conv2d(dt_tensor x, const char *name, int64_t out, int64_t kernel,
                              const dt_conv_layer_desc *desc) {
    return dti_nn_conv(x, "conv2d", name, out, kernel, 2, desc);
}

DT_API dt_tensor dt_nn_conv1d(dt_tensor x, const char *name, int64_t out, int64_t kernel,
                              const dt_conv_layer_desc *desc) {
    return dti_nn_conv(x, "conv1d", name, out, kernel, 1, desc);
}

DT_API dt_tensor dt_nn_conv3d(dt_tensor x, const char *name, int64_t out, int64_t kernel,
                              const dt_conv3d_layer_desc *desc) {
    const dt_conv3d_layer_desc none = {0};
    dt_conv3d_layer_desc d = desc ? *desc : none;
    dti_nn nn;
    if (!dti_nn_begin(&nn, x, "conv3d", name))
        return dti_nil(x.graph);
    const dt_conv_layer_desc flat = {.conv = {.groups = d.conv.groups},
                                     .kernel_w = d.kernel_w,
                                     .no_bias = d.no_bias,
                                     .weight = d.weight,
                                     .bias = d.bias,
                                     .padding_mode = d.padding_mode,
                                     .same = d.same};
    dti_conv_layer l = dti_conv_layer_of(x, "conv3d", name, out, &flat);
    const int64_t height = d.kernel_h ? d.kernel_h : kernel,
                  width = d.kernel_w ? d.kernel_w : kernel;
    if (dti_tensor_shape(x).rank != 4 || height < 1 || width < 1)
        dti_graph_fail(x.graph,
                       "conv3d '%s': x %s must be [channels, depth, height, width]; kernel "
                       "%lld x %lld x %lld",
                       name, dti_shape_of(x).text, (long long)kernel, (long long)height,
                       (long long)width);
    if (x.graph->error[0] || !dti_conv_layer_fits(x, &l, 4, kernel))
        return dti_nil(x.graph);
    const dti_conv_padding padding = {
        3, {kernel, height, width}, d.conv.stride, d.conv.dilation, d.conv.padding};
    dt_tensor w, b;
    if (!dti_conv_layer_make(&nn, &l, &padding, &x, &w, &b))
        return dti_nn_end(&nn, w);
    return dti_nn_end(&nn, dt_conv3d(x, w, b, &d.conv));
}

DT_API dt_tensor dt_nn_conv_transpose2d(dt_tensor x, const char *name, int64_t out, int64_t kernel,
                                        const dt_conv_layer_desc *desc) {
    dti_nn nn;
    if (!dti_nn_begin(&nn, x, "conv_transpose2d", name))
        return dti_nil(x.graph);
    dti_conv_layer l = dti_conv_layer_of(x, "conv_transpose2d", name, out, desc);
    if (l.desc.padding_mode || l.desc.same)
        return dti_graph_fail(x.graph,
                              "conv_transpose2d '%s': .padding_mode is %d, .same %d; leave both 0, "
                              "as it only pads with zeros",
                              name, (int)l.desc.padding_mode, (int)l.desc.same);
    if (!dti_conv_layer_fits(x, &l, 3, kernel))
        return dti_nil(x.graph);
    int64_t groups = l.desc.conv.groups ? l.desc.conv.groups : 1;
    int64_t width = l.desc.kernel_w ? l.desc.kernel_w : kernel;
    l.weight = (dt_shape){4, {l.in, out / groups, kernel, width}};
    dt_tensor b, w = dti_conv_layer_params(&nn, &l, &b);
    return dti_nn_end(&nn, dti_is_nil(w) ? w : dt_conv_transpose2d(x, w, b, &l.desc.conv));
}
