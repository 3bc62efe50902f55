/* ---- A parameter server -------------------------------------------------------------------------
 *
 * In place of ranks that sum gradients among themselves: servers hold the parameters, and workers
 * ask them for work. A step's batch is cut into .trainer.parallel.batch_slices; a worker (a trainer with .mode =
 * DT_TRAIN_SERVER) asks for one that nobody has, takes the parameters, computes its gradient, and
 * pushes it. When all shards of a step have come, the servers add them up and update. Workers are
 * in no group: they come and go at any time, and one that dies costs what it had under way, which
 * another computes. docs/distributed.md says when this is worth it.
 *
 * With .staleness 0 this is synchronous training: the weights are, bit for bit on the CPU, those of
 * a trainer with as many .parallel.batch_slices, whoever computed what. With s above 0 a worker goes on to step c
 * while the slowest live one is at step c - s or later (stale synchronous parallel, Ho et al.
 * 2013): gradients are then those of weights up to s steps old, and bits depend on time.
 *
 * Threads: functions of a server are called on one thread at a time, its context's, but for
 * dt_server_stop. It has no thread of its own: dt_server_run serves. */

typedef struct dt_server dt_server;

typedef struct dt_server_desc {
    /* The model's settings, as the workers have them; .data says how many rows there are and in
     * which columns. .devices is one CPU; NULL = "cpu". .parallel.batch_slices: 0 = 1; those of a step can be
     * computed at once. .load, .checkpoint.folder and their kind work as ever. It goes with no .comm,
     * .parallel.pipeline, .tensor, .mode, .parallel.balance or .parallel.zero_stage. */
    dt_trainer_desc trainer;
    /* "host:port", port 0 = any, see dt_server_info; or "file:///path": at any port, which that
     * file tells, in a folder that the workers see, too. NULL = "127.0.0.1:0". */
    const char *listen;
    /* Key, job, attempt, integrity and certificates, as for ranks: dt_comm_desc_from_env(). NULL =
     * {0}, which is an error, as there is no key: only .insecure does without. */
    const dt_comm_desc *security;
    int staleness; /* s: from 0 to 62 */
    /* The step's rate is divided by 1 + its staleness, the number of updates since the oldest
     * weights that its gradients were computed with (Zhang et al. 2016, Staleness-aware
     * Async-SGD). */
    bool staleness_lr;
    /* Connections at once; 0 = 64. Who comes when all are taken waits for one, for its
     * .server.wait_ms, and is REFUSED then. */
    int max_workers;
    /* A shard that is not pushed in this time is also given to the next worker that asks, and the
     * first push counts. 0 = 60 s, -1 = never. */
    int reassign_ms;
    /* This server's number, from 0, in the order of the workers' .servers, and the number of
     * servers (0 = 1; at most 64). Each server updates and sends its part of the parameters, and
     * has memory for all of them. All have the same trainer settings. Each writes checkpoints of
     * its part; dt_store_save of a worker's store writes all weights. Servers that are started
     * again go on from the newest step that all have. Each keeps that checkpoint until all have a
     * newer one. .optim->clip_norm limits the norm over all parts. */
    int index, servers;
} dt_server_desc;

/* Creates the server and its trainer, with the values that a trainer begins with, and listens.
 * Memory: a training replica on the CPU, (staleness + 1) * shards gradients, and its part of the
 * parameters as the newest epoch ended with. desc is not kept
 * but as by dt_trainer_create. The graph owns the server; dt_server_destroy ends it earlier.
 * Errors, with *out NULL: INVALID, UNSUPPORTED, IO (the address), and those of dt_trainer_create.
 */
DT_API dt_result dt_server_create(dt_graph *graph, const dt_server_desc *desc, dt_server **out);
/* NULL is allowed. Workers find it gone. */
DT_API void dt_server_destroy(dt_server *server);
/* The trainer with the parameters: to resume, save, evaluate, set the rate, between two
 * dt_server_run. It makes no steps by itself. The server owns it. Values that are loaded or written
 * there void what was pushed for the former ones; workers come back by themselves. */
DT_API dt_trainer *dt_server_trainer(dt_server *server);
/* Serves for timeout_ms, or with -1 until dt_server_stop. A worker whose server is outside of this
 * function for .server.wait_ms takes it for lost. It can be called again after an error. Errors:
 * those of checkpoints that are due; DEVICE_LOST, MEMORY; INVALID if the servers have no step in
 * common (start all again from checkpoints of one step), or if an update that others have made is
 * not finite here (all go back to a step before it). */
DT_API dt_result dt_server_run(dt_server *server, int timeout_ms);
/* Ends a dt_server_run that is under way, or the next one. Threads: any, and signal handlers. */
DT_API void dt_server_stop(dt_server *server);

typedef struct dt_server_info {
    int port;                 /* where it listens */
    int workers, connections; /* connected now; connections that there have been */
    uint64_t step, epoch;     /* committed; of the next batch */
    uint64_t skipped;         /* steps left out for a NaN or infinity, or by .skip_empty */
    uint64_t pushes;          /* that were counted: shards */
    uint64_t reassigned;      /* shards handed out once more */
    /* Pushes that did not count: come already, too late, too old, not its worker's, not finite */
    uint64_t rejected;
    uint64_t max_staleness; /* the largest staleness of an update */
    uint64_t
        unauthenticated; /* connections that ended before they had proved that they have the key */
    double loss;         /* of the newest step */
    /* Of several servers: how often this one went back to a step that all have, and how many steps
     * were made again. */
    uint64_t rollbacks, lost_steps;
} dt_server_info;
DT_API void dt_server_get_info(const dt_server *server, dt_server_info *info);
