/* Creates and destroys trainers. All ranks make their collective calls in the same order, whatever
 * error one of them finds. */

/* ---- creating */

/* The number of devices of each rank, and which of all are this one's. */
static dt_result dti_trainer_count(dt_trainer *t, dt_result own) {
    dti_parallel *par = &t->par;
    par->mesh.rank = (uint32_t)dt_comm_rank(par->desc.comm);
    par->mesh.world = (uint32_t)DTI_MAX(dt_comm_size(par->desc.comm), 1);
    par->job.local = dti_devices_count(t->base, t->desc.devices);
    dt_result result = own ? own : par->job.local ? DT_OK : DT_ERROR_INVALID;
    DTI_TRY(dti_agree_result(par, result ? result : dti_trainer_check(t)));
    if (t->desc.threads == DT_THREADS_ALL)
        t->desc.threads =
            DTI_MIN(DTI_MAX(dti_processors() / (int)par->job.local, 1), DTI_MAX_THREADS);
    DTI_TRY(dti_agree_result(par, dti_mesh_open(par)));
    DTI_TRY(dti_mesh_count(par));
    par->job.first = dti_mesh_own(&par->mesh, par->mesh.rank).first / par->desc.slices;
    par->job.replicas = dti_mesh_size(&par->mesh) / par->desc.slices;
    return DT_OK;
}

/* Checks that the devices match the requested grid. For lines of devices each rank's host has one
 * replica, which evaluates. */
static dt_result dti_trainer_grid(dt_trainer *t) {
    dti_parallel *par = &t->par;
    const bool lines = dti_grid_is(par);
    dt_result result = lines || t->desc.parallel.replicas
                           ? dti_mesh_fits(par, (uint32_t)t->desc.parallel.replicas)
                           : DT_OK;
    if (result || !lines)
        return result;
    par->job.replicas = par->mesh.world;
    par->job.first = par->mesh.rank;
    par->job.local = 1;
    return DT_OK;
}

static dt_result dti_worker_has_no(const dt_trainer *t, const char *what) {
    if (!dti_worker_of(t))
        return DT_OK;
    return dti_fail(t->base, DT_ERROR_INVALID,
                    "a worker (DT_TRAIN_SERVER) has no %s; use the servers' trainers, or "
                    "dt_store_save for its weights",
                    what);
}

static dt_result dti_trainer_agree(dt_trainer *t) {
    dti_text text = dti_text_open(t->base);
    dti_describe_settings(t, &text);
    dt_result result = dti_agree_result(&t->par, text.ok ? DT_OK : DT_ERROR_MEMORY);
    if (!result)
        result = dti_agree_text(&t->par, text.data, text.size);
    dti_text_free(&text);
    return result;
}

static dt_result dti_trainer_build(dt_trainer *t, uint32_t batch_slices) {
    if (dti_units_are(&t->par)) /* whose units there may be others of */
        dti_evaluation_free(t);
    dt_result result =
        dti_grid_is(&t->par)
            ? dti_pipe_create(&t->par, batch_slices, t->desc.devices, t->desc.threads, t->desc.pin)
            : dti_parallel_build(&t->par, batch_slices, t->bounded ? t->bounds : NULL);
    if (!result && dti_worker_of(t))
        result = dti_server_worker.build(t);
    if (!result)
        result = dti_agree_result(&t->par, dti_trainer_loader(t));
    t->par.lost = t->par.lost || result; /* there are no programs to go on with */
    dti_sharing_bind(t);
    return result;
}

static dt_result dti_trainer_seek(dt_trainer *t) {
    const uint64_t batches = dti_loader_epoch_batches(t->loader);
    if (t->index >= batches) {
        t->index = 0;
        t->epoch++;
    }
    return dti_loader_seek(t->loader, t->epoch, t->index, t->epoch * batches + t->index + 1);
}

static const char *dti_trainer_launcher(const dt_trainer *t) {
    const dt_comm *comm = t->par.desc.comm;
    return comm && comm->launcher[0] ? comm->launcher : "none";
}

