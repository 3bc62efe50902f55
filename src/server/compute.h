/* A worker's computation: the gradient of a ticket's batch slice. It has the bits that a replica
 * computes for that slice. A batch slice has one of at most three numbers of rows; each has
 * programs of its own. */

#define DTI_SHARES_MAX 3

typedef struct dti_share_runs {
    uint32_t size, rows; /* of the batch slice in a full batch; in this one */
    dti_runs own, *runs; /* programs; own unless they are the replica's */
} dti_share_runs;

typedef struct dti_shares {
    dti_partition job; /* batch slices, parts, batch of all */
    uint32_t tail;     /* rows of an epoch's last batch; 0: it is full */
    dti_share_runs at[DTI_SHARES_MAX];
    uint32_t count;
    bool weighs;     /* a loss's weight depends on targets, of all batch slices */
    double *weights; /* [batch slices][DT_MAX_TERMS] */
} dti_shares;

/* Rows of the largest batch slice: the batch that the replica's own programs are for. */
static uint32_t dti_shares_most(const dti_partition *job);
/* The programs of all other numbers of rows; par has been built for the largest. */
static dt_result dti_shares_make(dti_parallel *par, dti_shares *s);
static void dti_shares_free(dti_parallel *par, dti_shares *s);
/* Rows [*first, *first + *count) of a batch, of `rows` rows, that a worker reads for a batch
 * slice. */
static void dti_shares_rows(const dti_shares *s, uint32_t batch_slice, uint32_t rows,
                            uint32_t *first, uint32_t *count);
/* Computes it: gradients are the replica's, sums and statistics par's. NUMERIC, and which op, if
 * any of that is not finite. Nothing of the store changes. out->empty: no target of the whole batch
 * counts; with .skip_empty nothing was computed then. */
static dt_result dti_shares_compute(dti_parallel *par, dti_shares *s, const dti_batch *batch,
                                    uint32_t batch_slice, const dt_step_desc *step,
                                    dti_parallel_result *out);

/* On both sides: the parts of the gradients for the server of [begin, end). */
static dti_push_shape dti_push_shape_of(const dti_parallel *par, uint64_t begin, uint64_t end);
static void dti_push_write(const dti_parallel *par, const dti_push_shape *shape, uint64_t version,
                           void *to);
/* Whether all numbers of a push are finite. */
static bool dti_push_is_finite(const dti_push_shape *shape, const void *push);
/* Makes one update of the store, a replica without rows, from the pushes of all batch slices. The
 * pushes are `stride` bytes apart. Gradients are multiplied by `clip`. out: as dti_parallel_end
 * fills it. */
static dt_result dti_push_apply(dti_parallel *par, const dti_push_shape *shape, char *pushes,
                                uint64_t stride, uint32_t rows, float clip,
                                const dt_step_desc *step, dti_parallel_result *out);
/* The blocks of 256 elements in [begin, end); and the squares of the pushes' sum, for each. */
static uint64_t dti_push_blocks(uint64_t begin, uint64_t end);
static void dti_push_measure(dti_parallel *par, const dti_push_shape *shape, char *pushes,
                             uint64_t stride, uint32_t rows, float *squares);
/* The factor for a gradient with these squares of all blocks. NaN: it is not finite. */
static float dti_push_clip(const float *squares, uint64_t blocks, float limit);
