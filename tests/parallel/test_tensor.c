/* A model that is split over tensor ranks (.tensor). It has the values of one device within
 * rounding, and the same bits in every run. Also the settings that it cannot be combined with. */
#include "train/train_model.h"

#include "parallel/team_stack.h"

enum { TEAM_VALUES = 40000 };

typedef struct team_run {
    uint64_t hash;
    double loss[TEAM_STEPS], norm[TEAM_STEPS];
    int count;
    float values[TEAM_VALUES];
} team_run;

/* All parameters after some steps; devices NULL: one CPU. */
static bool team_train_grid(int kind, const char *devices, team_grid grid, team_run *r) {
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.2, .momentum = 0.9, .clip_norm = 0.5};
    team_model m;
    dt_trainer *t;
    *r = (team_run){0};
    if (!CHECK_TEXT(team_make(&m, kind, devices && strstr(devices, "vulkan")), "made"))
        return false;
    dt_trainer_desc d = team_desc(&m, &sgd);
    d.devices = devices ? devices : "cpu";
    d.parallel.tensor = grid.tensor_ranks;
    d.parallel.tensor_slices = grid.slices;
    d.accumulate = grid.accumulate;
    d.parallel.batch_slices = grid.batch_slices;
    d.parallel.replicas = grid.replicas;
    d.parallel.sequence_parallel = grid.rows;
    dt_result result = dt_trainer_create(m.graph, &d, &t);
    for (int i = 0; i < TEAM_STEPS && !result; i++) {
        dt_train_report report;
        result = dt_trainer_step(t, &report);
        r->loss[i] = report.loss;
        r->norm[i] = report.gradient_norm;
        CHECK(result || train_times_add_up(&report));
    }
    dt_store *s = result ? NULL : dt_trainer_store(t);
    if (s)
        result = dt_store_state_hash(s, &r->hash);
    for (int i = 0; s && i < dt_store_param_count(s); i++) {
        dt_param_info info;
        result = result ? result : dt_store_get_param(s, i, &info);
        int64_t n = 1;
        for (int k = 0; k < info.shape.rank; k++)
            n *= info.shape.dim[k];
        if (!result && r->count + n <= TEAM_VALUES)
            result = dt_store_read(s, i, DT_VALUE_PARAM, r->values + r->count,
                                   (size_t)n * sizeof *r->values);
        r->count += (int)n;
    }
    CHECK_TEXT(!result, "kind %d, %d tensor ranks: %s", kind, grid.tensor_ranks,
               dt_ctx_error(m.ctx));
    CHECK_TEXT(r->count <= TEAM_VALUES, "%d values", r->count);
    dt_ctx_destroy(m.ctx);
    return !result;
}

static bool team_train(int kind, const char *devices, int tensor_ranks, int accumulate,
                       team_run *r) {
    const team_grid grid = {.tensor_ranks = tensor_ranks, .accumulate = accumulate};
    return team_train_grid(kind, devices, grid, r);
}

static void team_near(int kind, const team_run *got, const team_run *want, int tensor_ranks) {
    double most = 0;
    for (int i = 0; i < TEAM_STEPS; i++) {
        CHECK_TEXT(fabs(got->loss[i] - want->loss[i]) < 2e-5,
                   "kind %d, %d tensor ranks, step %d: %.9g %.9g", kind, tensor_ranks, i,
                   got->loss[i], want->loss[i]);
        CHECK_TEXT(fabs(got->norm[i] - want->norm[i]) < 1e-4 * want->norm[i],
                   "kind %d, %d tensor ranks, step %d: norm %.9g %.9g", kind, tensor_ranks, i,
                   got->norm[i], want->norm[i]);
    }
    for (int i = 0; i < want->count; i++)
        most = fmax(most, fabs((double)got->values[i] - (double)want->values[i]));
    CHECK_TEXT(most < 2e-5 && got->count == want->count, "kind %d, %d tensor ranks: off by %g",
               kind, tensor_ranks, most);
}

static team_run team_one, team_some, team_again;
static uint64_t team_two;

