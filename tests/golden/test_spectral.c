/* Spectral norm: PyTorch's values, step by step (tools/golden/record_golden_spectral.py), when its
 * buffers move and when they stay, and its gradients against finite differences. */
#include "golden/golden.h"

enum { SPECTRAL_STEPS = 5, SPECTRAL_BATCH = 4, SPECTRAL_FC = 75, SPECTRAL_ROOM = 4 * SPECTRAL_FC };

typedef struct spectral_net {
    dt_tensor x, t, y, loss;
    dt_optim_desc sgd;
} spectral_net;

static dt_tensor spectral_bias(dt_graph *graph, const char *name, int64_t size) {
    return dt_param(graph, name, dt_dims(size), (dt_init){0});
}

static bool spectral_make(golden *g, spectral_net *n) {
    dt_graph *graph = g->graph;
    const dt_conv_desc same = {.padding = {1, 1}};
    n->x = dt_input(graph, "x", DT_F32, dt_dims(2, 5, 5));
    n->t = dt_input(graph, "t", DT_F32, dt_dims(4));
    dt_tensor w = dt_nn_spectral_norm(graph, "conv", dt_dims(3, 2, 3, 3), NULL);
    dt_tensor h = dt_tanh(dt_conv2d(n->x, w, spectral_bias(graph, "conv.bias", 3), &same));
    w = dt_nn_spectral_norm(graph, "fc", dt_dims(4, SPECTRAL_FC),
                            &(dt_spectral_norm_desc){.iterations = 2});
    n->y = dt_linear(dt_flatten(h), w, spectral_bias(graph, "fc.bias", 4));
    n->loss = dt_mse(n->y, n->t);
    n->sgd = (dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 0.25};
    return test_check(!dt_graph_error(graph), __FILE__, __LINE__, "%s", dt_graph_error(graph)) &&
           golden_store(g);
}

static bool spectral_feed(golden *g, const spectral_net *n, dt_program *p, int first, int rows) {
    const golden_array *x = golden_get(g, "x"), *t = golden_get(g, "t");
    return p && x && t &&
           OK(g, dt_program_write(p, n->x, x->f + 50 * first, 200u * (size_t)rows)) &&
           (!n->t.id || OK(g, dt_program_write(p, n->t, t->f + 4 * first, 16u * (size_t)rows)));
}

static dt_program *spectral_program(golden *g, const spectral_net *n, dt_program_desc desc) {
    desc.batch = SPECTRAL_BATCH;
    dt_program *p = golden_program(g, desc);
    return spectral_feed(g, n, p, 0, SPECTRAL_BATCH) ? p : NULL;
}

static size_t spectral_read(const golden *g, int index, float *out, char *key, size_t room) {
    dt_param_info info = {0};
    OK(g, dt_store_get_param(g->store, index, &info));
    snprintf(key, room, "step.%s", info.name);
    OK(g, dt_store_read(g->store, index, DT_VALUE_PARAM, out, 4 * (size_t)info.elements));
    return (size_t)info.elements;
}

static void spectral_compare(golden *g, int step) {
    for (int i = 0; i < dt_store_param_count(g->store); i++) {
        float got[SPECTRAL_ROOM];
        char key[128];
        const size_t count = spectral_read(g, i, got, key, sizeof key);
        const golden_array *a = golden_get(g, key);
        if (a && test_check(a->count == SPECTRAL_STEPS * count, __FILE__, __LINE__, "%s", key))
            golden_same(a, (size_t)step * count, got, count, 3e-6);
    }
}

GOLDEN(spectral_norm_trains_as_pytorchs, "spectral") {
    spectral_net n;
    if (!spectral_make(g, &n))
        return;
    dt_program *p = spectral_program(g, &n, (dt_program_desc){.loss = n.loss, .optim = &n.sgd});
    for (int s = 0; s < SPECTRAL_STEPS && p; s++) {
        dt_report report = {0};
        OK(g, dt_program_run(p, &(dt_step_desc){0}, &report));
        golden_loss(g, "loss", s, report.loss);
        spectral_compare(g, s);
    }
    float y[4 * SPECTRAL_BATCH];
    const golden_array *wanted = golden_get(g, "y");
    spectral_net only = n;
    only.t = (dt_tensor){0};
    p = spectral_program(g, &only, (dt_program_desc){.outputs = {n.y}});
    if (p && wanted && OK(g, dt_program_run(p, NULL, NULL)) &&
        OK(g, dt_program_read(p, n.y, y, sizeof y)))
        golden_same(wanted, 0, y, 4 * SPECTRAL_BATCH, 3e-6);
}

