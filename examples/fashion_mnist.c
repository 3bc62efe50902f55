/* Teaches the whole way: data from IDX files, a model, training with the short last batch as a
 * program of its own, evaluation, weights saved and loaded. The network is that of TensorFlow's
 * beginner tutorial; it tells about 87 % of Fashion-MNIST's clothes apart after 5 epochs. */
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { DEVICE, THREADS, EPOCHS, BATCH, LR, SEED, LIMIT, DATA, SAVE, LOAD, JSON, OPTIONS };
static const char *const options[] = {
    "--device DEVICE   auto (default), cpu, vulkan, vulkan:N or a part of a name",
    "--threads N       threads of the CPU; 0 = all (default)",
    "--epochs N        default 5; 0 = only evaluate",
    "--batch N         samples of a step, at most 4096, default 64",
    "--lr RATE         Adam's learning rate, default 0.001",
    "--seed N          of the initial weights and the order, default 0",
    "--limit N         train on the first N samples; 0 = all (default)",
    "--data FOLDER     of the four IDX files, default build/data",
    "--save FILE       write the weights to FILE, as safetensors",
    "--load FILE       begin with the weights of FILE, safetensors",
    "--json FILE       write one object a line to FILE, for each epoch and the test"};
static const char *text[OPTIONS] = {[DEVICE] = "auto", [DATA] = "build/data"};
static double number[OPTIONS] = {[EPOCHS] = 5, [BATCH] = 64, [LR] = 1e-3};
static const double most[OPTIONS] = {0, 1024, 1e6, 4096, 1e3, 1e15, 1e9}; /* 0 = text */
typedef struct pass {        /* over all samples of a set */
    const dt_array *file;    /* pixels, classes */
    dt_program *full, *tail; /* for full batches, and for what is left at the end */
    uint32_t batch, count;
    double loss, accuracy, seconds; /* of the newest run */
} pass;
static dt_ctx *ctx;
static dt_tensor x, t; /* the inputs: pixels and classes */
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
        if (known && (!most[o] || (!*end && number[o] >= 0 && number[o] <= most[o])))
            continue;
        for (o = 0; o < OPTIONS; o++)
            puts(options[o]);
        check(0, argv[i], ": an unknown option, or not a value for it");
    }
}

