/* The modes that a trainer has, as a table: for tests that hold in each of them. */
#ifndef DTRAIN_TESTS_TRAIN_MODES_H
#define DTRAIN_TESTS_TRAIN_MODES_H

#include "train/train_model.h"

#include <pthread.h>

enum { MODE_RANKS = 2 };

typedef struct train_mode {
    const char *name, *devices;
    int kind, batch_slices, accumulate, pipeline, tensor, zero, ranks;
    bool vulkan, average;
} train_mode;

static const train_mode train_modes[] = {
    {.name = "one device", .devices = "cpu", .average = true},
    {.name = "micro-batches", .devices = "cpu", .accumulate = 3},
    {.name = "batch norm", .devices = "cpu", .kind = 1},
    {.name = "replicas", .devices = "cpu:2", .kind = 1, .batch_slices = 2, .average = true},
    {.name = "batch norm over replicas", .devices = "cpu:2", .kind = TRAIN_SYNC, .batch_slices = 2},
    {.name = "ZeRO-1", .devices = "cpu:2", .batch_slices = 2, .zero = 1},
    {.name = "ZeRO-2", .devices = "cpu:2", .batch_slices = 2, .zero = 2},
    {.name = "ZeRO-3", .devices = "cpu:2", .batch_slices = 2, .accumulate = 2, .zero = 3},
    {.name = "stages", .devices = "cpu:2", .accumulate = 3, .pipeline = 2},
    {.name = "tensor ranks", .devices = "cpu:2", .kind = TRAIN_PARTS, .tensor = 2},
    {.name = "stages of tensor ranks",
     .devices = "cpu:4",
     .kind = TRAIN_PARTS,
     .accumulate = 2,
     .pipeline = 2,
     .tensor = 2},
    {.name = "ranks", .devices = "cpu", .batch_slices = 2, .ranks = MODE_RANKS},
    {.name = "ZeRO-3 on ranks",
     .devices = "cpu",
     .batch_slices = 2,
     .zero = 3,
     .ranks = MODE_RANKS},
    {.name = "stages on ranks",
     .devices = "cpu",
     .accumulate = 2,
     .pipeline = 2,
     .ranks = MODE_RANKS},
    {.name = "Vulkan", .devices = "vulkan", .vulkan = true},
    {.name = "replicas on Vulkan",
     .devices = "vulkan,vulkan",
     .kind = 1,
     .batch_slices = 2,
     .vulkan = true},
};

static void train_mode_take(const train_mode *mode, dt_comm *comm, dt_trainer_desc *d) {
    d->devices = mode->devices;
    d->parallel.batch_slices = mode->batch_slices;
    d->accumulate = mode->accumulate;
    d->parallel.pipeline = mode->pipeline;
    d->parallel.tensor = mode->tensor;
    d->parallel.zero_stage = mode->zero;
    d->parallel.bucket_bytes = mode->zero > 1 ? 2048 : 0;
    d->comm = comm;
}

/* The state, or where it is sharded over ranks only the weights. */
static inline dt_result train_mode_hash(const train_mode *mode, dt_trainer *t, uint64_t *hash) {
    *hash = mode->zero && mode->ranks ? train_values_hash(t) : 0;
    return *hash ? DT_OK : dt_store_state_hash(dt_trainer_store(t), hash);
}

typedef void train_mode_fn(const train_mode *mode, dt_comm *comm, void *user);
typedef struct train_mode_rank {
    const train_mode *mode;
    train_mode_fn *run;
    dt_comm *comm;
    void *user;
    pthread_t thread;
} train_mode_rank;

static void *train_mode_run(void *arg) {
    const train_mode_rank *r = arg;
    r->run(r->mode, r->comm, r->user);
    return NULL;
}

/* On one rank, or on all as threads: users [MODE_RANKS] of `size` bytes. How many there are. */
static int train_mode_job(const train_mode *mode, train_mode_fn *run, void *users, size_t size) {
    train_mode_rank all[MODE_RANKS];
    dt_comm *comms[MODE_RANKS] = {NULL};
    const int ranks = mode->ranks ? mode->ranks : 1;
    if (mode->ranks)
        CHECK(!dt_comm_create_threads(NULL, ranks, comms));
    for (int i = 0; i < ranks; i++) {
        all[i] = (train_mode_rank){
            .mode = mode, .run = run, .comm = comms[i], .user = (char *)users + (size_t)i * size};
        CHECK(!pthread_create(&all[i].thread, NULL, train_mode_run, &all[i]));
    }
    for (int i = 0; i < ranks; i++)
        pthread_join(all[i].thread, NULL);
    for (int i = 0; i < ranks; i++)
        dt_comm_destroy(comms[i]);
    return ranks;
}

#endif
