/* ---- the end */

/* Nothing more is taken; what stands in tx, a refusal, may still go. */
static void dti_message_link_end(dti_message_link *t, bool refused, const char *format, ...)
    DTI_PRINTF(3, 4);
static void dti_message_link_end(dti_message_link *t, bool refused, const char *format, ...) {
    va_list list;
    if (t->over)
        return;
    va_start(list, format);
    vsnprintf(t->why, sizeof t->why, format, list);
    va_end(list);
    t->over = true;
    t->refused = refused;
    t->sending = false;
    t->piece_from = t->piece_to = 0;
}

/* ---- what the handshake asks: core->up */

static void dti_message_link_refused(dti_core *core, dti_link *link, const char *text) {
    (void)core;
    dti_message_link_end(link->conn, true, "%s", text);
}

static void dti_message_link_dropped(dti_core *core, dti_link *link, const char *why) {
    (void)core;
    dti_message_link_end(link->conn, false, "%s", why);
}

static const char *dti_message_link_taken(dti_core *core, dti_link *link, uint32_t peer) {
    (void)core;
    if (link->dialled ? peer != link->peer : peer != DTI_MESSAGE_LINK_CLIENT)
        return "a server's clients and a job's ranks do not mix";
    return NULL;
}

static void dti_message_link_opened(dti_core *core, dti_link *link) {
    dti_message_link *t = link->conn;
    (void)core;
    t->open = true;
    t->events->opened(t->events->user, t->who, link->hello_in + 64);
}

static const dti_core_up dti_message_link_up = {.refused = dti_message_link_refused,
                                                .dropped = dti_message_link_dropped,
                                                .taken = dti_message_link_taken,
                                                .open = dti_message_link_opened};

/* ---- the beginning */

/* What connections of one message server have in common. */
static void dti_message_link_core(dti_core *core, const dti_settings *set, const dti_io *io,
                                  void *user) {
    uint8_t auth[32];
    core->set = *set;
    core->io = *io;
    core->io_user = user;
    core->up = &dti_message_link_up;
    dti_hkdf(set->key, 32, NULL, 0, "dtrain1 auth", 12, auth, sizeof auth);
    dti_hmac_prepare(&core->auth, auth, sizeof auth);
    dti_wipe(auth, sizeof auth);
}

static void dti_message_link_reset(dti_message_link *t) {
    dti_gmac_close(&t->link.seal_in);
    dti_gmac_close(&t->link.seal_out);
    dti_wipe(&t->link.seal_in, sizeof t->link.seal_in);
    dti_wipe(&t->link.seal_out, sizeof t->link.seal_out);
    *t = (dti_message_link){.events = t->events, .who = t->who, .piece = t->piece};
}

static void dti_message_link_start(dti_core *core, dti_message_link *t, bool dialled,
                                   uint32_t place) {
    dti_message_link_reset(t);
    t->used = true;
    t->link.core = core;
    t->link.conn = t;
    t->link.dialled = dialled;
    t->link.channel = DTI_CHANNEL_CONTROL;
    t->link.peer = dialled ? place : DTI_NOBODY;
    t->link.state = dialled ? DTI_LINK_DIALING : DTI_LINK_HELLO;
    t->link.deadline = core->now + DTI_HANDSHAKE_NS;
}

/* The connection that was dialled is there. */
static void dti_message_link_connected(dti_core *core, dti_message_link *t) {
    t->link.state = DTI_LINK_HELLO;
    if (!dti_hello_write(core, &t->link, t->link.peer))
        dti_message_link_end(t, false, "the system gives no random bytes");
}

static void dti_message_link_tick(const dti_core *core, dti_message_link *t) {
    if (t->used && !t->open && core->now >= t->link.deadline)
        dti_message_link_end(t, false, "the handshake did not end in %u s",
                             (unsigned)(DTI_HANDSHAKE_NS / 1000000000u));
}

/* ---- output */

static void dti_message_link_send(dti_message_link *t, const dti_message *m) {
    if (!t->open || t->over || t->sending)
        return;
    t->sending = true;
    t->out = *m;
    t->out_at = 0;
}

static dti_frame dti_message_link_frame(const dti_message_link *t, uint32_t bytes) {
    const bool small = t->out.bytes <= DTI_MESSAGE_SMALL;
    return (dti_frame){.type = (uint8_t)(small ? DTI_FRAME_JOIN : DTI_FRAME_DATA),
                       .stream = t->out.kind,
                       .group = t->out.part,
                       .sequence = t->out.number,
                       .value = t->out.bytes,
                       .length = bytes};
}

