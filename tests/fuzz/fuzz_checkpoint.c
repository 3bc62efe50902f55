/* Any bytes as a checkpoint: refused with a text, or read. If read, its checksums are right when
 * they are counted again here; nothing is left behind. The target has the implementation in it,
 * since it calls what is internal. */
#ifndef FUZZ_REPLAY
#define DT_STATIC
#define DT_IMPLEMENTATION
#endif
#include "fuzz/fuzz.h"

/* Reads every byte that a tensor claims: a wrong bound is then seen. `file` is a copy from before
 * the reading, of which the header is a part that is checked. */
static void fuzz_checkpoint_count(const dti_checkpoint *c, const uint8_t *file, size_t size) {
    size_t data = size;
    uint32_t sum;
    const size_t all = c->count + 1; /* with the checksums */
    for (size_t i = 0; i < all; i++)
        data -= (size_t)c->items[i].info.bytes;
    const uint8_t *sums = file + size - c->items[c->count].info.bytes;
    FUZZ_CHECK(data >= 8 && c->items[c->count].info.bytes == 4 * (uint64_t)all);
    memcpy(&sum, sums, sizeof sum);
    FUZZ_CHECK(sum == dti_crc32c(0, file, data));
    for (int i = 0; i + 1 < (int)all; i++) {
        const dt_safetensors_tensor *info = dti_checkpoint_at(c, i);
        FUZZ_CHECK(dti_checkpoint_find(c, info->name) == info);
        memcpy(&sum, sums + 4 * (i + 1), sizeof sum);
        FUZZ_CHECK(sum == dti_crc32c(0, file + data, (size_t)info->bytes));
        for (uint64_t at = 0, some; at < info->bytes; at += some) {
            uint8_t range[100];
            some = DTI_MIN(info->bytes - at, sizeof range);
            FUZZ_CHECK(dti_checkpoint_read(c, i, at, some, range) == DT_OK);
            FUZZ_CHECK(!memcmp(range, file + data + at, (size_t)some));
        }
        data += (size_t)info->bytes;
    }
}

/* The path of a file of these bytes. */
static const char *fuzz_checkpoint_file(const uint8_t *data, size_t size) {
#ifdef FUZZ_REPLAY
    return temp_write("fuzzed", data, size);
#else
    static fuzz_file file;
    return fuzz_write(&file, data, size) ? file.path : "";
#endif
}

static dt_result fuzz_checkpoint(const uint8_t *data, size_t size) {
    dti_base base;
    dti_base_init(&base, &(dt_allocator){fuzz_alloc, fuzz_free, NULL}, NULL);
    dti_checkpoint *c;
    dt_result result = dti_checkpoint_open(&base, fuzz_checkpoint_file(data, size), &c);
    FUZZ_CHECK(result == DT_OK || result == DT_ERROR_FORMAT);
    if (result)
        FUZZ_CHECK(!c && fuzz_text_is_plain(base.error));
    else
        fuzz_checkpoint_count(c, data, size);
    dt_safetensors_close(c);
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
    dt_safetensors *weights;
    if (dti_weights_load(&base, fuzz_checkpoint_file(data, size), &weights))
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

/* libFuzzer's own mutation; then mostly a header length that fits, up to the last brace and its
 * padding, and checksums that do. Without them nearly every change is refused by these. */
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
