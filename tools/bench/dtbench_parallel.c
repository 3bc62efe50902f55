/* The measuring half of ./build.sh bench parallel; tools/bench/bench_parallel.py calls it and makes
 * the tables.
 *
 *     dtbench_parallel MODEL DEVICES BATCH [pin] [no_overlap] [bf16] [width=N] [bucket=BYTES]
 *                      [seconds=S]
 *
 * Trains MODEL (mlp, cnn, mlp10m) on DEVICES ("cpu", "cpu:2", ...), BATCH samples a replica, one
 * thread each. Gradients may be in bf16 between ranks (bf16), and mlp10m's hidden layers of a
 * width. It runs as a single process, or as a rank of a job that dtrun or another launcher has
 * started. seconds: measures once and ends. Without it rank 0 gets its commands, a line each, on
 * its standard input.
 *
 *     train S       steps for about S seconds
 *     overlap S     in turn, again and again: a step that exchanges gradients only after the
 *                   backward pass (serial), one that does so meanwhile (train), the exchange of its
 *                   buckets alone (comm), a forward and backward pass alone (backward, and tail:
 *                   what follows the first bucket). Medians.
 *
 * Each is answered by one JSON object a line, from rank 0; times are in milliseconds of the wall's
 * clock. The first line says what there is. A job of one process measures until the time is over;
 * ranks agree on a number of steps, by the time that a step took before. It reaches into dtrain's
 * internals for the last two, and to change no_overlap between steps. */
#define _GNU_SOURCE
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM_S 0.2 /* before each measurement: others may have had the caches */
#define DATA_ROWS 4096
#define DATA_BATCHES_LEAST 8
#define PARTS_TIMED_MOST 256
#define LEARNING_RATE 1e-6 /* random labels are not to be learnt by heart: tiny numbers are slow */

typedef struct bench {
    const char *model, *devices;
    int batch; /* of the job */
    size_t bucket_bytes;
    int width; /* of mlp10m's hidden layers; 0 = 2048 */
    bool pin, no_overlap, bf16;
    double seconds; /* 0 = commands */
    dt_ctx *ctx;
    dt_comm *comm;
    dt_graph *graph;
    dt_tensor x, t, y;
    float *samples;
    int32_t *targets;
    uint64_t rows;
    dt_trainer *trainer;
    double step_s[2]; /* of each command, the same on all ranks; 0 = not known */
} bench;

static double now_s(void) {
    return (double)dti_now_ns() * 1e-9;
}

static _Noreturn void fail(const char *what, const char *why) {
    fprintf(stderr, "dtbench_parallel: %s: %s\n", what, why);
    exit(1);
}

static void try(const bench *b, dt_result result, const char *what) {
    if (result)
        fail(what, b->ctx ? dt_ctx_error(b->ctx) : dt_result_text(result));
}

static void try_comm(const bench *b, dt_result result, const char *what) {
    if (result)
        fail(what, b->comm ? dt_comm_error(b->comm) : dt_result_text(result));
}

/* ---- models: as in dtbench_train.h and bench_torch.py */

static void mlp(bench *b, const int *widths) {
    b->y = b->x = dt_input(b->graph, "x", DT_F32, dt_dims(widths[0]));
    for (int i = 1; widths[i]; i++) {
        char name[16];
        snprintf(name, sizeof name, "fc%d", i);
        b->y = dt_nn_linear(i > 1 ? dt_relu(b->y) : b->y, name, widths[i]);
    }
}

static void make_mlp(bench *b) {
    mlp(b, (const int[]){784, 128, 10, 0});
}

static void make_mlp10m(bench *b) {
    const int width = b->width ? b->width : 2048;
    mlp(b, (const int[]){784, width, width, width, 10, 0});
}

static void make_cnn(bench *b) {
    b->x = dt_input(b->graph, "x", DT_F32, dt_dims(1, 28, 28));
    dt_tensor h = dt_relu(dt_nn_conv2d(b->x, "conv1", 32, 3, NULL));
    h = dt_relu(dt_nn_conv2d(h, "conv2", 64, 3, NULL));
    h = dt_max_pool2d(h, &(dt_pool_desc){.kernel = {2, 2}});
    h = dt_flatten(dt_dropout(h, 0.25f));
    h = dt_dropout(dt_relu(dt_nn_linear(h, "fc1", 128)), 0.5f);
    b->y = dt_nn_linear(h, "fc2", 10);
}

