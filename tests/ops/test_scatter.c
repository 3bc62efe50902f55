/* The gradient of a table against a plain program of its order of additions. Every device must have
 * its bits. Tables and indices are from a seed, with rows that many, one or no index names.
 * Included by main.c. */

enum { SCATTER_CHUNK = 256 }; /* the shortest, in which a row's entries are added */

typedef struct scatter_case {
    const char *device;
    int64_t rows, cols, n, batch; /* n: indices of all samples */
    uint32_t seed;
    bool computed; /* indices that the host has never seen, some outside the table */
    bool frames;   /* a little at a time */
    int32_t *index;
    float *dy, *out, *chunk;
} scatter_case;

static uint32_t scatter_random(scatter_case *c, uint32_t below) {
    c->seed = c->seed * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(c->seed ^ c->seed >> 15) * 2654435761u >> 8 & 0xffffffffu) *
                          below >>
                      32);
}

/* Of any row, of a few, of one, in order, most of small rows, or of one and any by turns. */
static void scatter_fill(scatter_case *c, uint32_t kind) {
    const uint32_t rows = (uint32_t)c->rows, hot = scatter_random(c, rows);
    for (int64_t i = 0; i < c->n; i++) {
        const uint32_t any = scatter_random(c, rows);
        const uint32_t few = scatter_random(c, DTI_MIN(rows, 3)), turn = scatter_random(c, 2);
        const uint32_t of[] = {any, few, hot, (uint32_t)(i % c->rows), any % (1 + any / 7), hot};
        c->index[i] = (int32_t)of[kind == 5 && turn ? 0 : kind];
        if (c->computed && scatter_random(c, 9) == 0)
            c->index[i] = turn ? -1 - (int32_t)any : (int32_t)(rows + any);
    }
    for (int64_t i = 0; i < c->n * c->cols; i++)
        c->dy[i] = (float)((int32_t)scatter_random(c, 1u << 24) - (1 << 23)) * 0x1p-20f;
}

static int64_t scatter_chunk(int64_t n) {
    int64_t chunk = SCATTER_CHUNK;
    while (chunk * chunk < n)
        chunk *= 2;
    return chunk;
}

/* Runs of 32 in float; these are added in float, and on the CPU in double. */
static float scatter_total(const float *v, int64_t n, bool cpu) {
    float run = 0, sum = 0;
    double exact = 0;
    for (int64_t i = 0; i < n; i++) {
        run += v[i];
        if (i % 32 == 31) {
            sum += run;
            exact += (double)run;
            run = 0;
        }
    }
    return cpu ? (float)(exact + (double)run) : sum + run;
}

/* Chunks of a row's entries likewise; the CPU adds the first one to the others. */
static float scatter_row(float *v, int64_t n, int64_t chunk, bool cpu) {
    int64_t parts = 0;
    if (n <= chunk)
        return scatter_total(v, n, cpu);
    for (int64_t at = 0; at < n; at += chunk)
        v[parts++] = scatter_total(v + at, n - at < chunk ? n - at : chunk, cpu);
    return cpu ? scatter_total(v + 1, parts - 1, cpu) + v[0] : scatter_total(v, parts, cpu);
}

/* Element by element: its entries in the order of the indices. */
static void scatter_expect(const scatter_case *c, float *table, double *exact) {
    const int64_t chunk = scatter_chunk(c->n);
    const bool cpu = !strncmp(c->device, "cpu", 3);
    float *values = calloc((size_t)c->n + 1, sizeof *values);
    int64_t *next = calloc((size_t)c->n + 1, sizeof *next); /* of the same row; -1: none */
    int64_t *first = calloc((size_t)c->rows + 1, sizeof *first);
    memset(first, 0xff, ((size_t)c->rows + 1) * sizeof *first);
    for (int64_t i = c->n - 1; i >= 0; i--) {
        if (c->index[i] < 0 || c->index[i] >= c->rows)
            continue;
        next[i] = first[c->index[i]];
        first[c->index[i]] = i;
    }
    for (int64_t k = 0; k < c->rows * c->cols; k++) {
        int64_t count = 0;
        for (int64_t i = first[k / c->cols]; i >= 0; i = next[i]) {
            values[count] = c->dy[i * c->cols + k % c->cols];
            exact[k] += (double)values[count++];
        }
        table[k] = scatter_row(values, count, chunk, cpu);
    }
    free(values), free(next), free(first);
}

