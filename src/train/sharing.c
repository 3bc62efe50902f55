/* Trainers that share replicas: several programs over one graph and one set of stores. Each has its
 * own losses, parameters, optimizer and data. The first trainer has contexts, stores and threads,
 * the comm, and the file; the others have what a step needs. A step of any of them is the one step
 * of the commit protocol. What they have in common changes between two steps only. So this file
 * ensures three things only. No other trainer has a step in flight; running statistics are read
 * again after another trainer's step; gradients are looked up at their current place.
 *
 * It must not know what a step is, or in which order the host makes steps. */

/* ---- creating */

/* Members from .parameter_dtype to before .limits, and .load, are the first trainer's. */
static dt_result dti_sharing_check(dti_base *base, const dt_trainer_desc *d) {
    for (uint32_t i = 0; i < dti_trainer_fields.count; i++) {
        const dti_field *row = &dti_trainer_fields.rows[i];
        const size_t at = row->offset;
        const bool firsts = (at >= offsetof(dt_trainer_desc, parameter_dtype) &&
                             at < offsetof(dt_trainer_desc, limits)) ||
                            at == offsetof(dt_trainer_desc, load);
        if (firsts && dti_field_number(row->type, (const char *)d + at) != 0.0)
            return dti_fail(base, DT_ERROR_INVALID,
                            "%s is set, but a trainer with .replicas_of uses that of the first "
                            "trainer; leave it 0",
                            dti_fields_find(&dti_trainer_fields, at).name);
    }
    return DT_OK;
}

/* Settings that a first trainer cannot have: its replicas would lack values between two steps, or
 * differ. */
static dt_result dti_sharing_whole(dti_base *base, const dt_trainer *first) {
    const uint64_t barred =
        first->asked & (DTI_ASKS(PIPELINE) | DTI_ASKS_TENSOR | DTI_ASKS_ZERO | DTI_ASKS(LOCAL) |
                        DTI_ASKS(WORKER) | DTI_ASKS(MEASURED));
    if (!barred && !dti_serves(first))
        return DT_OK;
    return dti_fail(base, DT_ERROR_UNSUPPORTED,
                    ".replicas_of cannot be combined with %s of the first trainer: each replica "
                    "must have all values between two steps",
                    barred ? dti_feature_print(&first->desc, barred, true).text : "a server");
}

/* Copies of the graph have the nodes that existed when the first trainer was made. */
static dt_result dti_sharing_nodes(dti_base *base, const dt_trainer *first,
                                   const dt_trainer_desc *d) {
    dt_tensor terms[2 * DT_MAX_TERMS + 1] = {[2 * DT_MAX_TERMS] = d->loss};
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        terms[i] = d->losses[i].term;
        terms[DT_MAX_TERMS + i] = d->metrics[i];
    }
    for (size_t i = 0; i < DTI_COUNT(terms); i++) {
        if (dti_is_set(terms[i]) && terms[i].graph == first->graph && terms[i].id >= first->nodes)
            return dti_fail(base, DT_ERROR_INVALID,
                            "%s was made after the trainer of .replicas_of, so its replicas lack "
                            "it; make the whole graph before the first trainer",
                            dti_tensor_print(terms[i]).text);
    }
    return DT_OK;
}

/* The smallest that none of them has: one that is made again has the same place in a checkpoint. */
static uint32_t dti_sharing_number(const dt_trainer *first) {
    uint32_t number = 1;
    const dt_trainer *o = dti_trainer_next(first);
    while (o) {
        const bool taken = o->par.number == number;
        number += taken;
        o = dti_trainer_next(taken ? first : o);
    }
    return number;
}

static dt_result dti_sharing_resolve(dt_trainer *t, const dt_trainer_desc *desc) {
    if (!desc->replicas_of)
        return DT_OK;
    dt_trainer *first = t->first = dti_trainer_first(desc->replicas_of);
    dt_trainer_desc *d = &t->desc;
    d->load = NULL;
    d->checkpoint = (dt_checkpoint_desc){0};
    d->parameter_dtype = first->desc.parameter_dtype;
    d->devices = first->desc.devices;
    d->threads = first->desc.threads;
    d->pin = first->desc.pin;
    d->comm = first->desc.comm;
    d->parallel = first->desc.parallel;
    d->parallel.batch_slices = (int)first->par.job.batch_slices;
    d->mode = DT_TRAIN_SYNCHRONOUS;
    d->local = (dt_local_desc){0};
    d->server = (dt_worker_desc){0};
    t->par.number = dti_sharing_number(first);
    DTI_TRY(dti_sharing_check(t->base, desc));
    DTI_TRY(dti_sharing_whole(t->base, first));
    return dti_sharing_nodes(t->base, first, desc);
}

static dt_result dti_sharing_open(dt_trainer *t) {
    dti_trainer_drain(t->first);
    return t->first->par.lost ? dti_trainer_lost(t->first)
                              : dti_replicas_share(&t->par, &t->first->par);
}

static void dti_sharing_bind(dt_trainer *t) {
    for (dt_trainer *o = dti_trainer_first(t); o; o = dti_trainer_next(o)) {
        if (o != t && !o->par.lost)
            dti_parallel_bind(&o->par);
    }
}

/* ---- between two steps */

static void dti_sharing_settle(dt_trainer *t) {
    bool lost = false;
    for (dt_trainer *o = dti_trainer_first(t); o; o = dti_trainer_next(o)) {
        if (o != t)
            dti_trainer_drain_own(o);
        lost = lost || o->par.lost;
    }
    t->par.lost = t->par.lost || lost;
}

