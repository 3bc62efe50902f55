/* Functions written in ops: this file has no kernel. A function that derives a number from shapes
 * is a call (dti_compose), so a program of other shapes makes it again. */

/* A public function whose body follows; x: its first input. */
#define DTI_COMPOSED(name, params, x, args)                                                        \
    static dt_tensor dti_composed_##name params;                                                   \
    DT_API dt_tensor name params {                                                                 \
        return DTI_HERE ? dti_composed_##name args                                                 \
                        : dti_graph_off((x).graph, #name, DTI_HERE_OFF);                           \
    }                                                                                              \
    static dt_tensor dti_composed_##name params

typedef struct dti_along {
    int axis;     /* counted from the front */
    int64_t size; /* of the axis */
} dti_along;

/* An axis of x, which may be i32 only where `whole` says so. */
static bool dti_along_of(const char *op, dt_tensor x, int axis, bool whole, dti_along *out) {
    const dt_shape s = dti_tensor_shape(x);
    out->axis = dti_axis_of(x, axis);
    if (out->axis < 0 || out->axis >= s.rank)
        return dti_graph_refuse(x.graph, "%s: %s", op, dti_axis_text(axis, s.rank).text);
    if (!whole && dti_tensor_dtype(x) == DT_I32)
        return dti_graph_refuse(x.graph, "%s: %s is i32: cast it", op, dti_tensor_print(x).text);
    out->size = s.dim[out->axis];
    return true;
}

static dt_tensor dti_number(dt_tensor x, float value) {
    return dt_cast(dt_fill(x.graph, (dt_shape){0}, value), dti_tensor_dtype(x));
}

/* 1 where it is 0, and 0 where it is 1; of a share, the rest. */
static dt_tensor dti_not(dt_tensor x) {
    return dt_affine(x, -1.0f, 1.0f);
}

/* ---- choices */

DTI_COMPOSED(dt_where, (dt_tensor c, dt_tensor a, dt_tensor b), c, (c, a, b)) {
    dt_tensor kept = dt_mask(a, c);
    return dt_add(kept, dt_mask_inv(b, c));
}

DTI_COMPOSED(dt_masked_fill, (dt_tensor x, dt_tensor c, float value), x, (x, c, value)) {
    DTI_NEED_TENSOR(x, "masked_fill");
    return dt_where(c, dti_number(x, value), x);
}

/* i: lower; dim: diagonal */
static dt_tensor dti_triangle_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0);
    const bool lower = c->attr.i[0];
    int64_t diagonal = c->attr.dim[0];
    dti_along a;
    if (!dti_along_of(c->name, x, -2, false, &a))
        return dti_nil(g);
    const dt_shape s = dti_tensor_shape(x);
    const int64_t rows = s.dim[s.rank - 2], cols = s.dim[s.rank - 1];
    if (diagonal < -rows)
        diagonal = -rows;
    if (diagonal > cols)
        diagonal = cols;
    dt_tensor row = dt_affine(dt_iota(x.graph, (dt_shape){2, {rows, 1}}), 1.0f, (float)diagonal);
    dt_tensor col = dt_iota(x.graph, (dt_shape){1, {cols}});
    return dt_mask(x, dt_cast(lower ? dt_le(col, row) : dt_ge(col, row), dti_tensor_dtype(x)));
}

DTI_COMPOSED(dt_tril, (dt_tensor x, int64_t diagonal), x, (x, diagonal)) {
    return dti_compose("tril", dti_triangle_make, 1, (dti_inputs){{x}},
                       (dti_attr){.i = {true}, .dim = {diagonal}});
}

DTI_COMPOSED(dt_triu, (dt_tensor x, int64_t diagonal), x, (x, diagonal)) {
    return dti_compose("triu", dti_triangle_make, 1, (dti_inputs){{x}},
                       (dti_attr){.dim = {diagonal}});
}

/* ---- sums of many kinds */

static dt_tensor dti_sum_last(dt_tensor x) {
    return dt_sum(x, (dt_shape){1, {-1}}, false);
}

