/* A grid of pipelines: chunks of one model on devices of any ranks, and the step that they make
 * together. A position is a device of the job, in the order of ranks and of each rank's devices. P
 * stages, T tensor ranks (1: no tensor parallelism), D replicas: position p has tensor rank p mod T
 * of stage p / T mod P of replica p / (P T). So the devices of a stage are neighbours, and then the
 * stages of a replica. A pipeline (dti_pipeline) is the stages of one tensor rank of one replica.
 * Its graph of the whole model is cut at the same places for all. The pipelines of a replica
 * compute the same micro-batches in the same order. Tensor ranks of a stage have sync points
 * (tp_sync.c). Each sends to the next stage's device of the same tensor rank. A rank has only the
 * chunks of its own positions.
 *
 *   weigh      chunks with losses compute loss weights from targets only; all ranks sum them
 *   schedule   each device executes its list: forward and backward parts of micro-batches
 *              (pipe_wire.c: messages between ranks)
 *   sum        a chunk's gradients are summed over the batch slices of all pipelines (pipe_sum.c)
 *   norm       each chunk computes pairs of its blocks, which are joined in the order of one model
 *   validate   each chunk checks that the norm and the values of its update are finite
 *   barrier    all ranks exchange losses and findings
 *   commit     all chunks write their update, or none does
 *
 * A chunk has a graph, a store and programs of its own, with slots for its live micro-batches. The
 * job's one replica has a store on each rank's host. It has the layout of all values, but the
 * values only after the application asks for them (values/host.c).
 *
 * The files of this folder in the order in which to read them:
 *
 *   pipe_grid.c                        which position has which chunk
 *   pipe_cut.h, pipe_cut.c             a graph cut into chunks
 *   pipe_search.c                      where it is cut without marks
 *   pipe_schedule.h, pipe_schedule.c   1F1B, fill-drain, interleaved, zero bubble
 *   pipe_list.c                        lists of actions from a schedule
 *   pipe_wire.c                        activations and gradients between ranks
 *   pipe_program.c                     programs of a plan
 *   pipe_make.c                        contexts and chunks
 *   pipe_step.c                        its strategy of the commit protocol, and its actions
 *   pipe_sum.c                         sums of gradients, chunk by chunk
 *   pipe_share.c                       ZeRO-1 of chunks
 *   pipe_units.c                       ZeRO-2 and 3 of chunks
 *   pipe_forward.c                     evaluation and prediction: forward parts by themselves
 *   pipe_average.c                     sharded averages, for an evaluation
 *   device_grid.c                      replicas' runs, and the whole model's code */

/* The work of a grid: steps, or only forward parts. Each is a plan, for full batches and for short
 * ones. */
enum { DTI_PIPE_TRAIN, DTI_PIPE_EVALUATE, DTI_PIPE_PREDICT, DTI_PIPE_PLANS };
#define DTI_PIPE_SHAPES (2 * DTI_PIPE_PLANS) /* of batches: plan by plan, full and short */

typedef struct dti_pipe_run { /* a micro-batch in a chunk */
    dt_program *program;
    uint32_t micro_slot;
    uint32_t before; /* the slot's previous micro-batch, counted from 1; 0: none */
} dti_pipe_run;

typedef struct dti_pipe_chunk { /* of a pipeline */
    uint32_t pipeline, index, device;
    dt_graph *graph;
    dt_store *store; /* NULL: another rank has it */
    dti_pipe_run *runs[DTI_PIPE_SHAPES];
    dti_batch_slice_stack sum; /* of its batch slices */
    float *mirror; /* its own parameters, on the host; NULL: the store's memory is there */

    bool averages; /* are in the weights' place */

    double norm; /* of the current step */
} dti_pipe_chunk;

typedef struct dti_pipe_stage { /* data shared by the chunks here of one number and tensor rank */
    dti_pipe_chunk *chunk;      /* the first here; NULL = none. The next ones are a replica on */
    uint32_t pipelines;         /* here that have it */
    uint8_t losses[DT_MAX_TERMS], metrics[DT_MAX_TERMS]; /* the model's parameter of each of its
                                                            own */
    uint32_t *params;                                    /* by its own: the model's */
    dti_statistics statistics;
    dti_sum *sum;        /* over pipelines, here and elsewhere */
    dti_bucket *buckets; /* of its arenas; NULL: it has no units */
    uint32_t bucket_count;
    dti_units units;
    dti_list_units gathered; /* while a device's list is written */

    /* The current step. */
    double coefficients[DT_MAX_TERMS], weights[DT_MAX_TERMS];
} dti_pipe_stage;

