/* SGEMM for one instruction set: BLIS's scheme (Van Zee and van de Geijn, 2015) with B's panels in
 * L2 and one panel of A in L1. A tile of C is `rows` x `vecs` native vectors in registers. Each
 * pair of sizes has its own code, so small edges cost little. Wide tiles, because each k takes rows
 * + vecs loads for rows * vecs FMAs, and loads are what runs out first. Small products read A, and
 * B where its rows are contiguous, in place: the same sums, so the same bits. */

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
/* There GCC loads all of A's values at once, and has no registers left. */
#undef DTI_GEMM_IN_ORDER
#ifdef __aarch64__
#define DTI_GEMM_IN_ORDER __asm__ volatile("" : : : "memory")
#else
#define DTI_GEMM_IN_ORDER ((void)0)
#endif
#undef DTI_GEMM_NR
#define DTI_GEMM_NR (DTI_GEMM_VECS * DTI_LANES)
#undef DTI_GEMM_TILE_ROWS /* in memory: a transposed tile has whole vectors */
#define DTI_GEMM_TILE_ROWS ((DTI_GEMM_MR + DTI_LANES - 1) / DTI_LANES * DTI_LANES)
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

/* Contiguous columns of C (and bias along them): the tile is transposed as it is stored. */
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

/* dst[p * ld + i] = src[i * row + p] for i < rows <= LANES, p < k <= LANES; zeros after the
 * rows. */
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

/* The same for any k: rows that are contiguous in k, transposed to columns. */
static void DTI_N(pack_turn)(float *dst, int64_t ld, const float *src, int64_t row, int rows,
                             int64_t k) {
    for (; k >= DTI_LANES && rows == DTI_LANES; k -= DTI_LANES, src += DTI_LANES) {
        DTI_NF r[DTI_LANES];
        DTI_N(load_turned)(src, row, r);
        const float *next = src + DTI_LANES * row; /* mostly the next one */
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

/* Columns in panels of equal width, but for one vector. */
DTI_INLINE dti_gemm_cols DTI_N(gemm_cols)(int64_t n) {
    uint32_t vecs = (uint32_t)((n + DTI_LANES - 1) / DTI_LANES);
    uint32_t panels = (vecs + DTI_GEMM_VECS - 1) / DTI_GEMM_VECS;
    if (panels == 1)
        return (dti_gemm_cols){1, (int)vecs, 0};
    return (dti_gemm_cols){(int)panels, (int)(vecs / panels), (int)(vecs % panels)};
}

/* Where a tile is stored: in C, or in `tile` to be finished from there. */
DTI_INLINE void DTI_N(gemm_aim)(dti_gemm_out *out, float *tile, int vecs) {
    out->to = tile ? tile : out->c;
    out->to_row = tile ? DTI_GEMM_NR : out->c_row;
    out->to_last = tile ? DTI_LANES : out->cols - (vecs - 1) * DTI_LANES;
    out->to_sum = !tile && out->add;
}

#include "gemm_walk_body.h"
