/* Replicas of one model on the devices of this process and of others. The step that they make
 * together is the commit protocol (protocol.h). Until WRITE nothing in a store changes. The
 * caller's thread drives the first replica and calls the comm.
 *
 * Each folder has a strategy, or code that all strategies use. In reading order:
 *
 *   mesh/       positions, devices and rows of ranks (mesh.h)
 *   step/       the engine: lists of actions, sums, the commit protocol (protocol.h)
 *   values/     values between stores, other ranks and the host (values.h)
 *   data/       replicas: buckets, one all-reduce each
 *   zero/       optimizer state, gradients and parameters sharded over replicas
 *   local/      local steps and DiLoCo, gossip, compression (local.h)
 *   pipeline/   a model cut into stages (pipe.h)
 *   tensor/     layers split over tensor ranks (tp.h)
 *
 * Files of data/ and zero/ in that order:
 *
 *   replica_make.c             programs, buckets and buffers
 *   micro_step.c               a replica's part of a step
 *   replica_actions.c          executes its actions
 *   bucket_sums.c              sums of gradients, bucket by bucket
 *   statistics.c               running statistics of batch norm
 *   sync_point.c               values that a batch's pieces compute together
 *   replica_step.c             its strategy of the commit protocol
 *   one.c                      a job of one device, whose steps start ahead
 *   owners.c                   ZeRO-1: the owners of blocks, and PUBLISH
 *   unit_make.c, unit_step.c   ZeRO-2 and 3: buffers; GATHER and REDUCE
 *   unit_evaluate.c            evaluations
 *   unit_full.c                all parameters, between steps */

/* The trainer's description; tensors are of the first replica's graph. */
typedef struct dti_parallel_desc {
    dt_program_desc program; /* losses, metrics, params, optim */
    dt_optim_desc optim;
    dt_comm *comm; /* NULL = none */
    uint64_t seed;
    dt_dtype parameter_dtype;
    const dt_dataset *data; /* the trainer's, whose columns batches have */
    uint32_t batch, tail;   /* rows of a full batch, and of a short one; 0 = no such batch */
    uint32_t parts;
    dt_parallel_desc parallel; /* as it was asked for, with its defaults */
    bool worker;               /* servers make its updates */
    int in_flight;             /* dt_trainer_desc's; 1 with .skip_empty */
    bool skip_empty;
    dti_round_desc round;
    uint32_t stages; /* of a pipeline, each on one of the devices; 0: none */
    uint32_t chunks; /* of each stage's device */
    uint32_t tensor; /* tensor ranks of a group; 0: none */
    uint32_t slices; /* tensor ranks of each device, at least 1 */
} dti_parallel_desc;

#define DTI_REPLICAS_MAX 64   /* of one process */
#define DTI_OPERANDS_MAX 1024 /* subtrees of all its replicas */

typedef struct dti_replica {
    dt_ctx *ctx; /* its own, but of the first */
    dt_graph *graph;
    dt_store *store;
    dti_runs full, tail;
    dti_runs *runs;        /* of this step */
    dti_subtrees subtrees; /* of its batch slices */
    float *gradients;      /* host side: slots, one after another */
    /* The host's copy of the parameters that a store with units owns: after each update, and when
     * all are gathered. NULL: the store's own memory is on the host. */
    float *mirror;
    double *weights;               /* of a run's pieces */
    dt_result result;              /* of this step */
    _Atomic bool failed;           /* result is not DT_OK: no thread waits for it */
    dti_list_walk walk;            /* its list in this step */
    uint32_t arrived;              /* buckets that it has given */
    double norm;                   /* of the gradient */
    bool faulty;                   /* a local step: a gradient, or a value to write, is not
                                      finite */
    bool empty;                    /* a local step: no target counts */
    uint64_t passed;               /* when its backward part ended, ns */
    uint64_t busy_ns;              /* the time that it computed in this step */
    uint64_t timed_ns, timed_rows; /* its time and rows in measured steps */
} dti_replica;

/* Nanoseconds of a step, on this process's first device and by the host's clock. */
typedef struct dti_step_times {
    uint64_t forward, backward, commit;
} dti_step_times;

