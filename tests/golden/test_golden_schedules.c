/* Learning rates of each step against torch.optim.lr_scheduler's, recorded by
 * tools/golden/record_golden_schedules.py; and in training: by a model whose gradient is 1, so a
 * weight moves by minus the rate. */
#include "golden/golden.h"

#include "temp.h"

#define RATE_STEPS 60
#define RATE_LR 0.5

static double callback(void *user, uint64_t n) {
    (void)user;
    return 1.0 / (1.0 + (double)n);
}

static double callback_nan(void *user, uint64_t n) {
    (void)user;
    return n < 2 ? 1.0 : (double)NAN;
}

static const struct {
    const char *name;
    dt_schedule schedule[DT_MAX_PHASES];
} rates[] = {
    {"constant", {{.kind = DT_SCHEDULE_CONSTANT, .start = 0.25, .period = 7}}},
    {"step", {{.kind = DT_SCHEDULE_STEP, .period = 9}}},
    {"multi_step", {{.kind = DT_SCHEDULE_MULTI_STEP, .milestones = {5, 20, 21}, .gamma = 0.5}}},
    {"exponential", {{.kind = DT_SCHEDULE_EXPONENTIAL, .gamma = 0.9}}},
    {"polynomial", {{.kind = DT_SCHEDULE_POLYNOMIAL, .period = 40, .power = 1.5}}},
    {"linear", {{.kind = DT_SCHEDULE_LINEAR, .period = 12}}},
    {"linear_down", {{.kind = DT_SCHEDULE_LINEAR, .period = 30, .start = 1, .end = 0.1}}},
    {"geometric", {{.kind = DT_SCHEDULE_GEOMETRIC, .period = 20}}},
    {"cosine", {{.kind = DT_SCHEDULE_COSINE, .period = 25, .lr_min = 0.01}}},
    {"cosine_restarts",
     {{.kind = DT_SCHEDULE_COSINE_RESTARTS, .period = 7, .t_mult = 2, .lr_min = 0.01}}},
    {"cosine_restarts_even", {{.kind = DT_SCHEDULE_COSINE_RESTARTS, .period = 11}}},
    {"one_cycle", {{.kind = DT_SCHEDULE_ONE_CYCLE, .period = 50}}},
    {"wsd", {{.kind = DT_SCHEDULE_WSD, .period = 40, .warmup = 6, .decay = 10, .lr_min = 0.05}}},
    {"inverse_sqrt", {{.kind = DT_SCHEDULE_INVERSE_SQRT, .warmup = 10}}},
    {"callback", {{.kind = DT_SCHEDULE_CALLBACK, .rate = callback}}},
    {"chained",
     {{.kind = DT_SCHEDULE_LINEAR, .period = 10, .start = 0.1, .steps = 10},
      {.kind = DT_SCHEDULE_COSINE, .period = 30, .steps = 30},
      {.kind = DT_SCHEDULE_CONSTANT, .start = 0.125, .period = 99}}},
};

static void rate_near(golden *g, const char *name, int step, double got, double tolerance) {
    const golden_array *a = golden_get(g, name);
    const double wanted = a ? golden_value(a, (size_t)step) : NAN;
    golden_near(got, wanted, tolerance * (fabs(wanted) + 1e-3), name, step);
}

GOLDEN(every_schedule_has_pytorchs_rates, "schedules") {
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        dt_optim_desc optim = {.kind = DT_OPTIM_SGD, .lr = RATE_LR};
        memcpy(optim.schedule, rates[i].schedule, sizeof optim.schedule);
        const golden_array *a = golden_get(g, rates[i].name);
        for (int step = 0; a && step < (int)a->count; step++) {
            double lr = -1;
            if (OK(g, dt_optim_lr(g->ctx, &optim, (uint64_t)step + 1, &lr)))
                rate_near(g, rates[i].name, step, lr, 1e-12);
        }
    }
}

/* ---- given in epochs: PyTorch's, of epochs times the steps of an epoch */

