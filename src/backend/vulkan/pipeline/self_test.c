/* Whether a device computes at all. The known-answer launch (op/core/known.c) runs once when the
 * device is opened, and must leave the words that the host expects. Another result is an error.
 * Without this a driver that computes nothing would train with a loss of 0. qualify.c only compares
 * kernels of the same device. */

static dt_result dti_vk_self_test_judge(dti_vk_device *device, const dti_trials *t,
                                        const uint32_t *should, const uint32_t *is) {
    const dt_device_info *info = &device->head.info;
    const uint64_t words = t->bytes / DTI_WORD_BYTES;
    uint64_t wrong = 0, first = 0;
    for (uint64_t i = words; i-- > 0;)
        if (is[i] != should[i]) {
            wrong++;
            first = i;
        }
    if (!wrong)
        return DT_OK;
    return dti_fail(device->head.base, DT_ERROR_DEVICE,
                    "%s (%s, %s) computes wrong values: %llu of %llu words of the first check, "
                    "sums of %u rows; word %llu is 0x%08x instead of 0x%08x; use another driver or "
                    "device, or \"cpu\"",
                    info->id, info->name, info->driver, (unsigned long long)wrong,
                    (unsigned long long)words, (unsigned)DTI_KNOWN_ROWS, (unsigned long long)first,
                    is[first], should[first]);
}

static dt_result dti_vk_self_test_run(dti_vk_device *device, const dti_trials *t, uint32_t *should,
                                      uint32_t *is) {
    dti_trials_fill(t, DTI_TRIAL_WHOLE, should);
    dti_known_answer((const float *)should + t->places[0].offset / DTI_WORD_BYTES,
                     (float *)should + t->places[1].offset / DTI_WORD_BYTES);
    DTI_TRY(dti_trials_run(t, &device->head, DTI_TRIAL_WHOLE, is));
    return dti_vk_self_test_judge(device, t, should, is);
}

static dt_result dti_vk_self_test(dti_vk_device *device) {
    dti_base *base = device->head.base;
    dti_trials trials;
    DTI_TRY(dti_trials_make(base, dti_known_trial, &trials));
    uint32_t *memory = dti_alloc_array(base, 2 * (size_t)trials.bytes, 1);
    dt_result result = memory ? dti_vk_self_test_run(device, &trials, memory,
                                                     memory + trials.bytes / DTI_WORD_BYTES)
                              : DT_ERROR_MEMORY;
    dti_free(base, memory);
    dti_trials_destroy(&trials);
    return result;
}
