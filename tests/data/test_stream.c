/* Streams (dt_dataset.stream): order, replicas, ranks, resume, and what a stream does wrong. The
 * oracle is a set in memory whose rows are the stream's samples. Their order is the header's, made
 * from dt_shuffle. On the public API. */
#include "parallel/train_processes.h"
#include "temp.h"

enum { STREAM_SIDE = TRAIN_SIDE * TRAIN_SIDE, STREAM_MOST = 1024, STREAM_STEPS = 24 };

/* Sample i is row i % TRAIN_ROWS of the model's data. */
typedef struct stream_source {
    const train_data *data;
    _Atomic uint64_t at; /* the next sample */
    uint64_t length;     /* it ends there; 0 = never */
    uint64_t fail_at;    /* 1 + the sample that fails; 0 = none */
    dt_result fail;      /* with that result */
    atomic_int fails;    /* how often */
    size_t wrong;        /* or, if it is DT_OK: by how many bytes it is longer */
    uint64_t asked;      /* calls of seek */
    uint64_t sought;     /* where the newest led */
    atomic_int inside;   /* calls under way */
    bool overlaps;       /* there were two */
    atomic_bool stuck;   /* it does not return */
} stream_source;

static dt_result stream_next(void *user, dt_stream_sample *s) {
    stream_source *from = user;
    from->overlaps = from->overlaps || atomic_fetch_add(&from->inside, 1);
    const bool fails = from->fail_at == s->row + 1 && from->fails > 0;
    from->fails -= fails;
    while (from->stuck && from->fail_at == s->row + 1)
        job_sleep_us(1000);
    dt_result result = s->row == from->at ? DT_OK : DT_ERROR_CORRUPT;
    if (fails && from->fail) {
        result = from->fail;
        if (result == DT_ERROR_TIMEOUT)
            job_sleep_us(1000);
        else
            snprintf(s->error, s->error_bytes, "the line is cut");
    } else if (from->length && from->at == from->length) {
        s->end = true;
    } else if (!result) {
        const uint64_t row = from->at++ % TRAIN_ROWS;
        memcpy(s->values[0], from->data->x + row * STREAM_SIDE, s->bytes[0]);
        memcpy(s->values[1], from->data->t + row, s->bytes[1]);
        s->bytes[0] += fails ? from->wrong : 0;
        from->at -= fails;
    }
    atomic_fetch_sub(&from->inside, 1);
    return result;
}

static dt_result stream_seek(void *user, uint64_t row) {
    stream_source *from = user;
    from->asked++;
    from->at = from->sought = row;
    return DT_OK;
}

typedef struct stream_run {
    train_model m;
    stream_source source;
    dt_stream_desc stream;
    dt_trainer_desc desc;
    dt_trainer *trainer;
} stream_run;

static bool stream_open_with(stream_run *r, const dt_ctx_desc *ctx, uint32_t shuffle, int batch) {
    memset(r, 0, sizeof *r);
    if (!train_model_make(&r->m, ctx, 0))
        return false;
    r->source.data = &r->m.data;
    r->stream = (dt_stream_desc){
        .name = "log", .next = stream_next, .user = &r->source, .shuffle = shuffle};
    r->desc = train_desc(&r->m);
    r->desc.batch = batch;
    r->desc.parallel.batch_slices = 6;
    r->desc.data.rows = 0;
    r->desc.data.columns[0].data = r->desc.data.columns[1].data = NULL;
    r->desc.data.stream = &r->stream;
    return true;
}

static bool stream_open(stream_run *r, uint32_t shuffle, int batch) {
    return stream_open_with(r, &(dt_ctx_desc){.no_vulkan = true, .threads = 1}, shuffle, batch);
}

static bool stream_make(stream_run *r) {
    return CHECK_TEXT(!dt_trainer_create(r->m.graph, &r->desc, &r->trainer), "%s",
                      dt_ctx_error(r->m.ctx));
}

static void stream_close(stream_run *r) {
    dt_ctx_destroy(r->m.ctx);
}

/* The state after each of `steps` steps. */
static bool stream_hashes(stream_run *r, int steps, uint64_t *hashes) {
    dt_train_report report;
    for (int i = 0; i < steps; i++) {
        if (!CHECK_TEXT(!dt_trainer_step(r->trainer, &report), "step %d: %s", i + 1,
                        dt_ctx_error(r->m.ctx)))
            return false;
        CHECK(report.samples == (uint64_t)r->desc.batch && !report.epoch_ended);
        CHECK(!dt_store_state_hash(dt_trainer_store(r->trainer), &hashes[i]));
    }
    return true;
}

/* Of a stream of `length` samples, 0 = without an end, the sample at each position. */
static void stream_order(uint32_t shuffle, uint64_t length, uint64_t seed, uint32_t *samples) {
    static uint32_t order[STREAM_MOST];
    const uint32_t n = shuffle ? shuffle : 1, all = length ? (uint32_t)length : STREAM_MOST;
    for (uint32_t start = 0; start < all; start += n) {
        const uint32_t count = length && all - start < n ? all - start : n;
        dt_shuffle(order, count, seed, start / n);
        for (uint32_t i = 0; i < count && start + i < STREAM_MOST; i++)
            samples[start + i] = start + order[i];
    }
}

