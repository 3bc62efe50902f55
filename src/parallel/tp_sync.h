/* Where tensor ranks meet: each of a tensor group's waits for all others behind a sum, and has its
 * value. A tensor group has one such place a tensor group, a grid of pipelines of tensor ranks one
 * for each stage of a tensor group: what tensor ranks of a place compute, and so the order of their
 * sync points, is the same for all. */

#define DTI_TP_MAX 64

typedef struct dti_tp_place {
    uint32_t size, first, count;     /* tensor ranks; of those that are here the first, how many */
    _Atomic bool *failed, *speaking; /* of the step: of this rank, and of its threads */
    bool apart;                      /* threads here speak to other ranks one at a time */
    dt_comm *comm;         /* of the ranks that have tensor ranks of it; NULL: all are here */
    bool even;             /* as many on each */
    dti_subtrees subtrees; /* of its tensor ranks here, */
    float *said, *heard;   /* their operands, and what all sum up to */
    /* The step under way. */
    const float *brought[2][DTI_TP_MAX]; /* to this sync point, and the one before or behind it */
    _Atomic uint32_t summed;             /* sync points whose sum of all ranks is there */
    _Atomic uint32_t arrived, left; /* tensor ranks here: at sync points, and with their values */
} dti_tp_place;

/* Segments [from, end) of the programs of a thread's tensor ranks, which it computes in turns. */
typedef struct dti_tp_run {
    dti_tp_place *place;
    uint32_t number, count;      /* of the first tensor rank, how many */
    dt_program *const *programs; /* of each */
    uint32_t from, end;
} dti_tp_run;

/* Of tensor group `tensor group` of `size` tensor ranks; first and count are set. Room for what
 * goes to other ranks, by the largest sync point, in elements. MEMORY */
static dt_result dti_tp_place_make(dti_parallel *par, dti_tp_place *place, size_t most);
static void dti_tp_place_free(dti_parallel *par, dti_tp_place *place);
static void dti_tp_place_begin(dti_tp_place *place);
/* The most elements that a sync point of a program takes or gives, at least `most`. */
static size_t dti_tp_most(const dt_program *p, size_t most);
/* The ranks of positions first, first + step, ... */
static int dti_tp_ranks(const dti_parallel *par, uint32_t first, uint32_t step, uint32_t count,
                        int *ranks);
/* A group of the ranks of tensor group `tensor group`, positions [tensor group size, (tensor group
 * + 1) size), if they are several; on all ranks together. place: NULL where this one has none of
 * it. */
static dt_result dti_tp_place_group(dti_parallel *par, uint32_t tp_group, uint32_t size,
                                    dti_tp_place *place, int *ranks);
/* Runs them, and meets as often as they do; met: sync points of the tensor ranks in this step.
 * *go_on: false where another device failed. Errors: what a device or a comm says. */
static dt_result dti_tp_run_to(dti_parallel *par, const dti_tp_run *run, uint32_t *met,
                               bool *go_on);
/* Waits until nobody reads what a tensor rank brought to its sync points so far; false: a device
 * failed. */
static bool dti_tp_left(dti_parallel *par, dti_tp_place *place, uint32_t met);
