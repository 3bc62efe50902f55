/* Creating a program: describe, differentiate, lower, plan, then the memory and the backend's
 * part. What fails leaves the store and its other programs as they were. */

/* ---- the store's shared arenas: they grow when a new program needs more */

static dt_result dti_arena_copy(dt_store *s, dti_memory *from, dti_memory *to, uint64_t bytes) {
    const dti_backend *b = s->device->backend;
    char piece[1024];
    for (uint64_t at = 0; at < bytes; at += sizeof piece) {
        uint64_t n = DTI_MIN(bytes - at, (uint64_t)sizeof piece);
        dt_result result = b->memory_read(from, at, piece, n);
        if (!result)
            result = b->memory_write(to, at, piece, n);
        if (result)
            return result;
    }
    return DT_OK;
}

/* Compiles the other programs again, with `memory` as their `arena`. */
static dt_result dti_arena_rebuild(dt_store *s, dti_arena arena, dti_memory *memory) {
    const dti_backend *b = s->device->backend;
    dt_result result = DT_OK;
    for (dt_program *p = s->programs; p && !result; p = p->next) {
        dti_memory *old = p->memories[arena];
        p->memories[arena] = memory;
        result = b->exec_create(s->device, &p->exec_desc, &p->exec_next);
        p->memories[arena] = old;
    }
    for (dt_program *p = s->programs; p; p = p->next) {
        dti_exec *unused = result ? p->exec_next : p->exec;
        if (!result) {
            p->exec = p->exec_next;
            p->memories[arena] = memory;
        }
        if (unused)
            b->exec_destroy(unused);
        p->exec_next = NULL;
    }
    return result;
}

/* Makes an arena of `bytes`, with the first `keep` bytes of the old one. */
static dt_result dti_arena_grow(dt_store *s, dti_arena arena, uint64_t bytes, uint64_t keep) {
    const dti_backend *b = s->device->backend;
    dti_memory *old = s->memories[arena], *memory = NULL;
    bool exchange = arena == DTI_ARENA_GRADIENT && s->exchange;
    dt_result result = b->memory_create(
        s->device, bytes, exchange ? DTI_MEMORY_EXCHANGE : DTI_MEMORY_DEVICE, &memory);
    if (result)
        return result;
    if (old)
        result = dti_arena_copy(s, old, memory, keep);
    if (!result)
        result = dti_arena_rebuild(s, arena, memory);
    if (result) {
        b->memory_destroy(memory);
        return result;
    }
    if (old)
        b->memory_destroy(old);
    s->memories[arena] = memory;
    return DT_OK;
}

static dt_result dti_arenas_ensure(dt_program *p) {
    dt_store *s = p->store;
    dt_result result = DT_OK;
    if (p->has_gradients && !s->memories[DTI_ARENA_GRADIENT]) {
        result = dti_arena_grow(s, DTI_ARENA_GRADIENT,
                                dti_arena_bytes(s->elements) * DTI_MAX(s->slots, 1u), 0);
    }
    uint32_t moments = p->has_optim ? dti_optim_moments(&p->optim) : 0;
    bool state = p->has_optim && (!s->memories[DTI_ARENA_STATE] || moments > s->moments);
    if (!result && state) {
        uint64_t keep = s->memories[DTI_ARENA_STATE] ? dti_state_bytes(s, s->moments) : 0;
        result = dti_arena_grow(s, DTI_ARENA_STATE, dti_state_bytes(s, moments), keep);
        if (!result)
            s->moments = moments;
    }
    if (!result && (p->transient_bytes > s->transient_bytes || !s->memories[DTI_ARENA_TRANSIENT])) {
        uint64_t bytes = DTI_MAX(p->transient_bytes, (uint64_t)DTI_ALIGN);
        result = dti_arena_grow(s, DTI_ARENA_TRANSIENT, bytes, 0);
        if (!result)
            s->transient_bytes = p->transient_bytes;
    }
    return result;
}

/* ---- the program's own memory and the backend's part */

static dt_result dti_program_memories(dt_program *p) {
    dt_store *s = p->store;
    const dti_backend *b = s->device->backend;
    dt_result result = dti_arenas_ensure(p);
    if (!result)
        result =
            b->memory_create(s->device, p->in_bytes, DTI_MEMORY_IN, &p->memories[DTI_ARENA_IN]);
    if (!result)
        result =
            b->memory_create(s->device, p->out_bytes, DTI_MEMORY_OUT, &p->memories[DTI_ARENA_OUT]);
    if (result)
        return result;
    if (p->has_optim) {
        result = b->memory_create(s->device, p->table_bytes, DTI_MEMORY_DEVICE,
                                  &p->memories[DTI_ARENA_TABLE]);
        if (!result)
            result = b->memory_write(p->memories[DTI_ARENA_TABLE], 0, p->table, p->table_bytes);
        dti_free(p->base, p->table);
        p->table = NULL;
    }
    return result;
}

