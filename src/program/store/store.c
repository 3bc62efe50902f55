/* Creating, reading and hashing a store. */

/* ---- create, destroy */

/* A step's operations: forward, both gradients, one multiply and add each. */
static double dti_store_flops(const dt_graph *g, int batch) {
    double n = 0.0;
    for (uint32_t id = 1; id < g->count; id++) {
        const dti_node *node = &g->nodes[id];
        const dti_op_family *family = dti_op_info_of(node->op)->family;
        if (family->macs)
            n += family->macs(g, node) * (node->samples ? (batch > 0 ? batch : 64) : 1);
    }
    return 6.0 * n;
}

static dt_result dti_store_build(dt_store *s, const dt_store_desc *d) {
    dt_result result = dti_layout_make(s->base, s->graph, d->parameter_dtype, &s->layout);
    s->kept = dti_alloc_array(s->base, s->layout.param_count + 1u, sizeof *s->kept);
    if (result || !s->kept)
        return DT_ERROR_MEMORY;
    double flops = dti_store_flops(s->graph, d->batch_hint);
    DTI_TRY(dti_device_open(s->graph->ctx, d->device, flops, &s->device));
    return dti_stored_here(s, s->device);
}

_Static_assert(offsetof(dt_store, owned) == 0, "dti_store_end casts");

static void dti_store_end(dti_owned *self) {
    dti_store_free((dt_store *)(void *)self);
}

static dt_result dti_store_create_bare(dt_graph *graph, const dt_store_desc *desc, dt_store **out) {
    if (graph->error[0])
        return dti_fail(graph->base, graph->result, DTI_GRAPH_ERROR, graph->error);
    DTI_TRY(dti_check_forked(graph->base));
    dt_store *s = *out = dti_alloc(graph->base, sizeof *s);
    DTI_HAVE(s);
    s->graph = graph;
    s->base = graph->base;
    s->allow_nonfinite = desc->allow_nonfinite;
    s->seed = desc->seed;
    s->init = desc->init;
    s->init_user = desc->init_user;
    dti_own(&graph->stores, &s->owned, dti_store_end);
    return dti_store_build(s, desc);
}

DTI_PUBLIC_NEW(dt_store_create, (dt_graph * graph, const dt_store_desc *desc, dt_store **out),
               graph, DTI_OF(dt_graph), (graph, desc, out), dti_store_free) {
    if (desc && desc->batch_hint < 0)
        return dti_fail(graph->base, DT_ERROR_INVALID,
                        ".batch_hint is %d; it must be at least 0 (0 = 64)", desc->batch_hint);
    if (desc && desc->host_checkpoint_steps < 0)
        return dti_fail(graph->base, DT_ERROR_INVALID,
                        ".host_checkpoint_steps is %d; it must be at least 0 (0 = never)",
                        desc->host_checkpoint_steps);
    if (desc && desc->parameter_dtype != DT_F32 && desc->parameter_dtype != DT_BF16)
        return dti_fail(graph->base, DT_ERROR_INVALID,
                        ".parameter_dtype is %s; it must be DT_F32 or DT_BF16",
                        dti_dtype_name(desc->parameter_dtype));
    dt_store_desc d = desc ? *desc : (dt_store_desc){0};
    DTI_TRY(dti_store_create_bare(graph, &d, out));
    DTI_TRY(dti_store_arenas(*out, false));
    DTI_TRY(dti_store_fill(*out));
    return !d.host_checkpoint_steps
               ? DT_OK
               : dti_host_copy_reserve(*out, (uint32_t)d.host_checkpoint_steps);
}

/* ---- arenas */

static dt_result dti_store_arena_make(dt_store *s, dti_arena arena, uint64_t bytes) {
    dti_memory **at = &s->memories[arena];
    return *at ? DT_OK : s->device->backend->memory_create(s->device, bytes, DTI_MEMORY_DEVICE, at);
}

static dt_result dti_store_arenas(dt_store *s, bool state) {
    const dti_layout *l = &s->layout;
    DTI_TRY(dti_store_arena_make(s, DTI_ARENA_PARAM, dti_layout_bytes(l, l->elements)));
    return state ? dti_store_arena_make(s, DTI_ARENA_STATE, dti_state_bytes(l, s->moments)) : DT_OK;
}

