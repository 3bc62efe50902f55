/* The kernels that sum rows and columns on Vulkan, where a sum is cut. They are compared on every
 * driver with the CPU, and with one workgroup. Included by main.c. */
#ifndef DT_NO_VULKAN

typedef struct sums_norm { /* a channel, or a group, of more than a chunk, or less */
    dti_args_norm a;
    uint32_t pairs; /* floats after the groups' own */
    float *x, *dy, *w, *y[2], *stats[2], *scratch;
} sums_norm;

static void sums_norm_make(sums_norm *r, uint32_t samples, uint32_t channels, uint32_t spatial,
                           uint32_t groups) {
    dti_args_norm *a = &r->a;
    const uint32_t n = samples * channels * spatial;
    *a = (dti_args_norm){.n = n, .batch = !groups, .channels = channels, .spatial = spatial};
    a->b_offset = channels;
    a->eps = 0.5f;
    a->groups = groups ? samples * groups : channels;
    a->cols = n / a->groups;
    a->chunks = (a->cols + DTI_NORM_CHUNK - 1) / DTI_NORM_CHUNK;
    r->pairs = a->chunks > 1 ? 2 * a->groups * a->chunks : 0;
    r->x = vulkan_numbers(n, 9, 1);
    r->dy = vulkan_numbers(n, 5, 2);
    r->w = vulkan_numbers(2 * channels, 9, 3);
    for (int k = 0; k < 2; k++) {
        r->y[k] = vulkan_zeros(n);
        r->stats[k] = vulkan_zeros(DTI_MAX(2 * a->groups, 2 * channels));
    }
    r->scratch = vulkan_zeros(
        5 * channels + DTI_MAX(r->pairs + 2 * a->groups, 2 * channels * (n / channels / 4096 + 1)));
}

static void sums_norm_free(sums_norm *r) {
    free(r->x), free(r->dy), free(r->w), free(r->scratch);
    for (int k = 0; k < 2; k++)
        free(r->y[k]), free(r->stats[k]);
}

static bool sums_run(vulkan_rig *rig, int kernel, const dti_args_norm *a, const uint32_t *spec,
                     uint64_t items, float *const *data, const uint32_t *count) {
    vulkan_call call = {
        .launch = {
            .kernel = (uint16_t)kernel, .args_bytes = sizeof *a, .items = items, .args.norm = *a}};
    memcpy(call.launch.spec, spec, sizeof call.launch.spec);
    memcpy(call.data, data, sizeof call.data);
    memcpy(call.count, count, sizeof call.count);
    return vulkan_call_run(rig, &call);
}

/* Statistics to stats[to], then y to y[to]. */
static void sums_norm_apart(vulkan_rig *rig, sums_norm *r, int to) {
    dti_args_norm a = r->a;
    const uint32_t own = 2 * a.groups, none[4] = {0};
    const bool cut = a.chunks > 1;
    a.p_offset = own;
    sums_run(rig, DTI_K_NORM_STATS, &a, none, (uint64_t)a.groups * a.chunks,
             (float *[4]){r->x, cut ? r->scratch : r->stats[to]},
             (uint32_t[4]){a.n, own + r->pairs});
    if (cut)
        sums_run(rig, DTI_K_NORM_FINISH, &a, none, a.groups,
                 (float *[4]){r->scratch, NULL, NULL, r->stats[to]},
                 (uint32_t[4]){own + r->pairs, 0, 0, own});
    sums_run(rig, DTI_K_NORM, &a, (uint32_t[4]){DTI_NORM_AFFINE}, a.n,
             (float *[4]){r->x, r->stats[to], r->w, r->y[to]},
             (uint32_t[4]){a.n, own, 2 * a.channels, a.n});
}

/* The same by NORM_GROUP, over the pairs that sums_norm_apart has left. */
static void sums_norm_together(vulkan_rig *rig, sums_norm *r, int to) {
    dti_args_norm a = r->a;
    const uint32_t own = 2 * a.groups, whole = a.chunks > 1 ? 0 : DTI_NORM_GROUP_WHOLE;
    a.p_offset = own;
    sums_run(rig, DTI_K_NORM_GROUP, &a, (uint32_t[4]){DTI_NORM_AFFINE, 0, whole},
             (uint64_t)a.groups * a.chunks, (float *[4]){r->x, r->w, r->y[to], r->scratch},
             (uint32_t[4]){a.n, 2 * a.channels, a.n, own + r->pairs});
    memcpy(r->stats[to], r->scratch, 4ull * own);
}

