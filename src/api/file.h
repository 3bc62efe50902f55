/* ---- Weight files: safetensors
 * ------------------------------------------------------------------- */

/* Writes all parameters under their names. The file appears whole or not at all. Errors: IO,
 * MEMORY. */
DT_API dt_result dt_store_save(dt_store *store, const char *path);
/* Reads all parameters of the store; the file may hold more. F32, F16, BF16 and F64 are read.
 * Nothing is changed unless everything fits. Errors: IO, FORMAT, INVALID (names the first parameter
 * that is missing or has another shape), MEMORY. */
DT_API dt_result dt_store_load(dt_store *store, const char *path);

/* Any safetensors file, read whole. Pointers live until close. */
typedef struct dt_weights dt_weights;
typedef struct dt_weight_info {
    const char *name;
    char dtype[8]; /* as in the file: "F32", "I64" */
    int rank;
    int64_t dim[8];
    const void *data; /* little-endian, not aligned */
    uint64_t bytes;
} dt_weight_info;
DT_API dt_result dt_weights_open(dt_ctx *ctx, const char *path, dt_weights **out);
DT_API void dt_weights_close(dt_weights *weights);
DT_API int dt_weights_count(const dt_weights *weights);
DT_API dt_result dt_weights_get(const dt_weights *weights, int index, dt_weight_info *info);
DT_API int dt_weights_find(const dt_weights *weights, const char *name); /* -1 = none */
