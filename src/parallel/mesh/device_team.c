/* The device team: a phase is a number that goes up. A thread first spins for the next one, because
 * phases mostly follow at once, and then sleeps. */

#define DTI_DEVICE_TEAM_SPIN_NS 50000
#define DTI_DEVICE_TEAM_STACK ((size_t)1024 * 1024)

typedef struct dti_device_worker {
    dti_device_team *device_team;
    dti_thread thread;
    uint32_t index;
} dti_device_worker;

struct dti_device_team {
    dti_base *base, *comm; /* comm: of the job, which all threads use for the call under way */
    uint32_t count, started;
    dti_device_worker *tp_ranks;
    bool spin, pin; /* spin: there is a processor for each */
    dti_cpu_set allowed;
    dti_device_team_fn *fn;
    void *arg;
    _Atomic uint32_t phase, left;
    _Atomic int sleepers;
    _Atomic bool stop, waited;
    dti_mutex lock;
    dti_cond begun, ended;
};

static void dti_device_team_pin(const dti_device_team *device_team, uint32_t index) {
    dti_cpu_set one = {{0}};
    uint32_t seen = 0;
    for (int cpu = 0; cpu < DTI_MAX_THREADS; cpu++) {
        if (!(device_team->allowed.bits[cpu / 64] >> cpu % 64 & 1))
            continue;
        if (seen++ == index % (uint32_t)DTI_MAX(dti_cpu_set_count(&device_team->allowed), 1)) {
            one.bits[cpu / 64] |= (uint64_t)1 << cpu % 64;
            dti_cpu_set_put(0, &one);
            return;
        }
    }
}

/* Until a phase other than `seen` begins. */
static uint32_t dti_device_team_await(dti_device_team *device_team, uint32_t seen) {
    dti_spin spin = dti_spin_for(DTI_DEVICE_TEAM_SPIN_NS);
    do {
        uint32_t phase = atomic_load(&device_team->phase);
        if (phase != seen)
            return phase;
    } while (device_team->spin && dti_spin_again(&spin));
    dti_mutex_lock(&device_team->lock);
    atomic_fetch_add(&device_team->sleepers, 1);
    while (atomic_load(&device_team->phase) == seen)
        dti_cond_wait(&device_team->begun, &device_team->lock);
    atomic_fetch_sub(&device_team->sleepers, 1);
    dti_mutex_unlock(&device_team->lock);
    return atomic_load(&device_team->phase);
}

static void dti_device_team_main(void *arg) {
    dti_device_worker *tp_rank = arg;
    dti_device_team *device_team = tp_rank->device_team;
    uint32_t seen = 0;
    dti_visit visit;
    if (device_team->pin)
        dti_device_team_pin(device_team, tp_rank->index);
    dti_visit_join(&visit, device_team->comm);
    for (;;) {
        seen = dti_device_team_await(device_team, seen);
        if (atomic_load(&device_team->stop))
            return;
        device_team->fn(device_team->arg, tp_rank->index);
        if (atomic_fetch_sub(&device_team->left, 1) != 1 || !atomic_load(&device_team->waited))
            continue;
        dti_mutex_lock(&device_team->lock);
        dti_cond_signal(&device_team->ended);
        dti_mutex_unlock(&device_team->lock);
    }
}

static void dti_device_team_begin(dti_device_team *device_team) {
    atomic_fetch_add(&device_team->phase, 1);
    if (atomic_load(&device_team->sleepers) == 0)
        return;
    dti_mutex_lock(&device_team->lock);
    dti_cond_broadcast(&device_team->begun);
    dti_mutex_unlock(&device_team->lock);
}

static void dti_device_team_end(dti_device_team *device_team) {
    dti_spin spin = dti_spin_for(DTI_DEVICE_TEAM_SPIN_NS);
    do {
        if (atomic_load(&device_team->left) == 0)
            return;
    } while (device_team->spin && dti_spin_again(&spin));
    dti_mutex_lock(&device_team->lock);
    atomic_store(&device_team->waited, true);
    while (atomic_load(&device_team->left))
        dti_cond_wait(&device_team->ended, &device_team->lock);
    atomic_store(&device_team->waited, false);
    dti_mutex_unlock(&device_team->lock);
}

static void dti_device_team_run(dti_device_team *device_team, dti_device_team_fn *fn, void *arg) {
    device_team->fn = fn;
    device_team->arg = arg;
    atomic_store(&device_team->left, device_team->count - 1);
    if (device_team->count > 1)
        dti_device_team_begin(device_team);
    fn(arg, 0);
    if (device_team->count > 1)
        dti_device_team_end(device_team);
}

static void dti_device_team_start_all(dti_device_team *device_team) {
    for (uint32_t i = 1; i < device_team->count; i++) {
        dti_device_worker *tp_rank = &device_team->tp_ranks[i];
        *tp_rank = (dti_device_worker){.device_team = device_team, .index = i};
        if (!dti_thread_start(&tp_rank->thread, DTI_DEVICE_TEAM_STACK, dti_device_team_main,
                              tp_rank))
            break;
        device_team->started++;
    }
}

static dt_result dti_device_team_create(dti_base *base, dt_comm *comm, uint32_t count, bool pin,
                                        dti_device_team **out) {
    *out = NULL;
    dti_device_team *device_team = dti_alloc(base, sizeof *device_team);
    if (!device_team)
        return DT_ERROR_MEMORY;
    device_team->base = base;
    device_team->comm = comm ? comm->base : NULL;
    device_team->count = count;
    dti_mutex_init(&device_team->lock);
    dti_cond_init(&device_team->begun);
    dti_cond_init(&device_team->ended);
    device_team->pin = dti_cpu_set_get(&device_team->allowed) && pin;
    device_team->spin = dti_processors() >= (int)count;
    device_team->tp_ranks = dti_alloc_array(base, count, sizeof *device_team->tp_ranks);
    dt_result result = device_team->tp_ranks ? DT_OK : DT_ERROR_MEMORY;
    if (!result)
        dti_device_team_start_all(device_team);
    if (!result && device_team->started + 1 < count)
        result =
            dti_fail(base, DT_ERROR_INVALID,
                     "%u replicas need %u threads, but the system gave %u; name fewer in .devices",
                     count, count - 1, device_team->started);
    if (!result && device_team->pin)
        dti_device_team_pin(device_team, 0);
    if (result) {
        dti_device_team_destroy(device_team);
        return result;
    }
    *out = device_team;
    return DT_OK;
}

static void dti_device_team_stop(dti_device_team *device_team) {
    dti_mutex_lock(&device_team->lock);
    atomic_store(&device_team->stop, true);
    atomic_fetch_add(&device_team->phase, 1);
    dti_cond_broadcast(&device_team->begun);
    dti_mutex_unlock(&device_team->lock);
    for (uint32_t i = 1; i <= device_team->started; i++)
        dti_thread_join(&device_team->tp_ranks[i].thread);
    dti_cond_destroy(&device_team->begun);
    dti_cond_destroy(&device_team->ended);
    dti_mutex_destroy(&device_team->lock);
}

static void dti_device_team_destroy(dti_device_team *device_team) {
    if (!device_team)
        return;
    if (!dti_forked(device_team->base))
        dti_device_team_stop(device_team);
    if (device_team->pin)
        dti_cpu_set_put(0, &device_team->allowed);
    DTI_FREE(device_team->base, device_team->tp_ranks, device_team);
}
