/* Inside a renderer: dtrain on the application's Vulkan device, on every driver that is present.
 * The validation layer is used where it is installed. Compiled as an application's file is: it sees
 * dtrain.h and Khronos' header, and makes its device itself (vulkan_host.h). */
#include "harness.h"

#if defined __has_include && !defined DT_NO_VULKAN
#if __has_include(<vulkan/vulkan.h>)
#define HAS_HEADER
#endif
#endif

#ifndef HAS_HEADER
TEST(vulkan_host_tests_run) {
    SKIP("no <vulkan/vulkan.h>, or built without Vulkan");
}
#else
#include "vulkan/vulkan_host.h"

typedef struct model {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, t, y;
    dt_store *store;
    dt_program *train;
    char text[512]; /* the newest error */
} model;

static const float host_x[4][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}},
                   host_t[4][1] = {{0}, {1}, {1}, {0}};

static void model_hears(void *user, dt_log_level level, const char *message) {
    model *m = user;
    if (level == DT_LOG_ERROR)
        snprintf(m->text, sizeof m->text, "%s", message);
}

static dt_result model_context(model *m, const dt_vulkan_desc *vulkan) {
    *m = (model){0};
    return dt_ctx_create(&(dt_ctx_desc){.logger = {model_hears, m}, .vulkan = vulkan}, &m->ctx);
}

static void model_graph(model *m) {
    CHECK(dt_graph_create(m->ctx, &m->graph) == DT_OK);
    m->x = dt_input(m->graph, "x", DT_F32, dt_dims(2));
    m->t = dt_input(m->graph, "t", DT_F32, dt_dims(1));
    m->y = dt_nn_linear(dt_tanh(dt_nn_linear(m->x, "hidden", 16)), "out", 1);
}

static dt_result model_open(model *m, const dt_vulkan_desc *vulkan, const char *device) {
    dt_result result = model_context(m, vulkan);
    if (result)
        return result;
    model_graph(m);
    dt_optim_desc adam = {.lr = 0.01};
    result = dt_store_create(m->graph, &(dt_store_desc){.device = device, .seed = 3}, &m->store);
    dt_program_desc train = {
        .loss = dt_mse(m->y, m->t), .outputs = {m->y}, .batch = 4, .optim = &adam};
    if (!result)
        result = dt_program_create(m->store, &train, &m->train);
    if (!result)
        result = dt_program_write(m->train, m->x, host_x, sizeof host_x);
    return result ? result : dt_program_write(m->train, m->t, host_t, sizeof host_t);
}

static void model_close(model *m) {
    CHECK(dt_ctx_error(m->ctx)[0] == 0);
    dt_ctx_destroy(m->ctx);
}

/* The state's hash; 0: an error. Checks nothing: threads call it. */
static uint64_t model_trained(model *m, int steps) {
    uint64_t hash = 0;
    for (int i = 0; i < steps; i++)
        if (dt_program_run(m->train, NULL, NULL) != DT_OK)
            return 0;
    return dt_store_state_hash(m->store, &hash) == DT_OK ? hash : 0;
}

/* Runs body on every device, which an application has. */
static bool host_on_each(void (*body)(host *h, uint32_t index)) {
    uint32_t count = 0;
    host h;
    while (host_open(&h, count, true)) {
        body(&h, count++);
        host_close(&h);
    }
    host_close(&h);
    return count > 0;
}

#define ON_EACH(body)                                                                              \
    do {                                                                                           \
        if (!host_on_each(body))                                                                   \
            SKIP("no Vulkan driver");                                                              \
    } while (0)

/* ---- The device ------------------------------------------------------------------------------ */