/* The state of one step. On an asynchronous device the next one begins before it ends. */
typedef struct dti_step {
    uint8_t state; /* dti_protocol_state */
    const dti_batch *batch;
    uint32_t rows;
    dt_step_desc desc;
    uint64_t validate_ns;
    dti_step_times times;
    bool told;           /* all ranks know that it is given up */
    bool not_run;        /* the one before it was skipped, and this was in flight already */
    _Atomic bool faulty; /* a device here found that a value to write is not finite */

    /* one.c: the numbers of started and finished micro-batches, and the results of the latter */
    uint32_t begun, ended;
    double terms[4 * DT_MAX_TERMS];
    double norm;
    bool empty, committed;
    char said[1024]; /* as dti_base.error, if faulty */
} dti_step;

/* Sums over leaves of a few doubles: weights, losses. */
typedef struct dti_scalar_sum {
    uint32_t width;
    double *leaves; /* [local batch slices][width] */
    double *spans;  /* [subtrees][width] */
    double *sum;    /* [width] */
    dt_comm_work work;
} dti_scalar_sum;

/* Batch norm: the statistics of each piece of the job, and the current buffers. */
typedef struct dti_statistics {
    uint32_t width, count;
    const dti_stat *stats; /* of one program, except their offsets in OUT */
    uint32_t *at;          /* of each: its pairs (mean, variance) in a piece's row */
    float *pieces;         /* [pieces][width] */
    float *buffers;        /* values of the buffers, one after the other */
    uint32_t values;       /* of all buffers */
} dti_statistics;

/* Sync points of a step (sync_point.c). `rows` has a row for each batch slice of the job. */
typedef struct dti_sync_points {
    const dti_sync_point *list; /* of one program, except the places of operands and values */
    uint32_t count, width, spans;
    dt_comm *comm; /* a group of their own, so that they need no order among buckets */
    double *rows, *said, *heard;
    float *value;
    _Atomic uint32_t arrived; /* replicas, counted over all sync points of a step */
    _Atomic uint32_t made;    /* sync points whose value has been computed */
} dti_sync_points;

/* The owners of a range that a line's positions share: position i has elements bounds[i] to
 * bounds[i + 1]. */
typedef struct dti_values_shared {
    dti_mesh_line line;
    const uint64_t *bounds;
} dti_values_shared;

/* Parameters and gradients that come and go (unit_step.c). */
typedef struct dti_unit_part { /* a part of a model that is here */
    dt_store *store;           /* whose layout has the blocks that it owns */
    float *params, *gradients; /* on the host: its own parameters, then those that are not
                                  trained */
    float *windows;            /* where its code has gradients */
    const dti_subtrees *subtrees;
    const dti_code *code; /* of this step */
} dti_unit_part;

typedef struct dti_units { /* of a group of parts that are alike: replicas, or a stage's chunks */
    dti_unit_part *parts;
    uint32_t part_count;
    dti_values_shared shared;
    const dti_bucket *buckets;
    uint32_t bucket_count;
    uint16_t part;        /* the first part's number in lists */
    const dti_list *list; /* of the first part's device in this step */
    uint32_t counters;    /* the first of its counters */
    uint64_t largest;     /* elements of a unit */
    uint32_t pieces;      /* of a grid, between ranks: operations of a unit, at most */
    dt_comm *comm;        /* for parameters, a group of their own; NULL: one process */
    float *staging;       /* [DTI_UNITS_STAGED][largest] */
    float *pairs;         /* of all blocks of the commit's table */
    size_t pair_count;    /* double */
    bool whole;           /* some rank has several subtrees: all get the sum of all of a bucket */
    dti_works sends[DTI_UNITS_STAGED];
    uint32_t posted, at; /* units of this step; actions of the first list that were looked at */
} dti_units;

typedef struct dti_unit_pass_run { /* a replica's part of an evaluation's batches of one size */
    dti_runs first, next; /* of the first batch, and of one after another, when its units have been
                             gathered */
    uint64_t left;        /* units gathered after the first one */
    dti_micro_run micro;
    dti_piece piece;
} dti_unit_pass_run;

