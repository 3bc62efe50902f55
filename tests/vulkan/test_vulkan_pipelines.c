/* Pipelines of a program are made together: the same by any number of threads, whatever fails.
 * Included by main.c, after test_vulkan.c. */
#ifndef DT_NO_VULKAN

enum { PIPELINES_MANY = 12 };

static int64_t pipelines_calls, pipelines_fail_at;

static void *pipelines_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    if (++pipelines_calls == pipelines_fail_at)
        return NULL;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void pipelines_free(void *user, void *memory, size_t bytes) {
    (void)user;
    (void)bytes;
    free(memory);
}

/* With a pool of `threads`. Messages of the validation layer come on any of them; where there
 * is one the test has failed. */
static bool pipelines_open(vulkan_rig *rig, int threads) {
    const int device = vulkan_quick_device();
    vulkan_base(&rig->base, &rig->log);
    rig->base.allocator = (dt_allocator){pipelines_alloc, pipelines_free, NULL};
    pipelines_fail_at = 0;
    if (!vulkan_rig_start(rig, device, (dti_vk_options){0}))
        return false;
    CHECK(dti_pool_create(&rig->base, threads, NULL, &rig->base.pool) == DT_OK);
    return true;
}

static void pipelines_close(vulkan_rig *rig) {
    dti_pool_destroy(&rig->base, rig->base.pool);
    vulkan_rig_close(rig);
}

/* Some that are new, each asked for twice. */
static dt_result pipelines_want(dti_vk_device *device, uint32_t index[PIPELINES_MANY]) {
    static const dti_kernel_id kernels[] = {DTI_K_MAP2, DTI_K_TERM_GRAD, DTI_K_COPY};
    dt_result result = DT_OK;
    uint32_t again = 0;
    for (uint32_t i = 0; i < PIPELINES_MANY && !result; i++) {
        const uint32_t kernel = kernels[i % 3], spec[4] = {0, 0, 0, i / 3 + 1};
        result = dti_vk_pipeline_want(device, kernel, 0, 64, 0, spec, &index[i]);
        if (!result)
            result = dti_vk_pipeline_want(device, kernel, 0, 64, 0, spec, &again);
        CHECK(result || again == index[i]);
    }
    return result;
}

static dt_result pipelines_make(vulkan_rig *rig, dt_result result) {
    dti_vk_device *device = (dti_vk_device *)rig->device;
    const dti_VkDebugUtilsMessengerEXT messenger = rig->in->messenger;
    rig->in->messenger = NULL; /* with it the caller makes all */
    result = dti_vk_pipelines_make(device, result);
    rig->in->messenger = messenger;
    CHECK(device->pipeline_ready == device->pipeline_count);
    for (size_t i = 0; i < device->pipeline_count; i++)
        CHECK(device->pipelines[i].handle && !device->pipelines[i].words);
    return result;
}

/* ---- a driver that refuses modules, and counts by how many threads it is asked at once */

static struct pipelines_driver {
    dti_PFN_vkCreateShaderModule real;
    uint32_t refused; /* the modules, by their bound, which no constant changes; 0: none */
    uint32_t threads; /* a call waits until there are this many */
    _Atomic uint32_t calls, running, most;
} pipelines_driver;

static dti_VkResult DTI_VKAPI pipelines_create(dti_VkDevice device,
                                               const dti_VkShaderModuleCreateInfo *info,
                                               const void *allocator, void *module) {
    struct pipelines_driver *d = &pipelines_driver;
    const uint64_t end = dti_now_ns() + 2000000000;
    const uint32_t running = atomic_fetch_add(&d->running, 1) + 1;
    if (running > atomic_load(&d->most))
        atomic_store(&d->most, running);
    while (atomic_load(&d->most) < d->threads && dti_now_ns() < end)
        dti_thread_yield();
    atomic_fetch_add(&d->calls, 1);
    atomic_fetch_sub(&d->running, 1);
    if (info->pCode[3] == d->refused)
        return DTI_VK_ERROR_OUT_OF_HOST_MEMORY;
    return d->real(device, info, allocator, module);
}

