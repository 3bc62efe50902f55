/* Sent frames that may have to be sent again, if a connection breaks while both ends live. Kept
 * frames are numbered. Each frame has the number of received ones (`acknowledged`), so traffic in
 * both directions needs no further message. On the connection that replaces a broken one, both
 * sides begin with RESUME, the number of frames received whole. Then they send the frames that the
 * other lacks.
 *
 * A payload is not copied while its operation is in flight, as its buffer stays. When the operation
 * ends, or a step may overwrite the buffer, data without an acknowledgement is copied. That is at
 * most `window` chunks a connection, into memory allocated with the first operation with that peer.
 * Data for several peers is copied once for all of them. If there is no room, the operation ends a
 * little later, when peers have acknowledged; a PING asks them to. Small bodies (control, short
 * EAGER) are copied when they are sent. */

/* ---- memory */

/* The window has been chosen, or has grown. Copies of finished operations stay where they are until
 * the peer has them. */
static bool dti_backlog_reserve_chunks(dti_base *base, dti_backlog *b, uint64_t chunk_memory) {
    uint8_t *chunks = dti_alloc(base, chunk_memory);
    if (!chunks)
        return false;
    b->old_chunks = b->chunks;
    b->chunks = chunks;
    b->part_bytes = (uint32_t)(chunk_memory / 64);
    return true;
}

/* For the frames; false: no memory. */
static bool dti_backlog_reserve(dti_base *base, dti_backlog *b, uint64_t chunk_memory) {
    if (b->old_chunks && !b->chunk_used) {
        dti_free(base, b->old_chunks);
        b->old_chunks = NULL;
    }
    if (!b->frames)
        b->frames = dti_alloc_array(base, DTI_BACKLOG_FRAMES, sizeof *b->frames);
    if (!b->small)
        b->small = dti_alloc(base, DTI_BACKLOG_UNITS * 64);
    if (chunk_memory / 64 > b->part_bytes && !b->old_chunks &&
        !dti_backlog_reserve_chunks(base, b, chunk_memory))
        return false;
    return b->frames && b->small;
}

static void dti_backlog_free(dti_base *base, dti_backlog *b) {
    DTI_FREE(base, b->frames, b->small, b->chunks, b->old_chunks);
}

static dti_sent_frame *dti_backlog_at(const dti_backlog *b, uint64_t number) {
    return &b->frames[number % DTI_BACKLOG_FRAMES];
}

/* The frame of a number from `acknowledged` on; NULL: it is our BYE, which is not kept. */
static dti_sent_frame *dti_backlog_kept(const dti_backlog *b, uint64_t number) {
    return b->bye_sent && number == b->bye_at ? NULL : dti_backlog_at(b, number);
}

/* Where a body of `bytes` begins in `small`, in one piece; UINT64_MAX: there is no room. */
static uint64_t dti_backlog_small(const dti_backlog *b, uint32_t bytes) {
    const uint64_t units = (bytes + 63) / 64, at = b->small_to % DTI_BACKLOG_UNITS;
    uint64_t from = b->small_to;
    if (at + units > DTI_BACKLOG_UNITS)
        from += DTI_BACKLOG_UNITS - at;
    return from + units - b->small_from <= DTI_BACKLOG_UNITS ? from : UINT64_MAX;
}

/* Whether a payload of this number of bytes is copied at once. */
static bool dti_backlog_copies(uint32_t bytes) {
    return bytes <= DTI_BACKLOG_SMALL;
}

/* Whether a frame can be kept; body: of those that are copied at once. */
static bool dti_backlog_has_room(const dti_backlog *b, uint32_t body) {
    if (b->bye_received)
        return true; /* nothing is kept for a peer that needs nothing more */
    return b->frames && b->sent - b->acknowledged < DTI_BACKLOG_FRAMES &&
           (!body || dti_backlog_small(b, body) != UINT64_MAX);
}

/* The bits of `parts` free parts in a row; 0: not found. */
static uint64_t dti_backlog_parts(const dti_backlog *b, uint32_t parts) {
    const uint64_t row = parts >= 64 ? UINT64_MAX : ((uint64_t)1 << parts) - 1;
    for (uint32_t at = 0; at + parts <= 64; at++)
        if (!(b->chunk_used & row << at))
            return row << at;
    return 0;
}

