/* A network that learnt one task helps with another. A small convolutional network learns
 * directions of stripes from many pictures, and its body is saved; then a new head on that body,
 * which stays as it is, learns from 40 pictures. It learns which of four pairs of directions cross.
 * Beside it all of the network learns the same from nothing.
 *     build/finetune [FOLDER]   the body is FOLDER/body.safetensors; logs are for dtplot */
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 16, PIXELS = SIDE * SIDE, MANY = 2000, FEW = 40, TEST = 800, KINDS = 8, PAIRS = 4 };

static dt_ctx *ctx;
static float pictures[(MANY + TEST) * PIXELS];
static int32_t kinds[MANY + TEST];

static void stop(void *user, dt_result result, const char *text) { /* of any call that fails */
    (void)user, (void)result;
    fprintf(stderr, "finetune: %s\n", text);
    exit(1);
}

static float uniform(void) {
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 16777216.0f;
}

static void stripes(float *to, int kind, float strength) {
    const float turn = 3.14159265f * (float)kind / KINDS, phase = 6.28f * uniform();
    for (int i = 0; i < PIXELS; i++)
        to[i] +=
            strength *
            sinf(1.3f * ((float)(i % SIDE) * cosf(turn) + (float)(i / SIDE) * sinf(turn)) + phase);
}

/* Noise with stripes of a direction, or of two that are at right angles. */
static void paint(int count, int pairs) {
    for (int i = 0; i < count; i++) {
        float *to = pictures + i * PIXELS;
        for (int k = 0; k < PIXELS; k++)
            to[k] = 2 * uniform() - 1;
        kinds[i] = (int32_t)(uniform() * (float)(pairs ? PAIRS : KINDS));
        stripes(to, kinds[i], 0.25f);
        if (pairs)
            stripes(to, kinds[i] + KINDS / 2, 0.25f);
    }
}

/* The body has names of its own, so that a file with it goes into any network. */
static dt_tensor network(dt_tensor x, const char *head, int classes) {
    const dt_conv_layer_desc padded = {.conv = {.padding = {2, 2}}};
    const dt_pool_desc half = {.kernel = {2, 2}};
    dt_tensor h = dt_reshape(x, dt_dims(1, SIDE, SIDE));
    h = dt_max_pool2d(dt_relu(dt_nn_conv2d(h, "body.conv1", 12, 5, &padded)), &half);
    h = dt_max_pool2d(dt_relu(dt_nn_conv2d(h, "body.conv2", 16, 5, &padded)), &half);
    h = dt_relu(dt_nn_linear(dt_flatten(h), "body.fc", 32));
    return dt_nn_linear(h, head, classes);
}

/* Trains what `params` says on the first `rows` pictures; body: a file of one, or NULL. The
 * accuracy on the last ones; the weights that `save` names go to that file. */
static double train(const char *label, const char *folder, const char *body, const char *params,
                    const char *save, int rows, int classes, uint64_t epochs) {
    dt_graph *g;
    dt_trainer *trainer;
    dt_run_log *log;
    dt_train_report report;
    char path[600];
    int loaded = 0;
    dt_graph_create(ctx, &g);
    dt_tensor x = dt_input(g, "picture", DT_F32, dt_dims(PIXELS));
    dt_tensor t = dt_input(g, "kind", DT_I32, dt_dims());
    dt_tensor logits = network(x, classes == KINDS ? "directions" : "crossings", classes);
    const dt_optim_desc adam = {.kind = DT_OPTIM_ADAMW, .lr = 3e-3};
    dt_trainer_desc job = {.loss = dt_cross_entropy(logits, t, NULL), .devices = "cpu"};
    job.metrics[0] = dt_accuracy(logits, t);
    job.batch = 20;
    job.optim = &adam;
    job.params = params;
    job.seed = 3;
    dt_dataset data = {.rows = (uint64_t)rows,
                       .columns = {{x, pictures, DT_F32, 0, 0}, {t, kinds, DT_I32, 0, 0}}};
    job.data = data;
    dt_trainer_create(g, &job, &trainer);
    if (body) /* by the names of parameters: the head is not in the file */
        dt_store_load_matching(dt_trainer_store(trainer), body,
                               &(dt_load_desc){.params = "body.*", .strict = true}, &loaded);
    data.rows = TEST;
    data.columns[0].data = pictures + MANY * PIXELS;
    data.columns[1].data = kinds + MANY;
    snprintf(path, sizeof path, "%s/%s", folder, label);
    dt_run_log_create(ctx, &(dt_run_log_desc){.folder = path, .csv = true}, &log);
    dt_progress bar = {.label = label};
    const dt_fit_desc fit = {.epochs = epochs,
                             .validation = &data,
                             .callbacks = {{dt_progress_show, &bar}, {dt_run_log_fit, log}}};
    dt_trainer_fit(trainer, &fit, NULL);
    dt_trainer_evaluate(trainer, &data, 0, &report);
    if (save)
        dt_store_save_matching(dt_trainer_store(trainer), save,
                               &(dt_save_desc){.params = "body.*"});
    dt_run_log_destroy(log);
    dt_graph_destroy(g);
    return report.metric[0];
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : ".";
    char body[600];
    snprintf(body, sizeof body, "%s/body.safetensors", folder);
    dt_ctx_create(&(dt_ctx_desc){.on_error = {stop, NULL}, .threads = DT_THREADS_ALL}, &ctx);
    paint(MANY + TEST, 0);
    const double directions = train("directions", folder, NULL, NULL, body, MANY, KINDS, 6);
    paint(MANY + TEST, 1);
    const double tuned = train("tuned", folder, body, "crossings.*", NULL, FEW, PAIRS, 40);
    const double scratch = train("scratch", folder, NULL, NULL, NULL, FEW, PAIRS, 40);
    printf("directions %.3f; crossings: a new head %.3f, from nothing %.3f\n", directions, tuned,
           scratch);
    dt_ctx_destroy(ctx);
    return 0;
}
