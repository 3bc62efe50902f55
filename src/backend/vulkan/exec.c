/* A program's launches on Vulkan. At creation every launch gets its pipeline, its descriptor set
 * (shared with launches that bind the same ranges) and its workgroups, and every segment is
 * recorded: upload and put, dispatches with the barriers that hazards ask for, download and fetch.
 * So is a whole step, with one upload and one download. A recording ends where its work, by an
 * estimate, would keep the device busy for so long that its driver takes it for hung; the rest is
 * another submission, and a launch that is longer by itself is several dispatches. A run only
 * submits; each start has a fence of its own, so several may be under way. Refuses a launch whose
 * operand is larger than the device can bind.
 *
 * Faults are searched with the same sets and pipelines: launch by launch, a SCAN of what it
 * wrote. That needs sets of its own, made at creation, and records into a command buffer that is
 * there. */

#ifndef DT_NO_VULKAN

#define DTI_VK_FAULT_CHUNK                                                                         \
    32 /* launches of a search between two looks at the status word, at most */

typedef struct dti_vk_work {
    dti_VkPipeline pipeline; /* NULL: nothing to do */
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
    uint32_t set, words;
} dti_vk_scan;

/* The command buffers of some segments. */
typedef struct dti_vk_take {
    uint32_t first, count;
} dti_vk_take;

/* What a descriptor set binds; sets with equal keys are one set. */
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

/* What took the time from the stamp before it to its own: so much of a launch. */
#define DTI_VK_STAMPS 256 /* of a part, at most */
typedef struct dti_vk_stamped {
    uint32_t launch;
    float share;
} dti_vk_stamped;

typedef struct dti_vk_exec {
    dti_vk_device *device;
    dti_vk_memory *out;
    uint32_t work_count, scan_count, set_count, segment_count;
    dti_vk_work *work;
    dti_vk_scan *scans;
    dti_VkPipeline scan_pipeline;
    dti_VkDescriptorPool pool;
    dti_VkDescriptorSet *sets;
    dti_VkCommandBuffer *commands; /* the first is for the fault search */
    uint32_t command_count, whole; /* segments of a whole step; 0: it is not recorded */
    dti_vk_take *takes;            /* of each segment, and behind them of the whole step */
    dti_vk_run_state *runs;        /* by first segment */

    /* parts.c's */
    const dti_exec_desc *desc;
    dti_VkQueryPool stamps; /* NULL: the queue has no clock */
    dti_vk_stamped stamped[DTI_VK_STAMPS];
    uint32_t stamped_count; /* of the newest part, until they are read */
} dti_vk_exec;

/* What exists during creation only. */
typedef struct dti_vk_build {
    dti_vk_exec *exec;
    const dti_exec_desc *desc;
    dti_vk_key *keys;
    uint32_t key_count;
} dti_vk_build;

static const dti_vk_memory *dti_vk_memory_of(const dti_vk_build *b, uint32_t index) {
    return (const dti_vk_memory *)b->desc->memories[index];
}

/* ---- Launches into work ---------------------------------------------------------------------- */

static dt_result dti_vk_check_launch(const dti_vk_build *b, uint32_t number) {
    const dti_launch *launch = &b->desc->launches[number];
    const dt_device_info *info = &b->exec->device->head.info;
    dti_base *base = b->exec->device->head.base;
    const char *name = dti_kernel_info_of(launch->kernel)->name;
    for (int i = 0; i < DTI_BINDINGS_MAX; i++) {
        const dti_place *p = &b->desc->places[launch->value[i]];
        const dti_vk_memory *m = (const dti_vk_memory *)b->desc->memories[p->memory];
        if (p->offset % DTI_PLACE_ALIGN || p->offset > m->bytes || p->bytes > m->bytes - p->offset)
            return dti_fail(base, DT_ERROR_INVALID,
                            "%s, launch %u (%s): operand %d lies outside its arena", b->desc->label,
                            number, name, i);
        if (p->bytes > info->storage_range_bytes)
            return dti_fail(base, DT_ERROR_UNSUPPORTED,
                            "%s, launch %u (%s): operand %d has %llu bytes, and %s can bind at "
                            "most %llu; use a smaller batch or the CPU",
                            b->desc->label, number, name, i, (unsigned long long)p->bytes,
                            info->name, (unsigned long long)info->storage_range_bytes);
    }
    if (launch->items > UINT32_MAX)
        return dti_fail(base, DT_ERROR_UNSUPPORTED, "%s, launch %u (%s): %llu items are too many",
                        b->desc->label, number, name, (unsigned long long)launch->items);
    return DT_OK;
}

