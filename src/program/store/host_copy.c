/* The state of a store on the host: parameters, moments and counts after a committed step. After a
 * loss training continues from it, on this or another device. There are two copies, and the older
 * one is overwritten, because a device may be lost while it is read. Without a copy a lost store
 * stays lost. */

typedef struct dti_host_copy_copy {
    char *bytes; /* the parameter arena, then the state arena */
    uint64_t capacity, state_bytes, steps;
    uint32_t moments;
} dti_host_copy_copy;

typedef struct dti_host_copy {
    uint32_t every; /* steps; 0: only for a move */
    bool taken;     /* copies[newest] is one */
    bool stale;     /* the host wrote something that it lacks */
    uint32_t newest;
    dti_host_copy_copy copies[2];
} dti_host_copy;

static dt_result dti_host_copy_room(dt_store *s, dti_host_copy_copy *c, uint64_t bytes) {
    if (c->capacity >= bytes)
        return DT_OK;
    char *more = dti_alloc(s->base, (size_t)bytes);
    DTI_HAVE(more);
    if (c->bytes)
        memcpy(more, c->bytes, (size_t)c->capacity);
    dti_free(s->base, c->bytes);
    c->bytes = more;
    c->capacity = bytes;
    return DT_OK;
}

static dt_result dti_host_copy_reserve(dt_store *s, uint32_t every) {
    if (!s->host_copy)
        s->host_copy = dti_alloc(s->base, sizeof *s->host_copy);
    DTI_HAVE(s->host_copy);
    dti_host_copy *h = s->host_copy;
    h->every = every ? every : h->every;
    h->stale = h->stale || !h->taken;
    const uint64_t bytes =
        dti_layout_bytes(&s->layout, s->layout.elements) + dti_store_state_bytes(s);
    DTI_TRY(dti_host_copy_room(s, &h->copies[0], bytes));
    return dti_host_copy_room(s, &h->copies[1], bytes);
}

static void dti_host_copy_free(dt_store *s) {
    for (int i = 0; s->host_copy && i < 2; i++)
        dti_free(s->base, s->host_copy->copies[i].bytes);
    dti_free(s->base, s->host_copy);
    s->host_copy = NULL;
}

static void dti_host_copy_stale(dt_store *s) {
    s->writes++;
    if (s->host_copy)
        s->host_copy->stale = true;
}

static bool dti_host_copy_due(const dt_store *s, uint64_t steps) {
    return s->host_copy && s->host_copy->every && steps % s->host_copy->every == 0;
}

/* Nothing is under way. */
static dt_result dti_host_copy_take(dt_store *s) {
    const dti_backend *b = s->device->backend;
    dti_host_copy *h = s->host_copy;
    dti_host_copy_copy *c = &h->copies[1 - h->newest];
    const uint64_t bytes = dti_layout_bytes(&s->layout, s->layout.elements);
    dt_result result = dti_host_copy_reserve(s, 0); /* a file may have brought moments */
    if (result)
        return result;
    c->state_bytes = dti_store_state_bytes(s);
    c->moments = s->moments;
    c->steps = s->steps;
    DTI_TRY(b->memory_read(s->memories[DTI_ARENA_PARAM], 0, c->bytes, bytes));
    if (c->state_bytes)
        DTI_TRY(b->memory_read(s->memories[DTI_ARENA_STATE], 0, c->bytes + bytes, c->state_bytes));
    h->newest = 1 - h->newest;
    h->taken = true;
    h->stale = false;
    return DT_OK;
}

static dt_result dti_host_copy_before(dt_store *s) {
    return s->host_copy && s->host_copy->every && s->host_copy->stale ? dti_host_copy_take(s)
                                                                      : DT_OK;
}

static dt_result dti_host_copy_after(dt_store *s) {
    return dti_host_copy_due(s, s->steps) ? dti_host_copy_take(s) : DT_OK;
}

/* ---- revival: a second set of everything that lies on a device, exchanged for the first */

typedef struct dti_revival {
    dti_device *device;
    dti_memory *memories[DTI_ARENAS];
    uint64_t transient_bytes, cache_bytes;
    uint32_t moments;
    dti_step_slot *step_slots; /* of the programs, in their order */
} dti_revival;

static void dti_revival_swap(dt_store *s, dti_revival *r) {
    dti_step_slot *t = r->step_slots;
    DTI_SWAP(dti_device *, s->device, r->device);
    DTI_SWAP(uint64_t, s->transient_bytes, r->transient_bytes);
    DTI_SWAP(uint64_t, s->cache_bytes, r->cache_bytes);
    DTI_SWAP(uint32_t, s->moments, r->moments);
    for (int i = 0; i < DTI_ARENAS; i++)
        DTI_SWAP(dti_memory *, s->memories[i], r->memories[i]);
    for (dt_program *p = s->programs; p; p = p->next)
        for (uint32_t i = 0; i < p->step_slot_count; i++, t++)
            DTI_SWAP(dti_step_slot, p->step_slots[i], *t);
}

/* The store's memory on its device. */
static void dti_revival_release(dt_store *s) {
    for (dt_program *p = s->programs; p; p = p->next)
        dti_step_slots_free(p);
    for (int i = 0; i < DTI_ARENAS; i++)
        if (s->memories[i])
            s->device->backend->memory_destroy(s->memories[i]);
    dti_device_close(s->device);
}

