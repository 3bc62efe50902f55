/* A step as data: for each device the list of what it does, in its order. A list is made once for
 * each shape of batch, and is never written while a step runs. execute.c executes it. Tests play
 * lists without a device, and prove that none waits for ever.
 *
 * Actions of a list begin in its order. An action with `after` begins when all before `after` have
 * ended. An asynchronous device gets the others ahead of time. An action with needs then waits for
 * counters of the step. Other devices or received messages raise them. */

typedef enum dti_action_kind {
    DTI_ACTION_WRITE,      /* the rows of a micro-batch to its inputs */
    DTI_ACTION_OPEN,       /* the micro-batch's step */
    DTI_ACTION_RECEIVE,    /* takes the outputs of earlier stages */
    DTI_ACTION_FORWARD,    /* segments */
    DTI_ACTION_WEIGHTS,    /* the sums of loss weights, which all ranks have agreed on */
    DTI_ACTION_BACKWARD,   /* segments; `buckets` are complete when they have ended */
    DTI_ACTION_COLLECTIVE, /* a sync point: each device brings an operand, and takes the value */
    DTI_ACTION_SEND,       /* gradients to earlier stages */
    DTI_ACTION_CLOSE,      /* losses, metrics and statistics of the micro-batch */
    DTI_ACTION_SUM,        /* its gradients to the sum over batch slices */
    DTI_ACTION_ZEROS,      /* of a device without rows: its gradients, up to `buckets` */
    DTI_ACTION_GATHER,     /* moves a unit's parameters to where the code has them; `what`: the
                              unit */
    DTI_ACTION_PASS,       /* one that others gather, by a device that does not read it */
    DTI_ACTION_KINDS
} dti_action_kind;

typedef enum dti_action_time { /* which time of the step an action is the last of */
                               DTI_ENDS_NOTHING,
                               DTI_ENDS_FORWARD,
                               DTI_ENDS_BACKWARD
} dti_action_time;

typedef struct dti_need { /* a counter of the step has this value, or more */
    uint32_t counter, value;
} dti_need;

typedef struct dti_action {
    uint8_t kind;        /* dti_action_kind */
    uint8_t ends;        /* dti_action_time */
    uint16_t part;       /* of the device's parts of the model: the number */
    uint16_t from, what; /* segments from `from` to `what`; the sync point's number */
    uint16_t buckets;    /* buckets that have arrived after it */
    uint16_t need_count; /* its number of the list's needs */
    uint32_t need;       /* the first of its needs */
    uint32_t after;      /* actions of this list before that one have ended; 0: none need have */
    uint32_t micro;      /* of the device's micro-batches */
    uint32_t met;        /* sync points of the step before it, where they are counted; or units */
    uint32_t raises;     /* the counter that its end raises, from 1; 0: none */
} dti_action;

typedef struct dti_list {
    dti_action *actions;
    dti_need *needs;
    uint32_t count, need_count;
    uint32_t taken; /* needs of actions that are put */
} dti_list;

/* Units (lower/units.c) while a list is written: the units gathered so far. The step's counters
 * are: ended sums of buckets; units received from other ranks; for each of the host's places for
 * them, how often a device here has taken one. */
#define DTI_UNITS_STAGED 2u /* units of a process in flight at a time */
enum { DTI_UNITS_SUMMED, DTI_UNITS_ARRIVED, DTI_UNITS_TAKEN };
#define DTI_UNITS_COUNTERS (DTI_UNITS_TAKEN + DTI_UNITS_STAGED)

typedef struct dti_list_units {
    uint32_t counters; /* the first of them */
    bool ranks;        /* units come from other ranks, which all let them pass in one order */
    const dti_code *code;
    uint64_t resident;                   /* units whose parameters are where the code has them */
    uint32_t count;                      /* units that have come */
    uint32_t begun[DTI_UNITS_AHEAD + 1]; /* actions before each of the newest segments */
} dti_list_units;

/* The number of segments of a micro-batch's code. */
typedef struct dti_list_micro {
    bool written;               /* its rows are in memory: they were read for weights */
    bool whole;                 /* segments are waited for together; else each by itself */
    bool idle;                  /* the device has no rows: it does only the actions that others wait
                                   for */
    dti_list_units *units;      /* NULL: parameters are not moved */
    uint32_t forward, segments; /* forward ones, and all */
    const uint32_t *buckets;    /* by segment: gradients given after it; NULL: none */
    const dti_sync_point *sync_points;
    uint32_t sync_point_count;
} dti_list_micro;

/* It is written twice: first without memory, to count. MEMORY */
typedef void dti_list_write(void *of, dti_list *list);
static dt_result dti_list_make(dti_base *base, dti_list *list, dti_list_write *write, void *of);
static void dti_list_free(dti_base *base, dti_list *list);
static void dti_list_put(dti_list *list, dti_action action);
/* A need of the next action that is put; of one counter the largest value stays. */
static void dti_list_needs(dti_list *list, uint32_t counter, uint32_t value);
/* Segments from..end, with a sync point after each that ends with its operand; the other fields are
 * `action`'s. */
static void dti_list_segments(dti_list *list, dti_action action, const dti_list_micro *of,
                              uint32_t from, uint32_t end);
static void dti_list_add_micro(dti_list *list, uint32_t micro, const dti_list_micro *of);
/* Of an idle device; buckets: the number of gradients that it gives at once. */
static void dti_list_add_none(dti_list *list, uint32_t micro, const dti_list_micro *of,
                              uint32_t buckets);
/* Actions that may begin before the ranks have agreed: no action waits for another device. */
static uint32_t dti_list_ahead(const dti_list *list);
