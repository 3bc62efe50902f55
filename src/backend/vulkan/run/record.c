/* Recording. For every segment it records upload and put, dispatches with the barriers that hazards
 * require, and download and fetch. A whole step has one upload and one download. A recording ends
 * before its estimated time is so long that the driver would regard the device as hung. The rest is
 * another submission, and a launch that is longer by itself is several dispatches. */

/* The workgroups' numbers begin with first_group. */
static void dti_vk_bind(const dti_vk_exec *e, dti_VkCommandBuffer command, dti_VkPipeline pipeline,
                        uint32_t set, const void *args, uint32_t args_bytes, uint32_t first_group) {
    const dti_vk_device_functions *vk = &e->device->vk;
    const dti_VkPipelineLayout layout = e->device->layout;
    vk->CmdBindPipeline(command, DTI_VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vk->CmdBindDescriptorSets(command, DTI_VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1,
                              &e->sets[set], 0, NULL);
    if (args_bytes)
        vk->CmdPushConstants(command, layout, DTI_VK_SHADER_STAGE_COMPUTE_BIT, 0, args_bytes, args);
    vk->CmdPushConstants(command, layout, DTI_VK_SHADER_STAGE_COMPUTE_BIT, DTI_ARGS_MOST,
                         sizeof first_group, &first_group);
}

/* `count` of the launch's items (workgroups or rows). */
static void dti_vk_record_cut(const dti_vk_exec *e, dti_VkCommandBuffer command,
                              const dti_vk_work *work, uint32_t begin, uint32_t count) {
    const bool rows = work->y > 1;
    dti_vk_bind(e, command, work->pipeline, work->set, &work->args, work->args_bytes,
                rows ? begin * work->x : begin);
    e->device->vk.CmdDispatch(command, rows ? work->x : count, rows ? count : 1, 1);
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
    const dti_vk_exec *exec;
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

/* The command buffers that these segments take. */
static dti_vk_take dti_vk_reel_length(const dti_vk_exec *e, uint32_t first, uint32_t count) {
    dti_vk_reel r = {.count = count > 0};
    for (uint32_t s = first; s < first + count; s++) {
        const dti_segment *segment = &e->desc->segments[s];
        for (uint32_t i = segment->first; i < segment->first + segment->count; i++) {
            const dti_vk_work *work = &e->work[i];
            for (uint32_t k = 0; k < work->slices; k++)
                dti_vk_reel_turns(&r, work->ms / work->slices);
        }
    }
    return (dti_vk_take){e->command_count, r.count, r.ms};
}

/* The barrier orders all later work after all earlier work, in this submission or an earlier one.
 * Hazards are tracked from there on. */
static void dti_vk_reel_begin(dti_vk_reel *r) {
    dti_vk_device *device = r->exec->device;
    if (!r->result)
        r->result = dti_vk_command_begin(device, *r->command);
    if (!r->result)
        dti_vk_barrier_all(device, *r->command);
    r->hazard.count = 0;
}

static void dti_vk_reel_next(dti_vk_reel *r) {
    if (!r->result)
        r->result = dti_vk_command_end(r->exec->device, *r->command);
    r->command++;
    dti_vk_reel_begin(r);
}

/* A recording that begins in the middle of a launch has no hazards of it yet. Later launches must
 * wait for its slices there too. */
static void dti_vk_record_launch(dti_vk_reel *r, uint32_t number) {
    const dti_vk_exec *e = r->exec;
    const dti_vk_work *work = &e->work[number];
    dti_vk_access accesses[DTI_BINDINGS_MAX];
    const uint32_t n = dti_vk_accesses_of(&e->desc->launches[number], e->desc->places, accesses);
    for (uint32_t i = 0; i < work->slices && !r->result; i++) {
        const bool turns = dti_vk_reel_turns(r, work->ms / work->slices);
        if (turns)
            dti_vk_reel_next(r);
        if ((turns || i == 0) && dti_vk_hazard_add(&r->hazard, accesses, n))
            dti_vk_barrier_compute(e->device, *r->command);
        if (!r->result)
            dti_vk_record_slice(e, *r->command, work, i);
    }
}

static bool dti_vk_fetches(const dti_segment *segment) {
    bool any = false;
    for (uint32_t i = 0; i < segment->fetch_count; i++)
        any = any || (segment->fetch[i].count && segment->fetch[i].bytes);
    return any;
}

/* A range from the host's side; false: nothing to copy. If the host writes the arena itself, the
 * submission makes that visible. */
static bool dti_vk_record_range(const dti_vk_exec *e, dti_VkCommandBuffer command, uint32_t memory,
                                const dti_range *range) {
    const dti_vk_memory *m = range->bytes ? dti_vk_memory_of(e, memory) : NULL;
    if (!m || !m->staging.handle)
        return false;
    dti_vk_copy(e->device, command, &m->staging, range->offset, &m->buffer, range->offset,
                range->bytes);
    return true;
}

/* The ranges that segments take from the host's sides. */
static bool dti_vk_record_upload(const dti_vk_exec *e, dti_VkCommandBuffer command,
                                 const dti_segment *segment) {
    const bool in = dti_vk_record_range(e, command, e->desc->in, &segment->upload);
    return dti_vk_record_range(e, command, e->desc->exchange, &segment->put) || in;
}

/* Copies results to the host's sides: one range of OUT that covers those of all segments. Results
 * of a later segment do not lie before those of an earlier one. */
static void dti_vk_record_download(const dti_vk_exec *e, dti_VkCommandBuffer command,
                                   const dti_segment *segments, uint32_t count) {
    dti_vk_device *device = e->device;
    const dti_vk_memory *out = e->out;
    uint64_t begin = UINT64_MAX, end = 0;
    bool fetch = false;
    for (uint32_t i = 0; i < count; i++) {
        const dti_range *down = &segments[i].download;
        begin = down->bytes ? DTI_MIN(begin, down->offset) : begin;
        end = down->bytes ? DTI_MAX(end, down->offset + down->bytes) : end;
        fetch = fetch || (dti_vk_fetches(&segments[i]) &&
                          dti_vk_memory_of(e, e->desc->exchange)->staging.handle);
    }
    const bool download = begin < end && out->staging.handle;
    if (download || fetch)
        dti_vk_barrier_all(device, command);
    if (download)
        dti_vk_copy(device, command, &out->buffer, begin, &out->staging, begin, end - begin);
    for (uint32_t i = 0; i < count && fetch; i++) {
        for (uint32_t k = 0; k < segments[i].fetch_count && dti_vk_fetches(&segments[i]); k++) {
            const dti_vk_memory *m = dti_vk_memory_of(e, e->desc->exchange);
            dti_vk_copy_fetch(device, command, &m->buffer, &m->staging, &segments[i].fetch[k]);
        }
    }
}

/* The barrier at the end lets the host read once it has seen the fence, also while later segments
 * run. */
static dt_result dti_vk_record_take(const dti_vk_exec *e, const dti_vk_take *take, uint32_t first,
                                    uint32_t count) {
    const dti_segment *segments = &e->desc->segments[first];
    dti_vk_device *device = e->device;
    dti_vk_reel reel = {.exec = e, .command = &e->commands[take->first]};
    bool copied = false;
    dti_vk_reel_begin(&reel);
    for (uint32_t i = 0; i < count && !reel.result; i++)
        copied = dti_vk_record_upload(e, *reel.command, &segments[i]) || copied;
    if (copied)
        dti_vk_barrier_all(device, *reel.command);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < segments[i].count; k++)
            dti_vk_record_launch(&reel, segments[i].first + k);
    if (reel.result)
        return reel.result;
    dti_vk_record_download(e, *reel.command, segments, count);
    dti_vk_barrier_host(device, *reel.command);
    return dti_vk_command_end(device, *reel.command);
}

static dt_result dti_vk_plan_takes(dti_vk_exec *e) {
    e->command_count = 1;
    for (uint32_t i = 0; i < e->segment_count + 2; i++) {
        const bool whole = i >= e->segment_count;
        const uint32_t count = whole ? e->desc->whole[i - e->segment_count] : 1;
        e->takes[i] = dti_vk_reel_length(e, whole ? 0 : i, count);
        e->command_count += e->takes[i].count;
    }
    e->commands = dti_alloc_array(e->device->head.base, e->command_count, sizeof *e->commands);
    DTI_HAVE(e->commands);
    return dti_vk_command_create(e->device, e->command_count, e->commands);
}

static dt_result dti_vk_record_all(dti_vk_exec *e) {
    dt_result result = dti_vk_plan_takes(e);
    for (uint32_t i = 0; i < e->segment_count && !result; i++)
        result = dti_vk_fence_create(e->device, &e->runs[i].fence);
    for (uint32_t i = 0; i < e->segment_count && !result; i++)
        result = dti_vk_record_take(e, &e->takes[i], i, 1);
    for (uint32_t i = 0; i < 2 && !result; i++)
        if (e->desc->whole[i])
            result = dti_vk_record_take(e, &e->takes[e->segment_count + i], 0, e->desc->whole[i]);
    return result;
}
