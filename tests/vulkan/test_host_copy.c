/* A store that outlives its device: the state kept on the host, and dt_store_restore. A device is
 * lost by a driver whose vkQueueSubmit says so, at every submission of a run in turn. The model has
 * dropout, whose masks depend on the step, AMSGrad's three moments, and an average. Included by
 * main.c, after the implementation. */

typedef struct host_copy_model {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, t;
    dt_store *store;
    dt_program *train;
} host_copy_model;

static const float host_copy_x[8] = {1, -1, 2, 3, -2, 1, 0, 1}, host_copy_t[4] = {1, 0, 2, -1};

static dt_result host_copy_write(host_copy_model *m) {
    dt_result result = dt_program_write(m->train, m->x, host_copy_x, sizeof host_copy_x);
    return result ? result : dt_program_write(m->train, m->t, host_copy_t, sizeof host_copy_t);
}

static dt_result host_copy_open(host_copy_model *m, const char *device, int host_copy,
                                int in_flight) {
    *m = (host_copy_model){0};
    dt_result result = dt_ctx_create(NULL, &m->ctx);
    if (!result)
        result = dt_graph_create(m->ctx, &m->graph);
    if (result)
        return result;
    m->x = dt_input(m->graph, "x", DT_F32, dt_dims(2));
    m->t = dt_input(m->graph, "t", DT_F32, dt_dims(1));
    dt_tensor h = dt_dropout(dt_tanh(dt_nn_linear(m->x, "hidden", 16)), 0.25f);
    const dt_optim_desc amsgrad = {
        .kind = DT_OPTIM_AMSGRAD, .lr = 0.01, .average.kind = DT_AVERAGE_EMA};
    const dt_program_desc train = {.loss = dt_mse(dt_nn_linear(h, "out", 1), m->t),
                                   .batch = 4,
                                   .optim = &amsgrad,
                                   .in_flight = in_flight};
    const dt_store_desc d = {.device = device, .seed = 5, .host_checkpoint_steps = host_copy};
    result = dt_store_create(m->graph, &d, &m->store);
    if (!result)
        result = dt_program_create(m->store, &train, &m->train);
    return result ? result : host_copy_write(m);
}

/* Until `steps` are committed, or something fails. */
static dt_result host_copy_run(host_copy_model *m, uint64_t steps) {
    dt_result result = DT_OK;
    while (!result && m->store->steps < steps)
        result = dt_program_run(m->train, NULL, NULL);
    return result;
}

static uint64_t host_copy_hash(host_copy_model *m) {
    uint64_t hash = 0;
    CHECK(dt_store_state_hash(m->store, &hash) == DT_OK);
    return hash;
}

static uint64_t host_copy_expected(const char *device, uint64_t steps) {
    host_copy_model m;
    CHECK(host_copy_open(&m, device, 0, 1) == DT_OK && host_copy_run(&m, steps) == DT_OK);
    const uint64_t hash = host_copy_hash(&m);
    dt_ctx_destroy(m.ctx);
    return hash;
}

TEST(a_working_store_moves_to_another_device_with_its_values) {
    host_copy_model m;
    uint64_t step = 0;
    REQUIRE(host_copy_open(&m, "cpu", 0, 1) == DT_OK && host_copy_run(&m, 3) == DT_OK);
    CHECK(dt_store_restore(m.store, "cpu", &step) == DT_OK && step == 3);
    CHECK(dt_program_run(m.train, NULL, NULL) == DT_ERROR_INVALID); /* inputs are gone */
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "never written");
    CHECK(host_copy_write(&m) == DT_OK && host_copy_run(&m, 6) == DT_OK);
    CHECK(host_copy_hash(&m) == host_copy_expected("cpu", 6));
    dt_ctx_info before, after;
    dt_ctx_get_info(m.ctx, &before);
    CHECK(dt_store_restore(m.store, NULL, NULL) == DT_OK);
    dt_ctx_get_info(m.ctx, &after);
    CHECK(before.host_bytes == after.host_bytes); /* nothing is left of the old ones */
    CHECK(dt_store_restore(m.store, "no such device", NULL) == DT_ERROR_DEVICE);
    CHECK(host_copy_write(&m) == DT_OK && host_copy_run(&m, 7) == DT_OK);
    CHECK(dt_program_begin(m.train, NULL) == DT_OK);
    CHECK(dt_store_restore(m.store, NULL, NULL) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "under way");
    dt_ctx_destroy(m.ctx);
}

