/* Convolution's inner loops for one instruction set: see conv.h. The tile is GEMM's, with both
 * operands read through tables, so that one set of tiles serves all forms. */

#undef DTI_CONV_MR
#if DTI_LANES == 16
#define DTI_CONV_MR 12 /* 24 of 32 registers hold sums */
#else
#define DTI_CONV_MR 6 /* 12 of 16 */
#endif
#define DTI_CONV_NR (2 * DTI_LANES)

/* tile = sums, or tile + sums. */
DTI_INLINE void DTI_N(conv_put)(const int rows, const int vecs, float *tile, DTI_NF (*sums)[2],
                                bool add) {
    if (add) {
        DTI_UNROLL(12)
        for (int i = 0; i < rows; i++) {
            DTI_UNROLL(2)
            for (int v = 0; v < vecs; v++)
                sums[i][v] = DTI_N(load)(tile + i * DTI_CONV_NR + v * DTI_LANES) + sums[i][v];
        }
    }
    DTI_UNROLL(12)
    for (int i = 0; i < rows; i++) {
        DTI_UNROLL(2)
        for (int v = 0; v < vecs; v++) {
            DTI_KEEP(sums[i][v]);
            DTI_N(store)(tile + i * DTI_CONV_NR + v * DTI_LANES, sums[i][v]);
        }
    }
}

DTI_INLINE void DTI_N(conv_tile)(const int rows, const int vecs, float *tile, int64_t k,
                                 const float *a, const int32_t *a_off, int64_t a_row,
                                 const float *b, const int32_t *b_off, bool add) {
    DTI_NF sums[DTI_CONV_MR][2];
    DTI_UNROLL(12)
    for (int i = 0; i < rows; i++) {
        sums[i][0] = sums[i][1] = DTI_N(set1)(0);
        DTI_KEEP(sums[i][0]);
        DTI_KEEP(sums[i][1]);
    }
    for (int64_t p = 0; p < k; p++) {
        const float *x = a + a_off[p], *mid = x + 6 * a_row, *y = b + b_off[p];
        DTI_NF b0 = DTI_N(load)(y), b1 = vecs > 1 ? DTI_N(load)(y + DTI_LANES) : b0;
        DTI_UNROLL(12)
        for (int i = 0; i < rows; i++) {
            DTI_NF u = DTI_N(set1)(i < 6 ? x[i * a_row] : mid[(i - 6) * a_row]);
            sums[i][0] = DTI_N(fma)(u, b0, sums[i][0]);
            if (vecs > 1)
                sums[i][1] = DTI_N(fma)(u, b1, sums[i][1]);
        }
    }
    DTI_N(conv_put)(rows, vecs, tile, sums, add);
}

/* clang-format off */
#undef DTI_CONV_LIST
#if DTI_LANES == 16
#define DTI_CONV_LIST(X) DTI_GEMM_TO_12(X, 1) DTI_GEMM_TO_12(X, 2)
#else
#define DTI_CONV_LIST(X) DTI_GEMM_TO_6(X, 1) DTI_GEMM_TO_6(X, 2)
#endif
/* clang-format on */
#define DTI_CONV_TILE(rows, vecs)                                                                  \
    static void DTI_N(conv_##rows##_##vecs)(float *tile, int64_t k, const float *a,                \
                                            const int32_t *a_off, int64_t a_row, const float *b,   \
                                            const int32_t *b_off, bool add) {                      \
        DTI_N(conv_tile)(rows, vecs, tile, k, a, a_off, a_row, b, b_off, add);                     \
    }
#define DTI_CONV_ENTRY(rows, vecs) [rows - 1][vecs - 1] = DTI_N(conv_##rows##_##vecs),
DTI_CONV_LIST(DTI_CONV_TILE)
static dti_conv_tile_fn *const DTI_N(conv_tiles)[DTI_CONV_MR][2] = {DTI_CONV_LIST(DTI_CONV_ENTRY)};

