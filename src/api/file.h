/* ---- Weight files: safetensors -----------------------------------------------------------------
 *
 * Reading. The path must name a regular file. A FIFO, folder or device is an IO error at once. The
 * header is checked before memory is allocated for the rest. Nothing is memory-mapped.
 *
 * Writing. Every function that saves writes a new file beside the target: path.tmp.PID.RANDOM (of a
 * long name the first 64 bytes). The new file then replaces the target. So a file appears
 * completely or not at all.
 * - Links are followed and stay. A link to a missing file creates that file.
 * - A folder, FIFO, socket or device is an IO error, also as the target of a link.
 * - A replaced file keeps its permissions, and owner and group where the system permits it. A new
 *   file has those of the umask.
 * - A read-only file is replaced, too: the permissions of its folder decide.
 * - Of several hard links only the one that is named gets the new file.
 *
 * Windows: a new file gets the permissions of its folder. A read-only file is not replaced.
 *
 * Without POSIX (-std=c11, which hides it): a link itself is replaced.
 *
 * A file size limit (ulimit -f) is an IO error. On Linux the application does not receive the
 * SIGXFSZ of it, unless POSIX is hidden (-std=c11). On other systems (macOS) it may: call
 * signal(SIGXFSZ, SIG_IGN) there. */

/* Writes all parameters as F32 under their names. dt_store_save_state writes optimizer state, too.
 *
 * NaN and infinities: they are written, in this and every function that saves. One warning in the
 * log names the first, unless .allow_nonfinite is set.
 *
 * Errors: IO, MEMORY, INVALID (NULL, or a step is in progress), DEVICE_LOST. */
DT_API dt_result dt_store_save(dt_store *store, const char *path);
/* Writes the parameters that match. dt_store_load_matching reads them.
 * params: see PATTERNS above.
 * Errors: as dt_store_save; INVALID also if a pattern matches no parameter. */
DT_API dt_result dt_store_save_matching(dt_store *store, const char *path, const char *params);
/* Writes the averages of the parameters (dt_optim_desc.average) under the parameters' names.
 * Buffers, and parameters without an average, are written as they are. A program with .averaged
 * uses the same values.
 * Errors: as dt_store_save; INVALID also if no program of the store averages. */
DT_API dt_result dt_store_save_averaged(dt_store *store, const char *path);
/* Reads every parameter of the store from a file of F32, F16, BF16 or F64. The file may have other
 * tensors, too. Nothing changes unless everything fits. Optimizer state is not touched.
 * Errors: IO, FORMAT, INVALID (NULL; a step is in progress; a parameter that is missing in the
 * file, or has another shape or type there; a NaN or an infinity, without
 * dt_store_desc.allow_nonfinite; an F64 too large for F32), MEMORY, DEVICE_LOST. The text names the
 * first such parameter. */
DT_API dt_result dt_store_load(dt_store *store, const char *path);

/* Selects the parameters that dt_store_load_matching reads, and their names in the file. {0}: all,
 * under their own names. */
typedef struct dt_load_desc {
    const char *params; /* patterns of names in the store; NULL = "*" */
    /* Read only names that begin with prefix; the file has file_prefix in its place. "encoder." and
     * "model.": "encoder.fc.weight" is "model.fc.weight" in the file. NULL = "". */
    const char *prefix, *file_prefix;
    bool strict; /* every selected parameter must be in the file */
    /* Accept NaN and infinities. false: INVALID, unless dt_store_desc.allow_nonfinite is set. */
    bool allow_nonfinite;
} dt_load_desc;

/* Reads part of a file, or a file into part of a model: the selected parameters that the file has.
 * Others do not change. Nothing changes unless everything to be read fits.
 * desc: NULL = {0}.
 * loaded: receives the number of parameters that were read. May be NULL.
 * Errors: as dt_store_load; INVALID also if the file has none of them, or if a pattern matches no
 * parameter. */
DT_API dt_result dt_store_load_matching(dt_store *store, const char *path, const dt_load_desc *desc,
                                        int *loaded);

/* Writes everything that training changes: parameters, buffers, optimizer moments, step counts and
 * the number of steps. Each tensor has a checksum. dt_store_load reads the parameters of such a
 * file, too.
 * A trainer has more state: use dt_trainer_save for it.
 * Errors: as dt_store_save. */
DT_API dt_result dt_store_save_state(dt_store *store, const char *path);
/* Continues from a file of dt_store_save_state, bit for bit. Programs may be created before or
 * after. Nothing changes unless everything fits. The model must have the same parameters and
 * buffers (name and shape, in any order). Trained parameters must have the same kinds of
 * optimizers.
 * Errors: IO, FORMAT (truncated; a wrong checksum; another kind of file; a NaN or infinity, without
 * dt_store_desc.allow_nonfinite), INVALID (NULL; a step is in progress; a trainer's store; a
 * parameter that differs, with its name; a program that trains with another kind of optimizer),
 * UNSUPPORTED, MEMORY, DEVICE_MEMORY, DEVICE_LOST. */
DT_API dt_result dt_store_load_state(dt_store *store, const char *path);

/* A safetensors file in memory, with tensors of any type. dt_store_load reads the weights of a
 * model. */
typedef struct dt_safetensors dt_safetensors;

/* A tensor of a file. Its pointers are valid until dt_safetensors_close. */
typedef struct dt_safetensors_tensor {
    const char *name; /* as in the file */
    char dtype[16];   /* as in the file: "F32", "I64"; cut to 15 bytes */
    int rank;         /* number of dimensions */
    int64_t dim[8];   /* their sizes */
    const void *data; /* little-endian, not aligned */
    uint64_t bytes;   /* bytes of data */
} dt_safetensors_tensor;

/* Reads and checks a file. Tensors may have any dtype and any values.
 * Ownership: *out is yours. Close it before you destroy the context.
 * Errors, with *out NULL: INVALID (NULL), IO, FORMAT (not safetensors, truncated, sizes or offsets
 * that do not fit), MEMORY. */
DT_API dt_result dt_safetensors_open(dt_ctx *ctx, const char *path, dt_safetensors **out);
/* Frees the file's data. NULL is allowed. */
DT_API void dt_safetensors_close(dt_safetensors *file);
/* Returns the number of tensors in the file. */
DT_API int dt_safetensors_count(const dt_safetensors *file);
/* Describes a tensor.
 * index: 0 to dt_safetensors_count() - 1.
 * Errors: INVALID (NULL, index out of range, a tensor of more than 8 dimensions). */
DT_API dt_result dt_safetensors_get_tensor(const dt_safetensors *file, int index,
                                           dt_safetensors_tensor *info);
/* Returns the index of the tensor of that name, or -1. The error of a call with that -1 names the
 * missing tensor. */
DT_API int dt_safetensors_find(const dt_safetensors *file, const char *name);
