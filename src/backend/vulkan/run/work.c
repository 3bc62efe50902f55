/* The parts of a program on Vulkan, and its launches. At creation every launch gets its pipeline,
 * its workgroups, and its descriptor set, which launches with the same ranges share. A launch whose
 * operand is larger than the device can bind is an error. record.c records them, exec.c runs them,
 * search.c finds which of them made a fault. */

typedef struct dti_vk_work {
    dti_VkPipeline pipeline; /* NULL: nothing to do */
    uint32_t variant, index; /* of the kernel, and of the device's pipelines */
    uint32_t set;            /* index of the exec's sets */
    uint32_t x, y;           /* workgroups */
    uint32_t slices;         /* dispatches that share them */
    bool sliced;             /* whether several dispatches can */
    double ms;               /* by the estimate, of all; as parts.c has measured it */
    uint32_t scan_first, scan_count;
    uint32_t args_bytes;
    dti_args args;
} dti_vk_work;

typedef struct dti_vk_scan {
    uint32_t set, elements, stored; /* DTI_STORED_* */
} dti_vk_scan;

/* The command buffers of some segments. */
typedef struct dti_vk_take {
    uint32_t first, count;
    double ms; /* of the last of them */
} dti_vk_take;

/* The bindings of a descriptor set; sets with equal keys are one set. */
typedef struct dti_vk_key {
    uint32_t memory[DTI_BINDINGS_MAX];
    uint64_t offset[DTI_BINDINGS_MAX], bytes[DTI_BINDINGS_MAX];
} dti_vk_key;

/* A start of several segments is one submission; `fence` belongs to its first segment. */
typedef struct dti_vk_run_state {
    dti_VkFence fence;
    uint64_t number; /* the submission's */
    uint32_t count;  /* segments it runs */
    bool pending;
} dti_vk_run_state;

/* What took the time since the stamp before: a share of a launch. */
#define DTI_VK_STAMPS 256 /* of a part, at most */
typedef struct dti_vk_stamped {
    uint32_t launch;
    float share;
} dti_vk_stamped;

typedef struct dti_vk_exec {
    dti_vk_device *device;
    const dti_exec_desc *desc;
    dti_vk_memory *out;
    uint32_t work_count, scan_count, set_count, segment_count;
    dti_vk_work *work;
    dti_vk_scan *scans;
    dti_VkPipeline scan_pipelines[DTI_STORED_COUNT];
    dti_VkDescriptorPool pool;
    dti_VkDescriptorSet *sets;
    dti_VkCommandBuffer *commands; /* the first is for the fault search */
    uint32_t command_count;
    dti_vk_take *takes;     /* of each segment, and after them of desc->whole */
    dti_vk_run_state *runs; /* by first segment */

    /* parts.c's */
    dti_VkQueryPool stamps; /* NULL: the queue has no clock */
    dti_vk_stamped stamped[DTI_VK_STAMPS];
    uint32_t stamped_count; /* of the newest part, until they are read */
} dti_vk_exec;

/* State that exists only during creation. */
typedef struct dti_vk_build {
    dti_vk_exec *exec;
    dti_vk_key *keys;
    uint32_t key_count;
} dti_vk_build;

static const dti_vk_memory *dti_vk_memory_of(const dti_vk_exec *e, uint32_t index) {
    return (const dti_vk_memory *)e->desc->memories[index];
}

/* ---- Launches into work ---------------------------------------------------------------------- */

static dt_result dti_vk_check_launch(const dti_vk_build *b, uint32_t number) {
    const dti_launch *launch = &b->exec->desc->launches[number];
    const dt_device_info *info = &b->exec->device->head.info;
    dti_base *base = b->exec->device->head.base;
    const char *name = dti_kernel_info_of(launch->kernel)->name;
    for (int i = 0; i < DTI_BINDINGS_MAX; i++) {
        const dti_place *p = &b->exec->desc->places[launch->value[i]];
        const dti_vk_memory *m = dti_vk_memory_of(b->exec, p->memory);
        if (p->offset % DTI_PLACE_ALIGN || p->offset > m->bytes || p->bytes > m->bytes - p->offset)
            return dti_fail(base, DT_ERROR_INVALID,
                            "%s, launch %u (%s): operand %d lies outside its arena",
                            b->exec->desc->label, number, name, i);
        if (p->bytes > info->storage_range_bytes)
            return dti_fail(base, DT_ERROR_UNSUPPORTED,
                            "%s, launch %u (%s): operand %d has %llu bytes, and %s can bind at "
                            "most %llu; use a smaller batch or the CPU",
                            b->exec->desc->label, number, name, i, (unsigned long long)p->bytes,
                            info->name, (unsigned long long)info->storage_range_bytes);
    }
    if (launch->items > UINT32_MAX)
        return dti_fail(base, DT_ERROR_UNSUPPORTED, "%s, launch %u (%s): %llu items are too many",
                        b->exec->desc->label, number, name, (unsigned long long)launch->items);
    return DT_OK;
}