static void make_model(bench *b) {
    static const struct {
        const char *name;
        void (*make)(bench *b);
    } models[] = {{"mlp", make_mlp}, {"cnn", make_cnn}, {"mlp10m", make_mlp10m}};
    try(b, dt_graph_create(b->ctx, &b->graph), "dt_graph_create");
    for (size_t i = 0; i < DTI_COUNT(models); i++)
        if (!strcmp(models[i].name, b->model))
            models[i].make(b);
    if (dti_is_nil(b->y))
        fail(b->model, "none of mlp, cnn and mlp10m");
    b->t = dt_input(b->graph, "t", DT_I32, dt_dims());
}

/* ---- the job */

static void make_data(bench *b) {
    const size_t each = (size_t)dti_shape_elements(dt_tensor_shape(b->x));
    const int batches = DTI_MAX(DATA_ROWS / b->batch, DATA_BATCHES_LEAST);
    b->rows = (uint64_t)batches * (uint64_t)b->batch;
    b->samples = malloc(b->rows * each * sizeof *b->samples);
    b->targets = malloc(b->rows * sizeof *b->targets);
    if (!b->samples || !b->targets)
        fail("data", "no memory");
    for (size_t i = 0; i < b->rows * each; i++) /* of variance 1 */
        b->samples[i] = (float)(3.4641 * (dti_uniform01(1, i, 7) - 0.5));
    for (size_t i = 0; i < b->rows; i++)
        b->targets[i] = (int32_t)(10 * dti_uniform01(2, i, 7));
}

/* How many replicas `devices` has: for the batch, which the trainer wants to know first. */
static int replicas_here(const bench *b) {
    int count = (int)dti_devices_count(dti_ctx_base(b->ctx), b->devices);
    if (!count)
        fail("devices", dt_ctx_error(b->ctx));
    return count;
}

static void open_job(bench *b) {
    dt_comm_desc comm = dt_comm_desc_from_env();
    dt_optim_desc optim = {.kind = DT_OPTIM_ADAM, .lr = LEARNING_RATE};
    bool vulkan = strstr(b->devices, "vulkan") != NULL;
    try(b, dt_ctx_create(&(dt_ctx_desc){.threads = 1, .no_vulkan = !vulkan}, &b->ctx), "context");
    try_comm(b, dt_comm_create(&comm, &b->comm), "dt_comm_create");
    make_model(b);
    b->batch *= replicas_here(b) * dt_comm_size(b->comm);
    make_data(b);
    const dt_trainer_desc desc = {
        .loss = dt_cross_entropy(b->y, b->t, NULL),
        .optim = &optim,
        .data = {.rows = b->rows,
                 .columns = {{.input = b->x, .data = b->samples, .dtype = DT_F32},
                             {.input = b->t, .data = b->targets, .dtype = DT_I32}}},
        .batch = b->batch,
        .devices = b->devices,
        .threads = 1,
        .pin = b->pin,
        .comm = dt_comm_size(b->comm) > 1 ? b->comm : NULL,
        .parallel = {.bucket_bytes = b->bucket_bytes,
                     .no_overlap = b->no_overlap,
                     .compress = b->bf16 ? DT_COMPRESS_BF16 : DT_COMPRESS_NONE}};
    try(b, dt_trainer_create(b->graph, &desc, &b->trainer), "dt_trainer_create");
}

static void close_job(bench *b) {
    dt_trainer_destroy(b->trainer);
    dt_graph_destroy(b->graph);
    dt_ctx_destroy(b->ctx);
    dt_comm_destroy(b->comm);
    free(b->samples);
    free(b->targets);
}

static void print_job(const bench *b) {
    dt_trainer_info info;
    dt_trainer_get_info(b->trainer, &info);
    if (info.rank)
        return;
    printf("{\"what\": \"ready\", \"model\": \"%s\", \"devices\": \"%s\", \"world_size\": %d, "
           "\"replicas\": %d, \"batch\": %d, \"replica_batch\": %d, \"buckets\": %d, "
           "\"gradient_bytes\": %llu, \"wire_bytes\": %llu, \"first_bucket_bytes\": %llu, "
           "\"no_overlap\": %s}\n",
           b->model, b->devices, info.world_size, info.replicas, info.batch, info.replica_batch,
           info.buckets, (unsigned long long)info.gradient_bytes,
           (unsigned long long)info.wire_bytes,
           4ull * (b->trainer->par.buckets[0].end - b->trainer->par.buckets[0].begin),
           b->no_overlap ? "true" : "false");
    fflush(stdout);
}

/* ---- what is measured */

typedef enum command { TRAIN, OVERLAP, QUIT } command;
static const char *const command_names[] = {"train", "overlap"};

enum { PART_SERIAL, PART_TRAIN, PART_COMM, PART_BACKWARD, PART_TAIL, PARTS };

