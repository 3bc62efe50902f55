/* The loader: order, tails, seeking, shares, the thread that reads ahead, and what a bad dataset
 * gets. An oracle makes each row of each batch by itself, from dt_shuffle and from (seed, epoch,
 * step, row, position). Included by main.c. */

#define LOADER_ROWS 131
#define LOADER_SEED 17

enum { LOADER_X, LOADER_ID, LOADER_PIXELS, LOADER_LABEL, LOADER_NOISE, LOADER_COLUMNS };

/* A set with a column of each kind; the last one has no data. */
typedef struct loader_fixture {
    dt_ctx *ctx;
    dti_base *base;
    dt_graph *graph;
    uint64_t bytes; /* of host memory, before there is a loader */
    dt_dataset data;
    float x[LOADER_ROWS * 3];
    int32_t id[LOADER_ROWS];
    uint8_t pixels[LOADER_ROWS * 4], label[LOADER_ROWS];
    atomic_int calls; /* of the callback */
    int fail_at;      /* fails once, at this call; -1 = never */
    pthread_t thread; /* that called last */
} loader_fixture;

/* The callback adds to the values that are there, so that stale values show. */
static void loader_change(const dt_sample *s, float *x, int32_t *id, float *noise) {
    uint64_t key = s->seed + 1000 * s->epoch + 100000 * s->step;
    x[2] += (float)dti_uniform01(key, s->row, 5);
    *id += (int32_t)(s->step * 1000);
    noise[0] += (float)dti_uniform01(key, s->row, 6);
    noise[1] += (float)s->position;
}

static dt_result loader_sample(void *user, const dt_sample *s, void *const *values) {
    loader_fixture *f = user;
    f->thread = pthread_self();
    if (atomic_fetch_add(&f->calls, 1) == f->fail_at)
        return DT_ERROR_FORMAT;
    loader_change(s, values[LOADER_X], values[LOADER_ID], values[LOADER_NOISE]);
    return DT_OK;
}

static dt_column loader_column(dt_tensor input, const void *data, dt_dtype dtype) {
    return (dt_column){.input = input, .data = data, .dtype = dtype};
}

static bool loader_open(loader_fixture *f) {
    *f = (loader_fixture){.fail_at = -1};
    test_check(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &f->ctx) == DT_OK, __FILE__,
               __LINE__, "a context");
    if (!f->ctx || dt_graph_create(f->ctx, &f->graph) != DT_OK)
        return false;
    f->base = dti_ctx_base(f->ctx);
    for (int i = 0; i < LOADER_ROWS; i++) {
        f->id[i] = i;
        f->label[i] = (uint8_t)(i * 13);
        for (int j = 0; j < 3; j++)
            f->x[i * 3 + j] = (float)(i * 3 + j) + 0.5f;
        for (int j = 0; j < 4; j++)
            f->pixels[i * 4 + j] = (uint8_t)(i * 7 + j * 31);
    }
    dt_graph *g = f->graph;
    dt_column *c = f->data.columns;
    c[LOADER_X] = loader_column(dt_input(g, "x", DT_F32, dt_dims(3)), f->x, DT_F32);
    c[LOADER_ID] = loader_column(dt_input(g, "id", DT_I32, dt_dims()), f->id, DT_I32);
    c[LOADER_PIXELS] =
        loader_column(dt_input(g, "pixels", DT_F32, dt_dims(2, 2)), f->pixels, DT_U8);
    c[LOADER_PIXELS].scale = 1 / 255.0f;
    c[LOADER_PIXELS].offset = -0.3f;
    c[LOADER_LABEL] = loader_column(dt_input(g, "label", DT_I32, dt_dims()), f->label, DT_U8);
    c[LOADER_NOISE] = loader_column(dt_input(g, "noise", DT_F32, dt_dims(2)), NULL, DT_F32);
    f->data.rows = LOADER_ROWS;
    f->data.sample = loader_sample;
    f->data.user = f;
    f->bytes = data_host_bytes(f->ctx);
    return dt_graph_error(g) == NULL;
}

static void loader_close(loader_fixture *f, dti_loader *l) {
    dti_loader_destroy(l);
    if (f->ctx)
        CHECK(data_host_bytes(f->ctx) == f->bytes);
    dt_ctx_destroy(f->ctx);
}

static dti_loader_desc loader_desc(const loader_fixture *f, uint32_t batch) {
    return (dti_loader_desc){.data = &f->data,
                             .seed = LOADER_SEED,
                             .batch = batch,
                             .shuffle = true,
                             .threaded = true,
                             .pad = {7, -100, 7, 99, 7}};
}

/* ---- the oracle */

typedef struct loader_row {
    float x[3], pixels[4], noise[2];
    int32_t id, label;
} loader_row;
_Static_assert(sizeof(loader_row) == 44, "rows are compared as bytes");

static loader_row loader_row_of(const loader_fixture *f, const dti_batch *b, uint64_t position,
                                uint32_t row) {
    loader_row r = {.id = f->id[row], .label = f->label[row]};
    memcpy(r.x, f->x + row * 3, sizeof r.x);
    if (f->data.columns[LOADER_NOISE].data)
        memcpy(r.noise, f->x + row * 2, sizeof r.noise);
    dt_gather_rows_u8_to_f32(r.pixels, f->pixels + row * 4, NULL, 1, 4, 1 / 255.0f, -0.3f);
    dt_sample s = {
        .seed = LOADER_SEED, .epoch = b->epoch, .step = b->step, .row = row, .position = position};
    if (f->data.sample)
        loader_change(&s, r.x, &r.id, r.noise);
    return r;
}

/* Row i of those that a batch has values of. */
static loader_row loader_row_in(const dti_batch *b, uint32_t i) {
    loader_row r = {.id = ((const int32_t *)b->values[LOADER_ID])[i],
                    .label = ((const int32_t *)b->values[LOADER_LABEL])[i]};
    memcpy(r.x, (const float *)b->values[LOADER_X] + i * 3, sizeof r.x);
    memcpy(r.pixels, (const float *)b->values[LOADER_PIXELS] + i * 4, sizeof r.pixels);
    memcpy(r.noise, (const float *)b->values[LOADER_NOISE] + i * 2, sizeof r.noise);
    return r;
}

static bool loader_row_equal(loader_row a, loader_row b) {
    return !memcmp(&a, &b, sizeof a);
}

