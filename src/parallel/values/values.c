/* The one way that values move (values.h). */

static dt_result dti_values_put(dti_parallel *par, uint32_t array, uint64_t at, uint64_t n,
                                const float *values) {
    for (uint32_t i = 0; i < par->job.local; i++)
        DTI_TRY(dti_replica_failed(
            par, i, dti_store_array_write(par->replicas[i].store, array, at, n, values)));
    return DT_OK;
}

static dt_result dti_values_lost(dti_parallel *par, const char *what) {
    return dti_fail(par->base, DT_ERROR_REVOKED,
                    "the job ended at step %llu, and other %s; create a new trainer and continue "
                    "from a checkpoint",
                    (unsigned long long)par->replicas[0].store->steps, what);
}

/* ---- a move under way */

static dt_store *dti_values_host(const dti_values_move *m) {
    return m->par->replicas[0].store;
}

/* Other ranks wait for each other, whatever a device says. */
static bool dti_values_over(const dti_values_move *m) {
    return m->asks ? m->par->lost : m->result != DT_OK;
}

/* A device's error, in the first context. */
static void dti_values_add(dti_values_move *m, const dti_values_place *p, dt_result result) {
    const dti_base *base = p->store ? p->store->base : NULL;
    if (!result || m->result)
        return;
    m->result = base == m->par->base || !base->error[0]
                    ? result
                    : dti_fail(m->par->base, result, "%s %u: %s", p->kind, p->number, base->error);
}

/* If the group ended, its cause is the result. */
static void dti_values_told(dti_values_move *m, dt_result reported) {
    reported = dti_parallel_comm_failed(m->par, reported);
    m->result = reported ? reported : m->result;
}

/* From a rank to the file's, after a word that says whether it could read them. */
static void dti_values_send(dti_values_move *m, float *values, uint64_t n, uint32_t rank,
                            dt_result own) {
    dt_comm *comm = m->par->desc.comm;
    const uint32_t here = m->par->mesh.rank;
    const bool gets = here == m->rank;
    int32_t word = (int32_t)own;
    if (rank == m->rank || (!gets && here != rank))
        return;
    dt_result told = gets ? dt_comm_recv(comm, &word, 1, DT_I32, (int)rank)
                          : dt_comm_send(comm, &word, 1, DT_I32, (int)m->rank);
    if (!told && !word)
        told = gets ? dt_comm_recv(comm, values, n, DT_F32, (int)rank)
                    : dt_comm_send(comm, values, n, DT_F32, (int)m->rank);
    else if (!told && gets && !m->result)
        m->result = dti_fail(m->par->base, (dt_result)word,
                             "rank %u could not read its part of the state", rank);
    dti_values_told(m, told);
}

/* From a rank to all. */
static void dti_values_tell(dti_values_move *m, void *values, uint64_t n, dt_dtype dtype,
                            uint32_t rank) {
    dti_values_told(m, dt_comm_broadcast(m->par->desc.comm, values, n, dtype, (int)rank));
}

/* Where all have a parameter, each reads its own. */
static bool dti_values_asks(const dti_values_move *m) {
    return m->asks && (m->part || !m->map.alike);
}

/* Whether replicas shard the parameter's values. */
static bool dti_values_are_units(const dti_values_move *m) {
    const dt_store *host = dti_values_host(m);
    const dti_node *param = &host->graph->nodes[host->layout.params[m->param].node];
    return m->map.units && dti_param_is_trained(param, m->par->desc.program.params);
}

/* Whether this rank is with the file. */
static bool dti_values_is_here(const dti_values_move *m) {
    return m->rank == DTI_VALUES_ALL || m->rank == m->par->mesh.rank;
}

/* The replica that is read: where others can be asked the first, else the first whose
 * values are all here; mesh.data: none is. */
static uint32_t dti_values_replica(const dti_values_move *m) {
    const dti_mesh *mesh = &m->par->mesh;
    const dt_comm_span own = dti_mesh_own(mesh, mesh->rank);
    const uint32_t together = DTI_MAX(m->map.shards, 1u),
                   each = mesh->stages * mesh->tensor * together,
                   first = (own.first + each - 1) / each;
    const bool here = (first + 1) * each <= own.first + own.count;
    return m->asks ? 0 : here ? first * together : mesh->data;
}

