/* Steps started ahead: two under way at once give the bits of one at a time, on every device; what
 * a step that fails means for the one after it; and which calls wait. Included by main.c. */

enum { AHEAD_BATCH = 4, AHEAD_IN = 5, AHEAD_STEPS = 12 };

typedef struct ahead_case {
    dt_ctx *ctx;
    vulkan_log log;
    dt_store *store;
    dt_program *program;
    dt_tensor x, shared, y;
} ahead_case;

/* With dropout (the step's number), an input that is written once, and running statistics. */
static dt_tensor ahead_net(ahead_case *c, dt_graph *g) {
    c->x = dt_input(g, "x", DT_F32, dt_dims(AHEAD_IN));
    c->shared = dt_input_shared(g, "shared", DT_F32, dt_dims(AHEAD_IN));
    dt_tensor h = dt_nn_linear(dt_mul(c->x, c->shared), "a", 8);
    h = dt_dropout(dt_relu(dt_nn_batch_norm(h, "n", NULL)), 0.25f);
    c->y = dt_nn_linear(h, "b", 1);
    return dt_mean_loss(dt_mul(c->y, c->y));
}

static const dt_vulkan_desc *stub_vulkan_case; /* instead of a device of its own */

static bool ahead_open(ahead_case *c, const char *device, const dt_optim_desc *optim,
                       int in_flight) {
    static const float ones[AHEAD_IN] = {1, 1, 1, 1, 1};
    dt_graph *g;
    const bool cpu = !strcmp(device, "cpu");
    *c = (ahead_case){0};
    dt_ctx_desc d = {
        .logger = {vulkan_listen, &c->log}, .no_vulkan = cpu, .validation = !cpu, .threads = 2};
    d.validation = d.validation && !stub_vulkan_case;
    d.vulkan = stub_vulkan_case;
    if (dt_ctx_create(&d, &c->ctx) || dt_graph_create(c->ctx, &g))
        return false;
    dt_program_desc p = {.loss = ahead_net(c, g),
                         .outputs = {c->y},
                         .batch = AHEAD_BATCH,
                         .in_flight = in_flight,
                         .optim = optim};
    return !dt_store_create(g, &(dt_store_desc){.device = device}, &c->store) &&
           !dt_program_create(c->store, &p, &c->program) &&
           !dt_program_write(c->program, c->shared, ones, sizeof ones);
}

/* Sample values of a step; of step `bad`, counted from 1, one is a NaN. */
static dt_result ahead_write(ahead_case *c, int step, int bad) {
    float x[AHEAD_BATCH * AHEAD_IN];
    for (int i = 0; i < AHEAD_BATCH * AHEAD_IN; i++)
        x[i] = (float)dti_normal(7, (uint64_t)(step * 100 + i), 3);
    x[3] = step == bad ? NAN : x[3];
    return dt_program_write(c->program, c->x, x, sizeof x);
}

typedef struct ahead_result {
    double loss[AHEAD_STEPS], norm[AHEAD_STEPS];
    float y[AHEAD_STEPS][AHEAD_BATCH];
    uint64_t hash;
} ahead_result;

static void ahead_note(ahead_case *c, ahead_result *r, int step, const dt_report *report) {
    CHECK(report->step == (uint64_t)step + 1);
    r->loss[step] = report->loss;
    r->norm[step] = report->gradient_norm;
    CHECK(!dt_program_read(c->program, c->y, r->y[step], sizeof r->y[step]));
}

static void ahead_one_at_a_time(ahead_case *c, ahead_result *r) {
    dt_report report;
    for (int i = 0; i < AHEAD_STEPS; i++) {
        CHECK(!ahead_write(c, i, -1) && !dt_program_run(c->program, NULL, &report));
        ahead_note(c, r, i, &report);
    }
    CHECK(!dt_store_state_hash(c->store, &r->hash));
}

static void ahead_two_at_once(ahead_case *c, ahead_result *r) {
    dt_report report;
    for (int i = 0; i < AHEAD_STEPS; i++) {
        CHECK(!ahead_write(c, i, -1) && !dt_program_start(c->program, NULL));
        CHECK(i < 4 || dti_inflight_count(c->program) == 2); /* not one by one */
        if (i && !dt_program_wait(c->program, &report))
            ahead_note(c, r, i - 1, &report);
    }
    CHECK(!dt_program_wait(c->program, &report));
    ahead_note(c, r, AHEAD_STEPS - 1, &report);
    CHECK(dt_program_wait(c->program, &report) == DT_ERROR_INVALID);
    CHECK(!dt_store_state_hash(c->store, &r->hash));
}

