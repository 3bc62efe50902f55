/* Which processors there are, and which of them a thread may run on. On Linux by system calls: the
 * C library declares them only under _GNU_SOURCE. Where nothing is known, threads stay where they
 * are. */

#define DTI_MAX_THREADS 1024

/* A mask of processors as Linux has it. */
typedef struct dti_cpu_set {
    uint64_t bits[DTI_MAX_THREADS / 64];
} dti_cpu_set;

#if defined __linux__ && defined _DEFAULT_SOURCE
/* The one that this thread runs on; -1 = not known, or useless. */
static int dti_cpu_now(void) {
    unsigned cpu = 0;
    return syscall(SYS_getcpu, &cpu, NULL, NULL) == 0 ? (int)cpu : -1;
}

static int dti_thread_id(void) {
    return (int)syscall(SYS_gettid);
}

/* The processors that the calling thread may use. */
static bool dti_cpu_set_get(dti_cpu_set *set) {
    return syscall(SYS_sched_getaffinity, 0L, sizeof *set, set) > 0;
}

/* thread: 0 = the calling one. */
static void dti_cpu_set_put(int thread, const dti_cpu_set *set) {
    (void)syscall(SYS_sched_setaffinity, (long)thread, sizeof *set, set);
}

/* Whether the process has AMX's registers: Linux grants them on request. */
static bool dti_cpu_tiles(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
#ifdef SYS_arch_prctl
    return !syscall(SYS_arch_prctl, (long)ARCH_REQ_XCOMP_PERM, (long)XFEATURE_XTILEDATA);
#else
    return false;
#endif
}
#else
DTI_ABSENT(bool, dti_cpu_tiles, (void), false);
DTI_ABSENT(int, dti_cpu_now, (void), -1);
DTI_ABSENT(int, dti_thread_id, (void), 0);

#ifdef _WIN32
/* Of the process's group, which has at most 64. */
static bool dti_cpu_set_get(dti_cpu_set *set) {
    DWORD_PTR own = 0, all = 0;
    if (!GetProcessAffinityMask(GetCurrentProcess(), &own, &all) || !own)
        return false; /* 0: the process is in several groups */
    *set = (dti_cpu_set){{own}};
    return true;
}

static void dti_cpu_set_put(int thread, const dti_cpu_set *set) {
    if (thread == 0)
        SetThreadAffinityMask(GetCurrentThread(), (DWORD_PTR)set->bits[0]);
}
#else
DTI_ABSENT(bool, dti_cpu_set_get, (dti_cpu_set * set), false);
DTI_ABSENT(void, dti_cpu_set_put, (int thread, const dti_cpu_set *set), );
#endif
#endif

static int dti_cpu_set_count(const dti_cpu_set *set) {
    int count = 0;
    for (size_t i = 0; i < DTI_COUNT(set->bits); i++)
        count += __builtin_popcountll(set->bits[i]);
    return count;
}

/* The number that this process may use: its affinity mask, where the system has one. */
static int dti_processors(void) {
    dti_cpu_set set = {{0}};
    int count = dti_cpu_set_get(&set) ? dti_cpu_set_count(&set) : 0;
#if defined _WIN32
    if (!count)
        count = (int)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
#elif defined _SC_NPROCESSORS_ONLN
    if (!count)
        count = (int)sysconf(_SC_NPROCESSORS_ONLN);
#endif
    return DTI_THREADS ? DTI_MIN(DTI_MAX(count, 1), DTI_MAX_THREADS) : 1;
}
