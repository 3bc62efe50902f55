/* The inside of a dt_comm: a rank of a group, and the transport that executes its operations.
 * comm.c owns what all transports share, group.c the agreements of all ranks. A transport
 * (single.c, thread.c, tcp.c, mpi.c) gets operations that coll.c has checked. */

#define DTI_PENDING_MAX 128 /* operations in flight in one comm and its groups */

/* Bounds of dt_comm_link: within them no sum of times overflows. */
#define DTI_LATENCY_MOST_NS UINT64_C(10000000000)
#define DTI_BYTES_PER_S_LEAST UINT64_C(1000)
#define DTI_BYTES_PER_S_MOST UINT64_C(1000000000000)

typedef struct dti_transport {
    const char *name;
    /* Posts a checked operation; *id is never 0. Errors: REVOKED ("the group has ended: " and the
     * cause), MEMORY, UNSUPPORTED, after dti_fail. Then no buffer is in use. */
    dt_result (*begin)(dt_comm *comm, const dt_comm_op *op, uint64_t *id);
    /* Each ends the handle when it returns anything but TIMEOUT, and records its failure by
     * dti_fail (not TIMEOUT, which comm.c says). timeout_ns: 0 = look once, UINT64_MAX = no limit.
     * INVALID for an id that is not pending, and for nothing else; neither ends a group. */
    dt_result (*wait)(dt_comm *comm, uint64_t id, uint64_t timeout_ns);
    dt_result (*cancel)(dt_comm *comm, uint64_t id);
    /* Ends all groups, with CANCELLED on the other ranks, whatever they wait for or come to next.
     * NULL: no groups. */
    void (*give_up)(dt_comm *comm);
    /* Whom a pending operation waits for, for TIMEOUT's text: "ranks 1 and 3 have not posted it".
     * May be NULL. */
    void (*waits_for)(dt_comm *comm, uint64_t id, char *text, size_t size);
    /* Gives `child`, which has rank, size, ranks and group_id, its state. Called on all ranks of
     * the group, or on none. Two groups that share a rank have different ids; other groups may have
     * the same. A failure leaves no state. */
    dt_result (*group)(dt_comm *parent, dt_comm *child);
    void (*info)(const dt_comm *comm, dt_comm_info *info);
    /* Whether to measure links (measure.c); NULL: never. Then `link` sets the costs that all ranks
     * agreed on, and the traffic of the measurement is not counted. */
    bool (*measures)(dt_comm *comm);
    void (*link)(dt_comm *comm, const dt_comm_link *network, const dt_comm_link *local);
    /* Ends the state of this comm; of a group only its own state. Groups made from it have been
     * closed before. */
    void (*close)(dt_comm *comm);
} dti_transport;

struct dt_comm {
    dti_base own_base; /* of a comm that dt_comm_create made; groups use their root's */
    dti_base *base;
    const dti_transport *transport; /* NULL: creation failed, only the error exists; or ended */
    void *state;                    /* the transport's */
    dt_comm *parent;                /* of a group */
    dt_comm *children, *sibling;    /* groups made from this one that live; the next in that list */
    bool ended;                     /* it or its parent was destroyed */
    bool destroyed;                 /* itself: the memory stays while groups made from it live */
    uint32_t rank, size;
    uint32_t group_id;             /* 0 = all ranks */
    uint32_t local, each;          /* of dti_collective, if the transport has such; else 0 */
    const struct dti_costs *costs; /* the same; else NULL */
    uint32_t next_group;  /* the root's: a lower bound of the id of the next group; see group.c */
    uint32_t *ranks;      /* [size] ranks in the root comm; NULL = the same */
    dt_comm_span *leaves; /* [size] of dt_comm_set_leaves; NULL = none */
    uint32_t leaf_total;
    uint32_t leaf_changes; /* number of calls that set leaves: cached data of fewer calls is old */
    uint64_t *votes;       /* [4 * size] scratch of the agreements of group.c */
    dt_result cause;     /* the root's: of the group's end, once an operation was refused for it */
    bool reported;       /* the root's: a trainer's call has returned the cause */
    bool will_wait;      /* begin is followed by wait at once */
    uint64_t pending;    /* handles that have not ended */
    uint64_t operations; /* finished */
    char launcher[16];   /* dt_comm_desc's */
};

#ifndef DT_COMM_ONLY
/* The result of a trainer's call whose operation failed. REVOKED becomes the cause of the group's
 * end in the first call that reports it; `same`: another operation of this call has. */
static dt_result dti_comm_cause(dt_comm *comm, dt_result result, bool same);
/* Ends the job's groups, because others wait for data that never comes. Their operations fail with
 * CANCELLED, which names this rank. Own operations stay pending until they are cancelled. NULL is
 * allowed. */
static void dti_comm_give_up(dt_comm *comm);
#endif

/* A comm that has no transport yet, in memory of `base`: a root one (parent NULL, which copies
 * *base) or a group. NULL after dti_fail(base, MEMORY). */
static dt_comm *dti_comm_new(dti_base *base, dt_comm *parent, uint32_t rank, uint32_t size);
/* The comm of dt_comm_create. */
static dt_comm *dti_comm_root(dt_comm *comm);
/* Refuses an operation of a group that has ended: REVOKED, and keeps the cause. */
static dt_result dti_comm_revoked(dt_comm *comm, dt_result cause, const char *text);
/* Frees the memory of dti_comm_new; the transport is closed. */
static void dti_comm_free(dt_comm *comm);

/* Each sets transport and state of a comm that has rank and size. A failure sets none, after
 * dti_fail. */
static dt_result dti_comm_open_single(dt_comm *comm);
static dt_result dti_comm_open_tcp(dt_comm *comm, const dt_comm_desc *desc);
static dt_result dti_comm_open_mpi(dt_comm *comm, const dt_comm_desc *desc, bool owns);
/* Before it: initialises MPI, unless the application has (then *owns is false), and takes rank and
 * world_size from it (`ask`), or checks them. Leave: finalises it, if it is owned. */
static dt_result dti_mpi_enter(dti_base *base, dt_comm_desc *desc, bool ask, bool *owns);
static void dti_mpi_leave(bool owns);

/* Measures the links, in a group that has just been joined, if they are to be measured. */
static dt_result dti_comm_measure(dt_comm *comm, const dt_comm_desc *desc);
