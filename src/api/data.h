/* ---- Data: IDX files, shuffled batches ------------------------------------------------------- */

/* An array as it lies in the file, row-major. */
typedef struct dt_array {
    dt_ctx *ctx;
    int rank;
    int64_t dim[8];
    int element_bytes; /* 1: uint8 */
    size_t bytes;      /* of all elements */
    void *data;
} dt_array;

/* Reads an IDX file of unsigned bytes (MNIST's format), unpacked. Ownership: *out is yours;
 * free it with dt_array_free, before the context is destroyed. Errors, with *out empty: INVALID
 * (NULL), IO, FORMAT (not IDX, compressed, truncated, a size that contradicts the header, another
 * element type), MEMORY. */
DT_API dt_result dt_idx_load(dt_ctx *ctx, const char *path, dt_array *out);
/* Frees the data and clears the struct. NULL and an empty array are allowed. */
DT_API void dt_array_free(dt_array *array);

/* The three functions below allocate nothing, need no context, and do nothing if a pointer that
 * they need is NULL. Threads: any. */

/* Fills order[0 .. count) with a permutation of 0 .. count - 1 that depends only on count, seed and
 * epoch (Fisher-Yates, random numbers from Philox). */
DT_API void dt_shuffle(uint32_t *order, uint32_t count, uint64_t seed, uint64_t epoch);
/* dst[i, :] = src[order[i], :] * scale + offset for i in [0, rows): rows of `cols` bytes to f32.
 * order: NULL = 0, 1, 2, ...; the row numbers in it are not checked. */
DT_API void dt_rows_f32_from_u8(float *dst, const uint8_t *src, const uint32_t *order, size_t rows,
                                size_t cols, float scale, float offset);
/* The same for labels, to i32: dst[i, :] = src[order[i], :]. */
DT_API void dt_rows_i32_from_u8(int32_t *dst, const uint8_t *src, const uint32_t *order,
                                size_t rows, size_t cols);
