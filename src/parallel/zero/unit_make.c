/* Allocates the memory of steps with units. */

/* A device's own part is on the host too, because other replicas read it there. It stays when
 * programs are made again. */
static dt_result dti_units_host(dti_parallel *par, dti_replica *r) {
    const size_t elements = (size_t)r->store->layout.fixed;
    if (r->store->device->info.kind == DT_DEVICE_CPU || r->store->host || r->mirror)
        return DT_OK;
    r->mirror = dti_alloc_array(par->base, elements + 1, sizeof *r->mirror);
    return r->mirror ? DT_OK : DT_ERROR_MEMORY;
}

/* Copies a device's own part to the host, or from there. */
static dt_result dti_unit_mirror(const dti_unit_part *p, bool to_device) {
    const dt_store *s = p->store;
    const uint64_t away = dti_layout_away(&s->layout);
    const uint64_t bytes = dti_arena_bytes(s->layout.fixed - away);
    if (s->device->info.kind == DT_DEVICE_CPU || !bytes)
        return DT_OK;
    return to_device ? s->device->backend->memory_write(s->units[0], 0, p->params + away, bytes)
                     : s->device->backend->memory_read(s->units[0], 0, p->params + away, bytes);
}

/* On a device: buffers that the host has written, or parameters that others read. */
static dt_result dti_unit_committed(const dti_unit_part *p) {
    const dt_store *s = p->store;
    if (s->device->info.kind != DT_DEVICE_CPU && !s->host)
        return s->device->backend->memory_read(
            s->units[0], 0, p->params,
            dti_arena_bytes(dti_bucket_elements(dti_values_own(p->store))));
    for (uint32_t i = 0; i < s->layout.param_count && s->host; i++) {
        const dti_param *of = &s->layout.params[i];
        if (p->code->update[i])
            DTI_TRY(dti_unit_write(p, of->rest - dti_layout_away(&s->layout), p->params + of->rest,
                                   of->elements));
    }
    return DT_OK;
}

static dti_unit_part dti_unit_part_of(const dti_replica *r) {
    const dt_store *s = r->store;
    const dti_backend *b = s->host ? s->host->backend : s->device->backend;
    return (dti_unit_part){.store = r->store,
                           .params = r->mirror ? r->mirror
                                               : b->memory_host(s->host ? s->own[0] : s->units[0]),
                           .gradients = s->host ? b->memory_host(s->own[1]) : r->gradients,
                           .windows = r->gradients,
                           .subtrees = &r->subtrees};
}

static dt_result dti_units_open(dti_parallel *par, dti_units *u) {
    u->largest = DTI_BLOCK;
    for (uint32_t b = 0; b < u->bucket_count; b++)
        u->largest = DTI_MAX(u->largest, dti_bucket_elements(u->buckets[b]));
    u->staging =
        dti_alloc_array(par->base, (size_t)(DTI_UNITS_STAGED * u->largest), sizeof *u->staging);
    bool made = u->staging;
    for (uint32_t i = 0; i < DTI_UNITS_STAGED && made; i++) {
        u->sends[i].room = par->mesh.world;
        u->sends[i].at = dti_alloc_array(par->base, par->mesh.world, sizeof(dt_comm_work));
        made = u->sends[i].at != NULL;
    }
    return made ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_units_make(dti_parallel *par) {
    dti_units *u = &par->units;
    if (!dti_units_are(par))
        return DT_OK;
    u->parts = dti_alloc_array(par->base, par->job.local, sizeof *u->parts);
    DTI_HAVE(u->parts);
    for (; u->part_count < par->job.local; u->part_count++) {
        DTI_TRY(dti_units_host(par, &par->replicas[u->part_count]));
        u->parts[u->part_count] = dti_unit_part_of(&par->replicas[u->part_count]);
    }
    u->shared = dti_shards_here(par);
    u->buckets = par->buckets;
    u->bucket_count = par->bucket_count;
    u->pair_count = 2 * (size_t)dti_parallel_code(par)->table_entries;
    u->pairs = dti_alloc_array(par->base, u->pair_count + 1, sizeof *u->pairs);
    /* between steps too, when all parameters are brought together */
    return u->pairs ? dti_units_open(par, u) : DT_ERROR_MEMORY;
}

static bool dti_units_whole(const dti_parallel *par, dti_mesh_line line) {
    bool whole = false;
    for (uint32_t rank = 0; rank < par->mesh.world; rank++)
        whole = whole || dti_mesh_subtrees(par, line, rank).count > 1;
    return whole;
}

/* The order in which a list gathers a part's units, and gives buckets that have to leave: odd. */
static int64_t dti_units_order(const dti_list *list, uint32_t part, bool leave) {
    uint64_t hash = DTI_HASH_START;
    uint16_t given = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        const dti_action *a = &list->actions[i];
        if (a->part == part && a->kind >= DTI_ACTION_GATHER)
            hash = dti_hash64(hash, &a->what, sizeof a->what);
        if (a->buckets > given && leave)
            hash = dti_hash64(hash, &a->buckets, sizeof a->buckets);
        given = DTI_MAX(given, a->buckets);
    }
    return (int64_t)(hash >> 1 | 1);
}

