/* A store's state to and from the tensors of a checkpoint. It owns which tensors there are and
 * where they lie in the arenas; the caller owns the words beside them. Everything is compared with
 * the store before the first value is written. */

static uint32_t dti_state_moments(const dt_store *s) {
    return s->moments;
}

/* ---- the list */

/* Whether it is one of the best weights. */
static bool dti_state_is_best(const dti_state_file *f, uint32_t item) {
    return f->best && item >= (uint32_t)f->tensors - f->store->layout.param_count;
}

static uint32_t dti_state_array(const dti_state_file *f, uint32_t item) {
    return dti_state_is_best(f, item) ? 0 : item / f->store->layout.param_count;
}

static dt_result dti_state_item(dti_state_file *f, uint32_t moment, const dti_param *param,
                                bool best) {
    const dti_node *node = &f->store->graph->nodes[param->node];
    const size_t size = strlen(node->label) + 32;
    char *name = f->names[f->count] = dti_alloc(f->base, size);
    DTI_HAVE(name);
    f->tensors = f->count + 1;
    if (best)
        snprintf(name, size, DTI_STATE_BEST_NAME "%s", node->label);
    else if (moment)
        snprintf(name, size, DTI_STATE_OWN "moment%u.%s", moment, node->label);
    else
        snprintf(name, size, "%s", node->label);
    const dt_state_dtype type = best ? DT_STATE_F32 : dti_stored_type(f->store, moment, param);
    const dt_dtype dtype = type == DT_STATE_BF16 ? DT_BF16 : DT_F32;
    dti_safetensors_item *item = &f->items[f->count];
    *item = (dti_safetensors_item){name, dti_dtype_file_name(dtype), node->shape.rank,
                                   node->shape.dim, dti_stored_bytes(type, param->elements)};
    if (type == DT_STATE_8BIT) { /* blocks as they are: codes, then a scale */
        f->raw[f->count] = (int64_t)item->bytes;
        item->dtype = dti_dtype_file_name(DT_U8);
        item->rank = 1;
        item->dim = &f->raw[f->count];
    }
    f->count++;
    return DT_OK;
}

static dt_result dti_state_open(dti_state_file *f, uint32_t moments, const char *words_name,
                                uint32_t words) {
    const dt_store *s = f->store;
    const uint32_t n = s->layout.param_count, all = n * (1 + moments + f->best);
    f->items = dti_alloc_array(f->base, (size_t)all + 3 + f->extra_count, sizeof *f->items);
    f->names = dti_alloc_array(f->base, (size_t)all + 1, sizeof *f->names);
    f->raw = dti_alloc_array(f->base, (size_t)all + 1, sizeof *f->raw);
    f->t = dti_alloc_array(f->base, (size_t)n + 1, sizeof *f->t);
    f->chunk = dti_alloc(f->base, (size_t)DTI_WEIGHTS_CHUNK);
    DTI_HAVE(f->items && f->names && f->raw && f->t && f->chunk && f->model.ok);
    for (uint32_t i = 0; i < all; i++)
        DTI_TRY(dti_state_item(f, i / n, &s->layout.params[i % n], i / n > moments));
    f->sizes[0] = n;
    f->sizes[1] = words;
    f->sizes[2] = (int64_t)f->model.size;
    dti_safetensors_item *last = f->items + f->count;
    last[0] = (dti_safetensors_item){"dtrain.t", "U32", 1, &f->sizes[0], sizeof *f->t * n};
    last[1] = (dti_safetensors_item){words_name, "U64", 1, &f->sizes[1], 8ull * words};
    last[2] = (dti_safetensors_item){"dtrain.model", "U8", 1, &f->sizes[2], f->model.size};
    f->count += 3;
    for (uint32_t i = 0; i < f->extra_count; i++) {
        const dti_state_extra *x = &f->extras[i];
        f->items[f->count++] = (dti_safetensors_item){x->name, x->dtype, 1, &x->size, x->bytes};
    }
    return DT_OK;
}

static void dti_state_close(dti_state_file *f) {
    for (int i = 0; f->names && i < f->tensors; i++)
        dti_free(f->base, f->names[i]);
    DTI_FREE(f->base, f->names, f->items, f->raw, f->t, f->chunk);
    dti_text_free(&f->model);
}

