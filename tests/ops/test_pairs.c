/* Products of bf16 with bf16: every instruction set of this machine gives the bits of the chain
 * that gemm.h describes. Shapes, strides, types, values, tiles and threads vary. */

typedef struct pairs_case {
    dti_gemm g;
    dti_gemm_half h;
    uint16_t *a, *b;
    float *wide;    /* B in f32, which rounds to b */
    float *others;  /* bias and the epilogue's operand, as any type */
    char *c;        /* a guard after it */
    int64_t c_size; /* elements */
} pairs_case;

/* Ordinary numbers; wide exponents; denormals; products at the edge of them; any pattern; large
 * numbers, which products with denormals are read by. */
static uint16_t pairs_value(uint32_t kind) {
    const uint32_t r = kernel_random(), sign = r & 0x807F, at = r >> 16;
    return (uint16_t)(kind == 0   ? dti_bf16_from_f32(kernel_uniform())
                      : kind == 1 ? sign | (16 + at % 112) << 7
                      : kind == 2 ? sign | (at % 12) << 7
                      : kind == 3 ? sign | (50 + at % 16) << 7
                      : kind == 5 ? sign | (127 + at % 16) << 7
                                  : r);
}

static uint16_t *pairs_values(int64_t n, uint32_t kind) {
    uint16_t *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; x && i < n; i++)
        x[i] = pairs_value(kind);
    return x;
}

/* A float that rounds to x; of finite ones by chance a neighbour of it, or a tie. */
static float pairs_widened(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16, by = kernel_random() % 0x8001;
    const float more = dti_f32_from_bits(bits + by), less = dti_f32_from_bits(bits - by);
    const float near = kernel_random() % 2 && x & 0x7FFF ? less : more;
    return dti_bf16_from_f32(near) == x ? near : dti_f32_from_bits(bits);
}

static float *pairs_wide(const uint16_t *x, int64_t n) {
    float *y = malloc((size_t)n * sizeof *y);
    for (int64_t i = 0; y && i < n; i++)
        y[i] = pairs_widened(x[i]);
    return y;
}

static dt_dtype pairs_dtype(void) {
    static const dt_dtype dtypes[] = {DT_F32, DT_BF16, DT_F16};
    return dtypes[kernel_random() % 3];
}

static void pairs_shape(dti_gemm *g) {
    static const int ks[] = {0,   1,   2,   3,    31,   64,   255,  256,  257,
                             511, 512, 513, 1023, 1025, 4096, 4097, 4700, 9001};
    const uint32_t size = kernel_random() % 8;
    g->k = kernel_random() % 3 ? ks[kernel_random() % DTI_COUNT(ks)] : (int)(kernel_random() % 700);
    g->m = 1 + kernel_random() % (g->k > 700 || size ? 20 : 300);
    g->n = 1 + kernel_random() % (g->k > 700 || size > 1 ? 90 : 1200);
}

