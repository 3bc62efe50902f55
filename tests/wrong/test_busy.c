/* Calls on objects that are in use: each public function, by its row of wrong_args.h. They come
 * from each kind of callback and from a second thread. It is refused, or it is one of those that
 * are allowed there; the call under way succeeds, its text stays, and everything does what it did
 * before. */
#include "wrong/wrong_args.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* What a row does with objects of its own, and what any thread may do at any time. */
static bool busy_is_free(const char *function) {
    static const char *const names[] = {
        "dt_result_text",
        "dt_ctx_create",
        "dt_comm_create",
        "dt_comm_create_threads",
        "dt_dims_of",
        "dt_gather_rows_u8_to_f32",
        "dt_shuffle",
        "dt_comm_desc_from_env",
        "dt_gather_rows_u8_to_i32",
        "dt_array_destroy",
        "dt_server_stop",
        "dt_comm_rank",
        "dt_comm_size",
        "dt_comm_send",
        "dt_comm_recv", /* of the other pair of comms */
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], function))
            return true;
#ifndef DT_WITH_PNG /* rows that call nothing */
    return !strncmp(function, "dt_folder_", 10) || !strcmp(function, "dt_image_load");
#else
    return false;
#endif
}

static struct {
    wrong_level level;
    _Atomic(const char *) callback; /* from which the rows are called; NULL: from none any more */
    bool apart;                     /* by a second thread, meanwhile */
    bool reads;                     /* the callback is on the thread of the call */
    int called, refused;
    char text[1024]; /* the call's, when it came */
} busy;

static void busy_rows(void) {
    here.starved = true; /* what a row sets up may be refused */
    for (const row *r = wrong_rows(); r; r = r->next) {
        if (r->level != busy.level)
            continue;
        wrong = (attack){.slot = -1};
        wrong_newest = DT_OK;
        const answer got = r->call();
        const bool reads = busy.reads && (!strcmp(r->function, "dt_ctx_error") ||
                                          !strcmp(r->function, "dt_comm_error"));
        test_check(got != TAKEN || reads || busy_is_free(r->function), __FILE__, __LINE__,
                   "%s %s is taken in a callback of the %s%s", r->function, r->aspect,
                   busy.callback, busy.apart ? ", on another thread" : "");
        busy.called++;
        busy.refused += wrong_newest == DT_ERROR_BUSY;
    }
    here.starved = false;
}

static void *busy_thread(void *unused) {
    (void)unused;
    busy_rows();
    return NULL;
}

static void busy_called(const char *callback) {
    if (!busy.callback || strcmp(callback, busy.callback))
        return;
    wrong_hook = NULL;
    snprintf(busy.text, sizeof busy.text, "%s", here.text);
    if (busy.apart) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, busy_thread, NULL));
        pthread_join(thread, NULL);
    } else {
        busy_rows();
    }
    busy.callback = NULL;
}

/* ---- The calls that call back */

static dt_result busy_sample(void *user, const dt_sample *s, void *const *values) {
    (void)user, (void)s, (void)values;
    busy_called("sample");
    return DT_OK;
}

static double busy_rate(void *user, uint64_t n) {
    (void)user, (void)n;
    busy_called("rate");
    return 0.5;
}

static void busy_init(void *user, const char *name, dt_shape shape, float *values) {
    (void)user, (void)name, (void)shape, (void)values;
    busy_called("init");
}

static void busy_jobs(void *user, int64_t count, void (*body)(void *arg, int64_t i), void *arg) {
    (void)user;
    busy_called("job system");
    for (int64_t i = 0; i < count; i++)
        body(arg, i);
}

/* A trainer beside all else of the context. */
static dt_trainer *busy_trainer(void) {
    static const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const dt_optim_desc sgd = {
        .kind = DT_OPTIM_SGD,
        .lr = 0.1,
        .schedule = {{.kind = DT_SCHEDULE_CALLBACK, .rate = busy_rate}}};
    dt_graph *graph = NULL;
    dt_trainer *trainer = NULL;
    CHECK(dt_graph_create(here.ctx, &graph) == DT_OK);
    const dt_tensor in = dt_input(graph, "in", DT_F32, dt_dims(1));
    const dt_tensor w = dt_param(graph, "w", dt_dims(1, 1), (dt_init){DT_INIT_CONSTANT, 1, 0});
    const dt_trainer_desc desc = {
        .loss = dt_mse(dt_linear(in, w, (dt_tensor){0}), in),
        .optim = &sgd,
        .devices = "cpu",
        .data = {.rows = 8, .columns = {{.input = in, .data = x}}, .sample = busy_sample}};
    CHECK(dt_trainer_create(graph, &desc, &trainer) == DT_OK);
    return trainer;
}

