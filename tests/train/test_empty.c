/* Steps in which no target counts. The loss is 0, the report says so in every mode, and momentum
 * and decay move weights all the same; with .skip_empty such a step is as if its batch were not
 * there. */
#include "train/train_modes.h"

enum { EMPTY_BATCH = 30, EMPTY_BATCHES = TRAIN_ROWS / EMPTY_BATCH };

typedef struct empty_run {
    bool without, skips; /* the batches are not there; steps are left out */
    uint32_t mask;       /* batches without a target that counts */
    uint64_t hash, empty, steps;
    double loss;    /* of the steps that are empty: the largest */
    double counted; /* by a metric without targets, in these */
    char text[1200];
    uint32_t pick[TRAIN_ROWS]; /* read until the trainer ends */
} empty_run;

/* Where batches are left out by hand, the others' rows come in the same order. */
static uint64_t empty_pick(const empty_run *r, uint32_t *pick) {
    uint64_t rows = 0;
    for (int b = 0; b < EMPTY_BATCHES; b++)
        for (uint32_t i = 0; i < EMPTY_BATCH && !(r->without && r->mask >> b & 1u); i++)
            pick[rows++] = (uint32_t)b * EMPTY_BATCH + i;
    return rows;
}

static dt_result empty_train(const train_mode *mode, dt_comm *comm, empty_run *r, train_model *m) {
    dt_trainer *t = NULL;
    dt_train_report report;
    dt_trainer_desc d = train_desc(m);
    for (int i = 0; i < TRAIN_ROWS; i++)
        m->data.t[i] = r->mask >> i / EMPTY_BATCH & 1u ? -100 : m->data.t[i];
    m->adam = (dt_optim_desc){.lr = 0.01, .weight_decay = 0.1, .clip_norm = 0.5};
    if (mode->average)
        m->adam.average = (dt_average){.kind = DT_AVERAGE_EMA, .decay = 0.9};
    d.data.rows = empty_pick(r, r->pick);
    d.data.indices = r->pick;
    d.no_shuffle = true;
    d.batch = EMPTY_BATCH;
    d.skip_empty = r->skips;
    d.metrics[0] = dt_mse(m->logits, m->logits);
    train_mode_take(mode, comm, &d);
    dt_result result = dt_trainer_create(m->graph, &d, &t);
    for (uint64_t i = 0; i < 2 * (d.data.rows / EMPTY_BATCH) && !result; i++) {
        result = dt_trainer_step(t, &report);
        r->empty += report.empty;
        r->steps = report.step;
        r->counted += report.empty ? report.metric_weight[0] : 0;
        r->loss = report.empty && report.loss > r->loss ? report.loss : r->loss;
    }
    return result ? result : train_mode_hash(mode, t, &r->hash);
}

