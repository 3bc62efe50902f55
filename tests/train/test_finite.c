/* A step never writes what is not finite: it is NUMERIC, names the parameter, changes nothing, and
 * training goes on; by a program, in micro-batches, by replicas and by ranks. */
#include "dtrain.h"
#include "harness.h"
#include <math.h>
#include <pthread.h>

#define CHECK_TEXT(condition, ...) test_check((condition), __FILE__, __LINE__, __VA_ARGS__)

enum { FINITE_STEPS = 3, FINITE_BATCH = 4, FINITE_LONG = 300 };

typedef struct finite_case {
    const char *name;
    dt_optim_desc optim;
    float w0, x[FINITE_STEPS];
    int bad; /* the step that is refused; -1 = none, FINITE_STEPS = all */
    const char *who, *what;
} finite_case;

typedef enum finite_way { WAY_PROGRAM, WAY_MICRO, WAY_TRAINER } finite_way;

typedef struct finite_run {
    const finite_case *c;
    finite_way way;
    const char *devices;
    dt_comm *comm;
    dt_result made, result[FINITE_STEPS];
    uint64_t hash[FINITE_STEPS + 1];
    char text[FINITE_STEPS][512];
    bool finite;
} finite_run;

static dt_tensor finite_term(dt_tensor x, const char *name, int64_t size, float value) {
    const dt_init init = {.kind = DT_INIT_CONSTANT, .a = value};
    dt_tensor w = dt_param(x.graph, name, dt_dims(size), init);
    return dt_mul(dt_slice(x, 0, 0, size), dt_sub(w, dt_detach(w)));
}

/* Its value is 0 whatever the parameters are; each element's gradient is x, that of "calm" 0. */
static dt_tensor finite_loss(dt_tensor x, float w0) {
    dt_tensor calm = dt_affine(finite_term(x, "calm", 1, 0), 0, 0);
    dt_tensor sum = dt_sum(finite_term(x, "wide", FINITE_LONG, w0), dt_dims(0), true);
    return dt_mean_loss(dt_add(calm, dt_add(sum, finite_term(x, "z", 1, w0))));
}

static bool finite_values(dt_store *s) {
    static const dt_value_kind kinds[] = {DT_VALUE_PARAM, DT_VALUE_MOMENT1, DT_VALUE_MOMENT2};
    float values[FINITE_LONG];
    for (int i = 0; i < 3 * dt_store_param_count(s); i++) {
        dt_param_info info;
        dt_store_get_param(s, i / 3, &info);
        if (dt_store_read(s, i / 3, kinds[i % 3], values, 4 * info.elements))
            continue; /* no such moment */
        for (uint64_t k = 0; k < info.elements; k++) {
            if (!isfinite(values[k]))
                return false;
        }
    }
    return true;
}

static void finite_values_of_step(const finite_case *c, int step, float *out, int rows) {
    for (int i = 0; i < rows * FINITE_LONG; i++)
        out[i] = c->x[step];
}

static dt_result finite_program_step(const finite_run *r, dt_program *p, dt_tensor x, int step) {
    static const double weights[] = {FINITE_BATCH};
    const int micros = r->way == WAY_MICRO ? 2 : 1, rows = FINITE_BATCH / micros;
    float in[FINITE_BATCH * FINITE_LONG];
    dt_result result = DT_OK;
    finite_values_of_step(r->c, step, in, rows);
    for (int i = 0; i < micros && !result; i++) {
        const dt_step_desc desc = {
            .micro_batch = (uint32_t)i, .micro_batches = (uint32_t)micros, .loss_weights = weights};
        result = dt_program_write(p, x, in, (size_t)rows * FINITE_LONG * sizeof *in);
        if (!result)
            result = dt_program_run(p, &desc, NULL);
    }
    return result;
}

static void finite_note(finite_run *r, dt_ctx *ctx, dt_store *s, int step, dt_result result) {
    if (step >= 0) {
        r->result[step] = result;
        snprintf(r->text[step], sizeof r->text[step], "%s", result ? dt_ctx_error(ctx) : "");
    }
    if (dt_store_state_hash(s, &r->hash[step + 1]))
        r->made = DT_ERROR_DEVICE_LOST;
    r->finite = r->finite && finite_values(s);
}

