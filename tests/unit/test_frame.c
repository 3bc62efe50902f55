/* A step by a budget in milliseconds: the same bits in however many parts, in any mix with whole
 * segments; when it can be cancelled, and what else may be called meanwhile. Included by main.c,
 * after test_in_flight.c. */

enum { FRAME_BATCH = 16, FRAME_SIDE = 20, FRAME_IN = 2 * FRAME_SIDE * FRAME_SIDE, FRAME_STEPS = 2 };

typedef struct frame_case {
    dt_ctx *ctx;
    vulkan_log log;
    dt_store *store;
    dt_program *program;
    dt_tensor x, y;
} frame_case;

static bool frame_small; /* few parts, so that each can be looked at */

/* Products and convolutions that are large enough to be cut, and small launches. */
static dt_tensor frame_net(frame_case *c, dt_graph *g) {
    c->x = dt_input(g, "x", DT_F32, dt_dims(2, FRAME_SIDE, FRAME_SIDE));
    if (frame_small) {
        dt_tensor a = dt_nn_batch_norm(dt_nn_linear(dt_flatten(c->x), "a", 12), "n", NULL);
        c->y = dt_nn_linear(dt_dropout(dt_relu(a), 0.25f), "d", 4);
        return dt_mean_loss(dt_mul(c->y, c->y));
    }
    dt_tensor h = dt_relu(dt_nn_conv2d(c->x, "a", 16, 3, NULL));
    h = dt_relu(dt_nn_batch_norm(dt_nn_conv2d(h, "b", 16, 3, NULL), "n", NULL));
    h = dt_dropout(dt_relu(dt_nn_linear(dt_flatten(h), "c", 96)), 0.25f);
    c->y = dt_nn_linear(h, "d", 4);
    return dt_mean_loss(dt_mul(c->y, c->y));
}

static bool frame_validates; /* which costs a multiple of the time */

static bool frame_open(frame_case *c, const char *device, int threads, bool host_gradient) {
    dt_graph *g;
    const bool cpu = !strcmp(device, "cpu");
    *c = (frame_case){0};
    dt_ctx_desc d = {.logger = {vulkan_listen, &c->log},
                     .no_vulkan = cpu,
                     .vulkan = stub_vulkan_case,
                     .validation = !cpu && frame_validates,
                     .threads = threads};
    if (dt_ctx_create(&d, &c->ctx) || dt_graph_create(c->ctx, &g))
        return false;
    const dt_optim_desc optim = {.kind = DT_OPTIM_ADAM, .lr = 0.01, .clip_norm = 1.0};
    const dt_tensor loss = frame_net(c, g);
    dt_program_desc p = {.outputs = {c->y}, .batch = FRAME_BATCH, .optim = &optim};
    if (host_gradient)
        p.host_gradients[0] = c->y;
    else
        p.loss = loss;
    return !dt_store_create(g, &(dt_store_desc){.device = device}, &c->store) &&
           !dt_program_create(c->store, &p, &c->program);
}

static dt_result frame_write(frame_case *c, int step) {
    static float x[FRAME_BATCH * FRAME_IN];
    for (int i = 0; i < FRAME_BATCH * FRAME_IN; i++)
        x[i] = (float)dti_normal(7, (uint64_t)(step * 10000 + i), 3);
    return dt_program_write(c->program, c->x, x, sizeof x);
}

typedef struct frame_result {
    double loss[FRAME_STEPS], norm[FRAME_STEPS];
    float y[FRAME_STEPS][FRAME_BATCH * 4];
    uint64_t hash[FRAME_STEPS];
} frame_result;

static void frame_note(frame_case *c, frame_result *r, int step, const dt_report *report) {
    r->loss[step] = report->loss;
    r->norm[step] = report->gradient_norm;
    CHECK(!dt_program_read(c->program, c->y, r->y[step], sizeof r->y[step]));
    CHECK(!dt_store_state_hash(c->store, &r->hash[step]));
}

