/* The renderer of neural_texture.c, headless. It has a VkDevice with one queue that draws and
 * computes, and an image of FRAME_SIZE squared. A pipeline draws a texture out of a buffer, and PNG
 * files are written. It knows nothing of dtrain. What goes wrong ends the program. */
#ifndef VULKAN_FRAME_H
#define VULKAN_FRAME_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>

#include "vulkan_frame_shaders.h"

#define FRAME_SIZE 128

typedef struct frame {
    PFN_vkGetInstanceProcAddr get;
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    uint32_t family;
    VkSemaphore timeline; /* of all that happens to the texture */
    VkImage image;
    VkDeviceMemory image_memory;
    VkImageView view;
    VkRenderPass pass;
    VkFramebuffer target;
    VkDescriptorSetLayout set_layout;
    VkPipelineLayout layout;
    VkPipeline pipeline;
    VkDescriptorPool sets;
    VkDescriptorSet set;
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkBuffer shot; /* the frame, for the file */
    VkDeviceMemory shot_memory;
    const uint8_t *pixels;
} frame;

/* A Vulkan function by name: no loader to link with, no table. */
#define VK(f, name) ((PFN_##name)(f)->get((f)->instance, #name))

static void frame_check(VkResult result, const char *what) {
    if (result == VK_SUCCESS)
        return;
    fprintf(stderr, "%s: VkResult %d\n", what, (int)result);
    exit(1);
}

/* ---- Memory */

static VkDeviceMemory frame_memory(frame *f, VkMemoryRequirements need, uint32_t flags) {
    VkPhysicalDeviceMemoryProperties heaps;
    VK(f, vkGetPhysicalDeviceMemoryProperties)(f->physical, &heaps);
    uint32_t type = 0;
    while (type < heaps.memoryTypeCount &&
           (!(need.memoryTypeBits >> type & 1) ||
            (heaps.memoryTypes[type].propertyFlags & flags) != flags))
        type++;
    VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                 .allocationSize = need.size,
                                 .memoryTypeIndex = type};
    VkDeviceMemory memory;
    frame_check(VK(f, vkAllocateMemory)(f->device, &info, NULL, &memory), "memory");
    return memory;
}

/* A buffer that the processor sees too; *mapped is where. */
static VkBuffer frame_buffer(frame *f, uint64_t bytes, VkBufferUsageFlags usage,
                             VkDeviceMemory *memory, void *mapped) {
    VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = bytes, .usage = usage};
    VkBuffer buffer;
    VkMemoryRequirements need;
    frame_check(VK(f, vkCreateBuffer)(f->device, &info, NULL, &buffer), "a buffer");
    VK(f, vkGetBufferMemoryRequirements)(f->device, buffer, &need);
    *memory = frame_memory(
        f, need, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT);
    frame_check(VK(f, vkBindBufferMemory)(f->device, buffer, *memory, 0), "a buffer");
    frame_check(VK(f, vkMapMemory)(f->device, *memory, 0, VK_WHOLE_SIZE, 0, mapped), "mapping");
    return buffer;
}

static void frame_buffer_end(frame *f, VkBuffer buffer, VkDeviceMemory memory) {
    VK(f, vkDestroyBuffer)(f->device, buffer, NULL);
    VK(f, vkFreeMemory)(f->device, memory, NULL);
}

/* ---- Device */

static void frame_make_instance(frame *f) {
    void *library = dlopen("libvulkan.so.1", RTLD_NOW);
    if (library)
        *(void **)&f->get = dlsym(library, "vkGetInstanceProcAddr");
    frame_check(f->get ? VK_SUCCESS : VK_ERROR_INITIALIZATION_FAILED, "libvulkan.so.1");
    VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                     .apiVersion = VK_API_VERSION_1_2};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                 .pApplicationInfo = &application};
    frame_check(VK(f, vkCreateInstance)(&info, NULL, &f->instance), "an instance");
    uint32_t count = 1; /* the first device will do */
    VK(f, vkEnumeratePhysicalDevices)(f->instance, &count, &f->physical);
    frame_check(count ? VK_SUCCESS : VK_ERROR_INITIALIZATION_FAILED, "a device");
}