static bool sums_same(const float *a, const float *b, uint32_t n, double bound) {
    if (bound == 0)
        return memcmp(a, b, 4ull * n) == 0;
    return vulkan_differences(a, b, n, bound) == 0;
}

static void sums_try_stats(vulkan_rig *rig, vulkan_rig *cpu, sums_norm *r) {
    const dti_args_norm *a = &r->a;
    sums_norm_apart(rig, r, 0);
    sums_norm_together(rig, r, 1);
    CHECK(sums_same(r->stats[0], r->stats[1], 2 * a->groups, 0));
    CHECK(sums_same(r->y[0], r->y[1], a->n, 0));
    sums_norm_apart(cpu, r, 1);
    CHECK(sums_same(r->stats[0], r->stats[1], 2 * a->groups, 1e-4));
    CHECK(sums_same(r->y[0], r->y[1], a->n, 1e-4));
    if (a->batch && a->spatial == 1)
        return; /* the CPU has no such launch */
    sums_norm_together(cpu, r, 0);
    CHECK(sums_same(r->stats[0], r->stats[1], 2 * a->groups, 0));
    CHECK(sums_same(r->y[0], r->y[1], a->n, 0));
}

/* dw and db in r->y[to], and what batch_dx reads in the scratch's beginning. */
static void sums_norm_dw(vulkan_rig *rig, sums_norm *r, int to, bool fours) {
    dti_args_norm a = r->a;
    const uint32_t c = a.channels, own = 2 * a.groups, spec[4] = {0, 0, fours};
    a.chunks = (a.n / c + DTI_NORM_CHUNK - 1) / DTI_NORM_CHUNK;
    const uint32_t all = (5 + 2 * a.chunks) * c;
    dti_args_norm sums = a;
    const bool cut = a.chunks > 1;
    sums.y_offset = cut ? 2 * c : 0, sums.b_offset = cut ? 3 * c : c;
    sums.p_offset = a.p_offset = 5 * c;
    sums_run(rig, DTI_K_NORM_DW, &sums, spec, (uint64_t)c / (fours ? 4 : 1) * a.chunks,
             (float *[4]){r->x, r->stats[0], r->dy, cut ? r->scratch : r->y[to]},
             (uint32_t[4]){a.n, own, a.n, cut ? all : 2 * c});
    if (cut)
        sums_run(rig, DTI_K_NORM_FINISH, &a, (uint32_t[4]){DTI_NORM_FINISH_DW, 1}, c,
                 (float *[4]){r->scratch, r->stats[0], r->w, r->y[to]},
                 (uint32_t[4]){all, own, 2 * c, 2 * c});
    for (uint32_t i = 0; cut && i < c; i++) {
        const float *p = r->scratch;
        CHECK(p[2 * c + i] == r->y[to][i] && p[3 * c + i] == r->y[to][c + i]);
        CHECK(p[4 * c + i] == r->w[i] && (!a.batch || p[2 * i + 1] == r->stats[0][2 * i + 1]));
    }
}

static void sums_try_dw(vulkan_rig *rig, vulkan_rig *cpu, sums_norm *r) {
    const uint32_t c = r->a.channels;
    const double bound = 1e-5 * r->a.n / c;
    if (!r->a.batch && r->a.groups > c)
        return; /* what batch_dx reads has the channels' statistics */
    sums_norm_dw(rig, r, 0, false);
    sums_norm_dw(cpu, r, 1, false);
    CHECK(sums_same(r->y[0], r->y[1], 2 * c, bound));
    if (r->a.spatial > 1 || c % 4)
        return;
    sums_norm_dw(rig, r, 1, true);
    CHECK(sums_same(r->y[0], r->y[1], 2 * c, bound));
}

/* A value that is not finite is in every result that it belongs to. */
static void sums_try_infinite(vulkan_rig *rig, sums_norm *r, float bad) {
    const uint32_t at = r->a.n - 1, group = r->a.batch ? r->a.channels - 1 : r->a.groups - 1;
    r->x[at] = bad;
    sums_norm_apart(rig, r, 0);
    sums_norm_together(rig, r, 1);
    for (int k = 0; k < 2; k++) {
        CHECK(r->stats[k][2 * group + 1] != r->stats[k][2 * group + 1]);
        CHECK(r->y[k][at] != r->y[k][at]);
        CHECK(group == 0 || r->stats[k][1] == r->stats[k][1]);
    }
}

