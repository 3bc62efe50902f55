/* Threads of POSIX. */

#if DTI_THREADS && !defined _WIN32

static void *dti_thread_main(void *arg) {
    const dti_thread *thread = arg;
    thread->fn(thread->arg);
    return NULL;
}

/* A thread inherits the mask of signals that it is created under. */
static bool dti_thread_create(dti_thread *thread, const pthread_attr_t *attributes) {
#if DTI_SIGNALS
    sigset_t all, saved;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &saved);
#endif
    const int error = pthread_create(&thread->handle, attributes, dti_thread_main, thread);
#if DTI_SIGNALS
    pthread_sigmask(SIG_SETMASK, &saved, NULL);
#endif
    return error == 0;
}

static bool dti_thread_start(dti_thread *thread, size_t stack, dti_thread_fn *fn, void *arg) {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    thread->fn = fn;
    thread->arg = arg;
    pthread_attr_setstacksize(&attributes, stack);
    /* glibc takes a thread's local variables from its stack: those of a host may need more */
    const bool ok = dti_thread_create(thread, &attributes) || dti_thread_create(thread, NULL);
    pthread_attr_destroy(&attributes);
    return ok;
}

static void dti_thread_join(dti_thread *thread) {
    pthread_join(thread->handle, NULL);
}

static void dti_thread_name(const char *name) {
#if defined __linux__ && defined _DEFAULT_SOURCE
    syscall(SYS_prctl, 15L /* PR_SET_NAME */, name, 0L, 0L, 0L);
#endif
}

static void dti_thread_yield(void) {
#if DTI_POSIX
    sched_yield();
#endif
}

static void dti_mutex_init(dti_mutex *mutex) {
    pthread_mutex_init(mutex, NULL);
}

static void dti_mutex_destroy(dti_mutex *mutex) {
    pthread_mutex_destroy(mutex);
}

static void dti_mutex_lock(dti_mutex *mutex) {
    pthread_mutex_lock(mutex);
}

static void dti_mutex_unlock(dti_mutex *mutex) {
    pthread_mutex_unlock(mutex);
}

/* macOS has no conditions on the clock that never jumps, and POSIX may be hidden. */
#if DTI_POSIX && !defined __APPLE__
#define DTI_COND_MONOTONIC 1
#else
#define DTI_COND_MONOTONIC 0
#endif

static void dti_cond_init(dti_cond *cond) {
#if DTI_COND_MONOTONIC
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
#else
    pthread_cond_init(cond, NULL);
#endif
}

static void dti_cond_destroy(dti_cond *cond) {
    pthread_cond_destroy(cond);
}

static void dti_cond_wait(dti_cond *cond, dti_mutex *mutex) {
    pthread_cond_wait(cond, mutex);
}

static void dti_cond_wait_until(dti_cond *cond, dti_mutex *mutex, uint64_t deadline_ns) {
    const uint64_t now = dti_now_ns();
    uint64_t then = DTI_MAX(now, deadline_ns);
#if !DTI_COND_MONOTONIC
    struct timespec real;
    timespec_get(&real, TIME_UTC);
    then = then - now + (uint64_t)real.tv_sec * 1000000000u + (uint64_t)real.tv_nsec;
#endif
    const struct timespec at = {.tv_sec = (time_t)(then / 1000000000u),
                                .tv_nsec = (long)(then % 1000000000u)};
    pthread_cond_timedwait(cond, mutex, &at);
}

static void dti_cond_signal(dti_cond *cond) {
    pthread_cond_signal(cond);
}

static void dti_cond_broadcast(dti_cond *cond) {
    pthread_cond_broadcast(cond);
}

#endif