static dt_result busy_step(void) {
    return dt_trainer_step(busy_trainer(), NULL);
}

static dt_result busy_fill(void) {
    dt_graph *graph = NULL;
    dt_store *store = NULL;
    CHECK(dt_graph_create(here.ctx, &graph) == DT_OK);
    dt_param(graph, "w", dt_dims(1000, 1000), (dt_init){DT_INIT_NORMAL, 0, 1});
    return dt_store_create(graph, &(dt_store_desc){.device = "cpu", .init = busy_init}, &store);
}

static dt_result busy_allocate(void) {
    dt_graph *graph = NULL;
    dt_comm *group = NULL;
    const int ranks[1] = {0};
    wrong_hook = busy_called;
    if (busy.level != COMM)
        return dt_graph_create(here.ctx, &graph);
    const dt_result result = dt_comm_group_create(here.comm, ranks, 1, &group);
    dt_comm_destroy(group);
    return result;
}

static dt_result busy_fail(void) {
    wrong_hook = busy_called;
    const dt_result result = busy.level == COMM ? dt_comm_send(here.comm, NULL, 1, DT_F32, 0)
                                                : dt_graph_create(here.ctx, NULL);
    return result == DT_ERROR_INVALID ? DT_OK : DT_ERROR_FORMAT;
}

static void busy_from(wrong_level level, const char *callback, dt_result (*call)(void),
                      bool apart) {
    memset(&busy, 0, sizeof busy);
    busy.level = level;
    wrong_open(&here, level);
    const uint64_t works = wrong_works(level);
    wrong_close(&here);
    wrong_open(&here, level);
    busy.callback = callback;
    busy.apart = apart;
    busy.reads = !apart && strcmp(callback, "sample");
    const dt_result result = call();
    wrong_hook = NULL;
    test_check(result == DT_OK, __FILE__, __LINE__, "the call itself, with its %s: %s", callback,
               dt_result_text(result));
    test_check(!busy.callback, __FILE__, __LINE__, "no %s was called", callback);
    CHECK(busy.called > 10 && (busy.refused > 5 || level == GRAPH));
    CHECK_STR(level == COMM ? dt_comm_error(here.comm) : dt_ctx_error(here.ctx),
              strcmp(callback, "logger") ? "" : busy.text);
    CHECK(!dt_graph_error(here.graph));
    CHECK(wrong_works(level) == works);
    wrong_close(&here);
}

/* Nothing hangs. */
static void busy_all(bool apart) {
    static const struct {
        const char *callback;
        dt_result (*call)(void);
    } kinds[] = {{"logger", busy_fail}, {"allocator", busy_allocate}, {"sample", busy_step},
                 {"rate", busy_step},   {"init", busy_fill},          {"job system", busy_fill}};
    alarm(300);
    wrong_open(&there, GRAPH);
    wrong_open(&here, TRAINER);
    CHECK(dt_trainer_save(here.trainer, wrong_saved()) == DT_OK);
    wrong_close(&here);
    wrong_jobs = (dt_job_system){.parallel_for = busy_jobs, .threads = 2};
    for (int level = GRAPH; level <= COMM; level++)
        for (int k = 0; k < (level == COMM ? 2 : 6); k++)
            busy_from((wrong_level)level, kinds[k].callback, kinds[k].call, apart);
    wrong_jobs = (dt_job_system){0};
    wrong_close(&there);
    wrong_empty(wrong_path("wrong-args-folder"));
    alarm(0);
}

TEST(every_function_is_refused_in_a_callback_of_an_object_that_it_needs) {
    busy_all(false);
}

TEST(every_function_is_refused_on_a_second_thread_while_its_object_is_in_use) {
    busy_all(true);
}

