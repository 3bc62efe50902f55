/* Any bytes as a file of a replay buffer: loaded whole, or refused with a text. The sum at the end
 * is made right, so that what is after it is met too. */
#include "fuzz/fuzz.h"

static uint32_t fuzz_replay_sum(const uint8_t *data, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

static dt_result fuzz_replay_load(dt_replay *r, const char *path, dt_ctx *ctx) {
    uint64_t places[16];
    uint8_t items[16][3];
    const dt_result result = dt_replay_load(r, path);
    FUZZ_CHECK(result == DT_OK || result == DT_ERROR_FORMAT || result == DT_ERROR_INVALID);
    FUZZ_CHECK(!result || fuzz_text_is_plain(dt_ctx_error(ctx)));
    FUZZ_CHECK(dt_replay_count(r) <= 5);
    if (dt_replay_count(r))
        FUZZ_CHECK(dt_replay_sample(r, 16, 0.5, items, places, NULL) == DT_OK);
    for (int i = 0; i < 16 && dt_replay_count(r); i++)
        FUZZ_CHECK(places[i] < dt_replay_count(r));
    FUZZ_CHECK(dt_replay_add(r, "abc") == DT_OK && dt_replay_count(r) > 0);
    return result;
}

static dt_result fuzz_replay_file(const uint8_t *data, size_t size) {
    static fuzz_file file;
    static dt_ctx *ctx; /* until the process ends */
    uint8_t bytes[4096];
    dt_replay *r;
    if (!ctx)
        ctx = fuzz_context();
    if (!ctx || size > sizeof bytes - 4)
        return DT_ERROR_IO;
    const uint32_t sum = fuzz_replay_sum(data, size);
    if (size)
        memcpy(bytes, data, size);
    memcpy(bytes + size, &sum, sizeof sum);
    if (!fuzz_write(&file, bytes, size + 4))
        return DT_ERROR_IO;
    const uint64_t before = fuzz_bytes(ctx);
    const dt_replay_desc d = {.capacity = 5, .item_bytes = 3, .alpha = size % 2 ? 0.5 : 0};
    FUZZ_CHECK(dt_replay_create(ctx, &d, &r) == DT_OK);
    const dt_result result = fuzz_replay_load(r, file.path, ctx);
    dt_replay_destroy(r);
    FUZZ_CHECK(fuzz_bytes(ctx) == before);
    return result;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_replay_file(data, size);
    return 0;
}
#endif
