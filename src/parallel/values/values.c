/* The one way that values move. A gather goes parameter by parameter, in the model's order, which
 * is the same on all ranks: array by array, piece by piece, each read where it lies and told to
 * all. */

static dt_result dti_values_put(dti_parallel *par, uint32_t array, uint64_t at, uint64_t n,
                                const float *values) {
    for (uint32_t i = 0; i < par->job.local; i++)
        DTI_TRY(dti_replica_failed(
            par, i, dti_store_array_write(par->replicas[i].store, array, at, n, values)));
    return DT_OK;
}

static dt_result dti_values_lost(dti_parallel *par, const char *what) {
    return dti_fail(par->base, DT_ERROR_REVOKED,
                    "the job ended at step %llu, and other %s: create a new trainer and go on "
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

/* What a device of a place says, in the first context. */
static void dti_values_add(dti_values_move *m, const dti_values_place *p, dt_result result) {
    const dti_base *base = p->store ? p->store->base : NULL;
    if (!result || m->result)
        return;
    m->result = base == m->par->base || !base->error[0]
                    ? result
                    : dti_fail(m->par->base, result, "%s %u: %s", p->kind, p->number, base->error);
}

/* What ends the group is the result. */
static void dti_values_told(dti_values_move *m, dt_result told) {
    told = dti_parallel_comm_failed(m->par, told);
    m->result = told ? told : m->result;
}

/* From a rank to the first, after a word that says whether it could read them. */
static void dti_values_send(dti_values_move *m, float *values, uint64_t n, uint32_t rank,
                            dt_result own) {
    dt_comm *comm = m->par->desc.comm;
    const uint32_t here = m->par->mesh.rank;
    int32_t word = (int32_t)own;
    dt_result told = DT_OK;
    if (rank == 0 || (here != 0 && here != rank))
        return;
    told = here ? dt_comm_send(comm, &word, 1, DT_I32, 0)
                : dt_comm_recv(comm, &word, 1, DT_I32, (int)rank);
    if (!told && !word)
        told = here ? dt_comm_send(comm, values, n, DT_F32, 0)
                    : dt_comm_recv(comm, values, n, DT_F32, (int)rank);
    else if (!told && !here && !m->result)
        m->result = dti_fail(m->par->base, (dt_result)word,
                             "rank %u could not read its shard of the state", rank);
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

/* Which parameter is moved, and with what room. */
static void dti_values_param(dti_values_move *m, uint32_t param) {
    const dti_tp_part *part = m->map.tp ? &m->map.tp->parts[param] : NULL;
    m->param = param;
    m->part = part && part->of.axis >= 0 ? part : NULL;
    m->room = m->part ? m->map.tp->whole : m->map.room ? m->map.room : m->own;
    m->most = m->part       ? UINT64_MAX
              : m->map.room ? DTI_AGREE_PIECE / sizeof(float)
                            : DTI_COUNT(m->own);
}

/* Where it is read. false: only the host has it. */
static bool dti_values_found(dti_values_move *m, dti_values_place *p) {
    const dti_mesh *mesh = &m->par->mesh;
    const dti_mesh_place here = dti_mesh_at(mesh, dti_mesh_own(mesh, mesh->rank).first);
    const bool own = m->map.alike && !m->part;
    m->replica = own ? here.data : dti_values_replica(m);
    m->tensor = own ? here.tensor : 0;
    return m->map.find(m->par, m->replica, m->tensor, m->param, p);
}

static dt_result dti_values_open(dti_parallel *par, dti_values_move *m) {
    m->par = par;
    m->map = dti_values_map_of(par);
    m->part = NULL;
    m->tensor = 0;
    m->asks = par->desc.comm && !par->lost;
    m->first = false;
    m->result = DT_OK;
    m->replica = dti_values_replica(m);
    return m->replica == par->mesh.data ? dti_values_lost(par, m->map.lost) : DT_OK;
}

/* ---- gather */

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
        const dt_result own =
            p.store && n ? dti_store_array_read(p.store, m->array, has.begin, n, here) : DT_OK;
        dti_values_add(m, &p, own);
        if (m->first && m->asks && n)
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
        dti_values_part_copy(tp, m->part, t, true);
    }
}

static void dti_values_gather_array(dti_values_move *m) {
    const dti_param *all = &dti_values_host(m)->layout.params[m->param];
    uint64_t n;
    for (uint64_t at = 0; at < all->elements && !dti_values_over(m); at += n) {
        n = DTI_MIN(all->elements - at, m->most);
        if (m->part)
            dti_values_join(m, n);
        else
            dti_values_collect(m, m->tensor, (dti_bucket){at, at + n}, m->room);
        if (!m->result)
            m->result = dti_values_put(m->par, m->into, all->offset + at, n, m->room);
    }
}

/* The count of steps, and since when there is an average. */
static void dti_values_gather_count(dti_values_move *m, const dti_values_place *p) {
    dt_store *all = dti_values_host(m);
    uint64_t kept[3] = {0};
    uint32_t count = 0;
    if (p->store) {
        dti_values_add(m, p, dti_store_counts(p->store, p->param, 1, &count, false));
        kept[0] = count;
        kept[1] = p->store->kept[p->param].averaged;
        kept[2] = p->store->kept[p->param].from;
    }
    if (dti_values_asks(m) && !dti_values_over(m))
        dti_values_tell(m, kept, 3, DT_I64, p->rank);
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
    dti_values_place p;
    const dt_result lost = dti_values_open(par, &m);
    for (uint32_t i = 0; i < all->layout.param_count && !lost && !dti_values_over(&m); i++) {
        dti_values_param(&m, i);
        if (!dti_values_found(&m, &p))
            continue;
        for (m.array = m.into = 0; m.array <= all->moments; m.into = ++m.array)
            dti_values_gather_array(&m);
        dti_values_gather_count(&m, &p);
    }
    /* what one rank could not give none has */
    return lost ? lost : dti_agree_result(par, m.result);
}

/* ---- scatter */

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

static void dti_values_scatter_array(dti_values_move *m) {
    const dti_param *all = &dti_values_host(m)->layout.params[m->param];
    dti_values_place p;
    uint64_t n;
    for (uint64_t at = 0; at < all->elements && !m->result; at += n) {
        n = DTI_MIN(all->elements - at, m->most);
        m->result =
            dti_store_array_read(dti_values_host(m), m->array, all->offset + at, n, m->room);
        for (uint32_t i = 0; dti_values_next(m, &i, &p); i++) {
            if (m->part)
                dti_values_part_copy(m->map.tp, m->part, i % m->par->mesh.tensor, false);
            dti_values_add(m, &p,
                           dti_store_array_write(p.store, m->array, p.offset + at,
                                                 m->part ? n / m->map.tp->size : n,
                                                 m->part ? m->map.tp->part : m->room));
        }
    }
}

static void dti_values_scatter_count(dti_values_move *m) {
    dt_store *all = dti_values_host(m);
    dti_values_place p;
    uint32_t count = 0;
    if (!m->result)
        m->result = dti_store_counts(all, m->param, 1, &count, false);
    for (uint32_t i = 0; dti_values_next(m, &i, &p); i++) {
        dti_values_add(m, &p, dti_store_counts(p.store, p.param, 1, &count, true));
        p.store->kept[p.param].averaged = all->kept[m->param].averaged;
        p.store->kept[p.param].from = all->kept[m->param].from;
    }
}

static dt_result dti_values_scatter(dti_parallel *par) {
    const dt_store *all = par->replicas[0].store;
    dti_values_move m = {.par = par, .map = dti_values_map_of(par)};
    for (uint32_t i = 0; i < all->layout.param_count && !m.result; i++) {
        dti_values_param(&m, i);
        for (m.array = 0; m.array <= all->moments; m.array++)
            dti_values_scatter_array(&m);
        dti_values_scatter_count(&m);
    }
    return m.result ? m.result : dti_values_given(par);
}