static const dt_optim_desc ahead_optims[] = {
    {0},
    {.kind = DT_OPTIM_SGD, .lr = 0.05, .momentum = 0.9, .weight_decay = 0.01},
    {.kind = DT_OPTIM_ADAM, .lr = 0.01, .weight_decay = 0.01, .clip_norm = 1.0},
    {.kind = DT_OPTIM_AMSGRAD, .lr = 0.01},
    {.kind = DT_OPTIM_LAMB, .lr = 0.01},
    {.kind = DT_OPTIM_MUON, .lr = 0.01},
    {.kind = DT_OPTIM_ADAFACTOR, .lr = 0.05},
};

static void ahead_same_bits(const char *device, size_t every) {
    for (size_t i = 0; i < DTI_COUNT(ahead_optims); i += every) {
        static ahead_result want, got;
        memset(&want, 0, sizeof want);
        memset(&got, 0, sizeof got);
        ahead_case c;
        REQUIRE(ahead_open(&c, device, &ahead_optims[i], 0));
        ahead_one_at_a_time(&c, &want);
        dt_ctx_destroy(c.ctx);
        REQUIRE(ahead_open(&c, device, &ahead_optims[i], 2));
        ahead_two_at_once(&c, &got);
        CHECK(!memcmp(&want, &got, sizeof want));
        CHECK(!c.log.validation);
        dt_ctx_destroy(c.ctx);
    }
}

TEST(two_steps_in_flight_have_the_bits_of_one_at_a_time) {
    ahead_same_bits("cpu", 1);
}

static bool ahead_has_vulkan(void) {
    dt_ctx *ctx;
    bool any = !dt_ctx_create(NULL, &ctx);
    for (int i = 0; any && i < dt_ctx_device_count(ctx); i++)
        if (dt_ctx_device(ctx, i)->usable && !strcmp(dt_ctx_device(ctx, i)->id, "vulkan:0")) {
            dt_ctx_destroy(ctx);
            return true;
        }
    dt_ctx_destroy(ctx);
    return false;
}

TEST(two_steps_in_flight_have_the_bits_of_one_at_a_time_on_vulkan) {
    if (!ahead_has_vulkan())
        SKIP("no Vulkan device");
    ahead_same_bits("vulkan:0", 5);
}

/* ---- a step that fails */

static void ahead_fails(const char *device) {
    ahead_case c;
    dt_report report;
    uint64_t before, after;
    REQUIRE(ahead_open(&c, device, &(dt_optim_desc){0}, 2));
    CHECK(!ahead_write(&c, 1, 0) && !dt_program_start(c.program, NULL));
    CHECK(!dt_program_wait(c.program, &report) && report.step == 1 && !report.not_run);
    CHECK(!dt_store_state_hash(c.store, &before));
    CHECK(!ahead_write(&c, 2, 2) && !dt_program_start(c.program, NULL));
    CHECK(!ahead_write(&c, 3, 0) && !dt_program_start(c.program, NULL));
    CHECK(dt_program_wait(c.program, &report) == DT_ERROR_NUMERIC);
    CHECK(report.step == 2 && report.skipped && !report.not_run);
    REQUIRE(report.fault_op != NULL);
    CHECK_STR(report.fault_op, "input");
    CHECK(dt_program_start(c.program, NULL) == DT_ERROR_NUMERIC); /* of step 3 */
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "step 3 was not run");
    CHECK(dt_program_wait(c.program, &report) == DT_ERROR_INVALID);
    CHECK(!dt_store_state_hash(c.store, &after) && before == after);
    CHECK(!ahead_write(&c, 2, 0) && !dt_program_start(c.program, NULL));
    CHECK(!dt_program_wait(c.program, &report) && report.step == 2);
    CHECK(!dt_store_state_hash(c.store, &after) && before != after);
    CHECK(!c.log.validation);
    dt_ctx_destroy(c.ctx);
}

TEST(a_step_in_flight_after_a_failed_one_does_not_run_and_reports_it) {
    ahead_fails("cpu");
    if (ahead_has_vulkan())
        ahead_fails("vulkan:0");
}

