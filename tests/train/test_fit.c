/* The loop over epochs: the bits of steps made by hand, its ends, and what it keeps and reports;
 * the bar; predictions; summaries. */
#include "train/train_model.h"

#include <unistd.h>

typedef struct fit_job {
    train_model m;
    dt_trainer *trainer;
    dt_dataset valid; /* the first 40 samples */
} fit_job;

static bool fit_open(fit_job *j, const char *devices, const char *folder, double lr) {
    if (!CHECK_TEXT(train_model_make(&j->m, &(dt_ctx_desc){.no_vulkan = true}, 0), "the model"))
        return false;
    dt_trainer_desc d = train_desc(&j->m);
    j->m.adam.lr = lr;
    d.devices = devices;
    d.parallel.batch_slices = 2;
    d.checkpoint.folder = folder;
    j->valid = d.data;
    j->valid.rows = 40;
    return CHECK_TEXT(dt_trainer_create(j->m.graph, &d, &j->trainer) == DT_OK, "%s",
                      dt_ctx_error(j->m.ctx));
}

static uint64_t fit_hash(fit_job *j) {
    uint64_t hash = 0;
    CHECK(dt_store_state_hash(dt_trainer_store(j->trainer), &hash) == DT_OK);
    return hash;
}

static void fit_remove_folder(const char *folder) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK(system(command) == 0);
}

static void fit_close(fit_job *j) {
    dt_ctx_destroy(j->m.ctx);
}

