/* Sums of gradients over batch slices. A part of a model (a pipeline's chunk, a tensor rank)
 * computes several batch slices one after the other. They are the leaves of the tree on every
 * device, so the bits are those of one device. */

typedef struct dti_batch_slice_stack { /* one store's part of it */
    dt_store *store;                   /* its gradient arena has the newest batch slice's */
    uint32_t first, end;               /* batch slices that it computes */
    uint64_t from, elements;           /* of the arena: those that are summed */
    float *slots; /* sums of computed batch slices, as `sums` says; NULL: one, in the arena */
    dti_subtrees sums;
    uint32_t done; /* batch slices in `slots` */
} dti_batch_slice_stack;

/* Makes the stack of a program's gradients. MEMORY */
static dt_result dti_batch_slice_stack_make(dti_parallel *par, dti_batch_slice_stack *s,
                                            dt_program *p, uint32_t replica);
static void dti_batch_slice_stack_free(dti_parallel *par, dti_batch_slice_stack *s);
static void dti_batch_slice_stack_begin(dti_batch_slice_stack *s);
/* The arena has the sum of a batch slice; last: it computes no other. Shards without rows are
 * zeros. */
static dt_result dti_batch_slice_pushed(const dti_parallel *par, dti_batch_slice_stack *s,
                                        uint32_t batch_slice, bool last);
/* It computes nothing in this step. */
static dt_result dti_batch_slice_pushed_none(const dti_parallel *par, dti_batch_slice_stack *s);
static dti_sums_operands dti_batch_slice_operands(const dti_batch_slice_stack *s);

/* Sums `parts` stacks here and those of other ranks, which all have the same elements. It does
 * nothing if this rank has none of them. first: one of these stacks, in which the sum is made;
 * NULL: it has its own memory. MEMORY */
static dt_result dti_batch_slice_sum_make(dti_parallel *par, dti_sum *s, uint32_t parts,
                                          uint64_t elements, uint32_t position,
                                          const dti_batch_slice_stack *first);
static void dti_batch_slice_sums_free(dti_parallel *par); /* all of the job's */
/* The sum, to a store's arena. */
static dt_result dti_batch_slice_sum_put(const dti_sum *s, dt_store *store);
