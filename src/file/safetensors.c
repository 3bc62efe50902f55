/* Safetensors, the weight format of the Python world. Files are written so that the reference
 * implementation and PyTorch accept them (its README, "Format", and the checks of its validate()).
 * A file may come from anywhere. The header is read and checked first, and every length is compared
 * with the file's size before it is used. A file is an error if its tensors overlap, leave holes,
 * do not end with it, or share a name. So a bad file costs only a header. It owns the header, in
 * which names are decoded in place. Tensors' bytes are in memory or stay in the file, which is then
 * kept open. */

typedef struct dti_weight {
    dt_safetensors_tensor info; /* whole once all is checked; of more dimensions the first */
    int element_bytes;          /* 0: not of DTI_DTYPE_LIST or DTI_WEIGHT_DTYPE_LIST */
    uint64_t elements;
    bool wraps;           /* there are more of them than 2^64 - 1 */
    uint64_t begin, end;  /* of its bytes, from the end of the header */
    dt_safetensors *file; /* that has them */
} dti_weight;

struct dt_safetensors {
    dti_base *base;
    char *path; /* for messages */
    dti_reader reader;
    bool open;    /* the reader is */
    bool checked; /* against its checksums, here */
    char *header;
    uint32_t header_crc; /* CRC32C of the file's bytes up to the data */
    char *data;          /* after the header; NULL: in the file */
    uint64_t data_bytes;
    dti_weight *items; /* in the order of their bytes */
    size_t count, capacity;
    uint32_t *by_name; /* indices into items, sorted */
    /* Of an index: the header is the index's text, header_crc its map's, and others have the
     * bytes. */
    dt_safetensors **parts;
    size_t part_count;
    dti_weights_file *files; /* of a checkpoint, by the index */
    size_t file_count;
    uint32_t map_sum; /* the expected checksum of the map; for a file, of its checksums */
};

/* ---- Text: UTF-8, escapes, names in messages */

static char *dti_utf8_put(char *to, uint32_t code) {
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};
    *to++ = (char)(lead[more] | code >> 6 * more);
    while (more--)
        *to++ = (char)(0x80 | (code >> 6 * more & 0x3F));
    return to;
}

/* Four hexadecimal digits, which the JSON reader has checked. */
static uint32_t dti_hex4(const char *at) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++)
        value = value << 4 | (uint32_t)dti_hex_digit(at[i]);
    return value;
}

/* The code of the escape \\uXXXX at `*at`, or of a surrogate pair of them. 0: half a pair, or NUL,
 * which no name may hold. */
static uint32_t dti_escape_unicode(const char **at, const char *end) {
    uint32_t code = dti_hex4(*at + 2), low = 0;
    *at += 6;
    if (code < 0xD800 || code > 0xDFFF)
        return code;
    if (end - *at >= 6 && (*at)[0] == '\\' && (*at)[1] == 'u')
        low = dti_hex4(*at + 2);
    if (code > 0xDBFF || low < 0xDC00 || low > 0xDFFF)
        return 0;
    *at += 6;
    return 0x10000 + ((code - 0xD800) << 10 | (low - 0xDC00));
}

/* Decodes a JSON string in place. It ends with NUL, on the closing quote at the latest: an escape
 * is never shorter than its bytes. False: half a surrogate pair or a NUL. */
static bool dti_unescape(char *text, size_t size) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char *put = text;
    const char *at = text, *end = text + size;
    while (at < end) {
        if (*at != '\\') {
            *put++ = *at++;
        } else if (at[1] == 'u') {
            uint32_t code = dti_escape_unicode(&at, end);
            if (!code)
                return false;
            put = dti_utf8_put(put, code);
        } else {
            *put++ = to[strchr(from, at[1]) - from];
            at += 2;
        }
    }
    *put = 0;
    return true;
}

/* ---- The header */

static dt_result dti_weights_bad(dt_safetensors *w, const char *name, const char *what) {
    if (!name)
        return dti_fail(w->base, DT_ERROR_FORMAT, "%s: not a safetensors file: %s", w->path, what);
    return dti_fail(w->base, DT_ERROR_FORMAT, "%s: tensor \"%s\": %s", w->path, dti_show(name).text,
                    what);
}

