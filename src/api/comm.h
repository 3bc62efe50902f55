/* ---- Collectives over several processes or threads ----------------------------------------------
 *
 * A dt_comm is this process's (or thread's) place in a group of ranks. It needs no context and no
 * device: a program that only wants to sum arrays over hosts defines DT_COMM_ONLY and uses this
 * part alone. docs/distributed.md has the quick start, the threats and the protocol byte by byte.
 *
 *     dt_comm_desc desc = dt_comm_desc_from_env();      // torchrun, mpirun, srun, dtrun, ...
 *     dt_comm *comm;
 *     if (dt_comm_create(&desc, &comm) || dt_comm_all_reduce(comm, x, x, n, DT_F32, DT_COMM_SUM))
 *         puts(dt_comm_error(comm));
 *     dt_comm_destroy(comm);
 *
 * Every rank posts the same collectives of a group in the same order; sends and receives of two
 * ranks match in order. Different groups, and sends beside collectives, may be posted in any order.
 * A mismatch is an error on both ranks, a lost peer one on all; no call waits forever for a dead
 * rank. All ranks get the same bits, and the same run after run.
 *
 * Threads: one dt_comm and its groups are used by one thread at a time; several dt_comm at once. */

typedef struct dt_comm dt_comm;

typedef enum dt_comm_kind {
    DT_COMM_SEND = 0,
    DT_COMM_RECV,
    DT_COMM_BROADCAST,
    DT_COMM_REDUCE,
    DT_COMM_ALL_REDUCE,
    DT_COMM_GATHER,
    DT_COMM_ALL_GATHER,
    DT_COMM_SCATTER,
    DT_COMM_REDUCE_SCATTER,
    DT_COMM_ALL_TO_ALL,
    DT_COMM_BARRIER
} dt_comm_kind;

/* 16-bit floats are summed in float32 and rounded once; integer sums and products wrap around, the
 * mean of integers is the wide sum divided, cut towards zero. min and max of floats are NaN where
 * any rank has NaN. */
typedef enum dt_comm_reduction {
    DT_COMM_SUM = 0,
    DT_COMM_MEAN,
    DT_COMM_MIN,
    DT_COMM_MAX,
    DT_COMM_PRODUCT
} dt_comm_reduction;

/* How a collective is done; the default chooses by group and bytes alone, so all ranks agree.
 * docs/distributed.md says which exists for which kind. */
typedef enum dt_comm_algorithm {
    DT_COMM_ALGORITHM_DEFAULT = 0,
    DT_COMM_ALGORITHM_DIRECT,      /* every rank exchanges with every other */
    DT_COMM_ALGORITHM_ONE_SHOT,    /* every rank sends all that it has to all */
    DT_COMM_ALGORITHM_DOUBLING,    /* exchanges of everything at doubling distances */
    DT_COMM_ALGORITHM_HALVING,     /* exchanges of halves, then of doubles */
    DT_COMM_ALGORITHM_RING,        /* neighbours only */
    DT_COMM_ALGORITHM_HIERARCHICAL /* first among the ranks of a host: desc.local_size */
} dt_comm_algorithm;

/* What data on the wire is protected against. Headers and control frames always carry a keyed
 * tag. */
typedef enum dt_comm_integrity {
    DT_COMM_CRC, /* the default: accidents. CRC32C of each payload */
    DT_COMM_MAC, /* changes by others on the path: GMAC of each payload; needs DT_WITH_OPENSSL */
    DT_COMM_TLS, /* and readers: TLS 1.3, by the key or by certificates; needs DT_WITH_OPENSSL */
    DT_COMM_NONE /* nothing of the payload is checked: for measurements */
} dt_comm_integrity;

typedef enum dt_comm_transport {
    DT_COMM_TCP,
    /* The operations of the MPI library; needs DT_WITH_MPI. rank and world_size are MPI's
     * (world_size 0), or must be the same. Where the application has not initialised MPI, the first
     * dt_comm_create does, and that comm's dt_comm_destroy, which must be the last, finalises it
     * once all ranks are there. No tree mode, no algorithms by name; who has not posted an
     * operation, and who posted another one, is not known. The bits are the same on all ranks, and
     * run after run if MPI's are. */
    DT_COMM_MPI
} dt_comm_transport;

