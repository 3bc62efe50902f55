/* The state of one connection of a message server: its handshake, its outgoing and incoming
 * message, and its end. It has no socket: message_server.c moves the bytes. */

/* ---- the end */

/* No more input is accepted; a refusal in tx may still be sent. */
DTI_PRINTF(3, 4)
static void dti_message_link_end(dti_message_link *ml, bool refused, const char *format, ...) {
    if (ml->over)
        return;
    DTI_FORMAT(ml->why, format);
    ml->over = true;
    ml->refused = refused;
    ml->sending = false;
    ml->link.data_left = 0;
}

/* ---- the handshake's calls: core->up */

static void dti_message_link_refused(dti_core *core, dti_link *link, const char *text) {
    dti_message_link_end(link->conn, true, "%s", text);
}

static bool dti_message_link_dropped(dti_core *core, dti_link *link, const char *why) {
    dti_message_link_end(link->conn, false, "%s", why);
    return false;
}

static const char *dti_message_link_taken(dti_core *core, dti_link *link, uint32_t peer) {
    if (link->dialled ? peer != link->peer : peer != DTI_MESSAGE_LINK_CLIENT)
        return "a client of a server and a rank of a job cannot be connected";
    return NULL;
}

static void dti_message_link_opened(dti_core *core, dti_link *link) {
    dti_message_link *ml = link->conn;
    ml->open = true;
    ml->events->opened(ml->events->user, ml->who, link->hello_in + 64);
}

static const dti_core_up dti_message_link_up = {.refused = dti_message_link_refused,
                                                .dropped = dti_message_link_dropped,
                                                .taken = dti_message_link_taken,
                                                .open = dti_message_link_opened};

/* ---- the beginning */

/* The shared part of connections of one message server. */
static void dti_message_link_core(dti_core *core, const dti_settings *set, const dti_io *io,
                                  void *user) {
    dti_core_with(core, set, io, user, &dti_message_link_up);
}

static void dti_message_link_reset(dti_message_link *ml) {
    dti_gmac_close(&ml->link.seal_in);
    dti_gmac_close(&ml->link.seal_out);
    dti_wipe(&ml->link.seal_in, sizeof ml->link.seal_in);
    dti_wipe(&ml->link.seal_out, sizeof ml->link.seal_out);
    *ml = (dti_message_link){
        .events = ml->events, .who = ml->who, .piece = ml->piece, .moved = ml->moved};
}

static void dti_message_link_start(dti_core *core, dti_message_link *ml, bool dialled,
                                   uint32_t place) {
    dti_message_link_reset(ml);
    ml->used = true;
    ml->link.core = core;
    ml->link.conn = ml;
    ml->link.dialled = dialled;
    ml->link.channel = DTI_CHANNEL_CONTROL;
    ml->link.peer = dialled ? place : DTI_NOBODY;
    ml->link.state = dialled ? DTI_LINK_DIALING : DTI_LINK_HELLO;
    ml->link.deadline = core->now + DTI_HANDSHAKE_NS;
}

/* The dialled connection is established. */
static void dti_message_link_connected(dti_core *core, dti_message_link *ml) {
    ml->link.state = DTI_LINK_HELLO;
    if (!dti_hello_write(core, &ml->link, ml->link.peer))
        dti_message_link_end(ml, false, "the system provides no random bytes");
}

static void dti_message_link_tick(const dti_core *core, dti_message_link *ml) {
    if (ml->used && !ml->open && core->now >= ml->link.deadline)
        dti_message_link_end(ml, false, "the handshake did not end in %u s",
                             (unsigned)(DTI_HANDSHAKE_NS / 1000000000u));
}

/* ---- output */

static void dti_message_link_send(dti_message_link *ml, const dti_message *m) {
    if (!ml->open || ml->over || ml->sending)
        return;
    ml->sending = true;
    ml->out = *m;
    ml->out_at = 0;
}

