/* Files of Windows: descriptors of the C library, and names in the system's code page. */

#ifdef _WIN32

/* The newest failure of a function of the system, as errno. */
static void dti_win32_errno(void) {
    static const struct {
        DWORD error;
        int number;
    } table[] = {{ERROR_FILE_NOT_FOUND, ENOENT},    {ERROR_PATH_NOT_FOUND, ENOENT},
                 {ERROR_ACCESS_DENIED, EACCES},     {ERROR_SHARING_VIOLATION, EACCES},
                 {ERROR_FILE_EXISTS, EEXIST},       {ERROR_ALREADY_EXISTS, EEXIST},
                 {ERROR_DISK_FULL, ENOSPC},         {ERROR_DIRECTORY, ENOTDIR},
                 {ERROR_NOT_ENOUGH_MEMORY, ENOMEM}, {ERROR_INVALID_NAME, EINVAL}};
    const DWORD error = GetLastError();
    errno = EIO;
    for (size_t i = 0; i < DTI_COUNT(table); i++)
        if (table[i].error == error)
            errno = table[i].number;
}

/* ---- reading */

static const char *dti_stream_open(const char *path, int *stream, uint64_t *size) {
    struct _stat64 file;
    int descriptor = *stream = _open(path, _O_RDONLY | _O_BINARY | _O_NOINHERIT);
    *size = 0;
    if (descriptor < 0) {
        int error = errno;
        bool folder = _stat64(path, &file) == 0 && (file.st_mode & _S_IFMT) == _S_IFDIR;
        return folder ? "it is a folder, not a regular file" : strerror(error);
    }
    const char *why = _fstat64(descriptor, &file) != 0       ? strerror(errno)
                      : (file.st_mode & _S_IFMT) != _S_IFREG ? "it is not a regular file"
                                                             : NULL;
    if (why)
        _close(descriptor);
    else
        *size = (uint64_t)file.st_size;
    return why;
}

static void dti_stream_close(int stream) {
    _close(stream);
}

static bool dti_stream_seek(int stream, uint64_t at) {
    return _lseeki64(stream, (int64_t)at, SEEK_SET) >= 0;
}

static int64_t dti_stream_read(int stream, void *to, size_t bytes) {
    return _read(stream, to, (unsigned)DTI_MIN(bytes, DTI_READ_MOST));
}

/* ---- writing: there are no signals */

DTI_ABSENT(void, dti_write_begin, (dti_write_guard * g), );
DTI_ABSENT(void, dti_write_end, (const dti_write_guard *g, bool written), );

static bool dti_write_all(int descriptor, const void *data, size_t bytes) {
    const char *at = data;
    while (bytes) {
        const int done = _write(descriptor, at, (unsigned)DTI_MIN(bytes, DTI_READ_MOST));
        if (done <= 0)
            return false;
        at += done;
        bytes -= (size_t)done;
    }
    return true;
}

/* ---- growing */

static int dti_stream_append(const char *path, uint64_t *size) {
    struct _stat64 file;
    const int descriptor = _open(path, _O_RDWR | _O_CREAT | _O_APPEND | _O_BINARY | _O_NOINHERIT,
                                 _S_IREAD | _S_IWRITE);
    if (descriptor < 0)
        return -1;
    if (_fstat64(descriptor, &file) == 0 && (file.st_mode & _S_IFMT) == _S_IFREG) {
        *size = (uint64_t)file.st_size;
        return descriptor;
    }
    _close(descriptor);
    errno = EINVAL;
    return -1;
}

static bool dti_stream_cut(int stream, uint64_t size) {
    return _chsize_s(stream, (int64_t)size) == 0;
}

static bool dti_stream_last(int stream, char *byte) {
    return _lseeki64(stream, -1, SEEK_END) >= 0 && _read(stream, byte, 1) == 1;
}

/* ---- appearing */

static const char *dti_file_name(const char *path) {
    const char *name = path;
    for (const char *at = path; *at; at++)
        if (*at == '/' || *at == '\\' || *at == ':')
            name = at + 1;
    return name;
}

/* The target of a link, or of another kind that the system follows. A link to nothing is an
 * error. */
static bool dti_file_follow(const char *path, char to[DTI_FILE_PATH]) {
    const HANDLE file = CreateFileA(path, 0, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
                                    NULL, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, NULL);
    DWORD size = 0;
    if (file != INVALID_HANDLE_VALUE)
        size = GetFinalPathNameByHandleA(file, to, DTI_FILE_PATH, 0);
    dti_win32_errno();
    if (file != INVALID_HANDLE_VALUE)
        CloseHandle(file);
    return size > 0 && size < DTI_FILE_PATH;
}

