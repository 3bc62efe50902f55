/* The CPU kernels of pooling, resizing and normalisation, as test_conv_kernel.c does it. */

static void pool_check(const conv_case *t, const double *want, double bound, int index) {
    const float *got = t->buf[t->out];
    int64_t bad = 0;
    for (int64_t i = 0; i < t->size[t->out]; i++)
        bad += dti_nan_f32((float)want[i])
                   ? !dti_nan_f32(got[i])
                   : !(fabs((double)got[i] - want[i]) <= bound * (1 + fabs(want[i])));
    test_check(bad == 0, __FILE__, __LINE__, "shape %d, kernel %d, spec %d %d: %d of %d are wrong",
               index, t->l.kernel, (int)t->l.spec[0], (int)t->l.spec[1], (int)bad,
               (int)t->size[t->out]);
}

/* n, ih, iw, kh, kw, stride h w, pad h w, ceil mode */
static const int pool_shapes[][10] = {
    {3, 24, 24, 2, 2, 2, 2, 0, 0, 0}, {2, 4, 38, 2, 2, 2, 2, 0, 0, 0},
    {2, 2, 64, 2, 2, 2, 2, 0, 0, 0},  {2, 13, 15, 3, 3, 2, 2, 1, 1, 0},
    {2, 7, 41, 3, 2, 1, 1, 1, 1, 0},  {2, 9, 70, 2, 3, 2, 3, 0, 1, 1},
    {1, 5, 5, 5, 5, 5, 5, 0, 0, 0},   {2, 6, 39, 1, 1, 2, 2, 0, 0, 0},
    {1, 1, 1, 1, 1, 1, 1, 0, 0, 0},   {2, 10, 37, 4, 4, 2, 2, 2, 2, 1},
    {0, 4, 4, 2, 2, 2, 2, 0, 0, 0},
};

static int pool_size(int in, int k, int stride, int pad, bool up) {
    int n = (in + 2 * pad - k + (up ? stride - 1 : 0)) / stride + 1;
    return n - (up && (n - 1) * stride >= in + pad);
}

static dti_args_pool pool_args(const int *s) {
    return (dti_args_pool){.n = (uint32_t)s[0],
                           .ih = (uint32_t)s[1],
                           .iw = (uint32_t)s[2],
                           .oh = (uint32_t)pool_size(s[1], s[3], s[5], s[7], s[9]),
                           .ow = (uint32_t)pool_size(s[2], s[4], s[6], s[8], s[9]),
                           .kh = (uint32_t)s[3],
                           .kw = (uint32_t)s[4],
                           .stride_h = (uint32_t)s[5],
                           .stride_w = (uint32_t)s[6],
                           .pad_h = (uint32_t)s[7],
                           .pad_w = (uint32_t)s[8]};
}

/* Whether element (i, j) of a plane is in window (p, q). */
static bool pool_inside(const dti_args_pool *a, uint32_t kind, int i, int j, int p, int q) {
    if (kind == DTI_POOL_ADAPTIVE)
        return i >= p * (int)a->ih / (int)a->oh && j >= q * (int)a->iw / (int)a->ow &&
               i * (int)a->oh < (p + 1) * (int)a->ih && j * (int)a->ow < (q + 1) * (int)a->iw;
    int r = i + (int)a->pad_h - p * (int)a->stride_h, s = j + (int)a->pad_w - q * (int)a->stride_w;
    return r >= 0 && r < (int)a->kh && s >= 0 && s < (int)a->kw;
}

