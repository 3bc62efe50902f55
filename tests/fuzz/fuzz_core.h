/* A dti_core whose peers are a fuzzer: what fuzz_hello.c and fuzz_frames.c share. The fuzzer knows
 * the keys of the two directions. So tags and proofs are right where the input asks for that, and
 * the library is as it ships. No part of it is asked to skip them. */
#ifndef DTRAIN_TESTS_FUZZ_CORE_H
#define DTRAIN_TESTS_FUZZ_CORE_H

#ifndef FUZZ_REPLAY
#define DT_COMM_ONLY
#define DT_STATIC
#define DT_IMPLEMENTATION
#endif
#include "fuzz/fuzz.h"

#define FUZZ_LINKS 128
#define FUZZ_QUEUE (16 << 10)

/* The input, read from its front; zeros after its end. */
typedef struct fuzz_input {
    const uint8_t *data;
    size_t size, at;
} fuzz_input;

static uint32_t fuzz_u8(fuzz_input *in) {
    return in->at < in->size ? in->data[in->at++] : 0;
}

static uint32_t fuzz_u16(fuzz_input *in) {
    uint32_t low = fuzz_u8(in);
    return low | fuzz_u8(in) << 8;
}

static uint32_t fuzz_below(fuzz_input *in, uint32_t limit) {
    return fuzz_u8(in) % limit;
}

static bool fuzz_more(const fuzz_input *in) {
    return in->at < in->size;
}

/* The other end of a connection: what it has sent and has not arrived yet. */
typedef struct fuzz_conn {
    dti_link *link; /* NULL = closed */
    dti_seal seal;  /* of frames to the core, once it is open */
    bool open, shut, proved;
    uint32_t from, to;
    uint8_t *queue; /* [FUZZ_QUEUE] */
} fuzz_conn;

typedef struct fuzz_world {
    dti_base base;
    dti_core core;
    fuzz_conn conns[FUZZ_LINKS]; /* as core.links */
    uint8_t fill;                /* the next byte of a body or of randomness */
    uint32_t fail_in;            /* the allocation that fails, counted from now; 0 = none */
} fuzz_world;

/* Large blocks are kept for the next input: mapping them again takes longer than all else. */
#define FUZZ_KEPT 8
#define FUZZ_KEPT_BYTES (64u << 10)

static struct {
    void *block;
    size_t bytes;
    bool used;
} fuzz_kept[FUZZ_KEPT];

static void *fuzz_world_alloc(void *user, size_t bytes, size_t align) {
    fuzz_world *w = user;
    if (w->fail_in && --w->fail_in == 0)
        return NULL;
    for (int i = 0; i < FUZZ_KEPT && bytes >= FUZZ_KEPT_BYTES; i++) {
        if (!fuzz_kept[i].block) {
            fuzz_kept[i].block = fuzz_alloc(NULL, bytes, align);
            fuzz_kept[i].bytes = bytes;
        }
        if (fuzz_kept[i].used || fuzz_kept[i].bytes != bytes)
            continue;
        fuzz_kept[i].used = true;
        return fuzz_kept[i].block;
    }
    return fuzz_alloc(NULL, bytes, align);
}

static void fuzz_world_free(void *user, void *memory, size_t bytes) {
    for (int i = 0; i < FUZZ_KEPT; i++)
        if (fuzz_kept[i].block == memory) {
            fuzz_kept[i].used = false;
            return;
        }
    fuzz_free(user, memory, bytes);
}

static fuzz_conn *fuzz_conn_of(fuzz_world *w, const dti_link *link) {
    return &w->conns[link - w->core.links];
}

static void fuzz_conn_start(fuzz_world *w, dti_link *link) {
    fuzz_conn *c = fuzz_conn_of(w, link);
    FUZZ_CHECK(!c->link && link - w->core.links < FUZZ_LINKS);
    uint8_t *queue = c->queue ? c->queue : malloc(FUZZ_QUEUE);
    *c = (fuzz_conn){.link = link, .queue = queue};
    link->conn = c;
}