static pairs_case pairs_make(void) {
    pairs_case t = {.g = {.bias_stride = 1, .c_col = 1}};
    dti_gemm *g = &t.g;
    pairs_shape(g);
    const uint32_t trans = kernel_random() % 4, kind = kernel_random() % 5,
                   odd = kernel_random() & 1;
    const int64_t lda = (trans & 1 ? g->m : g->k) + 1 + odd * (kernel_random() % 3);
    const int64_t ldb = (trans & 2 ? g->k : g->n) + 1 + odd * (kernel_random() % 3);
    g->a_row = trans & 1 ? 1 : lda, g->a_col = trans & 1 ? lda : 1;
    g->b_row = trans & 2 ? 1 : ldb, g->b_col = trans & 2 ? ldb : 1;
    g->c_row = g->n + kernel_random() % 3;
    const bool tiny = kind == 2 && kernel_random() % 2; /* B, else A */
    t.a = pairs_values((trans & 1 ? g->k : g->m) * lda + 2, tiny ? 5 : kind);
    const int64_t all = (trans & 2 ? g->n : g->k) * ldb + 2;
    t.b = pairs_values(all, kind == 2 && !tiny ? 0 : kind);
    t.wide = pairs_wide(t.b, all);
    t.c_size = g->m * g->c_row + 16;
    t.c = malloc((size_t)t.c_size * sizeof(float));
    t.others = (float *)(void *)pairs_values(2 * (t.c_size + g->n), 0);
    const uint32_t extras = kernel_random() % 3 ? kernel_random() : 0;
    g->epilogue = extras % 4;
    t.h = (dti_gemm_half){.a = t.a + (kernel_random() & 1),
                          .b = t.b,
                          .bias = extras & 16 ? t.others : NULL,
                          .operand = g->epilogue >= DTI_GEMM_RELU_GRAD ? t.others + g->n : NULL,
                          .c = t.c,
                          .a_type = DT_BF16,
                          .b_type = DT_BF16,
                          .c_type = pairs_dtype(),
                          .bias_type = pairs_dtype(),
                          .operand_type = pairs_dtype()};
    if (kernel_random() % 2) {
        t.h.b = t.wide, t.h.b_type = DT_F32;
        t.h.rounds = true;
    }
    return t;
}

static void pairs_free(pairs_case *t) {
    free(t->a);
    free(t->b);
    free(t->wide);
    free(t->c);
    free(t->others);
}

static void pairs_run(pairs_case *t, const dti_isa_kernels *k, int threads) {
    t->g.half = &t->h;
    const size_t bytes = (dti_gemm_half_scratch_bytes(&t->g) + 63) / 64 * 64;
    char *scratch = aligned_alloc(64, bytes + 64);
    memset(scratch, 0xff, bytes + 64);
    memset(t->c, 0x55, (size_t)t->c_size * sizeof(float));
    for (int64_t tile = dti_gemm_tiles(&t->g, threads) - 1; tile >= 0; tile--)
        dti_gemm_run(k, &t->g, threads, tile, tile + 1, scratch);
    uint64_t beyond;
    memcpy(&beyond, scratch + bytes, sizeof beyond);
    CHECK(beyond == UINT64_MAX);
    free(scratch);
}

/* Element i of C; a NaN is one NaN, whose sign and payload are not promised. */
static float pairs_get(const pairs_case *t, int64_t i) {
    float x;
    if (t->h.c_type == DT_F32)
        memcpy(&x, t->c + 4 * i, sizeof x);
    else {
        uint16_t bits;
        memcpy(&bits, t->c + 2 * i, sizeof bits);
        x = t->h.c_type == DT_BF16 ? dti_f32_from_bf16(bits) : dti_f32_from_f16(bits);
    }
    return x != x ? NAN : x;
}

/* Elements [begin, end) of a chain. */
static float pairs_chain(const pairs_case *t, int64_t i, int64_t j, int64_t begin, int64_t end) {
    const uint16_t *a = (const uint16_t *)t->h.a + i * t->g.a_row, *b = t->b + j * t->g.b_col;
    volatile float sum = 0;
    for (int64_t p = begin; p < end; p += 2)
        for (int64_t q = p + 1; q >= p; q--) {
            const float x = q < end ? dti_f32_from_bf16(a[q * t->g.a_col]) : 0;
            const float y = q < end ? dti_f32_from_bf16(b[q * t->g.b_row]) : 0;
            sum = fmaf(x, y, sum);
        }
    return sum;
}

typedef float pairs_chunk_fn(const pairs_case *t, int64_t i, int64_t j, int64_t begin, int64_t end);

