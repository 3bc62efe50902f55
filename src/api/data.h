/* ---- Data: IDX files, shuffled batches ------------------------------------------------------- */

/* An array as it lies in the file, row-major. */
typedef struct dt_array {
    dt_ctx *ctx;
    int rank;
    int64_t dim[8];
    int element_bytes;
    size_t bytes; /* of all elements */
    void *data;
    dt_dtype dtype; /* DT_U8, DT_F32 or DT_I32 */
} dt_array;

/* Reads an IDX file of unsigned bytes (MNIST's format), unpacked. Ownership: *out is yours;
 * free it with dt_array_destroy, before the context is destroyed. Errors, with *out empty: INVALID
 * (NULL), IO, FORMAT (not IDX, compressed, truncated, a size that contradicts the header, another
 * element type), MEMORY. */
DT_API dt_result dt_idx_load(dt_ctx *ctx, const char *path, dt_array *out);
/* Reads a NumPy file (np.save), or one array of several (np.savez) by its name; NULL = the only
 * one. Floats of 16, 32 and 64 bits become DT_F32 (rounded), bool and uint8 DT_U8, other integers
 * DT_I32; both orders of bytes, and Fortran's order of elements, which is turned. An array may have
 * no elements. np.savez stores as it is; np.savez_compressed is deflated, for which dtrain is
 * compiled with DT_WITH_ZLIB. Ownership and errors: as dt_idx_load; FORMAT also where an integer or
 * a finite float64 does not fit (which one, and its value), and for objects and structures;
 * INVALID: no array of that name (the text lists the names); UNSUPPORTED: it is deflated, and there
 * is no zlib, or it has 4 GiB. */
DT_API dt_result dt_npy_load(dt_ctx *ctx, const char *path, dt_array *out);
DT_API dt_result dt_npz_load(dt_ctx *ctx, const char *path, const char *name, dt_array *out);
/* Frees the data and clears the struct. NULL and an empty array are allowed. */
DT_API void dt_array_destroy(dt_array *array);

/* Reads a WAV file: PCM of 8, 16, 24 or 32 bits, or floats of 32 or 64 (also
 * WAVE_FORMAT_EXTENSIBLE, and RF64 and BW64, whose sizes have 64 bits). *out is [channels,
 * samples], DT_F32; whole numbers become [-1, 1) (16 bits: value / 32768; 8 bits: (value - 128) /
 * 128), floats are taken as they are, but for those that are not finite. *rate: samples a second,
 * may be NULL. Ownership: as of dt_idx_load. Errors, with *out empty: INVALID (NULL), IO, FORMAT
 * (no WAV file, another coding, truncated, a float that is not finite: with the byte), MEMORY. */
DT_API dt_result dt_wav_load(dt_ctx *ctx, const char *path, dt_array *out, int *rate);

/* ---- Which rows: parts of a set for dt_dataset.indices, weights for .weights. */

typedef struct dt_data_split_desc {
    uint32_t rows; /* of the set */
    double share;  /* that validates; 0 = 0.2; below 1 */
    int folds;     /* 2 or more: fold number .fold of so many validates instead, the rest trains */
    int fold;
    /* Classes of the rows, [rows]: each class has its share of both parts, to a row or so. NULL:
     * rows alike. */
    const uint32_t *labels;
    uint64_t seed; /* which rows come together is chance */
} dt_data_split_desc;

/* Writes the rows that train and those that validate, each in rising order; each has room for
 * `rows` of them. Each row is in one of the two, and of `folds` folds in one that validates.
 * Errors: INVALID (NULL; a description without meaning; a part that would be empty), MEMORY. */
DT_API dt_result dt_data_split(dt_ctx *ctx, const dt_data_split_desc *desc, uint32_t *train,
                               uint32_t *train_count, uint32_t *valid, uint32_t *valid_count);
/* Weights of rows with which all classes are drawn as often: weights[i] = 1 / (rows of labels[i]'s
 * class). Errors: INVALID (NULL, no rows, a label that is 2^24 or more), MEMORY. */
DT_API dt_result dt_balanced_weights(dt_ctx *ctx, const uint32_t *labels, uint32_t rows,
                                     float *weights);

/* The three functions below allocate nothing, need no context, and do nothing if a pointer that
 * they need is NULL. Threads: any. */

/* Fills order[0 .. count) with a permutation of 0 .. count - 1 that depends only on count, seed and
 * epoch (Fisher-Yates, random numbers from Philox). */
DT_API void dt_shuffle(uint32_t *order, uint32_t count, uint64_t seed, uint64_t epoch);
/* dst[i, :] = src[order[i], :] * scale + offset for i in [0, rows): rows of `cols` bytes to f32.
 * order: NULL = 0, 1, 2, ...; the row numbers in it are not checked. */
DT_API void dt_gather_rows_u8_to_f32(float *dst, const uint8_t *src, const uint32_t *order,
                                     size_t rows, size_t cols, float scale, float offset);
/* The same for labels, to i32: dst[i, :] = src[order[i], :]. */
DT_API void dt_gather_rows_u8_to_i32(int32_t *dst, const uint8_t *src, const uint32_t *order,
                                     size_t rows, size_t cols);