TEST(tensor_ranks_train_as_one_device) {
    for (int kind = 0; kind < TEAM_KINDS; kind++) {
        if (!team_train(kind, NULL, 0, 1, &team_one))
            return;
        for (int tensor_ranks = 2; tensor_ranks <= 4; tensor_ranks += 2) {
            const char *const devices = tensor_ranks == 2 ? "cpu:2" : "cpu:4";
            if (!team_train(kind, devices, tensor_ranks, 1, &team_some))
                return;
            team_near(kind, &team_some, &team_one, tensor_ranks);
            CHECK(team_train(kind, devices, tensor_ranks, 1, &team_again));
            CHECK(team_some.hash == team_again.hash && team_some.hash != team_one.hash);
        }
        if (kind != TEAM_BLOCKS)
            continue;
        if (team_train(kind, "cpu:2", 2, 3, &team_some) && team_train(kind, NULL, 0, 3, &team_one))
            team_near(kind, &team_some, &team_one, 2);
    }
}

/* Tables by rows and columns, tied weights, losses of logits that stay in parts. */
TEST(tensor_ranks_with_parts_of_the_classes_train_as_one_device) {
    for (int kind = TEAM_HEAD; kind < TEAM_LAST; kind++) {
        if (!team_train(kind, NULL, 0, 1, &team_one))
            return;
        for (int tensor_ranks = 2; tensor_ranks <= 4; tensor_ranks += 2) {
            if (!team_train(kind, tensor_ranks == 2 ? "cpu:2" : "cpu:4", tensor_ranks, 1,
                            &team_some))
                return;
            team_near(kind, &team_some, &team_one, tensor_ranks);
        }
    }
}

/* Norms, dropout and residuals of own rows; of 3 tensor ranks no row is. */
TEST(sequence_parallel_tensor_ranks_train_as_one_device) {
    static const char *const devices[] = {"cpu:2", "cpu:3", "cpu:4", "cpu:4"};
    for (int kind = 0; kind < TEAM_LAST; kind++) {
        if (kind == TEAM_KINDS)
            continue;
        team_grid grid = {.accumulate = kind == TEAM_BLOCKS ? 3 : 1, .batch_slices = 2};
        if (!team_train_grid(kind, NULL, grid, &team_one))
            return;
        grid.rows = true;
        for (int i = 0; i < 4; i++) {
            if (i == 1 && kind != TEAM_MLP && kind < TEAM_HEAD)
                continue; /* heads do not divide */
            grid.tensor_ranks = i < 3 ? 2 + i : 2;
            if (i == 1 && kind >= TEAM_HEAD)
                continue;
            if (!team_train_grid(kind, devices[i], grid, i == 3 ? &team_again : &team_some))
                return;
            team_near(kind, i == 3 ? &team_again : &team_some, &team_one, grid.tensor_ranks);
            if (i == 0)
                team_two = team_some.hash;
        }
        CHECK_TEXT(team_again.hash == team_two, "kind %d: two tensor groups", kind);
    }
}

/* Tensor groups share the batch: bits depend only on tensor ranks and batch slices. Of the last
 * batch of an epoch, 12 samples, the fourth batch slice has none. */
TEST(tensor_groups_have_the_bits_of_one_with_the_same_number_of_batch_slices) {
    static const char *const devices[] = {"cpu:2", "cpu:4", "cpu:6", "cpu:8"};
    for (int kind = TEAM_BLOCKS; kind <= TEAM_BATCH_NORM; kind += TEAM_BATCH_NORM - TEAM_BLOCKS) {
        team_grid grid = {.accumulate = kind == TEAM_BLOCKS ? 1 : 3, .batch_slices = 4};
        if (!team_train_grid(kind, NULL, grid, &team_one))
            return;
        grid.tensor_ranks = 2;
        if (!team_train_grid(kind, devices[0], grid, &team_again))
            return;
        team_near(kind, &team_again, &team_one, 2);
        for (int data = 2; data <= 4; data++) {
            grid.replicas = data;
            if (!team_train_grid(kind, devices[data - 1], grid, &team_some))
                return;
            CHECK_TEXT(team_some.hash == team_again.hash, "kind %d, %d tensor groups", kind, data);
            CHECK_TEXT(!memcmp(team_some.loss, team_again.loss, sizeof team_some.loss) &&
                           !memcmp(team_some.norm, team_again.norm, sizeof team_some.norm),
                       "kind %d, %d tensor groups: losses", kind, data);
        }
    }
}

