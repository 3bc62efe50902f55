/* Creating a program: its code, then its memory, then the backend's part. After an error the store
 * and its other programs are as they were. */

/* ---- the store's shared arenas: they grow when a new program needs more */

static dt_result dti_arena_copy(dt_store *s, dti_memory *from, dti_memory *to, uint64_t bytes) {
    const dti_backend *b = s->device->backend;
    char piece[1024];
    for (uint64_t at = 0; at < bytes; at += sizeof piece) {
        uint64_t n = DTI_MIN(bytes - at, (uint64_t)sizeof piece);
        DTI_TRY(b->memory_read(from, at, piece, n));
        DTI_TRY(b->memory_write(to, at, piece, n));
    }
    return DT_OK;
}

static dt_result dti_step_slot_rebuild(dt_store *s, dti_step_slot *t, dti_arena arena,
                                       dti_memory *memory) {
    dti_memory *old = t->memories[arena];
    t->memories[arena] = memory;
    dt_result result = s->device->backend->exec_create(s->device, &t->exec_desc, &t->exec_next);
    t->memories[arena] = old;
    return result;
}

/* Keeps the rebuilt parts, or drops them. */
static void dti_step_slot_settle(dt_store *s, dti_step_slot *t, dti_arena arena, dti_memory *memory,
                                 bool take) {
    dti_exec *unused = take ? t->exec : t->exec_next;
    if (take) {
        t->exec = t->exec_next;
        t->memories[arena] = memory;
    }
    if (unused)
        s->device->backend->exec_destroy(unused);
    t->exec_next = NULL;
}

/* The store's arena that programs with units, or others, have. */
static dti_memory **dti_store_arena(dt_store *s, bool units, int arena) {
    return units && arena == DTI_ARENA_PARAM      ? &s->units[0]
           : units && arena == DTI_ARENA_GRADIENT ? &s->units[1]
                                                  : &s->memories[arena];
}

static dti_memory **dti_program_arena(const dt_program *p, int arena) {
    return dti_store_arena(p->store, p->code && dti_code_has_units(p->code), arena);
}

/* Whether the step slots of a program have an arena of their own. */
static bool dti_arena_is_own(const dt_program *p, int arena) {
    return arena >= DTI_ARENA_TABLE ||
           (arena == DTI_ARENA_TRANSIENT && (p->micro_slots || dti_is_concurrent(p)));
}

static bool dti_arena_concerns(const dt_program *p, int arena, dti_memory *const *at) {
    return !dti_arena_is_own(p, arena) && dti_program_arena(p, arena) == at;
}

/* Compiles the other programs again, with `memory` as their `arena`, that is at `at` now. */
static dt_result dti_arena_rebuild(dt_store *s, dti_arena arena, dti_memory *const *at,
                                   dti_memory *memory) {
    dt_result result = DT_OK;
    for (dt_program *p = s->programs; p; p = p->next)
        for (uint32_t i = 0;
             i < p->step_slot_count && !result && dti_arena_concerns(p, (int)arena, at); i++)
            result = dti_step_slot_rebuild(s, &p->step_slots[i], arena, memory);
    for (dt_program *p = s->programs; p; p = p->next)
        for (uint32_t i = 0; i < p->step_slot_count && dti_arena_concerns(p, (int)arena, at); i++)
            dti_step_slot_settle(s, &p->step_slots[i], arena, memory, !result);
    return result;
}

/* Makes an arena of `bytes`, with the first `keep` bytes of the old one, which is at `at`. */
static dt_result dti_arena_grow_at(dt_store *s, dti_arena arena, dti_memory **at, uint64_t bytes,
                                   uint64_t keep) {
    const dti_backend *b = s->device->backend;
    dti_memory *old = *at, *memory = NULL;
    bool exchange = arena == DTI_ARENA_GRADIENT && s->exchange;
    DTI_TRY(b->memory_create(s->device, bytes, exchange ? DTI_MEMORY_EXCHANGE : DTI_MEMORY_DEVICE,
                             &memory));
    dt_result result = DT_OK;
    if (old)
        result = dti_arena_copy(s, old, memory, keep);
    if (!result)
        result = dti_arena_rebuild(s, arena, at, memory);
    if (result) {
        b->memory_destroy(memory);
        return result;
    }
    if (old)
        b->memory_destroy(old);
    *at = memory;
    if (arena == DTI_ARENA_GRADIENT)
        dti_store_rows_lost(s);
    return DT_OK;
}