#define FIT_TRY(job, call)                                                                         \
    test_check((call) == DT_OK, __FILE__, __LINE__, "%s: %s", #call, dt_ctx_error((job)->m.ctx))

/* ---- what it computes */

TEST(fit_has_the_bits_of_epochs_made_by_hand) {
    fit_job a, b;
    dt_history h;
    if (!fit_open(&a, "cpu", NULL, 0.01) || !fit_open(&b, "cpu:2", NULL, 0.01))
        return;
    for (int i = 0; i < 3; i++)
        FIT_TRY(&a, dt_trainer_epoch(a.trainer, NULL));
    FIT_TRY(&b, dt_trainer_fit(b.trainer, &(dt_fit_desc){.epochs = 3, .validation = &b.valid}, &h));
    CHECK(fit_hash(&a) == fit_hash(&b));
    CHECK(h.count == 3 && h.stop == DT_FIT_STOP_DONE && h.epochs == 3 && h.steps == 15);
    dt_train_report r;
    FIT_TRY(&b, dt_trainer_evaluate(b.trainer, &b.valid, 0, &r));
    CHECK(h.count == 3 && h.entries[2].validation_loss == r.loss);
    CHECK(h.count == 3 && h.entries[2].validation_metric[0] == r.metric[0]);
    CHECK(h.count == 3 && h.entries[0].epoch == 1 && h.entries[0].step == 5);
    dt_history_destroy(&h);
    fit_close(&a);
    fit_close(&b);
}

TEST(fit_of_steps_ends_within_an_epoch_and_continues_from_there) {
    fit_job a, b;
    if (!fit_open(&a, "cpu", NULL, 0.01) || !fit_open(&b, "cpu", NULL, 0.01))
        return;
    FIT_TRY(&a, dt_trainer_fit(a.trainer, &(dt_fit_desc){.steps = 7}, NULL));
    dt_trainer_info info;
    dt_trainer_get_info(a.trainer, &info);
    CHECK(info.step == 7 && info.epoch == 1);
    FIT_TRY(&a, dt_trainer_fit(a.trainer, &(dt_fit_desc){.epochs = 2, .steps = 100}, NULL));
    FIT_TRY(&b, dt_trainer_fit(b.trainer, &(dt_fit_desc){.epochs = 2}, NULL));
    CHECK(fit_hash(&a) == fit_hash(&b));
    FIT_TRY(&b, dt_trainer_fit(b.trainer, &(dt_fit_desc){.epochs = 2}, NULL)); /* none is left */
    CHECK(fit_hash(&a) == fit_hash(&b));
    fit_close(&a);
    fit_close(&b);
}

/* ---- what is watched */

TEST(fit_stops_when_the_watched_value_stops_improving) {
    fit_job j;
    dt_history h;
    if (!fit_open(&j, "cpu", NULL, 0.01))
        return;
    dt_fit_desc d = {.epochs = 50, .validation = &j.valid};
    d.watch = (dt_watch){.patience = 3, .min_delta = 1e6}; /* the first is the best */
    FIT_TRY(&j, dt_trainer_fit(j.trainer, &d, &h));
    CHECK(h.stop == DT_FIT_STOP_EARLY && h.count == 4 && h.best_step == 5);
    CHECK(h.count == 4 && h.entries[0].better && !h.entries[1].better);
    CHECK(h.count == 4 && h.best == h.entries[0].validation_loss);
    dt_history_destroy(&h);
    fit_close(&j);
}

/* The worst accuracy is watched, which is early: so there is something to put back. */
TEST(fit_restores_and_saves_the_best_weights) {
    const char *path = "build/fit-best.safetensors";
    for (int replicas = 1; replicas <= 2; replicas++) {
        fit_job j, k;
        dt_history h;
        dt_train_report r;
        remove(path);
        if (!fit_open(&j, replicas == 1 ? "cpu" : "cpu:2", NULL, 0.01) ||
            !fit_open(&k, "cpu", NULL, 0.01))
            return;
        dt_fit_desc d = {.epochs = 8, .validation = &j.valid, .validation_steps = 3};
        d.watch = (dt_watch){.metric = "accuracy", .restore_best = true, .save = path};
        FIT_TRY(&j, dt_trainer_fit(j.trainer, &d, &h));
        CHECK_TEXT(h.count == 13 && h.best_step % 3 == 0 && h.best_step < 39,
                   "%zu validations, the best of step %d", h.count, (int)h.best_step);
        FIT_TRY(&j, dt_trainer_evaluate(j.trainer, &j.valid, 0, &r));
        CHECK(r.metric[0] == h.best);
        for (size_t i = 0; i < h.count; i++)
            CHECK(h.entries[i].validation_metric[0] >= h.best);
        FIT_TRY(&k, dt_store_load(dt_trainer_store(k.trainer), path));
        FIT_TRY(&k, dt_trainer_evaluate(k.trainer, &k.valid, 0, &r));
        CHECK(r.metric[0] == h.best);
        FIT_TRY(&j, dt_trainer_step(j.trainer, NULL)); /* all replicas have them */
        dt_history_destroy(&h);
        fit_close(&j);
        fit_close(&k);
    }
    remove(path);
}

/* how: 0: fit reports it; 1: by hand, after each epoch; 2: nobody does. */
static uint64_t fit_plateau(int how) {
    fit_job j;
    dt_trainer *t = NULL;
    dt_train_report r;
    uint64_t hash = 0;
    if (!fit_open(&j, "cpu", NULL, 0.01))
        return 0;
    dt_trainer_desc d = train_desc(&j.m);
    j.m.adam.schedule[0] =
        (dt_schedule){.kind = DT_SCHEDULE_PLATEAU, .patience = 1, .gamma = 0.1, .threshold = 0.9};
    dt_trainer_destroy(j.trainer);
    FIT_TRY(&j, dt_trainer_create(j.m.graph, &d, &t));
    for (int i = 0; i < 6 && how; i++) {
        FIT_TRY(&j, dt_trainer_epoch(t, &r));
        if (how == 1)
            FIT_TRY(&j, dt_trainer_report_metric(t, r.loss));
    }
    if (!how)
        FIT_TRY(&j, dt_trainer_fit(t, &(dt_fit_desc){.epochs = 6}, NULL));
    CHECK(dt_store_state_hash(dt_trainer_store(t), &hash) == DT_OK);
    fit_close(&j);
    return hash;
}

TEST(fit_reports_the_watched_value_to_a_plateau) {
    const uint64_t fitted = fit_plateau(0);
    CHECK(fitted == fit_plateau(1));
    CHECK(fitted != fit_plateau(2)); /* the rate has come down */
}

/* ---- callbacks */

typedef struct fit_seen {
    char events[512];
    uint64_t stop_at; /* asks for it after this step; 0: never */
    dt_result fail;   /* after step 2 */
    dt_fit_stop end;
    double validation;
} fit_seen;

static dt_result fit_see(void *user, dt_fit_state *s) {
    fit_seen *seen = user;
    const size_t at = strlen(seen->events);
    if (at + 2 < sizeof seen->events) {
        seen->events[at] = "bsevx"[s->event];
        seen->events[at + 1] = 0;
    }
    if (s->event == DT_FIT_STEP && s->step == seen->stop_at)
        s->stop = DT_FIT_STOP_CALLBACK;
    if (s->event == DT_FIT_VALIDATED)
        seen->validation = s->validation.loss;
    if (s->event == DT_FIT_EPOCH)
        CHECK_TEXT(s->train.step == s->step && s->train.epoch_ended, "step %d of %d",
                   (int)s->train.step, (int)s->step);
    if (s->event == DT_FIT_END)
        seen->end = s->stop;
    return s->event == DT_FIT_STEP && s->step == 2 ? seen->fail : DT_OK;
}

TEST(fit_calls_its_callbacks_in_order_with_all_values) {
    fit_job j;
    fit_seen seen = {.stop_at = 0};
    if (!fit_open(&j, "cpu", NULL, 0.01))
        return;
    dt_fit_desc d = {.epochs = 2, .validation = &j.valid, .callbacks = {{fit_see, &seen}}};
    FIT_TRY(&j, dt_trainer_fit(j.trainer, &d, NULL));
    CHECK_TEXT(!strcmp(seen.events, "bsssssevsssssevx"), "%s", seen.events);
    CHECK(seen.end == DT_FIT_STOP_DONE && seen.validation > 0.0);
    seen = (fit_seen){.stop_at = 12};
    d.epochs = 5;
    FIT_TRY(&j, dt_trainer_fit(j.trainer, &d, NULL));
    CHECK_TEXT(!strcmp(seen.events, "bssx"), "%s", seen.events);
    CHECK(seen.end == DT_FIT_STOP_CALLBACK);
    dt_trainer_info info;
    dt_trainer_get_info(j.trainer, &info);
    CHECK(info.step == 12);
    fit_close(&j);
}

static dt_result fit_lower(void *user, dt_fit_state *s) {
    (void)user;
    return s->event == DT_FIT_STEP ? dt_trainer_set_lr(s->trainer, 0.01 / (double)(s->step + 1))
                                   : DT_OK;
}

/* As by hand, on one device and on two; another rate gives other bits. */
TEST(fit_uses_the_rate_that_a_callback_sets_from_the_next_step_on) {
    fit_job by_hand, a, b, plain;
    if (!fit_open(&by_hand, "cpu", NULL, 0.01) || !fit_open(&a, "cpu", NULL, 0.01) ||
        !fit_open(&b, "cpu:2", NULL, 0.01) || !fit_open(&plain, "cpu", NULL, 0.01))
        return;
    for (int i = 1; i <= 7; i++) {
        FIT_TRY(&by_hand, dt_trainer_step(by_hand.trainer, NULL));
        FIT_TRY(&by_hand, dt_trainer_set_lr(by_hand.trainer, 0.01 / (double)(i + 1)));
    }
    const dt_fit_desc d = {.steps = 7, .callbacks = {{fit_lower, NULL}}}, none = {.steps = 7};
    FIT_TRY(&a, dt_trainer_fit(a.trainer, &d, NULL));
    FIT_TRY(&b, dt_trainer_fit(b.trainer, &d, NULL));
    FIT_TRY(&plain, dt_trainer_fit(plain.trainer, &none, NULL));
    CHECK(fit_hash(&a) == fit_hash(&by_hand) && fit_hash(&b) == fit_hash(&a));
    CHECK(fit_hash(&plain) != fit_hash(&a));
    fit_close(&by_hand);
    fit_close(&a);
    fit_close(&b);
    fit_close(&plain);
}

TEST(fit_ends_with_the_error_of_a_callback) {
    fit_job j;
    fit_seen seen = {.fail = DT_ERROR_IO};
    dt_history h;
    if (!fit_open(&j, "cpu", NULL, 0.01))
        return;
    dt_fit_desc d = {.epochs = 2, .callbacks = {{fit_see, &seen}}};
    CHECK(dt_trainer_fit(j.trainer, &d, &h) == DT_ERROR_IO);
    CHECK_TEXT(!strcmp(seen.events, "bssx"), "%s", seen.events);
    CHECK(seen.end == DT_FIT_STOP_FAILED && h.stop == DT_FIT_STOP_FAILED && h.steps == 2);
    dt_history_destroy(&h);
    fit_close(&j);
}

static dt_result fit_fail_at_end(void *user, dt_fit_state *s) {
    (void)user;
    return s->event == DT_FIT_END ? DT_ERROR_IO : DT_OK;
}

/* way 0: settings that are refused; 1: no trainer; 2: a checkpoint of another model; 3: a callback
 * at the end. */
TEST(a_fit_that_fails_at_any_point_records_it_in_its_history) {
    const char *folder = "build/fit-fails";
    for (int way = 0; way < 4; way++) {
        fit_job j;
        train_model other;
        dt_trainer *t = NULL;
        dt_history h;
        fit_remove_folder(folder);
        if (!fit_open(&j, "cpu", folder, 0.01) ||
            !train_model_make(&other, &(dt_ctx_desc){.no_vulkan = true}, 1))
            return;
        dt_trainer_desc d = train_desc(&other);
        d.checkpoint.folder = folder;
        CHECK(dt_trainer_create(other.graph, &d, &t) == DT_OK);
        if (way == 2)
            FIT_TRY(&j, dt_trainer_fit(j.trainer, &(dt_fit_desc){.epochs = 1}, NULL));
        dt_fit_desc f = {.epochs = way ? 1 : 0};
        if (way == 3)
            f.callbacks[0].call = fit_fail_at_end;
        const dt_result result = dt_trainer_fit(way == 1 ? NULL : t, &f, &h);
        CHECK_TEXT(result && h.stop == DT_FIT_STOP_FAILED, "way %d: %d, %d", way, (int)result,
                   (int)h.stop);
        dt_history_destroy(&h);
        dt_ctx_destroy(other.ctx);
        fit_close(&j);
    }
    fit_remove_folder(folder);
}

/* ---- steps that are skipped */

typedef struct fit_holes {
    uint64_t from, to; /* steps with a NaN */
} fit_holes;

static dt_result fit_hole(void *user, const dt_sample *s, void *const *values) {
    const fit_holes *h = user;
    if (s->step >= h->from && s->step < h->to)
        ((float *)values[0])[0] = NAN;
    return DT_OK;
}

/* The history and the bar have how many. */
TEST(fit_skips_steps_with_a_nan_up_to_a_limit) {
    for (int many = 0; many < 2; many++) {
        char text[4096] = "";
        FILE *file = tmpfile();
        dt_progress p = {.file = file};
        train_model m;
        dt_trainer *t = NULL;
        dt_history h;
        fit_holes holes = {3, many ? 1000 : 5};
        if (!CHECK_TEXT(file != NULL, "a file") ||
            !train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 0))
            return;
        dt_trainer_desc d = train_desc(&m);
        d.data.sample = fit_hole;
        d.data.user = &holes;
        CHECK(dt_trainer_create(m.graph, &d, &t) == DT_OK);
        dt_fit_desc f = {.epochs = 3, .max_skips = 4, .callbacks = {{dt_progress_show, &p}}};
        dt_result result = dt_trainer_fit(t, &f, &h);
        rewind(file);
        CHECK(fread(text, 1, sizeof text - 1, file) > 0);
        fclose(file);
        CHECK_TEXT(h.skipped == (many ? 4 : 2), "%d skipped", (int)h.skipped);
        CHECK_TEXT(strstr(text, many ? "failed  4 skipped" : "step 13  2 skipped  loss "), "%s",
                   text);
        CHECK_TEXT(result == (many ? DT_ERROR_NUMERIC : DT_OK), "%s", dt_ctx_error(m.ctx));
        CHECK(h.steps == (many ? 2 : 13)); /* the loader counts skipped ones */
        CHECK(!many || strstr(dt_ctx_error(m.ctx), "NaN"));
        for (size_t i = 0; i < h.count; i++) /* of the steps that were made */
            CHECK(isfinite(h.entries[i].loss) && h.entries[i].loss > 0.0);
        dt_history_destroy(&h);
        dt_ctx_destroy(m.ctx);
    }
}

