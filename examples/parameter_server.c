/* Teaches parameter servers: one process has the parameters, others ask it for work, compute
 * gradients and push them. Workers may come, go and die at any time. With staleness 0 (the default)
 * the weights are those of data_parallel.c, bit for bit, whatever computed them:
 *
 *     dtrun -n 4 parameter_server                      rank 0 serves, the others work
 *     dtrun -n 4 parameter_server 4                    the same, up to 4 steps apart
 *     parameter_server 0 serve hosta:29500             by hand, with DTRAIN_SECRET_FILE set,
 *     parameter_server 0 work hosta:29500              on as many hosts as there are
 *
 * The server ends when it has had workers and all are gone; its last line has the same hash. */
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 4000, SLICES = 8, EPOCHS = 5 };

static float points[2 * ROWS];
static int32_t classes[ROWS];

static void spirals(void) {
    for (int i = 0; i < ROWS; i++) {
        float turn = 9.0f * (float)(i / 2) / (ROWS / 2), side = i % 2 ? 1.0f : -1.0f;
        points[2 * i] = side * turn * cosf(turn) / 9;
        points[2 * i + 1] = side * turn * sinf(turn) / 9;
        classes[i] = i % 2;
    }
}

/* What server and workers must have alike: the model, the optimizer, the data's order. */
static dt_trainer_desc settings(dt_graph *graph) {
    static const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 0.01};
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(2));
    dt_tensor t = dt_input(graph, "t", DT_I32, dt_dims());
    dt_tensor h = dt_tanh(dt_nn_linear(x, "fc1", 64));
    h = dt_tanh(dt_nn_linear(h, "fc2", 64));
    return (dt_trainer_desc){.loss = dt_cross_entropy(dt_nn_linear(h, "fc3", 2), t, NULL),
                             .optim = &adam,
                             .data = {.rows = ROWS,
                                      .columns = {{.input = x, .data = points, .dtype = DT_F32},
                                                  {.input = t, .data = classes, .dtype = DT_I32}}},
                             .batch = 50,
                             .devices = "cpu"};
}

/* Serves until the workers have gone. With .trainer.checkpoint it would write checkpoints. */
static dt_result serve(dt_graph *graph, const dt_comm_desc *job, const char *at, int staleness) {
    dt_server_desc desc = {
        .trainer = settings(graph), .listen = at, .security = job, .staleness = staleness};
    dt_server *server;
    dt_server_info info = {0};
    uint64_t hash = 0;
    desc.trainer.parallel.batch_slices = SLICES;
    dt_result result = dt_server_create(graph, &desc, &server);
    while (!result &&
           (info.connections < job->world_size - 1 || !info.connections || info.workers)) {
        result = dt_server_run(server, 100);
        dt_server_get_info(server, &info);
    }
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(dt_server_trainer(server)), &hash);
    if (!result)
        printf("%d steps, loss %.4f, staleness up to %d\nstate %016llx\n", (int)info.step,
               info.loss, (int)info.max_staleness, (unsigned long long)hash);
    return result;
}

/* An ordinary trainer, whose steps are what the server hands out. */
static dt_result work(dt_graph *graph, const dt_comm_desc *job, const char *at) {
    dt_trainer_desc desc = settings(graph);
    dt_trainer *trainer;
    dt_trainer_info info = {0};
    desc.mode = DT_TRAIN_SERVER;
    desc.server = (dt_worker_desc){.addresses = at, .security = job};
    dt_result result = dt_trainer_create(graph, &desc, &trainer);
    if (!result)
        dt_trainer_get_info(trainer, &info); /* others may have begun long ago */
    while (!result && info.epoch < EPOCHS) {
        dt_train_report r;
        result = dt_trainer_epoch(trainer, &r);
        dt_trainer_get_info(trainer, &info);
        if (!result)
            printf("epoch %d  loss %.4f of the %d batch slices computed here\n", (int)info.epoch,
                   r.loss, (int)r.steps);
    }
    return result;
}

int main(int argc, char **argv) {
    dt_ctx *ctx = NULL;
    dt_graph *graph = NULL;
    dt_comm_desc job =
        dt_comm_desc_from_env(); /* the key; under dtrun also who is who, and where */
    const int staleness = argc > 1 ? atoi(argv[1]) : 0;
    const bool serves = argc > 2 ? !strcmp(argv[2], "serve") : job.rank == 0;
    const char *at = argc > 3 ? argv[3] : job.rendezvous;
    spirals();
    dt_result result = dt_ctx_create(&(dt_ctx_desc){.threads = 1, .no_vulkan = true}, &ctx);
    if (!result)
        result = dt_graph_create(ctx, &graph);
    if (!result)
        result = serves ? serve(graph, &job, at, staleness) : work(graph, &job, at);
    if (result)
        fprintf(stderr, "%s: %s\n", dt_result_text(result), ctx ? dt_ctx_error(ctx) : "");
    dt_ctx_destroy(ctx); /* with the server or the trainer */
    return result != DT_OK;
}
