/* Contexts. They own memory, log, threads and the list of devices, and find the device of a name.
 * If a device is absent or not usable, the error lists the available ones. */

_Static_assert(offsetof(dt_ctx, base) == 0, "dti_ctx_base casts");

/* Below about this number of floating-point operations a step is faster on the CPU. Its launches
 * alone take longer on any GPU (50 us and more). */
#define DTI_AUTO_FLOPS 10e6

#define DTI_X(name) static const dti_driver dti_##name##_driver;
DTI_DRIVER_LIST(DTI_X)
#undef DTI_X
static const dti_driver *const dti_drivers[DTI_DRIVERS] = {
#define DTI_X(name) &dti_##name##_driver,
    DTI_DRIVER_LIST(DTI_X)
#undef DTI_X
};

/* Checks the application's description of its own device; the driver checks the rest. */
static dt_result dti_ctx_check_vulkan(dti_base *base, const dt_ctx_desc *d) {
    const dt_vulkan_desc *v = d->vulkan;
    const char *lacks = !v->get_instance_proc_addr ? "get_instance_proc_addr"
                        : !v->instance             ? "instance"
                        : !v->physical_device      ? "physical_device"
                        : !v->device               ? "device"
                        : !v->queue                ? "queue"
                                                   : NULL;
    if (lacks)
        return dti_fail(base, DT_ERROR_INVALID, "dt_ctx_desc.vulkan: %s is NULL", lacks);
    if (!v->lock != !v->unlock)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_ctx_desc.vulkan must have both lock and unlock, or neither");
    if (d->no_vulkan || d->vulkan_loader || d->validation)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_ctx_desc.vulkan, the application's device, cannot be combined with .%s",
                        d->no_vulkan       ? "no_vulkan"
                        : d->vulkan_loader ? "vulkan_loader, as no loader is opened"
                                           : "validation; load the layer in its instance");
    return DT_OK;
}

static dt_result dti_ctx_check(dti_base *base, const dt_ctx_desc *d) {
    if ((d->allocator.alloc == NULL) != (d->allocator.free == NULL))
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_ctx_desc.allocator has only one of alloc and free; give both, or none");
    if (d->threads < DT_THREADS_ALL || d->jobs.threads < 0)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_ctx_desc: .threads is %d, .jobs.threads %d; they must be at least 0 (0 "
                        "= 1); .threads may be DT_THREADS_ALL",
                        d->threads, d->jobs.threads);
    if (d->jobs.threads && !d->jobs.parallel_for)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_ctx_desc.jobs.threads is %d, but .jobs.parallel_for is NULL; set both",
                        d->jobs.threads);
    if (d->pipeline_cache_bytes && !d->pipeline_cache)
        return dti_fail(
            base, DT_ERROR_INVALID,
            "dt_ctx_desc.pipeline_cache_bytes is set, but .pipeline_cache is NULL; set both");
    if ((unsigned)d->kernel_check > DT_KERNEL_CHECK_ALWAYS)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_ctx_desc.kernel_check is %d; it must be a DT_KERNEL_CHECK_",
                        (int)d->kernel_check);
    return d->vulkan ? dti_ctx_check_vulkan(base, d) : DT_OK;
}

static dt_result dti_ctx_list(dt_ctx *ctx);

static dt_result dti_ctx_fill(dt_ctx *ctx) {
    const dt_ctx_desc *d = &ctx->desc;
    if (d->pipeline_cache) {
        ctx->cache = dti_alloc(&ctx->base, d->pipeline_cache_bytes);
        DTI_HAVE(ctx->cache);
        memcpy(ctx->cache, d->pipeline_cache, d->pipeline_cache_bytes);
        ctx->desc.pipeline_cache = ctx->cache;
    }
    if (d->vulkan) {
        ctx->vulkan = *d->vulkan;
        ctx->desc.vulkan = &ctx->vulkan;
    }
    dt_result result = dti_pool_create(&ctx->base, d->threads, &d->jobs, &ctx->base.pool);
    return result || !d->vulkan ? result : dti_ctx_list(ctx);
}

/* The base has the error's text. */
static dt_result dti_ctx_make(dti_base *base, const dt_ctx_desc *d, dt_ctx **out) {
    DTI_NEED(base, out);
    *out = NULL;
    DTI_TRY(dti_ctx_check(base, d));
    dt_ctx *ctx = dti_alloc(base, sizeof *ctx);
    DTI_HAVE(ctx);
    ctx->base = *base;
    ctx->base.at_home = dti_at_home_open();
    ctx->desc = *d;
    dt_result result = dti_ctx_fill(ctx);
    if (!result) {
        ctx->base.on_error = d->on_error;
        *out = ctx;
        return DT_OK;
    }
    memcpy(base->error, ctx->base.error, sizeof base->error);
    dt_ctx_destroy(ctx);
    return result;
}

