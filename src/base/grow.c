/* Files that others read while they grow. Each record is one write, so a reader sees all of it or
 * nothing. A record that fails (a full disk) is cut off again. Nothing is flushed to the disk: a
 * crash of the machine may lose a log's end. */

static dt_result dti_grow_fail(dti_base *base, const char *path, const char *why) {
    return dti_fail(base, DT_ERROR_IO, "%s: cannot be appended to: %s", path, why);
}

static dt_result dti_grow_open(dti_base *base, const char *path, bool lines, dti_growing *file) {
    char last = '\n', target[DTI_FILE_PATH];
    uint64_t size = 0;
    dti_file_rights rights = {0};
    const char *why = dti_file_target(path, target, &rights);
    *file = (dti_growing){.stream = why ? -1 : dti_stream_append(path, &size)};
    file->size = size;
    file->open = file->stream >= 0;
    if (!file->open)
        return dti_grow_fail(base, path, why ? why : strerror(errno));
    if (lines && file->size && dti_stream_last(file->stream, &last) && last != '\n')
        return dti_grow_add(base, path, file, "\n", 1);
    return DT_OK;
}

static dt_result dti_grow_add(dti_base *base, const char *path, dti_growing *file, const void *data,
                              size_t bytes) {
    if (dti_write_all(file->stream, data, bytes)) {
        file->size += bytes;
        return DT_OK;
    }
    const dt_result result = dti_grow_fail(base, path, strerror(errno));
    dti_stream_cut(file->stream, file->size);
    return result;
}

static void dti_grow_take_back(dti_growing *file, size_t bytes) {
    if (dti_stream_cut(file->stream, file->size - bytes))
        file->size -= bytes;
}

static void dti_grow_close(dti_growing *file) {
    if (file->open)
        dti_stream_close(file->stream);
    *file = (dti_growing){0};
}
