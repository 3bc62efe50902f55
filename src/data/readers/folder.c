/* Pictures of a folder of classes as samples. Decoding needs a worker, whose buffers have room for
 * the largest file that was seen; so it allocates nothing, and any number of threads may read. A
 * decoded picture stays if the cache has room for its row. */

static dt_result dti_folder_read(const dt_folder *f, dti_folder_worker *d, dti_picture *p,
                                 dti_file_bytes *file) {
    dti_reader reader;
    DTI_TRY(dti_reader_open(&d->base, d->path, &reader));
    *file = (dti_file_bytes){.base = &d->base, .path = d->path, .data = d->file};
    file->size = (size_t)reader.size;
    dt_result result = dti_picture_look(&reader, p);
    if (!result && (reader.size > f->file_max || (size_t)p->width * p->height > f->pixels_max ||
                    p->height > f->height_max))
        result =
            dti_fail(&d->base, DT_ERROR_FORMAT,
                     "%s: it has changed since the folder was opened, and is larger now", d->path);
    if (!result)
        result = dti_reader_seek(&reader, 0);
    if (!result)
        result = dti_reader_take(&reader, d->file, (size_t)reader.size);
    dti_reader_close(&reader);
    return result;
}

/* A picture of the set as [height, width, channels] in d->sized; errors are in d->base. */
static dt_result dti_folder_decode(const dt_folder *f, uint64_t row, dti_folder_worker *d) {
    dti_picture p = {0};
    dti_file_bytes file;
    snprintf(d->path, f->name_max + 1, "%s/%s", f->path, f->names.data + f->places[row]);
    DTI_TRY(dti_folder_read(f, d, &p, &file));
    DTI_TRY(dti_picture_decode(&file, &p, f->channels, d->pixels));
    if (!dti_folder_fits(f, &p))
        return dti_fail(&d->base, DT_ERROR_FORMAT,
                        "%s: it has changed since the folder was opened: now %u x %u pixels",
                        d->path, p.width, p.height);
    const dti_picture_part part = f->desc.sizes == DT_FOLDER_CROP
                                      ? dti_picture_middle(&p, f->width, f->height)
                                      : (dti_picture_part){0, 0, p.width, p.height};
    dti_picture_resize(d->pixels, &p, f->channels, part, f->width, f->height, d->rows, d->sized);
    return DT_OK;
}

/* ---- samples */

static dti_folder_worker *dti_folder_worker_take(dt_folder *f) {
    dti_folder_worker *worker = NULL;
    dti_mutex_lock(&f->lock);
    for (;;) {
        for (int i = 0; i < f->worker_count && !worker; i++)
            worker = f->workers[i].taken ? NULL : &f->workers[i];
        if (worker)
            break;
        dti_cond_wait(&f->free, &f->lock);
    }
    worker->taken = true;
    dti_mutex_unlock(&f->lock);
    return worker;
}

static void dti_folder_worker_give(dt_folder *f, dti_folder_worker *worker) {
    dti_mutex_lock(&f->lock);
    worker->taken = false;
    dti_cond_signal(&f->free);
    dti_mutex_unlock(&f->lock);
}

static void dti_folder_floats(const dt_folder *f, const uint8_t *pixels, float *to) {
    dti_picture_floats(pixels, (size_t)f->width * (size_t)f->height, (size_t)f->channels, f->table,
                       to);
}

enum { DTI_FOLDER_EMPTY, DTI_FOLDER_BUSY, DTI_FOLDER_FULL }; /* of a row's place in the cache */

static void dti_folder_remember(dt_folder *f, uint64_t row, const uint8_t *pixels) {
    uint8_t empty = DTI_FOLDER_EMPTY;
    if (row >= f->cache_rows ||
        !atomic_compare_exchange_strong(&f->cached[row], &empty, DTI_FOLDER_BUSY))
        return;
    memcpy(f->cache + row * f->picture_bytes, pixels, f->picture_bytes);
    atomic_store(&f->cached[row], DTI_FOLDER_FULL);
}

static dt_result dti_folder_picture(void *user, const dt_sample *s, void *const *values) {
    dt_folder *f = user;
    if (s->row >= f->rows) {
        snprintf(s->error, s->error_bytes,
                 "row %llu is out of range: the folder has %zu pictures (see .indices)",
                 (unsigned long long)s->row, f->rows);
        return DT_ERROR_INVALID;
    }
    if (s->row < f->cache_rows && atomic_load(&f->cached[s->row]) == DTI_FOLDER_FULL) {
        dti_folder_floats(f, f->cache + s->row * f->picture_bytes, values[0]);
        return DT_OK;
    }
    dti_folder_worker *worker = dti_folder_worker_take(f);
    const dt_result result = dti_folder_decode(f, s->row, worker);
    if (result) {
        snprintf(s->error, s->error_bytes, "%s%s", worker->base.error,
                 result == DT_ERROR_FORMAT
                     ? "; remove it, or open the folder with .verify and .skip_bad"
                     : "");
    } else {
        dti_folder_floats(f, worker->sized, values[0]);
        dti_folder_remember(f, s->row, worker->sized);
    }
    dti_folder_worker_give(f, worker);
    return result;
}