/* The sum of element (i, j) by gemm.h's words, in the modes of its class. */
static float pairs_sum(const pairs_case *t, int64_t i, int64_t j, pairs_chunk_fn *chunk_of) {
    const int64_t k = t->g.k, last = DTI_MAX(k - 1, 0) / DTI_GEMM_PAIR_CHUNK * DTI_GEMM_PAIR_CHUNK;
    const dti_fp_modes modes = dti_fp_flush();
    volatile float sum = 0;
    double spans = 0;
    for (int64_t at = 0; at == 0 || at < k; at += DTI_GEMM_PAIR_CHUNK) {
        const bool begins = k > DTI_GEMM_SPAN && (at == last || at % DTI_GEMM_SPAN == 0);
        if (begins) {
            spans = at <= DTI_GEMM_SPAN ? (double)sum : spans + (double)sum; /* -0 stays */
            sum = at == last ? (float)spans : 0;
        }
        const float chunk = chunk_of(t, i, j, at, DTI_MIN(k, at + DTI_GEMM_PAIR_CHUNK));
        sum = at && !(begins && at != last) ? sum + chunk : chunk;
    }
    dti_fp_leave(modes);
    return sum;
}

static bool pairs_equal(float x, float y) {
    return !memcmp(&x, &y, sizeof x) || (x != x && y != y);
}

static void pairs_check_sums(const pairs_case *t, const char *set, pairs_chunk_fn *chunk_of) {
    int64_t bad = 0;
    for (int64_t i = 0; i < t->g.m; i += 3)
        for (int64_t j = (int64_t)kernel_random() % 7; j < t->g.n; j += 7)
            bad += !pairs_equal(pairs_get(t, i * t->g.c_row + j), pairs_sum(t, i, j, chunk_of));
    test_check(bad == 0, __FILE__, __LINE__, "%s, %d x %d x %d: %d sums are not its class's", set,
               (int)t->g.m, (int)t->g.n, (int)t->g.k, (int)bad);
}

TEST(products_of_bf16_have_the_bits_of_one_chain_on_every_instruction_set) {
    const dti_isa_kernels *best = dti_isa_kernels_select(DTI_ISA_BEST);
    for (int round = 0; round < 60 && best->fma; round++) {
        pairs_case t = pairs_make();
        float *want = malloc((size_t)t.c_size * sizeof *want);
        for (int isa = best->isa; isa >= 0; isa--) {
            const dti_isa_kernels *k = dti_isa_kernels_select(isa);
            if (!k->fma)
                continue;
            pairs_run(&t, k, 1 + (round + isa) % 4);
            if (t.h.c_type == DT_F32 && !t.h.bias && !t.g.epilogue)
                pairs_check_sums(&t, k->name, pairs_chain);
            int64_t bad = 0;
            for (int64_t i = 0; i < t.c_size; i++) {
                want[i] = k == best ? pairs_get(&t, i) : want[i];
                bad += !pairs_equal(want[i], pairs_get(&t, i));
            }
            test_check(bad == 0, __FILE__, __LINE__, "%s, %d x %d x %d, types %d %d: %d differ",
                       k->name, (int)t.g.m, (int)t.g.n, (int)t.g.k, t.h.c_type, t.g.epilogue,
                       (int)bad);
        }
        free(want);
        pairs_free(&t);
    }
}

/* ---- class "amx": tiles made by plain C, after the walk that AMX has */

#if DTI_X86_AVX512_BF16
static float amx_tiles[8][16][16];
static int amx_rows[8];

static void amx_shapes(const uint8_t *shapes) {
    for (int t = 0; t < 8; t++) {
        CHECK(t == 7 || (shapes[16 + 2 * t] == 64 && shapes[48 + t] <= 16));
        amx_rows[t] = shapes[48 + t];
    }
}

static void amx_load(int t, const float *from, int64_t row) {
    for (int i = 0; i < amx_rows[t]; i++)
        memcpy(amx_tiles[t][i], from + i * row, sizeof amx_tiles[t][i]);
}

static void amx_put(int t, float *to, int64_t row) {
    for (int i = 0; i < amx_rows[t]; i++)
        memcpy(to + i * row, amx_tiles[t][i], sizeof amx_tiles[t][i]);
}

