/* Who belongs to the run, and that it stays so. A star around rank 0, the coordinator: each member
 * has a control connection to it, joins on it, beats on it, and hears on it that the group has
 * ended and why. What an error at one rank means is decided by the coordinator alone, so all ranks
 * name the same culprit. Leaving is said (BYE), so that an end of a connection without it is a
 * loss. */

#define DTI_BEATS_PER_SILENCE 10
#define DTI_LATE_NOTE_NS 10000000000u
#define DTI_PAUSE_NS 1000000000u /* woken so late, we were stopped ourselves: nobody else is late */
#define DTI_SUSPECT_NS 500000000u
#define DTI_LEAVE_NS 2000000000u
#define DTI_REDIAL_NS 10000000000u
#define DTI_JOIN_FIXED 14
#define DTI_JOIN_GRACE_NS 1000000000u

/* ---- notes and errors */

static void dti_core_note(dti_core *core, dt_log_level level, const char *format, ...) {
    uint32_t at = (core->note_first + core->note_count) % DTI_NOTES;
    if (core->note_count == DTI_NOTES)
        return; /* the oldest say most */
    va_list list;
    va_start(list, format);
    vsnprintf(core->notes[at], sizeof core->notes[at], format, list);
    va_end(list);
    core->note_levels[at] = (uint8_t)level;
    core->note_count++;
}

static void dti_core_end(dti_core *core, dt_result result, uint32_t culprit, const char *text) {
    if (core->state == DTI_CORE_ENDED)
        return;
    core->state = DTI_CORE_ENDED;
    core->events++;
    core->result = result;
    core->culprit = culprit;
    if (text != core->text)
        snprintf(core->text, sizeof core->text, "%s", text);
    for (uint32_t i = 0; i < core->flight_count; i++)
        if (core->flights[i]->id)
            dti_flight_finish(core, core->flights[i], result);
    for (uint32_t i = 0; i < core->link_count; i++) {
        dti_link *link = &core->links[i];
        if (link->state != DTI_LINK_OPEN || link->channel != DTI_CHANNEL_CONTROL)
            continue;
        link->revoke_due = core->set.rank == 0;
    }
}

static void dti_core_suspect(dti_core *core, dt_result result, uint32_t culprit, const char *format,
                             ...) {
    if (core->state == DTI_CORE_SUSPECT || core->state == DTI_CORE_ENDED ||
        core->state == DTI_CORE_LEAVING)
        return;
    va_list list;
    va_start(list, format);
    vsnprintf(core->text, sizeof core->text, format, list);
    va_end(list);
    core->result = result;
    core->culprit = culprit;
    dti_link *control = core->set.rank ? core->peers[0].control : NULL;
    if (!control || control->state != DTI_LINK_OPEN || control->bye_received ||
        core->state == DTI_CORE_JOINING) {
        if (control && control->state == DTI_LINK_OPEN)
            control->lost_due = true;
        dti_core_end(core, result, culprit, core->text);
        return;
    }
    core->state = DTI_CORE_SUSPECT;
    core->suspect_deadline = core->now + DTI_SUSPECT_NS;
    control->lost_due = true;
}

/* Nobody will say what the cause is. */
static void dti_core_end_suspected(dti_core *core) {
    if (core->state == DTI_CORE_SUSPECT)
        dti_core_end(core, core->result, core->culprit, core->text);
}

/* "rank 3 (10.0.0.3:4711)". */
static const char *dti_peer_text(const dti_core *core, uint32_t peer, char text[96]) {
    const char *where = core->peers[peer].where;
    snprintf(text, 96, where[0] ? "rank %u (%s)" : "rank %u", peer, where);
    return text;
}

/* What was under way, for messages. */
static const char *dti_core_pending_text(const dti_core *core, char text[96]) {
    const dti_flight *first = NULL;
    for (uint32_t i = 0; i < core->flight_count; i++) {
        const dti_flight *f = core->flights[i];
        if (f->id && !f->finished && (!first || f->id < first->id))
            first = f;
    }
    text[0] = 0;
    if (first)
        snprintf(text, 96, "; %s number %llu of group %u was under way",
                 dti_kind_name(first->op.kind), (unsigned long long)first->post.sequence,
                 first->group->id);
    return text;
}

