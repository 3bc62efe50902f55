/* Rows of wrong_args.h: graphs, ops and layers. A number of which any value has a meaning (a scale,
 * an offset, a slope) is in no slot. */
#include "wrong/wrong_args.h"
#include "shaders/lib/map_body.h" /* the lists of functions */

/* ---- Graphs and tensors */

ROW(GRAPH, dt_graph_create, ) {
    dt_graph *graph = NULL;
    dt_result result = dt_graph_create(OBJECT(here.ctx), POINTER(&graph));
    dt_graph_destroy(graph);
    return RESULT(result);
}

ROW(GRAPH, dt_graph_destroy, ) {
    dt_graph *graph = NULL;
    dt_graph_create(here.ctx, &graph);
    dt_graph *given = OBJECT(graph);
    dt_graph_destroy(given);
    if (!given)
        dt_graph_destroy(graph);
    return NOTHING;
}

ROW(GRAPH, dt_graph_error, ) {
    dt_reshape(here.x, dt_dims(5));
    return GIVES(!strncmp(dt_graph_error(OBJECT(here.graph)), "reshape", 7));
}

ROW(GRAPH, dt_graph_clear_error, ) {
    return DOES(dt_graph_clear_error(OBJECT(here.graph)));
}

ROW(GRAPH, dt_dims_of, ) {
    static const int64_t counted[DT_MAX_DIMS + 2] = {0, 2, 3};
    dt_shape s = dt_dims_of(INT(2, -1, DT_MAX_DIMS + 1, INT_MAX), POINTER(counted));
    return GIVES(s.rank == 2 && s.dim[1] == 3);
}

ROW(GRAPH, dt_tensor_shape, ) {
    return GIVES(dt_tensor_shape(ONLY_TENSOR(here.x)).rank == 1);
}

ROW(GRAPH, dt_tensor_dtype, ) {
    return GIVES(dt_tensor_dtype(ONLY_TENSOR(here.index)) == DT_I32);
}

ROW(GRAPH, dt_tensor_has_samples, ) {
    return GIVES(dt_tensor_has_samples(ONLY_TENSOR(here.x)));
}

ROW(GRAPH, dt_label, ) {
    return NIL(dt_label(ONLY_TENSOR(here.logits), TEXT("logits", NULL, "", "a\nb", "\xFF")));
}

ROW(GRAPH, dt_label, input) {
    dt_tensor x = wrong_turn("an input", 1) ? here.x : here.logits;
    return NIL(dt_label(x, "name"));
}

ROW(GRAPH, dt_recompute, ) {
    return NIL(dt_recompute(ONLY_TENSOR(here.logits)));
}

ROW(GRAPH, dt_stage, ) {
    int stage = wrong_turn("stage 0", 1) ? 0 : wrong_turn("stage 1025", 1) ? 1025 : 1;
    return NIL(dt_stage(ONLY_TENSOR(here.logits), stage));
}

/* ---- Leaves */

ROW(GRAPH, dt_input, ) {
    return NIL(dt_input(OBJECT(here.graph), NAME("in"), ENUM(DT_F32, 2), SHAPE(dt_dims(2, 3))));
}

ROW(GRAPH, dt_input_shared, ) {
    return NIL(
        dt_input_shared(OBJECT(here.graph), NAME("in"), ENUM(DT_I32, 2), SHAPE(dt_dims(2, 3))));
}

ROW(GRAPH, dt_param, ) {
    return NIL(dt_param(OBJECT(here.graph),
                        TEXT("p", NULL, "", "w", "\xff", "__metadata__", "dtrain.t"),
                        SHAPE(dt_dims(2, 3)),
                        (dt_init){.kind = ENUM(DT_INIT_NORMAL, DT_INIT_IDENTITY + 1),
                                  .a = (float)FINITE(0),
                                  .b = (float)FINITE(1)}));
}

