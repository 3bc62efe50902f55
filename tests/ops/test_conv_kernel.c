/* The CPU kernels of convolution, pooling, resizing and normalisation against naive loops in
 * double, over many shapes; the same bits for every instruction set, cut and number of threads,
 * and of a sample for every batch. They are run as the executor runs them: by their launch. */

typedef struct conv_case {
    dti_launch l;
    float *buf[4];
    int64_t size[4]; /* of the buffers; each is followed by one float that nothing may touch */
    int out;
} conv_case;

static const float conv_guard = 12345.678f;

static void conv_buffer(conv_case *t, int binding, int64_t size, bool zero) {
    t->size[binding] = size;
    t->buf[binding] = malloc((size_t)(size + 1) * sizeof(float));
    for (int64_t i = 0; i < size; i++)
        t->buf[binding][i] = zero ? NAN : kernel_uniform();
    t->buf[binding][size] = conv_guard;
}

static void conv_free(conv_case *t) {
    for (int i = 0; i < 4; i++)
        free(t->buf[i]);
}

/* Runs the launch in calls of `step` items, the last first, and checks what lies after. */
static void conv_run(conv_case *t, const dti_isa_kernels *k, int threads, int64_t step) {
    const uint32_t words[DTI_STEP_WORDS] = {0};
    dti_cpu_task task = {.launch = &t->l, .step = words, .k = k, .threads = threads};
    for (int i = 0; i < 4; i++)
        task.buf[i] = t->buf[i] ? t->buf[i] : t->buf[0];
    const dti_kernel_info *fn = dti_kernel_info_of(t->l.kernel);
    size_t bytes = fn->scratch_bytes ? (fn->scratch_bytes(&t->l, threads) + 63) / 64 * 64 : 0;
    float *scratch = aligned_alloc(64, bytes + 64);
    memset(scratch, 0xff, bytes + 64);
    for (int64_t i = 0; i < t->size[t->out]; i++)
        t->buf[t->out][i] = NAN;
    int64_t items = fn->outer ? fn->outer(&task) : (int64_t)t->l.items;
    CHECK(items >= 0 && dti_cpu_grain(&task) >= 1);
    step = step ? step : DTI_MAX(items, 1);
    for (int64_t begin = (items - 1) / step * step; begin >= 0 && items; begin -= step)
        fn->run(&task, begin, DTI_MIN(begin + step, items), scratch);
    uint64_t beyond;
    memcpy(&beyond, (char *)scratch + bytes, sizeof beyond);
    CHECK(beyond == UINT64_MAX);
    for (int i = 0; i < 4; i++)
        CHECK(!t->buf[i] || t->buf[i][t->size[i]] == conv_guard);
    free(scratch);
}

/* The same bits on every set of one class, for every cut and thread count. */
static void conv_same(conv_case *t, const char *what) {
    const dti_isa_kernels *best = dti_isa_kernels_select(DTI_ISA_BEST);
    size_t bytes = (size_t)t->size[t->out] * sizeof(float);
    float *want = malloc(bytes + 1);
    conv_run(t, best, 1, 0);
    memcpy(want, t->buf[t->out], bytes);
    for (int isa = 0; isa <= best->isa; isa++) {
        const dti_isa_kernels *k = dti_isa_kernels_select(isa);
        for (int threads = 1; threads <= 3 && k->fma == best->fma; threads++) {
            conv_run(t, k, threads, threads == 2 ? 0 : threads);
            test_check(kernel_same(t->buf[t->out], want, t->size[t->out]), __FILE__, __LINE__,
                       "%s differs: %s, %d threads", what, k->name, threads);
        }
    }
    free(want);
}

/* ---- convolution */

typedef struct conv_sums {
    double *sum, *size; /* of products, of their magnitudes */
} conv_sums;

