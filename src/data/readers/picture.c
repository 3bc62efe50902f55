/* The kind of a picture's file, its size and its channels. The size is read here, so that it can be
 * compared with the file's length before memory is allocated. So a set is checked without decoding.
 * It rejects sizes that the file's bytes cannot hold, and pictures of more than 2^28 pixels. */

#define DTI_PICTURE_PIXELS_MAX ((uint64_t)1 << 28)
/* Deflate gives at most 1032 bytes for one; a JPEG block of 64 pixels takes a bit or more in each
 * of its channels. */
#define DTI_PICTURE_PNG_MOST 1032u
#define DTI_PICTURE_JPEG_MOST 512u

static dt_result dti_picture_no(const dti_reader *r, const char *why) {
    return dti_fail(r->base, DT_ERROR_FORMAT, "%s: %s", r->path, why);
}

static dt_result dti_picture_wrong(const dti_file_bytes *f, const char *why) {
    char plain[200];
    size_t n = 0;
    for (; why[n] && n + 1 < sizeof plain; n++) /* texts of the libraries may quote the file */
        plain[n] = why[n] >= ' ' && why[n] < 0x7F ? why[n] : '?';
    plain[n] = 0;
    return dti_fail(f->base, DT_ERROR_FORMAT, "%s: damaged or truncated: %s", f->path, plain);
}

static dt_result dti_picture_check(const dti_reader *r, const dti_picture *p) {
    const uint64_t pixels = (uint64_t)p->width * p->height;
    const uint64_t most = p->kind == DTI_PICTURE_PNG
                              ? DTI_PICTURE_PNG_MOST * 8u /* pixels of one bit */
                              : DTI_PICTURE_JPEG_MOST;
    if (!p->width || !p->height || p->width > INT32_MAX || p->height > INT32_MAX)
        return dti_picture_no(r, "its width or height is 0 or too large");
    if (pixels > DTI_PICTURE_PIXELS_MAX)
        return dti_fail(r->base, DT_ERROR_UNSUPPORTED,
                        "%s: %u x %u pixels; at most 2^28 are supported", r->path, p->width,
                        p->height);
    if (pixels / most > r->size)
        return dti_fail(r->base, DT_ERROR_FORMAT,
                        "%s: its header has %u x %u pixels, which do not fit into its %llu bytes; "
                        "is it truncated?",
                        r->path, p->width, p->height, (unsigned long long)r->size);
    return DT_OK;
}

#ifdef DT_WITH_PNG
static dt_result dti_picture_look_png(dti_reader *r, const uint8_t *b, dti_picture *p) {
    static const int channels[7] = {1, 0, 3, 3, 2, 0, 4}; /* by colour type; 3: a palette */
    if (r->size < 33 || dti_get32_be(b + 8) != 13 || memcmp(b + 12, "IHDR", 4) || b[25] > 6 ||
        !channels[b[25]])
        return dti_picture_no(r, "a PNG file whose header is damaged or truncated");
    *p = (dti_picture){.kind = DTI_PICTURE_PNG,
                       .width = dti_get32_be(b + 16),
                       .height = dti_get32_be(b + 20),
                       .channels = channels[b[25]]};
    return dti_picture_check(r, p);
}
#endif

#ifdef DT_WITH_JPEG
/* Part of a file. A header may have a segment every two bytes: a read for each took seconds. */
typedef struct dti_jpeg_bytes {
    dti_reader *reader;
    uint64_t from;
    size_t size;
    uint8_t bytes[4096];
} dti_jpeg_bytes;

/* The byte at `at`; -1: the file ends before it, or cannot be read. */
static int dti_jpeg_byte(dti_jpeg_bytes *part, uint64_t at) {
    dti_reader *r = part->reader;
    if (at < part->from || at - part->from >= part->size) {
        if (at >= r->size)
            return -1;
        part->from = at;
        part->size = (size_t)DTI_MIN(r->size - at, (uint64_t)sizeof part->bytes);
        if (dti_reader_seek(r, at) || dti_reader_take(r, part->bytes, part->size)) {
            part->size = 0;
            return -1;
        }
    }
    return part->bytes[at - part->from];
}

static int dti_jpeg_word(dti_jpeg_bytes *part, uint64_t at) {
    const int high = dti_jpeg_byte(part, at), low = dti_jpeg_byte(part, at + 1);
    return high < 0 || low < 0 ? -1 : high << 8 | low;
}

/* Finds the next marker from *at on, and moves *at to the byte after it; 0: the file ends. Bytes
 * between two segments are skipped, as libjpeg does: cameras and editors leave some there. */
