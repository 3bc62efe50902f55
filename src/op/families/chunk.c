/* Products with long sums, on a device that runs workgroups. k is cut into chunks; each is added in
 * one chain, and chunks are added in ascending order. A sum over many rows is cut into parts of at
 * most DTI_GEMM_CHAINS chunks. Workgroups of its own make each part, and PRODUCT_SUM adds the
 * parts. So no chain is long, and a rounding error does not grow with k. No loop is long either
 * (llvmpipe ends long ones, work.c). The shapes of the weight and of a sample decide the cuts. For
 * a sum over rows the number of rows does. So no bit depends on a replica's number of rows, or on
 * the device. Chunks are made in one of two ways. Workgroups of their own write parts, which
 * PRODUCT_SUM adds. Or one workgroup makes chunks one after the other, where there are enough
 * workgroups. So it does on a processor, which runs few at a time. */

#define DTI_GEMM_CHAIN 512                /* of k that one chain adds, where k is longer than two */
#define DTI_GEMM_CHAIN_SMALL 128          /* of a product of one tile */
#define DTI_GEMM_CHAINS 64                /* that a part has at most */
#define DTI_GEMM_APART_ELEMENTS (1 << 24) /* of all parts of batches that are made together */
#define DTI_GEMM_CHUNK_SAMPLES 64 /* that a rowwise product is cut for, however many there are */
#define DTI_GEMM_CHUNK_CHAIN 512  /* not longer where there are few workgroups */
#define DTI_GEMM_CHUNK_GROUPS 256 /* are not few */
#define DTI_GEMM_CHUNK_FILL 72    /* of a small product */
#define DTI_GEMM_CHUNK_STEP 16    /* a chunk is a multiple of it: every tile's step */
#define DTI_GEMM_CHUNK_LEAST 64 /* in a chunk of a rowwise product; twice that in a sum over rows */
#define DTI_GEMM_CHUNK_NARROW 16  /* rows or columns of a product */
#define DTI_GEMM_CHUNK_TILES 2048 /* of all parts, which are 64 x 64 elements each, at most */

static uint64_t dti_gemm_chunk_tiles(uint64_t m, uint64_t n, uint64_t size) {
    return dti_ceil_div(m, size) * dti_ceil_div(n, size);
}

/* The length of a chunk; 0: of all k. */
static uint32_t dti_gemm_chunk_length(uint64_t k, uint64_t parts, uint64_t least) {
    parts = DTI_MIN(parts, k / least);
    if (parts < 2)
        return 0;
    const uint64_t chunk =
        dti_ceil_div(dti_ceil_div(k, parts), DTI_GEMM_CHUNK_STEP) * DTI_GEMM_CHUNK_STEP;
    return chunk < k ? (uint32_t)chunk : 0;
}

/* The cuts of k. chunk: added in one chain; 0: all k. part: made apart from others; 0: no parts.
 * beside: workgroups of their own may make chunks, if there are few without. */
typedef struct dti_gemm_cuts {
    uint32_t chunk, part;
    bool beside;
} dti_gemm_cuts;

/* Into parts of at most `part` of k; 0: as long as may be. chain: that is added in one. */
static dti_gemm_cuts dti_gemm_cuts_parts(uint64_t k, uint64_t part, uint64_t chain) {
    part = DTI_MIN(part ? part : k, (uint64_t)DTI_GEMM_CHAINS * chain);
    if (part >= k)
        return (dti_gemm_cuts){.chunk = k > 2 * chain ? (uint32_t)chain : 0};
    if (part <= chain && dti_ceil_div(k, part) <= DTI_GEMM_CHAINS)
        return (dti_gemm_cuts){.chunk = (uint32_t)part, .beside = true};
    if (part > chain)
        part = dti_ceil_div(part, chain) * chain;
    return (dti_gemm_cuts){.chunk = part > chain ? (uint32_t)chain : 0, .part = (uint32_t)part};
}

/* For a product whose every row belongs to one sample, with `rows` rows a sample. */
static dti_gemm_cuts dti_gemm_cuts_rowwise(uint64_t rows, uint64_t n, uint64_t k) {
    const uint64_t m = DTI_GEMM_CHUNK_SAMPLES * rows;
    uint64_t parts = dti_ceil_div(DTI_GEMM_CHUNK_FILL, DTI_MAX(dti_gemm_chunk_tiles(m, n, 32), 1));
    if (dti_gemm_chunk_tiles(m, n, 64) < DTI_GEMM_CHUNK_GROUPS)
        parts = DTI_MAX(parts, dti_ceil_div(k, DTI_GEMM_CHUNK_CHAIN));
    const uint32_t chunk = dti_gemm_chunk_length(k, parts, DTI_GEMM_CHUNK_LEAST);
    if (!chunk || chunk > DTI_GEMM_CHAIN || k > DTI_GEMM_CHAINS * (uint64_t)chunk)
        return dti_gemm_cuts_parts(k, 0, DTI_GEMM_CHAIN);
    return (dti_gemm_cuts){.chunk = chunk, .beside = true};
}

/* A product of one tile, whose chunks cost little, has short chains. */
static uint64_t dti_gemm_chain(uint64_t m, uint64_t n) {
    return dti_gemm_chunk_tiles(m, n, 64) > 1 ? DTI_GEMM_CHAIN : DTI_GEMM_CHAIN_SMALL;
}

