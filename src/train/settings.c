/* What a trainer's description says: defaults, and what goes with what. */

/* What a pipeline does not go with. */
static dt_result dti_trainer_check_pipeline(const dt_trainer *t) {
    const dt_trainer_desc *d = &t->desc;
    const bool interleaved = d->parallel.schedule == DT_PIPELINE_INTERLEAVED;
    if (d->parallel.pipeline < 0 || d->parallel.replicas < 0 || d->parallel.chunks < 0 ||
        (unsigned)d->parallel.schedule > DT_PIPELINE_ZERO_BUBBLE)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".parallel: replicas is %d, pipeline %d, schedule %d, chunks %d; none may "
                        "be negative, and schedule is a dt_pipeline_schedule",
                        d->parallel.replicas, d->parallel.pipeline, (int)d->parallel.schedule,
                        d->parallel.chunks);
    if (d->parallel.pipeline < 2 && (d->parallel.schedule || d->parallel.chunks))
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".parallel.schedule and .parallel.chunks need .parallel.pipeline, the "
                        "number of stages");
    if (d->parallel.pipeline < 2)
        return DT_OK;
    if (d->parallel.chunks && !interleaved)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".parallel.chunks is %d: only DT_PIPELINE_INTERLEAVED has chunks",
                        d->parallel.chunks);
    if ((uint32_t)d->parallel.pipeline > DTI_REPLICAS_MAX ||
        (uint64_t)d->parallel.pipeline * t->par.desc.chunks > DTI_PIPE_CHUNKS_MAX)
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            ".parallel.pipeline is %d, of %u chunks each; at most %d stages and %d chunks in all",
            d->parallel.pipeline, t->par.desc.chunks, DTI_REPLICAS_MAX, DTI_PIPE_CHUNKS_MAX);
    if (d->mode == DT_TRAIN_SERVER)
        return dti_fail(
            t->base, DT_ERROR_UNSUPPORTED,
            ".parallel.pipeline cannot be combined with DT_TRAIN_SERVER: a worker has one device");
    if (d->mode)
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            ".parallel.pipeline cannot be combined with DT_TRAIN_LOCAL: a replica is one device");
    if (d->parallel.balance)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".parallel.balance cannot be combined with .parallel.pipeline: each stage "
                        "has all rows");
    if (d->parallel.zero_stage > DT_SHARD_OPTIMIZER)
        return dti_fail(t->base, DT_ERROR_UNSUPPORTED,
                        ".parallel.zero_stage is %d; with .parallel.pipeline at most %d, since "
                        "only a stage's state is sharded",
                        d->parallel.zero_stage, DT_SHARD_OPTIMIZER);
    if (d->accumulate > DTI_PIPE_MICROS_MAX)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".accumulate is %d; with .parallel.pipeline at most %d", d->accumulate,
                        DTI_PIPE_MICROS_MAX);
    return DT_OK;
}

/* What sharing out a model does not go with. */
static dt_result dti_trainer_check_tp(const dt_trainer *t) {
    const dt_trainer_desc *d = &t->desc;
    const char *beside = NULL;
    if (d->parallel.tensor < 0 || d->parallel.tensor > DTI_TP_MAX)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".parallel.tensor is %d; 1 to %d tensor ranks split a model",
                        d->parallel.tensor, DTI_TP_MAX);
    if (d->parallel.tensor_slices < 0 || d->parallel.tensor_slices > DTI_TP_MAX ||
        d->parallel.tensor_slices % DTI_MAX(d->parallel.tensor, 1))
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".parallel.tensor_slices is %d; give a multiple of .parallel.tensor, %d, "
                        "and at most %d",
                        d->parallel.tensor_slices, DTI_MAX(d->parallel.tensor, 1), DTI_TP_MAX);
    if (!t->par.desc.tensor && d->parallel.sequence_parallel)
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            ".parallel.sequence_parallel needs .parallel.tensor or .parallel.tensor_slices");
    if (!t->par.desc.tensor)
        return DT_OK;
    if (d->parallel.pipeline > 1 && t->par.desc.slices > 1)
        beside = ".parallel.pipeline: a device of a stage has one tensor rank";
    else if (d->mode)
        beside = ".mode";
    else if (d->parallel.zero_stage > DT_SHARD_OPTIMIZER)
        beside = ".parallel.zero_stage above 1: replicas of a tensor rank shard only its state";
    else if (d->parallel.zero_stage && t->par.desc.slices > 1)
        beside = ".parallel.zero_stage: a device has the state of each of its slices";
    else if (d->parallel.balance)
        beside = ".parallel.balance";
    if (beside)
        return dti_fail(t->base, DT_ERROR_UNSUPPORTED, "%s = %u cannot be combined with %s",
                        dti_grid_setting(&t->par), t->par.desc.tensor, beside);
    return dti_devices_count(t->base, d->devices) ? DT_OK : DT_ERROR_INVALID;
}