/* Arenas that no launch of the program names stand in as the parameters: never NULL. */
static void dti_program_bind_arenas(dt_program *p) {
    for (int i = 0; i < DTI_ARENAS; i++) {
        if (p->store->memories[i])
            p->memories[i] = p->store->memories[i];
        if (!p->memories[i])
            p->memories[i] = p->store->memories[DTI_ARENA_PARAM];
    }
}

static dt_result dti_program_exec(dt_program *p) {
    dti_program_bind_arenas(p);
    p->exec_desc = (dti_exec_desc){.label = p->label,
                                   .memories = p->memories,
                                   .memory_count = DTI_ARENAS,
                                   .places = p->places,
                                   .place_count = p->list.value_count,
                                   .launches = p->list.launches,
                                   .launch_count = p->list.launch_count,
                                   .segments = p->segments,
                                   .segment_count = p->segment_count,
                                   .in = DTI_ARENA_IN,
                                   .out = DTI_ARENA_OUT,
                                   .exchange = DTI_ARENA_GRADIENT};
    return p->store->device->backend->exec_create(p->store->device, &p->exec_desc, &p->exec);
}

/* ---- create */

static dt_result dti_program_problems(dt_program *p, const dti_text *problems) {
    if (!problems->ok)
        return DT_ERROR_MEMORY;
    if (!problems->size)
        return DT_OK;
    return dti_fail(p->base, DT_ERROR_INVALID, "program '%s' cannot be made:%s", p->label,
                    problems->data);
}

static dt_result dti_program_graph(dt_program *p, uint32_t *weight_node) {
    dti_text problems = dti_text_open(p->base);
    dti_program_desc_check(p, &problems);
    dt_result result = dti_program_problems(p, &problems);
    if (!result) {
        dti_append_gradients(p, &problems);
        if (!problems.size)
            dti_append_weights(p, weight_node);
        if (p->work->error[0] && p->work->result != DT_ERROR_MEMORY)
            dti_text_add(&problems, "\n- gradient: %s", p->work->error);
        result = dti_program_problems(p, &problems);
        if (!result && p->work->error[0])
            result = dti_fail(p->base, p->work->result, "program '%s': gradient: %s", p->label,
                              p->work->error);
    }
    dti_text_free(&problems);
    return result;
}

/* Kernels find a moment by a 32-bit word number. */
static dt_result dti_state_fits(const dt_program *p) {
    uint64_t words = dti_state_moment_offset(p->store, dti_optim_moments(&p->optim));
    if (words <= UINT32_MAX)
        return DT_OK;
    return dti_fail(p->base, DT_ERROR_UNSUPPORTED,
                    "program '%s': the optimizer's state of %llu values has more than 2^32; train "
                    "fewer parameters, or with SGD without momentum",
                    p->label, (unsigned long long)words);
}

static dt_result dti_program_build(dt_program *p) {
    dt_store *s = p->store;
    uint32_t weight_node[DT_MAX_TERMS] = {0};
    if (s->running) {
        return dti_fail(
            p->base, DT_ERROR_INVALID,
            "program '%s' is between dt_program_begin and dt_program_end; end or cancel it "
            "before another program is made",
            s->running->label);
    }
    dt_result result = dti_graph_clone(s->graph, &p->work);
    if (result)
        return result;
    p->label = dti_graph_string(p->work, p->desc.label ? p->desc.label : "program");
    p->trained = dti_alloc_array(p->base, s->param_count + 1u, 1);
    p->param_dx = dti_alloc_array(p->base, s->param_count + 1u, sizeof *p->param_dx);
    p->update = dti_alloc_array(p->base, s->param_count + 1u, sizeof *p->update);
    if (!p->label || !p->trained || !p->param_dx || !p->update)
        return DT_ERROR_MEMORY;
    result = dti_program_graph(p, weight_node);
    if (!result && p->has_optim)
        result = dti_state_fits(p);
    if (!result)
        result = dti_lower_program(p, weight_node);
    if (!result)
        result = dti_plan(p);
    if (!result)
        result = dti_program_memories(p);
    return result ? result : dti_program_exec(p);
}