/* A gradient that is finite, whose update is not: the dry pass finds it. */
static void ahead_overflows(const char *device) {
    ahead_case c;
    dt_report report;
    uint64_t before, after;
    const double large = 1e3;
    const dt_step_desc wild = {.lr = 3e38, .coefficients = &large};
    REQUIRE(ahead_open(&c, device, &(dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 0.1}, 2));
    for (int i = 0; i < 3; i++)
        CHECK(!ahead_write(&c, i, -1) && !dt_program_start(c.program, NULL));
    CHECK(!dt_program_wait(c.program, NULL) && !dt_program_wait(c.program, NULL));
    CHECK(!dt_store_state_hash(c.store, &before));
    float big[AHEAD_BATCH * AHEAD_IN];
    for (int i = 0; i < AHEAD_BATCH * AHEAD_IN; i++)
        big[i] = 1e4f * (float)(i + 1);
    CHECK(!dt_program_write(c.program, c.x, big, sizeof big) &&
          !dt_program_start(c.program, &wild));
    CHECK(!ahead_write(&c, 5, -1) && !dt_program_start(c.program, NULL));
    CHECK(dt_program_wait(c.program, &report) == DT_ERROR_NUMERIC && report.step == 4);
    REQUIRE(report.fault_op != NULL);
    CHECK_STR(report.fault_op, "optimizer");
    dt_result second = dt_program_wait(c.program, &report);
    CHECK(second == DT_ERROR_NUMERIC && report.not_run && report.step == 5);
    CHECK(!dt_store_state_hash(c.store, &after) && before == after);
    dt_ctx_destroy(c.ctx);
}

TEST(a_step_in_flight_after_an_update_that_overflows_does_not_run) {
    ahead_overflows("cpu");
    if (ahead_has_vulkan())
        ahead_overflows("vulkan:0");
}

/* ---- micro-batches */

typedef struct ahead_micros {
    dt_ctx *ctx;
    dt_store *store;
    dt_program *program;
    dt_tensor x, e;
} ahead_micros;

/* Two losses: of the second only the value is not finite, where `e` is not. */
static bool ahead_micros_open(ahead_micros *c, const char *device) {
    dt_graph *g;
    *c = (ahead_micros){0};
    if (dt_ctx_create(&(dt_ctx_desc){.threads = 2}, &c->ctx) || dt_graph_create(c->ctx, &g))
        return false;
    c->x = dt_input(g, "x", DT_F32, dt_dims(AHEAD_IN));
    c->e = dt_input(g, "e", DT_F32, dt_dims());
    dt_tensor y = dt_nn_linear(dt_tanh(dt_nn_linear(c->x, "a", 7)), "b", 1);
    const dt_optim_desc optim = {.kind = DT_OPTIM_ADAM, .lr = 0.01};
    const dt_program_desc d = {
        .losses = {{.term = dt_mean_loss(dt_mul(y, y))}, {.term = dt_mean_loss(c->e)}},
        .batch = AHEAD_BATCH,
        .accumulate = true,
        .in_flight = 2,
        .optim = &optim};
    return !dt_store_create(g, &(dt_store_desc){.device = device}, &c->store) &&
           !dt_program_create(c->store, &d, &c->program);
}

static void ahead_micros_write(ahead_micros *c, int number, bool bad) {
    float x[AHEAD_BATCH * AHEAD_IN], e[AHEAD_BATCH] = {0};
    for (int i = 0; i < AHEAD_BATCH * AHEAD_IN; i++)
        x[i] = (float)dti_normal(8, (uint64_t)(number * 100 + i), 3);
    e[1] = bad ? INFINITY : 0;
    CHECK(!dt_program_write(c->program, c->x, x, sizeof x));
    CHECK(!dt_program_write(c->program, c->e, e, sizeof e));
}

/* Step `step` in three micro-batches, of which `bad` has an infinite loss, and how each ends. All
 * are under way at once as far as there is room. */
static void ahead_micros_step(ahead_micros *c, int step, int bad, bool ahead, dt_result *results,
                              dt_report *reports) {
    uint32_t waited = 0;
    for (uint32_t i = 0; i < 3; i++) {
        const dt_step_desc desc = {.micro_batch = i, .micro_batches = 3};
        while (c->program->started == (ahead ? 2 : 1)) {
            results[waited] = dt_program_wait(c->program, &reports[waited]);
            waited++;
        }
        ahead_micros_write(c, 3 * step + (int)i, (int)i == bad);
        const dt_result started = dt_program_start(c->program, &desc);
        CHECK(!started);
    }
    while (c->program->started) {
        results[waited] = dt_program_wait(c->program, &reports[waited]);
        waited++;
    }
    CHECK(waited == 3);
}