static dt_result dti_trainer_check_zero(const dt_trainer *t) {
    const dt_trainer_desc *d = &t->desc;
    if (d->parallel.zero_stage < 0 || d->parallel.zero_stage > DT_SHARD_PARAMETERS)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".parallel.zero_stage is %d; 0 shards nothing, 1 the optimizer's state, 2 "
                        "also gradients, 3 also parameters (dt_zero_stage)",
                        d->parallel.zero_stage);
    if (d->parallel.zero_stage && d->mode == DT_TRAIN_LOCAL)
        return dti_fail(t->base, DT_ERROR_UNSUPPORTED,
                        ".parallel.zero_stage %d cannot be combined with DT_TRAIN_LOCAL, where "
                        "each replica has its own optimizer",
                        d->parallel.zero_stage);
    if (d->parallel.offload && d->parallel.zero_stage < DT_SHARD_GRADIENTS)
        return dti_fail(t->base, DT_ERROR_UNSUPPORTED,
                        ".parallel.offload with .parallel.zero_stage %d: give %d or %d, whose "
                        "gradients come to the host bucket by bucket",
                        d->parallel.zero_stage, DT_SHARD_GRADIENTS, DT_SHARD_PARAMETERS);
    if (d->parallel.zero_stage >= DT_SHARD_GRADIENTS && d->parallel.balance)
        return dti_fail(t->base, DT_ERROR_UNSUPPORTED,
                        ".parallel.zero_stage %d cannot be combined with .parallel.balance, which "
                        "makes programs again while gradients are sharded; give at most %d",
                        d->parallel.zero_stage, DT_SHARD_OPTIMIZER);
    return DT_OK;
}

static dt_result dti_trainer_check(const dt_trainer *t) {
    const dt_trainer_desc *d = &t->desc;
    if (dti_is_set(d->loss)) /* it is in no use: the other is there too */
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "dt_trainer_create: .loss is short for .losses[0]; give one of them");
    if (d->batch < 1 || d->accumulate < 1 || d->parallel.batch_slices < 0 ||
        d->threads < DT_THREADS_ALL)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".batch is %d, .accumulate %d, .parallel.batch_slices %d, .threads %d; "
                        "none may be negative, except DT_THREADS_ALL",
                        d->batch, d->accumulate, d->parallel.batch_slices, d->threads);
    if (d->accumulate > d->batch)
        return dti_fail(t->base, DT_ERROR_INVALID, ".accumulate (%d) exceeds .batch (%d)",
                        d->accumulate, d->batch);
    if (d->threads > DTI_MAX_THREADS)
        return dti_fail(t->base, DT_ERROR_INVALID, ".threads is %d a replica; at most %d",
                        d->threads, DTI_MAX_THREADS);
    if (d->limits.in_flight < 0 || d->limits.in_flight > 2)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".limits.in_flight is %d; 1 or 2 steps can be under way",
                        d->limits.in_flight);
    if (d->limits.in_flight == 2 && d->skip_empty)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".limits.in_flight = 2 cannot be combined with .skip_empty, which looks at "
                        "targets before each step; leave one of them out");
    if ((unsigned)d->parallel.balance > DT_BALANCE_MEASURED)
        return dti_fail(t->base, DT_ERROR_INVALID, ".parallel.balance is %d, not a dt_balance",
                        (int)d->parallel.balance);
    if (d->parallel.balance == DT_BALANCE_MEASURED && d->parallel.batch_slices)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".parallel.balance cannot be combined with .parallel.batch_slices (%d): it "
                        "moves rows between batch slices",
                        d->parallel.batch_slices);
    dt_result mode = dti_values_check(t);
    if (!mode)
        mode = dti_trainer_check_local(t);
    if (!mode)
        mode = dti_worker_check(t);
    if (!mode)
        mode = dti_trainer_check_zero(t);
    if (mode)
        return mode;
    if (d->averaged && !t->par.desc.optim.average.kind)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".averaged evaluates averages of weights: give .optim->average");
    if (d->checkpoint.folder && !d->checkpoint.folder[0])
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".checkpoint.folder is empty; give a folder, or NULL for no checkpoints");
    if (d->checkpoint.every_steps < 0 || d->checkpoint.keep < 1 ||
        (d->checkpoint.every_steps && !d->checkpoint.folder))
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".checkpoint.every_steps is %d, .checkpoint.keep %d; neither may be "
                        "negative, and every_steps needs .checkpoint.folder",
                        d->checkpoint.every_steps, d->checkpoint.keep);
    return DT_OK;
}

