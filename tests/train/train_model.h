/* A small model and its data for the tests of training. It has convolution, batch norm, dropout and
 * a linear layer, so that every kind of row is in it; or, without couples, an MLP. */
#ifndef DTRAIN_TESTS_TRAIN_MODEL_H
#define DTRAIN_TESTS_TRAIN_MODEL_H

#include "dtrain.h"
#include "harness.h"
#include <stdatomic.h>
#include <stdlib.h>

#define CHECK_TEXT(condition, ...) test_check((condition), __FILE__, __LINE__, __VA_ARGS__)

/* An allocator that counts its calls, of all contexts that a trainer makes, on any thread. */
static inline void *train_alloc(void *user, size_t bytes, size_t align) {
    atomic_fetch_add((atomic_int *)user, 1);
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static inline void train_free(void *user, void *memory, size_t bytes) {
    (void)user, (void)bytes;
    free(memory);
}

enum { TRAIN_ROWS = 150, TRAIN_SIDE = 6, TRAIN_CLASSES = 5 };

typedef struct train_data {
    float x[TRAIN_ROWS * TRAIN_SIDE * TRAIN_SIDE];
    int32_t t[TRAIN_ROWS];
} train_data;

static uint32_t train_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Classes that can be learnt: a bright row each. Every eleventh target is ignored. */
static void train_data_fill(train_data *d) {
    uint32_t state = 7;
    for (int i = 0; i < TRAIN_ROWS; i++) {
        int class = (int)(train_random(&state) % TRAIN_CLASSES);
        d->t[i] = i % 11 == 10 ? -100 : class;
        for (int k = 0; k < TRAIN_SIDE * TRAIN_SIDE; k++)
            d->x[i * TRAIN_SIDE * TRAIN_SIDE + k] =
                (float)(train_random(&state) % 1000) / 1000.0f + (k / TRAIN_SIDE == class);
    }
}

typedef struct train_model {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, t, loss, accuracy, logits;
    train_data data;
    dt_optim_desc adam;
} train_model;

static dt_tensor train_conv(dt_tensor x) {
    dt_tensor h = dt_reshape(x, dt_dims(1, TRAIN_SIDE, TRAIN_SIDE));
    h = dt_nn_conv2d(h, "conv", 4, 3, &(dt_conv_layer_desc){.conv = {.padding = {1, 1}}});
    h = dt_relu(dt_nn_batch_norm(h, "bn", NULL));
    return dt_flatten(dt_max_pool2d(h, &(dt_pool_desc){.kernel = {2, 2}}));
}

/* Weights that are sums: of two parameters, whose gradients are one; of a parameter and of a tensor
 * computed from another, whose gradient is read again. */
enum { TRAIN_SUMS = 2 };
static dt_tensor train_sums(dt_graph *g, dt_tensor x) {
    const dt_shape shape = dt_dims(24, TRAIN_SIDE * TRAIN_SIDE), small = dt_dims(16, 24);
    const dt_init init = {.kind = DT_INIT_UNIFORM, .a = -0.1f, .b = 0.1f};
    dt_tensor w = dt_param(g, "one", shape, init); /* not in a call with the other: any order */
    w = dt_add(w, dt_param(g, "two", shape, init));
    dt_tensor v = dt_tanh(dt_param(g, "inner", small, init));
    x = dt_relu(dt_linear(x, w, (dt_tensor){0}));
    w = dt_param(g, "base", small, init);
    return dt_linear(x, dt_add(w, v), (dt_tensor){0});
}

/* Weights that buffers normalise, whose next values are of no sample. */
enum { TRAIN_SPECTRAL = 3 };
static dt_tensor train_spectral(dt_graph *g, dt_tensor x) {
    dt_tensor h = dt_reshape(x, dt_dims(1, TRAIN_SIDE, TRAIN_SIDE));
    dt_tensor w = dt_nn_spectral_norm(g, "conv", dt_dims(3, 1, 3, 3), NULL);
    h = dt_flatten(dt_relu(dt_conv2d(h, w, (dt_tensor){0}, NULL)));
    w = dt_nn_spectral_norm(g, "fc0", dt_dims(24, 48), &(dt_spectral_norm_desc){.iterations = 2});
    return dt_relu(dt_linear(h, w, (dt_tensor){0}));
}

/* Batch norms over the whole batch of the job, in a block of a residual net. */
enum { TRAIN_SYNC = 4 };
static dt_tensor train_sync(dt_tensor x) {
    const dt_conv_layer_desc padded = {.conv = {.padding = {1, 1}}};
    const dt_batch_norm_desc sync = {.sync = true}, frozen = {.sync = true, .frozen = true};
    dt_tensor h = dt_reshape(x, dt_dims(1, TRAIN_SIDE, TRAIN_SIDE));
    h = dt_relu(dt_nn_batch_norm(dt_nn_conv2d(h, "conv", 4, 3, &padded), "bn", &sync));
    dt_tensor y = dt_relu(dt_nn_batch_norm(dt_nn_conv2d(h, "b1", 4, 3, &padded), "n1", &frozen));
    y = dt_nn_batch_norm(dt_nn_conv2d(y, "b2", 4, 3, &padded), "n2", &sync);
    h = dt_flatten(dt_max_pool2d(dt_relu(dt_add(h, y)), &(dt_pool_desc){.kernel = {2, 2}}));
    return dt_nn_batch_norm(h, "n3", &sync); /* one value a sample */
}

/* Hidden units that tensor ranks can split. */
enum { TRAIN_PARTS = 5 };

/* kind: 0 = MLP, 1 = convolution and batch norm, TRAIN_SUMS = that, and class weights;
 * TRAIN_SPECTRAL, TRAIN_SYNC and TRAIN_PARTS = those. */
__attribute__((__unused__)) static bool train_model_make(train_model *m, const dt_ctx_desc *ctx,
                                                         int kind) {
    *m = (train_model){.adam = {.kind = DT_OPTIM_ADAM, .lr = 0.01, .clip_norm = 1.0}};
    if (dt_ctx_create(ctx, &m->ctx) || dt_graph_create(m->ctx, &m->graph))
        return false;
    m->x = dt_input(m->graph, "x", DT_F32, dt_dims(TRAIN_SIDE * TRAIN_SIDE));
    m->t = dt_input(m->graph, "t", DT_I32, dt_dims());
    dt_tensor h = kind == TRAIN_SUMS       ? train_sums(m->graph, m->x)
                  : kind == TRAIN_SPECTRAL ? train_spectral(m->graph, m->x)
                  : kind == TRAIN_SYNC     ? train_sync(m->x)
                  : kind == TRAIN_PARTS    ? dt_nn_swiglu(m->x, "mlp", 24)
                  : kind                   ? train_conv(m->x)
                                           : dt_relu(dt_nn_linear(m->x, "fc0", 24));
    dt_cross_entropy_desc weighted = {0};
    if (kind == TRAIN_SUMS)
        weighted.class_weights =
            dt_freeze(dt_param(m->graph, "class.weights", dt_dims(TRAIN_CLASSES),
                               (dt_init){.kind = DT_INIT_UNIFORM, .a = 0.1f, .b = 3.0f}));
    h = dt_tanh(dt_nn_linear(dt_dropout(h, 0.2f), "fc1", 16));
    m->logits = dt_nn_linear(h, "fc2", TRAIN_CLASSES);
    m->loss = dt_cross_entropy(m->logits, m->t, &weighted);
    m->accuracy = dt_accuracy(m->logits, m->t);
    train_data_fill(&m->data);
    return dt_graph_error(m->graph) == NULL;
}

/* The values of all parameters and buffers, at most `room`; how many there are. */
__attribute__((__unused__)) static int train_values(dt_trainer *t, float *to, int room) {
    dt_store *s = dt_trainer_store(t);
    int count = 0;
    for (int i = 0; i < dt_store_param_count(s); i++) {
        dt_param_info p;
        dt_store_get_param(s, i, &p);
        if (CHECK_TEXT(count + (int)p.elements <= room, "room"))
            CHECK(!dt_store_read(s, i, DT_VALUE_PARAM, to + count, 4 * p.elements));
        count += (int)p.elements;
    }
    return count;
}

/* Of the weights and buffers, which all have; moments are each replica's own. */
__attribute__((__unused__)) static uint64_t train_values_hash(dt_trainer *t) {
    float values[8192]; /* trainers hash on threads of their own */
    uint64_t hash = 1469598103934665603u;
    const int count = train_values(t, values, 8192);
    for (int i = 0; i < count * 4; i++)
        hash = (hash ^ ((const unsigned char *)values)[i]) * 1099511628211u;
    return count ? hash : 0;
}

__attribute__((__unused__)) static bool train_has_vulkan(void) {
    dt_ctx *ctx;
    if (dt_ctx_create(NULL, &ctx))
        return false;
    const bool there = dt_ctx_device_count(ctx) > 1 && dt_ctx_device(ctx, 1)->usable;
    dt_ctx_destroy(ctx);
    return there;
}

/* The parts of a committed step's time are there, and no more than the whole. */
__attribute__((__unused__)) static bool train_times_add_up(const dt_train_report *r) {
    const double parts = r->data_seconds + r->forward_seconds + r->backward_seconds +
                         r->wait_seconds + r->commit_seconds;
    return r->forward_seconds > 0 && r->backward_seconds > 0 && r->commit_seconds > 0 &&
           parts <= r->seconds + 1e-9;
}

__attribute__((__unused__)) static dt_trainer_desc train_desc(train_model *m) {
    return (dt_trainer_desc){
        .loss = m->loss,
        .metrics = {m->accuracy},
        .optim = &m->adam,
        .seed = 3,
        .batch = 37,
        .data = {.rows = TRAIN_ROWS,
                 .columns = {{.input = m->x, .data = m->data.x, .dtype = DT_F32},
                             {.input = m->t, .data = m->data.t, .dtype = DT_I32}}}};
}

#endif