static dt_result dti_folder_numbered(void *user, const dt_sample *s, void *const *values) {
    const dt_folder *f = user;
    DTI_TRY(dti_folder_picture(user, s, values));
    *(int32_t *)values[1] = (int32_t)f->labels[s->row];
    return DT_OK;
}

static dt_result dti_folder_one_hot(void *user, const dt_sample *s, void *const *values) {
    const dt_folder *f = user;
    float *target = values[1];
    DTI_TRY(dti_folder_picture(user, s, values));
    for (size_t i = 0; i < f->class_count; i++)
        target[i] = i == f->labels[s->row] ? 1.0f : 0.0f;
    return DT_OK;
}

static dt_result dti_folder_label(dt_folder *f, dt_tensor label, dt_dataset *set) {
    const dt_shape shape = dti_tensor_shape(label);
    const dt_dtype dtype = dti_tensor_dtype(label);
    if (dtype == DT_I32 && shape.rank == 0) {
        set->sample = dti_folder_numbered;
    } else if (dtype == DT_F32 && shape.rank == 1 && shape.dim[0] == (int64_t)f->class_count) {
        set->sample = dti_folder_one_hot;
    } else {
        return dti_fail(f->base, DT_ERROR_INVALID,
                        "dt_folder_dataset: the label is %s %s; for %zu classes it must be an i32 "
                        "input [], or f32 [%zu]",
                        dti_dtype_name(dtype), dti_shape_print(shape, true).text, f->class_count,
                        f->class_count);
    }
    set->columns[1].input = label;
    set->columns[1].dtype = dtype;
    return DT_OK;
}

DTI_PUBLIC_OUT(dt_folder_dataset,
               (dt_folder * folder, dt_tensor picture, dt_tensor label, dt_dataset *out), folder,
               DTI_OF(dt_folder), (folder, picture, label, out)) {
    const dt_folder *f = folder;
    if (dti_is_nil(picture))
        return dti_fail(f->base, DT_ERROR_INVALID, "dt_folder_dataset: the picture is nil");
    const dt_shape shape = dti_tensor_shape(picture);
    const bool fits = dti_tensor_dtype(picture) == DT_F32 && shape.rank == 3 &&
                      shape.dim[0] == f->channels && shape.dim[1] == f->height &&
                      shape.dim[2] == f->width;
    if (!fits)
        return dti_fail(f->base, DT_ERROR_INVALID,
                        "dt_folder_dataset: the picture is %s %s; for this folder it must be f32 "
                        "[%d, %d, %d] (channels, height, width; dt_folder_get_info)",
                        dti_dtype_name(dti_tensor_dtype(picture)),
                        dti_shape_print(shape, true).text, f->channels, f->height, f->width);
    dt_dataset set = {.rows = f->rows, .sample = dti_folder_picture, .user = folder};
    set.columns[0].input = picture;
    set.threads = f->desc.threads;
    DTI_TRY(dti_is_nil(label) ? DT_OK : dti_folder_label(folder, label, &set));
    *out = set;
    return DT_OK;
}

/* ---- opening */

static dt_result dti_folder_check(dti_base *base, const dt_folder_desc *d) {
    DTI_TRY(dti_picture_asked(base, "dt_folder_open", d->width, d->height, d->channels));
    if ((unsigned)d->sizes > DT_FOLDER_SKIP || d->threads < 0 ||
        d->threads > DTI_LOADER_THREADS_MAX)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_folder_open: .sizes is %d (allowed: 0 to %d), .threads %d (0 to %d)",
                        (int)d->sizes, DT_FOLDER_SKIP, d->threads, DTI_LOADER_THREADS_MAX);
    return DT_OK;
}