/* The description's texts are its caller's; programs, files and devices are made later too. */
static dt_result dti_trainer_words(dt_trainer *t, const dt_trainer_desc *desc) {
    const char *from[3] = {desc->devices, desc->params, desc->checkpoint.folder};
    const char **to[3] = {&t->desc.devices, &t->desc.params, &t->desc.checkpoint.folder};
    size_t size = 1, at = 0;
    for (int i = 0; i < 3; i++)
        size += from[i] ? strlen(from[i]) + 1 : 0;
    t->words = dti_alloc(t->base, size);
    for (int i = 0; i < 3 && t->words; i++) {
        const size_t n = from[i] ? strlen(from[i]) + 1 : 0;
        *to[i] = from[i] ? memcpy(t->words + at, from[i], n) : NULL;
        at += n;
    }
    t->par.desc.program.params = t->desc.params;
    return t->words ? DT_OK : DT_ERROR_MEMORY;
}

/* Slices are tensor ranks, of which each device has several. Where replicas of tensor ranks share
 * out their state, these are the tensor ranks of one stage. */
static void dti_trainer_resolve_tp(dt_trainer *t) {
    const dt_trainer_desc *d = &t->desc;
    const int devices = DTI_MAX(d->parallel.tensor, 1),
              all = DTI_MAX(d->parallel.tensor_slices, devices);
    t->par.desc.tensor = all > 1 ? (uint32_t)all : 0;
    t->par.desc.slices = (uint32_t)(all / devices);
    t->par.desc.tensor_rows = d->parallel.sequence_parallel;
    if (t->par.desc.tensor && d->parallel.zero_stage == DT_SHARD_OPTIMIZER &&
        t->par.desc.slices == 1)
        t->par.desc.stages = DTI_MAX(t->par.desc.stages, 1u);
}

static void dti_trainer_resolve(dt_trainer *t, const dt_trainer_desc *desc) {
    dt_trainer_desc *d = &t->desc;
    *d = *desc;
    if (!dti_is_set(d->losses[0].term)) {
        d->losses[0].term = d->loss;
        d->loss = (dt_tensor){0};
    }
    d->batch = d->batch ? d->batch : 1;
    d->accumulate = d->accumulate ? d->accumulate : 1;
    d->checkpoint.keep = d->checkpoint.keep ? d->checkpoint.keep : 3;
    dti_parallel_desc *p = &t->par.desc;
    t->par.base = t->base;
    p->comm = d->comm;
    p->optim = d->optim ? *d->optim : (dt_optim_desc){0};
    p->program.memory_bytes = d->limits.memory_bytes;
    p->seed = d->seed;
    p->batch = (uint32_t)DTI_MAX(d->batch, 1);
    p->parts = (uint32_t)DTI_MAX(d->accumulate, 1);
    p->tail = d->tail == DT_TAIL_KEEP ? (uint32_t)(d->data.rows % p->batch) : 0;
    p->bucket_bytes = d->parallel.bucket_bytes;
    p->no_overlap = d->parallel.no_overlap;
    p->measured = d->parallel.balance == DT_BALANCE_MEASURED;
    p->skip_empty = d->skip_empty;
    p->in_flight = d->skip_empty ? 1 : d->limits.in_flight;
    p->level = (uint8_t)(d->parallel.zero_stage > 0 ? d->parallel.zero_stage : 0);
    p->offload = d->parallel.offload;
    p->stages = d->parallel.pipeline > 1 ? (uint32_t)d->parallel.pipeline : 0;
    p->schedule = d->parallel.schedule;
    p->chunks = d->parallel.schedule != DT_PIPELINE_INTERLEAVED ? 1
                : d->parallel.chunks > 0                        ? (uint32_t)d->parallel.chunks
                                                                : 2;
    dti_trainer_resolve_tp(t);
    memcpy(p->program.losses, d->losses, sizeof p->program.losses);
    memcpy(p->program.metrics, d->metrics, sizeof p->program.metrics);
    for (int i = 0; i < DT_MAX_TERMS; i++)
        t->coefficients[i] = dti_or((double)d->losses[i].coefficient, 1.0);
    dti_trainer_resolve_local(t);
    const uint64_t rest = d->data.rows % p->batch && d->tail != DT_TAIL_DROP;
    dti_rate_in_steps(&p->optim, DTI_MAX(d->data.rows / p->batch + rest, 1u));
    t->optim = dti_optim_resolved(&p->optim);
    dti_plateau_reset(t);
    p->data = &t->desc.data;
}
