/* Which position has which member of which line, who speaks to whom, and what the log says. */

static void dti_squad_line_open(dti_parallel *par, uint32_t i) {
    dti_squad *squad = par->squad;
    dti_squad_line *line = &squad->lines[i];
    line->replica = squad->first / squad->size + i;
    const dti_partition grid = {.replicas = squad->data, .shards = par->job.shards};
    dti_partition_shards(&grid, line->replica, &line->first_shard, &line->end_shard);
    const uint32_t begin = DTI_MAX(line->replica * squad->size, squad->first),
                   end = DTI_MIN((line->replica + 1) * squad->size, squad->first + squad->local);
    line->first = begin - squad->first;
    line->count = end - begin;
    line->place = (dti_squad_place){.size = squad->size,
                                    .first = begin % squad->size,
                                    .count = line->count,
                                    .failed = &squad->failed,
                                    .speaking = &squad->speaking};
    for (uint32_t k = 0; k < line->count; k++) {
        dti_squad_member *member = &squad->members[line->first + k];
        member->line = i;
        member->number = (begin + k) % squad->size;
        member->sum.first = line->first_shard;
        member->sum.end = line->end_shard;
    }
}

static dt_result dti_squad_grid_make(dti_parallel *par) {
    dti_squad *squad = par->squad;
    squad->size = par->desc.tensor;
    squad->each = par->desc.slices;
    squad->data = dti_parallel_width(par);
    squad->first = par->firsts[par->rank];
    squad->local = par->firsts[par->rank + 1] - squad->first;
    const uint32_t last = squad->first + squad->local - 1;
    squad->line_count = last / squad->size - squad->first / squad->size + 1;
    squad->members = dti_alloc_array(par->base, squad->local, sizeof *squad->members);
    squad->lines = dti_alloc_array(par->base, squad->line_count, sizeof *squad->lines);
    squad->sums = dti_alloc_array(par->base, squad->size, sizeof *squad->sums);
    if (!squad->members || !squad->lines || !squad->sums)
        return DT_ERROR_MEMORY;
    for (uint32_t i = 0; i < squad->line_count; i++)
        dti_squad_line_open(par, i);
    par->first_shard = squad->lines[0].first_shard;
    par->shards = squad->lines[squad->line_count - 1].end_shard - par->first_shard;
    return DT_OK;
}

static dti_squad_member *dti_squad_member_of(const dti_squad *squad, const dti_squad_line *line,
                                             uint32_t number) {
    const uint32_t at = number - squad->members[line->first].number; /* beyond: elsewhere */
    return at < line->count ? &squad->members[line->first + at] : NULL;
}

static dt_comm_span dti_squad_lines_of(const dti_squad *squad, uint32_t number) {
    dt_comm_span all = {0, 0};
    for (uint32_t i = squad->line_count; i-- > 0;) {
        if (dti_squad_member_of(squad, &squad->lines[i], number))
            all = (dt_comm_span){i, all.count + 1};
    }
    return all;
}

/* ---- groups */

/* Of members of one number. */
static dt_result dti_squad_number_group(dti_parallel *par, uint32_t number, int *ranks) {
    dti_squad *squad = par->squad;
    const int count = dti_squad_ranks(par, number, squad->size, squad->data, ranks);
    const dt_comm_span own = dti_squad_lines_of(squad, number);
    uint32_t first = 0, end = 0;
    if (own.count) {
        first = squad->lines[own.first].first_shard;
        end = squad->lines[own.first + own.count - 1].end_shard;
    }
    return dti_shard_sum_group(par, &squad->sums[number], ranks, count, first, end);
}

static dt_result dti_squad_groups(dti_parallel *par) {
    dti_squad *squad = par->squad;
    uint32_t speakers = 0;
    int *ranks = dti_alloc_array(par->base, par->firsts[par->world], sizeof *ranks);
    dt_result result = dti_agree_result(par, ranks ? DT_OK : DT_ERROR_MEMORY);
    for (uint32_t i = 0; i < squad->data && !result && par->desc.comm; i++) {
        const uint32_t at = i - squad->lines[0].replica; /* beyond: not here */
        result = dti_squad_place_group(
            par, i, squad->size, at < squad->line_count ? &squad->lines[at].place : NULL, ranks);
    }
    for (uint32_t k = 0; k < squad->size && !result && par->desc.comm && par->job.shards > 1; k++)
        result = dti_squad_number_group(par, k, ranks);
    for (uint32_t i = 0; i < squad->line_count; i++)
        speakers += squad->lines[i].place.comm != NULL;
    for (uint32_t i = 0; i < squad->line_count; i++)
        squad->lines[i].place.apart = speakers > 1;
    dti_free(par->base, ranks);
    return result;
}

/* ---- what the log says */

static void dti_squad_log_member(const dti_parallel *par, const dti_squad_member *member) {
    const dti_squad *squad = par->squad;
    const dt_store *store = member->store;
    uint32_t parts = 0;
    char of[32] = "";
    if (squad->data > 1)
        snprintf(of, sizeof of, " of replica %u", squad->lines[member->line].replica);
    for (uint32_t i = 0; i < store->layout.param_count; i++)
        parts += squad->parts[i].of.axis >= 0;
    dti_log(
        par->base, DT_LOG_INFO,
        "tensor: member %u%s on device %u, %s: parts of %u of %u parameters, all of the others; "
        "%llu bytes of them, as many of gradients, %llu of state, %llu of transients",
        member->number, of, (squad->first + (uint32_t)(member - squad->members)) / squad->each,
        store->device->info.id, parts, store->layout.param_count,
        (unsigned long long)dti_arena_bytes(store->layout.elements),
        (unsigned long long)dti_state_bytes(&store->layout, store->moments),
        (unsigned long long)store->transient_bytes);
}

static void dti_squad_log(const dti_parallel *par) {
    const dti_squad *squad = par->squad;
    const dti_code *code = dti_program_code(squad->members[0].runs[0][0]);
    uint64_t elements = 0;
    for (uint32_t i = 0; i < code->meeting_count; i++)
        elements += code->meetings[i].given;
    dti_grid_log(par);
    for (uint32_t m = 0; m < squad->local; m++)
        dti_squad_log_member(par, &squad->members[m]);
    dti_log(par->base, DT_LOG_INFO,
            "tensor: %u meetings of a line's members a micro-batch, of %llu bytes from each",
            code->meeting_count, (unsigned long long)dti_bytes(DT_F32, elements));
}
