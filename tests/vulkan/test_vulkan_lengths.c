/* Sums of every length on Vulkan, by the machine of test_lengths.c. Each is right, or the driver
 * that would end its loops has no such program. Included by main.c. */
#ifndef DT_NO_VULKAN

static bool vulkan_lengths_device(char *device, size_t size) {
    if (!vulkan_device_count())
        return false;
    snprintf(device, size, "vulkan:%d", vulkan_quick_device());
    return true;
}

TEST(vulkan_sums_of_every_length_are_right_within_log_n) {
    char device[32];
    if (!vulkan_lengths_device(device, sizeof device))
        SKIP("no Vulkan device");
    length_rows_on(device, test_is_long() ? 20 : 16);
}

/* A row of the machine by its name. */
static const length_row *vulkan_length_row(const char *name) {
    const length_row *row = length_rows;
    while (strcmp(row->name, name) != 0)
        row++;
    return row;
}

TEST(vulkan_weight_gradients_over_many_rows_are_right) {
    static const int64_t rows[] = {65535, 65536, 70000, 131072, 1 << 20};
    char device[32];
    dt_ctx *ctx;
    if (!vulkan_lengths_device(device, sizeof device))
        SKIP("no Vulkan device");
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.threads = 2}, &ctx));
    for (size_t i = 0; i < DTI_COUNT(rows); i++) {
        const unsigned kinds = 1u << LENGTH_EQUAL | 1u << LENGTH_RANDOM;
        CHECK(length_try(ctx, device, vulkan_length_row("linear, weights"), rows[i], kinds, false) >
              0);
        CHECK(length_try(ctx, device, vulkan_length_row("matmul"), rows[i], kinds, false) > 0);
    }
    dt_ctx_destroy(ctx);
}

/* Weights of several tiles: [70, 100], and few rows more than a part. */
static void vulkan_large_weights(const char *device, int64_t n) {
    enum { OUT = 100, IN = 70 };
    length_case c = {.n = n, .batch = (int)n};
    dt_ctx *ctx;
    dt_program *program = NULL;
    float *x = malloc((size_t)n * IN * sizeof *x), *dy = malloc((size_t)n * OUT * sizeof *dy);
    float dw[LENGTH_OUTS];
    REQUIRE(x && dy && !dt_ctx_create(&(dt_ctx_desc){.threads = 2}, &ctx));
    REQUIRE(!dt_graph_create(ctx, &c.graph));
    length_in(&c, 0, n * IN, dt_dims(IN), true);
    length_in(&c, 1, n * OUT, dt_dims(OUT), true);
    const dt_tensor w = length_param(&c, "w", dt_dims(OUT, IN), 0.5f);
    length_grad(&c, dt_linear(c.in[0], w, (dt_tensor){0}), w, LENGTH_OUTS);
    for (int64_t i = 0; i < n * IN; i++)
        x[i] = length_value(LENGTH_RANDOM, i) + 0.5f;
    for (int64_t i = 0; i < n * OUT; i++)
        dy[i] = length_value(LENGTH_RANDOM, i + 9) + 0.5f;
    REQUIRE(!length_compile(&c, device, &program));
    CHECK(!dt_program_write(program, c.in[0], x, (size_t)n * IN * sizeof *x) &&
          !dt_program_write(program, c.in[1], dy, (size_t)n * OUT * sizeof *dy) &&
          !dt_program_run(program, NULL, NULL) && !dt_program_read(program, c.y, dw, sizeof dw));
    for (int j = 0; j < LENGTH_OUTS; j++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += (double)x[i * IN + j] * (double)dy[i * OUT];
        CHECK_NEAR(dw[j] / sum, 1, 1e-6);
    }
    dt_ctx_destroy(ctx);
    free(x), free(dy);
}

TEST(vulkan_gradients_of_large_weights_over_many_rows_are_right) {
    char device[32];
    if (!vulkan_lengths_device(device, sizeof device))
        SKIP("no Vulkan device");
    vulkan_large_weights(device, 66000);
}

