/* Outgoing frames of operations. A connection with room asks for the next frame, which is found by
 * searching the operations. There is no queue of frames. */

static void dti_engine_put(dti_core *core, dti_link *link, dti_frame *frame) {
    dti_peer *p = &core->peers[link->peer];
    frame->returned = p->early_taken;
    p->early_told = p->early_taken;
    dti_link_put_frame(link, frame, NULL);
}

static dti_frame dti_frame_of(const dti_flight *f, dti_frame_type type) {
    uint16_t flags = f->post.flags;
    if (type == DTI_FRAME_DATA || type == DTI_FRAME_CREDIT)
        flags &= DTI_FLAG_P2P | DTI_FLAG_FROM_TARGET;
    return (dti_frame){.type = (uint8_t)type,
                       .flags = flags,
                       .group = f->post.group,
                       .sequence = f->post.sequence,
                       .dtype = f->post.dtype,
                       .kind = f->post.kind,
                       .root = f->post.root,
                       .value = f->post.count};
}

static uint32_t dti_flight_checksum(dti_flight *f, uint32_t step, uint32_t chunk, const void *data,
                                    size_t bytes) {
    dti_track *first = &f->tracks[f->tracks[step].alike];
    uint32_t at = chunk % DTI_SUMS_KEPT;
    if (first->sum_of[at] != chunk) {
        first->sum_of[at] = chunk;
        first->sums[at] = dti_crc32c(0, data, bytes);
    }
    return first->sums[at];
}

/* Attaches chunk `chunk` of a SEND to the connection, after a header of `type`. */
static void dti_engine_attach(dti_core *core, dti_link *link, dti_flight *f, uint32_t step,
                              uint32_t chunk, dti_frame_type type) {
    const dti_schedule_step *s = &f->schedule.steps[step];
    dti_frame fr = dti_frame_of(f, type);
    fr.stream = s->stream;
    fr.length = (uint32_t)(dti_chunk_count(f, s, chunk) * dti_flight_step_bytes(s));
    if (type == DTI_FRAME_DATA)
        fr.value = chunk * f->schedule.chunk_elements * dti_flight_step_bytes(s);
    link->data = dti_flight_step_at(core, f, step, chunk);
    link->data_left = fr.length;
    if (core->set.integrity == DT_COMM_CRC)
        fr.crc = dti_flight_checksum(f, step, chunk, link->data, fr.length);
    link->tx_flight = f;
    link->tx_step = step;
    link->tx_chunk = chunk;
    dti_engine_put(core, link, &fr);
    const dti_track *t = &f->tracks[step];
    f->tracks[step].begun++;
    link->more = core->set.sockets == 1 && t->begun < DTI_MIN(t->ready, t->granted);
}

/* A repeated frame has been reported before. A step that another one waits for, which may overwrite
 * these bytes, is reported when they are copied or acknowledged. */
static void dti_engine_sent(dti_core *core, dti_link *link) {
    dti_flight *f = link->tx_flight;
    dti_backlog *b = link->back;
    dti_sent_frame *kept =
        b->bye_received || link->lasting ? NULL : dti_backlog_at(b, link->tx_number);
    bool again = kept && kept->whole;
    link->tx_flight = NULL;
    if (again)
        return;
    if (kept)
        kept->whole = true;
    if (kept && !kept->own && f->tracks[link->tx_step].guards) {
        kept->held = true;
        b->held++;
        dti_engine_held(core, link);
        return;
    }
    dti_track_done(core, f, link->tx_step, link->tx_chunk);
    dti_flight_advance(core, f);
}

static void dti_engine_loan_sent(dti_core *core, const dti_link_loan *loan) {
    if (loan->flight->finished)
        return;
    dti_track_done(core, loan->flight, loan->step, loan->chunk);
    dti_flight_advance(core, loan->flight);
}

static bool dti_engine_may_go_early(const dti_core *core, const dti_flight *f, uint32_t step,
                                    uint32_t peer) {
    const dti_schedule_step *s = &f->schedule.steps[step];
    const dti_peer *p = &core->peers[peer];
    uint32_t bytes = (uint32_t)(s->count * dti_flight_step_bytes(s));
    uint16_t used = (uint16_t)(p->early_used - p->early_back);
    return used + dti_early_units(bytes) <= core->early_units &&
           dti_backlog_has_room(&p->backs[0], dti_backlog_copies(bytes) ? bytes : 0);
}

