/* The trainer's life and its steps. What all ranks must do together they do in the same order,
 * whatever one of them finds wrong by itself. */

/* ---- creating */

static void dti_dataset_inputs(const dt_dataset *data, uint32_t *columns, dt_tensor *inputs,
                               uint64_t *bytes) {
    *columns = 0;
    for (uint32_t i = 0; i < DT_MAX_COLUMNS && dti_is_set(data->columns[i].input); i++) {
        inputs[i] = data->columns[i].input;
        bytes[i] = dti_bytes(dt_tensor_dtype(inputs[i]),
                             (uint64_t)dti_shape_elements(dt_tensor_shape(inputs[i])));
        *columns = i + 1;
    }
}

/* What a pipeline does not go with. */
static dt_result dti_trainer_check_pipeline(const dt_trainer *t) {
    const dt_trainer_desc *d = &t->desc;
    const bool interleaved = d->schedule == DT_PIPELINE_INTERLEAVED;
    if (d->pipeline < 0 || d->replicas < 0 || d->chunks < 0 ||
        (unsigned)d->schedule > DT_PIPELINE_ZERO_BUBBLE)
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            "replicas %d, pipeline %d, schedule %d, chunks %d: none may be negative, and a "
            "schedule is a dt_pipeline_schedule",
            d->replicas, d->pipeline, (int)d->schedule, d->chunks);
    if (d->pipeline < 2 && (d->schedule || d->chunks))
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".schedule and .chunks are a pipeline's: give .pipeline, its stages");
    if (d->pipeline < 2)
        return DT_OK;
    if (d->chunks && !interleaved)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "%d chunks a device: only DT_PIPELINE_INTERLEAVED has them", d->chunks);
    if ((uint32_t)d->pipeline > DTI_REPLICAS_MAX ||
        (uint64_t)d->pipeline * t->par.desc.chunks > DTI_PIPE_CHUNKS_MAX)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "a pipeline of %d devices with %u chunks each; at most %d devices and %d "
                        "chunks",
                        d->pipeline, t->par.desc.chunks, DTI_REPLICAS_MAX, DTI_PIPE_CHUNKS_MAX);
    if (d->mode)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "local steps are replicas' own; a pipeline is one, whose stages make each "
                        "step together");
    if (d->balance)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "balance = measured moves rows between replicas; stages have all rows");
    if (d->shard_state)
        return dti_fail(t->base, DT_ERROR_UNSUPPORTED,
                        "shard_state with a pipeline: each stage's device has all state of its "
                        "stage; leave one of them out");
    if (d->accumulate > DTI_PIPE_MICROS_MAX)
        return dti_fail(t->base, DT_ERROR_INVALID, "%d micro-batches in a pipeline; at most %d",
                        d->accumulate, DTI_PIPE_MICROS_MAX);
    return DT_OK;
}

/* What sharing out a model does not go with. */
static dt_result dti_trainer_check_squad(const dt_trainer *t) {
    const dt_trainer_desc *d = &t->desc;
    const char *beside = NULL;
    if (d->tensor < 0 || d->tensor > DTI_SQUAD_MAX)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "tensor is %d; 1 to %d members share out a model", d->tensor,
                        DTI_SQUAD_MAX);
    if (d->tensor < 2)
        return DT_OK;
    if (d->pipeline > 1)
        beside = ".pipeline";
    else if (d->replicas > 1)
        beside = ".replicas";
    else if (d->mode)
        beside = ".mode";
    else if (d->shard_state)
        beside = ".shard_state: each member has the state of its parts alone";
    else if (d->shards > 1)
        beside = ".shards: members compute one, in .accumulate micro-batches";
    else if (d->balance)
        beside = ".balance";
    if (beside)
        return dti_fail(t->base, DT_ERROR_UNSUPPORTED, "tensor = %d goes with no %s", d->tensor,
                        beside);
    return dti_devices_count(t->base, d->devices) ? DT_OK : DT_ERROR_INVALID;
}