static const struct {
    const char *name;
    uint64_t each; /* steps of an epoch */
    dt_schedule schedule[DT_MAX_PHASES];
} epochs[] = {
    {"constant",
     7,
     {{.kind = DT_SCHEDULE_CONSTANT, .epochs = (double)INFINITY, .start = 0.25, .period = 1}}},
    {"step", 3, {{.kind = DT_SCHEDULE_STEP, .epochs = 20, .period = 3}}},
    {"multi_step",
     1,
     {{.kind = DT_SCHEDULE_MULTI_STEP, .epochs = 60, .milestones = {5, 20, 21}, .gamma = 0.5}}},
    {"exponential", 4, {{.kind = DT_SCHEDULE_EXPONENTIAL, .epochs = 15, .gamma = 0.9}}},
    {"polynomial",
     5,
     {{.kind = DT_SCHEDULE_POLYNOMIAL, .epochs = 8, .power = 1.5},
      {.kind = DT_SCHEDULE_CONSTANT, .start = DT_ZERO}}},
    {"linear", 8, {{.kind = DT_SCHEDULE_LINEAR, .epochs = 1.5}}},
    {"linear_down",
     5,
     {{.kind = DT_SCHEDULE_LINEAR, .epochs = 6, .start = 1, .end = 0.1},
      {.kind = DT_SCHEDULE_CONSTANT, .epochs = (double)INFINITY, .start = 0.1}}},
    {"cosine_restarts",
     7,
     {{.kind = DT_SCHEDULE_COSINE_RESTARTS,
       .epochs = (double)INFINITY,
       .period = 1,
       .t_mult = 2,
       .lr_min = 0.01}}},
    {"wsd",
     2,
     {{.kind = DT_SCHEDULE_WSD, .epochs = 20, .warmup = 3, .decay = 5, .lr_min = 0.05},
      {.kind = DT_SCHEDULE_CONSTANT, .start = 0.1}}},
    {"inverse_sqrt", 5, {{.kind = DT_SCHEDULE_INVERSE_SQRT, .epochs = 12, .warmup = 2}}},
    {"chained",
     4,
     {{.kind = DT_SCHEDULE_LINEAR, .epochs = 2.5, .start = 0.1},
      {.kind = DT_SCHEDULE_COSINE, .steps = 30},
      {.kind = DT_SCHEDULE_CONSTANT, .epochs = 1e9, .start = 0.125}}},
    {"chained",
     12,
     {{.kind = DT_SCHEDULE_LINEAR, .epochs = 0.8, .start = 0.1}, /* 9.6 steps, and then 30.4 */
      {.kind = DT_SCHEDULE_COSINE, .epochs = 2.55},
      {.kind = DT_SCHEDULE_CONSTANT, .start = 0.125}}},
};

/* Batches of 2, of which the last is smaller, or is left out. */
static dt_trainer *epochs_trainer(golden *g, const dt_optim_desc *optim, uint64_t each,
                                  dt_tail tail) {
    static const float x[2 * RATE_STEPS + 1];
    dt_trainer *t = NULL;
    dt_tensor in = dt_input(g->graph, "x", DT_F32, dt_dims());
    dt_tensor w = dt_param(g->graph, "w", dt_dims(), (dt_init){0});
    const dt_trainer_desc d = {.loss = dt_mean_loss(dt_add(in, w)),
                               .optim = optim,
                               .batch = 2,
                               .tail = tail,
                               .devices = "cpu",
                               .data = {.rows = 2 * each + (tail == DT_TAIL_DROP ? 1 : -1ull),
                                        .columns = {{.input = in, .data = x}}}};
    OK(g, dt_trainer_create(g->graph, &d, &t));
    return t;
}

GOLDEN(a_schedule_told_in_epochs_has_pytorchs_rates_in_a_trainer, "schedules") {
    for (size_t i = 0; i < sizeof epochs / sizeof epochs[0]; i++) {
        dt_optim_desc optim = {.kind = DT_OPTIM_SGD, .lr = RATE_LR};
        memcpy(optim.schedule, epochs[i].schedule, sizeof optim.schedule);
        golden own = *g;
        if (!OK(g, dt_graph_create(g->ctx, &own.graph)))
            return;
        dt_trainer *t =
            epochs_trainer(&own, &optim, epochs[i].each, i % 2 ? DT_TAIL_DROP : DT_TAIL_KEEP);
        const golden_array *a = golden_get(g, epochs[i].name);
        for (int step = 0; t && a && step < (int)a->count; step++) {
            dt_train_report r;
            if (OK(g, dt_trainer_step(t, &r)))
                rate_near(g, epochs[i].name, step, r.lr, 1e-12);
        }
        dt_graph_destroy(own.graph);
    }
}

