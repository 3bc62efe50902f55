/* A program: the work graph (a clone of the application's, with gradients), its listing of
 * launches, the places of its values, and what a run needs. Made by compile.c, placed by plan.c,
 * run by run.c. */

typedef enum dti_phase { /* the kind of a segment */
                         DTI_PHASE_FORWARD,
                         DTI_PHASE_BACKWARD,
                         DTI_PHASE_COMMIT,
                         DTI_PHASE_WEIGH /* apart: only dt_program_weigh runs it */
} dti_phase;

#define DTI_SEGMENTS_MAX 64

/* What an op needs an i32 input's elements to be. */
typedef struct dti_label_check {
    const char *op;
    int32_t classes, ignore_index; /* in [0, classes), or ignore_index */
    bool ignores;
    uint8_t *reads; /* by element of a sample: whether it reads it; NULL = all */
} dti_label_check;

/* An input, output or host gradient and where its host side lies. */
typedef struct dti_port {
    uint32_t node;   /* the application's tensor: input, output, or y of a host gradient */
    uint64_t offset; /* in IN or OUT */
    uint64_t bytes;
    bool written;
    bool output;
    bool gradient; /* dL/dy of `node`, written by the host */
    dti_label_check *checks;
    uint32_t check_count;
    size_t check_capacity;
} dti_port;

typedef struct dti_param_group { /* a parameter group's constants; lr comes with the step */
    double lr, decay;            /* factor of the step's rate; weight decay */
} dti_param_group;

/* A buffer that moves by what each piece has of batch norm's statistics: [channels, 2], mean and
 * biased variance, at word `word` of OUT, and `stride` words on for the next piece. */
typedef struct dti_stat {
    uint32_t param;
    uint32_t word, stride;
    uint32_t channels, spatial;
    bool variance;
    float momentum;
} dti_stat;

struct dt_program {
    dt_store *store;
    dti_base *base;
    dt_program *next;
    dt_program_desc desc;
    const char *label;
    dt_optim_desc optim; /* defaults resolved */
    dti_param_group groups[DT_MAX_GROUPS];
    bool has_optim, has_gradients, train;
    int64_t batch;
    dt_graph *work;
    uint32_t backward_node; /* nodes from here on are gradients */
    uint32_t loss_count, metric_count;
    /* Of losses whose weight is a count; 0 = from targets, -1 = from computed targets. */
    double static_weight[DT_MAX_TERMS];
    bool weighs;                    /* a weigh segment exists */
    bool weight_each[DT_MAX_TERMS]; /* each piece has a weight of its own, in its term's place */

    /* Word in OUT, and words from one piece's to the next (0: all have the same): losses, then
     * metrics. */
    uint32_t term_slot[2 * DT_MAX_TERMS], term_stride[2 * DT_MAX_TERMS];

    /* As one replica's share of a step; see shards.h. 0 pieces: a program by itself. */
    dti_piece *pieces;
    uint32_t piece_count, leaves;
    dti_subtrees subtrees; /* in the slots before it runs */
    bool any_part, last_run;
    dti_bucket *buckets;
    uint32_t bucket_count;
    uint32_t segment_buckets[DTI_SEGMENTS_MAX]; /* buckets that are finished after a segment */
    dti_stat *stats;                            /* of batch norm: the host joins the pieces' */
    uint32_t stat_count;

    uint8_t *trained;    /* by parameter */
    uint32_t *update;    /* by parameter: the node of a buffer's new value; 0 = it stays */
    dt_tensor *param_dx; /* by parameter: its gradient's node; nil = not trained */

    dti_listing list;
    dti_place *places;
    dti_segment segments[DTI_SEGMENTS_MAX];
    uint8_t phases[DTI_SEGMENTS_MAX];
    uint32_t segment_count;                 /* weigh segment last, if any */
    uint32_t commit_segment, weigh_segment; /* segment_count = none */
    uint32_t update_segment; /* the commit's; of a replica the one behind it, which only writes */
    uint64_t transient_bytes, used_bytes;

    dti_port *ports;
    uint32_t port_count;
    dti_memory *memories[DTI_ARENAS];
    uint64_t in_bytes, out_bytes, table_bytes;
    uint32_t table_entries;
    uint32_t *table; /* host copy, freed after creation */
    dti_exec_desc exec_desc;
    dti_exec *exec, *exec_next; /* next: while an arena grows */

    /* the step under way */
    uint32_t at, end; /* next segment, and one past the last of this step */
    bool busy;        /* a segment was started and not yet seen finished */
    bool commits;
    bool forward_done;            /* outputs can be read */
    double weights[DT_MAX_TERMS]; /* of the global batch, as given; 0 = own */
    double coefficients[DT_MAX_TERMS];
    double lr;
    float proven; /* DTI_STEP_PROVEN */
    uint64_t step;
    uint32_t micro, micros; /* of the step under way */
};

