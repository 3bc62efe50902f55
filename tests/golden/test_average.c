/* Averages of weights: PyTorch's values, what uses them (programs, files, trainers), how they
 * survive, and what is refused. */
#include "golden/golden.h"
#include "train/train_model.h"

enum { AVERAGE_STEPS = 12, AVERAGE_SIZE = 8 };

static const dt_average average_ema = {DT_AVERAGE_EMA, 0.9, false, 0, 0};

/* A program whose steps leave the weights as they are: the average sees the written values. */
static dt_program *average_of_written(golden *g, dt_average average) {
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = DT_ZERO, .average = average};
    dt_tensor w = dt_param(g->graph, "w", dt_dims(AVERAGE_SIZE), (dt_init){0});
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(AVERAGE_SIZE));
    const float ones[AVERAGE_SIZE] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (!OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store)))
        return NULL;
    dt_program *p =
        golden_program(g, (dt_program_desc){.loss = dt_mse(dt_mul(x, w), x), .optim = &sgd});
    return p && OK(g, dt_program_write(p, x, ones, sizeof ones)) ? p : NULL;
}

static void average_against(golden *g, const char *key, dt_average average) {
    const golden_array *w = golden_get(g, "w"), *wanted = golden_get(g, key);
    dt_program *p = average_of_written(g, average);
    for (int s = 0; s < AVERAGE_STEPS && p && w && wanted; s++) {
        float got[AVERAGE_SIZE];
        OK(g, dt_store_write(g->store, 0, DT_VALUE_PARAM, w->f + s * AVERAGE_SIZE, sizeof got));
        OK(g, dt_program_run(p, &(dt_step_desc){0}, NULL));
        OK(g, dt_store_read(g->store, 0, DT_VALUE_AVERAGE, got, sizeof got));
        const bool own = average.start && s + 1 < (int)average.start;
        golden_same(own ? w : wanted, (size_t)s * AVERAGE_SIZE, got, AVERAGE_SIZE, 3e-7);
    }
}

GOLDEN(exponential_averages_are_pytorchs, "average") {
    average_against(g, "ema", average_ema);
}

GOLDEN(means_of_weights_are_pytorchs, "average") {
    average_against(g, "swa", (dt_average){.kind = DT_AVERAGE_SWA});
}

GOLDEN(means_of_every_third_weights_from_the_fourth_step_on_are_pytorchs, "average") {
    average_against(g, "late", (dt_average){.kind = DT_AVERAGE_SWA, .start = 4, .every = 3});
}

GOLDEN(an_average_that_warms_up_follows_the_first_steps, "average") {
    const golden_array *w = golden_get(g, "w");
    dt_program *p = average_of_written(g, (dt_average){DT_AVERAGE_EMA, 0.9, true, 0, 0});
    double a = 0;
    for (int s = 0; s < AVERAGE_STEPS && p && w; s++) {
        float got[AVERAGE_SIZE];
        const double keep = s ? fmin(0.9, (1.0 + s) / (10.0 + s)) : 0;
        a = keep * a + (1 - keep) * (double)w->f[s * AVERAGE_SIZE];
        OK(g, dt_store_write(g->store, 0, DT_VALUE_PARAM, w->f + s * AVERAGE_SIZE, sizeof got));
        OK(g, dt_program_run(p, &(dt_step_desc){0}, NULL));
        OK(g, dt_store_read(g->store, 0, DT_VALUE_AVERAGE, got, sizeof got));
        CHECK_NEAR(got[0], a, 1e-6 * fmax(1, fabs(a)));
    }
}

/* ---- a network, with a buffer, a frozen parameter and more than a block of 256 elements */

typedef struct average_net {
    dt_tensor x, t, y, loss;
    dt_program *train, *plain, *averaged;
    float data[4 * 40], target[4 * 12];
} average_net;

static dt_optim_desc average_adam(dt_average average) {
    return (dt_optim_desc){.lr = 0.05, .average = average};
}