static void empty_rank(const train_mode *mode, dt_comm *comm, void *user) {
    empty_run *r = user;
    static _Thread_local train_model m;
    const dt_ctx_desc ctx = {.no_vulkan = !mode->vulkan, .threads = 1};
    if (!train_model_make(&m, &ctx, mode->kind) || empty_train(mode, comm, r, &m))
        snprintf(r->text, sizeof r->text, "%s: %s", mode->name, dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

/* What the first rank has, and all have the same. */
static empty_run empty_job(const train_mode *mode, uint32_t mask, bool without, bool skips) {
    empty_run all[MODE_RANKS];
    for (int i = 0; i < MODE_RANKS; i++)
        all[i] = (empty_run){.without = without, .skips = skips, .mask = mask};
    for (int i = train_mode_job(mode, empty_rank, all, sizeof *all); i-- > 0;) {
        CHECK_TEXT(!all[i].text[0], "%s", all[i].text);
        CHECK(all[i].hash == all[0].hash && all[i].empty == all[0].empty);
    }
    return all[0];
}

TEST(a_step_without_targets_is_reported_in_every_mode_and_skipped_on_request) {
    const bool vulkan = train_has_vulkan();
    uint32_t state = 4;
    for (size_t i = 0; i < sizeof train_modes / sizeof *train_modes; i++) {
        const train_mode *mode = &train_modes[i];
        const uint32_t mask = 1u << train_random(&state) % EMPTY_BATCHES |
                              (1u << train_random(&state) % EMPTY_BATCHES);
        const uint64_t empty = 2 * (uint64_t)__builtin_popcount(mask);
        if (mode->vulkan && !vulkan)
            continue;
        const empty_run plain = empty_job(mode, mask, false, false);
        const empty_run skips = empty_job(mode, mask, false, true);
        const empty_run without = empty_job(mode, mask, true, false);
        CHECK_TEXT(plain.empty == empty && plain.steps == 2 * EMPTY_BATCHES && plain.loss == 0.0,
                   "%s: %d of %d steps, not %d", mode->name, (int)plain.empty, (int)plain.steps,
                   (int)empty);
        CHECK_TEXT(plain.counted > 0 && skips.counted == 0,
                   "%s: a metric without targets counts %g, and %g in steps that are left out",
                   mode->name, plain.counted, skips.counted);
        CHECK_TEXT(skips.empty == empty && skips.steps == 2 * EMPTY_BATCHES - empty,
                   "%s: %d are left out, %d are made", mode->name, (int)skips.empty,
                   (int)skips.steps);
        CHECK_TEXT(skips.hash == without.hash && skips.hash && without.empty == 0,
                   "%s: a step that is left out leaves a trace", mode->name);
        CHECK_TEXT(plain.hash != without.hash, "%s: decay moves weights", mode->name);
    }
}

/* Each replica leaves out its own; where it is all, the round changes nothing. */
TEST(local_steps_without_targets_are_reported_and_skipped_on_request) {
    for (int way = 0; way < 4; way++) {
        const bool skips = way & 1, all = way & 2;
        train_model m;
        dt_trainer *t = NULL;
        dt_train_report r;
        if (!train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 0))
            return;
        dt_trainer_desc d = train_desc(&m);
        for (int i = 0; i < TRAIN_ROWS; i++) /* the second replica's rows, or both's */
            m.data.t[i] = all || i % EMPTY_BATCH >= EMPTY_BATCH / 2 ? -100 : 1;
        m.adam.weight_decay = 0.1;
        d.no_shuffle = true;
        d.batch = EMPTY_BATCH;
        d.devices = "cpu:2";
        d.mode = DT_TRAIN_LOCAL;
        d.local.steps = 2;
        d.skip_empty = skips;
        d.accumulate = 1 + way % 2;
        CHECK(!dt_trainer_create(m.graph, &d, &t));
        const uint64_t before = train_values_hash(t);
        CHECK_TEXT(!dt_trainer_epoch(t, &r), "%s", dt_ctx_error(m.ctx));
        CHECK_TEXT(r.empty == (all ? 10 : 5) && r.steps == 5, "%d of %d", (int)r.empty,
                   (int)r.steps);
        CHECK((train_values_hash(t) == before) == (all && skips));
        dt_ctx_destroy(m.ctx);
    }
}

/* ---- programs */

typedef struct empty_net {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_tensor x, t, other, loss, second;
    dt_optim_desc adam;
} empty_net;

static bool empty_open(empty_net *n, const char *device) {
    *n = (empty_net){.adam = {.lr = 0.1, .weight_decay = 0.5, .beta1 = 0.8}};
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = device[0] == 'c'}, &n->ctx) ||
        dt_graph_create(n->ctx, &n->graph))
        return false;
    n->x = dt_input(n->graph, "x", DT_F32, dt_dims(3));
    n->t = dt_input(n->graph, "t", DT_I32, dt_dims());
    n->other = dt_input(n->graph, "other", DT_I32, dt_dims());
    dt_tensor h = dt_tanh(dt_nn_linear(n->x, "fc", 6));
    n->loss = dt_cross_entropy(dt_nn_linear(h, "a", 4), n->t, NULL);
    n->second = dt_cross_entropy(dt_nn_linear(h, "b", 4), n->other, NULL);
    return !dt_store_create(n->graph, &(dt_store_desc){.device = device}, &n->store);
}

/* Rows 0 to 3 of it; a batch of 2 from `row` on. ignored: of which losses all targets are, bits. */
static void empty_write(const empty_net *n, dt_program *p, int row, int rows, int ignored) {
    float x[12];
    int32_t t[4], other[4];
    for (int i = 0; i < 12; i++)
        x[i] = 0.3f * (float)(i * 7 % 5) - 0.5f;
    for (int i = 0; i < 4; i++) {
        t[i] = ignored & 1 ? -100 : i;
        other[i] = ignored & 2 || (ignored & 4 && i >= 2) ? -100 : 3 - i;
    }
    CHECK(!dt_program_write(p, n->x, x + 3 * row, (size_t)rows * 12));
    CHECK(!dt_program_write(p, n->t, t + row, (size_t)rows * 4));
    CHECK(!dt_program_write(p, n->other, other + row, (size_t)rows * 4));
}

enum { EMPTY_VALUES = 18 + 6 + 2 * (24 + 4) };

static void empty_values(const empty_net *n, float *to) {
    for (int i = 0; i < dt_store_param_count(n->store); i++) {
        dt_param_info p;
        dt_store_get_param(n->store, i, &p);
        CHECK(!dt_store_read(n->store, i, DT_VALUE_PARAM, to, 4 * p.elements));
        to += p.elements;
    }
}

