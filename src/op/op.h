/* The members of a row of the op table, and the three contexts of its functions: build (shape
 * rule), gradient and emit (launches). A family serves one or more rows.
 *
 * core/ is for all rows. Its files, in the order in which to read them:
 *
 *   op_table.h           here on top: every op, its family and its formula
 *   launch.h             a launch, and a row of a kernel
 *   build.c              appends a node: common checks, then the row's shape rule
 *   autocast.c           mixed precision: the types of a row's inputs
 *   name.c               how messages call a tensor
 *   emit.h, emit.c       listings: launches and values before anything has a place
 *   cpu_task.h           how a launch runs on the CPU
 *   stage.c              operands in 16 bits, for kernels of floats
 *   walk.c               the walk of elementwise kernels
 *   moved.c              where an element comes from, through ops that move values
 *   parted.c             rules of families for tensors split over tensor ranks
 *   table.c              the tables of rows and kernels
 *   known.c              the launch whose result the host knows
 *   differentiate.c      the reverse pass
 *
 * families/ has each op: its shape rule, gradient, launches and CPU functions. A family is a file,
 * or files with the same first word:
 *
 *   leaf.c, output.c                       inputs, parameters, constants; one of several outputs
 *   unary.c, binary.c                      elementwise functions of one and of two tensors
 *   view.c, copy.c                         new dimensions of a value; copy, cast, concat, pad
 *   reduce.c                               sums, maxima and minima over axes
 *   product.c, product_grid.c              matrix products; their tiles on a GPU
 *   chunk.c                                products with long sums
 *   gather.c, scatter.c                    rows of a table by index, and their gradient
 *   softmax.c                              softmax and log_softmax
 *   norm.c, norm_launch.c                  layer, RMS, group and batch norm
 *   norm_cpu.c, norm_rows.c                the same on the CPU; rows of all kernels
 *   conv.c, conv_cpu.c, conv_grid.c        convolution
 *   pool.c, pool_cpu.c                     pooling and resizing
 *   volume.c                               convolution and pooling of volumes, by rows for images
 *   attention.c, attention_rows.c          attention in blocks, and with its scores in memory
 *   attention_cpu.c                        the same on the CPU
 *   attention_cached.c, cache.c            attention to earlier runs; the cache of keys and values
 *   rope.c                                 rotary positions
 *   recurrence.c                           recurrent layers
 *   recurrence_cpu.c                       the same on the CPU
 *   dropout.c                              dropout and random numbers
 *   loss.c                                 losses as terms
 *   cross_entropy.c, cross_entropy_cpu.c   losses over classes
 *   ctc.c                                  connectionist temporal classification
 *   collective.c                           rows that all pieces of the batch make together */

/* ---- Build: checks inputs and sets the new node's shape, type and sample axis. */
typedef struct dti_build {
    dt_graph *graph;
    const dti_node *in[2]; /* the first two inputs, for the usual case */
    const dt_tensor *inputs;
    uint32_t count;
    dti_node out; /* op and attr are set; dtype F32, samples = any input's */
} dti_build;

/* Inputs of a row, but for those of any number of inputs (many). */
#define DTI_INPUTS_MAX 12
#define DTI_OUTPUTS_MAX 8
typedef struct dti_outputs {
    uint32_t count;
    dt_shape shape[DTI_OUTPUTS_MAX];
} dti_outputs;

/* ---- Gradient: from y = node(in) and dy make dx[i] for each i that is wanted. Nil = zero. */
typedef struct dti_grad {
    dt_graph *graph;
    dti_node node; /* a copy: appending moves the graph's */
    dt_tensor y, dy;
    dt_tensor in[DTI_INPUTS_MAX];
    bool wanted[DTI_INPUTS_MAX];
    dt_tensor dx[DTI_INPUTS_MAX];
    dt_tensor dys[DTI_OUTPUTS_MAX]; /* for rows with several outputs: the gradient of each */
    uint32_t index; /* for rows of many inputs: the input whose gradient is asked for (it is
                     * in[0]) */
} dti_grad;

/* ---- Emit: see emit.h. */

/* The range of an i32 input's elements that a row requires: in [0, classes), or ignore_index. */
typedef struct dti_labels {
    uint32_t input; /* which one */
    int32_t classes, ignore_index;
    bool ignores; /* rows whose label is ignore_index do not count */
} dti_labels;