/* How many elements of x one of y is made of. */
static double dti_share(dt_tensor x, dt_tensor y) {
    const double all = (double)dti_shape_elements(dti_tensor_shape(x));
    const double kept = (double)dti_shape_elements(dti_tensor_shape(y));
    return kept > 0 ? all / kept : 0;
}

/* The root of x >= 0; its gradient is 0 where x is 0. */
static dt_tensor dti_safe_sqrt(dt_tensor x) {
    dt_tensor none = dt_eq(x, dti_number(x, 0.0f));
    return dt_mask_inv(dt_sqrt(dt_add(x, none)), none);
}

/* For each value of `top`: low far below 1, 1 near 1, and high far above. */
static dt_tensor dti_by_size(dt_tensor top, float low, float high) {
    dt_tensor small = dt_lt(top, dti_number(top, 0x1p-50f));
    dt_tensor large = dt_gt(top, dti_number(top, 0x1p50f));
    dt_tensor near = dti_not(dt_add(small, large));
    small = dt_affine(small, low, 0.0f);
    return dt_add(dt_add(small, dt_affine(large, high, 0.0f)), near);
}

/* share * the sum of d^2, or with `root` its root. Squares of large or small deviations leave
 * float32's range, so the deviations are first multiplied by a power of 2. */
static dt_tensor dti_spread(dt_tensor d, dt_shape axes, bool keep, float share, bool root) {
    if (!root || dti_tensor_dtype(d) != DT_F32) {
        dt_tensor variance = dt_affine(dt_sum(dt_square(d), axes, keep), share, 0.0f);
        return root ? dti_safe_sqrt(variance) : variance;
    }
    dt_tensor top = dt_detach(dt_max(dt_abs(d), axes, true));
    d = dt_mul(d, dti_by_size(top, 0x1p80f, 0x1p-80f));
    d = dti_safe_sqrt(dt_affine(dt_sum(dt_square(d), axes, keep), share, 0.0f));
    top = keep ? top : dt_max(top, axes, false);
    return dt_mul(d, dti_by_size(top, 0x1p-80f, 0x1p80f));
}

/* dim, i[0]: axes; i[1..3]: unbiased, keep, root */
static dt_tensor dti_var_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0);
    const dt_shape axes = dti_attr_shape(&c->attr);
    const bool unbiased = c->attr.i[1], keep = c->attr.i[2], root = c->attr.i[3];
    if (dti_reduce_mask(x, axes, c->name) < 0)
        return dti_nil(g);
    dt_tensor mean = dt_mean(x, axes, true);
    const double n = dti_share(x, mean);
    if (unbiased && n < 2) {
        return dti_graph_fail(x.graph, "%s: %s has fewer than 2 elements; use the biased variance",
                              c->name, dti_tensor_print(x).text);
    }
    const float share = (float)(1.0 / (unbiased ? n - 1 : n));
    return dti_spread(dt_sub(x, mean), axes, keep, share, root);
}

static dt_tensor dti_var(dt_tensor x, dt_shape axes, bool unbiased, bool keep, bool root) {
    dti_attr attr = dti_shape_attr(axes);
    attr.i[1] = unbiased;
    attr.i[2] = keep;
    attr.i[3] = root;
    return dti_compose(root ? "std" : "var", dti_var_make, 1, (dti_inputs){{x}}, attr);
}

DTI_COMPOSED(dt_var, (dt_tensor x, dt_shape axes, bool unbiased, bool keep), x,
             (x, axes, unbiased, keep)) {
    return dti_var(x, axes, unbiased, keep, false);
}

DTI_COMPOSED(dt_std, (dt_tensor x, dt_shape axes, bool unbiased, bool keep), x,
             (x, axes, unbiased, keep)) {
    return dti_var(x, axes, unbiased, keep, true);
}

