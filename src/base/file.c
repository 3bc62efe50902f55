/* Whole files. Reading takes all of a file into memory, up to a limit that the caller knows to be
 * absurd beyond. Writing goes to "path.tmp.PID", which is flushed to the disk and renamed, and then
 * the folder is flushed: neither a crash nor a full disk leaves half a file under `path`, and what
 * was reported as written is there after a power cut. It refuses pipes and folders. */

#if DTI_POSIX
#include <fcntl.h>
#endif

struct dti_writer {
    dti_base *base;
    FILE *file;
    bool failed;  /* the error is already recorded; nothing may be kept */
    uint32_t crc; /* of what was added since it was last asked for */
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

/* The process in it keeps two that write the same file from writing into each other's. */
static void dti_writer_name_temporary(char *to, size_t size, const char *path) {
#if DTI_POSIX
    snprintf(to, size, "%s.tmp.%ld", path, (long)getpid());
#else
    snprintf(to, size, "%s.tmp", path);
#endif
}

static dt_result dti_writer_open(dti_base *base, const char *path, dti_writer **out) {
    *out = NULL;
    size_t size = strlen(path) + 1, room = size + sizeof ".tmp.-9223372036854775808";
    dti_writer *w = dti_alloc(base, sizeof *w + room + size);
    if (!w)
        return DT_ERROR_MEMORY;
    w->base = base;
    w->temporary = (char *)(w + 1);
    w->path = w->temporary + room;
    dti_writer_name_temporary(w->temporary, room, path);
    memcpy(w->path, path, size);
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
    w->crc = dti_crc32c(w->crc, data, bytes);
    return DT_OK;
}

static uint32_t dti_writer_take_crc(dti_writer *w) {
    uint32_t crc = w->crc;
    w->crc = 0;
    return crc;
}

/* ---- To the disk, not only to the system */

#if DTI_POSIX
/* Some file systems know no fsync and say EINVAL. Never a second time after another error: the
 * system has then marked as clean what it could not write. */
static bool dti_sync(int descriptor) {
    return fsync(descriptor) == 0 || errno == EINVAL;
}
#endif

/* A rename may otherwise reach the disk before the data. */
static bool dti_file_sync(FILE *file) {
    if (fflush(file) != 0)
        return false;
#if DTI_POSIX
    return dti_sync(fileno(file));
#else
    return true;
#endif
}

static bool dti_folder_open(char *path, int *folder) {
    *folder = -1;
#if DTI_POSIX
    char *slash = strrchr(path, '/');
    char kept = slash ? slash[1] : 0;
    if (slash)
        slash[1] = 0;
    *folder = open(slash ? path : ".", O_RDONLY);
    int error = errno;
    if (slash)
        slash[1] = kept;
    errno = error;
    return *folder >= 0 || error == EACCES;
#else
    (void)path;
    return true;
#endif
}

static bool dti_folder_sync(int folder) {
    bool ok = true;
#if DTI_POSIX
    if (folder < 0)
        return true;
    ok = dti_sync(folder);
    int error = errno;
    close(folder);
    errno = error;
#else
    (void)folder;
#endif
    return ok;
}

/* The folder is opened first: where that fails, nothing has changed. */
static dt_result dti_writer_rename(dti_writer *w) {
    int folder = -1;
    if (!dti_folder_open(w->path, &folder))
        return dti_writer_fail(w, "replaced, since its folder cannot be opened");
    bool renamed = rename(w->temporary, w->path) == 0;
    dt_result result = renamed ? DT_OK : dti_writer_fail(w, "replaced");
    bool flushed = dti_folder_sync(folder);
    if (renamed && !flushed)
        result = dti_writer_fail(w, "flushed to the disk, but is there");
    return result;
}

static dt_result dti_writer_close(dti_writer *w, bool keep) {
    dti_base *base = w->base;
    dt_result result = w->failed ? DT_ERROR_IO : DT_OK;
    if (keep && !w->failed && !dti_file_sync(w->file))
        result = dti_writer_fail(w, "written");
    if (fclose(w->file) != 0 && keep && !w->failed)
        result = dti_writer_fail(w, "written");
    if (keep && !w->failed)
        result = dti_writer_rename(w);
    if (!keep || w->failed)
        remove(w->temporary);
    dti_free(base, w);
    return keep ? result : DT_OK;
}
