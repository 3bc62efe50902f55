/* ---- Graphs and tensors -------------------------------------------------------------------------
 *
 * A graph is symbolic: it knows no device, no batch size and no values. A dt_tensor is a small
 * handle to one of its nodes, valid as long as the graph. Ops never return codes: a wrong op gives
 * a nil tensor (id 0) and the graph keeps the first error (op, shapes, label); an op on nil gives
 * nil; dt_store_create and dt_program_create report it. So a model is built without a check per
 * line; dt_graph_clear_error goes on after one. Threads: of all functions in this part, the
 * context's. */

typedef struct dt_graph dt_graph;

typedef struct dt_tensor {
    dt_graph *graph;
    uint32_t id; /* 0 = nil */
} dt_tensor;

/* The dimensions of a tensor, outermost first, without the sample axis. 0 is a legal size. */
typedef struct dt_shape {
    int32_t rank;
    int64_t dim[DT_MAX_DIMS];
} dt_shape;

/* dt_dims(28, 28) is a shape of rank 2, dt_dims() one of rank 0: one value (for each sample). */
#ifdef __cplusplus
static inline dt_shape dt_dims(int64_t a = INT64_MIN, int64_t b = INT64_MIN, int64_t c = INT64_MIN,
                               int64_t d = INT64_MIN, int64_t e = INT64_MIN) {
    dt_shape s = {0, {a, b, c, d, e}};
    while (s.rank < DT_MAX_DIMS && s.dim[s.rank] != INT64_MIN) /* -1 is the last axis */
        s.rank++;
    for (int i = s.rank; i < DT_MAX_DIMS; i++)
        s.dim[i] = 0;
    return s;
}
#else
#define dt_dims(...)                                                                               \
    dt_dims_of((int)(sizeof((const int64_t[]){0, __VA_ARGS__}) / sizeof(int64_t)) - 1,             \
               (const int64_t[]){0, __VA_ARGS__})
#endif
/* `counted` holds one unused value, then `rank` dimensions: what dt_dims() expands to. */
DT_API dt_shape dt_dims_of(int rank, const int64_t *counted);

/* Makes an empty graph. Ownership: the context's; dt_graph_destroy ends it earlier. Errors, with
 * *out NULL: MEMORY. */
DT_API dt_result dt_graph_create(dt_ctx *ctx, dt_graph **out);
/* Ends a graph, its stores and their programs. NULL is fine. */
DT_API void dt_graph_destroy(dt_graph *graph);

/* The first error that an op recorded, or NULL. Lives until dt_graph_clear_error, or the graph's
 * end. For NULL a constant that says so. */
DT_API const char *dt_graph_error(const dt_graph *graph);
/* Goes on without the op that failed: the graph takes new ops again, also beside a store, whose
 * values, programs and trainer never knew of it. What the op gave, and what ops gave on that since,
 * stays nil, and to use it is an error again, also where {0} would be none (a bias, the end of a
 * list): make those tensors again. A dt_nn_ layer that failed has left no parameter, so its
 * name is free. NULL, or a graph without an error, is fine. */
DT_API void dt_graph_clear_error(dt_graph *graph);

/* The shape and type of a tensor; a rank of -1 and F32 for nil. */
DT_API dt_shape dt_tensor_shape(dt_tensor x);
DT_API dt_dtype dt_tensor_dtype(dt_tensor x);
/* Whether it has a value for each sample (the implied first axis), or one for the whole batch.
 * False for nil. */
DT_API bool dt_tensor_has_samples(dt_tensor x);

/* Names a tensor for messages; returns it. The text is copied. Errors (nil): an input or a
 * parameter, which has its name already. */
DT_API dt_tensor dt_label(dt_tensor x, const char *label);

/* ---- Leaves. Errors (nil): no name, a shape of more than DT_MAX_DIMS dimensions, with a negative
 * one, or of 2^31 elements and more. Names are copied. */

/* What the host writes before each step: one value of `shape` for each sample. Errors (nil): also a
 * name that another input has. */
DT_API dt_tensor dt_input(dt_graph *graph, const char *name, dt_dtype dtype, dt_shape shape);
/* The same with one value for the whole batch: class weights, a mask, a temperature. */
DT_API dt_tensor dt_input_shared(dt_graph *graph, const char *name, dt_dtype dtype, dt_shape shape);