static void host_try_same_bits(host *h, uint32_t index) {
    dt_vulkan_desc desc = host_desc(h);
    model own, hosted;
    char name[16];
    snprintf(name, sizeof name, "vulkan:%u", index);
    CHECK(model_open(&own, NULL, name) == DT_OK);
    CHECK(model_open(&hosted, &desc, "vulkan") == DT_OK);
    CHECK_STR(dt_store_device(own.store)->name, dt_store_device(hosted.store)->name);
    CHECK_STR(dt_store_device(hosted.store)->id, "vulkan:0");
    CHECK(dt_ctx_device_count(hosted.ctx) == 2); /* the CPU and this one */
    const int locks = h->locks;
    const uint64_t hash = model_trained(&own, 5);
    CHECK(hash && hash == model_trained(&hosted, 5));
    CHECK(h->locks >= locks + 5);
    model_close(&own);
    model_close(&hosted);
    CHECK(VK(h, vkDeviceWaitIdle)(h->device) == VK_SUCCESS); /* it is still there */
}

TEST(vulkan_host_device_trains_with_the_bits_of_a_device_of_its_own) {
    ON_EACH(host_try_same_bits);
}

typedef struct host_job {
    host *h;
    model m;
    uint64_t hash;
    int submits;
    bool submitted; /* all of them */
} host_job;

static void *host_train(void *arg) {
    host_job *job = arg;
    job->hash = model_trained(&job->m, 30);
    return NULL;
}

static void *host_render(void *arg) {
    host_job *job = arg;
    VkSubmitInfo nothing = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO};
    VkResult result = VK_SUCCESS;
    for (; result == VK_SUCCESS && job->submits < 300; job->submits++) {
        host_lock(job->h);
        result = VK(job->h, vkQueueSubmit)(job->h->queue, 1, &nothing, VK_NULL_HANDLE);
        host_unlock(job->h);
    }
    job->submitted = result == VK_SUCCESS;
    return NULL;
}

/* The layer reports a queue that two threads use at once. */
static void host_try_threads(host *h, uint32_t index) {
    dt_vulkan_desc desc = host_desc(h);
    host_job jobs[3] = {{.h = h}, {.h = h}, {.h = h}};
    pthread_t threads[3];
    (void)index;
    for (int i = 0; i < 2; i++)
        CHECK(model_open(&jobs[i].m, &desc, "vulkan") == DT_OK);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, i < 2 ? host_train : host_render, &jobs[i]) == 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    CHECK(jobs[0].hash == jobs[1].hash && jobs[0].hash);
    CHECK(jobs[2].submitted);
    for (int i = 0; i < 2; i++)
        model_close(&jobs[i].m);
}

TEST(vulkan_host_device_is_shared_by_two_contexts_and_a_renderer_in_threads) {
    ON_EACH(host_try_threads);
}

/* ---- Semaphores ------------------------------------------------------------------------------ */

static void host_try_semaphores(host *h, uint32_t index) {
    dt_vulkan_desc desc = host_desc(h);
    model m;
    VkSemaphore frame = host_semaphore(h), step = host_semaphore(h);
    dt_step_state state = DT_STEP_DONE;
    (void)index;
    CHECK(model_open(&m, &desc, "vulkan") == DT_OK);
    dt_step_desc s = {.wait = {(uint64_t)frame, 1}, .signal = {(uint64_t)step, 1}};
    CHECK(dt_program_begin(m.train, &s) == DT_OK);
    for (int i = 0; i < 50; i++)
        CHECK(dt_program_advance(m.train, &state) == DT_OK && state == DT_STEP_RUNNING);
    CHECK(host_value(h, step) == 0);
    host_signal(h, frame, 1);
    while (state != DT_STEP_DONE)
        CHECK(dt_program_advance(m.train, &state) == DT_OK);
    CHECK(host_reaches(h, step, 1));
    CHECK(dt_program_end(m.train, NULL) == DT_OK);
    s = (dt_step_desc){.signal = {(uint64_t)step, 2}};
    CHECK(dt_program_begin(m.train, &s) == DT_OK);
    CHECK(dt_program_advance(m.train, &state) == DT_OK);
    CHECK(host_value(h, step) == 1);
    CHECK(dt_program_cancel(m.train, NULL) == DT_OK);
    CHECK(host_reaches(h, step, 2)); /* also of a step that was cancelled */
    s.signal.value = 3;
    CHECK(dt_program_run(m.train, &s, NULL) == DT_OK && host_value(h, step) == 3);
    model_close(&m);
    VK(h, vkDestroySemaphore)(h->device, frame, NULL);
    VK(h, vkDestroySemaphore)(h->device, step, NULL);
}