static void finite_run_program(finite_run *r, dt_ctx *ctx, dt_tensor x, dt_tensor loss) {
    dt_store *s;
    dt_program *p;
    dt_program_desc d = {.loss = loss,
                         .optim = &r->c->optim,
                         .batch = r->way == WAY_MICRO ? FINITE_BATCH / 2 : FINITE_BATCH,
                         .accumulate = r->way == WAY_MICRO};
    r->made = dt_store_create(x.graph, &(dt_store_desc){.device = r->devices}, &s);
    if (!r->made)
        r->made = dt_program_create(s, &d, &p);
    for (int i = -1; i < FINITE_STEPS && !r->made; i++)
        finite_note(r, ctx, s, i, i < 0 ? DT_OK : finite_program_step(r, p, x, i));
}

static void finite_run_trainer(finite_run *r, dt_ctx *ctx, dt_tensor x, dt_tensor loss) {
    static float data[2][FINITE_STEPS][FINITE_BATCH * FINITE_LONG]; /* by rank */
    dt_trainer *t;
    const int rank = dt_comm_rank(r->comm) > 0;
    for (int i = 0; i < FINITE_STEPS; i++)
        finite_values_of_step(r->c, i, data[rank][i], FINITE_BATCH);
    dt_trainer_desc d = {.loss = loss,
                         .optim = &r->c->optim,
                         .devices = r->devices,
                         .comm = r->comm,
                         .batch = FINITE_BATCH,
                         .no_shuffle = true,
                         .data = {.rows = FINITE_STEPS * FINITE_BATCH,
                                  .columns = {{.input = x, .data = data[rank], .dtype = DT_F32}}}};
    r->made = dt_trainer_create(x.graph, &d, &t);
    for (int i = -1; i < FINITE_STEPS && !r->made; i++)
        finite_note(r, ctx, dt_trainer_store(t), i, i < 0 ? DT_OK : dt_trainer_step(t, NULL));
    if (!r->made)
        dt_trainer_destroy(t); /* before its comm */
}

static void finite_run_all(finite_run *r) {
    dt_ctx *ctx = NULL;
    dt_graph *graph;
    r->finite = true;
    r->made = dt_ctx_create(&(dt_ctx_desc){.no_vulkan = !strstr(r->devices, "vulkan")}, &ctx);
    if (!r->made)
        r->made = dt_graph_create(ctx, &graph);
    if (!r->made) {
        dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(FINITE_LONG));
        dt_tensor loss = finite_loss(x, r->c->w0);
        if (r->way == WAY_TRAINER)
            finite_run_trainer(r, ctx, x, loss);
        else
            finite_run_program(r, ctx, x, loss);
        if (r->made)
            snprintf(r->text[0], sizeof r->text[0], "%s", dt_ctx_error(ctx));
    }
    dt_ctx_destroy(ctx);
}

static void finite_check(const finite_run *r) {
    const finite_case *c = r->c;
    const char *where = r->way == WAY_MICRO ? "in micro-batches" : r->devices;
    CHECK_TEXT(!r->made, "%s, %s: %s", c->name, where, r->text[0]);
    CHECK_TEXT(r->finite, "%s, %s: the state is not finite", c->name, where);
    for (int i = 0; i < FINITE_STEPS; i++) {
        const bool bad = i == c->bad || c->bad == FINITE_STEPS;
        CHECK_TEXT(r->result[i] == (bad ? DT_ERROR_NUMERIC : DT_OK), "%s, %s, step %d: %s (%s)",
                   c->name, where, i, dt_result_text(r->result[i]), r->text[i]);
        CHECK_TEXT((r->hash[i] == r->hash[i + 1]) == bad, "%s, %s, step %d: the state %s", c->name,
                   where, i, bad ? "has changed" : "stayed");
        if (bad)
            CHECK_TEXT(strstr(r->text[i], c->who) && strstr(r->text[i], c->what),
                       "%s, %s, step %d names neither %s nor %s: %s", c->name, where, i, c->who,
                       c->what, r->text[i]);
    }
}

