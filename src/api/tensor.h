/* ---- Graphs and tensors
 *
 * A graph has no device, batch size or values. A dt_tensor is a handle to one of its nodes, valid
 * as long as the graph.
 *
 * Errors: a wrong op returns a nil tensor (id 0), and the graph keeps the first error (op, shapes,
 * label). An op on nil returns nil. dt_store_create and dt_program_create report the error;
 * dt_graph_clear_error continues after it. "Errors (nil)" below lists what an op rejects. */

typedef struct dt_graph dt_graph;

typedef struct dt_tensor {
    dt_graph *graph; /* the graph that has the tensor */
    uint32_t id;     /* number of its node; 0 = nil */
} dt_tensor;

/* The dimensions of a tensor, outermost first, without the sample axis. A dimension may be 0. */
typedef struct dt_shape {
    int32_t rank;             /* number of dimensions, 0 to DT_MAX_DIMS; -1 for nil */
    int64_t dim[DT_MAX_DIMS]; /* their sizes; those from `rank` on are 0 */
} dt_shape;

/* Makes a shape. dt_dims(28, 28) has rank 2; dt_dims() is a single value (per sample). */
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
/* Makes a shape from an array; dt_dims() expands to it. `counted` holds one unused value, then
 * `rank` dimensions. */
DT_API dt_shape dt_dims_of(int rank, const int64_t *counted);

/* Creates an empty graph. Ownership: the context's. Errors: MEMORY. */
DT_API dt_result dt_graph_create(dt_ctx *ctx, dt_graph **out);
/* Destroys a graph, its stores and their programs. */
DT_API void dt_graph_destroy(dt_graph *graph);

/* Returns the first error that an op recorded, or NULL; a constant text for a NULL graph. Valid
 * until dt_graph_clear_error or the graph's end. */
DT_API const char *dt_graph_error(const dt_graph *graph);
/* Clears the error, if there is one, so that the graph accepts new ops. Stores, programs and
 * trainers are not affected by an error.
 *
 * Nil tensors stay nil. Using one is an error again, even where {0} is allowed (a bias, the end of
 * a list). A dt_nn_ layer that failed left no parameter, so its name is free. */
DT_API void dt_graph_clear_error(dt_graph *graph);

/* Returns the shape of a tensor, without the sample axis; rank -1 for nil. */
DT_API dt_shape dt_tensor_shape(dt_tensor x);
/* Returns the type of a tensor; F32 for nil. */
DT_API dt_dtype dt_tensor_dtype(dt_tensor x);
/* Returns true if the tensor has a value for each sample; false if it has one for the whole batch,
 * and for nil. */
DT_API bool dt_tensor_has_samples(dt_tensor x);

/* Gives a tensor a name, for error texts, and returns it. Of a metric or loss term, bars, logs,
 * histories and dt_watch.metric use it too.
 * Errors (nil): an input or a parameter, which already has a name; a label that is empty, not
 * UTF-8, or has control characters. */
DT_API dt_tensor dt_label(dt_tensor x, const char *label);
/* Marks a tensor to be recomputed, and returns it: PyTorch's torch.utils.checkpoint. Programs
 * created afterwards compute it again in the backward pass, from the nearest tensors that are kept.
 * Results have the same bits. It costs launches and saves memory (dt_program_info).
 *
 * Leave some tensors unmarked, such as the input of every fourth block: marking all saves nothing.
 * A view (dt_reshape, dt_slice ...) is marked together with the tensor that it views. Inputs,
 * parameters, outputs, losses, batch statistics and sums over samples are always kept.
 * dt_program_desc.memory_bytes chooses tensors for you. */
DT_API dt_tensor dt_recompute(dt_tensor x);
/* Marks where a pipeline stage (dt_trainer_desc.parallel.pipeline) begins, and returns x. Tensors
 * made after x, up to the next mark, belong to the stage. x is sent to its device. Inputs,
 * constants and views of them are in each stage that uses them.
 * stage: 1 to 1024, in ascending order; stage 0 begins with the graph. */
DT_API dt_tensor dt_stage(dt_tensor x, int stage);

/* ---- Inputs, parameters, constants. Names are copied. Errors (nil): no name; a shape with more
 * than DT_MAX_DIMS dimensions, with a negative one, or with 2^31 elements or more. */

/* Creates an input that the host writes before a step: a value of `shape` for each sample.
 * Errors (nil): also a name that another input has. */
