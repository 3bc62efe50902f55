/* The rows of each replica. The batch of the whole job is cut into batch slices at fixed rows. A
 * replica has a run of whole batch slices. A process has those of its replicas, in order of ranks.
 * A batch slice is computed in `parts`, one after the other. Rows depend only on batch, batch
 * slices and parts, never on the number of replicas. */

typedef struct dti_partition {
    uint32_t replicas;     /* of the whole job */
    uint32_t first, local; /* this process's: [first, first + local) */
    uint32_t batch_slices, parts, batch;
    bool apart; /* each piece is a run by itself */
    const uint32_t *
        bounds; /* first row of each batch slice, and the batch; NULL: batch slices of equal size */
} dti_partition;

/* The first batch slice of a replica. For the replica after the last: the number of batch
 * slices. */
static uint32_t dti_partition_begin(const dti_partition *job, uint32_t replica);
/* Batch slices [*first, *end) of a replica. */
static void dti_partition_batch_slices(const dti_partition *job, uint32_t replica, uint32_t *first,
                                       uint32_t *end);
/* The first row of a batch slice in a batch of `rows` rows. A short batch fills the first
 * slices. */
static uint32_t dti_partition_row(const dti_partition *job, uint32_t batch_slice, uint32_t rows);
/* Rows of a piece (number batch slice * parts + part) in a batch of `rows` rows. */
static uint32_t dti_partition_piece(const dti_partition *job, uint32_t piece, uint32_t rows);
/* The maximal aligned subtrees of batch slices [first, end). */
static dti_subtrees dti_partition_subtrees(const dti_partition *job, uint32_t first, uint32_t end);

/* The rows that a replica computes at a time: consecutive ones. */
typedef struct dti_micro_run {
    uint32_t row, rows; /* of the batch of the whole job */
    dti_piece *pieces;  /* in the plan's array */
    uint32_t piece_count;
    uint32_t first_piece; /* its first piece's number in the job: batch slice * parts + part */
    dti_subtrees before;  /* the sum that runs before it left */
    bool any_part, last;  /* see dti_batch_slices */
    uint32_t micro;       /* 0, 1, ... of the replica's runs */
    struct dt_program *program; /* set by the code that makes the programs */
} dti_micro_run;

/* A replica's runs for batches of `rows` rows; none when it has no rows. */
typedef struct dti_runs {
    uint32_t rows;
    dti_micro_run *runs;
    uint32_t count;
    dti_piece *pieces;
    uint32_t piece_count;
    uint32_t slots; /* of the gradient arena */
    dti_list list;  /* the replica's program of it; set by the code that makes the programs */
} dti_runs;

static dt_result dti_runs_make(dti_base *base, const dti_partition *job, uint32_t replica,
                               uint32_t rows, dti_runs *out);
static void dti_runs_free(dti_base *base, dti_runs *runs);
/* The most runs that any replica of the job has. */
static dt_result dti_runs_most(dti_base *base, const dti_partition *job, uint32_t rows,
                               uint32_t *most);