/* Which moment tensor `item` is, from 1 on; 0: a parameter. *at: its first element in the arena. */
static uint32_t dti_state_kind_of(const dt_store *s, uint32_t item, uint64_t *at) {
    *at = s->layout.params[item % s->layout.param_count].offset;
    return item / s->layout.param_count;
}

/* ---- writing */

/* bf16 moments that replicas here shard: each is a float and comes back exactly. */
static dt_result dti_state_read_shards(const dti_state_file *f, uint32_t array, uint64_t at,
                                       uint64_t n, uint16_t *to) {
    float few[DTI_BLOCK];
    for (uint64_t some; n; at += some, to += some, n -= some) {
        some = DTI_MIN(n, (uint64_t)DTI_BLOCK);
        DTI_TRY(dti_store_array_read(f->store, array, at, some, few));
        for (uint64_t k = 0; k < some; k++)
            to[k] = dti_bf16_from_f32(few[k]);
    }
    return DT_OK;
}

static dt_result dti_state_copy(void *user, int item, uint64_t offset, void *to, size_t bytes) {
    const dti_state_file *f = user;
    dt_store *s = f->store;
    uint64_t first;
    if (item > f->tensors) {
        const char *from = item == f->tensors + 1   ? (const char *)f->words
                           : item == f->tensors + 2 ? f->model.data
                                                    : f->extras[item - f->tensors - 3].data;
        memcpy(to, from + offset, bytes);
        return DT_OK;
    }
    if (item == f->tensors && f->counts) {
        memcpy(to, (const char *)f->counts + offset, bytes);
        return DT_OK;
    }
    if (item == f->tensors && s->memories[DTI_ARENA_STATE])
        return dti_store_counts(s, offset / DTI_WORD_BYTES, bytes / DTI_WORD_BYTES, to, false);
    if (item == f->tensors) { /* counts, before an optimizer has come */
        memset(to, 0, bytes);
        return DT_OK;
    }
    const uint32_t kind = dti_state_kind_of(s, (uint32_t)item, &first);
    const dti_param *p = &s->layout.params[(uint32_t)item % s->layout.param_count];
    if (dti_state_is_best(f, (uint32_t)item)) {
        memcpy(to, (const char *)(f->best_values + first) + offset, bytes);
        return DT_OK;
    }
    if (dti_store_is_stored(s, kind) && s->layout.parted && kind)
        return dti_state_read_shards(f, kind, first + offset / 2, bytes / 2, to);
    if (dti_store_is_stored(s, kind))
        return dti_stored_raw(s, kind, p, offset, to, bytes, false);
    first += offset / dti_arena_bytes(1); /* pieces are of whole elements */
    return dti_store_array_read(s, kind, first, bytes / dti_arena_bytes(1), to);
}

/* Tensors whose first NaN or infinity is reported: parameters and moments. */
static int dti_state_warned(const dti_state_file *f) {
    return f->store->allow_nonfinite ? 0 : f->tensors;
}

static dt_result dti_state_read(void *user, int item, uint64_t offset, void *to, size_t bytes) {
    dti_state_file *f = user;
    const dt_result result = dti_state_copy(f, item, offset, to, bytes);
    if (!result && item < dti_state_warned(f) && !f->told)
        f->told = dti_checkpoint_warn(f->base, &f->items[item], offset, to, bytes);
    return result;
}

static dt_result dti_state_push(dti_state_file *f, dti_checkpoint_file *file, int item, uint64_t at,
                                uint64_t n, float *values) {
    const dt_dtype dtype = !strcmp(f->items[item].dtype, "BF16") ? DT_BF16 : DT_F32;
    const uint64_t each = dti_dtype_bytes(dtype);
    for (uint64_t i = 0; i < n && dtype == DT_BF16; i++) {
        const uint16_t half = dti_bf16_from_f32(values[i]);
        memcpy((char *)values + i * each, &half, sizeof half);
    }
    if (item < dti_state_warned(f) && !f->copies && !f->told)
        f->told =
            dti_checkpoint_warn(f->base, &f->items[item], at * each, values, (size_t)(n * each));
    return dti_checkpoint_add(file, values, (size_t)(n * each));
}

