/* Where members meet: each of a line's waits for all others behind a sum, and has its value. A
 * squad has one such place a line, a grid of pipelines of members one for each stage of a line:
 * what members of a place compute, and so the order of their meetings, is the same for all. */

#define DTI_SQUAD_MAX 64

typedef struct dti_squad_place {
    uint32_t size, first, count;     /* members; of those that are here the first, how many */
    _Atomic bool *failed, *speaking; /* of the step: of this rank, and of its threads */
    bool apart;                      /* threads here speak to other ranks one at a time */
    dt_comm *comm;                   /* of the ranks that have members of it; NULL: all are here */
    bool even;                       /* as many on each */
    dti_subtrees subtrees;           /* of its members here, */
    float *said, *heard;             /* their operands, and what all sum up to */
    /* The step under way. */
    const float *brought[2][DTI_SQUAD_MAX]; /* to this meeting, and the one before or behind it */
    _Atomic uint32_t summed;                /* meetings whose sum of all ranks is there */
    _Atomic uint32_t arrived, left;         /* members here: at meetings, and with their values */
} dti_squad_place;

/* Segments [from, end) of the programs of a thread's members, which it computes in turns. */
typedef struct dti_squad_run {
    dti_squad_place *place;
    uint32_t number, count;      /* of the first member, how many */
    dt_program *const *programs; /* of each */
    uint32_t from, end;
} dti_squad_run;

/* Of line `line` of `size` members; first and count are set. Room for what goes to other ranks, by
 * the largest meeting, in elements. MEMORY */
static dt_result dti_squad_place_make(dti_parallel *par, dti_squad_place *place, size_t most);
static void dti_squad_place_free(dti_parallel *par, dti_squad_place *place);
static void dti_squad_place_begin(dti_squad_place *place);
/* The most elements that a meeting of a program takes or gives, at least `most`. */
static size_t dti_squad_most(const dt_program *p, size_t most);
/* The ranks of positions first, first + step, ... */
static int dti_squad_ranks(const dti_parallel *par, uint32_t first, uint32_t step, uint32_t count,
                           int *ranks);
/* A group of the ranks of line `line`, positions [line size, (line + 1) size), if they are several;
 * on all ranks together. place: NULL where this one has none of it. */
static dt_result dti_squad_place_group(dti_parallel *par, uint32_t line, uint32_t size,
                                       dti_squad_place *place, int *ranks);
/* Runs them, and meets as often as they do; met: meetings of the members in this step. *go_on:
 * false where another device failed. Errors: what a device or a comm says. */
static dt_result dti_squad_run_to(dti_parallel *par, const dti_squad_run *run, uint32_t *met,
                                  bool *go_on);
/* Waits until nobody reads what a member brought to its meetings so far; false: a device failed. */
static bool dti_squad_left(dti_parallel *par, dti_squad_place *place, uint32_t met);
