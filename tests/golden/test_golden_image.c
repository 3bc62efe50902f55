/* Convolution, pooling, resizing and normalisation against PyTorch's recorded values
 * (tools/golden/record_golden_image.py). Each layer by itself, batch norm over micro-batches, and
 * the networks of examples/fashion_mnist_conv.c. Layers and first gradients are of float64. */
#include "golden/golden.h"

#define IMAGE_NEAR 1e-5 /* of an array's largest element */
#define LAYER_STEPS 3

/* ---- One layer */

typedef struct layer { /* x: without samples; make: y from x, parameters called NAME.* */
    const char *name;
    int64_t x[4];
    int rank;
    dt_tensor (*make)(dt_tensor x, const char *name);
} layer;

#define CONV(function, layer_fn, out, kernel, ...)                                                 \
    static dt_tensor function(dt_tensor x, const char *name) {                                     \
        dt_conv_layer_desc d = {__VA_ARGS__};                                                      \
        return layer_fn(x, name, out, kernel, &d);                                                 \
    }
CONV(conv, dt_nn_conv2d, 3, 3, .kernel_w = 3)
CONV(conv_stride, dt_nn_conv2d, 4, 3, .kernel_w = 2, .conv = {.stride = {2, 3}, .padding = {1, 1}})
CONV(conv_dilated, dt_nn_conv2d, 2, 2, .kernel_w = 3, .no_bias = true,
     .conv = {.dilation = {3, 2}, .padding = {1, 2}})
CONV(conv_grouped, dt_nn_conv2d, 6, 3, .conv = {.groups = 2, .padding = {1, 1}})
CONV(conv_depthwise, dt_nn_conv2d, 6, 3, .conv = {.groups = 3, .padding = {1, 1}, .stride = {2, 2}})
CONV(conv_point, dt_nn_conv2d, 7, 1, .kernel_w = 1)
CONV(conv_signal, dt_nn_conv1d, 4, 5, .conv = {.stride = {2}, .padding = {2}})
CONV(transposed, dt_nn_conv_transpose2d, 2, 3,
     .conv = {.stride = {2, 2}, .padding = {1, 1}, .output_padding = {1, 1}})
CONV(transposed_dilated, dt_nn_conv_transpose2d, 3, 3, .kernel_w = 2,
     .conv = {.dilation = {2, 2}, .padding = {1, 1}, .output_padding = {1, 1}})
CONV(transposed_grouped, dt_nn_conv_transpose2d, 4, 2, .kernel_w = 3,
     .conv = {.stride = {3, 2}, .groups = 2})

static dt_tensor transposed_signal(dt_tensor x, const char *name) {
    char text[64];
    snprintf(text, sizeof text, "%s.weight", name);
    dt_tensor w = dt_param(x.graph, text, dt_dims(2, 3, 4), (dt_init){0});
    snprintf(text, sizeof text, "%s.bias", name);
    dt_tensor b = dt_param(x.graph, text, dt_dims(3), (dt_init){0});
    return dt_conv_transpose1d(x, w, b, &(dt_conv_desc){.stride = {3}, .output_padding = {2}});
}

#define POOL(function, op, ...)                                                                    \
    static dt_tensor function(dt_tensor x, const char *name) {                                     \
        (void)name;                                                                                \
        return op(x, &(dt_pool_desc){__VA_ARGS__});                                                \
    }
POOL(max_pool, dt_max_pool2d, .kernel = {2, 2})
POOL(max_pool_padded, dt_max_pool2d, .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1})
POOL(max_pool_ceil, dt_max_pool2d, .kernel = {2, 3}, .stride = {2, 2}, .ceil_mode = true)
POOL(max_pool_ties, dt_max_pool2d, .kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1})
POOL(avg_pool, dt_avg_pool2d, .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1})
POOL(avg_pool_ceil, dt_avg_pool2d, .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1},
     .ceil_mode = true)
POOL(avg_pool_exclude, dt_avg_pool2d, .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1},
     .ceil_mode = true, .exclude_pad = true)