typedef struct dti_pipeline { /* a pipeline of which a chunk is here */
    uint32_t replica, tp_rank;
    dti_runs runs[DTI_PIPE_SHAPES];
    dti_pipe_schedule schedules[DTI_PIPE_SHAPES]; /* none if it has no rows */
} dti_pipeline;

typedef struct dti_pipe_device {
    dt_ctx *ctx;
    uint32_t pipeline,
        place;        /* its first one, and its place in it; the next ones' are its slices */
    dti_tp_place *tp; /* where tensor ranks of its stage synchronise; NULL: it has all of it */
    dti_list lists[DTI_PIPE_SHAPES];
    dti_list_walk walk;
    dt_result result; /* of this step */
} dti_pipe_device;

/* The tensors that one chunk sends another over the network, in one direction: for each micro-batch
 * in order, each tensor. */
#define DTI_PIPE_WINDOW 2     /* micro-batches: one is computed with while the next one travels */
#define DTI_PIPE_WORKS_MAX 96 /* operations at once: of the comm's DTI_PENDING_MAX */
#define DTI_PIPE_WAIT_MS 2    /* between two checks for other work */
typedef struct dti_pipe_flow {
    dt_comm *comm;        /* of the two ranks, for this pipeline and pair of chunks */
    int peer;             /* in it */
    uint32_t pipeline;    /* here */
    uint16_t here, there; /* chunks */
    bool sends, gradient;
    uint32_t *links; /* of the cut */
    uint32_t link_count;
    uint64_t *at; /* of a forward part that is received: the offset of each tensor in a slot */
    uint64_t slot_bytes;
    char *slots;                      /* DTI_PIPE_WINDOW of them */
    dti_works works[DTI_PIPE_WINDOW]; /* of a micro-batch, by its links */
    uint32_t posted;                  /* micro-batches */
    _Atomic uint32_t *done;           /* of the step's counters */
    bool shares_comm;                 /* which is another flow's */
} dti_pipe_flow;

/* A plan without steps. */
typedef struct dti_pipe_evaluation {
    dti_grid_evaluation desc;
    dti_partition grids[2]; /* of full groups, and of short ones: a micro-batch is a batch slice */
    uint32_t micro_slots;   /* of a chunk's programs */
    uint32_t node;          /* of the cut graph, the tensor that is read; 0: none */
    uint16_t home;          /* the ranks that have it */
    bool reads;             /* a chunk here reads a column of the set */
    double *leaves;         /* [micro-batches of a group][DTI_TERMS_WIDTH] */
    dti_step step;          /* the current group */
    bool searched;          /* in this set: the first value that is not finite */
    uint32_t fault;         /* the micro-batch that is searched, from 1; 0: no search */
} dti_pipe_evaluation;

/* The data of a plan. Chunks, devices and pipelines have its programs, lists and runs. */
typedef struct dti_pipe_plan {
    uint32_t number;
    dti_pipe_cut cut;
    uint32_t *needs; /* [link][DTI_PIPE_NEEDS], the same on all ranks */
    dti_pipe_flow *flows;
    uint32_t flow_count;
    _Atomic uint32_t *counters;
    uint32_t counter_count, flow_counters; /* the first of the flows': the last ones */
    dti_pipe_evaluation *forward;          /* NULL: it makes steps */
} dti_pipe_plan;

typedef struct dti_pipe {
    const dti_mesh *mesh; /* of the job */
    dti_tp *shared;       /* their parts of the model; NULL: a stage has one device */
    dt_graph *graph;      /* the graph that is cut: the model's, or the first tensor rank's */
    bool graph_of_chunk;  /* which has it then, and ends it */
    dti_pipe_plan plans[DTI_PIPE_PLANS], *plan; /* plan: in use; between steps the first */
    uint32_t chunk_count;                       /* of a pipeline */
    uint32_t stage_count;                       /* chunks of all tensor ranks */
    uint32_t each;                              /* positions of a device: slices */
    uint32_t device_count;                      /* of this rank */
    dti_pipe_device *devices;
    uint32_t pipeline_count; /* here */
    dti_pipeline *pipelines;
    dti_pipe_chunk *chunks; /* [pipeline][chunk] */
    dti_pipe_stage *stages; /* [tensor rank][chunk] */
    uint32_t tp_count;
    dti_tp_place *tp_groups; /* stages of which a device is here, in the order of positions */
    const dti_code *code;    /* the whole model's: it checks and counts, and never runs */
    uint64_t *blocks;        /* by the model's parameters: its first in the table of all */
    uint64_t block_count;    /* of that table */
    float *pairs;            /* of the table of all */
    char *piece;             /* between ranks: room for values */
    /* State that replicas shard (ZeRO): the beginning of each part, [chunk][replica + 1], and the
     * place of the model's parameters in their chunks. NULL: each replica has all of its stage. */
    uint64_t *bounds, *offsets;
    size_t bound_count; /* with offsets */
    float *weighs;      /* for parameters that weigh targets: room for the largest */
    dti_device_team *device_team;
    char *room;           /* of DTI_AGREE_PIECE, while averages are in the weights' place */
    bool reads;           /* a chunk here reads a column of the data */
    uint32_t units_ahead; /* operations of units that no thread waits for yet */
    bool locks_comm;      /* several threads use it, one at a time; else one alone does */

    /* The current step. */
    uint32_t shape; /* of its batch */
    uint32_t ahead; /* sums that were posted out of turn */
    _Atomic bool failed;
    _Atomic bool comm_locked; /* a thread of this rank uses the comm */
    dt_result said;           /* the comm's error */
} dti_pipe;