/* Of words x and y: the product of the elements of that place. */
static float amx_fma(float x, float y, bool odd, float sum) {
    const uint32_t a = dti_bits_from_f32(x), b = dti_bits_from_f32(y);
    return fmaf(dti_f32_from_bits(odd ? a & 0xFFFF0000 : a << 16),
                dti_f32_from_bits(odd ? b & 0xFFFF0000 : b << 16), sum);
}

static void amx_product(int c, int a, int b) {
    for (int i = 0; i < amx_rows[c]; i++)
        for (int j = 0; j < 16; j++) {
            volatile float even = 0, odd = 0;
            for (int p = 0; p < 16; p++) {
                even = amx_fma(amx_tiles[a][i][p], amx_tiles[b][p][j], false, even);
                odd = amx_fma(amx_tiles[a][i][p], amx_tiles[b][p][j], true, odd);
            }
            amx_tiles[c][i][j] += even + odd;
        }
}

#define DTI_AMX(name) amx_test_##name
#define DTI_TILE_WROTE(at) ((void)(at))
#define DTI_TILE_SHAPES(shapes) amx_shapes(shapes)
#define DTI_TILE_ZERO(t) memset(amx_tiles[t], 0, sizeof amx_tiles[t])
#define DTI_TILE_LOAD(t, from, row) amx_load(t, from, row)
#define DTI_TILE_STORE(t, to, row) amx_put(t, to, row)
#define DTI_TILE_PRODUCT(c, a, b) amx_product(c, a, b)
#define DTI_TILE_END() memset(amx_rows, 0, sizeof amx_rows)
#define DTI_ISA(name) DTI_CAT(name, _avx512)
#define DTI_LANES 16
DTI_TARGET("avx512f,avx512bw,avx512dq,avx512vl,fma,avx512bf16")
#include "src/kernel/gemm_amx_body.h"
DTI_TARGET_END
#undef DTI_ISA
#undef DTI_LANES

/* Of a chunk, by gemm.h's words. */
static float amx_chunk(const pairs_case *t, int64_t i, int64_t j, int64_t begin, int64_t end) {
    const uint16_t *a = (const uint16_t *)t->h.a + i * t->g.a_row, *b = t->b + j * t->g.b_col;
    volatile float sum = 0;
    for (int64_t p = begin; p < end; p += 32) {
        volatile float two[2] = {0, 0};
        for (int64_t q = p; q < DTI_MIN(end, p + 32); q++)
            two[q & 1] = fmaf(dti_f32_from_bf16(a[q * t->g.a_col]),
                              dti_f32_from_bf16(b[q * t->g.b_row]), two[q & 1]);
        sum = sum + (two[0] + two[1]);
    }
    return sum;
}

TEST(products_of_bf16_by_amx_have_the_sums_of_their_class) {
    dti_isa_kernels amx = *dti_isa_kernels_select(DTI_ISA_BEST);
    int other = 0;
    if (!amx.gemm_pairs)
        SKIP("no AVX512-BF16");
    amx.gemm_pairs = amx_test_block;
    for (int round = 0; round < 60; round++) {
        if (round == 30 && dti_isa_select(DTI_ISA_AMX) == DTI_ISA_AMX)
            amx = *dti_isa_kernels_select(DTI_ISA_AMX); /* the instructions themselves */
        pairs_case t = pairs_make();
        pairs_run(&t, &amx, 1 + round % 4);
        if (t.h.c_type == DT_F32 && !t.h.bias && !t.g.epilogue) {
            pairs_check_sums(&t, "amx", amx_chunk);
            other += !pairs_equal(pairs_get(&t, 0), pairs_sum(&t, 0, 0, pairs_chain));
        }
        pairs_free(&t);
    }
    CHECK(other > 0); /* it is another class */
}
#endif

static void amx_log(void *user, dt_log_level level, const char *message) {
    *(int *)user += level == DT_LOG_WARNING && strstr(message, "dt_ctx_desc.amx") != NULL;
}

