/* Any frames, with right tags or wrong ones, at a rank that has joined and has operations under
 * way. The input is a list of events: the application posts, cancels, makes and frees groups and
 * leaves; time passes; frames come, in pieces, some of them what an operation waits for and some
 * anything; bytes go; connections end. After each event all that the engine and flight.c rely on
 * must hold. Buffers are freed as soon as the application may, and at the end nothing is left. */
#include "fuzz/fuzz_core.h"

#define FUZZ_POSTED 12

typedef struct fuzz_posted {
    dti_flight *flight; /* NULL = none */
    uint8_t *in, *out;  /* the allocated blocks; either may be NULL */
} fuzz_posted;

typedef struct fuzz_frames_world {
    fuzz_world w;
    fuzz_posted posted[FUZZ_POSTED];
    dti_rank_group *group; /* beside the world's */
    uint32_t group_id;
    size_t piece;
    bool left;
} fuzz_frames_world;

/* ---- connections */

static void fuzz_put_frame(fuzz_world *w, fuzz_conn *c, dti_frame *fr, const uint8_t *head,
                           size_t head_bytes, uint32_t wrong);

/* As after a handshake that went well; the keys of both directions are those of empty hellos. All
 * that the core has sent before has come. */
static void fuzz_link_open(fuzz_world *w, dti_link *link, uint32_t peer, uint32_t channel,
                           uint32_t socket) {
    dti_core *core = &w->core;
    fuzz_conn *c = fuzz_conn_of(w, link);
    link->channel = (uint8_t)channel;
    link->socket = (uint16_t)socket;
    if (!link->dialled && dti_core_link_taken(core, link, peer)) {
        dti_core_link_dropped(core, link, "taken");
        return;
    }
    link->peer = peer;
    link->state = DTI_LINK_OPEN;
    dti_link_keys(core, link);
    c->seal = link->seal_in;
    c->open = true;
    dti_core_link_open(core, link);
    fuzz_put_frame(w, c, &(dti_frame){.type = DTI_FRAME_RESUME, .value = link->back->sent}, NULL, 0,
                   0);
}

static void fuzz_accept(fuzz_world *w, uint32_t peer, uint32_t channel, uint32_t socket) {
    dti_link *link = peer == w->core.set.rank
                         ? NULL
                         : dti_core_accepted(&w->core, (const uint8_t[DTI_SOURCE_BYTES]){0});
    if (!link)
        return;
    fuzz_conn_start(w, link);
    fuzz_link_open(w, link, peer, channel, socket);
}

/* What the core dials answers at once. */
FUZZ_UNWATCHED static void fuzz_answer_dials(fuzz_world *w) {
    for (uint32_t i = 0; i < w->core.link_count; i++) {
        dti_link *link = &w->core.links[i];
        if (link->state == DTI_LINK_DIALING)
            fuzz_link_open(w, link, link->peer, link->channel, link->socket);
    }
}

/* One of the connections that are open; NULL = there is no such one. */
FUZZ_UNWATCHED static fuzz_conn *fuzz_pick(fuzz_world *w, uint32_t which) {
    uint32_t open = 0;
    for (int i = 0; i < FUZZ_LINKS; i++)
        open += w->conns[i].link && w->conns[i].open;
    which = open ? which % open : 0;
    for (int i = 0; i < FUZZ_LINKS; i++)
        if (w->conns[i].link && w->conns[i].open && which-- == 0)
            return &w->conns[i];
    return NULL;
}

/* ---- frames */

#define FUZZ_WRONG_CRC 1u
#define FUZZ_WRONG_TAG 2u
#define FUZZ_WRONG_ACK 4u

static void fuzz_put_frame(fuzz_world *w, fuzz_conn *c, dti_frame *fr, const uint8_t *head,
                           size_t head_bytes, uint32_t wrong) {
    static uint8_t body[FUZZ_QUEUE];
    uint8_t header[DTI_HEADER_BYTES];
    const size_t bytes = DTI_MIN((size_t)fr->length, sizeof body);
    if (c->to + DTI_HEADER_BYTES + bytes > FUZZ_QUEUE)
        return;
    memset(body, w->fill++, bytes); /* not byte by byte: each would be looked at by the fuzzer */
    for (size_t i = 0; i < bytes && i < head_bytes; i++)
        body[i] = head[i];
    fr->epoch = fr->epoch ? fr->epoch : w->core.epoch;
    if (!(wrong & FUZZ_WRONG_ACK))
        fr->acknowledged =
            (uint16_t)(c->link->data_left ? c->link->tx_number : c->link->back->sent);
    fr->crc = dti_crc32c(0, body, bytes) ^ (wrong & FUZZ_WRONG_CRC);
    /* A tag covers the body of a control frame: one that is too long is refused before. */
    bool covered = fr->length <= bytes;
    dti_frame sealed = *fr;
    sealed.length = covered ? fr->length : 0;
    dti_frame_seal(&c->seal, &sealed, body, header);
    dti_put32(header + 40, fr->length);
    header[DTI_TAG_AT] ^= wrong & FUZZ_WRONG_TAG ? 1 : 0;
    fuzz_queue(c, header, sizeof header);
    fuzz_queue(c, body, bytes);
}

