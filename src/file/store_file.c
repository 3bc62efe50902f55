/* A store's parameters to and from a weight file, by name. Saving writes them in order of creation,
 * in the requested type, or as they are stored: F32 or BF16. Loading accepts any float type, and
 * more tensors than the model has. It checks every parameter and value before it writes the first.
 * Optimizer state is not kept here. It uses the public store functions and .allow_nonfinite
 * only. */

/* A shape as a message shows it: "[128, 784]". */
typedef struct dti_dims_text {
    char text[24 * DTI_WEIGHT_MAX_DIMS];
} dti_dims_text;

static dti_dims_text dti_show_dims(int rank, const int64_t *dim) {
    dti_dims_text shown;
    size_t size = 0;
    shown.text[size++] = '[';
    for (int i = 0; i < rank; i++)
        size += (size_t)snprintf(shown.text + size, sizeof shown.text - size, i ? ", %lld" : "%lld",
                                 (long long)dim[i]);
    memcpy(shown.text + size, "]", 2);
    return shown;
}

/* ---- Saving */

/* Some of a store's parameters, to be saved. */
typedef struct dti_saving {
    dt_store *store;
    dt_save_desc desc; /* no NULL in it */
    dti_safetensors_item *items;
    dt_param_info *infos;
    int *index;        /* of each of them, in the store */
    uint32_t *file_of; /* of each its file, of */
    uint32_t files;
    int count;
    uint64_t largest; /* elements of one of them */
    bool told;        /* of a NaN or infinity */
} dti_saving;

/* INVALID: a pattern matches no parameter. */
static dt_result dti_store_patterns(const dt_store *s, const char *params) {
    const dti_hint missed =
        dti_glob_missed(params, "parameter", s, s->layout.param_count, dti_store_name);
    return missed.text[0] ? dti_fail(s->base, DT_ERROR_INVALID, "%s: params = \"%.100s\": %s",
                                     dti_function(), params, missed.text)
                          : DT_OK;
}

/* Of a store in BF16 rounding is exact; its averages are F32. */
static dt_dtype dti_store_save_dtype(const dti_saving *s, const dt_param_info *info) {
    return s->desc.dtype == DT_F32 && !s->desc.averaged ? info->dtype : s->desc.dtype;
}

static dt_result dti_store_save_items(dti_saving *s) {
    const int all = dt_store_param_count(s->store);
    for (int i = 0; i < all; i++) {
        dt_param_info *info = &s->infos[s->count];
        DTI_TRY(dt_store_get_param(s->store, i, info));
        if (!dti_glob(s->desc.params, info->name))
            continue;
        s->index[s->count] = i;
        const dt_dtype dtype = dti_store_save_dtype(s, info);
        s->items[s->count] = (dti_safetensors_item){.name = info->name,
                                                    .dtype = dti_dtype_file_name(dtype),
                                                    .rank = info->shape.rank,
                                                    .dim = info->shape.dim,
                                                    .bytes = dti_bytes(dtype, info->elements)};
        s->largest = DTI_MAX(s->largest, info->elements);
        s->count++;
    }
    return all ? dti_store_patterns(s->store, s->desc.params) : DT_OK;
}

/* In place, to the file's type. INVALID: a finite value would become infinite. */
static dt_result dti_store_save_round(const dti_saving *s, const dt_param_info *info,
                                      float *values) {
    const dt_dtype dtype = dti_store_save_dtype(s, info);
    const size_t count = (size_t)info->elements;
    /* from here on both round to infinity */
    const float most = dtype == DT_F16 ? 65520.0f : dti_f32_from_bits(0x7F7F8000);
    if (dtype == DT_F32)
        return DT_OK;
    for (size_t i = 0; i < count; i++)
        if (fabsf(values[i]) >= most && dti_fits_f32((double)values[i]))
            return dti_fail(dti_store_base(s->store), DT_ERROR_INVALID,
                            "dt_save_desc.dtype: value %zu of \"%s\" is %g, which is infinite as "
                            "%s; save it as F32%s",
                            i, info->name, (double)values[i], dti_dtype_file_name(dtype),
                            dtype == DT_F16 ? " or BF16" : "");
    const dti_operand all = {values, DT_F32, {0, 1}};
    dti_fold(values, &all, 1, count, dtype, DT_COMM_SUM, true, 1);
    return DT_OK;
}