static const finite_case finite_cases[] = {
    {"a second moment", {.kind = DT_OPTIM_ADAM}, 1, {1, 1e25f, 1}, 1, "'wide'", "second moment"},
    {"a second moment at once", {0}, 1, {1e25f, 1, 2}, 0, "'wide'", "second moment"},
    {"a first moment",
     {.kind = DT_OPTIM_SGD, .lr = 1e-30, .momentum = 0.9},
     0,
     {3e38f, 3e38f, 1},
     1,
     "'wide'",
     "first moment"},
    {"a weight",
     {.kind = DT_OPTIM_SGD, .lr = 1e38},
     0,
     {0.5f, 1e5f, 0.25f},
     1,
     "'wide'",
     "its value"},
    {"a weight by a group's rate",
     {.kind = DT_OPTIM_SGD, .groups = {{.params = "z", .lr_scale = 1e38}}},
     0,
     {1, 1e9f, -1},
     1,
     "'z'",
     "its value"},
    {"a weight without eps",
     {.kind = DT_OPTIM_ADAM, .eps = DT_ZERO, .groups = {{.params = "calm", .lr_scale = 1e-3}}},
     1,
     {0, 1, 1},
     FINITE_STEPS,
     "'calm'",
     "its value"},
    {"a weight by its decay",
     {.weight_decay = 1e30},
     1e15f,
     {1, 1, 1},
     FINITE_STEPS,
     "'wide'",
     "its value"},
    {"a first moment by the decay",
     {.kind = DT_OPTIM_ADAM, .weight_decay = 1e30},
     1e15f,
     {1, 1, 1},
     FINITE_STEPS,
     "'wide'",
     "first moment"},
    {"LAMB's second moment", {.kind = DT_OPTIM_LAMB}, 1, {1, 1e25f, 1}, 1, "'wide'", "second"},
    {"LARS's weight",
     {.kind = DT_OPTIM_LARS, .lr = 1e38, .trust_coefficient = 1e6},
     1,
     {1, 1, 1},
     FINITE_STEPS,
     "'wide'",
     "its value"},
    {"Muon's weight",
     {.kind = DT_OPTIM_MUON, .weight_decay = 1e30},
     1e15f,
     {1, 1, 1},
     FINITE_STEPS,
     "'wide'",
     "its value"},
    {"Adafactor's weight",
     {.kind = DT_OPTIM_ADAFACTOR, .weight_decay = 1e30},
     1e15f,
     {1, 1, 1},
     FINITE_STEPS,
     "'wide'",
     "its value"},
    {"Adafactor's means",
     {.kind = DT_OPTIM_ADAFACTOR},
     1,
     {1, 1e25f, 1},
     1,
     "'wide'",
     "its first moment"},
    {"LAMB is told lengths that are too long for f32",
     {.kind = DT_OPTIM_LAMB, .lr = 1e-3},
     1e25f,
     {1, 1, 1},
     FINITE_STEPS,
     "'wide'",
     "its value"},
    {"clipped by norm", {.kind = DT_OPTIM_SGD, .clip_norm = 1}, 0, {1, 1e30f, -2}, -1, "", ""},
    {"clipped by value", {.kind = DT_OPTIM_ADAM, .clip_value = 1}, 0, {1, 3e38f, -2}, -1, "", ""},
};

#define FINITE_CASES (sizeof finite_cases / sizeof *finite_cases)

/* The first `cases` in every way on one device. */
static void finite_try(const char *devices, const char *trainer, size_t cases) {
    for (size_t i = 0; i < cases; i++) {
        const finite_case *c = &finite_cases[i];
        for (int way = 0; way < 3; way++) {
            finite_run r = {
                .c = c, .way = (finite_way)way, .devices = way == WAY_TRAINER ? trainer : devices};
            finite_run_all(&r);
            finite_check(&r);
        }
    }
}

TEST(a_step_with_an_update_that_is_not_finite_changes_nothing_and_names_the_parameter) {
    finite_try("cpu", "cpu", FINITE_CASES);
    finite_try("cpu", "cpu:2", FINITE_CASES);
}