static void frame_make_device(frame *f) {
    const VkQueueFlags both = VK_QUEUE_GRAPHICS_BIT | VK_QUEUE_COMPUTE_BIT;
    VkQueueFamilyProperties families[16];
    uint32_t count = 16;
    VK(f, vkGetPhysicalDeviceQueueFamilyProperties)(f->physical, &count, families);
    while (f->family < count && (families[f->family].queueFlags & both) != both)
        f->family++;
    VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                     .queueFamilyIndex = f->family,
                                     .queueCount = 1,
                                     .pQueuePriorities = &(float){1}};
    VkPhysicalDeviceTimelineSemaphoreFeatures timeline = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES,
        .timelineSemaphore = VK_TRUE};
    VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                               .pNext = &timeline,
                               .queueCreateInfoCount = 1,
                               .pQueueCreateInfos = &queue};
    frame_check(VK(f, vkCreateDevice)(f->physical, &info, NULL, &f->device), "the device");
    VK(f, vkGetDeviceQueue)(f->device, f->family, 0, &f->queue);
    VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                      .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    VkSemaphoreCreateInfo semaphore = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                       .pNext = &type};
    frame_check(VK(f, vkCreateSemaphore)(f->device, &semaphore, NULL, &f->timeline), "a semaphore");
}

/* ---- What is drawn on, and how */

static void frame_make_image(frame *f) {
    VkImageCreateInfo info = {.sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO,
                              .imageType = VK_IMAGE_TYPE_2D,
                              .format = VK_FORMAT_R8G8B8A8_UNORM,
                              .extent = {FRAME_SIZE, FRAME_SIZE, 1},
                              .mipLevels = 1,
                              .arrayLayers = 1,
                              .samples = VK_SAMPLE_COUNT_1_BIT,
                              .usage = VK_IMAGE_USAGE_COLOR_ATTACHMENT_BIT |
                                       VK_IMAGE_USAGE_TRANSFER_SRC_BIT};
    frame_check(VK(f, vkCreateImage)(f->device, &info, NULL, &f->image), "an image");
    VkMemoryRequirements need;
    VK(f, vkGetImageMemoryRequirements)(f->device, f->image, &need);
    f->image_memory = frame_memory(f, need, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    VK(f, vkBindImageMemory)(f->device, f->image, f->image_memory, 0);
    VkImageViewCreateInfo view = {.sType = VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO,
                                  .image = f->image,
                                  .viewType = VK_IMAGE_VIEW_TYPE_2D,
                                  .format = info.format,
                                  .subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1}};
    frame_check(VK(f, vkCreateImageView)(f->device, &view, NULL, &f->view), "a view");
}

static void frame_make_pass(frame *f) {
    VkAttachmentDescription color = {.format = VK_FORMAT_R8G8B8A8_UNORM,
                                     .samples = VK_SAMPLE_COUNT_1_BIT,
                                     .loadOp = VK_ATTACHMENT_LOAD_OP_DONT_CARE,
                                     .storeOp = VK_ATTACHMENT_STORE_OP_STORE,
                                     .finalLayout = VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL};
    VkAttachmentReference reference = {0, VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL};
    VkSubpassDescription subpass = {.colorAttachmentCount = 1, .pColorAttachments = &reference};
    VkSubpassDependency to_file = {.dstSubpass = VK_SUBPASS_EXTERNAL,
                                   .srcStageMask = VK_PIPELINE_STAGE_COLOR_ATTACHMENT_OUTPUT_BIT,
                                   .dstStageMask = VK_PIPELINE_STAGE_TRANSFER_BIT,
                                   .srcAccessMask = VK_ACCESS_COLOR_ATTACHMENT_WRITE_BIT,
                                   .dstAccessMask = VK_ACCESS_TRANSFER_READ_BIT};
    VkRenderPassCreateInfo info = {.sType = VK_STRUCTURE_TYPE_RENDER_PASS_CREATE_INFO,
                                   .attachmentCount = 1,
                                   .pAttachments = &color,
                                   .subpassCount = 1,
                                   .pSubpasses = &subpass,
                                   .dependencyCount = 1,
                                   .pDependencies = &to_file};
    frame_check(VK(f, vkCreateRenderPass)(f->device, &info, NULL, &f->pass), "a render pass");
    VkFramebufferCreateInfo target = {.sType = VK_STRUCTURE_TYPE_FRAMEBUFFER_CREATE_INFO,
                                      .renderPass = f->pass,
                                      .attachmentCount = 1,
                                      .pAttachments = &f->view,
                                      .width = FRAME_SIZE,
                                      .height = FRAME_SIZE,
                                      .layers = 1};
    frame_check(VK(f, vkCreateFramebuffer)(f->device, &target, NULL, &f->target), "a framebuffer");
}

