/* Samples of a stream (dt_stream_desc), which is read once and in order. They wait in a buffer that
 * takes the place of the columns' data. From there a batch is made as of rows in memory. This file
 * owns which place of the buffer each position of training has.
 *
 * With a shuffle buffer of n samples, position p is a sample of block p / n. The block's order is
 * dt_shuffle's. So the order is a function of (seed, p), and a checkpoint needs only the position.
 * With tf.data's buffer each draw depends on all earlier ones, and a checkpoint would hold the
 * buffer. A batch reads only the samples that it needs: no step waits for a block.
 *
 * Samples of the newest positions stay, for steps that are made again. */

#define DTI_STREAM_STALL_MS 30000
#define DTI_STREAM_SHUFFLE_MAX (1u << 30)

typedef struct dti_stream_buffer {
    dti_base *base;
    const dt_stream_desc *desc; /* the caller's */
    uint64_t seed;
    uint32_t n, batch; /* of the shuffle buffer; of a full batch */
    uint32_t kept;     /* positions that have a place at most */
    uint32_t window;   /* samples after the first of a block that have been read at most */
    uint32_t places;   /* of the buffer */
    uint64_t stall;    /* nanoseconds */
    int column_count;
    size_t bytes[DT_MAX_COLUMNS]; /* of a sample */
    char *data[DT_MAX_COLUMNS];   /* [places] */
    uint64_t *row;                /* [places] numbers of the samples there */
    uint32_t *place;              /* [window] of sample i at i % window, until it is drawn */
    uint32_t *drawn;              /* [kept] places of positions first to next, at p % kept */
    uint32_t *unused, unused_count;
    uint32_t *order, ordered; /* [n] of `block`, which has that many samples; 0: no block */
    uint64_t block, first, next;
    bool begun, ended;          /* the stream is where `read` says; it has no further sample */
    _Atomic uint64_t read;      /* samples that were read */
    _Atomic uint64_t since;     /* when it began to wait for a sample; UINT64_MAX: it does not */
    const _Atomic bool *cancel; /* of the fill under way, like the next members */
    bool alone;                 /* no other thread reads `since` */
    char *why;
    size_t why_bytes;
} dti_stream_buffer;

static const char *dti_shuffle_name(const dti_stream_buffer *x) {
    return x->desc->name ? x->desc->name : "stream";
}

static dt_result dti_shuffle_fail(const dti_stream_buffer *x, dt_result result, const char *text,
                                  ...) DTI_PRINTF(3, 4);
static dt_result dti_shuffle_fail(const dti_stream_buffer *x, dt_result result, const char *text,
                                  ...) {
    const int n = snprintf(x->why, x->why_bytes, "%.100s: ", dti_shuffle_name(x));
    va_list args;
    va_start(args, text);
    vsnprintf(x->why + n, x->why_bytes - (size_t)n, text, args);
    va_end(args);
    return result;
}

/* On any thread. */
static dt_result dti_shuffle_stalled(const dti_stream_buffer *x, char *why, size_t bytes) {
    snprintf(why, bytes, "%.100s: no sample came for %llu ms (.stall_ms), after %llu samples",
             dti_shuffle_name(x), (unsigned long long)(x->stall / 1000000),
             (unsigned long long)atomic_load(&x->read));
    return DT_ERROR_TIMEOUT;
}

/* ---- reading */

static dt_result dti_shuffle_bytes(const dti_stream_buffer *x, const size_t *bytes) {
    for (int c = 0; c < x->column_count; c++)
        if (bytes[c] != x->bytes[c])
            return dti_shuffle_fail(
                x, DT_ERROR_FORMAT, "sample %llu has %zu bytes for column %d, which takes %zu",
                (unsigned long long)atomic_load(&x->read), bytes[c], c, x->bytes[c]);
    return DT_OK;
}

/* *come: the sample of number x->read is at that place. Else it has not come yet, or the stream has
 * ended. */
static dt_result dti_shuffle_ask(dti_stream_buffer *x, uint32_t place, bool *come) {
    void *values[DT_MAX_COLUMNS];
    size_t bytes[DT_MAX_COLUMNS];
    char why[400] = "";
    dt_stream_sample s = {.row = atomic_load(&x->read),
                          .values = values,
                          .bytes = bytes,
                          .error = why,
                          .error_bytes = sizeof why};
    for (int c = 0; c < x->column_count; c++) {
        values[c] = x->data[c] + place * x->bytes[c];
        bytes[c] = x->bytes[c];
    }
    const unsigned long long row = s.row;
    dti_visit visit;
    dti_visit_host(&visit, x->base, DTI_IN_VALUES);
    const dt_result result = x->desc->next(x->desc->user, &s);
    dti_visit_returned(&visit);
    why[sizeof why - 1] = 0;
    *come = !result && !s.end;
    x->ended = !result && s.end;
    if (result == DT_ERROR_TIMEOUT || x->ended)
        return DT_OK;
    if (result)
        return dti_shuffle_fail(x, result, "sample %llu: %s", row,
                                *why ? why : dt_result_text(result));
    return dti_shuffle_bytes(x, bytes);
}