/* ---- reading */

static dt_result dti_state_words_read(dti_state_file *f, const char *path, const dti_checkpoint *c,
                                      const char *name, uint32_t words) {
    const dt_safetensors_tensor *x = dti_checkpoint_find(c, name);
    if (!x || x->bytes != 8ull * words || strcmp(x->dtype, "U64") != 0)
        return dti_fail(f->base, DT_ERROR_FORMAT, "%s: it has no \"%s\" of %u values: %s", path,
                        name, words, "not such a file, or one of another version");
    return dti_checkpoint_read(c, dti_checkpoint_index(c, name), 0, x->bytes, f->words);
}

/* A tensor's bytes in memory, with a zero after them. Free it. */
static dt_result dti_state_take(dti_base *base, const dti_checkpoint *c, const char *name,
                                char **out, size_t *size) {
    const dt_safetensors_tensor *x = dti_checkpoint_find(c, name);
    *size = x ? (size_t)x->bytes : 0;
    *out = dti_alloc(base, *size + 1);
    DTI_HAVE(*out);
    return x ? dti_checkpoint_read(c, dti_checkpoint_index(c, name), 0, x->bytes, *out) : DT_OK;
}

static dt_result dti_state_contract(dti_state_file *f, const char *path, const dti_checkpoint *c,
                                    bool first) {
    char *own;
    size_t size;
    dti_text old = dti_text_open(f->base);
    dt_result result = dti_state_take(f->base, c, "dtrain.model", &own, &size);
    const char *theirs = own;
    if (!result && first) {
        dti_model_text_first(theirs, size, &old);
        theirs = old.data;
        size = old.size;
        result = old.ok ? DT_OK : DT_ERROR_MEMORY;
    }
    if (!result)
        result = dti_model_text_contract(f->base, path, theirs, size, &f->model);
    if (!result)
        dti_model_text_warn(f->base, path, theirs, size, &f->model);
    dti_free(f->base, own);
    dti_text_free(&old);
    return result;
}

static bool dti_state_same(const dti_safetensors_item *item, const dt_safetensors_tensor *x) {
    return x && x->bytes == item->bytes && !strcmp(x->dtype, item->dtype) &&
           x->rank == item->rank && !memcmp(x->dim, item->dim, (size_t)x->rank * sizeof x->dim[0]);
}

static int dti_state_number(const dti_state_file *f, const dti_checkpoint *c, int item) {
    const dt_safetensors_tensor *here = dti_checkpoint_at(c, item);
    if (here && !strcmp(here->name, f->items[item].name))
        return item;
    return dti_weights_find(c, f->items[item].name);
}

static dt_result dti_state_match(const dti_state_file *f, const char *path,
                                 const dti_checkpoint *c) {
    const int params = (int)f->store->layout.param_count;
    for (int i = 0; i <= f->tensors; i++) {
        const dt_safetensors_tensor *x = dti_checkpoint_find(c, f->items[i].name);
        if (x && strcmp(x->dtype, f->items[i].dtype))
            return dti_fail(
                f->base, DT_ERROR_INVALID,
                "%s: '%s' is %s in the file and %s here; use the file's .parameter_dtype and "
                ".state_dtype, or load only weights, by dt_store_load or a trainer's .load",
                path, x->name, x->dtype, f->items[i].dtype);
        if (!dti_state_same(&f->items[i], x) || (i < params && dti_state_number(f, c, i) >= params))
            return dti_fail(
                f->base, DT_ERROR_FORMAT,
                "%s: '%s' is missing, has another shape or type, or is in a wrong place", path,
                f->items[i].name);
    }
    return DT_OK;
}

static dt_result dti_state_counts(const dti_state_file *f, const dti_checkpoint *c,
                                  uint32_t *counts) {
    const int index = dti_checkpoint_index(c, "dtrain.t");
    for (uint32_t i = 0; i < f->store->layout.param_count; i++)
        DTI_TRY(dti_checkpoint_read(c, index,
                                    sizeof *counts * (uint64_t)dti_state_number(f, c, (int)i),
                                    sizeof *counts, &counts[i]));
    return DT_OK;
}

/* Bytes of one unit: a float, or a block of moments in 8 bits with its scale at its end. 0: the
 * tensor has neither. */