static void dti_weight_set_dtype(dti_weight *item, dti_slice text) {
#define DTI_X(dtype_name, bytes)                                                                   \
    if (dti_slice_is(text, dtype_name))                                                            \
        item->element_bytes = bytes;
#define DTI_OWN_DTYPE(id, bytes, text) DTI_X(#id, bytes)
    DTI_DTYPE_LIST(DTI_OWN_DTYPE)
    DTI_WEIGHT_DTYPE_LIST(DTI_X)
#undef DTI_OWN_DTYPE
#undef DTI_X
    memcpy(item->info.dtype, text.data, DTI_MIN(text.size, sizeof item->info.dtype - 1));
}

/* NULL, or the error. */
static const char *dti_weight_read_shape(dti_json *j, dti_weight *item) {
    if (!dti_json_array(j))
        return "its shape is not a list";
    while (dti_json_next_item(j)) {
        uint64_t dim;
        if (!dti_json_u64(j, &dim) || dim > INT64_MAX)
            return "a dimension is not a whole number below 2^63";
        if (item->info.rank < DTI_WEIGHT_MAX_DIMS)
            item->info.dim[item->info.rank] = (int64_t)dim;
        item->info.rank++;
        item->wraps = item->wraps || (dim && item->elements > UINT64_MAX / dim);
        item->elements *= dim;
    }
    return j->bad ? "its shape is not a list of numbers" : NULL;
}

static const char *dti_weight_read_offsets(dti_json *j, dti_weight *item) {
    uint64_t value[2];
    int count = 0;
    if (!dti_json_array(j))
        return "its data_offsets are not a list";
    while (dti_json_next_item(j))
        if (count == 2 || !dti_json_u64(j, &value[count++]))
            return "its data_offsets are not two whole numbers";
    if (j->bad || count != 2)
        return "its data_offsets are not two whole numbers";
    item->begin = value[0];
    item->end = value[1];
    return NULL;
}

/* One field of a tensor's description; *seen has a bit for each known one. */
static const char *dti_weight_read_field(dti_json *j, dti_slice key, dti_weight *item, int *seen) {
    int bit = dti_slice_is(key, "dtype")          ? 1
              : dti_slice_is(key, "shape")        ? 2
              : dti_slice_is(key, "data_offsets") ? 4
                                                  : 0;
    if (*seen & bit)
        return "a field is given twice";
    *seen |= bit;
    if (bit == 2)
        return dti_weight_read_shape(j, item);
    if (bit == 4)
        return dti_weight_read_offsets(j, item);
    if (!bit)
        return dti_json_skip(j) ? NULL : "its description is not JSON";
    dti_slice dtype;
    if (!dti_json_string(j, &dtype) || !dtype.size)
        return "its dtype is not a string";
    dti_weight_set_dtype(item, dtype);
    return NULL;
}

static const char *dti_weight_read(dti_json *j, dti_weight *item) {
    int seen = 0;
    if (!dti_json_object(j))
        return "its description is not an object";
    for (dti_slice key; dti_json_next_key(j, &key);) {
        const char *wrong = dti_weight_read_field(j, key, item, &seen);
        if (wrong)
            return wrong;
    }
    if (j->bad)
        return "its description is not JSON";
    return seen == 7 ? NULL : "it lacks dtype, shape or data_offsets";
}

/* "__metadata__": text to text, or null; dtrain has no use for it. */
static bool dti_metadata_skip(dti_json *j) {
    dti_slice key, value;
    if (dti_json_peek(j) == 'n')
        return dti_json_skip(j);
    if (!dti_json_object(j))
        return false;
    while (dti_json_next_key(j, &key))
        if (!dti_json_string(j, &value))
            return false;
    return !j->bad;
}

