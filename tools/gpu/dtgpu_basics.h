/* Part of dtgpu.c: the device, its peak rates, and what a launch and a copy cost. Also whether each
 * variant of a kernel is right. */

typedef struct rig { /* only the device, without a context */
    dti_base base;
    dti_vk_instance *in;
    dti_vk_device *device;
    dti_memory *memories[3];
} rig;

static const char *loader_file; /* NULL: the system's */

static void check(const dti_base *base, dt_result result, const char *what) {
    if (result)
        fail(what, base && base->error[0] ? base->error : dt_result_text(result));
}

/* In place: what is opened keeps pointers to r->base. */
static void rig_open(rig *r, const char *id) {
    *r = (rig){0};
    const dt_logger logger = {hear, NULL};
    const dti_vk_options options = {.loader = loader_file};
    dti_base_init(&r->base, NULL, &logger);
    check(&r->base, dti_vk_instance_create(&r->base, &options, &r->in), "Vulkan");
    for (int i = 0; i < r->in->device_count; i++)
        if (!strcmp(r->in->infos[i].id, id)) {
            dti_device *device;
            check(&r->base, dti_vk_open(r->in, i, &device), id);
            r->device = (dti_vk_device *)device;
            return;
        }
    fail(id, "there is no such device");
}

/* One arena, and the two that a program's launches need. */
static void rig_memory(rig *r, uint64_t bytes) {
    const dti_backend *b = r->device->head.backend;
    static const dti_memory_kind kinds[3] = {DTI_MEMORY_DEVICE, DTI_MEMORY_IN, DTI_MEMORY_OUT};
    for (int i = 0; i < 3; i++) {
        b->memory_destroy(r->memories[i]);
        r->memories[i] = NULL;
        check(&r->base,
              b->memory_create(&r->device->head, i ? DTI_WORD_BYTES * DTI_STATUS_WORDS : bytes,
                               kinds[i], &r->memories[i]),
              "memory");
    }
}

static void rig_close(rig *r) {
    for (int i = 0; i < 3; i++)
        r->device->head.backend->memory_destroy(r->memories[i]);
    r->device->head.backend->close(&r->device->head);
    dti_vk_instance_destroy(r->in);
}

static dti_exec *rig_exec(rig *r, const dti_place *places, uint32_t place_count,
                          const dti_launch *launches, uint32_t count) {
    const dti_segment segment = {.count = count};
    const dti_exec_desc desc = {.label = "measuring",
                                .memories = r->memories,
                                .memory_count = 3,
                                .places = places,
                                .place_count = place_count,
                                .launches = launches,
                                .launch_count = count,
                                .segments = &segment,
                                .segment_count = 1,
                                .in = 1,
                                .out = 2};
    dti_exec *exec;
    check(&r->base, r->device->head.backend->exec_create(&r->device->head, &desc, &exec),
          "launches");
    return exec;
}

/* Milliseconds of the host. */
static double rig_run(rig *r, dti_exec *exec) {
    const dti_backend *b = r->device->head.backend;
    const double begin = now_ms();
    check(&r->base, b->exec_start(exec, 0, 1), "start");
    check(&r->base, b->exec_wait(exec), "wait");
    return now_ms() - begin;
}

static bool is_software(const rig *r) {
    return r->device->head.info.kind == DT_DEVICE_SOFTWARE;
}

/* ---- device */

/* When, and on what. */
static void device_system(void) {
    struct utsname system;
    char when[64] = "?";
    const time_t now = time(NULL);
    const struct tm *utc = gmtime(&now);
    if (utc)
        strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", utc);
    say("fact\tmeasured\t%s", when);
    if (!uname(&system))
        say("fact\tsystem\t%s %s, %s, %ld processors", system.sysname, system.release,
            system.machine, sysconf(_SC_NPROCESSORS_ONLN));
}

