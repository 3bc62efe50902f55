/* Models for the tests of pipelines: residuals over a cut, tied weights, weights that buffers
 * normalise, class weights of another stage. */
#ifndef DTRAIN_TESTS_PIPE_MODEL_H
#define DTRAIN_TESTS_PIPE_MODEL_H

#include "train/train_model.h"

enum { PIPE_TIED = 10, PIPE_SKIP, PIPE_NORM, PIPE_CLASSES, PIPE_RANDOM = 100 };

/* Blocks with a residual around two of them, which crosses a stage, and one around each. */
static dt_tensor pipe_skip(dt_tensor x) {
    char name[16];
    dt_tensor h = dt_relu(dt_nn_linear(x, "in", 20)), first = h;
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "block%d", i);
        h = dt_add(h, dt_tanh(dt_nn_linear(dt_dropout(h, 0.1f), name, 20)));
        h = i == 2 ? dt_add(h, dt_mul(first, h)) : h;
    }
    return h;
}

/* A weight that the first and the last layer have. */
static dt_tensor pipe_tied(dt_graph *g, dt_tensor x) {
    const dt_init init = {.kind = DT_INIT_UNIFORM, .a = -0.2f, .b = 0.2f};
    const dt_tensor w = dt_param(g, "tied", dt_dims(36, 36), init);
    dt_tensor h = dt_tanh(dt_linear(x, w, (dt_tensor){0}));
    h = dt_tanh(dt_nn_linear(h, "mid0", 36));
    h = dt_tanh(dt_nn_linear(h, "mid1", 36));
    h = dt_linear(h, w, (dt_tensor){0});
    h = dt_tanh(dt_nn_linear(h, "mid2", 36));
    return dt_linear(h, w, (dt_tensor){0});
}

/* Most of the work is what moves the buffers of a normalised weight: no cut may part these. */
static dt_tensor pipe_norm(dt_graph *g, dt_tensor x) {
    const dt_spectral_norm_desc four = {.iterations = 4};
    const dt_tensor w = dt_nn_spectral_norm(g, "wide", dt_dims(200, 8), &four);
    return dt_tanh(dt_linear(dt_tanh(dt_nn_linear(x, "in", 8)), w, (dt_tensor){0}));
}

/* PIPE_RANDOM + seed: layers that are plain, normalised by 1 to 5 iterations, or dead, so that
 * their weights have a gradient of 0; of any sizes, so that cuts come anywhere. */
static dt_tensor pipe_random(dt_graph *g, dt_tensor h, uint32_t seed) {
    uint32_t state = seed * 2654435761u;
    char name[16];
    int64_t in = 8;
    const dt_tensor shared = dt_param(g, "shared", dt_dims(1), (dt_init){DT_INIT_UNIFORM, -1, 1});
    h = dt_tanh(dt_nn_linear(h, "first", (int)in));
    for (uint32_t i = 0, layers = 3 + train_random(&state) % 3; i < layers; i++) {
        const int64_t out = 4 + train_random(&state) % 40;
        const uint32_t kind = train_random(&state) % 4;
        const dt_spectral_norm_desc norm = {.iterations = 1 + train_random(&state) % 5};
        snprintf(name, sizeof name, "l%u", i);
        if (kind < 2)
            h = dt_tanh(dt_nn_linear(h, name, (int)out));
        else if (kind == 2)
            h = dt_tanh(dt_linear(h, dt_nn_spectral_norm(g, name, dt_dims(out, in), &norm),
                                  (dt_tensor){0}));
        else
            h = dt_sub(
                h, dt_relu(dt_affine(dt_mul(dt_nn_linear(h, name, (int)in), shared), 1, -1e4f)));
        in = kind == 3 ? in : out;
    }
    h = dt_tanh(dt_nn_linear(h, "last", 8));
    return dt_sub(h, dt_relu(dt_affine(dt_mul(h, shared), 1, -1e4f)));
}

/* Class weights that a loss of the first stage and one of the last have. */
static dt_tensor pipe_classes(train_model *m) {
    const dt_init init = {.kind = DT_INIT_UNIFORM, .a = 0.1f, .b = 3.0f};
    const dt_tensor weights = dt_param(m->graph, "class.weights", dt_dims(TRAIN_CLASSES), init);
    const dt_cross_entropy_desc weighted = {.class_weights = dt_freeze(weights)};
    const dt_tensor h = dt_relu(dt_nn_linear(m->x, "in", 24));
    m->accuracy = dt_cross_entropy(dt_nn_linear(h, "aux", TRAIN_CLASSES), m->t, &weighted);
    m->logits = dt_nn_linear(dt_tanh(dt_nn_linear(h, "mid", 64)), "out", TRAIN_CLASSES);
    return dt_cross_entropy(m->logits, m->t, &weighted);
}

static bool pipe_model(train_model *m, const dt_ctx_desc *ctx, int kind) {
    if (kind < PIPE_TIED)
        return train_model_make(m, ctx, kind);
    *m = (train_model){.adam = {.kind = DT_OPTIM_ADAM, .lr = 0.01, .clip_norm = 1.0}};
    if (dt_ctx_create(ctx, &m->ctx) || dt_graph_create(m->ctx, &m->graph))
        return false;
    m->x = dt_input(m->graph, "x", DT_F32, dt_dims(TRAIN_SIDE * TRAIN_SIDE));
    m->t = dt_input(m->graph, "t", DT_I32, dt_dims());
    train_data_fill(&m->data);
    if (kind == PIPE_CLASSES) {
        m->loss = pipe_classes(m);
        return dt_graph_error(m->graph) == NULL;
    }
    dt_tensor h = kind == PIPE_TIED    ? pipe_tied(m->graph, m->x)
                  : kind == PIPE_NORM  ? pipe_norm(m->graph, m->x)
                  : kind < PIPE_RANDOM ? pipe_skip(m->x)
                                       : pipe_random(m->graph, m->x, (uint32_t)kind - PIPE_RANDOM);
    m->logits = dt_nn_linear(h, "out", TRAIN_CLASSES);
    m->loss = dt_cross_entropy(m->logits, m->t, &(dt_cross_entropy_desc){0});
    m->accuracy = dt_accuracy(m->logits, m->t);
    return dt_graph_error(m->graph) == NULL;
}

/* PIPE_CLASSES has two losses, and no metric. */
__attribute__((__unused__)) static void pipe_losses(const train_model *m, int kind,
                                                    dt_trainer_desc *d) {
    if (kind != PIPE_CLASSES)
        return;
    d->losses[0].term = m->loss;
    d->losses[1].term = m->accuracy;
    d->loss = d->metrics[0] = (dt_tensor){0};
}

__attribute__((__unused__)) static bool pipe_has_vulkan(void) {
    dt_ctx *ctx;
    if (dt_ctx_create(&(dt_ctx_desc){0}, &ctx))
        return false;
    bool there = false;
    for (int i = 0; i < dt_ctx_device_count(ctx); i++)
        there = there ||
                (dt_ctx_device(ctx, i)->usable && dt_ctx_device(ctx, i)->kind != DT_DEVICE_CPU);
    dt_ctx_destroy(ctx);
    return there;
}

#endif
