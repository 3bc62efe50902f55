/* The Vulkan backend from inside. First come parts without a driver: hazards, the cache blob,
 * folding, a loader that is absent. Then memory, segments, faults, loss and refusals on every
 * driver that is present. The validation layer is used where it is installed: any message of it
 * fails the test. Included by main.c, after the implementation. */

/* The logged text; also of tests that run on the CPU when there is no Vulkan. */
typedef struct vulkan_log {
    int errors, warnings, validation;
    char last[1024];
} vulkan_log;

static void vulkan_listen(void *user, dt_log_level level, const char *message) {
    vulkan_log *log = user;
    log->errors += level == DT_LOG_ERROR;
    log->warnings += level == DT_LOG_WARNING;
    if (!strncmp(message, "vulkan validation", 17) && !log->validation++)
        printf("  %s\n", message);
    snprintf(log->last, sizeof log->last, "%s", message);
}

#ifndef DT_NO_VULKAN

/* A host that has the official header, met after ours: nothing clashes, and both agree. */
#if defined __has_include
#if __has_include(<vulkan/vulkan.h>)
#include <vulkan/vulkan.h>
#define SAME(type) _Static_assert(sizeof(type) == sizeof(dti_##type), "vk_decl.h: " #type)
SAME(VkPhysicalDeviceLimits);
SAME(VkPhysicalDeviceFeatures);
SAME(VkPhysicalDeviceMemoryProperties2);
SAME(VkPhysicalDeviceMemoryBudgetPropertiesEXT);
SAME(VkPhysicalDeviceDriverProperties);
SAME(VkDeviceCreateInfo);
SAME(VkComputePipelineCreateInfo);
SAME(VkDebugUtilsMessengerCallbackDataEXT);
SAME(VkWriteDescriptorSet);
SAME(VkSubmitInfo);
#define SAME_VALUE(name) _Static_assert((long long)name == (long long)DTI_##name, #name)
SAME_VALUE(VK_ERROR_DEVICE_LOST);
SAME_VALUE(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES);
SAME_VALUE(VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT);
SAME_VALUE(VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR);
SAME_VALUE(VK_PIPELINE_STAGE_HOST_BIT);
#endif
#endif

static void vulkan_base(dti_base *base, vulkan_log *log) {
    dt_logger logger = {vulkan_listen, log};
    *log = (vulkan_log){0};
    dti_base_init(base, NULL, &logger);
}

/* ---- Without a driver ------------------------------------------------------------------------ */

TEST(vulkan_without_a_loader_has_no_devices) {
    dti_base base;
    vulkan_log log;
    vulkan_base(&base, &log);
    dti_vk_instance *in = NULL;
    dti_vk_options options = {.loader = "/nowhere/libvulkan.so.1"};
    int count = -1;
    dti_device *device = NULL;
    REQUIRE(dti_vk_instance_create(&base, &options, &in) == DT_OK);
    CHECK(log.warnings == 1);
    CHECK_CONTAINS(log.last, "/nowhere/libvulkan.so.1");
    CHECK(dti_vk_list(in, NULL, 0, &count) == DT_OK && count == 0);
    CHECK(dti_vk_open(in, 0, &device) == DT_ERROR_DEVICE && !device);
    dti_vk_instance_destroy(in);
    CHECK(base.bytes_now == 0);
}

TEST(vulkan_driver_without_a_loader_is_an_error_that_says_what_to_install) {
    dti_base base;
    vulkan_log log;
    const char *folder = temp_path("icd.d");
    char manifest[512];
    REQUIRE(mkdir(folder, 0700) == 0);
    for (int there = 1; there >= 0; there--) { /* a text beside it does not count */
        snprintf(manifest, sizeof manifest, "%s/driver.%s", folder, there ? "json" : "txt");
        FILE *file = fopen(manifest, "w");
        REQUIRE(file && !fclose(file));
        vulkan_base(&base, &log);
        dti_vk_instance *in = NULL;
        dti_vk_options options = {.loader = "/nowhere/libvulkan.so.1", .manifests = folder};
        REQUIRE(dti_vk_instance_create(&base, &options, &in) == DT_OK);
        CHECK(in->device_count == 0 && log.warnings == 1);
        CHECK_CONTAINS(log.last, "/nowhere/libvulkan.so.1");
        CHECK((strstr(log.last, manifest) != NULL) == there);
        CHECK((strstr(log.last, "Debian, Ubuntu: libvulkan1;") != NULL) == there);
        dti_vk_instance_destroy(in);
        remove(manifest);
    }
    rmdir(folder);
}

TEST(vulkan_loader_that_is_another_library_is_refused) {
    dti_base base;
    vulkan_log log;
    vulkan_base(&base, &log);
    dti_vk_instance *in = NULL;
    dti_vk_options options = {.loader = "libm.so.6"};
    REQUIRE(dti_vk_instance_create(&base, &options, &in) == DT_OK);
    CHECK(in->device_count == 0 && log.warnings == 1);
    dti_vk_instance_destroy(in);
}

static bool vulkan_hazard(dti_vk_hazard *h, uint32_t memory, char access, uint64_t begin,
                          uint64_t end) {
    dti_vk_access a = {.memory = memory, .write = access == 'w', .begin = begin, .end = end};
    return dti_vk_hazard_add(h, &a, 1);
}

static uint32_t vulkan_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 16;
}

/* Whether every element that a copy writes lies in its declared stripe. */
static bool vulkan_stripe_holds(const dti_launch *l, const dti_vk_access *a) {
    const dti_args_map1 *c = &l->args.map1;
    for (uint32_t i = 0; i < c->n && a->period; i++) {
        uint64_t at = c->y_offset, rest = i;
        for (int k = 5; k >= 0; k--) {
            at += rest % c->dim[k] * c->y_stride[k];
            rest /= c->dim[k];
        }
        const uint64_t byte = DTI_WORD_BYTES * at % a->period;
        if (byte < a->from || byte + DTI_WORD_BYTES > a->to)
            return false;
    }
    return true;
}

TEST(vulkan_copies_into_adjacent_columns_need_no_barrier) {
    static const dti_place places[2] = {{0, 0, 4096}, {1, 256, 4u << 20}};
    uint32_t seed = 7;
    dti_vk_hazard h = {0};
    int striped = 0;
    for (int i = 0; i < 3000; i++) {
        dti_launch l = {.kernel = DTI_K_COPY, .value = {0, 1}, .args.map1 = {.n = 1}};
        dti_vk_access a[DTI_BINDINGS_MAX] = {{0}};
        for (int k = 0; k < 6; k++) {
            l.args.map1.dim[k] = k < 3 ? 1 : 1 + vulkan_random(&seed) % 5;
            l.args.map1.y_stride[k] = vulkan_random(&seed) % 4 * (k < 5 ? 6 : 1);
            l.args.map1.n *= l.args.map1.dim[k];
        }
        l.args.map1.y_offset = vulkan_random(&seed) % 40;
        CHECK(dti_vk_accesses_of(&l, places, a) == 2 && vulkan_stripe_holds(&l, &a[1]));
        striped += a[1].period > 0;
    }
    CHECK(striped > 300);
    for (uint32_t i = 0; i < 4; i++) { /* three of 4 columns of 12, and one over the last two */
        dti_launch l = {.kernel = DTI_K_COPY, .value = {0, 1}};
        dti_vk_access a[DTI_BINDINGS_MAX] = {{0}};
        l.args.map1 = (dti_args_map1){.n = 8 * 4,
                                      .dim = {1, 1, 1, 1, 8, 4},
                                      .y_stride = {0, 0, 0, 0, 12, 1},
                                      .y_offset = i < 3 ? 4 * i : 6};
        CHECK(dti_vk_hazard_add(&h, a, dti_vk_accesses_of(&l, places, a)) == (i == 3));
    }
}

TEST(vulkan_barrier_is_put_before_true_hazards_only) {
    dti_vk_hazard h = {0};
    CHECK(!vulkan_hazard(&h, 0, 'r', 0, 256));
    CHECK(!vulkan_hazard(&h, 0, 'r', 0, 256));   /* read after read */
    CHECK(!vulkan_hazard(&h, 0, 'w', 256, 512)); /* beside it */
    CHECK(!vulkan_hazard(&h, 1, 'w', 0, 256));   /* the same bytes of another memory */
    CHECK(vulkan_hazard(&h, 0, 'w', 128, 130));  /* write after read, inside it */
    CHECK(!vulkan_hazard(&h, 0, 'r', 256, 512)); /* the barrier settled that write */
    CHECK(vulkan_hazard(&h, 0, 'r', 129, 400));  /* read after write, partly */
    CHECK(!vulkan_hazard(&h, 0, 'w', 400, 401));
    CHECK(vulkan_hazard(&h, 0, 'w', 0, 1024)); /* write after write */
    CHECK(!vulkan_hazard(&h, 0, 'r', 0, 0));   /* no bytes */
}

TEST(vulkan_barrier_sees_every_operand_of_a_launch) {
    dti_vk_hazard h = {0};
    dti_vk_access first[3] = {
        {0, false, 0, 256, 0, 0, 0}, {0, false, 256, 512, 0, 0, 0}, {0, true, 512, 768, 0, 0, 0}};
    dti_vk_access in_place[2] = {{2, false, 0, 256, 0, 0, 0}, {2, true, 0, 256, 0, 0, 0}};
    dti_vk_access last[3] = {
        {1, false, 0, 256, 0, 0, 0}, {0, false, 700, 768, 0, 0, 0}, {1, true, 512, 768, 0, 0, 0}};
    CHECK(!dti_vk_hazard_add(&h, first, 3));
    CHECK(!dti_vk_hazard_add(&h, in_place, 2)); /* no hazard with itself */
    CHECK(dti_vk_hazard_add(&h, last, 3));
}

TEST(vulkan_barrier_record_that_is_full_asks_for_a_barrier) {
    dti_vk_hazard h = {0};
    for (uint64_t i = 0; i < DTI_VK_ACCESSES_MAX; i++)
        CHECK(!vulkan_hazard(&h, 0, 'w', 256 * i, 256 * i + 256));
    CHECK(vulkan_hazard(&h, 1, 'w', 0, 256));
    CHECK(!vulkan_hazard(&h, 0, 'w', 0, 256));
}

TEST(vulkan_grids_are_folded_below_the_limit) {
    const uint64_t counts[] = {1, 127, 65535, 65536, 65537, 1000003, 65535ull * 65535ull};
    for (size_t i = 0; i < DTI_COUNT(counts); i++) {
        uint32_t x, y;
        dti_vk_fold(counts[i], &x, &y);
        CHECK(x <= 65535 && y <= 65535 && (uint64_t)x * y >= counts[i]);
        CHECK((uint64_t)x * y - counts[i] < y);
    }
}

