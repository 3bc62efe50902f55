/* Which rows a set has, and what else samples come from: splits and folds, weights of classes, WAV
 * files, token files, the replay buffer. On the public API. */
#include "temp.h"
#include "train/train_model.h"

static dt_ctx *samples_ctx(void) {
    dt_ctx *ctx = NULL;
    CHECK(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    return ctx;
}

static uint64_t samples_held(const dt_ctx *ctx) {
    dt_ctx_info info;
    dt_ctx_get_info(ctx, &info);
    return info.host_bytes;
}

/* ---- parts of a set */

enum { SPLIT_ROWS = 103 };

typedef struct split_parts {
    uint32_t train[SPLIT_ROWS], valid[SPLIT_ROWS], train_count, valid_count;
} split_parts;

static dt_result split(dt_ctx *ctx, dt_data_split_desc d, split_parts *p) {
    return dt_data_split(ctx, &d, p->train, &p->train_count, p->valid, &p->valid_count);
}

/* Each row once, in rising order. */
static bool split_is_whole(const split_parts *p) {
    int seen[SPLIT_ROWS] = {0};
    bool right = p->train_count + p->valid_count == SPLIT_ROWS;
    for (uint32_t i = 0; i < p->train_count && right; i++) {
        right = p->train[i] < SPLIT_ROWS && (!i || p->train[i] > p->train[i - 1]);
        seen[right ? p->train[i] : 0]++;
    }
    for (uint32_t i = 0; i < p->valid_count && right; i++) {
        right = p->valid[i] < SPLIT_ROWS && (!i || p->valid[i] > p->valid[i - 1]);
        seen[right ? p->valid[i] : 0]++;
    }
    for (int i = 0; i < SPLIT_ROWS; i++)
        right = right && seen[i] == 1;
    return right;
}

TEST(split_gives_each_class_its_share_of_both_parts) {
    dt_ctx *ctx = samples_ctx();
    split_parts a, b;
    uint32_t labels[SPLIT_ROWS];
    REQUIRE(ctx);
    for (int i = 0; i < SPLIT_ROWS; i++) /* 60 of class 0, 33 of 5, 10 of 7 */
        labels[i] = i < 60 ? 0 : i < 93 ? 5 : 7;
    for (int k = 0; k < 3; k++) {
        const double share = (double[]){0, 0.5, 0.1}[k], real = k ? share : 0.2;
        const dt_data_split_desc d = {SPLIT_ROWS, share, .labels = labels, .seed = 4};
        REQUIRE(split(ctx, d, &a) == DT_OK && split(ctx, d, &b) == DT_OK);
        CHECK(split_is_whole(&a) && !memcmp(&a, &b, sizeof a.train_count));
        CHECK(a.valid_count == b.valid_count &&
              !memcmp(a.valid, b.valid, a.valid_count * sizeof *a.valid));
        int count[8] = {0};
        for (uint32_t i = 0; i < a.valid_count; i++)
            count[labels[a.valid[i]]]++;
        CHECK_NEAR(count[0], 60 * real, 1.001);
        CHECK_NEAR(count[5], 33 * real, 1.001);
        CHECK_NEAR(count[7], 10 * real, 1.001);
        CHECK_NEAR(a.valid_count, SPLIT_ROWS * real, 1.001);
    }
    REQUIRE(split(ctx, (dt_data_split_desc){SPLIT_ROWS, .seed = 4}, &a) == DT_OK);
    REQUIRE(split(ctx, (dt_data_split_desc){SPLIT_ROWS, .seed = 5}, &b) == DT_OK);
    CHECK(split_is_whole(&a) && split_is_whole(&b) && a.valid_count == 20);
    CHECK(memcmp(a.valid, b.valid, 20 * sizeof *a.valid) != 0);
    dt_ctx_destroy(ctx);
}

TEST(folds_validate_each_row_once) {
    dt_ctx *ctx = samples_ctx();
    split_parts p;
    uint32_t labels[SPLIT_ROWS];
    REQUIRE(ctx);
    const uint64_t held = samples_held(ctx);
    for (int i = 0; i < SPLIT_ROWS; i++)
        labels[i] = (uint32_t)(i % 3 == 0);
    for (int folds = 2; folds <= SPLIT_ROWS; folds += 9) {
        int seen[SPLIT_ROWS] = {0}, once = 0;
        for (int k = 0; k < folds; k++) {
            REQUIRE(split(ctx,
                          (dt_data_split_desc){SPLIT_ROWS, .folds = folds, .fold = k,
                                               .labels = labels, .seed = 1},
                          &p) == DT_OK);
            CHECK(split_is_whole(&p));
            int ones = 0;
            for (uint32_t i = 0; i < p.valid_count; i++) {
                seen[p.valid[i]]++;
                ones += (int)labels[p.valid[i]];
            }
            CHECK_NEAR(ones, 35.0 / folds, 1.001);
        }
        for (int i = 0; i < SPLIT_ROWS; i++)
            once += seen[i] == 1;
        CHECK(once == SPLIT_ROWS);
    }
    CHECK(split(ctx, (dt_data_split_desc){3, .folds = 4, .fold = 3}, &p) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(ctx), "3 would train and 0 validate");
    CHECK(samples_held(ctx) == held);
    dt_ctx_destroy(ctx);
}

TEST(balanced_weights_are_one_by_the_rows_of_a_class) {
    dt_ctx *ctx = samples_ctx();
    const uint32_t labels[7] = {2, 0, 2, 2, 9, 2, 9};
    float w[7];
    REQUIRE(ctx);
    CHECK(dt_balanced_weights(ctx, labels, 7, w) == DT_OK);
    for (int i = 0; i < 7; i++)
        CHECK(w[i] == (labels[i] == 2 ? 0.25f : labels[i] == 9 ? 0.5f : 1.0f));
    const uint32_t wide[2] = {0, 1u << 24};
    CHECK(dt_balanced_weights(ctx, wide, 2, w) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(ctx), "row 1 has class 16777216");
    dt_ctx_destroy(ctx);
}

/* ---- WAV */

typedef struct wav_file {
    uint8_t bytes[400];
    size_t size;
} wav_file;

static void wav_put(wav_file *w, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        w->bytes[w->size++] = (uint8_t)(i < 8 ? value >> (8 * i) : 0);
}

static void wav_text(wav_file *w, const char *text) {
    memcpy(w->bytes + w->size, text, 4);
    w->size += 4;
}

/* A header for `count` samples of 2 channels, with a chunk of odd length before them. */
static wav_file wav_begin(int format, int bits, int count, bool extensible) {
    wav_file w = {.size = 0};
    const int each = bits / 8;
    wav_text(&w, "RIFF");
    wav_put(&w, 0, 4); /* writers of streams leave it */
    wav_text(&w, "WAVE");
    wav_text(&w, "LIST");
    wav_put(&w, 3, 4);
    wav_put(&w, 0x616263, 4);
    wav_text(&w, "fmt ");
    wav_put(&w, extensible ? 40 : 16, 4);
    wav_put(&w, extensible ? 0xFFFE : (uint64_t)format, 2);
    wav_put(&w, 2, 2);
    wav_put(&w, 16000, 4);
    wav_put(&w, (uint64_t)(16000 * 2 * each), 4);
    wav_put(&w, (uint64_t)(2 * each), 2);
    wav_put(&w, (uint64_t)bits, 2);
    if (extensible) {
        wav_put(&w, 22, 2);
        wav_put(&w, (uint64_t)bits, 2);
        wav_put(&w, 3, 4);
        wav_put(&w, (uint64_t)format, 2);
        for (int i = 0; i < 14; i++)
            wav_put(&w, 7, 1);
    }
    wav_text(&w, "data");
    wav_put(&w, (uint64_t)(2 * each * count), 4);
    return w;
}

TEST(wav_files_of_all_widths_have_the_samples_that_were_written) {
    static const struct {
        int format, bits;
        double step; /* between two numbers */
    } kinds[] = {{1, 8, 0x1p-7},   {1, 16, 0x1p-15}, {1, 24, 0x1p-23},
                 {1, 32, 0x1p-31}, {3, 32, 0},       {3, 64, 0}};
    static const double values[8] = {0, 0.5, -0.5, -1, 0.9921875, 0.25, -0.0078125, 0.125};
    dt_ctx *ctx = samples_ctx();
    REQUIRE(ctx);
    const uint64_t held = samples_held(ctx);
    for (int k = 0; k < 12; k++) {
        const int format = kinds[k / 2].format, bits = kinds[k / 2].bits;
        wav_file w = wav_begin(format, bits, 4, k % 2);
        for (int i = 0; i < 8; i++) {
            const float single = (float)values[i];
            uint64_t word = 0;
            if (format == 1)
                word = (uint64_t)(int64_t)(values[i] / kinds[k / 2].step) + (bits == 8 ? 128 : 0);
            else if (bits == 32)
                memcpy(&word, &single, 4);
            else
                memcpy(&word, &values[i], 8);
            wav_put(&w, word, bits / 8);
        }
        dt_array a;
        int rate = 0;
        const char *path = temp_write("some.wav", w.bytes, w.size);
        if (!CHECK_TEXT(dt_wav_load(ctx, path, &a, &rate) == DT_OK, "%d bits: %s", bits,
                        dt_ctx_error(ctx)))
            continue;
        CHECK(rate == 16000 && a.rank == 2 && a.dim[0] == 2 && a.dim[1] == 4 && a.bytes == 32);
        for (int i = 0; i < 8; i++)
            CHECK_TEXT(((float *)a.data)[i % 2 * 4 + i / 2] == (float)values[i],
                       "%d bits: sample %d is %g", bits, i,
                       (double)((float *)a.data)[i % 2 * 4 + i / 2]);
        dt_array_destroy(&a);
        for (size_t cut = 0; cut < w.size; cut++) {
            path = temp_write("some.wav", w.bytes, cut);
            CHECK(dt_wav_load(ctx, path, &a, NULL) == DT_ERROR_FORMAT && !a.data);
            CHECK_CONTAINS(dt_ctx_error(ctx), "some.wav: byte ");
        }
    }
    CHECK(samples_held(ctx) == held);
    dt_ctx_destroy(ctx);
}

/* RF64 and BW64: sizes of 64 bits are in "ds64", those in the usual places all ones. `data_bytes`:
 * what it says of the samples, which are 2 of 2 channels. */
static wav_file wav_wide(const char *kind, uint64_t data_bytes, int ds64_bytes, uint32_t chunk) {
    const wav_file narrow = wav_begin(1, 16, 2, false);
    wav_file w = {.size = 0};
    wav_text(&w, kind);
    wav_put(&w, UINT32_MAX, 4);
    wav_text(&w, "WAVE");
    wav_text(&w, "ds64");
    wav_put(&w, (uint64_t)ds64_bytes, 4);
    wav_put(&w, 400, 8);
    wav_put(&w, data_bytes, 8);
    wav_put(&w, 2, 8);
    w.size -= ds64_bytes < 24 ? (size_t)(24 - ds64_bytes) : 0;
    wav_put(&w, 0, ds64_bytes > 24 ? ds64_bytes - 24 : 0); /* how many other chunks are so long */
    memcpy(w.bytes + w.size, narrow.bytes + 12, narrow.size - 16);
    w.size += narrow.size - 16;
    wav_put(&w, chunk, 4);
    for (uint64_t i = 0; i < 4; i++)
        wav_put(&w, 16384 * i, 2);
    return w;
}

TEST(wav_files_with_sizes_of_64_bits_are_read) {
    static const struct {
        const char *kind;
        uint64_t data_bytes;
        int ds64_bytes;
        uint32_t chunk;
        const char *wrong;
    } files[] = {{"RF64", 8, 28, UINT32_MAX, NULL},
                 {"BW64", 8, 28, UINT32_MAX, NULL},
                 {"RF64", 8, 40, UINT32_MAX, NULL},
                 {"RF64", 77, 28, 8, NULL}, /* sizes that fit into 32 bits are in the usual place */
                 {"RF64", 9, 28, UINT32_MAX, "a chunk is longer than the file"},
                 {"RF64", UINT64_MAX, 28, UINT32_MAX, "a chunk is longer than the file"},
                 {"RF64", 6, 28, UINT32_MAX, "ends within a sample"},
                 {"RF64", 0, 28, UINT32_MAX, "a chunk is longer than the file"},
                 {"RF64", 8, 12, UINT32_MAX, "'ds64' has less than 16 bytes"},
                 {"RIFF", 8, 28, UINT32_MAX, "a chunk is longer than the file"},
                 {"RF65", 8, 28, UINT32_MAX, "does not begin with RIFF"}};
    dt_ctx *ctx = samples_ctx();
    REQUIRE(ctx);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const wav_file w =
            wav_wide(files[i].kind, files[i].data_bytes, files[i].ds64_bytes, files[i].chunk);
        dt_array a;
        const char *path = temp_write("some.wav", w.bytes, w.size);
        const dt_result result = dt_wav_load(ctx, path, &a, NULL);
        CHECK_TEXT(result == (files[i].wrong ? DT_ERROR_FORMAT : DT_OK), "%d: %s", (int)i,
                   dt_ctx_error(ctx));
        CHECK_CONTAINS(dt_ctx_error(ctx), files[i].wrong ? files[i].wrong : "");
        CHECK(result || (a.dim[0] == 2 && a.dim[1] == 2 && ((float *)a.data)[1] == -1.0f &&
                         ((float *)a.data)[3] == -0.5f));
        dt_array_destroy(&a);
    }
    dt_ctx_destroy(ctx);
}