static dt_result dti_trainer_check(const dt_trainer *t) {
    const dt_trainer_desc *d = &t->desc;
    if (d->batch < 1 || d->accumulate < 1 || d->shards < 0 || d->threads < 0)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "batch %d, accumulate %d, shards %d, threads %d: none may be negative",
                        d->batch, d->accumulate, d->shards, d->threads);
    if (d->accumulate > d->batch)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "a batch of %d in %d parts: a part needs a sample", d->batch,
                        d->accumulate);
    if (d->threads > DTI_MAX_THREADS)
        return dti_fail(t->base, DT_ERROR_INVALID, "%d threads a replica; at most %d", d->threads,
                        DTI_MAX_THREADS);
    if (d->in_flight < 0 || d->in_flight > 2)
        return dti_fail(t->base, DT_ERROR_INVALID, "in_flight is %d; 1 or 2 steps can be under way",
                        d->in_flight);
    if ((unsigned)d->balance > DT_BALANCE_MEASURED)
        return dti_fail(t->base, DT_ERROR_INVALID, "%d is no dt_balance", (int)d->balance);
    if (d->balance == DT_BALANCE_MEASURED && d->shards)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "balance = measured moves the shards' rows, so it goes with no .shards of "
                        "your own (%d): results depend on the devices then",
                        d->shards);
    dt_result mode = dti_trainer_check_local(t);
    if (!mode)
        mode = dti_worker_check(t);
    if (mode)
        return mode;
    if (d->shard_state < 0 || d->shard_state > 3)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "shard_state is %d; 0 = each replica has all of the optimizer's state, 1 = "
                        "replicas share it out",
                        d->shard_state);
    if (d->shard_state > 1)
        return dti_fail(t->base, DT_ERROR_UNSUPPORTED,
                        "shard_state is %d: each replica has all %s; give at most 1",
                        d->shard_state, d->shard_state == 2 ? "gradients" : "parameters");
    if (d->shard_state && d->mode == DT_TRAIN_LOCAL)
        return dti_fail(t->base, DT_ERROR_UNSUPPORTED,
                        "shard_state 1 goes with no DT_TRAIN_LOCAL: each replica's optimizer is "
                        "its own between two rounds");
    if (d->averaged && !t->par.desc.optim.average.kind)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".averaged evaluates averages of weights: give .optim an .average");
    if (d->checkpoint_steps < 0 || d->checkpoint_keep < 1 ||
        (d->checkpoint_steps && !d->checkpoint))
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            "checkpoint_steps %d, checkpoint_keep %d: they go with a folder .checkpoint",
            d->checkpoint_steps, d->checkpoint_keep);
    return DT_OK;
}

/* How many replicas each rank has, and which of all are this one's. */
static dt_result dti_trainer_count(dt_trainer *t) {
    dti_parallel *par = &t->par;
    par->rank = (uint32_t)dt_comm_rank(par->desc.comm);
    par->world = (uint32_t)DTI_MAX(dt_comm_size(par->desc.comm), 1);
    par->job.local = par->desc.tensor ? 1 : dti_devices_count(t->base, t->desc.devices);
    dt_result result = par->job.local ? dti_trainer_check_pipeline(t) : DT_ERROR_INVALID;
    if (!result)
        result = dti_trainer_check_squad(t);
    if (!result)
        result = dti_trainer_check(t);
    result = dti_agree_result(par, result);
    if (result)
        return result;
    uint32_t *counts = dti_alloc_array(t->base, par->world, sizeof *counts);
    par->firsts = dti_alloc_array(t->base, par->world + 1u, sizeof *par->firsts);
    result = dti_agree_result(par, counts && par->firsts ? DT_OK : DT_ERROR_MEMORY);
    if (!result && par->desc.comm)
        result = dti_parallel_comm_failed(
            par, dt_comm_all_gather(par->desc.comm, &par->job.local, counts, 1, DT_I32));
    else if (!result)
        counts[0] = par->job.local;
    par->job.first = par->job.replicas = 0;
    for (uint32_t i = 0; i < par->world && !result; i++) {
        par->job.first += i < par->rank ? counts[i] : 0;
        par->job.replicas += counts[i];
        par->firsts[i + 1] = par->job.replicas;
    }
    dti_free(t->base, counts);
    return result;
}

/* Whether the devices are the grid that was asked for. Of a pipeline each rank's host has one
 * replica, which computes what is evaluated. */
