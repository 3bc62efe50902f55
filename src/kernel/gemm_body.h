/* SGEMM for one instruction set: BLIS's scheme (Van Zee and van de Geijn, 2015) with B's panels in
 * L2 and one panel of A in L1. A tile of C is `rows` x `vecs` native vectors in registers, rows up
 * to DTI_GEMM_MR and vecs 1 or 2, each pair its own code: edges cost what they are worth. Small
 * products read A, and B where its rows are contiguous, in place: the same sums, so same bits. */

#undef DTI_GEMM_MR
#if DTI_LANES == 16
#define DTI_GEMM_MR 12 /* 24 of 32 registers hold C */
#else
#define DTI_GEMM_MR 6 /* 12 of 16 */
#endif
#define DTI_GEMM_NR (2 * DTI_LANES)

#if DTI_LANES == 16
DTI_INLINE void DTI_N(transpose)(DTI_NF r[16]) {
    __m512 x[16], y[16];
    DTI_UNROLL(8)
    for (int i = 0; i < 16; i += 2) {
        x[i] = _mm512_unpacklo_ps((__m512)r[i], (__m512)r[i + 1]);
        x[i + 1] = _mm512_unpackhi_ps((__m512)r[i], (__m512)r[i + 1]);
    }
    DTI_UNROLL(4)
    for (int i = 0; i < 16; i += 4) {
        y[i] = _mm512_shuffle_ps(x[i], x[i + 2], 0x44);
        y[i + 1] = _mm512_shuffle_ps(x[i], x[i + 2], 0xee);
        y[i + 2] = _mm512_shuffle_ps(x[i + 1], x[i + 3], 0x44);
        y[i + 3] = _mm512_shuffle_ps(x[i + 1], x[i + 3], 0xee);
    }
    DTI_UNROLL(4)
    for (int i = 0; i < 4; i++) {
        x[i] = _mm512_shuffle_f32x4(y[i], y[i + 4], 0x88);
        x[i + 4] = _mm512_shuffle_f32x4(y[i], y[i + 4], 0xdd);
        x[i + 8] = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0x88);
        x[i + 12] = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0xdd);
    }
    DTI_UNROLL(4)
    for (int i = 0; i < 4; i++) {
        r[i] = (DTI_NF)_mm512_shuffle_f32x4(x[i], x[i + 8], 0x88);
        r[i + 4] = (DTI_NF)_mm512_shuffle_f32x4(x[i + 4], x[i + 12], 0x88);
        r[i + 8] = (DTI_NF)_mm512_shuffle_f32x4(x[i], x[i + 8], 0xdd);
        r[i + 12] = (DTI_NF)_mm512_shuffle_f32x4(x[i + 4], x[i + 12], 0xdd);
    }
}
#elif DTI_LANES == 8
DTI_INLINE void DTI_N(transpose)(DTI_NF r[8]) {
    __m256 x[8], y[8];
    DTI_UNROLL(4)
    for (int i = 0; i < 8; i += 2) {
        x[i] = _mm256_unpacklo_ps((__m256)r[i], (__m256)r[i + 1]);
        x[i + 1] = _mm256_unpackhi_ps((__m256)r[i], (__m256)r[i + 1]);
    }
    DTI_UNROLL(2)
    for (int i = 0; i < 8; i += 4) {
        y[i] = _mm256_shuffle_ps(x[i], x[i + 2], 0x44);
        y[i + 1] = _mm256_shuffle_ps(x[i], x[i + 2], 0xee);
        y[i + 2] = _mm256_shuffle_ps(x[i + 1], x[i + 3], 0x44);
        y[i + 3] = _mm256_shuffle_ps(x[i + 1], x[i + 3], 0xee);
    }
    DTI_UNROLL(4)
    for (int i = 0; i < 4; i++) {
        r[i] = (DTI_NF)_mm256_permute2f128_ps(y[i], y[i + 4], 0x20);
        r[i + 4] = (DTI_NF)_mm256_permute2f128_ps(y[i], y[i + 4], 0x31);
    }
}
#else
DTI_INLINE void DTI_N(transpose)(DTI_NF r[4]) {
    DTI_NF x[4] = {r[0], r[1], r[2], r[3]};
    DTI_UNROLL(4)
    for (int i = 0; i < 4; i++)
        r[i] = (DTI_NF){x[0][i], x[1][i], x[2][i], x[3][i]};
}
#endif