#define PLAIN(function, expression)                                                                \
    static dt_tensor function(dt_tensor x, const char *name) {                                     \
        (void)name;                                                                                \
        return expression;                                                                         \
    }
PLAIN(adaptive, dt_adaptive_avg_pool2d(x, 3, 2))
PLAIN(adaptive_more, dt_adaptive_avg_pool2d(x, 5, 7))
PLAIN(nearest_up, dt_resize(x, 7, 8, DT_RESIZE_NEAREST))
PLAIN(nearest_down, dt_resize(x, 3, 5, DT_RESIZE_NEAREST))
PLAIN(bilinear_up, dt_resize(x, 7, 8, DT_RESIZE_BILINEAR))
PLAIN(bilinear_down, dt_resize(x, 3, 5, DT_RESIZE_BILINEAR))
PLAIN(instance_norm, dt_group_norm(x, 3, (dt_tensor){0}, (dt_tensor){0}, 0))

static dt_tensor batch_norm1d(dt_tensor x, const char *name) {
    return dt_nn_batch_norm(x, name, NULL);
}
static dt_tensor batch_norm2d(dt_tensor x, const char *name) {
    return dt_nn_batch_norm(x, name, &(dt_batch_norm_desc){.momentum = 0.25f});
}
static dt_tensor layer_norm(dt_tensor x, const char *name) {
    return dt_nn_layer_norm(x, name, 1);
}
static dt_tensor layer_norm2(dt_tensor x, const char *name) {
    return dt_nn_layer_norm(x, name, 2);
}
static dt_tensor rms_norm(dt_tensor x, const char *name) {
    return dt_nn_rms_norm(x, name, 1);
}
static dt_tensor group_norm(dt_tensor x, const char *name) {
    return dt_nn_group_norm(x, name, 3);
}

#define HEADS(function, count, ...)                                                                \
    static dt_tensor function(dt_tensor x, const char *name) {                                     \
        return dt_nn_multi_head_attention(x, (dt_tensor){0}, name, count,                          \
                                          &(dt_attention_layer_desc){__VA_ARGS__});                \
    }
HEADS(heads, 2, .no_bias = false)
HEADS(heads_causal, 3, .attention = {.causal = true})
HEADS(heads_alibi, 4, .attention = {.causal = true, .alibi = true})
HEADS(heads_rope, 2, .attention = {.causal = true}, .use_rope = true)
HEADS(heads_grouped, 4, .attention = {.causal = true}, .kv_heads = 2)

static dt_tensor swiglu(dt_tensor x, const char *name) {
    return dt_nn_swiglu(x, name, 6);
}
static dt_tensor geglu(dt_tensor x, const char *name) {
    return dt_nn_geglu(x, name, 5);
}
PLAIN(rope, dt_rope(x, &(dt_rope_desc){.base = 500}))
PLAIN(rope_pairs, dt_rope(x, &(dt_rope_desc){.interleaved = true}))

static const layer attentions[] = {
    {"heads", {5, 8}, 2, heads},
    {"heads_causal", {6, 6}, 2, heads_causal},
    {"heads_alibi", {5, 8}, 2, heads_alibi},
    {"heads_grouped", {4, 8}, 2, heads_grouped},
    {"heads_rope", {7, 8}, 2, heads_rope},
    {"rope", {2, 6, 8}, 3, rope},
    {"rope_pairs", {5, 6}, 2, rope_pairs},
    {"swiglu", {3, 4}, 2, swiglu},
    {"geglu", {3, 4}, 2, geglu},
};

static const layer convolutions[] = {
    {"conv", {2, 6, 5}, 3, conv},
    {"conv_stride", {2, 7, 6}, 3, conv_stride},
    {"conv_dilated", {2, 7, 8}, 3, conv_dilated},
    {"conv_grouped", {4, 5, 5}, 3, conv_grouped},
    {"conv_depthwise", {3, 5, 6}, 3, conv_depthwise},
    {"conv_point", {5, 4, 3}, 3, conv_point},
    {"conv_signal", {3, 11}, 2, conv_signal},
    {"transposed", {3, 3, 4}, 3, transposed},
    {"transposed_dilated", {2, 3, 4}, 3, transposed_dilated},
    {"transposed_grouped", {4, 3, 2}, 3, transposed_grouped},
    {"transposed_signal", {2, 5}, 2, transposed_signal},
};

