/* How the ranks come together: a star around rank 0, the coordinator. Each member has dialled it
 * and proved the key (connect.c), and describes itself (JOIN). After all have, each gets the
 * others' addresses (ROSTER). A running group admits no new ranks. */

#define DTI_JOIN_FIXED 18
#define DTI_ROSTER_FIXED 44
#define DTI_JOIN_GRACE_NS 1000000000u
#define DTI_WINDOW_MOST 64u
#define DTI_WINDOW_BYTES (64u << 20)       /* of slots at most, unless the application says more */
#define DTI_WINDOW_LATENCY_NS 1000000u     /* a longer link's rate is not to be had from 1 MiB */
#define DTI_WINDOW_BYTES_PER_S 1250000000u /* and is taken for this: 10 Gbit/s */

/* ---- JOIN and ROSTER */

/* core->local, as far as this rank knows. */
static uint32_t dti_member_local(const dti_core *core) {
    uint32_t local = core->set.local_size;
    bool blocks =
        local > 0 && core->set.size % local == 0 && core->set.rank % local == core->set.local_rank;
    return blocks ? local : 1;
}

/* Coordinator: checks what a member knows. Unless all agree, nothing counts as known. */
static void dti_member_check_local(dti_core *core, uint32_t peer, uint32_t rank, uint32_t size) {
    if (core->local == 1 || (size == core->local && rank == peer % core->local))
        return;
    dti_core_note(
        core, DT_LOG_INFO,
        "rank %u is number %u of %u on its host, but rank 0's host has %u ranks; hierarchical sums "
        "require the same number of consecutive ranks on each host, so they are off",
        peer, rank, size, core->local);
    core->local = 1;
}

static void dti_put_join(dti_core *core, dti_link *link) {
    const dti_peer *me = &core->peers[core->set.rank];
    uint8_t body[DTI_JOIN_FIXED + DTI_ADDRESS_BYTES];
    dti_put64(body, core->set.chunk_bytes);
    dti_put32(body + 8, core->set.window);
    dti_put16(body + 12, core->set.local_rank);
    dti_put16(body + 14, core->set.local_size);
    dti_put16(body + 16, me->address_bytes);
    memcpy(body + DTI_JOIN_FIXED, me->address, me->address_bytes);
    dti_control_put(link, DTI_FRAME_JOIN, 0, body, DTI_JOIN_FIXED + me->address_bytes);
}

/* As many ranks' addresses as a frame takes. */
static void dti_put_roster(dti_core *core, dti_link *link) {
    uint8_t body[DTI_CONTROL_BYTES_MAX];
    dti_backlog *b = link->back;
    uint32_t bytes = DTI_ROSTER_FIXED, first = b->roster_next;
    memcpy(body, core->nonce, 16);
    dti_put16(body + 16, core->local);
    dti_put16(body + 18, core->set.link_source);
    dti_put64(body + 20, core->set.link.latency_ns);
    dti_put64(body + 28, core->set.link.message_ns);
    dti_put64(body + 36, core->set.link.bytes_per_s);
    while (b->roster_next < core->set.size) {
        const dti_peer *p = &core->peers[b->roster_next];
        if (bytes + 2 + p->address_bytes > sizeof body)
            break;
        dti_put16(body + bytes, p->address_bytes);
        memcpy(body + bytes + 2, p->address, p->address_bytes);
        bytes += 2u + p->address_bytes;
        b->roster_next++;
    }
    dti_control_put(link, DTI_FRAME_ROSTER, first, body, bytes);
    if (b->roster_next == core->set.size)
        b->roster_next = DTI_NOBODY;
}

static void dti_peer_set_address(dti_core *core, uint32_t peer, const uint8_t *address,
                                 uint32_t bytes) {
    dti_peer *p = &core->peers[peer];
    memcpy(p->address, address, bytes);
    p->address_bytes = (uint16_t)bytes;
    core->io.describe(core->io_user, address, bytes, p->where);
}

