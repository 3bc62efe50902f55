/* A collective as data. An algorithm (algo_*.c) is a pure function from the posted operation, the
 * rank and the size to a list of steps. It moves no byte. The engine runs steps, and tests run all
 * ranks' steps against each other without any network.
 *
 * Steps work on ranges of elements, cut into chunks of equally many elements (the last may be
 * shorter). Dependent steps have the same range, so chunk c of one can wait for chunk c of another.
 * So a result leaves while the rest is still coming in.
 *
 * A stream is the data that one rank sends to one other in one step. The sender's and the
 * receiver's step have the same stream number, dtype and count. Numbers are unique per ordered pair
 * of ranks.
 *
 * Where bytes land: IN and OUT are the user's; WORK is scratch of the operation that holds whole
 * ranges; a SLOT step has room for a few chunks only, which a FOLD takes and gives back. A stream
 * into slots must have IN as its source, so its sender needs no data from others. Slots belong to
 * one operation at a time, once all its senders have posted it. So slots cannot deadlock.
 *
 * In place: `in` may be `out`. Let a RECV or FOLD write to OUT where a SEND reads IN. It must not
 * happen before that SEND's chunk has gone. Either `after` ensures that, or the arriving data was
 * made from the sent data; then the algorithm's file explains it. */

typedef enum dti_schedule_step_kind {
    DTI_SCHEDULE_SEND, /* place -> peer */
    DTI_SCHEDULE_RECV, /* peer -> place */
    DTI_SCHEDULE_FOLD, /* sources -> place, by the reduction */
    DTI_SCHEDULE_COPY  /* source 0 -> place */
} dti_schedule_step_kind;

typedef enum dti_region {
    DTI_REGION_IN,
    DTI_REGION_OUT,
    DTI_REGION_WORK,
    DTI_REGION_SLOT
} dti_region;

typedef struct dti_schedule_step {
    uint8_t kind, place;
    uint8_t dtype; /* of the bytes at `place` (and on the wire) */
    bool credited; /* SEND and RECV, the same at both ends: the receiver permits chunk by chunk (it
                      has a SLOT, or `after`); else the whole stream as soon as it has posted */
    bool finish;   /* FOLD: the result is final: mean, NaN and rounding to dtype happen here */
    uint16_t peer; /* SEND, RECV: rank in the group */
    uint16_t stream;
    uint64_t offset; /* bytes into the place; not for SLOT */
    uint64_t count;  /* elements */
    /* schedule->sources[first_source ...]: the operands of FOLD and COPY. FOLD: in the order of
     * `span`. */
    uint32_t first_source, source_count;
    /* schedule->after[first_after ...]: steps whose chunk c must be done before chunk c of this
     * one. A step among them with another range must be wholly done: DTI_AFTER_WHOLE is added to
     * it. RECV sources of a FOLD are implied. */
    uint32_t first_after, after_count;
} dti_schedule_step;

#define DTI_AFTER_WHOLE 0x80000000u

/* One operand of a FOLD or COPY, of the step's count. */
typedef struct dti_source {
    uint8_t place; /* IN, OUT, WORK at `offset`, or SLOT: those of RECV step `step` */
    uint8_t dtype;
    uint32_t step;     /* the RECV step that fills it; UINT32_MAX = none */
    uint64_t offset;   /* bytes */
    dt_comm_span span; /* FOLD: the leaves that it holds; together [0, total) of the fold's tree */
} dti_source;

typedef struct dti_schedule {
    dti_schedule_step *steps;
    dti_source *sources;
    uint32_t *after;
    size_t step_count, source_count, after_count;
    size_t step_room, source_room, after_room; /* of the arrays, for dti_array_reserve */
    uint64_t work_bytes;                       /* of WORK */
    uint64_t chunk_elements;                   /* of all steps */
    uint8_t sum_dtype; /* of partial sums: dti_fold_dtype(dtype, reduction) */
    bool failed;       /* no memory, or too many steps; said by dti_fail */
} dti_schedule;

/* The costs of messages and bytes; see cost.c. */
typedef struct dti_link_cost {
    uint64_t latency_ns, message_ns, byte_ps;
} dti_link_cost;

typedef struct dti_costs {
    dti_link_cost network, local; /* local: of ranks of one host */
    uint64_t chunk_bytes;
    uint32_t window;      /* chunks in flight of a stream into slots */
    uint32_t early_bytes; /* streams up to here go without an announcement */
} dti_costs;

/* The input of an algorithm. */
typedef struct dti_collective {
    dt_comm_op op;       /* algorithm is the chosen one; checked: root, dtype, sizes */
    uint32_t rank, size; /* in the group; size >= 2 */
    uint64_t chunk_bytes;
    const dt_comm_span *leaves; /* [size] in tree mode: which leaves each rank has; else NULL */
    uint32_t leaf_total;
    uint32_t local; /* ranks k * local .. (k + 1) * local - 1 share a host; 0, 1: not known */
    uint32_t each;  /* ranks on each host, in order; size: all on one; 0, 1: not known */
    const dti_costs *costs; /* NULL: not known, constants decide */
} dti_collective;

/* ---- schedule.c: the builder of algorithms. Functions return step numbers; UINT32_MAX = failed,
 * and further calls are harmless. */
