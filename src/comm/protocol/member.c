/* A rank among the others, from the join to the end. This file owns messages without an operation
 * (heartbeats, ranks that left, the end of the group), leaving, and timers. A rank that leaves
 * sends BYE, so the end of a connection without it is a loss. The coordinator leaves last.
 *
 * failure.c decides on failures; join.c has the join. */

#define DTI_PAUSE_NS                                                                               \
    1000000000u /* woken so late, this process was stopped itself: no other rank is
                                    late */
#define DTI_LEAVE_NS 2000000000u

/* ---- the needs of an operation */

/* Whether something is still to come from the peer, or to go to it. */
static bool dti_flight_needs(const dti_core *core, const dti_flight *f, uint32_t peer) {
    if (!f->id || f->finished || f->group->place_of[peer] == DTI_NOBODY)
        return false;
    uint32_t place = f->group->place_of[peer];
    for (uint32_t i = f->first_of[place]; i != DTI_NOBODY; i = f->tracks[i].next)
        if (f->tracks[i].done < f->tracks[i].total && !dti_early_has(core, f, peer, i))
            return true;
    for (uint32_t k = 0; k < core->set.sockets && f->parting; k++) {
        const dti_backlog *b = &core->peers[peer].backs[k];
        for (uint64_t n = b->acknowledged; n < b->sent; n++)
            if (dti_flight_has_kept(f, b, n))
                return true;
    }
    return false;
}

/* All frames of a peer that left have been received, and an operation still needs it. */
static void dti_member_check_left(dti_core *core, uint32_t peer) {
    const dti_peer *p = &core->peers[peer];
    for (uint32_t k = 0; k < core->set.sockets; k++)
        if (p->backs[k].opened && !p->backs[k].over && !p->backs[k].bye_received)
            return; /* its BYE there is the word that counts */
    for (uint32_t i = 0; i < core->flight_count && p->left; i++)
        if (dti_flight_needs(core, core->flights[i], peer))
            dti_core_lost(core, peer, "it has left the group");
}

static void dti_member_left(dti_core *core, uint32_t peer) {
    core->peers[peer].left = true;
    dti_member_check_left(core, peer);
}

/* ---- frames out */

static bool dti_member_fill_kept(dti_core *core, dti_link *link) {
    dti_backlog *b = link->back;
    if (!dti_backlog_has_room(b, DTI_CONTROL_BYTES_MAX))
        return false;
    if (b->join_due)
        dti_put_join(core, link);
    else if (b->roster_next != DTI_NOBODY)
        dti_put_roster(core, link);
    else if (b->revoke_due)
        dti_put_end(core, link, DTI_FRAME_REVOKE);
    else if (b->lost_due)
        dti_put_end(core, link, DTI_FRAME_LOST);
    else if (core->set.rank == 0 && b->left_told < core->left_count)
        dti_control_put(link, DTI_FRAME_LEFT, core->left_list[b->left_told++], NULL, 0);
    else
        return false;
    if (b->join_due)
        b->join_due = false;
    else if (b->roster_next == DTI_NOBODY)
        b->revoke_due = b->lost_due = false;
    return true;
}

/* A heartbeat also acknowledges received frames. */
static void dti_member_fill(dti_core *core, dti_link *link) {
    if (dti_member_fill_kept(core, link) ||
        (core->now - link->spoke < dti_beat_ns(core) && link->back->told == link->back->received))
        return;
    dti_control_put(link, DTI_FRAME_HEARTBEAT, 0, NULL, 0);
    link->spoke = core->now;
}

/* Puts frames into tx while it has room and no payload is attached. */
static void dti_core_fill(dti_core *core, dti_link *link) {
    dti_backlog *b = link->back;
    if (link->resume_due)
        dti_link_put_frame(link, &(dti_frame){.type = DTI_FRAME_RESUME, .value = b->received},
                           NULL);
    link->resume_due = false;
    /* A first connection has nothing to send again. So the group's end goes out before the peer's
     * RESUME has come. */
    const bool first = (b->lost_due || b->revoke_due) && !b->broken;
    if (!(link->resumed || first) || dti_link_put_again(link) || b->bye_sent)
        return;
    if (link->channel == DTI_CHANNEL_CONTROL)
        dti_member_fill(core, link);
    else if (core->state == DTI_CORE_OPEN)
        dti_engine_fill(core, link);
    if (b->bye_due && !link->data_left && dti_link_room(link) >= DTI_HEADER_BYTES &&
        (link->tx_to == 0 || link->channel == DTI_CHANNEL_DATA)) {
        dti_link_put_frame(link, &(dti_frame){.type = DTI_FRAME_BYE}, NULL);
        b->bye_sent = true;
    }
}

/* ---- frames in */

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
        dti_core_link_failed(core, link, DT_ERROR_CORRUPT, "received %s", wrong);
}

