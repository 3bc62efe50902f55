/* Convolutions on a device that runs workgroups. Variant 0 keeps 8 x 8 results in an invocation's
 * registers (conv.comp, conv_dw.comp). The others are tiles that a workgroup makes in shared memory
 * (lib/conv_tile.glsl). All add in the same order, in one chain an element: no bit depends on the
 * variant. */

#include "conv_cpu.c" /* its functions are used in the rows below */

/* ---- Tiles, as product.glsl's spec2 */

/* After the operands: the places of k, and values that all invocations share
 * (lib/conv_tile.glsl). */
enum {
    DTI_CONV_STEP = 8,
    DTI_CONV_VARIANTS = 6,
    DTI_CONV_TABLE_BYTES = 16 * (2 * (int)DTI_CONV_AHEAD + 5)
};
static const uint32_t dti_conv_shapes[DTI_CONV_VARIANTS] = {0,          0x11084010, 0x12084020,
                                                            0x21084040, 0x21084080, 0x22088080};
/* The share of multiply-adds in their loops, in percent (tools/check/vendors.txt). */
static const uint8_t dti_conv_shares[DTI_CONV_VARIANTS] = {0, 42, 58, 68, 74, 79};
_Static_assert((int)DTI_CONV_VARIANTS <= (int)DTI_VARIANTS_MAX, "more than a row has place for");

typedef struct dti_conv_shape {
    uint32_t bm, bn, bk, sums, lanes; /* sums: of an invocation */
} dti_conv_shape;

static dti_conv_shape dti_conv_shape_of(uint32_t variant) {
    const uint32_t t = dti_conv_shapes[variant];
    dti_conv_shape s = {.bm = t & 255, .bn = t >> 8 & 255, .bk = t >> 16 & 255};
    s.sums = 16 * (t >> 24 & 15) * (t >> 28);
    s.lanes = s.bm * s.bn / s.sums;
    return s;
}

/* The output of a launch: `outer` matrices of m channels and n positions, or weights, each a sum of
 * k products. */
typedef struct dti_conv_made {
    uint64_t m, n, k, outer;
} dti_conv_made;

static dti_conv_made dti_conv_made_of(const dti_launch *l) {
    const dti_args_conv *a = &l->args.conv;
    const uint64_t taps = (uint64_t)a->kh * a->kw, area = (uint64_t)a->oh * a->ow;
    const uint64_t classes = (uint64_t)a->stride_h * a->stride_w;
    if (l->kernel == DTI_K_CONV)
        return (dti_conv_made){a->co, a->n * area, a->ci * taps, a->groups};
    if (l->kernel == DTI_K_CONV_DX) /* positions that lie a stride apart are a matrix */
        return (dti_conv_made){
            a->ci, a->n * dti_ceil_div(a->ih, a->stride_h) * dti_ceil_div(a->iw, a->stride_w),
            dti_ceil_div(a->co * taps, classes), a->groups * classes};
    const uint64_t parts = (uint64_t)a->splits * a->cuts;
    return (dti_conv_made){a->co, a->ci * taps, dti_ceil_div(a->n * area, parts),
                           a->groups * parts};
}

static uint64_t dti_conv_groups(const dti_conv_made *made, uint32_t variant) {
    const dti_conv_shape s = dti_conv_shape_of(variant);
    return dti_ceil_div(made->m, s.bm) * dti_ceil_div(made->n, s.bn) * made->outer;
}

static bool dti_conv_fits_device(uint32_t variant, const dti_grid_device *device) {
    if (!variant) /* no tile, no shape */
        return true;
    const dti_conv_shape s = dti_conv_shape_of(variant);
    return !device->software && s.lanes <= device->invocations_max &&
           dti_grid_has_sums(device, s.sums) &&
           2 * s.bk * (s.bm + s.bn) * DTI_WORD_BYTES + DTI_CONV_TABLE_BYTES <= device->shared_bytes;
}

