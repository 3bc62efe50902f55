/* Arrays of 16-bit floats to and from float, for kernels whose operands are stored in 16 bits and
 * computed in float. Pointers have any alignment; the arrays do not overlap. */

typedef void dti_widen_fn(float *y, const void *x, int64_t n);
/* To the nearest, ties to even; a NaN becomes the canonical one. */
typedef void dti_narrow_fn(void *y, const float *x, int64_t n);
