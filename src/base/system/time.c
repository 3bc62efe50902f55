/* The clock that never jumps, the one on the wall, and sleep. */

static uint64_t dti_now_ns(void) {
#ifdef _WIN32
    LARGE_INTEGER ticks, each_second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&each_second);
    const uint64_t now = (uint64_t)ticks.QuadPart, rate = (uint64_t)each_second.QuadPart;
    return now / rate * 1000000000u + now % rate * 1000000000u / rate;
#else
    struct timespec now = {0};
#if DTI_POSIX
    clock_gettime(CLOCK_MONOTONIC, &now);
#else
    timespec_get(&now, TIME_UTC);
#endif
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
#endif
}

static double dti_unix_seconds(void) {
#ifdef _WIN32
    FILETIME now; /* units of 100 ns since 1601 */
    GetSystemTimeAsFileTime(&now);
    const uint64_t units = (uint64_t)now.dwHighDateTime << 32 | now.dwLowDateTime;
    return 1e-7 * (double)units - 11644473600.0;
#else
    struct timespec now = {0};
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
#endif
}

static void dti_thread_sleep(uint64_t ns) {
#ifdef _WIN32
    Sleep((DWORD)((ns + 999999) / 1000000));
#elif DTI_POSIX
    const struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000u),
                                   .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&pause, NULL);
#endif
}
