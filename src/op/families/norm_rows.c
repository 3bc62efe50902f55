/* Norms: the rows of their kernels, and the layout of their launches. */

#include "norm_cpu.c" /* its functions are used in the rows below */

static bool dti_norm_takes(const dti_launch *l, uint32_t epilogue, const dti_view *mask) {
    return epilogue == DTI_EPILOGUE_RELU;
}

/* ---- How a launch's values lie, for Vulkan: spec3, DTI_NORM_FOURS_X and so on */

static uint32_t dti_norm_fours(uint32_t all) {
    return all % 4 ? 0 : DTI_NORM_FOURS;
}

static void dti_norm_stats_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_norm *a = &l->args.norm;
    spec[3] = (a->x_offset | (a->batch ? a->spatial : a->cols)) % 4 ? 0 : DTI_NORM_FOURS_X;
}

static void dti_norm_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_norm *a = &l->args.norm;
    spec[3] = dti_norm_fours(a->x_offset | a->y_offset | a->spatial);
}

static void dti_norm_grad_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_norm *a = &l->args.norm;
    dti_norm_tile(l, variant, spec);
    spec[3] = a->dy_offset % 4 ? 0 : spec[3];
}

static void dti_norm_dw_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_norm *a = &l->args.norm;
    spec[3] = dti_norm_fours(a->x_offset | a->dy_offset | a->spatial);
}

static void dti_norm_dx_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_norm *a = &l->args.norm;
    uint32_t all = a->x_offset | a->dy_offset | a->y_offset | a->cols;
    all |= a->spatial > 1 ? a->spatial : a->w_offset | a->channels;
    spec[3] = dti_norm_fours(all);
    if (spec[3])
        spec[3] |= dti_lies_size(a->cols / 4);
}

static void dti_norm_group_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_norm *a = &l->args.norm;
    dti_norm_stats_tile(l, variant, spec);
    uint32_t all = a->x_offset | a->y_offset;
    if (a->spatial == 1)
        all |= a->w_offset | a->b_offset | a->channels;
    all |= a->spatial > 1 || a->batch ? a->spatial : a->cols;
    spec[3] |= dti_norm_fours(all);
    if (spec[3] & DTI_NORM_FOURS)
        spec[3] |= dti_lies_size(a->cols / 4);
}

/* Of the longest chunk, in fours where its runs are of fours. */
static uint64_t dti_norm_steps(const dti_args_norm *a, uint64_t elements, uint32_t run,
                               uint32_t passes, uint32_t local) {
    const uint64_t chunk = a->chunks > 1 ? DTI_NORM_CHUNK : elements;
    return dti_effort_rows(1, dti_ceil_div(chunk, run % 4 ? 1 : 4), passes, local).steps;
}

static dti_effort dti_norm_groups_effort(const dti_args_norm *a, uint32_t passes, uint32_t local) {
    const uint32_t run = a->batch ? a->spatial : a->cols;
    return (dti_effort){dti_norm_steps(a, a->cols, run, passes, local),
                        3ull * passes * a->groups * a->cols};
}

static dti_effort dti_norm_stats_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    return dti_norm_groups_effort(&l->args.norm, 2, local);
}

/* One element at a time, where fours are not possible. */
static uint64_t dti_norm_rounds(const dti_launch *l, uint32_t local) {
    const dti_args_norm *a = &l->args.norm;
    const uint64_t all = DTI_MAX(a->cols, a->n / a->channels);
    return dti_rounds_of(a->chunks > 1 ? DTI_NORM_CHUNK : all, 3, local) +
           dti_rounds_of(a->chunks, 2, local);
}

/* ---- Operands in 16 bits: x and dy of kernels that add up. In kernels that go item by item, all
 * except statistics and weights. */

static dti_stage dti_norm_sums_stage(const dti_launch *l, int b) {
    return (dti_stage){b % 2 ? DTI_STAGE_NONE : DTI_STAGE_OWN, 0};
}

/* A group that lies apart has no run of elements. */
static dti_stage dti_norm_group_stage(const dti_launch *l, int b) {
    const dti_args_norm *a = &l->args.norm;
    const bool apart = a->batch && (l->spec[2] & DTI_NORM_GROUP_WHOLE);
    if (b % 2 || apart)
        return (dti_stage){DTI_STAGE_NONE, 0};
    return (dti_stage){dti_norm_unit(a), b ? a->y_offset : a->x_offset};
}

static bool dti_norm_group_grid_halves(const dti_launch *l, int b) {
    return b % 2 == 0;
}

/* (x, -, -, y), or where there is a gradient (x, dy, -, dx) */
static dti_stage dti_norm_stage(const dti_launch *l, int b) {
    const dti_args_norm *a = &l->args.norm;
    const bool plain = l->kernel == DTI_K_NORM;
    if (b == 2 || (b == 1 && plain))
        return (dti_stage){DTI_STAGE_NONE, 0};
    return (dti_stage){dti_norm_unit(a), b == 0   ? a->x_offset
                                         : b == 1 ? a->dy_offset
                                                  : a->y_offset};
}

/* (x, stats, and the pairs of chunks) item = chunk; spec0: 1 = RMS */
DTI_KERNEL(NORM_STATS, norm_stats, "rw", GROUP, .run = dti_cpu_norm_stats, .halves = true,
           .stage = dti_norm_sums_stage, .grid_halves = dti_launch_halves_as_cpu,
           .outer = dti_cpu_items_norm_groups, .grain_of = dti_cpu_grain_norm_groups,
           .tile = dti_norm_stats_tile, .rounds = dti_norm_rounds, .effort = dti_norm_stats_effort);

