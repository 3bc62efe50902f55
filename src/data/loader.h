/* Batches for a trainer: the order of an epoch's samples, which rows of the next batch this process
 * takes, and their values, read ahead by a thread into a ring of two while the devices work. Order
 * and values depend on (seed, epoch, step, row) alone. A loader allocates when it is created, and
 * then never: two slots (threaded; else one) of `share_max` samples, 4 bytes a value and 4 for each
 * sample's row, and for a shuffled order 4 bytes a row of the set. */

typedef struct dti_loader dti_loader;

typedef struct dti_loader_desc {
    const dt_dataset *data; /* copied; what it points to is used */
    uint64_t seed;
    uint32_t batch; /* rows of a full batch of the whole job */
    dt_tail tail;
    bool shuffle;
    bool threaded; /* else dti_loader_next reads */
    /* Of a batch of `rows` rows this process takes [*first, *first + *count); NULL = all. Called
     * when the batch begins to be read, on the thread of dti_loader_next or _seek. */
    void (*share)(void *user, uint32_t rows, uint32_t *first, uint32_t *count);
    void *user;
    uint32_t share_max;          /* the most that *count can be */
    int32_t pad[DT_MAX_COLUMNS]; /* what a row that fills up has in an i32 column (f32: 0) */
} dti_loader_desc;

typedef struct dti_batch {
    uint64_t epoch, index;   /* batch `index` of the epoch */
    uint64_t step;           /* number of the step that it is for */
    uint32_t rows;           /* of the whole job's batch; with DT_TAIL_PAD always `batch` */
    uint32_t real;           /* of them not filled up */
    uint32_t first, count;   /* this process's rows */
    bool last;               /* of the epoch */
    const uint32_t *sources; /* [count] rows of the data set; what fills up has none */
    const void *values[DT_MAX_COLUMNS]; /* by column: `count` samples, in its type; until the next
                                         dti_loader_next, _seek or _destroy */
} dti_batch;

/* Checks the dataset against its inputs: INVALID says which column and why (nil, no input, one
 * without samples, one that comes twice or of another graph, a type that does not go with it, scale
 * or offset where nothing is scaled, no data and no `sample`, no rows, with DROP fewer than a
 * batch, more than 2^32 - 1). MEMORY. Starts its thread with all signals blocked; when the system
 * gives none, it warns and reads in dti_loader_next. The first batch is 0 of epoch 0, step 0, and
 * begins to be read at the first _seek or _next. */
static dt_result dti_loader_create(dti_base *base, const dti_loader_desc *desc, dti_loader **out);
static void dti_loader_destroy(dti_loader *loader);
static uint64_t dti_loader_epoch_batches(const dti_loader *loader);
/* The next batch will be `index` of `epoch`, for step number `step`; index may be the number of
 * batches, which is the next epoch's first. What was read ahead is dropped. INVALID: a larger
 * index, and nothing changes. */
static dt_result dti_loader_seek(dti_loader *loader, uint64_t epoch, uint64_t index, uint64_t step);
/* Waits until the next batch is read, and begins to read the one behind it. `skipped` batches count
 * as a step too: the number goes up by one with every batch. Fails with what dt_dataset.sample
 * returned (dti_fail with the row), once; the same batch is tried again by the next call. So it
 * does with INVALID for a share that is not within its batch or above share_max. A column without
 * data is zeros when `sample` gets it. */
static dt_result dti_loader_next(dti_loader *loader, const dti_batch **out);
