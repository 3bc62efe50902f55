/* The inside of the transport over TCP, which tcp.c and the files of its connections share. The
 * lock of dti_tcp guards all of it. */

#if DTI_TCP

#define DTI_READ_BYTES_MAX (1u << 20) /* from one connection before the others have a turn */

typedef struct dti_tcp_conn {
    int fd; /* -1 = none */
    dti_link *link;
    uint32_t at;              /* its place among the active ones */
    bool connecting, blocked; /* blocked: the system took no more */
    int try_next;             /* of the addresses: the next one to try */
    int refused;              /* of these: addresses without a listener */
    uint64_t started;         /* connecting since, ns */
    dti_tls_conn tls;         /* with integrity TLS */
    bool clear;               /* no TLS, though the others have it: a refusal goes out */
    bool paced;               /* by bbr */
    bool shut_due;            /* when the ciphertext is out */
    bool local;               /* the socket is of this host; the bytes go through `shm` when: */
    bool shared, gone;        /* the handshake is over; the socket has ended */
    bool try_local;           /* before the addresses */
    int memory;               /* the descriptor of it, until it is mapped on both sides; -1 */
    bool lends, borrows;      /* the other side may read this process's memory; we may its */
    long process;             /* the other side's; 0 = not to be seen from here */
    uint64_t noted;           /* the number, plus 1, of the payload whose note was sent */
    uint64_t read;            /* the one whose note was read */
    uint64_t lender;          /* the note: an address there; 0 = the bytes follow */
    dti_shm shm;
} dti_tcp_conn;

typedef struct dti_tcp dti_tcp;

/* Whether operations are slow by the congestion control: tcp_congestion.c. */
typedef struct dti_tcp_flow {
    bool settled; /* said, or there is nothing to find */
    uint32_t looks, slow;
    uint64_t reached;        /* bytes/s, at the last look */
    uint64_t acked, busy_us; /* of all data connections, at the last look */
} dti_tcp_flow;

/* The state of one dt_comm. */
typedef struct dti_tcp_group {
    dti_tcp *tcp;
    dti_rank_group *group;
} dti_tcp_group;

struct dti_tcp {
    dti_base *base;
    dti_tcp_group root; /* of the comm that all ranks are in */
    dt_comm_desc desc;
    dti_core core;
    dti_rendezvous rendezvous;
    dti_key_share share;
    dti_tls *tls;        /* NULL: in the clear */
    uint32_t tls_failed; /* handshakes with rank 0 */
    const dti_tls_calls *wire;
    dti_mutex lock;
    dti_thread thread;
    bool sockets, locked_made, thread_made; /* the parts that were made */
    int nudge[2];                           /* a pipe: ends the application's sleep */
    uint32_t events_seen;                   /* of core.events, by the thread */
    bool sleeping;                          /* the application is in poll */
    int wake[2];                            /* a pipe: ends the thread's sleep */
    uint64_t accept_after;                  /* there was no descriptor: not before this time, ns */
    int reserve;                            /* a descriptor to give up when there are no more */
    int local; /* listens for ranks of this host; -1: no shared memory */
    uint8_t host[DTI_HOST_BYTES], local_name[DTI_LOCAL_BYTES];
    dti_cpu_set processors, host_processors; /* of this rank; of those that share memory with it */
    bool host_known, crowded;                /* crowded: these are fewer than the ranks */
    uint32_t shared_count;                   /* connections that go through memory */
    bool *local_failed;    /* [size] ranks to which it did not: TCP from then on */
    dti_tcp_conn *conns;   /* [core.link_count] */
    dti_tcp_conn **active; /* those with a descriptor */
    uint32_t active_count;
    uint64_t joined[4];      /* the core's counts of bytes, when links began to be measured */
    struct pollfd *polls[2]; /* of the application, of the thread */
    dti_link **polled[2];
    _Atomic bool stop;
    dti_tcp_flow flow;
    bool to_try;       /* the core has asked for connections */
    uint64_t glanced;  /* when all data connections had a look, ns */
    bool waiting;      /* the application moves the data */
    bool thread_reads; /* the thread looks at data connections too */
};

#endif
