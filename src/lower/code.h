/* A code: a graph and a description, compiled for one kind of device. It has launches, the places
 * of their values, segments, bindings, and the memory that they need. It must not know a device, a
 * store or a step. Once made it never changes: a program (program/program.h) binds it to memory and
 * runs it. */

#define DTI_SEGMENTS_MAX 64                  /* and one for each sync point */
#define DTI_BUCKET_BYTES ((uint64_t)4 << 20) /* of a bucket, by default */

/* The range of an i32 input's elements that an op requires. */
typedef struct dti_label_check {
    const char *op;
    int32_t classes, ignore_index; /* in [0, classes), or ignore_index */
    bool ignores;
    uint8_t *reads;     /* by element of a sample: whether the op reads it; NULL = all */
    int64_t read_count; /* how many it reads */
} dti_label_check;

/* An input, output or gradient and where its host side lies. */
typedef struct dti_binding {
    uint32_t node;   /* the application's tensor: an input, an output, or the source of a
                      * gradient */
    uint64_t offset; /* in IN or OUT */
    uint64_t bytes;
    uint32_t segment; /* comes to the device before it, or to the host after it */
    bool output;
    bool gradient;    /* dL/dy of `node`: the host's, or one that is sent */
    uint8_t external; /* 1 + the index of the description's buffer that holds it, at 0; 0: none */
    dti_label_check *checks;
    uint32_t check_count;
    size_t check_capacity;
} dti_binding;

/* Where each piece's value lies in OUT: the first piece's word, and words from one to the next (0:
 * all share one). */
typedef struct dti_out_words {
    uint32_t word, stride;
} dti_out_words;

/* A buffer that moves by each piece's statistics of batch norm: [channels, 2], mean and biased
 * variance. */
typedef struct dti_stat {
    uint32_t param;
    dti_out_words at;
    uint32_t channels, spatial;
    bool variance;
    float momentum;
} dti_stat;

/* A row whose value is made between two segments. All pieces of the job's batch make it, or all
 * tensor ranks of a group. Graph and description decide their order and sizes, so all replicas have
 * the same. */
typedef struct dti_sync_point {
    uint32_t node;
    dti_meet meet;
    uint32_t segment;  /* it follows this one */
    uint32_t given;    /* elements of the operand */
    uint32_t elements; /* elements of the value */
    dti_out_words at;  /* the operand */
    uint64_t in;       /* the value in IN: its first byte */
} dti_sync_point;

/* The limits that a code must keep. */
typedef struct dti_limits {
    uint64_t storage_range_bytes; /* a larger operand is bound in parts */
    bool workgroups;              /* long sums are cut, to be spread over them */
    bool no_hard_halves;          /* kernels with hard_halves take no 16 bits */
    bool apart;                   /* hundreds of them run at once, and launches side by side */
} dti_limits;

typedef struct dti_code {
    dti_base *base;
    const dti_layout *layout; /* of the store that it is for */
    dti_limits limits;
    dt_program_desc desc; /* its pointers are not valid once the code is made */
    const char *label;
    dt_optim_desc optim; /* defaults resolved */
    bool has_optim, has_gradients, train;
    int64_t batch;
    dt_graph *work;         /* a clone of the application's graph, with gradients */
    uint32_t backward_node; /* nodes from here on are gradients */
    uint32_t loss_count, metric_count;
    /* Of losses whose weight is a count; 0 = from targets, -1 = from computed targets. */
    double static_weight[DT_MAX_TERMS];
    bool weighs;                    /* a weigh segment exists */
    bool weight_each[DT_MAX_TERMS]; /* each piece has a weight of its own, in its term's place */

    dti_out_words terms[2 * DT_MAX_TERMS]; /* losses, then metrics */

    dti_batch_slices slices; /* a replica's share of a step; 0 pieces: a whole program */
    dti_stat *stats;         /* of batch norm: the host joins those of the pieces */
    uint32_t stat_count;

    /* For a stage. One norm covers all stages, so a segment of its own sends its pairs by block.
     * All stages' pairs come back for the next segment. In bytes of OUT and IN. */
    uint32_t stage_blocks; /* of the whole model; 0: not a stage */
    uint32_t tp_ranks;     /* of the tensor group; 0: no group */
    uint64_t pairs_out, pairs_in;
    uint32_t leaving_count;
    uint32_t leaving[DT_MAX_OUTPUTS];     /* inputs whose gradients are sent */
    dt_tensor leaving_dx[DT_MAX_OUTPUTS]; /* those */

    uint8_t *trained;     /* by parameter */
    uint8_t *sparse;      /* by parameter: only touched rows of its gradient are written */
    uint32_t *stands;     /* by the application's nodes: the node that has the value; NULL:
                           * itself */
    uint32_t *update;     /* by parameter: the node of a buffer's new value; 0 = it stays */
    dt_tensor *param_dx;  /* by parameter: its gradient's node; nil = not trained */
    uint32_t *directions; /* by parameter, two: values of an optimizer's direction, and factors */

    dti_listing list;
    dti_place *places; /* by value */
    dti_segment *segments;
    uint32_t *segment_buckets; /* by segment: buckets that are finished after it */
    dti_fetch *fetches;        /* by bucket: the copy that brings it to the host; NULL: none */
    /* First forward ones, then backward ones, then the commit's. Last, if any, the one of loss
     * weights, which only dt_program_add_loss_weights runs. */
    uint32_t segment_count;
    /* If the host makes the update: the segments with empty commits, and the others, whose launches
     * begin with host_first. Else NULL. */
    dti_segment *device_segments, *host_segments;
    uint32_t host_first;
    uint32_t forward_segments;
    uint32_t leaving_segments;   /* segments that compute sent gradients, if staged.split is set */
    dti_sync_point *sync_points; /* in their order */
    uint32_t sync_point_count;
    uint32_t launches_recomputed;
    /* After a micro-batch's backward part: if a loss is not finite, aborts it and the later ones
     * that were started. commit_segment: not used. */
    uint32_t check_segment;
    uint32_t commit_segment, weigh_segment; /* segment_count = none */
    uint32_t update_segment; /* the commit's; of a replica, stage or tensor rank the one after it */

    dti_binding *bindings;
    uint32_t binding_count;
    uint32_t *table; /* the commit's: a row for each block of 256 elements that it writes */
    uint32_t table_entries;
    /* Of those, this code writes entries [own_first, own_first + own_entries) and the buffers at
     * the end. A store with all moments writes all. With units its own come first, then buffers,
     * then others', of which only the steps are counted. */
    uint32_t own_first, own_entries, buffer_entries;
    /* Pairs of blocks that are sent, and come back with those of all stages or replicas; this one's
     * begin at pair_first. 0: they stay. */
    uint32_t pairs_own, pairs_all, pair_first;

    /* Units (units.c): where each one's parameters and gradients begin, and all of them end, in
     * elements of the arenas. Then the distance of two slots of gradients. */
    uint64_t unit_param[DTI_UNITS_MAX], unit_gradient[DTI_UNITS_MAX];
    uint64_t unit_params, unit_gradients, unit_stride;
    uint64_t unit_evicts[DTI_UNITS_MAX]; /* units whose parameters are freed when this one's are
                                          * gathered */
    uint64_t *unit_reads;                /* by segment: units whose parameters must be gathered */
    bool units_leave;                    /* gradients have gone before the last segment */
    /* needs */
    uint64_t transient_bytes, cache_bytes, in_bytes, out_bytes, table_bytes;
} dti_code;

