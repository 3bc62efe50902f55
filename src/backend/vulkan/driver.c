/* Vulkan as the context sees it: one row of its list of drivers. */

#ifdef DT_NO_VULKAN

static dt_result dti_vk_driver_list(dti_base *base, const dt_ctx_desc *desc, void **instance,
                                    dt_device_info *infos, int capacity, int *count) {
    *count = 0;
    if (desc->vulkan)
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        "dt_ctx_desc.vulkan is set, but this program was built with DT_NO_VULKAN");
    if (!desc->no_vulkan)
        dti_log(base, DT_LOG_INFO, "no Vulkan devices: built with DT_NO_VULKAN");
    return DT_OK;
}

static const dti_driver dti_vk_driver = {
    .name = "vulkan", .title = "Vulkan", .list = dti_vk_driver_list};

#else

#ifndef DTI_VK_NO_UNIFIED /* so that a test can have the host's sides apart */
#define DTI_VK_NO_UNIFIED false
#endif

static dt_result dti_vk_driver_list(dti_base *base, const dt_ctx_desc *desc, void **instance,
                                    dt_device_info *infos, int capacity, int *count) {
    const dti_vk_options options = {.loader = desc->vulkan_loader,
                                    .host = desc->vulkan,
                                    .cache = desc->pipeline_cache,
                                    .cache_bytes = desc->pipeline_cache_bytes,
                                    .validation = desc->validation,
                                    .no_fast = desc->no_fast,
                                    .no_unified = DTI_VK_NO_UNIFIED,
                                    .kernel_check = desc->kernel_check};
    dti_vk_instance *in = NULL;
    *count = 0;
    if (desc->no_vulkan)
        return DT_OK;
    dt_result result = dti_vk_instance_create(base, &options, &in);
    *instance = in;
    return result ? result : dti_vk_list(in, infos, capacity, count);
}

static dt_result dti_vk_driver_open(dti_base *base, const dt_ctx_desc *desc, void *instance,
                                    int index, dti_device **out) {
    return dti_vk_open(instance, index, out);
}

static const dti_driver dti_vk_driver = {.name = "vulkan",
                                         .title = "Vulkan",
                                         .list = dti_vk_driver_list,
                                         .open = dti_vk_driver_open,
                                         .destroy = dti_vk_instance_destroy,
                                         .cache_export = dti_vk_cache_export,
                                         .memory_used = dti_vk_memory_used};

#endif
