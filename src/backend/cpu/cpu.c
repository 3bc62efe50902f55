/* The CPU as a device. Arenas are host memory, and a compiled program is an array of launches with
 * resolved pointers. A segment runs to its end on the context's pool, or part by part. A part is
 * some items of a launch; parts are timed, so that later parts fit. The host writes IN and reads
 * OUT directly, so uploads and downloads do nothing. */

#define DTI_CPU_PART_MS 0.5    /* of items that are run at once, by estimate */
#define DTI_CPU_PART_FLOPS 4e6 /* a product is cut into items of this number */
#define DTI_CPU_PARTS_MAX 1024
#define DTI_CPU_FLOPS_PER_MS 1e6 /* until a launch has been timed */

typedef struct dti_cpu_device {
    dti_device head;
    const dti_isa_kernels *kernels;
} dti_cpu_device;

typedef struct dti_cpu_memory {
    dti_base *base;
    uint64_t bytes;
    char *data;
    bool over; /* data is another's */
} dti_cpu_memory;

typedef struct dti_cpu_exec {
    dti_base *base;
    const dti_exec_desc *desc;
    dti_cpu_task *tasks; /* one for each launch */
    double *ms;          /* of each launch, as parts of it took */
    uint32_t timed;      /* of the newest part: */
    dti_exec_time times[DTI_EXEC_TIMES];
    char *scratch;        /* of all workers, one after the other */
    size_t scratch_bytes; /* of one worker */
} dti_cpu_exec;

static dti_cpu_memory *dti_cpu_memory_of(dti_memory *m) {
    return (dti_cpu_memory *)(void *)m;
}

static dt_result dti_cpu_memory_create(dti_device *device, uint64_t bytes, dti_memory_kind kind,
                                       dti_memory **out) {
    dti_cpu_memory *m = dti_alloc(device->base, sizeof *m);
    DTI_HAVE(m);
    m->base = device->base;
    m->bytes = bytes;
    m->data = bytes <= SIZE_MAX ? dti_alloc(device->base, bytes ? (size_t)bytes : 1) : NULL;
    if (!m->data) {
        dti_free(device->base, m);
        return DT_ERROR_MEMORY;
    }
    *out = (dti_memory *)(void *)m;
    return DT_OK;
}

static dt_result dti_cpu_memory_over(dti_device *device, void *data, uint64_t bytes,
                                     dti_memory **out) {
    dti_cpu_memory *m = dti_alloc(device->base, sizeof *m);
    *out = (dti_memory *)(void *)m;
    DTI_HAVE(m);
    *m = (dti_cpu_memory){.base = device->base, .bytes = bytes, .data = data, .over = true};
    return DT_OK;
}

static void dti_cpu_memory_destroy(dti_memory *memory) {
    if (!memory)
        return;
    dti_cpu_memory *m = dti_cpu_memory_of(memory);
    if (!m->over)
        dti_free(m->base, m->data);
    dti_free(m->base, m);
}

static uint64_t dti_cpu_memory_bytes(const dti_memory *memory) {
    return ((const dti_cpu_memory *)(const void *)memory)->bytes;
}

static void *dti_cpu_memory_host(dti_memory *memory) {
    return dti_cpu_memory_of(memory)->data;
}

static dt_result dti_cpu_memory_write(dti_memory *memory, uint64_t offset, const void *data,
                                      uint64_t bytes) {
    memcpy(dti_cpu_memory_of(memory)->data + offset, data, (size_t)bytes);
    return DT_OK;
}

static dt_result dti_cpu_memory_read(dti_memory *memory, uint64_t offset, void *data,
                                     uint64_t bytes) {
    memcpy(data, dti_cpu_memory_of(memory)->data + offset, (size_t)bytes);
    return DT_OK;
}

/* ---- exec */

static void *dti_cpu_pointer(const dti_exec_desc *d, uint32_t value) {
    const dti_place *place = &d->places[value];
    return dti_cpu_memory_of(d->memories[place->memory])->data + place->offset;
}

static void dti_cpu_exec_destroy(dti_exec *exec) {
    dti_cpu_exec *x = (dti_cpu_exec *)(void *)exec;
    if (!x)
        return;
    DTI_FREE(x->base, x->tasks, x->ms, x->scratch, x);
}

/* Products and convolutions have items for the number of threads. For parts they are cut as if
 * there were more. No bit depends on it. */
