/* A fit's messages: which callback returned an error, and faults before the first step. Also that
 * nothing is left to do, and why it gave up. Each failure is one line of the log, with a remedy. */
#include "parallel/train_processes.h"

typedef struct told_log {
    char text[16384];
    int errors; /* lines at WARNING or ERROR */
} told_log;

static void told_line(void *user, dt_log_level level, const char *text) {
    told_log *log = user;
    const size_t size = strlen(log->text);
    log->errors += level <= DT_LOG_WARNING;
    snprintf(log->text + size, sizeof log->text - size, "%s\n", text);
}

typedef struct told_job {
    train_model m;
    told_log log;
    told_log handler; /* the texts that .on_error had */
    dt_trainer_desc desc;
    dt_trainer *trainer;
} told_job;

static void told_error(void *user, dt_result result, const char *text) {
    told_line(user, result ? DT_LOG_ERROR : DT_LOG_INFO, text);
}

static bool told_open(told_job *j, const char *folder) {
    *j = (told_job){.trainer = NULL};
    const dt_ctx_desc d = {.no_vulkan = true,
                           .threads = 1,
                           .logger = {told_line, &j->log},
                           .on_error = {told_error, &j->handler}};
    if (!CHECK_TEXT(train_model_make(&j->m, &d, 0), "the model"))
        return false;
    j->desc = train_desc(&j->m);
    j->desc.devices = "cpu";
    j->desc.checkpoint.folder = folder;
    return CHECK_TEXT(!dt_trainer_create(j->m.graph, &j->desc, &j->trainer), "%s",
                      dt_ctx_error(j->m.ctx));
}

static void told_forget(told_job *j) {
    memset(&j->log, 0, sizeof j->log);
    memset(&j->handler, 0, sizeof j->handler);
}

/* ---- callbacks */

typedef enum told_way {
    TOLD_IO,          /* returned, with no call */
    TOLD_MADE_UP,     /* a number that is not a dt_result */
    TOLD_OWN_CALL,    /* the result of a call that failed */
    TOLD_OTHER_CALL,  /* another result than that of a call that failed */
    TOLD_AT_END,      /* of all */
    TOLD_NO_PROGRESS, /* dt_progress_show without its struct */
    TOLD_NO_LOG,      /* dt_run_log_fit without one */
    TOLD_WAYS
} told_way;

static const struct {
    int result;
    const char *text;
} told_rows[] = {
    [TOLD_IO] = {DT_ERROR_IO, "dt_trainer_fit: callback 1 returned 7 (a file could not be opened, "
                              "read or written) at step 1"},
    [TOLD_MADE_UP] = {-5, "dt_trainer_fit: callback 1 returned -5 (an unknown result) at step 1"},
    [TOLD_OWN_CALL] = {DT_ERROR_INVALID, "the learning rate is -1; it must be from 0 to "},
    [TOLD_OTHER_CALL] = {DT_ERROR_IO, "dt_trainer_fit: callback 1 returned 7 ("},
    [TOLD_AT_END] = {DT_ERROR_IO, "dt_trainer_fit: callback 1 returned 7 (a file could not be "
                                  "opened, read or written) at step 3"},
    [TOLD_NO_PROGRESS] = {DT_ERROR_INVALID, "dt_progress_show: progress is NULL"},
    [TOLD_NO_LOG] = {DT_ERROR_INVALID, "dt_run_log_fit: run_log is NULL"}};

static dt_result told_nothing(void *user, dt_fit_state *s) {
    (void)user, (void)s;
    return DT_OK;
}

static dt_result told_call(void *user, dt_fit_state *s) {
    const told_way way = *(const told_way *)user;
    if (s->event != (way == TOLD_AT_END ? DT_FIT_END : DT_FIT_STEP))
        return DT_OK;
    if (way == TOLD_OWN_CALL || way == TOLD_OTHER_CALL) {
        const dt_result result = dt_trainer_set_lr(s->trainer, -1.0);
        return way == TOLD_OWN_CALL ? result : DT_ERROR_IO;
    }
    return (dt_result)told_rows[way].result;
}

/* An older error of the same result is not taken for the callback's. */
TEST(a_fit_that_a_callback_ends_reports_the_callback_and_its_result) {
    for (int way = 0; way < TOLD_WAYS; way++) {
        told_job j;
        told_way arg = (told_way)way;
        if (!told_open(&j, NULL))
            return;
        dt_fit_desc d = {.steps = 3, .callbacks = {{told_nothing, NULL}, {told_call, &arg}}};
        if (way == TOLD_NO_PROGRESS)
            d.callbacks[1] = (dt_callback){dt_progress_show, NULL};
        if (way == TOLD_NO_LOG)
            d.callbacks[1] = (dt_callback){dt_run_log_fit, NULL};
        CHECK(dt_trainer_load(j.trainer, "no/such/file") == DT_ERROR_IO);
        told_forget(&j);
        const int result = (int)dt_trainer_fit(j.trainer, &d, NULL);
        CHECK_TEXT(result == told_rows[way].result, "way %d: %d", way, result);
        const char *text = dt_ctx_error(j.m.ctx);
        CHECK_TEXT(strstr(text, told_rows[way].text) == text, "way %d: %s", way, text);
        CHECK_TEXT(strstr(j.handler.text, told_rows[way].text) != NULL, "way %d: %s", way,
                   j.handler.text);
        dt_ctx_destroy(j.m.ctx);
    }
}

