/* Device memory: one VkBuffer with its own VkDeviceMemory per arena, so a handful in all. An arena
 * lies near the device. IN, OUT and EXCHANGE have a host side. Where memory is unified it is the
 * same bytes; for IN also where the host can write the device's memory. Else it is a mapped staging
 * buffer of the same size, cached if the driver has such memory. Segments copy from and to it.
 * Everything is zero at first. If the driver has too little memory, the error names the needed and
 * the free bytes. */

#define DTI_VK_KNOWN_MEMORY                                                                        \
    (DTI_VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | DTI_VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |           \
     DTI_VK_MEMORY_PROPERTY_HOST_COHERENT_BIT | DTI_VK_MEMORY_PROPERTY_HOST_CACHED_BIT)
#define DTI_VK_HOST_MEMORY                                                                         \
    (DTI_VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | DTI_VK_MEMORY_PROPERTY_HOST_COHERENT_BIT)

/* The first memory type with all flags of `required`, most of `preferred` and fewest others.
 * Special memory (protected, lazy, uncached by the device) is never used. UINT32_MAX = not
 * found. */
static uint32_t dti_vk_memory_type(const dti_vk_device *device, uint32_t allowed, uint32_t required,
                                   uint32_t preferred) {
    uint32_t found = UINT32_MAX;
    int best = INT_MIN;
    for (uint32_t i = 0; i < device->heaps.memoryTypeCount; i++) {
        uint32_t flags = device->heaps.memoryTypes[i].propertyFlags;
        if (!(allowed >> i & 1) || (flags & required) != required ||
            flags & ~(uint32_t)DTI_VK_KNOWN_MEMORY)
            continue;
        int score = 8 * __builtin_popcount(flags & preferred) -
                    __builtin_popcount(flags & ~(required | preferred));
        if (score > best) {
            best = score;
            found = i;
        }
    }
    return found;
}

/* The one text for missing memory; type UINT32_MAX: the driver has no such type. */
static dt_result dti_vk_no_memory(dti_vk_device *device, uint64_t bytes, const char *what,
                                  uint32_t type) {
    uint32_t heap = device->heaps.memoryTypes[type == UINT32_MAX ? 0 : type].heapIndex;
    uint64_t free_bytes = dti_vk_budget(device->instance, device->index, heap);
    bool known = device->head.info.has_memory_budget;
    return dti_fail(device->head.base, DT_ERROR_DEVICE_MEMORY,
                    "%s needs %llu bytes; %s has %llu bytes %s, allows %llu in one allocation, and "
                    "this context uses %llu; use a smaller batch or model",
                    what, (unsigned long long)bytes, device->head.info.name,
                    (unsigned long long)(known ? free_bytes : device->heaps.memoryHeaps[heap].size),
                    known ? "free" : "in all", (unsigned long long)device->allocation_max,
                    (unsigned long long)device->bytes);
}

static bool dti_vk_is_full(dti_VkResult result) {
    return result == DTI_VK_ERROR_OUT_OF_DEVICE_MEMORY || result == DTI_VK_ERROR_OUT_OF_HOST_MEMORY;
}

static dt_result dti_vk_buffer_bind(dti_vk_device *device, const char *what, uint32_t required,
                                    uint32_t preferred, dti_vk_buffer *b) {
    dti_VkMemoryRequirements need;
    device->vk.GetBufferMemoryRequirements(device->handle, b->handle, &need);
    uint32_t type = dti_vk_memory_type(device, need.memoryTypeBits, required, preferred);
    if (type == UINT32_MAX)
        return dti_fail(device->head.base, DT_ERROR_UNSUPPORTED,
                        "%s has no memory for %s (property flags 0x%x)", device->head.info.name,
                        what, required);
    uint32_t heap = device->heaps.memoryTypes[type].heapIndex;
    if (need.size > device->allocation_max || need.size > device->heaps.memoryHeaps[heap].size)
        return dti_vk_no_memory(device, need.size, what, type);
    dti_VkMemoryAllocateInfo info = {
        .sType = DTI_VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
        .allocationSize = need.size,
        .memoryTypeIndex = type,
    };
    device->alloc_calls++;
    dti_VkResult made = device->vk.AllocateMemory(device->handle, &info, NULL, &b->memory);
    if (dti_vk_is_full(made))
        return dti_vk_no_memory(device, need.size, what, type);
    if (made)
        return dti_vk_check(device, made, what);
    b->bytes = need.size;
    device->bytes += need.size;
    dti_VkResult bound = device->vk.BindBufferMemory(device->handle, b->handle, b->memory, 0);
    if (!bound && required & DTI_VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT)
        bound =
            device->vk.MapMemory(device->handle, b->memory, 0, DTI_VK_WHOLE_SIZE, 0, &b->mapped);
    /* Both fail only if memory, or addresses to map it at, run out. */
    return bound ? dti_vk_no_memory(device, need.size, what, type) : DT_OK;
}

