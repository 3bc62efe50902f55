/* Any bytes as a picture: decoded whole, or refused with a text and nothing left behind. */
#include "fuzz/fuzz.h"

static dt_result fuzz_picture(const uint8_t *data, size_t size) {
    static fuzz_file file;
    static dt_ctx *ctx; /* until the process ends */
    dt_array array;
    if (!ctx)
        ctx = fuzz_context();
    if (!ctx || !fuzz_write(&file, data, size))
        return DT_ERROR_IO;
    const uint64_t before = fuzz_bytes(ctx);
    dt_image_desc desc = {.channels = size ? data[size - 1] % 5 : 0, .dtype = DT_U8};
    if (size && data[size / 2] & 1)
        desc.width = 3, desc.height = 5;
    const dt_result result = dt_image_load(ctx, file.path, &desc, &array);
    FUZZ_CHECK(result == DT_OK || result == DT_ERROR_FORMAT || result == DT_ERROR_UNSUPPORTED);
    if (result) {
        FUZZ_CHECK(!array.data && fuzz_text_is_plain(dt_ctx_error(ctx)));
    } else {
        FUZZ_CHECK(fuzz_array_is_whole(&array) && array.rank == 3 && array.element_bytes == 1);
        FUZZ_CHECK(!desc.channels || array.dim[0] == desc.channels);
        FUZZ_CHECK(!desc.width || (array.dim[2] == 3 && array.dim[1] == 5));
    }
    dt_array_destroy(&array);
    FUZZ_CHECK(fuzz_bytes(ctx) == before);
    return result;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_picture(data, size);
    return 0;
}
#endif
