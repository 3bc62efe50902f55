/* The symbolic graph: nodes, their inputs, names and the first error. A node has its op, shape and
 * attributes. It must not know devices, batches or values. A program works on a clone, so the
 * application's graph never gets gradient nodes that it did not ask for. */

/* The parameters of an op. Each family documents their use at its shape rule. */
typedef struct dti_attr {
    float f[4];
    int32_t i[8];
    int64_t dim[DT_MAX_DIMS];
} dti_attr;

typedef struct dti_node {
    uint16_t op; /* dti_op */
    uint8_t dtype;
    bool samples;   /* has the implied sample axis */
    bool frozen;    /* a parameter that is not trained */
    bool buffer;    /* a parameter that only updates change: attr.i[2] is its new value's node */
    bool term;      /* a pair (sum, weight): a loss or a metric */
    bool recompute; /* not kept for the backward pass */
    bool low;       /* an input that another stage computed in 16 bits */
    uint16_t stage; /* the pipeline stage of nodes that are made after this one; 0 = as before it */
    uint32_t first; /* into graph->inputs */
    uint32_t count; /* of inputs */
    dt_shape shape;
    dti_attr attr;
    const char *label;  /* NULL, or a string of the application's graph */
    const void *values; /* the values of an input that is a constant, in that graph too */
    uint32_t cast;   /* under autocast: the node that has this value in the other type; 0 = none */
    uint32_t source; /* the node whose cast this is; 0 = none */
} dti_node;

/* A call of an API function that derives attributes of its rows from shapes. It is kept, so that
 * its rows can be made again at other shapes (lower/replay.c). */
#define DTI_CALL_INPUTS 5
typedef struct dti_call dti_call;
typedef dt_tensor dti_make_fn(dt_graph *graph, const dti_call *call);
struct dti_call {
    const char *name;
    uint32_t first, end;          /* its nodes */
    uint32_t in[DTI_CALL_INPUTS]; /* nodes; 0 = none */
    dti_attr attr;                /* the other arguments, as `make` has them */
    dti_make_fn *make;
};

typedef struct dti_string {
    struct dti_string *next;
    char text[];
} dti_string;

#define DTI_SCOPES_MAX 32
#define DTI_SCOPE_SIZE 256

/* What a reverse pass made, by node. The number of nodes when its gradients had been made (0: it
 * has none), and the newest row that gave it a gradient (0: none did). */
typedef struct dti_grad_pass {
    uint32_t *ends, *givers;
} dti_grad_pass;

struct dt_graph {
    dti_owned owned;   /* first */
    dti_owned *stores; /* alive; parameters may be added while there are no stores */
    dt_ctx *ctx;
    dti_base *base;
    bool steps;           /* a gradient goes through step functions (differentiate.c) */
    uint8_t autocast;     /* in a clone: the type of LOW rows (core/autocast.c); DT_F32: off */
    dti_grad_pass *trace; /* NULL: not needed */
    dti_node *nodes;      /* [0] is nil */
    uint32_t count;
    size_t capacity;
    uint32_t *inputs;
    uint32_t input_count;
    size_t input_capacity;
    dti_string *strings;
    uint32_t *params; /* node ids in order of creation */
    uint32_t param_count;
    size_t param_capacity;
    uint32_t *names; /* leaves by name: a hash table of node ids, 0 = free; of clones, none */
    size_t name_capacity;
    uint32_t name_count;
    dti_call *calls; /* one within another comes before it */
    uint32_t call_count;
    size_t call_capacity;
    uint32_t changes;        /* to existing nodes: labels, marks, updates of buffers */
    uint32_t streams;        /* random streams handed out */
    bool cached;             /* a clone for a program of .cached: rows of CACHE keep their input */
    uint64_t cache_elements; /* of all caches, in the store's arena of them */
    /* Open scopes: "h.0.attention.", and its length before each of them. Scopes beyond the limit
     * are counted too, so each pop ends its own push, even one that failed. */
    char scope[DTI_SCOPE_SIZE];
    uint16_t scope_sizes[DTI_SCOPES_MAX];
    uint32_t scopes;
    char error[512];  /* the first that an op recorded; "" = none */
    dt_result result; /* of that error: INVALID, or MEMORY */
};

static inline dti_node *dti_node_of(dt_tensor x) {
    return &x.graph->nodes[x.id];
}
static inline uint32_t dti_input_id(const dt_graph *g, const dti_node *n, uint32_t i) {
    return g->inputs[n->first + i];
}
static inline dt_tensor dti_input_of(dt_graph *g, const dti_node *n, uint32_t i) {
    return (dt_tensor){g, dti_input_id(g, n, i)};
}
/* Types that a tensor may have. */
#define DTI_TENSOR_DTYPES "f32, bf16, f16 or i32"
static inline bool dti_dtype_of_tensors(int dtype) {
    return dtype == DT_F32 || dtype == DT_I32 || dtype == DT_BF16 || dtype == DT_F16;
}
static inline bool dti_is_nil(dt_tensor x) {
    return x.graph == NULL || x.id == 0 || x.id >= x.graph->count;
}
/* Whether a member of a description is given; it may be a nil. */
static bool dti_is_set(dt_tensor x) {
    return x.graph != NULL || x.id != 0;
}

/* The result of a wrong op. It has its graph, which distinguishes it from {0}. That means "none"
 * for a bias, for weights or at a list's end. */
