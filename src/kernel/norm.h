/* Vector kernels of the normalisations. An operand with a step is an array where that is 1, and one
 * float where it is 0. Sums: two of 16 lanes alternate over blocks of 16 floats, then the tree of
 * simd_body.h; such runs are added in double, and so are runs of DTI_SUM_CHAIN rows of columns. */

/* sums += (sum of x - mean, sum of its squares) */
typedef void dti_norm_moment_fn(double sums[2], const float *x, int64_t n, float mean);
/* sums[0][j] += x[row * ld + j] - mean[j], sums[1][j] += its square, over rows, j < cols; there is
 * room for cols rounded up to 16 */
typedef void dti_norm_moments_fn(double *const sums[2], const float *x, const float *mean,
                                 int64_t rows, int64_t cols, int64_t ld);

/* y = (x - mean) * factor * w + b, then x < 0 ? 0 : x where `relu`. */
typedef struct dti_norm_line {
    const float *mean, *factor; /* `step` of both */
    const float *w, *b;         /* `affine_step` of the two; NULL: 1 and 0 */
    int step, affine_step;
    bool relu;
} dti_norm_line;
typedef void dti_norm_line_fn(float *y, const float *x, int64_t n, const dti_norm_line *l);

/* sums = (sum of dy * w, sum of dy * w * (x - mean)); w NULL: 1. */
typedef void dti_norm_dots_fn(double sums[2], const float *dy, const float *x, const float *w,
                              int64_t n, float mean);
/* db[j] += dy[j], dw[j] += dy[j] * (x[j] - mean) * factor; step: of mean and factor. */
typedef void dti_norm_columns_fn(float *dw, float *db, const float *dy, const float *x,
                                 const float *mean, const float *factor, int step, int64_t n);

/* dx = a * dy * w + b + c * (x - mean); w: an array or NULL for 1; step: of the others. */
typedef struct dti_norm_slope {
    const float *mean, *a, *b, *c, *w;
    int step;
} dti_norm_slope;
typedef void dti_norm_slope_fn(float *dx, const float *dy, const float *x, int64_t n,
                               const dti_norm_slope *s);