static dt_result dti_trainer_grid(dt_trainer *t) {
    dti_parallel *par = &t->par;
    const bool asked = par->desc.stages || t->desc.replicas;
    dt_result result = asked ? dti_pipe_fits(par, (uint32_t)t->desc.replicas) : DT_OK;
    if (result || !par->desc.stages)
        return result;
    par->job.replicas = par->world;
    par->job.first = par->rank;
    par->job.local = 1;
    return DT_OK;
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

/* ---- data */

static void dti_trainer_share(void *user, uint32_t rows, uint32_t *first, uint32_t *count) {
    const dt_trainer *t = user;
    const dti_parallel *par = &t->par;
    if (t->worker) {
        dti_worker_rows(t, rows, first, count);
        return;
    }
    dti_parallel_rows(par, rows, first, count);
}

/* Rows that fill up a batch must weigh nothing, whatever else is in them. */
static dt_result dti_trainer_pads(dt_trainer *t, int32_t *pad) {
    const dti_code *code = dti_parallel_code(&t->par);
    bool batch_norm = false;
    for (uint32_t id = 1; id < t->graph->count; id++) {
        const dti_op_info *info = dti_op_info_of(t->graph->nodes[id].op);
        batch_norm = batch_norm || info->samples == DTI_SAMPLES_COUPLES;
    }
    for (uint32_t i = 0; i < code->loss_count; i++) {
        const dti_node *n = &t->graph->nodes[code->desc.losses[i].term.id];
        dti_labels labels;
        const bool ignores = dti_label_user(t->graph, n, &labels) && labels.ignores;
        uint32_t target = ignores ? dti_input_id(t->graph, n, labels.input) : 0, c = 0;
        while (c < t->par.columns && t->par.inputs[c].id != target)
            c++;
        const dti_port *port =
            c < t->par.columns ? dti_code_port(code, target, false, false) : NULL;
        if (!port || !dti_labels_ignore(port, &pad[c]) || batch_norm)
            return dti_fail(t->base, DT_ERROR_INVALID, "DT_TAIL_PAD: loss %u %s; use DT_TAIL_KEEP",
                            i + 1,
                            batch_norm ? "sees batch norm, which would see the rows that fill up"
                                       : "is no cross-entropy of a column whose targets all may be "
                                         "ignored");
    }
    return DT_OK;
}

/* Replicas find an input by its node's number, so it must be of the graph that they copy. */
static dt_result dti_trainer_column(const dt_trainer *t, dt_tensor x, uint32_t c) {
    if (x.graph != t->graph)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "dataset column %u: a tensor of another graph than the trainer's: %s", c,
                        dti_tensor_elsewhere(t->graph, x).text);
    if (dti_is_nil(x))
        return dti_fail(t->base, DT_ERROR_INVALID, "dataset column %u: its input is nil", c);
    if (dti_node_of(x)->op != DTI_OP_INPUT || dti_node_of(x)->values)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "dataset column %u: %s is no input; a column is for what dt_input made", c,
                        dti_tensor_print(x).text);
    if (!dti_node_of(x)->samples)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "input %s is shared by all samples, so it has no column in .data; "
                        "dt_trainer_write it",
                        dti_tensor_name(x).text);
    return DT_OK;
}

/* A column that nothing reads is a mistake: a mask that is not applied. */
static dt_result dti_column_is_read(const dt_trainer *t, uint32_t c) {
    const dti_code *code = dti_parallel_code(&t->par);
    const dt_tensor x = t->par.inputs[c];
    if (dti_code_port(code, x.id, false, false))
        return DT_OK;
    return dti_fail(t->base, DT_ERROR_INVALID,
                    "dataset column %u: no loss and no metric reads %s; leave it out", c,
                    dti_tensor_print(x).text);
}

/* Every column needs an input that is read, and every input of samples a column; and targets must
 * be known before the forward part. */
static dt_result dti_trainer_columns(const dt_trainer *t) {
    const dti_code *code = dti_parallel_code(&t->par);
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < code->loss_count; i++) {
        if (code->static_weight[i] < 0.0)
            return dti_fail(t->base, DT_ERROR_UNSUPPORTED,
                            "the targets of loss %u are computed in the graph, so its weight over "
                            "the whole batch is not known in time; give targets as an input",
                            i + 1);
    }
    for (uint32_t c = 0; c < t->par.columns && !result; c++) {
        result = dti_trainer_column(t, t->par.inputs[c], c);
        result = result ? result : dti_column_is_read(t, c);
    }
    for (uint32_t k = 0; k < code->port_count && !result; k++) {
        uint32_t c = 0;
        while (c < t->par.columns && t->par.inputs[c].id != code->ports[k].node)
            c++;
        const dti_node *n = &code->work->nodes[code->ports[k].node];
        if (c == t->par.columns && n->samples && !code->ports[k].output)
            return dti_fail(t->base, DT_ERROR_INVALID,
                            "input '%s' has no column in .data; give one", n->label);
    }
    return result;
}

static dt_result dti_trainer_loader(dt_trainer *t) {
    dti_loader_desc d = {.data = &t->desc.data,
                         .seed = t->desc.seed,
                         .batch = (uint32_t)t->desc.batch,
                         .tail = t->desc.tail,
                         .shuffle = !t->desc.no_shuffle,
                         .threaded = !t->worker && !t->serves, /* tickets say what is next */
                         .share = dti_trainer_share,
                         .user = t,
                         .share_max = t->worker ? dti_worker_rows_max(t) : t->par.desc.batch};
    if (t->desc.balance == DT_BALANCE_EQUAL && !t->worker) {
        uint32_t first;
        dti_trainer_share(t, t->par.desc.batch, &first, &d.share_max);
    }
    dti_loader_destroy(t->loader);
    t->loader = NULL;
    dt_result result = dti_trainer_columns(t);
    if (!result)
        result = dti_shared_make(t);
    if (!result)
        result = dti_shared_put(t);
    if (!result && t->desc.tail == DT_TAIL_PAD)
        result = dti_trainer_pads(t, d.pad);
    return result ? result : dti_loader_create(t->base, &d, &t->loader);
}