static const char *dti_trainer_shares(const dti_parallel *par) {
    static const char *const what[] = {"", ", state sharded", ", state and gradients sharded",
                                       ", state, gradients and parameters sharded"};
    return dti_is_sharded(par) ? what[par->desc.parallel.zero_stage] : "";
}

static void dti_trainer_log(const dt_trainer *t) {
    dt_trainer_info info;
    char devices[512] = "", memory[256] = "";
    size_t at = 0;
    dt_trainer_get_info(t, &info);
    for (uint32_t i = 0; i < t->par.job.local; i++) {
        int n = snprintf(devices + at, sizeof devices - at, "%s%s", i ? "," : "",
                         dt_store_device(t->par.replicas[i].store)->id);
        at += n > 0 && at + (size_t)n < sizeof devices ? (size_t)n : 0;
    }
    if (!dti_pipe_of(&t->par)) /* else each chunk's are logged */
        snprintf(memory, sizeof memory,
                 "; %d buckets of %llu gradient bytes, %llu between ranks; a replica has %llu "
                 "bytes of parameters, "
                 "%llu of gradients, %llu of optimizer state%s",
                 info.buckets, (unsigned long long)info.gradient_bytes,
                 (unsigned long long)info.wire_bytes, (unsigned long long)info.replica_param_bytes,
                 (unsigned long long)info.replica_gradient_bytes,
                 (unsigned long long)info.state_bytes, dti_trainer_shares(&t->par));
    dti_log(t->base, DT_LOG_INFO,
            "training: global batch %d, %d samples a replica, micro-batch %d, %d accumulation "
            "step%s, %d batch slice%s, %d replicas, world size %d (rank %d, launcher %s), devices "
            "here: %s; %llu bytes of staging, %llu of partial sums%s",
            info.batch, info.replica_batch, info.micro_batch, info.micro_batches,
            info.micro_batches == 1 ? "" : "s", info.batch_slices,
            info.batch_slices == 1 ? "" : "s", info.replicas, info.world_size, info.rank,
            dti_trainer_launcher(t), devices, (unsigned long long)info.staging_bytes,
            (unsigned long long)info.partial_sum_bytes, memory);
    if (t->desc.parallel.balance == DT_BALANCE_MEASURED)
        dti_log(t->base, DT_LOG_WARNING,
                ".parallel.balance = DT_BALANCE_MEASURED: results depend on devices and timing, "
                "and on the number of replicas");
}

/* Devices of different kinds round differently: their replicas drift apart by it, unless each
 * parameter has an owner. A CPU's driver
 * text also has its threads, which change nothing. */
static void dti_trainer_log_mixed(const dt_trainer *t) {
    for (uint32_t i = 1; i < t->par.job.local && !dti_is_sharded(&t->par); i++) {
        const dti_device *a = t->par.replicas[0].store->device,
                         *b = t->par.replicas[i].store->device;
        const bool cpu = a->info.kind == DT_DEVICE_CPU;
        if (a->backend == b->backend && (cpu || !strcmp(a->info.driver, b->info.driver)))
            continue;
        dti_log(t->base, DT_LOG_WARNING,
                "replicas on %s and %s round differently, so their weights are equal within "
                "rounding, not bit for bit; checkpoints hold the first's",
                a->info.id, b->info.id);
        return;
    }
}

/* ---- the values at the start: rank 0's */

typedef struct dti_trainer_source { /* from a file, or else drawn at random */
    const dt_store *store;
    dt_safetensors *file;
    dti_fill fill;
} dti_trainer_source;

static dt_result dti_trainer_source_read(void *user, uint32_t param, uint32_t array, uint64_t at,
                                         uint64_t n, float *values) {
    dti_trainer_source *s = user;
    const float *from;
    uint64_t some;
    if (s->file)
        return dti_weights_floats(
            s->file, dti_weights_find(s->file, dti_store_name(s->store, param)), at, n, values);
    for (; n; at += some, n -= some, values += some) {
        DTI_TRY(dti_fill_read(&s->fill, param, at, &from, &some));
        some = DTI_MIN(some, n);
        memcpy(values, from, (size_t)some * sizeof *values);
    }
    return DT_OK;
}

