/* Gradients of tables of which only touched rows are written. They are compared with the same
 * programs with .accumulate, which write and read all of them. Values, moments, gradients and
 * reports have the same bits, even if a store is loaded or copied between. Included by main.c. */

enum {
    SPARSE_STEPS = 16,
    SPARSE_TWICE_ROWS = 3000, /* a lazy table with two readers */
    SPARSE_TWICE_COLS = 24,
    SPARSE_TWICE = 40,
    SPARSE_BATCH = 2,
    SPARSE_LARGER = 3
};

typedef enum sparse_event {
    SPARSE_RUN,
    SPARSE_RUN_LARGER, /* another program of the store */
    SPARSE_FRAMES,
    SPARSE_AHEAD,     /* two steps under way */
    SPARSE_CANCELLED, /* after some of the step, and then one that is not */
    SPARSE_DENSE,     /* a program that writes all of the gradient */
    SPARSE_GRADIENTS, /* one without an optimizer */
    SPARSE_NAN,       /* a step that is refused */
    SPARSE_HUGE,      /* perhaps an update after it would overflow */
    SPARSE_WRITE,     /* the host writes to the gradient, the weights or the moments */
    SPARSE_RESET,
    SPARSE_EVENTS
} sparse_event;

typedef struct sparse_case {
    const char *device;
    int64_t rows, cols, list; /* of the first table; list: indices of a sample */
    uint32_t seed;
    bool no_check;
    dt_optim_desc optim;
} sparse_case;

typedef struct sparse_twin {
    const sparse_case *c;
    bool dense;
    dt_graph *graph;
    dt_tensor x, twice, scale;
    dt_store *store;
    dt_program *run, *larger, *all, *gradients;
    dt_report report;
    dt_result result;
    bool over;
} sparse_twin;

static uint32_t sparse_random(uint32_t *seed, uint32_t below) {
    *seed = *seed * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(*seed ^ *seed >> 15) * 2654435761u >> 8 & 0xffffffffu) % below;
}

/* Where `scale` is 0 a row with entries has no gradient. */
static void sparse_losses(sparse_twin *t, dt_loss losses[2]) {
    const sparse_case *c = t->c;
    const dt_init init = {.kind = DT_INIT_UNIFORM, .a = -1, .b = 1};
    const dt_init ones = {.kind = DT_INIT_CONSTANT, .a = 1};
    dt_graph *g = t->graph;
    t->x = dt_input(g, "x", DT_I32, dt_dims(c->list));
    t->twice = dt_input(g, "twice", DT_I32, dt_dims(SPARSE_TWICE));
    t->scale = dt_input(g, "scale", DT_F32, dt_dims(c->list, 1));
    dt_tensor a = dt_embedding(dt_param(g, "lazy.a", dt_dims(c->rows, c->cols), init), t->x);
    dt_tensor b = dt_param(g, "lazy.b", dt_dims(SPARSE_TWICE_ROWS, SPARSE_TWICE_COLS), init);
    dt_tensor w = dt_param(g, "w", dt_dims(c->cols), ones);
    b = dt_mul(dt_embedding(b, dt_slice(t->twice, 0, 0, SPARSE_TWICE / 2)),
               dt_embedding(b, dt_slice(t->twice, 0, SPARSE_TWICE / 2, SPARSE_TWICE / 2)));
    losses[0].term = dt_mean_loss(dt_square(dt_mul(dt_mul(a, w), t->scale)));
    losses[1].term = dt_mean_loss(b);
}

static bool sparse_program(const sparse_twin *t, dt_program_desc d, bool dense, dt_program **out) {
    d.accumulate = t->dense || dense;
    d.no_check = t->c->no_check;
    return !dt_program_create(t->store, &d, out);
}

static bool sparse_open(sparse_twin *t, dt_ctx *ctx) {
    dt_program_desc d = {.batch = SPARSE_BATCH, .optim = &t->c->optim, .in_flight = 2};
    bool good = !dt_graph_create(ctx, &t->graph);
    sparse_losses(t, d.losses);
    good = good &&
           !dt_store_create(t->graph, &(dt_store_desc){.device = t->c->device, .seed = t->c->seed},
                            &t->store) &&
           sparse_program(t, d, false, &t->run) && sparse_program(t, d, true, &t->all);
    d.optim = NULL;
    d.gradients = true;
    d.in_flight = 1;
    good = good && sparse_program(t, d, false, &t->gradients);
    d.optim = &t->c->optim;
    d.batch = SPARSE_LARGER;
    return good && sparse_program(t, d, false, &t->larger) &&
           t->run->code->sparse[0] == !t->dense && t->larger->code->sparse[0] == !t->dense &&
           !t->run->code->sparse[1] && !t->run->code->sparse[2] && !t->all->code->sparse[0] &&
           !t->gradients->code->sparse[0];
}

