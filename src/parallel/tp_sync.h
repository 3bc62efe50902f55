/* The place where tensor ranks synchronise: each waits for all others after a sum, and gets its
 * value. A tensor group has one place; in a grid of pipelines each stage of a tensor group has one.
 * All ranks of a place compute the same ops, so the order of their sync points is the same. */

#define DTI_TP_MAX 64

typedef struct dti_tp_place {
    uint32_t size, first, count;     /* tensor ranks of it; of those here the first, how many */
    _Atomic bool *failed, *speaking; /* the step's: of this rank, and of its threads */
    bool apart;                      /* threads here use the comm one at a time */
    dt_comm *comm;         /* of the ranks that have tensor ranks of it; NULL: all are here */
    bool even;             /* the same number on each */
    dti_subtrees subtrees; /* of its tensor ranks here, */
    float *said, *heard;   /* their operands, and the sum of all */
    /* The step under way. */
    const float *brought[2][DTI_TP_MAX]; /* to this sync point, and the one before or after it */
    _Atomic uint32_t summed;             /* sync points whose sum of all ranks is there */
    _Atomic uint32_t arrived, left; /* tensor ranks here: at sync points, and with their values */
} dti_tp_place;

/* Segments [from, end) of the programs of a thread's tensor ranks, which it computes
 * alternately. */
typedef struct dti_tp_run {
    dti_tp_place *place;
    uint32_t number, count;      /* of the first tensor rank, how many */
    dt_program *const *programs; /* of each */
    uint32_t from, end;
} dti_tp_run;

/* The place of a tensor group that has a position. */
static void dti_tp_place_open(const dti_mesh *mesh, dti_tp_place *place, uint32_t position);
/* Room for what goes to other ranks, by the largest sync point, in elements. MEMORY */
static dt_result dti_tp_place_make(dti_parallel *par, dti_tp_place *place, size_t most);
static void dti_tp_place_free(dti_parallel *par, dti_tp_place *place);
static void dti_tp_place_begin(dti_tp_place *place);
/* The most elements that a sync point of a program takes or gives, at least `most`. */
static size_t dti_tp_most(const dt_program *p, size_t most);
/* Makes a comm group of its ranks, if they are several; called on all ranks together. place: NULL
 * if this rank has none of it. */
static dt_result dti_tp_place_group(dti_parallel *par, uint32_t position, dti_tp_place *place);
/* Runs them through their sync points. met: number of sync points passed in this step. *go_on:
 * false if another device failed. Errors: of a device or the comm. */
static dt_result dti_tp_run_to(dti_parallel *par, const dti_tp_run *run, uint32_t *met,
                               bool *go_on);
/* Waits until nobody reads what a tensor rank brought to its sync points so far; false: a device
 * failed. */
static bool dti_tp_left(dti_parallel *par, dti_tp_place *place, uint32_t met);
