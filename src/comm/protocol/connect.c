/* Connections. Control is a star around rank 0, which each member dials. Data connections are made
 * when the first operation needs them; the higher rank of the two dials.
 *
 * A connection that fails before it is open is tried again until a deadline. An open one that
 * breaks without BYE is restored. The side that dialled it dials at once, with the same handshake,
 * and both continue where they were (backlog.c). The peer is lost after `silence`, or when its
 * system reports that nobody listens there, so its process is gone. The dialled side waits, and
 * meanwhile probes the peer's process by dialling only.
 *
 * It is enough that one side notices the break. A connection that proves itself replaces the
 * existing one. */

#define DTI_PROBE_NS 10000000u
#define DTI_RESUME_FIRST_NS 5000000u
#define DTI_BARREN_MAX 100u
#define DTI_DAMAGED_MAX 8u /* handshakes of a join */

static dti_backlog *dti_back_of(const dti_core *core, uint32_t peer, uint32_t channel,
                                uint32_t socket) {
    return &core->peers[peer].backs[channel == DTI_CHANNEL_CONTROL ? core->set.sockets : socket];
}

/* Whether a connection that broke matters: data is over when the group has ended by an error; then
 * control is too, but that the coordinator has yet to say why. */
static bool dti_core_resumes(const dti_core *core, uint32_t channel) {
    if (channel == DTI_CHANNEL_DATA)
        return !core->failed && core->state != DTI_CORE_SUSPECT;
    return !core->failed || core->set.rank == 0;
}

/* ---- making them */

/* Where the peer of a link has it. */
static dti_link **dti_link_place(const dti_core *core, const dti_link *link) {
    dti_peer *p = &core->peers[link->peer];
    if (link->probe)
        return &p->probe;
    return link->channel == DTI_CHANNEL_CONTROL ? &p->control : &p->data[link->socket];
}

