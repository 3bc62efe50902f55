/* Convolution's tiles of one instruction set for one kind of word. A word is a float, or
 * (DTI_GEMM_PAIRS) two numbers in bf16 that follow each other in k. Also the functions that make
 * such words. */

#undef DTI_C
#undef DTI_CONV_FMA
#undef DTI_CONV_TILE
#undef DTI_CONV_ENTRY
#ifdef DTI_GEMM_PAIRS
#define DTI_C(name) DTI_N(conv_pairs_##name)
#define DTI_CONV_FMA DTI_N(pairs_fma) /* the product's, as below */
#else
#define DTI_C(name) DTI_N(conv_##name)
#define DTI_CONV_FMA DTI_N(gemm_fma)
#endif

DTI_INLINE void DTI_C(tile)(const int rows, const int vecs, float *tile, int64_t k, const float *a,
                            const int32_t *a_off, int64_t a_row, const float *b,
                            const int32_t *b_off, bool add) {
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
            sums[i][0] = DTI_CONV_FMA(u, b0, sums[i][0]);
            if (vecs > 1)
                sums[i][1] = DTI_CONV_FMA(u, b1, sums[i][1]);
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
    static void DTI_C(rows##_##vecs)(float *tile, int64_t k, const float *a, const int32_t *a_off, \
                                     int64_t a_row, const float *b, const int32_t *b_off,          \
                                     bool add) {                                                   \
        DTI_C(tile)(rows, vecs, tile, k, a, a_off, a_row, b, b_off, add);                          \
    }
#define DTI_CONV_ENTRY(rows, vecs) [rows - 1][vecs - 1] = DTI_C(rows##_##vecs),
DTI_CONV_LIST(DTI_CONV_TILE)
static dti_conv_tile_fn *const DTI_C(tiles)[DTI_CONV_MR][2] = {DTI_CONV_LIST(DTI_CONV_ENTRY)};

#ifdef DTI_GEMM_PAIRS
/* Columns [j, j + LANES) of a row, with zeros outside of it. */
DTI_INLINE __m512i DTI_C(columns)(const uint16_t *row, int64_t j, int64_t width) {
    const int64_t first = DTI_MIN(DTI_MAX(-j, 0), DTI_LANES);
    const int64_t last = DTI_MIN(DTI_MAX(width - j, 0), DTI_LANES);
    const uint32_t lanes = ((1u << last) - 1u) & ~((1u << first) - 1u);
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16((__mmask16)lanes, row + j));
}

/* Words of elements of a row and of those `apart` after them; NULL: of zeros. */
static void DTI_C(row)(float *copy, const uint16_t *even, const uint16_t *odd, int64_t apart,
                       const dti_conv_pad *p) {
    const int64_t n = p->to[1] - p->from[1];
    for (int64_t i = 0; i < n; i += DTI_LANES) {
        const int64_t j = p->from[1] + i;
        __m512i x = DTI_C(columns)(even, j, p->width);
        if (odd)
            x = _mm512_or_si512(x, _mm512_slli_epi32(DTI_C(columns)(odd, j + apart, p->width), 16));
        DTI_N(store_n)(copy + i, (DTI_NF)x, (int)DTI_MIN(n - i, DTI_LANES));
    }
}

/* The same, dealt out. */
static void DTI_C(deal)(float *copy, const uint16_t *even, const uint16_t *odd,
                        const dti_conv_pad *p) {
    for (int64_t phase = 0; phase < p->step; phase++)
        for (int64_t i = 0; i < p->run; i++) {
            const int64_t j = p->from[1] + phase + i * p->step;
            const bool inside = j >= 0 && j < p->width;
            const uint32_t word = inside ? even[j] | (odd ? (uint32_t)odd[j] << 16 : 0) : 0;
            *copy++ = dti_f32_from_bits(word);
        }
}

/* Words of two channels, or of columns `apart`. */
static void DTI_C(pad)(float *copy, const void *source, const dti_conv_pad *p) {
    const int64_t each = p->apart ? 1 : 2, plane = p->height * p->width;
    for (int64_t c = 0; c < p->channels; c++, copy += p->plane)
        for (int64_t i = p->from[0]; i < p->to[0]; i++) {
            float *to = copy + (i - p->from[0]) * p->row;
            const uint16_t *even = (const uint16_t *)source + c * each * plane + i * p->width;
            const uint16_t *odd = p->apart ? even : 2 * c + 1 < p->given ? even + plane : NULL;
            if (i < 0 || i >= p->height)
                DTI_N(conv_zeros)(to, p->run * p->step);
            else if (p->step == 1)
                DTI_C(row)(to, even, odd, p->apart, p);
            else
                DTI_C(deal)(to, even, odd, p);
        }
}

static const dti_conv_kernels DTI_N(conv_pairs) = {.lanes = DTI_LANES,
                                                   .rows = DTI_CONV_MR,
                                                   .tile = DTI_C(tiles),
                                                   .turned = DTI_N(conv_turned),
                                                   .straight = DTI_N(conv_straight),
                                                   .pad = DTI_C(pad),
                                                   .turn = DTI_N(conv_turn)};
#endif
