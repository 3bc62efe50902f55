/* The kernels of norm.h for one instruction set: sums of rows on 16 lanes. */

/* The first n lanes of x; the others 0. */
DTI_INLINE DTI_VF DTI_V(first)(DTI_VF x, int64_t n) {
    if (n >= 16)
        return x;
    float t[16];
    DTI_V(store)(t, x);
    return DTI_V(load_n)(t, (int)n);
}

/* Element i of an operand with a step, as a vector. */
DTI_INLINE DTI_EF DTI_E(operand)(const float *p, int step, int64_t i, int64_t left) {
    return step ? DTI_E(get)(p + i, left) : DTI_E(set1)(*p);
}

DTI_INLINE void DTI_V(run_moment)(double sums[2], const float *x, int64_t n, const DTI_VF shift) {
    DTI_VF s0 = DTI_V(set1)(0), s1 = s0, d0 = s0, d1 = s0;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        DTI_VF u = DTI_V(sub)(DTI_V(load)(x + i), shift);
        DTI_VF v = DTI_V(sub)(DTI_V(load)(x + i + 16), shift);
        d0 = DTI_V(add)(d0, u);
        d1 = DTI_V(add)(d1, v);
        s0 = DTI_V(fma)(u, u, s0);
        s1 = DTI_V(fma)(v, v, s1);
    }
    for (; i < n; i += 16) {
        DTI_VF u = DTI_V(first)(DTI_V(sub)(DTI_V(get)(x + i, n - i), shift), n - i);
        d0 = DTI_V(add)(d0, u);
        s0 = DTI_V(fma)(u, u, s0);
    }
    sums[0] += (double)DTI_V(sum)(DTI_V(add)(d0, d1));
    sums[1] += (double)DTI_V(sum)(DTI_V(add)(s0, s1));
}
DTI_ISA_FUNCTION(V, norm_moment, norm_moment);
static void DTI_V(norm_moment)(double sums[2], const float *x, int64_t n, float mean) {
    const DTI_VF shift = DTI_V(set1)(mean);
    for (int64_t i = 0; i < n; i += 32 * DTI_SUM_CHAIN)
        DTI_V(run_moment)(sums, x + i, DTI_MIN(n - i, 32 * DTI_SUM_CHAIN), shift);
}

DTI_INLINE void DTI_V(run_moments)(double *sum, double *square, const float *x, int64_t rows,
                                   int64_t n, int64_t ld, const DTI_VF shift) {
    DTI_VF d = DTI_V(set1)(0), s = d;
    for (int64_t i = 0; i < rows; i++) {
        DTI_VF u = DTI_V(sub)(DTI_V(get)(x + i * ld, n), shift);
        d = DTI_V(add)(d, u);
        s = DTI_V(fma)(u, u, s);
    }
    DTI_V(add_wide)(sum, d);
    DTI_V(add_wide)(square, s);
}
DTI_ISA_FUNCTION(V, norm_moments, norm_moments);
static void DTI_V(norm_moments)(double *const sums[2], const float *x, const float *mean,
                                int64_t rows, int64_t cols, int64_t ld) {
    for (int64_t j = 0; j < cols; j += 16) {
        const DTI_VF shift = DTI_V(get)(mean + j, cols - j);
        for (int64_t i = 0; i < rows; i += DTI_SUM_CHAIN)
            DTI_V(run_moments)
        (sums[0] + j, sums[1] + j, x + i * ld + j, DTI_MIN(rows - i, DTI_SUM_CHAIN), cols - j, ld,
         shift);
    }
}

