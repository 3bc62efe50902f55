/* 100 steps of every optimizer against torch.optim, recorded in float64 by
 * tools/golden/record_golden_optim.py. Losses and final weights are compared, on the CPU and on
 * Vulkan. */
#include "golden/golden.h"

#define OPTIM_NEAR 3e-5 /* of a tensor's largest weight */
#define OPTIM_STEPS 100

static const struct {
    const char *name;
    dt_optim_desc desc;
} optimizers[] = {
    {"sgd", {.kind = DT_OPTIM_SGD, .lr = 0.1}},
    {"sgd_nesterov",
     {.kind = DT_OPTIM_SGD, .lr = 0.02, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01}},
    {"adam", {.kind = DT_OPTIM_ADAM, .lr = 0.01}},
    {"adam_more",
     {.kind = DT_OPTIM_ADAM,
      .lr = 0.02,
      .beta1 = 0.8,
      .beta2 = 0.95,
      .eps = 1e-4,
      .weight_decay = 0.05}},
    {"adamw", {.kind = DT_OPTIM_ADAMW, .lr = 0.01, .weight_decay = 0.1}},
    {"sgd_maximize",
     {.kind = DT_OPTIM_SGD, .lr = 0.01, .momentum = 0.5, .weight_decay = 0.05, .maximize = true}},
    {"amsgrad", {.kind = DT_OPTIM_AMSGRAD, .lr = 0.01}},
    {"amsgradw", {.kind = DT_OPTIM_AMSGRADW, .lr = 0.01, .weight_decay = 0.1}},
    {"rmsprop", {.kind = DT_OPTIM_RMSPROP}},
    {"rmsprop_momentum",
     {.kind = DT_OPTIM_RMSPROP, .lr = 0.003, .alpha = 0.9, .momentum = 0.8, .weight_decay = 0.01}},
    {"rmsprop_centered", {.kind = DT_OPTIM_RMSPROP, .lr = 0.002, .centered = true, .eps = 1e-3}},
    {"rmsprop_both",
     {.kind = DT_OPTIM_RMSPROP, .lr = 0.002, .centered = true, .momentum = 0.5, .eps = 1e-2}},
    {"adagrad", {.kind = DT_OPTIM_ADAGRAD, .lr = 0.05}},
    {"adagrad_more",
     {.kind = DT_OPTIM_ADAGRAD,
      .lr = 0.1,
      .lr_decay = 0.02,
      .initial_accumulator = 0.3,
      .weight_decay = 0.01}},
    {"adadelta", {.kind = DT_OPTIM_ADADELTA}},
    {"adadelta_more",
     {.kind = DT_OPTIM_ADADELTA, .lr = 2, .rho = 0.8, .eps = 1e-4, .weight_decay = 0.01}},
    {"adamax", {.kind = DT_OPTIM_ADAMAX, .lr = 0.01}},
    {"adamax_more", {.kind = DT_OPTIM_ADAMAX, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.02}},
    {"nadam", {.kind = DT_OPTIM_NADAM, .lr = 0.01}},
    {"nadam_more",
     {.kind = DT_OPTIM_NADAM, .beta1 = 0.7, .beta2 = 0.98, .eps = 1e-4, .weight_decay = 0.02}},
    {"radam", {.kind = DT_OPTIM_RADAM, .lr = 0.01}},
    {"radam_more",
     {.kind = DT_OPTIM_RADAM, .lr = 0.01, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.02}},
    {"rprop", {.kind = DT_OPTIM_RPROP, .lr = 0.001}},
    {"lion", {.kind = DT_OPTIM_LION, .lr = 0.002}},
    {"lion_more",
     {.kind = DT_OPTIM_LION, .lr = 0.001, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1}},
    {"lamb", {.kind = DT_OPTIM_LAMB, .lr = 0.01}},
    {"lamb_more",
     {.kind = DT_OPTIM_LAMB,
      .lr = 0.02,
      .beta1 = 0.8,
      .beta2 = 0.95,
      .eps = 1e-4,
      .weight_decay = 0.1,
      .groups = {{.params = "*.bias", .elementwise = true}}}},
    {"lars", {.kind = DT_OPTIM_LARS}},
    {"lars_more",
     {.kind = DT_OPTIM_LARS,
      .lr = 0.5,
      .trust_coefficient = 0.02,
      .eps = 1e-3,
      .weight_decay = 0.05,
      .momentum = 0.9,
      .nesterov = true,
      .groups = {{.params = "*.bias", .elementwise = true}}}},
    {"muon", {.kind = DT_OPTIM_MUON}},
    {"muon_more",
     {.kind = DT_OPTIM_MUON,
      .lr = 0.01,
      .weight_decay = 0.02,
      .momentum = 0.8,
      .groups = {{.params = "fc2.weight", .elementwise = true}}}},
    {"adafactor", {.kind = DT_OPTIM_ADAFACTOR}},
    {"adafactor_more",
     {.kind = DT_OPTIM_ADAFACTOR, .lr = 0.2, .beta2 = 0.6, .eps = 0.3, .weight_decay = 0.02}},
};

