/* How the ranks come together: connections, and the joining of the run on them. A star around
 * rank 0, the coordinator: each member dials it, proves the key (handshake.c), says what it is
 * (JOIN), and when all have, hears where the others are (ROSTER). Data connections are made when
 * the first operation wants them, by the higher rank of the two.
 *
 * A connection that fails before it is open is tried again until a deadline; one that is open and
 * ends without BYE is a loss, which is failure.c's. Nobody joins a run that is under way. */

#define DTI_JOIN_FIXED 18
#define DTI_ROSTER_FIXED 44
#define DTI_JOIN_GRACE_NS 1000000000u

/* ---- connections */

static void dti_link_free(dti_core *core, dti_link *link) {
    if (link->state == DTI_LINK_FREE)
        return;
    if (link->peer != DTI_NOBODY) {
        dti_peer *p = &core->peers[link->peer];
        p->control = p->control == link ? NULL : p->control;
        for (uint32_t k = 0; k < core->set.sockets; k++)
            p->data[k] = p->data[k] == link ? NULL : p->data[k];
    }
    core->io.close(core->io_user, link);
    dti_gmac_close(&link->seal_out);
    dti_gmac_close(&link->seal_in);
    dti_wipe(link, sizeof *link);
    link->core = core;
    link->peer = DTI_NOBODY;
}

static dti_link *dti_link_new(dti_core *core, dti_channel channel, bool dialled) {
    for (uint32_t i = 0; i < core->link_count; i++) {
        dti_link *link = &core->links[i];
        if (link->state != DTI_LINK_FREE)
            continue;
        link->channel = (uint8_t)channel;
        link->dialled = dialled;
        link->state = dialled ? DTI_LINK_DIALING : DTI_LINK_HELLO;
        link->deadline = core->now + DTI_HANDSHAKE_NS;
        link->heard = link->spoke = core->now;
        return link;
    }
    return NULL;
}

static bool dti_link_is_pending(const dti_link *link) {
    return !link->dialled && (link->state == DTI_LINK_HELLO || link->state == DTI_LINK_PROOF ||
                              link->state == DTI_LINK_REFUSED);
}

#define DTI_SOURCE_GROUPS 1024u /* that addresses fall into, by a hash that nobody else knows */

/* The oldest that has proved nothing, of the address that holds most; NULL: there are fewer than
 * `most` in all. So one address that opens many keeps out nobody but itself. */
static dti_link *dti_pending_last(dti_core *core, uint32_t most) {
    uint16_t held[DTI_SOURCE_GROUPS] = {0};
    uint32_t pending = 0, fullest = 0;
    for (uint32_t i = 0; i < core->link_count; i++)
        if (dti_link_is_pending(&core->links[i])) {
            uint16_t *group = &held[core->links[i].source];
            *group = (uint16_t)(*group + (*group < UINT16_MAX));
            fullest = DTI_MAX(fullest, *group);
            pending++;
        }
    dti_link *last = NULL;
    for (uint32_t i = 0; i < core->link_count && pending >= most; i++) {
        dti_link *link = &core->links[i];
        if (dti_link_is_pending(link) && held[link->source] == fullest &&
            (!last || link->deadline < last->deadline))
            last = link;
    }
    return last;
}

/* A connection that came in from `source`, the address without the port; if there are many that
 * have proved nothing, one makes room. NULL: no more are taken. */
static dti_link *dti_core_accepted(dti_core *core, const uint8_t source[DTI_SOURCE_BYTES]) {
    if (core->state >= DTI_CORE_SUSPECT)
        return NULL;
    dti_link *last = dti_pending_last(core, DTI_MAX(64u, 2 * core->set.size));
    if (last)
        dti_link_free(core, last);
    dti_link *link = dti_link_new(core, DTI_CHANNEL_CONTROL, false);
    if (link)
        link->source = dti_hash64(core->source_seed, source, DTI_SOURCE_BYTES) % DTI_SOURCE_GROUPS;
    return link;
}

static void dti_core_connected(dti_core *core, dti_link *link) {
    link->state = DTI_LINK_HELLO;
    link->deadline = core->now + DTI_HANDSHAKE_NS;
    if (!dti_hello_write(core, link, link->peer))
        core->up->dropped(core, link, "the system gives no random bytes");
}

static void dti_peer_dial(dti_core *core, uint32_t peer) {
    dti_peer *p = &core->peers[peer];
    for (uint32_t k = 0; k < core->set.sockets; k++) {
        if (p->data[k])
            continue;
        dti_link *link = dti_link_new(core, DTI_CHANNEL_DATA, true);
        if (!link)
            return; /* cannot be: there is one for each */
        link->peer = peer;
        link->socket = (uint16_t)k;
        p->data[k] = link;
        core->io.dial(core->io_user, link);
    }
}

/* An operation needs data connections to a rank: the higher rank makes them. */
static void dti_member_want(dti_core *core, uint32_t peer) {
    dti_peer *p = &core->peers[peer];
    if (peer >= core->set.rank || p->left || p->dial)
        return;
    p->dial = true;
    p->dial_until = core->now + DTI_REDIAL_NS;
    p->dial_wait = 50000000;
    dti_peer_dial(core, peer);
}

