/* NumPy's array format (NEP 1 and numpy.lib.format): magic, version, the header's length, a Python
 * dictionary as text, and the elements. A parser of its own reads the text: only what NumPy writes,
 * never code. The number of bytes is compared with the shape before memory is allocated. */

typedef struct dti_npy {
    dti_base *base;
    const char *path;
    const char *at, *end; /* the dictionary's text */
    char kind;            /* 'f', 'i', 'u', 'b' */
    int bytes;            /* of an element */
    bool big;             /* its most significant byte comes first */
    bool fortran;
    bool has[3]; /* descr, fortran_order, shape */
    int rank;
    int64_t dim[8];
    uint64_t count; /* of elements */
} dti_npy;

static dt_result dti_npy_wrong(const dti_npy *n, const char *what) {
    return dti_fail(n->base, DT_ERROR_FORMAT, "%s: not a NumPy file that can be read: %s", n->path,
                    what);
}

/* ---- the dictionary */

static void dti_npy_space(dti_npy *n) {
    while (n->at < n->end && (*n->at == ' ' || (*n->at >= '\t' && *n->at <= '\r')))
        n->at++;
}

static bool dti_npy_is(dti_npy *n, const char *text) {
    const size_t size = strlen(text);
    dti_npy_space(n);
    if ((size_t)(n->end - n->at) < size || memcmp(n->at, text, size))
        return false;
    n->at += size;
    return true;
}

/* A text in quotes, shorter than `size`. */
static bool dti_npy_quoted(dti_npy *n, char *to, size_t size) {
    size_t length = 0;
    dti_npy_space(n);
    if (n->at >= n->end || (*n->at != '\'' && *n->at != '"'))
        return false;
    const char quote = *n->at++;
    for (; n->at < n->end && *n->at != quote && length + 1 < size; n->at++)
        to[length++] = (char)(*n->at < ' ' || *n->at > '~' ? '?' : *n->at); /* for messages */
    to[length] = 0;
    return n->at < n->end && *n->at++ == quote;
}

/* '<f4': order of bytes, kind, bytes. */
static dt_result dti_npy_descr(dti_npy *n) {
    char text[16];
    if (!dti_npy_quoted(n, text, sizeof text) || strlen(text) != 3)
        return dti_npy_wrong(
            n, "its elements are not numbers of one type (structures and objects are not read)");
    n->big = text[0] == '>';
    n->kind = text[1];
    n->bytes = text[2] - '0';
    const bool order = text[0] == '<' || text[0] == '>' || text[0] == '|' || text[0] == '=';
    const bool whole = n->bytes == 1 || n->bytes == 2 || n->bytes == 4 || n->bytes == 8;
    const bool fits = n->kind == 'f'   ? whole && n->bytes > 1
                      : n->kind == 'b' ? n->bytes == 1
                                       : whole && (n->kind == 'i' || n->kind == 'u');
    n->has[0] = order && fits;
    return n->has[0] ? DT_OK
                     : dti_fail(n->base, DT_ERROR_FORMAT,
                                "%s: elements of NumPy's type '%s' are not read; take float16, 32, "
                                "64, bool or integers",
                                n->path, text);
}

/* Python 2 wrote long ones with an L. */
static bool dti_npy_whole(dti_npy *n, int64_t *value) {
    bool digits = false;
    *value = 0;
    dti_npy_space(n);
    for (; n->at < n->end && *n->at >= '0' && *n->at <= '9'; n->at++, digits = true) {
        if (*value > INT64_MAX / 16)
            return false;
        *value = *value * 10 + (*n->at - '0');
    }
    n->at += digits && n->at < n->end && *n->at == 'L';
    return digits;
}

static dt_result dti_npy_shape(dti_npy *n) {
    if (n->has[2] || !dti_npy_is(n, "("))
        return dti_npy_wrong(n, "its shape is not a tuple, or is given twice");
    while (!dti_npy_is(n, ")")) {
        if (n->rank == 8)
            return dti_npy_wrong(n, "more than 8 dimensions");
        if (!dti_npy_whole(n, &n->dim[n->rank]))
            return dti_npy_wrong(n, "its shape has elements that are not numbers");
        n->rank++;
        if (!dti_npy_is(n, ",") && !dti_npy_is(n, ")"))
            return dti_npy_wrong(n, "its shape does not end");
        else if (n->at[-1] == ')')
            break;
    }
    n->has[2] = true;
    return DT_OK;
}