static dt_result dti_shuffle_read(dti_stream_buffer *x) {
    const uint32_t place = x->unused[x->unused_count - 1];
    const uint64_t row = atomic_load(&x->read);
    bool come = false;
    while (!come) {
        if (atomic_load(x->cancel))
            return DT_ERROR_CANCELLED;
        DTI_TRY(dti_shuffle_ask(x, place, &come));
        if (x->ended)
            return DT_OK;
        if (!come && x->alone && dti_now_ns() - atomic_load(&x->since) > x->stall)
            return dti_shuffle_stalled(x, x->why, x->why_bytes);
    }
    x->unused_count--;
    x->row[place] = row;
    x->place[row % x->window] = place;
    atomic_store(&x->read, row + 1);
    atomic_store(&x->since, dti_now_ns());
    return DT_OK;
}

/* So that the positions below `end` can be drawn. */
static dt_result dti_shuffle_read_for(dti_stream_buffer *x, uint64_t end) {
    while (!x->ended && atomic_load(&x->read) < end + x->n - 1)
        DTI_TRY(dti_shuffle_read(x));
    const unsigned long long read = atomic_load(&x->read);
    return end <= read ? DT_OK
                       : dti_shuffle_fail(
                             x, DT_ERROR_IO,
                             "ended after %llu samples, but the step needs samples %llu to %llu",
                             read, (unsigned long long)x->next, (unsigned long long)end - 1);
}

/* ---- positions */

static void dti_shuffle_draw(dti_stream_buffer *x, uint64_t end) {
    for (; x->next < end; x->next++) {
        const uint64_t block = x->next / x->n, start = block * x->n;
        const uint32_t count = (uint32_t)DTI_MIN(x->n, atomic_load(&x->read) - start);
        if (x->block != block || x->ordered != count)
            dt_shuffle(x->order, count, x->seed, block);
        x->block = block;
        x->ordered = count;
        const uint64_t row = start + x->order[x->next - start];
        x->drawn[x->next % x->kept] = x->place[row % x->window];
    }
}

/* Positions below `first` are not needed any more. */
static void dti_shuffle_drop(dti_stream_buffer *x, uint64_t first) {
    for (; x->first < first; x->first++)
        x->unused[x->unused_count++] = x->drawn[x->first % x->kept];
}

/* The stream's next sample is the first of a block. */
static void dti_shuffle_restart(dti_stream_buffer *x, uint64_t row) {
    x->first = x->next = row;
    atomic_store(&x->read, row);
    x->ended = false;
    x->ordered = 0;
    x->unused_count = x->places;
    for (uint32_t i = 0; i < x->places; i++)
        x->unused[i] = i;
}

static dt_result dti_shuffle_seek(dti_stream_buffer *x, uint64_t row) {
    dti_visit visit;
    x->begun = false;
    dti_visit_host(&visit, x->base, DTI_IN_VALUES);
    const dt_result result = x->desc->seek(x->desc->user, row);
    dti_visit_returned(&visit);
    if (result)
        return dti_shuffle_fail(x, result, ".seek to sample %llu: %s", (unsigned long long)row,
                                dt_result_text(result));
    dti_shuffle_restart(x, row);
    x->begun = true;
    return DT_OK;
}

/* To that position: it is one that is kept, or the next. */
static dt_result dti_shuffle_go(dti_stream_buffer *x, uint64_t position) {
    const bool there = position >= x->first && position <= x->next;
    if (x->desc->seek && !(there && x->begun))
        DTI_TRY(dti_shuffle_seek(x, position / x->n * x->n));
    else if (position < x->first)
        return dti_shuffle_fail(x, DT_ERROR_INVALID,
                                "it is past sample %llu, and cannot go back to %llu: give .seek",
                                (unsigned long long)x->first, (unsigned long long)position);
    while (x->next < position) {
        const uint64_t end = DTI_MIN(x->next + x->batch, position);
        dti_shuffle_drop(x, x->next);
        DTI_TRY(dti_shuffle_read_for(x, end));
        dti_shuffle_draw(x, end);
    }
    return DT_OK;
}

