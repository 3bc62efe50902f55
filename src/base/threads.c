/* The thread pool, owned by a context. The caller is worker 0 and takes part. A region is cut into
 * pieces by its size only, and handed out through a counter. So a late or preempted worker delays
 * only the piece that it has begun. Workers spin for a moment after a region, because the next one
 * mostly follows at once, and then sleep. It refuses to nest: a region inside a region runs where
 * it is. Which worker runs a piece is not determined, so results may not depend on it.
 *
 * `gate` is the whole protocol in one word. It has a region's number, whether workers may enter,
 * and how many are inside. The region's fields are written only while the gate is shut and
 * empty. */

#define DTI_GATE_INSIDE 0xFFFFu             /* how many workers are inside */
#define DTI_GATE_OPEN 0x10000u              /* workers may enter */
#define DTI_GATE_WAITED 0x20000u            /* the caller sleeps until the last one has left */
#define DTI_GATE_REGION ((uint64_t)1 << 32) /* one step of the region's number */

/* Parking and waking a thread costs 5 to 50 us. Spinning for about as long is at most twice as bad
 * as knowing the future. Between steps a shared machine is left to others. */
#define DTI_SPIN_NS 20000
/* More pieces than threads, so that one slow thread costs a quarter of its share at most. */
#define DTI_PIECES_PER_THREAD 4
/* Kernels keep their scratch in the plan and small frames. Vulkan drivers compile here too: Mesa's
 * need 100 KB, and others are not known. */
#define DTI_WORKER_STACK ((size_t)(sizeof(void *) > 4 ? 2048 : 512) * 1024)

typedef struct dti_worker {
    dti_pool *pool;
    dti_thread thread;
    _Atomic int system_id; /* the system's number of the thread; 0 = not known */
    int index;
} dti_worker;

struct dti_pool {
    dti_base *base;
    dt_job_system jobs;
    int threads;         /* the caller's included */
    int started;         /* threads of our own that run */
    dti_worker *workers; /* [threads], entry 0 unused */
    dti_range_fn *fn;    /* the region */
    void *arg;
    int64_t count, piece, pieces;
    alignas(64) _Atomic int64_t next; /* the next piece to hand out */
    alignas(64) _Atomic uint64_t gate;
    _Atomic int sleepers;
    dti_cpu_set allowed; /* the process's processors when the pool was made */
    int avoided;         /* the processor that workers avoid; -1 = none */
    _Atomic bool stop;
    dti_mutex lock;
    dti_cond wake, left; /* a region opened; the last worker left it */
};

/* Which worker of which pool runs on this thread: a nested region runs inline under its number. */
typedef struct dti_worker_place {
    const dti_pool *pool;
    int worker;
} dti_worker_place;
static DTI_THREAD_LOCAL dti_worker_place dti_inside;

static void dti_cpu_relax(void) {
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

/* For a wait that is mostly short: spins for `limit_ns`, and then sleeps. */
typedef struct dti_spin {
    uint64_t limit_ns, since;
    int turns;
} dti_spin;

static dti_spin dti_spin_for(uint64_t limit_ns) {
    return (dti_spin){limit_ns, dti_now_ns(), 0};
}

/* Whether to look again. */
DTI_INLINE bool dti_spin_again(dti_spin *spin) {
    dti_cpu_relax();
    return ++spin->turns % 32 || dti_now_ns() - spin->since < spin->limit_ns;
}

/* Takes pieces until no piece is left. */
static void dti_pool_work(dti_pool *pool, int worker) {
    dti_worker_place outer = dti_inside;
    dti_inside = (dti_worker_place){pool, worker};
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (i >= pool->pieces)
            break;
        int64_t begin = i * pool->piece;
        int64_t end = i + 1 == pool->pieces ? pool->count : begin + pool->piece;
        pool->fn(pool->arg, begin, end, worker);
    }
    dti_inside = outer;
}

static bool dti_gate_is_new(uint64_t gate, uint64_t seen) {
    return (gate & DTI_GATE_OPEN) && gate / DTI_GATE_REGION != seen;
}

/* Sleeps until a region other than `seen` opens or the pool stops. It raises `sleepers` before it
 * reads the gate. The caller opens the gate before it reads `sleepers`. So one of the two sees the
 * other. */
static void dti_pool_sleep(dti_pool *pool, uint64_t seen) {
    dti_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!atomic_load(&pool->stop) && !dti_gate_is_new(atomic_load(&pool->gate), seen))
        dti_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    dti_mutex_unlock(&pool->lock);
}