DTI_INLINE DTI_NF DTI_N(gemm_finish)(DTI_NF x, DTI_NF bias, bool has_bias, bool relu) {
    if (has_bias)
        x = x + bias;
    if (relu)
        x = DTI_N(select)(DTI_N(lt)(x, DTI_N(set1)(0)), DTI_N(set1)(0), x);
    return x;
}

DTI_INLINE DTI_NF DTI_N(gemm_mask)(DTI_NF x, DTI_NF mask) {
    return DTI_N(select)(DTI_N(lt)(DTI_N(set1)(0), mask), x, DTI_N(set1)(0));
}

/* Columns that do not fill their vectors, of contiguous rows. */
static void DTI_N(gemm_edge)(const dti_gemm_out *out, const float *sums, int rows) {
    const bool has_bias = out->last && out->bias, relu = out->last && out->relu;
    for (int v = 0; v < out->cols; v += DTI_LANES) {
        int n = DTI_MIN(out->cols - v, DTI_LANES);
        DTI_NF bias = has_bias ? DTI_N(load_n)(out->bias + v, n) : DTI_N(set1)(0);
        float *c = out->c + v;
        for (int i = 0; i < rows; i++, c += out->c_row) {
            DTI_NF x = DTI_N(load)(sums + i * DTI_GEMM_NR + v);
            if (out->add)
                x = DTI_N(load_n)(c, n) + x;
            x = DTI_N(gemm_finish)(x, bias, has_bias, relu);
            if (out->mask)
                x = DTI_N(gemm_mask)(x, DTI_N(load_n)(out->mask + (c - out->c), n));
            DTI_N(store_n)(c, x, n);
        }
    }
}

/* Contiguous columns of C (and bias along them): the tile is turned on its way. */
static void DTI_N(gemm_turned)(const dti_gemm_out *out, const float *sums, int rows) {
    const bool has_bias = out->last && out->bias, relu = out->last && out->relu;
    for (int i0 = 0; i0 < rows; i0 += DTI_LANES) {
        int n = DTI_MIN(rows - i0, DTI_LANES);
        DTI_NF bias = has_bias ? DTI_N(load_n)(out->bias + i0, n) : DTI_N(set1)(0);
        for (int v = 0; v < out->cols; v += DTI_LANES) {
            DTI_NF r[DTI_LANES];
            DTI_UNROLL(16)
            for (int i = 0; i < DTI_LANES; i++)
                r[i] = i < n ? DTI_N(load)(sums + (i0 + i) * DTI_GEMM_NR + v) : DTI_N(set1)(0);
            DTI_N(transpose)(r);
            float *c = out->c + i0 + v * out->c_col;
            for (int j = 0; j < DTI_MIN(out->cols - v, DTI_LANES); j++, c += out->c_col) {
                DTI_NF x = out->add ? DTI_N(load_n)(c, n) + r[j] : r[j];
                x = DTI_N(gemm_finish)(x, bias, has_bias, relu);
                if (out->mask)
                    x = DTI_N(gemm_mask)(x, DTI_N(load_n)(out->mask + (c - out->c), n));
                DTI_N(store_n)(c, x, n);
            }
        }
    }
}