static dti_frame dti_message_link_frame(const dti_message_link *ml, uint32_t bytes) {
    const bool small = ml->out.bytes <= DTI_MESSAGE_SMALL;
    return (dti_frame){.type = (uint8_t)(small ? DTI_FRAME_JOIN : DTI_FRAME_DATA),
                       .stream = ml->out.kind,
                       .group = ml->out.part,
                       .sequence = ml->out.number,
                       .value = ml->out.bytes,
                       .length = bytes};
}

/* The next frame: its header to tx, its body to the piece, which is attached. */
static void dti_message_link_fill(const dti_core *core, dti_message_link *ml) {
    const uint64_t left = ml->out.bytes - ml->out_at;
    const uint32_t bytes = (uint32_t)DTI_MIN(left, (uint64_t)DTI_MESSAGE_LINK_PIECE);
    uint8_t header[DTI_HEADER_BYTES];
    if (bytes &&
        !ml->events->read(ml->events->user, ml->who, &ml->out, ml->out_at, ml->piece, bytes)) {
        dti_message_link_end(ml, false, "the data to send could not be read");
        return;
    }
    dti_frame frame = dti_message_link_frame(ml, bytes);
    if (bytes && (frame.type == DTI_FRAME_JOIN || core->set.integrity == DT_COMM_CRC))
        frame.crc = dti_crc32c(0, ml->piece, bytes);
    dti_frame_seal(&ml->link.seal_out, &frame, ml->piece, header);
    dti_link_put(&ml->link, header, sizeof header);
    ml->link.data = ml->piece;
    ml->link.data_left = bytes;
    if (dti_link_mac_bytes(&ml->link.seal_out, &frame))
        dti_link_put_mac(&ml->link);
    ml->out_at += bytes;
    ml->sending = ml->out_at < ml->out.bytes;
}

/* The data to send now, in up to two parts; 0: nothing. */
static int dti_message_link_output(dti_core *core, dti_link *link, dti_socket_part out[2]) {
    dti_message_link *ml = link->conn;
    if (link->tx_from == link->tx_to && !link->data_left) {
        link->tx_from = link->tx_to = 0;
        if (ml->sending && !ml->over)
            dti_message_link_fill(core, ml);
    }
    return dti_link_attached(link, out);
}

static void dti_message_link_sent(dti_core *core, dti_link *link, size_t bytes) {
    dti_message_link *ml = link->conn;
    const size_t small = DTI_MIN(bytes, (size_t)(link->tx_to - link->tx_from));
    ml->moved += bytes;
    link->tx_from += (uint32_t)small;
    if (bytes > small) {
        link->data += bytes - small;
        link->data_left -= bytes - small;
    }
}

/* ---- input */

static void dti_message_link_came(dti_message_link *ml, const void *body) {
    const dti_message m = ml->in;
    ml->coming = false;
    ml->events->came(ml->events->user, ml->who, &m, body);
}

/* `bytes` of a piece have come to `at`. */
static void dti_message_link_body(const dti_core *core, dti_message_link *ml, const uint8_t *at,
                                  size_t bytes) {
    dti_link_body_add(core, &ml->link, at, bytes);
    ml->in_at += bytes;
    if (ml->link.body_left)
        return;
    ml->link.in_body = false;
    if (!dti_link_body_is_right(core, &ml->link))
        dti_message_link_end(ml, false, "%u bytes of message %u changed in transit",
                             ml->link.frame.length, ml->in.kind);
    else if (ml->in_at == ml->in.bytes)
        dti_message_link_came(ml, NULL);
}

static bool dti_message_same(const dti_message *a, const dti_message *b) {
    return a->kind == b->kind && a->part == b->part && a->number == b->number &&
           a->bytes == b->bytes;
}