/* ---- Callbacks of a fit: all but what would take its trainer away */

static bool busy_drives(const char *function) {
    static const char *const names[] = {"dt_trainer_step", "dt_trainer_epoch", "dt_trainer_wait",
                                        "dt_trainer_fit",  "dt_trainer_load",  "dt_trainer_resume",
                                        "dt_lr_find"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], function))
            return true;
    return false;
}

static dt_result busy_row_in_fit(void *user, dt_fit_state *state) {
    const row *r = user;
    if (state->event != DT_FIT_STEP)
        return DT_OK;
    wrong = (attack){.slot = -1};
    wrong_newest = DT_OK;
    const answer got = r->call();
    if (busy_drives(r->function))
        test_check(wrong_newest == DT_ERROR_BUSY, __FILE__, __LINE__, "%s %s: %s", r->function,
                   r->aspect, dt_result_text(wrong_newest));
    else
        test_check(got == TAKEN || got == NOTHING, __FILE__, __LINE__,
                   "%s %s is refused in a callback of a fit: %s", r->function, r->aspect,
                   here.text);
    return DT_OK;
}

static void busy_fit_row(const row *r) {
    wrong_open(&here, r->level);
    dt_trainer *trainer = r->level == TRAINER ? here.trainer : busy_trainer();
    const dt_fit_desc fit = {
        .steps = 1, .no_resume = true, .callbacks = {{busy_row_in_fit, (void *)(uintptr_t)r}}};
    test_check(dt_trainer_fit(trainer, &fit, NULL) == DT_OK, __FILE__, __LINE__,
               "%s %s in its callback ends a fit: %s", r->function, r->aspect, here.text);
    wrong_close(&here);
    wrong_empty(wrong_path("wrong-args-folder"));
}

TEST(a_fit_callback_may_call_all_functions_except_those_that_end_its_trainer) {
    alarm(300);
    wrong_open(&there, GRAPH);
    for (int level = GRAPH; level <= TRAINER; level++) { /* comms are other objects */
        wrong_open(&here, (wrong_level)level);
        if (level == STORE)
            CHECK(dt_store_save_state(here.store, wrong_saved()) == DT_OK);
        if (level == TRAINER)
            CHECK(dt_trainer_save(here.trainer, wrong_saved()) == DT_OK);
        wrong_close(&here);
        for (const row *r = wrong_rows(); r; r = r->next)
            if (r->level == (wrong_level)level)
                busy_fit_row(r);
    }
    wrong_close(&there);
    alarm(0);
}

/* ---- By name */

typedef struct busy_job {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_trainer *trainer;
    dt_store *store;
    _Atomic bool ready; /* the trainer is known: samples are read as soon as it is made */
    int calls, busy, other, warnings, told; /* calls that warnings are about */
    char warning[512];
} busy_job;

static void busy_log(void *user, dt_log_level level, const char *message) {
    busy_job *j = user;
    if (level != DT_LOG_WARNING)
        return;
    const char *others = strstr(message, " and ");
    int count = 0;
    if (strstr(message, " did nothing") && others)
        sscanf(others, " and %d other call", &count);
    j->told += strstr(message, " did nothing") ? 1 + count : 0;
    j->warnings++;
    snprintf(j->warning, sizeof j->warning, "%s", message);
}

static void busy_count(busy_job *j, dt_result result) {
    j->calls++;
    j->busy += result == DT_ERROR_BUSY;
    j->other += result != DT_OK && result != DT_ERROR_BUSY;
}