static bool dti_store_is_used(const dt_store *s) {
    bool used = false;
    for (const dt_program *p = s->programs; p; p = p->next)
        used = used || !dti_code_has_units(p->code);
    return used;
}

static void dti_store_arenas_drop(dt_store *s, bool state) {
    for (int i = 0; i < DTI_ARENAS && !dti_store_is_used(s); i++) {
        if (!s->memories[i] || !(i == DTI_ARENA_PARAM || (state && i == DTI_ARENA_STATE)))
            continue;
        s->device->backend->memory_destroy(s->memories[i]);
        s->memories[i] = NULL;
    }
}

static void dti_store_free(dt_store *s) {
    if (!s)
        return;
    while (s->programs)
        dt_program_destroy(s->programs);
    dti_codes_free(s);
    for (int i = 0; i < DTI_ARENAS; i++) {
        if (s->memories[i])
            dti_store_backend(s, i)->memory_destroy(s->memories[i]);
    }
    dti_offload_free(s);
    for (int i = 0; i < 2; i++) {
        if (s->units[i])
            s->device->backend->memory_destroy(s->units[i]);
    }
    dti_device_close(s->device);
    dti_host_copy_free(s);
    dti_disown(&s->graph->stores, &s->owned);
    DTI_FREE(s->base, s->layout.params, s->kept, s);
}

static dt_result dti_store_alone(const dt_store *s, const char *what) {
    if (!s->trainer)
        return DT_OK;
    return dti_fail(s->base, DT_ERROR_INVALID, "the store belongs to a trainer: %s", what);
}

static dt_result dti_store_idle(const dt_store *s) {
    const dt_program *p = dti_store_open(s);
    return p ? dti_fail(s->base, DT_ERROR_INVALID,
                        "program '%s' is between dt_program_begin and dt_program_end; end or "
                        "cancel it first",
                        p->code->label)
             : DT_OK;
}

static void dti_store_rows_lost(dt_store *s) {
    for (uint32_t i = 0; i < s->layout.param_count; i++)
        s->kept[i].rows = false;
}

static dt_result dti_store_whole(const dt_store *s) {
    if (!s->apart)
        return DT_OK;
    return dti_fail(
        s->base, DT_ERROR_INVALID,
        "the parameters are sharded over replicas (dt_trainer_desc.parallel.zero_stage): "
        "dt_trainer_store gathers them, until the next step");
}

DTI_PUBLIC_VOID(dt_store_destroy, (dt_store * s), s, DTI_OF(dt_store) | DTI_UNUSED, (s)) {
    if (!dti_store_alone(s, "dt_trainer_destroy destroys it"))
        dti_store_free(s);
}

/* ---- access */

DTI_PUBLIC_GET(const dt_device_info *, dt_store_device, (const dt_store *s), s, DTI_OF(dt_store),
               (s)) {
    return s ? &s->device->info : NULL;
}

DTI_PUBLIC_GET(int, dt_store_param_count, (const dt_store *s), s, DTI_OF(dt_store), (s)) {
    return s ? (int)s->layout.param_count : 0;
}

static const char *dti_store_name(const void *store, uint32_t i) {
    const dt_store *s = store;
    return s->graph->nodes[s->layout.params[i].node].label;
}

DTI_PUBLIC(dt_store_get_param, (const dt_store *s, int index, dt_param_info *info), s,
           DTI_OF(dt_store), (s, index, info)) {
    DTI_NEED(s->base, info);
    if (index < 0 || (uint32_t)index >= s->layout.param_count) {
        return dti_fail(s->base, DT_ERROR_INVALID, "the parameter index is %d; the store has %u%s",
                        index, s->layout.param_count,
                        dti_sought_hint(s->base, "dt_store_find", index, s, s->layout.param_count,
                                        dti_store_name)
                            .text);
    }
    const dti_node *n = &s->graph->nodes[s->layout.params[index].node];
    *info = (dt_param_info){.name = n->label,
                            .shape = n->shape,
                            .frozen = n->frozen && !n->buffer,
                            .buffer = n->buffer,
                            .elements = s->layout.params[index].elements,
                            .dtype = s->layout.params[index].dtype};
    return DT_OK;
}

