/* A server from creation to end: its description, its memory, and dt_server_run. */

static dt_result dti_server_check(const dt_graph *graph, const dt_server_desc *d) {
    const dt_trainer_desc *t = &d->trainer;
    dti_base *base = graph->base;
    const dt_result result =
        dti_compat_check(base, t, dti_features_asked(graph, t) | 1ull << DTI_FEATURE_SERVES);
    if (result)
        return result;
    if (t->devices && strcmp(t->devices, "cpu") != 0)
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        ".trainer.devices is \"%s\"; a server computes on \"cpu\"", t->devices);
    if (d->staleness < 0 || d->staleness > 62 || d->max_workers < 0 || d->reassign_ms < -1)
        return dti_fail(base, DT_ERROR_INVALID,
                        ".staleness is %d, .max_workers %d and .reassign_ms %d; they must be from "
                        "0 to 62, at least 0 and at least -1",
                        d->staleness, d->max_workers, d->reassign_ms);
    if (d->max_workers > 65535)
        return dti_fail(base, DT_ERROR_INVALID, ".max_workers is %d; it must be at most 65535",
                        d->max_workers);
    if (d->servers < 0 || d->servers > DTI_SERVERS_MAX || d->index < 0 ||
        d->index >= DTI_MAX(d->servers, 1))
        return dti_fail(base, DT_ERROR_INVALID,
                        ".index is %d and .servers is %d; it must be 0 <= .index < .servers <= %d",
                        d->index, d->servers, DTI_SERVERS_MAX);
    return DT_OK;
}

static dt_result dti_server_trainer_make(dt_server *s, dt_graph *graph, const dt_server_desc *d) {
    dt_trainer_desc desc = d->trainer;
    dt_optim_desc optim = desc.optim ? *desc.optim : (dt_optim_desc){0};
    const bool fits = dti_fits_f32(optim.clip_norm); /* else it is refused as any trainer's */
    const double limit = d->servers > 1 && fits ? optim.clip_norm : 0.0;
    if (limit > 0.0) { /* the norm covers all servers' parts, so workers bring the factor for
                          clipping */
        optim.clip_norm = 0.0;
        desc.optim = &optim;
    }
    desc.devices = "cpu";
    desc.parallel.batch_slices = desc.parallel.batch_slices ? desc.parallel.batch_slices : 1;
    DTI_TRY(dt_trainer_create(graph, &desc, &s->trainer));
    s->trainer->serves = true;
    s->trainer->keep_from = d->servers > 1 ? &s->safe : NULL;
    s->limit = limit > 0.0 ? (float)limit : 0.0f;
    if (desc.parallel.batch_slices > DTI_OPERANDS_MAX)
        return dti_fail(s->base, DT_ERROR_INVALID,
                        "at most %d batch slices are possible on a server, but "
                        ".trainer.parallel.batch_slices is %d",
                        DTI_OPERANDS_MAX, desc.parallel.batch_slices);
    s->settings = dti_text_open(s->base);
    dt_optim_desc *told = &s->trainer->optim; /* as workers have it */
    told->clip_norm = limit > 0.0 ? limit : told->clip_norm;
    dti_describe_settings(s->trainer, &s->settings);
    told->clip_norm = limit > 0.0 ? 0.0 : told->clip_norm;
    return s->settings.ok ? DT_OK : DT_ERROR_MEMORY;
}

/* Shards that have rows in the last batch of an epoch. */
static uint32_t dti_server_tail_batch_slices(const dti_parallel *par) {
    uint32_t n = par->job.batch_slices;
    while (par->desc.tail && dti_partition_row(&par->job, n - 1, par->desc.tail) == par->desc.tail)
        n--;
    return n;
}

/* The part that this server owns. It has memory for all, and does not update the rest, which no
 * worker asks for. */
static void dti_server_part(dt_server *s) {
    const dti_parallel *par = &s->trainer->par;
    const uint32_t place = s->welcome.place;
    s->shape = dti_push_shape_of(par, dti_server_begin(s, place), dti_server_begin(s, place + 1));
    memset(par->replicas[0].gradients, 0, (size_t)par->elements * sizeof(float));
}