static uint64_t fuzz_number(fuzz_input *in, const dti_core *core) {
    uint32_t mode = fuzz_u8(in);
    switch (mode & 7) {
    case 0: return fuzz_u8(in) * core->set.chunk_bytes;
    case 1: return fuzz_u16(in);
    case 2: return UINT64_MAX - fuzz_u8(in);
    case 3: return (uint64_t)fuzz_u8(in) << (mode >> 3 << 1);
    default: return mode >> 3;
    }
}

static uint32_t fuzz_flags(fuzz_input *in) {
    static const uint16_t flags[] = {0, DTI_FLAG_P2P, DTI_FLAG_P2P | DTI_FLAG_FROM_TARGET, 3, 8,
                                     16};
    uint32_t mode = fuzz_u8(in);
    return mode & 1 ? fuzz_u16(in) : flags[(mode >> 1) % DTI_COUNT(flags)];
}

/* Changes one field, of any frame. */
static void fuzz_tweak(fuzz_input *in, const dti_core *core, dti_frame *fr) {
    switch (fuzz_below(in, 12)) {
    case 0: fr->type = (uint8_t)fuzz_below(in, DTI_FRAME_COUNT + 1); break;
    case 1: fr->flags = (uint16_t)fuzz_flags(in); break;
    case 2: fr->epoch = fuzz_u8(in); break;
    case 3: fr->group = fuzz_u8(in); break;
    case 4: fr->sequence = fuzz_number(in, core); break;
    case 5: fr->stream = (uint16_t)fuzz_u8(in); break;
    case 6: fr->returned = (uint16_t)fuzz_u16(in); break;
    case 7: fr->dtype = (uint8_t)fuzz_u8(in); break;
    case 8: fr->kind = (uint8_t)fuzz_u8(in); break;
    case 9: fr->root = (uint16_t)fuzz_u8(in); break;
    case 10: fr->value = fuzz_number(in, core); break;
    default: fr->length = (uint32_t)fuzz_number(in, core); break;
    }
}

/* Any frame, or many of the same kind. */
static void fuzz_any_frame(fuzz_frames_world *fw, fuzz_input *in, fuzz_conn *c, bool many) {
    dti_core *core = &fw->w.core;
    uint8_t head[24];
    uint32_t how = fuzz_u8(in), head_bytes = 0;
    dti_frame fr = {.type = (uint8_t)fuzz_below(in, DTI_FRAME_COUNT + 1),
                    .flags = (uint16_t)fuzz_flags(in),
                    .group = fuzz_below(in, 4),
                    .sequence = fuzz_number(in, core),
                    .stream = (uint16_t)fuzz_below(in, 8),
                    .returned = (uint16_t)fuzz_u8(in),
                    .dtype = (uint8_t)fuzz_below(in, 8),
                    .kind = (uint8_t)fuzz_below(in, 12),
                    .root = (uint16_t)fuzz_below(in, 4),
                    .value = fuzz_number(in, core)};
    if (how & 4)
        fr.length = (uint32_t)fuzz_number(in, core);
    else if (fr.type >= DTI_FRAME_JOIN) {
        head_bytes = fuzz_below(in, sizeof head + 1);
        for (uint32_t i = 0; i < head_bytes; i++)
            head[i] = (uint8_t)fuzz_u8(in);
        fr.length = head_bytes + (how >> 3) * 20;
    } else if (dti_frame_is_payload(fr.type))
        fr.length = fuzz_u8(in) * 4;
    for (uint32_t left = many ? 1 + fuzz_u8(in) : 1; left; left--) {
        fuzz_put_frame(&fw->w, c, &fr, head, head_bytes, (how & 3) == 3 ? how >> 5 : 0);
        fr.sequence++;
    }
}

