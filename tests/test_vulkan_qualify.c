/* Fast kernels are checked where they run: on each driver the right ones are kept, a broken one is
 * struck, and the portable one runs in its place. Included by main.c, after test_vulkan.c. */

#ifndef DT_NO_VULKAN

/* Another zero in each of its modules' constants: what lies outside of a matrix then counts. */
static dti_PFN_vkCreateShaderModule qualify_real_create;
static uint32_t qualify_broken_words; /* of the module to break */

static void qualify_break(uint32_t *words, size_t count) {
    uint32_t float_type = 0;
    for (size_t at = 5; at < count; at += words[at] >> 16 ? words[at] >> 16 : 1) {
        const uint32_t op = words[at] & 0xffffu;
        if (op == 22 && words[at + 2] == 32) /* OpTypeFloat */
            float_type = words[at + 1];
        if (op == 43 && words[at + 1] == float_type && words[at + 3] == 0) /* OpConstant */
            words[at + 3] = 0x3f800000;
    }
}

static dti_VkResult DTI_VKAPI qualify_create(dti_VkDevice device,
                                             const dti_VkShaderModuleCreateInfo *info,
                                             const void *allocator, void *module) {
    dti_VkShaderModuleCreateInfo broken = *info;
    uint32_t *words = malloc(info->codeSize);
    memcpy(words, info->pCode, info->codeSize);
    if (info->codeSize == DTI_WORD_BYTES * (size_t)qualify_broken_words)
        qualify_break(words, info->codeSize / DTI_WORD_BYTES);
    broken.pCode = words;
    dti_VkResult result = qualify_real_create(device, &broken, allocator, module);
    free(words);
    return result;
}

/* A software driver that is taken for a GPU, so that it is given the fast variants. */
static dti_vk_device *qualify_as_gpu(vulkan_rig *rig) {
    dti_vk_device *device = (dti_vk_device *)rig->device;
    device->head.info.kind = DT_DEVICE_DISCRETE;
    return device;
}

static void qualify_break_gemm(dti_vk_device *device) {
    qualify_broken_words = dti_vk_shader_of(DTI_K_GEMM, DTI_GEMM_32X32)->word_count;
    if (device->head.info.has_float_controls)
        qualify_broken_words += DTI_VK_PRESERVE_WORDS;
    qualify_real_create = device->vk.CreateShaderModule;
    device->vk.CreateShaderModule = qualify_create;
}

/* A clock that says what a test wants. */
static struct tune_clock {
    double portable, first,
        then; /* milliseconds of a launch; the variant's first, and those after */
    int runs; /* of the variant */
} tune_clock;

static dt_result tune_time(dti_exec *exec, uint32_t variant, uint32_t segment, double *ms) {
    (void)exec;
    *ms = segment == DTI_VK_TUNE_ALL ? DTI_VK_TUNE_LAUNCHES : 1;
    if (variant)
        *ms *= tune_clock.runs++ ? tune_clock.then : tune_clock.first;
    else
        *ms *= tune_clock.portable;
    return DT_OK;
}

/* On a driver that runs them, which all here do, every fast variant is right. */
static void qualify_try_all(vulkan_rig *rig) {
    dti_vk_device *device = qualify_as_gpu(rig);
    const bool all = getenv("DTRAIN_TEST_LONG") != NULL;
    if (!all && !vulkan_is_quick(rig))
        return;
    for (size_t i = 0; i < DTI_COUNT(dti_vk_shaders); i++) {
        const dti_vk_shader *shader = &dti_vk_shaders[i];
        dti_vk_finding finding;
        if (!shader->variant || (!all && shader->variant > 1))
            continue;
        CHECK(dti_vk_compare(device, shader->kernel, shader->variant, &finding) == DT_OK);
        test_check(finding.same && finding.launches > 0, __FILE__, __LINE__,
                   "%s: launch %u is 0x%08x, not 0x%08x", shader->name, finding.number, finding.is,
                   finding.should);
    }
}

TEST(every_fast_variant_leaves_the_bits_of_the_portable_one) {
    const int count = vulkan_device_count();
    for (int i = 0; i < count; i++) {
        vulkan_rig rig;
        if (vulkan_rig_open(&rig, i, (dti_vk_options){0}))
            qualify_try_all(&rig);
        vulkan_rig_close(&rig);
    }
    if (!count)
        SKIP("no Vulkan driver");
}

