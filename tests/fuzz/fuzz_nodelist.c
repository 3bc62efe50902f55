/* Any text as a host list: its names, which are a list of the same names, or refused. The target
 * has the implementation in it, since it calls what is internal. */
#ifndef FUZZ_REPLAY
#define DT_COMM_ONLY
#define DT_STATIC
#define DT_IMPLEMENTATION
#endif
#include "fuzz/fuzz.h"

#define FUZZ_NAMES 32

/* The names of a short list, with commas, are a list too: the same one. */
static void fuzz_nodelist_again(const char *list, uint64_t count) {
    static char plain[FUZZ_NAMES * 64];
    char name[64], again[64];
    size_t size = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (!dti_nodelist_at(list, i, name, sizeof name))
            return; /* too long for here */
        size += (size_t)snprintf(plain + size, sizeof plain - size, "%s%s", i ? "," : "", name);
    }
    uint64_t count_again = 0;
    FUZZ_CHECK(dti_nodelist_count(plain, &count_again) && count_again == count);
    for (uint64_t i = 0; i < count; i++) {
        dti_nodelist_at(list, i, name, sizeof name);
        FUZZ_CHECK(dti_nodelist_at(plain, i, again, sizeof again) && !strcmp(name, again));
    }
}

static dt_result fuzz_nodelist(const uint8_t *data, size_t size) {
    uint64_t count = 0;
    char *list = malloc(size + 1); /* ends where the sanitizers look */
    char name[4096] = "x", little[3];
    if (!list)
        return DT_ERROR_MEMORY;
    memcpy(list, data, size);
    list[size] = 0;
    bool ok = dti_nodelist_count(list, &count);
    FUZZ_CHECK(!ok || (count > 0 && count <= INT64_MAX));
    FUZZ_CHECK(dti_nodelist_first(list, name, sizeof name) == ok && !name[0] == !ok);
    if (ok) {
        FUZZ_CHECK(dti_nodelist_at(list, count - 1, name, sizeof name) && name[0]);
        for (const char *at = name; *at; at++)
            FUZZ_CHECK(dti_is_host_char(*at));
        if (!dti_nodelist_at(list, count / 2, little, sizeof little))
            FUZZ_CHECK(!little[0]);
        if (count <= FUZZ_NAMES)
            fuzz_nodelist_again(list, count);
    }
    FUZZ_CHECK(!dti_nodelist_at(list, count, name, sizeof name) && !name[0]);
    free(list);
    return ok ? DT_OK : DT_ERROR_INVALID;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_nodelist(data, size);
    return 0;
}
#endif
