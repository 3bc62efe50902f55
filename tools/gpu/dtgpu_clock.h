/* Part of dtgpu.c: times on the device's own clock. The functions by which an open device records
 * its command buffers are replaced by others that write timestamps as well. So the library itself
 * records all that is timed. Without timestamps the clock of the host is all there is. */

#define CLOCK_QUERIES 16384u

typedef enum clock_mode { CLOCK_OFF, CLOCK_LAUNCHES, CLOCK_SEGMENTS } clock_mode;

typedef uint64_t vk_query_pool; /* a handle that is not a pointer on 32-bit machines */

typedef struct vk_query_info {
    uint32_t type;
    const void *next;
    uint32_t flags, query_type, count, statistics;
} vk_query_info;

typedef struct span { /* of a launch, or of a command buffer */
    dti_VkPipeline pipeline;
    uint32_t x, y;
    dti_args args;
    double ms;
    bool ran;
    uint32_t launches, barriers; /* of a command buffer */
} span;

static struct gpu_clock {
    dti_vk_device *device;
    clock_mode mode;
    bool has; /* timestamps */
    double ns;
    uint64_t mask;
    dti_vk_device_functions real;
    vk_query_pool pool;
    int32_t(DTI_VKAPI *create)(dti_VkDevice, const vk_query_info *, const void *, vk_query_pool *);
    void(DTI_VKAPI *destroy)(dti_VkDevice, vk_query_pool, const void *);
    int32_t(DTI_VKAPI *results)(dti_VkDevice, vk_query_pool, uint32_t, uint32_t, size_t, void *,
                                uint64_t, uint32_t);
    void(DTI_VKAPI *reset)(dti_VkCommandBuffer, vk_query_pool, uint32_t, uint32_t);
    void(DTI_VKAPI *stamp)(dti_VkCommandBuffer, uint32_t, vk_query_pool, uint32_t);
    span spans[CLOCK_QUERIES / 2];
    uint32_t count;
    dti_VkPipeline pipeline;
    dti_args args;
    struct {
        dti_VkCommandBuffer command;
        uint32_t span;
    } open[64]; /* command buffers that are recorded as wholes */
    uint32_t open_count;
} clocks;

static uint32_t clock_new_span(dti_VkCommandBuffer command) {
    if (clocks.count >= CLOCK_QUERIES / 2)
        fail("clock", "more launches than it has places for");
    clocks.reset(command, clocks.pool, 2 * clocks.count, 2);
    return clocks.count++;
}

static void clock_stamp(dti_VkCommandBuffer command, uint32_t query) {
    clocks.stamp(command, 0x2000 /* BOTTOM_OF_PIPE */, clocks.pool, query);
}

static void DTI_VKAPI clock_bind(dti_VkCommandBuffer command, dti_VkPipelineBindPoint point,
                                 dti_VkPipeline pipeline) {
    clocks.pipeline = pipeline;
    clocks.real.CmdBindPipeline(command, point, pipeline);
}

static void DTI_VKAPI clock_push(dti_VkCommandBuffer command, dti_VkPipelineLayout layout,
                                 dti_VkFlags stages, uint32_t offset, uint32_t size,
                                 const void *values) {
    if (offset != DTI_ARGS_MOST) { /* else it is the first workgroup */
        memset(&clocks.args, 0, sizeof clocks.args);
        memcpy(&clocks.args, values, DTI_MIN(size, sizeof clocks.args));
    }
    clocks.real.CmdPushConstants(command, layout, stages, offset, size, values);
}

/* Of a command buffer that is recorded as a whole; NULL: this one is not. */
static span *clock_open_span(dti_VkCommandBuffer command) {
    for (uint32_t i = clocks.open_count; i-- > 0;)
        if (clocks.open[i].command == command)
            return &clocks.spans[clocks.open[i].span];
    return NULL;
}

/* A launch, or a slice of one. */
static void DTI_VKAPI clock_dispatch(dti_VkCommandBuffer command, uint32_t x, uint32_t y,
                                     uint32_t z) {
    span *whole = clock_open_span(command);
    if (whole)
        whole->launches++;
    if (clocks.mode != CLOCK_LAUNCHES) {
        clocks.real.CmdDispatch(command, x, y, z);
        return;
    }
    dti_vk_barrier_all(clocks.device, command);
    const uint32_t at = clock_new_span(command);
    clocks.spans[at] = (span){.pipeline = clocks.pipeline, .x = x, .y = y, .args = clocks.args};
    clock_stamp(command, 2 * at);
    clocks.real.CmdDispatch(command, x, y, z);
    clock_stamp(command, 2 * at + 1);
}