DTI_COMPOSED(dt_vector_norm, (dt_tensor x, float p, dt_shape axes, bool keep), x,
             (x, p, axes, keep)) {
    DTI_NEED_TENSOR(x, "vector_norm");
    if (dti_reduce_mask(x, axes, "vector_norm") < 0)
        return dti_nil(x.graph);
    if (p == 1.0f)
        return dt_sum(dt_abs(x), axes, keep);
    if (p == 2.0f)
        return dti_safe_sqrt(dt_sum(dt_square(x), axes, keep));
    if (p == INFINITY)
        return dt_max(dt_abs(x), axes, keep);
    return dti_graph_fail(x.graph, "vector_norm: p is %g; it must be 1, 2 or INFINITY", (double)p);
}

/* From the largest, or from 0 where that is infinite. */
DTI_COMPOSED(dt_logsumexp, (dt_tensor x, dt_shape axes, bool keep), x, (x, axes, keep)) {
    DTI_NEED_TENSOR(x, "logsumexp");
    if (dti_reduce_mask(x, axes, "logsumexp") < 0)
        return dti_nil(x.graph);
    dt_tensor top = dt_detach(dt_max(x, axes, true));
    dt_tensor size = dt_abs(top);
    top = dt_mask(top, dt_lt(size, dti_number(top, INFINITY)));
    dt_tensor sum = dt_sum(dt_exp(dt_sub(x, top)), axes, keep);
    top = keep ? top : dt_sum(top, axes, false);
    return dt_add(dt_log(sum), top);
}

/* i: axis, keep */
static dt_tensor dti_prod_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0);
    const bool keep = c->attr.i[1];
    dti_along a;
    if (!dti_along_of(c->name, x, c->attr.i[0], false, &a))
        return dti_nil(g);
    const int at = a.axis;
    dt_shape s = dti_tensor_shape(x);
    dt_tensor y = x;
    int64_t n = a.size;
    s.dim[at] = 1;
    if (n == 0)
        y = dt_expand(dti_number(x, 1.0f), s);
    for (; n > 1; n = (n + 1) / 2) {
        const int64_t half = n / 2;
        dt_tensor low = dt_slice(y, at, 0, half);
        dt_tensor both = dt_mul(low, dt_slice(y, at, half, half));
        const dt_tensor parts[2] = {both, dt_slice(y, at, n - 1, 1)};
        y = n % 2 ? dt_concat(parts, 2, at) : both;
    }
    for (int i = at; !keep && i + 1 < s.rank; i++)
        s.dim[i] = s.dim[i + 1];
    s.rank -= !keep;
    return dt_reshape(y, s);
}

DTI_COMPOSED(dt_prod, (dt_tensor x, int axis, bool keep), x, (x, axis, keep)) {
    return dti_compose("prod", dti_prod_make, 1, (dti_inputs){{x}}, (dti_attr){.i = {axis, keep}});
}

static dt_tensor dti_cumsum_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0);
    dti_along a;
    if (!dti_along_of(c->name, x, c->attr.i[0], false, &a))
        return dti_nil(g);
    dt_tensor y = x;
    for (int64_t step = 1; step < a.size; step *= 2)
        y = dt_add(y, dt_pad(dt_slice(y, a.axis, 0, a.size - step), a.axis, step, 0));
    return a.size > 1 ? y : dt_copy(x);
}

DTI_COMPOSED(dt_cumsum, (dt_tensor x, int axis), x, (x, axis)) {
    return dti_compose("cumsum", dti_cumsum_make, 1, (dti_inputs){{x}}, (dti_attr){.i = {axis}});
}

/* ---- places */

static dt_tensor dti_isnan(dt_tensor x) {
    return dti_not(dt_eq(x, x));
}

/* 0, 1, ... along an axis of x. */
static dt_tensor dti_places(dt_tensor x, int axis) {
    const dt_shape s = dti_tensor_shape(x);
    dt_shape line = {.rank = s.rank - axis};
    for (int i = 0; i < line.rank; i++)
        line.dim[i] = i ? 1 : s.dim[axis];
    return dt_iota(x.graph, line);
}