static const layer pools[] = {
    {"max_pool", {2, 6, 6}, 3, max_pool},
    {"max_pool_padded", {2, 7, 6}, 3, max_pool_padded},
    {"max_pool_ceil", {2, 6, 7}, 3, max_pool_ceil},
    {"max_pool_ties", {2, 6, 5}, 3, max_pool_ties},
    {"avg_pool", {2, 7, 6}, 3, avg_pool},
    {"avg_pool_ceil", {2, 6, 8}, 3, avg_pool_ceil},
    {"avg_pool_exclude", {2, 6, 8}, 3, avg_pool_exclude},
    {"adaptive", {2, 7, 5}, 3, adaptive},
    {"adaptive_more", {2, 3, 4}, 3, adaptive_more},
    {"nearest_up", {2, 3, 4}, 3, nearest_up},
    {"nearest_down", {2, 7, 8}, 3, nearest_down},
    {"bilinear_up", {2, 3, 4}, 3, bilinear_up},
    {"bilinear_down", {2, 7, 8}, 3, bilinear_down},
};

#define CONV3D(function, out, kernel, ...)                                                         \
    static dt_tensor function(dt_tensor x, const char *name) {                                     \
        return dt_nn_conv3d(x, name, out, kernel, &(dt_conv3d_layer_desc){__VA_ARGS__});           \
    }
CONV3D(conv_volume, 3, 2, .kernel_h = 3, .kernel_w = 3)
CONV3D(conv_volume_stride, 4, 3, .kernel_w = 2,
       .conv = {.stride = {2, 2, 3}, .padding = {1, 1, 0}, .groups = 2})
CONV3D(conv_volume_dilated, 2, 2, .kernel_h = 2, .kernel_w = 3, .no_bias = true,
       .conv = {.stride = {1, 3, 1}, .padding = {0, 2, 1}, .dilation = {2, 3, 1}})

#define POOL3D(function, op, ...)                                                                  \
    static dt_tensor function(dt_tensor x, const char *name) {                                     \
        (void)name;                                                                                \
        return op(x, &(dt_pool3d_desc){__VA_ARGS__});                                              \
    }
POOL3D(max_pool_volume, dt_max_pool3d, .kernel = {2, 3, 2}, .stride = {1, 2, 2}, .padding = {1, 1})
POOL3D(avg_pool_volume, dt_avg_pool3d, .kernel = {3, 2, 3}, .stride = {2, 2, 2},
       .padding = {1, 1, 1}, .ceil_mode = true, .exclude_pad = true)
POOL3D(avg_pool_volume_ceil, dt_avg_pool3d, .kernel = {2, 3, 3}, .stride = {2, 2, 2},
       .padding = {1, 1, 1}, .ceil_mode = true)
PLAIN(adaptive_volume, dt_adaptive_avg_pool3d(x, 2, 3, 2))
POOL(max_pool_signal, dt_max_pool1d, .kernel = {3}, .stride = {2}, .padding = {1})
POOL(avg_pool_signal, dt_avg_pool1d, .kernel = {3}, .padding = {1}, .ceil_mode = true)
PLAIN(adaptive_signal, dt_adaptive_avg_pool1d(x, 4))

