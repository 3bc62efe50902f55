/* Values that a store keeps in fewer bits, as floats or as stored. It may have a part of the
 * moments (ZeRO): whole blocks. */

/* Where a parameter's part of an array lies. */
typedef struct dti_stored_place {
    const dti_backend *backend;
    dti_memory *memory;
    uint64_t offset; /* in bytes */
    dt_state_dtype type;
} dti_stored_place;

static dti_stored_place dti_stored_place_of(const dt_store *s, uint32_t array, const dti_param *p) {
    const dti_layout *l = &s->layout;
    const int arena = array ? DTI_ARENA_STATE : DTI_ARENA_PARAM;
    dti_stored_place at = {.backend = dti_store_backend(s, arena), .memory = s->memories[arena]};
    if (array) {
        at.offset =
            DTI_WORD_BYTES * (dti_state_moment_offset(l, array - 1) + dti_layout_state_at(l, p));
        at.type = dti_layout_state(l, p);
    } else {
        at.offset = dti_layout_bytes(l, p->offset);
        at.type = p->dtype == DT_BF16 ? DT_STATE_BF16 : DT_STATE_F32;
    }
    return at;
}

static dt_result dti_stored_here(const dt_store *s, const dti_device *device) {
    const bool param = s->layout.dtype != DT_F32;
    if (!dti_layout_is_stored(&s->layout) || device->info.kind == DT_DEVICE_CPU)
        return DT_OK;
    return dti_fail(s->base, DT_ERROR_UNSUPPORTED,
                    "%s: device %s has no kernels for it; give the device \"cpu\", or leave %s "
                    "out",
                    param ? ".parameter_dtype = DT_BF16" : ".optim->state_dtype", device->info.id,
                    param ? ".parameter_dtype" : ".state_dtype");
}

static dt_result dti_store_set_state(dt_store *s, dt_state_dtype state, const char *who) {
    static const char *const names[] = {"DT_STATE_F32", "DT_STATE_BF16", "DT_STATE_8BIT"};
    if (state == s->layout.state || (unsigned)state >= DTI_COUNT(names))
        return DT_OK;
    if (s->memories[DTI_ARENA_STATE])
        return dti_fail(s->base, DT_ERROR_INVALID,
                        "%s: .state_dtype is %s, and the store's moments are %s already; give the "
                        "same, or use another store",
                        who, names[state], names[s->layout.state]);
    dti_layout_set_state(&s->layout, state);
    const dt_result result = dti_stored_here(s, s->device);
    if (result)
        dti_layout_set_state(&s->layout, DT_STATE_F32);
    return result;
}

/* ---- as they are stored */

static dt_state_dtype dti_stored_type(const dt_store *s, uint32_t array, const dti_param *p) {
    return dti_stored_place_of(s, array, p).type;
}

static dt_result dti_stored_raw(dt_store *s, uint32_t array, const dti_param *p, uint64_t at,
                                void *data, uint64_t bytes, bool write) {
    const dti_stored_place from = dti_stored_place_of(s, array, p);
    return write ? from.backend->memory_write(from.memory, from.offset + at, data, bytes)
                 : from.backend->memory_read(from.memory, from.offset + at, data, bytes);
}

/* ---- as floats */

/* Elements [at, at + n) of an array, as far as they are a parameter's. */
typedef struct dti_stored_run {
    dt_store *s;
    uint32_t array;
    dti_map8 map;
    float *data; /* element `at` */
    uint64_t at, n;
    bool write;
} dti_stored_run;

/* The store that has the block of an element: a further replica's may be read too. */
static const dt_store *dti_stored_owner(const dti_stored_run *r, uint64_t element) {
    const dt_store *s = r->s;
    while (s && r->array && (element < s->layout.own_begin || element >= s->layout.own_end))
        s = r->write ? NULL : s->replica;
    return s;
}