/* Parameters [first, end). */
static dt_result dti_store_save_data(dti_saving *s, dti_writer *w, int first, int end,
                                     float *buffer) {
    for (int i = first; i < end; i++) {
        const size_t count = (size_t)s->infos[i].elements;
        DTI_TRY(dt_store_read(s->store, s->index[i],
                              s->desc.averaged ? DT_VALUE_AVERAGE : DT_VALUE_PARAM, buffer,
                              count * sizeof *buffer));
        s->told = s->told || dti_warn_infinite(dti_store_base(s->store), s->items[i].name, buffer,
                                               DT_F32, 0, count);
        DTI_TRY(dti_store_save_round(s, &s->infos[i], buffer));
        DTI_TRY(dti_writer_add(w, buffer, (size_t)s->items[i].bytes));
    }
    return DT_OK;
}

static dt_result dti_store_save_file(dti_saving *s, const char *path, int first, int end,
                                     float *buffer) {
    dti_writer *w;
    DTI_TRY(
        dti_safetensors_begin(dti_store_base(s->store), path, s->items + first, end - first, &w));
    const dt_result result = dti_store_save_data(s, w, first, end, buffer);
    const dt_result closed = dti_writer_close(w, result == DT_OK);
    return result ? result : closed;
}

/* ---- Saving in several files */

/* As transformers does: a file ends where the next tensor would be too much. */
static dt_result dti_store_save_split(dti_saving *s) {
    uint64_t bytes = 0;
    const uint64_t most = s->desc.max_file_bytes;
    s->files = 1;
    for (int i = 0; i < s->count; i++) {
        if (most && bytes && s->items[i].bytes > most - DTI_MIN(bytes, most)) {
            s->files++;
            bytes = 0;
        }
        bytes += s->items[i].bytes;
        s->file_of[i] = s->files - 1;
    }
    return s->files <= DTI_INDEX_FILES_MOST
               ? DT_OK
               : dti_fail(dti_store_base(s->store), DT_ERROR_INVALID,
                          "dt_save_desc.max_file_bytes is %llu, which needs %u files; at most %d "
                          "are allowed: give a larger value",
                          (unsigned long long)most, s->files, DTI_INDEX_FILES_MOST);
}

/* path: has room for a file's name after the folder's `size` bytes. */
static void dti_store_save_remove_others(const dti_saving *s, char *path, size_t size) {
    dti_folder_names list;
    if (!dti_folder_names_open(&list, path))
        return;
    for (const char *name; (name = dti_folder_names_next(&list)) != NULL;) {
        uint32_t number, files;
        const bool other = dti_index_is_file_name(name, &number, &files) && s->files != files;
        if (!other && strcmp(name, s->files > 1 ? DTI_INDEX_ONE : DTI_INDEX_NAME) != 0)
            continue;
        snprintf(path + size, DTI_INDEX_FILE_ROOM + 1, "/%s", name);
        remove(path);
    }
    path[size] = 0;
    dti_folder_names_close(&list);
}

static dt_result dti_store_save_files(dti_saving *s, char *path, size_t size, float *buffer) {
    char name[DTI_INDEX_FILE_ROOM] = DTI_INDEX_ONE;
    int first = 0;
    for (uint32_t file = 0; file < s->files; file++) {
        int end = first;
        while (end < s->count && s->file_of[end] == file)
            end++;
        if (s->files > 1)
            dti_index_file_name(name, file, s->files);
        snprintf(path + size, DTI_INDEX_FILE_ROOM + 1, "/%s", name);
        DTI_TRY(dti_store_save_file(s, path, first, end, buffer));
        first = end;
    }
    if (s->files == 1)
        return DT_OK;
    uint32_t sum;
    dti_text text = dti_text_open(dti_store_base(s->store));
    dti_index_begin(&text, s->items, s->count, s->file_of, s->files, &sum);
    dti_index_end(&text, NULL, s->files, sum);
    snprintf(path + size, DTI_INDEX_FILE_ROOM + 1, "/%s", DTI_INDEX_NAME);
    return dti_text_write(&text, path);
}