/* An empty operand is bound too: to bytes that exist, which its kernel does not touch. Of one of 16
 * bits the last word is bound as a whole. */
static dti_vk_key dti_vk_key_of(const dti_vk_build *b, const uint32_t value[DTI_BINDINGS_MAX]) {
    dti_vk_key key;
    memset(&key, 0, sizeof key); /* the padding too: keys are compared as bytes */
    for (int i = 0; i < DTI_BINDINGS_MAX; i++) {
        const dti_place *p = &b->exec->desc->places[value[i]];
        key.memory[i] = p->memory;
        key.offset[i] = p->bytes ? p->offset : 0;
        key.bytes[i] =
            p->bytes ? dti_ceil_div(p->bytes, DTI_WORD_BYTES) * DTI_WORD_BYTES : DTI_PLACE_ALIGN;
    }
    return key;
}

/* From the newest on, since equal sets are mostly near each other. */
static uint32_t dti_vk_set_of(dti_vk_build *b, const dti_vk_key *key) {
    for (uint32_t i = b->key_count; i-- > 0;)
        if (!memcmp(&b->keys[i], key, sizeof *key))
            return i;
    b->keys[b->key_count] = *key;
    return b->key_count++;
}

/* The status line's words look like NaN to a scan. */
static bool dti_vk_may_scan(const dti_vk_build *b, const dti_launch *launch, int binding) {
    const dti_place *p = &b->exec->desc->places[launch->value[binding]];
    if (dti_kernel_info_of(launch->kernel)->access[binding] == 'r' || !p->bytes)
        return false;
    if (!dti_launch_makes_floats(launch))
        return false;
    return p->memory != b->exec->desc->out || p->offset >= DTI_WORD_BYTES * DTI_STATUS_TERM(0);
}

static void dti_vk_add_scans(dti_vk_build *b, const dti_launch *launch, dti_vk_work *work) {
    dti_vk_exec *e = b->exec;
    work->scan_first = e->scan_count;
    for (int i = 0; i < dti_kernel_info_of(launch->kernel)->bindings; i++) {
        if (!dti_vk_may_scan(b, launch, i))
            continue;
        uint32_t x = launch->value[i];
        dti_vk_key key = dti_vk_key_of(b, (uint32_t[DTI_BINDINGS_MAX]){x, x, x, x});
        key.memory[1] = b->exec->desc->out;
        key.offset[1] = 0;
        key.bytes[1] = DTI_PLACE_ALIGN;
        const uint64_t bytes = b->exec->desc->places[x].bytes;
        e->scans[e->scan_count++] =
            (dti_vk_scan){.set = dti_vk_set_of(b, &key),
                          .elements = (uint32_t)(bytes / dti_dtype_bytes(launch->dtype[i])),
                          .stored = dti_vk_types_of(launch) >> 2 * i & 3};
    }
    work->scan_count = e->scan_count - work->scan_first;
}

/* One axis holds 65535 workgroups; more are folded into y. The last row may hang over: kernels
 * compare their linear number with the count. */
static void dti_vk_fold(uint64_t groups, uint32_t *x, uint32_t *y) {
    *y = (uint32_t)((groups + DTI_VK_GROUPS_MAX - 1) / DTI_VK_GROUPS_MAX);
    *x = *y ? (uint32_t)((groups + *y - 1) / *y) : 0;
}

/* The items of it that several dispatches can share: workgroups, or the rows into which they are
 * folded. */
static uint32_t dti_vk_work_cuts(const dti_vk_work *work) {
    return work->y > 1 ? work->y : DTI_MAX(work->x, 1u);
}

/* The bytes that it binds: it mostly reads or writes all of them, once. */
static double dti_vk_launch_bytes(const dti_vk_build *b, const dti_launch *launch) {
    double bytes = 0;
    for (int i = 0; i < dti_kernel_info_of(launch->kernel)->bindings; i++)
        bytes += (double)b->exec->desc->places[launch->value[i]].bytes;
    return bytes;
}

