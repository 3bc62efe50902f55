/* The loop over epochs on several processes. A request of one rank's callback holds for all, and
 * predictions come to all. */
#include "parallel/train_processes.h"

static bool ranks_open(rank *r, train_model *m, dt_trainer **t) {
    if (!EXPECT(r, train_model_make(m, &one_thread, 0)))
        return false;
    dt_trainer_desc d = train_desc(m);
    d.comm = r->comm;
    d.parallel.batch_slices = 4;
    return EXPECT_TEXT(r, !dt_trainer_create(m->graph, &d, t), "%s", dt_ctx_error(m->ctx));
}

static dt_result ranks_call(void *user, dt_fit_state *s) {
    const rank *r = user;
    if (r->index == 1 && s->event == DT_FIT_STEP && s->step == 7)
        s->stop = DT_FIT_STOP_CALLBACK;
    return DT_OK;
}

static void stop_rank(rank *r) {
    train_model m;
    dt_trainer *t = NULL;
    dt_history h;
    if (!ranks_open(r, &m, &t))
        return;
    dt_dataset valid = train_desc(&m).data;
    valid.rows = 50;
    dt_fit_desc d = {.epochs = 5, .validation = &valid, .callbacks = {{ranks_call, r}}};
    d.watch.restore_best = true;
    EXPECT_TEXT(r, !dt_trainer_fit(t, &d, &h), "%s", dt_ctx_error(m.ctx));
    EXPECT(r, h.stop == DT_FIT_STOP_CALLBACK && h.steps == 7 && h.count == 1 && h.best_step == 5);
    EXPECT(r, !dt_store_state_hash(dt_trainer_store(t), &r->numbers[0]));
    EXPECT(r, !dt_trainer_predict(t, &valid, m.logits, 0, r->values, 50 * TRAIN_CLASSES * 4));
    dt_history_destroy(&h);
    dt_ctx_destroy(m.ctx);
}

TEST(one_ranks_callback_stops_all_at_the_same_step_and_all_predict_the_same) {
    for (int count = 2; count <= 3; count++) {
        job *j = job_new(count, NULL);
        job_run(j, stop_rank);
        for (int i = 1; i < count; i++) {
            CHECK(j->at[i].numbers[0] == j->at[0].numbers[0] && j->at[0].numbers[0]);
            CHECK(!memcmp(j->at[i].values, j->at[0].values, 50 * TRAIN_CLASSES * 4));
        }
        for (int i = 0; i < 50 * TRAIN_CLASSES; i++)
            CHECK(j->at[0].values[i] != 0.0f);
        job_free(j);
    }
}

static dt_result ranks_fail(void *user, dt_fit_state *s) {
    const rank *r = user;
    return r->index == 1 && s->event == DT_FIT_STEP && s->step == 3 ? DT_ERROR_IO : DT_OK;
}

static void fail_rank(rank *r) {
    train_model m;
    dt_trainer *t = NULL;
    dt_history h;
    if (!ranks_open(r, &m, &t))
        return;
    dt_fit_desc d = {.epochs = 5, .callbacks = {{ranks_fail, r}}};
    const dt_result result = dt_trainer_fit(t, &d, &h);
    EXPECT_TEXT(r, result == DT_ERROR_IO || r->index != 1, "%s", dt_ctx_error(m.ctx));
    EXPECT(r, result && h.stop == DT_FIT_STOP_FAILED && h.steps == 3);
    EXPECT_TEXT(r, !dt_trainer_step(t, NULL), "%s", dt_ctx_error(m.ctx)); /* the job goes on */
    dt_history_destroy(&h);
    dt_ctx_destroy(m.ctx);
}

TEST(a_callback_that_fails_on_one_rank_ends_the_fit_on_all) {
    job *j = job_new(3, NULL);
    job_run(j, fail_rank);
    job_free(j);
}

/* ---- what ranks are asked for */

