/* Streams (dt_dataset.stream): order, replicas, ranks, resume, and what a stream does wrong. The
 * oracle is a set in memory whose rows are the stream's samples in the order that the header says,
 * made from dt_shuffle. On the public API. */
#include "parallel/train_processes.h"
#include "temp.h"

enum { STREAM_SIDE = TRAIN_SIDE * TRAIN_SIDE, STREAM_MOST = 1024, STREAM_STEPS = 24 };

/* Sample i is row i % TRAIN_ROWS of the model's data. */
typedef struct stream_source {
    const train_data *data;
    uint64_t at;       /* the next sample */
    uint64_t length;   /* it ends there; 0 = never */
    uint64_t fail_at;  /* 1 + the sample that fails; 0 = none */
    dt_result fail;    /* with that result, */
    int fails;         /* so many times */
    size_t wrong;      /* or, if it is DT_OK: it has so many bytes more */
    uint64_t asked;    /* calls of seek */
    uint64_t sought;   /* where the newest led */
    atomic_int inside; /* calls under way */
    bool overlaps;     /* there were two */
} stream_source;

static dt_result stream_next(void *user, dt_stream_sample *s) {
    stream_source *from = user;
    from->overlaps = from->overlaps || atomic_fetch_add(&from->inside, 1);
    const bool fails = from->fail_at == s->row + 1 && from->fails && from->fails--;
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

static bool stream_open(stream_run *r, uint32_t shuffle, int batch) {
    memset(r, 0, sizeof *r);
    if (!train_model_make(&r->m, &(dt_ctx_desc){.no_vulkan = true, .threads = 1}, 0))
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

TEST(a_stream_trains_as_its_samples_in_memory_in_the_order_of_its_shuffle_buffer) {
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