static void dti_core_lost(dti_core *core, uint32_t peer, const char *why) {
    char who[96], what[96];
    dti_core_suspect(core, DT_ERROR_PEER_LOST, peer, "%s is lost: %s%s",
                     dti_peer_text(core, peer, who), why, dti_core_pending_text(core, what));
}

static void dti_core_link_failed(dti_core *core, dti_link *link, dt_result result,
                                 const char *format, ...) {
    char text[256], who[96];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    dti_core_suspect(core, result, link->peer, "from %s: %s", dti_peer_text(core, link->peer, who),
                     text);
}

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

/* A connection that came in; the oldest that has proved nothing makes room. NULL: no more are
 * taken. */
static dti_link *dti_core_accepted(dti_core *core) {
    uint32_t pending = 0;
    dti_link *oldest = NULL;
    if (core->state >= DTI_CORE_SUSPECT)
        return NULL;
    for (uint32_t i = 0; i < core->link_count; i++) {
        dti_link *link = &core->links[i];
        if (!dti_link_is_pending(link))
            continue;
        pending++;
        if (!oldest || link->deadline < oldest->deadline)
            oldest = link;
    }
    if (pending >= DTI_MAX(64u, 2 * core->set.size))
        dti_link_free(core, oldest);
    return dti_link_new(core, DTI_CHANNEL_CONTROL, false);
}

