/* What a checkpoint adds for local steps. "dtrain.outer" is the outer optimizer's momentum.
 * "dtrain.replicaK" has the moments and counts of replica K; the first replica's have the usual
 * names. Arrays are packed, one after another, with parameters in the file's order; the counts
 * follow, a u32 for each parameter. Rank 0 collects them before it writes, and distributes them
 * after it has read. */

static uint64_t dti_flat_values(const dt_store *s) {
    uint64_t values = 0;
    for (uint32_t i = 0; i < s->layout.param_count; i++)
        values += s->layout.params[i].elements;
    return values;
}

/* The bytes of `arrays` arrays, and of counts if there are any. */
static uint64_t dti_flat_bytes(const dt_store *s, uint32_t arrays, bool counts) {
    return sizeof(float) * dti_flat_values(s) * arrays +
           (counts ? sizeof(uint32_t) * s->layout.param_count : 0u);
}

static uint64_t dti_flat_state_bytes(const dt_store *s) {
    const uint32_t moments = dti_state_moments(s);
    return moments ? dti_flat_bytes(s, moments, true) : 0;
}

/* ---- a store's state, packed in its own order */

static dt_result dti_flat_move(dti_parallel *par, uint32_t replica, char *packed, bool write) {
    dt_store *s = par->replicas[replica].store;
    const uint32_t moments = dti_state_moments(s), n = s->layout.param_count;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < moments * n && !result; i++) {
        const dti_param *p = &s->layout.params[i % n];
        const uint32_t array = 1 + i / n;
        result = write ? dti_store_array_write(s, array, p->offset, p->elements, packed)
                       : dti_store_array_read(s, array, p->offset, p->elements, packed);
        packed += dti_arena_bytes(p->elements);
    }
    if (moments && !result)
        result = dti_store_counts(s, 0, n, packed, write);
    return dti_replica_failed(par, replica, result);
}

static void dti_flat_outer(const dti_parallel *par, float *packed, bool from) {
    const dti_layout *layout = &par->replicas[0].store->layout;
    for (uint32_t i = 0; i < layout->param_count; i++) {
        const dti_param *p = &layout->params[i];
        float *velocity = par->round.velocity + p->offset;
        memcpy(from ? packed : velocity, from ? velocity : packed,
               (size_t)p->elements * sizeof *packed);
        packed += p->elements;
    }
}

/* ---- writing */

static void dti_rounds_state_free(dt_trainer *t, dti_rounds_state *l) {
    DTI_FREE(t->base, l->outer, l->packed, l->extras);
    *l = (dti_rounds_state){0};
}

static dt_result dti_rounds_state_make(dt_trainer *t, dti_rounds_state *l) {
    const dti_parallel *par = &t->par;
    const dt_store *s = par->replicas[0].store;
    const bool writes = par->mesh.rank == 0 || par->lost;
    *l = (dti_rounds_state){.bytes = dti_flat_state_bytes(s),
                            .replicas = par->lost ? 1 : par->job.replicas};
    const uint64_t states = !writes ? 1 : l->replicas - 1;
    if (writes) {
        l->outer = dti_alloc(t->base, (size_t)dti_flat_bytes(s, 1, false) + 1);
        l->extras = dti_alloc_array(t->base, l->replicas, sizeof *l->extras);
    }
    l->packed = dti_alloc(t->base, (size_t)(states * l->bytes) + 1);
    return l->packed && (!writes || (l->outer && l->extras)) ? DT_OK : DT_ERROR_MEMORY;
}

static void dti_rounds_state_list(dt_trainer *t, dti_rounds_state *l) {
    const dt_store *s = t->par.replicas[0].store;
    const int64_t values = (int64_t)dti_flat_values(s);
    dti_flat_outer(&t->par, l->outer, true);
    l->extras[0] =
        (dti_state_extra){"dtrain.outer", "F32", values, l->outer, dti_flat_bytes(s, 1, false)};
    l->extra_count = 1;
    for (uint32_t i = 1; i < l->replicas && l->bytes; i++) {
        dti_state_extra *x = &l->extras[l->extra_count++];
        *x = (dti_state_extra){"", "U8", (int64_t)l->bytes, l->packed + (i - 1) * l->bytes,
                               l->bytes};
        snprintf(x->name, sizeof x->name, "dtrain.replica%u", i);
    }
}

/* Moves a replica's state between its rank and rank 0, through `packed` on both. write: to the
 * replica. A failed device is reported at the end, in *own, because other ranks still wait for the
 * data. */
