/* Hashes that name things inside one program: FNV-1a 64, for plans and caches. Not meant to be
 * fast, nor to hold against intent. */

static uint64_t dti_hash64(uint64_t hash, const void *data, size_t bytes) {
    const uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 1099511628211u;
    return hash;
}