TEST(vulkan_cache_blob_gives_back_the_part_of_this_device) {
    dti_vk_identity mine = {1, 2, 3, {4}}, other = {1, 2, 4, {4}};
    char blob[256], kernels[5] = "abcd";
    const void *data = NULL;
    size_t bytes = 0, size = dti_vk_part_pack(DTI_VK_CACHE_MAGIC, &other, "old", 4, blob);
    CHECK(size == dti_vk_part_pack(DTI_VK_CACHE_MAGIC, &other, "old", 4, NULL));
    CHECK(dti_vk_part_find(DTI_VK_CACHE_MAGIC, blob, size, &mine, &data, &bytes) == DTI_VK_NONE);
    size += dti_vk_part_pack(DTI_VK_CACHE_MAGIC, &mine, kernels, sizeof kernels, blob + size);
    REQUIRE(dti_vk_part_find(DTI_VK_CACHE_MAGIC, blob, size, &mine, &data, &bytes) == DTI_VK_FOUND);
    CHECK(bytes == sizeof kernels && !memcmp(data, kernels, bytes));
    CHECK(dti_vk_part_find(DTI_VK_CACHE_MAGIC, NULL, 0, &mine, &data, &bytes) == DTI_VK_NONE);
}

TEST(vulkan_cache_blob_that_is_damaged_is_ignored) {
    dti_vk_identity mine = {1, 2, 3, {4}};
    char blob[128];
    const void *data;
    size_t bytes, size = dti_vk_part_pack(DTI_VK_CACHE_MAGIC, &mine, "kernels", 8, blob);
    for (size_t cut = 1; cut < size; cut++)
        CHECK(dti_vk_part_find(DTI_VK_CACHE_MAGIC, blob, cut, &mine, &data, &bytes) ==
              DTI_VK_DAMAGED);
    for (size_t i = 0; i < size; i++) {
        blob[i] ^= 0x10;
        CHECK(dti_vk_part_find(DTI_VK_CACHE_MAGIC, blob, size, &mine, &data, &bytes) !=
              DTI_VK_FOUND);
        blob[i] ^= 0x10;
    }
    CHECK(dti_vk_part_find(DTI_VK_CACHE_MAGIC, blob, size, &mine, &data, &bytes) == DTI_VK_FOUND);
}

TEST(vulkan_gemm_variant_depends_on_shape_and_device) {
    dti_vk_instance in = {0};
    dti_vk_device device = {.instance = &in};
    const dti_args_gemm shape = {.m = 512, .n = 512, .k = 512, .batch0 = 1, .batch1 = 1};
    dti_launch few = {.kernel = DTI_K_GEMM, .args.gemm = shape}, narrow = few, many = few;
    narrow.args.gemm.n = 16;
    many.args.gemm.batch1 = 8;
    device.head.info.workgroup_invocations = 1024;
    device.head.info.shared_bytes = 32768;
    device.head.info.kind = DT_DEVICE_DISCRETE;
    CHECK(dti_vk_variant_of(&device, &narrow) == DTI_GEMM_NARROW);
    narrow.args.gemm.chunk = 64;
    CHECK(dti_vk_variant_of(&device, &narrow) == DTI_GEMM_NARROW_LONG);
    CHECK(dti_vk_variant_of(&device, &few) == DTI_GEMM_32X64);
    CHECK(dti_vk_variant_of(&device, &many) == DTI_GEMM_128X128);
    device.head.info.workgroup_invocations = 128;
    CHECK(dti_vk_variant_of(&device, &few) == DTI_GEMM_32X64);
    CHECK(dti_vk_variant_of(&device, &many) == DTI_GEMM_64X64);
    device.head.info.workgroup_invocations = 256;
    device.head.info.kind = DT_DEVICE_SOFTWARE;
    CHECK(dti_vk_variant_of(&device, &many) == DTI_GEMM_IN_REGISTERS);
    device.head.info.kind = DT_DEVICE_DISCRETE;
    in.options.no_fast = true;
    CHECK(dti_vk_variant_of(&device, &many) == DTI_GEMM_IN_REGISTERS);
}

/* The compilers of tools/check/vendors spill no more than these. */
TEST(a_device_gets_no_more_sums_an_invocation_than_it_has_registers_for) {
    static const struct {
        uint32_t vendor, device, sums;
    } devices[] = {{0x8086, 0x1912, 32},     {0x8086, 0x9a49, 32}, {0x8086, 0x5690, 32},
                   {0x8086, 0x64a0, 32},     {0x8086, 0xe202, 32}, {0x8086, 0xb080, 0},
                   {0x5143, 0x060600ff, 32}, {0x13b5, 0, 32},      {0x5143, 0x43050a01, 0},
                   {0x10de, 0x1004, 0},      {0x1002, 0x744c, 0}};
    dti_vk_instance in = {0};
    dti_launch gemm = {.kernel = DTI_K_GEMM}, dx = {.kernel = DTI_K_CONV_DX};
    gemm.args.gemm = (dti_args_gemm){.m = 4096, .n = 4096, .k = 4096, .batch0 = 1, .batch1 = 1};
    dx.args.conv = (dti_args_conv){.n = 64, .groups = 1, .ci = 256, .co = 256, .ih = 32, .iw = 32};
    dx.args.conv.kh = dx.args.conv.kw = dx.args.conv.oh = dx.args.conv.ow = 1;
    dx.args.conv.stride_h = dx.args.conv.stride_w = 32;
    for (size_t i = 0; i < DTI_COUNT(devices); i++) {
        dti_vk_device device = {.instance = &in};
        device.head.info.vendor_id = devices[i].vendor;
        device.head.info.device_id = devices[i].device;
        device.head.info.kind = DT_DEVICE_DISCRETE;
        device.head.info.workgroup_invocations = 1024;
        device.head.info.shared_bytes = 32768;
        const dti_grid_device grid = dti_vk_grid_device(&device);
        const bool few = devices[i].sums;
        uint32_t spec[4];
        CHECK(grid.sums == devices[i].sums);
        CHECK(dti_vk_variant_of(&device, &gemm) == (few ? DTI_GEMM_64X64 : DTI_GEMM_128X128));
        dti_vk_spec_of(&gemm, 0, &grid, spec); /* rows of 8 */
        CHECK(spec[2] == (few ? 4 : 8));
        CHECK(dti_gemm_invocations(&gemm, 0, spec) == 2 * 4096 / spec[2] * 512);
        CHECK(dti_conv_fits_device(5, &grid) == !few && dti_conv_fits_device(4, &grid));
        dti_vk_spec_of(&dx, 0, &grid, spec);
        CHECK(spec[3] == (few ? 4 : 8));
    }
}

static uint32_t vulkan_conv_variant(dti_kernel_id kernel, uint32_t channels, uint32_t size,
                                    uint32_t kernel_size, dt_device_kind kind) {
    dti_vk_instance in = {0};
    dti_vk_device device = {.instance = &in};
    device.head.info.workgroup_invocations = 1024;
    device.head.info.shared_bytes = 49152;
    device.head.info.kind = kind;
    const dti_args_conv shape = {.n = 64,
                                 .groups = 1,
                                 .ci = channels,
                                 .co = channels,
                                 .ih = size,
                                 .iw = size,
                                 .oh = size,
                                 .ow = size,
                                 .kh = kernel_size,
                                 .kw = kernel_size,
                                 .stride_h = 1,
                                 .stride_w = 1,
                                 .pad_h = kernel_size / 2,
                                 .pad_w = kernel_size / 2,
                                 .dil_h = 1,
                                 .dil_w = 1,
                                 .splits = 1,
                                 .cuts = 1};
    const dti_launch launch = {.kernel = (uint16_t)kernel, .args.conv = shape};
    return dti_vk_variant_of(&device, &launch);
}

TEST(vulkan_convolution_uses_larger_tiles_only_where_they_fill_a_gpu) {
    static const dti_kernel_id kernels[] = {DTI_K_CONV, DTI_K_CONV_DX};
    for (size_t i = 0; i < DTI_COUNT(kernels); i++) {
        const dti_kernel_id k = kernels[i];
        CHECK(vulkan_conv_variant(k, 8, 32, 3, DT_DEVICE_DISCRETE) == 0);
        CHECK(vulkan_conv_variant(k, 16, 32, 3, DT_DEVICE_DISCRETE) == 1);
        CHECK(vulkan_conv_variant(k, 32, 32, 3, DT_DEVICE_DISCRETE) == 2);
        CHECK(vulkan_conv_variant(k, 64, 8, 3, DT_DEVICE_DISCRETE) == 1); /* few positions */
        CHECK(vulkan_conv_variant(k, 128, 32, 3, DT_DEVICE_DISCRETE) == 5);
        CHECK(vulkan_conv_variant(k, 128, 32, 3, DT_DEVICE_SOFTWARE) == 0);
    }
}

/* ---- On every driver ------------------------------------------------------------------------- */

typedef struct vulkan_rig {
    dti_base base;
    vulkan_log log;
    dti_vk_instance *in;
    dti_device *device;
} vulkan_rig;

/* With the base and the log that it has. */
static bool vulkan_rig_start(vulkan_rig *rig, int index, dti_vk_options options) {
    options.validation = true;
    rig->device = NULL;
    return dti_vk_instance_create(&rig->base, &options, &rig->in) == DT_OK &&
           index < rig->in->device_count && rig->in->infos[index].usable &&
           dti_vk_open(rig->in, index, &rig->device) == DT_OK;
}

static bool vulkan_rig_open(vulkan_rig *rig, int index, dti_vk_options options) {
    vulkan_base(&rig->base, &rig->log);
    return vulkan_rig_start(rig, index, options);
}

static void vulkan_rig_close(vulkan_rig *rig) {
    if (rig->device)
        rig->device->backend->close(rig->device);
    dti_vk_instance_destroy(rig->in); /* here the layer reports objects that were left */
    CHECK(rig->log.validation == 0);
    CHECK(rig->base.bytes_now == 0);
}

static int vulkan_device_count(void) {
    vulkan_rig rig;
    vulkan_base(&rig.base, &rig.log);
    dti_vk_options options = {0};
    int count = 0;
    if (!dti_vk_instance_create(&rig.base, &options, &rig.in))
        count = rig.in->device_count;
    dti_vk_instance_destroy(rig.in);
    return count;
}

/* SwiftShader takes seconds for a pipeline that others make in a tenth of one. */
static bool vulkan_is_quick(const vulkan_rig *rig) {
    return !strstr(((const dti_vk_device *)rig->device)->head.info.name, "SwiftShader");
}

/* The first device that is quick; 0 where none is. */
static int vulkan_quick_device(void) {
    const int count = vulkan_device_count();
    bool quick = false;
    int i = 0;
    for (; i < count && !quick; i++) {
        vulkan_rig rig;
        quick = vulkan_rig_open(&rig, i, (dti_vk_options){0}) && vulkan_is_quick(&rig);
        vulkan_rig_close(&rig);
    }
    return quick ? i - 1 : 0;
}

