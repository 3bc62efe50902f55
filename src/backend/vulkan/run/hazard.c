/* Which launches need a barrier before them: a pure function of the bytes that they touch. */

static uint32_t dti_vk_accesses_of(const dti_launch *launch, const dti_place *places,
                                   dti_vk_access *accesses) {
    const dti_kernel_info *info = dti_kernel_info_of(launch->kernel);
    for (int i = 0; i < info->bindings; i++) {
        const dti_place *p = &places[launch->value[i]];
        accesses[i] = (dti_vk_access){.memory = p->memory,
                                      .write = info->access[i] != 'r',
                                      .begin = p->offset,
                                      .end = p->offset + p->bytes};
    }
    if (info->stripe) {
        const dti_stripe stripe = info->stripe(launch);
        dti_vk_access *written = &accesses[info->bindings - 1];
        written->period = DTI_WORD_BYTES * stripe.period;
        written->from = DTI_WORD_BYTES * stripe.from;
        written->to = DTI_WORD_BYTES * stripe.to;
    }
    return info->bindings;
}

static bool dti_vk_apart(const dti_vk_access *a, const dti_vk_access *b) {
    return a->period && a->period == b->period && a->begin == b->begin &&
           (a->to <= b->from || b->to <= a->from);
}

static bool dti_vk_conflict(const dti_vk_access *a, const dti_vk_access *b) {
    return (a->write || b->write) && a->memory == b->memory && a->begin < b->end &&
           b->begin < a->end && !dti_vk_apart(a, b);
}

static bool dti_vk_hazard_add(dti_vk_hazard *h, const dti_vk_access *accesses, uint32_t count) {
    bool barrier = h->count + count > DTI_VK_ACCESSES_MAX;
    for (uint32_t i = 0; i < h->count && !barrier; i++)
        for (uint32_t j = 0; j < count && !barrier; j++)
            barrier = dti_vk_conflict(&h->access[i], &accesses[j]);
    if (barrier)
        h->count = 0;
    memcpy(h->access + h->count, accesses, count * sizeof *accesses);
    h->count += count;
    return barrier;
}
