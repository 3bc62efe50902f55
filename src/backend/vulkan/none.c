/* The Vulkan backend's entry points when it is compiled out: no devices, and one clear error. */

#ifdef DT_NO_VULKAN

static dt_result dti_vk_instance_create(dti_base *base, const dti_vk_options *options,
                                        dti_vk_instance **out) {
    *out = NULL;
    if (options->host)
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        "dt_ctx_desc.vulkan is set, but this program was built with DT_NO_VULKAN");
    dti_log(base, DT_LOG_INFO, "no Vulkan devices: built with DT_NO_VULKAN");
    *out = (dti_vk_instance *)base; /* nothing to own; only the error text needs a place */
    return DT_OK;
}

static void dti_vk_instance_destroy(void *instance) {
}

static dt_result dti_vk_list(dti_vk_instance *instance, dt_device_info *infos, int capacity,
                             int *count) {
    *count = 0;
    return DT_OK;
}

static dt_result dti_vk_open(dti_vk_instance *instance, int index, dti_device **out) {
    *out = NULL;
    return dti_fail((dti_base *)instance, DT_ERROR_UNSUPPORTED,
                    "this program was built with DT_NO_VULKAN: build it without, or use the CPU");
}

static dt_result dti_vk_cache_export(void *instance, void *data, size_t *bytes) {
    *bytes = 0;
    return DT_OK;
}

static void dti_vk_memory_used(const void *instance, uint64_t *bytes, uint64_t *calls) {
    *bytes = *calls = 0;
}

#endif