static uint64_t loader_batches(const loader_fixture *f, const dti_loader_desc *d) {
    return d->tail == DT_TAIL_DROP ? f->data.rows / d->batch
                                   : (f->data.rows + d->batch - 1) / d->batch;
}

/* All that batch `index` of `epoch` must be. */
static bool loader_batch_right(const loader_fixture *f, const dti_loader_desc *d,
                               const dti_batch *b, uint64_t epoch, uint64_t index, uint64_t step) {
    uint32_t order[LOADER_ROWS];
    uint32_t rows = (uint32_t)f->data.rows, first = (uint32_t)index * d->batch;
    uint32_t real = DTI_MIN(d->batch, rows - first);
    for (uint32_t i = 0; i < rows; i++)
        order[i] = i;
    if (d->shuffle)
        dt_shuffle(order, rows, LOADER_SEED, epoch);
    bool right = b->epoch == epoch && b->index == index && b->step == step && b->real == real &&
                 b->rows == (d->tail == DT_TAIL_PAD ? d->batch : real) &&
                 b->last == (index + 1 == loader_batches(f, d));
    if (!d->share)
        right &= b->first == 0 && b->count == b->rows;
    for (uint32_t i = 0; i < b->count && right; i++) {
        uint32_t position = b->first + i;
        loader_row expected = {.id = d->pad[LOADER_ID], .label = d->pad[LOADER_LABEL]};
        if (position < real)
            expected = loader_row_of(f, b, position, order[first + position]);
        right = loader_row_equal(loader_row_in(b, i), expected);
    }
    return right;
}

/* Three epochs are what the oracle says. */
static bool loader_runs_right(const loader_fixture *f, const dti_loader_desc *d) {
    dti_loader *l;
    if (dti_loader_create(f->base, d, &l) != DT_OK)
        return false;
    uint64_t batches = loader_batches(f, d);
    bool right = dti_loader_epoch_batches(l) == batches;
    for (uint64_t step = 0; step < 3 * batches && right; step++) {
        const dti_batch *b;
        right = dti_loader_next(l, &b) == DT_OK &&
                loader_batch_right(f, d, b, step / batches, step % batches, step);
    }
    dti_loader_destroy(l);
    return right;
}

TEST(loader_batches_are_the_shuffle_s_rows_for_every_size_and_tail) {
    static const uint32_t rows[] = {1, 2, 63, 64, 65, LOADER_ROWS};
    static const uint32_t batches[] = {1, 3, 64, 200};
    loader_fixture f;
    REQUIRE(loader_open(&f));
    for (int mode = 0; mode < 24; mode++) {
        for (int at = 0; at < 24; at++) {
            f.data.rows = rows[at % 6];
            f.data.sample = mode & 1 ? loader_sample : NULL;
            f.data.columns[LOADER_NOISE].data = mode & 1 ? NULL : f.x;
            dti_loader_desc d = loader_desc(&f, batches[at / 6]);
            d.shuffle = mode & 2;
            d.threaded = mode & 4;
            d.tail = (dt_tail)(mode / 8);
            if (d.tail == DT_TAIL_DROP && d.batch > f.data.rows)
                continue;
            test_check(loader_runs_right(&f, &d), __FILE__, __LINE__, "mode %d, %u rows, batch %u",
                       mode, (unsigned)f.data.rows, d.batch);
        }
    }
    loader_close(&f, NULL);
}

/* The same in the smallest words: only ids. */
TEST(loader_order_is_that_of_dt_shuffle) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    f.data.sample = NULL;
    f.data.columns[0] = f.data.columns[LOADER_ID];
    memset(f.data.columns + 1, 0, sizeof f.data.columns - sizeof f.data.columns[0]);
    dti_loader_desc d = loader_desc(&f, 10);
    dti_loader *l;
    REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        uint32_t order[LOADER_ROWS], at = 0;
        dt_shuffle(order, LOADER_ROWS, LOADER_SEED, epoch);
        while (at < LOADER_ROWS) {
            const dti_batch *b;
            REQUIRE(dti_loader_next(l, &b) == DT_OK);
            CHECK(b->epoch == epoch);
            CHECK(!memcmp(b->values[0], order + at, b->count * sizeof *order));
            at += b->count;
        }
        CHECK(at == LOADER_ROWS);
    }
    loader_close(&f, l);
}

TEST(loader_gives_every_row_once_an_epoch) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    f.data.sample = NULL;
    f.data.columns[LOADER_NOISE].data = f.x;
    for (int tail = DT_TAIL_KEEP; tail <= DT_TAIL_PAD; tail++) {
        dti_loader_desc d = loader_desc(&f, 16);
        d.tail = (dt_tail)tail;
        dti_loader *l;
        REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
        int seen[LOADER_ROWS] = {0}, padded = 0, rows = 0, wrong = 0;
        const dti_batch *b = NULL;
        for (uint64_t i = 0; i < dti_loader_epoch_batches(l); i++) {
            REQUIRE(dti_loader_next(l, &b) == DT_OK);
            for (uint32_t r = 0; r < b->count; r++) {
                int32_t id = ((const int32_t *)b->values[LOADER_ID])[r];
                padded += id == -100;
                rows++;
                if (id >= 0 && id < LOADER_ROWS)
                    wrong += ++seen[id] > 1;
            }
        }
        int missing = 0;
        for (int i = 0; i < LOADER_ROWS; i++)
            missing += !seen[i];
        CHECK(!wrong && b->last);
        CHECK(missing == (tail == DT_TAIL_DROP ? LOADER_ROWS % 16 : 0));
        CHECK(padded == (tail == DT_TAIL_PAD ? 16 - LOADER_ROWS % 16 : 0));
        CHECK(rows + missing - padded == LOADER_ROWS);
        dti_loader_destroy(l);
    }
    loader_close(&f, NULL);
}

TEST(loader_scales_bytes_to_the_bits_of_dt_rows_f32_from_u8) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    f.data.sample = NULL;
    f.data.columns[LOADER_NOISE].data = f.x;
    static const float scales[] = {0, 1 / 255.0f, 0.0039215f, -3.7f};
    for (int i = 0; i < 4; i++) {
        f.data.columns[LOADER_PIXELS].scale = scales[i];
        f.data.columns[LOADER_PIXELS].offset = (float)i * 0.1307f;
        dti_loader_desc d = loader_desc(&f, LOADER_ROWS);
        dti_loader *l;
        const dti_batch *b;
        REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
        REQUIRE(dti_loader_next(l, &b) == DT_OK);
        uint32_t order[LOADER_ROWS];
        float pixels[LOADER_ROWS * 4];
        dt_shuffle(order, LOADER_ROWS, LOADER_SEED, 0);
        dt_gather_rows_u8_to_f32(pixels, f.pixels, order, LOADER_ROWS, 4, i ? scales[i] : 1,
                                 (float)i * 0.1307f);
        CHECK(!memcmp(pixels, b->values[LOADER_PIXELS], sizeof pixels));
        dti_loader_destroy(l);
    }
    loader_close(&f, NULL);
}