static float stream_x[STREAM_MOST][STREAM_SIDE];
static int32_t stream_t[STREAM_MOST];

/* The same from memory. */
static bool stream_oracle(uint32_t shuffle, int batch, uint64_t length, int steps,
                          uint64_t *hashes) {
    stream_run r;
    uint32_t samples[STREAM_MOST];
    if (!stream_open(&r, shuffle, batch))
        return false;
    stream_order(shuffle, length, r.desc.seed, samples);
    for (int i = 0; i < STREAM_MOST; i++) {
        const uint32_t row = samples[i] % TRAIN_ROWS;
        memcpy(stream_x[i], r.m.data.x + row * STREAM_SIDE, sizeof stream_x[i]);
        stream_t[i] = r.m.data.t[row];
    }
    r.desc.data.stream = NULL;
    r.desc.no_shuffle = true;
    r.desc.data.rows = STREAM_MOST;
    r.desc.data.columns[0].data = stream_x;
    r.desc.data.columns[1].data = stream_t;
    const bool ok = stream_make(&r) && stream_hashes(&r, steps, hashes);
    stream_close(&r);
    return ok;
}

TEST(a_stream_trains_the_same_as_its_samples_in_memory_in_shuffle_buffer_order) {
    static const struct {
        uint32_t shuffle;
        int batch, threads;
    } cases[] = {{0, 10, 0}, {1, 37, 2}, {32, 10, 0}, {7, 37, 3}, {37, 37, 1}, {500, 9, 1}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint64_t want[STREAM_STEPS], got[STREAM_STEPS];
        stream_run r;
        REQUIRE(stream_open(&r, cases[c].shuffle, cases[c].batch));
        r.desc.data.threads = cases[c].threads;
        harness_threads_left = c == 2 ? 0 : -1;
        const bool ran = stream_make(&r) && stream_hashes(&r, STREAM_STEPS, got);
        harness_threads_left = -1;
        CHECK(!r.source.overlaps);
        stream_close(&r);
        REQUIRE(ran && stream_oracle(cases[c].shuffle, cases[c].batch, 0, STREAM_STEPS, want));
        CHECK_TEXT(!memcmp(want, got, sizeof want), "case %zu", c);
    }
}

TEST(a_stream_trains_the_same_bits_on_any_number_of_replicas_and_ranks) {
    static const struct {
        const char *devices;
        int zero, pipeline;
    } cases[] = {{"cpu:2", 0, 0}, {"cpu:3", 3, 0}, {"cpu:6", 0, 0}, {"cpu:4", 0, 2}};
    uint64_t want[STREAM_STEPS], got[STREAM_STEPS];
    REQUIRE(stream_oracle(32, 37, 0, STREAM_STEPS, want));
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        stream_run r;
        REQUIRE(stream_open(&r, 32, 37));
        r.desc.devices = cases[c].devices;
        r.desc.parallel.zero_stage = cases[c].zero;
        r.desc.parallel.pipeline = cases[c].pipeline;
        CHECK(stream_make(&r) && stream_hashes(&r, STREAM_STEPS, got));
        stream_close(&r);
        CHECK_TEXT(!memcmp(want, got, sizeof want), "case %zu", c);
    }
}

/* ---- ranks */

enum { STREAM_LENGTH = 896 }; /* whole blocks of 32: for 24 steps of 37, and not for 25 */

static void stream_rank(rank *r) {
    stream_run s;
    if (!EXPECT(r, stream_open(&s, 32, 37)))
        return;
    s.desc.comm = r->comm;
    s.desc.devices = r->index ? "cpu" : "cpu:2";
    s.source.length = r->index == 1 ? STREAM_LENGTH : 0;
    EXPECT_TEXT(r, !dt_trainer_create(s.m.graph, &s.desc, &s.trainer), "%s", dt_ctx_error(s.m.ctx));
    for (int i = 0; i < STREAM_STEPS && s.trainer; i++) {
        dt_train_report report;
        if (!EXPECT_TEXT(r, !dt_trainer_step(s.trainer, &report), "%s", dt_ctx_error(s.m.ctx)))
            break;
        EXPECT(r, !dt_store_state_hash(dt_trainer_store(s.trainer), &r->records[i].hash));
    }
    r->result = s.trainer ? dt_trainer_step(s.trainer, NULL) : DT_OK;
    snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(s.m.ctx));
    EXPECT(r, !dt_store_state_hash(dt_trainer_store(s.trainer), &r->numbers[0]));
    stream_close(&s);
}