/* `count` positions from `from` on have places. CANCELLED: samples that were read stay. For another
 * error the text is at x->why. */
static dt_result dti_shuffle_fill(dti_stream_buffer *x, uint64_t from, uint32_t count) {
    const uint64_t kept = (uint64_t)DTI_STREAM_KEPT * x->batch;
    DTI_TRY(dti_shuffle_go(x, from));
    dti_shuffle_drop(x, from > kept ? from - kept : 0);
    DTI_TRY(dti_shuffle_read_for(x, from + count));
    dti_shuffle_draw(x, from + count);
    return DT_OK;
}

/* The place of a position, and the number of its sample. */
static uint32_t dti_shuffle_place(const dti_stream_buffer *x, uint64_t position, uint64_t *row) {
    const uint32_t place = x->drawn[position % x->kept];
    *row = x->row[place];
    return place;
}

/* ---- opening */

static dt_result dti_shuffle_check(dti_base *base, const dt_dataset *data, uint32_t batch) {
    const dt_stream_desc *d = data->stream;
    const char *other = data->indices   ? "indices"
                        : data->weights ? "weights"
                        : data->lengths ? "lengths"
                                        : NULL;
    if (!d->next)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_dataset.stream.next is NULL; it must provide the samples");
    if (other)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_dataset.stream cannot be combined with .%s: its samples come in order",
                        other);
    if (data->augment && (data->augment->mixup != 0 || data->augment->cutmix != 0))
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_dataset.stream cannot be combined with .mixup and .cutmix of .augment: "
                        "they read another sample of the set");
    if (d->stall_ms < 0)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_dataset.stream.stall_ms is %d; it must be at least 0", d->stall_ms);
    if (d->shuffle > DTI_STREAM_SHUFFLE_MAX ||
        2 * (uint64_t)d->shuffle + (DTI_STREAM_KEPT + 1) * (uint64_t)batch > UINT32_MAX)
        return dti_fail(base, DT_ERROR_INVALID,
                        "dt_dataset.stream.shuffle is %u, with batches of %u; it must be at most "
                        "%u, less for batches of 2^28 or more",
                        d->shuffle, batch, DTI_STREAM_SHUFFLE_MAX);
    for (int c = 0; c < DT_MAX_COLUMNS; c++)
        if (data->columns[c].data)
            return dti_fail(base, DT_ERROR_INVALID,
                            "dataset column %d has .data, but dt_dataset.stream provides its "
                            "values; leave one out",
                            c);
    return DT_OK;
}

/* MEMORY; dti_shuffle_free in any case. bytes: of a sample, by column. */
static dt_result dti_shuffle_open(dti_base *base, const dt_stream_desc *d, uint32_t batch,
                                  uint64_t seed, bool shuffle, dti_stream_buffer *x) {
    x->base = base;
    x->desc = d;
    x->seed = seed;
    x->batch = batch;
    x->n = shuffle && d->shuffle ? d->shuffle : 1;
    x->kept = (DTI_STREAM_KEPT + 1) * batch;
    x->window = 2 * x->n + batch;
    x->places = x->n - 1 + x->kept;
    x->stall = (uint64_t)(d->stall_ms ? d->stall_ms : DTI_STREAM_STALL_MS) * 1000000;
    atomic_store(&x->since, UINT64_MAX);
    const struct {
        uint32_t **to;
        uint32_t count;
    } arrays[] = {
        {&x->place, x->window}, {&x->drawn, x->kept}, {&x->unused, x->places}, {&x->order, x->n}};
    for (size_t i = 0; i < DTI_COUNT(arrays); i++)
        DTI_HAVE(*arrays[i].to = dti_alloc_array(base, arrays[i].count, sizeof(uint32_t)));
    DTI_HAVE(x->row = dti_alloc_array(base, x->places, sizeof *x->row));
    for (int c = 0; c < x->column_count; c++)
        DTI_HAVE(x->data[c] = dti_alloc_array(base, x->places, x->bytes[c]));
    dti_shuffle_restart(x, 0);
    return DT_OK;
}

/* x and its memory; NULL: nothing. */
static void dti_shuffle_free(dti_base *base, dti_stream_buffer *x) {
    if (!x)
        return;
    for (int c = 0; c < DT_MAX_COLUMNS; c++)
        dti_free(base, x->data[c]);
    DTI_FREE(base, x->place, x->drawn, x->unused, x->order, x->row, x);
}
