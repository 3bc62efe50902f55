/* Teaches a model, a store and two programs that share it: one trains on all four cases of xor at
 * once, the other predicts one case. Every call that can fail is checked in one place.
 *     cc -O2 xor.c -lm -ldl -lpthread */
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <stdio.h>
#include <stdlib.h>

static dt_ctx *ctx;

static void check(dt_result result) {
    if (result == DT_OK)
        return;
    fprintf(stderr, "xor: %s\n", ctx ? dt_ctx_error(ctx) : dt_result_text(result));
    exit(1);
}

int main(void) {
    const float inputs[4][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
    const float targets[4] = {0, 1, 1, 0};
    dt_graph *graph;
    dt_store *store;
    dt_program *train, *predict;
    check(dt_ctx_create(&(dt_ctx_desc){.threads = DT_THREADS_ALL}, &ctx)); /* 0 = one thread */
    check(dt_graph_create(ctx, &graph));

    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(2)); /* one sample's shape */
    dt_tensor t = dt_input(graph, "t", DT_F32, dt_dims(1));
    dt_tensor h = dt_tanh(dt_nn_linear(x, "fc1", 8)); /* makes fc1.weight and fc1.bias */
    dt_tensor y = dt_sigmoid(dt_nn_linear(h, "fc2", 1));
    dt_tensor loss = dt_mse(y, t);

    dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 0.05};
    check(dt_store_create(graph, &(dt_store_desc){.seed = 1}, &store));
    check(dt_program_create(store, &(dt_program_desc){.loss = loss, .batch = 4, .optim = &adam},
                            &train));
    check(dt_program_create(store, &(dt_program_desc){.outputs = {y}}, &predict));

    check(dt_program_write(train, x, inputs, sizeof inputs)); /* stays until written again */
    check(dt_program_write(train, t, targets, sizeof targets));
    for (int step = 1; step <= 300; step++) {
        dt_report report;
        check(dt_program_run(train, NULL, &report));
        if (step % 100 == 0)
            printf("step %d  loss %.5f\n", step, report.loss);
    }
    for (int i = 0; i < 4; i++) {
        float result;
        check(dt_program_write(predict, x, inputs[i], sizeof inputs[i]));
        check(dt_program_run(predict, NULL, NULL));
        check(dt_program_read(predict, y, &result, sizeof result));
        printf("%g xor %g = %.3f\n", inputs[i][0], inputs[i][1], result);
    }
    dt_ctx_destroy(ctx); /* and all that was made from it */
    return 0;
}