static VkPipelineShaderStageCreateInfo frame_stage(frame *f, VkShaderStageFlagBits stage,
                                                   const uint32_t *words, size_t bytes) {
    VkShaderModuleCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = bytes, .pCode = words};
    VkPipelineShaderStageCreateInfo made = {.sType =
                                                VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                            .stage = stage,
                                            .pName = "main"};
    frame_check(VK(f, vkCreateShaderModule)(f->device, &info, NULL, &made.module), "a shader");
    return made;
}

static void frame_make_layout(frame *f) {
    VkDescriptorSetLayoutBinding binding = {.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                            .descriptorCount = 1,
                                            .stageFlags = VK_SHADER_STAGE_FRAGMENT_BIT};
    VkDescriptorSetLayoutCreateInfo set = {.sType =
                                               VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                           .bindingCount = 1,
                                           .pBindings = &binding};
    frame_check(VK(f, vkCreateDescriptorSetLayout)(f->device, &set, NULL, &f->set_layout),
                "a set's layout");
    VkPushConstantRange sizes = {VK_SHADER_STAGE_FRAGMENT_BIT, 0, 8};
    VkPipelineLayoutCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                       .setLayoutCount = 1,
                                       .pSetLayouts = &f->set_layout,
                                       .pushConstantRangeCount = 1,
                                       .pPushConstantRanges = &sizes};
    frame_check(VK(f, vkCreatePipelineLayout)(f->device, &info, NULL, &f->layout), "a layout");
}

static void frame_make_pipeline(frame *f) {
    VkPipelineShaderStageCreateInfo stages[2] = {
        frame_stage(f, VK_SHADER_STAGE_VERTEX_BIT, frame_vertex_words, sizeof frame_vertex_words),
        frame_stage(f, VK_SHADER_STAGE_FRAGMENT_BIT, frame_fragment_words,
                    sizeof frame_fragment_words)};
    VkPipelineVertexInputStateCreateInfo no_vertices = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_VERTEX_INPUT_STATE_CREATE_INFO};
    VkPipelineInputAssemblyStateCreateInfo triangles = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_INPUT_ASSEMBLY_STATE_CREATE_INFO,
        .topology = VK_PRIMITIVE_TOPOLOGY_TRIANGLE_LIST};
    VkPipelineViewportStateCreateInfo whole = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_VIEWPORT_STATE_CREATE_INFO,
        .viewportCount = 1,
        .pViewports = &(VkViewport){0, 0, FRAME_SIZE, FRAME_SIZE, 0, 1},
        .scissorCount = 1,
        .pScissors = &(VkRect2D){{0, 0}, {FRAME_SIZE, FRAME_SIZE}}};
    VkPipelineRasterizationStateCreateInfo filled = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_RASTERIZATION_STATE_CREATE_INFO, .lineWidth = 1};
    VkPipelineMultisampleStateCreateInfo once = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_MULTISAMPLE_STATE_CREATE_INFO,
        .rasterizationSamples = VK_SAMPLE_COUNT_1_BIT};
    VkPipelineColorBlendStateCreateInfo opaque = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_COLOR_BLEND_STATE_CREATE_INFO,
        .attachmentCount = 1,
        .pAttachments = &(VkPipelineColorBlendAttachmentState){.colorWriteMask = 15}};
    VkGraphicsPipelineCreateInfo info = {.sType = VK_STRUCTURE_TYPE_GRAPHICS_PIPELINE_CREATE_INFO,
                                         .stageCount = 2,
                                         .pStages = stages,
                                         .pVertexInputState = &no_vertices,
                                         .pInputAssemblyState = &triangles,
                                         .pViewportState = &whole,
                                         .pRasterizationState = &filled,
                                         .pMultisampleState = &once,
                                         .pColorBlendState = &opaque,
                                         .layout = f->layout,
                                         .renderPass = f->pass};
    frame_check(
        VK(f, vkCreateGraphicsPipelines)(f->device, VK_NULL_HANDLE, 1, &info, NULL, &f->pipeline),
        "the pipeline");
    for (int i = 0; i < 2; i++)
        VK(f, vkDestroyShaderModule)(f->device, stages[i].module, NULL);
}