/* Of a window: the element that it takes (x not NULL), and what its sum is divided by. */
static int64_t pool_choice(const dti_args_pool *a, const float *x, uint32_t kind, int p, int q,
                           double *share) {
    int64_t best = -1;
    double count = 0;
    for (int i = 0; i < (int)a->ih; i++)
        for (int j = 0; j < (int)a->iw; j++) {
            int64_t at = (int64_t)i * a->iw + j;
            if (!pool_inside(a, kind, i, j, p, q))
                continue;
            count++;
            if (x && (best < 0 || dti_nan_f32(x[at]) || (!dti_nan_f32(x[best]) && x[at] > x[best])))
                best = at;
        }
    if (kind == DTI_POOL_INCLUDE_PAD) {
        int i = p * (int)a->stride_h - (int)a->pad_h, j = q * (int)a->stride_w - (int)a->pad_w;
        count = DTI_MIN((int)a->kh, (int)(a->ih + a->pad_h) - i) *
                (double)DTI_MIN((int)a->kw, (int)(a->iw + a->pad_w) - j);
    }
    *share = count;
    return best;
}

static void pool_naive(const conv_case *t, double *want) {
    const dti_args_pool *a = &t->l.args.pool;
    const int64_t in = (int64_t)a->ih * a->iw, out = (int64_t)a->oh * a->ow;
    const bool max = t->l.kernel == DTI_K_MAX_POOL || t->l.kernel == DTI_K_MAX_POOL_GRAD;
    const bool relu = t->l.spec[1] == DTI_EPILOGUE_RELU_GRAD;
    for (int64_t e = 0; e < a->n * out; e++) {
        const int64_t base = e / out * in;
        const uint32_t kind = max ? DTI_POOL_EXCLUDE_PAD : t->l.spec[0];
        const float *x = t->l.kernel == DTI_K_AVG_POOL_GRAD ? NULL : t->buf[0] + base;
        const int p = (int)(e % out / a->ow), q = (int)(e % a->ow);
        double share;
        int64_t at = pool_choice(a, x, kind, p, q, &share);
        if (t->l.kernel == DTI_K_MAX_POOL)
            want[e] = (double)t->buf[1][base + at];
        if (t->l.kernel == DTI_K_MAX_POOL_GRAD && (!relu || (!dti_nan_f32(x[at]) && x[at] > 0)))
            want[base + at] += (double)t->buf[1][e];
        for (int64_t i = 0; i < in && !max; i++) {
            if (!pool_inside(a, kind, (int)(i / a->iw), (int)(i % a->iw), p, q))
                continue;
            if (t->l.kernel == DTI_K_AVG_POOL)
                want[e] += (double)x[i] / share;
            else
                want[base + i] += (double)t->buf[0][e] / share;
        }
    }
}

static conv_case pool_case(const int *s, int kernel, uint32_t kind, bool relu) {
    conv_case t = {.out = kernel == DTI_K_MAX_POOL || kernel == DTI_K_MAX_POOL_GRAD ? 2 : 1};
    dti_args_pool a = pool_args(s);
    const bool back = kernel == DTI_K_MAX_POOL_GRAD || kernel == DTI_K_AVG_POOL_GRAD;
    if (kind == DTI_POOL_ADAPTIVE)
        a.oh = (a.ih + 1) / 2, a.ow = (a.iw + 2) / 3;
    t.l = (dti_launch){.kernel = (uint16_t)kernel, .items = 1};
    t.l.spec[0] = kind, t.l.spec[1] = relu ? DTI_EPILOGUE_RELU_GRAD : 0;
    t.l.args.pool = a;
    const int64_t x = (int64_t)a.n * a.ih * a.iw, y = (int64_t)a.n * a.oh * a.ow;
    conv_buffer(&t, 0, kernel == DTI_K_AVG_POOL_GRAD ? y : x, false);
    if (t.out == 2)
        conv_buffer(&t, 1, back ? y : x, false);
    conv_buffer(&t, t.out, back ? x : y, true);
    for (int64_t i = 0; t.out == 2 && i < x; i++) /* equals, and some NaN */
        t.buf[0][i] = i % 31 == 7 ? NAN : (float)(kernel_random() % 7) - 3;
    if (kernel == DTI_K_MAX_POOL && !relu)
        memcpy(t.buf[1], t.buf[0], (size_t)x * sizeof(float));
    return t;
}

