/* Learns a folder of pictures by class (FOLDER/CLASS/NAME.png, .jpg): a small convolutional
 * network, augmented; a fifth validates. It stops where that gets no better. The folder RUN has
 * what TensorBoard draws, and checkpoints, from which the next run goes on where this one was
 * interrupted.
 *
 *     build/pictures FOLDER RUN [EPOCHS]        compiled with -DDT_WITH_PNG -DDT_WITH_JPEG */
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>

static dt_ctx *ctx;
#define TRY(call) ((call) ? (fprintf(stderr, "%s\n", dt_ctx_error(ctx)), exit(1)) : (void)0)

int main(int argc, char **argv) {
    if (argc < 3)
        return fprintf(stderr, "usage: pictures FOLDER RUN [EPOCHS]\n"), 2;
    dt_folder *folder;
    dt_folder_info is;
    dt_graph *g;
    dt_trainer *trainer;
    dt_run_log *log;
    TRY(dt_ctx_create(&(dt_ctx_desc){.threads = DT_THREADS_ALL}, &ctx));
    dt_folder_desc files = {.sizes = DT_FOLDER_CROP, .cache_bytes = 1 << 28, .threads = 2};
    TRY(dt_folder_open(ctx, argv[1], &files, &folder));
    dt_folder_get_info(folder, &is);
    uint32_t n[2], *rows = malloc(2 * is.rows * sizeof *rows); /* that train, that validate */
    dt_data_split_desc fifth = {.rows = (uint32_t)is.rows, .labels = dt_folder_labels(folder)};
    TRY(dt_data_split(ctx, &fifth, rows, &n[0], rows + is.rows, &n[1]));
    TRY(dt_graph_create(ctx, &g));
    dt_tensor x = dt_input(g, "picture", DT_F32, dt_dims(is.channels, is.height, is.width));
    dt_tensor t = dt_input(g, "class", DT_I32, dt_dims()), h = x;
    for (int i = 0; i < 2; i++) {
        h = dt_nn_conv2d(h, i ? "conv2" : "conv1", i ? 32 : 16, 3, NULL);
        h = dt_max_pool2d(dt_relu(h), &(dt_pool_desc){.kernel = {2, 2}});
    }
    h = dt_nn_linear(dt_relu(dt_nn_linear(dt_flatten(h), "fc1", 64)), "fc2", is.classes);
    dt_augment_desc plain = {.mean = {0.5f}, .std = {0.25f}}, more = plain;
    more.flip = 0.5, more.crop_padding = 2, more.cutout = is.width / 4;
    dt_optim_desc adam = {.kind = DT_OPTIM_ADAMW, .lr = 1e-3};
    dt_trainer_desc job = {.loss = dt_cross_entropy(h, t, NULL), .optim = &adam, .batch = 32};
    job.metrics[0] = dt_accuracy(h, t);
    job.checkpoint.folder = argv[2];
    TRY(dt_folder_dataset(folder, x, t, &job.data));
    dt_dataset valid = job.data;
    job.data.rows = n[0], job.data.indices = rows, job.data.augment = &more;
    valid.rows = n[1], valid.indices = rows + is.rows, valid.augment = &plain;
    TRY(dt_trainer_create(g, &job, &trainer));
    dt_progress bar = {0};
    dt_fit_desc fit = {.epochs = argc > 3 ? strtoull(argv[3], NULL, 10) : 20};
    fit.validation = &valid;
    fit.watch =
        (dt_watch){.metric = "accuracy", .maximize = true, .patience = 4, .restore_best = true};
    TRY(dt_run_log_create(ctx, &(dt_run_log_desc){.folder = argv[2]}, &log));
    fit.callbacks[0] = (dt_callback){dt_progress_show, &bar};
    fit.callbacks[1] = (dt_callback){dt_run_log_fit, log};
    TRY(dt_trainer_fit(trainer, &fit, NULL));
    dt_run_log_destroy(log);
    dt_trainer_destroy(trainer); /* which may be reading the next batch */
    dt_folder_close(folder);
    dt_ctx_destroy(ctx);
    return free(rows), 0;
}
