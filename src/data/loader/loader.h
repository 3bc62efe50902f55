/* Batches for a trainer. They have the order of an epoch's samples (sampler.c), the rows of a batch
 * that this process reads (loader.c), and their values (loader_row.c, augment.c). Threads read
 * ahead into a ring of two, while the devices work. Order and values depend only on (seed, epoch,
 * step, row). A loader allocates only when it is created. It has two slots (with threads; else one)
 * of `share_max` samples, 4 bytes a value and 4 for each sample's row. A shuffled order takes 4
 * bytes a row of the set, and with weights 8 more. A stream has its buffer, as dt_stream_desc says.
 * Augmentation takes a sample or two for each thread.
 *
 * The files in the order in which to read them. readers/ makes arrays or samples of files:
 *
 *   idx.c                               IDX, the format of MNIST
 *   npy.h, npy.c, npz.c                 NumPy's arrays
 *   csv.h                               CSV: a cursor, columns, rows
 *   csv_text.c, csv_scan.c, csv.c       rows as texts; kinds of columns; rows as numbers
 *   wav.c                               WAV
 *   picture.h                           a picture's file and its pixels
 *   picture_size.c                      resizing
 *   picture_png.c, picture_jpeg.c       the two formats
 *   picture.c                           which format a file has
 *   folder.h, folder_scan.c, folder.c   a folder of classes
 *   tokens.c                            windows of a file of tokens
 *
 * loader/ makes batches of samples:
 *
 *   batch.c                       a seeded order, and rows of bytes as floats
 *   split.c                       training and validation parts of a set
 *   sampler.c                     the order of an epoch
 *   augment_fields.c, augment.c   augmentation of pictures and signals
 *   loader_row.c                  the values of a sample
 *   shuffle_buffer.c              a set without a length, and its shuffle buffer
 *   loader.c                      batches read ahead
 *
 * replay/ is the replay buffer:
 *
 *   replay_buffer.c   a ring of items, and draws by priority
 *   replay_file.c     the same as a file */

#define DTI_LOADER_THREADS_MAX 64

typedef struct dti_loader dti_loader;

typedef struct dti_loader_desc {
    const dt_dataset *data; /* copied; its pointers are used */
    uint64_t seed;
    uint32_t batch; /* rows of a full batch of the whole job */
    dt_tail tail;
    bool shuffle;
    bool threaded; /* else dti_loader_next reads */
    /* This process takes [*first, *first + *count) of a batch of `rows` rows; NULL = all. Called
     * when the batch begins to be read, on the thread of dti_loader_next or _seek. */
    void (*share)(void *user, uint32_t rows, uint32_t *first, uint32_t *count);
    void *user;
    uint32_t share_max;          /* the most that *count can be */
    int32_t pad[DT_MAX_COLUMNS]; /* the value of an i32 column in a filling row (f32: 0) */
    /* NULL, or the samples of dti_loader_keep from a loader with the same set, seed, batch and
     * shuffle. It belongs to dti_loader_create, also if that fails. */
    struct dti_stream_buffer *kept;
} dti_loader_desc;

typedef struct dti_batch {
    uint64_t epoch, index;   /* batch `index` of the epoch */
    uint64_t step;           /* number of the step that it is for */
    uint32_t rows;           /* of the whole job's batch; with DT_TAIL_PAD always `batch` */
    uint32_t real;           /* of them not filled up */
    uint32_t first, count;   /* this process's rows */
    bool last;               /* of the epoch */
    const uint32_t *sources; /* [count] rows of the data set; filling rows have none */
    const struct dti_loader_column *columns; /* the loader's, as long as it lives */
    int column_count;
    const void *values[DT_MAX_COLUMNS]; /* by column: `count` samples, in its type; until the next
                                         dti_loader_next, _seek or _destroy */
} dti_batch;

/* Checks the dataset against its inputs. INVALID names the column and the reason: an input that is
 * nil, not an input, without samples, listed twice, or of another graph. Or a wrong type, scale or
 * offset without use, or no data and no `sample`. Or no rows, with DROP fewer than a batch, or more
 * than 2^32 - 1. MEMORY. Starts its threads with all signals blocked; if the system gives none, it
 * warns and reads in dti_loader_next. The first batch is 0 of epoch 0, step 0. Reading begins at
 * the first _seek or _next. */
static dt_result dti_loader_create(dti_base *base, const dti_loader_desc *desc, dti_loader **out);
static void dti_loader_destroy(dti_loader *loader);
/* Takes a stream's read samples out of a loader, which is then destroyed. A stream without .seek
 * cannot give them again. NULL: the set is not a stream, or loader is NULL. */
static struct dti_stream_buffer *dti_loader_keep(dti_loader *loader);
static uint64_t dti_loader_epoch_batches(const dti_loader *loader);
/* The next batch will be `index` of `epoch`, for step number `step`. index may be the number of
 * batches, which is the next epoch's first. Batches that were read ahead are dropped. INVALID: a
 * larger index, and nothing changes. */
static dt_result dti_loader_seek(dti_loader *loader, uint64_t epoch, uint64_t index, uint64_t step);
/* Waits until the next batch is read, and begins to read the one after it. `skipped` batches count
 * as a step too: the number goes up by one with every batch. Fails once with the error that
 * dt_dataset.sample returned (dti_fail with the row); the next call tries the same batch again.
 * INVALID likewise: a share that is not within its batch or above share_max. A column without data
 * is zeros when `sample` gets it. */