static dti_VkResult DTI_VKAPI clock_begin(dti_VkCommandBuffer command,
                                          const dti_VkCommandBufferBeginInfo *info) {
    const dti_VkResult result = clocks.real.BeginCommandBuffer(command, info);
    if (!result && clocks.mode == CLOCK_SEGMENTS && clocks.open_count < DTI_COUNT(clocks.open)) {
        const uint32_t at = clock_new_span(command);
        clocks.spans[at] = (span){0};
        clocks.open[clocks.open_count].command = command;
        clocks.open[clocks.open_count++].span = at;
        clock_stamp(command, 2 * at);
    }
    return result;
}

static dti_VkResult DTI_VKAPI clock_end(dti_VkCommandBuffer command) {
    for (uint32_t i = clocks.open_count; i-- > 0;)
        if (clocks.open[i].command == command) {
            clock_stamp(command, 2 * clocks.open[i].span + 1);
            clocks.open[i] = clocks.open[--clocks.open_count];
            break;
        }
    return clocks.real.EndCommandBuffer(command);
}

static void DTI_VKAPI clock_barrier(dti_VkCommandBuffer command, dti_VkFlags from, dti_VkFlags to,
                                    dti_VkFlags flags, uint32_t count,
                                    const dti_VkMemoryBarrier *barriers, uint32_t buffers,
                                    const void *buffer, uint32_t images, const void *image) {
    span *whole = clock_open_span(command);
    if (whole)
        whole->barriers++;
    clocks.real.CmdPipelineBarrier(command, from, to, flags, count, barriers, buffers, buffer,
                                   images, image);
}

/* From here on what the device records is timed. */
static void clock_start(dti_vk_device *device, clock_mode mode) {
    dti_vk_instance *in = device->instance;
    clocks.device = device;
    clocks.mode = mode;
    clocks.real = device->vk;
    clocks.count = clocks.open_count = 0;
    dti_VkQueueFamilyProperties families[64];
    uint32_t count = DTI_COUNT(families);
    in->vk.GetPhysicalDeviceQueueFamilyProperties(device->physical, &count, families);
    const uint32_t bits = device->family < count ? families[device->family].timestampValidBits : 0;
    clocks.mask = bits >= 64 ? UINT64_MAX : (1ull << bits) - 1;
    clocks.ns = device->stamp_ms * 1e6;
#define FIND(member, name)                                                                         \
    *(void **)&clocks.member = *(void **)&(dti_PFN_vkVoidFunction){                                \
        (dti_PFN_vkVoidFunction)in->vk.GetDeviceProcAddr(device->handle, name)}
    FIND(create, "vkCreateQueryPool");
    FIND(destroy, "vkDestroyQueryPool");
    FIND(results, "vkGetQueryPoolResults");
    FIND(reset, "vkCmdResetQueryPool");
    FIND(stamp, "vkCmdWriteTimestamp");
#undef FIND
    const vk_query_info info = {.type = 11, .query_type = 2, .count = CLOCK_QUERIES};
    clocks.has = bits > 0 && clocks.create && clocks.reset && clocks.stamp && clocks.results &&
                 !clocks.create(device->handle, &info, NULL, &clocks.pool);
    clocks.mode = clocks.has ? mode : CLOCK_OFF;
    device->vk.CmdBindPipeline = clock_bind;
    device->vk.CmdPushConstants = clock_push;
    device->vk.CmdDispatch = clock_dispatch;
    device->vk.CmdPipelineBarrier = clock_barrier;
    device->vk.BeginCommandBuffer = clock_begin;
    device->vk.EndCommandBuffer = clock_end;
}

/* What is recorded now is not timed; the commands recorded before still are. */
static void clock_stop(void) {
    clocks.device->vk = clocks.real;
}

/* The spans that have run since they were recorded, with their times; how many. */
static uint32_t clock_read(void) {
    uint32_t ran = 0;
    for (uint32_t i = 0; i < clocks.count; i++) {
        uint64_t value[4] = {0}; /* each with whether it is there */
        clocks.results(clocks.device->handle, clocks.pool, 2 * i, 2, sizeof value, value, 16,
                       1 | 4 /* 64 bits, with availability */);
        clocks.spans[i].ran = value[1] && value[3];
        clocks.spans[i].ms = (double)((value[2] - value[0]) & clocks.mask) * clocks.ns * 1e-6;
        ran += clocks.spans[i].ran;
    }
    return ran;
}

static void clock_close(void) {
    if (clocks.has)
        clocks.destroy(clocks.device->handle, clocks.pool, NULL);
    clocks.has = false;
}

/* Which kernel a span is of; NULL: none of the library's table. */
static const dti_vk_shader *clock_shader(const span *s) {
    for (size_t i = 0; i < clocks.device->pipeline_count; i++) {
        const dti_vk_pipeline *p = &clocks.device->pipelines[i];
        if (p->handle == s->pipeline)
            return dti_vk_shader_of(p->kernel, p->variant);
    }
    return NULL;
}