/* ---- going on */

TEST(fit_resumes_from_the_newest_checkpoint_with_the_same_bits) {
    const char *folder = "build/fit-checkpoints";
    fit_job a, b, c;
    fit_remove_folder(folder);
    if (!fit_open(&a, "cpu", NULL, 0.01) || !fit_open(&b, "cpu", folder, 0.01))
        return;
    FIT_TRY(&a, dt_trainer_fit(a.trainer, &(dt_fit_desc){.epochs = 4}, NULL));
    FIT_TRY(&b, dt_trainer_fit(b.trainer, &(dt_fit_desc){.epochs = 2}, NULL));
    fit_close(&b);
    if (!fit_open(&c, "cpu:2", folder, 0.01))
        return;
    fit_seen seen = {.stop_at = 0};
    dt_fit_desc d = {.epochs = 4, .callbacks = {{fit_see, &seen}}};
    FIT_TRY(&c, dt_trainer_fit(c.trainer, &d, NULL));
    CHECK_TEXT(!strcmp(seen.events, "bsssssesssssex"), "%s", seen.events);
    CHECK(fit_hash(&a) == fit_hash(&c));
    fit_close(&a);
    fit_close(&c);
    fit_remove_folder(folder);
}

/* ---- an early stop, interrupted */

typedef struct fit_break {
    uint64_t at; /* the step after which it stops, which writes a checkpoint; 0: never */
} fit_break;