/* A GPU: most of this net's launches are shorter than any part. */
static bool frame_is_fast(const frame_case *c) {
    const dt_device_kind kind = c->store->device->info.kind;
    return kind != DT_DEVICE_CPU && kind != DT_DEVICE_SOFTWARE;
}

/* How many calls started something. ms 0: a mix of budgets and of whole segments. */
static int frame_step(frame_case *c, double ms, uint64_t seed) {
    dt_step_state state = DT_STEP_RUNNING;
    int parts = 0;
    CHECK(!dt_program_begin(c->program, NULL));
    while (state != DT_STEP_DONE) {
        static const double mixed[] = {1e-6, 0.05, 0.3, 2};
        const uint32_t draw = (uint32_t)dti_hash64(seed, &parts, sizeof parts);
        const uint32_t at = c->program->now->at;
        const dti_exec_cursor cursor = c->program->now->cursor;
        if (ms <= 0 && draw % 8 == 7)
            CHECK(!dt_program_advance(c->program, &state));
        else
            CHECK(!dt_program_advance_for(c->program, ms > 0 ? ms : mixed[draw % 4], &state));
        parts += at != c->program->now->at || cursor.launch != c->program->now->cursor.launch ||
                 cursor.part != c->program->now->cursor.part;
    }
    return parts;
}

static void frame_steps(frame_case *c, double ms, frame_result *r, int *parts) {
    dt_report report;
    for (int i = 0; i < FRAME_STEPS; i++) {
        CHECK(!frame_write(c, i));
        *parts += frame_step(c, ms, (uint64_t)i);
        CHECK(!dt_program_end(c->program, &report) && report.step == (uint64_t)i + 1);
        frame_note(c, r, i, &report);
    }
}

static void frame_same_bits(const char *device, int threads) {
    static const double budgets[] = {1e-6, 0.2, 0};
    static frame_result want, got;
    dt_report report;
    frame_case c;
    memset(&want, 0, sizeof want);
    REQUIRE(frame_open(&c, device, threads, false));
    for (int i = 0; i < FRAME_STEPS; i++) {
        CHECK(!frame_write(&c, i) && !dt_program_run(c.program, NULL, &report));
        frame_note(&c, &want, i, &report);
    }
    dt_ctx_destroy(c.ctx);
    for (size_t i = 0; i < DTI_COUNT(budgets); i += strcmp(device, "cpu") ? 2 : 1) {
        int parts = 0;
        dt_program_info info;
        memset(&got, 0, sizeof got);
        frame_validates = i == 2;
        REQUIRE(frame_open(&c, device, threads, false));
        frame_validates = false;
        frame_steps(&c, budgets[i], &got, &parts);
        CHECK(!memcmp(&want, &got, sizeof want));
        CHECK(!c.log.validation);
        dt_program_get_info(c.program, &info);
        if (i == 0) /* launches too are cut; few of them where a device is fast */
            CHECK(parts > FRAME_STEPS * (info.launches + (frame_is_fast(&c) ? 0 : 20)));
        dt_ctx_destroy(c.ctx);
    }
}

TEST(a_step_in_parts_of_any_size_has_the_bits_of_a_whole_one) {
    frame_same_bits("cpu", 1);
    frame_same_bits("cpu", 3);
}

TEST(a_step_in_parts_of_any_size_has_the_bits_of_a_whole_one_on_vulkan) {
    if (!ahead_has_vulkan())
        SKIP("no Vulkan device");
    frame_same_bits("vulkan:0", 2);
}