/* ---- the cursor */

TEST(loader_seeks_to_any_batch_of_any_epoch) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    for (int mode = 0; mode < 4; mode++) {
        dti_loader_desc d = loader_desc(&f, 20);
        d.shuffle = mode & 1;
        d.threaded = mode & 2;
        dti_loader *l;
        REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
        uint64_t batches = dti_loader_epoch_batches(l);
        CHECK(batches == 7);
        for (uint64_t i = 0; i < 60; i++) { /* forwards, backwards, across epochs */
            uint64_t epoch = i * 5 % 4, index = i * 3 % (batches + 1), step = i * 11 % 50;
            REQUIRE(dti_loader_seek(l, epoch, index, step) == DT_OK);
            for (uint64_t n = 0; n < i % 4; n++) {
                const dti_batch *b;
                REQUIRE(dti_loader_next(l, &b) == DT_OK);
                uint64_t at = epoch * batches + index + n;
                CHECK(loader_batch_right(&f, &d, b, at / batches, at % batches, step + n));
            }
        }
        const dti_batch *b;
        CHECK(dti_loader_seek(l, 2, 3, 9) == DT_OK);
        CHECK(dti_loader_seek(l, 0, batches + 1, 0) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), "batch index is 8; an epoch has 7");
        CHECK(dti_loader_next(l, &b) == DT_OK && loader_batch_right(&f, &d, b, 2, 3, 9));
        dti_loader_destroy(l);
    }
    loader_close(&f, NULL);
}

TEST(loader_continues_after_2_to_the_32_steps_and_epochs) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    dti_loader_desc d = loader_desc(&f, 100);
    dti_loader *l;
    const dti_batch *b;
    uint64_t epoch = (uint64_t)5 << 32, step = (uint64_t)7 << 40;
    REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
    CHECK(dti_loader_seek(l, epoch, 1, step) == DT_OK);
    CHECK(dti_loader_next(l, &b) == DT_OK && loader_batch_right(&f, &d, b, epoch, 1, step));
    CHECK(dti_loader_next(l, &b) == DT_OK && loader_batch_right(&f, &d, b, epoch + 1, 0, step + 1));
    loader_close(&f, l);
}

/* ---- shares */

typedef struct loader_part {
    uint32_t index, count; /* part `index` of `count` */
    pthread_t thread;      /* that asked */
    int calls;
    uint32_t excess; /* asks for that number of rows too many */
} loader_part;

static void loader_share(void *user, uint32_t rows, uint32_t *first, uint32_t *count) {
    loader_part *p = user;
    *first = (uint32_t)((uint64_t)rows * p->index / p->count);
    *count = (uint32_t)((uint64_t)rows * (p->index + 1) / p->count) - *first + p->excess;
    p->thread = pthread_self();
    p->calls++;
}

/* The parts of one step, compared with all of it. */
static bool loader_parts_are_the_whole(const loader_fixture *f, const dti_loader_desc *d,
                                       const dti_batch *whole, const dti_batch *const *parts,
                                       uint32_t count) {
    uint32_t at = 0;
    for (uint32_t p = 0; p < count; p++) {
        const dti_batch *b = parts[p];
        if (b->first != at || b->rows != whole->rows || b->real != whole->real ||
            !loader_batch_right(f, d, b, whole->epoch, whole->index, whole->step))
            return false;
        for (uint32_t i = 0; i < b->count; i++, at++)
            if (!loader_row_equal(loader_row_in(b, i), loader_row_in(whole, at)))
                return false;
    }
    return at == whole->rows;
}

#define LOADER_PARTS 5

static void loader_check_parts(loader_fixture *f, dt_tail tail, uint32_t batch, uint32_t count) {
    dti_loader_desc d = loader_desc(f, batch);
    d.tail = tail;
    loader_part parts[LOADER_PARTS];
    dti_loader *loaders[LOADER_PARTS + 1] = {0};
    const dti_batch *got[LOADER_PARTS + 1];
    REQUIRE(dti_loader_create(f->base, &d, &loaders[count]) == DT_OK);
    d.share = loader_share;
    d.share_max = (batch + count - 1) / count;
    for (uint32_t p = 0; p < count; p++) {
        parts[p] = (loader_part){.index = p, .count = count};
        d.user = &parts[p];
        REQUIRE(dti_loader_create(f->base, &d, &loaders[p]) == DT_OK);
    }
    for (uint64_t step = 0; step < 2 * dti_loader_epoch_batches(loaders[0]); step++) {
        for (uint32_t p = 0; p <= count; p++)
            REQUIRE(dti_loader_next(loaders[p], &got[p]) == DT_OK);
        CHECK(loader_parts_are_the_whole(f, &d, got[count], got, count));
    }
    for (uint32_t p = 0; p <= count; p++)
        dti_loader_destroy(loaders[p]);
}

/* For several threads at once, which would share the fixture's counters. */
static dt_result loader_sample_pure(void *user, const dt_sample *s, void *const *values) {
    (void)user;
    loader_change(s, values[LOADER_X], values[LOADER_ID], values[LOADER_NOISE]);
    return DT_OK;
}

TEST(loader_shares_together_are_the_whole_batch) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    f.data.sample = loader_sample_pure;
    for (int tail = DT_TAIL_KEEP; tail <= DT_TAIL_PAD; tail++) {
        for (uint32_t count = 1; count <= LOADER_PARTS; count++) {
            loader_check_parts(&f, (dt_tail)tail, 43, count);
            loader_check_parts(&f, (dt_tail)tail, 65, count); /* a tail of 1: empty shares */
        }
    }
    loader_close(&f, NULL);
}