/* The array of a parameter to move, and the room for it. */
static void dti_values_array(dti_values_move *m, uint32_t param, uint32_t array) {
    const dti_tp_part *part = m->map.tp ? &m->map.tp->parts[param] : NULL;
    float *piece = m->piece ? m->piece : m->map.room;
    m->param = param;
    m->array = array;
    m->part = part && part->of.axis >= 0 ? part : NULL;
    m->room = m->part ? m->map.tp->whole : piece ? piece : m->own;
    m->most = m->part ? UINT64_MAX : piece ? DTI_AGREE_PIECE / sizeof(float) : DTI_COUNT(m->own);
}

/* Where it is read: by a rank's own place, if it has one and gets the values. */
static void dti_values_near(dti_values_move *m, uint32_t rank) {
    const dti_mesh *mesh = &m->par->mesh;
    const dt_comm_span own = dti_mesh_own(mesh, rank);
    dti_values_place p;
    for (uint32_t i = own.first; i < own.first + own.count; i++) {
        const dti_mesh_place at = dti_mesh_at(mesh, i);
        if (!m->map.find(m->par, at.data, at.tensor, m->param, &p) || p.rank != rank)
            continue;
        m->replica = at.data;
        m->tensor = at.tensor;
        return;
    }
}

/* false: only the host has it. */
static bool dti_values_found(dti_values_move *m) {
    dti_values_place p;
    m->replica = dti_values_replica(m);
    m->tensor = 0;
    if (m->rank != DTI_VALUES_ALL && m->asks)
        dti_values_near(m, m->rank);
    else if (m->map.alike && !m->part)
        dti_values_near(m, m->par->mesh.rank);
    return m->map.find(m->par, m->replica, m->tensor, m->param, &p);
}

static void dti_values_begin(dti_parallel *par, dti_values_move *m, char *piece) {
    m->par = par;
    m->map = dti_values_map_of(par);
    m->part = NULL;
    m->tensor = 0;
    m->asks = par->desc.comm && !par->lost;
    m->rank = DTI_VALUES_ALL;
    m->averages = false;
    m->snapshot = NULL;
    m->piece = (float *)(void *)piece;
    m->result = DT_OK;
}

static dt_result dti_values_open(dti_parallel *par, dti_values_move *m, char *piece) {
    if (!dti_values_are_made(par))
        return dti_fail(
            par->base, DT_ERROR_REVOKED,
            "the job ended at step %llu, as its programs could not be compiled again, and its "
            "values are lost; create a new trainer and continue from a checkpoint",
            (unsigned long long)par->replicas[0].store->steps);
    dti_values_begin(par, m, piece);
    m->replica = dti_values_replica(m);
    return m->replica == par->mesh.data ? dti_values_lost(par, m->map.lost) : DT_OK;
}

/* ---- from stores */

/* Between a parameter in tp->whole, [outer, axis, inner], and the part that a tensor rank has in
 * tp->part; gather: from it. */
static void dti_values_part_copy(const dti_tp *tp, const dti_tp_part *p, uint32_t tensor,
                                 bool gather) {
    float *part = tp->part;
    int64_t axis = 0;
    for (int i = 0; i < DTI_PARTED_GROUPS; i++)
        axis += p->of.group[i];
    for (int64_t o = 0; o < p->outer; o++) {
        float *whole = tp->whole + o * axis * p->inner;
        for (int i = 0; i < DTI_PARTED_GROUPS; i++) {
            const int64_t run = p->of.group[i] / tp->size * p->inner;
            float *at = whole + tensor * run;
            memcpy(gather ? at : part, gather ? part : at, (size_t)run * sizeof *part);
            part += run;
            whole += p->of.group[i] * p->inner;
        }
    }
}

static dt_result dti_values_read(const dti_values_move *m, const dti_values_place *p,
                                 uint32_t replica, uint32_t tensor, dti_bucket has, float *to) {
    const uint64_t n = dti_bucket_elements(has);
    const bool none = m->averages && !p->store->kept[p->param].averaged;
    if (!m->snapshot)
        return dti_store_array_read(p->store, none ? 0 : m->array, has.begin, n, to);
    memcpy(to, dti_values_snapshot_at(m, p, replica, tensor, has.begin), (size_t)n * sizeof *to);
    return DT_OK;
}