static dt_result fit_break_at(void *user, dt_fit_state *s) {
    const fit_break *b = user;
    if (s->event == DT_FIT_STEP && s->step == b->at)
        s->stop = DT_FIT_STOP_CALLBACK;
    return DT_OK;
}

/* way: 0: the loss of a validation each 3 steps; 1: accuracy, and the best weights are put back; 2:
 * the epoch's own loss. */
static dt_fit_desc fit_watching(const fit_job *j, int way, fit_break *b) {
    dt_fit_desc d = {.epochs = 30, .callbacks = {{fit_break_at, b}}};
    if (way < 2) {
        d.validation = &j->valid;
        d.validation_steps = 3;
    }
    d.watch = (dt_watch){.patience = 3, .min_delta = way == 2 ? 0.05 : 0.2};
    if (way == 1)
        d.watch =
            (dt_watch){.metric = "accuracy", .maximize = true, .patience = 4, .restore_best = true};
    return d;
}

static bool fit_interrupted(int way, uint64_t at, const char *folder, dt_history *h,
                            uint64_t *hash) {
    fit_break b = {at};
    for (int run = at ? 0 : 1; run < 2; run++) {
        fit_job j;
        if (!fit_open(&j, "cpu:2", folder, 0.01))
            return false;
        const dt_fit_desc d = fit_watching(&j, way, &b);
        FIT_TRY(&j, dt_trainer_fit(j.trainer, &d, h));
        CHECK(run || (h->stop == DT_FIT_STOP_CALLBACK && h->steps == at));
        *hash = fit_hash(&j);
        dt_history_destroy(&(dt_history){.ctx = h->ctx, .entries = h->entries});
        b.at = 0;
        fit_close(&j);
    }
    return true;
}

