/* Arrays of 16-bit floats to and from float. For kernels whose operands are stored in 16 bits and
 * computed in float. Pointers have any alignment; the arrays do not overlap. */

typedef void dti_widen_fn(float *y, const void *x, int64_t n);
/* To the nearest, ties to even; a NaN becomes the canonical one. */
typedef void dti_narrow_fn(void *y, const float *x, int64_t n);
/* To bf16, rounded up with the probability of the share that truncation would lose. Element i adds
 * 16 bits of words[i] from bit `shift` on. NaN and infinity stay, and finite values stay finite. */
typedef void dti_draw_fn(void *y, const float *x, int64_t n, const uint32_t *words, int shift);
