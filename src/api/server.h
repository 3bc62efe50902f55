/* ---- A parameter server
 *
 * Servers hold the parameters. A step's batch is cut into .trainer.parallel.batch_slices. A worker
 * is a trainer with .mode = DT_TRAIN_SERVER. It computes the gradient of one slice at a time. When
 * a step has all gradients, the servers update. Workers join and leave at any time. If one dies,
 * another computes its slice. See docs/distributed/parameter-server.md.
 *
 * Staleness 0 is synchronous training. The weights are those of a trainer with the same number of
 * .parallel.batch_slices, bit for bit on the CPU.
 *
 * Staleness s above 0: a worker starts step c when the slowest live worker is at step c - s or
 * later (stale synchronous parallel, Ho et al. 2013). Gradients are then those of weights up to s
 * steps old, and bits depend on time.
 *
 * Threads: the context's, except dt_server_stop. A server has no thread of its own: dt_server_run
 * serves. */

typedef struct dt_server dt_server;

/* trainer: the model's settings, as the workers have them. .data has the number of rows and the
 * columns. .devices is "cpu" or NULL. .parallel.batch_slices: 0 = 1. .load and .checkpoint work as
 * in any trainer. It cannot have .comm, .mode, .parallel.pipeline, .parallel.tensor,
 * .parallel.balance or .parallel.zero_stage.
 *
 * Several servers: each updates and sends its part of the parameters, and has memory for all of
 * them. All have the same trainer settings. Each server writes checkpoints of its part, and
 * dt_store_save of a worker's store writes all weights. Servers that are started again continue
 * from the newest step that all have. */
typedef struct dt_server_desc {
    dt_trainer_desc trainer; /* see above */
    /* "host:port"; port 0 = any (dt_server_info.port). Or "file:///path": any port, which the
     * server writes to that file, in a folder that the workers see. NULL = "127.0.0.1:0". */
    const char *listen;
    /* Key, job, attempt, integrity and certificates, as for ranks: dt_comm_desc_from_env(). NULL =
     * {0}, an error: without a key .insecure must be set. */
    const dt_comm_desc *security;
    int staleness; /* s: from 0 to 62 */
    /* Divide the rate by 1 + the number of updates since the oldest weights of the step's gradients
     * (Zhang et al. 2016, Staleness-aware Async-SGD). */
    bool staleness_lr;
    /* Connections at once; 0 = 64. A further worker waits for its .server.wait_ms, and is then
     * REFUSED. */
    int max_workers;
    /* A slice whose gradient is not pushed in this time is also given to another worker. The first
     * push counts. 0 = 60 s, -1 = never. */
    int reassign_ms;
    /* This server's number, from 0, in the order of the workers' .server.addresses; and the number
     * of servers: 0 = 1, at most 64. */
    int index, servers;
} dt_server_desc;

/* Creates a server with its trainer and that trainer's first values, and listens. Its memory is
 * that of a training replica on the CPU, its part of the parameters again, and (staleness + 1) *
 * batch_slices gradients. desc's data must outlive the server.
 * Ownership: the graph's.
 * Errors: INVALID, UNSUPPORTED, IO (the address), and those of dt_trainer_create. */
DT_API dt_result dt_server_create(dt_graph *graph, const dt_server_desc *desc, dt_server **out);
/* Destroys a server and its trainer. Workers lose their connections. */
DT_API void dt_server_destroy(dt_server *server);
/* Returns the trainer with the parameters. Between two dt_server_run use it to resume, save,
 * evaluate or set the rate. Loading or writing values discards gradients computed from the old
 * ones; workers fetch the new values automatically.
 * Ownership: the server's. */
DT_API dt_trainer *dt_server_trainer(dt_server *server);
/* Serves workers. It can be called again after an error. Workers regard a server as lost that is
 * outside of this function for their .server.wait_ms.
 * timeout_ms: returns after this time; -1 = only after dt_server_stop.
 * Errors: those of checkpoints that are due, DEVICE_LOST, MEMORY, INVALID (the servers have no step
 * in common: start all again from checkpoints of one step; or an update of the other servers is not
 * finite here: all go back to a step before it). */
DT_API dt_result dt_server_run(dt_server *server, int timeout_ms);
/* Ends a dt_server_run that is serving, or else the next one. Threads: any, and signal handlers. */
DT_API void dt_server_stop(dt_server *server);

typedef struct dt_server_info {
    int port;                 /* where it listens */
    int workers, connections; /* workers connected now; connections so far */
    uint64_t step, epoch;     /* steps committed; epoch of the next batch */
    uint64_t skipped;         /* steps left out for a NaN or infinity, or by .skip_empty */
    uint64_t pushes;          /* gradients of batch slices that counted */
    uint64_t reassigned;      /* slices given to another worker */
    /* Pushes that did not count: too late, too old, not finite, or of a slice given to another. */
    uint64_t rejected;
    uint64_t max_staleness;   /* the largest staleness of an update */
    uint64_t unauthenticated; /* connections that did not prove to have the key */
    double loss;              /* of the newest step */
    /* How often it went back to a step common to all servers; steps made again. */
    uint64_t rollbacks, lost_steps;
} dt_server_info;
/* Gives counts. */
DT_API void dt_server_get_info(const dt_server *server, dt_server_info *info);
