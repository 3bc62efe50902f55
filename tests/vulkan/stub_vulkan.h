/* A Vulkan driver that does nothing, at once: what is left of a step is the host's own time. It
 * keeps as much state as callers need (sizes, mapped memory, fences) and counts calls. It knows the
 * answer of the one launch that a device computes when it is opened. Or it gives a wrong one.
 * Handed to a context by dt_ctx_desc.vulkan. For one thread, but while pipelines are made, after
 * the implementation. */
#ifndef DTRAIN_TESTS_STUB_VULKAN_H
#define DTRAIN_TESTS_STUB_VULKAN_H

#include <stdlib.h>

#define STUB_X(name) STUB_##name,
enum { DTI_VK_INSTANCE_COMMANDS(STUB_X) DTI_VK_DEVICE_COMMANDS(STUB_X) STUB_COMMANDS };
#undef STUB_X

static const char *const stub_names[] = {
#define STUB_X(name) #name,
    DTI_VK_INSTANCE_COMMANDS(STUB_X) DTI_VK_DEVICE_COMMANDS(STUB_X)
#undef STUB_X
};

typedef struct stub_object { /* a buffer, memory, a command buffer or a fence */
    uint64_t bytes;
    void *data;
    uint64_t groups, copies;   /* dispatched and recorded by a command buffer */
    struct stub_object *owned; /* a pool's command buffers, in a chain */
    struct stub_object *bound; /* a buffer's memory */
} stub_object;

/* What is read of the launch that checks a device. */
typedef enum stub_answer {
    STUB_RIGHT,
    STUB_STALE, /* what the host had written */
    STUB_ZEROS,
    STUB_NO_RESULT, /* inputs are right, and the result is zero */
    STUB_ONE_BIT,   /* the last result's lowest bit is wrong */
    STUB_ANSWERS
} stub_answer;

static struct stub {
    dti_VkPhysicalDeviceType type;
    uint64_t calls[STUB_COMMANDS];
    uint32_t stamp_bits;  /* of the queue's clock; 0: it has none */
    uint64_t groups_most; /* of workgroups in one submission */
    uint64_t copies;      /* between buffers, in the latest submission */
    stub_answer answer;
    /* What it reports of a pipeline: a statistic's name, and its value. NULL: it fails. */
    const char *statistic;
    uint64_t (*value)(dti_VkPipeline pipeline);
    _Atomic uint64_t held; /* objects that are alive: several threads make pipelines */
    char *log; /* what is recorded: 'd' for a dispatch, 'b' for a barrier; NULL: nobody asks */
    size_t logged, log_room;
} stub = {.type = DTI_VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU};

static uint64_t stub_calls(void) {
    uint64_t sum = 0;
    for (int i = 0; i < STUB_COMMANDS; i++)
        sum += stub.calls[i];
    return sum;
}

static void stub_note(char what) {
    if (stub.logged < stub.log_room)
        stub.log[stub.logged++] = what;
}

static void *stub_make(uint64_t bytes) {
    stub_object *o = calloc(1, sizeof *o);
    o->bytes = bytes;
    stub.held++;
    return o;
}

static void stub_free(const void *handle) {
    stub_object *o = (stub_object *)(uintptr_t)handle;
    while (o) {
        stub_object *next = o->owned;
        free(o->data);
        free(o);
        stub.held--;
        o = next;
    }
}

/* A command buffer, which is freed with its pool. */
static stub_object *stub_of(dti_VkCommandPool pool) {
    stub_object *owner = (stub_object *)(uintptr_t)pool, *o = stub_make(0);
    o->owned = owner->owned;
    owner->owned = o;
    return o;
}

#define STUB_DONE(name)                                                                            \
    stub.calls[STUB_##name]++;                                                                     \
    return (dti_VkResult)0
#define STUB_MAKE(name, Info, Handle, bytes)                                                       \
    static dti_VkResult DTI_VKAPI stub_##name(dti_VkDevice device, const Info *info,               \
                                              const void *allocator, Handle *out) {                \
        (void)device, (void)info, (void)allocator;                                                 \
        *out = (Handle)stub_make(bytes);                                                           \
        STUB_DONE(name);                                                                           \
    }