static bool average_graph(golden *g, average_net *n) {
    uint32_t state = 11;
    n->x = dt_input(g->graph, "x", DT_F32, dt_dims(40));
    n->t = dt_input(g->graph, "t", DT_F32, dt_dims(12));
    dt_tensor h = dt_nn_batch_norm(dt_nn_linear(n->x, "a", 30), "bn", NULL);
    dt_tensor scale =
        dt_freeze(dt_param(g->graph, "scale", dt_dims(30), (dt_init){DT_INIT_CONSTANT, 2, 0}));
    n->y = dt_nn_linear(dt_mul(dt_tanh(h), scale), "b", 12);
    n->loss = dt_mse(n->y, n->t);
    for (int i = 0; i < 4 * 40; i++)
        n->data[i] = (float)(train_random(&state) % 1000) / 500.0f - 1;
    for (int i = 0; i < 4 * 12; i++)
        n->target[i] = (float)(train_random(&state) % 1000) / 500.0f - 1;
    return OK(
        g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device, .seed = 2}, &g->store));
}

static bool average_programs(golden *g, average_net *n, const dt_optim_desc *optim) {
    dt_program_desc eval = {.outputs = {n->y}, .batch = 4, .averaged = true};
    n->train = golden_program(g, (dt_program_desc){.loss = n->loss, .batch = 4, .optim = optim});
    n->averaged = golden_program(g, eval);
    eval.averaged = false;
    n->plain = golden_program(g, eval);
    return n->train && n->averaged && n->plain &&
           OK(g, dt_program_write(n->train, n->x, n->data, sizeof n->data)) &&
           OK(g, dt_program_write(n->train, n->t, n->target, sizeof n->target)) &&
           OK(g, dt_program_write(n->plain, n->x, n->data, sizeof n->data)) &&
           OK(g, dt_program_write(n->averaged, n->x, n->data, sizeof n->data));
}

static bool average_open(golden *g, average_net *n, const dt_optim_desc *optim) {
    return average_graph(g, n) && average_programs(g, n, optim);
}

static void average_train(golden *g, average_net *n, int steps) {
    for (int i = 0; i < steps; i++)
        OK(g, dt_program_run(n->train, &(dt_step_desc){0}, NULL));
}

static void average_output(golden *g, average_net *n, dt_program *p, float y[4 * 12]) {
    OK(g, dt_program_run(p, &(dt_step_desc){0}, NULL));
    OK(g, dt_program_read(p, n->y, y, 4 * 12 * 4));
}

static bool average_same(const float *a, const float *b) {
    return !memcmp(a, b, 4 * 12 * 4);
}

GOLDEN(a_program_computes_with_averages, NULL) {
    const dt_optim_desc adam = average_adam(average_ema);
    average_net n;
    float plain[48], averaged[48], values[30 * 40];
    if (!average_open(g, &n, &adam))
        return;
    average_output(g, &n, n.plain, plain);
    average_output(g, &n, n.averaged, averaged);
    CHECK(average_same(plain, averaged)); /* before the first step */
    average_train(g, &n, 7);
    average_output(g, &n, n.plain, plain);
    average_output(g, &n, n.averaged, averaged);
    CHECK(!average_same(plain, averaged));
    for (int i = 0; i < dt_store_param_count(g->store); i++) { /* averages as weights */
        dt_param_info info;
        OK(g, dt_store_get_param(g->store, i, &info));
        OK(g, dt_store_read(g->store, i, DT_VALUE_AVERAGE, values, 4 * info.elements));
        OK(g, dt_store_write(g->store, i, DT_VALUE_PARAM, values, 4 * info.elements));
    }
    average_output(g, &n, n.plain, plain);
    CHECK(average_same(plain, averaged));
    OK(g, dt_store_reset(g->store, DT_RESET_ALL));
    average_output(g, &n, n.plain, plain);
    average_output(g, &n, n.averaged, averaged);
    CHECK(average_same(plain, averaged));
}

