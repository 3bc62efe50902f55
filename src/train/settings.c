/* Defaults and checks of a trainer's description. */

/* ---- checks of several members that compat.c lacks */

static dt_result dti_trainer_check_grid(const dt_trainer *t) {
    const dt_parallel_desc *d = &t->desc.parallel;
    const int tensor = DTI_MAX(d->tensor, 1);
    if (d->tensor_slices % tensor)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".parallel.tensor_slices is %d; it must be a multiple of .parallel.tensor "
                        "(%d) and at most %d",
                        d->tensor_slices, tensor, DTI_TP_MAX);
    if (d->pipeline > 1 && (uint64_t)d->pipeline * t->par.desc.chunks > DTI_PIPE_CHUNKS_MAX)
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            ".parallel.pipeline is %d and .parallel.chunks is %u; their product must be at most %d",
            d->pipeline, t->par.desc.chunks, DTI_PIPE_CHUNKS_MAX);
    if (d->pipeline > 1 && t->desc.accumulate > DTI_PIPE_MICROS_MAX)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".accumulate is %d; with .parallel.pipeline it must be at most %d",
                        t->desc.accumulate, DTI_PIPE_MICROS_MAX);
    return DT_OK;
}

static dt_result dti_trainer_check_pairs(const dt_trainer *t) {
    const dt_trainer_desc *d = &t->desc;
    if (dti_is_set(d->loss)) /* both are set, or this would have become .losses[0] */
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "dt_trainer_create: .loss and .losses[0] are both set; set one of them");
    if (d->accumulate > d->batch)
        return dti_fail(t->base, DT_ERROR_INVALID, ".accumulate (%d) exceeds .batch (%d)",
                        d->accumulate, d->batch);
    DTI_TRY(dti_round_desc_check(t->base, &d->local));
    if (d->checkpoint.folder && !d->checkpoint.folder[0])
        return dti_fail(t->base, DT_ERROR_INVALID,
                        ".checkpoint.folder is empty; give a folder, or NULL for no checkpoints");
    if (d->mode == DT_TRAIN_SERVER && t->par.job.local > 1)
        return dti_fail(t->base, DT_ERROR_UNSUPPORTED,
                        ".devices names %u devices, but a worker (DT_TRAIN_SERVER) must have one; "
                        "start more workers instead",
                        t->par.job.local);
    return dti_values_check(t);
}

static dt_result dti_trainer_check(const dt_trainer *t) {
    DTI_TRY(dti_fields_check(t->base, "", &dti_trainer_fields, &t->desc));
    DTI_TRY(dti_compat_check(t->base, &t->desc, t->asked));
    DTI_TRY(dti_trainer_check_grid(t));
    return dti_trainer_check_pairs(t);
}

/* The description's texts are its caller's; programs, files and devices are made later too. */
static dt_result dti_trainer_words(dt_trainer *t) {
    const char *from[3] = {t->desc.devices, t->desc.params, t->desc.checkpoint.folder};
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

/* Slices are tensor ranks, of which each device has several. Without a pipeline they are those of
 * one stage. */
static void dti_trainer_resolve_tp(dt_trainer *t) {
    const dt_trainer_desc *d = &t->desc;
    const int devices = DTI_MAX(d->parallel.tensor, 1),
              all = DTI_MAX(d->parallel.tensor_slices, devices);
    t->par.desc.tensor = all > 1 ? (uint32_t)all : 0;
    t->par.desc.slices = (uint32_t)(all / devices);
    if (t->par.desc.tensor)
        t->par.desc.stages = DTI_MAX(t->par.desc.stages, 1u);
}

static void dti_trainer_resolve(dt_trainer *t) {
    dt_trainer_desc *d = &t->desc;
    dti_fields_resolve(&dti_trainer_fields, d);
    if (!dti_is_set(d->losses[0].term)) {
        d->losses[0].term = d->loss;
        d->loss = (dt_tensor){0};
    }
    dti_parallel_desc *p = &t->par.desc;
    t->par.base = t->base;
    p->comm = d->comm;
    p->optim = d->optim ? *d->optim : (dt_optim_desc){0};
    p->program.memory_bytes = d->limits.memory_bytes;
    p->program.precision = d->precision;
    p->seed = d->seed;
    p->parameter_dtype = d->parameter_dtype;
    p->batch = (uint32_t)DTI_MAX(d->batch, 1);
    p->parts = (uint32_t)DTI_MAX(d->accumulate, 1);
    if (d->data.stream && !d->data.rows)
        d->data.rows = DTI_STREAM_ENDLESS * 2 / p->batch * p->batch;
    p->tail = d->tail == DT_TAIL_KEEP ? (uint32_t)(d->data.rows % p->batch) : 0;
    p->parallel = d->parallel;
    p->worker = d->mode == DT_TRAIN_SERVER;
    p->skip_empty = d->skip_empty;
    p->in_flight = d->skip_empty ? 1 : d->limits.in_flight;
    p->stages = d->parallel.pipeline > 1 ? (uint32_t)d->parallel.pipeline : 0;
    p->chunks = d->parallel.schedule != DT_PIPELINE_INTERLEAVED ? 1
                : d->parallel.chunks > 0                        ? (uint32_t)d->parallel.chunks
                                                                : 2;
    dti_trainer_resolve_tp(t);
    memcpy(p->program.losses, d->losses, sizeof p->program.losses);
    memcpy(p->program.metrics, d->metrics, sizeof p->program.metrics);
    for (int i = 0; i < DT_MAX_TERMS; i++)
        t->coefficients[i] = dti_or((double)d->losses[i].coefficient, 1.0);
    if (d->mode == DT_TRAIN_LOCAL)
        p->round = dti_round_resolve(&d->local, &d->parallel);
    const uint64_t rest = d->data.rows % p->batch && d->tail != DT_TAIL_DROP;
    if (!dti_dataset_endless(&d->data))
        dti_rate_in_steps(&p->optim, DTI_MAX(d->data.rows / p->batch + rest, 1u));
    t->optim = dti_optim_resolved(&p->optim);
    dti_plateau_reset(t);
    p->data = &t->desc.data;
}