DT_API dt_result dt_ctx_create(const dt_ctx_desc *desc, dt_ctx **out) {
    dt_ctx_desc d = desc ? *desc : (dt_ctx_desc){0};
    dti_base base;
    dti_visit visit;
    dti_enter(NULL, &visit, 0, __func__);
    dti_base_init(&base, &d.allocator, &d.logger);
    const dt_result result = dti_ctx_make(&base, &d, out);
    dti_leave(&visit, result);
    if (result && d.on_error.call)
        d.on_error.call(d.on_error.user, result, base.error);
    return result;
}

DTI_PUBLIC_VOID(dt_ctx_destroy, (dt_ctx * ctx), ctx, DTI_CTX | DTI_UNUSED, (ctx)) {
    dti_destroy_owned(&ctx->base.owned);
    for (int i = DTI_DRIVERS; i-- > 0;) {
        if (ctx->instances[i])
            dti_drivers[i]->destroy(ctx->instances[i]);
    }
    dti_pool_destroy(&ctx->base, ctx->base.pool);
    dti_free(&ctx->base, ctx->cache);
    dti_base_end(&ctx->base);
    dti_base base = ctx->base; /* the context's own memory is freed last */
    dti_free(&base, ctx);
    dti_at_home_close(base.at_home);
}

DTI_PUBLIC_GET(const char *, dt_ctx_error, (const dt_ctx *ctx), ctx, DTI_CTX | DTI_READS, (ctx)) {
    return ctx ? ctx->base.error : dti_no_object;
}

DTI_PUBLIC_INFO(dt_ctx_get_info, (const dt_ctx *ctx, dt_ctx_info *info), ctx, DTI_CTX,
                (ctx, info)) {
    *info = (dt_ctx_info){.host_bytes = ctx->base.bytes_now,
                          .host_peak_bytes = ctx->base.bytes_peak,
                          .host_alloc_calls = ctx->base.alloc_calls};
    for (int i = 0; i < DTI_DRIVERS; i++) {
        uint64_t bytes = 0, calls = 0;
        if (ctx->instances[i] && dti_drivers[i]->memory_used)
            dti_drivers[i]->memory_used(ctx->instances[i], &bytes, &calls);
        info->device_bytes += bytes;
        info->device_alloc_calls += calls;
    }
}

DTI_PUBLIC(dt_ctx_pipeline_cache, (dt_ctx * ctx, void *data, size_t *bytes), ctx, DTI_CTX,
           (ctx, data, bytes)) {
    DTI_NEED(&ctx->base, bytes);
    const size_t room = data ? *bytes : 0;
    size_t used = 0;
    dt_result result = DT_OK;
    for (int i = 0; i < DTI_DRIVERS && !result; i++) {
        size_t part = room - used;
        if (!ctx->instances[i] || !dti_drivers[i]->cache_export)
            continue;
        DTI_TRY(dti_check_forked(&ctx->base));
        result = dti_drivers[i]->cache_export(ctx->instances[i], data ? (char *)data + used : NULL,
                                              &part);
        used += part;
    }
    *bytes = used;
    return result;
}

/* Fills the list, one driver after the other. A driver that fails is logged, never fatal: the CPU
 * always exists. Only without host memory the list is not known, and the next call tries again. The
 * application's own device must be usable: else its context is not created. */
static dt_result dti_ctx_list(dt_ctx *ctx) {
    if (ctx->listed)
        return DT_OK;
    if (dti_check_forked(&ctx->base))
        return DT_ERROR_FORKED;
    ctx->listed = true;
    ctx->device_count = 0;
    for (int i = 0; i < DTI_DRIVERS; i++) {
        const int room = DTI_DEVICES_MAX - ctx->device_count;
        int found = 0;
        dt_result result = dti_drivers[i]->list(&ctx->base, &ctx->desc, &ctx->instances[i],
                                                ctx->infos + ctx->device_count, room, &found);
        if (result && ctx->desc.vulkan)
            return result;
        if (result)
            dti_log(&ctx->base, DT_LOG_WARNING, "%s is not available: %s", dti_drivers[i]->title,
                    ctx->base.error);
        ctx->listed = ctx->listed && result != DT_ERROR_MEMORY;
        ctx->first[i] = ctx->device_count;
        ctx->device_count += DTI_MIN(found, room);
    }
    return ctx->listed ? DT_OK : DT_ERROR_MEMORY;
}

/* Devices are numbered driver by driver; device 0 is known before any is listed. */
static int dti_ctx_driver_of(const dt_ctx *ctx, int device) {
    int driver = DTI_DRIVERS - 1;
    while (driver > 0 && (!device || ctx->first[driver] > device))
        driver--;
    return driver;
}

DTI_PUBLIC_GET(int, dt_ctx_device_count, (dt_ctx * ctx), ctx, DTI_CTX, (ctx)) {
    if (!ctx)
        return 0;
    dti_ctx_list(ctx);
    return ctx->device_count;
}

DTI_PUBLIC_GET(const dt_device_info *, dt_ctx_device, (dt_ctx * ctx, int index), ctx, DTI_CTX,
               (ctx, index)) {
    if (!ctx)
        return NULL;
    dti_ctx_list(ctx);
    return index >= 0 && index < ctx->device_count ? &ctx->infos[index] : NULL;
}