/* ---- random stacks of pairs and attention, on 2 to 4 tensor ranks */

TEST(random_stacks_train_on_two_three_and_four_tensor_ranks) {
    for (uint32_t seed = 1; seed <= 30; seed++) {
        const stack s = stack_of(seed);
        double one[TEAM_STEPS + 1] = {0}, some[TEAM_STEPS + 1] = {0};
        const int tensor_ranks = 2 + (int)(seed % 3);
        if (!stack_run(&s, &(team_grid){0}, one, NULL) ||
            !stack_run(&s, &(team_grid){.tensor_ranks = tensor_ranks, .rows = s.rows}, some,
                       NULL)) {
            CHECK_TEXT(false, "stack %u", seed);
            return;
        }
        for (int i = 0; i <= TEAM_STEPS; i++)
            CHECK_TEXT(fabs(one[i] - some[i]) <= 2e-4 * (0.1 + one[i]),
                       "stack %u, %d tensor ranks, step %d: %.9g, not %.9g", seed, tensor_ranks, i,
                       some[i], one[i]);
    }
}

/* ---- files, evaluation, memory */

/* tensor_ranks 0: replicas of the whole model. */
static bool team_open_grid(team_model *m, int kind, team_grid grid, dt_trainer **t,
                           dt_dataset *data) {
    static const dt_optim_desc adam = {
        .kind = DT_OPTIM_ADAMW, .lr = 0.01, .average = {.kind = DT_AVERAGE_EMA, .decay = 0.9}};
    char devices[16];
    if (!CHECK_TEXT(team_make(m, kind, false), "made"))
        return false;
    dt_trainer_desc d = team_desc(m, &adam);
    team_grid_to(&grid, &d, devices);
    *data = d.data;
    return CHECK_TEXT(!dt_trainer_create(m->graph, &d, t), "%s", dt_ctx_error(m->ctx));
}

static bool team_open(team_model *m, int kind, int tensor_ranks, dt_trainer **t, dt_dataset *data) {
    return team_open_grid(m, kind, (team_grid){.tensor_ranks = tensor_ranks}, t, data);
}

/* Steps of a grid, a file, steps of another; the loss of an evaluation. */
static double team_go_on_grids(team_grid first, team_grid second, uint64_t *hash) {
    const char *path = "build/tensor_state";
    const team_grid grids[2] = {first, second};
    dt_train_report r = {0};
    for (int k = 0; k < 2; k++) {
        team_model m;
        dt_trainer *t;
        dt_dataset data;
        if (!team_open_grid(&m, TEAM_BLOCKS, grids[k], &t, &data))
            return 0;
        dt_result result = k ? dt_trainer_load(t, path) : DT_OK;
        for (int i = 0; i < 3 && !result; i++)
            result = dt_trainer_step(t, NULL);
        if (!result)
            result = k ? dt_trainer_evaluate(t, &data, 16, &r) : dt_trainer_save(t, path);
        if (!result && k && hash)
            result = dt_store_state_hash(dt_trainer_store(t), hash);
        CHECK_TEXT(!result, "%d tensor ranks, then %d: %s", first.tensor_ranks, second.tensor_ranks,
                   dt_ctx_error(m.ctx));
        dt_ctx_destroy(m.ctx);
    }
    remove(path);
    return r.loss;
}

static double team_go_on(int first, int second, uint64_t *hash) {
    return team_go_on_grids((team_grid){.tensor_ranks = first}, (team_grid){.tensor_ranks = second},
                            hash);
}

TEST(a_checkpoint_of_tensor_ranks_resumes_on_any_number_of_them) {
    uint64_t hash[2];
    const double want = team_go_on(0, 0, NULL), got = team_go_on(2, 2, &hash[0]);
    CHECK(want > 0);
    CHECK_TEXT(fabs(team_go_on(2, 4, NULL) - want) < 1e-4, "2, 4");
    CHECK_TEXT(fabs(team_go_on(0, 2, NULL) - want) < 1e-4, "1, 2");
    CHECK_TEXT(fabs(team_go_on(4, 0, NULL) - want) < 1e-4, "4, 1");
    CHECK_TEXT(fabs(got - want) < 1e-4 && fabs(team_go_on(2, 2, &hash[1]) - want) < 1e-4, "2, 2");
    CHECK(hash[0] == hash[1]);
}

