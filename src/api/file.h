/* ---- Weight files: safetensors -----------------------------------------------------------------
 *
 * What is read must be a regular file (a FIFO, a folder or a device is an IO error at once), of
 * which the header is checked before memory is taken for the rest; nothing is mapped. What is
 * written goes to a new file beside it, path.tmp.PID.RANDOM, which then takes its place. A file
 * that may not grow (ulimit -f) is an IO error. On Linux SIGXFSZ does not reach the application
 * then, unless dtrain was compiled with POSIX hidden (-std=c11 alone); elsewhere (macOS) it may,
 * so ignore it there: signal(SIGXFSZ, SIG_IGN). */

/* Writes all parameters as F32 under their names; no optimizer state. The file appears whole or not
 * at all; one of that name is replaced. Errors: IO, MEMORY, INVALID (NULL, or a step is under way),
 * DEVICE_LOST. */
DT_API dt_result dt_store_save(dt_store *store, const char *path);
/* Reads all parameters of the store; the file may hold more. F32, F16, BF16 and F64 are read.
 * Nothing is changed unless everything fits. Optimizer state is left as it is. Errors: IO, FORMAT,
 * INVALID (names the first parameter that is missing or has another shape or type; NULL; a step is
 * under way), MEMORY, DEVICE_LOST. */
DT_API dt_result dt_store_load(dt_store *store, const char *path);

/* Writes the whole state that training changes: parameters, buffers, moments, counts of steps, and
 * the number of steps, each tensor with a checksum. dt_store_load reads its parameters too. A
 * trainer has more: dt_trainer_save. Errors: as dt_store_save. */
DT_API dt_result dt_store_save_state(dt_store *store, const char *path);
/* Goes on from such a file, bit for bit; programs may be made before or after. The model must have
 * the same parameters and buffers, by name and shape, in any order, and what it trains the same
 * kinds of optimizers. Nothing is changed unless everything fits. Errors: IO, FORMAT (truncated, a
 * wrong checksum, not such a file), INVALID (names the first parameter that differs; a program
 * trains with another kind of optimizer; a step is under way; NULL; a trainer's store),
 * UNSUPPORTED, MEMORY, DEVICE_MEMORY, DEVICE_LOST. */
DT_API dt_result dt_store_load_state(dt_store *store, const char *path);

/* Any safetensors file, read whole. */
typedef struct dt_weights dt_weights;

/* One tensor of a file. Its pointers live until dt_weights_close. */
typedef struct dt_weight_info {
    const char *name;
    char dtype[8]; /* as in the file: "F32", "I64" */
    int rank;
    int64_t dim[8];
    const void *data; /* little-endian, not aligned */
    uint64_t bytes;
} dt_weight_info;

/* Reads and checks a file. Ownership: *out is yours; dt_weights_close ends it, before the context.
 * Errors, with *out NULL: INVALID (NULL), IO, FORMAT (not safetensors, truncated, sizes or offsets
 * that do not fit), MEMORY. */
DT_API dt_result dt_weights_open(dt_ctx *ctx, const char *path, dt_weights **out);
/* Frees it all. NULL is fine. */
DT_API void dt_weights_close(dt_weights *weights);
/* How many tensors the file has. */
DT_API int dt_weights_count(const dt_weights *weights);
/* Describes a tensor, index from 0 to dt_weights_count() - 1. Errors: INVALID (out of range). */
DT_API dt_result dt_weights_get(const dt_weights *weights, int index, dt_weight_info *info);
/* The index of the tensor of that name; -1 = none. */
DT_API int dt_weights_find(const dt_weights *weights, const char *name);
