/* Files as the systems have them, for base/file.c and all code that names one. Failures set
 * errno. */

#define DTI_READ_MOST ((size_t)1 << 24) /* bytes of one read: some systems read at most 2^31 */

/* NULL, or why not (until the next call of any function); nothing is open then. Nothing is
 * logged. */
static const char *dti_stream_open(const char *path, int *stream, uint64_t *size);
static int64_t dti_stream_read(int stream, void *to, size_t bytes); /* 0: end, -1: errno */
static bool dti_stream_seek(int stream, uint64_t at);
static void dti_stream_close(int stream);

/* Guards a write in a file. On Linux it keeps the signal of a file that may not grow from ending
 * the process. */
typedef struct dti_write_guard {
#if DTI_SIGNALS
    sigset_t mask;
#endif
    bool others; /* it was pending before */
} dti_write_guard;
static void dti_write_begin(dti_write_guard *g);
static void dti_write_end(const dti_write_guard *g, bool written); /* errno stays */
/* All of it, so guarded, to a descriptor. False: see errno. */
static bool dti_write_all(int descriptor, const void *data, size_t bytes);

/* Opens or creates a file to append to; -1: see errno. *size: its bytes. */
static int dti_stream_append(const char *path, uint64_t *size);
static bool dti_stream_cut(int stream, uint64_t size); /* back to that size */
static bool dti_stream_last(int stream, char *byte);   /* of one that is not empty */

#define DTI_FILE_PATH 4096 /* bytes of a path that links lead to, at most */
typedef struct dti_file_rights {
    unsigned mode; /* permissions: of the file that is replaced, or of a new one before the umask */
    bool replaces; /* there is one, with */
    unsigned owner, group;
} dti_file_rights;
/* The path where a file is to be written: links are followed, also one to a missing file. Returns
 * NULL, or why nothing may be written there. A process may have the right to replace a device by a
 * file, so that is refused. Without POSIX links cannot be seen: there the link itself is
 * replaced. */
static const char *dti_file_target(const char *path, char to[DTI_FILE_PATH],
                                   dti_file_rights *rights);
/* The last part of a path, after its folders. */
static const char *dti_file_name(const char *path);
/* True if the path is not a regular file: a folder, a FIFO, a device, a link to nothing, or
 * nothing. False if that is not known. */
static bool dti_file_is_none(const char *path);
/* Creates a new file. It fails if the file exists, also if a link leads there. It gets these rights
 * as far as the system permits. */
static FILE *dti_file_create(const char *path, const dti_file_rights *rights);
/* To the disk, not only to the system. A rename may otherwise reach the disk before the data. */
static bool dti_file_sync(FILE *file);
static bool dti_file_rename(const char *from, const char *to); /* `to` is replaced, in one step */
/* Exchanges two names, also of folders, in one step. False: also where the system has no such
 * step. */
static bool dti_file_exchange(const char *a, const char *b);
/* The folder that `path` lies in, for dti_folder_sync(); `path` is as before afterwards. False: it
 * cannot be opened, errno says why. *folder -1: it may not be read, or there is nothing to do. */
static bool dti_folder_open(char *path, int *folder);
/* Flushes a folder to the disk and closes it. False: see errno. -1 is fine. */
static bool dti_folder_sync(int folder);

/* Opens or creates a file and locks it until it is closed or the process ends. `who` is written
 * into it. 1: locked; 0: another process holds it, and `who` is its text; -1: the system or the
 * disk has no such locks, see errno. */
#define DTI_LOCK_WHO 96
static int dti_file_lock(const char *path, char who[DTI_LOCK_WHO], int *lock);
static const char *dti_host_name(char *to, size_t size);

/* Folders. Where POSIX is hidden these fail with ENOSYS. */
#if DTI_POSIX || defined _WIN32
#define DTI_FOLDERS 1
#else
#define DTI_FOLDERS 0
#endif
typedef struct dti_folder_names {
#ifdef _WIN32
    HANDLE folder;
    WIN32_FIND_DATAA entry;
    bool begun;
#elif DTI_POSIX
    DIR *folder;
#else
    bool none;
#endif
} dti_folder_names;
static bool dti_folder_make(const char *path);   /* false: also if it exists, EEXIST */
static bool dti_folder_remove(const char *path); /* one that is empty */
static bool dti_folder_names_open(dti_folder_names *names, const char *folder);
static const char *
dti_folder_names_next(dti_folder_names *names); /* a name; NULL: the end, errno 0, or errno */
static void dti_folder_names_close(dti_folder_names *names); /* errno stays */
