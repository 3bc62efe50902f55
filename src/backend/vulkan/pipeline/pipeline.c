/* Compute pipelines. All kernels have one descriptor set layout and one pipeline layout. So
 * launches differ only in pipeline, set and push constants. A pipeline is compiled when the first
 * program that needs it is created, and kept while the device is open.
 *
 * The pipeline cache is a blob of parts, one per device. A part has a header of our own, because a
 * driver may trust the blob, and then the driver's bytes. A part of another device or driver is
 * skipped; a damaged one is ignored with a warning. */

/* ---- The cache blob -------------------------------------------------------------------------- */

#define DTI_VK_CACHE_MAGIC 0x6331656863617674ull /* also rejects the other byte order */
/* The digit in the middle is the version of verdicts. It changes when a verdict, or the timing for
 * it, gets another meaning. Verdicts of another version are skipped. */
#define DTI_VK_VERDICTS_MAGIC 0x6334746369646576ull
#define DTI_VK_VERDICTS_VERSION 0x00ff000000000000ull

typedef struct dti_vk_cache_header {
    uint64_t magic, bytes;
    dti_vk_identity identity;
    uint32_t crc; /* CRC32C of the following bytes: the driver's, or verdicts (qualify.c) */
} dti_vk_cache_header;
_Static_assert(sizeof(dti_vk_cache_header) == 48, "written to disk by applications");

static bool dti_vk_is_part(uint64_t magic) {
    return magic == DTI_VK_CACHE_MAGIC ||
           (magic | DTI_VK_VERDICTS_VERSION) == (DTI_VK_VERDICTS_MAGIC | DTI_VK_VERDICTS_VERSION);
}

typedef enum dti_vk_found { DTI_VK_NONE, DTI_VK_FOUND, DTI_VK_DAMAGED } dti_vk_found;

/* Looks in a blob for this device's part of a kind. The identity is compared before the checksum:
 * another driver's part is not worth reading. */
static dti_vk_found dti_vk_part_find(uint64_t magic, const void *blob, size_t blob_bytes,
                                     const dti_vk_identity *identity, const void **data,
                                     size_t *bytes) {
    const char *at = blob;
    size_t left = blob ? blob_bytes : 0;
    while (left) {
        dti_vk_cache_header header;
        if (left < sizeof header)
            return DTI_VK_DAMAGED;
        memcpy(&header, at, sizeof header);
        left -= sizeof header;
        at += sizeof header;
        if (!dti_vk_is_part(header.magic) || header.bytes > left)
            return DTI_VK_DAMAGED;
        *data = at;
        *bytes = (size_t)header.bytes;
        if (header.magic == magic && !memcmp(&header.identity, identity, sizeof *identity))
            return dti_crc32c(0, at, *bytes) == header.crc ? DTI_VK_FOUND : DTI_VK_DAMAGED;
        left -= *bytes;
        at += *bytes;
    }
    return DTI_VK_NONE;
}

/* Writes a part (header and data) to `out`; returns its size; out NULL only measures. */
static size_t dti_vk_part_pack(uint64_t magic, const dti_vk_identity *identity, const void *data,
                               size_t bytes, void *out) {
    dti_vk_cache_header header = {
        .magic = magic,
        .bytes = bytes,
        .identity = *identity,
        .crc = out ? dti_crc32c(0, data, bytes) : 0,
    };
    if (out) {
        memmove((char *)out + sizeof header, data, bytes); /* may lie there already */
        memcpy(out, &header, sizeof header);
    }
    return sizeof header + bytes;
}

/* An earlier run's results about the kernels. If none is of this driver, nothing is known. */
static void dti_vk_verdicts_load(dti_vk_device *device) {
    const dti_vk_options *options = &device->instance->options;
    const void *data = NULL;
    size_t bytes = 0;
    if (options->kernel_check == DT_KERNEL_CHECK_ONCE &&
        dti_vk_part_find(DTI_VK_VERDICTS_MAGIC, options->cache, options->cache_bytes,
                         &device->identity, &data, &bytes) == DTI_VK_FOUND)
        dti_vk_verdicts_read(device, data, bytes);
}