static void sparse_close(sparse_twin *t) {
    dt_store_destroy(t->store);
    dt_graph_destroy(t->graph);
}

/* ---- a step */

/* Of any row, of the first ones, mostly of one, or in order. */
static bool sparse_inputs(const sparse_twin *t, dt_program *p, uint32_t seed, float scale) {
    const int batch = (int)p->code->batch;
    const int64_t n = batch * t->c->list, rows = t->c->rows;
    int32_t *x = malloc(4 * (size_t)n), twice[SPARSE_LARGER * SPARSE_TWICE];
    float *s = malloc(4 * (size_t)n);
    const uint32_t kind = sparse_random(&seed, 4), hot = sparse_random(&seed, (uint32_t)rows);
    for (int64_t i = 0; i < n; i++) {
        const uint32_t any = sparse_random(&seed, (uint32_t)rows), some = any % 20;
        const uint32_t of[] = {any, some, any % 7 ? hot : any, (uint32_t)(rows - 1 - i)};
        x[i] = (int32_t)of[kind];
        s[i] = any % 3 ? scale * (float)(int32_t)(any % 64) : 0;
    }
    for (int i = 0; i < batch * SPARSE_TWICE; i++)
        twice[i] = (int32_t)sparse_random(&seed, SPARSE_TWICE_ROWS);
    const bool good = !dt_program_write(p, t->x, x, 4 * (size_t)n) &&
                      !dt_program_write(p, t->scale, s, 4 * (size_t)n) &&
                      !dt_program_write(p, t->twice, twice, 4 * (size_t)(batch * SPARSE_TWICE));
    free(x), free(s);
    return good;
}

/* Some of a step, by milliseconds. */
static bool sparse_some(sparse_twin *t, uint32_t parts, dt_step_state *state) {
    bool good = true;
    for (uint32_t i = 0; i < parts && good && *state != DT_STEP_DONE; i++)
        good = !dt_program_advance_for(t->run, 1e-4, state);
    return good;
}

static bool sparse_frames(sparse_twin *t) {
    dt_step_state state = DT_STEP_READY;
    const bool good = !dt_program_begin(t->run, NULL) && sparse_some(t, UINT32_MAX, &state);
    t->result = good ? dt_program_end(t->run, &t->report) : DT_ERROR_INVALID;
    return good;
}

/* The dense twin has no such step. */
static bool sparse_cancelled(sparse_twin *t, uint32_t seed) {
    dt_step_state state = DT_STEP_READY;
    const uint32_t parts = sparse_random(&seed, 60);
    if (t->dense)
        return true;
    bool good = sparse_inputs(t, t->run, seed + 1, 1) && !dt_program_begin(t->run, NULL);
    for (uint32_t i = 0; i < parts && good && t->run->now->at < t->run->code->commit_segment; i++)
        good = sparse_some(t, 1, &state);
    return good && !dt_program_cancel(t->run, NULL);
}

/* A step may fail after which another was started. Whether that one had to wait, and so whether it
 * runs, depends on the proven bounds. Then the case is over. */
static bool sparse_ahead(sparse_twin *t, uint32_t seed) {
    t->over = dt_program_start(t->run, NULL) || !sparse_inputs(t, t->run, seed + 1, 1) ||
              dt_program_start(t->run, NULL) || dt_program_wait(t->run, NULL) ||
              dt_program_wait(t->run, &t->report);
    t->result = DT_OK;
    return true;
}

static bool sparse_write(sparse_twin *t, uint32_t seed) {
    const size_t n = (size_t)(t->c->rows * t->c->cols);
    float *v = malloc(4 * n);
    const int kind = (int)sparse_random(&seed, 3);
    const uint32_t large = sparse_random(&seed, 3) ? 1u : 1u << 20;
    for (size_t i = 0; i < n; i++)
        v[i] = (float)sparse_random(&seed, 1000) * 1e-3f * (float)large;
    const bool moment = kind != DT_VALUE_MOMENT1 || dti_optim_moments(&t->run->code->optim);
    const bool good = !moment || !dt_store_write(t->store, 0, (dt_value_kind)kind, v, 4 * n);
    free(v);
    return good;
}

