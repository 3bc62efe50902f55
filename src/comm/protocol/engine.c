/* The frames of operations. Coming in: announcements, permissions and data find their operation,
 * or, when it has not been posted here yet, a bounded place to wait in. Going out: a connection
 * that has room asks what is next, and the answer is found by looking at what each operation lacks;
 * there is no queue of frames. What a peer may not do ends the group with an error that names
 * it. */

static dti_rank_group *dti_group_find(const dti_core *core, uint32_t id) {
    dti_rank_group *g = core->groups;
    while (g && g->id != id)
        g = g->following;
    return g;
}

/* ---- which operation */

/* The flight that a frame from world rank `peer` is about. */
static dti_flight *dti_flight_find(const dti_core *core, uint32_t peer, uint32_t group,
                                   uint16_t flags, uint64_t sequence) {
    bool p2p = flags & DTI_FLAG_P2P;
    dt_comm_kind mine = flags & DTI_FLAG_FROM_TARGET ? DT_COMM_SEND : DT_COMM_RECV;
    for (uint32_t i = 0; i < core->flight_count; i++) {
        dti_flight *f = core->flights[i];
        if (!f->id || f->finished || f->post.sequence != sequence || f->group->id != group ||
            f->p2p != p2p || f->group->place_of[peer] == DTI_NOBODY)
            continue;
        if (!p2p || (f->op.kind == mine && f->group->ranks[f->op.root] == peer))
            return f;
    }
    return NULL;
}

/* Whether an operation was posted here before and has ended. */
static bool dti_posted_before(const dti_core *core, uint32_t peer, uint32_t group, uint16_t flags,
                              uint64_t sequence) {
    const dti_rank_group *g = dti_group_find(core, group);
    uint32_t place = g ? g->place_of[peer] : DTI_NOBODY;
    if (place == DTI_NOBODY)
        return false;
    if (!(flags & DTI_FLAG_P2P))
        return sequence < g->next;
    return sequence < (flags & DTI_FLAG_FROM_TARGET ? g->next_send : g->next_recv)[place];
}

/* ---- mismatches */

static void dti_announce_text(const dti_announce *p, char *text, size_t room) {
    bool reduces = p->kind == DT_COMM_REDUCE || p->kind == DT_COMM_ALL_REDUCE ||
                   p->kind == DT_COMM_REDUCE_SCATTER;
    const uint32_t code = p->flags & DTI_FLAG_REDUCTION;
    const char *reduction = dti_reduction_name((dt_comm_reduction)code);
    bool known = reduces && !(p->flags & DTI_FLAG_P2P) && reduction;
    snprintf(text, room, "%s%s%s of %llu %s, root %u", dti_kind_name((dt_comm_kind)p->kind),
             known ? " " : "", known ? reduction : "", (unsigned long long)p->count,
             dti_dtype_name((dt_dtype)p->dtype), p->root);
}

static bool dti_announce_matches(const dti_announce *mine, const dti_announce *theirs) {
    if (mine->count != theirs->count || mine->dtype != theirs->dtype)
        return false;
    if (mine->flags & DTI_FLAG_P2P)
        return true;
    return mine->kind == theirs->kind && mine->root == theirs->root && mine->flags == theirs->flags;
}

/* False, and the group ends, when the peer posted something else under the same number. */
static bool dti_engine_compare(dti_core *core, const dti_announce *mine, const dti_announce *theirs,
                               uint32_t peer) {
    if (dti_announce_matches(mine, theirs))
        return true;
    char a[96], b[96];
    dti_announce_text(mine, a, sizeof a);
    dti_announce_text(theirs, b, sizeof b);
    bool same = strcmp(a, b) == 0;
    dti_core_suspect(core, DT_ERROR_MISMATCH, peer,
                     "operation %llu of group %u: rank %u posted %s, rank %u posted %s%s",
                     (unsigned long long)mine->sequence, mine->group, core->set.rank, a, peer, b,
                     same ? ", with another algorithm, reduction or leaves" : "");
    return false;
}