static dt_result dti_arena_grow(dt_store *s, dti_arena arena, uint64_t bytes, uint64_t keep) {
    if (arena == DTI_ARENA_STATE && s->host)
        return dti_offload_state(s, bytes, keep);
    return dti_arena_grow_at(s, arena, &s->memories[arena], bytes, keep);
}

/* Values that are gathered and freed need not be kept. */
static dt_result dti_units_ensure(dt_store *s, const dti_code *code) {
    const uint64_t elements[2] = {code->unit_params, code->unit_gradients};
    const uint64_t fixed = s->layout.fixed - dti_layout_away(&s->layout);
    DTI_TRY(s->host ? dti_offload_arenas(s) : DT_OK);
    for (int i = 0; i < 2; i++) {
        if (s->units[i] && elements[i] <= s->unit_elements[i])
            continue;
        DTI_TRY(dti_arena_grow_at(s, i ? DTI_ARENA_GRADIENT : DTI_ARENA_PARAM, &s->units[i],
                                  dti_arena_bytes(DTI_MAX(elements[i], DTI_BLOCK)),
                                  s->units[i] ? dti_arena_bytes(fixed) : 0));
        s->unit_elements[i] = elements[i];
    }
    return DT_OK;
}

static dt_result dti_state_ensure(dt_store *s, const dti_code *code) {
    uint32_t moments = code->has_optim ? dti_optim_arrays(&code->optim) : 0;
    if (!code->has_optim || (s->memories[DTI_ARENA_STATE] && moments <= s->moments))
        return DT_OK;
    dt_result result = dti_arena_grow(s, DTI_ARENA_STATE, dti_state_bytes(&s->layout, moments),
                                      dti_store_state_bytes(s));
    if (!result)
        s->moments = moments;
    return result;
}

static dt_result dti_arenas_ensure(dt_program *p) {
    dt_store *s = p->store;
    const bool units = dti_code_has_units(p->code);
    if (!units && !s->memories[DTI_ARENA_PARAM])
        DTI_TRY(dti_arena_grow(s, DTI_ARENA_PARAM, dti_layout_bytes(&s->layout, s->layout.elements),
                               0));
    if (units)
        DTI_TRY(dti_units_ensure(s, p->code));
    else if (p->code->has_gradients && !s->memories[DTI_ARENA_GRADIENT])
        DTI_TRY(dti_arena_grow(s, DTI_ARENA_GRADIENT,
                               dti_arena_bytes(s->layout.elements) * DTI_MAX(s->slots, 1u), 0));
    if (dti_code_rounds(p->code) && !s->memories[DTI_ARENA_ROUNDING])
        DTI_TRY(dti_arena_grow(s, DTI_ARENA_ROUNDING, dti_arena_bytes(s->layout.elements), 0));
    DTI_TRY(dti_state_ensure(s, p->code));
    if (p->code->cache_bytes > s->cache_bytes) {
        DTI_TRY(dti_arena_grow(s, DTI_ARENA_CACHE, p->code->cache_bytes, s->cache_bytes));
        s->cache_bytes = p->code->cache_bytes;
    }
    if (!dti_arena_is_own(p, DTI_ARENA_TRANSIENT) &&
        (p->code->transient_bytes > s->transient_bytes || !s->memories[DTI_ARENA_TRANSIENT])) {
        uint64_t bytes = DTI_MAX(p->code->transient_bytes, (uint64_t)DTI_PLACE_ALIGN);
        DTI_TRY(dti_arena_grow(s, DTI_ARENA_TRANSIENT, bytes, 0));
        s->transient_bytes = p->code->transient_bytes;
    }
    return DT_OK;
}

/* ---- the program's own memory and the backend's part */

/* Forward parts by themselves are alive one at a time, while no other micro-batch of the store is.
 * So their slots have one memory for transients: an older program's, where that is large enough. */
static bool dti_program_is_forward(const dt_program *p) {
    return p->micro_slots && p->code && !p->code->has_gradients;
}