DT_API dt_tensor dt_input(dt_graph *graph, const char *name, dt_dtype dtype, dt_shape shape);
/* Creates an input with one value for the whole batch: class weights, a mask, a temperature. */
DT_API dt_tensor dt_input_shared(dt_graph *graph, const char *name, dt_dtype dtype, dt_shape shape);

/* How a parameter is filled when its store is created. fan_in is dimension 1 and fan_out dimension
 * 0, each times the sizes of dimensions 2 and up. For a vector both are its length. The random
 * numbers are not PyTorch's. */
typedef enum dt_init_kind {
    DT_INIT_DEFAULT,          /* zeros */
    DT_INIT_CONSTANT,         /* a */
    DT_INIT_UNIFORM,          /* in [a, b) */
    DT_INIT_NORMAL,           /* mean a, standard deviation b */
    DT_INIT_KAIMING_UNIFORM,  /* in +-sqrt(6 / ((1 + a*a) * fan_in)) */
    DT_INIT_KAIMING_NORMAL,   /* mean 0, deviation sqrt(2 / ((1 + a*a) * fan_in)) */
    DT_INIT_XAVIER_UNIFORM,   /* in +-a*sqrt(6 / (fan_in + fan_out)); a: 0 = 1 */
    DT_INIT_XAVIER_NORMAL,    /* mean 0, deviation a*sqrt(2 / (fan_in + fan_out)); a: 0 = 1 */
    DT_INIT_TRUNCATED_NORMAL, /* mean a, deviation b before truncation to a +- 2 b; b: 0 = 1 */
    /* Of [rows, ...]: orthonormal rows (or columns, if there are fewer), scaled by a; 0 = 1. */
    DT_INIT_ORTHOGONAL,
    /* Of [rows, cols]: mean 0, deviation b (0 = 0.01). In each column the fraction a, in [0, 1], is
     * set to 0. */
    DT_INIT_SPARSE,
    /* a (0 = 1) times the identity, at the middle of a kernel: nn.init.eye_, nn.init.dirac_. */
    DT_INIT_IDENTITY
} dt_init_kind;

/* Initial values of a parameter; {0}: zeros. a and b are finite. */
typedef struct dt_init {
    dt_init_kind kind; /* 0 = zeros */
    float a, b;        /* as the kind says */
} dt_init;

/* Creates a trained f32 parameter, without samples. To share it, use its tensor twice.
 * Errors (nil): also a name that is taken or that files cannot hold (not UTF-8, "__metadata__",
 * starting with "dtrain."); a graph that already has a store. */
DT_API dt_tensor dt_param(dt_graph *graph, const char *name, dt_shape shape, dt_init init);
/* Excludes a parameter from training (no gradient, no decay) in every program created afterwards.
 * Returns it. Errors (nil): not a parameter. */
DT_API dt_tensor dt_freeze(dt_tensor param);
/* Marks a parameter for tensor parallelism (dt_parallel_desc.tensor), and returns it. Each tensor
 * rank holds an equal slice of `axis` (negative: from the end). Layers mark their own parameters.
 * Errors (nil): not a parameter, or no such axis. */
DT_API dt_tensor dt_tensor_parallel(dt_tensor param, int axis);
/* Opens a scope: names of parameters and buffers made in it begin with `name` and a dot, as
 * "h.0.fc.weight". Scopes nest at most 32 deep, with at most 255 characters together.
 * Errors, kept by the graph: no name, too deep, too long. */
DT_API void dt_scope_push(dt_graph *graph, const char *name);
/* Closes the newest scope. Errors, kept by the graph: no scope is open. */
DT_API void dt_scope_pop(dt_graph *graph);
/* Creates a constant, without samples. It is in no file. data: row-major, copied. Class numbers and
 * indices are checked when a program is created. */
DT_API dt_tensor dt_constant(dt_graph *graph, dt_dtype dtype, dt_shape shape, const void *data);
/* Creates a tensor of elements `value`, without samples. */
DT_API dt_tensor dt_fill(dt_graph *graph, dt_shape shape, float value);
/* Creates 0, 1, 2, ... in row-major order, for positions: f32, exact up to 2^24; without
 * samples. */
DT_API dt_tensor dt_iota(dt_graph *graph, dt_shape shape);

/* ---- Elementwise ops. Dimensions broadcast as in NumPy; a tensor without samples is used for
 * every sample. Formulas and gradients are PyTorch's: see docs/ops.md. The result has the inputs'
 * type. bf16 and f16 are computed in f32 and rounded once. Errors (nil): an i32 input or inputs of
 * two types (dt_cast them), shapes that do not broadcast, tensors of two graphs. */
