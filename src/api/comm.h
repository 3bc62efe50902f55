/* ---- Collectives over several processes or threads ----------------------------------------------
 *
 * A dt_comm is the place of this process (or thread) in a group of ranks. It needs no context and
 * no device: a program that only wants to sum arrays across hosts defines DT_COMM_ONLY and uses
 * this part alone. docs/distributed.md has a quick start and the threat model, docs/protocol.md the
 * protocol byte by byte.
 *
 *     dt_comm_desc desc = dt_comm_desc_from_env();      // torchrun, mpirun, srun, dtrun, ...
 *     dt_comm *comm;
 *     if (dt_comm_create(&desc, &comm) || dt_comm_all_reduce(comm, x, x, n, DT_F32, DT_COMM_SUM))
 *         puts(dt_comm_error(comm));
 *     dt_comm_destroy(comm);
 *
 * All ranks of a group post the same collectives in the same order; the sends and receives between
 * two ranks match in order. Operations of different groups, and sends relative to collectives, may
 * be posted in any order. A mismatch is an error on both ranks, a lost peer an error on all ranks;
 * no call waits forever for a dead rank. All ranks get the same bits, in every run.
 *
 * Threads: one thread at a time uses a dt_comm and its groups; another's call returns BUSY. A
 * trainer's calls use its comm from begin to end. Callbacks of dt_trainer_fit may use it.
 * Different dt_comms can be used concurrently. */

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

/* 16-bit floats are summed in float32 and rounded once. Integer sums and products wrap around; the
 * mean of integers is computed from a wider sum and truncated towards zero. The minimum and maximum
 * of floats are NaN where any rank has a NaN. */
typedef enum dt_comm_reduction {
    DT_COMM_SUM = 0,
    DT_COMM_MEAN,
    DT_COMM_MIN,
    DT_COMM_MAX,
    DT_COMM_PRODUCT
} dt_comm_reduction;

/* How a collective is carried out. The default depends on the group, the number of bytes and the
 * links (dt_comm_desc.link), which all ranks know alike, so all choose the same. Where links
 * decide, all that can be chosen gives the same bits. docs/distributed.md lists the algorithms of
 * each operation. */
typedef enum dt_comm_algorithm {
    DT_COMM_ALGORITHM_DEFAULT = 0,
    DT_COMM_ALGORITHM_DIRECT,      /* every rank exchanges with every other */
    DT_COMM_ALGORITHM_ONE_SHOT,    /* every rank sends its whole buffer to every other */
    DT_COMM_ALGORITHM_DOUBLING,    /* recursive doubling: whole buffers, at doubling distances */
    DT_COMM_ALGORITHM_HALVING,     /* recursive halving, then doubling */
    DT_COMM_ALGORITHM_RING,        /* each rank talks to its two neighbours */
    DT_COMM_ALGORITHM_HIERARCHICAL /* within each host first: see dt_comm_desc.local_size */
} dt_comm_algorithm;

/* How payloads are protected on the wire. Headers and control frames always carry a keyed tag. */
typedef enum dt_comm_integrity {
    DT_COMM_CRC, /* the default, against accidents: CRC32C of each payload */
    DT_COMM_MAC, /* also against tampering: GMAC of each payload; requires DT_WITH_OPENSSL */
    DT_COMM_TLS, /* also against eavesdropping: TLS 1.3, by key or certificates; requires it too */
    DT_COMM_NONE /* payloads are not checked: for measurements */
} dt_comm_integrity;

typedef enum dt_comm_transport {
    DT_COMM_TCP,
    /* Uses the operations of the MPI library; requires DT_WITH_MPI. rank and world_size come from
     * MPI if world_size is 0, and otherwise must agree with it. If the application has not
     * initialised MPI, the first dt_comm_create does so; destroying that comm finalises MPI, waits
     * for all ranks, and must be the last call. There is no tree mode and no choice of algorithms,
     * and errors cannot name the rank that has not posted an operation or posted another one. All
     * ranks get the same bits; every run gives the same if MPI's own results are reproducible. */
    DT_COMM_MPI
} dt_comm_transport;

/* Whether ranks of one host exchange their data through memory that they share. Nobody else can
 * open it, and it goes with the last of them. */