enum { DTI_PIPE_NEED_FORWARD, DTI_PIPE_NEED_BACK, DTI_PIPE_NEED_WEIGH, DTI_PIPE_NEEDS };

/* ---- pipe_grid.c: positions and chunks */
/* The position of a chunk of one of the job's pipelines. Pipelines are counted tensor rank by
 * tensor rank. */
static uint32_t dti_pipe_position(const dti_mesh *mesh, uint32_t pipeline, uint32_t chunk);
/* The position of a stage of the first replica. */
static uint32_t dti_pipe_stage_position(const dti_pipe *pipe, uint32_t s);
static uint32_t dti_pipe_rank(const dti_parallel *par, uint32_t pipeline, uint32_t chunk);
static inline uint32_t dti_pipeline_number(const dti_pipe *pipe, const dti_pipeline *pipeline) {
    return pipeline->replica * pipe->mesh->tensor + pipeline->tp_rank;
}
/* Which of this rank's it is; beyond them: none. */
static inline uint32_t dti_pipeline_of(const dti_pipe *pipe, uint32_t pipeline) {
    return pipeline - dti_pipeline_number(pipe, &pipe->pipelines[0]);
}
static inline dti_pipe_chunk *dti_pipe_chunk_of(const dti_pipe *pipe, uint32_t pipeline,
                                                uint32_t c) {
    return &pipe->chunks[(size_t)pipeline * pipe->chunk_count + c];
}
static inline dti_pipe_stage *dti_pipe_stage_of(const dti_pipe *pipe, const dti_pipe_chunk *chunk) {
    return &pipe->stages[pipe->pipelines[chunk->pipeline].tp_rank * pipe->chunk_count +
                         chunk->index];
}
/* Number i of the chunks here that are alike, of stage s. */
static inline dti_pipe_chunk *dti_pipe_alike_chunk(const dti_pipe *pipe, uint32_t s, uint32_t i) {
    return pipe->stages[s].chunk + (size_t)i * pipe->mesh->tensor * pipe->chunk_count;
}
/* The program of the first device here. */
static inline dti_pipe_chunk *dti_pipe_first(const dti_pipe *pipe) {
    return dti_pipe_chunk_of(pipe, pipe->devices[0].pipeline, pipe->devices[0].place);
}
/* The next chunk here, after one or from the first on; NULL: no more. */
static inline dti_pipe_chunk *dti_pipe_next(const dti_pipe *pipe, const dti_pipe_chunk *last) {
    size_t i = last ? (size_t)(last - pipe->chunks) + 1 : 0;
    const size_t end = (size_t)pipe->pipeline_count * pipe->chunk_count;
    while (i < end && !pipe->chunks[i].store)
        i++;
    return i < end ? &pipe->chunks[i] : NULL;
}
/* The lists of full batches of the plan in use (0), or of short ones (1). */
static inline uint32_t dti_pipe_shape(const dti_pipe *pipe, uint32_t tail) {
    return 2 * pipe->plan->number + tail;
}
/* From here on the grid has that plan. */
static inline void dti_pipe_use(dti_parallel *par, uint32_t plan) {
    par->pipe->plan = &par->pipe->plans[plan];
    par->counters = par->pipe->plan->counters;
}
/* A node of the model, in the graph that is cut. */
static inline uint32_t dti_pipe_node(const dti_pipe *pipe, uint32_t id) {
    return pipe->shared ? pipe->shared->stands[id] : id;
}
/* Whether tensor ranks have parts of a parameter of the model. */
static inline bool dti_pipe_is_part(const dti_pipe *pipe, uint32_t param) {
    return pipe->shared && pipe->shared->parts[param].of.axis >= 0;
}
/* Pipelines and devices of this rank. MEMORY */
static dt_result dti_pipe_grid_make(dti_parallel *par);
static void dti_pipe_log(const dti_parallel *par);