static void section_device(const char *id) {
    rig r;
    rig_open(&r, id);
    const dt_device_info *d = &r.device->head.info;
    static const char *const kinds[] = {"CPU", "discrete GPU", "integrated GPU", "virtual GPU",
                                        "software (Vulkan on the CPU)"};
    say("fact\tname\t%s", d->name);
    say("fact\tdriver\t%s", d->driver);
    say("fact\tkind\t%s", kinds[d->kind]);
    say("fact\tids\tvendor 0x%04x, device 0x%04x, driver 0x%08x", d->vendor_id, d->device_id,
        r.device->identity.driver_version);
    say("fact\tVulkan\t%u.%u.%u", d->api_major, d->api_minor, d->api_patch);
    say("fact\tworkgroup\t%u invocations, %u bytes shared, subgroups of %u",
        d->workgroup_invocations, d->shared_bytes, d->subgroup_size);
    say("fact\tlargest binding\t%llu MiB", (unsigned long long)(d->storage_range_bytes >> 20));
    for (uint32_t i = 0; i < r.device->heaps.memoryHeapCount; i++)
        say("fact\theap %u\t%llu MiB%s", i,
            (unsigned long long)(r.device->heaps.memoryHeaps[i].size >> 20),
            r.device->heaps.memoryHeaps[i].flags & 1 ? ", device local" : "");
    say("fact\thas\t%s%s%s%s%s%s", d->has_float16 ? "float16 " : "",
        d->has_storage16 ? "storage16 " : "",
        d->has_cooperative_matrix ? "cooperative-matrix " : "",
        d->has_timeline ? "timeline-semaphores " : "", d->has_memory_budget ? "memory-budget " : "",
        d->has_float_controls ? "float-controls" : "");
    clock_start(r.device, CLOCK_OFF);
    if (clocks.has)
        say("fact\ttimestamps\ta tick of %g ns", clocks.ns);
    else
        say("fact\ttimestamps\tnone on this queue: kernels are timed by the host's clock");
    clock_stop();
    clock_close();
    device_system();
    rig_close(&r);
}

/* ---- peaks */

/* The module of dtgpu_peak.h in the place of a kernel's: what else a pipeline takes is the same. */
static dti_VkResult DTI_VKAPI peak_module(dti_VkDevice device,
                                          const dti_VkShaderModuleCreateInfo *info,
                                          const void *allocator, void *module) {
    dti_VkShaderModuleCreateInfo peak = *info;
    peak.codeSize = sizeof gpu_peak_words;
    peak.pCode = gpu_peak_words;
    return clocks.real.CreateShaderModule(device, &peak, allocator, module);
}

/* Runs n invocations of it; the device's milliseconds, the best of some. */
static double peak_ms(rig *r, bool copies, uint32_t n, uint32_t loops) {
    const uint64_t bytes = copies ? 16ull * n : 256;
    dti_launch launch = {.kernel = DTI_K_ACCUMULATE,
                         .args_bytes = 8,
                         .items =
                             4ull * n, /* the kernel whose place it takes has 4 an invocation */
                         .spec = {copies},
                         .value = {0, 1, 0, 0}};
    const dti_place places[2] = {{0, 0, bytes}, {0, (bytes + 255) / 256 * 256, bytes}};
    const uint32_t args[2] = {n, loops};
    memcpy(&launch.args, args, sizeof args);
    rig_memory(r, 2 * ((bytes + 255) / 256 * 256));
    clock_start(r->device, CLOCK_LAUNCHES);
    r->device->vk.CreateShaderModule = peak_module;
    dti_exec *exec = rig_exec(r, places, 2, &launch, 1);
    clock_stop();
    double best = 1e30;
    for (int i = 0; i < 5; i++) {
        const double host = rig_run(r, exec);
        if (clocks.has)
            clock_read();
        best = DTI_MIN(best, clocks.has ? clocks.spans[0].ms : host);
    }
    r->device->head.backend->exec_destroy(exec);
    clock_close();
    return best;
}

