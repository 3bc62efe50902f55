/* A step part by part. A long part is recorded when it is requested. It uses the command buffer of
 * the fault search, which is free then. A launch that takes longer by itself is cut between
 * workgroups. Where the device has a clock, it measures each part, and estimates follow that. */

typedef struct dti_vk_part {
    dti_vk_exec *exec;
    dti_VkCommandBuffer command;
    double left; /* ms */
    bool full, any;
    dti_vk_hazard hazard;
} dti_vk_part;

static dt_result dti_vk_stamps_create(dti_vk_exec *e) {
    dti_vk_device *device = e->device;
    const dti_VkQueryPoolCreateInfo info = {.sType = DTI_VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                            .queryType = DTI_VK_QUERY_TYPE_TIMESTAMP,
                                            .queryCount = DTI_VK_STAMPS + 1};
    if (!device->stamp_mask)
        return DT_OK;
    return dti_vk_check(device, device->vk.CreateQueryPool(device->handle, &info, NULL, &e->stamps),
                        "making a query pool");
}

/* The device's clock before and after each launch of the last part; 0: nothing is known. */
static uint32_t dti_vk_stamps_read(const dti_vk_exec *e, uint64_t at[DTI_VK_STAMPS + 1]) {
    const dti_vk_device *device = e->device;
    const uint32_t count = e->stamps ? e->stamped_count : 0;
    const size_t bytes = (DTI_VK_STAMPS + 1) * sizeof *at;
    if (!count || device->vk.GetQueryPoolResults(device->handle, e->stamps, 0, count + 1, bytes, at,
                                                 sizeof *at, DTI_VK_QUERY_RESULT_64_BIT))
        return 0;
    return count;
}

/* Of the part before: one that was slowed down by something else counts for little. */
static void dti_vk_part_learn(dti_vk_exec *e) {
    const dti_vk_device *device = e->device;
    uint64_t at[DTI_VK_STAMPS + 1];
    const uint32_t count = dti_vk_stamps_read(e, at);
    e->stamped_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        dti_vk_work *work = &e->work[e->stamped[i].launch];
        const uint64_t ticks = (at[i + 1] - at[i]) & device->stamp_mask;
        const double took = (double)ticks * device->stamp_ms / (double)e->stamped[i].share;
        work->ms += 0.25 * (DTI_MIN(took, 4.0 * work->ms + 0.01) - work->ms);
    }
}

_Static_assert(DTI_VK_STAMPS <= DTI_EXEC_TIMES, "a part's launches");

/* Until the next part takes them. */
static uint32_t dti_vk_exec_times(const dti_exec *exec, dti_exec_time *to) {
    const dti_vk_exec *e = (const dti_vk_exec *)(const void *)exec;
    const dti_vk_device *device = e->device;
    uint64_t at[DTI_VK_STAMPS + 1];
    const uint32_t count = dti_vk_stamps_read(e, at);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t begin = (at[i] - at[0]) & device->stamp_mask;
        const uint64_t end = (at[i + 1] - at[0]) & device->stamp_mask;
        to[i] = (dti_exec_time){e->stamped[i].launch, (double)begin * device->stamp_ms,
                                (double)end * device->stamp_ms};
    }
    return count;
}

static void dti_vk_part_stamp(const dti_vk_part *p, uint32_t number) {
    const dti_vk_exec *e = p->exec;
    if (!e->stamps)
        return;
    if (!number)
        e->device->vk.CmdResetQueryPool(p->command, e->stamps, 0, DTI_VK_STAMPS + 1);
    e->device->vk.CmdWriteTimestamp(p->command, DTI_VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, e->stamps,
                                    number);
}

/* The number of the launch's workgroups, from `from` on, for which there is time, at least one. If
 * they are folded into rows, the number of rows. */
