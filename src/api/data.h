/* ---- Data: IDX files, shuffled batches ------------------------------------------------------- */

/* An array as a file has it, row-major. */
typedef struct dt_array {
    dt_ctx *ctx;
    int rank;
    int64_t dim[8];
    int element_bytes; /* 1: uint8 */
    size_t bytes;      /* of all elements */
    void *data;
} dt_array;

/* Reads an IDX file of unsigned bytes (MNIST's format), unpacked. Ownership: *out is yours;
 * dt_array_free ends it, before the context. Errors, with *out empty: INVALID (NULL), IO, FORMAT
 * (not IDX, gzip, truncated, a size that does not fit its header, another element type), MEMORY. */
DT_API dt_result dt_idx_load(dt_ctx *ctx, const char *path, dt_array *out);
/* Frees the data and empties the struct. NULL and an empty array are fine. */
DT_API void dt_array_free(dt_array *array);

/* The three below allocate nothing, know no context, and do nothing where order, dst or src is NULL
 * that they need. Threads: any. */

/* Fills order[0 .. count) with a permutation of 0 .. count-1 that depends on count, seed and epoch
 * alone (Fisher-Yates on Philox). */
DT_API void dt_shuffle(uint32_t *order, uint32_t count, uint64_t seed, uint64_t epoch);
/* dst[i, :] = src[order[i], :] * scale + offset for i in [0, rows): rows of `cols` bytes to f32.
 * order: NULL = 0, 1, 2, ...; its numbers are not checked. */
DT_API void dt_rows_f32_from_u8(float *dst, const uint8_t *src, const uint32_t *order, size_t rows,
                                size_t cols, float scale, float offset);
/* The same for labels, to i32: dst[i, :] = src[order[i], :]. */
DT_API void dt_rows_i32_from_u8(int32_t *dst, const uint8_t *src, const uint32_t *order,
                                size_t rows, size_t cols);