static void dti_values_collect(dti_values_move *m, uint32_t tensor, dti_bucket range, float *to) {
    const bool all = m->map.shards && (m->array || m->map.units);
    const uint32_t first = all ? m->replica / m->map.shards * m->map.shards : m->replica,
                   end = first + (all ? m->map.shards : 1);
    dti_values_place p;
    for (uint32_t d = first; d < end && !dti_values_over(m); d++) {
        m->map.find(m->par, d, tensor, m->param, &p);
        const dti_bucket at = {p.offset + range.begin, p.offset + range.end},
                         has = all ? dti_bucket_overlap(at, p.moments) : at;
        const uint64_t n = dti_bucket_elements(has);
        float *here = to + (has.begin - at.begin);
        const dt_result own = p.store && n ? dti_values_read(m, &p, d, tensor, has, here) : DT_OK;
        dti_values_add(m, &p, own);
        if (m->rank != DTI_VALUES_ALL && m->asks && n)
            dti_values_send(m, here, n, p.rank, own);
        else if (dti_values_asks(m) && n)
            dti_values_tell(m, here, n, DT_F32, p.rank);
    }
}

/* The parts of all tensor ranks. */
static void dti_values_join(dti_values_move *m, uint64_t elements) {
    const dti_tp *tp = m->map.tp;
    for (uint32_t t = 0; t < tp->size && !dti_values_over(m); t++) {
        dti_values_collect(m, t, (dti_bucket){0, elements / tp->size}, tp->part);
        if (dti_values_is_here(m))
            dti_values_part_copy(tp, m->part, t, true);
    }
}

/* Values that no device reads: the host's, without moments. */
static void dti_values_unread(dti_values_move *m, uint64_t at, uint64_t n, bool write) {
    dt_store *all = dti_values_host(m);
    const uint64_t from = all->layout.params[m->param].offset + at;
    dt_result result = DT_OK;
    if (m->snapshot && write)
        return; /* no step changes it */
    if (m->array && !write)
        memset(m->room, 0, (size_t)n * sizeof *m->room);
    else if (!m->array)
        result = write ? dti_store_array_write(all, 0, from, n, m->room)
                       : dti_store_array_read(all, 0, from, n, m->room);
    m->result = m->result ? m->result : result;
}

/* An array, to the file. */
static void dti_values_out(dti_values_move *m, const dti_values_file *f) {
    const dti_param *param = &dti_values_host(m)->layout.params[m->param];
    const uint64_t elements = param->elements;
    const bool found = dti_values_found(m), here = dti_values_is_here(m);
    uint64_t n;
    m->averages = f->averages && found && param->average;
    m->array = m->averages ? param->average : m->array;
    for (uint64_t at = 0; at < elements && !dti_values_over(m); at += n) {
        n = DTI_MIN(elements - at, m->most);
        if (!found && here)
            dti_values_unread(m, at, n, false);
        else if (found && m->part)
            dti_values_join(m, n);
        else if (found)
            dti_values_collect(m, m->tensor, (dti_bucket){at, at + n}, m->room);
        if (here && !m->result)
            m->result = f->move(f->user, m->param, m->array, at, n, m->room);
    }
}

/* ---- to stores */

/* The next place here that has the parameter; *i counts replicas here and their tensor ranks. */
static bool dti_values_next(const dti_values_move *m, uint32_t *i, dti_values_place *p) {
    const dti_mesh *mesh = &m->par->mesh;
    const dt_comm_span here = dti_mesh_replicas(mesh, mesh->rank);
    for (; *i < here.count * mesh->tensor && !m->result; ++*i) {
        if (m->map.find(m->par, here.first + *i / mesh->tensor, *i % mesh->tensor, m->param, p) &&
            p->store)
            return true;
    }
    return false;
}

/* A tensor rank's part of elements [0, n) of a piece that begins at `at`. */
static dti_bucket dti_values_wants(const dti_values_move *m, const dti_values_place *p, uint64_t at,
                                   uint64_t n) {
    const bool shared = !m->part && m->map.shards && (m->array || dti_values_are_units(m));
    const dti_bucket all = {p->offset + at, p->offset + at + n};
    const dti_bucket has = shared ? dti_bucket_overlap(all, p->moments) : all;
    return (dti_bucket){has.begin - all.begin, has.end - all.begin};
}

