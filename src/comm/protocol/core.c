/* Makes and ends a core and its groups. All memory of a run is allocated here and when operations
 * are posted, on the application's thread. */

_Static_assert(sizeof(dti_frame) <= 64, "early data keeps its frame in one unit");
_Static_assert(DTI_LINK_BUFFER >= DTI_HEADER_BYTES + DTI_CONTROL_BYTES_MAX, "a control frame fits");
_Static_assert(DTI_ROSTER_FIXED + 2 + DTI_ADDRESS_BYTES <= DTI_CONTROL_BYTES_MAX,
               "a roster moves on");
_Static_assert(DTI_BACKLOG_FRAMES * sizeof(dti_sent_frame) + DTI_BACKLOG_UNITS * 64 <= 40 << 10,
               "as docs/distributed/collectives.md#memory says");
_Static_assert(sizeof((dti_core *)0)->text + 8 <= DTI_CONTROL_BYTES_MAX, "a cause fits");

static void dti_group_free(dti_core *core, dti_rank_group *g) {
    dti_rank_group **at = &core->groups;
    while (*at && *at != g)
        at = &(*at)->following;
    if (*at)
        *at = g->following;
    for (uint32_t i = core->flights_made; i-- > 0;) {
        dti_flight *f = core->flights[i];
        if (f->group != g)
            continue;
        if (f->id && !f->finished) {
            dti_core_suspect(core, DT_ERROR_CANCELLED, core->set.rank,
                             "rank %u destroyed group %u while %s number %llu was in progress",
                             core->set.rank, g->id, dti_kind_name(f->op.kind),
                             (unsigned long long)f->post.sequence);
            dti_flight_finish(core, f, DT_ERROR_CANCELLED);
        }
        if (f->id) /* the application cannot ask for it any more */
            dti_flight_release(core, f);
        f->group = NULL;
        dti_schedule_clear(&f->schedule);
    }
    DTI_FREE(core->base, g->ranks, g->place_of, g->next_send, g->next_recv, g);
}

/* ranks: [size] world ranks, ascending; NULL = all. NULL after dti_fail. */
static dti_rank_group *dti_group_new(dti_core *core, uint32_t id, const uint32_t *ranks,
                                     uint32_t size) {
    dti_rank_group *g = dti_alloc(core->base, sizeof *g);
    if (!g)
        return NULL;
    g->id = id;
    g->size = size;
    g->ranks = dti_alloc_array(core->base, size, sizeof *g->ranks);
    g->place_of = dti_alloc_array(core->base, core->set.size, sizeof *g->place_of);
    g->next_send = dti_alloc_array(core->base, size, sizeof *g->next_send);
    g->next_recv = dti_alloc_array(core->base, size, sizeof *g->next_recv);
    g->following = core->groups;
    core->groups = g;
    if (!g->ranks || !g->place_of || !g->next_send || !g->next_recv) {
        dti_group_free(core, g);
        return NULL;
    }
    for (uint32_t r = 0; r < core->set.size; r++)
        g->place_of[r] = DTI_NOBODY;
    for (uint32_t i = 0; i < size; i++) {
        g->ranks[i] = ranks ? ranks[i] : i;
        g->place_of[g->ranks[i]] = i;
    }
    for (uint32_t i = 0; i < DTI_HISTORY; i++)
        g->history[i].sequence = UINT64_MAX;
    g->rank = g->place_of[core->set.rank];
    g->local = dti_local_of(core->local, g->ranks, size);
    g->each = dti_each_of(core->local, g->ranks, size);
    return g;
}

static void dti_core_destroy(dti_core *core) {
    for (uint32_t i = 0; i < core->link_count && core->links; i++)
        dti_link_free(core, &core->links[i]);
    while (core->groups)
        dti_group_free(core, core->groups);
    for (uint32_t i = 0; i < core->flights_made; i++)
        dti_flight_free(core, core->flights[i]);
    for (uint32_t r = 0; r < core->set.size && core->peers; r++) {
        for (uint32_t k = 0; k <= core->set.sockets && core->peers[r].backs; k++)
            dti_backlog_free(core->base, &core->peers[r].backs[k]);
        DTI_FREE(core->base, core->peers[r].backs, core->peers[r].early, core->peers[r].posts);
    }
    DTI_FREE(core->base, core->peers, core->links, core->left_list, core->pool, core->old_pool);
    dti_wipe(core, sizeof *core);
}