DTI_ISA_FUNCTION(V, norm_line, norm_line);
static void DTI_V(norm_line)(float *y, const float *x, int64_t n, const dti_norm_line *l) {
    const DTI_EF zero = DTI_E(set1)(0);
    for (int64_t i = 0; i < n; i += DTI_E_LANES) {
        const int64_t left = n - i;
        DTI_EF u = DTI_E(sub)(DTI_E(get)(x + i, left), DTI_E(operand)(l->mean, l->step, i, left));
        u = DTI_E(mul)(u, DTI_E(operand)(l->factor, l->step, i, left));
        if (l->b)
            u = DTI_E(fma)(u, DTI_E(operand)(l->w, l->affine_step, i, left),
                           DTI_E(operand)(l->b, l->affine_step, i, left));
        else if (l->w)
            u = DTI_E(mul)(u, DTI_E(operand)(l->w, l->affine_step, i, left));
        if (l->relu)
            u = DTI_E(select)(DTI_E(lt)(u, zero), zero, u);
        DTI_E(put)(y + i, u, left);
    }
}

DTI_INLINE void DTI_V(run_dots)(double sums[2], const float *dy, const float *x, const float *w,
                                int64_t n, const DTI_VF shift) {
    DTI_VF a[2] = {DTI_V(set1)(0), DTI_V(set1)(0)}, b[2] = {a[0], a[0]};
    for (int64_t i = 0; i < n; i += 32)
        for (int64_t j = 0, at = i; j < 2 && at < n; j++, at += 16) {
            DTI_VF g = DTI_V(get)(dy + at, n - at); /* 0 past the end */
            if (w)
                g = DTI_V(mul)(g, DTI_V(get)(w + at, n - at));
            a[j] = DTI_V(add)(a[j], g);
            b[j] = DTI_V(fma)(g, DTI_V(sub)(DTI_V(get)(x + at, n - at), shift), b[j]);
        }
    sums[0] += (double)DTI_V(sum)(DTI_V(add)(a[0], a[1]));
    sums[1] += (double)DTI_V(sum)(DTI_V(add)(b[0], b[1]));
}
DTI_ISA_FUNCTION(V, norm_dots, norm_dots);
static void DTI_V(norm_dots)(double sums[2], const float *dy, const float *x, const float *w,
                             int64_t n, float mean) {
    const DTI_VF shift = DTI_V(set1)(mean);
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < n; i += 32 * DTI_SUM_CHAIN)
        DTI_V(run_dots)
    (sums, dy + i, x + i, w ? w + i : NULL, DTI_MIN(n - i, 32 * DTI_SUM_CHAIN), shift);
}

DTI_ISA_FUNCTION(V, norm_columns, norm_columns);
static void DTI_V(norm_columns)(float *dw, float *db, const float *dy, const float *x,
                                const float *mean, const float *factor, int step, int64_t n) {
    for (int64_t i = 0; i < n; i += DTI_E_LANES) {
        const int64_t left = n - i;
        DTI_EF g = DTI_E(get)(dy + i, left);
        DTI_EF u = DTI_E(sub)(DTI_E(get)(x + i, left), DTI_E(operand)(mean, step, i, left));
        u = DTI_E(mul)(u, DTI_E(operand)(factor, step, i, left));
        DTI_E(put)(dw + i, DTI_E(fma)(g, u, DTI_E(get)(dw + i, left)), left);
        DTI_E(put)(db + i, DTI_E(add)(DTI_E(get)(db + i, left), g), left);
    }
}

DTI_ISA_FUNCTION(V, norm_slope, norm_slope);
static void DTI_V(norm_slope)(float *dx, const float *dy, const float *x, int64_t n,
                              const dti_norm_slope *s) {
    for (int64_t i = 0; i < n; i += DTI_E_LANES) {
        const int64_t left = n - i;
        DTI_EF g = DTI_E(get)(dy + i, left);
        if (s->w)
            g = DTI_E(mul)(g, DTI_E(get)(s->w + i, left));
        DTI_EF u = DTI_E(sub)(DTI_E(get)(x + i, left), DTI_E(operand)(s->mean, s->step, i, left));
        g = DTI_E(fma)(g, DTI_E(operand)(s->a, s->step, i, left),
                       DTI_E(operand)(s->b, s->step, i, left));
        DTI_E(put)(dx + i, DTI_E(fma)(u, DTI_E(operand)(s->c, s->step, i, left), g), left);
    }
}
