/* Two ends of a connection between a server and a worker, and a channel between them. Bytes come in
 * pieces, are changed, are put in, or are lost; and frames that are sealed rightly and make no
 * sense. The messages arrive as they were sent, in order and complete, or the connection is over;
 * and nothing comes out before both have proved that they have the key. */
#ifndef FUZZ_REPLAY
#define DT_COMM_ONLY
#define DT_STATIC
#define DT_IMPLEMENTATION
#endif
#include "fuzz/fuzz.h"

enum { MSG_QUEUE = 1 << 18, MSG_SAID = 64, MSG_BODY = 200000 };

typedef struct msg_end {
    dti_core core;
    dti_message_link conn;
    dti_message_server_events events;
    struct msg_world *world;
    uint8_t piece[DTI_MESSAGE_LINK_PIECE];
    dti_message said[MSG_SAID]; /* by this one */
    uint32_t said_count, heard; /* heard: of what the other said */
    uint8_t *room;              /* of a large body, as large as it is */
    uint8_t queue[MSG_QUEUE];   /* sent by this one, not yet there */
    size_t from, to;
} msg_end;

typedef struct msg_world {
    msg_end ends[2]; /* the first dials */
    const uint8_t *data;
    size_t size, at;
    bool forged; /* what comes out may be what nobody said */
    uint8_t random;
} msg_world;

static uint32_t msg_u8(msg_world *w) {
    return w->at < w->size ? w->data[w->at++] : 0;
}

static msg_end *msg_other(msg_end *e) {
    return &e->world->ends[e == &e->world->ends[0]];
}

/* Each byte of a body is known by its place. */
static uint8_t msg_byte(const dti_message *m, uint64_t at) {
    return (uint8_t)(m->number + 3 * at + (at >> 9));
}

static bool msg_random(void *user, void *to, size_t bytes) {
    msg_end *e = user;
    memset(to, ++e->world->random, bytes);
    return true;
}

/* ---- what the library calls */

static void msg_opened(void *user, uint32_t who, const uint8_t instance[16]) {
    (void)user, (void)who, (void)instance;
}

static void *msg_room(void *user, uint32_t who, const dti_message *m) {
    msg_end *e = user;
    FUZZ_CHECK(who == 3 && e->conn.open && m->bytes > DTI_MESSAGE_SMALL);
    free(e->room);
    e->room = m->bytes <= MSG_BODY && m->number % 5 ? malloc((size_t)m->bytes) : NULL;
    return e->room;
}

static void msg_came(void *user, uint32_t who, const dti_message *m, const void *body) {
    msg_end *e = user;
    const msg_end *other = msg_other(e);
    FUZZ_CHECK(who == 3 && e->conn.open && (body != NULL) == (m->bytes <= DTI_MESSAGE_SMALL));
    if (e->world->forged)
        return;
    FUZZ_CHECK(e->heard < other->said_count);
    const dti_message *said = &other->said[e->heard++ % MSG_SAID];
    FUZZ_CHECK(said->kind == m->kind && said->part == m->part && said->number == m->number &&
               said->bytes == m->bytes);
    const uint8_t *at = body ? body : e->room;
    for (uint64_t i = 0; at && i < m->bytes; i++)
        FUZZ_CHECK(at[i] == msg_byte(m, i));
}

