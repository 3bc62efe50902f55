/* A random model as data: a list of statements, each one call of the public interface. It can be
 * built in any graph, printed as C (random_print.h) and made smaller (random_shrink.h). Leaves have
 * values that depend only on the seed, the statement and the place. Included by test_random.c. */
#ifndef DTRAIN_TESTS_RANDOM_GRAPH_H
#define DTRAIN_TESTS_RANDOM_GRAPH_H

/* Every call that a model may have, and its form. $0 is an input ({0} where it is missing), @ the
 * shape or the axes, #0 a whole number, ~0 a number, ? the first number as true or false, ^ a name
 * of the function tables, % the statement's own number. */
/* clang-format off */
#define RND_KINDS(X)                                                                               \
    X(INPUT, "dt_input(g, \"x%\", DT_F32, @)")                                                     \
    X(SHARED, "dt_input_shared(g, \"x%\", DT_F32, @)")                                             \
    X(PARAM, "dt_param(g, \"x%\", @, (dt_init){0})")                                               \
    X(FROZEN, "dt_freeze(dt_param(g, \"x%\", @, (dt_init){0}))")                                   \
    X(BUFFER, "dt_buffer(g, \"x%\", @, (dt_init){0})")                                             \
    X(INDEX, "dt_input(g, \"x%\", DT_I32, @)")                                                     \
    X(INDEX_SHARED, "dt_input_shared(g, \"x%\", DT_I32, @)")                                       \
    X(FILL, "dt_fill(g, @, ~0)")                                                                   \
    X(UNARY, "dt_^($0)")                                                                           \
    X(LEAKY_RELU, "dt_leaky_relu($0, ~0)")                                                         \
    X(ELU, "dt_elu($0, ~0)")                                                                       \
    X(CLAMP, "dt_clamp($0, ~0, ~1)")                                                               \
    X(AFFINE, "dt_affine($0, ~0, ~1)")                                                             \
    X(BCE, "dt_bce($0, $1)")                                                                       \
    X(BINARY, "dt_^($0, $1)")                                                                      \
    X(TO_I32, "dt_cast($0, DT_I32)")                                                               \
    X(TO_F32, "dt_cast($0, DT_F32)")                                                               \
    X(COPY, "dt_copy($0)")                                                                         \
    X(DETACH, "dt_detach($0)")                                                                     \
    X(RESHAPE, "dt_reshape($0, @)")                                                                \
    X(FLATTEN, "dt_flatten($0)")                                                                   \
    X(PERMUTE, "dt_permute($0, @)")                                                                \
    X(SLICE, "dt_slice($0, #0, #1, #2)")                                                           \
    X(CONCAT, "dt_concat((dt_tensor[]){$0, $1}, 2, #0)")                                           \
    X(CONCAT3, "dt_concat((dt_tensor[]){$0, $1, $2}, 3, #0)")                                      \
    X(EXPAND, "dt_expand($0, @)")                                                                  \
    X(PAD, "dt_pad($0, #0, #1, #2)")                                                               \
    X(SUM, "dt_sum($0, @, ?)")                                                                     \
    X(MEAN, "dt_mean($0, @, ?)")                                                                   \
    X(MAX, "dt_max($0, @, ?)")                                                                     \
    X(MIN, "dt_min($0, @, ?)")                                                                     \
    X(SUM_SAMPLES, "dt_sum_samples($0)")                                                           \
    X(SOFTMAX, "dt_softmax($0, #0)")                                                               \
    X(LOG_SOFTMAX, "dt_log_softmax($0, #0)")                                                       \
    X(MATMUL, "dt_matmul($0, $1)")                                                                 \
    X(MATMUL_T, "dt_matmul_transposed($0, $1, #0, #1)")                                            \
    X(LINEAR, "dt_linear($0, $1, $2)")                                                             \
    X(ATTENTION, "dt_attention($0, $1, $2, &(dt_attention_desc){.scale = ~0, .dropout = ~1, "      \
                 ".causal = #0, .window = #1, .alibi = #2, .mask = $3})")                          \
    X(ATTENTION_CACHED, "dt_attention_cached($0, $1, $2, &(dt_cache_desc){.positions = 99, "       \
                        ".position = dt_constant($0.graph, DT_I32, dt_dims(), &(int32_t){0})}, "   \
                        "&(dt_attention_desc){.scale = ~0, .dropout = ~1, .causal = #0, "          \
                        ".window = #1})")                                                          \
    X(RECURRENCE, "rnd_recurrence((dt_tensor[]){$0, $1, $2, $3}, #0, #1)")                         \
    X(CTC, "dt_ctc_loss($0, $1, &(dt_ctc_desc){.steps = $2, .labels = $3, .blank = #0, "           \
           ".zero_infinity = true, .by_length = #1})")                                             \
    X(GATHER, "dt_embedding($0, $1)")                                                              \
    X(DROPOUT, "dt_dropout($0, ~0)")                                                               \
    X(RANDOM, "dt_random_uniform($0)")                                                             \
    X(ALPHA_DROPOUT, "dt_alpha_dropout($0, ~0)")                                                   \
    X(FLIP, "dt_flip($0, #0)")                                                                     \
    X(ROLL, "dt_roll($0, #0, #1)")                                                                 \
    X(TRIL, "dt_tril($0, #0)")                                                                     \
    X(TRIU, "dt_triu($0, #0)")                                                                     \
    X(REFLECT, "dt_pad_reflect($0, #0, #1, #2)")                                                   \
    X(REPLICATE, "dt_pad_replicate($0, #0, #1, #2)")                                               \
    X(CIRCULAR, "dt_pad_circular($0, #0, #1, #2)")                                                 \
    X(CUMSUM, "dt_cumsum($0, #0)")                                                                 \
    X(VAR, "dt_var($0, @, false, ?)")                                                              \
    X(WHERE, "dt_where($0, $1, $2)")                                                               \
    X(TAKE, "dt_gather($0, #0, $1)")                                                           \
    X(SCATTER, "dt_scatter_add($0, #0, $1, #1)")                                                 \
    X(SELECT, "dt_index_select($0, #0, $1)")                                                       \
    X(ONE_HOT, "dt_one_hot($0, #0)")                                                               \
    X(EACH, "dt_cross_entropy_each($0, $1, &(dt_cross_entropy_desc){.label_smoothing = ~0, "       \
            ".ignore_index = #0})")                                                                \
    X(CHANNELS, "dt_dropout_channels($0, ~0)")                                                     \
    X(DROP_PATH, "dt_drop_path($0, ~0)")                                                           \
    X(CONV2D, "dt_conv2d($0, $1, $2, &(dt_conv_desc){{#0, #1}, {#2, #3}, {#4, #5}, #6})")          \
    X(CONV1D, "dt_conv1d($0, $1, $2, &(dt_conv_desc){{#0}, {#2}, {#4}, #6})")                      \
    X(CONVT2D, "dt_conv_transpose2d($0, $1, $2, "                                                  \
               "&(dt_conv_desc){{#0, #1}, {#2, #3}, {#4, #5}, #6, {#7, #8}})")                     \
    X(CONVT1D, "dt_conv_transpose1d($0, $1, $2, "                                                  \
               "&(dt_conv_desc){{#0}, {#2}, {#4}, #6, {#7}})")                                     \
    X(MAX_POOL, "dt_max_pool2d($0, &(dt_pool_desc){{#0, #1}, {#2, #3}, {#4, #5}, #6})")            \
    X(AVG_POOL, "dt_avg_pool2d($0, &(dt_pool_desc){{#0, #1}, {#2, #3}, {#4, #5}, #6, #7})")        \
    X(ADAPTIVE, "dt_adaptive_avg_pool2d($0, #0, #1)")                                              \
    X(RESIZE, "dt_resize($0, #0, #1, #2)")                                                         \
    X(LAYER_NORM, "dt_layer_norm($0, #0, $1, $2, ~0)")                                             \
    X(RMS_NORM, "dt_rms_norm($0, #0, $1, ~0)")                                                     \
    X(GROUP_NORM, "dt_group_norm($0, #0, $1, $2, ~0)")                                             \
    X(BATCH_NORM, "dt_batch_norm($0, $1, $2, $3, $4, "                                             \
                  "&(dt_batch_norm_desc){.momentum = ~0, .frozen = #0})")                          \
    X(CROSS_ENTROPY, "dt_cross_entropy($0, $1, &(dt_cross_entropy_desc){.ignore_index = #0, "      \
                     ".label_smoothing = ~0, .class_weights = $2})")                               \
    X(NLL, "dt_nll($0, $1, &(dt_cross_entropy_desc){.ignore_index = #0, .class_weights = $2})")    \
    X(WEIGHTED, "dt_weighted_loss($0, $1)")                                                        \
    X(MSE, "dt_mse($0, $1)")                                                                       \
    X(MEAN_LOSS, "dt_mean_loss($0)")                                                               \
    X(ACCURACY, "dt_accuracy($0, $1)")                                                             \
    X(GRADIENT, "dt_gradient($0, $1)")