/* An old index is removed first: it must not name files of two savings. */
static dt_result dti_store_save_folder(dti_saving *s, const char *folder, float *buffer) {
    dti_base *base = dti_store_base(s->store);
    const size_t size = strlen(folder);
    DTI_TRY(dti_folders_check(base, folder));
    if (!dti_folder_make(folder) && errno != EEXIST)
        return dti_fail(base, DT_ERROR_IO, "%s: the folder cannot be made: %s", folder,
                        strerror(errno));
    char *path = dti_alloc(base, size + DTI_INDEX_FILE_ROOM + 1);
    DTI_HAVE(path);
    snprintf(path, size + DTI_INDEX_FILE_ROOM + 1, "%s/%s", folder, DTI_INDEX_NAME);
    if (s->files > 1)
        remove(path);
    const dt_result result = dti_store_save_files(s, path, size, buffer);
    path[size] = 0;
    if (!result)
        dti_store_save_remove_others(s, path, size);
    dti_free(base, path);
    return result;
}

static dt_result dti_store_save_all(dti_saving *s, const char *path) {
    dti_base *base = dti_store_base(s->store);
    DTI_TRY(dti_store_save_items(s));
    DTI_TRY(dti_store_save_split(s));
    float *buffer = dti_alloc_array(base, (size_t)s->largest + 1, sizeof *buffer);
    DTI_HAVE(buffer);
    const dt_result result = s->desc.max_file_bytes
                                 ? dti_store_save_folder(s, path, buffer)
                                 : dti_store_save_file(s, path, 0, s->count, buffer);
    dti_free(base, buffer);
    return result;
}

static dt_result dti_saving_open(dti_saving *s) {
    dti_base *base = dti_store_base(s->store);
    const size_t room = (size_t)dt_store_param_count(s->store) + 1;
    s->desc.params = s->desc.params ? s->desc.params : "*";
    s->items = dti_alloc_array(base, room, sizeof *s->items);
    s->infos = dti_alloc_array(base, room, sizeof *s->infos);
    s->index = dti_alloc_array(base, room, sizeof *s->index);
    s->file_of = dti_alloc_array(base, room, sizeof *s->file_of);
    return s->items && s->infos && s->index && s->file_of ? DT_OK : DT_ERROR_MEMORY;
}

static void dti_saving_close(dti_saving *s) {
    DTI_FREE(dti_store_base(s->store), s->file_of, s->index, s->infos, s->items);
}

static dt_result dti_store_save(dt_store *store, const char *path, const dt_save_desc *desc) {
    dti_base *base = dti_store_base(store);
    DTI_NEED(base, path);
    if (desc->dtype != DT_F32 && !dti_is_half(desc->dtype))
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_save_desc.dtype is %d; it must be DT_F32, DT_BF16 or DT_F16",
                        (int)desc->dtype);
    dti_saving s = {.store = store, .desc = *desc, .told = store->allow_nonfinite};
    dt_result result = dti_saving_open(&s);
    if (!result)
        result = dti_store_save_all(&s, path);
    dti_saving_close(&s);
    return result;
}

/* ---- Saving by the code that has the values: all parameters in their order, as F32 */

static dt_result dti_weights_begin(dt_store *store, const char *path, dti_writer **out) {
    dti_saving s = {.store = store};
    dt_result result = dti_saving_open(&s);
    if (!result)
        result = dti_store_save_items(&s);
    for (int i = 0; i < s.count; i++) { /* averages are F32 whatever the store's type */
        s.items[i].dtype = dti_dtype_file_name(DT_F32);
        s.items[i].bytes = dti_bytes(DT_F32, s.infos[i].elements);
    }
    if (!result)
        result = dti_safetensors_begin(dti_store_base(store), path, s.items, s.count, out);
    dti_saving_close(&s);
    return result;
}

DTI_PUBLIC(dt_store_save_matching, (dt_store * store, const char *path, const dt_save_desc *desc),
           store, DTI_OF(dt_store), (store, path, desc)) {
    return dti_store_save(store, path, desc ? desc : &(dt_save_desc){0});
}