TEST(a_step_with_an_update_that_is_not_finite_changes_nothing_on_vulkan) {
    dt_ctx *ctx;
    char id[4][32];
    size_t cases[4];
    int count = 0;
    REQUIRE(dt_ctx_create(NULL, &ctx) == DT_OK);
    for (int i = 1; i < dt_ctx_device_count(ctx) && count < 4; i++) {
        if (!dt_ctx_device(ctx, i)->usable)
            continue;
        const bool slow = strstr(dt_ctx_device(ctx, i)->name, "SwiftShader") != NULL;
        cases[count] = slow ? 2 : FINITE_CASES; /* it compiles for long */
        snprintf(id[count++], sizeof *id, "%s", dt_ctx_device(ctx, i)->id);
    }
    dt_ctx_destroy(ctx);
    for (int i = 0; i < count; i++)
        finite_try(id[i], id[i], cases[i]);
    if (!count)
        SKIP("no Vulkan device");
}

/* ---- losses: a sum that is finite, and class weights whose sum is not */

static void finite_loss_try(dt_ctx *ctx, const char *device) {
    const float big[3] = {1.5e38f, 1.5e38f, 1.5e38f}, sure[3] = {6, 0, 0}, x[8] = {0};
    const int32_t t[4] = {0};
    uint64_t before = 0, after = 1;
    dt_graph *g;
    dt_store *store;
    dt_program *p;
    dt_report report;
    REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
    dt_tensor in = dt_input(g, "x", DT_F32, dt_dims(2)), to = dt_input(g, "t", DT_I32, dt_dims());
    dt_tensor w = dt_freeze(dt_param(g, "w", dt_dims(3), (dt_init){0}));
    dt_tensor loss = dt_cross_entropy(dt_nn_linear(in, "fc", 3), to,
                                      &(dt_cross_entropy_desc){.class_weights = w});
    dt_optim_desc adamw = {.lr = 0.1, .weight_decay = 0.5};
    dt_program_desc d = {.loss = loss, .optim = &adamw, .batch = 4};
    REQUIRE(dt_store_create(g, &(dt_store_desc){.device = device}, &store) == DT_OK);
    REQUIRE(dt_program_create(store, &d, &p) == DT_OK);
    CHECK(!dt_store_write(store, dt_store_find(store, "w"), DT_VALUE_PARAM, big, sizeof big));
    CHECK(!dt_store_write(store, dt_store_find(store, "fc.bias"), DT_VALUE_PARAM, sure, 12));
    CHECK(!dt_program_write(p, in, x, sizeof x) && !dt_program_write(p, to, t, sizeof t));
    for (int i = 0; i < 3; i++) {
        CHECK(!dt_store_state_hash(store, &before));
        CHECK(dt_program_run(p, NULL, &report) == DT_ERROR_NUMERIC && report.skipped);
        CHECK(!dt_store_state_hash(store, &after) && before == after);
    }
    dt_graph_destroy(g);
}

TEST(a_loss_whose_weight_is_infinite_changes_nothing) {
    dt_ctx *ctx;
    REQUIRE(dt_ctx_create(NULL, &ctx) == DT_OK);
    for (int i = 0; i < dt_ctx_device_count(ctx); i++) {
        if (dt_ctx_device(ctx, i)->usable)
            finite_loss_try(ctx, dt_ctx_device(ctx, i)->id);
    }
    dt_ctx_destroy(ctx);
}

/* ---- ranks */

static void *finite_rank(void *arg) {
    finite_run_all(arg);
    return NULL;
}

TEST(ranks_agree_before_any_of_them_writes_values_that_are_not_finite) {
    for (size_t i = 0; i < FINITE_CASES; i++) {
        dt_comm *comms[2];
        pthread_t other;
        REQUIRE(dt_comm_create_threads(NULL, 2, comms) == DT_OK);
        finite_run r[2];
        for (int k = 0; k < 2; k++)
            r[k] = (finite_run){.c = &finite_cases[i],
                                .way = WAY_TRAINER,
                                .devices = k ? "cpu" : "cpu:2",
                                .comm = comms[k]};
        REQUIRE(pthread_create(&other, NULL, finite_rank, &r[1]) == 0);
        finite_rank(&r[0]);
        pthread_join(other, NULL);
        for (int k = 0; k < 2; k++) {
            finite_check(&r[k]);
            dt_comm_destroy(comms[k]);
        }
        CHECK(!memcmp(r[0].hash, r[1].hash, sizeof r[0].hash));
    }
}

