/* ZeRO-1: the optimizer state sharded over the replicas of a job, threads and ranks alike
 * (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
 * Models"). Each replica owns a run of blocks of the arenas. It has only their moments and
 * averages, and updates only them. All replicas have all step counts, a word for each parameter.
 * Gradients are exchanged as without ZeRO and complete on each replica, so norm, clipping and
 * untouched rows have the same bits. If an optimizer works on whole parameters, parts end between
 * parameters.
 *
 * After the commit each replica copies its new values to the first one's gradients, which nobody
 * reads any more. Processes broadcast their parts into those; then each replica copies what others
 * own. If a rank dies, each other one is at step s or s + 1, with all weights and buffers of it.
 * The dead rank's moments are lost. Cost: a broadcast for each rank's share of a bucket; each
 * process receives every trained element that it does not own, 4 bytes, once. Memory: between
 * ranks, a copy of a process's own elements.
 *
 * Where gradients and parameters are sharded too (unit_step.c), an owner's new values stay
 * there. */

/* Where the part of replica `replica` begins: at its share of the blocks, or at the first parameter
 * after that. */
static uint64_t dti_owners_begin(const dti_layout *l, uint32_t replica, uint32_t replicas,
                                 bool whole) {
    const uint64_t at = l->elements / DTI_BLOCK * replica / replicas * DTI_BLOCK;
    uint64_t next = l->elements;
    if (!whole || replica == 0 || replica == replicas)
        return at;
    for (uint32_t i = 0; i < l->param_count; i++) {
        if (l->params[i].offset >= at)
            next = DTI_MIN(next, l->params[i].offset);
    }
    return next;
}

/* ---- HSDP: replicas in shard groups, each of which has the state once (Zhao et al. 2023,
 * "PyTorch FSDP"). Parameters travel within a group, gradients are summed over all. */

static uint32_t dti_shards(const dti_parallel *par) {
    const int degree = par->desc.parallel.shard_degree;
    return degree > 0 ? (uint32_t)degree : par->job.replicas;
}

/* A rank's replicas are of one group, or whole groups, alike on all ranks. */
static dt_result dti_shards_check(const dti_parallel *par) {
    const uint32_t shards = dti_shards(par);
    if (par->job.replicas % shards)
        return dti_fail(
            par->base, DT_ERROR_INVALID,
            ".parallel.shard_degree is %u for %u replicas; it must divide the number of replicas",
            shards, par->job.replicas);
    for (uint32_t rank = 0; rank < par->mesh.world; rank++) {
        const dt_comm_span own = dti_mesh_own(&par->mesh, rank);
        const bool spans = own.count < shards;
        if (spans == dti_shards_span(par) &&
            (spans ? own.first % shards + own.count <= shards : own.count % shards == 0))
            continue;
        return dti_fail(par->base, DT_ERROR_INVALID,
                        ".parallel.shard_degree is %u, but rank %u has %u replicas; give a "
                        "multiple or a divisor of each rank's number of replicas",
                        shards, rank, own.count);
    }
    return DT_OK;
}

static dti_values_shared dti_shards_here(const dti_parallel *par) {
    const uint32_t shards = dti_shards(par);
    return (dti_values_shared){{par->job.first / shards * shards, 1, shards}, par->owners};
}

static bool dti_shards_span(const dti_parallel *par) {
    return par->job.local < dti_shards(par);
}

/* Whole blocks, in the order of a group's replicas and so of ranks. */
static dti_bucket dti_owners_range(const dti_parallel *par, uint32_t replica) {
    const uint64_t *at = par->owners + replica % dti_shards(par);
    return (dti_bucket){at[0], at[1]};
}

/* The elements of this process's replicas, if their group spans ranks. */
static dti_bucket dti_owners_here(const dti_parallel *par) {
    const uint64_t *at = par->owners + par->job.first % dti_shards(par);
    return (dti_bucket){at[0], at[par->job.local]};
}

/* Optimizers that look at whole parameters; and rows of a parameter, where gradients of other parts
 * are not there. */
static bool dti_owners_full(const dti_parallel *par) {
    const dt_optim_desc optim = dti_optim_resolved(&par->desc.optim);
    bool whole = dti_optim_is_whole(dti_optim_row_of(optim.kind));
    for (int g = 0; g < DT_MAX_GROUPS - 1; g++)
        whole = whole ||
                (optim.groups[g].sparse && par->desc.parallel.zero_stage >= DT_SHARD_GRADIENTS);
    return whole;
}