/* dx after the room before each operand; spec: RMS, and whether there are weights. */
static void sums_norm_dx(vulkan_rig *rig, const sums_norm *r, const dti_args_norm *a,
                         const uint32_t spec[4], float *dx) {
    sums_run(rig, DTI_K_NORM_DX, a, spec, a->groups, (float *[4]){r->x, r->dy, r->w, dx},
             (uint32_t[4]){a->n + a->x_offset, a->n + a->x_offset, 2 * a->channels, a->n});
}

/* Shapes by a machine: by fours and not, in registers and beyond them. One channel an element, or
 * runs of them. Whole numbers from -9 to 9, so 1e-4 is some tens of their last bits. */
static void sums_try_dx(vulkan_rig *rig, vulkan_rig *cpu, uint32_t seed) {
    static const uint8_t spatials[] = {1, 1, 4, 12, 7, 64};
    uint32_t random = seed * 2654435761u;
    const uint32_t spatial = spatials[seed % DTI_COUNT(spatials)];
    const uint32_t groups = seed % 5 == 4 ? 3 : 1;
    uint32_t own = 1 + (random >> 20) % (seed % 3 ? 40 : 700);
    if (seed % 4) /* else of any number */
        own = (own + 3) / 4 * 4;
    sums_norm r;
    sums_norm_make(&r, 3, groups * own, spatial, groups);
    dti_args_norm a = r.a;
    a.x_offset = a.dy_offset = seed % 7 == 6 ? 1 : seed % 7 == 5 ? 4 : 0;
    a.n -= a.n / 3; /* so that there is room before it */
    a.groups -= a.groups / 3;
    float *dx = vulkan_zeros(2 * a.n), *expected = dx + a.n;
    for (uint32_t mode = 0; mode < 4; mode++) {
        const uint32_t spec[4] = {mode & 1, mode >> 1};
        sums_norm_dx(rig, &r, &a, spec, dx);
        sums_norm_dx(cpu, &r, &a, spec, expected);
        test_check(!vulkan_differences(dx, expected, a.n, 1e-4), __FILE__, __LINE__,
                   "case %u, mode %u: %u groups of %u, spatial %u", seed, mode, a.groups, a.cols,
                   spatial);
    }
    free(dx);
    sums_norm_free(&r);
}

static void sums_try_norms(vulkan_rig *rig) {
    /* samples, channels, spatial, groups of a sample; 0: of the batch */
    static const uint32_t shapes[][4] = {
        {5, 3, 16, 0},   {20, 3, 1024, 0}, {67, 2, 255, 0}, {3, 2, 7001, 0}, {4100, 8, 1, 0},
        {9000, 4, 1, 0}, {8193, 3, 1, 0},  {3, 5000, 1, 1}, {2, 6, 2052, 2}, {5, 384, 1, 1},
        {3, 6, 49, 3},   {7, 10, 1, 2},    {2, 4, 4099, 1}, {64, 4, 64, 0},  {65, 4, 64, 0},
    };
    vulkan_rig cpu = {.in = rig->in};
    if (rig->in->options.no_unified)
        return;
    REQUIRE(!dti_cpu_open(&rig->base, 99, &cpu.device));
    for (size_t i = 0; i < DTI_COUNT(shapes); i++) {
        const uint32_t *s = shapes[i];
        sums_norm r;
        sums_norm_make(&r, s[0], s[1], s[2], s[3]);
        sums_try_stats(rig, &cpu, &r);
        sums_try_dw(rig, &cpu, &r);
        sums_try_infinite(rig, &r, i % 2 ? INFINITY : NAN);
        sums_norm_free(&r);
    }
    for (uint32_t seed = 1; seed <= 60; seed++)
        sums_try_dx(rig, &cpu, seed);
    cpu.device->backend->close(cpu.device);
}

TEST(vulkan_norms_in_chunks_equal_the_cpus_and_have_the_same_bits_in_one_launch_or_two) {
    ON_EACH(sums_try_norms);
}

/* Exact where all values are equal, whatever the number of chunks. */
static void sums_try_equal(vulkan_rig *rig) {
    for (uint32_t samples = 1; samples <= 40; samples += 13) {
        sums_norm r;
        sums_norm_make(&r, samples, 2, 1000, 0);
        for (uint32_t i = 0; i < r.a.n; i++)
            r.x[i] = 1000.1f;
        sums_norm_apart(rig, &r, 0);
        for (int k = 0; k < 4; k++)
            CHECK(r.stats[0][k] == (k % 2 ? 0.0f : 1000.1f));
        sums_norm_free(&r);
    }
}