static inline bool dti_code_is_sparse(const dti_code *code) {
    bool any = false;
    for (uint32_t i = 0; i < code->layout->param_count; i++)
        any = any || code->sparse[i];
    return any;
}

static inline uint32_t dti_code_node(const dti_code *code, uint32_t id) {
    return code->stands ? code->stands[id] : id;
}

/* A parameter group's constants, at a step's rate. optim: as it is in that step. */
static inline dti_optim_rates dti_code_rates(const dti_code *code, const dt_optim_desc *optim,
                                             double lr, uint32_t group) {
    const dt_optim_group *g = group ? &code->optim.groups[group - 1] : NULL;
    return (dti_optim_rates){optim, lr * (g ? g->lr_scale : 1.0),
                             g ? g->weight_decay : code->optim.weight_decay};
}

/* Code that is one of several in a step, each on its own device. It is a stage of a pipeline or a
 * tensor rank (parallel/pipeline/). All of them update, or none. */
typedef struct dti_staged {
    dt_tensor inputs[DT_MAX_OUTPUTS]; /* whose dL/dx is sent; ends at its first nil */
    uint32_t blocks;                  /* of the tables of all stages or tensor ranks */
    uint32_t tp_ranks;                /* of the tensor group; 0: no group */
    bool split; /* gradients that are sent have a segment of their own, before all others */
} dti_staged;

/* The input of a lowering. */
typedef struct dti_code_desc {
    const dt_graph *graph; /* the application's, whose tensors `program` names */
    /* A clone of it: the same nodes, perhaps with other shapes. The code owns it, and it is freed
     * if lowering fails. */
    dt_graph *work;
    const dt_program_desc *program;
    const dti_batch_slices *batch_slices; /* a replica's share of a step; NULL: a whole program */
    const dti_staged *staged;             /* NULL: it makes whole steps */
    const dti_layout *layout;             /* outlives the code */
    dti_limits limits;
} dti_code_desc;

/* ---- replay.c: a clone of a graph, at desc->shapes if there are any, for dti_code_desc.work.
 * Errors, with *out NULL: INVALID (a shape, or an op that it does not fit), UNSUPPORTED, MEMORY. */
static dt_result dti_graph_replay(const dt_graph *g, const dt_program_desc *desc, dt_graph **out);

/* ---- types.c */
/* The first launch that has 16 bits where it cannot take them. NULL: no such launch. */
static const dti_launch *dti_types_misfit(const dti_listing *list, const dti_limits *limits);

/* A code within the description's memory_bytes, if it has any. Errors, with *out NULL: as
 * dt_program_create. */
static dt_result dti_code_create(dti_base *base, const dti_code_desc *desc, const dti_code **out);
static void dti_code_free(const dti_code *code); /* NULL is fine */
/* dti_fail with "program 'LABEL': " before the text. */
static dt_result dti_code_fail(const dti_code *code, dt_result result, const char *format, ...)
    DTI_PRINTF(3, 4);
/* INVALID with all problems of a description, if there are any; MEMORY. */
static dt_result dti_problems_fail(dti_base *base, const char *label, const dti_text *problems);
/* The binding of a node; output, gradient: which kind. NULL: not found. */
static const dti_binding *dti_code_binding(const dti_code *code, uint32_t node, bool output,
                                           bool gradient);
/* Whether sums of gradients keep their rounding errors: for more than DTI_CHAIN_MAX micro-batches,
 * or an unknown number. */
#define DTI_CHAIN_MAX 16
static bool dti_code_rounds(const dti_code *code);

/* ---- labels.c */
/* Checks the values of a binding. rows: their rows of a data set, for the text; NULL: of a batch of
 * the host's own. */
static dt_result dti_labels_check(const dti_code *code, const dti_binding *binding,
                                  const int32_t *data, const uint32_t *rows);
/* Whether every op that reads a binding ignores the value *index. */
static bool dti_labels_ignore(const dti_binding *binding, int32_t *index);