/* ---- pipe_list.c: the devices' lists. Each counter is of micro-batches of a step, but for those
 * of a place. */
/* Whose forward (0) or backward (1) part has ended. */
static inline uint32_t dti_pipe_counter(const dti_pipe *pipe, const dti_pipe_chunk *chunk,
                                        bool backward) {
    return 2 * (uint32_t)(chunk - pipe->chunks) + backward;
}
/* The flow whose message was received, or sent. */
static inline uint32_t dti_pipe_flow_counter(const dti_pipe *pipe, const dti_pipe_flow *f) {
    return pipe->plan->flow_counters + (uint32_t)(f - pipe->plan->flows);
}
/* The step's counters, and all lists. Called after wires exist. MEMORY */
static dt_result dti_pipe_lists_make(dti_parallel *par);
static void dti_pipe_lists_free(dti_parallel *par);

/* ---- pipe_program.c, pipe_make.c: programs, contexts and chunks */
/* Replica 0, the job and its mesh exist. names: of devices. On all ranks together. After an error
 * no training is possible: the device team is NULL. */
static dt_result dti_pipe_create(dti_parallel *par, uint32_t batch_slices, const char *names,
                                 int threads, bool pin);
static void dti_pipe_destroy(dti_parallel *par); /* there may be none */
/* The failure of a chunk's program; for a tensor rank with its number. */
static dt_result dti_pipe_chunk_failed(dti_parallel *par, const dti_pipe_chunk *chunk,
                                       dt_result result);
/* A program of a chunk that is here, of any tensor rank; NULL: it is not. */
static const dt_program *dti_pipe_any(const dti_pipe *pipe, uint32_t c);
/* A shared input, to all chunks that read it. */
static dt_result dti_pipe_share(dti_parallel *par, uint32_t node, const void *values, size_t bytes);
/* Transient bytes of the device that has most here, over its micro-batch slots. */
static uint64_t dti_pipe_transients(const dti_pipe *pipe);
static uint64_t dti_pipe_chunk_transients(const dti_pipe_chunk *chunk);

/* ---- pipe_wire.c */
static dt_result dti_pipe_wires_make(dti_parallel *par); /* on all ranks together */
/* The most operations of messages and of sync points that this rank has in flight. */
static uint32_t dti_pipe_messages(const dti_pipe *pipe);
static void dti_pipe_wires_free(dti_parallel *par);
static void dti_pipe_wires_begin(dti_parallel *par);
/* The flow by which a link's part comes to a chunk from another rank; NULL: it comes not. */
static const dti_pipe_flow *dti_pipe_flow_to(const dti_pipe *pipe, uint32_t pipeline,
                                             const dti_pipe_link *l, bool gradient);
/* Copies a received message to the chunk's micro-batch slot. */
static void dti_pipe_unpack(const dti_parallel *par, uint32_t pipeline, uint32_t link,
                            uint32_t micro);
/* Posts messages that are ready, and checks for received ones. Returns at once if another thread
 * does it. wait: the action that this device waits to begin, or NULL. */
static void dti_pipe_speak(dti_parallel *par, uint32_t device, const dti_action *wait);
/* Until all messages have been sent. */
static dt_result dti_pipe_wires_end(dti_parallel *par);
/* Others wait for data that never comes: ends the group, so they get an error that names this
 * rank. */
static void dti_pipe_leave(dti_parallel *par);
/* Parameters that weigh targets of other chunks, before the step. */
static dt_result dti_pipe_weigh_by_all(dti_parallel *par);
/* Protects the comm for a caller that uses it between two parts. */
static void dti_pipe_comm_lock(dti_pipe *pipe);
static void dti_pipe_comm_unlock(dti_pipe *pipe);

/* ---- pipe_sum.c */
static dt_result dti_pipe_sums_make(dti_parallel *par); /* on all ranks together */
static void dti_pipe_sums_free(dti_parallel *par);
static void dti_pipe_sums_begin(dti_parallel *par);
static void dti_pipe_sums_help(dti_parallel *par); /* folds and posts sums that are ready */
/* A micro-batch's gradients are in the chunk's arena. */
static dt_result dti_pipe_summed(dti_parallel *par, dti_pipe_chunk *chunk, uint32_t micro);
/* Zeros, for a chunk without rows. */
static dt_result dti_pipe_summed_none(dti_parallel *par, dti_pipe_chunk *chunk,
                                      const dti_action *a);
