/* Part of dtbench.c: what a core can do at most, and SGEMM beside OpenBLAS. */

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
/* OpenBLAS's threads spin when they are done, libgomp's for up to 15 ms. With one core for each
 * thread they would sit on the core of the side that is timed next. */
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
    const dti_isa_kernels *kernels;
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

/* The largest difference, of the largest value: a bench that computes nonsense measures nothing. */
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
    x->scratch_bytes = (dti_gemm_scratch_bytes(&g) + 4095) & ~(size_t)4095;
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
    x.kernels = dti_isa_kernels_select(DTI_ISA_AVX512);
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