/* How an update moves a buffer: new = (1 - momentum) old + momentum * (mean or variance). */
typedef struct dti_update {
    uint32_t channels, spatial; /* spatial: values of one channel in a sample */
    bool variance;
    float momentum;
} dti_update;

/* An element of a tensor: of one sample, counted row by row. */
typedef struct dti_element {
    uint32_t node;
    int64_t at;
} dti_element;

/* A row whose value is made by all pieces of the job's batch, or all tensor ranks of a group. */
typedef enum dti_meet_kind {
    DTI_MEET_STATS, /* pairs (mean, variance) of channels, of each piece: those of the whole */
    DTI_MEET_MEAN,  /* sums over each piece: their sum by the number of values of a channel */
    DTI_MEET_SUM,   /* from here on of a tensor group: the sum over its ranks */
    DTI_MEET_MOST,  /* the maximum over its ranks */
    DTI_MEET_ROWS,  /* the parts of all, along an axis (all-gather) */
    DTI_MEET_SHARE  /* the own part of the sum (reduce-scatter) */
} dti_meet_kind;
typedef struct dti_meet {
    dti_meet_kind kind;
    uint32_t spatial; /* values of one channel in a sample */
    int64_t run;      /* contiguous elements of an own part; 0: all */
} dti_meet;

/* A tensor split over tensor ranks. Each has an equal run of each of up to three groups along an
 * axis. Groups: elements of all ranks together, 0 after the last. */
#define DTI_PARTED_GROUPS 3
typedef struct dti_parted {
    int8_t axis; /* of the shape; -1: every tensor rank has all of it */
    bool rows;   /* a sequence's rows, between layers: a row that takes no parts gathers them */
    int64_t group[DTI_PARTED_GROUPS];
} dti_parted;
static const dti_parted dti_parted_whole = {.axis = -1};

/* A row of a whole model, and its counterpart on a tensor rank. */
typedef struct dti_parting dti_parting;
struct dti_parting {
    const dt_graph *g;
    const dti_node *n; /* of the whole model, with its whole shape */
    int64_t tp_ranks, tp_rank;
    dti_parted in[DTI_INPUTS_MAX];
    dti_parted out;
    dti_attr attr; /* of a tensor rank's row; at first n's */
    bool sum;      /* ranks' values are added up, and then its last input (a bias) to the sum */
    uint32_t all;  /* inputs, a bit each, of which a tensor rank takes all rows */
    uint32_t own;  /* inputs, a bit each: its own part, along out's axis, of a whole input */
    /* What replaces the row, made from its inputs as they are. NULL: the row itself, with attr. */
    dt_tensor (*make)(const dti_parting *s, const dt_tensor *in);
};