static dt_result dti_server_memory(dt_server *s, const dt_server_desc *d) {
    const dti_parallel *par = &s->trainer->par;
    dti_tickets *t = &s->tickets;
    t->batch_slices = par->job.batch_slices;
    t->window = (uint32_t)d->staleness + 1;
    t->tail_batch_slices = dti_server_tail_batch_slices(par);
    t->batches = dti_loader_epoch_batches(s->trainer->loader);
    t->limit_ns =
        d->reassign_ms < 0 ? 0 : 1000000u * (uint64_t)(d->reassign_ms ? d->reassign_ms : 60000);
    s->welcome.servers = (uint32_t)DTI_MAX(d->servers, 1);
    s->welcome.place = (uint32_t)d->index;
    dti_server_part(s);
    s->stride = (s->shape.bytes + 63) / 64 * 64;
    s->places = d->max_workers ? (uint32_t)d->max_workers : 64;
    s->count = s->places + DTI_SERVER_SURPLUS;
    s->kept =
        dti_alloc(s->base, (size_t)DTI_MAX(dti_arena_bytes(s->shape.end - s->shape.begin), 1));
    s->squares =
        dti_alloc_array(s->base, (size_t)dti_push_blocks(0, par->elements) + 1, sizeof *s->squares);
    s->seats = dti_alloc_array(s->base, s->count, sizeof *s->seats);
    t->open = dti_alloc_array(s->base, t->window, sizeof *t->open);
    t->tickets = dti_alloc_array(s->base, (size_t)t->window * t->batch_slices, sizeof *t->tickets);
    s->pushes = dti_alloc_array(s->base, (size_t)t->window * t->batch_slices, (size_t)s->stride);
    s->welcome.batch_slices = t->batch_slices;
    s->welcome.staleness = (uint32_t)d->staleness;
    s->welcome.elements = par->elements;
    s->welcome.begin = s->shape.begin;
    s->welcome.end = s->shape.end;
    s->welcome.push_bytes = s->shape.bytes;
    s->welcome.settings_bytes = s->settings.size;
    return s->squares && s->seats && s->kept && t->open && t->tickets && s->pushes
               ? DT_OK
               : DT_ERROR_MEMORY;
}

static dt_result dti_server_hub(dt_server *s, const dt_server_desc *d) {
    const dti_message_server_desc desc = {.by = d->security,
                                          .connections = s->count,
                                          .place = (uint32_t)d->index,
                                          .listen = d->listen ? d->listen : "127.0.0.1:0",
                                          .events = {.user = s,
                                                     .opened = dti_server_opened,
                                                     .room = dti_server_room,
                                                     .came = dti_server_came,
                                                     .read = dti_server_read,
                                                     .closed = dti_server_closed}};
    s->calls = dti_message_server_calls_of();
    if (!s->calls)
        return dti_fail(s->base, DT_ERROR_UNSUPPORTED,
                        "dt_server_create: this dtrain was compiled without connections");
    return s->calls->create(s->base, &desc, &s->message_server);
}

_Static_assert(offsetof(dt_server, owned) == 0, "dti_server_end casts");

static void dti_server_end(dti_owned *self) {
    dt_server_destroy((dt_server *)(void *)self);
}

DTI_PUBLIC_NEW(dt_server_create, (dt_graph * graph, const dt_server_desc *desc, dt_server **out),
               graph, DTI_OF(dt_graph), (graph, desc, out), dt_server_destroy) {
    DTI_NEED(graph->base, desc);
    DTI_TRY(dti_server_check(graph, desc));
    dt_server *s = *out = dti_alloc(graph->base, sizeof *s);
    DTI_HAVE(s);
    s->base = graph->base;
    s->graph = graph;
    s->staleness_lr = desc->staleness_lr;
    DTI_TRY(dti_server_trainer_make(s, graph, desc));
    DTI_TRY(dti_server_memory(s, desc));
    DTI_TRY(dti_server_hub(s, desc));
    dti_own(&graph->stores, &s->owned, dti_server_end); /* before its trainer: it goes first */
    return DT_OK;
}