/* Runs body on every device, with and without unified memory. */
static bool vulkan_on_each(void (*body)(vulkan_rig *rig)) {
    int count = vulkan_device_count();
    for (int i = 0; i < 2 * count; i++) {
        vulkan_rig rig;
        if (vulkan_rig_open(&rig, i / 2, (dti_vk_options){.no_unified = i % 2}))
            body(&rig);
        vulkan_rig_close(&rig);
    }
    return count > 0;
}

#define ON_EACH(body)                                                                              \
    do {                                                                                           \
        if (!vulkan_on_each(body))                                                                 \
            SKIP("no Vulkan driver");                                                              \
    } while (0)

static void vulkan_try_copies(vulkan_rig *rig) {
    const dti_backend *b = rig->device->backend;
    dti_memory *m = NULL;
    const size_t bytes = 2 * DTI_VK_STAGING_BYTES + 1000; /* three chunks */
    unsigned char *data = malloc(bytes), *back = malloc(bytes);
    CHECK(b->memory_create(rig->device, bytes, DTI_MEMORY_DEVICE, &m) == DT_OK);
    if (m && data && back) {
        uint64_t calls = rig->base.alloc_calls;
        bool zero = b->memory_read(m, 0, back, bytes) == DT_OK;
        for (size_t i = 0; i < bytes; i++) {
            zero = zero && back[i] == 0;
            data[i] = (unsigned char)(i * 31 >> 3);
        }
        CHECK(zero);
        CHECK(b->memory_write(m, 100, data, bytes - 100) == DT_OK);
        CHECK(b->memory_read(m, 0, back, bytes) == DT_OK);
        CHECK(back[99] == 0 && !memcmp(back + 100, data, bytes - 100));
        CHECK(b->memory_read(m, 300, back, 7) == DT_OK && !memcmp(back, data + 200, 7));
        CHECK(b->memory_write(m, bytes, data, 256) == DT_ERROR_INVALID);
        CHECK(rig->base.alloc_calls == calls);
        CHECK(b->memory_bytes(m) >= bytes);
    }
    b->memory_destroy(m);
    free(data);
    free(back);
}

TEST(vulkan_memory_starts_at_zero_and_keeps_written_values) {
    ON_EACH(vulkan_try_copies);
}

static void vulkan_try_too_much(vulkan_rig *rig) {
    dti_memory *m = NULL;
    uint64_t held, calls, after;
    dti_vk_memory_used(rig->in, &held, &calls);
    dt_result result =
        rig->device->backend->memory_create(rig->device, 1ull << 50, DTI_MEMORY_DEVICE, &m);
    CHECK(result == DT_ERROR_DEVICE_MEMORY && !m);
    CHECK_CONTAINS(rig->base.error, "1125899906842624");
    CHECK_CONTAINS(rig->base.error, "smaller");
    dti_vk_memory_used(rig->in, &after, &calls);
    CHECK(after == held);
}

TEST(vulkan_memory_that_is_too_large_is_refused_with_its_bytes) {
    ON_EACH(vulkan_try_too_much);
}

/* y = 3 + x in four launches and two segments, over three memories. */
#define PROGRAM_N 1000
enum { PROGRAM_X, PROGRAM_A, PROGRAM_B, PROGRAM_Y, PROGRAM_STATUS, PROGRAM_PLACES };

typedef struct vulkan_program {
    dti_memory *memories[3];
    dti_place places[PROGRAM_PLACES];
    dti_launch launches[4];
    dti_segment segments[2];
    dti_exec_desc desc;
    dti_exec *exec;
} vulkan_program;

static dti_launch vulkan_copy_launch(uint32_t from, uint32_t to, uint32_t kind, float p0) {
    dti_launch l = {.kernel = DTI_K_COPY,
                    .args_bytes = sizeof(dti_args_map1),
                    .items = PROGRAM_N,
                    .spec = {kind},
                    .value = {from, to, from, from}};
    l.args.map1 = (dti_args_map1){.n = PROGRAM_N, .dim = {1, 1, 1, 1, 1, PROGRAM_N}, .p0 = p0};
    l.args.map1.x_stride[5] = l.args.map1.y_stride[5] = 1;
    return l;
}

static void vulkan_program_fill(vulkan_program *p) {
    const uint64_t bytes = 4 * PROGRAM_N, in = 512, out = 4 * DTI_STATUS_WORDS;
    p->places[PROGRAM_X] = (dti_place){1, in, bytes};
    p->places[PROGRAM_A] = (dti_place){0, 0, bytes};
    p->places[PROGRAM_B] = (dti_place){0, 4096, bytes};
    p->places[PROGRAM_Y] = (dti_place){2, (out + 255) / 256 * 256, bytes};
    p->places[PROGRAM_STATUS] = (dti_place){2, 0, out};
    p->launches[0] = vulkan_copy_launch(PROGRAM_X, PROGRAM_A, DTI_COPY_WORD, 0);
    p->launches[1] = vulkan_copy_launch(PROGRAM_A, PROGRAM_B, DTI_COPY_FILL_F32, 3);
    p->launches[2] = (dti_launch){.kernel = DTI_K_ACCUMULATE,
                                  .args_bytes = sizeof(dti_args_accumulate),
                                  .items = PROGRAM_N,
                                  .value = {PROGRAM_A, PROGRAM_B, PROGRAM_A, PROGRAM_A},
                                  .args.accumulate.n = PROGRAM_N};
    p->launches[3] = vulkan_copy_launch(PROGRAM_B, PROGRAM_Y, DTI_COPY_WORD, 0);
    p->segments[0] = (dti_segment){.first = 0, .count = 2, .upload = {0, in + bytes}};
    p->segments[1] =
        (dti_segment){.first = 2, .count = 2, .download = {0, p->places[PROGRAM_Y].offset + bytes}};
}

static bool vulkan_program_create(vulkan_rig *rig, vulkan_program *p) {
    const dti_backend *b = rig->device->backend;
    static const dti_memory_kind kinds[3] = {DTI_MEMORY_DEVICE, DTI_MEMORY_IN, DTI_MEMORY_OUT};
    *p = (vulkan_program){0};
    for (int i = 0; i < 3; i++)
        if (b->memory_create(rig->device, 16384, kinds[i], &p->memories[i]))
            return false;
    vulkan_program_fill(p);
    p->desc = (dti_exec_desc){.label = "program",
                              .memories = p->memories,
                              .memory_count = 3,
                              .places = p->places,
                              .place_count = PROGRAM_PLACES,
                              .launches = p->launches,
                              .launch_count = 4,
                              .segments = p->segments,
                              .segment_count = 2,
                              .in = 1,
                              .out = 2};
    return b->exec_create(rig->device, &p->desc, &p->exec) == DT_OK;
}

static void vulkan_program_destroy(vulkan_rig *rig, vulkan_program *p) {
    if (p->exec)
        rig->device->backend->exec_destroy(p->exec);
    for (int i = 0; i < 3; i++)
        rig->device->backend->memory_destroy(p->memories[i]);
}

static float *vulkan_program_x(vulkan_rig *rig, vulkan_program *p) {
    return (float *)((char *)rig->device->backend->memory_host(p->memories[1]) + 512);
}

static const float *vulkan_program_y(vulkan_rig *rig, vulkan_program *p) {
    return (const float *)((char *)rig->device->backend->memory_host(p->memories[2]) +
                           p->places[PROGRAM_Y].offset);
}

static void vulkan_try_replay(vulkan_rig *rig) {
    const dti_backend *b = rig->device->backend;
    vulkan_program p;
    if (!test_check(vulkan_program_create(rig, &p), __FILE__, __LINE__, "%s", rig->base.error)) {
        vulkan_program_destroy(rig, &p);
        return;
    }
    uint64_t calls = rig->base.alloc_calls, bytes, device_calls, device_calls_after;
    dti_vk_memory_used(rig->in, &bytes, &device_calls);
    for (int step = 0; step < 5; step++) {
        float *x = vulkan_program_x(rig, &p);
        const float *y = vulkan_program_y(rig, &p);
        bool good = true, busy = true;
        for (int i = 0; i < PROGRAM_N; i++)
            x[i] = (float)(i * (step + 1));
        if (step % 2) {
            CHECK(b->exec_start(p.exec, 0, 2) == DT_OK);
        } else {
            CHECK(b->exec_start(p.exec, 0, 1) == DT_OK);
            CHECK(b->exec_start(p.exec, 1, 1) == DT_OK);
        }
        while (busy && !b->exec_poll(p.exec, &busy) && step == 3) /* else the wait finds it busy */
            ;
        CHECK(b->exec_wait(p.exec) == DT_OK);
        for (int i = 0; i < PROGRAM_N; i++)
            good = good && y[i] == 3.0f + (float)(i * (step + 1));
        CHECK(good);
    }
    dti_vk_memory_used(rig->in, &bytes, &device_calls_after);
    CHECK(rig->base.alloc_calls == calls && device_calls_after == device_calls);
    vulkan_program_destroy(rig, &p);
}

TEST(vulkan_segments_are_replayed_without_an_allocation) {
    ON_EACH(vulkan_try_replay);
}

static void vulkan_try_fault(vulkan_rig *rig) {
    const dti_backend *b = rig->device->backend;
    vulkan_program p;
    uint32_t fault = 99;
    if (vulkan_program_create(rig, &p)) {
        float *x = vulkan_program_x(rig, &p);
        uint64_t calls = rig->base.alloc_calls;
        for (int bad = 0; bad < 3; bad++) {
            x[PROGRAM_N - 1] = bad == 0 ? 1.0f : bad == 1 ? (float)NAN : -(float)INFINITY;
            CHECK(b->exec_start(p.exec, 0, 2) == DT_OK);
            CHECK(b->exec_find_fault(p.exec, 0, 4, &fault) == DT_OK);
            CHECK(fault == (bad ? 2u : 4u)); /* a copy only passes it on; the sum has it */
        }
        CHECK(rig->base.alloc_calls == calls);
    }
    vulkan_program_destroy(rig, &p);
}

TEST(vulkan_fault_search_names_the_launch) {
    ON_EACH(vulkan_try_fault);
}

/* ---- IN in the device's own memory */

TEST(inputs_are_written_in_place_if_the_host_reaches_much_of_the_devices_memory) {
    dti_vk_instance in = {0};
    dti_vk_device device = {.instance = &in};
    const uint32_t host = DTI_VK_HOST_MEMORY, local = DTI_VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    device.heaps.memoryTypeCount = device.heaps.memoryHeapCount = 3;
    device.heaps.memoryTypes[0] = (dti_VkMemoryType){local, 0};
    device.heaps.memoryTypes[1] = (dti_VkMemoryType){host, 1};
    device.heaps.memoryTypes[2] = (dti_VkMemoryType){host | local, 2};
    for (int i = 0; i < 3; i++)
        device.heaps.memoryHeaps[i].size = (uint64_t)8 << 30;
    CHECK(dti_vk_is_direct(&device));
    device.heaps.memoryHeaps[2].size = DTI_VK_WINDOW_BYTES;
    CHECK(!dti_vk_is_direct(&device));
    device.heaps.memoryHeaps[2].size++;
    CHECK(dti_vk_is_direct(&device));
    device.unified = true; /* then all is shared */
    CHECK(!dti_vk_is_direct(&device));
    device.unified = false;
    device.heaps.memoryTypes[2].propertyFlags = host;
    CHECK(!dti_vk_is_direct(&device));
}