/* ---- which device a name means */

/* Higher is better; software drivers only when Vulkan itself was asked for. */
static int dti_device_rank(const dt_device_info *d, bool software) {
    if (!d->usable)
        return 0;
    switch (d->kind) {
    case DT_DEVICE_DISCRETE: return 4;
    case DT_DEVICE_INTEGRATED: return 3;
    case DT_DEVICE_VIRTUAL: return 2;
    case DT_DEVICE_SOFTWARE: return software ? 1 : 0;
    default: return 0;
    }
}

/* Among those of one driver, or of all (-1). */
static int dti_device_best(const dt_ctx *ctx, int driver, bool software) {
    int best = -1, rank = 0;
    for (int i = 1; i < ctx->device_count; i++) {
        if (driver >= 0 && dti_ctx_driver_of(ctx, i) != driver)
            continue;
        int r = dti_device_rank(&ctx->infos[i], software);
        if (r > rank) {
            rank = r;
            best = i;
        }
    }
    return best;
}

static bool dti_text_contains(const char *text, const char *part) {
    for (; *text; text++) {
        size_t i = 0;
        while (part[i] && dti_lower(text[i]) == dti_lower(part[i]))
            i++;
        if (!part[i])
            return true;
    }
    return false;
}

static int dti_device_named(const dt_ctx *ctx, const char *name) {
    for (int i = 0; i < ctx->device_count; i++) {
        if (strcmp(ctx->infos[i].id, name) == 0)
            return i;
    }
    for (int i = 1; i < ctx->device_count; i++) {
        if (dti_text_contains(ctx->infos[i].name, name))
            return i;
    }
    return -1;
}

static dt_result dti_device_unknown(dt_ctx *ctx, const char *name) {
    dti_hint list = {""};
    for (int i = 0; i < ctx->device_count; i++) {
        dti_hint_add(&list, i ? ", %s" : "%s", ctx->infos[i].id);
        dti_hint_add(&list, " (%s)", ctx->infos[i].name);
    }
    for (int i = 0; i < DTI_DRIVERS; i++) {
        const int end = i + 1 < DTI_DRIVERS ? ctx->first[i + 1] : ctx->device_count;
        if (ctx->first[i] == end)
            dti_hint_add(&list, ", and no %s driver was found", dti_drivers[i]->title);
    }
    return dti_fail(&ctx->base, DT_ERROR_DEVICE, "no device '%s'; available: %s", name, list.text);
}

static dt_result dti_device_auto(dt_ctx *ctx, double flops, int *index) {
    if (flops < DTI_AUTO_FLOPS) {
        dti_log(&ctx->base, DT_LOG_INFO,
                "device cpu: a step is about %.1f MFLOP, too little for a GPU's launches",
                flops / 1e6);
        return DT_OK;
    }
    dt_result result = dti_ctx_list(ctx);
    int best = dti_device_best(ctx, -1, false);
    if (!result && best < 0)
        dti_log(&ctx->base, DT_LOG_INFO, "device cpu: no hardware device was found");
    *index = best < 0 ? 0 : best;
    return result;
}

static dt_result dti_device_choose(dt_ctx *ctx, const char *name, double flops, int *index) {
    *index = 0;
    if (strcmp(name, dti_drivers[0]->name) == 0)
        return DT_OK;
    if (strcmp(name, "auto") == 0)
        return dti_device_auto(ctx, flops, index);
    DTI_TRY(dti_ctx_list(ctx));
    int driver = 0;
    while (driver < DTI_DRIVERS && strcmp(name, dti_drivers[driver]->name) != 0)
        driver++;
    *index =
        driver < DTI_DRIVERS ? dti_device_best(ctx, driver, true) : dti_device_named(ctx, name);
    if (*index < 0)
        return dti_device_unknown(ctx, name);
    if (!ctx->infos[*index].usable) {
        return dti_fail(&ctx->base, DT_ERROR_DEVICE, "device %s (%s) cannot be used: %s",
                        ctx->infos[*index].id, ctx->infos[*index].name, ctx->infos[*index].driver);
    }
    return DT_OK;
}

static dt_result dti_device_open(dt_ctx *ctx, const char *name, double flops, dti_device **out) {
    int index;
    *out = NULL;
    if (!name || !name[0])
        name = "auto";
    DTI_TRY(dti_device_choose(ctx, name, flops, &index));
    const int driver = dti_ctx_driver_of(ctx, index);
    DTI_TRY(dti_drivers[driver]->open(&ctx->base, &ctx->desc, ctx->instances[driver],
                                      index - ctx->first[driver], out));
    const dt_device_info *d = &(*out)->info;
    dti_log(&ctx->base, DT_LOG_INFO, "device %s: %s, %s", d->id, d->name, d->driver);
    return DT_OK;
}

static void dti_device_close(dti_device *device) {
    if (device)
        device->backend->close(device);
}
