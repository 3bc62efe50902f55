/* ZeRO-1: the optimizer state sharded over the replicas of a job, threads and ranks alike
 * (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
 * Models"). Each replica owns a run of blocks of the arenas: it has moments and averages of those
 * only, and updates only those. Step counts, a word a parameter, all have. Gradients are exchanged
 * as without ZeRO and are whole on each replica, so norm, clipping and untouched rows have the same
 * bits. Where an optimizer looks at whole parameters, parts end between parameters.
 *
 * After the commit each replica copies what it wrote to the first one's gradients, which nobody
 * reads any more; processes broadcast their parts into those; then each takes what others own. A
 * rank that dies leaves each other one at step s or s + 1, with all weights and buffers of it, but
 * its moments are gone. Cost: a broadcast for each rank's share of a bucket; each process receives
 * every trained element that it does not own, 4 bytes, once. Memory: between ranks, what a process
 * owns once more.
 *
 * Where gradients and parameters are sharded too (unit_step.c), what an owner writes stays
 * there. */

/* Where the part of replica `replica` begins: at its share of the blocks, or at the parameter
 * behind that. */
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

/* Whole blocks, in the order of replicas and so of ranks. */
static dti_bucket dti_owners_range(const dti_parallel *par, uint32_t replica) {
    return (dti_bucket){par->owners[replica], par->owners[replica + 1]};
}

static dti_bucket dti_owners_rank(const dti_parallel *par, uint32_t rank) {
    const dt_comm_span own = dti_mesh_own(&par->mesh, rank);
    return (dti_bucket){par->owners[own.first], par->owners[own.first + own.count]};
}

/* Optimizers that look at whole parameters; and rows of a parameter, where gradients of other parts
 * are not there. */
static bool dti_owners_full(const dti_parallel *par) {
    const dt_optim_desc optim = dti_optim_resolved(&par->desc.optim);
    bool whole = dti_optim_is_whole(dti_optim_row_of(optim.kind));
    for (int g = 0; g < DT_MAX_GROUPS - 1; g++)
        whole = whole || (optim.groups[g].sparse && par->desc.level >= DT_SHARD_GRADIENTS);
    return whole;
}

/* Arenas of a replica's programs, where units come and go: its own part, then what is not
 * trained. */
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

static dt_result dti_owners_cut(dti_parallel *par) {
    const uint32_t replicas = par->job.replicas;
    const bool whole = dti_owners_full(par);
    par->sharded = par->desc.level && (replicas > 1 || par->desc.offload);
    if (!par->sharded)
        return DT_OK;
    for (uint32_t i = 0; i < par->job.local && par->desc.offload; i++) {
        const dt_result result =
            dti_store_offload(par->replicas[i].store, par->replicas[i].store->device->one_thread);
        if (result)
            return result;
    }
    par->owners = dti_alloc_array(par->base, (size_t)replicas + 1, sizeof *par->owners);
    if (!par->owners)
        return DT_ERROR_MEMORY;
    for (uint32_t i = 0; i <= replicas; i++)
        par->owners[i] = dti_owners_begin(&par->replicas[0].store->layout, i, replicas, whole);
    for (uint32_t i = 0; i < par->job.local; i++) {
        dti_layout *l = &par->replicas[i].store->layout;
        const dti_bucket own = dti_owners_range(par, par->job.first + i);
        l->own_begin = own.begin;
        l->own_end = own.end;
        l->parted = true;
        l->level = par->desc.level;
        l->offload = par->replicas[i].store->host != NULL;
        if (dti_units_are(par))
            dti_owners_fixed(par, par->replicas[i].store, l);
    }
    return DT_OK;
}

/* ---- pieces of parameters: of a range, what is trained, and little beside it */

static uint64_t dti_owners_elements(const dti_parallel *par, dti_bucket range) {
    uint64_t n = 0;
    for (uint32_t b = 0; b < par->bucket_count; b++)
        n += dti_bucket_elements(dti_bucket_overlap(par->buckets[b], range));
    return n;
}

static dt_result dti_owners_make(dti_parallel *par) {
    if (!par->sharded || par->mesh.world == 1 || dti_units_are(par))
        return DT_OK;
    const uint64_t own = dti_owners_elements(par, dti_owners_rank(par, par->mesh.rank));
    par->buffer_values = 0;
    for (uint32_t i = 0; i < par->statistics.count; i++)
        par->buffer_values += par->statistics.stats[i].channels;
    par->undo_bytes = (own + par->buffer_values) * sizeof(float);
    par->undo = dti_alloc(par->base, (size_t)par->undo_bytes);
    par->staging_bytes += par->undo_bytes;
    return par->undo ? DT_OK : DT_ERROR_MEMORY;
}