static const layer volumes[] = {
    {"conv_volume", {2, 3, 5, 4}, 4, conv_volume},
    {"conv_volume_stride", {4, 3, 4, 5}, 4, conv_volume_stride},
    {"conv_volume_dilated", {1, 4, 5, 3}, 4, conv_volume_dilated},
    {"max_pool_volume", {2, 3, 5, 4}, 4, max_pool_volume},
    {"avg_pool_volume", {1, 4, 4, 5}, 4, avg_pool_volume},
    {"avg_pool_volume_ceil", {1, 3, 6, 6}, 4, avg_pool_volume_ceil},
    {"adaptive_volume", {2, 3, 4, 5}, 4, adaptive_volume},
    {"max_pool_signal", {2, 8}, 2, max_pool_signal},
    {"avg_pool_signal", {2, 8}, 2, avg_pool_signal},
    {"adaptive_signal", {2, 7}, 2, adaptive_signal},
};

CONV(pad_reflect, dt_nn_conv2d, 3, 3, .conv = {.padding = {2, 1}},
     .padding_mode = DT_PADDING_REFLECT)
CONV(pad_reflect_most, dt_nn_conv2d, 2, 3, .conv = {.stride = {2, 2}, .padding = {3, 2}},
     .padding_mode = DT_PADDING_REFLECT)
CONV(pad_replicate, dt_nn_conv2d, 3, 3, .kernel_w = 2,
     .conv = {.padding = {1, 5}, .dilation = {2, 1}}, .padding_mode = DT_PADDING_REPLICATE)
CONV(pad_circular, dt_nn_conv2d, 4, 3, .conv = {.padding = {1, 2}, .groups = 2},
     .padding_mode = DT_PADDING_CIRCULAR)
CONV(pad_circular_most, dt_nn_conv2d, 2, 2, .conv = {.padding = {3, 4}},
     .padding_mode = DT_PADDING_CIRCULAR)
CONV(same, dt_nn_conv2d, 3, 2, .kernel_w = 3, .conv = {.dilation = {1, 2}}, .same = true)
CONV(same_reflect, dt_nn_conv2d, 3, 4, .kernel_w = 2, .padding_mode = DT_PADDING_REFLECT,
     .same = true)
CONV(reflect_signal, dt_nn_conv1d, 2, 5, .conv = {.padding = {2}},
     .padding_mode = DT_PADDING_REFLECT)
CONV(replicate_signal, dt_nn_conv1d, 2, 3, .conv = {.stride = {3}, .padding = {4}},
     .padding_mode = DT_PADDING_REPLICATE)
CONV(circular_signal, dt_nn_conv1d, 2, 4, .conv = {.padding = {7}},
     .padding_mode = DT_PADDING_CIRCULAR)
CONV(same_signal, dt_nn_conv1d, 2, 4, .conv = {.dilation = {3}}, .same = true)
CONV3D(reflect_volume, 2, 2, .kernel_h = 3, .kernel_w = 3, .conv = {.padding = {1, 2, 3}},
       .padding_mode = DT_PADDING_REFLECT)
CONV3D(replicate_volume, 2, 3, .conv = {.padding = {2, 1}}, .padding_mode = DT_PADDING_REPLICATE)
CONV3D(circular_volume, 2, 2, .conv = {.stride = {1, 2, 1}, .padding = {2, 1, 1}},
       .padding_mode = DT_PADDING_CIRCULAR)
CONV3D(same_volume, 2, 2, .kernel_h = 3, .kernel_w = 4, .same = true)
PLAIN(pad_circular_alone, dt_pad_circular(x, 2, 5, 2))

static const layer padded[] = {
    {"reflect", {2, 5, 4}, 3, pad_reflect},
    {"reflect_most", {1, 4, 3}, 3, pad_reflect_most},
    {"replicate", {2, 4, 3}, 3, pad_replicate},
    {"circular", {4, 5, 4}, 3, pad_circular},
    {"circular_most", {2, 3, 4}, 3, pad_circular_most},
    {"same", {2, 5, 4}, 3, same},
    {"same_reflect", {2, 5, 4}, 3, same_reflect},
    {"reflect_signal", {3, 7}, 2, reflect_signal},
    {"replicate_signal", {3, 7}, 2, replicate_signal},
    {"circular_signal", {3, 7}, 2, circular_signal},
    {"same_signal", {3, 7}, 2, same_signal},
    {"reflect_volume", {2, 3, 4, 4}, 4, reflect_volume},
    {"replicate_volume", {1, 2, 3, 4}, 4, replicate_volume},
    {"circular_volume", {2, 2, 3, 4}, 4, circular_volume},
    {"same_volume", {1, 3, 4, 2}, 4, same_volume},
    {"pad_circular", {2, 3, 5}, 3, pad_circular_alone},
};

