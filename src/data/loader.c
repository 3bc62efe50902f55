/* Batches read ahead. Owns the order of an epoch, the cursor, and a ring of two slots of values:
 * one is the caller's, into the other one a thread reads the next batch. Without a thread there is
 * one slot, and the caller reads. Which rows a slot gets is settled on the caller's thread before
 * the other one sees it, so that one touches the slot, the order and the application's callback
 * and nothing else: no allocator, no logger, no error text.
 *
 * Refuses to know devices and replicas: it has a share of each batch, and whose it is is `share`'s
 * matter. The order is one array, made again when an epoch's first batch is read: by then the last
 * batch of the epoch before has been read, and a failed batch is tried again before any other. */

/* The application's callback runs on it, which may decode an image with buffers on its stack. */
#define DTI_LOADER_STACK ((size_t)2 * 1024 * 1024)

typedef enum dti_column_kind {
    DTI_COLUMN_ZERO,  /* no data: the callback makes the value, from zeros */
    DTI_COLUMN_WORDS, /* f32 to f32, i32 to i32 */
    DTI_COLUMN_U8_F32,
    DTI_COLUMN_U8_I32
} dti_column_kind;

typedef struct dti_loader_column {
    dti_column_kind kind;
    bool is_i32; /* what the input takes; else floats */
    size_t element_bytes;
    const char *data;
    size_t elements; /* of a sample */
    float scale, offset;
    int32_t pad;
} dti_loader_column;

typedef struct dti_loader_slot {
    dti_batch batch;
    void *values[DT_MAX_COLUMNS];
    uint32_t *sources; /* rows of the data set; the order may be the next epoch's by now */
    dt_result result;
    bool share_failed; /* result is about what `share` gave; else about `sample` */
    dt_sample sample;  /* the one that failed */
} dti_loader_slot;

struct dti_loader {
    dti_base *base;
    dti_loader_desc desc;
    dt_dataset data;
    dti_loader_column columns[DT_MAX_COLUMNS];
    int column_count;
    uint64_t batches; /* of an epoch */
    uint32_t *order;  /* [rows]; NULL = not shuffled */
    uint64_t order_epoch;
    bool ordered; /* order is order_epoch's */
    dti_loader_slot slots[2];
    int slot;   /* that is read into; with threaded the other one is the caller's */
    bool begun; /* the cursor's batch is in `slot`, or on its way there */
    uint64_t epoch, index, step; /* the cursor: of the batch that dti_loader_next gives next */

    bool threaded; /* the thread runs */
    dti_thread thread;
    _Atomic bool cancel; /* what is being read is of no use any more */
    dti_mutex lock;
    dti_cond wake, done; /* for the thread; for the caller */
    bool reading, stop;  /* under the lock */
};

/* ---- reading: on the thread, or on the caller's */

/* What rows [from, from + rows) of the epoch's order have in a column. */
static void dti_column_gather(const dti_loader_column *c, const uint32_t *order, uint64_t from,
                              uint32_t rows, void *values) {
    size_t cols = c->elements, bytes = cols * c->element_bytes;
    bool u8 = c->kind == DTI_COLUMN_U8_F32 || c->kind == DTI_COLUMN_U8_I32;
    const char *data = c->data;
    if (c->kind == DTI_COLUMN_ZERO) {
        memset(values, 0, rows * bytes);
        return;
    }
    if (order)
        order += from;
    else
        data += from * (u8 ? cols : bytes);
    if (c->kind == DTI_COLUMN_U8_F32)
        dt_rows_f32_from_u8(values, (const uint8_t *)data, order, rows, cols, c->scale, c->offset);
    else if (c->kind == DTI_COLUMN_U8_I32)
        dt_rows_i32_from_u8(values, (const uint8_t *)data, order, rows, cols);
    else if (!order)
        memcpy(values, data, rows * bytes);
    else
        for (uint32_t i = 0; i < rows; i++)
            memcpy((char *)values + i * bytes, data + order[i] * bytes, bytes);
}

/* Rows [begin, end) of a slot that stand for no sample. */
static void dti_column_pad(const dti_loader_column *c, uint32_t begin, uint32_t end, void *values) {
    if (begin >= end)
        return;
    if (!c->is_i32) {
        const size_t bytes = c->elements * c->element_bytes;
        memset((char *)values + begin * bytes, 0, (end - begin) * bytes);
        return;
    }
    for (size_t i = begin * c->elements; i < end * c->elements; i++)
        ((int32_t *)values)[i] = c->pad;
}