/* clang-format on */

typedef enum rnd_kind {
#define RND_X(id, text) RND_##id,
    RND_KINDS(RND_X)
#undef RND_X
        RND_KIND_COUNT
} rnd_kind;

static dt_precision rnd_precision; /* of all programs and trainers that are made */

enum {
    RND_STMTS = 120,
    RND_INPUTS = 5, /* of a statement */
    RND_NUMBERS = 9,
    RND_LOSSES = 4
};

typedef enum rnd_range {               /* of a leaf's values */
                         RND_ANY,      /* -1.5 .. 1.5 */
                         RND_POSITIVE, /* 0.3 .. 2 */
                         RND_CLASSES   /* 0 .. classes - 1 */
} rnd_range;

typedef struct rnd_stmt {
    uint8_t kind, range;
    uint8_t function;       /* of a table */
    bool ignores;           /* RND_CLASSES: some are -100 */
    int16_t in[RND_INPUTS]; /* -1 = {0} */
    int32_t number[RND_NUMBERS];
    float real[2];
    int32_t classes;
    dt_shape shape;
} rnd_stmt;

typedef struct rnd_model {
    uint64_t seed;
    rnd_stmt stmts[RND_STMTS];
    int count;
    int losses[RND_LOSSES], loss_count;
    float coefficients[RND_LOSSES];
    int metrics[RND_LOSSES], metric_count;
    int outputs[RND_LOSSES], output_count;
    int batch, rows;            /* of a step; of the data set */
    int micros[8], micro_count; /* sizes that add up to the batch */
    int batch_slices, accumulate, steps;
    dt_optim_kind optim;
} rnd_model;