static void dti_link_free(dti_core *core, dti_link *link) {
    if (link->state == DTI_LINK_FREE)
        return;
    dti_link **at = link->peer == DTI_NOBODY ? NULL : dti_link_place(core, link);
    if (at && *at == link)
        *at = NULL;
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

static dti_link *dti_link_at(dti_link *first, size_t stride, uint32_t i) {
    return (dti_link *)(void *)((char *)first + i * stride);
}

/* The oldest that has proved nothing, of the address that holds most with one more from `source`;
 * NULL: there are fewer than `most` in all. So one address that opens many keeps out nobody but
 * itself. The links lie `stride` bytes apart. */
static dti_link *dti_pending_last(dti_link *first, size_t stride, uint32_t count, uint32_t most,
                                  uint32_t source) {
    uint16_t held[DTI_SOURCE_GROUPS] = {0};
    uint32_t pending = 0, fullest = 0;
    held[source] = 1;
    for (uint32_t i = 0; i < count; i++) {
        const dti_link *link = dti_link_at(first, stride, i);
        if (dti_link_is_pending(link)) {
            uint16_t *group = &held[link->source];
            *group = (uint16_t)(*group + (*group < UINT16_MAX));
            fullest = DTI_MAX(fullest, *group);
            pending++;
        }
    }
    dti_link *last = NULL;
    for (uint32_t i = 0; i < count && pending >= most; i++) {
        dti_link *link = dti_link_at(first, stride, i);
        if (dti_link_is_pending(link) && held[link->source] == fullest &&
            (!last || link->deadline < last->deadline))
            last = link;
    }
    return last;
}

static uint32_t dti_source_group(const dti_core *core, const uint8_t source[DTI_SOURCE_BYTES]) {
    return (uint32_t)(dti_hash64(core->source_seed, source, DTI_SOURCE_BYTES) % DTI_SOURCE_GROUPS);
}

static void dti_link_came_from(const dti_core *core, dti_link *link,
                               const uint8_t source[DTI_SOURCE_BYTES]) {
    link->source = dti_source_group(core, source);
    memcpy(link->from, source, DTI_SOURCE_BYTES);
}

/* A connection that came in from `source`, the address without the port; if there are many that
 * have proved nothing, one makes room. NULL: no more are taken. */
static dti_link *dti_core_accepted(dti_core *core, const uint8_t source[DTI_SOURCE_BYTES]) {
    if (core->state == DTI_CORE_SUSPECT || (core->state == DTI_CORE_ENDED && core->set.rank))
        return NULL;
    dti_link *last =
        dti_pending_last(core->links, sizeof *core->links, core->link_count,
                         DTI_MAX(64u, 2 * core->set.size), dti_source_group(core, source));
    if (last)
        dti_link_free(core, last);
    dti_link *link = dti_link_new(core, DTI_CHANNEL_CONTROL, false);
    if (link)
        dti_link_came_from(core, link, source);
    return link;
}

static void dti_link_dial(dti_core *core, uint32_t peer, dti_channel channel, uint32_t socket,
                          bool probe) {
    dti_link *link = dti_link_new(core, channel, true);
    if (!link)
        return; /* impossible: there is one for each */
    link->peer = peer;
    link->socket = (uint16_t)socket;
    link->probe = probe;
    link->back = probe ? NULL : dti_back_of(core, peer, channel, socket);
    *dti_link_place(core, link) = link;
    core->io.dial(core->io_user, link);
}

static void dti_peer_dial(dti_core *core, uint32_t peer) {
    const dti_peer *p = &core->peers[peer];
    for (uint32_t k = 0; k < core->set.sockets; k++)
        if (!p->data[k] && !p->backs[k].over)
            dti_link_dial(core, peer, DTI_CHANNEL_DATA, k, false);
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
    core->dial_at = 0;
    dti_link_dial(core, 0, DTI_CHANNEL_CONTROL, 0, false);
}

/* Probes whether the peer's process lives: whether something listens at its address. */
static void dti_peer_probe(dti_core *core, uint32_t peer) {
    dti_peer *p = &core->peers[peer];
    p->probe_at = core->now + p->probe_wait;
    p->probe_wait = DTI_MIN(p->probe_wait * 2, dti_beat_ns(core));
    if (!p->probe && p->address_bytes)
        dti_link_dial(core, peer, DTI_CHANNEL_DATA, 0, true);
}

static void dti_core_connected(dti_core *core, dti_link *link) {
    if (link->probe) {
        dti_link_free(core, link);
        return;
    }
    link->state = DTI_LINK_HELLO;
    link->deadline = core->now + DTI_HANDSHAKE_NS;
    if (!dti_hello_write(core, link, link->peer))
        core->up->dropped(core, link, "the system provides no random bytes");
}

/* ---- breaking, and joining again */

/* The connection will not be restored. */
static void dti_back_lost(dti_core *core, uint32_t peer, uint32_t channel, uint32_t socket,
                          const char *why) {
    dti_backlog *b = dti_back_of(core, peer, channel, socket);
    bool control = channel == DTI_CHANNEL_CONTROL;
    char text[sizeof b->why + 160];
    b->broken = 0;
    b->over = true;
    /* Others that are lost may have left because the coordinator is: it would have said so. */
    if (control && core->set.rank && core->state == DTI_CORE_SUSPECT &&
        core->result == DT_ERROR_PEER_LOST)
        core->state = DTI_CORE_OPEN;
    snprintf(text, sizeof text, "%s%s%s", b->why, why ? "; " : "", why ? why : "");
    if (core->state < DTI_CORE_LEAVING && (control || !core->peers[peer].left))
        dti_core_lost(core, peer, text);
    if (control && core->set.rank)
        dti_core_end_suspected(core);
}

static bool dti_back_is_dialled(const dti_core *core, uint32_t peer, uint32_t channel) {
    return channel == DTI_CHANNEL_CONTROL ? core->set.rank != 0 : peer < core->set.rank;
}

/* Drops what a connection had received in part. */
static void dti_link_forget(dti_core *core, dti_link *link) {
    dti_peer *p = &core->peers[link->peer];
    if (link->in_body && !link->rx_flight && p->early_open) {
        p->early_open = false;
        p->early_bytes -= dti_early_units(link->frame.length) * 64u;
    }
    link->in_body = false;
}

/* One that breaks again and again before anything has passed is no better than none. */
static void dti_back_break(dti_core *core, dti_backlog *b, const char *why) {
    if (b->broken)
        return;
    b->barren = b->moved || core->now - b->joined_at >= dti_beat_ns(core) ? 0 : b->barren + 1;
    b->broken = core->now;
    b->moved = false;
    snprintf(b->why, sizeof b->why, "%s", why);
}

static void dti_link_broken(dti_core *core, dti_link *link, const char *why) {
    const uint32_t peer = link->peer, channel = link->channel, socket = link->socket;
    dti_peer *p = &core->peers[peer];
    dti_backlog *b = link->back;
    bool lasting = link->lasting;
    dti_link_forget(core, link);
    dti_link_free(core, link);
    if (channel == DTI_CHANNEL_CONTROL && !core->set.rank && !p->joined) {
        b->opened = false; /* it is missing, as before */
        return;
    }
    dti_back_break(core, b, why ? why : "its connection ended");
    if (lasting) {
        dti_back_lost(core, peer, channel, socket, NULL);
    } else if (b->barren > DTI_BARREN_MAX) {
        dti_back_lost(core, peer, channel, socket,
                      "it broke repeatedly before anything was received");
    } else if (!dti_back_is_dialled(core, peer, channel)) {
        p->probe_wait = DTI_PROBE_NS;
        dti_peer_probe(core, peer);
    } else if (channel == DTI_CHANNEL_CONTROL) {
        core->dial_wait = DTI_RESUME_FIRST_NS;
        dti_control_dial(core);
    } else {
        p->dial_wait = DTI_RESUME_FIRST_NS;
        dti_peer_dial(core, peer);
    }
}

/* The first frame on it: how much of ours has come. */
static void dti_link_resume(dti_core *core, dti_link *link) {
    dti_backlog *b = link->back;
    const uint64_t count = link->frame.value;
    char who[96];
    if (b->bye_received && count < b->acknowledged) { /* frames that it did not need any more */
        b->acknowledged = b->sent = count;
        b->bye_sent = false;
    }
    if (count < b->acknowledged || count > b->sent) {
        dti_core_link_failed(
            core, link, DT_ERROR_CORRUPT,
            "received a RESUME after %llu frames, but %llu are acknowledged and %llu sent",
            (unsigned long long)count, (unsigned long long)b->acknowledged,
            (unsigned long long)b->sent);
        return;
    }
    if (b->bye_sent && count <= b->bye_at) {
        b->bye_sent = false;
        b->sent = b->bye_at;
    }
    b->resend = count;
    link->resumed = true;
    link->return_due = true;
    b->joined_at = core->now;
    if (b->broken) {
        b->broken = 0;
        if (!core->resets++)
            dti_core_note(core, DT_LOG_WARNING,
                          "a connection to %s broke (%s) and was restored; further ones are "
                          "counted, not logged",
                          dti_peer_text(core, link->peer, who), b->why);
    }
    dti_engine_release(core, link, count);
    if (link->tx_from == link->tx_to && !link->data_left)
        dti_link_drained(core, link);
}

/* ---- failing */

/* A try failed: again, a little later each time. */
static void dti_core_dial_failed(dti_core *core, dti_link *link, const char *why) {
    const uint32_t peer = link->peer, channel = link->channel, socket = link->socket;
    dti_peer *p = &core->peers[peer];
    const dti_backlog *b = link->back;
    bool control = channel == DTI_CHANNEL_CONTROL, nobody = link->nobody, probe = link->probe;
    char text[160];
    snprintf(text, sizeof text, "%s", why);
    dti_link_free(core, link);
    if (probe) {
        for (uint32_t k = 0; nobody && k <= core->set.sockets; k++)
            if (p->backs[k].broken)
                dti_back_lost(core, peer,
                              k == core->set.sockets ? DTI_CHANNEL_CONTROL : DTI_CHANNEL_DATA, k,
                              NULL);
        return;
    }
    bool again = b->broken && dti_core_resumes(core, channel);
    const uint64_t longest = again ? dti_beat_ns(core) : 1000000000u;
    if (!again && (core->state >= DTI_CORE_LEAVING || p->left))
        return;
    if (again && (nobody || core->now - b->broken >= core->set.silence_ns)) {
        dti_back_lost(core, peer, channel, socket, nobody ? NULL : text);
    } else if (control) {
        snprintf(core->dial_why, sizeof core->dial_why, "%s", text);
        core->dial_wait = DTI_MIN(core->dial_wait * 2, longest);
        core->dial_at = core->now + core->dial_wait;
    } else if (!again && core->now >= p->dial_until)
        dti_core_lost(core, peer, text);
    else {
        p->dial_wait = DTI_MIN(p->dial_wait * 2, longest);
        p->dial_at = core->now + p->dial_wait;
    }
}

/* All has been said on it: by the other side, or, where nothing is lost on the way, by this one. */
static bool dti_link_is_over(const dti_link *link) {
    return link->back->bye_received || (link->lasting && link->shut);
}

/* It has ended: `why`, or NULL when the other side closed it. The transport forgets it on
 * io.close. */
static void dti_core_closed(dti_core *core, dti_link *link, const char *why) {
    const uint32_t channel = link->channel;
    bool open = link->state == DTI_LINK_OPEN;
    if (link->state == DTI_LINK_FREE)
        return;
    if (!open && link->dialled && link->state != DTI_LINK_REFUSED)
        dti_core_dial_failed(core, link, why ? why : "the connection was closed at once");
    else if (open && !dti_link_is_over(link) && dti_core_resumes(core, channel))
        dti_link_broken(core, link, why);
    else {
        dti_link_free(core, link);
        if (open && channel == DTI_CHANNEL_CONTROL && core->set.rank)
            dti_core_end_suspected(core);
    }
}

static bool dti_core_link_dropped(dti_core *core, dti_link *link, const char *why) {
    if (link->dialled)
        dti_core_dial_failed(core, link, why);
    else
        dti_link_free(core, link);
    return false;
}

/* Counts a damaged handshake, which says nothing about the other end. False: there were too many,
 * and the join fails. */
static bool dti_core_damaged(dti_core *core, uint32_t peer, const char *text) {
    char who[96];
    dti_peer_text(core, peer, who);
    if (core->state != DTI_CORE_JOINING || ++core->damaged < DTI_DAMAGED_MAX) {
        dti_core_note_refusal(core, NULL, "a connection to %s is tried again: %s", who, text);
        return true;
    }
    dti_core_suspect(core, DT_ERROR_CORRUPT, peer, "the handshake with %s failed %u times: %s", who,
                     core->damaged, text);
    return false;
}

/* Notes that a connection was refused. It claims to be from rank `who`; NULL: its bytes were
 * damaged. */
static void dti_core_refuses(dti_core *core, const dti_link *link, const char *who,
                             const char *text) {
    if (!who) {
        dti_core_note_refusal(core, link->from, "a connection was refused: %s", text);
        return;
    }
    snprintf(core->refused, sizeof core->refused,
             "; a connection that claims to be %.48s was refused: %.60s", who, text);
    dti_core_note_refusal(core, link->from, "a connection that claims to be %s was refused: %s",
                          who, text);
}

static void dti_core_link_refused(dti_core *core, dti_link *link, const char *text) {
    char who[96] = "another process";
    uint32_t peer = link->peer;
    if (peer == DTI_NOBODY && dti_get32(link->hello_in) == DTI_MAGIC_HELLO)
        peer = dti_get32(link->hello_in + 8); /* the rank that it claims */
    if (peer < core->set.size)
        dti_peer_text(core, peer, who);
    const bool damage = dti_refusal_is_damage(text);
    if (!link->dialled) {
        dti_core_refuses(core, link, damage ? NULL : who, text);
        return;
    }
    if (damage && !dti_core_damaged(core, link->peer, text))
        return;
    /* For data, and if both have joined. An unauthenticated refusal is damage or an attack. */
    if (damage || link->channel == DTI_CHANNEL_DATA || link->back->opened ||
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

/* The peer has proved the key. A control connection belongs to one process for good, at both
 * ends. */
static const char *dti_core_link_taken(dti_core *core, dti_link *link, uint32_t peer) {
    const dti_backlog *b = dti_back_of(core, peer, link->channel, link->socket);
    if (link->channel == DTI_CHANNEL_DATA)
        return core->failed ? "the group has ended" : NULL;
    if (!link->dialled && core->set.rank)
        return "this rank is not the coordinator";
    if (b->over)
        return "this rank was lost";
    if (!b->opened || !memcmp(b->instance, link->hello_in + 64, DTI_INSTANCE_BYTES))
        return NULL;
    return link->dialled ? "rank 0 is now another process"
                         : "another process has already joined as this rank";
}

static void dti_core_link_open(dti_core *core, dti_link *link) {
    bool control = link->channel == DTI_CHANNEL_CONTROL;
    dti_link **at = dti_link_place(core, link);
    dti_backlog *b = link->back = dti_back_of(core, link->peer, link->channel, link->socket);
    if (*at && *at != link) { /* the peer knows that it broke, and we do not */
        dti_back_break(core, b, "the other side connected again");
        dti_link_forget(core, *at);
        dti_link_free(core, *at);
    }
    *at = link;
    link->heard = link->spoke = core->now;
    link->resume_due = true;
    if (!control)
        core->events++;
    else if (!b->opened) {
        memcpy(b->instance, link->hello_in + 64, DTI_INSTANCE_BYTES);
        b->roster_next = DTI_NOBODY;
        b->join_due = link->dialled;
        /* It connected in the moment in which the group ended, and gets the cause like the
         * others. */
        b->revoke_due = core->set.rank == 0 && core->failed;
    }
    b->opened = true;
}

/* ---- time */

/* A dialled side waits for a broken connection: does the peer's process live? */
static void dti_tick_broken(dti_core *core, uint32_t peer) {
    dti_peer *p = &core->peers[peer];
    const dti_backlog *control = dti_control_back(core, peer);
    bool wait = false;
    if (control->broken && core->set.rank == 0 &&
        core->now - control->broken >= core->set.silence_ns)
        dti_back_lost(core, peer, DTI_CHANNEL_CONTROL, 0, "it did not come back");
    for (uint32_t k = 0; k <= core->set.sockets; k++)
        wait = wait || p->backs[k].broken;
    if (wait && p->probe_at && core->now >= p->probe_at)
        dti_peer_probe(core, peer);
    p->probe_at = wait ? p->probe_at : 0;
}

static void dti_tick_dials(dti_core *core) {
    if (core->set.rank && core->dial_at && core->now >= core->dial_at)
        dti_control_dial(core);
    for (uint32_t r = 0; r < core->set.size; r++) {
        dti_peer *p = &core->peers[r];
        if (p->dial_at && core->now >= p->dial_at) {
            p->dial_at = 0;
            dti_peer_dial(core, r);
        }
        dti_tick_broken(core, r);
    }
}