/* The callback for row i of the slot. */
static dt_result dti_loader_sample(dti_loader *l, dti_loader_slot *s, uint32_t i) {
    void *values[DT_MAX_COLUMNS] = {0};
    for (int c = 0; c < l->column_count; c++)
        values[c] = (char *)s->values[c] + i * l->columns[c].elements * l->columns[c].element_bytes;
    uint64_t at = s->batch.index * l->desc.batch + s->batch.first + i;
    s->sample = (dt_sample){.seed = l->desc.seed,
                            .epoch = s->batch.epoch,
                            .step = s->batch.step,
                            .row = l->order ? l->order[at] : at,
                            .position = (uint64_t)s->batch.first + i};
    dt_sample copy = s->sample; /* not the callback's to change */
    return l->data.sample(l->data.user, &copy, values);
}

static void dti_loader_order(dti_loader *l, uint64_t epoch) {
    if (!l->order || (l->ordered && l->order_epoch == epoch))
        return;
    dt_shuffle(l->order, (uint32_t)l->data.rows, l->desc.seed, epoch);
    l->order_epoch = epoch;
    l->ordered = true;
}

/* Fills a slot whose batch says which rows. A cancelled one is left as it is. */
static void dti_loader_read(dti_loader *l, dti_loader_slot *s) {
    unsigned saved = dti_fp_enter();
    const dti_batch *b = &s->batch;
    uint64_t from = b->index * l->desc.batch + b->first;
    uint32_t real = b->first < b->real ? DTI_MIN(b->count, b->real - b->first) : 0;
    s->result = DT_OK;
    dti_loader_order(l, b->epoch);
    for (uint32_t i = 0; i < real; i++)
        s->sources[i] = l->order ? l->order[from + i] : (uint32_t)(from + i);
    for (int c = 0; c < l->column_count && !atomic_load(&l->cancel); c++) {
        if (real)
            dti_column_gather(&l->columns[c], l->order, from, real, s->values[c]);
        dti_column_pad(&l->columns[c], real, b->count, s->values[c]);
    }
    for (uint32_t i = 0; l->data.sample && i < real && s->result == DT_OK; i++) {
        if (atomic_load(&l->cancel))
            break;
        s->result = dti_loader_sample(l, s, i);
    }
    dti_fp_leave(saved);
}

static void dti_loader_main(void *arg) {
    dti_loader *l = arg;
    dti_thread_name("dtrain-data");
    dti_mutex_lock(&l->lock);
    for (;;) {
        while (!l->reading && !l->stop)
            dti_cond_wait(&l->wake, &l->lock);
        if (l->stop)
            break;
        dti_mutex_unlock(&l->lock);
        dti_loader_read(l, &l->slots[l->slot]);
        dti_mutex_lock(&l->lock);
        l->reading = false;
        dti_cond_signal(&l->done);
    }
    dti_mutex_unlock(&l->lock);
}

/* ---- the caller's side */

/* Without one, the caller reads: the same batches, later. */
static void dti_loader_thread_start(dti_loader *l) {
    l->threaded = dti_thread_start(&l->thread, DTI_LOADER_STACK, dti_loader_main, l);
    if (!l->threaded) {
        dti_log(l->base, DT_LOG_WARNING,
                "the system gave no thread to read batches ahead: each step waits for its own");
    }
}

static void dti_loader_wait(dti_loader *l) {
    if (!l->threaded)
        return;
    dti_mutex_lock(&l->lock);
    while (l->reading)
        dti_cond_wait(&l->done, &l->lock);
    dti_mutex_unlock(&l->lock);
}