static dti_effort dti_norm_group_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    return dti_norm_groups_effort(&l->args.norm, l->spec[2] & DTI_NORM_GROUP_WHOLE ? 3 : 1, local);
}

static int64_t dti_cpu_grain_norm_group(const dti_cpu_task *task) {
    const bool whole = (task->launch->spec[2] & DTI_NORM_GROUP_WHOLE) != 0;
    return whole ? dti_cpu_grain_norm_groups(task) : dti_cpu_grain_norm(task);
}

/* Four elements an invocation, if possible. */
static uint64_t dti_norm_width(const dti_launch *l) {
    const uint32_t cols = l->args.norm.cols;
    return cols % 4 ? cols : cols / 4;
}

/* (x, w and b, y, stats and pairs) item = chunk; spec0: DTI_NORM_*; spec1; spec2:
 * DTI_NORM_GROUP_* */
DTI_KERNEL(NORM_GROUP, norm_group, "rrwu", GROUP, .run = dti_cpu_norm_group, .halves = true,
           .stage = dti_norm_group_stage, .grid_halves = dti_norm_group_grid_halves,
           .outer = dti_cpu_items_norm_group, .grain_of = dti_cpu_grain_norm_group,
           .scratch_bytes = dti_cpu_scratch_norm, .takes = dti_norm_takes, .width = dti_norm_width,
           .tile = dti_norm_group_tile, .rounds = dti_norm_rounds, .effort = dti_norm_group_effort);

static dti_effort dti_norm_finish_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    return dti_effort_rows(l->items, l->args.norm.chunks, 2, local);
}

static uint64_t dti_norm_finish_rounds(const dti_launch *l, uint32_t local) {
    return dti_rounds_of(l->args.norm.chunks, 2, local);
}

/* (pairs, stats, w, stats or dw and db) item = group; spec0: DTI_NORM_FINISH_*; spec1: 1 = also for
 * batch_dx */
DTI_KERNEL(NORM_FINISH, norm_finish, "urrw", GROUP, .run = dti_cpu_norm_finish,
           .grain = DTI_GRAIN_COPY, .rounds = dti_norm_finish_rounds,
           .effort = dti_norm_finish_effort);

/* For kernels that go element by element. */
#define DTI_NORM_ROW                                                                               \
    .halves = true, .stage = dti_norm_stage, .grid_halves = dti_launch_halves_as_cpu,              \
    .grain_of = dti_cpu_grain_norm, .scratch_bytes = dti_cpu_scratch_norm,                         \
    .invocations = dti_quarter_invocations,                                                        \
    .divides = {3,                                                                                 \
                DTI_WORD(norm, by),                                                                \
                {DTI_WORD(norm, spatial), DTI_WORD(norm, channels), DTI_WORD(norm, cols)}}

/* (x, stats, w and b, y); spec0: DTI_NORM_*; spec1 */
DTI_KERNEL(NORM, norm, "rrrw", ITEM, DTI_NORM_ROW, .run = dti_cpu_norm, .outer = dti_cpu_items_norm,
           .takes = dti_norm_takes, .tile = dti_norm_tile, .rounds = dti_rounds_few);

static dti_effort dti_norm_dx_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_norm *a = &l->args.norm;
    return (dti_effort){dti_effort_rows(a->groups, a->cols, 3, local).steps, 12ull * a->n};
}

/* Three passes, in fours if possible. */
static uint64_t dti_norm_dx_rounds(const dti_launch *l, uint32_t local) {
    uint32_t spec[4];
    dti_norm_dx_tile(l, 0, spec);
    return dti_rounds_of(l->args.norm.cols / (spec[3] & DTI_NORM_FOURS ? 4 : 1), 3, local);
}

/* (x, dy, w, dx), not batch; item = group; spec0: RMS, spec1: 1 = w */
DTI_KERNEL(NORM_DX, norm_dx, "rrrw", GROUP, .run = dti_cpu_norm_dx, .halves = true,
           .stage = dti_norm_stage, .grid_halves = dti_launch_halves_as_cpu,
           .grain_of = dti_cpu_grain_norm_groups, .width = dti_norm_width, .tile = dti_norm_dx_tile,
           .rounds = dti_norm_dx_rounds, .effort = dti_norm_dx_effort);

static dti_effort dti_norm_dw_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_norm *a = &l->args.norm;
    return (dti_effort){dti_norm_steps(a, a->n / a->channels, a->spatial, 1, local), 6ull * a->n};
}

/* (x, stats, dy, dw and db, or pairs) item = chunk; spec2: 1 = of 4 channels */
DTI_KERNEL(NORM_DW, norm_dw, "rrrw", GROUP, .run = dti_cpu_norm_dw, .halves = true,
           .stage = dti_norm_sums_stage, .grid_halves = dti_launch_halves_as_cpu,
           .outer = dti_cpu_items_norm_dw, .grain_of = dti_cpu_grain_norm_dw,
           .scratch_bytes = dti_cpu_scratch_norm_dw, .tile = dti_norm_dw_tile,
           .rounds = dti_norm_rounds, .effort = dti_norm_dw_effort);

/* (x, dy, [stats|dw|db|w], dx); spec0: 1 = train */
DTI_KERNEL(BATCH_DX, batch_dx, "rrrw", ITEM, DTI_NORM_ROW, .run = dti_cpu_batch_dx,
           .outer = dti_cpu_items_batch_dx, .tile = dti_norm_grad_tile, .rounds = dti_rounds_few);

/* (x, s, y) */
DTI_KERNEL(RUNNING, running, "rru", ITEM, .run = dti_cpu_running, .grain = DTI_GRAIN_COPY);
