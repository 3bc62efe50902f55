/* SGEMM for one instruction set: BLIS's scheme (Van Zee and van de Geijn, 2015) with B's panels in
 * L2 and one panel of A in L1. A tile of C is `rows` x `vecs` native vectors in registers, each
 * pair its own code: edges cost what they are worth. Wide tiles, because each k takes rows + vecs
 * loads for rows * vecs FMAs, and loads are what runs out first. Small products read A, and B
 * where its rows are contiguous, in place: the same sums, so the same bits. */

#undef DTI_GEMM_WIDE
#undef DTI_GEMM_VECS
#undef DTI_GEMM_MR
#if DTI_LANES == 16 || defined __aarch64__
#define DTI_GEMM_WIDE 1 /* 32 registers, 24 of them for C: 6 x 4, 8 x 3, 12 x 2 */
#define DTI_GEMM_VECS 4
#define DTI_GEMM_MR 12
#else
#define DTI_GEMM_WIDE 0 /* 16, 12 for C: 6 x 2 */
#define DTI_GEMM_VECS 2
#define DTI_GEMM_MR 6
#endif
/* GCC loads all of A's values at once there, and has no registers left for them. */
#undef DTI_GEMM_IN_ORDER
#ifdef __aarch64__
#define DTI_GEMM_IN_ORDER __asm__ volatile("" : : : "memory")
#else
#define DTI_GEMM_IN_ORDER ((void)0)
#endif
#undef DTI_GEMM_NR
#define DTI_GEMM_NR (DTI_GEMM_VECS * DTI_LANES)
#undef DTI_GEMM_TILE_ROWS /* in memory: what is turned is whole vectors */
#define DTI_GEMM_TILE_ROWS ((DTI_GEMM_MR + DTI_LANES - 1) / DTI_LANES * DTI_LANES)
/* The most rows of a tile of 1, 2... vectors. */
static const int8_t DTI_N(gemm_rows_most)[DTI_GEMM_VECS] = {
#if DTI_GEMM_WIDE
    12, 12, 8, 6
#else
    6, 6
#endif
};

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

