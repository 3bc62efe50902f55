/* Pooling's vector kernels: n neighbouring windows, whole along the row, of kh x kw elements each.
 * Rows are x_row apart, windows `stride`. */

/* y[j] = the largest of window j, or NaN if there is one; at[j] = its place from the window's first
 * element: the first of equals, the last of NaNs. y or at may be NULL. */
typedef void dti_pool_max_fn(float *y, int32_t *at, const float *x, int64_t kh, int64_t kw,
                             int64_t x_row, int64_t stride, int64_t n);
/* y[j] = sum of window j, that of its rows' sums, divided by `count`; kh, kw <= DTI_SUM_CHAIN. */
typedef void dti_pool_mean_fn(float *y, const float *x, int64_t kh, int64_t kw, int64_t x_row,
                              int64_t stride, int64_t n, float count);
/* The adjoint of adjacent windows of 2 x 2. dx[0, 2 n) and dx[x_row ...] take dy where x is the
 * window's largest, else 0. relu: also 0 where that is not > 0. */
typedef void dti_pool_pairs_fn(float *dx, const float *dy, const float *x, int64_t x_row, int64_t n,
                               bool relu);
