/* Sums of arrays in a fixed order, for all-reduce. The order is a tree over leaves. n leaves are
 * split at the largest power of two below n; each side is summed by itself, then left + right. So
 * the bits depend only on the leaves, not on ranks, order of arrival or CPU. Nothing is fused or
 * reordered. */

/* The type that partial results have: f32 of 16-bit floats (sum, mean, product), i64 of integers'
 * mean, else the type itself. */
static uint8_t dti_fold_dtype(dt_dtype dtype, dt_comm_reduction reduction);

/* One operand: an array of `count` elements that holds the leaves of `span`. Its dtype is the
 * elements' own or dti_fold_dtype's. */
typedef struct dti_operand {
    const void *data;
    uint8_t dtype;
    dt_comm_span span;
} dti_operand;

/* out[i] = the reduction of the operands' element i, in the tree over their leaves, from
 * operands[0].span.first on. Operands ascend and cover each leaf once, each one an aligned subtree
 * (whole at some split); there is at least one.
 *
 * dtype: the elements' type. finish: false writes sum_dtype partials; true divides a mean by
 * `divisor` (leaves of the whole operation), rounds to dtype and makes every NaN the canonical one:
 * quiet, positive, no payload. Of a NaN in partials only that it is one is promised. Floats: a mean
 * is divided in the sum's type. min and max are NaN where an operand is; of -0 and +0 they give the
 * one further left. Integers: sums and products wrap around; a mean is the int64 sum (of int64 it
 * wraps) divided, cut towards zero. out may be an operand's data, if its elements have at least the
 * bytes of out's; no other overlap. Any alignment; never allocates; at most 64 KiB of stack. To be
 * called between dti_fp_enter and dti_fp_leave. */
static void dti_fold(void *out, const dti_operand *operands, uint32_t operand_count, uint64_t count,
                     dt_dtype dtype, dt_comm_reduction reduction, bool finish, uint32_t divisor);
/* bf16 to float32; no overlap. */
static void dti_fold_widen(float *out, const uint16_t *in, size_t count);