static dt_result dti_trainer_build(dt_trainer *t, uint32_t shards) {
    const bool server = t->desc.mode == DT_TRAIN_SERVER;
    dt_result result = dti_meetings_check(&t->par, server); /* the same on all ranks */
    if (!result)
        result = t->par.desc.stages ? dti_pipe_create(&t->par, shards, t->desc.devices,
                                                      t->desc.threads, t->desc.pin)
                 : t->par.desc.tensor
                     ? dti_squad_create(&t->par, t->desc.devices, t->desc.threads, t->desc.pin)
                     : dti_parallel_build(&t->par, shards, t->bounded ? t->bounds : NULL);
    if (!result && t->worker)
        result = dti_worker_build(t);
    if (!result)
        result = dti_agree_result(&t->par, dti_trainer_loader(t));
    t->par.lost = t->par.lost || result; /* there are no programs to go on with */
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

static void dti_trainer_log(const dt_trainer *t) {
    dt_trainer_info info;
    char devices[512] = "";
    size_t at = 0;
    dt_trainer_get_info(t, &info);
    for (uint32_t i = 0; i < t->par.job.local; i++) {
        int n = snprintf(devices + at, sizeof devices - at, "%s%s", i ? "," : "",
                         dt_store_device(t->par.replicas[i].store)->id);
        at += n > 0 && at + (size_t)n < sizeof devices ? (size_t)n : 0;
    }
    dti_log(t->base, DT_LOG_INFO,
            "training: global batch %d, %d samples a replica, micro-batch %d, %d accumulation "
            "step%s, %d shards, %d replicas, world size %d (rank %d, launcher %s), devices here: "
            "%s; %d buckets of %llu gradient bytes, %llu bytes of staging, %llu of subtrees, %llu "
            "of optimizer state%s",
            info.batch, info.replica_batch, info.micro_batch, info.micro_batches,
            info.micro_batches == 1 ? "" : "s", info.shards, info.replicas, info.world_size,
            info.rank, dti_trainer_launcher(t), devices, info.buckets,
            (unsigned long long)info.gradient_bytes, (unsigned long long)info.staging_bytes,
            (unsigned long long)info.subtree_bytes, (unsigned long long)info.state_bytes,
            t->par.sharded ? ", shared out" : "");
    if (t->desc.balance == DT_BALANCE_MEASURED)
        dti_log(t->base, DT_LOG_WARNING,
                "balance = measured: shares follow the replicas' speed, so results depend on "
                "devices and timing; the same bits on any number of replicas are not promised");
}

/* Devices of different kinds round differently: their replicas drift apart by it, unless each
 * parameter has an owner. A CPU's driver
 * text also has its threads, which change nothing. */
static void dti_trainer_log_mixed(const dt_trainer *t) {
    for (uint32_t i = 1; i < t->par.job.local && !t->par.sharded; i++) {
        const dti_device *a = t->par.replicas[0].store->device,
                         *b = t->par.replicas[i].store->device;
        const bool cpu = a->info.kind == DT_DEVICE_CPU;
        if (a->backend == b->backend && (cpu || !strcmp(a->info.driver, b->info.driver)))
            continue;
        dti_log(t->base, DT_LOG_WARNING,
                "replicas on %s and %s: each makes the same update with its own rounding, so their "
                "weights are equal within rounding, not bit for bit; checkpoints hold the first's",
                a->info.id, b->info.id);
        return;
    }
}

static void dti_trainer_resolve(dt_trainer *t, const dt_trainer_desc *desc) {
    dt_trainer_desc *d = &t->desc;
    *d = *desc;
    if (dti_is_set(d->loss) && !dti_is_set(d->losses[0].term))
        d->losses[0].term = d->loss;
    d->batch = d->batch ? d->batch : 1;
    d->accumulate = d->accumulate ? d->accumulate : 1;
    d->checkpoint_keep = d->checkpoint_keep ? d->checkpoint_keep : 3;
    dti_parallel_desc *p = &t->par.desc;
    t->par.base = t->base;
    p->comm = d->comm;
    p->optim = d->optim ? *d->optim : (dt_optim_desc){0};
    p->program.params = d->params;
    p->program.memory_bytes = d->memory_bytes;
    p->seed = d->seed;
    p->batch = (uint32_t)DTI_MAX(d->batch, 1);
    p->parts = (uint32_t)DTI_MAX(d->accumulate, 1);
    p->tail = d->tail == DT_TAIL_KEEP ? (uint32_t)(d->data.rows % p->batch) : 0;
    p->bucket_bytes = d->bucket_bytes;
    p->no_overlap = d->no_overlap;
    p->measured = d->balance == DT_BALANCE_MEASURED;
    p->in_flight = d->in_flight;
    p->shard_state = d->shard_state != 0;
    p->stages = d->pipeline > 1 ? (uint32_t)d->pipeline : 0;
    p->schedule = d->schedule;
    p->chunks = d->schedule != DT_PIPELINE_INTERLEAVED ? 1
                : d->chunks > 0                        ? (uint32_t)d->chunks
                                                       : 2;
    p->tensor = d->tensor > 1 ? (uint32_t)d->tensor : 0;
    if (p->tensor)
        d->shards = d->shards ? d->shards : 1; /* a checkpoint of several is refused */
    memcpy(p->program.losses, d->losses, sizeof p->program.losses);
    memcpy(p->program.metrics, d->metrics, sizeof p->program.metrics);
    for (int i = 0; i < DT_MAX_TERMS; i++)
        t->coefficients[i] = dti_or((double)d->losses[i].coefficient, 1.0);
    dti_trainer_resolve_local(t);
    dti_plateau_reset(t);
    dti_dataset_inputs(&d->data, &t->par.columns, t->par.inputs, t->par.input_bytes);
}

/* The values that all get: those of rank 0's first replica. */
static dt_result dti_trainer_start(dt_trainer *t) {
    const bool reads = t->desc.load && t->par.rank == 0;
    return reads ? dt_store_load(t->par.replicas[0].store, t->desc.load) : DT_OK;
}

/* From here on the application may have the first store. */
static void dti_trainer_claim(dt_trainer *t) {
    for (uint32_t i = 0; i < t->par.job.local; i++) {
        dt_store *s = t->par.replicas[i].store;
        s->trainer = true;
        s->ranks = t->par.world > 1;
        s->replica = i + 1 < t->par.job.local ? t->par.replicas[i + 1].store : NULL;
    }
}

static uint32_t dti_trainer_shards(const dt_trainer *t) {
    if (t->worker)
        return 1;
    return t->desc.shards ? (uint32_t)t->desc.shards : dti_parallel_width(&t->par);
}

static dt_result dti_trainer_make(dt_trainer *t) {
    dti_parallel *par = &t->par;
    dt_result result = dti_trainer_count(t);
    if (!result)
        result = t->desc.mode == DT_TRAIN_SERVER ? dti_worker_open(t) : dti_trainer_agree(t);
    if (!result)
        result = dti_trainer_grid(t);                        /* the same on all ranks */
    const bool apart = par->desc.stages || par->desc.tensor; /* the host has all values */
    if (!result)
        result =
            dti_agree_result(par, dti_replicas_open(par, t->graph, apart ? "cpu" : t->desc.devices,
                                                    t->desc.threads));
    if (!result)
        result = dti_agree_result(par, dti_balance_make(t));
    if (!result)
        result = dti_trainer_build(t, dti_trainer_shards(t));
    if (!result) /* behind the loader, whose thread would be pinned with this one */
        result = dti_agree_result(
            par, dti_crew_create(t->base, par->job.local, t->desc.pin, &par->crew));
    if (!result)
        result = dti_agree_result(par, dti_trainer_start(t));
    if (!result)
        result = dti_agree_state(par);
    if (!result && (par->pipe || par->squad))
        result = dti_agree_result(par, dti_pipe_scatter(par));
    if (!result && t->worker)
        result = dti_worker_join(t);
    return result ? result : dti_trainer_seek(t);
}

_Static_assert(offsetof(dt_trainer, owned) == 0, "dti_trainer_end casts");

static void dti_trainer_end(dti_owned *self) {
    dt_trainer_destroy((dt_trainer *)(void *)self);
}

DT_API dt_result dt_trainer_create(dt_graph *graph, const dt_trainer_desc *desc, dt_trainer **out) {
    if (out)
        *out = NULL;
    DTI_NEED(NULL, graph);
    DTI_NEED(graph->base, desc);
    DTI_NEED(graph->base, out);
    dt_result result = dti_check_forked(graph->base);
    if (result)
        return result;
    dt_trainer *t = dti_alloc(graph->base, sizeof *t);
    if (!t)
        return DT_ERROR_MEMORY;
    t->base = graph->base;
    t->graph = graph;
    t->nodes = graph->count;
    dti_trainer_resolve(t, desc);
    result = dti_trainer_make(t);
    if (result) {
        dt_trainer_destroy(t);
        return result;
    }
    /* in front of its store: it goes first */
    dti_own(&graph->stores, &t->owned, dti_trainer_end);
    dti_trainer_claim(t);
    dti_trainer_log(t);
    if (dti_parallel_is_local(&t->par))
        dti_trainer_log_local(t); /* every round begins with the same bits on all devices */
    else
        dti_trainer_log_mixed(t);
    if (t->par.pipe)
        dti_pipe_log(&t->par);
    for (uint32_t i = 0; t->par.pipe && i < t->par.pipe->device_count; i++)
        dti_ctx_base(t->par.pipe->devices[i].ctx)->logger = (dt_logger){0};
    for (uint32_t i = 0; t->par.squad && i < t->par.squad->local; i++)
        dti_ctx_base(t->par.squad->members[i].ctx)->logger = (dt_logger){0};
    for (uint32_t i = 1; i < t->par.job.local; i++)
        dti_ctx_base(t->par.replicas[i].ctx)->logger = (dt_logger){0};
    *out = t;
    return DT_OK;
}

DT_API void dt_trainer_destroy(dt_trainer *t) {
    if (!t)
        return;
    dti_loader_destroy(t->loader);
    dti_evaluation_free(t);
    dti_shared_free(t);
    dti_crew_destroy(t->par.crew);
    dti_pipe_destroy(&t->par);
    dti_worker_close(t);
    dti_squad_destroy(&t->par);
    dti_parallel_unbuild(&t->par);
    dti_meetings_close(&t->par);
    dti_replicas_close(&t->par);
    dti_disown(&t->graph->stores, &t->owned);
    dti_free(t->base, t->par.firsts);
    dti_free(t->base, t->speeds);
    dti_free(t->base, t->bounds);
    dti_free(t->base, t);
}

DT_API dt_store *dt_trainer_store(dt_trainer *t) {
    if (!t)
        return NULL;
    dti_trainer_drain(t);
    if (t->par.pipe)
        t->par.pipe->shown = true;
    if (t->par.squad)
        t->par.squad->shown = true;
    return dti_pipe_gather(&t->par) ? NULL : t->par.replicas[0].store;
}

DT_API dt_result dt_trainer_set_lr(dt_trainer *t, double lr) {
    DTI_NEED(NULL, t);
    const dt_optim_desc optim = dti_optim_resolved(&t->par.desc.optim);
    lr = dti_or(lr, 0.0);
    if (t->worker)
        return dti_worker_has_no(t, "learning rate");
    if (!dti_optim_lr_fits(&optim, lr))
        return dti_fail(t->base, DT_ERROR_INVALID, "a learning rate of %g; it must be from 0 to %g",
                        lr, dti_optim_lr_max(&optim));
    t->lr = lr == 0.0 ? (double)DT_ZERO : lr;
    return DT_OK;
}

DT_API dt_result dt_trainer_set_coefficient(dt_trainer *t, int loss, double value) {
    DTI_NEED(NULL, t);
    const bool there =
        loss >= 0 && loss < DT_MAX_TERMS && dti_is_set(t->par.desc.program.losses[loss].term);
    if (!there || !dti_fits_f32(value))
        return dti_fail(t->base, DT_ERROR_INVALID, "loss %d, coefficient %g: %s", loss, value,
                        there ? "it must be finite as an f32" : "there is no such loss");
    dti_trainer_drain(t); /* a report has one coefficient for all of its steps */
    t->coefficients[loss] = dti_or(value, 0.0);
    return DT_OK;
}

DT_API void dt_trainer_request_checkpoint(dt_trainer *t) {
    if (t)
        atomic_store(&t->wanted, 1);
}

static void dti_trainer_info_pipeline(const dti_pipe *pipe, dt_trainer_info *info) {
    info->stages = (int)pipe->chunk_count;
    info->local_replicas = (int)pipe->line_count;
    info->bubble = pipe->lines[0].schedules[0].bubble;
    info->alive = (int)pipe->lines[0].schedules[0].alive;
    info->transient_bytes = dti_pipe_transients(pipe);
}

/* Of a member. */
static void dti_trainer_info_squad(const dti_squad *squad, dt_trainer_info *info) {
    const dt_store *s = squad->members[0].store;
    info->members = (int)squad->size;
    info->transient_bytes = s->transient_bytes;
    info->state_bytes = dti_state_bytes(&s->layout, s->moments);
}

DT_API void dt_trainer_get_info(const dt_trainer *t, dt_trainer_info *info) {
    if (!info)
        return;
    *info = (dt_trainer_info){0};
    if (!t)
        return;
    const dti_parallel *par = &t->par;
    const dti_runs *runs = &par->replicas[0].full;
    *info = (dt_trainer_info){.rank = (int)par->rank,
                              .world_size = (int)par->world,
                              .local_replicas = (int)par->job.local,
                              .replicas = (int)dti_parallel_width(par),
                              .shards = t->worker ? t->desc.shards : (int)par->job.shards,
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
                              .subtree_bytes = par->subtree_bytes};
    for (uint32_t i = 0; i < runs->count; i++) {
        info->replica_batch += (int)runs->runs[i].rows;
        info->micro_batch = DTI_MAX(info->micro_batch, (int)runs->runs[i].rows);
        if (!par->pipe && !par->squad)
            info->transient_bytes =
                DTI_MAX(info->transient_bytes, runs->runs[i].program->code->transient_bytes);
    }
    const dt_store *s = par->replicas[0].store;
    info->state_bytes = s->memories[DTI_ARENA_STATE] ? dti_state_bytes(&s->layout, s->moments) : 0;
    if (par->pipe)
        dti_trainer_info_pipeline(par->pipe, info);
    if (par->squad)
        dti_trainer_info_squad(par->squad, info);
    for (uint32_t b = 0; b < par->bucket_count; b++)
        info->gradient_bytes += dti_arena_bytes(par->buckets[b].end - par->buckets[b].begin);
}

/* ---- steps */

static void dti_report_add(dt_train_report *r, const dti_parallel_result *step) {
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        r->loss_sum[i] += step->loss_sum[i];
        r->loss_weight[i] += step->loss_weight[i];
        r->metric_sum[i] += step->metric_sum[i];
        r->metric_weight[i] += step->metric_weight[i];
    }
    if (step->committed)
        r->gradient_norm = step->norm;
    r->wait_seconds += step->wait_seconds;
}