TEST(loader_asks_for_the_share_on_the_caller_s_thread_one_batch_ahead) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    loader_part part = {.index = 1, .count = 2};
    dti_loader_desc d = loader_desc(&f, 50);
    d.share = loader_share;
    d.share_max = 25;
    d.user = &part;
    dti_loader *l;
    const dti_batch *b;
    REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
    CHECK(part.calls == 0);
    CHECK(dti_loader_next(l, &b) == DT_OK && part.calls == 2);
    CHECK(pthread_equal(part.thread, pthread_self()));
    part.index = 0; /* too late for the batch that is being read */
    CHECK(dti_loader_next(l, &b) == DT_OK && part.calls == 3 && b->first == 25);
    CHECK(dti_loader_next(l, &b) == DT_OK && b->first == 0 && b->count == 15 && b->last);
    loader_close(&f, l);
}

TEST(loader_refuses_a_share_that_is_not_within_the_batch) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    for (int threaded = 0; threaded < 2; threaded++) {
        loader_part part = {.index = 1, .count = 2, .excess = 1};
        dti_loader_desc d = loader_desc(&f, 50);
        d.threaded = threaded;
        d.share = loader_share;
        d.share_max = 50;
        d.user = &part;
        dti_loader *l;
        const dti_batch *b;
        REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
        CHECK(dti_loader_next(l, &b) == DT_ERROR_INVALID && !b);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), "26 rows from row 25 exceeds its batch of 50");
        part.excess = 0;
        CHECK(dti_loader_next(l, &b) == DT_OK && loader_batch_right(&f, &d, b, 0, 0, 0));
        dti_loader_destroy(l);
        d.share_max = 24; /* it is within, and there is no room for it */
        REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
        CHECK(dti_loader_next(l, &b) == DT_ERROR_INVALID && !b);
        dti_loader_destroy(l);
    }
    loader_close(&f, NULL);
}

/* ---- the callback and the thread */

TEST(loader_reports_a_failing_sample_once_and_tries_again) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    for (int threaded = 0; threaded < 2; threaded++) {
        for (int at = 0; at <= 45; at += 15) { /* in the first batch, and in those read ahead */
            dti_loader_desc d = loader_desc(&f, 20);
            d.threaded = threaded;
            dti_loader *l;
            const dti_batch *b;
            uint32_t order[LOADER_ROWS];
            char part[96];
            atomic_store(&f.calls, 0);
            f.fail_at = at;
            dt_shuffle(order, LOADER_ROWS, LOADER_SEED, 0);
            REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
            for (uint64_t step = 0; step < 9; step++) {
                if (step == (uint64_t)at / 20) {
                    CHECK(dti_loader_next(l, &b) == DT_ERROR_FORMAT && !b);
                    snprintf(part, sizeof part,
                             "row %u (epoch 0, step %d, position %d in the batch)", order[at],
                             at / 20, at % 20);
                    CHECK_CONTAINS(dt_ctx_error(f.ctx), part);
                }
                REQUIRE(dti_loader_next(l, &b) == DT_OK);
                CHECK(loader_batch_right(&f, &d, b, step / 7, step % 7, step));
            }
            dti_loader_destroy(l);
        }
    }
    loader_close(&f, NULL);
}

static bool loader_sleep_until(const atomic_int *value, int wanted) {
    for (int i = 0; i < 5000 && atomic_load(value) < wanted; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return atomic_load(value) >= wanted;
}

TEST(loader_reads_ahead_across_epochs_and_does_not_change_the_caller_s_batch) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    dti_loader_desc d = loader_desc(&f, 70);
    dti_loader *l;
    const dti_batch *b;
    REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
    CHECK(atomic_load(&f.calls) == 0);
    int read = 70;
    for (uint64_t step = 0; step < 6; step++) {
        REQUIRE(dti_loader_next(l, &b) == DT_OK);
        read += step % 2 ? 70 : LOADER_ROWS - 70; /* the batch after it */
        CHECK(loader_sleep_until(&f.calls, read));
        CHECK(atomic_load(&f.calls) == read); /* and no further */
        CHECK(loader_batch_right(&f, &d, b, step / 2, step % 2, step));
        CHECK(!pthread_equal(f.thread, pthread_self()));
    }
    loader_close(&f, l);
}

typedef struct loader_slow {
    atomic_int entered, left, signals;
} loader_slow;

static dt_result loader_sample_slow(void *user, const dt_sample *s, void *const *values) {
    loader_slow *slow = user;
    (void)s, (void)values;
    atomic_fetch_add(&slow->entered, 1);
#if DTI_POSIX
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    atomic_fetch_add(&slow->signals, !sigismember(&mask, SIGINT) + !sigismember(&mask, SIGALRM));
#endif
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    atomic_fetch_add(&slow->left, 1);
    return DT_OK;
}

TEST(loader_ends_while_its_thread_reads) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    loader_slow slow = {0};
    f.data.sample = loader_sample_slow;
    f.data.user = &slow;
    dti_loader_desc d = loader_desc(&f, 100);
    dti_loader *l;
    REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
    REQUIRE(dti_loader_seek(l, 0, 0, 0) == DT_OK);
    CHECK(loader_sleep_until(&slow.entered, 1));
    loader_close(&f, l); /* the call under way ends, and 98 others are not made */
    CHECK(atomic_load(&slow.left) == atomic_load(&slow.entered));
    CHECK(atomic_load(&slow.entered) < 50);
    CHECK(atomic_load(&slow.signals) == 0);
}

TEST(loader_seeks_away_from_a_batch_that_is_being_read) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    loader_slow slow = {0};
    f.data.sample = loader_sample_slow;
    f.data.user = &slow;
    dti_loader_desc d = loader_desc(&f, 65);
    dti_loader *l;
    const dti_batch *b;
    REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
    REQUIRE(dti_loader_seek(l, 0, 0, 0) == DT_OK);
    CHECK(loader_sleep_until(&slow.entered, 1));
    REQUIRE(dti_loader_seek(l, 4, 2, 77) == DT_OK); /* a batch of one row */
    REQUIRE(dti_loader_next(l, &b) == DT_OK);
    CHECK(b->epoch == 4 && b->index == 2 && b->step == 77 && b->count == 1);
    uint32_t order[LOADER_ROWS];
    dt_shuffle(order, LOADER_ROWS, LOADER_SEED, 4);
    CHECK(((const int32_t *)b->values[LOADER_ID])[0] == (int32_t)order[130]);
    CHECK(atomic_load(&slow.entered) < 40);
    loader_close(&f, l);
}