TEST(a_step_reads_inputs_in_the_devices_own_memory_and_outputs_are_copied) {
    const int count = vulkan_device_count();
    for (int i = 0; i < count; i++) {
        vulkan_rig rig;
        vulkan_program p;
        if (vulkan_rig_open(&rig, i, (dti_vk_options){.no_unified = true, .direct = true})) {
            CHECK(vulkan_program_create(&rig, &p));
            CHECK(!((dti_vk_memory *)p.memories[1])->staging.handle);
            CHECK(((dti_vk_memory *)p.memories[2])->staging.handle);
            vulkan_program_destroy(&rig, &p);
            vulkan_try_replay(&rig);
            vulkan_try_fault(&rig);
        }
        vulkan_rig_close(&rig);
    }
    if (!count)
        SKIP("no Vulkan driver");
}

static dti_VkResult DTI_VKAPI vulkan_lost_submit(dti_VkQueue queue, uint32_t count,
                                                 const dti_VkSubmitInfo *info, dti_VkFence fence) {
    (void)queue, (void)count, (void)info, (void)fence;
    return DTI_VK_ERROR_DEVICE_LOST;
}

static void vulkan_try_loss(vulkan_rig *rig) {
    const dti_backend *b = rig->device->backend;
    dti_vk_device *device = (dti_vk_device *)rig->device;
    int index = device->index;
    vulkan_program p;
    bool busy;
    char word[4];
    CHECK(vulkan_program_create(rig, &p));
    device->vk.QueueSubmit = vulkan_lost_submit;
    CHECK(b->exec_start(p.exec, 0, 2) == DT_ERROR_DEVICE_LOST);
    CHECK_CONTAINS(rig->base.error, "lost");
    CHECK(b->exec_poll(p.exec, &busy) == DT_ERROR_DEVICE_LOST);
    CHECK(b->exec_wait(p.exec) == DT_ERROR_DEVICE_LOST);
    CHECK(b->memory_read(p.memories[0], 0, word, 4) == DT_ERROR_DEVICE_LOST);
    CHECK(dti_vk_open(rig->in, index, &rig->device) == DT_OK); /* afresh, beside the lost one */
    CHECK(rig->device != &device->head);
    vulkan_program_destroy(rig, &p);
    b->close(&device->head);
    if (rig->device)
        vulkan_try_replay(rig);
}

TEST(vulkan_lost_device_fails_at_once_and_can_be_opened_again) {
    ON_EACH(vulkan_try_loss);
}

static dti_VkResult DTI_VKAPI vulkan_never_ready(dti_VkDevice device, dti_VkFence fence) {
    (void)device, (void)fence;
    return DTI_VK_NOT_READY;
}

static void vulkan_try_misuse(vulkan_rig *rig) {
    const dti_backend *b = rig->device->backend;
    dti_vk_device *device = (dti_vk_device *)rig->device;
    dti_PFN_vkGetFenceStatus status = device->vk.GetFenceStatus;
    vulkan_program p;
    dti_exec *exec = NULL;
    if (vulkan_program_create(rig, &p)) {
        device->vk.GetFenceStatus = vulkan_never_ready;
        CHECK(b->exec_start(p.exec, 0, 2) == DT_OK);
        CHECK(b->exec_start(p.exec, 1, 1) == DT_ERROR_INVALID);
        device->vk.GetFenceStatus = status;
        CHECK(b->exec_wait(p.exec) == DT_OK);

        rig->device->info.storage_range_bytes = 1024;
        CHECK(b->exec_create(rig->device, &p.desc, &exec) == DT_ERROR_UNSUPPORTED && !exec);
        CHECK_CONTAINS(rig->base.error, "4000 bytes");
        CHECK_CONTAINS(rig->base.error, "1024");
        rig->device->info.storage_range_bytes = 1 << 27;

        p.places[PROGRAM_B].offset = 1 << 20;
        CHECK(b->exec_create(rig->device, &p.desc, &exec) == DT_ERROR_INVALID && !exec);
        p.desc.place_count = 1;
        CHECK(b->exec_create(rig->device, &p.desc, &exec) == DT_ERROR_INVALID && !exec);
    }
    vulkan_program_destroy(rig, &p);
}

TEST(vulkan_exec_refuses_operands_that_the_device_cannot_bind) {
    ON_EACH(vulkan_try_misuse);
}

/* More workgroups than one axis holds, and a launch of no items between. */
static void vulkan_try_fold(vulkan_rig *rig) {
    const dti_backend *b = rig->device->backend;
    const uint32_t n = 65536 * 128 + 77;
    dti_memory *memories[3] = {NULL};
    dti_exec *exec = NULL;
    dti_place places[1] = {{0, 0, 4ull * n}};
    dti_launch launches[2] = {vulkan_copy_launch(0, 0, DTI_COPY_FILL_F32, 2.5f),
                              vulkan_copy_launch(0, 0, DTI_COPY_FILL_F32, -1)};
    dti_segment segment = {.count = 2};
    launches[0].items = launches[0].args.map1.n = launches[0].args.map1.dim[5] = n;
    launches[1].items = 0;
    CHECK(!b->memory_create(rig->device, 4ull * n, DTI_MEMORY_DEVICE, &memories[0]));
    CHECK(!b->memory_create(rig->device, 4096, DTI_MEMORY_IN, &memories[1]));
    CHECK(!b->memory_create(rig->device, 4096, DTI_MEMORY_OUT, &memories[2]));
    dti_exec_desc desc = {.label = "fold",
                          .memories = memories,
                          .memory_count = 3,
                          .places = places,
                          .place_count = 1,
                          .launches = launches,
                          .launch_count = 2,
                          .segments = &segment,
                          .segment_count = 1,
                          .in = 1,
                          .out = 2};
    float ends[2] = {0};
    if (!b->exec_create(rig->device, &desc, &exec)) {
        CHECK(!b->exec_start(exec, 0, 1) && !b->exec_wait(exec));
        CHECK(!b->memory_read(memories[0], 0, &ends[0], 4));
        CHECK(!b->memory_read(memories[0], 4ull * n - 4, &ends[1], 4));
    }
    CHECK(ends[0] == 2.5f && ends[1] == 2.5f);
    b->exec_destroy(exec);
    for (int i = 0; i < 3; i++)
        b->memory_destroy(memories[i]);
}

TEST(vulkan_launch_of_more_than_65535_workgroups_reaches_its_end) {
    ON_EACH(vulkan_try_fold);
}

/* As the kernels do, for every kind of divisor. It is tried at multiples, where a quotient is first
 * one too many or too few. */
static bool vulkan_divides(uint32_t d) {
    const uint32_t factor = dti_vk_divide_factor(d), top = 0x7fffffffu;
    uint32_t l = 0;
    while (l < 31 && 1u << l < d)
        l++;
    bool right = true;
    for (int k = 0; k < 64; k++) {
        uint32_t i =
            k < 32 ? top - (uint32_t)k : (d * 2654435761u + (uint32_t)k * 0x9e3779b9u) >> 1;
        i = k % 4 == 1 ? i / d * d : k % 4 == 2 && i >= d ? i / d * d - 1 : i;
        right = right && (uint32_t)((uint64_t)(i << 1) * factor >> 32) >> l == i / d;
    }
    return right;
}

TEST(a_division_by_a_factor_is_exact_below_two_to_the_31) {
    for (uint32_t d = 1; d < 70000; d++)
        REQUIRE(vulkan_divides(d));
    for (uint32_t bit = 16; bit < 31; bit++)
        for (uint32_t off = 0; off < 9; off++)
            REQUIRE(vulkan_divides((1u << bit) - 4 + off));
    for (uint32_t k = 0; k < 9; k++)
        CHECK(vulkan_divides(0x7fffffffu - k) && vulkan_divides(0x55555555u + k));
    const uint32_t dim[DTI_AXES] = {1, 1, 3, 5, 7, 11};
    uint32_t given[DTI_AXES];
    for (uint32_t used = 2; used <= DTI_WALK_QUICK; used++) {
        memcpy(given, dim, sizeof dim);
        dti_vk_divide_walk(given, used);
        for (uint32_t axis = DTI_AXES - 1; axis > DTI_AXES - used; axis--)
            CHECK(given[axis] == dim[axis] &&
                  given[axis + used - DTI_AXES - 1] == dti_vk_divide_factor(dim[axis]));
    }
}

TEST(vulkan_shaders_unpack_to_complete_modules) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    for (size_t i = 0; i < DTI_COUNT(dti_vk_shaders); i++) {
        const dti_vk_shader *shader = &dti_vk_shaders[i];
        uint32_t *words = NULL;
        REQUIRE(!dti_vk_shader_words(&base, shader, &words));
        test_check(words[0] == 0x07230203 && words[shader->word_count - 1] == (1u << 16 | 56),
                   __FILE__, __LINE__, "%s is no module that ends with a function", shader->name);
        dti_free(&base, words);
    }
}

/* What spirv-val says of it; 0 where there is no such one. */
static int vulkan_validate(const uint32_t *words, size_t count) {
    const char *path = temp_write("module.spv", words, count * sizeof *words);
    char command[600];
    snprintf(command, sizeof command,
             "if command -v spirv-val >/dev/null; then spirv-val --target-env vulkan1.1 %s; fi",
             path);
    return system(command);
}

TEST(vulkan_shaders_that_ask_for_infinities_to_be_kept_are_valid) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    for (size_t i = 0; i < DTI_COUNT(dti_vk_shaders); i++) {
        const dti_vk_shader *shader = &dti_vk_shaders[i];
        uint32_t *words = NULL;
        REQUIRE(!dti_vk_shader_words(&base, shader, &words));
        const size_t count = dti_vk_shader_preserve(words, shader->word_count);
        CHECK(count == shader->word_count + DTI_VK_PRESERVE_WORDS &&
              count <= 2 * shader->word_count);
        CHECK(words[5] == (2u << 16 | 17) && words[6] == 4466);
        if (i % 8 == 0)
            CHECK(vulkan_validate(words, count) == 0);
        dti_free(&base, words);
    }
}