/* GFLOP/s and GB/s, kept for the sections that compare with them. */
static void section_peaks(const char *id) {
    rig r;
    rig_open(&r, id);
    const uint32_t n = is_software(&r) ? 1u << 14 : 1u << 21;
    double flops = 0, bytes = 0;
    for (uint32_t loops = 16; loops <= 4096 && has_time(1); loops *= 4) {
        const double ms = peak_ms(&r, false, n, loops);
        flops = DTI_MAX(flops, 2.0 * 4 * 8 * 4 * n * loops / ms * 1e-6);
        if (ms > (is_software(&r) ? 100 : 10))
            break;
    }
    say("fact\tFMA, GFLOP/s\t%.0f", flops);
    const uint64_t most = DTI_MIN(r.device->head.info.storage_range_bytes, 256ull << 20);
    for (uint64_t size = 4u << 20; size <= most && has_time(1); size *= 4) {
        const double ms = peak_ms(&r, true, (uint32_t)(size / 16), 0);
        const double rate = 2 * (double)size / ms * 1e-6;
        say("fact\tcopy of %llu MiB, GB/s read and written\t%.1f", (unsigned long long)(size >> 20),
            rate);
        bytes = rate; /* of the largest: the small ones may stay in a cache */
        if (ms > 100)
            break;
    }
    say("peak\t%.3f\t%.3f", flops, bytes);
    rig_close(&r);
}

/* ---- latency */

static double median_of(double *ms, int count) {
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && ms[k] < ms[k - 1]; k--) {
            const double swap = ms[k];
            ms[k] = ms[k - 1];
            ms[k - 1] = swap;
        }
    return count ? ms[count / 2] : 0;
}

static dti_launch tiny_copy(uint32_t to) {
    dti_launch l = {.kernel = DTI_K_COPY,
                    .args_bytes = sizeof(dti_args_map1),
                    .items = 64,
                    .spec = {DTI_COPY_WORD},
                    .value = {0, to, 0, 0}};
    l.args.map1 = (dti_args_map1){.n = 64, .dim = {1, 1, 1, 1, 1, 64}};
    l.args.map1.x_stride[5] = l.args.map1.y_stride[5] = 1;
    return l;
}

static void latency_launches(rig *r, uint32_t count, bool dependent) {
    dti_place *places = calloc(count + 1, sizeof *places);
    dti_launch *launches = calloc(count, sizeof *launches);
    if (!places || !launches)
        fail("latency", "no memory");
    for (uint32_t i = 0; i <= count; i++)
        places[i] = (dti_place){0, 256ull * i, 256};
    for (uint32_t i = 0; i < count; i++)
        launches[i] = tiny_copy(dependent ? 1 : i + 1);
    rig_memory(r, 256ull * (count + 1));
    dti_exec *exec = rig_exec(r, places, count + 1, launches, count);
    double ms[16];
    int n = 0;
    rig_run(r, exec);
    while (n < 15 && has_time(1))
        ms[n++] = rig_run(r, exec);
    say("row\tlatency\t%u launches of 64 words%s\t%.1f", count,
        count < 2   ? ""
        : dependent ? ", one after the other"
                    : ", beside each other",
        1e3 * median_of(ms, n));
    r->device->head.backend->exec_destroy(exec);
    free(places);
    free(launches);
}

static void latency_copies(rig *r, uint64_t bytes) {
    const dti_backend *b = r->device->head.backend;
    double ms[2][8];
    int n = 0;
    char *data = calloc(1, bytes);
    if (!data)
        fail("latency", "no memory");
    rig_memory(r, bytes);
    for (int i = -1; i < 7 && has_time(1); i++) {
        double t[3] = {now_ms()};
        check(&r->base, b->memory_write(r->memories[0], 0, data, bytes), "upload");
        t[1] = now_ms();
        check(&r->base, b->memory_read(r->memories[0], 0, data, bytes), "download");
        t[2] = now_ms();
        for (int k = 0; k < 2 && i >= 0; k++)
            ms[k][i] = t[k + 1] - t[k];
        n = i + 1;
    }
    for (int k = 0; k < 2 && n; k++) {
        const double typical = median_of(ms[k], n);
        say("row\tcopies\t%s of %llu KiB\t%.1f\t%.2f", k ? "download" : "upload",
            (unsigned long long)(bytes >> 10), 1e3 * typical, (double)bytes / typical * 1e-6);
    }
    free(data);
}

