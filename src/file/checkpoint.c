/* Checkpoint files. It owns the checksums: a CRC32C of the header and of every tensor. They are
 * written last, and checked before any value is returned. A damaged file is an error that names the
 * damaged part; it is never repaired. Bytes pass through a buffer in both directions, so a file may
 * be larger than the memory. The trainer knows what the tensors mean; base/file.c makes a file
 * appear whole. */

#define DTI_CHECKPOINT_SUMS "dtrain.crc32c"

/* ---- Writing a file */

static bool dti_checkpoint_warn(dti_base *base, const dti_safetensors_item *item, uint64_t offset,
                                const void *data, size_t bytes) {
    const bool half = !strcmp(item->dtype, dti_dtype_file_name(DT_BF16));
    const dt_dtype dtype = half ? DT_BF16 : DT_F32;
    const uint64_t one = dti_dtype_bytes(dtype);
    return !strcmp(item->dtype, dti_dtype_file_name(dtype)) &&
           dti_warn_infinite(base, item->name, data, dtype, offset / one, bytes / one);
}

struct dti_checkpoint_file {
    dti_base *base;
    dti_writer *writer;
    int count, item;                 /* tensors; the one that bytes are added to */
    uint64_t at;                     /* its bytes so far */
    uint64_t *bytes;                 /* [count] */
    uint32_t *sums;                  /* [count + 1]: the header's, then each tensor's */
    dti_checkpoint_folder_step step; /* .folder[0]: it is a step's file of a folder */
    const char *how;                 /* what to do if the system fails; NULL: the caller's */
    dti_checkpoint_copy *copy;       /* of which bytes are added to; NULL: to the file */
};

/* `items` followed by the checksums. */
static dt_result dti_checkpoint_add_sums(dti_base *base, const char *path,
                                         const dti_safetensors_item *items, int count,
                                         dti_safetensors_item *all, const int64_t *dim) {
    for (int i = 0; i < count; i++) {
        if (!strcmp(items[i].name, DTI_CHECKPOINT_SUMS))
            return dti_fail(
                base, DT_ERROR_INVALID,
                "%s: the tensor name \"%s\" is reserved for a checkpoint's checksums; use another",
                path, items[i].name);
        all[i] = items[i];
    }
    all[count] = (dti_safetensors_item){.name = DTI_CHECKPOINT_SUMS,
                                        .dtype = "U32",
                                        .rank = 1,
                                        .dim = dim,
                                        .bytes = (uint64_t)*dim * sizeof(uint32_t)};
    return DT_OK;
}

static void dti_checkpoint_file_free(dti_checkpoint_file *f) {
    DTI_FREE(f->base, f->sums, f->bytes, f);
}

/* NULL: memory ran out. */
static dti_checkpoint_file *dti_checkpoint_file_make(dti_base *base,
                                                     const dti_safetensors_item *items, int count) {
    dti_checkpoint_file *f = dti_alloc(base, sizeof *f);
    if (!f)
        return NULL;
    *f = (dti_checkpoint_file){.base = base, .count = count};
    f->bytes = dti_alloc_array(base, (size_t)count + 1, sizeof *f->bytes);
    f->sums = dti_alloc_array(base, (size_t)count + 1, sizeof *f->sums);
    for (int i = 0; i < count && f->bytes; i++)
        f->bytes[i] = items[i].bytes;
    if (f->bytes && f->sums)
        return f;
    dti_checkpoint_file_free(f);
    return NULL;
}

/* `all` has room for one tensor more. */
static dt_result dti_checkpoint_start(dti_checkpoint_file *f, const char *path,
                                      const dti_safetensors_item *items,
                                      dti_safetensors_item *all) {
    const int64_t dim = (int64_t)f->count + 1;
    DTI_HAVE(all);
    DTI_TRY(dti_checkpoint_add_sums(f->base, path, items, f->count, all, &dim));
    DTI_TRY(dti_safetensors_begin(f->base, path, all, f->count + 1, &f->writer));
    f->sums[0] = dti_writer_take_crc(f->writer);
    return DT_OK;
}

static dt_result dti_checkpoint_begin(dti_base *base, const char *path,
                                      const dti_safetensors_item *items, int count,
                                      dti_checkpoint_file **out) {
    *out = NULL;
    dti_checkpoint_file *f = dti_checkpoint_file_make(base, items, count);
    DTI_HAVE(f);
    dti_safetensors_item *all = dti_alloc_array(base, (size_t)count + 1, sizeof *all);
    const dt_result result = dti_checkpoint_start(f, path, items, all);
    dti_free(base, all);
    if (result)
        dti_checkpoint_file_free(f);
    else
        *out = f;
    return result;
}

/* Tensors without bytes end where they begin. */
static void dti_checkpoint_next(dti_checkpoint_file *f) {
    for (; f->item < f->count && f->at == f->bytes[f->item]; f->at = 0) {
        f->item++;
        if (f->writer)
            f->sums[f->item] = dti_writer_take_crc(f->writer);
    }
}