static dt_tensor scatter_graph(const scatter_case *c, dt_graph *g, dt_tensor in[2]) {
    const int64_t each = c->n / c->batch;
    in[0] = dt_input(g, "dy", DT_F32, dt_dims(each, c->cols));
    in[1] = dt_input(g, "index", c->computed ? DT_F32 : DT_I32, dt_dims(each));
    const dti_attr attr = dti_shape_attr(dt_dims(c->rows, c->cols));
    return dti_append2(DTI_OP_SCATTER_ADD, in[0], c->computed ? dt_cast(in[1], DT_I32) : in[1],
                       &attr);
}

static bool scatter_write(const scatter_case *c, dt_program *program, const dt_tensor in[2]) {
    float *computed = malloc(4 * (size_t)c->n + 4);
    for (int64_t i = 0; i < c->n; i++)
        computed[i] = (float)c->index[i];
    const void *index = c->computed ? (const void *)computed : c->index;
    const bool good = !dt_program_write(program, in[0], c->dy, 4 * (size_t)(c->n * c->cols)) &&
                      !dt_program_write(program, in[1], index, 4 * (size_t)c->n);
    free(computed);
    return good;
}

static bool scatter_step(const scatter_case *c, dt_program *program) {
    dt_step_state state = DT_STEP_RUNNING;
    if (!c->frames)
        return !dt_program_run(program, NULL, NULL);
    bool good = !dt_program_begin(program, NULL);
    while (good && state != DT_STEP_DONE)
        good = !dt_program_advance_for(program, 0.02, &state);
    return good && !dt_program_end(program, NULL);
}

static bool scatter_run(const scatter_case *c, dt_ctx *ctx) {
    dt_graph *g = NULL;
    dt_store *store = NULL;
    dt_program *program = NULL;
    dt_tensor in[2];
    bool good = !dt_graph_create(ctx, &g);
    const dt_tensor y = scatter_graph(c, g, in);
    good = good && !dt_store_create(g, &(dt_store_desc){.device = c->device}, &store) &&
           !dt_program_create(store, &(dt_program_desc){.batch = c->batch, .outputs = {y}},
                              &program) &&
           scatter_write(c, program, in) && scatter_step(c, program) &&
           !dt_program_read(program, y, c->out, 4 * (size_t)(c->rows * c->cols));
    dt_program_destroy(program);
    dt_store_destroy(store);
    dt_graph_destroy(g);
    return good;
}

static void scatter_check(scatter_case *c, dt_ctx *ctx, uint32_t kind) {
    const size_t elements = (size_t)(c->rows * c->cols);
    float *want = calloc(elements + 1, sizeof *want);
    double *exact = calloc(elements + 1, sizeof *exact), worst = 0;
    c->index = malloc(4 * (size_t)c->n + 4);
    c->dy = malloc(4 * (size_t)(c->n * c->cols) + 4);
    c->out = malloc(4 * elements + 4);
    memset(c->out, 0xff, 4 * elements);
    scatter_fill(c, kind);
    scatter_expect(c, want, exact);
    const bool ran = scatter_run(c, ctx);
    size_t wrong = 0;
    for (size_t i = 0; ran && i < elements; i++) {
        wrong += memcmp(&want[i], &c->out[i], 4) != 0;
        worst = fmax(worst, fabs((double)c->out[i] - exact[i]));
    }
    test_check(ran && !wrong && worst <= 1e-6 * (double)c->n, __FILE__, __LINE__,
               "%s: %d rows of %d, %d indices of kind %u: %zu wrong, by up to %g; %s", c->device,
               (int)c->rows, (int)c->cols, (int)c->n, kind, wrong, worst, dt_ctx_error(ctx));
    free(want), free(exact), free(c->index), free(c->dy), free(c->out);
}