DTI_INLINE void DTI_N(conv_plane)(const int rows, const int vecs, float *tile, int64_t k,
                                  const float *a, const float *b, const int32_t *b_off,
                                  int64_t b_row, bool add) {
    DTI_NF sums[4][2];
    DTI_UNROLL(4)
    for (int i = 0; i < rows; i++)
        sums[i][0] = sums[i][1] = DTI_N(set1)(0);
    for (int64_t p = 0; p < k; p++) {
        const float *y = b + b_off[p];
        DTI_NF u = DTI_N(set1)(a[p]);
        DTI_UNROLL(4)
        for (int i = 0; i < rows; i++) {
            sums[i][0] = DTI_N(fma)(u, DTI_N(load)(y + i * b_row), sums[i][0]);
            if (vecs > 1)
                sums[i][1] = DTI_N(fma)(u, DTI_N(load)(y + i * b_row + DTI_LANES), sums[i][1]);
        }
    }
    DTI_N(conv_put)(rows, vecs, tile, sums, add);
}

#define DTI_CONV_PLANE(rows, vecs)                                                                 \
    static void DTI_N(conv_plane_##rows##_##vecs)(float *tile, int64_t k, const float *a,          \
                                                  const float *b, const int32_t *b_off,            \
                                                  int64_t b_row, bool add) {                       \
        DTI_N(conv_plane)(rows, vecs, tile, k, a, b, b_off, b_row, add);                           \
    }
DTI_CONV_PLANE(1, 1)
DTI_CONV_PLANE(1, 2)
DTI_CONV_PLANE(4, 1)
DTI_CONV_PLANE(4, 2)
#undef DTI_CONV_PLANE

/* ---- out of the tiles */

/* n elements `step` apart. */
DTI_INLINE DTI_NF DTI_N(conv_get)(const float *p, int64_t step, int n) {
    if (step == 1)
        return DTI_N(load_n)(p, n);
    float t[DTI_LANES] = {0};
    for (int i = 0; i < n; i++)
        t[i] = p[i * step];
    return DTI_N(load)(t);
}
DTI_INLINE void DTI_N(conv_set)(float *p, DTI_NF x, int64_t step, int n) {
    if (step == 1) {
        DTI_N(store_n)(p, x, n);
        return;
    }
    float t[DTI_LANES];
    DTI_N(store)(t, x);
    for (int i = 0; i < n; i++)
        p[i * step] = t[i];
}

DTI_INLINE void DTI_N(conv_finish)(const dti_conv_out *out, int64_t at, DTI_NF x, DTI_NF bias,
                                   int64_t step, int n) {
    x = DTI_N(gemm_finish)(x, bias, out->bias != NULL, out->relu);
    if (out->mask)
        x = DTI_N(gemm_mask)(x, DTI_N(conv_get)(out->mask + at, step, n));
    DTI_N(conv_set)(out->to + at, x, step, n);
}

static void DTI_N(conv_straight)(const dti_conv_out *out, const float *tile, int64_t rows,
                                 int64_t cols) {
    for (int64_t i = 0; i < rows; i++) {
        DTI_NF bias = DTI_N(set1)(out->bias ? out->bias[i * out->bias_row] : 0);
        for (int64_t j = 0; j < cols; j += DTI_LANES) {
            const int n = (int)DTI_MIN(cols - j, DTI_LANES);
            const DTI_NF x = DTI_N(load)(tile + i * DTI_CONV_NR + j);
            DTI_N(conv_finish)(out, i * out->row + j * out->col, x, bias, out->col, n);
        }
    }
}

static void DTI_N(conv_turned)(const dti_conv_out *out, const float *tile, int64_t rows,
                               int64_t cols) {
    for (int64_t i0 = 0; i0 < rows; i0 += DTI_LANES) {
        const int n = (int)DTI_MIN(rows - i0, DTI_LANES);
        for (int64_t v = 0; v < cols; v += DTI_LANES) {
            DTI_NF r[DTI_LANES]; /* the tile goes on behind its last row */
            DTI_N(load_turned)(tile + i0 * DTI_CONV_NR + v, DTI_CONV_NR, r);
            for (int64_t j = 0; j < DTI_MIN(cols - v, DTI_LANES); j++) {
                float bias = out->bias ? out->bias[(v + j) * out->bias_col] : 0;
                DTI_N(conv_finish)
                (out, i0 * out->row + (v + j) * out->col, r[j], DTI_N(set1)(bias), out->row, n);
            }
        }
    }
}

/* ---- copies */

DTI_INLINE void DTI_N(conv_zeros)(float *to, int64_t n) {
    for (int64_t i = 0; i < n; i += DTI_LANES)
        DTI_N(store_n)(to + i, DTI_N(set1)(0), (int)DTI_MIN(n - i, DTI_LANES));
}