typedef struct dti_unit_pass { /* through a set, in an evaluation */
    dti_unit_pass_run *runs;   /* [2][replicas here]: of full batches, of the short one */
    float **averages; /* [replicas here]: values that the owners gather in the weights' place, or
                         NULL */
    uint64_t bytes;   /* of these */
    bool begun;       /* not the first batch */
    bool searched;    /* all ranks have looked for the first NaN */
} dti_unit_pass;

typedef struct dti_parallel {
    dti_base *base; /* of the first replica's context */
    dti_parallel_desc desc;
    dti_partition job;
    dti_mesh mesh;
    dti_replica *replicas;
    dti_device_team *device_team;
    bool shares;     /* contexts, stores and the team are another one's */
    uint32_t number; /* among those that share replicas; the one that has them is 0 */
    uint32_t first_batch_slice, batch_slices; /* of this process */
    dti_subtrees subtrees;
    dti_bucket *buckets;
    uint32_t bucket_count;
    dti_sums sums;     /* of gradients: buckets, chunks, or tensor ranks */
    uint64_t elements; /* of a gradient arena */
    float
        *partial; /* this process's sums, bucket by bucket, subtree by subtree; NULL: not needed */
    uint16_t *rounded; /* the same in bf16, bucket by bucket; NULL: ranks exchange float32 */
    uint64_t staging_bytes, subtree_bytes;
    dti_scalar_sum weights, terms;
    dti_statistics statistics;
    dti_sync_points sync_points;
    /* Each replica owns a part of the state. Between ranks `undo` keeps the values that the step's
     * commit overwrites: buffers, then this process's parameters. They are kept until all new
     * values have arrived. */
    bool sharded;
    uint64_t *owners; /* [shards + 1]: the first element of each */
    dt_comm *
        shard_comm; /* of the group's ranks, for parameters; NULL: one process, or par->desc.comm */
    float *undo;
    bool shown; /* averages are in the weights' place */
    bool given; /* of devices that each have a part: their values are on the host */
    bool kept;  /* the application has a grid's host store, and reads and writes it between steps */
    dti_units units;
    dti_round round;
    struct dti_pipe *pipe; /* a grid of pipelines, whose values the one replica has; NULL: none */
    bool alone;            /* an asynchronous device: its steps are one.c's */
    bool one_thread;       /* drives all replicas: they are asynchronous, and have little to sum */
    bool lost;             /* the comm has failed, or a device: nothing more can be trained */

    const struct dti_strategy *strategy; /* how steps are made; NULL: none was yet */

    /* Steps that have begun: `under_way` of them, from the oldest on. `now` is acted on. Actions of
     * one step at a time need and raise counters. */
    dti_step steps[DTI_STEP_SLOTS_MAX], *now;
    uint32_t oldest, under_way;
    _Atomic uint32_t *counters;
    bool asked; /* for a checkpoint: here, and after the step on any rank */

    bool searches;         /* lists are executed to find what made a NaN (step/nan_search.c) */
    dti_finding *findings; /* by device here */
    uint32_t finding_count;
} dti_parallel;

/* A part that was left out (base/optional.h) never exists. These functions ask for it, so the
 * compiler removes its code. */
static inline struct dti_pipe *dti_pipe_of(const dti_parallel *par) {
    return DTI_HAS_MODEL_PARALLEL ? par->pipe : NULL;
}
static inline bool dti_is_sharded(const dti_parallel *par) {
    return DTI_HAS_ZERO && par->sharded;
}

typedef struct dti_parallel_result {
    double terms[4 * DT_MAX_TERMS]; /* sums of losses, weights, sums of metrics, weights */
    double norm;
    double wait_seconds;
    bool committed;
    bool skipped;   /* for a NaN or infinity, on all ranks */
    uint64_t empty; /* 1: no target counts; of local steps: the number of replicas whose steps are
                       empty */
    /* Local steps: this one ended a round, and all here is of it, but for a norm of the outer step;
     * else of the step and this process. */
    bool round_ended;
    uint64_t steps, samples, left_out;
} dti_parallel_result;

/* ---- data/replica_make.c: programs, buckets and buffers for this number of batch slices of the
 * job. It destroys those of an earlier call. replicas, job.parallel.replicas, first and local are
 * set. */