/* ---- what is known before the first step */

typedef struct told_wrong {
    const char *save; /* in the job's folder, which has file "file" and folder "in" */
    uint64_t rows;    /* of the validation set */
    int columns;      /* of it; 0: no set */
    bool other;       /* its second column has another type */
    dt_result result;
    const char *text[2]; /* what the error has */
} told_wrong;

static const told_wrong told_wrongs[] = {
    {"none/best", 0, 0, false, DT_ERROR_IO, {"No such file or directory", ".watch.save"}},
    {"file/best", 0, 0, false, DT_ERROR_IO, {"Not a directory", ".watch.save"}},
    {"in", 0, 0, false, DT_ERROR_IO, {"a folder", ".watch.save"}},
    {NULL, 0, 2, false, DT_ERROR_INVALID, {".validation", "dt_dataset.rows is 0"}},
    {NULL, 40, 1, false, DT_ERROR_INVALID, {".validation", "input 't' has no column in it"}},
    {NULL, 40, 2, true, DT_ERROR_INVALID, {".validation", "dataset column 1"}},
    {"in/best", 40, 2, false, DT_OK, {"", ""}},
};

typedef struct told_start {
    const told_wrong *row;
    char root[64];
} told_start;

static dt_result told_steps(void *user, dt_fit_state *s) {
    *(uint64_t *)user += s->event == DT_FIT_STEP;
    return DT_OK;
}

static void told_start_rank(rank *r) {
    const told_start *c = r->job->arg;
    const told_wrong *row = c->row;
    told_job j = {.trainer = NULL};
    char save[128];
    uint64_t steps = 0;
    const dt_ctx_desc one = {.no_vulkan = true, .threads = 1, .logger = {told_line, &j.log}};
    if (!EXPECT(r, train_model_make(&j.m, &one, 0)))
        return;
    dt_trainer_desc d = train_desc(&j.m);
    d.comm = r->job->count > 1 ? r->comm : NULL;
    d.devices = "cpu";
    d.parallel.batch_slices = 2;
    EXPECT_TEXT(r, !dt_trainer_create(j.m.graph, &d, &j.trainer), "%s", dt_ctx_error(j.m.ctx));
    dt_dataset set = d.data;
    set.rows = row->rows;
    if (row->columns == 1)
        set.columns[1] = (dt_column){.data = NULL};
    if (row->other)
        set.columns[1].dtype = DT_F32;
    snprintf(save, sizeof save, "%s/%s", c->root, row->save ? row->save : "");
    dt_fit_desc f = {.epochs = 2,
                     .validation = row->columns ? &set : NULL,
                     .watch = {.save = row->save ? save : NULL},
                     .callbacks = {{told_steps, &steps}}};
    told_forget(&j);
    const dt_result result = dt_trainer_fit(j.trainer, &f, NULL);
    const char *text = dt_ctx_error(j.m.ctx);
    EXPECT_TEXT(r, result == row->result, "%d: %s", (int)result, text);
    EXPECT_TEXT(r, steps == (row->result ? 0 : 10), "%d steps: %s", (int)steps, text);
    EXPECT_TEXT(r, !result || (strstr(text, row->text[0]) && strstr(text, row->text[1])), "%s",
                text);
    EXPECT_TEXT(r, !result || d.comm || j.log.errors == 1, "%s", j.log.text);
    dt_ctx_destroy(j.m.ctx);
}

TEST(faults_that_would_end_a_fit_after_an_epoch_are_refused_before_the_first_step) {
    for (size_t i = 0; i < sizeof told_wrongs / sizeof *told_wrongs; i++) {
        told_start c = {.row = &told_wrongs[i], .root = "/tmp/dtrain-told-XXXXXX"};
        char command[256];
        CHECK(mkdtemp(c.root) != NULL);
        snprintf(command, sizeof command, "cd '%s' && echo 1 >file && mkdir in", c.root);
        CHECK(system(command) == 0);
        for (int ranks = 1; ranks <= 2; ranks++) {
            job *j = job_new(ranks, &c);
            CHECK_TEXT(job_run(j, told_start_rank), "row %d on %d ranks", (int)i, ranks);
            job_free(j);
        }
        snprintf(command, sizeof command, "test \"$(ls %s)\" = \"$(printf 'file\\nin')\"", c.root);
        CHECK_TEXT(system(command) == 0, "row %d leaves a file behind", (int)i);
        snprintf(command, sizeof command, "rm -rf %s", c.root);
        CHECK(system(command) == 0);
    }
}

/* ---- nothing to do */

