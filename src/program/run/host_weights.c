/* Weights of losses by the host, for an asynchronous device. The CPU kernels run the segment of
 * loss weights over copies of its inputs. So nothing waits for the device between two
 * micro-batches. A batch's weights are made while the batch before it is computed. */

struct dti_host_weights {
    dti_device *device;
    dti_memory *memories[DTI_MEMORIES]; /* those that it reads or writes; else IN again */
    dti_exec_desc desc;
    dti_exec *exec;
};

/* The bytes of each memory. False: it reads values that only the device has. */
static bool dti_host_weights_fits(const dti_code *code, uint64_t ends[DTI_MEMORIES]) {
    const dti_segment *s = &code->segments[code->weigh_segment];
    bool fits = code->weighs && s->first == 0; /* the launches are handed on from the first */
    ends[DTI_ARENA_IN] = DTI_WORD_BYTES * DTI_STEP_WORDS;
    ends[DTI_ARENA_OUT] = DTI_WORD_BYTES * DTI_STATUS_WORDS;
    for (uint32_t i = 0; fits && i < s->count * DTI_BINDINGS_MAX; i++) {
        const dti_launch *l = &code->list.launches[s->first + i / DTI_BINDINGS_MAX];
        const dti_place *p = &code->places[l->value[i % DTI_BINDINGS_MAX]];
        if (l->value[i % DTI_BINDINGS_MAX] == DTI_UNBOUND)
            continue;
        fits = p->memory == DTI_ARENA_IN || p->memory == DTI_ARENA_OUT ||
               p->memory == DTI_ARENA_TRANSIENT;
        ends[p->memory] = DTI_MAX(ends[p->memory], p->offset + p->bytes);
    }
    return fits;
}

static dt_result dti_host_weights_open(dt_program *p, dti_host_weights *w, const uint64_t *ends) {
    const dti_code *code = p->code;
    DTI_TRY(dti_device_open(p->store->graph->ctx, "cpu", 0.0, &w->device));
    for (uint32_t i = 0; i < DTI_ARENAS; i++)
        if (ends[i])
            DTI_TRY(w->device->backend->memory_create(w->device, ends[i], DTI_MEMORY_DEVICE,
                                                      &w->memories[i]));
    for (uint32_t i = 0; i < DTI_MEMORIES; i++)
        w->memories[i] = w->memories[i] ? w->memories[i] : w->memories[DTI_ARENA_IN];
    w->desc = (dti_exec_desc){.label = code->label,
                              .memories = w->memories,
                              .memory_count = DTI_MEMORIES,
                              .places = code->places,
                              .place_count = code->list.value_count,
                              .launches = code->list.launches,
                              .launch_count = code->segments[code->weigh_segment].count,
                              .segments = &code->segments[code->weigh_segment],
                              .segment_count = 1,
                              .in = DTI_ARENA_IN,
                              .out = DTI_ARENA_OUT};
    return w->device->backend->exec_create(w->device, &w->desc, &w->exec);
}

static dt_result dti_host_weights_make(dt_program *p) {
    uint64_t ends[DTI_MEMORIES] = {0};
    if (p->host_weights || p->store->device->info.kind == DT_DEVICE_CPU ||
        !dti_host_weights_fits(p->code, ends))
        return DT_OK;
    p->host_weights = dti_alloc(p->base, sizeof *p->host_weights);
    DTI_HAVE(p->host_weights);
    DTI_TRY(dti_host_weights_open(p, p->host_weights, ends));
    for (uint32_t i = 0; i < p->code->binding_count; i++) {
        const dti_binding *binding = &p->code->bindings[i];
        const void *values = p->code->work->nodes[binding->node].values;
        if (!binding->output && !binding->gradient && values)
            dti_host_weights_copy(p, binding, values);
    }
    return DT_OK;
}

static void dti_host_weights_free(dt_program *p) {
    dti_host_weights *w = p->host_weights;
    if (!w)
        return;
    const dti_backend *b = w->device ? w->device->backend : NULL;
    if (w->exec)
        b->exec_destroy(w->exec);
    for (uint32_t i = 0; i < DTI_ARENAS; i++)
        if (w->memories[i] && (i == DTI_ARENA_IN || w->memories[i] != w->memories[DTI_ARENA_IN]))
            b->memory_destroy(w->memories[i]);
    dti_device_close(w->device);
    dti_free(p->base, w);
}

static void dti_host_weights_copy(dt_program *p, const dti_binding *binding, const void *data) {
    const dti_host_weights *w = p->host_weights;
    if (!dti_program_weighs_by(p, binding))
        return;
    char *in = w->device->backend->memory_host(w->memories[DTI_ARENA_IN]);
    memcpy(in + binding->offset, data, (size_t)binding->bytes);
}

static dt_result dti_host_weights_write(dt_program *p, dt_tensor x, const void *data, size_t bytes,
                                        const uint32_t *rows) {
    const dti_binding *binding = NULL;
    DTI_TRY(dti_binding_get(p, x, false, false, bytes, &binding));
    DTI_TRY(dti_labels_check(p->code, binding, data, rows));
    if (p->host_weights)
        dti_host_weights_copy(p, binding, data);
    return DT_OK;
}

static dt_result dti_host_weights_run(const dt_program *p, const uint32_t **out) {
    const dti_host_weights *w = p->host_weights;
    *out = w->device->backend->memory_host(w->memories[DTI_ARENA_OUT]);
    return w->device->backend->exec_start(w->exec, 0, 1);
}
