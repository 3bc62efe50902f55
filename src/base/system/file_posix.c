/* Files of POSIX, and the part of it that -std=c11 leaves. */

#ifndef _WIN32

/* ---- reading */

/* Hidden under -std=c11; no check depends on them. */
#ifndef O_CLOEXEC
#define O_CLOEXEC 0
#endif
#ifndef O_DIRECTORY
#define O_DIRECTORY 0
#endif
#ifndef O_NOFOLLOW
#define O_NOFOLLOW 0
#endif
#ifndef S_ISSOCK
#define S_ISSOCK(mode) false
#endif

static const char *dti_stream_kind(const struct stat *file) {
    return S_ISDIR(file->st_mode)    ? "it is a folder, not a regular file"
           : S_ISFIFO(file->st_mode) ? "it is a FIFO, not a regular file"
           : S_ISSOCK(file->st_mode) ? "it is a socket, not a regular file"
                                     : "it is a device, not a regular file";
}

/* NULL, or why not; nothing is open then. The checks are of the opened file, so it cannot be
 * exchanged in between. */
static const char *dti_stream_open(const char *path, int *stream, uint64_t *size) {
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

static void dti_stream_close(int stream) {
    close(stream);
}

static bool dti_stream_seek(int stream, uint64_t at) {
    return lseek(stream, (off_t)at, SEEK_SET) >= 0;
}

static int64_t dti_stream_read(int stream, void *to, size_t bytes) {
    for (;;) {
        int64_t got = read(stream, to, DTI_MIN(bytes, DTI_READ_MOST));
        if (got >= 0 || errno != EINTR)
            return got;
    }
}

/* ---- a write that may not be: EFBIG, and not the signal that comes with it */

#if DTI_SIGNALS
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
 * process, where any thread that does not block it may have received it. One that was pending
 * before is somebody else's and stays. */
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
DTI_ABSENT(void, dti_write_begin, (dti_write_guard * g), );
DTI_ABSENT(void, dti_write_end, (const dti_write_guard *g, bool written), );
#endif

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

/* ---- growing */

static int dti_stream_append(const char *path, uint64_t *size) {
    struct stat file;
    const int descriptor = open(path, O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return -1;
    if (fstat(descriptor, &file) == 0 && S_ISREG(file.st_mode)) {
        *size = (uint64_t)file.st_size;
        return descriptor;
    }
    close(descriptor);
    errno = EINVAL;
    return -1;
}

static bool dti_stream_cut(int stream, uint64_t size) {
#if DTI_POSIX
    return ftruncate(stream, (off_t)size) == 0;
#else
    return false;
#endif
}

static bool dti_stream_last(int stream, char *byte) {
    return lseek(stream, -1, SEEK_END) >= 0 && read(stream, byte, 1) == 1;
}

/* ---- appearing */

static const char *dti_file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

#if DTI_POSIX
#define DTI_LINKS_MOST 40 /* Linux's */

/* The path that a link names, seen from its own folder. 0: not a link, or nothing; -1: see
 * errno. */
static int dti_file_follow(char to[DTI_FILE_PATH]) {
    char text[DTI_FILE_PATH];
    const ssize_t size = readlink(to, text, sizeof text);
    if (size < 0)
        return errno == EINVAL || errno == ENOENT ? 0 : -1;
    const size_t kept = text[0] == '/' ? 0 : (size_t)(dti_file_name(to) - to);
    if (kept + (size_t)size >= DTI_FILE_PATH) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(to + kept, text, (size_t)size);
    to[kept + (size_t)size] = 0;
    return 1;
}

/* A link of /proc may lead to a file that has lost its name, or has another one now. */
static const char *dti_file_follow_all(char to[DTI_FILE_PATH], const struct stat *file) {
    struct stat found;
    int links = 0, more;
    while ((more = dti_file_follow(to)) > 0 && links < DTI_LINKS_MOST)
        links++;
    if (more)
        return strerror(more < 0 ? errno : ELOOP);
    if (!file ||
        (stat(to, &found) == 0 && found.st_dev == file->st_dev && found.st_ino == file->st_ino))
        return NULL;
    return "it is a link to an open file that was deleted";
}
#endif

/* A name that is too long, or a loop of links, is known before anything is written. */
static const char *dti_file_target(const char *path, char to[DTI_FILE_PATH],
                                   dti_file_rights *rights) {
    struct stat file;
    const bool there = stat(path, &file) == 0;
    const size_t size = strlen(path) + 1;
    rights->replaces = there;
    if (there && !S_ISREG(file.st_mode))
        return dti_stream_kind(&file);
    if (there || errno == ENOENT)
        errno = size > DTI_FILE_PATH ? ENAMETOOLONG : 0;
    if (errno)
        return strerror(errno);
    memcpy(to, path, size);
    if (there)
        *rights = (dti_file_rights){(unsigned)file.st_mode & 0777, true, (unsigned)file.st_uid,
                                    (unsigned)file.st_gid};
#if DTI_POSIX
    return dti_file_follow_all(to, there ? &file : NULL);
#else
    return NULL;
#endif
}

static bool dti_file_is_none(const char *path) {
    struct stat file;
    if (stat(path, &file) != 0)
        return errno == ENOENT || errno == ELOOP || errno == ENOTDIR;
    return !S_ISREG(file.st_mode);
}

/* A group that cannot be given gets no more than all others have. The bits of setuid and setgid
 * go, as when a file is written in place; lists of rights and other attributes are not taken over.
 */
static void dti_file_give(int descriptor, const char *path, const dti_file_rights *rights) {
#ifndef __wasi__ /* which has no users */
    unsigned mode = rights->mode;
#if DTI_POSIX_2008
    struct stat now = {0};
    const gid_t group = (gid_t)rights->group;
    if (fchown(descriptor, (uid_t)rights->owner, group) != 0 &&
        fchown(descriptor, (uid_t)-1, group) != 0 &&
        (fstat(descriptor, &now) != 0 || now.st_gid != group))
        mode &= ~070u | (mode & 07u) << 3;
    (void)fchmod(descriptor, (mode_t)mode);
#else /* by name */
    if (chown(path, rights->owner, rights->group) != 0)
        mode &= ~070u | (mode & 07u) << 3;
    (void)chmod(path, (mode_t)mode);
#endif
#endif
}

/* A file that replaces another is private until it has its rights. */
static FILE *dti_file_create(const char *path, const dti_file_rights *rights) {
    const mode_t mode = (mode_t)(rights->replaces ? 0600 : rights->mode);
    const int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (descriptor < 0)
        return NULL;
#if DTI_POSIX
    FILE *file = fdopen(descriptor, "wb");
    const bool closes = !file;
#else
    FILE *file = fopen(path, "r+b");
    const bool closes = true;
#endif
    int error = errno;
    if (file && rights->replaces)
        dti_file_give(descriptor, path, rights);
    if (closes)
        close(descriptor);
    if (!file)
        remove(path);
    errno = error;
    return file;
}

#if DTI_POSIX
/* Some file systems lack fsync and return EINVAL. Other errors are never retried: the system has
 * then marked unwritten data as clean. On macOS fsync stops at the drive, which may still cache the
 * data. Not each file system there has the other call. */
static bool dti_sync(int descriptor) {
#ifdef F_FULLFSYNC
    if (fcntl(descriptor, F_FULLFSYNC) == 0)
        return true;
    if (errno != ENOTSUP && errno != EINVAL && errno != ENOTTY)
        return false;
#endif
    return fsync(descriptor) == 0 || errno == EINVAL;
}
#endif

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
#endif
    return ok;
}

static bool dti_file_rename(const char *from, const char *to) {
    return rename(from, to) == 0;
}

static bool dti_file_exchange(const char *a, const char *b) {
#if defined __linux__ && defined SYS_renameat2 && defined _DEFAULT_SOURCE
    return syscall(SYS_renameat2, (long)AT_FDCWD, a, (long)AT_FDCWD, b, 2L) == 0;
#else
    errno = ENOSYS;
    return false;
#endif
}

/* ---- folders */

#if DTI_POSIX && !defined __wasi__
static int dti_file_lock(const char *path, char who[DTI_LOCK_WHO], int *lock) {
    *lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (*lock < 0)
        return -1;
    const int held = flock(*lock, LOCK_EX | LOCK_NB) == 0 ? 1 : errno == EWOULDBLOCK ? 0 : -1;
    if (held > 0 && ftruncate(*lock, 0) == 0 && dti_write_all(*lock, who, strlen(who)))
        return held;
    const int64_t got = held ? 0 : dti_stream_read(*lock, who, DTI_LOCK_WHO - 1);
    const int error = errno;
    who[DTI_MAX(got, 0)] = 0;
    close(*lock);
    errno = error;
    return held ? -1 : 0;
}

static const char *dti_host_name(char *to, size_t size) {
    *to = 0;
    if (gethostname(to, size) != 0)
        snprintf(to, size, "unknown");
    to[size - 1] = 0;
    return to;
}
#else
DTI_ABSENT(int, dti_file_lock, (const char *path, char who[DTI_LOCK_WHO], int *lock),
           (errno = ENOSYS, -1));
DTI_ABSENT(const char *, dti_host_name, (char *to, size_t size), (*to = 0, to));
#endif

#if DTI_POSIX
static bool dti_folder_make(const char *path) {
    return mkdir(path, 0777) == 0;
}

static bool dti_folder_remove(const char *path) {
    return rmdir(path) == 0;
}

static bool dti_folder_names_open(dti_folder_names *names, const char *folder) {
    names->folder = opendir(folder);
    return names->folder != NULL;
}

static const char *dti_folder_names_next(dti_folder_names *names) {
    errno = 0;
    const struct dirent *entry = readdir(names->folder);
    return entry ? entry->d_name : NULL;
}

static void dti_folder_names_close(dti_folder_names *names) {
    int error = errno;
    closedir(names->folder);
    errno = error;
}
#else
DTI_ABSENT(bool, dti_folder_make, (const char *path), (errno = ENOSYS, false));
DTI_ABSENT(bool, dti_folder_remove, (const char *path), (errno = ENOSYS, false));
DTI_ABSENT(bool, dti_folder_names_open, (dti_folder_names * names, const char *folder),
           (errno = ENOSYS, false));
DTI_ABSENT(const char *, dti_folder_names_next, (dti_folder_names * names), NULL);
DTI_ABSENT(void, dti_folder_names_close, (dti_folder_names * names), );
#endif

#endif