typedef enum dt_comm_shared_memory {
    DT_COMM_SHARED_DEFAULT, /* where it can be had (Linux), and integrity is not TLS; else TCP */
    DT_COMM_SHARED_OFF,     /* not with this rank */
    DT_COMM_SHARED_REQUIRED /* with every rank of this host, or it is an error */
} dt_comm_shared_memory;

/* What the way between two ranks is like while all ranks send. */
typedef struct dt_comm_link {
    uint64_t latency_ns;  /* a short message, from its sender to its receiver; at most 10 s */
    uint64_t message_ns;  /* each further one that a rank sends and receives at the same time */
    uint64_t bytes_per_s; /* that a rank sends and receives; 1000 to 10^12 */
} dt_comm_link;

/* {0} is a single process. Strings are copied. */
typedef struct dt_comm_desc {
    dt_allocator allocator; /* {0}: malloc */
    dt_logger logger;       /* {0}: silent. Called on your thread, during calls with this comm */
    int rank;               /* 0 .. world_size - 1 */
    int world_size;         /* 0 = 1 */
    /* Index among this host's ranks, and how many there are; 0, 0: not known. Used to choose a
     * device and to sum on the host first. */
    int local_rank, local_size;
    /* Where the ranks meet: "tcp://host:port" (rank 0 listens there), or "file:///path" in a folder
     * that all ranks share: a file that is not there, is empty, or is of an earlier job (IO where
     * it is anything else). Required if world_size is above 1. */
    char rendezvous[256];
    char job[64];       /* ranks of different jobs refuse each other */
    uint64_t attempt;   /* so do ranks of different attempts of one job: a restart counter */
    char key[68];       /* the job's secret, 64 hex digits, not all 0; */
    char key_file[256]; /* or a file with those, or with 32 raw bytes, that others cannot read */
    bool insecure;      /* no key; must be set on all ranks */
    dt_comm_transport transport;
    dt_comm_integrity integrity; /* the same on all ranks */
    dt_comm_shared_memory shared_memory;
    /* For DT_COMM_TLS: set all of these, or none to use the key as the secret. They name PEM files:
     * both ends of a connection present a certificate that was issued by the authority tls_ca and
     * has the DNS name tls_name. */
    char tls_ca[256], tls_certificate[256], tls_private_key[256];
    char tls_name[128];
    char interfaces[128];    /* prefixes: "eth,ib" allows, "^docker" excludes; "" = any */
    int port_low, port_high; /* ports to listen on; 0 = any */
    int sockets;             /* connections to each peer; 0 = 1; at most 16 */
    int chunk_bytes;         /* 0 = 256 KiB; 4 KiB to 8 MiB; the same on all ranks */
    int window; /* chunks in flight from a peer; 1 to 64; the same on all; 0 = by what links cost */
    char congestion[16]; /* TCP's congestion control: "reno", "cubic"; "" = the system's */
    /* By which the default algorithms are chosen; rank 0's counts for all. {0}: measured while
     * joining, which takes some milliseconds, or a few dozen latencies. */
    dt_comm_link link;
    bool link_off;       /* neither measured nor given: constants choose; rank 0's counts */
    int join_timeout_ms; /* how long to wait for all ranks; 0 = 300 s */
    int silence_ms;      /* a rank that is silent for this long is lost; 0 = 5 s */
    int op_timeout_ms;   /* LATE if a rank does not post an operation in time; 0 = never */
    char launcher[16];   /* whose variables dt_comm_desc_from_env took; "" = nobody's */
    char warning[256];   /* what may be a mistake in them: dt_comm_create logs it as a warning */
    char error[256];     /* what is wrong in them: dt_comm_create fails */
} dt_comm_desc;

/* Reads from the environment what the launcher says: rank, world size, where to meet, key. It looks
 * for the variables of DTRAIN_RANK and its family, torchrun, Open MPI, PMIx, PMI, Slurm and
 * Kubernetes, in this order; if there are none, this is a single process. Never fails: a mistake
 * (an incomplete set, two sets that disagree) is reported in .error.
 * Threads: any, while no thread changes the environment. */
