/* Any bytes as an index of weight files, beside two files. Its tensors are listed, or it is refused
 * with a text and without leaks. */
#include "fuzz/fuzz.h"

typedef struct fuzz_index_folder {
    fuzz_file index;
    dt_ctx *ctx; /* until the process ends */
    char path[128];
} fuzz_index_folder;

static bool fuzz_index_put(const char *path, const char *header, size_t bytes) {
    const uint64_t size = strlen(header);
    FILE *file = fopen(path, "wb");
    const bool written = file && fwrite(&size, 8, 1, file) == 1 && fputs(header, file) >= 0 &&
                         fwrite("0123456789abcdef", 1, bytes, file) == bytes;
    return file && fclose(file) == 0 && written;
}

/* The files "a" and "b", and a link to the bytes. */
static bool fuzz_index_open(fuzz_index_folder *f) {
    char folder[] = "/tmp/dtrain-fuzz-XXXXXX", path[128];
    if (f->ctx)
        return true;
    f->ctx = fuzz_context();
    if (!f->ctx || !mkdtemp(folder))
        return false;
    snprintf(path, sizeof path, "%s/a", folder);
    bool good = fuzz_index_put(path,
                               "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                               "\"y\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[8,9]}}",
                               9);
    snprintf(path, sizeof path, "%s/b", folder);
    good = good && fuzz_index_put(
                       path, "{\"z\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4);
    snprintf(f->path, sizeof f->path, "%s/index.json", folder);
    return good && symlink(f->index.path, f->path) == 0;
}

static dt_result fuzz_index(const uint8_t *data, size_t size) {
    static fuzz_index_folder f;
    if (!fuzz_write(&f.index, data, size) || !fuzz_index_open(&f))
        return DT_ERROR_IO;
    const uint64_t before = fuzz_bytes(f.ctx);
    dt_safetensors *weights;
    const dt_result result = dt_safetensors_open(f.ctx, f.path, &weights);
    FUZZ_CHECK(result == DT_OK || result == DT_ERROR_FORMAT);
    if (result)
        FUZZ_CHECK(!weights && fuzz_text_is_plain(dt_ctx_error(f.ctx)));
    for (int i = 0; i < dt_safetensors_count(weights); i++) {
        dt_safetensors_tensor info;
        FUZZ_CHECK(dt_safetensors_get_tensor(weights, i, &info) == DT_OK);
        FUZZ_CHECK(dt_safetensors_find(weights, info.name) == i && strchr("xyz", *info.name));
        FUZZ_CHECK(((const uint8_t *)info.data)[info.bytes - 1] != 0);
    }
    dt_safetensors_close(weights);
    FUZZ_CHECK(fuzz_bytes(f.ctx) == before);
    return result;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_index(data, size);
    return 0;
}
#endif