static const layer norms[] = {
    {"batch_norm1d", {5}, 1, batch_norm1d},
    {"batch_norm2d", {3, 4, 2}, 3, batch_norm2d},
    {"layer_norm", {3, 7}, 2, layer_norm},
    {"layer_norm2", {2, 3, 5}, 3, layer_norm2},
    {"rms_norm", {3, 7}, 2, rms_norm},
    {"group_norm", {6, 3, 2}, 3, group_norm},
    {"instance_norm", {3, 4, 3}, 3, instance_norm},
};

static const golden_array *layer_array(golden *g, const char *name, const char *key) {
    char text[96];
    snprintf(text, sizeof text, "%s.%s", name, key);
    return golden_get(g, text);
}

static void layer_output(golden *g, dt_program *p, dt_tensor y, const golden_array *a) {
    float *got = calloc(a->count + 1, sizeof *got);
    if (OK(g, dt_program_read(p, y, got, a->count * 4)))
        golden_same(a, 0, got, a->count, IMAGE_NEAR);
    free(got);
}

/* A buffer has no gradient. */
static void layer_gradients(golden *g, double tolerance) {
    for (int i = 0; i < dt_store_param_count(g->store); i++) {
        dt_param_info info;
        char key[160];
        if (!OK(g, dt_store_get_param(g->store, i, &info)) || info.buffer)
            continue;
        snprintf(key, sizeof key, "grad.%s", info.name);
        const golden_array *a = golden_get(g, key);
        float *got = calloc((size_t)info.elements + 1, sizeof *got);
        if (a && OK(g, dt_store_read(g->store, i, DT_VALUE_GRADIENT, got, a->count * 4)))
            golden_same(a, 0, got, a->count, tolerance);
        free(got);
    }
}

static bool layer_step(golden *g, dt_program *p, const char *name, int step, int steps, dt_tensor x,
                       dt_tensor t) {
    const golden_array *xs = layer_array(g, name, "x"), *ts = layer_array(g, name, "t");
    if (!xs || !ts)
        return false;
    size_t x_count = xs->count / (size_t)steps, t_count = ts->count / (size_t)steps;
    return OK(g, dt_program_write(p, x, xs->f + x_count * (size_t)step, x_count * 4)) &&
           OK(g, dt_program_write(p, t, ts->f + t_count * (size_t)step, t_count * 4)) &&
           OK(g, dt_program_run(p, NULL, NULL));
}

/* What batch norm gives with the statistics that it has by now. */
static void layer_eval(golden *g, const char *name, int batch, dt_tensor x, dt_tensor y) {
    dt_program *p = golden_program(g, (dt_program_desc){.outputs = {y}, .batch = batch});
    const golden_array *xs = layer_array(g, name, "x"), *a = layer_array(g, name, "eval");
    if (p && xs && a && OK(g, dt_program_write(p, x, xs->f, xs->count / LAYER_STEPS * 4)) &&
        OK(g, dt_program_run(p, NULL, NULL)))
        layer_output(g, p, y, a);
}