/* Of a group's part here, for full batches (0) or short ones. */
static int64_t dti_units_order_of(const dti_parallel *par, uint32_t group, uint32_t part,
                                  uint32_t tail) {
    const dti_pipe *pipe = dti_pipe_of(par);
    if (!pipe) {
        const dti_replica *r = &par->replicas[part];
        return dti_units_order(tail ? &r->tail.list : &r->full.list, 0,
                               dti_program_code(r->full.runs[0].program)->units_leave);
    }
    const dti_pipe_chunk *chunk = dti_pipe_alike_chunk(pipe, group, part);
    return dti_units_order(&pipe->devices[chunk->device].lists[dti_pipe_shape(pipe, tail)],
                           (uint32_t)(chunk - pipe->chunks), false);
}

static dt_result dti_units_differ(dti_parallel *par, uint32_t group) {
    char of[32] = "";
    if (dti_pipe_of(par))
        snprintf(of, sizeof of, " of stage %u", group % dti_pipe_of(par)->chunk_count);
    return dti_fail(
        par->base, DT_ERROR_UNSUPPORTED,
        ".parallel.zero_stage is %d, but replicas%s read parameters in different orders, as their "
        "devices differ; give all replicas the same devices, or a stage below %d",
        par->desc.parallel.zero_stage, of, DT_SHARD_GRADIENTS);
}

static dt_result dti_ranks_same(dti_parallel *par, int64_t *own, size_t count, size_t *bad) {
    *bad = count;
    memcpy(own + count, own, count * sizeof *own);
    const dt_result result =
        dti_ranks_reduce(par, par->desc.comm, own + count, count, DT_I64, DT_COMM_MAX);
    for (size_t i = count; i-- > 0 && !result;)
        *bad = own[i] && own[i] != own[count + i] ? i : *bad;
    return result;
}

/* In one order on all devices somebody can always go on: that of those here against all ranks'. */
static dt_result dti_units_same_order(dti_parallel *par, uint32_t groups) {
    const size_t count = 2 * (size_t)groups;
    size_t other = count;
    uint32_t bad = groups;
    int64_t *own = dti_alloc_array(par->base, 2 * count, sizeof *own);
    dt_result result = dti_agree_result(par, own ? DT_OK : DT_ERROR_MEMORY);
    for (uint32_t g = 0; g < groups && !result; g++) {
        const dti_units *u = dti_pipe_of(par) ? &dti_pipe_of(par)->stages[g].units : &par->units;
        for (uint32_t i = 0; i < (u->comm ? 2 * u->part_count : 0); i++) {
            const int64_t order = dti_units_order_of(par, g, i / 2, i % 2);
            bad = i < 2 || own[2 * g + i % 2] == order ? bad : g;
            own[2 * g + i % 2] = order;
        }
    }
    if (!result)
        result = dti_ranks_same(par, own, count, &other);
    bad = other < count ? (uint32_t)(other / 2) : bad;
    if (!result)
        result = dti_agree_result(par, bad < groups ? dti_units_differ(par, bad) : DT_OK);
    dti_free(par->base, own);
    return result;
}

static dt_result dti_units_agree(dti_parallel *par) {
    dti_units *u = &par->units;
    if (!dti_units_are(par))
        return DT_OK;
    u->comm = par->shard_comm;
    u->whole = dti_shards(par) < par->job.replicas ||
               dti_units_whole(par, dti_mesh_along(&par->mesh, DTI_MESH_DATA, 0));
    return dti_shards_span(par) ? dti_units_same_order(par, 1) : DT_OK;
}

static void dti_units_free(dti_parallel *par, dti_units *u) {
    DTI_FREE(par->base, u->parts, u->pairs, u->staging);
    for (uint32_t i = 0; i < DTI_UNITS_STAGED; i++)
        dti_free(par->base, u->sends[i].at);
    *u = (dti_units){0};
}

/* Others wait for data that never comes: cancels their operation. */
static void dti_units_leave(dti_units *u) {
    for (uint32_t i = 0; u->comm && i < DTI_UNITS_STAGED; i++)
        dti_works_cancel(u->comm, &u->sends[i]); /* memory is this rank's again */
}