/* Any strides: the same operations, one element at a time. */
static void DTI_N(gemm_scatter)(const dti_gemm_out *out, const float *sums, int rows) {
    const bool has_bias = out->last && out->bias, relu = out->last && out->relu;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < out->cols; j++) {
            float *c = out->c + i * out->c_row + j * out->c_col;
            float x = sums[i * DTI_GEMM_NR + j];
            if (out->add)
                x = *c + x;
            float bias = has_bias ? out->bias[i * out->bias_row + j * out->bias_col] : 0;
            *c = DTI_N(gemm_finish)(DTI_N(set1)(x), DTI_N(set1)(bias), has_bias, relu)[0];
            if (out->mask && !(out->mask[c - out->c] > 0))
                *c = 0;
        }
}

DTI_INLINE void DTI_N(gemm_store)(const int rows, const int vecs, const dti_gemm_out *out,
                                  DTI_NF sums[DTI_GEMM_MR][2]) {
    float tile[DTI_GEMM_MR * DTI_GEMM_NR];
    float *c = out->plain ? out->c : tile;
    const int64_t step = out->plain ? out->c_row : DTI_GEMM_NR;
    if (out->plain && out->add) {
        DTI_UNROLL(12)
        for (int i = 0; i < rows; i++) {
            sums[i][0] = DTI_N(load)(c + i * step) + sums[i][0];
            if (vecs > 1)
                sums[i][1] = DTI_N(load)(c + i * step + DTI_LANES) + sums[i][1];
        }
    }
    DTI_UNROLL(12)
    for (int i = 0; i < rows; i++) {
        DTI_N(store)(c + i * step, sums[i][0]);
        if (vecs > 1)
            DTI_N(store)(c + i * step + DTI_LANES, sums[i][1]);
    }
    if (!out->plain)
        (out->straight ? DTI_N(gemm_edge)
         : out->turned ? DTI_N(gemm_turned)
                       : DTI_N(gemm_scatter))(out, tile, rows);
}

/* sums = A's rows times B's columns over k. */
DTI_INLINE void DTI_N(gemm_tile)(const int rows, const int vecs, int64_t k, const float *a,
                                 int64_t a_row, int64_t a_col, const float *b, int64_t b_row,
                                 const dti_gemm_out *out) {
    DTI_NF sums[DTI_GEMM_MR][2];
    const float *mid = a + 6 * a_row;
    DTI_UNROLL(12)
    for (int i = 0; i < rows; i++) {
        sums[i][0] = sums[i][1] = DTI_N(set1)(0);
        __builtin_prefetch(out->c + i * out->c_row, 1);
    }
    for (int64_t p = 0; p < k; p++, a += a_col, mid += a_col, b += b_row) {
        DTI_NF b0 = DTI_N(load)(b), b1 = vecs > 1 ? DTI_N(load)(b + DTI_LANES) : b0;
        DTI_UNROLL(12)
        for (int i = 0; i < rows; i++) {
            DTI_NF x = DTI_N(set1)(i < 6 ? a[i * a_row] : mid[(i - 6) * a_row]);
            sums[i][0] = DTI_N(fma)(x, b0, sums[i][0]);
            if (vecs > 1)
                sums[i][1] = DTI_N(fma)(x, b1, sums[i][1]);
        }
    }
    DTI_N(gemm_store)(rows, vecs, out, sums);
}

#define DTI_GEMM_TILE(rows, vecs)                                                                  \
    static void DTI_N(gemm_##rows##_##vecs)(int64_t k, const float *a, int64_t a_row,              \
                                            int64_t a_col, const float *b, int64_t b_row,          \
                                            const dti_gemm_out *out) {                             \
        DTI_N(gemm_tile)(rows, vecs, k, a, a_row, a_col, b, b_row, out);                           \
    }
#define DTI_GEMM_TILES(rows)                                                                       \
    DTI_GEMM_TILE(rows, 1)                                                                         \
    DTI_GEMM_TILE(rows, 2)
