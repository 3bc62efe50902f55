/* The lowering: what segments.c and pieces.c share while they turn a work graph into launches. */

/* What a node's value depends on, which says how often it exists. */
typedef enum dti_extent {
    DTI_EXTENT_UNIFORM, /* on no sample: once */
    DTI_EXTENT_SAMPLES, /* it has samples: once, over all rows of the batch */
    DTI_EXTENT_PIECE    /* on the samples of a piece: once for each */
} dti_extent;

typedef struct dti_lowering {
    dt_program *p;
    dti_emit e;
    uint8_t *needed;
    uint32_t *pin;        /* by node: the value that it is to be written to; 0 = any */
    uint32_t *param_of;   /* by node: 1 + a parameter whose gradient it is */
    uint32_t *next_param; /* by parameter: 1 + the next one with the same gradient node */
    dti_span_of_node *own;
    uint32_t status;       /* value of the whole status buffer */
    uint64_t bucket;       /* gradient bytes finished since the last cut */
    uint32_t *bucket_left; /* by bucket: gradients not yet finished */
    uint32_t buckets_done; /* finished, and so are all before */
    /* With more than one piece: */
    uint8_t *extent;       /* by node: dti_extent */
    dti_view *piece_views; /* by node * pieces + piece, of nodes of that extent */
    dti_view *saved;       /* of a node's inputs */
} dti_lowering;

static uint64_t dti_node_bytes(const dt_program *p, const dti_node *n);
/* A value of the node's size and type; offset: in bytes. */
static uint32_t dti_node_value(dt_program *p, dti_value_kind kind, const dti_node *n,
                               uint64_t offset);
/* A parameter's values, or its gradient in a slot. */
static uint32_t dti_param_value(dt_program *p, uint32_t index, dti_value_kind kind, uint32_t slot);

/* ---- pieces.c */
/* Allocates, and finds the extent of each node. INVALID: an output that each piece has of its own,
 * or batch norm over one value. Nothing to do for a program with one piece or none. */
static dt_result dti_pieces_prepare(dti_lowering *w);
static bool dti_pieces_each(const dti_lowering *w, uint32_t id); /* the node is emitted by pieces */
/* Gives a node of extent PIECE a place in OUT, a line of 256 bytes or more for each piece; the
 * first one's offset is *offset, and from each to the next *stride bytes. */
static void dti_pieces_place_out(dti_lowering *w, uint32_t id, uint64_t *offset, uint64_t *stride);
/* Emits a node for each piece that has rows. */
static void dti_lower_pieces(dti_lowering *w, uint32_t id);
/* Whether gradients are added up by the stack of subtrees; false: they are written to slot 0. */
static bool dti_pieces_fold(const dt_program *p);
/* Whether the node's pieces can be emitted straight into the sum: nobody else reads them. */
static bool dti_piece_fold_direct(const dti_lowering *w, uint32_t id);
/* Adds up a parameter's gradient; direct: emits the node on the way. */
static void dti_lower_fold(dti_lowering *w, uint32_t id, uint32_t param, bool direct);