static void ahead_micros_of(const char *device) {
    dt_result results[3];
    dt_report reports[3];
    uint64_t hash[2], before, after;
    for (int ahead = 0; ahead < 2; ahead++) {
        ahead_micros c;
        REQUIRE(ahead_micros_open(&c, device));
        for (int step = 0; step < 4; step++) {
            ahead_micros_step(&c, step, -1, ahead, results, reports);
            CHECK(!results[0] && !results[1] && !results[2] && reports[2].committed);
            CHECK(reports[2].step == (uint64_t)step + 1 && reports[0].step == reports[2].step);
        }
        CHECK(!dt_store_state_hash(c.store, &hash[ahead]));
        dt_ctx_destroy(c.ctx);
    }
    CHECK(hash[0] == hash[1]);
    ahead_micros c;
    REQUIRE(ahead_micros_open(&c, device));
    ahead_micros_step(&c, 0, -1, true, results, reports);
    CHECK(!dt_store_state_hash(c.store, &before));
    ahead_micros_step(&c, 1, 2, true, results, reports); /* the one that would commit */
    CHECK(!results[0] && !results[1] && results[2] == DT_ERROR_NUMERIC && !reports[2].not_run);
    CHECK(!dt_store_state_hash(c.store, &after) && before == after);
    ahead_micros_step(&c, 1, 1, true, results, reports); /* its last one is under way already */
    CHECK(!results[0] && results[1] == DT_ERROR_NUMERIC && !reports[1].not_run);
    CHECK(results[2] == DT_ERROR_NUMERIC && reports[2].not_run && reports[2].step == 2);
    CHECK(!dt_store_state_hash(c.store, &after) && before == after);
    const dt_step_desc rest = {.micro_batch = 1, .micro_batches = 3};
    CHECK(dt_program_start(c.program, &rest) == DT_ERROR_INVALID); /* there is no sum */
    for (int step = 1; step < 4; step++)
        ahead_micros_step(&c, step, -1, true, results, reports);
    CHECK(!results[2] && !dt_store_state_hash(c.store, &after) && after == hash[1]);
    dt_ctx_destroy(c.ctx);
}

TEST(micro_batches_in_flight_have_the_bits_of_one_at_a_time_and_stop_at_an_infinite_loss) {
    ahead_micros_of("cpu");
    if (ahead_has_vulkan())
        ahead_micros_of("vulkan:0");
}

/* ---- which waits for which */

TEST(a_start_or_write_without_a_free_slot_waits_for_the_oldest_step_and_returns_its_error) {
    ahead_case c;
    dt_report report;
    REQUIRE(ahead_open(&c, "cpu", &(dt_optim_desc){0}, 2));
    for (int i = 0; i < 5; i++)
        CHECK(!ahead_write(&c, i, -1) && !dt_program_start(c.program, NULL));
    CHECK(c.program->started == 2);
    CHECK(!dt_program_wait(c.program, &report) && report.step == 4);
    CHECK(!ahead_write(&c, 6, 6) && !dt_program_start(c.program, NULL));
    CHECK(!dt_program_wait(c.program, &report) && report.step == 5);
    CHECK(!ahead_write(&c, 7, -1) && !dt_program_start(c.program, NULL));
    CHECK(ahead_write(&c, 8, -1) == DT_ERROR_NUMERIC); /* step 6's */
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "step 6");
    CHECK(dt_program_wait(c.program, &report) == DT_ERROR_NUMERIC && report.not_run);
    CHECK(!ahead_write(&c, 8, -1) && !dt_program_run(c.program, NULL, &report));
    CHECK(report.step == 6);
    dt_ctx_destroy(c.ctx);
}