TEST(ranks_with_a_stream_each_train_the_bits_of_one_rank_and_all_end_with_one) {
    uint64_t want[STREAM_STEPS];
    REQUIRE(stream_oracle(32, 37, 0, STREAM_STEPS, want));
    for (int count = 2; count <= 3; count++) {
        job *j = job_new(count, NULL);
        REQUIRE(j && job_run(j, stream_rank));
        for (int i = 0; i < count; i++) {
            for (int k = 0; k < STREAM_STEPS; k++)
                CHECK_TEXT(j->at[i].records[k].hash == want[k], "rank %d of %d, step %d", i, count,
                           k + 1);
            const char *said = i == 1 ? "log: ended after 896 samples" : "rank 1 failed";
            CHECK_TEXT(j->at[i].result && strstr(j->at[i].text, said), "%s", j->at[i].text);
            CHECK(j->at[i].numbers[0] == want[STREAM_STEPS - 1]);
        }
        job_free(j);
    }
}

/* ---- resume */

/* A fit to that step, which goes on from the folder's newest checkpoint; the state after it. */
static uint64_t stream_fit(const char *folder, uint32_t shuffle, bool seeks, uint64_t steps,
                           stream_source *source) {
    stream_run r;
    uint64_t hash = 0;
    if (!stream_open(&r, shuffle, 10))
        return 0;
    r.stream.seek = seeks ? stream_seek : NULL;
    r.desc.checkpoint = (dt_checkpoint_desc){.folder = folder, .every_steps = 5};
    if (stream_make(&r)) {
        CHECK_TEXT(!dt_trainer_fit(r.trainer, &(dt_fit_desc){.steps = steps}, NULL), "%s",
                   dt_ctx_error(r.m.ctx));
        CHECK(!dt_store_state_hash(dt_trainer_store(r.trainer), &hash));
    }
    dt_trainer_destroy(r.trainer);
    *source = r.source;
    stream_close(&r);
    return hash;
}

static void stream_clear(const char *folder) {
    char path[512];
    DIR *d = opendir(folder);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        remove(path);
    }
    if (d)
        closedir(d);
    rmdir(folder);
}

TEST(a_resumed_stream_has_the_bits_of_one_that_never_stopped_with_seek_and_without) {
    static const uint32_t buffers[] = {0, 7, 32, 200};
    for (int c = 0; c < 8; c++) {
        const uint32_t shuffle = buffers[c / 2], n = shuffle ? shuffle : 1;
        const bool seeks = c % 2;
        uint64_t want[STREAM_STEPS];
        stream_source source;
        const char *folder = temp_path("stream");
        REQUIRE(stream_oracle(shuffle, 10, 0, STREAM_STEPS, want));
        CHECK(stream_fit(folder, shuffle, seeks, 13, &source) == want[12]);
        CHECK(source.asked == seeks && !source.sought);
        CHECK_TEXT(stream_fit(folder, shuffle, seeks, STREAM_STEPS, &source) ==
                       want[STREAM_STEPS - 1],
                   "buffer %u, seek %d", shuffle, seeks);
        CHECK(source.sought == (seeks ? 130 / n * n : 0));
        stream_clear(folder);
    }
}

TEST(a_stream_goes_back_only_by_seek_and_a_checkpoint_of_another_buffer_is_refused) {
    for (int seeks = 0; seeks < 2; seeks++) {
        const char *path = temp_path("stream.state");
        uint64_t want[STREAM_STEPS], hash;
        stream_run r;
        REQUIRE(stream_oracle(32, 10, 0, STREAM_STEPS, want));
        REQUIRE(stream_open(&r, 32, 10));
        r.stream.seek = seeks ? stream_seek : NULL;
        REQUIRE(stream_make(&r));
        for (int i = 0; i < 14; i++) {
            CHECK(!dt_trainer_step(r.trainer, NULL));
            if (i == 6)
                CHECK(!dt_trainer_save(r.trainer, path));
        }
        CHECK(!dt_trainer_load(r.trainer, path));
        const dt_result result = dt_trainer_step(r.trainer, NULL);
        CHECK(result == (seeks ? DT_OK : DT_ERROR_INVALID));
        if (!seeks)
            CHECK_TEXT(strstr(dt_ctx_error(r.m.ctx), "log: it is past sample"), "%s",
                       dt_ctx_error(r.m.ctx));
        CHECK(!dt_store_state_hash(dt_trainer_store(r.trainer), &hash) &&
              hash == want[seeks ? 7 : 6]);
        dt_lr_curve curve;
        const dt_result found = dt_lr_find(
            r.trainer, &(dt_lr_find_desc){.steps = 5, .file = temp_path("stream.lr")}, &curve);
        CHECK_TEXT(found == (seeks ? DT_OK : DT_ERROR_INVALID), "%s", dt_ctx_error(r.m.ctx));
        dt_lr_curve_destroy(&curve);
        if (seeks)
            CHECK(!dt_trainer_step(r.trainer, NULL) &&
                  !dt_store_state_hash(dt_trainer_store(r.trainer), &hash) && hash == want[8]);
        stream_close(&r);
        REQUIRE(stream_open(&r, 33, 10) && stream_make(&r));
        CHECK(dt_trainer_load(r.trainer, path) == DT_ERROR_INVALID);
        CHECK_TEXT(strstr(dt_ctx_error(r.m.ctx), "2 + .shuffle) is 34 in the checkpoint, but 35"),
                   "%s", dt_ctx_error(r.m.ctx));
        stream_close(&r);
    }
}

