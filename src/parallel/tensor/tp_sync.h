/* The place where tensor ranks synchronise: each waits for all others after a sum, and gets its
 * value. A tensor group has one place; in a grid of pipelines each stage of a tensor group has one.
 * All tensor ranks of a place compute the same ops, so the order of their sync points is the
 * same. */

#define DTI_TP_MAX 64

/* Its counters of a step: tensor ranks here at sync points, and with their values; sync points with
 * a sum of all ranks. */
enum { DTI_TP_ARRIVED, DTI_TP_LEFT, DTI_TP_SUMMED, DTI_TP_COUNTERS };

typedef struct dti_tp_place {
    uint32_t size, first, count; /* its number of tensor ranks; of those here the first, and their
                                    number */
    uint32_t counters;           /* the first of them, in the step's */
    dt_comm *comm;               /* of the ranks that have tensor ranks of it; NULL: all are here */
    bool even;                   /* the same number on each */
    dti_subtrees subtrees;       /* of its tensor ranks here */
    float *said, *heard;         /* their operands, and the sum of all */
    size_t most;                 /* elements of `said`, and of `heard` */
    /* The current step. */
    const float *brought[2][DTI_TP_MAX]; /* to this sync point, and the one before or after it */
} dti_tp_place;

typedef struct dti_tp_run { /* tensor ranks of a device at a sync point */
    dti_tp_place *place;
    uint32_t device;
    uint32_t number, count;      /* numbered from the first tensor rank here; their number */
    dt_program *const *programs; /* of each */
} dti_tp_run;

/* The place of a tensor group that has a position. */
static void dti_tp_place_open(const dti_mesh *mesh, dti_tp_place *place, uint32_t position);
/* Room for data to other ranks, for the largest sync point, in elements; it grows. MEMORY */
static dt_result dti_tp_place_make(dti_parallel *par, dti_tp_place *place, size_t most);
static void dti_tp_place_free(dti_parallel *par, dti_tp_place *place);
/* The most elements of an operand or value of a program's sync points, at least `most`. */
static size_t dti_tp_most(const dt_program *p, size_t most);
/* Sync point number `met` of the step: brings operands, and takes values. Devices of a place here
 * wait for each other. *given_up: another device failed. Errors: of a device or the comm. */
static dt_result dti_tp_meet(dti_parallel *par, const dti_tp_run *run, const dti_sync_point *m,
                             uint32_t met, bool *given_up);