/* {0} is one process by itself. Texts are copied. */
typedef struct dt_comm_desc {
    dt_allocator allocator; /* {0}: malloc */
    dt_logger logger;       /* {0}: silent. Called on your thread, in calls with this comm */
    int rank;               /* 0 .. world_size - 1 */
    int world_size;         /* 0 = 1 */
    int local_rank;         /* among the ranks of this host: for choosing a device, and for */
    int local_size;         /* all-reduces that sum on the host first; 0 = not known */
    /* Where the ranks meet: "tcp://host:port" (rank 0 listens there), "file:///path" on a folder
     * that all ranks share. "" with world_size above 1 is an error. */
    char rendezvous[256];
    char job[64];       /* ranks of different jobs refuse each other */
    uint64_t attempt;   /* so do different attempts of one job (a restart counter) */
    char key[68];       /* the job's secret: 64 hex digits. */
    char key_file[256]; /* or a file with them, or with 32 raw bytes, that others cannot read */
    bool insecure;      /* no key; all ranks must say so */
    dt_comm_transport transport;
    dt_comm_integrity integrity; /* the same on all ranks */
    /* With DT_COMM_TLS, all of these or none. None: the key is its secret. PEM files: both sides of
     * a connection show a certificate of the authority tls_ca that has the DNS name tls_name. */
    char tls_ca[256], tls_certificate[256], tls_private_key[256];
    char tls_name[128];
    char interfaces[128];    /* "eth,ib": names that begin so; "^docker": not those; "" = any */
    int port_low, port_high; /* where to listen; 0 = any port */
    int sockets;             /* to each peer; 0 = 1; at most 16 */
    int chunk_bytes;         /* 0 = 64 KiB; 4 KiB to 8 MiB; the same on all ranks */
    int window;              /* chunks in flight from a peer; 0 = 4; 1 to 64; the same on all */
    int join_timeout_ms;     /* until all ranks are there; 0 = 300 s */
    int silence_ms;          /* a rank unheard of for so long is lost; 0 = 5 s */
    int op_timeout_ms; /* a rank that has not posted what others wait for is LATE; 0 = never */
    char launcher[16]; /* dt_comm_desc_from_env: whose variables it took; "" = nobody's */
    char note[256];    /* and what looks like a mistake but is none for sure; logged as a warning */
    char error[256];   /* what dt_comm_desc_from_env found wrong; dt_comm_create fails */
} dt_comm_desc;

/* What the launcher says: rank, world size, where to meet, key. Reads, in this order, DTRAIN_RANK
 * and its like, torchrun's variables, Open MPI's, PMIx, PMI, Slurm's, Kubernetes'; none of them = a
 * single process. Never fails: what is wrong (an incomplete set, two that disagree) stands in
 * .error.
 * Threads: any, while no thread changes the environment. */
DT_API dt_comm_desc dt_comm_desc_from_env(void);

/* Joins: returns when all ranks are there. desc may be NULL, a single process. On failure *out is a
 * comm that does nothing but tell dt_comm_error() (NULL when memory ran out): destroy it too.
 * Errors: INVALID, MEMORY, IO (no connection), TIMEOUT (names the ranks that are missing), REFUSED
 * (wrong key, another job, a rank that is taken), UNSUPPORTED.
 * Threads: any; starts one thread of its own, with all signals blocked. */
DT_API dt_result dt_comm_create(const dt_comm_desc *desc, dt_comm **out);

/* `size` comms (1 .. 1024) for as many threads of this process: out[i] is rank i's. They sum
 * straight from each other's memory, and a thread that waits works for all ranks. Of desc only
 * allocator and logger, which must be safe to call from all of them, and op_timeout_ms are looked
 * at; NULL is fine. On failure all are NULL but out[0], which tells the error (or is NULL too);
 * of a wrong size nothing behind out[0] is touched.
 * Errors: INVALID, MEMORY.
 * Threads: any; starts none. */
