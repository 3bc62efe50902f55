/* A connection's bytes. Outgoing: a buffer of small frames, then at most one payload, which is sent
 * from its memory. Incoming: a payload goes directly to its destination, everything else to a
 * buffer. It must not know what frames mean; it calls the files above through core->up. */

/* ---- output */

static uint32_t dti_link_room(const dti_link *link) {
    return DTI_LINK_BUFFER - link->tx_to;
}

/* Appends bytes that fit. */
static void dti_link_put(dti_link *link, const void *bytes, size_t count) {
    memcpy(link->tx + link->tx_to, bytes, count);
    link->tx_to += (uint32_t)count;
}

/* Makes the peer report received frames as soon as it can. */
static void dti_link_ask(dti_link *link) {
    if (!link || link->state != DTI_LINK_OPEN || link->pinged || link->ping_due)
        return;
    link->ping_due = true;
    link->moved = link->core->now; /* its time to go begins */
}

/* Writes the MAC between a header and its body. */
static uint32_t dti_link_mac_bytes(const dti_seal *seal, const dti_frame *frame) {
    return seal->gmac && frame->length && dti_frame_is_payload(frame->type) ? DTI_MAC_BYTES : 0;
}

/* The MAC of the attached payload; its header was sealed last. */
static void dti_link_put_mac(dti_link *link) {
    uint8_t mac[DTI_MAC_BYTES] = {0}; /* if OpenSSL fails, the receiver refuses the frame */
    dti_seal *seal = &link->seal_out;
    if (dti_gmac_begin(seal, seal->frames - 1) && dti_gmac_add(seal, link->data, link->data_left))
        dti_gmac_end(seal, mac);
    dti_link_put(link, mac, sizeof mac);
}

/* Appends a frame that has its number; body is copied (control) or, of a payload, was attached by
 * the caller. */
static void dti_link_seal(dti_link *link, dti_frame *frame, const void *body) {
    uint8_t header[DTI_HEADER_BYTES];
    bool payload = dti_frame_is_payload(frame->type);
    frame->acknowledged = (uint16_t)link->back->received;
    link->back->told = link->back->received;
    link->back->untold_bytes = 0;
    dti_frame_seal(&link->seal_out, frame, body, header);
    dti_link_put(link, header, sizeof header);
    if (!payload && frame->length)
        dti_link_put(link, body, frame->length);
    else if (dti_link_mac_bytes(&link->seal_out, frame))
        dti_link_put_mac(link);
}

/* The same of a new frame, for which there is room. */
static void dti_link_put_frame(dti_link *link, dti_frame *frame, const void *body) {
    bool payload = dti_frame_is_payload(frame->type);
    frame->epoch = link->core->epoch;
    if (!payload && frame->length)
        frame->crc = dti_crc32c(0, body, frame->length);
    if (dti_frame_is_kept(frame->type))
        dti_backlog_keep(link, frame, payload ? link->data : body);
    dti_link_seal(link, frame, body);
}

/* Frames that the connection before this one did not bring to the peer, as they were. True: more
 * of them are to come. */
static bool dti_link_put_again(dti_link *link) {
    const dti_backlog *b = link->back;
    while (b->resend < b->sent && !link->data_left) {
        const uint64_t number = link->back->resend;
        const dti_sent_frame *kept = dti_backlog_at(b, number);
        dti_frame frame = kept->frame;
        bool payload = dti_frame_is_payload(frame.type);
        if (dti_link_room(link) < DTI_HEADER_ROOM + (payload ? 0 : frame.length))
            return true;
        if (payload) {
            link->data = kept->data;
            link->data_left = frame.length;
            link->tx_flight = kept->flight;
            link->tx_step = kept->step;
            link->tx_chunk = kept->chunk;
            link->tx_number = number;
        }
        dti_link_seal(link, &frame, kept->data);
        link->back->resend++;
    }
    return b->resend < b->sent || link->data_left;
}

static bool dti_core_data_frozen(const dti_core *core, const dti_link *link) {
    return link->channel == DTI_CHANNEL_DATA && link->state == DTI_LINK_OPEN &&
           (core->state == DTI_CORE_SUSPECT || core->state == DTI_CORE_ENDED);
}