#define STUB_FREE(name, Handle)                                                                    \
    static void DTI_VKAPI stub_##name(dti_VkDevice device, Handle handle, const void *allocator) { \
        (void)device, (void)allocator;                                                             \
        stub.calls[STUB_##name]++;                                                                 \
        stub_free((const void *)handle);                                                           \
    }

STUB_MAKE(CreateBuffer, dti_VkBufferCreateInfo, dti_VkBuffer, info->size)
STUB_MAKE(AllocateMemory, dti_VkMemoryAllocateInfo, dti_VkDeviceMemory, info->allocationSize)
STUB_MAKE(CreateCommandPool, dti_VkCommandPoolCreateInfo, dti_VkCommandPool, 0)
STUB_MAKE(CreateDescriptorPool, dti_VkDescriptorPoolCreateInfo, dti_VkDescriptorPool, 0)
STUB_MAKE(CreateDescriptorSetLayout, dti_VkDescriptorSetLayoutCreateInfo, dti_VkDescriptorSetLayout,
          0)
STUB_MAKE(CreateFence, dti_VkFenceCreateInfo, dti_VkFence, 0)
STUB_MAKE(CreatePipelineCache, dti_VkPipelineCacheCreateInfo, dti_VkPipelineCache, 0)
STUB_MAKE(CreatePipelineLayout, dti_VkPipelineLayoutCreateInfo, dti_VkPipelineLayout, 0)
STUB_MAKE(CreateQueryPool, dti_VkQueryPoolCreateInfo, dti_VkQueryPool, 0)
STUB_FREE(DestroyQueryPool, dti_VkQueryPool)
STUB_FREE(DestroyBuffer, dti_VkBuffer)
STUB_FREE(FreeMemory, dti_VkDeviceMemory)
STUB_FREE(DestroyCommandPool, dti_VkCommandPool)
STUB_FREE(DestroyDescriptorPool, dti_VkDescriptorPool)
STUB_FREE(DestroyDescriptorSetLayout, dti_VkDescriptorSetLayout)
STUB_FREE(DestroyFence, dti_VkFence)
STUB_FREE(DestroyPipeline, dti_VkPipeline)
STUB_FREE(DestroyPipelineCache, dti_VkPipelineCache)
STUB_FREE(DestroyPipelineLayout, dti_VkPipelineLayout)
STUB_FREE(DestroyShaderModule, dti_VkShaderModule)

static dti_VkResult DTI_VKAPI stub_CreateShaderModule(dti_VkDevice device,
                                                      const dti_VkShaderModuleCreateInfo *info,
                                                      const void *allocator, void *out) {
    (void)device, (void)info, (void)allocator;
    *(void **)out = stub_make(0);
    STUB_DONE(CreateShaderModule);
}

static dti_VkResult DTI_VKAPI stub_CreateComputePipelines(
    dti_VkDevice device, dti_VkPipelineCache cache, uint32_t count,
    const dti_VkComputePipelineCreateInfo *infos, const void *allocator, dti_VkPipeline *out) {
    (void)device, (void)cache, (void)infos, (void)allocator;
    for (uint32_t i = 0; i < count; i++)
        out[i] = (dti_VkPipeline)stub_make(0);
    STUB_DONE(CreateComputePipelines);
}

static dti_VkResult DTI_VKAPI stub_GetPipelineExecutablePropertiesKHR(
    dti_VkDevice device, const dti_VkPipelineInfoKHR *info, uint32_t *count, void *properties) {
    (void)device, (void)info, (void)properties;
    *count = 1;
    STUB_DONE(GetPipelineExecutablePropertiesKHR);
}

static dti_VkResult DTI_VKAPI stub_GetPipelineExecutableStatisticsKHR(
    dti_VkDevice device, const dti_VkPipelineExecutableInfoKHR *info, uint32_t *count,
    dti_VkPipelineExecutableStatisticKHR *list) {
    (void)device;
    stub.calls[STUB_GetPipelineExecutableStatisticsKHR]++;
    if (!stub.statistic)
        return DTI_VK_ERROR_OUT_OF_HOST_MEMORY;
    *count = 1;
    list[0].format = DTI_VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR;
    snprintf(list[0].name, sizeof list[0].name, "%s", stub.statistic);
    list[0].value.u64 = stub.value(info->pipeline);
    return (dti_VkResult)0;
}