/* Instructions OpSpecConstantTrue to OpSpecConstantOp, and decorations that say which is which. */
static int vulkan_selectors(const uint32_t *words, size_t count) {
    int found = 0;
    for (size_t at = 5; at < count && words[at] >> 16; at += words[at] >> 16) {
        const uint32_t opcode = words[at] & 0xffffu;
        found += (opcode >= 48 && opcode <= 52) || (opcode == 71 && words[at + 2] == 1);
    }
    return found;
}

TEST(vulkan_shaders_with_selectors_made_constants_have_none_left_and_are_valid) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    for (size_t i = 0; i < DTI_COUNT(dti_vk_shaders); i++) {
        const dti_vk_shader *shader = &dti_vk_shaders[i];
        const bool tile = strstr(shader->name, "tile") || strstr(shader->name, "narrow");
        const uint32_t own = dti_kernel_info_of(shader->kernel)->local[shader->variant];
        const uint32_t local = own ? own : i % 2 ? 8 : 64;
        const uint32_t spec[5] = {local, i % 3, i % 4, tile ? 0x21084040 : i % 5, i % 8};
        uint32_t *words = NULL;
        REQUIRE(!dti_vk_shader_words(&base, shader, &words));
        CHECK(vulkan_selectors(words, shader->word_count) > 0);
        const size_t count = dti_vk_shader_specialize(words, shader->word_count, spec, 5);
        CHECK(count <= shader->word_count);
        const int left = vulkan_selectors(words, count);
        test_check(left == 0, __FILE__, __LINE__, "%s: %d are left", shader->name, left);
        const size_t kept = dti_vk_shader_preserve(words, count);
        CHECK(kept == count + DTI_VK_PRESERVE_WORDS);
        if (i % 8 == 1)
            CHECK(vulkan_validate(words, kept) == 0);
        dti_free(&base, words);
    }
}

static uint32_t vulkan_count_of(const uint32_t *words, size_t count, uint32_t opcode) {
    uint32_t found = 0;
    for (size_t at = 5; at < count && words[at] >> 16; at += words[at] >> 16)
        found += (words[at] & 0xffffu) == opcode;
    return found;
}

/* REDUCE shares its module with REDUCE_ROW, which alone has barriers. */
TEST(vulkan_kernels_that_share_a_module_contain_only_their_own_code) {
    const uint32_t kernels[2] = {DTI_K_REDUCE, DTI_K_REDUCE_ROW}, barrier = 224;
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    for (int k = 0; k < 2; k++) {
        const dti_vk_shader *shader = dti_vk_shader_of(kernels[k], 0);
        const uint32_t spec[] = {64, 0, 0, 0, 0, shader->side};
        uint32_t *words = NULL;
        REQUIRE(!dti_vk_shader_words(&base, shader, &words));
        CHECK(vulkan_count_of(words, shader->word_count, barrier) > 0);
        const size_t count =
            dti_vk_shader_specialize(words, shader->word_count, spec, DTI_COUNT(spec));
        CHECK((vulkan_count_of(words, count, barrier) > 0) == (k == 1));
        CHECK(count < shader->word_count / 2);
        CHECK(vulkan_validate(words, count) == 0);
        dti_free(&base, words);
    }
}

/* Of a module that is cut or whose words are random: no more words, none beyond its own. */
TEST(vulkan_selectors_of_an_invalid_module_are_left) {
    enum { MOST = 4096 };
    static uint32_t own[2 * MOST + 1];
    uint32_t random = 1, *words = NULL;
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    for (size_t i = 0; i < 400; i++) {
        const dti_vk_shader *shader = &dti_vk_shaders[i % DTI_COUNT(dti_vk_shaders)];
        REQUIRE(!dti_vk_shader_words(&base, shader, &words));
        size_t count = DTI_MIN(shader->word_count, (size_t)MOST);
        memcpy(own, words, count * sizeof *own);
        dti_free(&base, words);
        count = 5 + (random >> 8) % (count - 4);
        for (int k = 0; k < 5; k++) {
            random = random * 1664525u + 1013904223u;
            own[3 + (random >> 8) % (count - 3)] = random >> 4 ^ (k % 2 ? 0 : 0x40000u);
        }
        own[2 * count] = 0xdeadbeef;
        CHECK(dti_vk_shader_specialize(own, count, (uint32_t[5]){8, 1, 2, 3, 4}, 5) <= count);
        CHECK(own[2 * count] == 0xdeadbeef);
    }
}

/* No word more, also where a type is another than a selector of its kind has, or none. */
TEST(vulkan_selectors_of_unknown_types_become_constants_of_the_same_size) {
    uint32_t words[2 * 19] = {0x07230203,
                              0x10000,
                              0,
                              6,
                              0,
                              4u << 16 | 21,
                              1,
                              32,
                              0,
                              3u << 16 | 48,
                              1,
                              2,
                              3u << 16 | 49,
                              9,
                              3,
                              4u << 16 | 50,
                              5,
                              4,
                              7};
    const uint32_t wanted[10] = {3u << 16 | 41, 1, 2, 3u << 16 | 42, 9, 3, 4u << 16 | 43, 5, 4, 7};
    CHECK(dti_vk_shader_specialize(words, 19, (uint32_t[1]){0}, 1) == 19);
    CHECK(!memcmp(words + 9, wanted, sizeof wanted));
}

enum { /* opcodes of SPIR-V */
       SPIRV_TYPE_VECTOR = 23,
       SPIRV_TYPE_ARRAY = 28,
       SPIRV_TYPE_POINTER = 32,
       SPIRV_VARIABLE = 59,
       SPIRV_STORE = 62,
       SPIRV_ACCESS_CHAIN = 65,
       SPIRV_WORKGROUP = 4
};

/* Stores to one component of a vector that a workgroup shares. A driver may make them read, change
 * and write the whole vector, and so lose what another invocation wrote beside. */
static uint32_t vulkan_component_stores(const uint32_t *words, size_t count) {
    const uint32_t bound = words[3];
    uint32_t found = 0, *of = calloc(bound, sizeof *of); /* of a type: what it is made of */
    uint8_t *kind = calloc(bound, 1);                    /* 1: vector; 2: shared; 3: a component */
    for (size_t at = 5; of && kind && at < count; at += words[at] >> 16) {
        const uint32_t *w = words + at, op = w[0] & 0xffffu;
        if (op == SPIRV_TYPE_VECTOR)
            kind[w[1]] = 1;
        else if (op == SPIRV_TYPE_ARRAY)
            of[w[1]] = w[2];
        else if (op == SPIRV_TYPE_POINTER && w[2] == SPIRV_WORKGROUP)
            of[w[1]] = w[3];
        else if (op == SPIRV_VARIABLE && w[3] == SPIRV_WORKGROUP) {
            uint32_t element = of[w[1]];
            while (of[element])
                element = of[element];
            kind[w[2]] = kind[element] == 1 ? 2 : 0;
        } else if (op == SPIRV_ACCESS_CHAIN && kind[w[3]] == 2)
            kind[w[2]] = kind[of[w[1]]] == 1 ? 0 : 3;
        else if (op == SPIRV_STORE)
            found += kind[w[1]] == 3;
    }
    free(of);
    free(kind);
    return found;
}

TEST(vulkan_shaders_store_shared_vectors_as_a_whole) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    for (size_t i = 0; i < DTI_COUNT(dti_vk_shaders); i++) {
        const dti_vk_shader *shader = &dti_vk_shaders[i];
        uint32_t *words = NULL;
        REQUIRE(!dti_vk_shader_words(&base, shader, &words));
        test_check(!vulkan_component_stores(words, shader->word_count), __FILE__, __LINE__,
                   "%s stores to components of vectors in shared memory", shader->name);
        dti_free(&base, words);
    }
}

/* Each bit of a packed module in turn is another one: mostly refused, and nothing beside the room
 * is written. */
TEST(vulkan_shaders_that_are_damaged_unpack_only_into_their_buffer) {
    const dti_vk_shader *shader = dti_vk_shader_of(DTI_K_SCAN, 0);
    const size_t count = shader->word_count, room = 2 * count;
    uint8_t *packed = malloc(shader->packed_bytes);
    uint32_t *words = malloc((room + 2) * sizeof *words);
    dti_vk_odds *odds = calloc(DTI_VK_ODDS, sizeof *odds);
    REQUIRE(packed && words && odds);
    words[0] = words[room + 1] = 0x5a5a5a5a;
    uint32_t refused = 0;
    for (uint32_t at = 0; at < shader->packed_bytes; at++)
        for (int bit = 0; bit < 8; bit++) {
            memcpy(packed, shader->packed, shader->packed_bytes);
            packed[at] ^= (uint8_t)(1 << bit);
            memset(odds, 0, DTI_VK_ODDS * sizeof *odds);
            refused += !dti_vk_shader_unpack(shader, packed, shader->packed_bytes, odds, words + 1);
            REQUIRE(words[0] == 0x5a5a5a5a && words[room + 1] == 0x5a5a5a5a);
        }
    CHECK(refused > 7 * shader->packed_bytes); /* of 8 */
    free(packed);
    free(words);
    free(odds);
}

static dt_result vulkan_pipeline(dti_vk_device *device, uint32_t kernel, uint32_t variant,
                                 uint32_t local, const uint32_t spec[4], dti_VkPipeline *out) {
    uint32_t index = 0;
    dt_result result = dti_vk_pipeline_want(device, kernel, variant, local, 0, spec, &index);
    result = dti_vk_pipelines_make(device, result);
    *out = result ? NULL : device->pipelines[index].handle;
    return result;
}

static void vulkan_try_kernels(vulkan_rig *rig) {
    dti_vk_device *device = (dti_vk_device *)rig->device;
    const uint32_t in_rows[4] = {0, 0, 3, 8}; /* see dti_conv_tile */
    if (rig->in->options.no_unified)
        return; /* the same pipelines */
    for (size_t i = 0; i < DTI_COUNT(dti_vk_shaders); i++) {
        dti_VkPipeline first = 0, again = 0;
        uint32_t kernel = dti_vk_shaders[i].kernel, variant = dti_vk_shaders[i].variant;
        const bool sized = kernel == DTI_K_ATTENTION || kernel == DTI_K_ATTENTION_GRAD;
        uint32_t spec[4] = {0, sized, sized, 0}; /* of no size there is no tile */
        if (variant)
            dti_vk_spec_of(&(dti_launch){.kernel = (uint16_t)kernel}, variant,
                           &(dti_grid_device){0}, spec);
        const uint32_t local = dti_vk_local_of(device, kernel, variant);
        if (variant > 1 || /* other selectors of the same text */
            local > rig->device->info.workgroup_invocations)
            continue;
        test_check(!vulkan_pipeline(device, kernel, variant, local, spec, &first), __FILE__,
                   __LINE__, "%s: %s", dti_vk_shaders[i].name, rig->base.error);
        CHECK(!vulkan_pipeline(device, kernel, variant, local, spec, &again) && again == first);
        if (!variant &&
            (kernel == DTI_K_CONV || kernel == DTI_K_CONV_DX || kernel == DTI_K_CONV_DW))
            CHECK(!vulkan_pipeline(device, kernel, variant, local, in_rows, &again));
    }
    for (uint32_t kernel = 0; kernel < DTI_K_COUNT; kernel++)
        CHECK(dti_vk_shader_of(kernel, 0) != NULL);
}