static void differ_fit(rank *r) {
    train_model m;
    dt_trainer *t = NULL;
    if (!ranks_open(r, &m, &t))
        return;
    dt_dataset valid = train_desc(&m).data;
    dt_fit_desc d = {.epochs = 1 + (uint64_t)r->index, .validation = &valid};
    EXPECT(r, dt_trainer_fit(t, &d, NULL) == DT_ERROR_INVALID);
    EXPECT_TEXT(r, strstr(dt_ctx_error(m.ctx), "fit: .epochs 2"), "%s", dt_ctx_error(m.ctx));
    d.epochs = 1;
    valid.rows -= (uint64_t)r->index;
    EXPECT(r, dt_trainer_fit(t, &d, NULL) == DT_ERROR_INVALID);
    EXPECT_TEXT(r, strstr(dt_ctx_error(m.ctx), "fit: .validation->rows"), "%s",
                dt_ctx_error(m.ctx));
    d.validation = NULL;
    EXPECT_TEXT(r, !dt_trainer_fit(t, &d, NULL), "%s", dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

TEST(ranks_with_different_fits_get_an_error_with_the_first_difference) {
    job *j = job_new(2, NULL);
    job_run(j, differ_fit);
    job_free(j);
}

/* ---- a range test of rates */

enum { FIND_STEPS = 30 };

/* The curve after two steps; the hash after an epoch that follows it, which is that of none. */
static dt_result find_run(dt_comm *comm, const char *file, bool find, float *losses,
                          uint64_t numbers[2], char text[1200]) {
    static train_model m;
    dt_trainer *t = NULL;
    dt_lr_curve c = {0};
    const dt_lr_find_desc find_desc = {.min = 1e-5, .max = 1.0, .steps = FIND_STEPS, .file = file};
    if (!train_model_make(&m, &one_thread, 0))
        return DT_ERROR_MEMORY;
    dt_trainer_desc d = train_desc(&m);
    d.comm = comm;
    d.parallel.batch_slices = 6;
    dt_result result = dt_trainer_create(m.graph, &d, &t);
    for (int i = 0; i < 2 && !result; i++)
        result = dt_trainer_step(t, NULL);
    if (!result && find)
        result = dt_lr_find(t, &find_desc, &c);
    for (size_t i = 0; i < c.count; i++)
        losses[i] = (float)c.points[i].loss;
    numbers[0] = c.count;
    losses[FIND_STEPS] = (float)c.suggestion;
    if (!result)
        result = dt_trainer_epoch(t, NULL);
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(t), &numbers[1]);
    snprintf(text, 1200, "%s", dt_ctx_error(m.ctx));
    dt_lr_curve_destroy(&c);
    dt_ctx_destroy(m.ctx);
    return result;
}

static void find_rank(rank *r) {
    char file[64];
    snprintf(file, sizeof file, "%s/lr.state", r->job->folder);
    r->result = find_run(r->comm, file, true, r->values, r->numbers, r->text);
    EXPECT_TEXT(r, !r->result, "%s", r->text);
    EXPECT(r, access(file, F_OK) != 0);
}

TEST(lr_find_on_ranks_has_the_curve_of_one_device_and_changes_no_state) {
    static float want[FIND_STEPS + 1], none[FIND_STEPS + 1];
    uint64_t alone[2], untouched[2];
    char text[1200];
    if (!CHECK_TEXT(!find_run(NULL, "build/lr.alone", true, want, alone, text), "%s", text) ||
        !CHECK_TEXT(!find_run(NULL, NULL, false, none, untouched, text), "%s", text))
        return;
    CHECK(alone[0] > 10 && alone[1] == untouched[1] && want[FIND_STEPS] > 0.0f);
    for (int count = 2; count <= 3; count++) {
        job *j = job_new(count, NULL);
        REQUIRE(j);
        job_run(j, find_rank);
        for (int i = 0; i < count; i++) {
            CHECK(j->at[i].numbers[0] == alone[0] && j->at[i].numbers[1] == alone[1]);
            CHECK(!memcmp(j->at[i].values, want, sizeof want));
        }
        job_free(j);
    }
}

/* ---- a rank that is killed: the job that continues stops at the step of one without a kill */

typedef struct watching {
    const char *folder;
    uint64_t kill_at; /* the last rank, after this step; 0: no rank */
    int kind;
    dt_parallel_desc mesh;
} watching;

typedef struct watching_rank {
    const watching *w;
    int rank, count;
    uint64_t began; /* after that number of steps */
} watching_rank;

static dt_result watching_kill(void *user, dt_fit_state *s) {
    watching_rank *k = user;
    if (s->event == DT_FIT_BEGIN)
        k->began = s->step;
    if (s->event == DT_FIT_STEP && s->step == k->w->kill_at && k->rank == k->count - 1)
        raise(SIGKILL);
    return DT_OK;
}

/* Of the values: moments may be sharded. */
static dt_result watching_hash(dt_store *s, uint64_t *hash) {
    static float values[4096];
    *hash = 14695981039346656037u;
    for (int i = 0; i < dt_store_param_count(s); i++) {
        dt_param_info info;
        dt_result result = dt_store_get_param(s, i, &info);
        const size_t bytes = result ? 0 : (size_t)info.elements * sizeof *values;
        if (!result && bytes <= sizeof values)
            result = dt_store_read(s, i, DT_VALUE_PARAM, values, bytes);
        if (result || bytes > sizeof values)
            return result ? result : DT_ERROR_MEMORY;
        for (size_t k = 0; k < bytes; k++)
            *hash = (*hash ^ ((const unsigned char *)values)[k]) * 1099511628211u;
    }
    return DT_OK;
}

/* Stops early, lowers the rate on plateaus, and puts back the best weights; checkpoints come in
 * the middle of epochs. */
static dt_result watching_run(dt_comm *comm, watching_rank *k, dt_history *h, uint64_t *hash,
                              char text[1200]) {
    static train_model m;
    dt_trainer *t = NULL;
    *h = (dt_history){0};
    if (!train_model_make(&m, &one_thread, k->w->kind))
        return DT_ERROR_MEMORY;
    dt_trainer_desc d = train_desc(&m);
    m.adam.schedule[0] =
        (dt_schedule){.kind = DT_SCHEDULE_PLATEAU, .patience = 1, .gamma = 0.5, .threshold = 0.1};
    d.comm = comm;
    d.parallel = k->w->mesh;
    d.parallel.batch_slices = 6;
    d.checkpoint.folder = k->w->folder;
    d.checkpoint.every_steps = k->w->folder ? 2 : 0;
    dt_dataset valid = d.data;
    valid.rows = 40;
    dt_fit_desc fit = {.epochs = 30, .validation = &valid, .validation_steps = 3};
    fit.watch =
        (dt_watch){.metric = "accuracy", .maximize = true, .patience = 4, .restore_best = true};
    fit.callbacks[0] = (dt_callback){watching_kill, k};
    dt_result result = dt_trainer_create(m.graph, &d, &t);
    if (!result)
        result = dt_trainer_fit(t, &fit, h);
    if (!result)
        result = watching_hash(dt_trainer_store(t), hash);
    snprintf(text, 1200, "%s", dt_ctx_error(m.ctx));
    dt_history_destroy(&(dt_history){.ctx = h->ctx, .entries = h->entries});
    dt_ctx_destroy(m.ctx);
    return result;
}

static void watching_process(rank *r) {
    watching_rank k = {r->job->arg, r->index, r->job->count, 0};
    dt_history h;
    r->result = watching_run(r->comm, &k, &h, &r->numbers[0], r->text);
    r->numbers[1] = h.steps;
    r->numbers[2] = h.best_step;
    r->numbers[3] = (uint64_t)h.stop;
    r->numbers[4] = k.began;
    EXPECT_TEXT(r, !r->result == !k.w->kill_at, "%d: %s", (int)r->result, r->text);
    EXPECT(r, !r->result || h.stop == DT_FIT_STOP_FAILED);
}

static void watching_job(const watching *w, int count, const dt_history *want, uint64_t bits) {
    job *j = job_new(count, w);
    REQUIRE(j);
    j->at[count - 1].doomed = w->kill_at != 0;
    job_run(j, watching_process);
    for (int i = 0; i < count && !w->kill_at; i++) {
        const uint64_t *n = j->at[i].numbers;
        CHECK_TEXT(n[0] == bits && n[1] == want->steps && n[2] == want->best_step &&
                       n[3] == DT_FIT_STOP_EARLY && n[4] + 4 >= n[1] && n[4] < n[1],
                   "rank %d of %d: from step %d to %d, the best %d; not %d and %d", i, count,
                   (int)n[4], (int)n[1], (int)n[2], (int)want->steps, (int)want->best_step);
    }
    job_free(j);
}

typedef struct watching_row {
    const char *what;
    int kind;
    int killed, after; /* ranks */
    dt_parallel_desc mesh, then;
} watching_row;

static void watching_killed(const watching_row *row, const dt_history *want, uint64_t bits) {
    const char *folder = "build/fit-killed";
    CHECK(system("rm -rf build/fit-killed") == 0);
    watching w = {folder, want->best_step + 1, row->kind, row->mesh};
    watching_job(&w, row->killed, NULL, 0);
    w.kill_at = want->steps - 2;
    watching_job(&w, row->killed, NULL, 0);
    w.kill_at = 0;
    w.mesh = row->then;
    watching_job(&w, row->after, want, bits);
    CHECK(system("rm -rf build/fit-killed") == 0);
}

/* Also on another mesh, whose ranks have other parts of the best weights. */
TEST(a_fit_that_loses_a_rank_continues_and_stops_at_the_step_of_one_device) {
    static const watching_row rows[] = {
        {"replicas", 0, 2, 3, {0}, {0}},
        {"replicas", 0, 3, 2, {0}, {0}},
        {"a pipeline, then ZeRO-3", 0, 2, 3, {.pipeline = 2}, {.zero_stage = 3}},
        {"ZeRO-3, then a pipeline", 0, 3, 2, {.zero_stage = 3}, {.pipeline = 2}},
        {"ZeRO-3 in stages", 0, 4, 1, {.pipeline = 2, .zero_stage = 3}, {0}},
        {"ZeRO-1", 0, 2, 4, {.zero_stage = 1}, {.pipeline = 2, .zero_stage = 2}},
        {"tensor ranks", TRAIN_PARTS, 2, 1, {.tensor = 2}, {0}},
        {"a replica, then tensor ranks", TRAIN_PARTS, 2, 2, {0}, {.tensor = 2}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        watching_row row = rows[i];
        row.mesh.tensor_slices = row.then.tensor_slices = row.kind ? 2 : 0;
        const watching whole = {.kind = row.kind, .mesh = {.tensor_slices = row.kind ? 2 : 0}};
        watching_rank alone = {&whole, 0, 1, 0};
        dt_history want;
        uint64_t bits = 0;
        char text[1200];
        if (!CHECK_TEXT(!watching_run(NULL, &alone, &want, &bits, text), "%s: %s", row.what, text))
            return;
        CHECK_TEXT(want.stop == DT_FIT_STOP_EARLY && want.steps > 15 && want.best_step > 5 &&
                       want.best_step < want.steps,
                   "%s: step %d, the best %d", row.what, (int)want.steps, (int)want.best_step);
        watching_killed(&row, &want, bits);
    }
}