static void wav_refused(dt_ctx *ctx, const wav_file *w, const char *part) {
    dt_array a;
    const char *path = temp_write("some.wav", w->bytes, w->size);
    CHECK_TEXT(dt_wav_load(ctx, path, &a, NULL) == DT_ERROR_FORMAT && !a.data, "%s", part);
    CHECK_CONTAINS(dt_ctx_error(ctx), part);
}

TEST(wav_files_that_are_wrong_report_the_position) {
    dt_ctx *ctx = samples_ctx();
    REQUIRE(ctx);
    wav_file w = wav_begin(3, 32, 1, false);
    wav_put(&w, 0x7FC00000, 4); /* a NaN */
    wav_put(&w, 0, 4);
    wav_refused(ctx, &w, "byte 56: a sample is not finite");
    w = wav_begin(2, 4, 1, false);
    wav_refused(ctx, &w, "format 2 with 4 bits");
    w = wav_begin(1, 16, 0, false);
    wav_refused(ctx, &w, "there are no samples");
    w.bytes[0] = 'X';
    wav_refused(ctx, &w, "does not begin with RIFF");
    w = wav_begin(1, 16, 1, false);
    w.bytes[44] = 3; /* bytes of a sample */
    wav_refused(ctx, &w, "contradicts itself");
    w = wav_begin(1, 16, 1, false);
    w.bytes[w.size - 4] = 7; /* one sample of two channels, and three bytes of the next */
    for (int i = 0; i < 7; i++)
        wav_put(&w, 0, 1);
    wav_refused(ctx, &w, "byte 63: the chunk 'data' ends within a sample of all channels");
    dt_ctx_destroy(ctx);
}