static void dti_report_close(const dt_trainer *t, dt_train_report *r) {
    r->loss = 0.0;
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        if (r->loss_weight[i] > 0.0)
            r->loss += t->coefficients[i] * r->loss_sum[i] / r->loss_weight[i];
        r->metric[i] = dti_term_value(r->metric_sum[i], r->metric_weight[i]);
    }
    r->step = t->par.replicas[0].store->steps;
    r->round = t->par.round.count;
}

static dt_result dti_trainer_lost(dt_trainer *t) {
    return dti_fail(t->base, DT_ERROR_REVOKED,
                    "the job ended at step %llu, when a rank or a device was lost; the weights are "
                    "those of that step: save them, or make a new trainer and go on from a "
                    "checkpoint",
                    (unsigned long long)t->par.replicas[0].store->steps);
}

/* What the application wrote since the last step, the replicas have; of buffers there is a copy. */
static dt_result dti_trainer_look(dt_trainer *t) {
    dt_store *s = t->par.replicas[0].store;
    if (!s->written)
        return DT_OK;
    s->written = false;
    if (t->par.pipe || t->par.squad)
        return dti_pipe_scatter(&t->par);
    return dti_statistics_load(&t->par.statistics, s);
}

static void dti_trainer_move_on(dt_trainer *t, bool last) {
    t->index = last ? 0 : t->index + 1;
    t->epoch += last;
}

