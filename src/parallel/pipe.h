/* A pipeline: chunks of one model on the devices of this process, and the step that they make
 * together:
 *
 *   weigh      each chunk with losses, from targets alone
 *   schedule   each device its list: forward and backward parts of micro-batches
 *   norm       each chunk the pairs of its blocks, which are put together in the order of one model
 *   judge      each chunk: whether the norm, and what its update would write, are finite
 *   commit     all of them, or none
 *
 * A chunk has a graph, a store and programs of its own, with lanes for the micro-batches that are
 * alive in it. The host has all values too, in the one replica's store, which the application sees
 * and files are of: it is brought up to date when somebody asks for it. */

typedef struct dti_pipe_run { /* a micro-batch in a chunk */
    dt_program *program;
    uint32_t lane;
} dti_pipe_run;

typedef struct dti_pipe_chunk {
    uint32_t device;
    dt_graph *graph;
    dt_store *store;
    dti_pipe_run *runs[2];                               /* of full batches, and of short ones */
    uint8_t losses[DT_MAX_TERMS], metrics[DT_MAX_TERMS]; /* which of the model's its own are */
    uint32_t *params;                                    /* by its own: the model's */
    dti_statistics statistics;

    /* The step under way. */
    double coefficients[DT_MAX_TERMS], weights[DT_MAX_TERMS];
    double terms[4 * DT_MAX_TERMS];     /* as the job's (step.c), by its own losses and metrics */
    _Atomic uint32_t forward, backward; /* micro-batches whose part has ended */
    bool faulty;
    double norm;
} dti_pipe_chunk;

typedef struct dti_pipe_device {
    dt_ctx *ctx;
    dt_result result; /* of this step */
} dti_pipe_device;

typedef struct dti_pipe {
    dti_pipe_cut cut;
    uint32_t device_count, chunk_count;
    dti_pipe_device *devices;
    dti_pipe_chunk *chunks;
    dti_pipe_schedule schedules[2]; /* of full batches, and of short ones */
    const dti_code *code;           /* the whole model's: it checks and counts, and never runs */
    uint64_t *blocks;               /* by the model's parameters: its first in the table of all */
    dti_crew *crew;
    bool ahead; /* the chunks have made steps that the host's store has not */
    bool
        shown; /* the application has that store, and may read and write it between any two steps */

    /* The step under way. */
    uint32_t tail; /* 1: of a short batch */
    _Atomic bool failed;
} dti_pipe;

/* ---- pipe_make.c: contexts, chunks and programs; replica 0 and the job are there. names: of
 * devices, as many as there are stages. */
static dt_result dti_pipe_create(dti_parallel *par, const char *names, int threads, bool pin);
static void dti_pipe_destroy(dti_parallel *par); /* there may be none */
/* A shared input, to all chunks that read it. */
static dt_result dti_pipe_share(dti_parallel *par, uint32_t node, const void *values, size_t bytes);
static void dti_pipe_log(const dti_parallel *par);
/* Transient bytes of the stage that has most, over its lanes. */
static uint64_t dti_pipe_transients(const dti_pipe *pipe);

/* ---- pipe_whole.c: the chunks' values and state, from the host's store and to it. */
static dt_result dti_pipe_scatter(dti_parallel *par);
static dt_result dti_pipe_gather(dti_parallel *par);

/* ---- pipe_step.c: as dti_parallel_step. */
static dt_result dti_pipe_step(dti_parallel *par, const dti_batch *batch, dt_result own,
                               const dt_step_desc *step, dti_parallel_result *out);
