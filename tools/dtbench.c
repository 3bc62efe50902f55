/* The measuring half of ./build.sh bench; tools/bench.py calls it and makes the table.
 *
 *     dtbench gemm THREADS ROUNDS [M N K]   SGEMM, ours and OpenBLAS's, in turn, in one process
 *     dtbench steps NAME THREADS DEVICE N   N training steps of one workload
 *     dtbench region THREADS                what an empty parallel region costs
 *     dtbench product DEVICE                a chain of 512x512x512 products on one device
 *     dtbench devices                       what there is
 *
 * Every result is one JSON object a line. Times are in milliseconds. It reaches into dtrain's
 * internals for the GEMM and the pool alone; training goes through the public API. */
#define _GNU_SOURCE
#define DT_IMPLEMENTATION
#include "dtrain.h"

#include <dlfcn.h>
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
 * machine does meanwhile; several threads have the wall's clock alone. */
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

/* ---- The peak: independent chains of FMA in registers, as wide as the CPU has them. In assembly,
 * because compilers spill an array of accumulators. All values are 0: no denormals. */

#define PEAK_CHAINS 12 /* latency 4 times two ports, and to spare */
#define PEAK_LOOPS 100000
#define PEAK_TRIES 40

#if DTI_X86
/* clang-format off */
#define PEAK_FMA(v, i) "vfmadd231ps %%" v "15, %%" v "15, %%" v i "\n\t"
#define PEAK_BODY(v)                                                                               \
    PEAK_FMA(v, "0") PEAK_FMA(v, "1") PEAK_FMA(v, "2") PEAK_FMA(v, "3") PEAK_FMA(v, "4")           \
    PEAK_FMA(v, "5") PEAK_FMA(v, "6") PEAK_FMA(v, "7") PEAK_FMA(v, "8") PEAK_FMA(v, "9")           \
    PEAK_FMA(v, "10") PEAK_FMA(v, "11")
