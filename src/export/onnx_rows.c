/* Rows of the op table as ONNX operators. A simple row has a text, its formula in postfix. In it x
 * and y are the inputs, p and q the node's parameters, a and b the row's. A digit is itself, and
 * f32 a cast. Name/2 is an operator with two inputs, and :alpha its attribute, of value p. An op
 * without a row is an error that names it. */

/* ---- formulas */

static uint32_t dti_onnx_leaf(dti_onnx *o, const dti_node *n, const dti_onnx_row *row, char c) {
    switch (c) {
    case 'x': return dti_onnx_lifted(o, n, 0, n->shape.rank);
    case 'y': return dti_onnx_lifted(o, n, 1, n->shape.rank);
    case 'p': return dti_onnx_scalar(o, n->attr.f[0]);
    case 'q': return dti_onnx_scalar(o, n->attr.f[1]);
    case 'a': return dti_onnx_scalar(o, row->a);
    case 'b': return dti_onnx_scalar(o, row->b);
    default: return dti_onnx_scalar(o, (float)(c - '0'));
    }
}

/* The word at `at`, of `size` letters, on a stack of `count` values; how many are left. */
static int dti_onnx_apply(dti_onnx *o, const dti_node *n, const char *at, int size, uint32_t *stack,
                          int count) {
    char name[24], attribute[24] = "";
    int inputs = 1;
    if (size == 3 && !memcmp(at, "f32", 3)) {
        stack[count - 1] = dti_onnx_op(o, "Cast", 1, stack[count - 1]);
        dti_onnx_int(o, "to", DTI_ONNX_F32);
        return count;
    }
    const char *slash = memchr(at, '/', (size_t)size);
    const int length = (int)(slash - at), rest = size - length - 2; /* ":alpha" */
    snprintf(name, sizeof name, "%.*s", length, at);
    if (rest > 0)
        snprintf(attribute, sizeof attribute, "%.*s", rest - 1, slash + 3);
    inputs = slash[1] - '0';
    count -= inputs;
    const uint32_t *in = stack + count;
    stack[count] = dti_onnx_op(o, name, (uint32_t)inputs, in[0], inputs > 1 ? in[1] : 0,
                               inputs > 2 ? in[2] : 0);
    if (attribute[0])
        dti_onnx_float(o, attribute, n->attr.f[0]);
    return count + 1;
}

static uint32_t dti_onnx_formula(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    uint32_t stack[8] = {0};
    int count = 0;
    for (const char *at = row->text; *at;) {
        const int size = (int)strcspn(at, " ");
        if (size == 1)
            stack[count++] = dti_onnx_leaf(o, n, row, *at);
        else
            count = dti_onnx_apply(o, n, at, size, stack, count);
        at += size + (at[size] == ' ');
    }
    return stack[0];
}

/* ---- leaves */

static uint32_t dti_onnx_fill(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    const uint32_t x = dti_onnx_scalar(o, n->op == DTI_OP_FILL ? n->attr.f[0] : 0.0f);
    if (n->samples)
        return dti_onnx_refuse(o, n, "a constant with the sample axis");
    if (!n->shape.rank)
        return x;
    return dti_onnx_op(o, "Expand", 2, x, dti_onnx_list(o, n->shape.dim, n->shape.rank));
}

static uint32_t dti_onnx_iota(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    const float end = (float)dti_shape_elements(n->shape);
    const uint32_t line = dti_onnx_op(o, "Range", 3, dti_onnx_scalar(o, 0.0f),
                                      dti_onnx_scalar(o, end), dti_onnx_scalar(o, 1.0f));
    return n->samples ? dti_onnx_refuse(o, n, "a constant with the sample axis")
                      : dti_onnx_reshape(o, line, false, n->shape);
}

/* ---- shapes */

static uint32_t dti_onnx_same(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    return dti_onnx_in(o, n, 0);
}

static uint32_t dti_onnx_cast(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    const uint32_t x = dti_onnx_op(o, "Cast", 1, dti_onnx_in(o, n, 0));
    dti_onnx_int(o, "to", n->dtype == DT_I32 ? DTI_ONNX_I32 : DTI_ONNX_F32);
    return x;
}