static dt_result dti_vk_buffer_create(dti_vk_device *device, uint64_t bytes, const char *what,
                                      uint32_t required, uint32_t preferred, dti_vk_buffer *out) {
    dti_VkBufferCreateInfo info = {
        .sType = DTI_VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = bytes,
        .usage = DTI_VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | DTI_VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT |
                 DTI_VK_BUFFER_USAGE_TRANSFER_SRC_BIT | DTI_VK_BUFFER_USAGE_TRANSFER_DST_BIT,
        .sharingMode = DTI_VK_SHARING_MODE_EXCLUSIVE,
    };
    *out = (dti_vk_buffer){0};
    uint32_t type = dti_vk_memory_type(device, UINT32_MAX, required, preferred);
    if (bytes > device->allocation_max) /* some drivers crash on a buffer that they cannot back */
        return dti_vk_no_memory(device, bytes, what, type);
    dti_VkResult made = device->vk.CreateBuffer(device->handle, &info, NULL, &out->handle);
    if (dti_vk_is_full(made))
        return dti_vk_no_memory(device, bytes, what, type);
    dt_result result = dti_vk_check(device, made, what);
    if (!result)
        result = dti_vk_buffer_bind(device, what, required, preferred, out);
    if (result)
        dti_vk_buffer_destroy(device, out);
    return result;
}

static void dti_vk_buffer_destroy(dti_vk_device *device, dti_vk_buffer *b) {
    if (!dti_forked(device->head.base)) {
        device->vk.DestroyBuffer(device->handle, b->handle, NULL);
        device->vk.FreeMemory(device->handle, b->memory, NULL); /* unmaps */
    }
    device->bytes -= b->bytes;
    *b = (dti_vk_buffer){0};
}

/* ---- Arenas ---------------------------------------------------------------------------------- */

static dt_result dti_vk_memory_zero(dti_vk_memory *m) {
    dti_vk_device *device = m->device;
    if (m->staging.handle)
        memset(m->staging.mapped, 0, m->bytes);
    if (m->buffer.mapped) {
        memset(m->buffer.mapped, 0, m->bytes);
        return DT_OK;
    }
    DTI_TRY(dti_vk_command_begin(device, device->transfer));
    device->vk.CmdFillBuffer(device->transfer, m->buffer.handle, 0, DTI_VK_WHOLE_SIZE, 0);
    DTI_TRY(dti_vk_command_end(device, device->transfer));
    return dti_vk_run(device, device->transfer);
}

static dt_result dti_vk_memory_fill(dti_vk_memory *m) {
    static const char *const names[] = {
        [DTI_MEMORY_DEVICE] = "an arena",
        [DTI_MEMORY_IN] = "the input arena",
        [DTI_MEMORY_OUT] = "the output arena",
        [DTI_MEMORY_EXCHANGE] = "the exchange arena",
    };
    dti_vk_device *device = m->device;
    const char *what = names[m->kind];
    uint32_t local = DTI_VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    uint32_t cached = DTI_VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    bool shared = device->software || (device->unified && m->kind != DTI_MEMORY_DEVICE);
    uint32_t required = shared ? DTI_VK_HOST_MEMORY : 0;
    if (device->direct && m->kind == DTI_MEMORY_IN &&
        !dti_vk_buffer_create(device, m->bytes, what, DTI_VK_HOST_MEMORY | local, 0, &m->buffer))
        return dti_vk_memory_zero(m); /* else there is no more of it: as without */
    dt_result result = dti_vk_buffer_create(device, m->bytes, what, required,
                                            shared ? local | cached : local, &m->buffer);
    if (!result && !shared && m->kind != DTI_MEMORY_DEVICE)
        result =
            dti_vk_buffer_create(device, m->bytes, what, DTI_VK_HOST_MEMORY, cached, &m->staging);
    return result ? result : dti_vk_memory_zero(m);
}

static dt_result dti_vk_memory_create(dti_device *head, uint64_t bytes, dti_memory_kind kind,
                                      dti_memory **out) {
    dti_vk_device *device = (dti_vk_device *)head;
    *out = NULL;
    DTI_TRY(dti_vk_alive(device));
    if (bytes > UINT64_MAX - DTI_PLACE_ALIGN)
        return dti_fail(head->base, DT_ERROR_DEVICE_MEMORY, "an arena of %llu bytes is too large",
                        (unsigned long long)bytes);
    dti_vk_memory *m = dti_alloc(head->base, sizeof *m);
    DTI_HAVE(m);
    m->device = device;
    m->kind = kind;
    m->bytes = (DTI_MAX(bytes, 1u) + DTI_PLACE_ALIGN - 1) / DTI_PLACE_ALIGN * DTI_PLACE_ALIGN;
    dt_result result = dti_vk_memory_fill(m);
    if (result) {
        dti_vk_memory_destroy((dti_memory *)m);
        return result;
    }
    *out = (dti_memory *)m;
    return DT_OK;
}

static dt_result dti_vk_memory_import(dti_device *head, const dt_vulkan_buffer *buffer,
                                      dti_memory **out) {
    dti_vk_memory *m = dti_alloc(head->base, sizeof *m);
    *out = (dti_memory *)m;
    DTI_HAVE(m);
    m->device = (dti_vk_device *)head;
    m->bytes = buffer->bytes;
    m->at = buffer->offset;
    m->external = true;
    m->buffer.handle = (dti_VkBuffer)buffer->buffer;
    return DT_OK;
}