/* To devices that each have a part. */
static dt_result dti_trainer_start_apart(dti_parallel *par, const char *load, char *piece) {
    dt_store *all = par->replicas[0].store;
    dti_trainer_source s = {.store = all};
    const dti_values_file f = {.user = &s, .move = dti_trainer_source_read};
    dt_result result = DT_OK;
    if (par->mesh.rank == 0)
        result = load ? dti_weights_open(par->base, load, &s.file) : dti_fill_open(all, &s.fill);
    if (!result && s.file)
        result = dti_weights_fit(all, s.file, load);
    result = dti_agree_result(par, result);
    if (!result)
        result = dti_values_load(par, &f, 1, piece);
    dt_safetensors_close(s.file);
    dti_fill_close(all, &s.fill);
    result = dti_agree_result(par, result);
    return result ? result : dti_agree_result(par, dti_values_counted(par, NULL));
}

static dt_result dti_trainer_start(dt_trainer *t) {
    dti_parallel *par = &t->par;
    dt_store *store = par->replicas[0].store;
    char *piece;
    store->allow_nonfinite = t->desc.checkpoint.allow_nonfinite;
    dt_result result = DT_OK;
    if (t->desc.load && par->mesh.rank == 0 && !dti_values_are_apart(par))
        result = dt_store_load(store, t->desc.load);
    else if (dti_pipe_of(par))
        result = dti_full_open(par);
    DTI_TRY(dti_agree_result(par, result));
    DTI_TRY(dti_agree_piece(par, &piece));
    result = dti_values_are_apart(par) ? dti_trainer_start_apart(par, t->desc.load, piece)
                                       : dti_agree_state(par, piece);
    dti_free(t->base, piece);
    return result;
}

/* From here on the application may have the first store. */
static void dti_trainer_claim(dt_trainer *t) {
    for (uint32_t i = 0; i < t->par.job.local; i++) {
        dt_store *s = t->par.replicas[i].store;
        s->trainer = true;
        s->ranks = t->par.mesh.world > 1;
        s->replica = i + 1 < t->par.job.local ? t->par.replicas[i + 1].store : NULL;
    }
}

static uint32_t dti_trainer_batch_slices(const dt_trainer *t) {
    if (dti_worker_of(t))
        return 1;
    return t->desc.parallel.batch_slices ? (uint32_t)t->desc.parallel.batch_slices
                                         : t->par.mesh.data;
}

static dt_result dti_trainer_make(dt_trainer *t, dt_result own) {
    dti_parallel *par = &t->par;
    DTI_TRY(dti_trainer_count(t, own));
    DTI_TRY(DTI_HAS_SERVER && t->desc.mode == DT_TRAIN_SERVER ? dti_server_worker.open(t)
                                                              : dti_trainer_agree(t));
    if (t->desc.checkpoint.every_steps)
        DTI_TRY(dti_trainer_folder(t));
    DTI_TRY(dti_trainer_grid(t));                                     /* the same on all ranks */
    const char *devices = dti_grid_is(par) ? "cpu" : t->desc.devices; /* the host gets all values */
    DTI_TRY(dti_agree_result(
        par, t->first ? dti_sharing_open(t)
                      : dti_replicas_open(par, t->graph, devices, t->desc.threads)));
    DTI_TRY(dti_agree_result(par, dti_balance_make(t)));
    DTI_TRY(dti_trainer_build(t, dti_trainer_batch_slices(t)));
    if (!dti_parallel_is_local(par)) /* whose replicas differ until a round ends */
        DTI_TRY(dti_agree_class(par));
    if (t->first) /* whose values all have */
        return dti_trainer_seek(t);
    /* after the loader was made, whose thread would be pinned with this one */
    DTI_TRY(dti_agree_result(par, dti_device_team_create(t->base, par->desc.comm, par->job.local,
                                                         t->desc.pin, &par->device_team)));
    DTI_TRY(dti_trainer_start(t));
    if (dti_worker_of(t))
        DTI_TRY(dti_server_worker.join(t));
    return dti_trainer_seek(t);
}

