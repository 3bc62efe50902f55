/* Values that are not finite in a fit: in what is validated they count as not better, and end
 * nothing; where steps end it, the best weights are put back. */
#include "train/train_modes.h"

enum { FINITE_EPOCHS = 10, FINITE_STEPS = 5, FINITE_VALID = 40 };

/* A validation set with a hole in the epochs of a mask; a fit that is stopped at a step. */
typedef struct finite_watch {
    uint32_t mask; /* bit e: what is validated after epoch e + 1 has a NaN */
    float hole;
    uint64_t stop_at; /* 0: never */
    bool now;
    double *loss;        /* NULL, or of each validation */
    uint64_t *hash;      /* the weights then */
    uint32_t not_finite; /* as the state has it at the end */
} finite_watch;

static dt_result finite_sample(void *user, const dt_sample *s, void *const *values) {
    const finite_watch *w = user;
    if (w->now && s->row == 23)
        ((float *)values[0])[3] = w->hole;
    return DT_OK;
}

static dt_result finite_see(void *user, dt_fit_state *s) {
    finite_watch *w = user;
    if (s->event == DT_FIT_STEP && s->step == w->stop_at)
        s->stop = DT_FIT_STOP_CALLBACK;
    if (s->event == DT_FIT_EPOCH)
        w->now = w->mask >> (s->epoch - 1) & 1u;
    if (s->event == DT_FIT_VALIDATED && w->loss) {
        w->loss[s->epoch - 1] = s->validation.loss;
        w->hash[s->epoch - 1] = train_values_hash(s->trainer);
    }
    w->not_finite = (uint32_t)s->not_finite;
    return DT_OK;
}

typedef struct finite_job {
    train_model m;
    dt_trainer *t;
    dt_dataset valid;
    finite_watch w;
} finite_job;

static bool finite_open(finite_job *j, const char *devices, const char *folder, finite_watch w) {
    if (!CHECK_TEXT(train_model_make(&j->m, &(dt_ctx_desc){.no_vulkan = true}, 0), "the model"))
        return false;
    dt_trainer_desc d = train_desc(&j->m);
    d.devices = devices;
    d.parallel.batch_slices = 2;
    d.checkpoint.folder = folder;
    j->w = w;
    j->valid = d.data;
    j->valid.rows = FINITE_VALID;
    j->valid.sample = finite_sample;
    j->valid.user = &j->w;
    return CHECK_TEXT(!dt_trainer_create(j->m.graph, &d, &j->t), "%s", dt_ctx_error(j->m.ctx));
}

static void finite_fit(finite_job *j, dt_watch watch, uint64_t epochs, dt_history *h) {
    dt_fit_desc d = {.epochs = epochs, .validation = &j->valid, .watch = watch};
    d.callbacks[0] = (dt_callback){finite_see, &j->w};
    const dt_result result = dt_trainer_fit(j->t, &d, h);
    CHECK_TEXT(result == DT_OK, "%s", dt_ctx_error(j->m.ctx));
}

static void finite_remove(const char *folder) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK(system(command) == 0);
}

/* By the rule: where it stops, and the best epoch (0: none). */
static uint32_t finite_rule(const double *loss, uint32_t mask, int patience, uint32_t *best) {
    int waited = 0;
    *best = 0;
    for (uint32_t e = 1; e <= FINITE_EPOCHS; e++) {
        const bool better =
            !(mask >> (e - 1) & 1u) && (!*best || loss[*best - 1] - loss[e - 1] > 0.02);
        waited = better ? 0 : waited + 1;
        *best = better ? e : *best;
        if (patience && waited >= patience)
            return e;
    }
    return FINITE_EPOCHS;
}

/* Drawn: which validations have a NaN or an infinity, patience, replicas, and an interruption with
 * a checkpoint. The weights, the best step and the end are those that the rule gives. */