/* ---- what a core asks for */

static void fuzz_dial(void *user, dti_link *link) {
    fuzz_conn_start(user, link);
}

static void fuzz_shut(void *user, dti_link *link) {
    fuzz_conn *c = fuzz_conn_of(user, link);
    FUZZ_CHECK(c->link == link && !c->shut);
    c->shut = true;
}

static void fuzz_close(void *user, dti_link *link) {
    fuzz_conn *c = fuzz_conn_of(user, link);
    FUZZ_CHECK(c->link == link);
    c->link = NULL;
}

static bool fuzz_random(void *user, void *to, size_t bytes) {
    fuzz_world *w = user;
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = w->fill++;
    return true;
}

static void fuzz_describe(void *user, const uint8_t *address, uint32_t bytes, char text[64]) {
    (void)user;
    snprintf(text, 64, "%u:%u", (unsigned)bytes, bytes ? address[0] : 0u);
}

static const dti_io fuzz_io = {fuzz_dial, fuzz_shut, fuzz_close, fuzz_random, fuzz_describe, NULL};

/* ---- its life */

static bool fuzz_world_open(fuzz_world *w, const dti_settings *set) {
    static const uint8_t address[3] = {1, 2, 3};
    dti_base_init(&w->base, &(dt_allocator){fuzz_world_alloc, fuzz_world_free, w}, NULL);
    /* The core dials at once: links must have their numbers by then. */
    FUZZ_CHECK(dti_core_link_count(set) <= FUZZ_LINKS);
    return dti_core_create(&w->core, &w->base, set, &fuzz_io, w, address, sizeof address, 1000);
}

static void fuzz_world_close(fuzz_world *w) {
    dti_core_destroy(&w->core);
    FUZZ_CHECK(w->base.bytes_now == 0);
    for (int i = 0; i < FUZZ_LINKS; i++) {
        FUZZ_CHECK(!w->conns[i].link);
        free(w->conns[i].queue);
    }
}

/* ---- bytes to the core, and from it */

static void fuzz_queue(fuzz_conn *c, const void *bytes, size_t count) {
    if (count > FUZZ_QUEUE - c->to)
        return;
    memcpy(c->queue + c->to, bytes, count);
    c->to += (uint32_t)count;
}

/* Up to `most` bytes of the queue arrive, in reads of at most `piece`. */
static void fuzz_deliver(fuzz_world *w, fuzz_conn *c, size_t most, size_t piece) {
    while (c->link && c->from < c->to && most) {
        dti_socket_part in[2];
        int count = dti_link_input(&w->core, c->link, in);
        size_t got = 0, left = DTI_MIN(DTI_MIN(most, piece), (size_t)(c->to - c->from));
        for (int i = 0; i < count && left; i++) {
            FUZZ_CHECK(in[i].data && in[i].bytes);
            size_t some = DTI_MIN(in[i].bytes, left);
            memcpy(in[i].data, c->queue + c->from, some);
            c->from += (uint32_t)some;
            got += some;
            left -= some;
        }
        if (!got)
            return; /* it does not read now */
        most -= got;
        dti_link_received(&w->core, c->link, got);
    }
    if (c->from == c->to)
        c->from = c->to = 0;
    else if (c->from > FUZZ_QUEUE / 2) {
        memmove(c->queue, c->queue + c->from, c->to - c->from);
        c->to -= c->from;
        c->from = 0;
    }
}

/* At most `most` bytes leave it. They are read, so that memory that is gone is found. */
static size_t fuzz_drain(fuzz_world *w, fuzz_conn *c, size_t most) {
    static volatile uint8_t sink;
    size_t whole = 0;
    while (c->link && !c->shut && whole < most) {
        dti_socket_part out[2];
        int count = dti_link_output(&w->core, c->link, out);
        size_t sent = 0;
        for (int i = 0; i < count && whole + sent < most; i++) {
            size_t some = DTI_MIN(out[i].bytes, most - whole - sent);
            FUZZ_CHECK(out[i].data && out[i].bytes);
            for (size_t k = 0; k < some; k++)
                sink = (uint8_t)(sink ^ ((const uint8_t *)out[i].data)[k]);
            sent += some;
            if (some < out[i].bytes)
                break;
        }
        if (!sent)
            break;
        whole += sent;
        dti_link_sent(&w->core, c->link, sent);
    }
    return whole;
}

