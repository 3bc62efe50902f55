/* ---- Weight files: safetensors
 *
 * Reading. A FIFO, folder or device is an IO error. The header is checked before memory is
 * allocated for the rest.
 *
 * Writing. Every function that saves writes a new file beside the target: path.tmp.PID.RANDOM (of a
 * long name the first 64 bytes). It then replaces the target.
 * - Links are followed and stay, also one to a missing file.
 * - A folder, FIFO, socket or device is an IO error.
 * - A replaced file keeps its permissions, and owner and group where the system permits it.
 * - A read-only file is replaced, too: the permissions of its folder decide.
 * - Of several hard links only the one that is named gets the new file.
 *
 * Windows: a new file gets the permissions of its folder. A read-only file is not replaced. Without
 * POSIX (-std=c11 hides it) a link itself is replaced.
 *
 * A file size limit (ulimit -f) is an IO error. On macOS, or if POSIX is hidden, SIGXFSZ may come
 * first: call signal(SIGXFSZ, SIG_IGN). */

/* Writes all parameters under their names, as they are stored: F32, or BF16 with .parameter_dtype.
 * NaN and infinities are written, in this and every function that saves. One warning in the log
 * names the first, unless .allow_nonfinite is set.
 * Errors: IO, MEMORY, INVALID (an open step), DEVICE_LOST. */
DT_API dt_result dt_store_save(dt_store *store, const char *path);

/* What a file gets. {0}: all parameters, as they are stored. */
typedef struct dt_save_desc {
    const char *params; /* patterns of names in the store; NULL = "*" */
    /* Write averages of parameters (dt_optim_desc.average) under the parameters' names. Buffers,
     * and parameters without an average, are written as they are. */
    bool averaged;
    /* DT_F32, DT_BF16 or DT_F16: rounded to nearest even, a NaN as the quiet one without a payload.
     * A finite value that would round to infinity (F16: from 65520 on) is INVALID. */
    dt_dtype dtype;
    /* transformers' max_shard_size: most bytes of tensors in a file, of which one may have more.
     * path is then a folder, and is made. 0: path is one file. */
    uint64_t max_file_bytes;
} dt_save_desc;

/* Writes the selected parameters. Half of the bytes with .dtype = DT_BF16, which HF's and torch's
 * readers know. dt_store_load reads every such file.
 *
 * With .max_file_bytes the folder gets model-00001-of-00003.safetensors and so on, and
 * model.safetensors.index.json. If one file is enough, it gets model.safetensors only. Such files
 * of an earlier saving are replaced. Until the last is written, the folder has no index.
 * desc: NULL = {0}.
 * Errors: as dt_store_save; INVALID also if no program of the store averages, or for a value that
 * .dtype cannot hold, with its parameter. Then no file is written. */
DT_API dt_result dt_store_save_matching(dt_store *store, const char *path,
                                        const dt_save_desc *desc);
/* Reads every parameter of the store from a file of F32, F16, BF16 or F64. The file may have other
 * tensors, too. path may also be an index of several files, or a folder: see dt_safetensors_open.
 * Nothing changes unless everything fits. Optimizer state is not touched.
 * Errors: IO, FORMAT, INVALID (an open step; with the parameter: one that is missing in the file,
 * or has another shape or type there; a NaN or an infinity, without dt_store_desc.allow_nonfinite;
 * an F64 too large for F32), MEMORY, DEVICE_LOST. */
DT_API dt_result dt_store_load(dt_store *store, const char *path);

/* Which parameters to read, and their names in the file. {0}: all, under their own names. */
typedef struct dt_load_desc {
    const char *params; /* patterns of names in the store; NULL = "*" */
    /* Read only names that begin with prefix; the file has file_prefix in its place. "encoder." and
     * "model.": "encoder.fc.weight" is "model.fc.weight" in the file. NULL = "". */
    const char *prefix, *file_prefix;
    bool strict; /* every selected parameter must be in the file */
    /* Accept NaN and infinities. false: INVALID, unless dt_store_desc.allow_nonfinite is set. */
    bool allow_nonfinite;
} dt_load_desc;

/* Reads the selected parameters that the file has. Others do not change. Nothing changes unless
 * everything to be read fits.
 * loaded: receives the number of parameters that were read. May be NULL.
 * Errors: as dt_store_load; INVALID also if the file has none of them. */
DT_API dt_result dt_store_load_matching(dt_store *store, const char *path, const dt_load_desc *desc,
                                        int *loaded);

/* Writes everything that training changes: parameters, buffers, optimizer moments, step counts and
 * the number of steps. dt_store_load reads such a file, too. A trainer has more state: see
 * dt_trainer_save. Errors: as dt_store_save. */
DT_API dt_result dt_store_save_state(dt_store *store, const char *path);
/* Continues from a file of dt_store_save_state, bit for bit. Nothing changes unless everything
 * fits. The model must have the same parameters and buffers (name and shape, in any order). Trained
 * parameters must have the same kinds of optimizers.
 * Errors: IO, FORMAT (truncated; a wrong checksum; another kind of file; a NaN or infinity, without
 * dt_store_desc.allow_nonfinite), INVALID (an open step; a trainer's store; a parameter that
 * differs, with its name; a program that trains with another kind of optimizer), UNSUPPORTED,
 * MEMORY, DEVICE_MEMORY, DEVICE_LOST. */
DT_API dt_result dt_store_load_state(dt_store *store, const char *path);

/* A safetensors file in memory, with tensors of any type. */
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

/* Reads and checks a file. Tensors may have any dtype and any values. path may also be
 * - model.safetensors.index.json, or another index that ends with .json: the tensors are in several
 *   files, which lie beside it. FORMAT: one is missing, or lacks a tensor that it should have.
 * - a folder with model.safetensors, or else with model.safetensors.index.json.
 * Errors: IO, FORMAT (not safetensors, truncated, sizes or offsets that do not fit), MEMORY. */
DT_API dt_result dt_safetensors_open(dt_ctx *ctx, const char *path, dt_safetensors **out);
/* Frees the file's data, before its context is destroyed. */
DT_API void dt_safetensors_close(dt_safetensors *file);
/* Returns the number of tensors. */
DT_API int dt_safetensors_count(const dt_safetensors *file);
/* Describes a tensor.
 * index: 0 to dt_safetensors_count() - 1.
 * Errors: INVALID (a tensor of more than 8 dimensions). */
DT_API dt_result dt_safetensors_get_tensor(const dt_safetensors *file, int index,
                                           dt_safetensors_tensor *info);
/* Returns the index of the tensor of that name, or -1. */
DT_API int dt_safetensors_find(const dt_safetensors *file, const char *name);
