/* Batches read ahead. Owns the order of an epoch, the cursor, and a ring of two slots of values.
 * One slot is the caller's; into the other, the threads of dt_dataset.threads read the next batch.
 * Without a thread there is one slot, and the caller reads. The caller's thread decides which rows
 * a slot gets before the others see it. So those use only the slot, the order and the application's
 * callback: no allocator, no logger, no error text.
 *
 * It must not know devices and replicas: `share` decides which share of each batch it reads. The
 * order is one array, made again when an epoch's first batch is read. By then the last batch of the
 * epoch before has been read. A failed batch is tried again before any other. */

/* The application's callback runs on it, which may decode an image with buffers on its stack. */
#define DTI_LOADER_STACK ((size_t)2 * 1024 * 1024)
#define DTI_LOADER_PIECE 64u /* rows that a thread copies at a time */

typedef struct dti_loader_slot {
    dti_batch batch;
    void *values[DT_MAX_COLUMNS];
    uint32_t *sources; /* rows of the data set; the order may be the next epoch's by now */
    uint32_t *places;  /* of a stream's samples, in its buffer; NULL: the sources are places too */
    uint32_t real;     /* samples of this process's rows: the rest fills up */
    dt_result result;
    bool share_failed;       /* `result` is an error of `share` */
    bool stream_failed;      /* about the stream; else about a sample */
    _Atomic uint32_t failed; /* the row that failed; UINT32_MAX: none */
    dt_sample sample;        /* the sample, and the text of its error */
    char why[512];
} dti_loader_slot;

typedef struct dti_loader_worker {
    dti_loader *loader;
    dti_thread thread;
    char *scratch;
} dti_loader_worker;

struct dti_loader {
    dti_base *base;
    dti_loader_desc desc;
    dti_rows rows;
    bool each;        /* samples are made one by one; else columns are copied in pieces */
    uint64_t batches; /* of an epoch */
    dti_sampler order;
    dt_dataset stream_data;    /* a set whose columns are the stream's buffer */
    dti_stream_buffer *stream; /* NULL: the set has no stream */
    char *scratch;             /* of the workers' augmentation, one after the other */
    dti_loader_slot slots[2];
    int slot;                    /* that is read into; with threads the other one is the caller's */
    bool begun;                  /* the cursor's batch is in `slot`, or on its way there */
    uint64_t epoch, index, step; /* the cursor: of the batch that dti_loader_next gives next */

    dti_loader_worker workers[DTI_LOADER_THREADS_MAX]; /* without threads the caller is the first */
    int threads;                                       /* that run */
    _Atomic bool cancel;    /* the batch that is being read is not needed any more */
    _Atomic uint64_t taken; /* rows of the slot that is being read */
    dti_mutex lock;         /* of the following members */
    dti_cond wake, done;    /* for the threads; for the caller */
    /* the number of slots to read; of the newest that has its rows, or is to get them */
    uint64_t turn, prepared, preparing;
    int working; /* threads that have not ended this turn */
    bool stop;
};

/* ---- reading: on the threads, or on the caller's */

static bool dti_loader_cancelled(dti_loader *l, dti_loader_slot *s, uint32_t row) {
    return atomic_load(&l->cancel) || row > atomic_load(&s->failed);
}

/* Of several rows that fail at once, the first one of the batch is reported. Rows are taken in
 * order, so all before it are read. */
static void dti_loader_row_failed(dti_loader *l, dti_loader_slot *s, uint32_t i, dt_result result,
                                  const dt_sample *sample) {
    dti_mutex_lock(&l->lock);
    if (i < atomic_load(&s->failed)) {
        atomic_store(&s->failed, i);
        s->result = result;
        s->sample = *sample;
        snprintf(s->why, sizeof s->why, "%s", sample->error);
    }
    dti_mutex_unlock(&l->lock);
}