TEST(other_calls_are_refused_while_steps_are_in_flight) {
    ahead_case c;
    dt_step_state state;
    uint64_t hash;
    double weights[DT_MAX_TERMS] = {0};
    float y[AHEAD_BATCH];
    REQUIRE(ahead_open(&c, "cpu", &(dt_optim_desc){0}, 2));
    CHECK(!ahead_write(&c, 0, -1) && !dt_program_start(c.program, NULL));
    CHECK(dt_program_run(c.program, NULL, NULL) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "dt_program_wait");
    CHECK(dt_program_advance(c.program, &state) == DT_ERROR_INVALID);
    CHECK(dt_program_end(c.program, NULL) == DT_ERROR_INVALID);
    CHECK(dt_program_cancel(c.program, NULL) == DT_ERROR_INVALID);
    CHECK(dt_program_add_loss_weights(c.program, weights) == DT_ERROR_INVALID);
    CHECK(dt_store_reset(c.store, DT_RESET_OPTIM) == DT_ERROR_INVALID);
    CHECK(dt_program_read(c.program, c.y, y, sizeof y) == DT_ERROR_INVALID);
    CHECK(!dt_program_wait(c.program, NULL) && !dt_store_hash(c.store, &hash));
    CHECK(!dt_program_read(c.program, c.y, y, sizeof y));
    CHECK(!dt_program_run(c.program, NULL, NULL));
    CHECK(!dt_program_start(c.program, NULL)); /* destroyed with a step under way */
    dt_ctx_destroy(c.ctx);
    CHECK(!ahead_open(&c, "cpu", &(dt_optim_desc){0}, 3));
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "in_flight is 3");
    dt_ctx_destroy(c.ctx);
}

/* ---- what a step costs the host, on a driver that does nothing */

#ifndef DT_NO_VULKAN
#include "vulkan/stub_vulkan.h"

TEST(a_step_on_vulkan_is_one_submission_and_records_nothing) {
    ahead_case c;
    const dt_vulkan_desc vulkan = stub_vulkan();
    stub_vulkan_case = &vulkan;
    REQUIRE(ahead_open(&c, "vulkan", &(dt_optim_desc){0}, 2));
    stub_vulkan_case = NULL;
    for (int i = 0; i < 3; i++)
        CHECK(!ahead_write(&c, i, -1) && !dt_program_start(c.program, NULL));
    memset(stub.calls, 0, sizeof stub.calls);
    CHECK(!dt_program_start(c.program, NULL));
    CHECK(stub.calls[STUB_QueueSubmit] == 1 && stub.calls[STUB_ResetFences] == 1);
    CHECK(stub_calls() <= 4); /* and the fence of the older one, once or twice */
    CHECK(stub.copies == 2);  /* an upload, a download */
    while (c.program->started)
        CHECK(!dt_program_wait(c.program, NULL));
    dt_ctx_destroy(c.ctx);
}

/* With its inputs; the least of many, since others work on this machine. */
TEST(a_step_of_the_mlp_takes_under_20_us_of_host_time) {
    dt_ctx *ctx;
    dt_graph *g;
    dt_store *store;
    dt_program *program;
    dt_tensor x, t;
    static const float pictures[64 * 784];
    static const int32_t classes[64];
    const dt_vulkan_desc vulkan = stub_vulkan();
    uint64_t least = UINT64_MAX;
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.vulkan = &vulkan}, &ctx) && !dt_graph_create(ctx, &g));
    x = dt_input(g, "x", DT_F32, dt_dims(784));
    t = dt_input(g, "t", DT_I32, (dt_shape){0});
    const dt_tensor h = dt_relu(dt_nn_linear(x, "fc1", 128));
    const dt_program_desc desc = {.loss = dt_cross_entropy(dt_nn_linear(h, "fc2", 10), t, NULL),
                                  .batch = 64,
                                  .optim = &(dt_optim_desc){.lr = 1e-3}};
    REQUIRE(!dt_store_create(g, &(dt_store_desc){.device = "vulkan"}, &store));
    REQUIRE(!dt_program_create(store, &desc, &program));
    for (int i = 0; i < 1000; i++) {
        const uint64_t start = dti_now_ns();
        CHECK(!dt_program_write(program, x, pictures, sizeof pictures));
        CHECK(!dt_program_write(program, t, classes, sizeof classes));
        CHECK(!dt_program_run(program, NULL, NULL));
        least = DTI_MIN(least, dti_now_ns() - start);
    }
    if (least >= 20000)
        printf("%.1f us\n", 1e-3 * (double)least);
    CHECK(least < 20000);
    dt_ctx_destroy(ctx);
}

/* ---- how a step is waited for */

static int wait_looks; /* that number of calls find that the device is not ready yet */

static dti_VkResult DTI_VKAPI wait_look(dti_VkDevice device, dti_VkFence fence) {
    (void)device, (void)fence;
    stub.calls[STUB_GetFenceStatus]++;
    return wait_looks-- > 0 ? DTI_VK_NOT_READY : (dti_VkResult)0;
}