/* ---- the loader is made again, while the stream has been read on */

/* Loads the state after the step `after`, and makes steps up to `steps`. */
static bool stream_go_on(stream_run *r, const char *path, int after, int steps, uint64_t *hashes) {
    for (int i = 0; i < 2000 && r->source.at < 10; i++)
        job_sleep_us(1000); /* the first batch is read ahead */
    return CHECK_TEXT(!dt_trainer_load(r->trainer, path), "%s", dt_ctx_error(r->m.ctx)) &&
           stream_hashes(r, steps - after, hashes + after);
}

enum { STREAM_SAVED = 7, STREAM_ON = 12 };

/* A state of that number of replicas and batch slices. */
static bool stream_saved(const char *path, const char *devices, uint32_t shuffle, uint64_t *want) {
    stream_run r;
    if (!stream_open(&r, shuffle, 10))
        return false;
    r.desc.devices = devices;
    r.desc.parallel.batch_slices = 0;
    const bool ok = stream_make(&r) && stream_hashes(&r, STREAM_SAVED, want) &&
                    CHECK_TEXT(!dt_trainer_save(r.trainer, path), "%s", dt_ctx_error(r.m.ctx)) &&
                    stream_hashes(&r, STREAM_ON - STREAM_SAVED, want + STREAM_SAVED);
    stream_close(&r);
    return ok;
}

TEST(a_stream_without_seek_loses_no_sample_where_a_state_has_other_batch_slices) {
    for (int c = 0; c < 4; c++) {
        const char *path = temp_path("stream.slices");
        const uint32_t shuffle = c / 2 ? 32 : 0;
        uint64_t want[STREAM_STEPS], got[STREAM_STEPS];
        stream_run r;
        REQUIRE(stream_saved(path, "cpu:2", shuffle, want) && stream_open(&r, shuffle, 10));
        r.desc.parallel.batch_slices = 0;
        r.desc.data.threads = 1 + c % 2;
        REQUIRE(stream_make(&r));
        CHECK(stream_go_on(&r, path, STREAM_SAVED, STREAM_ON, got));
        CHECK(!memcmp(want + STREAM_SAVED, got + STREAM_SAVED,
                      (STREAM_ON - STREAM_SAVED) * sizeof *want));
        stream_close(&r);
    }
}

static int stream_left; /* allocations until one fails; 0: none does */
static atomic_int stream_live;

static void *stream_alloc(void *user, size_t bytes, size_t align) {
    if (stream_left && !--stream_left)
        return NULL;
    stream_live++;
    return train_alloc(user, bytes, align);
}

static void stream_release(void *user, void *memory, size_t bytes) {
    stream_live -= memory != NULL;
    train_free(user, memory, bytes);
}

TEST(a_stream_s_samples_are_freed_where_its_loader_cannot_be_made_again) {
    const char *path = temp_path("stream.memory");
    uint64_t want[STREAM_STEPS];
    atomic_int calls = 0;
    dt_result result = DT_ERROR_MEMORY;
    const dt_ctx_desc counting = {
        .no_vulkan = true,
        .threads = 1,
        .allocator = {.alloc = stream_alloc, .free = stream_release, .user = &calls}};
    REQUIRE(stream_saved(path, "cpu:2", 32, want));
    int failed = 0;
    for (int i = 1; result == DT_ERROR_MEMORY; i++) {
        stream_run r;
        REQUIRE(stream_open_with(&r, &counting, 32, 10));
        r.desc.parallel.batch_slices = 0;
        REQUIRE(stream_make(&r));
        stream_left = i;
        result = dt_trainer_load(r.trainer, path);
        failed += result == DT_ERROR_MEMORY;
        stream_left = 0;
        stream_close(&r);
        CHECK_TEXT(!stream_live, "allocation %d: %d are left", i, (int)stream_live);
    }
    CHECK_TEXT(!result && failed > 10, "%d failed", failed);
}

static void stream_rank_goes_on(rank *r) {
    stream_run s;
    uint64_t got[STREAM_STEPS] = {0};
    if (!EXPECT(r, stream_open(&s, 32, 10)))
        return;
    s.desc.comm = r->comm;
    s.desc.parallel.batch_slices = 0;
    EXPECT(r, stream_make(&s) && stream_go_on(&s, r->job->arg, STREAM_SAVED, STREAM_ON, got));
    for (int i = STREAM_SAVED; i < STREAM_ON; i++)
        r->records[i].hash = got[i];
    stream_close(&s);
}