TEST(fit_that_is_interrupted_stops_early_at_the_same_epoch) {
    const char *folder = "build/fit-watched";
    const uint64_t stride = getenv("DTRAIN_TEST_LONG") ? 1 : 4;
    for (int way = 0; way < 3; way++) {
        dt_history whole, cut;
        uint64_t bits = 0, again = 0;
        fit_remove_folder(folder);
        if (!fit_interrupted(way, 0, NULL, &whole, &bits))
            return;
        CHECK_TEXT(whole.stop == DT_FIT_STOP_EARLY && whole.steps > 15 && whole.best_step > 5,
                   "way %d: ends %d at step %d, the best at %d", way, (int)whole.stop,
                   (int)whole.steps, (int)whole.best_step);
        for (uint64_t at = 1; at < whole.steps; at += stride) {
            fit_remove_folder(folder);
            if (!fit_interrupted(way, at, folder, &cut, &again))
                return;
            CHECK_TEXT(cut.stop == whole.stop && cut.steps == whole.steps &&
                           cut.best_step == whole.best_step && cut.best == whole.best,
                       "way %d, interrupted at %d: ends at step %d, not %d; the best, %.9g, at %d, "
                       "not %.9g at %d",
                       way, (int)at, (int)cut.steps, (int)whole.steps, cut.best, (int)cut.best_step,
                       whole.best, (int)whole.best_step);
            CHECK_TEXT(again == bits, "way %d, interrupted at %d: other bits", way, (int)at);
        }
    }
    fit_remove_folder(folder);
}

/* The end of a fit that stopped early, loaded by hand: .no_resume trains on, else it has ended. */
TEST(fit_without_resume_restarts_its_watch_after_loading) {
    const char *folder = "build/fit-anew";
    dt_history h;
    fit_break b = {0};
    fit_remove_folder(folder);
    for (int run = 0; run < 3; run++) {
        fit_job j;
        bool found = false;
        if (!fit_open(&j, "cpu", folder, 0.01))
            return;
        dt_fit_desc d = fit_watching(&j, 0, &b);
        d.no_resume = run == 2;
        if (run)
            FIT_TRY(&j, dt_trainer_resume(j.trainer, &found));
        CHECK(found == (run > 0));
        FIT_TRY(&j, dt_trainer_fit(j.trainer, &d, &h));
        CHECK_TEXT(h.stop == DT_FIT_STOP_EARLY && (h.count > 0) == (run != 1),
                   "run %d: %d at step %d", run, (int)h.stop, (int)h.steps);
        if (!run)
            FIT_TRY(&j, dt_trainer_checkpoint(j.trainer));
        dt_history_destroy(&h);
        fit_close(&j);
    }
    fit_remove_folder(folder);
}

/* By .steps, within an epoch: the next fit goes on where this one ended. */
TEST(a_fit_that_ends_within_an_epoch_leaves_a_checkpoint_of_its_last_step) {
    const char *folder = "build/fit-steps";
    fit_remove_folder(folder);
    for (int run = 0; run < 2; run++) {
        fit_job j;
        bool found = false;
        dt_history h;
        if (!fit_open(&j, "cpu", folder, 0.01))
            return;
        const dt_fit_desc d = {.steps = 7 + (uint64_t)run};
        FIT_TRY(&j, dt_trainer_fit(j.trainer, &d, &h));
        CHECK_TEXT(h.steps == d.steps && h.stop == DT_FIT_STOP_DONE, "%d steps", (int)h.steps);
        dt_history_destroy(&h);
        fit_close(&j);
        if (!fit_open(&j, "cpu", folder, 0.01))
            return;
        FIT_TRY(&j, dt_trainer_resume(j.trainer, &found));
        dt_trainer_info info;
        dt_trainer_get_info(j.trainer, &info);
        CHECK_TEXT(found && info.step == d.steps, "from step %d", (int)info.step);
        fit_close(&j);
    }
    fit_remove_folder(folder);
}

/* ---- a range test of rates */

TEST(lr_find_changes_no_state_and_finds_where_the_loss_falls) {
    const dt_lr_find_desc d = {.min = 1e-6, .max = 100.0, .steps = 80, .file = "build/lr.state"};
    for (int replicas = 1; replicas <= 2; replicas++) {
        fit_job a, b;
        dt_lr_curve c, again;
        if (!fit_open(&a, replicas == 1 ? "cpu" : "cpu:2", NULL, 0.01) ||
            !fit_open(&b, "cpu", NULL, 0.01))
            return;
        for (int i = 0; i < 3; i++) {
            FIT_TRY(&a, dt_trainer_step(a.trainer, NULL));
            FIT_TRY(&b, dt_trainer_step(b.trainer, NULL));
        }
        FIT_TRY(&a, dt_lr_find(a.trainer, &d, &c));
        CHECK(fit_hash(&a) == fit_hash(&b) && access(d.file, F_OK) != 0);
        FIT_TRY(&a, dt_lr_find(a.trainer, &d, &again));
        CHECK(c.count == again.count && c.suggestion == again.suggestion);
        CHECK_TEXT(c.count > 40 && c.diverged && c.points[0].lr == 1e-6, "%d points", (int)c.count);
        CHECK_TEXT(c.suggestion > 1e-4 && c.suggestion < 1.0, "a rate of %g", c.suggestion);
        for (size_t i = 1; i < c.count; i++)
            CHECK_NEAR(c.points[i].lr / c.points[i - 1].lr, pow(1e8, 1.0 / 79), 1e-9);
        FIT_TRY(&a, dt_trainer_epoch(a.trainer, NULL));
        FIT_TRY(&b, dt_trainer_epoch(b.trainer, NULL));
        CHECK(fit_hash(&a) == fit_hash(&b)); /* the rate and the order of samples too */
        dt_lr_curve_destroy(&c);
        dt_lr_curve_destroy(&again);
        fit_close(&a);
        fit_close(&b);
    }
}