/* The variant with the most useful results at a time. Tiles extend past the edges, and few tiles do
 * not fill the device. With few channels registers are as fast: those of images share more
 * loads. */
static uint32_t dti_conv_variant(const dti_launch *l, const dti_grid_device *device) {
    const dti_conv_made made = dti_conv_made_of(l);
    double best = 0;
    uint32_t found = 0;
    const uint32_t least = l->kernel == DTI_K_CONV_DW ? 8 : 12;
    for (uint32_t v = 1; v < DTI_CONV_VARIANTS && made.m >= least; v++) {
        const dti_conv_shape s = dti_conv_shape_of(v);
        const double groups = (double)dti_conv_groups(&made, v);
        const double used = (double)(made.m * made.n * made.outer) / (groups * s.bm * s.bn) *
                            (double)made.k / (double)(dti_ceil_div(made.k, s.bk) * s.bk);
        const double full = DTI_MIN(1, groups * s.lanes / (DTI_CONV_FILLS * 64.0));
        if (dti_conv_fits_device(v, device) && used * full * dti_conv_shares[v] > best) {
            best = used * full * dti_conv_shares[v];
            found = v;
        }
    }
    return found;
}

/* How many of y's positions follow each other in a part's sum. */
static uint32_t dti_conv_dw_in_line(const dti_args_conv *a) {
    return a->cuts == 1 ? a->oh * a->ow : a->oh > 1 && a->cuts <= a->oh ? a->ow : 1;
}

/* Each of a launch's sums has a multiple of this many products: classes of positions differ in
 * taps. */
static uint32_t dti_conv_k_of(const dti_launch *l) {
    const dti_args_conv *a = &l->args.conv;
    const bool classes = a->stride_h > 1 || a->stride_w > 1;
    if (l->kernel == DTI_K_CONV_DW)
        return dti_conv_dw_in_line(a);
    if (l->kernel == DTI_K_CONV)
        return a->ci * a->kh * a->kw;
    return classes ? a->co : a->co * a->kh * a->kw;
}

/* For tiled variants. The adjoint's weights never lie by fours along its sum; its results do
 * without strides. */
static void dti_conv_lies(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_conv *a = &l->args.conv;
    const bool weights = ((a->w_offset | a->ci * a->kh * a->kw) & 3) == 0;
    const bool adjoint = l->kernel == DTI_K_CONV_DX, dw = l->kernel == DTI_K_CONV_DW;
    const uint32_t image = adjoint ? a->x_offset | a->ih * a->iw : a->y_offset | a->oh * a->ow;
    const bool whole = !adjoint || (a->stride_h == 1 && a->stride_w == 1);
    spec[2] = dti_conv_shapes[variant];
    spec[3] = adjoint ? DTI_CONV_ADJOINT : 0;
    if (dw ? ((a->y_offset | dti_conv_dw_in_line(a)) & 3) == 0 : weights && !adjoint)
        spec[3] |= DTI_CONV_LIES_A_FOURS;
    if (dw ? weights : (image & 3) == 0 && whole)
        spec[3] |= DTI_CONV_LIES_C_FOURS;
    if (dti_conv_k_of(l) % DTI_CONV_STEP == 0)
        spec[3] |= DTI_CONV_WHOLE;
}

/* ---- In registers */

/* Workgroups' tiles, see shaders/conv.comp. spec2: 0, or the taps of a row, where a tile stays in
 * one (they share loads). spec3: the channels of an invocation, 1 to 8, for 8 positions each. Loads
 * decide: staying in a row wins unless rows fill their tiles of 8 badly. */
static void dti_conv_tile(const dti_args_conv *a, uint32_t made, uint32_t cols, uint32_t spec[4]) {
    const uint32_t channels = made < 8 ? made : 8;
    const uint64_t in_rows = dti_ceil_div(cols, 8) * 8 * (7 + a->kw + channels * a->kw);
    const uint64_t run_on = (uint64_t)cols * (8 + channels) * a->kw;
    const bool row = a->kw >= 2 && a->kw <= 5 && a->stride_w == 1 && a->dil_w == 1;
    spec[2] = row && in_rows < run_on ? a->kw : 0;
    spec[3] = channels;
}