static void scatter_on(const char *device, int threads) {
    static const int64_t rows[] = {1, 2, 5, 65, 300, 3001}, cols[] = {1, 3, 4, 17, 64},
                         n[] = {1, 255, 256, 257, 511, 512, 1000, 4096, 4097, 9000};
    dt_ctx *ctx = NULL;
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.threads = threads}, &ctx));
    const uint32_t seeds = strcmp(device, "cpu") ? 30 : 60;
    for (uint32_t seed = 1; seed <= seeds; seed++) {
        scatter_case c = {.device = device,
                          .seed = seed * 977u,
                          .computed = seed % 3 == 0,
                          .frames = seed % 4 == 0};
        c.rows = rows[scatter_random(&c, DTI_COUNT(rows))];
        c.cols = cols[scatter_random(&c, DTI_COUNT(cols))];
        c.n = n[seed % DTI_COUNT(n)];
        c.batch = c.n % 2 ? 1 : 2;
        scatter_check(&c, ctx, seed % 6);
    }
    /* longer chunks, and on the CPU two runs to merge */
    scatter_case large = {.device = device, .rows = 70000, .cols = 2, .n = 70000, .batch = 10};
    for (uint32_t kind = 0; kind < 6; kind += 2)
        scatter_check(&large, ctx, kind);
    dt_ctx_destroy(ctx);
}

TEST(an_embedding_gradient_adds_its_rows_in_a_fixed_order_on_the_cpu) {
    scatter_on("cpu", 1);
    scatter_on("cpu", 3);
}

#ifndef DT_NO_VULKAN
TEST(an_embedding_gradient_adds_its_rows_in_a_fixed_order_on_vulkan) {
    vulkan_rig rig;
    if (!vulkan_rig_open(&rig, 0, (dti_vk_options){0}))
        SKIP("no Vulkan device");
    vulkan_rig_close(&rig);
    char device[16];
    snprintf(device, sizeof device, "vulkan:%d", vulkan_quick_device());
    scatter_on(device, 1);
}
#endif

/* ---- replicas */

enum { SCATTER_SAMPLES = 64, SCATTER_EACH = 40, SCATTER_BATCH_SLICES = 8 };

/* A table whose gradient in a batch slice is of 320 indices, nearly
 * all of one row. */
static uint64_t scatter_train(const char *devices) {
    static int32_t index[SCATTER_SAMPLES * SCATTER_EACH], target[SCATTER_SAMPLES];
    scatter_case c = {.seed = 5};
    dt_ctx *ctx = NULL;
    dt_graph *g = NULL;
    dt_trainer *t = NULL;
    uint64_t hash = 0;
    for (int i = 0; i < SCATTER_SAMPLES * SCATTER_EACH; i++)
        index[i] = scatter_random(&c, 9) ? 7 : (int32_t)scatter_random(&c, 50);
    for (int i = 0; i < SCATTER_SAMPLES; i++)
        target[i] = (int32_t)scatter_random(&c, 5);
    CHECK(!dt_ctx_create(NULL, &ctx) && !dt_graph_create(ctx, &g));
    dt_tensor x = dt_input(g, "x", DT_I32, dt_dims(SCATTER_EACH)),
              to = dt_input(g, "t", DT_I32, dt_dims());
    dt_tensor h = dt_flatten(dt_tanh(dt_nn_embedding(x, "table", 50, 6)));
    const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM,
                                .lr = 0.01,
                                .clip_norm = 1.0,
                                .groups = {{.params = "table*", .sparse = true}}};
    const dt_trainer_desc d = {
        .loss = dt_cross_entropy(dt_nn_linear(h, "out", 5), to, NULL),
        .optim = &adam,
        .seed = 3,
        .batch = SCATTER_SAMPLES,
        .devices = devices,
        .parallel.batch_slices = SCATTER_BATCH_SLICES,
        .data = {.rows = SCATTER_SAMPLES,
                 .columns = {{.input = x, .data = index, .dtype = DT_I32},
                             {.input = to, .data = target, .dtype = DT_I32}}}};
    bool good = !dt_trainer_create(g, &d, &t);
    for (int i = 0; i < 3 && good; i++)
        good = !dt_trainer_step(t, NULL);
    good = good && !dt_store_state_hash(dt_trainer_store(t), &hash);
    test_check(good, __FILE__, __LINE__, "%s: %s", devices, dt_ctx_error(ctx));
    dt_ctx_destroy(ctx);
    return hash;
}