static dt_result dti_vk_cache_create(dti_vk_device *device) {
    dti_base *base = device->head.base;
    const dti_vk_options *options = &device->instance->options;
    dti_VkPipelineCacheCreateInfo info = {.sType =
                                              DTI_VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    const void *data = NULL;
    size_t bytes = 0;
    dti_vk_verdicts_load(device);
    switch (dti_vk_part_find(DTI_VK_CACHE_MAGIC, options->cache, options->cache_bytes,
                             &device->identity, &data, &bytes)) {
    case DTI_VK_FOUND:
        info.initialDataSize = bytes;
        info.pInitialData = data;
        break;
    case DTI_VK_DAMAGED:
        dti_log(base, DT_LOG_WARNING, "the pipeline cache is damaged and ignored");
        break;
    case DTI_VK_NONE:
        if (options->cache)
            dti_log(base, DT_LOG_WARNING,
                    "the pipeline cache is not of %s with this driver, and is ignored",
                    device->head.info.name);
    }
    return dti_vk_check(device,
                        device->vk.CreatePipelineCache(device->handle, &info, NULL, &device->cache),
                        "making the pipeline cache");
}

/* One device's part at out (NULL: measure); *bytes is its size, of at most `room`. */
static dt_result dti_vk_cache_export_one(dti_vk_device *device, char *out, size_t room,
                                         size_t *bytes) {
    size_t size = 0, head = sizeof(dti_vk_cache_header);
    dt_result result = dti_vk_alive(device);
    if (!result)
        result = dti_vk_check(
            device, device->vk.GetPipelineCacheData(device->handle, device->cache, &size, NULL),
            "reading the pipeline cache");
    const size_t judged = dti_vk_verdicts_write(device, NULL);
    *bytes = head + size + (judged ? head + judged : 0);
    if (result || !out)
        return result;
    if (room < *bytes)
        return dti_fail(device->head.base, DT_ERROR_INVALID,
                        "the pipeline cache needs %zu more bytes; ask for the size again",
                        *bytes - room);
    result = dti_vk_check(
        device, device->vk.GetPipelineCacheData(device->handle, device->cache, &size, out + head),
        "reading the pipeline cache");
    *bytes = dti_vk_part_pack(DTI_VK_CACHE_MAGIC, &device->identity, out + head, size, out);
    if (judged) {
        out += *bytes;
        dti_vk_verdicts_write(device, out + head);
        *bytes +=
            dti_vk_part_pack(DTI_VK_VERDICTS_MAGIC, &device->identity, out + head, judged, out);
    }
    return result;
}

static dt_result dti_vk_cache_export(void *instance, void *data, size_t *bytes) {
    const dti_vk_instance *in = instance;
    size_t room = data ? *bytes : 0, used = 0;
    dt_result result = DT_OK;
    for (int i = 0; in && i < in->device_count && !result; i++) {
        size_t part = 0;
        if (!in->open[i] || in->open[i]->lost)
            continue;
        result = dti_vk_cache_export_one(in->open[i], data ? (char *)data + used : NULL,
                                         room - (data ? used : 0), &part);
        used += part;
    }
    *bytes = used;
    return result;
}

/* ---- Layouts --------------------------------------------------------------------------------- */

static dt_result dti_vk_layouts_create(dti_vk_device *device) {
    dti_VkDescriptorSetLayoutBinding bindings[DTI_BINDINGS_MAX + 1];
    for (uint32_t i = 0; i <= DTI_BINDINGS_MAX; i++)
        bindings[i] = (dti_VkDescriptorSetLayoutBinding){
            .binding = i,
            .descriptorType = i < DTI_BINDINGS_MAX ? DTI_VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
                                                   : DTI_VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER,
            .descriptorCount = 1,
            .stageFlags = DTI_VK_SHADER_STAGE_COMPUTE_BIT,
        };
    dti_VkDescriptorSetLayoutCreateInfo set_info = {
        .sType = DTI_VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
        .bindingCount = DTI_COUNT(bindings),
        .pBindings = bindings,
    };
    DTI_TRY(dti_vk_check(
        device,
        device->vk.CreateDescriptorSetLayout(device->handle, &set_info, NULL, &device->set_layout),
        "making the set layout"));
    dti_VkPushConstantRange range = {.stageFlags = DTI_VK_SHADER_STAGE_COMPUTE_BIT,
                                     .size = DTI_ARGS_MOST + DTI_WORD_BYTES};
    dti_VkPipelineLayoutCreateInfo info = {
        .sType = DTI_VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
        .setLayoutCount = 1,
        .pSetLayouts = &device->set_layout,
        .pushConstantRangeCount = 1,
        .pPushConstantRanges = &range,
    };
    DTI_TRY(dti_vk_check(
        device, device->vk.CreatePipelineLayout(device->handle, &info, NULL, &device->layout),
        "making the pipeline layout"));
    return dti_vk_cache_create(device);
}

static void dti_vk_layouts_destroy(dti_vk_device *device) {
    for (size_t i = 0; i < device->pipeline_count; i++)
        device->vk.DestroyPipeline(device->handle, device->pipelines[i].handle, NULL);
    device->vk.DestroyPipelineCache(device->handle, device->cache, NULL);
    device->vk.DestroyPipelineLayout(device->handle, device->layout, NULL);
    device->vk.DestroyDescriptorSetLayout(device->handle, device->set_layout, NULL);
}

/* ---- Pipelines ------------------------------------------------------------------------------- */

static dti_grid_device dti_vk_grid_device(const dti_vk_device *device) {
    const dt_device_info *info = &device->head.info;
    const bool software = info->kind == DT_DEVICE_SOFTWARE;
    const uint32_t sums =
        device->sums ? device->sums : dti_vk_grid_sums(info->vendor_id, info->device_id);
    return (dti_grid_device){.invocations_max = info->workgroup_invocations,
                             .shared_bytes = info->shared_bytes,
                             .subgroup = info->subgroup_size,
                             .sums = software ? 0 : sums,
                             .portable = device->instance->options.no_fast,
                             .software = software};
}

static uint32_t dti_vk_variant_of(const dti_vk_device *device, const dti_launch *launch) {
    const dti_grid_device d = dti_vk_grid_device(device);
    return dti_vk_grid_variant(launch, &d);
}

static uint32_t dti_vk_local_of(const dti_vk_device *device, uint32_t kernel, uint32_t variant) {
    const dti_grid_device d = dti_vk_grid_device(device);
    return dti_vk_grid_local(kernel, variant, &d);
}

static dt_result dti_vk_pipeline_want(dti_vk_device *device, uint32_t kernel, uint32_t variant,
                                      uint32_t local, uint32_t types, const uint32_t spec[4],
                                      uint32_t *index) {
    dti_vk_pipeline wanted = {.kernel = kernel, .variant = variant, .local = local, .types = types};
    memcpy(wanted.spec, spec, sizeof wanted.spec);
    const size_t key = offsetof(dti_vk_pipeline, spec) + sizeof wanted.spec;
    for (*index = 0; *index < device->pipeline_count; ++*index)
        if (!memcmp(&device->pipelines[*index], &wanted, key))
            return DT_OK;
    if (!dti_vk_shader_of(kernel, variant))
        return dti_fail(device->head.base, DT_ERROR_UNSUPPORTED, "there is no Vulkan kernel for %s",
                        dti_kernel_info_of(kernel)->name);
    DTI_HAVE(DTI_RESERVE(device->head.base, device->pipelines, device->pipeline_capacity,
                         device->pipeline_count + 1));
    device->pipelines[device->pipeline_count++] = wanted;
    return DT_OK;
}

/* Asks nothing but the driver, which several threads may do at once. Selectors become constants of
 * the module. */
static void dti_vk_pipeline_compile(const dti_vk_device *device, dti_vk_pipeline *p) {
    const dti_vk_shader *shader = dti_vk_shader_of(p->kernel, p->variant);
    const uint32_t values[] = {p->local,   p->spec[0],   p->spec[1], p->spec[2],
                               p->spec[3], shader->side, p->types};
    size_t count = shader->word_count;
    count = dti_vk_shader_specialize(p->words, count, values, DTI_COUNT(values));
    if (device->head.info.has_float_controls)
        count = dti_vk_shader_preserve(p->words, count);
    const dti_VkShaderModuleCreateInfo module_info = {
        .sType = DTI_VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
        .codeSize = sizeof *p->words * count,
        .pCode = p->words,
    };
    dti_VkPipelineCreationFeedback told[2] = {{0}}; /* of the pipeline, and of its stage */
    const dti_VkPipelineCreationFeedbackCreateInfo feedback = {
        .sType = DTI_VK_STRUCTURE_TYPE_PIPELINE_CREATION_FEEDBACK_CREATE_INFO,
        .pPipelineCreationFeedback = &told[0],
        .pipelineStageCreationFeedbackCount = 1,
        .pPipelineStageCreationFeedbacks = &told[1]};
    dti_VkComputePipelineCreateInfo info = {
        .sType = DTI_VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .pNext = device->feedback ? &feedback : NULL,
        .flags = p->sums ? DTI_VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR : 0,
        .stage = {.sType = DTI_VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = DTI_VK_SHADER_STAGE_COMPUTE_BIT,
                  .pName = "main"},
        .layout = device->layout,
    };
    p->result =
        device->vk.CreateShaderModule(device->handle, &module_info, NULL, &info.stage.module);
    if (!p->result)
        p->result = device->vk.CreateComputePipelines(device->handle, device->cache, 1, &info, NULL,
                                                      &p->handle);
    device->vk.DestroyShaderModule(device->handle, info.stage.module, NULL);
    const uint32_t hit = DTI_VK_PIPELINE_CREATION_FEEDBACK_VALID_BIT |
                         DTI_VK_PIPELINE_CREATION_FEEDBACK_APPLICATION_PIPELINE_CACHE_HIT_BIT;
    p->cached = (told[0].flags & hit) == hit;
}

/* One after the other: a piece of a range would be several, and some take 100 times longer than
 * others. */
static void dti_vk_compile_next(void *arg, int64_t begin, int64_t end, int worker) {
    dti_vk_device *device = arg;
    for (size_t i; (i = atomic_fetch_add(&device->pipeline_next, 1)) < device->pipeline_count;)
        dti_vk_pipeline_compile(device, &device->pipelines[i]);
}

/* Keeps the pipelines that were made. The first error is reported: the same with any number of
 * threads. */
static dt_result dti_vk_pipelines_take(dti_vk_device *device, dt_result result) {
    const size_t count = device->pipeline_count;
    size_t kept = device->pipeline_ready;
    for (size_t i = kept; i < count; i++) {
        dti_vk_pipeline p = device->pipelines[i];
        dti_free(device->head.base, p.words);
        p.words = NULL;
        if (!result)
            result = dti_vk_check(device, p.result, dti_vk_shader_of(p.kernel, p.variant)->name);
        device->made.cached += p.cached;
        if (p.handle && p.sums)
            dti_vk_spills_read(device, &p);
        if (p.handle)
            device->pipelines[kept++] = p;
    }
    device->made.count += (uint32_t)(kept - device->pipeline_ready);
    device->pipeline_count = device->pipeline_ready = kept;
    return result;
}

/* A driver's compiler needs a stack that a host's job may not have. And messages of the validation
 * layer go to the log, which is called on the caller's thread. */
static dti_pool *dti_vk_compilers(const dti_vk_device *device) {
    return device->instance->messenger ? NULL : dti_pool_own(device->head.base->pool);
}

static dt_result dti_vk_pipelines_make(dti_vk_device *device, dt_result result) {
    const uint64_t begin = dti_now_ns();
    for (size_t i = device->pipeline_ready; i < device->pipeline_count && !result; i++) {
        dti_vk_pipeline *p = &device->pipelines[i];
        dti_vk_spills_mark(device, p);
        result = dti_vk_shader_words(device->head.base, dti_vk_shader_of(p->kernel, p->variant),
                                     &p->words);
    }
    dti_pool *pool = dti_vk_compilers(device);
    const int64_t wanted = (int64_t)(device->pipeline_count - device->pipeline_ready);
    device->pipeline_next = device->pipeline_ready;
    if (!result)
        dti_parallel_for(pool, DTI_MIN(wanted, dti_pool_threads(pool)), 1, dti_vk_compile_next,
                         device);
    result = dti_vk_pipelines_take(device, result);
    device->made.ns += dti_now_ns() - begin;
    return result;
}

/* A program's, with those of the checks that it has asked for. */
static void dti_vk_say_made(dti_vk_device *device) {
    const dti_vk_made *m = &device->made;
    if (device->forcing.forced || !m->count)
        return;
    dti_log(device->head.base, DT_LOG_INFO,
            "%s: %u pipelines in %.2f s on %d threads, %u from the cache", device->head.info.name,
            m->count, (double)m->ns * 1e-9, dti_pool_threads(dti_vk_compilers(device)), m->cached);
    device->made = (dti_vk_made){0};
}