/* Row i of the slot, with the callback and augmentation. */
static void dti_loader_sample(dti_loader *l, dti_loader_slot *s, uint32_t i, char *scratch) {
    void *values[DT_MAX_COLUMNS] = {0};
    char why[sizeof s->why] = "";
    uint64_t row = s->sources[i];
    const uint64_t at = s->places ? s->places[i] : row;
    if (s->places)
        row = l->stream->row[at];
    for (int c = 0; c < l->rows.column_count; c++)
        values[c] = (char *)s->values[c] + i * dti_column_bytes(&l->rows.columns[c]);
    const dt_sample sample = {.seed = l->desc.seed,
                              .epoch = s->batch.epoch,
                              .step = s->batch.step,
                              .row = row,
                              .position = (uint64_t)s->batch.first + i,
                              .error = why,
                              .error_bytes = sizeof why};
    const dt_result result = dti_rows_sample(&l->rows, &sample, at, values, scratch);
    why[sizeof why - 1] = 0;
    if (result)
        dti_loader_row_failed(l, s, i, result, &sample);
}

/* Reads rows until no row is left; runs on each of the threads at once. */
static void dti_loader_take(dti_loader *l, dti_loader_slot *s, char *scratch) {
    const uint32_t step = l->each ? 1 : DTI_LOADER_PIECE;
    const uint64_t from = s->batch.index * l->desc.batch + s->batch.first;
    const bool in_turn = !l->order.rows && !l->desc.data->indices && !s->places;
    const uint32_t *rows = s->places ? s->places : s->sources;
    for (;;) {
        const uint64_t first = atomic_fetch_add(&l->taken, step);
        if (first >= s->real || dti_loader_cancelled(l, s, (uint32_t)first))
            return;
        const uint32_t i = (uint32_t)first, count = DTI_MIN(step, s->real - i);
        if (l->each) {
            dti_loader_sample(l, s, i, scratch);
            continue;
        }
        for (int c = 0; c < l->rows.column_count; c++) {
            const dti_loader_column *column = &l->rows.columns[c];
            dti_column_gather(column, in_turn ? NULL : rows + i, from + i, count,
                              (char *)s->values[c] + i * dti_column_bytes(column));
        }
    }
}

/* The places of the stream's samples for the batch; else the error. */
static void dti_loader_stream(dti_loader *l, dti_loader_slot *s) {
    const dti_batch *b = &s->batch;
    const dt_dataset *data = l->desc.data;
    const bool drops = l->desc.tail == DT_TAIL_DROP;
    const uint64_t each = drops ? l->batches * l->desc.batch : data->rows;
    const uint64_t first = b->epoch * each + b->index * l->desc.batch;
    l->stream->why = s->why;
    l->stream->why_bytes = sizeof s->why;
    s->result = dti_shuffle_fill(l->stream, first, b->real);
    atomic_store(&l->stream->since, UINT64_MAX);
    s->stream_failed = s->result != DT_OK;
    if (s->stream_failed)
        s->real = 0;
    for (uint32_t i = 0; i < s->real; i++) {
        uint64_t row;
        s->places[i] = dti_shuffle_place(l->stream, first + b->first + i, &row);
        s->sources[i] = (uint32_t)row;
    }
}

/* Before rows are taken: which these are. The batch says how many. */
static void dti_loader_prepare(dti_loader *l, dti_loader_slot *s) {
    const dti_batch *b = &s->batch;
    const uint32_t *pick = l->desc.data->indices;
    const uint64_t from = b->index * l->desc.batch + b->first;
    s->real = b->first < b->real ? DTI_MIN(b->count, b->real - b->first) : 0;
    s->result = DT_OK;
    atomic_store(&s->failed, UINT32_MAX);
    atomic_store(&l->taken, 0);
    if (l->stream) {
        dti_loader_stream(l, s);
        return;
    }
    dti_sampler_make(&l->order, b->epoch);
    for (uint32_t i = 0; i < s->real; i++) {
        const uint64_t row = l->order.rows ? l->order.rows[from + i] : from + i;
        s->sources[i] = pick ? pick[row] : (uint32_t)row;
    }
}

/* After all are taken: rows that fill up. A cancelled slot is left as it is. */
static void dti_loader_finish(dti_loader *l, dti_loader_slot *s) {
    for (int c = 0; c < l->rows.column_count && !atomic_load(&l->cancel); c++)
        dti_column_pad(&l->rows.columns[c], s->real, s->batch.count, s->values[c]);
}

/* The first thread of a turn prepares the slot, and the others wait. The lock is free meanwhile: a
 * stream may be slow. */
