/* Sums of gradients over the shards of a job, of whoever computes several shards one after the
 * other and has a part of a model: a pipeline's chunk, a squad's member. Shards are the leaves of
 * the tree, whoever computes them, so the bits are those of one device (shard_sum.c). */

typedef struct dti_shard_stack { /* what one store has of it */
    dt_store *store;             /* its gradient arena has the newest shard's */
    uint32_t first, end;         /* shards that it computes */
    uint64_t elements;
    float
        *slots; /* sums of shards that are over, as `sums` says; NULL: there is one, in the arena */
    dti_subtrees sums;
    uint32_t done; /* shards in `sums` */
} dti_shard_stack;

typedef struct dti_shard_sum { /* of all stores, here and on other ranks, that have the same part */
    uint64_t elements;
    bool on; /* over several shards */
    dti_subtrees subtrees;
    float *partial; /* sums of this rank's shards, as subtrees says; NULL: `total` is that */
    float *total;
    dt_comm *comm; /* of the ranks that have it; NULL: this one alone */

    /* The step under way. */
    _Atomic uint32_t ready; /* stacks here that are complete */
    dt_comm_work work;
} dti_shard_sum;

/* store, first and end are set. MEMORY */
static dt_result dti_shard_stack_make(dti_parallel *par, dti_shard_stack *s);
static void dti_shard_stack_free(dti_parallel *par, dti_shard_stack *s);
static void dti_shard_stack_begin(dti_shard_stack *s);
/* The arena has the sum of a shard; last: it computes no other. Shards without rows are zeros. */
static dt_result dti_shard_pushed(const dti_parallel *par, dti_shard_stack *s, uint32_t shard,
                                  bool last);
/* It computes nothing in this step. */
static dt_result dti_shard_pushed_none(const dti_parallel *par, dti_shard_stack *s);

/* Of a part of so many elements, of which this rank computes shards [first, end). MEMORY */
static dt_result dti_shard_sum_make(dti_parallel *par, dti_shard_sum *s, uint64_t elements,
                                    uint32_t first, uint32_t end);
/* A group of the ranks that have it, in order, if they are several; on all ranks together. */
static dt_result dti_shard_sum_group(dti_parallel *par, dti_shard_sum *s, const int *ranks,
                                     int count, uint32_t first, uint32_t end);
static void dti_shard_sum_free(dti_parallel *par, dti_shard_sum *s);
static void dti_shard_sum_begin(dti_shard_sum *s);
/* All stacks of this rank, in the order of their shards, to what it says to others. */
static void dti_shard_fold(dti_shard_sum *s, dti_shard_stack *const *of, uint32_t count);
/* Posts it to other ranks, whose sum comes to `total`. */
static dt_result dti_shard_sum_post(dti_shard_sum *s);
static dt_result dti_shard_sum_end(dti_parallel *par, dti_shard_sum *s);
/* The sum, to a store's arena. */
static dt_result dti_shard_sum_put(const dti_shard_sum *s, dt_store *store);
