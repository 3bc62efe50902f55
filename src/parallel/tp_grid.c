/* Which position has which tensor rank of which tensor group, which ranks communicate, and the log
 * of it. */

static void dti_tp_group_open(dti_tp *tp, uint32_t i) {
    const dti_mesh *mesh = tp->mesh;
    dti_tp_group *tp_group = &tp->groups[i];
    tp_group->replica = dti_mesh_replicas(mesh, mesh->rank).first + i;
    const uint32_t begin = dti_mesh_position(mesh, (dti_mesh_place){.data = tp_group->replica});
    tp_group->place = (dti_tp_place){.failed = &tp->failed, .speaking = &tp->speaking};
    dti_tp_place_open(mesh, &tp_group->place, begin);
    tp_group->first = begin + tp_group->place.first - tp->first;
    tp_group->count = tp_group->place.count;
    for (uint32_t k = 0; k < tp_group->count; k++) {
        dti_tp_rank *tp_rank = &tp->ranks[tp_group->first + k];
        tp_rank->group = i;
        tp_rank->number = tp_group->place.first + k;
    }
}

static dt_result dti_tp_grid_make(dti_parallel *par) {
    dti_tp *tp = par->tp;
    const dti_mesh *mesh = &par->mesh;
    const dt_comm_span own = dti_mesh_own(mesh, mesh->rank);
    tp->mesh = mesh;
    tp->size = mesh->tensor;
    tp->each = par->desc.slices;
    tp->first = own.first;
    tp->local = own.count;
    tp->group_count = dti_mesh_replicas(mesh, mesh->rank).count;
    tp->ranks = dti_alloc_array(par->base, tp->local, sizeof *tp->ranks);
    tp->groups = dti_alloc_array(par->base, tp->group_count, sizeof *tp->groups);
    tp->sums = dti_alloc_array(par->base, tp->size, sizeof *tp->sums);
    if (!tp->ranks || !tp->groups || !tp->sums)
        return DT_ERROR_MEMORY;
    for (uint32_t i = 0; i < tp->group_count; i++)
        dti_tp_group_open(tp, i);
    dti_mesh_cut(par);
    return DT_OK;
}

static dti_tp_rank *dti_tp_rank_of(const dti_tp *tp, const dti_tp_group *tp_group,
                                   uint32_t number) {
    const uint32_t at = number - tp_group->place.first; /* beyond: elsewhere */
    return at < tp_group->count ? &tp->ranks[tp_group->first + at] : NULL;
}

static dt_comm_span dti_tp_groups_of(const dti_tp *tp, uint32_t number) {
    const dti_mesh *mesh = tp->mesh;
    const dt_comm_span here =
        dti_mesh_share(mesh, dti_mesh_along(mesh, DTI_MESH_DATA, number), mesh->rank);
    return (dt_comm_span){here.first - tp->groups[0].replica, here.count};
}

/* ---- groups */

static dt_result dti_tp_groups(dti_parallel *par) {
    dti_tp *tp = par->tp;
    uint32_t speakers = 0;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < tp->mesh->data && !result; i++) {
        const uint32_t at = i - tp->groups[0].replica; /* beyond: not here */
        result = dti_tp_place_group(par, i * tp->size,
                                    at < tp->group_count ? &tp->groups[at].place : NULL);
    }
    for (uint32_t k = 0; k < tp->size && !result && par->job.batch_slices > 1; k++)
        result = dti_mesh_group(par, DTI_MESH_DATA, k, &tp->sums[k].comm);
    for (uint32_t i = 0; i < tp->group_count; i++)
        speakers += tp->groups[i].place.comm != NULL;
    for (uint32_t i = 0; i < tp->group_count; i++)
        tp->groups[i].place.apart = speakers > 1;
    return result;
}

/* ---- what the log says */

static void dti_tp_log_rank(const dti_parallel *par, const dti_tp_rank *tp_rank) {
    const dti_tp *tp = par->tp;
    const dt_store *store = tp_rank->store;
    uint32_t parts = 0;
    char of[32] = "";
    if (tp->mesh->data > 1)
        snprintf(of, sizeof of, " of replica %u", tp->groups[tp_rank->group].replica);
    for (uint32_t i = 0; i < store->layout.param_count; i++)
        parts += tp->parts[i].of.axis >= 0;
    dti_log(par->base, DT_LOG_INFO,
            "tensor: tensor rank %u%s on device %u, %s: %u of %u parameters split, the others "
            "replicated; %llu bytes of parameters, the same of gradients, %llu of state, %llu of "
            "transients",
            tp_rank->number, of, (tp->first + (uint32_t)(tp_rank - tp->ranks)) / tp->each,
            store->device->info.id, parts, store->layout.param_count,
            (unsigned long long)dti_arena_bytes(store->layout.elements),
            (unsigned long long)dti_state_bytes(&store->layout, store->moments),
            (unsigned long long)store->transient_bytes);
}

static void dti_tp_log(const dti_parallel *par) {
    const dti_tp *tp = par->tp;
    const dti_code *code = dti_program_code(tp->ranks[0].runs[0][0]);
    uint64_t elements = 0;
    for (uint32_t i = 0; i < code->sync_point_count; i++)
        elements += code->sync_points[i].given;
    dti_mesh_log(par);
    for (uint32_t m = 0; m < tp->local; m++)
        dti_tp_log_rank(par, &tp->ranks[m]);
    dti_log(par->base, DT_LOG_INFO,
            "tensor: %u collectives of a tensor group a micro-batch, %llu bytes from each rank",
            code->sync_point_count, (unsigned long long)dti_bytes(DT_F32, elements));
}