static void dti_loader_prepare_once(dti_loader *l, dti_loader_slot *s, uint64_t turn) {
    if (l->preparing != turn) {
        l->preparing = turn;
        dti_mutex_unlock(&l->lock);
        dti_loader_prepare(l, s);
        dti_mutex_lock(&l->lock);
        l->prepared = turn;
        dti_cond_broadcast(&l->wake);
    }
    while (l->prepared != turn)
        dti_cond_wait(&l->wake, &l->lock);
}

/* The last thread of a turn finishes the slot. */
static void dti_loader_main(void *arg) {
    const dti_loader_worker *w = arg;
    dti_loader *l = w->loader;
    uint64_t seen = 0;
    dti_thread_name("dtrain-data");
    dti_fp_enter();
    dti_mutex_lock(&l->lock);
    for (;;) {
        while (l->turn == seen && !l->stop)
            dti_cond_wait(&l->wake, &l->lock);
        if (l->stop)
            break;
        seen = l->turn;
        dti_loader_slot *s = &l->slots[l->slot];
        dti_loader_prepare_once(l, s, seen);
        dti_mutex_unlock(&l->lock);
        dti_loader_take(l, s, w->scratch);
        dti_mutex_lock(&l->lock);
        if (--l->working)
            continue;
        dti_loader_finish(l, s);
        dti_cond_signal(&l->done);
    }
    dti_mutex_unlock(&l->lock);
}

/* ---- the caller's side */

/* Without one, the caller reads: the same batches, later. */
static void dti_loader_threads_start(dti_loader *l) {
    const int wanted = DTI_MAX(l->desc.data->threads, 1);
    while (l->threads < wanted && dti_thread_start(&l->workers[l->threads].thread, DTI_LOADER_STACK,
                                                   dti_loader_main, &l->workers[l->threads]))
        l->threads++;
    if (!l->threads)
        dti_log(
            l->base, DT_LOG_WARNING,
            "the system started no thread to read batches ahead: each step waits for its batch");
    else if (l->threads < wanted)
        dti_log(l->base, DT_LOG_WARNING, "the system started %d of %d threads to read batches",
                l->threads, wanted);
}

static void dti_loader_wait(dti_loader *l) {
    dti_mutex_lock(&l->lock);
    while (l->working)
        dti_cond_wait(&l->done, &l->lock);
    dti_mutex_unlock(&l->lock);
}

static bool dti_loader_reads(dti_loader *l) {
    dti_mutex_lock(&l->lock);
    const bool reads = l->working != 0;
    dti_mutex_unlock(&l->lock);
    return reads;
}

/* False: a thread has waited for a sample of the stream for too long, and may wait for ever. */
static bool dti_loader_await(dti_loader *l) {
    if (!l->stream || !l->threads) {
        dti_loader_wait(l);
        return true;
    }
    const uint64_t from = dti_now_ns();
    bool late = false;
    dti_mutex_lock(&l->lock);
    while (l->working && !late) {
        const uint64_t since = atomic_load(&l->stream->since), now = dti_now_ns();
        const uint64_t until =
            since == UINT64_MAX ? now + l->stream->stall : DTI_MAX(since, from) + l->stream->stall;
        late = now >= until;
        if (!late)
            dti_cond_wait_until(&l->done, &l->lock, until);
    }
    dti_mutex_unlock(&l->lock);
    return !late;
}

/* A stream's .next may not return, so nothing waits for it. Once a slot is cancelled, it takes no
 * more samples. */
static void dti_loader_rest(dti_loader *l) {
    if (!l->stream) {
        dti_loader_wait(l);
        return;
    }
    dti_mutex_lock(&l->lock);
    if (l->working) {
        l->begun = false;
        atomic_store(&l->cancel, true);
    }
    while (l->working && l->prepared == l->turn)
        dti_cond_wait(&l->done, &l->lock);
    dti_mutex_unlock(&l->lock);
}

