/* Windows of an image as columns, and back: convolutions by kernels that pick one place each. */

typedef struct dti_windows {
    int64_t channels, kernel[2];
    dt_conv_desc conv; /* of one group a channel */
} dti_windows;

static bool dti_windows_of(const char *op, dt_tensor x, int64_t channels, int64_t kernel_h,
                           int64_t kernel_w, const dt_conv_desc *desc, dti_windows *out) {
    const bool small = kernel_h > 0 && kernel_w > 0 && kernel_h <= 256 && kernel_w <= 256;
    *out = (dti_windows){.channels = channels, .kernel = {kernel_h, kernel_w}};
    out->conv = desc ? *desc : (dt_conv_desc){0};
    if (small && channels > 0 && channels <= INT32_MAX && !out->conv.groups &&
        !out->conv.output_padding[0] && !out->conv.output_padding[1]) {
        out->conv.groups = (int32_t)channels;
        return true;
    }
    return dti_graph_refuse(
        x.graph,
        "%s(%s): a kernel of %lld x %lld: each side must be in [1, 256], and the "
        "description has neither groups nor output_padding",
        op, dti_tensor_print(x).text, (long long)kernel_h, (long long)kernel_w);
}

/* [C kh kw, 1, kh, kw]: output c kh kw + place takes the element at that place of channel c. */
static dt_tensor dti_windows_weight(dt_graph *g, const dti_windows *w) {
    const int64_t places = w->kernel[0] * w->kernel[1];
    const dt_shape one = {2, {places, 1}}, all = {4, {-1, 1, w->kernel[0], w->kernel[1]}};
    dt_tensor row = dt_iota(g, one), col = dt_iota(g, (dt_shape){1, {places}});
    dt_tensor pick = dt_expand(dt_eq(row, col), (dt_shape){3, {w->channels, places, places}});
    return dt_reshape(pick, all);
}

DTI_COMPOSED(dt_unfold, (dt_tensor x, int64_t kernel_h, int64_t kernel_w, const dt_conv_desc *desc),
             x, (x, kernel_h, kernel_w, desc)) {
    const dt_shape s = dti_tensor_shape(x);
    dti_windows w;
    DTI_NEED_TENSOR(x, "unfold");
    if (!dti_windows_of("unfold", x, s.rank == 3 ? s.dim[0] : 1, kernel_h, kernel_w, desc, &w))
        return dti_nil(x.graph);
    dt_tensor y = dt_conv2d(x, dti_windows_weight(x.graph, &w), (dt_tensor){0}, &w.conv);
    return dt_reshape(y, (dt_shape){2, {w.channels * kernel_h * kernel_w, -1}});
}

/* The number of windows along a side; -1: none fits. */
static int64_t dti_windows_along(const dti_windows *w, int side, int64_t size) {
    const int64_t step = w->conv.stride[side] > 0 ? w->conv.stride[side] : 1;
    const int64_t apart = w->conv.dilation[side] > 0 ? w->conv.dilation[side] : 1;
    const int64_t room = size + 2 * (int64_t)w->conv.padding[side] - apart * (w->kernel[side] - 1);
    return room > 0 && room < INT32_MAX ? (room - 1) / step + 1 : -1;
}

DTI_COMPOSED(dt_fold,
             (dt_tensor x, int64_t height, int64_t width, int64_t kernel_h, int64_t kernel_w,
              const dt_conv_desc *desc),
             x, (x, height, width, kernel_h, kernel_w, desc)) {
    const dt_shape s = dti_tensor_shape(x);
    const int64_t size[2] = {height, width};
    dti_windows w;
    DTI_NEED_TENSOR(x, "fold");
    const int64_t places = DTI_MAX(kernel_h, 1) * (kernel_w > 0 && kernel_w <= 256 ? kernel_w : 1);
    const bool whole = s.rank == 2 && kernel_h <= 256 && s.dim[0] % places == 0;
    if (!dti_windows_of("fold", x, whole ? s.dim[0] / places : 1, kernel_h, kernel_w, desc, &w))
        return dti_nil(x.graph);
    const bool sides = height > 0 && width > 0 && height <= INT32_MAX && width <= INT32_MAX;
    int64_t along[2] = {0};
    for (int i = 0; i < 2 && sides; i++) {
        const int64_t step = DTI_MAX(w.conv.stride[i], 1), apart = DTI_MAX(w.conv.dilation[i], 1);
        along[i] = dti_windows_along(&w, i, size[i]);
        w.conv.output_padding[i] =
            (int32_t)(size[i] - ((along[i] - 1) * step - 2 * (int64_t)w.conv.padding[i] +
                                 apart * (w.kernel[i] - 1) + 1));
    }
    if (!whole || along[0] < 1 || along[1] < 1 || along[0] * along[1] != s.dim[1]) {
        return dti_graph_fail(x.graph,
                              "fold(%s): it must be [C kh kw, L], of the L = %lld x %lld windows "
                              "of %lld x %lld in an image of %lld x %lld",
                              dti_tensor_print(x).text, (long long)DTI_MAX(along[0], 0),
                              (long long)DTI_MAX(along[1], 0), (long long)kernel_h,
                              (long long)kernel_w, (long long)height, (long long)width);
    }
    x = dt_reshape(x, (dt_shape){3, {s.dim[0], along[0], along[1]}});
    return dt_conv_transpose2d(x, dti_windows_weight(x.graph, &w), (dt_tensor){0}, &w.conv);
}