static dt_result dti_weights_add(dt_safetensors *w, dti_json *j, const char *name) {
    if (w->count == INT32_MAX)
        return dti_weights_bad(w, NULL, "more than 2^31 tensors");
    DTI_HAVE(DTI_RESERVE(w->base, w->items, w->capacity, w->count + 1));
    dti_weight *item = &w->items[w->count++];
    *item = (dti_weight){.info.name = name, .elements = 1, .file = w};
    const char *wrong = dti_weight_read(j, item);
    return wrong ? dti_weights_bad(w, name, wrong) : DT_OK;
}

static dt_result dti_weights_read_header(dt_safetensors *w, char *header, size_t size) {
    dti_json j = dti_json_open(header, size);
    if (!dti_json_object(&j))
        return dti_weights_bad(w, NULL, "its header is not a JSON object");
    for (dti_slice key; dti_json_next_key(&j, &key);) {
        char *name = header + (key.data - header);
        if (!dti_unescape(name, key.size))
            return dti_weights_bad(w, NULL, "a name holds a NUL or half a surrogate pair");
        if (strcmp(name, "__metadata__") != 0)
            DTI_TRY(dti_weights_add(w, &j, name));
        else if (!dti_metadata_skip(&j))
            return dti_weights_bad(w, NULL, "its __metadata__ is not an object of strings");
    }
    return dti_json_done(&j) ? DT_OK : dti_weights_bad(w, NULL, "its header is not valid JSON");
}

/* ---- Order: heap sort, because the C library's qsort may allocate without the host's allocator */

typedef bool dti_weights_less_fn(const dt_safetensors *w, uint32_t a, uint32_t b);

static void dti_weights_sift(const dt_safetensors *w, dti_weights_less_fn *less, uint32_t *heap,
                             size_t root, size_t count) {
    for (size_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && less(w, heap[child], heap[child + 1]))
            child++;
        if (!less(w, heap[root], heap[child]))
            return;
        DTI_SWAP(uint32_t, heap[root], heap[child]);
    }
}

static void dti_weights_sort(const dt_safetensors *w, dti_weights_less_fn *less, uint32_t *index,
                             size_t count) {
    for (size_t i = 0; i < count; i++)
        index[i] = (uint32_t)i;
    for (size_t i = count / 2; i-- > 0;)
        dti_weights_sift(w, less, index, i, count);
    for (size_t i = count; i-- > 1;) {
        DTI_SWAP(uint32_t, index[0], index[i]);
        dti_weights_sift(w, less, index, 0, i);
    }
}

static bool dti_weights_less_name(const dt_safetensors *w, uint32_t a, uint32_t b) {
    return strcmp(w->items[a].info.name, w->items[b].info.name) < 0;
}

static bool dti_weights_less_offset(const dt_safetensors *w, uint32_t a, uint32_t b) {
    const dti_weight *x = &w->items[a], *y = &w->items[b];
    if (x->begin != y->begin)
        return x->begin < y->begin;
    return x->end != y->end ? x->end < y->end : a < b;
}

/* Puts items into the order of their bytes. */
static dt_result dti_weights_order(dt_safetensors *w) {
    dti_weight *sorted = dti_alloc_array(w->base, w->count + 1, sizeof *sorted);
    w->by_name = dti_alloc_array(w->base, w->count + 1, sizeof *w->by_name);
    if (!sorted || !w->by_name) {
        dti_free(w->base, sorted);
        return DT_ERROR_MEMORY;
    }
    dti_weights_sort(w, dti_weights_less_offset, w->by_name, w->count);
    for (size_t i = 0; i < w->count; i++)
        sorted[i] = w->items[w->by_name[i]];
    dti_free(w->base, w->items);
    w->items = sorted;
    return DT_OK;
}

/* Sorts by name; none may come twice. */
static dt_result dti_weights_order_names(dt_safetensors *w) {
    dti_weights_sort(w, dti_weights_less_name, w->by_name, w->count);
    for (size_t i = 1; i < w->count; i++) {
        const char *name = w->items[w->by_name[i]].info.name;
        if (!strcmp(name, w->items[w->by_name[i - 1]].info.name))
            return dti_weights_bad(w, name, "the name is used twice");
    }
    return DT_OK;
}

