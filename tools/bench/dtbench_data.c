/* ./build.sh bench data runs this: a convolutional network trained on one core. Its samples come
 * from arrays in memory, or from a folder of PNG files decoded on another core. Then from the
 * folder with augmentation, and with a cache. Whole epochs, in turns; medians of samples a second,
 * and how long steps waited for samples.
 *
 *     build/dtbench_data IMAGES LABELS FOLDER [ROUNDS]
 *
 * FOLDER has the pictures of IMAGES, made by tools/bench/pictures_from_idx. */
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>

enum { ARRAYS, FILES, AUGMENTED, CACHED, KINDS, ROUNDS_MAX = 99, BATCH = 64, ROWS = 2048 };
static const char *const names[KINDS] = {"arrays", "PNG files", "PNG files, augmented",
                                         "PNG files, cached"};
static dt_ctx *ctx;

static void check(int ok, const char *why) {
    if (!ok && fprintf(stderr, "dtbench_data: %s\n", why))
        exit(1);
}
#define TRY(call) check((call) == DT_OK, dt_ctx_error(ctx))

/* PyTorch's MNIST example. */
static dt_tensor network(dt_tensor h) {
    h = dt_relu(dt_nn_conv2d(h, "conv1", 32, 3, NULL));
    h = dt_relu(dt_nn_conv2d(h, "conv2", 64, 3, NULL));
    h = dt_flatten(dt_max_pool2d(h, &(dt_pool_desc){.kernel = {2, 2}}));
    return dt_nn_linear(dt_relu(dt_nn_linear(h, "fc1", 128)), "fc2", 10);
}

typedef struct subject {
    dt_graph *graph;
    dt_tensor picture, label;
    dt_folder *folder;
    dt_trainer *trainer;
    double rate[ROUNDS_MAX], waited[ROUNDS_MAX];
} subject;

static dt_dataset data_of(subject *s, int kind, const char *folder, dt_array arrays[2],
                          const dt_augment_desc *augment) {
    dt_dataset set = {.rows = (uint64_t)arrays[0].dim[0]};
    const dt_folder_desc files = {.cache_bytes = kind == CACHED ? 1u << 30 : 0, .threads = 1};
    if (kind == ARRAYS) {
        set.columns[0] = (dt_column){
            .input = s->picture, .data = arrays[0].data, .dtype = DT_U8, .scale = 1 / 255.0f};
        set.columns[1] = (dt_column){.input = s->label, .data = arrays[1].data, .dtype = DT_U8};
        return set;
    }
    TRY(dt_folder_open(ctx, folder, &files, &s->folder));
    TRY(dt_folder_dataset(s->folder, s->picture, s->label, &set));
    set.augment = kind == AUGMENTED ? augment : NULL;
    return set;
}

static void subject_open(subject *s, int kind, const char *folder, dt_array arrays[2],
                         const dt_augment_desc *augment) {
    dt_optim_desc adam = {.kind = DT_OPTIM_ADAM};
    TRY(dt_graph_create(ctx, &s->graph));
    s->picture = dt_input(s->graph, "picture", DT_F32, dt_dims(1, 28, 28));
    s->label = dt_input(s->graph, "label", DT_I32, dt_dims());
    dt_trainer_desc job = {.optim = &adam, .batch = BATCH, .devices = "cpu", .threads = 1};
    job.loss = dt_cross_entropy(network(s->picture), s->label, NULL);
    job.data = data_of(s, kind, folder, arrays, augment);
    /* of a folder the first classes: how long a step takes does not depend on them */
    job.data.rows = job.data.rows < ROWS ? job.data.rows : ROWS;
    TRY(dt_trainer_create(s->graph, &job, &s->trainer));
}

static int before(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    static subject subjects[KINDS];
    const int rounds = argc > 4 ? atoi(argv[4]) : 5;
    dt_augment_desc augment = {
        .crop_padding = 2, .flip = 0.5, .mean = {0.5f}, .std = {0.25f}, .cutout = 7};
    dt_array arrays[2];
    dt_train_report report;
    check(argc > 3 && rounds > 0 && rounds <= ROUNDS_MAX,
          "usage: dtbench_data IMAGES LABELS FOLDER [ROUNDS]");
    TRY(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    TRY(dt_idx_load(ctx, argv[1], &arrays[0]));
    TRY(dt_idx_load(ctx, argv[2], &arrays[1]));
    for (int k = 0; k < KINDS; k++)
        subject_open(&subjects[k], k, argv[3], arrays, &augment);
    for (int r = -1; r < rounds; r++) { /* the first one warms up */
        for (int k = 0; k < KINDS; k++) {
            TRY(dt_trainer_epoch(subjects[k].trainer, &report));
            if (r < 0)
                continue;
            subjects[k].rate[r] = (double)report.samples / report.seconds;
            subjects[k].waited[r] = report.data_seconds / report.seconds;
        }
    }
    for (int k = 0; k < KINDS; k++) {
        subject *s = &subjects[k];
        qsort(s->rate, (size_t)rounds, sizeof *s->rate, before);
        qsort(s->waited, (size_t)rounds, sizeof *s->waited, before);
        printf("%-22s %8.0f samples/s (%.0f to %.0f), %5.1f %% of arrays, waited %.2f %%\n",
               names[k], s->rate[rounds / 2], s->rate[0], s->rate[rounds - 1],
               100 * s->rate[rounds / 2] / subjects[0].rate[rounds / 2],
               100 * s->waited[rounds / 2]);
        dt_trainer_destroy(s->trainer);
        dt_folder_close(s->folder);
    }
    dt_array_destroy(&arrays[0]);
    dt_array_destroy(&arrays[1]);
    dt_ctx_destroy(ctx);
    return 0;
}