DT_API dt_comm_desc dt_comm_desc_from_env(void);

/* Joins the group; returns when all ranks have joined. desc may be NULL: a single process. On
 * failure *out is a comm that is good for dt_comm_error() alone (NULL if memory ran out); destroy
 * it too. Errors: INVALID, MEMORY, IO (no connection), TIMEOUT (names the missing ranks), REFUSED
 * (a wrong key, another job, a rank that is taken), UNSUPPORTED, PEER_LOST (a rank failed while
 * links were measured).
 * Threads: any; starts one thread of its own, with all signals blocked. */
DT_API dt_result dt_comm_create(const dt_comm_desc *desc, dt_comm **out);

/* Creates `size` comms (1 to 1024) for as many threads of this process; out[i] belongs to rank i.
 * The ranks read each other's memory directly, and a thread that waits does work for all of them.
 * Only allocator, logger and op_timeout_ms of desc are used; the first two must be safe to call
 * from all these threads. desc may be NULL. On failure all comms are NULL, except that out[0] gives
 * the error if it can; if `size` is wrong, only out[0] is written.
 * Errors: INVALID, MEMORY, UNSUPPORTED (DT_NO_COMM).
 * Threads: any; starts none. */
DT_API dt_result dt_comm_create_threads(const dt_comm_desc *desc, int size, dt_comm **out);

/* Leaves and ends the group. Pending operations fail here and on the peers, so wait for them first;
 * a completed operation is never lost for a peer. NULL is allowed. Takes at most 2 s; at rank 0,
 * which leaves last, until the others have left too, and at most silence_ms longer. Destroy groups
 * of dt_comm_group_create before their parent. A group that outlives its parent returns
 * DT_ERROR_REVOKED from every call; destroy it nevertheless. In a child of fork nothing happens:
 * the group belongs to the parent process. */
DT_API void dt_comm_destroy(dt_comm *comm);

/* The message of the latest failure of this comm, its parent or any of their groups; "" if there
 * was none; for NULL a constant that says so. Valid until the next call with one of them. */
DT_API const char *dt_comm_error(const dt_comm *comm);
/* The rank of this process or thread in the group, and the number of ranks; 0 for NULL. */
DT_API int dt_comm_rank(const dt_comm *comm);
DT_API int dt_comm_size(const dt_comm *comm);

/* Creates a group of some ranks of `parent`, given by their ranks there in ascending order. It is a
 * collective of the parent: all its ranks call it with the same list. Ranks that are not in the
 * list get *out NULL. The group uses the parent's connections and may itself be a parent. Errors,
 * with *out NULL on all ranks and the parent unchanged: INVALID (a wrong list), MISMATCH (a rank
 * gave another list, and is named), MEMORY (here, or on a rank that is named); and those of an
 * operation. */
DT_API dt_result dt_comm_group_create(dt_comm *parent, const int *ranks, int count, dt_comm **out);

/* One operation. `count` is in elements and may be 0. For send, recv, broadcast, reduce and
 * all-reduce it is the size of the whole buffer; for gather and all-gather what each rank
 * contributes (`out` holds size times as much); for scatter, reduce-scatter and all-to-all what
 * each rank receives from each (`in` holds size times as much). `in` and `out` may be the same. For
 * gather and all-gather `in` may also be the rank's own part of `out`; for scatter and
 * reduce-scatter `out` may be the rank's own part of `in`. Any other overlap is an error. broadcast
 * reads `in` at the root and writes `out` elsewhere; both may be given on all ranks. */
typedef struct dt_comm_op {
    dt_comm_kind kind;
    const void *in;
    void *out;
    uint64_t count;
    dt_dtype dtype;
    dt_comm_reduction reduction;
    int root;                    /* of broadcast, reduce, gather, scatter; the peer of send, recv */
    dt_comm_algorithm algorithm; /* the same on all ranks */
    /* All-reduce and reduce in tree mode: `in` holds, one after another, a buffer of count elements
     * for each leaf or subtree of leaves, as dt_comm_set_leaves returns them. For the sum, mean or
     * product of 16-bit floats these buffers are float32, so that no partial sum is rounded, and
     * `in` and `out` must differ. */
    bool tree;
} dt_comm_op;

