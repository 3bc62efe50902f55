/* Convolution and pooling of volumes, and pooling of signals, made of the rows for images. A volume
 * is convolved as one tall image. For each depth of the result, the slices that the kernel covers
 * there become channels. The depths lie one below the other, far enough apart that a window covers
 * one depth; other results are left out. Pooling goes over height and width, then over depth. Owns
 * no row; gradients and second derivatives are those of the rows. */

#define DTI_VOLUME_KERNEL_MAX 64 /* slices that are put together */

/* Three zeros become `usual`. One 0 is an error, as in dt_conv_desc: {2} is {2, 0, 0}. */
static bool dti_volume_sizes(dt_graph *g, const char *op, const char *what, const int32_t given[3],
                             int32_t least, const int32_t usual[3], int32_t out[3]) {
    const bool own = !usual || given[0] || given[1] || given[2];
    for (int i = 0; i < 3; i++) {
        out[i] = own ? given[i] : usual[i];
        if (out[i] >= least && out[i] <= INT16_MAX)
            continue;
        return dti_graph_refuse(g, "%s: %s is %d in element %d; it must be in [%d, %d]", op, what,
                                (int)out[i], i, (int)least, INT16_MAX);
    }
    return true;
}

static bool dti_volume_is(dt_tensor x, const char *op) {
    const dti_node *n = dti_node_of(x);
    const dt_shape s = n->shape;
    if (s.rank == 4 && n->dtype != DT_I32)
        return true;
    return dti_graph_refuse(x.graph, "%s: x %s must be [channels, depth, height, width], of floats",
                            op, dti_shape_print(s, n->samples).text);
}

/* Positions that a window of `reach` takes along `size`; 0 where it is larger. */
static int64_t dti_volume_places(int64_t size, int64_t padding, int64_t reach, int64_t stride) {
    const int64_t room = size + 2 * padding - reach;
    return room < 0 ? 0 : room / stride + 1;
}

static bool dti_conv3d_fits(dt_tensor x, dt_tensor w, dt_tensor b, const dt_conv3d_desc *d) {
    const dt_shape s = dti_node_of(x)->shape, k = dti_node_of(w)->shape;
    const int32_t groups = d->groups;
    if (!dti_volume_is(x, "conv3d"))
        return false;
    if (k.rank != 5 || dti_node_of(w)->samples || k.dim[2] < 1 ||
        k.dim[2] > DTI_VOLUME_KERNEL_MAX || k.dim[3] < 1 || k.dim[4] < 1)
        dti_graph_fail(x.graph,
                       "conv3d: the weight %s must be [out, in / groups, depth, height, width] "
                       "without samples, of a depth in [1, %d]",
                       dti_shape_print(k, dti_node_of(w)->samples).text, DTI_VOLUME_KERNEL_MAX);
    else if (groups < 1 || s.dim[0] % groups || k.dim[0] % groups || s.dim[0] / groups != k.dim[1])
        dti_graph_fail(x.graph, "conv3d: x %s and weight %s do not fit with %d groups",
                       dti_shape_print(s, dti_node_of(x)->samples).text,
                       dti_shape_print(k, false).text, (int)groups);
    else if (b.graph && (dti_node_of(b)->shape.rank != 1 ||
                         dti_node_of(b)->shape.dim[0] != k.dim[0] || dti_node_of(b)->samples))
        dti_graph_fail(x.graph, "conv3d: the bias must be [%lld], without samples",
                       (long long)k.dim[0]);
    for (int i = 0; i < 3 && !x.graph->error[0]; i++) {
        if (!dti_volume_places(s.dim[1 + i], d->padding[i], d->dilation[i] * (k.dim[2 + i] - 1) + 1,
                               d->stride[i]))
            dti_graph_fail(x.graph, "conv3d: the weight %s is larger than the padded volume %s",
                           dti_shape_print(k, false).text,
                           dti_shape_print(s, dti_node_of(x)->samples).text);
    }
    return x.graph->error[0] == 0;
}

/* n depths, `step` apart, from `at` on. */
static dt_tensor dti_volume_every(dt_tensor x, int64_t at, int64_t n, int64_t step) {
    const dt_shape s = dti_tensor_shape(x);
    x = dt_slice(x, 1, at, (n - 1) * step + 1);
    if (step == 1)
        return x;
    x = dt_reshape(dt_pad(x, 1, 0, step - 1),
                   (dt_shape){5, {s.dim[0], n, step, s.dim[2], s.dim[3]}});
    return dt_reshape(dt_slice(x, 2, 0, 1), (dt_shape){4, {s.dim[0], n, s.dim[2], s.dim[3]}});
}

