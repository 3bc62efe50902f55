/* ---- Weight files: safetensors -----------------------------------------------------------------
 *
 * Reading: the path must name a regular file (a FIFO, folder or device is an IO error at once). The
 * header is checked before memory is allocated for the rest; nothing is memory-mapped.
 * Writing: data goes to a new file beside the target, path.tmp.PID.RANDOM (of a long name the first
 * 64 bytes), which then replaces it. So a file appears complete or not at all. Every function that
 * saves does so:
 * - Links are followed and stay. One to a missing file makes that file, as an editor does.
 * - A folder, FIFO, socket or device is an IO error, by itself and behind a link.
 * - A replaced file keeps its permissions, and owner and group where the system permits it. A new
 *   file has the umask's. A read-only file is replaced too: that is its folder's right.
 * - Of several hard links only the one that is named gets the new file.
 * Windows gives a new file the rights of its folder, and does not replace a read-only one. With
 * POSIX hidden (-std=c11 alone) a link itself is replaced.
 * Hitting a file size limit (ulimit -f) is an IO error.
 * On Linux the SIGXFSZ that it raises does not reach the application, unless dtrain was compiled
 * with POSIX hidden (-std=c11 alone). Elsewhere (macOS) it may: call signal(SIGXFSZ, SIG_IGN)
 * there. */

/* Writes all parameters as F32 under their names, without optimizer state. A NaN or an infinity is
 * written, with one warning in the log that names the first, unless .allow_nonfinite is set; so in
 * each function that saves. Errors: IO, MEMORY, INVALID (NULL, or a step is under way),
 * DEVICE_LOST. */
DT_API dt_result dt_store_save(dt_store *store, const char *path);
/* The same of the parameters that match: see PATTERNS above. dt_store_load_matching reads
 * them. Errors: as dt_store_save; INVALID also where a pattern matches
 * none. */
DT_API dt_result dt_store_save_matching(dt_store *store, const char *path, const char *params);
/* dt_store_save of the averages (dt_optim_desc.average), under the parameters' names, as they are
 * used: buffers and what has no average are as they are. Errors: as dt_store_save; INVALID also
 * where no program of the store averages. */
DT_API dt_result dt_store_save_averaged(dt_store *store, const char *path);
/* Reads every parameter of the store from a file, which may contain further tensors. F32, F16, BF16
 * and F64 are accepted. Either everything fits and is loaded, or nothing changes. Optimizer state
 * is kept as it is. Errors: IO, FORMAT, INVALID (NULL; a step is under way; the first parameter
 * that is missing, has another shape or type, or holds a NaN, an infinity or an F64 too large for
 * F32: the text names it), MEMORY, DEVICE_LOST. */
DT_API dt_result dt_store_load(dt_store *store, const char *path);

/* Which parameters dt_store_load_matching reads, and under which names. {0}: all, under their
 * own. */
typedef struct dt_load_desc {
    const char *params; /* patterns of the store's names; NULL = "*" */
    /* Of those the ones that begin with `prefix`, which the file calls `file_prefix` and the rest:
     * with "encoder." and "model." the store's "encoder.fc.weight" is the file's "model.fc.weight".
     * NULL = "". */
    const char *prefix, *file_prefix;
    bool strict; /* each of them must be in the file */
    /* Accept NaN and infinities in the file; false: INVALID, unless the store has
     * dt_store_desc.allow_nonfinite. */
    bool allow_nonfinite;
} dt_load_desc;

/* Reads part of a file, or a file into part of a model: those parameters chosen by desc that the
 * file has. The others stay as they are; *loaded is the number read. Nothing changes unless
 * everything to be read fits. desc and loaded may be NULL. Errors: as dt_store_load; also INVALID
 * when the file has none of them, and when a pattern matches no parameter. */
DT_API dt_result dt_store_load_matching(dt_store *store, const char *path, const dt_load_desc *desc,
                                        int *loaded);

/* Writes everything that training changes: parameters, buffers, moments, step counts and the number
 * of steps, each tensor with a checksum. dt_store_load reads the parameters of such a file too. A
 * trainer has more state: use dt_trainer_save. Errors: as dt_store_save. */
DT_API dt_result dt_store_save_state(dt_store *store, const char *path);
/* Continues from such a file, bit for bit. Programs may be created before or after. The model must
 * have the same parameters and buffers (name and shape, in any order), and its trained parameters
 * the same kinds of optimizers. Nothing changes unless everything fits. Errors: IO, FORMAT
 * (truncated, a wrong checksum, not such a file; without dt_store_desc.allow_nonfinite a value that
 * is NaN or infinite), INVALID (names the first parameter that differs; a program trains
 * with another kind of optimizer; a step is under way; NULL; a trainer's store), UNSUPPORTED,
 * MEMORY, DEVICE_MEMORY, DEVICE_LOST. */
DT_API dt_result dt_store_load_state(dt_store *store, const char *path);

/* A safetensors file, read into memory. */
typedef struct dt_safetensors dt_safetensors;

/* A tensor of the file. Its pointers are valid until dt_safetensors_close. */
typedef struct dt_safetensors_tensor {
    const char *name;
    char dtype[16]; /* as in the file: "F32", "I64"; cut to 15 bytes */
    int rank;
    int64_t dim[8];
    const void *data; /* little-endian, not aligned */
    uint64_t bytes;
} dt_safetensors_tensor;

/* Reads and checks a file. Tensors may have any dtype and any values. Ownership: *out is yours;
 * close it before the context is destroyed. Errors, with *out NULL: INVALID (NULL), IO, FORMAT (not
 * safetensors, truncated, sizes or offsets that do not fit), MEMORY. */
DT_API dt_result dt_safetensors_open(dt_ctx *ctx, const char *path, dt_safetensors **out);
/* Frees the file's data. NULL is allowed. */
DT_API void dt_safetensors_close(dt_safetensors *weights);
/* How many tensors the file has. */
DT_API int dt_safetensors_count(const dt_safetensors *weights);
/* Describes a tensor, index from 0 to dt_safetensors_count() - 1. Errors: INVALID (out of range; a
 * tensor of more than 8 dimensions). */
DT_API dt_result dt_safetensors_get_tensor(const dt_safetensors *weights, int index,
                                           dt_safetensors_tensor *info);
/* The index of the tensor of that name; -1 = none: the error of who uses it says the name. */
DT_API int dt_safetensors_find(const dt_safetensors *weights, const char *name);