static void dti_vk_estimate(const dti_vk_build *b, const dti_launch *launch, uint32_t variant,
                            uint32_t local, dti_vk_work *work) {
    const dti_vk_device *device = b->exec->device;
    const dti_effort effort = dti_launch_effort(launch, variant, local);
    const double lane = (double)effort.steps * DTI_VK_STEP_MS;
    const double moved = dti_vk_launch_bytes(b, launch) / device->bytes_per_ms;
    work->ms = DTI_MAX((double)effort.flops / device->flops_per_ms, DTI_MAX(lane, moved));
    const double most = (double)dti_vk_work_cuts(work);
    work->sliced = work->ms > DTI_VK_PART_MS;
    work->slices = work->x ? (uint32_t)DTI_MIN(work->ms / DTI_VK_SUBMISSION_MS + 1.0, most) : 0;
}

/* llvmpipe ends the loops of an invocation after this total number of rounds, and reports nothing.
 * The partial result would be used as the result. Measured (Mesa 22.3): loops one after the other
 * and loops in loops share the count; a loop of n rounds counts n + 1; 8 invocations are one
 * vector, whose longest counts; when nothing is left each loop goes once. Loops that the driver
 * unrolls do not count. */
#define DTI_VK_LLVMPIPE_ROUNDS 65535

static dt_result dti_vk_check_rounds(const dti_vk_build *b, uint32_t number, uint32_t local) {
    const dti_launch *launch = &b->exec->desc->launches[number];
    const dti_kernel_info *kernel = dti_kernel_info_of(launch->kernel);
    const dt_device_info *info = &b->exec->device->head.info;
    const uint64_t rounds = kernel->rounds ? kernel->rounds(launch, local) : 0;
    if (rounds <= DTI_VK_LLVMPIPE_ROUNDS || strncmp(info->name, "llvmpipe", 8) != 0)
        return DT_OK;
    return dti_fail(b->exec->device->head.base, DT_ERROR_UNSUPPORTED,
                    "%s, launch %u (%s): loops of up to %llu rounds, but %s ends them after %d; "
                    "use fewer elements or steps, or the CPU",
                    b->exec->desc->label, number, kernel->name, (unsigned long long)rounds,
                    info->name, DTI_VK_LLVMPIPE_ROUNDS);
}

/* Unknown facts about a variant are found out here, by programs of their own. */
static dt_result dti_vk_choose_work(dti_vk_build *b, uint32_t number) {
    dti_vk_device *device = b->exec->device;
    const dti_launch *launch = &b->exec->desc->launches[number];
    if (!launch->items)
        return DT_OK;
    DTI_TRY(dti_vk_check_launch(b, number));
    b->exec->work[number].variant =
        dti_vk_allowed(device, launch->kernel, dti_vk_variant_of(device, launch));
    return DT_OK;
}

static dt_result dti_vk_add_work(dti_vk_build *b, uint32_t number) {
    dti_vk_exec *e = b->exec;
    const dti_launch *launch = &b->exec->desc->launches[number];
    dti_vk_work *work = &e->work[number];
    if (!launch->items)
        return DT_OK;
    uint32_t spec[4];
    const dti_grid_device grid = dti_vk_grid_device(e->device);
    dti_vk_spec_of(launch, work->variant, &grid, spec);
    const uint32_t local = dti_vk_grid_local_of(launch, work->variant, &grid);
    DTI_TRY(dti_vk_check_rounds(b, number, local));
    dti_vk_key key = dti_vk_key_of(b, launch->value);
    work->set = dti_vk_set_of(b, &key);
    work->args = launch->args;
    dti_vk_divide_args(launch, &work->args);
    work->args_bytes = launch->args_bytes;
    dti_vk_fold(dti_vk_groups_of(launch, spec, work->variant, local), &work->x, &work->y);
    dti_vk_add_scans(b, launch, work);
    dti_vk_estimate(b, launch, work->variant, local, work);
    return dti_vk_pipeline_want(e->device, launch->kernel, work->variant, local,
                                dti_vk_types_of(launch), spec, &work->index);
}

/* Of the types that are scanned. */
static dt_result dti_vk_want_scans(dti_vk_build *b, uint32_t scans[DTI_STORED_COUNT]) {
    dti_vk_device *device = b->exec->device;
    const uint32_t no_spec[4] = {0}, local = dti_vk_local_of(device, DTI_K_SCAN, 0);
    bool used[DTI_STORED_COUNT] = {true};
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < b->exec->scan_count; i++)
        used[b->exec->scans[i].stored] = true;
    for (uint32_t stored = 0; stored < DTI_STORED_COUNT && !result; stored++)
        if (used[stored])
            result =
                dti_vk_pipeline_want(device, DTI_K_SCAN, 0, local, stored, no_spec, &scans[stored]);
    return result;
}