/* [C, D, H, W] -> [C k, depths, H, W]: the slices under the kernel as channels. */
static dt_tensor dti_volume_windows(dt_tensor x, const dt_conv3d_desc *d, int64_t k) {
    dt_tensor part[DTI_VOLUME_KERNEL_MAX];
    dt_shape s = dti_tensor_shape(x);
    const int64_t n =
        dti_volume_places(s.dim[1], d->padding[0], d->dilation[0] * (k - 1) + 1, d->stride[0]);
    if (d->padding[0])
        x = dt_pad(x, 1, d->padding[0], d->padding[0]);
    for (int64_t i = 0; i < k; i++) {
        part[i] = dti_volume_every(x, i * d->dilation[0], n, d->stride[0]);
        part[i] = dt_reshape(part[i], (dt_shape){5, {s.dim[0], 1, n, s.dim[2], s.dim[3]}});
    }
    return dt_reshape(dt_concat(part, (int)k, 1),
                      (dt_shape){4, {s.dim[0] * k, n, s.dim[2], s.dim[3]}});
}

static dt_tensor dti_conv3d_flat(dt_tensor x, dt_tensor w, dt_tensor b, const dt_conv3d_desc *d) {
    const dt_shape s = dti_tensor_shape(x), k = dti_tensor_shape(w);
    const int64_t reach = d->dilation[1] * (k.dim[3] - 1) + 1, stride = d->stride[1];
    const int64_t high = dti_volume_places(s.dim[2], d->padding[1], reach, stride);
    const int64_t each = (s.dim[2] + 2 * d->padding[1] + stride - 1) / stride; /* rows of a depth */
    x = dti_volume_windows(x, d, k.dim[2]);
    const int64_t n = dti_tensor_shape(x).dim[1];
    if (each * stride != s.dim[2])
        x = dt_pad(x, 2, d->padding[1], each * stride - s.dim[2] - d->padding[1]);
    x = dt_reshape(x, (dt_shape){3, {s.dim[0] * k.dim[2], n * each * stride, s.dim[3]}});
    w = dt_reshape(w, (dt_shape){4, {k.dim[0], k.dim[1] * k.dim[2], k.dim[3], k.dim[4]}});
    const dt_conv_desc flat = {.stride = {d->stride[1], d->stride[2]},
                               .padding = {0, d->padding[2]},
                               .dilation = {d->dilation[1], d->dilation[2]},
                               .groups = d->groups};
    dt_tensor y = dt_conv2d(x, w, b, &flat);
    const dt_shape t = dti_is_nil(y) ? (dt_shape){0} : dti_tensor_shape(y);
    if (t.rank == 3 && t.dim[1] < n * each)
        y = dt_pad(y, 1, 0, n * each - t.dim[1]);
    y = dt_reshape(y, (dt_shape){4, {t.dim[0], n, each, t.dim[2]}});
    return high < each ? dt_slice(y, 2, 0, high) : y;
}

/* i: strides, paddings, groups; dim: dilations; all as given */
static dt_tensor dti_conv3d_make(dt_graph *g, const dti_call *c) {
    static const int32_t ones[3] = {1, 1, 1};
    const dt_tensor x = dti_call_in(g, c, 0), w = dti_call_in(g, c, 1), b = dti_call_in(g, c, 2);
    const int32_t *i = c->attr.i;
    const int32_t dilation[3] = {(int32_t)c->attr.dim[0], (int32_t)c->attr.dim[1],
                                 (int32_t)c->attr.dim[2]};
    dt_conv3d_desc d = {.groups = i[6] ? i[6] : 1};
    if (!dti_volume_sizes(g, "conv3d", "stride", i, 1, ones, d.stride) ||
        !dti_volume_sizes(g, "conv3d", "padding", i + 3, 0, NULL, d.padding) ||
        !dti_volume_sizes(g, "conv3d", "dilation", dilation, 1, ones, d.dilation) ||
        !dti_conv3d_fits(x, w, b, &d))
        return dti_nil(g);
    return dti_conv3d_flat(x, w, b, &d);
}

DT_API dt_tensor dt_conv3d(dt_tensor x, dt_tensor w, dt_tensor b, const dt_conv3d_desc *desc) {
    const dt_conv3d_desc d = desc ? *desc : (dt_conv3d_desc){0};
    dti_attr attr = {.i = {[6] = d.groups}};
    for (int i = 0; i < 3; i++) {
        attr.i[i] = d.stride[i];
        attr.i[3 + i] = d.padding[i];
        attr.dim[i] = d.dilation[i];
    }
    return dti_compose("conv3d", dti_conv3d_make, 2, (dti_inputs){{x, w, b}}, attr);
}

/* ---- pooling */

typedef dt_tensor dti_pool_fn(dt_tensor x, const dt_pool_desc *desc);

