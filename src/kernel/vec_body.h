/* The flat kernels of vec.h for one instruction set: sums on 16 lanes. */

/* ---- maps */
#define DTI_MAP(ID, name, slope)                                                                   \
    static void DTI_V(map_##name)(float *y, const float *x, int64_t n, float p0, float p1) {       \
        const DTI_EF q0 = DTI_E(set1)(p0), q1 = DTI_E(set1)(p1);                                   \
        for (int64_t i = 0; i < n; i += DTI_E_LANES)                                               \
            DTI_E(put)(y + i, DTI_E(m_map_##name)(DTI_E(get)(x + i, n - i), q0, q1), n - i);       \
    }                                                                                              \
    static void DTI_V(grad_##name)(float *dx, const float *x, const float *dy, int64_t n,          \
                                   float p0, float p1) {                                           \
        const DTI_EF q0 = DTI_E(set1)(p0), q1 = DTI_E(set1)(p1);                                   \
        for (int64_t i = 0; i < n; i += DTI_E_LANES) {                                             \
            DTI_EF u = DTI_E(get)(x + i, n - i), d = DTI_E(get)(dy + i, n - i);                    \
            DTI_E(put)(dx + i, DTI_E(m_grad_##name)(u, d, q0, q1), n - i);                         \
        }                                                                                          \
    }
DTI_UNARY_LIST(DTI_MAP)
#undef DTI_MAP

#define DTI_PAIR(ID, name)                                                                         \
    static void DTI_V(pair_##name)(float *y, const float *a, int a_step, const float *b,           \
                                   int b_step, int64_t n) {                                        \
        if (n <= 0)                                                                                \
            return;                                                                                \
        const DTI_EF a0 = DTI_E(set1)(*a), b0 = DTI_E(set1)(*b);                                   \
        for (int64_t i = 0; i < n; i += DTI_E_LANES) {                                             \
            DTI_EF u = a_step ? DTI_E(get)(a + i, n - i) : a0;                                     \
            DTI_EF v = b_step ? DTI_E(get)(b + i, n - i) : b0;                                     \
            DTI_E(put)(y + i, DTI_E(m_pair_##name)(u, v), n - i);                                  \
        }                                                                                          \
    }
DTI_BINARY_LIST(DTI_PAIR)
#undef DTI_PAIR

DTI_ISA_FUNCTION(V, axpy, axpy);
static void DTI_V(axpy)(float *y, float a, const float *x, int64_t n) {
    const DTI_EF factor = DTI_E(set1)(a);
    for (int64_t i = 0; i < n; i += DTI_E_LANES) {
        DTI_EF sum = DTI_E(fma)(factor, DTI_E(get)(x + i, n - i), DTI_E(get)(y + i, n - i));
        DTI_E(put)(y + i, sum, n - i);
    }
}

/* ---- rows. In a run no lane adds more than DTI_SUM_CHAIN elements. Runs are added in double, so
 * the error of a sum does not grow with its length. */
DTI_INLINE DTI_VF DTI_V(fold_term)(DTI_VF x, DTI_VF sum, bool squares) {
    return squares ? DTI_V(fma)(x, x, sum) : DTI_V(add)(sum, x);
}
DTI_INLINE float DTI_V(fold)(const float *x, int64_t n, const bool squares) {
    DTI_VF s0 = DTI_V(set1)(0), s1 = s0, s2 = s0, s3 = s0;
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        s0 = DTI_V(fold_term)(DTI_V(load)(x + i), s0, squares);
        s1 = DTI_V(fold_term)(DTI_V(load)(x + i + 16), s1, squares);
        s2 = DTI_V(fold_term)(DTI_V(load)(x + i + 32), s2, squares);
        s3 = DTI_V(fold_term)(DTI_V(load)(x + i + 48), s3, squares);
    }
    if (i < n)
        s0 = DTI_V(fold_term)(DTI_V(get)(x + i, n - i), s0, squares);
    if (i + 16 < n)
        s1 = DTI_V(fold_term)(DTI_V(get)(x + i + 16, n - i - 16), s1, squares);
    if (i + 32 < n)
        s2 = DTI_V(fold_term)(DTI_V(get)(x + i + 32, n - i - 32), s2, squares);
    if (i + 48 < n)
        s3 = DTI_V(fold_term)(DTI_V(get)(x + i + 48, n - i - 48), s3, squares);
    return DTI_V(sum)(DTI_V(add)(DTI_V(add)(s0, s2), DTI_V(add)(s1, s3)));
}
DTI_INLINE float DTI_V(fold_runs)(const float *x, int64_t n, const bool squares) {
    double sum = 0;
    for (int64_t i = 0; i < n; i += 64 * DTI_SUM_CHAIN)
        sum += (double)DTI_V(fold)(x + i, DTI_MIN(n - i, 64 * DTI_SUM_CHAIN), squares);
    return (float)sum;
}
DTI_ISA_FUNCTION(V, fold, row_sum);
static float DTI_V(row_sum)(const float *x, int64_t n) {
    return DTI_V(fold_runs)(x, n, false);
}
DTI_ISA_FUNCTION(V, fold, row_sum_sq);
static float DTI_V(row_sum_sq)(const float *x, int64_t n) {
    return DTI_V(fold_runs)(x, n, true);
}

/* The largest; NaN if there is one; -infinity without elements. */
DTI_ISA_FUNCTION(V, fold, row_max);
static float DTI_V(row_max)(const float *x, int64_t n) {
    float t[32];
    for (int i = 0; i < 16; i++)
        t[i] = i < n ? x[i] : -(float)INFINITY;
    DTI_VF most = DTI_V(load)(t);
    for (int64_t i = 16; i < n; i += 16) /* the last 16 may be seen twice */
        most = DTI_V(m_pair_maximum)(most, DTI_V(load)(x + DTI_MIN(i, n - 16)));
    for (int h = 8; h; h /= 2) {
        DTI_V(store)(t, most);
        DTI_V(store)(t + 16, most);
        most = DTI_V(m_pair_maximum)(most, DTI_V(load)(t + h));
    }
    DTI_V(store)(t, most);
    return t[0];
}

/* The bits of the largest |x|; of infinity or NaN if there is one. */
DTI_ISA_FUNCTION(V, largest, row_largest);
static uint32_t DTI_V(row_largest)(const float *x, int64_t n) {
    const DTI_VI magnitude = DTI_V(iset1)(0x7fffffff);
    DTI_VI most = DTI_V(iset1)(0), next = most; /* two chains hide each other's latency */
    uint32_t lanes[16], largest = 0;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        DTI_VI a = DTI_V(iand)(DTI_V(bits)(DTI_V(load)(x + i)), magnitude);
        DTI_VI b = DTI_V(iand)(DTI_V(bits)(DTI_V(load)(x + i + 16)), magnitude);
        most = DTI_V(iselect)(DTI_V(ilt)(most, a), a, most);
        next = DTI_V(iselect)(DTI_V(ilt)(next, b), b, next);
    }
    for (; i < n; i += 16) {
        DTI_VI a = DTI_V(iand)(DTI_V(bits)(DTI_V(get)(x + i, n - i)), magnitude);
        most = DTI_V(iselect)(DTI_V(ilt)(most, a), a, most);
    }
    most = DTI_V(iselect)(DTI_V(ilt)(most, next), next, most);
    _Static_assert(sizeof most == sizeof lanes, "16 lanes");
    memcpy(lanes, &most, sizeof lanes);
    for (int k = 0; k < 16; k++)
        largest = DTI_MAX(largest, lanes[k]);
    return largest;
}

/* y = e^(x - most), to its output; returns its sum, of one accumulator. */
DTI_INLINE float DTI_V(run_exp)(float *y, const float *x, int64_t n, const DTI_VF shift,
                                const bool write) {
    DTI_VF sum = DTI_V(set1)(0);
    for (int64_t i = 0; i < n; i += 16) {
        DTI_VF e = DTI_V(m_exp)(DTI_V(sub)(DTI_V(get)(x + i, n - i), shift));
        if (write)
            DTI_V(put)(y + i, e, n - i);
        if (n - i < 16) { /* lanes past the end do not count */
            float t[16];
            DTI_V(store)(t, e);
            e = DTI_V(load_n)(t, (int)(n - i));
        }
        sum = DTI_V(add)(sum, e);
    }
    return DTI_V(sum)(sum);
}
DTI_NOINLINE float DTI_V(row_exp)(float *y, const float *x, int64_t n, float most, bool write) {
    const DTI_VF shift = DTI_V(set1)(most);
    double sum = 0;
    for (int64_t i = 0; i < n; i += 16 * DTI_SUM_CHAIN)
        sum += (double)DTI_V(run_exp)(write ? y + i : y, x + i, DTI_MIN(n - i, 16 * DTI_SUM_CHAIN),
                                      shift, write);
    return (float)sum;
}

DTI_ISA_FUNCTION(V, row, softmax);
static void DTI_V(softmax)(float *y, const float *x, int64_t n) {
    const float sum = DTI_V(row_exp)(y, x, n, DTI_V(row_max)(x, n), true);
    const DTI_VF share = DTI_V(set1)(1.0f / sum);
    for (int64_t i = 0; i < n; i += 16)
        DTI_V(put)(y + i, DTI_V(mul)(DTI_V(get)(y + i, n - i), share), n - i);
}

DTI_ISA_FUNCTION(V, row, log_softmax);
static void DTI_V(log_softmax)(float *y, const float *x, int64_t n) {
    const float most = DTI_V(row_max)(x, n);
    float log_sum[16];
    DTI_V(store)(log_sum, DTI_V(m_log)(DTI_V(set1)(DTI_V(row_exp)(y, x, n, most, false))));
    const DTI_VF shift = DTI_V(set1)(most), norm = DTI_V(set1)(log_sum[0]);
    for (int64_t i = 0; i < n; i += 16) {
        DTI_VF u = DTI_V(sub)(DTI_V(get)(x + i, n - i), shift);
        DTI_V(put)(y + i, DTI_V(sub)(u, norm), n - i);
    }
}

/* log(sum(e^x)) */
DTI_ISA_FUNCTION(V, fold, log_sum_exp);
static float DTI_V(log_sum_exp)(const float *x, int64_t n) {
    const float most = DTI_V(row_max)(x, n);
    float t[16];
    uint32_t bits;
    memcpy(&bits, &most, sizeof bits);
    if ((bits & 0x7f800000u) == 0x7f800000u) /* infinite or NaN */
        return most;
    DTI_V(store)(t, DTI_V(m_log)(DTI_V(set1)(DTI_V(row_exp)(t, x, n, most, false))));
    return most + t[0];
}

DTI_INLINE float DTI_V(run_dot)(const float *x, const float *y, int64_t n) {
    DTI_VF sum = DTI_V(set1)(0);
    for (int64_t i = 0; i < n; i += 16)
        sum = DTI_V(fma)(DTI_V(get)(x + i, n - i), DTI_V(get)(y + i, n - i), sum);
    return DTI_V(sum)(sum);
}

/* dx = y * (dy - sum(dy * y)) */
DTI_ISA_FUNCTION(V, row_grad, softmax_grad);
static void DTI_V(softmax_grad)(float *dx, const float *y, const float *dy, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i += 16 * DTI_SUM_CHAIN)
        sum += (double)DTI_V(run_dot)(y + i, dy + i, DTI_MIN(n - i, 16 * DTI_SUM_CHAIN));
    const DTI_VF mean = DTI_V(set1)((float)sum);
    for (int64_t i = 0; i < n; i += 16) {
        DTI_VF u = DTI_V(sub)(DTI_V(get)(dy + i, n - i), mean);
        DTI_V(put)(dx + i, DTI_V(mul)(DTI_V(get)(y + i, n - i), u), n - i);
    }
}

/* dx = dy - e^y * sum(dy) */
DTI_ISA_FUNCTION(V, row_grad, log_softmax_grad);
static void DTI_V(log_softmax_grad)(float *dx, const float *y, const float *dy, int64_t n) {
    const DTI_VF minus = DTI_V(set1)(-DTI_V(row_sum)(dy, n));
    for (int64_t i = 0; i < n; i += 16) {
        DTI_VF e = DTI_V(m_exp)(DTI_V(get)(y + i, n - i));
        DTI_V(put)(dx + i, DTI_V(fma)(e, minus, DTI_V(get)(dy + i, n - i)), n - i);
    }
}

/* 64 columns at a time, so that whole cache lines and pages are used. */
DTI_INLINE void DTI_V(run_columns)(double *sums, const float *x, int64_t rows, int64_t n,
                                   int64_t ld) {
    DTI_VF s0 = DTI_V(set1)(0), s1 = s0, s2 = s0, s3 = s0;
    for (int64_t i = 0; i < rows; i++, x += ld) {
        s0 = DTI_V(add)(s0, DTI_V(get)(x, n));
        if (n > 16)
            s1 = DTI_V(add)(s1, DTI_V(get)(x + 16, n - 16));
        if (n > 32)
            s2 = DTI_V(add)(s2, DTI_V(get)(x + 32, n - 32));
        if (n > 48)
            s3 = DTI_V(add)(s3, DTI_V(get)(x + 48, n - 48));
    }
    DTI_V(add_wide)(sums, s0);
    if (n > 16)
        DTI_V(add_wide)(sums + 16, s1);
    if (n > 32)
        DTI_V(add_wide)(sums + 32, s2);
    if (n > 48)
        DTI_V(add_wide)(sums + 48, s3);
}
DTI_ISA_FUNCTION(V, col_sum, col_sum);
static void DTI_V(col_sum)(double *sums, const float *x, int64_t rows, int64_t cols, int64_t ld) {
    for (int64_t j = 0; j < cols; j += 64)
        for (int64_t i = 0; i < rows; i += DTI_SUM_CHAIN)
            DTI_V(run_columns)
    (sums + j, x + i * ld + j, DTI_MIN(rows - i, DTI_SUM_CHAIN), DTI_MIN(cols - j, 64), ld);
}

DTI_ISA_FUNCTION(V, narrow_sums, narrow_sums);
static void DTI_V(narrow_sums)(float *y, const double *sums, int64_t n, float scale) {
    const DTI_VF factor = DTI_V(set1)(scale);
    for (int64_t i = 0; i < n; i += 16) {
        float t[16];
        for (int k = 0; k < 16; k++)
            t[k] = (float)sums[i + k];
        DTI_V(put)(y + i, DTI_V(mul)(DTI_V(load)(t), factor), n - i);
    }
}

/* ---- optimizers */
DTI_INLINE DTI_EF DTI_E(clipped)(DTI_EF g, float clip, float limit) {
    g = DTI_E(mul)(g, DTI_E(set1)(clip));
    if (limit > 0) {
        g = DTI_E(max)(g, DTI_E(set1)(-limit));
        g = DTI_E(min)(g, DTI_E(set1)(limit));
    }
    return g;
}

/* run_x is inlined for each number of moments, so that the loop asks nothing. */
#define DTI_OPTIM_KERNELS(number, ID, name, least, most)                                           \
    static void DTI_V(constants_##name)(dti_optim_rates_f32 * r) {                                 \
        DTI_EF c[DTI_OPTIM_CONSTANTS];                                                             \
        float lanes[DTI_E_LANES];                                                                  \
        for (int i = 0; i < DTI_OPTIM_CONSTANTS; i++)                                              \
            c[i] = DTI_E(set1)(0);                                                                 \
        DTI_E(m_constants_##name)(r->words, r->t, c);                                              \
        for (int i = 0; i < DTI_OPTIM_SHARE; i++) {                                                \
            DTI_E(store)(lanes, c[i]);                                                             \
            r->constants[i] = lanes[0];                                                            \
        }                                                                                          \
    }                                                                                              \
    DTI_INLINE void DTI_V(run_##name)(float *const v[DTI_OPTIM_VALUES], const float *g, int64_t n, \
                                      const dti_optim_rates_f32 *rates, int moments) {             \
        const dti_optim_rates_f32 r = *rates; /* the written arrays do not alias it */             \
        float *at[1 + most];                                                                       \
        DTI_EF x[1 + most];                                                                        \
        DTI_UNROLL(4)                                                                              \
        for (int k = 0; k <= moments; k++)                                                         \
            at[k] = v[k];                                                                          \
        for (int64_t i = 0; i < n; i += DTI_E_LANES) {                                             \
            DTI_UNROLL(4)                                                                          \
            for (int k = 0; k <= most; k++)                                                        \
                x[k] = k <= moments ? DTI_E(get)(at[k] + i, n - i) : DTI_E(set1)(0);               \
            const DTI_EF d = DTI_E(clipped)(DTI_E(get)(g + i, n - i), r.clip, r.limit);            \
            DTI_E(m_update_##name)(x, d, r.words, r.t, r.constants);                               \
            DTI_UNROLL(4)                                                                          \
            for (int k = 0; k <= moments; k++)                                                     \
                DTI_E(put)(at[k] + i, x[k], n - i);                                                \
        }                                                                                          \
    }                                                                                              \
    static void DTI_V(update_##name)(float *const v[DTI_OPTIM_VALUES], const float *g, int64_t n,  \
                                     const dti_optim_rates_f32 *rates) {                           \
        if (least == most || v[most])                                                              \
            DTI_V(run_##name)(v, g, n, rates, most);                                               \
        else                                                                                       \
            DTI_V(run_##name)(v, g, n, rates, least);                                              \
    }
DTI_OPTIM_LIST(DTI_OPTIM_KERNELS)
#undef DTI_OPTIM_KERNELS

#define DTI_OPTIM_MEASURES(number, ID, name, least, most)                                          \
    static void DTI_V(measure_##name)(float *const v[DTI_OPTIM_VALUES], const float *g, int64_t n, \
                                      const dti_optim_rates_f32 *rates, float *a, float *b) {      \
        const dti_optim_rates_f32 r = *rates; /* the written arrays do not alias it */             \
        const float *at[1 + most];                                                                 \
        DTI_EF x[1 + most], one, two;                                                              \
        DTI_UNROLL(4)                                                                              \
        for (int k = 0; k <= most; k++)                                                            \
            at[k] = v[k] ? v[k] : g; /* it does not matter then */                                 \
        for (int64_t i = 0; i < n; i += DTI_E_LANES) {                                             \
            DTI_UNROLL(4)                                                                          \
            for (int k = 0; k <= most; k++)                                                        \
                x[k] = DTI_E(get)(at[k] + i, n - i);                                               \
            const DTI_EF d = DTI_E(clipped)(DTI_E(get)(g + i, n - i), r.clip, r.limit);            \
            DTI_E(m_measure_##name)(x, d, r.words, r.t, r.constants, &one, &two);                  \
            DTI_E(put)(a + i, one, n - i);                                                         \
            DTI_E(put)(b + i, two, n - i);                                                         \
        }                                                                                          \
    }
DTI_OPTIM_WHOLE_LIST(DTI_OPTIM_MEASURES)
#undef DTI_OPTIM_MEASURES

/* ---- random numbers: LANES counters at once */

/* Two lanes are 64 bits: the product of the first with m; the second in place of the first. */
DTI_INLINE DTI_NI DTI_N(mul_wide)(DTI_NI x, uint32_t m) {
#if DTI_LANES > 4
    return (DTI_NI)DTI_MM(mul_epu32)((DTI_MMI)x, DTI_MM(set1_epi32)((int)m));
#else
    return (DTI_NI)(((DTI_NW)x & UINT32_MAX) * m);
#endif
}
DTI_INLINE DTI_NI DTI_N(second)(DTI_NI x) {
    return (DTI_NI)((DTI_NW)x >> 32);
}
DTI_INLINE void DTI_N(philox_round)(DTI_NI c[4], DTI_NI k0, DTI_NI k1) {
    const DTI_NI a = DTI_N(mul_wide)(c[0], 0xD2511F53u), b = DTI_N(mul_wide)(c[2], 0xCD9E8D57u);
    c[0] = DTI_N(second)(b) ^ c[1] ^ k0;
    c[2] = DTI_N(second)(a) ^ c[3] ^ k1;
    c[1] = b;
    c[3] = a;
}

/* Words of 4 * LANES elements in their order, from counter `at`. Lane 4q + j holds counter at + j *
 * LANES/4 + q, so that turn4 puts the words in place. Rounds go over even and odd lanes separately:
 * of each 64 bits the first 32 count. */
DTI_INLINE void DTI_N(philox)(uint32_t *words, uint64_t seed, uint64_t at, uint32_t step,
                              uint32_t stream) {
    DTI_NI c[4], odd[4], more;
    for (int i = 0; i < DTI_LANES; i++)
        more[i] = i % 4 * (DTI_LANES / 4) + i / 4;
    c[0] = DTI_N(iadd)(DTI_N(iset1)((int32_t)(uint32_t)at), more);
    const DTI_NI high = DTI_N(iset1)((int32_t)(uint32_t)(at >> 32)), one = DTI_N(iset1)(1);
    c[1] = DTI_N(iselect)(DTI_N(ult)(c[0], more), DTI_N(iadd)(high, one), high); /* the carry */
    c[1] = DTI_N(iand)(c[1], DTI_N(iset1)(0x3FFFFFFF)); /* the element index wraps round */
    c[2] = DTI_N(iset1)((int32_t)step);
    c[3] = DTI_N(iset1)((int32_t)stream);
    for (int i = 0; i < 4; i++)
        odd[i] = DTI_N(second)(c[i]);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const DTI_NI x = DTI_N(iset1)((int32_t)k0), y = DTI_N(iset1)((int32_t)k1);
        DTI_N(philox_round)(c, x, y);
        DTI_N(philox_round)(odd, x, y);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++)
        c[i] = (DTI_NI)(((DTI_NW)c[i] & UINT32_MAX) | (DTI_NW)odd[i] << 32);
    DTI_N(turn4)(c);
    memcpy(words, c, sizeof c);
}

DTI_ISA_FUNCTION(V, philox, philox);
static void DTI_V(philox)(uint32_t *words, int64_t n, uint64_t seed, uint64_t index, uint32_t step,
                          uint32_t stream) {
    for (int64_t i = 0; i < n; i += 4 * DTI_LANES)
        DTI_N(philox)(words + i, seed, (index + (uint64_t)i) >> 2, step, stream);
}

DTI_ISA_FUNCTION(V, dropout, dropout);
static void DTI_V(dropout)(float *y, const float *x, int64_t n, const dti_dropout *d) {
    uint32_t words[256 + 64];
    const DTI_VF scale = DTI_V(set1)(d->scale), zero = DTI_V(set1)(0);
    const DTI_VI threshold = DTI_V(iset1)((int32_t)d->threshold);
    for (int64_t i = 0; i < n; i += 256) {
        const int64_t size = DTI_MIN(n - i, 256);
        const uint64_t index = d->index + (uint64_t)i, skip = index & 3; /* words of a counter */
        const int64_t drawn = ((int64_t)skip + size + 63) / 64 * 64;
        DTI_V(philox)(words, drawn, d->seed, index - skip, d->step, d->stream);
        for (int64_t j = 0; j < size && !d->threshold; j++)
            y[i + j] = (float)((int32_t)(words[(int64_t)skip + j] >> 9) * 2 - 8388607) * d->scale +
                       d->offset;
        if (!d->threshold)
            continue;
        for (int64_t j = 0; j < size; j += 16) {
            float bits[16];
            memcpy(bits, words + (int64_t)skip + j, sizeof bits);
            DTI_VM keep = DTI_V(ult)(DTI_V(bits)(DTI_V(load)(bits)), threshold);
            DTI_VF u = DTI_V(mul)(DTI_V(get)(x + i + j, size - j), scale);
            DTI_V(put)(y + i + j, DTI_V(select)(keep, u, zero), size - j);
        }
    }
}
