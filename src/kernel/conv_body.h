/* Convolution's inner loops for one instruction set: see conv.h. The tile is GEMM's. Both operands
 * are read through tables, so one set of tiles serves all forms. */

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

#include "conv_tile_body.h"

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

/* n <= LANES elements `step` apart. */
DTI_NOINLINE DTI_NF DTI_N(conv_get_each)(const void *from, dt_dtype type, int64_t step, int n) {
    float t[DTI_LANES] = {0};
    for (int i = 0; i < n; i++)
        t[i] =
            type == DT_F32 ? ((const float *)from)[i * step] : dti_half_value(from, type, i * step);
    return DTI_N(load)(t);
}
DTI_NOINLINE void DTI_N(conv_set_each)(void *to, dt_dtype type, DTI_NF x, int64_t step, int n) {
    float t[DTI_LANES];
    uint16_t halves[DTI_LANES];
    DTI_N(store)(t, x);
    if (type == DT_F16)
        DTI_H(narrow_f16)(halves, t, n);
    if (type == DT_BF16)
        DTI_H(narrow_bf16)(halves, t, n);
    for (int i = 0; i < n; i++) {
        if (type == DT_F32)
            ((float *)to)[i * step] = t[i];
        else
            ((uint16_t *)to)[i * step] = halves[i];
    }
}

#if DTI_LANES == 16
/* Lanes i * step of two vectors; step is 1 or 2. */
#define DTI_CONV_LANES(n, step)                                                                    \
    ((uint32_t)((1ull << (n) * (step)) - 1) & ((step) == 2 ? 0x55555555u : UINT32_MAX))
DTI_INLINE DTI_NF DTI_N(conv_get_pairs)(const float *p, int n) {
    const DTI_NI even = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
    const uint32_t lanes = DTI_CONV_LANES(n, 2);
    const __m512 a = _mm512_maskz_loadu_ps((__mmask16)lanes, p);
    const __m512 b = _mm512_maskz_loadu_ps((__mmask16)(lanes >> 16), p + 16);
    return (DTI_NF)_mm512_permutex2var_ps(a, (__m512i)even, b);
}
DTI_INLINE void DTI_N(conv_set_pairs)(float *p, DTI_NF x, int n) {
    const DTI_NI low = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7};
    const uint32_t lanes = DTI_CONV_LANES(n, 2);
    const __m512 a = _mm512_permutexvar_ps((__m512i)low, (__m512)x);
    const __m512 b = _mm512_permutexvar_ps((__m512i)(low + 8), (__m512)x);
    _mm512_mask_storeu_ps(p, (__mmask16)lanes, a);
    _mm512_mask_storeu_ps(p + 16, (__mmask16)(lanes >> 16), b);
}
DTI_INLINE DTI_NF DTI_N(conv_get)(const void *from, dt_dtype type, int64_t step, int n) {
    const uint32_t lanes = DTI_CONV_LANES(n, step);
    if (type == DT_F32 && step <= 2)
        return step == 1 ? DTI_N(load_n)(from, n) : DTI_N(conv_get_pairs)(from, n);
    if (type != DT_BF16 || step > 2)
        return DTI_N(conv_get_each)(from, type, step, n);
    const __m512i x = step == 1
                          ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16((__mmask16)lanes, from))
                          : _mm512_maskz_loadu_epi16(lanes, from);
    return (DTI_NF)_mm512_slli_epi32(x, 16);
}
DTI_INLINE void DTI_N(conv_set)(void *to, dt_dtype type, DTI_NF x, int64_t step, int n) {
    const uint32_t lanes = DTI_CONV_LANES(n, step);
    if (type == DT_F32 && step == 1) {
        DTI_N(store_n)(to, x, n);
    } else if (type == DT_F32 && step == 2) {
        DTI_N(conv_set_pairs)(to, x, n);
    } else if (type == DT_BF16 && step <= 2) {
        const __m256i y = (__m256i)DTI_H(bf16_of)((DTI_H(f32))x);
        if (step == 1)
            _mm256_mask_storeu_epi16(to, (__mmask16)lanes, y);
        else
            _mm512_mask_storeu_epi16(to, lanes, _mm512_cvtepu16_epi32(y));
    } else {
        DTI_N(conv_set_each)(to, type, x, step, n);
    }
}
#else
DTI_INLINE DTI_NF DTI_N(conv_get)(const void *from, dt_dtype type, int64_t step, int n) {
    return type == DT_F32 && step == 1 ? DTI_N(load_n)(from, n)
                                       : DTI_N(conv_get_each)(from, type, step, n);
}
DTI_INLINE void DTI_N(conv_set)(void *to, dt_dtype type, DTI_NF x, int64_t step, int n) {
    if (type == DT_F32 && step == 1)
        DTI_N(store_n)(to, x, n);
    else
        DTI_N(conv_set_each)(to, type, x, step, n);
}
#endif

/* Of contiguous floats, in a loop of their own. */
DTI_INLINE bool DTI_N(conv_plain)(const dti_conv_out *out, int64_t step) {
    return step == 1 && out->type == DT_F32 && (!out->mask || out->mask_type == DT_F32);
}

