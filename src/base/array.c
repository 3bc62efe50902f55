/* Growing arrays: doubled, so a push costs a constant on average; new items are zero. */

static bool dti_array_reserve(dti_base *base, void *items, size_t *capacity, size_t count,
                              size_t size) {
    if (count <= *capacity)
        return true;
    size_t wanted = *capacity > SIZE_MAX / 2 ? count : DTI_MAX(*capacity * 2, count);
    wanted = DTI_MAX(wanted, 8);
    void *grown = dti_alloc_array(base, wanted, size), *old;
    memcpy(&old, items, sizeof old); /* a pointer of any type */
    if (!grown)
        return false;
    if (old)
        memcpy(grown, old, *capacity * size);
    dti_free(base, old);
    memcpy(items, &grown, sizeof grown);
    *capacity = wanted;
    return true;
}
