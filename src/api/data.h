/* ---- Data: arrays from files (IDX, NumPy, WAV), splits, shuffled batches */

/* An array from a file. */
typedef struct dt_array {
    dt_ctx *ctx;       /* has the memory */
    int rank;          /* number of dimensions, up to 8 */
    int64_t dim[8];    /* their sizes */
    int element_bytes; /* bytes of one element */
    size_t bytes;      /* bytes of all elements */
    void *data;        /* the elements, row-major */
    dt_dtype dtype;    /* DT_U8, DT_F32 or DT_I32 */
} dt_array;

/* Reads an uncompressed IDX file of unsigned bytes (MNIST's format).
 * out: DT_U8.
 * Errors: IO, FORMAT (not IDX, compressed, truncated, a size that contradicts the header, another
 * element type), MEMORY. */
DT_API dt_result dt_idx_load(dt_ctx *ctx, const char *path, dt_array *out);
/* Read a NumPy file: dt_npy_load one of np.save, dt_npz_load one array of np.savez.
 * name: NULL = the file's only array.
 * out: floats of 16, 32 and 64 bits become DT_F32 (rounded). bool and uint8 become DT_U8, other
 * integers DT_I32. Both byte orders are read. Fortran order becomes C order. np.savez_compressed
 * needs DT_WITH_ZLIB.
 * Errors: INVALID (no array of that name: the text lists the names), IO, FORMAT (not a NumPy file;
 * compressed otherwise; truncated or damaged; objects or structures; an integer or finite float64
 * that does not fit, with its index and value), MEMORY, UNSUPPORTED (deflated without DT_WITH_ZLIB;
 * deflated and of 4 GiB or more). */
DT_API dt_result dt_npy_load(dt_ctx *ctx, const char *path, dt_array *out);
DT_API dt_result dt_npz_load(dt_ctx *ctx, const char *path, const char *name, dt_array *out);
/* Frees the data and clears the struct, before its context is destroyed. */
DT_API void dt_array_destroy(dt_array *array);

/* Reads a WAV file: PCM of 8, 16, 24 or 32 bits, or floats of 32 or 64 bits.
 * WAVE_FORMAT_EXTENSIBLE, RF64 and BW64 (64-bit sizes) are read too.
 * out: [channels, samples], DT_F32. PCM becomes [-1, 1): 16 bits give value / 32768, 8 bits (value
 * - 128) / 128. Floats are kept.
 * rate: receives the samples per second. May be NULL.
 * Errors: IO, FORMAT (not a WAV file; another coding; truncated; with the byte: a float that is
 * NaN, infinite or too large for f32), MEMORY. */
DT_API dt_result dt_wav_load(dt_ctx *ctx, const char *path, dt_array *out, int *rate);

/* ---- Rows: splits for dt_dataset.indices, class weights for dt_dataset.weights */

typedef struct dt_data_split_desc {
    uint32_t rows; /* rows of the set; required */
    double share;  /* share of rows that validate; between 0 and 1; 0 = 0.2 */
    int folds;     /* cross-validation: number of folds, 2 or more, in place of .share; 0 = off */
    int fold;      /* the fold that validates, 0 to folds - 1; the other folds train */
    /* Stratify: classes of the rows, [rows], below 2^24. Each class has the same share in both
     * sets, within about a row. NULL = off. */
    const uint32_t *labels;
    uint64_t seed; /* decides which rows are chosen */
} dt_data_split_desc;

/* Splits rows into a training set and a validation set.
 * train, valid: receive row numbers in ascending order. Each needs room for `rows` numbers. Each
 * row is in exactly one of the two.
 * Errors: INVALID (0 rows; a label of 2^24 or more; a set that would be empty), MEMORY. */
DT_API dt_result dt_data_split(dt_ctx *ctx, const dt_data_split_desc *desc, uint32_t *train,
                               uint32_t *train_count, uint32_t *valid, uint32_t *valid_count);
/* Computes row weights that draw all classes equally often: 1 / (number of rows of the class).
 * labels: classes of the rows, [rows], below 2^24.
 * weights: [rows].
 * Errors: INVALID (0 rows, a label of 2^24 or more), MEMORY. */
DT_API dt_result dt_balanced_weights(dt_ctx *ctx, const uint32_t *labels, uint32_t rows,
                                     float *weights);

/* The three functions below allocate nothing and need no context. Threads: any. */

/* Writes a random permutation of 0 .. count - 1 to order[0 .. count). It depends only on count,
 * seed and epoch. */
DT_API void dt_shuffle(uint32_t *order, uint32_t count, uint64_t seed, uint64_t epoch);
/* Gathers rows of bytes as f32: dst[i, :] = src[order[i], :] * scale + offset for i in [0, rows).
 * cols: bytes per row.
 * order: NULL = 0, 1, 2, ... Its row numbers are not checked. */
DT_API void dt_gather_rows_u8_to_f32(float *dst, const uint8_t *src, const uint32_t *order,
                                     size_t rows, size_t cols, float scale, float offset);
/* Gathers rows of bytes as i32: dst[i, :] = src[order[i], :]. Arguments: as above. */
DT_API void dt_gather_rows_u8_to_i32(int32_t *dst, const uint8_t *src, const uint32_t *order,
                                     size_t rows, size_t cols);