/* ---- Checks of the whole */

/* `at` is where the tensor before it ends. */
static dt_result dti_weight_check(dt_safetensors *w, const dti_weight *item, uint64_t at) {
    const uint64_t each = (uint64_t)item->element_bytes;
    if (item->begin > item->end || item->end > w->data_bytes)
        return dti_fail(w->base, DT_ERROR_FORMAT,
                        "%s: tensor \"%s\": its data_offsets [%llu, %llu] are not inside the %llu "
                        "bytes of data: is the file truncated?",
                        w->path, dti_show(item->info.name).text, (unsigned long long)item->begin,
                        (unsigned long long)item->end, (unsigned long long)w->data_bytes);
    if (item->begin != at)
        return dti_fail(w->base, DT_ERROR_FORMAT,
                        "%s: tensor \"%s\": %s: it begins at %llu, the one before it ends at %llu",
                        w->path, dti_show(item->info.name).text,
                        item->begin < at ? "it overlaps another" : "a hole lies before it",
                        (unsigned long long)item->begin, (unsigned long long)at);
    if (item->wraps || (each && item->elements > UINT64_MAX / each))
        return dti_weights_bad(w, item->info.name, "the product of its dimensions exceeds 64 bits");
    if (each && item->elements * each != item->end - item->begin)
        return dti_fail(w->base, DT_ERROR_FORMAT,
                        "%s: tensor \"%s\": its shape and dtype %s need %llu bytes, but its "
                        "data_offsets hold %llu",
                        w->path, dti_show(item->info.name).text, item->info.dtype,
                        (unsigned long long)(item->elements * each),
                        (unsigned long long)(item->end - item->begin));
    return DT_OK;
}

static dt_result dti_weights_check(dt_safetensors *w) {
    uint64_t at = 0;
    for (size_t i = 0; i < w->count; i++) {
        DTI_TRY(dti_weight_check(w, &w->items[i], at));
        at = w->items[i].end;
    }
    if (at != w->data_bytes)
        return dti_fail(w->base, DT_ERROR_FORMAT,
                        "%s: %llu bytes of data follow the header, but its tensors have %llu",
                        w->path, (unsigned long long)w->data_bytes, (unsigned long long)at);
    return dti_weights_order_names(w);
}

/* Reads the header and sets data_bytes. It checks the first byte before the rest, because another
 * kind of file may claim a huge header. */
static dt_result dti_weights_take_header(dt_safetensors *w, dti_reader *r, size_t *header_bytes) {
    unsigned char first[9];
    if (r->size < 8)
        return dti_weights_bad(w, NULL, "it is shorter than 8 bytes");
    DTI_TRY(dti_reader_take(r, first, 8));
    const uint64_t size = dti_get64(first);
    if (size > DTI_SAFETENSORS_HEADER_MAX || size > r->size - 8)
        return dti_fail(w->base, DT_ERROR_FORMAT,
                        "%s: not a safetensors file, or truncated: its header would have %llu "
                        "bytes; the file has %llu, the format allows %u",
                        w->path, (unsigned long long)size, (unsigned long long)r->size,
                        DTI_SAFETENSORS_HEADER_MAX);
    if (size)
        DTI_TRY(dti_reader_take(r, first + 8, 1));
    if (size < 2 || !first[8] || !strchr("{ \t\n\r", first[8]))
        return dti_weights_bad(w, NULL, "its header does not begin with '{'");
    w->header = dti_alloc(w->base, (size_t)size + 1);
    DTI_HAVE(w->header);
    w->header[0] = (char)first[8];
    DTI_TRY(dti_reader_take(r, w->header + 1, (size_t)size - 1));
    w->header_crc = dti_crc32c(dti_crc32c(0, first, 8), w->header, (size_t)size);
    w->data_bytes = r->size - r->at;
    *header_bytes = (size_t)size;
    return DT_OK;
}