static dti_VkResult DTI_VKAPI stub_AllocateCommandBuffers(
    dti_VkDevice device, const dti_VkCommandBufferAllocateInfo *info, dti_VkCommandBuffer *out) {
    (void)device;
    for (uint32_t i = 0; i < info->commandBufferCount; i++)
        out[i] = (dti_VkCommandBuffer)stub_of(info->commandPool);
    STUB_DONE(AllocateCommandBuffers);
}

static void DTI_VKAPI stub_FreeCommandBuffers(dti_VkDevice device, dti_VkCommandPool pool,
                                              uint32_t count, const dti_VkCommandBuffer *list) {
    (void)device, (void)pool, (void)count, (void)list; /* they are freed with the pool */
    stub.calls[STUB_FreeCommandBuffers]++;
}

static dti_VkResult DTI_VKAPI stub_AllocateDescriptorSets(dti_VkDevice device,
                                                          const dti_VkDescriptorSetAllocateInfo *i,
                                                          dti_VkDescriptorSet *out) {
    (void)device;
    *out = (dti_VkDescriptorSet)i->descriptorPool; /* freed with the pool */
    STUB_DONE(AllocateDescriptorSets);
}

static void DTI_VKAPI stub_UpdateDescriptorSets(dti_VkDevice device, uint32_t writes,
                                                const dti_VkWriteDescriptorSet *list,
                                                uint32_t copies, const void *copied) {
    (void)device, (void)writes, (void)list, (void)copies, (void)copied;
    stub.calls[STUB_UpdateDescriptorSets]++;
}

/* ---- memory */

static void DTI_VKAPI stub_GetBufferMemoryRequirements(dti_VkDevice device, dti_VkBuffer buffer,
                                                       dti_VkMemoryRequirements *out) {
    (void)device;
    stub.calls[STUB_GetBufferMemoryRequirements]++;
    *out = (dti_VkMemoryRequirements){
        .size = ((stub_object *)buffer)->bytes, .alignment = 256, .memoryTypeBits = ~0u};
}

static dti_VkResult DTI_VKAPI stub_BindBufferMemory(dti_VkDevice device, dti_VkBuffer buffer,
                                                    dti_VkDeviceMemory memory,
                                                    dti_VkDeviceSize at) {
    (void)device, (void)at;
    ((stub_object *)buffer)->bound = (stub_object *)memory;
    STUB_DONE(BindBufferMemory);
}

static dti_VkResult DTI_VKAPI stub_MapMemory(dti_VkDevice device, dti_VkDeviceMemory memory,
                                             dti_VkDeviceSize offset, dti_VkDeviceSize size,
                                             dti_VkFlags flags, void **out) {
    stub_object *o = (stub_object *)memory;
    (void)device, (void)offset, (void)size, (void)flags;
    o->data = calloc(1, (size_t)o->bytes + 1);
    *out = o->data;
    STUB_DONE(MapMemory);
}

/* ---- recording */

static dti_VkResult DTI_VKAPI stub_BeginCommandBuffer(dti_VkCommandBuffer command,
                                                      const dti_VkCommandBufferBeginInfo *info) {
    (void)info;
    ((stub_object *)command)->groups = ((stub_object *)command)->copies = 0;
    STUB_DONE(BeginCommandBuffer);
}

static dti_VkResult DTI_VKAPI stub_EndCommandBuffer(dti_VkCommandBuffer command) {
    (void)command;
    STUB_DONE(EndCommandBuffer);
}

static void DTI_VKAPI stub_CmdBindDescriptorSets(dti_VkCommandBuffer command,
                                                 dti_VkPipelineBindPoint point,
                                                 dti_VkPipelineLayout layout, uint32_t first,
                                                 uint32_t count, const dti_VkDescriptorSet *sets,
                                                 uint32_t offsets, const uint32_t *offset) {
    (void)command, (void)point, (void)layout, (void)first, (void)count, (void)sets;
    (void)offsets, (void)offset;
    stub.calls[STUB_CmdBindDescriptorSets]++;
}

