/* Products of few results with long sums, for a device that runs workgroups: k is cut into chunks,
 * each added in one chain, and chunks are added in ascending order. Where the cuts are is a matter
 * of the weight's shape and a sample's, or for a sum over rows of these: no bit depends on how many
 * rows a replica has, or on the device. Who makes a chunk is free: there are workgroups for each
 * one, which write parts that PRODUCT_SUM adds, or a workgroup makes one after the other: where
 * there are enough of them without, and on a processor, which runs few at a time. */

#define DTI_GEMM_CHUNK_SAMPLES 64 /* that a rowwise product is cut for, however many there are */
#define DTI_GEMM_CHUNK_CHAIN 512  /* not longer where there are few workgroups */
#define DTI_GEMM_CHUNK_GROUPS 256 /* are not few */
#define DTI_GEMM_CHUNK_FILL 72    /* of a small product */
#define DTI_GEMM_CHUNK_STEP 16    /* what a chunk is a multiple of: every tile's step */
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

/* Of a product whose every row is of one sample, which has `rows` of them. */
static uint32_t dti_gemm_chunk_rowwise(uint64_t rows, uint64_t n, uint64_t k) {
    const uint64_t m = DTI_GEMM_CHUNK_SAMPLES * rows;
    uint64_t parts = dti_ceil_div(DTI_GEMM_CHUNK_FILL, DTI_MAX(dti_gemm_chunk_tiles(m, n, 32), 1));
    if (dti_gemm_chunk_tiles(m, n, 64) < DTI_GEMM_CHUNK_GROUPS)
        parts = DTI_MAX(parts, dti_ceil_div(k, DTI_GEMM_CHUNK_CHAIN));
    return dti_gemm_chunk_length(k, parts, DTI_GEMM_CHUNK_LEAST);
}

/* Of a product m x n that is a sum over k rows. */
static uint32_t dti_gemm_chunk_over_rows(uint64_t m, uint64_t n, uint64_t k) {
    const uint64_t tiles = DTI_MAX(dti_gemm_chunk_tiles(m, n, 64), 1);
    return dti_gemm_chunk_length(k, dti_ceil_div(DTI_GEMM_CHUNK_GROUPS, tiles),
                                 2 * DTI_GEMM_CHUNK_LEAST);
}

/* 1: workgroups make chunks one after the other. Narrow ones do so beside each other. */
static uint32_t dti_gemm_chunk_parts(const dti_args_gemm *g) {
    const uint64_t tiles = dti_gemm_chunk_tiles(g->m, g->n, 64);
    const uint64_t parts = g->chunk ? dti_ceil_div(g->k, g->chunk) : 1;
    if (DTI_MIN(g->m, g->n) <= DTI_GEMM_CHUNK_NARROW || tiles >= DTI_GEMM_CHUNK_GROUPS ||
        parts * tiles > DTI_GEMM_CHUNK_TILES)
        return 1;
    return (uint32_t)parts;
}

/* Makes a product without batches one of its chunks, which lie one behind the other. */
static void dti_gemm_chunk_apart(dti_args_gemm *g, uint32_t parts) {
    g->apart = 1;
    g->batch0 = parts;
    g->a_batch0 = g->chunk * g->a_col;
    g->b_batch0 = g->chunk * g->b_row;
    g->c_batch0 = g->m * g->n;
    g->c_offset = 0;
}

/* Of the product `g`, whose parts lie in value x, with its bias. */
static void dti_emit_product_sum(dti_emit *e, const dti_args_gemm *g, uint32_t parts, uint32_t x,
                                 uint32_t bias) {
    const uint32_t n = g->m * g->n;
    dti_launch *l = dti_emit_launch(e, DTI_K_PRODUCT_SUM, n, sizeof l->args.product_sum);
    l->args.product_sum = (dti_args_product_sum){.n = n,
                                                 .cols = g->n,
                                                 .parts = parts,
                                                 .part = n,
                                                 .c_offset = g->c_offset,
                                                 .bias_offset = g->bias_offset};
    l->spec[0] = bias != DTI_UNBOUND;
    dti_bind(l, x, DTI_UNBOUND, e->out.value, bias);
}

static void dti_product_sum_put_operand(dti_launch *l, uint32_t shift) {
    l->args.product_sum.operand_offset = l->args.product_sum.c_offset + shift;
}

/* Binding 1 is of no use otherwise. */
static bool dti_product_sum_free_bias(dti_emit *e, uint32_t launch) {
    dti_launch *l = &e->list->launches[launch];
    l->value[1] = l->value[3];
    l->spec[0] = DTI_BIAS_BESIDE;
    return true;
}

static uint64_t dti_product_sum_invocations(const dti_launch *l, uint32_t variant,
                                            const uint32_t spec[4]) {
    (void)variant, (void)spec;
    return dti_ceil_div(l->items, 4);
}

static dti_effort dti_product_sum_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_product_sum *a = &l->args.product_sum;
    (void)variant, (void)local;
    return (dti_effort){a->parts, (uint64_t)a->parts * a->n};
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
    (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        float sum = x[i];
        for (uint64_t p = 1; p < a->parts; p++)
            sum += x[p * a->part + (uint64_t)i];
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

static int64_t dti_cpu_grain_product_sum(const dti_cpu_task *task) {
    return 1 + 16384 / (int64_t)task->launch->args.product_sum.parts;
}

/* Bound as the product is that it ends. spec0: DTI_BIAS_*; spec1: epilogue */
DTI_KERNEL(PRODUCT_SUM, product_sum, "rrwr", ITEM, .run = dti_cpu_product_sum,
           .grain = dti_cpu_grain_product_sum, .takes = dti_product_takes,
           .put_operand = dti_product_sum_put_operand, .free_bias = dti_product_sum_free_bias,
           .invocations = dti_product_sum_invocations, .effort = dti_product_sum_effort);