static void section_latency(const char *id) {
    rig r;
    rig_open(&r, id);
    double ms[32];
    int n = 0;
    say("table\tlatency\tWhat a submission costs, with the wait for it\twhat\tus ~");
    dti_vk_run(r.device, NULL);
    while (n < 31 && has_time(1)) {
        const double begin = now_ms();
        check(&r.base, dti_vk_run(r.device, NULL), "submit");
        ms[n++] = now_ms() - begin;
    }
    say("row\tlatency\tnothing\t%.1f", 1e3 * median_of(ms, n));
    latency_launches(&r, 1, true);
    for (uint32_t count = 100; count <= 1000 && has_time(100); count *= 10)
        for (int dependent = 0; dependent < 2; dependent++)
            latency_launches(&r, count, dependent);
    say("table\tcopies\tCopies between host and device, each waited for\twhat\tus\tGB/s ~");
    for (uint64_t bytes = 4u << 10; bytes <= 64u << 20 && has_time(200); bytes *= 64)
        latency_copies(&r, bytes);
    rig_close(&r);
}

/* ---- checks */

/* A module may be a variant of several kernels. */
static const char *check_name(const dti_vk_shader *s) {
    static char text[64];
    const char *kernel = dti_kernel_info_of(s->kernel)->name;
    snprintf(text, sizeof text, s->variant ? "%s by %s" : "%s", kernel, s->name);
    return text;
}

/* A variant by its number and its tile: rows x columns of the result, by steps of the sum. */
static const char *variant_text(uint32_t kernel, uint32_t variant) {
    static char text[2][64];
    static int turn;
    char *to = text[turn = !turn];
    const dti_gemm_tile *g = &dti_gemm_shapes[DTI_MIN(variant, DTI_GEMM_VARIANTS - 1u)];
    if (!variant) {
        snprintf(to, 64, "0: registers");
    } else if (kernel == DTI_K_GEMM) {
        snprintf(to, 64, "%u: %u x %u x %u", variant, g->bm, g->bn, g->bk);
    } else {
        const dti_conv_shape c = dti_conv_shape_of(variant);
        snprintf(to, 64, "%u: %u x %u x %u", variant, c.bm, c.bn, c.bk);
    }
    return to;
}

static void check_row(const dti_vk_shader *s, const char *against, dt_result result,
                      const dti_vk_finding *f, const dti_base *base) {
    const char *verdict = result ? base->error : !f->launches ? "has no check" : "the same bits";
    char text[128];
    if (!result && !f->same) {
        snprintf(text, sizeof text, "WRONG: %s, launch %u: 0x%08x, not 0x%08x",
                 f->data == DTI_TRIAL_WHOLE ? "whole numbers" : "floats", f->number, f->is,
                 f->should);
        verdict = text;
    }
    say("row\tchecks\t%s\t%s\t%s\t%u\t%.1f\t%s", check_name(s), variant_text(s->kernel, s->variant),
        against, f->launches, f->ms, verdict);
    if (result || !f->same)
        say("bad\t%s, variant %u: %s", check_name(s), s->variant, verdict);
}