static dt_result dti_parallel_build(dti_parallel *par, uint32_t batch_slices,
                                    const uint32_t *bounds);
static void dti_parallel_unbuild(dti_parallel *par);
/* Gradients may lie elsewhere, as another one's programs were made in the same stores. */
static void dti_parallel_bind(dti_parallel *par);
/* Whether replicas have a number of batch slices. INVALID */
static dt_result dti_batch_slices_fit(dti_parallel *par, uint32_t batch_slices);
/* Whether a sum of `operands` partial sums has room. INVALID */
static dt_result dti_operands_fit(dti_parallel *par, uint32_t replicas, uint64_t operands);

/* ---- mesh/mesh_job.c */
/* Allocates the mesh of par->desc, whose rank and world are set. MEMORY */
static dt_result dti_mesh_open(dti_parallel *par);
/* Which devices all ranks have, of which this one has job.local; on all ranks together. */
static dt_result dti_mesh_count(dti_parallel *par);
/* Whether the job's devices make this number of replicas; 0: any number. INVALID */
static dt_result dti_mesh_fits(dti_parallel *par, uint32_t data);
static void dti_mesh_cut(dti_parallel *par); /* this process's batch slices, of job.batch_slices */
/* The batch slices of this rank's part of the data-parallel line through a position. */
static dt_comm_span dti_mesh_slices_of(const dti_parallel *par, uint32_t position);
/* The subtrees of a rank's part of a data-parallel line, in the tree over batch slices. */
static dti_subtrees dti_mesh_subtrees(const dti_parallel *par, dti_mesh_line line, uint32_t rank);
/* Makes a comm group of the ranks along an axis through a position, in their order. Leaves of its
 * sums are batch slices along data, else positions. Called on all ranks together, in one order.
 * *out stays NULL if this rank has none of these positions, or one rank has all. */
static dt_result dti_mesh_group(dti_parallel *par, dti_mesh_axis axis, uint32_t position,
                                dt_comm **out);
/* The same of any line, also of one rank; without leaves. */
static dt_result dti_mesh_line_group(dti_parallel *par, dti_mesh_line line, dt_comm **out);
static dt_result dti_mesh_leaves(dti_parallel *par, dt_comm *comm, dt_comm_span own,
                                 uint32_t total);
static void dti_mesh_log(const dti_parallel *par);

/* ---- mesh/replicas.c */
/* Opens the stores of `devices` ("cpu:2,vulkan:0"; NULL = auto). The first is of `graph`, each
 * other of a copy in its own context. */
static dt_result dti_replicas_open(dti_parallel *par, dt_graph *graph, const char *devices,
                                   int threads);
static void dti_replicas_close(dti_parallel *par);
/* Those of another one, which outlives it. MEMORY */
static dt_result dti_replicas_share(dti_parallel *par, const dti_parallel *of);
/* The number of devices that a list names; 0 and an error: it is malformed. */
static uint32_t dti_devices_count(dti_base *base, const char *devices);

/* ---- mesh/agree.c */
/* Checks that the ranks have the same `text`, a line for each fact. The error names the first
 * difference. */
static dt_result dti_agree_text(dti_parallel *par, const char *text, size_t size);
/* CPUs with FMA and without round differently: all ranks' devices are of one class. INVALID */
static dt_result dti_agree_class(dti_parallel *par);
/* Allocates memory for values that go to other ranks, on all ranks or none. So no rank runs out of
 * memory after values have changed. The caller frees it; or `fn` gets it. MEMORY: *piece is NULL */
#define DTI_AGREE_PIECE ((size_t)1 << 20)
static dt_result dti_agree_piece(dti_parallel *par, char **piece);
typedef dt_result dti_piece_fn(dti_parallel *par, char *piece);
static dt_result dti_agree_with(dti_parallel *par, dti_piece_fn *fn);
/* If each replica has all values. The first one of rank 0 sends parameters, buffers and optimizer
 * state to all others. Then all have the same hash. */
static dti_piece_fn dti_agree_state;
/* A job averages all that it trains from its first step on. */
static void dti_agree_averages(dt_store *s);
/* In place, over all ranks of a comm; NULL: there are no others. */
static dt_result dti_ranks_reduce(dti_parallel *par, dt_comm *comm, void *data, uint64_t count,
                                  dt_dtype dtype, dt_comm_reduction how);