/* clang-format on */
#define PEAK_LOOP(name, v, lanes)                                                                  \
    static double name(void) {                                                                     \
        long loops = PEAK_LOOPS;                                                                   \
        __asm__ volatile("vzeroall\n1:\n\t" PEAK_BODY(v) "dec %0\n\tjnz 1b\n\tvzeroupper"          \
                         : "+r"(loops)                                                             \
                         :                                                                         \
                         : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",   \
                           "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");  \
        return 2.0 * lanes * PEAK_CHAINS * (double)PEAK_LOOPS;                                     \
    }
PEAK_LOOP(peak_avx2, "ymm", 8)
PEAK_LOOP(peak_avx512, "zmm", 16)
#endif

/* Floating-point operations done. */
static double peak_loop(int isa) {
#if DTI_X86
    if (isa == DTI_ISA_AVX512)
        return peak_avx512();
    if (isa == DTI_ISA_AVX2)
        return peak_avx2();
#endif
    (void)isa;
    return 0;
}

/* GFLOP/s of one core, by its thread's own time; 0 where there is no loop for this CPU. */
static double peak_gflops(int isa) {
    double best = 0;
    for (int i = 0; i < PEAK_TRIES; i++) {
        double start = work_ms(1), flops = peak_loop(isa);
        best = DTI_MAX(best, flops / (work_ms(1) - start) * 1e-6);
    }
    return best;
}

/* ---- SGEMM against OpenBLAS. Each round times one, then the other, so that what else the machine
 * does hits both; the ratio is the median of the rounds' ratios. */

#define BLOCK_MS 2 /* one timed block: enough calls for the clock, and within a time slice */
#define BLOCKS 3   /* in a round: the least counts */
#define CELL_MS 900
#define ROUNDS_LEAST 3
#define CORE_GFLOPS 100 /* roughly, to size a block */
/* OpenBLAS's threads spin when they are done, libgomp's for up to 15 ms: on a machine with as many
 * cores as threads they would sit on the core of the one that is timed next. */
#define SETTLE_MS 40

typedef void sgemm_fn(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                      const float *a, int lda, const float *b, int ldb, float beta, float *c,
                      int ldc);

typedef struct blas {
    sgemm_fn *sgemm;
    const char *path, *config;
} blas;

/* The builds with OpenMP first: PyTorch uses the same. */
static blas blas_open(int threads) {
    static const char *const paths[] = {
        "/usr/lib/x86_64-linux-gnu/openblas-openmp/libopenblas.so.0",
        "/usr/lib/aarch64-linux-gnu/openblas-openmp/libopenblas.so.0", "libopenblas.so.0",
        "libopenblas.so"};
    void *library = NULL;
    blas b = {0};
    for (size_t i = 0; i < DTI_COUNT(paths) && !library; i++) {
        library = dlopen(paths[i], RTLD_NOW | RTLD_LOCAL);
        b.path = paths[i];
    }
    void (*set_threads)(int) = NULL;
    char *(*get_config)(void) = NULL;
    if (!library)
        return (blas){.path = "", .config = "not found"};
    *(void **)&b.sgemm = dlsym(library, "cblas_sgemm");
    *(void **)&set_threads = dlsym(library, "openblas_set_num_threads");
    *(void **)&get_config = dlsym(library, "openblas_get_config");
    if (!b.sgemm || !set_threads)
        return (blas){.path = b.path, .config = "no cblas_sgemm in it"};
    set_threads(threads);
    b.config = get_config ? get_config() : "";
    return b;
}

typedef struct cell { /* one product */
    int m, n, k, lda, ldb;
    bool ta, tb;
    float *a, *b, *ours, *theirs;
} cell;

typedef struct gemm_bench {
    dti_pool *pool;
    const dti_cpu_kernels *kernels;
    blas blas;
    int threads;
    char *scratch;
    size_t scratch_bytes; /* of one worker */
} gemm_bench;

typedef struct gemm_job {
    const gemm_bench *bench;
    dti_gemm gemm;
} gemm_job;

static void gemm_piece(void *arg, int64_t begin, int64_t end, int worker) {
    const gemm_job *job = arg;
    const gemm_bench *x = job->bench;
    dti_gemm_run(x->kernels, &job->gemm, x->threads, begin, end,
                 x->scratch + (size_t)worker * x->scratch_bytes);
}

static void run_ours(const gemm_bench *x, const cell *c) {
    gemm_job job = {x,
                    {.m = c->m,
                     .n = c->n,
                     .k = c->k,
                     .a = c->a,
                     .b = c->b,
                     .c = c->ours,
                     .a_row = c->ta ? 1 : c->lda,
                     .a_col = c->ta ? c->lda : 1,
                     .b_row = c->tb ? 1 : c->ldb,
                     .b_col = c->tb ? c->ldb : 1,
                     .c_row = c->n,
                     .c_col = 1}};
    int64_t tiles = dti_gemm_tiles(&job.gemm, x->threads);
    dti_parallel_for(x->pool, tiles, 1, gemm_piece, &job);
}

static void run_theirs(const gemm_bench *x, const cell *c) {
    enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
    x->blas.sgemm(ROW_MAJOR, c->ta ? TRANSPOSED : PLAIN, c->tb ? TRANSPOSED : PLAIN, c->m, c->n,
                  c->k, 1, c->a, c->lda, c->b, c->ldb, 0, c->theirs, c->n);
}

typedef void run_fn(const gemm_bench *x, const cell *c);

static double time_calls(const gemm_bench *x, const cell *c, run_fn *run, int calls) {
    double start = work_ms(x->threads);
    for (int i = 0; i < calls; i++)
        run(x, c);
    return (work_ms(x->threads) - start) / calls;
}

/* Milliseconds of one call: the least of some blocks' means. A call that is itself a long block is
 * timed once; others after one that is not counted. */
static double time_round(const gemm_bench *x, const cell *c, run_fn *run, int calls) {
    if (x->threads > 1)
        sleep_ms(SETTLE_MS);
    if (calls > 1)
        run(x, c);
    double best = time_calls(x, c, run, calls);
    for (int i = 1; i < BLOCKS && best * calls < 10 * BLOCK_MS; i++)
        best = DTI_MIN(best, time_calls(x, c, run, calls));
    return best;
}

/* By what a product should take, not by a first call, which may have to wake threads. */
static int block_calls(const gemm_bench *x, const cell *c) {
    double ms = 2.0 * c->m * c->n * c->k / (CORE_GFLOPS * x->threads) * 1e-6;
    return ms >= BLOCK_MS ? 1 : (int)(BLOCK_MS / ms) + 1;
}

/* The largest difference, of the largest value: a bench that computes nonsense is no bench. */
static double difference(const cell *c) {
    double most = 0, largest = 1e-30;
    for (int64_t i = 0; i < (int64_t)c->m * c->n; i++) {
        most = DTI_MAX(most, fabs((double)c->ours[i] - (double)c->theirs[i]));
        largest = DTI_MAX(largest, fabs((double)c->theirs[i]));
    }
    return most / largest;
}

static void print_cell(const gemm_bench *x, const cell *c, samples *ours, samples *theirs,
                       samples *ratios, double peak) {
    double flops = 2.0 * c->m * c->n * c->k * 1e-6, typical = median(ours);
    printf("{\"kind\": \"gemm\", \"m\": %d, \"n\": %d, \"k\": %d, \"trans\": \"%c%c\", "
           "\"threads\": %d, \"gflops\": %.2f, \"gflops_best\": %.2f, \"peak_gflops\": %.2f",
           c->m, c->n, c->k, c->ta ? 'T' : 'N', c->tb ? 'T' : 'N', x->threads, flops / typical,
           flops / ours->ms[0], peak);
    if (x->blas.sgemm) {
        typical = median(theirs);
        printf(", \"openblas_gflops\": %.2f, \"openblas_gflops_best\": %.2f, \"ratio\": %.4f, "
               "\"ratio_best\": %.4f, \"difference\": %.2e",
               flops / typical, flops / theirs->ms[0], median(ratios), theirs->ms[0] / ours->ms[0],
               difference(c));
    }
    printf("}\n");
    fflush(stdout);
}

static void gemm_cell(const gemm_bench *x, const cell *c, int rounds, double peak) {
    static samples ours, theirs, ratios;
    ours.count = theirs.count = ratios.count = 0;
    const int calls = block_calls(x, c);
    double end = now_ms() + CELL_MS;
    for (int i = 0; i < rounds && (i < ROUNDS_LEAST || now_ms() < end); i++) {
        add(&ours, time_round(x, c, run_ours, calls));
        if (!x->blas.sgemm)
            continue;
        add(&theirs, time_round(x, c, run_theirs, calls));
        add(&ratios, theirs.ms[i] / ours.ms[i]);
    }
    print_cell(x, c, &ours, &theirs, &ratios, peak);
}

static void gemm_size(gemm_bench *x, int m, int n, int k, int rounds, double peak) {
    dti_gemm g = {.m = m, .n = n, .k = k};
    x->scratch_bytes = (dti_gemm_scratch_bytes(&g, x->threads) + 4095) & ~(size_t)4095;
    x->scratch = aligned_alloc(4096, x->scratch_bytes * (size_t)x->threads);
    cell c = {.m = m, .n = n, .k = k};
    c.a = random_floats((size_t)m * (size_t)k, 1);
    c.b = random_floats((size_t)k * (size_t)n, 1);
    c.ours = random_floats((size_t)m * (size_t)n, 0);
    c.theirs = random_floats((size_t)m * (size_t)n, 0);
    if (!x->scratch)
        fail("gemm", "no memory");
    for (int trans = 0; trans < 4; trans++) {
        c.ta = trans & 1, c.tb = trans & 2;
        c.lda = c.ta ? m : k, c.ldb = c.tb ? k : n;
        gemm_cell(x, &c, rounds, peak);
    }
    free(c.a), free(c.b), free(c.ours), free(c.theirs), free(x->scratch);
}

/* Cubes, cubes of odd sizes, and what layers make of small batches. */
static const int gemm_sizes[][3] = {
    {32, 32, 32},     {64, 64, 64},    {96, 96, 96},       {128, 128, 128},    {192, 192, 192},
    {256, 256, 256},  {512, 512, 512}, {1024, 1024, 1024}, {2048, 2048, 2048}, {33, 33, 33},
    {65, 65, 65},     {127, 127, 127}, {255, 255, 255},    {517, 389, 777},    {1000, 10, 500},
    {64, 10, 128},    {32, 64, 32},    {64, 128, 784},     {784, 128, 64},     {128, 1024, 784},
    {1024, 784, 128},
};

/* only: NULL for the table, or one size. */
static void gemm(int threads, int rounds, const int *only) {
    dt_ctx *ctx;
    try(NULL, dt_ctx_create(&(dt_ctx_desc){.threads = threads, .no_vulkan = true}, &ctx), "gemm");
    gemm_bench x = {.pool = dti_ctx_base(ctx)->pool, .threads = threads};
    x.kernels = dti_cpu_kernels_select(DTI_ISA_AVX512);
    x.blas = blas_open(threads);
    double peak = threads * peak_gflops(x.kernels->isa);
    printf(
        "{\"kind\": \"gemm_setup\", \"threads\": %d, \"kernels\": \"%s\", \"peak_gflops\": %.2f, "
        "\"openblas\": \"%s\", \"openblas_config\": \"%s\"}\n",
        threads, x.kernels->name, peak, x.blas.path, x.blas.config);
    if (only)
        gemm_size(&x, only[0], only[1], only[2], rounds, peak);
    for (size_t i = 0; !only && i < DTI_COUNT(gemm_sizes); i++)
        gemm_size(&x, gemm_sizes[i][0], gemm_sizes[i][1], gemm_sizes[i][2], rounds, peak);
    dt_ctx_destroy(ctx);
}

/* ---- What a parallel region costs over its work, a piece a thread: one region after the other,
 * while workers spin, and after a pause, when they sleep and have to be woken. Without work the
 * caller takes all pieces before a worker sees them. */

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

/* ---- Training steps, the same as tools/bench_torch.py's: write the batch, run one step. */

#define WIDTHS_MAX 5

typedef struct workload {
    const char *name;
    int widths[WIDTHS_MAX], batch;
    bool mse; /* else cross-entropy */
    dt_optim_kind optim;
} workload;

static const workload workloads[] = {
    {"xor", {2, 16, 1}, 4, true, DT_ADAMW},
    {"mlp_tiny", {32, 64, 64, 10}, 32, false, DT_ADAMW},
    {"mlp", {784, 128, 10}, 64, false, DT_ADAM},
    {"mlp_wide", {784, 1024, 1024, 10}, 128, false, DT_ADAM},
};

static const workload *find_workload(const char *name) {
    for (size_t i = 0; i < DTI_COUNT(workloads); i++)
        if (!strcmp(workloads[i].name, name))
            return &workloads[i];
    fail(name, "no such workload");
}

typedef struct session { /* a context, and what was made in it */
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
} session;

static session session_open(int threads, const char *device) {
    session s = {0};
    dt_ctx_desc desc = {.threads = threads, .no_vulkan = !strcmp(device, "cpu")};
    try(NULL, dt_ctx_create(&desc, &s.ctx), "dt_ctx_create");
    try(s.ctx, dt_graph_create(s.ctx, &s.graph), "dt_graph_create");
    return s;
}

static void session_close(session *s) {
    dt_program_destroy(s->program);
    dt_store_destroy(s->store);
    dt_graph_destroy(s->graph);
    dt_ctx_destroy(s->ctx);
}

typedef struct net {
    dt_tensor x, t, loss;
    int in, out;
} net;

static net make_net(dt_graph *graph, const workload *w) {
    net n = {.in = w->widths[0]};
    n.x = dt_input(graph, "x", DT_F32, dt_dims(n.in));
    dt_tensor h = n.x;
    for (int i = 1; i < WIDTHS_MAX && w->widths[i]; i++) {
        char name[16];
        snprintf(name, sizeof name, "fc%d", i);
        h = dt_nn_linear(i > 1 ? dt_relu(h) : h, name, w->widths[i]);
        n.out = w->widths[i];
    }
    n.t = w->mse ? dt_input(graph, "t", DT_F32, dt_dims(n.out))
                 : dt_input(graph, "t", DT_I32, dt_dims());
    n.loss = w->mse ? dt_mse(h, n.t) : dt_cross_entropy(h, n.t, NULL);
    return n;
}

/* What the products of a step are worth: forward, weights' gradients, and the inputs' but for the
 * first layer. */
static double step_flops(const workload *w) {
    double macs = 0;
    for (int i = 1; i < WIDTHS_MAX && w->widths[i]; i++)
        macs += (i > 1 ? 3.0 : 2.0) * w->widths[i - 1] * w->widths[i];
    return 2 * macs * w->batch;
}

static void print_steps(const workload *w, const session *s, samples *times, double loss,
                        int threads) {
    const dt_device_info *d = dt_store_device(s->store);
    double typical = median(times);
    printf("{\"kind\": \"steps\", \"peer\": \"dtrain\", \"workload\": \"%s\", \"batch\": %d, "
           "\"threads\": %d, \"device\": \"%s\", \"device_name\": \"%s\", \"steps\": %d, "
           "\"ms_median\": %.5f, \"ms_min\": %.5f, \"samples_per_s\": %.1f, \"loss\": %.4f, "
           "\"gflops_best\": %.2f, \"peak_gflops\": %.2f}\n",
           w->name, w->batch, threads, d->id, d->name, times->count, typical, times->ms[0],
           w->batch / typical * 1e3, loss, step_flops(w) / times->ms[0] * 1e-6,
           strcmp(d->id, "cpu") ? 0.0 : threads * peak_gflops(dti_isa_select(DTI_ISA_AVX512)));
}

static void steps(const char *name, int threads, const char *device, int count) {
    static samples times;
    const workload *w = find_workload(name);
    session s = session_open(threads, device);
    net n = make_net(s.graph, w);
    try(s.ctx, dt_store_create(s.graph, &(dt_store_desc){.device = device}, &s.store), name);
    dt_optim_desc optim = {.kind = w->optim, .lr = 1e-3};
    dt_program_desc desc = {.label = name, .loss = n.loss, .batch = w->batch, .optim = &optim};
    try(s.ctx, dt_program_create(s.store, &desc, &s.program), name);
    size_t x_bytes = (size_t)(w->batch * n.in) * 4, t_bytes = (size_t)w->batch * 4;
    if (w->mse)
        t_bytes *= (size_t)n.out;
    float *x = random_floats(x_bytes / 4, 1), *t = random_floats(t_bytes / 4, 1);
    int32_t *labels = malloc((size_t)w->batch * sizeof *labels);
    for (int i = 0; labels && i < w->batch; i++)
        labels[i] = (int32_t)(10 * dti_uniform01(2, (uint64_t)i, 0));
    const void *target = w->mse ? (const void *)t : labels;
    dt_report report = {0};
    for (int i = 0; i < WARM_STEPS + count; i++) {
        double start = now_ms();
        try(s.ctx, dt_program_write(s.program, n.x, x, x_bytes), name);
        try(s.ctx, dt_program_write(s.program, n.t, target, t_bytes), name);
        try(s.ctx, dt_program_run(s.program, NULL, &report), name);
        if (i >= WARM_STEPS)
            add(&times, now_ms() - start);
    }
    print_steps(w, &s, &times, report.loss, threads);
    free(x), free(t), free(labels);
    session_close(&s);
}

/* ---- A chain of products on any device. The operands are parameters and one number comes back, so
 * that it is the product that is timed. */

#define PRODUCT_SIZE 512
#define PRODUCT_CHAIN 4
#define PRODUCT_RUNS 7

static void product(const char *device) {
    static samples times;
    session s = session_open(0, device);
    dt_init init = {.kind = DT_INIT_NORMAL,
                    .b = 0.04f}; /* 1/sqrt(512): the chain keeps its scale */
    dt_tensor a = dt_param(s.graph, "a", dt_dims(PRODUCT_SIZE, PRODUCT_SIZE), init);
    dt_tensor y = dt_param(s.graph, "b", dt_dims(PRODUCT_SIZE, PRODUCT_SIZE), init);
    for (int i = 0; i < PRODUCT_CHAIN; i++)
        y = dt_matmul(a, y);
    y = dt_slice(dt_slice(y, 0, 0, 1), 1, 0, 1);
    try(s.ctx, dt_store_create(s.graph, &(dt_store_desc){.device = device}, &s.store), device);
    dt_program_desc desc = {.label = "product", .outputs = {y}};
    try(s.ctx, dt_program_create(s.store, &desc, &s.program), device);
    for (int i = -1; i < PRODUCT_RUNS; i++) {
        double start = now_ms();
        try(s.ctx, dt_program_run(s.program, NULL, NULL), device);
        if (i >= 0)
            add(&times, now_ms() - start);
    }
    double flops = 2.0 * PRODUCT_CHAIN * PRODUCT_SIZE * PRODUCT_SIZE * PRODUCT_SIZE * 1e-6;
    double typical = median(&times);
    const dt_device_info *d = dt_store_device(s.store);
    printf("{\"kind\": \"product\", \"size\": %d, \"device\": \"%s\", \"device_name\": \"%s\", "
           "\"driver\": \"%s\", \"gflops\": %.2f, \"gflops_best\": %.2f}\n",
           PRODUCT_SIZE, d->id, d->name, d->driver, flops / typical, flops / times.ms[0]);
    session_close(&s);
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
    else if (argc == 3 && !strcmp(argv[1], "region"))
        region(atoi(argv[2]));
    else if (argc == 3 && !strcmp(argv[1], "product"))
        product(argv[2]);
    else if (argc == 2 && !strcmp(argv[1], "devices"))
        devices();
    else
        fail("usage", "see the head of tools/dtbench.c; ./build.sh bench is what you want");
    return 0;
}
