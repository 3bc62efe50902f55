/* The CPU as a device: arenas are host memory, a compiled program is an array of launches with
 * resolved pointers, a segment runs to its end on the context's pool. IN and OUT are what the host
 * writes and reads directly, so uploads and downloads are nothing. */

typedef struct dti_cpu_device {
    dti_device head;
    const dti_isa_kernels *kernels;
} dti_cpu_device;

typedef struct dti_cpu_memory {
    dti_base *base;
    uint64_t bytes;
    char *data;
} dti_cpu_memory;

typedef struct dti_cpu_exec {
    dti_base *base;
    const dti_exec_desc *desc;
    dti_cpu_task *tasks;  /* one for each launch */
    char *scratch;        /* of all workers, one after the other */
    size_t scratch_bytes; /* of one worker */
} dti_cpu_exec;

static dti_cpu_memory *dti_cpu_memory_of(dti_memory *m) {
    return (dti_cpu_memory *)(void *)m;
}

static dt_result dti_cpu_memory_create(dti_device *device, uint64_t bytes, dti_memory_kind kind,
                                       dti_memory **out) {
    (void)kind;
    dti_cpu_memory *m = dti_alloc(device->base, sizeof *m);
    if (!m)
        return DT_ERROR_MEMORY;
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

static void dti_cpu_memory_destroy(dti_memory *memory) {
    if (!memory)
        return;
    dti_cpu_memory *m = dti_cpu_memory_of(memory);
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
    dti_free(x->base, x->tasks);
    dti_free(x->base, x->scratch);
    dti_free(x->base, x);
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
        const dti_kernel_info *k = dti_kernel_info_of(l->kernel);
        size_t bytes = k->scratch_bytes ? k->scratch_bytes(l, threads) : 0;
        if (bytes > x->scratch_bytes)
            x->scratch_bytes = bytes;
    }
}

static dt_result dti_cpu_exec_create(dti_device *device, const dti_exec_desc *desc,
                                     dti_exec **out) {
    dti_cpu_exec *x = dti_alloc(device->base, sizeof *x);
    if (!x)
        return DT_ERROR_MEMORY;
    x->base = device->base;
    x->desc = desc;
    x->tasks = dti_alloc_array(device->base, desc->launch_count + 1u, sizeof *x->tasks);
    if (!x->tasks) {
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
    const dti_kernel_info *kernel;
} dti_cpu_job;

static void dti_cpu_piece(void *arg, int64_t begin, int64_t end, int worker) {
    const dti_cpu_job *job = arg;
    job->kernel->run(job->task, begin, end,
                     job->exec->scratch + (size_t)worker * job->exec->scratch_bytes);
}

static void dti_cpu_run_launch(const dti_cpu_exec *x, uint32_t i) {
    const dti_cpu_task *t = &x->tasks[i];
    if (t->launch->items == 0)
        return;
    const dti_kernel_info *k = dti_kernel_info_of(t->launch->kernel);
    int64_t items = k->outer ? k->outer(t) : (int64_t)t->launch->items;
    if (items == 0)
        return;
    int64_t grain = k->grain ? k->grain(t) : 1;
    if (t->threads == 1 || items <= grain) {
        k->run(t, 0, items, x->scratch);
        return;
    }
    dti_cpu_job job = {x, t, k};
    dti_parallel_for(x->base->pool, items, grain, dti_cpu_piece, &job);
}

static dt_result dti_cpu_exec_start(dti_exec *exec, uint32_t first, uint32_t count) {
    const dti_cpu_exec *x = (const dti_cpu_exec *)(const void *)exec;
    unsigned saved = dti_fp_enter();
    for (uint32_t s = first; s < first + count; s++) {
        const dti_segment *segment = &x->desc->segments[s];
        for (uint32_t i = 0; i < segment->count; i++)
            dti_cpu_run_launch(x, segment->first + i);
    }
    dti_fp_leave(saved);
    return DT_OK;
}

static dt_result dti_cpu_exec_poll(dti_exec *exec, bool *busy) {
    (void)exec;
    *busy = false;
    return DT_OK;
}

static dt_result dti_cpu_exec_reach(dti_exec *exec, uint32_t segment) {
    (void)exec, (void)segment;
    return DT_OK;
}

static dt_result dti_cpu_exec_wait(dti_exec *exec) {
    (void)exec;
    return DT_OK;
}

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
    unsigned saved = dti_fp_enter();
    *fault = x->desc->launch_count;
    for (uint32_t i = first; i < first + count && *fault == x->desc->launch_count; i++) {
        dti_cpu_run_launch(x, i);
        if (!dti_cpu_launch_finite(x, i))
            *fault = i;
    }
    dti_fp_leave(saved);
    return DT_OK;
}

static void dti_cpu_close(dti_device *device) {
    dti_free(device->base, device);
}

static const dti_backend dti_cpu_backend = {
    .halves = true,
    .memory_create = dti_cpu_memory_create,
    .memory_destroy = dti_cpu_memory_destroy,
    .memory_bytes = dti_cpu_memory_bytes,
    .memory_host = dti_cpu_memory_host,
    .memory_write = dti_cpu_memory_write,
    .memory_read = dti_cpu_memory_read,
    .exec_create = dti_cpu_exec_create,
    .exec_destroy = dti_cpu_exec_destroy,
    .exec_start = dti_cpu_exec_start,
    .exec_poll = dti_cpu_exec_poll,
    .exec_wait = dti_cpu_exec_wait,
    .exec_reach = dti_cpu_exec_reach,
    .exec_find_fault = dti_cpu_exec_find_fault,
    .close = dti_cpu_close,
};

static void dti_cpu_info(dti_base *base, int isa_max, dt_device_info *info) {
    *info = (dt_device_info){.name = "cpu", .id = "cpu", .kind = DT_DEVICE_CPU, .usable = true};
    snprintf(info->driver, sizeof info->driver, "native %s, %d thread%s",
             dti_isa_kernels_select(isa_max)->name, dti_pool_threads(base->pool),
             dti_pool_threads(base->pool) == 1 ? "" : "s");
    info->storage_range_bytes = UINT32_MAX;
    info->offset_alignment = 64;
}

static dt_result dti_cpu_open(dti_base *base, int isa_max, dti_device **out) {
    dti_cpu_device *d = dti_alloc(base, sizeof *d);
    if (!d)
        return DT_ERROR_MEMORY;
    d->head.backend = &dti_cpu_backend;
    d->head.base = base;
    d->kernels = dti_isa_kernels_select(isa_max);
    dti_cpu_info(base, isa_max, &d->head.info);
    *out = &d->head;
    return DT_OK;
}

static int dti_cpu_isa_of(const dt_ctx_desc *desc) {
    return desc->no_fast ? DTI_ISA_PORTABLE : DTI_ISA_AVX512;
}

static dt_result dti_cpu_driver_list(dti_base *base, const dt_ctx_desc *desc, void **instance,
                                     dt_device_info *infos, int capacity, int *count) {
    (void)instance;
    if (capacity > 0)
        dti_cpu_info(base, dti_cpu_isa_of(desc), infos);
    *count = 1;
    return DT_OK;
}

static dt_result dti_cpu_driver_open(dti_base *base, const dt_ctx_desc *desc, void *instance,
                                     int index, dti_device **out) {
    (void)instance, (void)index;
    return dti_cpu_open(base, dti_cpu_isa_of(desc), out);
}

static const dti_driver dti_cpu_driver = {
    .name = "cpu", .title = "CPU", .list = dti_cpu_driver_list, .open = dti_cpu_driver_open};
