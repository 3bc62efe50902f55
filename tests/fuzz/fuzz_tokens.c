/* Any bytes as a file of tokens: the first five say how it is read, the rest are the file. It is
 * opened or refused with a text; each window is read, or is an error that names a byte. */
#include "fuzz/fuzz.h"

/* A set with all windows of the file, read as a trainer's threads do. */
static void fuzz_tokens_read(dt_tokens *tokens, const dt_dataset *set, const dt_tokens_desc *d,
                             dt_result *result) {
    int32_t ids[64], targets[64];
    for (uint64_t row = 0; row < dt_tokens_rows(tokens); row++) {
        char why[256] = "";
        const dt_sample s = {.row = row, .error = why, .error_bytes = sizeof why};
        const dt_result one = set->sample(set->user, &s, (void *[]){ids, targets});
        FUZZ_CHECK(one == DT_OK || (one == DT_ERROR_FORMAT && strstr(why, ": byte ")));
        FUZZ_CHECK(one == DT_OK || fuzz_text_is_plain(why));
        for (int i = 0; i < d->window && !one; i++)
            FUZZ_CHECK(ids[i] >= 0 && targets[i] >= 0 && (!i || ids[i] == targets[i - 1]) &&
                       (!d->vocabulary || (uint32_t)targets[i] < d->vocabulary));
        *result = one ? one : *result;
    }
}

static dt_result fuzz_tokens(const uint8_t *data, size_t size) {
    static fuzz_file file;
    static dt_ctx *ctx; /* until the process ends */
    dt_tokens *tokens;
    dt_graph *graph;
    dt_dataset set;
    if (!ctx)
        ctx = fuzz_context();
    if (!ctx || size < 5 || !fuzz_write(&file, data + 5, size - 5))
        return DT_ERROR_FORMAT;
    const uint64_t before = fuzz_bytes(ctx);
    const dt_tokens_desc d = {.bits = data[0] & 1 ? 32 : 16,
                              .window = 1 + data[1] % 64,
                              .stride = data[2],
                              .skip_bytes = data[3],
                              .vocabulary = data[4] ? data[4] * 300u : 0};
    dt_result result = dt_tokens_open(ctx, file.path, &d, &tokens);
    FUZZ_CHECK(result == DT_OK || result == DT_ERROR_FORMAT);
    if (result) {
        FUZZ_CHECK(!tokens && fuzz_text_is_plain(dt_ctx_error(ctx)) && fuzz_bytes(ctx) == before);
        return result;
    }
    FUZZ_CHECK(dt_graph_create(ctx, &graph) == DT_OK && dt_tokens_rows(tokens) > 0);
    dt_tensor x = dt_input(graph, "x", DT_I32, dt_dims(d.window));
    dt_tensor t = dt_input(graph, "t", DT_I32, dt_dims(d.window));
    FUZZ_CHECK(dt_tokens_dataset(tokens, x, t, &set) == DT_OK);
    fuzz_tokens_read(tokens, &set, &d, &result);
    dt_tokens_close(tokens);
    dt_graph_destroy(graph);
    FUZZ_CHECK(fuzz_bytes(ctx) == before);
    return result;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_tokens(data, size);
    return 0;
}
#endif
