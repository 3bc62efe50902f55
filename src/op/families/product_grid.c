/* GEMM on a device that runs workgroups. Variant 0 keeps 8 x 8 of C in an invocation's registers
 * (gemm.comp); Others are tiles that a workgroup makes in shared memory (gemm_tile.comp, one text).
 * For products that are narrower than a tile there is an invocation for each element
 * (gemm_narrow.comp). All add over k in order, in one chain for each chunk of an element. So no bit
 * depends on the variant that a device uses. */

typedef struct dti_gemm_tile {
    uint32_t bm, bn, bk;         /* of C, by workgroup; k by step */
    uint32_t blocks_m, blocks_n; /* of 4 x 4, by invocation; 0: bk chunks, of single elements */
} dti_gemm_tile;

enum {
    DTI_GEMM_IN_REGISTERS,
    DTI_GEMM_32X32,
    DTI_GEMM_32X64,
    DTI_GEMM_64X64,
    DTI_GEMM_128X128,
    DTI_GEMM_NARROW,
    DTI_GEMM_NARROW_LONG,
    DTI_GEMM_VARIANTS
};

#define DTI_GEMM_STEP 16

/* Invocations and bytes of shared memory of each: 64, 8 KiB; 128, 12; 128, 16; 256, 32; 128, 1;
 * 128, 1. */
static const dti_gemm_tile dti_gemm_shapes[DTI_GEMM_VARIANTS] = {
    [DTI_GEMM_IN_REGISTERS] = {8, 8, 4, 2, 2},
    [DTI_GEMM_32X32] = {32, 32, DTI_GEMM_STEP, 1, 1},
    [DTI_GEMM_32X64] = {32, 64, DTI_GEMM_STEP, 1, 1},
    [DTI_GEMM_64X64] = {64, 64, DTI_GEMM_STEP, 1, 2},
    [DTI_GEMM_128X128] = {128, 128, DTI_GEMM_STEP, 2, 2},
    [DTI_GEMM_NARROW] = {8, 16, 1, 0, 0},
    [DTI_GEMM_NARROW_LONG] = {1, 16, 8, 0, 0},
};
_Static_assert((int)DTI_GEMM_VARIANTS <= (int)DTI_VARIANTS_MAX, "more than a row has place for");

static uint64_t dti_gemm_tiles_of(const dti_args_gemm *g, const dti_gemm_tile *t) {
    return dti_ceil_div(g->m, t->bm) * dti_ceil_div(g->n, t->bn) * g->batch0 * g->batch1;
}

static uint32_t dti_gemm_lanes(const dti_gemm_tile *t) {
    return t->blocks_m ? t->bm * t->bn / (16 * t->blocks_m * t->blocks_n) : t->bm * t->bn * t->bk;
}

static bool dti_gemm_fits(uint32_t variant, const dti_grid_device *device) {
    const dti_gemm_tile *t = &dti_gemm_shapes[variant];
    return variant == DTI_GEMM_IN_REGISTERS ||
           (!device->software && dti_gemm_lanes(t) <= device->invocations_max &&
            dti_grid_has_sums(device, 16 * t->blocks_m * t->blocks_n) &&
            2 * t->bk * (t->bm + t->bn) * DTI_WORD_BYTES <= device->shared_bytes);
}

static uint64_t dti_gemm_steps(const dti_args_gemm *g) {
    return g->apart ? g->apart : g->k;
}

/* Narrow products would waste most of a tile; those with few elements make their chunks at the same
 * time. Others take the largest tile that fits the device, if there are enough tiles for all its
 * parts. If each goes over many k, more are needed. */
static uint32_t dti_gemm_usual(const dti_args_gemm *g, const dti_grid_device *device) {
    static const uint8_t sizes[] = {DTI_GEMM_128X128, DTI_GEMM_64X64, DTI_GEMM_32X64};
    const uint64_t enough = dti_gemm_steps(g) > DTI_GEMM_CHUNK_CHAIN ? DTI_GEMM_CHUNK_GROUPS : 128;
    if (DTI_MIN(g->m, g->n) <= DTI_GEMM_CHUNK_NARROW)
        return g->chunk && dti_gemm_tiles_of(g, &dti_gemm_shapes[DTI_GEMM_NARROW]) < 128
                   ? DTI_GEMM_NARROW_LONG
                   : DTI_GEMM_NARROW;
    for (size_t i = 0; i < DTI_COUNT(sizes); i++)
        if (dti_gemm_fits(sizes[i], device) &&
            dti_gemm_tiles_of(g, &dti_gemm_shapes[sizes[i]]) >= enough)
            return sizes[i];
    return DTI_GEMM_32X32;
}