static bool busy_open(busy_job *j, dt_result (*sample)(void *, const dt_sample *, void *const *)) {
    static const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8] = {1, -2, 3, -4, 5, -6, 7, -8};
    static const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 0.01};
    *j = (busy_job){.calls = 0};
    const dt_ctx_desc desc = {.no_vulkan = true, .logger = {busy_log, j}};
    if (dt_ctx_create(&desc, &j->ctx) || dt_graph_create(j->ctx, &j->graph))
        return false;
    const dt_tensor in = dt_input(j->graph, "in", DT_F32, dt_dims(1));
    const dt_tensor out = dt_input(j->graph, "out", DT_F32, dt_dims(1));
    const dt_tensor h = dt_tanh(dt_nn_linear(in, "hidden", 4));
    const dt_trainer_desc trainer = {
        .loss = dt_mse(dt_nn_linear(h, "top", 1), out),
        .optim = &adam,
        .devices = "cpu",
        .batch = 2,
        .data = {.rows = 8,
                 .columns = {{.input = in, .data = x}, {.input = out, .data = y}},
                 .sample = sample,
                 .user = j}};
    if (dt_trainer_create(j->graph, &trainer, &j->trainer))
        return false;
    j->store = dt_trainer_store(j->trainer);
    j->ready = true;
    return true;
}

static uint64_t busy_hash(const busy_job *j) {
    uint64_t hash = 0;
    CHECK(dt_store_state_hash(j->store, &hash) == DT_OK);
    return hash;
}

static dt_result busy_sample_calls(void *user, const dt_sample *s, void *const *values) {
    busy_job *j = user;
    (void)s, (void)values;
    if (!j->ready)
        return DT_OK;
    busy_count(j, dt_trainer_step(j->trainer, NULL));
    busy_count(j, dt_trainer_save(j->trainer, "/nowhere/at/all"));
    busy_count(j, dt_trainer_evaluate(j->trainer, NULL, 0, NULL));
    dt_trainer_destroy(j->trainer);
    dt_graph_destroy(j->graph);
    dt_ctx_destroy(j->ctx);
    dt_trainer_request_checkpoint(j->trainer);
    return DT_OK;
}

TEST(a_sample_that_steps_saves_or_destroys_its_trainer_is_refused) {
    busy_job j;
    alarm(60);
    REQUIRE(busy_open(&j, busy_sample_calls));
    for (int i = 0; i < 20; i++)
        CHECK(dt_trainer_step(j.trainer, NULL) == DT_OK);
    CHECK_STR(dt_ctx_error(j.ctx), "");
    dt_ctx_destroy(j.ctx); /* and the thread that reads ahead */
    CHECK(j.calls >= 100 && j.busy == j.calls && j.other == 0);
    CHECK(j.warnings > 0);
    CHECK_CONTAINS(j.warning, "dt_ctx_destroy and ");
    CHECK(j.told == j.calls); /* three without a result for three with one */
    alarm(0);
}

static dt_result busy_sample_gives(void *user, const dt_sample *s, void *const *values) {
    busy_job *j = user;
    (void)s, (void)values;
    return j->ready ? dt_trainer_step(j->trainer, NULL) : DT_OK;
}

TEST(a_sample_callback_that_returns_busy_does_not_name_its_row_as_in_use) {
    busy_job j;
    REQUIRE(busy_open(&j, busy_sample_gives));
    dt_result result = DT_OK;
    for (int i = 0; i < 20 && !result; i++)
        result = dt_trainer_step(j.trainer, NULL);
    CHECK(result == DT_ERROR_BUSY);
    CHECK_CONTAINS(dt_ctx_error(j.ctx), "dt_dataset.sample failed for row ");
    CHECK_CONTAINS(dt_ctx_error(j.ctx),
                   "): it returned the result of a call: the object is in use, "
                   "by another thread or by the call that this callback");
    dt_ctx_destroy(j.ctx);
}

static dt_result busy_fit_calls(void *user, dt_fit_state *state) {
    busy_job *j = user;
    (void)state;
    busy_count(j, dt_trainer_step(j->trainer, NULL));
    busy_count(j, dt_trainer_epoch(j->trainer, NULL));
    busy_count(j, dt_trainer_fit(j->trainer, &(dt_fit_desc){.steps = 1}, NULL));
    busy_count(j, dt_trainer_load(j->trainer, "/nowhere/at/all"));
    dt_trainer_destroy(j->trainer);
    dt_graph_destroy(j->graph);
    dt_ctx_destroy(j->ctx);
    return DT_OK;
}