static dt_result dti_rounds_move(dti_parallel *par, const dti_rounds_state *l, uint32_t replica,
                                 char *packed, bool write, dt_result *own) {
    const uint32_t rank = dti_mesh_rank(&par->mesh, replica), here = par->mesh.rank;
    const int peer = here ? 0 : (int)rank;
    dt_comm *comm = par->desc.comm;
    dt_result result = DT_OK, moved = DT_OK;
    if (here == rank && !write)
        moved = dti_flat_move(par, replica - par->job.first, packed, false);
    if (rank && (!here || here == rank))
        result = write == !here ? dt_comm_send(comm, packed, l->bytes, DT_U8, peer)
                                : dt_comm_recv(comm, packed, l->bytes, DT_U8, peer);
    if (here == rank && write && !result)
        moved = dti_flat_move(par, replica - par->job.first, packed, true);
    *own = *own ? *own : moved;
    return dti_parallel_comm_failed(par, result);
}

static dt_result dti_rounds_collect(dt_trainer *t, dti_rounds_state *l) {
    dti_parallel *par = &t->par;
    DTI_TRY(dti_agree_result(par, dti_rounds_state_make(t, l)));
    dt_result result = DT_OK, own = DT_OK;
    for (uint32_t i = 1; i < l->replicas && l->bytes && !result; i++) {
        const uint64_t at = par->mesh.rank ? 0 : (i - 1) * l->bytes;
        result = dti_rounds_move(par, l, i, l->packed + at, false, &own);
    }
    result = dti_agree_result(par, result ? result : own);
    if (!result && l->outer)
        dti_rounds_state_list(t, l);
    return result;
}

/* ---- reading */

/* Arrays of tensor `index`, whose parameters may be in another order, in the store's. */
static dt_result dti_flat_reorder(const dti_state_file *f, const dti_checkpoint *c, int index,
                                  uint32_t arrays, char *to) {
    const dt_store *s = f->store;
    const uint32_t n = s->layout.param_count;
    const uint64_t size = dti_flat_bytes(s, 1, false);
    for (uint32_t i = 0; i < arrays * n; i++) {
        const int number = dti_state_number(f, c, (int)(i % n));
        uint64_t at = size * (i / n);
        for (int k = 0; k < number; k++)
            at += dti_checkpoint_at(c, k)->bytes;
        const uint64_t bytes = dti_arena_bytes(s->layout.params[i % n].elements);
        DTI_TRY(dti_checkpoint_read(c, index, at, bytes, to));
        to += bytes;
    }
    return DT_OK;
}

static dt_result dti_flat_reorder_state(const dti_state_file *f, const dti_checkpoint *c, int index,
                                        char *to) {
    const dt_store *s = f->store;
    const uint32_t n = s->layout.param_count, moments = dti_state_moments(s);
    const uint64_t counts = dti_flat_bytes(s, moments, false), each = sizeof(uint32_t);
    DTI_TRY(dti_flat_reorder(f, c, index, moments, to));
    for (uint32_t i = 0; i < n && moments; i++) {
        const uint64_t number = (uint64_t)dti_state_number(f, c, (int)i);
        DTI_TRY(
            dti_checkpoint_read(c, index, counts + each * number, each, to + counts + each * i));
    }
    return DT_OK;
}

/* -1 = not found. */
static int dti_rounds_replica_find(const dti_checkpoint *c, uint64_t replica) {
    char name[40];
    snprintf(name, sizeof name, "dtrain.replica%llu", (unsigned long long)replica);
    return dti_checkpoint_index(c, name);
}

/* Replicas' moments are packed with counts after them, in tensors of U8: dti_state_finite does
 * not see them. */
static dt_result dti_rounds_finite_one(const dt_trainer *t, const char *path,
                                       const dti_checkpoint *c, int index, uint64_t count) {
    float values[DTI_BLOCK];
    for (uint64_t at = 0, some; at < count; at += some) {
        some = DTI_MIN(count - at, (uint64_t)DTI_BLOCK);
        DTI_TRY(dti_checkpoint_read(c, index, at * sizeof *values, some * sizeof *values, values));
        const uint64_t bad = dti_first_infinite(values, DT_F32, some);
        if (bad < some)
            return dti_fail_infinite(t->base, DT_ERROR_FORMAT, path,
                                     dti_checkpoint_at(c, index)->name, at + bad,
                                     "dt_trainer_desc");
    }
    return DT_OK;
}

