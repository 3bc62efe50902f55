/* Updates on the host (Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model
 * Training"). Moments and averages, and parameters and gradients of the own part, lie in the host's
 * memory. The CPU kernels run the commit over them, with a CPU's bits. The commit's launches run
 * over the host's side of OUT, with a copy of IN. Status and pairs of blocks always arrive in OUT.
 * The rest of a step is as without offload. Only for stores with units (lower/units.c): gradients
 * of others' parts and units of parameters pass through the host there. */

static dt_result dti_store_offload(dt_store *s, bool one_thread) {
    if (s->host || s->device->info.kind == DT_DEVICE_CPU)
        return DT_OK;
    DTI_TRY(dti_device_open(s->graph->ctx, "cpu", 0.0, &s->host));
    s->host->one_thread = one_thread;
    return DT_OK;
}

static dt_result dti_offload_arenas(dt_store *s) {
    const uint64_t bytes = dti_arena_bytes(DTI_MAX(s->layout.fixed, DTI_BLOCK));
    dt_result result = DT_OK;
    for (int i = 0; i < 2 && !result; i++) {
        if (!s->own[i])
            result = s->host->backend->memory_create(s->host, bytes, DTI_MEMORY_DEVICE, &s->own[i]);
    }
    return result;
}

/* Compiles the existing commits again, over `memory`; if one fails, none. */
static dt_result dti_offload_rebuild(dt_store *s, dti_memory *memory) {
    const dti_backend *b = s->host->backend;
    dti_memory *old = s->memories[DTI_ARENA_STATE];
    dt_result result = DT_OK;
    for (dt_program *p = s->programs; p; p = p->next)
        for (uint32_t i = 0; i < p->step_slot_count && p->step_slots[i].host && !result; i++) {
            dti_step_slot *t = &p->step_slots[i];
            t->host_memories[DTI_ARENA_STATE] = memory;
            result = b->exec_create(s->host, &t->host_desc, &t->exec_next);
        }
    for (dt_program *p = s->programs; p; p = p->next)
        for (uint32_t i = 0; i < p->step_slot_count && p->step_slots[i].host; i++) {
            dti_step_slot *t = &p->step_slots[i];
            dti_exec *unused = result ? t->exec_next : t->host;
            t->host = result ? t->host : t->exec_next;
            t->host_memories[DTI_ARENA_STATE] = result ? old : memory;
            t->exec_next = NULL;
            b->exec_destroy(unused);
        }
    return result;
}

/* No program of a device has it. */
static dt_result dti_offload_state(dt_store *s, uint64_t bytes, uint64_t keep) {
    const dti_backend *b = s->host->backend;
    dti_memory **at = &s->memories[DTI_ARENA_STATE], *memory = NULL;
    dt_result result = b->memory_create(s->host, bytes, DTI_MEMORY_DEVICE, &memory);
    if (!result && *at && keep)
        result = b->memory_read(*at, 0, b->memory_host(memory), keep);
    if (!result)
        result = dti_offload_rebuild(s, memory);
    b->memory_destroy(result ? memory : *at);
    *at = result ? *at : memory;
    return result;
}

static void dti_offload_free(dt_store *s) {
    for (int i = 0; i < 2; i++) {
        if (s->own[i])
            s->host->backend->memory_destroy(s->own[i]);
    }
    dti_device_close(s->host);
}

/* ---- the commit of a program */

static char *dti_program_in(const dt_program *p) {
    const dt_store *s = p->store;
    return p->now->host ? s->host->backend->memory_host(p->now->host_memories[DTI_ARENA_IN])
                        : s->device->backend->memory_host(p->now->memories[DTI_ARENA_IN]);
}

static dt_result dti_offload_start(dt_program *p, uint32_t first, uint32_t count) {
    const dt_store *s = p->store;
    memcpy(dti_program_in(p), s->device->backend->memory_host(p->now->memories[DTI_ARENA_IN]),
           DTI_WORD_BYTES * DTI_STEP_WORDS);
    return s->host->backend->exec_start(p->now->host, first, count);
}

/* The end of the intermediate values of the commit's launches. */
static uint64_t dti_offload_transients(const dti_code *code) {
    uint64_t end = DTI_PLACE_ALIGN;
    for (uint32_t i = code->host_first; i < code->list.launch_count; i++) {
        for (int b = 0; b < DTI_BINDINGS_MAX; b++) {
            const dti_place *p = &code->places[code->list.launches[i].value[b]];
            if (p->memory == DTI_ARENA_TRANSIENT)
                end = DTI_MAX(end, p->offset + p->bytes);
        }
    }
    return end;
}

static dt_result dti_step_slot_offload_memories(dt_program *p, dti_step_slot *t) {
    dt_store *s = p->store;
    const dti_backend *b = s->host->backend, *device = s->device->backend;
    dti_memory **m = t->host_memories;
    dt_result result = b->memory_create(s->host, dti_offload_transients(p->code), DTI_MEMORY_DEVICE,
                                        &m[DTI_ARENA_TRANSIENT]);
    if (!result)
        result = b->memory_over(s->host, p->code->table, p->code->table_bytes, &m[DTI_ARENA_TABLE]);
    if (!result) /* in its own memory: reading where the device's is written may be slow */
        result = b->memory_create(s->host, p->code->in_bytes, DTI_MEMORY_IN, &m[DTI_ARENA_IN]);
    if (!result)
        result = b->memory_over(s->host, device->memory_host(t->memories[DTI_ARENA_OUT]),
                                p->code->out_bytes, &m[DTI_ARENA_OUT]);
    return result;
}

static dt_result dti_step_slot_offload(dt_program *p, dti_step_slot *t) {
    const dti_code *code = p->code;
    dt_store *s = p->store;
    dt_result result = dti_step_slot_offload_memories(p, t);
    t->host_memories[DTI_ARENA_GRADIENT] = s->own[1];
    t->host_memories[DTI_ARENA_STATE] = s->memories[DTI_ARENA_STATE];
    for (int i = 0; i < DTI_MEMORIES; i++)
        t->host_memories[i] = t->host_memories[i] ? t->host_memories[i] : s->own[0];
    t->host_desc = (dti_exec_desc){.label = code->label,
                                   .memories = t->host_memories,
                                   .memory_count = DTI_MEMORIES,
                                   .places = code->places,
                                   .place_count = code->list.value_count,
                                   .launches = code->list.launches + code->host_first,
                                   .launch_count = code->list.launch_count - code->host_first,
                                   .segments = code->host_segments,
                                   .segment_count = code->segment_count,
                                   .in = DTI_ARENA_IN,
                                   .out = DTI_ARENA_OUT};
    return result ? result : s->host->backend->exec_create(s->host, &t->host_desc, &t->host);
}

static void dti_step_slot_offload_free(const dt_program *p, dti_step_slot *t) {
    static const int own[] = {DTI_ARENA_TRANSIENT, DTI_ARENA_TABLE, DTI_ARENA_IN, DTI_ARENA_OUT};
    const dt_store *s = p->store;
    if (t->host)
        s->host->backend->exec_destroy(t->host);
    for (size_t i = 0; i < DTI_COUNT(own) && s->host; i++) {
        dti_memory *m = t->host_memories[own[i]];
        if (m && m != s->own[0])
            s->host->backend->memory_destroy(m);
    }
}
