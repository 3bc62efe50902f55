/* ---- Graphs and tensors -------------------------------------------------------------------------
 *
 * A graph is symbolic: it knows no device, no batch size and no values. A dt_tensor is a small
 * handle to one of its nodes, valid as long as the graph. Ops do not return error codes: a wrong op
 * gives a nil tensor (id 0), the graph keeps the first error (op, shapes, label), an op on nil
 * gives nil again, and dt_store_create and dt_program_create report the error. So building a model
 * needs no check per line. dt_graph_clear_error lets you continue after an error. Threads: of all
 * functions in this part, the context's. */

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

/* dt_dims(28, 28) is a shape of rank 2; dt_dims() has rank 0: a single value (per sample). */
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

/* Creates an empty graph. It belongs to the context and is destroyed with it; dt_graph_destroy does
 * so earlier. Errors, with *out NULL: MEMORY. */
DT_API dt_result dt_graph_create(dt_ctx *ctx, dt_graph **out);
/* Destroys a graph, its stores and their programs. NULL is allowed. */
DT_API void dt_graph_destroy(dt_graph *graph);

/* The first error that an op recorded, or NULL if there is none. Valid until dt_graph_clear_error
 * or the end of the graph. For a NULL graph a constant text. */
DT_API const char *dt_graph_error(const dt_graph *graph);
/* Clears the error, so that the graph takes new ops again. A store of the graph, its values,
 * programs and trainer are not affected by the error. The nil tensors that the failed op and its
 * users gave stay nil, and using one is an error again, even where {0} is allowed (a bias, the end
 * of a list): create those tensors anew. A dt_nn_ layer that failed has left no parameter behind,
 * so its name is free. NULL, or a graph without an error, is allowed. */
DT_API void dt_graph_clear_error(dt_graph *graph);

/* The shape and type of a tensor; for nil a rank of -1, and F32. */
DT_API dt_shape dt_tensor_shape(dt_tensor x);
DT_API dt_dtype dt_tensor_dtype(dt_tensor x);
/* True if the tensor has a value per sample (the implied first axis), false if it has one value for
 * the whole batch, and for nil. */
DT_API bool dt_tensor_has_samples(dt_tensor x);

/* Gives a tensor a name and returns it: for messages, and of a metric or a term of a loss for bars,
 * logs, histories and dt_watch.metric. The text is copied. Errors (nil): an input or a parameter,
 * which already has a name; a label that is empty, not UTF-8, or has control characters. */
DT_API dt_tensor dt_label(dt_tensor x, const char *label);
/* Marks a tensor that programs created afterwards do not keep for their backward pass: they compute
 * it again there, from the nearest tensors that are kept. Returns it. Results have the same bits;
 * less memory is paid with launches (dt_program_info). Marking all tensors of a network saves
 * nothing, since the last one then needs all of them at once: leave some unmarked between, such as
 * the input of every fourth block. Kept whether marked or not are inputs, parameters, outputs,
 * losses, the batch's statistics and sums over samples. A view (dt_reshape, dt_slice ...) is marked
 * together with what it is a view of. To have them chosen for you: dt_program_desc.memory_bytes.
 * PyTorch's torch.utils.checkpoint. Errors (nil): none but a nil x. */
DT_API dt_tensor dt_recompute(dt_tensor x);
/* Marks where a stage of a pipeline (dt_trainer_desc.parallel.pipeline) begins: what is made after x, up to
 * the next mark, belongs to stage `stage`; x is the tensor that goes from one device to the next.
 * Returns it. Stage 0 begins with the graph; the marks of stages 1, 2, ... come in order. Nothing
 * else is changed by it. An input, a constant and what is made of those alone by views is computed
 * where it is needed, and so does not go over. Errors (nil): a stage below 1 or above 1024. */
DT_API dt_tensor dt_stage(dt_tensor x, int stage);

/* ---- Leaves. Errors (nil): no name, a shape of more than DT_MAX_DIMS dimensions, with a negative
 * one, or of 2^31 elements and more. Names are copied. */

/* A tensor that the host writes before a step: one value of `shape` per sample. Errors (nil): also
 * a name that another input has. */