static dt_result dti_rounds_finite(const dt_trainer *t, const char *path, const dti_checkpoint *c,
                                   uint64_t replicas) {
    const dt_store *s = t->par.replicas[0].store;
    const uint64_t count = dti_flat_values(s) * dti_state_moments(s);
    for (uint64_t i = 1; i < replicas && count; i++)
        DTI_TRY(dti_rounds_finite_one(t, path, c, dti_rounds_replica_find(c, i), count));
    return DT_OK;
}

/* Checks that the file has all that its words require: FORMAT. */
static dt_result dti_rounds_match(const dt_trainer *t, const char *path, const dti_checkpoint *c,
                                  const uint64_t *words) {
    const dt_store *s = t->par.replicas[0].store;
    const uint64_t replicas = words[DTI_STATE_REPLICAS], bytes = dti_flat_state_bytes(s);
    const dt_safetensors_tensor *outer = dti_checkpoint_find(c, "dtrain.outer");
    bool fine = replicas >= 1 && replicas <= UINT32_MAX && outer &&
                outer->bytes == dti_flat_bytes(s, 1, false);
    for (uint64_t i = 1; fine && bytes && i < replicas; i++) {
        const dt_safetensors_tensor *x = dti_checkpoint_at(c, dti_rounds_replica_find(c, i));
        fine = x && x->bytes == bytes;
    }
    if (!fine)
        return dti_fail(t->base, DT_ERROR_FORMAT,
                        "%s: the outer momentum or moments of its %llu replicas with local steps "
                        "are missing, or have another size",
                        path, (unsigned long long)replicas);
    return s->allow_nonfinite ? DT_OK : dti_rounds_finite(t, path, c, replicas);
}

/* The replica of the file that replica `r` of this job goes on as. */
static uint64_t dti_rounds_source(const uint64_t *words, uint64_t r) {
    return words[DTI_STATE_VERSION] < DTI_STATE_LOCAL ? 0 : r % words[DTI_STATE_REPLICAS];
}

/* Moments of replicas other than the first, which all have by now. */
static dt_result dti_rounds_states(dt_trainer *t, const dti_rounds_state *l,
                                   const dti_checkpoint *c, const dti_state_file *f) {
    dti_parallel *par = &t->par;
    dt_result result = DT_OK, own = DT_OK;
    for (uint32_t i = 1; i < par->job.replicas && !result; i++) {
        const uint64_t source = dti_rounds_source(f->words, i);
        const dt_result read =
            source && par->mesh.rank == 0
                ? dti_flat_reorder_state(f, c, dti_rounds_replica_find(c, source), l->packed)
                : DT_OK;
        own = own ? own : read;
        if (source)
            result = dti_rounds_move(par, l, i, l->packed, true, &own);
    }
    return result ? result : own;
}

static dt_result dti_rounds_spread(dt_trainer *t, const dti_rounds_state *l,
                                   const dti_checkpoint *c, const dti_state_file *f) {
    dti_parallel *par = &t->par;
    const bool local = f->words[DTI_STATE_VERSION] >= DTI_STATE_LOCAL;
    const uint64_t values = dti_flat_values(par->replicas[0].store);
    dt_result result = DT_OK, own = DT_OK;
    memset(l->outer, 0, (size_t)values * sizeof *l->outer);
    if (local && par->mesh.rank == 0)
        own = dti_flat_reorder(f, c, dti_checkpoint_index(c, "dtrain.outer"), 1, (char *)l->outer);
    if (local)
        result = dti_ranks_tell(&t->par, l->outer, values, DT_F32);
    if (!result && l->bytes)
        result = dti_rounds_states(t, l, c, f);
    dti_flat_outer(par, l->outer, false);
    par->round.count = local ? f->words[DTI_STATE_ROUND] : 0;
    par->round.done = 0;
    dti_round_forget(par);
    return result ? result : own;
}

/* Room for all of it, on any rank, before anything changes. */
static dt_result dti_rounds_room(dt_trainer *t, dti_rounds_state *l) {
    const dt_store *s = t->par.replicas[0].store;
    *l = (dti_rounds_state){.bytes = dti_flat_state_bytes(s)};
    l->outer = dti_alloc(t->base, (size_t)dti_flat_bytes(s, 1, false) + 1);
    l->packed = dti_alloc(t->base, (size_t)l->bytes + 1);
    return l->outer && l->packed ? DT_OK : DT_ERROR_MEMORY;
}