/* All buffers, one after the other. */
static size_t spectral_buffers(const golden *g, float *out) {
    static const char *const names[] = {
        "conv.parametrizations.weight.0._u", "conv.parametrizations.weight.0._v",
        "fc.parametrizations.weight.0._u", "fc.parametrizations.weight.0._v"};
    size_t count = 0;
    for (int i = 0; i < 4; i++) {
        char key[128];
        const int index = dt_store_find(g->store, names[i]);
        test_check(index >= 0, __FILE__, __LINE__, "no %s", names[i]);
        count += spectral_read(g, index, out + count, key, sizeof key);
    }
    return count;
}

enum { SPECTRAL_VECTORS = 3 + 18 + 4 + SPECTRAL_FC };

GOLDEN(spectral_norms_buffers_move_with_commits_of_training_alone, "spectral") {
    spectral_net n;
    float before[SPECTRAL_VECTORS], after[SPECTRAL_VECTORS];
    if (!spectral_make(g, &n))
        return;
    const dt_program_desc stay[] = {{.outputs = {n.y}, .loss = n.loss, .mode = DT_MODE_EVAL},
                                    {.loss = n.loss, .optim = &n.sgd, .mode = DT_MODE_EVAL},
                                    {.loss = n.loss, .mode = DT_MODE_TRAIN}};
    CHECK(spectral_buffers(g, before) == SPECTRAL_VECTORS);
    for (int i = 0; i < 3; i++) {
        dt_program *p = spectral_program(g, &n, stay[i]);
        CHECK(p && OK(g, dt_program_run(p, &(dt_step_desc){0}, NULL)));
        spectral_buffers(g, after);
        CHECK(memcmp(before, after, sizeof after) == 0);
    }
    const dt_program_desc moves = {.loss = n.loss, .optim = &n.sgd, .params = "conv.bias"};
    dt_program *p = spectral_program(g, &n, moves);
    CHECK(p && OK(g, dt_program_run(p, &(dt_step_desc){0}, NULL)));
    spectral_buffers(g, after);
    CHECK(memcmp(before, after, sizeof after) != 0);
}

GOLDEN(spectral_norms_buffers_move_once_for_all_micro_batches, "spectral") {
    float once[SPECTRAL_VECTORS], parts[SPECTRAL_VECTORS];
    spectral_net n;
    if (!spectral_make(g, &n))
        return;
    dt_program *p = spectral_program(g, &n, (dt_program_desc){.loss = n.loss, .optim = &n.sgd});
    CHECK(p && OK(g, dt_program_run(p, &(dt_step_desc){0}, NULL)));
    spectral_buffers(g, once);
    for (int i = 0; i < dt_store_param_count(g->store); i++)
        golden_write_init(g, i);
    p = golden_program(
        g, (dt_program_desc){.loss = n.loss, .optim = &n.sgd, .batch = 1, .accumulate = true});
    const double weight = 4 * SPECTRAL_BATCH;
    for (int m = 0; m < SPECTRAL_BATCH && spectral_feed(g, &n, p, m, 1); m++) {
        const dt_step_desc step = {
            .micro_batch = (uint32_t)m, .micro_batches = SPECTRAL_BATCH, .loss_weights = &weight};
        OK(g, dt_program_run(p, &step, NULL));
    }
    spectral_buffers(g, parts);
    CHECK(memcmp(once, parts, sizeof once) == 0);
}

GOLDEN(spectral_norms_buffers_move_at_other_shapes_too, NULL) {
    float u[2][3], images[2 * 6 * 7] = {1, 2, 3};
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(2, 5, 5));
    dt_tensor w = dt_nn_spectral_norm(g->graph, "conv", dt_dims(3, 2, 3, 3), NULL);
    dt_tensor loss = dt_mean_loss(dt_square(dt_conv2d(x, w, (dt_tensor){0}, NULL)));
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.25};
    for (int i = 0; i < 2; i++) {
        dt_program_desc d = {.loss = loss, .optim = &sgd};
        d.shapes[0] = i ? (dt_input_shape){x, dt_dims(2, 6, 7)} : (dt_input_shape){0};
        if (!OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store)))
            return;
        dt_program *p = golden_program(g, d);
        const int index = dt_store_find(g->store, "conv.parametrizations.weight.0._u");
        if (!p || !OK(g, dt_program_write(p, x, images, i ? sizeof images : 200)))
            return;
        OK(g, dt_program_run(p, &(dt_step_desc){0}, NULL));
        OK(g, dt_store_read(g->store, index, DT_VALUE_PARAM, u[i], sizeof u[i]));
        dt_program_destroy(g->programs[--g->program_count]);
        dt_store_destroy(g->store);
        g->store = NULL;
    }
    CHECK(memcmp(u[0], u[1], sizeof u[0]) == 0);
    CHECK_NEAR(u[0][0] * u[0][0] + u[0][1] * u[0][1] + u[0][2] * u[0][2], 1, 1e-6);
}