/* The system often puts a woken thread on its waker's processor. There it waits for the waker's
 * time slice to end, longer than many regions take, while another core idles (seen: half the
 * speed). So before workers are woken they are kept off the processor that the caller runs on now.
 * Only where there is a processor for each thread. */
static void dti_workers_avoid_caller(dti_pool *pool) {
    int cpu = dti_cpu_now();
    if (cpu < 0 || cpu >= DTI_MAX_THREADS || cpu == pool->avoided)
        return;
    dti_cpu_set others = pool->allowed;
    if (dti_cpu_set_count(&others) < pool->threads)
        return;
    others.bits[cpu / 64] &= ~((uint64_t)1 << cpu % 64);
    for (int i = 1; i <= pool->started; i++) {
        int thread = atomic_load(&pool->workers[i].system_id);
        if (thread)
            dti_cpu_set_put(thread, &others);
    }
    pool->avoided = cpu;
}

static void dti_pool_await(dti_pool *pool, uint64_t seen) {
    dti_spin spin = dti_spin_for(DTI_SPIN_NS);
    do {
        if (dti_gate_is_new(atomic_load(&pool->gate), seen))
            return;
    } while (dti_spin_again(&spin));
    dti_pool_sleep(pool, seen);
}

/* Into the open region, if it is still open: returns its number, or `seen`. */
static uint64_t dti_gate_enter(dti_pool *pool, uint64_t seen) {
    uint64_t gate = atomic_load(&pool->gate);
    while (dti_gate_is_new(gate, seen))
        if (atomic_compare_exchange_weak(&pool->gate, &gate, gate + 1))
            return gate / DTI_GATE_REGION;
    return seen;
}

static void dti_gate_leave(dti_pool *pool) {
    uint64_t gate = atomic_fetch_sub(&pool->gate, 1);
    if ((gate & DTI_GATE_INSIDE) != 1 || !(gate & DTI_GATE_WAITED))
        return;
    dti_mutex_lock(&pool->lock);
    dti_cond_signal(&pool->left);
    dti_mutex_unlock(&pool->lock);
}

static void dti_worker_main(void *arg) {
    dti_worker *worker = arg;
    dti_pool *pool = worker->pool;
    uint64_t seen = 0;
    atomic_store(&worker->system_id, dti_thread_id());
    dti_fp_enter();
    while (!atomic_load(&pool->stop)) {
        dti_pool_await(pool, seen);
        uint64_t region = dti_gate_enter(pool, seen);
        if (region == seen)
            continue;
        seen = region;
        dti_pool_work(pool, worker->index);
        dti_gate_leave(pool);
    }
}

static void dti_gate_open(dti_pool *pool) {
    uint64_t region = atomic_load(&pool->gate) / DTI_GATE_REGION + 1;
    region += (uint32_t)region == 0; /* 0 is the region that a new worker has seen */
    atomic_store(&pool->gate, (uint64_t)(uint32_t)region * DTI_GATE_REGION | DTI_GATE_OPEN);
    if (atomic_load(&pool->sleepers) == 0)
        return;
    dti_workers_avoid_caller(pool);
    dti_mutex_lock(&pool->lock);
    if (pool->pieces == 2)
        dti_cond_signal(&pool->wake);
    else
        dti_cond_broadcast(&pool->wake);
    dti_mutex_unlock(&pool->lock);
}

/* No worker enters any more; returns when those inside have left. They are on their last piece, so
 * a short spin is mostly enough. For a preempted one this thread sleeps, so that it can use this
 * core. */
static void dti_gate_shut(dti_pool *pool) {
    uint64_t gate = atomic_fetch_and(&pool->gate, ~(uint64_t)DTI_GATE_OPEN);
    if (!(gate & DTI_GATE_INSIDE))
        return;
    dti_spin spin = dti_spin_for(DTI_SPIN_NS);
    do {
        if (!(atomic_load(&pool->gate) & DTI_GATE_INSIDE))
            return;
    } while (dti_spin_again(&spin));
    dti_mutex_lock(&pool->lock);
    gate = atomic_fetch_or(&pool->gate, DTI_GATE_WAITED);
    while (gate & DTI_GATE_INSIDE) {
        dti_cond_wait(&pool->left, &pool->lock);
        gate = atomic_load(&pool->gate);
    }
    atomic_fetch_and(&pool->gate, ~(uint64_t)DTI_GATE_WAITED);
    dti_mutex_unlock(&pool->lock);
}