static inline dt_tensor dti_nil(dt_graph *g) {
    return (dt_tensor){g, 0};
}

/* dt_tensor_shape and similar functions, within the library. */
static inline dt_shape dti_tensor_shape(dt_tensor x) {
    return dti_is_nil(x) ? (dt_shape){.rank = -1} : dti_node_of(x)->shape;
}
static inline dt_dtype dti_tensor_dtype(dt_tensor x) {
    return dti_is_nil(x) ? DT_F32 : (dt_dtype)dti_node_of(x)->dtype;
}
static inline bool dti_tensor_has_samples(dt_tensor x) {
    return !dti_is_nil(x) && dti_node_of(x)->samples;
}

/* The error of functions that need a graph without an error. */
#define DTI_GRAPH_ERROR                                                                            \
    "the graph has an error: %s (to go on without that op: dt_graph_clear_error)"

#define DTI_STATE_OWN "dtrain." /* how the names of a checkpoint's own tensors begin */

/* Records the graph's first error and returns nil. */
static dt_tensor dti_graph_fail(dt_graph *g, const char *format, ...) DTI_PRINTF(2, 3);
/* The same, of an op that was left out (base/optional.h). */
static dt_tensor dti_graph_off(dt_graph *g, const char *op, const char *why);
/* The same, and false: for checks. */
static bool dti_graph_refuse(dt_graph *g, const char *format, ...) DTI_PRINTF(2, 3);
/* The same when host memory ran out. */
static dt_tensor dti_graph_no_memory(dt_graph *g, const char *format, ...) DTI_PRINTF(2, 3);
/* The result of an op whose input is nil. It is nil, and the error goes to the graph of that nil,
 * whose own error may have been cleared. For {0}, which has no graph, it is {0}. */
static inline dt_tensor dti_nil_of(dt_tensor x, const char *op) {
    return x.graph ? dti_graph_fail(x.graph, "%s: its input is nil", op) : dti_nil(NULL);
}
#define DTI_NEED_TENSOR(x, op)                                                                     \
    do {                                                                                           \
        if (dti_is_nil(x))                                                                         \
            return dti_nil_of((x), (op));                                                          \
    } while (0)
static const char *dti_graph_join(dt_graph *g, const char *text, const char *more);
/* A copy of `text` that lives as long as the graph; NULL when memory ran out (recorded). */
static inline const char *dti_graph_string(dt_graph *g, const char *text) {
    return dti_graph_join(g, "", text);
}
/* So of bytes, aligned as a pointer. */
static const void *dti_graph_keep(dt_graph *g, const void *data, size_t bytes);
/* The leaf of an op (inputs, parameters) with this name; 0 = not found. */
static uint32_t dti_graph_find(const dt_graph *g, uint32_t op, const char *name);
/* Appends a leaf with a label, and enters it under that. */
static dt_tensor dti_graph_push_named(dt_graph *g, const dti_node *node);
/* Appends a node as it is; nil when memory ran out. */
static dt_tensor dti_graph_push(dt_graph *g, const dti_node *node, const dt_tensor *in,
                                uint32_t count);
/* Keeps a call whose nodes are those from `first` on, if y is not nil. Returns y. */
static dt_tensor dti_graph_called(dt_graph *g, uint32_t first, const dti_call *call, dt_tensor y);
/* Makes a call's rows, and keeps it. */
static inline dt_tensor dti_call_make(dt_graph *g, const dti_call *call) {
    const uint32_t first = g->count;
    return dti_graph_called(g, first, call, call->make(g, call));
}
static inline dt_tensor dti_call_in(dt_graph *g, const dti_call *c, uint32_t i) {
    return c->in[i] ? (dt_tensor){g, c->in[i]} : (dt_tensor){0};
}
/* A training program that computes `value` from a buffer makes it the buffer's value when a step
 * commits. */
static void dti_graph_update(dt_tensor buffer, dt_tensor value);
/* The size of a graph, to return to it. Nothing may use the nodes that were appended since. */
typedef struct dti_graph_mark {
    uint32_t nodes, inputs, params;
} dti_graph_mark;
static inline dti_graph_mark dti_graph_mark_of(const dt_graph *g) {
    return (dti_graph_mark){g->count, g->input_count, g->param_count};
}
static void dti_graph_undo(dt_graph *g, dti_graph_mark mark);
/* A private copy of nodes and inputs, with a context's memory; strings stay the original's. */
static dt_result dti_graph_clone(const dt_graph *g, dt_ctx *ctx, dt_graph **out);
/* The same as a graph that the context ends. */
static dt_result dti_graph_copy(const dt_graph *g, dt_ctx *ctx, dt_graph **out);

/* ---- shape.c */
static int64_t dti_shape_elements(dt_shape s); /* of one sample */
static void dti_shape_store(int64_t to[DT_MAX_DIMS], dt_shape s);
static bool dti_shape_equal(dt_shape a, dt_shape b);
static bool dti_shape_valid(dt_shape s); /* rank, no negative dim, products below 2^31 */
typedef struct dti_shape_text {
    char text[96];
} dti_shape_text;
static dti_shape_text dti_shape_print(dt_shape s, bool samples); /* "[B, 28, 28]" */
static inline dti_shape_text dti_shape_of(dt_tensor x) {         /* with samples, "[B, 3]" */
    return dti_shape_print(dti_tensor_shape(x), dti_tensor_has_samples(x));
}