TEST(pooling_and_its_gradients_are_those_of_plain_loops) {
    for (size_t i = 0; i < DTI_COUNT(pool_shapes); i++)
        for (int kernel = DTI_K_MAX_POOL; kernel <= DTI_K_AVG_POOL_GRAD; kernel++)
            for (int variant = 0; variant < 3; variant++) {
                bool max = kernel <= DTI_K_MAX_POOL_GRAD;
                if (max && variant == 2)
                    continue;
                conv_case t =
                    pool_case(pool_shapes[i], kernel, max ? 0 : (uint32_t)variant, max && variant);
                double *want = calloc((size_t)t.size[t.out] + 1, sizeof *want);
                pool_naive(&t, want);
                conv_same(&t, "pooling");
                pool_check(&t, want, 1e-6, (int)i);
                if (kernel == DTI_K_MAX_POOL && !variant) { /* x is g */
                    float *g = t.buf[1];
                    t.buf[1] = NULL;
                    t.l.value[1] = t.l.value[0];
                    conv_same(&t, "max pooling of x");
                    pool_check(&t, want, 0, (int)i);
                    t.buf[1] = g;
                }
                free(want);
                conv_free(&t);
            }
}

/* ---- resizing */

static void resize_naive(const conv_case *t, double *want) {
    const dti_args_resize *a = &t->l.args.resize;
    const bool back = t->l.kernel == DTI_K_RESIZE_GRAD, linear = t->l.spec[0] == 1;
    for (int64_t e = 0; e < (int64_t)a->n * a->oh * a->ow; e++) {
        const int64_t base = e / (a->oh * a->ow) * a->ih * a->iw;
        const float at[2] = {(float)(e / a->ow % a->oh), (float)(e % a->ow)};
        const float scale[2] = {a->scale_h, a->scale_w};
        const int64_t in[2] = {a->ih, a->iw};
        int64_t low[2], high[2];
        double part[2];
        for (int d = 0; d < 2; d++) {
            float mid = (at[d] + 0.5f) * scale[d] - 0.5f;
            float source = linear ? fmaxf(mid, 0) : floorf(at[d] * scale[d]);
            low[d] = DTI_MIN((int64_t)source, in[d] - 1);
            high[d] = DTI_MIN(low[d] + 1, in[d] - 1);
            part[d] = linear ? (double)(source - (float)low[d]) : 0;
        }
        for (int i = 0; i < 4; i++) {
            int64_t x = base + (i & 1 ? high[0] : low[0]) * a->iw + (i & 2 ? high[1] : low[1]);
            double weight = (i & 1 ? part[0] : 1 - part[0]) * (i & 2 ? part[1] : 1 - part[1]);
            want[back ? x : e] += weight * (double)t->buf[0][back ? e : x];
        }
    }
}

TEST(resizing_and_its_gradient_are_those_of_plain_loops) {
    static const uint32_t shapes[][5] = {
        {3, 4, 5, 8, 10}, {2, 7, 9, 3, 20}, {1, 1, 1, 5, 7}, {2, 6, 6, 6, 6}, {0, 2, 2, 4, 4}};
    for (size_t i = 0; i < DTI_COUNT(shapes); i++)
        for (int variant = 0; variant < 4; variant++) {
            const uint32_t *s = shapes[i];
            const bool back = variant & 2;
            conv_case t = {.out = 1};
            t.l = (dti_launch){.kernel = back ? DTI_K_RESIZE_GRAD : DTI_K_RESIZE, .items = 1};
            t.l.spec[0] = variant & 1;
            t.l.args.resize = (dti_args_resize){.n = s[0],
                                                .ih = s[1],
                                                .iw = s[2],
                                                .oh = s[3],
                                                .ow = s[4],
                                                .scale_h = (float)s[1] / (float)s[3],
                                                .scale_w = (float)s[2] / (float)s[4]};
            conv_buffer(&t, 0, (int64_t)s[0] * (back ? s[3] * s[4] : s[1] * s[2]), false);
            conv_buffer(&t, 1, (int64_t)s[0] * (back ? s[1] * s[2] : s[3] * s[4]), true);
            double *want = calloc((size_t)t.size[1] + 1, sizeof *want);
            resize_naive(&t, want);
            conv_same(&t, "resizing");
            pool_check(&t, want, 1e-5, (int)i);
            free(want);
            conv_free(&t);
        }
}