static void dti_control_dial(dti_core *core) {
    dti_link *link = dti_link_new(core, DTI_CHANNEL_CONTROL, true);
    if (!link)
        return;
    link->peer = 0;
    core->peers[0].control = link;
    core->dial_at = 0;
    core->io.dial(core->io_user, link);
}

/* A try failed: again, a little later each time. */
static void dti_core_dial_failed(dti_core *core, dti_link *link, const char *why) {
    uint32_t peer = link->peer;
    dti_peer *p = &core->peers[peer];
    bool control = link->channel == DTI_CHANNEL_CONTROL;
    dti_link_free(core, link);
    if (core->state >= DTI_CORE_LEAVING || p->left)
        return;
    if (control) {
        snprintf(core->dial_why, sizeof core->dial_why, "%s", why);
        core->dial_wait = DTI_MIN(core->dial_wait * 2, 1000000000u);
        core->dial_at = core->now + core->dial_wait;
    } else if (core->now >= p->dial_until)
        dti_core_lost(core, peer, why);
    else {
        p->dial_wait = DTI_MIN(p->dial_wait * 2, 1000000000u);
        p->dial_at = core->now + p->dial_wait;
    }
}

/* It has ended: `why`, or NULL when the other side closed it. The transport forgets it on
 * io.close. */
static void dti_core_closed(dti_core *core, dti_link *link, const char *why) {
    uint32_t peer = link->peer;
    bool open = link->state == DTI_LINK_OPEN, clean = link->bye_received;
    if (link->state == DTI_LINK_FREE)
        return;
    if (!open && link->dialled && link->state != DTI_LINK_REFUSED) {
        dti_core_dial_failed(core, link, why ? why : "the connection was closed at once");
        return;
    }
    if (open && !clean && core->state < DTI_CORE_LEAVING) {
        link->state = DTI_LINK_CLOSED;
        /* Others that are lost may have left because the coordinator is: it would have said so. */
        if (link->channel == DTI_CHANNEL_CONTROL && core->set.rank &&
            core->state == DTI_CORE_SUSPECT && core->result == DT_ERROR_PEER_LOST)
            core->state = DTI_CORE_OPEN;
        dti_core_lost(core, peer, why ? why : "its connection ended without a word");
    }
    if (link->channel == DTI_CHANNEL_CONTROL && core->set.rank)
        dti_core_end_suspected(core);
    dti_link_free(core, link);
}

static void dti_core_link_dropped(dti_core *core, dti_link *link, const char *why) {
    if (link->dialled)
        dti_core_dial_failed(core, link, why);
    else
        dti_link_free(core, link);
}

static void dti_core_link_refused(dti_core *core, dti_link *link, const char *text) {
    char who[96] = "another process";
    uint32_t peer = link->peer;
    if (peer == DTI_NOBODY && dti_get32(link->hello_in) == DTI_MAGIC_HELLO)
        peer = dti_get32(link->hello_in + 8); /* what it says it is */
    if (peer < core->set.size)
        dti_peer_text(core, peer, who);
    if (!link->dialled) {
        dti_core_note_refusal(core, "a connection that says it is %s was refused: %s", who, text);
        return;
    }
    /* For data both have joined: a refusal, which nobody has proved, is damage or an attack. */
    if (link->channel == DTI_CHANNEL_DATA ||
        (core->set.guessed && core->state == DTI_CORE_JOINING && dti_refusal_is_others(text))) {
        char why[160];
        snprintf(why, sizeof why, "a connection was refused: %.120s", text);
        dti_core_dial_failed(core, link, why);
        return;
    }
    if (core->state == DTI_CORE_JOINING)
        dti_core_end(core, DT_ERROR_REFUSED, peer, "");
    dti_core_suspect(core, DT_ERROR_REFUSED, peer, "%s", text);
    if (core->state == DTI_CORE_ENDED)
        snprintf(core->text, sizeof core->text, "rank %u and %s do not accept each other: %s",
                 core->set.rank, who, text);
}

static const char *dti_core_link_taken(dti_core *core, dti_link *link, uint32_t peer) {
    const dti_peer *p = &core->peers[peer];
    if (link->channel == DTI_CHANNEL_CONTROL) {
        if (core->set.rank)
            return "this rank is not the coordinator";
        return p->control || p->joined ? "this rank is taken: another process has joined as it"
                                       : NULL;
    }
    return p->data[link->socket] ? "this rank is connected already" : NULL;
}

static void dti_core_link_open(dti_core *core, dti_link *link) {
    dti_peer *p = &core->peers[link->peer];
    link->heard = link->spoke = core->now;
    if (link->channel == DTI_CHANNEL_DATA) {
        core->events++;
        p->data[link->socket] = link;
        return;
    }
    p->control = link;
    link->roster_next = DTI_NOBODY;
    link->join_due = link->dialled;
    /* It came in the moment in which the group ended: it is told like the others. */
    link->revoke_due = core->set.rank == 0 && core->state == DTI_CORE_ENDED;
}