/* i: axis, largest */
static dt_tensor dti_extreme_make(dt_graph *g, const dti_call *c) {
    dt_tensor x = dti_call_in(g, c, 0);
    const bool largest = c->attr.i[1];
    dti_along a;
    if (!dti_along_of(c->name, x, c->attr.i[0], false, &a))
        return dti_nil(g);
    const int at = a.axis;
    const int64_t n = a.size;
    if (n < 1 || n > 1 << 24) {
        return dti_graph_fail(g, "%s: axis %d of %s must have 1 to 2^24 elements", c->name, at,
                              dti_tensor_print(x).text);
    }
    const dt_shape axes = {1, {at}};
    x = dt_cast(dt_detach(x), DT_F32);
    dt_tensor best = largest ? dt_max(x, axes, true) : dt_min(x, axes, true);
    dt_tensor nan = dti_isnan(x), places = dti_places(x, at);
    dt_tensor hit = dt_maximum(dt_eq(x, best), nan);
    dt_tensor place = dt_where(hit, places, dti_number(x, (float)n));
    return dt_cast(dt_min(place, axes, false), DT_I32);
}

DTI_COMPOSED(dt_argmax, (dt_tensor x, int axis), x, (x, axis)) {
    return dti_compose("argmax", dti_extreme_make, 1, (dti_inputs){{x}},
                       (dti_attr){.i = {axis, true}});
}

DTI_COMPOSED(dt_argmin, (dt_tensor x, int axis), x, (x, axis)) {
    return dti_compose("argmin", dti_extreme_make, 1, (dti_inputs){{x}}, (dti_attr){.i = {axis}});
}

/* ---- formulas of elements */

DTI_COMPOSED(dt_outer, (dt_tensor a, dt_tensor b), a, (a, b)) {
    const dt_shape s = dti_tensor_shape(a), t = dti_tensor_shape(b);
    DTI_NEED_TENSOR(a, "outer");
    DTI_NEED_TENSOR(b, "outer");
    if (s.rank != 1 || t.rank != 1) {
        return dti_graph_fail(a.graph, "outer: a %s and b %s must have one dimension each",
                              dti_tensor_print(a).text, dti_tensor_print(b).text);
    }
    return dt_mul(dt_reshape(a, (dt_shape){2, {-1, 1}}), b);
}

DTI_COMPOSED(dt_cross, (dt_tensor a, dt_tensor b), a, (a, b)) {
    const dt_shape s = dti_tensor_shape(a), t = dti_tensor_shape(b);
    DTI_NEED_TENSOR(a, "cross");
    DTI_NEED_TENSOR(b, "cross");
    if (s.rank < 1 || t.rank < 1 || s.dim[s.rank - 1] != 3 || t.dim[t.rank - 1] != 3) {
        return dti_graph_fail(a.graph, "cross: a %s and b %s must end in 3",
                              dti_tensor_print(a).text, dti_tensor_print(b).text);
    }
    dt_tensor part[3];
    for (int i = 0; i < 3; i++) {
        const int j = (i + 1) % 3, k = (i + 2) % 3;
        dt_tensor aj = dt_slice(a, -1, j, 1), ak = dt_slice(a, -1, k, 1);
        dt_tensor bj = dt_slice(b, -1, j, 1), bk = dt_slice(b, -1, k, 1);
        aj = dt_mul(aj, bk);
        part[i] = dt_sub(aj, dt_mul(ak, bj));
    }
    return dt_concat(part, 3, -1);
}

static dt_tensor dti_glu_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0);
    dti_along a;
    if (!dti_along_of(c->name, x, c->attr.i[0], false, &a))
        return dti_nil(g);
    const int64_t half = a.size / 2;
    if (a.size % 2)
        return dti_graph_fail(g, "glu: axis %d of %s must have an even size", a.axis,
                              dti_tensor_print(x).text);
    dt_tensor gate = dt_sigmoid(dt_slice(x, a.axis, half, half));
    return dt_mul(dt_slice(x, a.axis, 0, half), gate);
}

DTI_COMPOSED(dt_glu, (dt_tensor x, int axis), x, (x, axis)) {
    return dti_compose("glu", dti_glu_make, 1, (dti_inputs){{x}}, (dti_attr){.i = {axis}});
}