/* Columns [from, to) of a row of `width`. */
DTI_INLINE void DTI_N(conv_pad_row)(float *copy, const float *row, int64_t from, int64_t to,
                                    int64_t width) {
    const int64_t begin = DTI_MIN(DTI_MAX(from, 0), to), end = DTI_MAX(DTI_MIN(to, width), begin);
    DTI_N(conv_zeros)(copy, begin - from);
    for (int64_t j = begin; j < end; j += DTI_LANES) {
        const int n = (int)DTI_MIN(end - j, DTI_LANES);
        DTI_N(store_n)(copy + j - from, DTI_N(load_n)(row + j, n), n);
    }
    DTI_N(conv_zeros)(copy + end - from, to - end);
}

/* The same columns dealt out. */
static void DTI_N(conv_deal_row)(float *copy, const float *row, const dti_conv_pad *p) {
    for (int64_t phase = 0; phase < p->step; phase++, copy += p->run) {
        int64_t at = p->from[1] + phase, i = 0;
        for (; i < p->run && at < 0; i++, at += p->step)
            copy[i] = 0;
        const int64_t fit = at < p->width ? (p->width - at + p->step - 1) / p->step : 0;
        for (const int64_t end = DTI_MIN(p->run, i + fit); i < end; i++, at += p->step)
            copy[i] = row[at];
        for (; i < p->run; i++)
            copy[i] = 0;
    }
}

static void DTI_N(conv_pad)(float *copy, const float *source, const dti_conv_pad *p) {
    for (int64_t c = 0; c < p->channels; c++, copy += p->plane)
        for (int64_t i = p->from[0]; i < p->to[0]; i++) {
            float *to = copy + (i - p->from[0]) * p->row;
            const float *row = source + (c * p->height + i) * p->width;
            if (i < 0 || i >= p->height)
                DTI_N(conv_zeros)(to, p->run * p->step);
            else if (p->step == 1)
                DTI_N(conv_pad_row)(to, row, p->from[1], p->to[1], p->width);
            else
                DTI_N(conv_deal_row)(to, row, p);
        }
}

static void DTI_N(conv_turn)(float *dst, int64_t ld, const float *src, int64_t row, int rows,
                             int64_t k) {
    DTI_N(pack_turn)(dst, ld, src, row, rows, k);
}

/* Chains of DTI_SUM_CHAIN in lanes, DTI_SUM_CHAIN such chains in lanes again, then double. */
static void DTI_N(conv_dot)(double *sums, const float *y, const float *x, const int32_t *off,
                            int count, int64_t rows, int64_t cols, int64_t x_row) {
    const DTI_VF zero = DTI_V(set1)(0);
    DTI_VF s[4] = {zero, zero, zero, zero}, more[4] = {zero, zero, zero, zero};
    uint32_t steps = 0;
    int32_t at[4];
    for (int t = 0; t < 4; t++)
        at[t] = off[DTI_MIN(t, count - 1)];
    for (int64_t i = 0; i < rows; i++, x += x_row, y += cols)
        for (int64_t j = 0; j < cols; j += 16) {
            DTI_VF g = DTI_V(get)(y + j, cols - j);
            DTI_UNROLL(4)
            for (int t = 0; t < 4; t++)
                s[t] = DTI_V(fma)(g, DTI_V(get)(x + at[t] + j, cols - j), s[t]);
            if (++steps % DTI_SUM_CHAIN)
                continue;
            DTI_UNROLL(4)
            for (int t = 0; t < 4; t++)
                more[t] = DTI_V(add)(more[t], s[t]), s[t] = zero;
            for (int t = 0; t < count && steps % (DTI_SUM_CHAIN * DTI_SUM_CHAIN) == 0; t++)
                sums[t] += (double)DTI_V(sum)(more[t]), more[t] = zero;
        }
    for (int t = 0; t < count; t++)
        sums[t] += (double)DTI_V(sum)(DTI_V(add)(more[t], s[t]));
}

static const dti_conv_kernels DTI_N(conv_kernels) = {
    .lanes = DTI_LANES,
    .rows = DTI_CONV_MR,
    .tile = DTI_N(conv_tiles),
    .plane = {{DTI_N(conv_plane_1_1), DTI_N(conv_plane_1_2)},
              {DTI_N(conv_plane_4_1), DTI_N(conv_plane_4_2)}},
    .turned = DTI_N(conv_turned),
    .straight = DTI_N(conv_straight),
    .pad = DTI_N(conv_pad),
    .turn = DTI_N(conv_turn),
    .dot = DTI_N(conv_dot),
};
