/* np.savez: a ZIP archive (PKWARE's APPNOTE.TXT 6.3) of NumPy files "name.npy". The central
 * directory at the end is read; entries are stored, or deflated where there is zlib. Sizes of 64
 * bits come from an entry's extra field there. Those of the directory come from the record of
 * ZIP64. */

#ifdef DT_WITH_ZLIB
#include <zlib.h>
#endif

#define DTI_ZIP_END 22u      /* bytes of the end record */
#define DTI_ZIP_END_WIDE 56u /* of ZIP64's, and of the record that locates it */
#define DTI_ZIP_END_LOCATOR 20u
#define DTI_ZIP_CENTRAL 46u /* of an entry of the directory, without its texts */
#define DTI_ZIP_LOCAL 30u
#define DTI_ZIP_WIDE 0xFFFFFFFFu

typedef struct dti_zip_entry {
    const char *name; /* not ended by a zero */
    size_t name_size;
    uint32_t method, crc;
    uint64_t packed, size, at; /* at: of the local header */
} dti_zip_entry;

static dt_result dti_zip_wrong(const dti_file_bytes *z, const char *what) {
    return dti_fail(z->base, DT_ERROR_FORMAT, "%s: not an archive of np.savez: %s", z->path, what);
}

/* Sizes of 64 bits are in an extra field (id 1), but only those that are all ones in the entry. */
static void dti_zip_wide(const unsigned char *extra, size_t size, dti_zip_entry *e) {
    uint64_t *wide[3] = {&e->size, &e->packed, &e->at};
    while (size >= 4) {
        const uint32_t id = dti_get16(extra), bytes = dti_get16(extra + 2);
        if (bytes > size - 4)
            return;
        const unsigned char *at = extra + 4, *end = at + bytes;
        for (int i = 0; i < 3 && id == 1; i++) {
            if (*wide[i] != DTI_ZIP_WIDE || end - at < 8)
                continue;
            *wide[i] = dti_get64(at);
            at += 8;
        }
        extra += 4 + bytes;
        size -= 4 + bytes;
    }
}

/* Reads the directory's place and count from ZIP64's record before the end record at `i`. Without
 * such a record they stay as they are. */
static void dti_zip_directory_wide(const dti_file_bytes *z, size_t i, uint64_t *at,
                                   uint64_t *count) {
    if (i < DTI_ZIP_END_LOCATOR + DTI_ZIP_END_WIDE)
        return;
    const unsigned char *locator = z->data + i - DTI_ZIP_END_LOCATOR;
    const uint64_t place = dti_get64(locator + 8);
    if (memcmp(locator, "PK\6\7", 4) || place > i - DTI_ZIP_END_LOCATOR - DTI_ZIP_END_WIDE ||
        memcmp(z->data + place, "PK\6\6", 4))
        return;
    *count = dti_get64(z->data + place + 32);
    *at = dti_get64(z->data + place + 48);
}

/* The directory's end is the last of its kind; a comment may follow. */
static dt_result dti_zip_directory(const dti_file_bytes *z, size_t *at, uint64_t *count) {
    const size_t least = z->size > 65535 + DTI_ZIP_END ? z->size - 65535 - DTI_ZIP_END : 0;
    for (size_t i = z->size < DTI_ZIP_END ? 0 : z->size - DTI_ZIP_END + 1; i-- > least;) {
        const unsigned char *end = z->data + i;
        if (memcmp(end, "PK\5\6", 4) || dti_get16(end + 20) != z->size - i - DTI_ZIP_END)
            continue;
        uint64_t place = dti_get32(end + 16);
        *count = dti_get16(end + 10);
        if (place == DTI_ZIP_WIDE || *count == 0xFFFF)
            dti_zip_directory_wide(z, i, &place, count);
        *at = (size_t)DTI_MIN(place, (uint64_t)i);
        return place <= i ? DT_OK : dti_zip_wrong(z, "its directory is not at its offset");
    }
    return dti_zip_wrong(z, "there is no directory at its end; is it truncated?");
}