static uint32_t dti_gemm_variant(const dti_launch *l, const dti_grid_device *device) {
    const uint32_t variant = dti_gemm_usual(&l->args.gemm, device);
    return dti_gemm_fits(variant, device) ? variant : DTI_GEMM_IN_REGISTERS;
}

/* Four from `offset` on, one axis contiguous and the other `apart`, may be loaded as one. */
static bool dti_gemm_by_fours(uint32_t offset, uint32_t batch0, uint32_t batch1, uint32_t apart,
                              uint32_t count) {
    return ((offset | batch0 | batch1 | apart | count) & 3) == 0;
}

/* DTI_GEMM_LIES_*, as gemm.comp's multiply() finds it. */
static uint32_t dti_gemm_lies(const dti_launch *l) {
    const dti_args_gemm *g = &l->args.gemm;
    const bool a_k = g->a_col == 1, b_k = g->b_row == 1;
    uint32_t lies = (a_k ? DTI_GEMM_LIES_A_K : 0) | (b_k ? DTI_GEMM_LIES_B_K : 0);
    if ((a_k || g->a_row == 1) &&
        dti_gemm_by_fours(g->a_offset, g->a_batch0, g->a_batch1, a_k ? g->a_row : g->a_col,
                          a_k ? g->k | g->chunk | g->apart : g->m))
        lies |= DTI_GEMM_LIES_A_FOURS;
    if ((b_k || g->b_col == 1) &&
        dti_gemm_by_fours(g->b_offset, g->b_batch0, g->b_batch1, b_k ? g->b_col : g->b_row,
                          b_k ? g->k | g->chunk | g->apart : g->n))
        lies |= DTI_GEMM_LIES_B_FOURS;
    if (dti_gemm_by_fours(g->c_offset, g->c_batch0, g->c_batch1, g->c_row, g->n))
        lies |= DTI_GEMM_LIES_C_FOURS;
    if (g->chunk)
        lies |= DTI_GEMM_IN_CHUNKS;
    if (lies & (DTI_GEMM_LIES_A_FOURS | DTI_GEMM_LIES_B_FOURS) &&
        !((g->k | g->chunk | g->apart) & (DTI_GEMM_STEP - 1)))
        lies |= DTI_GEMM_WHOLE;
    return lies;
}

static void dti_gemm_tile_spec(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_gemm_tile *t = &dti_gemm_shapes[variant];
    if (variant == DTI_GEMM_IN_REGISTERS) {
        spec[2] = t->bm;
        spec[3] = l->args.gemm.chunk ? DTI_GEMM_IN_CHUNKS : 0;
        return;
    }
    spec[2] = t->bm | t->bn << 8 | t->bk << 16 | t->blocks_m << 24 | t->blocks_n << 28;
    spec[3] = t->blocks_m ? dti_gemm_lies(l) : 0;
}

/* In registers: twice the number of tiles, which are spread over the workgroups. */
static uint64_t dti_gemm_invocations(const dti_launch *l, uint32_t variant,
                                     const uint32_t spec[4]) {
    const dti_args_gemm *g = &l->args.gemm;
    dti_gemm_tile t = dti_gemm_shapes[variant];
    if (variant == DTI_GEMM_IN_REGISTERS) {
        t.bm = spec[2];
        return 2 * dti_gemm_tiles_of(g, &t);
    }
    return dti_gemm_tiles_of(g, &t) * dti_gemm_lanes(&t);
}

static dti_effort dti_gemm_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_gemm *g = &l->args.gemm;
    const uint64_t batches = (g->apart ? 1 : (uint64_t)g->batch0) * g->batch1;
    uint64_t steps = dti_gemm_steps(g);
    if (variant == DTI_GEMM_NARROW_LONG && g->chunk)
        steps = g->chunk * dti_ceil_div(dti_ceil_div(steps, g->chunk), 8);
    return (dti_effort){steps, 2ull * g->m * g->n * g->k * batches};
}

static void dti_gemm_put_operand(dti_launch *l, uint32_t shift) {
    l->args.gemm.operand_offset = l->args.gemm.c_offset + shift;
}