/* How a parameter is filled when its store is created. fan_in is dimension 1 and fan_out dimension
 * 0, each times the rest of the weight, as PyTorch counts them; of a vector both are its length.
 * The numbers come from our own generator, not PyTorch's. */
typedef enum dt_init_kind {
    DT_INIT_DEFAULT,         /* zeros */
    DT_INIT_CONSTANT,        /* a */
    DT_INIT_UNIFORM,         /* in [a, b) */
    DT_INIT_NORMAL,          /* mean a, standard deviation b */
    DT_INIT_KAIMING_UNIFORM, /* in +-sqrt(6 / ((1 + a*a) * fan_in)) */
    DT_INIT_KAIMING_NORMAL,  /* mean 0, deviation sqrt(2 / ((1 + a*a) * fan_in)) */
    DT_INIT_XAVIER_UNIFORM,  /* in +-a*sqrt(6 / (fan_in + fan_out)); a = 0 means 1 */
    DT_INIT_XAVIER_NORMAL    /* mean 0, deviation a*sqrt(2 / (fan_in + fan_out)); a = 0 means 1 */
} dt_init_kind;

/* {0}: zeros. a and b are finite. */
typedef struct dt_init {
    dt_init_kind kind;
    float a, b;
} dt_init;

/* A named, trained f32 value without samples. A name is used once in a graph; to share a parameter,
 * use its tensor twice. Errors (nil): also a name taken or that files cannot have (not UTF-8,
 * "__metadata__", "dtrain." at its begin), or a graph that has a store already. */
DT_API dt_tensor dt_param(dt_graph *graph, const char *name, dt_shape shape, dt_init init);
/* Keeps a parameter as it is in every program made after it: no gradient, no decay. Returns it.
 * Errors (nil): not a parameter. */
DT_API dt_tensor dt_freeze(dt_tensor param);
/* A constant; one value for the whole batch. */
DT_API dt_tensor dt_fill(dt_graph *graph, dt_shape shape, float value);

/* ---- Elementwise, with NumPy's broadcasting over the dimensions; a tensor without samples is used
 * for every sample. The formulas and gradients are PyTorch's; docs/ops.md lists them. Errors (nil):
 * an i32 input (dt_cast it), shapes that do not broadcast, tensors of two graphs. */
DT_API dt_tensor dt_neg(dt_tensor x);        /* -x */
DT_API dt_tensor dt_abs(dt_tensor x);        /* |x|; gradient 0 at 0 */
DT_API dt_tensor dt_sign(dt_tensor x);       /* -1, 0 or 1; no gradient */
DT_API dt_tensor dt_exp(dt_tensor x);        /* e^x */
DT_API dt_tensor dt_log(dt_tensor x);        /* the natural logarithm */
DT_API dt_tensor dt_log1p(dt_tensor x);      /* log(1 + x), exact near 0 */
DT_API dt_tensor dt_expm1(dt_tensor x);      /* e^x - 1, exact near 0 */
DT_API dt_tensor dt_sqrt(dt_tensor x);       /* the square root */
DT_API dt_tensor dt_rsqrt(dt_tensor x);      /* 1 / sqrt(x) */
DT_API dt_tensor dt_reciprocal(dt_tensor x); /* 1 / x */
DT_API dt_tensor dt_square(dt_tensor x);     /* x * x */
DT_API dt_tensor dt_sin(dt_tensor x);        /* sine, of radians */
DT_API dt_tensor dt_cos(dt_tensor x);        /* cosine, of radians */
DT_API dt_tensor dt_tanh(dt_tensor x);       /* hyperbolic tangent */
DT_API dt_tensor dt_sigmoid(dt_tensor x);    /* 1 / (1 + e^-x) */
DT_API dt_tensor dt_relu(dt_tensor x);       /* max(x, 0); gradient 0 at 0 */
DT_API dt_tensor dt_gelu(dt_tensor x);       /* x * (1 + erf(x / sqrt 2)) / 2 */
DT_API dt_tensor dt_gelu_tanh(dt_tensor x);  /* PyTorch's approximate='tanh' */
DT_API dt_tensor dt_silu(dt_tensor x);       /* x * sigmoid(x) */
DT_API dt_tensor dt_softplus(dt_tensor x);   /* log(1 + e^x), which is x above 20 */
DT_API dt_tensor dt_erf(dt_tensor x);        /* the error function */
DT_API dt_tensor dt_floor(dt_tensor x);      /* the largest integer <= x; no gradient */
DT_API dt_tensor dt_step(dt_tensor x);       /* x > 0 ? 1 : 0; no gradient */
DT_API dt_tensor dt_leaky_relu(dt_tensor x, float slope);           /* PyTorch's default is 0.01 */
DT_API dt_tensor dt_elu(dt_tensor x, float alpha);                  /* PyTorch's default is 1 */
DT_API dt_tensor dt_affine(dt_tensor x, float scale, float offset); /* scale * x + offset */