/* The attached data, in up to two pieces; 0 = nothing. */
static int dti_link_attached(dti_link *link, dti_socket_part out[2]) {
    int count = 0;
    if (link->tx_to > link->tx_from)
        out[count++] = (dti_socket_part){link->tx + link->tx_from, link->tx_to - link->tx_from};
    if (link->data_left)
        out[count++] = (dti_socket_part){(void *)(uintptr_t)link->data, link->data_left};
    return count;
}

/* Likewise for outgoing data. */
static int dti_link_output(dti_core *core, dti_link *link, dti_socket_part out[2]) {
    if (link->state == DTI_LINK_FREE || link->state == DTI_LINK_DIALING || link->shut ||
        dti_core_data_frozen(core, link))
        return 0;
    if (link->tx_from == link->tx_to && !link->data_left) {
        link->tx_from = link->tx_to = 0;
        if (link->state == DTI_LINK_OPEN)
            core->up->fill(core, link);
    }
    return dti_link_attached(link, out);
}

/* Nothing is left to send, ever. */
static void dti_link_drained(dti_core *core, dti_link *link) {
    const dti_backlog *b = link->back;
    bool over =
        link->state == DTI_LINK_OPEN && link->resumed && b->bye_sent && b->resend == b->sent;
    if (link->shut || (!over && link->state != DTI_LINK_REFUSED))
        return;
    link->shut = true;
    core->io.shut(core->io_user, link);
}

/* ---- loans: payloads that the other process reads in place. No copy is kept, so they are for
 * lasting connections only. A step's chunks are sent in order, so one that was copied counts after
 * earlier loans. */

static bool dti_link_may_lend(const dti_link *link) {
    return link->loans_to - link->loans_from < DTI_LOANS_MAX;
}

/* Drops the attached payload, of which nothing was sent, for the next one. */
static void dti_link_lend(dti_link *link, uint32_t mark) {
    link->loans[link->loans_to++ % DTI_LOANS_MAX] = (dti_link_loan){
        link->tx_flight, link->tx_step, link->tx_chunk, (uint32_t)link->data_left, mark};
    link->data_left = 0;
    link->tx_flight = NULL;
    link->more = false;
    if (link->tx_from == link->tx_to)
        link->tx_from = link->tx_to = 0;
}

/* The oldest loan; NULL: none. */
static const dti_link_loan *dti_link_loan_oldest(const dti_link *link) {
    return link->loans_from == link->loans_to ? NULL
                                              : &link->loans[link->loans_from % DTI_LOANS_MAX];
}

/* The attached payload was sent completely. */
static void dti_link_payload_out(dti_core *core, dti_link *link) {
    const dti_link_loan *before = &link->loans[(link->loans_to - 1) % DTI_LOANS_MAX];
    link->more = false;
    if (link->loans_from == link->loans_to)
        core->up->sent(core, link);
    else
        dti_link_lend(link, before->mark);
}

/* The other side has taken it. */
static void dti_link_returned(dti_core *core, dti_link *link) {
    const dti_link_loan loan = *dti_link_loan_oldest(link);
    link->loans_from++;
    core->bytes_sent += loan.bytes;
    core->payload_bytes_sent += loan.bytes;
    link->moved = core->now;
    if (!dti_core_data_frozen(core, link))
        core->up->returned(core, &loan);
}

static void dti_link_sent(dti_core *core, dti_link *link, size_t bytes) {
    size_t small = DTI_MIN(bytes, (size_t)(link->tx_to - link->tx_from));
    core->bytes_sent += bytes;
    link->moved = core->now;
    link->tx_from += (uint32_t)small;
    bytes -= small;
    if (link->data_left) {
        link->data += bytes;
        link->data_left -= bytes;
        core->payload_bytes_sent += bytes;
        if (!link->data_left)
            dti_link_payload_out(core, link);
    }
    if (link->tx_from == link->tx_to && !link->data_left) {
        link->tx_from = link->tx_to = 0;
        dti_link_drained(core, link);
    }
}

/* ---- input */

/* Unauthenticated peers get no more of our memory than a greeting takes. */
static uint32_t dti_link_rx_room(const dti_link *link) {
    return link->state == DTI_LINK_OPEN ? DTI_LINK_BUFFER : 512;
}

static bool dti_link_has_room(const dti_link *link) {
    return link->in_body || link->rx_from == link->rx_to || link->rx_to < dti_link_rx_room(link);
}