TEST(a_context_that_asks_for_amx_has_it_or_a_warning) {
    int warnings = 0;
    dt_ctx *ctx = NULL;
    dt_graph *graph = NULL;
    dt_store *store = NULL;
    const dt_ctx_desc desc = {.no_vulkan = true, .amx = true, .logger = {amx_log, &warnings}};
    REQUIRE(!dt_ctx_create(&desc, &ctx) && !dt_graph_create(ctx, &graph));
    dt_nn_linear(dt_input(graph, "x", DT_F32, dt_dims(3)), "layer", 2);
    REQUIRE(!dt_store_create(graph, &(dt_store_desc){.device = "cpu"}, &store));
    const bool has = dti_isa_select(DTI_ISA_AMX) == DTI_ISA_AMX;
    CHECK(warnings == !has);
    CHECK((store->device->isa_class == DTI_CLASS_AMX) == has);
    dt_ctx_destroy(ctx);
}

/* ---- an infinity is met only by its own windows */

enum { LONE_CHANNELS = 8, LONE_MOST = 40 };

/* Bits by weight: whether it is finite. */
static uint32_t lone_finite(const dti_isa_kernels *k, dti_conv_dw c, const float *xf,
                            const float *yf) {
    uint16_t x[LONE_MOST], y[LONE_CHANNELS * LONE_MOST];
    float w[LONE_CHANNELS * 3];
    uint32_t finite = 0;
    for (int64_t i = 0; i < c.x_size[1]; i++)
        x[i] = dti_bf16_from_f32(xf[i]);
    for (int64_t i = 0; i < c.co * c.y_plane; i++)
        y[i] = dti_bf16_from_f32(yf[i]);
    c.x = c.type == DT_F32 ? (const void *)xf : x;
    c.y = c.type == DT_F32 ? (const void *)yf : y;
    c.w = w;
    float *scratch = aligned_alloc(64, (dti_conv_dw_scratch_bytes(&c) + 127) / 64 * 64);
    dti_conv_dw_run(k, &c, 0, dti_conv_dw_items(&c), scratch);
    free(scratch);
    for (int64_t t = 0; t < c.taps[1]; t++)
        finite |= (uint32_t)isfinite(w[t]) << t;
    return finite;
}

TEST(an_infinity_of_a_convolution_in_16_bits_reaches_the_weights_that_f32s_reaches) {
    float x[LONE_MOST], y[LONE_CHANNELS * LONE_MOST];
    for (int i = 0; i < LONE_CHANNELS * LONE_MOST; i++)
        y[i] = 1;
    for (int draw = 0; draw < 2000; draw++) {
        const int taps = 1 + draw % 3, stride = 1 + draw / 3 % 2, dil = 1 + draw / 6 % 2;
        const int cols = 1 + draw / 12 % 9, most = (taps - 1) * dil, pad = draw / 108 % (most + 1);
        const int width = (cols - 1) * stride + most + 1 - pad + draw % stride;
        dti_conv_dw c = {.n = 1, .groups = 1, .ci = 1, .co = LONE_CHANNELS, .splits = 1};
        c.x_size[0] = c.y_size[0] = c.taps[0] = c.stride[0] = c.dil[0] = 1;
        c.x_size[1] = width, c.y_size[1] = c.y_plane = cols;
        c.taps[1] = taps, c.stride[1] = stride, c.dil[1] = dil, c.pad[1] = pad;
        for (int i = 0; i < width; i++)
            x[i] = i == draw * 7 % width ? INFINITY : 1;
        const int best = (int)dti_isa_kernels_select(DTI_ISA_BEST)->isa;
        const uint32_t want = lone_finite(dti_isa_kernels_select(best), c, x, y);
        c.type = DT_BF16;
        for (int isa = 0; isa <= best; isa++)
            test_check(lone_finite(dti_isa_kernels_select(isa), c, x, y) == want, __FILE__,
                       __LINE__, "%d taps %d apart, stride %d, pad %d, %d columns, set %d", taps,
                       dil, stride, pad, cols, isa);
    }
}
