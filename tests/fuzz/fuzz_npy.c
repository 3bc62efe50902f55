/* Any bytes as a NumPy file, or an archive of them. It is read whole, or refused with a text and
 * without leaks. */
#include "fuzz/fuzz.h"

static dt_result fuzz_npy(const uint8_t *data, size_t size) {
    static fuzz_file file;
    static dt_ctx *ctx; /* until the process ends */
    const bool archive = size >= 2 && data[0] == 'P' && data[1] == 'K';
    dt_array array;
    if (!ctx)
        ctx = fuzz_context();
    if (!ctx || !fuzz_write(&file, data, size))
        return DT_ERROR_IO;
    const uint64_t before = fuzz_bytes(ctx);
    const dt_result result =
        archive ? dt_npz_load(ctx, file.path, NULL, &array) : dt_npy_load(ctx, file.path, &array);
    FUZZ_CHECK(result == DT_OK || result == DT_ERROR_FORMAT || result == DT_ERROR_UNSUPPORTED ||
               (archive && result == DT_ERROR_INVALID));
    if (result) {
        FUZZ_CHECK(!array.data && fuzz_text_is_plain(dt_ctx_error(ctx)));
    } else {
        FUZZ_CHECK(fuzz_array_is_whole(&array));
        FUZZ_CHECK(array.element_bytes == (array.dtype == DT_U8 ? 1 : 4));
    }
    dt_array_destroy(&array);
    FUZZ_CHECK(fuzz_bytes(ctx) == before);
    return result;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_npy(data, size);
    return 0;
}
#endif
