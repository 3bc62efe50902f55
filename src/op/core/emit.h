/* A listing: the launches of a program and their values, before they have places. A row's emit
 * function appends to it; lower/plan.c then places the transients. */

typedef enum dti_value_kind {
    DTI_VALUE_TRANSIENT, /* placed by the plan; lives from its first to its last launch */
    DTI_VALUE_PARAM,     /* the others have a fixed offset in their arena */
    DTI_VALUE_GRADIENT,
    DTI_VALUE_STATE,
    DTI_VALUE_ROUNDING, /* the rounding errors of sums over many micro-batches: see
                         * dti_emit_accumulate */
    DTI_VALUE_CACHE,
    DTI_VALUE_TABLE,
    DTI_VALUE_IN,
    DTI_VALUE_OUT,
    DTI_VALUE_KINDS
} dti_value_kind;

typedef struct dti_value {
    uint8_t kind, dtype;
    uint64_t bytes;
    uint64_t offset;  /* in its arena; of a part: in the value to which it belongs */
    uint32_t part_of; /* another transient that it lies in, or itself */
    bool has_parts;
    bool rounded; /* f32 that its readers round to bf16: the same bytes are another value too */
    uint32_t first, last; /* launches; set by the plan, until then the first that may bind it */
    uint32_t same_as;     /* value whose place it takes (in place), or itself */
} dti_value;

typedef struct dti_listing {
    dti_base *base;
    dti_launch *launches;
    size_t launch_capacity;
    uint32_t launch_count;
    uint32_t ended; /* launches of segments that are complete: none of them may be taken back */
    dti_value *values;
    size_t value_capacity;
    uint32_t value_count;
    uint64_t flops;
    const uint64_t *borders; /* bytes of PARAM that no value lies on both sides of */
    uint32_t border_count;
    dt_result result; /* the first failure (memory); emission goes on harmlessly */
    dti_launch spare; /* the result of dti_emit_launch then */
} dti_listing;

/* A tensor's layout in its value. Axis 0 is the sample axis (1 without), axes 1..5 the shape,
 * right-aligned; an axis of size 1 has stride 0. In elements. */
struct dti_view {
    uint32_t value;
    uint8_t dtype; /* the value's */
    int64_t dim[DTI_AXES];
    int64_t stride[DTI_AXES];
    int64_t offset;
};

/* The lowering's facts about a node while others are emitted. */
typedef struct dti_span_of_node {
    uint32_t uses;        /* by nodes that are needed; outputs, terms and gradients count too */
    uint32_t first, last; /* its launches: [first, last) */
    /* Of the uses: rows whose launches take 16 bits there, and those that round f32. */
    uint32_t taking, rounding;
} dti_span_of_node;

/* A result whose untouched rows need not be written. A word of each of its blocks says which rows
 * are 0 (DTI_ROW_BIT). A reader that uses these words need not read those rows either. */
typedef struct dti_sparse {
    uint32_t words; /* value; 0: all of it is to be written */
    uint32_t first; /* the word of its first block */
    bool taken;     /* set by emit if it leaves rows out */
} dti_sparse;

struct dti_emit {
    dti_listing *list;
    dt_graph *graph;
    const dti_node *node;
    uint32_t id;
    int64_t batch;
    bool train;           /* dropout drops */
    bool rounds;          /* products may round f32 as they read it */
    bool workgroups;      /* the device runs them: long sums are cut */
    bool apart;           /* chunks are spread over workgroups: the device runs hundreds at once */
    uint64_t range_bytes; /* the most that it can bind */
    dti_view *views;      /* by node id */
    dti_view out; /* dense in a value of its own, set by the caller; view ops set it themselves */
    int64_t first_row;     /* of the part of the batch that is being emitted */
    dti_span_of_node *own; /* by node id, or NULL: no fusion */
    bool pinned;           /* out is where it must be: it cannot be another node's value */
    dti_sparse sparse;     /* of out */
};

/* .takes of products: any epilogue, but no mask beside a bias; ADD: where there is .free_bias. */
static bool dti_product_takes(const dti_launch *launch, uint32_t epilogue, const dti_view *operand);
/* Lets a row's two outputs be made in their own places (values), if it can: as *out. */
static bool dti_outputs_apart(dti_emit *e, const uint32_t *places, dti_view *out);
/* Fuses an epilogue (DTI_EPILOGUE_*) into the launches that made input i. Their output becomes this
 * node's, which then needs no launch. operand: NULL for RELU. False if the input has other users or
 * its kernel has no epilogue; nothing has changed then. */
static bool dti_emit_fuse(dti_emit *e, uint32_t i, uint32_t epilogue, const dti_view *operand);
/* Whether launch `first` or a later one writes a value. */
static bool dti_emit_written_since(const dti_listing *list, uint32_t first, uint32_t value);
/* out = scale * the sum of `parts` runs of n elements. The runs follow each other. The order of
 * additions depends only on their number. */
static dti_launch *dti_emit_sum_parts(dti_emit *e, uint32_t value, uint32_t parts, uint32_t n,
                                      const dti_view *out, float scale);
/* Bytes [offset, offset + bytes) of a value as a value. offset: a multiple of 256. */
static uint32_t dti_listing_part(dti_listing *list, uint32_t value, uint64_t offset,
                                 uint64_t bytes);

/* n elements; offset: in bytes. */
static uint32_t dti_listing_value(dti_listing *list, dti_value_kind kind, dt_dtype dtype,
                                  uint64_t n, uint64_t offset);