/* The chunks that fill a link in the round trip of a permission. Over a long link, joining measures
 * TCP's slow start, not the link, so a fast link is assumed. (If ranks share processors, no link is
 * long.) */
static uint32_t dti_core_window(const dti_core *core, const dt_comm_link *link) {
    const bool guess = core->set.link_source == DTI_LINK_MEASURED &&
                       link->latency_ns > DTI_WINDOW_LATENCY_NS &&
                       link->message_ns < link->latency_ns / DTI_SHARED_PART;
    const uint64_t rate = guess ? DTI_MAX(link->bytes_per_s, DTI_WINDOW_BYTES_PER_S)
                                : DTI_MIN(link->bytes_per_s, DTI_BYTES_PER_S_MOST);
    const uint64_t us = 2 * DTI_MIN(link->latency_ns, DTI_LATENCY_MOST_NS) / 1000;
    const uint64_t chunks = rate / 1000000 * us / core->set.chunk_bytes + 1;
    const uint64_t most = DTI_WINDOW_BYTES / (core->set.chunk_bytes * (core->set.size - 1));
    return (uint32_t)DTI_MAX(DTI_MIN(DTI_MIN(chunks, most), DTI_WINDOW_MOST),
                             DTI_WINDOW_LEAST(core->set.size));
}

/* The costs of links that all ranks have received. They choose by them from now on. No operation is
 * in flight. */
static void dti_core_link_costs(dti_core *core, const dt_comm_link *network,
                                const dt_comm_link *local) {
    core->link = *network;
    core->local_link = *local;
    if (!core->set.window)
        core->window = dti_core_window(core, network);
    core->costs = (dti_costs){.network = dti_link_cost_of(network),
                              .local = dti_link_cost_of(local),
                              .chunk_bytes = core->set.chunk_bytes,
                              .window = core->window,
                              .early_bytes = core->early_bytes};
}

/* All have joined; handles early data. */
static void dti_member_all_joined(dti_core *core) {
    core->state = DTI_CORE_OPEN;
    if (core->set.link_source == DTI_LINK_GIVEN)
        dti_core_link_costs(core, &core->set.link, &core->set.link);
    for (dti_rank_group *g = core->groups; g; g = g->following) {
        g->local = dti_local_of(core->local, g->ranks, g->size);
        g->each = dti_each_of(core->local, g->ranks, g->size);
    }
    for (uint32_t i = 0; i < core->link_count; i++)
        if (core->links[i].state == DTI_LINK_HELLO && !core->links[i].dialled)
            dti_link_digest(core, &core->links[i]);
}

static const char *dti_member_join(dti_core *core, dti_link *link, const uint8_t *body) {
    uint32_t bytes = link->frame.length;
    dti_peer *p = &core->peers[link->peer];
    if (core->set.rank || core->state != DTI_CORE_JOINING || p->joined || bytes < DTI_JOIN_FIXED)
        return "a JOIN out of turn";
    uint32_t address = dti_get16(body + 16);
    if (address > DTI_ADDRESS_BYTES || bytes != DTI_JOIN_FIXED + address)
        return "a JOIN of a wrong size";
    dti_peer_set_address(core, link->peer, body + DTI_JOIN_FIXED, address);
    if (dti_get64(body) != core->set.chunk_bytes || dti_get32(body + 8) != core->set.window) {
        dti_core_suspect(core, DT_ERROR_REFUSED, link->peer,
                         ".chunk_bytes and .window are %llu and %u on rank %u, but %llu and %u on "
                         "rank 0; give the same on all ranks",
                         (unsigned long long)dti_get64(body), dti_get32(body + 8), link->peer,
                         (unsigned long long)core->set.chunk_bytes, core->set.window);
        return NULL;
    }
    dti_member_check_local(core, link->peer, dti_get16(body + 12), dti_get16(body + 14));
    p->joined = true;
    if (++core->joined < core->set.size - 1)
        return NULL;
    for (uint32_t r = 1; r < core->set.size; r++)
        dti_control_back(core, r)->roster_next = 0;
    dti_member_all_joined(core);
    return NULL;
}