/* A model in a graph. */
typedef struct rnd_built {
    dt_ctx *ctx;
    bool borrowed; /* the context is another's */
    dt_graph *graph;
    dt_tensor at[RND_STMTS]; /* by statement */
} rnd_built;

static const char *const rnd_unary_names[] = {
#define RND_X(ID, name, slope) #name,
    DTI_UNARY_PLAIN(RND_X)
#undef RND_X
};
static dt_tensor (*const rnd_unary[])(dt_tensor x) = {
#define RND_X(ID, name, slope) dt_##name,
    DTI_UNARY_PLAIN(RND_X)
#undef RND_X
};
static const char *const rnd_binary_names[] = {
#define RND_X(ID, name) #name,
    DTI_BINARY_LIST(RND_X)
#undef RND_X
};
static dt_tensor (*const rnd_binary[])(dt_tensor a, dt_tensor b) = {
#define RND_X(ID, name) dt_##name,
    DTI_BINARY_LIST(RND_X)
#undef RND_X
};

/* ---- random numbers, the same on every machine */

static uint64_t rnd_mix(uint64_t x) { /* splitmix64 */
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static double rnd_unit(uint64_t x) { /* in [0, 1) */
    return (double)(rnd_mix(x) >> 11) * 0x1p-53;
}

/* ---- leaves */

static bool rnd_is_leaf(int kind) {
    return kind <= RND_INDEX_SHARED;
}
static bool rnd_is_param(int kind) { /* a value of the store */
    return kind == RND_PARAM || kind == RND_FROZEN || kind == RND_BUFFER;
}
static bool rnd_is_input(int kind) {
    return rnd_is_leaf(kind) && !rnd_is_param(kind);
}
static bool rnd_is_index(int kind) {
    return kind == RND_INDEX || kind == RND_INDEX_SHARED;
}

static int64_t rnd_elements(dt_shape s) {
    int64_t n = 1;
    for (int i = 0; i < s.rank; i++)
        n *= s.dim[i];
    return n;
}

/* Targets that are all ignored: those of every 16th seed, and of every 4th in all batches but the
 * first. */
static bool rnd_is_empty(const rnd_model *m, const rnd_stmt *s, int64_t at) {
    const int64_t row = at / DTI_MAX(rnd_elements(s->shape), (int64_t)1);
    const bool samples = s->kind == RND_INDEX;
    return s->ignores && (m->seed % 16 == 3 || (m->seed % 4 == 1 && samples && row >= m->batch));
}

/* Element `at` of a leaf's values, counted through all rows of the data set. */
static double rnd_value(const rnd_model *m, int stmt, int64_t at) {
    const rnd_stmt *s = &m->stmts[stmt];
    const uint64_t key = rnd_mix(m->seed * 1000003u + (uint64_t)stmt) + (uint64_t)at * 2u;
    const double u = rnd_unit(key);
    switch (s->range) {
    case RND_POSITIVE: return (double)(float)(0.3 + 1.7 * u);
    case RND_CLASSES:
        if (rnd_is_empty(m, s, at) || (s->ignores && at && rnd_unit(key + 1) < 0.25))
            return -100;
        return floor(u * s->classes);
    default: return (double)(float)(3 * u - 1.5);
    }
}

/* Rows [first, first + rows) of a leaf as the device has them; free() it. */
static void *rnd_words(const rnd_model *m, int stmt, int first, int rows, size_t *bytes) {
    const rnd_stmt *s = &m->stmts[stmt];
    const int64_t each = rnd_elements(s->shape);
    const bool samples = s->kind == RND_INPUT || s->kind == RND_INDEX;
    const int64_t n = samples ? each * rows : each, from = samples ? each * first : 0;
    uint32_t *words = malloc((size_t)(n + 1) * 4);
    for (int64_t i = 0; i < n; i++) {
        const double value = rnd_value(m, stmt, from + i);
        const float f = (float)value;
        const int32_t whole = (int32_t)value;
        memcpy(words + i, rnd_is_index(s->kind) ? (const void *)&whole : (const void *)&f, 4);
    }
    *bytes = (size_t)n * 4;
    return words;
}

/* ---- building */

static dt_tensor rnd_build_image(const rnd_stmt *s, const dt_tensor *in) {
    const int32_t *n = s->number;
    const dt_conv_desc conv = {{n[0], n[1]}, {n[2], n[3]}, {n[4], n[5]}, n[6], {n[7], n[8]}};
    const dt_pool_desc pool = {{n[0], n[1]}, {n[2], n[3]}, {n[4], n[5]}, n[6], n[7]};
    switch (s->kind) {
    case RND_CONV2D: return dt_conv2d(in[0], in[1], in[2], &conv);
    case RND_CONV1D: return dt_conv1d(in[0], in[1], in[2], &conv);
    case RND_CONVT2D: return dt_conv_transpose2d(in[0], in[1], in[2], &conv);
    case RND_CONVT1D: return dt_conv_transpose1d(in[0], in[1], in[2], &conv);
    case RND_MAX_POOL: return dt_max_pool2d(in[0], &pool);
    case RND_AVG_POOL: return dt_avg_pool2d(in[0], &pool);
    case RND_ADAPTIVE: return dt_adaptive_avg_pool2d(in[0], n[0], n[1]);
    default: return dt_resize(in[0], n[0], n[1], (dt_resize_mode)n[2]);
    }
}

static dt_tensor rnd_build_made(const rnd_stmt *s, const dt_tensor *in) {
    const int32_t *n = s->number;
    const dt_cross_entropy_desc each = {.ignore_index = n[0], .label_smoothing = s->real[0]};
    switch (s->kind) {
    case RND_FLIP: return dt_flip(in[0], n[0]);
    case RND_ROLL: return dt_roll(in[0], n[0], n[1]);
    case RND_TRIL: return dt_tril(in[0], n[0]);
    case RND_TRIU: return dt_triu(in[0], n[0]);
    case RND_REFLECT: return dt_pad_reflect(in[0], n[0], n[1], n[2]);
    case RND_REPLICATE: return dt_pad_replicate(in[0], n[0], n[1], n[2]);
    case RND_CIRCULAR: return dt_pad_circular(in[0], n[0], n[1], n[2]);
    case RND_CUMSUM: return dt_cumsum(in[0], n[0]);
    case RND_VAR: return dt_var(in[0], s->shape, false, n[0]);
    case RND_WHERE: return dt_where(in[0], in[1], in[2]);
    case RND_TAKE: return dt_gather(in[0], n[0], in[1]);
    case RND_SCATTER: return dt_scatter_add(in[0], n[0], in[1], n[1]);
    case RND_SELECT: return dt_index_select(in[0], n[0], in[1]);
    case RND_ONE_HOT: return dt_one_hot(in[0], n[0]);
    case RND_EACH: return dt_cross_entropy_each(in[0], in[1], &each);
    case RND_CHANNELS: return dt_dropout_channels(in[0], s->real[0]);
    default: return dt_drop_path(in[0], s->real[0]);
    }
}

static dt_tensor rnd_build_norm(const rnd_stmt *s, const dt_tensor *in) {
    const dt_batch_norm_desc batch = {.momentum = s->real[0], .frozen = s->number[0]};
    switch (s->kind) {
    case RND_LAYER_NORM: return dt_layer_norm(in[0], s->number[0], in[1], in[2], s->real[0]);
    case RND_RMS_NORM: return dt_rms_norm(in[0], s->number[0], in[1], s->real[0]);
    case RND_GROUP_NORM: return dt_group_norm(in[0], s->number[0], in[1], in[2], s->real[0]);
    default: return dt_batch_norm(in[0], in[1], in[2], in[3], in[4], &batch);
    }
}

static dt_tensor rnd_build_leaf(dt_graph *g, const rnd_stmt *s, const char *name) {
    switch (s->kind) {
    case RND_INPUT: return dt_input(g, name, DT_F32, s->shape);
    case RND_SHARED: return dt_input_shared(g, name, DT_F32, s->shape);
    case RND_PARAM: return dt_param(g, name, s->shape, (dt_init){0});
    case RND_FROZEN: return dt_freeze(dt_param(g, name, s->shape, (dt_init){0}));
    case RND_BUFFER: return dt_buffer(g, name, s->shape, (dt_init){0});
    case RND_INDEX: return dt_input(g, name, DT_I32, s->shape);
    default: return dt_input_shared(g, name, DT_I32, s->shape);
    }
}

static dt_tensor rnd_build_term(const rnd_stmt *s, const dt_tensor *in) {
    const dt_cross_entropy_desc xent = {
        .ignore_index = s->number[0], .label_smoothing = s->real[0], .class_weights = in[2]};
    switch (s->kind) {
    case RND_CROSS_ENTROPY: return dt_cross_entropy(in[0], in[1], &xent);
    case RND_NLL: return dt_nll(in[0], in[1], &xent);
    case RND_WEIGHTED: return dt_weighted_loss(in[0], in[1]);
    case RND_MSE: return dt_mse(in[0], in[1]);
    case RND_MEAN_LOSS: return dt_mean_loss(in[0]);
    default: return dt_accuracy(in[0], in[1]);
    }
}

static dt_tensor rnd_build_shape(const rnd_stmt *s, const dt_tensor *in) {
    const int32_t *n = s->number;
    switch (s->kind) {
    case RND_COPY: return dt_copy(in[0]);
    case RND_DETACH: return dt_detach(in[0]);
    case RND_RESHAPE: return dt_reshape(in[0], s->shape);
    case RND_FLATTEN: return dt_flatten(in[0]);
    case RND_PERMUTE: return dt_permute(in[0], s->shape);
    case RND_SLICE: return dt_slice(in[0], n[0], n[1], n[2]);
    case RND_CONCAT: return dt_concat(in, 2, n[0]);
    case RND_CONCAT3: return dt_concat(in, 3, n[0]);
    case RND_EXPAND: return dt_expand(in[0], s->shape);
    default: return dt_pad(in[0], n[0], n[1], n[2]);
    }
}

static dt_tensor rnd_build_reduce(const rnd_stmt *s, const dt_tensor *in) {
    const int32_t *n = s->number;
    switch (s->kind) {
    case RND_SUM: return dt_sum(in[0], s->shape, n[0]);
    case RND_MEAN: return dt_mean(in[0], s->shape, n[0]);
    case RND_MAX: return dt_max(in[0], s->shape, n[0]);
    case RND_MIN: return dt_min(in[0], s->shape, n[0]);
    case RND_SUM_SAMPLES: return dt_sum_samples(in[0]);
    case RND_SOFTMAX: return dt_softmax(in[0], n[0]);
    default: return dt_log_softmax(in[0], n[0]);
    }
}

/* What a recurrent layer's functions append, whose weights have names that they make themselves. */
static dt_tensor rnd_recurrence(const dt_tensor *in, int32_t kind, int32_t flags) {
    dt_tensor out[3] = {{0}};
    dti_recurrence_append(in, in[3].graph ? 4 : 3, (uint32_t)kind, (uint32_t)flags, out);
    return out[0];
}

static dt_tensor rnd_ctc(const rnd_stmt *s, const dt_tensor *in) {
    const dt_ctc_desc desc = {.steps = in[2],
                              .labels = in[3],
                              .blank = s->number[0],
                              .zero_infinity = true,
                              .by_length = s->number[1] != 0};
    return dt_ctc_loss(in[0], in[1], &desc);
}

static dt_tensor rnd_build_attention(const rnd_stmt *s, const dt_tensor *in) {
    const int32_t *n = s->number, none = 0;
    const dt_attention_desc desc = {.scale = s->real[0],
                                    .dropout = s->real[1],
                                    .causal = n[0] != 0,
                                    .window = n[1],
                                    .alibi = n[2] != 0,
                                    .mask = in[3]};
    if (s->kind == RND_ATTENTION)
        return dt_attention(in[0], in[1], in[2], &desc);
    const dt_cache_desc cache = {.positions = 99,
                                 .position = dt_constant(in[0].graph, DT_I32, dt_dims(), &none)};
    return dt_attention_cached(in[0], in[1], in[2], &cache, &desc);
}

static dt_tensor rnd_build_stmt(dt_graph *g, const rnd_stmt *s, const dt_tensor *in,
                                const char *name) {
    if (rnd_is_leaf(s->kind))
        return rnd_build_leaf(g, s, name);
    if (s->kind >= RND_FLIP && s->kind <= RND_DROP_PATH)
        return rnd_build_made(s, in);
    if (s->kind >= RND_CONV2D && s->kind <= RND_RESIZE)
        return rnd_build_image(s, in);
    if (s->kind >= RND_LAYER_NORM && s->kind <= RND_BATCH_NORM)
        return rnd_build_norm(s, in);
    if (s->kind >= RND_CROSS_ENTROPY && s->kind <= RND_ACCURACY)
        return rnd_build_term(s, in);
    if (s->kind >= RND_COPY && s->kind <= RND_PAD)
        return rnd_build_shape(s, in);
    if (s->kind >= RND_SUM && s->kind <= RND_LOG_SOFTMAX)
        return rnd_build_reduce(s, in);
    switch (s->kind) {
    case RND_FILL: return dt_fill(g, s->shape, s->real[0]);
    case RND_UNARY: return rnd_unary[s->function](in[0]);
    case RND_LEAKY_RELU: return dt_leaky_relu(in[0], s->real[0]);
    case RND_CLAMP: return dt_clamp(in[0], s->real[0], s->real[1]);
    case RND_ELU: return dt_elu(in[0], s->real[0]);
    case RND_AFFINE: return dt_affine(in[0], s->real[0], s->real[1]);
    case RND_BCE: return dt_bce(in[0], in[1]);
    case RND_BINARY: return rnd_binary[s->function](in[0], in[1]);
    case RND_TO_I32: return dt_cast(in[0], DT_I32);
    case RND_TO_F32: return dt_cast(in[0], DT_F32);
    case RND_MATMUL: return dt_matmul(in[0], in[1]);
    case RND_MATMUL_T: return dt_matmul_transposed(in[0], in[1], s->number[0], s->number[1]);
    case RND_LINEAR: return dt_linear(in[0], in[1], in[2]);
    case RND_ATTENTION:
    case RND_ATTENTION_CACHED: return rnd_build_attention(s, in);
    case RND_RECURRENCE: return rnd_recurrence(in, s->number[0], s->number[1]);
    case RND_CTC: return rnd_ctc(s, in);
    case RND_GATHER: return dt_embedding(in[0], in[1]);
    case RND_DROPOUT: return dt_dropout(in[0], s->real[0]);
    case RND_ALPHA_DROPOUT: return dt_alpha_dropout(in[0], s->real[0]);
    case RND_RANDOM: return dt_random_uniform(in[0]);
    default: return dt_gradient(in[0], in[1]);
    }
}

/* What lies on the stack before a call is another thing each time: nothing may depend on it. */
static __attribute__((noinline)) void rnd_dirty_stack(void) {
    static uint64_t state;
    volatile uint64_t dirt[256] __attribute__((unused));
    for (int i = 0; i < 256; i++)
        dirt[i] = rnd_mix(++state);
}

/* Statement i after those before it; a leaf gets a name with this number. */
static dt_tensor rnd_build_one(const rnd_model *m, int i, int number, rnd_built *b) {
    const rnd_stmt *s = &m->stmts[i];
    dt_tensor in[RND_INPUTS] = {{0}};
    char name[16];
    snprintf(name, sizeof name, "x%d", number);
    for (int k = 0; k < RND_INPUTS; k++)
        if (s->in[k] >= 0)
            in[k] = b->at[s->in[k]];
    rnd_dirty_stack();
    return b->at[i] = rnd_build_stmt(b->graph, s, in, name);
}

/* In `ctx`, or in a context of its own. False: see rnd_build_error. */
static bool rnd_build(const rnd_model *m, const dt_ctx_desc *desc, dt_ctx *ctx, rnd_built *b) {
    *b = (rnd_built){.ctx = ctx, .borrowed = ctx != NULL};
    if ((!ctx && dt_ctx_create(desc, &b->ctx)) || dt_graph_create(b->ctx, &b->graph))
        return false;
    for (int i = 0; i < m->count; i++)
        rnd_build_one(m, i, i, b);
    return dt_graph_error(b->graph) == NULL;
}

static const char *rnd_build_error(const rnd_built *b) {
    const char *error = b->graph ? dt_graph_error(b->graph) : NULL;
    return error ? error : dt_ctx_error(b->ctx);
}

static void rnd_unbuild(rnd_built *b) {
    if (b->borrowed)
        dt_graph_destroy(b->graph);
    else
        dt_ctx_destroy(b->ctx);
}

#endif