DTI_COMPOSED(dt_celu, (dt_tensor x, float alpha), x, (x, alpha)) {
    DTI_NEED_TENSOR(x, "celu");
    if (!(alpha > 0.0f) || alpha == INFINITY)
        return dti_graph_fail(x.graph, "celu: alpha is %g; it must be above 0", (double)alpha);
    dt_tensor below = dt_elu(dt_affine(x, 1.0f / alpha, 0.0f), 1.0f);
    below = dt_affine(below, alpha, 0.0f);
    return dt_where(dt_heaviside(x), x, below);
}

DTI_COMPOSED(dt_prelu, (dt_tensor x, dt_tensor w), x, (x, w)) {
    const dt_shape s = dti_tensor_shape(x), t = dti_tensor_shape(w);
    DTI_NEED_TENSOR(x, "prelu");
    DTI_NEED_TENSOR(w, "prelu");
    if (t.rank != 1 || (t.dim[0] != 1 && (s.rank < 1 || t.dim[0] != s.dim[0]))) {
        return dti_graph_fail(x.graph, "prelu: the weight %s must be [1], or [C] for x %s",
                              dti_tensor_print(w).text, dti_tensor_print(x).text);
    }
    dt_shape wide = {.rank = s.rank};
    for (int i = 0; i < s.rank; i++)
        wide.dim[i] = i ? 1 : t.dim[0];
    dt_tensor above = dt_heaviside(x), below = dt_mask_inv(x, above);
    below = dt_mul(below, dt_reshape(w, wide));
    return dt_add(dt_mask(x, above), below);
}

DTI_COMPOSED(dt_straight_through, (dt_tensor value, dt_tensor x), value, (value, x)) {
    value = dt_detach(value);
    return dt_add(value, dt_sub(x, dt_detach(x)));
}

/* ---- normalisation */

DTI_COMPOSED(dt_instance_norm, (dt_tensor x, dt_tensor w, dt_tensor b, float eps), x,
             (x, w, b, eps)) {
    const dt_shape s = dti_tensor_shape(x);
    if (s.rank > 0 && s.dim[0] > INT32_MAX)
        return dti_graph_fail(x.graph, "instance_norm: %s has too many channels",
                              dti_tensor_print(x).text);
    return dt_group_norm(x, s.rank > 0 ? (int)s.dim[0] : 1, w, b, eps);
}

DTI_COMPOSED(dt_weight_norm, (dt_tensor v, dt_tensor g), v, (v, g)) {
    const dt_shape s = dti_tensor_shape(v), t = dti_tensor_shape(g);
    DTI_NEED_TENSOR(v, "weight_norm");
    DTI_NEED_TENSOR(g, "weight_norm");
    if (s.rank < 2 || t.rank != 1 || t.dim[0] != s.dim[0]) {
        return dti_graph_fail(v.graph, "weight_norm: v %s must be [O, ...] and g %s [O]",
                              dti_tensor_print(v).text, dti_tensor_print(g).text);
    }
    dt_shape axes = {.rank = s.rank - 1}, tall = {.rank = s.rank, .dim = {s.dim[0]}};
    for (int i = 1; i < s.rank; i++)
        axes.dim[i - 1] = i, tall.dim[i] = 1;
    dt_tensor size = dt_vector_norm(v, 2.0f, axes, true);
    return dt_mul(v, dt_div(dt_reshape(g, tall), size));
}

/* ---- dropout of more than elements */

/* Ones of a shape, one for each sample if x has samples, some of them dropped in training. */
static dt_tensor dti_drops(dt_tensor x, dt_shape s, float p) {
    dt_tensor one = dt_fill(x.graph, (dt_shape){0}, 1.0f);
    return dt_dropout(dti_expand_to(one, s, dti_tensor_has_samples(x)), p);
}

/* f: p; i: the mask's stream */
static dt_tensor dti_dropout_channels_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0);
    const uint32_t streams = g->streams;
    dt_shape s = dti_tensor_shape(x);
    if (s.rank < 1)
        return dti_graph_fail(g, "dropout_channels: %s has no channels", dti_tensor_print(x).text);
    for (int i = 1; i < s.rank; i++)
        s.dim[i] = 1;
    if (c->attr.f[0] == 0.0f)
        return x;
    g->streams = (uint32_t)c->attr.i[0];
    dt_tensor y = dt_mul(x, dt_cast(dti_drops(x, s, c->attr.f[0]), dti_tensor_dtype(x)));
    g->streams = DTI_MAX(streams, g->streams);
    return y;
}