/* The batch at the cursor: which rows of the job's, and which of them are this process's. */
static dt_result dti_loader_describe(dti_loader *l, dti_loader_slot *s) {
    const dti_loader_desc *d = &l->desc;
    dti_batch *b = &s->batch;
    uint64_t left = l->desc.data->rows - l->index * d->batch;
    uint32_t real = (uint32_t)DTI_MIN(left, d->batch);
    *b = (dti_batch){.epoch = l->epoch,
                     .index = l->index,
                     .step = l->step,
                     .rows = d->tail == DT_TAIL_PAD ? d->batch : real,
                     .real = real,
                     .last = l->index + 1 == l->batches,
                     .columns = l->rows.columns,
                     .column_count = l->rows.column_count,
                     .sources = s->sources};
    for (int c = 0; c < l->rows.column_count; c++)
        b->values[c] = s->values[c];
    b->count = b->rows;
    if (!d->share)
        return DT_OK;
    d->share(d->user, b->rows, &b->first, &b->count);
    bool within = b->first <= b->rows && b->count <= b->rows - b->first && b->count <= d->share_max;
    return within ? DT_OK : DT_ERROR_INVALID;
}

/* Begins to read the batch at the cursor; a wrong share is reported by the next dti_loader_next. */
static void dti_loader_begin(dti_loader *l) {
    dti_loader_slot *s = &l->slots[l->slot];
    l->begun = true;
    s->result = dti_loader_describe(l, s);
    s->share_failed = s->result != DT_OK;
    s->stream_failed = false;
    if (s->share_failed)
        return;
    atomic_store(&l->cancel, false);
    if (l->stream)
        atomic_store(&l->stream->since, dti_now_ns());
    if (!l->threads) {
        dti_loader_prepare(l, s);
        dti_loader_take(l, s, l->workers[0].scratch);
        dti_loader_finish(l, s);
        return;
    }
    dti_mutex_lock(&l->lock);
    l->turn++;
    l->working = l->threads;
    dti_cond_broadcast(&l->wake);
    dti_mutex_unlock(&l->lock);
}

static dt_result dti_loader_fail(dti_loader *l, const dti_loader_slot *s) {
    const dti_batch *b = &s->batch;
    if (s->share_failed)
        return dti_fail(l->base, s->result,
                        "step %llu: a share of %u rows from row %u exceeds its batch of %u rows, "
                        "or the room for %u",
                        (unsigned long long)b->step, b->count, b->first, b->rows,
                        l->desc.share_max);
    if (s->stream_failed)
        return dti_fail(l->base, s->result, "step %llu: %s", (unsigned long long)b->step, s->why);
    return dti_fail(l->base, s->result,
                    "%s failed for row %llu (epoch %llu, step %llu, position %llu "
                    "in the batch): %s%s",
                    l->desc.data->sample ? "dt_dataset.sample" : "dt_dataset",
                    (unsigned long long)s->sample.row, (unsigned long long)b->epoch,
                    (unsigned long long)b->step, (unsigned long long)s->sample.position,
                    s->result == DT_ERROR_BUSY ? "it returned the result of a call: " : "",
                    *s->why ? s->why : dt_result_text(s->result));
}

/* To batch `index`, which may be the number of batches, of an epoch. */
static void dti_loader_set_cursor(dti_loader *l, uint64_t epoch, uint64_t index, uint64_t step) {
    bool over = index == l->batches;
    l->epoch = epoch + over;
    l->index = over ? 0 : index;
    l->step = step;
}

static dt_result dti_loader_late(dti_loader *l) {
    char why[256];
    atomic_store(&l->cancel, true);
    return dti_fail(l->base, dti_shuffle_stalled(l->stream, why, sizeof why), "step %llu: %s",
                    (unsigned long long)l->step, why);
}

static dt_result dti_loader_next(dti_loader *l, const dti_batch **out) {
    dti_loader_slot *s = &l->slots[l->slot];
    *out = NULL;
    bool come = l->begun || dti_loader_await(l); /* one that was dropped may still be read */
    if (come && !l->begun)
        dti_loader_begin(l);
    come = come && dti_loader_await(l);
    l->begun = false;
    if (!come)
        return dti_loader_late(l);
    if (s->result != DT_OK)
        return dti_loader_fail(l, s);
    dti_loader_set_cursor(l, l->epoch, l->index + 1, l->step + 1);
    *out = &s->batch;
    if (l->threads) {
        l->slot ^= 1;
        dti_loader_begin(l);
    }
    return DT_OK;
}

