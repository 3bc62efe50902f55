/* Logs of a run: what is in the files, read by other code than wrote it; full disks, bad names, the
 * callback of a fit. */
#include "temp.h"
#include "train/train_model.h"
#include <math.h>

#ifndef _WIN32
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

typedef struct log_job {
    train_model m;
    dt_run_log *log;
    char folder[300];
} log_job;

static const char *log_folder(log_job *j, const char *name) {
    snprintf(j->folder, sizeof j->folder, "%s", temp_path(name));
    return j->folder;
}

static bool log_open(log_job *j, const char *name, dt_run_log_desc d) {
    if (!CHECK_TEXT(train_model_make(&j->m, &(dt_ctx_desc){.no_vulkan = true}, 0), "the model"))
        return false;
    d.folder = log_folder(j, name);
    return CHECK_TEXT(dt_run_log_create(j->m.ctx, &d, &j->log) == DT_OK, "%s",
                      dt_ctx_error(j->m.ctx));
}

/* Files of a folder whose name begins so; the first one's name. */
static int log_files(const log_job *j, const char *begins, char *first, size_t size) {
    DIR *list = opendir(j->folder);
    int count = 0;
    for (struct dirent *entry; list && (entry = readdir(list));) {
        if (strncmp(entry->d_name, begins, strlen(begins)))
            continue;
        if (count++ == 0)
            snprintf(first, size, "%s/%s", j->folder, entry->d_name);
    }
    if (list)
        closedir(list);
    return count;
}

static void log_close(log_job *j) {
    char path[600];
    dt_run_log_destroy(j->log);
    dt_ctx_destroy(j->m.ctx);
    while (log_files(j, "scalars", path, sizeof path) || log_files(j, "events", path, sizeof path))
        remove(path);
    CHECK_TEXT(rmdir(j->folder) == 0, "%s: something else is in it", j->folder);
}

/* The file of that beginning, whole, with a zero after it; yours. */
static char *log_read(const log_job *j, const char *begins, size_t *size) {
    char path[600] = "", *data = NULL;
    *size = 0;
    log_files(j, begins, path, sizeof path);
    FILE *file = fopen(path, "rb");
    if (!CHECK_TEXT(file != NULL, "%s*: is not there", begins))
        return calloc(1, 1);
    data = calloc(1, 1 << 20);
    *size = fread(data, 1, (1 << 20) - 1, file);
    fclose(file);
    return data;
}

static int log_lines(const char *text) {
    int count = 0;
    for (; *text; text++)
        count += *text == '\n';
    return count;
}

/* ---- event files: TFRecord's frame, and the few fields that are asked for */

static uint32_t log_crc(const unsigned char *at, size_t size) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < size; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    crc = ~crc;
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