static dt_result dti_revival_values(dt_store *s) {
    const dti_backend *b = s->device->backend;
    const dti_host_copy_copy *c = &s->host_copy->copies[s->host_copy->newest];
    const uint64_t bytes = dti_layout_bytes(&s->layout, s->layout.elements);
    dt_result result =
        b->memory_create(s->device, bytes, DTI_MEMORY_DEVICE, &s->memories[DTI_ARENA_PARAM]);
    if (!result)
        result = b->memory_write(s->memories[DTI_ARENA_PARAM], 0, c->bytes, bytes);
    if (result || !c->state_bytes)
        return result;
    result = b->memory_create(s->device, c->state_bytes, DTI_MEMORY_DEVICE,
                              &s->memories[DTI_ARENA_STATE]);
    s->moments = c->moments;
    return result
               ? result
               : b->memory_write(s->memories[DTI_ARENA_STATE], 0, c->bytes + bytes, c->state_bytes);
}

/* Arenas first, and in full: a program's launches are made over those that stay. */
static dt_result dti_revival_build(dt_store *s) {
    dt_program *all = s->programs;
    dt_result result = dti_revival_values(s);
    s->programs = NULL; /* no launches are left that an arena's growth would change */
    dti_store_rows_lost(s);
    for (dt_program *p = all; p && !result; p = p->next)
        result = dti_arenas_ensure(p);
    for (dt_program *p = all; p && !result; p = p->next) {
        result = dti_program_memories(p);
        if (!result)
            result = dti_program_constants(p);
        if (!result)
            result = dti_program_exec(p);
    }
    s->programs = all;
    return result;
}

/* As after its creation: nothing has run, and the host has written only constants. */
static void dti_revival_reset(dt_program *p) {
    const dti_code *code = p->code;
    p->now = p->shown = p->step_slots;
    p->oldest = p->started = p->ended = 0;
    p->failed = false;
    for (uint32_t i = 0; i < code->binding_count; i++) {
        const dti_binding *binding = &code->bindings[i];
        p->stale[i] = 0;
        p->written[i] = !binding->output && !binding->gradient &&
                        code->work->nodes[binding->node].values != NULL;
    }
}

static dt_result dti_revival_check(dt_store *s, const dti_device *device) {
    DTI_TRY(dti_stored_here(s, device));
    for (const dt_program *p = s->programs; p; p = p->next) {
        const dti_limits of = dti_limits_of(device);
        if (p->external[0])
            return dti_fail(s->base, DT_ERROR_UNSUPPORTED,
                            "program '%s' uses external buffers (.external): destroy it before "
                            "dt_store_restore",
                            p->code->label);
        if (p->code->limits.storage_range_bytes > of.storage_range_bytes ||
            dti_types_misfit(&p->code->list, &of))
            return dti_fail(s->base, DT_ERROR_UNSUPPORTED,
                            "program '%s' uses features that device %s lacks: destroy it before "
                            "dt_store_restore, and create it again",
                            p->code->label, device->info.id);
    }
    return DT_OK;
}

static dt_result dti_revival_run(dt_store *s, dti_revival *r) {
    uint32_t step_slots = 0;
    dt_result result = dti_revival_check(s, r->device);
    for (const dt_program *p = s->programs; p; p = p->next)
        step_slots += p->step_slot_count;
    r->step_slots = dti_alloc_array(s->base, step_slots + 1u, sizeof *r->step_slots);
    if (!r->step_slots || result)
        return result ? result : DT_ERROR_MEMORY;
    dti_revival_swap(s, r);
    result = dti_revival_build(s);
    if (!result) /* then the old ones go, else the new ones */
        dti_revival_swap(s, r);
    dti_revival_release(s);
    memset(s->memories, 0, sizeof s->memories);
    s->device = NULL;
    dti_revival_swap(s, r);
    return result;
}

/* The present values of a device that works; else there must be a copy from before. */
static dt_result dti_revival_begin(dt_store *s) {
    DTI_TRY(dti_check_forked(s->base));
    DTI_TRY(dti_store_alone(s, "the trainer restores it; create a new trainer"));
    if (dti_store_open(s))
        return dti_fail(s->base, DT_ERROR_INVALID,
                        "program '%s' has a step under way: end or cancel it first",
                        dti_store_open(s)->code->label);
    const bool kept = s->host_copy && s->host_copy->taken;
    dt_result result = dti_host_copy_reserve(s, 0);
    if (!result)
        result = dti_host_copy_take(s);
    if (result != DT_ERROR_DEVICE_LOST || kept)
        return result == DT_ERROR_DEVICE_LOST ? DT_OK : result;
    return dti_fail(
        s->base, DT_ERROR_INVALID,
        "the device is lost, and the host has no copy: dt_store_desc.host_checkpoint_steps is 0, "
        "or no step has begun; create the store again");
}

DTI_PUBLIC(dt_store_restore, (dt_store * s, const char *device, uint64_t *step), s,
           DTI_OF(dt_store), (s, device, step)) {
    const dti_device *old = s->device;
    dti_revival r = {0};
    DTI_TRY(dti_revival_begin(s));
    DTI_TRY(dti_device_open(s->graph->ctx, device ? device : old->info.id, 0.0, &r.device));
    dti_device *opened = r.device;
    dt_result result = dti_revival_run(s, &r);
    if (result && r.device == opened)
        dti_device_close(opened); /* it was not begun with */
    dti_free(s->base, r.step_slots);
    if (result)
        return result;
    for (dt_program *p = s->programs; p; p = p->next)
        dti_revival_reset(p);
    s->steps = s->host_copy->copies[s->host_copy->newest].steps;
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        if (s->kept[i].averaged > s->steps + 1)
            s->kept[i].averaged = 0; /* the copy is from before */
    }
    s->summed = 0;
    dti_store_unbound(s); /* bounds are found again */
    s->host_copy->stale = false;
    if (!s->host_copy->every)
        dti_host_copy_free(s);
    if (step)
        *step = s->steps;
    return DT_OK;
}