/* Takes a frame whose header is right. NULL, or the error. */
static const char *dti_message_link_take(dti_message_link *ml, const uint8_t *body) {
    const dti_frame *f = &ml->link.frame;
    const dti_message m = {f->stream, f->group, f->sequence, f->value};
    const bool small = f->type == DTI_FRAME_JOIN;
    if (ml->coming ? !dti_message_same(&ml->in, &m) || small
                   : !m.kind || small != (m.bytes <= DTI_MESSAGE_SMALL))
        return "a message out of order";
    if (small ? f->length != m.bytes
              : !f->length || f->length > m.bytes - (ml->coming ? ml->in_at : 0))
        return "a message with a wrong length";
    if (!ml->coming) {
        ml->in = m;
        ml->in_at = 0;
        ml->coming = true;
        ml->to = small ? NULL : ml->events->room(ml->events->user, ml->who, &m);
    }
    if (small)
        dti_message_link_came(ml, body);
    else
        dti_link_body_begin(&ml->link, body);
    return NULL;
}

/* The next frame of rx. False: not whole yet, or the connection is over. */
static bool dti_message_link_parse(dti_message_link *ml) {
    const dti_frame *f = &ml->link.frame;
    const uint8_t *body;
    const char *wrong;
    if (!dti_link_next(&ml->link, &body, &wrong))
        return false;
    if (!wrong && f->type != DTI_FRAME_JOIN && f->type != DTI_FRAME_DATA)
        wrong = "a frame that only ranks exchange";
    else if (!wrong && f->type == DTI_FRAME_JOIN && f->length > DTI_MESSAGE_SMALL)
        wrong = "a small message that is too large";
    if (!wrong)
        wrong = dti_message_link_take(ml, body);
    if (wrong)
        dti_message_link_end(ml, false, "received %s", wrong);
    return !ml->over;
}

/* A piece's bytes that lie in rx already. */
static void dti_message_link_move(const dti_core *core, dti_message_link *ml) {
    dti_link *link = &ml->link;
    const size_t n = DTI_MIN((size_t)link->body_left, (size_t)(link->rx_to - link->rx_from));
    const uint8_t *from = link->rx + link->rx_from;
    if (ml->to)
        memcpy(ml->to + ml->in_at, from, n);
    link->rx_from += (uint32_t)n;
    dti_message_link_body(core, ml, from, n);
}

static void dti_message_link_digest(dti_core *core, dti_message_link *ml) {
    dti_link *link = &ml->link;
    bool more = true;
    while (more && !ml->over) {
        if (link->state == DTI_LINK_HELLO || link->state == DTI_LINK_PROOF)
            more = dti_handshake_input(core, link) || link->state == DTI_LINK_OPEN;
        else if (link->state != DTI_LINK_OPEN)
            return;
        else if (link->in_body && link->rx_from < link->rx_to)
            dti_message_link_move(core, ml);
        else
            more = !link->in_body && dti_message_link_parse(ml);
    }
    if (link->rx_from)
        dti_link_rx_shift(link);
}

/* Where the next bytes go, in one part; 0: none are taken. */
static int dti_message_link_input(dti_core *core, dti_link *link, dti_socket_part in[2]) {
    const dti_message_link *ml = link->conn;
    if (ml->over || link->state == DTI_LINK_DIALING)
        return 0;
    if (link->in_body && ml->to && link->rx_from == link->rx_to)
        in[0] = (dti_socket_part){ml->to + ml->in_at, link->body_left};
    else
        in[0] = (dti_socket_part){link->rx + link->rx_to, dti_link_rx_room(link) - link->rx_to};
    return in[0].bytes > 0;
}

/* They have come there. */
static void dti_message_link_received(dti_core *core, dti_link *link, size_t bytes) {
    dti_message_link *ml = link->conn;
    ml->moved += bytes;
    if (link->in_body && ml->to && link->rx_from == link->rx_to)
        dti_message_link_body(core, ml, ml->to + ml->in_at, bytes);
    else
        link->rx_to += (uint32_t)bytes;
    dti_message_link_digest(core, ml);
}