/* The arena sizes of a replica's programs with units: its own part, then untrained values. */
static void dti_owners_fixed(const dti_parallel *par, const dt_store *s, dti_layout *l) {
    l->fixed = l->own_end - l->own_begin;
    for (uint32_t i = l->param_count; i-- > 0;) { /* in the arenas' order: neighbours stay so */
        dti_param *p = &l->params[i];
        p->rest = DTI_NO_REST;
        if (dti_param_is_trained(&s->graph->nodes[p->node], par->desc.program.params))
            continue;
        p->rest = l->fixed;
        l->fixed += dti_full_blocks(p->elements);
    }
}

/* The part of one of `shards` alike stores; bounds: of all their elements. */
static void dti_owners_part(const dti_parallel *par, dt_store *s, uint32_t part, uint32_t shards,
                            uint64_t *bounds) {
    const bool whole = dti_owners_full(par);
    dti_layout *l = &s->layout;
    for (uint32_t i = 0; i <= shards; i++)
        bounds[i] = dti_owners_begin(l, i, shards, whole);
    l->own_begin = bounds[part];
    l->own_end = bounds[part + 1];
    l->parted = true;
    l->level = (uint8_t)par->desc.parallel.zero_stage;
    l->offload = s->host != NULL;
    if (l->level < DT_SHARD_GRADIENTS)
        return;
    dti_owners_fixed(par, s, l);
    s->apart = s->apart || !s->memories[DTI_ARENA_PARAM];
}

static bool dti_owners_are(const dti_parallel *par) {
    return DTI_HAS_ZERO && par->desc.parallel.zero_stage && !dti_grid_is(par) &&
           (dti_shards(par) > 1 || par->desc.parallel.offload);
}

static dt_result dti_owners_cut(dti_parallel *par) {
    const uint32_t shards = dti_shards(par);
    par->sharded = dti_owners_are(par);
    if (!dti_is_sharded(par))
        return DT_OK;
    DTI_TRY(dti_shards_check(par));
    par->owners = dti_alloc_array(par->base, (size_t)shards + 1, sizeof *par->owners);
    DTI_HAVE(par->owners);
    for (uint32_t i = 0; i < par->job.local; i++) {
        dt_store *s = par->replicas[i].store;
        if (par->desc.parallel.offload)
            DTI_TRY(dti_store_offload(s, s->device->one_thread));
        dti_owners_part(par, s, (par->job.first + i) % shards, shards, par->owners);
    }
    return DT_OK;
}

/* ---- parameters */

static dti_values_ranges dti_owners_trained(const dti_parallel *par) {
    return (dti_values_ranges){.buckets = par->buckets, .bucket_count = par->bucket_count};
}

static dt_result dti_shards_group(dti_parallel *par) {
    const uint32_t shards = dti_shards(par);
    dt_result result = DT_OK;
    if (par->shard_comm || !dti_is_sharded(par) || !dti_shards_span(par) ||
        (shards == par->job.replicas && !dti_units_are(par)))
        return DT_OK;
    for (uint32_t first = 0; first < par->job.replicas && !result; first += shards) {
        dt_comm *group = NULL;
        result = dti_mesh_line_group(par, (dti_mesh_line){first, 1, shards}, &group);
        par->shard_comm = group ? group : par->shard_comm;
    }
    return result;
}

static dt_result dti_owners_make(dti_parallel *par) {
    if (!dti_is_sharded(par) || !dti_shards_span(par) || dti_units_are(par))
        return DT_OK;
    const dti_values_ranges trained = dti_owners_trained(par);
    const uint64_t own = dti_values_elements(&trained, dti_owners_here(par));
    const uint64_t bytes = dti_arena_bytes(own + par->statistics.values);
    par->undo = dti_alloc(par->base, (size_t)bytes);
    par->staging_bytes += bytes;
    return par->undo ? DT_OK : DT_ERROR_MEMORY;
}

/* A replica's part, to or from where it is in `undo`. */
static dt_result dti_owners_undo(const dti_parallel *par, uint32_t index, bool write) {
    const dti_values_ranges trained = dti_owners_trained(par);
    dt_store *s = par->replicas[index].store;
    const dti_bucket own = dti_values_own(s), before = {dti_owners_here(par).begin, own.begin};
    float *host = par->undo + par->statistics.values + dti_values_elements(&trained, before);
    return dti_values_copy_trained(s, (dti_values_copy){&trained, own, host, true, write});
}

