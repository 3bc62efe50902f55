/* The product of pairs by AMX: up to 16 rows and 64 columns of C at a time, for gemm_walk_body.h. A
 * step is 16 words of k, by class "amx" of gemm.h. Tests define the instructions themselves,
 * because few processors have them. */

#ifndef DTI_TILE_LOAD
#define DTI_AMX(name) DTI_N(amx_##name)
/* GCC does not know that the instructions read memory: used before and after them. */
#define DTI_TILE_WROTE(at) __asm__ volatile("" : : "r"(at) : "memory")
#define DTI_TILE_SHAPES(shapes) _tile_loadconfig(shapes)
#define DTI_TILE_ZERO(t) _tile_zero(t)
#define DTI_TILE_LOAD(t, from, row) _tile_loadd(t, from, (size_t)(row)*4)
#define DTI_TILE_STORE(t, to, row) _tile_stored(t, to, (size_t)(row)*4)
#define DTI_TILE_PRODUCT(c, a, b) _tile_dpbf16ps(c, a, b)
#define DTI_TILE_END() _tile_release()
#endif

/* Tiles 0 to 3 are C's columns, 4 is A, 5 and 6 are B. */
static void DTI_AMX(begin)(int rows) {
    enum { PALETTE = 0, ROW_BYTES = 16, ROWS = 48 };
    alignas(64) uint8_t shapes[64] = {[PALETTE] = 1};
    for (int t = 0; t < 7; t++) {
        shapes[ROW_BYTES + 2 * t] = 64;
        shapes[ROWS + t] = (uint8_t)(t < 5 ? rows : 16);
    }
    DTI_TILE_WROTE(shapes);
    DTI_TILE_SHAPES(shapes);
}

/* Adds `x` times `y`, of a whole step. GCC wants literal numbers. */
#define DTI_AMX_COLUMNS(c, b)                                                                      \
    if (vecs > c) {                                                                                \
        DTI_TILE_LOAD(b, y + 16 * c, y_row);                                                       \
        DTI_TILE_PRODUCT(c, 4, b);                                                                 \
    }
DTI_INLINE void DTI_AMX(step)(int vecs, const float *x, int64_t x_row, const float *y,
                              int64_t y_row) {
    DTI_TILE_WROTE(x);
    DTI_TILE_WROTE(y);
    DTI_TILE_LOAD(4, x, x_row);
    DTI_AMX_COLUMNS(0, 5)
    DTI_AMX_COLUMNS(1, 6)
    DTI_AMX_COLUMNS(2, 5)
    DTI_AMX_COLUMNS(3, 6)
    DTI_TILE_WROTE(x);
    DTI_TILE_WROTE(y);
}
#undef DTI_AMX_COLUMNS

static void DTI_AMX(store)(int rows, int vecs, const float *sums, const dti_gemm_out *out) {
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vecs; v++) {
            float *to = out->to + i * out->to_row + v * DTI_LANES;
            const int n = v == vecs - 1 ? out->to_last : DTI_LANES;
            DTI_NF x = DTI_N(load)(sums + i * DTI_GEMM_NR + v * DTI_LANES);
            if (out->to_sum)
                x = DTI_N(load_n)(to, n) + x;
            DTI_N(store_n)(to, x, n);
        }
}

/* n words of each row of A, which may be packed, followed by zeros. */
static void DTI_AMX(rows_of_a)(float *to, int rows, int n, const float *a, int64_t a_row,
                               int64_t a_col) {
    if (a_col != 1)
        DTI_N(pack_corner)(to, 16, a, a_col, n, rows);
    for (int i = 0; i < rows && a_col == 1; i++)
        DTI_N(store)(to + 16 * i, DTI_N(load_n)(a + i * a_row, n));
}

/* n words of B's columns, followed by zeros. */
static void DTI_AMX(rows_of_b)(float *to, int vecs, int n, const float *b, int64_t b_row) {
    memset(to, 0, 16 * DTI_GEMM_NR * sizeof *to);
    for (int i = 0; i < n; i++)
        memcpy(to + i * DTI_GEMM_NR, b + i * b_row, (size_t)vecs * DTI_LANES * sizeof *to);
}

static void DTI_AMX(tile)(int rows, int vecs, int64_t k, const float *a, int64_t a_row,
                          int64_t a_col, const float *b, int64_t b_row, const dti_gemm_out *out) {
    alignas(64) float sums[16 * DTI_GEMM_NR], own_a[16 * 16], own_b[16 * DTI_GEMM_NR];
    DTI_TILE_ZERO(0);
    DTI_TILE_ZERO(1);
    DTI_TILE_ZERO(2);
    DTI_TILE_ZERO(3);
    for (int64_t p = 0; p < k; p += 16, a += 16 * a_col, b += 16 * b_row) {
        const int n = (int)DTI_MIN(k - p, 16);
        const bool turns = a_col != 1, ends = n < 16;
        if (turns || ends)
            DTI_AMX(rows_of_a)(own_a, rows, n, a, a_row, a_col);
        if (ends)
            DTI_AMX(rows_of_b)(own_b, vecs, n, b, b_row);
        DTI_AMX(step)
        (vecs, turns || ends ? own_a : a, turns || ends ? 16 : a_row, ends ? own_b : b,
         ends ? DTI_GEMM_NR : b_row);
    }
    DTI_TILE_STORE(0, sums, DTI_GEMM_NR);
    DTI_TILE_STORE(1, sums + 16, DTI_GEMM_NR);
    DTI_TILE_STORE(2, sums + 32, DTI_GEMM_NR);
    DTI_TILE_STORE(3, sums + 48, DTI_GEMM_NR);
    DTI_AMX(store)(rows, vecs, sums, out);
}

static const dti_gemm_kernels DTI_AMX(tiles) = {16, DTI_AMX(begin), DTI_AMX(tile)};

static void DTI_AMX(block)(const dti_gemm_block *g, float *scratch) {
    dti_gemm_block part = *g;
    part.tiles = &DTI_AMX(tiles);
    DTI_N(pairs_block)(&part, scratch);
    DTI_TILE_END();
}

#undef DTI_AMX
#undef DTI_TILE_WROTE
#undef DTI_TILE_SHAPES
#undef DTI_TILE_ZERO
#undef DTI_TILE_LOAD
#undef DTI_TILE_STORE
#undef DTI_TILE_PRODUCT
#undef DTI_TILE_END
