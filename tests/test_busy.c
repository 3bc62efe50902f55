/* Calls on what is in use: each public function, by its row of wrong_args.h, from each kind of
 * callback and from a second thread. It is refused, or it is one of those that are allowed there;
 * the call under way succeeds, its text stays, and everything does what it did before. */
#include "wrong_args.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* What a row does with objects of its own, and what any thread may do at any time. */
static bool busy_is_free(const char *function) {
    static const char *const names[] = {
        "dt_result_text",      "dt_ctx_create",       "dt_comm_create", "dt_comm_create_threads",
        "dt_dims_of",          "dt_rows_f32_from_u8", "dt_shuffle",     "dt_comm_desc_from_env",
        "dt_rows_i32_from_u8", "dt_array_free",       "dt_server_stop", "dt_comm_rank",
        "dt_comm_send",        "dt_comm_recv", /* of the other pair of comms */
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], function))
            return true;
    return false;
}

static struct {
    wrong_level level;
    const char *callback; /* from which the rows are called; NULL: from none any more */
    bool apart;           /* by a second thread, meanwhile */
    bool reads;           /* the callback is on the thread of the call */
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

static dt_result busy_seen(void *user, dt_fit_state *state) {
    (void)user;
    if (state->event == DT_FIT_STEP)
        busy_called("fit");
    return DT_OK;
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

TEST(every_function_is_refused_in_a_callback_of_what_it_needs) {
    busy_all(false);
}

TEST(every_function_is_refused_on_a_second_thread_while_what_it_needs_is_in_use) {
    busy_all(true);
}