/* A range of a replica's parameters from or to host memory, one piece behind the other; or at their
 * places in an arena of that form. */
typedef struct dti_owners_move {
    dti_bucket range;
    float *host;
    bool packed, write;
} dti_owners_move;

static dt_result dti_owners_run(const dti_parallel *par, uint32_t index, dti_owners_move m) {
    dt_store *s = par->replicas[index].store;
    dti_memory *memory = s->memories[DTI_ARENA_PARAM];
    dt_result result = DT_OK;
    float *at = m.host;
    for (uint32_t b = 0; b < par->bucket_count && !result; b++) {
        const dti_bucket piece = dti_bucket_overlap(par->buckets[b], m.range);
        const uint64_t offset = dti_arena_bytes(piece.begin),
                       bytes = dti_arena_bytes(dti_bucket_elements(piece));
        float *host = m.packed ? at : m.host + piece.begin;
        at += dti_bucket_elements(piece);
        if (bytes)
            result = m.write ? s->device->backend->memory_write(memory, offset, host, bytes)
                             : s->device->backend->memory_read(memory, offset, host, bytes);
    }
    return result;
}

/* Where a replica's part is in `undo`. */
static dti_owners_move dti_owners_kept(const dti_parallel *par, uint32_t index, bool write) {
    const dti_bucket own = dti_owners_range(par, par->job.first + index);
    const dti_bucket before = {dti_owners_rank(par, par->mesh.rank).begin, own.begin};
    return (dti_owners_move){own, par->undo + dti_owners_elements(par, before), true, write};
}

static dt_result dti_owners_keep(dti_parallel *par, uint32_t index) {
    return dti_owners_run(par, index, dti_owners_kept(par, index, false));
}

static void dti_owners_put(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    const dti_bucket own = dti_owners_range(par, par->job.first + index);
    par->replicas[index].result = dti_owners_run(
        par, index, (dti_owners_move){.range = own, .host = par->replicas[0].gradients});
}

static void dti_owners_take(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    const dti_bucket own = dti_owners_range(par, par->job.first + index);
    const dti_bucket others[] = {{0, own.begin}, {own.end, par->elements}};
    dt_result result = DT_OK;
    for (int i = 0; i < 2 && !result; i++)
        result = dti_owners_run(par, index,
                                (dti_owners_move){.range = others[i],
                                                  .host = par->replicas[0].gradients,
                                                  .write = true});
    par->replicas[index].result = result;
}

/* ---- between processes */

/* Before a step's parameters have all come: those of the step before, and its buffers. */
static void dti_owners_back(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    dti_replica *r = &par->replicas[index];
    const float *value = par->undo + par->undo_bytes / sizeof(float) - par->buffer_values;
    dt_result result = dti_owners_run(par, index, dti_owners_kept(par, index, true));
    for (uint32_t i = 0; i < par->statistics.count && !result; i++) {
        const uint32_t n = par->statistics.stats[i].channels;
        const uint64_t at =
            dti_arena_bytes(r->store->layout.params[par->statistics.stats[i].param].offset);
        result = r->store->device->backend->memory_write(r->store->memories[DTI_ARENA_PARAM], at,
                                                         value, dti_arena_bytes(n));
        value += n;
    }
    r->store->steps--;
    r->result = result;
}

#define DTI_OWNERS_POSTED 16 /* operations under way at a time */

typedef struct dti_owners_posts {
    dt_comm_work work[DTI_OWNERS_POSTED];
    uint32_t posted, ended;
} dti_owners_posts;

static dt_result dti_owners_wait(dti_parallel *par, dti_owners_posts *p) {
    return dt_comm_wait(par->desc.comm, p->work[p->ended++ % DTI_OWNERS_POSTED], -1);
}

static dt_result dti_owners_post(dti_parallel *par, dti_owners_posts *p, uint32_t rank,
                                 dti_bucket piece) {
    float *at = par->replicas[0].gradients + piece.begin;
    const dt_comm_op op = {.kind = DT_COMM_BROADCAST,
                           .in = at,
                           .out = at,
                           .count = dti_bucket_elements(piece),
                           .dtype = DT_F32,
                           .root = (int)rank};
    dt_result result = p->posted - p->ended == DTI_OWNERS_POSTED ? dti_owners_wait(par, p) : DT_OK;
    if (!result)
        result = dt_comm_begin(par->desc.comm, &op, &p->work[p->posted % DTI_OWNERS_POSTED]);
    p->posted += !result;
    return result;
}