static void layer_check(golden *g, const layer *l) {
    dt_shape shape = {.rank = l->rank};
    memcpy(shape.dim, l->x, sizeof l->x);
    dt_tensor x = dt_input(g->graph, "x", DT_F32, shape), y = l->make(x, l->name);
    dt_tensor t = dt_input(g->graph, "t", DT_F32, dt_tensor_shape(y)), loss = dt_mse(y, t);
    dt_tensor dx = dt_gradient(loss, x);
    const char *error = dt_graph_error(g->graph);
    if (!test_check(!error, __FILE__, __LINE__, "%s: %s", l->name, error ? error : ""))
        return;
    bool batches = !strncmp(l->name, "batch_norm", 10);
    if (!golden_store(g))
        return;
    dt_program_desc desc = {
        .label = l->name, .loss = loss, .outputs = {y, dx}, .batch = batches ? 4 : 2};
    bool trains = dt_store_param_count(g->store) > 0;
    desc.optim =
        trains ? &(dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 0.05, .momentum = 0.9} : NULL;
    dt_program *p = golden_program(g, desc);
    int steps = trains ? LAYER_STEPS : 1;
    for (int step = 0; p && step < steps; step++) {
        if (!layer_step(g, p, l->name, step, steps, x, t))
            return;
        const golden_array *ys = layer_array(g, l->name, "y"), *dxs = layer_array(g, l->name, "dx");
        if (step > 0 || !ys || !dxs)
            continue;
        layer_output(g, p, y, ys);
        layer_output(g, p, dx, dxs);
        layer_gradients(g, IMAGE_NEAR);
    }
    golden_final(g, "", IMAGE_NEAR, false);
    if (batches)
        layer_eval(g, l->name, desc.batch, x, y);
}

/* Each layer on a graph of its own. */
static void layers_check(golden *g, const layer *layers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        layer_check(g, &layers[i]);
        while (g->program_count > 0)
            dt_program_destroy(g->programs[--g->program_count]);
        dt_store_destroy(g->store);
        dt_graph_destroy(g->graph);
        g->store = NULL;
        g->graph = NULL;
        if (!OK(g, dt_graph_create(g->ctx, &g->graph)))
            return;
    }
}

GOLDEN(every_convolution_layer_learns_as_in_pytorch, "layers") {
    layers_check(g, convolutions, sizeof convolutions / sizeof *convolutions);
}

GOLDEN(padding_of_convolutions_by_name_is_pytorchs, "padding") {
    layers_check(g, padded, sizeof padded / sizeof *padded);
}

GOLDEN(every_pool_and_resize_is_pytorchs, "layers") {
    layers_check(g, pools, sizeof pools / sizeof *pools);
}

GOLDEN(volumes_and_pools_of_signals_are_pytorchs, "layers") {
    layers_check(g, volumes, sizeof volumes / sizeof *volumes);
}

GOLDEN(heads_of_attention_learn_as_in_pytorch, "layers") {
    layers_check(g, attentions, sizeof attentions / sizeof *attentions);
}

GOLDEN(every_norm_layer_learns_as_in_pytorch, "layers") {
    layers_check(g, norms, sizeof norms / sizeof *norms);
}

/* ---- Batch norm over micro-batches */

static const int micros[3] = {4, 5, 3};

static bool micro_step(golden *g, dt_program *const *programs, dt_tensor x, dt_tensor t, int step) {
    const golden_array *xs = golden_get(g, "x"), *ts = golden_get(g, "t");
    double weight = 12 * 6;
    size_t row = (size_t)step * 12;
    for (uint32_t m = 0; m < 3 && xs && ts; m++) {
        size_t bytes = (size_t)micros[m] * 6 * 4;
        dt_step_desc desc = {.micro_batch = m, .micro_batches = 3, .loss_weights = &weight};
        if (!OK(g, dt_program_write(programs[m], x, xs->f + row * 6, bytes)) ||
            !OK(g, dt_program_write(programs[m], t, ts->f + row * 6, bytes)) ||
            !OK(g, dt_program_run(programs[m], &desc, NULL)))
            return false;
        row += (size_t)micros[m];
    }
    return xs && ts;
}

GOLDEN(batch_norm_in_micro_batches_moves_its_statistics_as_in_pytorch, "batch_micro") {
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(3, 2));
    dt_tensor t = dt_input(g->graph, "t", DT_F32, dt_dims(3, 2));
    dt_tensor loss = dt_mse(dt_nn_batch_norm(x, "bn", NULL), t);
    dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.05, .momentum = 0.9};
    dt_program *programs[3] = {NULL};
    if (!golden_store(g))
        return;
    for (int i = 0; i < 3; i++) {
        programs[i] = golden_program(
            g,
            (dt_program_desc){.loss = loss, .batch = micros[i], .optim = &sgd, .accumulate = true});
        if (!programs[i])
            return;
    }
    for (int step = 0; step < 3; step++)
        if (!micro_step(g, programs, x, t, step))
            return;
    golden_final(g, "", IMAGE_NEAR, false);
}