static uint32_t dti_vk_part_fits(const dti_vk_part *p, const dti_vk_work *work, uint32_t from) {
    const uint32_t all = dti_vk_work_cuts(work), rest = all - from;
    const double fit = p->left / DTI_MAX(work->ms / (double)all, 1e-9);
    if (fit >= (double)rest || (!work->sliced && !p->any))
        return rest;
    if (p->any && (!work->sliced || fit < 1.0 || p->left < 0.25 * DTI_VK_PART_MS))
        return 0;
    return DTI_MAX((uint32_t)fit, 1u);
}

/* One launch from *from on, or some of it. *from is then after that, or 0: the launch has ended. */
static void dti_vk_part_launch(dti_vk_part *p, uint32_t number, uint64_t *from) {
    dti_vk_exec *e = p->exec;
    const dti_vk_work *work = &e->work[number];
    if (!work->x)
        return;
    const uint32_t all = dti_vk_work_cuts(work), begin = (uint32_t)*from;
    const uint32_t count = dti_vk_part_fits(p, work, begin);
    p->full = !count || e->stamped_count == DTI_VK_STAMPS;
    if (p->full)
        return;
    dti_vk_access accesses[DTI_BINDINGS_MAX];
    const dti_exec_desc *desc = p->exec->desc;
    const uint32_t n = dti_vk_accesses_of(&desc->launches[number], desc->places, accesses);
    if (dti_vk_hazard_add(&p->hazard, accesses, n))
        dti_vk_barrier_compute(e->device, p->command);
    dti_vk_record_cut(e, p->command, work, begin, count);
    const float share = (float)count / (float)all;
    e->stamped[e->stamped_count++] = (dti_vk_stamped){number, share};
    dti_vk_part_stamp(p, e->stamped_count);
    p->left -= work->ms * (double)share;
    p->any = true;
    *from = begin + count < all ? begin + count : 0;
}

/* A part begins after all earlier work, and a segment after the copies that it takes from the
 * host. */
static void dti_vk_part_segment(dti_vk_part *p, const dti_segment *segment, bool begins) {
    dti_vk_device *device = p->exec->device;
    dti_vk_barrier_all(device, p->command);
    if (begins && dti_vk_record_upload(p->exec, p->command, segment))
        dti_vk_barrier_all(device, p->command);
    p->hazard.count = 0;
}

static void dti_vk_part_record(dti_vk_part *p, uint32_t *at, dti_exec_cursor *cursor,
                               uint32_t end) {
    while (*at < end && !p->full) {
        const dti_segment *segment = &p->exec->desc->segments[*at];
        dti_vk_part_segment(p, segment, !cursor->launch && !cursor->part);
        while (cursor->launch < segment->count && !p->full) {
            dti_vk_part_launch(p, segment->first + cursor->launch, &cursor->part);
            cursor->launch += !p->full && !cursor->part;
        }
        if (cursor->launch < segment->count)
            return;
        dti_vk_record_download(p->exec, p->command, segment, 1);
        *cursor = (dti_exec_cursor){0, 0};
        ++*at;
    }
}

static dt_result dti_vk_exec_part(dti_exec *exec, uint32_t *at, dti_exec_cursor *cursor,
                                  uint32_t end, double ms) {
    dti_vk_exec *e = (dti_vk_exec *)exec;
    dti_vk_run_state *run = &e->runs[*at];
    const uint32_t first = *at;
    DTI_TRY(dti_vk_check_idle(e, first, end - first));
    dti_vk_part_learn(e);
    dti_vk_part part = {.exec = e,
                        .command = e->commands[0],
                        .left = DTI_MIN(DTI_MAX(ms, DTI_VK_PART_LEAST_MS), DTI_VK_SUBMISSION_MS)};
    DTI_TRY(dti_vk_command_begin(e->device, part.command));
    dti_vk_part_stamp(&part, 0);
    dti_vk_part_record(&part, at, cursor, end);
    dti_vk_barrier_host(e->device, part.command);
    DTI_TRY(dti_vk_command_end(e->device, part.command));
    DTI_TRY(dti_vk_submit(e->device, &part.command, 1, run->fence));
    run->number = e->device->submitted;
    run->count = DTI_MAX(*at - first, 1u);
    run->pending = true;
    return DT_OK;
}