TEST(a_fit_callback_that_steps_or_destroys_its_trainer_is_refused) {
    busy_job j;
    alarm(60);
    REQUIRE(busy_open(&j, NULL));
    const dt_fit_desc fit = {.epochs = 2, .callbacks = {{busy_fit_calls, &j}}};
    CHECK(dt_trainer_fit(j.trainer, &fit, NULL) == DT_OK);
    CHECK(j.calls == 4 * 12 && j.busy == j.calls);
    CHECK_CONTAINS(j.warning, "dt_ctx_destroy and 35 other calls did nothing: called on a second");
    CHECK_CONTAINS(j.warning, "dt_trainer_fit");
    CHECK(j.told == 3 * 12);
    dt_trainer_destroy(j.trainer);
    dt_ctx_destroy(j.ctx);
    alarm(0);
}

typedef struct busy_racer {
    busy_job *job;
    int steps, busy, other;
} busy_racer;

#define BUSY_RACE 3000

static void *busy_race(void *user) {
    busy_racer *r = user;
    for (int i = 0; i < BUSY_RACE; i++) {
        const dt_result result = dt_trainer_step(r->job->trainer, NULL);
        r->steps += result == DT_OK;
        r->busy += result == DT_ERROR_BUSY;
        r->other += result != DT_OK && result != DT_ERROR_BUSY;
    }
    return NULL;
}

TEST(steps_of_two_threads_on_one_trainer_are_made_or_refused) {
    busy_job j, one;
    busy_racer racers[2] = {{&j, 0, 0, 0}, {&j, 0, 0, 0}};
    pthread_t thread;
    alarm(300);
    REQUIRE(busy_open(&j, NULL) && busy_open(&one, NULL));
    REQUIRE(!pthread_create(&thread, NULL, busy_race, &racers[1]));
    busy_race(&racers[0]);
    pthread_join(thread, NULL);
    CHECK(racers[0].other == 0 && racers[1].other == 0);
    CHECK(racers[0].steps + racers[0].busy == BUSY_RACE);
    for (int i = 0; i < racers[0].steps + racers[1].steps; i++)
        CHECK(dt_trainer_step(one.trainer, NULL) == DT_OK);
    CHECK(busy_hash(&one) == busy_hash(&j));
    CHECK_STR(dt_ctx_error(j.ctx), "");
    dt_ctx_destroy(j.ctx);
    dt_ctx_destroy(one.ctx);
    alarm(0);
}

/* ---- on_error */

typedef struct busy_errors {
    int calls;
    dt_result result;
    char text[1024];
    dt_ctx **ctx; /* to call from the handler; NULL: not */
    dt_result inside;
} busy_errors;

static void busy_error(void *user, dt_result result, const char *text) {
    busy_errors *e = user;
    dt_graph *graph = NULL;
    e->calls++;
    e->result = result;
    snprintf(e->text, sizeof e->text, "%s", text);
    if (!e->ctx)
        return;
    e->inside = dt_graph_create(*e->ctx, &graph); /* it is free again */
    dt_graph_destroy(graph);
}

TEST(on_error_is_called_once_after_each_call_that_fails) {
    dt_ctx *ctx = NULL;
    busy_errors e = {.ctx = &ctx};
    const dt_ctx_desc desc = {.no_vulkan = true, .on_error = {busy_error, &e}};
    REQUIRE(dt_ctx_create(&desc, &ctx) == DT_OK);
    CHECK(e.calls == 0);
    CHECK(dt_graph_create(ctx, NULL) == DT_ERROR_INVALID);
    CHECK(e.calls == 1 && e.result == DT_ERROR_INVALID && e.inside == DT_OK);
    CHECK_STR(e.text, "dt_graph_create: out is NULL");
    dt_array array;
    CHECK(dt_npy_load(ctx, "/nowhere/at/all.npy", &array) == DT_ERROR_IO);
    CHECK(e.calls == 2 && e.result == DT_ERROR_IO && e.inside == DT_OK);
    CHECK_STR(e.text, dt_ctx_error(ctx));
    dt_ctx_destroy(ctx);
    CHECK(e.calls == 2);
}