/* ---- what holds after every event */

static const dti_backlog *fuzz_back(const dti_core *core, uint32_t i) {
    return &core->peers[i / (core->set.sockets + 1)].backs[i % (core->set.sockets + 1)];
}

/* Copies in one connection's memory: of its frames, and of others' with the same bytes. */
FUZZ_UNWATCHED static void fuzz_check_parts(const dti_core *core, const dti_backlog *b) {
    uint64_t used = 0, of[64] = {0};
    uint16_t users[64] = {0};
    for (uint32_t i = 0; b->chunks && i < core->set.size * (core->set.sockets + 1); i++) {
        const dti_backlog *other = fuzz_back(core, i);
        for (uint64_t n = other->acknowledged; n < other->sent; n++) {
            const dti_sent_frame *kept = dti_backlog_kept(other, n);
            if (!kept || !kept->chunks || kept->keeper != b)
                continue;
            const uint32_t at = dti_backlog_first_part(kept->chunks);
            FUZZ_CHECK(users[at] ? of[at] == kept->chunks : !(used & kept->chunks));
            users[at]++;
            of[at] = kept->chunks;
            used |= kept->chunks;
        }
    }
    FUZZ_CHECK(b->chunk_used == used && !memcmp(users, b->chunk_users, sizeof users));
}

/* The bytes that were sent on one connection and are not acknowledged. */
FUZZ_UNWATCHED static void fuzz_check_back(const dti_core *core, const dti_backlog *b, bool data) {
    uint64_t small = b->small_from;
    uint32_t held = 0;
    FUZZ_CHECK(b->acknowledged <= b->resend && b->resend <= b->sent && b->told <= b->received);
    FUZZ_CHECK(!b->bye_sent || b->bye_at + 1 == b->sent || b->acknowledged == b->sent);
    FUZZ_CHECK(b->frames || b->sent - b->acknowledged <= b->bye_sent);
    FUZZ_CHECK(b->sent - b->acknowledged <= DTI_BACKLOG_FRAMES + b->bye_sent);
    for (uint64_t n = b->acknowledged; n < b->sent; n++) {
        const dti_sent_frame *kept = dti_backlog_kept(b, n);
        if (!kept)
            continue;
        FUZZ_CHECK(dti_frame_is_kept(kept->frame.type) && small <= kept->to);
        FUZZ_CHECK(!kept->flight == !dti_frame_is_payload(kept->frame.type));
        FUZZ_CHECK(kept->own || !kept->chunks);
        FUZZ_CHECK(!kept->held || (data && kept->whole && !kept->own));
        small = kept->to;
        held += kept->held;
    }
    FUZZ_CHECK(b->held == held);
    fuzz_check_parts(core, b);
    FUZZ_CHECK(b->small_from <= b->small_to && b->small_to - b->small_from <= DTI_BACKLOG_UNITS);
    FUZZ_CHECK(core->window * core->set.chunk_bytes >= 64u * b->part_bytes);
}

