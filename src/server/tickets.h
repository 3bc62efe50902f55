/* The work items (tickets) of a parameter server's workers, without I/O. Its input is workers, time
 * and messages, its output decisions. Batches have serial numbers from 1, in the order of the data,
 * over all epochs. Each is cut into batch slices; a ticket is a batch slice of a batch. A batch is
 * complete when all its tickets have been pushed. Batches are resolved in the order of serials:
 * applied, or skipped if a worker found a NaN.
 *
 * Batch q is handed out when all up to q - staleness - 1 are resolved. So a worker at clock q goes
 * on while the slowest one is at q - staleness or later. This is stale synchronous parallel (Ho et
 * al. 2013). With staleness 0 it is the synchronous step.
 *
 * A push counts once, by its ticket. A ticket returns when its worker is lost, or seems lost by the
 * ticket's age. So each ticket of a batch is pushed by exactly one worker. */

typedef enum dti_ticket_state {
    DTI_TICKET_FREE,
    DTI_TICKET_OUT,    /* with a worker */
    DTI_TICKET_COMING, /* its push is on its way */
    DTI_TICKET_DONE
} dti_ticket_state;

typedef struct dti_ticket {
    uint8_t state;
    uint32_t who;
    uint64_t since; /* ns */
} dti_ticket;

typedef struct dti_batch_open {
    uint64_t step;   /* the epoch that its workers compute for; 0: no worker has asked yet */
    uint32_t done;   /* tickets */
    bool faulty;     /* a worker found a NaN or infinity: it is skipped */
    uint64_t oldest; /* the least version that a push was computed with */
} dti_batch_open;

typedef struct dti_tickets {
    uint32_t batch_slices, window; /* window: staleness + 1, batches that can be open */
    uint64_t batches;              /* of an epoch */
    uint32_t tail_batch_slices;    /* that have rows in the last batch of one */
    uint64_t limit_ns;    /* a ticket that is out for longer goes to the next worker that asks; 0 =
                             no limit */
    uint64_t base;        /* the first serial that is not resolved */
    dti_batch_open *open; /* [window] by serial modulo it */
    dti_ticket *tickets;  /* [window][batch slices] */
    uint64_t again;       /* tickets handed out a second time */
    uint64_t twice, late; /* pushes: repeated ones, and those of void tickets */
} dti_tickets;

/* Memory is the caller's: open[window], tickets[window * batch slices]. From serial `base` on. */
static void dti_tickets_start(dti_tickets *t, uint64_t base);

typedef enum dti_ticket_answer {
    DTI_TICKET_TAKEN, /* *serial, *batch slice */
    DTI_TICKET_WAIT,  /* nothing can be handed out now */
    DTI_TICKET_ENDED  /* the worker's epoch is resolved */
} dti_ticket_answer;
/* The next ticket of `epoch` for a worker. steps: committed so far. */
static dti_ticket_answer dti_tickets_take(dti_tickets *t, uint32_t who, uint64_t epoch,
                                          uint64_t steps, uint64_t now, uint64_t *serial,
                                          uint32_t *batch_slice);

typedef enum dti_push_answer { DTI_PUSH_TAKEN, DTI_PUSH_TWICE, DTI_PUSH_VOID } dti_push_answer;
/* A push begins to come; TAKEN: it is this one that counts, unless its worker is lost, and no other
 * that is still coming. VOID: another is, and is not old, or the batch is not open. */
static dti_push_answer dti_tickets_push(dti_tickets *t, uint32_t who, uint64_t serial,
                                        uint32_t batch_slice, uint64_t now);
/* It has come whole. False: its ticket went to somebody else meanwhile. */
static bool dti_tickets_pushed(dti_tickets *t, uint32_t who, uint64_t serial, uint32_t batch_slice,
                               uint64_t version);
/* The ticket is free again: a push of its former worker does not count. */
static void dti_tickets_drop(dti_tickets *t, uint32_t who, uint64_t serial, uint32_t batch_slice);
/* The oldest version that a push for a batch can have been computed with. */
static uint64_t dti_tickets_oldest(const dti_tickets *t, uint64_t serial);
/* The worker found a value that is not finite: the batch is skipped. VOID: as of a push. */
static dti_push_answer dti_tickets_fault(dti_tickets *t, uint32_t who, uint64_t serial,
                                         uint32_t batch_slice, uint64_t now);
static void dti_tickets_lost(dti_tickets *t, uint32_t who);
/* Whether the batch `base` is complete; then the caller applies it, and resolves it. */
static bool dti_tickets_complete(const dti_tickets *t);
static void dti_tickets_resolve(dti_tickets *t);