TEST(every_kernel_with_a_fast_variant_has_launches_that_check_it) {
    for (size_t i = 0; i < DTI_COUNT(dti_vk_shaders); i++) {
        const dti_vk_shader *shader = &dti_vk_shaders[i];
        CHECK(shader->variant < DTI_VK_VARIANTS_MAX);
        CHECK(!shader->variant || dti_kernel_info_of(shader->kernel)->trial);
    }
}

/* Launches that ask for the variant, which is broken, leave what the portable one does. */
static void qualify_try_launches(vulkan_rig *rig) {
    dti_trials trials;
    CHECK(dti_trials_create(&rig->base, DTI_K_GEMM, &trials) == DT_OK);
    uint32_t *memory = malloc(2 * (size_t)trials.bytes), *portable = memory + trials.bytes / 4;
    CHECK(dti_trials_run(&trials, rig->device, DTI_TRIAL_FLOATS, memory) == DT_OK);
    rig->in->options.no_fast = true;
    CHECK(dti_trials_run(&trials, rig->device, DTI_TRIAL_FLOATS, portable) == DT_OK);
    CHECK(!memcmp(memory, portable, trials.bytes));
    free(memory);
    dti_trials_destroy(&trials);
}

static uint8_t *qualify_verdict(dti_vk_device *device) {
    return &device->verdicts[DTI_K_GEMM][DTI_GEMM_32X32];
}

/* Opens the device once more, with what the first one has written. */
static void qualify_open_again(const void *blob, size_t bytes, dt_kernel_check check,
                               dti_vk_verdict want) {
    vulkan_rig rig;
    const dti_vk_options options = {.cache = blob, .cache_bytes = bytes, .kernel_check = check};
    if (vulkan_rig_open(&rig, vulkan_quick_device(), options)) {
        const dti_vk_verdict is = *qualify_verdict((dti_vk_device *)rig.device);
        test_check(is == want, __FILE__, __LINE__, "verdict %d, not %d", is, want);
    }
    vulkan_rig_close(&rig);
}

static char *qualify_export(vulkan_rig *rig, size_t *bytes) {
    CHECK(dti_vk_cache_export(rig->in, NULL, bytes) == DT_OK);
    char *blob = malloc(*bytes);
    CHECK(dti_vk_cache_export(rig->in, blob, bytes) == DT_OK);
    return blob;
}

/* The quick device, or the test skips. */
#define OPEN_QUICK(rig)                                                                            \
    do {                                                                                           \
        if (!vulkan_rig_open(&(rig), vulkan_quick_device(), (dti_vk_options){0})) {                \
            vulkan_rig_close(&(rig));                                                              \
            SKIP("no Vulkan driver");                                                              \
        }                                                                                          \
    } while (0)

TEST(a_fast_variant_that_computes_wrong_values_is_struck_named_and_remembered) {
    vulkan_rig rig;
    OPEN_QUICK(rig);
    dti_vk_device *device = qualify_as_gpu(&rig);
    qualify_break_gemm(device);
    device->time_run = tune_time;
    tune_clock = (struct tune_clock){.portable = 1};
    CHECK(dti_vk_allowed(device, DTI_K_GEMM, DTI_GEMM_32X32) == DTI_GEMM_IN_REGISTERS);
    CHECK(*qualify_verdict(device) == DTI_VK_STRUCK);
    CHECK_CONTAINS(rig.log.last, "gemm_tile");
    CHECK_CONTAINS(rig.log.last, "whole numbers");
    qualify_try_launches(&rig);
    CHECK(rig.log.warnings == 1); /* once */
    rig.in->options.kernel_check = DT_KERNEL_CHECK_NEVER;
    CHECK(dti_vk_allowed(device, DTI_K_GEMM, DTI_GEMM_32X32) == DTI_GEMM_32X32);
    size_t bytes;
    char *blob = qualify_export(&rig, &bytes);
    vulkan_rig_close(&rig);
    qualify_open_again(blob, bytes, DT_KERNEL_CHECK_ONCE, DTI_VK_STRUCK);
    qualify_open_again(blob, bytes, DT_KERNEL_CHECK_ALWAYS, DTI_VK_UNCHECKED);
    blob[bytes - 1] ^= 1; /* of the verdict: a damaged one says nothing */
    qualify_open_again(blob, bytes, DT_KERNEL_CHECK_ONCE, DTI_VK_UNCHECKED);
    free(blob);
}

/* ---- Right and slow -------------------------------------------------------------------------- */

