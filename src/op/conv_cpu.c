/* Convolution on the CPU: the launches' arguments turned into calls of kernel/conv.h. An item is
 * one sample of one group, or one output channel of the weights' gradient. */

/* ---- CPU */

typedef struct dti_conv_at {
    const dti_args_conv *a;
    int64_t b, g, o, c; /* sample, group, channel of y and of x in the group */
} dti_conv_at;

static int64_t dti_conv_w_at(const dti_args_conv *a, int64_t g, int64_t o, int64_t c, int64_t r,
                             int64_t s) {
    return (((g * a->co + o) * a->ci + c) * a->kh + r) * a->kw + s;
}
static int64_t dti_conv_x_at(const dti_args_conv *a, int64_t b, int64_t g, int64_t c, int64_t i,
                             int64_t j) {
    return (((b * a->groups + g) * a->ci + c) * a->ih + i) * a->iw + j;
}
static int64_t dti_conv_y_at(const dti_args_conv *a, int64_t b, int64_t g, int64_t o, int64_t p,
                             int64_t q) {
    return (((b * a->groups + g) * a->co + o) * a->oh + p) * a->ow + q;
}

static float dti_conv_end(const dti_cpu_task *task, float sum, int64_t channel, int64_t at) {
    const float *z = (const float *)task->buf[3] + task->launch->args.conv.z_offset;
    if (task->launch->spec[0])
        sum += z[channel];
    if (task->launch->spec[1] == DTI_EPILOGUE_RELU && sum < 0)
        sum = 0;
    if (task->launch->spec[1] == DTI_EPILOGUE_RELU_GRAD && !(z[at] > 0))
        sum = 0;
    return sum;
}

static void dti_cpu_conv(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const dti_args_conv *a = &task->launch->args.conv;
    const float *x = dti_cpu_in(task, 0, a->x_offset), *w = dti_cpu_in(task, 1, a->w_offset);
    float *y = dti_cpu_out(task, 2, a->y_offset);
    for (int64_t item = begin; item < end; item++) {
        int64_t b = item / a->groups, g = item % a->groups;
        for (int64_t e = 0; e < (int64_t)a->co * a->oh * a->ow; e++) {
            int64_t o = e / a->oh / a->ow, p = e / a->ow % a->oh, q = e % a->ow;
            float sum = 0;
            for (int64_t k = 0; k < (int64_t)a->ci * a->kh * a->kw; k++) {
                int64_t c = k / a->kh / a->kw, r = k / a->kw % a->kh, s = k % a->kw;
                int64_t i = p * a->stride_h - a->pad_h + r * a->dil_h;
                int64_t j = q * a->stride_w - a->pad_w + s * a->dil_w;
                if (i >= 0 && i < a->ih && j >= 0 && j < a->iw)
                    sum = __builtin_fmaf(w[dti_conv_w_at(a, g, o, c, r, s)],
                                         x[dti_conv_x_at(a, b, g, c, i, j)], sum);
            }
            int64_t at = dti_conv_y_at(a, b, g, o, p, q);
            y[at] = dti_conv_end(task, sum, g * a->co + o, at);
        }
    }
}

static void dti_cpu_conv_dx(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const dti_args_conv *a = &task->launch->args.conv;
    const float *y = dti_cpu_in(task, 0, a->y_offset), *w = dti_cpu_in(task, 1, a->w_offset);
    float *x = dti_cpu_out(task, 2, a->x_offset);
    for (int64_t item = begin; item < end; item++) {
        int64_t b = item / a->groups, g = item % a->groups;
        for (int64_t e = 0; e < (int64_t)a->ci * a->ih * a->iw; e++) {
            int64_t c = e / a->ih / a->iw, i = e / a->iw % a->ih, j = e % a->iw;
            float sum = 0;
            for (int64_t k = 0; k < (int64_t)a->co * a->kh * a->kw; k++) {
                int64_t o = k / a->kh / a->kw, r = k / a->kw % a->kh, s = k % a->kw;
                int64_t p = i + a->pad_h - r * a->dil_h, q = j + a->pad_w - s * a->dil_w;
                if (p < 0 || q < 0 || p % a->stride_h || q % a->stride_w ||
                    p / a->stride_h >= a->oh || q / a->stride_w >= a->ow)
                    continue;
                sum = __builtin_fmaf(w[dti_conv_w_at(a, g, o, c, r, s)],
                                     y[dti_conv_y_at(a, b, g, o, p / a->stride_h, q / a->stride_w)],
                                     sum);
            }
            int64_t at = dti_conv_x_at(a, b, g, c, i, j);
            x[at] = dti_conv_end(task, sum, g * a->ci + c, at);
        }
    }
}

static void dti_cpu_conv_dw(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    (void)scratch;
    const dti_args_conv *a = &task->launch->args.conv;
    const float *y = dti_cpu_in(task, 0, a->y_offset), *x = dti_cpu_in(task, 1, a->x_offset);
    const int64_t size = (int64_t)a->groups * a->co * a->ci * a->kh * a->kw;
    float *w = dti_cpu_out(task, 2, a->w_offset);
    for (int64_t item = begin; item < end; item++) {
        int64_t e = item % size, split = item / size, s = e % a->kw, r = e / a->kw % a->kh;
        int64_t c = e / a->kw / a->kh % a->ci, go = e / a->kw / a->kh / a->ci;
        int64_t g = go / a->co, o = go % a->co, last = (int64_t)a->n * (split + 1) / a->splits;
        float sum = 0;
        for (int64_t b = (int64_t)a->n * split / a->splits; b < last; b++)
            for (int64_t p = 0; p < a->oh; p++)
                for (int64_t q = 0; q < a->ow; q++) {
                    int64_t i = p * a->stride_h - a->pad_h + r * a->dil_h;
                    int64_t j = q * a->stride_w - a->pad_w + s * a->dil_w;
                    if (i >= 0 && i < a->ih && j >= 0 && j < a->iw)
                        sum = __builtin_fmaf(y[dti_conv_y_at(a, b, g, o, p, q)],
                                             x[dti_conv_x_at(a, b, g, c, i, j)], sum);
                }
        w[item] = sum;
    }
}

static int64_t dti_cpu_items_conv(const dti_cpu_task *task) {
    return (int64_t)task->launch->args.conv.n * task->launch->args.conv.groups;
}
static int64_t dti_cpu_items_conv_dw(const dti_cpu_task *task) {
    const dti_args_conv *a = &task->launch->args.conv;
    return (int64_t)a->splits * a->groups * a->co * a->ci * a->kh * a->kw;
}
static int64_t dti_cpu_grain_conv(const dti_cpu_task *task) {
    (void)task;
    return 1;
}
