/* An application with a Vulkan device of its own, as small as it gets. It has an instance with the
 * validation layer where that is installed, one compute queue under a mutex, timeline semaphores,
 * buffers. Any message of the layer is counted and printed. */
#ifndef DTRAIN_TESTS_VULKAN_HOST_H
#define DTRAIN_TESTS_VULKAN_HOST_H

#include "dtrain.h"

#include "harness.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>

typedef struct host {
    void *library;
    PFN_vkGetInstanceProcAddr get;
    VkInstance instance;
    VkDebugUtilsMessengerEXT messenger;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    uint32_t family;
    VkPhysicalDeviceMemoryProperties heaps;
    pthread_mutex_t mutex;
    bool held;
    int locks, messages;
} host;

/* A function of the application's, by name. */
#define VK(h, name) ((PFN_##name)(h)->get((h)->instance, #name))

typedef struct host_buffer {
    VkBuffer handle;
    VkDeviceMemory memory;
    char *mapped;
} host_buffer;

static VkBool32 VKAPI_PTR host_listen(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                      VkDebugUtilsMessageTypeFlagsEXT types,
                                      const VkDebugUtilsMessengerCallbackDataEXT *data,
                                      void *user) {
    host *h = user;
    (void)severity, (void)types;
    if (!h->messages++)
        printf("  %s\n", data->pMessage);
    return VK_FALSE;
}

static bool host_has_layer(const host *h, const char *name) {
    VkLayerProperties list[64];
    uint32_t count = 64;
    PFN_vkEnumerateInstanceLayerProperties enumerate =
        (PFN_vkEnumerateInstanceLayerProperties)h->get(NULL, "vkEnumerateInstanceLayerProperties");
    enumerate(&count, list);
    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(list[i].layerName, name))
            return true;
    return false;
}

static bool host_make_instance(host *h) {
    const char *layer = "VK_LAYER_KHRONOS_validation", *utils = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
    const bool layered = host_has_layer(h, layer);
    VkValidationFeatureEnableEXT hazards =
        VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT;
    VkValidationFeaturesEXT features = {.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                                        .enabledValidationFeatureCount = 1,
                                        .pEnabledValidationFeatures = &hazards};
    VkDebugUtilsMessengerCreateInfoEXT messenger = {
        .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
        .pNext = &features,
        .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                           VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
        .pfnUserCallback = host_listen,
        .pUserData = h};
    VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                     .apiVersion = VK_API_VERSION_1_2};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                 .pNext = layered ? &messenger : NULL,
                                 .pApplicationInfo = &application,
                                 .enabledLayerCount = layered,
                                 .ppEnabledLayerNames = &layer,
                                 .enabledExtensionCount = layered,
                                 .ppEnabledExtensionNames = &utils};
    PFN_vkCreateInstance create = (PFN_vkCreateInstance)h->get(NULL, "vkCreateInstance");
    if (create(&info, NULL, &h->instance))
        return false;
    messenger.pNext = NULL;
    if (layered)
        VK(h, vkCreateDebugUtilsMessengerEXT)(h->instance, &messenger, NULL, &h->messenger);
    return true;
}

static bool host_make_device(host *h, bool timeline) {
    VkQueueFamilyProperties families[16];
    uint32_t count = 16;
    VK(h, vkGetPhysicalDeviceQueueFamilyProperties)(h->physical, &count, families);
    while (h->family < count && !(families[h->family].queueFlags & VK_QUEUE_COMPUTE_BIT))
        h->family++;
    float priority = 1;
    VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                     .queueFamilyIndex = h->family,
                                     .queueCount = 1,
                                     .pQueuePriorities = &priority};
    VkPhysicalDeviceTimelineSemaphoreFeatures features = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES,
        .timelineSemaphore = timeline};
    VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                               .pNext = &features,
                               .queueCreateInfoCount = 1,
                               .pQueueCreateInfos = &queue};
    if (VK(h, vkCreateDevice)(h->physical, &info, NULL, &h->device))
        return false;
    VK(h, vkGetDeviceQueue)(h->device, h->family, 0, &h->queue);
    VK(h, vkGetPhysicalDeviceMemoryProperties)(h->physical, &h->heaps);
    return true;
}

/* The application on device number `index`; false: there is no such one. */
static bool host_open(host *h, uint32_t index, bool timeline) {
    VkPhysicalDevice all[16];
    uint32_t count = 16;
    *h = (host){.library = dlopen("libvulkan.so.1", RTLD_NOW)};
    pthread_mutex_init(&h->mutex, NULL);
    if (!h->library)
        return false;
    *(void **)&h->get = dlsym(h->library, "vkGetInstanceProcAddr");
    if (!host_make_instance(h) || VK(h, vkEnumeratePhysicalDevices)(h->instance, &count, all) ||
        index >= count)
        return false;
    h->physical = all[index];
    return host_make_device(h, timeline);
}

static void host_close(host *h) {
    if (h->device)
        VK(h, vkDestroyDevice)(h->device, NULL); /* here the layer reports objects that were left */
    if (h->messenger)
        VK(h, vkDestroyDebugUtilsMessengerEXT)(h->instance, h->messenger, NULL);
    if (h->instance)
        VK(h, vkDestroyInstance)(h->instance, NULL);
    if (h->library)
        dlclose(h->library);
    pthread_mutex_destroy(&h->mutex);
    CHECK(h->messages == 0);
}

static void host_lock(void *user) {
    host *h = user;
    pthread_mutex_lock(&h->mutex);
    CHECK(!h->held);
    h->held = true;
    h->locks++;
}