TEST(a_validation_that_is_not_finite_counts_as_not_better_and_ends_no_fit) {
    const char *folder = "build/fit-finite";
    double loss[FINITE_EPOCHS] = {0};
    uint64_t hash[FINITE_EPOCHS] = {0};
    uint32_t state = 20;
    finite_job j;
    if (!finite_open(&j, "cpu", NULL, (finite_watch){.loss = loss, .hash = hash}))
        return;
    dt_history h;
    finite_fit(&j, (dt_watch){0}, FINITE_EPOCHS, &h);
    dt_history_destroy(&h);
    dt_ctx_destroy(j.m.ctx);
    for (int round = 0; round < 12; round++) {
        const uint32_t mask = round ? train_random(&state) & train_random(&state) : 2;
        const int patience = round % 4 ? 1 + round % 4 : 0;
        const uint64_t cut = round % 3 == 2 ? 1 + train_random(&state) % 24 : 0;
        uint32_t best;
        const uint32_t end = finite_rule(loss, mask, patience, &best);
        const finite_watch w = {.mask = mask, .hole = round % 2 ? NAN : INFINITY, .stop_at = cut};
        finite_remove(folder);
        for (int run = cut ? 0 : 1; run < 2; run++) {
            if (!finite_open(&j, round % 2 ? "cpu:2" : "cpu", cut ? folder : NULL, w))
                return;
            j.w.stop_at = run ? 0 : cut;
            finite_fit(&j,
                       (dt_watch){.patience = patience, .min_delta = 0.02, .restore_best = true},
                       FINITE_EPOCHS, &h);
            if (!run && h.stop != DT_FIT_STOP_CALLBACK) /* it ended before */
                run = 1;
            if (run) {
                CHECK_TEXT(h.epochs == end && h.best_step == best * FINITE_STEPS,
                           "round %d: ends with epoch %d, not %u, the best is step %d, not %u",
                           round, (int)h.epochs, end, (int)h.best_step, best * FINITE_STEPS);
                const uint64_t want = hash[(best ? best : end) - 1];
                CHECK_TEXT(train_values_hash(j.t) == want, "round %d: other weights", round);
                CHECK(best || strstr(dt_ctx_error(j.m.ctx), "never finite"));
            }
            for (size_t i = 0; i < h.count; i++) {
                const dt_history_entry *e = &h.entries[i];
                const bool hole = mask >> (e->epoch - 1) & 1u;
                CHECK(hole ? !isfinite(e->validation_loss) && !e->better
                           : fabs(e->validation_loss / loss[e->epoch - 1] - 1.0) < 1e-6);
            }
            dt_history_destroy(&h);
            dt_ctx_destroy(j.m.ctx);
        }
    }
    finite_remove(folder);
}

typedef struct finite_log {
    int warnings;
    char text[1200]; /* the first */
} finite_log;

static void finite_take(void *user, dt_log_level level, const char *message) {
    finite_log *log = user;
    if (level == DT_LOG_WARNING && !log->warnings++)
        snprintf(log->text, sizeof log->text, "%s", message);
}

/* The log has the epoch, the metric and the op; accuracy is still a number, over all samples. */
TEST(a_validation_that_is_not_finite_is_named_and_its_other_values_are_right) {
    for (int metric = 0; metric < 2; metric++) {
        finite_log log = {0};
        finite_job j = {.w = {.now = true, .hole = NAN}};
        dt_history h;
        dt_train_report r;
        if (!train_model_make(&j.m,
                              &(dt_ctx_desc){.no_vulkan = true, .logger = {finite_take, &log}}, 0))
            return;
        dt_trainer_desc d = train_desc(&j.m);
        j.valid = d.data;
        j.valid.rows = FINITE_VALID;
        j.valid.sample = finite_sample;
        j.valid.user = &j.w;
        CHECK(!dt_trainer_create(j.m.graph, &d, &j.t));
        CHECK(dt_trainer_evaluate(j.t, &j.valid, 7, &r) == DT_ERROR_NUMERIC);
        CHECK_TEXT(strstr(dt_ctx_error(j.m.ctx), "NaN"), "%s", dt_ctx_error(j.m.ctx));
        CHECK(r.samples == FINITE_VALID && isnan(r.loss) && isfinite(r.metric[0]));
        CHECK(r.metric_weight[0] == 37.0); /* three targets are ignored */
        log = (finite_log){0};
        j.w.mask = 1;
        finite_fit(&j, (dt_watch){.metric = metric ? "accuracy" : NULL, .maximize = metric}, 1, &h);
        CHECK(h.not_finite == (metric ? 0 : 1) && h.best_step == (metric ? FINITE_STEPS : 0));
        CHECK_TEXT(metric
                       ? !log.warnings
                       : strstr(log.text, "after epoch 1 (step 5) the validation loss is NaN, ") &&
                             strstr(log.text, "'x'"),
                   "%d: %s", log.warnings, log.text);
        dt_history_destroy(&h);
        dt_ctx_destroy(j.m.ctx);
    }
}