/* Of 6 products m x k x n, three a sample, with a plan for hardware. It has workgroups of their own
 * for chunks of k, and launches that software has not. */
static void vulkan_batched_product(const char *device, int64_t m, int64_t k, int64_t n) {
    const int64_t sizes[] = {6 * m * k, 6 * k * n, 6 * m * n};
    float *a = malloc((size_t)(sizes[0] + sizes[1] + sizes[2]) * sizeof *a);
    float *b = a + sizes[0], *y = b + sizes[1];
    dt_ctx *ctx;
    dt_graph *g;
    dt_store *store;
    dt_program *p;
    REQUIRE(a && !dt_ctx_create(&(dt_ctx_desc){.threads = 2}, &ctx) && !dt_graph_create(ctx, &g));
    const dt_tensor left = dt_input(g, "a", DT_F32, dt_dims(3, m, k));
    const dt_tensor right = dt_input(g, "b", DT_F32, dt_dims(3, k, n));
    const dt_tensor product = dt_matmul(left, right);
    REQUIRE(!dt_store_create(g, &(dt_store_desc){.device = device}, &store));
    store->device->info.kind = DT_DEVICE_DISCRETE;
    REQUIRE(!dt_program_create(store, &(dt_program_desc){.outputs = {product}, .batch = 2}, &p));
    for (int64_t i = 0; i < sizes[0] + sizes[1]; i++)
        a[i] = length_value(LENGTH_RANDOM, i);
    CHECK(!dt_program_write(p, left, a, (size_t)sizes[0] * sizeof *a));
    CHECK(!dt_program_write(p, right, b, (size_t)sizes[1] * sizeof *b));
    CHECK(!dt_program_run(p, NULL, NULL));
    CHECK(!dt_program_read(p, product, y, (size_t)sizes[2] * sizeof *y));
    for (int64_t i = 0; i < sizes[2]; i += 37) {
        double sum = 0, all = 0;
        for (int64_t j = 0; j < k; j++) {
            const double x =
                (double)a[i / n * k + j] * (double)b[(i / (m * n) * k + j) * n + i % n];
            sum += x;
            all += fabs(x);
        }
        CHECK(fabs(y[i] - sum) <= 1e-6 * all);
    }
    dt_ctx_destroy(ctx);
    free(a);
}

TEST(vulkan_batched_products_with_a_long_k_are_right_in_the_plan_of_a_gpu) {
    char device[32];
    if (!vulkan_lengths_device(device, sizeof device))
        SKIP("no Vulkan device");
    vulkan_batched_product(device, 70, 2000, 66);
    vulkan_batched_product(device, 8, 9000, 8); /* in parts */
}

/* The text names the launch, its rounds, the limit, and what to do. */
TEST(vulkan_loops_that_a_driver_would_end_are_refused) {
    const length_row *row = vulkan_length_row("attention, values");
    length_case c = {.n = 1 << 20};
    char device[32];
    dt_ctx *ctx;
    dt_program *program = NULL;
    if (!vulkan_lengths_device(device, sizeof device))
        SKIP("no Vulkan device");
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.threads = 2}, &ctx));
    REQUIRE(!dt_graph_create(ctx, &c.graph));
    row->build(&c);
    const dt_result result = length_compile(&c, device, &program);
    const dt_device_info *info = dt_ctx_device(ctx, 1 + vulkan_quick_device());
    if (info && !strncmp(info->name, "llvmpipe", 8)) {
        CHECK(result == DT_ERROR_UNSUPPORTED);
        CHECK_CONTAINS(dt_ctx_error(ctx), "(attention_grad)");
        CHECK_CONTAINS(dt_ctx_error(ctx), "ends them after 65535; use fewer");
    } else {
        CHECK(!result);
    }
    dt_ctx_destroy(ctx);
}

#endif