/* In the arenas' order, which is the same on all ranks. */
static dt_result dti_owners_post_all(dti_parallel *par, dti_owners_posts *p) {
    dt_result result = DT_OK;
    for (uint32_t b = 0; b < par->bucket_count && !result; b++) {
        for (uint32_t rank = 0; rank < par->mesh.world && !result; rank++) {
            const dti_bucket piece =
                dti_bucket_overlap(par->buckets[b], dti_owners_rank(par, rank));
            if (piece.begin < piece.end)
                result = dti_owners_post(par, p, rank, piece);
        }
    }
    return result;
}

static dt_result dti_owners_exchange(dti_parallel *par) {
    dti_owners_posts p = {.posted = 0};
    if (par->mesh.world == 1)
        return DT_OK;
    dt_result result = dti_owners_post_all(par, &p);
    while (p.ended < p.posted) { /* also behind an error: all have to end */
        const dt_result one = dti_owners_wait(par, &p);
        result = result ? result : one;
    }
    return result;
}

static dt_result dti_owners_gather(dti_parallel *par) {
    dti_device_team_run(par->device_team, dti_owners_put,
                        par); /* now: no commit reads gradients any more */
    dt_result result = dti_replicas_result(par);
    if (result)
        return dti_parallel_partial_commit(par, result, true);
    const dt_result apart = dti_owners_exchange(par);
    dti_device_team_run(par->device_team, apart ? dti_owners_back : dti_owners_take, par);
    result = dti_replicas_result(par);
    if (result)
        return dti_parallel_partial_commit(par, result, false);
    return dti_parallel_comm_failed(par, apart);
}

/* ---- pieces of moments */

/* Of this process, from its replicas; what it has not stays as it is. */
static dt_result dti_owners_read(dti_parallel *par, uint32_t moment, dti_bucket part, void *to) {
    return part.begin < part.end ? dti_state_read_part(par->replicas[0].store, moment, part.begin,
                                                       dti_bucket_elements(part), to)
                                 : DT_OK;
}

/* ---- averages in place of weights, for an evaluation: the weights, which all replicas have alike,
 * wait in the first one's gradients */

/* Elements of a parameter from `at` on, from each rank's part of them to all replicas. A rank that
 * cannot read its part sends what it has all the same, and *own tells. */
static dt_result dti_owners_show_piece(dti_parallel *par, uint32_t moment, uint64_t at, uint64_t n,
                                       float *piece, dt_result *own) {
    dt_result result = DT_OK;
    for (uint32_t rank = 0; rank < par->mesh.world && !result; rank++) {
        const dti_bucket part =
            dti_bucket_overlap(dti_owners_rank(par, rank), (dti_bucket){at, at + n});
        float *here = piece + (part.begin - at);
        if (part.begin == part.end)
            continue;
        const dt_result read =
            rank == par->mesh.rank ? dti_owners_read(par, moment, part, here) : DT_OK;
        *own = *own ? *own : read;
        if (par->mesh.world > 1)
            result = dti_parallel_comm_failed(par, dt_comm_broadcast(par->desc.comm, here,
                                                                     dti_bucket_elements(part),
                                                                     DT_F32, (int)rank));
    }
    for (uint32_t i = 0; i < par->job.local && !result && !*own; i++) {
        dt_store *s = par->replicas[i].store;
        *own = dti_replica_failed(par, i,
                                  s->device->backend->memory_write(s->memories[DTI_ARENA_PARAM],
                                                                   dti_arena_bytes(at), piece,
                                                                   dti_arena_bytes(n)));
    }
    return result;
}

/* With units the owners have them as well. */
static dt_result dti_owners_put_by(dti_parallel *par) {
    const dti_owners_move keep = {{0, par->elements}, par->replicas[0].gradients, false, false};
    if (!dti_units_are(par))
        return dti_agree_result(par, dti_owners_run(par, 0, keep));
    dt_result result = dti_units_show(par);
    return result ? result : dti_agree_result(par, dti_units_take(par));
}

static dt_result dti_owners_show_by(dti_parallel *par, char *piece) {
    const dt_store *s = par->replicas[0].store;
    const uint64_t most = DTI_AGREE_PIECE / dti_arena_bytes(1);
    dt_result result = dti_owners_put_by(par), own = DT_OK;
    if (result)
        return result;
    par->shown = true;
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        const dti_param *p = &s->layout.params[i];
        const uint64_t elements = p->average && s->kept[i].averaged ? p->elements : 0;
        for (uint64_t at = 0; at < elements && !result; at += most)
            result =
                dti_owners_show_piece(par, p->average - 1u, p->offset + at,
                                      DTI_MIN(elements - at, most), (float *)(void *)piece, &own);
    }
    return dti_agree_result(par, result ? result : own);
}