static dt_result dti_loader_seek(dti_loader *l, uint64_t epoch, uint64_t index, uint64_t step) {
    if (index > l->batches)
        return dti_fail(l->base, DT_ERROR_INVALID,
                        "the batch index is %llu; an epoch has %llu batches",
                        (unsigned long long)index, (unsigned long long)l->batches);
    atomic_store(&l->cancel, true);
    if (!l->stream)
        dti_loader_wait(l);
    l->begun = false;
    dti_loader_set_cursor(l, epoch, index, step);
    if (l->threads && !dti_loader_reads(l))
        dti_loader_begin(l);
    return DT_OK;
}

static uint64_t dti_loader_epoch_batches(const dti_loader *l) {
    return l->batches;
}

/* ---- checks */

static dt_result dti_loader_check(dti_base *base, const dti_loader_desc *desc) {
    uint64_t rows = desc->data->rows;
    unsigned long long shown = rows;
    const bool stream = desc->data->stream != NULL;
    if (rows == 0)
        return dti_fail(base, DT_ERROR_INVALID, "dt_dataset.rows is 0; it must be at least 1");
    if (rows > UINT32_MAX && !stream)
        return dti_fail(base, DT_ERROR_INVALID, "dt_dataset.rows is %llu; it must be at most %lu",
                        shown, (unsigned long)UINT32_MAX);
    if (desc->batch == 0)
        return dti_fail(base, DT_ERROR_INVALID, ".batch is 0; it must be at least 1");
    if ((unsigned)desc->tail > DT_TAIL_PAD)
        return dti_fail(base, DT_ERROR_INVALID, ".tail is %d, not a dt_tail", (int)desc->tail);
    if (desc->tail == DT_TAIL_DROP && rows < desc->batch) {
        return dti_fail(base, DT_ERROR_INVALID,
                        "the dataset has %llu rows, less than a batch of %u, and .tail = "
                        "DT_TAIL_DROP drops them all; use DT_TAIL_KEEP or a smaller batch",
                        shown, desc->batch);
    }
    if (desc->data->threads < 0 || desc->data->threads > DTI_LOADER_THREADS_MAX)
        return dti_fail(base, DT_ERROR_INVALID, "dt_dataset.threads is %d; it must be from 0 to %d",
                        desc->data->threads, DTI_LOADER_THREADS_MAX);
    return stream ? dti_shuffle_check(base, desc->data, desc->batch)
                  : dti_sampler_check(base, desc->data, desc->shuffle);
}

/* ---- create, destroy */

static dt_result dti_loader_alloc_slots(dti_loader *l) {
    const dti_loader_desc *d = &l->desc;
    const uint64_t most = d->tail == DT_TAIL_PAD ? d->batch : DTI_MIN(d->batch, d->data->rows);
    const size_t rows = (size_t)(d->share ? DTI_MIN(d->share_max, most) : most);
    for (int s = 0; s < (d->threaded ? 2 : 1); s++) {
        l->slots[s].sources = dti_alloc_array(l->base, rows, sizeof(uint32_t));
        DTI_HAVE(l->slots[s].sources);
        if (l->stream)
            DTI_HAVE(l->slots[s].places = dti_alloc_array(l->base, rows, sizeof(uint32_t)));
        for (int c = 0; c < l->rows.column_count; c++) {
            const dti_loader_column *column = &l->rows.columns[c];
            l->slots[s].values[c] = dti_alloc_array(l->base, rows, dti_column_bytes(column));
            DTI_HAVE(l->slots[s].values[c]);
        }
    }
    return DT_OK;
}

/* The columns read the stream's buffer. */
static dt_result dti_loader_alloc_stream(dti_loader *l) {
    const dti_loader_desc *d = &l->desc;
    if (!d->data->stream)
        return DT_OK;
    dti_stream_buffer *x = l->stream;
    if (!x) {
        DTI_HAVE(x = l->stream = dti_alloc(l->base, sizeof *x));
        x->column_count = l->rows.column_count;
        for (int c = 0; c < x->column_count; c++)
            x->bytes[c] = dti_column_data_bytes(&l->rows.columns[c]);
        DTI_TRY(dti_shuffle_open(l->base, d->data->stream, d->batch, d->seed, d->shuffle, x));
    }
    for (int c = 0; c < x->column_count; c++)
        l->rows.columns[c].data = x->data[c];
    x->cancel = &l->cancel;
    return DT_OK;
}

