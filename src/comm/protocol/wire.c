/* Frames to and from bytes, and their tags. No byte is trusted: a header is used only after
 * dti_frame_verify, and its length is bounded before that. */

static const char *dti_frame_name(int type) {
#define DTI_X(id, text) text,
    static const char *const names[] = {DTI_FRAME_LIST(DTI_X)};
#undef DTI_X
    return type > 0 && type < DTI_FRAME_COUNT ? names[type] : "unknown";
}

/* The bytes that may go early in a world of this number of ranks. */
static uint32_t dti_early_bytes(uint32_t world) {
    return world <= DTI_EARLY_RANKS ? DTI_EARLY_BYTES : DTI_EARLY_BYTES_LEAST;
}

/* Units of 64 bytes that an EAGER of `length` takes of its receiver's buffer; and all that has. */
static uint16_t dti_early_units(uint32_t length) {
    return (uint16_t)(1 + (length + 63) / 64);
}

static uint16_t dti_early_units_all(uint32_t world) {
    return (uint16_t)(DTI_EARLY_STREAMS * dti_early_units(dti_early_bytes(world)));
}

static bool dti_frame_is_payload(int type) {
    return type == DTI_FRAME_DATA || type == DTI_FRAME_EAGER;
}

static bool dti_frame_is_kept(int type) {
    return type != DTI_FRAME_RESUME && type != DTI_FRAME_RETURN && type != DTI_FRAME_PING &&
           type != DTI_FRAME_PONG && type != DTI_FRAME_HEARTBEAT;
}

/* Exact for frames without a body. Else a changed length would make the reader wait for bytes that
 * never come. */
static uint32_t dti_frame_length_max(int type) {
    switch (type) {
    case DTI_FRAME_DATA: return DTI_DATA_BYTES_MAX;
    case DTI_FRAME_EAGER: return DTI_EARLY_BYTES;
    case DTI_FRAME_JOIN:
    case DTI_FRAME_ROSTER:
    case DTI_FRAME_LOST:
    case DTI_FRAME_REVOKE: return DTI_CONTROL_BYTES_MAX;
    default: return 0;
    }
}

/* The tag of frame `number` with these 48 bytes. */
static void dti_frame_tag(const dti_seal *seal, const uint8_t header[DTI_TAG_AT], const void *body,
                          size_t body_bytes, uint8_t tag[DTI_TAG_BYTES]) {
    memset(tag, 0, DTI_TAG_BYTES);
    if (!seal->keyed) {
        dti_put32(tag, dti_crc32c(0, header, DTI_TAG_AT));
        return;
    }
    uint8_t text[8 + DTI_TAG_AT - 4 + 32], whole[32];
    size_t bytes = 8 + DTI_TAG_AT - 4;
    dti_put64(text, seal->frames);
    memcpy(text + 8, header + 4, DTI_TAG_AT - 4);
    if (body_bytes) {
        dti_sha256 hash;
        dti_sha256_init(&hash);
        dti_sha256_add(&hash, body, body_bytes);
        dti_sha256_end(&hash, text + bytes);
        bytes += 32;
    }
    dti_hmac(&seal->key, text, bytes, whole);
    memcpy(tag, whole, DTI_TAG_BYTES);
}

static void dti_frame_seal(dti_seal *seal, const dti_frame *frame, const void *body,
                           uint8_t out[DTI_HEADER_BYTES]) {
    dti_put32(out, DTI_MAGIC);
    out[4] = DTI_WIRE_VERSION;
    out[5] = frame->type;
    dti_put16(out + 6, frame->flags);
    dti_put16(out + 8, frame->epoch);
    dti_put16(out + 10, frame->acknowledged);
    dti_put32(out + 12, frame->group);
    dti_put64(out + 16, frame->sequence);
    dti_put16(out + 24, frame->stream);
    dti_put16(out + 26, frame->returned);
    out[28] = frame->dtype;
    out[29] = frame->kind;
    dti_put16(out + 30, frame->root);
    dti_put64(out + 32, frame->value);
    dti_put32(out + 40, frame->length);
    dti_put32(out + 44, frame->crc);
    size_t covered = dti_frame_is_payload(frame->type) ? 0 : frame->length;
    dti_frame_tag(seal, out, body, covered, out + DTI_TAG_AT);
    seal->frames++;
}

static const char *dti_frame_decode(const uint8_t in[DTI_HEADER_BYTES], dti_frame *frame) {
    if (dti_get32(in) != DTI_MAGIC)
        return "bytes that are not the beginning of a frame";
    if (in[4] != DTI_WIRE_VERSION)
        return "a frame with an unknown version";
    *frame = (dti_frame){.type = in[5],
                         .flags = (uint16_t)dti_get16(in + 6),
                         .epoch = dti_get16(in + 8),
                         .acknowledged = (uint16_t)dti_get16(in + 10),
                         .group = dti_get32(in + 12),
                         .sequence = dti_get64(in + 16),
                         .stream = (uint16_t)dti_get16(in + 24),
                         .returned = (uint16_t)dti_get16(in + 26),
                         .dtype = in[28],
                         .kind = in[29],
                         .root = (uint16_t)dti_get16(in + 30),
                         .value = dti_get64(in + 32),
                         .length = dti_get32(in + 40),
                         .crc = dti_get32(in + 44)};
    if (frame->type == DTI_FRAME_NONE || frame->type >= DTI_FRAME_COUNT)
        return "a frame of an unknown type";
    if (frame->flags & ~DTI_FLAGS_KNOWN)
        return "a frame with unknown flags";
    if (frame->length > dti_frame_length_max(frame->type))
        return "a frame that is too long for its type";
    return NULL;
}

static bool dti_frame_verify(dti_seal *seal, const uint8_t in[DTI_HEADER_BYTES],
                             const dti_frame *frame, const void *body) {
    uint8_t tag[DTI_TAG_BYTES];
    size_t covered = dti_frame_is_payload(frame->type) ? 0 : frame->length;
    dti_frame_tag(seal, in, body, covered, tag);
    seal->frames++;
    return dti_equal_secret(tag, in + DTI_TAG_AT, DTI_TAG_BYTES);
}
