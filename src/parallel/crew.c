/* The crew: a phase is a number that goes up; a thread looks for the next one for a moment, because
 * phases mostly follow at once, and then sleeps. */

#define DTI_CREW_SPIN_NS 50000
#define DTI_CREW_STACK ((size_t)1024 * 1024)

typedef struct dti_crew_member {
    dti_crew *crew;
    dti_thread thread;
    uint32_t index;
} dti_crew_member;

struct dti_crew {
    dti_base *base, *comm; /* comm: of the job, which all threads use for the call under way */
    uint32_t count, started;
    dti_crew_member *members;
    bool spin, pin; /* spin: there is a processor for each */
    dti_cpu_set allowed;
    dti_crew_fn *fn;
    void *arg;
    _Atomic uint32_t phase, left;
    _Atomic int sleepers;
    _Atomic bool stop, waited;
    dti_mutex lock;
    dti_cond begun, ended;
};

static void dti_crew_pin(const dti_crew *crew, uint32_t index) {
    dti_cpu_set one = {{0}};
    uint32_t seen = 0;
    for (int cpu = 0; cpu < DTI_MAX_THREADS; cpu++) {
        if (!(crew->allowed.bits[cpu / 64] >> cpu % 64 & 1))
            continue;
        if (seen++ == index % (uint32_t)DTI_MAX(dti_cpu_set_count(&crew->allowed), 1)) {
            one.bits[cpu / 64] |= (uint64_t)1 << cpu % 64;
            dti_cpu_set_put(0, &one);
            return;
        }
    }
}

/* Until a phase other than `seen` begins. */
static uint32_t dti_crew_await(dti_crew *crew, uint32_t seen) {
    dti_spin spin = dti_spin_for(DTI_CREW_SPIN_NS);
    do {
        uint32_t phase = atomic_load(&crew->phase);
        if (phase != seen)
            return phase;
    } while (crew->spin && dti_spin_again(&spin));
    dti_mutex_lock(&crew->lock);
    atomic_fetch_add(&crew->sleepers, 1);
    while (atomic_load(&crew->phase) == seen)
        dti_cond_wait(&crew->begun, &crew->lock);
    atomic_fetch_sub(&crew->sleepers, 1);
    dti_mutex_unlock(&crew->lock);
    return atomic_load(&crew->phase);
}

static void dti_crew_main(void *arg) {
    dti_crew_member *member = arg;
    dti_crew *crew = member->crew;
    uint32_t seen = 0;
    dti_visit visit;
    if (crew->pin)
        dti_crew_pin(crew, member->index);
    dti_visit_join(&visit, crew->comm);
    for (;;) {
        seen = dti_crew_await(crew, seen);
        if (atomic_load(&crew->stop))
            return;
        crew->fn(crew->arg, member->index);
        if (atomic_fetch_sub(&crew->left, 1) != 1 || !atomic_load(&crew->waited))
            continue;
        dti_mutex_lock(&crew->lock);
        dti_cond_signal(&crew->ended);
        dti_mutex_unlock(&crew->lock);
    }
}

static void dti_crew_begin(dti_crew *crew) {
    atomic_fetch_add(&crew->phase, 1);
    if (atomic_load(&crew->sleepers) == 0)
        return;
    dti_mutex_lock(&crew->lock);
    dti_cond_broadcast(&crew->begun);
    dti_mutex_unlock(&crew->lock);
}

static void dti_crew_end(dti_crew *crew) {
    dti_spin spin = dti_spin_for(DTI_CREW_SPIN_NS);
    do {
        if (atomic_load(&crew->left) == 0)
            return;
    } while (crew->spin && dti_spin_again(&spin));
    dti_mutex_lock(&crew->lock);
    atomic_store(&crew->waited, true);
    while (atomic_load(&crew->left))
        dti_cond_wait(&crew->ended, &crew->lock);
    atomic_store(&crew->waited, false);
    dti_mutex_unlock(&crew->lock);
}

static void dti_crew_run(dti_crew *crew, dti_crew_fn *fn, void *arg) {
    crew->fn = fn;
    crew->arg = arg;
    atomic_store(&crew->left, crew->count - 1);
    if (crew->count > 1)
        dti_crew_begin(crew);
    fn(arg, 0);
    if (crew->count > 1)
        dti_crew_end(crew);
}

static void dti_crew_start_all(dti_crew *crew) {
    for (uint32_t i = 1; i < crew->count; i++) {
        dti_crew_member *member = &crew->members[i];
        *member = (dti_crew_member){.crew = crew, .index = i};
        if (!dti_thread_start(&member->thread, DTI_CREW_STACK, dti_crew_main, member))
            break;
        crew->started++;
    }
}

static dt_result dti_crew_create(dti_base *base, dt_comm *comm, uint32_t count, bool pin,
                                 dti_crew **out) {
    *out = NULL;
    dti_crew *crew = dti_alloc(base, sizeof *crew);
    if (!crew)
        return DT_ERROR_MEMORY;
    crew->base = base;
    crew->comm = comm ? comm->base : NULL;
    crew->count = count;
    dti_mutex_init(&crew->lock);
    dti_cond_init(&crew->begun);
    dti_cond_init(&crew->ended);
    crew->pin = dti_cpu_set_get(&crew->allowed) && pin;
    crew->spin = dti_processors() >= (int)count;
    crew->members = dti_alloc_array(base, count, sizeof *crew->members);
    dt_result result = crew->members ? DT_OK : DT_ERROR_MEMORY;
    if (!result)
        dti_crew_start_all(crew);
    if (!result && crew->started + 1 < count)
        result = dti_fail(base, DT_ERROR_INVALID,
                          "%u replicas need %u threads, and the system gave %u; use fewer devices",
                          count, count - 1, crew->started);
    if (!result && crew->pin)
        dti_crew_pin(crew, 0);
    if (result) {
        dti_crew_destroy(crew);
        return result;
    }
    *out = crew;
    return DT_OK;
}

static void dti_crew_stop(dti_crew *crew) {
    dti_mutex_lock(&crew->lock);
    atomic_store(&crew->stop, true);
    atomic_fetch_add(&crew->phase, 1);
    dti_cond_broadcast(&crew->begun);
    dti_mutex_unlock(&crew->lock);
    for (uint32_t i = 1; i <= crew->started; i++)
        dti_thread_join(&crew->members[i].thread);
    dti_cond_destroy(&crew->begun);
    dti_cond_destroy(&crew->ended);
    dti_mutex_destroy(&crew->lock);
}

static void dti_crew_destroy(dti_crew *crew) {
    if (!crew)
        return;
    if (!dti_forked(crew->base))
        dti_crew_stop(crew);
    if (crew->pin)
        dti_cpu_set_put(0, &crew->allowed);
    dti_free(crew->base, crew->members);
    dti_free(crew->base, crew);
}