TEST(vulkan_every_kernel_compiles) {
    ON_EACH(vulkan_try_kernels);
}

static bool vulkan_cache_run(int index, void *blob, size_t bytes, int *warnings) {
    vulkan_rig rig;
    vulkan_program p;
    bool good = vulkan_rig_open(&rig, index, (dti_vk_options){.cache = blob, .cache_bytes = bytes});
    if (good) {
        good = vulkan_program_create(&rig, &p);
        *warnings = rig.log.warnings;
        vulkan_program_destroy(&rig, &p);
    }
    vulkan_rig_close(&rig);
    return good;
}

static void vulkan_try_cache(vulkan_rig *rig) {
    int index = ((dti_vk_device *)rig->device)->index, clean = 0, damaged = 0, none = 0;
    vulkan_program p;
    size_t bytes = 0;
    CHECK(vulkan_program_create(rig, &p));
    vulkan_program_destroy(rig, &p);
    CHECK(dti_vk_cache_export(rig->in, NULL, &bytes) == DT_OK && bytes > 48);
    char *blob = malloc(bytes);
    size_t small = bytes - 1;
    if (!blob)
        return;
    CHECK(dti_vk_cache_export(rig->in, blob, &small) == DT_ERROR_INVALID);
    CHECK(dti_vk_cache_export(rig->in, blob, &bytes) == DT_OK);
    CHECK(vulkan_cache_run(index, NULL, 0, &none));
    CHECK(vulkan_cache_run(index, blob, bytes, &clean) && clean == none);
    blob[bytes - 1] ^= 1;
    CHECK(vulkan_cache_run(index, blob, bytes, &damaged) && damaged == none + 1);
    free(blob);
}

TEST(vulkan_pipeline_cache_is_loaded_again_unless_it_is_damaged) {
    ON_EACH(vulkan_try_cache);
}

/* ---- Kernels of images, one launch at a time --------------------------------------------------
 * Values are small whole numbers where sums are to be exact in any order. */

#define VULKAN_CALL_MAX 4

typedef struct vulkan_call {
    dti_launch launch;
    float *data[VULKAN_CALL_MAX];    /* of each binding, written and read back */
    uint32_t count[VULKAN_CALL_MAX]; /* floats; 0: not bound */
    dti_memory *memories[3];
    dti_segment segment;
    dti_exec_desc desc; /* the CPU's exec refers to it and to what it names */
    dti_place places[VULKAN_CALL_MAX];
    dti_exec *exec;
} vulkan_call;

static bool vulkan_call_create(vulkan_rig *rig, vulkan_call *call) {
    const dti_backend *b = rig->device->backend;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < VULKAN_CALL_MAX; i++) {
        call->places[i] = (dti_place){0, bytes, 4ull * call->count[i]};
        bytes += (4ull * call->count[i] + 255) / 256 * 256;
        call->launch.value[i] = call->count[i] ? i : 0;
    }
    call->segment = (dti_segment){.count = 1, .upload = {0, 4 * DTI_STEP_WORDS}};
    call->desc = (dti_exec_desc){.label = "call",
                                 .memories = call->memories,
                                 .memory_count = 3,
                                 .places = call->places,
                                 .place_count = VULKAN_CALL_MAX,
                                 .launches = &call->launch,
                                 .launch_count = 1,
                                 .segments = &call->segment,
                                 .segment_count = 1,
                                 .in = 1,
                                 .out = 2};
    bool good =
        !b->memory_create(rig->device, bytes, DTI_MEMORY_DEVICE, &call->memories[0]) &&
        !b->memory_create(rig->device, 4 * DTI_STEP_WORDS, DTI_MEMORY_IN, &call->memories[1]) &&
        !b->memory_create(rig->device, 4096, DTI_MEMORY_OUT, &call->memories[2]);
    for (int i = 0; i < VULKAN_CALL_MAX; i++)
        good =
            good && (!call->count[i] || !b->memory_write(call->memories[0], call->places[i].offset,
                                                         call->data[i], 4ull * call->count[i]));
    return good && !b->exec_create(rig->device, &call->desc, &call->exec);
}

static bool vulkan_call_start(vulkan_rig *rig, vulkan_call *call) {
    const dti_backend *b = rig->device->backend;
    bool good = !b->exec_start(call->exec, 0, 1) && !b->exec_wait(call->exec);
    for (int i = 0; i < VULKAN_CALL_MAX; i++)
        good =
            good && (!call->count[i] || !b->memory_read(call->memories[0], call->places[i].offset,
                                                        call->data[i], 4ull * call->count[i]));
    return good;
}

static void vulkan_call_destroy(vulkan_rig *rig, vulkan_call *call) {
    if (call->exec)
        rig->device->backend->exec_destroy(call->exec);
    for (int i = 0; i < 3; i++)
        rig->device->backend->memory_destroy(call->memories[i]);
}

static bool vulkan_call_run(vulkan_rig *rig, vulkan_call *call) {
    bool good = vulkan_call_create(rig, call) && vulkan_call_start(rig, call);
    test_check(good, __FILE__, __LINE__, "%s: %s", dti_kernel_info_of(call->launch.kernel)->name,
               rig->base.error);
    vulkan_call_destroy(rig, call);
    return good;
}

/* Whole numbers from -range to range, no two neighbours alike. */
static float *vulkan_numbers(uint32_t n, int range, uint32_t seed) {
    float *x = malloc(4ull * n);
    for (uint32_t i = 0; x && i < n; i++)
        x[i] = (float)((int)((i + seed) * 2654435761u >> 8) % (2 * range + 1) - range);
    return x;
}

static float *vulkan_zeros(uint32_t n) {
    return calloc(n, 4);
}

/* How many values differ; a NaN is equal to a NaN. */
static int vulkan_differences(const float *a, const float *b, uint32_t n, double tolerance) {
    int differences = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool nan = a[i] != a[i] && b[i] != b[i];
        differences += !nan && !(fabs((double)a[i] - (double)b[i]) <= tolerance);
    }
    return differences;
}

/* ---- Convolution */

/* The tensors of a convolution, and what it and its two adjoints make of them. */
typedef struct vulkan_conv {
    dti_args_conv a;
    uint32_t nx, nw, ny;
    float *x, *w, *y;          /* what is given: image, weight, gradient of the result */
    float *to_x, *to_w, *to_y; /* computed from the other two */
} vulkan_conv;

static void vulkan_conv_add(const vulkan_conv *v, const uint32_t at[5], uint32_t r, uint32_t s) {
    const dti_args_conv *a = &v->a;
    const uint32_t b = at[0], g = at[1], o = at[2], p = at[3], q = at[4];
    const int64_t i = (int64_t)p * a->stride_h - a->pad_h + (int64_t)r * a->dil_h;
    const int64_t j = (int64_t)q * a->stride_w - a->pad_w + (int64_t)s * a->dil_w;
    if (i < 0 || j < 0 || i >= a->ih || j >= a->iw)
        return;
    const uint32_t y = (((b * a->groups + g) * a->co + o) * a->oh + p) * a->ow + q;
    for (uint32_t c = 0; c < a->ci; c++) {
        uint32_t x =
            (((b * a->groups + g) * a->ci + c) * a->ih + (uint32_t)i) * a->iw + (uint32_t)j;
        uint32_t w = (((g * a->co + o) * a->ci + c) * a->kh + r) * a->kw + s;
        v->to_y[y] += v->w[w] * v->x[x];
        v->to_x[x] += v->w[w] * v->y[y];
        v->to_w[w] += v->x[x] * v->y[y];
    }
}

static void vulkan_conv_naive(const vulkan_conv *v) {
    const dti_args_conv *a = &v->a;
    for (uint32_t e = 0; e < v->ny; e++) {
        uint32_t q = e % a->ow, p = e / a->ow % a->oh, o = e / a->ow / a->oh;
        uint32_t at[5] = {o / a->co / a->groups, o / a->co % a->groups, o % a->co, p, q};
        for (uint32_t tap = 0; tap < a->kh * a->kw; tap++)
            vulkan_conv_add(v, at, tap / a->kw, tap % a->kw);
    }
}

static void vulkan_conv_make(vulkan_conv *v) {
    dti_args_conv *a = &v->a;
    a->oh = (a->ih + 2 * a->pad_h - a->dil_h * (a->kh - 1) - 1) / a->stride_h + 1;
    a->ow = (a->iw + 2 * a->pad_w - a->dil_w * (a->kw - 1) - 1) / a->stride_w + 1;
    a->cuts = DTI_MIN(1 + a->iw % 4, a->oh > 1 ? a->oh : a->ow);
    v->nx = a->n * a->groups * a->ci * a->ih * a->iw;
    v->nw = a->groups * a->co * a->ci * a->kh * a->kw;
    v->ny = a->n * a->groups * a->co * a->oh * a->ow;
    v->x = vulkan_numbers(v->nx, 3, 1), v->to_x = vulkan_zeros(v->nx);
    v->w = vulkan_numbers(v->nw, 3, 2), v->to_w = vulkan_zeros(v->nw);
    v->y = vulkan_numbers(v->ny, 3, 3), v->to_y = vulkan_zeros(v->ny);
    vulkan_conv_naive(v);
}

static void vulkan_conv_free(vulkan_conv *v) {
    float *all[] = {v->x, v->w, v->y, v->to_x, v->to_w, v->to_y};
    for (int i = 0; i < 6; i++)
        free(all[i]);
}

static void vulkan_conv_epilogue(float *image, const float *z, uint32_t n, uint32_t channels,
                                 uint32_t plane, int epilogue) {
    for (uint32_t i = 0; i < n; i++) {
        if (epilogue == DTI_EPILOGUE_RELU_GRAD)
            image[i] = z[i] > 0 ? image[i] : 0;
        else
            image[i] = fmaxf(image[i] + z[i / plane % channels], 0);
    }
}

/* The launch again, with 16 bits in all bindings that take them: what f32 makes, rounded. `after`
 * is that of f32 (test_vulkan_halves.c). */
static void vulkan_compare_halves(vulkan_rig *rig, const dti_launch *l, const uint32_t *count,
                                  float *const before[], float *const after[]);

