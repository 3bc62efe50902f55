/* Received frames of operations. Permissions, acknowledgements and data find their operation. If
 * that has not been posted here yet, they wait in a bounded place. A peer that breaks the protocol
 * ends the group, with an error that names it. */

/* ---- permissions */

static uint32_t dti_flight_stream(const dti_flight *f, uint32_t place, dti_schedule_step_kind kind,
                                  uint32_t stream) {
    uint32_t i = f->first_of[place];
    while (i != DTI_NOBODY &&
           (f->schedule.steps[i].kind != kind || f->schedule.steps[i].stream != stream))
        i = f->tracks[i].next;
    return i;
}

static void dti_engine_credit(dti_core *core, dti_link *link) {
    const dti_frame *fr = &link->frame;
    dti_flight *f = dti_flight_find(core, link->peer, fr->group, fr->flags, fr->sequence);
    uint32_t step = DTI_NOBODY;
    if (f)
        step = dti_flight_stream(f, f->group->place_of[link->peer], DTI_SCHEDULE_SEND, fr->stream);
    else if (dti_posted_before(core, link->peer, fr->group, fr->flags, fr->sequence))
        return; /* it is over here */
    if (step == DTI_NOBODY || fr->value > f->tracks[step].total) {
        dti_core_link_failed(
            core, link, DT_ERROR_CORRUPT,
            "received a CREDIT for data that was not announced (stream %u of operation %llu)",
            fr->stream, (unsigned long long)fr->sequence);
        return;
    }
    dti_track *t = &f->tracks[step];
    t->granted = DTI_MAX(t->granted, (uint32_t)fr->value);
}

/* Frames of several sockets overtake each other: an older count does not take back a newer one. */
static void dti_engine_returned(dti_core *core, const dti_link *link) {
    dti_peer *p = &core->peers[link->peer];
    if ((uint16_t)(link->frame.returned - p->early_back) <= core->early_units)
        p->early_back = link->frame.returned;
}

/* ---- acknowledgements */

/* Operations that waited for memory to copy their sent data. */
static void dti_engine_parting(dti_core *core) {
    for (uint32_t i = 0; i < core->flight_count && core->parting; i++)
        if (core->flights[i]->id && core->flights[i]->parting)
            dti_flight_advance(core, core->flights[i]);
}

/* Steps that waited for that, in the order of their frames. */
static void dti_engine_held(dti_core *core, dti_link *link) {
    dti_backlog *b = link->back;
    for (uint64_t n = b->acknowledged; b->held && n < b->sent; n++) {
        dti_sent_frame *kept = dti_backlog_kept(b, n);
        if (!kept || !kept->held)
            continue;
        if (!kept->own && !dti_flight_copy(core, kept->flight, b, link, n)) {
            dti_flight_ask(core);
            return;
        }
        kept->held = false;
        b->held--;
        dti_track_done(core, kept->flight, kept->step, kept->chunk);
        dti_flight_advance(core, kept->flight);
    }
}

/* The peer has all frames before this one. */
static void dti_engine_release(dti_core *core, dti_link *link, uint64_t before) {
    dti_backlog *b = link->back;
    while (b->acknowledged < before) {
        const dti_sent_frame *kept = b->held ? dti_backlog_at(b, b->acknowledged) : NULL;
        dti_flight *f = kept && kept->held ? kept->flight : NULL;
        const uint32_t step = f ? kept->step : 0, chunk = f ? kept->chunk : 0;
        dti_backlog_drop(b);
        b->held -= f != NULL;
        if (f) {
            dti_track_done(core, f, step, chunk);
            dti_flight_advance(core, f);
        }
    }
    dti_engine_held(core, link);
    dti_engine_parting(core);
}

static bool dti_engine_acknowledged(dti_core *core, dti_link *link, uint16_t number) {
    const dti_backlog *b = link->back;
    const uint16_t more = (uint16_t)(number - (uint16_t)b->acknowledged);
    const uint64_t gone = link->data_left ? link->tx_number : b->sent;
    if (b->bye_received || link->lasting || !more)
        return true;
    if (more > gone - b->acknowledged)
        return dti_core_link_failed(core, link, DT_ERROR_CORRUPT,
                                    "received an acknowledgement of frames that were not sent");
    dti_engine_release(core, link, b->acknowledged + more);
    return true;
}

static void dti_engine_frame(dti_core *core, dti_link *link) {
    dti_engine_returned(core, link);
    if (link->frame.type == DTI_FRAME_POST)
        dti_engine_post(core, link);
    else if (link->frame.type == DTI_FRAME_CREDIT)
        dti_engine_credit(core, link);
    else if (link->frame.type == DTI_FRAME_PING)
        link->pong_due = true;
    else if (link->frame.type == DTI_FRAME_PONG) { /* asks again for the missing data */
        dti_engine_held(core, link);
        dti_engine_parting(core);
    }
}

/* ---- data coming in */