DTI_COMPOSED(dt_dropout_channels, (dt_tensor x, float p), x, (x, p)) {
    const int32_t stream = x.graph ? (int32_t)x.graph->streams : 0;
    return dti_compose("dropout_channels", dti_dropout_channels_make, 1, (dti_inputs){{x}},
                       (dti_attr){.f = {p}, .i = {stream}});
}

DTI_COMPOSED(dt_drop_path, (dt_tensor x, float p), x, (x, p)) {
    DTI_NEED_TENSOR(x, "drop_path");
    dt_tensor mask = dti_drops(x, (dt_shape){0}, p);
    return p == 0.0f ? x : dt_mul(x, dt_cast(mask, dti_tensor_dtype(x)));
}

/* Dropped elements become -alpha', selu's lowest value; mean and variance are put right. */
DTI_COMPOSED(dt_alpha_dropout, (dt_tensor x, float p), x, (x, p)) {
    DTI_NEED_TENSOR(x, "alpha_dropout");
    if (p == 0.0f)
        return x;
    const double low = -1.7580993408473766, q = (double)p;
    const double a = q < 1.0 ? 1.0 / sqrt((low * low * q + 1.0) * (1.0 - q)) : 0.0;
    dt_tensor none = dt_detach(x);
    none = dt_mask(none, dti_number(x, 0.0f)); /* of x's shape, whatever it is */
    dt_tensor kept = dt_heaviside(dt_dropout(dt_affine(none, 1.0f, 1.0f), p));
    dt_tensor mixed = dt_where(kept, x, dt_fill(x.graph, (dt_shape){0}, (float)low));
    dt_tensor right = dt_affine(mixed, (float)a, (float)(-a * low * q));
    return dt_where(dti_train_mode(x.graph), right, x);
}

/* ---- images */

/* i: in; dim: r */
static dt_tensor dti_pixels_make(dt_graph *g, const dti_call *call) {
    const dt_tensor x = dti_call_in(g, call, 0);
    const int64_t r = call->attr.dim[0];
    const bool in = call->attr.i[0];
    const dt_shape s = dti_tensor_shape(x);
    const int64_t c = s.dim[0], h = s.dim[1], w = s.dim[2];
    const bool small = r > 0 && r < 1 << 15;
    if (s.rank != 3 || !small || (in ? h % r || w % r : c % (r * r) != 0)) {
        return dti_graph_fail(g, "%s: %s does not divide by %lld: it takes %s", call->name,
                              dti_tensor_print(x).text, (long long)r,
                              in ? "[C, H r, W r]" : "[C r r, H, W]");
    }
    const dt_shape apart = {5, {c / (r * r), r, r, h, w}}, joined = {5, {c, h / r, r, w / r, r}};
    if (in)
        return dt_reshape(dt_permute(dt_reshape(x, joined), (dt_shape){5, {0, 2, 4, 1, 3}}),
                          (dt_shape){3, {c * r * r, h / r, w / r}});
    return dt_reshape(dt_permute(dt_reshape(x, apart), (dt_shape){5, {0, 3, 1, 4, 2}}),
                      (dt_shape){3, {c / (r * r), h * r, w * r}});
}

DTI_COMPOSED(dt_pixel_shuffle, (dt_tensor x, int64_t r), x, (x, r)) {
    return dti_compose("pixel_shuffle", dti_pixels_make, 1, (dti_inputs){{x}},
                       (dti_attr){.dim = {r}});
}

DTI_COMPOSED(dt_pixel_unshuffle, (dt_tensor x, int64_t r), x, (x, r)) {
    return dti_compose("pixel_unshuffle", dti_pixels_make, 1, (dti_inputs){{x}},
                       (dti_attr){.i = {true}, .dim = {r}});
}
