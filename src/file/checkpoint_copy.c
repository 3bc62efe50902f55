/* A checkpoint that a thread writes while training goes on. The calling thread copies the items and
 * all bytes into one block; the thread sees nothing else. The application's allocator and logger
 * are called only on its own threads. So the thread has malloc's memory, and the thread that waits
 * for it logs its warnings. */

#define DTI_COPY_ALIGN 64u /* of each tensor's bytes */

struct dti_checkpoint_copy {
    dti_base base; /* the thread's */
    dti_thread thread;
    bool started;
    char folder[DTI_CHECKPOINT_PATH];
    uint64_t step;
    int keep, count;
    int finite;   /* tensors that are to be so, the first ones */
    char *memory; /* items, where their bytes are, dimensions, names, bytes */
    size_t size;
    dti_safetensors_item *items;
    char **bytes;
    dti_checkpoint_parts *parts; /* NULL: a file of a folder */
    dt_result result;
    char warnings[4 * DT_MAX_REASON_BYTES];
};

/* An error is the thread's result. */
static void dti_checkpoint_copy_log(void *user, dt_log_level level, const char *message) {
    dti_checkpoint_copy *c = user;
    const size_t used = strlen(c->warnings);
    if (level == DT_LOG_WARNING)
        snprintf(c->warnings + used, sizeof c->warnings - used, "%s%s", used ? "; " : "", message);
}

static dti_checkpoint_copy *dti_checkpoint_copy_make(dti_base *base) {
    dti_checkpoint_copy *c = dti_alloc(base, sizeof *c);
    if (!c)
        return NULL;
    dti_base_init(&c->base, NULL, &(dt_logger){dti_checkpoint_copy_log, c});
    return c;
}

/* ---- the copy */

static uint64_t dti_checkpoint_copy_size(const dti_safetensors_item *items, int count) {
    uint64_t size = (uint64_t)(count + 1) * (sizeof *items + sizeof(char *));
    for (int i = 0; i < count; i++)
        size += (uint64_t)items[i].rank * sizeof *items[i].dim + strlen(items[i].name) + 1 +
                items[i].bytes + DTI_COPY_ALIGN;
    return size;
}

static dt_result dti_checkpoint_copy_room(dti_base *base, dti_checkpoint_copy *c, uint64_t size) {
    if (size <= c->size)
        return DT_OK;
    dti_free(base, c->memory);
    c->size = 0;
    c->memory = size < SIZE_MAX ? dti_alloc(base, (size_t)size) : NULL;
    DTI_HAVE(c->memory);
    c->size = (size_t)size;
    return DT_OK;
}

/* Aligned items go first. */
static void dti_checkpoint_copy_items(dti_checkpoint_copy *c, const dti_safetensors_item *items) {
    const size_t count = (size_t)c->count;
    c->items = (dti_safetensors_item *)(void *)c->memory;
    c->bytes = (char **)(void *)(c->items + count);
    int64_t *dim = (int64_t *)(void *)(c->bytes + (count + 1) / 2 * 2); /* aligned on 32 bits too */
    for (size_t i = 0; i < count; i++) {
        c->items[i] = items[i];
        c->items[i].dim = dim;
        for (int k = 0; k < items[i].rank; k++)
            *dim++ = items[i].dim[k];
    }
    char *to = (char *)dim;
    for (size_t i = 0; i < count; i++) {
        const size_t size = strlen(items[i].name) + 1;
        c->items[i].name = memcpy(to, items[i].name, size);
        to += size;
    }
    for (size_t i = 0; i < count; i++) {
        to += -(uintptr_t)to % DTI_COPY_ALIGN;
        c->bytes[i] = to;
        to += items[i].bytes;
    }
}

static void dti_checkpoint_copy_put(dti_checkpoint_copy *c, int item, uint64_t at, const void *data,
                                    size_t bytes) {
    memcpy(c->bytes[item] + at, data, bytes);
}

/* ---- the thread */

static dt_result dti_checkpoint_copy_read(void *user, int item, uint64_t offset, void *to,
                                          size_t bytes) {
    dti_checkpoint_copy *c = user;
    memcpy(to, c->bytes[item] + offset, bytes);
    if (item < c->finite && dti_checkpoint_warn(&c->base, &c->items[item], offset, to, bytes))
        c->finite = 0; /* the first one is reported */
    return DT_OK;
}

/* This rank's part. Rank 0 waits for the others'. */
static dt_result dti_checkpoint_copy_part(dti_checkpoint_copy *c) {
    dti_checkpoint_file *f;
    dt_result result = dti_checkpoint_part_begin(&c->base, c->parts, c->items, c->count, &f);
    if (!result)
        result = dti_checkpoint_end(f, dti_checkpoint_fill(f, dti_checkpoint_copy_read, c));
    return c->parts->rank ? result : dti_checkpoint_parts_end(&c->base, c->parts, result);
}

static dti_base *dti_checkpoint_copy_parts(dti_checkpoint_copy *c, dti_checkpoint_parts *parts) {
    c->parts = parts;
    return &c->base;
}

static void dti_checkpoint_copy_main(void *user) {
    dti_checkpoint_copy *c = user;
    c->result = c->parts
                    ? dti_checkpoint_copy_part(c)
                    : dti_checkpoint_folder_write(&c->base, c->folder, c->step, c->keep, c->items,
                                                  c->count, dti_checkpoint_copy_read, c);
}

static dt_result dti_checkpoint_copy_told(dti_base *base, dti_checkpoint_copy *c) {
    if (c->warnings[0])
        dti_log(base, DT_LOG_WARNING, "%s", c->warnings);
    c->warnings[0] = '\0';
    return c->result ? dti_fail(base, c->result, "%s", c->base.error) : DT_OK;
}

static dt_result dti_checkpoint_copy_start(dti_base *base, dti_checkpoint_copy *c) {
    c->started = dti_thread_start(&c->thread, DTI_WORKER_STACK, dti_checkpoint_copy_main, c);
    if (c->started)
        return DT_OK;
    dti_checkpoint_copy_main(c);
    return dti_checkpoint_copy_told(base, c);
}

static dt_result dti_checkpoint_copy_begin(dti_base *base, dti_checkpoint_copy **copy,
                                           const char *folder, uint64_t step, int keep,
                                           const dti_safetensors_item *items, int count, int finite,
                                           dti_checkpoint_file **out) {
    dti_checkpoint_copy *c = *copy = *copy ? *copy : dti_checkpoint_copy_make(base);
    *out = NULL;
    DTI_HAVE(c);
    DTI_TRY(dti_checkpoint_copy_room(base, c, dti_checkpoint_copy_size(items, count)));
    snprintf(c->folder, sizeof c->folder, "%s", folder);
    c->step = step;
    c->keep = keep;
    c->count = count;
    c->finite = finite;
    c->parts = NULL;
    dti_checkpoint_copy_items(c, items);
    *out = dti_checkpoint_file_make(base, items, count);
    DTI_HAVE(*out);
    (*out)->copy = c;
    return DT_OK;
}

static dt_result dti_checkpoint_copy_wait(dti_base *base, dti_checkpoint_copy *c) {
    if (!c || !c->started)
        return DT_OK;
    dti_thread_join(&c->thread);
    c->started = false;
    return dti_checkpoint_copy_told(base, c);
}

static void dti_checkpoint_copy_free(dti_base *base, dti_checkpoint_copy *c) {
    if (c)
        DTI_FREE(base, c->memory, c);
}
