/* The clock. */

static uint64_t dti_now_ns(void) {
    struct timespec now = {0};
#if DTI_POSIX
    clock_gettime(CLOCK_MONOTONIC, &now);
#else
    timespec_get(&now, TIME_UTC);
#endif
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