typedef struct dti_op_family {
    bool (*shape)(dti_build *b);
    void (*grad)(dti_grad *g);       /* NULL: no gradient flows */
    bool (*flat)(const dti_node *n); /* grad returns nothing for such a row. NULL: it always returns
                                      * a gradient */
    bool steps; /* flat rows are step functions, with a gradient of 0; else they have no gradient */
    /* The same value from other rows: where grad is NULL. Tests have those of rows with a grad. */
    dt_tensor (*lower)(dti_grad *g);
    /* The shapes of a row with several outputs. Its own value has them one after the other
     * (output.c), and its own shape has all their elements. NULL: the value is its one output. */
    void (*outputs)(const dt_graph *g, const dti_node *n, dti_outputs *out);
    void (*emit)(dti_emit *e);
    /* With two outputs, rows of [2, n] without samples: they may lie apart, with any stride of the
     * rows. Then only rows of its own file read the packed value. */
    bool apart;
    /* Joins the results of parts of the batch, `rows` samples each except the last. They follow
     * each other in value `parts`, and are not sums. NULL: they are added, or lie apart. */
    void (*join)(dti_emit *e, uint32_t parts, uint32_t count, int64_t rows);
    bool view;  /* emit only sets the out view; no kernel */
    bool cheap; /* one launch, and its gradients read its operands: lower/recompute.c */
    /* Operands that its launches take in 16 bits: bit i is input i, DTI_HALF_OUT the result. The
     * others are cast. */
    uint16_t halves;
    /* Inputs of a LOW row that its launches take only together in 16 bits, and without a fused
     * cast. They round between inputs and result. Others are f32; 0: see `halves`. */
    uint16_t low;
    /* Operands, likewise, that its launches round to bf16 if they are f32 and input 0 is bf16. On a
     * device that can (dti_emit.rounds). */
    uint16_t rounds;
    /* For a row that moves elements and computes nothing. Sets e to the element of its first input
     * that this one was. False: it comes from no input. NULL: the row computes. */
    bool (*source)(const dt_graph *g, const dti_node *n, dti_element *e);
    /* For a view: whether its input must have no gaps. NULL: gaps are allowed. */
    bool (*packs)(const dti_node *n);
    /* Whether the launches read nothing of each sample, so that no batch is too large for them.
     * NULL: they do read, unless it is a view. */
    bool (*idle)(const dti_node *n, bool train);
    bool picks; /* it reads one element of its first input for each that it gives */
    bool takes_terms;
    bool many;    /* any number of inputs: grad is asked for one after the other */
    bool uniform; /* its value comes with the step, whatever part of the batch its input is of */
    /* Which input holds labels, and their range; false: none. NULL: none. */
    bool (*labels)(const dt_graph *g, const dti_node *n, dti_labels *out);
    /* For a loss: a term (0, weight) made only of its targets. NULL: the weight is the number of
     * elements of its first input. */
    dt_tensor (*weight)(dt_graph *g, const dti_node *n);
    /* Multiply-adds for one sample, also of a sum over samples. NULL: too few to count. */
    double (*macs)(const dt_graph *g, const dti_node *n);
    /* For a row that computes a buffer's new value; NULL: other rows. */
    dti_update (*update)(const dti_node *n);
    /* For a statistic over the batch: how many values one sample contributes; one value in all has
     * no variance. NULL: other rows. */
    int64_t (*values)(const dti_node *n);
    /* For a row that keeps values of samples between runs: the number of samples. NULL: other
     * rows. */
    int64_t (*room)(const dti_node *n);
    /* For a row that pieces of the batch, or a tensor group, make together. NULL: other rows. */
    dti_meet (*meet)(const dti_node *n);
    /* How the row handles inputs that are split over tensor ranks, of which there is at least one;
     * false: it cannot. NULL: it never can. */
    bool (*part)(dti_parting *s);
} dti_op_family;

/* A family is written in its file as DTI_FAMILY(name, .shape = ..., ...); dti_<name>_emit is its
 * emit function. ./build.sh header finds the files with families in them (families.h). Its value in
 * float64, which tests compare with, is ref_<name> in tests/reference. */
#define DTI_FAMILY(family, ...) DTI_FAMILY_BY(family, family, __VA_ARGS__)
/* With the emit of another. */
#define DTI_FAMILY_BY(family, emits, ...)                                                          \
    DTI_CAT(DTI_FAMILY_ROW_, DTI_HERE)(family, emits, __VA_ARGS__)
#define DTI_FAMILY_ROW_1(family, emits, ...)                                                       \
    static const dti_op_family dti_family_##family = {.emit = dti_##emits##_emit, __VA_ARGS__}
#define DTI_FAMILY_ROW_0(family, emits, ...) static const dti_op_family dti_family_##family = {0}

#define DTI_HALF_OUT 0x8000u
#define DTI_HALF_ALL 0xffffu

typedef enum dti_samples {
    DTI_SAMPLES_NONE,
    DTI_SAMPLES_ROWWISE,
    DTI_SAMPLES_REDUCES,
    DTI_SAMPLES_COUPLES
} dti_samples;
typedef enum dti_precision {
    DTI_PRECISION_LOW,
    DTI_PRECISION_F32,
    DTI_PRECISION_WIDEST
} dti_precision;

typedef struct dti_op_info {
    const char *name;
    uint8_t inputs_min;
    bool inputs_more;
    uint8_t samples, precision;
    uint8_t selector;
    const dti_op_family *family;
} dti_op_info;

static const dti_op_info *dti_op_info_of(uint32_t op);

/* Appends a node of `op`. A nil input gives nil, and another wrong one an error with op and
 * shapes. */
static dt_tensor dti_append(dt_graph *graph, dti_op op, const dt_tensor *in, uint32_t count,
                            const dti_attr *attr);
static inline dt_tensor dti_append1(dti_op op, dt_tensor x, const dti_attr *attr) {
    return dti_append(x.graph, op, &x, 1, attr);
}
static inline dt_tensor dti_append2(dti_op op, dt_tensor a, dt_tensor b, const dti_attr *attr) {
    dt_tensor in[2] = {a, b};
    return dti_append(a.graph ? a.graph : b.graph, op, in, 2, attr);
}

/* ---- autocast.c: a row's inputs in the types of its precision, as in PyTorch's autocast. room:
 * for `count` tensors, for the casts. */
