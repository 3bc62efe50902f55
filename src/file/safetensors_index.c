/* Tensors in several files with an index, as transformers and huggingface_hub write large models.
 * In model.safetensors.index.json "weight_map" names each tensor's file, in the index's own folder.
 * It owns which files belong together. safetensors.c checks each file; this file checks the index
 * against them. An index may come from anywhere: a name that leads out of the folder is an
 * error. */

/* Whether a file of the index's folder may have this name. It has
 * up to 255 bytes. */
static bool dti_index_is_plain(const char *name) {
    return *name && strlen(name) < 256 && !strpbrk(name, "/\\:") && strcmp(name, ".") != 0 &&
           !strstr(name, "..");
}

/* ---- Reading */

typedef struct dti_weights_map {
    dt_safetensors *w;       /* of all files: the result */
    bool mapped;             /* the weight_map has been read */
    size_t folder;           /* bytes of its path up to the name */
    size_t room, files_room; /* of w->parts and w->files */
    uint32_t last;           /* the file of the tensor before */
    bool in_memory, poor;    /* poor: memory ran out */
} dti_weights_map;

static dt_result dti_index_bad(const dti_weights_map *x, const char *what) {
    return dti_fail(x->w->base, DT_ERROR_FORMAT, "%s: not an index of safetensors: %s", x->w->path,
                    what);
}

/* A tensor, or the metadata, and a file. */
static dt_result dti_index_bad_file(const dti_weights_map *x, const char *tensor, const char *file,
                                    const char *what) {
    return dti_fail(x->w->base, DT_ERROR_FORMAT, "%s: \"%s\": its file \"%s\" %s", x->w->path,
                    dti_show(tensor).text, dti_show(file).text, what);
}

static dt_result dti_index_open_part(dti_weights_map *x, const char *tensor, const char *name) {
    dt_safetensors *w = x->w;
    if (!dti_index_is_plain(name))
        return dti_index_bad_file(x, tensor, name, "is not a name in the index's folder");
    if (w->part_count == DTI_INDEX_FILES_MOST)
        return dti_index_bad(x, "it names more than 4096 files");
    DTI_HAVE(DTI_RESERVE(w->base, w->parts, x->room, w->part_count + 1));
    const size_t size = x->folder + strlen(name) + 1;
    char *path = dti_alloc(w->base, size);
    DTI_HAVE(path);
    snprintf(path, size, "%.*s%s", (int)x->folder, w->path, name);
    const dt_result result =
        dti_file_is_none(path)
            ? dti_index_bad_file(x, tensor, name, "is missing, or is not a regular file")
            : dti_weights_start(w->base, path, true, x->in_memory, &w->parts[w->part_count]);
    dti_free(w->base, path);
    x->last = (uint32_t)w->part_count;
    w->part_count += result == DT_OK;
    return result;
}

/* The file of that name, opened where it is not yet. Tensors of a file mostly follow each other. */
static dt_result dti_index_part(dti_weights_map *x, const char *tensor, const char *name,
                                dt_safetensors **part) {
    const dt_safetensors *w = x->w;
    uint32_t i = x->last;
    if (i >= w->part_count || strcmp(w->parts[i]->path + x->folder, name) != 0)
        for (i = 0; i < w->part_count && strcmp(w->parts[i]->path + x->folder, name) != 0;)
            i++;
    x->last = i;
    if (i == w->part_count)
        DTI_TRY(dti_index_open_part(x, tensor, name));
    *part = w->parts[x->last];
    return DT_OK;
}

/* A name of the text, decoded. NULL: it holds a forbidden character. */
static char *dti_index_name(const dti_weights_map *x, dti_slice text) {
    char *name = x->w->header + (text.data - x->w->header);
    return dti_unescape(name, text.size) ? name : NULL;
}

static dt_result dti_index_read_map(dti_weights_map *x, dti_json *j) {
    dt_safetensors *w = x->w, *part;
    if (x->mapped || !dti_json_object(j))
        return dti_index_bad(x, "its weight_map is not one object");
    x->mapped = true;
    for (dti_slice key, value; dti_json_next_key(j, &key);) {
        if (!dti_json_string(j, &value))
            return dti_index_bad(x, "its weight_map is not an object of strings");
        w->header_crc = dti_crc32c(w->header_crc, key.data, key.size);
        w->header_crc = dti_crc32c(w->header_crc, value.data, value.size);
        const char *tensor = dti_index_name(x, key), *file = dti_index_name(x, value);
        if (!tensor || !file)
            return dti_index_bad(x, "a name holds a NUL or half a surrogate pair");
        DTI_TRY(dti_index_part(x, tensor, file, &part));
        const int index = dti_weights_find(part, tensor);
        if (index < 0)
            return dti_index_bad_file(x, tensor, file, "does not have this tensor");
        if (w->count == INT32_MAX)
            return dti_index_bad(x, "more than 2^31 tensors");
        DTI_HAVE(DTI_RESERVE(w->base, w->items, w->capacity, w->count + 1));
        w->items[w->count++] = part->items[index];
    }
    return DT_OK;
}