static dt_result dti_sharing_is_first(const dt_trainer *t, const char *what) {
    if (!t->first)
        return DT_OK;
    return dti_fail(t->base, DT_ERROR_INVALID,
                    "a trainer with .replicas_of cannot be %s by itself; call it with the first "
                    "trainer, whose file has the state of all",
                    what);
}

/* ---- checkpoints */

static const char dti_sharing_name[] = DTI_STATE_OWN "others";

static uint32_t dti_sharing_count(const dt_trainer *first) {
    uint32_t count = 0;
    for (const dt_trainer *o = dti_trainer_next(first); o; o = dti_trainer_next(o))
        count++;
    return count;
}

/* Words as of the first trainer; its number is where that has the step. */
static dt_result dti_sharing_put(const dt_trainer *t, dti_state_extra *x, uint64_t **words) {
    const uint32_t count = dti_sharing_count(t);
    if (!count)
        return DT_OK;
    *words = dti_alloc_array(t->base, (size_t)count * DTI_STATE_WORDS, sizeof **words);
    DTI_HAVE(*words);
    uint64_t *w = *words;
    for (const dt_trainer *o = dti_trainer_next(t); o; o = dti_trainer_next(o)) {
        dti_state_words(o, w);
        w[DTI_STATE_STEP] = o->par.number;
        w += DTI_STATE_WORDS;
    }
    *x = (dti_state_extra){.dtype = "U64",
                           .size = (int64_t)count * DTI_STATE_WORDS,
                           .data = *words,
                           .bytes = (size_t)count * DTI_STATE_WORDS * sizeof **words};
    memcpy(x->name, dti_sharing_name, sizeof dti_sharing_name);
    return DT_OK;
}

enum { DTI_SHARING_BYTES = DTI_STATE_WORDS * 8 }; /* of each */

/* From rank 0's file. The number stays 0 where it has none of this trainer's. */
static dt_result dti_sharing_find(const dt_trainer *t, const dti_checkpoint *c, uint64_t *words) {
    const dt_safetensors_tensor *own = dti_checkpoint_find(c, dti_sharing_name);
    const size_t each = DTI_SHARING_BYTES;
    for (uint64_t at = 0; own && at + each <= own->bytes && !words[DTI_STATE_STEP]; at += each) {
        DTI_TRY(dti_checkpoint_read(c, dti_checkpoint_index(c, dti_sharing_name), at, each, words));
        if (words[DTI_STATE_STEP] != t->par.number)
            words[DTI_STATE_STEP] = 0;
    }
    return DT_OK;
}

/* A file that another program wrote may have anything there. */
static dt_result dti_sharing_match(dt_trainer *t, const char *path, const dti_checkpoint *c) {
    const dt_safetensors_tensor *own = dti_checkpoint_find(c, dti_sharing_name);
    const uint32_t count = dti_sharing_count(t);
    if (own && (strcmp(own->dtype, "U64") != 0 || own->bytes % DTI_SHARING_BYTES))
        return dti_fail(t->base, DT_ERROR_FORMAT, "%s: \"%s\" is damaged", path, dti_sharing_name);
    const uint64_t has = own ? own->bytes / DTI_SHARING_BYTES : 0;
    bool same = has == count;
    for (dt_trainer *o = dti_trainer_next(t); o && same; o = dti_trainer_next(o)) {
        uint64_t words[DTI_STATE_WORDS] = {0};
        DTI_TRY(dti_sharing_find(o, c, words));
        same = words[DTI_STATE_STEP] != 0;
        if (same)
            DTI_TRY(dti_state_check_same(o, path, words));
    }
    return same ? DT_OK
                : dti_fail(t->base, DT_ERROR_INVALID,
                           "%s: it has the state of %u trainers with .replicas_of, but %u exist; "
                           "create the same number before loading it",
                           path, (uint32_t)has, count);
}

static dt_result dti_sharing_load(dt_trainer *t, const dti_checkpoint *c) {
    dt_result result = DT_OK;
    t->stepped = t;
    for (dt_trainer *o = dti_trainer_next(t); o; o = dti_trainer_next(o)) {
        uint64_t words[DTI_STATE_WORDS] = {0};
        DTI_TRY(dti_agree_result(&t->par,
                                 t->par.mesh.rank == 0 ? dti_sharing_find(o, c, words) : DT_OK));
        DTI_TRY(dti_ranks_tell(&t->par, words, DTI_STATE_WORDS, DT_I64));
        o->epoch = words[DTI_STATE_EPOCH];
        o->index = words[DTI_STATE_INDEX];
        dti_plateau_load(o, words);
        const dt_result own = dti_agree_result(&t->par, dti_trainer_seek(o));
        result = result ? result : own;
    }
    return result;
}

static dt_result dti_sharing_fits(dt_trainer *t, uint32_t batch_slices) {
    dt_result result = DT_OK;
    for (dt_trainer *o = dti_trainer_next(t); o && !result; o = dti_trainer_next(o))
        result = dti_batch_slices_fit(&o->par, batch_slices);
    return result;
}

static dt_result dti_sharing_build(dt_trainer *t, uint32_t batch_slices) {
    dt_result result = dti_trainer_build(t, batch_slices);
    for (dt_trainer *o = dti_trainer_next(t); o && !result; o = dti_trainer_next(o)) {
        result = dti_trainer_build(o, batch_slices);
        if (!result)
            result = dti_agree_result(&o->par, dti_trainer_seek(o));
    }
    return result;
}
