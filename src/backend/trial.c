/* See trial.h. */

#define DTI_TRIAL_NAN 0x7fc0beefu /* between operands; not a bit pattern that kernels make */

static uint64_t dti_trial_words(const dti_trial_operand *o) {
    return o->front + (uint64_t)o->rows * o->pitch + o->front;
}

/* An operand that is not used repeats the first one. */
static void dti_trials_place(dti_trials *t, uint32_t number) {
    const dti_trial *trial = &t->list[number];
    dti_launch *launch = &t->launches[number];
    *launch = trial->launch;
    for (uint32_t i = 0; i < DTI_BINDINGS_MAX; i++) {
        dti_place *place = &t->places[number * DTI_BINDINGS_MAX + i];
        if (!trial->operand[i].rows) {
            *place = t->places[number * DTI_BINDINGS_MAX];
        } else {
            *place = (dti_place){.offset = t->bytes,
                                 .bytes = DTI_WORD_BYTES * dti_trial_words(&trial->operand[i])};
            t->bytes += place->bytes;
            t->bytes += DTI_PLACE_ALIGN - t->bytes % DTI_PLACE_ALIGN; /* never without a gap */
        }
        launch->value[i] = number * DTI_BINDINGS_MAX + i;
    }
}

static dt_result dti_trials_make(dti_base *base, bool (*trial)(uint32_t, dti_trial *),
                                 dti_trials *out) {
    dti_trials t = {.base = base};
    for (dti_trial one; trial && trial(t.count, &one);)
        t.count++;
    t.list = dti_alloc_array(base, t.count + 1u, sizeof *t.list);
    t.launches = dti_alloc_array(base, t.count + 1u, sizeof *t.launches);
    t.places = dti_alloc_array(base, (t.count + 1u) * DTI_BINDINGS_MAX, sizeof *t.places);
    const bool room = t.list && t.launches && t.places;
    for (uint32_t i = 0; room && i < t.count; i++) {
        trial(i, &t.list[i]);
        dti_trials_place(&t, i);
    }
    *out = t;
    if (!room)
        dti_trials_destroy(out);
    return room ? DT_OK : DT_ERROR_MEMORY;
}

static void dti_trials_destroy(dti_trials *t) {
    DTI_FREE(t->base, t->places, t->launches, t->list);
    *t = (dti_trials){.base = t->base};
}

static uint32_t dti_trials_find(const dti_trials *t, uint64_t word) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < t->count * DTI_BINDINGS_MAX; i++)
        if (t->places[i].offset <= word * DTI_WORD_BYTES &&
            t->places[i].offset >= t->places[found].offset)
            found = i;
    return found / DTI_BINDINGS_MAX;
}

/* A float; of bf16 twice its upper half. */
static uint32_t dti_trial_value(uint32_t *seed, dti_trial_data data, dt_dtype dtype) {
    *seed = *seed * 1664525u + 1013904223u;
    const uint32_t random = *seed >> 8;
    const float value = data == DTI_TRIAL_WHOLE ? (float)((int32_t)(random % 9) - 4)
                                                : (float)random * 0x1p-23f - 1.0f;
    const uint32_t bits = dti_bits_from_f32(value);
    return dtype == DT_BF16 ? (bits & 0xffff0000u) | bits >> 16 : bits;
}

/* Memory that a kernel may read gets values; memory that it only writes is NaN, like everything
 * around. */
static void dti_trials_fill(const dti_trials *t, dti_trial_data data, uint32_t *memory) {
    uint32_t seed = 1;
    for (uint64_t i = 0; i < t->bytes / DTI_WORD_BYTES; i++)
        memory[i] = DTI_TRIAL_NAN;
    for (uint32_t i = 0; i < t->count * DTI_BINDINGS_MAX; i++) {
        const dti_trial *trial = &t->list[i / DTI_BINDINGS_MAX];
        const dti_trial_operand *o = &trial->operand[i % DTI_BINDINGS_MAX];
        const char *access = dti_kernel_info_of(trial->launch.kernel)->access;
        uint32_t *at = memory + t->places[i].offset / DTI_WORD_BYTES + o->front;
        const dt_dtype dtype = (dt_dtype)trial->launch.dtype[i % DTI_BINDINGS_MAX];
        if (!o->rows || access[i % DTI_BINDINGS_MAX] == 'w') /* no letter where nothing is bound */
            continue;
        for (uint32_t row = 0; row < o->rows; row++, at += o->pitch)
            for (uint32_t col = 0; col < o->cols; col++)
                at[col] = dti_trial_value(&seed, data, dtype);
    }
}

static dt_result dti_trials_start(const dti_trials *t, dti_device *device,
                                  dti_memory *const memories[3], uint32_t *memory) {
    const dti_backend *b = device->backend;
    const dti_segment segment = {.count = t->count};
    const dti_exec_desc desc = {.label = "checking a kernel",
                                .memories = memories,
                                .memory_count = 3,
                                .places = t->places,
                                .place_count = t->count * DTI_BINDINGS_MAX,
                                .launches = t->launches,
                                .launch_count = t->count,
                                .segments = &segment,
                                .segment_count = 1,
                                .in = 1,
                                .out = 2};
    dti_exec *exec = NULL;
    dt_result result = b->memory_write(memories[0], 0, memory, t->bytes);
    if (!result)
        result = b->exec_create(device, &desc, &exec);
    if (!result)
        result = b->exec_start(exec, 0, 1);
    if (!result)
        result = b->exec_wait(exec);
    if (exec)
        b->exec_destroy(exec);
    return result ? result : b->memory_read(memories[0], 0, memory, t->bytes);
}

static dt_result dti_trials_run(const dti_trials *t, dti_device *device, dti_trial_data data,
                                uint32_t *memory) {
    static const dti_memory_kind kinds[3] = {DTI_MEMORY_DEVICE, DTI_MEMORY_IN, DTI_MEMORY_OUT};
    const dti_backend *b = device->backend;
    dti_memory *memories[3] = {NULL};
    dt_result result = DT_OK;
    for (int i = 0; i < 3 && !result; i++)
        result = b->memory_create(device, i ? DTI_WORD_BYTES * DTI_STATUS_WORDS : t->bytes,
                                  kinds[i], &memories[i]);
    dti_trials_fill(t, data, memory);
    if (!result)
        result = dti_trials_start(t, device, memories, memory);
    for (int i = 0; i < 3; i++)
        if (memories[i])
            b->memory_destroy(memories[i]);
    return result;
}