/* The weight, binding 1, and the bias as one value, where they follow each other. */
static bool dti_gemm_free_bias(dti_emit *e, uint32_t launch) {
    const dti_launch l = e->list->launches[launch];
    const dti_view b = {.value = l.value[1], .offset = l.args.gemm.b_offset};
    const dti_view bias = {.value = l.value[3], .offset = l.args.gemm.bias_offset};
    uint32_t both, b_at, bias_at;
    if (!dti_emit_span(e, &b, &bias, &both, &b_at, &bias_at))
        return false;
    dti_launch *to = &e->list->launches[launch];
    to->value[1] = both;
    to->args.gemm.b_offset = b_at;
    to->args.gemm.bias_offset = bias_at;
    to->spec[0] = DTI_BIAS_BESIDE;
    return true;
}

/* C in f32 alone where it carries sums of chunks, or parts of them; B where it has the bias too. */
static bool dti_gemm_grid_halves(const dti_launch *l, int binding) {
    const dti_args_gemm *g = &l->args.gemm;
    return binding == 2 ? !g->chunk && !g->apart : binding != 1 || l->spec[0] != DTI_BIAS_BESIDE;
}

/* A matrix [rows, cols] or its transpose, twice. With a gap after each row, unless a bias lies
 * among the rows. */
static dti_trial_operand dti_gemm_trial_matrix(uint32_t number, uint32_t rows, uint32_t cols) {
    return (dti_trial_operand){.front = number % 3 * 4,
                               .rows = 2 * rows,
                               .cols = cols,
                               .pitch = cols + number / 2 % 2 * 3};
}

/* Half of them have a bias and ReLU. A quarter have the first of B as a bias, and an addend. */
static void dti_gemm_trial_epilogue(uint32_t number, dti_trial *t) {
    dti_trial_operand *o = t->operand;
    dti_args_gemm *g = &t->launch.args.gemm;
    g->bias_offset = g->operand_offset = g->c_offset;
    if (number / 2 % 2) {
        t->launch.spec[0] = DTI_BIAS;
        t->launch.spec[1] = DTI_EPILOGUE_RELU;
        o[3] = (dti_trial_operand){.front = o[2].front, .rows = 1, .cols = g->n, .pitch = g->n};
    } else if (number % 2) {
        t->launch.spec[0] = DTI_BIAS_BESIDE;
        t->launch.spec[1] = DTI_EPILOGUE_ADD;
        o[3] = o[2];
    }
}

/* Sizes around the tiles' edges, in each of the four layouts, by fours and one by one; a third in
 * chunks. There are few, since each is a pipeline. */
static bool dti_gemm_trial(uint32_t number, dti_trial *t) {
    static const uint8_t sizes[][3] = {{128, 132, 32}, {127, 65, 100}, {68, 64, 44},  {63, 129, 33},
                                       {1, 1, 1},      {5, 10, 3},     {65, 63, 15},  {132, 8, 24},
                                       {8, 132, 64},   {128, 128, 48}, {129, 36, 17}, {31, 33, 17},
                                       {132, 68, 40}}; /* the last is of 16 bits */
    const uint32_t layout = (number + number / 4) % 4;
    if (number >= DTI_COUNT(sizes))
        return false;
    const uint32_t m = sizes[number][0], n = sizes[number][1], k = sizes[number][2];
    const bool ta = layout & 1, tb = layout & 2;
    *t = (dti_trial){.launch = {.kernel = DTI_K_GEMM, .args_bytes = sizeof(dti_args_gemm)}};
    dti_trial_operand *o = t->operand;
    const bool half = number + 1 == DTI_COUNT(sizes);
    const uint32_t chunk = !half && number % 3 == 0 && k > 16 ? 16 : 0;
    o[0] = dti_gemm_trial_matrix(number, ta ? k : m, ta ? m : k);
    o[1] = dti_gemm_trial_matrix(number, tb ? n : k, tb ? k : n);
    o[2] = dti_gemm_trial_matrix(number, m, n);
    dti_args_gemm *g = &t->launch.args.gemm;
    *g = (dti_args_gemm){
        .m = m, .n = n, .k = k, .batch0 = 2, .batch1 = 1, .c_row = o[2].pitch, .chunk = chunk};
    *(ta ? &g->a_col : &g->a_row) = o[0].pitch;
    *(ta ? &g->a_row : &g->a_col) = 1;
    *(tb ? &g->b_col : &g->b_row) = o[1].pitch;
    *(tb ? &g->b_row : &g->b_col) = 1;
    g->a_batch0 = o[0].rows / 2 * o[0].pitch;
    g->b_batch0 = o[1].rows / 2 * o[1].pitch;
    g->c_batch0 = m * o[2].pitch;
    g->a_offset = g->b_offset = g->c_offset = o[0].front;
    dti_gemm_trial_epilogue(number, t);
    memset(t->launch.dtype, half ? DT_BF16 : DT_F32, sizeof t->launch.dtype);
    t->launch.items = 2ull * m * n;
    return true;
}