DT_API dt_tensor dt_neg(dt_tensor x);         /* -x */
DT_API dt_tensor dt_abs(dt_tensor x);         /* |x|; gradient 0 at 0 */
DT_API dt_tensor dt_sign(dt_tensor x);        /* -1, 0 or 1; no gradient */
DT_API dt_tensor dt_exp(dt_tensor x);         /* e^x */
DT_API dt_tensor dt_log(dt_tensor x);         /* the natural logarithm */
DT_API dt_tensor dt_log1p(dt_tensor x);       /* log(1 + x), exact near 0 */
DT_API dt_tensor dt_expm1(dt_tensor x);       /* e^x - 1, exact near 0 */
DT_API dt_tensor dt_sqrt(dt_tensor x);        /* the square root */
DT_API dt_tensor dt_rsqrt(dt_tensor x);       /* 1 / sqrt(x) */
DT_API dt_tensor dt_reciprocal(dt_tensor x);  /* 1 / x */
DT_API dt_tensor dt_square(dt_tensor x);      /* x * x */
DT_API dt_tensor dt_sin(dt_tensor x);         /* sine, of radians of any size */
DT_API dt_tensor dt_cos(dt_tensor x);         /* cosine, of radians of any size */
DT_API dt_tensor dt_atan(dt_tensor x);        /* arc tangent, in radians */
DT_API dt_tensor dt_tanh(dt_tensor x);        /* hyperbolic tangent */
DT_API dt_tensor dt_sigmoid(dt_tensor x);     /* 1 / (1 + e^-x) */
DT_API dt_tensor dt_relu(dt_tensor x);        /* max(x, 0); gradient 0 at 0 */
DT_API dt_tensor dt_gelu(dt_tensor x);        /* x * (1 + erf(x / sqrt 2)) / 2 */
DT_API dt_tensor dt_gelu_tanh(dt_tensor x);   /* PyTorch's approximate='tanh' */
DT_API dt_tensor dt_silu(dt_tensor x);        /* x * sigmoid(x) */
DT_API dt_tensor dt_softplus(dt_tensor x);    /* log(1 + e^x), which is x above 20 */
DT_API dt_tensor dt_log_sigmoid(dt_tensor x); /* log(1 / (1 + e^-x)), without overflow */
DT_API dt_tensor dt_erf(dt_tensor x);         /* the error function */
DT_API dt_tensor dt_erfinv(dt_tensor x);      /* inverse of erf; NaN outside of [-1, 1] */
DT_API dt_tensor dt_floor(dt_tensor x);       /* the largest integer <= x; no gradient */
DT_API dt_tensor dt_ceil(dt_tensor x);        /* the smallest integer >= x; no gradient */
DT_API dt_tensor dt_round(dt_tensor x);       /* the nearest, halves to even; no gradient */
DT_API dt_tensor dt_selu(dt_tensor x);        /* 1.0507 (x > 0 ? x : 1.67326 (e^x - 1)) */
DT_API dt_tensor dt_mish(dt_tensor x);        /* x * tanh(softplus(x)) */
DT_API dt_tensor dt_softsign(dt_tensor x);    /* x / (1 + |x|) */
DT_API dt_tensor dt_hardsigmoid(dt_tensor x); /* min(max(x + 3, 0), 6) / 6 */
DT_API dt_tensor dt_hardswish(dt_tensor x);   /* x * hardsigmoid(x) */
DT_API dt_tensor dt_heaviside(dt_tensor x);   /* x > 0 ? 1 : 0; no gradient */
DT_API dt_tensor dt_leaky_relu(dt_tensor x, float slope);           /* PyTorch's default is 0.01 */
DT_API dt_tensor dt_elu(dt_tensor x, float alpha);                  /* PyTorch's default is 1 */
DT_API dt_tensor dt_affine(dt_tensor x, float scale, float offset); /* scale * x + offset */
/* Limits x to [low, high]; gradient 0 at low and high themselves. PyTorch's clamp, hardtanh, relu6.
 * Errors (nil): also low > high, NaN. */
DT_API dt_tensor dt_clamp(dt_tensor x, float low, float high);

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
/* b == 0 ? 0 : a. b gets no gradient. An element that is not selected contributes nothing to value
 * or gradient, even if it is NaN. */
DT_API dt_tensor dt_mask(dt_tensor a, dt_tensor b);
/* b == 0 ? a : 0. Else as dt_mask. */
DT_API dt_tensor dt_mask_inv(dt_tensor a, dt_tensor b);