/* The number of batch slices is the file's. */
TEST(a_checkpoint_of_tensor_groups_resumes_on_any_other_grid) {
    static const team_grid grids[] = {{.tensor_ranks = 2, .replicas = 2},
                                      {.tensor_ranks = 2, .replicas = 1},
                                      {.replicas = 2},
                                      {.tensor_ranks = 4},
                                      {.replicas = 1},
                                      {0}};
    const team_grid two = {.replicas = 2};
    const double want = team_go_on_grids(two, two, NULL);
    uint64_t hash[2] = {0, 1};
    CHECK(want > 0);
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++)
        CHECK_TEXT(fabs(team_go_on_grids(grids[0], grids[i], i < 2 ? &hash[i] : NULL) - want) <
                       1e-4,
                   "to grid %d", (int)i);
    CHECK_TEXT(fabs(team_go_on_grids(two, grids[0], NULL) - want) < 1e-4, "from replicas");
    CHECK(hash[0] == hash[1]); /* as many tensor groups as anybody likes */
}

TEST(tensor_ranks_have_only_the_state_of_their_parts) {
    dt_trainer_info info[2];
    for (int k = 0; k < 2; k++) {
        team_model m;
        dt_trainer *t;
        dt_dataset data;
        if (team_open(&m, TEAM_BLOCKS, k ? 4 : 0, &t, &data))
            dt_trainer_get_info(t, &info[k]);
        dt_ctx_destroy(m.ctx);
    }
    CHECK(info[0].tensor_ranks == 0 && info[1].tensor_ranks == 4);
    CHECK_TEXT(info[1].state_bytes * 5 < info[0].state_bytes * 3,
               "%d bytes of state, %d of one device", (int)info[1].state_bytes,
               (int)info[0].state_bytes);
}

/* A written value reaches tensor ranks; a step that is not finite changes nothing. */
static void team_written(team_grid grid) {
    team_model m;
    dt_trainer *t;
    dt_train_report r;
    dt_dataset data;
    static float weight[4 * TEAM_WIDTH * TEAM_WIDTH], other[4 * TEAM_WIDTH * TEAM_WIDTH];
    if (!team_open_grid(&m, TEAM_MLP, grid, &t, &data))
        return;
    dt_store *s = dt_trainer_store(t);
    const int i = dt_store_find(s, "h1.down.weight");
    CHECK(!dt_trainer_step(t, NULL));
    CHECK(!dt_store_read(s, i, DT_VALUE_PARAM, weight, sizeof weight));
    weight[4 * TEAM_WIDTH - 1] = INFINITY; /* the last tensor rank's */
    CHECK(!dt_store_write(s, i, DT_VALUE_PARAM, weight, sizeof weight));
    CHECK(dt_trainer_step(t, &r) == DT_ERROR_NUMERIC);
    CHECK(!dt_store_read(s, i, DT_VALUE_PARAM, other, sizeof other));
    CHECK(!memcmp(weight, other, sizeof weight));
    weight[4 * TEAM_WIDTH - 1] = 0.25f;
    CHECK(!dt_store_write(s, i, DT_VALUE_PARAM, weight, sizeof weight));
    CHECK_TEXT(!dt_trainer_step(t, &r), "%s", dt_ctx_error(m.ctx));
    CHECK(!dt_store_read(s, i, DT_VALUE_PARAM, other, sizeof other));
    CHECK(memcmp(weight, other, sizeof weight) && isfinite(other[4 * TEAM_WIDTH - 1]));
    dt_ctx_destroy(m.ctx);
}

TEST(tensor_ranks_take_written_values_and_skip_steps_that_are_not_finite) {
    team_written((team_grid){.tensor_ranks = 2});
    team_written((team_grid){.tensor_ranks = 1, .slices = 4});
}

/* ---- settings that it cannot be combined with */

typedef struct team_refusal {
    const char *says;
    dt_result result;
    int tensor, slices, pipeline, batch_slices, zero_stage, model, replicas;
    dt_train_mode mode;
    dt_balance balance;
    dt_optim_kind optim;
    const char *devices;
    bool offload;
} team_refusal;

enum { ODD_NONE, ODD_WIDTH, ODD_DROPOUT, ODD_NO_MARK, ODD_SOFTMAX, ODD_ROW, ODD_SYNC };