/* ---- what the host writes */

TEST(an_infinite_weight_or_moment_from_the_host_is_named_by_the_next_step) {
    dt_ctx *ctx;
    dt_graph *g;
    dt_store *s;
    dt_program *p;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(1));
    dt_param(g, "other", dt_dims(1), (dt_init){0});
    dt_tensor w = dt_param(g, "w", dt_dims(1), (dt_init){0});
    dt_tensor loss = dt_mean_loss(dt_mul(x, dt_minimum(w, dt_fill(g, dt_dims(1), 5))));
    dt_program_desc d = {.loss = loss, .params = "w", .optim = &(dt_optim_desc){0}};
    REQUIRE(dt_store_create(g, &(dt_store_desc){.device = "cpu"}, &s) == DT_OK);
    REQUIRE(dt_program_create(s, &d, &p) == DT_OK);
    CHECK(dt_program_write(p, x, &(float){1}, sizeof(float)) == DT_OK);
    const dt_value_kind kinds[] = {DT_VALUE_PARAM, DT_VALUE_MOMENT1, DT_VALUE_MOMENT2};
    const int index = dt_store_find(s, "w");
    for (int i = 0; i < 3; i++) {
        dt_report r;
        uint64_t before, after;
        CHECK(dt_program_run(p, NULL, NULL) == DT_OK);
        CHECK(dt_store_write(s, index, kinds[i], &(float){INFINITY}, sizeof(float)) == DT_OK);
        CHECK(dt_store_state_hash(s, &before) == DT_OK);
        CHECK(dt_program_run(p, NULL, &r) == DT_ERROR_NUMERIC);
        CHECK(r.skipped && r.fault_op && !strcmp(r.fault_op, "optimizer"));
        CHECK_CONTAINS(dt_ctx_error(ctx), "'w'");
        CHECK_CONTAINS(dt_ctx_error(ctx), "were written with a NaN");
        CHECK(dt_store_state_hash(s, &after) == DT_OK && before == after);
        CHECK(dt_store_write(s, index, kinds[i], &(float){0}, sizeof(float)) == DT_OK);
    }
    CHECK(dt_program_run(p, NULL, NULL) == DT_OK);
    dt_ctx_destroy(ctx);
}

/* ---- running statistics */

typedef struct finite_norm {
    dt_ctx *ctx;
    dt_graph *g;
    dt_tensor x, loss;
    float data[8];
} finite_norm;

/* Each half's mean and variance fit f32, but not the variance of the two. */
static bool finite_norm_make(finite_norm *n) {
    const dt_init one = {.kind = DT_INIT_CONSTANT, .a = 1};
    for (int i = 0; i < 8; i++)
        n->data[i] = i < 4 ? 1e25f : -1e25f;
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &n->ctx) || dt_graph_create(n->ctx, &n->g))
        return false;
    n->x = dt_input(n->g, "x", DT_F32, dt_dims(1));
    dt_tensor mean = dt_buffer(n->g, "mean", dt_dims(1), (dt_init){0}),
              variance = dt_buffer(n->g, "variance", dt_dims(1), one),
              w = dt_param(n->g, "w", dt_dims(1), (dt_init){0});
    n->loss = dt_mean_loss(dt_batch_norm(n->x, w, (dt_tensor){0}, mean, variance, NULL));
    return true;
}

static void finite_norm_check(finite_norm *n, dt_store *s, dt_result result, uint64_t before) {
    uint64_t after;
    CHECK_TEXT(result == DT_ERROR_NUMERIC, "%s", dt_result_text(result));
    CHECK_CONTAINS(dt_ctx_error(n->ctx), "variance");
    CHECK(dt_store_state_hash(s, &after) == DT_OK && before == after);
}