/* A step on a device of this kind, which is ready after that number of looks. */
static void wait_counts(dti_VkPhysicalDeviceType type, int looks, uint64_t counts[2]) {
    ahead_case c;
    const dt_vulkan_desc vulkan = stub_vulkan();
    stub_vulkan_case = &vulkan;
    stub.type = type;
    const bool open = ahead_open(&c, "vulkan", &(dt_optim_desc){0}, 1);
    stub.type = DTI_VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    stub_vulkan_case = NULL;
    REQUIRE(open);
    CHECK(!ahead_write(&c, 0, -1));
    ((dti_vk_device *)c.store->device)->vk.GetFenceStatus = wait_look;
    memset(stub.calls, 0, sizeof stub.calls);
    wait_looks = looks;
    CHECK(!dt_program_run(c.program, NULL, NULL));
    wait_looks = 0;
    counts[0] = stub.calls[STUB_GetFenceStatus];
    counts[1] = stub.calls[STUB_WaitForFences];
    dt_ctx_destroy(c.ctx);
}

TEST(a_wait_for_a_hardware_step_polls_briefly_before_its_thread_sleeps) {
    uint64_t counts[2];
    wait_counts(DTI_VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, 3, counts);
    CHECK(counts[0] == 4 && counts[1] == 0);
    wait_counts(DTI_VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, INT_MAX, counts);
    CHECK(counts[0] > 1 && counts[1] == 1);
    wait_counts(DTI_VK_PHYSICAL_DEVICE_TYPE_CPU, 3, counts); /* it would take the device's core */
    CHECK(counts[0] == 0 && counts[1] == 1);
}

/* A linear layer's step on a device of a given speed; 0: its own. */
static bool heavy_open(ahead_case *c, const dt_ctx_desc *ctx, int batch, int wide, double speed) {
    dt_graph *g;
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.1};
    *c = (ahead_case){0};
    if (dt_ctx_create(ctx, &c->ctx) || dt_graph_create(c->ctx, &g))
        return false;
    c->x = dt_input(g, "x", DT_F32, dt_dims(wide));
    c->y = dt_nn_linear(dt_relu(dt_nn_linear(c->x, "a", wide)), "b", wide);
    const dt_program_desc p = {
        .loss = dt_mean_loss(dt_mul(c->y, c->y)), .batch = batch, .optim = &sgd};
    if (dt_store_create(g, &(dt_store_desc){.device = "vulkan"}, &c->store))
        return false;
    if (speed > 0)
        ((dti_vk_device *)c->store->device)->flops_per_ms = speed;
    if (dt_program_create(c->store, &p, &c->program))
        return false;
    float *x = calloc((size_t)(batch * wide), sizeof *x);
    for (int i = 0; i < batch * wide; i++)
        x[i] = (float)(i % 13) * 0.25f - 1.0f;
    dt_result result = dt_program_write(c->program, c->x, x, (size_t)(batch * wide) * sizeof *x);
    free(x);
    return !result;
}

static double heavy_ms(const dt_program *p, double *most, int *sliced) {
    const dti_vk_exec *e = (const dti_vk_exec *)p->now->exec;
    double sum = 0;
    for (uint32_t i = 0; i < e->work_count; i++) {
        sum += e->work[i].ms;
        *sliced += e->work[i].slices > 1;
        if (e->work[i].slices)
            *most = DTI_MAX(*most, e->work[i].ms / e->work[i].slices);
    }
    return sum;
}

TEST(a_step_of_many_seconds_is_many_submissions_of_half_a_second_at_most) {
    ahead_case c;
    double most = 0;
    int sliced = 0;
    const dt_vulkan_desc vulkan = stub_vulkan();
    stub.type = DTI_VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
    const bool open = heavy_open(&c, &(dt_ctx_desc){.vulkan = &vulkan}, 256, 256, 1.5e4);
    stub.type = DTI_VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    REQUIRE(open);
    const double ms = heavy_ms(c.program, &most, &sliced);
    CHECK(ms > 10000 && sliced && most <= DTI_VK_SUBMISSION_MS);
    memset(stub.calls, 0, sizeof stub.calls);
    CHECK(!dt_program_run(c.program, NULL, NULL));
    CHECK((double)stub.calls[STUB_QueueSubmit] >= ms / DTI_VK_SUBMISSION_MS);
    CHECK((double)stub.calls[STUB_QueueSubmit] <= 2 * ms / DTI_VK_SUBMISSION_MS + 2);
    CHECK(stub.calls[STUB_ResetFences] == 1);
    dt_ctx_destroy(c.ctx);
}

