/* Teaches the smallest use: a line is fitted to five points, and read back from the store.
 *     cc -O2 hello.c -lm -ldl -lpthread */
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <stdio.h>

int main(void) {
    const float xs[] = {-2, -1, 0, 1, 2}, ts[] = {-5, -3, -1, 1, 3}; /* t = 2 x - 1 */
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *train;
    dt_report report = {0};
    dt_ctx_desc desc = {.threads = DT_THREADS_ALL}; /* 0 = one thread */
    if (dt_ctx_create(&desc, &ctx) || dt_graph_create(ctx, &graph))
        return 1;
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(1)); /* one sample's shape */
    dt_tensor t = dt_input(graph, "t", DT_F32, dt_dims(1));
    dt_tensor y = dt_nn_linear(x, "line", 1); /* makes line.weight and line.bias */
    dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.1};
    dt_program_desc fit = {.loss = dt_mse(y, t), .batch = 5, .optim = &sgd};
    bool ok = !dt_store_create(graph, NULL, &store) && !dt_program_create(store, &fit, &train) &&
              !dt_program_write(train, x, xs, sizeof xs) &&
              !dt_program_write(train, t, ts, sizeof ts);
    for (int step = 0; step < 100 && ok; step++)
        ok = !dt_program_run(train, NULL, &report);
    float w = 0, b = 0;
    ok = ok && !dt_store_read(store, 0, DT_VALUE_PARAM, &w, sizeof w) &&
         !dt_store_read(store, 1, DT_VALUE_PARAM, &b, sizeof b);
    printf(ok ? "y = %.3f x + %.3f  loss %.1e\n" : "failed\n", w, b, report.loss);
    if (!ok)
        puts(dt_ctx_error(ctx));
    dt_ctx_destroy(ctx); /* and all that was made from it */
    return !ok;
}
