/* Failures of the group. A rank that notices a failure stops its data and reports it to the
 * coordinator (LOST). Only the coordinator decides on the cause, and sends it to all (REVOKE), so
 * all ranks name the same culprit. If the coordinator does not answer, the rank's own finding is
 * the cause. Ranks notice silence, dead connections, ranks that left, and ranks that do not post an
 * operation that others wait for.
 *
 * Nothing is repaired here: a group that has ended stays ended, and the application makes another.
 * connect.c restores connections that broke. */

#define DTI_BEATS_PER_SILENCE 10
#define DTI_LATE_NOTE_NS 10000000000u
#define DTI_SUSPECT_NS 500000000u
#define DTI_REDIAL_NS 10000000000u

/* ---- errors */

static dti_backlog *dti_control_back(const dti_core *core, uint32_t peer) {
    return &core->peers[peer].backs[core->set.sockets];
}

static void dti_core_end(dti_core *core, dt_result result, uint32_t culprit, const char *text) {
    if (core->state == DTI_CORE_ENDED)
        return;
    if (core->refusals.held)
        dti_refusals_sum_up(core);
    core->state = DTI_CORE_ENDED;
    core->failed = true;
    core->events++;
    core->result = result;
    core->culprit = culprit;
    if (text != core->text)
        snprintf(core->text, sizeof core->text, "%s", text);
    for (uint32_t i = 0; i < core->flight_count; i++)
        if (core->flights[i]->id)
            dti_flight_finish(core, core->flights[i], result);
    for (uint32_t r = 1; r < core->set.size && !core->set.rank; r++)
        dti_control_back(core, r)->revoke_due = true;
}

/* Something is wrong: `culprit` is the rank that is thought to have caused it. */
DTI_PRINTF(4, 5)
static void dti_core_suspect(dti_core *core, dt_result result, uint32_t culprit, const char *format,
                             ...) {
    if (core->state == DTI_CORE_SUSPECT || core->state == DTI_CORE_ENDED ||
        core->state == DTI_CORE_LEAVING)
        return;
    DTI_FORMAT(core->text, format);
    core->result = result;
    core->culprit = culprit;
    /* A control connection that is broken may be joined again in time. */
    dti_backlog *control = core->set.rank ? dti_control_back(core, 0) : NULL;
    bool there = control && control->opened && !control->over && !control->bye_received;
    if (there)
        control->lost_due = true;
    if (!there || core->state == DTI_CORE_JOINING) {
        dti_core_end(core, result, culprit, core->text);
        return;
    }
    core->state = DTI_CORE_SUSPECT;
    core->suspect_deadline = core->now + DTI_SUSPECT_NS;
}

/* No rank will report the cause. */
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

/* The oldest operation in flight, for messages. */
static const char *dti_core_pending_text(const dti_core *core, char text[96]) {
    const dti_flight *first = NULL;
    for (uint32_t i = 0; i < core->flight_count; i++) {
        const dti_flight *f = core->flights[i];
        if (f->id && !f->finished && (!first || f->id < first->id))
            first = f;
    }
    text[0] = 0;
    if (first)
        snprintf(text, 96, "; %s number %llu of group %u was in progress",
                 dti_kind_name(first->op.kind), (unsigned long long)first->post.sequence,
                 first->group->id);
    return text;
}

static void dti_core_lost(dti_core *core, uint32_t peer, const char *why) {
    char who[96], what[96];
    dti_core_suspect(core, DT_ERROR_PEER_LOST, peer, "%s is lost: %s%s",
                     dti_peer_text(core, peer, who), why, dti_core_pending_text(core, what));
}

/* An error in received data on a connection; false, for the caller to return. */
DTI_PRINTF(4, 5)
static bool dti_core_link_failed(dti_core *core, dti_link *link, dt_result result,
                                 const char *format, ...) {
    char text[256], who[96];
    DTI_FORMAT(text, format);
    dti_core_suspect(core, result, link->peer, "from %s: %s", dti_peer_text(core, link->peer, who),
                     text);
    return false;
}

/* ---- the frames of the end */

static void dti_control_put(dti_link *link, dti_frame_type type, uint64_t value, const void *body,
                            size_t bytes) {
    dti_link_put_frame(
        link, &(dti_frame){.type = (uint8_t)type, .value = value, .length = (uint32_t)bytes}, body);
}