TEST(host_copy_of_a_store_costs_twice_its_state_and_a_step_allocates_nothing) {
    host_copy_model m, plain;
    dt_ctx_info with, without, after;
    REQUIRE(host_copy_open(&m, "cpu", 1, 1) == DT_OK &&
            host_copy_open(&plain, "cpu", 0, 1) == DT_OK);
    dt_ctx_get_info(m.ctx, &with);
    dt_ctx_get_info(plain.ctx, &without);
    dt_program_info info;
    dt_program_get_info(m.train, &info);
    const uint64_t state = 2 * (info.param_bytes + info.state_bytes);
    CHECK(with.host_bytes - without.host_bytes >= state);
    CHECK(with.host_bytes - without.host_bytes < state + 512);
    CHECK(host_copy_run(&m, 3) == DT_OK);
    dt_ctx_get_info(m.ctx, &after);
    CHECK(after.host_alloc_calls == with.host_alloc_calls);
    dt_ctx_destroy(m.ctx);
    dt_ctx_destroy(plain.ctx);
}

#ifndef DT_NO_VULKAN

static dti_PFN_vkQueueSubmit host_copy_submit;
static int host_copy_left; /* submissions until the device is lost */

static dti_VkResult DTI_VKAPI host_copy_lossy(dti_VkQueue queue, uint32_t count,
                                              const dti_VkSubmitInfo *infos, dti_VkFence fence) {
    return host_copy_left-- > 0 ? host_copy_submit(queue, count, infos, fence)
                                : DTI_VK_ERROR_DEVICE_LOST;
}

static void host_copy_lose(host_copy_model *m, int after) {
    dti_vk_device *device = (dti_vk_device *)m->store->device;
    host_copy_submit = device->vk.QueueSubmit;
    host_copy_left = after;
    device->vk.QueueSubmit = host_copy_lossy;
}

/* A copy from before the first step has no average: it is the weights. */
static void host_copy_averages(host_copy_model *m) {
    float w[32], average[32];
    CHECK(dt_store_read(m->store, 0, DT_VALUE_PARAM, w, sizeof w) == DT_OK);
    CHECK(dt_store_read(m->store, 0, DT_VALUE_AVERAGE, average, sizeof average) == DT_OK);
    CHECK((memcmp(w, average, sizeof w) == 0) == (m->store->steps < 2));
}

/* Loses the device after `after` submissions, restores it, and continues to the end. Whether it
 * was lost. */
static bool host_copy_lost_once(const char *name, int host_copy, int after, uint64_t expected) {
    host_copy_model m;
    uint64_t step = 99;
    CHECK(host_copy_open(&m, name, host_copy, 1) == DT_OK && host_copy_run(&m, 1) == DT_OK);
    host_copy_lose(&m, after);
    const dt_result result = host_copy_run(&m, 4);
    const uint64_t reached = m.store->steps;
    CHECK(result == DT_OK || result == DT_ERROR_DEVICE_LOST);
    if (result) {
        CHECK(dt_program_run(m.train, NULL, NULL) == DT_ERROR_DEVICE_LOST);
        CHECK_CONTAINS(dt_ctx_error(m.ctx), "dt_store_restore");
        CHECK(dt_store_restore(m.store, NULL, &step) == DT_OK);
        CHECK(step <= reached && step + (uint64_t)host_copy >= reached && step == m.store->steps);
        host_copy_averages(&m);
        CHECK(host_copy_write(&m) == DT_OK && host_copy_run(&m, 4) == DT_OK);
    }
    if (!result) /* the hash submits too, where memory is not the host's */
        ((dti_vk_device *)m.store->device)->vk.QueueSubmit = host_copy_submit;
    CHECK(host_copy_hash(&m) == expected);
    dt_ctx_destroy(m.ctx);
    return result != DT_OK;
}

