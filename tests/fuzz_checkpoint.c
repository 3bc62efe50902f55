/* Any bytes as a checkpoint: read, and then its checksums are right when they are counted again
 * here, or refused with a text; nothing is left behind. The target has the implementation in it,
 * since it calls what is internal. */
#ifndef FUZZ_REPLAY
#define DT_STATIC
#define DT_IMPLEMENTATION
#endif
#include "fuzz.h"

/* Reads every byte that a tensor claims: a wrong bound is then seen. `file` is a copy from before
 * the reading, of which the header is a part that is checked. */
static void fuzz_checkpoint_count(const dti_checkpoint *c, const uint8_t *file, size_t size) {
    size_t data = size;
    uint32_t sum;
    for (int i = 0; i <= c->count; i++)
        data -= (size_t)c->infos[i].bytes;
    const uint8_t *sums = file + size - c->infos[c->count].bytes;
    FUZZ_CHECK(data >= 8 && c->infos[c->count].bytes == 4 * ((uint64_t)c->count + 1));
    memcpy(&sum, sums, sizeof sum);
    FUZZ_CHECK(sum == dti_crc32c(0, file, data));
    for (int i = 0; i < c->count; i++) {
        const dt_safetensors_tensor *info = dti_checkpoint_at(c, i);
        FUZZ_CHECK(dti_checkpoint_find(c, info->name) == info);
        memcpy(&sum, sums + 4 * (i + 1), sizeof sum);
        FUZZ_CHECK(sum == dti_crc32c(0, file + data, (size_t)info->bytes));
        FUZZ_CHECK(!info->bytes || !memcmp(info->data, file + data, (size_t)info->bytes));
        data += (size_t)info->bytes;
    }
}

static dt_result fuzz_checkpoint(const uint8_t *data, size_t size) {
    dti_base base;
    dti_base_init(&base, &(dt_allocator){fuzz_alloc, fuzz_free, NULL}, NULL);
    dti_file file = {dti_alloc(&base, size), size};
    dti_checkpoint *c;
    if (!file.data)
        return DT_ERROR_MEMORY;
    if (size)
        memcpy(file.data, data, size);
    dt_result result = dti_checkpoint_parse(&base, "some/file", file, &c);
    FUZZ_CHECK(result == DT_OK || result == DT_ERROR_FORMAT);
    if (result)
        FUZZ_CHECK(!c && fuzz_text_is_plain(base.error));
    else
        fuzz_checkpoint_count(c, data, size);
    dti_checkpoint_close(c);
    dti_free(&base, file.data);
    FUZZ_CHECK(base.bytes_now == 0);
    return result;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_checkpoint(data, size);
    return 0;
}

/* Puts the right checksums where the last tensor of a file that is safetensors lies. */
static void fuzz_checkpoint_mend(uint8_t *data, size_t size) {
    dti_base base;
    dti_base_init(&base, NULL, NULL);
    dti_file file = {dti_alloc(&base, size), size};
    dt_safetensors *weights;
    if (!file.data)
        return;
    memcpy(file.data, data, size);
    dt_result result = dti_weights_parse(&base, "", file, &weights);
    dti_free(&base, file.data);
    if (result)
        return;
    uint32_t sum = weights->header_crc;
    size_t count = (size_t)dt_safetensors_count(weights), at = size - (size_t)weights->data_bytes;
    for (size_t i = 0; i < count && 4 * count <= weights->data_bytes; i++) {
        memcpy(data + size - 4 * (count - i), &sum, 4);
        size_t bytes = (size_t)(weights->items[i].end - weights->items[i].begin);
        sum = dti_crc32c(0, data + at, bytes);
        at += bytes;
    }
    dt_safetensors_close(weights);
}

/* libFuzzer's own mutation; then mostly a header length that fits, up to the last brace and
 * its padding, and checksums that do: without them nearly every change is lost on these. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    size = LLVMFuzzerMutate(data, size, max_size);
    size_t end = size;
    while (end > 8 && data[end - 1] != '}')
        end--;
    while (end < size && end % 8 && data[end] == ' ')
        end++;
    for (size_t i = 0; i < 8 && size >= 8 && end > 8 && seed % 4 > 1; i++)
        data[i] = (uint8_t)((uint64_t)(end - 8) >> 8 * i);
    if (seed / 4 % 4)
        fuzz_checkpoint_mend(data, size);
    return size;
}
#endif