#if defined __SSE__
static dt_result loader_sample_mode(void *user, const dt_sample *s, void *const *values) {
    (void)s;
    *(unsigned *)user |= _mm_getcsr() ^ 0x1F80; /* flags of what happened stand in the low bits */
    _mm_setcsr(0x9FC0); /* denormals are zero: as a callback's library may leave it */
    ((float *)values[LOADER_NOISE])[0] = 0;
    return DT_OK;
}

TEST(loader_reads_with_ieee_arithmetic_and_gives_back_the_caller_s_mode) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    f.data.sample = loader_sample_mode;
    for (int threaded = 0; threaded < 2; threaded++) {
        unsigned modes = 0, saved = _mm_getcsr();
        f.data.user = &modes;
        dti_loader_desc d = loader_desc(&f, 1);
        d.threaded = threaded;
        dti_loader *l;
        const dti_batch *b;
        REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
        _mm_setcsr(0xDF80); /* round up, flush to zero */
        for (int step = 0; step < 4; step++)
            CHECK(dti_loader_next(l, &b) == DT_OK);
        CHECK((_mm_getcsr() & 0xFFC0) == (0xDF80 & 0xFFC0));
        _mm_setcsr(saved);
        dti_loader_destroy(l);
        CHECK((modes & 0xFFC0) == 0);
    }
    loader_close(&f, NULL);
}
#endif

TEST(loader_allocates_nothing_after_its_creation) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    for (int threaded = 0; threaded < 2; threaded++) {
        dti_loader_desc d = loader_desc(&f, 33);
        d.threaded = threaded;
        d.tail = DT_TAIL_PAD;
        dti_loader *l;
        const dti_batch *b;
        dt_ctx_info before, after;
        REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
        dt_ctx_get_info(f.ctx, &before);
        /* As the header says: two slots of 33 samples of 11 words and a row, or one; the order. */
        uint64_t values = (uint64_t)(threaded ? 2 : 1) * 33 * 12 * 4 + LOADER_ROWS * 4;
        CHECK(before.host_bytes - f.bytes == values + sizeof *l);
        for (uint64_t step = 0; step < 20; step++)
            CHECK(dti_loader_next(l, &b) == DT_OK);
        CHECK(dti_loader_seek(l, 8, 1, 2) == DT_OK && dti_loader_next(l, &b) == DT_OK);
        dt_ctx_get_info(f.ctx, &after);
        CHECK(!memcmp(&before, &after, sizeof before));
        dti_loader_destroy(l);
    }
    loader_close(&f, NULL);
}

/* ---- streams; through a trainer in test_stream.c */

static dt_result loader_stream_next(void *user, dt_stream_sample *s) {
    const loader_fixture *f = user;
    const uint64_t row = s->row % LOADER_ROWS;
    memcpy(s->values[LOADER_X], f->x + row * 3, s->bytes[LOADER_X]);
    memcpy(s->values[LOADER_ID], f->id + row, s->bytes[LOADER_ID]);
    memcpy(s->values[LOADER_PIXELS], f->pixels + row * 4, s->bytes[LOADER_PIXELS]);
    memcpy(s->values[LOADER_LABEL], f->label + row, s->bytes[LOADER_LABEL]);
    memcpy(s->values[LOADER_NOISE], f->x + row * 2, s->bytes[LOADER_NOISE]);
    return s->bytes[LOADER_PIXELS] == 4 && s->bytes[LOADER_LABEL] == 1 ? DT_OK : DT_ERROR_CORRUPT;
}

/* The next batch has this process's samples of the positions that it is for. */
static bool loader_stream_right(const loader_fixture *f, const dti_loader_desc *d, dti_loader *l,
                                uint64_t index) {
    const uint32_t n = d->data->stream->shuffle;
    uint32_t order[LOADER_ROWS];
    const dti_batch *b;
    bool right = dti_loader_next(l, &b) == DT_OK && b->index == index && b->count == 11;
    for (uint32_t i = 0; right && i < b->count; i++) {
        const uint64_t position = index * d->batch + b->first + i;
        dt_shuffle(order, n, LOADER_SEED, position / n);
        const uint32_t row = (uint32_t)(position / n * n) + order[position % n];
        right = b->sources[i] == row &&
                loader_row_equal(loader_row_in(b, i),
                                 loader_row_of(f, b, b->first + i, row % LOADER_ROWS));
    }
    return right;
}

static void loader_share_middle(void *user, uint32_t rows, uint32_t *first, uint32_t *count) {
    (void)user, (void)rows;
    *first = 4;
    *count = 11;
}

TEST(loader_reads_a_stream_through_a_buffer_that_keeps_the_newest_batches) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    for (int c = 0; c < 8; c++) {
        static const uint32_t buffers[] = {1, 9, 20, 77};
        dt_stream_desc stream = {.next = loader_stream_next, .user = &f, .shuffle = buffers[c / 2]};
        dt_dataset set = f.data;
        dti_loader *l;
        const dti_batch *b;
        f.data.sample = set.sample = NULL;
        f.data.columns[LOADER_NOISE].data = f.x;
        for (int k = 0; k < LOADER_COLUMNS; k++)
            set.columns[k].data = NULL;
        set.columns[LOADER_PIXELS].dtype = set.columns[LOADER_LABEL].dtype = DT_U8;
        set.rows = 1000000;
        set.stream = &stream;
        set.threads = c % 2 ? 3 : 1;
        dti_loader_desc d = loader_desc(&f, 20);
        d.data = &set;
        d.threaded = c != 1;
        d.share = loader_share_middle;
        d.share_max = 11;
        REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
        for (uint64_t i = 0; i < 12; i++)
            CHECK(loader_stream_right(&f, &d, l, i));
        for (uint64_t back = 1; back <= DTI_STREAM_KEPT; back++) { /* without .seek */
            CHECK(dti_loader_seek(l, 0, 12 - back, 1) == DT_OK);
            for (uint64_t i = 12 - back; i < 12; i++)
                CHECK(loader_stream_right(&f, &d, l, i));
        }
        CHECK(dti_loader_seek(l, 0, 3, 1) == DT_OK && dti_loader_next(l, &b) == DT_ERROR_INVALID);
        CHECK(dti_loader_seek(l, 0, 40, 1) == DT_OK && loader_stream_right(&f, &d, l, 40));
        dti_loader_destroy(l);
    }
    loader_close(&f, NULL);
}