static dt_tensor dti_pool3d_flat(dt_tensor x, const dt_pool3d_desc *d, dti_pool_fn *pool) {
    const dt_shape s = dti_tensor_shape(x);
    const dt_pool_desc flat = {.kernel = {d->kernel[1], d->kernel[2]},
                               .stride = {d->stride[1], d->stride[2]},
                               .padding = {d->padding[1], d->padding[2]},
                               .ceil_mode = d->ceil_mode,
                               .exclude_pad = d->exclude_pad};
    const dt_pool_desc deep = {.kernel = {d->kernel[0], 1},
                               .stride = {d->stride[0], 1},
                               .padding = {d->padding[0], 0},
                               .ceil_mode = d->ceil_mode,
                               .exclude_pad = d->exclude_pad};
    x = pool(dt_reshape(x, (dt_shape){3, {s.dim[0] * s.dim[1], s.dim[2], s.dim[3]}}), &flat);
    const dt_shape t = dti_is_nil(x) ? (dt_shape){3, {0}} : dti_tensor_shape(x);
    x = pool(dt_reshape(x, (dt_shape){3, {s.dim[0], s.dim[1], t.dim[1] * t.dim[2]}}), &deep);
    return dt_reshape(x, (dt_shape){4, {s.dim[0], -1, t.dim[1], t.dim[2]}});
}

/* Checks like the rows for images, but with the name and the axis that the user knows. */
static bool dti_pool_axis_fits(dt_tensor x, const char *op, int axis, int32_t kernel,
                               int32_t stride, int32_t padding, bool ceil_mode) {
    const dt_shape s = dti_node_of(x)->shape;
    const dti_attr along = {.i = {[DTI_POOL_KERNEL] = kernel,
                                  [DTI_POOL_STRIDE] = stride,
                                  [DTI_POOL_PADDING] = padding,
                                  [DTI_POOL_CEIL] = ceil_mode}};
    if (kernel < 1 || stride < 1)
        dti_graph_fail(x.graph, "%s: kernel %d, stride %d: each must be at least 1", op,
                       (int)kernel, (int)stride);
    else if (padding < 0 || padding > kernel / 2)
        dti_graph_fail(x.graph,
                       "%s: padding %d: it must be at least 0 and at most half of the kernel's %d",
                       op, (int)padding, (int)kernel);
    else if (dti_pooling_windows(&along, 0, s.dim[1 + axis]) < 1)
        dti_graph_fail(x.graph, "%s: the kernel's %d is larger than x %s, padded", op, (int)kernel,
                       dti_shape_print(s, dti_node_of(x)->samples).text);
    return x.graph->error[0] == 0;
}

static bool dti_pool3d_desc_fits(dt_tensor x, const char *op, const dt_pool3d_desc *given,
                                 dt_pool3d_desc *d) {
    *d = (dt_pool3d_desc){.ceil_mode = given->ceil_mode, .exclude_pad = given->exclude_pad};
    if (!dti_volume_is(x, op) ||
        !dti_volume_sizes(x.graph, op, "kernel", given->kernel, 1, NULL, d->kernel) ||
        !dti_volume_sizes(x.graph, op, "stride", given->stride, 1, d->kernel, d->stride) ||
        !dti_volume_sizes(x.graph, op, "padding", given->padding, 0, NULL, d->padding))
        return false;
    for (int i = 0; i < 3 && !x.graph->error[0]; i++)
        dti_pool_axis_fits(x, op, i, d->kernel[i], d->stride[i], d->padding[i], d->ceil_mode);
    return x.graph->error[0] == 0;
}

/* i: kernel, stride, maximum or not; dim: padding, ceil_mode, exclude_pad */
static dt_tensor dti_pool3d_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0);
    dt_pool3d_desc d = {.ceil_mode = c->attr.dim[3] != 0, .exclude_pad = c->attr.dim[4] != 0}, own;
    for (int i = 0; i < 3; i++) {
        d.kernel[i] = c->attr.i[i];
        d.stride[i] = c->attr.i[3 + i];
        d.padding[i] = (int32_t)c->attr.dim[i];
    }
    if (!dti_pool3d_desc_fits(x, c->name, &d, &own))
        return dti_nil(g);
    return dti_pool3d_flat(x, &own, c->attr.i[6] ? dt_max_pool2d : dt_avg_pool2d);
}

static dt_tensor dti_pool3d(const char *op, dt_tensor x, const dt_pool3d_desc *d, bool max) {
    DTI_NEED_TENSOR(x, op);
    if (!d)
        return dti_graph_fail(x.graph, "%s: desc is NULL; it must give the kernel", op);
    dti_attr attr = {.i = {[6] = max}, .dim = {[3] = d->ceil_mode, d->exclude_pad}};
    for (int i = 0; i < 3; i++) {
        attr.i[i] = d->kernel[i];
        attr.i[3 + i] = d->stride[i];
        attr.dim[i] = d->padding[i];
    }
    return dti_compose(op, dti_pool3d_make, 1, (dti_inputs){{x}}, attr);
}

