/* Files. Reading takes regular files alone: what a path names may be a FIFO that nobody writes to,
 * or a device without an end, so it is opened without waiting and looked at first. The size is
 * known before the first byte is asked for, so a caller holds a header against it before it takes
 * memory for the rest; bytes are read, never mapped: a file cut under a map kills the process.
 *
 * Writing goes to "path.tmp.PID.RANDOM", which no link can lead elsewhere and no other process has,
 * is flushed to the disk and renamed, and then the folder is flushed: neither a crash nor a full
 * disk leaves half a file under `path`, and what was reported as written is there after a power
 * cut. A file that may not grow (ulimit -f) is an error of the write: on Linux, where SIGXFSZ goes
 * to the thread that writes, it is kept from the process, without a handler. macOS sends it to the
 * process, where another thread may take it; there, and where POSIX is hidden, the signal is the
 * application's. */

#include <fcntl.h>
#include <sys/stat.h>
#ifdef _WIN32
#include <io.h>
/* As <windows.h> has them, which is kept from all that follows: it names half the world. */
__declspec(dllimport) int __stdcall MoveFileExA(const char *from, const char *to,
                                                unsigned long flags);
__declspec(dllimport) unsigned long __stdcall GetLastError(void);
#endif

/* ---- reading */

#ifdef _WIN32
static const char *dti_stream_open(const char *path, dti_stream *stream, uint64_t *size) {
    FILE *file = *stream = fopen(path, "rb");
    if (!file)
        return strerror(errno);
    long end = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    *size = (uint64_t)end;
    if (end >= 0 && end < LONG_MAX && fseek(file, 0, SEEK_SET) == 0)
        return NULL;
    fclose(file);
    return "it is not a regular file";
}

static void dti_stream_close(dti_stream stream) {
    fclose(stream);
}

/* 0: the end; -1: see errno. */
static int64_t dti_stream_read(dti_stream stream, void *to, size_t bytes) {
    size_t got = fread(to, 1, bytes, stream);
    return got || !ferror(stream) ? (int64_t)got : -1;
}
#else
/* Hidden under -std=c11, and none of them is what a check rests on. */
#ifndef O_CLOEXEC
#define O_CLOEXEC 0
#endif
#ifndef O_DIRECTORY
#define O_DIRECTORY 0
#endif
#ifndef O_NOFOLLOW
#define O_NOFOLLOW 0
#endif

static const char *dti_stream_kind(const struct stat *file) {
    return S_ISDIR(file->st_mode)    ? "it is a folder, not a regular file"
           : S_ISFIFO(file->st_mode) ? "it is a FIFO, not a regular file"
                                     : "it is a device, not a regular file";
}

/* NULL, or why not; nothing is open then. What is checked is the opened file, so nothing can be put
 * in its place in between. */
static const char *dti_stream_open(const char *path, dti_stream *stream, uint64_t *size) {
    struct stat file;
    int descriptor = *stream = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (descriptor < 0)
        return errno == ENXIO ? "it is a socket, not a regular file" : strerror(errno);
    const char *why = fstat(descriptor, &file) != 0 ? strerror(errno)
                      : !S_ISREG(file.st_mode)      ? dti_stream_kind(&file)
                                                    : NULL;
    *size = why ? 0 : (uint64_t)file.st_size;
    if (why)
        close(descriptor);
    return why;
}

static void dti_stream_close(dti_stream stream) {
    close(stream);
}

static int64_t dti_stream_read(dti_stream stream, void *to, size_t bytes) {
    for (;;) {
        int64_t got = read(stream, to, DTI_MIN(bytes, DTI_READ_MOST));
        if (got >= 0 || errno != EINTR)
            return got;
    }
}
#endif

static dt_result dti_reader_open(dti_base *base, const char *path, dti_reader *r) {
    *r = (dti_reader){.base = base, .path = path};
    const char *why = dti_stream_open(path, &r->stream, &r->size);
    return why ? dti_fail(base, DT_ERROR_IO, "%s: cannot be opened: %s", path, why) : DT_OK;
}

static void dti_reader_open_memory(dti_base *base, const char *path, dti_file file, dti_reader *r) {
    *r = (dti_reader){
        .base = base, .path = path, .size = file.size, .memory = file.data ? file.data : ""};
}