static void dti_message_link_put_mac(dti_message_link *t, uint32_t bytes) {
    uint8_t mac[DTI_MAC_BYTES] = {0};
    dti_seal *seal = &t->link.seal_out;
    if (dti_gmac_begin(seal, seal->frames - 1) && dti_gmac_add(seal, t->piece, bytes))
        dti_gmac_end(seal, mac);
    dti_link_put(&t->link, mac, sizeof mac);
}

/* The next frame: its header to tx, its body to the piece. */
static void dti_message_link_fill(const dti_core *core, dti_message_link *t) {
    const uint64_t left = t->out.bytes - t->out_at;
    const uint32_t bytes = (uint32_t)DTI_MIN(left, (uint64_t)DTI_MESSAGE_LINK_PIECE);
    uint8_t header[DTI_HEADER_BYTES];
    if (bytes && !t->events->read(t->events->user, t->who, &t->out, t->out_at, t->piece, bytes)) {
        dti_message_link_end(t, false, "what was to be sent could not be read");
        return;
    }
    dti_frame frame = dti_message_link_frame(t, bytes);
    if (bytes && (frame.type == DTI_FRAME_JOIN || core->set.integrity == DT_COMM_CRC))
        frame.crc = dti_crc32c(0, t->piece, bytes);
    dti_frame_seal(&t->link.seal_out, &frame, t->piece, header);
    dti_link_put(&t->link, header, sizeof header);
    if (dti_link_mac_bytes(&t->link.seal_out, &frame))
        dti_message_link_put_mac(t, bytes);
    t->piece_from = 0;
    t->piece_to = bytes;
    t->out_at += bytes;
    t->sending = t->out_at < t->out.bytes;
}

/* What is to go out now, in up to two parts; 0: nothing. */
static int dti_message_link_output(const dti_core *core, dti_message_link *t,
                                   dti_link_span_out out[2]) {
    dti_link *link = &t->link;
    int count = 0;
    if (link->tx_from == link->tx_to && t->piece_from == t->piece_to) {
        link->tx_from = link->tx_to = 0;
        if (t->sending && !t->over)
            dti_message_link_fill(core, t);
    }
    if (link->tx_from < link->tx_to)
        out[count++] = (dti_link_span_out){link->tx + link->tx_from, link->tx_to - link->tx_from};
    if (t->piece_from < t->piece_to)
        out[count++] = (dti_link_span_out){t->piece + t->piece_from, t->piece_to - t->piece_from};
    return count;
}

static void dti_message_link_sent(dti_message_link *t, size_t bytes) {
    const size_t small = DTI_MIN(bytes, (size_t)(t->link.tx_to - t->link.tx_from));
    t->link.tx_from += (uint32_t)small;
    t->piece_from += (uint32_t)(bytes - small);
}

/* ---- input */

static void dti_message_link_drop(dti_message_link *t) {
    t->to = NULL;
}

static bool dti_message_link_body_is_right(const dti_core *core, dti_message_link *t) {
    uint8_t mac[DTI_MAC_BYTES] = {0};
    if (dti_link_mac_bytes(&t->link.seal_in, &t->link.frame))
        return dti_gmac_end(&t->link.seal_in, mac) && dti_equal_secret(mac, t->mac, DTI_MAC_BYTES);
    return core->set.integrity != DT_COMM_CRC || t->crc == t->link.frame.crc;
}

static void dti_message_link_came(dti_message_link *t, const void *body) {
    const dti_message m = t->in;
    t->coming = false;
    t->events->came(t->events->user, t->who, &m, body);
}

/* `bytes` of a piece have come to `at`. */
static void dti_message_link_body(const dti_core *core, dti_message_link *t, const uint8_t *at,
                                  size_t bytes) {
    if (core->set.integrity == DT_COMM_CRC)
        t->crc = dti_crc32c(t->crc, at, bytes);
    else if (t->link.seal_in.gmac)
        dti_gmac_add(&t->link.seal_in, at, bytes);
    t->left -= (uint32_t)bytes;
    t->in_at += bytes;
    if (t->left)
        return;
    t->in_piece = false;
    if (!dti_message_link_body_is_right(core, t))
        dti_message_link_end(t, false, "%u bytes of message %u changed on their way",
                             t->link.frame.length, t->in.kind);
    else if (t->in_at == t->in.bytes)
        dti_message_link_came(t, NULL);
}

static bool dti_message_same(const dti_message *a, const dti_message *b) {
    return a->kind == b->kind && a->part == b->part && a->number == b->number &&
           a->bytes == b->bytes;
}