static dt_result dti_owners_show(dti_parallel *par) {
    char *piece;
    dt_result result = dti_agree_piece(par, &piece);
    if (!result)
        result = dti_owners_show_by(par, piece);
    dti_free(par->base, piece);
    return result;
}

static void dti_owners_restore(void *arg, uint32_t index) {
    dti_parallel *par = arg;
    par->replicas[index].result = dti_owners_run(
        par, index, (dti_owners_move){{0, par->elements}, par->replicas[0].gradients, false, true});
}

static dt_result dti_owners_hide(dti_parallel *par) {
    if (!par->shown)
        return DT_OK;
    par->shown = false;
    for (uint32_t i = 0; i < par->job.local && dti_units_are(par); i++)
        par->replicas[i].store->apart = true; /* averages are there, and go when weights come */
    if (dti_units_are(par))
        return DT_OK;
    dti_device_team_run(par->device_team, dti_owners_restore, par);
    const dt_result result = dti_replicas_result(par);
    return result ? dti_parallel_partial_commit(par, result, false) : DT_OK;
}

/* ---- the state to and from files */

/* First a word that says whether the other rank could read it. */
static dt_result dti_owners_receive(dti_parallel *par, uint32_t rank, dti_bucket part, float *to) {
    int32_t went = 0;
    dt_result result =
        dti_parallel_comm_failed(par, dt_comm_recv(par->desc.comm, &went, 1, DT_I32, (int)rank));
    if (!result && went)
        return dti_fail(par->base, (dt_result)went, "rank %u could not read its shard of the state",
                        rank);
    return result ? result
                  : dti_parallel_comm_failed(par, dt_comm_recv(par->desc.comm, to,
                                                               dti_bucket_elements(part), DT_F32,
                                                               (int)rank));
}

static dt_result dti_owners_ask(dti_parallel *par, uint64_t words[3]) {
    return dti_parallel_comm_failed(par, dt_comm_broadcast(par->desc.comm, words, 3, DT_I64, 0));
}

static dt_result dti_owners_fetch(void *user, uint32_t moment, uint64_t at, uint64_t n, void *to) {
    dti_parallel *par = user;
    uint64_t words[3] = {moment, at, n};
    dt_result result = dti_owners_ask(par, words);
    if (result)
        return result;
    for (uint32_t rank = 0; rank < par->mesh.world && !par->lost;
         rank++) { /* all send, whatever fails */
        const dti_bucket part =
            dti_bucket_overlap(dti_owners_rank(par, rank), (dti_bucket){at, at + n});
        float *here = (float *)to + (part.begin - at);
        if (part.begin == part.end)
            continue;
        const dt_result one = rank == par->mesh.rank ? dti_owners_read(par, moment, part, here)
                                                     : dti_owners_receive(par, rank, part, here);
        result = result ? result : one;
    }
    return result;
}

static dt_result dti_owners_served(dti_parallel *par) {
    uint64_t words[3] = {0};
    return par->lost ? DT_OK : dti_owners_ask(par, words);
}

/* A part that cannot be read is told, and rank 0 gives the file up. */
static dt_result dti_owners_serve(dti_parallel *par, char *piece) {
    dt_result kept = DT_OK;
    for (;;) {
        uint64_t words[3] = {0};
        dt_result result = dti_owners_ask(par, words);
        if (result || words[2] == 0)
            return result ? result : kept;
        const dti_bucket part = dti_bucket_overlap(dti_owners_rank(par, par->mesh.rank),
                                                   (dti_bucket){words[1], words[1] + words[2]});
        if (part.begin == part.end)
            continue;
        const dt_result went = dti_owners_read(par, (uint32_t)words[0], part, piece);
        int32_t word = (int32_t)went;
        kept = went ? went : kept;
        result = dti_parallel_comm_failed(par, dt_comm_send(par->desc.comm, &word, 1, DT_I32, 0));
        if (!result && !went)
            result = dti_parallel_comm_failed(
                par, dt_comm_send(par->desc.comm, piece, dti_bucket_elements(part), DT_F32, 0));
        if (result)
            return result;
    }
}

static dt_result dti_owners_spread(dti_parallel *par, uint32_t moment, uint64_t at, uint64_t n,
                                   char *piece) {
    dt_result result = DT_OK;
    if (par->desc.comm)
        result =
            dti_parallel_comm_failed(par, dt_comm_broadcast(par->desc.comm, piece, n, DT_F32, 0));
    for (uint32_t i = 0; i < par->job.local && !result; i++)
        result = dti_state_write_part(par->replicas[i].store, moment, at, n, piece);
    return result;
}
