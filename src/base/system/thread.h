/* Threads as the systems have them: POSIX, Win32, or none (DT_NO_THREADS, WebAssembly). With none a
 * thread cannot be started. Callers handle that like a system that refuses more threads. Locks are
 * empty then. The times are dti_now_ns()'s. */

#if !DTI_THREADS
typedef char dti_thread_handle, dti_mutex, dti_cond;
#elif defined _WIN32
typedef HANDLE dti_thread_handle;
typedef SRWLOCK dti_mutex;
typedef CONDITION_VARIABLE dti_cond;
#else
typedef pthread_t dti_thread_handle;
typedef pthread_mutex_t dti_mutex;
typedef pthread_cond_t dti_cond;
#endif

typedef void dti_thread_fn(void *arg);
typedef struct dti_thread { /* stays where it is until it has been joined */
    dti_thread_handle handle;
    dti_thread_fn *fn;
    void *arg;
} dti_thread;

/* With `stack` bytes: the host's default may be 64 KiB or 64 MiB. The host's signals are for the
 * host's threads, so all are blocked in this one. False: the system refused. */
static bool dti_thread_start(dti_thread *thread, size_t stack, dti_thread_fn *fn, void *arg);
static void dti_thread_join(dti_thread *thread);
static void dti_thread_name(const char *name); /* of the calling thread; at most 15 bytes */
static void dti_thread_yield(void);            /* gives up the processor for a moment */
static void dti_thread_sleep(uint64_t ns);     /* at least about so long */

static void dti_mutex_init(dti_mutex *mutex);
static void dti_mutex_destroy(dti_mutex *mutex);
static void dti_mutex_lock(dti_mutex *mutex);
static void dti_mutex_unlock(dti_mutex *mutex);

static void dti_cond_init(dti_cond *cond);
static void dti_cond_destroy(dti_cond *cond);
/* May return early: check the condition again. */
static void dti_cond_wait(dti_cond *cond, dti_mutex *mutex);
static void dti_cond_wait_until(dti_cond *cond, dti_mutex *mutex, uint64_t deadline_ns);
static void dti_cond_signal(dti_cond *cond);
static void dti_cond_broadcast(dti_cond *cond);
