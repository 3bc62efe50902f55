/* Batch norm over the whole batch of a job (.sync) against PyTorch's on two ranks
 * (tools/golden/record_golden_sync.py). Weights, running statistics and losses are compared step by
 * step. */
#include "golden/golden.h"

enum { SYNC_STEPS = 6, SYNC_BATCH = 12, SYNC_ROWS = SYNC_STEPS * SYNC_BATCH, SYNC_ROOM = 600 };

typedef struct sync_net {
    dt_tensor x, t, y, loss;
} sync_net;

static bool sync_make(golden *g, sync_net *n) {
    const dt_batch_norm_desc sync = {.sync = true};
    n->x = dt_input(g->graph, "x", DT_F32, dt_dims(2, 5, 5));
    n->t = dt_input(g->graph, "t", DT_I32, dt_dims());
    dt_tensor h =
        dt_nn_conv2d(n->x, "conv", 4, 3, &(dt_conv_layer_desc){.conv = {.padding = {1, 1}}});
    h = dt_flatten(dt_relu(dt_nn_batch_norm(h, "bn1", &sync)));
    h = dt_tanh(dt_nn_batch_norm(dt_nn_linear(h, "fc", 6), "bn2", &sync));
    n->y = dt_nn_linear(h, "out", 5);
    n->loss = dt_cross_entropy(n->y, n->t, NULL);
    return test_check(!dt_graph_error(g->graph), __FILE__, __LINE__, "%s",
                      dt_graph_error(g->graph));
}

static void sync_begin(golden *g, dt_store *s) {
    for (int i = 0; i < dt_store_param_count(s); i++) {
        dt_param_info info = {0};
        char key[128];
        OK(g, dt_store_get_param(s, i, &info));
        snprintf(key, sizeof key, "init.%s", info.name);
        const golden_array *a = golden_get(g, key);
        if (a)
            OK(g, dt_store_write(s, i, DT_VALUE_PARAM, a->f, 4 * a->count));
    }
}

static void sync_compare(golden *g, dt_store *s, int step) {
    for (int i = 0; i < dt_store_param_count(s); i++) {
        float got[SYNC_ROOM];
        dt_param_info info = {0};
        char key[128];
        OK(g, dt_store_get_param(s, i, &info));
        snprintf(key, sizeof key, "step.%s", info.name);
        OK(g, dt_store_read(s, i, DT_VALUE_PARAM, got, 4 * (size_t)info.elements));
        const golden_array *a = golden_get(g, key);
        if (a && test_check(a->count == SYNC_STEPS * (size_t)info.elements, __FILE__, __LINE__,
                            "%s", key))
            golden_same(a, (size_t)step * (size_t)info.elements, got, (size_t)info.elements, 2e-5);
    }
}

static void sync_train(golden *g, const char *devices) {
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.1, .momentum = 0.9};
    const golden_array *x = golden_get(g, "x"), *t = golden_get(g, "t");
    sync_net n;
    dt_trainer *trainer = NULL;
    if (!x || !t || !sync_make(g, &n))
        return;
    const dt_trainer_desc d = {
        .loss = n.loss,
        .optim = &sgd,
        .batch = SYNC_BATCH,
        .devices = devices,
        .no_shuffle = true,
        .data = {.rows = SYNC_ROWS,
                 .columns = {{.input = n.x, .data = x->data, .dtype = DT_F32},
                             {.input = n.t, .data = t->data, .dtype = DT_I32}}}};
    if (!OK(g, dt_trainer_create(g->graph, &d, &trainer)))
        return;
    dt_store *s = dt_trainer_store(trainer);
    sync_begin(g, s);
    for (int i = 0; i < SYNC_STEPS; i++) {
        dt_train_report r = {0};
        if (!OK(g, dt_trainer_step(trainer, &r)))
            break;
        golden_loss(g, "loss", i, r.loss);
        sync_compare(g, s, i);
    }
    float y[SYNC_BATCH * 5];
    const golden_array *wanted = golden_get(g, "y");
    dt_dataset first = d.data;
    first.rows = SYNC_BATCH;
    if (wanted && OK(g, dt_trainer_predict(trainer, &first, n.y, SYNC_BATCH, y, sizeof y)))
        golden_same(wanted, 0, y, SYNC_BATCH * 5, 2e-5);
    dt_trainer_destroy(trainer);
}

static void sync_two(golden *g) {
    sync_train(g, "cpu:2");
}

static void sync_five(golden *g) { /* shares of 2 and of 3 rows */
    sync_train(g, "cpu:5");
}

static void sync_mixed(golden *g) {
    char devices[200];
    snprintf(devices, sizeof devices, "%s,%s", g->device, g->device);
    sync_train(g, devices);
}

TEST(sync_batch_norm_of_replicas_trains_as_pytorchs_ranks) {
    golden_run("cpu", "sync", sync_two);
    golden_run("cpu", "sync", sync_five);
}

TEST(sync_batch_norm_of_replicas_on_vulkan_trains_as_pytorchs_ranks) {
    golden_run_vulkan("sync", sync_mixed);
}