DT_API dt_result dt_comm_create_threads(const dt_comm_desc *desc, int size, dt_comm **out);

/* Leaves the group, and ends it: operations still pending end here and on the peers with an error,
 * so wait for them first; what has been completed is never lost for a peer. NULL is fine. Takes at
 * most 2 s. A group made by dt_comm_group_create goes before what it was made from; one that did
 * not can only say DT_ERROR_REVOKED, and is still destroyed. In a child of fork nothing happens:
 * the group is the parent's. */
DT_API void dt_comm_destroy(dt_comm *comm);

/* The text of the newest failure of this comm, or of what it was made from and the groups of that;
 * "" when there was none, for NULL a constant that says so. Valid until the next call with one of
 * them. */
DT_API const char *dt_comm_error(const dt_comm *comm);
/* This rank in the group, and how many there are; 0 for NULL. */
DT_API int dt_comm_rank(const dt_comm *comm);
DT_API int dt_comm_size(const dt_comm *comm);

/* A group of some ranks of `parent` (their ranks there, ascending). All ranks of the parent call it
 * with the same list, in the order of their collectives; those not in the list get *out NULL. The
 * group uses the parent's connections and may be a parent itself. Errors, with *out NULL on all
 * ranks and the parent as before: INVALID (a wrong list), MISMATCH (another list; names a rank),
 * MEMORY (here or on a rank that is named); and those of an operation. */
DT_API dt_result dt_comm_group_create(dt_comm *parent, const int *ranks, int count, dt_comm **out);

/* One operation. `count`, which may be 0, is in elements: of the whole buffer for send, recv,
 * broadcast, reduce and all-reduce; of what each rank gives for gather and all-gather (out has size
 * times that); of what each rank gets from each for scatter, reduce-scatter and all-to-all (in has
 * size times that). `in` may be `out`, for gather and all-gather also at the rank's own place in
 * `out`, for scatter and reduce-scatter `out` at its own place in `in`; other overlaps are errors.
 * broadcast: `in` at the root, `out` elsewhere; both may be given everywhere. */
typedef struct dt_comm_op {
    dt_comm_kind kind;
    const void *in;
    void *out;
    uint64_t count;
    dt_dtype dtype;
    dt_comm_reduction reduction;
    int root;                    /* broadcast, reduce, gather, scatter; send: to, recv: from */
    dt_comm_algorithm algorithm; /* the same on all ranks */
    /* All-reduce and reduce in tree mode: `in` has one buffer of count elements per leaf or aligned
     * subtree of leaves, one after another, as dt_comm_set_leaves says. For the sum, mean or
     * product of 16-bit floats they are float32 (no partial sum is rounded), and `in` cannot be
     * `out`. */
    bool tree;
} dt_comm_op;

/* An operation under way; {0} is none. */
typedef struct dt_comm_work {
    uint64_t id;
} dt_comm_work;

/* Posts an operation. Its buffers are borrowed until test, wait or cancel says that it is finished:
 * do not touch them (send: do not write). Errors: INVALID, MEMORY, UNSUPPORTED, FORKED, REVOKED
 * (the group had ended before; says by what); then nothing is borrowed. But for FORKED and REVOKED
 * it is as if it had not been called: post it rightly, or leave. */
DT_API dt_result dt_comm_begin(dt_comm *comm, const dt_comm_op *op, dt_comm_work *out);

/* Whether it is finished; then its result is returned and the handle ends. Does not block; may do
 * some of the work. Errors: those of dt_comm_wait; INVALID and FORKED leave *finished false. */
DT_API dt_result dt_comm_test(dt_comm *comm, dt_comm_work work, bool *finished);

/* Waits until it is finished, and returns its result; the handle ends. timeout_ms: -1 = as long as
 * it takes. Errors: INVALID (no handle of a pending operation: each ends once), TIMEOUT (still
 * pending, still borrowed), PEER_LOST (names rank, address and operation), MISMATCH (names both
 * ranks), CORRUPT (a payload's checksum or a header's tag was wrong), CANCELLED (names the rank),
 * LATE (op_timeout_ms is over; names who has not posted), REVOKED, FORKED (called in a child of
 * fork). But for INVALID, TIMEOUT and FORKED they have ended what dt_comm_create made and all
 * groups of it, for all ranks, and `out` has no meaning: what was pending returns the cause, what
 * is posted later REVOKED. */