/* ---- several threads */

static dt_result loader_sample_quiet(void *user, const dt_sample *s, void *const *values) {
    (void)user;
    loader_change(s, values[LOADER_X], values[LOADER_ID], values[LOADER_NOISE]);
    return DT_OK;
}

TEST(loader_gives_the_same_values_with_any_number_of_threads) {
    static const int threads[] = {1, 2, 3, 64};
    loader_fixture f;
    REQUIRE(loader_open(&f));
    f.data.sample = loader_sample_quiet;
    for (int i = 0; i < 8; i++) {
        f.data.threads = threads[i / 2];
        dti_loader_desc d = loader_desc(&f, 50);
        d.tail = i % 2 ? DT_TAIL_PAD : DT_TAIL_KEEP;
        test_check(loader_runs_right(&f, &d), __FILE__, __LINE__, "%d threads", f.data.threads);
    }
    f.data.threads = 3;
    f.data.sample = NULL;
    f.data.columns[LOADER_NOISE].data = f.x;
    const dti_loader_desc d = loader_desc(&f, 129); /* more than two pieces */
    CHECK(loader_runs_right(&f, &d));
    harness_threads_left = 2; /* of three */
    const bool right = loader_runs_right(&f, &d);
    harness_threads_left = -1;
    CHECK(right);
    loader_close(&f, NULL);
}

/* Fails for 40 rows at once, the later the sooner. */
static dt_result loader_sample_many_fail(void *user, const dt_sample *s, void *const *values) {
    (void)values;
    if (s->row < 20)
        return DT_OK;
    usleep((useconds_t)(60 - s->row) * 20);
    atomic_fetch_add((atomic_int *)user, 1);
    snprintf(s->error, s->error_bytes, "row %d is no good", (int)s->row);
    return DT_ERROR_FORMAT;
}

TEST(loader_reports_the_first_of_many_samples_that_fail_with_its_reason) {
    loader_fixture f;
    atomic_int fails = 0;
    REQUIRE(loader_open(&f));
    f.data.sample = loader_sample_many_fail;
    f.data.user = &fails;
    f.data.threads = 8;
    dti_loader_desc d = loader_desc(&f, 60);
    d.shuffle = false;
    dti_loader *l;
    const dti_batch *b;
    REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
    for (int i = 0; i < 3; i++) {
        CHECK(dti_loader_next(l, &b) == DT_ERROR_FORMAT);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), "failed for row 20 ");
        CHECK_CONTAINS(dt_ctx_error(f.ctx), ": row 20 is no good");
    }
    CHECK(atomic_load(&fails) > 3); /* others failed too */
    loader_close(&f, l);
}

/* ---- which rows */

static bool loader_ids_open(loader_fixture *f, dti_loader_desc *d, dti_loader **l) {
    f->data.sample = NULL;
    if (!dti_is_nil(f->data.columns[1].input))
        f->data.columns[0] = f->data.columns[LOADER_ID];
    memset(f->data.columns + 1, 0, sizeof f->data.columns - sizeof f->data.columns[0]);
    return dti_loader_create(f->base, d, l) == DT_OK;
}

/* The ids of an epoch, in order. */
static bool loader_ids(dti_loader *l, uint64_t epoch, int32_t *ids) {
    const dti_batch *b;
    if (dti_loader_seek(l, epoch, 0, 0))
        return false;
    for (uint64_t i = 0, at = 0; i < dti_loader_epoch_batches(l); i++, at += b->count) {
        if (dti_loader_next(l, &b))
            return false;
        memcpy(ids + at, b->values[0], b->count * sizeof *ids);
        for (uint32_t k = 0; k < b->count; k++)
            CHECK(b->sources[k] == (uint32_t)ids[at + k]);
    }
    return true;
}

TEST(loader_takes_only_the_picked_rows) {
    loader_fixture f;
    dti_loader *l;
    int32_t ids[5];
    const uint32_t pick[5] = {130, 7, 7, 64, 0}, order[5] = {0, 1, 2, 3, 4};
    uint32_t shuffled[5];
    REQUIRE(loader_open(&f));
    f.data.indices = pick;
    f.data.rows = 5;
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        dti_loader_desc d = loader_desc(&f, 2);
        d.shuffle = shuffle;
        memcpy(shuffled, order, sizeof order);
        if (shuffle)
            dt_shuffle(shuffled, 5, LOADER_SEED, 3);
        REQUIRE(loader_ids_open(&f, &d, &l) && loader_ids(l, 3, ids));
        for (int i = 0; i < 5; i++)
            CHECK(ids[i] == (int32_t)pick[shuffled[i]]);
        dti_loader_destroy(l);
    }
    loader_close(&f, NULL);
}

TEST(loader_draws_rows_as_often_as_their_weights_say) {
    loader_fixture f;
    dti_loader *l;
    int32_t ids[LOADER_ROWS], again[LOADER_ROWS], count[LOADER_ROWS] = {0}, zeros = 0;
    float weights[LOADER_ROWS] = {0};
    REQUIRE(loader_open(&f));
    for (int i = 1; i < LOADER_ROWS - 1; i++) /* the first and the last one never */
        weights[i] = i % 10 ? (float)(i % 3) : 0.0f;
    f.data.weights = weights;
    dti_loader_desc d = loader_desc(&f, 10);
    REQUIRE(loader_ids_open(&f, &d, &l));
    double sum = 0;
    for (int i = 0; i < LOADER_ROWS; i++)
        sum += (double)weights[i];
    const int epochs = 400;
    for (uint64_t e = 0; e < (uint64_t)epochs; e++) {
        REQUIRE(loader_ids(l, e, ids));
        for (int i = 0; i < LOADER_ROWS; i++)
            count[ids[i]]++;
    }
    for (int i = 0; i < LOADER_ROWS; i++) {
        const double want = (double)weights[i] / sum * LOADER_ROWS * epochs;
        zeros += weights[i] == 0.0f;
        test_check(fabs(count[i] - want) <= 5 * sqrt(want), __FILE__, __LINE__,
                   "row %d came %d times, not %.0f", i, count[i], want);
    }
    CHECK(zeros > 40);
    REQUIRE(loader_ids(l, 7, ids) && loader_ids(l, 7, again));
    CHECK(!memcmp(ids, again, sizeof ids));
    REQUIRE(loader_ids(l, 8, again));
    CHECK(memcmp(ids, again, sizeof ids) != 0);
    dti_loader_destroy(l);
    d.shuffle = false; /* as evaluation does */
    REQUIRE(loader_ids_open(&f, &d, &l) && loader_ids(l, 0, ids));
    for (int i = 0; i < LOADER_ROWS; i++)
        CHECK(ids[i] == i);
    loader_close(&f, l);
}