static dt_result finite_ignore(void *user, const dt_sample *s, void *const *values) {
    (void)user;
    (void)s;
    *(int32_t *)values[1] = -100;
    return DT_OK;
}

static dt_result finite_no_step(void *user, const dt_sample *s, void *const *values) {
    (void)user;
    (void)s;
    ((float *)values[0])[0] = NAN;
    return DT_OK;
}

/* way 0: a validation, and 1: training whose targets are all ignored; 2: no step is made. */
TEST(a_watched_value_without_samples_is_an_error_and_not_nan) {
    static const char *const want[] = {
        "after epoch 1 (step 5) the validation loss has no target that counts, ",
        "after epoch 1 (step 5) the loss has no target that counts, ",
        "after epoch 1 (step 0) the loss has no completed step, "};
    for (int way = 0; way < 3; way++) {
        finite_log log = {0};
        train_model m;
        dt_trainer *t = NULL;
        dt_train_report r;
        dt_history h;
        if (!train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true, .logger = {finite_take, &log}},
                              0))
            return;
        dt_trainer_desc d = train_desc(&m);
        dt_dataset valid = d.data;
        valid.sample = finite_ignore;
        d.data.sample = way == 2 ? finite_no_step : way ? finite_ignore : NULL;
        CHECK(!dt_trainer_create(m.graph, &d, &t));
        CHECK(!dt_trainer_evaluate(t, &valid, 0, &r));
        CHECK(r.empty == 0 && r.loss_weight[0] == 0.0 && r.loss == 0.0);
        const dt_fit_desc f = {.epochs = 1, .validation = way ? NULL : &valid};
        CHECK_TEXT(!dt_trainer_fit(t, &f, &h), "%s", dt_ctx_error(m.ctx));
        CHECK_TEXT(strstr(log.text, want[way]) && !strstr(log.text, "nan") &&
                       !strstr(log.text, "NaN"),
                   "way %d: %s", way, log.text);
        CHECK_TEXT(strstr(dt_ctx_error(m.ctx), "never had a target or a step that counts"),
                   "way %d: %s", way, dt_ctx_error(m.ctx));
        CHECK(h.not_finite == 1 && h.best_step == 0 && h.skipped == (way == 2 ? 5 : 0));
        dt_history_destroy(&h);
        dt_ctx_destroy(m.ctx);
    }
}

typedef struct finite_holes {
    uint64_t from, to; /* steps with a NaN */
} finite_holes;

static dt_result finite_hole(void *user, const dt_sample *s, void *const *values) {
    const finite_holes *h = user;
    if (s->step >= h->from && s->step < h->to)
        ((float *)values[0])[0] = NAN;
    return DT_OK;
}

/* many: for ever, so the fit fails, and has the best weights; else an epoch, whose loss would be
 * 0. */
