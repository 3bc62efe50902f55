/* Fits a picture by a network that knows only coordinates: SIREN (Sitzmann et al. 2020), whose
 * sines have a frequency of 30. The picture is a painted one; the picture is drawn at three times
 * its size. There the network decides what lies between its pixels.
 *     build/fit_image [FOLDER [STEPS]]     writes target.png and learnt.png */
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 64, PIXELS = SIDE * SIDE, LARGE = 3 * SIDE, WIDTH = 64, LAYERS = 3 };

static dt_ctx *ctx;

static void stop(void *user, dt_result result, const char *text) { /* of any call that fails */
    (void)user, (void)result;
    fprintf(stderr, "fit_image: %s\n", text);
    exit(1);
}

/* A sun over waves: colours in -1 .. 1. */
static void paint(float x, float y, float rgb[3]) {
    const float wave = y - 0.35f - 0.08f * sinf(9 * x) - 0.03f * sinf(23 * x + 2);
    const float sun = sqrtf((x - 0.3f) * (x - 0.3f) + (y + 0.3f) * (y + 0.3f));
    const float glow = expf(-3 * sun), light = 0.5f + 0.5f * sinf(40 * wave);
    rgb[0] = wave > 0 ? -0.8f + 0.3f * light : sun < 0.22f ? 1.0f : 0.2f + 1.2f * glow;
    rgb[1] = wave > 0 ? -0.2f + 0.5f * light : sun < 0.22f ? 0.8f : -0.1f + 0.8f * glow;
    rgb[2] = wave > 0 ? 0.4f + 0.4f * light : sun < 0.22f ? 0.1f : 0.5f - 0.6f * y;
}

/* Coordinates of the middles of pixels, in -1 .. 1. */
static void place(int side, float *xy) {
    for (int i = 0; i < side * side; i++) {
        xy[2 * i] = (2.0f * (float)(i % side) + 1) / (float)side - 1;
        xy[2 * i + 1] = (2.0f * (float)(i / side) + 1) / (float)side - 1;
    }
}

static void draw(const char *folder, const char *name, int side, const float *rgb) {
    static uint8_t bytes[LARGE * LARGE * 3];
    char path[600];
    for (int i = 0; i < side * side * 3; i++)
        bytes[i] = (uint8_t)lrintf(255 * fminf(fmaxf(0.5f + 0.5f * rgb[i], 0), 1));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    dt_png_save(ctx, path, bytes, side, side, 3);
}

static dt_tensor sine(dt_tensor x, const char *name, float reach) {
    const dt_linear_desc desc = {.weight = {DT_INIT_UNIFORM, -reach, reach}};
    return dt_sin(dt_affine(dt_nn_linear_with(x, name, WIDTH, &desc), 30, 0));
}

int main(int argc, char **argv) {
    static float xy[LARGE * LARGE * 2], rgb[PIXELS * 3], large[LARGE * LARGE * 3];
    const char *folder = argc > 1 ? argv[1] : ".";
    const int steps = argc > 2 ? atoi(argv[2]) : 400;
    const float reach = sqrtf(6.0f / WIDTH) / 30;
    dt_graph *g;
    dt_store *store;
    dt_program *train, *look;
    dt_report report = {0};
    dt_ctx_create(&(dt_ctx_desc){.on_error = {stop, NULL}, .threads = DT_THREADS_ALL}, &ctx);
    dt_graph_create(ctx, &g);
    dt_tensor in = dt_input(g, "xy", DT_F32, dt_dims(2)), h = sine(in, "first", 0.5f);
    dt_tensor target = dt_input(g, "rgb", DT_F32, dt_dims(3));
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "hidden%d", i);
        h = sine(h, name, reach);
    }
    const dt_linear_desc last = {.weight = {DT_INIT_UNIFORM, -reach, reach}};
    dt_tensor out = dt_nn_linear_with(h, "out", 3, &last);
    const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 5e-4};
    const dt_program_desc step = {.loss = dt_mse(out, target), .batch = PIXELS, .optim = &adam};
    dt_store_create(g, &(dt_store_desc){.seed = 1, .batch_hint = PIXELS}, &store);
    dt_program_create(store, &step, &train);
    dt_program_create(store, &(dt_program_desc){.outputs = {out}, .batch = LARGE * LARGE}, &look);
    place(SIDE, xy);
    for (int i = 0; i < PIXELS; i++)
        paint(xy[2 * i], xy[2 * i + 1], rgb + 3 * i);
    draw(folder, "target.png", SIDE, rgb);
    dt_program_write(train, in, xy, sizeof(float) * PIXELS * 2);
    dt_program_write(train, target, rgb, sizeof rgb);
    for (int i = 1; i <= steps; i++) {
        dt_program_run(train, NULL, &report);
        if (i % 50 == 0 || i == steps) /* of a range of 2 */
            printf("step %d: %.2f dB\n", i, 10 * log10(4 / report.loss));
    }
    place(LARGE, xy);
    dt_program_write(look, in, xy, sizeof xy);
    dt_program_run(look, NULL, NULL);
    dt_program_read(look, out, large, sizeof large);
    draw(folder, "learnt.png", LARGE, large);
    dt_ctx_destroy(ctx);
    return 0;
}