static int dti_jpeg_marker(dti_jpeg_bytes *part, uint64_t *at) {
    int before = 0, byte;
    while ((byte = dti_jpeg_byte(part, *at)) >= 0) {
        ++*at;
        if (before == 0xFF && byte && byte != 0xFF)
            return byte;
        before = byte;
    }
    return 0;
}

/* Markers up to the frame's header, SOFn. No header comes after a scan. */
static dt_result dti_picture_look_frame(dti_reader *r, dti_picture *p) {
    dti_jpeg_bytes part = {.reader = r};
    uint64_t at = 2;
    for (;;) {
        const int marker = dti_jpeg_marker(&part, &at);
        const bool bare = marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7); /* no length */
        const int more = bare ? 0 : dti_jpeg_word(&part, at);
        if (!marker || more < 0 || (uint64_t)more > r->size - at)
            return dti_picture_no(r, "a JPEG file that ends before its frame's header");
        if (marker == 0xDA || marker == 0xD9)
            return dti_picture_no(r, "a JPEG file without a frame's header");
        if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC)
            break;
        at += (uint64_t)more;
    }
    const int height = dti_jpeg_word(&part, at + 3), width = dti_jpeg_word(&part, at + 5);
    const int channels = dti_jpeg_byte(&part, at + 7);
    if (height < 0 || width < 0 || channels < 0)
        return dti_picture_no(r, "a JPEG file that ends before its frame's header");
    *p = (dti_picture){.kind = DTI_PICTURE_JPEG,
                       .height = (uint32_t)height,
                       .width = (uint32_t)width,
                       .channels = channels == 1 ? 1 : 3};
    if (channels != 1 && channels != 3)
        return dti_fail(r->base, DT_ERROR_UNSUPPORTED,
                        "%s: a JPEG file of %d channels (CMYK?); convert it to RGB", r->path,
                        channels);
    return dti_picture_check(r, p);
}
#endif

static dt_result dti_picture_look(dti_reader *r, dti_picture *out) {
    uint8_t b[33] = {0};
    DTI_TRY(dti_reader_take(r, b, (size_t)DTI_MIN(r->size, (uint64_t)sizeof b)));
    if (r->size >= 8 && !memcmp(b, "\x89PNG\r\n\x1a\n", 8))
#ifdef DT_WITH_PNG
        return dti_picture_look_png(r, b, out);
#else
        return dti_fail(r->base, DT_ERROR_UNSUPPORTED,
                        "%s: a PNG file; compile dtrain with DT_WITH_PNG, and link with -lpng",
                        r->path);
#endif
    if (r->size < 2 || b[0] != 0xFF || b[1] != 0xD8)
        return dti_picture_no(r, "neither a PNG nor a JPEG file");
#ifdef DT_WITH_JPEG
    return dti_picture_look_frame(r, out);
#else
    return dti_fail(r->base, DT_ERROR_UNSUPPORTED,
                    "%s: a JPEG file; compile dtrain with DT_WITH_JPEG, and link with -ljpeg",
                    r->path);
#endif
}

/* ---- channels */

static uint8_t dti_picture_luma(const uint8_t *p) {
    return (uint8_t)((19595u * p[0] + 38470u * p[1] + 7471u * p[2] + 32768u) >> 16);
}

/* In place: from the last pixel on where they grow. */
static void dti_picture_convert(uint8_t *pixels, size_t count, int from, int to) {
    for (size_t n = 0; n < count; n++) {
        const size_t i = to > from ? count - 1 - n : n;
        const uint8_t *p = pixels + i * (size_t)from;
        uint8_t q[4] = {p[0], p[0], p[0], 255};
        if (from >= 3)
            memcpy(q, p, 3);
        if (from == 2 || from == 4)
            q[3] = p[from - 1];
        if (to <= 2)
            q[0] = from >= 3 ? dti_picture_luma(p) : p[0];
        if (to == 2)
            q[1] = q[3];
        memcpy(pixels + i * (size_t)to, q, (size_t)to);
    }
}

static dt_result dti_picture_decode(const dti_file_bytes *f, const dti_picture *p, int channels,
                                    uint8_t *room) {
    const bool alpha = channels == 2 || channels == 4;
    const int base = p->channels >= 3 ? 3 : 1;
    const int from = p->kind == DTI_PICTURE_PNG ? base + alpha : base;
    const dt_result result = p->kind == DTI_PICTURE_PNG ? dti_picture_png(f, p, alpha, room)
                                                        : dti_picture_jpeg(f, p, room);
    if (!result && from != channels)
        dti_picture_convert(room, (size_t)p->width * p->height, from, channels);
    return result;
}

