/* A squad: members that share out one model, each on a device of this process or of another rank,
 * and the step that they make together (tensor parallelism; Shoeybi et al., "Megatron-LM", 2019):
 *
 *   weigh      the first, from targets alone
 *   forward    all, with a meeting behind each sum
 *   backward   all, with a meeting where what all read gets a part of its gradient from each
 *   norm       each the pairs of its blocks; those of parts are of all members, others count once
 *   judge      each: whether the norm, and what its update would write, are finite
 *   commit     all of them, or none
 *
 * A member has a graph of all nodes, in which parameters that are marked are parts (team_cut.c), a
 * store and programs. What is not a part is computed by each, with the same bits. The host has all
 * values in the one replica's store, which the application sees and files are of. */

#define DTI_SQUAD_MAX 64

/* A parameter's part: of each group along an axis, runs of `inner` elements. */
typedef struct dti_squad_part {
    dti_parted of;
    int64_t outer, inner;
} dti_squad_part;

typedef struct dti_squad_member {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program **runs[2]; /* by micro-batch: of full batches, and of short ones */
    dti_statistics statistics;
    dt_result result; /* of this step */
    bool faulty;
} dti_squad_member;

typedef struct dti_squad {
    uint32_t size;             /* of the whole job */
    uint32_t *firsts;          /* by rank: its first member; [world]: size */
    uint32_t first, local;     /* this process's: [first, first + local) */
    dti_squad_member *members; /* those */
    const dti_code *code;      /* the whole model's: it checks and counts, and never runs */
    uint32_t *stands;          /* by the model's nodes: a member's */
    dti_squad_part *parts;     /* by parameter */
    uint32_t blocks;           /* of the table of all */
    float *whole, *part;       /* room for one parameter */
    float *pairs;              /* of each member: its table's */
    uint32_t entries;          /* of that */
    /* Between ranks: this one's operands, by subtrees of its members, and what all sum up to. */
    dti_subtrees subtrees;
    float *said, *heard;
    dti_crew *crew;
    bool ahead; /* members have made steps that the host's store has not */
    bool shown; /* the application may read that between any two steps */

    /* The step under way. */
    uint32_t tail;
    double weights[DT_MAX_TERMS], terms[4 * DT_MAX_TERMS + 1], norm; /* terms: as the job's */
    _Atomic uint32_t summed;        /* meetings whose sum of all ranks is there */
    _Atomic uint32_t arrived, left; /* members: at meetings, and with their values; of this step */
    _Atomic bool failed;
} dti_squad;

/* ---- squad_cut.c */
/* A member's graph, the same for each, of ctx, which ends it. The first call fills stands and
 * parts. INVALID: a mark that does not divide; UNSUPPORTED: a row that does not take parts. */
static dt_result dti_squad_graph(dti_parallel *par, dt_ctx *ctx, dt_graph **out);

/* ---- squad_make.c: replica 0 and the job are there. */
static dt_result dti_squad_create(dti_parallel *par, const char *names, int threads, bool pin);
static void dti_squad_destroy(dti_parallel *par); /* there may be none */
static dt_result dti_squad_share(dti_parallel *par, uint32_t node, const void *values,
                                 size_t bytes);

/* ---- squad_whole.c: members' values and state, from the host's store and to it */
static dt_result dti_squad_scatter(dti_parallel *par);
static dt_result dti_squad_gather(dti_parallel *par);

/* ---- squad_step.c: as dti_parallel_step */
static dt_result dti_squad_step(dti_parallel *par, const dti_batch *batch, dt_result own,
                                const dt_step_desc *step, dti_parallel_result *out);