/* Of a program that only computes outputs; parts: how many there were. */
static void frame_forward(const char *device, float want[], float got[], size_t bytes, int *parts) {
    static float x[FRAME_BATCH * FRAME_IN];
    dt_program *forward;
    frame_case c;
    REQUIRE(frame_open(&c, device, 2, false));
    const dt_program_desc desc = {.outputs = {c.y}, .batch = FRAME_BATCH};
    REQUIRE(!dt_program_create(c.store, &desc, &forward));
    for (int i = 0; i < FRAME_BATCH * FRAME_IN; i++)
        x[i] = (float)dti_normal(7, (uint64_t)i, 3);
    CHECK(!dt_program_write(forward, c.x, x, sizeof x) && !dt_program_run(forward, NULL, NULL));
    CHECK(!dt_program_read(forward, c.y, want, bytes));
    x[0] += 1; /* so that a value that is read before differs from one that is read now */
    CHECK(!dt_program_write(forward, c.x, x, sizeof x) && !dt_program_run(forward, NULL, NULL));
    x[0] -= 1;
    CHECK(!dt_program_write(forward, c.x, x, sizeof x));
    c.program = forward;
    *parts = frame_step(&c, 1e-6, 1);
    CHECK(!dt_program_end(forward, NULL) && !dt_program_read(forward, c.y, got, bytes));
    dt_ctx_destroy(c.ctx);
}

TEST(a_program_that_only_computes_outputs_keeps_a_budget_too) {
    static const char *const devices[] = {"cpu", "vulkan:0"};
    for (int i = 0; i < (ahead_has_vulkan() ? 2 : 1); i++) {
        float want[FRAME_BATCH * 4] = {0}, got[FRAME_BATCH * 4] = {0};
        int parts = 0;
        frame_forward(devices[i], want, got, sizeof want, &parts);
        CHECK(!memcmp(want, got, sizeof want) && parts > 10);
        if (parts <= 10)
            printf("%s: %d parts\n", devices[i], parts);
    }
}

/* ---- what launches take is learned from the clock */

/* The least time of five steps, or `least`. */
static uint64_t frame_least(frame_case *c, uint64_t least) {
    for (int k = 0; k < 5; k++) {
        CHECK(!frame_write(c, k));
        const uint64_t start = dti_now_ns();
        CHECK(!dt_program_run(c->program, NULL, NULL));
        least = DTI_MIN(least, dti_now_ns() - start);
    }
    return least;
}

TEST(launch_times_on_the_cpu_are_learned_from_any_estimate) {
    static const double expected[] = {1e-9, 5};
    for (size_t i = 0; i < DTI_COUNT(expected); i++) {
        frame_case c;
        double sum = 0;
        REQUIRE(frame_open(&c, "cpu", 1, false));
        const uint64_t before = frame_least(&c, UINT64_MAX);
        dti_cpu_exec *x = (dti_cpu_exec *)(void *)c.program->now->exec;
        const uint32_t count = c.program->code->list.launch_count;
        for (uint32_t k = 0; k < count; k++)
            x->ms[k] = expected[i];
        for (int k = 0; k < 12; k++) {
            CHECK(!frame_write(&c, k));
            frame_step(&c, 2, 1);
            CHECK(!dt_program_end(c.program, NULL));
        }
        for (uint32_t k = 0; k < count; k++)
            sum += dti_cpu_items(&x->tasks[k]) ? x->ms[k] : 0;
        /* others work on this machine, before or after */
        const double ms = 1e-6 * (double)frame_least(&c, before);
        if (sum < 0.3 * ms || sum > 10 * ms)
            printf("expected %g: learned %.3f ms of %.3f\n", expected[i], sum, ms);
        CHECK(sum > 0.3 * ms && sum < 10 * ms);
        dt_ctx_destroy(c.ctx);
    }
}

#ifndef DT_NO_VULKAN
/* Every launch takes 2 ms. */
static dti_VkResult DTI_VKAPI frame_clock(dti_VkDevice device, dti_VkQueryPool pool, uint32_t first,
                                          uint32_t count, size_t bytes, void *data,
                                          dti_VkDeviceSize stride, dti_VkFlags flags) {
    (void)device, (void)pool, (void)first, (void)bytes, (void)stride, (void)flags;
    for (uint32_t i = 0; i < count; i++)
        ((uint64_t *)data)[i] = i * UINT64_C(2000000);
    return (dti_VkResult)0;
}