DTI_PUBLIC_GET(int, dt_store_find, (const dt_store *s, const char *name), s, DTI_OF(dt_store),
               (s, name)) {
    const uint32_t id = s && name ? dti_graph_find(s->graph, DTI_OP_PARAM, name) : 0;
    if (!s || id)
        return s ? (int)s->graph->nodes[id].attr.i[0] : -1;
    return dti_sought_none(s->base, "dt_store_find", name);
}

/* ---- arrays of the arenas, of which a store may have a part */

typedef struct dti_array_cut { /* a store's part of some elements */
    const dti_backend *backend;
    dti_memory *memory;
    uint64_t at, n;  /* from the first one on */
    uint64_t offset; /* of it, in elements of the arena */
} dti_array_cut;

static dti_array_cut dti_state_cut(const dt_store *s, uint32_t moment, uint64_t at, uint64_t n) {
    const dti_layout *l = &s->layout;
    const uint64_t from = DTI_MAX(at, l->own_begin), end = DTI_MIN(at + n, l->own_end);
    if (from >= end)
        return (dti_array_cut){0};
    return (dti_array_cut){dti_store_backend(s, DTI_ARENA_STATE), s->memories[DTI_ARENA_STATE],
                           from - at, end - from, dti_state_moment_offset(l, moment) + from};
}

/* Where only the arenas of units have values: its own part, and all untrained values. */
static dti_array_cut dti_units_cut_of(const dt_store *s, uint64_t at, uint64_t n) {
    const dti_layout *l = &s->layout;
    const dti_param *p = &l->params[dti_unit_param(l, at)];
    dti_array_cut c = dti_state_cut(s, 0, at, n);
    const bool host = p->rest == DTI_NO_REST && s->host;
    if (p->rest != DTI_NO_REST)
        c = (dti_array_cut){.n = n, .offset = p->rest + at - p->offset - dti_layout_away(l)};
    else
        c.offset = at + c.at - l->own_begin;
    c.backend = host ? s->host->backend : s->device->backend;
    c.memory = host ? s->own[0] : s->units[0];
    return c;
}

static dti_array_cut dti_array_cut_of(const dt_store *s, uint32_t array, uint64_t at, uint64_t n) {
    dti_memory *all = s->memories[DTI_ARENA_PARAM];
    return array      ? dti_state_cut(s, array - 1, at, n)
           : s->apart ? dti_units_cut_of(s, at, n)
                      : (dti_array_cut){s->device->backend, all, 0, n, at};
}

static dt_result dti_state_elsewhere(const dt_store *s) {
    return dti_fail(s->base, DT_ERROR_UNSUPPORTED,
                    "the state is sharded over ranks (dt_trainer_desc.parallel.zero_stage): "
                    "dt_trainer_save gathers it");
}

static dt_result dti_store_array_read(dt_store *s, uint32_t array, uint64_t at, uint64_t n,
                                      void *data) {
    dt_result result = DT_OK;
    uint64_t found = 0;
    if (dti_store_is_stored(s, array))
        return dti_stored_values_read(s, array, at, n, data);
    for (dt_store *have = s; have && found < n && !result; have = have->replica) {
        const dti_array_cut c = dti_array_cut_of(have, array, at, n);
        if (c.n)
            result = c.backend->memory_read(c.memory, dti_arena_bytes(c.offset),
                                            (float *)data + c.at, dti_arena_bytes(c.n));
        found += c.n;
    }
    return result || found == n ? result : dti_state_elsewhere(s);
}

static dt_result dti_store_array_write(dt_store *s, uint32_t array, uint64_t at, uint64_t n,
                                       const void *data) {
    if (dti_store_is_stored(s, array))
        return dti_stored_values_write(s, array, at, n, data);
    const dti_array_cut c = dti_array_cut_of(s, array, at, n);
    return c.n ? c.backend->memory_write(c.memory, dti_arena_bytes(c.offset),
                                         (const float *)data + c.at, dti_arena_bytes(c.n))
               : DT_OK;
}