/* Rank 0's word on links; false: out of bounds. */
static bool dti_member_links(dti_core *core, const uint8_t *body) {
    uint32_t source = dti_get16(body);
    dt_comm_link link = {dti_get64(body + 2), dti_get64(body + 10), dti_get64(body + 18)};
    bool given = source == DTI_LINK_GIVEN, none = !(link.latency_ns | link.bytes_per_s);
    if (source > DTI_LINK_OFF || (given ? !dti_link_is_sound(&link) : !none))
        return false;
    core->set.link_source = (uint8_t)source;
    core->set.link = link;
    return true;
}

static const char *dti_member_roster(dti_core *core, dti_link *link, const uint8_t *body) {
    uint32_t bytes = link->frame.length, at = DTI_ROSTER_FIXED;
    if (!core->set.rank || core->state != DTI_CORE_JOINING || bytes < at ||
        link->frame.value != core->joined)
        return "a ROSTER out of turn";
    memcpy(core->nonce, body, 16);
    uint32_t local = dti_get16(body + 16);
    if (local != 1 && local != dti_member_local(core))
        return "a ROSTER with another number of ranks on this host";
    core->local = local;
    if (!dti_member_links(core, body + 18))
        return "a ROSTER with invalid links";
    while (at + 2 <= bytes && core->joined < core->set.size) {
        uint32_t size = dti_get16(body + at);
        if (size > DTI_ADDRESS_BYTES || at + 2 + size > bytes)
            break;
        if (core->joined != core->set.rank)
            dti_peer_set_address(core, core->joined, body + at + 2, size);
        core->peers[core->joined].joined = true;
        core->joined++;
        at += 2 + size;
    }
    if (at != bytes)
        return "a ROSTER of a wrong size";
    if (core->joined == core->set.size)
        dti_member_all_joined(core);
    return NULL;
}

/* ---- missing ranks */

/* Coordinator: the missing ranks and the reason, if known. A list that does not fit is cut, as the
 * reason helps most. */
static void dti_missing_list(const dti_core *core, char *list, size_t size) {
    const char *why = core->starved ? "; this process has no descriptor left for connections: "
                                      "raise the limit (ulimit -n)"
                                    : "";
    const size_t most = size - strlen(why) - sizeof ", 4294967295, ...";
    size_t used = 0;
    bool cut = false;
    for (uint32_t r = 1; r < core->set.size && !cut; r++) {
        if (core->peers[r].joined)
            continue;
        cut = used > most;
        used += cut ? (size_t)snprintf(list + used, size - used, ", ...")
                    : (size_t)snprintf(list + used, size - used, "%s%u", used ? ", " : "", r);
    }
    snprintf(list + used, size - used, "%s", why);
}

static void dti_tick_missing(dti_core *core) {
    char list[288] = "";
    if (core->set.rank)
        snprintf(list, sizeof list, "%s", core->dial_why[0] ? core->dial_why : "no answer yet");
    else
        dti_missing_list(core, list, sizeof list);
    const char *what = core->set.rank ? "not all ranks have joined" : "these ranks are missing";
    /* A rank that has reached the coordinator leaves it to that to report missing ranks. */
    const dti_link *control = core->set.rank ? core->peers[0].control : NULL;
    bool reached = control && control->state == DTI_LINK_OPEN;
    if (core->now >= core->join_deadline + (reached ? DTI_JOIN_GRACE_NS : 0)) {
        char text[sizeof core->text];
        snprintf(text, sizeof text, "rank %u waited %llu s: %s: %s%s", core->set.rank,
                 (unsigned long long)((core->set.join_ns + 500000000u) / 1000000000u), what, list,
                 core->refused);
        dti_core_end(core, DT_ERROR_TIMEOUT, core->set.rank, text);
    } else if (core->now - core->join_noted >= DTI_LATE_NOTE_NS) {
        core->join_noted = core->now;
        dti_core_note(core, DT_LOG_INFO, "rank %u is waiting: %s: %s", core->set.rank, what, list);
    }
}