static dt_result dti_loader_next(dti_loader *loader, const dti_batch **out);
/* Waits until no .sample is under way. A read of a stream is dropped. */
static void dti_loader_rest(dti_loader *l);

/* ---- sampler.c: the row of the set of each sample of an epoch; rows NULL: in order */
typedef struct dti_sampler {
    const dt_dataset *data;
    uint64_t seed;
    uint32_t batch;
    uint32_t *rows; /* [data->rows], of `epoch` once it is made */
    double *sums;   /* of weights up to each row */
    uint64_t *keys; /* of a piece that is sorted by length */
    uint64_t epoch;
    bool made;
} dti_sampler;
/* INVALID: weights that are not chances, or are combined with lengths. */
static dt_result dti_sampler_check(dti_base *base, const dt_dataset *data, bool shuffle);
/* MEMORY; dti_sampler_free in any case. */
static dt_result dti_sampler_alloc(dti_base *base, dti_sampler *o);
static void dti_sampler_free(dti_base *base, dti_sampler *o);
static void dti_sampler_make(dti_sampler *o, uint64_t epoch);

static int dti_dataset_columns(const dt_dataset *data); /* that are set */
/* Batches of a stream that stay: of steps in flight, and the one that is read ahead. */
#define DTI_STREAM_KEPT 3u
/* The samples of a stream's epoch that has no end: whole batches, more than are ever read. */
#define DTI_STREAM_ENDLESS (UINT64_C(1) << 61)
static inline bool dti_dataset_endless(const dt_dataset *data) {
    return data->stream && data->rows >= DTI_STREAM_ENDLESS;
}

/* ---- augment.c */
typedef struct dti_augment {
    dt_augment_desc desc;
    int channels, height, width;                                     /* a signal has the height 1 */
    float mean[DT_AUGMENT_CHANNELS], deviation[DT_AUGMENT_CHANNELS]; /* of the existing channels */
    bool normalises;
    size_t elements, targets; /* of a sample's columns */
    int target;
    bool drawn; /* by weights: a row may come several times in an epoch */
} dti_augment;
/* INVALID: a member does not fit the set's columns. *a needs no memory. */
static dt_result dti_augment_open(dti_base *base, const dt_dataset *data, dti_augment *a);
static bool dti_augment_mixes(const dti_augment *a);
/* Random numbers of a sample. The partner that is mixed into it has other numbers, and so has each
 * time that a row is drawn. */
typedef struct dti_draw {
    uint64_t key, stream, counter;
} dti_draw;
static dti_draw dti_draw_of(const dti_augment *a, const dt_sample *s, bool partner);
/* room: [elements] */
static void dti_augment_run(const dti_augment *a, const dti_draw *draw, float *x, float *room);
/* Whether a sample is mixed, and with which of `rows` samples of the set. */
static bool dti_augment_partner(const dti_augment *a, const dti_draw *draw, uint64_t rows,
                                uint64_t *partner);
static void dti_augment_mix(const dti_augment *a, const dti_draw *draw, float *x,
                            const float *other, float *target, const float *other_target);

/* ---- loader_row.c: the values of samples */
typedef enum dti_column_kind {
    DTI_COLUMN_ZERO,  /* no data: the callback makes the value, from zeros */
    DTI_COLUMN_WORDS, /* f32 to f32, i32 to i32 */
    DTI_COLUMN_U8_F32,
    DTI_COLUMN_U8_I32,
    DTI_COLUMN_ONE_HOT
} dti_column_kind;

/* The one copy of a batch's columns, for all readers of a batch. */
typedef struct dti_loader_column {
    dt_tensor input;
    dti_column_kind kind;
    bool is_i32; /* the input's type; else floats */
    size_t element_bytes;
    const char *data;
    dt_dtype dtype;   /* of data */
    size_t elements;  /* of a sample */
    float table[256]; /* DTI_COLUMN_U8_F32: of each byte */
    int32_t pad;
} dti_loader_column;

/* How a set's samples are made: the same for all threads. */
typedef struct dti_rows {
    dti_base *base;
    const dt_dataset *data; /* the caller's */
    dti_loader_column columns[DT_MAX_COLUMNS];
    int column_count;
    bool augments;
    dti_augment augment;
} dti_rows;
static inline bool dti_rows_augment(const dti_rows *r) {
    return DTI_HAS_AUGMENT && r->augments;
}

/* Sample `row` of the set, which is row `at` of the columns' data, into values[column]. scratch:
 * dti_rows_scratch() bytes, NULL for 0. A failure's text is at s->why. */
static dt_result dti_rows_sample(const dti_rows *r, const dt_sample *s, uint64_t at,
                                 void *const *values, char *scratch);
static size_t dti_rows_scratch(const dti_rows *r);
/* The values of a column for rows sources[0 .. count), or, if that is NULL, for rows from `first`
 * on. */
static void dti_column_gather(const dti_loader_column *c, const uint32_t *sources, uint64_t first,
                              uint32_t count, void *values);
static size_t dti_column_bytes(const dti_loader_column *c);      /* of a sample */
static size_t dti_column_data_bytes(const dti_loader_column *c); /* of it in the data */
static void dti_column_pad(const dti_loader_column *c, uint32_t begin, uint32_t end, void *values);
/* INVALID, with the column and why. */
static dt_result dti_rows_open(dti_base *base, const dt_dataset *data, const int32_t *pad,
                               dti_rows *r);