_Static_assert(offsetof(dt_trainer, owned) == 0, "dti_trainer_end casts");
_Static_assert(offsetof(dt_trainer, comm_base) == DTI_OF(dt_trainer) + sizeof(dti_base *),
               "dti_enter reads it there");

static void dti_trainer_end(dti_owned *self) {
    dt_trainer_destroy((dt_trainer *)(void *)self);
}

static dt_result dti_trainer_open(dt_graph *graph, const dt_trainer_desc *desc, dt_trainer **out) {
    DTI_TRY(dti_check_forked(graph->base));
    dt_trainer *t = dti_alloc(graph->base, sizeof *t);
    DTI_HAVE(t);
    t->base = graph->base;
    t->graph = graph;
    t->stepped = t;
    t->nodes = desc->replicas_of ? dti_trainer_first(desc->replicas_of)->nodes : graph->count;
    t->desc = *desc;
    t->asked = dti_features_asked(graph, desc);
    dt_result result = dti_sharing_resolve(t, desc); /* exchanged with the first data that ranks
                                                        send */
    t->comm_base = t->desc.comm ? t->desc.comm->base : NULL;
    dti_trainer_resolve(t);
    const dt_result words = dti_trainer_words(t);
    result = dti_trainer_make(t, result ? result : words);
    if (result) {
        dt_trainer_destroy(t);
        return result;
    }
    /* before its store: it goes first */
    dti_own(t->first ? &t->first->others : &graph->stores, &t->owned, dti_trainer_end);
    if (t->first)
        t->shares = t->first->shares = true;
    else
        dti_trainer_claim(t);
    dti_trainer_log(t);
    dti_sums_log(&t->par);
    if (dti_parallel_is_local(&t->par))
        dti_round_log(&t->par); /* every round begins with the same bits on all devices */
    else
        dti_trainer_log_mixed(t);
    if (dti_pipe_of(&t->par))
        dti_pipe_log(&t->par);
    for (uint32_t i = 0; dti_pipe_of(&t->par) && i < dti_pipe_of(&t->par)->device_count; i++)
        dti_ctx_base(dti_pipe_of(&t->par)->devices[i].ctx)->logger = (dt_logger){0};
    for (uint32_t i = 1; i < t->par.job.local; i++)
        dti_ctx_base(t->par.replicas[i].ctx)->logger = (dt_logger){0};
    *out = t;
    return DT_OK;
}

DTI_PUBLIC_OUT(dt_trainer_create, (dt_graph * graph, const dt_trainer_desc *desc, dt_trainer **out),
               graph, DTI_OF(dt_graph), (graph, desc, out)) {
    DTI_NEED(graph->base, desc);
    dti_visit visit;
    if (desc->replicas_of && desc->replicas_of->graph != graph)
        return dti_fail(graph->base, DT_ERROR_INVALID,
                        ".replicas_of is a trainer of another graph; give a trainer of this graph");
    dt_comm *comm = desc->replicas_of ? desc->replicas_of->desc.comm : desc->comm;
    if (dti_enter(comm, &visit, DTI_OF(dt_comm) | DTI_TELLS, dti_function()) || !comm)
        return dti_leave(&visit, dti_trainer_open(graph, desc, out));
    const dt_result refused = dti_leave(&visit, DT_OK);
    return dti_fail(graph->base, refused, ".comm: %s", dt_result_text(refused));
}

static bool dti_trainer_uses(const dt_trainer *t, const void *object) {
    const dt_stream_desc *stream = t->desc.data.stream;
    const void *const parts[] = {t,
                                 t->graph,
                                 t->graph->ctx,
                                 t->par.replicas[0].store,
                                 t->desc.data.user,
                                 stream ? stream->user : NULL};
    bool uses = false;
    for (size_t i = 0; i < DTI_COUNT(parts); i++)
        uses = uses || parts[i] == object;
    for (const dt_comm *c = t->desc.comm; c; c = c->parent)
        uses = uses || c == object;
    return uses;
}