static dt_tensor odd_model(dt_tensor x, int model) {
    const dt_linear_desc up = {.tensor = DT_TENSOR_COLUMN}, down = {.tensor = DT_TENSOR_ROW},
                         plain = {0};
    const bool no = model == ODD_NO_MARK;
    dt_tensor h = model == ODD_ROW
                      ? x
                      : dt_nn_linear_with(x, "up", model == ODD_WIDTH ? 9 : 8, no ? &plain : &up);
    if (model == ODD_SYNC)
        x = dt_nn_batch_norm(x, "bn", &(dt_batch_norm_desc){.sync = true});
    h = model == ODD_DROPOUT ? dt_dropout(h, 0.5f) : model == ODD_SOFTMAX ? dt_softmax(h, -1) : h;
    h = dt_nn_linear_with(dt_relu(h), "down", 6, no ? &plain : &down);
    return dt_nn_linear(dt_add(h, dt_nn_linear(x, "aside", 6)), "head", TRAIN_CLASSES);
}

static void team_refused(const team_refusal *r) {
    const dt_optim_desc optim = {.kind = r->optim};
    train_data data;
    dt_ctx *ctx;
    dt_graph *g;
    dt_trainer *t = NULL;
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) && !dt_graph_create(ctx, &g));
    train_data_fill(&data);
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(TRAIN_SIDE * TRAIN_SIDE));
    dt_tensor target = dt_input(g, "t", DT_I32, dt_dims());
    dt_trainer_desc d = {.loss = dt_cross_entropy(odd_model(x, r->model), target, NULL),
                         .optim = &optim,
                         .batch = 16,
                         .parallel.tensor = r->tensor ? r->tensor : 2,
                         .parallel.tensor_slices = r->slices,
                         .parallel.pipeline = r->pipeline,
                         .parallel.batch_slices = r->batch_slices,
                         .parallel.replicas = r->replicas,
                         .parallel.zero_stage = r->zero_stage,
                         .parallel.offload = r->offload,
                         .mode = r->mode,
                         .parallel.balance = r->balance,
                         .devices = r->devices ? r->devices : "cpu:2",
                         .data = {.rows = TRAIN_ROWS,
                                  .columns = {{.input = x, .data = data.x, .dtype = DT_F32},
                                              {.input = target, .data = data.t, .dtype = DT_I32}}}};
    const dt_result result = dt_trainer_create(g, &d, &t);
    CHECK_TEXT(result == r->result && (!t || !result), "%s: %d, %s", r->says ? r->says : "fine",
               (int)result, dt_ctx_error(ctx));
    if (r->says)
        CHECK_CONTAINS(dt_ctx_error(ctx), r->says);
    else
        CHECK(!dt_trainer_step(t, NULL));
    dt_ctx_destroy(ctx);
}