static dti_memory *dti_program_transients(dt_program *p, const dti_step_slot *t) {
    const dt_program *older = p->store->programs;
    if (!dti_program_is_forward(p))
        return NULL;
    if (t != p->step_slots)
        return p->step_slots[0].memories[DTI_ARENA_TRANSIENT];
    while (older &&
           !(older->micro_slots && older->code->transient_bytes >= p->code->transient_bytes))
        older = older->next;
    p->borrows = older != NULL;
    return older ? older->step_slots[0].memories[DTI_ARENA_TRANSIENT] : NULL;
}

static dt_result dti_step_slot_memories(dt_program *p, dti_step_slot *t) {
    dti_device *device = p->store->device;
    const uint64_t transient = DTI_MAX(p->code->transient_bytes, (uint64_t)DTI_PLACE_ALIGN);
    t->memories[DTI_ARENA_TRANSIENT] = dti_program_transients(p, t);
    if (dti_arena_is_own(p, DTI_ARENA_TRANSIENT) && !t->memories[DTI_ARENA_TRANSIENT])
        DTI_TRY(device->backend->memory_create(device, transient, DTI_MEMORY_DEVICE,
                                               &t->memories[DTI_ARENA_TRANSIENT]));
    DTI_TRY(device->backend->memory_create(device, p->code->in_bytes, DTI_MEMORY_IN,
                                           &t->memories[DTI_ARENA_IN]));
    return device->backend->memory_create(device, p->code->out_bytes, DTI_MEMORY_OUT,
                                          &t->memories[DTI_ARENA_OUT]);
}

/* The block table is one for all step slots: nothing writes it. */
static dt_result dti_program_table(dt_program *p) {
    const dti_backend *b = p->store->device->backend;
    dti_memory **first = &p->step_slots[0].memories[DTI_ARENA_TABLE];
    if (!p->code->has_optim || p->code->host_segments)
        return DT_OK;
    dt_result result =
        b->memory_create(p->store->device, p->code->table_bytes, DTI_MEMORY_DEVICE, first);
    if (!result)
        result = b->memory_write(*first, 0, p->code->table, p->code->table_bytes);
    for (uint32_t i = 1; i < p->step_slot_count && !result; i++)
        p->step_slots[i].memories[DTI_ARENA_TABLE] = *first;
    return result;
}

static dt_result dti_program_memories(dt_program *p) {
    dt_result result = dti_arenas_ensure(p);
    for (uint32_t i = 0; i < p->step_slot_count && !result; i++)
        result = dti_step_slot_memories(p, &p->step_slots[i]);
    return result ? result : dti_program_table(p);
}

/* An arena that no launch of the program names is replaced by the parameters: never NULL. */
static void dti_step_slot_bind_arenas(const dt_program *p, dti_step_slot *t) {
    for (int i = 0; i < DTI_ARENAS; i++) {
        dti_memory *shared = *dti_program_arena(p, i);
        const bool host = i == DTI_ARENA_STATE && p->store->host; /* no device has it */
        if (shared && !dti_arena_is_own(p, i) && !host)
            t->memories[i] = shared;
        if (!t->memories[i])
            t->memories[i] = *dti_program_arena(p, DTI_ARENA_PARAM);
    }
    for (int i = 0; i < DT_MAX_OUTPUTS; i++)
        t->memories[DTI_ARENAS + i] =
            p->external[i] ? p->external[i] : t->memories[DTI_ARENA_PARAM];
}

/* .whole: the segments of dt_program_run; replicas, stages and tensor ranks run single segments. */
static dt_result dti_step_slot_exec(dt_program *p, dti_step_slot *t) {
    const dti_code *code = p->code;
    dti_step_slot_bind_arenas(p, t);
    t->exec_desc = (dti_exec_desc){
        .label = code->label,
        .memories = t->memories,
        .memory_count = DTI_MEMORIES,
        .places = code->places,
        .place_count = code->list.value_count,
        .launches = code->list.launches,
        .launch_count = code->host_segments ? code->host_first : code->list.launch_count,
        .segments = code->device_segments ? code->device_segments : code->segments,
        .segment_count = code->segment_count,
        .whole = {code->slices.piece_count ? 0 : code->weigh_segment,
                  code->check_segment < code->commit_segment ? code->commit_segment : 0},
        .in = DTI_ARENA_IN,
        .out = DTI_ARENA_OUT,
        .exchange = DTI_ARENA_GRADIENT};
    dt_result result =
        p->store->device->backend->exec_create(p->store->device, &t->exec_desc, &t->exec);
    return result || !code->host_segments ? result : dti_step_slot_offload(p, t);
}