static dti_announce dti_announce_of(const dti_frame *f) {
    return (dti_announce){.group = f->group,
                          .flags = f->flags,
                          .root = f->root,
                          .kind = f->kind,
                          .dtype = f->dtype,
                          .sequence = f->sequence,
                          .count = f->value};
}

/* ---- announcements */

/* The rank at `place` of the group has posted this operation: its streams may flow. */
static void dti_flight_peer_posted(dti_flight *f, uint32_t place) {
    if (!(f->peer_state[place] & DTI_PEER_INVOLVED) || f->peer_state[place] & DTI_PEER_POSTED)
        return;
    f->peer_state[place] |= DTI_PEER_POSTED;
    for (uint32_t i = f->first_of[place]; i != DTI_NOBODY; i = f->tracks[i].next)
        if (f->schedule.steps[i].kind == DTI_SCHEDULE_SEND && !f->schedule.steps[i].credited)
            f->tracks[i].granted = f->tracks[i].total;
}

static void dti_engine_late_post(dti_core *core, uint32_t peer, const dti_announce *post) {
    const dti_rank_group *g = dti_group_find(core, post->group);
    if (post->flags & DTI_FLAG_P2P || !g)
        return;
    const dti_announce *mine = &g->history[post->sequence % DTI_HISTORY];
    if (mine->sequence == post->sequence)
        dti_engine_compare(core, mine, post, peer);
}

static void dti_engine_post(dti_core *core, dti_link *link) {
    dti_announce post = dti_announce_of(&link->frame);
    dti_flight *f = dti_flight_find(core, link->peer, post.group, post.flags, post.sequence);
    if (f) {
        if (!dti_engine_compare(core, &f->post, &post, link->peer))
            return;
        uint32_t place = f->group->place_of[link->peer];
        dti_flight_peer_posted(f, place);
        if (!(f->peer_state[place] & DTI_PEER_TOLD))
            f->peer_state[place] |= DTI_PEER_DUE;
        dti_flight_advance(core, f);
        return;
    }
    if (dti_posted_before(core, link->peer, post.group, post.flags, post.sequence)) {
        dti_engine_late_post(core, link->peer, &post);
        return;
    }
    dti_peer *p = &core->peers[link->peer];
    if (p->post_count == DTI_PENDING_MAX) {
        dti_core_link_failed(core, link, DT_ERROR_CORRUPT, "more than %d operations were announced",
                             DTI_PENDING_MAX);
        return;
    }
    p->posts[p->post_count++] = post;
}