static uint64_t log_little(const unsigned char *at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

typedef struct log_field {
    const unsigned char *at, *end; /* what is left of the message */
    uint32_t number, type;
    uint64_t value; /* of a number */
    const unsigned char *data;
    uint64_t size; /* of bytes */
} log_field;

static uint64_t log_varint(log_field *f) {
    uint64_t value = 0;
    for (int shift = 0; f->at < f->end && shift < 64; shift += 7) {
        const unsigned char byte = *f->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            break;
    }
    return value;
}

static bool log_next(log_field *f) {
    if (f->at >= f->end)
        return false;
    const uint64_t key = log_varint(f);
    f->number = (uint32_t)(key >> 3);
    f->type = (uint32_t)(key & 7);
    f->size = f->type == 1 ? 8 : f->type == 5 ? 4 : 0;
    if (f->type == 0)
        f->value = log_varint(f);
    if (f->type == 2)
        f->size = log_varint(f);
    f->data = f->at;
    CHECK(f->size <= (uint64_t)(f->end - f->at));
    if (f->type == 1 || f->type == 5)
        f->value = log_little(f->at, (int)f->size);
    f->at += f->size;
    return f->at <= f->end;
}

/* The field of that number in a message. */
static bool log_find(const unsigned char *data, uint64_t size, uint32_t number, log_field *f) {
    *f = (log_field){.at = data, .end = data + size};
    while (log_next(f))
        if (f->number == number)
            return true;
    return false;
}

typedef struct log_point {
    char tag[200];
    uint64_t step;
    float value;
    bool has_value, restart;
    uint64_t picture, histogram, tensor; /* bytes */
    double histogram_count;
} log_point;

static void log_point_of(const unsigned char *data, uint64_t size, log_point *p) {
    log_field f, v;
    *p = (log_point){.step = log_find(data, size, 2, &f) ? f.value : 0};
    p->restart = log_find(data, size, 7, &f);
    if (!log_find(data, size, 5, &f) || !log_find(f.data, f.size, 1, &v))
        return;
    const log_field value = v;
    if (log_find(value.data, value.size, 1, &f))
        snprintf(p->tag, sizeof p->tag, "%.*s", (int)f.size, (const char *)f.data);
    p->has_value = log_find(value.data, value.size, 2, &f);
    if (p->has_value) {
        const uint32_t bits = (uint32_t)f.value;
        memcpy(&p->value, &bits, sizeof bits);
    }
    p->picture = log_find(value.data, value.size, 4, &f) ? f.size : 0;
    p->tensor = log_find(value.data, value.size, 8, &f) ? f.size : 0;
    p->histogram = log_find(value.data, value.size, 5, &f) ? f.size : 0;
    if (p->histogram && log_find(f.data, f.size, 3, &v))
        memcpy(&p->histogram_count, v.data, 8);
}

/* All records after the first, which says what the file is; -1: it is damaged. */
static int log_points(const char *data, size_t size, log_point *points, int most) {
    const unsigned char *at = (const unsigned char *)data, *end = at + size;
    int count = -1;
    while (end - at >= 16) {
        const uint64_t n = log_little(at, 8);
        if (n > (uint64_t)(end - at) - 16 || log_crc(at, 8) != log_little(at + 8, 4) ||
            log_crc(at + 12, n) != log_little(at + 12 + n, 4))
            return -1;
        log_field f;
        if (count == -1 && !(log_find(at + 12, n, 3, &f) && f.size == 13))
            return -1;
        if (count >= 0 && count < most)
            log_point_of(at + 12, n, &points[count]);
        count++;
        at += 16 + n;
    }
    return at == end ? count : -1;
}

/* ---- what is in the files */

TEST(log_writes_numbers_to_three_files) {
    log_job j;
    size_t size;
    log_point p[8];
    if (!log_open(&j, "log-numbers", (dt_run_log_desc){0}))
        return;
    CHECK(dt_run_log_scalar(j.log, "train/loss", 1, 0.25) == DT_OK);
    CHECK(dt_run_log_scalar(j.log, "a, \"b\"", UINT64_MAX, -1e300) == DT_OK);
    CHECK(dt_run_log_scalar(j.log, "train/loss", 2, (double)NAN) == DT_OK);
    char *csv = log_read(&j, "scalars.csv", &size);
    CHECK_TEXT(log_lines(csv) == 4 && !strncmp(csv, "seconds,step,name,value\n", 24), "%s", csv);
    CHECK(strstr(csv, ",1,train/loss,0.25\n") && strstr(csv, ",2,train/loss,nan\n"));
    CHECK(strstr(csv, ",18446744073709551615,\"a, \"\"b\"\"\",-1e+300\n"));
    char *json = log_read(&j, "scalars.jsonl", &size);
    CHECK(log_lines(json) == 3 &&
          strstr(json, "\"step\":1,\"name\":\"train/loss\",\"value\":0.25}\n"));
    CHECK(strstr(json, "\"name\":\"a, \\\"b\\\"\",\"value\":-1e+300}\n") &&
          strstr(json, "\"value\":\"nan\"}\n"));
    char *events = log_read(&j, "events", &size);
    CHECK(log_points(events, size, p, 8) == 3);
    CHECK(!strcmp(p[0].tag, "train/loss") && p[0].step == 1 && p[0].value == 0.25f);
    CHECK(!strcmp(p[1].tag, "a, \"b\"") && p[1].step == UINT64_MAX);
    free(csv);
    free(json);
    free(events);
    log_close(&j);
}

TEST(log_writes_texts_pictures_distributions_and_settings) {
    log_job j;
    size_t size;
    log_point p[8];
    uint8_t pixels[5 * 3 * 3] = {1, 2, 3};
    const float values[6] = {1.0f, 2.0f, 3.0f, INFINITY, -4.0f, 1.0f};
    const dt_hparam params[2] = {{.name = "lr", .number = 0.1}, {.name = "net", .text = "mlp"}};
    if (!log_open(&j, "log-kinds", (dt_run_log_desc){.json = true, .tensorboard = true}))
        return;
    CHECK(dt_run_log_text(j.log, "note", 3, "**bold**\n\xC3\xA9") == DT_OK);
    CHECK(dt_run_log_image(j.log, "picture", 4, pixels, 5, 3, 3) == DT_OK);
    CHECK(dt_run_log_histogram(j.log, "weights", 5, values, 6) == DT_OK);
    CHECK(dt_run_log_hparams(j.log, params, 2, "validation/loss") == DT_OK);
    char *events = log_read(&j, "events", &size);
    CHECK(log_points(events, size, p, 8) == 5);
    CHECK(!strcmp(p[0].tag, "note") && p[0].step == 3 && p[0].tensor > 0);
    /* signature, IHDR, IDAT (stored: 2 + 5 + rows * (1 + 15) + 4), IEND */
    CHECK_TEXT(p[1].picture > 8 + 25 + 12 + 2 + 5 + 3 * 16 + 4 + 12, "%d", (int)p[1].picture);
    CHECK(p[2].histogram > 64 * 18 && p[2].histogram_count == 5.0);
    CHECK(!strcmp(p[3].tag, "_hparams_/experiment"));
    CHECK(!strcmp(p[4].tag, "_hparams_/session_start_info"));
    char *json = log_read(&j, "scalars.jsonl", &size), path[600];
    CHECK_TEXT(strstr(json, "\"text\":\"**bold**\\u000a\xC3\xA9\"}\n") &&
                   strstr(json, "\"name\":\"hparams/lr\",\"value\":0.1}\n") && log_lines(json) == 3,
               "%s", json);
    CHECK(log_files(&j, "scalars.csv", path, sizeof path) == 0);
    free(events);
    free(json);
    log_close(&j);
}

TEST(log_of_a_resumed_run_is_appended_to) {
    log_job j;
    size_t size;
    log_point p[8];
    if (!log_open(&j, "log-goes-on", (dt_run_log_desc){0}))
        return;
    CHECK(dt_run_log_scalar(j.log, "x", 1, 1.0) == DT_OK);
    dt_run_log_destroy(j.log);
    char path[600];
    log_files(&j, "scalars.csv", path, sizeof path);
    FILE *file = fopen(path, "ab"); /* a line that a crash cut off */
    fputs("123,4,x", file);
    fclose(file);
    CHECK(dt_run_log_create(j.m.ctx, &(dt_run_log_desc){.folder = j.folder}, &j.log) == DT_OK);
    CHECK(dt_run_log_restart(j.log, 1) == DT_OK);
    CHECK(dt_run_log_scalar(j.log, "x", 2, 2.0) == DT_OK);
    char *csv = log_read(&j, "scalars.csv", &size);
    CHECK_TEXT(log_lines(csv) == 5 && strstr(csv, "123,4,x\n") && strstr(csv, ",1,restart,1\n"),
               "%s", csv);
    free(csv);
    char *events = log_read(&j, "events", &size);
    int count = log_points(events, size, p, 8); /* one file or two, as the clock has it */
    CHECK(count >= 1);
    free(events);
    log_close(&j);
}

/* ---- a fit */

static int log_count(const char *text, const char *part) {
    int count = 0;
    for (; (text = strstr(text, part)); text++)
        count++;
    return count;
}

static dt_result log_fit(log_job *j, int epochs, const char *checkpoint) {
    dt_trainer *trainer;
    dt_trainer_desc d = train_desc(&j->m);
    dt_dataset valid = d.data;
    valid.rows = 40;
    d.devices = "cpu";
    d.parallel.batch_slices = 2;
    d.checkpoint.folder = checkpoint;
    dt_result result = dt_trainer_create(j->m.graph, &d, &trainer);
    if (!result)
        result = dt_trainer_fit(trainer,
                                &(dt_fit_desc){.epochs = (uint64_t)epochs,
                                               .validation = &valid,
                                               .callbacks = {{dt_run_log_fit, j->log}}},
                                NULL);
    return result;
}

TEST(log_of_a_fit_has_steps_epochs_and_validations) {
    log_job j;
    size_t size;
    log_point p[64];
    dt_run_log_desc d = {.every_steps = 2};
    if (!log_open(&j, "log-fit", d))
        return;
    CHECK_TEXT(log_fit(&j, 3, NULL) == DT_OK, "%s", dt_ctx_error(j.m.ctx)); /* of 5 steps each */
    char *csv = log_read(&j, "scalars.csv", &size);
    CHECK_TEXT(log_count(csv, ",train/loss,") == 7 && log_count(csv, ",train/accuracy,") == 7 &&
                   log_count(csv, ",epoch/loss,") == 3 &&
                   log_count(csv, ",15,validation/accuracy,") == 1 &&
                   log_count(csv, ",validation/loss,") == 3 &&
                   log_count(csv, ",train/gradient_norm,") == 7,
               "%s", csv);
    char *events = log_read(&j, "events", &size);
    CHECK(log_points(events, size, p, 64) == log_lines(csv) - 1);
    free(csv);
    free(events);
    CHECK(dt_run_log_fit(NULL, NULL) == DT_ERROR_INVALID);
    log_close(&j);
}

/* ---- what goes wrong */

TEST(log_refuses_values_that_no_viewer_reads) {
    log_job j;
    dt_run_log *log;
    uint8_t pixel[4] = {0};
    if (!log_open(&j, "log-wrong", (dt_run_log_desc){0}))
        return;
    CHECK(dt_run_log_scalar(j.log, "", 0, 0.0) == DT_ERROR_INVALID);
    CHECK(dt_run_log_scalar(j.log, "a\nb", 0, 0.0) == DT_ERROR_INVALID);
    CHECK(dt_run_log_scalar(j.log, "\xFF", 0, 0.0) == DT_ERROR_INVALID);
    CHECK(dt_run_log_text(j.log, "a", 0, "\xFF") == DT_ERROR_INVALID);
    CHECK(dt_run_log_image(j.log, "a", 0, pixel, 1, 1, 2) == DT_ERROR_INVALID);
    CHECK(dt_run_log_image(j.log, "a", 0, pixel, 0, 1, 1) == DT_ERROR_INVALID);
    CHECK(dt_run_log_hparams(j.log, &(dt_hparam){0}, 1, NULL) == DT_ERROR_INVALID);
    CHECK(dt_run_log_create(j.m.ctx, &(dt_run_log_desc){0}, &log) == DT_ERROR_INVALID && !log);
    dt_run_log_desc d = {.folder = j.folder, .every_steps = -1};
    CHECK(dt_run_log_create(j.m.ctx, &d, &log) == DT_ERROR_INVALID && !log);
    char path[600];
    CHECK(log_files(&j, "scalars", path, sizeof path) == 0); /* nothing was made */
    d = (dt_run_log_desc){.folder = "/dev/null/log"};
    CHECK(dt_run_log_create(j.m.ctx, &d, &log) == DT_ERROR_IO && !log);
    CHECK_TEXT(strstr(dt_ctx_error(j.m.ctx), "/dev/null/log") != NULL, "%s", dt_ctx_error(j.m.ctx));
    log_close(&j);
}

#ifndef _WIN32
/* No file may be longer than so much: what does not fit is taken back, and training goes on. */
TEST(log_on_a_full_disk_ends_at_a_whole_record_and_training_continues) {
    log_job j;
    size_t size;
    log_point p[64];
    struct rlimit old, now;
    if (!log_open(&j, "log-full", (dt_run_log_desc){.every_steps = 1}))
        return;
    getrlimit(RLIMIT_FSIZE, &old);
    now = (struct rlimit){1500, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
    const dt_result fitted = log_fit(&j, 3, NULL);
    const dt_result later = dt_run_log_scalar(j.log, "x", 1, 1.0);
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK(fitted == DT_OK && later == DT_ERROR_IO);
    CHECK_TEXT(strstr(dt_ctx_error(j.m.ctx), "cannot be appended to") != NULL, "%s",
               dt_ctx_error(j.m.ctx));
    char *csv = log_read(&j, "scalars.csv", &size);
    CHECK(size > 500 && size <= 1500 && csv[size - 1] == '\n');
    const int lines = log_lines(csv) - 1;
    free(csv);
    char *json = log_read(&j, "scalars.jsonl", &size);
    CHECK(size > 500 && size <= 1500 && json[size - 1] == '\n');
    CHECK_TEXT(log_lines(json) == lines, "%d and %d", log_lines(json), lines);
    free(json);
    char *events = log_read(&j, "events", &size);
    const int points = log_points(events, size, p, 64);
    CHECK_TEXT(size <= 1500 && points > 5 && points == lines, "%d and %d", points, lines);
    free(events);
    log_close(&j);
}

/* The errors that a context's log gets. */
static void log_count_errors(void *user, dt_log_level level, const char *message) {
    int *count = user;
    if (level == DT_LOG_ERROR && strstr(message, "cannot be appended to"))
        ++*count;
}

/* format: of which there is a log, or 3 for all; way 0: a disk that is full after some records; 1:
 * one on which not even the first lines find room; 2: the folder is gone when the first is written.
 * All is reported once, for any later writes. */
static void log_fails_once(int format, int way) {
    static const char *const names[] = {"scalars.csv", "scalars.jsonl", "events"};
    log_job j;
    size_t size;
    struct rlimit old, now;
    int errors = 0;
    const dt_ctx_desc ctx = {.no_vulkan = true, .logger = {log_count_errors, &errors}};
    dt_run_log_desc d = {.folder = log_folder(&j, "log-once"), .every_steps = 1};
    d.csv = format == 0, d.json = format == 1, d.tensorboard = format == 2;
    CHECK(train_model_make(&j.m, &ctx, 0) && !dt_run_log_create(j.m.ctx, &d, &j.log));
    if (way == 2)
        CHECK(rmdir(j.folder) == 0);
    getrlimit(RLIMIT_FSIZE, &old);
    now = (struct rlimit){way == 2 ? old.rlim_cur : way ? 10 : 700, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
    const dt_result fitted = log_fit(&j, 3, NULL);
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK_TEXT(fitted == DT_OK && errors == 1, "format %d, way %d: %d errors", format, way, errors);
    if (way == 2)
        CHECK(mkdir(j.folder, 0700) == 0);
    for (int i = 0; i < 3 && !way; i++) {
        log_point p[64];
        if (format != i && format != 3)
            continue;
        char *data = log_read(&j, names[i], &size);
        const bool whole = i == 2 ? log_points(data, size, p, 64) > 3 : data[size - 1] == '\n';
        CHECK_TEXT(whole && size > 200 && size <= 700, "%s: %d bytes", names[i], (int)size);
        free(data);
    }
    log_close(&j);
}

TEST(log_that_cannot_be_written_is_reported_once_and_training_continues) {
    for (int format = 0; format < 4; format++)
        for (int way = 0; way < 3; way++)
            log_fails_once(format, way);
}

#ifdef __linux__
/* Where not even root may make a file. */
TEST(log_in_a_folder_that_is_read_only_is_refused_with_its_name) {
    dt_ctx *ctx;
    dt_run_log *log;
    CHECK(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    const dt_run_log_desc d = {.folder = "/proc/self"};
    CHECK(dt_run_log_create(ctx, &d, &log) == DT_ERROR_IO && !log);
    CHECK_TEXT(strstr(dt_ctx_error(ctx), "nothing can be written to the log's folder /proc/self"),
               "%s", dt_ctx_error(ctx));
    dt_ctx_destroy(ctx);
}
#endif

static int log_fails_at; /* which allocation, counted down; 0: none */

static void *log_alloc(void *user, size_t bytes, size_t align) {
    void *block = NULL;
    (void)user;
    if (log_fails_at && --log_fails_at == 0)
        return NULL;
    return posix_memalign(&block, align, bytes) ? NULL : block;
}

static void log_free(void *user, void *memory, size_t bytes) {
    (void)user, (void)bytes;
    free(memory);
}

/* A number and a picture, with one allocation that fails, and both again. */
static dt_result log_short_of_memory(int fails_at) {
    static const uint8_t pixels[40 * 40 * 3];
    log_job j;
    log_point p[4] = {0};
    size_t size;
    const dt_ctx_desc ctx = {.no_vulkan = true, .allocator = {log_alloc, log_free, NULL}};
    const dt_run_log_desc d = {.folder = log_folder(&j, "log-memory")};
    CHECK(dt_ctx_create(&ctx, &j.m.ctx) == DT_OK);
    CHECK(dt_run_log_create(j.m.ctx, &d, &j.log) == DT_OK);
    log_fails_at = fails_at;
    const dt_result first = dt_run_log_scalar(j.log, "a", 1, 1.0);
    const dt_result then = dt_run_log_image(j.log, "b", 1, pixels, 40, 40, 3);
    log_fails_at = 0;
    CHECK(!first || first == DT_ERROR_MEMORY);
    CHECK(!then || then == DT_ERROR_MEMORY);
    CHECK(dt_run_log_scalar(j.log, "a", 2, 1.0) == DT_OK);
    CHECK(dt_run_log_image(j.log, "b", 2, pixels, 40, 40, 3) == DT_OK);
    char *csv = log_read(&j, "scalars.csv", &size);
    CHECK(!strncmp(csv, "seconds,", 8) && log_lines(csv) == 2 + !first);
    free(csv);
    char *events = log_read(&j, "events", &size);
    const int count = log_points(events, size, p, 4);
    CHECK_TEXT(count == 2 + !first + !then && p[count - 1].picture > 4000, "%d records", count);
    free(events);
    log_close(&j);
    return first ? first : then;
}

TEST(log_without_memory_writes_a_complete_call_or_nothing) {
    int k = 1;
    while (k < 60 && log_short_of_memory(k) == DT_ERROR_MEMORY)
        k++;
    CHECK_TEXT(k > 4 && k < 60, "%d allocations", k);
}
#endif

#ifndef __wasi__
/* By the package itself: numbers, the picture's pixels, the distribution, texts, settings. */
TEST(log_is_read_back_by_tensorboard) {
    log_job j;
    uint8_t pixels[5 * 3 * 3];
    char program[3000];
    if (!temp_python("import tensorboard", true))
        SKIP("the Python package tensorboard is missing; ./build.sh test --yes installs it");
    if (!log_open(&j, "log-board", (dt_run_log_desc){.tensorboard = true}))
        return;
    for (int i = 0; i < 45; i++)
        pixels[i] = (uint8_t)(i * 5);
    const float values[4] = {-1.0f, 0.0f, 0.5f, 3.0f};
    const dt_hparam params[2] = {{.name = "lr", .number = 0.5}, {.name = "net", .text = "mlp"}};
    CHECK(dt_run_log_scalar(j.log, "train/loss", 7, 0.125) == DT_OK);
    CHECK(dt_run_log_image(j.log, "picture", 4, pixels, 5, 3, 3) == DT_OK);
    CHECK(dt_run_log_histogram(j.log, "weights", 5, values, 4) == DT_OK);
    CHECK(dt_run_log_text(j.log, "note", 3, "hello") == DT_OK);
    CHECK(dt_run_log_hparams(j.log, params, 2, "train/loss") == DT_OK);
    snprintf(program, sizeof program,
             "import zlib\n"
             "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
             "from tensorboard.plugins.hparams import plugin_data_pb2\n"
             "a = EventAccumulator('%s')\n"
             "a.Reload()\n"
             "s = a.Scalars('train/loss')\n"
             "assert [(x.step, x.value) for x in s] == [(7, 0.125)], s\n"
             "i = a.Images('picture')[0]\n"
             "assert (i.width, i.height, i.step) == (5, 3, 4)\n"
             "b = i.encoded_image_string\n"
             "n = int.from_bytes(b[33:37], 'big')\n"
             "raw = zlib.decompress(b[41:41 + n])\n"
             "assert zlib.crc32(b[37:41 + n]) == int.from_bytes(b[41 + n:45 + n], 'big')\n"
             "rows = [raw[y * 16 + 1:y * 16 + 16] for y in range(3)]\n"
             "assert b''.join(rows) == bytes(x * 5 for x in range(45))\n"
             "h = a.Histograms('weights')[0].histogram_value\n"
             "assert (h.num, h.min, h.max, h.sum) == (4, -1, 3, 2.5), h\n"
             "assert sum(h.bucket) == 4, h\n"
             "t = a.Tensors('note')[0].tensor_proto\n"
             "assert t.string_val[0] == b'hello', t\n"
             "m = a.PluginTagToContent('hparams')\n"
             "d = plugin_data_pb2.HParamsPluginData.FromString(m['_hparams_/session_start_info'])\n"
             "v = d.session_start_info.hparams\n"
             "assert v['lr'].number_value == 0.5 and v['net'].string_value == 'mlp', d\n"
             "e = plugin_data_pb2.HParamsPluginData.FromString(m['_hparams_/experiment'])\n"
             "assert e.experiment.metric_infos[0].name.tag == 'train/loss', e\n",
             j.folder);
    CHECK(temp_python(program, false));
    log_close(&j);
}
#endif

#ifndef __wasi__
/* A part of a log, from any byte on, has the last points of each curve. */
TEST(log_that_is_read_from_any_byte_on_has_the_last_points) {
    log_job j;
    char program[2000];
    if (!temp_python("import sys; sys.exit(sys.platform == 'win32')", true))
        SKIP("python3 is missing, or is Windows's");
    if (!log_open(&j, "log-end", (dt_run_log_desc){0}))
        return;
    for (int i = 0; i < 60; i++)
        CHECK(dt_run_log_scalar(j.log, i % 2 ? "train/loss" : "a/b", (uint64_t)i, 1.0 / (i + 1)) ==
              DT_OK);
    snprintf(
        program, sizeof program,
        "import os, sys\n"
        "sys.path.insert(0, 'tools/view')\n"
        "import runlog\n"
        "at = '%s/'\n"
        "for name in [n for n in os.listdir(at) if n in runlog.FILES or 'events' in n]:\n"
        "    full, seen = runlog.load(at + name), set()\n"
        "    size = os.path.getsize(at + name)\n"
        "    for most in [*range(0, size, 7), size - 1, size, size + 9]:\n"
        "        part = runlog.load(at + name, most)\n"
        "        for curve, points in part.items():\n"
        "            assert points == full[curve][-len(points):], (name, most)\n"
        "        seen.add(sum(len(p) for p in part.values()))\n"
        "    assert seen >= set(range(1, 61)) and runlog.load(at + name, size) == full, name\n",
        j.folder);
    CHECK(temp_python(program, false));
    log_close(&j);
}

/* A large log, and clients that say nothing, or a byte now and then. */
TEST(log_of_any_size_is_served_to_any_client) {
    char program[3000], folder[200];
    snprintf(folder, sizeof folder, "%s", temp_path("board"));
    if (!temp_python("import sys; sys.exit(not sys.platform.startswith('linux'))", true))
        SKIP("python3 is missing, or this is not Linux, whose /proc shows a process's memory");
    snprintf(program, sizeof program,
             "import json, os, shutil, socket, subprocess as s, sys, time, urllib.request as u\n"
             "at = '%s'\n"
             "os.mkdir(at)\n"
             "with open(at + '/scalars.csv', 'wb') as f:\n"
             "    f.write(b'seconds,step,name,value\\n')\n"
             "    f.seek(400 << 20)\n" /* a hole takes no room */
             "    f.write(b''.join(b'%%d,%%d,loss,%%g\\n' %% (i, i, 1 / (i + 1)) for i in "
             "range(99999)))\n"
             "p = s.Popen([sys.executable, 'tools/view/dtboard', at, '--port', '0'], "
             "stdout=s.PIPE)\n"
             "try:\n"
             "    url = p.stdout.readline().split()[0].decode()\n"
             "    address = '127.0.0.1', int(url.split(':')[2].strip('/'))\n"
             "    begin = time.time()\n"
             "    data = json.load(u.urlopen(url + 'data', timeout=60))\n"
             "    assert data['runs']['.']['loss'][-1][0] == 99998\n"
             "    assert 'of 402 MiB the last 4 are shown' in data['wrong'][0], data['wrong']\n"
             "    status = open('/proc/%%d/status' %% p.pid).read()\n"
             "    assert int(status.split('VmHWM:')[1].split()[0]) < 150000, status\n"
             "    silent = [socket.create_connection(address) for _ in range(70)]\n"
             "    slow, begin = silent[0], time.time()\n"
             "    slow.settimeout(0.5)\n"
             "    while time.time() - begin < 40:\n"
             "        try:\n"
             "            slow.send(b'G')\n"
             "            if not slow.recv(1):\n"
             "                break\n"
             "        except socket.timeout:\n"
             "            pass\n"
             "        except OSError:\n"
             "            break\n"
             "    assert time.time() - begin < 30\n"
             "    time.sleep(1)\n"
             "    assert u.urlopen(url, timeout=30).status == 200\n" /* while those are open */
             "    assert p.poll() is None\n"
             "finally:\n"
             "    p.kill()\n"
             "    shutil.rmtree(at)\n",
             folder);
    CHECK(temp_python(program, false));
}

/* By tools/view/dtplot and tools/view/dtboard, and the page as a browser makes it, where one is. */
TEST(log_is_drawn_by_the_tools) {
    log_job j;
    char program[4000];
    if (!temp_python("import sys; sys.exit(sys.platform == 'win32')", true))
        SKIP("python3 is missing, or is Windows's");
    if (!log_open(&j, "log-drawn", (dt_run_log_desc){0}))
        return;
    for (int i = 0; i < 20; i++)
        CHECK(dt_run_log_scalar(j.log, i % 2 ? "train/loss" : "a/b", (uint64_t)i, 1.0 / (i + 1)) ==
              DT_OK);
    CHECK(dt_run_log_restart(j.log, 15) == DT_OK);
    snprintf(
        program, sizeof program,
        "import json, os, shutil, subprocess as s, sys, urllib.error, urllib.request as u\n"
        "at = '%s'\n"
        "events = [n for n in os.listdir(at) if 'tfevents' in n]\n"
        "shown = set()\n"
        "for log in (at, at + '/scalars.jsonl', at + '/' + events[0]):\n"
        "    shown.add(s.check_output(['tools/view/dtplot', 'run=' + log]))\n"
        "assert len(shown) == 1 and b'run 0.0625' in shown.pop()\n" /* 1 / 16, of step 15 */
        "for tool in ('dtplot', 'dtboard'):\n"
        "    assert b'usage: tools/view/' + tool.encode() in s.check_output(['tools/view/' + tool, "
        "'--help'])\n"
        "svg = s.check_output(['tools/view/dtplot', at, '--log', '-o', '/dev/stdout'])\n"
        "assert svg.count(b'<polyline') == 2 and b'train/loss' in svg, svg\n"
        "head = b'seconds,step,name,value\\n1,1,'\n"
        "odd = {'long': b'x' * 200000 + b',1', 'step': b'\\n1,inf,x,1', 'cells': b'\\xff,2'}\n"
        "for name, text in odd.items():\n"
        "    os.mkdir(at + '/' + name)\n"
        "    open(at + '/' + name + '/scalars.csv', 'wb').write(head + text)\n"
        "os.mkdir(at + '/pipe')\n"
        "os.mkfifo(at + '/pipe/scalars.csv')\n"
        "for name in [*odd, 'pipe', '/dev/null/x']:\n"
        "    bad = s.run(['tools/view/dtplot', os.path.join(at, name)], capture_output=True)\n"
        "    assert bad.returncode == 1 and b'Traceback' not in bad.stderr, bad\n"
        "os.mkdir(at + '/names')\n"
        "open(at + '/names/scalars.csv', 'wb').write(\n"
        "    head + b'constructor,1\\n1,18446744073709551615,<b>\\x1b,1\\n')\n"
        "p = s.Popen([sys.executable, 'tools/view/dtboard', at, '--port', '0'], stdout=s.PIPE)\n"
        "try:\n"
        "    url = p.stdout.readline().split()[0].decode()\n"
        "    data = json.load(u.urlopen(url + 'data'))\n"
        "    assert len(data['wrong']) == 4 and set(data['runs']['names']) == "
        "{'constructor', '<b>?'}\n"
        "    assert [x[0] for x in data['runs']['.']['train/loss']] == [1, 3, 5, 7, 9, 11, 13, "
        "15]\n"
        "    try:\n"
        "        u.urlopen(u.Request(url, headers={'Host': 'elsewhere.example'}))\n"
        "        raise SystemExit('a foreign name was served')\n"
        "    except urllib.error.HTTPError as e:\n"
        "        assert e.code == 403\n"
        "    c = shutil.which('chromium')\n"
        "    if c:\n"
        "        dom = s.run([c, '--headless', '--no-sandbox', '--disable-gpu', '--dump-dom',\n"
        "                     '--virtual-time-budget=3000', url], capture_output=True).stdout\n"
        "        assert dom.count(b'<polyline') == 4 and b'<b>?' not in dom, dom\n"
        "finally:\n"
        "    p.kill()\n"
        "    for name in [*odd, 'pipe', 'names']:\n"
        "        shutil.rmtree(at + '/' + name)\n",
        j.folder);
    CHECK(temp_python(program, false));
    log_close(&j);
}
#endif