static bool msg_read(void *user, uint32_t who, const dti_message *m, uint64_t at, void *to,
                     uint32_t bytes) {
    (void)user, (void)who;
    FUZZ_CHECK(at + bytes <= m->bytes);
    for (uint32_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = msg_byte(m, at + i);
    return true;
}

/* ---- events */

static void msg_pump(msg_end *e) {
    dti_socket_part out[2];
    while (e->to < MSG_QUEUE && dti_message_link_output(&e->core, &e->conn.link, out) > 0) {
        const size_t n = DTI_MIN(out[0].bytes, MSG_QUEUE - e->to);
        memcpy(e->queue + e->to, out[0].data, n);
        e->to += n;
        dti_message_link_sent(&e->core, &e->conn.link, n);
    }
}

static void msg_deliver(msg_end *e, size_t most, size_t step) {
    msg_end *other = msg_other(e);
    dti_socket_part in[2];
    while (most && e->from < e->to && dti_message_link_input(&other->core, &other->conn.link, in)) {
        const size_t n = DTI_MIN(DTI_MIN(in[0].bytes, e->to - e->from), DTI_MIN(most, step));
        memcpy(in[0].data, e->queue + e->from, n);
        e->from += n;
        most -= n;
        dti_message_link_received(&other->core, &other->conn.link, n);
    }
    if (e->from == e->to)
        e->from = e->to = 0;
}

static void msg_say(msg_world *w, msg_end *e) {
    static const uint64_t sizes[] = {0,
                                     1,
                                     DTI_MESSAGE_SMALL,
                                     DTI_MESSAGE_SMALL + 1,
                                     DTI_MESSAGE_LINK_PIECE,
                                     DTI_MESSAGE_LINK_PIECE + 1,
                                     2 * DTI_MESSAGE_LINK_PIECE + 7};
    const uint32_t how = msg_u8(w);
    const dti_message m = {.kind = (uint16_t)(1 + how % 3),
                           .part = how,
                           .number = e->said_count + how,
                           .bytes = how < 128 ? sizes[how % DTI_COUNT(sizes)] : 8 * how};
    if (!e->conn.open || e->conn.over || e->conn.sending)
        return;
    e->said[e->said_count++ % MSG_SAID] = m;
    dti_message_link_send(&e->conn, &m);
}

/* A frame with the right tag, of which nothing else need be right. */
static void msg_forge(msg_world *w, msg_end *e) {
    uint8_t header[DTI_HEADER_BYTES], body[256] = {0};
    const uint32_t how = msg_u8(w);
    dti_frame f = {.type = how & 1 ? DTI_FRAME_DATA : DTI_FRAME_JOIN,
                   .stream = (uint16_t)(how >> 1 & 3),
                   .group = msg_u8(w),
                   .sequence = msg_u8(w),
                   .value = (uint64_t)msg_u8(w) << (how >> 3 & 31),
                   .length = msg_u8(w)};
    if (!e->conn.open || e->conn.link.data_left || e->conn.sending ||
        e->to + sizeof header + sizeof body > MSG_QUEUE)
        return;
    w->forged = true;
    f.crc = dti_crc32c(0, body, f.length);
    dti_frame_seal(&e->conn.link.seal_out, &f, body, header);
    memcpy(e->queue + e->to, header, sizeof header);
    memcpy(e->queue + e->to + sizeof header, body, f.length);
    e->to += sizeof header + f.length;
}

static void msg_event(msg_world *w) {
    const uint32_t event = msg_u8(w);
    msg_end *e = &w->ends[event & 1];
    msg_pump(e);
    switch (event >> 1 & 7) {
    case 0:
    case 1: msg_say(w, e); break;
    case 2: msg_deliver(e, 1 + msg_u8(w), 1 + (event >> 4)); break;
    case 3:
    case 4: msg_deliver(e, SIZE_MAX, SIZE_MAX); break;
    case 5: /* a byte changes, in what is not there yet */
        if (event >= 128 && e->from < e->to)
            e->queue[e->from + msg_u8(w) * 257u % (e->to - e->from)] ^= (uint8_t)(1 + msg_u8(w));
        break;
    case 6:
        if (event >= 192)
            msg_forge(w, e);
        break;
    default: e->core.now += (uint64_t)msg_u8(w) << 22; dti_message_link_tick(&e->core, &e->conn);
    }
}

/* ---- one input */

static void msg_open(msg_world *w, uint32_t how) {
    for (int i = 0; i < 2; i++) {
        msg_end *e = &w->ends[i];
        dti_settings set = {.rank = i ? 2 : DTI_MESSAGE_LINK_CLIENT,
                            .size = DTI_MESSAGE_LINK_WORLD,
                            .sockets = 1,
                            .keyed = true,
                            .job = "fuzz"};
        const dti_io io = {.random = msg_random};
        memset(set.key, how >= 250 && i ? 0x5B : 0x5A, sizeof set.key);
        e->world = w;
        e->events = (dti_message_server_events){e, msg_opened, msg_room, msg_came, msg_read, NULL};
        dti_message_link_core(&e->core, &set, &io, e);
        e->conn = (dti_message_link){.events = &e->events, .who = 3, .piece = e->piece};
        dti_message_link_start(&e->core, &e->conn, i == 0, 2);
    }
    dti_message_link_connected(&w->ends[0].core, &w->ends[0].conn);
}

static dt_result fuzz_message(const uint8_t *data, size_t size) {
    msg_world *w = calloc(1, sizeof *w);
    if (!w)
        return DT_ERROR_MEMORY;
    w->data = data;
    w->size = size;
    const uint32_t how = msg_u8(w);
    msg_open(w, how);
    for (int i = 0; i < 6 && how < 200; i++) { /* the handshake, undisturbed */
        msg_pump(&w->ends[i & 1]);
        msg_deliver(&w->ends[i & 1], SIZE_MAX, 1 + how);
    }
    FUZZ_CHECK(how >= 200 || (w->ends[0].conn.open && w->ends[1].conn.open));
    while (w->at < w->size)
        msg_event(w);
    FUZZ_CHECK(how < 250 || !w->ends[0].conn.open);
    const bool over = w->ends[0].conn.over || w->ends[1].conn.over;
    for (int i = 0; i < 2; i++) {
        dti_message_link_reset(&w->ends[i].conn);
        free(w->ends[i].room);
    }
    free(w);
    return over ? DT_ERROR_CORRUPT : DT_OK;
}

#ifndef FUZZ_REPLAY
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_message(data, size);
    return 0;
}
#endif
