/* Vulkan devices: their properties, as a dt_device_info, and opening one. A device has a single
 * compute queue and no optional features. For the application's device, has_float16 and similar
 * members say which features may be used. A device below the portable core (128 invocations, 16 KiB
 * of shared memory, 4 storage buffers, 128 bytes of push constants) is not usable. The reason is at
 * the end of its info's driver text. */

/* ---- Describing ------------------------------------------------------------------------------ */

/* A device's properties, and the structures chained to them. */
static dti_VkPhysicalDeviceProperties2
dti_vk_properties(dti_vk_instance *in, dti_VkPhysicalDevice physical, void *next) {
    dti_VkPhysicalDeviceProperties2 all = {
        .sType = DTI_VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = next};
    in->vk.GetPhysicalDeviceProperties2(physical, &all);
    return all;
}

static dti_VkPhysicalDeviceMemoryProperties
dti_vk_heaps(dti_vk_instance *in, dti_VkPhysicalDevice physical, void *next) {
    dti_VkPhysicalDeviceMemoryProperties2 all = {
        .sType = DTI_VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, .pNext = next};
    in->vk.GetPhysicalDeviceMemoryProperties2(physical, &all);
    return all.memoryProperties;
}

static dt_device_kind dti_vk_kind(dti_VkPhysicalDeviceType type) {
    switch (type) {
    case DTI_VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: return DT_DEVICE_DISCRETE;
    case DTI_VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: return DT_DEVICE_INTEGRATED;
    case DTI_VK_PHYSICAL_DEVICE_TYPE_CPU: return DT_DEVICE_SOFTWARE;
    default: return DT_DEVICE_VIRTUAL;
    }
}

static void dti_vk_describe_limits(dt_device_info *info, const dti_VkPhysicalDeviceProperties *p) {
    const dti_VkPhysicalDeviceLimits *limits = &p->limits;
    info->kind = dti_vk_kind(p->deviceType);
    info->api_major = p->apiVersion >> 22 & 0x7f;
    info->api_minor = p->apiVersion >> 12 & 0x3ff;
    info->api_patch = p->apiVersion & 0xfff;
    info->vendor_id = p->vendorID;
    info->device_id = p->deviceID;
    info->storage_range_bytes = limits->maxStorageBufferRange;
    info->workgroup_invocations =
        DTI_MIN(limits->maxComputeWorkGroupInvocations, limits->maxComputeWorkGroupSize[0]);
    info->shared_bytes = limits->maxComputeSharedMemorySize;
    info->storage_buffers = limits->maxPerStageDescriptorStorageBuffers;
    info->push_constant_bytes = limits->maxPushConstantsSize;
    info->offset_alignment = (uint32_t)DTI_MAX(limits->minStorageBufferOffsetAlignment,
                                               limits->minUniformBufferOffsetAlignment);
}