TEST(vulkan_host_step_waits_for_a_semaphore_and_signals_one) {
    ON_EACH(host_try_semaphores);
}

/* ---- Buffers --------------------------------------------------------------------------------- */

#define HOST_STORAGE VK_BUFFER_USAGE_STORAGE_BUFFER_BIT

static dt_program_desc external_desc(const model *m, const host_buffer *b) {
    const uint64_t handle = (uint64_t)b->handle;
    return (dt_program_desc){.outputs = {m->y},
                             .batch = 4,
                             .external = {{m->x, {handle, 256, 32}}, {m->y, {handle, 512, 16}}}};
}

static void host_try_buffers(host *h, dt_precision precision) {
    dt_vulkan_desc desc = host_desc(h);
    model m;
    dt_program *external = NULL;
    float y[4];
    VkSemaphore step = host_semaphore(h);
    host_buffer b = host_buffer_make(h, 1024, HOST_STORAGE);
    CHECK(model_open(&m, &desc, "vulkan") == DT_OK);
    CHECK(model_trained(&m, 3));
    dt_program_desc d = external_desc(&m, &b);
    d.precision = precision;
    CHECK(dt_program_create(m.store, &d, &external) == DT_OK);
    memcpy(b.mapped + 256, host_x, sizeof host_x);
    const dt_step_desc s = {.signal = {(uint64_t)step, 1}};
    CHECK(dt_program_run(external, &s, NULL) == DT_OK && host_reaches(h, step, 1));
    d.external[0] = d.external[1] = (dt_external_buffer){0};
    dt_program *own = NULL;
    CHECK(dt_program_create(m.store, &d, &own) == DT_OK);
    CHECK(dt_program_write(own, m.x, host_x, sizeof host_x) == DT_OK);
    CHECK(dt_program_run(own, NULL, NULL) == DT_OK);
    CHECK(dt_program_read(own, m.y, y, sizeof y) == DT_OK && y[0] != 0);
    CHECK(!memcmp(b.mapped + 512, y, sizeof y));
    dt_program_info with, without;
    dt_program_get_info(external, &with);
    dt_program_get_info(own, &without);
    CHECK(with.io_bytes < without.io_bytes && with.launches == without.launches);
    for (int i = 0; i < 256; i++) /* around it */
        CHECK(!b.mapped[i] && !b.mapped[528 + i]);
    CHECK(dt_ctx_error(m.ctx)[0] == 0);
    CHECK(dt_program_write(external, m.x, host_x, sizeof host_x) == DT_ERROR_INVALID);
    CHECK(dt_program_read(external, m.y, y, sizeof y) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "external buffer");
    dt_ctx_destroy(m.ctx);
    host_buffer_end(h, &b);
    VK(h, vkDestroySemaphore)(h->device, step, NULL);
}

static void host_try_plain_buffers(host *h, uint32_t index) {
    (void)index;
    host_try_buffers(h, DT_PRECISION_F32);
}

static void host_try_mixed_buffers(host *h, uint32_t index) {
    (void)index;
    host_try_buffers(h, DT_PRECISION_BF16);
}

TEST(vulkan_host_buffers_are_inputs_and_outputs_without_a_copy) {
    ON_EACH(host_try_plain_buffers);
}

TEST(vulkan_host_buffers_are_inputs_and_outputs_in_mixed_precision) {
    ON_EACH(host_try_mixed_buffers);
}

