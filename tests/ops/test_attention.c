/* Attention in blocks: what it is for (no scores in memory), and that nothing but shapes decides
 * its bits. Its values are test_ops.c's and test_golden_image.c's business. Included by main.c. */

typedef struct attention_run {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, lengths, mask, y, dx;
    dt_store *store;
    dt_program *program;
    float *values;
    int64_t per_sample;
} attention_run;

enum { ATTENTION_HEADS = 4, ATTENTION_SIZE = 8 };

/* Heads of q and two of k and v from one input [T, (4 + 2 + 2) * 8]. */
static bool attention_open(attention_run *r, const char *device, int threads, int64_t positions,
                           int batch, const dt_attention_desc *desc) {
    dt_attention_desc d = *desc;
    dt_tensor part[3];
    *r = (attention_run){.per_sample = positions * 8 * ATTENTION_SIZE};
    if (dt_ctx_create(&(dt_ctx_desc){.threads = threads, .no_vulkan = !strcmp(device, "cpu")},
                      &r->ctx) ||
        dt_graph_create(r->ctx, &r->graph))
        return false;
    r->x = dt_input(r->graph, "x", DT_F32, dt_dims(positions, 8 * ATTENTION_SIZE));
    if (d.lengths.graph)
        d.lengths = r->lengths = dt_input(r->graph, "lengths", DT_I32, dt_dims());
    if (d.mask.graph)
        d.mask = r->mask = dt_input(r->graph, "mask", DT_F32, dt_dims(positions, positions));
    for (int i = 0, at = 0; i < 3; i++) {
        const int heads = i ? 2 : ATTENTION_HEADS;
        part[i] = dt_slice(r->x, 1, at * ATTENTION_SIZE, heads * ATTENTION_SIZE);
        part[i] = dt_reshape(part[i], dt_dims(positions, heads, ATTENTION_SIZE));
        part[i] = dt_permute(part[i], dt_dims(1, 0, 2));
        at += heads;
    }
    r->y = dt_attention(part[0], part[1], part[2], &d);
    r->dx = dt_gradient(dt_mean_loss(dt_square(r->y)), r->x);
    dt_program_desc program = {.outputs = {r->y, r->dx}, .batch = batch};
    if (dt_store_create(r->graph, &(dt_store_desc){.device = device}, &r->store) ||
        dt_program_create(r->store, &program, &r->program))
        return false;
    const int64_t n = r->per_sample * batch;
    r->values = malloc((size_t)n * sizeof *r->values);
    uint32_t state = 5;
    for (int64_t i = 0; i < n && r->values; i++) {
        state = state * 1664525u + 1013904223u;
        r->values[i] = (float)(state >> 8) / 4194304.0f - 2.0f;
    }
    return r->values && !dt_program_write(r->program, r->x, r->values, (size_t)n * 4);
}

static void attention_close(attention_run *r) {
    free(r->values);
    dt_ctx_destroy(r->ctx);
}

/* y and dx after each other, of `batch` samples. */
static float *attention_results(attention_run *r, int batch) {
    const size_t y = (size_t)(r->per_sample / 2 * batch), dx = (size_t)(r->per_sample * batch);
    float *out = calloc(y + dx + 1, sizeof *out);
    CHECK(!dt_program_run(r->program, NULL, NULL));
    CHECK(!dt_program_read(r->program, r->y, out, y * 4));
    CHECK(!dt_program_read(r->program, r->dx, out + y, dx * 4));
    return out;
}

TEST(attention_has_the_same_bits_for_any_number_of_threads) {
    const dt_attention_desc desc = {.causal = true, .window = 200};
    const int threads[] = {1, 2, 5};
    float *first = NULL;
    for (int i = 0; i < 3; i++) {
        attention_run r;
        REQUIRE(attention_open(&r, "cpu", threads[i], 300, 2, &desc));
        float *got = attention_results(&r, 2);
        CHECK(!first || !memcmp(first, got, (size_t)(r.per_sample * 3) * 4));
        attention_close(&r);
        free(first ? got : NULL);
        first = first ? first : got;
    }
    free(first);
}

