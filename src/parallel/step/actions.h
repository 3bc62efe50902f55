/* A step as data: for each device the list of what it does, in its order. A list is made once for
 * each shape of batch, and is never written while a step runs. Who works it off is execute.c; tests
 * play lists without a device, so that none waits for ever.
 *
 * Actions of a list begin in its order. One with `waits` begins when all before it have ended: a
 * device that runs on its own gets the others ahead of time. What other devices wait for is a
 * COLLECTIVE, or a bucket that has arrived. */

typedef enum dti_action_kind {
    DTI_ACTION_WRITE,      /* the rows of a micro-batch to its inputs */
    DTI_ACTION_OPEN,       /* the micro-batch's step */
    DTI_ACTION_FORWARD,    /* a segment */
    DTI_ACTION_WEIGHTS,    /* the sums of loss weights, which all ranks have agreed on */
    DTI_ACTION_BACKWARD,   /* a segment; `buckets` are complete when it has ended */
    DTI_ACTION_COLLECTIVE, /* a sync point: each device brings an operand, and takes the value */
    DTI_ACTION_CLOSE,      /* losses, metrics and statistics of the micro-batch */
    DTI_ACTION_ZEROS,      /* of a device without rows: its gradients */
    DTI_ACTION_KINDS
} dti_action_kind;

typedef struct dti_action {
    uint8_t kind;     /* dti_action_kind */
    bool waits;       /* for all that the device has begun */
    uint16_t what;    /* the segment, or the sync point's number */
    uint16_t buckets; /* buckets that have arrived after it */
    uint32_t micro;   /* of the device's micro-batches */
} dti_action;

typedef struct dti_list {
    dti_action *actions;
    uint32_t count;
} dti_list;

/* Of a micro-batch: its code's segments. */
typedef struct dti_list_micro {
    bool written;               /* its rows are there: they were looked at for weights */
    uint32_t forward, segments; /* forward ones, and all */
    const uint32_t *buckets;    /* by segment: how many have been given after it; NULL: none are */
    const dti_sync_point *sync_points;
    uint32_t sync_point_count;
} dti_list_micro;

/* A list is written twice: first without `actions`, to count them. */
static void dti_list_add_micro(dti_list *list, uint32_t micro, const dti_list_micro *of);
/* Of a device without rows. */
static void dti_list_add_none(dti_list *list, uint32_t buckets, uint32_t sync_points);
/* Actions that may begin before the ranks have agreed: nobody waits for anybody in them. */
static uint32_t dti_list_ahead(const dti_list *list);
