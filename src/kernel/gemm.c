/* SGEMM, the part that no instruction set changes: how C is cut into tiles for threads. It chooses
 * the grid whose largest tile costs least, counting elements that are packed twice. It starts no
 * threads: the caller runs the tiles. */

#define DTI_GEMM_PACK_COST 24 /* packing one element, in multiply-adds */

typedef struct dti_gemm_grid {
    int64_t rows, cols, row_unit, col_unit; /* tiles; a tile's edges are multiples of the units */
} dti_gemm_grid;

/* Where part i of `parts` begins. */
static int64_t dti_gemm_cut(int64_t size, int64_t unit, int64_t parts, int64_t i) {
    int64_t units = (size + unit - 1) / unit;
    return DTI_MIN(units * i / parts * unit, size);
}

static dti_gemm_grid dti_gemm_make_grid(const dti_gemm *g, int threads) {
    dti_gemm_grid best = {1, 1, g->m >= 96 ? 12 : 4, g->n >= 128 ? 32 : 16};
    double macs = (double)g->m * (double)g->n * (double)DTI_MAX(g->k, 1);
    int64_t tiles = DTI_MIN((int64_t)threads, (int64_t)DTI_MIN(macs / DTI_GEMM_TILE_MACS, 1e6));
    double best_cost = 1e300;
    for (int64_t rows = 1; rows <= tiles; rows++) {
        int64_t cols = tiles / rows;
        int64_t row_units = (g->m + best.row_unit - 1) / best.row_unit;
        int64_t col_units = (g->n + best.col_unit - 1) / best.col_unit;
        if (rows > row_units || cols > col_units)
            continue;
        double m = (double)((row_units + rows - 1) / rows * best.row_unit);
        double n = (double)((col_units + cols - 1) / cols * best.col_unit);
        double cost = m * n + DTI_GEMM_PACK_COST * (m + n);
        if (cost >= best_cost)
            continue;
        best_cost = cost;
        best.rows = rows;
        best.cols = cols;
    }
    return best;
}

static int64_t dti_gemm_tiles(const dti_gemm *g, int threads) {
    if (threads <= 1)
        return 1;
    dti_gemm_grid grid = dti_gemm_make_grid(g, threads);
    return grid.rows * grid.cols;
}

/* The memory of the kernel, before the sums in double. */
static int64_t dti_gemm_packed(int64_t m, int64_t n, int64_t k) {
    k = DTI_MIN(k, DTI_GEMM_KC);
    return k * DTI_MIN((DTI_MAX(m, n) + 31) / 32 * 32, dti_gemm_columns(k)) +
           DTI_GEMM_PACKED_A(DTI_GEMM_KC);
}

static size_t dti_gemm_scratch_bytes(const dti_gemm *g) {
    const int64_t packed = dti_gemm_packed(g->m, g->n, g->k);
    const int64_t wide = DTI_MIN(g->m, DTI_GEMM_WIDE_ROWS) * DTI_MIN(g->n, DTI_GEMM_WIDE_COLS);
    return (size_t)packed * sizeof(float) +
           (g->k > DTI_GEMM_SPAN ? (size_t)wide * sizeof(double) : 0);
}

/* Of operands in 16 bits: gemm_half.c. */
static void dti_gemm_half_block(const struct dti_isa_kernels *k, const dti_gemm *g, int64_t i0,
                                int64_t i1, int64_t j0, int64_t j1, void *scratch);

/* While the rectangle is warm. */
static void dti_gemm_add(const struct dti_isa_kernels *kernels, const dti_gemm *g, int64_t i0,
                         int64_t i1, int64_t j0, int64_t j1) {
    for (int64_t i = i0; i < i1; i++) {
        float *c = g->c + i * g->c_row + j0;
        kernels->binary[DTI_B_ADD](c, c, 1, g->addend + i * g->c_row + j0, 1, j1 - j0);
    }
}

static dti_wide dti_gemm_wide(const dti_gemm_block *g, double *sums) {
    return (dti_wide){sums, g->c, g->m, g->n, g->c_row, g->c_col};
}

static dti_gemm_block_fn *dti_gemm_kernel(const struct dti_isa_kernels *kernels, bool pairs) {
    return pairs ? kernels->gemm_pairs : kernels->gemm_block;
}