/* d(mean of w)/dw is 1: each step takes the rate, and the momentum's part of the last, off w. */
static dt_program *unit_program(golden *g, const dt_optim_desc *optim) {
    dt_tensor w = dt_param(g->graph, "w", dt_dims(1), (dt_init){0});
    if (!OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store)))
        return NULL;
    return golden_program(
        g, (dt_program_desc){.loss = dt_mean_loss(w), .optim = optim, .in_flight = 2});
}

GOLDEN(a_program_trains_by_its_schedule_also_with_steps_under_way, "schedules") {
    dt_optim_desc optim = {.kind = DT_OPTIM_SGD, .lr = RATE_LR};
    memcpy(optim.schedule, rates[15].schedule, sizeof optim.schedule);
    dt_program *p = unit_program(g, &optim);
    double sum = 0;
    for (int step = 0; p && step < RATE_STEPS; step++) {
        const golden_array *a = golden_get(g, "chained");
        sum += a ? golden_value(a, (size_t)step) : NAN;
        OK(g, dt_program_start(p, NULL));
    }
    for (dt_report r; p && dt_program_wait(p, &r) == DT_OK;)
        ;
    float w = 0;
    if (p && OK(g, dt_store_read(g->store, 0, DT_VALUE_PARAM, &w, 4)))
        golden_near((double)w, -sum, 1e-4, "the sum of the rates", 0);
}

GOLDEN(one_cycle_moves_momentum_as_pytorch_does, "schedules") {
    const dt_optim_desc optim = {.kind = DT_OPTIM_SGD,
                                 .lr = RATE_LR,
                                 .momentum = 0.9,
                                 .schedule = {{.kind = DT_SCHEDULE_ONE_CYCLE, .period = 50}}};
    dt_program *p = unit_program(g, &optim);
    const golden_array *lr = golden_get(g, "one_cycle"), *mu = golden_get(g, "one_cycle_momentum");
    double w = 0, b = 0;
    for (int step = 0; p && lr && mu && step < (int)lr->count; step++) {
        b = step ? golden_value(mu, (size_t)step) * b + 1 : 1;
        w -= golden_value(lr, (size_t)step) * b;
        float got = 0;
        if (OK(g, dt_program_run(p, NULL, NULL)) &&
            OK(g, dt_store_read(g->store, 0, DT_VALUE_PARAM, &got, 4)))
            golden_near((double)got, w, 1e-5 * fabs(w) + 1e-6, "the weight", step);
    }
}

/* Adam's first moment of gradients of 1 is 1 - beta1^t only while beta1 stays. */
GOLDEN(one_cycle_moves_adams_beta1, "schedules") {
    const dt_optim_desc optim = {
        .kind = DT_OPTIM_ADAM,
        .lr = RATE_LR,
        .schedule = {
            {.kind = DT_SCHEDULE_ONE_CYCLE, .period = 50, .pct_start = 0.5, .div_factor = 10}}};
    dt_program *p = unit_program(g, &optim);
    const golden_array *beta = golden_get(g, "one_cycle_beta");
    double m = 0;
    for (int step = 0; p && beta && step < (int)beta->count; step++) {
        const double b = golden_value(beta, (size_t)step);
        m = b * m + (1 - b);
        float got = 0;
        if (OK(g, dt_program_run(p, NULL, NULL)) &&
            OK(g, dt_store_read(g->store, 0, DT_VALUE_MOMENT1, &got, 4)))
            golden_near((double)got, m, 1e-5, "the first moment", step);
    }
}

/* ---- what is wrong */

static void schedule_refused(const dt_schedule *first, const dt_schedule *second,
                             const char *text) {
    dt_ctx *ctx;
    double lr = 1;
    dt_optim_desc optim = {.schedule = {*first}};
    if (second)
        optim.schedule[1] = *second;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    CHECK(dt_optim_lr(ctx, &optim, 1, &lr) == DT_ERROR_INVALID && lr == 0);
    const char *error = dt_ctx_error(ctx), *line = strstr(error, "\n- ");
    test_check(strstr(error, text) && line && !strstr(line + 1, "\n- "), __FILE__, __LINE__,
               "\"%s\" is not in, or not alone in: %s", text, error); /* one problem, one line */
    dt_ctx_destroy(ctx);
}