static void DTI_VKAPI stub_CmdBindPipeline(dti_VkCommandBuffer command,
                                           dti_VkPipelineBindPoint point, dti_VkPipeline pipeline) {
    (void)command, (void)point, (void)pipeline;
    stub.calls[STUB_CmdBindPipeline]++;
}

/* As the device would leave the memory of the launch that checks it. */
static void stub_compute(const dti_trials *t, uint32_t *words) {
    uint32_t *x = words + t->places[0].offset / DTI_WORD_BYTES;
    uint32_t *y = words + t->places[1].offset / DTI_WORD_BYTES;
    dti_trials_fill(t, DTI_TRIAL_WHOLE, words);
    dti_known_answer((const float *)x, (float *)y);
    if (stub.answer == STUB_ONE_BIT)
        y[DTI_KNOWN_FRONT + DTI_KNOWN_ROWS - 1] ^= 1;
    if (stub.answer == STUB_NO_RESULT)
        memset(y + DTI_KNOWN_FRONT, 0, DTI_KNOWN_ROWS * DTI_WORD_BYTES);
    if (stub.answer == STUB_ZEROS)
        memset(words, 0, (size_t)t->bytes);
}

/* A copy of that memory to the host. */
static void stub_read(void *to, uint64_t bytes) {
    dti_base base;
    dti_trials t;
    dti_base_init(&base, NULL, NULL);
    if (!dti_trials_make(&base, dti_known_trial, &t) && t.bytes == bytes)
        stub_compute(&t, to);
    dti_trials_destroy(&t);
}

static void DTI_VKAPI stub_CmdCopyBuffer(dti_VkCommandBuffer command, dti_VkBuffer from,
                                         dti_VkBuffer to, uint32_t count,
                                         const dti_VkBufferCopy *regions) {
    stub_object *memory = ((stub_object *)to)->bound;
    (void)from;
    stub.calls[STUB_CmdCopyBuffer]++;
    if (count == 1 && memory->data && stub.answer != STUB_STALE)
        stub_read((char *)memory->data + regions[0].dstOffset, regions[0].size);
    ((stub_object *)command)->copies++;
}

static void DTI_VKAPI stub_CmdDispatch(dti_VkCommandBuffer command, uint32_t x, uint32_t y,
                                       uint32_t z) {
    stub.calls[STUB_CmdDispatch]++;
    stub_note('d');
    ((stub_object *)command)->groups += (uint64_t)x * y * z;
}

static void DTI_VKAPI stub_CmdFillBuffer(dti_VkCommandBuffer command, dti_VkBuffer buffer,
                                         dti_VkDeviceSize at, dti_VkDeviceSize size,
                                         uint32_t data) {
    (void)command, (void)buffer, (void)at, (void)size, (void)data;
    stub.calls[STUB_CmdFillBuffer]++;
}

static void DTI_VKAPI stub_CmdPipelineBarrier(dti_VkCommandBuffer command, dti_VkFlags from,
                                              dti_VkFlags to, dti_VkFlags flags, uint32_t count,
                                              const dti_VkMemoryBarrier *list, uint32_t buffers,
                                              const void *b, uint32_t images, const void *i) {
    (void)command, (void)from, (void)to, (void)flags, (void)count, (void)list;
    (void)buffers, (void)b, (void)images, (void)i;
    stub.calls[STUB_CmdPipelineBarrier]++;
    stub_note('b');
}

static void DTI_VKAPI stub_CmdPushConstants(dti_VkCommandBuffer command,
                                            dti_VkPipelineLayout layout, dti_VkFlags stages,
                                            uint32_t offset, uint32_t size, const void *values) {
    (void)command, (void)layout, (void)stages, (void)offset, (void)size, (void)values;
    stub.calls[STUB_CmdPushConstants]++;
}

static void DTI_VKAPI stub_CmdResetQueryPool(dti_VkCommandBuffer command, dti_VkQueryPool pool,
                                             uint32_t first, uint32_t count) {
    (void)command, (void)pool, (void)first, (void)count;
    stub.calls[STUB_CmdResetQueryPool]++;
}