/* Where the next bytes go, in up to two pieces; 0 = read nothing now. */
static int dti_link_input(dti_core *core, dti_link *link, dti_socket_part in[2]) {
    if (link->state == DTI_LINK_FREE || link->state == DTI_LINK_DIALING ||
        dti_core_data_frozen(core, link))
        return 0;
    int count = 0;
    if (link->in_body)
        in[count++] = (dti_socket_part){link->body, link->body_left};
    if (link->rx_from == link->rx_to)
        link->rx_from = link->rx_to = 0;
    uint32_t room = dti_link_rx_room(link);
    if (link->rx_to < room)
        in[count++] = (dti_socket_part){link->rx + link->rx_to, room - link->rx_to};
    return count;
}

/* A payload's header was right: its body follows. `mac`: the bytes in between, if any. */
static void dti_link_body_begin(dti_link *link, const uint8_t *mac) {
    link->body_left = link->frame.length;
    link->body_crc = 0;
    link->in_body = link->body_left > 0;
    if (dti_link_mac_bytes(&link->seal_in, &link->frame)) {
        memcpy(link->body_mac, mac, DTI_MAC_BYTES);
        dti_gmac_begin(&link->seal_in, link->seal_in.frames - 1);
    }
}

/* Some of it has come, to `at`. */
static void dti_link_body_add(const dti_core *core, dti_link *link, const uint8_t *at,
                              size_t bytes) {
    if (core->set.integrity == DT_COMM_CRC)
        link->body_crc = dti_crc32c(link->body_crc, at, bytes);
    else if (link->seal_in.gmac)
        dti_gmac_add(&link->seal_in, at, bytes);
    link->body_left -= (uint32_t)bytes;
}

/* Whether the body that has come is the one that was sent. */
static bool dti_link_body_is_right(const dti_core *core, dti_link *link) {
    uint8_t mac[DTI_MAC_BYTES] = {0};
    if (dti_link_mac_bytes(&link->seal_in, &link->frame))
        return dti_gmac_end(&link->seal_in, mac) &&
               dti_equal_secret(mac, link->body_mac, DTI_MAC_BYTES);
    return core->set.integrity != DT_COMM_CRC || link->body_crc == link->frame.crc;
}

/* A kept frame has come whole. */
static void dti_link_count(dti_link *link) {
    link->back->received++;
    link->back->moved = true;
    link->back->untold_bytes += link->frame.length;
}

static bool dti_link_body_end(dti_core *core, dti_link *link) {
    link->in_body = false;
    if (!dti_link_body_is_right(core, link))
        return core->up->failed(
            core, link, DT_ERROR_CORRUPT,
            "%u bytes of data changed in transit (%s, stream %u of operation %llu of group %u)",
            link->frame.length, dti_frame_name(link->frame.type), link->frame.stream,
            (unsigned long long)link->frame.sequence, link->frame.group);
    dti_link_count(link);
    core->up->payload(core, link);
    return true;
}

/* `bytes` of the body have come to link->body. */
static bool dti_link_body(dti_core *core, dti_link *link, size_t bytes) {
    dti_link_body_add(core, link, link->body, bytes);
    link->body += bytes;
    core->payload_bytes_received += bytes;
    return link->body_left || dti_link_body_end(core, link);
}

/* A header that is right, and its body if it is a control frame's, or its body's MAC. */
static bool dti_link_frame(dti_core *core, dti_link *link, const uint8_t *body) {
    dti_frame *f = &link->frame;
    if ((f->type == DTI_FRAME_RESUME) == link->resumed)
        return core->up->failed(core, link, DT_ERROR_CORRUPT, "received a %s frame out of turn",
                                dti_frame_name(f->type));
    if (f->type == DTI_FRAME_RESUME) {
        core->up->resume(core, link);
        return link->state == DTI_LINK_OPEN;
    }
    if (link->back->bye_received)
        return core->up->failed(core, link, DT_ERROR_CORRUPT, "received a %s frame after BYE",
                                dti_frame_name(f->type));
    if (!core->up->acknowledged(core, link, f->acknowledged))
        return false;
    if (dti_frame_is_payload(f->type)) {
        if (!core->up->body(core, link))
            return false;
        dti_link_body_begin(link, body);
        return link->in_body || dti_link_body_end(core, link);
    }
    if (dti_frame_is_kept(f->type))
        dti_link_count(link);
    if (f->type == DTI_FRAME_BYE) {
        link->back->bye_received = true;
        core->up->bye(core, link);
    } else if (f->type >= DTI_FRAME_JOIN)
        core->up->control(core, link, body);
    else
        core->up->frame(core, link);
    return link->state == DTI_LINK_OPEN;
}