static dt_result dti_zip_next(const dti_file_bytes *z, size_t *at, dti_zip_entry *e) {
    const unsigned char *d = z->data + *at;
    if (z->size - *at < DTI_ZIP_CENTRAL || memcmp(d, "PK\1\2", 4))
        return dti_zip_wrong(z, "its directory is damaged");
    const size_t name = dti_get16(d + 28), extra = dti_get16(d + 30), rest = dti_get16(d + 32);
    if (z->size - *at - DTI_ZIP_CENTRAL < name + extra + rest)
        return dti_zip_wrong(z, "its directory is truncated");
    *e = (dti_zip_entry){.name = (const char *)d + DTI_ZIP_CENTRAL,
                         .name_size = name,
                         .method = dti_get16(d + 10),
                         .crc = dti_get32(d + 16),
                         .packed = dti_get32(d + 20),
                         .size = dti_get32(d + 24),
                         .at = dti_get32(d + 42)};
    dti_zip_wide(d + DTI_ZIP_CENTRAL + name, extra, e);
    *at += DTI_ZIP_CENTRAL + name + extra + rest;
    return DT_OK;
}

/* Where an entry's bytes begin: after its local header, whose texts have lengths of their own. */
static dt_result dti_zip_bytes(const dti_file_bytes *z, const dti_zip_entry *e,
                               const unsigned char **bytes) {
    if (e->at > z->size || z->size - e->at < DTI_ZIP_LOCAL || memcmp(z->data + e->at, "PK\3\4", 4))
        return dti_zip_wrong(z, "an entry is not at its offset");
    const unsigned char *local = z->data + e->at;
    const size_t before = DTI_ZIP_LOCAL + dti_get16(local + 26) + dti_get16(local + 28);
    if (z->size - e->at < before || z->size - e->at - before < e->packed)
        return dti_zip_wrong(z, "an entry is truncated");
    *bytes = local + before;
    return DT_OK;
}

/* Without ".npy", and without control characters. */
static void dti_zip_add_name(dti_text *text, const dti_zip_entry *e) {
    for (size_t k = 0; k + 4 < e->name_size; k++)
        dti_text_add(text, "%c", e->name[k] > ' ' && e->name[k] < 0x7F ? e->name[k] : '?');
}

static dt_result dti_zip_checked(const dti_file_bytes *z, const dti_zip_entry *e,
                                 const unsigned char *bytes, dt_array *out) {
    if (dti_crc32(0, bytes, (size_t)e->size) != e->crc)
        return dti_zip_wrong(z, "an entry's checksum is wrong");
    dti_text path = dti_text_open(z->base);
    dti_text_add(&path, "%s: '", z->path);
    dti_zip_add_name(&path, e);
    dti_text_add(&path, "'");
    const dti_file_bytes file = {z->base, path.data, bytes, (size_t)e->size};
    const dt_result result = path.ok ? dti_npy_parse(&file, out) : DT_ERROR_MEMORY;
    dti_text_free(&path);
    return result;
}

#ifdef DT_WITH_ZLIB
static dt_result dti_zip_inflate(const dti_file_bytes *z, const dti_zip_entry *e,
                                 const unsigned char *bytes, unsigned char *to) {
    z_stream s = {.next_in = (Bytef *)(uintptr_t)bytes, .next_out = to};
    s.avail_in = (uInt)e->packed;
    s.avail_out = (uInt)e->size;
    if (inflateInit2(&s, -MAX_WBITS) != Z_OK)
        return dti_fail(z->base, DT_ERROR_MEMORY, "%s: zlib has no memory", z->path);
    const int ended = inflate(&s, Z_FINISH);
    inflateEnd(&s);
    return ended == Z_STREAM_END && !s.avail_out ? DT_OK
                                                 : dti_zip_wrong(z, "a deflated entry is damaged");
}
#endif

