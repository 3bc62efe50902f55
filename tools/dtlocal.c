/* What ./build.sh bench local runs on each rank: Fashion-MNIST's MLP, synchronously or by rounds of
 * local steps, for some seconds. Rank 0 writes a line of JSON wherever all ranks have told each
 * other something: seconds, step, and the loss of the samples since the line before; at the end the
 * test set's accuracy.
 *
 * usage: dtlocal FOLDER SECONDS sync|local [STEPS [none|bf16|int8|topk]] */
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static dt_ctx *ctx;
static dt_comm *comm;

static void need(dt_result result, const char *what) {
    if (!result)
        return;
    fprintf(stderr, "dtlocal: %s: %s\n", what, ctx ? dt_ctx_error(ctx) : dt_comm_error(comm));
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dt_dataset load(const char *folder, const char *set, dt_array file[2], dt_tensor x,
                       dt_tensor t) {
    char path[1024];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s-%s-ubyte", folder, set,
                 i ? "labels-idx1" : "images-idx3");
        need(dt_idx_load(ctx, path, &file[i]), path);
    }
    return (dt_dataset){.rows = file[1].bytes,
                        .columns = {{x, file[0].data, DT_U8, 1 / 255.0f, 0},
                                    {.input = t, .data = file[1].data, .dtype = DT_U8}}};
}

/* All ranks end after the same step: when rank 0's clock says so. */
static bool over(double start, double seconds) {
    int32_t ends = now() - start >= seconds;
    need(dt_comm_broadcast(comm, &ends, 1, DT_I32, 0), "the end");
    return ends;
}

static void train(dt_trainer *trainer, bool local, double seconds) {
    const bool tells = dt_comm_rank(comm) == 0;
    const double start = now();
    dt_train_report r;
    for (bool ends = false; !ends;) {
        need(dt_trainer_step(trainer, &r), "a step");
        if (local && !r.round_ended)
            continue;
        ends = over(start, seconds);
        if (tells)
            printf("{\"seconds\": %.3f, \"step\": %.0f, \"samples\": %.0f, \"loss\": %.5f}\n",
                   now() - start, (double)r.step, (double)r.samples, r.loss);
    }
}

int main(int argc, char **argv) {
    static const char *const kinds[] = {"none", "bf16", "int8", "topk"};
    dt_graph *graph;
    dt_trainer *trainer;
    dt_array file[4];
    dt_train_report r;
    if (argc < 4)
        return 2;
    const dt_comm_desc job = dt_comm_desc_from_env();
    need(dt_comm_create(&job, &comm), "joining");
    need(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true, .threads = 1}, &ctx), "a context");
    need(dt_graph_create(ctx, &graph), "a graph");
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(28, 28));
    dt_tensor t = dt_input(graph, "t", DT_I32, dt_dims());
    dt_tensor y = dt_nn_linear(dt_relu(dt_nn_linear(dt_flatten(x), "fc1", 128)), "fc2", 10);
    const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 1e-3};
    dt_trainer_desc d = {.loss = dt_cross_entropy(y, t, NULL),
                         .metrics = {dt_accuracy(y, t)},
                         .batch = 64,
                         .optim = &adam,
                         .data = load(argv[1], "train", file, x, t),
                         .devices = "cpu",
                         .comm = comm};
    const dt_dataset test = load(argv[1], "t10k", file + 2, x, t);
    const bool local = !strcmp(argv[3], "local");
    if (local) {
        d.mode = DT_TRAIN_LOCAL;
        d.local_steps = argc > 4 ? atoi(argv[4]) : 0;
    }
    for (int i = 0; argc > 5 && i < 4; i++)
        d.compress = strcmp(argv[5], kinds[i]) ? d.compress : (dt_compress)i;
    need(dt_trainer_create(graph, &d, &trainer), "a trainer");
    train(trainer, local, atof(argv[2]));
    need(dt_trainer_evaluate(trainer, &test, 0, &r), "the test");
    if (dt_comm_rank(comm) == 0)
        printf("{\"test_accuracy\": %.4f, \"test_loss\": %.4f}\n", r.metric[0], r.loss);
    dt_ctx_destroy(ctx);
    dt_comm_destroy(comm);
    return 0;
}