TEST(vulkan_statistics_of_equal_values_are_exact_in_chunks) {
    ON_EACH(sums_try_equal);
}

enum { SUMS_SAMPLES = 70, SUMS_ROWS = 3, SUMS_COLS = 101, SUMS_EACH = SUMS_ROWS * SUMS_COLS };

/* Over the samples and their columns, in two launches: exact in whole numbers. */
static void sums_try_lines(dt_ctx *ctx, const char *device, int op) {
    const int samples[] = {1, 2, SUMS_SAMPLES};
    float *x = vulkan_numbers(SUMS_SAMPLES * SUMS_EACH, 9, 7), y[SUMS_ROWS];
    if (op == DTI_OP_MAX)
        x[SUMS_COLS] = NAN; /* of row 1 */
    for (size_t k = 0; k < DTI_COUNT(samples); k++) {
        dt_graph *g = NULL;
        dt_store *store = NULL;
        dt_program *p = NULL;
        REQUIRE(!dt_graph_create(ctx, &g));
        dt_tensor in = dt_input(g, "x", DT_F32, dt_dims(SUMS_ROWS, SUMS_COLS));
        dt_tensor out = dti_append1((dti_op)op, in, &(dti_attr){.f = {1.0f}, .i = {2, 1, 0}});
        const dt_program_desc desc = {.batch = samples[k], .outputs = {out}};
        REQUIRE(!dt_store_create(g, &(dt_store_desc){.device = device}, &store));
        REQUIRE(!dt_program_create(store, &desc, &p));
        REQUIRE(!dt_program_write(p, in, x, sizeof *x * (size_t)samples[k] * SUMS_EACH));
        CHECK(!dt_program_run(p, NULL, NULL) && !dt_program_read(p, out, y, sizeof y));
        for (int row = 0; row < SUMS_ROWS; row++) {
            float want = op == DTI_OP_MAX ? -INFINITY : 0;
            for (int i = 0; i < samples[k] * SUMS_COLS; i++) {
                float v = x[i / SUMS_COLS * SUMS_EACH + row * SUMS_COLS + i % SUMS_COLS];
                want = op == DTI_OP_SUM ? want + v : v != v || want != want ? NAN : fmaxf(want, v);
            }
            CHECK(want == y[row] || (want != want && y[row] != y[row]));
        }
        dt_graph_destroy(g);
    }
    free(x);
}

TEST(sums_and_maxima_over_samples_and_columns_are_exact_on_every_device) {
    dt_ctx *ctx = NULL;
    REQUIRE(!dt_ctx_create(NULL, &ctx));
    for (int i = 0; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *info = dt_ctx_device(ctx, i);
        for (int op = 0; info->usable && op < 2; op++)
            sums_try_lines(ctx, info->id, op ? DTI_OP_MAX : DTI_OP_SUM);
    }
    dt_ctx_destroy(ctx);
}

/* ---- Cross-entropy: what the loss keeps of its rows */

enum { XENT_ROWS = 5 };

typedef struct xent_case {
    int classes;
    float smoothing;
    bool weights;
    int kept; /* gradients that need no sums of their own */
} xent_case;

/* The gradient with the loss in its program, or without. Launches of either kind: *kept, *apart. */
static void xent_run(dt_store *store, dt_tensor dx, dt_tensor loss, float *y, int *kept,
                     int *apart) {
    static const int32_t targets[XENT_ROWS] = {3, -100, 0, 9, 7};
    const int64_t classes = dti_node_of(dx)->shape.dim[0], n = XENT_ROWS * classes;
    const dti_node *node = dti_node_of(dx);
    dt_program_desc desc = {.batch = XENT_ROWS, .outputs = {dx}, .metrics = {loss}};
    dt_program *p = NULL;
    float *x = vulkan_numbers((uint32_t)n, 9, 1);
    REQUIRE(!dt_program_create(store, &desc, &p));
    CHECK(!dt_program_write(p, dti_input_of(dx.graph, node, 0), x, (size_t)n * sizeof *x));
    CHECK(!dt_program_write(p, dti_input_of(dx.graph, node, 1), targets, sizeof targets));
    CHECK(!dt_program_run(p, NULL, NULL) && !dt_program_read(p, dx, y, (size_t)n * sizeof *y));
    *kept = *apart = 0;
    for (uint32_t i = 0; i < p->code->list.launch_count; i++) {
        *kept += p->code->list.launches[i].kernel == DTI_K_XENT_DX;
        *apart += p->code->list.launches[i].kernel == DTI_K_XENT_GRAD;
    }
    dt_program_destroy(p);
    free(x);
}