/* Rights are the folder's, as of each new file; one that is read-only is not replaced. */
static const char *dti_file_target(const char *path, char to[DTI_FILE_PATH],
                                   dti_file_rights *rights) {
    struct _stat64 file;
    const size_t size = strlen(path) + 1;
    const DWORD found = GetFileAttributesA(path);
    const bool link = found != INVALID_FILE_ATTRIBUTES && (found & FILE_ATTRIBUTE_REPARSE_POINT);
    rights->replaces = _stat64(path, &file) == 0;
    if (rights->replaces && (file.st_mode & _S_IFMT) != _S_IFREG)
        return (file.st_mode & _S_IFMT) == _S_IFDIR ? "it is a folder, not a regular file"
                                                    : "it is not a regular file";
    if (size > DTI_FILE_PATH)
        return strerror(ENAMETOOLONG);
    memcpy(to, path, size);
    return link && !dti_file_follow(path, to) ? strerror(errno) : NULL;
}

static bool dti_file_is_none(const char *path) {
    struct _stat64 file;
    if (_stat64(path, &file) != 0)
        return errno == ENOENT;
    return (file.st_mode & _S_IFMT) != _S_IFREG;
}

static FILE *dti_file_create(const char *path, const dti_file_rights *rights) {
    int descriptor = _open(path, _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY | _O_NOINHERIT,
                           _S_IREAD | _S_IWRITE);
    FILE *file = descriptor < 0 ? NULL : _fdopen(descriptor, "wb");
    if (descriptor >= 0 && !file) {
        int error = errno;
        _close(descriptor);
        remove(path);
        errno = error;
    }
    return file;
}

/* _commit is FlushFileBuffers: to the disk. */
static bool dti_file_sync(FILE *file) {
    return fflush(file) == 0 && _commit(_fileno(file)) == 0;
}

/* A rename is written through instead. */
static bool dti_folder_open(char *path, int *folder) {
    *folder = -1;
    return true;
}

DTI_ABSENT(bool, dti_folder_sync, (int folder), true);

static bool dti_file_rename(const char *from, const char *to) {
    if (MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH))
        return true;
    dti_win32_errno();
    return false;
}

/* Other processes may read it, to see the owner. */
static int dti_file_lock(const char *path, char who[DTI_LOCK_WHO], int *lock) {
    if (!_sopen_s(lock, path, _O_RDWR | _O_CREAT | _O_BINARY | _O_NOINHERIT, _SH_DENYWR,
                  _S_IREAD | _S_IWRITE)) {
        if (_chsize_s(*lock, 0) == 0 && dti_write_all(*lock, who, strlen(who)))
            return 1;
        _close(*lock);
        return -1;
    }
    uint64_t size;
    if (errno != EACCES || dti_stream_open(path, lock, &size))
        return -1;
    const int64_t got = dti_stream_read(*lock, who, DTI_LOCK_WHO - 1);
    who[DTI_MAX(got, 0)] = 0;
    dti_stream_close(*lock);
    return 0;
}

static const char *dti_host_name(char *to, size_t size) {
    DWORD room = (DWORD)size;
    if (!GetComputerNameA(to, &room))
        snprintf(to, size, "unknown");
    return to;
}

DTI_ABSENT(bool, dti_file_exchange, (const char *a, const char *b), (errno = ENOSYS, false));

/* ---- folders */

static bool dti_folder_make(const char *path) {
    if (CreateDirectoryA(path, NULL))
        return true;
    dti_win32_errno();
    return false;
}

static bool dti_folder_remove(const char *path) {
    return RemoveDirectoryA(path) != 0;
}

static bool dti_folder_names_open(dti_folder_names *names, const char *folder) {
    char pattern[MAX_PATH];
    const int size = snprintf(pattern, sizeof pattern, "%s/*", folder);
    if (size < 0 || size >= (int)sizeof pattern) {
        errno = ENAMETOOLONG;
        return false;
    }
    names->folder = FindFirstFileA(pattern, &names->entry);
    names->begun = false;
    if (names->folder != INVALID_HANDLE_VALUE)
        return true;
    dti_win32_errno();
    return false;
}

static const char *dti_folder_names_next(dti_folder_names *names) {
    errno = 0;
    if (!names->begun || FindNextFileA(names->folder, &names->entry)) {
        names->begun = true;
        return names->entry.cFileName;
    }
    if (GetLastError() != ERROR_NO_MORE_FILES)
        dti_win32_errno();
    return NULL;
}

static void dti_folder_names_close(dti_folder_names *names) {
    int error = errno;
    FindClose(names->folder);
    errno = error;
}

#endif