static bool dti_engine_data_body(dti_core *core, dti_link *link) {
    const dti_frame *fr = &link->frame;
    dti_flight *f = dti_flight_find(core, link->peer, fr->group, fr->flags, fr->sequence);
    uint32_t step = DTI_NOBODY;
    if (f)
        step = dti_flight_stream(f, f->group->place_of[link->peer], DTI_SCHEDULE_RECV, fr->stream);
    bool fits = step != DTI_NOBODY;
    uint32_t chunk = 0;
    if (fits) {
        const dti_schedule_step *s = &f->schedule.steps[step];
        uint64_t bytes = f->schedule.chunk_elements * dti_flight_step_bytes(s);
        fits = fr->value % bytes == 0 && fr->value / bytes < f->tracks[step].granted;
        chunk = fits ? (uint32_t)(fr->value / bytes) : 0;
        fits = fits && !dti_track_has(core, f, &f->tracks[step], chunk) &&
               (core->set.sockets > 1 || chunk == f->tracks[step].done) &&
               chunk % core->set.sockets == link->socket && /* so none comes twice at once */
               fr->length == dti_chunk_count(f, s, chunk) * dti_flight_step_bytes(s);
    }
    if (!fits)
        return dti_core_link_failed(core, link, DT_ERROR_CORRUPT,
                                    "received data that was not permitted (%u bytes at %llu of "
                                    "stream %u of operation %llu)",
                                    fr->length, (unsigned long long)fr->value, fr->stream,
                                    (unsigned long long)fr->sequence);
    link->rx_flight = f;
    link->rx_step = step;
    link->rx_chunk = chunk;
    link->body = dti_flight_step_at(core, f, step, chunk);
    return true;
}

/* An early stream whose operation may take it now: its step, or DTI_NOBODY. */
static uint32_t dti_early_step(const dti_core *core, const dti_flight *f, uint32_t place,
                               const dti_frame *fr) {
    uint32_t step = dti_flight_stream(f, place, DTI_SCHEDULE_RECV, fr->stream);
    const dti_link *link = core->peers[f->group->ranks[place]].data[0];
    if (link && link->rx_flight == f && link->rx_step == step)
        return DTI_NOBODY; /* it is coming in already */
    if (step == DTI_NOBODY || f->tracks[step].granted == 0 || f->tracks[step].done)
        return DTI_NOBODY;
    const dti_schedule_step *s = &f->schedule.steps[step];
    return s->count * dti_flight_step_bytes(s) == fr->length ? step : DTI_NOBODY;
}

static void dti_engine_early_taken(dti_core *core, uint32_t peer, uint32_t length) {
    core->peers[peer].early_taken =
        (uint16_t)(core->peers[peer].early_taken + dti_early_units(length));
}

/* Straight into the operation, or into the peer's buffer until it is posted. */
static bool dti_engine_early_body(dti_core *core, dti_link *link) {
    const dti_frame *fr = &link->frame;
    dti_peer *p = &core->peers[link->peer];
    dti_announce post = dti_announce_of(fr);
    dti_flight *f = dti_flight_find(core, link->peer, fr->group, fr->flags, fr->sequence);
    link->rx_flight = NULL;
    if (f && !dti_engine_compare(core, &f->post, &post, link->peer))
        return false;
    if (!f && dti_posted_before(core, link->peer, fr->group, fr->flags, fr->sequence)) {
        dti_engine_late_post(core, link->peer, &post);
        return dti_core_link_failed(
            core, link, DT_ERROR_MISMATCH,
            "received early data of operation %llu of group %u, which has finished here",
            (unsigned long long)fr->sequence, fr->group);
    }
    if (f) {
        uint32_t place = f->group->place_of[link->peer];
        dti_flight_peer_posted(f, place);
        dti_flight_advance(core, f);
        uint32_t step = f->finished ? DTI_NOBODY : dti_early_step(core, f, place, fr);
        if (step != DTI_NOBODY) {
            link->rx_flight = f;
            link->rx_step = step;
            link->rx_chunk = 0;
            link->body = dti_flight_step_at(core, f, step, 0);
            return true;
        }
    }
    uint32_t bytes = dti_early_units(fr->length) * 64u;
    if (p->early_bytes + bytes > core->early_units * 64u)
        return dti_core_link_failed(core, link, DT_ERROR_CORRUPT,
                                    "received more early data than is permitted");
    memcpy(p->early + p->early_bytes, fr, sizeof *fr);
    link->body = p->early + p->early_bytes + 64;
    p->early_bytes += bytes;
    p->early_open = true;
    return true;
}

static bool dti_engine_body(dti_core *core, dti_link *link) {
    dti_engine_returned(core, link);
    if (link->frame.type == DTI_FRAME_DATA)
        return dti_engine_data_body(core, link);
    return dti_engine_early_body(core, link);
}

/* Acknowledges frames of a peer that sends much and receives nothing, so it need not keep too many.
 * Also at a stream's end, as the peer may wait for it. */
