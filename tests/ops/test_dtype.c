/* Types of elements: conversions in every instruction set. And what graphs, programs and the CPU do
 * with values that are stored in 16 bits. */
#include "harness.h"

/* ---- conversions */

typedef struct dtype_half {
    dt_dtype dtype;
    float (*widen)(uint16_t bits);
    uint16_t (*narrow)(float value);
    uint16_t infinity;
} dtype_half;

static const dtype_half dtype_halves[] = {{DT_BF16, dti_f32_from_bf16, dti_bf16_from_f32, 0x7F80},
                                          {DT_F16, dti_f32_from_f16, f16_from_f32, 0x7C00}};

/* What every set gives for n floats; n small, so that the ends of arrays are in it. */
static void dtype_narrow(const dtype_half *h, const float *x, int n, uint16_t *out) {
    static const int sets[] = {DTI_ISA_PORTABLE, DTI_ISA_AVX2, DTI_ISA_AVX512};
    uint16_t other[64];
    for (size_t i = 0; i < DTI_COUNT(sets); i++) {
        const dti_isa_kernels *k = dti_isa_kernels_select(sets[i]);
        k->narrow[h->dtype](i ? other : out, x, n);
        CHECK(i == 0 || !memcmp(other, out, (size_t)n * sizeof *out));
    }
}