TEST(loader_puts_rows_of_similar_lengths_into_a_batch) {
    loader_fixture f;
    dti_loader *l;
    int32_t ids[LOADER_ROWS], next[LOADER_ROWS];
    uint32_t lengths[LOADER_ROWS];
    REQUIRE(loader_open(&f));
    for (int i = 0; i < LOADER_ROWS; i++)
        lengths[i] = (uint32_t)(i * 37 % 101);
    f.data.lengths = lengths;
    dti_loader_desc d = loader_desc(&f, 8); /* one piece: 16 batches and 3 rows */
    REQUIRE(loader_ids_open(&f, &d, &l) && loader_ids(l, 1, ids) && loader_ids(l, 2, next));
    int seen[LOADER_ROWS] = {0}, spread = 0, rising = 0;
    for (int i = 0; i < LOADER_ROWS; i++)
        seen[ids[i]]++;
    for (int b = 0; b < LOADER_ROWS / 8; b++) {
        spread += (int)lengths[ids[8 * b + 7]] - (int)lengths[ids[8 * b]];
        rising += b && lengths[ids[8 * b]] > lengths[ids[8 * b - 8]];
    }
    for (int i = 0; i < LOADER_ROWS; i++)
        CHECK(seen[i] == 1);
    CHECK(spread < 110); /* all batches together have no more than all lengths */
    CHECK(rising > 3 && rising < 13);
    CHECK(memcmp(ids, next, sizeof ids) != 0);
    loader_close(&f, l);
}

TEST(loader_makes_class_numbers_one_hot) {
    loader_fixture f;
    dti_loader *l;
    const dti_batch *b;
    int32_t class[LOADER_ROWS];
    uint8_t small[LOADER_ROWS];
    REQUIRE(loader_open(&f));
    for (int i = 0; i < LOADER_ROWS; i++)
        small[i] = (uint8_t)(class[i] = i * 5 % 4);
    dt_tensor target = dt_input(f.graph, "target", DT_F32, dt_dims(4));
    f.bytes = data_host_bytes(f.ctx);
    for (int wide = 0; wide < 2; wide++) {
        dti_loader_desc d = loader_desc(&f, 100);
        f.data.columns[LOADER_ID] = (dt_column){.input = target,
                                                .data = wide ? (void *)class : (void *)small,
                                                .dtype = wide ? DT_I32 : DT_U8,
                                                .one_hot = true};
        memset(f.data.columns + 2, 0, sizeof f.data.columns - 2 * sizeof f.data.columns[0]);
        f.data.sample = NULL;
        REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
        REQUIRE(dti_loader_next(l, &b) == DT_OK);
        for (uint32_t i = 0; i < 400; i++)
            CHECK(((const float *)b->values[1])[i] ==
                  (class[b->sources[i / 4]] == (int32_t)(i % 4) ? 1.0f : 0.0f));
        dti_loader_destroy(l);
    }
    class[90] = 4;
    dti_loader_desc d = loader_desc(&f, LOADER_ROWS);
    REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
    CHECK(dti_loader_next(l, &b) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(f.ctx), "failed for row 90 ");
    CHECK_CONTAINS(dt_ctx_error(f.ctx), "column 1: class 4 is not in [0, 4)");
    dti_loader_destroy(l);
    loader_close(&f, NULL);
}

/* ---- what the system refuses */

typedef struct loader_meter {
    int left;             /* allocations that succeed; -1 = all */
    int others, warnings; /* calls from another thread than the test's; log items */
    pthread_t thread;
} loader_meter;

static void *loader_meter_alloc(void *user, size_t bytes, size_t align) {
    loader_meter *m = user;
    m->others += !pthread_equal(m->thread, pthread_self());
    if (m->left == 0)
        return NULL;
    m->left -= m->left > 0;
    return dti_malloc_aligned(NULL, bytes, align);
}

static void loader_meter_free(void *user, void *memory, size_t bytes) {
    loader_meter *m = user;
    m->others += !pthread_equal(m->thread, pthread_self());
    dti_malloc_free(NULL, memory, bytes);
}

static void loader_meter_log(void *user, dt_log_level level, const char *message) {
    loader_meter *m = user;
    m->others += !pthread_equal(m->thread, pthread_self());
    m->warnings += level == DT_LOG_WARNING && strstr(message, "no thread") != NULL;
}

/* The fixture's base, watched. */
static void loader_watch(loader_fixture *f, loader_meter *m) {
    *m = (loader_meter){.left = -1, .thread = pthread_self()};
    f->base->allocator = (dt_allocator){loader_meter_alloc, loader_meter_free, m};
    f->base->logger = (dt_logger){loader_meter_log, m};
}

TEST(loader_out_of_memory_reports_it_and_leaks_nothing) {
    loader_fixture f;
    loader_meter m;
    REQUIRE(loader_open(&f));
    loader_watch(&f, &m);
    dti_loader_desc d = loader_desc(&f, 8);
    const int needed = 4 + 2 * LOADER_COLUMNS; /* itself, the order, two slots and their rows */
    for (int left = 0; left <= needed; left++) {
        dti_loader *l = NULL;
        m.left = left;
        dt_result result = dti_loader_create(f.base, &d, &l);
        m.left = -1;
        CHECK(result == (left < needed ? DT_ERROR_MEMORY : DT_OK) && !l == (left < needed));
        dti_loader_destroy(l);
        CHECK(data_host_bytes(f.ctx) == f.bytes);
    }
    loader_close(&f, NULL);
}

TEST(loader_without_a_thread_warns_and_gives_the_same_batches) {
    loader_fixture f;
    loader_meter m;
    REQUIRE(loader_open(&f));
    loader_watch(&f, &m);
    dti_loader_desc d = loader_desc(&f, 30);
    harness_threads_left = 0;
    bool right = loader_runs_right(&f, &d);
    harness_threads_left = -1;
    CHECK(right && m.warnings == 1);
    CHECK(pthread_equal(f.thread, pthread_self()));
    loader_close(&f, NULL);
}

