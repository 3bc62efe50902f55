/* The devices of a process: parses the list of them, and makes a store on each. The first replica
 * lives in the application's graph. Each other has a copy in its own context, because a context
 * belongs to one thread at a time. Their contexts do not log after creation, because the
 * application's logger is called only on its own thread. */

/* "cpu:2" is two; a name may come again. */
static uint32_t dti_device_times(const char *name, size_t size, size_t *name_size) {
    *name_size = size;
    if (size < 5 || memcmp(name, "cpu:", 4) != 0)
        return 1;
    uint32_t n = 0;
    for (size_t i = 4; i < size; i++) {
        if (name[i] < '0' || name[i] > '9' || n > DTI_REPLICAS_MAX)
            return 0;
        n = n * 10 + (uint32_t)(name[i] - '0');
    }
    *name_size = 3;
    return n;
}

typedef struct dti_device_walk {
    const char *at; /* the next entry; NULL after the last one */
    char name[256];
    uint32_t times;
} dti_device_walk;

/* The next entry of the list; times 0: it is malformed. */
static bool dti_device_next(dti_device_walk *w) {
    if (!w->at)
        return false;
    size_t size = strcspn(w->at, ","), used;
    w->times = dti_device_times(w->at, size, &used);
    if (used == 0 || used >= sizeof w->name)
        w->times = 0;
    snprintf(w->name, sizeof w->name, "%.*s", (int)DTI_MIN(used, sizeof w->name - 1), w->at);
    w->at = w->at[size] ? w->at + size + 1 : NULL;
    return true;
}

static const char *dti_device_fault(const dti_device_walk *w) {
    if (!w->name[0])
        return "a name is empty";
    if (w->times)
        return "there are too many replicas";
    return strncmp(w->name, "cpu", 3) ? "a name is too long"
                                      : "N in cpu:N must be a number of replicas";
}

static uint32_t dti_devices_count(dti_base *base, const char *devices) {
    dti_device_walk w = {.at = devices && devices[0] ? devices : "auto"};
    uint64_t count = 0;
    while (dti_device_next(&w)) {
        count += w.times;
        if (w.times && count <= DTI_REPLICAS_MAX)
            continue;
        dti_fail(base, DT_ERROR_INVALID,
                 "devices \"%s\": %s; give 1 to %d of them, as in \"cpu:2\" or "
                 "\"vulkan:0,vulkan:1,cpu\"",
                 devices, dti_device_fault(&w), DTI_REPLICAS_MAX);
        return 0;
    }
    return (uint32_t)count;
}

static dt_result dti_context_beside(dti_parallel *par, const dt_graph *graph, const char *what,
                                    uint32_t i, int threads, dt_ctx **out) {
    dt_ctx_desc d = graph->ctx->desc;
    d.threads = threads > 1 ? threads : 1;
    d.jobs = (dt_job_system){0};
    d.on_error = (dt_on_error){0}; /* a failure there is one in a call of the application */
    if (d.vulkan && !d.vulkan->lock)
        return dti_fail(par->base, DT_ERROR_INVALID,
                        "several %ss submit to the application's queue from several threads; set "
                        "lock and unlock of dt_ctx_desc.vulkan",
                        what);
    dt_result result = dt_ctx_create(&d, out);
    return result ? dti_fail(par->base, result, "a context for %s %u: %s", what, i,
                             dt_result_text(result))
                  : DT_OK;
}

static dt_result dti_replica_context(dti_parallel *par, dt_graph *graph, uint32_t i, int threads) {
    dti_replica *r = &par->replicas[i];
    if (i == 0) {
        r->ctx = graph->ctx;
        r->graph = graph;
        return DT_OK;
    }
    DTI_TRY(dti_context_beside(par, graph, "replica", i, threads, &r->ctx));
    dt_result result = dti_graph_copy(graph, r->ctx, &r->graph);
    return result ? dti_fail(par->base, result, "%s", dt_ctx_error(r->ctx)) : DT_OK;
}

static dt_result dti_replica_open(dti_parallel *par, dt_graph *graph, uint32_t i, const char *name,
                                  int threads) {
    dti_replica *r = &par->replicas[i];
    DTI_TRY(dti_replica_context(par, graph, i, threads));
    const uint32_t each = DTI_MAX(par->desc.batch / par->job.local, 1u);
    const dt_store_desc d = {.device = name,
                             .seed = par->desc.seed,
                             .batch_hint = (int)each,
                             .parameter_dtype = par->desc.parameter_dtype};
    dt_result result = dti_values_are_apart(par) ? dti_store_create_bare(r->graph, &d, &r->store)
                                                 : dt_store_create(r->graph, &d, &r->store);
    if (result && i)
        return dti_fail(par->base, result, "replica %u: %s", i, dt_ctx_error(r->ctx));
    if (result)
        return result;
    /* the context's pool may be in use by another replica's thread, or be larger than asked for */
    r->store->device->one_thread = par->job.local > 1 && threads <= 1;
    return DT_OK;
}

static dt_result dti_replicas_open(dti_parallel *par, dt_graph *graph, const char *devices,
                                   int threads) {
    dti_device_walk w = {.at = devices && devices[0] ? devices : "auto"};
    uint32_t i = 0;
    par->replicas = dti_alloc_array(par->base, par->job.local, sizeof *par->replicas);
    if (!par->replicas)
        return DT_ERROR_MEMORY;
    while (dti_device_next(&w)) {
        for (uint32_t k = 0; k < w.times; k++, i++) {
            DTI_TRY(dti_replica_open(par, graph, i, w.name, threads));
        }
    }
    return DT_OK;
}

static dt_result dti_replicas_share(dti_parallel *par, const dti_parallel *of) {
    par->replicas = dti_alloc_array(par->base, par->job.local, sizeof *par->replicas);
    DTI_HAVE(par->replicas);
    par->shares = true;
    par->device_team = of->device_team;
    for (uint32_t i = 0; i < par->job.local; i++) {
        const dti_replica *r = &of->replicas[i];
        par->replicas[i] = (dti_replica){.ctx = r->ctx, .graph = r->graph, .store = r->store};
    }
    return DT_OK;
}

static void dti_replicas_close(dti_parallel *par) {
    for (uint32_t i = 0; par->replicas && !par->shares && i < par->job.local; i++) {
        dti_replica *r = &par->replicas[i];
        dti_store_free(r->store);
        dti_free(par->base, r->mirror);
        if (i)
            dt_ctx_destroy(r->ctx);
    }
    dti_free(par->base, par->replicas);
    par->replicas = NULL;
}
