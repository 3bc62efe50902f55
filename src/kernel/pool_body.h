/* The kernels of pool.h for one instruction set. */

/* p[0], p[stride], ... of the first n lanes; it reads nothing after the last. */
DTI_INLINE DTI_NF DTI_N(pool_load)(const float *p, int64_t stride, int n) {
    if (stride == 1)
        return n >= DTI_LANES ? DTI_N(load)(p) : DTI_N(load_n)(p, n);
#if DTI_LANES > 4
    if (stride == 2) {
        const int more = DTI_MAX(2 * n - DTI_LANES, 0);
        DTI_NF a = DTI_N(load_n)(p, DTI_MIN(2 * n - 1, DTI_LANES));
        DTI_NF b = DTI_N(load_n)(p + DTI_LANES - 1, more); /* its odd lanes */
#if DTI_LANES == 16
        const DTI_NI even = {0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31};
        return (DTI_NF)_mm512_permutex2var_ps((__m512)a, (__m512i)even, (__m512)b);
#else
        __m256 both = _mm256_blend_ps((__m256)a, (__m256)b, 0xaa); /* a0 b1 a2 b3 a4 b5 a6 b7 */
        both = _mm256_permute_ps(both, 0xd8);                      /* a0 a2 b1 b3 | a4 a6 b5 b7 */
        return (DTI_NF)_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(both), 0xd8));
#endif
    }
#endif
    float t[DTI_LANES] = {0};
    for (int i = 0; i < DTI_MIN(n, DTI_LANES); i++)
        t[i] = p[i * stride];
    return DTI_N(load)(t);
}

/* By bits: under -ffast-math a comparison with a NaN is not reliable. */
DTI_INLINE DTI_NM DTI_N(is_nan)(DTI_NF x) {
    return DTI_N(ilt)(DTI_N(iset1)(0x7f800000),
                      DTI_N(iand)(DTI_N(bits)(x), DTI_N(iset1)(0x7fffffff)));
}

DTI_ISA_FUNCTION(N, pool_max, pool_max);
static void DTI_N(pool_max)(float *y, int32_t *at, const float *x, int64_t kh, int64_t kw,
                            int64_t x_row, int64_t stride, int64_t n) {
    for (int64_t j = 0; j < n; j += DTI_LANES) {
        const int left = (int)DTI_MIN(n - j, DTI_LANES);
        const float *window = x + j * stride;
        DTI_NF best = DTI_N(pool_load)(window, stride, left);
        DTI_NI place = DTI_N(iset1)(0);
        for (int64_t r = 0; r < kh; r++)
            for (int64_t s = 0; s < kw; s++) {
                DTI_NF v = DTI_N(pool_load)(window + r * x_row + s, stride, left);
                DTI_NM more = DTI_N(either)(DTI_N(lt)(best, v), DTI_N(is_nan)(v));
                best = DTI_N(select)(more, v, best);
                place = DTI_N(iselect)(more, DTI_N(iset1)((int32_t)(r * x_row + s)), place);
            }
        if (y)
            DTI_N(store_n)(y + j, best, left);
        if (at) {
            DTI_NF bits = DTI_N(float)(place);
            DTI_N(store_n)((float *)(void *)(at + j), bits, left);
        }
    }
}

DTI_ISA_FUNCTION(N, pool_mean, pool_mean);
static void DTI_N(pool_mean)(float *y, const float *x, int64_t kh, int64_t kw, int64_t x_row,
                             int64_t stride, int64_t n, float count) {
    for (int64_t j = 0; j < n; j += DTI_LANES) {
        const int left = (int)DTI_MIN(n - j, DTI_LANES);
        DTI_NF sum = DTI_N(set1)(0);
        for (int64_t r = 0; r < kh; r++) {
            DTI_NF row = DTI_N(set1)(0);
            for (int64_t s = 0; s < kw; s++)
                row = row + DTI_N(pool_load)(x + j * stride + r * x_row + s, stride, left);
            sum = sum + row;
        }
        DTI_N(store_n)(y + j, sum / DTI_N(set1)(count), left);
    }
}

/* p[0, 2 n) = a0 b0 a1 b1 ... */
DTI_INLINE void DTI_N(pool_zip)(float *p, DTI_NF a, DTI_NF b, int n) {
#if DTI_LANES == 16
    const DTI_NI low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
    DTI_NF x = (DTI_NF)_mm512_permutex2var_ps((__m512)a, (__m512i)low, (__m512)b);
    DTI_NF y = (DTI_NF)_mm512_permutex2var_ps((__m512)a, (__m512i)(low + 8), (__m512)b);
#elif DTI_LANES == 8
    __m256 s = _mm256_unpacklo_ps((__m256)a, (__m256)b);
    __m256 t = _mm256_unpackhi_ps((__m256)a, (__m256)b);
    DTI_NF x = (DTI_NF)_mm256_permute2f128_ps(s, t, 0x20);
    DTI_NF y = (DTI_NF)_mm256_permute2f128_ps(s, t, 0x31);
#else
    DTI_NF x = {a[0], b[0], a[1], b[1]}, y = {a[2], b[2], a[3], b[3]};
#endif
    DTI_N(store_n)(p, x, DTI_MIN(2 * n, DTI_LANES));
    DTI_N(store_n)(p + DTI_LANES, y, DTI_MAX(2 * n - DTI_LANES, 0));
}

DTI_ISA_FUNCTION(N, pool_pairs, pool_pairs);
static void DTI_N(pool_pairs)(float *dx, const float *dy, const float *x, int64_t x_row, int64_t n,
                              bool relu) {
    const DTI_NF zero = DTI_N(set1)(0);
    for (int64_t j = 0; j < n; j += DTI_LANES) {
        const int left = (int)DTI_MIN(n - j, DTI_LANES);
        const float *window = x + 2 * j;
        DTI_NF g = DTI_N(load_n)(dy + j, left), d[4] = {g, zero, zero, zero};
        DTI_NF best = DTI_N(pool_load)(window, 2, left);
        DTI_UNROLL(3)
        for (int i = 1; i < 4; i++) {
            DTI_NF v = DTI_N(pool_load)(window + i / 2 * x_row + i % 2, 2, left);
            DTI_NM more = DTI_N(either)(DTI_N(lt)(best, v), DTI_N(is_nan)(v));
            best = DTI_N(select)(more, v, best);
            DTI_UNROLL(3)
            for (int k = 0; k < i; k++)
                d[k] = DTI_N(select)(more, zero, d[k]);
            d[i] = DTI_N(select)(more, g, zero);
        }
        const DTI_NM positive = DTI_N(lt)(zero, best);
        for (int i = 0; i < 4 && relu; i++)
            d[i] = DTI_N(select)(positive, d[i], zero);
        DTI_N(pool_zip)(dx + 2 * j, d[0], d[1], left);
        DTI_N(pool_zip)(dx + 2 * j + x_row, d[2], d[3], left);
    }
}
