/* Quantiles of the normal distribution in vectors of doubles: DTI_ND has DTI_LANES / 2 lanes. They
 * are base/rng.c's, bit for bit: the same operations in the same order. A p near an end (15 % of
 * all) needs a logarithm: those are gathered, so that all lanes do the same. A set without vectors
 * of FMA uses rng.c. */

DTI_ISA_FUNCTION(N, quantile, normal_quantile);
#if DTI_LANES == 4
static void DTI_N(normal_quantile)(double *z, const double *p, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        z[i] = dti_normal_quantile(p[i]);
}
#else

#define DTI_ND DTI_ISA(dti_nd)
#define DTI_NDU DTI_ISA(dti_ndu)
#define DTI_NDA DTI_ISA(dti_nda)
typedef double DTI_ND __attribute__((vector_size(DTI_LANES * 4)));
typedef uint64_t DTI_NDU __attribute__((vector_size(DTI_LANES * 4)));
typedef double DTI_NDA __attribute__((vector_size(DTI_LANES * 4), aligned(8), may_alias));

#define DTI_QUANTILE_LANES (DTI_LANES / 2)
#define DTI_QUANTILE_BLOCK 128

DTI_INLINE DTI_ND DTI_N(dfma)(DTI_ND x, DTI_ND y, DTI_ND z) {
    DTI_ND r = (DTI_ND)DTI_MM(fmadd_pd)((DTI_MMD)x, (DTI_MMD)y, (DTI_MMD)z);
    DTI_HIDE(r);
    return r;
}

DTI_INLINE DTI_ND DTI_N(dsqrt)(DTI_ND x) {
    DTI_ND r = (DTI_ND)DTI_MM(sqrt_pd)((DTI_MMD)x);
    DTI_HIDE(r);
    return r;
}

DTI_INLINE DTI_ND DTI_N(dset1)(double x) {
    return (DTI_ND){0} + x;
}

DTI_INLINE DTI_ND DTI_N(dload)(const double *x) {
    return *(const DTI_NDA *)x;
}

DTI_INLINE void DTI_N(dstore)(double *y, DTI_ND x) {
    *(DTI_NDA *)y = x;
}

/* A whole number below 2^52 as a double, exactly: the last bits of 2^52 + x, minus 2^52. */
DTI_INLINE DTI_ND DTI_N(dfrom)(DTI_NDU x) {
    DTI_ND r = (DTI_ND)(x | 0x4330000000000000u);
    DTI_HIDE(r);
    return r - 0x1p52;
}

DTI_INLINE DTI_ND DTI_N(dpoly8)(const double c[8], DTI_ND x) {
    DTI_ND sum = DTI_N(dset1)(c[7]);
    for (int k = 6; k >= 0; k--)
        sum = DTI_N(dfma)(sum, x, DTI_N(dset1)(c[k]));
    return sum;
}