/* n, groups, ci, co, ih, iw, kh, kw, stride h w, pad h w, dil h w, more x rows and columns */
static const int conv_shapes[][16] = {
    {2, 1, 1, 8, 9, 9, 3, 3, 1, 1, 0, 0, 1, 1, 0, 0},
    {3, 1, 1, 32, 28, 28, 3, 3, 1, 1, 0, 0, 1, 1, 0, 0},
    {1, 1, 32, 64, 26, 26, 3, 3, 1, 1, 0, 0, 1, 1, 0, 0},
    {2, 1, 16, 16, 28, 28, 3, 3, 1, 1, 1, 1, 1, 1, 0, 0},
    {2, 1, 16, 32, 28, 28, 3, 3, 2, 2, 1, 1, 1, 1, 0, 0},
    {2, 1, 32, 64, 14, 14, 1, 1, 2, 2, 0, 0, 1, 1, 0, 0},
    {2, 1, 64, 64, 7, 7, 3, 3, 1, 1, 1, 1, 1, 1, 0, 0},
    {11, 1, 24, 40, 7, 7, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0},
    {2, 1, 3, 14, 33, 31, 7, 7, 2, 2, 3, 3, 1, 1, 0, 0},
    {2, 6, 1, 1, 15, 17, 3, 3, 1, 1, 1, 1, 1, 1, 0, 0},
    {2, 5, 1, 2, 16, 16, 5, 3, 2, 2, 2, 1, 1, 1, 0, 0},
    {2, 2, 6, 10, 11, 13, 3, 3, 1, 1, 1, 1, 2, 2, 0, 0},
    {2, 1, 5, 7, 13, 11, 3, 2, 3, 2, 1, 1, 2, 3, 0, 0},
    {3, 1, 4, 6, 8, 8, 8, 8, 1, 1, 0, 0, 1, 1, 0, 0},
    {3, 1, 7, 33, 5, 6, 5, 6, 1, 1, 0, 0, 1, 1, 0, 0},
    {2, 1, 3, 9, 16, 16, 4, 4, 4, 4, 0, 0, 1, 1, 0, 0},
    {2, 1, 2, 5, 7, 9, 2, 2, 3, 3, 0, 0, 1, 1, 0, 0},
    {2, 1, 9, 3, 10, 12, 3, 3, 1, 1, 1, 1, 1, 1, 0, 0},
    {1, 3, 2, 3, 1, 40, 1, 5, 1, 2, 0, 2, 1, 1, 0, 0},
    {1, 1, 130, 37, 6, 5, 3, 3, 1, 1, 2, 2, 1, 1, 0, 0},
    {1, 1, 300, 70, 4, 4, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0},
    {2, 1, 4, 4, 6, 6, 3, 3, 2, 2, 0, 0, 1, 1, 1, 1},
    {2, 1, 4, 4, 6, 6, 1, 1, 1, 1, 0, 0, 2, 2, 1, 0},
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0},
    {1, 1, 24, 20, 70, 70, 3, 3, 1, 1, 1, 1, 1, 1, 0, 0},
    {2, 1, 17, 13, 19, 23, 5, 5, 1, 1, 4, 4, 1, 1, 0, 0},
    {0, 1, 3, 5, 6, 6, 3, 3, 1, 1, 1, 1, 1, 1, 0, 0},
};

static dti_args_conv conv_args(const int *s) {
    dti_args_conv a = {.n = (uint32_t)s[0],
                       .groups = (uint32_t)s[1],
                       .ci = (uint32_t)s[2],
                       .co = (uint32_t)s[3],
                       .ih = (uint32_t)(s[4] + s[14]),
                       .iw = (uint32_t)(s[5] + s[15]),
                       .kh = (uint32_t)s[6],
                       .kw = (uint32_t)s[7],
                       .stride_h = (uint32_t)s[8],
                       .stride_w = (uint32_t)s[9],
                       .pad_h = (uint32_t)s[10],
                       .pad_w = (uint32_t)s[11],
                       .dil_h = (uint32_t)s[12],
                       .dil_w = (uint32_t)s[13],
                       .splits = 1,
                       .cuts = 1};
    a.oh = (uint32_t)((s[4] + 2 * s[10] - s[12] * (s[6] - 1) - 1) / s[8] + 1);
    a.ow = (uint32_t)((s[5] + 2 * s[11] - s[13] * (s[7] - 1) - 1) / s[9] + 1);
    return a;
}