DTI_PUBLIC(dt_store_save, (dt_store * store, const char *path), store, DTI_OF(dt_store),
           (store, path)) {
    return dti_store_save(store, path, &(dt_save_desc){0});
}

/* ---- Loading */

/* Numbers of a type of dti_weight_floats. */
static void dti_f32_from_weight(float *to, const void *data, dt_dtype dtype, size_t count) {
    const uint8_t *from = data;
    const size_t each = dti_dtype_bytes(dtype);
    if (dtype == DT_F32)
        memcpy(to, from, count * each);
    for (size_t i = 0; i < count && dtype != DT_F32; i++, from += each) {
        double wide;
        if (dtype == DT_F64)
            to[i] = (float)*(double *)memcpy(&wide, from, sizeof wide);
        else
            to[i] = dtype == DT_F16 ? dti_f32_from_f16((uint16_t)dti_get16(from))
                                    : dti_f32_from_bf16((uint16_t)dti_get16(from));
    }
}

static bool dti_same_dims(const dt_shape *shape, const dt_safetensors_tensor *weight) {
    return shape->rank == weight->rank &&
           !memcmp(shape->dim, weight->dim, (size_t)weight->rank * sizeof weight->dim[0]);
}

/* The state of a load. */
typedef struct dti_loading {
    dt_store *store;
    const char *path;
    const dt_safetensors *weights;
    dt_load_desc desc; /* no NULL in it */
    char *chunk;       /* of a tensor's bytes */
    int loaded;
} dti_loading;

/* The file's name of a parameter, in `text`; NULL: it is not chosen, or memory ran out. */
static const char *dti_loading_name(const dti_loading *l, const char *name, dti_text *text) {
    const size_t prefix = strlen(l->desc.prefix);
    if (!dti_glob(l->desc.params, name) || strncmp(name, l->desc.prefix, prefix) != 0)
        return NULL;
    text->size = 0;
    dti_text_add(text, "%s%s", l->desc.file_prefix, name + prefix);
    return text->data;
}

/* Finds a parameter's tensor in the file, or reports why it does not fit. *index = -1: the file
 * lacks it, which is allowed. */
static dt_result dti_store_match(const dti_loading *l, const dt_param_info *param, const char *name,
                                 dt_safetensors_tensor *weight, int *index) {
    dti_base *base = dti_store_base(l->store);
    dt_dtype dtype;
    *index = dti_weights_find(l->weights, name);
    if (*index < 0 && !l->desc.strict)
        return DT_OK;
    if (*index < 0)
        return dti_fail(base, DT_ERROR_INVALID,
                        "%s: weights of another model? It has %d tensors, but no \"%s\" %s",
                        l->path, dt_safetensors_count(l->weights), name,
                        dti_show_dims(param->shape.rank, param->shape.dim).text);
    dt_result result = dt_safetensors_get_tensor(l->weights, *index, weight);
    if (result)
        return dti_fail(base, result, "%s: %s", l->path, base->error);
    if (!dti_same_dims(&param->shape, weight))
        return dti_fail(
            base, DT_ERROR_INVALID,
            "%s: weights of another model? \"%s\" is %s in the file and %s in the model", l->path,
            name, dti_show_dims(weight->rank, weight->dim).text,
            dti_show_dims(param->shape.rank, param->shape.dim).text);
    if (!dti_weight_floats(weight, &dtype))
        return dti_fail(
            base, DT_ERROR_INVALID,
            "%s: \"%s\" is %s in the file; weights are read from F32, F16, BF16 and F64", l->path,
            name, dti_show(weight->dtype).text);
    return DT_OK;
}

/* A loaded value must be a finite float. With .allow_nonfinite, a finite value of the file must
 * stay finite. Checks `count` values of l->chunk, the tensor's from `first` on. */