TEST(every_pattern_of_16_bits_is_widened_alike_in_every_instruction_set) {
    static const int sets[] = {DTI_ISA_PORTABLE, DTI_ISA_AVX2, DTI_ISA_AVX512};
    uint16_t *all = malloc(65536 * sizeof *all);
    float *wide = malloc(65536 * sizeof *wide);
    for (uint32_t i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (size_t t = 0; t < 2 * DTI_COUNT(sets); t++) {
        const dtype_half *h = &dtype_halves[t % 2];
        const dti_isa_kernels *k = dti_isa_kernels_select(sets[t / 2]);
        k->widen[h->dtype](wide, all, 65536);
        int wrong = 0;
        for (uint32_t i = 0; i < 65536; i++)
            wrong += dti_bits_from_f32(wide[i]) != dti_bits_from_f32(h->widen((uint16_t)i));
        CHECK(wrong == 0);
        k->narrow[h->dtype](all, wide, 65536); /* and back: every one but a NaN is itself */
        for (uint32_t i = 0; i < 65536; i++) {
            const bool nan = (i & 0x7FFF) > h->infinity;
            wrong += nan ? (all[i] & 0x7FFF) <= h->infinity : all[i] != i;
            all[i] = (uint16_t)i;
        }
        CHECK(wrong == 0);
    }
    free(all);
    free(wide);
}

/* Between two neighbours the middle goes to the even one, a float beside it to the near one. */
TEST(floats_between_neighbours_of_16_bits_round_to_the_nearest_and_ties_to_even) {
    for (size_t t = 0; t < DTI_COUNT(dtype_halves); t++) {
        const dtype_half *h = &dtype_halves[t];
        int wrong = 0;
        for (uint32_t i = 0; i + 1 < h->infinity; i++) {
            const float low = h->widen((uint16_t)i), high = h->widen((uint16_t)(i + 1));
            const float middle = low + (high - low) / 2;
            const uint32_t bits = dti_bits_from_f32(middle);
            float x[6] = {middle, dti_f32_from_bits(bits - 1), dti_f32_from_bits(bits + 1)};
            const uint16_t even = (uint16_t)(i & 1 ? i + 1 : i),
                           near[2] = {(uint16_t)i, (uint16_t)(i + 1)};
            for (int k = 0; k < 3; k++)
                x[3 + k] = -x[k];
            uint16_t got[6];
            dtype_narrow(h, x, 6, got);
            for (int k = 0; k < 6; k++) {
                const uint16_t sign = k < 3 ? 0 : 0x8000;
                const uint16_t want = (uint16_t)((k % 3 ? near[k % 3 - 1] : even) | sign);
                wrong += got[k] != want || h->narrow(x[k]) != want;
            }
        }
        CHECK(wrong == 0);
    }
}

/* ---- programs */

typedef struct dtype_run {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
} dtype_run;

static dtype_run dtype_open(int threads) {
    dtype_run r = {0};
    if (dt_ctx_create(&(dt_ctx_desc){.threads = threads}, &r.ctx) == DT_OK)
        dt_graph_create(r.ctx, &r.graph);
    return r;
}

static bool dtype_compile(dtype_run *r, const dt_program_desc *desc) {
    const char *error = dt_graph_error(r->graph);
    test_check(!error, __FILE__, __LINE__, "%s", error ? error : "");
    return dt_store_create(r->graph, &(dt_store_desc){.device = "cpu"}, &r->store) == DT_OK &&
           dt_program_create(r->store, desc, &r->program) == DT_OK;
}

static void dtype_close(dtype_run *r) {
    if (r->program)
        dt_program_destroy(r->program);
    if (r->store)
        dt_store_destroy(r->store);
    dt_graph_destroy(r->graph);
    dt_ctx_destroy(r->ctx);
}

/* The elements of an input, drawn between -1 and 1. */
static void dtype_write(dtype_run *r, dt_tensor x, int64_t n) {
    float *values = malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = (float)(2 * dti_uniform01(11, (uint64_t)i, x.id) - 1);
    CHECK(dt_program_write(r->program, x, values, (size_t)n * sizeof *values) == DT_OK);
    free(values);
}

/* A row of reals, and what the same row makes of widened inputs, rounded. */
static dt_tensor dtype_rounded(dt_tensor y) {
    const dti_node n = *dti_node_of(y);
    dt_tensor in[3];
    for (uint32_t i = 0; i < n.count; i++)
        in[i] = dt_cast(dti_input_of(y.graph, &n, i), DT_F32);
    return dt_cast(dti_append(y.graph, (dti_op)n.op, in, n.count, &n.attr), n.dtype);
}

/* Whether each of n numbers is the other or its neighbour, beside 0 within 2^-6. */
static bool dtype_is_near(dt_dtype dtype, const uint16_t *x, const uint16_t *y, int n) {
    int wrong = 0;
    for (int i = 0; i < n && dtype == DT_BF16; i++)
        wrong += abs(x[i] - y[i]) > 1 &&
                 fabsf(dti_f32_from_bf16(x[i]) - dti_f32_from_bf16(y[i])) > 0x1p-6f;
    return dtype == DT_BF16 ? wrong == 0 : !memcmp(x, y, (size_t)n * sizeof *x);
}

/* Tiles that are full and tiles that are not. bf16 has its own order of sums: see gemm.h. */
static void dtype_check_product(dt_dtype dtype, int variant, int64_t K) {
    enum { M = 197, N = 300 };
    dtype_run r = dtype_open(3);
    const bool ta = variant & 1, tb = variant & 2;
    dt_tensor a = dt_input_shared(r.graph, "a", DT_F32, ta ? dt_dims(K, M) : dt_dims(M, K));
    dt_tensor b = dt_input_shared(r.graph, "b", DT_F32, tb ? dt_dims(N, K) : dt_dims(K, N));
    dt_tensor bias = dt_input_shared(r.graph, "bias", DT_F32, dt_dims(N));
    dt_tensor a16 = dt_cast(a, dtype), b16 = dt_cast(b, dtype);
    dt_tensor y = dt_matmul_transposed(a16, b16, ta, tb);
    if (variant == 2)
        y = dt_linear(a16, b16, dt_cast(bias, dtype));
    dt_tensor z = dtype_rounded(y), relu = dt_relu(dt_copy(y));
    if (variant == 2) /* in the product's epilogue, its gradient in another's */
        relu = dt_relu(dt_linear(a16, b16, dt_cast(bias, dtype)));
    dt_program_desc desc = {.outputs = {y, z, relu, dt_copy(bias)}, .batch = 1};
    static uint16_t got[3][M * N];
    REQUIRE(dtype_compile(&r, &desc));
    dtype_write(&r, a, M * K);
    dtype_write(&r, b, N * K);
    dtype_write(&r, bias, N);
    CHECK(dt_program_run(r.program, NULL, NULL) == DT_OK);
    CHECK(dt_program_read(r.program, y, got[0], sizeof got[0]) == DT_OK);
    CHECK(dt_program_read(r.program, z, got[1], sizeof got[1]) == DT_OK);
    CHECK(dt_program_read(r.program, relu, got[2], sizeof got[2]) == DT_OK);
    CHECK(dtype_is_near(dtype, got[0], got[1], M * N));
    int wrong = 0, zeros = 0;
    for (int i = 0; i < M * N; i++) {
        wrong += got[2][i] != (got[0][i] & 0x8000 ? 0 : got[0][i]);
        zeros += got[2][i] == 0;
    }
    CHECK(wrong == 0 && zeros > M && zeros < M * (N - 1));
    dtype_close(&r);
}

TEST(a_product_of_16_bits_is_the_f32_product_of_the_same_values_rounded_once) {
    for (int variant = 0; variant < 4; variant++)
        dtype_check_product(variant % 2 ? DT_F16 : DT_BF16, variant, 601); /* chunks and a bit */
    dtype_check_product(DT_F16, 2, 601);
    dtype_check_product(DT_BF16, 2, 4353); /* spans and a bit */
    if (test_takes(1, 1, 2))               /* its memory is the one's before */
        dtype_check_product(DT_BF16, 0, 8448);
}

TEST(inputs_and_outputs_of_16_bits_have_the_hosts_type_and_copies_keep_every_bit) {
    for (dt_dtype dtype = DT_BF16; dtype <= DT_F16; dtype++) {
        static uint16_t all[65536], back[65536];
        dtype_run r = dtype_open(1);
        dt_tensor x = dt_input_shared(r.graph, "x", dtype, dt_dims(256, 256));
        dt_tensor y = dt_copy(x), turned = dt_copy(dt_permute(x, dt_dims(1, 0)));
        CHECK(dt_tensor_dtype(turned) == dtype);
        REQUIRE(dtype_compile(&r, &(dt_program_desc){.outputs = {y, turned}}));
        for (uint32_t i = 0; i < 65536; i++)
            all[i] = (uint16_t)i;
        CHECK(dt_program_write(r.program, x, all, 2 * sizeof all) == DT_ERROR_INVALID);
        CHECK(dt_program_write(r.program, x, all, sizeof all) == DT_OK);
        CHECK(dt_program_run(r.program, NULL, NULL) == DT_OK);
        CHECK(dt_program_read(r.program, y, back, sizeof back) == DT_OK);
        CHECK(!memcmp(all, back, sizeof all));
        CHECK(dt_program_read(r.program, turned, back, sizeof back) == DT_OK);
        int wrong = 0;
        for (uint32_t i = 0; i < 65536; i++)
            wrong += back[i] != (i % 256 * 256 + i / 256);
        CHECK(wrong == 0);
        dtype_close(&r);
    }
}

/* ---- a model whose hidden values are in 16 bits */

enum { DTYPE_IN = 20, DTYPE_HIDDEN = 64, DTYPE_CLASSES = 4, DTYPE_BATCH = 64 };

static dt_tensor dtype_layer(dt_tensor x, const char *name, int64_t out, dt_dtype dtype) {
    char w[16], b[16];
    snprintf(w, sizeof w, "%s.w", name);
    snprintf(b, sizeof b, "%s.b", name);
    const int64_t in = dt_tensor_shape(x).dim[0];
    dt_tensor weight =
        dt_param(x.graph, w, dt_dims(out, in), (dt_init){.kind = DT_INIT_KAIMING_UNIFORM});
    dt_tensor bias = dt_param(x.graph, b, dt_dims(out), (dt_init){0});
    return dt_linear(dt_cast(x, dtype), dt_cast(weight, dtype), dt_cast(bias, dtype));
}

/* Four clusters that overlap little. */
static void dtype_batch(float *x, int32_t *label, uint64_t step) {
    for (int i = 0; i < DTYPE_BATCH; i++) {
        label[i] = i % DTYPE_CLASSES;
        for (int k = 0; k < DTYPE_IN; k++)
            x[i * DTYPE_IN + k] = (float)(dti_normal(step, (uint64_t)(i * DTYPE_IN + k), 3) +
                                          (k % DTYPE_CLASSES == label[i] ? 1.5 : 0.0));
    }
}

/* The loss after 60 steps, and whether weights moved by gradients that are close to f32's. */
static double dtype_train(dt_dtype dtype, double *norm) {
    dtype_run r = dtype_open(2);
    dt_tensor x = dt_input(r.graph, "x", DT_F32, dt_dims(DTYPE_IN));
    dt_tensor t = dt_input(r.graph, "t", DT_I32, dt_dims());
    dt_tensor h = dt_relu(dtype_layer(x, "fc1", DTYPE_HIDDEN, dtype));
    h = dt_gelu(dtype_layer(h, "fc2", DTYPE_HIDDEN, dtype));
    CHECK(dt_tensor_dtype(h) == dtype);
    dt_tensor logits = dt_cast(dtype_layer(h, "fc3", DTYPE_CLASSES, dtype), DT_F32);
    dt_optim_desc optim = {.kind = DT_OPTIM_ADAM, .lr = 1e-2};
    dt_program_desc desc = {
        .loss = dt_cross_entropy(logits, t, NULL), .optim = &optim, .batch = DTYPE_BATCH};
    float values[DTYPE_BATCH * DTYPE_IN];
    int32_t labels[DTYPE_BATCH];
    dt_report report = {0};
    const bool open = dtype_compile(&r, &desc);
    CHECK(open);
    for (uint64_t step = 0; open && step < 60; step++) {
        dtype_batch(values, labels, step);
        CHECK(dt_program_write(r.program, x, values, sizeof values) == DT_OK);
        CHECK(dt_program_write(r.program, t, labels, sizeof labels) == DT_OK);
        CHECK(dt_program_run(r.program, NULL, &report) == DT_OK);
        if (step == 0)
            *norm = report.gradient_norm;
    }
    dtype_close(&r);
    return report.loss;
}

TEST(a_model_whose_hidden_values_are_in_16_bits_trains_like_one_in_f32) {
    double norm[3], loss = dtype_train(DT_F32, &norm[0]);
    test_check(loss < 0.3, __FILE__, __LINE__, "%g", loss); /* of log 4 = 1.39 */
    CHECK_NEAR(dtype_train(DT_BF16, &norm[1]), loss, 0.05);
    CHECK_NEAR(dtype_train(DT_F16, &norm[2]), loss, 0.02);
    CHECK_NEAR(norm[1], norm[0], 0.03 * norm[0]);
    CHECK_NEAR(norm[2], norm[0], 0.005 * norm[0]);
    CHECK(norm[1] != norm[0] && norm[2] != norm[0]);
}

static uint64_t dtype_transients(dt_dtype dtype) {
    dtype_run r = dtype_open(1);
    dt_tensor x = dt_input(r.graph, "x", DT_F32, dt_dims(1024)), h = dt_cast(x, dtype);
    dt_tensor p = dt_param(r.graph, "p", dt_dims(), (dt_init){.a = 1});
    for (int i = 0; i < 16; i++) /* each is kept for its gradient */
        h = dt_tanh(dt_mul(h, dt_cast(p, dtype)));
    dt_tensor out = dt_cast(dt_slice(h, 0, 0, 1), DT_F32);
    dt_program_desc desc = {.loss = dt_mean_loss(out),
                            .optim = &(dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 0.1},
                            .batch = 64};
    dt_program_info info = {0};
    if (dtype_compile(&r, &desc))
        dt_program_get_info(r.program, &info);
    dtype_close(&r);
    return info.transient_bytes;
}

TEST(values_in_16_bits_take_half_the_memory) {
    const uint64_t wide = dtype_transients(DT_F32), bf16 = dtype_transients(DT_BF16);
    CHECK(wide > 16 * 64 * 1024 * 4 && bf16 > 0);
    CHECK(dtype_transients(DT_F16) == bf16);
    test_check(bf16 * 100 <= wide * 58, __FILE__, __LINE__, "%llu of %llu bytes",
               (unsigned long long)bf16, (unsigned long long)wide);
}

TEST(a_product_rounds_the_weights_that_it_reads_to_16_bits_without_a_copy) {
    enum { N = 50, K = 41, BATCH = 3 };
    dtype_run r = dtype_open(BATCH);
    const dt_tensor x = dt_input(r.graph, "x", DT_BF16, dt_dims(K));
    const dt_tensor given = dt_input_shared(r.graph, "w16", DT_BF16, dt_dims(N, K));
    const dt_tensor w = dt_param(r.graph, "w", dt_dims(N, K), (dt_init){DT_INIT_UNIFORM, -1, 1});
    const dt_tensor y = dt_linear(x, dt_cast(w, DT_BF16), (dt_tensor){0});
    const dt_tensor z = dt_linear(x, given, (dt_tensor){0});
    const dt_program_desc desc = {.outputs = {y, z}, .batch = BATCH};
    static float wide[N * K];
    static uint16_t half[N * K], from[BATCH * K], got[2][BATCH * N];
    dt_program_info info;
    REQUIRE(dtype_compile(&r, &desc));
    dt_program_get_info(r.program, &info);
    test_check(info.transient_bytes < N * K * 2, __FILE__, __LINE__, "%llu transient bytes",
               (unsigned long long)info.transient_bytes);
    CHECK(dt_store_read(r.store, 0, DT_VALUE_PARAM, wide, sizeof wide) == DT_OK);
    for (int i = 0; i < N * K; i++)
        half[i] = dti_bf16_from_f32(wide[i]);
    for (int i = 0; i < BATCH * K; i++)
        from[i] = dti_bf16_from_f32((float)(i * 37 % 101 - 50) * 0.01f);
    CHECK(dt_program_write(r.program, x, from, sizeof from) == DT_OK);
    CHECK(dt_program_write(r.program, given, half, sizeof half) == DT_OK);
    CHECK(dt_program_run(r.program, NULL, NULL) == DT_OK);
    CHECK(dt_program_read(r.program, y, got[0], sizeof got[0]) == DT_OK);
    CHECK(dt_program_read(r.program, z, got[1], sizeof got[1]) == DT_OK);
    CHECK(!memcmp(got[0], got[1], sizeof got[0]));
    dtype_close(&r);
}

/* ---- ops without a kernel for 16 bits */

TEST(an_op_without_a_kernel_for_16_bits_computes_on_f32_and_rounds_once) {
    enum { N = 10 };
    dtype_run r = dtype_open(1);
    dt_tensor x = dt_input_shared(r.graph, "x", DT_BF16, dt_dims(N));
    const dt_tensor wide = dt_cast(x, DT_F32);
    dt_tensor y = dti_append(r.graph, DTI_OP_MSE_GRAD, (dt_tensor[]){x, x, x}, 3, NULL);
    dt_tensor z = dti_append(r.graph, DTI_OP_MSE_GRAD, (dt_tensor[]){wide, wide, wide}, 3, NULL);
    z = dt_cast(z, DT_BF16);
    const dt_program_desc desc = {.outputs = {y, z}};
    uint16_t from[N], got[2][N];
    REQUIRE(dtype_compile(&r, &desc));
    for (int i = 0; i < N; i++)
        from[i] = (uint16_t)(0x3f80 + i * 7919 % 64);
    CHECK(dt_program_write(r.program, x, from, sizeof from) == DT_OK);
    CHECK(dt_program_run(r.program, NULL, NULL) == DT_OK);
    CHECK(dt_program_read(r.program, y, got[0], sizeof got[0]) == DT_OK);
    CHECK(dt_program_read(r.program, z, got[1], sizeof got[1]) == DT_OK);
    CHECK(!memcmp(got[0], got[1], sizeof got[0]));
    dtype_close(&r);
}

TEST(types_that_cannot_be_combined_are_an_error_of_the_op) {
    dtype_run r = dtype_open(1);
    dt_tensor x = dt_input(r.graph, "x", DT_BF16, dt_dims(4));
    dt_tensor y = dt_input(r.graph, "y", DT_F32, dt_dims(4));
    CHECK(dt_add(x, y).id == 0);
    CHECK_CONTAINS(dt_graph_error(r.graph),
                   "add(x [B, 4], y [B, 4]): input 1 is bf16 and input 2 is f32: dt_cast one of "
                   "them");
    dt_graph_clear_error(r.graph);
    CHECK(dt_cast(y, DT_U8).id == 0);
    CHECK_CONTAINS(dt_graph_error(r.graph), "it must be f32, bf16, f16 or i32");
    dt_graph_clear_error(r.graph);
    CHECK(dt_input(r.graph, "z", DT_F64, dt_dims(4)).id == 0);
    CHECK_CONTAINS(dt_graph_error(r.graph), "it must be f32, bf16, f16 or i32");
    dtype_close(&r);
}

TEST(an_input_of_16_bits_that_is_not_finite_is_named_and_so_is_a_cast_that_overflows) {
    const uint16_t nan[2][2] = {{0x3F80, 0x7FC0}, {0x3C00, 0x7E00}};
    const float large[2] = {1, 70000};
    for (int i = 0; i < 2; i++) {
        dtype_run r = dtype_open(1);
        dt_tensor x = dt_input(r.graph, "x", DT_BF16 + (dt_dtype)i, dt_dims());
        dt_tensor y = dt_input(r.graph, "y", DT_F32, dt_dims());
        dt_tensor p = dt_param(r.graph, "p", dt_dims(), (dt_init){.a = 1});
        dt_tensor sum = dt_add(dt_cast(x, DT_F32), dt_cast(dt_cast(y, DT_F16), DT_F32));
        dt_program_desc desc = {.loss = dt_mean_loss(dt_mul(sum, p)),
                                .optim = &(dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 0.1},
                                .batch = 2};
        dt_report report;
        REQUIRE(dtype_compile(&r, &desc));
        CHECK(dt_program_write(r.program, x, nan[i], sizeof nan[i]) == DT_OK);
        CHECK(dt_program_write(r.program, y, large, sizeof large) == DT_OK);
        CHECK(dt_program_run(r.program, NULL, &report) == DT_ERROR_NUMERIC);
        CHECK_CONTAINS(dt_ctx_error(r.ctx), "'x'");
        CHECK(dt_program_write(r.program, x, (uint16_t[2]){0}, sizeof nan[i]) == DT_OK);
        CHECK(dt_program_run(r.program, NULL, &report) == DT_ERROR_NUMERIC);
        CHECK(report.fault_op && strstr(report.fault_op, "cast"));
        dtype_close(&r);
    }
}

TEST(a_data_set_has_columns_of_16_bits_in_the_inputs_own_type) {
    static uint16_t rows[LOADER_ROWS * 3];
    loader_fixture f;
    REQUIRE(loader_open(&f));
    for (int i = 0; i < LOADER_ROWS * 3; i++)
        rows[i] = (uint16_t)(i * 7);
    f.data.sample = NULL;
    memset(f.data.columns, 0, sizeof f.data.columns);
    f.data.columns[0] = loader_column(dt_input(f.graph, "half", DT_F16, dt_dims(3)), rows, DT_F16);
    dti_loader_desc d = loader_desc(&f, 10);
    d.tail = DT_TAIL_PAD;
    f.bytes = data_host_bytes(f.ctx);
    dti_loader *l;
    REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
    uint32_t order[LOADER_ROWS], at = 0;
    dt_shuffle(order, LOADER_ROWS, LOADER_SEED, 0);
    while (at < LOADER_ROWS) {
        const dti_batch *b;
        REQUIRE(dti_loader_next(l, &b) == DT_OK);
        const uint16_t *values = b->values[0];
        for (uint32_t i = 0; i < b->count; i++, at++) {
            const uint16_t none[3] = {0};
            CHECK(!memcmp(values + 3 * i, at < LOADER_ROWS ? rows + 3 * order[at] : none, 6));
        }
    }
    CHECK(at == 140);
    f.data.columns[0].dtype = DT_U8;
    dti_loader *wrong;
    d = loader_desc(&f, 10);
    CHECK(dti_loader_create(f.base, &d, &wrong) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(f.ctx),
                   "column 0 ('half'): the input is f16, so .dtype must be f16");
    loader_close(&f, l);
}

/* The weights after some steps on columns of bf16. */
static uint64_t dtype_trainer_hash(const char *devices) {
    static uint16_t values[DTYPE_BATCH * DTYPE_IN];
    static int32_t labels[DTYPE_BATCH];
    static float floats[DTYPE_BATCH * DTYPE_IN];
    dtype_run r = dtype_open(2);
    dt_tensor x = dt_input(r.graph, "x", DT_BF16, dt_dims(DTYPE_IN));
    dt_tensor t = dt_input(r.graph, "t", DT_I32, dt_dims());
    dt_tensor h = dt_relu(dtype_layer(x, "fc1", DTYPE_HIDDEN, DT_BF16));
    dt_tensor logits = dt_cast(dtype_layer(h, "fc2", DTYPE_CLASSES, DT_BF16), DT_F32);
    dtype_batch(floats, labels, 0);
    for (int i = 0; i < DTYPE_BATCH * DTYPE_IN; i++)
        values[i] = dti_bf16_from_f32(floats[i]);
    dt_trainer_desc desc = {.loss = dt_cross_entropy(logits, t, NULL),
                            .optim = &(dt_optim_desc){.kind = DT_OPTIM_ADAM, .lr = 1e-2},
                            .batch = 32,
                            .parallel.batch_slices = 4,
                            .accumulate = 2,
                            .devices = devices,
                            .data = {.rows = DTYPE_BATCH,
                                     .columns = {{.input = x, .data = values, .dtype = DT_BF16},
                                                 {.input = t, .data = labels, .dtype = DT_I32}}}};
    dt_trainer *trainer = NULL;
    dt_train_report first = {0}, report = {0};
    uint64_t hash = 0;
    dt_result result = dt_trainer_create(r.graph, &desc, &trainer);
    for (int step = 0; step < 12 && !result; step++)
        result = dt_trainer_step(trainer, step ? &report : &first);
    if (!result)
        result = dt_store_hash(dt_trainer_store(trainer), &hash);
    test_check(result == DT_OK, __FILE__, __LINE__, "%s: %s", devices, dt_ctx_error(r.ctx));
    test_check(report.loss < 0.8 * first.loss, __FILE__, __LINE__, "%g after %g", report.loss,
               first.loss);
    dtype_close(&r);
    return hash;
}

TEST(replicas_with_values_of_16_bits_train_the_same_bits_for_any_number_of_them) {
    const uint64_t one = dtype_trainer_hash("cpu");
    CHECK(one != 0);
    CHECK(dtype_trainer_hash("cpu:2") == one);
    CHECK(dtype_trainer_hash("cpu,cpu,cpu,cpu") == one);
}