FUZZ_UNWATCHED static void fuzz_check_peer(const dti_core *core, uint32_t rank) {
    const dti_peer *p = &core->peers[rank];
    uint32_t at = 0;
    FUZZ_CHECK(p->early_bytes <= core->early_units * 64u && p->post_count <= DTI_PENDING_MAX);
    while (at < p->early_bytes) {
        dti_frame fr;
        memcpy(&fr, p->early + at, sizeof fr);
        FUZZ_CHECK(fr.type == DTI_FRAME_EAGER && fr.length <= core->early_bytes);
        at += dti_early_units(fr.length) * 64u;
    }
    FUZZ_CHECK(at == p->early_bytes && (!p->early_open || at));
    FUZZ_CHECK(p->address_bytes <= DTI_ADDRESS_BYTES && memchr(p->where, 0, sizeof p->where));
    for (uint32_t k = 0; k < core->set.sockets; k++)
        FUZZ_CHECK(!p->data[k] ||
                   (p->data[k]->peer == rank && p->data[k]->socket == k &&
                    p->data[k]->channel == DTI_CHANNEL_DATA && p->data[k]->state != DTI_LINK_FREE));
    for (uint32_t k = 0; k <= core->set.sockets; k++)
        fuzz_check_back(core, &p->backs[k], k < core->set.sockets);
    FUZZ_CHECK(!p->control || (p->control->peer == rank && p->control->state != DTI_LINK_FREE &&
                               p->control->channel == DTI_CHANNEL_CONTROL));
}

/* The frames that are kept and whose bodies are an operation's own. */
FUZZ_UNWATCHED static uint32_t fuzz_kept_of(const dti_core *core, const dti_flight *f) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < core->set.size * (core->set.sockets + 1); i++) {
        const dti_backlog *b = fuzz_back(core, i);
        for (uint64_t n = b->acknowledged; n < b->sent; n++) {
            const dti_sent_frame *kept = dti_backlog_kept(b, n);
            count += kept && kept->flight == f && !kept->own;
        }
    }
    return count;
}

FUZZ_UNWATCHED static void fuzz_check_track(const dti_core *core, const dti_flight *f,
                                            uint32_t step) {
    const dti_schedule_step *s = &f->schedule.steps[step];
    const dti_track *t = &f->tracks[step];
    FUZZ_CHECK(t->done <= t->total && t->total == dti_chunks(&f->schedule, s->count));
    FUZZ_CHECK(t->granted <= t->total && t->told <= t->granted);
    if (s->kind == DTI_SCHEDULE_SEND)
        FUZZ_CHECK(t->done <= t->begun && t->begun <= t->ready && t->ready <= t->total);
    if (s->kind == DTI_SCHEDULE_RECV)
        FUZZ_CHECK(t->done <= t->granted && t->begun == 0);
    if (s->kind == DTI_SCHEDULE_RECV && s->place == DTI_REGION_SLOT && s->count)
        FUZZ_CHECK(t->slot < f->slot_streams && t->consumer < f->schedule.step_count &&
                   t->granted <= f->tracks[t->consumer].done + core->window &&
                   (!t->granted || f->slots));
}

/* The connections that there are. */
typedef struct fuzz_active {
    const dti_link *links[FUZZ_LINKS];
    uint32_t count;
} fuzz_active;

FUZZ_UNWATCHED static void fuzz_check_flight(const dti_core *core, const dti_flight *f) {
    uint32_t undone = 0;
    if (!f->id)
        return;
    FUZZ_CHECK(f->group);
    for (uint32_t i = 0; i < f->schedule.step_count; i++) {
        fuzz_check_track(core, f, i);
        undone += f->tracks[i].done < f->tracks[i].total;
    }
    FUZZ_CHECK(f->undone == undone);
    FUZZ_CHECK(f->result != DT_OK || f->finished == (undone == 0 && !f->parting));
    FUZZ_CHECK(!f->parting || (!f->finished && undone == 0 && f->unacknowledged));
    FUZZ_CHECK(f->unacknowledged == fuzz_kept_of(core, f));
    /* Its memory is the application's again, unless nothing is sent any more. */
    FUZZ_CHECK(!f->finished || !f->unacknowledged || core->state >= DTI_CORE_SUSPECT);
    FUZZ_CHECK(!f->finished || f->result == DT_OK || core->state >= DTI_CORE_SUSPECT);
    /* A caller that waits would treat the handle as pending, or as missing. */
    FUZZ_CHECK(f->result != DT_ERROR_TIMEOUT && f->result != DT_ERROR_INVALID);
}

