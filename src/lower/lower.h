/* The lowering: from a graph and a description to a code, by passes in one order (passes.c). Each
 * is a function of the results of those before it, so a test can stop after any of them. */

/* What a node's value depends on, which says how often it exists. */
typedef enum dti_extent {
    DTI_EXTENT_UNIFORM, /* on no sample: once */
    DTI_EXTENT_SAMPLES, /* it has samples: once, over all rows of the batch */
    DTI_EXTENT_PIECE    /* on the samples of a piece: once for each */
} dti_extent;

/* Values that are computed again in addition to marked ones: the first `again` of `parts` of the
 * forward pass; with 0 parts none. */
#define DTI_PARTS_MAX 24
typedef struct dti_choice {
    uint32_t parts, again;
} dti_choice;

typedef struct dti_lowering {
    dti_code *code;
    const dt_graph *graph;    /* the application's, to which the description's tensors belong */
    const dti_staged *staged; /* may be NULL */
    dti_choice choice;
    dti_text problems;                  /* with a description, all of them */
    uint32_t weight_node[DT_MAX_TERMS]; /* by loss: the node that gives its weight, only from
                                         * targets; 0 = none */
    uint32_t weigh_launches;            /* of the segment that makes weights of losses, which comes
                                         * first */
    dti_emit e;
    uint32_t *order;      /* nodes as they are emitted: each after its inputs; [0] is nil */
    uint32_t split;       /* where in it a segment ends that computes sent values; 0: nowhere */
    uint32_t *copy_of;    /* by node: the node that it computes again; NULL: no copies */
    uint8_t *needed;      /* by node: its value is computed */
    uint32_t *pin;        /* by node: the value to which it must be written; 0 = any */
    uint32_t *param_of;   /* by node: 1 + a parameter whose gradient it is */
    uint32_t *stat_of;    /* by node: 1 + the first of the code's stats that it holds */
    uint32_t *next_param; /* by parameter: 1 + the next one with the same gradient node */
    dti_span_of_node *own;
    uint32_t status;       /* value of the whole status buffer */
    uint64_t bucket;       /* gradient bytes finished since the last cut */
    uint64_t *borders;     /* listing's */
    uint32_t *bucket_left; /* by bucket: gradients not yet finished */
    uint32_t buckets_done; /* finished, and so are all before */
    uint32_t met;          /* sync points that are emitted */
    /* With more than one piece: */
    uint8_t *extent;       /* by node: dti_extent */
    dti_view *piece_views; /* by node * pieces + piece, of nodes of that extent */
    dti_view *saved;       /* of a node's inputs */
} dti_lowering;

/* ---- passes.c */
typedef struct dti_lower_pass {
    const char *name;
    dt_result (*run)(dti_lowering *w);
} dti_lower_pass;
/* All passes in order. As dti_code_create, but the choice is made. */
static dt_result dti_code_make(dti_base *base, const dti_code_desc *desc, dti_choice choice,
                               const dti_code **out);

/* ---- describe.c */
static dt_result dti_pass_describe(dti_lowering *w);      /* terms, outputs, mode, optimizer */
static dt_result dti_pass_differentiate(dti_lowering *w); /* gradients, as nodes */
static dt_result dti_pass_weigh(dti_lowering *w);         /* losses' weights, as nodes */

/* ---- recompute.c: values that the backward pass computes again, as nodes, and the order of all */
static dt_result dti_pass_recompute(dti_lowering *w);
/* For a staged code with split: moves the rows of sent gradients before the other gradient rows. */
static dt_result dti_pass_split(dti_lowering *w);
static bool dti_recompute_can(const dt_graph *g, uint32_t id); /* and not kept in any case */

/* ---- budget.c */
/* Marks the nodes of w->choice before the pass recompute, and keeps what that needs. False: out of
 * memory. needed: by node. */