/* ---- token files */

typedef struct tokens_fixture {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor ids, targets;
    dt_tokens *tokens;
    dt_dataset data;
    dt_trainer *trainer;
} tokens_fixture;

static void tokens_shut(tokens_fixture *f) {
    dt_trainer_destroy(f->trainer);
    dt_tokens_close(f->tokens);
    dt_ctx_destroy(f->ctx);
}

static bool tokens_open(tokens_fixture *f, const char *path, dt_tokens_desc d) {
    memset(f, 0, sizeof *f);
    f->ctx = samples_ctx();
    if (!f->ctx || !CHECK_TEXT(dt_tokens_open(f->ctx, path, &d, &f->tokens) == DT_OK, "%s",
                               dt_ctx_error(f->ctx)))
        return false;
    dt_graph_create(f->ctx, &f->graph);
    f->ids = dt_input(f->graph, "ids", DT_I32, dt_dims(d.window));
    f->targets = dt_input(f->graph, "targets", DT_I32, dt_dims(d.window));
    dt_tensor y = dt_nn_embedding(f->ids, "table", 300, 300);
    if (!CHECK_TEXT(dt_tokens_dataset(f->tokens, f->ids, f->targets, &f->data) == DT_OK, "%s",
                    dt_ctx_error(f->ctx)))
        return false;
    const dt_trainer_desc job = {.loss = dt_cross_entropy(y, f->targets, NULL),
                                 .batch = 2,
                                 .devices = "cpu",
                                 .data = f->data,
                                 .seed = 3};
    return CHECK_TEXT(dt_trainer_create(f->graph, &job, &f->trainer) == DT_OK, "%s",
                      dt_ctx_error(f->ctx));
}