static uint32_t dti_conv_slides(const uint32_t spec[4]) {
    return spec[2] & ~DTI_CONV_SLIDE_ADJOINT;
}

static uint64_t dti_conv_tiles(const dti_args_conv *a, uint32_t made, uint64_t rows, uint64_t cols,
                               const uint32_t spec[4]) {
    if (dti_conv_slides(spec))
        cols = dti_ceil_div(cols, 8) * 8;
    return dti_ceil_div(made, spec[3]) * dti_ceil_div(a->n * rows * cols, 8) * a->groups;
}

static void dti_conv_spec(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_conv *a = &l->args.conv;
    if (variant) {
        dti_conv_lies(l, variant, spec);
    } else if (l->kernel == DTI_K_CONV_DW) {
        spec[2] = 0;
        spec[3] = DTI_MIN(a->co, 8u);
    } else {
        const bool forward = l->kernel == DTI_K_CONV;
        dti_conv_tile(a, forward ? a->co : a->ci, forward ? a->ow : a->iw, spec);
        spec[2] |= forward ? 0 : DTI_CONV_SLIDE_ADJOINT;
    }
}

/* In the adjoint, positions a stride apart make a plane of their own. */
static uint64_t dti_conv_invocations(const dti_launch *l, uint32_t variant,
                                     const uint32_t spec[4]) {
    const dti_args_conv *a = &l->args.conv;
    const dti_conv_made made = dti_conv_made_of(l);
    if (variant)
        return dti_conv_groups(&made, variant) * dti_conv_shape_of(variant).lanes;
    if (l->kernel == DTI_K_CONV_DW)
        return dti_ceil_div(a->co, spec[3]) * dti_ceil_div((uint64_t)a->ci * a->kh * a->kw, 8) *
               a->groups * a->splits * a->cuts;
    if (l->kernel == DTI_K_CONV)
        return dti_conv_tiles(a, a->co, a->oh, a->ow, spec);
    return dti_conv_tiles(a, a->ci, dti_ceil_div(a->ih, a->stride_h),
                          dti_ceil_div(a->iw, a->stride_w), spec) *
           a->stride_h * a->stride_w;
}

/* A mask in 16 bits is read by a launch in 16 bits. */
static bool dti_conv_takes(const dti_launch *l, uint32_t epilogue, const dti_view *operand) {
    const bool half = operand && dti_is_half(operand->dtype);
    return (!half || dti_is_half(l->dtype[0])) && dti_product_takes(l, epilogue, operand);
}

static void dti_conv_put_operand(dti_launch *l, uint32_t shift) {
    dti_args_conv *a = &l->args.conv;
    a->z_offset = (l->kernel == DTI_K_CONV ? a->y_offset : a->x_offset) + shift;
}

/* Source channels of taps, or of rows of taps. */
static dti_effort dti_conv_image_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_conv *a = &l->args.conv;
    const bool forward = l->kernel == DTI_K_CONV;
    const uint64_t rows = forward ? a->kh : dti_ceil_div(a->kh, a->stride_h);
    const uint64_t cols = forward ? a->kw : dti_ceil_div(a->kw, a->stride_w);
    uint32_t spec[4];
    dti_conv_spec(l, variant, spec);
    const bool by_rows = !variant && dti_conv_slides(spec);
    return (dti_effort){(forward ? a->ci : a->co) * rows * (by_rows ? 1 : cols), dti_conv_flops(a)};
}

/* Positions of a part. */
static dti_effort dti_conv_dw_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_conv *a = &l->args.conv;
    uint64_t lines = a->oh > 1 ? a->oh : a->ow, others = a->oh > 1 ? a->ow : a->oh;
    if (a->cuts > lines) /* of one */
        others = dti_ceil_div(others, a->cuts / lines);
    return (dti_effort){dti_ceil_div(a->n, a->splits) * dti_ceil_div(lines, a->cuts) * others,
                        dti_conv_flops(a)};
}