ROW(GRAPH, dt_buffer, ) {
    return NIL(dt_buffer(
        OBJECT(here.graph), TEXT("p", NULL, "", "w", "\xff", "__metadata__", "dtrain.t"),
        SHAPE(dt_dims(2, 3)),
        (dt_init){.kind = ENUM(DT_INIT_CONSTANT, DT_INIT_IDENTITY + 1), .a = (float)FINITE(0)}));
}

ROW(GRAPH, dt_freeze, ) {
    return NIL(dt_freeze(wrong_turn("an input", 1) ? here.x : ONLY_TENSOR(here.w)));
}

ROW(GRAPH, dt_tensor_parallel, ) {
    const bool no = wrong_turn("an input", 1);
    return NIL(
        dt_tensor_parallel(no ? here.x : ONLY_TENSOR(here.w), wrong_turn("no axis", 1) ? 9 : 0));
}

ROW(GRAPH, dt_fill, ) {
    return NIL(dt_fill(OBJECT(here.graph), SHAPE(dt_dims(2, 3)), 1.0f));
}

ROW(GRAPH, dt_constant, ) {
    return NIL(dt_constant(OBJECT(here.graph), (dt_dtype)ENUM(DT_F32, DT_U8), SHAPE(dt_dims(2, 3)),
                           POINTER(wrong_x)));
}

ROW(GRAPH, dt_iota, ) {
    return NIL(dt_iota(OBJECT(here.graph), SHAPE(dt_dims(2, 3))));
}

/* The error that a function that returns nothing reported to the graph. */
static dt_tensor wrong_graphs(const dt_graph *given) {
    return given && !dt_graph_error(given) ? here.x : (dt_tensor){0};
}

ROW(GRAPH, dt_scope_push, ) {
    char name[300];
    memset(name, 'n', sizeof name);
    name[299] = 0;
    dt_graph *graph = OBJECT(here.graph);
    dt_scope_push(graph, TEXT("h.0", NULL, "", name));
    dt_tensor made = wrong_graphs(graph);
    dt_scope_pop(graph);
    return NIL(made);
}

ROW(GRAPH, dt_scope_pop, ) {
    dt_graph *graph = OBJECT(here.graph);
    if (!wrong_turn("no scope", 1))
        dt_scope_push(graph, "h.0");
    dt_scope_pop(graph);
    return NIL(wrong_graphs(graph));
}

/* ---- Elementwise */