/* ---- CSV files: tables of numbers and categories (RFC 4180, UTF-8)
 *
 * A file may be larger than memory. A column holds numbers, or categories: texts, numbered in the
 * order of their bytes. The values decide, or a rule does. docs/data.md has an example.
 *
 * */

typedef struct dt_csv dt_csv;

/* What a column holds. */
typedef enum dt_csv_kind {
    /* Numbers if all values are numbers, else categories. FORMAT if each non-number looks like a
     * number (inf, 1e400, 1,5): then give the column a rule. */
    DT_CSV_GUESS,
    DT_CSV_NUMBER,   /* numbers; another text makes the row bad */
    DT_CSV_CATEGORY, /* texts, numbered from 0 in the order of their bytes */
    DT_CSV_SKIP      /* not read */
} dt_csv_kind;

/* What to do with a missing value. A value is missing if it is empty, "?", or one of pandas'
 * na_values in any case of letters. docs/data.md lists them. A value with blanks around it is not
 * missing. An empty line is not a row, even in a file of one column. */
typedef enum dt_csv_missing {
    DT_CSV_MISSING_ERROR, /* the default: the row is bad */
    DT_CSV_MISSING_DROP,  /* leave the row out and count it */
    DT_CSV_MISSING_MEAN,  /* numbers: mean of the other values; categories: category "" */
    DT_CSV_MISSING_VALUE  /* numbers: .value; categories: category "" */
} dt_csv_missing;

/* How to read the columns that .columns matches. INVALID: a rule whose columns are all decided by
 * earlier rules. */
typedef struct dt_csv_rule {
    /* Patterns of names; '?' also matches a comma or an outer blank of a name. NULL ends the
     * rules. */
    const char *columns;
    dt_csv_kind kind;       /* 0 = DT_CSV_GUESS */
    dt_csv_missing missing; /* 0 = DT_CSV_MISSING_ERROR */
    double value;           /* of DT_CSV_MISSING_VALUE; finite as f32 */
    bool standardize;       /* numbers become (x - mean) / std, over all rows of the file */
} dt_csv_rule;

#define DT_MAX_CSV_RULES 16
typedef struct dt_csv_desc {
    char delimiter; /* ';', '\t', ...; 0 = ',' */
    /* The first line holds values. Columns are named "0", "1" and so on. In a header an empty name
     * becomes the column's number. */
    bool no_header;
    /* Leave bad rows out and count them; a warning has the first one's line and reason. false: an
     * error. */
    bool skip_bad;
    dt_csv_rule rules[DT_MAX_CSV_RULES]; /* the first rule that matches a column decides */
    /* Take kinds, categories, means and deviations from this file, and ignore .rules: for a test
     * set. Each of its columns must be in the new file; other columns are skipped. NULL = off. */
    const dt_csv *like;
    int max_categories; /* per column; more are an error (FORMAT); 0 = 1000 */
} dt_csv_desc;

/* Opens a CSV file and reads it once. .like is not kept. For a column of guessed categories the log
 * has the line of the first value that is not a number.
 * Errors: INVALID (no rows; a description or rule that does not fit), IO, FORMAT (an empty file;
 * not UTF-8; a quote that does not end; two columns of one name; a column of .like that is missing;
 * too many categories; a row with another number of values; a value that is not a number; a missing
 * value; a category that .like lacks), MEMORY. The text has the line of a bad row. */
DT_API dt_result dt_csv_open(dt_ctx *ctx, const char *path, const dt_csv_desc *desc, dt_csv **out);
/* Closes a file, before its context is destroyed. */
DT_API void dt_csv_close(dt_csv *csv);

typedef struct dt_csv_info {
    uint64_t rows, skipped; /* rows that can be read; rows that were left out */
    int columns;            /* with those of DT_CSV_SKIP */
} dt_csv_info;
/* Gives the numbers of rows and columns. */
DT_API void dt_csv_get_info(const dt_csv *csv, dt_csv_info *info);

/* A column of a file. Pointers are valid until the file is closed. */
typedef struct dt_csv_column {
    const char *name; /* from the header, or the column's number */
    dt_csv_kind kind; /* as decided: never DT_CSV_GUESS */
    uint64_t missing; /* number of missing values */
    /* of the values that are not missing; numbers only */
    double min, max, mean, std;
    int categories;              /* number of categories; 0 for numbers */
    const char *const *category; /* their names, [categories]; NULL for numbers */
} dt_csv_column;
/* Describes a column. index: 0 to dt_csv_info.columns - 1. */
DT_API dt_result dt_csv_get_column(const dt_csv *csv, int index, dt_csv_column *column);
/* Returns the index of the column of that name, or -1. */
DT_API int dt_csv_find(const dt_csv *csv, const char *name);

/* Reads rows [first, first + rows) into out: [rows, count]. Allocates nothing.
 * columns: indices of the columns, [count].
 * dtype: DT_F32 or DT_I32. A category is its number.
 * Threads: any, one at a time per file. Only the thread that opened the file gets the text of an
 * error in dt_ctx_error.
 * Errors: INVALID (a skipped column, another dtype, a number that is too large, a fraction as
 * DT_I32), IO (also if rows changed since the file was opened). */
DT_API dt_result dt_csv_read(dt_csv *csv, const int *columns, int count, uint64_t first,
                             uint64_t rows, dt_dtype dtype, void *out);
