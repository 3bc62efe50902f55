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

static void dti_conv_put_mask(dti_launch *l, uint32_t shift) {
    l->args.conv.z_offset = l->args.conv.y_offset + shift;
}

static void dti_conv_dx_put_mask(dti_launch *l, uint32_t shift) {
    l->args.conv.z_offset = l->args.conv.x_offset + shift;
}

/* Workgroups' tiles, see shaders/lib/conv.glsl. spec2: 0, or the taps of a row, where a tile stays
 * in one (they share loads). spec3: how many channels an invocation makes, 1 to 8, for 8 positions
 * each. Loads are what counts: staying in a row wins unless rows fill their tiles of 8 badly. */
static void dti_conv_tile(const dti_args_conv *a, uint32_t made, uint32_t cols, uint32_t spec[4]) {
    const uint32_t channels = made < 8 ? made : 8;
    const uint64_t in_rows = dti_ceil_div(cols, 8) * 8 * (7 + a->kw + channels * a->kw);
    const uint64_t run_on = (uint64_t)cols * (8 + channels) * a->kw;
    const bool row = a->kw >= 2 && a->kw <= 5 && a->stride_w == 1 && a->dil_w == 1;
    spec[2] = row && in_rows < run_on ? a->kw : 0;
    spec[3] = channels;
}

static uint64_t dti_conv_tiles(const dti_args_conv *a, uint32_t made, uint64_t rows, uint64_t cols,
                               const uint32_t spec[4]) {
    if (spec[2])
        cols = dti_ceil_div(cols, 8) * 8;
    return dti_ceil_div(made, spec[3]) * dti_ceil_div(a->n * rows * cols, 8) * a->groups;
}

static void dti_conv_forward_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    (void)variant;
    dti_conv_tile(&l->args.conv, l->args.conv.co, l->args.conv.ow, spec);
}

static uint64_t dti_conv_forward_invocations(const dti_launch *l, uint32_t variant,
                                             const uint32_t spec[4]) {
    const dti_args_conv *a = &l->args.conv;
    (void)variant;
    return dti_conv_tiles(a, a->co, a->oh, a->ow, spec);
}

static void dti_conv_dx_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    (void)variant;
    dti_conv_tile(&l->args.conv, l->args.conv.ci, l->args.conv.iw, spec);
}

/* Positions that lie a stride apart make a plane of their own. */
static uint64_t dti_conv_dx_invocations(const dti_launch *l, uint32_t variant,
                                        const uint32_t spec[4]) {
    const dti_args_conv *a = &l->args.conv;
    (void)variant;
    return dti_conv_tiles(a, a->ci, dti_ceil_div(a->ih, a->stride_h),
                          dti_ceil_div(a->iw, a->stride_w), spec) *
           a->stride_h * a->stride_w;
}

static void dti_conv_dw_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    (void)variant;
    spec[2] = 0;
    spec[3] = l->args.conv.co < 8 ? l->args.conv.co : 8;
}

static uint64_t dti_conv_dw_invocations(const dti_launch *l, uint32_t variant,
                                        const uint32_t spec[4]) {
    const dti_args_conv *a = &l->args.conv;
    (void)variant;
    return dti_ceil_div(a->co, spec[3]) * dti_ceil_div((uint64_t)a->ci * a->kh * a->kw, 8) *
           a->groups * a->splits;
}

static uint64_t dti_conv_flops(const dti_args_conv *a) {
    return 2ull * a->n * a->oh * a->ow * a->groups * a->co * a->ci * a->kh * a->kw;
}

/* Source channels of taps, or of rows of taps. */
static dti_effort dti_conv_forward_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_conv *a = &l->args.conv;
    uint32_t spec[4];
    (void)variant, (void)local;
    dti_conv_forward_tile(l, variant, spec);
    return (dti_effort){(uint64_t)a->ci * a->kh * (spec[2] ? 1 : a->kw), dti_conv_flops(a)};
}

/* (x, w, y, bias); spec0: 1 = bias; spec1 */
DTI_KERNEL(CONV, conv, "rrwr", ITEM, .run = dti_cpu_conv, .outer = dti_cpu_items_conv,
           .grain = dti_cpu_grain_conv, .scratch_bytes = dti_cpu_scratch_conv,
           .takes = dti_product_takes, .put_mask = dti_conv_put_mask, .local = {64},
           .tile = dti_conv_forward_tile, .invocations = dti_conv_forward_invocations,
           .effort = dti_conv_forward_effort);

static dti_effort dti_conv_dx_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_conv *a = &l->args.conv;
    const uint64_t rows = dti_ceil_div(a->kh, a->stride_h), cols = dti_ceil_div(a->kw, a->stride_w);
    uint32_t spec[4];
    (void)variant, (void)local;
    dti_conv_dx_tile(l, variant, spec);
    return (dti_effort){a->co * rows * (spec[2] ? 1 : cols), dti_conv_flops(a)};
}

/* (y, w, x, bias or mask); spec0, spec1 */
DTI_KERNEL(CONV_DX, conv_dx, "rrwr", ITEM, .run = dti_cpu_conv, .outer = dti_cpu_items_conv,
           .grain = dti_cpu_grain_conv, .scratch_bytes = dti_cpu_scratch_conv,
           .takes = dti_product_takes, .put_mask = dti_conv_dx_put_mask, .local = {64},
           .tile = dti_conv_dx_tile, .invocations = dti_conv_dx_invocations,
           .effort = dti_conv_dx_effort);

/* Positions of the samples of a part. */
static dti_effort dti_conv_dw_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_conv *a = &l->args.conv;
    (void)variant, (void)local;
    return (dti_effort){dti_ceil_div(a->n, a->splits) * a->oh * a->ow, dti_conv_flops(a)};
}

/* (y, x, partial w) */
DTI_KERNEL(CONV_DW, conv_dw, "rrw", ITEM, .run = dti_cpu_conv_dw, .outer = dti_cpu_items_conv_dw,
           .grain = dti_cpu_grain_conv_dw, .scratch_bytes = dti_cpu_scratch_conv_dw, .local = {64},
           .tile = dti_conv_dw_tile, .invocations = dti_conv_dw_invocations,
           .effort = dti_conv_dw_effort);