/* ---- The networks. Weights and images by the formula of tools/golden/record_golden_image.py. */

#define NETWORK_STEPS 5
#define NETWORK_BATCH 8

/* Uniform in [-1, 1): a hash of the stream and the element. */
static float hashed(uint32_t stream, uint32_t i) {
    uint32_t v = i + stream * 0x9E3779B9u;
    v = (v ^ v >> 16) * 0x7FEB352Du;
    v = (v ^ v >> 15) * 0x846CA68Bu;
    v ^= v >> 16;
    return (float)((double)(v >> 8) / 8388608.0 - 1);
}

static dt_tensor cnn(dt_tensor h, int width) {
    h = dt_relu(dt_nn_conv2d(h, "conv1", width, 3, NULL));
    h = dt_relu(dt_nn_conv2d(h, "conv2", 2 * width, 3, NULL));
    h = dt_flatten(dt_max_pool2d(h, &(dt_pool_desc){.kernel = {2, 2}}));
    return dt_nn_linear(dt_relu(dt_nn_linear(h, "fc1", 4 * width)), "fc2", 10);
}

static dt_tensor conv_norm(dt_tensor h, const char *block, const char *conv_name,
                           const char *norm_name, int out, int stride, int kernel) {
    char names[2][64];
    dt_conv_layer_desc d = {.no_bias = true, .conv = {{stride, stride}, {kernel / 2, kernel / 2}}};
    snprintf(names[0], sizeof names[0], "%s%s", block, conv_name);
    snprintf(names[1], sizeof names[1], "%s%s", block, norm_name);
    return dt_nn_batch_norm(dt_nn_conv2d(h, names[0], out, kernel, &d), names[1], NULL);
}

static dt_tensor resnet(dt_tensor h, int width, int blocks, dt_tensor (*act)(dt_tensor x)) {
    h = act(conv_norm(h, "", "conv1", "bn1", width, 1, 3));
    for (int i = 0; i < 3 * blocks; i++) {
        char name[32];
        int stage = i / blocks, stride = stage && i % blocks == 0 ? 2 : 1, out = width << stage;
        snprintf(name, sizeof name, "layer%d.%d.", stage + 1, i % blocks);
        dt_tensor y = act(conv_norm(h, name, "conv1", "bn1", out, stride, 3));
        y = conv_norm(y, name, "conv2", "bn2", out, 1, 3);
        if (stride > 1)
            h = conv_norm(h, name, "downsample.0", "downsample.1", out, stride, 1);
        h = act(dt_add(y, h));
    }
    return dt_nn_linear(dt_flatten(dt_adaptive_avg_pool2d(h, 1, 1)), "fc", 10);
}

/* Parameter number i is from stream i, in +-1/sqrt(fan_in), where a bias has its weight's; those of
 * norms stay as their layer made them. */
static bool network_weights(golden *g) {
    int64_t fan_in = 1;
    for (int i = 0; i < dt_store_param_count(g->store); i++) {
        dt_param_info info;
        if (!OK(g, dt_store_get_param(g->store, i, &info)))
            return false;
        bool norm = info.buffer || strstr(info.name, "bn") || strstr(info.name, "downsample.1");
        for (int k = 1; info.shape.rank > 1 && k < info.shape.rank; k++)
            fan_in = (k == 1 ? 1 : fan_in) * info.shape.dim[k];
        if (norm)
            continue;
        float *values = calloc((size_t)info.elements + 1, sizeof *values);
        float bound = (float)(1 / sqrt((double)fan_in));
        for (uint32_t k = 0; k < info.elements; k++)
            values[k] = hashed((uint32_t)i, k) * bound;
        bool ok = OK(g, dt_store_write(g->store, i, DT_VALUE_PARAM, values, info.elements * 4));
        free(values);
        if (!ok)
            return false;
    }
    return true;
}