typedef struct sums { /* of the steps of a measurement */
    double wait_s, data_s, loss;
    double ms[PARTS][PARTS_TIMED_MOST]; /* of the last PARTS_TIMED_MOST */
    uint64_t steps, sent;               /* bytes of payload by this rank */
} sums;

static void step_train(bench *b, sums *s) {
    dt_train_report report;
    try(b, dt_trainer_step(b->trainer, &report), "dt_trainer_step");
    s->wait_s += report.wait_seconds;
    s->data_s += report.data_seconds;
    s->loss = report.loss;
}

/* Every bucket at once, and then in order waited for, as after a backward pass. */
static void step_comm(bench *b) {
    dti_parallel *par = &b->trainer->par;
    bool ended;
    dti_exchange_begin(par);
    for (uint32_t i = 0; i < par->bucket_count; i++)
        try(b, dti_parallel_comm_failed(par, dti_sum_post(par, i)), "all-reduce");
    for (uint32_t i = 0; i < par->bucket_count; i++)
        try(b,
            dti_parallel_comm_failed(
                par, dti_works_end(par->desc.comm, &par->sums.list[i].works, true, &ended)),
            "all-reduce");
}

/* A forward and backward pass whose step is given up before the commit; gives the seconds of what
 * follows the first bucket. */
static double step_backward(bench *b) {
    dti_parallel *par = &b->trainer->par;
    dti_replica *r = &par->replicas[0];
    const uint64_t values = (uint64_t)par->job.first * par->desc.batch / par->job.replicas;
    const dti_batch batch = {.values = {b->samples, b->targets},
                             .rows = par->desc.batch,
                             .real = par->desc.batch,
                             .first = (uint32_t)values,
                             .count = par->desc.batch / par->job.replicas};
    const dt_step_desc step = {.step = r->store->steps + 1};
    dti_parallel_prepare(par, &batch, &step);
    try(b, dti_parallel_weigh(par, 0), "weigh");
    memset(par->weights.sum, 0, par->weights.width * sizeof(double));
    par->weights.sum[0] = par->desc.batch;
    try(b, dti_parallel_forward(par, 0), "forward");
    dt_program *p = r->runs->runs[0].program;
    dti_program_set_weights(p, par->weights.sum);
    double first = 0;
    for (uint32_t i = 1; i < dti_program_segments(p); i++) {
        try(b, dti_drive_start(p, 1), "backward");
        try(b, dti_drive_reach(p, i), "backward");
        if (first <= 0 && p->code->segment_buckets[i] > 0)
            first = now_s();
    }
    const double tail = now_s() - first;
    dti_parallel_drop_all(par);
    return tail;
}

static double agree_most(const bench *b, double value) {
    try_comm(b, dt_comm_all_reduce(b->comm, &value, &value, 1, DT_F64, DT_COMM_MAX), "agree");
    return value;
}

/* All ranks begin each part together: none pays for what another one did before. */
static void step_overlap(bench *b, sums *s) {
    dti_parallel *par = &b->trainer->par;
    double *ms = &s->ms[0][s->steps % PARTS_TIMED_MOST];
    if (!par->desc.comm || par->job.local != 1)
        fail("overlap", "takes several ranks of one replica each");
    for (int part = 0; part < PART_TAIL; part++) {
        agree_most(b, 0);
        const double start = now_s();
        par->desc.parallel.no_overlap = part == PART_SERIAL;
        if (part == PART_COMM)
            step_comm(b);
        else if (part == PART_BACKWARD)
            ms[PART_TAIL * PARTS_TIMED_MOST] = 1e3 * step_backward(b);
        else
            step_train(b, s);
        ms[part * PARTS_TIMED_MOST] = 1e3 * (now_s() - start);
    }
}

static void one_step(bench *b, command c, sums *s) {
    if (c == OVERLAP)
        step_overlap(b, s);
    else
        step_train(b, s);
    s->steps++;
}

static uint64_t bytes_sent(const bench *b) {
    dt_comm_info info;
    dt_comm_get_info(b->comm, &info);
    return info.payload_bytes_sent;
}

/* For about `seconds`; gives the wall's, from when all ranks are here to when all are through. */
static double run_steps(bench *b, command c, double seconds, sums *s) {
    const bool alone = dt_comm_size(b->comm) == 1;
    const double steps = seconds / b->step_s[c];
    const uint64_t least = c == OVERLAP ? 1 : 2, count = DTI_MAX((uint64_t)steps, least);
    agree_most(b, 0);
    *s = (sums){.sent = bytes_sent(b)};
    const double start = now_s();
    while (alone ? s->steps < least || now_s() - start < seconds : s->steps < count)
        one_step(b, c, s);
    s->sent = bytes_sent(b) - s->sent;
    const double took = agree_most(b, now_s() - start);
    b->step_s[c] = took / (double)s->steps;
    return took;
}