/* Sends rank 0's values there to all ranks. */
static dt_result dti_ranks_tell(dti_parallel *par, void *data, uint64_t count, dt_dtype dtype);
/* The first rank's result that is not DT_OK, with its text, on all of them. */
static dt_result dti_agree_result(dti_parallel *par, dt_result own);

/* ---- zero/owners.c: the state sharded over replicas (ZeRO-1); only where par->sharded */
/* Replicas of a shard group: together they have the state once. */
static uint32_t dti_shards(const dti_parallel *par);
/* The values of each position of this process's group. */
static dti_values_shared dti_shards_here(const dti_parallel *par);
/* Whether it has replicas of other ranks, too. Alike on all ranks. */
static bool dti_shards_span(const dti_parallel *par);
static bool dti_owners_are(const dti_parallel *par); /* whether it will be */
/* Sets whether it is sharded, and the blocks of each store. Before its programs are made. MEMORY */
static dt_result dti_owners_cut(dti_parallel *par);
static dt_result dti_owners_make(dti_parallel *par); /* host memory; MEMORY */
/* On a replica's thread, before its commit: keeps the values that the commit overwrites, between
 * ranks. */
static dt_result dti_owners_keep(dti_parallel *par, uint32_t index);
/* After all commits: distributes new parameters from their owners. On an error of the comm each
 * replica returns to the step before, completely, and the error reports it. */
static dt_result dti_owners_gather(dti_parallel *par);
/* Puts averages in the weights' place, on all ranks or none. An evaluation with ZeRO-1 needs it,
 * and the file of a fit's best weights. Call hide in any case. */
static dt_result dti_owners_show(dti_parallel *par);
static dt_result dti_owners_hide(dti_parallel *par);
/* The group's comm, on all ranks together, once a build. */
static dt_result dti_shards_group(dti_parallel *par);

/* ---- zero/unit_make.c, unit_step.c, unit_full.c: ZeRO-2 and 3 of replicas, else nothing */
static bool dti_units_are(const dti_parallel *par);
static dt_result dti_units_make(dti_parallel *par); /* MEMORY */
/* Allocates room between ranks for units whose parts, shared and buckets are set. MEMORY */
static dt_result dti_units_open(dti_parallel *par, dti_units *u);
/* Whether some rank has several subtrees of the sums of a line's replicas. Then all get all of each
 * sum. */
static bool dti_units_whole(const dti_parallel *par, dti_mesh_line line);
/* Whether the nonzero numbers are the same on all ranks. *bad: the first that is not, or `count`.
 * own: [2 * count]. */
static dt_result dti_ranks_same(dti_parallel *par, int64_t *own, size_t count, size_t *bad);
/* On all ranks, once a build: each group's units come in one order. UNSUPPORTED */
static dt_result dti_units_same_order(dti_parallel *par, uint32_t groups);
static dt_result dti_units_agree(dti_parallel *par);         /* of replicas */
static void dti_units_free(dti_parallel *par, dti_units *u); /* except the group */
static void dti_units_leave(dti_units *u);                   /* cancels the work that others wait
                                                                for */
static void dti_units_rewind(dti_parallel *par); /* lists of replicas' runs start again */
/* For a replica's runs, whose programs have been made. MEMORY */
static dt_result dti_runs_list_make(dti_parallel *par, dti_replica *r, dti_runs *runs);
static dti_action_fn dti_unit_gather;
/* Likewise for a part: moves the unit's parameters to where its code has them. */
static dt_result dti_unit_fetch(const dti_units *u, const dti_unit_part *p, const dti_code *code,
                                const dti_action *a);
/* Between ranks, on the thread that uses the network. Sends parameters that others wait for, of at
 * most `most` more units. Errors: the comm's. */