/* It may be all that has the state of a job that was killed within the test. */
TEST(lr_find_refuses_a_file_that_exists) {
    const dt_lr_find_desc d = {.min = 1e-4, .max = 1e-3, .steps = 5, .file = "build/lr.there"};
    fit_job j;
    dt_lr_curve c;
    if (!fit_open(&j, "cpu", NULL, 0.01))
        return;
    FIT_TRY(&j, dt_trainer_save(j.trainer, d.file));
    CHECK(dt_lr_find(j.trainer, &d, &c) == DT_ERROR_INVALID && !c.count);
    CHECK_CONTAINS(dt_ctx_error(j.m.ctx), "build/lr.there");
    FIT_TRY(&j, dt_trainer_load(j.trainer, d.file));
    CHECK(truncate(d.file, 0) == 0);
    FIT_TRY(&j, dt_lr_find(j.trainer, &d, &c));
    CHECK(access(d.file, F_OK) != 0);
    dt_lr_curve_destroy(&c);
    fit_close(&j);
}

/* ---- predictions */

TEST(predictions_of_a_trainer_equal_those_of_a_program) {
    enum { VALUES = TRAIN_ROWS * TRAIN_CLASSES };
    static float all[VALUES], own[VALUES];
    for (int replicas = 1; replicas <= 3; replicas++) {
        const char *devices[] = {"", "cpu", "cpu:2", "cpu:3"};
        train_model m;
        dt_trainer *t = NULL;
        dt_program *p = NULL;
        if (!train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 1))
            return;
        dt_trainer_desc d = train_desc(&m);
        d.devices = devices[replicas];
        CHECK(dt_trainer_create(m.graph, &d, &t) == DT_OK && dt_trainer_epoch(t, NULL) == DT_OK);
        for (int batch = 0; batch < 50; batch += 49) {
            memset(all, 0, sizeof all);
            dt_result r = dt_trainer_predict(t, &d.data, m.logits, batch, all, sizeof all);
            CHECK_TEXT(r == DT_OK, "%s", dt_ctx_error(m.ctx));
            dt_program_desc desc = {.outputs = {m.logits}, .batch = TRAIN_ROWS};
            CHECK(dt_program_create(dt_trainer_store(t), &desc, &p) == DT_OK);
            CHECK(dt_program_write(p, m.x, m.data.x, sizeof m.data.x) == DT_OK);
            CHECK(dt_program_run(p, NULL, NULL) == DT_OK);
            CHECK(dt_program_read(p, m.logits, own, sizeof own) == DT_OK);
            CHECK(memcmp(all, own, sizeof all) == 0);
            dt_program_destroy(p);
        }
        dt_train_report r; /* and evaluation as before */
        CHECK(dt_trainer_evaluate(t, &d.data, 0, &r) == DT_OK && r.samples == TRAIN_ROWS);
        CHECK(dt_trainer_predict(t, &d.data, m.logits, 0, all, sizeof all - 4) == DT_ERROR_INVALID);
        CHECK(dt_trainer_predict(t, &d.data, m.loss, 0, all, 8) == DT_ERROR_INVALID);
        dt_ctx_destroy(m.ctx);
    }
}

/* ---- the bar */

static void fit_shown(dt_progress *p, char *text, size_t size) {
    fit_job j;
    FILE *file = tmpfile();
    memset(text, 0, size);
    if (!CHECK_TEXT(file != NULL, "a file") || !fit_open(&j, "cpu", NULL, 0.01))
        return;
    p->file = file;
    dt_fit_desc d = {.epochs = 2, .validation = &j.valid, .callbacks = {{dt_progress_show, p}}};
    FIT_TRY(&j, dt_trainer_fit(j.trainer, &d, NULL));
    rewind(file);
    CHECK(fread(text, 1, size - 1, file) > 0);
    fclose(file);
    fit_close(&j);
}

TEST(a_progress_bar_in_a_file_writes_a_plain_line_for_each_epoch) {
    char text[4096];
    dt_progress p = {.label = "net"};
    fit_shown(&p, text, sizeof text);
    int lines = 0;
    for (const char *c = text; *c; c++) {
        lines += *c == '\n';
        CHECK(*c != '\r' && *c != 27);
    }
    CHECK_TEXT(lines == 2, "%s", text);
    CHECK_TEXT(strstr(text, "net  epoch 1/2  step 5  loss ") != NULL, "%s", text);
    CHECK_TEXT(strstr(text, "  val accuracy ") && strstr(text, "samples/s"), "%s", text);
}