DTI_PUBLIC_VOID(dt_server_destroy, (dt_server * s), s, DTI_OF(dt_server) | DTI_UNUSED, (s)) {
    if (s->calls)
        s->calls->destroy(s->message_server);
    dti_disown(&s->graph->stores, &s->owned);
    dt_trainer_destroy(s->trainer);
    dti_text_free(&s->settings);
    DTI_FREE(s->base, s->squares, s->seats, s->kept, s->tickets.open, s->tickets.tickets, s->pushes,
             s);
}

DTI_PUBLIC_GET(dt_trainer *, dt_server_trainer, (dt_server * s), s, DTI_OF(dt_server), (s)) {
    return s ? s->trainer : NULL;
}

static uint64_t dti_server_writes(const dt_server *s) {
    return s->trainer->par.replicas[0].store->writes;
}

/* The trainer's step and values. If they differ from before, it was loaded meanwhile. Then all
 * pushes, received and in flight, belong to values that no longer exist. The server breaks the
 * connections; workers connect again and pull. */
static dt_result dti_server_position(dt_server *s) {
    const dt_trainer *t = s->trainer;
    const uint64_t base = t->epoch * s->tickets.batches + t->index + 1;
    if (base == s->tickets.base && s->writes == dti_server_writes(s))
        return DT_OK;
    dti_server_leave_generation(s, UINT32_MAX);
    s->top = dti_server_steps(s);
    s->unread = UINT64_MAX;
    s->safe = 0;
    return dti_server_begin_at(s);
}

/* The time until the next worker needs an answer (WAIT), or may be given an old ticket. */
static uint64_t dti_server_pause_ms(const dt_server *s) {
    const uint64_t now = dti_now_ns();
    uint64_t pause = 1000;
    for (uint32_t i = 0; i < s->count; i++) {
        const dti_server_seat *seat = &s->seats[i];
        const uint64_t due = seat->since + 1000000u * (uint64_t)seat->wait_ms;
        if (seat->open && seat->asks)
            pause = DTI_MIN(pause, due > now ? (due - now) / 1000000u + 1 : 0);
    }
    return pause;
}

DTI_PUBLIC(dt_server_run, (dt_server * s, int timeout_ms), s, DTI_OF(dt_server), (s, timeout_ms)) {
    DTI_TRY(dti_trainer_goes_on(s->trainer));
    if (timeout_ms < -1)
        return dti_fail(s->base, DT_ERROR_INVALID,
                        "dt_server_run: timeout_ms is %d; it must be at least -1 (-1 = no limit)",
                        timeout_ms);
    const uint64_t end = dti_now_ns() + 1000000u * (uint64_t)DTI_MAX(timeout_ms, 0);
    uint64_t now = 0;
    s->result = dti_server_position(s);
    dti_server_look_saved(s);
    dti_server_go_on(s);
    while (!s->result) {
        const uint64_t left = timeout_ms < 0 || now == 0 ? UINT64_MAX : (end - now) / 1000000u + 1;
        const uint64_t most = timeout_ms < 0 ? 1000 : (uint64_t)DTI_MIN(timeout_ms, 1000);
        s->calls->step(s->message_server,
                       (int)DTI_MIN(DTI_MIN(left, most), dti_server_pause_ms(s)));
        dti_server_go_on(s); /* tickets grow old without a message */
        now = dti_now_ns();
        if (atomic_load(&s->stop) || (timeout_ms >= 0 && now >= end))
            break;
    }
    s->writes = dti_server_writes(s);
    atomic_store(&s->stop, 0);
    return s->result;
}

DT_API void dt_server_stop(dt_server *s) {
    if (!DTI_HERE || !s)
        return;
    atomic_store(&s->stop, 1);
    s->calls->wake(s->message_server);
}

DTI_PUBLIC_INFO(dt_server_get_info, (const dt_server *s, dt_server_info *info), s,
                DTI_OF(dt_server), (s, info)) {
    *info = s->info;
    info->port = s->calls->port(s->message_server);
    info->step = dti_server_steps(s);
    info->epoch = s->trainer->epoch;
    info->reassigned = s->tickets.again;
    info->unauthenticated = s->calls->strangers(s->message_server);
}