/* 50 tokens after a header of 3 bytes. */
static const char *tokens_file(int bits, uint32_t tenth) {
    uint8_t bytes[300] = {9, 9, 9};
    size_t size = 3;
    for (uint32_t i = 0; i < 50; i++) {
        const uint32_t token = i == 10 ? tenth : i * 5 + 7;
        for (int k = 0; k < bits / 8; k++)
            bytes[size++] = (uint8_t)(token >> (8 * k));
    }
    return temp_write("tokens.bin", bytes, size);
}

TEST(token_files_give_windows_and_their_next_tokens) {
    for (int k = 0; k < 4; k++) {
        const int bits = k % 2 ? 32 : 16, stride = k / 2 ? 3 : 8, rows = k / 2 ? 14 : 6;
        tokens_fixture f;
        const dt_tokens_desc d = {.bits = bits,
                                  .window = 8,
                                  .stride = k / 2 ? 3 : 0,
                                  .skip_bytes = 3,
                                  .vocabulary = 300,
                                  .threads = 3};
        int32_t out[14][8];
        if (!tokens_open(&f, tokens_file(bits, 57), d))
            return;
        CHECK(dt_tokens_rows(f.tokens) == (uint64_t)rows);
        for (int which = 0; which < 2; which++) {
            const dt_tensor x = which ? f.targets : f.ids;
            CHECK_TEXT(dt_trainer_predict(f.trainer, &f.data, dt_reshape(x, dt_dims(8)), 5, out,
                                          (size_t)rows * sizeof *out) == DT_OK,
                       "%s", dt_ctx_error(f.ctx));
            for (int r = 0; r < rows; r++)
                for (int i = 0; i < 8; i++)
                    CHECK(out[r][i] == (r * stride + i + which) * 5 + 7);
        }
        dt_train_report report;
        CHECK(dt_trainer_epoch(f.trainer, &report) == DT_OK && report.samples == (uint64_t)rows);
        tokens_shut(&f);
    }
}

