/* Writes safetensors: a file with its header, and the index of several. It owns the texts;
 * base/file.c's writer lets a file appear whole. */

static void dti_safetensors_add_item(dti_text *text, const dti_safetensors_item *item,
                                     uint64_t begin) {
    dti_text_add(text, ",\"");
    dti_text_add_quoted(text, item->name, strlen(item->name));
    dti_text_add(text, "\":{\"dtype\":\"%s\",\"shape\":[", item->dtype);
    for (int i = 0; i < item->rank; i++)
        dti_text_add(text, i ? ",%lld" : "%lld", (long long)item->dim[i]);
    dti_text_add(text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                 (unsigned long long)(begin + item->bytes));
}

/* The header, followed by spaces, so that the data begins at a multiple of 8. */
static dti_text dti_safetensors_header(dti_base *base, const dti_safetensors_item *items,
                                       int count) {
    dti_text text = dti_text_open(base);
    uint64_t at = 0;
    /* transformers rejects a file that does not name its framework. */
    dti_text_add(&text, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < count; i++) {
        dti_safetensors_add_item(&text, &items[i], at);
        at += items[i].bytes;
    }
    dti_text_add(&text, "}");
    dti_text_add(&text, "%*s", (int)((8 - text.size % 8) % 8), "");
    return text;
}

static dt_result dti_safetensors_write_header(dti_writer *w, const dti_text *header) {
    uint8_t size[8];
    dti_put64(size, header->size);
    DTI_TRY(dti_writer_add(w, size, sizeof size));
    return dti_writer_add(w, header->data, header->size);
}

static dt_result dti_safetensors_begin(dti_base *base, const char *path,
                                       const dti_safetensors_item *items, int count,
                                       dti_writer **out) {
    *out = NULL;
    dti_text header = dti_safetensors_header(base, items, count);
    uint64_t bytes = 8 + header.size;
    for (int i = 0; i < count; i++)
        bytes += items[i].bytes;
    dt_result result = header.ok ? DT_OK : DT_ERROR_MEMORY;
    if (!result && header.size > DTI_SAFETENSORS_HEADER_MAX)
        result = dti_fail(base, DT_ERROR_INVALID,
                          "%s: its header has %llu bytes, more than the format allows", path,
                          (unsigned long long)header.size);
    if (!result)
        result = dti_writer_open(base, path, bytes, out);
    if (!result)
        result = dti_safetensors_write_header(*out, &header);
    if (result && *out) {
        dti_writer_close(*out, false);
        *out = NULL;
    }
    dti_text_free(&header);
    return result;
}

/* ---- The index of several files */

static void dti_index_file_name(char to[DTI_INDEX_FILE_ROOM], uint32_t number, uint32_t files) {
    snprintf(to, DTI_INDEX_FILE_ROOM, "model-%05u-of-%05u.safetensors", number + 1, files);
}

static bool dti_index_is_file_name(const char *name, uint32_t *number, uint32_t *files) {
    char again[DTI_INDEX_FILE_ROOM];
    if (sscanf(name, "model-%u-of-%u", number, files) != 2 || !(*number)--)
        return false;
    dti_index_file_name(again, *number, *files);
    return !strcmp(name, again);
}

/* Each tensor's file. The checksum covers both names as written. */
static uint32_t dti_index_add_map(dti_text *text, const dti_safetensors_item *items, int count,
                                  const uint32_t *file_of, uint32_t files) {
    uint32_t sum = 0;
    for (int i = 0; i < count; i++) {
        char file[DTI_INDEX_FILE_ROOM];
        dti_index_file_name(file, file_of[i], files);
        dti_text_add(text, i ? ",\n\"" : "\n\"");
        const size_t at = text->size;
        dti_text_add_quoted(text, items[i].name, strlen(items[i].name));
        if (text->ok)
            sum = dti_crc32c(sum, text->data + at, text->size - at);
        sum = dti_crc32c(sum, file, strlen(file));
        dti_text_add(text, "\": \"%s\"", file);
    }
    return sum;
}

static void dti_index_begin(dti_text *text, const dti_safetensors_item *items, int count,
                            const uint32_t *file_of, uint32_t files, uint32_t *sum) {
    uint64_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += items[i].bytes;
    dti_text_add(text, "{\"weight_map\": {");
    *sum = dti_index_add_map(text, items, count, file_of, files);
    dti_text_add(text, "},\n\"metadata\": {\"total_size\": %llu", (unsigned long long)bytes);
}

static void dti_index_end(dti_text *text, const dti_weights_file *known, uint32_t files,
                          uint32_t sum) {
    if (known)
        dti_text_add(text, ",\n\"dtrain\": {\"weight_map\": %u, \"files\": {", (unsigned)sum);
    for (uint32_t i = 0; i < files && known; i++) {
        char name[DTI_INDEX_FILE_ROOM];
        dti_index_file_name(name, i, files);
        dti_text_add(text, "%s\n\"%s\": [%llu, %u]", i ? "," : "", name,
                     (unsigned long long)known[i].bytes, (unsigned)known[i].sum);
    }
    dti_text_add(text, known ? "}}}}\n" : "}}\n");
}
