/* A program's launches on Vulkan: made (work.c), recorded (record.c) and, here, run. A run only
 * submits; each start has a fence of its own, so several may be under way. */

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
    bool fits = ((const dti_vk_memory *)memory)->kind == DTI_MEMORY_EXCHANGE &&
                dti_vk_range_fits(memory, &s->put);
    for (uint32_t i = 0; i < s->fetch_count && fits; i++)
        fits = !s->fetch[i].count || dti_vk_fetch_fits(memory, &s->fetch[i]);
    return fits;
}

/* Cases of undefined behaviour in the driver: errors of the program's compiler. */
static dt_result dti_vk_check_desc(dti_vk_device *device, const dti_exec_desc *desc) {
    dti_range step = {0, DTI_WORD_BYTES * DTI_STEP_WORDS}, status = {0, DTI_PLACE_ALIGN};
    bool good = desc->in < desc->memory_count && desc->out < desc->memory_count;
    good = good && dti_vk_range_fits(desc->memories[desc->in], &step) &&
           dti_vk_range_fits(desc->memories[desc->out], &status);
    good = good && desc->whole[0] <= desc->segment_count && desc->whole[1] <= desc->segment_count;
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
    e->scans = dti_alloc_array(base, most * DTI_BINDINGS_MAX, sizeof *e->scans);
    b->keys = dti_alloc_array(base, most * (1 + DTI_BINDINGS_MAX), sizeof *b->keys);
    e->takes = dti_alloc_array(base, e->segment_count + 2u, sizeof *e->takes);
    e->runs = dti_alloc_array(base, e->segment_count + 1u, sizeof *e->runs);
    return e->work && e->scans && b->keys && e->takes && e->runs;
}

static dt_result dti_vk_stamps_create(dti_vk_exec *e); /* parts.c */

static dt_result dti_vk_exec_create(dti_device *head, const dti_exec_desc *desc, dti_exec **out) {
    dti_vk_device *device = (dti_vk_device *)head;
    *out = NULL;
    DTI_TRY(dti_vk_alive(device));
    DTI_TRY(dti_vk_check_desc(device, desc));
    dti_vk_exec *e = dti_alloc(head->base, sizeof *e);
    DTI_HAVE(e);
    dti_vk_build build = {.exec = e};
    e->device = device;
    e->desc = desc;
    e->out = (dti_vk_memory *)desc->memories[desc->out];
    e->work_count = desc->launch_count;
    e->segment_count = desc->segment_count;
    dt_result result = dti_vk_reserve(&build) ? dti_vk_add_all(&build) : DT_ERROR_MEMORY;
    if (!result)
        result = dti_vk_make_sets(&build);
    if (!result)
        result = dti_vk_record_all(e);
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

/* Its objects of the driver. */
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
    DTI_FREE(base, e->runs, e->takes, e->commands, e->sets, e->scans, e->work, e);
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
    DTI_TRY(dti_vk_fence_wait(e->device, run->fence));
    dti_vk_run_done(e, run);
    return DT_OK;
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

/* A segment's command buffer may not be submitted while it runs, and its inputs would be in use. So
 * starting it again without waiting is an error. */
static dt_result dti_vk_check_idle(dti_vk_exec *e, uint32_t first, uint32_t count) {
    bool busy;
    dt_result result = dti_vk_exec_poll((dti_exec *)e, &busy);
    for (uint32_t i = 0; busy && i < e->segment_count && !result; i++)
        if (e->runs[i].pending && i < first + count && first < i + e->runs[i].count)
            result = dti_fail(e->device->head.base, DT_ERROR_INVALID,
                              "segment %u was started again while it runs; wait for it first", i);
    return result;
}

/* A submission has as many segments as its time allows. Only the last one has the fence: a queue's
 * earlier ones have ended then too. */
static dt_result dti_vk_submit_takes(const dti_vk_exec *e, uint32_t first, uint32_t count,
                                     dti_VkFence fence) {
    const dti_vk_take *take = &e->takes[first], *last = take + count - 1;
    for (uint32_t i = 0; i < 2; i++)
        if (count == e->desc->whole[i] && first == 0)
            take = last = &e->takes[e->segment_count + i];
    const uint32_t end = last->first + last->count;
    for (uint32_t at = take->first, n; at < end; at += n) {
        double ms = take->ms;
        for (n = 1; take < last && at + n == take[1].first && take[1].count == 1 &&
                    ms + take[1].ms <= DTI_VK_SUBMISSION_MS;
             n++)
            ms += (++take)->ms;
        DTI_TRY(dti_vk_submit(e->device, &e->commands[at], n, at + n == end ? fence : 0));
        take += take < last && at + n == take[1].first;
    }
    return DT_OK;
}

static dt_result dti_vk_exec_start(dti_exec *exec, uint32_t first, uint32_t count) {
    dti_vk_exec *e = (dti_vk_exec *)exec;
    if (first > e->segment_count || count > e->segment_count - first)
        return dti_fail(e->device->head.base, DT_ERROR_INVALID,
                        "segments %u to %u were started, but there are %u", first, first + count,
                        e->segment_count);
    dt_result result = dti_vk_check_idle(e, first, count);
    if (result || !count)
        return result;
    dti_vk_run_state *run = &e->runs[first];
    DTI_TRY(dti_vk_submit_takes(e, first, count, run->fence));
    run->number = e->device->submitted;
    run->count = count;
    run->pending = true;
    return DT_OK;
}