TEST(launch_times_on_vulkan_are_learned_from_the_devices_clock) {
    frame_case c;
    const dt_vulkan_desc vulkan = stub_vulkan();
    stub_vulkan_case = &vulkan;
    stub.stamp_bits = 64;
    const bool open = frame_open(&c, "vulkan", 1, false);
    stub.stamp_bits = 0;
    stub_vulkan_case = NULL;
    REQUIRE(open);
    ((dti_vk_device *)c.store->device)->vk.GetQueryPoolResults = frame_clock;
    int parts[3] = {0};
    for (int i = 0; i < 52; i++) {
        const double ms = i && i < 51 ? 500 : 10;
        CHECK(!frame_write(&c, i));
        parts[!i ? 0 : i < 51 ? 1 : 2] = frame_step(&c, ms, 1);
        CHECK(!dt_program_end(c.program, NULL));
    }
    const dti_vk_exec *e = (const dti_vk_exec *)c.program->now->exec;
    int ran = 0;
    for (uint32_t i = 0; i < e->work_count; i++) {
        ran += e->work[i].x > 0;
        CHECK(!e->work[i].x || (e->work[i].ms > 1.8 && e->work[i].ms < 2.2));
    }
    CHECK(parts[0] < 5 && parts[1] < 5);
    CHECK(parts[2] >= ran / 6 && ran > 20);
    if (parts[2] < ran / 6)
        printf("%d, %d and %d parts of %d launches\n", parts[0], parts[1], parts[2], ran);
    dt_ctx_destroy(c.ctx);
}
#endif

/* ---- the end of a step before its end */

/* A store, and another one that is a whole step ahead of it. */
typedef struct frame_pair {
    frame_case c, ahead;
    uint64_t before, after;
    dt_report report; /* of the step between both */
    int committed, abandoned;
} frame_pair;

static void frame_pair_step(frame_pair *p) {
    p->before = p->after;
    CHECK(!frame_write(&p->ahead, 1) && !dt_program_run(p->ahead.program, NULL, &p->report));
    CHECK(!dt_store_state_hash(p->ahead.store, &p->after) && p->after != p->before);
}

static bool frame_pair_open(frame_pair *p, const char *device) {
    frame_small = true;
    const bool open =
        frame_open(&p->c, device, 1, false) && frame_open(&p->ahead, device, 1, false);
    frame_small = false;
    CHECK(open && !dt_store_state_hash(p->ahead.store, &p->after));
    if (open)
        frame_pair_step(p);
    return open;
}

/* Cancels after that number of parts, or segments. False: the step was DONE before. */
static bool frame_cancel_after(frame_pair *p, int parts, bool segments) {
    dt_program *program = p->c.program;
    dt_step_state state = DT_STEP_READY;
    dt_report report = {.loss = 7, .skipped = true};
    uint64_t hash = 0;
    int made = 0;
    CHECK(!frame_write(&p->c, 1) && !dt_program_begin(program, NULL));
    while (made < parts && state != DT_STEP_DONE) {
        made++;
        CHECK(!dti_drive_wait(program)); /* a part each time */
        CHECK(!(segments ? dt_program_advance(program, &state)
                         : dt_program_advance_for(program, 1e-6, &state)));
    }
    if (program->now->at != program->now->end)
        CHECK(dt_program_end(program, NULL) == DT_ERROR_INVALID);
    const bool commits = dti_step_commits(program);
    CHECK(!dt_program_cancel(program, made % 3 ? &report : NULL) && !dti_drive_is_open(program));
    CHECK(!dt_store_state_hash(p->c.store, &hash) && hash == (commits ? p->after : p->before));
    if (made % 3) {
        CHECK(report.committed == commits && report.step == p->report.step && !report.skipped);
        CHECK(!memcmp(&report.loss, commits ? &p->report.loss : &(double){0}, sizeof(double)));
    }
    p->committed += commits;
    p->abandoned += !commits;
    if (commits)
        frame_pair_step(p);
    return state != DT_STEP_DONE;
}