/* Everything but the tensors' bytes. */
static dt_result dti_weights_take(dt_safetensors *w) {
    size_t header_bytes = 0;
    DTI_TRY(dti_reader_open(w->base, w->path, &w->reader));
    w->open = true;
    DTI_TRY(dti_weights_take_header(w, &w->reader, &header_bytes));
    if (!dti_utf8_valid(w->header, header_bytes))
        return dti_weights_bad(w, NULL, "its header is not UTF-8");
    DTI_TRY(dti_weights_read_header(w, w->header, header_bytes));
    DTI_TRY(dti_weights_order(w));
    DTI_TRY(dti_weights_check(w));
    for (size_t i = 0; i < w->count; i++)
        w->items[i].info.bytes = w->items[i].end - w->items[i].begin;
    return DT_OK;
}

static void dti_weights_close_file(dt_safetensors *w) {
    if (w->open)
        dti_reader_close(&w->reader);
    w->open = false;
}

static dt_result dti_weights_take_data(dt_safetensors *w) {
    DTI_TRY(dti_reader_take_new(&w->reader, w->data_bytes, &w->data));
    for (size_t i = 0; i < w->count; i++)
        w->items[i].info.data = w->data + w->items[i].begin;
    dti_weights_close_file(w);
    return DT_OK;
}

/* Sets w->path: of a folder that of its one file, or else of its index. */
static dt_result dti_weights_set_path(dt_safetensors *w, const char *path) {
    const size_t size = strlen(path) + sizeof "/" DTI_INDEX_NAME;
    dti_folder_names list;
    w->path = dti_alloc(w->base, size);
    DTI_HAVE(w->path);
    const bool folder = dti_folder_names_open(&list, path);
    snprintf(w->path, size, folder ? "%s/" DTI_INDEX_ONE : "%s", path);
    if (!folder)
        return DT_OK;
    dti_folder_names_close(&list);
    if (!dti_file_is_none(w->path))
        return DT_OK;
    snprintf(w->path, size, "%s/" DTI_INDEX_NAME, path);
    return !dti_file_is_none(w->path)
               ? DT_OK
               : dti_fail(w->base, DT_ERROR_IO,
                          "%s: it is a folder, not a regular file, and has no %s and no %s", path,
                          DTI_INDEX_ONE, DTI_INDEX_NAME);
}

static dt_result dti_weights_take_as(dt_safetensors *w, bool index, bool in_memory) {
    if (index)
        return dti_index_take(w, in_memory);
    DTI_TRY(dti_weights_take(w));
    return in_memory ? dti_weights_take_data(w) : DT_OK;
}

/* part: it belongs to an index, so it is not one itself. */
static dt_result dti_weights_start(dti_base *base, const char *path, bool part, bool in_memory,
                                   dt_safetensors **out) {
    static const char json[] = ".json";
    *out = NULL;
    dt_safetensors *w = dti_alloc(base, sizeof *w);
    DTI_HAVE(w);
    *w = (dt_safetensors){.base = base};
    dt_result result = dti_weights_set_path(w, path);
    const size_t size = result ? 0 : strlen(w->path);
    const bool index = size >= sizeof json && !strcmp(w->path + size + 1 - sizeof json, json);
    if (!result)
        result = dti_weights_take_as(w, index && !part, in_memory);
    if (result)
        dt_safetensors_close(w);
    else
        *out = w;
    return result;
}

static dt_result dti_weights_load(dti_base *base, const char *path, dt_safetensors **out) {
    return dti_weights_start(base, path, false, true, out);
}

static dt_result dti_weights_open(dti_base *base, const char *path, dt_safetensors **out) {
    return dti_weights_start(base, path, false, false, out);
}

static dt_result dti_weights_read(const dt_safetensors *w, int index, uint64_t offset,
                                  uint64_t bytes, void *to) {
    const dti_weight *item = &w->items[index];
    dt_safetensors *file = item->file;
    const uint64_t data_at = file->reader.size - file->data_bytes;
    DTI_TRY(dti_reader_seek(&file->reader, data_at + item->begin + offset));
    return dti_reader_take(&file->reader, to, (size_t)bytes);
}

/* ---- The public reader */