/* ---- leaving */

static void dti_member_bye(dti_core *core, dti_link *link) {
    bool control = link->channel == DTI_CHANNEL_CONTROL;
    link->back->bye_due = true;
    dti_engine_release(core, link, /* it wants nothing any more */
                       link->back->bye_sent ? link->back->bye_at : link->back->sent);
    if (control && (core->state == DTI_CORE_JOINING || !core->peers[link->peer].joined)) {
        dti_core_lost(core, link->peer, "it left before all ranks had joined");
        return;
    }
    if (control && core->set.rank) {
        core->alone_at = core->now;
        dti_core_end_suspected(core);
    }
    if (control && !core->set.rank)
        core->left_list[core->left_count++] = link->peer;
    dti_member_left(core, link->peer);
}

static void dti_core_depart(dti_core *core) {
    core->stays_until = 0;
    /* Data that stands still must not continue: buffers of cancelled operations are no longer
     * ours. */
    dti_core_end_suspected(core);
    bool ended = core->state == DTI_CORE_ENDED;
    if (!ended)
        dti_core_end(core, DT_ERROR_CANCELLED, core->set.rank, "this rank has left the group");
    core->failed = ended;
    core->state = DTI_CORE_LEAVING;
    core->leave_deadline = core->now + DTI_LEAVE_NS;
    for (uint32_t r = 0; r < core->set.size; r++)
        for (uint32_t k = 0; k <= core->set.sockets; k++) {
            dti_backlog *b = &core->peers[r].backs[k];
            b->revoke_due = b->revoke_due && ended;
            b->bye_due = true; /* also on one that is being made: the other end may have it */
        }
    for (uint32_t i = 0; i < core->link_count; i++) {
        dti_link *link = &core->links[i];
        if ((ended && link->channel == DTI_CHANNEL_DATA) || link->peer == DTI_NOBODY)
            dti_link_free(core, link);
    }
}

/* Whether this rank is the coordinator of others that go on, and has done its own part. */
static bool dti_core_is_needed(const dti_core *core) {
    for (uint32_t i = 0; i < core->flight_count; i++)
        if (core->flights[i]->id && !core->flights[i]->finished)
            return false;
    return core->set.rank == 0 && core->state == DTI_CORE_OPEN &&
           core->left_count < core->set.size - 1;
}

/* The coordinator leaves last. It announces that it has finished (LEFT, and BYE for data). For a
 * while it still reports ranks that died or left. */
static void dti_core_stay(dti_core *core) {
    core->stays_until = core->now + core->set.silence_ns;
    core->left_list[core->left_count++] = 0;
    for (uint32_t r = 0; r < core->set.size; r++)
        for (uint32_t k = 0; k < core->set.sockets; k++)
            core->peers[r].backs[k].bye_due = true;
}

/* Says BYE to everybody; dti_core_is_gone says when it is over. */
static void dti_core_leave(dti_core *core) {
    if (core->state == DTI_CORE_LEAVING || core->stays_until)
        return;
    if (dti_core_is_needed(core))
        dti_core_stay(core);
    else
        dti_core_depart(core);
}

/* All others have left, the group has ended, or it has stayed long enough. */
static void dti_tick_stay(dti_core *core) {
    if (core->stays_until && (core->left_count == core->set.size || core->state != DTI_CORE_OPEN ||
                              core->now >= core->stays_until))
        dti_core_depart(core);
}

/* Whether a connection that broke is still to be joined again. */
static bool dti_core_is_broken(const dti_core *core) {
    for (uint32_t r = 0; r < core->set.size; r++)
        for (uint32_t k = 0; k <= core->set.sockets; k++) {
            uint32_t channel = k < core->set.sockets ? DTI_CHANNEL_DATA : DTI_CHANNEL_CONTROL;
            if (core->peers[r].backs[k].broken && dti_core_resumes(core, channel))
                return true;
        }
    return false;
}

/* Whether members that have not come yet would wait for this coordinator, whose join has failed.
 * After a TIMEOUT they have waited for as long themselves. */
static bool dti_core_has_to_tell(const dti_core *core) {
    bool missing = false;
    for (uint32_t r = 1; r < core->set.size && core->failed && !core->set.rank; r++)
        missing = missing || !dti_control_back(core, r)->opened;
    return missing && core->result != DT_ERROR_TIMEOUT;
}

static bool dti_core_is_gone(const dti_core *core) {
    if (core->state != DTI_CORE_LEAVING)
        return false;
    if (core->now >= core->leave_deadline)
        return true;
    for (uint32_t i = 0; i < core->link_count; i++) /* a peer without a proof does not count */
        if (core->links[i].state != DTI_LINK_FREE && core->links[i].peer != DTI_NOBODY)
            return false;
    return !dti_core_is_broken(core) && !dti_core_has_to_tell(core);
}

