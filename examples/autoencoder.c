/* Learns to describe pictures of 16 x 16 pixels by 8 numbers. It is an autoencoder of ellipses that
 * differ in place, size, slope and brightness. Draws pictures that it has not seen above what it
 * makes of them.
 *     build/autoencoder [FOLDER [EPOCHS]]   writes autoencoder.png, and a log for dtplot */
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 16, PIXELS = SIDE * SIDE, TRAIN = 4000, TEST = 500, SHOWN = 12, CODE = 8 };

static dt_ctx *ctx;
static float pictures[(TRAIN + TEST) * PIXELS], made[TEST * PIXELS];

static void stop(void *user, dt_result result, const char *text) { /* of any call that fails */
    (void)user, (void)result;
    fprintf(stderr, "autoencoder: %s\n", text);
    exit(1);
}

static float uniform(float low, float high) {
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return low + (high - low) * (float)(state >> 8) / 16777216.0f;
}

static void ellipse(float *to) {
    const float x = uniform(5, 10), y = uniform(5, 10), slope = uniform(0, 3.1416f);
    const float a = uniform(3, 5.5f), b = uniform(1.5f, 3), light = uniform(0.4f, 1);
    for (int i = 0; i < PIXELS; i++) {
        const float u = (float)(i % SIDE) - x, v = (float)(i / SIDE) - y;
        const float p = (u * cosf(slope) + v * sinf(slope)) / a;
        const float q = (v * cosf(slope) - u * sinf(slope)) / b;
        to[i] = light / (1 + expf(8 * (p * p + q * q - 1))); /* with a soft edge */
    }
}

/* Pictures beside each other, and below each its reconstruction. */
static void draw(const char *folder) {
    static uint8_t bytes[2 * SIDE * SHOWN * SIDE];
    char path[600];
    for (int i = 0; i < 2 * SHOWN * PIXELS; i++) {
        const int row = i / (SHOWN * SIDE), column = i % (SHOWN * SIDE);
        const float *from = row < SIDE ? pictures + TRAIN * PIXELS : made;
        const float v = from[column / SIDE * PIXELS + row % SIDE * SIDE + column % SIDE];
        bytes[i] = (uint8_t)lrintf(255 * fminf(fmaxf(v, 0), 1));
    }
    snprintf(path, sizeof path, "%s/autoencoder.png", folder);
    dt_png_save(ctx, path, bytes, SHOWN * SIDE, 2 * SIDE, 1);
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : ".";
    dt_graph *g;
    dt_trainer *trainer;
    dt_run_log *log;
    for (int i = 0; i < TRAIN + TEST; i++)
        ellipse(pictures + i * PIXELS);
    dt_ctx_create(&(dt_ctx_desc){.on_error = {stop, NULL}, .threads = DT_THREADS_ALL}, &ctx);
    dt_graph_create(ctx, &g);
    dt_tensor x = dt_input(g, "picture", DT_F32, dt_dims(PIXELS));
    dt_tensor h = dt_relu(dt_nn_linear(x, "encode1", 128));
    dt_tensor code = dt_nn_linear(dt_relu(dt_nn_linear(h, "encode2", 64)), "code", CODE);
    h = dt_relu(dt_nn_linear(dt_relu(dt_nn_linear(code, "decode1", 64)), "decode2", 128));
    dt_tensor y = dt_sigmoid(dt_nn_linear(h, "picture", PIXELS));
    const dt_optim_desc adam = {.kind = DT_OPTIM_ADAMW, .lr = 2e-3};
    dt_trainer_desc job = {.loss = dt_mse(y, x), .optim = &adam, .batch = 64, .devices = "cpu"};
    job.data = (dt_dataset){.rows = TRAIN, .columns = {{.input = x, .data = pictures}}};
    const dt_dataset test = {.rows = TEST,
                             .columns = {{.input = x, .data = pictures + TRAIN * PIXELS}}};
    dt_trainer_create(g, &job, &trainer);
    dt_run_log_create(ctx, &(dt_run_log_desc){.folder = folder, .csv = true}, &log);
    dt_progress bar = {0};
    const dt_fit_desc fit = {.epochs = argc > 2 ? strtoull(argv[2], NULL, 10) : 30,
                             .validation = &test,
                             .watch = {.restore_best = true},
                             .callbacks = {{dt_progress_show, &bar}, {dt_run_log_fit, log}}};
    dt_trainer_fit(trainer, &fit, NULL);
    dt_trainer_predict(trainer, &test, y, 0, made, sizeof made);
    draw(folder);
    dt_run_log_destroy(log);
    dt_ctx_destroy(ctx);
    return 0;
}