/* Whether this rank has some values of a file that each rank reads by itself. */
static bool dti_values_reads(const dti_values_move *m, bool found, dti_bucket range) {
    dti_values_place p;
    bool any = !found && !m->array;
    for (uint32_t i = 0; dti_values_next(m, &i, &p) && !any; i++) {
        any = dti_bucket_elements(dti_values_wants(m, &p, range.begin, dti_bucket_elements(range)));
    }
    return any;
}

/* To place `i` here. */
static dt_result dti_values_write(const dti_values_move *m, const dti_values_place *p, uint32_t i,
                                  uint64_t at, uint64_t n, const float *values) {
    const dti_mesh *mesh = &m->par->mesh;
    if (!m->snapshot)
        return dti_store_array_write(p->store, m->array, at, n, values);
    const dti_bucket has =
        dti_bucket_overlap(dti_values_snapshot_has(m, p), (dti_bucket){at, at + n});
    if (has.begin < has.end)
        memcpy(dti_values_snapshot_at(m, p,
                                      dti_mesh_replicas(mesh, mesh->rank).first + i / mesh->tensor,
                                      i % mesh->tensor, has.begin),
               values + (has.begin - at), (size_t)dti_bucket_elements(has) * sizeof *values);
    return DT_OK;
}

/* To the places here, each of which takes what it has. */
static void dti_values_take_piece(dti_values_move *m, uint64_t at, uint64_t n) {
    const dti_tp *tp = m->map.tp;
    const float *from = m->part ? tp->part : m->room;
    dti_values_place p;
    n = m->part ? n / tp->size : n;
    for (uint32_t i = 0; dti_values_next(m, &i, &p); i++) {
        if (m->part)
            dti_values_part_copy(tp, m->part, i % m->par->mesh.tensor, false);
        dti_values_add(m, &p, dti_values_write(m, &p, i, p.offset + at, n, from));
    }
}

/* A piece from the file's rank to each that has some of it. Returns how many elements that is on
 * the network; `send`: it is done. A rank's places that have the same come one after the other. */
static uint64_t dti_values_pass(dti_values_move *m, uint64_t at, uint64_t n, bool send) {
    const dti_mesh *mesh = &m->par->mesh;
    dt_comm *comm = m->par->desc.comm;
    dti_bucket before = {0, 0};
    uint32_t last = m->rank;
    uint64_t all = 0;
    dti_values_place p;
    for (uint32_t i = 0; i < mesh->data * mesh->tensor && !m->par->lost; i++) {
        if (!m->map.find(m->par, i / mesh->tensor, i % mesh->tensor, m->param, &p))
            continue;
        const dti_bucket has = dti_values_wants(m, &p, at, n);
        const uint64_t count = dti_bucket_elements(has);
        const bool again = p.rank == last && has.begin == before.begin && has.end == before.end;
        last = p.rank;
        before = has;
        if (!count || again || p.rank == m->rank)
            continue;
        all += count;
        if (send && mesh->rank == m->rank)
            dti_values_told(m, dt_comm_send(comm, m->room + has.begin, count, DT_F32, (int)p.rank));
        else if (send && mesh->rank == p.rank)
            dti_values_told(m,
                            dt_comm_recv(comm, m->room + has.begin, count, DT_F32, (int)m->rank));
    }
    return all;
}

/* An array, from the file. */
static void dti_values_in(dti_values_move *m, const dti_values_file *f) {
    const uint64_t elements = dti_values_host(m)->layout.params[m->param].elements;
    const bool all = m->rank == DTI_VALUES_ALL, here = dti_values_is_here(m);
    dti_values_place p;
    const bool found = m->map.find(m->par, 0, 0, m->param, &p);
    uint64_t n;
    for (uint64_t at = 0; at < elements && !dti_values_over(m); at += n) {
        n = DTI_MIN(elements - at, m->most);
        const bool reads = here && (!all || dti_values_reads(m, found, (dti_bucket){at, at + n}));
        if (reads && !m->result)
            m->result = f->move(f->user, m->param, m->array, at, n, m->room);
        if (m->asks && !all && (!found || dti_values_pass(m, at, n, false) > 2 * n))
            dti_values_tell(m, m->room, n, DT_F32, m->rank);
        else if (m->asks && !all)
            dti_values_pass(m, at, n, true);
        if (m->result || (all && !reads))
            continue;
        if (found)
            dti_values_take_piece(m, at, n);
        else
            dti_values_unread(m, at, n, true);
    }
}

