/* Sums over samples in an order that does not depend on the number of devices. The job's batch is
 * cut into batch slices, and each batch slice into parts, computed one after the other. Each part
 * is a piece. Sums over samples, and ops that see other samples, stay within a piece. The parts of
 * a batch slice are added in order; batch slices are the leaves of comm/collective/fold.h's tree.
 *
 * A program computes a run of pieces. It adds them up on a stack of subtrees, like a binary
 * counter. A finished leaf is pushed, and two siblings become one. After a replica's last piece the
 * stack holds the maximal aligned subtrees of its batch slices. Those of other replicas are added
 * to these. Entry i of the stack lies in slot i of the gradient arena. It knows neither devices nor
 * ranks. */

#define DTI_SUBTREES_MAX 64

typedef struct dti_piece {
    uint32_t rows;     /* 0: nothing is computed, and zeros are added */
    uint32_t leaf;     /* the batch slice that it is a part of */
    bool begins, ends; /* first part, last part */
} dti_piece;

/* Gradients that travel together: elements [begin, end) of the gradient arena. If parameters travel
 * too it is a unit, which is gathered and freed with both. */
#define DTI_UNITS_MAX 64   /* bits of a mask */
#define DTI_UNITS_AHEAD 1u /* segments that may begin while a finished unit's gradients leave */
typedef struct dti_bucket {
    uint64_t begin, end;
} dti_bucket;

static inline uint64_t dti_bucket_elements(dti_bucket b) {
    return b.end - b.begin;
}

/* The overlap of the two; empty: end is begin. */
static inline dti_bucket dti_bucket_overlap(dti_bucket a, dti_bucket b) {
    const uint64_t begin = DTI_MAX(a.begin, b.begin), end = DTI_MIN(a.end, b.end);
    return (dti_bucket){begin, DTI_MAX(begin, end)};
}

typedef struct dti_subtrees {
    dt_comm_span at[DTI_SUBTREES_MAX];
    uint32_t count;
} dti_subtrees;

/* A program's facts about it; see dti_program_create. */
typedef struct dti_batch_slices {
    const dti_piece *pieces; /* of its rows, in order */
    uint32_t piece_count;
    uint32_t leaves;     /* of the whole tree */
    dti_subtrees before; /* sums that the runs before it left in the slots */
    /* One piece, whose part of the batch slice the step sets (dt_step_desc.micro_batch): the same
     * program for all parts. */
    bool any_part;
    /* The replica's last run: gradients go to the host bucket by bucket, in order. */
    bool last;
    const dti_bucket *buckets;
    uint32_t bucket_count;
    /* Each replica of the job has one run a step, so none waits for another's later run. So
     * gradients may leave before the last segment. */
    bool one_run;
} dti_batch_slices;

static uint32_t dti_pieces_rows(const dti_piece *pieces, uint32_t count); /* of all together */
/* Adds a piece: returns the entry that it is added to, or set as when it begins its leaf. */
static uint32_t dti_subtrees_add(dti_subtrees *s, const dti_piece *piece);
/* After the piece that ends a leaf. If the two newest entries are siblings in the tree over
 * `leaves`, joins the second into the first. */
static bool dti_subtrees_join(dti_subtrees *s, uint32_t leaves);
/* The stack after a run. */
static dti_subtrees dti_subtrees_after(const dti_batch_slices *batch_slices);