TEST(token_files_that_are_wrong_report_the_position) {
    tokens_fixture f;
    dt_tokens *tokens;
    dt_train_report report;
    const dt_tokens_desc d = {.window = 8, .skip_bytes = 3, .vocabulary = 300};
    if (!tokens_open(&f, tokens_file(16, 300), d))
        return;
    dt_result result = DT_OK;
    for (int i = 0; i < 4 && !result; i++)
        result = dt_trainer_step(f.trainer, &report);
    CHECK(result == DT_ERROR_FORMAT);
    CHECK_CONTAINS(dt_ctx_error(f.ctx),
                   "tokens.bin: byte 23: the token is 300, but the vocabulary has 300");
    static const struct {
        dt_tokens_desc d;
        dt_result result;
        const char *part;
    } wrong[] = {{{.window = 8, .skip_bytes = 2},
                  DT_ERROR_FORMAT,
                  "not a whole number of tokens of 16 bits"},
                 {{.window = 8, .skip_bytes = 3, .bits = 8}, DT_ERROR_INVALID, ".bits is 8"},
                 {{.window = 50, .skip_bytes = 3}, DT_ERROR_FORMAT, "50 tokens; a window of 50"},
                 {{.window = 8, .skip_bytes = 1000}, DT_ERROR_FORMAT, "a header of 1000"},
                 {{.skip_bytes = 3}, DT_ERROR_INVALID, "window 0"}};
    const char *path = tokens_file(16, 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const uint64_t held = samples_held(f.ctx);
        CHECK(dt_tokens_open(f.ctx, path, &wrong[i].d, &tokens) == wrong[i].result && !tokens);
        CHECK_CONTAINS(dt_ctx_error(f.ctx), wrong[i].part);
        CHECK(samples_held(f.ctx) == held);
    }
    dt_dataset set;
    CHECK(dt_tokens_dataset(f.tokens, f.ids, dt_input(f.graph, "o", DT_I32, dt_dims(9)), &set) ==
          DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(f.ctx), "i32 inputs [8]");
    tokens_shut(&f);
}

/* ---- replay */

typedef struct replay_item {
    int32_t number;
    float state[3];
} replay_item;

