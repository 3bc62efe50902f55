/* A driver's reports of registers. A tile that spills is not used, and a wrong or missing report is
 * never an error. Included by main.c, after test_vulkan_self_test.c. */

#ifndef DT_NO_VULKAN

typedef struct spills_case {
    const char *statistic; /* NULL: the driver fails */
    uint32_t holds;        /* sums of an invocation that do not spill */
    uint64_t spilled;      /* of more */
    uint32_t sums;         /* of the device, afterwards */
} spills_case;

static const spills_case *spills_now;
static dti_vk_device *spills_device;

static uint64_t spills_value(dti_VkPipeline pipeline) {
    for (size_t i = 0; i < spills_device->pipeline_count; i++)
        if (spills_device->pipelines[i].handle == pipeline)
            return spills_device->pipelines[i].sums > spills_now->holds ? spills_now->spilled : 0;
    return 0;
}

/* A device that does nothing, whose driver reports what the case says. */
static bool spills_open(vulkan_rig *rig, const dt_vulkan_desc *host, const spills_case *c) {
    vulkan_base(&rig->base, &rig->log);
    stub.statistic = c->statistic;
    stub.value = spills_value;
    spills_now = c;
    if (dti_vk_instance_create(&rig->base, &(dti_vk_options){.host = host}, &rig->in) ||
        dti_vk_open(rig->in, 0, &rig->device))
        return false;
    spills_device = (dti_vk_device *)rig->device;
    spills_device->statistics = true;
    tune_set(spills_device, 1);
    return true;
}

static uint32_t spills_made(uint32_t variant) {
    uint32_t made = 0;
    for (size_t i = 0; i < spills_device->pipeline_count; i++)
        made += spills_device->pipelines[i].kernel == DTI_K_GEMM &&
                spills_device->pipelines[i].variant == variant;
    return made;
}

/* The largest tile, its smaller rival and the portable kernel, in a race in which all are alike. */
static void spills_race(const spills_case *c) {
    dti_vk_race race;
    CHECK(dti_vk_tune(spills_device, DTI_K_GEMM, DTI_GEMM_128X128, &race) == DT_OK);
    CHECK(race.count >= 2 && spills_device->sums == c->sums);
    const uint32_t best = !c->sums       ? DTI_GEMM_128X128
                          : c->sums < 32 ? DTI_GEMM_IN_REGISTERS
                                         : DTI_GEMM_64X64;
    CHECK(race.variant[0] == best);
    CHECK(dti_vk_fits(spills_device, DTI_K_GEMM, DTI_GEMM_128X128) == !c->sums);
    /* Of the portable one a pipeline with fewer rows follows each that spilled. */
    CHECK(spills_made(DTI_GEMM_IN_REGISTERS) == 1);
    for (size_t i = 0; i < spills_device->pipeline_count; i++)
        if (!spills_device->pipelines[i].variant &&
            spills_device->pipelines[i].kernel == DTI_K_GEMM)
            CHECK(spills_device->pipelines[i].spec[2] == (c->sums ? c->sums / 8 : 8));
}

static const spills_case spills_cases[] = {
    {"Spill Count", 32, 100, 32},
    {"Spilled VGPRs", 16, 1, 16},
    {"STP Count", 64, 1, 0},
    {"Local Memory Size", 32, 1ull << 36, 0}, /* NVIDIA's driver says so of what does not spill */
    {"Number of GPRs", 0, 255, 0},
    {"Spills to reg", 0, 7, 0}, /* NVK: between registers */
    {NULL, 0, 1, 0},
};

TEST(a_tile_that_spills_registers_by_its_drivers_report_is_not_used) {
    const dt_vulkan_desc host = stub_vulkan();
    for (size_t i = 0; i < DTI_COUNT(spills_cases); i++) {
        vulkan_rig rig;
        const uint64_t held = stub.held;
        const uint64_t asked = stub.calls[STUB_GetPipelineExecutableStatisticsKHR];
        REQUIRE(spills_open(&rig, &host, &spills_cases[i]));
        spills_race(&spills_cases[i]);
        CHECK(spills_device->statistics == (spills_cases[i].statistic != NULL));
        spills_race(&spills_cases[i]); /* and what is known is not asked again */
        CHECK(stub.calls[STUB_GetPipelineExecutableStatisticsKHR] - asked <= 4);
        vulkan_rig_close(&rig);
        CHECK(stub.held == held);
    }
}

TEST(spills_that_a_driver_reported_are_known_in_a_later_run) {
    const dt_vulkan_desc host = stub_vulkan();
    vulkan_rig rig;
    dti_vk_race race;
    REQUIRE(spills_open(&rig, &host, &spills_cases[0]));
    CHECK(dti_vk_tune(spills_device, DTI_K_GEMM, DTI_GEMM_128X128, &race) == DT_OK);
    spills_device->chosen[DTI_K_CONV][1] = 2;
    spills_device->chosen[DTI_K_CONV_DX][1] = 3;
    const size_t bytes = dti_vk_verdicts_write(spills_device, NULL);
    void *kept = malloc(bytes);
    CHECK(dti_vk_verdicts_write(spills_device, kept) == bytes);
    dti_vk_device *later = calloc(1, sizeof *later);
    later->head = spills_device->head;
    dti_vk_verdicts_read(later, kept, bytes);
    CHECK(later->sums == 32);
    CHECK(!memcmp(later->asked, spills_device->asked, sizeof later->asked));
    CHECK(!memcmp(later->chosen, spills_device->chosen, sizeof later->chosen));
    free(later);
    free(kept);
    vulkan_rig_close(&rig);
}

#endif