static void xent_try(dt_ctx *ctx, const char *device, const xent_case *c) {
    dt_graph *g = NULL;
    dt_store *store = NULL;
    float *y[2] = {vulkan_zeros(XENT_ROWS * (uint32_t)c->classes),
                   vulkan_zeros(XENT_ROWS * (uint32_t)c->classes)};
    int kept, apart;
    REQUIRE(!dt_graph_create(ctx, &g));
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(c->classes));
    dt_tensor s = dt_fill(g, dt_dims_of(0, NULL), 0.3f);
    dt_tensor in[3] = {x, dt_input(g, "t", DT_I32, dt_dims_of(0, NULL)), s};
    dt_cross_entropy_desc desc = {.label_smoothing = c->smoothing};
    if (c->weights) {
        dt_tensor count = dti_constant(g, DTI_OP_IOTA, dt_dims(c->classes), 0);
        desc.class_weights = dt_affine(count, 0.1f, 0.7f);
        in[2] = dt_mul(s, desc.class_weights);
    }
    dt_tensor loss = dt_cross_entropy(x, in[1], &desc);
    const dti_attr attr = dti_node_of(loss)->attr;
    dt_tensor dx = dti_append(g, DTI_OP_CROSS_ENTROPY_GRAD, in, 3, &attr);
    REQUIRE(!dt_store_create(g, &(dt_store_desc){.device = device}, &store));
    xent_run(store, dx, loss, y[0], &kept, &apart);
    CHECK(kept == c->kept && apart == !c->kept);
    xent_run(store, dx, (dt_tensor){0}, y[1], &kept, &apart);
    CHECK(kept == 0 && apart == 1);
    CHECK(!memcmp(y[0], y[1], XENT_ROWS * (size_t)c->classes * sizeof *y[0]));
    CHECK(y[0][c->classes] == 0 && y[0][3] < 0);
    dt_graph_destroy(g);
    free(y[0]), free(y[1]);
}

TEST(the_gradient_of_a_cross_entropy_reuses_values_of_its_loss_with_the_same_bits) {
    static const xent_case cases[] = {
        {10, 0, false, 1}, {12, 0.1f, false, 1}, {130, 0, true, 1}, {12, 0.1f, true, 0}};
    dt_ctx *ctx = NULL;
    REQUIRE(!dt_ctx_create(NULL, &ctx));
    for (int i = 0; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *info = dt_ctx_device(ctx, i);
        for (size_t k = 0; info->usable && info->kind != DT_DEVICE_CPU && k < 4; k++)
            xent_try(ctx, info->id, &cases[k]);
    }
    dt_ctx_destroy(ctx);
}

/* ---- Products in chunks of k: side by side on what takes itself for a GPU */

/* A step of 64 samples. *sums: launches that add the results made side by side. */
static bool chunks_step(dt_device_kind kind, uint64_t *hash, int *sums) {
    enum { ROWS = 64, WIDE = 784 };
    static float values[ROWS * WIDE];
    dt_ctx *ctx;
    dt_graph *g;
    dt_store *store;
    dt_program *p = NULL;
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.1};
    if (dt_ctx_create(&(dt_ctx_desc){.no_fast = true}, &ctx) || dt_graph_create(ctx, &g))
        return false;
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(WIDE));
    dt_tensor y = dt_nn_linear(dt_relu(dt_nn_linear(x, "a", 128)), "b", 10);
    const dt_program_desc desc = {.loss = dt_mean_loss(dt_square(y)), .batch = ROWS, .optim = &sgd};
    bool good = !dt_store_create(g, &(dt_store_desc){.device = "vulkan", .seed = 3}, &store);
    if (good)
        store->device->info.kind = kind;
    good = good && !dt_program_create(store, &desc, &p);
    for (int i = 0; i < ROWS * WIDE; i++)
        values[i] = (float)(i * 7919 % 1009) / 1009.0f - 0.5f;
    good = good && !dt_program_write(p, x, values, sizeof values) &&
           !dt_program_run(p, NULL, NULL) && !dt_store_hash(store, hash);
    *sums = 0;
    for (uint32_t i = 0; good && i < p->code->list.launch_count; i++)
        *sums += p->code->list.launches[i].kernel == DTI_K_PRODUCT_SUM;
    dt_ctx_destroy(ctx);
    return good;
}