static bool dti_choice_mark(const dti_lowering *w, const uint8_t *needed, uint8_t *marked,
                            uint8_t *kept);

/* ---- pieces.c */
/* Whether a step trains the parameter: `params` is a glob, NULL = all. */
static bool dti_param_is_trained(const dti_node *param, const char *params);
/* Finds the extent of each node. INVALID: an output that each piece has of its own, or batch norm
 * over one value. Does nothing for a program with one piece or none. */
static dt_result dti_pass_pieces(dti_lowering *w);
static bool dti_pieces_each(const dti_lowering *w, uint32_t id); /* the node is emitted by pieces */
/* Each a value of its own. */
static inline bool dti_pieces_have(const dti_lowering *w, uint32_t id) {
    return w->extent && w->extent[id] == DTI_EXTENT_PIECE;
}
/* Gives a node of extent PIECE a place in OUT, a line of 256 bytes or more for each piece. */
static dti_out_words dti_pieces_place_out(dti_lowering *w, uint32_t id);
/* Emits a node for each piece that has rows. */
static void dti_lower_pieces(dti_lowering *w, uint32_t id);
/* Whether gradients are added up by the stack of subtrees; false: they are written to slot 0. */
static bool dti_pieces_fold(const dti_code *code);
/* Whether the node's pieces can be emitted straight into the sum: no other node reads them. */
static bool dti_piece_fold_direct(const dti_lowering *w, uint32_t id);
/* Adds up a parameter's gradient; direct: emits the node on the way. */
static void dti_lower_fold(dti_lowering *w, uint32_t id, uint32_t param, bool direct);

/* ---- cut.c: emits a node, in parts of the batch if a tensor is larger than a binding may be */
static void dti_cut_emit(dti_code *code, dti_emit *e, const dti_op_family *family);
static bool dti_cut_needed(const dti_code *code, const dti_emit *e); /* whether it is in parts */

/* ---- buckets.c */
static dt_result dti_pass_buckets(dti_lowering *w); /* how many gradients each bucket waits for */

/* ---- need.c */
static dt_result dti_pass_need(dti_lowering *w); /* the nodes to compute; a tensor that is too large
                                                  * is an error */
/* The nodes that a description needs; stands: as dti_code's. */
static void dti_need_roots(const dt_graph *g, const dt_program_desc *d, const uint32_t *stands,
                           uint8_t *needed);
/* The inputs of all needed nodes, and theirs. order: of nodes; NULL: that in which they were
 * made. */
static void dti_need_inputs(const dt_graph *g, const uint32_t *order, uint8_t *needed);
/* cast.c: by node of a model, 1: in mixed precision its f32 is 16 bits. Errors: MEMORY, INVALID. */
static dt_result dti_cast_find_low(const dt_graph *g, uint8_t *low);
static void dti_need_all(const dti_lowering *w, uint8_t *needed); /* of a step without updates */
static inline uint64_t dti_node_elements(const dti_code *code, const dti_node *n) {
    return (uint64_t)dti_shape_elements(n->shape) * (n->samples ? (uint64_t)code->batch : 1u);
}
static inline uint64_t dti_node_bytes(const dti_code *code, const dti_node *n) {
    return dti_bytes(n->dtype, dti_node_elements(code, n));
}
/* A value of the node's size and type; offset: in bytes. */
static inline uint32_t dti_node_value(dti_code *code, dti_value_kind kind, const dti_node *n,
                                      uint64_t offset) {
    return dti_listing_value(&code->list, kind, n->dtype, dti_node_elements(code, n), offset);
}

/* ---- sync_points.c: rows that pieces of the whole job make together */
static bool dti_meets(const dti_code *code, uint32_t id); /* the node is one, in such a code */
static dt_result dti_sync_points_make(dti_lowering *w);   /* segments, and the sync points between
                                                           * them */