static dt_result dti_checkpoint_add(dti_checkpoint_file *f, const void *data, size_t bytes) {
    const char *from = data, *how = f->base->io_how;
    dt_result result = DT_OK;
    f->base->io_how = f->how ? f->how : how;
    for (size_t some; bytes && !result; bytes -= some, from += some) {
        dti_checkpoint_next(f);
        some = (size_t)DTI_MIN(bytes, f->bytes[f->item] - f->at);
        if (f->copy)
            dti_checkpoint_copy_put(f->copy, f->item, f->at, from, some);
        else
            result = dti_writer_add(f->writer, from, some);
        f->at += some;
    }
    f->base->io_how = how;
    return result;
}

/* Lets the file appear, or not. */
static dt_result dti_checkpoint_close(dti_checkpoint_file *f, bool keep) {
    const char *how = f->base->io_how;
    f->base->io_how = f->how ? f->how : how;
    if (keep)
        dti_writer_add(f->writer, f->sums, ((size_t)f->count + 1) * sizeof *f->sums);
    dt_result result = dti_writer_close(f->writer, keep);
    if (keep && !result && f->step.folder[0])
        result = dti_checkpoint_folder_end(f->base, &f->step);
    f->base->io_how = how;
    return result;
}

static dt_result dti_checkpoint_end(dti_checkpoint_file *f, dt_result own) {
    dt_result result = own;
    dti_checkpoint_next(f);
    if (f->writer)
        result = dti_checkpoint_close(f, own == DT_OK);
    else if (!own)
        result = dti_checkpoint_copy_start(f->base, f->copy);
    dti_checkpoint_file_free(f);
    return own ? own : result;
}

static dt_result dti_checkpoint_fill(dti_checkpoint_file *f, dti_checkpoint_read_fn *read,
                                     void *user) {
    char *buffer = dti_alloc(f->base, (size_t)DTI_WEIGHTS_CHUNK);
    dt_result result = buffer ? DT_OK : DT_ERROR_MEMORY;
    dti_checkpoint_next(f);
    for (int i = f->item; i < f->count; i++)
        for (uint64_t at = 0; at < f->bytes[i] && !result; at += DTI_WEIGHTS_CHUNK) {
            const size_t size = (size_t)DTI_MIN(DTI_WEIGHTS_CHUNK, f->bytes[i] - at);
            result = read(user, i, at, buffer, size);
            if (!result)
                result = dti_checkpoint_add(f, buffer, size);
        }
    dti_free(f->base, buffer);
    return result;
}

static dt_result dti_checkpoint_write(dti_base *base, const char *path,
                                      const dti_safetensors_item *items, int count,
                                      dti_checkpoint_read_fn *read, void *user) {
    dti_checkpoint_file *f;
    DTI_TRY(dti_checkpoint_begin(base, path, items, count, &f));
    return dti_checkpoint_end(f, dti_checkpoint_fill(f, read, user));
}

/* ---- Reading a file */

/* `count`: of the tensors with the checksums. */
static bool dti_checkpoint_has_sums(const dt_safetensors_tensor *last, size_t count) {
    return !strcmp(last->name, DTI_CHECKPOINT_SUMS) && !strcmp(last->dtype, "U32") &&
           last->rank == 1 && last->dim[0] == (int64_t)count;
}

/* Holds tensor `index` against its checksum. */
static dt_result dti_checkpoint_check_tensor(const dti_checkpoint *c, int index, uint32_t sum,
                                             char *buffer) {
    const dt_safetensors_tensor *info = &c->items[index].info;
    uint32_t own = 0;
    for (uint64_t at = 0; at < info->bytes; at += DTI_WEIGHTS_CHUNK) {
        const uint64_t some = DTI_MIN(DTI_WEIGHTS_CHUNK, info->bytes - at);
        DTI_TRY(dti_weights_read(c, index, at, some, buffer));
        own = dti_crc32c(own, buffer, (size_t)some);
    }
    return own == sum ? DT_OK
                      : dti_fail(c->base, DT_ERROR_FORMAT,
                                 "%s: tensor \"%s\" has a wrong checksum: the file is damaged",
                                 c->path, dti_show(info->name).text);
}

/* sums: room for the checksums. buffer: for a chunk. */
static dt_result dti_checkpoint_check_sums(dti_checkpoint *c, uint32_t *sums, char *buffer) {
    const int last = (int)c->count - 1;
    DTI_HAVE(sums && buffer);
    DTI_TRY(dti_weights_read(c, last, 0, c->count * sizeof *sums, sums));
    c->map_sum = dti_crc32c(0, sums, c->count * sizeof *sums);
    if (sums[0] != c->header_crc)
        return dti_fail(c->base, DT_ERROR_FORMAT,
                        "%s: its header has a wrong checksum: the file is damaged", c->path);
    for (int i = 0; i < last; i++)
        DTI_TRY(dti_checkpoint_check_tensor(c, i, sums[i + 1], buffer));
    return DT_OK;
}