/* `into` by kernel from the two others; epilogue 0: none; RELU: after a bias. Offsets are not 0. */
static void vulkan_conv_check(vulkan_rig *rig, const vulkan_conv *v, int kernel, int epilogue) {
    const dti_args_conv *a = &v->a;
    bool forward = kernel == DTI_K_CONV, dw = kernel == DTI_K_CONV_DW;
    uint32_t n = forward ? v->ny : dw ? v->nw * a->splits * a->cuts : v->nx;
    float *in[2] = {forward ? v->x : v->y, dw ? v->x : v->w};
    uint32_t in_count[2] = {forward ? v->nx : v->ny, dw ? v->nx : v->nw};
    float *expect = malloc(4ull * n + 64), *out = vulkan_zeros(n), *none = vulkan_zeros(n);
    float *z = dw ? NULL : vulkan_numbers(n, 3, 4);
    memcpy(expect, forward ? v->to_y : dw ? v->to_w : v->to_x, 4ull * (dw ? v->nw : n));
    if (epilogue)
        vulkan_conv_epilogue(expect, z, n, a->groups * (forward ? a->co : a->ci),
                             forward ? a->oh * a->ow : a->ih * a->iw, epilogue);
    vulkan_call call = {.launch = {.kernel = (uint16_t)kernel,
                                   .args_bytes = sizeof *a,
                                   .items = n,
                                   .spec = {epilogue == DTI_EPILOGUE_RELU, (uint32_t)epilogue},
                                   .args.conv = *a},
                        .data = {in[0], in[1], out, epilogue ? z : NULL},
                        .count = {in_count[0], in_count[1], n, epilogue ? n : 0}};
    if (vulkan_call_run(rig, &call)) {
        vulkan_compare_halves(rig, &call.launch, call.count, (float *[4]){in[0], in[1], none, z},
                              call.data);
        for (uint32_t part = 1; dw && part < a->splits * a->cuts; part++)
            for (uint32_t i = 0; i < v->nw; i++)
                out[i] += out[part * v->nw + i];
        int bad = vulkan_differences(out, expect, dw ? v->nw : n, 0);
        test_check(
            !bad, __FILE__, __LINE__,
            "%s, epilogue %d: %d of %u differ: n %u, groups %u, %u -> %u, %u x %u, kernel %u x "
            "%u, stride %u, pad %u, dilation %u",
            dti_kernel_info_of((uint32_t)kernel)->name, epilogue, bad, n, a->n, a->groups, a->ci,
            a->co, a->ih, a->iw, a->kh, a->kw, a->stride_w, a->pad_w, a->dil_w);
    }
    free(expect);
    free(none);
    free(out);
    free(z);
}

/* n, groups, ci, co, ih, iw, (oh, ow), kh, kw, strides, paddings, dilations, splits, (cuts) */
static const dti_args_conv vulkan_convs[] = {
    {1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0},
    {3, 1, 5, 11, 9, 13, 0, 0, 3, 3, 1, 1, 1, 1, 1, 1, 2, 0, 0, 0, 0, 0},
    {2, 1, 8, 16, 12, 26, 0, 0, 3, 3, 1, 1, 0, 0, 1, 1, 2, 0, 0, 0, 0, 0},
    {2, 1, 9, 17, 7, 7, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0},
    {2, 1, 3, 10, 11, 14, 0, 0, 3, 3, 2, 2, 1, 1, 1, 1, 2, 0, 0, 0, 0, 0},
    {2, 1, 4, 4, 13, 12, 0, 0, 5, 4, 3, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0, 0},
    {2, 1, 3, 9, 14, 15, 0, 0, 3, 2, 1, 1, 2, 0, 2, 3, 2, 0, 0, 0, 0, 0},
    {1, 2, 3, 5, 10, 17, 0, 0, 3, 3, 2, 3, 0, 4, 3, 2, 1, 0, 0, 0, 0, 0},
    {2, 13, 1, 1, 9, 18, 0, 0, 3, 3, 1, 1, 1, 1, 1, 1, 2, 0, 0, 0, 0, 0},
    {2, 6, 1, 2, 9, 9, 0, 0, 3, 3, 2, 2, 1, 1, 1, 1, 2, 0, 0, 0, 0, 0},
    {3, 1, 6, 8, 1, 40, 0, 0, 1, 5, 1, 1, 0, 2, 1, 1, 3, 0, 0, 0, 0, 0},
    {2, 1, 2, 3, 6, 6, 0, 0, 6, 6, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0},
    {2, 1, 2, 3, 5, 6, 0, 0, 1, 1, 4, 3, 0, 0, 1, 1, 2, 0, 0, 0, 0, 0},
    {1, 1, 8, 8, 8, 34, 0, 0, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0},
    {1, 1, 64, 70, 8, 9, 0, 0, 3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0},
    {2, 2, 13, 14, 11, 14, 0, 0, 3, 3, 2, 3, 1, 4, 1, 2, 1, 0, 0, 0, 0, 0},
};

/* A software driver takes what is meant for GPUs only when it passes for one. */
static void vulkan_try_conv(vulkan_rig *rig) {
    if (rig->in->options.no_unified)
        return;
    rig->in->options.kernel_check = DT_KERNEL_CHECK_NEVER; /* tiles are slower there */
    for (size_t i = 0; i < DTI_COUNT(vulkan_convs); i++) {
        vulkan_conv v = {.a = vulkan_convs[i]};
        if (!vulkan_is_quick(rig) && !test_takes((long)i + 3, 4, 4))
            continue;
        vulkan_conv_make(&v);
        for (int kind = 0; kind < 2; kind++) {
            rig->device->info.kind = kind ? DT_DEVICE_DISCRETE : DT_DEVICE_SOFTWARE;
            vulkan_conv_check(rig, &v, DTI_K_CONV_DW, DTI_EPILOGUE_NONE);
            for (int epilogue = 0; epilogue < (i % 3 == 1 ? 3 : 1); epilogue++) {
                vulkan_conv_check(rig, &v, DTI_K_CONV, epilogue);
                vulkan_conv_check(rig, &v, DTI_K_CONV_DX, epilogue);
            }
        }
        vulkan_conv_free(&v);
    }
}

TEST(vulkan_convolution_and_its_adjoints_are_exact) {
    ON_EACH(vulkan_try_conv);
}

/* ---- Pooling, resizing, normalisation, and what changed in older kernels: as on the CPU */

static float *vulkan_compare_data(const uint32_t *count, uint32_t i) {
    float *data = vulkan_numbers(count[i], 9, 5 * i);
    for (uint32_t j = 0; j < count[i]; j++)
        data[j] *= 0.25f;
    return data;
}

/* Runs the launch on the CPU and on the device, over the same values, and compares what it writes.
 * Bindings hold count[i] values, whole numbers times 0.25. */
static void vulkan_compare(vulkan_rig *rig, const dti_launch *launch, const uint32_t *count,
                           double tolerance) {
    const dti_kernel_info *info = dti_kernel_info_of(launch->kernel);
    vulkan_rig cpu = {.in = rig->in};
    vulkan_call calls[2] = {{.launch = *launch}, {.launch = *launch}};
    bool good = !dti_cpu_open(&rig->base, 99, &cpu.device);
    for (int k = 0; k < 2 && good; k++) {
        for (uint32_t i = 0; i < VULKAN_CALL_MAX && count[i]; i++) {
            calls[k].count[i] = count[i];
            calls[k].data[i] = vulkan_compare_data(count, i);
        }
        good = vulkan_call_run(k ? rig : &cpu, &calls[k]);
    }
    for (int i = 0; i < info->bindings && good; i++) {
        int bad = vulkan_differences(calls[0].data[i], calls[1].data[i], count[i], tolerance);
        test_check(!bad, __FILE__, __LINE__, "%s {%u, %u}: %d of %u differ from the CPU's",
                   info->name, launch->spec[0], launch->spec[1], bad, count[i]);
    }
    for (uint32_t i = 0; i < VULKAN_CALL_MAX && good; i++) {
        free(calls[0].data[i]);
        calls[0].data[i] = vulkan_compare_data(count, i);
    }
    if (good)
        vulkan_compare_halves(rig, launch, count, calls[0].data, calls[1].data);
    for (int i = 0; i < 2 * VULKAN_CALL_MAX; i++)
        free(calls[i / VULKAN_CALL_MAX].data[i % VULKAN_CALL_MAX]);
    if (cpu.device)
        cpu.device->backend->close(cpu.device);
    CHECK(good);
}

static const dti_args_pool vulkan_pools[] = {
    {6, 8, 8, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0, 0, {0}},
    {5, 9, 7, 5, 4, 3, 3, 2, 2, 1, 1, 0, 0, 0, {0}},
    {3, 7, 11, 6, 9, 2, 3, 1, 1, 0, 0, 0, 0, 0, {0}},
    {2, 9, 10, 3, 3, 2, 3, 3, 4, 0, 1, 0, 0, 0, {0}},
    {3, 5, 7, 8, 3, 1, 1, 1, 1, 0, 0, 0, 0, 0, {0}},
};

static void vulkan_compare_pools(vulkan_rig *rig, const dti_args_pool *a, bool adaptive) {
    uint32_t x = a->n * a->ih * a->iw, y = a->n * a->oh * a->ow;
    dti_launch l = {.args_bytes = sizeof *a, .items = y, .args.pool = *a};
    for (l.spec[0] = adaptive ? DTI_POOL_ADAPTIVE : 0; l.spec[0] < (adaptive ? 3 : 2);
         l.spec[0]++) {
        l.kernel = DTI_K_AVG_POOL, l.items = y;
        vulkan_compare(rig, &l, (uint32_t[4]){x, y}, 1e-6);
        l.kernel = DTI_K_AVG_POOL_GRAD, l.items = x;
        vulkan_compare(rig, &l, (uint32_t[4]){y, x}, 1e-6);
    }
    if (adaptive)
        return;
    l.spec[0] = 0, l.kernel = DTI_K_MAX_POOL, l.items = y;
    vulkan_compare(rig, &l, (uint32_t[4]){x, x, y}, 0);
    l.kernel = DTI_K_MAX_POOL_GRAD, l.items = x;
    for (l.spec[1] = 0; l.spec[1] <= DTI_EPILOGUE_RELU_GRAD; l.spec[1] += 2)
        vulkan_compare(rig, &l, (uint32_t[4]){x, y, x}, 0);
}

static void vulkan_compare_resizes(vulkan_rig *rig) {
    static const uint32_t sizes[][4] = {{4, 6, 8, 12}, {9, 7, 5, 11}, {3, 17, 50, 3}, {1, 2, 7, 1}};
    for (uint32_t i = 0; i < DTI_COUNT(sizes); i++) {
        const uint32_t *s = sizes[i], x = 3 * s[0] * s[1], y = 3 * s[2] * s[3];
        dti_args_resize a = {.n = 3, .ih = s[0], .iw = s[1], .oh = s[2], .ow = s[3]};
        a.scale_h = (float)s[0] / (float)s[2], a.scale_w = (float)s[1] / (float)s[3];
        dti_launch l = {.args_bytes = sizeof a, .args.resize = a};
        for (l.spec[0] = 0; l.spec[0] < 2; l.spec[0]++) {
            l.kernel = DTI_K_RESIZE, l.items = y;
            vulkan_compare(rig, &l, (uint32_t[4]){x, y}, 2e-5);
            l.kernel = DTI_K_RESIZE_GRAD, l.items = x;
            vulkan_compare(rig, &l, (uint32_t[4]){y, x}, 2e-5);
        }
    }
}

