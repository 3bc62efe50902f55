/* Protocol buffers' wire format: a key (number of the field and how it is coded), then its value. A
 * message's length comes before it, and mostly takes few bytes. It is known only after the message,
 * so five bytes are reserved: readers accept numbers with leading zeros. */

enum { DTI_PROTO_VARINT = 0, DTI_PROTO_F64 = 1, DTI_PROTO_BYTES = 2, DTI_PROTO_F32 = 5 };

#define DTI_PROTO_LENGTH 5

static void dti_proto_varint(dti_text *to, uint64_t value) {
    char bytes[10];
    size_t n = 0;
    do {
        bytes[n++] = (char)((value & 0x7F) | (value > 0x7F ? 0x80 : 0));
        value >>= 7;
    } while (value);
    dti_text_add_bytes(to, bytes, n);
}

static void dti_proto_key(dti_text *to, uint32_t field, uint32_t type) {
    dti_proto_varint(to, (uint64_t)field << 3 | type);
}

static void dti_proto_whole(dti_text *to, uint32_t field, uint64_t value) {
    dti_proto_key(to, field, DTI_PROTO_VARINT);
    dti_proto_varint(to, value);
}

static void dti_proto_bytes(dti_text *to, uint32_t field, const void *data, size_t bytes) {
    dti_proto_key(to, field, DTI_PROTO_BYTES);
    dti_proto_varint(to, bytes);
    dti_text_add_bytes(to, data, bytes);
}

static void dti_proto_text(dti_text *to, uint32_t field, const char *text) {
    dti_proto_bytes(to, field, text, strlen(text));
}

static void dti_proto_f32(dti_text *to, uint32_t field, float value) {
    uint8_t little[4];
    dti_put32(little, dti_bits_from_f32(value));
    dti_proto_key(to, field, DTI_PROTO_F32);
    dti_text_add_bytes(to, little, sizeof little);
}

static void dti_proto_f64(dti_text *to, uint32_t field, double value) {
    uint64_t bits;
    uint8_t little[8];
    memcpy(&bits, &value, sizeof bits);
    dti_put64(little, bits);
    dti_proto_key(to, field, DTI_PROTO_F64);
    dti_text_add_bytes(to, little, sizeof little);
}

static size_t dti_proto_open(dti_text *to, uint32_t field) {
    dti_proto_key(to, field, DTI_PROTO_BYTES);
    const size_t opened = to->size;
    dti_text_add_bytes(to, "\x80\x80\x80\x80\0", DTI_PROTO_LENGTH);
    return opened;
}

static void dti_proto_close(dti_text *to, size_t opened) {
    if (!to->ok)
        return;
    size_t size = to->size - opened - DTI_PROTO_LENGTH;
    for (size_t i = 0; i < DTI_PROTO_LENGTH; i++, size >>= 7)
        to->data[opened + i] = (char)((size & 0x7F) | (i + 1 < DTI_PROTO_LENGTH ? 0x80u : 0u));
}