TEST(ranks_with_streams_without_seek_lose_no_sample_when_batch_slices_change) {
    const char *path = temp_path("stream.ranks");
    uint64_t want[STREAM_STEPS];
    REQUIRE(stream_saved(path, "cpu:4", 32, want));
    job *j = job_new(2, path);
    REQUIRE(j && job_run(j, stream_rank_goes_on));
    for (int i = 0; i < 2; i++)
        for (int k = STREAM_SAVED; k < STREAM_ON; k++)
            CHECK_TEXT(j->at[i].records[k].hash == want[k], "rank %d, step %d", i, k + 1);
    job_free(j);
}

static void stream_balanced(void *user, dt_log_level level, const char *text) {
    (void)level;
    if (strstr(text, "balance: "))
        ++*(atomic_int *)user;
}

TEST(a_stream_without_seek_loses_no_sample_where_a_measured_balance_changes) {
    stream_run r;
    atomic_int changes = 0;
    uint64_t steps = 0;
    const dt_ctx_desc listens = {
        .no_vulkan = true, .threads = 1, .logger = {.log = stream_balanced, .user = &changes}};
    REQUIRE(stream_open_with(&r, &listens, 32, 13));
    r.desc.devices = "cpu:4";
    r.desc.parallel.batch_slices = 0;
    r.desc.parallel.balance = DT_BALANCE_MEASURED;
    r.desc.data.rows = 13; /* it may change after each step */
    REQUIRE(stream_make(&r));
    for (int after = 0; after < 5 && steps < 20000; after += changes != 0, steps++)
        REQUIRE(CHECK_TEXT(!dt_trainer_step(r.trainer, NULL), "step %d: %s", (int)steps + 1,
                           dt_ctx_error(r.m.ctx)));
    stream_close(&r);
    CHECK(r.source.at <= (steps + 1) * 13 + 31);
    if (!changes)
        SKIP("the replicas were all as fast");
}

/* ---- epochs, and callbacks for its samples */

typedef struct stream_seen {
    uint64_t row[STREAM_MOST], epoch[STREAM_MOST]; /* by sample of training */
    atomic_uint count, fail_at;                    /* fails once, at this call */
    int batch;
} stream_seen;

/* Of whole batches; the values stay. */
static dt_result stream_see(void *user, const dt_sample *s, void *const *values) {
    stream_seen *seen = user;
    (void)values;
    const uint64_t at = (s->step - 1) * (uint64_t)seen->batch + s->position;
    seen->row[at] = s->row;
    seen->epoch[at] = s->epoch;
    if (++seen->count != seen->fail_at)
        return DT_OK;
    snprintf(s->error, s->error_bytes, "no luck");
    return DT_ERROR_CORRUPT;
}

TEST(a_stream_with_rows_has_epochs_of_that_number_of_samples) {
    static const dt_tail tails[] = {DT_TAIL_KEEP, DT_TAIL_DROP, DT_TAIL_PAD};
    for (int i = 0; i < 3; i++) {
        static stream_seen seen;
        stream_run r;
        dt_history h;
        uint32_t samples[STREAM_MOST];
        memset(&seen, 0, sizeof seen);
        seen.batch = 37;
        REQUIRE(stream_open(&r, 20, 37));
        stream_order(20, 0, r.desc.seed, samples);
        r.desc.data.rows = 100;
        r.desc.tail = tails[i];
        r.desc.data.sample = stream_see;
        r.desc.data.user = &seen;
        dt_dataset valid = train_desc(&r.m).data;
        REQUIRE(stream_make(&r));
        CHECK_TEXT(
            !dt_trainer_fit(r.trainer, &(dt_fit_desc){.epochs = 3, .validation = &valid}, &h), "%s",
            dt_ctx_error(r.m.ctx));
        const uint64_t each = i == 1 ? 74 : 100, steps = i == 1 ? 2 : 3;
        CHECK(h.count == 3 && h.steps == 3 * steps);
        for (uint64_t at = 0; at < 3 * each; at++) {
            const uint64_t epoch = at / each, step = epoch * steps + at % each / 37;
            const uint64_t place = step * 37 + at % each % 37;
            CHECK(seen.row[place] == samples[at] && seen.epoch[place] == epoch);
        }
        dt_history_destroy(&h);
        stream_close(&r);
    }
}

TEST(a_step_that_is_made_again_takes_the_same_samples_of_a_stream_that_cannot_seek) {
    static stream_seen seen;
    uint64_t want[STREAM_STEPS], got[STREAM_STEPS];
    stream_run r;
    REQUIRE(stream_oracle(32, 10, 0, STREAM_STEPS, want));
    REQUIRE(stream_open(&r, 32, 10));
    memset(&seen, 0, sizeof seen);
    seen.batch = 10;
    seen.fail_at = 75;
    r.desc.data.sample = stream_see;
    r.desc.data.user = &seen;
    dt_dataset valid = train_desc(&r.m).data;
    REQUIRE(stream_make(&r));
    int failed = 0;
    for (int i = 0; i < STREAM_STEPS; i++) {
        const dt_result result = dt_trainer_step(r.trainer, NULL);
        CHECK(!result || (result == DT_ERROR_CORRUPT && i >= 4));
        if (result)
            CHECK_TEXT(strstr(dt_ctx_error(r.m.ctx), "no luck"), "%s", dt_ctx_error(r.m.ctx));
        i -= result != 0;
        REQUIRE((failed += result != 0) < 2);
        if (i % 5 == 3)
            CHECK(!dt_trainer_evaluate(r.trainer, &valid, 0, NULL));
        if (!result)
            CHECK(!dt_store_state_hash(dt_trainer_store(r.trainer), &got[i]) && got[i] == want[i]);
    }
    CHECK(failed == 1 && !r.source.overlaps);
    stream_close(&r);
}