#define DTI_GEMM_ENTRY(rows)                                                                       \
    { DTI_N(gemm_##rows##_1), DTI_N(gemm_##rows##_2) }
DTI_GEMM_TILES(1)
DTI_GEMM_TILES(2)
DTI_GEMM_TILES(3)
DTI_GEMM_TILES(4)
DTI_GEMM_TILES(5)
DTI_GEMM_TILES(6)
#if DTI_LANES == 16
DTI_GEMM_TILES(7)
DTI_GEMM_TILES(8)
DTI_GEMM_TILES(9)
DTI_GEMM_TILES(10)
DTI_GEMM_TILES(11)
DTI_GEMM_TILES(12)
#endif
/* [rows - 1][vecs - 1] */
static dti_gemm_tile_fn *const DTI_N(gemm_tiles)[DTI_GEMM_MR][2] = {
    DTI_GEMM_ENTRY(1),  DTI_GEMM_ENTRY(2),  DTI_GEMM_ENTRY(3),
    DTI_GEMM_ENTRY(4),  DTI_GEMM_ENTRY(5),  DTI_GEMM_ENTRY(6),
#if DTI_LANES == 16
    DTI_GEMM_ENTRY(7),  DTI_GEMM_ENTRY(8),  DTI_GEMM_ENTRY(9),
    DTI_GEMM_ENTRY(10), DTI_GEMM_ENTRY(11), DTI_GEMM_ENTRY(12),
#endif
};

/* dst[p * ld + i] = src[i * row + p] for i < rows <= DTI_LANES, p < k: rows that are contiguous in
 * k turned into columns. Writes whole vectors where `slack` says that what follows is free. */
DTI_INLINE void DTI_N(pack_turn)(float *dst, int64_t ld, const float *src, int64_t row, int rows,
                                 int64_t k, bool slack) {
    int64_t p = 0;
    for (; p + DTI_LANES <= k; p += DTI_LANES) {
        DTI_NF r[DTI_LANES];
        DTI_UNROLL(16)
        for (int i = 0; i < DTI_LANES; i++)
            r[i] = i < rows ? DTI_N(load)(src + i * row + p) : DTI_N(set1)(0);
        DTI_N(transpose)(r);
        DTI_UNROLL(16)
        for (int i = 0; i < DTI_LANES; i++)
            if (slack)
                DTI_N(store)(dst + (p + i) * ld, r[i]);
            else
                DTI_N(store_n)(dst + (p + i) * ld, r[i], rows);
    }
    for (; p < k; p++)
        for (int i = 0; i < rows; i++)
            dst[p * ld + i] = src[i * row + p];
}

/* `panels` of A, the first `more` of them of rows + 1 rows, each to its own dst[p * MR + i]. They
 * are packed together where A's columns are contiguous: each may lie on a page of its own. */
static void DTI_N(pack_a)(float *dst, const dti_gemm_block *g, const float *a, int panels, int more,
                          int rows, int64_t k) {
    for (int64_t p = 0; g->a_row == 1 && p < k; p++) {
        const float *src = a + p * g->a_col;
        float *to = dst + p * DTI_GEMM_MR;
        for (int q = 0; q < panels; q++, to += DTI_GEMM_PANEL_A) {
            int size = rows + (q < more);
            for (int i = 0; i < size; i += DTI_LANES) {
                int n = DTI_MIN(size - i, DTI_LANES);
                if (DTI_GEMM_MR <= DTI_LANES) /* the next p writes over the lanes too many */
                    DTI_N(store)(to + i, DTI_N(load_n)(src + i, n));
                else
                    DTI_N(store_n)(to + i, DTI_N(load_n)(src + i, n), n);
            }
            src += size;
        }
    }
    for (int q = 0; g->a_row != 1 && q < panels; q++, dst += DTI_GEMM_PANEL_A) {
        int size = rows + (q < more);
        for (int i = 0; g->a_col == 1 && i < size; i += DTI_LANES) {
            int n = DTI_MIN(size - i, DTI_LANES);
            DTI_N(pack_turn)(dst + i, DTI_GEMM_MR, a + i * g->a_row, g->a_row, n, k, n == size);
        }
        for (int64_t p = 0; g->a_col != 1 && p < k; p++)
            for (int i = 0; i < size; i++)
                dst[p * DTI_GEMM_MR + i] = a[i * g->a_row + p * g->a_col];
        a += size * g->a_row;
    }
}

/* B's columns [0, cols) to dst[p * NR + j], padded with zeros. */
static void DTI_N(pack_b)(float *dst, const dti_gemm_block *g, const float *b, int cols,
                          int64_t k) {
    if (g->b_col == 1 && cols == DTI_GEMM_NR) {
        for (int64_t p = 0; p < k; p++) {
            DTI_NF x = DTI_N(load)(b + p * g->b_row), y = DTI_N(load)(b + p * g->b_row + DTI_LANES);
            DTI_N(store)(dst + p * DTI_GEMM_NR, x);
            DTI_N(store)(dst + p * DTI_GEMM_NR + DTI_LANES, y);
        }
        return;
    }
    for (int j = 0; j < cols; j += DTI_LANES) {
        int n = DTI_MIN(cols - j, DTI_LANES);
        if (g->b_row == 1)
            DTI_N(pack_turn)(dst + j, DTI_GEMM_NR, b + j * g->b_col, g->b_col, n, k, true);
        else if (g->b_col == 1)
            for (int64_t p = 0; p < k; p++)
                DTI_N(store)(dst + p * DTI_GEMM_NR + j, DTI_N(load_n)(b + p * g->b_row + j, n));
        else
            for (int64_t p = 0; p < k; p++)
                for (int i = 0; i < n; i++)
                    dst[p * DTI_GEMM_NR + j + i] = b[p * g->b_row + (j + i) * g->b_col];
    }
}

static dti_gemm_plan DTI_N(gemm_plan)(const dti_gemm_block *g) {
    dti_gemm_plan plan = {.panels = (g->m + DTI_GEMM_MR - 1) / DTI_GEMM_MR};
    bool small = g->k * g->n <= 128 * 128;
    plan.pack_a = g->n > 2 * DTI_GEMM_NR && (g->a_row == 1 || !small || g->k * g->m > 128 * 128);
    plan.pack_b = g->b_col != 1 || (plan.panels > 2 && !small);
    return plan;
}

/* Rows [i0, i0 + rows) times all columns of the chunk. a: packed, or NULL for A in place. */
static void DTI_N(gemm_rows)(const dti_gemm_block *g, const dti_gemm_chunk *chunk, int64_t i0,
                             int rows, const float *packed_a) {
    const int64_t k0 = chunk->k0, kc = chunk->kc;
    const float *a = packed_a ? packed_a : g->a + i0 * g->a_row + k0 * g->a_col;
    const int64_t a_row = packed_a ? 1 : g->a_row, a_col = packed_a ? DTI_GEMM_MR : g->a_col;
    dti_gemm_out out = {
        .c_row = g->c_row,
        .c_col = g->c_col,
        .bias_row = g->bias_row,
        .bias_col = g->bias_col,
        .add = g->add || k0 > 0,
        .last = k0 + kc == g->k,
        .relu = g->relu,
        .straight = g->c_col == 1 && (!g->bias || (g->bias_col == 1 && g->bias_row == 0)),
        .turned = g->c_row == 1 && (!g->bias || (g->bias_row == 1 && g->bias_col == 0))};
    for (int64_t j = 0; j < chunk->nc; j += DTI_GEMM_NR) {
        const int64_t col = chunk->j0 + j;
        out.cols = (int)DTI_MIN(chunk->nc - j, DTI_GEMM_NR);
        const bool whole = out.cols == DTI_GEMM_NR || out.cols == DTI_LANES;
        const bool packed = chunk->pack_b || !whole;
        const float *b = packed ? chunk->packed_b + (chunk->pack_b ? j * kc : 0)
                                : g->b + k0 * g->b_row + col * g->b_col;
        out.c = g->c + i0 * g->c_row + col * g->c_col;
        out.bias = g->bias ? g->bias + i0 * g->bias_row + col * g->bias_col : NULL;
        out.mask = g->mask && out.last ? g->mask + (out.c - g->c) : NULL;
        out.plain = out.straight && whole && !(out.last && (out.bias || out.relu || out.mask));
        dti_gemm_tile_fn *tile = DTI_N(gemm_tiles)[rows - 1][out.cols > DTI_LANES];
        tile(kc, a, a_row, a_col, b, packed ? DTI_GEMM_NR : g->b_row, &out);
    }
}

static void DTI_N(gemm_pack_chunk)(const dti_gemm_block *g, bool all, int64_t k0, int64_t kc,
                                   int64_t j0, int64_t nc, float *packed_b) {
    const float *b = g->b + k0 * g->b_row + j0 * g->b_col;
    int64_t j = 0;
    if (!all) { /* only the edge, where it is not whole vectors */
        j = nc / DTI_GEMM_NR * DTI_GEMM_NR;
        if (nc - j == DTI_LANES)
            return;
    }
    for (; j < nc; j += DTI_GEMM_NR) {
        const int cols = (int)DTI_MIN(nc - j, DTI_GEMM_NR);
        DTI_N(pack_b)(packed_b + (all ? j * kc : 0), g, b + j * g->b_col, cols, kc);
    }
}

static void DTI_N(gemm_chunk)(const dti_gemm_block *g, const dti_gemm_plan *plan,
                              dti_gemm_chunk *chunk, float *packed_a, float *packed_b) {
    DTI_N(gemm_pack_chunk)(g, plan->pack_b, chunk->k0, chunk->kc, chunk->j0, chunk->nc, packed_b);
    const int rows = (int)(g->m / plan->panels);
    const int64_t more = g->m % plan->panels; /* panels of one row more come first */
    const int group = g->a_row == 1 ? DTI_GEMM_GROUP : 1;
    const float *a = g->a + chunk->k0 * g->a_col;
    for (int64_t r = 0; r < plan->panels; r++) {
        const int64_t i = r * rows + DTI_MIN(r, more);
        const int64_t begin = r - r % group, end = DTI_MIN(begin + group, plan->panels);
        const int longer = (int)DTI_MAX(more - r, 0);
        if (plan->pack_a && r == begin)
            DTI_N(pack_a)(packed_a, g, a + i * g->a_row, (int)(end - r), longer, rows, chunk->kc);
        const float *panel = plan->pack_a ? packed_a + (r - begin) * DTI_GEMM_PANEL_A : NULL;
        DTI_N(gemm_rows)(g, chunk, i, rows + (r < more), panel);
    }
}

static void DTI_N(gemm_block)(const dti_gemm_block *block, float *scratch) {
    dti_gemm_block g = *block;
    if (g.n <= DTI_LANES && g.n * 2 <= g.m) /* few columns: the transposed product fills vectors */
        g = dti_gemm_turn(block);
    const dti_gemm_plan plan = DTI_N(gemm_plan)(&g);
    dti_gemm_chunk chunk = {.packed_b = scratch + DTI_GEMM_PACKED_A, .pack_b = plan.pack_b};
    for (int64_t j = 0; j < g.n; j += DTI_GEMM_NC)
        for (int64_t k = 0; k == 0 || k < g.k; k += DTI_GEMM_KC) {
            chunk.k0 = k;
            chunk.kc = DTI_MIN(g.k - k, DTI_GEMM_KC);
            chunk.j0 = j;
            chunk.nc = DTI_MIN(g.n - j, DTI_GEMM_NC);
            DTI_N(gemm_chunk)(&g, &plan, &chunk, scratch, scratch + DTI_GEMM_PACKED_A);
        }
}