TEST(a_progress_bar_on_a_terminal_never_exceeds_its_line) {
    char text[65536];
    dt_progress p = {.columns = 60, .every = 1e-9};
    fit_shown(&p, text, sizeof text);
    size_t bars = 0, width = 0;
    for (const char *c = text; *c; c++) {
        width = *c == '\r' || *c == '\n' ? 0 : width + 1;
        bars += *c == '[';
        CHECK(*c != 27);
        if (!strchr(c, '\n') || c < strchr(text, '\n')) /* lines that stay are whole */
            CHECK_TEXT(width < 60 || *(c - width + 1) != '[', "%zu columns", width);
    }
    CHECK_TEXT(bars >= 8, "%zu bars", bars);
    CHECK(strstr(text, "] epoch 1/2  step ") != NULL);
}

/* ---- summaries */

TEST(a_summary_counts_parameters_and_multiply_adds) {
    train_model m;
    char text[4096], small[40];
    size_t needed = 0;
    if (!train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 0))
        return;
    CHECK(dt_summary(m.logits, DT_SUMMARY_TEXT, text, sizeof text, &needed) == DT_OK);
    CHECK(needed == strlen(text));
    /* 36-24-16-5 with biases */
    CHECK_TEXT(strstr(text, "parameters 1373 (1373 trained, 0 not)") != NULL, "%s", text);
    CHECK_TEXT(strstr(text, "multiply-adds of a sample 1328") != NULL, "%s", text);
    CHECK_TEXT(strstr(text, "fc1 ") && strstr(text, "[B, 16]"), "%s", text);
    CHECK(dt_summary(m.logits, DT_SUMMARY_JSON, text, sizeof text, NULL) == DT_OK);
    CHECK_TEXT(strstr(text, "\"parameters\":1373,\"trained\":1373") != NULL, "%s", text);
    CHECK(dt_summary(m.logits, DT_SUMMARY_TEXT, small, sizeof small, &needed) == DT_OK);
    CHECK(strlen(small) == sizeof small - 1 && needed > sizeof small);
    CHECK(dt_summary((dt_tensor){m.graph, 0}, DT_SUMMARY_TEXT, text, sizeof text, NULL) ==
          DT_ERROR_INVALID);
    dt_ctx_destroy(m.ctx);
}

TEST(a_summary_counts_a_tied_table_once) {
    dt_ctx *ctx;
    dt_graph *g = NULL;
    char text[2048];
    CHECK(dt_ctx_create(NULL, &ctx) == DT_OK && dt_graph_create(ctx, &g) == DT_OK);
    const dt_init init = {.kind = DT_INIT_NORMAL, .b = 1};
    dt_tensor x = dt_input(g, "x", DT_I32, dt_dims(4));
    dt_tensor table = dt_param(g, "table.weight", dt_dims(10, 8), init);
    dt_tensor y = dt_linear(dt_embedding(table, x), table, (dt_tensor){0});
    CHECK(dt_summary(y, DT_SUMMARY_TEXT, text, sizeof text, NULL) == DT_OK);
    CHECK_TEXT(strstr(text, "parameters 80 (80 trained, 0 not)") != NULL, "%s", text);
    dt_ctx_destroy(ctx);
}

/* ---- rounds of local steps */

TEST(fit_of_local_steps_validates_and_stops_at_rounds_ends) {
    fit_job j;
    dt_trainer *t = NULL;
    dt_history h;
    fit_seen seen = {.stop_at = 7};
    if (!fit_open(&j, "cpu", NULL, 0.01))
        return;
    dt_trainer_destroy(j.trainer);
    dt_trainer_desc d = train_desc(&j.m);
    d.devices = "cpu:2";
    d.mode = DT_TRAIN_LOCAL;
    d.local.steps = 2;
    FIT_TRY(&j, dt_trainer_create(j.m.graph, &d, &t));
    dt_fit_desc f = {.epochs = 3, .validation = &j.valid, .callbacks = {{fit_see, &seen}}};
    FIT_TRY(&j, dt_trainer_fit(t, &f, &h));
    CHECK_TEXT(!strcmp(seen.events, "bsssssevssx"), "%s", seen.events);
    CHECK(h.stop == DT_FIT_STOP_CALLBACK && h.count == 1 && h.entries[0].validation_loss > 0.0);
    dt_trainer_info info;
    dt_trainer_get_info(t, &info);
    CHECK(info.round_steps == 0);
    dt_history_destroy(&h);
    f.validation_steps = 2;
    CHECK(dt_trainer_fit(t, &f, NULL) == DT_ERROR_INVALID);
    fit_close(&j);
}

/* ---- a pipeline */

static dt_trainer_desc fit_stages(train_model *m, int stages) {
    dt_trainer_desc d = train_desc(m);
    d.devices = stages > 1 ? "cpu:2" : "cpu";
    d.parallel.pipeline = stages;
    d.accumulate = 3;
    return d;
}