/* Taps of a class of positions along an axis, and the search for them. */
static uint64_t dti_conv_taps_rounds(uint32_t taps, uint32_t stride, uint32_t dil, uint64_t *more) {
    uint32_t step = 1;
    while ((uint64_t)step * dil % stride)
        step++;
    *more += 2 * step + 2;
    return dti_ceil_div(taps, step);
}

/* Source channels of taps; in rows of taps there are fewer. */
static uint64_t dti_conv_rounds(const dti_launch *l, uint32_t local) {
    const dti_args_conv *a = &l->args.conv;
    const bool adjoint = l->kernel == DTI_K_CONV_DX;
    uint64_t more = DTI_ROUNDS_FEW;
    uint32_t spec[4];
    dti_conv_spec(l, 0, spec);
    const uint64_t rows = dti_conv_taps_rounds(a->kh, adjoint ? a->stride_h : 1, a->dil_h, &more);
    const uint64_t cols = dti_conv_taps_rounds(a->kw, adjoint ? a->stride_w : 1, a->dil_w, &more);
    return (adjoint ? a->co : a->ci) * rows * (dti_conv_slides(spec) ? 1 : cols) + more;
}

/* Positions of the largest part. */
static uint64_t dti_conv_dw_rounds(const dti_launch *l, uint32_t local) {
    return dti_conv_dw_effort(l, 0, local).steps + DTI_ROUNDS_FEW;
}

/* ---- Trials */

/* An operand of n elements. */
static dti_trial_operand dti_conv_trial_image(uint32_t number, uint32_t n) {
    return (dti_trial_operand){.front = number % 3 * 2, .rows = 1, .cols = n, .pitch = n};
}

/* Ragged, and round the tiles' edges: strides, dilation, padding, groups, one row, a dot. Few,
 * since each that is aligned otherwise is a pipeline. */
static bool dti_conv_trial_args(uint32_t number, dti_args_conv *a) {
    static const uint8_t sizes[][14] = {
        /* n, groups, ci, co, ih, iw, kh, kw, strides, paddings, dilations */
        {3, 1, 4, 130, 9, 12, 3, 3, 1, 1, 1, 1, 1, 1},
        {2, 1, 5, 19, 9, 13, 3, 3, 1, 1, 1, 1, 1, 1},
        {2, 1, 16, 70, 8, 8, 1, 1, 1, 1, 0, 0, 1, 1},
        {1, 2, 8, 33, 10, 17, 5, 4, 3, 2, 2, 4, 1, 1},
        {2, 3, 3, 9, 14, 15, 3, 2, 1, 1, 2, 0, 2, 3},
        {4, 1, 2, 8, 5, 6, 1, 1, 4, 3, 0, 0, 1, 1},
        {3, 1, 6, 16, 1, 40, 1, 5, 1, 1, 0, 2, 1, 1}};
    if (number >= DTI_COUNT(sizes))
        return false;
    const uint8_t *s = sizes[number];
    *a = (dti_args_conv){.n = s[0],
                         .groups = s[1],
                         .ci = s[2],
                         .co = s[3],
                         .ih = s[4],
                         .iw = s[5],
                         .kh = s[6],
                         .kw = s[7],
                         .stride_h = s[8],
                         .stride_w = s[9],
                         .pad_h = s[10],
                         .pad_w = s[11],
                         .dil_h = s[12],
                         .dil_w = s[13],
                         .splits = 1,
                         .cuts = 1};
    a->oh = (a->ih + 2 * a->pad_h - a->dil_h * (a->kh - 1) - 1) / a->stride_h + 1;
    a->ow = (a->iw + 2 * a->pad_w - a->dil_w * (a->kw - 1) - 1) / a->stride_w + 1;
    return true;
}

