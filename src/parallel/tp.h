/* A grid of tensor groups (tensor parallelism; Shoeybi et al., "Megatron-LM", 2019). Each replica's
 * model is split over T tensor ranks, each on a device of this process or of another rank. With D
 * replicas, position p of the job is tensor rank p mod T of replica p / T. Tensor groups share the
 * batch, as replicas do. In their step (protocol.h):
 *
 *   AGREE      the first rank of each group weighs, from targets alone
 *   RUN        forward, with a sync point of a group's ranks after each sum; backward, with one
 *              where what all read gets a part of its gradient from each; sums over batch slices
 *              and groups, tensor rank by tensor rank (slice_sum.c)
 *   NORM       each the pairs of its blocks; of what is not split the first rank's count
 *
 * Fixed slices (.tensor_slices) are tensor ranks too: a device has several, in one context, and its
 * thread computes them alternately. So S slices give the same bits on any number of devices.
 *
 * A tensor rank has a graph of all nodes, in which marked parameters are parts (tp_cut.c), a store
 * and programs. Each computes what is not split, with the same bits. The host has all values in the
 * one replica's store, which the application sees and files are made of. */

/* A parameter's part: of each group along an axis, runs of `inner` elements. */
typedef struct dti_tp_part {
    dti_parted of;
    int64_t outer, inner;
} dti_tp_part;

typedef struct dti_tp_rank {
    uint32_t group, number; /* which of its tensor ranks it is */
    dt_ctx *ctx;            /* its device's: the first of that has made it */
    dt_graph *graph;
    dt_store *store;
    dt_program **runs[2]; /* by micro-batch: of full batches, and of short ones */
    dti_batch_slice_stack sum;
    dt_result result; /* of this step, */
    uint32_t met;     /* and its sync points */
    double norm;
} dti_tp_rank;

typedef struct dti_tp_group { /* a tensor group with a rank here */
    uint32_t replica;
    uint32_t first, count; /* its tensor ranks here: indices into dti_tp.ranks */
    dti_runs runs[2];      /* of full batches, and of short ones; none where it has no rows */
    dti_tp_place place;
} dti_tp_group;

typedef struct dti_tp {
    const dti_mesh *mesh;  /* NULL: it is what a pipeline's stages share */
    uint32_t size;         /* tensor ranks of a group */
    uint32_t first, local; /* positions of this rank: [first, first + local) */
    uint32_t each;         /* positions of a device, one after the other: its slices */
    dti_tp_rank *ranks;    /* those */
    uint32_t group_count;  /* here */
    dti_tp_group *groups;
    dti_batch_slice_sum *sums; /* by number of a tensor rank */
    dti_statistics statistics; /* of the job: all tensor ranks of a group have the same */
    const dti_code *code;      /* the whole model's: it checks and counts, and never runs */
    uint32_t *stands;          /* by the model's nodes: a tensor rank's; */
    uint32_t *firsts;          /* and the first that came with it, behind the last one how many */
    dti_tp_part *parts;        /* by parameter */
    uint32_t blocks;           /* of the table of all */
    float *whole, *part;       /* room for one parameter */
    float *pairs;              /* of each number: its table's */
    uint32_t entries;          /* of that */
    dti_device_team *device_team;

    /* The step under way. */
    uint32_t tail;
    dti_device_team_fn *phase; /* what each tensor rank does in this phase */
    _Atomic bool speaking;     /* a thread of this rank uses the comm */
    _Atomic bool failed;
} dti_tp;

static inline dti_tp_group *dti_tp_group_of(const dti_tp *tp, uint32_t m) {
    return &tp->groups[tp->ranks[m].group];
}

/* ---- tp_cut.c */
/* The graph of the tensor rank of a number, with as many nodes as others', of ctx, which ends it.
 * The first call fills stands and parts. INVALID: a mark that does not divide; UNSUPPORTED: a row
 * that does not take parts. */
static dt_result dti_tp_graph(dti_parallel *par, dti_tp *tp, dt_ctx *ctx, uint32_t number,
                              dt_graph **out);

/* ---- tp_grid.c: who has what */
/* Tensor groups and positions of this rank. MEMORY */
static dt_result dti_tp_grid_make(dti_parallel *par);
/* The tensor rank of a number in a tensor group that is here; NULL: another rank has it. */
static dti_tp_rank *dti_tp_rank_of(const dti_tp *tp, const dti_tp_group *tp_group, uint32_t number);
/* Tensor groups here that have a rank of that number: the first, how many. */
static dt_comm_span dti_tp_groups_of(const dti_tp *tp, uint32_t number);
/* Comm groups of tensor groups, and of tensor ranks of one number; called on all ranks together. */
static dt_result dti_tp_groups(dti_parallel *par);
static void dti_tp_log(const dti_parallel *par);

/* What is known of the model, by size and code: room for stands, firsts and parts, and for one
 * parameter. UNSUPPORTED: the optimizer looks at whole ones; MEMORY */
static dt_result dti_tp_model(dti_parallel *par, dti_tp *tp);
static void dti_tp_model_free(dti_parallel *par, dti_tp *tp);
/* The blocks of parameter i in a tensor rank's table, or in its own half of that; 0: it is in
 * none. */
static uint32_t dti_tp_blocks(const dti_tp *tp, uint32_t i, bool buffers);
/* Of a program of a tensor rank's graph. */
static dt_program_desc dti_tp_desc(const dti_parallel *par, const dti_tp *tp, dt_graph *graph);
/* Whether devices round alike: what tensor ranks compute alike must be the same. INVALID */
static dt_result dti_tp_alike(dti_parallel *par, const dti_device *a, const dti_device *b);
/* The same on all ranks, of one's device. */
static dt_result dti_tp_same(dti_parallel *par, const dti_device *device);
/* Between a parameter in `whole`, [outer, axis, inner], and the part that tensor rank m has in
 * `part`; gather: from it. */
static void dti_tp_part_copy(const dti_tp *tp, const dti_tp_part *p, uint32_t m, bool gather);

/* ---- tp_make.c: replica 0, the job and the mesh are there. After an error nothing more can
 * be trained. */
static dt_result dti_tp_create(dti_parallel *par, uint32_t batch_slices, const char *names,
                               int threads, bool pin);
static void dti_tp_destroy(dti_parallel *par); /* there may be none */
static dt_result dti_tp_share(dti_parallel *par, uint32_t node, const void *values, size_t bytes);

/* ---- tp_full.c: tensor ranks' values and state, from the host's store and to it */
static dt_result dti_tp_scatter(dti_parallel *par);
static dt_result dti_tp_gather(dti_parallel *par);