TEST(on_error_gets_the_reason_why_a_context_was_not_created) {
    dt_ctx *ctx = NULL;
    busy_errors e = {0};
    const dt_ctx_desc wrong_threads = {.threads = -7, .on_error = {busy_error, &e}};
    CHECK(dt_ctx_create(&wrong_threads, &ctx) == DT_ERROR_INVALID && !ctx);
    CHECK(e.calls == 1 && e.result == DT_ERROR_INVALID);
    CHECK_CONTAINS(e.text, "threads is -7");
    const dt_ctx_desc wrong_jobs_too = {.threads = 5000, .on_error = {busy_error, &e}};
    CHECK(dt_ctx_create(&wrong_jobs_too, &ctx) == DT_ERROR_INVALID && !ctx);
    CHECK(e.calls == 2);
    CHECK_CONTAINS(e.text, ".threads is 5000");
}

static dt_result busy_shows(void *user, const dt_sample *s, void *const *values) {
    busy_job *j = user;
    (void)s, (void)values;
    if (!j->ready)
        return DT_OK;
    dt_progress bar = {.file = tmpfile()};
    dt_fit_state state = {.trainer = j->trainer, .event = DT_FIT_VALIDATED, .step = 1};
    busy_count(j, dt_progress_show(&bar, &state));
    CHECK(bar.file && ftell(bar.file) == 0);
    fclose(bar.file);
    return DT_OK;
}

TEST(a_progress_bar_that_is_refused_shows_nothing) {
    busy_job j;
    REQUIRE(busy_open(&j, busy_shows));
    CHECK(dt_trainer_step(j.trainer, NULL) == DT_OK);
    dt_ctx_destroy(j.ctx);
    CHECK(j.calls > 0 && j.busy == j.calls);
}

TEST(on_error_gets_the_text_of_the_call_that_failed_and_no_older_one) {
    dt_ctx *ctx = NULL;
    dt_graph *graph = NULL;
    dt_store *store = NULL;
    dt_profile *profile = NULL;
    busy_errors e = {0};
    dt_fit_state state = {.step = 1};
    const dt_ctx_desc desc = {.no_vulkan = true, .on_error = {busy_error, &e}};
    REQUIRE(!dt_ctx_create(&desc, &ctx) && !dt_graph_create(ctx, &graph));
    dt_param(graph, "w", dt_dims(1), (dt_init){0});
    REQUIRE(!dt_store_create(graph, NULL, &store) && !dt_profile_create(ctx, NULL, &profile));
    CHECK(dt_profile_fit(profile, NULL) == DT_ERROR_INVALID);
    CHECK_STR(e.text, "dt_profile_fit: state is NULL");
    CHECK(dt_store_save(store, NULL) == DT_ERROR_INVALID);
    CHECK_STR(e.text, "dt_store_save: path is NULL");
    CHECK(dt_profile_fit(profile, &state) == DT_ERROR_INVALID);
    CHECK_STR(e.text, "dt_profile_fit: state->trainer is NULL");
    CHECK(e.calls == 3);
    dt_profile_destroy(profile);
    dt_ctx_destroy(ctx);
}

typedef struct busy_reader {
    dt_ctx *ctx;
    dt_csv *csv;
    _Atomic int turn; /* 1: the file is open; 2: the context is in use; 3: the read has ended */
    dt_result result;
} busy_reader;

static void *busy_reads(void *user) {
    busy_reader *r = user;
    const int column = 7;
    float value;
    CHECK(!dt_csv_open(r->ctx, wrong_path("busy.csv"), NULL, &r->csv));
    r->turn = 1;
    while (r->turn != 2)
        usleep(100);
    r->result = dt_csv_read(r->csv, &column, 1, 0, 1, DT_F32, &value);
    r->turn = 3;
    return NULL;
}

static void busy_waits(void *user, const char *name, dt_shape shape, float *values) {
    busy_reader *r = user;
    (void)name, (void)shape, (void)values;
    r->turn = 2;
    while (r->turn != 3)
        usleep(100);
}

