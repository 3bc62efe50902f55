/* Flat kernels over contiguous floats: elementwise maps, rows, columns, optimizers, dropout. No
 * pointer needs alignment; a destination may be one of the sources unless a line says otherwise.
 * Sum-order class "16-lane rows": four sums of 16 lanes alternate over blocks of 16 floats; they
 * are added as (0 + 2) + (1 + 3), then the lanes as the tree of simd_body.h. That is a run of up to
 * 64 * DTI_SUM_CHAIN floats; the sums of runs are added in double, in their order. */

/* The number of floats that are added in a lane or a column before double takes over. So the error
 * of a sum of any length is at most about (DTI_SUM_CHAIN + 8) 2^-24 of the addends' absolute
 * values. */
#define DTI_SUM_CHAIN 32

/* The elementwise functions' numbers. */
#define DTI_X(ID, name, slope) DTI_U_##ID,
enum { DTI_UNARY_ROWS(DTI_X, DTI_X, DTI_X) DTI_U_COUNT };
#undef DTI_X
#define DTI_X(ID, name) DTI_B_##ID,
enum { DTI_BINARY_LIST(DTI_X) DTI_B_COUNT };
#undef DTI_X

/* y = f(x); p0, p1: the function's parameters (map_body.h). */
typedef void dti_unary_fn(float *y, const float *x, int64_t n, float p0, float p1);
/* dx = dy * f'(x) */
typedef void dti_unary_grad_fn(float *dx, const float *x, const float *dy, int64_t n, float p0,
                               float p1);
/* y = f(a, b); a step of 0 says that the operand is one float, else 1. */
typedef void dti_binary_fn(float *y, const float *a, int a_step, const float *b, int b_step,
                           int64_t n);

typedef float dti_fold_fn(const float *x, int64_t n);
typedef uint32_t dti_largest_fn(const float *x, int64_t n);
typedef void dti_row_fn(float *y, const float *x, int64_t n);
typedef void dti_row_grad_fn(float *dx, const float *y, const float *dy, int64_t n);
/* sums[j] += sum over rows of x[row * ld + j], j < cols: runs of DTI_SUM_CHAIN rows, so a range of
 * columns may be cut anywhere. There is room for cols rounded up to 16. */
typedef void dti_col_sum_fn(double *sums, const float *x, int64_t rows, int64_t cols, int64_t ld);
/* y[i] = sums[i] as a float, times scale; sums are read up to n rounded up to 16. */
typedef void dti_narrow_sums_fn(float *y, const double *sums, int64_t n, float scale);
/* y += a * x */
typedef void dti_axpy_fn(float *y, float a, const float *x, int64_t n);

/* The values that all blocks of a parameter share in a step; see shaders/lib/optim_body.h. */
typedef struct dti_optim_rates_f32 {
    float words[DTI_GROUP_WORDS];
    float constants[DTI_OPTIM_CONSTANTS];
    float t;           /* steps before this one */
    float clip, limit; /* g = g * clip, then clamped to +-limit where limit > 0 */
} dti_optim_rates_f32;
/* Sets the constants from words and t, but for the share. */
typedef void dti_optim_constants_fn(dti_optim_rates_f32 *r);
/* Updates v[0], n weights, and the moments v[1] ... by the gradient g; v[i] may be NULL: it has no
 * such moment. */
typedef void dti_optim_update_fn(float *const v[DTI_OPTIM_VALUES], const float *g, int64_t n,
                                 const dti_optim_rates_f32 *r);
/* Measures n elements, to a and b; changes nothing else (optim_whole_body.h). */
typedef void dti_optim_measure_fn(float *const v[DTI_OPTIM_VALUES], const float *g, int64_t n,
                                  const dti_optim_rates_f32 *r, float *a, float *b);

/* Element i draws word (index + i) & 3 of Philox4x32-10 at counter ((index + i) >> 2, step, stream)
 * under `seed`, and is kept where that is below `threshold`. */
typedef struct dti_dropout {
    uint64_t seed, index; /* index: of the run's first element */
    uint32_t step, stream, threshold;
    float scale, offset;
} dti_dropout;
/* y = keep ? x * scale : 0; the gradient is the same map of dy. A threshold of 0: y = the word as
 * an odd number between +-2^23, times scale, a power of 2, + offset: exact. x is not read. */
typedef void dti_dropout_fn(float *y, const float *x, int64_t n, const dti_dropout *d);
/* words[0, n) = the random words themselves, n a multiple of 4 * 16, index one of 4. */
typedef void dti_philox_fn(uint32_t *words, int64_t n, uint64_t seed, uint64_t index, uint32_t step,
                           uint32_t stream);
/* z[i] = dti_normal_quantile(p[i]), the same bits. */
typedef void dti_quantile_fn(double *z, const double *p, int64_t n);
