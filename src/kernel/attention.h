/* Vector kernels of attention, on rows of scores. */

/* Transposes: dst[c * ld + i] = src[i * row + c], i < rows, c < cols, and zeros up to a multiple of
 * 16 rows; ld is at least that. */
typedef void dti_turn_fn(float *dst, int64_t ld, const float *src, int64_t row, int64_t rows,
                         int64_t cols);
/* s = e^(s - m), where m becomes the larger of m and the largest s. sum = sum * f + the sum of s;
 * returns f = e^(old m - m). If m is -infinity: s = 0. */
typedef float dti_attention_row_fn(float *s, int64_t n, float *m, double *sum);
/* p = e^(s - largest - log_sum), in place. */
typedef void dti_attention_weights_fn(float *s, int64_t n, float largest, float log_sum);
/* ds = p * (ds - mean), in place. */
typedef void dti_attention_slope_fn(float *ds, const float *p, int64_t n, float mean);