TEST(an_epoch_without_a_step_is_not_the_best_and_a_diverged_fit_has_the_best_weights) {
    for (int many = 0; many < 2; many++) {
        const char *path = "build/fit-diverged.safetensors";
        train_model m, n;
        dt_trainer *t = NULL, *u = NULL;
        dt_history h;
        finite_holes holes = {16, many ? 1000 : 21};
        if (!train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 0) ||
            !train_model_make(&n, &(dt_ctx_desc){.no_vulkan = true}, 0))
            return;
        dt_trainer_desc d = train_desc(&m), e = train_desc(&n);
        d.devices = many ? "cpu:2" : "cpu";
        d.data.sample = finite_hole;
        d.data.user = &holes;
        CHECK(!dt_trainer_create(m.graph, &d, &t) && !dt_trainer_create(n.graph, &e, &u));
        dt_fit_desc f = {.epochs = 6, .max_skips = 9};
        f.watch = (dt_watch){.restore_best = true, .save = path, .maximize = many};
        const dt_result result = dt_trainer_fit(t, &f, &h);
        CHECK_TEXT(result == (many ? DT_ERROR_NUMERIC : DT_OK), "%s", dt_ctx_error(m.ctx));
        CHECK(!many || strstr(dt_ctx_error(m.ctx), "'x' holds a NaN"));
        CHECK_TEXT(h.count == (many ? 4 : 6) && !h.entries[3].better && h.not_finite == 1,
                   "%zu epochs", h.count);
        CHECK(many ? h.best_step == FINITE_STEPS : h.best_step > 15);
        CHECK(h.best > 0.0);
        CHECK(!dt_store_load(dt_trainer_store(u), path));
        CHECK(train_values_hash(t) == train_values_hash(u));
        dt_history_destroy(&h);
        remove(path);
        dt_ctx_destroy(m.ctx);
        dt_ctx_destroy(n.ctx);
    }
}

/* As PyTorch's ReduceLROnPlateau: by hand with the same values, of which one is a NaN. */
TEST(a_plateau_counts_a_validation_that_is_not_finite_as_not_better) {
    uint64_t hash[3];
    for (int by = 0; by < 3; by++) { /* fit; by hand; by hand without the NaN */
        finite_job j = {.w = {.mask = 1u << 2, .hole = NAN}};
        dt_train_report r;
        if (!train_model_make(&j.m, &(dt_ctx_desc){.no_vulkan = true}, 0))
            return;
        j.m.adam.schedule[0] =
            (dt_schedule){.kind = DT_SCHEDULE_PLATEAU, .patience = 1, .gamma = 0.1};
        j.m.adam.schedule[0].threshold = 0.05;
        dt_trainer_desc d = train_desc(&j.m);
        j.valid = d.data;
        j.valid.rows = FINITE_VALID;
        j.valid.sample = finite_sample;
        j.valid.user = &j.w;
        CHECK(!dt_trainer_create(j.m.graph, &d, &j.t));
        dt_history h;
        if (!by) {
            finite_fit(&j, (dt_watch){0}, 7, &h);
            dt_history_destroy(&h);
        }
        for (int e = 1; e <= 7 && by; e++) {
            CHECK(!dt_trainer_epoch(j.t, NULL));
            j.w.now = e == 3;
            CHECK(dt_trainer_evaluate(j.t, &j.valid, 0, &r) == (e == 3 ? DT_ERROR_NUMERIC : DT_OK));
            if (by == 1 || e != 3)
                CHECK(!dt_trainer_report_metric(j.t, r.loss));
        }
        hash[by] = train_values_hash(j.t);
        dt_ctx_destroy(j.m.ctx);
    }
    CHECK(hash[0] == hash[1]);
}

/* ---- in every mode */

enum { FINITE_MODE_STEPS = 5 };

/* way 0: validations after epochs 1 and 3 have a NaN, on one rank's share; 1: steps from the middle
 * of the third epoch on. */
typedef struct finite_rank {
    int way;
    finite_watch w;
    uint64_t hash[FINITE_EPOCHS], last;
    dt_history h;
    dt_result result;
    char text[1200];
} finite_rank;

