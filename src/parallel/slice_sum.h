/* Sums of gradients over the batch slices of a job, for whoever has a part of a model and computes
 * several batch slices one after the other: a pipeline's chunk, a tensor rank. Batch slices are the
 * leaves of the tree, whoever computes them, so the bits are those of one device (slice_sum.c). */

typedef struct dti_batch_slice_stack { /* what one store has of it */
    dt_store *store;                   /* its gradient arena has the newest batch slice's */
    uint32_t first, end;               /* batch slices that it computes */
    uint64_t elements;
    float *slots; /* sums of computed batch slices, as `sums` says; NULL: one, in the arena */
    dti_subtrees sums;
    uint32_t done; /* batch slices in `sums` */
} dti_batch_slice_stack;

typedef struct
    dti_batch_slice_sum { /* of all stores, here and on other ranks, that have the same part */
    uint64_t elements;
    bool on; /* over several batch slices */
    dti_subtrees subtrees;
    float *partial; /* sums of this rank's batch slices, as subtrees says; NULL: `total` is that */
    float *total;
    dt_comm *comm; /* of the ranks that have it; NULL: this one alone */

    /* The step under way. */
    _Atomic uint32_t ready; /* stacks here that are complete */
    dt_comm_work work;
} dti_batch_slice_sum;

static dt_result dti_batch_slice_stack_make(dti_parallel *par, dti_batch_slice_stack *s,
                                            dt_store *store, uint32_t replica); /* MEMORY */
static void dti_batch_slice_stack_free(dti_parallel *par, dti_batch_slice_stack *s);
static void dti_batch_slice_stack_begin(dti_batch_slice_stack *s);
/* The arena has the sum of a batch slice; last: it computes no other. Shards without rows are
 * zeros. */
static dt_result dti_batch_slice_pushed(const dti_parallel *par, dti_batch_slice_stack *s,
                                        uint32_t batch_slice, bool last);
/* It computes nothing in this step. */
static dt_result dti_batch_slice_pushed_none(const dti_parallel *par, dti_batch_slice_stack *s);

/* Of a part of `elements` that a position has, and its like in all replicas; nothing where this
 * rank has none of them. MEMORY */
static dt_result dti_batch_slice_sum_make(dti_parallel *par, dti_batch_slice_sum *s,
                                          uint64_t elements, uint32_t position);
static void dti_batch_slice_sum_free(dti_parallel *par, dti_batch_slice_sum *s);
static void dti_batch_slice_sum_begin(dti_batch_slice_sum *s);
/* All stacks of this rank, in the order of their batch slices, to what it says to others. */
static void dti_batch_slice_fold(dti_batch_slice_sum *s, dti_batch_slice_stack *const *of,
                                 uint32_t count);
/* Posts it to other ranks, whose sum comes to `total`. */
static dt_result dti_batch_slice_sum_post(dti_batch_slice_sum *s);
static dt_result dti_batch_slice_sum_end(dti_parallel *par, dti_batch_slice_sum *s);
/* The sum, to a store's arena. */
static dt_result dti_batch_slice_sum_put(const dti_batch_slice_sum *s, dt_store *store);
