/* Threads of Windows: slim locks and conditions, which need not be freed. */

#if DTI_THREADS && defined _WIN32

static DWORD WINAPI dti_thread_main(void *arg) {
    const dti_thread *thread = arg;
    thread->fn(thread->arg);
    return 0;
}

static bool dti_thread_start(dti_thread *thread, size_t stack, dti_thread_fn *fn, void *arg) {
    thread->fn = fn;
    thread->arg = arg;
    thread->handle =
        CreateThread(NULL, stack, dti_thread_main, thread, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
    return thread->handle != NULL;
}

static void dti_thread_join(dti_thread *thread) {
    WaitForSingleObject(thread->handle, INFINITE);
    CloseHandle(thread->handle);
}

/* SetThreadDescription is younger than the systems that this runs on. */
DTI_ABSENT(void, dti_thread_name, (const char *name), );

static void dti_thread_yield(void) {
    SwitchToThread();
}

static void dti_mutex_init(dti_mutex *mutex) {
    InitializeSRWLock(mutex);
}

DTI_ABSENT(void, dti_mutex_destroy, (dti_mutex * mutex), );

static void dti_mutex_lock(dti_mutex *mutex) {
    AcquireSRWLockExclusive(mutex);
}

static void dti_mutex_unlock(dti_mutex *mutex) {
    ReleaseSRWLockExclusive(mutex);
}

static void dti_cond_init(dti_cond *cond) {
    InitializeConditionVariable(cond);
}

DTI_ABSENT(void, dti_cond_destroy, (dti_cond * cond), );

static void dti_cond_wait(dti_cond *cond, dti_mutex *mutex) {
    SleepConditionVariableSRW(cond, mutex, INFINITE, 0);
}

static void dti_cond_wait_until(dti_cond *cond, dti_mutex *mutex, uint64_t deadline_ns) {
    const uint64_t now = dti_now_ns();
    const uint64_t ms = deadline_ns > now ? (deadline_ns - now + 999999) / 1000000 : 0;
    SleepConditionVariableSRW(cond, mutex, (DWORD)DTI_MIN(ms, 1000000000u), 0);
}

static void dti_cond_signal(dti_cond *cond) {
    WakeConditionVariable(cond);
}

static void dti_cond_broadcast(dti_cond *cond) {
    WakeAllConditionVariable(cond);
}

#endif
