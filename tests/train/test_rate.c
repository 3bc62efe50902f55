/* The rate of a step: in reports, histories, logs and the bar it is the one that the step used. */
#include "temp.h"

#include "train/train_model.h"

enum { RATE_EPOCH = 5, RATE_STEPS = 12 };

typedef struct rate_job {
    train_model m;
    dt_trainer *trainer;
    dt_trainer_desc d;
} rate_job;

static bool rate_open(rate_job *j, const char *devices, const dt_schedule *schedule, int phases) {
    if (!train_model_make(&j->m, &(dt_ctx_desc){0}, 0))
        return false;
    j->trainer = NULL;
    j->d = train_desc(&j->m);
    j->d.devices = devices;
    j->m.adam.lr = 0.01;
    j->m.adam.groups[0] = (dt_optim_group){.params = "*.bias", .lr_scale = 2.0};
    memcpy(j->m.adam.schedule, schedule, (size_t)phases * sizeof *schedule);
    return true;
}

static bool rate_create(rate_job *j) {
    return CHECK_TEXT(!dt_trainer_create(j->m.graph, &j->d, &j->trainer), "%s",
                      dt_ctx_error(j->m.ctx));
}

static double rate_of(const rate_job *j, uint64_t step) {
    double lr = -1.0;
    CHECK(!dt_optim_lr(j->m.ctx, &j->m.adam, step, &lr));
    return lr;
}

/* A warm-up, of which the first step has rate 0, and what follows. */
static const dt_schedule rate_phases[] = {
    {.kind = DT_SCHEDULE_LINEAR, .steps = 4, .period = 4, .start = DT_ZERO},
    {.kind = DT_SCHEDULE_COSINE, .period = 9}};

/* way 0: as it is; 1: local steps; 2: a pipeline; 3: two steps under way */
static void rate_steps(const char *devices, int way) {
    rate_job j;
    if (!rate_open(&j, devices, rate_phases, 2))
        return;
    if (way == 1) {
        j.d.mode = DT_TRAIN_LOCAL;
        j.d.local.steps = 3;
    }
    j.d.parallel.pipeline = way == 2 ? 2 : 0;
    j.d.limits.in_flight = way == 3 ? 2 : 1;
    if (!rate_create(&j))
        return;
    for (uint64_t step = 1, made = 0; step <= RATE_STEPS; step++) {
        dt_train_report r;
        const bool set = step == 7;
        if (set)
            CHECK(!dt_trainer_set_lr(j.trainer, 0.125));
        CHECK_TEXT(!dt_trainer_step(j.trainer, &r), "%s", dt_ctx_error(j.m.ctx));
        made += r.steps;
        const uint64_t newest = way == 3 ? made : step;
        if (way != 3 || r.steps)
            CHECK_TEXT(r.lr == (newest < 7 ? rate_of(&j, newest) : 0.125),
                       "%s, way %d: step %llu has %g", devices, way, (unsigned long long)newest,
                       r.lr);
    }
    dt_train_report r;
    CHECK(way == 1 || (!dt_trainer_evaluate(j.trainer, &j.d.data, 0, &r) && r.lr == 0.0));
    dt_ctx_destroy(j.m.ctx);
}

TEST(report_has_the_rate_that_its_step_used) {
    rate_steps("cpu", 0);
    rate_steps("cpu:3", 0);
    rate_steps("cpu:2", 1);
    rate_steps("cpu:2", 2);
    if (train_has_vulkan()) {
        rate_steps("vulkan", 0);
        rate_steps("vulkan", 3);
    }
}

TEST(report_of_a_program_has_the_rate_of_the_committed_step) {
    rate_job j;
    dt_store *s;
    dt_program *p;
    dt_report r;
    float x[2 * TRAIN_SIDE * TRAIN_SIDE] = {0};
    int32_t t[2] = {0};
    REQUIRE(rate_open(&j, "cpu", rate_phases, 2));
    dt_program_desc d = {.loss = j.m.loss, .batch = 2, .optim = &j.m.adam, .accumulate = true};
    REQUIRE(!dt_store_create(j.m.graph, &(dt_store_desc){.device = "cpu"}, &s));
    REQUIRE(!dt_program_create(s, &d, &p));
    for (uint64_t step = 1; step <= RATE_STEPS; step++) {
        for (int micro = 0; micro < 2; micro++) {
            const double given = step == 5 ? 0.5 : 0.0;
            const dt_step_desc one = {.micro_batch = micro, .micro_batches = 2, .lr = given};
            CHECK(!dt_program_write(p, j.m.x, x, sizeof x) &&
                  !dt_program_write(p, j.m.t, t, sizeof t));
            CHECK_TEXT(!dt_program_run(p, &one, &r), "%s", dt_ctx_error(j.m.ctx));
            CHECK_TEXT(r.lr == (!micro         ? 0.0
                                : given != 0.0 ? given
                                               : rate_of(&j, step)),
                       "step %llu has %g", (unsigned long long)step, r.lr);
        }
    }
    dt_ctx_destroy(j.m.ctx);
}