TEST(fit_of_a_pipeline_has_the_bits_of_one_device_and_restores_the_best) {
    float y[2][TRAIN_ROWS * TRAIN_CLASSES];
    dt_history h[2];
    uint64_t hash[2] = {0, 1};
    for (int i = 0; i < 2; i++) {
        train_model m;
        dt_trainer *t = NULL;
        if (!train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 0))
            return;
        dt_trainer_desc d = fit_stages(&m, i + 1);
        dt_dataset valid = d.data;
        valid.rows = 40;
        CHECK_TEXT(dt_trainer_create(m.graph, &d, &t) == DT_OK, "%s", dt_ctx_error(m.ctx));
        dt_fit_desc f = {.epochs = 4, .validation = &valid};
        f.watch =
            (dt_watch){.metric = "accuracy", .restore_best = true}; /* the worst, which is early */
        CHECK_TEXT(dt_trainer_fit(t, &f, &h[i]) == DT_OK, "%s", dt_ctx_error(m.ctx));
        CHECK(dt_trainer_step(t, NULL) == DT_OK); /* from the weights that were put back */
        CHECK(dt_store_state_hash(dt_trainer_store(t), &hash[i]) == DT_OK);
        CHECK(dt_trainer_predict(t, &d.data, m.logits, 0, y[i], sizeof y[i]) == DT_OK);
        dt_history_destroy(&h[i]);
        dt_ctx_destroy(m.ctx);
    }
    CHECK(hash[0] == hash[1] && h[0].best == h[1].best && h[0].best_step == h[1].best_step);
    CHECK(!memcmp(y[0], y[1], sizeof y[0]));
}

static dt_result fit_fail_at(void *user, dt_fit_state *s) {
    return s->event == DT_FIT_STEP && s->step == *(uint64_t *)user ? DT_ERROR_IO : DT_OK;
}

TEST(fit_of_local_steps_ends_with_whole_rounds_and_loses_no_error) {
    for (int fails = 0; fails < 2; fails++) {
        fit_job j;
        dt_trainer *t = NULL;
        uint64_t at = fails ? 5 : 0;
        if (!fit_open(&j, "cpu", NULL, 0.01))
            return;
        dt_trainer_destroy(j.trainer);
        dt_trainer_desc d = train_desc(&j.m);
        d.devices = "cpu:2";
        d.batch = 10;
        d.mode = DT_TRAIN_LOCAL;
        d.local.steps = 4;
        FIT_TRY(&j, dt_trainer_create(j.m.graph, &d, &t));
        const dt_fit_desc f = {.steps = 6, .callbacks = {{fit_fail_at, &at}}};
        CHECK(dt_trainer_fit(t, &f, NULL) == (fails ? DT_ERROR_IO : DT_OK));
        dt_trainer_info info;
        dt_trainer_get_info(t, &info);
        CHECK(info.step == 8 && info.round_steps == 0);
        CHECK(dt_trainer_evaluate(t, &j.valid, 0, NULL) == DT_OK);
        fit_close(&j);
    }
}

/* Of steps that end within an epoch, and of one that was interrupted there. */
TEST(a_progress_bar_shows_an_end_within_an_epoch_and_its_own_sample_rate) {
    const char *folder = "build/fit-bar";
    char text[4096] = "";
    fit_remove_folder(folder);
    for (int run = 0; run < 2; run++) {
        fit_job j;
        FILE *file = tmpfile();
        dt_progress p = {.file = file};
        if (!CHECK_TEXT(file != NULL, "a file") || !fit_open(&j, "cpu", folder, 0.01))
            return;
        dt_fit_desc d = {.steps = run ? 9 : 7, .callbacks = {{dt_progress_show, &p}}};
        fit_break b = {7};
        d.callbacks[1] = (dt_callback){fit_break_at, &b};
        FIT_TRY(&j, dt_trainer_fit(j.trainer, &d, NULL));
        rewind(file);
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        CHECK_TEXT((strstr(text, "epoch 1  step 5  loss ") != NULL) != run &&
                       strstr(text, run ? "epoch 2  step 9  loss " : "step 7: asked to stop"),
                   "%s", text);
        CHECK_TEXT(p.before == (run ? 74 : 0), "%d samples before", (int)p.before);
        fit_close(&j);
    }
    fit_remove_folder(folder);
}

TEST(a_progress_bar_shows_every_epoch_once) {
    char text[4096] = "";
    fit_job j;
    FILE *file = tmpfile();
    dt_progress p = {.file = file};
    if (!CHECK_TEXT(file != NULL, "a file") || !fit_open(&j, "cpu", NULL, 0.01))
        return;
    dt_fit_desc d = {.epochs = 3, .validation = &j.valid, .validation_epochs = 2};
    d.callbacks[0] = (dt_callback){dt_progress_show, &p};
    FIT_TRY(&j, dt_trainer_fit(j.trainer, &d, NULL));
    rewind(file);
    CHECK(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    const char *two = strstr(text, "epoch 2/3");
    CHECK_TEXT(strstr(text, "epoch 1/3") && two && strstr(text, "epoch 3/3"), "%s", text);
    CHECK_TEXT(two && !strstr(two + 1, "epoch 2/3") && strstr(two, "val loss"), "%s", text);
    fit_close(&j);
}