static dt_result dti_reader_take(dti_reader *r, void *to, size_t bytes) {
    char *at = to;
    while (bytes) {
        uint64_t left = r->size - r->at;
        int64_t got = (int64_t)DTI_MIN(bytes, left);
        if (r->memory && got)
            memcpy(at, r->memory + r->at, (size_t)got);
        else if (got)
            got = dti_stream_read(r->stream, at, (size_t)got);
        if (got < 0)
            return dti_fail(r->base, DT_ERROR_IO, "%s: cannot be read: %s", r->path,
                            strerror(errno));
        if (got == 0)
            return dti_fail(r->base, DT_ERROR_IO,
                            "%s: it ends after %llu of %llu bytes: was it cut while it was read?",
                            r->path, (unsigned long long)r->at, (unsigned long long)r->size);
        at += got;
        r->at += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return DT_OK;
}

static dt_result dti_reader_take_new(dti_reader *r, uint64_t bytes, char **out) {
    *out = bytes < SIZE_MAX ? dti_alloc(r->base, (size_t)bytes + 1) : NULL;
    if (!*out)
        return bytes < SIZE_MAX ? DT_ERROR_MEMORY
                                : dti_fail(r->base, DT_ERROR_MEMORY, "%s: %llu bytes", r->path,
                                           (unsigned long long)bytes);
    dt_result result = dti_reader_take(r, *out, (size_t)bytes);
    if (!result)
        return DT_OK;
    dti_free(r->base, *out);
    *out = NULL;
    return result;
}

static void dti_reader_close(dti_reader *r) {
    if (!r->memory)
        dti_stream_close(r->stream);
}

/* ---- a write that may not be: EFBIG, and not the signal that comes with it */

#if DTI_POSIX
static bool dti_signal_pends(void) {
    sigset_t pending;
    return sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
}

/* Only one that was blocked already can be pending. */
static void dti_write_begin(dti_write_guard *g) {
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &only, &g->mask);
    g->others = sigismember(&g->mask, SIGXFSZ) == 1 && dti_signal_pends();
}

/* Linux sends it to the thread that writes, so it is pending here or nowhere. macOS sends it to the
 * process: any thread that does not block it may have had it before it is looked for here. One that
 * was pending before is somebody else's and stays. */
static void dti_write_end(const dti_write_guard *g, bool written) {
    int error = errno;
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, SIGXFSZ);
    if (!written && !g->others && dti_signal_pends()) {
#ifdef __APPLE__ /* which has no sigtimedwait; this waits only if another thread was faster */
        int taken;
        sigwait(&only, &taken);
#else
        while (sigtimedwait(&only, NULL, &(struct timespec){0}) < 0 && errno == EINTR) {
        }
#endif
    }
    pthread_sigmask(SIG_SETMASK, &g->mask, NULL);
    errno = error;
}
#else
static void dti_write_begin(dti_write_guard *g) {
    (void)g;
}

static void dti_write_end(const dti_write_guard *g, bool written) {
    (void)g, (void)written;
}
#endif

#ifndef _WIN32
/* A part may be taken: the next one hears why not all. */
static bool dti_write_all(int descriptor, const void *data, size_t bytes) {
    const char *at = data;
    dti_write_guard guard;
    dti_write_begin(&guard);
    while (bytes) {
        const ssize_t done = write(descriptor, at, bytes);
        if (done < 0 && errno != EINTR)
            break;
        at += DTI_MAX(done, 0);
        bytes -= (size_t)DTI_MAX(done, 0);
    }
    dti_write_end(&guard, bytes == 0);
    return bytes == 0;
}
#endif

/* ---- writing */

struct dti_writer {
    dti_base *base;
    FILE *file;
    bool failed;    /* the error is already recorded; nothing may be kept */
    uint32_t crc;   /* of what was added since it was last asked for */
    uint64_t bytes; /* that the whole will have; 0 = not known */
    char *temporary;
    char *path; /* behind `temporary`, in the same block */
};

static bool dti_is_no_space(int error) {
#ifdef EDQUOT
    if (error == EDQUOT)
        return true;
#endif
    return error == ENOSPC;
}

/* The system says that the disk is full, but not how much it would have taken. */
static dt_result dti_writer_fail(dti_writer *w, const char *what) {
    int error = errno;
    char need[96] = "";
    w->failed = true;
    if (w->bytes && dti_is_no_space(error))
        snprintf(need, sizeof need, "; the file needs %llu bytes, beside one that it replaces",
                 (unsigned long long)w->bytes);
    return dti_fail(w->base, DT_ERROR_IO, "%s: cannot be %s: %s%s", w->path, what, strerror(error),
                    need);
}

#define DTI_TEMPORARY_ROOM sizeof ".tmp.-9223372036854775808.0123456789abcdef"

/* The process, for who looks for what dead ones left; and chance, since containers have equal
 * process ids, and a name that can be foreseen can be taken. */