static void dti_sync_points_place(dti_lowering *w);       /* operands in OUT, values in IN */
static void dti_lower_sync_point(dti_lowering *w, uint32_t id);
/* The last one has no launch after it yet, and needs a segment. */
static bool dti_sync_point_waits(const dti_code *code);
static void dti_sync_points_ranges(dti_code *code); /* the ranges that segments copy for them */

/* ---- bindings.c */
static dt_result
dti_pass_bindings(dti_lowering *w); /* places of inputs, outputs, terms, gradients */
/* A parameter's values, or its gradient in a slot. */
static uint32_t dti_param_value(dti_code *code, uint32_t index, dti_value_kind kind, uint32_t slot);

/* ---- segments.c */
static uint32_t dti_lower_rounding(dti_code *code, uint32_t param);
static dt_result dti_pass_weigh_segment(dti_lowering *w);
static dt_result dti_pass_fuse(dti_lowering *w); /* emission may fuse where one reads */
static dt_result dti_pass_emit(dti_lowering *w); /* forward and backward launches, and their cuts */
static dt_result dti_pass_segments(dti_lowering *w); /* the ranges that each segment copies */
static void dti_segment_end(dti_code *code);         /* of all launches since the last end */
/* Between launches of nodes: all since the last end. */
static void dti_segment_cut(dti_lowering *w);

/* ---- units.c: parameters and gradients that come and go */
static inline bool dti_code_has_units(const dti_code *code) {
    return code->slices.piece_count && code->layout->level >= DT_SHARD_GRADIENTS;
}
static uint64_t dti_unit_bit(uint32_t unit) {
    return (uint64_t)1 << unit;
}
static uint64_t dti_units_from(const dti_code *code); /* the first element that a unit may have */
static dt_result dti_pass_borders(dti_lowering *w);
static dt_result dti_pass_units(dti_lowering *w);

/* ---- sparse.c: gradients of which a step writes only touched rows */
static void dti_sparse_offer(dti_lowering *w, uint32_t id); /* before a node is emitted; */
static void dti_sparse_take(dti_lowering *w, uint32_t id);  /* after that */
static void dti_sparse_table(dti_code *code);               /* in the block table */

/* ---- commit.c */
/* Elements of a row of a parameter of which rows may be left alone; else 0. */
static uint64_t dti_optim_row_sparse_cols(const dti_code *code, const dti_param *param,
                                          uint32_t group);
static void dti_optim_resolve(dti_code *code, dti_text *problems);
static dt_result dti_pass_table(dti_lowering *w); /* the blocks that the commit writes */
/* How many of a parameter's blocks are among those that are trained, or among buffers. */
static uint32_t dti_table_blocks(const dti_code *code, uint32_t param, bool buffers);
static dt_result dti_pass_commit(dti_lowering *w); /* its launches */

/* ---- labels.c */
/* Whether a node takes class numbers or indices, and their range. */
static bool dti_label_user(const dt_graph *g, const dti_node *n, dti_labels *labels);
static dt_result dti_pass_labels(dti_lowering *w); /* the checks of the bindings' values */
static void dti_labels_free(const dti_code *code);

/* ---- cast.c */
static dt_result dti_pass_cast(dti_lowering *w); /* mixed precision, where it is asked for */

/* ---- types.c */
static void dti_types_set(dti_listing *list);     /* of all launches' bindings */
static dt_result dti_pass_types(dti_lowering *w); /* of launches; UNSUPPORTED: no kernel for one */

/* ---- widen.c */
static dt_result dti_pass_widen(dti_lowering *w); /* f32 copies for launches that need them */

/* ---- plan.c */
static inline uint64_t dti_aligned(uint64_t bytes) {
    return (bytes + DTI_PLACE_ALIGN - 1) / DTI_PLACE_ALIGN * DTI_PLACE_ALIGN;
}
static dt_result dti_pass_in_place(dti_lowering *w); /* results that take an input's place */
static dt_result dti_pass_place(dti_lowering *w);    /* transients by lifetime */