/* Announcements that came before the operation was posted here. */
static void dti_engine_match_posts(dti_core *core, dti_flight *f) {
    for (uint32_t place = 0; place < f->group->size; place++) {
        uint32_t peer = f->group->ranks[place];
        dti_peer *p = &core->peers[peer];
        if (peer == core->set.rank)
            continue;
        for (uint32_t i = 0; i < p->post_count; i++) {
            const dti_announce *post = &p->posts[i];
            if (dti_flight_find(core, peer, post->group, post->flags, post->sequence) != f)
                continue;
            dti_announce theirs = *post;
            p->posts[i] = p->posts[--p->post_count];
            if (!dti_engine_compare(core, &f->post, &theirs, peer))
                return;
            dti_flight_peer_posted(f, place);
            f->peer_state[place] |= DTI_PEER_DUE;
            break;
        }
    }
}

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
        dti_core_link_failed(core, link, DT_ERROR_CORRUPT,
                             "a CREDIT for what was not announced (stream %u of operation %llu)",
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

/* Operations that waited for memory to copy what they have sent. */
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
    if (more > gone - b->acknowledged) {
        dti_core_link_failed(core, link, DT_ERROR_CORRUPT,
                             "frames were acknowledged that were not sent");
        return false;
    }
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
    else if (link->frame.type == DTI_FRAME_PONG) { /* what is lacking is asked for again */
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
    if (!fits) {
        dti_core_link_failed(core, link, DT_ERROR_CORRUPT,
                             "data came that was not permitted (%u bytes at %llu of stream %u of "
                             "operation %llu)",
                             fr->length, (unsigned long long)fr->value, fr->stream,
                             (unsigned long long)fr->sequence);
        return false;
    }
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
        dti_core_link_failed(core, link, DT_ERROR_MISMATCH,
                             "early data of operation %llu of group %u, which is over here",
                             (unsigned long long)fr->sequence, fr->group);
        return false;
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
    if (p->early_bytes + bytes > core->early_units * 64u) {
        dti_core_link_failed(core, link, DT_ERROR_CORRUPT,
                             "more early data than there may be came");
        return false;
    }
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

/* Who sends much and hears nothing is told what has come: so that it need not keep too many frames;
 * and at a stream's end, when it may wait for it. */
static void dti_engine_tell(const dti_core *core, dti_link *link, bool end) {
    const dti_backlog *b = link->back;
    if (link->lasting)
        return;
    if (b->received - b->told >= DTI_BACKLOG_FRAMES / 4 ||
        (end && b->untold_bytes * 2 >= core->set.window * core->set.chunk_bytes))
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

/* What lies early says that its sender has posted; false when that is another operation. */
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

/* Takes what lies at `at` of the peer's buffer into the operation; false = not yet. */
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

/* First who has posted, for slots are lent when all have; then the data. */
static void dti_engine_take_early(dti_core *core, dti_flight *f) {
    for (uint32_t place = 0; place < f->group->size; place++)
        if (f->peer_state[place] & DTI_PEER_INVOLVED &&
            !dti_early_announces(core, f, f->group->ranks[place]))
            return;
    dti_flight_slots_lend(core, f);
    for (uint32_t place = 0; place < f->group->size; place++)
        if (f->peer_state[place] & DTI_PEER_INVOLVED)
            dti_engine_take_early_from(core, f, f->group->ranks[place]);
}

/* ---- going out */

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

/* Attaches chunk `chunk` of a SEND to the connection, behind a header of `type`. */
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

/* Sent again, it has been told of before. A step that another one waits for, which may write over
 * these bytes, is told when they are copied or acknowledged. */
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

static void dti_engine_lent_sent(dti_core *core, const dti_link_loan *lent) {
    if (lent->flight->finished)
        return;
    dti_track_done(core, lent->flight, lent->step, lent->chunk);
    dti_flight_advance(core, lent->flight);
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

/* What one operation has for this connection; true when a payload is attached. */
static bool dti_engine_fill_flight(dti_core *core, dti_link *link, dti_flight *f) {
    uint32_t place = f->group->place_of[link->peer];
    if (place == DTI_NOBODY || !(f->peer_state[place] & DTI_PEER_INVOLVED))
        return false;
    uint8_t *state = &f->peer_state[place];
    for (uint32_t i = f->first_of[place]; i != DTI_NOBODY; i = f->tracks[i].next) {
        if (*state & DTI_PEER_DUE && !link->socket && dti_engine_has_room(link)) {
            dti_frame fr = dti_frame_of(f, DTI_FRAME_POST);
            dti_engine_put(core, link, &fr);
            *state = (uint8_t)((*state & ~DTI_PEER_DUE) | DTI_PEER_TOLD | DTI_PEER_ASKED);
        }
        if (f->schedule.steps[i].kind == DTI_SCHEDULE_RECV) {
            if (*state & DTI_PEER_POSTED && !link->socket)
                dti_engine_credit_step(core, link, f, i);
        } else if (dti_engine_has_room(link) && dti_engine_send_step(core, link, f, place, i))
            return true;
    }
    return false;
}

static void dti_engine_put_plain(dti_core *core, dti_link *link, dti_frame_type type) {
    dti_engine_put(core, link, &(dti_frame){.type = (uint8_t)type});
}

/* What a data connection sends next. */
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
        const uint32_t at = core->turn + i < count ? core->turn + i : core->turn + i - count;
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