/* ---- gradients */

static double spectral_loss(const golden *g, dt_program *p) {
    dt_report report = {0};
    OK(g, dt_program_run(p, &(dt_step_desc){0}, &report));
    return report.loss;
}

/* Some weights of a layer, whose gradient the program's run leaves, moved to both sides. */
static void spectral_slopes(golden *g, dt_program *p, const char *name) {
    float w[SPECTRAL_ROOM], slope[SPECTRAL_ROOM];
    char key[128];
    const int index = dt_store_find(g->store, name);
    const size_t count = spectral_read(g, index, w, key, sizeof key);
    const float h = 1.0f / 128;
    spectral_loss(g, p);
    OK(g, dt_store_read(g->store, index, DT_VALUE_GRADIENT, slope, 4 * count));
    for (size_t i = 0; i < count; i += 1 + count / 12) {
        const float from = w[i];
        double loss[2];
        for (int side = 0; side < 2; side++) {
            w[i] = side ? from + h : from - h;
            OK(g, dt_store_write(g->store, index, DT_VALUE_PARAM, w, 4 * count));
            loss[side] = spectral_loss(g, p);
        }
        w[i] = from;
        golden_near((double)slope[i], (loss[1] - loss[0]) / (2.0 * (double)h), 2e-3, name, (int)i);
    }
    OK(g, dt_store_write(g->store, index, DT_VALUE_PARAM, w, 4 * count));
}

/* With u and v as they are: in training no gradient flows through them either. */
static void spectral_check(golden *g, const spectral_net *n, dt_tensor loss) {
    const dt_optim_desc still = {.kind = DT_OPTIM_SGD, .lr = DT_ZERO};
    dt_program *p = spectral_program(
        g, n, (dt_program_desc){.loss = loss, .optim = &still, .mode = DT_MODE_EVAL});
    for (int i = 0; i < 2 && p; i++)
        spectral_slopes(g, p,
                        i ? "conv.parametrizations.weight.original"
                          : "fc.parametrizations.weight.original");
}

GOLDEN(spectral_norms_gradients_match_finite_differences, "spectral") {
    spectral_net n;
    if (spectral_make(g, &n))
        spectral_check(g, &n, n.loss);
}

GOLDEN(spectral_norms_second_derivatives_match_finite_differences, "spectral") {
    spectral_net n;
    if (!spectral_make(g, &n))
        return;
    dt_tensor slope = dt_gradient(dt_square(n.y), n.x);
    n.t = (dt_tensor){0};
    spectral_check(g, &n, dt_mean_loss(dt_square(slope)));
}

TEST(spectral_norm_refuses_unsupported_arguments_by_name) {
    dt_ctx *ctx;
    dt_graph *g;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
    CHECK(!dt_nn_spectral_norm(g, "fc", dt_dims(7), NULL).id);
    CHECK_CONTAINS(dt_graph_error(g), "spectral_norm 'fc': weight [7] must be [out, ...]");
    dt_graph_clear_error(g);
    CHECK(!dt_nn_spectral_norm(g, "fc", dt_dims(7, 0), NULL).id);
    CHECK_CONTAINS(dt_graph_error(g), "not empty");
    dt_graph_clear_error(g);
    CHECK(!dt_nn_spectral_norm(g, "fc", dt_dims(7, 2), &(dt_spectral_norm_desc){.iterations = -1})
               .id);
    CHECK_CONTAINS(dt_graph_error(g), "-1 iterations");
    dt_graph_clear_error(g);
    CHECK(dt_nn_spectral_norm(g, "fc", dt_dims(7, 2), NULL).id != 0); /* its name is free */
    CHECK(!dt_nn_spectral_norm(g, "fc", dt_dims(7, 2), NULL).id);
    CHECK_CONTAINS(dt_graph_error(g), "another parameter has this name");
    dt_graph_destroy(g);
    dt_ctx_destroy(ctx);
}