/* What comes before a step. */
static bool sparse_before(sparse_twin *t, sparse_event event, uint32_t seed) {
    if (event == SPARSE_CANCELLED)
        return sparse_cancelled(t, seed);
    if (event == SPARSE_WRITE)
        return sparse_write(t, seed);
    if (event == SPARSE_RESET)
        return !dt_store_reset(t->store, seed & 1 ? DT_RESET_ALL : DT_RESET_OPTIM);
    return true;
}

static bool sparse_step(sparse_twin *t, sparse_event event, uint32_t seed) {
    dt_program *p = event == SPARSE_RUN_LARGER  ? t->larger
                    : event == SPARSE_DENSE     ? t->all
                    : event == SPARSE_GRADIENTS ? t->gradients
                                                : t->run;
    const float scale = event == SPARSE_NAN ? (float)NAN : event == SPARSE_HUGE ? 1e17f : 1.0f;
    t->report = (dt_report){0};
    if (!sparse_before(t, event, seed) || !sparse_inputs(t, p, seed, scale))
        return false;
    if (event == SPARSE_FRAMES)
        return sparse_frames(t);
    if (event == SPARSE_AHEAD)
        return sparse_ahead(t, seed);
    t->result = dt_program_run(p, NULL, &t->report);
    return true;
}

/* ---- both */

static bool sparse_same(sparse_twin twin[2], float *const room[2]) {
    const dti_layout *l = &twin[0].store->layout;
    bool same = true;
    for (int i = 0; i < (int)l->param_count; i++) {
        const size_t bytes = 4 * (size_t)l->params[i].elements;
        for (int kind = DT_VALUE_PARAM; kind < DT_VALUE_MOMENT1 + 3; kind++) {
            const int moment = kind - DT_VALUE_MOMENT1;
            if (moment >= (int)dti_optim_moments(&twin[0].run->code->optim))
                continue;
            for (int k = 0; k < 2; k++)
                same =
                    !dt_store_read(twin[k].store, i, (dt_value_kind)kind, room[k], bytes) && same;
            same = same && !memcmp(room[0], room[1], bytes);
        }
    }
    return same && twin[0].result == twin[1].result &&
           !memcmp(&twin[0].report, &twin[1].report, sizeof twin[0].report);
}

static void sparse_check(const sparse_case *c, dt_ctx *ctx) {
    sparse_twin twin[2] = {{.c = c}, {.c = c, .dense = true}};
    const size_t most = (size_t)DTI_MAX(c->rows * c->cols, SPARSE_TWICE_ROWS * SPARSE_TWICE_COLS);
    float *room[2] = {malloc(4 * most), malloc(4 * most)};
    uint32_t seed = c->seed, event = 0;
    int step = 0;
    bool good = sparse_open(&twin[0], ctx) && sparse_open(&twin[1], ctx);
    for (; step < SPARSE_STEPS && good && !twin[0].over && !twin[1].over; step++) {
        /* mostly steps: what words say must hold from one to the next */
        event = sparse_random(&seed, 3) ? SPARSE_RUN : sparse_random(&seed, SPARSE_EVENTS);
        good = sparse_step(&twin[0], (sparse_event)event, seed) &&
               sparse_step(&twin[1], (sparse_event)event, seed) &&
               (twin[0].over || twin[1].over || sparse_same(twin, room));
    }
    test_check(
        good, __FILE__, __LINE__,
        "%s, seed %u, optimizer %d, %d rows of %d, %d indices: step %d, event %u: %d, %d; %s",
        c->device, c->seed, c->optim.kind, (int)c->rows, (int)c->cols, (int)c->list, step, event,
        (int)twin[0].result, (int)twin[1].result, dt_ctx_error(ctx));
    for (int k = 0; k < 2; k++)
        sparse_close(&twin[k]), free(room[k]);
}