/* Of an operation an element, on an integrated device: bytes are what takes time. */
TEST(a_step_that_moves_much_memory_is_cut_into_submissions_too) {
    enum { BATCH = 16, WIDE = 1 << 20, LAYERS = 160 };
    dt_graph *g;
    ahead_case c = {0};
    const dt_vulkan_desc vulkan = stub_vulkan();
    stub.type = DTI_VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.vulkan = &vulkan}, &c.ctx));
    REQUIRE(!dt_graph_create(c.ctx, &g));
    dt_tensor h = dt_input(g, "x", DT_F32, dt_dims(WIDE));
    for (int i = 0; i < LAYERS; i++)
        h = dt_tanh(h);
    const dt_program_desc p = {.outputs = {dt_sum(h, dt_dims(), false)}, .batch = BATCH};
    REQUIRE(!dt_store_create(g, &(dt_store_desc){.device = "vulkan"}, &c.store));
    REQUIRE(!dt_program_create(c.store, &p, &c.program));
    stub.type = DTI_VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    const dti_vk_exec *e = (const dti_vk_exec *)c.program->now->exec;
    double ms = 0;
    for (uint32_t i = 0; i < e->work_count; i++)
        ms += e->work[i].ms;
    const double seconds = (double)BATCH * WIDE * 4 * 2 * LAYERS / 1e10; /* of 10 GB/s */
    CHECK(ms >= 1e3 * seconds && ms < 1.1e3 * seconds);
    memset(stub.calls, 0, sizeof stub.calls);
    CHECK(!c.store->device->backend->exec_start(c.program->now->exec, 0, e->segment_count));
    CHECK((double)stub.calls[STUB_QueueSubmit] >= ms / DTI_VK_SUBMISSION_MS);
    dt_ctx_destroy(c.ctx);
}

TEST(a_fault_search_in_a_long_step_has_the_same_number_of_submissions) {
    ahead_case c;
    double most = 0;
    int sliced = 0;
    uint32_t fault;
    const dt_vulkan_desc vulkan = stub_vulkan();
    stub.type = DTI_VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
    const bool open = heavy_open(&c, &(dt_ctx_desc){.vulkan = &vulkan}, 256, 256, 1.5e4);
    stub.type = DTI_VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    REQUIRE(open);
    CHECK(heavy_ms(c.program, &most, &sliced) > 10000 && sliced);
    dti_exec *exec = c.program->now->exec;
    const dti_vk_exec *e = (const dti_vk_exec *)exec;
    for (uint32_t at = 0, next; at < e->work_count; at = next) {
        next = dti_vk_search_end(e, at, e->work_count);
        double ms = -e->work[at].ms * (1 - 1.0 / DTI_MAX(e->work[at].slices, 1u));
        for (uint32_t i = at; i < next; i++)
            ms += e->work[i].ms;
        CHECK(ms <= 2 * DTI_VK_SUBMISSION_MS);
        memset(stub.calls, 0, sizeof stub.calls);
        CHECK(!c.store->device->backend->exec_find_fault(exec, at, next - at, &fault));
        CHECK(stub.calls[STUB_QueueSubmit] >= e->work[at].slices);
    }
    dt_ctx_destroy(c.ctx);
}

/* The largest float, squared: what the first product gives is not finite. */
static void heavy_finds(double speed, char *said, size_t room) {
    ahead_case c;
    static float x[24 * 96];
    dt_report report;
    for (size_t i = 0; i < DTI_COUNT(x); i++)
        x[i] = 3e38f;
    REQUIRE(heavy_open(&c, &(dt_ctx_desc){0}, 24, 96, speed));
    CHECK(!dt_program_write(c.program, c.x, x, sizeof x));
    CHECK(dt_program_run(c.program, NULL, &report) == DT_ERROR_NUMERIC);
    snprintf(said, room, "%s", dt_ctx_error(c.ctx));
    dt_ctx_destroy(c.ctx);
}

TEST(a_fault_search_in_slices_finds_the_same_op) {
    char whole[512] = "", cut[512] = "";
    if (!ahead_has_vulkan())
        SKIP("no Vulkan device");
    heavy_finds(0, whole, sizeof whole);
    heavy_finds(5, cut, sizeof cut);
    CHECK_CONTAINS(whole, "op linear");
    CHECK_STR(whole, cut);
}

typedef struct heavy_launch { /* barriers recorded before its first and its last dispatch */
    uint32_t number, first, last;
} heavy_launch;