/* A frame that an operation of ours waits for, or one like it. */
static void fuzz_awaited_frame(fuzz_frames_world *fw, fuzz_input *in, fuzz_conn *c) {
    dti_core *core = &fw->w.core;
    uint32_t how = fuzz_u8(in), which = fuzz_u8(in);
    dti_flight *f = core->flight_count ? core->flights[how / 8 % core->flight_count] : NULL;
    uint32_t place = f && f->id ? f->group->place_of[c->link->peer] : DTI_NOBODY;
    if (place == DTI_NOBODY)
        return;
    uint32_t step = f->first_of[place];
    for (which %= 8; which && step != DTI_NOBODY && f->tracks[step].next != DTI_NOBODY; which--)
        step = f->tracks[step].next;
    dti_frame fr = dti_frame_of(f, DTI_FRAME_POST);
    if (f->p2p)
        fr.flags ^= DTI_FLAG_FROM_TARGET;
    if (step != DTI_NOBODY && how & 1) {
        const dti_schedule_step *s = &f->schedule.steps[step];
        const dti_track *t = &f->tracks[step];
        uint32_t chunk = (t->done + (how & 4 ? fuzz_u8(in) : c->link->socket)) % t->total;
        fr.stream = s->stream;
        if (s->kind == DTI_SCHEDULE_SEND) {
            fr.type = DTI_FRAME_CREDIT;
            fr.value = fuzz_below(in, t->total + 1);
        } else {
            fr.type = how & 2 ? DTI_FRAME_EAGER : DTI_FRAME_DATA;
            fr.length = (uint32_t)(dti_chunk_count(f, s, chunk) * dti_flight_step_bytes(s));
            if (fr.type == DTI_FRAME_DATA)
                fr.value = chunk * f->schedule.chunk_elements * dti_flight_step_bytes(s);
        }
    }
    if (how & 128)
        fuzz_tweak(in, core, &fr);
    fuzz_put_frame(&fw->w, c, &fr, NULL, 0, 0);
}

/* What is queued comes, or a part of it. */
static void fuzz_arrive(fuzz_frames_world *fw, fuzz_input *in, fuzz_conn *c) {
    uint32_t some = fuzz_u8(in);
    fuzz_deliver(&fw->w, c, some < 128 ? SIZE_MAX : (some - 127) * 3, fw->piece);
}

/* ---- the application */

static const dt_comm_span fuzz_leaves[2][3] = {{{0, 3}, {3, 2}}, {{0, 2}, {2, 1}, {3, 2}}};

static void fuzz_make_op(fuzz_input *in, const dti_rank_group *g, dt_comm_op *op) {
    static const uint64_t counts[] = {0, 1, 3, 16, 40, 100, 300, 1000};
    *op = (dt_comm_op){.kind = (dt_comm_kind)fuzz_below(in, DT_COMM_BARRIER + 1),
                       .count = counts[fuzz_below(in, DTI_COUNT(counts))],
                       .dtype = (dt_dtype)fuzz_below(in, 6)};
    uint32_t how = fuzz_u8(in);
    op->reduction = (dt_comm_reduction)(how % 5);
    op->algorithm = (dt_comm_algorithm)(how / 5 % 6);
    op->root = (int)fuzz_below(in, g->size);
    if (!dti_algorithm_of(op->kind, op->algorithm))
        op->algorithm = DT_COMM_ALGORITHM_DEFAULT;
    if (op->kind == DT_COMM_BARRIER)
        op->count = 0;
    if (dti_kind_is_p2p(op->kind) && op->root == (int)g->rank)
        op->root = (op->root + 1) % (int)g->size;
    op->tree = how >= 200 && (op->kind == DT_COMM_ALL_REDUCE || op->kind == DT_COMM_REDUCE) &&
               dti_dtype_bytes(op->dtype) == dti_coll_in_width(op);
}