/* Places transients by lifetime; sets places, transient_bytes, used_bytes. */
static dt_result dti_plan(dt_program *p);

/* ---- describe.c */
static void dti_program_desc_check(dt_program *p, dti_text *problems);
static void dti_append_gradients(dt_program *p, dti_text *problems);
static void dti_append_weights(dt_program *p, uint32_t *weight_node);

/* ---- compile.c: dt_program_create, of what a replica computes of a step when shards is not NULL.
 * Then losses need weights (dt_step_desc), an optimizer, and the caller brings the sums of all
 * replicas to slot 0 between the last backward segment and the commit. The graph may have an error:
 * what desc names is older, and whole. */
static dt_result dti_program_create(dt_store *store, const dt_program_desc *desc,
                                    const dti_shards *shards, dt_program **out);

/* ---- replica.c: a step of such a program, cut open. begin is dt_program_begin. */
static uint32_t dti_program_segments(const dt_program *p); /* forward and backward ones */
/* Starts forward and backward segments, each by itself; returns before they have run where the
 * device runs on its own. */
static dt_result dti_program_launch(dt_program *p, uint32_t segment);
static dt_result dti_program_busy(dt_program *p, bool *busy);
static dt_result dti_program_reach(dt_program *p, uint32_t segment); /* waits for it */
/* The host's side of the gradients: slots one behind the other. */
static float *dti_program_gradients(dt_program *p);
/* Of a piece of the newest run: a loss's or metric's (sum, weight). */
static void dti_program_term(const dt_program *p, uint32_t term, uint32_t piece, double pair[2]);
/* Of a piece: `channels` pairs (mean, variance). */
static const float *dti_program_stat(const dt_program *p, const dti_stat *stat, uint32_t piece);
/* Whether the inputs decide a loss's weight, so that they must be written before weigh. */
static bool dti_program_weighs(const dt_program *p);
/* Whether an input is checked when it is written: a class number or an index. */
static bool dti_program_labels(const dt_program *p);
/* Adds the weights of each piece's losses to weights[piece * DT_MAX_TERMS + loss]. */
static dt_result dti_program_weigh(dt_program *p, double *weights);
/* After begin, before the backward part: the weights of the whole job's batch. */
static void dti_program_set_weights(dt_program *p, const double *weights);
/* Opens a step that only commits: a replica without rows in it. */
static dt_result dti_program_begin_commit(dt_program *p, const dt_step_desc *step);
/* Ends a run that does not commit. */
static dt_result dti_program_end(dt_program *p);
/* All of the commit that writes nothing; *norm is the gradient's. *faulty: it is not finite, or
 * what the update would write is not. */
static dt_result dti_program_judge(dt_program *p, double *norm, bool *faulty);
/* Behind it: the update. Starts it and waits. */
static dt_result dti_program_commit(dt_program *p);
/* After a run with a loss, gradient or update that is not finite: looks for the parameter or op,
 * whose name it returns, and says it (dti_fail). NULL: nothing of this replica's is to blame.
 * ran: it had rows, so that ops can be looked at. */
static const char *dti_program_blame(dt_program *p, bool ran);

/* ---- labels.c */
/* Finds what the ports' values are checked for. */
static dt_result dti_labels_find(dt_program *p, const uint8_t *needed);
static void dti_labels_free(dt_program *p);
/* rows: which rows of a data set they are, for the text; NULL: of a batch of the host's own. */
static dt_result dti_labels_check(const dt_program *p, const dti_port *port, const int32_t *data,
                                  const uint32_t *rows);
/* dt_program_write of rows of a data set. */
static dt_result dti_program_write_rows(dt_program *p, dt_tensor input, const void *data,
                                        size_t bytes, const uint32_t *rows);
/* Whether every op that reads a port ignores the value *index. */
static bool dti_labels_ignore(const dti_port *port, int32_t *index);

/* ---- segments.c: fills the listing, ports, segments and the commit's table */
static dt_result dti_lower_program(dt_program *p, const uint32_t *weight_node);

/* ---- cut.c: emits a node, in parts of the batch where a tensor is larger than a binding may be */
static void dti_cut_emit(dt_program *p, dti_emit *e, const dti_op_family *family);

/* ---- finite.c */
/* The largest norm of the gradient with which the update cannot overflow; -1: there is none. */
static double dti_step_proven(const dt_program *p);
static void dti_store_remember(dt_program *p, const uint32_t *status);
static bool dti_update_fault(dt_program *p, dt_report *r, const char *kept);

/* ---- commit.c */
static void dti_optim_resolve(dt_program *p, dti_text *problems);
static dt_result dti_commit_table(dt_program *p);
/* In two parts: all that decides, then what is written. */
static void dti_commit_judge(dt_program *p, dti_emit *e, uint32_t table, uint32_t status);
static void dti_commit_update(dt_program *p, dti_emit *e, uint32_t table, uint32_t status);
static void dti_step_block_fill(dt_program *p, const dt_step_desc *step);