/* ---- How the files of a checkpoint are identified. In metadata's "dtrain", "files" has each
 * file's bytes and the checksum of its checksums. "weight_map" has the checksum of the index's
 * own. */

static bool dti_index_read_file(dti_weights_map *x, dti_json *j, dti_slice name) {
    dt_safetensors *w = x->w;
    dti_weights_file file = {.name = dti_index_name(x, name)};
    uint64_t sum = 0;
    if (!file.name || !dti_json_array(j) || !dti_json_next_item(j) ||
        !dti_json_u64(j, &file.bytes) || !dti_json_next_item(j) || !dti_json_u64(j, &sum) ||
        dti_json_next_item(j) || j->bad || sum > UINT32_MAX)
        return false;
    x->poor = !DTI_RESERVE(w->base, w->files, x->files_room, w->file_count + 1);
    if (x->poor)
        return false;
    file.sum = (uint32_t)sum;
    w->files[w->file_count++] = file;
    return true;
}

static bool dti_index_read_own(dti_weights_map *x, dti_json *j) {
    uint64_t sum = 0;
    if (!dti_json_object(j))
        return false;
    for (dti_slice key, name; dti_json_next_key(j, &key);) {
        if (dti_slice_is(key, "weight_map") ? !dti_json_u64(j, &sum) || sum > UINT32_MAX
            : dti_slice_is(key, "files")    ? !dti_json_object(j)
                                            : !dti_json_skip(j))
            return false;
        while (dti_slice_is(key, "files") && dti_json_next_key(j, &name))
            if (!dti_index_read_file(x, j, name))
                return false;
    }
    x->w->map_sum = (uint32_t)sum;
    return !j->bad;
}

static dt_result dti_index_read_metadata(dti_weights_map *x, dti_json *j) {
    bool good = dti_json_peek(j) == '{' ? dti_json_object(j) : false;
    if (!good)
        return dti_json_skip(j) ? DT_OK : dti_index_bad(x, "its metadata is not JSON");
    for (dti_slice key; dti_json_next_key(j, &key);)
        if (dti_slice_is(key, "dtrain") ? !dti_index_read_own(x, j) : !dti_json_skip(j))
            return x->poor ? DT_ERROR_MEMORY : dti_index_bad(x, "its metadata is damaged");
    return j->bad ? dti_index_bad(x, "its metadata is not JSON") : DT_OK;
}

/* ---- All of it */

static dt_result dti_index_read_text(dti_weights_map *x, size_t *size) {
    dt_safetensors *w = x->w;
    dti_reader r;
    DTI_TRY(dti_reader_open(w->base, w->path, &r));
    *size = (size_t)DTI_MIN(r.size, (uint64_t)DTI_SAFETENSORS_HEADER_MAX);
    const dt_result result = r.size > DTI_SAFETENSORS_HEADER_MAX
                                 ? dti_index_bad(x, "it has more than 100,000,000 bytes")
                                 : dti_reader_take_new(&r, r.size, &w->header);
    dti_reader_close(&r);
    return result;
}

static dt_result dti_index_read(dti_weights_map *x) {
    size_t size = 0;
    DTI_TRY(dti_index_read_text(x, &size));
    if (!dti_utf8_valid(x->w->header, size))
        return dti_index_bad(x, "it is not UTF-8");
    dti_json j = dti_json_open(x->w->header, size);
    if (!dti_json_object(&j))
        return dti_index_bad(x, "it is not a JSON object");
    for (dti_slice key; dti_json_next_key(&j, &key);) {
        if (dti_slice_is(key, "weight_map"))
            DTI_TRY(dti_index_read_map(x, &j));
        else if (dti_slice_is(key, "metadata"))
            DTI_TRY(dti_index_read_metadata(x, &j));
        else if (!dti_json_skip(&j))
            break;
    }
    if (!dti_json_done(&j))
        return dti_index_bad(x, "it is not valid JSON");
    return x->mapped ? DT_OK : dti_index_bad(x, "it has no weight_map");
}

static dt_result dti_index_take(dt_safetensors *w, bool in_memory) {
    dti_weights_map x = {.w = w, .in_memory = in_memory};
    x.folder = (size_t)(dti_file_name(w->path) - w->path);
    DTI_TRY(dti_index_read(&x));
    w->by_name = dti_alloc_array(w->base, w->count + 1, sizeof *w->by_name);
    DTI_HAVE(w->by_name);
    return dti_weights_order_names(w);
}