/* ---- time */

/* After a damaged length a rank waits for bytes that never come. The peer's heartbeats look like
 * them. */
static void dti_tick_whole(dti_core *core, dti_link *link) {
    if (link->begun && link->heard >= link->begun + core->set.silence_ns)
        dti_core_link_failed(core, link, DT_ERROR_CORRUPT,
                             "a frame is still incomplete after %.1f s: its length is wrong",
                             (double)(link->heard - link->begun) * 1e-9);
}

/* Of one connection that is open: silence. */
static void dti_tick_open(dti_core *core, dti_link *link) {
    uint64_t quiet = core->now - link->heard;
    char why[96];
    if (link->channel == DTI_CHANNEL_CONTROL) {
        if (link->back->bye_received || link->back->bye_sent)
            return;
        if (quiet < core->set.silence_ns) {
            dti_tick_whole(core, link);
            return;
        }
        snprintf(why, sizeof why, "nothing was received from it for %.1f s", (double)quiet * 1e-9);
        dti_core_lost(core, link->peer, why);
    } else if ((link->pinged && core->now - link->pinged >= core->set.silence_ns) ||
               (link->ping_due &&
                core->now - DTI_MAX(link->heard, link->moved) >= core->set.silence_ns * 3 / 2)) {
        snprintf(why, sizeof why, "the connection is dead: nothing was received for %.1f s",
                 (double)quiet * 1e-9);
        dti_core_lost(core, link->peer, why);
    }
}

/* On its way to take the place of one that broke, and not there: another try may be better. */
static bool dti_link_is_stuck(const dti_core *core, const dti_link *link) {
    return link->dialled && !link->resumed && link->back && link->back->broken &&
           core->now - link->heard >= 2 * dti_beat_ns(core);
}

static void dti_tick_links(dti_core *core) {
    for (uint32_t i = 0; i < core->link_count; i++) {
        dti_link *link = &core->links[i];
        if (link->state == DTI_LINK_FREE || link->state == DTI_LINK_CLOSED)
            continue;
        if (dti_link_is_stuck(core, link))
            dti_core_closed(core, link, "no answer");
        else if (link->state == DTI_LINK_OPEN && core->state <= DTI_CORE_OPEN)
            dti_tick_open(core, link);
        else if (link->state != DTI_LINK_OPEN && core->now >= link->deadline)
            dti_core_link_dropped(core, link, "no answer in 5 s");
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

/* This rank itself stood still, so the others' time starts again. */
static void dti_core_forgive(dti_core *core) {
    for (uint32_t i = 0; i < core->link_count; i++) {
        core->links[i].heard = core->now;
        core->links[i].begun = 0;
        core->links[i].pinged = 0;
    }
    for (uint32_t r = 0; r < core->set.size; r++)
        for (uint32_t k = 0; k <= core->set.sockets; k++) {
            dti_backlog *b = &core->peers[r].backs[k];
            b->broken = b->broken ? core->now : 0;
        }
}

/* Lets time pass. */
static void dti_core_tick(dti_core *core, uint64_t now) {
    bool paused = core->last_tick && now - core->last_tick > DTI_PAUSE_NS;
    core->now = now;
    core->last_tick = now;
    if (paused)
        dti_core_forgive(core);
    if (core->state == DTI_CORE_JOINING)
        dti_tick_missing(core);
    if (core->state == DTI_CORE_SUSPECT && now >= core->suspect_deadline) {
        /* Then the noticed failure may be the consequence of that, not the cause. */
        size_t used = strlen(core->text);
        snprintf(core->text + used, sizeof core->text - used, "; rank 0 did not answer the report");
        dti_core_end(core, core->result, core->culprit, core->text);
    }
    dti_tick_links(core);
    dti_tick_dials(core);
    if (core->state == DTI_CORE_OPEN)
        dti_tick_flights(core);
    dti_tick_refusals(core);
    dti_tick_stay(core);
}

/* When dti_core_tick has something to do at the latest. */
static uint64_t dti_core_deadline(const dti_core *core) {
    uint64_t next = core->now + dti_ask_ns(core);
    if (core->state == DTI_CORE_SUSPECT)
        next = DTI_MIN(next, core->suspect_deadline);
    if (core->state == DTI_CORE_LEAVING)
        next = DTI_MIN(next, core->leave_deadline);
    if (core->stays_until)
        next = DTI_MIN(next, core->stays_until);
    if (core->dial_at)
        next = DTI_MIN(next, core->dial_at);
    for (uint32_t r = 0; r < core->set.size; r++) {
        if (core->peers[r].dial_at)
            next = DTI_MIN(next, core->peers[r].dial_at);
        if (core->peers[r].probe_at)
            next = DTI_MIN(next, core->peers[r].probe_at);
    }
    return next;
}