/* One for each that there can be: data, control, probes, and those that have proved nothing yet. */
static uint32_t dti_core_link_count(const dti_settings *set) {
    return (set->size - 1) * (set->sockets + 1) + set->size + DTI_MAX(64u, 2 * set->size);
}

/* Allocates the memory for one peer at once. The memory for data is allocated when it is posted. */
static bool dti_core_peer_memory(dti_core *core, uint32_t peer) {
    dti_peer *p = &core->peers[peer];
    bool me = peer == core->set.rank, control = !me && (core->set.rank == 0 || peer == 0);
    p->backs = dti_alloc_array(core->base, core->set.sockets + 1, sizeof *p->backs);
    p->early = me ? NULL : dti_alloc(core->base, core->early_units * 64u);
    p->posts = me ? NULL : dti_alloc_array(core->base, DTI_PENDING_MAX, sizeof *p->posts);
    return p->backs && (me || (p->early && p->posts)) &&
           (!control || dti_backlog_reserve(core->base, dti_control_back(core, peer), 0));
}

/* Allocates the memory for frames to one peer that may have to be sent again. */
static bool dti_core_reserve_backs(dti_core *core, uint32_t peer) {
    for (uint32_t k = 0; k < core->set.sockets; k++)
        if (!dti_backlog_reserve(core->base, &core->peers[peer].backs[k],
                                 (uint64_t)core->window * core->set.chunk_bytes))
            return false;
    return true;
}

static bool dti_core_memory(dti_core *core) {
    uint32_t size = core->set.size;
    core->link_count = dti_core_link_count(&core->set);
    core->peers = dti_alloc_array(core->base, size, sizeof *core->peers);
    core->links = dti_alloc_array(core->base, core->link_count, sizeof *core->links);
    core->left_list = dti_alloc_array(core->base, size, sizeof *core->left_list);
    if (!core->peers || !core->links || !core->left_list)
        return false;
    for (uint32_t r = 0; r < size; r++)
        if (!dti_core_peer_memory(core, r))
            return false;
    for (uint32_t i = 0; i < core->link_count; i++) {
        core->links[i].core = core;
        core->links[i].peer = DTI_NOBODY;
    }
    return dti_group_new(core, 0, NULL, size) != NULL;
}

/* The calls of the files below to those above. */
static const dti_core_up dti_core_ups = {
    .greeted = dti_handshake_input,
    .fill = dti_core_fill,
    .body = dti_engine_body,
    .payload = dti_engine_payload,
    .sent = dti_engine_sent,
    .frame = dti_engine_frame,
    .acknowledged = dti_engine_acknowledged,
    .resume = dti_link_resume,
    .returned = dti_engine_loan_sent,
    .take_early = dti_engine_take_early,
    .control = dti_member_frame,
    .bye = dti_member_bye,
    .failed = dti_core_link_failed,
    .open = dti_core_link_open,
    .refused = dti_core_link_refused,
    .dropped = dti_core_link_dropped,
    .taken = dti_core_link_taken,
};

/* Sets up *core, zeroed memory of the caller, and begins to join. False after dti_fail. */
static bool dti_core_create(dti_core *core, dti_base *base, const dti_settings *set,
                            const dti_io *io, void *io_user, const uint8_t *address,
                            uint32_t address_bytes, uint64_t now) {
    core->base = base;
    dti_core_with(core, set, io, io_user, &dti_core_ups);
    core->window = set->window ? set->window : DTI_WINDOW_LEAST(set->size);
    core->early_bytes = dti_early_bytes(set->size);
    core->early_units = dti_early_units_all(set->size);
    core->now = core->last_tick = core->join_noted = now;
    core->join_deadline = now + set->join_ns;
    core->dial_wait = 25000000;
    core->epoch = 1;
    core->local = dti_member_local(core);
    if (!dti_core_memory(core)) {
        dti_core_destroy(core);
        return false;
    }
    dti_peer_set_address(core, set->rank, address, address_bytes);
    if (!io->random(io_user, core->instance, sizeof core->instance) ||
        !io->random(io_user, &core->source_seed, sizeof core->source_seed)) {
        dti_core_destroy(core);
        return dti_fail(base, DT_ERROR_IO, "the system provides no random bytes"), false;
    }
    if (set->rank)
        dti_control_dial(core);
    else
        memcpy(core->nonce, core->instance, sizeof core->nonce);
    return true;
}