/* k of several spans, which are added in double; then the last chunk is added. */
static void dti_gemm_spans(const struct dti_isa_kernels *kernels, const dti_gemm_block *g,
                           float *scratch, double *sums) {
    const int64_t chunk = g->pairs ? DTI_GEMM_PAIR_CHUNK : DTI_GEMM_KC;
    const int64_t last = (g->k - 1) / chunk * chunk;
    dti_gemm_block_fn *const kernel = dti_gemm_kernel(kernels, g->pairs);
    dti_gemm_block span = *g;
    span.bias = span.mask = NULL, span.add = span.relu = false;
    if (g->add)
        dti_wide_add(dti_gemm_wide(g, sums), true);
    for (int64_t k = 0; k < last; k += span.k) {
        span.k = DTI_MIN(last - k, DTI_GEMM_SPAN);
        span.a = dti_gemm_a(g, k * g->a_col), span.b = dti_gemm_b(g, k * g->b_row);
        kernel(&span, scratch);
        dti_wide_add(dti_gemm_wide(g, sums), k == 0 && !g->add);
    }
    dti_wide_take(dti_gemm_wide(g, sums));
    span = *g;
    span.k -= last, span.add = true;
    span.a = dti_gemm_a(g, last * g->a_col), span.b = dti_gemm_b(g, last * g->b_row);
    kernel(&span, scratch);
}

static void dti_gemm_long(const struct dti_isa_kernels *kernels, const dti_gemm_block *g,
                          float *scratch, int64_t packed) {
    for (int64_t j = 0; j < g->n; j += DTI_GEMM_WIDE_COLS)
        for (int64_t i = 0; i < g->m; i += DTI_GEMM_WIDE_ROWS) {
            dti_gemm_block part = dti_gemm_columns_of(g, j, DTI_MIN(g->n, j + DTI_GEMM_WIDE_COLS));
            part.m = DTI_MIN(g->m - i, DTI_GEMM_WIDE_ROWS);
            part.a = dti_gemm_a(g, i * g->a_row);
            part.c += i * g->c_row;
            if (g->mask)
                part.mask += i * g->c_row;
            dti_gemm_spans(kernels, &part, scratch, (double *)(void *)(scratch + packed));
        }
}

static void dti_gemm_run_block(const struct dti_isa_kernels *kernels, const dti_gemm *g, int64_t i0,
                               int64_t i1, int64_t j0, int64_t j1, void *scratch) {
    if (g->half) {
        dti_gemm_half_block(kernels, g, i0, i1, j0, j1, scratch);
        return;
    }
    dti_gemm_block block = {
        .m = i1 - i0,
        .n = j1 - j0,
        .k = g->k,
        .a = g->a + i0 * g->a_row,
        .a_row = g->a_row,
        .a_col = g->a_col,
        .b = g->b + j0 * g->b_col,
        .b_row = g->b_row,
        .b_col = g->b_col,
        .c = g->c + i0 * g->c_row + j0 * g->c_col,
        .mask = g->mask ? g->mask + i0 * g->c_row + j0 * g->c_col : NULL,
        .c_row = g->c_row,
        .c_col = g->c_col,
        .bias = g->bias ? g->bias + j0 * g->bias_stride : NULL,
        .bias_col = g->bias_stride,
        .add = g->accumulate,
        .relu = g->epilogue == DTI_GEMM_RELU,
    };
    if (block.m > 0 && block.n > 0 && g->k > DTI_GEMM_SPAN)
        dti_gemm_long(kernels, &block, scratch, dti_gemm_packed(g->m, g->n, g->k));
    else if (block.m > 0 && block.n > 0)
        kernels->gemm_block(&block, scratch);
    if (g->addend)
        dti_gemm_add(kernels, g, i0, i1, j0, j1);
}

static void dti_gemm_run(const struct dti_isa_kernels *kernels, const dti_gemm *g, int threads,
                         int64_t tile_begin, int64_t tile_end, void *scratch) {
    if (threads <= 1) {
        if (tile_begin < tile_end)
            dti_gemm_run_block(kernels, g, 0, g->m, 0, g->n, scratch);
        return;
    }
    dti_gemm_grid grid = dti_gemm_make_grid(g, threads);
    for (int64_t t = tile_begin; t < tile_end;) {
        int64_t row = t / grid.cols, col = t % grid.cols;
        int64_t end = DTI_MIN(grid.cols, col + (tile_end - t));
        int64_t rows = 1; /* whole rows of tiles that follow are one block with this one */
        if (col == 0 && end == grid.cols)
            rows = (tile_end - t) / grid.cols;
        dti_gemm_run_block(kernels, g, dti_gemm_cut(g->m, grid.row_unit, grid.rows, row),
                           dti_gemm_cut(g->m, grid.row_unit, grid.rows, row + rows),
                           dti_gemm_cut(g->n, grid.col_unit, grid.cols, col),
                           dti_gemm_cut(g->n, grid.col_unit, grid.cols, end), scratch);
        t += rows > 1 ? rows * grid.cols : end - col;
    }
}