/* Copies the sum, and the new running statistics, to the chunk's arena. */
static dt_result dti_pipe_sums_put(dti_parallel *par, const dti_pipe_chunk *chunk);
static dt_result dti_pipe_statistics(dti_parallel *par); /* of the job */
/* The pairs of all chunks to each, in the order that they have in one model. */
static dt_result dti_pipe_pairs(dti_parallel *par);

/* ---- pipe_share.c: ZeRO-1 between replicas; otherwise these do nothing */
static dt_result dti_pipe_bounds_make(dti_parallel *par); /* MEMORY */
/* Before a chunk's programs are made: sets the blocks that it owns. */
static dt_result dti_pipe_own(const dti_parallel *par, const dti_pipe_chunk *chunk);
static uint64_t *dti_pipe_bound(const dti_pipe *pipe, uint32_t chunk, uint32_t replica);
static dti_values_shared dti_pipe_shared(const dti_pipe *pipe, uint32_t s); /* of a stage */
/* After all commits, on all ranks together. */
static dt_result dti_pipe_share_params(dti_parallel *par);

/* ---- pipe_units.c: ZeRO-2 and 3; otherwise these do nothing */
static bool dti_pipe_has_units(const dti_parallel *par);
/* Before programs are made: the layout's parts, and the stage's buckets. MEMORY */
static dt_result dti_pipe_units_own(const dti_parallel *par, const dti_pipe_chunk *chunk);
/* Sets the most micro-batches of a replica if all have its lists; else it stays. MEMORY */
static dt_result dti_pipe_units_micros(const dti_parallel *par, const dti_partition *grid,
                                       uint32_t rows, uint32_t *most);
static dt_result dti_pipe_units_make(dti_parallel *par); /* on all ranks together */
static void dti_pipe_units_moved(const dti_parallel *par);
static uint32_t dti_pipe_units_pending(const dti_parallel *par);
static dt_result dti_pipe_units_agree(dti_parallel *par); /* on all ranks together: on lists */
static void dti_pipe_units_free(dti_parallel *par);
/* Sends the sum of gradients to its owners, and copies it to the chunk's arena. */
static dt_result dti_pipe_units_post(dti_parallel *par, uint32_t s);
static dt_result dti_pipe_units_put(const dti_parallel *par, const dti_pipe_chunk *chunk);
static void dti_pipe_units_begin(dti_parallel *par);
/* With the comm locked. wait: the action that a device waits to begin, or NULL. */
static dt_result dti_pipe_units_speak(const dti_parallel *par, const dti_action *wait);
static void dti_pipe_units_leave(const dti_pipe *pipe);
/* A micro-batch's; of one that the chunk has not, one that gathers alike. */
static const dt_program *dti_pipe_units_program(const dti_pipe *pipe, const dti_pipe_chunk *chunk,
                                                uint32_t shape, uint32_t micro);
static dt_result dti_pipe_units_gather(dti_parallel *par, dti_pipe_chunk *chunk,
                                       const dti_action *a);
/* The chunk's parameters were written: copies those that others read. */
static dt_result dti_pipe_units_written(const dti_parallel *par, const dti_pipe_chunk *chunk);

/* ---- pipe_forward.c */
/* A chunk's program of forward parts; *out NULL: it has nothing to compute. */
static dt_result dti_forward_program(dti_parallel *par, dti_pipe_chunk *chunk,
                                     const dti_batch_slices *batch_slices, uint32_t micro_slots,
                                     dt_program **out);
static void dti_forward_close(dti_parallel *par, uint32_t plan);
/* The actions OPEN and CLOSE of a forward part by itself. */
static dt_result dti_forward_open(dti_parallel *par, dti_pipe_chunk *chunk, const dti_action *a);
static dt_result dti_forward_done(dti_parallel *par, dti_pipe_chunk *chunk, const dti_action *a);

/* ---- pipe_step.c */
static dti_runs *dti_pipe_runs_now(const dti_parallel *par, const dti_pipe_chunk *chunk);
static const dti_pipe_run *dti_pipe_run_of(const dti_parallel *par, const dti_pipe_chunk *chunk,
                                           uint32_t micro);
/* The program whose step commits: its micro-batch slot made the last backward part. A pipeline
 * without rows has one of full batches. */
static dt_program *dti_pipe_last(const dti_parallel *par, const dti_pipe_chunk *chunk);
