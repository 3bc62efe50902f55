/* Sums of gradients in a step. A bucket's parts are replicas, a chunk's are pipelines. A sum is
 * ready when all its parts here have arrived. It is then folded in slices, which idle threads take.
 * Each element is added in the fixed tree over batch slices, so the bits do not depend on threads.
 * Between ranks a sum is one all-reduce in tree mode, or one reduce to each owner. Sums are posted
 * in order.
 *
 * DT_COMPRESS_BF16: a rank folds its parts of a sum, and rounds the result to bf16. The ranks'
 * values are summed in float32, in the tree over ranks, and rounded to bf16 once more. So a rank's
 * leaves are one operand, and the bits depend on which batch slices it has. */

#define DTI_SLICE 16384 /* elements: 64 KiB of each part */

typedef struct dti_works { /* operations that were posted together */
    dt_comm_work *at;
    uint32_t room; /* the most in flight: another one waits for the oldest */
    uint32_t count, ended;
} dti_works;

/* A part's share of a sum: sums of subtrees, one after the other. */
typedef struct dti_sums_operands {
    float *data;
    uint64_t stride;
    const dti_subtrees *subtrees;
} dti_sums_operands;

typedef struct dti_sum {
    uint64_t elements;
    uint32_t parts;        /* here */
    uint32_t slices;       /* 0: the only part has it in its place */
    dti_subtrees subtrees; /* of this process */
    float *partial;        /* their sums, one after the other; NULL: there is one, in `total` */
    float *total;
    /* DT_COMPRESS_BF16: this rank's operand, then the sum of all. NULL: ranks exchange float32. */
    uint16_t *rounded;
    bool in_place; /* of a stack's: total is a part's */
    dt_comm *comm; /* NULL: all parts are here */

    /* The current step. */
    _Atomic uint32_t arrived;    /* parts */
    _Atomic uint32_t next, done; /* slices handed out, and folded */
    dti_works works;
} dti_sum;

struct dti_parallel;
typedef struct dti_sum_kind { /* the elements of the sums; `number` is the sum's */
    dti_sums_operands (*operands)(const struct dti_parallel *par, uint32_t number, uint32_t part);
    /* Without other ranks a slice is final once it is folded, and goes to the parts that need it.
     * NULL: to no part. */
    void (*spread)(const struct dti_parallel *par, uint32_t number, uint64_t at, uint64_t n);
    /* To other ranks. NULL: an all-reduce to `total`. */
    dt_result (*post)(struct dti_parallel *par, uint32_t number);
    bool early; /* received sums are spread while others are in flight; else they stay */
} dti_sum_kind;

typedef struct dti_sums { /* of a job */
    const dti_sum_kind *kind;
    dti_sum *list;
    uint32_t count;
    uint32_t window; /* sums that have been folded or posted, and not ended */
    uint32_t ended;  /* the step's counter of those that have; without a comm: that are folded, and
                        all before them too */
    dt_comm_work *works;

    /* The current step. */
    uint32_t posted;
    dt_result error; /* of the first that could not be posted */
} dti_sums;
