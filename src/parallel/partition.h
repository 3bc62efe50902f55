/* Who computes which rows. The batch of the whole job is cut into shards at fixed rows; a replica
 * has a run of whole shards, a process the shards of its replicas, in order of ranks. A shard is
 * computed in `parts`, one after the other. Rows depend on batch, shards and parts alone, never on
 * how many replicas there are. */

typedef struct dti_partition {
    uint32_t replicas;     /* of the whole job */
    uint32_t first, local; /* this process's: [first, first + local) */
    uint32_t shards, parts, batch;
    bool apart;             /* each piece is a run by itself */
    const uint32_t *bounds; /* first row of each shard, and the batch; NULL: shards of equal size */
} dti_partition;

/* Shards [*first, *end) of a replica. */
static void dti_partition_shards(const dti_partition *job, uint32_t replica, uint32_t *first,
                                 uint32_t *end);
/* The first row of a shard in a batch of `rows` rows: a short batch fills the first shards. */
static uint32_t dti_partition_row(const dti_partition *job, uint32_t shard, uint32_t rows);
/* Rows of a piece (number shard * parts + part) in a batch of `rows` rows. */
static uint32_t dti_partition_piece(const dti_partition *job, uint32_t piece, uint32_t rows);
/* The maximal aligned subtrees of shards [first, end). */
static dti_subtrees dti_partition_subtrees(const dti_partition *job, uint32_t first, uint32_t end);

/* What a replica computes at a time: rows that lie together. */
typedef struct dti_micro_run {
    uint32_t row, rows; /* of the batch of the whole job */
    dti_piece *pieces;  /* in the plan's array */
    uint32_t piece_count;
    uint32_t first_piece;       /* its first piece's number in the job: shard * parts + part */
    dti_subtrees before;        /* what runs before it left */
    bool any_part, last;        /* see dti_shards */
    uint32_t micro;             /* 0, 1, ... of the replica's runs */
    struct dt_program *program; /* set by who makes them */
} dti_micro_run;

/* A replica's runs for batches of `rows` rows; none when it has no rows. */
typedef struct dti_runs {
    uint32_t rows;
    dti_micro_run *runs;
    uint32_t count;
    dti_piece *pieces;
    uint32_t piece_count;
    uint32_t slots; /* of the gradient arena */
} dti_runs;

static dt_result dti_runs_make(dti_base *base, const dti_partition *job, uint32_t replica,
                               uint32_t rows, dti_runs *out);
static void dti_runs_free(dti_base *base, dti_runs *runs);