static void dti_put_end(dti_core *core, dti_link *link, dti_frame_type type) {
    uint8_t body[8 + sizeof core->text];
    size_t bytes = strlen(core->text);
    dti_put32(body, (uint32_t)core->result);
    dti_put32(body + 4, core->culprit);
    memcpy(body + 8, core->text, bytes);
    dti_control_put(link, type, 0, body, 8 + bytes);
}

/* Whether a result is the cause of a group's end. A wait's own results (INVALID, TIMEOUT) are not,
 * or its caller would regard the handle as pending. */
static bool dti_core_is_cause(const dti_core *core, uint32_t result) {
    switch (result) {
    case DT_ERROR_REFUSED:
    case DT_ERROR_PEER_LOST:
    case DT_ERROR_MISMATCH:
    case DT_ERROR_CORRUPT:
    case DT_ERROR_CANCELLED:
    case DT_ERROR_LATE: return true;
    case DT_ERROR_TIMEOUT: return core->state != DTI_CORE_OPEN && core->state != DTI_CORE_SUSPECT;
    default: return false;
    }
}

/* LOST at the coordinator, REVOKE at a member. */
static const char *dti_member_ended(dti_core *core, const dti_link *link, const uint8_t *body) {
    uint32_t bytes = link->frame.length;
    bool lost = link->frame.type == DTI_FRAME_LOST;
    if (bytes < 8 || bytes >= 8 + sizeof core->text || lost != (core->set.rank == 0))
        return "the end of the group, reported by the wrong rank";
    uint32_t result = dti_get32(body), culprit = dti_get32(body + 4);
    char text[sizeof core->text];
    for (uint32_t i = 8; i < bytes; i++) /* a terminal may show it */
        text[i - 8] = body[i] < 32 || body[i] == 127 ? '?' : (char)body[i];
    text[bytes - 8] = 0;
    if (!dti_core_is_cause(core, result) || culprit >= core->set.size)
        return "the end of the group, without a cause";
    if (core->state != DTI_CORE_LEAVING)
        dti_core_end(core, (dt_result)result, culprit, text);
    return NULL;
}

/* ---- the needs of an operation */

static uint64_t dti_beat_ns(const dti_core *core) {
    return core->set.silence_ns / DTI_BEATS_PER_SILENCE;
}

/* A rank that would be called late is asked well before. */
static uint64_t dti_ask_ns(const dti_core *core) {
    const uint64_t beat = dti_beat_ns(core), half = core->set.op_ns / 2;
    return half ? DTI_MIN(beat, half) : beat;
}

/* Data is due in either direction, and nothing moves: pings the peer. The answer does not need the
 * peer's application. */
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

/* The coordinator has left, so nobody would report that a peer that should connect is gone. */
static void dti_tick_alone(dti_core *core, const dti_flight *f, uint32_t peer) {
    const dti_peer *p = &core->peers[peer];
    uint64_t since = DTI_MAX(core->alone_at, f->posted_at);
    for (uint32_t k = 0; k < core->set.sockets && core->alone_at; k++)
        if (!p->data[k] && core->now - DTI_MAX(since, p->backs[k].broken) >= DTI_REDIAL_NS)
            dti_core_lost(core, peer, "it does not connect again, and rank 0 has left");
}

/* Early data is not announced. But a peer whose operation has nothing to send would never announce
 * that it posted another one. So it is asked after a while. */
static void dti_tick_ask(const dti_core *core, dti_flight *f, uint32_t place) {
    if (!(f->peer_state[place] & (DTI_PEER_POSTED | DTI_PEER_ASKED)) &&
        core->now - f->posted_at >= dti_ask_ns(core))
        f->peer_state[place] |= DTI_PEER_DUE;
}

/* Reports a rank that has not posted an operation that others wait for. It is an error only with
 * .op_timeout_ms. */
static void dti_tick_late(dti_core *core, const dti_flight *f, uint32_t place) {
    dti_peer *p = &core->peers[f->group->ranks[place]];
    uint64_t waited = core->now - f->posted_at;
    char who[96];
    if (core->set.op_ns && waited >= core->set.op_ns) {
        dti_core_suspect(core, DT_ERROR_LATE, f->group->ranks[place],
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