static dt_result dti_program_exec(dt_program *p) {
    for (uint32_t i = 0; i < p->step_slot_count; i++)
        DTI_TRY(dti_step_slot_exec(p, &p->step_slots[i]));
    return DT_OK;
}

/* ---- create */

/* Parameters have one optimizer's state at a time. */
static dt_result dti_program_kinds(const dt_program *p) {
    const dt_store *s = p->store;
    const dti_code *code = p->code;
    dti_text problems = dti_text_open(p->base);
    for (uint32_t i = 0; i < s->layout.param_count && code->has_optim; i++) {
        if (code->trained[i] && s->kept[i].optim && s->kept[i].optim != code->optim.kind)
            dti_text_add(&problems,
                         "\n- parameter '%s' has another optimizer's state, from another program "
                         "of this store; destroy that program, and dt_store_reset",
                         code->work->nodes[s->layout.params[i].node].label);
    }
    const dt_result result = dti_problems_fail(p->base, code->label, &problems);
    dti_text_free(&problems);
    return result;
}

static dt_result dti_program_lower(dt_program *p, const dt_program_desc *desc,
                                   const dti_batch_slices *batch_slices, const dti_staged *staged) {
    DTI_TRY(dti_code_take(p->store, desc, batch_slices, staged, &p->code));
    p->written = dti_alloc_array(p->base, p->code->binding_count + 1u, sizeof *p->written);
    p->stale = dti_alloc_array(p->base, p->code->binding_count + 1u, sizeof *p->stale);
    return p->written && p->stale ? dti_program_kinds(p) : DT_ERROR_MEMORY;
}

static void dti_constant_put(dt_program *p, const dti_binding *binding, const void *values) {
    for (uint32_t i = 0; i < p->step_slot_count; i++) {
        char *host =
            p->store->device->backend->memory_host(p->step_slots[i].memories[DTI_ARENA_IN]);
        memcpy(host + binding->offset, values, (size_t)binding->bytes);
    }
}

static dt_result dti_program_constants(dt_program *p) {
    const dti_code *code = p->code;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < code->binding_count && !result; i++) {
        const dti_binding *binding = &code->bindings[i];
        const void *values = code->work->nodes[binding->node].values;
        if (binding->output || binding->gradient || !values)
            continue;
        result = dti_labels_check(code, binding, values, NULL);
        dti_constant_put(p, binding, values);
        p->written[i] = true;
    }
    return result;
}

/* A parameter's average follows the moments of its optimizer: at the same index in all programs of
 * the store. */
static dt_result dti_program_averages(const dt_program *p) {
    const dt_store *s = p->store;
    const uint32_t moments = p->code->has_optim ? dti_optim_moments(&p->code->optim) : 0;
    const bool averages = p->code->has_optim && p->code->optim.average.kind != DT_AVERAGE_NONE;
    for (uint32_t i = 0; i < s->layout.param_count && p->code->has_optim; i++) {
        const uint32_t lies = s->layout.params[i].average;
        const bool fits =
            (!lies || lies == moments + 1) && (!averages || s->kept[i].moments <= moments);
        if (p->code->trained[i] && !fits)
            return dti_code_fail(
                p->code, DT_ERROR_INVALID,
                "the store's average of '%s' belongs to an optimizer with another number of "
                "moments than this one's %u; use the same, or another store",
                s->graph->nodes[s->layout.params[i].node].label, moments);
    }
    return DT_OK;
}

/* A step can be left out only where targets say so before it begins. */
static dt_result dti_program_skips(const dt_program *p) {
    for (uint32_t i = 0; i < p->code->loss_count && p->code->desc.skip_empty; i++) {
        if (p->code->static_weight[i] < 0.0)
            return dti_code_fail(p->code, DT_ERROR_UNSUPPORTED,
                                 ".skip_empty needs targets before the forward pass, but those of "
                                 ".losses[%u] are computed in the graph; give them as an input",
                                 i);
    }
    return DT_OK;
}