/* The batch at the cursor: which rows of the job's, and which of them are this process's. */
static dt_result dti_loader_describe(dti_loader *l, dti_loader_slot *s) {
    const dti_loader_desc *d = &l->desc;
    dti_batch *b = &s->batch;
    uint64_t left = l->data.rows - l->index * d->batch;
    uint32_t real = (uint32_t)DTI_MIN(left, d->batch);
    *b = (dti_batch){.epoch = l->epoch,
                     .index = l->index,
                     .step = l->step,
                     .rows = d->tail == DT_TAIL_PAD ? d->batch : real,
                     .real = real,
                     .last = l->index + 1 == l->batches};
    for (int c = 0; c < l->column_count; c++)
        b->values[c] = s->values[c];
    b->sources = s->sources;
    b->count = b->rows;
    if (!d->share)
        return DT_OK;
    d->share(d->user, b->rows, &b->first, &b->count);
    bool within = b->first <= b->rows && b->count <= b->rows - b->first && b->count <= d->share_max;
    return within ? DT_OK : DT_ERROR_INVALID;
}

/* The batch at the cursor begins to be read; a wrong share is told of by the next
 * dti_loader_next. */
static void dti_loader_begin(dti_loader *l) {
    dti_loader_slot *s = &l->slots[l->slot];
    l->begun = true;
    s->result = dti_loader_describe(l, s);
    s->share_failed = s->result != DT_OK;
    if (s->share_failed)
        return;
    atomic_store(&l->cancel, false);
    if (!l->threaded) {
        dti_loader_read(l, s);
        return;
    }
    dti_mutex_lock(&l->lock);
    l->reading = true;
    dti_cond_signal(&l->wake);
    dti_mutex_unlock(&l->lock);
}

static dt_result dti_loader_fail(dti_loader *l, const dti_loader_slot *s) {
    const dti_batch *b = &s->batch;
    if (s->share_failed) {
        return dti_fail(l->base, s->result,
                        "step %llu: a share of %u rows from row %u of a batch of %u is not within "
                        "it, or more than the %u that there is room for",
                        (unsigned long long)b->step, b->count, b->first, b->rows,
                        l->desc.share_max);
    }
    return dti_fail(l->base, s->result,
                    "dt_dataset.sample failed for row %llu (epoch %llu, step %llu, position %llu "
                    "in the batch): %s",
                    (unsigned long long)s->sample.row, (unsigned long long)b->epoch,
                    (unsigned long long)b->step, (unsigned long long)s->sample.position,
                    dt_result_text(s->result));
}

/* To batch `index`, which may be the number of batches, of an epoch. */
static void dti_loader_set_cursor(dti_loader *l, uint64_t epoch, uint64_t index, uint64_t step) {
    bool over = index == l->batches;
    l->epoch = epoch + over;
    l->index = over ? 0 : index;
    l->step = step;
}

static dt_result dti_loader_next(dti_loader *l, const dti_batch **out) {
    *out = NULL;
    if (!l->begun)
        dti_loader_begin(l);
    dti_loader_wait(l);
    l->begun = false;
    dti_loader_slot *s = &l->slots[l->slot];
    if (s->result != DT_OK)
        return dti_loader_fail(l, s);
    dti_loader_set_cursor(l, l->epoch, l->index + 1, l->step + 1);
    *out = &s->batch;
    if (l->threaded) {
        l->slot ^= 1;
        dti_loader_begin(l);
    }
    return DT_OK;
}

static dt_result dti_loader_seek(dti_loader *l, uint64_t epoch, uint64_t index, uint64_t step) {
    if (index > l->batches) {
        return dti_fail(l->base, DT_ERROR_INVALID, "batch %llu: an epoch has %llu",
                        (unsigned long long)index, (unsigned long long)l->batches);
    }
    atomic_store(&l->cancel, true);
    dti_loader_wait(l);
    l->begun = false;
    dti_loader_set_cursor(l, epoch, index, step);
    if (l->threaded)
        dti_loader_begin(l);
    return DT_OK;
}

static uint64_t dti_loader_epoch_batches(const dti_loader *l) {
    return l->batches;
}

/* ---- checks */

/* The input's own type, and U8 for f32 and i32. */
static dt_result dti_column_check_dtype(dti_base *base, const dt_column *column, int i,
                                        const char *name) {
    dt_dtype input = dt_tensor_dtype(column->input);
    const bool u8 = column->dtype == DT_U8 && !dti_is_half(input);
    if (!column->data || u8 || column->dtype == input) {
        bool scales = column->data && (column->scale != 0 || column->offset != 0);
        if (!scales || (column->dtype == DT_U8 && input == DT_F32))
            return DT_OK;
        return dti_fail(base, DT_ERROR_INVALID,
                        "dataset column %d ('%s'): scale and offset are for u8 data of an f32 "
                        "input alone",
                        i, name);
    }
    return dti_fail(base, DT_ERROR_INVALID,
                    "dataset column %d ('%s'): the input is %s, so its data is %s%s (dtype)", i,
                    name, dti_dtype_name(input), dti_dtype_name(input),
                    dti_is_half(input) ? "" : " or u8");
}

