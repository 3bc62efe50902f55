/* Teaches images: convolution, pooling, dropout, residual blocks with batch norm, and a learning
 * rate that falls. Two networks learn Fashion-MNIST: that of PyTorch's MNIST example ("cnn"), and
 * ResNet-20 of He et al. 2015 with 1x1 convolutions where the size changes ("resnet"). Parameters
 * have the names that PyTorch's modules give them. fashion_mnist.c teaches the rest of the way.
 * Options: --model cnn|resnet --device NAME --threads N --epochs N --dropout 0|1 --seed N
 * --limit SAMPLES --data FOLDER */
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MODEL, DEVICE, THREADS, EPOCHS, DROPOUT, SEED, LIMIT, DATA, OPTIONS };
static const char *const options[] = {"--model",   "--device", "--threads", "--epochs",
                                      "--dropout", "--seed",   "--limit",   "--data"};
static const char *text[OPTIONS] = {"cnn", "auto", [DATA] = "build/data"};
static double number[OPTIONS] = {[THREADS] = DT_THREADS_ALL, [EPOCHS] = -1, [DROPOUT] = 1};
enum { BATCH = 64, TEST_BATCH = 500 };
static const double rate = 1e-3; /* of Adam */
typedef struct pass { /* over a set's whole batches: what is left over waits for the next shuffle */
    const dt_array *file; /* pixels, classes */
    dt_program *program;
    uint32_t batch, count;
} pass;
static uint32_t order[60000]; /* of the samples of a pass */
static dt_ctx *ctx;
static dt_tensor x, t; /* the inputs: pixels and classes */
static void check(int ok, const char *what, const char *why) {
    if (!ok && fprintf(stderr, "fashion_mnist_conv: %s%s\n", what, why))
        exit(1);
}
#define TRY(call) check((call) == DT_OK, "", ctx ? dt_ctx_error(ctx) : "out of memory")
static void option(const char *name, const char *value) {
    int o = 0;
    while (o < OPTIONS && strcmp(options[o], name))
        o++;
    check(o < OPTIONS && value && (number[o] = atof(text[o] = value)) >= 0, name,
          ": an unknown option, or not a value for it");
}
static double now(void) {
    struct timespec at;
    return timespec_get(&at, TIME_UTC), (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
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

static pass make_pass(dt_store *store, dt_program_desc desc, const dt_array *file, int batch) {
    pass p = {.file = file, .count = (uint32_t)file[1].bytes};
    double limit = desc.optim && number[LIMIT] >= 1 ? number[LIMIT] : 60000;
    p.count = p.count < limit ? p.count : (uint32_t)limit;
    p.batch = (uint32_t)(desc.batch = batch < (int)p.count ? batch : (int)p.count);
    TRY(dt_program_create(store, &desc, &p.program));
    return p.count -= p.count % p.batch, p;
}

/* lr, lr_end: the rate at the begin and, in a straight line, at the end. */
static void run_pass(const pass *p, const char *what, double lr, double lr_end) {
    static float pixels[TEST_BATCH * 784];
    static int32_t classes[TEST_BATCH];
    double loss = 0, weight = 0, right = 0, begun = now();
    for (uint32_t row = 0, n = p->batch; row < p->count; row += n) {
        dt_report r;
        dt_step_desc step = {.lr = (float)(lr + (lr_end - lr) * row / p->count)};
        dt_rows_f32_from_u8(pixels, p->file[0].data, order + row, n, 784, 1 / 255.0f, 0);
        dt_rows_i32_from_u8(classes, p->file[1].data, order + row, n, 1);
        TRY(dt_program_write(p->program, x, pixels, n * 784 * sizeof *pixels));
        TRY(dt_program_write(p->program, t, classes, n * sizeof *classes));
        TRY(dt_program_run(p->program, &step, &r));
        loss += r.loss_sum[0], weight += r.loss_weight[0], right += r.metric_sum[0];
        int done = row + n == p->count;
        if (done || (isatty(1) && row / n % 16 == 0))
            fprintf(done ? stdout : stderr, "%s accuracy %.4f  loss %.4f  %.0f samples/s%s", what,
                    right / weight, loss / weight, (row + n) / (now() - begun),
                    done ? "\n" : " \r"),
                fflush(stdout);
    }
}

int main(int argc, char **argv) {
    dt_array file[4]; /* pixels and classes to train on, then those to test with */
    dt_graph *graph;
    dt_store *store;
    for (int i = 1; i < argc; i += 2)
        option(argv[i], argv[i + 1]);
    int deep = !strcmp(text[MODEL], "resnet");
    int epochs = number[EPOCHS] < 0 ? (deep ? 3 : 2) : (int)number[EPOCHS];
    check(deep || !strcmp(text[MODEL], "cnn"), text[MODEL], ": the models are cnn and resnet");
    TRY(dt_ctx_create(&(dt_ctx_desc){.threads = (int)number[THREADS]}, &ctx));
    for (int i = 0; i < 4; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s-%s-ubyte", text[DATA], i < 2 ? "train" : "t10k",
                 i % 2 ? "labels-idx1" : "images-idx3");
        TRY(dt_idx_load(ctx, path, &file[i]));
        check(i % 2 == 0 || file[i - 1].bytes == file[i].bytes * 784, path, ": not one per image");
    }
    TRY(dt_graph_create(ctx, &graph));
    x = dt_input(graph, "x", DT_F32, dt_dims(1, 28, 28));
    t = dt_input(graph, "t", DT_I32, dt_dims());
    dt_tensor y = deep ? resnet(x) : cnn(x);
    dt_program_desc desc = {.loss = dt_cross_entropy(y, t, NULL), .metrics = {dt_accuracy(y, t)}};
    dt_store_desc where = {text[DEVICE], (uint64_t)number[SEED], BATCH};
    TRY(dt_store_create(graph, &where, &store));
    pass test = make_pass(store, desc, &file[2], TEST_BATCH);
    desc.optim = &(dt_optim_desc){.kind = DT_ADAM, .lr = rate};
    pass train = make_pass(store, desc, &file[0], BATCH);
    for (int epoch = 0; epoch < epochs; epoch++) {
        char what[32];
        double fall = deep ? rate / epochs : 0; /* to 0 over the whole training */
        snprintf(what, sizeof what, "epoch %d", epoch + 1);
        dt_shuffle(order, train.count, where.seed, (uint64_t)epoch + 1);
        run_pass(&train, what, rate - fall * epoch, rate - fall * (epoch + 1));
    }
    dt_shuffle(order, test.count, where.seed, 0);
    run_pass(&test, "test", 0, 0);
    return dt_ctx_destroy(ctx), 0;
}
