/* A trace: events in Chrome's JSON, each followed by a comma. */
struct dt_profile {
    dti_base *base;
    int rank, steps;
    uint64_t began; /* nanoseconds: time 0 of the trace */
    dti_text events;
    char devices[8][32]; /* by thread number, from 1 on; 0 is the trainer */
};

/* Begins an event, whose arguments are added after it; times in microseconds of the trace. */
static void dti_profile_open(dt_profile *p, const char *name, const char *category, int thread,
                             double begin, double length);
static void dti_profile_argument(dt_profile *p, const char *name, uint64_t value);
static void dti_profile_close(dt_profile *p);
static double dti_profile_now(const dt_profile *p);
