/* Finds the fastest variant here for the launches that a variant is meant for: that one, its
 * rivals, or the portable one. How fast shared memory is, and how many registers an invocation may
 * have, depends on the device's design. It does not report that. All run a launch of the size at
 * which the variant is taken (.sample of the kernel's row), in turns, by the host's clock. No bit
 * depends on the winner, because only correct variants may win (qualify.c). */

#define DTI_VK_TUNE_LAUNCHES 16 /* timed as one: the host's part is small then */
#define DTI_VK_TUNE_ROUNDS 4
#define DTI_VK_TUNE_LONG_MS 20.0   /* a device that takes so long is not asked again */
#define DTI_VK_TUNE_TIMES 4        /* the fastest one's time: more is given up */
#define DTI_VK_TUNE_LEAST_MS 0.001 /* of a launch: shorter ones did nothing */

enum { DTI_VK_TUNE_ONE, DTI_VK_TUNE_ALL, DTI_VK_TUNE_SEGMENTS };

typedef struct dti_vk_tuning {
    dti_vk_device *device;
    dti_vk_race *race;
    dti_memory *memories[3];
    dti_trial trial;
    dti_place places[DTI_BINDINGS_MAX];
    dti_launch launches[1 + DTI_VK_TUNE_LAUNCHES];
    dti_exec *exec[DTI_VK_VARIANTS_MAX];
    bool gone[DTI_VK_VARIANTS_MAX]; /* of variants in the race */
} dti_vk_tuning;

static dt_result dti_vk_time_run(dti_exec *exec, uint32_t variant, uint32_t segment, double *ms) {
    const uint64_t begin = dti_now_ns();
    dt_result result = dti_vk_exec_start(exec, segment, 1);
    if (!result)
        result = dti_vk_exec_wait(exec);
    *ms = (double)(dti_now_ns() - begin) * 1e-6;
    return result;
}

/* The variant itself, its rivals, the portable one: as far as they fit and were not found wrong. */
static void dti_vk_tune_enter(dti_vk_tuning *t, uint32_t kernel, uint32_t variant) {
    const uint32_t all = dti_kernel_info_of(kernel)->rivals[variant];
    dti_vk_race *race = t->race;
    const uint8_t *verdicts = t->device->verdicts[kernel];
    if (verdicts[variant] != DTI_VK_STRUCK)
        race->variant[race->count++] = variant;
    for (uint32_t v = 1; v < DTI_VK_VARIANTS_MAX; v++)
        if (all >> v & 1 && dti_vk_fits(t->device, kernel, v) && verdicts[v] != DTI_VK_STRUCK)
            race->variant[race->count++] = v;
    race->variant[race->count++] = 0;
}

static dt_result dti_vk_tune_exec(dti_vk_tuning *t, uint32_t which) {
    static const dti_segment segments[DTI_VK_TUNE_SEGMENTS] = {
        [DTI_VK_TUNE_ONE] = {.count = 1},
        [DTI_VK_TUNE_ALL] = {.first = 1, .count = DTI_VK_TUNE_LAUNCHES}};
    const dti_exec_desc desc = {.label = "timing a kernel",
                                .memories = t->memories,
                                .memory_count = 3,
                                .places = t->places,
                                .place_count = DTI_BINDINGS_MAX,
                                .launches = t->launches,
                                .launch_count = DTI_COUNT(t->launches),
                                .segments = segments,
                                .segment_count = DTI_VK_TUNE_SEGMENTS,
                                .in = 1,
                                .out = 2};
    const dti_vk_forcing before = t->device->forcing;
    t->device->forcing = (dti_vk_forcing){true, t->launches[0].kernel, t->race->variant[which]};
    dt_result result = dti_vk_exec_create(&t->device->head, &desc, &t->exec[which]);
    t->device->forcing = before;
    return result;
}

/* Variants that the driver cannot compile, or not without spills, leave the race. */
static dt_result dti_vk_tune_execs(dti_vk_tuning *t, uint32_t kernel) {
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < t->race->count && !result; i++) {
        const uint32_t variant = t->race->variant[i];
        result = dti_vk_tune_exec(t, i);
        if (!variant ||
            (result ? result != DT_ERROR_DEVICE : dti_vk_fits(t->device, kernel, variant)))
            continue;
        if (result)
            dti_vk_strike(t->device, dti_vk_shader_of(kernel, variant), NULL);
        t->gone[i] = true;
        t->race->ms[i] = DTI_VK_TUNE_NEVER;
        result = DT_OK;
    }
    return result;
}