/* Block `number` of a parameter, as far as it is asked for. */
static dt_result dti_stored_block(const dti_stored_run *r, uint32_t param, uint64_t number) {
    const dti_param *all = &r->s->layout.params[param];
    const uint64_t first = all->offset + number * DTI_BLOCK;
    const uint64_t used = DTI_MIN(all->offset + all->elements - first, (uint64_t)DTI_BLOCK);
    const uint64_t begin = DTI_MAX(first, r->at), end = DTI_MIN(first + used, r->at + r->n);
    const dt_store *s = dti_stored_owner(r, first);
    uint32_t raw[DTI_BLOCK] = {0};
    float v[DTI_BLOCK];
    if (begin >= end)
        return DT_OK;
    if (!s)
        return r->write ? DT_OK : dti_state_elsewhere(r->s);
    const dti_isa_kernels *k = dti_cpu_kernels(s->device);
    const dti_stored_place p = dti_stored_place_of(s, r->array, &s->layout.params[param]);
    const uint64_t at = p.offset + number * DTI_WORD_BYTES * dti_stored_words(p.type);
    const uint64_t bytes = dti_stored_bytes(p.type, used);
    DTI_TRY(p.backend->memory_read(p.memory, at, raw, bytes));
    dti_stored_read(k, v, raw, (int64_t)used, p.type, &r->map);
    float *here = v + (begin - first), *there = r->data + (begin - r->at);
    memcpy(r->write ? here : there, r->write ? there : here, (size_t)(end - begin) * sizeof *v);
    if (!r->write)
        return DT_OK;
    dti_stored_write(k, raw, v, (int64_t)used, p.type, &r->map, NULL);
    return p.backend->memory_write(p.memory, at, raw, bytes);
}

static dt_result dti_stored_run_all(dti_stored_run *r) {
    const dti_layout *l = &r->s->layout;
    dti_map8_make(&r->map, r->array <= 1);
    for (uint32_t i = 0; i < l->param_count; i++) {
        const dti_param *p = &l->params[i];
        const uint64_t begin = DTI_MAX(p->offset, r->at);
        const uint64_t end = DTI_MIN(p->offset + p->elements, r->at + r->n);
        for (uint64_t k = begin / DTI_BLOCK; k * DTI_BLOCK < end; k++) /* parameters begin blocks */
            DTI_TRY(dti_stored_block(r, i, k - p->offset / DTI_BLOCK));
    }
    return DT_OK;
}

static dt_result dti_stored_values_read(dt_store *s, uint32_t array, uint64_t at, uint64_t n,
                                        float *data) {
    dti_stored_run r = {.s = s, .array = array, .data = data, .at = at, .n = n};
    memset(data, 0, (size_t)n * sizeof *data); /* padding */
    return dti_stored_run_all(&r);
}

static dt_result dti_stored_values_write(dt_store *s, uint32_t array, uint64_t at, uint64_t n,
                                         const float *data) {
    dti_stored_run r = {
        .s = s, .array = array, .data = (float *)(uintptr_t)data, .at = at, .n = n, .write = true};
    return dti_stored_run_all(&r);
}

static dt_result dti_stored_hash(dt_store *s, uint32_t array, uint64_t *hash) {
    for (uint32_t i = s->layout.param_count; i-- > 0;) {
        const dti_param *p = &s->layout.params[i];
        for (uint64_t at = 0; at < p->elements; at += DTI_BLOCK) {
            const uint64_t used = DTI_MIN(p->elements - at, (uint64_t)DTI_BLOCK);
            uint16_t half[DTI_BLOCK] = {0};
            float v[DTI_BLOCK];
            DTI_TRY(dti_stored_values_read(s, array, p->offset + at, used, v));
            for (uint64_t k = 0; k < used; k++)
                half[k] = dti_bf16_from_f32(v[k]);
            *hash = dti_hash64(*hash, half, sizeof half);
        }
    }
    return DT_OK;
}