/* Without an epilogue, with bias and ReLU, or with a mask, laid out like the output. Each other
 * alignment costs one more pipeline. */
static void dti_conv_trial_epilogue(uint32_t number, uint32_t channels, dti_trial *t) {
    const bool masked = number == 4, relu = number == 2 || number == 3 || number == 5;
    t->launch.spec[0] = relu; /* a bias */
    t->launch.spec[1] = masked ? DTI_EPILOGUE_RELU_GRAD
                        : relu ? DTI_EPILOGUE_RELU
                               : DTI_EPILOGUE_NONE;
    if (masked)
        t->operand[3] = t->operand[2];
    else if (relu)
        t->operand[3] = dti_conv_trial_image(number, channels);
    t->launch.args.conv.z_offset = t->operand[3].front;
}

static bool dti_conv_image_trial(uint32_t number, dti_kernel_id kernel, dti_trial *t) {
    *t = (dti_trial){.launch = {.kernel = (uint16_t)kernel, .args_bytes = sizeof(dti_args_conv)}};
    dti_args_conv *a = &t->launch.args.conv;
    if (number == 6 || !dti_conv_trial_args(number, a)) /* others belong to CONV_DW */
        return false;
    const bool forward = kernel == DTI_K_CONV;
    if (!forward) { /* many channels are those that are made */
        const uint32_t ci = a->ci;
        a->ci = a->co;
        a->co = ci;
    }
    const uint32_t in = a->groups * a->ci, out = a->groups * a->co;
    const uint32_t x = a->n * in * a->ih * a->iw, y = a->n * out * a->oh * a->ow;
    t->operand[0] = dti_conv_trial_image(number, forward ? x : y);
    t->operand[1] = dti_conv_trial_image(number, out * a->ci * a->kh * a->kw);
    t->operand[2] = dti_conv_trial_image(number, forward ? y : x);
    a->x_offset = a->y_offset = a->w_offset = t->operand[0].front;
    dti_conv_trial_epilogue(number, forward ? out : in, t);
    t->launch.items = forward ? y : x;
    return true;
}

static bool dti_conv_forward_trial(uint32_t number, dti_trial *t) {
    return dti_conv_image_trial(number, DTI_K_CONV, t);
}

static bool dti_conv_dx_trial(uint32_t number, dti_trial *t) {
    return dti_conv_image_trial(number, DTI_K_CONV_DX, t);
}

static bool dti_conv_dw_trial(uint32_t number, dti_trial *t) {
    *t = (dti_trial){.launch = {.kernel = DTI_K_CONV_DW, .args_bytes = sizeof(dti_args_conv)}};
    dti_args_conv *a = &t->launch.args.conv;
    if (!dti_conv_trial_args(number, a))
        return false;
    a->splits = a->n > 2 ? 2 : 1;
    a->cuts = number % 3 ? 1 + number % 2 : 3;
    a->cuts = DTI_MIN(a->cuts, a->oh > 1 ? a->oh : a->ow);
    const uint32_t weights = a->groups * a->co * a->ci * a->kh * a->kw;
    t->operand[0] = dti_conv_trial_image(number, a->n * a->groups * a->co * a->oh * a->ow);
    t->operand[1] = dti_conv_trial_image(number, a->n * a->groups * a->ci * a->ih * a->iw);
    t->operand[2] = dti_conv_trial_image(number, weights * a->splits * a->cuts);
    a->x_offset = a->y_offset = a->w_offset = t->operand[0].front;
    t->launch.items = (uint64_t)weights * a->splits * a->cuts;
    return true;
}

/* Images of 16 x 16 and 3 x 3 weights, enough to fill a device. With the tile's number of channels,
 * out of 32; or with the tile's number of weights, and a part for each image. */