/* Each sample by itself gives what it gives beside others. */
static void attention_check_samples(const char *device, int64_t positions) {
    const dt_attention_desc desc = {.causal = true, .alibi = true};
    attention_run all, one;
    REQUIRE(attention_open(&all, device, 2, positions, 3, &desc));
    REQUIRE(attention_open(&one, device, 2, positions, 1, &desc));
    float *many = attention_results(&all, 3);
    const size_t n = (size_t)all.per_sample / 2;
    for (size_t s = 0; s < 3; s++) {
        CHECK(!dt_program_write(one.program, one.x, all.values + s * 2 * n, 2 * n * 4));
        float *single = attention_results(&one, 1);
        CHECK(!memcmp(single, many + s * n, n * 4));
        free(single);
    }
    free(many);
    attention_close(&all);
    attention_close(&one);
}

TEST(attention_of_a_sample_does_not_see_the_others) {
    attention_check_samples("cpu", 70);
}

#ifndef DT_NO_VULKAN
TEST(attention_of_a_sample_does_not_see_the_others_on_vulkan) {
    char device[32];
    if (!vulkan_device_count())
        SKIP("no Vulkan device");
    snprintf(device, sizeof device, "vulkan:%d", vulkan_quick_device());
    attention_check_samples(device, 70);
}
#endif

#ifndef DT_NO_VULKAN
/* y, then dx, of 2 samples with 4 heads of q and 2 of k and v. Vulkan takes the plan of a GPU,
 * whose workgroups grow with heads. */
static float *attention_of_heads(const char *device, int64_t t, int64_t d, int64_t dv, size_t *n) {
    const int64_t wide = 6 * d + 2 * dv, in = 2 * t * wide, out = 2 * 4 * t * dv;
    float *values = malloc((size_t)(in + out) * 2 * sizeof *values);
    dt_ctx *ctx;
    dt_graph *g;
    dt_store *store;
    dt_program *p;
    if (!values || dt_ctx_create(&(dt_ctx_desc){.threads = 2}, &ctx) || dt_graph_create(ctx, &g))
        return NULL;
    const dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(t, wide));
    dt_tensor part[3];
    for (int64_t i = 0, at = 0; i < 3; i++) {
        const int64_t heads = i ? 2 : 4, size = i < 2 ? d : dv;
        part[i] = dt_reshape(dt_slice(x, 1, at, heads * size), dt_dims(t, heads, size));
        part[i] = dt_permute(part[i], dt_dims(1, 0, 2));
        at += heads * size;
    }
    const dt_tensor y =
        dt_attention(part[0], part[1], part[2], &(dt_attention_desc){.causal = true});
    const dt_tensor dx = dt_gradient(dt_mean_loss(dt_square(y)), x);
    CHECK(!dt_store_create(g, &(dt_store_desc){.device = device}, &store));
    if (strcmp(device, "cpu") != 0)
        store->device->info.kind = DT_DEVICE_DISCRETE;
    CHECK(!dt_program_create(store, &(dt_program_desc){.outputs = {y, dx}, .batch = 2}, &p));
    for (int64_t i = 0; i < in; i++)
        values[in + out + i] = (float)((uint32_t)i * 2654435761u >> 8) / 8388608.0f - 1.0f;
    CHECK(!dt_program_write(p, x, values + in + out, (size_t)in * sizeof *values));
    CHECK(!dt_program_run(p, NULL, NULL));
    CHECK(!dt_program_read(p, y, values, (size_t)out * sizeof *values));
    CHECK(!dt_program_read(p, dx, values + out, (size_t)in * sizeof *values));
    dt_ctx_destroy(ctx);
    *n = (size_t)(in + out);
    return values;
}

TEST(attention_on_a_gpu_is_right_for_heads_of_each_width) {
    static const int64_t sizes[][3] = {{70, 64, 64}, {40, 72, 33}, {40, 30, 110}, {33, 256, 200}};
    char device[32];
    if (!vulkan_device_count())
        SKIP("no Vulkan device");
    snprintf(device, sizeof device, "vulkan:%d", vulkan_quick_device());
    for (size_t i = 0; i < DTI_COUNT(sizes); i++) {
        const int64_t *s = sizes[i];
        size_t n;
        double most = 0, off = 0;
        float *want = attention_of_heads("cpu", s[0], s[1], s[2], &n);
        float *got = attention_of_heads(device, s[0], s[1], s[2], &n);
        REQUIRE(want && got);
        for (size_t k = 0; k < n; k++) {
            const bool y = k < (size_t)(2 * 4 * s[0] * s[2]);
            most = fmax(most, fabs((double)want[k]));
            off = fmax(off, fabs((double)got[k] - (double)want[k]));
            if (k + 1 == n || (y && k + 1 == (size_t)(2 * 4 * s[0] * s[2]))) {
                test_check(off <= 4e-6 * most, __FILE__, __LINE__, "%lld x %lld: %g of %g",
                           (long long)s[1], (long long)s[2], off, most);
                most = off = 0;
            }
        }
        free(want);
        free(got);
    }
}
#endif