TEST(ops_that_cannot_be_split_over_tensor_ranks_are_refused_with_a_reason) {
    static const team_refusal all[] = {
        {.result = DT_OK},
        {.tensor = -1, .result = DT_ERROR_INVALID, .says = ".parallel.tensor is -1"},
        {.tensor = 65, .result = DT_ERROR_INVALID, .says = ".parallel.tensor is 65"},
        {.slices = 4, .result = DT_OK},
        {.tensor = 1, .slices = 4, .devices = "cpu", .result = DT_OK},
        {.slices = -2, .result = DT_ERROR_INVALID, .says = ".parallel.tensor_slices is -2"},
        {.slices = 66, .result = DT_ERROR_INVALID, .says = ".parallel.tensor_slices is 66"},
        {.slices = 3, .result = DT_ERROR_INVALID, .says = "a multiple of .parallel.tensor (2)"},
        {.slices = 1, .result = DT_ERROR_INVALID, .says = "a multiple of .parallel.tensor (2)"},
        {.slices = 16,
         .result = DT_ERROR_INVALID,
         .says = ".parallel.tensor_slices = 16: parameter"},
        {.slices = 4,
         .pipeline = 2,
         .result = DT_ERROR_UNSUPPORTED,
         .says = ".parallel.tensor_slices = 4 cannot be combined with .parallel.pipeline"},
        {.slices = 4,
         .devices = "cpu:4",
         .replicas = 1,
         .result = DT_ERROR_INVALID,
         .says = "1 replicas x 2 tensor ranks needs 2 devices, but the .devices of the job's 1 "
                 "rank names 4"},
        {.devices = "cpu:3", .result = DT_ERROR_INVALID, .says = "needs 2 devices"},
        {.devices = "cpu:4",
         .batch_slices = 1,
         .result = DT_ERROR_INVALID,
         .says = ".parallel.batch_slices is 1 for 2 replicas"},
        {.devices = "cpu:4", .replicas = 1, .result = DT_ERROR_INVALID, .says = "needs 2 devices"},
        {.devices = "cpu:4", .replicas = 2, .result = DT_OK},
        {.batch_slices = 17,
         .result = DT_ERROR_INVALID,
         .says = ".parallel.batch_slices is 17 and .batch is 16"},
        {.pipeline = 2,
         .devices = "cpu:3",
         .result = DT_ERROR_INVALID,
         .says = "2 stages x 2 tensor ranks needs 4 devices"},
        {.pipeline = 2, .devices = "cpu:4", .result = DT_OK},
        {.zero_stage = 2,
         .offload = true,
         .result = DT_ERROR_UNSUPPORTED,
         .says = ".parallel.offload cannot be combined with .parallel.tensor = 2"},
        {.zero_stage = 2,
         .slices = 4,
         .result = DT_ERROR_UNSUPPORTED,
         .says = "cannot be combined with .parallel.zero_stage = 2: a device has the state of"},
        {.mode = DT_TRAIN_LOCAL,
         .result = DT_ERROR_UNSUPPORTED,
         .says = "cannot be combined with .mode"},
        {.balance = DT_BALANCE_MEASURED,
         .result = DT_ERROR_UNSUPPORTED,
         .says = "cannot be combined with .parallel.balance"},
        {.optim = DT_OPTIM_LAMB, .result = DT_ERROR_UNSUPPORTED, .says = "whole parameters"},
        {.optim = DT_OPTIM_MUON, .result = DT_ERROR_UNSUPPORTED, .says = "whole parameters"},
        {.model = ODD_WIDTH, .result = DT_ERROR_INVALID, .says = "'up.weight' [9, 36]"},
        {.model = ODD_DROPOUT, .result = DT_ERROR_UNSUPPORTED, .says = "dropout"},
        {.model = ODD_SOFTMAX, .result = DT_ERROR_UNSUPPORTED, .says = "softmax"},
        {.model = ODD_NO_MARK, .result = DT_ERROR_INVALID, .says = "no layer is split"},
        {.model = ODD_ROW, .result = DT_ERROR_UNSUPPORTED, .says = "linear"},
        {.model = ODD_SYNC,
         .result = DT_ERROR_UNSUPPORTED,
         .says = ".sync cannot be combined with .parallel.tensor"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        team_refused(&all[i]);
}

/* ---- Vulkan */

TEST(tensor_ranks_on_vulkan_train_as_one_device) {
    if (!train_has_vulkan())
        SKIP("no Vulkan device");
    static const char *const pair = "vulkan:0,vulkan:0", *const four =
                                                             "vulkan:0,vulkan:0,vulkan:0,vulkan:0";
    team_grid grid = {.accumulate = 1, .batch_slices = 2};
    if (!team_train_grid(TEAM_HEAD, NULL, grid, &team_one))
        return;
    grid.tensor_ranks = 2, grid.rows = true;
    if (!team_train_grid(TEAM_HEAD, pair, grid, &team_some))
        return;
    team_near(TEAM_HEAD, &team_some, &team_one, 2);
    grid.tensor_ranks = 1, grid.slices = 2;
    CHECK(team_train_grid(TEAM_HEAD, "vulkan:0", grid, &team_again));
    CHECK(team_some.hash == team_again.hash);
    grid.tensor_ranks = 2;
    if (!getenv("DTRAIN_TEST_LONG"))
        return;
    CHECK(team_train_grid(TEAM_HEAD, four, grid, &team_again));
    CHECK(team_some.hash == team_again.hash);
    if (team_train(TEAM_BLOCKS, NULL, 0, 1, &team_one) &&
        team_train(TEAM_BLOCKS, pair, 2, 1, &team_some))
        team_near(TEAM_BLOCKS, &team_some, &team_one, 2);
}