/* On all ranks together, added to *r. */
static dt_result dti_trainer_step_joint(dt_trainer *t, const dti_batch *batch, dt_result own,
                                        const dt_step_desc *desc, dt_train_report *r, bool *used) {
    const dti_batch none = {0};
    dti_parallel_result step;
    dt_result result = dti_parallel_step(&t->par, batch ? batch : &none, own, desc, &step);
    r->epoch = t->epoch;
    *used = !result || step.skipped;
    if (!*used)
        return result;
    r->steps++;
    r->samples += batch->real;
    r->epoch_ended = batch->last;
    dti_trainer_move_on(t, batch->last);
    dti_report_add(r, &step);
    dti_balance_add(t);
    return result;
}

/* One step, added to *r, or what ended for it. *used: its samples are used up, also when it was
 * skipped for a NaN; one that failed otherwise is to be tried again, on all ranks. So many as
 * `keep` may be left under way. */
static dt_result dti_trainer_step(dt_trainer *t, uint32_t keep, dt_train_report *r, bool *used) {
    const uint64_t start = dti_now_ns();
    const dti_batch *batch = NULL;
    *used = false;
    dt_result own = dti_check_forked(t->base);
    if (own || t->par.lost)
        return own ? own : dti_trainer_lost(t);
    if (t->serves)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "a server's trainer makes no steps by itself: dt_server_run has workers "
                        "make them");
    if (t->worker)
        return dti_worker_step(t, r, used);
    const bool wanted = t->par.asked = atomic_exchange(&t->wanted, 0) != 0;
    own = dti_loader_next(t->loader, &batch);
    if (!own)
        own = dti_trainer_look(t);
    if (!own)
        own = dti_shared_written(t);
    r->data_seconds += 1e-9 * (double)(dti_now_ns() - start);
    dt_step_desc desc = {.seed = t->desc.seed,
                         .step = t->par.replicas[0].store->steps + 1,
                         .lr = dti_trainer_lr(t, dti_trainer_number(t)),
                         .coefficients = t->coefficients};
    dt_result result = t->par.alone ? dti_trainer_step_ahead(t, batch, own, &desc, keep, r, used)
                       : dti_parallel_is_local(&t->par)
                           ? dti_trainer_step_local(t, batch, own, &desc, r, used)
                           : dti_trainer_step_joint(t, batch, own, &desc, r, used);
    r->seconds += 1e-9 * (double)(dti_now_ns() - start);
    if (*used)
        return result;
    if (wanted)
        atomic_store(&t->wanted, 1); /* with the next one */
    dt_result again = t->par.lost ? DT_OK : dti_trainer_seek(t);
    return again ? again : result;
}

