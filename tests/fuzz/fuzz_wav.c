/* Any bytes as a WAV file: read whole, or refused with a text and nothing left behind. */
#include "fuzz/fuzz.h"

static dt_result fuzz_wav(const uint8_t *data, size_t size) {
    static fuzz_file file;
    static dt_ctx *ctx; /* until the process ends */
    dt_array array;
    int rate = 0;
    if (!ctx)
        ctx = fuzz_context();
    if (!ctx || !fuzz_write(&file, data, size))
        return DT_ERROR_IO;
    const uint64_t before = fuzz_bytes(ctx);
    const dt_result result = dt_wav_load(ctx, file.path, &array, &rate);
    FUZZ_CHECK(result == DT_OK || result == DT_ERROR_FORMAT);
    if (result) {
        FUZZ_CHECK(!array.data && !rate && fuzz_text_is_plain(dt_ctx_error(ctx)));
    } else {
        FUZZ_CHECK(fuzz_array_is_whole(&array) && array.rank == 2 && rate > 0);
        FUZZ_CHECK(array.element_bytes == 4 && array.bytes <= 4 * size);
    }
    dt_array_destroy(&array);
    FUZZ_CHECK(fuzz_bytes(ctx) == before);
    return result;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_wav(data, size);
    return 0;
}
#endif