/* Subgroups are of 1.1; the driver's own name came with 1.2 or an extension. */
static void dti_vk_describe_driver(dti_vk_instance *in, int index,
                                   const dti_VkPhysicalDeviceProperties *p) {
    dt_device_info *info = &in->infos[index];
    dti_VkPhysicalDeviceDriverProperties driver = {
        .sType = DTI_VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
    dti_VkPhysicalDeviceSubgroupProperties subgroup = {
        .sType = DTI_VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
    if (p->apiVersion >= DTI_VK_1_2 ||
        dti_vk_has(in, in->physical[index], NULL, "VK_KHR_driver_properties"))
        subgroup.pNext = &driver;
    dti_vk_properties(in, in->physical[index], &subgroup);
    info->subgroup_size = subgroup.subgroupSize;
    /* The precisions only show the compiler that the text fits: it is cut in any case. */
    if (driver.driverName[0])
        snprintf(info->driver, sizeof info->driver, "%.90s %.90s", driver.driverName,
                 driver.driverInfo);
    else
        snprintf(info->driver, sizeof info->driver, "driver version 0x%08x", p->driverVersion);
}

/* By the extension also where it is of the core: newer devices are used as 1.1. */
#define DTI_VK_FLOAT_CONTROLS "VK_KHR_shader_float_controls"
#define DTI_VK_FEEDBACK "VK_EXT_pipeline_creation_feedback"

/* Whether kernels may request that signed zeros, infinities and NaN are preserved. */
static bool dti_vk_preserves(dti_vk_instance *in, dti_VkPhysicalDevice physical) {
    dti_VkPhysicalDeviceFloatControlsProperties controls = {
        .sType = DTI_VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES};
    if (!dti_vk_has(in, physical, NULL, DTI_VK_FLOAT_CONTROLS))
        return false;
    dti_vk_properties(in, physical, &controls);
    return controls.shaderSignedZeroInfNanPreserveFloat32;
}

static void dti_vk_describe_features(dti_vk_instance *in, int index, uint32_t version) {
    dt_device_info *info = &in->infos[index];
    const dti_VkPhysicalDevice physical = in->physical[index];
    dti_VkPhysicalDeviceTimelineSemaphoreFeatures timeline = {
        .sType = DTI_VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES};
    dti_VkPhysicalDeviceShaderFloat16Int8Features float16 = {
        .sType = DTI_VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES};
    dti_VkPhysicalDevice16BitStorageFeatures storage16 = {
        .sType = DTI_VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES};
    dti_VkPhysicalDeviceFeatures2 all = {.sType = DTI_VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                         .pNext = &storage16};
    if (version >= DTI_VK_1_2 || dti_vk_has(in, physical, NULL, "VK_KHR_shader_float16_int8"))
        storage16.pNext = &float16;
    if (version >= DTI_VK_1_2 || dti_vk_has(in, physical, NULL, "VK_KHR_timeline_semaphore")) {
        timeline.pNext = storage16.pNext;
        storage16.pNext = &timeline;
    }
    in->vk.GetPhysicalDeviceFeatures2(physical, &all);
    const dt_vulkan_desc *host = in->options.host; /* only the features that it declares are
                                                    * enabled */
    info->has_storage16 = storage16.storageBuffer16BitAccess && !host;
    info->has_float16 = float16.shaderFloat16 && !host;
    info->has_timeline = timeline.timelineSemaphore && (!host || host->timeline_semaphore);
    info->has_cooperative_matrix =
        !host && dti_vk_has(in, physical, NULL, "VK_KHR_cooperative_matrix");
    info->has_memory_budget = dti_vk_has(in, physical, NULL, "VK_EXT_memory_budget");
    info->has_float_controls = (!host || host->float_controls) && dti_vk_preserves(in, physical);
}

/* Free bytes of a heap if the driver reports them, else 0. */
static uint64_t dti_vk_budget(dti_vk_instance *in, int index, uint32_t heap) {
    if (!in->infos[index].has_memory_budget)
        return 0;
    dti_VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
        .sType = DTI_VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    dti_vk_heaps(in, in->physical[index], &budget);
    uint64_t limit = budget.heapBudget[heap], used = budget.heapUsage[heap];
    return limit > used ? limit - used : 0;
}

static void dti_vk_describe_memory(dti_vk_instance *in, int index) {
    dt_device_info *info = &in->infos[index];
    const dti_VkPhysicalDeviceMemoryProperties memory = dti_vk_heaps(in, in->physical[index], NULL);
    uint32_t heap = 0;
    for (uint32_t i = 0; i < memory.memoryHeapCount; i++)
        if (memory.memoryHeaps[i].flags & DTI_VK_MEMORY_HEAP_DEVICE_LOCAL_BIT &&
            memory.memoryHeaps[i].size > info->memory_bytes) {
            info->memory_bytes = memory.memoryHeaps[i].size;
            heap = i;
        }
    info->memory_budget_bytes = dti_vk_budget(in, index, heap);
}

/* At most 16. Asked for their number first: some drivers fill in more than they have. */
static uint32_t dti_vk_families(dti_vk_instance *in, dti_VkPhysicalDevice physical,
                                dti_VkQueueFamilyProperties list[16]) {
    uint32_t count = 0;
    in->vk.GetPhysicalDeviceQueueFamilyProperties(physical, &count, NULL);
    count = DTI_MIN(count, 16u);
    in->vk.GetPhysicalDeviceQueueFamilyProperties(physical, &count, list);
    return count;
}

/* The queue family to compute on: one without graphics, where the driver has less to switch;
 * UINT32_MAX = not found. */
static uint32_t dti_vk_family_of(dti_vk_instance *in, dti_VkPhysicalDevice physical) {
    dti_VkQueueFamilyProperties list[16];
    uint32_t count = dti_vk_families(in, physical, list), found = UINT32_MAX;
    for (uint32_t i = count; i-- > 0;) {
        uint32_t flags = list[i].queueFlags;
        if (!(flags & DTI_VK_QUEUE_COMPUTE_BIT) || !list[i].queueCount)
            continue;
        if (found == UINT32_MAX || !(flags & DTI_VK_QUEUE_GRAPHICS_BIT) ||
            list[found].queueFlags & DTI_VK_QUEUE_GRAPHICS_BIT)
            found = i;
    }
    return found;
}

/* The application's queue family, or UINT32_MAX. */
static uint32_t dti_vk_host_family(dti_vk_instance *in) {
    const uint32_t family = in->options.host->queue_family;
    dti_VkQueueFamilyProperties list[16];
    const uint32_t count = dti_vk_families(in, in->physical[0], list);
    return family < count && list[family].queueFlags & DTI_VK_QUEUE_COMPUTE_BIT ? family
                                                                                : UINT32_MAX;
}

static uint32_t dti_vk_family(dti_vk_instance *in, int index) {
    return in->options.host ? dti_vk_host_family(in) : dti_vk_family_of(in, in->physical[index]);
}

/* NULL: usable. */
static const char *dti_vk_refusal(const dt_device_info *info, uint32_t version, uint32_t family) {
    if (version < DTI_VK_1_1)
        return "not usable: needs Vulkan 1.1";
    if (family == UINT32_MAX)
        return "not usable: has no compute queue, or the application's queue is not one";
    if (info->workgroup_invocations < 128)
        return "not usable: needs 128 invocations in a workgroup";
    if (info->shared_bytes < 16384)
        return "not usable: needs 16 KiB of shared memory";
    if (info->storage_buffers < DTI_BINDINGS_MAX)
        return "not usable: needs 4 storage buffers in a shader";
    if (info->push_constant_bytes < sizeof(dti_args))
        return "not usable: needs 128 bytes of push constants";
    if (info->offset_alignment > DTI_PLACE_ALIGN)
        return "not usable: needs buffer offsets in steps of 256 bytes";
    return NULL;
}

static void dti_vk_describe(dti_vk_instance *in, int index) {
    dt_device_info *info = &in->infos[index];
    dti_VkPhysicalDeviceProperties properties;
    in->vk.GetPhysicalDeviceProperties(in->physical[index], &properties);
    dti_vk_describe_limits(info, &properties);
    snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1,
             properties.deviceName);
    snprintf(info->id, sizeof info->id, "vulkan:%d", index);
    if (properties.apiVersion >= DTI_VK_1_1) {
        dti_vk_describe_driver(in, index, &properties);
        dti_vk_describe_features(in, index, properties.apiVersion);
        dti_vk_describe_memory(in, index);
    }
    const char *why = dti_vk_refusal(info, properties.apiVersion, dti_vk_family(in, index));
    info->usable = why == NULL;
    size_t used = strlen(info->driver);
    if (why)
        snprintf(info->driver + used, sizeof info->driver - used, "%s%s", used ? "; " : "", why);
}

static dt_result dti_vk_list(dti_vk_instance *in, dt_device_info *infos, int capacity, int *count) {
    *count = in ? in->device_count : 0;
    for (int i = 0; i < *count && i < capacity; i++)
        infos[i] = in->infos[i];
    return DT_OK;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static dt_result dti_vk_alive(dti_vk_device *device) {
    if (!device->lost)
        return DT_OK;
    return dti_fail(device->head.base, DT_ERROR_DEVICE_LOST,
                    "the device %s was lost (its driver was reset, or it took too long); "
                    "dt_store_restore the store, or destroy it and create it again",
                    device->head.info.name);
}

static dt_result dti_vk_check(dti_vk_device *device, dti_VkResult result, const char *what) {
    dti_base *base = device->head.base;
    const char *name = device->head.info.name;
    if (result >= 0)
        return DT_OK;
    switch (result) {
    case DTI_VK_ERROR_DEVICE_LOST: device->lost = true; return dti_vk_alive(device);
    case DTI_VK_ERROR_OUT_OF_HOST_MEMORY:
        return dti_fail(base, DT_ERROR_MEMORY, "%s: the driver of %s has no host memory", what,
                        name);
    case DTI_VK_ERROR_OUT_OF_DEVICE_MEMORY:
        return dti_fail(base, DT_ERROR_DEVICE_MEMORY,
                        "%s: %s has no device memory left of its %llu bytes, of which this context "
                        "has %llu; use a smaller batch or model",
                        what, name, (unsigned long long)device->head.info.memory_bytes,
                        (unsigned long long)device->bytes);
    default:
        return dti_fail(base, DT_ERROR_DEVICE, "%s: the driver of %s failed with VkResult %d", what,
                        name, (int)result);
    }
}

/* The application's device and queue. */
static dt_result dti_vk_device_adopt(dti_vk_device *device) {
    const dt_vulkan_desc *host = device->host;
    device->handle = host->device;
    DTI_TRY(dti_vk_load_device(device));
    device->queue = host->queue;
    return DT_OK;
}

static dt_result dti_vk_device_make(dti_vk_device *device) {
    dti_vk_instance *in = device->instance;
    float priority = 1.0f;
    dti_VkDeviceQueueCreateInfo queue = {
        .sType = DTI_VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
        .queueFamilyIndex = device->family,
        .queueCount = 1,
        .pQueuePriorities = &priority,
    };
    const char *enabled[4];
    uint32_t count = 0;
    dti_VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR statistics = {
        .sType = DTI_VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR,
        .pipelineExecutableInfo = DTI_VK_TRUE};
    dti_VkDeviceCreateInfo info = {
        .sType = DTI_VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
        .queueCreateInfoCount = 1,
        .pQueueCreateInfos = &queue,
        .ppEnabledExtensionNames = enabled,
    };
    /* A layered implementation (MoltenVK) demands that its limits be acknowledged. */
    if (dti_vk_has(in, device->physical, NULL, "VK_KHR_portability_subset"))
        enabled[count++] = "VK_KHR_portability_subset";
    if (device->head.info.has_float_controls)
        enabled[count++] = DTI_VK_FLOAT_CONTROLS;
    device->feedback = dti_vk_has(in, device->physical, NULL, DTI_VK_FEEDBACK);
    if (device->feedback)
        enabled[count++] = DTI_VK_FEEDBACK;
    device->statistics =
        device->head.info.kind != DT_DEVICE_SOFTWARE && dti_vk_has_statistics(in, device->physical);
    if (device->statistics) {
        enabled[count++] = DTI_VK_STATISTICS;
        info.pNext = &statistics;
    }
    info.enabledExtensionCount = count;
    dti_VkResult made = in->vk.CreateDevice(device->physical, &info, NULL, &device->handle);
    if (made)
        device->handle = NULL;
    DTI_TRY(dti_vk_check(device, made, "opening the device"));
    DTI_TRY(dti_vk_load_device(device));
    device->statistics = device->statistics && device->vk.GetPipelineExecutablePropertiesKHR &&
                         device->vk.GetPipelineExecutableStatisticsKHR;
    device->vk.GetDeviceQueue(device->handle, device->family, 0, &device->queue);
    return DT_OK;
}

/* Whether host and device can share IN, OUT and EXCHANGE: memory near the device that the host
 * caches. Not on a discrete GPU: reads over the bus are slow, and its shared memory is small. */
static bool dti_vk_is_unified(const dti_vk_device *device) {
    uint32_t want =
        DTI_VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | DTI_VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
        DTI_VK_MEMORY_PROPERTY_HOST_COHERENT_BIT | DTI_VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    if (device->instance->options.no_unified || device->head.info.kind == DT_DEVICE_DISCRETE)
        return false;
    for (uint32_t i = 0; i < device->heaps.memoryTypeCount; i++)
        if ((device->heaps.memoryTypes[i].propertyFlags & want) == want)
            return true;
    return false;
}

/* Whether the host writes inputs directly into the device's memory, so that nothing is copied. It
 * does if it can reach a large part of that memory. The host mostly writes there; OUT, which it
 * reads, is cached. */
static bool dti_vk_is_direct(const dti_vk_device *device) {
    const uint32_t want = DTI_VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | DTI_VK_HOST_MEMORY;
    const dti_vk_options *options = &device->instance->options;
    if (device->unified || (options->no_unified && !options->direct))
        return false;
    for (uint32_t i = 0; i < device->heaps.memoryTypeCount; i++) {
        const dti_VkMemoryType *type = &device->heaps.memoryTypes[i];
        if ((type->propertyFlags & want) == want &&
            !(type->propertyFlags & ~(uint32_t)DTI_VK_KNOWN_MEMORY) &&
            device->heaps.memoryHeaps[type->heapIndex].size > DTI_VK_WINDOW_BYTES)
            return true;
    }
    return false;
}

/* Some percent of such devices' peak; submissions are cut by it (exec.c). */
static double dti_vk_flops_per_ms(dt_device_kind kind) {
    switch (kind) {
    case DT_DEVICE_DISCRETE: return 4e8;
    case DT_DEVICE_SOFTWARE: return 2e6;
    default: return 4e7;
    }
}

/* The same of memory: its own, or the processor's. */
static double dti_vk_bytes_per_ms(dt_device_kind kind) {
    return kind == DT_DEVICE_DISCRETE ? 1e8 : 1e7;
}

static void dti_vk_device_clock(dti_vk_device *device, float period_ns) {
    dti_VkQueueFamilyProperties list[16];
    const uint32_t count = dti_vk_families(device->instance, device->physical, list);
    const uint32_t bits = device->family < count ? list[device->family].timestampValidBits : 0;
    device->stamp_mask = bits ? UINT64_MAX >> (64 - DTI_MIN(bits, 64u)) : 0;
    device->stamp_ms = (double)period_ns * 1e-6;
}

static void dti_vk_device_measure(dti_vk_device *device) {
    device->flops_per_ms = dti_vk_flops_per_ms(device->head.info.kind);
    device->bytes_per_ms = dti_vk_bytes_per_ms(device->head.info.kind);
    dti_vk_instance *in = device->instance;
    dti_VkPhysicalDeviceMaintenance3Properties most = {
        .sType = DTI_VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES};
    const dti_VkPhysicalDeviceProperties2 all = dti_vk_properties(in, device->physical, &most);
    device->heaps = dti_vk_heaps(in, device->physical, NULL);
    dti_vk_device_clock(device, all.properties.limits.timestampPeriod);
    device->allocation_max = most.maxMemoryAllocationSize;
    device->identity.vendor_id = all.properties.vendorID;
    device->identity.device_id = all.properties.deviceID;
    device->identity.driver_version = all.properties.driverVersion;
    memcpy(device->identity.uuid, all.properties.pipelineCacheUUID, 16);
    device->unified = dti_vk_is_unified(device);
    device->direct = dti_vk_is_direct(device);
    device->head.no_hard_halves = device->identity.vendor_id == DTI_VK_SWIFTSHADER;
    device->software = device->unified && device->head.info.kind == DT_DEVICE_SOFTWARE;
}

/* The objects for blocking copies and zero-filling; made here so that a run allocates nothing. */
static dt_result dti_vk_transfer_create(dti_vk_device *device) {
    dti_VkCommandPoolCreateInfo info = {
        .sType = DTI_VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
        .flags = DTI_VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
        .queueFamilyIndex = device->family,
    };
    DTI_TRY(dti_vk_check(device,
                         device->vk.CreateCommandPool(device->handle, &info, NULL, &device->pool),
                         "making the command pool"));
    DTI_TRY(dti_vk_command_create(device, 1, &device->transfer));
    DTI_TRY(dti_vk_fence_create(device, &device->fence));
    return dti_vk_buffer_create(device, DTI_VK_STAGING_BYTES, "the staging buffer",
                                DTI_VK_HOST_MEMORY, DTI_VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
                                &device->staging);
}

static const dti_backend dti_vk_backend = {
    .workgroups = true,
    .memory_create = dti_vk_memory_create,
    .memory_destroy = dti_vk_memory_destroy,
    .memory_import = dti_vk_memory_import,
    .memory_where = dti_vk_memory_where,
    .memory_bytes = dti_vk_memory_bytes,
    .memory_host = dti_vk_memory_host,
    .memory_write = dti_vk_memory_write,
    .memory_read = dti_vk_memory_read,
    .memory_copy = dti_vk_memory_copy,
    .exec_create = dti_vk_exec_create,
    .exec_destroy = dti_vk_exec_destroy,
    .exec_start = dti_vk_exec_start,
    .exec_part = dti_vk_exec_part,
    .exec_times = dti_vk_exec_times,
    .exec_poll = dti_vk_exec_poll,
    .exec_wait = dti_vk_exec_wait,
    .exec_reach = dti_vk_exec_reach,
    .exec_find_fault = dti_vk_exec_find_fault,
    .sync = dti_vk_sync,
    .close = dti_vk_close,
};

static dt_result dti_vk_device_create(dti_vk_instance *in, int index, dti_vk_device **out) {
    dti_vk_device *device = dti_alloc(in->base, sizeof *device);
    DTI_HAVE(device);
    device->head.backend = &dti_vk_backend;
    device->head.base = in->base;
    device->head.info = in->infos[index];
    device->instance = in;
    device->index = index;
    device->time_run = dti_vk_time_run;
    device->physical = in->physical[index];
    device->family = dti_vk_family(in, index);
    device->host = in->options.host;
    device->head.hosts = device->host != NULL;
    dti_vk_device_measure(device);
    dt_result result = device->host ? dti_vk_device_adopt(device) : dti_vk_device_make(device);
    if (!result)
        result = dti_vk_transfer_create(device);
    if (!result)
        result = dti_vk_layouts_create(device);
    if (!result)
        result = dti_vk_self_test(device);
    if (result) {
        dti_vk_device_destroy(device);
        return result;
    }
    dti_log(in->base, DT_LOG_INFO, "vulkan:%d opened: %s, %s, %s memory", index,
            device->head.info.name, device->head.info.driver,
            device->unified ? "unified" : "separate");
    *out = device;
    return DT_OK;
}

/* Also of one that was not made in full: the driver's calls exist only once they were loaded. */
static void dti_vk_device_destroy(dti_vk_device *device) {
    if (!device)
        return;
    const bool forked = dti_forked(device->head.base);
    if (device->handle && device->queue && !forked) {
        dti_vk_layouts_destroy(device);
        dti_vk_buffer_destroy(device, &device->staging);
        device->vk.DestroyFence(device->handle, device->fence, NULL);
        device->vk.DestroyCommandPool(device->handle, device->pool, NULL);
    }
    if (device->handle && device->vk.DestroyDevice && !forked && !device->host)
        device->vk.DestroyDevice(device->handle, NULL);
    DTI_FREE(device->head.base, device->pipelines, device);
}

static dt_result dti_vk_open(dti_vk_instance *in, int index, dti_device **out) {
    *out = NULL;
    if (index < 0 || index >= in->device_count)
        return dti_fail(in->base, DT_ERROR_DEVICE, "there is no device vulkan:%d (%d found)", index,
                        in->device_count);
    const dt_device_info *info = &in->infos[index];
    if (!info->usable)
        return dti_fail(in->base, DT_ERROR_UNSUPPORTED, "vulkan:%d, %s: %s", index, info->name,
                        info->driver);
    dti_vk_device *device = in->open[index];
    if (device && device->lost && !device->host) { /* its users keep it until they close it */
        in->open[index] = NULL;
        device = NULL;
    }
    if (!device) {
        DTI_TRY(dti_vk_device_create(in, index, &device));
        in->open[index] = device;
    }
    DTI_TRY(dti_vk_alive(device));
    device->head.open_count++;
    *out = &device->head;
    return DT_OK;
}

static void dti_vk_close(dti_device *head) {
    dti_vk_device *device = (dti_vk_device *)head;
    if (--head->open_count > 0 || !device->lost)
        return;
    if (device->instance->open[device->index] == device)
        device->instance->open[device->index] = NULL;
    dti_vk_device_destroy(device);
}

static void dti_vk_memory_used(const void *instance, uint64_t *bytes, uint64_t *calls) {
    const dti_vk_instance *in = instance;
    *bytes = *calls = 0;
    for (int i = 0; in && i < in->device_count; i++)
        if (in->open[i]) {
            *bytes += in->open[i]->bytes;
            *calls += in->open[i]->alloc_calls;
        }
}