TEST(a_read_that_fails_during_another_call_is_not_reported_as_refused) {
    busy_job j = {.calls = 0};
    busy_reader r = {.ctx = NULL};
    dt_graph *graph = NULL;
    dt_store *store = NULL;
    pthread_t thread;
    FILE *file = fopen(wrong_path("busy.csv"), "w");
    REQUIRE(file && fputs("a,b\n1,2\n", file) >= 0 && !fclose(file));
    const dt_ctx_desc desc = {.no_vulkan = true, .logger = {busy_log, &j}};
    REQUIRE(!dt_ctx_create(&desc, &r.ctx) && !dt_graph_create(r.ctx, &graph));
    dt_param(graph, "w", dt_dims(1), (dt_init){0});
    alarm(60);
    REQUIRE(!pthread_create(&thread, NULL, busy_reads, &r));
    while (r.turn != 1)
        usleep(100);
    const dt_store_desc waits = {.device = "cpu", .init = busy_waits, .init_user = &r};
    CHECK(dt_store_create(graph, &waits, &store) == DT_OK);
    pthread_join(thread, NULL);
    alarm(0);
    CHECK(r.result == DT_ERROR_INVALID && j.warnings == 0);
    dt_csv_close(r.csv);
    dt_ctx_destroy(r.ctx);
    remove(wrong_path("busy.csv"));
}

/* ---- A trainer's comm */

typedef struct busy_meets {
    dt_comm *comm;
    dt_result here, beside, in_fit; /* the newest sum in a callback for a rate, on a second thread
                                     * meanwhile. Also in a callback of a fit */
    int rates, fits;
} busy_meets;

static dt_result busy_sum(dt_comm *comm) {
    float x = 2;
    return dt_comm_all_reduce(comm, &x, &x, 1, DT_F32, DT_COMM_SUM);
}

static void *busy_sum_beside(void *user) {
    busy_meets *m = user;
    m->beside = busy_sum(m->comm);
    dt_comm_destroy(m->comm);
    return NULL;
}

static double busy_meets_in_rate(void *user, uint64_t n) {
    busy_meets *m = user;
    pthread_t thread;
    (void)n;
    m->rates++;
    m->here = busy_sum(m->comm);
    if (!pthread_create(&thread, NULL, busy_sum_beside, m))
        pthread_join(thread, NULL);
    return 1.0;
}

static dt_result busy_meets_in_fit(void *user, dt_fit_state *state) {
    busy_meets *m = user;
    m->fits++;
    m->in_fit = busy_sum(m->comm);
    CHECK(dt_trainer_evaluate(state->trainer, NULL, 0, NULL) != DT_ERROR_BUSY);
    return m->in_fit;
}

TEST(a_comm_is_reserved_for_its_trainer_except_in_fit_callbacks) {
    static const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    busy_meets m = {.here = DT_OK};
    busy_job j = {.calls = 0};
    dt_ctx *ctx = NULL;
    dt_graph *graph = NULL;
    dt_trainer *trainer = NULL;
    const dt_comm_desc alone = {.world_size = 1, .logger = {busy_log, &j}};
    REQUIRE(!dt_comm_create(&alone, &m.comm));
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    REQUIRE(!dt_graph_create(ctx, &graph));
    const dt_tensor in = dt_input(graph, "in", DT_F32, dt_dims(1));
    const dt_optim_desc sgd = {
        .kind = DT_OPTIM_SGD,
        .lr = 0.01,
        .schedule = {{.kind = DT_SCHEDULE_CALLBACK, .rate = busy_meets_in_rate, .user = &m}}};
    const dt_trainer_desc desc = {.loss = dt_mse(dt_nn_linear(in, "top", 1), in),
                                  .optim = &sgd,
                                  .devices = "cpu,cpu",
                                  .comm = m.comm,
                                  .batch = 4,
                                  .data = {.rows = 8, .columns = {{.input = in, .data = x}}}};
    alarm(60);
    REQUIRE(!dt_trainer_create(graph, &desc, &trainer));
    const dt_fit_desc fit = {.steps = 2, .callbacks = {{busy_meets_in_fit, &m}}};
    CHECK(dt_trainer_fit(trainer, &fit, NULL) == DT_OK);
    CHECK(m.rates > 0 && m.here == DT_ERROR_BUSY && m.beside == DT_ERROR_BUSY);
    CHECK(m.fits > 0 && m.in_fit == DT_OK);
    CHECK_CONTAINS(j.warning, "dt_comm_destroy and ");
    CHECK(busy_sum(m.comm) == DT_OK);
    dt_ctx_destroy(ctx);
    dt_comm_destroy(m.comm);
    alarm(0);
}