static dt_result finite_keep(void *user, dt_fit_state *s) {
    finite_rank *r = user;
    if (s->event == (r->way ? DT_FIT_EPOCH : DT_FIT_VALIDATED) && s->epoch <= FINITE_EPOCHS)
        r->hash[s->epoch - 1] = train_values_hash(s->trainer);
    return finite_see(&r->w, s);
}

static dt_result finite_mode_fit(const train_mode *mode, dt_comm *comm, finite_rank *r,
                                 train_model *m) {
    dt_trainer *t = NULL;
    finite_holes holes = {13, 1000};
    dt_trainer_desc d = train_desc(m);
    train_mode_take(mode, comm, &d);
    dt_dataset valid = d.data;
    valid.rows = FINITE_VALID;
    valid.sample = finite_sample;
    valid.user = &r->w;
    dt_fit_desc f = {.epochs = FINITE_EPOCHS, .max_skips = 3, .callbacks = {{finite_keep, r}}};
    f.watch = (dt_watch){.patience = r->way ? 0 : 2, .restore_best = true, .min_delta = 1e6};
    f.validation = r->way ? NULL : &valid;
    if (r->way) {
        d.data.sample = finite_hole;
        d.data.user = &holes;
    }
    dt_result result = dt_trainer_create(m->graph, &d, &t);
    if (result)
        return result;
    r->result = dt_trainer_fit(t, &f, &r->h);
    snprintf(r->text, sizeof r->text, "%s", dt_ctx_error(m->ctx));
    dt_history_destroy(&(dt_history){.ctx = r->h.ctx, .entries = r->h.entries});
    r->last = train_values_hash(t);
    return DT_OK;
}

static void finite_mode_rank(const train_mode *mode, dt_comm *comm, void *user) {
    finite_rank *r = user;
    static _Thread_local train_model m;
    const dt_ctx_desc ctx = {.no_vulkan = !mode->vulkan, .threads = 1};
    if (!train_model_make(&m, &ctx, mode->kind) || finite_mode_fit(mode, comm, r, &m))
        snprintf(r->text, sizeof r->text, "%s: %s", mode->name, dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

TEST(values_that_are_not_finite_end_fits_alike_in_every_mode_with_the_best_weights) {
    const bool vulkan = train_has_vulkan();
    for (size_t i = 0; i < sizeof train_modes / sizeof *train_modes; i++) {
        const train_mode *mode = &train_modes[i];
        for (int way = 0; way < 2 && (vulkan || !mode->vulkan) && !mode->average; way++) {
            static finite_rank all[MODE_RANKS];
            for (int k = 0; k < MODE_RANKS; k++)
                all[k] = (finite_rank){.way = way, .w = {.mask = 5, .hole = NAN}};
            for (int k = train_mode_job(mode, finite_mode_rank, all, sizeof *all); k-- > 0;) {
                const finite_rank *r = &all[k];
                const int best = way ? 1 : 2;
                CHECK_TEXT(r->result == (way ? DT_ERROR_NUMERIC : DT_OK), "%s: %d: %s", mode->name,
                           (int)r->result, r->text);
                CHECK_TEXT(!way || strstr(r->text, "NaN") || strstr(r->text, "not finite"),
                           "%s: %s", mode->name, r->text);
                CHECK_TEXT(r->h.stop == (way ? DT_FIT_STOP_FAILED : DT_FIT_STOP_EARLY) &&
                               r->h.epochs == (way ? 3 : 4) && r->h.not_finite == (way ? 0 : 2) &&
                               r->h.best_step == (uint64_t)best * FINITE_MODE_STEPS,
                           "%s, way %d: ends as %d in epoch %d, %d values are none, the best is "
                           "step %d",
                           mode->name, way, (int)r->h.stop, (int)r->h.epochs, (int)r->h.not_finite,
                           (int)r->h.best_step);
                CHECK_TEXT(r->last == r->hash[best - 1] && r->last == all[0].last,
                           "%s, way %d: other weights than the best", mode->name, way);
            }
        }
    }
}