/* A copy: what the description points to is not kept. */
static dt_result dti_program_shards(dt_program *p, const dti_shards *shards) {
    p->pieces = dti_alloc_array(p->base, shards->piece_count + 1u, sizeof *p->pieces);
    p->buckets = dti_alloc_array(p->base, shards->bucket_count + 1u, sizeof *p->buckets);
    p->stats = dti_alloc_array(p->base, p->store->param_count + 1u, sizeof *p->stats);
    if (!p->pieces || !p->buckets || !p->stats)
        return DT_ERROR_MEMORY;
    p->piece_count = shards->piece_count;
    p->bucket_count = shards->bucket_count;
    memcpy(p->pieces, shards->pieces, p->piece_count * sizeof *p->pieces);
    for (uint32_t i = 0; i < p->bucket_count; i++)
        p->buckets[i] = shards->buckets[i];
    p->leaves = shards->leaves;
    p->subtrees = shards->before;
    p->any_part = p->desc.accumulate = shards->any_part;
    p->last_run = shards->last;
    return DT_OK;
}

static dt_result dti_program_create(dt_store *store, const dt_program_desc *desc,
                                    const dti_shards *shards, dt_program **out) {
    *out = NULL;
    dt_program *p = dti_alloc(store->base, sizeof *p);
    if (!p)
        return DT_ERROR_MEMORY;
    p->store = store;
    p->base = store->base;
    p->desc = *desc;
    unsigned modes = dti_fp_enter();
    dt_result result = shards ? dti_program_shards(p, shards) : DT_OK;
    if (!result)
        result = dti_program_build(p);
    dti_fp_leave(modes);
    if (result) {
        dt_program_destroy(p);
        return result;
    }
    p->next = store->programs;
    store->programs = p;
    for (uint32_t i = 0; i < store->param_count; i++) {
        if (p->has_optim && p->trained[i])
            store->params[i].optim = (uint8_t)p->optim.kind;
    }
    dti_log(p->base, DT_LOG_INFO,
            "program '%s': batch %lld, %u launches in %u segments, %llu transient bytes of the "
            "arena's %llu",
            p->label, (long long)p->batch, p->list.launch_count, p->segment_count,
            (unsigned long long)p->transient_bytes, (unsigned long long)store->transient_bytes);
    *out = p;
    return DT_OK;
}

DT_API dt_result dt_program_create(dt_store *store, const dt_program_desc *desc, dt_program **out) {
    if (out)
        *out = NULL;
    DTI_NEED(NULL, store);
    DTI_NEED(store->base, desc);
    DTI_NEED(store->base, out);
    dt_result result = dti_check_forked(store->base);
    if (result)
        return result;
    if (desc->optim && dti_store_alone(store, "only that trains it; make programs without .optim"))
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

DT_API void dt_program_destroy(dt_program *p) {
    if (!p)
        return;
    const dti_backend *b = p->store->device->backend;
    dti_program_unlink(p);
    if (p->store->running == p)
        p->store->running = NULL;
    if (p->exec)
        b->exec_destroy(p->exec);
    for (int i = DTI_ARENA_TABLE; i < DTI_ARENAS; i++) {
        bool own = p->memories[i] && p->memories[i] != p->store->memories[DTI_ARENA_PARAM];
        if (own)
            b->memory_destroy(p->memories[i]);
    }
    dt_graph_destroy(p->work);
    dti_free(p->base, p->trained);
    dti_free(p->base, p->param_dx);
    dti_free(p->base, p->update);
    dti_free(p->base, p->list.launches);
    dti_free(p->base, p->list.values);
    dti_free(p->base, p->places);
    dti_labels_free(p);
    dti_free(p->base, p->ports);
    dti_free(p->base, p->table);
    dti_free(p->base, p->pieces);
    dti_free(p->base, p->buckets);
    dti_free(p->base, p->stats);
    dti_free(p->base, p);
}

DT_API void dt_program_info_get(const dt_program *p, dt_program_info *info) {
    if (!info)
        return;
    *info = (dt_program_info){0};
    if (!p)
        return;
    const dt_store *s = p->store;
    *info = (dt_program_info){
        .batch = (int)p->batch,
        .param_bytes = dti_arena_bytes(s->elements),
        .gradient_bytes = s->memories[DTI_ARENA_GRADIENT] ? dti_arena_bytes(s->elements) : 0,
        .state_bytes = s->memories[DTI_ARENA_STATE] ? dti_state_bytes(s, s->moments) : 0,
        .transient_bytes = p->transient_bytes,
        .io_bytes = p->in_bytes + p->out_bytes,
        .used_bytes = p->used_bytes,
        .flops = p->list.flops,
        .launches = (int)p->list.launch_count,
        .segments = (int)(p->segment_count - p->weighs)};
}