static dt_result dti_store_counts(const dt_store *s, uint64_t param, uint64_t n, void *counts,
                                  bool write) {
    const dti_backend *b = dti_store_backend(s, DTI_ARENA_STATE);
    dti_memory *memory = s->memories[DTI_ARENA_STATE];
    const uint64_t at = DTI_WORD_BYTES * (dti_state_t_offset(&s->layout) + param);
    return write ? b->memory_write(memory, at, counts, n * DTI_WORD_BYTES)
                 : b->memory_read(memory, at, counts, n * DTI_WORD_BYTES);
}

/* ---- values */

/* In which arena a value is, and where; `kind` is one that the parameter can have. */
static dt_result dti_store_place_of(dt_store *s, int index, const dt_param_info *info,
                                    dt_value_kind kind, dti_store_place *place) {
    const uint64_t at = s->layout.params[index].offset;
    const uint32_t moment = kind == DT_VALUE_AVERAGE  ? s->layout.params[index].average - 1u
                            : kind > DT_VALUE_MOMENT1 ? (uint32_t)(kind - DT_VALUE_MOMENT1)
                                                      : 0;
    dti_arena arena = kind == DT_VALUE_PARAM      ? DTI_ARENA_PARAM
                      : kind == DT_VALUE_GRADIENT ? DTI_ARENA_GRADIENT
                                                  : DTI_ARENA_STATE;
    if (arena == DTI_ARENA_GRADIENT && s->layout.parted)
        return dti_fail(s->base, DT_ERROR_UNSUPPORTED,
                        "parameter '%s': a trainer with .parallel.zero_stage keeps no gradients",
                        info->name);
    if ((!s->memories[arena] && !s->apart) || (arena == DTI_ARENA_STATE && moment >= s->moments))
        return dti_fail(s->base, DT_ERROR_INVALID,
                        "parameter '%s' has no %s: no program that computes it was created",
                        info->name, arena == DTI_ARENA_GRADIENT ? "gradient" : "such moment");
    const bool state = arena == DTI_ARENA_STATE, rest = arena == DTI_ARENA_PARAM && s->apart;
    const uint64_t array = state ? dti_state_moment_offset(&s->layout, moment) : 0;
    const bool stored = arena == DTI_ARENA_PARAM && dti_store_is_stored(s, 0);
    if (rest && s->layout.params[index].rest == DTI_NO_REST)
        return dti_store_whole(s);
    if (rest)
        *place = (dti_store_place){
            .memory = s->units[0],
            .offset = dti_arena_bytes(s->layout.params[index].rest - dti_layout_away(&s->layout))};
    else
        *place = (dti_store_place){.memory = s->memories[arena],
                                   .offset = dti_arena_bytes(array + at),
                                   .in_array = state || stored,
                                   .array = state ? moment + 1 : 0,
                                   .at = at,
                                   .elements = info->elements};
    return DT_OK;
}

static dt_result dti_store_locate(dt_store *s, int index, dt_value_kind kind, size_t bytes,
                                  dti_store_place *place) {
    dt_param_info info = {0};
    DTI_TRY(dti_check_forked(s->base));
    DTI_TRY(dt_store_get_param(s, index, &info));
    const uint64_t size = dti_arena_bytes(info.elements);
    if (bytes != size)
        return dti_fail(s->base, DT_ERROR_INVALID, "parameter '%s' %s has %llu bytes, not %zu",
                        info.name, dti_shape_print(info.shape, false).text,
                        (unsigned long long)size, bytes);
    DTI_TRY(dti_store_idle(s));
    if ((unsigned)kind > DT_VALUE_AVERAGE)
        return dti_fail(s->base, DT_ERROR_INVALID,
                        "parameter '%s': kind is %d, not a dt_value_kind", info.name, (int)kind);
    const uint8_t average = s->layout.params[index].average;
    if (kind == DT_VALUE_AVERAGE && !dti_layout_averages(&s->layout))
        return dti_fail(s->base, DT_ERROR_INVALID,
                        "parameter '%s' has no average: no program that averages "
                        "(dt_optim_desc.average) was created",
                        info.name);
    if (kind == DT_VALUE_AVERAGE && (!average || !s->kept[index].averaged))
        kind = DT_VALUE_PARAM;
    if (info.buffer && kind != DT_VALUE_PARAM)
        return dti_fail(s->base, DT_ERROR_INVALID,
                        "'%s' is a buffer: it has no gradient and no moments", info.name);
    return dti_store_place_of(s, index, &info, kind, place);
}