/* Of two tensors. */
DT_API dt_tensor dt_add(dt_tensor a, dt_tensor b);     /* a + b */
DT_API dt_tensor dt_sub(dt_tensor a, dt_tensor b);     /* a - b */
DT_API dt_tensor dt_mul(dt_tensor a, dt_tensor b);     /* a * b */
DT_API dt_tensor dt_div(dt_tensor a, dt_tensor b);     /* a / b */
DT_API dt_tensor dt_maximum(dt_tensor a, dt_tensor b); /* NaN where either is */
DT_API dt_tensor dt_minimum(dt_tensor a, dt_tensor b); /* NaN where either is */
DT_API dt_tensor dt_pow(dt_tensor a, dt_tensor b);     /* a^b */
DT_API dt_tensor dt_eq(dt_tensor a, dt_tensor b);      /* a == b ? 1 : 0; no gradient */
DT_API dt_tensor dt_lt(dt_tensor a, dt_tensor b);      /* a < b ? 1 : 0; likewise */
DT_API dt_tensor dt_le(dt_tensor a, dt_tensor b);      /* a <= b ? 1 : 0 */
DT_API dt_tensor dt_gt(dt_tensor a, dt_tensor b);      /* a > b ? 1 : 0 */
DT_API dt_tensor dt_ge(dt_tensor a, dt_tensor b);      /* a >= b ? 1 : 0 */

/* f32 to i32 truncates toward zero; i32 to f32 rounds to nearest. No gradient. */
DT_API dt_tensor dt_cast(dt_tensor x, dt_dtype dtype);
/* The value, contiguous in memory of its own. */
DT_API dt_tensor dt_copy(dt_tensor x);
/* The value without a gradient. */
DT_API dt_tensor dt_detach(dt_tensor x);

/* ---- Shape: views where possible, never a copy that is not needed */

/* The same elements in order in another shape. One dimension may be -1: it is worked out. Errors
 * (nil): another number of elements. */
DT_API dt_tensor dt_reshape(dt_tensor x, dt_shape shape);
/* All dimensions in one: the sample axis stays. */
DT_API dt_tensor dt_flatten(dt_tensor x);
/* Dimension i of the result is dimension axes.dim[i] of x: dt_permute(x, dt_dims(1, 0)). */
DT_API dt_tensor dt_permute(dt_tensor x, dt_shape axes);
/* x[..., start : start + length, ...] along `axis`; a negative axis counts from the end. */
DT_API dt_tensor dt_slice(dt_tensor x, int axis, int64_t start, int64_t length);
/* `count` tensors, one after the other along `axis` (negative: from the end). Their other
 * dimensions are equal. Errors (nil): also a count below 1, which no graph is told of: what uses
 * the nil tells. */
DT_API dt_tensor dt_concat(const dt_tensor *x, int count, int axis);
/* Repeats dimensions of size 1 (and new leading ones) up to `shape`, without a copy. */
DT_API dt_tensor dt_expand(dt_tensor x, dt_shape shape);

/* ---- Reductions over dimensions (never over samples): `axes` lists them, dt_dims() means all.
 * keep leaves them in the shape with size 1. x: f32. */
DT_API dt_tensor dt_sum(dt_tensor x, dt_shape axes, bool keep);
DT_API dt_tensor dt_mean(dt_tensor x, dt_shape axes, bool keep);
DT_API dt_tensor dt_max(dt_tensor x, dt_shape axes, bool keep); /* gradient: evenly among ties */
DT_API dt_tensor dt_min(dt_tensor x, dt_shape axes, bool keep);
/* The sum over the samples: x: [...] of each sample; result one [...]. Errors (nil): no samples. */
DT_API dt_tensor dt_sum_samples(dt_tensor x);
/* e^x / sum e^x along one axis (negative: from the end), shifted by the maximum; its logarithm. */
DT_API dt_tensor dt_softmax(dt_tensor x, int axis);
DT_API dt_tensor dt_log_softmax(dt_tensor x, int axis);