/* ---- values */

static void dti_picture_table(float table[256]) {
    for (int i = 0; i < 256; i++)
        table[i] = (float)i / 255.0f;
}

static void dti_picture_floats(const uint8_t *pixels, size_t count, size_t channels,
                               const float table[256], float *to) {
    for (size_t c = 0; c < channels; c++)
        for (size_t i = 0; i < count; i++)
            to[c * count + i] = table[pixels[i * channels + c]];
}

/* ---- the requested size */

static dt_result dti_picture_asked(dti_base *base, const char *who, int width, int height,
                                   int channels) {
    if (width < 0 || height < 0 || !width != !height || width > 65536 || height > 65536 ||
        channels < 0 || channels > 4)
        return dti_fail(base, DT_ERROR_INVALID,
                        "%s: .width is %d, .height %d, .channels %d; give .width and .height from "
                        "1 to 65536, or 0 for both, and .channels from 0 to 4",
                        who, width, height, channels);
    if ((uint64_t)width * (uint64_t)height > DTI_PICTURE_PIXELS_MAX)
        return dti_fail(base, DT_ERROR_INVALID, "%s: %d x %d pixels; at most 2^28 are supported",
                        who, width, height);
    return DT_OK;
}

/* ---- one picture */

static dt_result dti_image_check(dti_base *base, const dt_image_desc *d) {
    if (d->dtype != DT_F32 && d->dtype != DT_U8)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_image_load: .dtype is %d; it must be DT_F32 or DT_U8", (int)d->dtype);
    return dti_picture_asked(base, "dt_image_load", d->width, d->height, d->channels);
}

static void dti_image_values(const uint8_t *pixels, size_t count, size_t channels, dt_dtype dtype,
                             void *to) {
    float table[256];
    dti_picture_table(table);
    if (dtype == DT_F32)
        dti_picture_floats(pixels, count, channels, table, to);
    for (size_t c = 0; c < channels && dtype == DT_U8; c++)
        for (size_t i = 0; i < count; i++)
            ((uint8_t *)to)[c * count + i] = pixels[i * channels + c];
}

/* The picture `p` of the file as `d` requests it; room: scratch. */
static dt_result dti_image_decode(const dti_file_bytes *f, const dti_picture *p,
                                  const dt_image_desc *d, uint8_t *room[3], dt_array *out) {
    const int c = d->channels ? d->channels : p->channels;
    const int w = d->width ? d->width : (int)p->width, h = d->height ? d->height : (int)p->height;
    const size_t count = (size_t)w * (size_t)h, bytes = count * (size_t)c;
    uint8_t *pixels = room[0] = dti_alloc_array(f->base, (size_t)p->width * p->height, 4);
    uint8_t *rows = room[1] = dti_alloc_array(f->base, p->height, (size_t)w * (size_t)c);
    uint8_t *sized = room[2] = dti_alloc(f->base, bytes);
    DTI_HAVE(pixels && rows && sized);
    DTI_TRY(dti_array_make(f->base, d->dtype, 3, (const int64_t[]){c, h, w}, out));
    DTI_TRY(dti_picture_decode(f, p, c, pixels));
    dti_picture_resize(pixels, p, c, (dti_picture_part){0, 0, p->width, p->height}, w, h, rows,
                       sized);
    dti_image_values(sized, count, (size_t)c, d->dtype, out->data);
    return DT_OK;
}

static dt_result dti_image_take(dti_reader *r, void *desc, dt_array *out) {
    dti_picture picture = {0};
    uint8_t *room[3] = {NULL, NULL, NULL};
    char *data;
    DTI_TRY(dti_image_check(r->base, desc));
    DTI_TRY(dti_picture_look(r, &picture));
    DTI_TRY(dti_reader_seek(r, 0));
    DTI_TRY(dti_reader_take_new(r, r->size, &data));
    const dti_file_bytes file = {r->base, r->path, (const uint8_t *)data, (size_t)r->size};
    const dt_result result = dti_image_decode(&file, &picture, desc, room, out);
    DTI_FREE(r->base, room[0], room[1], room[2], data);
    return result;
}

DTI_PUBLIC_OUT(dt_image_load,
               (dt_ctx * ctx, const char *path, const dt_image_desc *desc, dt_array *out), ctx,
               DTI_CTX, (ctx, path, desc, out)) {
    dt_image_desc d = desc ? *desc : (dt_image_desc){0};
    return dti_array_load(ctx, path, dti_image_take, &d, out);
}