static void dti_schedule_clear(dti_schedule *s);
static void dti_schedule_free(dti_base *base, dti_schedule *s);
/* Whether b can run a's schedule again. Of the buffers only the place of `in` relative to `out`
 * matters. The leaves are compared by address: forget a schedule when they change. */
static bool dti_schedule_same(const dti_collective *a, const dti_collective *b);

/* How `in` lies to `out`. OWN: one is at this rank's block of the other. */
typedef enum dti_overlap { DTI_APART, DTI_SAME, DTI_OWN } dti_overlap;
static dti_overlap dti_coll_overlap(const dti_collective *c);

typedef struct dti_stretch {
    uint8_t place, dtype;
    uint64_t offset; /* bytes */
    uint64_t count;  /* elements */
} dti_stretch;

/* The state of an algorithm that builds a schedule. Steps with count 0 are left out (DTI_NO_STEP),
 * with their sources and dependencies. */
typedef struct dti_builder {
    dti_base *base;
    const dti_collective *c;
    dti_schedule *s;
    uint32_t last; /* the step that sources and dependencies go to */
} dti_builder;

#define DTI_NO_STEP UINT32_MAX

/* Adds the steps of b->c, which is c. */
typedef void dti_algorithm_fn(dti_builder *b, const dti_collective *c);
/* Builds the schedule in *s, whose arrays are kept for the next one. False: s->failed. */
static bool dti_schedule_build(dti_base *base, const dti_collective *c, dti_algorithm_fn *algorithm,
                               dti_schedule *s);
/* Said first: steps with sum_dtype are among those to come, of any rank. */
static void dti_builder_partials(dti_builder *b);
static uint32_t dti_add_send(dti_builder *b, uint32_t peer, uint32_t stream, dti_stretch from,
                             bool credited);
static uint32_t dti_add_recv(dti_builder *b, uint32_t peer, uint32_t stream, dti_stretch to,
                             bool credited);
static uint32_t dti_add_fold(dti_builder *b, dti_stretch to, bool finish);
static uint32_t dti_add_copy(dti_builder *b, dti_stretch to, dti_stretch from);
/* Of the newest step: a source, filled by RECV step `step` or DTI_NO_STEP; a step of the same range
 * whose chunk comes before, one that is wholly before. */
static void dti_add_source(dti_builder *b, dti_stretch from, uint32_t step, dt_comm_span span);
static void dti_add_after(dti_builder *b, uint32_t step);
static void dti_add_after_whole(dti_builder *b, uint32_t step);
/* Room in WORK for `count` elements. */
static dti_stretch dti_add_work(dti_builder *b, uint8_t dtype, uint64_t count);

/* Elements from `first` on of IN, OUT or the slots (which ignore `first`). */
static dti_stretch dti_stretch_at(dti_region place, uint8_t dtype, uint64_t first, uint64_t count);
/* The same of the operation's own type; all `count` of it. */
static dti_stretch dti_stretch_of(const dti_collective *c, dti_region place, uint64_t first,
                                  uint64_t count);
static dti_stretch dti_stretch_all(const dti_collective *c, dti_region place);
/* A range's elements from `first` on. */
static dti_stretch dti_stretch_part(dti_stretch range, uint64_t first, uint64_t count);

/* Part `part` of `parts` of `count` elements, as even as units of DTI_UNIT elements allow. */
#define DTI_UNIT 16u
typedef struct dti_part {
    uint64_t first, count;
} dti_part;
static dti_part dti_part_of(uint64_t count, uint32_t part, uint32_t parts);

/* A rank's operands of a reduction: the spans of its buffers of `in`. Returns their number. Outside
 * of tree mode it is one, the rank itself. *type: outside of tree mode the elements' own. */
static uint32_t dti_collective_spans(const dti_collective *c, uint32_t rank,
                                     dt_comm_span spans[DTI_TREE_SPANS]);
static uint8_t dti_in_dtype(const dti_collective *c);

/* A group's `local`: the largest power of two that divides the number of its ranks on each host.
 * That number must be the same on at least two hosts, with ranks in order; else 1. each: the
 * world's consecutive ranks on a host (1: not known). ranks: [size] the group's ranks in the world,
 * ascending; NULL = all. */
static uint32_t dti_local_of(uint32_t each, const uint32_t *ranks, uint32_t size);
/* And its `each`. */
static uint32_t dti_each_of(uint32_t each, const uint32_t *ranks, uint32_t size);

/* For gather and all-gather: moves this rank's block to its place in OUT if it is elsewhere.
 * Returns the place that it is sent from. */
typedef struct dti_block {
    dti_stretch at;
    uint32_t copy; /* sends from `at` come after this step; DTI_NO_STEP: at once */
} dti_block;
static dti_block dti_collective_block(dti_builder *b);
/* Receives block `block` of OUT; returns the step that completes it there. In place at another
 * block, rank 0's block would overwrite this rank's own. So it goes through WORK. (A RECV
 * could wait instead, but then its sender would have to know.) */
static uint32_t dti_recv_block(dti_builder *b, uint32_t peer, uint32_t stream, uint32_t block,
                               dti_block own);

/* ---- choose.c: algorithm by kind, size, bytes and links; a pure function, so all ranks agree.
 * NULL, after dti_fail (INVALID, with the existing ones): the kind lacks the forced one. */
static dti_algorithm_fn *dti_algorithm_choose(dti_base *base, const dti_collective *c,
                                              dt_comm_algorithm *chosen);