TEST(a_running_statistic_that_is_not_finite_is_named_and_nothing_is_written) {
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD};
    finite_norm n;
    dt_store *s;
    dt_program *p;
    uint64_t before;
    REQUIRE(finite_norm_make(&n));
    dt_program_desc d = {.loss = n.loss, .optim = &sgd, .batch = 4};
    REQUIRE(dt_store_create(n.g, &(dt_store_desc){.device = "cpu"}, &s) == DT_OK);
    REQUIRE(dt_program_create(s, &d, &p) == DT_OK);
    const int index = dt_store_find(s, "variance");
    const float infinity = INFINITY;
    CHECK(dt_store_write(s, index, DT_VALUE_PARAM, &infinity, sizeof infinity) == DT_OK);
    CHECK(dt_program_write(p, n.x, n.data, sizeof n.data / 2) == DT_OK);
    CHECK(dt_store_state_hash(s, &before) == DT_OK);
    finite_norm_check(&n, s, dt_program_run(p, NULL, NULL), before);
    CHECK(dt_store_write(s, index, DT_VALUE_PARAM, &(float){1}, sizeof(float)) == DT_OK);
    CHECK(dt_program_run(p, NULL, NULL) == DT_OK);
    dt_ctx_destroy(n.ctx);
}

TEST(running_statistics_of_replicas_that_would_overflow_are_named_and_nothing_is_written) {
    static const char *const devices[] = {"cpu", "cpu:2"};
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD};
    for (int i = 0; i < 2; i++) {
        finite_norm n;
        dt_trainer *t;
        uint64_t before;
        REQUIRE(finite_norm_make(&n));
        const dt_trainer_desc d = {
            .loss = n.loss,
            .optim = &sgd,
            .devices = devices[i],
            .batch = 8,
            .parallel.batch_slices = 2,
            .no_shuffle = true,
            .data = {.rows = 8, .columns = {{.input = n.x, .data = n.data, .dtype = DT_F32}}}};
        REQUIRE(dt_trainer_create(n.g, &d, &t) == DT_OK);
        CHECK(dt_store_state_hash(dt_trainer_store(t), &before) == DT_OK);
        for (int k = 0; k < 3; k++)
            finite_norm_check(&n, dt_trainer_store(t), dt_trainer_step(t, NULL), before);
        dt_ctx_destroy(n.ctx);
    }
}

/* ---- random extreme numbers */

typedef struct finite_random {
    uint32_t state;
} finite_random;

static double random_unit(finite_random *r) {
    r->state = r->state * 1664525u + 1013904223u;
    return (double)(r->state >> 8) / 16777216.0;
}

/* Any magnitude that f32 has, both signs; one of eight is 0. */
static double random_value(finite_random *r, bool sign) {
    const double value = pow(10.0, random_unit(r) * 83.0 - 45.0);
    if (random_unit(r) < 0.125)
        return sign ? 0.0 : DT_ZERO;
    return sign && random_unit(r) < 0.5 ? -value : value;
}

static dt_optim_desc random_optim(finite_random *r) {
    const double some = random_unit(r);
    dt_optim_desc d = {.kind = (dt_optim_kind)(1 + (int)(random_unit(r) * 3))};
    d.lr = some < 0.5 ? 0.01 : random_value(r, false);
    d.weight_decay = some > 0.25 && some < 0.75 ? 0.0 : random_value(r, false);
    d.eps = random_unit(r) < 0.5 ? 0.0 : random_value(r, false);
    d.beta1 = random_unit(r) < 0.75 ? 0.0 : random_unit(r);
    d.beta2 = random_unit(r) < 0.75 ? 0.0 : random_unit(r);
    d.momentum = random_unit(r) < 0.5 ? 0.9 * random_unit(r) : random_value(r, false);
    d.dampening = random_unit(r) < 0.5 ? 0.0 : random_unit(r) * 4 - 2;
    d.nesterov = d.kind == DT_OPTIM_SGD && d.dampening == 0.0 && d.momentum > 0.0;
    if (d.kind == DT_OPTIM_SGD) /* members that a kind does not use are refused */
        d.beta1 = d.beta2 = d.eps = 0.0;
    else
        d.momentum = d.dampening = 0.0;
    d.clip_norm = random_unit(r) < 0.75 ? 0.0 : random_value(r, false);
    d.clip_value = random_unit(r) < 0.75 ? 0.0 : random_value(r, false);
    d.groups[0] = (dt_optim_group){.params = "z", .lr_scale = random_unit(r) * 100};
    return d;
}