static void replay_fill(dt_replay *r, int from, int to) {
    for (int i = from; i < to; i++) {
        const replay_item item = {i, {(float)i, 1, 2}};
        CHECK(dt_replay_add(r, &item) == DT_OK);
    }
}

TEST(replay_keeps_the_newest_and_draws_them_evenly) {
    dt_ctx *ctx = samples_ctx();
    dt_replay *r, *again;
    static replay_item items[4000], others[4000];
    static uint64_t places[4000];
    static float weights[4000];
    REQUIRE(ctx);
    const uint64_t held = samples_held(ctx);
    const dt_replay_desc d = {.capacity = 10, .item_bytes = sizeof(replay_item), .seed = 8};
    REQUIRE(dt_replay_create(ctx, &d, &r) == DT_OK && dt_replay_create(ctx, &d, &again) == DT_OK);
    CHECK(dt_replay_sample(r, 1, 0, items, places, NULL) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(ctx), "the buffer is empty");
    replay_fill(r, 0, 4);
    CHECK(dt_replay_count(r) == 4);
    CHECK(dt_replay_sample(r, 50, 0, items, places, NULL) == DT_OK);
    for (int i = 0; i < 50; i++)
        CHECK(items[i].number < 4 && items[i].state[0] == (float)items[i].number);
    replay_fill(r, 4, 25); /* 15 to 24 are left */
    CHECK(dt_replay_count(r) == 10);
    REQUIRE(dt_replay_sample(r, 4000, 0.7, items, places, weights) == DT_OK);
    int count[25] = {0};
    for (int i = 0; i < 4000; i++) {
        count[items[i].number]++;
        CHECK(weights[i] == 1.0f && (int)places[i] == items[i].number % 10);
    }
    for (int i = 0; i < 25; i++)
        CHECK_NEAR(count[i], i < 15 ? 0 : 400, 100 * (i >= 15));
    replay_fill(again, 0, 4);
    CHECK(dt_replay_sample(again, 50, 0, NULL, places, NULL) == DT_OK);
    replay_fill(again, 4, 25);
    CHECK(dt_replay_sample(again, 4000, 0, others, places, NULL) == DT_OK);
    CHECK(!memcmp(items, others, sizeof items));
    const float error = 1;
    CHECK(dt_replay_update(r, places, &error, 1) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(ctx), ".alpha = 0");
    dt_replay_destroy(r);
    dt_replay_destroy(again);
    CHECK(samples_held(ctx) == held);
    dt_ctx_destroy(ctx);
}

TEST(replay_draws_by_priority_and_weighs_against_it) {
    enum { N = 11, DRAWS = 20000 };
    dt_ctx *ctx = samples_ctx();
    dt_replay *r;
    static replay_item items[DRAWS];
    static uint64_t places[DRAWS];
    static float weights[DRAWS];
    REQUIRE(ctx);
    const dt_replay_desc d = {
        .capacity = N, .item_bytes = sizeof(replay_item), .alpha = 0.5, .seed = 2};
    REQUIRE(dt_replay_create(ctx, &d, &r) == DT_OK);
    replay_fill(r, 0, N + 3); /* round once */
    float errors[N];
    uint64_t all[N];
    double sum = 0, largest = 0;
    for (int i = 0; i < N; i++) {
        all[i] = (uint64_t)i;
        errors[i] = (i % 2 ? -1.0f : 1.0f) * (float)(i * i + 1); /* p^alpha is about i */
        sum += sqrt((double)fabsf(errors[i]) + 1e-6);
    }
    REQUIRE(dt_replay_update(r, all, errors, N) == DT_OK);
    REQUIRE(dt_replay_sample(r, DRAWS, 0.4, items, places, weights) == DT_OK);
    int count[N] = {0};
    for (int i = 0; i < DRAWS; i++)
        count[places[i]]++;
    for (int i = 0; i < N; i++) {
        const double chance = sqrt((double)fabsf(errors[i]) + 1e-6) / sum;
        CHECK_NEAR(count[i], DRAWS * chance, 2.5); /* one of each part: hardly any chance is left */
        largest = fmax(largest, pow(N * chance, -0.4));
    }
    for (int i = 0; i < DRAWS; i += 7) {
        const double chance = sqrt((double)fabsf(errors[places[i]]) + 1e-6) / sum;
        CHECK_NEAR(weights[i], pow(N * chance, -0.4) / largest, 1e-5);
    }
    replay_fill(r, 100, 101); /* gets the largest priority */
    int newest = 0;
    REQUIRE(dt_replay_sample(r, DRAWS, 0, items, places, NULL) == DT_OK);
    for (int i = 0; i < DRAWS; i++)
        newest += items[i].number == 100;
    CHECK(newest > count[N - 1] / 2 && newest > DRAWS / N);
    errors[3] = (float)NAN;
    CHECK(dt_replay_update(r, all, errors, N) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(ctx), "errors[3] is");
    errors[3] = 1;
    all[4] = N;
    CHECK(dt_replay_update(r, all, errors, N) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(ctx), "for index 11 of 11");
    dt_replay_destroy(r);
    dt_ctx_destroy(ctx);
}