static void pipelines_refuse(dti_vk_device *device, uint32_t kernel, int threads) {
    uint32_t *words = NULL;
    CHECK(!dti_vk_shader_words(device->head.base, dti_vk_shader_of(kernel, 0), &words));
    pipelines_driver = (struct pipelines_driver){
        .real = device->vk.CreateShaderModule, .refused = words[3], .threads = (uint32_t)threads};
    device->vk.CreateShaderModule = pipelines_create;
    dti_free(device->head.base, words);
}

/* What the driver refuses is reported, the others are kept, and a later program has all. */
static void pipelines_try(int threads, dti_vk_pipeline made[PIPELINES_MANY], char *error) {
    vulkan_rig rig;
    uint32_t index[PIPELINES_MANY];
    if (!pipelines_open(&rig, threads))
        return;
    dti_vk_device *device = (dti_vk_device *)rig.device;
    const size_t before = device->pipeline_count;
    pipelines_refuse(device, DTI_K_TERM_GRAD, threads);
    CHECK(pipelines_make(&rig, pipelines_want(device, index)) == DT_ERROR_MEMORY);
    strcpy(error, rig.base.error);
    CHECK(device->pipeline_count == before + PIPELINES_MANY - 4);
    CHECK(pipelines_driver.calls == PIPELINES_MANY);
    test_check(pipelines_driver.most == (uint32_t)threads, __FILE__, __LINE__,
               "%u at once by %d threads", pipelines_driver.most, threads);
    pipelines_driver.refused = 0;
    CHECK(pipelines_make(&rig, pipelines_want(device, index)) == DT_OK);
    CHECK(device->pipeline_count == before + PIPELINES_MANY);
    CHECK(pipelines_driver.calls == PIPELINES_MANY + 4);
    CHECK(device->made.count == PIPELINES_MANY);
    for (int i = 0; i < PIPELINES_MANY; i++) {
        made[i] = device->pipelines[before + (size_t)i];
        made[i].handle = NULL;
    }
    pipelines_close(&rig);
}

TEST(device_pipelines_are_the_same_from_one_thread_and_two_even_if_the_driver_refuses_some) {
    if (!vulkan_device_count())
        SKIP("no Vulkan driver");
    dti_vk_pipeline one[PIPELINES_MANY], two[PIPELINES_MANY];
    char text[2][1024] = {"", ""};
    memset(one, 0, sizeof one);
    memset(two, 0, sizeof two);
    pipelines_try(1, one, text[0]);
    pipelines_try(2, two, text[1]);
    for (int i = 0; i < PIPELINES_MANY; i++)
        CHECK(one[i].kernel == two[i].kernel &&
              !memcmp(one[i].spec, two[i].spec, sizeof one[i].spec));
    CHECK(text[0][0] && !strcmp(text[0], text[1]));
}

/* ---- memory that is not there */

TEST(an_allocation_that_fails_while_pipelines_are_created_leaves_no_partial_pipeline) {
    uint32_t index[PIPELINES_MANY];
    vulkan_rig rig;
    if (!vulkan_device_count())
        SKIP("no Vulkan driver");
    if (pipelines_open(&rig, 2)) {
        dti_vk_device *device = (dti_vk_device *)rig.device;
        const size_t before = device->pipeline_count;
        dt_result result = DT_ERROR_MEMORY;
        int64_t k = 1;
        for (; result == DT_ERROR_MEMORY && k < 100; k++) {
            pipelines_calls = 0;
            pipelines_fail_at = k;
            result = pipelines_make(&rig, pipelines_want(device, index));
            CHECK(!result || device->pipeline_count == before);
        }
        pipelines_fail_at = 0;
        CHECK(result == DT_OK && k > PIPELINES_MANY);
        CHECK(device->pipeline_count == before + PIPELINES_MANY);
    }
    pipelines_close(&rig);
}

#endif
