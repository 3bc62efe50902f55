/* The measuring half of ./build.sh bench; tools/bench/bench.py calls it and makes the table.
 *
 *     dtbench gemm THREADS ROUNDS [M N K]   SGEMM, ours and OpenBLAS's, in turn, in one process
 *     dtbench steps NAME THREADS DEVICE N   N training steps of one workload; NAME:bf16 is in mixed
 *                                           precision
 *     dtbench trainer NAME THREADS N        the same through a trainer, on the CPU
 *     dtbench host NAME N                   what a step takes of the host, on a driver without work
 *     dtbench frame NAME THREADS DEVICE MS N [PERIOD] [--busy N] [--priority fifo|NICE [--late]]
 *                                           N frames of at most MS of steps of mlp, cnn or gpt4, or
 *                                           of bare work, one after the other or every PERIOD ms;
 *                                           --busy: beside that many loops of ordinary priority;
 *                                           --priority: of the thread and those that it makes, set
 *                                           before the context is made or (--late) after it
 *     dtbench memory NAME THREADS N         what N steps of it take of memory at most
 *     dtbench launches NAME N               what each launch of a plain step takes, of N steps
 *     dtbench region THREADS                what an empty parallel region costs
 *     dtbench product DEVICE                a chain of 512x512x512 products on one device
 *     dtbench conv DEVICE                   a chain of convolutions on one device
 *     dtbench create NAME COUNT             the cost to make a graph of COUNT nodes or layers
 *     dtbench fill THREADS MILLIONS         a store's initial values
 *     dtbench devices                       what there is
 *
 * Every result is one JSON object a line. Times are in milliseconds. It reaches into dtrain's
 * internals only for the GEMM and the pool; training goes through the public API. */
#define _GNU_SOURCE
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WARM_STEPS 3
#define SAMPLES_MAX 4096

typedef struct samples { /* of one thing: milliseconds */
    double ms[SAMPLES_MAX];
    int count;
} samples;

static double now_ms(void) {
    return (double)dti_now_ns() * 1e-6;
}

/* The clock that a product is timed with. One thread's own time does not count what else the
 * machine does meanwhile; several threads have only the wall's clock. */