static void DTI_VKAPI stub_CmdWriteTimestamp(dti_VkCommandBuffer command,
                                             dti_VkPipelineStageFlagBits stage,
                                             dti_VkQueryPool pool, uint32_t query) {
    (void)command, (void)stage, (void)pool, (void)query;
    stub.calls[STUB_CmdWriteTimestamp]++;
}

static dti_VkResult DTI_VKAPI stub_GetQueryPoolResults(dti_VkDevice device, dti_VkQueryPool pool,
                                                       uint32_t first, uint32_t count, size_t bytes,
                                                       void *data, dti_VkDeviceSize stride,
                                                       dti_VkFlags flags) {
    (void)device, (void)pool, (void)first, (void)count, (void)stride, (void)flags;
    memset(data, 0, bytes);
    STUB_DONE(GetQueryPoolResults);
}

/* ---- the queue: whatever is submitted is done */

static dti_VkResult DTI_VKAPI stub_QueueSubmit(dti_VkQueue queue, uint32_t count,
                                               const dti_VkSubmitInfo *infos, dti_VkFence fence) {
    (void)queue, (void)fence;
    stub.copies = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t groups = 0;
        for (uint32_t k = 0; k < infos[i].commandBufferCount; k++) {
            groups += ((const stub_object *)infos[i].pCommandBuffers[k])->groups;
            stub.copies += ((const stub_object *)infos[i].pCommandBuffers[k])->copies;
        }
        stub.groups_most = DTI_MAX(stub.groups_most, groups);
    }
    STUB_DONE(QueueSubmit);
}

static dti_VkResult DTI_VKAPI stub_ResetFences(dti_VkDevice device, uint32_t count,
                                               const dti_VkFence *fences) {
    (void)device, (void)count, (void)fences;
    STUB_DONE(ResetFences);
}

static dti_VkResult DTI_VKAPI stub_GetFenceStatus(dti_VkDevice device, dti_VkFence fence) {
    (void)device, (void)fence;
    STUB_DONE(GetFenceStatus);
}

static dti_VkResult DTI_VKAPI stub_WaitForFences(dti_VkDevice device, uint32_t count,
                                                 const dti_VkFence *fences, dti_VkBool32 all,
                                                 uint64_t timeout) {
    (void)device, (void)count, (void)fences, (void)all, (void)timeout;
    STUB_DONE(WaitForFences);
}

static dti_VkResult DTI_VKAPI stub_GetPipelineCacheData(dti_VkDevice device,
                                                        dti_VkPipelineCache cache, size_t *bytes,
                                                        void *data) {
    (void)device, (void)cache, (void)data;
    *bytes = 0;
    STUB_DONE(GetPipelineCacheData);
}

/* ---- the device */

static void stub_describe(dti_VkPhysicalDeviceProperties *p) {
    *p = (dti_VkPhysicalDeviceProperties){
        .apiVersion = DTI_VK_1_1, .deviceType = stub.type, .deviceName = "stub"};
    p->limits.maxStorageBufferRange = 1u << 30;
    p->limits.maxComputeWorkGroupInvocations = p->limits.maxComputeWorkGroupSize[0] = 1024;
    p->limits.maxComputeSharedMemorySize = 32768;
    p->limits.maxPerStageDescriptorStorageBuffers = 16;
    p->limits.maxPushConstantsSize = 128;
    p->limits.timestampPeriod = 1;
    p->limits.minStorageBufferOffsetAlignment = p->limits.minUniformBufferOffsetAlignment = 256;
}

static void DTI_VKAPI stub_GetPhysicalDeviceProperties(dti_VkPhysicalDevice device,
                                                       dti_VkPhysicalDeviceProperties *out) {
    (void)device;
    stub_describe(out);
}

static void DTI_VKAPI stub_GetPhysicalDeviceProperties2(dti_VkPhysicalDevice device,
                                                        dti_VkPhysicalDeviceProperties2 *out) {
    (void)device;
    stub_describe(&out->properties);
    dti_VkPhysicalDeviceMaintenance3Properties *most = out->pNext;
    if (most && most->sType == DTI_VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES)
        most->maxMemoryAllocationSize = 1u << 30;
}