TEST(loader_keeps_the_application_s_allocator_and_logger_off_its_thread) {
    loader_fixture f;
    loader_meter m;
    REQUIRE(loader_open(&f));
    loader_watch(&f, &m);
    dti_loader_desc d = loader_desc(&f, 30);
    f.fail_at = 40;
    dti_loader *l;
    const dti_batch *b;
    REQUIRE(dti_loader_create(f.base, &d, &l) == DT_OK);
    for (int i = 0; i < 8; i++)
        CHECK(dti_loader_next(l, &b) == (i == 1 ? DT_ERROR_FORMAT : DT_OK));
    loader_close(&f, l);
    CHECK(!pthread_equal(f.thread, pthread_self()));
    CHECK(m.others == 0 && m.warnings == 0);
}

/* ---- what a bad dataset gets */

static void loader_refused(loader_fixture *f, const dti_loader_desc *d, int line,
                           const char *part) {
    dti_loader *l = (dti_loader *)(void *)f;
    dt_result result = dti_loader_create(f->base, d, &l);
    test_check(result == DT_ERROR_INVALID && !l && data_host_bytes(f->ctx) == f->bytes, __FILE__,
               line, "not refused cleanly: %s", part);
    test_check(strstr(dt_ctx_error(f->ctx), part) != NULL, __FILE__, line,
               "\"%s\" does not contain \"%s\"", dt_ctx_error(f->ctx), part);
}

TEST(loader_refuses_a_size_that_gives_no_batch) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    dti_loader_desc d = loader_desc(&f, 8);
    f.data.rows = 0;
    loader_refused(&f, &d, __LINE__, "dt_dataset.rows is 0");
    f.data.rows = (uint64_t)1 << 32;
    loader_refused(&f, &d, __LINE__, "dt_dataset.rows is 4294967296");
    f.data.rows = 7;
    d.tail = DT_TAIL_DROP;
    loader_refused(&f, &d, __LINE__, "7 rows, less than a batch of 8");
    d.tail = (dt_tail)3;
    loader_refused(&f, &d, __LINE__, ".tail is 3");
    d.tail = DT_TAIL_KEEP;
    d.batch = 0;
    loader_refused(&f, &d, __LINE__, ".batch is 0");
    loader_close(&f, NULL);
}

TEST(loader_refuses_a_column_that_does_not_fit_its_input) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    dt_graph *g = f.graph;
    const dti_loader_desc d = loader_desc(&f, 8);
    const dt_column right = f.data.columns[LOADER_ID];
    dt_column *c = &f.data.columns[LOADER_ID];
    const dt_column wrong[] = {
        {right.input, f.x, DT_F32, 0, 0, false},
        {right.input, f.id, DT_I64, 0, 0, false},
        {right.input, f.label, DT_U8, 2, 0, false},
        {f.data.columns[LOADER_X].input, f.x, DT_F32, 0, 0, false},
        {dt_param(g, "weight", dt_dims(3), (dt_init){0}), f.x, DT_F32, 0, 0, false},
        {dt_relu(f.data.columns[LOADER_X].input), f.x, DT_F32, 0, 0, false},
        {dt_input_shared(g, "shared", DT_F32, dt_dims(3)), f.x, DT_F32, 0, 0, false},
        {{0}, f.x, DT_F32, 0, 0, false},
        {{0}, NULL, DT_F32, 0, 0, false},
    };
    static const char *const parts[] = {
        "column 1 ('id'): the input is i32",   "column 1 ('id'): the input is i32",
        "column 1 ('id'): .scale and .offset", "columns 0 and 1 both have the input 'x'",
        "column 1: 'weight' is not an input",  "column 1: 'relu' is not an input",
        "column 1: 'shared' is shared",        "column 1: its input is nil",
        "column 1: its input is nil"};
    REQUIRE(dt_graph_error(g) == NULL);
    f.bytes = data_host_bytes(f.ctx);
    for (size_t i = 0; i < DTI_COUNT(wrong); i++) {
        *c = wrong[i];
        loader_refused(&f, &d, __LINE__, parts[i]);
    }
    *c = right;
    f.data.columns[LOADER_X].scale = 2;
    loader_refused(&f, &d, __LINE__, "column 0 ('x'): .scale and .offset");
    f.data.columns[LOADER_X].scale = 0;
    f.data.sample = NULL;
    loader_refused(&f, &d, __LINE__, "column 4 ('noise'): .data is NULL");
    memset(f.data.columns, 0, sizeof f.data.columns);
    loader_refused(&f, &d, __LINE__, "no columns");
    loader_close(&f, NULL);
}

TEST(loader_refuses_threads_weights_and_one_hot_that_make_no_sense) {
    loader_fixture f;
    float weights[LOADER_ROWS] = {0};
    uint32_t lengths[LOADER_ROWS] = {0};
    REQUIRE(loader_open(&f));
    const dti_loader_desc d = loader_desc(&f, 8);
    f.data.threads = 65;
    loader_refused(&f, &d, __LINE__, "dt_dataset.threads is 65");
    f.data.threads = -1;
    loader_refused(&f, &d, __LINE__, "dt_dataset.threads is -1");
    f.data.threads = 0;
    f.data.weights = weights;
    loader_refused(&f, &d, __LINE__, "weights are all 0");
    weights[3] = -1;
    loader_refused(&f, &d, __LINE__, "weights[3] is -1");
    weights[3] = 0;
    weights[5] = (float)NAN;
    loader_refused(&f, &d, __LINE__, "weights[5] is nan");
    f.data.lengths = lengths;
    loader_refused(&f, &d, __LINE__, ".weights and .lengths");
    f.data.weights = NULL;
    f.data.lengths = NULL;
    f.data.columns[LOADER_ID].one_hot = true;
    loader_refused(&f, &d, __LINE__, "column 1 ('id'): .one_hot");
    loader_close(&f, NULL);
}

TEST(loader_refuses_inputs_of_two_graphs) {
    loader_fixture f;
    REQUIRE(loader_open(&f));
    const dti_loader_desc d = loader_desc(&f, 8);
    dt_graph *other;
    REQUIRE(dt_graph_create(f.ctx, &other) == DT_OK);
    f.data.columns[LOADER_ID].input = dt_input(other, "id", DT_I32, dt_dims());
    f.bytes = data_host_bytes(f.ctx);
    loader_refused(&f, &d, __LINE__, "columns 0 and 1 have inputs of different graphs");
    loader_close(&f, NULL);
}