/* One of the host's jobs: as a worker of ours, on a thread that is not. */
static void dti_pool_job(void *arg, int64_t i) {
    const dti_fp_modes saved = dti_fp_enter();
    dti_pool_work(arg, (int)i);
    dti_fp_leave(saved);
}

static void dti_parallel_for(dti_pool *pool, int64_t count, int64_t grain, dti_range_fn *fn,
                             void *arg) {
    if (count <= 0)
        return;
    int64_t units = count / DTI_MAX(grain, 1); /* the remainder goes to the last piece */
    bool nested = pool && dti_inside.pool == pool;
    if (!pool || pool->threads <= 1 || units <= 1 || nested) {
        fn(arg, 0, count, nested ? dti_inside.worker : 0);
        return;
    }
    int64_t most = (int64_t)pool->threads * DTI_PIECES_PER_THREAD;
    int64_t step = units / most + (units % most != 0);
    pool->fn = fn, pool->arg = arg, pool->count = count;
    pool->piece = step * DTI_MAX(grain, 1);
    pool->pieces = units / step + (units % step != 0);
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    if (pool->jobs.parallel_for) {
        int64_t jobs = DTI_MIN(pool->pieces, pool->threads);
        dti_visit visit;
        dti_visit_host(&visit, pool->base, DTI_IN_CALLBACK);
        pool->jobs.parallel_for(pool->jobs.user, jobs, dti_pool_job, pool);
        dti_visit_returned(&visit);
        return;
    }
    dti_gate_open(pool);
    dti_pool_work(pool, 0);
    dti_gate_shut(pool);
}

static int dti_pool_threads(const dti_pool *pool) {
    return pool ? pool->threads : 1;
}

static dti_pool *dti_pool_own(dti_pool *pool) {
    return pool && pool->jobs.parallel_for ? NULL : pool;
}

static void dti_pool_start(dti_pool *pool) {
    for (int i = 1; i < pool->threads; i++) {
        dti_worker *worker = &pool->workers[i];
        *worker = (dti_worker){.pool = pool, .index = i};
        if (!dti_thread_start(&worker->thread, DTI_WORKER_STACK, dti_worker_main, worker))
            break;
        pool->started++;
    }
}

static dt_result dti_pool_create(dti_base *base, int threads, const dt_job_system *jobs,
                                 dti_pool **out) {
    *out = NULL;
    bool hosted = jobs && jobs->parallel_for;
    if (threads == DT_THREADS_ALL)
        threads = dti_processors();
    threads = DTI_MAX(hosted ? jobs->threads : threads, 1);
    if (threads > DTI_MAX_THREADS)
        return dti_fail(base, DT_ERROR_INVALID, ".threads is %d; it must be at most %d", threads,
                        DTI_MAX_THREADS);
    dti_pool *pool = dti_alloc(base, sizeof *pool);
    DTI_HAVE(pool);
    pool->base = base;
    pool->threads = threads;
    pool->avoided = -1;
    (void)dti_cpu_set_get(&pool->allowed);
    pool->workers = dti_alloc_array(base, (size_t)threads, sizeof *pool->workers);
    if (!pool->workers) {
        dti_free(base, pool);
        return DT_ERROR_MEMORY;
    }
    dti_mutex_init(&pool->lock);
    dti_cond_init(&pool->wake);
    dti_cond_init(&pool->left);
    if (hosted)
        pool->jobs = *jobs;
    else
        dti_pool_start(pool);
    if (!hosted && pool->started + 1 < threads) {
        dti_log(base, DT_LOG_WARNING, "%d threads requested, but the system started %d", threads,
                pool->started + 1);
        pool->threads = pool->started + 1;
    }
    *out = pool;
    return DT_OK;
}

static void dti_pool_stop(dti_pool *pool) {
    dti_mutex_lock(&pool->lock);
    atomic_store(&pool->stop, true);
    dti_cond_broadcast(&pool->wake);
    dti_mutex_unlock(&pool->lock);
    for (int i = 1; i <= pool->started; i++)
        dti_thread_join(&pool->workers[i].thread);
    dti_cond_destroy(&pool->left);
    dti_cond_destroy(&pool->wake);
    dti_mutex_destroy(&pool->lock);
}

static void dti_pool_destroy(dti_base *base, dti_pool *pool) {
    if (!pool)
        return;
    if (!dti_forked(base))
        dti_pool_stop(pool);
    DTI_FREE(base, pool->workers, pool);
}