static double now(void) {
    struct timespec at;
    return clock_gettime(CLOCK_MONOTONIC, &at), (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static pass make_pass(dt_store *store, dt_program_desc desc, const dt_array *file, double batch) {
    pass p = {.file = file, .count = (uint32_t)file[1].bytes};
    if (desc.optim && number[LIMIT] >= 1 && number[LIMIT] < p.count)
        p.count = (uint32_t)number[LIMIT];
    p.batch = batch < 1 ? 1 : batch < p.count ? (uint32_t)batch : p.count;
    desc.batch = (int)p.batch;
    TRY(dt_program_create(store, &desc, &p.full));
    desc.batch = (int)(p.count % p.batch);
    TRY(desc.batch ? dt_program_create(store, &desc, &p.tail) : DT_OK);
    return p;
}

static void run_pass(pass *p, const uint32_t *order, int bar) {
    static float pixels[4096 * 784];
    static int32_t classes[4096];
    double loss = 0, weight = 0, right = 0, begun = now();
    for (uint32_t row = 0, n; row < p->count; row += n) {
        dt_report r;
        n = p->count - row < p->batch ? p->count - row : p->batch;
        dt_program *program = n == p->batch ? p->full : p->tail;
        dt_rows_f32_from_u8(pixels, p->file[0].data, order + row, n, 784, 1 / 255.0f, 0);
        dt_rows_i32_from_u8(classes, p->file[1].data, order + row, n, 1);
        TRY(dt_program_write(program, x, pixels, n * 784 * sizeof *pixels));
        TRY(dt_program_write(program, t, classes, n * sizeof *classes));
        TRY(dt_program_run(program, NULL, &r));
        loss += r.loss_sum[0], weight += r.loss_weight[0], right += r.metric_sum[0];
        p->loss = loss / weight, p->accuracy = right / weight, p->seconds = now() - begun;
        if (bar && row / p->batch % 16 == 0)
            printf("\r[%-30.*s] loss %.4f  %.0f samples/s  %.0f s left \033[K\r",
                   (int)(31.0 * row / p->count), "##############################", p->loss,
                   (row + n) / p->seconds, p->seconds / (row + n) * (p->count - row - n));
    }
}

int main(int argc, char **argv) {
    dt_array file[4]; /* pixels and classes to train on, then those to test with */
    dt_graph *graph;
    dt_store *store;
    double seconds = 0, step = 0;
    parse(argc, argv);
    int threads = (int)number[THREADS], epochs = (int)number[EPOCHS], terminal = isatty(1);
    TRY(dt_ctx_create(&(dt_ctx_desc){.threads = threads ? threads : DT_THREADS_ALL}, &ctx));
    for (int i = 0; i < 4; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s-%s-ubyte", text[DATA], i < 2 ? "train" : "t10k",
                 i % 2 ? "labels-idx1" : "images-idx3");
        TRY(dt_idx_load(ctx, path, &file[i]));
        check(i % 2 == 0 || file[i - 1].bytes == file[i].bytes * 784, path, ": not one per image");
    }
    TRY(dt_graph_create(ctx, &graph));
    x = dt_input(graph, "x", DT_F32, dt_dims(28, 28));
    t = dt_input(graph, "t", DT_I32, dt_dims());
    dt_tensor y = dt_nn_linear(dt_relu(dt_nn_linear(dt_flatten(x), "fc1", 128)), "fc2", 10);
    dt_program_desc desc = {.loss = dt_cross_entropy(y, t, NULL), .metrics = {dt_accuracy(y, t)}};
    dt_store_desc where = {text[DEVICE], (uint64_t)number[SEED], (int)number[BATCH]};
    TRY(dt_store_create(graph, &where, &store));
    TRY(text[LOAD] ? dt_store_load(store, text[LOAD]) : DT_OK);
    pass test = make_pass(store, desc, &file[2], 500);
    desc.optim = &(dt_optim_desc){.kind = DT_ADAM, .lr = number[LR]};
    pass train = make_pass(store, desc, &file[0], number[BATCH]);
    uint32_t *order = malloc((file[1].bytes + file[3].bytes) * sizeof *order);
    FILE *json = text[JSON] ? fopen(text[JSON], "w") : NULL;
    check(order != NULL, "out of memory", "");
    check(json || !text[JSON], text[JSON], ": cannot be written");
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int epoch = 1; epoch <= epochs + 1; epoch++) {
        pass *p = epoch <= epochs ? &train : &test; /* the test comes last */
        dt_shuffle(order, p->count, where.seed, (uint64_t)epoch);
        run_pass(p, order, p == &train && terminal);
        if (p == &train) {
            seconds += p->seconds, step += (p->count + p->batch - 1) / p->batch;
            printf("epoch %d  loss %.4f  accuracy %.4f  %.0f samples/s%s\n", epoch, p->loss,
                   p->accuracy, p->count / p->seconds, terminal ? "\033[K" : "");
        }
        if (json)
            fprintf(json,
                    "{\"set\":\"%s\",\"epoch\":%d,\"step\":%.0f,\"loss\":%.6f,\"accuracy\":%.6f,"
                    "\"samples_per_second\":%.1f,\"seconds\":%.3f,\"device\":\"%s\"}\n",
                    p == &train ? "train" : "test", p == &train ? epoch : epochs, step, p->loss,
                    p->accuracy, p->count / p->seconds, seconds, dt_store_device(store)->id);
    }
    TRY(text[SAVE] ? dt_store_save(store, text[SAVE]) : DT_OK);
    printf("test accuracy %.4f  loss %.4f  device %s  seconds %.1f\n", test.accuracy, test.loss,
           dt_store_device(store)->id, seconds);
    for (int i = 0; i < 4; i++)
        dt_array_free(&file[i]);
    return dt_ctx_destroy(ctx), free(order), json && fclose(json);
}