DT_API dt_tensor dt_input(dt_graph *graph, const char *name, dt_dtype dtype, dt_shape shape);
/* The same with one value for the whole batch: class weights, a mask, a temperature. */
DT_API dt_tensor dt_input_shared(dt_graph *graph, const char *name, dt_dtype dtype, dt_shape shape);

/* How a parameter is filled when its store is created. fan_in is dimension 1 and fan_out dimension
 * 0, each multiplied by the sizes of the dimensions behind them, as in PyTorch; for a vector both
 * are its length. The random numbers are dtrain's own, not PyTorch's. */
typedef enum dt_init_kind {
    DT_INIT_DEFAULT,          /* zeros */
    DT_INIT_CONSTANT,         /* a */
    DT_INIT_UNIFORM,          /* in [a, b) */
    DT_INIT_NORMAL,           /* mean a, standard deviation b */
    DT_INIT_KAIMING_UNIFORM,  /* in +-sqrt(6 / ((1 + a*a) * fan_in)) */
    DT_INIT_KAIMING_NORMAL,   /* mean 0, deviation sqrt(2 / ((1 + a*a) * fan_in)) */
    DT_INIT_XAVIER_UNIFORM,   /* in +-a*sqrt(6 / (fan_in + fan_out)); a = 0 means 1 */
    DT_INIT_XAVIER_NORMAL,    /* mean 0, deviation a*sqrt(2 / (fan_in + fan_out)); a = 0 means 1 */
    DT_INIT_TRUNCATED_NORMAL, /* mean a, deviation b (0 means 1), of what is within a +- 2 b */
    DT_INIT_ORTHOGONAL, /* rows of length a (0 means 1) that stand on each other, or columns where
                           there are fewer; of [rows, ...] */
    DT_INIT_SPARSE,     /* of [rows, cols]: deviation b (0 means 0.01), and in each column a share a
                           of 0s, in [0, 1] */
    DT_INIT_IDENTITY    /* a (0 means 1) where output and input are of one number, at the middle of
                           a kernel, else 0: nn.init.eye_, nn.init.dirac_ */
} dt_init_kind;

/* {0}: zeros. a and b are finite. */
typedef struct dt_init {
    dt_init_kind kind;
    float a, b;
} dt_init;

/* A named, trained f32 tensor without samples. Names are unique in a graph; to share a parameter,
 * use its tensor twice. Errors (nil): also a name that is taken or that files cannot hold (not
 * UTF-8, "__metadata__", starting with "dtrain."), or a graph that already has a store. */
DT_API dt_tensor dt_param(dt_graph *graph, const char *name, dt_shape shape, dt_init init);
/* Excludes a parameter from training in every program created afterwards: no gradient, no decay.
 * Returns it. Errors (nil): not a parameter. */
DT_API dt_tensor dt_freeze(dt_tensor param);
/* Marks a parameter: where a trainer shares out one model (dt_trainer_desc.tensor), a member has an
 * equal run of its axis (counted from the end if negative). Layers mark their own. Returns it.
 * Errors (nil): not a parameter, or no such axis. */
DT_API dt_tensor dt_tensor_parallel(dt_tensor param, int axis);
/* The names of parameters and buffers made between a push and its pop begin with `name` and a dot:
 * inside dt_scope_push(graph, "h.0"), dt_nn_linear(x, "fc", 8) makes "h.0.fc.weight". Scopes nest,
 * at most 32 deep and 255 characters long together. Errors are the graph's, as an op's: no name,
 * too deep or too long, a pop without a push. */
DT_API void dt_scope_push(dt_graph *graph, const char *name);
DT_API void dt_scope_pop(dt_graph *graph);
/* A tensor of these values, row-major; without samples. They are copied into the graph: a mask, a
 * table, positions. Not trained, not in any file, and never written by the host. Class numbers and
 * indices are checked when a program is created. Errors (nil): as dt_input's; data is NULL. */
DT_API dt_tensor dt_constant(dt_graph *graph, dt_dtype dtype, dt_shape shape, const void *data);
/* A tensor whose elements are all `value`; without samples. */
DT_API dt_tensor dt_fill(dt_graph *graph, dt_shape shape, float value);
/* 0, 1, 2, ... in row-major order, as f32 (exact up to 2^24); without samples. For positions. */
DT_API dt_tensor dt_iota(dt_graph *graph, dt_shape shape);