DTI_PUBLIC(dt_store_read, (dt_store * s, int index, dt_value_kind kind, void *data, size_t bytes),
           s, DTI_OF(dt_store), (s, index, kind, data, bytes)) {
    DTI_NEED(s->base, data);
    dti_store_place p;
    DTI_TRY(dti_store_locate(s, index, kind, bytes, &p));
    return p.in_array ? dti_store_array_read(s, p.array, p.at, p.elements, data)
                      : s->device->backend->memory_read(p.memory, p.offset, data, bytes);
}

/* The average becomes the weight, as far as the store has it. */
static dt_result dti_store_average_of(dt_store *s, const dti_param *param, char *piece) {
    const uint64_t most = DTI_STORE_PIECE / dti_arena_bytes(1);
    const dti_layout *l = &s->layout;
    const dti_bucket here = {s->apart ? l->own_begin : 0, s->apart ? l->own_end : l->elements};
    const dti_bucket all = {param->offset, param->offset + param->elements};
    const dti_bucket part = dti_bucket_overlap(all, here);
    dt_result result = DT_OK;
    for (uint64_t at = part.begin; at < part.end && !result; at += most) {
        const uint64_t n = DTI_MIN(part.end - at, most);
        result = dti_store_array_read(s, 0, at, n, piece);
        if (!result)
            result = dti_store_array_write(s, param->average, at, n, piece);
    }
    return result;
}

static dt_result dti_store_average(dt_store *s) {
    char *piece = NULL;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < s->layout.param_count && !result; i++) {
        if (!s->layout.params[i].average || s->kept[i].averaged || !s->memories[DTI_ARENA_STATE])
            continue;
        piece = piece ? piece : dti_alloc(s->base, DTI_STORE_PIECE);
        result = piece ? dti_store_average_of(s, &s->layout.params[i], piece) : DT_ERROR_MEMORY;
    }
    dti_free(s->base, piece);
    return result;
}

static void dti_store_averaged(dt_store *s, uint32_t param, uint64_t step) {
    dti_kept *k = &s->kept[param];
    if (k->averaged)
        return;
    k->averaged = s->steps + 1;
    k->from = step;
}

static dt_result dti_store_average_write(dt_store *s, int index) {
    const bool known = index >= 0 && (uint32_t)index < s->layout.param_count;
    if (known && !s->layout.params[index].average)
        return dti_fail(s->base, DT_ERROR_INVALID, "parameter '%s' has no average to write",
                        s->graph->nodes[s->layout.params[index].node].label);
    if (!known || dti_store_open(s))
        return DT_OK; /* dti_store_locate says it */
    DTI_TRY(dti_store_average(s));
    dti_store_averaged(s, (uint32_t)index, s->steps);
    return DT_OK;
}