TEST(replicas_train_a_table_with_one_frequent_row_to_the_same_bits) {
    const uint64_t one = scatter_train("cpu");
    CHECK(one && one == scatter_train("cpu:2") && one == scatter_train("cpu:4") &&
          one == scatter_train("cpu:8"));
#ifndef DT_NO_VULKAN
    vulkan_rig rig;
    if (!vulkan_rig_open(&rig, 0, (dti_vk_options){0}))
        return;
    vulkan_rig_close(&rig);
    char devices[2][32];
    const int quick = vulkan_quick_device();
    snprintf(devices[0], sizeof devices[0], "vulkan:%d", quick);
    snprintf(devices[1], sizeof devices[1], "vulkan:%d,vulkan:%d", quick, quick);
    const uint64_t on_device = scatter_train(devices[0]);
    CHECK(on_device && on_device == scatter_train(devices[1]));
#endif
}

/* ---- rows that are left alone */

enum { LAZY_ROWS = 700, LAZY_NAMED = 5, LAZY_STEPS = 4 };

typedef struct lazy_twin { /* of two, the same but that one is lazy */
    dt_graph *graph;
    dt_tensor x;
    dt_store *store;
    dt_program *program;
    float *values[4], *before[4]; /* the table and its moments */
} lazy_twin;

static bool lazy_make(lazy_twin *l, dt_ctx *ctx, const char *device, dt_shape table,
                      const dt_optim_desc *optim) {
    bool good = !dt_graph_create(ctx, &l->graph);
    l->x = dt_input(l->graph, "x", DT_I32, dt_dims(LAZY_NAMED));
    dt_tensor y = dt_embedding(
        dt_param(l->graph, "table", table, (dt_init){.kind = DT_INIT_UNIFORM, .a = -1, .b = 1}),
        l->x);
    dt_tensor other = dt_param(l->graph, "other", dt_dims(table.dim[1]),
                               (dt_init){.kind = DT_INIT_CONSTANT, .a = 1});
    const dt_tensor loss = dt_mean_loss(dt_square(dt_mul(y, other)));
    const dt_program_desc d = {.loss = loss, .batch = 2, .optim = optim};
    return good &&
           !dt_store_create(l->graph, &(dt_store_desc){.device = device, .seed = 7}, &l->store) &&
           !dt_program_create(l->store, &d, &l->program);
}

static dt_value_kind lazy_kind(int i) {
    return i ? (dt_value_kind)(DT_VALUE_MOMENT1 + i - 1) : DT_VALUE_PARAM;
}

static bool lazy_read(const lazy_twin *l, int moments, size_t bytes, float *const to[4]) {
    bool good = true;
    for (int i = 0; i <= moments; i++)
        good = !dt_store_read(l->store, 0, lazy_kind(i), to[i], bytes) && good;
    return good;
}

/* A step of both from the values of the lazy one: rows that are named get the dense one's bits. */
static bool lazy_step(lazy_twin twin[2], int moments, int64_t cols, const int32_t *index) {
    const size_t bytes = 4 * LAZY_ROWS * (size_t)cols, row = 4 * (size_t)cols;
    bool good = lazy_read(&twin[0], moments, bytes, twin[0].before), named[LAZY_ROWS] = {0};
    for (int i = 0; i <= moments; i++)
        good = !dt_store_write(twin[1].store, 0, lazy_kind(i), twin[0].before[i], bytes) && good;
    for (int i = 0; i < 2 * LAZY_NAMED; i++)
        named[index[i]] = true;
    for (int k = 0; k < 2; k++)
        good = !dt_program_write(twin[k].program, twin[k].x, index, 8 * LAZY_NAMED) &&
               !dt_program_run(twin[k].program, NULL, NULL) &&
               lazy_read(&twin[k], moments, bytes, twin[k].values) && good;
    for (int i = 0; i <= moments; i++)
        for (size_t r = 0; r < LAZY_ROWS; r++) {
            const char *want = (const char *)(named[r] ? twin[1].values[i] : twin[0].before[i]);
            good = !memcmp(want + r * row, (const char *)twin[0].values[i] + r * row, row) && good;
        }
    /* the dense one has changed some other row: it decays, or its moments do */
    return good && (moments == 0 || memcmp(twin[0].values[1], twin[1].values[1], bytes));
}