static void random_write(finite_random *r, dt_store *s, dt_value_kind kind) {
    const bool second = kind == DT_VALUE_MOMENT2;
    float values[FINITE_LONG];
    const int index = dt_store_find(s, "wide");
    for (int i = 0; i < FINITE_LONG; i++) {
        double value = random_value(r, true);
        values[i] = (float)(second ? fabs(value) : value);
    }
    dt_store_write(s, index, kind, values, sizeof values); /* INVALID: no such moment */
}

/* Ten steps; returns how many were refused, -1: the seed makes no program. */
static int random_steps(uint32_t seed, dt_ctx *ctx, const char *device) {
    finite_random r = {seed * 2654435761u + 7};
    dt_graph *g;
    dt_store *s = NULL;
    dt_program *p;
    int refused = 0;
    if (dt_graph_create(ctx, &g))
        return -1;
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(FINITE_LONG));
    const dt_optim_desc optim = random_optim(&r);
    dt_program_desc d = {.loss = finite_loss(x, 1), .optim = &optim};
    CHECK(dt_store_create(g, &(dt_store_desc){.device = device}, &s) == DT_OK);
    if (dt_program_create(s, &d, &p)) {
        CHECK_CONTAINS(dt_ctx_error(ctx), "optimizer: ");
        dt_graph_destroy(g);
        return -1;
    }
    for (int i = 0; i < 10; i++) {
        float in[FINITE_LONG];
        uint64_t before, after;
        const double scale = random_value(&r, true);
        for (int k = 0; k < FINITE_LONG; k++)
            in[k] = (float)(scale * random_unit(&r));
        for (int kind = 0; kind < 4 && i % 3 == 1; kind++)
            if (kind != DT_VALUE_GRADIENT && random_unit(&r) < 0.25)
                random_write(&r, s, (dt_value_kind)kind);
        dt_store_state_hash(s, &before);
        CHECK(dt_program_write(p, x, in, sizeof in) == DT_OK);
        const dt_step_desc step = {.lr = random_unit(&r) < 0.75 ? 0.0 : random_value(&r, false)};
        const dt_result result = dt_program_run(p, &step, NULL);
        dt_store_state_hash(s, &after);
        CHECK_TEXT(finite_values(s), "seed %u, step %d: the state is not finite", seed, i);
        CHECK_TEXT(result == DT_OK || before == after, "seed %u, step %d: %s changed the state",
                   seed, i, dt_result_text(result));
        refused += result == DT_ERROR_NUMERIC;
    }
    dt_graph_destroy(g);
    return refused;
}

/* Some of them must be refused, and most not: else it tests nothing. */
static void random_seeds(const char *device, uint32_t seeds, bool vulkan) {
    dt_ctx *ctx;
    int refused = 0, steps = 0;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = !vulkan}, &ctx) == DT_OK);
    for (uint32_t seed = 0; seed < seeds; seed++) {
        const int bad = random_steps(seed, ctx, device);
        steps += bad < 0 ? 0 : 10;
        refused += bad < 0 ? 0 : bad;
    }
    CHECK_TEXT(refused > steps / 20 && refused < steps * 3 / 4 && steps > (int)seeds,
               "%s: %d of %d steps were refused", device, refused, steps);
    dt_ctx_destroy(ctx);
}

TEST(the_state_is_finite_for_any_numbers) {
    random_seeds("cpu", 300, false);
}

TEST(the_state_is_finite_for_any_numbers_on_vulkan) {
    dt_ctx *ctx;
    REQUIRE(dt_ctx_create(NULL, &ctx) == DT_OK);
    const int count = dt_ctx_device_count(ctx);
    char id[32];
    int tried = 0;
    for (int i = 1; i < count; i++) {
        if (!dt_ctx_device(ctx, i)->usable)
            continue;
        snprintf(id, sizeof id, "%s", dt_ctx_device(ctx, i)->id);
        random_seeds(id, 25, true);
        tried++;
    }
    dt_ctx_destroy(ctx);
    if (!tried)
        SKIP("no Vulkan device");
}