/* After three steps of a batch of 4, or of micro-batches of 2. In the second of them targets are
 * ignored; -1: it is not made. How many reports say that nothing counts. */
static int empty_steps(const char *device, int ignored, bool micros, bool skips, float *values) {
    empty_net n;
    int empty = 0;
    if (!CHECK_TEXT(empty_open(&n, device), "a model"))
        return 0;
    dt_program *p = NULL;
    dt_report r;
    const dt_program_desc d = {.losses = {{n.loss, 1.0f}, {n.second, 0.5f}},
                               .batch = micros ? 2 : 4,
                               .accumulate = micros,
                               .optim = &n.adam,
                               .skip_empty = skips};
    CHECK_TEXT(!dt_program_create(n.store, &d, &p), "%s", dt_ctx_error(n.ctx));
    for (int step = 0; step < 3; step++) {
        const int now = step == 1 ? ignored : 0;
        double weights[DT_MAX_TERMS] = {0};
        for (int k = 0; k < 2 && micros && now >= 0; k++) {
            empty_write(&n, p, 2 * k, 2, now);
            CHECK(!dt_program_add_loss_weights(p, weights));
        }
        for (uint32_t k = 0; k < (micros ? 2u : 1u) && now >= 0; k++) {
            const dt_step_desc s = {.micro_batch = k,
                                    .micro_batches = micros ? 2 : 1,
                                    .loss_weights = micros ? weights : NULL};
            empty_write(&n, p, micros ? 2 * (int)k : 0, micros ? 2 : 4, now);
            CHECK_TEXT(!dt_program_run(p, &s, &r), "%s", dt_ctx_error(n.ctx));
            empty += r.empty;
        }
    }
    empty_values(&n, values);
    dt_ctx_destroy(n.ctx);
    return empty;
}

static double empty_far(const float *a, const float *b) {
    double far = 0.0;
    for (int i = 0; i < EMPTY_VALUES; i++)
        far = fmax(far, fabs((double)a[i] - (double)b[i]));
    return far;
}

/* Two losses. All targets of one loss, of the two, or of one in one micro-batch are ignored. */
TEST(micro_batches_train_a_loss_whose_targets_are_all_ignored_as_one_batch_does) {
    const bool vulkan = train_has_vulkan();
    for (int v = 0; v < 1 + vulkan; v++) {
        const char *device = v ? "vulkan" : "cpu";
        float one[EMPTY_VALUES], micros[EMPTY_VALUES], none[EMPTY_VALUES];
        empty_steps(device, -1, false, false, none);
        for (int way = 0; way < 16; way++) {
            const int ignored = way / 2, skips = way % 2, nothing = (ignored & 3) == 3;
            const int of_one = empty_steps(device, ignored, false, skips, one);
            const int of_micros = empty_steps(device, ignored, true, skips, micros);
            CHECK_TEXT(of_one == nothing && of_micros == 2 * nothing, "%s %d: %d, %d", device,
                       ignored, of_one, of_micros);
            CHECK_TEXT(empty_far(one, micros) < 3e-6, "%s %d: micro-batches are %g off", device,
                       ignored, empty_far(one, micros));
            CHECK((empty_far(one, none) == 0.0) == (nothing && skips));
        }
    }
}

TEST(a_weight_of_0_of_a_batch_that_has_targets_is_refused) {
    empty_net n;
    dt_program *p = NULL, *q = NULL;
    if (!CHECK_TEXT(empty_open(&n, "cpu"), "a model"))
        return;
    dt_program_desc d = {
        .losses = {{n.loss, 1.0f}, {n.second, 1.0f}}, .batch = 4, .optim = &n.adam, .in_flight = 2};
    CHECK_TEXT(!dt_program_create(n.store, &d, &p), "%s", dt_ctx_error(n.ctx));
    const double weights[] = {4.0, 0.0};
    empty_write(&n, p, 0, 4, 2);
    CHECK_TEXT(!dt_program_run(p, &(dt_step_desc){.loss_weights = weights}, NULL), "%s",
               dt_ctx_error(n.ctx));
    for (int i = 0; i < 2; i++)
        CHECK(!dt_program_start(p, &(dt_step_desc){.loss_weights = weights}));
    empty_write(&n, p, 0, 4, 4);
    CHECK(dt_program_start(p, &(dt_step_desc){.loss_weights = weights}) == DT_ERROR_INVALID);
    CHECK_TEXT(strstr(dt_ctx_error(n.ctx), ".loss_weights[1] is 0, but this batch's is 2"), "%s",
               dt_ctx_error(n.ctx));
    while (!dt_program_wait(p, NULL))
        ;
    CHECK(dt_program_run(p, &(dt_step_desc){.loss_weights = weights}, NULL) == DT_ERROR_INVALID);
    CHECK(!dt_program_run(p, NULL, NULL));
    d.skip_empty = true;
    CHECK(dt_program_create(n.store, &d, &q) == DT_ERROR_INVALID && !q);
    CHECK(strstr(dt_ctx_error(n.ctx), ".skip_empty"));
    d.in_flight = 0;
    d.optim = NULL;
    CHECK(dt_program_create(n.store, &d, &q) == DT_ERROR_INVALID && !q);
    dt_ctx_destroy(n.ctx);
}