/* ---- files */

/* All arrays, in the order of files. */
static void dti_values_walk(dti_values_move *m, const dti_values_file *f, uint32_t arrays,
                            bool load) {
    const uint32_t params = dti_values_host(m)->layout.param_count;
    for (uint32_t array = 0; array < arrays; array++) {
        for (uint32_t i = 0; i < params && !dti_values_over(m); i++) {
            dti_values_array(m, i, array);
            m->rank = !m->asks ? m->par->mesh.rank : f->rank ? f->rank(f->user, i, array) : 0;
            if (load)
                dti_values_in(m, f);
            else
                dti_values_out(m, f);
        }
    }
}

static uint32_t dti_values_rank_all(void *user, uint32_t param, uint32_t array) {
    return DTI_VALUES_ALL;
}

static dt_result dti_values_save(dti_parallel *par, const dti_values_file *f, uint32_t arrays,
                                 char *piece) {
    dti_values_move m;
    DTI_TRY(dti_values_open(par, &m, piece));
    m.snapshot = f->snapshot;
    dti_values_walk(&m, f, arrays, false);
    return m.result;
}

static dt_result dti_values_load(dti_parallel *par, const dti_values_file *f, uint32_t arrays,
                                 char *piece) {
    dti_values_move m;
    dti_values_begin(par, &m, piece);
    m.snapshot = f->snapshot;
    if (!m.snapshot) {
        dti_full_old(par);
        par->replicas[0].store->written = false;
    }
    dti_values_walk(&m, f, arrays, true);
    return m.result;
}

/* ---- counts of steps, and since when there is an average */

static dt_result dti_values_counts(dti_parallel *par, uint32_t *counts) {
    const uint32_t n = par->replicas[0].store->layout.param_count;
    dti_values_move m;
    dti_values_place p;
    DTI_TRY(dti_values_open(par, &m, NULL));
    for (uint32_t i = 0; i < n; i++) {
        counts[i] = 0;
        dti_values_array(&m, i, 0);
        m.replica = dti_values_replica(&m);
        if (m.map.find(par, m.replica, 0, i, &p) && p.store)
            dti_values_add(&m, &p, dti_store_counts(p.store, p.param, 1, &counts[i], false));
    }
    if (m.asks)
        dti_values_told(&m,
                        dt_comm_all_reduce(par->desc.comm, counts, counts, n, DT_I32, DT_COMM_SUM));
    return dti_agree_result(par, m.result);
}

static void dti_values_count(dti_values_move *m, uint32_t count, const dti_kept *average) {
    dti_values_place p;
    for (uint32_t i = 0; dti_values_next(m, &i, &p); i++) {
        dti_values_add(m, &p, dti_store_counts(p.store, p.param, 1, &count, true));
        p.store->kept[p.param].averaged = average->averaged;
        p.store->kept[p.param].from = average->from;
    }
}

static dt_result dti_values_counted(dti_parallel *par, const uint32_t *counts) {
    dt_store *all = par->replicas[0].store;
    dti_values_move m;
    dti_values_begin(par, &m, NULL);
    for (uint32_t i = 0; i < par->job.local; i++)
        dti_agree_averages(par->replicas[i].store);
    for (uint32_t i = 0; i < all->layout.param_count; i++) {
        dti_values_array(&m, i, 0);
        dti_values_count(&m, counts ? counts[i] : 0, &all->kept[i]);
    }
    return m.result ? m.result : dti_values_given(par);
}

/* ---- the host's store */

typedef struct dti_values_full {
    dti_parallel *par;
    uint32_t into; /* 1 + the array that it becomes; 0: the same */
} dti_values_full;

static dt_result dti_values_full_write(void *user, uint32_t param, uint32_t array, uint64_t at,
                                       uint64_t n, float *values) {
    const dti_values_full *f = user;
    const dti_param *p = &f->par->replicas[0].store->layout.params[param];
    return dti_values_put(f->par, f->into ? f->into - 1 : array, p->offset + at, n, values);
}