static void dti_core_connected(dti_core *core, dti_link *link) {
    link->state = DTI_LINK_HELLO;
    link->deadline = core->now + DTI_HANDSHAKE_NS;
    if (!dti_hello_write(core, link, link->peer))
        dti_core_link_dropped(core, link, "the system gives no random bytes");
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

static void dti_member_check_left(dti_core *core, uint32_t peer);

/* An operation needs data connections to a rank: the higher rank makes them. */
static void dti_member_want(dti_core *core, uint32_t peer) {
    dti_peer *p = &core->peers[peer];
    if (peer == core->set.rank || p->left) {
        return;
    }
    if (peer > core->set.rank || p->dial)
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
        dti_core_note(core, DT_LOG_WARNING, "a connection that says it is %s was refused: %s", who,
                      text);
        return;
    }
    if (core->set.guessed && core->state == DTI_CORE_JOINING &&
        link->channel == DTI_CHANNEL_CONTROL && dti_refusal_is_others(text)) {
        dti_core_dial_failed(core, link, text);
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

/* ---- frames out */

static void dti_control_put(dti_link *link, dti_frame_type type, uint64_t value, const void *body,
                            size_t bytes) {
    dti_link_put_frame(
        link, &(dti_frame){.type = (uint8_t)type, .value = value, .length = (uint32_t)bytes}, body);
}

static void dti_put_join(dti_core *core, dti_link *link) {
    const dti_peer *me = &core->peers[core->set.rank];
    uint8_t body[DTI_JOIN_FIXED + DTI_ADDRESS_BYTES];
    dti_put64(body, core->set.chunk_bytes);
    dti_put32(body + 8, core->set.window);
    dti_put16(body + 12, me->address_bytes);
    memcpy(body + DTI_JOIN_FIXED, me->address, me->address_bytes);
    dti_control_put(link, DTI_FRAME_JOIN, 0, body, DTI_JOIN_FIXED + me->address_bytes);
}

/* As many ranks' addresses as a frame takes. */
static void dti_put_roster(dti_core *core, dti_link *link) {
    uint8_t body[DTI_CONTROL_BYTES_MAX];
    uint32_t bytes = 16, first = link->roster_next;
    memcpy(body, core->nonce, 16);
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

static void dti_put_end(dti_core *core, dti_link *link, dti_frame_type type) {
    uint8_t body[8 + sizeof core->text];
    size_t bytes = strlen(core->text);
    dti_put32(body, (uint32_t)core->result);
    dti_put32(body + 4, core->culprit);
    memcpy(body + 8, core->text, bytes);
    dti_control_put(link, type, 0, body, 8 + bytes);
}

static uint64_t dti_beat_ns(const dti_core *core) {
    return core->set.silence_ns / DTI_BEATS_PER_SILENCE;
}

static void dti_member_fill(dti_core *core, dti_link *link) {
    if (link->join_due)
        dti_put_join(core, link);
    else if (link->roster_next != DTI_NOBODY)
        dti_put_roster(core, link);
    else if (link->revoke_due)
        dti_put_end(core, link, DTI_FRAME_REVOKE);
    else if (link->lost_due)
        dti_put_end(core, link, DTI_FRAME_LOST);
    else if (core->set.rank == 0 && link->left_told < core->left_count)
        dti_control_put(link, DTI_FRAME_LEFT, core->left_list[link->left_told++], NULL, 0);
    else if (core->now - link->spoke >= dti_beat_ns(core)) {
        dti_control_put(link, DTI_FRAME_HEARTBEAT, core->posted, NULL, 0);
        link->spoke = core->now;
    }
    if (link->join_due)
        link->join_due = false;
    else if (link->roster_next == DTI_NOBODY)
        link->revoke_due = link->lost_due = false;
}

static void dti_core_fill(dti_core *core, dti_link *link) {
    if (link->bye_sent)
        return;
    if (link->channel == DTI_CHANNEL_CONTROL)
        dti_member_fill(core, link);
    else if (core->state == DTI_CORE_OPEN)
        dti_engine_fill(core, link);
    if (link->bye_due && !link->data_left && dti_link_room(link) >= DTI_HEADER_BYTES &&
        (link->tx_to == 0 || link->channel == DTI_CHANNEL_DATA)) {
        dti_link_put_frame(link, &(dti_frame){.type = DTI_FRAME_BYE}, NULL);
        link->bye_sent = true;
    }
}

/* ---- frames in */

static void dti_member_all_joined(dti_core *core) {
    core->state = DTI_CORE_OPEN;
    for (uint32_t r = 1; r < core->set.size; r++)
        core->peers[r].control->roster_next = 0;
    for (uint32_t i = 0; i < core->link_count; i++)
        if (core->links[i].state == DTI_LINK_HELLO && !core->links[i].dialled)
            dti_link_digest(core, &core->links[i]);
}

static void dti_peer_set_address(dti_core *core, uint32_t peer, const uint8_t *address,
                                 uint32_t bytes) {
    dti_peer *p = &core->peers[peer];
    memcpy(p->address, address, bytes);
    p->address_bytes = (uint16_t)bytes;
    core->io.describe(core->io_user, address, bytes, p->where);
}

static const char *dti_member_join(dti_core *core, dti_link *link, const uint8_t *body) {
    uint32_t bytes = link->frame.length;
    dti_peer *p = &core->peers[link->peer];
    if (core->set.rank || core->state != DTI_CORE_JOINING || p->joined || bytes < DTI_JOIN_FIXED)
        return "a JOIN out of turn";
    uint32_t address = dti_get16(body + 12);
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
    p->joined = true;
    if (++core->joined == core->set.size - 1)
        dti_member_all_joined(core);
    return NULL;
}

static const char *dti_member_roster(dti_core *core, dti_link *link, const uint8_t *body) {
    uint32_t bytes = link->frame.length, at = 16;
    if (!core->set.rank || core->state != DTI_CORE_JOINING || bytes < 16 ||
        link->frame.value != core->joined)
        return "a ROSTER out of turn";
    memcpy(core->nonce, body, 16);
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
    if (core->joined == core->set.size) {
        core->state = DTI_CORE_OPEN;
        for (uint32_t i = 0; i < core->link_count; i++)
            if (core->links[i].state == DTI_LINK_HELLO && !core->links[i].dialled)
                dti_link_digest(core, &core->links[i]);
    }
    return NULL;
}

/* LOST at the coordinator, REVOKE at a member. */
static const char *dti_member_ended(dti_core *core, const dti_link *link, const uint8_t *body) {
    uint32_t bytes = link->frame.length;
    bool lost = link->frame.type == DTI_FRAME_LOST;
    if (bytes < 8 || bytes >= 8 + sizeof core->text || lost != (core->set.rank == 0))
        return "the end of the group, told by the wrong rank";
    uint32_t result = dti_get32(body), culprit = dti_get32(body + 4);
    char text[sizeof core->text];
    for (uint32_t i = 8; i < bytes; i++) /* a terminal may show it */
        text[i - 8] = body[i] < 32 || body[i] == 127 ? '?' : (char)body[i];
    text[bytes - 8] = 0;
    if (result == DT_OK || result > DT_ERROR_FORKED || culprit >= core->set.size)
        return "the end of the group, without a cause";
    if (core->state != DTI_CORE_LEAVING)
        dti_core_end(core, (dt_result)result, culprit, text);
    return NULL;
}

static void dti_member_left(dti_core *core, uint32_t peer) {
    core->peers[peer].left = true;
    dti_member_check_left(core, peer);
}

static void dti_member_frame(dti_core *core, dti_link *link, const uint8_t *body) {
    const dti_frame *f = &link->frame;
    const char *wrong = NULL;
    if (f->type == DTI_FRAME_JOIN)
        wrong = dti_member_join(core, link, body);
    else if (f->type == DTI_FRAME_ROSTER)
        wrong = dti_member_roster(core, link, body);
    else if (f->type == DTI_FRAME_LOST || f->type == DTI_FRAME_REVOKE)
        wrong = dti_member_ended(core, link, body);
    else if (f->type == DTI_FRAME_LEFT && core->set.rank && f->value < core->set.size)
        dti_member_left(core, (uint32_t)f->value);
    if (wrong)
        dti_core_link_failed(core, link, DT_ERROR_CORRUPT, "%s came", wrong);
}

/* ---- leaving */

/* Whether something is still to come from the peer, or to go to it. */
static bool dti_flight_needs(const dti_core *core, const dti_flight *f, uint32_t peer) {
    if (!f->id || f->finished || f->group->place_of[peer] == DTI_NOBODY)
        return false;
    uint32_t place = f->group->place_of[peer];
    for (uint32_t i = f->first_of[place]; i != DTI_NOBODY; i = f->tracks[i].next)
        if (f->tracks[i].done < f->tracks[i].total && !dti_early_has(core, f, peer, i))
            return true;
    return false;
}

/* All that a peer that has left has said has come, and an operation still needs it. */
static void dti_member_check_left(dti_core *core, uint32_t peer) {
    const dti_peer *p = &core->peers[peer];
    for (uint32_t k = 0; k < core->set.sockets; k++)
        if (p->data[k] && !p->data[k]->bye_received)
            return; /* its BYE there is the word that counts */
    for (uint32_t i = 0; i < core->flight_count && p->left; i++)
        if (dti_flight_needs(core, core->flights[i], peer))
            dti_core_lost(core, peer, "it has left the group");
}

static void dti_member_bye(dti_core *core, dti_link *link) {
    link->bye_due = true;
    bool control = link->channel == DTI_CHANNEL_CONTROL;
    if (control && (core->state == DTI_CORE_JOINING || !core->peers[link->peer].joined)) {
        dti_core_lost(core, link->peer, "it has left before all were there");
        return;
    }
    if (control && core->set.rank) {
        core->alone_at = core->now;
        dti_core_end_suspected(core);
    }
    if (link->channel == DTI_CHANNEL_DATA || core->set.rank) {
        dti_member_left(core, link->peer);
        return;
    }
    core->left_list[core->left_count++] = link->peer;
    dti_member_left(core, link->peer);
}

/* Says BYE to everybody; dti_core_is_gone says when it is over. */
static void dti_core_leave(dti_core *core) {
    if (core->state == DTI_CORE_LEAVING)
        return;
    /* Data that stands still must not go on: buffers of what was given up are not ours any more. */
    if (core->state == DTI_CORE_SUSPECT)
        dti_core_end(core, core->result, core->culprit, core->text);
    bool ended = core->state == DTI_CORE_ENDED;
    if (!ended)
        dti_core_end(core, DT_ERROR_CANCELLED, core->set.rank, "this rank has left the group");
    core->state = DTI_CORE_LEAVING;
    core->leave_deadline = core->now + DTI_LEAVE_NS;
    for (uint32_t i = 0; i < core->link_count; i++) {
        dti_link *link = &core->links[i];
        if (!ended)
            link->revoke_due = false;
        if (ended && link->channel == DTI_CHANNEL_DATA)
            dti_link_free(core, link);
        else if (link->state == DTI_LINK_OPEN || link->peer != DTI_NOBODY)
            link->bye_due = true; /* also on one that is being made: the other end may have it */
        else
            dti_link_free(core, link);
    }
}

static bool dti_core_is_gone(const dti_core *core) {
    if (core->now >= core->leave_deadline)
        return true;
    for (uint32_t i = 0; i < core->link_count; i++)
        if (core->links[i].state != DTI_LINK_FREE)
            return false;
    return true;
}

/* ---- time */

static void dti_tick_missing(dti_core *core) {
    char list[200] = "";
    size_t used = 0;
    if (core->set.rank) {
        snprintf(list, sizeof list, "%s", core->dial_why[0] ? core->dial_why : "no answer yet");
    } else {
        for (uint32_t r = 1; r < core->set.size && used < sizeof list - 16; r++)
            if (!core->peers[r].joined)
                used +=
                    (size_t)snprintf(list + used, sizeof list - used, "%s%u", used ? ", " : "", r);
    }
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

/* Of one connection that is open: silence. */
static void dti_tick_open(dti_core *core, dti_link *link) {
    uint64_t quiet = core->now - link->heard;
    char why[96];
    if (link->channel == DTI_CHANNEL_CONTROL) {
        if (quiet < core->set.silence_ns || link->bye_received || link->bye_sent)
            return;
        snprintf(why, sizeof why, "nothing was heard of it for %.1f s", (double)quiet * 1e-9);
        dti_core_lost(core, link->peer, why);
    } else if ((link->pinged && core->now - link->pinged >= core->set.silence_ns) ||
               (link->ping_due &&
                core->now - DTI_MAX(link->heard, link->moved) >= core->set.silence_ns * 3 / 2)) {
        snprintf(why, sizeof why, "the way to it is dead: nothing came for %.1f s",
                 (double)quiet * 1e-9);
        dti_core_lost(core, link->peer, why);
    }
}

static void dti_tick_links(dti_core *core) {
    for (uint32_t i = 0; i < core->link_count; i++) {
        dti_link *link = &core->links[i];
        if (link->state == DTI_LINK_OPEN && core->state <= DTI_CORE_OPEN)
            dti_tick_open(core, link);
        else if ((link->state == DTI_LINK_HELLO || link->state == DTI_LINK_PROOF ||
                  link->state == DTI_LINK_DIALING || link->state == DTI_LINK_REFUSED) &&
                 core->now >= link->deadline)
            dti_core_link_dropped(core, link, "no answer in 5 s");
    }
    for (uint32_t r = 0; r < core->set.size && core->state == DTI_CORE_OPEN; r++)
        if (core->peers[r].dial_at && core->now >= core->peers[r].dial_at) {
            core->peers[r].dial_at = 0;
            dti_peer_dial(core, r);
        }
}

/* Something is to come or to go, and nothing moves: asks whether the way is there. The answer does
 * not need the peer's application. */
static void dti_tick_owed(dti_core *core, uint32_t peer) {
    const dti_peer *p = &core->peers[peer];
    for (uint32_t k = 0; k < core->set.sockets; k++) {
        dti_link *link = p->data[k];
        if (!link || link->state != DTI_LINK_OPEN || link->pinged || link->ping_due ||
            core->now - DTI_MAX(link->heard, link->moved) < core->set.silence_ns / 2)
            continue;
        link->ping_due = true;
    }
}

/* With the coordinator gone nobody would tell that the peer, which is to connect, is gone too. */
static void dti_tick_alone(dti_core *core, const dti_flight *f, uint32_t peer) {
    const dti_peer *p = &core->peers[peer];
    uint64_t since = DTI_MAX(core->alone_at, f->posted_at);
    if (!core->alone_at || core->now - since < DTI_REDIAL_NS)
        return;
    for (uint32_t k = 0; k < core->set.sockets; k++)
        if (!p->data[k])
            dti_core_lost(core, peer, "it does not connect, and rank 0 has left");
}

/* What goes early is not announced. But a peer whose operation had nothing to send would never say
 * that it posted another one: so it is asked after a while. */
static void dti_tick_ask(const dti_core *core, dti_flight *f, uint32_t place) {
    if (!(f->peer_state[place] & (DTI_PEER_POSTED | DTI_PEER_ASKED)) &&
        core->now - f->posted_at >= dti_beat_ns(core))
        f->peer_state[place] |= DTI_PEER_DUE;
}

/* A rank that has not posted what others wait for: named, and an error only when asked for. */
static void dti_tick_late(dti_core *core, const dti_flight *f, uint32_t place) {
    dti_peer *p = &core->peers[f->group->ranks[place]];
    uint64_t waited = core->now - f->posted_at;
    char who[96];
    if (core->set.op_ns && waited >= core->set.op_ns) {
        dti_core_suspect(core, DT_ERROR_TIMEOUT, f->group->ranks[place],
                         "%s has not posted %s number %llu of group %u for %.1f s",
                         dti_peer_text(core, f->group->ranks[place], who),
                         dti_kind_name(f->op.kind), (unsigned long long)f->post.sequence,
                         f->group->id, (double)waited * 1e-9);
    } else if (waited >= DTI_LATE_NOTE_NS && core->now - p->late_said >= DTI_LATE_NOTE_NS) {
        p->late_said = core->now;
        dti_core_note(core, DT_LOG_WARNING, "%s has not posted %s number %llu for %.0f s",
                      dti_peer_text(core, f->group->ranks[place], who), dti_kind_name(f->op.kind),
                      (unsigned long long)f->post.sequence, (double)waited * 1e-9);
    }
}

static void dti_tick_flights(dti_core *core) {
    for (uint32_t i = 0; i < core->flight_count; i++) {
        dti_flight *f = core->flights[i];
        for (uint32_t place = 0; f->id && !f->finished && place < f->group->size; place++) {
            uint32_t peer = f->group->ranks[place];
            if (!(f->peer_state[place] & DTI_PEER_INVOLVED) || core->state != DTI_CORE_OPEN ||
                !dti_flight_needs(core, f, peer))
                continue;
            dti_tick_ask(core, f, place);
            dti_tick_owed(core, peer);
            dti_tick_alone(core, f, peer);
            if (core->peers[peer].left)
                dti_member_check_left(core, peer);
            else if (!(f->peer_state[place] & DTI_PEER_POSTED))
                dti_tick_late(core, f, place);
        }
    }
}

/* Lets time pass. */
static void dti_core_tick(dti_core *core, uint64_t now) {
    bool paused = core->last_tick && now - core->last_tick > DTI_PAUSE_NS;
    core->now = now;
    core->last_tick = now;
    for (uint32_t i = 0; paused && i < core->link_count; i++) {
        core->links[i].heard = now;
        core->links[i].pinged = 0;
    }
    if (core->state == DTI_CORE_JOINING)
        dti_tick_joining(core);
    if (core->state == DTI_CORE_SUSPECT && now >= core->suspect_deadline) {
        /* Then what was noticed may be the consequence of that, not the cause. */
        size_t used = strlen(core->text);
        snprintf(core->text + used, sizeof core->text - used,
                 "; rank 0, which was told, does not answer");
        dti_core_end(core, core->result, core->culprit, core->text);
    }
    dti_tick_links(core);
    if (core->state == DTI_CORE_OPEN)
        dti_tick_flights(core);
}

/* When dti_core_tick has something to do at the latest. */
static uint64_t dti_core_deadline(const dti_core *core) {
    uint64_t next = core->now + dti_beat_ns(core);
    if (core->state == DTI_CORE_SUSPECT)
        next = DTI_MIN(next, core->suspect_deadline);
    if (core->state == DTI_CORE_LEAVING)
        next = DTI_MIN(next, core->leave_deadline);
    if (core->dial_at)
        next = DTI_MIN(next, core->dial_at);
    for (uint32_t r = 0; r < core->set.size; r++)
        if (core->peers[r].dial_at)
            next = DTI_MIN(next, core->peers[r].dial_at);
    return next;
}