/* ---- normalisation */

/* samples, channels, spatial, channels of a group (0 = batch) */
static const int norm_shapes[][4] = {
    {5, 12, 7, 0}, {70, 37, 1, 0}, {300, 5, 1, 0},   {4, 3, 100, 0}, {6, 50, 1, 50}, {3, 12, 9, 4},
    {3, 12, 1, 4}, {2, 6, 40, 1},  {5, 200, 1, 200}, {1, 8, 3, 8},   {2, 1, 33, 1}};

typedef struct norm_values { /* by element */
    double *mean, *factor, *hat, *dx;
    double *dw, *db; /* by channel */
} norm_values;

static int64_t norm_group(const dti_args_norm *a, int64_t e) {
    return a->batch ? e / a->spatial % a->channels : e / a->cols;
}

/* From x, dy and w (NULL = 1): all that the kernels give. */
static void norm_naive(const dti_args_norm *a, const float *x, const float *dy, const float *w,
                       bool rms, bool train, norm_values *v) {
    const int64_t n = a->n;
    double *sums = calloc((size_t)a->groups * 4, sizeof *sums);
    for (int64_t e = 0; e < n && !rms; e++)
        sums[4 * norm_group(a, e)] += (double)x[e] / a->cols;
    for (int64_t e = 0; e < n; e++) {
        double d = (double)x[e] - sums[4 * norm_group(a, e)];
        sums[4 * norm_group(a, e) + 1] += d * d / a->cols;
    }
    for (int64_t e = 0; e < n; e++) {
        double *s = sums + 4 * norm_group(a, e), g = (double)dy[e];
        int64_t c = e / a->spatial % a->channels;
        v->mean[e] = s[0], v->factor[e] = 1 / sqrt(s[1] + (double)a->eps);
        v->hat[e] = ((double)x[e] - s[0]) * v->factor[e];
        v->dw[c] += g * v->hat[e];
        v->db[c] += g;
        g *= w ? (double)w[c] : 1;
        s[2] += rms ? 0 : g / a->cols;
        s[3] += g * v->hat[e] / a->cols;
    }
    for (int64_t e = 0; e < n; e++) {
        double *s = sums + 4 * norm_group(a, e), g = (double)dy[e];
        g *= w ? (double)w[e / a->spatial % a->channels] : 1;
        v->dx[e] = v->factor[e] * (train ? g - s[2] - v->hat[e] * s[3] : g);
    }
    free(sums);
}

static void norm_launch(conv_case *t, int kernel, const dti_args_norm *a, const float *const *in,
                        const int64_t *size, int out) {
    *t = (conv_case){.out = out};
    t->l = (dti_launch){.kernel = (uint16_t)kernel};
    t->l.args.norm = *a;
    t->l.items = kernel == DTI_K_NORM_DW ? a->channels : a->groups;
    for (int i = 0; i <= out; i++) {
        conv_buffer(t, i, size[i], i == out);
        if (i < out)
            memcpy(t->buf[i], in[i], (size_t)size[i] * sizeof(float));
    }
}

static void norm_finish(conv_case *t, const double *want, int index) {
    conv_same(t, "normalisation");
    pool_check(t, want, 2e-5, index);
    conv_free(t);
}