static dt_result dti_units_stream(const dti_parallel *par, dti_units *u, uint32_t most);
/* After an update: copies the written values to where they are read, on the host or the device. */
static dt_result dti_unit_committed(const dti_unit_part *p);
/* Where a part has a bucket's sum. */
static float *dti_unit_window(const dti_unit_part *p, uint32_t b);
static const dti_sum_kind dti_unit_kind;
/* ---- zero/unit_evaluate.c */
/* The options to lower a program of `rows` rows with. */
static dti_batch_slices dti_unit_pass_slices(const dti_parallel *par, const dti_piece *rows);
/* Memory for a pass, with averages or without. MEMORY */
static dt_result dti_unit_pass_make(dti_parallel *par, dti_unit_pass *pass, bool averaged);
static void dti_unit_pass_free(dti_parallel *par, dti_unit_pass *pass);
/* A replica's program, for `rows` rows of a batch of `of`, from `row` on. rows 0: other replicas
 * have rows, and the program lists the units that they gather. MEMORY */
static dt_result dti_unit_pass_put(dti_parallel *par, dti_unit_pass *pass, bool tail,
                                   uint32_t replica, dt_program *program, uint32_t of,
                                   dti_micro_run rows);
/* On all ranks together, before the first batch: checks that all gather the same. `own`: this
 * rank's result so far. UNSUPPORTED */
static dt_result dti_unit_pass_begin(dti_parallel *par, dti_unit_pass *pass, dt_result own);
/* On all ranks together: a batch whose rows the programs have. `own`: as before. After an error in
 * the middle of it the job has ended. */
static dt_result dti_unit_pass_batch(dti_parallel *par, dti_unit_pass *pass, const dti_batch *batch,
                                     const dt_step_desc *step, dt_result own);
/* Adds a replica's losses and metrics of the batch; whether the losses are finite. */
static bool dti_unit_pass_terms(const dti_parallel *par, uint32_t replica, double *sum);
/* On all ranks together, after the first batch that is faulty on some rank. faulty: on this rank.
 * The text of this rank's finding goes to par->base->error, with NUMERIC. */
static dt_result dti_unit_pass_fault(dti_parallel *par, dti_unit_pass *pass, const bool *faulty);
static void dti_unit_pass_end(dti_parallel *par); /* owners send weights again */

/* All parameters to the stores, on all ranks together, and before a step back to their owners.
 * REVOKED: other ranks had some. */
static dt_result dti_units_show(dti_parallel *par);
static dt_result dti_units_lost(dti_parallel *par); /* that REVOKED, or OK */
static dt_result dti_units_take(dti_parallel *par); /* from the stores, which keep them */
static dt_result dti_units_hide(dti_parallel *par);

/* ---- step/reducer.c */
/* Whether ranks exchange gradients in bf16 (DT_COMPRESS_BF16). */
static bool dti_sums_are_rounded(const dti_parallel *par);
/* The bytes that a rank sends for the gradients of this number of elements (as f32), or for a
 * round's differences. */
static uint64_t dti_sums_wire_bytes(const dti_parallel *par, uint64_t gradient_bytes);
static void dti_sums_log(const dti_parallel *par); /* logs what ranks exchange, if it is not f32 */
static dt_result dti_works_post(dt_comm *comm, dti_works *w, const dt_comm_op *op);
/* Looks whether all have ended, or waits for it. */
static dt_result dti_works_end(dt_comm *comm, dti_works *w, bool wait, bool *ended);
static void dti_works_cancel(dt_comm *comm, dti_works *w);
/* Room for `count` sums, each of at most `most` operations at a time. MEMORY */
static dt_result dti_sums_make(dti_parallel *par, const dti_sum_kind *kind, uint32_t count,
                               uint32_t window, uint32_t most);
static void dti_sums_free(dti_parallel *par);
static void dti_sums_begin(dti_parallel *par);
/* A part of sums [from, to) is with the host. */
static void dti_exchange_arrive(dti_parallel *par, uint32_t from, uint32_t to);
/* Folds slices of a sum that no thread folds yet, if its parts have arrived. True: this thread
 * finished it. */