static void dti_vk_memory_where(const dti_memory *memory, dt_vulkan_buffer *out) {
    const dti_vk_memory *m = (const dti_vk_memory *)memory;
    *out = (dt_vulkan_buffer){(uint64_t)m->buffer.handle, m->at, m->bytes};
}

static void dti_vk_memory_destroy(dti_memory *memory) {
    dti_vk_memory *m = (dti_vk_memory *)memory;
    if (!m)
        return;
    if (!m->external)
        dti_vk_buffer_destroy(m->device, &m->buffer);
    dti_vk_buffer_destroy(m->device, &m->staging);
    dti_free(m->device->head.base, m);
}

static uint64_t dti_vk_memory_bytes(const dti_memory *memory) {
    const dti_vk_memory *m = (const dti_vk_memory *)memory;
    return m->buffer.bytes + m->staging.bytes;
}

static void *dti_vk_memory_host(dti_memory *memory) {
    dti_vk_memory *m = (dti_vk_memory *)memory;
    return m->staging.handle ? m->staging.mapped : m->buffer.mapped;
}

/* ---- Blocking copies ------------------------------------------------------------------------- */

static dt_result dti_vk_check_range(const dti_vk_memory *m, uint64_t offset, uint64_t bytes) {
    if (offset <= m->bytes && bytes <= m->bytes - offset)
        return DT_OK;
    return dti_fail(m->device->head.base, DT_ERROR_INVALID,
                    "a copy of %llu bytes at %llu leaves an arena of %llu bytes",
                    (unsigned long long)bytes, (unsigned long long)offset,
                    (unsigned long long)m->bytes);
}

/* By the device's own commands, which have ended on return. */
static dt_result dti_vk_copy_now(dti_vk_device *device, const dti_vk_buffer *from, uint64_t from_at,
                                 const dti_vk_buffer *to, uint64_t to_at, uint64_t bytes) {
    DTI_TRY(dti_vk_command_begin(device, device->transfer));
    dti_vk_barrier_all(device, device->transfer);
    dti_vk_copy(device, device->transfer, from, from_at, to, to_at, bytes);
    dti_vk_barrier_host(device, device->transfer);
    DTI_TRY(dti_vk_command_end(device, device->transfer));
    return dti_vk_run(device, device->transfer);
}

/* Through the staging buffer, where memory is not mapped; `from` or `to` is NULL. */
static dt_result dti_vk_memory_move(dti_memory *memory, uint64_t offset, const char *from, char *to,
                                    uint64_t bytes) {
    dti_vk_memory *m = (dti_vk_memory *)memory;
    const dti_vk_buffer *staging = &m->device->staging;
    DTI_TRY(dti_vk_alive(m->device));
    DTI_TRY(dti_vk_check_range(m, offset, bytes));
    if (m->buffer.mapped) {
        char *mapped = (char *)m->buffer.mapped + offset;
        DTI_TRY(dti_vk_drain(m->device));
        memcpy(from ? mapped : to, from ? from : mapped, bytes);
        return DT_OK;
    }
    for (uint64_t at = 0; at < bytes; at += DTI_VK_STAGING_BYTES) {
        const uint64_t chunk = DTI_MIN(bytes - at, DTI_VK_STAGING_BYTES);
        if (from) {
            memcpy(staging->mapped, from + at, chunk);
            DTI_TRY(dti_vk_copy_now(m->device, staging, 0, &m->buffer, offset + at, chunk));
        } else {
            DTI_TRY(dti_vk_copy_now(m->device, &m->buffer, offset + at, staging, 0, chunk));
            memcpy(to + at, staging->mapped, chunk);
        }
    }
    return DT_OK;
}

static dt_result dti_vk_memory_write(dti_memory *memory, uint64_t offset, const void *data,
                                     uint64_t bytes) {
    return dti_vk_memory_move(memory, offset, data, NULL, bytes);
}

static dt_result dti_vk_memory_read(dti_memory *memory, uint64_t offset, void *data,
                                    uint64_t bytes) {
    return dti_vk_memory_move(memory, offset, NULL, data, bytes);
}

static dt_result dti_vk_memory_copy(dti_memory *from, dti_memory *to, uint64_t bytes) {
    dti_vk_memory *a = (dti_vk_memory *)from, *b = (dti_vk_memory *)to;
    DTI_TRY(dti_vk_alive(a->device));
    if (a->device == b->device)
        return dti_vk_copy_now(a->device, &a->buffer, 0, &b->buffer, 0, bytes);
    for (uint64_t at = 0; at < bytes; at += DTI_VK_STAGING_BYTES) {
        const uint64_t chunk = DTI_MIN(bytes - at, DTI_VK_STAGING_BYTES);
        DTI_TRY(dti_vk_copy_now(a->device, &a->buffer, at, &a->device->staging, 0, chunk));
        DTI_TRY(dti_vk_memory_write(to, at, a->device->staging.mapped, chunk));
    }
    return DT_OK;
}
