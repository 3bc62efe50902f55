/* Whole files. Reading takes all of a file into memory, up to a limit that the caller knows to be
 * absurd beyond. Writing goes to "path.tmp", which is flushed to the disk and renamed, so neither a
 * crash nor a full disk leaves half a file under `path`. It refuses pipes and folders. */

struct dti_writer {
    dti_base *base;
    FILE *file;
    bool failed; /* the error is already recorded; nothing may be kept */
    char *temporary;
    char *path; /* behind `temporary`, in the same block */
};

/* -1: not a file whose size can be told. */
static long dti_file_size(FILE *file) {
    if (fseek(file, 0, SEEK_END) != 0)
        return -1;
    long size = ftell(file);
    return size == LONG_MAX || fseek(file, 0, SEEK_SET) != 0 ? -1 : size;
}

/* Of an open file. A zero stands behind the data, for those who look for text. */
static dt_result dti_file_read_open(dti_base *base, const char *path, FILE *file,
                                    uint64_t bytes_max, dti_file *out) {
    long size = dti_file_size(file);
    if (size < 0)
        return dti_fail(base, DT_ERROR_IO, "%s: not a regular file", path);
    if ((uint64_t)size > bytes_max || (uint64_t)size >= SIZE_MAX)
        return dti_fail(base, DT_ERROR_FORMAT, "%s: %ld bytes; such a file has at most %llu", path,
                        size, (unsigned long long)bytes_max);
    char *data = dti_alloc(base, (size_t)size + 1);
    if (!data)
        return DT_ERROR_MEMORY;
    size_t got = fread(data, 1, (size_t)size, file);
    if (got != (size_t)size) {
        dti_free(base, data);
        return dti_fail(base, DT_ERROR_IO, "%s: reading stopped after %llu of %ld bytes", path,
                        (unsigned long long)got, size);
    }
    *out = (dti_file){data, (size_t)size};
    return DT_OK;
}

static dt_result dti_file_read(dti_base *base, const char *path, uint64_t bytes_max,
                               dti_file *out) {
    *out = (dti_file){0};
    FILE *file = fopen(path, "rb");
    if (!file)
        return dti_fail(base, DT_ERROR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    dt_result result = dti_file_read_open(base, path, file, bytes_max, out);
    fclose(file);
    return result;
}

static dt_result dti_writer_fail(dti_writer *w, const char *what) {
    int error = errno;
    w->failed = true;
    return dti_fail(w->base, DT_ERROR_IO, "%s: cannot be %s: %s", w->path, what, strerror(error));
}

static dt_result dti_writer_open(dti_base *base, const char *path, dti_writer **out) {
    *out = NULL;
    size_t size = strlen(path);
    dti_writer *w = dti_alloc(base, sizeof *w + size + sizeof ".tmp" + size + 1);
    if (!w)
        return DT_ERROR_MEMORY;
    w->base = base;
    w->temporary = (char *)(w + 1);
    w->path = w->temporary + size + sizeof ".tmp";
    memcpy(w->temporary, path, size);
    memcpy(w->temporary + size, ".tmp", sizeof ".tmp");
    memcpy(w->path, path, size + 1);
    w->file = fopen(w->temporary, "wb");
    if (!w->file) {
        dt_result result = dti_writer_fail(w, "written");
        dti_free(base, w);
        return result;
    }
    *out = w;
    return DT_OK;
}

static dt_result dti_writer_add(dti_writer *w, const void *data, size_t bytes) {
    if (w->failed)
        return DT_ERROR_IO;
    if (bytes && fwrite(data, 1, bytes, w->file) != bytes)
        return dti_writer_fail(w, "written");
    return DT_OK;
}

/* To the disk, not only to the system: a rename may otherwise reach the disk before the data. */
static bool dti_file_sync(FILE *file) {
    if (fflush(file) != 0)
        return false;
#if DTI_POSIX
    /* Some file systems know no fsync and say EINVAL. */
    return fsync(fileno(file)) == 0 || errno == EINVAL;
#else
    return true;
#endif
}

static dt_result dti_writer_close(dti_writer *w, bool keep) {
    dti_base *base = w->base;
    dt_result result = w->failed ? DT_ERROR_IO : DT_OK;
    if (keep && !w->failed && !dti_file_sync(w->file))
        result = dti_writer_fail(w, "written");
    if (fclose(w->file) != 0 && keep && !w->failed)
        result = dti_writer_fail(w, "written");
    if (keep && !w->failed && rename(w->temporary, w->path) != 0)
        result = dti_writer_fail(w, "replaced");
    if (!keep || w->failed)
        remove(w->temporary);
    dti_free(base, w);
    return keep ? result : DT_OK;
}
