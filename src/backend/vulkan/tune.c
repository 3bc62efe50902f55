/* Whether a fast variant, found right (qualify.c), is faster here than the portable one. What
 * memory that workgroups share is good for depends on how a device is built, which it does not
 * tell. Both run a launch of the size at which the variant is taken (.sample of the kernel's row),
 * in turns; the better one by the host's clock is used for all launches of its kind. No bit depends
 * on it. */

#ifndef DT_NO_VULKAN

#define DTI_VK_TUNE_LAUNCHES 16 /* timed as one: the host's part is small then */
#define DTI_VK_TUNE_ROUNDS 4
#define DTI_VK_TUNE_LONG_MS 20.0   /* a device that takes so long is not asked again */
#define DTI_VK_TUNE_TIMES 4        /* the portable one's time: more is given up */
#define DTI_VK_TUNE_LEAST_MS 0.001 /* of a launch: what takes less does nothing */

enum { DTI_VK_TUNE_ONE, DTI_VK_TUNE_ALL, DTI_VK_TUNE_SEGMENTS };

typedef struct dti_vk_tuning {
    dti_vk_device *device;
    uint32_t variants[2];
    dti_memory *memories[3];
    dti_trial trial;
    dti_place places[DTI_BINDINGS_MAX];
    dti_launch launches[1 + DTI_VK_TUNE_LAUNCHES];
    dti_exec *exec[2];
} dti_vk_tuning;

static dt_result dti_vk_time_run(dti_exec *exec, uint32_t variant, uint32_t segment, double *ms) {
    const uint64_t begin = dti_now_ns();
    (void)variant;
    dt_result result = dti_vk_exec_start(exec, segment, 1);
    if (!result)
        result = dti_vk_exec_wait(exec);
    *ms = (double)(dti_now_ns() - begin) * 1e-6;
    return result;
}

static dt_result dti_vk_tune_exec(dti_vk_tuning *t, int which) {
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
    dti_vk_forcing before;
    dti_vk_force(t->device, t->launches[0].kernel, t->variants[which], &before);
    dt_result result = dti_vk_exec_create(&t->device->head, &desc, &t->exec[which]);
    dti_vk_force_end(t->device, &before);
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
    for (int i = 0; i < 2 && !result; i++)
        result = dti_vk_tune_exec(t, i);
    return result;
}

static void dti_vk_tune_end(dti_vk_tuning *t) {
    for (int i = 0; i < 2; i++)
        if (t->exec[i])
            dti_vk_exec_destroy(t->exec[i]);
    for (int i = 0; i < 3; i++)
        if (t->memories[i])
            dti_vk_memory_destroy(t->memories[i]);
}

/* Both once. The first run of a pipeline is a driver's slowest, so it counts only where it is long,
 * which ends the matter. */
static dt_result dti_vk_tune_first(dti_vk_tuning *t, double ms[2], bool *is_long) {
    dt_result result = DT_OK;
    for (int i = 0; i < 2 && !result; i++)
        result = t->device->time_run(t->exec[i], t->variants[i], DTI_VK_TUNE_ONE, &ms[i]);
    *is_long = ms[0] > DTI_VK_TUNE_LONG_MS || ms[1] > DTI_VK_TUNE_LONG_MS;
    return result;
}

static dt_result dti_vk_tune_rounds(dti_vk_tuning *t, double ms[2]) {
    bool is_long;
    dt_result result = dti_vk_tune_first(t, ms, &is_long);
    const bool many = DTI_MAX(ms[0], ms[1]) * DTI_VK_TUNE_LAUNCHES <= DTI_VK_TUNE_LONG_MS;
    for (int run = 0; run < 2 * DTI_VK_TUNE_ROUNDS && !is_long && !result; run++) {
        double took;
        result = t->device->time_run(t->exec[run % 2], t->variants[run % 2],
                                     many ? DTI_VK_TUNE_ALL : DTI_VK_TUNE_ONE, &took);
        took /= many ? DTI_VK_TUNE_LAUNCHES : 1;
        ms[run % 2] = run < 2 ? took : DTI_MIN(ms[run % 2], took);
        if (run == 1 && ms[1] > DTI_VK_TUNE_TIMES * ms[0])
            break;
    }
    return result;
}

/* Of the portable variant and of this one, a launch; *timed: whether it has one to time. */
static dt_result dti_vk_tune(dti_vk_device *device, uint32_t kernel, uint32_t variant, double ms[2],
                             bool *timed) {
    const dti_kernel_info *info = dti_kernel_info_of(kernel);
    dti_vk_tuning t = {.device = device, .variants = {0, variant}};
    ms[0] = ms[1] = 0;
    *timed = info->sample && info->sample(variant, &t.trial);
    dt_result result = *timed ? dti_vk_tune_begin(&t) : DT_OK;
    if (!result && *timed)
        result = dti_vk_tune_rounds(&t, ms);
    dti_vk_tune_end(&t);
    return result;
}

static bool dti_vk_is_slow(const double ms[2]) {
    return ms[1] > ms[0] && ms[0] >= DTI_VK_TUNE_LEAST_MS;
}

#endif