TEST(a_wrong_schedule_is_refused_with_the_phase_and_number) {
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_STEP}, NULL, ".schedule[0] has no .period");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_CONSTANT},
                     &(dt_schedule){.kind = DT_SCHEDULE_CONSTANT}, ".schedule[1] is never");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_EXPONENTIAL, .gamma = (double)NAN}, NULL,
                     "gamma is nan");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_GEOMETRIC, .steps = 5, .start = -1}, NULL,
                     ".schedule[0].start is -1; it must be at least 0 and at most 1e+30");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_GEOMETRIC, .steps = 5, .end = DT_ZERO},
                     NULL, ".schedule[0].end is 0; it must be from 1e-30");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_CALLBACK}, NULL, "has no .rate");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_INVERSE_SQRT}, NULL, "warmup");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_WSD, .period = 5, .warmup = 3, .decay = 3},
                     NULL, "exceed .period");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_MULTI_STEP, .milestones = {4, 4}}, NULL,
                     ".schedule[0].milestones[0]");
    schedule_refused(&(dt_schedule){.kind = (dt_schedule_kind)99}, NULL,
                     "kind is 99; it must be DT_SCHEDULE_DEFAULT, DT_SCHEDULE_CONSTANT, ");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_COSINE, .epochs = 0.5, .period = 1}, NULL,
                     ".schedule[0] has .epochs, which only a trainer can convert; give .steps");
    schedule_refused(&(dt_schedule){.steps = 5}, &(dt_schedule){.epochs = 5},
                     ".schedule[1] has .epochs, which only a trainer");
    schedule_refused(&(dt_schedule){.steps = 5, .epochs = 5}, NULL, ".steps; give one");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_CONSTANT, .epochs = -1}, NULL,
                     ".schedule[0].epochs is -1");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_COSINE_RESTARTS}, NULL,
                     ".schedule[0] has no .period");
    schedule_refused(&(dt_schedule){.steps = 5}, &(dt_schedule){.kind = DT_SCHEDULE_COSINE},
                     ".schedule[1] has no length: give .steps, .epochs or .period");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_WSD, .warmup = 3}, NULL,
                     ".schedule[0] has no length: give .steps");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_ONE_CYCLE, .period = 1}, NULL,
                     ".schedule[0].period is 1; it must be from 2 to");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_PLATEAU, .patience = -1}, NULL,
                     ".schedule[0].patience is -1; it must be at least 0");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_PLATEAU, .cooldown = -1}, NULL,
                     ".schedule[0].cooldown is -1; it must be at least 0");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_LINEAR},
                     &(dt_schedule){.kind = DT_SCHEDULE_COSINE, .period = 5},
                     ".schedule[1] is never reached");
    schedule_refused(&(dt_schedule){.kind = DT_SCHEDULE_COSINE, .epochs = 5}, NULL,
                     "has .epochs, which only a trainer");
}

TEST(a_first_phase_that_is_constant_is_a_phase) {
    const dt_optim_desc optim = {.lr = 1, .schedule = {{.steps = 3}, {DT_SCHEDULE_EXPONENTIAL}}};
    dt_ctx *ctx;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    for (uint64_t step = 1; step < 7; step++) {
        double lr = 0;
        CHECK(dt_optim_lr(ctx, &optim, step, &lr) == DT_OK);
        CHECK_NEAR(lr, step <= 4 ? 1.0 : pow(0.1, (double)(step - 4)), 1e-12);
    }
    dt_ctx_destroy(ctx);
}

TEST(a_callback_that_gives_a_nan_fails_the_step_and_changes_nothing) {
    golden g = {.device = "cpu"};
    const dt_optim_desc optim = {
        .kind = DT_OPTIM_SGD,
        .lr = 1,
        .schedule = {{.kind = DT_SCHEDULE_CALLBACK, .rate = callback_nan}}};
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &g.ctx) == DT_OK);
    REQUIRE(dt_graph_create(g.ctx, &g.graph) == DT_OK);
    dt_program *p = unit_program(&g, &optim);
    float w = 0;
    CHECK(p && dt_program_run(p, NULL, NULL) == DT_OK && dt_program_run(p, NULL, NULL) == DT_OK);
    CHECK(p && dt_program_run(p, NULL, NULL) == DT_ERROR_INVALID);
    CHECK(dt_store_read(g.store, 0, DT_VALUE_PARAM, &w, 4) == DT_OK && w == -2);
    golden_close(&g);
}