/* One of every 150 samples has a NaN, whose step is skipped while the next one is in flight. The
 * results of 30 calls, and the state after them. */
static bool stream_fly(bool memory, dt_result *results, uint64_t *hash) {
    stream_run r;
    memset(&r, 0, sizeof r);
    if (!train_model_make(&r.m, &(dt_ctx_desc){.validation = true}, 0))
        return false;
    r.m.data.x[60 * STREAM_SIDE] = NAN;
    r.source.data = &r.m.data;
    r.stream = (dt_stream_desc){.next = stream_next, .user = &r.source};
    r.desc = train_desc(&r.m);
    r.desc.batch = 10;
    r.desc.no_shuffle = true;
    r.desc.devices = "vulkan:0";
    r.desc.limits.in_flight = 2;
    if (!memory) {
        r.desc.data.columns[0].data = r.desc.data.columns[1].data = NULL;
        r.desc.data.stream = &r.stream;
    }
    const bool made = stream_make(&r);
    for (int i = 0; i < 30 && made; i++)
        results[i] = dt_trainer_step(r.trainer, NULL);
    if (made) {
        dt_trainer_wait(r.trainer, NULL);
        CHECK(!dt_store_state_hash(dt_trainer_store(r.trainer), hash));
        CHECK(memory || r.source.at >= 300);
    }
    stream_close(&r);
    return made;
}

TEST(a_stream_gives_steps_in_flight_that_are_made_again_the_same_samples) {
    dt_result want[30], got[30];
    uint64_t wanted = 0, hash = 1;
    if (!train_has_vulkan())
        SKIP("no Vulkan");
    REQUIRE(stream_fly(true, want, &wanted) && stream_fly(false, got, &hash));
    int skipped = 0;
    for (int i = 0; i < 30; i++) {
        CHECK_TEXT(got[i] == want[i], "call %d: %d and %d", i, got[i], want[i]);
        skipped += got[i] == DT_ERROR_NUMERIC;
    }
    CHECK(skipped == 2 && hash == wanted);
}

/* ---- what a stream does wrong */

static const struct {
    stream_source source; /* its settings */
    uint32_t shuffle;
    int step;   /* that is not made, the first of batches of 10 */
    bool again; /* a second call makes it */
    dt_result result;
    const char *text;
} stream_wrongs[] = {
    {{.length = 95},
     0,
     10,
     false,
     DT_ERROR_IO,
     "step 10: log: ended after 95 samples, but the step needs samples 90 to 99"},
    {{.length = 95}, 32, 10, false, DT_ERROR_IO, "log: ended after 95 samples"},
    {{.length = 9}, 3, 1, false, DT_ERROR_IO, "step 1: log: ended after 9 samples"},
    {{.fail_at = 43, .fails = 1, .fail = DT_ERROR_FORMAT},
     0,
     5,
     true,
     DT_ERROR_FORMAT,
     "step 5: log: sample 42: the line is cut"},
    {{.fail_at = 43, .fails = 1, .wrong = 4},
     0,
     5,
     true,
     DT_ERROR_FORMAT,
     "step 5: log: sample 42 has 148 bytes for column 0, which takes 144"},
    {{.fail_at = 43, .fails = 1, .wrong = (size_t)0 - 4},
     8,
     4,
     true,
     DT_ERROR_FORMAT,
     "log: sample 42 has 140 bytes for column 0, which takes 144"},
    {{.fail_at = 43, .fails = 1000000, .fail = DT_ERROR_TIMEOUT},
     0,
     5,
     true,
     DT_ERROR_TIMEOUT,
     "step 5: log: no sample came for 400 ms (.stall_ms), after 42 samples"},
    {{.fail_at = 43, .stuck = true},
     0,
     5,
     true,
     DT_ERROR_TIMEOUT,
     "step 5: log: no sample came for 400 ms (.stall_ms), after 42 samples"},
};