static double work_ms(int threads) {
    struct timespec t;
    if (threads > 1)
        return now_ms();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void sleep_ms(long ms) {
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static int compare(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Sorts: the least is then ms[0]. */
static double median(samples *s) {
    qsort(s->ms, (size_t)s->count, sizeof *s->ms, compare);
    return s->count ? s->ms[s->count / 2] : 0;
}

static void add(samples *s, double ms) {
    if (s->count < SAMPLES_MAX)
        s->ms[s->count++] = ms;
}

static _Noreturn void fail(const char *what, const char *why) {
    fprintf(stderr, "dtbench: %s: %s\n", what, why);
    exit(1);
}

static void try(dt_ctx *ctx, dt_result result, const char *what) {
    if (result)
        fail(what, ctx ? dt_ctx_error(ctx) : dt_result_text(result));
}

static float *random_floats(size_t count, float scale) {
    float *x = malloc(count * sizeof *x);
    if (!x)
        fail("random_floats", "no memory");
    for (size_t i = 0; i < count; i++)
        x[i] = scale * (float)dti_normal(1, i, 7);
    return x;
}

#include "tests/vulkan/stub_vulkan.h"
#include "dtbench_gemm.h"
#include "dtbench_train.h"
#include "tools/check/launches.h"

#include "dtbench_frame.h"
#include "dtbench_create.h"
#include "dtbench_launches.h"

/* ---- The cost of a parallel region over its work, a piece a thread. One region comes after the
 * other, while workers spin. Another comes after a pause, when they sleep and have to be woken.
 * Without work the caller takes all pieces before a worker sees them. */

#define REGION_RUNS 2000
#define REGION_PAUSES 50
#define REGION_WORK_NS 20000

static void region_piece(void *arg, int64_t begin, int64_t end, int worker) {
    uint64_t until = dti_now_ns() + REGION_WORK_NS * (uint64_t)(end - begin);
    (void)worker;
    while (*(const bool *)arg && dti_now_ns() < until) {
    }
}

static double region_ms(dti_pool *pool, int threads, bool work) {
    double start = now_ms();
    dti_parallel_for(pool, threads, 1, region_piece, &work);
    return now_ms() - start - (work ? REGION_WORK_NS * 1e-6 : 0);
}

static void region(int threads) {
    static samples empty, spinning, parked;
    dt_ctx *ctx;
    try(NULL, dt_ctx_create(&(dt_ctx_desc){.threads = threads, .no_vulkan = true}, &ctx), "region");
    dti_pool *pool = dti_ctx_base(ctx)->pool;
    for (int i = 0; i < REGION_RUNS; i++)
        add(&empty, region_ms(pool, threads, false));
    for (int i = 0; i < REGION_RUNS; i++)
        add(&spinning, region_ms(pool, threads, true));
    for (int i = 0; i < REGION_PAUSES; i++) {
        sleep_ms(2);
        add(&parked, region_ms(pool, threads, true));
    }
    printf("{\"kind\": \"region\", \"threads\": %d, \"empty_us\": %.3f, \"spinning_us\": %.3f, "
           "\"parked_us\": %.3f",
           threads, 1e3 * median(&empty), 1e3 * median(&spinning), 1e3 * median(&parked));
    printf(", \"spinning_us_best\": %.3f, \"parked_us_best\": %.3f}\n", 1e3 * spinning.ms[0],
           1e3 * parked.ms[0]);
    dt_ctx_destroy(ctx);
}

static void devices(void) {
    dt_ctx *ctx;
    try(NULL, dt_ctx_create(NULL, &ctx), "devices");
    for (int i = 0; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *d = dt_ctx_device(ctx, i);
        printf("{\"kind\": \"device\", \"id\": \"%s\", \"name\": \"%s\", \"driver\": \"%s\", "
               "\"usable\": %s}\n",
               d->id, d->name, d->driver, d->usable ? "true" : "false");
    }
    printf("{\"kind\": \"compiler\", \"text\": \"%s\"}\n",
#ifdef __clang__
           __VERSION__
#else
           "gcc " __VERSION__
#endif
    );
    dt_ctx_destroy(ctx);
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "gemm"))
        gemm(atoi(argv[2]), atoi(argv[3]), NULL);
    else if (argc == 7 && !strcmp(argv[1], "gemm"))
        gemm(atoi(argv[2]), atoi(argv[3]),
             (const int[]){atoi(argv[4]), atoi(argv[5]), atoi(argv[6])});
    else if (argc == 6 && !strcmp(argv[1], "steps"))
        steps(argv[2], atoi(argv[3]), argv[4], atoi(argv[5]));
    else if (argc == 5 && !strcmp(argv[1], "trainer"))
        trainer_steps(argv[2], atoi(argv[3]), atoi(argv[4]));
    else if (argc == 4 && !strcmp(argv[1], "host"))
        host_steps(argv[2], atoi(argv[3]));
    else if (argc >= 7 && !strcmp(argv[1], "frame"))
        frames(argc - 2, argv + 2);
    else if (argc == 5 && !strcmp(argv[1], "memory"))
        memory(argv[2], atoi(argv[3]), atoi(argv[4]));
    else if (argc == 4 && !strcmp(argv[1], "launches"))
        launches(argv[2], atoi(argv[3]));
    else if (argc == 3 && !strcmp(argv[1], "region"))
        region(atoi(argv[2]));
    else if (argc == 3 && !strcmp(argv[1], "product"))
        product(argv[2]);
    else if (argc == 3 && !strcmp(argv[1], "conv"))
        convolution(argv[2]);
    else if (argc == 4 && !strcmp(argv[1], "create"))
        create(argv[2], atoi(argv[3]));
    else if (argc == 4 && !strcmp(argv[1], "fill"))
        fill(atoi(argv[2]), atoi(argv[3]));
    else if (argc == 2 && !strcmp(argv[1], "devices"))
        devices();
    else
        fail("usage", "see the head of tools/bench/dtbench.c; ./build.sh bench is what you want");
    return 0;
}