static uint32_t dti_onnx_as(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    return dti_onnx_reshape(o, dti_onnx_in(o, n, 0), n->samples, n->shape);
}

static uint32_t dti_onnx_transpose(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    return dti_onnx_permute(o, dti_onnx_in(o, n, 0), n->samples, n->shape.rank, n->attr.dim);
}

/* Of attention's row only the results exist, which lie before its logarithms. */
static uint32_t dti_onnx_slice(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    const int64_t start = n->attr.dim[0], end = start + n->attr.dim[1];
    const dti_node *in = dti_onnx_node(o, n, 0);
    if (in->op == DTI_OP_ATTENTION) {
        const dti_attention a = dti_attention_of(o->g, in);
        if (n->attr.i[0] != 1 || end > a.heads * a.dv)
            return dti_onnx_refuse(o, n, "it reads the log-sum-exp of attention");
    }
    return dti_onnx_part(o, dti_onnx_in(o, n, 0), start, end, n->attr.i[0] + n->samples);
}

static uint32_t dti_onnx_expand(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    const bool spread = n->samples && !dti_onnx_node(o, n, 0)->samples;
    int64_t dim[DT_MAX_DIMS + 1] = {1};
    for (int i = 0; i < n->shape.rank; i++)
        dim[1 + i] = n->shape.dim[i];
    uint32_t shape = dti_onnx_list(o, n->samples ? dim : dim + 1, n->shape.rank + n->samples);
    if (spread) {
        shape = dti_onnx_op(o, "Concat", 2, dti_onnx_batch(o, n),
                            dti_onnx_list(o, dim + 1, n->shape.rank));
        dti_onnx_int(o, "axis", 0);
    }
    return dti_onnx_op(o, "Expand", 2, dti_onnx_lifted(o, n, 0, n->shape.rank), shape);
}

static uint32_t dti_onnx_concat(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    uint32_t y = dti_onnx_in(o, n, 0);
    if (n->samples)
        y = dti_onnx_spread(o, n, 0);
    for (uint32_t k = 1; k < n->count && y; k++) {
        const uint32_t x = n->samples ? dti_onnx_spread(o, n, k) : dti_onnx_in(o, n, k);
        y = x ? dti_onnx_op(o, "Concat", 2, y, x) : 0;
        if (x)
            dti_onnx_int(o, "axis", n->attr.i[0] + n->samples);
    }
    return y;
}

static uint32_t dti_onnx_pad(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    const int axis = n->attr.i[1], rank = n->shape.rank + n->samples;
    const int64_t size = dti_onnx_node(o, n, 0)->shape.dim[axis], start = n->attr.i[2];
    int64_t pads[2 * (DT_MAX_DIMS + 1)] = {0};
    pads[axis + n->samples] = start;
    pads[rank + axis + n->samples] = n->shape.dim[axis] - size - start;
    return dti_onnx_op(o, "Pad", 2, dti_onnx_in(o, n, 0), dti_onnx_list(o, pads, 2 * rank));
}

static uint32_t dti_onnx_output_of(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    if (dti_input_id(o->g, n, 0) != o->packed)
        return dti_onnx_refuse(o, n, "it does not follow the op of which it is an output");
    return o->outputs[n->attr.i[0]];
}

/* ---- reductions and products */

static uint32_t dti_onnx_reduce(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    const dti_node *in = dti_onnx_node(o, n, 0);
    uint32_t x = dti_onnx_in(o, n, 0);
    int64_t axes[DT_MAX_DIMS + 1];
    int count = 0;
    if (n->attr.i[1] && in->samples)
        axes[count++] = 0;
    for (int i = 0; i < in->shape.rank; i++) {
        if (n->attr.i[0] >> i & 1)
            axes[count++] = i + in->samples;
    }
    if (count && n->op == DTI_OP_SUM) /* its axes are a value, unlike those of others */
        x = dti_onnx_op(o, row->text, 2, x, dti_onnx_list(o, axes, count));
    else if (count)
        x = dti_onnx_op(o, row->text, 1, x);
    if (count)
        dti_onnx_int(o, "keepdims", 0);
    if (count && n->op != DTI_OP_SUM)
        dti_onnx_ints(o, "axes", axes, count);
    if (n->op == DTI_OP_SUM && n->attr.f[0] != 1.0f)
        x = dti_onnx_op(o, "Mul", 2, x, dti_onnx_scalar(o, n->attr.f[0]));
    return dti_onnx_reshape(o, x, n->samples, n->shape);
}