static dt_result dti_owners_keep(dti_parallel *par, uint32_t index) {
    return dti_owners_undo(par, index, false);
}

/* All of them to or from the first replica's gradients, at their places. */
static dt_result dti_owners_copy(const dti_parallel *par, uint32_t index, bool write) {
    const dti_values_ranges trained = dti_owners_trained(par);
    const dti_bucket all = {0, par->elements};
    return dti_values_copy_trained(
        par->replicas[index].store,
        (dti_values_copy){&trained, all, par->replicas[0].gradients, false, write});
}

static dti_values_update dti_owners_update(const dti_parallel *par) {
    dt_comm *comm = par->shard_comm ? par->shard_comm : par->desc.comm;
    return (dti_values_update){.trained = dti_owners_trained(par),
                               .shared = dti_shards_here(par),
                               .host = par->replicas[0].gradients,
                               .comm = dti_shards_span(par) ? comm : NULL};
}

static dt_result dti_owners_put(dti_parallel *par, uint32_t index) {
    const dti_values_update u = dti_owners_update(par);
    return index < u.shared.line.count ? dti_values_give(&u, par->replicas[index].store)
                                       : DT_OK; /* of a further group here: the same again */
}

static dt_result dti_owners_take(dti_parallel *par, uint32_t index) {
    const dti_values_update u = dti_owners_update(par);
    return dti_values_take(&u, par->replicas[index].store);
}

/* ---- between processes */

/* Before a step's parameters have all come: those of the step before, and its buffers. */
static dt_result dti_owners_back(dti_parallel *par, uint32_t index) {
    dti_replica *r = &par->replicas[index];
    const float *value = par->undo;
    dt_result result = dti_owners_undo(par, index, true);
    for (uint32_t i = 0; i < par->statistics.count && !result; i++) {
        const uint32_t n = par->statistics.stats[i].channels;
        const uint64_t at = r->store->layout.params[par->statistics.stats[i].param].offset;
        result = dti_store_array_write(r->store, 0, at, n, value);
        value += n;
    }
    r->store->steps--;
    return result;
}

static dt_result dti_owners_gather(dti_parallel *par) {
    const dti_values_update update = dti_owners_update(par);
    dt_result result = dti_replicas_phase(par, dti_owners_put); /* no commit reads gradients now */
    if (result)
        return dti_parallel_partial_commit(par, result, true);
    const dt_result apart = dti_values_share(par, &update);
    result = dti_replicas_phase(par, apart ? dti_owners_back : dti_owners_take);
    if (result)
        return dti_parallel_partial_commit(par, result, false);
    return dti_parallel_comm_failed(par, apart);
}

/* ---- averages in place of weights, for an evaluation: the weights wait in the first replica's
 * gradients */

/* With units the owners have them as well. */
static dt_result dti_owners_put_by(dti_parallel *par) {
    if (!dti_units_are(par))
        return dti_agree_result(par, dti_owners_copy(par, 0, false));
    DTI_TRY(dti_units_show(par));
    return dti_agree_result(par, dti_units_take(par));
}

static dt_result dti_owners_show_by(dti_parallel *par, char *piece) {
    const dt_store *s = par->replicas[0].store;
    dti_values_move m;
    DTI_TRY(dti_values_open(par, &m, piece));
    DTI_TRY(dti_owners_put_by(par));
    par->shown = true;
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        const uint32_t average = s->layout.params[i].average;
        if (average && s->kept[i].averaged)
            dti_values_gather_array(&m, i, average, 0);
    }
    return dti_agree_result(par, m.result);
}

static dt_result dti_owners_show(dti_parallel *par) {
    return dti_agree_with(par, dti_owners_show_by);
}

static dt_result dti_owners_restore(dti_parallel *par, uint32_t index) {
    return dti_owners_copy(par, index, true);
}

static dt_result dti_owners_hide(dti_parallel *par) {
    if (!par->shown)
        return DT_OK;
    par->shown = false;
    for (uint32_t i = 0; i < par->job.local && dti_units_are(par); i++)
        par->replicas[i].store->apart = true; /* averages are gathered; they are replaced when
                                                 weights come */
    if (dti_units_are(par))
        return DT_OK;
    const dt_result result = dti_replicas_phase(par, dti_owners_restore);
    return result ? dti_parallel_partial_commit(par, result, false) : DT_OK;
}