DT_API dt_tensor dt_max_pool3d(dt_tensor x, const dt_pool3d_desc *desc) {
    return dti_pool3d("max_pool3d", x, desc, true);
}

DT_API dt_tensor dt_avg_pool3d(dt_tensor x, const dt_pool3d_desc *desc) {
    return dti_pool3d("avg_pool3d", x, desc, false);
}

/* dim: depth, height, width */
static dt_tensor dti_adaptive3d_make(dt_graph *g, const dti_call *c) {
    dt_tensor x = dti_call_in(g, c, 0);
    const int64_t depth = c->attr.dim[0], height = c->attr.dim[1], width = c->attr.dim[2];
    const int64_t most = INT32_MAX;
    if (!dti_volume_is(x, c->name))
        return dti_nil(g);
    if (depth < 1 || height < 1 || width < 1 || depth > most || height > most / width)
        return dti_graph_fail(x.graph,
                              "adaptive_avg_pool3d: the output is %lld x %lld x %lld; each, and "
                              "height times width, must be from 1 to 2^31 - 1",
                              (long long)depth, (long long)height, (long long)width);
    const dt_shape s = dti_tensor_shape(x);
    x = dt_reshape(x, (dt_shape){3, {s.dim[0] * s.dim[1], s.dim[2], s.dim[3]}});
    x = dt_adaptive_avg_pool2d(x, height, width);
    x = dt_reshape(x, (dt_shape){3, {s.dim[0], s.dim[1], height * width}});
    x = dt_adaptive_avg_pool2d(x, depth, height * width);
    return dt_reshape(x, (dt_shape){4, {s.dim[0], depth, height, width}});
}

DT_API dt_tensor dt_adaptive_avg_pool3d(dt_tensor x, int64_t depth, int64_t height, int64_t width) {
    return dti_compose("adaptive_avg_pool3d", dti_adaptive3d_make, 1, (dti_inputs){{x}},
                       (dti_attr){.dim = {depth, height, width}});
}

/* ---- signals: [C, L] as [C, L, 1] */

static dt_tensor dti_signal_high(dt_tensor x, const char *op) {
    DTI_NEED_TENSOR(x, op);
    const dti_node *n = dti_node_of(x);
    if (n->shape.rank != 2 || n->dtype == DT_I32)
        return dti_graph_fail(x.graph, "%s: x %s must be [channels, length], of floats", op,
                              dti_shape_print(n->shape, n->samples).text);
    return dt_reshape(x, (dt_shape){3, {n->shape.dim[0], -1, 1}});
}

static dt_tensor dti_signal_pool(dt_tensor x, const dt_pool_desc *desc, const char *op,
                                 dti_pool_fn *pool) {
    const int64_t channels = dti_is_nil(x) ? 0 : dti_tensor_shape(x).dim[0];
    const dt_tensor given = x;
    x = dti_signal_high(x, op);
    if (dti_is_nil(x))
        return x;
    if (!desc)
        return dti_graph_fail(x.graph, "%s: desc is NULL; it must give the kernel", op);
    const dt_pool_desc d = {.kernel = {desc->kernel[0], 1},
                            .stride = {desc->stride[0] ? desc->stride[0] : desc->kernel[0], 1},
                            .padding = {desc->padding[0]},
                            .ceil_mode = desc->ceil_mode,
                            .exclude_pad = desc->exclude_pad};
    if (!dti_pool_axis_fits(given, op, 0, d.kernel[0], d.stride[0], d.padding[0], d.ceil_mode))
        return dti_nil(x.graph);
    return dt_reshape(pool(x, &d), (dt_shape){2, {channels, -1}});
}

DT_API dt_tensor dt_max_pool1d(dt_tensor x, const dt_pool_desc *desc) {
    return dti_signal_pool(x, desc, "max_pool1d", dt_max_pool2d);
}

DT_API dt_tensor dt_avg_pool1d(dt_tensor x, const dt_pool_desc *desc) {
    return dti_signal_pool(x, desc, "avg_pool1d", dt_avg_pool2d);
}

DT_API dt_tensor dt_adaptive_avg_pool1d(dt_tensor x, int64_t length) {
    const int64_t channels = dti_is_nil(x) ? 0 : dti_tensor_shape(x).dim[0];
    x = dti_signal_high(x, "adaptive_avg_pool1d");
    return dt_reshape(dt_adaptive_avg_pool2d(x, length, 1), (dt_shape){2, {channels, length}});
}