/* ---- CSV files: tables of numbers and categories (RFC 4180; UTF-8) ----------------------------
 *
 * dt_csv_open reads a file once, in pieces, and keeps what is needed to read any row again: so it
 * may be larger than memory. What a column is follows from its values, or a rule says it: numbers,
 * or categories (texts, numbered in the order of their bytes). dt_csv_read gives rows as an array,
 * for a dt_column (all rows), or in dt_dataset.sample (one row: sample->row) while training.
 *
 *     dt_csv *csv;
 *     dt_csv_desc desc = {.rules = {{.columns = "id", .kind = DT_CSV_SKIP},
 *                                   {.columns = "*", .standardize = true}}};
 *     dt_csv_open(ctx, "houses.csv", &desc, &csv); */

typedef struct dt_csv dt_csv;

typedef enum dt_csv_kind {
    /* Numbers if all values are numbers, else categories. The log names the first value that is no
     * number, with its line; it is a warning if others are. FORMAT if each value that is no number
     * looks like one (inf, 1e400, 1,5): give the column a rule. */
    DT_CSV_GUESS,
    DT_CSV_NUMBER,
    DT_CSV_CATEGORY,
    DT_CSV_SKIP /* not read */
} dt_csv_kind;

/* What happens to a missing value. A value is missing if it is empty, "?", None, or, in any case of
 * letters, one of pandas' other na_values: NA, N/A, #N/A, #NA, #N/A N/A, <NA>, NaN, -NaN, 1.#IND,
 * -1.#IND, 1.#QNAN, -1.#QNAN, null. Blanks beside it make it a text. An empty line is no row, also
 * in a file of one column. */
typedef enum dt_csv_missing {
    DT_CSV_MISSING_ERROR, /* the default; its row is bad */
    DT_CSV_MISSING_DROP,  /* its row is left out and counted */
    DT_CSV_MISSING_MEAN,  /* the mean of the column's others; a category of its own, "" */
    DT_CSV_MISSING_VALUE  /* .value; a category of its own, "" */
} dt_csv_missing;

typedef struct dt_csv_rule {
    /* Patterns of names; '?' stands for a comma or an outer blank of one. NULL ends the rules.
     * INVALID: a pattern that matches no column, a rule that decides none, and a rule without
     * .columns that has something else set. */
    const char *columns;
    dt_csv_kind kind;
    dt_csv_missing missing;
    double value;
    bool standardize; /* numbers become (x - mean) / deviation, over all rows of the file */
} dt_csv_rule;

#define DT_MAX_CSV_RULES 16
typedef struct dt_csv_desc {
    char delimiter; /* 0 = ','; ';', '\t', ... */
    /* The first line has values, and columns are named "0", "1", ... With a header a column without
     * a name gets its number too, and two equal names are an error (FORMAT). */
    bool no_header;
    /* Bad rows are left out and counted, where they are errors else. One warning in the log says
     * how many, and the first one's line and reason. */
    bool skip_bad;
    dt_csv_rule rules[DT_MAX_CSV_RULES]; /* a column's is the first that matches it */
    /* A file whose columns must be here too: kinds, categories, means and deviations are taken from
     * it, so that a test set is read as the training set was. .rules are ignored. */
    const dt_csv *like;
    int max_categories; /* of a column; 0 = 1000: more are no categories */
} dt_csv_desc;

/* Opens and reads a file; desc may be NULL, and is not kept, nor is .like. A final byte 0x1A (DOS's
 * end of file) is ignored. Ownership: *out is yours; close it before the context. Errors, with *out
 * NULL: INVALID (NULL; no rows; a description that does not fit; a rule that decides no column),
 * IO, FORMAT (not UTF-8; a quote that does not end; a row with another number of values, a value
 * that is no number, one that is missing, a category that .like lacks, two columns of one name:
 * each with the line), MEMORY. */
DT_API dt_result dt_csv_open(dt_ctx *ctx, const char *path, const dt_csv_desc *desc, dt_csv **out);
/* NULL is allowed. */
DT_API void dt_csv_close(dt_csv *csv);

typedef struct dt_csv_info {
    uint64_t rows, skipped; /* that can be read; that were left out */
    int columns;            /* with those that are skipped */
} dt_csv_info;
/* All 0 for NULL. */
DT_API void dt_csv_get_info(const dt_csv *csv, dt_csv_info *info);

/* A column; numbers' statistics are over the values that are there. Pointers are valid until the
 * file is closed. */
typedef struct dt_csv_column {
    const char *name;
    dt_csv_kind kind;
    uint64_t missing;
    double min, max, mean, std;
    int categories;
    const char *const *category; /* their names */
} dt_csv_column;
/* Errors: INVALID (NULL; out of range). */
DT_API dt_result dt_csv_get_column(const dt_csv *csv, int index, dt_csv_column *column);
/* The index of the column of that name; -1 = none: the error of who uses it says the name. */
DT_API int dt_csv_find(const dt_csv *csv, const char *name);

/* Writes rows [first, first + rows) of the columns given by their indices to out: [rows, count] in
 * dtype, DT_F32 or DT_I32; a category is its number. Rows that follow each other are read fastest.
 * Nothing is allocated. Threads: any, one at a time for a file; dt_ctx_error has the text of an
 * error only where the thread is the one that opened the file, so not in dt_dataset.sample. Errors:
 * INVALID (NULL, out of range, a column that is skipped, another dtype; a number for DT_I32 that is
 * not whole, or one that is too large), IO (the file cannot be read, or has other rows than when it
 * was opened; values that were changed for others that could be there are read as they are). */
DT_API dt_result dt_csv_read(dt_csv *csv, const int *columns, int count, uint64_t first,
                             uint64_t rows, dt_dtype dtype, void *out);
