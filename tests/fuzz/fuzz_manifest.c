/* Any bytes as a driver's manifest: the library that it names, or no library. A name is no longer
 * than it may be, and found as the loader finds it. The target has the implementation in it, since
 * it calls what is internal. */
#ifndef FUZZ_REPLAY
#undef DT_NO_VULKAN
#define DT_STATIC
#define DT_IMPLEMENTATION
#endif
#include "fuzz/fuzz.h"

static dt_result fuzz_manifest(const uint8_t *data, size_t size) {
    char library[2 * DTI_VK_MANIFEST_PATH], again[2 * DTI_VK_MANIFEST_PATH];
    memset(library, 1, sizeof library);
    const bool good = dti_vk_manifest_library("/d/x.json", (const char *)data, size, library);
    if (!good)
        return DT_ERROR_FORMAT;
    FUZZ_CHECK(memchr(library, 0, sizeof library) != NULL);
    const size_t length = strlen(library);
    FUZZ_CHECK(length > 0 && length < size && length < DTI_VK_MANIFEST_PATH + sizeof "/d/");
    FUZZ_CHECK(!strchr(library, '\\'));
    FUZZ_CHECK(library[0] == '/' || !strchr(library, '/'));
    /* a manifest beside it, by no path, leaves relative ones as they are */
    FUZZ_CHECK(dti_vk_manifest_library("x.json", (const char *)data, size, again));
    FUZZ_CHECK(!strcmp(library, again) ||
               (!strncmp(library, "/d/", 3) && !strcmp(library + 3, again)));
    return DT_OK;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_manifest(data, size);
    return 0;
}
#endif