static void frame_make_set(frame *f, VkBuffer texture) {
    VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1};
    VkDescriptorPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                       .maxSets = 1,
                                       .poolSizeCount = 1,
                                       .pPoolSizes = &size};
    frame_check(VK(f, vkCreateDescriptorPool)(f->device, &pool, NULL, &f->sets), "a set");
    VkDescriptorSetAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                        .descriptorPool = f->sets,
                                        .descriptorSetCount = 1,
                                        .pSetLayouts = &f->set_layout};
    frame_check(VK(f, vkAllocateDescriptorSets)(f->device, &info, &f->set), "a set");
    VkDescriptorBufferInfo buffer = {texture, 0, VK_WHOLE_SIZE};
    VkWriteDescriptorSet write = {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                  .dstSet = f->set,
                                  .descriptorCount = 1,
                                  .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                  .pBufferInfo = &buffer};
    VK(f, vkUpdateDescriptorSets)(f->device, 1, &write, 0, NULL);
}

/* ---- Drawing */

/* The frame's commands, the same each time: the texture of size squared, then a copy for the file. */
static void frame_record(frame *f, int size) {
    const struct {
        int32_t size;
        float scale;
    } sizes = {size, (float)size / FRAME_SIZE};
    VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    VkRenderPassBeginInfo pass = {.sType = VK_STRUCTURE_TYPE_RENDER_PASS_BEGIN_INFO,
                                  .renderPass = f->pass,
                                  .framebuffer = f->target,
                                  .renderArea = {{0, 0}, {FRAME_SIZE, FRAME_SIZE}}};
    VkBufferImageCopy all = {.imageSubresource = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1},
                             .imageExtent = {FRAME_SIZE, FRAME_SIZE, 1}};
    VK(f, vkBeginCommandBuffer)(f->commands, &begin);
    VK(f, vkCmdBeginRenderPass)(f->commands, &pass, VK_SUBPASS_CONTENTS_INLINE);
    VK(f, vkCmdBindPipeline)(f->commands, VK_PIPELINE_BIND_POINT_GRAPHICS, f->pipeline);
    VK(f, vkCmdBindDescriptorSets)
    (f->commands, VK_PIPELINE_BIND_POINT_GRAPHICS, f->layout, 0, 1, &f->set, 0, NULL);
    VK(f, vkCmdPushConstants)
    (f->commands, f->layout, VK_SHADER_STAGE_FRAGMENT_BIT, 0, sizeof sizes, &sizes);
    VK(f, vkCmdDraw)(f->commands, 3, 1, 0, 0);
    VK(f, vkCmdEndRenderPass)(f->commands);
    VK(f, vkCmdCopyImageToBuffer)
    (f->commands, f->image, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL, f->shot, 1, &all);
    VkMemoryBarrier to_host = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                               .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                               .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
    VK(f, vkCmdPipelineBarrier)
    (f->commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &to_host, 0,
     NULL, 0, NULL);
    frame_check(VK(f, vkEndCommandBuffer)(f->commands), "recording");
}

/* Draws once the timeline has the value `wait`, and sets it to `signal`. */
static void frame_draw(frame *f, uint64_t wait, uint64_t signal) {
    VkTimelineSemaphoreSubmitInfo values = {.sType =
                                                VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                            .waitSemaphoreValueCount = 1,
                                            .pWaitSemaphoreValues = &wait,
                                            .signalSemaphoreValueCount = 1,
                                            .pSignalSemaphoreValues = &signal};
    VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                         .pNext = &values,
                         .waitSemaphoreCount = 1,
                         .pWaitSemaphores = &f->timeline,
                         .pWaitDstStageMask =
                             &(VkPipelineStageFlags){VK_PIPELINE_STAGE_ALL_COMMANDS_BIT},
                         .commandBufferCount = 1,
                         .pCommandBuffers = &f->commands,
                         .signalSemaphoreCount = 1,
                         .pSignalSemaphores = &f->timeline};
    frame_check(VK(f, vkQueueSubmit)(f->queue, 1, &info, VK_NULL_HANDLE), "drawing");
}

static void frame_wait(frame *f, uint64_t value) {
    VkSemaphoreWaitInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                .semaphoreCount = 1,
                                .pSemaphores = &f->timeline,
                                .pValues = &value};
    frame_check(VK(f, vkWaitSemaphores)(f->device, &info, UINT64_MAX), "waiting");
}

