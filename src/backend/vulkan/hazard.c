/* Which launches need a barrier before them: a pure function of the bytes that they touch. */

#ifndef DT_NO_VULKAN

static bool dti_vk_conflict(const dti_vk_access *a, const dti_vk_access *b) {
    return (a->write || b->write) && a->memory == b->memory && a->begin < b->end &&
           b->begin < a->end;
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

#endif