#define UNARY(ID, name, slope)                                                                     \
    ROW(GRAPH, dt_##name, ) {                                                                      \
        return NIL(dt_##name(ONLY_F32(here.x)));                                                   \
    }
DTI_UNARY_PLAIN(UNARY)

#define BINARY(ID, name)                                                                           \
    ROW(GRAPH, dt_##name, ) {                                                                      \
        return NIL(dt_##name(F32(here.x), F32(here.z)));                                           \
    }
DTI_BINARY_LIST(BINARY)

ROW(GRAPH, dt_leaky_relu, ) {
    return NIL(dt_leaky_relu(ONLY_F32(here.x), 0.01f));
}

ROW(GRAPH, dt_elu, ) {
    return NIL(dt_elu(ONLY_F32(here.x), 1.0f));
}

ROW(GRAPH, dt_clamp, ) {
    dt_tensor x = ONLY_F32(here.x);
    return NIL(dt_clamp(x, wrong_turn("above high", 1) ? 2.0f : -1.0f, 1.0f));
}

ROW(GRAPH, dt_affine, ) {
    return NIL(dt_affine(ONLY_F32(here.x), 2.0f, 1.0f));
}

ROW(GRAPH, dt_cast, ) {
    return NIL(dt_cast(ONLY_ANY(here.x), ENUM(DT_I32, 2)));
}

ROW(GRAPH, dt_copy, ) {
    return NIL(dt_copy(ONLY_ANY(here.x)));
}

ROW(GRAPH, dt_detach, ) {
    return NIL(dt_detach(ONLY_ANY(here.x)));
}

/* ---- Shape */

ROW(GRAPH, dt_reshape, ) {
    return NIL(dt_reshape(ONLY_ANY(here.x), SHAPE(dt_dims(2, 2))));
}

ROW(GRAPH, dt_flatten, ) {
    return NIL(dt_flatten(ONLY_ANY(here.image)));
}

ROW(GRAPH, dt_permute, ) {
    return NIL(dt_permute(ONLY_ANY(here.signal), SHAPE(dt_dims(1, 0))));
}

ROW(GRAPH, dt_slice, ) {
    return NIL(dt_slice(ONLY_ANY(here.signal), AXIS(1, 2), INTEGER(2, -1, 9, INT64_MIN, INT64_MAX),
                        INTEGER(3, -1, 7, INT64_MIN, INT64_MAX)));
}

ROW(GRAPH, dt_concat, ) {
    dt_tensor both[] = {F32(here.x), F32(here.z)};
    const dt_tensor *x = POINTER(both);
    int count = INT(2, 0, -1);
    wrong.silent = wrong.silent || !x || count < 1; /* there is no graph to report to */
    return NIL(dt_concat(x, count, AXIS(0, 1)));
}

ROW(GRAPH, dt_expand, ) {
    return NIL(dt_expand(ONLY_ANY(here.x), SHAPE(dt_dims(3, 4))));
}

ROW(GRAPH, dt_pad, ) {
    return NIL(dt_pad(ONLY_ANY(here.x), AXIS(0, 1), INTEGER(1, -1, INT64_MIN, INT64_MAX),
                      INTEGER(1, -1, INT64_MIN, INT64_MAX)));
}

/* ---- Reductions, products, random numbers, losses */

#define REDUCTION(name)                                                                            \
    ROW(GRAPH, dt_##name, ) {                                                                      \
        return NIL(dt_##name(ONLY_F32(here.image), AXES(dt_dims(1)), false));                      \
    }
REDUCTION(sum)
REDUCTION(mean)
REDUCTION(max)
REDUCTION(min)

ROW(GRAPH, dt_sum_samples, ) {
    dt_tensor x = wrong_turn("a parameter", 1) ? here.w : ONLY_F32(here.x);
    return NIL(dt_sum_samples(x));
}

ROW(GRAPH, dt_softmax, ) {
    return NIL(dt_softmax(ONLY_F32(here.signal), AXIS(-1, 2)));
}

ROW(GRAPH, dt_log_softmax, ) {
    return NIL(dt_log_softmax(ONLY_F32(here.signal), AXIS(0, 2)));
}

ROW(GRAPH, dt_matmul, ) {
    return NIL(dt_matmul(F32(here.left), F32(here.right)));
}

ROW(GRAPH, dt_matmul_transposed, ) {
    return NIL(dt_matmul_transposed(F32(here.right), F32(here.left), true, true));
}

ROW(GRAPH, dt_linear, ) {
    return NIL(dt_linear(F32(here.x), F32(here.w), MAYBE_F32(here.b)));
}

ROW(GRAPH, dt_attention, ) {
    return NIL(dt_attention(
        F32(here.image), F32(here.image), F32(here.image),
        &(dt_attention_desc){.scale = (float)NUMBER(0.5, (double)INFINITY),
                             .window = INTEGER(2, -1, INT64_MIN, INT64_MAX),
                             .mask = MAYBE_F32(here.image),
                             .dropout = (float)NUMBER(0.5, 1.25, -0.1, 2.0, (double)INFINITY)}));
}

ROW(GRAPH, dt_attention, lengths) {
    return NIL(
        dt_attention(here.image, here.image, here.image,
                     &(dt_attention_desc){.lengths = MAYBE(here.label, WRONG_F32 | WRONG_TERM)}));
}

ROW(GRAPH, dt_attention_cached, ) {
    const dt_cache_desc room = {.positions = INTEGER(16, 0, -1, INT64_MIN, INT64_MAX),
                                .samples = (int)INTEGER(2, -1, INT32_MIN),
                                .position = ONLY_I32(here.label)};
    const dt_attention_desc desc = {.causal = true,
                                    .scale = (float)NUMBER(0.5, (double)INFINITY),
                                    .window = INTEGER(2, -1, INT64_MIN, INT64_MAX)};
    return NIL(
        dt_attention_cached(F32(here.image), F32(here.image), F32(here.image), &room, &desc));
}

ROW(GRAPH, dt_cache_position, ) {
    return NIL(dt_cache_position(ONLY_I32(here.label)));
}

ROW(GRAPH, dt_cache_positions, ) {
    return NIL(dt_cache_positions(ONLY_TENSOR(here.x), I32(here.label)));
}

ROW(GRAPH, dt_embedding, ) {
    return NIL(dt_embedding(F32(here.table), I32(here.index)));
}

ROW(GRAPH, dt_dropout, ) {
    return NIL(dt_dropout(ONLY_F32(here.x), (float)NUMBER(0.5, 1.25, -0.1, 2.0, (double)INFINITY)));
}

ROW(GRAPH, dt_random_uniform, ) {
    return NIL(dt_random_uniform(ONLY_TENSOR(here.x)));
}

ROW(GRAPH, dt_random_normal, ) {
    return NIL(dt_random_normal(ONLY_TENSOR(here.x)));
}

ROW(GRAPH, dt_cross_entropy, ) {
    return NIL(dt_cross_entropy(
        F32(here.logits), I32(here.label),
        &(dt_cross_entropy_desc){.label_smoothing = (float)NUMBER(0.1, -0.1, 1.1, (double)INFINITY),
                                 .class_weights = MAYBE_F32(here.weights)}));
}

ROW(GRAPH, dt_cross_entropy_each, ) {
    return NIL(dt_cross_entropy_each(
        F32(here.logits), I32(here.label),
        &(dt_cross_entropy_desc){.label_smoothing = (float)NUMBER(0.1, -0.1, 1.1, (double)INFINITY),
                                 .class_weights = MAYBE_F32(here.weights)}));
}

ROW(GRAPH, dt_nll, ) {
    return NIL(
        dt_nll(F32(here.logits), I32(here.label),
               &(dt_cross_entropy_desc){.label_smoothing = (float)NUMBER(0, 0.1, (double)INFINITY),
                                        .class_weights = MAYBE_F32(here.weights)}));
}

ROW(GRAPH, dt_one_hot, ) {
    return NIL(dt_one_hot(ONLY_I32(here.label), SIZE(3)));
}

ROW(GRAPH, dt_weighted_loss, ) {
    return NIL(dt_weighted_loss(F32(here.x), F32(here.z)));
}

#define ABOVE_0(valid) (float)NUMBER(valid, 0, -1.0, (double)INFINITY)
#define LOSS2(name, ...)                                                                           \
    ROW(GRAPH, dt_##name, ) {                                                                      \
        return NIL(dt_##name(F32(here.x), F32(here.z), ##__VA_ARGS__));                            \
    }
LOSS2(l1)
LOSS2(smooth_l1, (float)AT_LEAST_0(1))
LOSS2(huber, ABOVE_0(1))
LOSS2(bce)
LOSS2(bce_with_logits, MAYBE_F32(here.bias))
LOSS2(focal, (float)NUMBER(0.25, -0.5, 1.5, (double)INFINITY), (float)AT_LEAST_0(2))
LOSS2(soft_margin)
LOSS2(kl_div, true)
LOSS2(soft_cross_entropy)
LOSS2(distillation, ABOVE_0(2))
LOSS2(poisson_nll, false, (float)AT_LEAST_0(1e-8), true)
LOSS2(hinge_embedding, (float)FINITE(1))
LOSS2(multilabel_margin)
LOSS2(multilabel_soft_margin)
LOSS2(dice, (float)AT_LEAST_0(1))
LOSS2(jaccard, (float)AT_LEAST_0(1))

ROW(GRAPH, dt_info_nce, ) {
    return NIL(dt_info_nce(F32(here.signal), F32(here.signal), ABOVE_0(0.1)));
}

ROW(GRAPH, dt_gaussian_nll, ) {
    return NIL(dt_gaussian_nll(F32(here.x), F32(here.z), F32(here.z), ABOVE_0(1e-6), true));
}

ROW(GRAPH, dt_cosine_embedding, ) {
    dt_tensor t = dt_input(here.graph, "sign", DT_F32, dt_dims());
    return NIL(dt_cosine_embedding(F32(here.x), F32(here.z), F32(t), (float)FINITE(0)));
}

ROW(GRAPH, dt_margin_ranking, ) {
    return NIL(dt_margin_ranking(F32(here.x), F32(here.z), F32(here.z), (float)FINITE(0)));
}

ROW(GRAPH, dt_triplet_margin, ) {
    dt_triplet_desc d = {.margin = (float)FINITE(1),
                         .p = (float)NUMBER(2, 0.5, -1.0, (double)INFINITY),
                         .eps = (float)NUMBER(1e-6, -1.0, (double)INFINITY)};
    return NIL(dt_triplet_margin(F32(here.x), F32(here.z), F32(here.z), &d));
}

ROW(GRAPH, dt_multi_margin, ) {
    return NIL(dt_multi_margin(F32(here.logits), I32(here.label), INT(1, 0, 3, INT_MAX),
                               (float)FINITE(1), MAYBE_F32(here.weights)));
}

ROW(GRAPH, dt_mse, ) {
    return NIL(dt_mse(F32(here.x), F32(here.z)));
}

ROW(GRAPH, dt_mean_loss, ) {
    return NIL(dt_mean_loss(ONLY_F32(here.x)));
}

ROW(GRAPH, dt_accuracy, ) {
    return NIL(dt_accuracy(F32(here.logits), I32(here.label)));
}

ROW(GRAPH, dt_gradient, ) {
    return NIL(dt_gradient(TENSOR(here.loss), F32(here.w)));
}

/* ---- Images */

/* A stride of any length is right. Of a signal nobody reads the width's. */
#define CONV_FIELDS(wide)                                                                          \
    {                                                                                              \
        .stride = {INT(1, -1), wide ? INT(1, -1) : 1},                                             \
        .padding = {INT(1, -1, INT_MAX), wide ? INT(1, -1, INT_MAX) : 0},                          \
        .dilation = {INT(1, -1, INT_MAX), wide ? INT(1, -1, INT_MAX) : 1},                         \
        .groups = INT(1, -1, 3, INT_MAX)                                                           \
    }
#define CONV(name, x, w, wide)                                                                     \
    ROW(GRAPH, dt_##name, ) {                                                                      \
        dt_conv_desc desc = CONV_FIELDS(wide);                                                     \
        return NIL(dt_##name(F32(x), F32(w), MAYBE_F32(here.bias), &desc));                        \
    }
CONV(conv2d, here.image, here.kernel, true)
CONV(conv1d, here.signal, here.kernel1, false)
CONV(conv_transpose2d, here.image, here.back, true)
CONV(conv_transpose1d, here.signal, here.back1, false)

ROW(GRAPH, dt_conv_transpose2d, output) {
    dt_conv_desc desc = {.stride = {2, 2},
                         .output_padding = {INT(1, -1, 2, INT_MAX), INT(1, -1, 2, INT_MAX)}};
    return NIL(dt_conv_transpose2d(here.image, here.back, here.bias, &desc));
}

#define POOL(name)                                                                                 \
    ROW(GRAPH, dt_##name, ) {                                                                      \
        dt_pool_desc desc = {.kernel = {COUNT(2), COUNT(2)},                                       \
                             .stride = {INT(2, -1), INT(2, -1)},                                   \
                             .padding = {INT(1, -1, 2, INT_MAX), INT(1, -1, 2, INT_MAX)}};         \
        return NIL(dt_##name(ONLY_F32(here.image), POINTER(&desc)));                               \
    }
POOL(max_pool2d)
POOL(avg_pool2d)

ROW(GRAPH, dt_adaptive_avg_pool2d, ) {
    return NIL(dt_adaptive_avg_pool2d(ONLY_F32(here.image), SIZE(2), SIZE(3)));
}

ROW(GRAPH, dt_max_pool1d, ) {
    dt_pool_desc desc = {.kernel = {COUNT(2)}, .stride = {INT(2, -1)}, .padding = {INT(1, -1, 2)}};
    return NIL(dt_max_pool1d(ONLY_F32(here.signal), POINTER(&desc)));
}

ROW(GRAPH, dt_avg_pool1d, ) {
    dt_pool_desc desc = {.kernel = {COUNT(2)}, .stride = {INT(2, -1)}, .padding = {INT(1, -1, 2)}};
    return NIL(dt_avg_pool1d(ONLY_F32(here.signal), POINTER(&desc)));
}

ROW(GRAPH, dt_adaptive_avg_pool1d, ) {
    return NIL(dt_adaptive_avg_pool1d(ONLY_F32(here.signal), SIZE(2)));
}

#define VOLUME_FIELDS                                                                              \
    {                                                                                              \
        .stride = {INT(1, -1), INT(2, -1), INT(1, -1, INT_MAX)},                                   \
        .padding = {INT(1, -1, INT_MAX), INT(1, -1), INT(0, -1)},                                  \
        .dilation = {INT(1, -1, INT_MAX), INT(1, -1), INT(1, -1)},                                 \
        .groups = INT(1, -1, 3, INT_MAX)                                                           \
    }
ROW(GRAPH, dt_conv3d, ) {
    dt_conv3d_desc desc = VOLUME_FIELDS;
    return NIL(dt_conv3d(F32(here.volume), F32(here.deep), MAYBE_F32(here.bias), &desc));
}

#define POOL3D(name)                                                                               \
    ROW(GRAPH, dt_##name, ) {                                                                      \
        dt_pool3d_desc desc = {.kernel = {COUNT(2), COUNT(2), COUNT(1)},                           \
                               .stride = {INT(2, -1), INT(2, -1), INT(1, -1)},                     \
                               .padding = {INT(1, -1, 2), INT(1, -1, 2, INT_MAX), INT(0, -1)}};    \
        return NIL(dt_##name(ONLY_F32(here.volume), POINTER(&desc)));                              \
    }
POOL3D(max_pool3d)
POOL3D(avg_pool3d)

ROW(GRAPH, dt_adaptive_avg_pool3d, ) {
    return NIL(dt_adaptive_avg_pool3d(ONLY_F32(here.volume), SIZE(2), SIZE(3), SIZE(1)));
}

ROW(GRAPH, dt_resize, ) {
    return NIL(dt_resize(ONLY_F32(here.image), SIZE(9), SIZE(3), ENUM(DT_RESIZE_BILINEAR, 2)));
}

/* ---- Normalisation */

ROW(GRAPH, dt_layer_norm, ) {
    return NIL(dt_layer_norm(F32(here.x), COUNT(1), MAYBE_F32(here.bias), MAYBE_F32(here.bias),
                             (float)AT_LEAST_0(1e-5)));
}

ROW(GRAPH, dt_rms_norm, ) {
    return NIL(dt_rms_norm(F32(here.x), COUNT(1), MAYBE_F32(here.bias), (float)AT_LEAST_0(1e-5)));
}

ROW(GRAPH, dt_group_norm, ) {
    return NIL(dt_group_norm(F32(here.image), INT(2, 0, -1, 3, INT_MAX), MAYBE_F32(here.scale),
                             MAYBE_F32(here.scale), (float)AT_LEAST_0(1e-5)));
}

ROW(GRAPH, dt_batch_norm, ) {
    return NIL(dt_batch_norm(
        F32(here.image), MAYBE_F32(here.scale), MAYBE_F32(here.scale), F32(here.mean),
        F32(here.variance),
        &(dt_batch_norm_desc){.eps = (float)AT_LEAST_0(1e-5),
                              .momentum = (float)NUMBER(0.1, -1.0, 1.1, (double)INFINITY)}));
}

/* ---- Layers */

static const char wrong_long[] =
    "a-name-that-has-more-than-255-characters-with-its-parameters-------------------------------"
    "--------------------------------------------------------------------------------------------"
    "--------------------------------------------------------------------------------------------";

#define LAYER_NAME TEXT("layer", NULL, "", wrong_long, "\xff")
#define INIT                                                                                       \
    { ENUM(DT_INIT_NORMAL, DT_INIT_IDENTITY + 1), (float)FINITE(0), (float)FINITE(1) }

ROW(GRAPH, dt_nn_linear, ) {
    return NIL(dt_nn_linear(ONLY_F32(here.x), LAYER_NAME, SIZE(3)));
}

ROW(GRAPH, dt_nn_linear_with, ) {
    return NIL(dt_nn_linear_with(ONLY_F32(here.x), LAYER_NAME, SIZE(3),
                                 &(dt_linear_desc){.weight = INIT, .bias = INIT}));
}

ROW(GRAPH, dt_nn_bilinear, ) {
    return NIL(dt_nn_bilinear(F32(here.x), F32(here.x), LAYER_NAME, SIZE(3)));
}

ROW(GRAPH, dt_nn_lora, ) {
    return NIL(dt_nn_lora(F32(here.x), F32(here.x), LAYER_NAME, SIZE(3),
                          (float)NUMBER(16, (double)INFINITY)));
}

ROW(GRAPH, dt_nn_multi_head_attention, ) {
    return NIL(dt_nn_multi_head_attention(
        F32(here.signal), MAYBE_F32(here.signal), LAYER_NAME,
        INTEGER(1, 0, -1, INT64_MIN, INT64_MAX),
        &(dt_attention_layer_desc){.kv_heads = INTEGER(1, -1, INT64_MIN, INT64_MAX)}));
}

#define RECURRENT_ROW(kind, ...)                                                                   \
    ROW(GRAPH, kind, ) {                                                                           \
        return NIL(                                                                                \
            kind(F32(here.signal), LAYER_NAME, INTEGER(3, 0, -1, INT64_MIN, INT64_MAX),            \
                 &(dt_recurrent_desc){.layers = (int)INTEGER(1, -1, 65, INT32_MIN, INT32_MAX),     \
                                      .dropout = (float)NUMBER(0.5, 1.5, -0.1, (double)INFINITY),  \
                                      .lengths = MAYBE(here.label, WRONG_F32 | WRONG_TERM),        \
                                      __VA_ARGS__})                                                \
                .y);                                                                               \
    }
RECURRENT_ROW(dt_nn_lstm, .projection = INTEGER(2, -1, 3, INT64_MIN, INT64_MAX))
RECURRENT_ROW(dt_nn_gru, .projection = INTEGER(0, -1, 2, INT64_MIN, INT64_MAX))
RECURRENT_ROW(dt_nn_rnn, .projection = INTEGER(0, -1, 2, INT64_MIN, INT64_MAX))

ROW(GRAPH, dt_nn_embedding, ) {
    dt_tensor index = wrong_turn("an f32 index", 1) ? here.x : ONLY_ANY(here.index);
    return NIL(dt_nn_embedding(index, LAYER_NAME, INTEGER(5, -1, INT64_MIN, INT64_MAX),
                               INTEGER(3, -1, INT64_MIN, INT64_MAX)));
}

#define ROW_OF_5 (int32_t) INTEGER(-5, -6, 5, 1 << 24, INT32_MAX)
ROW(GRAPH, dt_nn_embedding_with, ) {
    dt_tensor index = wrong_turn("an f32 index", 1) ? here.x : ONLY_ANY(here.index);
    return NIL(dt_nn_embedding_with(index, LAYER_NAME, INTEGER(5, -1, INT64_MIN),
                                    INTEGER(3, -1, INT64_MAX),
                                    &(dt_embedding_desc){.weight = INIT, .padding_idx = ROW_OF_5}));
}

#define CONV_LAYER(name, x, wide)                                                                  \
    ROW(GRAPH, dt_nn_##name, ) {                                                                   \
        dt_conv_layer_desc desc = {.conv = CONV_FIELDS(wide),                                      \
                                   .kernel_w = wide ? INT(0, -1, INT_MAX) : 0,                     \
                                   .weight = INIT,                                                 \
                                   .bias = INIT};                                                  \
        return NIL(dt_nn_##name(ONLY_F32(x), LAYER_NAME, SIZE(4), SIZE(3), &desc));                \
    }
CONV_LAYER(conv2d, here.image, true)
CONV_LAYER(conv1d, here.signal, false)
CONV_LAYER(conv_transpose2d, here.image, true)

ROW(GRAPH, dt_rope, ) {
    dt_tensor offset = wrong_turn("an f32 offset", 1) ? here.x : here.label;
    return NIL(dt_rope(
        F32(here.signal),
        &(dt_rope_desc){.base = NUMBER(10000.0, 1.0, -1.0, (double)INFINITY), .offset = offset}));
}

#define GATED(name)                                                                                \
    ROW(GRAPH, dt_nn_##name, ) {                                                                   \
        return NIL(dt_nn_##name(ONLY_F32(here.x), LAYER_NAME, SIZE(6)));                           \
    }
GATED(swiglu)
GATED(geglu)

ROW(GRAPH, dt_nn_conv3d, ) {
    dt_conv3d_layer_desc desc = {.conv = VOLUME_FIELDS,
                                 .kernel_h = INT(0, -1, INT_MAX),
                                 .kernel_w = INT(0, -1, INT_MAX),
                                 .weight = INIT,
                                 .bias = INIT};
    return NIL(dt_nn_conv3d(ONLY_F32(here.volume), LAYER_NAME, SIZE(4), SIZE(3), &desc));
}

ROW(GRAPH, dt_nn_spectral_norm, ) {
    return NIL(dt_nn_spectral_norm(
        OBJECT(here.graph), LAYER_NAME, SHAPE(dt_dims(3, 4)),
        &(dt_spectral_norm_desc){.iterations = INT(2, -1, 101, INT_MAX),
                                 .eps = (float)NUMBER(1e-6, -1.0, (double)INFINITY),
                                 .weight = INIT}));
}

ROW(GRAPH, dt_nn_batch_norm, ) {
    return NIL(dt_nn_batch_norm(
        ONLY_F32(here.image), LAYER_NAME,
        &(dt_batch_norm_desc){.eps = (float)AT_LEAST_0(1e-5),
                              .momentum = (float)NUMBER(0.1, -1.0, 1.1, (double)INFINITY)}));
}

ROW(GRAPH, dt_nn_layer_norm, ) {
    return NIL(dt_nn_layer_norm(ONLY_F32(here.x), LAYER_NAME, COUNT(1)));
}

ROW(GRAPH, dt_nn_group_norm, ) {
    return NIL(dt_nn_group_norm(ONLY_F32(here.image), LAYER_NAME, INT(2, 0, -1, 3, INT_MAX)));
}

ROW(GRAPH, dt_nn_rms_norm, ) {
    return NIL(dt_nn_rms_norm(ONLY_F32(here.x), LAYER_NAME, COUNT(1)));
}