/* Whole columns of C from registers. */
DTI_INLINE void DTI_N(gemm_columns)(float *c, int64_t step, DTI_NF r[DTI_LANES], int n,
                                    const DTI_NF *bias, bool relu) {
    if (bias) {
        DTI_UNROLL(16)
        for (int j = 0; j < DTI_LANES; j++)
            r[j] = r[j] + *bias;
    }
    if (relu) {
        DTI_UNROLL(16)
        for (int j = 0; j < DTI_LANES; j++)
            r[j] = DTI_N(gemm_finish)(r[j], r[j], false, true);
    }
    DTI_UNROLL(16)
    for (int j = 0; j < DTI_LANES; j++, c += step) {
        DTI_HIDE_POINTER(c);
        DTI_N(store_n)(c, r[j], n);
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
            DTI_N(load_turned)(sums + i0 * DTI_GEMM_NR + v, DTI_GEMM_NR, r);
            float *c = out->c + i0 + v * out->c_col;
            const int cols = DTI_MIN(out->cols - v, DTI_LANES);
            const bool straight = !out->add && !out->mask && cols == DTI_LANES;
            if (straight)
                DTI_N(gemm_columns)(c, out->c_col, r, n, has_bias ? &bias : NULL, relu);
            for (int j = 0; !straight && j < cols; j++, c += out->c_col) {
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

/* sums += C */
DTI_INLINE void DTI_N(gemm_add)(const int rows, const int vecs, const float *c, int64_t step,
                                DTI_NF sums[DTI_GEMM_MR][DTI_GEMM_VECS]) {
    DTI_UNROLL(12)
    for (int i = 0; i < rows; i++, c += step) {
        DTI_HIDE_POINTER(c);
        DTI_UNROLL(4)
        for (int v = 0; v < vecs; v++)
            sums[i][v] = DTI_N(load)(c + v * DTI_LANES) + sums[i][v];
    }
}

DTI_INLINE void DTI_N(gemm_store)(const int rows, const int vecs, const dti_gemm_out *out,
                                  DTI_NF sums[DTI_GEMM_MR][DTI_GEMM_VECS]) {
    const int last = (vecs - 1) * DTI_LANES, cols = out->to_last;
    const int64_t step = out->to_row;
    float *to = out->to;
    if (out->to_sum)
        DTI_N(gemm_add)(rows, vecs, to, step, sums);
    DTI_UNROLL(12)
    for (int i = 0; i < rows; i++, to += step) {
        DTI_HIDE_POINTER(to);
        DTI_UNROLL(4)
        for (int v = 0; v < vecs - 1; v++)
            DTI_N(store)(to + v * DTI_LANES, sums[i][v]);
        if (DTI_LANES == 16 || (DTI_LANES == 8 && cols < DTI_LANES))
            DTI_N(store_n)(to + last, sums[i][vecs - 1], cols);
        else
            DTI_N(store)(to + last, sums[i][vecs - 1]);
    }
}

/* sums = A's rows times B's columns over k. */
DTI_INLINE void DTI_N(gemm_tile)(const int rows, const int vecs, int64_t k, const float *a,
                                 int64_t a_row, int64_t a_col, const float *b, int64_t b_row,
                                 const dti_gemm_out *out) {
    DTI_NF sums[DTI_GEMM_MR][DTI_GEMM_VECS];
    const float *mid = a + 6 * a_row, *c = out->c;
    DTI_UNROLL(12)
    for (int i = 0; i < rows; i++) {
        DTI_UNROLL(4)
        for (int v = 0; v < vecs; v++) {
            sums[i][v] = DTI_N(set1)(0);
            DTI_KEEP(sums[i][v]);
        }
        __builtin_prefetch(c, 1);
        c += out->c_row;
        DTI_HIDE_POINTER(c);
    }
    for (int64_t p = 0; p < k; p++, a += a_col, mid += a_col, b += b_row) {
        DTI_NF y[DTI_GEMM_VECS];
        DTI_UNROLL(4)
        for (int v = 0; v < vecs; v++)
            y[v] = DTI_N(load)(b + v * DTI_LANES);
        DTI_UNROLL(12)
        for (int i = 0; i < rows; i++) {
            DTI_GEMM_IN_ORDER;
            DTI_NF x = DTI_N(set1)(i < 6 ? a[i * a_row] : mid[(i - 6) * a_row]);
            DTI_UNROLL(4)
            for (int v = 0; v < vecs; v++)
                sums[i][v] = DTI_N(fma)(x, y[v], sums[i][v]);
        }
    }
    DTI_N(gemm_store)(rows, vecs, out, sums);
}

/* clang-format off */
#undef DTI_GEMM_LIST
#define DTI_GEMM_TO_6(X, vecs) X(1, vecs) X(2, vecs) X(3, vecs) X(4, vecs) X(5, vecs) X(6, vecs)
#define DTI_GEMM_TO_8(X, vecs) DTI_GEMM_TO_6(X, vecs) X(7, vecs) X(8, vecs)
#define DTI_GEMM_TO_12(X, v) DTI_GEMM_TO_8(X, v) X(9, v) X(10, v) X(11, v) X(12, v)
#if DTI_GEMM_WIDE
#define DTI_GEMM_LIST(X)                                                                           \
    DTI_GEMM_TO_12(X, 1) DTI_GEMM_TO_12(X, 2) DTI_GEMM_TO_8(X, 3) DTI_GEMM_TO_6(X, 4)
#else
#define DTI_GEMM_LIST(X) DTI_GEMM_TO_6(X, 1) DTI_GEMM_TO_6(X, 2)
#endif
/* clang-format on */
#define DTI_GEMM_TILE(rows, vecs)                                                                  \
    static void DTI_N(gemm_##rows##_##vecs)(int64_t k, const float *a, int64_t a_row,              \
                                            int64_t a_col, const float *b, int64_t b_row,          \
                                            const dti_gemm_out *out) {                             \
        DTI_N(gemm_tile)(rows, vecs, k, a, a_row, a_col, b, b_row, out);                           \
    }
#define DTI_GEMM_ENTRY(rows, vecs) [rows - 1][vecs - 1] = DTI_N(gemm_##rows##_##vecs),
DTI_GEMM_LIST(DTI_GEMM_TILE)
static dti_gemm_tile_fn *const DTI_N(gemm_tiles)[DTI_GEMM_MR][DTI_GEMM_VECS] = {
    DTI_GEMM_LIST(DTI_GEMM_ENTRY)};

/* dst[p * ld + i] = src[i * row + p] for i < rows <= LANES, p < k <= LANES; zeros behind rows. */
static void DTI_N(pack_corner)(float *dst, int64_t ld, const float *src, int64_t row, int rows,
                               int64_t k) {
    float tile[DTI_LANES * DTI_LANES] = {0};
    DTI_NF r[DTI_LANES];
    for (int i = 0; i < rows; i++)
        DTI_N(store)(tile + i * DTI_LANES, DTI_N(load_n)(src + i * row, (int)k));
    DTI_N(load_turned)(tile, DTI_LANES, r);
    for (int64_t p = 0; p < k; p++)
        DTI_N(store)(dst + p * ld, r[p]);
}

/* The same for any k: rows that are contiguous in k turned into columns. */
static void DTI_N(pack_turn)(float *dst, int64_t ld, const float *src, int64_t row, int rows,
                             int64_t k) {
    for (; k >= DTI_LANES && rows == DTI_LANES; k -= DTI_LANES, src += DTI_LANES) {
        DTI_NF r[DTI_LANES];
        DTI_N(load_turned)(src, row, r);
        const float *next = src + DTI_LANES * row; /* what is mostly next */
        DTI_UNROLL(16)
        for (int i = 0; i < DTI_LANES; i++) {
            __builtin_prefetch(next);
            next += row;
            DTI_HIDE_POINTER(next);
        }
        DTI_UNROLL(16)
        for (int i = 0; i < DTI_LANES; i++) {
            DTI_N(store)(dst, r[i]);
            dst += ld;
            DTI_HIDE_POINTER(dst);
        }
    }
    for (; k > 0; k -= DTI_LANES, src += DTI_LANES, dst += DTI_LANES * ld)
        DTI_N(pack_corner)(dst, ld, src, row, rows, DTI_MIN(k, DTI_LANES));
}

/* `panels` of A, the first `more` of them of rows + 1 rows, each to its own dst[p * mr + i]. They
 * are packed together where A's columns are contiguous: each may lie on a page of its own. */
static void DTI_N(pack_a)(float *dst, const dti_gemm_block *g, const float *a, int mr, int panels,
                          int more, int rows, int64_t k) {
    const int64_t size_a = DTI_GEMM_PANEL_A(mr);
    for (int64_t p = 0; g->a_row == 1 && p < k; p++) {
        const float *src = a + p * g->a_col;
        float *to = dst + p * mr;
        for (int i = 0; i < panels * mr; i += 16) /* the caches' own stops at the page's end */
            __builtin_prefetch(src + DTI_GEMM_AHEAD * g->a_col + i);
        for (int q = 0; q < panels; q++, to += size_a) {
            int size = rows + (q < more);
            for (int i = 0; i < size; i += DTI_LANES) /* the next p writes over lanes too many */
                DTI_N(store)(to + i, DTI_N(load_n)(src + i, DTI_MIN(size - i, DTI_LANES)));
            src += size;
        }
    }
    for (int q = 0; g->a_row != 1 && q < panels; q++, dst += size_a) {
        int size = rows + (q < more);
        for (int64_t p = 0; p < k; p++)
            for (int i = 0; i < size; i++)
                dst[p * mr + i] = a[i * g->a_row + p * g->a_col];
        a += size * g->a_row;
    }
}

/* B's columns [0, cols) to dst[p * ld + j], padded with zeros to whole vectors. */
static void DTI_N(pack_b)(float *dst, int64_t ld, const dti_gemm_block *g, const float *b, int cols,
                          int64_t k) {
    const int whole = cols / DTI_LANES * DTI_LANES;
    for (int64_t p = 0; g->b_col == 1 && p < k; p++)
        for (int j = 0; j < whole; j += DTI_LANES)
            DTI_N(store)(dst + p * ld + j, DTI_N(load)(b + p * g->b_row + j));
    for (int j = g->b_col == 1 ? whole : 0; j < cols; j += DTI_LANES) {
        int n = DTI_MIN(cols - j, DTI_LANES);
        if (g->b_row == 1)
            DTI_N(pack_turn)(dst + j, ld, b + j * g->b_col, g->b_col, n, k);
        else if (g->b_col == 1)
            for (int64_t p = 0; p < k; p++)
                DTI_N(store)(dst + p * ld + j, DTI_N(load_n)(b + p * g->b_row + j, n));
        else
            for (int64_t p = 0; p < k; p++)
                for (int i = 0; i < n; i++)
                    dst[p * ld + j + i] = b[p * g->b_row + (j + i) * g->b_col];
    }
}

/* Columns in panels of equal width, but for one vector. */
DTI_INLINE dti_gemm_cols DTI_N(gemm_cols)(int64_t n) {
    uint32_t vecs = (uint32_t)((n + DTI_LANES - 1) / DTI_LANES);
    uint32_t panels = (vecs + DTI_GEMM_VECS - 1) / DTI_GEMM_VECS;
    if (panels == 1)
        return (dti_gemm_cols){1, (int)vecs, 0};
    return (dti_gemm_cols){(int)panels, (int)(vecs / panels), (int)(vecs % panels)};
}

/* Small products feel divisions: in 32 bits, and none that is not needed. */
static dti_gemm_plan DTI_N(gemm_plan)(const dti_gemm_block *g) {
    dti_gemm_plan plan = {.columns = g->n};
    if (g->n > DTI_GEMM_PACKED_B / DTI_GEMM_KC)
        plan.columns = DTI_MIN(g->n, dti_gemm_columns(g->k));
    if (g->m <= DTI_GEMM_MR && g->b_col != 1) /* packed for one panel of A: L1 keeps the buffer */
        plan.columns = DTI_MIN(
            g->n, g->m <= DTI_N(gemm_rows_most)[DTI_GEMM_VECS - 1] ? DTI_GEMM_NR : 2 * DTI_LANES);
    const dti_gemm_cols cols = DTI_N(gemm_cols)(plan.columns);
    plan.mr = DTI_N(gemm_rows_most)[cols.vecs - (cols.more == 0)];
    plan.panels = ((uint32_t)g->m + (uint32_t)plan.mr - 1) / (uint32_t)plan.mr;
    plan.rows = (int)((uint32_t)g->m / (uint32_t)plan.panels);
    plan.more = g->m - plan.rows * plan.panels;
    /* A vector of B that crosses cache lines costs twice, for each panel of A */
    const bool aligned = (((uintptr_t)g->b | (uintptr_t)g->b_row * 4) & (DTI_LANES * 4 - 1)) == 0;
    const bool small = aligned && g->k * g->n <= 128 * 128;
    /* rows that are contiguous in k are read in place: as good as a panel */
    plan.pack_a = plan.columns > 2 * DTI_GEMM_NR && g->a_col != 1;
    plan.pack_b = g->b_col != 1 || (plan.panels > 3 && !small);
    return plan;
}

/* Where a tile is stored: in C, or in `tile` to be finished from there. */
DTI_INLINE void DTI_N(gemm_aim)(dti_gemm_out *out, float *tile, int vecs) {
    out->to = tile ? tile : out->c;
    out->to_row = tile ? DTI_GEMM_NR : out->c_row;
    out->to_last = tile ? DTI_LANES : out->cols - (vecs - 1) * DTI_LANES;
    out->to_sum = !tile && out->add;
}

/* Rows [i0, i0 + rows) times all columns of the chunk. a: packed, or NULL for A in place. */
static void DTI_N(gemm_rows)(const dti_gemm_block *g, const dti_gemm_chunk *chunk, int64_t i0,
                             int rows, const float *packed_a, int mr) {
    const int64_t k0 = chunk->k0, kc = chunk->kc;
    const float *a = packed_a ? packed_a : g->a + i0 * g->a_row + k0 * g->a_col;
    const int64_t a_row = packed_a ? 1 : g->a_row, a_col = packed_a ? mr : g->a_col;
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
    alignas(64) float tile[DTI_GEMM_TILE_ROWS * DTI_GEMM_NR];
    const bool bare = out.straight && !(out.last && (g->bias || out.relu || g->mask));
    for (int64_t q = 0, j = 0; q < chunk->cols.panels; q++, j += out.cols) {
        const int64_t col = chunk->j0 + j;
        const int vecs = chunk->cols.vecs + (q < chunk->cols.more);
        out.cols = (int)DTI_MIN(chunk->nc - j, vecs * DTI_LANES);
        const bool whole = out.cols == vecs * DTI_LANES, packed = chunk->pack_b || !whole;
        const float *b = packed ? chunk->packed_b + (chunk->pack_b ? j * kc : 0)
                                : g->b + k0 * g->b_row + col * g->b_col;
        out.c = g->c + i0 * g->c_row + col * g->c_col;
        out.bias = g->bias ? g->bias + i0 * g->bias_row + col * g->bias_col : NULL;
        out.mask = g->mask && out.last ? g->mask + (out.c - g->c) : NULL;
        const bool plain = bare && (whole || (DTI_LANES > 4 && !out.add));
        DTI_N(gemm_aim)(&out, plain ? NULL : tile, vecs);
        DTI_N(gemm_tiles)
        [rows - 1][vecs - 1](kc, a, a_row, a_col, b, packed ? vecs * DTI_LANES : g->b_row, &out);
        if (!plain)
            (out.straight             ? DTI_N(gemm_edge)
             : out.turned && rows > 2 ? DTI_N(gemm_turned)
                                      : DTI_N(gemm_scatter))(&out, tile, rows);
    }
}

/* All columns, or only the last panel where it is not whole vectors. */
static void DTI_N(gemm_pack_chunk)(const dti_gemm_block *g, const dti_gemm_chunk *chunk,
                                   float *packed_b) {
    const float *b = g->b + chunk->k0 * g->b_row + chunk->j0 * g->b_col;
    for (int64_t q = 0, j = 0; q < chunk->cols.panels; q++) {
        const int width = (chunk->cols.vecs + (q < chunk->cols.more)) * DTI_LANES;
        const int cols = (int)DTI_MIN(chunk->nc - j, width);
        if (chunk->pack_b || cols < width)
            DTI_N(pack_b)
        (packed_b + (chunk->pack_b ? j * chunk->kc : 0), width, g, b + j * g->b_col, cols,
         chunk->kc);
        j += cols;
    }
}

static void DTI_N(gemm_chunk)(const dti_gemm_block *g, const dti_gemm_plan *plan,
                              dti_gemm_chunk *chunk, float *packed_a, float *packed_b) {
    DTI_N(gemm_pack_chunk)(g, chunk, packed_b);
    const int group = g->a_row == 1 ? DTI_GEMM_GROUP(plan->mr) : 1;
    const float *panel = NULL;
    int64_t left = 0; /* panels of A that lie packed, from `panel` on */
    for (int64_t r = 0, i = 0; r < plan->panels; r++) {
        const int longer = (int)DTI_MAX(plan->more - r, 0), rows = plan->rows + (longer > 0);
        if (plan->pack_a && left == 0) {
            left = DTI_MIN(group, plan->panels - r);
            panel = packed_a;
            DTI_N(pack_a)
            (packed_a, g, g->a + chunk->k0 * g->a_col + i * g->a_row, plan->mr, (int)left, longer,
             plan->rows, chunk->kc);
        }
        DTI_N(gemm_rows)(g, chunk, i, rows, panel, plan->mr);
        i += rows;
        if (plan->pack_a) {
            panel += DTI_GEMM_PANEL_A(plan->mr);
            left--;
        }
    }
}

/* Chunk by chunk: all of k for some columns. */
static void DTI_N(gemm_walk)(const dti_gemm_block *g, float *scratch) {
    const dti_gemm_plan plan = DTI_N(gemm_plan)(g);
    dti_gemm_chunk chunk = {.packed_b = scratch + DTI_GEMM_PACKED_A, .pack_b = plan.pack_b};
    for (int64_t j = 0; j < g->n; j += plan.columns)
        for (int64_t k = 0; k == 0 || k < g->k; k += DTI_GEMM_KC) {
            chunk.k0 = k;
            chunk.kc = DTI_MIN(g->k - k, DTI_GEMM_KC);
            chunk.j0 = j;
            chunk.nc = DTI_MIN(g->n - j, plan.columns);
            chunk.cols = DTI_N(gemm_cols)(chunk.nc);
            DTI_N(gemm_chunk)(g, &plan, &chunk, scratch, scratch + DTI_GEMM_PACKED_A);
        }
}

/* Few columns do not fill their vectors: they are the rows of the transposed product. */
DTI_ISA_FUNCTION(N, gemm_block, gemm_block);
static void DTI_N(gemm_block)(const dti_gemm_block *g, float *scratch) {
    const int64_t rest = g->n % DTI_LANES;
    dti_gemm_block part;
    if (g->n <= DTI_LANES && g->n * 2 <= g->m) {
        part = dti_gemm_turn(g);
        g = &part;
    } else if (g->a_row == 1 && rest && rest <= DTI_LANES / 4 && g->n > DTI_GEMM_NR) {
        part = dti_gemm_columns_of(g, g->n - rest, g->n);
        part = dti_gemm_turn(&part);
        DTI_N(gemm_walk)(&part, scratch);
        part = dti_gemm_columns_of(g, 0, g->n - rest);
        g = &part;
    }
    DTI_N(gemm_walk)(g, scratch);
}
