/* Whether a device's registers suffice, as its driver reports. The first pipeline of each variant
 * that keeps many sums in an invocation is made with statistics (VK_KHR_pipeline_executable_
 * properties). If one spills, the device uses half that number of sums from then on:
 * dti_grid_device. Before that grid.c guesses. Only those pipelines have statistics, as these may
 * keep a driver from its cache. Answers are kept with the verdicts (qualify.c). */

#define DTI_VK_SUMS_MANY 32 /* every device has registers for half of them */
/* More than an invocation has memory: NVIDIA has been seen to report 2^36. */
#define DTI_VK_SPILL_MOST (1u << 20)

static bool dti_vk_has_statistics(dti_vk_instance *in, dti_VkPhysicalDevice physical) {
    dti_VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR can = {
        .sType = DTI_VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR};
    dti_VkPhysicalDeviceFeatures2 all = {.sType = DTI_VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                         .pNext = &can};
    if (!dti_vk_has(in, physical, NULL, DTI_VK_STATISTICS))
        return false;
    in->vk.GetPhysicalDeviceFeatures2(physical, &all);
    return can.pipelineExecutableInfo;
}

/* Drivers have names of their own: ANV "Spills" and "Scratch Memory Size", RADV "Spilled VGPRs" and
 * "Scratch size", NVK "Spills to memory", V3DV "TMU Spills", Turnip "STP Count" (stores to private
 * memory), NVIDIA "Local Memory Size". NVK's "Spills to reg" cost no memory. */
static bool dti_vk_is_spill(dti_VkPipelineExecutableStatisticKHR *s) {
    static const char *const parts[] = {"pill", "cratch", "STP Count", "Local Memory Size"};
    const bool counts = s->format == DTI_VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR ||
                        s->format == DTI_VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR;
    bool named = false;
    s->name[sizeof s->name - 1] = 0;
    for (size_t i = 0; i < DTI_COUNT(parts); i++)
        named = named || strstr(s->name, parts[i]);
    return counts && named && !strstr(s->name, "to reg") && s->value.u64 &&
           s->value.u64 < DTI_VK_SPILL_MOST;
}

/* One of a pipeline's executables; room: of `list`. */
static dti_VkResult dti_vk_ask_executable(dti_vk_device *device, dti_VkPipeline pipeline,
                                          uint32_t number,
                                          dti_VkPipelineExecutableStatisticKHR *list, uint32_t room,
                                          bool *spills) {
    const dti_VkPipelineExecutableInfoKHR info = {
        .sType = DTI_VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR,
        .pipeline = pipeline,
        .executableIndex = number};
    uint32_t count = room;
    for (uint32_t i = 0; i < room; i++)
        list[i] = (dti_VkPipelineExecutableStatisticKHR){
            .sType = DTI_VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR};
    const dti_VkResult result =
        device->vk.GetPipelineExecutableStatisticsKHR(device->handle, &info, &count, list);
    *spills = false;
    for (uint32_t i = 0; i < room && i < count && result >= 0; i++)
        *spills = *spills || dti_vk_is_spill(&list[i]);
    return result;
}

/* Of several executables the driver runs one, and mostly it is one that does not spill. */
static dti_VkResult dti_vk_ask(dti_vk_device *device, dti_VkPipeline pipeline, bool *spills) {
    enum { ROOM = 64, EXECUTABLES = 8 };
    const dti_VkPipelineInfoKHR info = {.sType = DTI_VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR,
                                        .pipeline = pipeline};
    uint32_t count = 0;
    dti_VkResult result =
        device->vk.GetPipelineExecutablePropertiesKHR(device->handle, &info, &count, NULL);
    dti_VkPipelineExecutableStatisticKHR *list =
        dti_alloc_array(device->head.base, ROOM, sizeof *list);
    if (!list)
        result = DTI_VK_ERROR_OUT_OF_HOST_MEMORY;
    *spills = count > 0;
    for (uint32_t i = 0; i < DTI_MIN(count, EXECUTABLES) && *spills && result >= 0; i++)
        result = dti_vk_ask_executable(device, pipeline, i, list, ROOM, spills);
    dti_free(device->head.base, list);
    return result;
}

/* A pipeline that is wanted: whether its driver is asked about it. */
static void dti_vk_spills_mark(dti_vk_device *device, dti_vk_pipeline *p) {
    const dti_grid_device grid = dti_vk_grid_device(device);
    const uint16_t bit = (uint16_t)(1u << p->variant);
    const uint32_t sums = dti_vk_grid_sums_of(p->kernel, p->variant, p->spec, &grid);
    if (!device->statistics || device->asked[p->kernel] & bit || sums < DTI_VK_SUMS_MANY)
        return;
    device->asked[p->kernel] |= bit;
    p->sums = sums;
}

/* A pipeline that was made with statistics. A driver that cannot answer is not asked again. Others
 * that spill were made with it, and are logged once. */
static void dti_vk_spills_read(dti_vk_device *device, const dti_vk_pipeline *p) {
    const char *name = device->head.info.name;
    const uint32_t sums = p->sums / 2;
    bool spills = false;
    const dti_VkResult result = dti_vk_ask(device, p->handle, &spills);
    if (result < 0) {
        device->statistics = false;
        dti_log(device->head.base, DT_LOG_INFO,
                "%s: the driver does not report whether registers suffice (VkResult %d)", name,
                (int)result);
    } else if (spills && (!device->sums || sums < device->sums)) {
        device->sums = sums;
        device->asked[p->kernel] &= (uint16_t) ~(1u << p->variant); /* with fewer it is another */
        dti_log(device->head.base, DT_LOG_INFO,
                "%s: %s spills registers with %u sums an invocation; kernels with at most %u are "
                "used from now on",
                name, dti_vk_shader_of(p->kernel, p->variant)->name, p->sums, sums);
    }
}