static void norm_shape(int index, bool rms) {
    const int *s = norm_shapes[index];
    const int64_t c = s[1], n = (int64_t)s[0] * c * s[2];
    dti_args_norm a = {.n = (uint32_t)n,
                       .batch = s[3] == 0,
                       .channels = (uint32_t)c,
                       .spatial = (uint32_t)s[2],
                       .eps = 1e-3f};
    a.cols = (uint32_t)(s[3] ? s[3] * s[2] : s[0] * s[2]);
    a.groups = (uint32_t)(n / a.cols);
    a.b_offset = a.channels;
    float *x = kernel_floats(n), *dy = kernel_floats(n), *w = kernel_floats(5 * c);
    float *stats = kernel_floats(2 * a.groups);
    double *d = calloc((size_t)(5 * n + 4 * c + 2 * a.groups), sizeof *d);
    norm_values v = {d, d + n, d + 2 * n, d + 3 * n, d + 4 * n, d + 4 * n + c};
    double *want = d + 4 * n + 2 * c;
    conv_case t;
    norm_naive(&a, x, dy, w, rms, true, &v);
    for (int64_t e = 0; e < n; e++) {
        int64_t g = norm_group(&a, e);
        want[2 * g] = v.mean[e];
        want[2 * g + 1] = 1 / (v.factor[e] * v.factor[e]) - (double)a.eps;
        stats[2 * g] = (float)want[2 * g], stats[2 * g + 1] = (float)want[2 * g + 1];
    }
    norm_launch(&t, DTI_K_NORM_STATS, &a, (const float *[]){x}, (int64_t[]){n, 2 * a.groups}, 1);
    t.l.spec[0] = rms;
    norm_finish(&t, want, index);
    for (int kind = DTI_NORM_PLAIN; kind <= DTI_NORM_AFFINE; kind++) {
        norm_launch(&t, DTI_K_NORM, &a, (const float *[]){x, stats, w},
                    (int64_t[]){n, 2 * a.groups, 2 * c, n}, 3);
        t.l.spec[0] = (uint32_t)kind, t.l.spec[1] = kind == 1 ? DTI_EPILOGUE_RELU : 0;
        for (int64_t e = 0; e < n; e++) {
            int64_t i = e / s[2] % c;
            want[e] = v.hat[e] * (kind ? (double)w[i] : 1) + (kind > 1 ? (double)w[c + i] : 0);
            want[e] = kind == 1 && want[e] < 0 ? 0 : want[e];
        }
        norm_finish(&t, want, index);
    }
    norm_launch(&t, DTI_K_NORM_DW, &a, (const float *[]){x, stats, dy},
                (int64_t[]){n, 2 * a.groups, n, 2 * c}, 3);
    norm_finish(&t, v.dw, index);
    for (int kind = 0; kind < 2; kind++) {
        float *m = kernel_floats(5 * c);
        for (int64_t i = 0; i < c && a.batch; i++) {
            m[2 * i] = stats[2 * i], m[2 * i + 1] = stats[2 * i + 1];
            m[2 * c + i] = (float)v.dw[i], m[3 * c + i] = (float)v.db[i], m[4 * c + i] = w[i];
        }
        memset(d, 0, (size_t)(4 * n) * sizeof *d);
        double *kept = calloc((size_t)(2 * c), sizeof *kept);
        norm_values again = {d, d + n, d + 2 * n, d + 3 * n, kept, kept + c};
        norm_naive(&a, x, dy, a.batch || kind ? w : NULL, rms, !a.batch || kind, &again);
        norm_launch(&t, a.batch ? DTI_K_BATCH_DX : DTI_K_NORM_DX, &a,
                    (const float *[]){x, dy, a.batch ? m : w},
                    (int64_t[]){n, n, a.batch ? 5 * c : c, n}, 3);
        t.l.spec[0] = a.batch ? (uint32_t)kind : rms, t.l.spec[1] = (uint32_t)kind;
        norm_finish(&t, d + 3 * n, index);
        free(m);
        free(kept);
    }
    free(x), free(dy), free(w), free(stats), free(d);
}

TEST(normalisation_and_its_gradients_are_those_of_plain_loops) {
    for (size_t i = 0; i < DTI_COUNT(norm_shapes); i++) {
        norm_shape((int)i, false);
        if (norm_shapes[i][3])
            norm_shape((int)i, true);
    }
}