static int dti_cpu_part_threads(const dti_launch *l, int threads) {
    const double parts = (double)dti_launch_effort(l, 0, 1).flops / DTI_CPU_PART_FLOPS;
    return DTI_MAX(threads, (int)DTI_MIN(parts, (double)DTI_CPU_PARTS_MAX));
}

static void dti_cpu_bind(dti_cpu_exec *x, const dti_cpu_device *device, int threads) {
    const dti_exec_desc *d = x->desc;
    const uint32_t *step = (const uint32_t *)(void *)dti_cpu_memory_of(d->memories[d->in])->data;
    for (uint32_t i = 0; i < d->launch_count; i++) {
        dti_cpu_task *t = &x->tasks[i];
        const dti_launch *l = &d->launches[i];
        *t = (dti_cpu_task){.launch = l, .step = step, .k = device->kernels, .threads = threads};
        for (int b = 0; b < DTI_BINDINGS_MAX; b++)
            t->buf[b] = dti_cpu_pointer(d, l->value[b]);
        x->ms[i] = (double)dti_launch_effort(l, 0, 1).flops / DTI_CPU_FLOPS_PER_MS;
        const int cut[2] = {threads, dti_cpu_part_threads(l, threads)};
        for (int c = 0; c < 2; c++)
            x->scratch_bytes = DTI_MAX(x->scratch_bytes, dti_cpu_scratch(l, cut[c]));
    }
}

static dt_result dti_cpu_exec_create(dti_device *device, const dti_exec_desc *desc,
                                     dti_exec **out) {
    dti_cpu_exec *x = dti_alloc(device->base, sizeof *x);
    DTI_HAVE(x);
    x->base = device->base;
    x->desc = desc;
    x->tasks = dti_alloc_array(device->base, desc->launch_count + 1u, sizeof *x->tasks);
    x->ms = dti_alloc_array(device->base, desc->launch_count + 1u, sizeof *x->ms);
    if (!x->tasks || !x->ms) {
        dti_cpu_exec_destroy((dti_exec *)(void *)x);
        return DT_ERROR_MEMORY;
    }
    int threads = device->one_thread ? 1 : dti_pool_threads(device->base->pool);
    dti_cpu_bind(x, (const dti_cpu_device *)(const void *)device, threads);
    x->scratch_bytes =
        (x->scratch_bytes + 4095) & ~(size_t)4095; /* workers share no cache line or page */
    x->scratch =
        dti_alloc_array(device->base, (size_t)threads, x->scratch_bytes ? x->scratch_bytes : 64);
    if (!x->scratch) {
        dti_cpu_exec_destroy((dti_exec *)(void *)x);
        return DT_ERROR_MEMORY;
    }
    *out = (dti_exec *)(void *)x;
    return DT_OK;
}

typedef struct dti_cpu_job {
    const dti_cpu_exec *exec;
    const dti_cpu_task *task;
    int64_t first;
} dti_cpu_job;

static void dti_cpu_piece(void *arg, int64_t begin, int64_t end, int worker) {
    const dti_cpu_job *job = arg;
    dti_cpu_run(job->task, job->first + begin, job->first + end,
                job->exec->scratch + (size_t)worker * job->exec->scratch_bytes);
}

static int64_t dti_cpu_items(const dti_cpu_task *t) {
    const dti_kernel_info *k = dti_kernel_info_of(t->launch->kernel);
    return t->launch->items && k->outer ? k->outer(t) : (int64_t)t->launch->items;
}

/* Items [begin, end), where begin is a multiple of the grain. threads: of the pool. */
static void dti_cpu_run_items(const dti_cpu_exec *x, const dti_cpu_task *t, int threads,
                              int64_t begin, int64_t end) {
    const int64_t grain = dti_cpu_grain(t);
    if (threads == 1 || end - begin <= grain) {
        dti_cpu_run(t, begin, end, x->scratch);
        return;
    }
    dti_cpu_job job = {x, t, begin};
    dti_parallel_for(x->base->pool, end - begin, grain, dti_cpu_piece, &job);
}

static void dti_cpu_run_launch(const dti_cpu_exec *x, uint32_t i) {
    const dti_cpu_task *t = &x->tasks[i];
    const int64_t items = dti_cpu_items(t);
    if (items)
        dti_cpu_run_items(x, t, t->threads, 0, items);
}