/* Where the body of a frame goes: to its chunk of an operation that goes on, or to the buffer. */
FUZZ_UNWATCHED static void fuzz_check_body(const dti_core *core, const fuzz_active *a,
                                           const dti_link *link) {
    const dti_flight *f = link->rx_flight;
    FUZZ_CHECK(link->body && link->body_left && link->body_left <= link->frame.length);
    const uint8_t *end = link->body + link->body_left;
    if (!f) {
        const dti_peer *p = &core->peers[link->peer];
        FUZZ_CHECK(p->early_open && link->body >= p->early + 64 &&
                   end <= p->early + p->early_bytes);
        return;
    }
    if (!f->id || f->finished) { /* the buffers may be gone: nothing may come in any more */
        FUZZ_CHECK(core->state >= DTI_CORE_SUSPECT);
        return;
    }
    const uint8_t *at = dti_flight_step_at(core, f, link->rx_step, link->rx_chunk);
    FUZZ_CHECK(!dti_track_has(core, f, &f->tracks[link->rx_step], link->rx_chunk));
    const dti_schedule_step *s = &f->schedule.steps[link->rx_step];
    FUZZ_CHECK(link->frame.length ==
               dti_chunk_count(f, s, link->rx_chunk) * dti_flight_step_bytes(s));
    FUZZ_CHECK(link->body >= at && end == at + link->frame.length);
    for (uint32_t i = 0; i < a->count; i++) {
        const dti_link *other = a->links[i];
        FUZZ_CHECK(other == link || !other->in_body || other->rx_flight != f ||
                   other->rx_step != link->rx_step || other->rx_chunk != link->rx_chunk);
    }
}

FUZZ_UNWATCHED static void fuzz_check_link(const dti_core *core, const fuzz_active *a,
                                           const dti_link *link) {
    FUZZ_CHECK(link->rx_from <= link->rx_to && link->rx_to <= DTI_LINK_BUFFER);
    FUZZ_CHECK(link->tx_from <= link->tx_to && link->tx_to <= DTI_LINK_BUFFER);
    FUZZ_CHECK(!link->data_left == !link->tx_flight);
    if (link->state == DTI_LINK_OPEN) {
        const dti_peer *p = &core->peers[link->peer];
        FUZZ_CHECK(link->peer < core->set.size && link->peer != core->set.rank);
        FUZZ_CHECK(link->channel == DTI_CHANNEL_CONTROL ? p->control == link
                                                        : p->data[link->socket] == link);
    } else
        FUZZ_CHECK(!link->tx_flight && !link->rx_flight && !link->in_body && link->rx_to <= 512);
    if (link->in_body)
        fuzz_check_body(core, a, link);
}

FUZZ_UNWATCHED static void fuzz_check_core(const dti_core *core) {
    bool assigned = !core->pool_user;
    uint32_t parting = 0;
    fuzz_active active = {.count = 0};
    for (uint32_t i = 0; i < core->link_count; i++)
        if (core->links[i].state != DTI_LINK_FREE)
            active.links[active.count++] = &core->links[i];
    FUZZ_CHECK(core->left_count <= core->set.size && core->joined <= core->set.size);
    FUZZ_CHECK(core->note_count <= DTI_NOTES && memchr(core->text, 0, sizeof core->text));
    FUZZ_CHECK(core->state != DTI_CORE_ENDED || core->result != DT_OK);
    for (const char *at = core->text; *at; at++)
        FUZZ_CHECK((unsigned char)*at >= 0x20 && *at != 0x7F);
    for (uint32_t r = 0; r < core->set.size; r++)
        fuzz_check_peer(core, r);
    for (uint32_t i = 0; i < core->flight_count; i++) {
        const dti_flight *f = core->flights[i];
        fuzz_check_flight(core, f);
        parting += f->parting;
        assigned = assigned || (f == core->pool_user && f->id && !f->finished && f->slots);
    }
    FUZZ_CHECK(assigned && parting == core->parting);
    for (uint32_t i = 0; i < active.count; i++)
        fuzz_check_link(core, &active, active.links[i]);
}

#endif