/* Whether a kernel reads by fours, of a launch whose operand number i is moved. */
static bool attention_by_fours(int i) {
    dti_launch l = {.kernel = DTI_K_ATTENTION};
    dti_args_attention *a = &l.args.attention;
    uint32_t *const words[] = {&a->d,      &a->dv,    &a->q_offset, &a->q_row,    &a->k_offset,
                               &a->k_head, &a->v_row, &a->v_sample, &a->dy_offset};
    uint32_t spec[4] = {DTI_ATTENTION_CAUSAL, 2, 2, 0};
    for (int k = 0; k < 9; k++)
        *words[k] = 4u * (uint32_t)(k + 1) + (k == i ? 2u : 0u);
    a->mask_offset = 3, a->y_offset = 5;
    dti_kernel_info_of(l.kernel)->tile(&l, 0, spec);
    return (spec[0] & DTI_ATTENTION_FOURS) != 0;
}

TEST(attention_reads_by_fours_where_its_operands_are_aligned) {
    CHECK(attention_by_fours(-1));
    for (int i = 0; i < 9; i++)
        CHECK(!attention_by_fours(i));
}

/* Values after the length, NaN as well, change nothing before it. */
TEST(keys_after_the_length_change_nothing) {
    enum { T = 40 };
    const int32_t lengths[2] = {9, T};
    attention_run r;
    dt_tensor some = {.graph = (dt_graph *)&r, .id = 1};
    REQUIRE(attention_open(&r, "cpu", 2, T, 2, &(dt_attention_desc){.lengths = some}));
    CHECK(!dt_program_write(r.program, r.lengths, lengths, sizeof lengths));
    float *before = attention_results(&r, 2);
    for (int t = 9; t < T; t++) /* keys and values of the first sample */
        for (int c = 4 * ATTENTION_SIZE; c < 8 * ATTENTION_SIZE; c++)
            r.values[t * 8 * ATTENTION_SIZE + c] *= -3;
    CHECK(!dt_program_write(r.program, r.x, r.values, (size_t)r.per_sample * 2 * 4));
    float *after = attention_results(&r, 2);
    CHECK(!memcmp(before, after, (size_t)r.per_sample * 4)); /* y of both */
    free(before);
    free(after);
    attention_close(&r);
}

/* A mask of 0 and -inf, as PyTorch's, hides as one of 1 and 0 that is kept by; a query that sees
 * nothing gives 0. */
static void attention_check_infinite(const char *device, int positions) {
    dt_tensor some = {.graph = (dt_graph *)device, .id = 1};
    const size_t scores = (size_t)positions * (size_t)positions;
    float *mask = malloc(2 * scores * sizeof *mask), *got[2];
    size_t n = 0;
    REQUIRE(mask);
    for (int keep = 0; keep < 2; keep++) {
        attention_run r;
        const dt_attention_desc desc = {.mask = some, .bool_mask = keep != 0};
        REQUIRE(attention_open(&r, device, 2, positions, 2, &desc));
        for (size_t i = 0; i < 2 * scores; i++) {
            const size_t row = i / (size_t)positions, col = i % (size_t)positions;
            const bool seen = row % 5 != 3 && (col * 7 + row) % 3 != 0;
            mask[i] = keep ? seen : seen ? 0.0f : (float)-INFINITY;
        }
        CHECK(!dt_program_write(r.program, r.mask, mask, 2 * scores * sizeof *mask));
        got[keep] = attention_results(&r, 2);
        n = (size_t)r.per_sample;
        for (size_t i = 3 * ATTENTION_SIZE; i < 4 * ATTENTION_SIZE; i++)
            CHECK(got[keep][i] == 0.0f);
        attention_close(&r);
    }
    for (size_t i = 0; i < 3 * n; i++)
        CHECK(fabsf(got[0][i] - got[1][i]) <= 1e-6f);
    free(got[0]);
    free(got[1]);
    free(mask);
}

TEST(masks_of_minus_infinity_hide) {
    attention_check_infinite("cpu", 45);
}