static dt_result dti_values_full_read(void *user, uint32_t param, uint32_t array, uint64_t at,
                                      uint64_t n, float *values) {
    dt_store *all = ((dti_values_full *)user)->par->replicas[0].store;
    return dti_store_array_read(all, array, all->layout.params[param].offset + at, n, values);
}

static void dti_values_gather_array(dti_values_move *m, uint32_t param, uint32_t array,
                                    uint32_t into) {
    dti_values_full full = {m->par, into + 1};
    const dti_values_file f = {.user = &full, .move = dti_values_full_write};
    dti_values_array(m, param, array);
    dti_values_out(m, &f);
}

/* The facts of a parameter that all ranks learn. */
static void dti_values_gather_count(dti_values_move *m) {
    dt_store *all = dti_values_host(m);
    uint64_t kept[3] = {0};
    uint32_t count = 0;
    dti_values_place p;
    if (!dti_values_found(m))
        return;
    m->map.find(m->par, m->replica, m->tensor, m->param, &p);
    if (p.store) {
        dti_values_add(m, &p, dti_store_counts(p.store, p.param, 1, &count, false));
        kept[0] = count;
        kept[1] = p.store->kept[p.param].averaged;
        kept[2] = p.store->kept[p.param].from;
    }
    if (dti_values_asks(m) && !dti_values_over(m))
        dti_values_tell(m, kept, 3, DT_I64, p.rank);
    count = (uint32_t)kept[0];
    if (m->result)
        return;
    m->result = dti_store_counts(all, m->param, 1, &count, true);
    all->kept[m->param].averaged = kept[1];
    all->kept[m->param].from = kept[2];
}

static dt_result dti_values_gather(dti_parallel *par) {
    const dt_store *all = par->replicas[0].store;
    dti_values_move m;
    const dt_result lost = dti_values_open(par, &m, NULL);
    for (uint32_t i = 0; i < all->layout.param_count && !lost && !dti_values_over(&m); i++) {
        for (uint32_t array = 0; array <= all->moments; array++)
            dti_values_gather_array(&m, i, array, array);
        dti_values_gather_count(&m);
    }
    /* if one rank could not give it, no rank has it */
    return lost ? lost : dti_agree_result(par, m.result);
}

static dt_result dti_values_scatter(dti_parallel *par) {
    dt_store *all = par->replicas[0].store;
    dti_values_full full = {.par = par};
    const dti_values_file f = {.user = &full, .move = dti_values_full_read};
    dti_values_move m = {.par = par, .map = dti_values_map_of(par), .rank = DTI_VALUES_ALL};
    for (uint32_t i = 0; i < all->layout.param_count && !m.result; i++) {
        uint32_t count = 0;
        for (uint32_t array = 0; array <= all->moments; array++) {
            dti_values_array(&m, i, array);
            dti_values_in(&m, &f);
        }
        if (!m.result)
            m.result = dti_store_counts(all, i, 1, &count, false);
        dti_values_count(&m, count, &all->kept[i]);
    }
    return m.result ? m.result : dti_values_given(par);
}

/* ---- which rank has most */

static uint32_t dti_values_most(const dti_parallel *par, uint32_t param, uint32_t array,
                                uint32_t turn) {
    const dti_values_map map = dti_values_map_of(par);
    const dti_mesh *mesh = &par->mesh;
    const dti_param *of = &par->replicas[0].store->layout.params[param];
    const bool shared = map.shards && (array || map.units);
    const uint32_t copies = shared ? mesh->data / map.shards : mesh->data,
                   group = shared ? map.shards : 1, first = turn % copies * group,
                   tensor = turn / copies % mesh->tensor;
    uint64_t most = 0;
    uint32_t best = 0;
    dti_values_place p;
    for (uint32_t d = first; d < first + group; d++) {
        if (!map.find(par, d, tensor, param, &p))
            return turn % mesh->world;
        const dti_bucket at = {p.offset, p.offset + of->elements},
                         has = shared ? dti_bucket_overlap(at, p.moments) : at;
        const uint64_t n = dti_bucket_elements(has);
        best = n > most ? p.rank : best;
        most = DTI_MAX(most, n);
    }
    return best;
}