/* The portable variant against the CPU, in whole numbers, where the order of a sum is not seen. */
static dt_result check_portable(rig *r, const dti_vk_shader *s, dti_vk_finding *f) {
    dti_trials trials;
    dti_device *cpu = NULL;
    const double begin = now_ms();
    *f = (dti_vk_finding){.same = true};
    check(&r->base, dti_trials_make(&r->base, dti_kernel_info_of(s->kernel)->trial, &trials),
          "trials");
    f->launches = trials.count;
    uint32_t *memory = calloc(2, trials.bytes + 4), *other = memory + trials.bytes / 4;
    dt_result result = memory ? dti_cpu_open(&r->base, DTI_ISA_PORTABLE, &cpu) : DT_ERROR_MEMORY;
    if (!result && trials.count)
        result = dti_trials_run(&trials, cpu, DTI_TRIAL_WHOLE, other);
    if (!result && trials.count)
        result = dti_vk_run_trials(r->device, &trials, 0, DTI_TRIAL_WHOLE, memory);
    if (!result && trials.count)
        dti_vk_note_difference(&trials, other, memory, f);
    if (cpu)
        cpu->backend->close(cpu);
    free(memory);
    dti_trials_destroy(&trials);
    f->ms = now_ms() - begin;
    return result;
}

static void check_variant(rig *r, const dti_vk_shader *s) {
    dti_vk_finding f = {0};
    if (!dti_vk_fits(r->device, s->kernel, s->variant)) {
        say("row\tchecks\t%s\t%s\t\t0\t0\tnot for this device: too large", check_name(s),
            variant_text(s->kernel, s->variant));
        return;
    }
    dt_result result = s->variant ? dti_vk_compare(r->device, s->kernel, s->variant, &f)
                                  : check_portable(r, s, &f);
    check_row(s, s->variant ? "the portable variant" : "the CPU", result, &f, &r->base);
}

/* Each that was timed, the fastest first. */
static void choice_row(rig *r, const dti_vk_shader *s) {
    dti_vk_race race;
    char text[256] = "";
    if (!s->variant || !dti_vk_fits(r->device, s->kernel, s->variant) || !has_time(1))
        return;
    dt_result result = dti_vk_tune(r->device, s->kernel, s->variant, &race);
    size_t at = 0;
    for (uint32_t i = 0; i < race.count && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%.4f by %s", i ? "; " : "",
                               race.ms[i], variant_text(s->kernel, race.variant[i]) + 3);
    if (result || race.count)
        say("row\tchoices\t%s\t%s\t%s\t%s", check_name(s), variant_text(s->kernel, s->variant),
            result ? r->base.error : variant_text(s->kernel, race.variant[0]), text);
}

/* As a program's first use of a variant decides. */
static void check_choices(rig *r) {
    if (is_software(r)) {
        say("note\ta software device takes the portable variants, without a trial");
        return;
    }
    say("table\tchoices\tWhat is used here for launches of the size that a fast variant is for: "
        "the fastest of what can make them, and milliseconds of all"
        "\tkernel\tmeant for\tused\tms of a launch");
    for (size_t i = 0; i < DTI_COUNT(dti_vk_shaders); i++)
        choice_row(r, &dti_vk_shaders[i]);
}

/* The portable variants first, which every device uses: whatever time they take. */
static void section_checks(const char *id) {
    rig r;
    rig_open(&r, id);
    check(&r.base, dti_pool_create(&r.base, 1, NULL, &r.base.pool), "threads");
    say("table\tchecks\tKernels, each against another way to compute the same\tkernel\tvariant"
        "\tagainst\tlaunches\tms\tverdict");
    int without = 0, left_out = 0;
    for (int fast = 0; fast < 2; fast++)
        for (size_t i = 0; i < DTI_COUNT(dti_vk_shaders); i++) {
            const dti_vk_shader *s = &dti_vk_shaders[i];
            if ((s->variant > 0) != fast)
                continue;
            if (!dti_kernel_info_of(s->kernel)->trial)
                without++;
            else if (!fast || has_time(1))
                check_variant(&r, s);
            else
                left_out++;
        }
    if (left_out)
        say("note\t%d variants were left out: there was no time for them", left_out);
    say("note\t%d other kernels have one variant; the tests compare them with the CPU", without);
    check_choices(&r);
    dti_pool_destroy(&r.base, r.base.pool);
    rig_close(&r);
}