/* ---- keeping */

static void dti_backlog_copy_small(dti_backlog *b, dti_sent_frame *kept, const void *body) {
    const uint64_t from = dti_backlog_small(b, kept->frame.length);
    uint8_t *to = b->small + (size_t)(from % DTI_BACKLOG_UNITS) * 64;
    memcpy(to, body, kept->frame.length);
    kept->data = to;
    kept->own = true;
    b->small_to = from + (kept->frame.length + 63) / 64;
}

/* The next frame, for which there is room. A payload's body is the flight's, as link->tx_... say;
 * but that of a short EAGER is copied. */
static void dti_backlog_keep(dti_link *link, const dti_frame *frame, const void *body) {
    dti_backlog *b = link->back;
    const uint64_t number = b->sent++;
    b->resend = b->sent;
    if (frame->type == DTI_FRAME_BYE)
        b->bye_at = number;
    else if (b->bye_received || link->lasting)
        b->acknowledged = b->sent;
    link->tx_number = number;
    if (b->bye_received || link->lasting || frame->type == DTI_FRAME_BYE)
        return;
    dti_sent_frame *kept = dti_backlog_at(b, number);
    *kept = (dti_sent_frame){.frame = *frame, .to = b->small_to};
    if (dti_frame_is_payload(frame->type)) {
        kept->flight = link->tx_flight;
        kept->operation = kept->flight->id;
        kept->step = link->tx_step;
        kept->chunk = link->tx_chunk;
    }
    if (frame->type == DTI_FRAME_DATA ||
        (frame->type == DTI_FRAME_EAGER && !dti_backlog_copies(frame->length))) {
        kept->data = link->data;
        kept->flight->unacknowledged++;
    } else if (frame->length)
        dti_backlog_copy_small(b, kept, body);
    kept->to = b->small_to;
}

static uint32_t dti_backlog_first_part(uint64_t parts) {
    return (uint32_t)__builtin_ctzll(parts);
}

/* A payload has `parts` of the keeper's memory from now on, in place of its operation's. */
static void dti_backlog_keeps(dti_backlog *b, dti_link *link, uint64_t number, dti_backlog *keeper,
                              uint64_t parts) {
    dti_sent_frame *kept = dti_backlog_at(b, number);
    const uint32_t at = dti_backlog_first_part(parts);
    const uint8_t *data = keeper->chunks + (size_t)at * keeper->part_bytes;
    if (link && link->data_left && link->tx_number == number) /* it is on its way again */
        link->data = data + (kept->frame.length - link->data_left);
    keeper->chunk_users[at]++;
    keeper->chunk_used |= parts;
    kept->keeper = keeper;
    kept->chunks = parts;
    kept->data = data;
    kept->own = true;
    kept->flight->unacknowledged--;
}

/* Copies a payload, so that its operation's memory is not needed any more. False: no room now. */
static bool dti_backlog_copy(dti_backlog *b, dti_link *link, uint64_t number) {
    const dti_sent_frame *kept = dti_backlog_at(b, number);
    if (kept->own)
        return true;
    const uint64_t parts =
        dti_backlog_parts(b, (kept->frame.length + b->part_bytes - 1) / b->part_bytes);
    if (!parts)
        return false;
    memcpy(b->chunks + (size_t)dti_backlog_first_part(parts) * b->part_bytes, kept->data,
           kept->frame.length);
    dti_backlog_keeps(b, link, number, b, parts);
    return true;
}

/* The oldest one is not needed any more. */
static void dti_backlog_drop(dti_backlog *b) {
    const uint64_t number = b->acknowledged;
    const dti_sent_frame *kept = dti_backlog_kept(b, number);
    b->acknowledged++;
    b->moved = true;
    if (!kept)
        return;
    if (dti_frame_is_payload(kept->frame.type) && !kept->own)
        kept->flight->unacknowledged--;
    if (kept->chunks && !--kept->keeper->chunk_users[dti_backlog_first_part(kept->chunks)])
        kept->keeper->chunk_used &= ~kept->chunks;
    b->small_from = kept->to;
}
