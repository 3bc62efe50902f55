/* Blocks of products in 16 bits. Two in bf16 go to the kernel of pairs where the set has one; all
 * others are widened, a chunk of k at a time, and the float kernel makes their sums: the same class
 * and bits. */

#define DTI_HALF_BLOCK_COLS 512 /* widened at once: they lie in L2 */

#ifdef DTI_GEMM_PAIR_CHUNK

static int64_t dti_half_block_floats(int64_t m, int64_t n, int64_t k) {
    const int64_t deep = (DTI_MIN(k, DTI_GEMM_PAIR_CHUNK) + 15) / 16 * 16;
    return (m + DTI_MIN(n, DTI_HALF_BLOCK_COLS)) * deep + DTI_GEMM_PACKED_A(DTI_GEMM_PAIR_CHUNK) +
           DTI_GEMM_PACKED_B;
}

/* Columns [j, j + block->n), from element k0 of k on. */
static void dti_half_block_chunk(const dti_isa_kernels *k, const dti_half_block *g,
                                 dti_gemm_block *block, int64_t j, int64_t k0, float *scratch) {
    const dti_gemm_block *all = &g->shape;
    const bool pairs = g->type == DT_BF16;
    const int64_t deep = (block->k + 15) / 16 * 16;
    float *a = scratch, *b = a + all->m * deep;
    dti_gemm_half_tile(k, a, dti_half_at(g->a, g->type, k0 * all->a_col), g->type, all->m, block->k,
                       all->a_row, all->a_col, pairs, &block->a_row, &block->a_col);
    dti_gemm_half_tile(k, b, dti_half_at(g->b, g->type, k0 * all->b_row + j * all->b_col), g->type,
                       block->n, block->k, all->b_col, all->b_row, pairs, &block->b_col,
                       &block->b_row);
    block->a = a, block->b = b;
    block->k += pairs && block->k & 1;
    k->gemm_block(block, b + DTI_MIN(all->n, DTI_HALF_BLOCK_COLS) * deep);
}

static void dti_half_block_widened(const dti_isa_kernels *k, const dti_half_block *g,
                                   float *scratch) {
    const dti_gemm_block *all = &g->shape;
    const int64_t chunk = g->type == DT_BF16 ? DTI_GEMM_PAIR_CHUNK : DTI_GEMM_KC;
    for (int64_t j = 0; j < all->n; j += DTI_HALF_BLOCK_COLS)
        for (int64_t k0 = 0; k0 == 0 || k0 < all->k; k0 += chunk) {
            dti_gemm_block block = *all;
            block.n = DTI_MIN(all->n - j, DTI_HALF_BLOCK_COLS);
            block.k = DTI_MIN(all->k - k0, chunk);
            block.chunk = chunk;
            block.c += j * all->c_col;
            block.add = all->add || k0 > 0;
            dti_half_block_chunk(k, g, &block, j, k0, scratch);
        }
}

static void dti_half_block_run(const dti_isa_kernels *k, const dti_half_block *g, float *scratch) {
    const dti_fp_modes modes = g->type == DT_BF16 ? dti_fp_flush() : dti_fp_enter();
    if (g->type == DT_BF16 && k->gemm_pairs) {
        dti_gemm_block block = g->shape;
        block.a = g->a, block.b = g->b;
        block.pairs = true;
        k->gemm_pairs(&block, scratch);
    } else {
        dti_half_block_widened(k, g, scratch);
    }
    dti_fp_leave(modes);
}

#else /* without the kernel of pairs */

static int64_t dti_half_block_cols(int64_t n) {
    return DTI_MIN(n, DTI_HALF_BLOCK_COLS);
}

/* Floats of a widened chunk, whole cache lines. */
static int64_t dti_half_chunk_floats(int64_t lines, int64_t k) {
    return (lines * DTI_MIN(k, DTI_GEMM_KC) + 15) / 16 * 16;
}

static int64_t dti_half_block_floats(int64_t m, int64_t n, int64_t k) {
    const dti_gemm chunk = {.m = m, .n = dti_half_block_cols(n), .k = DTI_MIN(k, DTI_GEMM_KC)};
    return dti_half_chunk_floats(m, k) + dti_half_chunk_floats(chunk.n, k) +
           (int64_t)(dti_gemm_scratch_bytes(&chunk) / sizeof(float));
}

/* rows x cols from element `at` on, as floats; row and col: their strides, become the floats'. */
static void dti_half_chunk(const dti_isa_kernels *k, float *to, const dti_half_block *g,
                           const void *from, int64_t at, int64_t rows, int64_t cols, int64_t *row,
                           int64_t *col) {
    const uint16_t *x = (const uint16_t *)from + at;
    const bool turned = *row == 1 && *col != 1;
    const int64_t lines = turned ? cols : rows, n = turned ? rows : cols;
    const int64_t line = turned ? *col : *row, step = turned ? *row : *col;
    for (int64_t i = 0; i < lines; i++, x += line, to += n) {
        if (step == 1)
            k->widen[g->type](to, x, n);
        for (int64_t j = 0; step != 1 && j < n; j++)
            k->widen[g->type](to + j, x + j * step, 1);
    }
    *row = turned ? 1 : cols;
    *col = turned ? rows : 1;
}

/* Columns [j, j + block->n), from element k0 of k on. */
static void dti_half_block_chunk(const dti_isa_kernels *k, const dti_half_block *g,
                                 dti_gemm_block *block, int64_t j, int64_t k0, float *scratch) {
    const dti_gemm_block *all = &g->shape;
    float *a = scratch, *b = a + dti_half_chunk_floats(all->m, all->k);
    dti_half_chunk(k, a, g, g->a, k0 * all->a_col, all->m, block->k, &block->a_row, &block->a_col);
    dti_half_chunk(k, b, g, g->b, k0 * all->b_row + j * all->b_col, block->k, block->n,
                   &block->b_row, &block->b_col);
    block->a = a;
    block->b = b;
    k->gemm_block(block, b + dti_half_chunk_floats(dti_half_block_cols(all->n), all->k));
}

static void dti_half_block_run(const dti_isa_kernels *k, const dti_half_block *g, float *scratch) {
    const dti_gemm_block *all = &g->shape;
    for (int64_t j = 0; j < all->n; j += DTI_HALF_BLOCK_COLS)
        for (int64_t k0 = 0; k0 == 0 || k0 < all->k; k0 += DTI_GEMM_KC) {
            dti_gemm_block block = *all;
            block.n = DTI_MIN(all->n - j, DTI_HALF_BLOCK_COLS);
            block.k = DTI_MIN(all->k - k0, DTI_GEMM_KC);
            block.c += j * all->c_col;
            block.add = all->add || k0 > 0;
            dti_half_block_chunk(k, g, &block, j, k0, scratch);
        }
}

#endif