static dt_result dti_column_check(dti_base *base, const dt_dataset *data, int i) {
    const dt_column *column = &data->columns[i];
    const dti_node *n = dti_node_of(column->input);
    if (n->op != DTI_OP_INPUT || n->values) {
        return dti_fail(base, DT_ERROR_INVALID,
                        "dataset column %d: '%s' is no input; a column is for what dt_input made",
                        i, n->label ? n->label : dti_op_info_of(n->op)->name);
    }
    if (!n->samples) {
        return dti_fail(base, DT_ERROR_INVALID,
                        "dataset column %d: '%s' is shared by all samples (dt_input_shared), so "
                        "it has no rows",
                        i, n->label);
    }
    for (int other = 0; other < i; other++) {
        if (data->columns[other].input.graph != column->input.graph) {
            return dti_fail(base, DT_ERROR_INVALID,
                            "dataset columns %d and %d: inputs of different graphs", other, i);
        }
        if (data->columns[other].input.id == column->input.id) {
            return dti_fail(base, DT_ERROR_INVALID,
                            "dataset columns %d and %d: both are for the input '%s'", other, i,
                            n->label);
        }
    }
    if (!column->data && !data->sample) {
        return dti_fail(base, DT_ERROR_INVALID,
                        "dataset column %d ('%s'): data is NULL and there is no dt_dataset.sample "
                        "to fill it",
                        i, n->label);
    }
    if (!dti_fits_f32((double)column->scale) || !dti_fits_f32((double)column->offset))
        return dti_fail(base, DT_ERROR_INVALID,
                        "dataset column %d ('%s'): scale %g and offset %g must be finite", i,
                        n->label, (double)column->scale, (double)column->offset);
    return dti_column_check_dtype(base, column, i, n->label);
}

static int dti_dataset_columns(const dt_dataset *data) {
    int count = 0;
    while (count < DT_MAX_COLUMNS && !dti_is_nil(data->columns[count].input))
        count++;
    return count;
}

static dt_result dti_dataset_check(dti_base *base, const dt_dataset *data) {
    int count = dti_dataset_columns(data);
    for (int i = count; i < DT_MAX_COLUMNS; i++) {
        const dt_column *column = &data->columns[i];
        if (column->data || !dti_is_nil(column->input)) {
            return dti_fail(base, DT_ERROR_INVALID,
                            "dataset column %d: its input is nil; what made it failed (see "
                            "dt_graph_error), or it was left out",
                            count);
        }
    }
    if (count == 0)
        return dti_fail(base, DT_ERROR_INVALID, "the dataset has no columns (no input, or nil)");
    for (int i = 0; i < count; i++) {
        dt_result result = dti_column_check(base, data, i);
        if (result != DT_OK)
            return result;
    }
    return DT_OK;
}

static dt_result dti_loader_check(dti_base *base, const dti_loader_desc *desc) {
    uint64_t rows = desc->data->rows;
    unsigned long long shown = rows;
    if (rows == 0)
        return dti_fail(base, DT_ERROR_INVALID, "the dataset has no rows (dt_dataset.rows is 0)");
    if (rows > UINT32_MAX) {
        return dti_fail(base, DT_ERROR_INVALID, "the dataset has %llu rows: the most is %lu", shown,
                        (unsigned long)UINT32_MAX);
    }
    if (desc->batch == 0)
        return dti_fail(base, DT_ERROR_INVALID, "a batch of 0 rows");
    if ((unsigned)desc->tail > DT_TAIL_PAD)
        return dti_fail(base, DT_ERROR_INVALID, "%d is no dt_tail", (int)desc->tail);
    if (desc->tail == DT_TAIL_DROP && rows < desc->batch) {
        return dti_fail(base, DT_ERROR_INVALID,
                        "the dataset has %llu rows, less than a batch of %u, and DT_TAIL_DROP "
                        "leaves none of them; use DT_TAIL_KEEP or a smaller batch",
                        shown, desc->batch);
    }
    return dti_dataset_check(base, desc->data);
}