static bool network_step(golden *g, dt_program *p, dt_tensor x, dt_tensor t, int step, int size,
                         dt_report *report) {
    static float pixels[NETWORK_BATCH * 28 * 28];
    int32_t classes[NETWORK_BATCH];
    size_t count = (size_t)(NETWORK_BATCH * size * size);
    for (uint32_t i = 0; i < count; i++)
        pixels[i] = hashed(1000 + (uint32_t)step, i);
    for (int i = 0; i < NETWORK_BATCH; i++)
        classes[i] = (7 * step + 3 * i) % 10;
    return OK(g, dt_program_write(p, x, pixels, count * 4)) &&
           OK(g, dt_program_write(p, t, classes, sizeof classes)) &&
           OK(g, dt_program_run(p, NULL, report));
}

/* `whole`: the file has only the losses. */
static void network_train(golden *g, dt_tensor x, dt_tensor y, int size, const char *losses,
                          bool whole) {
    dt_tensor t = dt_input(g->graph, "t", DT_I32, dt_dims());
    dt_tensor loss = dt_cross_entropy(y, t, NULL);
    const golden_array *a = golden_get(g, losses);
    if (!a || !OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store)) ||
        !network_weights(g))
        return;
    dt_program *p = golden_program(
        g, (dt_program_desc){.loss = loss,
                             .batch = NETWORK_BATCH,
                             .optim = &(dt_optim_desc){.kind = DT_OPTIM_ADAM, .lr = 1e-3}});
    for (int step = 0; p && step < NETWORK_STEPS; step++) {
        dt_report report;
        if (!network_step(g, p, x, t, step, size, &report))
            return;
        double wanted = golden_value(a, (size_t)step);
        golden_near(report.loss, wanted, IMAGE_NEAR * fabs(wanted), losses, step);
        if (step == 0 && !whole)
            layer_gradients(g, IMAGE_NEAR);
    }
    if (!whole)
        golden_final(g, "", IMAGE_NEAR, false);
}

GOLDEN(a_small_cnn_learns_as_in_pytorch, "cnn") {
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(1, 12, 12));
    network_train(g, x, cnn(x, 4), 12, "loss", false);
}

GOLDEN(a_small_resnet_learns_as_in_pytorch, "resnet") {
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(1, 12, 12));
    network_train(g, x, resnet(x, 4, 1, dt_relu), 12, "loss", false);
}

static void whole_cnn(golden *g) {
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(1, 28, 28));
    network_train(g, x, cnn(x, 32), 28, "cnn", true);
}

static void whole_resnet(golden *g) {
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(1, 28, 28));
    network_train(g, x, resnet(x, 16, 3, dt_gelu), 28, "resnet", true);
}

TEST(the_cnn_of_the_mnist_example_has_the_losses_of_pytorch_on_cpu) {
    golden_run("cpu", "networks", whole_cnn);
}

TEST(a_resnet_of_20_layers_has_the_losses_of_pytorch_on_cpu) {
    golden_run("cpu", "networks", whole_resnet);
}

/* The whole networks are too much for the slowest of the software devices. */
TEST(complete_networks_have_the_losses_of_pytorch_on_vulkan) {
    dt_ctx *ctx;
    char id[32] = "";
    if (!test_check(dt_ctx_create(NULL, &ctx) == DT_OK, __FILE__, __LINE__, "no context"))
        return;
    for (int i = 1; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *info = dt_ctx_device(ctx, i);
        if (info->usable && !id[0] && !strstr(info->name, "SwiftShader"))
            snprintf(id, sizeof id, "%s", info->id);
    }
    dt_ctx_destroy(ctx);
    if (!id[0])
        SKIP("no Vulkan device that is fast enough");
    golden_run(id, "networks", whole_cnn);
    golden_run(id, "networks", whole_resnet);
}