static bool heavy_conflict(const dti_vk_exec *e, uint32_t a, uint32_t b) {
    dti_vk_access x[DTI_BINDINGS_MAX], y[DTI_BINDINGS_MAX];
    const uint32_t n = dti_vk_accesses_of(&e->desc->launches[a], e->desc->places, x),
                   m = dti_vk_accesses_of(&e->desc->launches[b], e->desc->places, y);
    bool conflict = false;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < m; k++)
            conflict = conflict || dti_vk_conflict(&x[i], &y[k]);
    return conflict;
}

/* Launches as they were recorded at the log's end: each segment, then those that are a whole
 * step. */
static uint32_t heavy_read(const dti_vk_exec *e, const dti_segment *segments, heavy_launch *out) {
    uint32_t count = 0, dispatches = 0, barriers = 0;
    for (uint32_t i = 0; i < e->segment_count + e->desc->whole[0]; i++) {
        const dti_segment *s = &segments[i < e->segment_count ? i : i - e->segment_count];
        for (uint32_t k = s->first; k < s->first + s->count; k++) {
            out[count].number = k;
            count += e->work[k].slices > 0;
            dispatches += e->work[k].slices;
        }
    }
    const char *at = stub.log + stub.logged;
    while (dispatches)
        dispatches -= *--at == 'd';
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t d = 0; d < e->work[out[i].number].slices; d++) {
            for (; *at != 'd'; at++)
                barriers++;
            at++;
            out[i].first = d ? out[i].first : barriers;
            out[i].last = barriers;
        }
    }
    return count;
}

/* Whether launches that touch the same bytes have a barrier between them. */
static void heavy_check(double speed, int *turns) {
    enum { LOG = 1 << 20 };
    static heavy_launch launches[1024];
    ahead_case c;
    stub.log = calloc(LOG, 1);
    stub.log_room = LOG;
    stub.logged = 0;
    const dt_vulkan_desc vulkan = stub_vulkan();
    const bool open = heavy_open(&c, &(dt_ctx_desc){.vulkan = &vulkan}, 24, 96, speed);
    CHECK(stub.logged < LOG);
    stub.log_room = 0;
    REQUIRE(open);
    const dti_vk_exec *e = (const dti_vk_exec *)c.program->now->exec;
    const uint32_t count = heavy_read(e, dti_program_code(c.program)->segments, launches);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = i + 1; k < count; k++)
            test_check(launches[k].first > launches[i].last ||
                           !heavy_conflict(e, launches[i].number, launches[k].number),
                       __FILE__, __LINE__, "at %g operations a ms launch %u does not wait for %u",
                       speed, launches[k].number, launches[i].number);
        *turns += launches[i].last > launches[i].first; /* a recording begins within it */
    }
    CHECK(count > 8);
    dt_ctx_destroy(c.ctx);
    free(stub.log);
}

TEST(launches_have_the_same_barriers_for_any_cut_of_a_step) {
    int turns = 0, none = 0;
    for (double speed = 1; speed < 1e4; speed *= 1.21)
        heavy_check(speed, &turns);
    CHECK(turns > 10);
    heavy_check(1e12, &none);
    CHECK(!none);
}

TEST(a_step_cut_into_submissions_and_slices_gives_the_same_bits) {
    uint64_t want = 0, hash = 0;
    if (!ahead_has_vulkan())
        SKIP("no Vulkan device");
    for (int i = 0; i < 3; i++) {
        static const double speeds[] = {0, 300, 5};
        ahead_case c;
        double most = 0;
        int sliced = 0;
        const dt_ctx_desc ctx = {.logger = {vulkan_listen, &c.log}, .validation = i == 1};
        REQUIRE(heavy_open(&c, &ctx, 24, 96, speeds[i]));
        CHECK(heavy_ms(c.program, &most, &sliced) > 4 * DTI_VK_SUBMISSION_MS || i == 0);
        CHECK((sliced > 0) == (i > 0)); /* products among them */
        CHECK(!dt_program_run(c.program, NULL, NULL) && !dt_program_run(c.program, NULL, NULL));
        CHECK(!dt_store_state_hash(c.store, &hash));
        test_check(i == 0 || hash == want, __FILE__, __LINE__, "at %g operations a ms: other bits",
                   speeds[i]);
        want = hash;
        CHECK(!c.log.validation);
        dt_ctx_destroy(c.ctx);
    }
}
#endif
