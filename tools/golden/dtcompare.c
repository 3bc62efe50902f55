/* Runs the first steps of a network of examples/fashion_mnist_conv.c, without dropout. It writes
 * the values that tools/golden/compare_pytorch.py compares. They are the initial weights, the
 * gradient of the first step, and on standard output each step's loss.
 *
 *     dtcompare MODEL DEVICE BATCH STEPS DATA OUT          (DATA: IDX files; OUT: a folder)
 *
 * MODEL: cnn, resnet, cnn_smooth, resnet_smooth. */
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dt_ctx *ctx;

static void check(dt_result result, const char *call) {
    if (result == DT_OK)
        return;
    fprintf(stderr, "dtcompare: %s: %s\n", call, ctx ? dt_ctx_error(ctx) : "no context");
    exit(1);
}
#define TRY(call) check(call, #call)

static bool smooth; /* no ReLU and no maximum: nothing that a rounding turns over */

static dt_tensor act(dt_tensor x) {
    return smooth ? dt_gelu(x) : dt_relu(x);
}

static dt_tensor pool(dt_tensor x) {
    dt_pool_desc two = {.kernel = {2, 2}};
    return smooth ? dt_avg_pool2d(x, &two) : dt_max_pool2d(x, &two);
}

static dt_tensor cnn(dt_tensor h) {
    h = act(dt_nn_conv2d(h, "conv1", 32, 3, NULL));
    h = act(dt_nn_conv2d(h, "conv2", 64, 3, NULL));
    h = dt_flatten(pool(h));
    return dt_nn_linear(act(dt_nn_linear(h, "fc1", 128)), "fc2", 10);
}

static dt_tensor conv_norm(dt_tensor h, const char *block, const char *conv, const char *norm,
                           int out, int stride, int kernel) {
    char names[2][64];
    dt_conv_layer_desc d = {.no_bias = true, .conv = {{stride, stride}, {kernel / 2, kernel / 2}}};
    snprintf(names[0], sizeof names[0], "%s%s", block, conv);
    snprintf(names[1], sizeof names[1], "%s%s", block, norm);
    return dt_nn_batch_norm(dt_nn_conv2d(h, names[0], out, kernel, &d), names[1], NULL);
}

static dt_tensor resnet(dt_tensor h) {
    h = act(conv_norm(h, "", "conv1", "bn1", 16, 1, 3));
    for (int i = 0; i < 9; i++) {
        char name[32];
        int stride = i == 3 || i == 6 ? 2 : 1, out = 16 << i / 3;
        snprintf(name, sizeof name, "layer%d.%d.", i / 3 + 1, i % 3);
        dt_tensor y = act(conv_norm(h, name, "conv1", "bn1", out, stride, 3));
        y = conv_norm(y, name, "conv2", "bn2", out, 1, 3);
        if (stride > 1)
            h = conv_norm(h, name, "downsample.0", "downsample.1", out, stride, 1);
        h = act(dt_add(y, h));
    }
    return dt_nn_linear(dt_flatten(dt_adaptive_avg_pool2d(h, 1, 1)), "fc", 10);
}

/* All gradients, one after the other, in order of creation. */
static void write_gradients(dt_store *store, const char *path) {
    FILE *file = fopen(path, "wb");
    check(file ? DT_OK : DT_ERROR_IO, path);
    for (int i = 0; i < dt_store_param_count(store); i++) {
        dt_param_info info;
        TRY(dt_store_get_param(store, i, &info));
        if (info.buffer)
            continue;
        float *values = malloc(info.elements * sizeof *values);
        TRY(dt_store_read(store, i, DT_VALUE_GRADIENT, values, info.elements * sizeof *values));
        fwrite(values, sizeof *values, info.elements, file);
        free(values);
    }
    check(fclose(file) ? DT_ERROR_IO : DT_OK, path);
}

int main(int argc, char **argv) {
    dt_array file[2];
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
    char path[2][1024];
    if (argc != 7)
        return fprintf(stderr, "dtcompare MODEL DEVICE BATCH STEPS DATA OUT\n"), 2;
    int batch = atoi(argv[3]), steps = atoi(argv[4]);
    TRY(dt_ctx_create(&(dt_ctx_desc){.threads = DT_THREADS_ALL}, &ctx));
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/train-%s-ubyte", argv[5],
                 i ? "labels-idx1" : "images-idx3");
        TRY(dt_idx_load(ctx, path[i], &file[i]));
    }
    TRY(dt_graph_create(ctx, &graph));
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(1, 28, 28));
    dt_tensor t = dt_input(graph, "t", DT_I32, dt_dims());
    smooth = strstr(argv[1], "smooth") != NULL;
    dt_tensor y = strncmp(argv[1], "cnn", 3) ? resnet(x) : cnn(x);
    dt_program_desc desc = {.loss = dt_cross_entropy(y, t, NULL),
                            .batch = batch,
                            .optim = &(dt_optim_desc){.kind = DT_OPTIM_ADAM, .lr = 1e-3}};
    TRY(dt_store_create(graph, &(dt_store_desc){.device = argv[2]}, &store));
    TRY(dt_program_create(store, &desc, &program));
    snprintf(path[0], sizeof path[0], "%s/init.safetensors", argv[6]);
    snprintf(path[1], sizeof path[1], "%s/gradients.f32", argv[6]);
    TRY(dt_store_save(store, path[0]));
    float *pixels = malloc((size_t)batch * 784 * sizeof *pixels);
    int32_t *classes = malloc((size_t)batch * sizeof *classes);
    uint32_t *rows = malloc((size_t)batch * sizeof *rows);
    for (int step = 0; step < steps; step++) {
        dt_report report;
        for (int i = 0; i < batch; i++)
            rows[i] = (uint32_t)(step * batch + i);
        dt_gather_rows_u8_to_f32(pixels, file[0].data, rows, (uint32_t)batch, 784, 1 / 255.0f, 0);
        dt_gather_rows_u8_to_i32(classes, file[1].data, rows, (uint32_t)batch, 1);
        TRY(dt_program_write(program, x, pixels, (size_t)batch * 784 * sizeof *pixels));
        TRY(dt_program_write(program, t, classes, (size_t)batch * sizeof *classes));
        TRY(dt_program_run(program, NULL, &report));
        printf("%.17g\n", report.loss);
        if (step == 0)
            write_gradients(store, path[1]);
    }
    free(pixels), free(classes), free(rows);
    return dt_ctx_destroy(ctx), 0;
}