static void stream_wrong(size_t c, int threads) {
    uint64_t want[STREAM_STEPS], got[STREAM_STEPS], hash;
    const int step = stream_wrongs[c].step;
    stream_run r;
    if (!stream_oracle(stream_wrongs[c].shuffle, 10, stream_wrongs[c].source.length, step, want) ||
        !stream_open(&r, stream_wrongs[c].shuffle, 10))
        return;
    r.source = stream_wrongs[c].source;
    r.source.data = &r.m.data;
    r.stream.stall_ms = stream_wrongs[c].result == DT_ERROR_TIMEOUT ? 400 : 0;
    r.desc.data.threads = threads;
    harness_threads_left = threads ? -1 : 0;
    const bool made = stream_make(&r) && stream_hashes(&r, step - 1, got);
    harness_threads_left = -1;
    CHECK_TEXT(!made || !memcmp(got, want, sizeof *got * (size_t)(step - 1)), "case %zu", c);
    for (int i = 0; i < 2 && made; i++) { /* nothing of the step is made */
        const dt_result result = dt_trainer_step(r.trainer, NULL);
        CHECK_TEXT(result == stream_wrongs[c].result &&
                       strstr(dt_ctx_error(r.m.ctx), stream_wrongs[c].text),
                   "case %zu: %s", c, dt_ctx_error(r.m.ctx));
        CHECK(step == 1 ||
              (!dt_store_state_hash(dt_trainer_store(r.trainer), &hash) && hash == want[step - 2]));
        r.source.fails = 0;
        r.source.stuck = false;
        if (stream_wrongs[c].again)
            break;
    }
    if (made && stream_wrongs[c].again) {
        CHECK_TEXT(!dt_trainer_step(r.trainer, NULL), "case %zu: %s", c, dt_ctx_error(r.m.ctx));
        CHECK(!dt_store_state_hash(dt_trainer_store(r.trainer), &hash) && hash == want[step - 1]);
    }
    stream_close(&r);
}

TEST(a_stream_that_ends_stalls_or_fails_is_named_and_no_step_is_made) {
    for (size_t c = 0; c < sizeof stream_wrongs / sizeof stream_wrongs[0]; c++) {
        for (int threads = 0; threads < 3; threads++)
            if (threads || !stream_wrongs[c].source.stuck)
                stream_wrong(c, threads);
    }
}

TEST(a_fit_on_a_stream_that_ends_keeps_the_whole_batches_and_returns_its_error) {
    stream_run r;
    dt_history h;
    REQUIRE(stream_open(&r, 32, 10));
    r.source.length = 95;
    REQUIRE(stream_make(&r));
    CHECK(dt_trainer_fit(r.trainer, &(dt_fit_desc){.steps = 50}, &h) == DT_ERROR_IO);
    CHECK(h.stop == DT_FIT_STOP_FAILED && h.steps == 9);
    dt_history_destroy(&h);
    stream_close(&r);
}

TEST(a_trainer_can_evaluate_and_be_destroyed_while_its_stream_is_empty) {
    for (int threads = 1; threads < 3; threads++) {
        stream_run r;
        REQUIRE(stream_open(&r, 0, 10));
        r.source.fail_at = 11;
        r.source.fails = 1 << 30;
        r.source.fail = DT_ERROR_TIMEOUT;
        r.stream.stall_ms = 400;
        r.desc.data.threads = threads;
        REQUIRE(stream_make(&r));
        dt_dataset valid = train_desc(&r.m).data;
        CHECK(!dt_trainer_step(r.trainer, NULL));
        CHECK(!dt_trainer_evaluate(r.trainer, &valid, 0, NULL));
        CHECK(dt_trainer_step(r.trainer, NULL) == DT_ERROR_TIMEOUT);
        CHECK(!dt_trainer_evaluate(r.trainer, &valid, 0, NULL));
        stream_close(&r);
    }
}

static dt_result stream_refuse(void *user, const dt_sample *s, void *const *values) {
    (void)values;
    atomic_fetch_add((atomic_int *)user, s->row == 44);
    return s->row == 44 ? DT_ERROR_CORRUPT : DT_OK;
}

TEST(a_sample_of_a_stream_that_the_callback_refuses_ends_each_further_step) {
    atomic_int refused = 0;
    stream_run r;
    REQUIRE(stream_open(&r, 0, 10));
    r.desc.data.sample = stream_refuse;
    r.desc.data.user = &refused;
    REQUIRE(stream_make(&r));
    for (int i = 0; i < 7; i++) {
        CHECK(dt_trainer_step(r.trainer, NULL) == (i < 4 ? DT_OK : DT_ERROR_CORRUPT));
        if (i >= 4)
            CHECK_TEXT(strstr(dt_ctx_error(r.m.ctx), "failed for row 44"), "%s",
                       dt_ctx_error(r.m.ctx));
    }
    CHECK(refused >= 3 && r.source.at == 50);
    stream_close(&r);
}

typedef struct stream_busy {
    atomic_int inside, most; /* calls of .sample under way; the most at once */
} stream_busy;

static dt_result stream_work(void *user, const dt_sample *s, void *const *values) {
    stream_busy *busy = user;
    (void)s, (void)values;
    const int inside = atomic_fetch_add(&busy->inside, 1) + 1;
    if (inside > busy->most)
        busy->most = inside;
    job_sleep_us(1000);
    atomic_fetch_sub(&busy->inside, 1);
    return DT_OK;
}