TEST(a_software_device_computes_chunks_of_a_product_in_sequence_with_the_bits_of_a_gpu) {
    uint64_t processor, gpu;
    int none, some;
    if (!vulkan_device_count())
        SKIP("no Vulkan driver");
    REQUIRE(chunks_step(DT_DEVICE_SOFTWARE, &processor, &none));
    REQUIRE(chunks_step(DT_DEVICE_DISCRETE, &gpu, &some));
    CHECK(none == 0 && some > 0 && processor == gpu);
}

/* ---- Short rows have small workgroups */

static uint32_t sums_local(dti_launch l, uint32_t subgroup) {
    const dti_grid_device gpu = {
        .invocations_max = 256, .shared_bytes = 16384, .subgroup = subgroup};
    const dti_grid_device software = {.invocations_max = 256, .software = true};
    CHECK(dti_vk_grid_local_of(&l, 0, &software) == 8);
    return dti_vk_grid_local_of(&l, 0, &gpu);
}

TEST(a_workgroup_is_at_most_its_row_and_at_least_a_subgroup) {
    dti_launch l = {.kernel = DTI_K_SOFTMAX};
    const uint32_t cols[] = {1, 31, 33, 128, 65, 132, 129, 260, 5000}; /* some by fours */
    const uint32_t wide[] = {32, 32, 64, 32, 128, 64, 128, 128, 128};
    for (size_t i = 0; i < DTI_COUNT(cols); i++) {
        l.args.rows.cols = cols[i];
        CHECK(sums_local(l, 32) == wide[i] && sums_local(l, 0) == wide[i]);
        CHECK(sums_local(l, 64) == DTI_MAX(wide[i], 64) && sums_local(l, 8) == wide[i]);
    }
    l = (dti_launch){.kernel = DTI_K_NORM_DX};
    l.args.norm.cols = 128; /* by fours */
    CHECK(sums_local(l, 32) == 32);
    l.args.norm.cols = 127;
    CHECK(sums_local(l, 32) == 128);
}

/* A row of `cols`, beside the CPU's: y, or the pair, is close. They begin at `front`, so that rows
 * of whole fours do and do not lie so. */
static void sums_try_rows(vulkan_rig *rig, vulkan_rig *cpu, int kernel, uint32_t cols,
                          uint32_t front, float smoothing) {
    enum { ROWS = 13 };
    const uint32_t n = ROWS * cols + front;
    const bool xent = kernel == DTI_K_XENT || kernel == DTI_K_XENT_GRAD;
    float *x = vulkan_numbers(n, 6, cols), *dy = vulkan_numbers(n, 3, cols + 1);
    float *y[2] = {vulkan_zeros(n + 2 * ROWS), vulkan_zeros(n + 2 * ROWS)};
    const bool weights = kernel == DTI_K_XENT_GRAD && smoothing > 0;
    float *seed = vulkan_numbers(cols + front + 2, 3, 2);
    int32_t target[ROWS];
    for (int i = 0; i < ROWS; i++)
        target[i] = i % 5 == 4 ? -100 : (int32_t)((uint32_t)i * 7 % cols);
    for (int k = 0; k < 2; k++) {
        vulkan_call call = {.launch = {.kernel = (uint16_t)kernel, .items = ROWS}};
        call.launch.args_bytes = xent ? sizeof(dti_args_xent) : sizeof(dti_args_rows);
        if (xent)
            call.launch.args.xent =
                (dti_args_xent){.rows = ROWS, .classes = cols, .ignore_index = -100};
        else
            call.launch.args.rows = (dti_args_rows){.rows = ROWS, .cols = cols};
        if (xent) {
            call.launch.args.xent.x_offset = front;
            call.launch.args.xent.y_offset = kernel == DTI_K_XENT ? 0 : front;
            call.launch.args.xent.smoothing = smoothing;
            call.launch.args.xent.s_stride = weights;
            call.launch.args.xent.s_offset = weights ? front + cols % 3 : 0;
        } else {
            call.launch.args.rows.x_offset = call.launch.args.rows.y_offset = front;
            call.launch.args.rows.dy_offset = front;
            call.launch.spec[0] = smoothing > 0; /* log */
        }
        const bool grad = kernel == DTI_K_SOFTMAX_GRAD;
        memcpy(call.data,
               xent   ? (float *[4]){x, (float *)target, seed, y[k]}
               : grad ? (float *[4]){x, dy, y[k]}
                      : (float *[4]){x, y[k]},
               sizeof call.data);
        memcpy(call.count,
               xent   ? (uint32_t[4]){n, ROWS, cols + front + 2, n + 2 * ROWS}
               : grad ? (uint32_t[4]){n, n, n}
                      : (uint32_t[4]){n, n},
               sizeof call.count);
        CHECK(vulkan_call_run(k ? cpu : rig, &call));
    }
    const double bound = kernel == DTI_K_SOFTMAX_GRAD ? 1e-3 : 2e-5;
    test_check(!vulkan_differences(y[0], y[1], kernel == DTI_K_XENT ? 2 * ROWS : n, bound),
               __FILE__, __LINE__, "kernel %d, rows of %u from %u on, smoothing %g", kernel, cols,
               front, (double)smoothing);
    free(x), free(dy), free(y[0]), free(y[1]), free(seed);
}