/* Of a node that has a value of its own without gaps. */
static dti_view dti_view_dense(uint32_t value, const dti_node *node, int64_t batch);
/* The elements of `like`, without gaps. */
static dti_view dti_view_packed(uint32_t value, const dti_view *like, int64_t offset);
/* n floats, `stride` apart, as one axis. */
static dti_view dti_view_line(uint32_t value, int64_t n, int64_t stride, int64_t offset);
static bool dti_view_is_dense(const dti_view *v);
/* The stride of axes [first, end) as one axis; -1 if they cannot be one. */
static int64_t dti_view_as_one(const dti_view *v, int first, int end);
static int64_t dti_view_elements(const dti_view *v);

static dti_view dti_emit_in(const dti_emit *e, uint32_t i);
/* The input in rows of memory without gaps; copied to a scratch value when it is not. */
static dti_view dti_emit_dense_in(dti_emit *e, uint32_t i);
static dti_view dti_emit_dense_view(dti_emit *e, const dti_view *v);
/* Dense input i's value, and where it begins; DTI_UNBOUND if the node has no such input. */
static uint32_t dti_emit_given(dti_emit *e, uint32_t i, uint32_t *offset);
static uint32_t dti_emit_scratch(dti_emit *e, dt_dtype dtype, uint64_t n);
/* Appends a launch with its arguments, bound to values. The pointer holds until the next append. */
static dti_launch *dti_emit_launch(dti_emit *e, dti_kernel_id kernel, uint64_t items,
                                   const void *args, size_t args_bytes,
                                   const uint32_t values[DTI_BINDINGS_MAX]);
#define DTI_UNBOUND 0u /* no value: binding 0 again */
#define DTI_EMIT(e, kernel, items, args, ...)                                                      \
    dti_emit_launch(e, kernel, items, &(args), sizeof(args),                                       \
                    (const uint32_t[DTI_BINDINGS_MAX]){__VA_ARGS__})

/* Axes merged where every tensor allows it, right-aligned: the loops of the map kernels. */
typedef struct dti_walk {
    int64_t n;
    uint32_t axes; /* in use, at least 1: the map kernels' spec[3] */
    uint32_t dim[DTI_AXES];
    uint32_t stride[3][DTI_AXES];
} dti_walk;
static dti_walk dti_walk_make(const int64_t dim[DTI_AXES], const dti_view *const *views, int count);
/* `v` seen with the dimensions `dim`: axes of size 1 are repeated. */
static dti_view dti_view_broadcast(const dti_view *v, const int64_t dim[DTI_AXES]);
/* y = f(x) over strided views: MAP1 or COPY with its selector and parameters. */
static void dti_emit_map1(dti_emit *e, dti_kernel_id kernel, uint32_t selector, const dti_view *x,
                          const dti_view *y, const float p[2]);
/* y = f(a, b) over strided views, which are repeated to y's dimensions: MAP2 or MAP1_GRAD. */
static void dti_emit_map2_views(dti_emit *e, dti_kernel_id kernel, uint32_t selector,
                                const dti_view *in0, const dti_view *in1, const dti_view *y,
                                const float p[2]);
static void dti_emit_map2(dti_emit *e, dti_kernel_id kernel, uint32_t selector); /* of inputs */

/* For a chance p in [0, 1) of being dropped. The limit of a word of 32 random bits, and the factor
 * of kept elements. */
typedef struct dti_dropout_odds {
    uint32_t threshold;
    float scale;
} dti_dropout_odds;
static dti_dropout_odds dti_dropout_odds_of(float p);
/* .in_step of the maps. */
static bool dti_map_in_step(const dti_launch *launch, int binding);
/* spec2, DTI_FOURS*, of the map kernels and COPY: by how operands lie. */
static void dti_map_tile(const dti_launch *launch, uint32_t variant, uint32_t spec[4]);
/* And of n elements without gaps; offsets: of all operands, or'd. */
static uint32_t dti_fours(uint32_t n, uint32_t offsets);
/* For kernels over rows of n elements that begin at such places: spec3, DTI_ROW_*. */
static uint32_t dti_row_lies(uint32_t n, uint32_t places);
static uint32_t dti_lies_size(uint32_t units); /* the size in it */
/* One element each, or four: spec2 decides. */
static uint64_t dti_fours_invocations(const dti_launch *launch, uint32_t variant,
                                      const uint32_t spec[4]);
/* Four items each. */
static uint64_t dti_quarter_invocations(const dti_launch *launch, uint32_t variant,
                                        const uint32_t spec[4]);
/* For rows that copy their input, and views that are their input. */
static void dti_copy_emit(dti_emit *e);
static void dti_same_emit(dti_emit *e);
/* Copies view x to view y (both may be strided). */
static void dti_emit_copy(dti_emit *e, const dti_view *x, const dti_view *y, uint32_t selector);
/* Two vectors for one binding. The range that holds both, if they are in one arena, and their
 * places in it as *a_at and *b_at. False: they are not. */
static bool dti_emit_span(dti_emit *e, const dti_view *a, const dti_view *b, uint32_t *value,
                          uint32_t *a_at, uint32_t *b_at);
/* Copies up to three views one after the other into a scratch value: vectors, or dense rows along
 * axis 4. */
static uint32_t dti_emit_join(dti_emit *e, const dti_view *views, uint32_t count);
/* y = a + b. */
static void dti_emit_add(dti_emit *e, const dti_view *a, const dti_view *b, const dti_view *y);
/* Adds x to a value of n elements, or sets it. first: DTI_ACCUMULATE_*. rounding: a value of n
 * elements that keeps the rounding errors (Kahan). So they do not grow with the number of sums.
 * DTI_UNBOUND: none. */
static void dti_emit_accumulate(dti_emit *e, const dti_view *x, uint32_t value, uint32_t rounding,
                                uint32_t n, uint32_t first);
static void dti_emit_fill(dti_emit *e, const dti_view *y, uint32_t selector, float value);