static dt_result dti_checkpoint_check(dti_checkpoint *c) {
    if (!c->count)
        return dti_fail(c->base, DT_ERROR_FORMAT, "%s: not a checkpoint: its header has no tensors",
                        c->path);
    if (!dti_checkpoint_has_sums(&c->items[c->count - 1].info, c->count))
        return dti_fail(
            c->base, DT_ERROR_FORMAT,
            "%s: not a checkpoint, or damaged: its last tensor is not \"%s\" of %zu values; "
            "dt_store_load reads weights",
            c->path, DTI_CHECKPOINT_SUMS, c->count);
    uint32_t *sums = dti_alloc_array(c->base, c->count, sizeof *sums);
    char *buffer = dti_alloc(c->base, (size_t)DTI_WEIGHTS_CHUNK);
    const dt_result result = dti_checkpoint_check_sums(c, sums, buffer);
    DTI_FREE(c->base, buffer, sums);
    return result;
}

/* ---- Reading parts */

/* The index's entry of a part; NULL: none. */
static const dti_weights_file *dti_checkpoint_known(const dti_checkpoint *c,
                                                    const dti_checkpoint *part) {
    for (size_t i = 0; i < c->file_count; i++)
        if (!strcmp(c->files[i].name, dti_file_name(part->path)))
            return &c->files[i];
    return NULL;
}

static dt_result dti_checkpoint_check_parts(const dti_checkpoint *c, uint32_t share,
                                            uint32_t shares) {
    if (!c->file_count || c->map_sum != c->header_crc)
        return dti_fail(c->base, DT_ERROR_FORMAT, "%s: not the index of a checkpoint, or damaged",
                        c->path);
    for (size_t i = 0; i < c->part_count; i++) {
        dti_checkpoint *part = c->parts[i];
        const dti_weights_file *known = dti_checkpoint_known(c, part);
        part->checked = i % shares == share;
        if (part->checked)
            DTI_TRY(dti_checkpoint_check(part));
        if (!known || known->bytes != part->reader.size ||
            (part->checked && known->sum != part->map_sum))
            return dti_fail(c->base, DT_ERROR_FORMAT,
                            "%s: it is intact, but of another checkpoint than its index, %s",
                            part->path, c->path);
    }
    return DT_OK;
}

/* A step's folder without an index. */
static dt_result dti_checkpoint_no_index(dti_base *base, const char *path, dt_result result) {
    uint64_t step;
    if (result != DT_ERROR_IO || !dti_checkpoint_step_of(dti_file_name(path), &step) ||
        !dti_checkpoint_is_folder(path))
        return result;
    return dti_fail(base, DT_ERROR_FORMAT, "%s: a checkpoint whose " DTI_INDEX_NAME " is missing",
                    path);
}

static dt_result dti_checkpoint_open_share(dti_base *base, const char *path, uint32_t share,
                                           uint32_t shares, dti_checkpoint **out) {
    dt_result result = dti_weights_open(base, path, out);
    if (result)
        return dti_checkpoint_no_index(base, path, result);
    result = (*out)->part_count ? dti_checkpoint_check_parts(*out, share, shares)
                                : dti_checkpoint_check(*out);
    (*out)->checked = true;
    if (result) {
        dt_safetensors_close(*out);
        *out = NULL;
    } else if (!(*out)->part_count) { /* the checksums have done their work */
        (*out)->count--;
        dti_weights_sort(*out, dti_weights_less_name, (*out)->by_name, (*out)->count);
    }
    return result;
}

static dt_result dti_checkpoint_open(dti_base *base, const char *path, dti_checkpoint **out) {
    return dti_checkpoint_open_share(base, path, 0, 1, out);
}

static bool dti_checkpoint_is_checked(const dti_checkpoint *c, int index) {
    return c->items[index].file->checked;
}

static int dti_checkpoint_index(const dti_checkpoint *c, const char *name) {
    return dti_weights_find(c, name);
}

static dt_result dti_checkpoint_read(const dti_checkpoint *c, int index, uint64_t offset,
                                     uint64_t bytes, void *to) {
    return dti_weights_read(c, index, offset, bytes, to);
}

static const char *dti_checkpoint_parts_path(const dti_checkpoint *c) {
    return c && c->part_count ? c->path : NULL;
}

static const dt_safetensors_tensor *dti_checkpoint_find(const dti_checkpoint *c, const char *name) {
    return dti_checkpoint_at(c, dti_weights_find(c, name));
}

static const dt_safetensors_tensor *dti_checkpoint_at(const dti_checkpoint *c, int index) {
    return index >= 0 && (size_t)index < c->count ? &c->items[index].info : NULL;
}