/* Whether the frame may come on this connection. */
static bool dti_link_may(const dti_link *link, int type) {
    if (type == DTI_FRAME_BYE || type == DTI_FRAME_RESUME)
        return true;
    if (link->socket && type >= DTI_FRAME_EAGER && type <= DTI_FRAME_CREDIT)
        return false;
    return (link->channel == DTI_CHANNEL_CONTROL) == (type >= DTI_FRAME_JOIN);
}

/* Takes the next frame out of rx. *body: what follows its header, a control body or a MAC. *wrong:
 * its error, or NULL. False: it is not complete yet. */
static bool dti_link_next(dti_link *link, const uint8_t **body, const char **wrong) {
    const uint8_t *at = link->rx + link->rx_from;
    const uint32_t have = link->rx_to - link->rx_from;
    uint32_t whole = DTI_HEADER_BYTES;
    if (have < whole)
        return false;
    dti_frame *f = &link->frame;
    *body = at + whole;
    *wrong = dti_frame_decode(at, f);
    if (*wrong)
        return true;
    const bool payload = dti_frame_is_payload(f->type);
    whole += payload ? dti_link_mac_bytes(&link->seal_in, f) : f->length;
    if (have < whole)
        return false;
    if (!dti_frame_verify(&link->seal_in, at, f, *body))
        *wrong = "a header whose tag is wrong";
    else if (!payload && f->length && dti_crc32c(0, *body, f->length) != f->crc)
        *wrong = "a frame whose checksum is wrong";
    link->rx_from += whole;
    return true;
}

/* The next frame of rx; false = not whole yet, or the connection has failed. */
static bool dti_link_parse(dti_core *core, dti_link *link) {
    const dti_frame *f = &link->frame;
    const uint8_t *body;
    const char *wrong;
    if (!dti_link_next(link, &body, &wrong))
        return false;
    if (!wrong && !dti_link_may(link, f->type))
        wrong = "a frame that does not belong on this connection";
    if (wrong)
        return core->up->failed(core, link, DT_ERROR_CORRUPT, "received %s", wrong);
    link->begun = 0;
    if (f->epoch !=
        core->epoch) /* dropped; not possible for data, which has its own connections for each
                        epoch */
        return !dti_frame_is_payload(f->type);
    return dti_link_frame(core, link, body);
}

/* Moves the rest of rx to its start, to make room. */
static void dti_link_rx_shift(dti_link *link) {
    memmove(link->rx, link->rx + link->rx_from, link->rx_to - link->rx_from);
    link->rx_to -= link->rx_from;
    link->rx_from = 0;
}

/* Takes the frames in rx, as far as they are complete. */
static void dti_link_digest(dti_core *core, dti_link *link) {
    for (;;) {
        if (dti_core_data_frozen(core, link))
            return;
        if (link->state == DTI_LINK_HELLO || link->state == DTI_LINK_PROOF) {
            if (!core->up->greeted(core, link))
                break;
        } else if (link->state != DTI_LINK_OPEN) {
            link->rx_from = link->rx_to = 0;
            return;
        } else if (link->in_body) {
            size_t take = DTI_MIN((size_t)link->body_left, (size_t)(link->rx_to - link->rx_from));
            if (!take)
                break;
            memcpy(link->body, link->rx + link->rx_from, take);
            link->rx_from += (uint32_t)take;
            if (!dti_link_body(core, link, take))
                return;
        } else if (!dti_link_parse(core, link))
            break;
    }
    if (link->rx_from && !link->in_body)
        dti_link_rx_shift(link);
}

/* `bytes` have been read to the place that dti_link_input gave. */
static void dti_link_received(dti_core *core, dti_link *link, size_t bytes) {
    core->bytes_received += bytes;
    link->heard = core->now;
    link->pinged = 0;
    if (link->in_body) {
        size_t take = DTI_MIN(bytes, (size_t)link->body_left);
        link->rx_to += (uint32_t)(bytes - take);
        if (!dti_link_body(core, link, take))
            return;
    } else
        link->rx_to += (uint32_t)bytes;
    dti_link_digest(core, link);
    if (!link->begun && link->rx_to > link->rx_from)
        link->begun = core->now;
}