/* Of a product m x n that is a sum over k rows. */
static dti_gemm_cuts dti_gemm_cuts_over_rows(uint64_t m, uint64_t n, uint64_t k) {
    const uint64_t tiles = DTI_MAX(dti_gemm_chunk_tiles(m, n, 64), 1);
    const uint64_t parts = dti_ceil_div(DTI_GEMM_CHUNK_GROUPS, tiles);
    return dti_gemm_cuts_parts(k, dti_gemm_chunk_length(k, parts, 2 * DTI_GEMM_CHUNK_LEAST),
                               dti_gemm_chain(m, n));
}

/* The number of chunks that workgroups of their own make. 1: workgroups make chunks one after the
 * other. Narrow products make them at the same time. */
static uint32_t dti_gemm_chunk_parts(const dti_args_gemm *g) {
    const uint64_t tiles = dti_gemm_chunk_tiles(g->m, g->n, 64);
    const uint64_t parts = g->chunk ? dti_ceil_div(g->k, g->chunk) : 1;
    if (DTI_MIN(g->m, g->n) <= DTI_GEMM_CHUNK_NARROW || tiles >= DTI_GEMM_CHUNK_GROUPS ||
        parts * tiles > DTI_GEMM_CHUNK_TILES)
        return 1;
    return (uint32_t)parts;
}

/* Makes a product, of batch1 batches, one of its parts, which lie one after the other. */
static void dti_gemm_set_apart(dti_args_gemm *g, uint32_t part) {
    g->apart = part;
    g->chunk = g->chunk < part ? g->chunk : 0;
    g->batch0 = (uint32_t)dti_ceil_div(g->k, part);
    g->a_batch0 = part * g->a_col;
    g->b_batch0 = part * g->b_row;
    g->c_batch1 = g->m * g->n;
    g->c_batch0 = g->c_batch1 * g->batch1;
    g->c_offset = 0;
}

/* For the product `g`, whose parts lie in value x, with its bias. */
static void dti_emit_product_sum(dti_emit *e, const dti_args_gemm *g, uint32_t parts, uint32_t x,
                                 uint32_t bias) {
    const uint32_t n = g->m * g->n * g->batch1;
    const dti_args_product_sum a = {.n = n,
                                    .cols = g->n,
                                    .parts = parts,
                                    .part = n,
                                    .c_offset = g->c_offset,
                                    .bias_offset = g->bias_offset};
    DTI_EMIT(e, DTI_K_PRODUCT_SUM, n, a, x, DTI_UNBOUND, e->out.value, bias)->spec[0] =
        bias != DTI_UNBOUND;
}

static void dti_product_sum_put_operand(dti_launch *l, uint32_t shift) {
    l->args.product_sum.operand_offset = l->args.product_sum.c_offset + shift;
}

/* Binding 1 is not needed otherwise. */
static bool dti_product_sum_free_bias(dti_emit *e, uint32_t launch) {
    dti_launch *l = &e->list->launches[launch];
    l->value[1] = l->value[3];
    l->spec[0] = DTI_BIAS_BESIDE;
    return true;
}

static bool dti_product_sum_grid_halves(const dti_launch *l, int binding) {
    return binding != 0; /* parts are of f32 */
}

static dti_effort dti_product_sum_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_product_sum *a = &l->args.product_sum;
    return (dti_effort){a->parts, (uint64_t)a->parts * a->n};
}

/* Four values at a time, or one. */
static uint64_t dti_product_sum_rounds(const dti_launch *l, uint32_t local) {
    return 4 * (uint64_t)l->args.product_sum.parts + DTI_ROUNDS_FEW;
}

/* A code that was made for another device may come to run here. */
static void dti_cpu_product_sum(const dti_cpu_task *task, int64_t begin, int64_t end,
                                void *scratch) {
    const dti_launch *l = task->launch;
    const dti_args_product_sum *a = &l->args.product_sum;
    const float *x = dti_cpu_in(task, 0, a->x_offset);
    const float *bias = dti_cpu_in(task, l->spec[0] == DTI_BIAS ? 3 : 1, a->bias_offset);
    const float *operand = dti_cpu_in(task, 3, a->operand_offset);
    float *c = dti_cpu_out(task, 2, a->c_offset);
    for (int64_t i = begin; i < end; i++) {
        float sum = 0, run = x[i]; /* as the shader has them */
        for (uint64_t p = 1; p < a->parts; p++) {
            run += x[p * a->part + (uint64_t)i];
            if (p % DTI_PRODUCT_CHAIN == 0)
                sum += run, run = 0;
        }
        sum = a->parts <= DTI_PRODUCT_CHAIN ? run : sum + run;
        if (l->spec[0])
            sum += bias[(uint64_t)i % a->cols];
        if (l->spec[1] == DTI_EPILOGUE_ADD)
            sum += operand[i];
        if (l->spec[1] == DTI_EPILOGUE_RELU_GRAD ? !(operand[i] > 0)
                                                 : l->spec[1] == DTI_EPILOGUE_RELU && sum < 0)
            sum = 0;
        c[i] = sum;
    }
}

/* Bound as the product is that it ends. spec0: DTI_BIAS_*; spec1: epilogue */
DTI_KERNEL(PRODUCT_SUM, product_sum, "rrwr", ITEM, .run = dti_cpu_product_sum, .grain = 16384,
           .grid_halves = dti_product_sum_grid_halves, .each = DTI_WORD(product_sum, parts),
           .takes = dti_product_takes, .put_operand = dti_product_sum_put_operand,
           .free_bias = dti_product_sum_free_bias, .invocations = dti_quarter_invocations,
           .rounds = dti_product_sum_rounds, .effort = dti_product_sum_effort);