/* ---- Elementwise, with NumPy's broadcasting over the dimensions; a tensor without samples is used
 * for every sample. The formulas and gradients are PyTorch's; docs/ops.md lists them. Errors (nil):
 * an i32 input or inputs of two types (dt_cast them), shapes that do not broadcast, tensors of two
 * graphs. The result has the inputs' type; bf16 and f16 are computed in f32 and rounded once. */
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
/* min(max(x, low), high); gradient 0 at low and high themselves. PyTorch's clamp and hardtanh;
 * ReLU6 is dt_clamp(x, 0, 6). Errors (nil): also low > high, NaN. */
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
/* b == 0 ? 0 : a, and b == 0 ? a : 0: choices by a mask, which gets no gradient. What is not chosen
 * reaches neither value nor gradient, be it NaN. dt_where is made of both. */
DT_API dt_tensor dt_mask(dt_tensor a, dt_tensor b);
DT_API dt_tensor dt_mask_inv(dt_tensor a, dt_tensor b);

/* To f32, i32, bf16 or f16. To i32 truncates toward zero and saturates, without a gradient; the
 * others round to nearest, ties to even, and their gradient is cast back. On the CPU copies, casts,
 * elementwise ops and products take bf16 and f16; for another op, and on Vulkan,
 * dt_program_create returns UNSUPPORTED. Parameters are f32: cast them where they are used. */
DT_API dt_tensor dt_cast(dt_tensor x, dt_dtype dtype);
/* The same values, contiguous, in memory of their own. */
DT_API dt_tensor dt_copy(dt_tensor x);
/* The same values; no gradient flows back. */
DT_API dt_tensor dt_detach(dt_tensor x);

/* ---- Shapes. These are views where possible: data is copied only where it must be. */

/* The same elements, in order, in another shape. One dimension may be -1: it is inferred. Errors
 * (nil): another number of elements. */
DT_API dt_tensor dt_reshape(dt_tensor x, dt_shape shape);
/* All dimensions in one; the sample axis stays. */
DT_API dt_tensor dt_flatten(dt_tensor x);
/* Dimension i of the result is dimension axes.dim[i] of x: dt_permute(x, dt_dims(1, 0)). */
DT_API dt_tensor dt_permute(dt_tensor x, dt_shape axes);
/* x[..., start : start + length, ...] along `axis`; a negative axis counts from the end. */
DT_API dt_tensor dt_slice(dt_tensor x, int axis, int64_t start, int64_t length);
/* Concatenates `count` tensors along `axis` (negative: from the end). Their other dimensions must
 * be equal. Errors (nil): also a count below 1; as no graph is known then, the error is recorded
 * where the nil is used. */
DT_API dt_tensor dt_concat(const dt_tensor *x, int count, int axis);
/* Repeats dimensions of size 1 (and new leading ones) up to `shape`, without a copy. */
DT_API dt_tensor dt_expand(dt_tensor x, dt_shape shape);

/* ---- Reductions over dimensions (never over samples). `axes` lists them; dt_dims() means all.
 * With `keep` they stay in the shape with size 1. x: f32. How exact sums are: docs/ops.md. */
DT_API dt_tensor dt_sum(dt_tensor x, dt_shape axes, bool keep);
DT_API dt_tensor dt_mean(dt_tensor x, dt_shape axes, bool keep);
DT_API dt_tensor dt_max(dt_tensor x, dt_shape axes, bool keep); /* gradient: evenly among ties */
DT_API dt_tensor dt_min(dt_tensor x, dt_shape axes, bool keep);
/* The sum over the samples. x: [...] per sample; result [...]. Errors (nil): x has no samples. */
DT_API dt_tensor dt_sum_samples(dt_tensor x);
/* e^x / sum e^x along one axis (negative: from the end), computed stably; and its logarithm. */
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
/* Looks up rows of a table. table: [rows, ...] f32, without samples; index: [I...] i32; result
 * [I..., ...]. The gradient is summed in a fixed order. Indices that the host writes are checked
 * when they are written; one computed in the graph gives a row of NaN if it is out of range.
 * PyTorch's F.embedding. */