static void dti_writer_name_temporary(char *to, size_t size, const char *path) {
    uint64_t chance;
    if (!dti_random_bytes(&chance, sizeof chance))
        chance = dti_now_ns() ^ (uint64_t)(uintptr_t)to;
#ifdef _WIN32
    snprintf(to, size, "%s.tmp.%016llx", path, (unsigned long long)chance);
#else
    snprintf(to, size, "%s.tmp.%ld.%016llx", path, (long)getpid(), (unsigned long long)chance);
#endif
}

#ifdef _WIN32
#define dti_fd_create(path)                                                                        \
    _open(path, _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY | _O_NOINHERIT, _S_IREAD | _S_IWRITE)
#define dti_fd_stream _fdopen
#define dti_fd_close _close
#elif DTI_POSIX
#define dti_fd_create(path) open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666)
#define dti_fd_stream fdopen
#define dti_fd_close close
#endif

/* A new file, or none: never one that is there, nor what a link leads to. */
static FILE *dti_writer_create(const char *path) {
#ifdef dti_fd_create
    int descriptor = dti_fd_create(path);
    FILE *file = descriptor < 0 ? NULL : dti_fd_stream(descriptor, "wb");
    if (descriptor >= 0 && !file) {
        int error = errno;
        dti_fd_close(descriptor);
        remove(path);
        errno = error;
    }
    return file;
#else
    return fopen(path, "wbx");
#endif
}

static dt_result dti_writer_open(dti_base *base, const char *path, uint64_t bytes,
                                 dti_writer **out) {
    *out = NULL;
    size_t size = strlen(path) + 1, room = size + DTI_TEMPORARY_ROOM;
    dti_writer *w = dti_alloc(base, sizeof *w + room + size);
    if (!w)
        return DT_ERROR_MEMORY;
    w->base = base;
    w->bytes = bytes;
    w->temporary = (char *)(w + 1);
    w->path = w->temporary + room;
    memcpy(w->path, path, size);
    for (int i = 0; i < 8 && !w->file && (i == 0 || errno == EEXIST); i++) {
        dti_writer_name_temporary(w->temporary, room, path);
        w->file = dti_writer_create(w->temporary);
    }
    if (!w->file) {
        dt_result result = dti_writer_fail(w, "written");
        dti_free(base, w);
        return result;
    }
    *out = w;
    return DT_OK;
}

static dt_result dti_writer_add(dti_writer *w, const void *data, size_t bytes) {
    dti_write_guard guard;
    if (w->failed)
        return DT_ERROR_IO;
    dti_write_begin(&guard);
    bool ok = !bytes || fwrite(data, 1, bytes, w->file) == bytes;
    dti_write_end(&guard, ok);
    if (!ok)
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
    *folder = open(slash ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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

/* `to` is replaced, in one step. */
static bool dti_file_rename(const char *from, const char *to) {
#ifdef _WIN32 /* whose rename() replaces nothing */
    const unsigned long replace = 1, write_through = 8, denied = 5, in_use = 32;
    if (MoveFileExA(from, to, replace | write_through))
        return true;
    const unsigned long error = GetLastError();
    errno = error == denied || error == in_use ? EACCES : EIO;
    return false;
#else
    return rename(from, to) == 0;
#endif
}

/* The folder is opened first: where that fails, nothing has changed. */
static dt_result dti_writer_rename(dti_writer *w) {
    int folder = -1;
    if (!dti_folder_open(w->path, &folder))
        return dti_writer_fail(w, "replaced, since its folder cannot be opened");
    bool renamed = dti_file_rename(w->temporary, w->path);
    dt_result result = renamed ? DT_OK : dti_writer_fail(w, "replaced");
    bool flushed = dti_folder_sync(folder);
    if (renamed && !flushed)
        result = dti_writer_fail(w, "flushed to the disk, but is there");
    return result;
}

static dt_result dti_writer_close(dti_writer *w, bool keep) {
    dti_base *base = w->base;
    dt_result result = w->failed ? DT_ERROR_IO : DT_OK;
    dti_write_guard guard;
    dti_write_begin(&guard); /* what is left in the buffer */
    bool flushed = !keep || w->failed || dti_file_sync(w->file);
    int error = errno;
    bool closed = fclose(w->file) == 0;
    dti_write_end(&guard, flushed && closed);
    if (!flushed)
        errno = error;
    if (keep && !w->failed && !(flushed && closed))
        result = dti_writer_fail(w, "written");
    if (keep && !w->failed)
        result = dti_writer_rename(w);
    if (!keep || w->failed)
        remove(w->temporary);
    dti_free(base, w);
    return keep ? result : DT_OK;
}