static const dt_tensor *dti_autocast_inputs(const dti_op_info *info, const dt_tensor *in,
                                            uint32_t count, dt_tensor *room);
/* x as f32, or in the type of LOW rows: one node for each value and type. */
static dt_tensor dti_autocast_to(dt_tensor x, dt_dtype to);
/* For such a cast its source, else the node itself. The reverse pass regards it as a part of each
 * of its readers. */
static uint32_t dti_autocast_source(const dt_graph *g, uint32_t id);

/* A function of the API that is made of rows: `make` reads inputs and other arguments from the
 * call. The first `needed` inputs must be given; none may be nil, and all must be of one graph. */
typedef struct dti_inputs {
    dt_tensor x[DTI_CALL_INPUTS];
} dti_inputs;
static dt_tensor dti_compose(const char *name, dti_make_fn *make, uint32_t needed, dti_inputs in,
                             dti_attr attr);

/* Whether a gradient may flow through the node: its row has a rule, and is not flat. */
static bool dti_has_gradient(const dti_node *n);
/* ---- collective.c */
/* The sum over a tensor group's ranks; and x, of which each rank makes something else. */
static dt_tensor dti_parted_summed(dt_tensor x);
static dt_tensor dti_parted_copied(dt_tensor x);
static dt_tensor dti_parted_most(dt_tensor x); /* the largest over tensor ranks; no gradient */
/* Along an axis of equal parts. SPREAD gathers all parts, which each rank uses differently; SHARE
 * gives the own part of the sum: each is the other's gradient. GATHER gathers all parts, which all
 * ranks use alike; OWN gives the own part of a replicated value: so are these. */
typedef enum dti_parted_way {
    DTI_PARTED_SPREAD,
    DTI_PARTED_SHARE,
    DTI_PARTED_GATHER,
    DTI_PARTED_OWN
} dti_parted_way;
static dt_tensor dti_parted_along(dti_parted_way way, dt_tensor x, int axis, int64_t tp_ranks,
                                  int64_t tp_rank);
/* Class numbers or indices as f32, [..., 1], checked against the range of all tensor ranks. */
static dt_tensor dti_parted_labels(dt_tensor labels, const dti_labels *of);

/* ---- parted.c */
/* Marks a parameter with a tensor rank's part of it, in whole units of elements along an axis.
 * rest: of each of two groups after the first; 0: one group. */
static void dti_param_part(dt_tensor w, int axis, int64_t unit, int64_t first, int64_t rest);
static dti_parted dti_parted_of(int axis, int64_t size); /* all of an axis as one group */
/* The mark; axis -1: not split. */
static dti_parted dti_param_parted(const dti_node *n, int64_t *unit);
static bool dti_parted_same(dti_parting *s); /* row by row of its one input */
/* Rows that each rank computes for its own part. */
static bool dti_parted_rows_alone(dti_parting *s);
/* Element by element of inputs that broadcast. Whole inputs have size 1 along the axis, or size 1
 * in all axes beside split rows. */
static bool dti_parted_broadcast(dti_parting *s);
/* attention.c: a node that the application's function made for a gradient in 16 bits, and that
 * nothing else reads. It does not belong to the model. */
static bool dti_is_kept_for_gradient(const dt_graph *g, uint32_t id);

/* norm.c: 1 while a program trains, else 0. */
static dt_tensor dti_train_mode(dt_graph *graph);
/* Each commit sets `buffer` to `value`, with the same number of elements, like a mean with momentum
 * 1. Readers of the result depend on the move. */
static dt_tensor dti_buffer_becomes(dt_tensor buffer, dt_tensor value);
/* reduce.c: the bit set of `axes` (all, when it has none); -1 after an error. */
static int dti_reduce_mask(dt_tensor x, dt_shape axes, const char *op);
/* leaf.c: where the backward pass of loss `index` starts: coefficient / weight. */
static dt_tensor dti_seed(dt_tensor term, uint32_t index);
/* unary.c: max(log x, low). */
static dt_tensor dti_log_floor(dt_tensor x, float low);
/* A leaf of `op`: FILL with a value, IOTA. */
static dt_tensor dti_constant(dt_graph *g, dti_op op, dt_shape shape, float value);

/* ---- moved.c */
/* One op back. False: the op computes, or it is a leaf. */
static bool dti_element_back(const dt_graph *g, dti_element *e);

