/* PNG (W3C Recommendation, "Portable Network Graphics", second edition) with stored blocks. Any
 * reader accepts them, and writing them needs no library. */

#define DTI_PNG_SIDE 16384    /* pixels */
#define DTI_PNG_STORED 65535u /* bytes of a block at most (RFC 1951, 3.2.4) */

static void dti_png_be32(dti_text *to, uint32_t value) {
    const char bytes[4] = {(char)(value >> 24), (char)(value >> 16), (char)(value >> 8),
                           (char)value};
    dti_text_add_bytes(to, bytes, sizeof bytes);
}

/* A chunk's length comes before it and its checksum after it: its data is added between these
 * calls. */
static size_t dti_png_open(dti_text *to, const char type[4]) {
    dti_png_be32(to, 0);
    dti_text_add_bytes(to, type, 4);
    return to->size;
}

static void dti_png_close(dti_text *to, size_t opened) {
    if (!to->ok)
        return;
    const uint32_t size = (uint32_t)(to->size - opened);
    for (int i = 0; i < 4; i++)
        to->data[opened - 8 + (size_t)i] = (char)(size >> (24 - 8 * i));
    dti_png_be32(to, dti_crc32(0, to->data + opened - 4, size + 4u));
}

/* Adler-32 (RFC 1950, 9) of the stored bytes. */
typedef struct dti_png_stream {
    dti_text *to;
    uint32_t a, b;
    uint64_t left; /* bytes of all */
    uint32_t room; /* in this block */
} dti_png_stream;

static void dti_png_block(dti_png_stream *s) {
    const uint32_t n = (uint32_t)DTI_MIN(s->left, (uint64_t)DTI_PNG_STORED);
    const char head[5] = {(char)(n == s->left), (char)n, (char)(n >> 8), (char)~n, (char)(~n >> 8)};
    dti_text_add_bytes(s->to, head, sizeof head);
    s->room = n;
}

static void dti_png_add(dti_png_stream *s, const uint8_t *data, uint64_t bytes) {
    while (bytes) {
        if (!s->room)
            dti_png_block(s);
        const uint32_t n = (uint32_t)DTI_MIN(bytes, (uint64_t)s->room);
        dti_text_add_bytes(s->to, data, n);
        for (uint32_t i = 0; i < n; i++) {
            s->a = (s->a + data[i]) % 65521u;
            s->b = (s->b + s->a) % 65521u;
        }
        data += n;
        bytes -= n;
        s->room -= n;
        s->left -= n;
    }
}

static void dti_png_write(dti_text *to, const uint8_t *pixels, uint32_t width, uint32_t height,
                          uint32_t channels) {
    static const char colors[5] = {0, 0, 0, 2, 6}; /* by channels: grey, RGB, RGBA */
    const uint64_t row = (uint64_t)width * channels;
    const uint8_t no_filter = 0;
    dti_text_add_bytes(to, "\x89PNG\r\n\x1a\n", 8);
    size_t chunk = dti_png_open(to, "IHDR");
    dti_png_be32(to, width);
    dti_png_be32(to, height);
    dti_text_add_bytes(to, (const char[5]){8, colors[channels], 0, 0, 0}, 5);
    dti_png_close(to, chunk);
    chunk = dti_png_open(to, "IDAT");
    dti_text_add_bytes(to, "\x78\x01", 2);
    dti_png_stream s = {.to = to, .a = 1, .left = height * (row + 1)};
    for (uint32_t y = 0; y < height; y++) {
        dti_png_add(&s, &no_filter, 1);
        dti_png_add(&s, pixels + y * row, row);
    }
    dti_png_be32(to, s.b << 16 | s.a);
    dti_png_close(to, chunk);
    dti_png_close(to, dti_png_open(to, "IEND"));
}

/* INVALID: a size that no picture here has; `name` is for the text. */
static dt_result dti_png_check(dti_base *base, const char *name, int width, int height,
                               int channels) {
    if (width >= 1 && height >= 1 && width <= DTI_PNG_SIDE && height <= DTI_PNG_SIDE &&
        (channels == 1 || channels == 3 || channels == 4))
        return DT_OK;
    return dti_fail(base, DT_ERROR_INVALID,
                    "%s: '%s' has %d x %d pixels of %d channels; it must have 1 to %d pixels a "
                    "side, and 1, 3 or 4 channels",
                    dti_function(), name, width, height, channels, DTI_PNG_SIDE);
}

DTI_PUBLIC(dt_png_save,
           (dt_ctx * ctx, const char *path, const uint8_t *pixels, int width, int height,
            int channels),
           ctx, DTI_CTX, (ctx, path, pixels, width, height, channels)) {
    dti_base *base = dti_ctx_base(ctx);
    DTI_NEED(base, path);
    DTI_NEED(base, pixels);
    DTI_TRY(dti_png_check(base, path, width, height, channels));
    dti_text text = dti_text_open(base);
    dti_png_write(&text, pixels, (uint32_t)width, (uint32_t)height, (uint32_t)channels);
    return dti_text_write(&text, path);
}