/* A pending operation; {0} is none. */
typedef struct dt_comm_work {
    uint64_t id;
} dt_comm_work;

/* Posts an operation. Its buffers are borrowed until test, wait or cancel reports that it has
 * finished: do not touch them (for send: do not write to it). Errors, with nothing borrowed:
 * INVALID, MEMORY, UNSUPPORTED, FORKED, REVOKED (the group had already ended; says why). After
 * INVALID, MEMORY or UNSUPPORTED nothing was posted: call again with a correct operation, or
 * destroy the comm. */
DT_API dt_result dt_comm_begin(dt_comm *comm, const dt_comm_op *op, dt_comm_work *out);

/* Asks whether an operation has finished. If so, returns its result and the handle ends. Does not
 * block, but may do some of the work. Errors: those of dt_comm_wait; after INVALID and FORKED
 * *finished is false. */
DT_API dt_result dt_comm_test(dt_comm *comm, dt_comm_work work, bool *finished);

/* Waits until an operation has finished and returns its result; the handle ends. timeout_ms: -1 =
 * no limit. Errors: INVALID (not the handle of a pending operation: each ends once), TIMEOUT (still
 * pending, still borrowed), PEER_LOST (names rank, address and operation), MISMATCH (names both
 * ranks), CORRUPT (a payload's checksum or a header's tag was wrong), CANCELLED (names the rank),
 * LATE (op_timeout_ms has passed; names the rank that has not posted), REVOKED, FORKED (called in a
 * child of fork). After any of these but INVALID, TIMEOUT and FORKED, the comm of dt_comm_create
 * and all its groups have ended on all ranks, and the contents of `out` are undefined: pending
 * operations return the cause, later ones REVOKED. */
DT_API dt_result dt_comm_wait(dt_comm *comm, dt_comm_work work, int timeout_ms);

/* Gives an operation up; the handle ends and the buffers are yours again. DT_OK if it had finished.
 * Otherwise all groups end on all ranks, with DT_ERROR_CANCELLED that names this rank, because the
 * others may be in the middle of it. Errors: also those of wait. */
DT_API dt_result dt_comm_cancel(dt_comm *comm, dt_comm_work work);

/* Post an operation and wait for it. broadcast reads `data` at the root and writes it elsewhere. */
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

/* For sums that do not depend on the number of ranks. The sum is a tree over `total` leaves (shards
 * of the data), in which n leaves are split at the largest power of two below n; this rank has
 * `count` leaves, from `first` on. All ranks call it; taken in rank order, their leaves must be all
 * leaves, each once. *buffers (may be NULL) becomes the number of buffers that `in` has here in
 * tree mode, and spans[i] the leaves that buffer i is the sum of, added up as in that tree; there
 * are at most 64. Errors, on all ranks and with the leaves unchanged: INVALID (a gap, or an
 * operation of this comm pending somewhere: wait first), MISMATCH (another total), each naming the
 * rank; and those of an operation. */
typedef struct dt_comm_span {
    uint32_t first, count;
} dt_comm_span;
DT_API dt_result dt_comm_set_leaves(dt_comm *comm, uint32_t first, uint32_t count, uint32_t total,
                                    int *buffers, dt_comm_span spans[64]);

/* What a comm has done, and the memory that it holds. */
typedef struct dt_comm_info {
    uint64_t operations;                 /* finished */
    uint64_t bytes_sent, bytes_received; /* on the wire, with headers */
    uint64_t payload_sent, payload_received;
    uint64_t resets; /* connections that broke and were joined again, as this rank saw it */
    /* With all its groups; ranks that are threads of one process share some memory. */
    uint64_t host_bytes, host_alloc_calls;
    uint64_t scratch_bytes; /* part of host_bytes, for pending operations */
    /* Between ranks of different hosts, and of one host; the same where hosts are not known, or
     * links were given. The same numbers on all ranks; {0}: constants choose algorithms. */
    dt_comm_link link, local_link;
    bool link_measured;
    int window; /* chunks in flight from a peer */
} dt_comm_info;
/* All 0 for NULL. */
DT_API void dt_comm_get_info(const dt_comm *comm, dt_comm_info *info);
