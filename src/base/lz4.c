/* Decodes a block of LZ4: sequences of literal bytes and of copies of what was written before
 * (https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md). What it reads and writes stays
 * within what it was given, whatever the block says. Refuses frames, checksums and compressing:
 * tools/shaders does that. */

/* A length whose four bits are all set goes on in bytes, up to one that is not 255. */
static bool dti_lz4_length(const uint8_t **in, const uint8_t *end, size_t *length, size_t most) {
    uint8_t more = *length == 15 ? 255 : 0;
    while (more == 255 && *length <= most) {
        if (*in == end)
            return false;
        more = *(*in)++;
        *length += more;
    }
    return *length <= most;
}

/* Exactly `room` bytes at `out`; false where the block is damaged or holds another number. */
static bool dti_lz4_decode(void *out, size_t room, const void *block, size_t bytes) {
    uint8_t *to = out;
    const uint8_t *in = block, *end = in + bytes;
    size_t made = 0;
    while (in < end) {
        const uint8_t token = *in++;
        size_t length = token >> 4;
        if (!dti_lz4_length(&in, end, &length, room - made) || length > (size_t)(end - in))
            return false;
        memcpy(to + made, in, length);
        made += length;
        in += length;
        if (in == end) /* the last sequence copies nothing */
            return made == room;
        if (end - in < 2)
            return false;
        const size_t back = (size_t)in[0] | (size_t)in[1] << 8;
        in += 2;
        length = token & 15;
        if (!dti_lz4_length(&in, end, &length, room - made) || back == 0 || back > made ||
            length + 4 > room - made)
            return false;
        for (length += 4; length; length--, made++) /* a copy may read what it writes */
            to[made] = to[made - back];
    }
    return false;
}
