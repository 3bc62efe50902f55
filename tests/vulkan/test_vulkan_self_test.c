/* A device that computes nothing, or wrong values, is refused when it is opened. Which drivers do
 * so, and what is left of the attempt. Included by main.c, after test_in_flight.c. */

#ifndef DT_NO_VULKAN

/* ---- drivers that are all wrong */

typedef struct self_test_host {
    bool held;
    int locks;
} self_test_host;

static void self_test_lock(void *user) {
    self_test_host *h = user;
    CHECK(!h->held);
    h->held = true;
    h->locks++;
}

static void self_test_unlock(void *user) {
    ((self_test_host *)user)->held = false;
}

static dt_result self_test_open(dti_base *base, const dt_vulkan_desc *host) {
    dti_vk_instance *in = NULL;
    dti_device *device = NULL;
    dt_result result = dti_vk_instance_create(base, &(dti_vk_options){.host = host}, &in);
    if (!result)
        result = dti_vk_open(in, 0, &device);
    CHECK(!result == (device != NULL));
    if (device)
        device->backend->close(device);
    dti_vk_instance_destroy(in);
    return result;
}

TEST(a_device_that_computes_nothing_or_wrong_values_is_refused_by_name_without_leaks) {
    for (int answer = 0; answer < STUB_ANSWERS; answer++) {
        dti_base base;
        vulkan_log log;
        self_test_host host = {0};
        dt_vulkan_desc desc = stub_vulkan();
        const uint64_t held = stub.held;
        desc.lock = self_test_lock;
        desc.unlock = self_test_unlock;
        desc.user = &host;
        vulkan_base(&base, &log);
        stub.answer = (stub_answer)answer;
        const dt_result result = self_test_open(&base, &desc);
        stub.answer = STUB_RIGHT;
        CHECK(result == (answer == STUB_RIGHT ? DT_OK : DT_ERROR_DEVICE));
        CHECK_CONTAINS(base.error, answer == STUB_RIGHT ? "" : "vulkan:0 (stub, ");
        CHECK_CONTAINS(base.error, answer == STUB_RIGHT ? "" : "computes wrong values");
        CHECK_CONTAINS(base.error, answer == STUB_ONE_BIT ? "1 of " : "");
        CHECK(host.locks >= 3 && !host.held); /* the application's lock is taken and given back */
        CHECK(base.bytes_now == 0 && stub.held == held);
    }
}

TEST(training_on_a_device_that_computes_nothing_is_an_error_and_no_loss_of_zero) {
    const dt_vulkan_desc vulkan = stub_vulkan();
    ahead_case c;
    stub_vulkan_case = &vulkan;
    stub.answer = STUB_STALE;
    CHECK(!ahead_open(&c, "vulkan", &(dt_optim_desc){0}, 1));
    stub.answer = STUB_RIGHT;
    stub_vulkan_case = NULL;
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "computes wrong values");
    dt_ctx_destroy(c.ctx);
}

/* ---- a driver that is right except for its dispatches */

static dti_PFN_vkGetDeviceProcAddr self_test_proc;
static dti_PFN_vkCmdDispatch self_test_dispatch;
static uint32_t self_test_groups; /* of a dispatch are computed */

static void DTI_VKAPI self_test_some(dti_VkCommandBuffer command, uint32_t x, uint32_t y,
                                     uint32_t z) {
    if (self_test_groups)
        self_test_dispatch(command, DTI_MIN(x, self_test_groups), y, z);
}

static dti_PFN_vkVoidFunction DTI_VKAPI self_test_find(dti_VkDevice device, const char *name) {
    const dti_PFN_vkVoidFunction found = self_test_proc(device, name);
    if (strcmp(name, "vkCmdDispatch") != 0)
        return found;
    self_test_dispatch = (dti_PFN_vkCmdDispatch)found;
    return (dti_PFN_vkVoidFunction)self_test_some;
}

static bool self_test_try(int index, uint32_t groups, bool no_unified) {
    vulkan_rig rig;
    vulkan_base(&rig.base, &rig.log);
    rig.device = NULL;
    const dti_vk_options options = {.no_unified = no_unified, .validation = true};
    const bool there =
        !dti_vk_instance_create(&rig.base, &options, &rig.in) && index < rig.in->device_count;
    if (there && rig.in->infos[index].usable) {
        self_test_groups = groups;
        self_test_proc = rig.in->vk.GetDeviceProcAddr;
        rig.in->vk.GetDeviceProcAddr = self_test_find;
        CHECK(dti_vk_open(rig.in, index, &rig.device) == DT_ERROR_DEVICE && !rig.device);
        CHECK_CONTAINS(rig.base.error, rig.in->infos[index].name);
        rig.in->vk.GetDeviceProcAddr = self_test_proc; /* it is opened once it is fixed */
        CHECK(dti_vk_open(rig.in, index, &rig.device) == DT_OK);
    }
    vulkan_rig_close(&rig);
    return there;
}

TEST(a_driver_that_leaves_out_workgroups_is_refused_when_a_device_is_opened) {
    int index = 0;
    for (int apart = 0; apart < 2; apart++) {
        index = 0;
        while (self_test_try(index, 0, apart) && self_test_try(index, 299, apart))
            index++;
    }
    if (!index)
        SKIP("no Vulkan driver");
}

/* ---- memory that is not there */

typedef struct self_test_meter {
    int64_t calls, fail_at; /* this one and all later ones fail, or it alone */
    bool lasting;
    int held;
} self_test_meter;

static void *self_test_alloc(void *user, size_t bytes, size_t align) {
    self_test_meter *m = user;
    const int64_t call = ++m->calls;
    if (m->fail_at && (m->lasting ? call >= m->fail_at : call == m->fail_at))
        return NULL;
    m->held++;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void self_test_free(void *user, void *pointer, size_t bytes) {
    (void)bytes;
    ((self_test_meter *)user)->held -= pointer != NULL;
    free(pointer);
}

TEST(every_allocation_that_fails_while_a_device_is_tested_is_reported_and_freed) {
    const dt_vulkan_desc desc = stub_vulkan();
    const uint64_t held = stub.held;
    int64_t k = 0, all = 1;
    for (; k <= all && k < 1000; k++)
        for (int lasting = 0; lasting < 2; lasting++) {
            self_test_meter m = {.fail_at = k, .lasting = lasting};
            const dt_allocator allocator = {self_test_alloc, self_test_free, &m};
            dti_base base;
            dti_base_init(&base, &allocator, NULL);
            const dt_result result = self_test_open(&base, &desc);
            CHECK(result == (k ? DT_ERROR_MEMORY : DT_OK));
            CHECK(m.held == 0 && stub.held == held);
            all = k ? all : m.calls;
        }
    CHECK(k > 10);
}

#endif