static void host_unlock(void *user) {
    host *h = user;
    h->held = false;
    pthread_mutex_unlock(&h->mutex);
}

static dt_vulkan_desc host_desc(host *h) {
    return (dt_vulkan_desc){.get_instance_proc_addr = (void (*)(void))h->get,
                            .instance = h->instance,
                            .physical_device = h->physical,
                            .device = h->device,
                            .queue = h->queue,
                            .queue_family = h->family,
                            .timeline_semaphore = true,
                            .lock = host_lock,
                            .unlock = host_unlock,
                            .user = h};
}

/* ---- Buffers */

/* One that the application can look into. */
static host_buffer host_buffer_make(host *h, uint64_t bytes, VkBufferUsageFlags usage) {
    host_buffer b = {0};
    VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = bytes, .usage = usage};
    VkMemoryRequirements need;
    CHECK(VK(h, vkCreateBuffer)(h->device, &info, NULL, &b.handle) == VK_SUCCESS);
    VK(h, vkGetBufferMemoryRequirements)(h->device, b.handle, &need);
    const uint32_t want =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    uint32_t type = 0;
    while (!(need.memoryTypeBits >> type & 1) ||
           (h->heaps.memoryTypes[type].propertyFlags & want) != want)
        type++;
    VkMemoryAllocateInfo memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                   .allocationSize = need.size,
                                   .memoryTypeIndex = type};
    CHECK(VK(h, vkAllocateMemory)(h->device, &memory, NULL, &b.memory) == VK_SUCCESS);
    CHECK(VK(h, vkBindBufferMemory)(h->device, b.handle, b.memory, 0) == VK_SUCCESS);
    CHECK(VK(h, vkMapMemory)(h->device, b.memory, 0, VK_WHOLE_SIZE, 0, (void **)&b.mapped) ==
          VK_SUCCESS);
    memset(b.mapped, 0, bytes);
    return b;
}

static void host_buffer_end(host *h, host_buffer *b) {
    VK(h, vkDestroyBuffer)(h->device, b->handle, NULL);
    VK(h, vkFreeMemory)(h->device, b->memory, NULL);
}

/* Copies `from` to the start of `to`, after the writes to it: `wait` 1, or only by a barrier. */
static void host_copy(host *h, VkSemaphore wait, const dt_vulkan_buffer *from, VkBuffer to) {
    VkCommandPoolCreateInfo pool_info = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                         .queueFamilyIndex = h->family};
    VkCommandPool pool;
    VkCommandBuffer command;
    VK(h, vkCreateCommandPool)(h->device, &pool_info, NULL, &pool);
    VkCommandBufferAllocateInfo one = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                       .commandPool = pool,
                                       .commandBufferCount = 1};
    VK(h, vkAllocateCommandBuffers)(h->device, &one, &command);
    VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    VK(h, vkBeginCommandBuffer)(command, &begin);
    VkMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                               .srcAccessMask =
                                   VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                               .dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT};
    if (!wait)
        VK(h, vkCmdPipelineBarrier)
    (command, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
     VK_PIPELINE_STAGE_TRANSFER_BIT, 0, 1, &barrier, 0, NULL, 0, NULL);
    VkBufferCopy region = {.srcOffset = from->offset, .size = from->bytes};
    VK(h, vkCmdCopyBuffer)(command, (VkBuffer)from->buffer, to, 1, &region);
    VK(h, vkEndCommandBuffer)(command);
    VkTimelineSemaphoreSubmitInfo values = {.sType =
                                                VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                            .waitSemaphoreValueCount = 1,
                                            .pWaitSemaphoreValues = &(uint64_t){1}};
    VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                           .pNext = wait ? &values : NULL,
                           .waitSemaphoreCount = wait != VK_NULL_HANDLE,
                           .pWaitSemaphores = &wait,
                           .pWaitDstStageMask =
                               &(VkPipelineStageFlags){VK_PIPELINE_STAGE_TRANSFER_BIT},
                           .commandBufferCount = 1,
                           .pCommandBuffers = &command};
    host_lock(h);
    CHECK(VK(h, vkQueueSubmit)(h->queue, 1, &submit, VK_NULL_HANDLE) == VK_SUCCESS);
    CHECK(VK(h, vkQueueWaitIdle)(h->queue) == VK_SUCCESS);
    host_unlock(h);
    VK(h, vkDestroyCommandPool)(h->device, pool, NULL);
}

/* ---- Semaphores */

static VkSemaphore host_semaphore(host *h) {
    VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                      .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    VkSemaphore made = VK_NULL_HANDLE;
    CHECK(VK(h, vkCreateSemaphore)(h->device, &info, NULL, &made) == VK_SUCCESS);
    return made;
}

static uint64_t host_value(host *h, VkSemaphore semaphore) {
    uint64_t value = 0;
    CHECK(VK(h, vkGetSemaphoreCounterValue)(h->device, semaphore, &value) == VK_SUCCESS);
    return value;
}

static void host_signal(host *h, VkSemaphore semaphore, uint64_t value) {
    VkSemaphoreSignalInfo info = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = semaphore, .value = value};
    CHECK(VK(h, vkSignalSemaphore)(h->device, &info) == VK_SUCCESS);
}

/* Within ten seconds. */
static bool host_reaches(host *h, VkSemaphore semaphore, uint64_t value) {
    VkSemaphoreWaitInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                .semaphoreCount = 1,
                                .pSemaphores = &semaphore,
                                .pValues = &value};
    return VK(h, vkWaitSemaphores)(h->device, &info, 10000000000ull) == VK_SUCCESS;
}

#endif