/* ---- JOIN and ROSTER */

/* core->local by what this rank knows alone. */
static uint32_t dti_member_local(const dti_core *core) {
    uint32_t local = core->set.local_size;
    bool blocks =
        local > 0 && core->set.size % local == 0 && core->set.rank % local == core->set.local_rank;
    return blocks ? local : 1;
}

/* Coordinator: what a member knows must be the same, or nothing is known. */
static void dti_member_check_local(dti_core *core, uint32_t peer, uint32_t rank, uint32_t size) {
    if (core->local == 1 || (size == core->local && rank == peer % core->local))
        return;
    dti_core_note(
        core, DT_LOG_INFO,
        "rank %u is number %u of %u on its host, where rank 0's host has %u: sums are not "
        "hierarchical, which needs as many ranks on each host, in order",
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
    uint32_t bytes = DTI_ROSTER_FIXED, first = link->roster_next;
    memcpy(body, core->nonce, 16);
    dti_put16(body + 16, core->local);
    dti_put16(body + 18, core->set.link_source);
    dti_put64(body + 20, core->set.link.latency_ns);
    dti_put64(body + 28, core->set.link.message_ns);
    dti_put64(body + 36, core->set.link.bytes_per_s);
    while (link->roster_next < core->set.size) {
        const dti_peer *p = &core->peers[link->roster_next];
        if (bytes + 2 + p->address_bytes > sizeof body)
            break;
        dti_put16(body + bytes, p->address_bytes);
        memcpy(body + bytes + 2, p->address, p->address_bytes);
        bytes += 2u + p->address_bytes;
        link->roster_next++;
    }
    dti_control_put(link, DTI_FRAME_ROSTER, first, body, bytes);
    if (link->roster_next == core->set.size)
        link->roster_next = DTI_NOBODY;
}

static void dti_peer_set_address(dti_core *core, uint32_t peer, const uint8_t *address,
                                 uint32_t bytes) {
    dti_peer *p = &core->peers[peer];
    memcpy(p->address, address, bytes);
    p->address_bytes = (uint16_t)bytes;
    core->io.describe(core->io_user, address, bytes, p->where);
}

/* What all ranks have been told of their links: from now on they choose by it. */
static void dti_core_link_costs(dti_core *core, const dt_comm_link *network,
                                const dt_comm_link *local) {
    core->link = *network;
    core->local_link = *local;
    core->costs = (dti_costs){.network = dti_link_cost_of(network),
                              .local = dti_link_cost_of(local),
                              .chunk_bytes = core->set.chunk_bytes,
                              .window = core->set.window};
}

/* All are there; what has come in early is looked at. */
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
                         "chunk_bytes and window are %llu and %u at rank %u, %llu and %u at rank "
                         "0: they must agree",
                         (unsigned long long)dti_get64(body), dti_get32(body + 8), link->peer,
                         (unsigned long long)core->set.chunk_bytes, core->set.window);
        return NULL;
    }
    dti_member_check_local(core, link->peer, dti_get16(body + 12), dti_get16(body + 14));
    p->joined = true;
    if (++core->joined < core->set.size - 1)
        return NULL;
    for (uint32_t r = 1; r < core->set.size; r++)
        core->peers[r].control->roster_next = 0;
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
        return "a ROSTER with links that cannot be";
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

/* ---- who is missing */

/* Coordinator: who is missing, and why, where that is known. What does not fit of the ranks is cut:
 * the reason is what helps. */
static void dti_missing_list(const dti_core *core, char *list, size_t size) {
    const char *why = core->starved
                          ? "; this process has no descriptor left for connections: raise "
                            "the limit (ulimit -n)"
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
    char list[320] = "";
    if (core->set.rank)
        snprintf(list, sizeof list, "%s", core->dial_why[0] ? core->dial_why : "no answer yet");
    else
        dti_missing_list(core, list, sizeof list);
    const char *what =
        core->set.rank ? "rank 0 and the others are not all there" : "these ranks are missing";
    /* Who has reached the coordinator leaves it to it to say who is missing. */
    const dti_link *control = core->set.rank ? core->peers[0].control : NULL;
    bool reached = control && control->state == DTI_LINK_OPEN;
    if (core->now >= core->join_deadline + (reached ? DTI_JOIN_GRACE_NS : 0)) {
        char text[sizeof core->text];
        snprintf(text, sizeof text, "rank %u waited %llu s: %s: %s", core->set.rank,
                 (unsigned long long)(core->set.join_ns / 1000000000u), what, list);
        dti_core_end(core, DT_ERROR_TIMEOUT, core->set.rank, text);
    } else if (core->now - core->join_noted >= DTI_LATE_NOTE_NS) {
        core->join_noted = core->now;
        dti_core_note(core, DT_LOG_INFO, "rank %u is waiting: %s: %s", core->set.rank, what, list);
    }
}

static void dti_tick_joining(dti_core *core) {
    if (core->set.rank && core->dial_at && core->now >= core->dial_at)
        dti_control_dial(core);
    dti_tick_missing(core);
}