/* The store's facts about parameters of this code's program. */
static void dti_store_keep(dt_store *s, const dti_code *code) {
    const uint32_t moments = code->has_optim ? dti_optim_moments(&code->optim) : 0;
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        if (!code->has_optim || !code->trained[i])
            continue;
        s->kept[i].optim = (uint8_t)code->optim.kind;
        s->kept[i].moments = (uint8_t)DTI_MAX(s->kept[i].moments, moments);
        if (code->optim.average.kind != DT_AVERAGE_NONE)
            s->layout.params[i].average = (uint8_t)(moments + 1);
    }
}

static void dti_store_train_elsewhere(dt_store *s, const dti_code *code) {
    s->moments = DTI_MAX(s->moments, dti_optim_arrays(&code->optim));
    dti_store_keep(s, code);
}

static dt_result dti_program_build(dt_program *p, const dt_program_desc *desc,
                                   const dti_batch_slices *batch_slices, const dti_staged *staged) {
    dt_store *s = p->store;
    if (desc->averaged && s->layout.parted)
        return dti_fail(p->base, DT_ERROR_UNSUPPORTED,
                        ".averaged: a program needs all averages, but replicas shard them "
                        "(dt_trainer_desc.parallel.zero_stage); use dt_trainer_evaluate, or "
                        "save them (dt_save_desc.averaged), and load them into another store");
    if (!batch_slices && dti_store_whole(s))
        return DT_ERROR_INVALID;
    if (dti_store_open(s)) {
        return dti_fail(
            p->base, DT_ERROR_INVALID,
            "program '%s' has a step under way (between dt_program_begin and dt_program_end, or "
            "started and not waited for); end it before you create another program",
            dti_store_open(s)->code->label);
    }
    DTI_TRY(dti_program_lower(p, desc, batch_slices, staged));
    DTI_TRY(dti_program_skips(p));
    DTI_TRY(dti_program_averages(p));
    DTI_TRY(dti_program_import(p));
    DTI_TRY(dti_program_memories(p));
    DTI_TRY(dti_program_constants(p));
    DTI_TRY(dti_program_exec(p));
    return !s->host_copy ? DT_OK : dti_host_copy_reserve(s, 0);
}

static dt_program *dti_program_alloc(dt_store *store, uint32_t step_slots) {
    dt_program *p = dti_alloc(store->base, sizeof *p);
    dti_step_slot *all = p ? dti_alloc_array(store->base, step_slots, sizeof *all) : NULL;
    if (!all) {
        dti_free(store->base, p);
        return NULL;
    }
    p->store = store;
    p->base = store->base;
    p->now = p->shown = p->step_slots = all;
    p->step_slot_count = step_slots;
    return p;
}

/* micro_slots: of a pipeline stage's program; else 0. */
static dt_result dti_program_make(dt_store *store, const dt_program_desc *desc,
                                  const dti_batch_slices *batch_slices, const dti_staged *staged,
                                  uint32_t micro_slots, dt_program **out) {
    const uint32_t step_slots = desc->in_flight == 2 ? 2 : 1;
    *out = NULL;
    DTI_TRY(dti_optim_here(store->base, desc->optim));
    if (desc->optim)
        DTI_TRY(dti_store_set_state(store, desc->optim->state_dtype,
                                    desc->label ? desc->label : "program"));
    dt_program *p = dti_program_alloc(store, micro_slots ? micro_slots : step_slots);
    DTI_HAVE(p);
    p->micro_slots = micro_slots > 0;
    dt_result result = dti_program_build(p, desc, batch_slices, staged);
    if (result) {
        dt_program_destroy(p);
        return result;
    }
    p->next = store->programs;
    store->programs = p;
    dti_store_keep(store, p->code);
    dti_log(p->base, DT_LOG_INFO,
            "program '%s': batch %lld, %u launches in %u segments, %llu transient bytes; %llu are "
            "allocated so far",
            p->code->label, (long long)p->code->batch, p->code->list.launch_count,
            p->code->segment_count, (unsigned long long)p->code->transient_bytes,
            (unsigned long long)store->transient_bytes);
    *out = p;
    return DT_OK;
}

