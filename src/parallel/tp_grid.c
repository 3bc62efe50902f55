/* Which position has which tensor rank of which tensor group, which ranks communicate, and the log
 * of it. */

static void dti_tp_group_open(dti_parallel *par, uint32_t i) {
    dti_tp *tp = par->tp;
    dti_tp_group *tp_group = &tp->groups[i];
    tp_group->replica = tp->first / tp->size + i;
    const dti_partition grid = {.replicas = tp->data, .batch_slices = par->job.batch_slices};
    dti_partition_batch_slices(&grid, tp_group->replica, &tp_group->first_batch_slice,
                               &tp_group->end_batch_slice);
    const uint32_t begin = DTI_MAX(tp_group->replica * tp->size, tp->first),
                   end = DTI_MIN((tp_group->replica + 1) * tp->size, tp->first + tp->local);
    tp_group->first = begin - tp->first;
    tp_group->count = end - begin;
    tp_group->place = (dti_tp_place){.size = tp->size,
                                     .first = begin % tp->size,
                                     .count = tp_group->count,
                                     .failed = &tp->failed,
                                     .speaking = &tp->speaking};
    for (uint32_t k = 0; k < tp_group->count; k++) {
        dti_tp_rank *tp_rank = &tp->ranks[tp_group->first + k];
        tp_rank->group = i;
        tp_rank->number = (begin + k) % tp->size;
        tp_rank->sum.first = tp_group->first_batch_slice;
        tp_rank->sum.end = tp_group->end_batch_slice;
    }
}

static dt_result dti_tp_grid_make(dti_parallel *par) {
    dti_tp *tp = par->tp;
    tp->size = par->desc.tensor;
    tp->each = par->desc.slices;
    tp->data = dti_parallel_width(par);
    tp->first = par->firsts[par->rank];
    tp->local = par->firsts[par->rank + 1] - tp->first;
    const uint32_t last = tp->first + tp->local - 1;
    tp->group_count = last / tp->size - tp->first / tp->size + 1;
    tp->ranks = dti_alloc_array(par->base, tp->local, sizeof *tp->ranks);
    tp->groups = dti_alloc_array(par->base, tp->group_count, sizeof *tp->groups);
    tp->sums = dti_alloc_array(par->base, tp->size, sizeof *tp->sums);
    if (!tp->ranks || !tp->groups || !tp->sums)
        return DT_ERROR_MEMORY;
    for (uint32_t i = 0; i < tp->group_count; i++)
        dti_tp_group_open(par, i);
    par->first_batch_slice = tp->groups[0].first_batch_slice;
    par->batch_slices = tp->groups[tp->group_count - 1].end_batch_slice - par->first_batch_slice;
    return DT_OK;
}

static dti_tp_rank *dti_tp_rank_of(const dti_tp *tp, const dti_tp_group *tp_group,
                                   uint32_t number) {
    const uint32_t at = number - tp->ranks[tp_group->first].number; /* beyond: elsewhere */
    return at < tp_group->count ? &tp->ranks[tp_group->first + at] : NULL;
}

static dt_comm_span dti_tp_groups_of(const dti_tp *tp, uint32_t number) {
    dt_comm_span all = {0, 0};
    for (uint32_t i = tp->group_count; i-- > 0;) {
        if (dti_tp_rank_of(tp, &tp->groups[i], number))
            all = (dt_comm_span){i, all.count + 1};
    }
    return all;
}

/* ---- groups */

/* Of tensor ranks of one number. */
static dt_result dti_tp_number_group(dti_parallel *par, uint32_t number, int *ranks) {
    dti_tp *tp = par->tp;
    const int count = dti_tp_ranks(par, number, tp->size, tp->data, ranks);
    const dt_comm_span own = dti_tp_groups_of(tp, number);
    uint32_t first = 0, end = 0;
    if (own.count) {
        first = tp->groups[own.first].first_batch_slice;
        end = tp->groups[own.first + own.count - 1].end_batch_slice;
    }
    return dti_batch_slice_sum_group(par, &tp->sums[number], ranks, count, first, end);
}

static dt_result dti_tp_groups(dti_parallel *par) {
    dti_tp *tp = par->tp;
    uint32_t speakers = 0;
    int *ranks = dti_alloc_array(par->base, par->firsts[par->world], sizeof *ranks);
    dt_result result = dti_agree_result(par, ranks ? DT_OK : DT_ERROR_MEMORY);
    for (uint32_t i = 0; i < tp->data && !result && par->desc.comm; i++) {
        const uint32_t at = i - tp->groups[0].replica; /* beyond: not here */
        result = dti_tp_place_group(par, i, tp->size,
                                    at < tp->group_count ? &tp->groups[at].place : NULL, ranks);
    }
    for (uint32_t k = 0; k < tp->size && !result && par->desc.comm && par->job.batch_slices > 1;
         k++)
        result = dti_tp_number_group(par, k, ranks);
    for (uint32_t i = 0; i < tp->group_count; i++)
        speakers += tp->groups[i].place.comm != NULL;
    for (uint32_t i = 0; i < tp->group_count; i++)
        tp->groups[i].place.apart = speakers > 1;
    dti_free(par->base, ranks);
    return result;
}

/* ---- what the log says */

static void dti_tp_log_rank(const dti_parallel *par, const dti_tp_rank *tp_rank) {
    const dti_tp *tp = par->tp;
    const dt_store *store = tp_rank->store;
    uint32_t parts = 0;
    char of[32] = "";
    if (tp->data > 1)
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
    dti_grid_log(par);
    for (uint32_t m = 0; m < tp->local; m++)
        dti_tp_log_rank(par, &tp->ranks[m]);
    dti_log(par->base, DT_LOG_INFO,
            "tensor: %u collectives of a tensor group a micro-batch, %llu bytes from each rank",
            code->sync_point_count, (unsigned long long)dti_bytes(DT_F32, elements));
}
