/* Teaches the whole way: data from IDX files, a model, a trainer on any devices and processes,
 * checkpoints, evaluation, weights saved and loaded. The network is that of TensorFlow's beginner
 * tutorial; it classifies about 87 % of Fashion-MNIST's clothes correctly after 5 epochs. */
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS, EPOCHS, BATCH, SLICES, ACCUMULATE, LR, SEED, LIMIT, VERBOSE };
enum { DEVICE = VERBOSE + 1, DEVICES, DATA, CHECKPOINT, SAVE, LOAD, JSON, OPTIONS };
static const char *const options[] = {
    "--threads N       of the CPU; 0 = all, but 1 where processes share a host (default)",
    "--epochs N        default 5; 0 = only evaluate",
    "--batch N         samples of a step of the whole job, at most 4096, default 64",
    "--batch-slices N  of a batch: the same number gives the same bits on any number of devices",
    "--accumulate N    micro-batches of each batch slice, default 1",
    "--lr RATE         Adam's learning rate, default 0.001",
    "--seed N          of the initial weights and the order, default 0",
    "--limit N         train on the first N samples; 0 = all (default)",
    "--verbose 0|1     log the choices of devices and plans, default 0",
    "--device DEVICE   auto (default), cpu, vulkan, vulkan:N or part of a name",
    "--devices LIST    of each process, in place of --device: cpu:2 or vulkan:0,vulkan:1,cpu",
    "--data FOLDER     of the four IDX files, default build/data",
    "--checkpoint FOLDER  resume from the newest there; write one each epoch and at SIGUSR1, "
    "SIGTERM",
    "--save FILE       write the weights to FILE, as safetensors",
    "--load FILE       begin with the weights of FILE, safetensors",
    "--json FILE       write one object a line to FILE, for each epoch and the test"};
static const double most[DEVICE] = {1024, 1e6, 4096, 4096, 4096, 1e3, 1e15, 1e9, 1};
static double number[OPTIONS] = {[EPOCHS] = 5, [BATCH] = 64, [LR] = 1e-3};
static const char *text[OPTIONS] = {[DEVICE] = "auto", [DATA] = "build/data"};
static dt_ctx *ctx;
static dt_trainer *trainer;
static FILE *json;
static volatile sig_atomic_t stop;
static void check(int ok, const char *what, const char *why) {
    if (!ok && fprintf(stderr, "fashion_mnist: %s%s\n", what, why))
        exit(1);
}
#define TRY(call) check((call) == DT_OK, "", ctx ? dt_ctx_error(ctx) : "out of memory")
static void parse(int argc, char **argv) {
    for (int i = 1, o = 0; i < argc; i += 2, o = 0) {
        char *end = "";
        size_t size = strlen(argv[i]);
        while (o < OPTIONS && (strncmp(options[o], argv[i], size) || options[o][size] != ' '))
            o++;
        int known = o < OPTIONS && i + 1 < argc;
        if (known)
            number[o] = strtod(text[o] = argv[i + 1], &end);
        if (known && (o >= DEVICE || (!*end && number[o] >= 0 && number[o] <= most[o])))
            continue;
        for (o = 0; o < OPTIONS; o++)
            puts(options[o]);
        check(0, argv[i], ": an unknown option, or not a value for it");
    }
}

static void say(void *rank, dt_log_level level, const char *message) {
    if (!rank && level != DT_LOG_ERROR && (level == DT_LOG_WARNING || number[VERBOSE] > 0))
        fprintf(stderr, "dtrain: %s\n", message);
}
static void on_signal(int which) {
    if (which == SIGTERM)
        stop = 1;
    else
        dt_trainer_request_checkpoint(trainer);
}

static dt_dataset load(const char *set, dt_array *file, dt_tensor x, dt_tensor t) {
    char path[1024];
    for (int i = 0; i < 2; i++) {
        const char *kind = i ? "labels-idx1" : "images-idx3";
        snprintf(path, sizeof path, "%s/%s-%s-ubyte", text[DATA], set, kind);
        TRY(dt_idx_load(ctx, path, &file[i]));
    }
    check(file[0].bytes == file[1].bytes * 784, path, ": not one per image");
    dt_column pixels = {x, file[0].data, DT_U8, 1 / 255.0f, 0};
    return (dt_dataset){file[1].bytes, {pixels, {t, file[1].data, DT_U8, 0, 0}}, NULL, NULL};
}