static void lazy_train(dt_ctx *ctx, const char *device, dt_optim_desc dense, int moments,
                       int64_t cols) {
    dt_optim_desc lazy = dense;
    lazy.groups[0] = (dt_optim_group){.params = "table", .sparse = true};
    lazy_twin twin[2] = {{0}, {0}};
    bool good = true;
    for (int k = 0; k < 2; k++) {
        good =
            lazy_make(&twin[k], ctx, device, dt_dims(LAZY_ROWS, cols), k ? &dense : &lazy) && good;
        for (int i = 0; i < 4; i++) {
            twin[k].values[i] = malloc(4 * LAZY_ROWS * (size_t)cols);
            twin[k].before[i] = malloc(4 * LAZY_ROWS * (size_t)cols);
        }
    }
    scatter_case c = {.seed = (uint32_t)cols};
    for (int step = 0; step < LAZY_STEPS && good; step++) {
        int32_t index[2 * LAZY_NAMED];
        for (int i = 0; i < 2 * LAZY_NAMED; i++)
            index[i] = i ? (int32_t)scatter_random(&c, LAZY_ROWS) : LAZY_ROWS - 1;
        /* at first there are no moments that could differ */
        good = lazy_step(twin, step ? moments : 0, cols, index);
    }
    test_check(good, __FILE__, __LINE__, "%s, optimizer %d, rows of %d: %s", device, dense.kind,
               (int)cols, dt_ctx_error(ctx));
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 4; i++)
            free(twin[k].values[i]), free(twin[k].before[i]);
        dt_program_destroy(twin[k].program);
        dt_store_destroy(twin[k].store);
        dt_graph_destroy(twin[k].graph);
    }
}

static void lazy_on(const char *device) {
    static const struct {
        int64_t cols;
        int moments;
        dt_optim_desc optim;
    } cases[] = {{3, 1, {.kind = DT_OPTIM_SGD, .lr = 0.1, .momentum = 0.9}},
                 {300, 2, {.lr = 0.1, .clip_norm = 0.01}},
                 {64, 3, {.kind = DT_OPTIM_AMSGRAD, .weight_decay = 0.1}},
                 {1, 2, {.kind = DT_OPTIM_ADAM, .clip_value = 1e-3}},
                 {300, 0, {.kind = DT_OPTIM_SGD, .lr = 0.1, .weight_decay = 0.1}},
                 {64, 0, {.kind = DT_OPTIM_SGD, .lr = 0.1}}};
    dt_ctx *ctx = NULL;
    REQUIRE(!dt_ctx_create(NULL, &ctx));
    for (size_t i = 0; i < (strcmp(device, "cpu") ? 2 : DTI_COUNT(cases)); i++)
        lazy_train(ctx, device, cases[i].optim, cases[i].moments, cases[i].cols);
    dt_ctx_destroy(ctx);
}

TEST(a_lazy_optimizer_changes_no_rows_that_no_index_names) {
    lazy_on("cpu");
}

#ifndef DT_NO_VULKAN
TEST(a_lazy_optimizer_changes_no_rows_without_a_gradient_on_vulkan) {
    vulkan_rig rig;
    if (!vulkan_rig_open(&rig, 0, (dti_vk_options){0}))
        SKIP("no Vulkan device");
    vulkan_rig_close(&rig);
    char device[16];
    snprintf(device, sizeof device, "vulkan:%d", vulkan_quick_device());
    lazy_on(device);
}
#endif

TEST(a_lazy_group_of_rows_that_are_too_long_is_refused) {
    dt_ctx *ctx = NULL;
    lazy_twin l = {0};
    const dt_optim_desc lazy = {.groups = {{.params = "table", .sparse = true}}};
    const dt_optim_desc nameless = {.groups = {{.sparse = true}}};
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    CHECK(!lazy_make(&l, ctx, "cpu", dt_dims(9, DTI_TABLE_COLS_MAX + 1), &lazy));
    CHECK_CONTAINS(dt_ctx_error(ctx), ".groups[0].sparse: rows of 'table' have 16385 elements");
    CHECK(!lazy_make(&l, ctx, "cpu", dt_dims(9, 2), &nameless));
    CHECK_CONTAINS(dt_ctx_error(ctx), ".groups[0] has settings, but no .params");
    dt_ctx_destroy(ctx);
}