static uint32_t dti_onnx_matmul(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    uint32_t x[2];
    for (uint32_t k = 0; k < 2; k++) {
        const dti_node *in = dti_onnx_node(o, n, k);
        const int rank = in->samples ? n->shape.rank : in->shape.rank;
        x[k] = dti_onnx_lifted(o, n, k, n->shape.rank);
        if (n->attr.i[k])
            x[k] = dti_onnx_turned(o, x[k], in->samples, rank);
    }
    return dti_onnx_op(o, "MatMul", 2, x[0], x[1]);
}

static uint32_t dti_onnx_linear(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    const dti_node *x = dti_onnx_node(o, n, 0);
    const uint32_t b = n->count > 2 ? dti_onnx_in(o, n, 2) : 0, w = dti_onnx_in(o, n, 1);
    if (x->shape.rank + x->samples == 2) {
        const uint32_t y = dti_onnx_op(o, "Gemm", b ? 3 : 2, dti_onnx_in(o, n, 0), w, b);
        dti_onnx_int(o, "transB", 1);
        return y;
    }
    const uint32_t y =
        dti_onnx_op(o, "MatMul", 2, dti_onnx_in(o, n, 0), dti_onnx_turned(o, w, false, 2));
    return b ? dti_onnx_op(o, "Add", 2, y, b) : y;
}

static uint32_t dti_onnx_softmax(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    const uint32_t y = dti_onnx_op(o, row->text, 1, dti_onnx_in(o, n, 0));
    dti_onnx_int(o, "axis", -1);
    return y;
}

static uint32_t dti_onnx_gather(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    return dti_onnx_op(o, "Gather", 2, dti_onnx_in(o, n, 0), dti_onnx_in(o, n, 1));
}

/* ---- images: [samples, channels, height, width] */

static uint32_t dti_onnx_image(dti_onnx *o, const dti_node *n) {
    const dti_node *in = dti_onnx_node(o, n, 0);
    const dt_shape s = {4, {1, in->shape.dim[0], in->shape.dim[1], in->shape.dim[2]}};
    return in->samples ? dti_onnx_in(o, n, 0) : dti_onnx_reshape(o, dti_onnx_in(o, n, 0), false, s);
}

static uint32_t dti_onnx_image_end(dti_onnx *o, const dti_node *n, uint32_t y) {
    return n->samples ? y : dti_onnx_reshape(o, y, false, n->shape);
}

static void dti_onnx_window(dti_onnx *o, const char *name, const int32_t *two) {
    dti_onnx_ints(o, name, (const int64_t[]){two[0], two[1]}, 2);
}

static uint32_t dti_onnx_conv(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    const int32_t *i = n->attr.i, *p = i + DTI_CONV_PADDING;
    const dt_shape in = dti_onnx_node(o, n, 0)->shape, w = dti_onnx_node(o, n, 1)->shape;
    const uint32_t x = dti_onnx_image(o, n);
    uint32_t y = dti_onnx_op(o, row->text, n->count, x, dti_onnx_in(o, n, 1),
                             n->count > 2 ? dti_onnx_in(o, n, 2) : 0);
    dti_onnx_window(o, "strides", i + DTI_CONV_STRIDE);
    dti_onnx_window(o, "dilations", i + DTI_CONV_DILATION);
    dti_onnx_ints(o, "pads", (const int64_t[]){p[0], p[1], p[0], p[1]}, 4);
    dti_onnx_int(o, "group", i[DTI_CONV_GROUPS]);
    if (n->op != DTI_OP_CONV2D) { /* the adjoint, of a size that more than one has */
        int64_t more[2];
        for (int k = 0; k < 2; k++)
            more[k] = n->shape.dim[1 + k] - (in.dim[1 + k] - 1) * i[DTI_CONV_STRIDE + k] -
                      (w.dim[2 + k] - 1) * i[DTI_CONV_DILATION + k] - 1 + 2 * (int64_t)p[k];
        dti_onnx_ints(o, "output_padding", more, 2);
    }
    return dti_onnx_image_end(o, n, y);
}