/* samples, channels, spatial, groups of a sample; 0 groups: of the batch */
static void vulkan_compare_norms(vulkan_rig *rig, uint32_t samples, uint32_t channels,
                                 uint32_t spatial, uint32_t groups) {
    uint32_t n = samples * channels * spatial, batch = !groups;
    dti_args_norm a = {.n = n, .batch = batch, .channels = channels, .spatial = spatial};
    a.b_offset = channels;
    a.eps = 0.5f; /* values of binding 1 stand for variances: also below 0 */
    a.groups = batch ? channels : samples * groups;
    a.cols = n / a.groups;
    dti_launch l = {.args_bytes = sizeof a, .args.norm = a};
    for (l.spec[0] = 0; l.spec[0] < 2 - batch; l.spec[0]++) {
        l.kernel = DTI_K_NORM_STATS, l.items = a.groups, l.spec[1] = 0;
        vulkan_compare(rig, &l, (uint32_t[4]){n, 2 * a.groups}, 1e-5);
        l.kernel = DTI_K_NORM_DX, l.spec[1] = 1;
        if (!batch)
            vulkan_compare(rig, &l, (uint32_t[4]){n, n, channels, n}, 1e-4);
    }
    for (l.spec[0] = 0; l.spec[0] < 3; l.spec[0]++) {
        l.kernel = DTI_K_NORM, l.items = n, l.spec[1] = l.spec[0] == 2;
        vulkan_compare(rig, &l, (uint32_t[4]){n, 2 * a.groups, 2 * channels, n}, 1e-4);
    }
    l.kernel = DTI_K_NORM_DW, l.items = channels, l.spec[0] = l.spec[1] = 0;
    vulkan_compare(rig, &l, (uint32_t[4]){n, 2 * a.groups, n, 2 * channels}, 1e-3);
    l.kernel = DTI_K_BATCH_DX, l.items = n;
    for (l.spec[0] = 0; batch && l.spec[0] < 2; l.spec[0]++)
        vulkan_compare(rig, &l, (uint32_t[4]){n, n, 5 * channels, n}, 1e-4);
}

/* Quarters, whose sums are exact in any order. n results of r elements, along one axis or two. */
static void vulkan_compare_columns(vulkan_rig *rig, uint32_t n, uint32_t r, uint32_t pieces) {
    dti_args_reduce a = {.n = n, .r = r, .kept = 4, .scale = 0.5f, .x_offset = 3, .y_offset = 1};
    const uint32_t dim[6] = {1, 1, 1, n, pieces, r / pieces}, each = r / pieces * n + 2;
    const uint32_t stride[6] = {0, 0, 0, 1, each, n}; /* a gap of 2 between pieces */
    memcpy(a.dim, dim, sizeof dim);
    memcpy(a.x_stride, stride, sizeof stride);
    dti_launch l = {.kernel = DTI_K_REDUCE_COLUMN, .args_bytes = sizeof a, .items = n};
    l.args.reduce = a;
    for (l.spec[0] = 0; l.spec[0] < 3; l.spec[0]++)
        vulkan_compare(rig, &l, (uint32_t[4]){3 + pieces * each, n + 1}, 0);
}

static void vulkan_compare_others(vulkan_rig *rig) {
    vulkan_compare_columns(rig, 13, 100, 1);
    vulkan_compare_columns(rig, 8, 64, 4);
    vulkan_compare_columns(rig, 3, 5, 1);
    vulkan_compare_columns(rig, 130, 1030, 2);
    dti_args_running r = {.n = 9, .keep = 0.5f, .take = 0.25f, .s_offset = 1};
    dti_launch running = {.kernel = DTI_K_RUNNING, .args_bytes = sizeof r, .items = 9};
    running.args.running = r;
    vulkan_compare(rig, &running, (uint32_t[4]){9, 18, 9}, 0);
    running.args.running = (dti_args_running){
        .n = 4, .n2 = 4, .keep = 0.5f, .take = 0.25f, .take2 = 0.375f, .x2_offset = 5};
    running.args.running.y_offset = 5;
    running.items = 8;
    vulkan_compare(rig, &running, (uint32_t[4]){9, 8, 9}, 0);
    dti_args_join j = {.n = 21, .a_end = 6, .b_end = 16, .cols = {6, 5, 5}, .offset = {1, 7, 0}};
    j.stride[1] = (uint32_t)-6; /* rows may lie backwards */
    j.y_offset = 3;
    dti_launch join = {.kernel = DTI_K_JOIN, .args_bytes = sizeof j, .items = 21};
    join.args.join = j;
    vulkan_compare(rig, &join, (uint32_t[4]){7, 13, 5, 24}, 0);
    dti_args_map2 m = {.n = 300, .dim = {1, 1, 1, 1, 1, 300}};
    m.a_stride[5] = m.b_stride[5] = m.y_stride[5] = 1;
    dti_launch map2 = {.kernel = DTI_K_MAP2, .args_bytes = sizeof m, .items = 300};
    map2.args.map2 = m;
    map2.spec[0] = DTI_B_SUB, map2.spec[1] = DTI_EPILOGUE_RELU, map2.spec[3] = 1;
    vulkan_compare(rig, &map2, (uint32_t[4]){300, 300, 300}, 0);
    dti_args_dropout d = {.n = 300, .first = 0xfffffff0u, .row_elements = 7, .scale = 2};
    d.threshold = 0x7fffffffu;
    dti_launch dropout = {.kernel = DTI_K_DROPOUT, .args_bytes = sizeof d, .items = 300};
    dropout.args.dropout = d;
    vulkan_compare(rig, &dropout, (uint32_t[4]){300, 300}, 0);
    dti_args_gemm g = {.m = 37, .n = 43, .k = 12, .a_row = 12, .a_col = 1, .b_row = 43, .b_col = 1};
    g.c_row = 43, g.batch0 = g.batch1 = 1;
    dti_launch gemm = {.kernel = DTI_K_GEMM, .args_bytes = sizeof g, .items = 37 * 43};
    gemm.args.gemm = g;
    gemm.spec[1] = DTI_EPILOGUE_RELU_GRAD;
    rig->in->options.kernel_check = DT_KERNEL_CHECK_NEVER;
    for (int kind = 0; kind < 2; kind++) {
        rig->device->info.kind = kind ? DT_DEVICE_DISCRETE : DT_DEVICE_SOFTWARE;
        vulkan_compare(rig, &gemm, (uint32_t[4]){37 * 12, 12 * 43, 37 * 43, 37 * 43}, 0);
    }
}

static void vulkan_try_images(vulkan_rig *rig) {
    if (rig->in->options.no_unified)
        return;
    for (size_t i = 0; i < DTI_COUNT(vulkan_pools); i++)
        vulkan_compare_pools(rig, &vulkan_pools[i], i + 1 == DTI_COUNT(vulkan_pools));
    vulkan_compare_resizes(rig);
    vulkan_compare_norms(rig, 5, 6, 8, 0);
    vulkan_compare_norms(rig, 300, 3, 1, 0);
    vulkan_compare_norms(rig, 4, 3, 49, 0);
    vulkan_compare_norms(rig, 3, 6, 20, 2);
    vulkan_compare_norms(rig, 3, 6, 7, 3);
    vulkan_compare_norms(rig, 7, 260, 1, 1);
    vulkan_compare_norms(rig, 7, 5, 1, 1);
    vulkan_compare_others(rig);
}

TEST(vulkan_pooling_resizing_and_normalisation_equal_the_cpus) {
    ON_EACH(vulkan_try_images);
}

/* The last NaN of a window wins, by its bits; the first of equals. */
static void vulkan_try_max_pool(vulkan_rig *rig) {
    dti_args_pool a = {.n = 1, .ih = 1, .iw = 8, .oh = 1, .ow = 2, .kh = 1, .kw = 4};
    a.stride_h = 1, a.stride_w = 4;
    float x[8] = {dti_f32_from_bits(0x7fc00001), 5, dti_f32_from_bits(0xffc00002), 7, -3, 2, 2, 1};
    float g[8] = {0, 1, 2, 3, 4, 5, 6, 7}, y[2] = {-1, -1};
    vulkan_call call = {.launch = {.kernel = DTI_K_MAX_POOL, .args_bytes = sizeof a, .items = 2},
                        .data = {x, g, y},
                        .count = {8, 8, 2}};
    call.launch.args.pool = a;
    CHECK(vulkan_call_run(rig, &call));
    CHECK(y[0] == 2 && y[1] == 5);
}

TEST(vulkan_max_pool_takes_the_last_nan_and_the_first_of_equals) {
    ON_EACH(vulkan_try_max_pool);
}

/* Two blocks, the second one a buffer's; the step block is 0, so the learning rate is. */
static void vulkan_try_buffer(vulkan_rig *rig) {
    static float params[512], grads[512], state[512], pairs[4];
    const uint32_t table[8] = {0, 0, DTI_TABLE_FIRST, 256, 1, 0, DTI_TABLE_BUFFER | 1, 3};
    float words[8];
    memcpy(words, table, sizeof words);
    state[DTI_CONTROL_BAD] = dti_f32_from_bits(DTI_BAD_NONE);
    for (int i = 0; i < 512; i++)
        params[i] = 1, grads[i] = 2;
    dti_args_commit a = {.blocks = 2, .t_offset = 300};
    vulkan_call optim = {.launch = {.kernel = DTI_K_OPTIM, .args_bytes = sizeof a, .items = 2},
                         .data = {params, grads, state, words},
                         .count = {512, 512, 512, 8}};
    vulkan_call norm = {.launch = {.kernel = DTI_K_GRAD_NORM, .args_bytes = sizeof a, .items = 2},
                        .data = {grads, words, state, pairs},
                        .count = {512, 8, 512, 4}};
    optim.launch.args.commit = norm.launch.args.commit = a;
    CHECK(vulkan_call_run(rig, &optim));
    CHECK(params[0] == 1 && params[255] == 1 && params[256] == 2 && params[258] == 2);
    CHECK(params[259] == 1);
    grads[257] = (float)INFINITY;
    CHECK(vulkan_call_run(rig, &norm));
    CHECK(pairs[0] == 1024 && pairs[1] == 0 && pairs[2] == 0 && pairs[3] == 1);
    state[DTI_CONTROL_ABORT] = dti_f32_from_bits(1);
    params[256] = 5;
    CHECK(vulkan_call_run(rig, &optim) && params[256] == 5);
    state[DTI_CONTROL_ABORT] = 0;
}

TEST(vulkan_commit_copies_a_buffer_unchanged) {
    ON_EACH(vulkan_try_buffer);
}

#endif