static void DTI_VKAPI stub_GetPhysicalDeviceFeatures2(dti_VkPhysicalDevice device,
                                                      dti_VkPhysicalDeviceFeatures2 *out) {
    (void)device, (void)out;
}

/* Memory of the device's own, and the host's. */
static void DTI_VKAPI stub_GetPhysicalDeviceMemoryProperties2(
    dti_VkPhysicalDevice device, dti_VkPhysicalDeviceMemoryProperties2 *out) {
    dti_VkPhysicalDeviceMemoryProperties *m = &out->memoryProperties;
    (void)device;
    m->memoryHeapCount = m->memoryTypeCount = 2;
    m->memoryHeaps[0] = (dti_VkMemoryHeap){.size = 1u << 30, .flags = 1};
    m->memoryHeaps[1] = (dti_VkMemoryHeap){.size = 1u << 30};
    m->memoryTypes[0].propertyFlags = DTI_VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    m->memoryTypes[1] = (dti_VkMemoryType){DTI_VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                               DTI_VK_MEMORY_PROPERTY_HOST_COHERENT_BIT |
                                               DTI_VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
                                           1};
}

static void DTI_VKAPI stub_GetPhysicalDeviceQueueFamilyProperties(
    dti_VkPhysicalDevice device, uint32_t *count, dti_VkQueueFamilyProperties *out) {
    (void)device;
    *count = 1;
    if (out)
        out[0] = (dti_VkQueueFamilyProperties){.queueFlags = DTI_VK_QUEUE_COMPUTE_BIT,
                                               .queueCount = 1,
                                               .timestampValidBits = stub.stamp_bits};
}

static dti_VkResult DTI_VKAPI
stub_EnumerateDeviceExtensionProperties(dti_VkPhysicalDevice device, const char *layer,
                                        uint32_t *count, dti_VkExtensionProperties *out) {
    (void)device, (void)layer, (void)out;
    *count = 0;
    return (dti_VkResult)0;
}

static void DTI_VKAPI stub_GetDeviceQueue(dti_VkDevice device, uint32_t family, uint32_t index,
                                          dti_VkQueue *out) {
    (void)family, (void)index;
    *out = (dti_VkQueue)device;
}

static void DTI_VKAPI stub_DestroyDevice(dti_VkDevice device, const void *allocator) {
    (void)device, (void)allocator;
}

static void DTI_VKAPI stub_missing(void) {
}

static dti_PFN_vkVoidFunction DTI_VKAPI stub_device_proc(dti_VkDevice device, const char *name);

#define STUB_IS(command)                                                                           \
    if (!strcmp(name, "vk" #command))                                                              \
        return (dti_PFN_vkVoidFunction)stub_##command;

static dti_PFN_vkVoidFunction DTI_VKAPI stub_instance_proc(dti_VkInstance instance,
                                                           const char *name) {
    (void)instance;
    STUB_IS(GetPhysicalDeviceProperties)
    STUB_IS(GetPhysicalDeviceProperties2)
    STUB_IS(GetPhysicalDeviceFeatures2)
    STUB_IS(GetPhysicalDeviceMemoryProperties2)
    STUB_IS(GetPhysicalDeviceQueueFamilyProperties)
    STUB_IS(EnumerateDeviceExtensionProperties)
    if (!strcmp(name, "vkGetDeviceProcAddr"))
        return (dti_PFN_vkVoidFunction)stub_device_proc;
    return stub_missing;
}

static dti_PFN_vkVoidFunction DTI_VKAPI stub_device_proc(dti_VkDevice device, const char *name) {
    (void)device;
    DTI_VK_DEVICE_COMMANDS(STUB_IS)
    return stub_missing;
}

/* For dt_ctx_desc.vulkan. */
static dt_vulkan_desc stub_vulkan(void) {
    static int handles[4];
    return (dt_vulkan_desc){.get_instance_proc_addr = (void (*)(void))stub_instance_proc,
                            .instance = &handles[0],
                            .physical_device = &handles[1],
                            .device = &handles[2],
                            .queue = &handles[3]};
}

#endif