/* The windows of a pooling row. */
typedef struct dti_pool_window {
    int64_t kernel[2], stride[2], padding[2];
    int64_t end[2];    /* past the image's end: only ceil_mode needs it */
    bool mean, counts; /* counts: with the padding */
} dti_pool_window;

/* NULL, or why no kind of file has it. */
static const char *dti_export_pool(const dti_node *n, dt_shape in, dti_pool_window *w) {
    const int32_t *i = n->attr.i;
    w->mean = n->op == DTI_OP_AVG_POOL2D;
    w->counts = w->mean && i[DTI_POOL_MODE] != DTI_POOL_EXCLUDE_PAD;
    for (int k = 0; k < 2; k++) {
        const int64_t from = in.dim[1 + k], to = n->shape.dim[1 + k];
        const bool adaptive = w->mean && i[DTI_POOL_MODE] == DTI_POOL_ADAPTIVE;
        if (adaptive && from % to)
            return "adaptive average pooling with windows of different sizes";
        w->kernel[k] = adaptive ? from / to : i[DTI_POOL_KERNEL + k];
        w->stride[k] = adaptive ? from / to : i[DTI_POOL_STRIDE + k];
        w->padding[k] = i[DTI_POOL_PADDING + k];
        const int64_t end = (to - 1) * w->stride[k] + w->kernel[k] - from - w->padding[k];
        w->end[k] = DTI_MAX(end, (int64_t)0);
        if (w->counts && w->end[k] > w->padding[k])
            return "average pooling with ceil_mode that counts the padding";
    }
    return NULL;
}

static uint32_t dti_onnx_pool(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    dti_pool_window w;
    const char *why = dti_export_pool(n, dti_onnx_node(o, n, 0)->shape, &w);
    if (why)
        return dti_onnx_refuse(o, n, "%s", why);
    const uint32_t x = dti_onnx_image(o, n), y = dti_onnx_op(o, row->text, 1, x);
    dti_onnx_ints(o, "kernel_shape", w.kernel, 2);
    dti_onnx_ints(o, "strides", w.stride, 2);
    dti_onnx_ints(o, "pads", (const int64_t[]){w.padding[0], w.padding[1], w.end[0], w.end[1]}, 4);
    if (w.mean)
        dti_onnx_int(o, "count_include_pad", w.counts);
    return dti_onnx_image_end(o, n, y);
}

static uint32_t dti_onnx_resize(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    const bool nearest = n->attr.i[0] == DT_RESIZE_NEAREST;
    const uint32_t x = dti_onnx_image(o, n);
    uint32_t samples = n->samples ? dti_onnx_batch(o, n) : dti_onnx_one(o, 1);
    if (!samples)
        return 0;
    uint32_t size = dti_onnx_op(o, "Concat", 2, samples, dti_onnx_list(o, n->shape.dim, 3));
    dti_onnx_int(o, "axis", 0);
    const uint32_t y = dti_onnx_op(o, "Resize", 4, x, (uint32_t)0, (uint32_t)0, size);
    dti_onnx_word(o, "mode", nearest ? "nearest" : "linear", false);
    dti_onnx_word(o, "coordinate_transformation_mode", nearest ? "asymmetric" : "half_pixel",
                  false);
    if (nearest)
        dti_onnx_word(o, "nearest_mode", "floor", false);
    return dti_onnx_image_end(o, n, y);
}

/* ---- the table */

#define DTI_ONNX_F(formula)                                                                        \
    { dti_onnx_formula, formula, 0.0f, 0.0f }
#define DTI_ONNX_C(formula, first, second)                                                         \
    { dti_onnx_formula, formula, first, second }