static uint64_t dti_state_unit(const dt_safetensors_tensor *x, dt_dtype *dtype) {
    const bool moment =
        !strncmp(x->name, DTI_STATE_OWN "moment", sizeof DTI_STATE_OWN "moment" - 1) &&
        !strcmp(x->dtype, "U8");
    *dtype = DT_U8;
    if (moment)
        return dti_stored_bytes(DT_STATE_8BIT, DTI_BLOCK);
    return dti_weight_floats(x, dtype) ? dti_dtype_bytes(*dtype) : 0;
}

/* The first of `count` units that has a NaN or an infinity; count: all are finite. */
static uint64_t dti_state_infinite(const char *units, uint64_t unit, dt_dtype dtype,
                                   uint64_t count) {
    if (dtype != DT_U8)
        return dti_first_infinite(units, dtype, count);
    for (uint64_t i = 0; i < count; i++)
        if (dti_first_infinite(units + i * unit + DTI_BLOCK, DT_F32, 1) == 0)
            return i;
    return count;
}

static dt_result dti_state_finite_one(const dti_checkpoint *c, int index, const char *path,
                                      const char *desc, char *buffer) {
    const dt_safetensors_tensor *x = dti_checkpoint_at(c, index);
    dt_dtype dtype;
    const uint64_t unit = dti_state_unit(x, &dtype), units = unit ? x->bytes / unit : 0;
    for (uint64_t at = 0, some; at < units; at += some) {
        some = DTI_MIN(units - at, DTI_WEIGHTS_CHUNK / unit);
        DTI_TRY(dti_checkpoint_read(c, index, at * unit, some * unit, buffer));
        const uint64_t bad = dti_state_infinite(buffer, unit, dtype, some);
        if (bad < some)
            return dti_fail_infinite(c->base, DT_ERROR_FORMAT, path, x->name,
                                     (at + bad) * (dtype == DT_U8 ? DTI_BLOCK : 1), desc);
    }
    return DT_OK;
}

static dt_result dti_state_finite(const dti_checkpoint *c, const char *path, const char *desc) {
    char *buffer = dti_alloc(c->base, (size_t)DTI_WEIGHTS_CHUNK);
    dt_result result = buffer ? DT_OK : DT_ERROR_MEMORY;
    for (int i = 0; i < (int)c->count && !result; i++)
        if (dti_checkpoint_is_checked(c, i))
            result = dti_state_finite_one(c, i, path, desc, buffer);
    dti_free(c->base, buffer);
    return result;
}

static dt_result dti_state_put_one(const dti_state_file *f, const dti_checkpoint *c,
                                   uint32_t item) {
    dt_store *s = f->store;
    const int index = dti_checkpoint_index(c, f->items[item].name);
    const uint64_t bytes = dti_checkpoint_at(c, index)->bytes;
    uint64_t first;
    const uint32_t kind = dti_state_kind_of(s, item, &first);
    const dti_param *p = &s->layout.params[item % s->layout.param_count];
    for (uint64_t at = 0; at < bytes; at += DTI_WEIGHTS_CHUNK) {
        const uint64_t some = DTI_MIN(DTI_WEIGHTS_CHUNK, bytes - at), one = dti_arena_bytes(1);
        DTI_TRY(dti_checkpoint_read(c, index, at, some, f->chunk));
        DTI_TRY(dti_store_is_stored(s, kind)
                    ? dti_stored_raw(s, kind, p, at, f->chunk, (size_t)some, true)
                    : dti_store_array_write(s, kind, first + at / one, some / one, f->chunk));
    }
    return DT_OK;
}

static dt_result dti_state_put(const dti_state_file *f, const dti_checkpoint *c) {
    const dt_store *s = f->store;
    dti_store_unbound(f->store);
    if (s->memories[DTI_ARENA_STATE]) {
        DTI_TRY(dti_state_counts(f, c, f->t));
        DTI_TRY(dti_store_counts(s, 0, s->layout.param_count, f->t, true));
    }
    for (uint32_t i = 0; i < (uint32_t)f->tensors; i++)
        DTI_TRY(dti_state_put_one(f, c, i));
    return DT_OK;
}