/* All replicas of this process get it; other processes would not. */
DTI_PUBLIC(dt_store_write,
           (dt_store * s, int index, dt_value_kind kind, const void *data, size_t bytes), s,
           DTI_OF(dt_store), (s, index, kind, data, bytes)) {
    DTI_NEED(s->base, data);
    dti_store_place p;
    dt_result result =
        s->ranks ? dti_store_alone(s, "a write here does not reach other ranks' replicas; give the "
                                      "trainer .load, or dt_trainer_load a file")
                 : DT_OK;
    for (dt_store *at = s; at && !result; at = at->replica) {
        if (kind == DT_VALUE_AVERAGE)
            result = dti_store_average_write(at, index);
        if (!result)
            result = dti_store_locate(at, index, kind, bytes, &p);
        if (!result)
            result = p.in_array
                         ? dti_store_array_write(at, p.array, p.at, p.elements, data)
                         : at->device->backend->memory_write(p.memory, p.offset, data, bytes);
        if (result && at != s)
            dti_fail(s->base, result, "another replica: %s", at->base->error);
        at->written = true;
        dti_host_copy_stale(at);
        if (kind == DT_VALUE_GRADIENT)
            dti_store_rows_lost(at);
        if (!result && kind != DT_VALUE_GRADIENT) /* else there may be no such parameter */
            at->kept[index].bounded = 0;
    }
    return result;
}

/* ---- from store to store */

static dt_result dti_store_copy_check(const dt_store *from, const dt_store *to) {
    DTI_TRY(dti_check_forked(from->base));
    if (from->graph != to->graph)
        return dti_fail(from->base, DT_ERROR_INVALID,
                        "dt_store_copy: the stores have different graphs; create both from one");
    if (from->layout.dtype != to->layout.dtype)
        return dti_fail(from->base, DT_ERROR_UNSUPPORTED,
                        "dt_store_copy: .parameter_dtype is %s in one store and %s in the other; "
                        "use dt_store_read and dt_store_write",
                        dti_dtype_name(from->layout.dtype), dti_dtype_name(to->layout.dtype));
    if (from == to)
        return dti_fail(to->base, DT_ERROR_INVALID,
                        "dt_store_copy: from and to are the same store");
    dt_result result =
        dti_store_alone(to, "dt_store_copy cannot write to it; give the trainer .load");
    if (!result)
        result = dti_store_whole(from);
    if (result || !dti_store_open(to))
        return result;
    return dti_fail(to->base, DT_ERROR_INVALID,
                    "dt_store_copy: program '%s' of `to` has a step under way; end or cancel it "
                    "first",
                    dti_store_open(to)->code->label);
}

/* Stores of one graph have their parameters at the same places. */
static dt_result dti_store_copy_values(const dt_store *from, dt_store *to) {
    const dti_backend *f = from->device->backend, *t = to->device->backend;
    dti_memory *x = from->memories[DTI_ARENA_PARAM], *y = to->memories[DTI_ARENA_PARAM];
    const uint64_t bytes = dti_layout_bytes(&from->layout, from->layout.elements);
    if (!f->memory_copy)
        return t->memory_write(y, 0, f->memory_host(x), bytes);
    return t->memory_copy ? f->memory_copy(x, y, bytes)
                          : f->memory_read(x, 0, t->memory_host(y), bytes);
}

DTI_PUBLIC(dt_store_copy, (dt_store * from, dt_store *to), from, DTI_OF(dt_store), (from, to)) {
    DTI_NEED(from->base, to);
    dt_result result = dti_store_copy_check(from, to);
    if (!result)
        result = dti_store_finish_commit(from);
    if (!result)
        result = dti_store_copy_values(from, to);
    if (!result) {
        to->written = true;
        dti_store_unbound(to);
    }
    return result;
}

static dt_result dti_store_hash_range(dt_store *s, dti_arena arena, uint64_t offset, uint64_t bytes,
                                      uint64_t *hash) {
    char piece[1024]; /* callers may have little stack */
    for (uint64_t at = 0; at < bytes; at += sizeof piece) {
        uint64_t n = DTI_MIN(bytes - at, (uint64_t)sizeof piece);
        DTI_TRY(dti_store_backend(s, (int)arena)
                    ->memory_read(s->memories[arena], offset + at, piece, n));
        *hash = dti_hash64(*hash, piece, (size_t)n);
    }
    return DT_OK;
}

DTI_PUBLIC(dt_store_hash, (dt_store * s, uint64_t *hash), s, DTI_OF(dt_store), (s, hash)) {
    DTI_NEED(s->base, hash);
    *hash = DTI_HASH_START;
    DTI_TRY(dti_check_forked(s->base));
    DTI_TRY(dti_store_whole(s));
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        const dti_param *p = &s->layout.params[i];
        DTI_TRY(dti_store_hash_range(s, DTI_ARENA_PARAM, dti_layout_bytes(&s->layout, p->offset),
                                     dti_bytes(p->dtype, p->elements), hash));
    }
    return DT_OK;
}

