/* Teaches a model, a store and two programs that share it. One trains on all four cases of xor at
 * once, the other predicts one case. A call that fails ends in one place.
 *     cc -O2 xor.c -lm -ldl -lpthread */
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <stdio.h>
#include <stdlib.h>

static void stop(void *user, dt_result result, const char *text) { /* of any call that fails */
    (void)user, (void)result;
    fprintf(stderr, "xor: %s\n", text);
    exit(1);
}

int main(void) {
    const float inputs[4][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
    const float targets[4] = {0, 1, 1, 0};
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *train, *predict;
    dt_ctx_desc all = {.on_error = {stop, NULL}, .threads = DT_THREADS_ALL}; /* 0: one thread */
    dt_ctx_create(&all, &ctx);
    dt_graph_create(ctx, &graph);

    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(2)); /* one sample's shape */
    dt_tensor t = dt_input(graph, "t", DT_F32, dt_dims(1));
    dt_tensor h = dt_tanh(dt_nn_linear(x, "fc1", 8)); /* makes fc1.weight and fc1.bias */
    dt_tensor y = dt_sigmoid(dt_nn_linear(h, "fc2", 1));
    dt_tensor loss = dt_mse(y, t);

    dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 0.05};
    dt_store_create(graph, &(dt_store_desc){.seed = 1}, &store);
    dt_program_create(store, &(dt_program_desc){.loss = loss, .batch = 4, .optim = &adam}, &train);
    dt_program_create(store, &(dt_program_desc){.outputs = {y}}, &predict);

    dt_program_write(train, x, inputs, sizeof inputs); /* stays until written again */
    dt_program_write(train, t, targets, sizeof targets);
    for (int step = 1; step <= 300; step++) {
        dt_report report;
        dt_program_run(train, NULL, &report);
        if (step % 100 == 0)
            printf("step %d  loss %.5f\n", step, report.loss);
    }
    for (int i = 0; i < 4; i++) {
        float result;
        dt_program_write(predict, x, inputs[i], sizeof inputs[i]);
        dt_program_run(predict, NULL, NULL);
        dt_program_read(predict, y, &result, sizeof result);
        printf("%g xor %g = %.3f\n", inputs[i][0], inputs[i][1], result);
    }
    dt_ctx_destroy(ctx); /* and all that was made from it */
    return 0;
}