static int compare(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median_of(sums *s, int part) {
    const size_t count = (size_t)DTI_MIN(s->steps, (uint64_t)PARTS_TIMED_MOST);
    const double *ms = s->ms[part];
    qsort(s->ms[part], count, sizeof *ms, compare);
    return 0.5 * (ms[(count - 1) / 2] + ms[count / 2]);
}

static void print_sums(const bench *b, command c, sums *s, double took) {
    const double n = (double)s->steps, ms = 1e3 / n;
    printf("{\"what\": \"%s\", \"steps\": %llu, \"seconds\": %.4f, ", command_names[c],
           (unsigned long long)s->steps, took);
    if (c == OVERLAP)
        printf("\"serial_ms\": %.4f, \"train_ms\": %.4f, \"comm_ms\": %.4f, "
               "\"backward_ms\": %.4f, \"tail_ms\": %.4f}\n",
               median_of(s, PART_SERIAL), median_of(s, PART_TRAIN), median_of(s, PART_COMM),
               median_of(s, PART_BACKWARD), median_of(s, PART_TAIL));
    else
        printf("\"samples_per_s\": %.2f, \"ms\": %.5f, \"wait_ms\": %.5f, \"data_ms\": %.5f, "
               "\"loss\": %.4f, \"sent_bytes\": %.0f}\n",
               b->batch * n / took, took * ms, s->wait_s * ms, s->data_s * ms, s->loss,
               (double)s->sent / n);
    fflush(stdout);
}

static void measure(bench *b, command c, double seconds) {
    static sums s;
    if (b->step_s[c] <= 0) { /* the first steps touch memory for the first time */
        b->step_s[c] = 1;
        run_steps(b, c, 0, &s);
    }
    if (c == TRAIN)
        run_steps(b, c, WARM_S, &s);
    const double took = run_steps(b, c, seconds, &s);
    b->trainer->par.desc.parallel.no_overlap = b->no_overlap;
    if (dt_comm_rank(b->comm) == 0)
        print_sums(b, c, &s, took);
}

/* ---- commands: rank 0 reads them, and sends them to the others */

static command next_command(const bench *b, double *seconds) {
    double told[2] = {QUIT, 0};
    char line[80], name[16] = "";
    bool reads = dt_comm_rank(b->comm) == 0;
    if (reads && fgets(line, sizeof line, stdin) && sscanf(line, "%15s %lf", name, &told[1]) == 2) {
        for (int i = 0; i < QUIT; i++)
            if (!strcmp(name, command_names[i]))
                told[0] = i;
        if ((int)told[0] == QUIT)
            fprintf(stderr, "dtbench_parallel: %s: no such command\n", name);
    }
    try_comm(b, dt_comm_broadcast(b->comm, told, 2, DT_F64, 0), "broadcast");
    *seconds = told[1];
    return (command)told[0];
}

static void serve(bench *b) {
    double seconds;
    command c;
    while ((c = next_command(b, &seconds)) != QUIT)
        measure(b, c, seconds);
}

static bool parse(int argc, char **argv, bench *b) {
    if (argc < 4 || (b->batch = atoi(argv[3])) < 1)
        return false;
    b->model = argv[1];
    b->devices = argv[2];
    for (int i = 4; i < argc; i++) {
        double value;
        if (!strcmp(argv[i], "pin"))
            b->pin = true;
        else if (!strcmp(argv[i], "no_overlap"))
            b->no_overlap = true;
        else if (!strcmp(argv[i], "bf16"))
            b->bf16 = true;
        else if (sscanf(argv[i], "width=%lf", &value) == 1 && value >= 1)
            b->width = (int)value;
        else if (sscanf(argv[i], "bucket=%lf", &value) == 1 && value > 0)
            b->bucket_bytes = (size_t)value;
        else if (sscanf(argv[i], "seconds=%lf", &value) == 1 && value > 0)
            b->seconds = value;
        else
            return false;
    }
    return true;
}

int main(int argc, char **argv) {
    bench b = {0};
    if (!parse(argc, argv, &b)) {
        fputs("usage: dtbench_parallel mlp|cnn|mlp10m DEVICES BATCH [pin] [no_overlap] [bf16] "
              "[width=N] [bucket=BYTES] [seconds=S]\n",
              stderr);
        return 2;
    }
    open_job(&b);
    print_job(&b);
    if (b.seconds > 0)
        measure(&b, TRAIN, b.seconds);
    else
        serve(&b);
    close_job(&b);
    return 0;
}