#ifndef DT_NO_VULKAN       /* ---- known.c */
#define DTI_KNOWN_ROWS 300 /* workgroups */
/* The one launch, as number 0 of a list of trials. */
static bool dti_known_trial(uint32_t number, dti_trial *t);
/* Writes the launch's result: its operands' first words are x and y. */
static void dti_known_answer(const float *x, float *y);
#endif

/* ---- view.c */
static dti_attr dti_shape_attr(dt_shape s);            /* a shape as attributes */
static dt_shape dti_attr_shape(const dti_attr *attr);  /* and back */
static int dti_axis_of(dt_tensor x, int axis);         /* -1 is the last */
static dt_tensor dti_swap_last(dt_tensor x, int axis); /* x with the axis last, and back */

static const dt_shape dti_last_axis = {1, {-1}};

/* ---- build.c */
static bool dti_shape_of_input(dti_build *b); /* and its type: a row that moves elements */
static void dti_grad_of_result(dti_grad *g);  /* the input's is the result's */
static double dti_weighted_macs(const dt_graph *g, const dti_node *n);    /* of (x, weights) */
static double dti_weighted_dx_macs(const dt_graph *g, const dti_node *n); /* of (dy, weights) */
static double dti_weighted_dw_macs(const dt_graph *g, const dti_node *n); /* of (dy, x) */

/* ---- output.c: appends a row with several outputs. out: one tensor each; packed = all of them, as
 * one value. False after an error. */
static bool dti_append_outputs(dt_graph *g, dti_op op, const dt_tensor *in, uint32_t count,
                               const dti_attr *attr, dt_tensor *packed, dt_tensor *out);
/* Whether output k of `packed` is in its place, k after the node that follows. */
static bool dti_is_output(const dt_graph *g, uint32_t packed, uint32_t k);
/* Brings dy and dys into the form that the row's rule expects: dys for grad, dy for lower. */
static void dti_grad_outputs(dti_grad *g);

/* ---- name.c */
typedef struct dti_name {
    char text[288];
} dti_name;
static dti_name dti_tensor_name(dt_tensor x);  /* "'x'", "linear of 'fc1.weight'" */
static dti_name dti_tensor_print(dt_tensor x); /* and its shape */
/* The same for a tensor that is not of the graph `mine`, and whose own may be destroyed. */
static dti_name dti_tensor_elsewhere(const dt_graph *mine, dt_tensor x);

/* "there is no axis 2: ...", with the existing ones. */
static dti_name dti_axis_text(int64_t axis, int rank);

/* ---- conv.c: remedies to add to errors about images; "" if there is no hint. One whose last
 * dimension looks like its channels; channels: how many there should be, 0 = not known. */
static const char *dti_image_hint(dt_shape image, int64_t channels);
/* A hint for an image of `rank` dimensions, with samples or without, where `wanted` are needed. */
static const char *dti_image_rank_hint(int rank, int wanted);

/* "op (inputs' shapes): text": the form of every op's error. Returns false. */
static bool dti_build_fail(dti_build *b, const char *format, ...) DTI_PRINTF(2, 3);

/* The reverse pass: adds to the graph d(sum of y)/dx for each of `wrt`, from dy (of y's shape; for
 * a loss term: the seed). dx[i] is nil where x does not reach y. An op without a gradient on the
 * way is an error. */
static void dti_differentiate(dt_graph *graph, dt_tensor y, dt_tensor dy, const dt_tensor *wrt,
                              uint32_t count, dt_tensor *dx);
/* The same from several y at once: their gradients add up. */
static void dti_differentiate_all(dt_graph *graph, const dt_tensor *y, const dt_tensor *dy,
                                  uint32_t y_count, const dt_tensor *wrt, uint32_t count,
                                  dt_tensor *dx);
/* a + b where both are pads of ranges that touch along one axis: the gradients of slices of one
 * tensor, joined. False, and nothing is made, where they are not. */
static bool dti_pads_join(dt_tensor a, dt_tensor b, dt_tensor *sum);
/* Sums x over the axes that broadcasting repeated, down to the shape and sample axis of `like`. */
static dt_tensor dti_sum_to(dt_tensor x, dt_tensor like);
/* The type of x's gradient: of a 16-bit copy of a parameter, the parameter's. */
static dt_dtype dti_grad_dtype(dt_tensor x);
/* Repeats x to the shape and sample axis of `like`. */
static dt_tensor dti_expand_like(dt_tensor x, dt_tensor like);
static dt_tensor dti_expand_to(dt_tensor x, dt_shape shape, bool samples);
