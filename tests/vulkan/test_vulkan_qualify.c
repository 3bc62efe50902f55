/* Fast kernels are checked where they run. On each driver the right ones are kept. A wrong one is
 * not used, and the portable one runs in its place. Included by main.c, after test_vulkan.c. */

#ifndef DT_NO_VULKAN

/* Another zero in each of its modules' constants: what lies outside of a matrix then counts. */
static dti_PFN_vkCreateShaderModule qualify_real_create;
static uint32_t qualify_broken; /* the module to break, by its bound, which no constant changes */

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
    if (words[3] == qualify_broken)
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
    uint32_t *words;
    REQUIRE(dti_vk_shader_words(device->head.base, dti_vk_shader_of(DTI_K_GEMM, DTI_GEMM_32X32),
                                &words) == DT_OK);
    qualify_broken = words[3];
    dti_free(device->head.base, words);
    qualify_real_create = device->vk.CreateShaderModule;
    device->vk.CreateShaderModule = qualify_create;
}

/* A clock that says what a test wants, of each variant. */
static struct tune_clock {
    double first[DTI_VK_VARIANTS_MAX]; /* milliseconds of the first launch */
    double then[DTI_VK_VARIANTS_MAX];  /* of those after */
    int runs[DTI_VK_VARIANTS_MAX];
} tune_clock;

static dt_result tune_time(dti_exec *exec, uint32_t variant, uint32_t segment, double *ms) {
    (void)exec;
    *ms = segment == DTI_VK_TUNE_ALL ? DTI_VK_TUNE_LAUNCHES : 1;
    *ms *= tune_clock.runs[variant]++ ? tune_clock.then[variant] : tune_clock.first[variant];
    return DT_OK;
}

/* All variants take so long, each time. */
static void tune_set(dti_vk_device *device, double ms) {
    device->time_run = tune_time;
    tune_clock = (struct tune_clock){0};
    for (int i = 0; i < DTI_VK_VARIANTS_MAX; i++)
        tune_clock.first[i] = tune_clock.then[i] = ms;
}