/* 128 tiles; narrow ones as a classifier's last product, in chunks or not. Rows of A by columns of
 * B, as linear's forward. */
static bool dti_gemm_sample(uint32_t variant, dti_trial *t) {
    static const uint16_t sizes[DTI_GEMM_VARIANTS][4] = {
        /* m, n, k, chunk */
        [DTI_GEMM_32X32] = {256, 512, 128, 0},  [DTI_GEMM_32X64] = {512, 512, 128, 0},
        [DTI_GEMM_64X64] = {1024, 512, 128, 0}, [DTI_GEMM_128X128] = {2048, 1024, 128, 0},
        [DTI_GEMM_NARROW] = {1024, 16, 256, 0}, [DTI_GEMM_NARROW_LONG] = {64, 10, 1024, 64}};
    const uint32_t m = sizes[variant][0], n = sizes[variant][1], k = sizes[variant][2];
    *t = (dti_trial){.launch = {.kernel = DTI_K_GEMM, .args_bytes = sizeof(dti_args_gemm)}};
    t->operand[0] = (dti_trial_operand){.rows = m, .cols = k, .pitch = k};
    t->operand[1] = (dti_trial_operand){.rows = n, .cols = k, .pitch = k};
    t->operand[2] = (dti_trial_operand){.rows = m, .cols = n, .pitch = n};
    t->launch.items = (uint64_t)m * n;
    t->launch.args.gemm = (dti_args_gemm){.m = m,
                                          .n = n,
                                          .k = k,
                                          .a_row = k,
                                          .a_col = 1,
                                          .b_row = 1,
                                          .b_col = k,
                                          .c_row = n,
                                          .batch0 = 1,
                                          .batch1 = 1,
                                          .chunk = sizes[variant][3]};
    return m > 0;
}

/* Of k, or of four where A's lie along k and all is loaded by fours; and of chunks. */
static uint64_t dti_gemm_rounds(const dti_launch *l, uint32_t local) {
    const dti_args_gemm *g = &l->args.gemm;
    const uint32_t fours = DTI_GEMM_LIES_A_K | DTI_GEMM_LIES_A_FOURS | DTI_GEMM_LIES_B_FOURS;
    const uint64_t k = dti_gemm_steps(g), chunk = g->chunk ? g->chunk : DTI_MAX(k, 1);
    return ((dti_gemm_lies(l) & fours) == fours ? k / 4 : k) + 16 * dti_ceil_div(k, chunk) + 16;
}

#define DTI_GEMM_OR(size) (1u << DTI_GEMM_##size)

/* spec0: DTI_BIAS_*; spec1: epilogue */
DTI_KERNEL(GEMM, gemm, "rrwr", ITEM, .run = dti_cpu_gemm, .halves = true,
           .grid_halves = dti_gemm_grid_halves, .outer = dti_cpu_items_gemm,
           .grain_of = dti_cpu_grain_gemm, .scratch_bytes = dti_cpu_scratch_gemm,
           .takes = dti_product_takes, .put_operand = dti_gemm_put_operand,
           .free_bias = dti_gemm_free_bias, .local = {64, 64, 128, 128, 256, 128, 128},
           .rivals = {[DTI_GEMM_32X32] = DTI_GEMM_OR(32X64),
                      [DTI_GEMM_32X64] = DTI_GEMM_OR(32X32) | DTI_GEMM_OR(64X64),
                      [DTI_GEMM_64X64] = DTI_GEMM_OR(32X64) | DTI_GEMM_OR(128X128),
                      [DTI_GEMM_128X128] = DTI_GEMM_OR(64X64)},
           .variant = dti_gemm_variant, .tile = dti_gemm_tile_spec, .sums_by = 2,
           .invocations = dti_gemm_invocations, .effort = dti_gemm_effort, .trial = dti_gemm_trial,
           .sample = dti_gemm_sample, .rounds = dti_gemm_rounds, .fits = dti_gemm_fits);
