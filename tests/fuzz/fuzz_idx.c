/* Any bytes as an IDX file: read whole, or refused with a text and nothing left behind. */
#include "fuzz/fuzz.h"

static dt_result fuzz_idx(const uint8_t *data, size_t size) {
    static fuzz_file file;
    static dt_ctx *ctx; /* until the process ends */
    dt_array array;
    if (!ctx)
        ctx = fuzz_context();
    if (!ctx || !fuzz_write(&file, data, size))
        return DT_ERROR_IO;
    uint64_t before = fuzz_bytes(ctx);
    dt_result result = dt_idx_load(ctx, file.path, &array);
    FUZZ_CHECK(result == DT_OK || result == DT_ERROR_FORMAT);
    if (result) {
        FUZZ_CHECK(!array.data && fuzz_text_is_plain(dt_ctx_error(ctx)));
    } else {
        const size_t head = 4 + 4 * (size_t)array.rank;
        FUZZ_CHECK(fuzz_array_is_whole(&array) && array.element_bytes == 1);
        FUZZ_CHECK(array.bytes + head == size);
        FUZZ_CHECK(!memcmp(array.data, data + head, array.bytes));
    }
    dt_array_destroy(&array);
    FUZZ_CHECK(fuzz_bytes(ctx) == before);
    return result;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_idx(data, size);
    return 0;
}
#endif