/* ---- create, destroy */

static dti_loader_column dti_loader_column_of(const dt_column *from, int32_t pad) {
    bool is_i32 = dt_tensor_dtype(from->input) == DT_I32;
    dti_loader_column c = {.is_i32 = is_i32,
                           .element_bytes = dti_dtype_bytes(dt_tensor_dtype(from->input)),
                           .data = from->data,
                           .elements = (size_t)dti_shape_elements(dt_tensor_shape(from->input)),
                           .scale = (float)dti_or((double)from->scale, 1.0),
                           .offset = from->offset,
                           .pad = pad};
    if (from->data && from->dtype == DT_U8)
        c.kind = is_i32 ? DTI_COLUMN_U8_I32 : DTI_COLUMN_U8_F32;
    else if (from->data)
        c.kind = DTI_COLUMN_WORDS;
    return c;
}

/* All that the loader will ever need. */
static dt_result dti_loader_alloc(dti_loader *l) {
    const dti_loader_desc *d = &l->desc;
    uint64_t most = d->tail == DT_TAIL_PAD ? d->batch : DTI_MIN(d->batch, l->data.rows);
    size_t rows = (size_t)(d->share ? DTI_MIN(d->share_max, most) : most);
    if (d->shuffle) {
        l->order = dti_alloc_array(l->base, (size_t)l->data.rows, sizeof *l->order);
        if (!l->order)
            return DT_ERROR_MEMORY;
    }
    for (int s = 0; s < (d->threaded ? 2 : 1); s++) {
        l->slots[s].sources = dti_alloc_array(l->base, rows, sizeof(uint32_t));
        if (!l->slots[s].sources)
            return DT_ERROR_MEMORY;
        for (int c = 0; c < l->column_count; c++) {
            void *values = dti_alloc_array(l->base, rows,
                                           l->columns[c].elements * l->columns[c].element_bytes);
            if (!values)
                return DT_ERROR_MEMORY;
            l->slots[s].values[c] = values;
        }
    }
    return DT_OK;
}

static dt_result dti_loader_create(dti_base *base, const dti_loader_desc *desc, dti_loader **out) {
    *out = NULL;
    dt_result result = dti_loader_check(base, desc);
    if (result != DT_OK)
        return result;
    dti_loader *l = dti_alloc(base, sizeof *l);
    if (!l)
        return DT_ERROR_MEMORY;
    l->base = base;
    l->desc = *desc;
    l->data = *desc->data;
    l->desc.data = &l->data;
    l->column_count = dti_dataset_columns(&l->data);
    for (int c = 0; c < l->column_count; c++)
        l->columns[c] = dti_loader_column_of(&l->data.columns[c], desc->pad[c]);
    uint64_t rest = l->data.rows % desc->batch;
    l->batches = l->data.rows / desc->batch + (rest && desc->tail != DT_TAIL_DROP);
    dti_mutex_init(&l->lock);
    dti_cond_init(&l->wake);
    dti_cond_init(&l->done);
    result = dti_loader_alloc(l);
    if (result != DT_OK) {
        dti_loader_destroy(l);
        return result;
    }
    if (desc->threaded)
        dti_loader_thread_start(l);
    *out = l;
    return DT_OK;
}

static void dti_loader_stop(dti_loader *l) {
    if (l->threaded) {
        atomic_store(&l->cancel, true);
        dti_mutex_lock(&l->lock);
        l->stop = true;
        dti_cond_signal(&l->wake);
        dti_mutex_unlock(&l->lock);
        dti_thread_join(&l->thread);
    }
    dti_cond_destroy(&l->done);
    dti_cond_destroy(&l->wake);
    dti_mutex_destroy(&l->lock);
}

static void dti_loader_destroy(dti_loader *l) {
    if (!l)
        return;
    if (!dti_forked(l->base))
        dti_loader_stop(l);
    for (int s = 0; s < 2; s++) {
        dti_free(l->base, l->slots[s].sources);
        for (int c = 0; c < DT_MAX_COLUMNS; c++)
            dti_free(l->base, l->slots[s].values[c]);
    }
    dti_free(l->base, l->order);
    dti_free(l->base, l);
}