DT_API dt_result dt_comm_wait(dt_comm *comm, dt_comm_work work, int timeout_ms);

/* Gives it up; the handle ends and the buffers are yours again. An operation that had not finished
 * takes all groups with it, on all ranks (DT_ERROR_CANCELLED there and here, naming this rank), for
 * the others may be in the middle of it. DT_OK when it had finished. Errors: also those of wait. */
DT_API dt_result dt_comm_cancel(dt_comm *comm, dt_comm_work work);

/* The same, posted and waited for. broadcast reads `data` at the root and writes it elsewhere. */
DT_API dt_result dt_comm_run(dt_comm *comm, const dt_comm_op *op);
DT_API dt_result dt_comm_send(dt_comm *comm, const void *in, uint64_t count, dt_dtype dtype,
                              int to);
DT_API dt_result dt_comm_recv(dt_comm *comm, void *out, uint64_t count, dt_dtype dtype, int from);
DT_API dt_result dt_comm_broadcast(dt_comm *comm, void *data, uint64_t count, dt_dtype dtype,
                                   int root);
DT_API dt_result dt_comm_reduce(dt_comm *comm, const void *in, void *out, uint64_t count,
                                dt_dtype dtype, dt_comm_reduction reduction, int root);
DT_API dt_result dt_comm_all_reduce(dt_comm *comm, const void *in, void *out, uint64_t count,
                                    dt_dtype dtype, dt_comm_reduction reduction);
DT_API dt_result dt_comm_gather(dt_comm *comm, const void *in, void *out, uint64_t count,
                                dt_dtype dtype, int root);
DT_API dt_result dt_comm_all_gather(dt_comm *comm, const void *in, void *out, uint64_t count,
                                    dt_dtype dtype);
DT_API dt_result dt_comm_scatter(dt_comm *comm, const void *in, void *out, uint64_t count,
                                 dt_dtype dtype, int root);
DT_API dt_result dt_comm_reduce_scatter(dt_comm *comm, const void *in, void *out, uint64_t count,
                                        dt_dtype dtype, dt_comm_reduction reduction);
DT_API dt_result dt_comm_all_to_all(dt_comm *comm, const void *in, void *out, uint64_t count,
                                    dt_dtype dtype);
DT_API dt_result dt_comm_barrier(dt_comm *comm);

/* For results that do not depend on how many ranks there are: the sum is a tree over `total` leaves
 * (shards of the data), split at the largest power of two below; this rank has `count` of them from
 * `first` on. All ranks call it; together, in rank order, they have each leaf once. Returns in
 * *buffers (may be NULL) how many buffers a tree-mode `in` has here, and in spans[i], for i up to
 * 64, the leaves that buffer i sums: they must be summed as that tree says. Errors, on all ranks
 * and with the leaves as before: INVALID (a gap, or an operation of this comm under way somewhere:
 * wait first), MISMATCH (another total), each naming the rank; and those of an operation. */
typedef struct dt_comm_span {
    uint32_t first, count;
} dt_comm_span;
DT_API dt_result dt_comm_set_leaves(dt_comm *comm, uint32_t first, uint32_t count, uint32_t total,
                                    int *buffers, dt_comm_span spans[64]);

/* What a comm has done and holds. */
typedef struct dt_comm_info {
    uint64_t operations;                 /* finished */
    uint64_t bytes_sent, bytes_received; /* on the wire, headers included */
    uint64_t payload_sent, payload_received;
    uint64_t host_bytes,
        host_alloc_calls;   /* of all its groups; ranks that are threads share some */
    uint64_t scratch_bytes; /* of them for operations under way */
    uint64_t stale_frames;  /* of an earlier epoch, dropped */
} dt_comm_info;
/* All 0 for NULL. */
DT_API void dt_comm_get_info(const dt_comm *comm, dt_comm_info *info);