DTI_INLINE void DTI_N(conv_finish)(const dti_conv_out *out, int64_t at, DTI_NF x, DTI_NF bias,
                                   int64_t step, int n, bool plain) {
    at += out->at;
    x = DTI_N(gemm_finish)(x, bias, out->bias != NULL, out->relu);
    if (plain) {
        if (out->mask)
            x = DTI_N(gemm_mask)(x, DTI_N(load_n)((const float *)out->mask + at, n));
        DTI_N(store_n)((float *)out->to + at, x, n);
        return;
    }
    char *to = (char *)out->to + at * (out->type == DT_F32 ? 4 : 2);
    if (out->mask) {
        const char *mask = (const char *)out->mask + at * (out->mask_type == DT_F32 ? 4 : 2);
        x = DTI_N(gemm_mask)(x, DTI_N(conv_get)(mask, out->mask_type, step, n));
    }
    DTI_N(conv_set)(to, out->type, x, step, n);
}

static void DTI_N(conv_straight)(const dti_conv_out *out, const float *tile, int64_t rows,
                                 int64_t cols) {
    const bool plain = DTI_N(conv_plain)(out, out->col);
    for (int64_t i = 0; i < rows; i++) {
        DTI_NF bias = DTI_N(set1)(out->bias ? out->bias[i * out->bias_row] : 0);
        for (int64_t j = 0; j < cols; j += DTI_LANES) {
            const int n = (int)DTI_MIN(cols - j, DTI_LANES);
            const DTI_NF x = DTI_N(load)(tile + i * DTI_CONV_NR + j);
            DTI_N(conv_finish)(out, i * out->row + j * out->col, x, bias, out->col, n, plain);
        }
    }
}

static void DTI_N(conv_turned)(const dti_conv_out *out, const float *tile, int64_t rows,
                               int64_t cols) {
    const bool plain = DTI_N(conv_plain)(out, out->row);
    for (int64_t i0 = 0; i0 < rows; i0 += DTI_LANES) {
        const int n = (int)DTI_MIN(rows - i0, DTI_LANES);
        for (int64_t v = 0; v < cols; v += DTI_LANES) {
            DTI_NF r[DTI_LANES]; /* the tile continues after its last row */
            DTI_N(load_turned)(tile + i0 * DTI_CONV_NR + v, DTI_CONV_NR, r);
            for (int64_t j = 0; j < DTI_MIN(cols - v, DTI_LANES); j++) {
                float bias = out->bias ? out->bias[(v + j) * out->bias_col] : 0;
                DTI_N(conv_finish)
                (out, i0 * out->row + (v + j) * out->col, r[j], DTI_N(set1)(bias), out->row, n,
                 plain);
            }
        }
    }
}

/* ---- copies */

DTI_INLINE void DTI_N(conv_zeros)(float *to, int64_t n) {
    for (int64_t i = 0; i < n; i += DTI_LANES)
        DTI_N(store_n)(to + i, DTI_N(set1)(0), (int)DTI_MIN(n - i, DTI_LANES));
}

/* n elements as floats. */
DTI_INLINE void DTI_N(conv_row)(float *copy, const void *row, dt_dtype type, int64_t at,
                                int64_t n) {
    if (type == DT_BF16) {
        DTI_H(widen_bf16)(copy, (const uint16_t *)row + at, n);
        return;
    }
    if (type == DT_F16) {
        DTI_H(widen_f16)(copy, (const uint16_t *)row + at, n);
        return;
    }
    const float *floats = (const float *)row + at;
    for (int64_t j = 0; j < n; j += DTI_LANES) {
        const int some = (int)DTI_MIN(n - j, DTI_LANES);
        DTI_N(store_n)(copy + j, DTI_N(load_n)(floats + j, some), some);
    }
}

/* Columns [from, to) of a row of `width`. */
DTI_INLINE void DTI_N(conv_pad_row)(float *copy, const void *row, const dti_conv_pad *p) {
    const int64_t from = p->from[1], to = p->to[1];
    const int64_t begin = DTI_MIN(DTI_MAX(from, 0), to),
                  end = DTI_MAX(DTI_MIN(to, p->width), begin);
    DTI_N(conv_zeros)(copy, begin - from);
    DTI_N(conv_row)(copy + begin - from, row, p->type, begin, end - begin);
    DTI_N(conv_zeros)(copy + end - from, to - end);
}

/* The same columns dealt out. */
static void DTI_N(conv_deal_row)(float *copy, const void *row, const dti_conv_pad *p) {
    for (int64_t phase = 0; phase < p->step; phase++, copy += p->run) {
        int64_t at = p->from[1] + phase, i = 0;
        for (; i < p->run && at < 0; i++, at += p->step)
            copy[i] = 0;
        const int64_t fit = at < p->width ? (p->width - at + p->step - 1) / p->step : 0;
        for (const int64_t end = DTI_MIN(p->run, i + fit); i < end; i++, at += p->step)
            copy[i] =
                p->type == DT_F32 ? ((const float *)row)[at] : dti_half_value(row, p->type, at);
        for (; i < p->run; i++)
            copy[i] = 0;
    }
}

static void DTI_N(conv_pad)(float *copy, const void *source, const dti_conv_pad *p) {
    const int64_t size = p->type == DT_F32 ? sizeof(float) : sizeof(uint16_t);
    for (int64_t c = 0; c < p->channels; c++, copy += p->plane)
        for (int64_t i = p->from[0]; i < p->to[0]; i++) {
            float *to = copy + (i - p->from[0]) * p->row;
            const char *row = (const char *)source + (c * p->height + i) * p->width * size;
            if (i < 0 || i >= p->height || c >= p->given)
                DTI_N(conv_zeros)(to, p->run * p->step);
            else if (p->step == 1)
                DTI_N(conv_pad_row)(to, row, p);
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
