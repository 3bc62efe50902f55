/* Convolution on the CPU: calls of kernel/conv.h made from the launches' arguments. */

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
                  .relu = l->spec[1] == DTI_EPILOGUE_RELU,
                  .type = (dt_dtype)l->dtype[0],
                  .operand_type = (dt_dtype)l->dtype[3]};
    const int64_t x[2] = {a->ih, a->iw}, y[2] = {a->oh, a->ow};
    memcpy(c.from_size, transposed ? y : x, sizeof x);
    memcpy(c.to_size, transposed ? x : y, sizeof x);
    return c;
}

/* Pieces of a row, on devices with workgroups that cut rows. Here the first piece is the whole row,
 * and the others are 0. */
static int64_t dti_conv_dw_pieces(const dti_args_conv *a) {
    const uint32_t lines = a->oh > 1 ? a->oh : a->ow;
    return a->cuts > lines ? a->cuts / lines : 1;
}

/* Part `cut` of the rows of y (see args.h) is a convolution with other padding. */
static dti_conv_dw dti_conv_dw_of_args(const dti_launch *l, int64_t cut, int64_t *y_first) {
    const dti_args_conv *a = &l->args.conv;
    const int axis = a->oh > 1 ? 0 : 1;
    const int64_t pieces = dti_conv_dw_pieces(a), cuts = a->cuts / pieces;
    dti_conv_dw c = {.n = a->n,
                     .groups = a->groups,
                     .ci = a->ci,
                     .co = a->co,
                     .splits = a->splits,
                     .x_size = {a->ih, a->iw},
                     .y_size = {a->oh, a->ow},
                     .taps = {a->kh, a->kw},
                     .stride = {a->stride_h, a->stride_w},
                     .pad = {a->pad_h, a->pad_w},
                     .dil = {a->dil_h, a->dil_w},
                     .y_plane = (int64_t)a->oh * a->ow,
                     .type = (dt_dtype)l->dtype[0]};
    cut /= pieces;
    const int64_t first = c.y_size[axis] * cut / cuts;
    c.y_size[axis] = c.y_size[axis] * (cut + 1) / cuts - first;
    c.pad[axis] -= first * c.stride[axis];
    *y_first = axis ? first : first * a->ow;
    return c;
}

static void dti_cpu_conv(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_conv *a = &task->launch->args.conv;
    dti_conv c = dti_conv_of_args(task->launch);
    c.from = dti_cpu_at(task, 0, c.transposed ? a->y_offset : a->x_offset);
    c.w = dti_cpu_at(task, 1, a->w_offset);
    c.to = dti_cpu_at(task, 2, c.transposed ? a->x_offset : a->y_offset);
    if (task->launch->spec[0])
        c.bias = dti_cpu_at(task, 3, a->z_offset);
    if (task->launch->spec[1] == DTI_EPILOGUE_RELU_GRAD)
        c.mask = dti_cpu_at(task, 3, a->z_offset);
    dti_conv_run(task->k, &c, task->threads, begin, end, scratch);
}

static int64_t dti_cpu_items_conv_dw(const dti_cpu_task *task) {
    int64_t y_first;
    const dti_conv_dw c = dti_conv_dw_of_args(task->launch, 0, &y_first);
    return task->launch->args.conv.cuts * dti_conv_dw_items(&c);
}

static void dti_cpu_conv_dw(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_conv *a = &task->launch->args.conv;
    const int64_t elements = (int64_t)a->groups * a->co * a->ci * a->kh * a->kw;
    for (int64_t at = begin, to; at < end; at = to) {
        int64_t y_first;
        const int64_t each = dti_cpu_items_conv_dw(task) / a->cuts, cut = at / each;
        dti_conv_dw c = dti_conv_dw_of_args(task->launch, cut, &y_first);
        c.y = dti_cpu_at(task, 0, a->y_offset + y_first);
        c.x = dti_cpu_at(task, 1, a->x_offset);
        c.w = (float *)dti_cpu_out(task, 2, a->w_offset) + cut * c.splits * elements;
        to = DTI_MIN(end, (cut + 1) * each);
        if (cut % dti_conv_dw_pieces(a) == 0)
            dti_conv_dw_run(task->k, &c, at - cut * each, to - cut * each, scratch);
        else if (at == cut * each)
            memset(c.w, 0, (size_t)(c.splits * elements) * sizeof *c.w);
    }
}

static int64_t dti_cpu_items_conv(const dti_cpu_task *task) {
    const dti_conv c = dti_conv_of_args(task->launch);
    return dti_conv_items(&c, task->threads);
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
    size_t most = 0;
    for (int64_t cut = 0; cut < launch->args.conv.cuts; cut++) {
        int64_t y_first;
        const dti_conv_dw c = dti_conv_dw_of_args(launch, cut, &y_first);
        most = DTI_MAX(most, dti_conv_dw_scratch_bytes(&c));
    }
    return most;
}