/* All that the loader will ever need. */
static dt_result dti_loader_alloc(dti_loader *l) {
    const dti_loader_desc *d = &l->desc;
    const size_t count = (size_t)(d->threaded ? DTI_MAX(d->data->threads, 1) : 1);
    const size_t scratch = dti_rows_scratch(&l->rows);
    DTI_TRY(dti_loader_alloc_stream(l));
    if (d->shuffle && !l->stream && dti_sampler_alloc(l->base, &l->order))
        return DT_ERROR_MEMORY;
    if (scratch && !(l->scratch = dti_alloc_array(l->base, count, scratch)))
        return DT_ERROR_MEMORY;
    for (size_t i = 0; i < count; i++)
        l->workers[i] = (dti_loader_worker){
            .loader = l, .scratch = l->scratch ? l->scratch + i * scratch : NULL};
    return dti_loader_alloc_slots(l);
}

/* A set whose columns' data will be the buffer. */
static void dti_loader_stream_data(dti_loader *l) {
    l->stream_data = *l->desc.data;
    l->desc.data = &l->stream_data;
    for (int c = 0; c < dti_dataset_columns(&l->stream_data); c++)
        l->stream_data.columns[c].data = l;
}

static dt_result dti_loader_create(dti_base *base, const dti_loader_desc *desc, dti_loader **out) {
    *out = NULL;
    dt_result result = dti_loader_check(base, desc);
    dti_loader *l = result ? NULL : dti_alloc(base, sizeof *l);
    if (!l) {
        dti_shuffle_free(base, desc->kept);
        return result ? result : DT_ERROR_MEMORY;
    }
    const uint64_t rows = desc->data->rows, rest = rows % desc->batch;
    l->base = base;
    l->desc = *desc;
    l->stream = desc->kept;
    l->batches = rows / desc->batch + (rest && desc->tail != DT_TAIL_DROP);
    l->order = (dti_sampler){.data = desc->data, .seed = desc->seed, .batch = desc->batch};
    dti_mutex_init(&l->lock);
    dti_cond_init(&l->wake);
    dti_cond_init(&l->done);
    if (desc->data->stream)
        dti_loader_stream_data(l);
    result = dti_rows_open(base, l->desc.data, desc->pad, &l->rows);
    l->rows.augment.drawn = desc->shuffle && desc->data->weights;
    l->each = desc->data->sample || dti_rows_augment(&l->rows);
    for (int c = 0; c < l->rows.column_count; c++)
        l->each = l->each || l->rows.columns[c].kind == DTI_COLUMN_ONE_HOT;
    if (!result)
        result = dti_loader_alloc(l);
    if (result) {
        dti_loader_destroy(l);
        return result;
    }
    if (desc->threaded)
        dti_loader_threads_start(l);
    if (l->stream)
        l->stream->alone = !l->threads;
    *out = l;
    return DT_OK;
}

static void dti_loader_stop(dti_loader *l) {
    atomic_store(&l->cancel, true);
    dti_loader_wait(l);
    dti_mutex_lock(&l->lock);
    l->stop = true;
    dti_cond_broadcast(&l->wake);
    dti_mutex_unlock(&l->lock);
    for (int i = 0; i < l->threads; i++)
        dti_thread_join(&l->workers[i].thread);
    dti_cond_destroy(&l->done);
    dti_cond_destroy(&l->wake);
    dti_mutex_destroy(&l->lock);
}

static dti_stream_buffer *dti_loader_keep(dti_loader *l) {
    dti_stream_buffer *x = l ? l->stream : NULL;
    if (!x)
        return NULL;
    atomic_store(&l->cancel, true);
    dti_loader_wait(l);
    l->stream = NULL;
    return x;
}

static void dti_loader_destroy(dti_loader *l) {
    if (!l)
        return;
    if (!dti_forked(l->base))
        dti_loader_stop(l);
    for (int s = 0; s < 2; s++) {
        DTI_FREE(l->base, l->slots[s].sources, l->slots[s].places);
        for (int c = 0; c < DT_MAX_COLUMNS; c++)
            dti_free(l->base, l->slots[s].values[c]);
    }
    dti_sampler_free(l->base, &l->order);
    dti_shuffle_free(l->base, l->stream);
    DTI_FREE(l->base, l->scratch, l);
}