/* A phase of 1.4 epochs ends at step 7, and what a file has goes on with other replicas. */
TEST(schedule_in_epochs_resumes_from_a_checkpoint) {
    const dt_schedule phases[] = {{.kind = DT_SCHEDULE_LINEAR, .epochs = 1.4},
                                  {.kind = DT_SCHEDULE_COSINE, .epochs = 1.6}};
    const char *path = temp_path("rate.state");
    rate_job j[2];
    for (int i = 0; i < 2; i++) {
        dt_train_report r;
        REQUIRE(rate_open(&j[i], i ? "cpu:2" : "cpu", phases, 2));
        j[i].d.parallel.batch_slices = 2;
        REQUIRE(rate_create(&j[i]));
        j[i].m.adam.schedule[0] = (dt_schedule){.kind = DT_SCHEDULE_LINEAR, .steps = 7};
        j[i].m.adam.schedule[1] = (dt_schedule){.kind = DT_SCHEDULE_COSINE, .steps = 8};
        CHECK(!i || !dt_trainer_load(j[i].trainer, path));
        for (uint64_t step = i ? 6 : 1; step <= 3 * RATE_EPOCH; step++) {
            CHECK(!dt_trainer_step(j[i].trainer, &r) && r.step == step);
            CHECK_TEXT(r.lr == rate_of(&j[i], step), "step %llu: %g", (unsigned long long)step,
                       r.lr);
            CHECK(i || step != 5 || !dt_trainer_save(j[i].trainer, path));
        }
    }
    CHECK(train_values_hash(j[0].trainer) == train_values_hash(j[1].trainer));
    dt_ctx_destroy(j[0].m.ctx);
    dt_ctx_destroy(j[1].m.ctx);
}

TEST(a_phase_of_less_than_a_step_is_one_step) {
    const dt_schedule phases[] = {{.kind = DT_SCHEDULE_CONSTANT, .epochs = 0.01, .start = 0.25},
                                  {.kind = DT_SCHEDULE_CONSTANT, .epochs = 0.01, .start = 0.5}};
    rate_job j;
    dt_train_report r;
    REQUIRE(rate_open(&j, "cpu", phases, 2) && rate_create(&j));
    for (int step = 0; step < 3; step++) {
        CHECK(!dt_trainer_step(j.trainer, &r));
        CHECK_NEAR(r.lr, j.m.adam.lr * (step == 0 ? 0.25 : step == 1 ? 0.5 : 1.0), 1e-12);
    }
    dt_ctx_destroy(j.m.ctx);
}

/* ---- of a fit */

typedef struct rate_seen {
    double lr[64]; /* by step */
} rate_seen;

static dt_result rate_see(void *user, dt_fit_state *s) {
    rate_seen *seen = user;
    if (s->event == DT_FIT_STEP && s->step < 64)
        seen->lr[s->step] = s->last.lr;
    return DT_OK;
}

static double rate_logged(const char *path, int step) {
    char line[256], want[64];
    double value = -1.0;
    FILE *file = fopen(path, "rb");
    snprintf(want, sizeof want, ",%d,train/lr,", step);
    while (file && fgets(line, sizeof line, file)) {
        const char *at = strstr(line, want);
        value = at ? strtod(at + strlen(want), NULL) : value;
    }
    if (file)
        fclose(file);
    return value;
}

/* A plateau too, whose rate falls by the watched value. */
TEST(history_log_and_progress_bar_have_the_rate_of_each_step_of_a_fit) {
    const dt_schedule plateau = {
        .kind = DT_SCHEDULE_PLATEAU, .gamma = 0.5, .patience = DT_ZERO, .threshold = 1e6};
    const char *folder = temp_path("rate.log"), *csv = temp_path("rate.log/scalars.csv");
    for (int falls = 0; falls < 2; falls++) {
        rate_job j;
        rate_seen seen = {{0}};
        dt_history h;
        dt_run_log *log;
        char bar[4096] = "", part[64];
        FILE *file = tmpfile();
        dt_progress p = {.file = file};
        REQUIRE(file && rate_open(&j, "cpu", falls ? &plateau : rate_phases, falls ? 1 : 2));
        REQUIRE(rate_create(&j));
        remove(csv);
        const dt_run_log_desc l = {.folder = folder, .csv = true, .every_steps = 1};
        CHECK(!dt_run_log_create(j.m.ctx, &l, &log));
        const dt_fit_desc d = {
            .epochs = 3,
            .callbacks = {{rate_see, &seen}, {dt_run_log_fit, log}, {dt_progress_show, &p}}};
        CHECK_TEXT(!dt_trainer_fit(j.trainer, &d, &h), "%s", dt_ctx_error(j.m.ctx));
        for (int step = 1; step <= 3 * RATE_EPOCH; step++) {
            const double want = falls ? 0.01 * pow(0.5, step <= 2 * RATE_EPOCH ? 0 : 1)
                                      : rate_of(&j, (uint64_t)step);
            CHECK_TEXT(seen.lr[step] == want, "step %d: %g, not %g", step, seen.lr[step], want);
            CHECK_NEAR(rate_logged(csv, step), want, 1e-7 * want);
        }
        rewind(file);
        bar[fread(bar, 1, sizeof bar - 1, file)] = 0;
        for (size_t i = 0; i < h.count; i++) {
            CHECK(h.entries[i].lr == seen.lr[h.entries[i].step]);
            snprintf(part, sizeof part, "  lr %.4g", h.entries[i].lr);
            CHECK_CONTAINS(bar, part);
        }
        fclose(file);
        dt_history_destroy(&h);
        dt_run_log_destroy(log);
        dt_ctx_destroy(j.m.ctx);
    }
}
