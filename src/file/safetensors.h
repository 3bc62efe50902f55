/* Safetensors files: 8 bytes of header length (little-endian), a JSON header, the tensors' bytes.
 * The reader is dt_safetensors_* of the public API. Here are its internal parts, and the writer. */

#if defined __BYTE_ORDER__ && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "dtrain.h: weight files are little-endian and so must be the processor"
#endif

/* The format's own limit, of the reference implementation. */
#define DTI_SAFETENSORS_HEADER_MAX 100000000u
#define DTI_WEIGHT_MAX_DIMS 8

/* X(name in the file, bytes of an element). Types that the reader knows besides DTI_DTYPE_LIST. It
 * checks the number of bytes only of known types. */
/* clang-format off */
#define DTI_WEIGHT_DTYPE_LIST(X)                                                                   \
    X("I16", 2) X("I8", 1) X("U64", 8) X("U32", 4) X("U16", 2) X("BOOL", 1)                        \
    X("F8_E4M3", 1) X("F8_E5M2", 1) X("F8_E8M0", 1) X("C64", 8)
/* clang-format on */

/* The type of a tensor of floats; false: it has other elements. */
static bool dti_weight_floats(const dt_safetensors_tensor *info, dt_dtype *dtype);
/* The error about value number `at` of a tensor; `desc` has the .allow_nonfinite that accepts
 * it. */
static dt_result dti_fail_infinite(dti_base *base, dt_result result, const char *path,
                                   const char *tensor, uint64_t at, const char *desc);
/* Whether saved values, from number `first` on, have a NaN or an infinity: logged. */
static bool dti_warn_infinite(dti_base *base, const char *tensor, const void *data, dt_dtype dtype,
                              uint64_t first, uint64_t count);
static int dti_weights_find(const dt_safetensors *weights, const char *name); /* -1: not found */
/* ---- Tensors in several files of a folder: an index names each one's file. A path may lead to a
 * file, to an index (it ends with .json), or to a folder with DTI_INDEX_ONE or else
 * DTI_INDEX_NAME. */
#define DTI_INDEX_NAME "model.safetensors.index.json"
#define DTI_INDEX_ONE "model.safetensors"
#define DTI_INDEX_FILES_MOST 4096
#define DTI_INDEX_FILE_ROOM 48
typedef struct dti_weights_file { /* that an index recognises */
    const char *name;
    uint64_t bytes;
    uint32_t sum; /* CRC32C of its checksums */
} dti_weights_file;
/* Reads the index of w->path and opens its files. FORMAT: damaged; a file is missing; a tensor is
 * not where the index says; a file's name leads out of the folder. */
static dt_result dti_index_take(dt_safetensors *w, bool in_memory);
/* Reads and checks a file, with all tensors' bytes. */
static dt_result dti_weights_load(dti_base *base, const char *path, dt_safetensors **out);
/* Reads and checks the header. The file stays open, .data of tensors is NULL, and dti_weights_read
 * reads bytes [offset, offset + bytes) of a tensor. One thread at a time. */
static dt_result dti_weights_open(dti_base *base, const char *path, dt_safetensors **out);
static dt_result dti_weights_read(const dt_safetensors *w, int index, uint64_t offset,
                                  uint64_t bytes, void *to);
/* Bytes of a tensor that are read or written at a time: large enough for a disk's speed. */
#define DTI_WEIGHTS_CHUNK ((uint64_t)1 << 20)

/* ---- store_file.c: for a trainer whose devices each have a part of a store's parameters */
/* The file of all parameters in their order, as F32. The writer, which has the values, calls
 * dti_writer_add and dti_writer_close. */
static dt_result dti_weights_begin(dt_store *store, const char *path, dti_writer **out);
/* Whether a file has all of them: INVALID */
static dt_result dti_weights_fit(dt_store *store, const dt_safetensors *weights, const char *path);
/* Elements [at, at + n) of a tensor of dti_weight_floats, of a file that is open. */
static dt_result dti_weights_floats(const dt_safetensors *w, int index, uint64_t at, uint64_t n,
                                    float *to);

/* A tensor to be written. */
typedef struct dti_safetensors_item {
    const char *name, *dtype;
    int rank;
    const int64_t *dim;
    uint64_t bytes;
} dti_safetensors_item;

/* Opens a file and writes the header. Then dti_writer_add each tensor's bytes in the order of
 * `items`, and dti_writer_close, which lets the file appear whole or not at all. */
static dt_result dti_safetensors_begin(dti_base *base, const char *path,
                                       const dti_safetensors_item *items, int count,
                                       dti_writer **out);

/* "model-00001-of-00003.safetensors" of number 0, and back. */
static void dti_index_file_name(char to[DTI_INDEX_FILE_ROOM], uint32_t number, uint32_t files);
static bool dti_index_is_file_name(const char *name, uint32_t *number, uint32_t *files);
/* An index's text: tensor i is in file number file_of[i] of `files`. known: [files], each file's
 * identity, without names; NULL: none. *sum: of the first half, for the second. */
static void dti_index_begin(dti_text *text, const dti_safetensors_item *items, int count,
                            const uint32_t *file_of, uint32_t files, uint32_t *sum);
static void dti_index_end(dti_text *text, const dti_weights_file *known, uint32_t files,
                          uint32_t sum);