/* Converts to f32, i32, bf16 or f16. To i32 it truncates toward zero and saturates, without a
 * gradient. To the others it rounds to nearest, ties to even, and the gradient is cast back.
 *
 * bf16 and f16 halve memory. Where a device has no kernel for them, it computes on f32 copies. For
 * mixed precision of a whole program use dt_program_desc.precision. */
DT_API dt_tensor dt_cast(dt_tensor x, dt_dtype dtype);
/* Copies x into contiguous memory of its own. */
DT_API dt_tensor dt_copy(dt_tensor x);
/* Returns the same values, through which no gradient flows back. */
DT_API dt_tensor dt_detach(dt_tensor x);

/* ---- Shapes: views where possible. */

/* Gives the same elements another shape. One dimension may be -1: it is inferred. */
DT_API dt_tensor dt_reshape(dt_tensor x, dt_shape shape);
/* Joins all dimensions into one; the sample axis stays. */
DT_API dt_tensor dt_flatten(dt_tensor x);
/* Reorders dimensions: dimension i of the result is dimension axes.dim[i] of x. dt_permute(x,
 * dt_dims(1, 0)) is the transpose. */
DT_API dt_tensor dt_permute(dt_tensor x, dt_shape axes);
/* Returns x[..., start : start + length, ...] along `axis`; a negative axis counts from the end. */
DT_API dt_tensor dt_slice(dt_tensor x, int axis, int64_t start, int64_t length);
/* Concatenates `count` tensors along `axis` (negative: from the end). Their other dimensions must
 * be equal.
 * Errors (nil): also a count below 1, which is recorded where the nil is used. */
DT_API dt_tensor dt_concat(const dt_tensor *x, int count, int axis);
/* Repeats dimensions of size 1 (and new leading ones) up to `shape`, without a copy. */
DT_API dt_tensor dt_expand(dt_tensor x, dt_shape shape);

/* ---- Reductions over dimensions, never over samples. axes: a list of dimensions; dt_dims() means
 * all. keep: they stay in the shape, with size 1. x: f32. docs/ops.md says how exact sums are. */
DT_API dt_tensor dt_sum(dt_tensor x, dt_shape axes, bool keep);
DT_API dt_tensor dt_mean(dt_tensor x, dt_shape axes, bool keep);
DT_API dt_tensor dt_max(dt_tensor x, dt_shape axes, bool keep); /* gradient: equal among ties */
DT_API dt_tensor dt_min(dt_tensor x, dt_shape axes, bool keep); /* gradient: equal among ties */

/* Sums over samples. x: [...] with samples; result [...] without. Errors (nil): x has no
 * samples. */
DT_API dt_tensor dt_sum_samples(dt_tensor x);
/* Computes e^x / sum e^x along one axis (negative: from the end), stably. */
DT_API dt_tensor dt_softmax(dt_tensor x, int axis);
/* Computes the logarithm of dt_softmax, stably. */
DT_API dt_tensor dt_log_softmax(dt_tensor x, int axis);

/* ---- Products */

/* Multiplies matrices, the last two dimensions. a: [..., M, K]; b: [..., K, N]; result [..., M, N].
 * The dimensions before them broadcast.
 * Errors (nil): two different K, fewer than 2 dimensions, i32. */
DT_API dt_tensor dt_matmul(dt_tensor a, dt_tensor b);
/* Multiplies as dt_matmul, with a: [..., K, M] if transpose_a, and b: [..., N, K] if
 * transpose_b. */
DT_API dt_tensor dt_matmul_transposed(dt_tensor a, dt_tensor b, bool transpose_a, bool transpose_b);
/* Computes x W^T + b: PyTorch's F.linear. x: [..., in]; w: [out, in]; b: [out], or {0} for none;
 * result [..., out]. */
DT_API dt_tensor dt_linear(dt_tensor x, dt_tensor w, dt_tensor b);
/* Looks up rows of a table: PyTorch's F.embedding. See also dt_gather and dt_index_select.
 * table: [rows, ...] f32, without samples; index: [I...] i32; result [I..., ...].
 * The gradient is summed in a fixed order. Indices that the host writes are checked then. An index
 * that the graph computes gives a row of NaN if it is out of range. */
DT_API dt_tensor dt_embedding(dt_tensor table, dt_tensor index);

/* Returns 1 at the index, else 0. index: [...] i32; result [..., classes] f32. An index outside
 * [0, classes) gives a row of zeros. */
