/* Teaches images: convolution, pooling, dropout, residual blocks with batch norm, and a learning
 * rate that falls. Two networks learn Fashion-MNIST. One is that of PyTorch's MNIST example
 * ("cnn"). The other is ResNet-20 of He et al. 2015 with 1x1 convolutions where the size changes
 * ("resnet"). Parameters have the names that PyTorch's modules give them. fashion_mnist.c teaches
 * the rest of the way. Options:
 *
 *     --model cnn|resnet --device NAME --devices LIST --threads N --epochs N --dropout 0|1 --seed N
 *     --limit SAMPLES --batch-slices N --accumulate N --data FOLDER --checkpoint FOLDER
 */
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODEL, DEVICE, DEVICES, THREADS, EPOCHS, DROPOUT, SEED, LIMIT };
enum { SLICES = LIMIT + 1, ACCUMULATE, DATA, CHECKPOINT, OPTIONS };
static const char *const options[] = {
    "--model", "--device", "--devices",      "--threads",    "--epochs", "--dropout",
    "--seed",  "--limit",  "--batch-slices", "--accumulate", "--data",   "--checkpoint"};
static const char *text[OPTIONS] = {"cnn", "auto", [DATA] = "build/data"};
static double number[OPTIONS] = {[EPOCHS] = -1, [DROPOUT] = 1};
enum { BATCH = 64, TEST_BATCH = 500 };
static dt_trainer *trainer;
static volatile sig_atomic_t stop;
static dt_ctx *ctx;
static void check(int ok, const char *what, const char *why) {
    if (!ok)
        fprintf(stderr, "fashion_mnist_conv: %s%s\n", what, why), exit(1);
}
#define TRY(call) check((call) == DT_OK, "", ctx ? dt_ctx_error(ctx) : "out of memory")
static void option(const char *name, const char *value) {
    int o = 0;
    while (o < OPTIONS && strcmp(options[o], name))
        o++;
    check(o < OPTIONS && value && (number[o] = atof(text[o] = value)) >= 0, name,
          ": an unknown option, or not a value for it");
}
static void say(void *rank, dt_log_level level, const char *message) {
    if (!rank && level == DT_LOG_WARNING)
        fprintf(stderr, "dtrain: %s\n", message);
}
static void on_signal(int which) {
    if (which == SIGTERM)
        stop = 1;
    else
        dt_trainer_request_checkpoint(trainer);
}

static dt_tensor cnn(dt_tensor h) {
    float drop = (float)number[DROPOUT];
    h = dt_relu(dt_nn_conv2d(h, "conv1", 32, 3, NULL));
    h = dt_relu(dt_nn_conv2d(h, "conv2", 64, 3, NULL));
    h = dt_max_pool2d(h, &(dt_pool_desc){.kernel = {2, 2}});
    h = dt_flatten(dt_dropout(h, 0.25f * drop));
    h = dt_dropout(dt_relu(dt_nn_linear(h, "fc1", 128)), 0.5f * drop);
    return dt_nn_linear(h, "fc2", 10);
}

static dt_tensor conv_norm(dt_tensor h, const char *block, const char *conv, const char *norm,
                           int out, int kernel, int stride) {
    char name[2][64];
    for (int i = 0; i < 2; i++)
        snprintf(name[i], sizeof name[i], "%s%s", block, i ? norm : conv);
    dt_conv_desc d = {.stride = {stride, stride}, .padding = {kernel / 2, kernel / 2}};
    h = dt_nn_conv2d(h, name[0], out, kernel, &(dt_conv_layer_desc){.conv = d, .no_bias = true});
    return dt_nn_batch_norm(h, name[1], NULL);
}