static bool dti_sum_fold(dti_parallel *par, uint32_t number);
/* Folds sums that are ready, in order. True: all are folded. */
static bool dti_sums_fold(dti_parallel *par);
static dt_result dti_sum_post(dti_parallel *par, uint32_t number);
/* A range of a sum to a rank; -1: to all. */
static dt_result dti_sum_post_range(dti_sum *s, dti_bucket range, int root);
/* On the thread that uses the network: posts folded sums, and takes received ones. */
static dt_result dti_sums_speak(dti_parallel *par);
/* Waits for all of them. */
static dt_result dti_exchange_finish(dti_parallel *par);
static void dti_sums_cancel(dti_parallel *par); /* waits for posted sums: memory is this rank's
                                                   again */
/* An operation's result on this process. A failure goes into par->base->error, and sets
 * par->lost. */
static dt_result dti_parallel_comm_failed(dti_parallel *par, dt_result result);

/* ---- data/bucket_sums.c: the sums are in the first replica's slot 0 */
static dt_result dti_bucket_sums_make(dti_parallel *par); /* after all memory; MEMORY */
static void dti_exchange_begin(dti_parallel *par);
/* Folds sums that are ready. On the first replica's thread it also posts, and services the
 * network. */
static bool dti_exchange_help(dti_parallel *par, uint32_t replica, bool last);

/* ---- step/scalar_sums.c: sums of width doubles over all batch slices of the job */
static dt_result dti_scalar_sums_make(dti_parallel *par); /* those of a step; MEMORY */
static void dti_scalar_sum_free(dti_parallel *par, dti_scalar_sum *s);
/* Begin takes par's leaves; end gives the sum. */
static dt_result dti_scalar_sum_begin(dti_parallel *par, dti_scalar_sum *s);
static dt_result dti_scalar_sum_end(dti_parallel *par, dti_scalar_sum *s);
/* Likewise at once, if leaves have room for all batch slices: this rank's own, the others zeros. */
static dt_result dti_grid_scalars(dti_parallel *par, dti_scalar_sum *s);

/* ---- data/statistics.c */
static dt_result dti_statistics_make(dti_base *base, const dti_partition *job, const dti_code *code,
                                     dti_statistics *s);
static void dti_statistics_free(dti_base *base, dti_statistics *s);
/* After a run: the statistics of its pieces, as `p` computed them. Threads: the replica's. */
static void dti_statistics_take(dti_statistics *s, const dti_micro_run *run, const dt_program *p);
/* The buffers move by the pieces of the whole job: those of batch slices `own` are here.
 * Others' come from the comm's ranks, if there are any. */
static dt_result dti_statistics_sum(dti_parallel *par, dti_statistics *s, dt_comm *comm,
                                    dt_comm_span own);
static dt_result dti_statistics_load(dti_statistics *s, dt_store *store); /* the buffers */
static void dti_statistics_put(dti_parallel *par, dti_replica *replica);
/* Copies buffers' new values to where a store's commit reads them. */
static dt_result dti_statistics_write(const dti_statistics *s, dt_store *store);
/* The name of the buffer that is not finite; NULL = none. */
static const char *dti_statistics_fault(const dti_statistics *s, const dt_graph *g);

/* ---- data/sync_point.c */
static dt_result dti_sync_points_open(dti_parallel *par); /* memory; MEMORY, INVALID */
/* On all ranks, once a build: they have the same sync points, and a group for them. */
static dt_result dti_sync_points_agree(dti_parallel *par);
static void dti_sync_points_free(dti_parallel *par); /* except the group, which close ends */
static void dti_sync_points_close(dti_parallel *par);
static void dti_sync_points_begin(dti_parallel *par);
/* On each replica's thread, in order of sync points: gives its operand and gets the value. run
 * NULL: it has no rows, and gives nothing. *given_up: another replica failed, and reports why. */
static dt_result dti_sync_point_make(dti_parallel *par, uint32_t index, uint32_t sync_point,
                                     const dti_micro_run *run, bool *given_up);

/* ---- data/replica_make.c */
/* Of the trained parameters of a store, from its graph only, so all ranks and devices have the
 * same. Room for DTI_BUCKETS_MAX. Returns the number of buckets. */
static uint32_t dti_buckets_make(const dti_parallel *par, const dt_store *s, dti_bucket *buckets);
/* A replica's code of full batches: the meaning of the model and its description. */
static const dti_code *dti_parallel_code(const dti_parallel *par);