DT_API dt_tensor dt_embedding(dt_tensor table, dt_tensor index);

/* 1 where the last dimension's number is the index, else 0. index: [...] i32; result [..., classes]
 * f32. An index that is no class gives a row of zeros. */
DT_API dt_tensor dt_one_hot(dt_tensor index, int64_t classes);

/* ---- Random */

/* In training programs keeps each value with probability 1 - p, scaled by 1 / (1 - p); in others
 * the identity. The mask depends only on seed and step (dt_step_desc) and on the element's place
 * in the global batch. Errors (nil): p outside [0, 1]. */
DT_API dt_tensor dt_dropout(dt_tensor x, float p);

/* As many random numbers as `like` has elements, for each sample others where it has samples; its
 * values do not matter, and no gradient flows to it. In every program, in those that do not train
 * too, they depend only on seed and step (dt_step_desc) and on the element's place in the global
 * batch: the same for any number of replicas and on any device. f32. Uniform in (0, 1): a half step
 * and whole ones of 2^-23, so 0 and 1 are not among them, and the same bits everywhere. Normal, of
 * mean 0 and deviation 1: sqrt 2 erfinv(2 u - 1), within +-5.3; another kind of device may round
 * otherwise. torch.rand_like, torch.randn_like; dt_affine for others. */
DT_API dt_tensor dt_random_uniform(dt_tensor like);
DT_API dt_tensor dt_random_normal(dt_tensor like);

/* ---- Losses. A loss is a term, a pair (sum, weight); its value is sum / weight over the whole
 * global batch, however the batch is divided. Terms are given to dt_program_desc, with
 * coefficients. The only op that takes one is dt_gradient, which differentiates the sum. */

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
/* The same of log-probabilities, as dt_log_softmax gives them: PyTorch's NLLLoss. Errors (nil):
 * also a label_smoothing. */
DT_API dt_tensor dt_nll(dt_tensor log_p, dt_tensor target, const dt_cross_entropy_desc *desc);
/* Mean squared error over all elements. y and t have the same shape, and both or neither have
 * samples; the weight is the number of elements. Errors (nil): also if only one of them has
 * samples, which is usually dt_input_shared written for dt_input. If it is intended, use
 * dt_mean_loss(dt_square(dt_sub(y, t))), which repeats the other one for each sample. */
DT_API dt_tensor dt_mse(dt_tensor y, dt_tensor t);
/* The mean of all elements of x, as a loss: for losses of your own. */
DT_API dt_tensor dt_mean_loss(dt_tensor x);
/* The weighted mean: sum of w * x over the sum of w, both over the whole global batch. w: f32,
 * which broadcasts with x: one weight a sample has shape []. Where the weight of the whole batch
 * must be known before its parts run (a trainer, dt_program_loss_weights), w is an input or a view of one.
 * No gradient flows to it. For PyTorch's losses that multiply by a weight and divide by the number
 * of elements: dt_mean_loss(dt_mul(x, w)). */
DT_API dt_tensor dt_weighted_loss(dt_tensor x, dt_tensor w);
/* A metric term: the fraction of rows whose largest logit is the target's. Shapes as for
 * dt_cross_entropy. No gradient. */
DT_API dt_tensor dt_accuracy(dt_tensor logits, dt_tensor target);

/* ---- Gradients in the graph */

/* d(sum of y) / dx as a tensor of x's shape, which can be differentiated again. y: any f32 tensor
 * or loss term (its sum, not its mean). x: any f32 tensor that y is computed from: an input, a
 * parameter, or an intermediate tensor, which then counts as an independent variable. With h =
 * relu(x) and y = h * x, d/dh is x, and d/dx follows both paths; a second dt_relu(x) would be
 * another tensor than h. The sum includes the samples, so each sample has its own gradient in x if
 * y does not mix samples. Errors (nil): y does not depend on x differentiably, or an op between
 * them has no gradient. */
DT_API dt_tensor dt_gradient(dt_tensor y, dt_tensor x);