/* A SEND step: attaches its next chunk if it may go. Chunks are dealt to the sockets in turn. */
static bool dti_engine_send_step(dti_core *core, dti_link *link, dti_flight *f, uint32_t place,
                                 uint32_t step) {
    const dti_schedule_step *s = &f->schedule.steps[step];
    dti_track *t = &f->tracks[step];
    uint8_t *state = &f->peer_state[place];
    if (t->begun >= t->ready)
        return false;
    if (t->begun < t->granted) {
        if (t->begun % core->set.sockets != link->socket)
            return false;
        dti_engine_attach(core, link, f, step, t->begun, DTI_FRAME_DATA);
        return true;
    }
    if (link->socket || *state & (DTI_PEER_DUE | DTI_PEER_ASKED) ||
        !dti_flight_step_is_short(core, s, t))
        return false;
    if (!dti_engine_may_go_early(core, f, step, link->peer)) {
        *state |= DTI_PEER_DUE; /* no room there: ask for permission */
        return false;
    }
    core->peers[link->peer].early_used =
        (uint16_t)(core->peers[link->peer].early_used +
                   dti_early_units((uint32_t)(s->count * dti_flight_step_bytes(s))));
    *state |= DTI_PEER_TOLD;
    dti_engine_attach(core, link, f, step, 0, DTI_FRAME_EAGER);
    return true;
}

/* For one more frame. */
static bool dti_engine_has_room(const dti_link *link) {
    return dti_link_room(link) >= DTI_HEADER_ROOM && dti_backlog_has_room(link->back, 0);
}

static void dti_engine_credit_step(dti_core *core, dti_link *link, const dti_flight *f,
                                   uint32_t step) {
    const dti_schedule_step *s = &f->schedule.steps[step];
    dti_track *t = &f->tracks[step];
    if (!s->credited || t->told >= t->granted || !dti_engine_has_room(link))
        return;
    dti_frame fr = dti_frame_of(f, DTI_FRAME_CREDIT);
    fr.stream = s->stream;
    fr.value = t->granted;
    t->told = t->granted;
    dti_engine_put(core, link, &fr);
}

static void dti_engine_post_due(dti_core *core, dti_link *link, const dti_flight *f,
                                uint8_t *state) {
    if (!(*state & DTI_PEER_DUE) || link->socket || !dti_engine_has_room(link))
        return;
    dti_frame fr = dti_frame_of(f, DTI_FRAME_POST);
    dti_engine_put(core, link, &fr);
    *state = (uint8_t)((*state & ~DTI_PEER_DUE) | DTI_PEER_TOLD | DTI_PEER_ASKED);
}

/* Attaches the next payload of one operation to this connection; true when one is attached. */
static bool dti_engine_fill_flight(dti_core *core, dti_link *link, dti_flight *f) {
    uint32_t place = f->group->place_of[link->peer];
    if (place == DTI_NOBODY || !(f->peer_state[place] & DTI_PEER_INVOLVED))
        return false;
    uint8_t *state = &f->peer_state[place];
    dti_engine_post_due(core, link, f, state);
    for (uint32_t i = f->first_of[place]; i != DTI_NOBODY; i = f->tracks[i].next) {
        if (f->schedule.steps[i].kind == DTI_SCHEDULE_RECV) {
            if (*state & DTI_PEER_POSTED && !link->socket)
                dti_engine_credit_step(core, link, f, i);
        } else if (dti_engine_has_room(link) && dti_engine_send_step(core, link, f, place, i))
            return true;
    }
    dti_engine_post_due(core, link, f, state); /* of a stream without room */
    return false;
}

static void dti_engine_put_plain(dti_core *core, dti_link *link, dti_frame_type type) {
    dti_engine_put(core, link, &(dti_frame){.type = (uint8_t)type});
}

/* The next frame of a data connection. */
static void dti_engine_fill(dti_core *core, dti_link *link) {
    dti_peer *p = &core->peers[link->peer];
    if (link->pong_due)
        dti_engine_put_plain(core, link, DTI_FRAME_PONG);
    if (link->ping_due) {
        dti_engine_put_plain(core, link, DTI_FRAME_PING);
        link->pinged = core->now;
    }
    link->pong_due = link->ping_due = false;
    if (!dti_backlog_has_room(link->back, 0))
        dti_link_ask(link);
    uint32_t count = core->flight_count;
    for (uint32_t i = 0; i < count && core->unfinished && !link->data_left; i++) {
        const uint32_t at = (core->turn + i) % count;
        dti_flight *f = core->flights[at];
        if (!f->id || f->finished || !dti_engine_fill_flight(core, link, f))
            continue;
        core->turn = at + 1 < count ? at + 1 : 0; /* the next one is first next time */
        return;
    }
    bool room =
        (uint16_t)(p->early_taken - p->early_told) >= core->early_units / 4 && !link->socket;
    bool news = link->return_due && link->back->told != link->back->received;
    if ((room || news) && dti_link_room(link) >= DTI_HEADER_ROOM)
        dti_engine_put_plain(core, link, DTI_FRAME_RETURN);
    link->return_due = false;
}