/* dti_ln */
DTI_INLINE DTI_ND DTI_N(dln)(DTI_ND x) {
    const DTI_NDU bits = (DTI_NDU)x;
    DTI_ND m = (DTI_ND)((bits & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u);
    const DTI_NDU large = (DTI_NDU)(m > 1.4142135623730951);
    const DTI_ND half = m * 0.5;
    m = (DTI_ND)(((DTI_NDU)half & large) | ((DTI_NDU)m & ~large));
    const DTI_ND e = DTI_N(dfrom)((bits >> 52) + (large & 1)) - 1023.0;
    DTI_HIDE(m);
    const DTI_ND s = (m - 1.0) / (m + 1.0), ss = s * s, two = DTI_N(dset1)(2.0);
    DTI_ND sum = DTI_N(dset1)(0.0);
    for (int k = 23; k >= 3; k -= 2)
        sum = DTI_N(dfma)(sum, ss, DTI_N(dset1)(1.0 / k));
    DTI_ND low = e * DTI_LN2_LOW, scale = two * s * ss;
    DTI_HIDE(low);
    DTI_HIDE(scale);
    const DTI_ND small = DTI_N(dfma)(scale, sum, low);
    return DTI_N(dfma)(e, DTI_N(dset1)(DTI_LN2_HIGH), DTI_N(dfma)(two, s, small));
}

/* The quantile of p with |p - 1/2| <= 0.425. */
DTI_INLINE DTI_ND DTI_N(quantile_middle)(DTI_ND p) {
    const DTI_ND q = p - 0.5, r = DTI_N(dfma)(-q, q, DTI_N(dset1)(0.180625));
    DTI_ND z = q * DTI_N(dpoly8)(dti_quantile_middle[0], r);
    DTI_HIDE(z);
    return z / DTI_N(dpoly8)(dti_quantile_middle[1], r);
}

/* The others'; *far: lanes of all ones where neither holds, below 2e-11 or as near to 1. */
DTI_INLINE DTI_ND DTI_N(quantile_tail)(DTI_ND p, DTI_NDU *far) {
    const DTI_NDU low = (DTI_NDU)(p < 0.5), sign = ~low & 0x8000000000000000u;
    const DTI_ND other = 1.0 - p;
    const DTI_ND end = (DTI_ND)(((DTI_NDU)p & low) | ((DTI_NDU)other & ~low));
    DTI_ND r = DTI_N(dsqrt)(-DTI_N(dln)(end));
    *far = (DTI_NDU)(r > 5.0);
    r = r - 1.6;
    DTI_HIDE(r);
    const DTI_ND z =
        DTI_N(dpoly8)(dti_quantile_tail[0], r) / DTI_N(dpoly8)(dti_quantile_tail[1], r);
    return (DTI_ND)((DTI_NDU)z ^ 0x8000000000000000u ^ sign);
}

/* For a block; first the middle's formula, for all. */
static void DTI_N(quantile_block)(double *z, const double *p) {
    double end[DTI_QUANTILE_BLOCK + DTI_QUANTILE_LANES], tail[DTI_QUANTILE_LANES];
    uint64_t far[DTI_QUANTILE_LANES];
    int32_t at[DTI_QUANTILE_BLOCK + DTI_QUANTILE_LANES];
    int64_t count = 0;
    for (int64_t i = 0; i < DTI_QUANTILE_BLOCK; i += DTI_QUANTILE_LANES)
        DTI_N(dstore)(z + i, DTI_N(quantile_middle)(DTI_N(dload)(p + i)));
    for (int64_t i = 0; i < DTI_QUANTILE_BLOCK; i++) {
        end[count] = p[i];
        at[count] = (int32_t)i;
        count += !(fabs(p[i] - 0.5) <= 0.425);
    }
    for (int k = 0; k < DTI_QUANTILE_LANES; k++)
        end[count + k] = 0.01;
    for (int64_t i = 0; i < count; i += DTI_QUANTILE_LANES) {
        DTI_NDU beyond;
        DTI_N(dstore)(tail, DTI_N(quantile_tail)(DTI_N(dload)(end + i), &beyond));
        memcpy(far, &beyond, sizeof far);
        for (int64_t k = 0; k < DTI_QUANTILE_LANES && i + k < count; k++)
            z[at[i + k]] = far[k] ? dti_normal_quantile(end[i + k]) : tail[k];
    }
}

static void DTI_N(normal_quantile)(double *z, const double *p, int64_t n) {
    for (int64_t i = 0; i < n; i += DTI_QUANTILE_BLOCK) {
        const int64_t size = DTI_MIN(n - i, DTI_QUANTILE_BLOCK);
        double from[DTI_QUANTILE_BLOCK], to[DTI_QUANTILE_BLOCK];
        for (int64_t k = 0; k < DTI_QUANTILE_BLOCK; k++)
            from[k] = k < size ? p[i + k] : 0.5;
        DTI_N(quantile_block)(to, from);
        memcpy(z + i, to, (size_t)size * sizeof *z);
    }
}

#undef DTI_ND
#undef DTI_NDU
#undef DTI_NDA
#undef DTI_QUANTILE_LANES
#undef DTI_QUANTILE_BLOCK
#endif