static dt_result dti_cpu_exec_start(dti_exec *exec, uint32_t first, uint32_t count) {
    const dti_cpu_exec *x = (const dti_cpu_exec *)(const void *)exec;
    for (uint32_t s = first; s < first + count; s++) {
        const dti_segment *segment = &x->desc->segments[s];
        for (uint32_t i = 0; i < segment->count; i++)
            dti_cpu_run_launch(x, segment->first + i);
    }
    return DT_OK;
}

/* Runs the items of launch i from *at on for which `left` has time. *at is then after them, or 0:
 * the launch has ended. False: there was no time. first: runs at least one item. */
static bool dti_cpu_run_part(const dti_cpu_exec *x, uint32_t i, uint64_t *at, double left,
                             bool first) {
    dti_cpu_task t = x->tasks[i];
    const int threads = t.threads;
    t.threads = dti_cpu_part_threads(t.launch, threads);
    const int64_t items = dti_cpu_items(&t), begin = (int64_t)*at;
    if (!items)
        return true;
    const int64_t grain = threads * DTI_MAX(dti_cpu_grain(&t), 1);
    const double each = x->ms[i] / (double)items * (double)grain;
    const double fit = DTI_MIN(left, DTI_CPU_PART_MS) / DTI_MAX(each, 1e-9);
    if (each > left && !first)
        return false;
    const double most = DTI_MIN(fit, (double)(items - begin) / (double)grain + 1.0);
    const int64_t end = DTI_MIN(items, begin + grain * DTI_MAX((int64_t)most, 1));
    const uint64_t start = dti_now_ns();
    dti_cpu_run_items(x, &t, threads, begin, end);
    const double took =
        (double)(dti_now_ns() - start) * 1e-6 * (double)items / (double)(end - begin);
    x->ms[i] += 0.25 * (DTI_MIN(took, 4.0 * x->ms[i] + 0.01) - x->ms[i]);
    *at = end < items ? (uint64_t)end : 0;
    return true;
}

static dt_result dti_cpu_exec_part(dti_exec *exec, uint32_t *at, dti_exec_cursor *cursor,
                                   uint32_t end, double ms) {
    dti_cpu_exec *x = (dti_cpu_exec *)(void *)exec;
    const uint64_t start = dti_now_ns();
    bool fits = true;
    x->timed = 0;
    while (*at < end && fits) {
        const dti_segment *segment = &x->desc->segments[*at];
        while (cursor->launch < segment->count && fits) {
            const uint32_t launch = segment->first + cursor->launch;
            const double begin = (double)(dti_now_ns() - start) * 1e-6;
            fits = x->timed < DTI_EXEC_TIMES &&
                   dti_cpu_run_part(x, launch, &cursor->part, ms - begin, !x->timed);
            if (fits)
                x->times[x->timed++] =
                    (dti_exec_time){launch, begin, (double)(dti_now_ns() - start) * 1e-6};
            cursor->launch += fits && !cursor->part;
        }
        if (cursor->launch == segment->count) {
            *cursor = (dti_exec_cursor){0, 0};
            ++*at;
        }
    }
    return DT_OK;
}

static uint32_t dti_cpu_exec_times(const dti_exec *exec, dti_exec_time *to) {
    const dti_cpu_exec *x = (const dti_cpu_exec *)(const void *)exec;
    memcpy(to, x->times, x->timed * sizeof *to);
    return x->timed;
}

/* Started work has ended when the start returns. */
DTI_ABSENT(dt_result, dti_cpu_exec_poll, (dti_exec * exec, bool *busy), (*busy = false, DT_OK));
DTI_ABSENT(dt_result, dti_cpu_exec_reach, (dti_exec * exec, uint32_t segment), DT_OK);
DTI_ABSENT(dt_result, dti_cpu_exec_wait, (dti_exec * exec), DT_OK);

static bool dti_cpu_launch_finite(const dti_cpu_exec *x, uint32_t i) {
    const dti_launch *l = &x->desc->launches[i];
    const dti_kernel_info *info = dti_kernel_info_of(l->kernel);
    for (int b = 0; b < info->bindings && dti_launch_makes_floats(l); b++) {
        if (info->access[b] == 'r')
            continue;
        const uint64_t bytes = x->desc->places[l->value[b]].bytes;
        const dt_dtype dtype = dti_is_half(l->dtype[b]) ? l->dtype[b] : DT_F32;
        if (!dti_all_finite(x->tasks[i].buf[b], dtype, bytes / dti_dtype_bytes(dtype)))
            return false;
    }
    return true;
}