static dt_result dti_vk_tune_begin(dti_vk_tuning *t) {
    static const dti_memory_kind kinds[3] = {DTI_MEMORY_DEVICE, DTI_MEMORY_IN, DTI_MEMORY_OUT};
    dti_trials trials = {
        .count = 1, .list = &t->trial, .launches = t->launches, .places = t->places};
    dt_result result = DT_OK;
    dti_trials_place(&trials, 0);
    for (size_t i = 1; i < DTI_COUNT(t->launches); i++)
        t->launches[i] = t->launches[0];
    for (int i = 0; i < 3 && !result; i++)
        result = dti_vk_memory_create(&t->device->head,
                                      i ? DTI_WORD_BYTES * DTI_STATUS_WORDS : trials.bytes,
                                      kinds[i], &t->memories[i]);
    return result ? result : dti_vk_tune_execs(t, t->launches[0].kernel);
}

static void dti_vk_tune_end(dti_vk_tuning *t) {
    for (uint32_t i = 0; i < t->race->count; i++)
        if (t->exec[i])
            dti_vk_exec_destroy(t->exec[i]);
    for (int i = 0; i < 3; i++)
        if (t->memories[i])
            dti_vk_memory_destroy(t->memories[i]);
}

/* Times each variant that is still in the race once; a segment is `launches` launches. */
static dt_result dti_vk_tune_round(dti_vk_tuning *t, uint32_t segment, int launches, bool first) {
    dti_vk_race *race = t->race;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < race->count && !result; i++) {
        double took = 0;
        if (t->gone[i])
            continue;
        result = t->device->time_run(t->exec[i], race->variant[i], segment, &took);
        took /= launches;
        race->ms[i] = first ? took : DTI_MIN(race->ms[i], took);
    }
    return result;
}

static double dti_vk_tune_extreme(const dti_vk_tuning *t, bool longest) {
    double found = 0;
    bool any = false;
    for (uint32_t i = 0; i < t->race->count; i++) {
        const double ms = t->race->ms[i];
        if (t->gone[i] || (any && longest != (ms > found)))
            continue;
        found = ms;
        any = true;
    }
    return found;
}

/* Removes the variants that are far slower. Returns the number left. */
static uint32_t dti_vk_tune_drop(dti_vk_tuning *t) {
    const double most = DTI_VK_TUNE_TIMES * dti_vk_tune_extreme(t, false);
    uint32_t left = 0;
    for (uint32_t i = 0; i < t->race->count; i++) {
        t->gone[i] = t->gone[i] || t->race->ms[i] > most;
        left += !t->gone[i];
    }
    return left;
}

/* A pipeline's first run is a driver's slowest. It counts only if it is long, which ends the
 * race. */
static dt_result dti_vk_tune_rounds(dti_vk_tuning *t) {
    dt_result result = dti_vk_tune_round(t, DTI_VK_TUNE_ONE, 1, true);
    const double longest = dti_vk_tune_extreme(t, true);
    const bool many = longest * DTI_VK_TUNE_LAUNCHES <= DTI_VK_TUNE_LONG_MS;
    if (longest > DTI_VK_TUNE_LONG_MS)
        return result;
    uint32_t left = t->race->count;
    for (int round = 0; round < DTI_VK_TUNE_ROUNDS && left > 1 && !result; round++) {
        result = dti_vk_tune_round(t, many ? DTI_VK_TUNE_ALL : DTI_VK_TUNE_ONE,
                                   many ? DTI_VK_TUNE_LAUNCHES : 1, !round);
        left = dti_vk_tune_drop(t);
    }
    return result;
}

/* The fastest first; equal ones keep their order. */
static void dti_vk_tune_sort(dti_vk_race *r) {
    for (uint32_t i = 1; i < r->count; i++)
        for (uint32_t k = i; k > 0 && r->ms[k] < r->ms[k - 1]; k--) {
            const double ms = r->ms[k];
            const uint32_t variant = r->variant[k];
            r->ms[k] = r->ms[k - 1], r->ms[k - 1] = ms;
            r->variant[k] = r->variant[k - 1], r->variant[k - 1] = variant;
        }
}

static dt_result dti_vk_tune(dti_vk_device *device, uint32_t kernel, uint32_t variant,
                             dti_vk_race *race) {
    const dti_kernel_info *info = dti_kernel_info_of(kernel);
    dti_vk_tuning t = {
        .device = device, .race = race, .trial = {.launch = {.kernel = (uint16_t)kernel}}};
    *race = (dti_vk_race){0};
    if (!info->sample || !info->sample(variant, &t.trial))
        return DT_OK;
    dti_vk_tune_enter(&t, kernel, variant);
    if (race->count == 1) /* the portable one alone is left */
        return DT_OK;
    dt_result result = dti_vk_tune_begin(&t);
    if (!result)
        result = dti_vk_tune_rounds(&t);
    if (!result && dti_vk_tune_extreme(&t, false) >= DTI_VK_TUNE_LEAST_MS)
        dti_vk_tune_sort(race);
    dti_vk_tune_end(&t);
    return result;
}