static dt_result dti_folder_worker_make(dt_folder *f, dti_folder_worker *d) {
    dti_base_init(&d->base, NULL, NULL);
    d->path = dti_alloc(f->base, f->name_max + 1);
    d->file = dti_alloc(f->base, f->file_max);
    d->pixels = dti_alloc_array(f->base, f->pixels_max, 4);
    d->rows = dti_alloc_array(f->base, f->height_max, (size_t)f->width * (size_t)f->channels);
    d->sized = dti_alloc(f->base, f->picture_bytes);
    return d->path && d->file && d->pixels && d->rows && d->sized ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_folder_workers_make(dt_folder *f) {
    const size_t count = (size_t)DTI_MAX(f->desc.threads, 1);
    f->picture_bytes = (size_t)f->width * (size_t)f->height * (size_t)f->channels;
    dti_picture_table(f->table);
    f->workers = dti_alloc_array(f->base, count, sizeof *f->workers);
    for (size_t i = 0; f->workers && i < count; i++) {
        f->worker_count++;
        if (dti_folder_worker_make(f, &f->workers[i]))
            return DT_ERROR_MEMORY;
    }
    return f->workers ? DT_OK : DT_ERROR_MEMORY;
}

/* The cache keeps the first rows, so its contents do not depend on an order. */
static dt_result dti_folder_cache_make(dt_folder *f) {
    f->cache_rows = (size_t)DTI_MIN(f->desc.cache_bytes / f->picture_bytes, (uint64_t)f->rows);
    if (!f->cache_rows)
        return DT_OK;
    f->cache = dti_alloc_array(f->base, f->cache_rows, f->picture_bytes);
    f->cached = dti_alloc(f->base, f->cache_rows * sizeof *f->cached);
    return f->cache && f->cached ? DT_OK : DT_ERROR_MEMORY;
}

/* Decodes all pictures; those after a skipped row move up. */
static dt_result dti_folder_verify(dt_folder *f) {
    size_t kept = 0;
    for (size_t i = 0; i < f->rows; i++) {
        const dt_result result = dti_folder_decode(f, i, &f->workers[0]);
        if (result == DT_ERROR_FORMAT && f->desc.skip_bad) {
            f->skipped++;
            continue;
        }
        if (result)
            return dti_fail(f->base, result, "%s%s", f->workers[0].base.error,
                            result == DT_ERROR_FORMAT ? "; remove it, or set .skip_bad" : "");
        f->places[kept] = f->places[i];
        f->labels[kept] = f->labels[i];
        kept++;
    }
    f->rows = kept;
    return kept
               ? DT_OK
               : dti_fail(f->base, DT_ERROR_FORMAT, "%s: all of its pictures are damaged", f->path);
}

DTI_PUBLIC_NEW(dt_folder_open,
               (dt_ctx * ctx, const char *path, const dt_folder_desc *desc, dt_folder **out), ctx,
               DTI_CTX, (ctx, path, desc, out), dt_folder_close) {
    static const dt_folder_desc none;
    dti_base *base = dti_ctx_base(ctx);
    DTI_NEED(base, path);
    desc = desc ? desc : &none;
    DTI_TRY(dti_folder_check(base, desc));
    dt_folder *f = *out = dti_alloc(base, sizeof *f);
    DTI_HAVE(f);
    f->base = base;
    f->desc = *desc;
    f->desc.like = NULL;
    f->names = dti_text_open(base);
    f->width = desc->width, f->height = desc->height, f->channels = desc->channels;
    dti_mutex_init(&f->lock);
    dti_cond_init(&f->free);
    f->path = dti_alloc_text(base, path);
    DTI_TRY(f->path ? dti_folder_scan(f, desc) : DT_ERROR_MEMORY);
    DTI_TRY(dti_folder_workers_make(f));
    if (desc->verify)
        DTI_TRY(dti_folder_verify(f));
    return dti_folder_cache_make(f);
}

DTI_PUBLIC_VOID(dt_folder_close, (dt_folder * f), f, DTI_OF(dt_folder) | DTI_UNUSED, (f)) {
    for (int i = 0; i < f->worker_count; i++) {
        const dti_folder_worker *d = &f->workers[i];
        DTI_FREE(f->base, d->path, d->file, d->pixels, d->rows, d->sized);
    }
    for (size_t i = 0; i < f->class_count; i++)
        dti_free(f->base, f->classes[i]);
    dti_text_free(&f->names);
    DTI_FREE(f->base, f->workers, f->classes, f->places, f->labels, f->path, f->cache,
             (void *)f->cached);
    dti_cond_destroy(&f->free);
    dti_mutex_destroy(&f->lock);
    dti_free(f->base, f);
}

DT_API void dt_folder_get_info(const dt_folder *f, dt_folder_info *info) {
    if (info)
        *info = !f ? (dt_folder_info){0}
                   : (dt_folder_info){.rows = f->rows,
                                      .skipped = f->skipped,
                                      .cached_rows = f->cache_rows,
                                      .classes = (int)f->class_count,
                                      .width = f->width,
                                      .height = f->height,
                                      .channels = f->channels};
}

DT_API const char *dt_folder_class_name(const dt_folder *f, int index) {
    return f && index >= 0 && (size_t)index < f->class_count ? f->classes[index] : NULL;
}

DT_API const uint32_t *dt_folder_labels(const dt_folder *f) {
    return f ? f->labels : NULL;
}
