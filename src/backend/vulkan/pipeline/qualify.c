/* Whether this driver computes a kernel's fast variants right. At the first use of one, it and the
 * portable variant run its trials (trial.h). Both must leave the same memory to the last bit, with
 * whole numbers and with floats. So a program's bits do not depend on the variant. A variant that
 * differs, or that the driver cannot compile, is not used: the portable one runs in its place. The
 * fastest variant for a launch is tested first (tune.c), because only variants in use need to be
 * correct. Results are kept with the pipeline cache, identified by the modules' bytes. */

static dt_result dti_vk_run_trials(dti_vk_device *device, const dti_trials *trials,
                                   uint32_t variant, dti_trial_data data, uint32_t *memory) {
    const dti_vk_forcing before = device->forcing;
    device->forcing = (dti_vk_forcing){true, trials->launches[0].kernel, variant};
    dt_result result = dti_trials_run(trials, &device->head, data, memory);
    device->forcing = before;
    return result;
}

static void dti_vk_note_difference(const dti_trials *trials, const uint32_t *should,
                                   const uint32_t *is, dti_vk_finding *f) {
    const uint64_t words = trials->bytes / DTI_WORD_BYTES;
    for (uint64_t i = 0; i < words && f->same; i++)
        if (is[i] != should[i]) {
            f->same = false;
            f->number = dti_trials_find(trials, i);
            f->trial = trials->list[f->number];
            f->word = i;
            f->is = is[i];
            f->should = should[i];
        }
}

static dt_result dti_vk_compare_all(dti_vk_device *device, const dti_trials *trials,
                                    uint32_t variant, uint32_t *should, uint32_t *is,
                                    dti_vk_finding *f) {
    for (int data = 0; data < DTI_TRIAL_DATA && f->same; data++) {
        f->data = (dti_trial_data)data;
        DTI_TRY(dti_vk_run_trials(device, trials, 0, f->data, should));
        DTI_TRY(dti_vk_run_trials(device, trials, variant, f->data, is));
        dti_vk_note_difference(trials, should, is, f);
    }
    return DT_OK;
}

static bool dti_vk_fits(const dti_vk_device *device, uint32_t kernel, uint32_t variant) {
    const dti_kernel_info *info = dti_kernel_info_of(kernel);
    dti_grid_device grid = dti_vk_grid_device(device);
    grid.software = false;
    return !info->fits || info->fits(variant, &grid);
}

static dt_result dti_vk_compare(dti_vk_device *device, uint32_t kernel, uint32_t variant,
                                dti_vk_finding *finding) {
    dti_base *base = device->head.base;
    const uint64_t begin = dti_now_ns();
    dti_trials trials;
    *finding = (dti_vk_finding){.same = true};
    DTI_TRY(dti_trials_make(base, dti_kernel_info_of(kernel)->trial, &trials));
    dt_result result = DT_OK;
    finding->launches = trials.count;
    uint32_t *memory = dti_alloc_array(base, 2 * (size_t)trials.bytes + 1, 1);
    if (!memory)
        result = DT_ERROR_MEMORY;
    else if (trials.count)
        result = dti_vk_compare_all(device, &trials, variant, memory,
                                    memory + trials.bytes / DTI_WORD_BYTES, finding);
    dti_free(base, memory);
    dti_trials_destroy(&trials);
    finding->ms = (double)(dti_now_ns() - begin) * 1e-6;
    return result;
}

/* ---- Verdicts -------------------------------------------------------------------------------- */

static void dti_vk_strike(dti_vk_device *device, const dti_vk_shader *shader,
                          const dti_vk_finding *f) {
    dti_base *base = device->head.base;
    const char *name = device->head.info.name, *of = dti_kernel_info_of(shader->kernel)->name;
    device->verdicts[shader->kernel][shader->variant] = DTI_VK_STRUCK;
    if (!f)
        dti_log(base, DT_LOG_WARNING,
                "%s: the kernel %s is not used for %s, the driver cannot compile or run it (%s); "
                "another one is used",
                name, shader->name, of, base->error);
    else
        dti_log(
            base, DT_LOG_WARNING,
            "%s: the kernel %s is not used for %s, it computes wrong values with this driver (%s, "
            "launch %u of its check: 0x%08x instead of 0x%08x); another one is used",
            name, shader->name, of, f->data == DTI_TRIAL_WHOLE ? "whole numbers" : "floats",
            f->number, f->is, f->should);
}

/* Whether the variant is right. For want of memory, and on a device that was lost, nothing is known
 * of it. */
static dti_vk_verdict dti_vk_judge(dti_vk_device *device, uint32_t kernel, uint32_t variant) {
    const dti_vk_shader *shader = dti_vk_shader_of(kernel, variant);
    uint8_t *verdict = &device->verdicts[kernel][variant];
    dti_vk_finding finding;
    if (*verdict)
        return (dti_vk_verdict)*verdict;
    dt_result result = dti_vk_compare(device, kernel, variant, &finding);
    if (!result && finding.same && finding.launches)
        *verdict = DTI_VK_GOOD;
    else if (result == DT_ERROR_DEVICE || (!result && !finding.same))
        dti_vk_strike(device, shader, result ? NULL : &finding);
    return (dti_vk_verdict)*verdict;
}

/* Then the text names those that were found wrong; the first other one is used. */
static void dti_vk_say_race(dti_vk_device *device, uint32_t kernel, uint32_t variant,
                            const dti_vk_race *race) {
    char text[256] = "";
    size_t at = 0;
    for (uint32_t i = 0; i < race->count && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%u: %.4f", i ? ", " : "",
                               race->variant[i], race->ms[i]);
    dti_log(device->head.base, DT_LOG_INFO,
            "%s: launches of %s for variant %u, in milliseconds by variant: %s; the first is used",
            device->head.info.name, dti_kernel_info_of(kernel)->name, variant, text);
}