static void frame_cancels(const char *device) {
    frame_pair p = {.committed = 0};
    REQUIRE(frame_pair_open(&p, device));
    for (int parts = 0; frame_cancel_after(&p, parts, true); parts++)
        continue;
    CHECK(p.committed > 0 && p.abandoned > 2);
    p.committed = p.abandoned = 0;
    for (int parts = 0; frame_cancel_after(&p, parts, false); parts++)
        continue;
    const bool few = frame_is_fast(&p.c);
    test_check(p.committed > (few ? 1 : 3) && p.abandoned > (few ? 2 : 20), __FILE__, __LINE__,
               "%s: %d committed, %d abandoned", device, p.committed, p.abandoned);
    dt_ctx_destroy(p.c.ctx);
    dt_ctx_destroy(p.ahead.ctx);
}

TEST(a_cancelled_step_is_dropped_or_committed_whole_as_its_report_says) {
    frame_cancels("cpu");
    if (ahead_has_vulkan())
        frame_cancels("vulkan:0");
}

TEST(a_step_whose_program_ends_is_committed_once_its_commit_has_begun) {
    static const char *const devices[] = {"cpu", "vulkan:0"};
    for (int i = 0; i < (ahead_has_vulkan() ? 2 : 1); i++) {
        frame_pair p = {.committed = 0};
        dt_step_state state = DT_STEP_READY;
        uint64_t hash = 0;
        REQUIRE(frame_pair_open(&p, devices[i]));
        CHECK(!frame_write(&p.c, 1) && !dt_program_begin(p.c.program, NULL));
        while (!dti_step_commits(p.c.program))
            CHECK(!dt_program_advance_for(p.c.program, 1e-6, &state));
        if (state != DT_STEP_DONE || !frame_is_fast(&p.c)) { /* one part may be all of the commit */
            CHECK(dt_program_end(p.c.program, NULL) == DT_ERROR_INVALID);
            CHECK_CONTAINS(dt_ctx_error(p.c.ctx), "has not been finished");
        }
        dt_program_destroy(p.c.program);
        CHECK(!dt_store_state_hash(p.c.store, &hash) && hash == p.after);
        dt_ctx_destroy(p.c.ctx);
        dt_ctx_destroy(p.ahead.ctx);
    }
}

/* ---- what may be called when */

TEST(a_step_with_a_budget_stops_where_the_host_provides_gradients) {
    frame_case c;
    dt_step_state state = DT_STEP_RUNNING;
    float y[FRAME_BATCH * 4];
    REQUIRE(frame_open(&c, "cpu", 2, true));
    CHECK(!frame_write(&c, 0));
    CHECK(dt_program_advance_for(c.program, 1, &state) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "dt_program_begin");
    CHECK(!dt_program_begin(c.program, NULL));
    static const double wrong[] = {0, -1, -(double)INFINITY, (double)NAN};
    for (size_t i = 0; i < DTI_COUNT(wrong); i++) {
        CHECK(dt_program_advance_for(c.program, wrong[i], &state) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(c.ctx), "ms is ");
    }
    CHECK(!dt_program_advance_for(c.program, 1e-6, &state) && state == DT_STEP_RUNNING);
    CHECK(dt_program_read(c.program, c.y, y, sizeof y) == DT_ERROR_INVALID);
    CHECK(!dt_program_advance_for(c.program, (double)INFINITY, &state) && state == DT_STEP_READY);
    CHECK(!dt_program_read(c.program, c.y, y, sizeof y));
    CHECK(dt_program_advance_for(c.program, 1, &state) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "was never written");
    CHECK(!dt_program_write_gradient(c.program, c.y, y, sizeof y));
    CHECK(!dt_program_advance_for(c.program, 1e-6, &state) && state == DT_STEP_RUNNING);
    CHECK(dt_program_write_gradient(c.program, c.y, y, sizeof y) == DT_ERROR_INVALID);
    CHECK(!dt_program_advance_for(c.program, (double)INFINITY, &state) && state == DT_STEP_DONE);
    CHECK(!dt_program_advance_for(c.program, 1, &state) && state == DT_STEP_DONE);
    CHECK(!dt_program_end(c.program, NULL));
    CHECK(dt_program_advance_for(c.program, 1, &state) == DT_ERROR_INVALID);
    dt_ctx_destroy(c.ctx);
}
