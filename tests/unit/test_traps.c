/* A host that traps floating-point exceptions, as engines and debuggers do. Healthy calls do not
 * die of it, and its modes and flags stay the same. In a child, which a trap ends. */
#define _GNU_SOURCE
#include "dtrain.h"

#include "harness.h"
#include "temp.h"

#include <fenv.h>
#if defined __x86_64__
#include <immintrin.h>
#endif
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined __GLIBC__ && defined __x86_64__

#define TRAPS (FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW)

static int traps_in_fit, traps_in_sample;

/* Of the unit that floats are computed in; fegetexcept() is about the x87. */
static int traps_now(void) {
    return ~(int)_mm_getcsr() >> 7 & TRAPS;
}

static dt_result traps_sample(void *user, const dt_sample *s, void *const *values) {
    (void)user, (void)s, (void)values;
    traps_in_sample |= traps_now();
    return DT_OK;
}

static dt_result traps_seen(void *user, dt_fit_state *state) {
    (void)user, (void)state;
    traps_in_fit |= traps_now();
    return DT_OK;
}

static void traps_write(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file))
        _exit(90);
}

/* A float64 array of one value, 1e300, which no float holds. */
static void traps_npy(const char *path) {
    char text[128 + 8] = "\x93NUMPY\x01\x00\x76\x00"
                         "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }";
    const double value = 1e300;
    for (size_t i = strlen(text + 10) + 10; i < 127; i++)
        text[i] = ' ';
    text[8] = 118, text[9] = 0, text[127] = '\n';
    memcpy(text + 128, &value, 8);
    traps_write(path, text, sizeof text);
}

static void traps_files(dt_ctx *ctx) {
    const char *csv_path = temp_path("traps.csv"), *npy = temp_path("traps.npy");
    static const char table[] = "a,b\n1e300,x\n-1e-300,y\n3,\n";
    float values[3];
    traps_write(csv_path, table, sizeof table - 1);
    traps_npy(npy);
    dt_array array;
    if (dt_npy_load(ctx, npy, &array) != DT_ERROR_FORMAT)
        _exit(10);
    dt_csv *csv;
    const dt_csv_desc desc = {.rules = {{.columns = "b", .missing = DT_CSV_MISSING_MEAN}}};
    if (dt_csv_open(ctx, csv_path, &desc, &csv))
        _exit(11);
    if (dt_csv_read(csv, (const int[]){0}, 1, 0, 3, DT_F32, values) != DT_ERROR_INVALID)
        _exit(12);
    dt_csv_close(csv);
    dt_run_log *log;
    if (dt_run_log_create(ctx, &(dt_run_log_desc){.folder = temp_path("traps-log")}, &log) ||
        dt_run_log_scalar(log, "x", 1, 1e300) || dt_run_log_scalar(log, "x", 2, (double)NAN) ||
        dt_run_log_histogram(log, "h", 1, (const float[]){1, INFINITY, 3e38f}, 3))
        _exit(13);
    dt_run_log_destroy(log);
}

static void traps_metrics(dt_ctx *ctx) {
    dt_metric *metric;
    double value;
    const float scores[4] = {0.25f, 0.75f, 0.5f, 0.125f}, targets[4] = {0, 1, 1, 0};
    const dt_metric_desc desc = {.kind = DT_METRIC_BINARY};
    if (dt_metric_create(ctx, &desc, &metric))
        _exit(20);
    for (int m = 0; m <= DT_MEASURE_PSNR; m++)
        (void)dt_metric_get(metric, (dt_measure)m, &value); /* with nothing in it */
    if (dt_metric_add(metric, scores, targets, NULL, 4))
        _exit(21);
    for (int m = 0; m <= DT_MEASURE_PSNR; m++)
        (void)dt_metric_get(metric, (dt_measure)m, &value);
    dt_metric_destroy(metric);
}

static void traps_train(dt_ctx *ctx) {
    static const float x[8] = {0, 0, 0, 1, 1, 0, 1, 1}, y[4] = {0, 1, 1, 0};
    dt_graph *graph;
    dt_trainer *trainer;
    if (dt_graph_create(ctx, &graph))
        _exit(30);
    const dt_tensor in = dt_input(graph, "in", DT_F32, dt_dims(2));
    const dt_tensor out = dt_input(graph, "out", DT_F32, dt_dims(1));
    const dt_tensor h = dt_tanh(dt_nn_linear(in, "hidden", 8));
    const dt_dataset set = {.rows = 4,
                            .columns = {{.input = in, .data = x}, {.input = out, .data = y}},
                            .sample = traps_sample};
    const dt_trainer_desc desc = {.loss = dt_mse(dt_nn_linear(h, "top", 1), out),
                                  .devices = "cpu",
                                  .batch = 3,
                                  .checkpoint.folder = temp_path("traps-folder"),
                                  .data = set};
    if (dt_trainer_create(graph, &desc, &trainer))
        _exit(31);
    if (dt_trainer_step(trainer, NULL) || dt_trainer_epoch(trainer, NULL) ||
        dt_trainer_evaluate(trainer, &set, 0, NULL))
        _exit(32);
    const dt_fit_desc fit = {.epochs = 3, .validation = &set, .callbacks = {{traps_seen, NULL}}};
    dt_history history;
    if (dt_trainer_fit(trainer, &fit, &history))
        _exit(33);
    dt_history_destroy(&history);
    dt_lr_curve curve;
    const dt_lr_find_desc find = {.steps = 5, .file = temp_path("traps.state")};
    if (dt_trainer_checkpoint(trainer) || dt_trainer_resume(trainer, NULL) ||
        dt_lr_find(trainer, &find, &curve))
        _exit(34);
    dt_lr_curve_destroy(&curve);
    dt_program *program;
    if (dt_program_create(dt_trainer_store(trainer), &(dt_program_desc){.outputs = {h}}, &program))
        _exit(35);
    if (dt_program_write(program, in, x, 8) || dt_program_run(program, NULL, NULL))
        _exit(36);
    if (dt_store_save(dt_trainer_store(trainer), temp_path("traps.safetensors")))
        _exit(37);
}

static void traps_child(void) {
    dt_ctx *ctx;
    fenv_t host;
    alarm(60);
    fesetround(FE_UPWARD);
    feclearexcept(FE_ALL_EXCEPT);
    feraiseexcept(FE_INEXACT);
    feenableexcept(TRAPS);
    fegetenv(&host);
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true, .threads = 2}, &ctx))
        _exit(1);
    traps_files(ctx);
    traps_metrics(ctx);
    traps_train(ctx);
    dt_ctx_destroy(ctx);
    if (traps_now() != TRAPS || fegetround() != FE_UPWARD)
        _exit(2);
    if (fetestexcept(FE_ALL_EXCEPT) != FE_INEXACT)
        _exit(3);
    if (traps_in_fit != TRAPS || traps_in_sample)
        _exit(4); /* the host's modes in its code; the library's where it gives values */
    _exit(0);
}

TEST(training_loading_and_metrics_work_on_a_host_that_traps_floating_point_exceptions) {
    int status = 0;
    const pid_t child = fork();
    if (child == 0)
        traps_child();
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    test_check(!WIFSIGNALED(status), __FILE__, __LINE__, "it died of signal %d", WTERMSIG(status));
    test_check(WIFEXITED(status) && !WEXITSTATUS(status), __FILE__, __LINE__, "it ended with %d",
               WEXITSTATUS(status));
}

#endif