TEST(an_evaluation_waits_for_a_running_sample_callback_of_the_stream) {
    stream_busy busy = {0};
    stream_run r;
    REQUIRE(stream_open(&r, 0, 10));
    r.desc.data.sample = stream_work;
    r.desc.data.user = &busy;
    dt_dataset valid = train_desc(&r.m).data;
    valid.rows = 8;
    valid.sample = stream_work;
    valid.user = &busy;
    REQUIRE(stream_make(&r));
    for (int i = 0; i < 8; i++) {
        CHECK(!dt_trainer_step(r.trainer, NULL));
        job_sleep_us(3000); /* the next batch is read */
        CHECK(!dt_trainer_evaluate(r.trainer, &valid, 0, NULL));
    }
    CHECK_TEXT(busy.most == 1, "%d at once", busy.most);
    stream_close(&r);
}

/* ---- memory, and what is refused */

TEST(a_stream_allocates_nothing_after_the_trainer_is_made) {
    stream_run r;
    atomic_int calls = 0;
    memset(&r, 0, sizeof r);
    REQUIRE(stream_open(&r, 50, 10));
    stream_close(&r);
    const dt_ctx_desc counting = {
        .no_vulkan = true,
        .threads = 1,
        .allocator = {.alloc = train_alloc, .free = train_free, .user = &calls}};
    stream_source source = {0};
    REQUIRE(train_model_make(&r.m, &counting, 0));
    source.data = &r.m.data;
    r.stream.user = &source;
    r.desc = train_desc(&r.m);
    r.desc.data.rows = 0;
    r.desc.data.columns[0].data = r.desc.data.columns[1].data = NULL;
    r.desc.data.stream = &r.stream;
    REQUIRE(stream_make(&r));
    CHECK(!dt_trainer_step(r.trainer, NULL));
    const int before = calls;
    for (int i = 0; i < 20; i++)
        CHECK(!dt_trainer_step(r.trainer, NULL));
    CHECK(calls == before);
    stream_close(&r);
}

TEST(a_wrong_stream_is_refused_and_so_are_settings_that_need_an_end) {
    static const uint32_t indices[1] = {0};
    static const float weights[1] = {1.0f};
    for (int c = 0; c < 8; c++) {
        static const char *const texts[] = {".next is NULL",
                                            "cannot be combined with .indices",
                                            ".weights",
                                            ".lengths",
                                            "column 1 has .data",
                                            ".stall_ms is -1",
                                            ".shuffle is 2000000000",
                                            "a stream needs .data.rows"};
        stream_run r;
        REQUIRE(stream_open(&r, 4, 10));
        dt_dataset *d = &r.desc.data;
        dt_optim_desc optim = r.m.adam;
        optim.schedule[0] = (dt_schedule){.kind = DT_SCHEDULE_COSINE, .epochs = 3};
        r.stream.next = c == 0 ? NULL : r.stream.next;
        d->indices = c == 1 ? indices : NULL;
        d->weights = c == 2 ? weights : NULL;
        d->lengths = c == 3 ? indices : NULL;
        d->columns[1].data = c == 4 ? r.m.data.t : NULL;
        r.stream.stall_ms = c == 5 ? -1 : 0;
        r.stream.shuffle = c == 6 ? 2000000000 : 4;
        r.desc.optim = c == 7 ? &optim : r.desc.optim;
        CHECK_TEXT(dt_trainer_create(r.m.graph, &r.desc, &r.trainer) == DT_ERROR_INVALID &&
                       strstr(dt_ctx_error(r.m.ctx), texts[c]),
                   "case %d: %s", c, dt_ctx_error(r.m.ctx));
        stream_close(&r);
    }
    stream_run r;
    REQUIRE(stream_open(&r, 4, 10) && stream_make(&r));
    const dt_dataset valid = train_desc(&r.m).data;
    float out[TRAIN_CLASSES];
    CHECK(dt_trainer_epoch(r.trainer, NULL) == DT_ERROR_INVALID);
    CHECK(dt_trainer_evaluate(r.trainer, &r.desc.data, 0, NULL) == DT_ERROR_INVALID);
    CHECK(strstr(dt_ctx_error(r.m.ctx), "is a stream"));
    CHECK(dt_trainer_predict(r.trainer, &r.desc.data, r.m.logits, 0, out, 0) == DT_ERROR_INVALID);
    const dt_fit_desc fits[] = {{.epochs = 1},
                                {.epochs = 1, .steps = 5},
                                {.steps = 5, .validation = &valid},
                                {.steps = 5, .validation = &r.desc.data, .validation_steps = 1}};
    for (int i = 0; i < 4; i++)
        CHECK_TEXT(dt_trainer_fit(r.trainer, &fits[i], NULL) == DT_ERROR_INVALID &&
                       strstr(dt_ctx_error(r.m.ctx), "stream"),
                   "fit %d: %s", i, dt_ctx_error(r.m.ctx));
    stream_close(&r);
}