/* Buffers that end where the sanitizer looks; how: 0 apart, 1 the same, 2 one is in the other. */
static void fuzz_make_buffers(fuzz_posted *p, dt_comm_op *op, const dti_rank_group *g,
                              uint32_t how) {
    dt_comm_span spans[DTI_TREE_SPANS];
    const dt_comm_span *mine = &fuzz_leaves[g->size - 2][g->rank];
    uint64_t in = dti_coll_in_bytes(op, g->rank, g->size),
             out = dti_coll_out_bytes(op, g->rank, g->size);
    uint64_t own = g->rank * op->count * dti_dtype_bytes(op->dtype);
    if (op->tree)
        in *= dti_tree_spans(mine->first, mine->count, 5, spans);
    how = in && out ? how : 0;
    p->in = how == 1 || in ? calloc(1, how == 1 ? DTI_MAX(in, out) : in) : NULL;
    p->out = !how && out ? calloc(1, out) : NULL;
    op->in = p->in;
    op->out = how ? p->in : p->out;
    if (how < 2)
        return;
    if (op->kind == DT_COMM_GATHER || op->kind == DT_COMM_ALL_GATHER) {
        free(p->in);
        p->in = calloc(1, out);
        op->out = p->in;
        op->in = p->in + own;
    } else if (op->kind == DT_COMM_SCATTER || op->kind == DT_COMM_REDUCE_SCATTER)
        op->out = p->in + own;
    else {
        p->out = calloc(1, out);
        op->out = p->out;
    }
}

static void fuzz_posted_end(fuzz_posted *p) {
    free(p->in);
    free(p->out);
    *p = (fuzz_posted){0};
}

static void fuzz_post(fuzz_frames_world *fw, fuzz_input *in) {
    dti_core *core = &fw->w.core;
    uint32_t how = fuzz_u8(in);
    dti_rank_group *g = how & 4 && fw->group ? fw->group : core->groups;
    while (g != fw->group && g->id)
        g = g->following;
    fuzz_posted *p = fw->posted;
    while (p < fw->posted + FUZZ_POSTED && p->flight)
        p++;
    dt_comm_op op;
    fuzz_make_op(in, g, &op);
    if (core->state != DTI_CORE_OPEN || p == fw->posted + FUZZ_POSTED)
        return;
    fw->w.fail_in = how >= 250 ? 1 + how % 4 : 0;
    fuzz_make_buffers(p, &op, g, how % 4 % 3);
    p->flight = dti_core_post(core, g, &op, fuzz_leaves[g->size - 2], 5);
    fw->w.fail_in = 0;
    if (!p->flight)
        fuzz_posted_end(p);
}

/* The application takes what is finished, and its buffers with it. */
static void fuzz_collect(fuzz_frames_world *fw) {
    for (int i = 0; i < FUZZ_POSTED && !fw->left; i++) {
        fuzz_posted *p = &fw->posted[i];
        if (!p->flight || !p->flight->finished)
            continue;
        dti_flight_release(&fw->w.core, p->flight);
        fuzz_posted_end(p);
    }
}

static void fuzz_cancel(fuzz_frames_world *fw, uint32_t which) {
    fuzz_posted *p = &fw->posted[which % FUZZ_POSTED];
    if (!p->flight)
        return;
    dti_core_cancel(&fw->w.core, p->flight);
    fuzz_posted_end(p);
}

/* A group of two, or its end, with all that is under way in it. */
static void fuzz_group(fuzz_frames_world *fw, uint32_t how) {
    dti_core *core = &fw->w.core;
    if (fw->group) {
        bool ours[FUZZ_POSTED];
        for (int i = 0; i < FUZZ_POSTED; i++)
            ours[i] = fw->posted[i].flight && fw->posted[i].flight->group == fw->group;
        dti_group_free(core, fw->group);
        fw->group = NULL;
        for (int i = 0; i < FUZZ_POSTED; i++)
            if (ours[i])
                fuzz_posted_end(&fw->posted[i]);
        return;
    }
    uint32_t me = core->set.rank, other = (me + 1 + how % (core->set.size - 1)) % core->set.size;
    uint32_t ranks[2] = {DTI_MIN(me, other), DTI_MAX(me, other)};
    fw->w.fail_in = how / 8 % 8;
    fw->group = dti_group_new(core, ++fw->group_id, ranks, 2);
    fw->w.fail_in = 0;
}

/* ---- events */

static void fuzz_event_connection(fuzz_frames_world *fw, fuzz_input *in, uint32_t event) {
    fuzz_conn *c = fuzz_pick(&fw->w, fuzz_u8(in));
    if (!c)
        return;
    if (event < 6) {
        fuzz_awaited_frame(fw, in, c);
        fuzz_arrive(fw, in, c);
    } else if (event < 8) {
        fuzz_any_frame(fw, in, c, event == 7);
        fuzz_arrive(fw, in, c);
    } else if (event == 8)
        fuzz_arrive(fw, in, c);
    else if (event < 11)
        fuzz_drain(&fw->w, c, event == 9 ? SIZE_MAX : fuzz_u8(in));
    else
        dti_core_closed(&fw->w.core, c->link, fuzz_u8(in) & 1 ? "reset" : NULL);
}

