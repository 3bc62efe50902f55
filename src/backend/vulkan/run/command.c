/* Command buffers, barriers, submission and waiting on the device's single queue. Only global
 * memory barriers are used: drivers act on stages, and one arena holds nearly everything. A wait
 * polls the fence for a moment and then sleeps. With a software driver it sleeps at once, because a
 * spinning thread would take its core. */

static dt_result dti_vk_command_create(dti_vk_device *device, uint32_t count,
                                       dti_VkCommandBuffer *out) {
    dti_VkCommandBufferAllocateInfo info = {
        .sType = DTI_VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = device->pool,
        .level = DTI_VK_COMMAND_BUFFER_LEVEL_PRIMARY,
        .commandBufferCount = count,
    };
    return dti_vk_check(device, device->vk.AllocateCommandBuffers(device->handle, &info, out),
                        "making command buffers");
}

/* No ONE_TIME_SUBMIT: a segment is recorded once and submitted at every step. */
static dt_result dti_vk_command_begin(dti_vk_device *device, dti_VkCommandBuffer command) {
    dti_VkCommandBufferBeginInfo info = {.sType = DTI_VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    return dti_vk_check(device, device->vk.BeginCommandBuffer(command, &info), "recording");
}

static dt_result dti_vk_command_end(dti_vk_device *device, dti_VkCommandBuffer command) {
    return dti_vk_check(device, device->vk.EndCommandBuffer(command), "recording");
}

static dt_result dti_vk_fence_create(dti_vk_device *device, dti_VkFence *out) {
    dti_VkFenceCreateInfo info = {.sType = DTI_VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    return dti_vk_check(device, device->vk.CreateFence(device->handle, &info, NULL, out),
                        "making a fence");
}

/* ---- Barriers -------------------------------------------------------------------------------- */

static void dti_vk_barrier(dti_vk_device *device, dti_VkCommandBuffer command, uint32_t from_stage,
                           uint32_t from_access, uint32_t to_stage, uint32_t to_access) {
    dti_VkMemoryBarrier barrier = {
        .sType = DTI_VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = from_access,
        .dstAccessMask = to_access,
    };
    device->vk.CmdPipelineBarrier(command, from_stage, to_stage, 0, 1, &barrier, 0, NULL, 0, NULL);
}

#define DTI_VK_WORK_STAGES                                                                         \
    (DTI_VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | DTI_VK_PIPELINE_STAGE_TRANSFER_BIT)
#define DTI_VK_WORK_WRITES (DTI_VK_ACCESS_SHADER_WRITE_BIT | DTI_VK_ACCESS_TRANSFER_WRITE_BIT)
#define DTI_VK_WORK_ACCESS                                                                         \
    (DTI_VK_WORK_WRITES | DTI_VK_ACCESS_SHADER_READ_BIT | DTI_VK_ACCESS_UNIFORM_READ_BIT |         \
     DTI_VK_ACCESS_TRANSFER_READ_BIT)

static void dti_vk_barrier_all(dti_vk_device *device, dti_VkCommandBuffer command) {
    dti_vk_barrier(device, command, DTI_VK_WORK_STAGES, DTI_VK_WORK_WRITES, DTI_VK_WORK_STAGES,
                   DTI_VK_WORK_ACCESS);
}

static void dti_vk_barrier_compute(dti_vk_device *device, dti_VkCommandBuffer command) {
    dti_vk_barrier(device, command, DTI_VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                   DTI_VK_ACCESS_SHADER_WRITE_BIT, DTI_VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                   DTI_VK_ACCESS_SHADER_READ_BIT | DTI_VK_ACCESS_SHADER_WRITE_BIT);
}

static void dti_vk_barrier_host(dti_vk_device *device, dti_VkCommandBuffer command) {
    dti_vk_barrier(device, command, DTI_VK_WORK_STAGES, DTI_VK_WORK_WRITES,
                   DTI_VK_PIPELINE_STAGE_HOST_BIT, DTI_VK_ACCESS_HOST_READ_BIT);
}

static void dti_vk_copy(dti_vk_device *device, dti_VkCommandBuffer command,
                        const dti_vk_buffer *from, uint64_t from_offset, const dti_vk_buffer *to,
                        uint64_t to_offset, uint64_t bytes) {
    dti_VkBufferCopy region = {.srcOffset = from_offset, .dstOffset = to_offset, .size = bytes};
    device->vk.CmdCopyBuffer(command, from->handle, to->handle, 1, &region);
}

/* The ranges that a segment fetches, to the same offsets of `to`. Ranges that touch are one
 * copy. */
static void dti_vk_copy_fetch(dti_vk_device *device, dti_VkCommandBuffer command,
                              const dti_vk_buffer *from, const dti_vk_buffer *to,
                              const dti_fetch *fetch) {
    dti_VkBufferCopy regions[64];
    const bool dense = fetch->stride == fetch->bytes;
    const uint32_t count = dense ? 1 : fetch->count;
    const uint64_t bytes = dense ? fetch->bytes * fetch->count : fetch->bytes;
    for (uint32_t at = 0; at < count && bytes;) {
        uint32_t n = 0;
        for (; n < DTI_COUNT(regions) && at < count; n++, at++) {
            uint64_t offset = fetch->offset + at * fetch->stride;
            regions[n] =
                (dti_VkBufferCopy){.srcOffset = offset, .dstOffset = offset, .size = bytes};
        }
        device->vk.CmdCopyBuffer(command, from->handle, to->handle, n, regions);
    }
}

/* ---- Submission ------------------------------------------------------------------------------ */

static void dti_vk_host_calls(dti_vk_device *device, void (*call)(void *user)) {
    if (!call)
        return;
    dti_visit visit;
    dti_visit_host(&visit, device->instance->base, DTI_IN_CALLBACK);
    call(device->host->user);
    dti_visit_returned(&visit);
}

/* The one place where the queue is touched: under the application's lock, if it is its queue. */
static dt_result dti_vk_queue_submit(dti_vk_device *device, uint32_t count,
                                     const dti_VkSubmitInfo *info, dti_VkFence fence) {
    const dt_vulkan_desc *host = device->host;
    dti_vk_host_calls(device, host ? host->lock : NULL);
    dti_VkResult result = device->vk.QueueSubmit(device->queue, count, info, fence);
    dti_vk_host_calls(device, host ? host->unlock : NULL);
    return dti_vk_check(device, result, "submitting");
}

/* Submissions of a queue begin in order, and a semaphore orders all submissions before it with all
 * after it. So other submissions need no semaphore of their own. */
static dt_result dti_vk_sync(dti_device *head, const dt_vulkan_semaphore *wait,
                             const dt_vulkan_semaphore *signal) {
    dti_vk_device *device = (dti_vk_device *)head;
    DTI_TRY(dti_vk_alive(device));
    const uint32_t stages = DTI_VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    dti_VkSemaphore waits = (dti_VkSemaphore)wait->semaphore;
    dti_VkSemaphore signals = (dti_VkSemaphore)signal->semaphore;
    dti_VkTimelineSemaphoreSubmitInfo values = {
        .sType = DTI_VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount = wait->semaphore != 0,
        .pWaitSemaphoreValues = &wait->value,
        .signalSemaphoreValueCount = signal->semaphore != 0,
        .pSignalSemaphoreValues = &signal->value,
    };
    dti_VkSubmitInfo info = {
        .sType = DTI_VK_STRUCTURE_TYPE_SUBMIT_INFO,
        .pNext = &values,
        .waitSemaphoreCount = wait->semaphore != 0,
        .pWaitSemaphores = &waits,
        .pWaitDstStageMask = &stages,
        .signalSemaphoreCount = signal->semaphore != 0,
        .pSignalSemaphores = &signals,
    };
    return dti_vk_queue_submit(device, 1, &info, 0);
}

static dt_result dti_vk_submit(dti_vk_device *device, const dti_VkCommandBuffer *commands,
                               uint32_t count, dti_VkFence fence) {
    dti_VkSubmitInfo info = {
        .sType = DTI_VK_STRUCTURE_TYPE_SUBMIT_INFO,
        .commandBufferCount = count,
        .pCommandBuffers = commands,
    };
    DTI_TRY(fence ? dti_vk_check(device, device->vk.ResetFences(device->handle, 1, &fence),
                                 "resetting a fence")
                  : DT_OK);
    DTI_TRY(dti_vk_queue_submit(device, count > 0, &info, fence));
    device->submitted++;
    return DT_OK;
}

/* On hardware a look costs less than to be woken, and a short step has ended soon. */
static dti_VkResult dti_vk_fence_poll(dti_vk_device *device, dti_VkFence fence) {
    const uint64_t end = dti_now_ns() + DTI_VK_POLL_NS;
    dti_VkResult result = DTI_VK_NOT_READY;
    while (device->head.info.kind != DT_DEVICE_SOFTWARE && result == DTI_VK_NOT_READY &&
           dti_now_ns() < end)
        result = device->vk.GetFenceStatus(device->handle, fence);
    return result;
}

static dt_result dti_vk_fence_wait(dti_vk_device *device, dti_VkFence fence) {
    const uint64_t second = 1000000000;
    dti_VkResult result = dti_vk_fence_poll(device, fence);
    if (result != DTI_VK_NOT_READY)
        return dti_vk_check(device, result, "waiting");
    do
        result = device->vk.WaitForFences(device->handle, 1, &fence, DTI_VK_TRUE, second);
    while (result == DTI_VK_TIMEOUT);
    return dti_vk_check(device, result, "waiting");
}

static dt_result dti_vk_run(dti_vk_device *device, dti_VkCommandBuffer command) {
    dt_result result = dti_vk_submit(device, &command, command != NULL, device->fence);
    uint64_t number = device->submitted;
    if (!result)
        result = dti_vk_fence_wait(device, device->fence);
    if (!result)
        device->finished = number;
    return result;
}

static dt_result dti_vk_drain(dti_vk_device *device) {
    return device->finished < device->submitted ? dti_vk_run(device, NULL) : DT_OK;
}