/* ---- Products */

/* Matrix product of the last two dimensions, a: [..., M, K], b: [..., K, N] (or transposed as
 * said), the dimensions before them broadcast; result [..., M, N]. Errors (nil): two different K,
 * fewer than 2 dimensions, i32. */
DT_API dt_tensor dt_matmul(dt_tensor a, dt_tensor b);
DT_API dt_tensor dt_matmul_transposed(dt_tensor a, dt_tensor b, bool transpose_a, bool transpose_b);
/* x W^T + b. x: [..., in], w: [out, in], b: [out] or {0} for none; result [..., out]. PyTorch's
 * F.linear. */
DT_API dt_tensor dt_linear(dt_tensor x, dt_tensor w, dt_tensor b);
/* Rows of a table by number. table: [rows, ...] f32, without samples; index: [I...] i32; result
 * [I..., ...]. The gradient sums in a fixed order. An index that the host writes is checked there;
 * one computed in the graph gives a row of NaN where it is out of range. PyTorch's F.embedding. */
DT_API dt_tensor dt_gather(dt_tensor table, dt_tensor index);

/* ---- Random */

/* In training keeps a value with probability 1 - p and scales it by 1 / (1 - p); else identity.
 * The mask depends on seed, step (dt_step_desc) and the element's place in the global batch alone.
 * Errors (nil): p outside [0, 1). */
DT_API dt_tensor dt_dropout(dt_tensor x, float p);

/* ---- Losses. A loss is a term (sum, weight): its value is sum / weight over the whole global
 * batch, however that is cut. Terms go to dt_program_desc, with coefficients; they take part in no
 * other op than dt_gradient (which differentiates the sum). */

/* {0}: PyTorch's defaults. */
typedef struct dt_cross_entropy_desc {
    int32_t ignore_index;    /* targets with this value do not count; 0 = -100, DT_ZERO = 0 */
    float label_smoothing;   /* in [0, 1] */
    dt_tensor class_weights; /* [C] f32, one for the whole batch, or {0}: all 1 */
} dt_cross_entropy_desc;

/* Softmax cross-entropy over the last dimension. logits: [..., C] f32; target: [...] i32 class
 * numbers. The weight is the sum of the class weights of targets that are not ignored. PyTorch's
 * CrossEntropyLoss, reduction 'mean'. desc may be NULL. */
DT_API dt_tensor dt_cross_entropy(dt_tensor logits, dt_tensor target,
                                  const dt_cross_entropy_desc *desc);
/* Mean squared error over all elements. y and t of one shape, both with samples or both without;
 * the weight is the number of elements. Errors (nil): also samples on one side alone, which is
 * mostly a shared input meant to be an input; where it is meant, dt_mean_loss(dt_square(dt_sub(y,
 * t))) repeats the other for each sample. */
DT_API dt_tensor dt_mse(dt_tensor y, dt_tensor t);
/* The mean of all elements of x: your own loss, from ops. */
DT_API dt_tensor dt_mean_loss(dt_tensor x);
/* A metric term: the share of rows whose largest logit is the target's. Shapes as cross-entropy's.
 * No gradient. */
DT_API dt_tensor dt_accuracy(dt_tensor logits, dt_tensor target);

/* ---- Gradients in the graph */

/* d(sum of y) / d(x) as a tensor of x's shape, which may be differentiated again. y: any f32 tensor
 * or loss term (its sum, not its mean). x: any f32 tensor that y is made from: an input, a
 * parameter, or what lies between, taken as free: what counts are y's uses of this very tensor.
 * With h = relu(x) and y = h * x, d/dh is x, and d/dx goes both ways; a second relu(x) would be
 * another tensor than h. The sum is over samples too: each has its own gradient in x where y mixes
 * no samples. Errors (nil): y does not depend on x in a differentiable way, or an op between them
 * has no gradient. */
DT_API dt_tensor dt_gradient(dt_tensor y, dt_tensor x);