/* An empty operand is bound too: to bytes that exist, which its kernel does not touch. */
static dti_vk_key dti_vk_key_of(const dti_vk_build *b, const uint32_t value[DTI_BINDINGS_MAX]) {
    dti_vk_key key;
    memset(&key, 0, sizeof key); /* the padding too: keys are compared as bytes */
    for (int i = 0; i < DTI_BINDINGS_MAX; i++) {
        const dti_place *p = &b->desc->places[value[i]];
        key.memory[i] = p->memory;
        key.offset[i] = p->bytes ? p->offset : 0;
        key.bytes[i] = p->bytes ? p->bytes : DTI_PLACE_ALIGN;
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
    const dti_place *p = &b->desc->places[launch->value[binding]];
    if (dti_kernel_info_of(launch->kernel)->access[binding] == 'r' || p->bytes < DTI_WORD_BYTES)
        return false;
    if (!dti_launch_makes_floats(launch))
        return false;
    return p->memory != b->desc->out || p->offset >= DTI_WORD_BYTES * DTI_STATUS_TERM(0);
}

static void dti_vk_add_scans(dti_vk_build *b, const dti_launch *launch, dti_vk_work *work) {
    dti_vk_exec *e = b->exec;
    work->scan_first = e->scan_count;
    for (int i = 0; i < dti_kernel_info_of(launch->kernel)->bindings; i++) {
        if (!dti_vk_may_scan(b, launch, i))
            continue;
        uint32_t x = launch->value[i];
        dti_vk_key key = dti_vk_key_of(b, (uint32_t[DTI_BINDINGS_MAX]){x, x, x, x});
        key.memory[1] = b->desc->out;
        key.offset[1] = 0;
        key.bytes[1] = DTI_PLACE_ALIGN;
        e->scans[e->scan_count++] =
            (dti_vk_scan){.set = dti_vk_set_of(b, &key),
                          .words = (uint32_t)(b->desc->places[x].bytes / DTI_WORD_BYTES)};
    }
    work->scan_count = e->scan_count - work->scan_first;
}

/* One axis holds 65535 workgroups; more are folded into y. The last row may hang over: kernels
 * compare their linear number with the count. */
static void dti_vk_fold(uint64_t groups, uint32_t *x, uint32_t *y) {
    *y = (uint32_t)((groups + DTI_VK_GROUPS_MAX - 1) / DTI_VK_GROUPS_MAX);
    *x = *y ? (uint32_t)((groups + *y - 1) / *y) : 0;
}

/* What several dispatches of it can share: workgroups, or the rows that these are folded to. */
static uint32_t dti_vk_work_cuts(const dti_vk_work *work) {
    return work->y > 1 ? work->y : DTI_MAX(work->x, 1u);
}

static void dti_vk_estimate(const dti_vk_exec *e, const dti_launch *launch, uint32_t variant,
                            uint32_t local, dti_vk_work *work) {
    const dti_effort effort = dti_launch_effort(launch, variant, local);
    const double lane = (double)effort.steps * DTI_VK_STEP_MS;
    work->ms = DTI_MAX((double)effort.flops / e->device->flops_per_ms, lane);
    const double most = (double)dti_vk_work_cuts(work);
    work->sliced = work->ms > DTI_VK_PART_MS;
    work->slices = work->x ? (uint32_t)DTI_MIN(work->ms / DTI_VK_SUBMISSION_MS + 1.0, most) : 0;
}

static dt_result dti_vk_add_work(dti_vk_build *b, uint32_t number) {
    dti_vk_exec *e = b->exec;
    const dti_launch *launch = &b->desc->launches[number];
    dti_vk_work *work = &e->work[number];
    if (!launch->items)
        return DT_OK;
    dt_result result = dti_vk_check_launch(b, number);
    if (result)
        return result;
    uint32_t spec[4];
    uint32_t variant =
        dti_vk_allowed(e->device, launch->kernel, dti_vk_variant_of(e->device, launch));
    dti_vk_spec_of(launch, variant, spec);
    uint32_t local = dti_vk_local_of(e->device, launch->kernel, variant);
    dti_vk_key key = dti_vk_key_of(b, launch->value);
    work->set = dti_vk_set_of(b, &key);
    work->args = launch->args;
    work->args_bytes = launch->args_bytes;
    dti_vk_fold(dti_vk_groups_of(launch, spec, variant, local), &work->x, &work->y);
    dti_vk_add_scans(b, launch, work);
    dti_vk_estimate(e, launch, variant, local, work);
    if (work->sliced)
        variant |= DTI_VK_SLICED;
    return dti_vk_pipeline_get(e->device, launch->kernel, variant, spec, &work->pipeline);
}

static dt_result dti_vk_add_all(dti_vk_build *b) {
    dti_vk_exec *e = b->exec;
    uint32_t no_spec[4] = {0};
    dt_result result = dti_vk_pipeline_get(e->device, DTI_K_SCAN, 0, no_spec, &e->scan_pipeline);
    for (uint32_t i = 0; i < e->work_count && !result; i++)
        result = dti_vk_add_work(b, i);
    return result;
}

/* ---- Descriptor sets ------------------------------------------------------------------------- */

static void dti_vk_write_set(const dti_vk_build *b, uint32_t index) {
    const dti_vk_exec *e = b->exec;
    const dti_vk_key *key = &b->keys[index];
    dti_VkDescriptorBufferInfo buffers[DTI_BINDINGS_MAX + 1];
    for (int i = 0; i < DTI_BINDINGS_MAX; i++)
        buffers[i] = (dti_VkDescriptorBufferInfo){
            .buffer = dti_vk_memory_of(b, key->memory[i])->buffer.handle,
            .offset = dti_vk_memory_of(b, key->memory[i])->at + key->offset[i],
            .range = key->bytes[i],
        };
    buffers[DTI_BINDINGS_MAX] = (dti_VkDescriptorBufferInfo){
        .buffer = ((dti_vk_memory *)b->desc->memories[b->desc->in])->buffer.handle,
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
    if (!e->sets)
        return DT_ERROR_MEMORY;
    dt_result result = dti_vk_check(
        device, device->vk.CreateDescriptorPool(device->handle, &pool_info, NULL, &e->pool),
        "making the descriptor pool");
    for (uint32_t i = 0; i < count && !result; i++) {
        dti_VkDescriptorSetAllocateInfo info = {
            .sType = DTI_VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
            .descriptorPool = e->pool,
            .descriptorSetCount = 1,
            .pSetLayouts = &device->set_layout,
        };
        result = dti_vk_check(device,
                              device->vk.AllocateDescriptorSets(device->handle, &info, &e->sets[i]),
                              "making a descriptor set");
        if (!result)
            dti_vk_write_set(b, i);
    }
    return result;
}

/* ---- Recording ------------------------------------------------------------------------------- */

static void dti_vk_bind(const dti_vk_exec *e, dti_VkCommandBuffer command, dti_VkPipeline pipeline,
                        uint32_t set, const void *args, uint32_t args_bytes) {
    const dti_vk_device_functions *vk = &e->device->vk;
    vk->CmdBindPipeline(command, DTI_VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vk->CmdBindDescriptorSets(command, DTI_VK_PIPELINE_BIND_POINT_COMPUTE, e->device->layout, 0, 1,
                              &e->sets[set], 0, NULL);
    if (args_bytes)
        vk->CmdPushConstants(command, e->device->layout, DTI_VK_SHADER_STAGE_COMPUTE_BIT, 0,
                             args_bytes, args);
}

/* `count` of what the launch can be cut into. */
static void dti_vk_record_cut(const dti_vk_exec *e, dti_VkCommandBuffer command,
                              const dti_vk_work *work, uint32_t begin, uint32_t count) {
    const dti_vk_device_functions *vk = &e->device->vk;
    dti_vk_bind(e, command, work->pipeline, work->set, &work->args, work->args_bytes);
    if (count == dti_vk_work_cuts(work))
        vk->CmdDispatch(command, work->x, work->y, 1);
    else if (work->y > 1)
        vk->CmdDispatchBase(command, 0, begin, 0, work->x, count, 1);
    else
        vk->CmdDispatchBase(command, begin, 0, 0, count, 1, 1);
}

static void dti_vk_record_slice(const dti_vk_exec *e, dti_VkCommandBuffer command,
                                const dti_vk_work *work, uint32_t slice) {
    const uint64_t all = dti_vk_work_cuts(work);
    const uint32_t begin = (uint32_t)(all * slice / work->slices);
    dti_vk_record_cut(e, command, work, begin,
                      (uint32_t)(all * (slice + 1) / work->slices) - begin);
}

/* Command buffers as they are filled, one after the other. */
typedef struct dti_vk_reel {
    const dti_vk_build *build;
    dti_VkCommandBuffer *command; /* the one now */
    uint32_t count;               /* so far */
    double ms;                    /* of the one now */
    dti_vk_hazard hazard;
    dt_result result;
} dti_vk_reel;

/* Whether so much more would be too much for one submission. */
static bool dti_vk_reel_turns(dti_vk_reel *r, double ms) {
    const bool turns = r->ms > 0.0 && r->ms + ms > DTI_VK_SUBMISSION_MS;
    r->ms = turns ? ms : r->ms + ms;
    r->count += turns;
    return turns;
}

/* How many command buffers these segments take. */
static uint32_t dti_vk_reel_length(const dti_vk_build *b, uint32_t first, uint32_t count) {
    dti_vk_reel r = {.count = 1};
    for (uint32_t s = first; s < first + count; s++) {
        const dti_segment *segment = &b->desc->segments[s];
        for (uint32_t i = segment->first; i < segment->first + segment->count; i++) {
            const dti_vk_work *work = &b->exec->work[i];
            for (uint32_t k = 0; k < work->slices; k++)
                dti_vk_reel_turns(&r, work->ms / work->slices);
        }
    }
    return r.count;
}

/* The barrier orders what comes after whatever ran before it, in this submission or an earlier one:
 * hazards are tracked from there on. */
static void dti_vk_reel_begin(dti_vk_reel *r) {
    dti_vk_device *device = r->build->exec->device;
    if (!r->result)
        r->result = dti_vk_command_begin(device, *r->command);
    if (!r->result)
        dti_vk_barrier_all(device, *r->command);
    r->hazard.count = 0;
}

static void dti_vk_reel_next(dti_vk_reel *r) {
    if (!r->result)
        r->result = dti_vk_command_end(r->build->exec->device, *r->command);
    r->command++;
    dti_vk_reel_begin(r);
}

static void dti_vk_record_launch(dti_vk_reel *r, uint32_t number) {
    const dti_vk_build *b = r->build;
    const dti_vk_work *work = &b->exec->work[number];
    dti_vk_access accesses[DTI_BINDINGS_MAX];
    for (uint32_t i = 0; i < work->slices && !r->result; i++) {
        if (dti_vk_reel_turns(r, work->ms / work->slices))
            dti_vk_reel_next(r);
        if (i == 0) {
            uint32_t n = dti_vk_accesses_of(&b->desc->launches[number], b->desc->places, accesses);
            if (dti_vk_hazard_add(&r->hazard, accesses, n))
                dti_vk_barrier_compute(b->exec->device, *r->command);
        }
        if (!r->result)
            dti_vk_record_slice(b->exec, *r->command, work, i);
    }
}

static bool dti_vk_fetches(const dti_segment *segment) {
    return segment->fetch.count && segment->fetch.bytes;
}

/* What segments take from the host's sides. Where these are the arenas themselves, the submit makes
 * the host's writes visible. */
static bool dti_vk_record_upload(const dti_vk_build *b, dti_VkCommandBuffer command,
                                 const dti_segment *segment) {
    dti_vk_device *device = b->exec->device;
    const dti_vk_memory *in = dti_vk_memory_of(b, b->desc->in);
    const dti_range *up = &segment->upload, *put = &segment->put;
    bool copied = false;
    if (up->bytes && in->staging.handle) {
        dti_vk_copy(device, command, &in->staging, up->offset, &in->buffer, up->offset, up->bytes);
        copied = true;
    }
    if (put->bytes && dti_vk_memory_of(b, b->desc->exchange)->staging.handle) {
        const dti_vk_memory *m = dti_vk_memory_of(b, b->desc->exchange);
        dti_vk_copy(device, command, &m->staging, put->offset, &m->buffer, put->offset, put->bytes);
        copied = true;
    }
    return copied;
}

/* What segments give to the host's sides: one range of OUT that has all of theirs, since a later
 * one's are not before an earlier one's launches. */
static void dti_vk_record_download(const dti_vk_build *b, dti_VkCommandBuffer command,
                                   const dti_segment *segments, uint32_t count) {
    dti_vk_device *device = b->exec->device;
    const dti_vk_memory *out = b->exec->out;
    uint64_t begin = UINT64_MAX, end = 0;
    bool fetch = false;
    for (uint32_t i = 0; i < count; i++) {
        const dti_range *down = &segments[i].download;
        begin = down->bytes ? DTI_MIN(begin, down->offset) : begin;
        end = down->bytes ? DTI_MAX(end, down->offset + down->bytes) : end;
        fetch = fetch || (dti_vk_fetches(&segments[i]) &&
                          dti_vk_memory_of(b, b->desc->exchange)->staging.handle);
    }
    const bool download = begin < end && out->staging.handle;
    if (download || fetch)
        dti_vk_barrier_all(device, command);
    if (download)
        dti_vk_copy(device, command, &out->buffer, begin, &out->staging, begin, end - begin);
    for (uint32_t i = 0; i < count && fetch; i++) {
        const dti_vk_memory *m = dti_vk_memory_of(b, b->desc->exchange);
        if (dti_vk_fetches(&segments[i]))
            dti_vk_copy_fetch(device, command, &m->buffer, &m->staging, &segments[i].fetch);
    }
}

/* The barrier at the end lets the host read once it has seen the fence, also while later segments
 * run. */
static dt_result dti_vk_record_take(const dti_vk_build *b, const dti_vk_take *take, uint32_t first,
                                    uint32_t count) {
    const dti_segment *segments = &b->desc->segments[first];
    dti_vk_device *device = b->exec->device;
    dti_vk_reel reel = {.build = b, .command = &b->exec->commands[take->first]};
    bool copied = false;
    dti_vk_reel_begin(&reel);
    for (uint32_t i = 0; i < count && !reel.result; i++)
        copied = dti_vk_record_upload(b, *reel.command, &segments[i]) || copied;
    if (copied)
        dti_vk_barrier_all(device, *reel.command);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < segments[i].count; k++)
            dti_vk_record_launch(&reel, segments[i].first + k);
    if (reel.result)
        return reel.result;
    dti_vk_record_download(b, *reel.command, segments, count);
    dti_vk_barrier_host(device, *reel.command);
    return dti_vk_command_end(device, *reel.command);
}

static dt_result dti_vk_plan_takes(dti_vk_build *b) {
    dti_vk_exec *e = b->exec;
    e->command_count = 1;
    for (uint32_t i = 0; i <= e->segment_count; i++) {
        const bool whole = i == e->segment_count;
        const uint32_t count = whole ? e->whole : 1;
        e->takes[i].first = e->command_count;
        e->takes[i].count = count ? dti_vk_reel_length(b, whole ? 0 : i, count) : 0;
        e->command_count += e->takes[i].count;
    }
    e->commands = dti_alloc_array(e->device->head.base, e->command_count, sizeof *e->commands);
    if (!e->commands)
        return DT_ERROR_MEMORY;
    return dti_vk_command_create(e->device, e->command_count, e->commands);
}

static dt_result dti_vk_record_all(dti_vk_build *b) {
    dti_vk_exec *e = b->exec;
    dt_result result = dti_vk_plan_takes(b);
    for (uint32_t i = 0; i < e->segment_count && !result; i++)
        result = dti_vk_fence_create(e->device, &e->runs[i].fence);
    for (uint32_t i = 0; i < e->segment_count && !result; i++)
        result = dti_vk_record_take(b, &e->takes[i], i, 1);
    if (!result && e->whole)
        result = dti_vk_record_take(b, &e->takes[e->segment_count], 0, e->whole);
    return result;
}

/* ---- Creation -------------------------------------------------------------------------------- */

static bool dti_vk_range_fits(const dti_memory *memory, const dti_range *range) {
    uint64_t bytes = ((const dti_vk_memory *)memory)->bytes;
    return range->offset <= bytes && range->bytes <= bytes - range->offset;
}

/* Ranges may touch but not overlap. */
static bool dti_vk_fetch_fits(const dti_memory *memory, const dti_fetch *f) {
    const uint64_t bytes = ((const dti_vk_memory *)memory)->bytes;
    if (f->offset > bytes || f->bytes > bytes - f->offset)
        return false;
    return f->count == 1 ||
           (f->stride >= f->bytes && f->stride <= (bytes - f->offset - f->bytes) / (f->count - 1));
}

/* The exchange arena is looked at only where a segment fetches or puts. */
static bool dti_vk_exchange_fits(const dti_exec_desc *desc, const dti_segment *s) {
    const bool fetch = dti_vk_fetches(s);
    if (!fetch && !s->put.bytes)
        return true;
    if (desc->exchange >= desc->memory_count)
        return false;
    const dti_memory *memory = desc->memories[desc->exchange];
    return ((const dti_vk_memory *)memory)->kind == DTI_MEMORY_EXCHANGE &&
           (!fetch || dti_vk_fetch_fits(memory, &s->fetch)) && dti_vk_range_fits(memory, &s->put);
}

/* What would be undefined behaviour in the driver; a fault of the program that compiled this. */
static dt_result dti_vk_check_desc(dti_vk_device *device, const dti_exec_desc *desc) {
    dti_range step = {0, DTI_WORD_BYTES * DTI_STEP_WORDS}, status = {0, DTI_PLACE_ALIGN};
    bool good = desc->in < desc->memory_count && desc->out < desc->memory_count;
    good = good && dti_vk_range_fits(desc->memories[desc->in], &step) &&
           dti_vk_range_fits(desc->memories[desc->out], &status);
    good = good && desc->whole <= desc->segment_count;
    for (uint32_t i = 0; i < desc->segment_count && good; i++) {
        const dti_segment *s = &desc->segments[i];
        good = s->first <= desc->launch_count && s->count <= desc->launch_count - s->first &&
               dti_vk_range_fits(desc->memories[desc->in], &s->upload) &&
               dti_vk_range_fits(desc->memories[desc->out], &s->download) &&
               dti_vk_exchange_fits(desc, s);
    }
    for (uint32_t i = 0; i < desc->place_count && good; i++)
        good = desc->places[i].memory < desc->memory_count;
    for (uint32_t i = 0; i < desc->launch_count && good; i++)
        for (int j = 0; j < DTI_BINDINGS_MAX && good; j++)
            good = desc->launches[i].kernel < DTI_K_COUNT &&
                   desc->launches[i].value[j] < desc->place_count;
    return good ? DT_OK
                : dti_fail(device->head.base, DT_ERROR_INVALID,
                           "%s: a launch, place or segment is out of range", desc->label);
}

/* A launch needs one set of its own and at most one for a scan of each of its bindings. */
static bool dti_vk_reserve(dti_vk_build *b) {
    dti_vk_exec *e = b->exec;
    dti_base *base = e->device->head.base;
    size_t most = (size_t)e->work_count + 1; /* never 0 */
    e->work = dti_alloc_array(base, most, sizeof *e->work);
    e->scans = e->work ? dti_alloc_array(base, most * DTI_BINDINGS_MAX, sizeof *e->scans) : NULL;
    b->keys =
        e->scans ? dti_alloc_array(base, most * (1 + DTI_BINDINGS_MAX), sizeof *b->keys) : NULL;
    e->takes = b->keys ? dti_alloc_array(base, e->segment_count + 1u, sizeof *e->takes) : NULL;
    e->runs = e->takes ? dti_alloc_array(base, e->segment_count + 1u, sizeof *e->runs) : NULL;
    return e->runs != NULL;
}

static dt_result dti_vk_stamps_create(dti_vk_exec *e); /* parts.c */

static dt_result dti_vk_exec_create(dti_device *head, const dti_exec_desc *desc, dti_exec **out) {
    dti_vk_device *device = (dti_vk_device *)head;
    *out = NULL;
    dt_result result = dti_vk_alive(device);
    if (!result)
        result = dti_vk_check_desc(device, desc);
    if (result)
        return result;
    dti_vk_exec *e = dti_alloc(head->base, sizeof *e);
    if (!e)
        return DT_ERROR_MEMORY;
    dti_vk_build build = {.exec = e, .desc = desc};
    e->device = device;
    e->desc = desc;
    e->out = (dti_vk_memory *)desc->memories[desc->out];
    e->work_count = desc->launch_count;
    e->segment_count = desc->segment_count;
    e->whole = desc->whole;
    result = dti_vk_reserve(&build) ? dti_vk_add_all(&build) : DT_ERROR_MEMORY;
    if (!result)
        result = dti_vk_make_sets(&build);
    if (!result)
        result = dti_vk_record_all(&build);
    if (!result)
        result = dti_vk_stamps_create(e);
    dti_free(head->base, build.keys);
    if (result) {
        dti_vk_exec_destroy((dti_exec *)e);
        return result;
    }
    *out = (dti_exec *)e;
    return DT_OK;
}

/* What the driver has of it. */
static void dti_vk_exec_release(dti_vk_exec *e) {
    dti_vk_device *device = e->device;
    for (uint32_t i = 0; e->runs && i < e->segment_count; i++) {
        if (e->runs[i].pending && !device->lost)
            dti_vk_fence_wait(device, e->runs[i].fence);
        device->vk.DestroyFence(device->handle, e->runs[i].fence, NULL);
    }
    if (e->commands)
        device->vk.FreeCommandBuffers(device->handle, device->pool, e->command_count, e->commands);
    device->vk.DestroyDescriptorPool(device->handle, e->pool, NULL);
    device->vk.DestroyQueryPool(device->handle, e->stamps, NULL);
}

/* Also of one that was not made in full. */
static void dti_vk_exec_destroy(dti_exec *exec) {
    dti_vk_exec *e = (dti_vk_exec *)exec;
    if (!e)
        return;
    dti_base *base = e->device->head.base;
    if (!dti_forked(base))
        dti_vk_exec_release(e);
    dti_free(base, e->runs);
    dti_free(base, e->takes);
    dti_free(base, e->commands);
    dti_free(base, e->sets);
    dti_free(base, e->scans);
    dti_free(base, e->work);
    dti_free(base, e);
}

/* ---- Running --------------------------------------------------------------------------------- */

static void dti_vk_run_done(dti_vk_exec *e, dti_vk_run_state *run) {
    run->pending = false;
    e->device->finished = DTI_MAX(e->device->finished, run->number);
}

static dt_result dti_vk_exec_poll(dti_exec *exec, bool *busy) {
    dti_vk_exec *e = (dti_vk_exec *)exec;
    *busy = false;
    dt_result result = dti_vk_alive(e->device);
    for (uint32_t i = 0; i < e->segment_count && !result; i++) {
        dti_vk_run_state *run = &e->runs[i];
        if (!run->pending)
            continue;
        dti_VkResult status = e->device->vk.GetFenceStatus(e->device->handle, run->fence);
        if (status == DTI_VK_NOT_READY)
            *busy = true;
        else if (!(result = dti_vk_check(e->device, status, "polling")))
            dti_vk_run_done(e, run);
    }
    return result;
}

static dt_result dti_vk_wait_run(dti_vk_exec *e, dti_vk_run_state *run) {
    dt_result result = dti_vk_fence_wait(e->device, run->fence);
    if (!result)
        dti_vk_run_done(e, run);
    return result;
}

static dt_result dti_vk_exec_wait(dti_exec *exec) {
    dti_vk_exec *e = (dti_vk_exec *)exec;
    dt_result result = dti_vk_alive(e->device);
    for (uint32_t i = 0; i < e->segment_count && !result; i++)
        if (e->runs[i].pending)
            result = dti_vk_wait_run(e, &e->runs[i]);
    return result;
}

/* A segment that was started with others before it in one piece is waited for with the piece. */
static dt_result dti_vk_exec_reach(dti_exec *exec, uint32_t segment) {
    dti_vk_exec *e = (dti_vk_exec *)exec;
    dt_result result = dti_vk_alive(e->device);
    for (uint32_t i = 0; i < e->segment_count && i <= segment && !result; i++)
        if (e->runs[i].pending && segment - i < e->runs[i].count)
            result = dti_vk_wait_run(e, &e->runs[i]);
    return result;
}

/* A segment's command buffer may not be submitted while it runs, and its inputs would be in use:
 * whoever starts it again has not waited. */
static dt_result dti_vk_check_idle(dti_vk_exec *e, uint32_t first, uint32_t count) {
    bool busy;
    dt_result result = dti_vk_exec_poll((dti_exec *)e, &busy);
    for (uint32_t i = 0; busy && i < e->segment_count && !result; i++)
        if (e->runs[i].pending && i < first + count && first < i + e->runs[i].count)
            result = dti_fail(e->device->head.base, DT_ERROR_INVALID,
                              "segment %u was started again while it runs; wait for it first", i);
    return result;
}

/* The fence is the last submission's: a queue's earlier ones have ended then too. */
static dt_result dti_vk_submit_takes(const dti_vk_exec *e, uint32_t first, uint32_t count,
                                     dti_VkFence fence) {
    const bool whole = count == e->whole && first == 0;
    const dti_vk_take *from = &e->takes[whole ? e->segment_count : first];
    const dti_vk_take *last = whole ? from : from + count - 1;
    const uint32_t end = last->first + last->count;
    dt_result result = DT_OK;
    for (uint32_t at = from->first; at < end && !result; at++)
        result = dti_vk_submit(e->device, &e->commands[at], 1, at + 1 == end ? fence : NULL);
    return result;
}

static dt_result dti_vk_exec_start(dti_exec *exec, uint32_t first, uint32_t count) {
    dti_vk_exec *e = (dti_vk_exec *)exec;
    if (first > e->segment_count || count > e->segment_count - first)
        return dti_fail(e->device->head.base, DT_ERROR_INVALID,
                        "segments %u to %u were started, and there are %u", first, first + count,
                        e->segment_count);
    dt_result result = dti_vk_check_idle(e, first, count);
    if (result || !count)
        return result;
    dti_vk_run_state *run = &e->runs[first];
    result = dti_vk_submit_takes(e, first, count, run->fence);
    if (result)
        return result;
    run->number = e->device->submitted;
    run->count = count;
    run->pending = true;
    return DT_OK;
}

/* ---- Searching a fault ----------------------------------------------------------------------- */

static void dti_vk_record_scan(const dti_vk_exec *e, dti_VkCommandBuffer command, uint32_t index,
                               uint32_t number) {
    const dti_vk_scan *scan = &e->scans[index];
    dti_args_scan args = {.n = scan->words, .code = number};
    uint32_t x, y;
    dti_vk_fold(dti_ceil_div(scan->words, dti_vk_local_of(e->device, DTI_K_SCAN, 0)), &x, &y);
    dti_vk_bind(e, command, e->scan_pipeline, scan->set, &args, sizeof args);
    e->device->vk.CmdDispatch(command, x, y, 1);
}

/* Launches [first, end), each with its scans, between barriers; `code` receives the fault word. Of
 * a launch in slices only the last one. */
static dt_result dti_vk_search_chunk(dti_vk_exec *e, uint32_t first, uint32_t end, uint32_t *code) {
    dti_vk_device *device = e->device;
    dti_VkCommandBuffer command = e->commands[0];
    dt_result result = dti_vk_command_begin(device, command);
    if (result)
        return result;
    dti_vk_barrier_all(device, command);
    device->vk.CmdFillBuffer(command, e->out->buffer.handle, DTI_WORD_BYTES * DTI_STATUS_FAULT,
                             DTI_WORD_BYTES, UINT32_MAX);
    dti_vk_barrier_all(device, command);
    for (uint32_t i = first; i < end; i++) {
        if (!e->work[i].x)
            continue;
        dti_vk_record_slice(e, command, &e->work[i], e->work[i].slices - 1);
        dti_vk_barrier_compute(device, command);
        for (uint32_t j = 0; j < e->work[i].scan_count; j++)
            dti_vk_record_scan(e, command, e->work[i].scan_first + j, i);
        dti_vk_barrier_compute(device, command);
    }
    dti_vk_barrier_host(device, command);
    result = dti_vk_command_end(device, command);
    if (!result)
        result = dti_vk_run(device, command);
    if (!result)
        result = dti_vk_memory_read((dti_memory *)e->out, DTI_WORD_BYTES * DTI_STATUS_FAULT, code,
                                    sizeof *code);
    return result;
}

/* All slices but the last, each in a submission of its own. */
static dt_result dti_vk_search_slices(dti_vk_exec *e, const dti_vk_work *work) {
    dti_VkCommandBuffer command = e->commands[0];
    dt_result result = DT_OK;
    for (uint32_t i = 0; i + 1 < work->slices && !result; i++) {
        result = dti_vk_command_begin(e->device, command);
        if (result)
            return result;
        dti_vk_barrier_all(e->device, command);
        dti_vk_record_slice(e, command, work, i);
        result = dti_vk_command_end(e->device, command);
        if (!result)
            result = dti_vk_run(e->device, command);
    }
    return result;
}

/* Where the chunk ends that begins at launch `at`: it is one submission. */
static uint32_t dti_vk_search_end(const dti_vk_exec *e, uint32_t at, uint32_t end) {
    const uint32_t most = DTI_MIN(end, at + DTI_VK_FAULT_CHUNK);
    double ms = e->work[at++].ms;
    while (at < most && e->work[at].slices < 2 && ms + e->work[at].ms <= DTI_VK_SUBMISSION_MS)
        ms += e->work[at++].ms;
    return at;
}

static dt_result dti_vk_exec_find_fault(dti_exec *exec, uint32_t first, uint32_t count,
                                        uint32_t *fault) {
    dti_vk_exec *e = (dti_vk_exec *)exec;
    uint32_t end = DTI_MIN(first + count, e->work_count);
    *fault = e->work_count;
    dt_result result = dti_vk_exec_wait(exec);
    for (uint32_t at = first, next; at < end && !result; at = next) {
        uint32_t code = UINT32_MAX;
        next = dti_vk_search_end(e, at, end);
        result = dti_vk_search_slices(e, &e->work[at]);
        if (!result)
            result = dti_vk_search_chunk(e, at, next, &code);
        if (!result && code != UINT32_MAX) {
            *fault = code;
            break;
        }
    }
    return result;
}

#endif