static void dti_engine_tell(const dti_core *core, dti_link *link, bool end) {
    const dti_backlog *b = link->back;
    if (link->lasting)
        return;
    if (b->received - b->told >= DTI_BACKLOG_FRAMES / 4 ||
        (end && b->untold_bytes * 2 >= core->window * core->set.chunk_bytes))
        link->return_due = true;
}

static void dti_engine_payload(dti_core *core, dti_link *link) {
    dti_flight *f = link->rx_flight;
    if (!f) {
        core->peers[link->peer].early_open = false;
        /* Others too: nothing could be taken while this was coming in. */
        for (uint32_t i = 0; i < core->flight_count; i++)
            if (core->flights[i]->id)
                dti_flight_advance(core, core->flights[i]);
        return;
    }
    link->rx_flight = NULL;
    const dti_track *t = &f->tracks[link->rx_step];
    dti_engine_tell(core, link, link->rx_chunk + 1 == t->total);
    if (link->frame.type == DTI_FRAME_EAGER)
        dti_engine_early_taken(core, link->peer, link->frame.length);
    dti_track_done(core, f, link->rx_step, link->rx_chunk);
    dti_flight_advance(core, f);
}

/* ---- data that came early */

/* Whether the stream of a RECV step has come, and waits for its place. */
static bool dti_early_has(const dti_core *core, const dti_flight *f, uint32_t peer, uint32_t step) {
    const dti_peer *p = &core->peers[peer];
    uint32_t at = 0;
    while (f->schedule.steps[step].kind == DTI_SCHEDULE_RECV && at < p->early_bytes) {
        dti_frame fr;
        memcpy(&fr, p->early + at, sizeof fr);
        at += dti_early_units(fr.length) * 64u;
        if (fr.stream == f->schedule.steps[step].stream &&
            !(p->early_open && at == p->early_bytes) &&
            dti_flight_find(core, peer, fr.group, fr.flags, fr.sequence) == f)
            return true;
    }
    return false;
}

/* Early data announces its sender's post; false: that is another operation. */
static bool dti_early_announces(dti_core *core, dti_flight *f, uint32_t peer) {
    dti_peer *p = &core->peers[peer];
    for (uint32_t at = 0; at < p->early_bytes;) {
        dti_frame fr;
        memcpy(&fr, p->early + at, sizeof fr);
        at += dti_early_units(fr.length) * 64u;
        if (dti_flight_find(core, peer, fr.group, fr.flags, fr.sequence) != f)
            continue;
        dti_announce theirs = dti_announce_of(&fr);
        if (!dti_engine_compare(core, &f->post, &theirs, peer))
            return false;
        dti_flight_peer_posted(f, f->group->place_of[peer]);
    }
    return true;
}

/* Takes the early data at `at` of the peer's buffer into the operation; false = not yet. */
static bool dti_early_take(dti_core *core, dti_flight *f, uint32_t peer, uint32_t at,
                           const dti_frame *fr) {
    uint32_t place = f->group->place_of[peer];
    uint32_t step = dti_flight_stream(f, place, DTI_SCHEDULE_RECV, fr->stream);
    if (step != DTI_NOBODY)
        f->tracks[step].granted = dti_flight_recv_limit(core, f, step);
    step = dti_early_step(core, f, place, fr);
    if (step == DTI_NOBODY)
        return false;
    memcpy(dti_flight_step_at(core, f, step, 0), core->peers[peer].early + at + 64, fr->length);
    dti_track_done(core, f, step, 0);
    dti_engine_early_taken(core, peer, fr->length);
    return true;
}

static void dti_engine_take_early_from(dti_core *core, dti_flight *f, uint32_t peer) {
    dti_peer *p = &core->peers[peer];
    uint32_t at = 0;
    /* While the last one is coming in nothing moves: its bytes have an address. */
    while (at < p->early_bytes && !p->early_open) {
        dti_frame fr;
        memcpy(&fr, p->early + at, sizeof fr);
        uint32_t bytes = dti_early_units(fr.length) * 64u;
        if (dti_flight_find(core, peer, fr.group, fr.flags, fr.sequence) != f ||
            !dti_early_take(core, f, peer, at, &fr)) {
            at += bytes;
            continue;
        }
        memmove(p->early + at, p->early + at + bytes, p->early_bytes - at - bytes);
        p->early_bytes -= bytes;
    }
}

/* First the posts, as slots are assigned when all have posted; then the data. */
static void dti_engine_take_early(dti_core *core, dti_flight *f) {
    for (uint32_t place = 0; place < f->group->size; place++)
        if (f->peer_state[place] & DTI_PEER_INVOLVED &&
            !dti_early_announces(core, f, f->group->ranks[place]))
            return;
    dti_flight_slots_assign(core, f);
    for (uint32_t place = 0; place < f->group->size; place++)
        if (f->peer_state[place] & DTI_PEER_INVOLVED)
            dti_engine_take_early_from(core, f, f->group->ranks[place]);
}