DTI_PUBLIC_OUT(dt_safetensors_open, (dt_ctx * ctx, const char *path, dt_safetensors **out), ctx,
               DTI_CTX, (ctx, path, out)) {
    DTI_NEED(dti_ctx_base(ctx), path);
    return dti_weights_load(dti_ctx_base(ctx), path, out);
}

DTI_PUBLIC_VOID(dt_safetensors_close, (dt_safetensors * file), file,
                DTI_OF(dt_safetensors) | DTI_UNUSED, (file)) {
    dti_base *base = file->base;
    dti_weights_close_file(file);
    for (size_t i = 0; i < file->part_count; i++)
        dt_safetensors_close(file->parts[i]);
    DTI_FREE(base, file->parts, file->files, file->data, file->header, file->items, file->by_name,
             file->path, file);
}

DT_API int dt_safetensors_count(const dt_safetensors *file) {
    return file ? (int)file->count : 0;
}

static const char *dti_weights_name(const void *weights, uint32_t i) {
    return ((const dt_safetensors *)weights)->items[i].info.name;
}

DTI_PUBLIC(dt_safetensors_get_tensor,
           (const dt_safetensors *file, int index, dt_safetensors_tensor *info), file,
           DTI_OF(dt_safetensors), (file, index, info)) {
    DTI_NEED(file->base, info);
    if (index < 0 || (size_t)index >= file->count)
        return dti_fail(file->base, DT_ERROR_INVALID,
                        "dt_safetensors_get_tensor: index is %d; the file has %d tensors%s", index,
                        (int)file->count,
                        dti_sought_hint(file->base, "dt_safetensors_find", index, file,
                                        (uint32_t)file->count, dti_weights_name)
                            .text);
    const dti_weight *item = &file->items[index];
    if (item->info.rank > DTI_WEIGHT_MAX_DIMS)
        return dti_fail(file->base, DT_ERROR_INVALID,
                        "tensor \"%s\" has %d dimensions; at most %d are supported",
                        dti_show(item->info.name).text, item->info.rank, DTI_WEIGHT_MAX_DIMS);
    *info = item->info;
    return DT_OK;
}

static int dti_weights_find(const dt_safetensors *weights, const char *name) {
    size_t low = 0, high = weights->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, weights->items[weights->by_name[middle]].info.name);
        if (order == 0)
            return (int)weights->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

DTI_PUBLIC_GET(int, dt_safetensors_find, (const dt_safetensors *file, const char *name), file,
               DTI_OF(dt_safetensors), (file, name)) {
    const int found = file && name ? dti_weights_find(file, name) : -1;
    return file && found < 0 ? dti_sought_none(file->base, "dt_safetensors_find", name) : found;
}

static bool dti_weight_floats(const dt_safetensors_tensor *info, dt_dtype *dtype) {
    static const dt_dtype floats[] = {DT_F32, DT_F64, DT_F16, DT_BF16};
    for (size_t i = 0; i < DTI_COUNT(floats); i++) {
        *dtype = floats[i];
        if (!strcmp(info->dtype, dti_dtype_file_name(floats[i])))
            return true;
    }
    return false;
}

static dt_result dti_fail_infinite(dti_base *base, dt_result result, const char *path,
                                   const char *tensor, uint64_t at, const char *desc) {
    return dti_fail(base, result,
                    "%s: value %llu of \"%s\" is NaN or infinite: load a file from before training "
                    "failed, or, if intended, set .allow_nonfinite of %s",
                    path, (unsigned long long)at, dti_show(tensor).text, desc);
}

static bool dti_warn_infinite(dti_base *base, const char *tensor, const void *data, dt_dtype dtype,
                              uint64_t first, uint64_t count) {
    const uint64_t at = dti_first_infinite(data, dtype, count);
    if (at == count)
        return false;
    dti_log(base, DT_LOG_WARNING,
            "saved value %llu of \"%s\" is NaN or infinite: did training fail? The file loads only "
            "with .allow_nonfinite",
            (unsigned long long)(first + at), dti_show(tensor).text);
    return true;
}