/* Rows that share a bit, lie in several blocks, or begin anywhere in one. */
static sparse_case sparse_make(const char *device, uint32_t number) {
    static const dt_optim_desc optims[] = {
        {.lr = 0.1, .clip_norm = 0.5},
        {.kind = DT_OPTIM_SGD, .lr = 0.1, .momentum = 0.9},
        {.kind = DT_OPTIM_AMSGRAD, .weight_decay = 0.1},
        {.kind = DT_OPTIM_ADAM, .clip_value = 1e-3},
        {.kind = DT_OPTIM_SGD, .lr = 0.1, .weight_decay = 0.1, .maximize = true},
        {.kind = DT_OPTIM_ADAGRAD, .average = {.kind = DT_AVERAGE_EMA}},
        {.kind = DT_OPTIM_LION, .lr = 0.01}};
    static const int64_t cols[] = {1, 3, 17, 20, 64, 64, 300, 700}, lists[] = {1, 5, 100, 300};
    uint32_t seed = number * 7919u;
    sparse_case c = {.device = device, .seed = number};
    c.optim = optims[sparse_random(&seed, DTI_COUNT(optims))];
    c.optim.groups[0] = (dt_optim_group){.params = "lazy.*", .sparse = true};
    c.cols = cols[sparse_random(&seed, DTI_COUNT(cols))];
    c.list = lists[sparse_random(&seed, DTI_COUNT(lists))];
    c.rows = (DTI_SCATTER_SPARSE + c.cols - 1) / c.cols + sparse_random(&seed, 70);
    c.list = DTI_MIN(c.list, c.rows / 2 / SPARSE_LARGER);
    c.no_check = sparse_random(&seed, 5) == 0;
    return c;
}

static void sparse_on(const char *device, int threads, uint32_t first, uint32_t count) {
    dt_ctx *ctx = NULL;
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.threads = threads}, &ctx));
    for (uint32_t i = first; i < first + count && test_now.failures < 3; i++) {
        const sparse_case c = sparse_make(device, i);
        sparse_check(&c, ctx);
    }
    dt_ctx_destroy(ctx);
}

TEST(sparse_gradients_have_the_bits_of_dense_ones) {
    const uint32_t count = test_is_long() ? 500 : test_takes(1, 1, 2) ? 30 : 8;
    sparse_on("cpu", 1, 1, count);
    sparse_on("cpu", 2, 1000, count / 2);
    sparse_on("cpu", 4, 2000, count / 2);
}

#ifndef DT_NO_VULKAN
TEST(sparse_gradients_have_the_bits_of_dense_ones_on_vulkan) {
    vulkan_rig rig;
    if (!vulkan_rig_open(&rig, 0, (dti_vk_options){0}))
        SKIP("no Vulkan device");
    vulkan_rig_close(&rig);
    char device[16];
    snprintf(device, sizeof device, "vulkan:%d", vulkan_quick_device());
    sparse_on(device, 1, 1, test_is_long() ? 100 : 2);
}
#endif

/* ---- a trainer's lone replica on the CPU, whose steps are cut open */

enum { SPARSE_ROWS = 2000, SPARSE_COLS = 40, SPARSE_SAMPLES = 96, SPARSE_EACH = 5 };

/* lost: no step takes a word for granted. */
static uint64_t sparse_train(bool lost, const char *devices) {
    static int32_t index[SPARSE_SAMPLES * SPARSE_EACH], target[SPARSE_SAMPLES];
    uint32_t seed = 11;
    dt_ctx *ctx = NULL;
    dt_graph *g = NULL;
    dt_trainer *t = NULL;
    uint64_t hash = 0;
    for (int i = 0; i < SPARSE_SAMPLES * SPARSE_EACH; i++)
        index[i] = (int32_t)sparse_random(&seed, i % 3 ? 30 : SPARSE_ROWS);
    for (int i = 0; i < SPARSE_SAMPLES; i++)
        target[i] = (int32_t)sparse_random(&seed, 4);
    CHECK(!dt_ctx_create(NULL, &ctx) && !dt_graph_create(ctx, &g));
    dt_tensor x = dt_input(g, "x", DT_I32, dt_dims(SPARSE_EACH)),
              to = dt_input(g, "t", DT_I32, dt_dims());
    dt_tensor h = dt_flatten(dt_tanh(dt_nn_embedding(x, "table", SPARSE_ROWS, SPARSE_COLS)));
    const dt_optim_desc optim = {.clip_norm = 1.0,
                                 .groups = {{.params = "table*", .sparse = true}}};
    const dt_trainer_desc d = {
        .loss = dt_cross_entropy(dt_nn_linear(h, "out", 4), to, NULL),
        .optim = &optim,
        .seed = 3,
        .batch = 40, /* and a short last one: another program */
        .devices = devices,
        .data = {.rows = SPARSE_SAMPLES,
                 .columns = {{.input = x, .data = index, .dtype = DT_I32},
                             {.input = to, .data = target, .dtype = DT_I32}}}};
    bool good = !dt_trainer_create(g, &d, &t);
    good = good && t->par.replicas[0].full.runs[0].program->code->sparse[0];
    for (int i = 0; i < 12 && good; i++) {
        if (lost)
            dti_store_rows_lost(dt_trainer_store(t));
        good = !dt_trainer_step(t, NULL);
        good = good && (lost || dt_trainer_store(t)->kept[0].rows || dt_trainer_store(t)->running);
    }
    good = good && !dt_store_state_hash(dt_trainer_store(t), &hash);
    test_check(good, __FILE__, __LINE__, "%s: %s", devices, dt_ctx_error(ctx));
    dt_ctx_destroy(ctx);
    return hash;
}