static void tell(const char *set, int epoch, const dt_train_report *r, double seconds) {
    const double accuracy = r->metric_sum[0] / r->metric_weight[0],
                 speed = (double)r->samples / r->seconds;
    const char *device = dt_store_device(dt_trainer_store(trainer))->id;
    if (!strcmp(set, "test"))
        printf("test accuracy %.4f  loss %.4f  device %s  seconds %.1f\n", accuracy, r->loss,
               device, seconds);
    if (json)
        fprintf(json,
                "{\"set\":\"%s\",\"epoch\":%d,\"step\":%.0f,\"loss\":%.6f,\"accuracy\":%.6f,"
                "\"samples_per_second\":%.1f,\"seconds\":%.3f,\"device\":\"%s\"}\n",
                set, epoch, (double)r->step, r->loss, accuracy, speed, seconds, device);
}

/* Between the steps of dt_trainer_fit, which does the rest. */
static dt_result look(void *seconds, dt_fit_state *s) {
    if (stop) /* SIGTERM came: fit writes a checkpoint after this step, and all ranks end */
        s->stop = DT_FIT_STOP_CALLBACK;
    if (s->event == DT_FIT_EPOCH)
        tell("train", (int)s->epoch, &s->train, *(double *)seconds += s->train.seconds);
    return DT_OK;
}

int main(int argc, char **argv) {
    dt_array file[4]; /* pixels and classes to train on, then those to test with */
    dt_graph *graph;
    dt_comm *comm;
    dt_history history = {.stop = DT_FIT_STOP_DONE};
    dt_train_report r;
    double seconds = 0;
    parse(argc, argv);
    dt_comm_desc job = dt_comm_desc_from_env(); /* one process of many, if it was started so */
    job.logger = (dt_logger){say, job.rank ? &job.rank : NULL};
    if (job.rank) /* rank 0 says and writes what there is to say and write */
        text[SAVE] = text[JSON] = NULL, check(!!freopen("/dev/null", "w", stdout), "stdout", "");
    int joined = dt_comm_create(&job, &comm) == DT_OK, threads = (int)number[THREADS];
    check(joined, "", dt_comm_error(comm));
    if (!threads && job.local_size <= 1)
        threads = DT_THREADS_ALL;
    TRY(dt_ctx_create(&(dt_ctx_desc){.logger = job.logger, .threads = threads}, &ctx));
    TRY(dt_graph_create(ctx, &graph));
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(28, 28)); /* one sample's pixels */
    dt_tensor t = dt_input(graph, "t", DT_I32, dt_dims());       /* and class */
    dt_tensor y = dt_nn_linear(dt_relu(dt_nn_linear(dt_flatten(x), "fc1", 128)), "fc2", 10);
    dt_trainer_desc desc = {.loss = dt_cross_entropy(y, t, NULL), .metrics = {dt_accuracy(y, t)}};
    dt_dataset test = load("t10k", file + 2, x, t), *data = &desc.data;
    *data = load("train", file, x, t);
    if (number[LIMIT] >= 1 && number[LIMIT] < (double)data->rows)
        data->rows = (uint64_t)number[LIMIT];
    desc.optim = &(dt_optim_desc){.kind = DT_OPTIM_ADAM, .lr = number[LR]};
    desc.batch = (int)number[BATCH], desc.seed = (uint64_t)number[SEED];
    desc.parallel.batch_slices = (int)number[SLICES], desc.accumulate = (int)number[ACCUMULATE];
    desc.threads = (int)number[THREADS], desc.comm = comm;
    desc.checkpoint.folder = text[CHECKPOINT];
    desc.load = text[LOAD], desc.devices = text[text[DEVICES] ? DEVICES : DEVICE];
    TRY(dt_trainer_create(graph, &desc, &trainer));
    if (text[CHECKPOINT])
        signal(SIGTERM, on_signal), signal(SIGUSR1, on_signal);
    check(!text[JSON] || (json = fopen(text[JSON], "w")), "--json", ": cannot be written");
    dt_progress bar = {0};
    const dt_fit_desc fit = {.epochs = (uint64_t)number[EPOCHS], /* goes on from a checkpoint */
                             .callbacks = {{dt_progress_show, &bar}, {look, &seconds}}};
    TRY(fit.epochs         ? dt_trainer_fit(trainer, &fit, &history)
        : text[CHECKPOINT] ? dt_trainer_resume(trainer, NULL)
                           : DT_OK);
    if (history.stop == DT_FIT_STOP_CALLBACK)
        return 0;
    TRY(dt_trainer_evaluate(trainer, &test, 500, &r));
    tell("test", (int)number[EPOCHS], &r, seconds);
    dt_history_destroy(&history);
    TRY(text[SAVE] ? dt_store_save(dt_trainer_store(trainer), text[SAVE]) : DT_OK);
    for (int i = 0; i < 4; i++)
        dt_array_destroy(&file[i]);
    return dt_ctx_destroy(ctx), dt_comm_destroy(comm), json && fclose(json);
}