/* Every product of the convolution once: calls add(x's, w's and y's place) through the sums. */
static void conv_naive(const conv_case *t, int kernel, const conv_sums *to) {
    const dti_args_conv *a = &t->l.args.conv;
    const float *p = t->buf[0] + (kernel == DTI_K_CONV ? a->x_offset : a->y_offset);
    const float *q = t->buf[1] + (kernel == DTI_K_CONV_DW ? a->x_offset : a->w_offset);
    const int64_t weights = (int64_t)a->groups * a->co * a->ci * a->kh * a->kw;
    const int64_t positions = (int64_t)a->oh * a->ow, all = (int64_t)a->n * a->groups * a->co;
    for (int64_t e = 0; e < all * positions; e++) {
        int64_t col = e % a->ow, row = e / a->ow % a->oh, go = e / positions % (a->groups * a->co);
        int64_t b = e / positions / (a->groups * a->co), g = go / a->co;
        int64_t split = 0, cut = 0, lines = a->oh > 1 ? a->oh : a->ow;
        while ((int64_t)a->n * (split + 1) / a->splits <= b)
            split++;
        while (lines * (cut + 1) / a->cuts <= (a->oh > 1 ? row : col))
            cut++;
        for (int64_t k = 0; k < (int64_t)a->ci * a->kh * a->kw; k++) {
            int64_t c = k / a->kh / a->kw, r = k / a->kw % a->kh, s = k % a->kw;
            int64_t i = row * a->stride_h - a->pad_h + r * a->dil_h;
            int64_t j = col * a->stride_w - a->pad_w + s * a->dil_w;
            if (i < 0 || i >= a->ih || j < 0 || j >= a->iw)
                continue;
            int64_t x = ((((b * a->groups + g) * a->ci + c) * a->ih) + i) * a->iw + j;
            int64_t w = go * a->ci * a->kh * a->kw + k;
            bool dw = kernel == DTI_K_CONV_DW, dx = kernel == DTI_K_CONV_DX;
            double product = (double)p[dw || dx ? e : x] * (double)q[dw ? x : w];
            int64_t at = dx ? x : dw ? (cut * a->splits + split) * weights + w : e;
            to->sum[at] += product;
            to->size[at] += fabs(product);
        }
    }
}

static conv_case conv_case_of(const int *s, int kernel, int epilogue, bool bias) {
    conv_case t = {.out = 2};
    dti_args_conv a = conv_args(s);
    int64_t x = (int64_t)a.n * a.groups * a.ci * a.ih * a.iw;
    int64_t y = (int64_t)a.n * a.groups * a.co * a.oh * a.ow;
    int64_t w = (int64_t)a.groups * a.co * a.ci * a.kh * a.kw;
    bool dw = kernel == DTI_K_CONV_DW, dx = kernel == DTI_K_CONV_DX;
    a.splits = dw ? (uint32_t)DTI_MIN(DTI_MAX(s[0], 1), 3) : 1;
    a.cuts = dw ? DTI_MIN(1 + a.iw % 4, a.oh > 1 ? a.oh : a.ow) : 1;
    t.l = (dti_launch){.kernel = (uint16_t)kernel, .items = 1, .spec = {bias, (uint32_t)epilogue}};
    t.l.args.conv = a;
    conv_buffer(&t, 0, dw || dx ? y : x, false);
    conv_buffer(&t, 1, dw ? x : w, false);
    conv_buffer(&t, 2, dw ? w * a.splits * a.cuts : dx ? x : y, true);
    if (!dw)
        conv_buffer(&t, 3, bias ? a.groups * (dx ? a.ci : a.co) : t.size[2], false);
    return t;
}

/* Its operands in 16 bits, and its result except for sums of weights' gradients. */
static void conv_halve(conv_case *t, dt_dtype type) {
    const dti_isa_kernels *k = dti_isa_kernels_select(DTI_ISA_BEST);
    for (int b = 0; b < 4; b++) {
        if (!t->buf[b] || (b == 2 && t->l.kernel == DTI_K_CONV_DW))
            continue;
        uint16_t *halves = malloc((size_t)t->size[b] * sizeof *halves + 1);
        k->narrow[type](halves, t->buf[b], t->size[b]);
        memcpy(t->buf[b], halves, (size_t)t->size[b] * sizeof *halves);
        free(halves);
        t->l.dtype[b] = (uint8_t)type;
    }
}