TEST(a_trainer_of_one_replica_writes_only_touched_rows) {
    const uint64_t cpu = sparse_train(false, "cpu");
    CHECK(cpu && cpu == sparse_train(true, "cpu"));
#ifndef DT_NO_VULKAN
    vulkan_rig rig;
    if (!vulkan_rig_open(&rig, 0, (dti_vk_options){0}))
        return;
    vulkan_rig_close(&rig);
    char device[16];
    snprintf(device, sizeof device, "vulkan:%d", vulkan_quick_device());
    const uint64_t there = sparse_train(false, device);
    CHECK(there && there == sparse_train(true, device));
#endif
}

TEST(gradients_with_other_writers_are_dense) {
    dt_ctx *ctx = NULL;
    dt_graph *g = NULL;
    dt_trainer *t = NULL;
    static const int32_t index[4] = {1, 2, 3, 4};
    CHECK(!dt_ctx_create(NULL, &ctx) && !dt_graph_create(ctx, &g));
    dt_tensor x = dt_input(g, "x", DT_I32, dt_dims());
    dt_tensor h = dt_nn_embedding(x, "table", SPARSE_ROWS, SPARSE_COLS);
    const dt_optim_desc optim = {.groups = {{.params = "table*", .sparse = true}}};
    const dt_trainer_desc d = {
        .loss = dt_mean_loss(dt_square(h)),
        .optim = &optim,
        .batch = 4,
        .devices = "cpu:2",
        .data = {.rows = 4, .columns = {{.input = x, .data = index, .dtype = DT_I32}}}};
    CHECK(!dt_trainer_create(g, &d, &t) &&
          !t->par.replicas[0].full.runs[0].program->code->sparse[0] &&
          !t->par.replicas[1].full.runs[0].program->code->sparse[0]);
    dt_ctx_destroy(ctx);
}

/* A row that no step names has the largest weight of all. */
TEST(weights_that_an_update_left_unread_count_in_its_proof) {
    sparse_case c = sparse_make("cpu", 1);
    sparse_twin t = {.c = &c};
    dt_ctx *ctx = NULL;
    c.cols = 64;
    c.rows = 1100;
    c.list = 5;
    c.no_check = false;
    c.optim.kind = DT_OPTIM_SGD;
    CHECK(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) && sparse_open(&t, ctx));
    float *v = calloc(1100 * 64, sizeof *v);
    v[1099 * 64 + 7] = 1e30f;
    CHECK(!dt_store_write(t.store, 0, DT_VALUE_PARAM, v, 1100 * 64 * sizeof *v));
    const int32_t x[SPARSE_BATCH * 5] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    CHECK(sparse_inputs(&t, t.run, 1, 1) && !dt_program_write(t.run, t.x, x, sizeof x));
    for (int i = 0; i < 3; i++)
        CHECK(!dt_program_run(t.run, NULL, NULL) && t.store->largest[0] >= 1e29);
    CHECK(t.run->shown->proven > 0); /* and the last one had no dry pass */
    free(v);
    sparse_close(&t);
    dt_ctx_destroy(ctx);
}