static void tune_set_one(uint32_t variant, double first, double then) {
    tune_clock.first[variant] = first;
    tune_clock.then[variant] = then;
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
    CHECK(dti_trials_make(&rig->base, dti_kernel_info_of(DTI_K_GEMM)->trial, &trials) == DT_OK);
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

/* The maker of the launches of that one, and 1. */
static uint8_t *qualify_chosen(dti_vk_device *device) {
    return &device->chosen[DTI_K_GEMM][DTI_GEMM_32X32];
}

static void qualify_open_choice(const void *blob, size_t bytes, dt_kernel_check check, int want) {
    vulkan_rig rig;
    const dti_vk_options options = {.cache = blob, .cache_bytes = bytes, .kernel_check = check};
    if (vulkan_rig_open(&rig, vulkan_quick_device(), options))
        CHECK(*qualify_chosen((dti_vk_device *)rig.device) == want);
    vulkan_rig_close(&rig);
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

static int qualify_warnings;

/* Since it was opened, which warns where the validation layer is not installed. */
static void qualify_warned(const vulkan_rig *rig, int times) {
    const int warnings = rig->log.warnings - qualify_warnings;
    test_check(warnings == times, __FILE__, __LINE__, "%d warnings, not %d; the last message: %s",
               warnings, times, rig->log.last);
}

/* The quick device, or the test skips. */
#define OPEN_QUICK(rig)                                                                            \
    do {                                                                                           \
        if (!vulkan_rig_open(&(rig), vulkan_quick_device(), (dti_vk_options){0})) {                \
            vulkan_rig_close(&(rig));                                                              \
            SKIP("no Vulkan driver");                                                              \
        }                                                                                          \
        qualify_warnings = (rig).log.warnings;                                                     \
    } while (0)

TEST(a_fast_variant_that_computes_wrong_values_is_named_and_not_used_again) {
    vulkan_rig rig;
    OPEN_QUICK(rig);
    dti_vk_device *device = qualify_as_gpu(&rig);
    qualify_break_gemm(device);
    tune_set(device, 1);
    CHECK(dti_vk_allowed(device, DTI_K_GEMM, DTI_GEMM_32X32) == DTI_GEMM_IN_REGISTERS);
    CHECK(*qualify_verdict(device) == DTI_VK_STRUCK);
    CHECK_CONTAINS(rig.log.last, "gemm_tile");
    CHECK_CONTAINS(rig.log.last, "whole numbers");
    qualify_try_launches(&rig);
    qualify_warned(&rig, 2); /* one for each tile, both of which could make the launch */
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
        dti_trial t = {.launch = {.kernel = (uint16_t)s->kernel}};
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
    CHECK(timed == 21);
}

/* What the clock says is done: a little slower is slower, and a long one is not run twice. */
TEST(the_faster_of_two_right_variants_is_found_by_the_clock) {
    enum { N = DTI_GEMM_NARROW };
    static const struct {
        double portable, first, then;
        bool slow;
        int runs;
    } cases[] = {{1, 1.2, 0.9, false, 5},     {1, 0.5, 1.1, true, 5}, {1, 1, 4.5, true, 2},
                 {1, 21, 0, true, 1},         {30, 25, 99, false, 1}, {5, 5, 4, false, 5},
                 {0.0005, 0, 0.001, false, 5}};
    vulkan_rig rig;
    OPEN_QUICK(rig);
    dti_vk_device *device = qualify_as_gpu(&rig);
    for (size_t i = 0; i < DTI_COUNT(cases); i++) {
        dti_vk_race race;
        tune_set(device, cases[i].portable);
        tune_set_one(N, cases[i].first, cases[i].then);
        REQUIRE(dti_vk_tune(device, DTI_K_GEMM, N, &race) == DT_OK && race.count == 2);
        test_check((race.variant[0] == 0) == cases[i].slow && tune_clock.runs[N] == cases[i].runs,
                   __FILE__, __LINE__, "case %zu: %u won, %d runs", i, race.variant[0],
                   tune_clock.runs[N]);
    }
    vulkan_rig_close(&rig);
}

/* A device that runs any workgroup, one that runs small ones, and one that has little shared
 * memory. Each gets the largest tile that fits, and not the portable variant. */
TEST(a_tile_that_is_too_large_for_a_device_is_replaced_by_a_smaller_one) {
    const dti_grid_device sizes[] = {{.invocations_max = 256, .shared_bytes = 32768},
                                     {.invocations_max = 128, .shared_bytes = 32768},
                                     {.invocations_max = 256, .shared_bytes = 16384},
                                     {.invocations_max = 256, .shared_bytes = 16383}};
    dti_launch l = {.kernel = DTI_K_GEMM, .items = 4096 * 4096};
    l.args.gemm = (dti_args_gemm){.m = 4096, .n = 4096, .k = 4096, .batch0 = 1, .batch1 = 1};
    CHECK(dti_vk_grid_variant(&l, &sizes[0]) == DTI_GEMM_128X128);
    CHECK(dti_vk_grid_variant(&l, &sizes[1]) == DTI_GEMM_64X64);
    CHECK(dti_vk_grid_variant(&l, &sizes[2]) == DTI_GEMM_64X64);
    CHECK(dti_vk_grid_variant(&l, &sizes[3]) == DTI_GEMM_32X64);
}

/* Every rival makes the launches of the tile, which may be larger than it or smaller. */
TEST(tiles_are_timed_against_each_other_and_the_fastest_that_is_right_is_used) {
    enum { TILE = DTI_GEMM_32X64, SMALL = DTI_GEMM_32X32, LARGE = DTI_GEMM_64X64 };
    vulkan_rig rig;
    OPEN_QUICK(rig);
    dti_vk_device *device = qualify_as_gpu(&rig);
    tune_set(device, 2);
    tune_set_one(LARGE, 9, 1); /* its first time is the driver's */
    CHECK(dti_vk_allowed(device, DTI_K_GEMM, TILE) == LARGE);
    CHECK(tune_clock.runs[TILE] && tune_clock.runs[SMALL] && tune_clock.runs[0]);
    CHECK(device->verdicts[DTI_K_GEMM][LARGE] == DTI_VK_GOOD);
    CHECK(!device->verdicts[DTI_K_GEMM][TILE]); /* nobody uses it */
    CHECK(dti_vk_allowed(device, DTI_K_GEMM, TILE) == LARGE && tune_clock.runs[LARGE] == 5);
    qualify_warned(&rig, 0);
    size_t bytes;
    char *blob = qualify_export(&rig, &bytes);
    vulkan_rig_close(&rig);
    /* and in a later run, without being asked */
    const dti_vk_options options = {.cache = blob, .cache_bytes = bytes};
    REQUIRE(vulkan_rig_open(&rig, vulkan_quick_device(), options));
    device = qualify_as_gpu(&rig);
    tune_set(device, 1);
    CHECK(dti_vk_allowed(device, DTI_K_GEMM, TILE) == LARGE && !tune_clock.runs[LARGE]);
    device->chosen[DTI_K_GEMM][TILE] = 0;
    device->verdicts[DTI_K_GEMM][LARGE] = DTI_VK_STRUCK; /* what is wrong is not asked */
    tune_set_one(SMALL, 1, 0.5);
    CHECK(dti_vk_allowed(device, DTI_K_GEMM, TILE) == SMALL && !tune_clock.runs[LARGE]);
    vulkan_rig_close(&rig);
    free(blob);
}

/* All of a module's tiles are broken with it: what is next by the clock is found wrong in turn. */
TEST(tiles_that_are_all_wrong_are_not_used) {
    vulkan_rig rig;
    OPEN_QUICK(rig);
    dti_vk_device *device = qualify_as_gpu(&rig);
    qualify_break_gemm(device);
    tune_set(device, 1);
    tune_set_one(0, 3, 3);
    CHECK(dti_vk_allowed(device, DTI_K_GEMM, DTI_GEMM_32X32) == DTI_GEMM_IN_REGISTERS);
    CHECK(device->verdicts[DTI_K_GEMM][DTI_GEMM_32X32] == DTI_VK_STRUCK);
    CHECK(device->verdicts[DTI_K_GEMM][DTI_GEMM_32X64] == DTI_VK_STRUCK);
    qualify_warned(&rig, 2);
    vulkan_rig_close(&rig);
}

/* A part of the blob with results of another version or of another driver. */
static void tune_try_others(char *blob, size_t bytes, size_t at, uint8_t flip) {
    blob[at] ^= (char)flip;
    qualify_open_choice(blob, bytes, DT_KERNEL_CHECK_ONCE, 0);
    blob[at] ^= (char)flip;
}

TEST(a_variant_that_is_right_and_slow_is_not_used_here_or_in_a_later_run) {
    vulkan_rig rig;
    OPEN_QUICK(rig);
    dti_vk_device *device = qualify_as_gpu(&rig);
    tune_set(device, 2);
    tune_set_one(0, 2, 1);
    CHECK(dti_vk_allowed(device, DTI_K_GEMM, DTI_GEMM_32X32) == DTI_GEMM_IN_REGISTERS);
    CHECK(*qualify_chosen(device) == 1);
    const int runs = tune_clock.runs[0];
    CHECK(dti_vk_allowed(device, DTI_K_GEMM, DTI_GEMM_32X32) == DTI_GEMM_IN_REGISTERS);
    CHECK(tune_clock.runs[0] == runs && runs > 0);
    qualify_warned(&rig, 0);
    size_t bytes;
    char *blob = qualify_export(&rig, &bytes);
    vulkan_rig_close(&rig);
    const size_t part = bytes - sizeof(dti_vk_judged) - sizeof(dti_vk_cache_header);
    const dti_vk_judged *judged = (const dti_vk_judged *)(blob + bytes) - 1;
    CHECK(judged->verdict == DTI_VK_UNCHECKED && judged->chosen == 1);
    qualify_open_choice(blob, bytes, DT_KERNEL_CHECK_ONCE, 1);
    qualify_open_choice(blob, bytes, DT_KERNEL_CHECK_ALWAYS, 0);
    tune_try_others(blob, bytes, part + 6, '4' ^ '2'); /* its version */
    tune_try_others(blob, bytes, part + offsetof(dti_vk_cache_header, identity), 1);
    tune_try_others(blob, bytes, bytes - sizeof *judged, 1); /* damaged */
    free(blob);
}

#endif
