/* Searches for faults with a program's own sets and pipelines: after each launch, a SCAN of its
 * output. That needs sets of its own, made at creation, and an existing command buffer. */

#define DTI_VK_FAULT_CHUNK 32 /* launches between two looks at the status word, at most */

static void dti_vk_record_scan(const dti_vk_exec *e, dti_VkCommandBuffer command, uint32_t index,
                               uint32_t number) {
    const dti_vk_scan *scan = &e->scans[index];
    dti_args_scan args = {.n = scan->elements, .code = number};
    uint32_t x, y;
    dti_vk_fold(dti_ceil_div(scan->elements, dti_vk_local_of(e->device, DTI_K_SCAN, 0)), &x, &y);
    dti_vk_bind(e, command, e->scan_pipelines[scan->stored], scan->set, &args, sizeof args, 0);
    e->device->vk.CmdDispatch(command, x, y, 1);
}

/* Launches [first, end), each with its scans, between barriers; `code` receives the fault word. Of
 * a launch in slices only the last one. */
static dt_result dti_vk_search_chunk(dti_vk_exec *e, uint32_t first, uint32_t end, uint32_t *code) {
    dti_vk_device *device = e->device;
    dti_VkCommandBuffer command = e->commands[0];
    DTI_TRY(dti_vk_command_begin(device, command));
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
    DTI_TRY(dti_vk_command_end(device, command));
    DTI_TRY(dti_vk_run(device, command));
    return dti_vk_memory_read((dti_memory *)e->out, DTI_WORD_BYTES * DTI_STATUS_FAULT, code,
                              sizeof *code);
}

/* All slices but the last, each in a submission of its own. */
static dt_result dti_vk_search_slices(dti_vk_exec *e, const dti_vk_work *work) {
    dti_VkCommandBuffer command = e->commands[0];
    for (uint32_t i = 0; i + 1 < work->slices; i++) {
        DTI_TRY(dti_vk_command_begin(e->device, command));
        dti_vk_barrier_all(e->device, command);
        dti_vk_record_slice(e, command, work, i);
        DTI_TRY(dti_vk_command_end(e->device, command));
        DTI_TRY(dti_vk_run(e->device, command));
    }
    return DT_OK;
}

/* Where the chunk ends that begins at launch `at`: it is one submission. */
static uint32_t dti_vk_search_end(const dti_vk_exec *e, uint32_t at, uint32_t end) {
    const uint32_t most = DTI_MIN(end, at + DTI_VK_FAULT_CHUNK);
    double ms = e->work[at++].ms;
    while (at < most && e->work[at].slices < 2 && ms + e->work[at].ms <= DTI_VK_SUBMISSION_MS)
        ms += e->work[at++].ms;
    return at;
}

/* What segments that begin with these launches take from the host's side of IN, or give to that of
 * OUT. */
static dt_result dti_vk_search_copies(dti_vk_exec *e, uint32_t first, uint32_t end, bool gives) {
    const dti_vk_memory *m = gives ? e->out : dti_vk_memory_of(e, e->desc->in);
    dti_VkCommandBuffer command = e->commands[0];
    if (!m || !m->staging.handle)
        return DT_OK;
    DTI_TRY(dti_vk_command_begin(e->device, command));
    dti_vk_barrier_all(e->device, command);
    for (uint32_t i = 0; i < e->segment_count; i++) {
        const dti_segment *s = &e->desc->segments[i];
        const dti_range *r = gives ? &s->download : &s->upload;
        if (r->bytes && s->first >= first && s->first < end)
            dti_vk_copy(e->device, command, gives ? &m->buffer : &m->staging, r->offset,
                        gives ? &m->staging : &m->buffer, r->offset, r->bytes);
    }
    dti_vk_barrier_all(e->device, command);
    dti_vk_barrier_host(e->device, command);
    DTI_TRY(dti_vk_command_end(e->device, command));
    return dti_vk_run(e->device, command);
}

static dt_result dti_vk_exec_find_fault(dti_exec *exec, uint32_t first, uint32_t count,
                                        uint32_t *fault) {
    dti_vk_exec *e = (dti_vk_exec *)exec;
    uint32_t end = DTI_MIN(first + count, e->work_count);
    *fault = e->work_count;
    dt_result result = dti_vk_exec_wait(exec);
    if (!result)
        result = dti_vk_search_copies(e, first, end, false);
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
    return result ? result : dti_vk_search_copies(e, first, end, true);
}