static void frame_open(frame *f) {
    *f = (frame){0};
    frame_make_instance(f);
    frame_make_device(f);
    frame_make_image(f);
    frame_make_pass(f);
    frame_make_layout(f);
    frame_make_pipeline(f);
    f->shot = frame_buffer(f, 4 * FRAME_SIZE * FRAME_SIZE, VK_BUFFER_USAGE_TRANSFER_DST_BIT,
                           &f->shot_memory, &f->pixels);
    VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                    .queueFamilyIndex = f->family};
    frame_check(VK(f, vkCreateCommandPool)(f->device, &pool, NULL, &f->pool), "a command pool");
    VkCommandBufferAllocateInfo one = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                       .commandPool = f->pool,
                                       .commandBufferCount = 1};
    frame_check(VK(f, vkAllocateCommandBuffers)(f->device, &one, &f->commands), "commands");
}

/* The texture that is drawn from now on: size * size * 3 floats. */
static void frame_use(frame *f, VkBuffer texture, int size) {
    frame_make_set(f, texture);
    frame_record(f, size);
}

static void frame_close(frame *f) {
    VK(f, vkDeviceWaitIdle)(f->device);
    frame_buffer_end(f, f->shot, f->shot_memory);
    VK(f, vkDestroyCommandPool)(f->device, f->pool, NULL);
    VK(f, vkDestroyDescriptorPool)(f->device, f->sets, NULL);
    VK(f, vkDestroyPipeline)(f->device, f->pipeline, NULL);
    VK(f, vkDestroyPipelineLayout)(f->device, f->layout, NULL);
    VK(f, vkDestroyDescriptorSetLayout)(f->device, f->set_layout, NULL);
    VK(f, vkDestroyFramebuffer)(f->device, f->target, NULL);
    VK(f, vkDestroyRenderPass)(f->device, f->pass, NULL);
    VK(f, vkDestroyImageView)(f->device, f->view, NULL);
    VK(f, vkDestroyImage)(f->device, f->image, NULL);
    VK(f, vkFreeMemory)(f->device, f->image_memory, NULL);
    VK(f, vkDestroySemaphore)(f->device, f->timeline, NULL);
    VK(f, vkDestroyDevice)(f->device, NULL);
    VK(f, vkDestroyInstance)(f->instance, NULL);
}

/* ---- PNG, with what is stored uncompressed */

static uint32_t frame_crc(uint32_t crc, const uint8_t *data, size_t bytes) {
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static void frame_put(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (24 - 8 * i));
}

static void frame_chunk(FILE *file, const char *name, const uint8_t *data, uint32_t bytes) {
    uint8_t head[8], tail[4];
    frame_put(head, bytes);
    memcpy(head + 4, name, 4);
    frame_put(tail, frame_crc(frame_crc(0, head + 4, 4), data, bytes));
    fwrite(head, 1, 8, file);
    fwrite(data, 1, bytes, file);
    fwrite(tail, 1, 4, file);
}

#define FRAME_ROW (1 + 3 * FRAME_SIZE) /* a filter byte (none), then red, green, blue */

static void frame_save(const frame *f, const char *path) {
    static uint8_t data[2 + FRAME_SIZE * (5 + FRAME_ROW) + 4] = {0x78, 1};
    uint8_t head[13] = {[8] = 8, [9] = 2}, *at = data + 2;
    uint32_t a = 1, b = 0;                 /* Adler's sums */
    for (int y = 0; y < FRAME_SIZE; y++) { /* each row is a block of deflate */
        const uint8_t block[5] = {y == FRAME_SIZE - 1, FRAME_ROW & 255, FRAME_ROW >> 8,
                                  ~FRAME_ROW & 255, ~FRAME_ROW >> 8 & 255};
        memcpy(at, block, 5);
        uint8_t *row = at + 5;
        for (int x = 0; x < FRAME_SIZE; x++)
            memcpy(row + 1 + 3 * x, f->pixels + 4 * (y * FRAME_SIZE + x), 3);
        for (int i = 0; i < FRAME_ROW; i++) {
            a = (a + row[i]) % 65521;
            b = (b + a) % 65521;
        }
        at = row + FRAME_ROW;
    }
    frame_put(at, b << 16 | a);
    frame_put(head, FRAME_SIZE);
    frame_put(head + 4, FRAME_SIZE);
    FILE *file = fopen(path, "wb");
    frame_check(file ? VK_SUCCESS : VK_ERROR_UNKNOWN, path);
    fwrite("\x89PNG\r\n\x1a\n", 1, 8, file);
    frame_chunk(file, "IHDR", head, sizeof head);
    frame_chunk(file, "IDAT", data, sizeof data);
    frame_chunk(file, "IEND", head, 0);
    fclose(file);
}

#endif
