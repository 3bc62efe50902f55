/* Flat kernels over contiguous floats: elementwise maps, rows, columns, optimizers, dropout. No
 * pointer needs alignment; a destination may be one of the sources unless a line says otherwise.
 * Sum-order class "16-lane rows": four sums of 16 lanes take turns over blocks of 16 floats; they
 * are added as (0 + 2) + (1 + 3), then the lanes as the tree of simd_body.h. */

/* y = f(x); p0, p1: the function's parameters (unary_list.h). */
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
/* y[j] (+)= sum over rows of x[row * ld + j], j < cols: serially, so a range of columns may be cut
 * anywhere. y must not overlap x. */
typedef void dti_col_sum_fn(float *y, const float *x, int64_t rows, int64_t cols, int64_t ld,
                            bool accumulate);
/* y += a * x */
typedef void dti_axpy_fn(float *y, float a, const float *x, int64_t n);

/* Both optimizers first do g = g * clip, then clamp g to +-limit where limit > 0. */
typedef struct dti_sgd {
    float lr, momentum, dampening, weight_decay, clip, limit;
    bool nesterov;
    bool first; /* m = g, whatever the dampening */
} dti_sgd;
/* torch.optim.SGD; m may be NULL where momentum is 0. */
typedef void dti_sgd_fn(float *p, const float *g, float *m, int64_t n, const dti_sgd *s);

typedef struct dti_adam {
    float lr, beta1, beta2, eps, weight_decay, clip, limit;
    float one_minus_beta1, one_minus_beta2; /* the caller's, from double: 1 - beta loses digits */
    float bias1, bias2_sqrt;                /* 1 - beta1^t, sqrt(1 - beta2^t) */
    bool decoupled; /* AdamW: p *= 1 - lr * weight_decay; else g += wd * p */
} dti_adam;
/* torch.optim.Adam and AdamW (without amsgrad and maximize). */
typedef void dti_adam_fn(float *p, const float *g, float *m, float *v, int64_t n,
                         const dti_adam *a);

/* Element i draws word (index + i) & 3 of Philox4x32-10 at counter ((index + i) >> 2, step, stream)
 * under `seed`, and is kept where that is below `threshold`. */
typedef struct dti_dropout {
    uint64_t seed, index; /* index: of the run's first element */
    uint32_t step, stream, threshold;
    float scale;
} dti_dropout;
/* y = keep ? x * scale : 0; the gradient is the same map of dy. */
typedef void dti_dropout_fn(float *y, const float *x, int64_t n, const dti_dropout *d);
/* words[0, n) = the random words themselves, n a multiple of 4 * 16, index one of 4. */
typedef void dti_philox_fn(uint32_t *words, int64_t n, uint64_t seed, uint64_t index, uint32_t step,
                           uint32_t stream);