static dt_result dti_store_check_values(const dti_loading *l, const char *name, dt_dtype dtype,
                                        uint64_t first, uint64_t count, bool half) {
    const bool any = l->desc.allow_nonfinite || l->store->allow_nonfinite;
    double wide;
    uint64_t at = any ? count : dti_first_infinite(l->chunk, dtype, count);
    if (at < count)
        return dti_fail_infinite(dti_store_base(l->store), DT_ERROR_INVALID, l->path, name,
                                 first + at, "dt_load_desc, dt_store_desc or dt_trainer_desc");
    for (at = 0; at < count && half && !any; at++) {
        float x;
        dti_f32_from_weight(&x, l->chunk + at * dti_dtype_bytes(dtype), dtype, 1);
        if (dti_finite_f32(x) && !dti_finite_f32(dti_f32_from_bf16(dti_bf16_from_f32(x))))
            return dti_fail(
                dti_store_base(l->store), DT_ERROR_INVALID,
                "%s: value %llu of \"%s\", %g, does not fit into BF16, whose largest is "
                "3.39e38; scale the weights, or give .parameter_dtype DT_F32",
                l->path, (unsigned long long)(first + at), name, (double)x);
    }
    for (at = 0; at < count && dtype == DT_F64; at++) {
        memcpy(&wide, l->chunk + at * sizeof wide, sizeof wide);
        if (dti_finite_f64(wide) && !dti_fits_f32(wide))
            return dti_fail(dti_store_base(l->store), DT_ERROR_INVALID,
                            "%s: value %llu of \"%s\", %g, does not fit into F32, whose largest is "
                            "3.4e38; scale the weights, and save them as F32",
                            l->path, (unsigned long long)(first + at), name, wide);
    }
    return DT_OK;
}

/* Reads a tensor by chunks. to: its values; NULL: they are only checked. */
static dt_result dti_store_read_values(const dti_loading *l, int index, const char *name,
                                       const dt_safetensors_tensor *weight, bool half, float *to) {
    dt_dtype dtype;
    dti_weight_floats(weight, &dtype);
    const uint64_t each = dti_dtype_bytes(dtype);
    for (uint64_t at = 0; at < weight->bytes; at += DTI_WEIGHTS_CHUNK) {
        const uint64_t bytes = DTI_MIN(DTI_WEIGHTS_CHUNK, weight->bytes - at);
        DTI_TRY(dti_weights_read(l->weights, index, at, bytes, l->chunk));
        if (to)
            dti_f32_from_weight(to + at / each, l->chunk, dtype, (size_t)(bytes / each));
        else
            DTI_TRY(dti_store_check_values(l, name, dtype, at / each, bytes / each, half));
    }
    return DT_OK;
}

/* write = false only looks whether everything fits, and how large the largest parameter is. */
static dt_result dti_store_load_params(dti_loading *l, dti_text *text, bool write, float *buffer,
                                       uint64_t *largest) {
    int count = dt_store_param_count(l->store), index = -1;
    l->loaded = 0;
    for (int i = 0; i < count; i++) {
        dt_param_info param = {0};
        dt_safetensors_tensor weight;
        DTI_TRY(dt_store_get_param(l->store, i, &param));
        const char *name = dti_loading_name(l, param.name, text);
        DTI_HAVE(text->ok);
        if (name)
            DTI_TRY(dti_store_match(l, &param, name, &weight, &index));
        if (!name || index < 0)
            continue;
        l->loaded++;
        *largest = DTI_MAX(*largest, param.elements);
        DTI_TRY(dti_store_read_values(l, index, name, &weight, param.dtype == DT_BF16,
                                      write ? buffer : NULL));
        if (write)
            DTI_TRY(dt_store_write(l->store, i, DT_VALUE_PARAM, buffer,
                                   (size_t)param.elements * sizeof *buffer));
    }
    return DT_OK;
}

static dt_result dti_store_load_weights(dti_loading *l, dti_text *text) {
    dti_base *base = dti_store_base(l->store);
    const bool renames = l->desc.prefix[0] || l->desc.file_prefix[0];
    uint64_t largest = 0;
    DTI_TRY(dti_store_load_params(l, text, false, NULL, &largest));
    if (!l->loaded && (!l->desc.strict || dt_store_param_count(l->store) > 0))
        return dti_fail(
            base, DT_ERROR_INVALID,
            "%s: it has nothing for this store: no tensor has the name of a parameter that matches "
            "\"%.100s\"%s%s%s%s%s",
            l->path, l->desc.params, renames ? ", with .file_prefix = \"" : "", l->desc.file_prefix,
            renames ? "\" in place of .prefix = \"" : "", l->desc.prefix, renames ? "\"" : "");
    float *buffer = dti_alloc_array(base, (size_t)largest + 1, sizeof *buffer);
    DTI_HAVE(buffer);
    dt_result result = dti_store_load_params(l, text, true, buffer, &largest);
    dti_free(base, buffer);
    return result;
}