GOLDEN(averages_are_saved_as_weights, NULL) {
    const char *path = "build/test_average.safetensors";
    const dt_optim_desc adam = average_adam((dt_average){.kind = DT_AVERAGE_SWA, .start = 2});
    average_net n;
    float plain[48], averaged[48];
    if (!average_open(g, &n, &adam))
        return;
    average_train(g, &n, 5);
    average_output(g, &n, n.averaged, averaged);
    OK(g, dt_store_save_matching(g->store, path, &(dt_save_desc){.averaged = true}));
    OK(g, dt_store_load(g->store, path));
    average_output(g, &n, n.plain, plain);
    CHECK(average_same(plain, averaged));
    remove(path);
}

/* 4 steps, a file, 4 more; and the same after the file in a store that knew nothing. */
GOLDEN(averages_go_on_from_a_file, NULL) {
    const char *path = "build/test_average_state.safetensors";
    const dt_optim_desc adam = average_adam(average_ema);
    average_net n;
    float first[48], then[48];
    uint64_t hash[2];
    if (!average_open(g, &n, &adam))
        return;
    average_train(g, &n, 4);
    OK(g, dt_store_save_state(g->store, path));
    average_train(g, &n, 4);
    average_output(g, &n, n.averaged, first);
    OK(g, dt_store_state_hash(g->store, &hash[0]));
    for (int later = 0; later < 2; later++) { /* programs before the file, or after it */
        g->program_count = 0;
        dt_store_destroy(g->store), g->store = NULL;
        OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store));
        if (later)
            OK(g, dt_store_load_state(g->store, path));
        if (!average_programs(g, &n, &adam))
            return;
        if (!later)
            OK(g, dt_store_load_state(g->store, path));
        average_train(g, &n, 4);
        average_output(g, &n, n.averaged, then);
        OK(g, dt_store_state_hash(g->store, &hash[1]));
        CHECK(average_same(first, then) && hash[0] == hash[1]);
    }
    remove(path);
}

/* A file without averages: they begin with the weights that it has. */
GOLDEN(averages_begin_anew_behind_a_file_without_them, NULL) {
    const char *path = "build/test_average_none.safetensors";
    const dt_optim_desc without = average_adam((dt_average){0}), with = average_adam(average_ema);
    average_net n;
    float plain[48], averaged[48];
    if (!average_graph(g, &n))
        return;
    n.train = golden_program(g, (dt_program_desc){.loss = n.loss, .batch = 4, .optim = &without});
    OK(g, dt_program_write(n.train, n.x, n.data, sizeof n.data));
    OK(g, dt_program_write(n.train, n.t, n.target, sizeof n.target));
    average_train(g, &n, 3);
    OK(g, dt_store_save_state(g->store, path));
    if (!average_programs(g, &n, &with))
        return;
    average_train(g, &n, 2);
    OK(g, dt_store_load_state(g->store, path));
    average_output(g, &n, n.plain, plain);
    average_output(g, &n, n.averaged, averaged);
    CHECK(average_same(plain, averaged));
    average_train(g, &n, 1); /* the first that it sees */
    average_output(g, &n, n.plain, plain);
    average_output(g, &n, n.averaged, averaged);
    CHECK(average_same(plain, averaged));
    average_train(g, &n, 1);
    average_output(g, &n, n.plain, plain);
    average_output(g, &n, n.averaged, averaged);
    CHECK(!average_same(plain, averaged));
    remove(path);
}

/* ---- an aborted step, what is refused */