static dt_tensor resnet(dt_tensor h) {
    h = dt_relu(conv_norm(h, "", "conv1", "bn1", 16, 3, 1));
    for (int i = 0; i < 9; i++) { /* three layers of three blocks */
        char block[32];
        int out = 16 << i / 3, stride = i == 3 || i == 6 ? 2 : 1;
        snprintf(block, sizeof block, "layer%d.%d.", 1 + i / 3, i % 3);
        dt_tensor y = dt_relu(conv_norm(h, block, "conv1", "bn1", out, 3, stride));
        y = conv_norm(y, block, "conv2", "bn2", out, 3, 1);
        if (stride > 1)
            h = conv_norm(h, block, "downsample.0", "downsample.1", out, 1, stride);
        h = dt_relu(dt_add(y, h));
    }
    return dt_nn_linear(dt_flatten(dt_adaptive_avg_pool2d(h, 1, 1)), "fc", 10);
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

static dt_result look(void *unused, dt_fit_state *s) {
    if (stop) /* SIGTERM came: fit writes a checkpoint after this step, and all ranks end */
        s->stop = DT_FIT_STOP_CALLBACK;
    return DT_OK;
}

int main(int argc, char **argv) {
    dt_array file[4]; /* pixels and classes to train on, then those to test with */
    dt_graph *graph;
    dt_comm *comm;
    dt_train_report r;
    dt_history history = {.stop = DT_FIT_STOP_DONE};
    for (int i = 1; i < argc; i += 2)
        option(argv[i], argv[i + 1]);
    int deep = !strcmp(text[MODEL], "resnet");
    int epochs = number[EPOCHS] < 0 ? (deep ? 3 : 2) : (int)number[EPOCHS];
    check(deep || !strcmp(text[MODEL], "cnn"), text[MODEL], ": the models are cnn and resnet");
    dt_comm_desc job = dt_comm_desc_from_env(); /* one process of many, if it was started so */
    job.logger = (dt_logger){say, job.rank ? &job.rank : NULL};
    int joined = dt_comm_create(&job, &comm) == DT_OK, threads = (int)number[THREADS];
    check(joined, "", dt_comm_error(comm));
    if (!threads && job.local_size <= 1)
        threads = DT_THREADS_ALL;
    TRY(dt_ctx_create(&(dt_ctx_desc){.logger = job.logger, .threads = threads}, &ctx));
    TRY(dt_graph_create(ctx, &graph));
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(1, 28, 28)); /* one sample's pixels */
    dt_tensor t = dt_input(graph, "t", DT_I32, dt_dims());          /* and class */
    dt_tensor y = deep ? resnet(x) : cnn(x);
    dt_dataset data = load("train", file, x, t), test = load("t10k", file + 2, x, t);
    if (number[LIMIT] >= 1 && number[LIMIT] < (double)data.rows)
        data.rows = (uint64_t)number[LIMIT];
    dt_trainer_desc desc = {.loss = dt_cross_entropy(y, t, NULL), .metrics = {dt_accuracy(y, t)}};
    dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 1e-3};
    desc.data = data, desc.seed = (uint64_t)number[SEED], desc.optim = &adam;
    desc.batch = data.rows < BATCH ? (int)data.rows : BATCH;
    const uint64_t steps = data.rows / (uint64_t)desc.batch * (uint64_t)epochs;
    if (deep && steps) /* the rate falls to 0 */
        adam.schedule[0] = (dt_schedule){DT_SCHEDULE_POLYNOMIAL, .period = steps};
    desc.tail = DT_TAIL_DROP; /* what is left over waits for the next shuffle */
    desc.parallel.batch_slices = (int)number[SLICES], desc.accumulate = (int)number[ACCUMULATE];
    desc.threads = (int)number[THREADS], desc.comm = comm;
    desc.checkpoint.folder = text[CHECKPOINT];
    desc.devices = text[text[DEVICES] ? DEVICES : DEVICE];
    TRY(dt_trainer_create(graph, &desc, &trainer));
    if (text[CHECKPOINT])
        signal(SIGTERM, on_signal), signal(SIGUSR1, on_signal);
    dt_progress bar = {0};
    const dt_fit_desc fit = {.epochs = (uint64_t)epochs, /* goes on from a checkpoint */
                             .callbacks = {{dt_progress_show, &bar}, {look, NULL}}};
    TRY(epochs             ? dt_trainer_fit(trainer, &fit, &history)
        : text[CHECKPOINT] ? dt_trainer_resume(trainer, NULL)
                           : DT_OK);
    if (history.stop == DT_FIT_STOP_CALLBACK)
        return 0;
    TRY(dt_trainer_evaluate(trainer, &test, TEST_BATCH, &r));
    if (!dt_comm_rank(comm))
        printf("test accuracy %.4f  loss %.4f  %.0f samples/s\n", r.metric[0], r.loss,
               (double)r.samples / r.seconds);
    dt_history_destroy(&history);
    for (int i = 0; i < 4; i++)
        dt_array_destroy(&file[i]);
    return dt_ctx_destroy(ctx), dt_comm_destroy(comm), 0;
}