/* What decides the weight is computed in the graph: it is not known before the step. */
TEST(skip_empty_refuses_targets_that_are_computed) {
    dt_ctx *ctx = NULL;
    dt_graph *g = NULL;
    dt_store *s = NULL;
    dt_program *p = NULL;
    CHECK(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) && !dt_graph_create(ctx, &g));
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(3));
    dt_tensor loss = dt_cross_entropy(dt_nn_linear(x, "fc", 3), dt_argmax(x, -1), NULL);
    CHECK(!dt_store_create(g, &(dt_store_desc){.device = "cpu"}, &s));
    const dt_optim_desc adam = {0};
    const dt_program_desc d = {.loss = loss, .batch = 2, .optim = &adam, .skip_empty = true};
    CHECK_TEXT(dt_program_create(s, &d, &p) == DT_ERROR_UNSUPPORTED, "%s", dt_ctx_error(ctx));
    CHECK_TEXT(strstr(dt_ctx_error(ctx), ".skip_empty"), "%s", dt_ctx_error(ctx));
    dt_ctx_destroy(ctx);
}

/* The first micro-batch has targets, the last has none, and another program runs between them. */
TEST(an_evaluation_between_micro_batches_does_not_forget_earlier_targets) {
    dt_ctx *ctx = NULL;
    dt_graph *g = NULL;
    dt_store *s = NULL;
    dt_program *train = NULL, *eval = NULL;
    const float values[] = {1.0f, 2.0f, 3.0f, 4.0f};
    const int32_t targets[] = {0, 1}, ignored[] = {-100, -100};
    CHECK(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) && !dt_graph_create(ctx, &g));
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(2)), t = dt_input(g, "t", DT_I32, dt_dims());
    dt_tensor loss = dt_cross_entropy(dt_nn_linear(x, "fc", 3), t, NULL);
    CHECK(!dt_store_create(g, &(dt_store_desc){.device = "cpu"}, &s));
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.1};
    const dt_program_desc d = {
        .loss = loss, .batch = 2, .optim = &sgd, .accumulate = true, .skip_empty = true};
    CHECK_TEXT(!dt_program_create(s, &d, &train), "%s", dt_ctx_error(ctx));
    CHECK(!dt_program_create(s, &(dt_program_desc){.loss = loss, .batch = 2}, &eval));
    for (uint32_t micro = 0; micro < 2; micro++) {
        dt_report r = {0};
        CHECK(!dt_program_write(train, x, values, sizeof values));
        CHECK(!dt_program_write(train, t, micro ? ignored : targets, sizeof targets));
        CHECK(
            !dt_program_run(train, &(dt_step_desc){.micro_batch = micro, .micro_batches = 2}, &r));
        CHECK(!micro || r.gradient_norm > 0.0);
        CHECK(!dt_program_write(eval, x, values, sizeof values));
        CHECK(!dt_program_write(eval, t, targets, sizeof targets));
        CHECK(!dt_program_run(eval, NULL, NULL));
    }
    dt_ctx_destroy(ctx);
}

/* .steps is never reached: an error, and no loop without an end. */
TEST(a_fit_with_all_steps_skipped_is_an_error) {
    train_model m;
    dt_trainer *t = NULL;
    if (!train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 0))
        return;
    dt_trainer_desc d = train_desc(&m);
    for (int i = 0; i < TRAIN_ROWS; i++)
        m.data.t[i] = -100;
    d.skip_empty = true;
    CHECK(!dt_trainer_create(m.graph, &d, &t));
    CHECK(dt_trainer_fit(t, &(dt_fit_desc){.steps = 3}, NULL) == DT_ERROR_INVALID);
    CHECK_TEXT(strstr(dt_ctx_error(m.ctx), ".skip_empty"), "%s", dt_ctx_error(m.ctx));
    CHECK(!dt_trainer_fit(t, &(dt_fit_desc){.epochs = 4}, NULL));
    dt_ctx_destroy(m.ctx);
}