/* One driver will do; the last is the quickest to open: SwiftShader, beside it, takes seconds. */
static void host_copy_on_one(void (*body)(const char *name)) {
    char name[24];
    const int count = vulkan_device_count();
    snprintf(name, sizeof name, "vulkan:%d", count - 1);
    if (count)
        body(name);
    else
        test_now.skipped = "no Vulkan driver";
}

static void host_copy_try_losses(const char *name) {
    const uint64_t expected = host_copy_expected(name, 4);
    for (int host_copy = 1; host_copy <= 2; host_copy++) {
        /* submissions that go well, then none: one in two, drawn; all in the long form */
        const int first = test_is_long() ? 0 : (int)((test_draw() + host_copy) % 2);
        int after = first;
        while (host_copy_lost_once(name, host_copy, after, expected))
            after += test_is_long() ? 1 : 2;
        CHECK(after >= 3 && after > first); /* one a step at least */
    }
}

TEST(a_store_on_a_lost_vulkan_device_resumes_from_its_host_copy_with_the_same_bits) {
    host_copy_on_one(host_copy_try_losses);
}

static void host_copy_try_ahead(const char *name) {
    host_copy_model m;
    uint64_t step = 0;
    CHECK(host_copy_open(&m, name, 2, 2) == DT_OK);
    for (int i = 0; i < 5; i++)
        CHECK(dt_program_start(m.train, NULL) == DT_OK);
    for (int i = 0; i < 2; i++) /* those before them ended for these */
        CHECK(dt_program_wait(m.train, NULL) == DT_OK);
    CHECK(m.store->steps == 5);
    host_copy_lose(&m, 0);
    CHECK(dt_program_start(m.train, NULL) == DT_ERROR_DEVICE_LOST);
    CHECK(dt_store_restore(m.store, NULL, &step) == DT_OK && step == 4);
    CHECK(host_copy_write(&m) == DT_OK && host_copy_run(&m, 8) == DT_OK);
    CHECK(host_copy_hash(&m) == host_copy_expected(name, 8));
    dt_ctx_destroy(m.ctx);
}

TEST(host_copy_is_exact_with_steps_in_flight) {
    host_copy_on_one(host_copy_try_ahead);
}

/* On the CPU it continues as a CPU does from those values. */
static void host_copy_try_elsewhere(const char *name) {
    host_copy_model m, other;
    uint64_t step = 0;
    CHECK(host_copy_open(&m, name, 1, 1) == DT_OK && host_copy_run(&m, 3) == DT_OK);
    CHECK(host_copy_open(&other, name, 0, 1) == DT_OK && host_copy_run(&other, 3) == DT_OK);
    CHECK(dt_store_restore(other.store, "cpu", NULL) == DT_OK);
    host_copy_lose(&m, 0);
    CHECK(dt_program_run(m.train, NULL, NULL) == DT_ERROR_DEVICE_LOST);
    CHECK(dt_store_restore(m.store, "cpu", &step) == DT_OK && step == 3);
    CHECK_STR(dt_store_device(m.store)->id, "cpu");
    CHECK(host_copy_write(&m) == DT_OK && host_copy_run(&m, 6) == DT_OK);
    CHECK(host_copy_write(&other) == DT_OK && host_copy_run(&other, 6) == DT_OK);
    CHECK(host_copy_hash(&m) == host_copy_hash(&other));
    dt_ctx_destroy(m.ctx);
    dt_ctx_destroy(other.ctx);
    CHECK(host_copy_open(&m, name, 0, 1) == DT_OK && host_copy_run(&m, 1) == DT_OK);
    host_copy_lose(&m, 0);
    CHECK(dt_program_run(m.train, NULL, NULL) == DT_ERROR_DEVICE_LOST);
    CHECK(dt_store_restore(m.store, NULL, NULL) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "dt_store_desc.host_checkpoint_steps");
    dt_ctx_destroy(m.ctx);
}

TEST(a_lost_store_resumes_on_another_device_only_with_a_host_copy) {
    host_copy_on_one(host_copy_try_elsewhere);
}

#endif