static void host_try_parameters(host *h, uint32_t index) {
    dt_vulkan_desc desc = host_desc(h);
    model m;
    dt_vulkan_buffer where;
    float values[32];
    (void)index;
    VkSemaphore step = host_semaphore(h);
    host_buffer b = host_buffer_make(h, 128, VK_BUFFER_USAGE_TRANSFER_DST_BIT);
    CHECK(model_open(&m, &desc, "vulkan") == DT_OK);
    const int weight = dt_store_find(m.store, "hidden.weight");
    for (int i = 0; i < 2; i++) {
        const dt_step_desc s = {.signal = {(uint64_t)step, 1}};
        CHECK(dt_program_run(m.train, i ? NULL : &s, NULL) == DT_OK);
        CHECK(dt_store_vulkan_buffer(m.store, weight, DT_VALUE_PARAM, &where) == DT_OK);
        CHECK(where.bytes == sizeof values);
        host_copy(h, i ? VK_NULL_HANDLE : step, &where, b.handle);
        CHECK(dt_store_read(m.store, weight, DT_VALUE_PARAM, values, sizeof values) == DT_OK);
        CHECK(!memcmp(b.mapped, values, sizeof values) && values[0] != 0);
    }
    model_close(&m);
    host_buffer_end(h, &b);
    VK(h, vkDestroySemaphore)(h->device, step, NULL);
}

TEST(vulkan_host_reads_parameters_in_place) {
    ON_EACH(host_try_parameters);
}

#define REFUSES_EXTERNAL(part, ...)                                                                \
    do {                                                                                           \
        dt_program_desc d = external_desc(&m, &b);                                                 \
        dt_program *made = NULL;                                                                   \
        __VA_ARGS__;                                                                               \
        CHECK(dt_program_create(m.store, &d, &made) == DT_ERROR_INVALID && !made);                 \
        CHECK_CONTAINS(dt_ctx_error(m.ctx), part);                                                 \
    } while (0)

static void host_try_wrong_buffers(host *h, uint32_t index) {
    dt_vulkan_desc desc = host_desc(h);
    model m;
    host_buffer b = host_buffer_make(h, 1024, HOST_STORAGE);
    (void)index;
    CHECK(model_open(&m, &desc, "vulkan") == DT_OK);
    REFUSES_EXTERNAL(".external[0].memory.buffer is 0", d.external[0].memory.buffer = 0);
    REFUSES_EXTERNAL(".external[0] has 31 bytes at 256, but 'x' needs 32",
                     d.external[0].memory.bytes = 31);
    REFUSES_EXTERNAL("multiple of", d.external[1].memory.offset = 514);
    REFUSES_EXTERNAL("overlaps", d.external[1].memory.offset = 256);
    REFUSES_EXTERNAL("both of", d.external[1].tensor = m.x);
    REFUSES_EXTERNAL("either an input", d.external[1].tensor = m.t);
    REFUSES_EXTERNAL("after a nil one", d.external[0].tensor = (dt_tensor){0});
    REFUSES_EXTERNAL("bytes at 18446744073709551360",
                     d.external[1].memory =
                         (dt_vulkan_buffer){(uint64_t)b.handle, UINT64_MAX - 255, 512});
    dt_ctx_destroy(m.ctx);
    CHECK(model_open(&m, NULL, "cpu") == DT_OK);
    REFUSES_EXTERNAL("application's device", (void)0);
    dt_vulkan_buffer where;
    CHECK(dt_store_vulkan_buffer(m.store, 0, DT_VALUE_PARAM, &where) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "dt_ctx_desc.vulkan");
    dt_ctx_destroy(m.ctx);
    host_buffer_end(h, &b);
}

TEST(vulkan_host_buffers_that_do_not_fit_are_refused) {
    ON_EACH(host_try_wrong_buffers);
}