/* The fastest that is right. Of a variant that no launch takes nothing is timed. */
static uint32_t dti_vk_choose(dti_vk_device *device, uint32_t kernel, uint32_t variant) {
    dti_vk_race race;
    dt_result result = dti_vk_tune(device, kernel, variant, &race);
    if (result == DT_ERROR_DEVICE) { /* the driver cannot run one of them */
        dti_vk_strike(device, dti_vk_shader_of(kernel, variant), NULL);
        device->chosen[kernel][variant] = 1;
    }
    if (result)
        return 0;
    if (race.count)
        dti_vk_say_race(device, kernel, variant, &race);
    else
        race = (dti_vk_race){.count = 1, .variant = {variant}};
    uint32_t won = 0;
    for (uint32_t i = 0; i < race.count && !won && race.variant[i]; i++) {
        const dti_vk_verdict verdict = dti_vk_judge(device, kernel, race.variant[i]);
        if (!verdict)
            return 0;
        if (verdict == DTI_VK_GOOD)
            won = race.variant[i];
    }
    device->chosen[kernel][variant] = (uint8_t)(won + 1);
    return won;
}

static uint32_t dti_vk_allowed(dti_vk_device *device, uint32_t kernel, uint32_t variant) {
    if (device->forcing.forced && device->forcing.kernel == kernel)
        return device->forcing.variant;
    const dt_kernel_check check = device->instance->options.kernel_check;
    if (!variant || !dti_vk_shader_of(kernel, variant) || check == DT_KERNEL_CHECK_NEVER)
        return variant;
    const uint8_t chosen = device->chosen[kernel][variant];
    if (chosen && (chosen == 1 || device->verdicts[kernel][chosen - 1] == DTI_VK_GOOD))
        return chosen - 1u;
    return dti_vk_choose(device, kernel, variant);
}

/* ---- For a later run ------------------------------------------------------------------------- */

typedef struct dti_vk_judged {
    /* CRC32C of the packed modules: this one's, and all of the kernel, after its name. */
    uint32_t fast, all;
    uint32_t variant, verdict, chosen;
    uint32_t sums; /* 0: not asked for spills; else 1, and the device's, by eights */
} dti_vk_judged;

static dti_vk_judged dti_vk_judged_of(const dti_vk_device *device, const dti_vk_shader *shader) {
    const char *name = dti_kernel_info_of(shader->kernel)->name;
    uint32_t all = dti_crc32c(0, name, strlen(name));
    for (uint32_t v = 0; v < DTI_VK_VARIANTS_MAX; v++) {
        const dti_vk_shader *other = dti_vk_shader_of(shader->kernel, v);
        all = other ? dti_crc32c(all, other->packed, other->packed_bytes) : all;
    }
    return (dti_vk_judged){
        .fast = dti_crc32c(0, shader->packed, shader->packed_bytes),
        .all = all,
        .variant = shader->variant,
        .verdict = device->verdicts[shader->kernel][shader->variant],
        .chosen = device->chosen[shader->kernel][shader->variant],
        .sums = device->asked[shader->kernel] >> shader->variant & 1 ? 1 + device->sums / 8 : 0};
}

static size_t dti_vk_verdicts_write(const dti_vk_device *device, void *out) {
    size_t bytes = 0;
    for (size_t i = 0; i < DTI_COUNT(dti_vk_shaders); i++) {
        const dti_vk_shader *shader = &dti_vk_shaders[i];
        const dti_vk_judged judged = dti_vk_judged_of(device, shader);
        if (!(judged.verdict | judged.chosen | judged.sums))
            continue;
        if (out)
            memcpy((char *)out + bytes, &judged, sizeof judged);
        bytes += sizeof(dti_vk_judged);
    }
    return bytes;
}

static void dti_vk_verdicts_read(dti_vk_device *device, const void *data, size_t bytes) {
    for (size_t i = 0; i < DTI_COUNT(dti_vk_shaders); i++) {
        const dti_vk_shader *shader = &dti_vk_shaders[i];
        const dti_vk_judged mine = dti_vk_judged_of(device, shader);
        for (size_t at = 0; at + sizeof mine <= bytes; at += sizeof mine) {
            dti_vk_judged judged;
            memcpy(&judged, (const char *)data + at, sizeof judged);
            if (judged.fast != mine.fast || judged.all != mine.all ||
                judged.variant != mine.variant || judged.verdict >= DTI_VK_VERDICTS ||
                judged.chosen > DTI_VK_VARIANTS_MAX || judged.sums > DTI_VK_SUMS_MOST / 8)
                continue;
            if (judged.sums) {
                device->asked[shader->kernel] |= (uint16_t)(1u << shader->variant);
                device->sums = 8 * (judged.sums - 1);
            }
            device->verdicts[shader->kernel][shader->variant] = (uint8_t)judged.verdict;
            device->chosen[shader->kernel][shader->variant] = (uint8_t)judged.chosen;
            if (judged.verdict == DTI_VK_STRUCK)
                dti_log(device->head.base, DT_LOG_WARNING,
                        "%s: the kernel %s is not used for %s, its check failed in an earlier run; "
                        "another one is used",
                        device->head.info.name, shader->name,
                        dti_kernel_info_of(shader->kernel)->name);
        }
    }
}