static dt_result dti_trainer_checkpoints(dt_trainer *t) {
    const uint64_t step = t->par.replicas[0].store->steps;
    const uint64_t every = (uint64_t)t->desc.checkpoint_steps;
    bool due = t->par.asked || (every && step && step % every == 0 && step != t->saved);
    if (dti_parallel_is_local(&t->par)) /* rounds' ends need not be at such steps */
        due = !t->par.round.done && (t->par.asked || (every && step / every > t->saved / every));
    return due && t->desc.checkpoint ? dt_trainer_checkpoint(t) : DT_OK;
}

/* What comes between two steps. */
static dt_result dti_trainer_between(dt_trainer *t, bool epoch_ended) {
    if (t->ahead_count)
        return DT_OK;
    dt_result result = t->par.lost ? DT_OK : dti_balance_look(t, epoch_ended);
    return result ? result : dti_trainer_checkpoints(t);
}

/* With what ended since the last report. */
static dt_result dti_report_open(dt_trainer *t, dt_train_report *r) {
    const dt_result result = t->pending_result;
    *r = t->pending;
    t->pending = (dt_train_report){0};
    t->pending_result = DT_OK;
    return result;
}

/* What was found before is told where nothing is worse. */
static dt_result dti_trainer_told(dt_trainer *t, dt_result before, dt_result now) {
    return before && !now ? dti_fail(t->base, before, "%s", t->said) : now;
}