TEST(a_fit_that_has_nothing_to_do_reports_the_number_of_steps_made) {
    char folder[] = "/tmp/dtrain-told-XXXXXX", command[64];
    static const char *const texts[] = {
        NULL,
        "dt_trainer_fit: 10 of 10 steps are done already; nothing to do. Raise "
        ".epochs or .steps, or start with another .checkpoint.folder",
        "dt_trainer_fit: 10 of 5 steps are done already; nothing to do",
        "dt_trainer_fit: 10 of 7 steps are done already; nothing to do"};
    CHECK(mkdtemp(folder) != NULL);
    for (int start = 0; start < 4; start++) {
        told_job j;
        dt_history h;
        if (!told_open(&j, folder))
            return;
        told_forget(&j);
        const dt_fit_desc d = {.epochs = start == 2   ? 1
                                         : start == 3 ? 0
                                                      : 2,
                               .steps = start == 3 ? 7 : 0};
        CHECK(!dt_trainer_fit(j.trainer, &d, &h));
        CHECK_TEXT(h.count == (start ? 0 : 2), "%d", (int)h.count);
        CHECK_TEXT(!strstr(j.log.text, "nothing to do") == !start, "%s", j.log.text);
        CHECK_TEXT(!start || strstr(j.log.text, texts[start]), "%s", j.log.text);
        CHECK_TEXT(!start || strstr(j.log.text, "training resumes after step 10, in epoch 2"), "%s",
                   j.log.text);
        CHECK_TEXT(!j.log.errors, "%s", j.log.text);
        dt_history_destroy(&h);
        dt_ctx_destroy(j.m.ctx);
    }
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK(system(command) == 0);
}

/* ---- too many skipped steps */

static dt_result told_nan(void *user, const dt_sample *s, void *const *values) {
    (void)user, (void)s;
    ((float *)values[0])[0] = NAN;
    return DT_OK;
}

/* skips: 0 = 8. With a limit of one step the fit ends in the middle of the steps under way. */
TEST(a_fit_that_ends_for_skipped_steps_reports_their_number_and_what_to_do) {
    static const struct {
        uint64_t skips, steps;
        const char *text;
    } rows[] = {{0, 0, "8 steps in a row were skipped (.max_skips is 8); lower the learning rate"},
                {3, 0, "3 steps in a row were skipped (.max_skips is 3); lower the learning rate"},
                {3, 3, "3 steps in a row were skipped (.max_skips is 3); lower the learning rate"},
                {1, 0, "1 steps in a row were skipped (.max_skips is 1); lower the learning rate"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        told_job j;
        dt_trainer *t = NULL;
        if (!told_open(&j, NULL))
            return;
        j.desc.data.sample = told_nan;
        CHECK(!dt_trainer_create(j.m.graph, &j.desc, &t));
        const dt_fit_desc d = {.epochs = 5, .steps = rows[i].steps, .max_skips = rows[i].skips};
        CHECK(dt_trainer_fit(t, &d, NULL) == DT_ERROR_NUMERIC);
        const char *text = dt_ctx_error(j.m.ctx);
        CHECK_TEXT(strstr(text, rows[i].text) && strstr(text, "input 'x' holds a NaN"), "%s", text);
        dt_ctx_destroy(j.m.ctx);
    }
}

/* ---- checkpoints */

static dt_result told_break(void *user, dt_fit_state *s) {
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s' && echo 1 >'%s'", (char *)user, (char *)user);
    return s->event != DT_FIT_EPOCH || !system(command) ? DT_OK : DT_ERROR_UNSUPPORTED;
}

/* way 0: of a fit at its start; 1: of one under way; 2: asked for. */
TEST(a_checkpoint_that_cannot_be_written_is_one_line_of_the_log_with_what_to_do) {
    for (int way = 0; way < 3; way++) {
        told_job j;
        char root[] = "/tmp/dtrain-told-XXXXXX", folder[64], command[64];
        CHECK(mkdtemp(root) != NULL);
        snprintf(folder, sizeof folder, way == 1 ? "%s/run" : "%s/none/run", root);
        if (!told_open(&j, folder))
            return;
        told_forget(&j);
        const dt_fit_desc d = {.epochs = 1, .callbacks = {{way ? told_break : NULL, folder}}};
        const dt_result result =
            way == 2 ? dt_trainer_checkpoint(j.trainer) : dt_trainer_fit(j.trainer, &d, NULL);
        CHECK_TEXT(result == (way == 1 ? DT_OK : DT_ERROR_IO), "way %d: %d", way, (int)result);
        const char *how = "set .checkpoint.folder to a writable folder";
        CHECK_TEXT(strstr(dt_ctx_error(j.m.ctx), how) != NULL, "%s", dt_ctx_error(j.m.ctx));
        CHECK_TEXT(j.log.errors == 1 && strstr(j.log.text, how), "way %d: %s", way, j.log.text);
        dt_ctx_destroy(j.m.ctx);
        snprintf(command, sizeof command, "rm -rf %s", root);
        CHECK(system(command) == 0);
    }
}