/* ---- posting */

static bool dti_flight_plan(dti_core *core, dti_flight *f, const dti_collective *c) {
    dti_collective chosen = *c;
    dti_algorithm_fn *build = dti_algorithm_choose(core->base, c, &chosen.op.algorithm);
    if (!build)
        return false;
    if (!c->op.count)
        build = dti_algo_nothing;
    f->planned = *c;
    if (!dti_schedule_build(core->base, &chosen, build, &f->schedule)) {
        dti_schedule_clear(&f->schedule);
        return false;
    }
    return true;
}

static void dti_flight_number(dti_flight *f, dti_rank_group *group, const dt_comm_op *op) {
    f->p2p = dti_kind_is_p2p(op->kind);
    uint64_t *next = &group->next;
    if (op->kind == DT_COMM_SEND)
        next = &group->next_send[op->root];
    else if (op->kind == DT_COMM_RECV)
        next = &group->next_recv[op->root];
    f->post = (dti_announce){.group = group->id,
                             .flags = dti_flight_flags(op),
                             .root = f->p2p ? 0 : (uint16_t)op->root,
                             .kind = (uint8_t)op->kind,
                             .dtype = (uint8_t)op->dtype,
                             .sequence = (*next)++,
                             .count = op->count};
}

/* Posts a checked operation on the application's thread. NULL after dti_fail: nothing was
 * posted. */
static dti_flight *dti_core_post(dti_core *core, dti_rank_group *group, const dt_comm_op *op,
                                 const dt_comm_span *leaves, uint32_t leaf_total) {
    dti_collective c = {.op = *op,
                        .rank = group->rank,
                        .size = group->size,
                        .local = group->local,
                        .each = group->each,
                        .costs = core->link.latency_ns ? &core->costs : NULL,
                        .chunk_bytes = core->set.chunk_bytes,
                        .leaves = op->tree ? leaves : NULL,
                        .leaf_total = op->tree ? leaf_total : 0};
    dti_flight *f = dti_flight_take(core, group, &c);
    if (!f)
        return NULL;
    bool planned = dti_flight_planned(f, group, &c);
    f->op = *op;
    f->group = group;
    f->leaf_total = c.leaf_total;
    if (!planned && !dti_flight_plan(core, f, &c))
        return NULL;
    if (!dti_flight_reserve(core, f))
        return NULL;
    dti_flight_tracks(core, f);
    if (!dti_flight_bits(core, f) || !dti_flight_slots_reserve(core, f))
        return NULL;
    for (uint32_t r = 0; r < group->size; r++)
        if (f->peer_state[r] & DTI_PEER_INVOLVED && !dti_core_reserve_backs(core, group->ranks[r]))
            return NULL;
    dti_flight_number(f, group, op);
    dti_flight_begin(core, f);
    f->finished = f->parting = false;
    core->unfinished++;
    f->unacknowledged = 0;
    f->slots = NULL;
    f->result = DT_OK;
    f->posted_at = core->now;
    for (uint32_t r = 0; r < group->size; r++)
        if (f->peer_state[r] & DTI_PEER_INVOLVED)
            dti_member_want(core, group->ranks[r]);
    dti_engine_match_posts(core, f);
    dti_flight_advance(core, f);
    return f;
}

/* ---- its end */

/* The text of a failed operation, or of a group that has ended. */
static dt_result dti_core_error(dti_core *core, dt_result result) {
    return dti_fail(core->base, result, "%s", core->text);
}

/* Gives an operation up; its buffers are not touched any more. */
static dt_result dti_core_cancel(dti_core *core, dti_flight *f) {
    if (!f->finished) {
        dti_core_suspect(core, DT_ERROR_CANCELLED, core->set.rank,
                         "rank %u cancelled %s number %llu of group %u", core->set.rank,
                         dti_kind_name(f->op.kind), (unsigned long long)f->post.sequence,
                         f->group->id);
        dti_flight_finish(core, f, DT_ERROR_CANCELLED);
    }
    dt_result result = f->result;
    dti_flight_release(core, f);
    return result == DT_OK ? DT_OK : dti_core_error(core, result);
}