static bool dti_conv_sample(uint32_t variant, dti_trial *t) {
    enum { SIDE = 16, SOURCE = 32 };
    const dti_conv_shape s = dti_conv_shape_of(variant);
    const uint16_t kernel = t->launch.kernel;
    const bool forward = kernel == DTI_K_CONV, dw = kernel == DTI_K_CONV_DW;
    const uint32_t fills = DTI_CONV_FILLS * 64 / s.lanes;
    const uint32_t images = dw ? fills : s.bn * fills / (SIDE * SIDE), cells = images * SIDE * SIDE;
    *t = (dti_trial){.launch = {.kernel = kernel, .args_bytes = sizeof(dti_args_conv)}};
    dti_args_conv *a = &t->launch.args.conv;
    *a = (dti_args_conv){.n = images, .splits = dw ? images : 1, .cuts = 1, .groups = 1};
    a->ci = dw ? s.bn / 9 : forward ? SOURCE : s.bm;
    a->co = dw || forward ? s.bm : SOURCE;
    a->ih = a->iw = a->oh = a->ow = SIDE;
    a->kh = a->kw = 3;
    a->stride_h = a->stride_w = a->pad_h = a->pad_w = a->dil_h = a->dil_w = 1;
    const uint32_t weights = a->co * a->ci * 9, made = dw ? images * weights : cells * s.bm;
    t->operand[0] = dti_conv_trial_image(0, cells * (forward ? a->ci : a->co));
    t->operand[1] = dti_conv_trial_image(0, dw ? cells * a->ci : weights);
    t->operand[2] = dti_conv_trial_image(0, made);
    t->launch.items = made;
    return true;
}

/* Parts of a sum are of f32. */
static bool dti_conv_grid_halves(const dti_launch *l, int binding) {
    return binding != 2 || l->kernel != DTI_K_CONV_DW;
}

/* 16 x 64; 32 x 64; 64 x 64; 128 x 64; 128 x 128. */
#define DTI_CONV_RIVALS                                                                            \
    { 0, 1u << 2, 1u << 1 | 1u << 3, 1u << 2 | 1u << 4, 1u << 3 | 1u << 5, 1u << 3 | 1u << 4 }

#define DTI_CONV_ROW                                                                               \
    .local = {64, 64, 64, 128, 256, 256}, .rivals = DTI_CONV_RIVALS, .variant = dti_conv_variant,  \
    .tile = dti_conv_spec, .sums_by = 3, .invocations = dti_conv_invocations,                      \
    .fits = dti_conv_fits_device, .sample = dti_conv_sample, .halves = true,                       \
    .grid_halves = dti_conv_grid_halves
#define DTI_CONV_IMAGE_ROW                                                                         \
    DTI_CONV_ROW, .run = dti_cpu_conv, .outer = dti_cpu_items_conv,                                \
                  .grain_of = dti_cpu_grain_conv, .scratch_bytes = dti_cpu_scratch_conv,           \
                  .takes = dti_conv_takes, .put_operand = dti_conv_put_operand,                    \
                  .effort = dti_conv_image_effort, .hard_halves = true

/* (x, w, y, bias); spec0: 1 = bias; spec1 */
DTI_KERNEL(CONV, conv, "rrwr", ITEM, DTI_CONV_IMAGE_ROW, .rounds = dti_conv_rounds,
           .trial = dti_conv_forward_trial);

/* (y, w, x, bias or mask); spec0, spec1 */
DTI_KERNEL(CONV_DX, conv_dx, "rrwr", ITEM, DTI_CONV_IMAGE_ROW, .rounds = dti_conv_rounds,
           .trial = dti_conv_dx_trial);

/* (y, x, partial w) */
DTI_KERNEL(CONV_DW, conv_dw, "rrw", ITEM, DTI_CONV_ROW, .run = dti_cpu_conv_dw,
           .outer = dti_cpu_items_conv_dw, .grain_of = dti_cpu_grain_conv_dw,
           .scratch_bytes = dti_cpu_scratch_conv_dw, .rounds = dti_conv_dw_rounds,
           .effort = dti_conv_dw_effort, .trial = dti_conv_dw_trial);