/* Counts, then the moments in their order, wherever they are. */
static dt_result dti_store_hash_state(dt_store *s, uint64_t *hash) {
    const uint64_t t = DTI_WORD_BYTES * dti_state_t_offset(&s->layout); /* scratch before it */
    float piece[256];
    const bool stored = s->layout.state != DT_STATE_F32 && !s->layout.parted;
    const uint64_t end = dti_state_bytes(&s->layout, stored ? s->moments : 0);
    dt_result result = dti_store_hash_range(s, DTI_ARENA_STATE, t, end - t, hash);
    for (uint32_t m = 0; m < s->moments && !result && !stored && s->layout.state; m++)
        result = dti_stored_hash(s, m + 1, hash);
    for (uint32_t m = 0; m < s->moments && !s->layout.state; m++) {
        for (uint64_t at = 0; at < s->layout.elements && !result; at += DTI_COUNT(piece)) {
            const uint64_t n = DTI_MIN(s->layout.elements - at, (uint64_t)DTI_COUNT(piece));
            result = dti_store_array_read(s, m + 1, at, n, piece);
            if (!result)
                *hash = dti_hash64(*hash, piece, (size_t)dti_arena_bytes(n));
        }
    }
    return result;
}

DTI_PUBLIC(dt_store_state_hash, (dt_store * s, uint64_t *hash), s, DTI_OF(dt_store), (s, hash)) {
    DTI_NEED(s->base, hash);
    dt_result result = dt_store_hash(s, hash);
    return result || !s->memories[DTI_ARENA_STATE] ? result : dti_store_hash_state(s, hash);
}

/* ---- back to the beginning */

static uint8_t dti_store_optim(const dt_store *s, uint32_t param) {
    uint8_t kind = 0;
    for (const dt_program *p = s->programs; p; p = p->next) {
        if (p->code->has_optim && p->code->trained[param])
            kind = (uint8_t)p->code->optim.kind;
    }
    return kind;
}

static dt_result dti_store_forget(dt_store *s, const char zeros[DTI_STORE_PIECE]) {
    const uint64_t end = dti_store_state_bytes(s);
    dt_result result = DT_OK;
    for (uint64_t at = DTI_WORD_BYTES * dti_state_t_offset(&s->layout); at < end && !result;
         at += DTI_STORE_PIECE)
        result = dti_store_backend(s, DTI_ARENA_STATE)
                     ->memory_write(s->memories[DTI_ARENA_STATE], at, zeros,
                                    DTI_MIN(end - at, (uint64_t)DTI_STORE_PIECE));
    dti_store_unbound(s);
    s->summed = 0;
    for (uint32_t i = 0; i < s->layout.param_count && !result; i++) {
        s->kept[i].optim = dti_store_optim(s, i);
        s->kept[i].averaged = 0;
    }
    return result;
}

DTI_PUBLIC(dt_store_reset, (dt_store * s, dt_reset_kind kind), s, DTI_OF(dt_store), (s, kind)) {
    DTI_TRY(dti_check_forked(s->base));
    DTI_TRY(dti_store_alone(s, "the trainer has its optimizer; create a new trainer"));
    dt_result result = DT_OK;
    if ((unsigned)kind > DT_RESET_ALL)
        return dti_fail(s->base, DT_ERROR_INVALID, "dt_store_reset: kind %d is unknown", (int)kind);
    DTI_TRY(dti_store_idle(s));
    char *zeros = dti_alloc(s->base, DTI_STORE_PIECE);
    DTI_HAVE(zeros);
    if (kind == DT_RESET_ALL)
        result = dti_store_fill(s);
    if (!result && kind == DT_RESET_ALL)
        s->steps = 0;
    if (!result)
        result = dti_store_forget(s, zeros);
    dti_free(s->base, zeros);
    return result;
}