/* ---- plateaus, in a trainer */

typedef struct plateau_job {
    golden g;
    dt_trainer *trainer;
    float x[4];
} plateau_job;

static const dt_schedule plateaus[] = {
    {.kind = DT_SCHEDULE_PLATEAU, .patience = 3, .threshold = 1e-2},
    {.kind = DT_SCHEDULE_PLATEAU, .patience = 2, .cooldown = 3, .gamma = 0.5, .lr_min = 0.02},
    {.kind = DT_SCHEDULE_PLATEAU,
     .patience = 4,
     .maximize = true,
     .threshold = 0.02,
     .threshold_absolute = true}};
static const char *const plateau_names[] = {"plateau", "plateau_cooldown", "plateau_largest"};

static bool plateau_open(plateau_job *j, const dt_schedule *s, const char *devices) {
    *j = (plateau_job){.g = {.device = "cpu"}, .x = {1, 1, 1, 1}};
    const dt_optim_desc optim = {.kind = DT_OPTIM_SGD, .lr = RATE_LR, .schedule = {*s}};
    golden *g = &j->g;
    if (!OK(g, dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &g->ctx)) ||
        !OK(g, dt_safetensors_open(g->ctx, "tests/golden/schedules.safetensors", &g->file)) ||
        !OK(g, dt_graph_create(g->ctx, &g->graph)))
        return false;
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims());
    dt_tensor w = dt_param(g->graph, "w", dt_dims(), (dt_init){0});
    dt_trainer_desc desc = {.loss = dt_mean_loss(dt_mul(x, w)),
                            .batch = 4,
                            .optim = &optim,
                            .data = {.rows = 4, .columns = {{.input = x, .data = j->x}}},
                            .devices = devices};
    return OK(g, dt_trainer_create(g->graph, &desc, &j->trainer));
}

static void plateau_close(plateau_job *j) {
    golden_close(&j->g);
}

static float plateau_weight(plateau_job *j) {
    float w = NAN;
    dt_store_read(dt_trainer_store(j->trainer), 0, DT_VALUE_PARAM, &w, 4);
    return w;
}

/* Steps from `from` on, with a metric after each. */
static void plateau_steps(plateau_job *j, int which, int from, int to) {
    const golden_array *metric = golden_get(&j->g, "plateau.metric");
    for (int step = from; step < to; step++) {
        const float before = plateau_weight(j);
        if (!OK(&j->g, dt_trainer_step(j->trainer, NULL)))
            return;
        const golden_array *a = golden_get(&j->g, plateau_names[which]);
        golden_near((double)(before - plateau_weight(j)), a ? golden_value(a, (size_t)step) : NAN,
                    2e-6, plateau_names[which], step); /* the weight is near 10 */
        const double value = metric ? golden_value(metric, (size_t)step) : NAN;
        OK(&j->g, dt_trainer_report_metric(j->trainer, plateaus[which].maximize ? -value : value));
    }
}

TEST(a_plateau_reduces_the_rate_as_pytorchs_does) {
    for (int which = 0; which < 3; which++) {
        plateau_job j;
        if (plateau_open(&j, &plateaus[which], which == 1 ? "cpu:2" : "cpu"))
            plateau_steps(&j, which, 0, RATE_STEPS);
        plateau_close(&j);
    }
}

TEST(a_plateau_resumes_from_a_checkpoint_with_the_same_rates) {
    for (int at = 14; at < 30; at += 5) { /* while it waits, and in its cooldown */
        plateau_job a, b;
        const char *path = temp_path("plateau.checkpoint");
        if (plateau_open(&a, &plateaus[1], "cpu") && plateau_open(&b, &plateaus[1], "cpu")) {
            plateau_steps(&a, 1, 0, at);
            OK(&a.g, dt_trainer_save(a.trainer, path));
            OK(&b.g, dt_trainer_load(b.trainer, path));
            plateau_steps(&b, 1, at, RATE_STEPS);
        }
        plateau_close(&a);
        plateau_close(&b);
    }
}

TEST(a_metric_without_a_plateau_is_refused) {
    plateau_job j;
    if (plateau_open(&j, &(dt_schedule){.kind = DT_SCHEDULE_STEP, .period = 5}, "cpu"))
        CHECK(dt_trainer_report_metric(j.trainer, 1) == DT_ERROR_INVALID);
    plateau_close(&j);
}