GOLDEN(an_aborted_step_leaves_averages_alone, NULL) {
    const dt_optim_desc adam = average_adam(average_ema);
    average_net n;
    uint64_t hash[2];
    if (!average_open(g, &n, &adam))
        return;
    average_train(g, &n, 3);
    OK(g, dt_store_state_hash(g->store, &hash[0]));
    n.data[5] = NAN;
    OK(g, dt_program_write(n.train, n.x, n.data, sizeof n.data));
    CHECK(dt_program_run(n.train, &(dt_step_desc){0}, NULL) == DT_ERROR_NUMERIC);
    OK(g, dt_store_state_hash(g->store, &hash[1]));
    CHECK(hash[0] == hash[1]);
}

/* ---- averages that begin after other steps */

static dt_optim_desc average_still(dt_average average, double momentum) {
    return (dt_optim_desc){
        .kind = DT_OPTIM_SGD, .lr = DT_ZERO, .momentum = momentum, .average = average};
}

static const dt_average average_mean = {.kind = DT_AVERAGE_SWA};

typedef struct average_pair { /* weights of one element, each with a program of its own */
    dt_tensor w[2], x;
    dt_program *train[2];
} average_pair;

static bool average_one(golden *g, average_pair *n, int k, const char *params,
                        dt_optim_desc optim) {
    const float one = 1;
    const dt_tensor loss = dt_mse(dt_mul(dt_mul(n->x, n->w[0]), n->w[1]), n->x);
    n->train[k] = golden_program(
        g, (dt_program_desc){.loss = loss, .optim = &optim, .params = params, .batch = 1});
    return n->train[k] && OK(g, dt_program_write(n->train[k], n->x, &one, sizeof one));
}

static bool average_pair_open(golden *g, average_pair *n, const dt_store_desc *desc) {
    const dt_init one = {DT_INIT_CONSTANT, 1, 0};
    n->w[0] = dt_param(g->graph, "a", dt_dims(1), one);
    n->w[1] = dt_param(g->graph, "b", dt_dims(1), one);
    n->x = dt_input(g->graph, "x", DT_F32, dt_dims(1));
    return OK(g, dt_store_create(g->graph, desc, &g->store));
}

static void average_step(golden *g, dt_program *p, int index, float value) {
    OK(g, dt_store_write(g->store, index, DT_VALUE_PARAM, &value, sizeof value));
    OK(g, dt_program_run(p, &(dt_step_desc){0}, NULL));
}

static float average_now(golden *g, int index) {
    float value = -1;
    OK(g, dt_store_read(g->store, index, DT_VALUE_AVERAGE, &value, sizeof value));
    return value;
}

GOLDEN(a_mean_that_begins_behind_other_steps_counts_its_own, NULL) {
    average_pair n;
    if (!average_pair_open(g, &n, &(dt_store_desc){.device = g->device}) ||
        !average_one(g, &n, 0, "a", average_still((dt_average){0}, 0)) ||
        !average_one(g, &n, 1, "a", average_still(average_mean, 0)))
        return;
    for (int i = 0; i < 10; i++)
        average_step(g, n.train[0], 0, 100);
    const float means[4] = {1, 1.5f, 2, 2.5f};
    for (int i = 0; i < 4; i++) {
        average_step(g, n.train[1], 0, (float)(i + 1));
        CHECK_NEAR(average_now(g, 0), means[i], 1e-6);
    }
    const char *path = "build/test_average_from.safetensors";
    OK(g, dt_store_save_state(g->store, path));
    average_step(g, n.train[1], 0, 5);
    OK(g, dt_store_load_state(g->store, path));
    average_step(g, n.train[1], 0, 10);
    CHECK_NEAR(average_now(g, 0), 4, 1e-6);
    remove(path);
}

GOLDEN(averages_of_two_programs_begin_with_their_own_steps, NULL) {
    average_pair n;
    if (!average_pair_open(g, &n, &(dt_store_desc){.device = g->device}) ||
        !average_one(g, &n, 0, "a", average_still(average_ema, 0)) ||
        !average_one(g, &n, 1, "b", average_still(average_ema, 0)))
        return;
    average_step(g, n.train[0], 0, 3);
    CHECK(average_now(g, 0) == 3 && average_now(g, 1) == 1);
    average_step(g, n.train[1], 1, 7);
    CHECK(average_now(g, 0) == 3 && average_now(g, 1) == 7);
    if (!average_one(g, &n, 0, "*", average_still(average_ema, 0)))
        return;
    average_step(g, n.train[0], 0, 13);
    CHECK_NEAR(average_now(g, 0), 4, 1e-6);
}

