/* Finds the operation of a frame, and compares the operations that peers announce. If an operation
 * has not been posted here yet, its announcement waits in a bounded place. A rank that posted
 * another operation under the same number ends the group, with an error that names it. */

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
    bool reduces = dti_kind_reduces((dt_comm_kind)p->kind);
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
                     same ? ", with different algorithms, reductions or leaves" : "");
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
        dti_core_link_failed(core, link, DT_ERROR_CORRUPT,
                             "received more than %d announcements of operations", DTI_PENDING_MAX);
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
