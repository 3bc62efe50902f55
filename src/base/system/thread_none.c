/* No threads: none starts, so nothing waits for one. A wait with a deadline checks its condition
 * until then. */

#if !DTI_THREADS

static bool dti_thread_start(dti_thread *thread, size_t stack, dti_thread_fn *fn, void *arg) {
    *thread = (dti_thread){.fn = fn, .arg = arg};
    return false;
}

DTI_ABSENT(void, dti_thread_join, (dti_thread * thread), );
DTI_ABSENT(void, dti_thread_name, (const char *name), );
DTI_ABSENT(void, dti_thread_yield, (void), );
DTI_ABSENT(void, dti_mutex_init, (dti_mutex * mutex), );
DTI_ABSENT(void, dti_mutex_destroy, (dti_mutex * mutex), );
DTI_ABSENT(void, dti_mutex_lock, (dti_mutex * mutex), );
DTI_ABSENT(void, dti_mutex_unlock, (dti_mutex * mutex), );
DTI_ABSENT(void, dti_cond_init, (dti_cond * cond), );
DTI_ABSENT(void, dti_cond_destroy, (dti_cond * cond), );
DTI_ABSENT(void, dti_cond_wait, (dti_cond * cond, dti_mutex *mutex), );
DTI_ABSENT(void, dti_cond_wait_until, (dti_cond * cond, dti_mutex *mutex, uint64_t deadline_ns), );
DTI_ABSENT(void, dti_cond_signal, (dti_cond * cond), );
DTI_ABSENT(void, dti_cond_broadcast, (dti_cond * cond), );

#endif
