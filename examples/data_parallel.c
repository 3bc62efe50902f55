/* Teaches data-parallel training: one program for one device, several devices, and several
 * processes. All give the same weights, bit for bit, because the batch slices are the same:
 *
 *     data_parallel cpu        data_parallel cpu:2        data_parallel vulkan:0,vulkan:1
 *     dtrun -n 2 data_parallel cpu        mpirun -n 4 data_parallel cpu:2
 *
 * The last line has a hash of weights, optimizer and step. Devices that round differently (a CPU, a
 * GPU, another GPU) have one each. fashion_mnist.c adds checkpoints and evaluation. */
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <math.h>
#include <stdio.h>

enum { ROWS = 4000, SLICES = 8, EPOCHS = 5 };

/* Points of two spirals, one of each class. All ranks make all of them: a set is the same
 * everywhere, and the trainer gives each replica its rows. */
static void spirals(float *points, int32_t *classes) {
    for (int i = 0; i < ROWS; i++) {
        float turn = 9.0f * (float)(i / 2) / (ROWS / 2), side = i % 2 ? 1.0f : -1.0f;
        points[2 * i] = side * turn * cosf(turn) / 9;
        points[2 * i + 1] = side * turn * sinf(turn) / 9;
        classes[i] = i % 2;
    }
}

static dt_tensor model(dt_tensor h) {
    h = dt_tanh(dt_nn_linear(h, "fc1", 64));
    h = dt_tanh(dt_nn_linear(h, "fc2", 64));
    return dt_nn_linear(h, "fc3", 2);
}

/* Every rank runs all of it; one that fails ends the steps of all, with an error. */
static dt_result train(dt_ctx *ctx, dt_comm *comm, const char *devices) {
    static float points[2 * ROWS];
    static int32_t classes[ROWS];
    dt_graph *graph;
    dt_trainer *trainer;
    uint64_t hash = 0;
    dt_result result = dt_graph_create(ctx, &graph);
    if (result)
        return result;
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(2));
    dt_tensor t = dt_input(graph, "t", DT_I32, dt_dims());
    spirals(points, classes);
    dt_trainer_desc desc = {
        .loss = dt_cross_entropy(model(x), t, NULL),
        .optim = &(dt_optim_desc){.kind = DT_OPTIM_ADAM, .lr = 0.01},
        .data = {.rows = ROWS,
                 .columns = {{.input = x, .data = points, .dtype = DT_F32},
                             {.input = t, .data = classes, .dtype = DT_I32}}},
        .batch = 50, /* of the whole job; 8 does not divide it: slices have 6 or 7 samples */
        .devices = devices,
        .comm = comm,
        .parallel = {.batch_slices = SLICES}};
    result = dt_trainer_create(graph, &desc, &trainer);
    dt_progress bar = {0}; /* of rank 0 */
    const dt_fit_desc fit = {.epochs = EPOCHS, .callbacks = {{dt_progress_show, &bar}}};
    if (!result)
        result = dt_trainer_fit(trainer, &fit, NULL);
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(trainer), &hash);
    if (!result && dt_comm_rank(comm) == 0)
        printf("state %016llx\n", (unsigned long long)hash);
    return result;
}

/* The trainer's choices: how the batch is shared, and with whom. */
static void say(void *rank, dt_log_level level, const char *message) {
    if (level == DT_LOG_WARNING || (level == DT_LOG_INFO && !rank))
        fprintf(stderr, "dtrain: %s\n", message);
}

int main(int argc, char **argv) {
    dt_ctx *ctx = NULL;
    dt_comm *comm = NULL;
    dt_comm_desc job = dt_comm_desc_from_env(); /* a single process if no launcher started it */
    dt_logger logger = {say, job.rank ? &job.rank : NULL};
    dt_result result = dt_comm_create(&job, &comm);
    if (result) {
        fprintf(stderr, "%s: %s\n", dt_result_text(result), dt_comm_error(comm));
    } else {
        /* One thread here; each further replica has its own. */
        result = dt_ctx_create(&(dt_ctx_desc){.logger = logger}, &ctx);
        if (!result)
            result = train(ctx, comm, argc > 1 ? argv[1] : NULL);
        if (result)
            fprintf(stderr, "%s: %s\n", dt_result_text(result), ctx ? dt_ctx_error(ctx) : "");
    }
    dt_ctx_destroy(ctx); /* with the trainer, and so before the comm */
    dt_comm_destroy(comm);
    return result != DT_OK;
}