/* A frame whose header is right. NULL, or what is wrong. */
static const char *dti_message_link_take(dti_message_link *t, const uint8_t *body) {
    const dti_frame *f = &t->link.frame;
    const dti_message m = {f->stream, f->group, f->sequence, f->value};
    const bool small = f->type == DTI_FRAME_JOIN;
    if (t->coming ? !dti_message_same(&t->in, &m) || small
                  : !m.kind || small != (m.bytes <= DTI_MESSAGE_SMALL))
        return "a message that does not follow on the one before";
    if (small ? f->length != m.bytes
              : !f->length || f->length > m.bytes - (t->coming ? t->in_at : 0))
        return "a message whose length is not what it says";
    if (!t->coming) {
        t->in = m;
        t->in_at = 0;
        t->coming = true;
        t->to = small ? NULL : t->events->room(t->events->user, t->who, &m);
    }
    if (small)
        dti_message_link_came(t, body);
    else {
        t->in_piece = true;
        t->left = f->length;
        t->crc = 0;
        if (dti_link_mac_bytes(&t->link.seal_in, f)) {
            memcpy(t->mac, body, DTI_MAC_BYTES);
            dti_gmac_begin(&t->link.seal_in, t->link.seal_in.frames - 1);
        }
    }
    return NULL;
}

/* The next frame of rx. False: not whole yet, or the connection is over. */
static bool dti_message_link_parse(dti_message_link *t) {
    dti_link *link = &t->link;
    const uint8_t *at = link->rx + link->rx_from;
    const uint32_t have = link->rx_to - link->rx_from;
    uint32_t whole = DTI_HEADER_BYTES;
    if (have < whole)
        return false;
    dti_frame *f = &link->frame;
    const char *wrong = dti_frame_decode(at, f);
    const bool small = !wrong && f->type == DTI_FRAME_JOIN;
    if (!wrong && !small && f->type != DTI_FRAME_DATA)
        wrong = "a frame of ranks";
    if (!wrong && small && f->length > DTI_MESSAGE_SMALL)
        wrong = "a small message that is large";
    if (!wrong)
        whole += small ? f->length : dti_link_mac_bytes(&link->seal_in, f);
    if (!wrong && have < whole)
        return false;
    const uint8_t *body = at + DTI_HEADER_BYTES;
    if (!wrong && !dti_frame_verify(&link->seal_in, at, f, body))
        wrong = "a header whose tag is wrong";
    if (!wrong && small && f->length && dti_crc32c(0, body, f->length) != f->crc)
        wrong = "a message whose checksum is wrong";
    if (!wrong) {
        link->rx_from += whole;
        wrong = dti_message_link_take(t, body);
    }
    if (wrong)
        dti_message_link_end(t, false, "%s came", wrong);
    return !t->over;
}

/* A piece's bytes that lie in rx already. */
static void dti_message_link_move(const dti_core *core, dti_message_link *t) {
    dti_link *link = &t->link;
    const size_t n = DTI_MIN((size_t)t->left, (size_t)(link->rx_to - link->rx_from));
    const uint8_t *from = link->rx + link->rx_from;
    if (t->to)
        memcpy(t->to + t->in_at, from, n);
    link->rx_from += (uint32_t)n;
    dti_message_link_body(core, t, from, n);
}

static void dti_message_link_digest(dti_core *core, dti_message_link *t) {
    dti_link *link = &t->link;
    bool more = true;
    while (more && !t->over) {
        if (link->state == DTI_LINK_HELLO || link->state == DTI_LINK_PROOF)
            more = dti_handshake_input(core, link) || link->state == DTI_LINK_OPEN;
        else if (link->state != DTI_LINK_OPEN)
            return;
        else if (t->in_piece && link->rx_from < link->rx_to)
            dti_message_link_move(core, t);
        else
            more = !t->in_piece && dti_message_link_parse(t);
    }
    if (link->rx_from) {
        memmove(link->rx, link->rx + link->rx_from, link->rx_to - link->rx_from);
        link->rx_to -= link->rx_from;
        link->rx_from = 0;
    }
}

/* Where the next bytes go. NULL: none are taken. */
static uint8_t *dti_message_link_input(dti_message_link *t, size_t *room) {
    dti_link *link = &t->link;
    if (t->over || link->state == DTI_LINK_DIALING)
        return NULL;
    if (t->in_piece && t->to && link->rx_from == link->rx_to) {
        *room = t->left;
        return t->to + t->in_at;
    }
    *room = dti_link_rx_room(link) - link->rx_to;
    return *room ? link->rx + link->rx_to : NULL;
}

/* They have come there. */
static void dti_message_link_received(dti_core *core, dti_message_link *t, size_t bytes) {
    dti_link *link = &t->link;
    if (t->in_piece && t->to && link->rx_from == link->rx_to)
        dti_message_link_body(core, t, t->to + t->in_at, bytes);
    else
        link->rx_to += (uint32_t)bytes;
    dti_message_link_digest(core, t);
}
