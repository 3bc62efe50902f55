/* ---- Collectives over several processes or threads
 *
 * A dt_comm is the rank of this process (or thread) in a group of ranks. It needs no context and no
 * device. With DT_COMM_ONLY this section is all of dtrain. docs/distributed/jobs.md says how
 * ranks start, docs/distributed/security.md has the threat model, docs/protocol.md the bytes.
 *
 * Order: all ranks of a group post the same collectives in the same order. Sends and receives
 * between two ranks match in order. Operations of different groups may be posted in any order, and
 * so may sends relative to collectives.
 *
 * Failures: a mismatch is an error on both ranks, a lost peer on all ranks. No call waits forever
 * for a dead rank.
 *
 * Results: all ranks get the same bits, in every run.
 *
 * Threads: one thread at a time uses a dt_comm and its groups; else BUSY. A call of a trainer uses
 * its comm until it returns; callbacks of dt_trainer_fit may use that comm. */

typedef struct dt_comm dt_comm;

typedef enum dt_comm_kind {
    /* Each by the function of its name. */
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

/* How elements of different ranks are combined. 16-bit floats are summed in float32 and rounded
 * once. */
typedef enum dt_comm_reduction {
    DT_COMM_SUM = 0, /* the default; sums of integers wrap around */
    DT_COMM_MEAN,    /* sum / size; of integers by a wider sum, truncated towards zero */
    DT_COMM_MIN,     /* NaN if any rank has a NaN */
    DT_COMM_MAX,     /* NaN if any rank has a NaN */
    DT_COMM_PRODUCT  /* products of integers wrap around */
} dt_comm_reduction;

/* The algorithm of a collective. The default depends on the group, the number of bytes and the
 * links (dt_comm_desc.link). Links do not change the bits. docs/distributed/collectives.md lists
 * the algorithms of each operation. */
typedef enum dt_comm_algorithm {
    DT_COMM_ALGORITHM_DEFAULT = 0, /* chosen as above */
    DT_COMM_ALGORITHM_DIRECT,      /* every rank exchanges with every other rank */
    DT_COMM_ALGORITHM_ONE_SHOT,    /* every rank sends its whole buffer to every other rank */
    DT_COMM_ALGORITHM_DOUBLING,    /* recursive doubling of the distance, with whole buffers */
    DT_COMM_ALGORITHM_HALVING,     /* recursive halving, then doubling */
    DT_COMM_ALGORITHM_RING,        /* each rank exchanges with its two neighbours */
    DT_COMM_ALGORITHM_HIERARCHICAL /* first within each host: see dt_comm_desc.local_size */
} dt_comm_algorithm;

/* How payloads are protected on the wire. Headers and control frames always carry a keyed tag. */
typedef enum dt_comm_integrity {
    DT_COMM_CRC, /* the default, against accidents: CRC32C of each payload */
    DT_COMM_MAC, /* also against tampering: GMAC of each payload; needs DT_WITH_OPENSSL */
    DT_COMM_TLS, /* also against eavesdropping: TLS 1.3, by key or certificates; needs that too */
    DT_COMM_UNCHECKED /* payloads are not checked: for measurements */
} dt_comm_integrity;

/* What carries the messages.
 *
 * DT_COMM_MPI: if world_size is 0, rank and world_size come from MPI; otherwise they must agree
 * with MPI. If the application has not initialised MPI, the first dt_comm_create does so.
 * Destroying that comm then waits for all ranks and finalises MPI, and must be the last call. There
 * is no tree mode and no choice of algorithms. An error cannot name a rank that posted no
 * operation, or another one. All ranks get the same bits; runs do only if MPI's results are
 * reproducible. */
typedef enum dt_comm_transport {
    DT_COMM_TCP, /* the default; see also dt_comm_desc.shared_memory */
    DT_COMM_MPI  /* the MPI library; needs DT_WITH_MPI */
} dt_comm_transport;

/* Whether ranks of one host exchange data through shared memory, which no other process can
 * open. */
typedef enum dt_comm_shared_memory {
    DT_COMM_SHARED_DEFAULT, /* where available (Linux), and if integrity is not TLS; else TCP */
    DT_COMM_SHARED_OFF,     /* this rank does not use it */
    DT_COMM_SHARED_REQUIRED /* with every rank of this host; else an error */
} dt_comm_shared_memory;

/* The cost of a connection between two ranks while all ranks send. */
typedef struct dt_comm_link {
    uint64_t latency_ns;  /* time of a short message, from sender to receiver; at most 10 s */
    uint64_t message_ns;  /* time of each further message sent and received in parallel */
    uint64_t bytes_per_s; /* rate at which a rank sends and receives; 1000 to 10^12 */
} dt_comm_link;

/* {0} is a single process. Strings are copied. */
typedef struct dt_comm_desc {
    dt_allocator allocator; /* {0}: malloc */
    dt_logger logger;       /* {0}: silent. Called on your thread, during calls with this comm */
    int rank;               /* 0 to world_size - 1 */
    int world_size;         /* number of ranks, up to 65535; 0 = 1 */
    /* Index among this host's ranks, and their number; 0, 0 = not known. */
    int local_rank, local_size;
    /* "tcp://host:port", where rank 0 listens, or "file:///path" in a folder that all ranks share.
     * The file must be missing, empty or of an earlier job, else IO. Required for several ranks. */
    char rendezvous[256];
    char job[64];       /* its name; ranks of different jobs reject each other */
    uint64_t attempt;   /* restart counter; likewise */
    char key[68];       /* the job's secret: 64 hex digits, not all 0; alternative to .key_file */
    char key_file[256]; /* a file with 64 hex digits or 32 raw bytes that others cannot read */
    bool insecure;      /* no key; must be set on all ranks */
    dt_comm_transport transport;         /* 0 = DT_COMM_TCP; the same on all ranks */
    dt_comm_integrity integrity;         /* 0 = DT_COMM_CRC; the same on all ranks */
    dt_comm_shared_memory shared_memory; /* 0 = where available */
    /* DT_COMM_TLS with certificates: set all four, or none to use .key. PEM files: the authority of
     * all certificates, and this rank's certificate and private key. */
    char tls_ca[256], tls_certificate[256], tls_private_key[256];
    char tls_name[128];      /* the DNS name that each peer's certificate must have */
    char interfaces[128];    /* prefixes: "eth,ib" allows, "^docker" excludes; "" = any */
    int port_low, port_high; /* ports to listen on; 0 = any */
    int sockets;             /* connections to each peer; 0 = 1; at most 16 */
    int chunk_bytes;         /* 0 = 256 KiB; 4 KiB to 8 MiB; the same on all ranks */
    int window; /* chunks in flight from a peer, 1 to 64; the same on all; 0 = by links' cost */
    char congestion[16]; /* TCP's congestion control: "reno", "cubic"; "" = the system's */
    /* Chooses the default algorithms; rank 0's counts for all. {0}: measured while joining. */
    dt_comm_link link;
    bool no_link;        /* no .link and no measurement: constants choose; rank 0's counts */
    int join_timeout_ms; /* how long to wait for all ranks; 0 = 300 s */
    int silence_ms;      /* a rank that is silent for this time is lost; 0 = 5 s */
    int op_timeout_ms;   /* LATE if a rank does not post an operation in this time; 0 = never */
    char launcher[16];   /* the launcher that dt_comm_desc_from_env found; "" = none */
    char warning[256];   /* a possible mistake it found; dt_comm_create logs it as a warning */
    char error[256];     /* a mistake it found; dt_comm_create fails with it */
} dt_comm_desc;

/* Reads rank, world size, rendezvous and key from the environment variables of a launcher. In this
 * order: DTRAIN_RANK and its family, torchrun, Open MPI, PMIx, PMI, Slurm, Kubernetes. Without any,
 * this is a single process. A mistake (an incomplete set, two sets that disagree) is reported in
 * .error.
 * Threads: any, while no thread changes the environment. */
DT_API dt_comm_desc dt_comm_desc_from_env(void);

/* Joins the group; returns when all ranks have joined.
 * Ownership: yours. On failure *out is valid only for dt_comm_error, and must be destroyed too;
 * NULL if memory ran out.
 * Errors: INVALID, MEMORY, IO (no connection), TIMEOUT (names the missing ranks), REFUSED (a wrong
 * key, another job, a rank that is taken), UNSUPPORTED, PEER_LOST (a rank failed while links were
 * measured).
 * Threads: any. It starts one, with all signals blocked. */
DT_API dt_result dt_comm_create(const dt_comm_desc *desc, dt_comm **out);

/* Creates a group whose ranks are threads of this process.
 * desc: only allocator, logger and op_timeout_ms are used. The first two are called from all these
 * threads.
 * size: the number of ranks, 1 to 1024.
 * out: [size]; out[i] belongs to rank i. On failure all are NULL, except that out[0] holds the
 * error if it can. If `size` is wrong, only out[0] is written.
 * Errors: INVALID, MEMORY, UNSUPPORTED (DT_NO_COMM).
 * Threads: any. It starts none. */
DT_API dt_result dt_comm_create_threads(const dt_comm_desc *desc, int size, dt_comm **out);

/* Leaves and ends the group. Pending operations fail here and on the peers: wait for them first.
 * Takes at most 2 s. Rank 0 waits for the other ranks, at most silence_ms longer.
 *
 * Destroy groups of dt_comm_group_create before their parent. A group that outlives its parent
 * returns DT_ERROR_REVOKED from every call, and still must be destroyed.
 *
 * In a child process of fork nothing happens. */
DT_API void dt_comm_destroy(dt_comm *comm);

/* Returns the text of the latest failure of this comm, its parent or any of their groups, or "".
 * Valid until the next call with one of them. */
DT_API const char *dt_comm_error(const dt_comm *comm);
/* Returns this rank. */
DT_API int dt_comm_rank(const dt_comm *comm);
/* Returns the number of ranks. */
DT_API int dt_comm_size(const dt_comm *comm);

/* Creates a group of some ranks of `parent`. All ranks of the parent call it, with the same list.
 * It may itself be a parent.
 * ranks: [count] ranks of the parent, in ascending order.
 * out: NULL on ranks that are not in the list.
 * Errors, with *out NULL on all ranks and the parent unchanged: INVALID (a wrong list), MISMATCH (a
 * rank that the text names gave another list), MEMORY (here, or on a rank that the text names);
 * those of an operation. */
DT_API dt_result dt_comm_group_create(dt_comm *parent, const int *ranks, int count, dt_comm **out);

/* One operation. `count` may be 0. Buffers have these numbers of elements, where size is the number
 * of ranks; a rank ignores a buffer that it does not use:
 *
 *   kind             in                       out
 *   send             count                    -
 *   recv             -                        count
 *   broadcast        count (root)             count (other ranks)
 *   reduce           count                    count (root)
 *   all-reduce       count                    count
 *   gather           count                    size * count (root)
 *   all-gather       count                    size * count
 *   scatter          size * count (root)      count
 *   reduce-scatter   size * count             count
 *   all-to-all       size * count             size * count
 *
 * In place: `in` and `out` may be the same. For gather and all-gather `in` may be the rank's own
 * block of `out`. For scatter and reduce-scatter `out` may be the rank's own block of `in`. Any
 * other overlap is INVALID.
 *
 * Tree mode (.tree; reduce and all-reduce of floats): `in` holds the buffers that
 * dt_comm_set_leaves lists, of count elements each, one after another. For the sum, mean or product
 * of 16-bit floats these buffers are float32, so that no partial sum is rounded. Then `in` and
 * `out` must differ. */
typedef struct dt_comm_op {
    dt_comm_kind kind; /* operation */
    const void *in;    /* elements to send; see above */
    void *out;         /* for the result; see above */
    uint64_t count;    /* elements; see above */
    dt_dtype dtype;    /* of the elements; 0 = DT_F32 */
    /* of reduce, all-reduce, reduce-scatter */
    dt_comm_reduction reduction;
    int root; /* of broadcast, reduce, gather, scatter; for send and recv the other rank */
    /* the same on all ranks */
    dt_comm_algorithm algorithm;
    bool tree; /* tree mode; needs dt_comm_set_leaves */
} dt_comm_op;

/* The handle of a pending operation; {0} is not a handle. */
typedef struct dt_comm_work {
    uint64_t id; /* internal; 0 = not a handle */
} dt_comm_work;

/* Posts an operation and returns at once. Do not touch its buffers (of send: do not write to them)
 * until test, wait or cancel reports that it has finished.
 * Errors, with nothing borrowed: INVALID, MEMORY, UNSUPPORTED, FORKED, REVOKED (the group had
 * already ended; the text says why). After INVALID, MEMORY or UNSUPPORTED call again with a correct
 * operation, or destroy the comm. */
DT_API dt_result dt_comm_begin(dt_comm *comm, const dt_comm_op *op, dt_comm_work *out);

/* Checks without blocking whether an operation has finished. If so, returns its result, and the
 * handle ends.
 * Errors: those of dt_comm_wait; after INVALID and FORKED *finished is false. */
DT_API dt_result dt_comm_test(dt_comm *comm, dt_comm_work work, bool *finished);

/* Waits until an operation has finished and returns its result; the handle ends.
 * timeout_ms: -1 = no limit.
 *
 * INVALID, TIMEOUT and FORKED leave the group as it is. After any other error the comm of
 * dt_comm_create and all its groups have ended, on all ranks. The contents of `out` are undefined,
 * pending operations return the cause, and later ones return REVOKED.
 *
 * Errors: INVALID (not the handle of a pending operation; each ends once), TIMEOUT (still pending,
 * buffers still borrowed), PEER_LOST (names rank, address and operation), MISMATCH (names both
 * ranks), CORRUPT (a wrong checksum of a payload or tag of a header), CANCELLED (names the rank),
 * LATE (op_timeout_ms has passed; names the rank that has not posted), REVOKED, FORKED (called in a
 * child process of fork). */
DT_API dt_result dt_comm_wait(dt_comm *comm, dt_comm_work work, int timeout_ms);

/* Cancels an operation; the handle ends. DT_OK if it had finished. Otherwise all groups end on all
 * ranks, with a DT_ERROR_CANCELLED that names this rank.
 * Errors: also those of dt_comm_wait. */
DT_API dt_result dt_comm_cancel(dt_comm *comm, dt_comm_work work);

/* The functions from here to dt_comm_barrier post one operation and wait for it. Errors: those of
 * dt_comm_begin and dt_comm_wait. */

/* Runs any operation, with all its options. */
DT_API dt_result dt_comm_run(dt_comm *comm, const dt_comm_op *op);
/* Sends to rank `to`. */
DT_API dt_result dt_comm_send(dt_comm *comm, const void *in, uint64_t count, dt_dtype dtype,
                              int to);
/* Receives from rank `from`. */
DT_API dt_result dt_comm_recv(dt_comm *comm, void *out, uint64_t count, dt_dtype dtype, int from);
/* Copies the root's `data` to the `data` of all other ranks. */
DT_API dt_result dt_comm_broadcast(dt_comm *comm, void *data, uint64_t count, dt_dtype dtype,
                                   int root);
/* Reduces `in` of all ranks to `out` of the root. */
DT_API dt_result dt_comm_reduce(dt_comm *comm, const void *in, void *out, uint64_t count,
                                dt_dtype dtype, dt_comm_reduction reduction, int root);
/* Reduces `in` of all ranks to `out` of every rank. */
DT_API dt_result dt_comm_all_reduce(dt_comm *comm, const void *in, void *out, uint64_t count,
                                    dt_dtype dtype, dt_comm_reduction reduction);
/* Collects `in` of all ranks in `out` of the root, in the order of ranks. */
DT_API dt_result dt_comm_gather(dt_comm *comm, const void *in, void *out, uint64_t count,
                                dt_dtype dtype, int root);
/* Collects `in` of all ranks in `out` of every rank, in the order of ranks. */
DT_API dt_result dt_comm_all_gather(dt_comm *comm, const void *in, void *out, uint64_t count,
                                    dt_dtype dtype);
/* Copies block i of the root's `in` to `out` of rank i. */
DT_API dt_result dt_comm_scatter(dt_comm *comm, const void *in, void *out, uint64_t count,
                                 dt_dtype dtype, int root);
/* Reduces `in` of all ranks; rank i gets block i of the result. */
DT_API dt_result dt_comm_reduce_scatter(dt_comm *comm, const void *in, void *out, uint64_t count,
                                        dt_dtype dtype, dt_comm_reduction reduction);
/* Copies block i of rank j's `in` to block j of rank i's `out`, for all ranks i and j. */
DT_API dt_result dt_comm_all_to_all(dt_comm *comm, const void *in, void *out, uint64_t count,
                                    dt_dtype dtype);
/* Waits until all ranks have called it. */
DT_API dt_result dt_comm_barrier(dt_comm *comm);

/* Consecutive leaves of the tree. */
typedef struct dt_comm_span {
    uint32_t first, count; /* the first leaf; the number of leaves */
} dt_comm_span;

/* Prepares tree mode, in which sums do not depend on the number of ranks. All ranks call it. The
 * sum is a binary tree over `total` leaves, such as slices of the batch. n leaves are split at the
 * largest power of two below n.
 * first, count: this rank's leaves. In the order of ranks they must cover all leaves, each once.
 * buffers: gets the number of buffers that `in` has here in tree mode, at most 64; may be NULL.
 * spans: spans[i] gets the leaves whose sum buffer i is, added as in that tree; may be NULL.
 * Errors, on all ranks, with the leaves unchanged and the rank named: INVALID (a gap, or a pending
 * operation of this comm), MISMATCH (another total). Also those of an operation. */
DT_API dt_result dt_comm_set_leaves(dt_comm *comm, uint32_t first, uint32_t count, uint32_t total,
                                    int *buffers, dt_comm_span spans[64]);

/* Counters and memory. */
typedef struct dt_comm_info {
    uint64_t operations;                 /* operations that have finished */
    uint64_t bytes_sent, bytes_received; /* on the wire, with headers */
    /* bytes, without headers */
    uint64_t payload_bytes_sent, payload_bytes_received;
    uint64_t resets; /* broken connections that were restored */
    /* With all its groups. Ranks that are threads of one process share some memory. */
    uint64_t host_bytes, host_alloc_calls;
    uint64_t scratch_bytes; /* part of host_bytes, for pending operations */
    /* Between hosts, and within a host; equal if hosts are not known, or .link was given. {0}:
     * constants choose algorithms. */
    dt_comm_link link, local_link;
    bool link_measured; /* the links were measured */
    int window;         /* chunks in flight from a peer */
} dt_comm_info;
/* Describes a comm. */
DT_API void dt_comm_get_info(const dt_comm *comm, dt_comm_info *info);