static dt_program_desc dti_replica_desc(const dti_parallel *par, const dti_replica *r);
static dt_program *dti_parallel_last(const dti_replica *r); /* of this step's runs */

/* ---- pipeline/device_grid.c: grids of pipelines: several devices train one replica */
static bool dti_grid_is(const dti_parallel *par);
static const char *dti_grid_setting(const dti_parallel *par); /* which says so */
/* The job as it will be. INVALID */
static dt_result dti_grid_begin(dti_parallel *par, uint32_t batch_slices);
/* A step's batch slices by the replicas of the mesh: each part is a run by itself. */
static dti_partition dti_grid_partition(const dti_parallel *par);
/* A replica's runs of such a partition, of pieces that have rows. */
static dt_result dti_grid_runs_make(dti_parallel *par, const dti_partition *grid, uint32_t replica,
                                    uint32_t rows, dti_runs *runs);
/* The code of the whole model, by replica 0 and its runs: it checks and counts, and never runs. */
static dt_result dti_grid_code(dti_parallel *par, const dti_code **out);
/* Which micro-batch of its batch slice a run is; the last of all commits. */
static void dti_grid_number(const dti_runs *runs, uint32_t micro, dt_step_desc *step);
/* Rows of data that this process reads: none if its stages get all inputs from others. */
static void dti_parallel_rows(const dti_parallel *par, uint32_t rows, uint32_t *first,
                              uint32_t *count);

/* ---- pipeline/pipe_forward.c, pipe_average.c: losses and metrics of a set, or a tensor's values,
 * by a grid. The set comes in groups of micro-batches. */
typedef struct dti_grid_evaluation {
    uint64_t rows;    /* of the set */
    uint32_t each;    /* of a micro-batch */
    dt_tensor output; /* of the first replica's graph; nil: losses and metrics */
    char *out;        /* [rows][out_bytes], for this rank's rows of output */
    size_t out_bytes;
    bool averaged;
} dti_grid_evaluation;
/* Rows of a group. */
static uint32_t dti_forward_batch(const dti_parallel *par, const dti_grid_evaluation *d);
/* Makes programs, lists and flows, on all ranks together; those of a former call stay if they fit.
 * INVALID: ranks with different sets. UNSUPPORTED: a tensor that stages cannot have. MEMORY */
static dt_result dti_forward_make(dti_parallel *par, const dti_grid_evaluation *d);
static void dti_forward_free(dti_parallel *par, const dti_grid_evaluation *d);
/* Before the first group: INVALID for an input that is not in the set, or was not written. */
static dt_result dti_forward_inputs(dti_parallel *par, const dti_grid_evaluation *d,
                                    const dt_dataset *data);
/* The rows of a group of `rows` rows that chunks here read. */
static void dti_forward_rows(const dti_parallel *par, const dti_grid_evaluation *d, uint32_t rows,
                             uint32_t *first, uint32_t *count);
/* One group, on all ranks together. own: this rank's result before it. terms: sums and weights of
 * all ranks are added. said: the cause of the first loss that is not finite, once. */
static dt_result dti_forward_run(dti_parallel *par, const dti_grid_evaluation *d,
                                 const dti_batch *batch, dt_result own, dti_exact *terms,
                                 char said[1024]);
/* Sharded averages in the weights' place, on all ranks together, and back in any case. */
static dt_result dti_forward_show(dti_parallel *par);
static dt_result dti_forward_hide(dti_parallel *par);

/* ---- data/one.c */
static bool dti_parallel_is_alone(const dti_parallel *par);
/* Whether nothing of them passes the host: its sums have no other parts. */
static bool dti_parallel_keeps_gradients(const dti_parallel *par);
static uint64_t dti_alone_committed(const dti_parallel *par); /* of the steps in flight */
static dt_result dti_alone_program(dti_parallel *par, dti_replica *r, dti_micro_run *run);

/* ---- data/replica_step.c */
/* The first replica that failed; its text comes to the first one's context. */
static dt_result dti_replicas_result(dti_parallel *par);
/* A device failed in the commit, or after it. Ends the group. The error reports the weights here:
 * mixed, of two steps. */
static dt_result dti_parallel_partial_commit(dti_parallel *par, dt_result result, bool mixed);