/* Draws and what is kept after a save are those after the load; a file with another byte, or one
 * that is cut, changes nothing. */
static void replay_goes_on(dt_ctx *ctx, double alpha, int filled) {
    const dt_replay_desc d = {
        .capacity = 6, .item_bytes = sizeof(replay_item), .alpha = alpha, .seed = 4};
    dt_replay *a, *b, *c;
    replay_item items[2][40];
    uint64_t places[2][40];
    float weights[2][40];
    char path[300];
    snprintf(path, sizeof path, "%s", temp_path("kept.replay"));
    REQUIRE(!dt_replay_create(ctx, &d, &a) && !dt_replay_create(ctx, &d, &b));
    replay_fill(a, 0, filled);
    replay_fill(b, 50, 52);
    if (alpha > 0) {
        const float errors[2] = {-3, 0.5f};
        CHECK(dt_replay_update(a, (uint64_t[]){1, 2}, errors, 2) == DT_OK);
    }
    CHECK(dt_replay_sample(a, 5, 0, items[0], places[0], NULL) == DT_OK);
    CHECK_TEXT(dt_replay_save(a, path) == DT_OK, "%s", dt_ctx_error(ctx));
    CHECK_TEXT(dt_replay_load(b, path) == DT_OK, "%s", dt_ctx_error(ctx));
    CHECK(dt_replay_count(b) == dt_replay_count(a));
    for (int round = 0; round < 2; round++) {
        CHECK(dt_replay_sample(a, 40, 0.5, items[0], places[0], weights[0]) == DT_OK);
        CHECK(dt_replay_sample(b, 40, 0.5, items[1], places[1], weights[1]) == DT_OK);
        CHECK(!memcmp(items[0], items[1], sizeof items[0]) &&
              !memcmp(weights[0], weights[1], sizeof weights[0]));
        replay_fill(a, 60, 64);
        replay_fill(b, 60, 64);
    }
    const dt_replay_desc larger = {
        .capacity = 7, .item_bytes = sizeof(replay_item), .alpha = alpha};
    REQUIRE(!dt_replay_create(ctx, &larger, &c));
    CHECK(dt_replay_load(c, path) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(ctx), "its buffer is for 6 items of 16 bytes");
    uint8_t bytes[600];
    FILE *file = fopen(path, "rb");
    const size_t size = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    fclose(file);
    remove(path);
    for (size_t at = (size_t)filled % 2; at < size; at += 2) {
        bytes[at] ^= 16;
        const char *other = temp_write("kept.replay", bytes, size);
        bytes[at] ^= 16;
        CHECK_TEXT(dt_replay_load(b, other) && dt_replay_count(b) == 6, "byte %d", (int)at);
        other = temp_write("kept.replay", bytes, at);
        CHECK_TEXT(dt_replay_load(b, other) == DT_ERROR_FORMAT, "cut at %d", (int)at);
    }
    dt_replay_destroy(a);
    dt_replay_destroy(b);
    dt_replay_destroy(c);
}

TEST(replay_resumes_from_a_file_with_the_same_draws) {
    dt_ctx *ctx = samples_ctx();
    REQUIRE(ctx);
    const uint64_t held = samples_held(ctx);
    replay_goes_on(ctx, 0, 4);
    replay_goes_on(ctx, 0.5, 4);
    replay_goes_on(ctx, 0.5, 9);
    CHECK(samples_held(ctx) == held);
    dt_ctx_destroy(ctx);
}