static const dti_onnx_row dti_onnx_rows[DTI_OP_COUNT] = {
    [DTI_OP_FILL] = {dti_onnx_fill, NULL, 0.0f, 0.0f},
    [DTI_OP_TRAIN_MODE] = {dti_onnx_fill, NULL, 0.0f, 0.0f},
    [DTI_OP_IOTA] = {dti_onnx_iota, NULL, 0.0f, 0.0f},
    [DTI_OP_NEG] = DTI_ONNX_F("x Neg/1"),
    [DTI_OP_ABS] = DTI_ONNX_F("x Abs/1"),
    [DTI_OP_SIGN] = DTI_ONNX_F("x Sign/1"),
    [DTI_OP_EXP] = DTI_ONNX_F("x Exp/1"),
    [DTI_OP_LOG] = DTI_ONNX_F("x Log/1"),
    [DTI_OP_LOG1P] = DTI_ONNX_F("x 1 Add/2 Log/1"),
    [DTI_OP_EXPM1] = DTI_ONNX_F("x Exp/1 1 Sub/2"),
    [DTI_OP_SQRT] = DTI_ONNX_F("x Sqrt/1"),
    [DTI_OP_RSQRT] = DTI_ONNX_F("x Sqrt/1 Reciprocal/1"),
    [DTI_OP_RECIPROCAL] = DTI_ONNX_F("x Reciprocal/1"),
    [DTI_OP_SQUARE] = DTI_ONNX_F("x x Mul/2"),
    [DTI_OP_SIN] = DTI_ONNX_F("x Sin/1"),
    [DTI_OP_COS] = DTI_ONNX_F("x Cos/1"),
    [DTI_OP_TANH] = DTI_ONNX_F("x Tanh/1"),
    [DTI_OP_SIGMOID] = DTI_ONNX_F("x Sigmoid/1"),
    [DTI_OP_RELU] = DTI_ONNX_F("x Relu/1"),
    [DTI_OP_LEAKY_RELU] = DTI_ONNX_F("x LeakyRelu/1:alpha"),
    [DTI_OP_GELU] =
        DTI_ONNX_C("x a Mul/2 Erf/1 1 Add/2 x Mul/2 b Mul/2", 0.70710678118654752f, 0.5f),
    [DTI_OP_GELU_TANH] =
        DTI_ONNX_C("x x x Mul/2 a Mul/2 1 Add/2 Mul/2 b Mul/2 Tanh/1 1 Add/2 x Mul/2 2 Div/2",
                   0.044715f, 0.79788456080286536f),
    [DTI_OP_SILU] = DTI_ONNX_F("x x Sigmoid/1 Mul/2"),
    [DTI_OP_SOFTPLUS] = DTI_ONNX_F("x Softplus/1"),
    [DTI_OP_LOG_SIGMOID] = DTI_ONNX_F("x Neg/1 Softplus/1 Neg/1"),
    [DTI_OP_LOG_FLOOR] = DTI_ONNX_F("x Log/1 p Max/2"),
    [DTI_OP_ELU] = DTI_ONNX_F("x Elu/1:alpha"),
    [DTI_OP_SELU] = DTI_ONNX_F("x Selu/1"),
    [DTI_OP_MISH] = DTI_ONNX_F("x x Softplus/1 Tanh/1 Mul/2"),
    [DTI_OP_SOFTSIGN] = DTI_ONNX_F("x Softsign/1"),
    [DTI_OP_HARDSIGMOID] = DTI_ONNX_F("x 3 Add/2 0 Max/2 6 Min/2 6 Div/2"),
    [DTI_OP_HARDSWISH] = DTI_ONNX_F("x 3 Add/2 0 Max/2 6 Min/2 6 Div/2 x Mul/2"),
    [DTI_OP_CLAMP] = DTI_ONNX_F("x p Max/2 q Min/2"),
    [DTI_OP_ERF] = DTI_ONNX_F("x Erf/1"),
    [DTI_OP_ATAN] = DTI_ONNX_F("x Atan/1"),
    [DTI_OP_FLOOR] = DTI_ONNX_F("x Floor/1"),
    [DTI_OP_CEIL] = DTI_ONNX_F("x Ceil/1"),
    [DTI_OP_ROUND] = DTI_ONNX_F("x Round/1"),
    [DTI_OP_HEAVISIDE] = DTI_ONNX_F("x 0 Greater/2 f32"),
    [DTI_OP_AFFINE] = DTI_ONNX_F("x p Mul/2 q Add/2"),
    [DTI_OP_ADD] = DTI_ONNX_F("x y Add/2"),
    [DTI_OP_SUB] = DTI_ONNX_F("x y Sub/2"),
    [DTI_OP_MUL] = DTI_ONNX_F("x y Mul/2"),
    [DTI_OP_DIV] = DTI_ONNX_F("x y Div/2"),
    [DTI_OP_MAXIMUM] = DTI_ONNX_F("x y Max/2"),
    [DTI_OP_MINIMUM] = DTI_ONNX_F("x y Min/2"),
    [DTI_OP_POW] = DTI_ONNX_F("x y Pow/2"),
    [DTI_OP_EQ] = DTI_ONNX_F("x y Equal/2 f32"),
    [DTI_OP_LT] = DTI_ONNX_F("x y Less/2 f32"),
    [DTI_OP_LE] = DTI_ONNX_F("x y LessOrEqual/2 f32"),
    [DTI_OP_GT] = DTI_ONNX_F("x y Greater/2 f32"),
    [DTI_OP_GE] = DTI_ONNX_F("x y GreaterOrEqual/2 f32"),
    [DTI_OP_MASK] = DTI_ONNX_F("y 0 Equal/2 0 x Where/3"),
    [DTI_OP_MASK_INV] = DTI_ONNX_F("y 0 Equal/2 x 0 Where/3"),
    [DTI_OP_RESHAPE] = {dti_onnx_as, NULL, 0.0f, 0.0f},
    [DTI_OP_PERMUTE] = {dti_onnx_transpose, NULL, 0.0f, 0.0f},
    [DTI_OP_SLICE] = {dti_onnx_slice, NULL, 0.0f, 0.0f},
    [DTI_OP_EXPAND] = {dti_onnx_expand, NULL, 0.0f, 0.0f},
    [DTI_OP_DETACH] = {dti_onnx_same, NULL, 0.0f, 0.0f},
    [DTI_OP_COPY] = {dti_onnx_same, NULL, 0.0f, 0.0f},
    [DTI_OP_DROPOUT] = {dti_onnx_same, NULL, 0.0f, 0.0f},
    [DTI_OP_CACHE] = {dti_onnx_same, NULL, 0.0f, 0.0f},
    [DTI_OP_CAST] = {dti_onnx_cast, NULL, 0.0f, 0.0f},
    [DTI_OP_OUTPUT_OF] = {dti_onnx_output_of, NULL, 0.0f, 0.0f},
    [DTI_OP_CONCAT] = {dti_onnx_concat, NULL, 0.0f, 0.0f},
    [DTI_OP_PAD] = {dti_onnx_pad, NULL, 0.0f, 0.0f},
    [DTI_OP_SUM] = {dti_onnx_reduce, "ReduceSum", 0.0f, 0.0f},
    [DTI_OP_MAX] = {dti_onnx_reduce, "ReduceMax", 0.0f, 0.0f},
    [DTI_OP_MIN] = {dti_onnx_reduce, "ReduceMin", 0.0f, 0.0f},
    [DTI_OP_MATMUL] = {dti_onnx_matmul, NULL, 0.0f, 0.0f},
    [DTI_OP_LINEAR] = {dti_onnx_linear, NULL, 0.0f, 0.0f},
    [DTI_OP_SOFTMAX] = {dti_onnx_softmax, "Softmax", 0.0f, 0.0f},
    [DTI_OP_LOG_SOFTMAX] = {dti_onnx_softmax, "LogSoftmax", 0.0f, 0.0f},
    [DTI_OP_ATTENTION] = {dti_onnx_attention, NULL, 0.0f, 0.0f},
    [DTI_OP_RECURRENCE] = {dti_onnx_recurrence, NULL, 0.0f, 0.0f},
    [DTI_OP_EMBEDDING] = {dti_onnx_gather, NULL, 0.0f, 0.0f},
    [DTI_OP_CONV2D] = {dti_onnx_conv, "Conv", 0.0f, 0.0f},
    [DTI_OP_CONV2D_DX] = {dti_onnx_conv, "ConvTranspose", 0.0f, 0.0f},
    [DTI_OP_MAX_POOL2D] = {dti_onnx_pool, "MaxPool", 0.0f, 0.0f},
    [DTI_OP_AVG_POOL2D] = {dti_onnx_pool, "AveragePool", 0.0f, 0.0f},
    [DTI_OP_RESIZE] = {dti_onnx_resize, NULL, 0.0f, 0.0f},
    [DTI_OP_NORM] = {dti_onnx_norm, NULL, 0.0f, 0.0f},
};