/* One average is there, the other one begins as its weight. */
GOLDEN(a_program_that_averages_more_begins_with_the_weights, NULL) {
    average_pair n;
    if (!average_pair_open(g, &n, &(dt_store_desc){.device = g->device}) ||
        !average_one(g, &n, 0, "a", average_still(average_ema, 0)) ||
        !average_one(g, &n, 1, "*", average_still(average_ema, 0)))
        return;
    average_step(g, n.train[0], 0, 3);
    average_step(g, n.train[1], 1, 7);
    CHECK(average_now(g, 0) == 3 && average_now(g, 1) == 7);
}

GOLDEN(a_file_whose_average_lies_where_momentum_does_is_refused, NULL) {
    const char *path = "build/test_average_place.safetensors";
    average_pair n;
    if (!average_pair_open(g, &n, &(dt_store_desc){.device = g->device}) ||
        !average_one(g, &n, 0, "a", average_still(average_ema, 0)))
        return;
    average_step(g, n.train[0], 0, 3);
    OK(g, dt_store_save_state(g->store, path));
    dt_program_destroy(g->programs[--g->program_count]);
    dt_store_destroy(g->store), g->store = NULL;
    if (!OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store)) ||
        !average_one(g, &n, 0, "a", average_still((dt_average){0}, 0.9)))
        return;
    CHECK(dt_store_load_state(g->store, path) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(g->ctx), "an optimizer here keeps 1");
    remove(path);
}

static void average_refused(golden *g, dt_program_desc desc, const char *what) {
    dt_program *p = NULL;
    CHECK(dt_program_create(g->store, &desc, &p) == DT_ERROR_INVALID && !p);
    CHECK_CONTAINS(dt_ctx_error(g->ctx), what);
}

GOLDEN(averages_that_cannot_be_are_refused, NULL) {
    const dt_optim_desc adam = average_adam(average_ema);
    const dt_optim_desc kind = average_adam((dt_average){.kind = (dt_average_kind)7});
    const dt_optim_desc decay = average_adam((dt_average){DT_AVERAGE_EMA, 1.0, false, 0, 0});
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .average = average_ema};
    const dt_optim_desc momentum = {.kind = DT_OPTIM_SGD, .momentum = 0.9, .average = average_ema};
    average_net n;
    float value[30];
    if (!average_graph(g, &n))
        return;
    average_refused(g, (dt_program_desc){.outputs = {n.y}, .averaged = true},
                    "no program of this store averages");
    average_refused(g, (dt_program_desc){.loss = n.loss, .batch = 4, .optim = &kind},
                    "average.kind is 7");
    average_refused(g, (dt_program_desc){.loss = n.loss, .batch = 4, .optim = &decay},
                    "average.decay is 1");
    average_refused(g,
                    (dt_program_desc){.loss = n.loss, .batch = 4, .optim = &adam, .averaged = true},
                    "cannot be combined with gradients");
    CHECK(dt_store_read(g->store, 1, DT_VALUE_AVERAGE, value, sizeof value) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(g->ctx), "has no average");
    CHECK(dt_store_save_matching(g->store, "build/none.safetensors",
                                 &(dt_save_desc){.averaged = true}) == DT_ERROR_INVALID);
    dt_program *p = golden_program(g, (dt_program_desc){.loss = n.loss, .batch = 4, .optim = &sgd});
    CHECK(p);
    average_refused(g, (dt_program_desc){.loss = n.loss, .batch = 4, .optim = &momentum},
                    "number of moments");
    const int scale = dt_store_find(g->store, "scale");
    CHECK(dt_store_write(g->store, scale, DT_VALUE_AVERAGE, value, sizeof value) ==
          DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(g->ctx), "'scale' has no average to write");
}