static dt_result dti_program_create(dt_store *store, const dt_program_desc *desc,
                                    const dti_batch_slices *batch_slices, dt_program **out) {
    return dti_program_make(store, desc, batch_slices, NULL, 0, out);
}

DTI_PUBLIC_OUT(dt_program_create, (dt_store * store, const dt_program_desc *desc, dt_program **out),
               store, DTI_OF(dt_store), (store, desc, out)) {
    DTI_NEED(store->base, desc);
    DTI_TRY(dti_check_forked(store->base));
    if (desc->optim &&
        dti_store_alone(store, "only the trainer trains it; make programs without .optim"))
        return DT_ERROR_INVALID;
    if (store->graph->error[0]) /* a nil in desc would come from it */
        return dti_fail(store->base, store->graph->result, DTI_GRAPH_ERROR, store->graph->error);
    return dti_program_create(store, desc, NULL, out);
}

static void dti_program_unlink(dt_program *p) {
    for (dt_program **at = &p->store->programs; *at; at = &(*at)->next) {
        if (*at != p)
            continue;
        *at = p->next;
        return;
    }
}

static void dti_step_slot_free(const dt_program *p, dti_step_slot *t, bool first) {
    const dti_backend *b = p->store->device->backend;
    for (int i = 0; i < DTI_ARENAS; i++) {
        const bool shared = t->memories[i] == *dti_program_arena(p, DTI_ARENA_PARAM);
        const bool one =
            i == DTI_ARENA_TABLE || (i == DTI_ARENA_TRANSIENT && dti_program_is_forward(p));
        const bool borrowed = i == DTI_ARENA_TRANSIENT && p->borrows;
        if (dti_arena_is_own(p, i) && t->memories[i] && !shared && (first || !one) && !borrowed)
            b->memory_destroy(t->memories[i]);
    }
}

/* A step in flight reads the block table that all slots share. So launches are waited for before
 * memory is freed. */
static void dti_step_slots_free(dt_program *p) {
    for (uint32_t i = 0; i < p->step_slot_count; i++) {
        if (p->step_slots[i].exec)
            p->store->device->backend->exec_destroy(p->step_slots[i].exec);
        dti_step_slot_offload_free(p, &p->step_slots[i]);
    }
    for (uint32_t i = 0; i < p->step_slot_count; i++)
        dti_step_slot_free(p, &p->step_slots[i], i == 0);
}

DTI_PUBLIC_VOID(dt_program_destroy, (dt_program * p), p, DTI_OF(dt_program) | DTI_UNUSED, (p)) {
    dti_step_settle(p);
    dti_program_unlink(p);
    if (dti_drive_is_open(p))
        dti_drive_close(p);
    dti_step_slots_free(p);
    dti_program_drop_imports(p);
    dti_host_weights_free(p);
    dti_code_release(p->store, p->code);
    DTI_FREE(p->base, p->written, p->stale, p->step_slots, p);
}

DTI_PUBLIC_INFO(dt_program_get_info, (const dt_program *p, dt_program_info *info), p,
                DTI_OF(dt_program), (p, info)) {
    const dt_store *s = p->store;
    *info =
        (dt_program_info){.batch = (int)p->code->batch,
                          .param_bytes = dti_layout_bytes(&s->layout, s->layout.elements),
                          .gradient_bytes = dti_arena_bytes(s->layout.elements) *
                                            ((s->memories[DTI_ARENA_GRADIENT] ? 1u : 0u) +
                                             (s->memories[DTI_ARENA_ROUNDING] ? 1u : 0u)),
                          .state_bytes = dti_store_state_bytes(s),
                          .cache_bytes = s->cache_bytes,
                          .transient_bytes = p->code->transient_bytes *
                                             (dti_is_concurrent(p) ? p->step_slot_count : 1),
                          .io_bytes = (p->code->in_bytes + p->code->out_bytes) * p->step_slot_count,
                          .flops = p->code->list.flops,
                          .launches = (int)p->code->list.launch_count,
                          .segments = (int)(p->code->segment_count - p->code->weighs),
                          .launches_recomputed = (int)p->code->launches_recomputed};
}