static void host_try_labels(host *h, uint32_t index) {
    dt_vulkan_desc desc = host_desc(h);
    model m;
    host_buffer b = host_buffer_make(h, 1024, HOST_STORAGE);
    dt_program *made = NULL;
    (void)index;
    CHECK(model_context(&m, &desc) == DT_OK);
    CHECK(dt_graph_create(m.ctx, &m.graph) == DT_OK);
    m.x = dt_input(m.graph, "x", DT_F32, dt_dims(3));
    m.t = dt_input(m.graph, "label", DT_I32, dt_dims());
    dt_program_desc d = {.loss = dt_cross_entropy(m.x, m.t, NULL),
                         .batch = 4,
                         .external = {{m.t, {(uint64_t)b.handle, 256, 16}}}};
    CHECK(dt_store_create(m.graph, &(dt_store_desc){.device = "vulkan"}, &m.store) == DT_OK);
    CHECK(dt_program_create(m.store, &d, &made) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "class numbers");
    dt_ctx_destroy(m.ctx);
    host_buffer_end(h, &b);
}

TEST(vulkan_host_buffers_hold_no_class_numbers) {
    ON_EACH(host_try_labels);
}

/* ---- What is refused ------------------------------------------------------------------------- */

#define REFUSED(result, part, ...)                                                                 \
    do {                                                                                           \
        dt_vulkan_desc wrong = host_desc(h);                                                       \
        model m;                                                                                   \
        __VA_ARGS__;                                                                               \
        CHECK(model_context(&m, &wrong) == (result) && !m.ctx);                                    \
        CHECK_CONTAINS(m.text, part);                                                              \
    } while (0)

static PFN_vkVoidFunction VKAPI_PTR host_old_loader(VkInstance instance, const char *name) {
    (void)instance, (void)name;
    return NULL;
}

static void host_try_wrong(host *h, uint32_t index) {
    (void)index;
    REFUSED(DT_ERROR_INVALID, "get_instance_proc_addr is NULL",
            wrong.get_instance_proc_addr = NULL);
    REFUSED(DT_ERROR_INVALID, "instance is NULL", wrong.instance = NULL);
    REFUSED(DT_ERROR_INVALID, "physical_device is NULL", wrong.physical_device = NULL);
    REFUSED(DT_ERROR_INVALID, "device is NULL", wrong.device = NULL);
    REFUSED(DT_ERROR_INVALID, "queue is NULL", wrong.queue = NULL);
    REFUSED(DT_ERROR_INVALID, "both lock and unlock", wrong.unlock = NULL);
    REFUSED(DT_ERROR_UNSUPPORTED, "compute queue", wrong.queue_family = 7);
    REFUSED(DT_ERROR_UNSUPPORTED, "Vulkan 1.1",
            wrong.get_instance_proc_addr = (void (*)(void))host_old_loader);
}

TEST(vulkan_host_descriptions_that_are_wrong_are_refused) {
    ON_EACH(host_try_wrong);
}

static void host_try_no_semaphores(host *h, uint32_t index) {
    dt_vulkan_desc desc = host_desc(h);
    const dt_step_desc s = {.wait = {1, 1}};
    model m;
    (void)index;
    desc.timeline_semaphore = false;
    CHECK(model_open(&m, &desc, "vulkan") == DT_OK);
    CHECK(!dt_store_device(m.store)->has_timeline && !dt_store_device(m.store)->has_float_controls);
    CHECK(dt_program_run(m.train, &s, NULL) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "timeline_semaphore");
    CHECK(dt_program_run(m.train, NULL, NULL) == DT_OK);
    dt_ctx_destroy(m.ctx);
    CHECK(model_open(&m, &(dt_vulkan_desc){0}, "cpu") == DT_ERROR_INVALID);
    CHECK(model_open(&m, NULL, "cpu") == DT_OK);
    CHECK(dt_program_run(m.train, &s, NULL) == DT_ERROR_INVALID);
    dt_ctx_destroy(m.ctx);
}

TEST(vulkan_host_semaphores_need_the_feature_and_the_device) {
    ON_EACH(host_try_no_semaphores);
}
#endif
