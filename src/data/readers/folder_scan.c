/* The first look at a folder of classes: names, in order, and each picture's first bytes. */

/* ---- names */

static bool dti_folder_is_picture(const char *name) {
    static const char *const ends[] = {".png", ".jpg", ".jpeg"};
    const size_t size = strlen(name);
    for (size_t i = 0; i < DTI_COUNT(ends) && *name != '.'; i++) {
        const size_t n = strlen(ends[i]);
        bool is = size > n;
        for (size_t k = 0; k < n && is; k++)
            is = ends[i][k] == dti_lower(name[size - n + k]);
        if (is)
            return true;
    }
    return false;
}

static int dti_folder_before(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The paths in a folder whose names `wanted` accepts, sorted. The caller frees text and list. */
typedef struct dti_folder_list {
    dti_text text; /* each followed by a zero */
    char **paths;
    size_t count;
} dti_folder_list;

static dt_result dti_folder_list_make(dti_base *base, const char *path,
                                      bool (*wanted)(const char *name), dti_folder_list *list) {
    dti_folder_names names;
    *list = (dti_folder_list){.text = dti_text_open(base)};
    DTI_TRY(dti_folders_check(base, path));
    if (!dti_folder_names_open(&names, path))
        return dti_fail(base, DT_ERROR_IO, "%s: the folder cannot be opened: %s", path,
                        strerror(errno));
    for (const char *name; (name = dti_folder_names_next(&names)) != NULL;) {
        if (!wanted(name))
            continue;
        dti_text_add(&list->text, "%s/%s", path, name);
        dti_text_add_bytes(&list->text, "", 1);
        list->count++;
    }
    const int error = errno;
    dti_folder_names_close(&names);
    if (error)
        return dti_fail(base, DT_ERROR_IO, "%s: the folder cannot be read: %s", path,
                        strerror(error));
    list->paths = dti_alloc_array(base, list->count + 1, sizeof *list->paths);
    DTI_HAVE(list->paths && list->text.ok);
    char *at = list->text.data;
    for (size_t i = 0; i < list->count; i++, at += strlen(at) + 1)
        list->paths[i] = at;
    qsort(list->paths, list->count, sizeof *list->paths, dti_folder_before);
    return DT_OK;
}

static bool dti_folder_not_hidden(const char *name) {
    return *name != '.';
}

/* ---- pictures */

static bool dti_folder_fits(const dt_folder *f, const dti_picture *p) {
    return f->desc.sizes == DT_FOLDER_RESIZE || f->desc.sizes == DT_FOLDER_CROP ||
           ((int)p->width == f->width && (int)p->height == f->height);
}

static dt_result dti_folder_keep(dt_folder *f, const char *path, uint32_t class) {
    if (f->rows >= UINT32_MAX)
        return dti_fail(f->base, DT_ERROR_UNSUPPORTED, "%s: more than 2^32 - 1 pictures", f->path);
    DTI_HAVE(DTI_RESERVE(f->base, f->places, f->place_capacity, f->rows + 1) &&
             DTI_RESERVE(f->base, f->labels, f->label_capacity, f->rows + 1));
    f->places[f->rows] = f->names.size;
    f->labels[f->rows] = class;
    f->rows++;
    dti_text_add(&f->names, "%s/%s", f->classes[class], dti_file_name(path));
    dti_text_add_bytes(&f->names, "", 1);
    return f->names.ok ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_folder_look(dt_folder *f, const char *path, dti_picture *p, size_t *size) {
    dti_reader reader;
    DTI_TRY(dti_reader_open(f->base, path, &reader));
    *size = (size_t)reader.size;
    dt_result result = dti_picture_look(&reader, p);
    dti_reader_close(&reader);
    return result;
}

static dt_result dti_folder_add(dt_folder *f, const char *path, uint32_t class) {
    dti_picture p = {0};
    size_t size = 0;
    dt_result result = dti_folder_look(f, path, &p, &size);
    const bool bad = result == DT_ERROR_FORMAT || (result == DT_ERROR_IO && dti_file_is_none(path));
    if (bad && f->desc.skip_bad) {
        f->skipped++;
        return DT_OK;
    }
    if (result)
        return result;
    f->width = f->width ? f->width : (int)p.width; /* those not given are the first picture's */
    f->height = f->height ? f->height : (int)p.height;
    f->channels = f->channels ? f->channels : p.channels;
    if (!dti_folder_fits(f, &p)) {
        f->skipped++;
        return f->desc.sizes == DT_FOLDER_SKIP
                   ? DT_OK
                   : dti_fail(
                         f->base, DT_ERROR_FORMAT,
                         "%s: it has %u x %u pixels; it must have %d x %d, as dt_folder_desc or "
                         "the first picture has; set .sizes to resize, crop or skip such pictures",
                         path, p.width, p.height, f->width, f->height);
    }
    f->file_max = DTI_MAX(f->file_max, size);
    f->pixels_max = DTI_MAX(f->pixels_max, (size_t)p.width * p.height);
    f->height_max = DTI_MAX(f->height_max, (size_t)p.height);
    f->name_max = DTI_MAX(f->name_max, strlen(path));
    return dti_folder_keep(f, path, class);
}

/* ---- classes */

static dt_result dti_folder_pictures(dt_folder *f, const char *path, uint32_t class) {
    dti_folder_list list;
    const size_t before = f->rows, skipped = f->skipped;
    dt_result result = dti_folder_list_make(f->base, path, dti_folder_is_picture, &list);
    for (size_t i = 0; i < list.count && !result; i++)
        result = dti_folder_add(f, list.paths[i], class);
    DTI_FREE(f->base, list.text.data, list.paths);
    if (!result && f->rows == before)
        result = dti_fail(f->base, DT_ERROR_FORMAT,
                          "%s: the class has no pictures (.png, .jpg, .jpeg)%s; put some in, or "
                          "remove the folder",
                          path, f->skipped > skipped ? " but those that are skipped" : "");
    return result;
}

/* With .like the number that a class has there. */
static dt_result dti_folder_class_of(dt_folder *f, const dt_folder *like, const char *name,
                                     uint32_t *class) {
    for (size_t i = 0; like && i < like->class_count; i++) {
        *class = (uint32_t)i;
        if (!strcmp(like->classes[i], name))
            return DT_OK;
    }
    if (like)
        return dti_fail(f->base, DT_ERROR_FORMAT,
                        "%s/%s: the folder of .like, %s, has no such class", f->path, name,
                        like->path);
    DTI_HAVE(DTI_RESERVE(f->base, f->classes, f->class_capacity, f->class_count + 1));
    DTI_HAVE(f->classes[f->class_count] = dti_alloc_text(f->base, name));
    *class = (uint32_t)f->class_count++;
    return DT_OK;
}

static bool dti_folder_is_one(const char *path) {
    dti_folder_names names;
    if (!dti_folder_names_open(&names, path))
        return errno != ENOTDIR && errno != ENOENT &&
               errno != ELOOP; /* else reported when it is read */
    dti_folder_names_close(&names);
    return true;
}

static dt_result dti_folder_like(dt_folder *f, const dt_folder *like) {
    f->width = like->width, f->height = like->height, f->channels = like->channels;
    for (size_t i = 0; i < like->class_count; i++) {
        uint32_t class;
        if (dti_folder_class_of(f, NULL, like->classes[i], &class))
            return DT_ERROR_MEMORY;
    }
    return DT_OK;
}

static dt_result dti_folder_scan(dt_folder *f, const dt_folder_desc *desc) {
    dti_folder_list list;
    DTI_TRY(desc->like ? dti_folder_like(f, desc->like) : DT_OK);
    dt_result result = dti_folder_list_make(f->base, f->path, dti_folder_not_hidden, &list);
    for (size_t i = 0; i < list.count && !result; i++) {
        uint32_t class;
        if (!dti_folder_is_one(list.paths[i]))
            continue;
        result = dti_folder_class_of(f, desc->like, dti_file_name(list.paths[i]), &class);
        if (!result)
            result = dti_folder_pictures(f, list.paths[i], class);
    }
    DTI_FREE(f->base, list.text.data, list.paths);
    if (!result && !f->rows)
        result =
            dti_fail(f->base, DT_ERROR_FORMAT,
                     "%s: no classes found; each class must be a folder with pictures", f->path);
    return result;
}