/* A store of its own, since moments belong to one. */
static void optim_train(golden *g, dt_tensor x, const char *x_name, dt_tensor t, dt_tensor loss,
                        int batch_size, const char *name, const dt_optim_desc *desc) {
    char key[64];
    dt_report r;
    if (!golden_store(g))
        return;
    dt_program *p =
        golden_program(g, (dt_program_desc){.loss = loss, .batch = batch_size, .optim = desc});
    snprintf(key, sizeof key, "%s.loss", name);
    for (int step = 0; p && step < OPTIM_STEPS; step++) {
        const int batch = step % GOLDEN_STEPS;
        if (!golden_feed(g, p, x, x_name, batch) || !golden_feed(g, p, t, "t", batch) ||
            !OK(g, dt_program_run(p, NULL, &r)) || !golden_loss(g, key, step, r.loss))
            break;
    }
    snprintf(key, sizeof key, "%s.", name);
    if (p)
        golden_final(g, key, OPTIM_NEAR, false);
    while (g->program_count > 0)
        dt_program_destroy(g->programs[--g->program_count]);
    dt_store_destroy(g->store);
    g->store = NULL;
}

GOLDEN(a_hundred_steps_of_every_optimizer_are_pytorchs, "optim100") {
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(6));
    dt_tensor t = dt_input(g->graph, "t", DT_I32, dt_dims());
    dt_tensor y = dt_nn_linear(dt_tanh(dt_nn_linear(x, "fc1", 8)), "fc2", 4);
    dt_tensor loss = dt_cross_entropy(y, t, NULL);
    for (size_t i = 0; i < sizeof optimizers / sizeof optimizers[0]; i++)
        optim_train(g, x, "x", t, loss, 10, optimizers[i].name, &optimizers[i].desc);
}

GOLDEN(a_hundred_lazy_steps_of_a_table_are_those_of_pytorchs_sparse_adam, "lazy") {
    dt_tensor index = dt_input(g->graph, "index", DT_I32, dt_dims());
    dt_tensor t = dt_input(g->graph, "t", DT_F32, dt_dims(4));
    dt_tensor loss = dt_mse(dt_nn_embedding(index, "e", 9, 4), t);
    const dt_optim_desc lazy = {.kind = DT_OPTIM_ADAM,
                                .lr = 0.02,
                                .beta1 = 0.8,
                                .beta2 = 0.99,
                                .groups = {{.params = "e.weight", .sparse = true}}};
    optim_train(g, index, "index", t, loss, 4, "lazy", &lazy);
}

/* Every block counts, and once: what decides over the step takes several at a time. */
GOLDEN(the_norm_of_a_gradient_of_many_blocks_counts_each_of_them, NULL) {
    enum { BLOCKS_ELEMENTS = 70001 };
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(BLOCKS_ELEMENTS));
    dt_tensor w = dt_param(g->graph, "w", dt_dims(BLOCKS_ELEMENTS), (dt_init){0});
    dt_tensor loss = dt_mean_loss(dt_sum(dt_mul(x, w), dt_dims(), false));
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD};
    float *values = malloc(BLOCKS_ELEMENTS * sizeof *values);
    double squares = 0;
    dt_report r = {0};
    for (int i = 0; i < BLOCKS_ELEMENTS; i++) {
        values[i] = (float)(1 + i % 7);
        squares += (double)values[i] * (double)values[i];
    }
    if (OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store))) {
        dt_program *p =
            golden_program(g, (dt_program_desc){.loss = loss, .batch = 1, .optim = &sgd});
        if (p && OK(g, dt_program_write(p, x, values, BLOCKS_ELEMENTS * sizeof *values)) &&
            OK(g, dt_program_run(p, NULL, &r)))
            CHECK_NEAR(r.gradient_norm, sqrt(squares), 1e-5 * sqrt(squares));
    }
    free(values);
}
