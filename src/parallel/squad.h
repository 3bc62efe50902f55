/* A grid of squads: members that share out one model, each on a device of this process or of
 * another rank, and the step that they make together (tensor parallelism; Shoeybi et al.,
 * "Megatron-LM", 2019). With T members and D replicas position p of the job is member p mod T of
 * replica p / T; a squad is called a line here, as a pipeline is. Lines share the batch, as
 * replicas do:
 *
 *   weigh      the first of each line, from targets alone; summed over all ranks
 *   forward    all, with a meeting of a line's members behind each sum
 *   backward   all, with a meeting where what all read gets a part of its gradient from each
 *   sum        gradients of members of one number over the shards, of all lines (shard_sum.c)
 *   norm       each the pairs of its blocks; those of parts are of all members, others count once
 *   judge      each: whether the norm, and what its update would write, are finite
 *   barrier    losses and judgements of all ranks
 *   commit     all of them, or none
 *
 * Fixed slices are members too: a device has several that follow each other, in one context, and
 * its thread computes them in turns. So the bits of S members are those of S slices anywhere.
 *
 * A member has a graph of all nodes, in which parameters that are marked are parts (squad_cut.c),
 * a store and programs. What is not a part is computed by each, with the same bits. The host has
 * all values in the one replica's store, which the application sees and files are of. */

/* A parameter's part: of each group along an axis, runs of `inner` elements. */
typedef struct dti_squad_part {
    dti_parted of;
    int64_t outer, inner;
} dti_squad_part;

typedef struct dti_squad_member {
    uint32_t line, number; /* which of its members it is */
    dt_ctx *ctx;           /* its device's: the first of that has made it */
    dt_graph *graph;
    dt_store *store;
    dt_program **runs[2]; /* by micro-batch: of full batches, and of short ones */
    dti_shard_stack sum;
    dt_result result; /* of this step, */
    uint32_t met;     /* and its meetings */
    bool faulty;
    double norm;
} dti_squad_member;

typedef struct dti_squad_line { /* a squad of which a member is here */
    uint32_t replica, first_shard, end_shard;
    uint32_t first, count; /* its members here: their places in dti_squad.members */
    dti_runs runs[2];      /* of full batches, and of short ones; none where it has no rows */
    dti_squad_place place;
} dti_squad_line;

typedef struct dti_squad {
    uint32_t size, data;       /* members of a line, lines of the job */
    uint32_t first, local;     /* positions of this rank: [first, first + local) */
    uint32_t each;             /* positions of a device, one after the other: its slices */
    dti_squad_member *members; /* those */
    uint32_t line_count;       /* here */
    dti_squad_line *lines;
    dti_shard_sum *sums;       /* by number of a member */
    dti_statistics statistics; /* of the job: members of a line have the same */
    const dti_code *code;      /* the whole model's: it checks and counts, and never runs */
    uint32_t *stands;          /* by the model's nodes: a member's; */
    uint32_t *firsts;          /* and the first that came with it, behind the last one how many */
    dti_squad_part *parts;     /* by parameter */
    uint32_t blocks;           /* of the table of all */
    float *whole, *part;       /* room for one parameter */
    float *pairs;              /* of each number: its table's */
    uint32_t entries;          /* of that */
    dti_crew *crew;

    /* The step under way. */
    uint32_t tail;
    dti_crew_fn *turn;     /* of each member */
    _Atomic bool speaking; /* a thread of this rank uses the comm */
    _Atomic bool failed;
} dti_squad;

static inline dti_squad_line *dti_squad_line_of(const dti_squad *squad, uint32_t m) {
    return &squad->lines[squad->members[m].line];
}

/* ---- squad_cut.c */
/* The graph of the member of a number, with as many nodes as others', of ctx, which ends it. The
 * first call fills stands and parts. INVALID: a mark that does not divide; UNSUPPORTED: a row that
 * does not take parts. */
static dt_result dti_squad_graph(dti_parallel *par, dti_squad *squad, dt_ctx *ctx, uint32_t number,
                                 dt_graph **out);

/* ---- squad_grid.c: who has what */
/* Lines and positions of this rank. MEMORY */
static dt_result dti_squad_grid_make(dti_parallel *par);
/* The member of a number in a line that is here; NULL: another rank has it. */
static dti_squad_member *dti_squad_member_of(const dti_squad *squad, const dti_squad_line *line,
                                             uint32_t number);
/* Lines here that have a member of a number: the first, how many. */
static dt_comm_span dti_squad_lines_of(const dti_squad *squad, uint32_t number);
/* Groups of lines and of numbers on several ranks; on all ranks together. */
static dt_result dti_squad_groups(dti_parallel *par);
static void dti_squad_log(const dti_parallel *par);

/* What is known of the model, by size and code: room for stands, firsts and parts, and for one
 * parameter. UNSUPPORTED: the optimizer looks at whole ones; MEMORY */
static dt_result dti_squad_model(dti_parallel *par, dti_squad *squad);
static void dti_squad_model_free(dti_parallel *par, dti_squad *squad);
/* The blocks of parameter i in a member's table, or in its own half of that; 0: it is in none. */
static uint32_t dti_squad_blocks(const dti_squad *squad, uint32_t i, bool buffers);
/* Of a program of a member's graph. */
static dt_program_desc dti_squad_desc(const dti_parallel *par, const dti_squad *squad,
                                      dt_graph *graph);
/* Whether devices round alike: what members compute alike must be the same. INVALID */
static dt_result dti_squad_alike(dti_parallel *par, const dti_device *a, const dti_device *b);
/* The same on all ranks, of one's device. */
static dt_result dti_squad_same(dti_parallel *par, const dti_device *device);
/* Between a parameter in `whole`, [outer, axis, inner], and the part that member m has in `part`;
 * gather: from it. */
static void dti_squad_part_copy(const dti_squad *squad, const dti_squad_part *p, uint32_t m,
                                bool gather);

/* ---- squad_make.c: replica 0, the job and par->firsts are there. After an error nothing more can
 * be trained. */
static dt_result dti_squad_create(dti_parallel *par, uint32_t shards, const char *names,
                                  int threads, bool pin);
static void dti_squad_destroy(dti_parallel *par); /* there may be none */
static dt_result dti_squad_share(dti_parallel *par, uint32_t node, const void *values,
                                 size_t bytes);

/* ---- squad_whole.c: members' values and state, from the host's store and to it */
static dt_result dti_squad_scatter(dti_parallel *par);
static dt_result dti_squad_gather(dti_parallel *par);

/* ---- squad_step.c: as dti_parallel_step */
static dt_result dti_squad_step(dti_parallel *par, const dti_batch *batch, dt_result own,
                                const dt_step_desc *step, dti_parallel_result *out);