DTI_PUBLIC_VOID(dt_trainer_destroy, (dt_trainer * t), t, DTI_OF(dt_trainer) | DTI_UNUSED, (t)) {
    dti_destroy_owned(&t->others);
    if (!dti_forked(t->base)) /* a child has no such thread */
        dti_checkpoint_join(t, DTI_CHECKPOINT_GRACE_NS);
    dti_checkpoint_copy_free(t->base, t->copy);
    dti_free(t->base, t->parts);
    dti_trainer_unlock(t);
    dti_loader_destroy(t->loader);
    dti_evaluation_free(t);
    dti_shared_free(t);
    if (!t->par.shares)
        dti_device_team_destroy(t->par.device_team);
    dti_pipe_destroy(&t->par);
    if (DTI_HAS_SERVER)
        dti_server_worker.close(t);
    dti_parallel_unbuild(&t->par);
    dti_sync_points_close(&t->par);
    dt_comm_destroy(t->par.shard_comm);
    dti_replicas_close(&t->par);
    dti_disown(t->first ? &t->first->others : &t->graph->stores, &t->owned);
    if (t->first && t->first->stepped == t)
        t->first->stepped = NULL;
    DTI_FREE(t->base, t->par.mesh.firsts, t->par.mesh.ranks, t->speeds, t->bounds, t->words, t);
}

DTI_PUBLIC_GET(dt_store *, dt_trainer_store, (dt_trainer * t), t, DTI_OF(dt_trainer) | DTI_WITH,
               (t)) {
    if (!t)
        return NULL;
    dti_trainer_drain(t);
    return dti_full_show(&t->par) ? NULL : t->par.replicas[0].store;
}

DTI_PUBLIC(dt_trainer_set_lr, (dt_trainer * t, double lr), t, DTI_OF(dt_trainer), (t, lr)) {
    lr = dti_or(lr, 0.0);
    if (dti_worker_of(t))
        return dti_worker_has_no(t, "learning rate");
    if (!dti_optim_lr_fits(&t->optim, lr))
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "the learning rate is %g; it must be from 0 to %g", lr,
                        dti_optim_lr_max(&t->optim));
    t->lr = lr == 0.0 ? (double)DT_ZERO : lr;
    return DT_OK;
}

DTI_PUBLIC(dt_trainer_set_coefficient, (dt_trainer * t, int loss, double value), t,
           DTI_OF(dt_trainer), (t, loss, value)) {
    const bool there =
        loss >= 0 && loss < DT_MAX_TERMS && dti_is_set(t->par.desc.program.losses[loss].term);
    if (!there || !dti_fits_f32(value))
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "dt_trainer_set_coefficient: loss is %d and value is %g: %s", loss, value,
                        there ? "value must be finite as an f32" : "the trainer has no such loss");
    dti_trainer_drain(t); /* a report has one coefficient for all of its steps */
    t->coefficients[loss] = dti_or(value, 0.0);
    return DT_OK;
}

DT_API void dt_trainer_request_checkpoint(dt_trainer *t) {
    if (t)
        atomic_store(&dti_trainer_first(t)->wanted, 1);
}

static uint64_t dti_trainer_arena(const dt_store *s, bool units, dti_arena arena) {
    const int part = arena == DTI_ARENA_GRADIENT;
    const uint64_t elements = s->layout.elements;
    const uint64_t rounding = part && s->memories[DTI_ARENA_ROUNDING] ? elements : 0;
    if (units)
        return dti_arena_bytes(s->unit_elements[part] + rounding);
    if (!s->memories[arena] || arena == DTI_ARENA_PARAM)
        return s->memories[arena] ? dti_layout_bytes(&s->layout, elements) : 0;
    return dti_arena_bytes(elements * DTI_MAX(s->slots, 1u) + rounding);
}