static dt_result dti_zip_take_deflated(const dti_file_bytes *z, const dti_zip_entry *e,
                                       const unsigned char *bytes, dt_array *out) {
#ifdef DT_WITH_ZLIB
    if (e->size > 1032 * (e->packed + 1)) /* deflate's limit */
        return dti_zip_wrong(z, "a deflated entry has an impossible size");
    if (e->packed >= UINT_MAX || e->size >= UINT_MAX)
        return dti_fail(z->base, DT_ERROR_UNSUPPORTED,
                        "%s: deflated arrays of 4 GiB and more are not read", z->path);
    unsigned char *data = dti_alloc(z->base, (size_t)e->size + 1);
    dt_result result = data ? dti_zip_inflate(z, e, bytes, data) : DT_ERROR_MEMORY;
    if (!result)
        result = dti_zip_checked(z, e, data, out);
    dti_free(z->base, data);
    return result;
#else
    return dti_fail(z->base, DT_ERROR_UNSUPPORTED,
                    "%s: this array is deflated; save it by np.savez, or compile dtrain with "
                    "DT_WITH_ZLIB and -lz",
                    z->path);
#endif
}

static dt_result dti_zip_take(const dti_file_bytes *z, const dti_zip_entry *e, dt_array *out) {
    const unsigned char *bytes = NULL;
    DTI_TRY(dti_zip_bytes(z, e, &bytes));
    if (e->method == 8)
        return dti_zip_take_deflated(z, e, bytes, out);
    if (e->method || e->packed != e->size)
        return dti_zip_wrong(z, "an entry has a compression method that NumPy does not use");
    return dti_zip_checked(z, e, bytes, out);
}

/* "name.npy" is `name`. */
static bool dti_zip_is(const dti_zip_entry *e, const char *name) {
    const size_t size = strlen(name);
    return e->name_size == size + 4 && !memcmp(e->name, name, size) &&
           !memcmp(e->name + size, ".npy", 4);
}

static dt_result dti_zip_no_such(const dti_file_bytes *z, const char *name, const dti_text *names) {
    return dti_fail(z->base, DT_ERROR_INVALID, "%s: %s%s%s; it has: %.600s", z->path,
                    name ? "no array is named '"
                         : "it does not have one array; give the name of one",
                    name ? name : "", name ? "'" : "", names->size ? names->data : "none");
}

static dt_result dti_zip_find(const dti_file_bytes *z, const char *name, dt_array *out) {
    dti_zip_entry e, found = {0};
    dti_text names = dti_text_open(z->base);
    size_t at = 0;
    uint64_t count = 0;
    dt_result result = dti_zip_directory(z, &at, &count);
    bool is = false;
    for (uint64_t i = 0; i < count && !result; i++) {
        result = dti_zip_next(z, &at, &e);
        if (result)
            break;
        const bool wanted = name ? dti_zip_is(&e, name) : count == 1;
        found = wanted ? e : found;
        is = is || wanted;
        dti_text_add_bytes(&names, i ? ", " : "", i ? 2 : 0);
        dti_zip_add_name(&names, &e);
    }
    if (!result && !names.ok)
        result = DT_ERROR_MEMORY;
    if (!result && !is)
        result = dti_zip_no_such(z, name, &names);
    dti_text_free(&names);
    return result ? result : dti_zip_take(z, &found, out);
}

/* name: const char *, or NULL */
static dt_result dti_zip_load(dti_reader *r, void *name, dt_array *out) {
    char *data;
    DTI_TRY(dti_reader_take_new(r, r->size, &data));
    const dti_file_bytes z = {r->base, r->path, (const uint8_t *)data, (size_t)r->size};
    const dt_result result = dti_zip_find(&z, name, out);
    dti_free(r->base, data);
    return result;
}

DTI_PUBLIC_OUT(dt_npz_load, (dt_ctx * ctx, const char *path, const char *name, dt_array *out), ctx,
               DTI_CTX, (ctx, path, name, out)) {
    return dti_array_load(ctx, path, dti_zip_load, (void *)(uintptr_t)name, out);
}