DT_API dt_tensor dt_one_hot(dt_tensor index, int64_t classes);

/* ---- Random */

/* Keeps each value with probability 1 - p, scaled by 1 / (1 - p), and sets the others to 0. In
 * programs that do not train it is the identity. The mask depends as dt_random_uniform's numbers.
 * Errors (nil): p outside [0, 1]. */
DT_API dt_tensor dt_dropout(dt_tensor x, float p);

/* Draws uniform random numbers in (0, 1), f32: torch.rand_like. A number is (k + 0.5) / 2^23, with
 * k from 0 to 2^23 - 1. They are random in every program, and the same on any device. They depend
 * only on seed and step (dt_step_desc) and on the element's position in the global batch.
 * like: gives the shape; with samples, each sample has its own numbers. It gets no gradient. */
DT_API dt_tensor dt_random_uniform(dt_tensor like);
/* Draws normal random numbers of mean 0 and deviation 1, f32: torch.randn_like. They are sqrt 2
 * erfinv(2 u - 1) for a uniform u, so within +-5.3. Another kind of device may round otherwise.
 * Else as dt_random_uniform. */
DT_API dt_tensor dt_random_normal(dt_tensor like);

/* ---- Losses and metrics
 *
 * These are terms. A term is a pair (sum, weight). Its value is sum / weight over the whole global
 * batch, however that is divided. The only op that accepts a term is dt_gradient, which
 * differentiates its sum. Losses of each element (dt_huber and others, below) are tensors:
 * dt_mean_loss or dt_weighted_loss makes a term of them. */

/* {0}: PyTorch's defaults. */
typedef struct dt_cross_entropy_desc {
    int32_t ignore_index;    /* targets with this value do not count; 0 = -100, DT_ZERO = 0 */
    float label_smoothing;   /* in [0, 1] */
    dt_tensor class_weights; /* [C] f32, without samples; {0}: all 1 */
} dt_cross_entropy_desc;

/* Computes softmax cross-entropy over the last dimension: PyTorch's CrossEntropyLoss. See also
 * dt_soft_cross_entropy and dt_cross_entropy_each.
 * logits: [..., C] f32; target: [...] i32 class numbers.
 * The term's weight is the sum of the class weights of targets that are not ignored. */
DT_API dt_tensor dt_cross_entropy(dt_tensor logits, dt_tensor target,
                                  const dt_cross_entropy_desc *desc);
/* Computes cross-entropy of log-probabilities, such as dt_log_softmax returns: PyTorch's NLLLoss.
 * Else as dt_cross_entropy. Errors (nil): also a label_smoothing. */
DT_API dt_tensor dt_nll(dt_tensor log_p, dt_tensor target, const dt_cross_entropy_desc *desc);
/* Computes the mean squared error over all elements. y and t have the same shape, and both or
 * neither have samples. The term's weight is the number of elements.
 * Errors (nil): also if only one of them has samples. Then use dt_mean_loss(dt_square(dt_sub(y,
 * t))). */
DT_API dt_tensor dt_mse(dt_tensor y, dt_tensor t);
/* Makes a loss of your own: the mean of all elements of x. */
DT_API dt_tensor dt_mean_loss(dt_tensor x);
/* Makes a loss of your own: the weighted mean, sum of w * x / sum of w, both over the whole global
 * batch. PyTorch's weighted losses divide by the number of elements: dt_mean_loss(dt_mul(x, w)).
 * w: f32, which broadcasts with x; one weight for each sample has shape []. It gets no gradient.
 * With a trainer or dt_program_add_loss_weights, w must be an input or a view of one. */
DT_API dt_tensor dt_weighted_loss(dt_tensor x, dt_tensor w);
/* Computes a metric, the fraction of rows whose largest logit is the target's. Shapes as for
 * dt_cross_entropy. No gradient. */
DT_API dt_tensor dt_accuracy(dt_tensor logits, dt_tensor target);

/* ---- Gradients in the graph */

/* Returns d(sum of y) / dx as a tensor of x's shape, which can be differentiated again.
 * y: any f32 tensor, or a term (its sum, not its mean).
 * x: any f32 tensor that y is computed from.
 *
 * An intermediate x counts as an independent variable. With h = relu(x) and y = h * x, d/dh is x.
 * The sum includes the samples: each has its own gradient in x, if y does not mix samples.
 *
 * Errors (nil): y does not depend on x differentiably, or an op between them has no gradient. */
DT_API dt_tensor dt_gradient(dt_tensor y, dt_tensor x);
