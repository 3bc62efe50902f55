/* Random numbers: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
 * as 1, 2, 3" (SC'11). Counter-based: a number is a function of (key, counter, stream), so any
 * thread, replica or GPU makes the same one. The normal comes from one uniform by inversion
 * (Wichura's AS 241). The logarithm is our own, and every product that is added to is an fma(). The
 * C library's log and the compiler's contractions would differ between machines. */

static dti_u32x4 dti_philox(uint64_t key, uint64_t counter, uint64_t stream_and_step) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)stream_and_step, c3 = (uint32_t)(stream_and_step >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* the golden ratio, and below sqrt(3) - 1: the paper's Weyl steps */
        k1 += 0xBB67AE85u;
    }
    return (dti_u32x4){{c0, c1, c2, c3}};
}

/* Of a counter's words. */
static uint64_t dti_philox_53(uint64_t key, uint64_t counter, uint64_t stream) {
    return dti_bits53(dti_philox(key, counter, stream).v);
}

static double dti_uniform01(uint64_t key, uint64_t counter, uint64_t stream) {
    return dti_uniform_of(dti_philox_53(key, counter, stream));
}

#define DTI_LN2_HIGH 0x1.62e42fefa0000p-1 /* e times it is exact */
#define DTI_LN2_LOW 0x1.cf79abc9e3b3ap-40

/* |s| < 0.172 below: the next term is below 2^-60 of the first. */
static const double dti_ln_terms[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                                      1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};

/* The natural logarithm of a normal x > 0 to about one unit in the last place. x = m * 2^e with m
 * in [sqrt(1/2), sqrt(2)); log(m) = 2 atanh(s), s = (m - 1) / (m + 1), by its series in s*s. */
static double dti_ln(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    bits = (bits & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double s = (m - 1) / (m + 1), ss = s * s, sum = 0;
    for (size_t k = 0; k < DTI_COUNT(dti_ln_terms); k++)
        sum = fma(sum, ss, dti_ln_terms[k]);
    double small = fma(2 * s * ss, sum, (double)e * DTI_LN2_LOW);
    return fma((double)e, DTI_LN2_HIGH, fma(2, s, small));
}

/* e^x by halving x, Taylor's series, squaring; a few units in the last place for |x| < 700. */
static double dti_exp(double x) {
    if (isnan(x) || x < -700.0)
        return isnan(x) ? x : 0.0;
    x = DTI_MIN(x, 700.0);
    double sum = 1.0;
    x *= 0x1p-11;
    for (int k = 10; k > 0; k--)
        sum = fma(sum, x / k, 1.0);
    for (int k = 0; k < 11; k++)
        sum *= sum;
    return sum;
}

static double dti_poly8(const double c[8], double x) {
    double sum = c[7];
    for (int k = 6; k >= 0; k--)
        sum = fma(sum, x, c[k]);
    return sum;
}

/* Numerators and denominators by where p lies: in the middle, towards an end, at the very end. */
static const double dti_quantile_middle[2][8] = {
    {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
     1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
     3.3430575583588128105e4, 2.5090809287301226727e3},
    {1, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
     5.2264952788528545610e3}};
static const double dti_quantile_tail[2][8] = {
    {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
     3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
     2.27238449892691845833e-2, 7.74545014278341407640e-4},
    {1, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
     1.05075007164441684324e-9}};
static const double dti_quantile_far[2][8] = {
    {6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
     2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
     2.71155556874348757815e-5, 2.01033439929228813265e-7},
    {1, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
     2.04426310338993978564e-15}};

/* The quantile of the normal distribution, 0 < p < 1: M. J. Wichura, "Algorithm AS 241: the
 * percentage points of the normal distribution", Applied Statistics 37 (1988), PPND16. */
static double dti_normal_quantile(double p) {
    double q = p - 0.5;
    if (fabs(q) <= 0.425) {
        double r = fma(-q, q, 0.180625);
        return q * dti_poly8(dti_quantile_middle[0], r) / dti_poly8(dti_quantile_middle[1], r);
    }
    double r = sqrt(-dti_ln(q < 0 ? p : 1 - p));
    const double(*c)[8] = r <= 5 ? dti_quantile_tail : dti_quantile_far;
    r -= r <= 5 ? 1.6 : 5;
    double z = dti_poly8(c[0], r) / dti_poly8(c[1], r);
    return q < 0 ? -z : z;
}

/* 52 bits and a half step: never 0 or 1, and exact. */
static double dti_normal(uint64_t key, uint64_t counter, uint64_t stream) {
    return dti_normal_quantile(dti_normal_p_of(dti_philox_53(key, counter, stream)));
}
