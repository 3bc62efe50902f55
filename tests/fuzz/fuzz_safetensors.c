/* Any bytes as a weight file: listed and loaded into a small store, or refused with a text. Then
 * the store is as it was, without leaks. */
#include "fuzz/fuzz.h"

typedef struct fuzz_weights {
    fuzz_file file;
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
} fuzz_weights;

/* Parameters of rank 0 to 2, so that a file fits by chance. */
static bool fuzz_weights_open(fuzz_weights *f) {
    if (f->store)
        return true;
    f->ctx = fuzz_context();
    if (!f->ctx || dt_graph_create(f->ctx, &f->graph))
        return false;
    dt_init uniform = {DT_INIT_UNIFORM, -1, 1};
    dt_param(f->graph, "w", dt_dims(2, 3), uniform);
    dt_param(f->graph, "b", dt_dims(3), uniform);
    dt_param(f->graph, "s", dt_dims(), uniform);
    return dt_store_create(f->graph, &(dt_store_desc){.device = "cpu"}, &f->store) == DT_OK;
}

/* Reads every byte that a tensor claims: a wrong bound is then seen. */
static uint64_t fuzz_touch(const dt_safetensors *weights) {
    uint64_t sum = 0;
    for (int i = 0; i < dt_safetensors_count(weights); i++) {
        dt_safetensors_tensor info;
        if (dt_safetensors_get_tensor(weights, i, &info) == DT_ERROR_INVALID)
            continue; /* of more than 8 dimensions */
        FUZZ_CHECK(dt_safetensors_find(weights, info.name) == i);
        FUZZ_CHECK(info.rank >= 0 && info.rank <= 8 && info.dtype[0]);
        for (uint64_t j = 0; j < info.bytes; j++)
            sum += ((const uint8_t *)info.data)[j];
    }
    return sum;
}

static dt_result fuzz_list(fuzz_weights *f) {
    dt_safetensors *weights;
    dt_result result = dt_safetensors_open(f->ctx, f->file.path, &weights);
    FUZZ_CHECK(result == DT_OK || result == DT_ERROR_FORMAT);
    if (result)
        FUZZ_CHECK(!weights && fuzz_text_is_plain(dt_ctx_error(f->ctx)));
    else
        FUZZ_CHECK(fuzz_touch(weights) < UINT64_MAX);
    dt_safetensors_close(weights);
    return result;
}

static dt_result fuzz_safetensors(const uint8_t *data, size_t size) {
    static fuzz_weights f; /* until the process ends */
    uint64_t old = 0, now = 0;
    if (!fuzz_weights_open(&f) || !fuzz_write(&f.file, data, size))
        return DT_ERROR_IO;
    uint64_t before = fuzz_bytes(f.ctx);
    dt_result listed = fuzz_list(&f);
    dt_store_hash(f.store, &old);
    dt_result loaded = dt_store_load(f.store, f.file.path);
    dt_store_hash(f.store, &now);
    FUZZ_CHECK(loaded == DT_OK || loaded == DT_ERROR_FORMAT || loaded == DT_ERROR_INVALID);
    FUZZ_CHECK((loaded == DT_ERROR_FORMAT) == (listed == DT_ERROR_FORMAT));
    FUZZ_CHECK(!loaded || (now == old && fuzz_text_is_plain(dt_ctx_error(f.ctx))));
    FUZZ_CHECK(fuzz_bytes(f.ctx) == before);
    return loaded;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_safetensors(data, size);
    return 0;
}

/* libFuzzer's own mutation; then mostly a header length that fits again, up to the last brace.
 * Without it nearly every change to the header is refused by its length. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    size = LLVMFuzzerMutate(data, size, max_size);
    size_t end = size;
    while (end > 8 && data[end - 1] != '}')
        end--;
    for (size_t i = 0; i < 8 && size >= 8 && end > 8 && seed % 4; i++)
        data[i] = (uint8_t)((uint64_t)(end - 8) >> 8 * i);
    return size;
}
#endif