static dt_result dti_npy_entry(dti_npy *n) {
    char key[32];
    if (!dti_npy_quoted(n, key, sizeof key) || !dti_npy_is(n, ":"))
        return dti_npy_wrong(n, "its header is not a dictionary");
    if (!strcmp(key, "descr"))
        return dti_npy_descr(n);
    if (!strcmp(key, "shape"))
        return dti_npy_shape(n);
    if (strcmp(key, "fortran_order"))
        return dti_npy_wrong(n, "its header has an unknown key");
    n->fortran = dti_npy_is(n, "True");
    n->has[1] = n->fortran || dti_npy_is(n, "False");
    return n->has[1] ? DT_OK : dti_npy_wrong(n, "fortran_order is neither True nor False");
}

static dt_result dti_npy_dictionary(dti_npy *n) {
    dt_result result =
        dti_npy_is(n, "{") ? DT_OK : dti_npy_wrong(n, "its header is not a dictionary");
    while (!result && !dti_npy_is(n, "}")) {
        result = dti_npy_entry(n);
        if (!result && !dti_npy_is(n, ",") && !(n->at < n->end && *n->at == '}'))
            result = dti_npy_wrong(n, "its header does not end");
    }
    if (!result && !(n->has[0] && n->has[1] && n->has[2]))
        result = dti_npy_wrong(n, "its header lacks descr, fortran_order or shape");
    return result;
}

/* ---- elements */

static uint64_t dti_npy_bits(const dti_npy *n, const unsigned char *at) {
    uint64_t bits = 0;
    for (int i = 0; i < n->bytes; i++)
        bits = bits << 8 | at[n->big ? i : n->bytes - 1 - i];
    return bits;
}

/* False: it is finite, and not as a float. */
static bool dti_npy_float(const dti_npy *n, const unsigned char *at, float *to) {
    const uint64_t bits = dti_npy_bits(n, at);
    const uint32_t half = (uint32_t)bits;
    double wide = 0.0;
    memcpy(to, &half, sizeof *to);
    if (n->bytes == 2)
        *to = dti_f32_from_f16((uint16_t)bits);
    if (n->bytes != 8)
        return true;
    memcpy(&wide, &bits, sizeof wide);
    *to = (float)wide;
    return dti_fits_f32(wide) || !dti_finite_f64(wide);
}

/* False: it is not an int32. */
static bool dti_npy_int(const dti_npy *n, const unsigned char *at, int32_t *to) {
    uint64_t bits = dti_npy_bits(n, at);
    const uint64_t sign = (uint64_t)1 << (8 * n->bytes - 1);
    if (n->kind == 'i' && (bits & sign)) {
        bits = ~bits & (sign - 1); /* -1 - value */
        *to = (int32_t)(-1 - (int64_t)DTI_MIN(bits, (uint64_t)INT32_MAX));
        return bits <= INT32_MAX;
    }
    *to = (int32_t)DTI_MIN(bits, (uint64_t)INT32_MAX);
    return bits <= INT32_MAX;
}

/* Where element i of the file is in the order of C. */
static uint64_t dti_npy_place(const dti_npy *n, uint64_t i) {
    uint64_t place = 0, stride = 1, strides[8] = {0};
    if (!n->fortran)
        return i;
    for (int d = n->rank; d-- > 0; stride *= (uint64_t)n->dim[d])
        strides[d] = stride;
    for (int d = 0; d < n->rank; i /= (uint64_t)n->dim[d++])
        place += i % (uint64_t)n->dim[d] * strides[d];
    return place;
}

/* `at`: in the order of C. */
static dt_result dti_npy_too_large(const dti_npy *n, uint64_t at, uint64_t bits) {
    const uint64_t sign = (uint64_t)1 << (8 * n->bytes - 1);
    const bool minus = n->kind == 'i' && (bits & sign);
    double wide;
    memcpy(&wide, &bits, sizeof wide);
    if (n->kind == 'f')
        return dti_fail(n->base, DT_ERROR_FORMAT,
                        "%s: value %llu, %g, does not fit into float32, whose largest is 3.4e38; "
                        "scale the values, and save them as float32",
                        n->path, (unsigned long long)at, wide);
    return dti_fail(
        n->base, DT_ERROR_FORMAT,
        "%s: value %llu does not fit into 32 bits: %s%llu; save smaller integers, or floats",
        n->path, (unsigned long long)at, minus ? "-" : "",
        (unsigned long long)(minus ? (~bits & (sign - 1)) + 1 : bits));
}