static dt_result dti_cpu_exec_find_fault(dti_exec *exec, uint32_t first, uint32_t count,
                                         uint32_t *fault) {
    const dti_cpu_exec *x = (const dti_cpu_exec *)(const void *)exec;
    *fault = x->desc->launch_count;
    for (uint32_t i = first; i < first + count && *fault == x->desc->launch_count; i++) {
        dti_cpu_run_launch(x, i);
        if (!dti_cpu_launch_finite(x, i))
            *fault = i;
    }
    return DT_OK;
}

static void dti_cpu_close(dti_device *device) {
    dti_free(device->base, device);
}

static const dti_backend dti_cpu_backend = {
    .memory_create = dti_cpu_memory_create,
    .memory_destroy = dti_cpu_memory_destroy,
    .memory_bytes = dti_cpu_memory_bytes,
    .memory_host = dti_cpu_memory_host,
    .memory_over = dti_cpu_memory_over,
    .memory_write = dti_cpu_memory_write,
    .memory_read = dti_cpu_memory_read,
    .exec_create = dti_cpu_exec_create,
    .exec_destroy = dti_cpu_exec_destroy,
    .exec_start = dti_cpu_exec_start,
    .exec_part = dti_cpu_exec_part,
    .exec_times = dti_cpu_exec_times,
    .exec_poll = dti_cpu_exec_poll,
    .exec_wait = dti_cpu_exec_wait,
    .exec_reach = dti_cpu_exec_reach,
    .exec_find_fault = dti_cpu_exec_find_fault,
    .close = dti_cpu_close,
};

static void dti_cpu_info(dti_base *base, int isa_max, dt_device_info *info) {
    *info = (dt_device_info){.name = "cpu", .id = "cpu", .kind = DT_DEVICE_CPU, .usable = true};
    const int threads = dti_pool_threads(base->pool), processors = dti_processors();
    snprintf(info->driver, sizeof info->driver, "native %s, %d %s %d processor%s",
             dti_isa_kernels_select(isa_max)->name, threads,
             threads > processors ? "threads on" : "of", processors, processors == 1 ? "" : "s");
    info->storage_range_bytes = UINT32_MAX;
    info->offset_alignment = 64;
}

static dt_result dti_cpu_open(dti_base *base, int isa_max, dti_device **out) {
    dti_cpu_device *d = dti_alloc(base, sizeof *d);
    DTI_HAVE(d);
    d->head.backend = &dti_cpu_backend;
    d->head.base = base;
    d->kernels = dti_isa_kernels_select(isa_max);
    d->head.isa_class = d->kernels->isa == DTI_ISA_AMX ? DTI_CLASS_AMX
                        : d->kernels->fma              ? DTI_CLASS_FMA
                                                       : DTI_CLASS_PLAIN;
    dti_cpu_info(base, isa_max, &d->head.info);
    *out = &d->head;
    return DT_OK;
}

static const dti_isa_kernels *dti_cpu_kernels(const dti_device *device) {
    return ((const dti_cpu_device *)(const void *)device)->kernels;
}

static int dti_cpu_isa_of(const dt_ctx_desc *desc) {
    return desc->no_fast ? DTI_ISA_PORTABLE : desc->amx ? DTI_ISA_AMX : DTI_ISA_BEST;
}

static dt_result dti_cpu_driver_list(dti_base *base, const dt_ctx_desc *desc, void **instance,
                                     dt_device_info *infos, int capacity, int *count) {
    if (capacity > 0)
        dti_cpu_info(base, dti_cpu_isa_of(desc), infos);
    *count = 1;
    return DT_OK;
}

static dt_result dti_cpu_driver_open(dti_base *base, const dt_ctx_desc *desc, void *instance,
                                     int index, dti_device **out) {
    DTI_TRY(dti_cpu_open(base, dti_cpu_isa_of(desc), out));
    if (desc->amx && (*out)->isa_class != DTI_CLASS_AMX)
        dti_log(base, DT_LOG_WARNING,
                "dt_ctx_desc.amx: no kernels with AMX (this CPU, its system or this build has "
                "none, or .no_fast is set); they are %s",
                dti_cpu_kernels(*out)->name);
    return DT_OK;
}

static const dti_driver dti_cpu_driver = {
    .name = "cpu", .title = "CPU", .list = dti_cpu_driver_list, .open = dti_cpu_driver_open};
