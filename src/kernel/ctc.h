/* Connectionist temporal classification's vector kernels; see src/op/families/ctc.c. */

/* y[s] = log(e^before[s] + e^before[s - 1] + e^(before[s - 2] + skip[s])) + x[s], of n cells;
 * before has two more elements before the first. */
typedef void dti_ctc_step_fn(float *y, const float *before, const float *skip, const float *x,
                             int64_t n);
/* y[s] = e^((a[s] - all) + (b[s] - x[s])), of n cells: may be in x's place. */
typedef void dti_ctc_share_fn(float *y, const float *a, const float *b, const float *x, float all,
                              int64_t n);