static dt_result dti_store_load(dt_store *store, const char *path, const dt_load_desc *desc,
                                int *loaded) {
    dti_base *base = dti_store_base(store);
    dt_safetensors *weights;
    *loaded = 0;
    DTI_TRY(dti_store_patterns(store, desc->params));
    DTI_TRY(dti_weights_open(base, path, &weights));
    dti_loading l = {.store = store, .path = path, .weights = weights, .desc = *desc};
    dti_text text = dti_text_open(base);
    l.desc.params = desc->params ? desc->params : "*";
    l.desc.prefix = desc->prefix ? desc->prefix : "";
    l.desc.file_prefix = desc->file_prefix ? desc->file_prefix : "";
    l.chunk = dti_alloc(base, (size_t)DTI_WEIGHTS_CHUNK);
    dt_result result = l.chunk ? dti_store_load_weights(&l, &text) : DT_ERROR_MEMORY;
    dti_free(base, l.chunk);
    dti_text_free(&text);
    dt_safetensors_close(weights);
    *loaded = result ? 0 : l.loaded;
    return result;
}

/* ---- Loading by code that writes the values elsewhere */

static dt_result dti_weights_fit(dt_store *store, const dt_safetensors *weights, const char *path) {
    dti_base *base = dti_store_base(store);
    uint64_t largest = 0;
    dti_loading l = {.store = store, .path = path, .weights = weights};
    l.desc = (dt_load_desc){.params = "*", .prefix = "", .file_prefix = "", .strict = true};
    dti_text text = dti_text_open(base);
    l.chunk = dti_alloc(base, (size_t)DTI_WEIGHTS_CHUNK);
    const dt_result result =
        l.chunk ? dti_store_load_params(&l, &text, false, NULL, &largest) : DT_ERROR_MEMORY;
    dti_free(base, l.chunk);
    dti_text_free(&text);
    return result;
}

/* Smaller ones are read into the room's end, so that none is overwritten before it is converted. */
static dt_result dti_weights_floats(const dt_safetensors *w, int index, uint64_t at, uint64_t n,
                                    float *to) {
    double wide[512];
    dt_dtype dtype = DT_F32;
    dti_weight_floats(&w->items[index].info, &dtype);
    const uint64_t each = dti_dtype_bytes(dtype);
    if (each <= sizeof *to) {
        char *from = (char *)to + (sizeof *to - each) * n;
        DTI_TRY(dti_weights_read(w, index, at * each, n * each, from));
        if (dtype != DT_F32)
            dti_f32_from_weight(to, from, dtype, (size_t)n);
        return DT_OK;
    }
    for (uint64_t some; n; at += some, n -= some, to += some) {
        some = DTI_MIN(n, (uint64_t)DTI_COUNT(wide));
        DTI_TRY(dti_weights_read(w, index, at * each, some * each, wide));
        dti_f32_from_weight(to, wide, dtype, (size_t)some);
    }
    return DT_OK;
}

DTI_PUBLIC(dt_store_load, (dt_store * store, const char *path), store, DTI_OF(dt_store),
           (store, path)) {
    int loaded;
    DTI_NEED(dti_store_base(store), path);
    return dti_store_load(store, path, &(dt_load_desc){.strict = true}, &loaded);
}

DTI_PUBLIC(dt_store_load_matching,
           (dt_store * store, const char *path, const dt_load_desc *desc, int *loaded), store,
           DTI_OF(dt_store), (store, path, desc, loaded)) {
    int own;
    DTI_NEED(dti_store_base(store), path);
    return dti_store_load(store, path, desc ? desc : &(dt_load_desc){0}, loaded ? loaded : &own);
}