/* Pipelines of all launches are made at once; again, with fewer sums, where some spilled. */
static dt_result dti_vk_add_all(dti_vk_build *b) {
    dti_vk_exec *e = b->exec;
    dti_vk_device *device = e->device;
    uint32_t scans[DTI_STORED_COUNT] = {0}, sums;
    do {
        sums = device->sums;
        e->scan_count = 0;
        for (uint32_t i = 0; i < e->work_count; i++)
            DTI_TRY(dti_vk_choose_work(b, i));
        dt_result result = DT_OK;
        for (uint32_t i = 0; i < e->work_count && !result; i++)
            result = dti_vk_add_work(b, i);
        if (!result)
            result = dti_vk_want_scans(b, scans);
        DTI_TRY(dti_vk_pipelines_make(device, result));
    } while (sums != device->sums);
    dti_vk_say_made(device);
    for (uint32_t stored = 0; stored < DTI_STORED_COUNT; stored++)
        e->scan_pipelines[stored] = device->pipelines[scans[stored]].handle;
    for (uint32_t i = 0; i < e->work_count; i++)
        if (e->desc->launches[i].items)
            e->work[i].pipeline = device->pipelines[e->work[i].index].handle;
    return DT_OK;
}

/* ---- Descriptor sets ------------------------------------------------------------------------- */

static void dti_vk_write_set(const dti_vk_build *b, uint32_t index) {
    const dti_vk_exec *e = b->exec;
    const dti_vk_key *key = &b->keys[index];
    dti_VkDescriptorBufferInfo buffers[DTI_BINDINGS_MAX + 1];
    for (int i = 0; i < DTI_BINDINGS_MAX; i++)
        buffers[i] = (dti_VkDescriptorBufferInfo){
            .buffer = dti_vk_memory_of(e, key->memory[i])->buffer.handle,
            .offset = dti_vk_memory_of(e, key->memory[i])->at + key->offset[i],
            .range = key->bytes[i],
        };
    buffers[DTI_BINDINGS_MAX] = (dti_VkDescriptorBufferInfo){
        .buffer = dti_vk_memory_of(e, e->desc->in)->buffer.handle,
        .range = DTI_WORD_BYTES * DTI_STEP_WORDS,
    };
    /* One write runs on over the bindings that follow, while they are of the same type. */
    dti_VkWriteDescriptorSet writes[2] = {
        {.sType = DTI_VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
         .dstSet = e->sets[index],
         .descriptorCount = DTI_BINDINGS_MAX,
         .descriptorType = DTI_VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
         .pBufferInfo = buffers},
        {.sType = DTI_VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
         .dstSet = e->sets[index],
         .dstBinding = DTI_BINDINGS_MAX,
         .descriptorCount = 1,
         .descriptorType = DTI_VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER,
         .pBufferInfo = &buffers[DTI_BINDINGS_MAX]},
    };
    e->device->vk.UpdateDescriptorSets(e->device->handle, 2, writes, 0, NULL);
}

static dt_result dti_vk_make_sets(dti_vk_build *b) {
    dti_vk_exec *e = b->exec;
    dti_vk_device *device = e->device;
    uint32_t count = b->key_count;
    if (!count)
        return DT_OK;
    dti_VkDescriptorPoolSize sizes[2] = {
        {DTI_VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, count * DTI_BINDINGS_MAX},
        {DTI_VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER, count},
    };
    dti_VkDescriptorPoolCreateInfo pool_info = {
        .sType = DTI_VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
        .maxSets = count,
        .poolSizeCount = 2,
        .pPoolSizes = sizes,
    };
    e->sets = dti_alloc_array(device->head.base, count, sizeof *e->sets);
    DTI_HAVE(e->sets);
    DTI_TRY(dti_vk_check(
        device, device->vk.CreateDescriptorPool(device->handle, &pool_info, NULL, &e->pool),
        "making the descriptor pool"));
    for (uint32_t i = 0; i < count; i++) {
        dti_VkDescriptorSetAllocateInfo info = {
            .sType = DTI_VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
            .descriptorPool = e->pool,
            .descriptorSetCount = 1,
            .pSetLayouts = &device->set_layout,
        };
        DTI_TRY(dti_vk_check(device,
                             device->vk.AllocateDescriptorSets(device->handle, &info, &e->sets[i]),
                             "making a descriptor set"));
        dti_vk_write_set(b, i);
    }
    return DT_OK;
}