static dt_result dti_npy_convert(const dti_npy *n, const unsigned char *from, dt_array *out) {
    for (uint64_t i = 0; i < n->count; i++, from += n->bytes) {
        const uint64_t at = dti_npy_place(n, i);
        bool fits = true;
        if (out->dtype == DT_U8)
            ((uint8_t *)out->data)[at] = *from;
        else if (out->dtype == DT_F32)
            fits = dti_npy_float(n, from, (float *)out->data + at);
        else
            fits = dti_npy_int(n, from, (int32_t *)out->data + at);
        if (!fits)
            return dti_npy_too_large(n, at, dti_npy_bits(n, from));
    }
    return DT_OK;
}

static dt_result dti_npy_count(dti_npy *n, size_t have) {
    n->count = 1;
    for (int d = 0; d < n->rank; d++)
        n->count = n->dim[d] ? n->count : 0;
    for (int d = 0; d < n->rank && n->count; d++) {
        if (n->count > have / (uint64_t)n->dim[d])
            return dti_npy_wrong(n, "truncated: its shape has more elements than bytes follow");
        n->count *= (uint64_t)n->dim[d];
    }
    if (n->count > have / (size_t)n->bytes || n->count * (size_t)n->bytes != have)
        return dti_fail(n->base, DT_ERROR_FORMAT,
                        "%s: %llu elements of %d bytes, but %llu bytes follow the header", n->path,
                        (unsigned long long)n->count, n->bytes, (unsigned long long)have);
    return DT_OK;
}

/* Magic and version; *header is where the dictionary begins, and `size` becomes its length. */
static dt_result dti_npy_head(const dti_npy *n, const unsigned char *data, size_t *size,
                              size_t *header) {
    if (*size < 10 || memcmp(data, "\x93NUMPY", 6))
        return dti_npy_wrong(n, "it does not begin with NumPy's magic bytes");
    if (data[6] < 1 || data[6] > 3)
        return dti_npy_wrong(n, "its version is unknown");
    *header = data[6] == 1 ? 10 : 12;
    const uint64_t length = *header == 10 || *size < 12 ? dti_get16(data + 8) : dti_get32(data + 8);
    if (length > DTI_NPY_HEADER_MAX || *header + length > *size)
        return dti_npy_wrong(n, "its header is truncated, or too long");
    *size = (size_t)length;
    return DT_OK;
}

static dt_result dti_npy_parse(const dti_file_bytes *f, dt_array *out) {
    dti_npy n = {.base = f->base, .path = f->path};
    size_t length = f->size, header = 0;
    DTI_TRY(dti_npy_head(&n, f->data, &length, &header));
    n.at = (const char *)f->data + header;
    n.end = n.at + length;
    DTI_TRY(dti_npy_dictionary(&n));
    DTI_TRY(dti_npy_count(&n, f->size - header - length));
    const bool u8 = n.kind == 'b' || (n.kind == 'u' && n.bytes == 1);
    const dt_dtype dtype = n.kind == 'f' ? DT_F32 : u8 ? DT_U8 : DT_I32;
    DTI_TRY(dti_array_make(f->base, dtype, n.rank, n.dim, out));
    return dti_npy_convert(&n, f->data + header + length, out);
}

static dt_result dti_npy_take(dti_reader *r, void *user, dt_array *out) {
    char *data;
    DTI_TRY(dti_reader_take_new(r, r->size, &data));
    const dti_file_bytes file = {r->base, r->path, (const uint8_t *)data, (size_t)r->size};
    const dt_result result = dti_npy_parse(&file, out);
    dti_free(r->base, data);
    return result;
}

DTI_PUBLIC_OUT(dt_npy_load, (dt_ctx * ctx, const char *path, dt_array *out), ctx, DTI_CTX,
               (ctx, path, out)) {
    return dti_array_load(ctx, path, dti_npy_take, NULL, out);
}
