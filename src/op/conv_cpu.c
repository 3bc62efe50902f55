/* Convolution on the CPU: the launches' arguments turned into calls of kernel/conv.h. */

/* ---- CPU */

static dti_conv dti_conv_of_args(const dti_launch *l) {
    const dti_args_conv *a = &l->args.conv;
    const bool transposed = l->kernel == DTI_K_CONV_DX;
    dti_conv c = {.transposed = transposed,
                  .n = a->n,
                  .groups = a->groups,
                  .from_channels = transposed ? a->co : a->ci,
                  .to_channels = transposed ? a->ci : a->co,
                  .taps = {a->kh, a->kw},
                  .stride = {a->stride_h, a->stride_w},
                  .pad = {a->pad_h, a->pad_w},
                  .dil = {a->dil_h, a->dil_w},
                  .relu = l->spec[1] == DTI_EPILOGUE_RELU};
    const int64_t x[2] = {a->ih, a->iw}, y[2] = {a->oh, a->ow};
    memcpy(c.from_size, transposed ? y : x, sizeof x);
    memcpy(c.to_size, transposed ? x : y, sizeof x);
    return c;
}

static dti_conv_dw dti_conv_dw_of_args(const dti_launch *l) {
    const dti_args_conv *a = &l->args.conv;
    return (dti_conv_dw){.n = a->n,
                         .groups = a->groups,
                         .ci = a->ci,
                         .co = a->co,
                         .splits = a->splits,
                         .x_size = {a->ih, a->iw},
                         .y_size = {a->oh, a->ow},
                         .taps = {a->kh, a->kw},
                         .stride = {a->stride_h, a->stride_w},
                         .pad = {a->pad_h, a->pad_w},
                         .dil = {a->dil_h, a->dil_w}};
}

static void dti_cpu_conv(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_conv *a = &task->launch->args.conv;
    dti_conv c = dti_conv_of_args(task->launch);
    c.from = dti_cpu_in(task, 0, c.transposed ? a->y_offset : a->x_offset);
    c.w = dti_cpu_in(task, 1, a->w_offset);
    c.to = dti_cpu_out(task, 2, c.transposed ? a->x_offset : a->y_offset);
    if (task->launch->spec[0])
        c.bias = dti_cpu_in(task, 3, a->z_offset);
    if (task->launch->spec[1] == DTI_EPILOGUE_RELU_GRAD)
        c.mask = dti_cpu_in(task, 3, a->z_offset);
    dti_conv_run(task->k, &c, task->threads, begin, end, scratch);
}

static void dti_cpu_conv_dw(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_conv *a = &task->launch->args.conv;
    dti_conv_dw c = dti_conv_dw_of_args(task->launch);
    c.y = dti_cpu_in(task, 0, a->y_offset);
    c.x = dti_cpu_in(task, 1, a->x_offset);
    c.w = dti_cpu_out(task, 2, a->w_offset);
    dti_conv_dw_run(task->k, &c, begin, end, scratch);
}

static int64_t dti_cpu_items_conv(const dti_cpu_task *task) {
    const dti_conv c = dti_conv_of_args(task->launch);
    return dti_conv_items(&c, task->threads);
}

static int64_t dti_cpu_items_conv_dw(const dti_cpu_task *task) {
    const dti_conv_dw c = dti_conv_dw_of_args(task->launch);
    return dti_conv_dw_items(&c);
}

/* Of all items together: 2^18 multiply-adds are worth a thread. */
static int64_t dti_conv_grain(const dti_args_conv *a, int64_t items) {
    const double macs = (double)a->n * a->groups * a->co * a->ci * a->kh * a->kw * a->oh * a->ow;
    const double grain = DTI_GEMM_TILE_MACS / (1 + macs / (double)DTI_MAX(items, 1));
    return DTI_MAX(1, (int64_t)grain);
}

static int64_t dti_cpu_grain_conv(const dti_cpu_task *task) {
    return dti_conv_grain(&task->launch->args.conv, dti_cpu_items_conv(task));
}

static int64_t dti_cpu_grain_conv_dw(const dti_cpu_task *task) {
    return dti_conv_grain(&task->launch->args.conv, dti_cpu_items_conv_dw(task));
}

static size_t dti_cpu_scratch_conv(const dti_launch *launch, int threads) {
    const dti_conv c = dti_conv_of_args(launch);
    return dti_conv_scratch_bytes(&c, threads);
}

static size_t dti_cpu_scratch_conv_dw(const dti_launch *launch, int threads) {
    (void)threads;
    const dti_conv_dw c = dti_conv_dw_of_args(launch);
    return dti_conv_dw_scratch_bytes(&c);
}

/* ---- Rows of the tables */

/* (x, w, y, bias); spec0: 1 = bias; spec1 */
DTI_KERNEL(CONV, conv, "rrwr", ITEM, .run = dti_cpu_conv, .outer = dti_cpu_items_conv,
           .grain = dti_cpu_grain_conv, .scratch_bytes = dti_cpu_scratch_conv);

/* (y, w, x, bias or mask); spec0, spec1 */
DTI_KERNEL(CONV_DX, conv_dx, "rrwr", ITEM, .run = dti_cpu_conv, .outer = dti_cpu_items_conv,
           .grain = dti_cpu_grain_conv, .scratch_bytes = dti_cpu_scratch_conv);

/* (y, x, partial w) */
DTI_KERNEL(CONV_DW, conv_dw, "rrw", ITEM, .run = dti_cpu_conv_dw, .outer = dti_cpu_items_conv_dw,
           .grain = dti_cpu_grain_conv_dw, .scratch_bytes = dti_cpu_scratch_conv_dw);