static void conv_check(const conv_case *t, const conv_sums *sums, int index) {
    const dti_args_conv *a = &t->l.args.conv;
    const bool dx = t->l.kernel == DTI_K_CONV_DX;
    const int64_t plane = dx ? (int64_t)a->ih * a->iw : (int64_t)a->oh * a->ow;
    const int64_t channels = a->groups * (dx ? a->ci : a->co);
    int64_t bad = 0;
    for (int64_t i = 0; i < t->size[2]; i++) {
        double want = sums->sum[i], size = sums->size[i];
        if (t->l.spec[0]) {
            want += (double)t->buf[3][i / plane % channels];
            size += fabs((double)t->buf[3][i / plane % channels]);
        }
        if (t->l.spec[1] == DTI_EPILOGUE_RELU && want < 0)
            want = 0;
        if (t->l.spec[1] == DTI_EPILOGUE_RELU_GRAD && !(t->buf[3][i] > 0))
            want = size = 0;
        bad += !(fabs((double)t->buf[2][i] - want) <= 0x1p-18 * size);
    }
    test_check(bad == 0, __FILE__, __LINE__, "shape %d, kernel %d, %d of %d are wrong", index,
               t->l.kernel, (int)bad, (int)t->size[2]);
}

TEST(convolution_and_its_gradients_are_within_their_bounds) {
    const dti_isa_kernels *best = dti_isa_kernels_select(DTI_ISA_AVX512);
    for (size_t i = 0; i < DTI_COUNT(conv_shapes); i++)
        for (int kernel = DTI_K_CONV; kernel <= DTI_K_CONV_DW; kernel++) {
            if (!test_takes((long)i + kernel + 1, 1, 3)) /* below it is another of each shape */
                continue;
            int epilogue = kernel == DTI_K_CONV_DW ? 0 : (int)i % 3;
            bool bias = kernel != DTI_K_CONV_DW && epilogue != DTI_EPILOGUE_RELU_GRAD && i / 2 % 2;
            conv_case t = conv_case_of(conv_shapes[i], kernel, epilogue, bias);
            conv_sums sums = {calloc((size_t)t.size[2] + 1, 8), calloc((size_t)t.size[2] + 1, 8)};
            conv_naive(&t, kernel, &sums);
            for (int isa = 0; isa <= best->isa; isa++) {
                conv_run(&t, dti_isa_kernels_select(isa), 1 + (int)i % 4, 0);
                conv_check(&t, &sums, (int)i);
            }
            free(sums.sum);
            free(sums.size);
            conv_free(&t);
        }
}

TEST(convolution_has_one_result_for_every_set_cut_and_thread_count) {
    for (size_t i = 0; i < DTI_COUNT(conv_shapes); i++)
        for (int kernel = DTI_K_CONV; kernel <= DTI_K_CONV_DW; kernel++) {
            char what[32];
            if (!test_takes((long)i + kernel, 1, 3)) /* another kernel of each shape */
                continue;
            snprintf(what, sizeof what, "shape %d, kernel %d", (int)i, kernel);
            conv_case t = conv_case_of(conv_shapes[i], kernel, (int)i % 2, kernel != DTI_K_CONV_DW);
            conv_same(&t, what);
            conv_halve(&t, i % 5 == 4 ? DT_F16 : DT_BF16);
            conv_same(&t, what);
            conv_free(&t);
        }
}

TEST(convolution_of_a_sample_does_not_depend_on_its_batch) {
    const dti_isa_kernels *best = dti_isa_kernels_select(DTI_ISA_AVX512);
    for (size_t i = 0; i < DTI_COUNT(conv_shapes); i++)
        for (int kernel = DTI_K_CONV; kernel <= DTI_K_CONV_DX; kernel++) {
            conv_case t = conv_case_of(conv_shapes[i], kernel, 0, true);
            const int64_t last = (int64_t)t.l.args.conv.n - 1;
            const int64_t out = t.size[2] / DTI_MAX(last + 1, 1);
            if (last < 1) {
                conv_free(&t);
                continue;
            }
            conv_run(&t, best, 1, 0);
            float *want = malloc((size_t)out * sizeof *want);
            memcpy(want, t.buf[2] + last * out, (size_t)out * sizeof *want);
            memmove(t.buf[0], t.buf[0] + last * (t.size[0] / (last + 1)),
                    (size_t)(t.size[0] / (last + 1)) * sizeof *want);
            t.l.args.conv.n = 1;
            conv_run(&t, best, 4, 1);
            CHECK(kernel_same(t.buf[2], want, out));
            free(want);
            conv_free(&t);
        }
}