static void sums_try_short(vulkan_rig *rig) {
    static const int kernels[] = {DTI_K_SOFTMAX, DTI_K_SOFTMAX_GRAD, DTI_K_XENT, DTI_K_XENT_GRAD};
    static const uint32_t cols[] = {1,  2,  7,  10,  31,  32,  33,  40,
                                    63, 64, 65, 127, 128, 129, 300, 2052};
    vulkan_rig cpu = {.in = rig->in};
    if (rig->in->options.no_unified)
        return;
    REQUIRE(!dti_cpu_open(&rig->base, 99, &cpu.device));
    const bool quick = vulkan_is_quick(rig);
    for (size_t k = 0; k < DTI_COUNT(kernels); k++) /* what a row keeps in registers, and more */
        for (uint32_t seed = 1; seed <= (quick ? 12u : 3u); seed++) {
            const uint32_t random = seed * 2654435761u >> 16, four = 4 * (1 + random % 160);
            sums_try_rows(rig, &cpu, kernels[k], seed % 4 ? four : four + seed % 3 + 1,
                          seed % 5 == 4   ? 1
                          : seed % 5 == 3 ? 4
                                          : 0,
                          seed % 2 ? 0.1f : 0);
        }
    rig->device->info.kind = DT_DEVICE_DISCRETE; /* workgroups as a GPU has them */
    for (size_t k = 0; k < DTI_COUNT(kernels); k++)
        for (size_t i = 0; i < DTI_COUNT(cols); i += quick ? 1 : 4)
            sums_try_rows(rig, &cpu, kernels[k], cols[i], 0, 0);
    for (uint32_t seed = 1; seed <= (quick ? 20u : 5u); seed++)
        sums_try_dx(rig, &cpu, seed);
    cpu.device->backend->close(cpu.device);
}

TEST(vulkan_rows_in_workgroups_of_their_size_equal_the_cpus) {
    ON_EACH(sums_try_short);
}

/* lavapipe ends an invocation's loops after 65535 rounds, and says nothing. */
TEST(vulkan_sums_of_more_than_half_a_million_elements_are_complete) {
    char device[32];
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
    const int64_t n = 600 * 1024;
    float *ones = vulkan_zeros((uint32_t)n), sum = 0.0f;
    if (!vulkan_device_count())
        SKIP("no Vulkan device");
    snprintf(device, sizeof device, "vulkan:%d", vulkan_quick_device());
    for (int64_t i = 0; i < n; i++)
        ones[i] = 1.0f;
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){0}, &ctx) && !dt_graph_create(ctx, &graph));
    const dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(n));
    const dt_tensor y = dt_sum(x, dt_dims(), false);
    REQUIRE(!dt_store_create(graph, &(dt_store_desc){.device = device}, &store));
    REQUIRE(!dt_program_create(store, &(dt_program_desc){.outputs = {y}}, &program));
    CHECK(!dt_program_write(program, x, ones, (size_t)n * sizeof *ones));
    CHECK(!dt_program_run(program, NULL, NULL) && !dt_program_read(program, y, &sum, sizeof sum));
    CHECK(sum == (float)n);
    dt_ctx_destroy(ctx);
    free(ones);
}

#endif