/* ---- trainers */

typedef struct average_job {
    uint64_t hash;
    double plain, averaged, resumed;
} average_job;

static void average_train_job(const char *devices, const char *path, bool averaged,
                              average_job *out) {
    train_model m;
    dt_trainer *trainer = NULL;
    dt_train_report r;
    *out = (average_job){0};
    REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true, .threads = 1}, 1));
    m.adam.average = average_ema;
    dt_trainer_desc d = train_desc(&m);
    d.devices = devices;
    d.parallel.batch_slices = 4;
    d.averaged = averaged;
    REQUIRE(!dt_trainer_create(m.graph, &d, &trainer));
    for (int i = 0; i < 12; i++) {
        if (i == 6)
            CHECK(!dt_trainer_save(trainer, path));
        CHECK(!dt_trainer_step(trainer, NULL));
    }
    CHECK(!dt_trainer_evaluate(trainer, &d.data, 0, &r));
    out->averaged = r.loss;
    CHECK(!dt_store_state_hash(dt_trainer_store(trainer), &out->hash));
    CHECK(!dt_trainer_load(trainer, path));
    for (int i = 0; i < 6; i++)
        CHECK(!dt_trainer_step(trainer, NULL));
    CHECK(!dt_trainer_evaluate(trainer, &d.data, 0, &r));
    out->resumed = r.loss;
    dt_ctx_destroy(m.ctx);
    remove(path);
}

TEST(trainers_evaluate_averages_that_are_the_same_on_any_number_of_replicas) {
    average_job one, two, plain;
    average_train_job("cpu", "build/test_average_1.safetensors", true, &one);
    average_train_job("cpu:2", "build/test_average_2.safetensors", true, &two);
    average_train_job("cpu", "build/test_average_3.safetensors", false, &plain);
    CHECK(one.hash == two.hash && one.hash == plain.hash);
    CHECK(one.averaged == one.resumed && plain.averaged == plain.resumed);
    CHECK(one.averaged != plain.averaged);
    CHECK_NEAR(one.averaged, two.averaged, 1e-6); /* sums of as many parts as there are replicas */
    CHECK_NEAR(one.averaged, plain.averaged, 0.5);
}

/* Momentum and no average have as many arrays as the opposite. */
TEST(a_trainer_refuses_a_file_whose_average_would_be_its_momentum) {
    const char *path = "build/test_average_4.safetensors";
    for (int k = 0; k < 2; k++) {
        train_model m;
        dt_trainer *trainer = NULL;
        REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true, .threads = 1}, 1));
        m.adam = (dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 0.01, .momentum = k ? 0.9 : 0};
        m.adam.average.kind = k ? DT_AVERAGE_NONE : DT_AVERAGE_EMA;
        const dt_trainer_desc d = train_desc(&m);
        REQUIRE(!dt_trainer_create(m.graph, &d, &trainer));
        CHECK(!dt_trainer_step(trainer, NULL));
        if (!k)
            CHECK(!dt_trainer_save(trainer, path));
        else
            CHECK(dt_trainer_load(trainer, path) == DT_ERROR_INVALID);
        if (k)
            CHECK_CONTAINS(dt_ctx_error(m.ctx), "256 more with an average");
        dt_ctx_destroy(m.ctx);
    }
    remove(path);
}

TEST(a_trainer_refuses_to_evaluate_averages_that_it_does_not_keep) {
    train_model m;
    dt_trainer *trainer = NULL;
    REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 0));
    dt_trainer_desc d = train_desc(&m);
    d.averaged = true;
    CHECK(dt_trainer_create(m.graph, &d, &trainer) == DT_ERROR_INVALID && !trainer);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), ".averaged");
    dt_ctx_destroy(m.ctx);
}