#ifndef DT_NO_VULKAN
TEST(masks_of_minus_infinity_hide_on_vulkan) {
    char device[32];
    if (!vulkan_device_count())
        SKIP("no Vulkan device");
    snprintf(device, sizeof device, "vulkan:%d", vulkan_quick_device());
    attention_check_infinite(device, 45);
}
#endif

/* Of keys: none for a length of 0 or less, all for one beyond the last. */
TEST(lengths_beyond_the_keys_mask_none_or_all) {
    enum { T = 20 };
    attention_run r;
    dt_tensor some = {.graph = (dt_graph *)&r, .id = 1};
    REQUIRE(attention_open(&r, "cpu", 1, T, 3, &(dt_attention_desc){.lengths = some}));
    float *got[2];
    for (int i = 0; i < 2; i++) {
        const int32_t lengths[3] = {i ? -7 : 0, i ? INT32_MIN : 0, i ? INT32_MAX : T};
        CHECK(!dt_program_write(r.program, r.lengths, lengths, sizeof lengths));
        got[i] = attention_results(&r, 3);
    }
    const size_t n = (size_t)r.per_sample;
    CHECK(!memcmp(got[0], got[1], n / 2 * 9 * sizeof(float)));
    for (size_t k = 0; k < n; k++) /* y of the first two samples, which see none */
        CHECK(got[1][k] == 0.0f);
    free(got[0]);
    free(got[1]);
    attention_close(&r);
}

TEST(attention_takes_no_memory_for_scores) {
    uint64_t bytes[2];
    for (int i = 0; i < 2; i++) {
        const int64_t positions = i ? 1024 : 512;
        attention_run r;
        dt_program_info info;
        REQUIRE(attention_open(&r, "cpu", 1, positions, 2, &(dt_attention_desc){.causal = true}));
        dt_program_get_info(r.program, &info);
        bytes[i] = info.transient_bytes;
        CHECK(bytes[i] < (uint64_t)(2 * ATTENTION_HEADS * positions * positions));
        attention_close(&r);
    }
    CHECK(bytes[1] < bytes[0] * 2 + 65536);
}

TEST(attention_names_operands_that_do_not_fit) {
    dt_ctx *ctx;
    dt_graph *g;
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    REQUIRE(!dt_graph_create(ctx, &g));
    dt_tensor q = dt_input(g, "q", DT_F32, dt_dims(4, 6, 8)), flat = dt_flatten(q);
    dt_tensor three = dt_input(g, "three", DT_F32, dt_dims(3, 6, 8));
    dt_tensor wide = dt_input(g, "wide", DT_F32, dt_dims(4, 6, 300));
    dt_tensor crowd = dt_input(g, "crowd", DT_F32, dt_dims(65536, 1, 1));
    dt_tensor mask = dt_input(g, "mask", DT_F32, dt_dims(6, 5)),
              n = dt_input(g, "n", DT_I32, dt_dims());
    const struct {
        dt_tensor q, k, v;
        dt_attention_desc desc;
        const char *says;
    } wrong[] = {
        {flat, q, q, {.scale = 0}, "[heads, positions, size]"},
        {crowd, crowd, crowd, {.scale = 0}, "q has 65536 heads; it must have at most 65535"},
        {q, three, three, {.scale = 0}, "not a multiple of the 3"},
        {q, wide, q, {.scale = 0}, "q and k differ in their last dimension"},
        {q, q, wide, {.scale = 0}, "must be in [1, 256]"},
        {q, q, three, {.scale = 0}, "k and v differ in heads"},
        {q, q, q, {.mask = mask}, "must broadcast to [4, 6, 6]"},
        {q, q, q, {.mask = mask, .lengths = n}, ".mask cannot be combined with .lengths"},
        {q, q, q, {.lengths = mask}, "must be i32 []"},
        {q, q, q, {.bool_mask = true}, ".bool_mask needs a .mask"},
        {q, q, q, {.window = -1}, ".window is -1"},
        {q, q, q, {.dropout = 1.25f}, ".dropout is 1.25; it must be in [0, 1]"},
        {q, q, q, {.scale = (float)INFINITY}, ".scale is inf"},
    };
    for (size_t i = 0; i < DTI_COUNT(wrong); i++) {
        CHECK(dti_is_nil(dt_attention(wrong[i].q, wrong[i].k, wrong[i].v, &wrong[i].desc)));
        CHECK_CONTAINS(dt_graph_error(g), wrong[i].says);
        dt_graph_clear_error(g);
    }
    dt_ctx_destroy(ctx);
}