DT_API dt_result dt_trainer_step(dt_trainer *t, dt_train_report *report) {
    DTI_NEED(NULL, t);
    dt_train_report local, *r = report ? report : &local;
    const dt_result before = dti_report_open(t, r);
    bool used;
    dt_result result = dti_trainer_step(t, t->desc.in_flight == 2, r, &used);
    dt_result after = used ? dti_trainer_between(t, r->epoch_ended) : DT_OK;
    if (used && dti_parallel_is_local(&t->par) && !r->round_ended)
        dti_report_part(t, r);
    dti_report_close(t, r);
    return dti_trainer_told(t, before, result ? result : after);
}

/* A skipped step, or a checkpoint that could not be written, is told at the end. */
DT_API dt_result dt_trainer_epoch(dt_trainer *t, dt_train_report *report) {
    DTI_NEED(NULL, t);
    dt_train_report local, *r = report ? report : &local;
    const dt_result before = dti_report_open(t, r);
    dt_result kept = DT_OK, result = DT_OK;
    bool used = true;
    while (used && !r->epoch_ended && !t->par.lost) {
        result = dti_trainer_step(t, t->desc.in_flight != 1, r, &used);
        dt_result after = used ? dti_trainer_between(t, r->epoch_ended) : DT_OK;
        result = result ? result : after;
        kept = used && result ? result : kept;
    }
    dti_report_close(t, r);
    return dti_trainer_told(t, before, !used || t->par.lost ? result : kept);
}

DT_API dt_result dt_trainer_wait(dt_trainer *t, dt_train_report *report) {
    DTI_NEED(NULL, t);
    dt_train_report local, *r = report ? report : &local;
    dt_result result = dti_check_forked(t->base);
    if (result)
        return result;
    dti_trainer_drain(t);
    const dt_result before = dti_report_open(t, r);
    dti_report_close(t, r);
    return dti_trainer_told(t, before, DT_OK);
}