static void fuzz_event_application(fuzz_frames_world *fw, fuzz_input *in, uint32_t event) {
    dti_core *core = &fw->w.core;
    uint32_t how = event >= 17 ? fuzz_u8(in) : 0;
    if (event < 17 && !fw->left)
        fuzz_post(fw, in);
    else if (event == 17)
        dti_core_tick(core, core->now + (uint64_t)how * how * 100000);
    else if (event == 18)
        fuzz_accept(&fw->w, how % core->set.size, how / 8 % 4 != 0, how / 32 % core->set.sockets);
    else if (event == 19 && !fw->left && how >= 200)
        fuzz_cancel(fw, how);
    else if (event == 20 && !fw->left)
        fuzz_group(fw, how);
    else if (event == 21 && how >= 200) {
        dti_core_leave(core);
        fw->left = true;
    }
}

static void fuzz_events(fuzz_frames_world *fw, fuzz_input *in) {
    for (int i = 0; i < 400 && fuzz_more(in); i++) {
        uint32_t event = fuzz_below(in, 22);
        if (event < 12)
            fuzz_event_connection(fw, in, event);
        else
            fuzz_event_application(fw, in, event);
        fuzz_answer_dials(&fw->w);
        fuzz_check_core(&fw->w.core);
        if (event & 1)
            fuzz_collect(fw);
    }
}

/* ---- one input */

/* All have joined, each by the frames that do it. */
static void fuzz_join(fuzz_frames_world *fw) {
    fuzz_world *w = &fw->w;
    dti_core *core = &w->core;
    uint8_t body[64] = {0};
    if (core->set.rank) {
        fuzz_answer_dials(w);
        fuzz_conn *c = fuzz_conn_of(w, core->peers[0].control);
        dti_frame fr = {.type = DTI_FRAME_ROSTER, .length = DTI_ROSTER_FIXED + 2 * core->set.size};
        dti_put16(body + 16, core->local);
        fuzz_put_frame(w, c, &fr, body, fr.length, 0);
        fuzz_deliver(w, c, SIZE_MAX, fw->piece);
        return;
    }
    dti_put64(body, core->set.chunk_bytes);
    dti_put32(body + 8, core->set.window);
    for (uint32_t r = 1; r < core->set.size; r++) {
        fuzz_accept(w, r, DTI_CHANNEL_CONTROL, 0);
        fuzz_conn *c = fuzz_conn_of(w, core->peers[r].control);
        dti_frame fr = {.type = DTI_FRAME_JOIN, .length = DTI_JOIN_FIXED};
        fuzz_put_frame(w, c, &fr, body, fr.length, 0);
        fuzz_deliver(w, c, SIZE_MAX, fw->piece);
    }
}

static dt_result fuzz_frames(const uint8_t *data, size_t size) {
    static const uint16_t chunks[] = {64, 64, 256, 4096};
    fuzz_input in = {data, size, 0};
    fuzz_frames_world *fw = calloc(1, sizeof *fw);
    uint32_t how = fuzz_u8(&in), more = fuzz_u8(&in);
    dti_settings set = {.size = 2 + (how & 1),
                        .chunk_bytes = chunks[more & 3],
                        .window = 1 + (more >> 2 & 3),
                        .sockets = how & 2 ? 1 + (more >> 4 & 3) : 1,
                        .join_ns = 8000000000u,
                        .silence_ns = 300000000u,
                        .op_ns = how & 4 ? 200000000u : 0,
                        .integrity = how & 8 ? DT_COMM_UNCHECKED : DT_COMM_CRC,
                        .keyed = how & 16};
    if (!fw)
        return DT_ERROR_MEMORY;
    set.rank = (how >> 5) % set.size;
    fw->piece = more & 64 ? 1 + (more >> 6) * 7 : SIZE_MAX;
    FUZZ_CHECK(fuzz_world_open(&fw->w, &set));
    bool joins = !(more & 128) || set.rank || !(how & 128);
    if (joins)
        fuzz_join(fw);
    FUZZ_CHECK(!joins || fw->w.core.state == DTI_CORE_OPEN);
    fuzz_events(fw, &in);
    dt_result result = fw->w.core.state == DTI_CORE_OPEN ? DT_OK : fw->w.core.result;
    fuzz_world_close(&fw->w);
    for (int i = 0; i < FUZZ_POSTED; i++)
        fuzz_posted_end(&fw->posted[i]);
    free(fw);
    return result;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_frames(data, size);
    return 0;
}
#endif