static void dti_trainer_info_pipeline(const dti_parallel *par, dt_trainer_info *info) {
    const dti_pipe *pipe = dti_pipe_of(par);
    const dti_pipe_device *own = &pipe->devices[0];
    const bool units = dti_pipe_has_units(par);
    info->stages = pipe->chunk_count > 1 ? (int)pipe->chunk_count : 0;
    info->tensor_ranks = pipe->shared ? (int)(pipe->mesh->tensor / pipe->each) : 0;
    info->local_replicas = (int)(pipe->pipeline_count / pipe->mesh->tensor);
    info->bubble = pipe->pipelines[0].schedules[0].bubble;
    info->live_micro_batches =
        pipe->chunk_count > 1 ? (int)pipe->pipelines[0].schedules[0].alive : 0;
    info->transient_bytes = dti_pipe_transients(pipe);
    info->state_bytes = info->replica_param_bytes = info->replica_gradient_bytes = 0;
    for (uint32_t c = own->place; c < pipe->chunk_count; c += pipe->mesh->stages) {
        const dt_store *s = dti_pipe_chunk_of(pipe, own->pipeline, c)->store;
        info->state_bytes += dti_state_bytes(&s->layout, s->moments);
        info->replica_param_bytes += dti_trainer_arena(s, units, DTI_ARENA_PARAM);
        info->replica_gradient_bytes += dti_trainer_arena(s, units, DTI_ARENA_GRADIENT);
    }
}

/* Programs have one room. NULL: other devices', or memory ran out. */
static void dti_trainer_transients(const dti_runs *runs, dt_trainer_info *info) {
    for (uint32_t i = 0; i < runs->count; i++) {
        const dt_program *p = runs->runs[i].program;
        if (p)
            info->transient_bytes = DTI_MAX(info->transient_bytes, p->code->transient_bytes);
    }
}

DTI_PUBLIC_INFO(dt_trainer_get_info, (const dt_trainer *t, dt_trainer_info *info), t,
                DTI_OF(dt_trainer), (t, info)) {
    const dti_parallel *par = &t->par;
    const dti_runs *runs = &par->replicas[0].full;
    *info = (dt_trainer_info){.rank = (int)par->mesh.rank,
                              .world_size = (int)par->mesh.world,
                              .local_replicas = (int)par->job.local,
                              .replicas = (int)par->mesh.data,
                              .batch_slices = dti_worker_of(t) ? t->desc.parallel.batch_slices
                                                               : (int)par->job.batch_slices,
                              .batch = t->desc.batch,
                              .accumulate = (int)par->desc.parts,
                              .micro_batches = (int)runs->count,
                              .epoch_steps = t->loader ? dti_loader_epoch_batches(t->loader) : 0,
                              .step = par->replicas[0].store->steps,
                              .epoch = t->epoch,
                              .round = par->round.count,
                              .round_steps = (int)par->round.done,
                              .buckets = (int)par->bucket_count,
                              .staging_bytes = par->staging_bytes,
                              .partial_sum_bytes = par->subtree_bytes,
                              .checkpoints_failed = t->checkpoints_failed,
                              .checkpoint_error = t->checkpoint_error};
    for (uint32_t i = 0; i < runs->count; i++) {
        info->replica_batch += (int)runs->runs[i].rows;
        info->micro_batch = DTI_MAX(info->micro_batch, (int)runs->runs[i].rows);
    }
    dti_trainer_transients(runs, info);
    dti_trainer_transients(&par->replicas[0].tail, info);
    const dt_store *s = par->replicas[0].store;
    info->state_bytes = dti_store_state_bytes(s);
    info->replica_param_bytes = dti_trainer_arena(s, dti_units_are(par), DTI_ARENA_PARAM);
    info->replica_gradient_bytes = dti_trainer_arena(s, dti_units_are(par), DTI_ARENA_GRADIENT);
    if (dti_pipe_of(par) && dti_pipe_of(par)->device_team) /* it has been made */
        dti_trainer_info_pipeline(par, info);
    for (uint32_t b = 0; b < par->bucket_count; b++)
        info->gradient_bytes += dti_arena_bytes(par->buckets[b].end - par->buckets[b].begin);
    info->wire_bytes = dti_sums_wire_bytes(par, info->gradient_bytes);
}
