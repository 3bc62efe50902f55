/* Blocks of products in 16 bits. Two in bf16 go to the kernel of pairs, if the set has one. All
 * others are widened, a chunk of k at a time. The float kernel makes their sums: the same class and
 * bits. */

#define DTI_HALF_BLOCK_COLS 256 /* widened at once: they lie in L2 */
_Static_assert(DTI_HALF_BLOCK_COLS *DTI_GEMM_PAIR_CHUNK <= DTI_GEMM_PACKED_B,
               "a chunk's columns are packed at once");

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
            block.kept = NULL;
            block.is_kept = false;
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