TEST(a_fast_variant_is_timed_by_a_launch_that_takes_it) {
    const dti_grid_device gpu = {.invocations_max = 256, .shared_bytes = 32768};
    const dti_grid_device software = {
        .invocations_max = 256, .shared_bytes = 32768, .software = true};
    int timed = 0;
    for (size_t i = 0; i < DTI_COUNT(dti_vk_shaders); i++) {
        const dti_vk_shader *s = &dti_vk_shaders[i];
        dti_trial t;
        if (!s->variant)
            continue;
        REQUIRE(dti_kernel_info_of(s->kernel)->sample);
        if (!dti_kernel_info_of(s->kernel)->sample(s->variant, &t))
            continue;
        timed++;
        test_check(dti_vk_grid_variant(&t.launch, &gpu) == s->variant, __FILE__, __LINE__,
                   "%s %u: variant %u takes it", s->name, s->variant,
                   dti_vk_grid_variant(&t.launch, &gpu));
        CHECK(dti_vk_grid_variant(&t.launch, &software) == 0); /* without a question */
    }
    CHECK(timed == 18);
}

/* What the clock says is done: a little slower is slower, and a long one is not run twice. */
TEST(the_faster_of_two_right_variants_is_found_by_the_clock) {
    static const struct {
        struct tune_clock clock;
        bool slow;
        int runs;
    } cases[] = {{{1, 1.2, 0.9, 0}, false, 5},     {{1, 0.5, 1.1, 0}, true, 5},
                 {{1, 1, 4.5, 0}, true, 2},        {{1, 21, 0, 0}, true, 1},
                 {{30, 25, 99, 0}, false, 1},      {{5, 5, 4, 0}, false, 5},
                 {{0.0005, 0, 0.001, 0}, false, 5}};
    vulkan_rig rig;
    OPEN_QUICK(rig);
    dti_vk_device *device = qualify_as_gpu(&rig);
    device->time_run = tune_time;
    for (size_t i = 0; i < DTI_COUNT(cases); i++) {
        double ms[2];
        bool timed;
        tune_clock = cases[i].clock;
        CHECK(dti_vk_tune(device, DTI_K_GEMM, DTI_GEMM_NARROW, ms, &timed) == DT_OK && timed);
        test_check(dti_vk_is_slow(ms) == cases[i].slow && tune_clock.runs == cases[i].runs,
                   __FILE__, __LINE__, "case %zu: %g ms against %g, %d runs", i, ms[1], ms[0],
                   tune_clock.runs);
    }
    vulkan_rig_close(&rig);
}

/* A part of the blob that says what was found, of another version or of another driver. */
static void tune_try_others(char *blob, size_t bytes, size_t at, uint8_t flip) {
    blob[at] ^= (char)flip;
    qualify_open_again(blob, bytes, DT_KERNEL_CHECK_ONCE, DTI_VK_UNCHECKED);
    blob[at] ^= (char)flip;
}

TEST(a_variant_that_is_right_and_slow_is_not_used_here_or_in_a_later_run) {
    vulkan_rig rig;
    OPEN_QUICK(rig);
    dti_vk_device *device = qualify_as_gpu(&rig);
    device->time_run = tune_time;
    tune_clock = (struct tune_clock){.portable = 1, .first = 1, .then = 2};
    CHECK(dti_vk_allowed(device, DTI_K_GEMM, DTI_GEMM_32X32) == DTI_GEMM_IN_REGISTERS);
    CHECK(*qualify_verdict(device) == DTI_VK_SLOW);
    const int runs = tune_clock.runs;
    CHECK(dti_vk_allowed(device, DTI_K_GEMM, DTI_GEMM_32X32) == DTI_GEMM_IN_REGISTERS);
    CHECK(tune_clock.runs == runs && runs > 0 && rig.log.warnings == 0);
    size_t bytes;
    char *blob = qualify_export(&rig, &bytes);
    vulkan_rig_close(&rig);
    const size_t part = bytes - sizeof(dti_vk_judged) - sizeof(dti_vk_cache_header);
    const dti_vk_judged *judged = (const dti_vk_judged *)(blob + bytes) - 1;
    CHECK(judged->verdict == DTI_VK_SLOW);
    qualify_open_again(blob, bytes, DT_KERNEL_CHECK_ONCE, DTI_VK_SLOW);
    qualify_open_again(blob, bytes, DT_KERNEL_CHECK_ALWAYS, DTI_VK_UNCHECKED);
    tune_try_others(blob, bytes, part + 6, '2' ^ '1'); /* its version */
    tune_try_others(blob, bytes, part + offsetof(dti_vk_cache_header, identity), 1);
    tune_try_others(blob, bytes, bytes - sizeof *judged, 1); /* damaged */
    free(blob);
}

#endif
