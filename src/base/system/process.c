/* The process, its libraries that are opened at run time, and chance. */

static long dti_process(void) {
#if defined _WIN32
    return (long)_getpid();
#elif defined __wasi__
    return 1; /* the only one */
#else
    return (long)getpid();
#endif
}

static bool dti_process_is_raised(void) {
#if DTI_POSIX && !defined __wasi__ && !defined __EMSCRIPTEN__
    return getuid() != geteuid() || getgid() != getegid();
#else
    return false;
#endif
}

/* False if no process has this number. True also where that is not known. */
static bool dti_process_lives(long process) {
#if defined _WIN32
    HANDLE handle = OpenProcess(SYNCHRONIZE, FALSE, (DWORD)process);
    if (!handle)
        return GetLastError() != ERROR_INVALID_PARAMETER;
    const bool lives = WaitForSingleObject(handle, 0) == WAIT_TIMEOUT;
    CloseHandle(handle);
    return lives;
#elif DTI_SIGNALS
    return kill((pid_t)process, 0) == 0 || errno != ESRCH;
#else
    return true;
#endif
}

/* ---- a child of fork */

#if defined __linux__ && defined MADV_WIPEONFORK && defined MAP_ANONYMOUS
static const volatile int *dti_at_home_open(void) {
    const size_t bytes = 4096; /* a page, or the kernel takes as much as one has */
    int *word = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (word == MAP_FAILED)
        return NULL;
    if (madvise(word, bytes, MADV_WIPEONFORK) != 0) { /* before Linux 4.14 */
        munmap(word, bytes);
        return NULL;
    }
    *word = 1;
    return word;
}

static void dti_at_home_close(const volatile int *at_home) {
    if (at_home)
        munmap((void *)(uintptr_t)at_home, 4096);
}
#else
DTI_ABSENT(const volatile int *, dti_at_home_open, (void), NULL);
DTI_ABSENT(void, dti_at_home_close, (const volatile int *at_home), );
#endif

/* ---- large memory: the processor finds an element of a large page faster. A hint: where the
 * system has no such pages, or keeps them from this process, nothing happens. */

#if defined __linux__ && defined MADV_HUGEPAGE
static void dti_pages_huge(void *at, size_t bytes) {
    const uintptr_t from = ((uintptr_t)at + DTI_HUGE_PAGE - 1) / DTI_HUGE_PAGE * DTI_HUGE_PAGE;
    const uintptr_t end = ((uintptr_t)at + bytes) / DTI_HUGE_PAGE * DTI_HUGE_PAGE;
    if (from < end)
        (void)madvise((void *)from, end - from, MADV_HUGEPAGE);
}
#else
DTI_ABSENT(void, dti_pages_huge, (void *at, size_t bytes), );
#endif

/* ---- libraries: NULL, and why not */

#if defined _WIN32
static void *dti_library_open(const char *name, const char **why) {
    *why = "LoadLibrary failed";
    return (void *)LoadLibraryA(name);
}

static void *dti_library_find(void *library, const char *symbol) {
    const FARPROC found = GetProcAddress((HMODULE)library, symbol);
    void *pointer;
    memcpy(&pointer, &found, sizeof pointer);
    return pointer;
}

static void dti_library_close(void *library) {
    FreeLibrary((HMODULE)library);
}

DTI_ABSENT(void, dti_library_stay, (const char *name), );
#elif defined __wasi__
static void *dti_library_open(const char *name, const char **why) {
    *why = "this system has no libraries";
    return NULL;
}

DTI_ABSENT(void *, dti_library_find, (void *library, const char *symbol), NULL);
DTI_ABSENT(void, dti_library_close, (void *library), );
DTI_ABSENT(void, dti_library_stay, (const char *name), );
#else
static void *dti_library_open(const char *name, const char **why) {
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    *why = library ? NULL : dlerror();
    if (!library && !*why)
        *why = "no reason given";
    return library;
}

/* POSIX guarantees that the pointer to an object holds a function; C does not: copy its bytes. */
static void *dti_library_find(void *library, const char *symbol) {
    return dlsym(library, symbol);
}

static void dti_library_close(void *library) {
    dlclose(library);
}

static void dti_library_stay(const char *name) {
#if defined RTLD_NOLOAD && defined RTLD_NODELETE
    void *open = dlopen(name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    if (open)
        dlclose(open);
#endif
}
#endif

/* ---- random bytes */

#ifdef _WIN32
/* RtlGenRandom: of advapi32, under the name that it is exported by. */
__declspec(dllimport) BOOLEAN NTAPI SystemFunction036(PVOID to, ULONG bytes);

static bool dti_random_bytes(void *to, size_t bytes) {
    return bytes <= ULONG_MAX && SystemFunction036(to, (ULONG)bytes);
}
#elif defined __wasm__
static bool dti_random_bytes(void *to, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 256) /* the most of one call */
        if (getentropy((char *)to + at, DTI_MIN(bytes - at, 256)) != 0)
            return false;
    return true;
}
#else
/* If the system call is missing or not allowed. 'e': closed by exec, where that is known. */
static bool dti_random_device(void *to, size_t bytes) {
    FILE *file = fopen("/dev/urandom", "rbe");
    if (!file)
        return false;
    setvbuf(file, NULL, _IONBF, 0); /* takes no more than asked for, and keeps no copy */
    bool ok = fread(to, 1, bytes, file) == bytes;
    fclose(file);
    return ok;
}

static bool dti_random_bytes(void *to, size_t bytes) {
    uint8_t *at = to;
#if defined __linux__ && defined SYS_getrandom && defined _DEFAULT_SOURCE
    while (bytes) {
        long got = syscall(SYS_getrandom, at, bytes, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        at += got;
        bytes -= (size_t)got;
    }
#endif
    return !bytes || dti_random_device(at, bytes);
}
#endif
