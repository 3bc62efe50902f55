/* DT_ZERO: a zero that is meant, in every field where 0 stands for another value; and what can be
 * changed from step to step. */
#include "train/train_model.h"
#include <math.h>
#include <pthread.h>

/* ---- one weight, whose gradient is what the host writes as x, times the coefficient */

enum { ZERO_STEPS = 3 };
static const float zero_x[ZERO_STEPS] = {1, -3, 2};

typedef struct zero_case {
    const char *name;
    dt_optim_desc optim;
    double step_lr;
    float coefficient;
} zero_case;

/* After ZERO_STEPS steps from 1; NaN: it could not be made. */
static double zero_run(const zero_case *c) {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
    float w = NAN;
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) || dt_graph_create(ctx, &graph))
        return NAN;
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(1));
    dt_init one = {.kind = DT_INIT_CONSTANT, .a = 1};
    dt_tensor y = dt_mul(x, dt_param(graph, "w", dt_dims(1), one));
    dt_program_desc d = {.losses = {{dt_mean_loss(y), c->coefficient}}, .optim = &c->optim};
    dt_result result = dt_store_create(graph, &(dt_store_desc){.device = "cpu"}, &store);
    if (!result)
        result = dt_program_create(store, &d, &program);
    for (int i = 0; i < ZERO_STEPS && !result; i++) {
        result = dt_program_write(program, x, &zero_x[i], sizeof(float));
        if (!result)
            result = dt_program_run(program, &(dt_step_desc){.lr = c->step_lr}, NULL);
    }
    if (!result)
        result = dt_store_read(store, 0, DT_VALUE_PARAM, &w, sizeof w);
    CHECK_TEXT(result == DT_OK, "%s: %s", c->name, dt_ctx_error(ctx));
    dt_ctx_destroy(ctx);
    return (double)w;
}

/* torch.optim in float64, for decay 0 or decoupled */
static double zero_adam(double lr, double decay, double beta1, double beta2, double eps) {
    double w = 1, m = 0, v = 0;
    for (int i = 0; i < ZERO_STEPS; i++) {
        const double g = (double)zero_x[i];
        w *= 1 - lr * decay;
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        const double part = m / (1 - pow(beta1, i + 1)), root = sqrt(v / (1 - pow(beta2, i + 1)));
        w -= lr * part / (root + eps);
    }
    return w;
}

TEST(dt_zero_is_accepted_in_every_field_of_optimizers_losses_and_steps) {
    const double lr = 0.1;
    const struct {
        zero_case c;
        double want;
    } all[] = {
        {{"lr", {.kind = DT_OPTIM_SGD, .lr = DT_ZERO}, 0, 0}, 1},
        {{"step's lr", {.kind = DT_OPTIM_SGD, .lr = lr}, DT_ZERO, 0}, 1},
        {{"lr_scale",
          {.kind = DT_OPTIM_SGD, .groups = {{.params = "w", .lr_scale = DT_ZERO}}},
          0,
          0},
         1},
        {{"coefficient", {.kind = DT_OPTIM_SGD, .lr = lr}, 0, DT_ZERO}, 1},
        {{"momentum", {.kind = DT_OPTIM_SGD, .lr = lr, .momentum = DT_ZERO}, 0, 0}, 1},
        {{"defaults", {.lr = lr}, 0, 0}, zero_adam(lr, 0.01, 0.9, 0.999, 1e-8)},
        {{"decay", {.lr = lr, .weight_decay = DT_ZERO}, 0, 0}, zero_adam(lr, 0, 0.9, 0.999, 1e-8)},
        {{"group's decay",
          {.lr = lr, .weight_decay = 0.1, .groups = {{.params = "w", .weight_decay = DT_ZERO}}},
          0,
          0},
         zero_adam(lr, 0, 0.9, 0.999, 1e-8)},
        {{"beta1", {.kind = DT_OPTIM_ADAM, .lr = lr, .beta1 = DT_ZERO}, 0, 0},
         zero_adam(lr, 0, 0, 0.999, 1e-8)},
        {{"beta2", {.kind = DT_OPTIM_ADAM, .lr = lr, .beta2 = DT_ZERO}, 0, 0},
         zero_adam(lr, 0, 0.9, 0, 1e-8)},
        {{"betas", {.kind = DT_OPTIM_ADAM, .lr = lr, .beta1 = DT_ZERO, .beta2 = DT_ZERO}, 0, 0},
         zero_adam(lr, 0, 0, 0, 1e-8)},
        {{"eps", {.kind = DT_OPTIM_ADAM, .lr = lr, .eps = DT_ZERO}, 0, 0},
         zero_adam(lr, 0, 0.9, 0.999, 0)},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const double got = zero_run(&all[i].c);
        CHECK_TEXT(fabs(got - all[i].want) < 1e-6, "%s: %.9g, not %.9g", all[i].c.name, got,
                   all[i].want);
    }
}

/* Of x = (1, -1) with variance 1: exactly x without eps. */
TEST(a_norm_s_eps_and_a_column_s_scale_may_be_zero) {
    dt_ctx *ctx;
    dt_graph *g;
    dt_store *store;
    dt_program *p;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
    const dt_batch_norm_desc plain = {.eps = DT_ZERO, .frozen = true};
    const float in[2] = {1, -1};
    dt_tensor x = dt_input_shared(g, "x", DT_F32, dt_dims(2)), nil = {0};
    dt_tensor rows = dt_input(g, "rows", DT_F32, dt_dims(1));
    dt_tensor y[4] = {dt_layer_norm(x, 1, nil, nil, DT_ZERO), dt_rms_norm(x, 1, nil, DT_ZERO),
                      dt_group_norm(x, 1, nil, nil, DT_ZERO), dt_nn_batch_norm(rows, "bn", &plain)};
    dt_program_desc d = {.batch = 2, .mode = DT_MODE_TRAIN, .outputs = {y[0], y[1], y[2], y[3]}};
    REQUIRE(dt_store_create(g, &(dt_store_desc){.device = "cpu"}, &store) == DT_OK);
    REQUIRE(dt_program_create(store, &d, &p) == DT_OK);
    CHECK(dt_program_write(p, x, in, sizeof in) == DT_OK);
    CHECK(dt_program_write(p, rows, in, sizeof in) == DT_OK);
    CHECK(dt_program_run(p, NULL, NULL) == DT_OK);
    for (int i = 0; i < 4; i++) {
        float out[2] = {0};
        CHECK(dt_program_read(p, y[i], out, sizeof out) == DT_OK);
        CHECK_TEXT(out[0] == in[0] && out[1] == in[1], "norm %d: %.9g %.9g", i, (double)out[0],
                   (double)out[1]);
    }
    dt_ctx_destroy(ctx);
}

TEST(a_column_s_scale_may_be_zero) {
    const uint8_t bytes[4] = {1, 2, 3, 4};
    dt_ctx *ctx;
    dt_graph *g;
    dt_trainer *trainer;
    dt_train_report r;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(1));
    dt_param(g, "w", dt_dims(1), (dt_init){0});
    dt_tensor w = dt_param(g, "v", dt_dims(1), (dt_init){.kind = DT_INIT_CONSTANT, .a = 1});
    dt_trainer_desc d = {
        .loss = dt_mean_loss(dt_mul(x, w)),
        .params = "v",
        .optim = &(dt_optim_desc){.kind = DT_OPTIM_SGD},
        .batch = 4,
        .devices = "cpu",
        .data = {
            .rows = 4,
            .columns = {
                {.input = x, .data = bytes, .dtype = DT_U8, .scale = DT_ZERO, .offset = 0.5f}}}};
    REQUIRE(dt_trainer_create(g, &d, &trainer) == DT_OK);
    CHECK(dt_trainer_step(trainer, &r) == DT_OK);
    CHECK_NEAR(r.loss, 0.5, 0);
    dt_ctx_destroy(ctx);
}

/* ---- coefficients by step */

/* Two losses of the model; a program by itself. */
static uint64_t step_hash(const float *fixed, const double *given, double *loss) {
    train_model m;
    dt_store *store;
    dt_program *p;
    dt_report r = {0};
    uint64_t hash = 0;
    if (!CHECK_TEXT(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 0), "the model"))
        return 0;
    dt_tensor more = dt_mean_loss(dt_square(m.logits));
    dt_program_desc d = {
        .losses = {{m.loss, fixed[0]}, {more, fixed[1]}}, .optim = &m.adam, .batch = 8};
    dt_result result = dt_store_create(m.graph, &(dt_store_desc){.device = "cpu"}, &store);
    if (!result)
        result = dt_program_create(store, &d, &p);
    if (!result)
        result = dt_program_write(p, m.x, m.data.x, 8 * TRAIN_SIDE * TRAIN_SIDE * sizeof(float));
    if (!result)
        result = dt_program_write(p, m.t, m.data.t, 8 * sizeof(int32_t));
    for (int i = 0; i < 3 && !result; i++)
        result = dt_program_run(p, &(dt_step_desc){.coefficients = given}, &r);
    if (!result)
        result = dt_store_state_hash(store, &hash);
    CHECK_TEXT(result == DT_OK, "%s", dt_ctx_error(m.ctx));
    *loss = r.loss;
    const double wrong[][2] = {{1, (double)NAN}, {(double)INFINITY, 1}, {1, -1e39}};
    for (int i = 0; i < 3; i++)
        CHECK(dt_program_run(p, &(dt_step_desc){.coefficients = wrong[i]}, NULL) ==
              DT_ERROR_INVALID);
    dt_ctx_destroy(m.ctx);
    return hash;
}

TEST(coefficients_of_a_step_have_the_bits_of_a_program_made_with_them) {
    double a, b;
    const float fixed[][2] = {{0.25f, 3.0f}, {DT_ZERO, 2.0f}, {-0.5f, DT_ZERO}};
    const double given[][2] = {{0.25, 3.0}, {0.0, 2.0}, {-0.5, 0.0}};
    for (int i = 0; i < 3; i++) {
        const uint64_t want = step_hash(fixed[i], NULL, &a);
        CHECK(step_hash((float[]){1, 1}, given[i], &b) == want);
        CHECK_NEAR(a, b, 0);
    }
    CHECK(step_hash((float[]){1, 1}, (double[]){DT_ZERO, 2}, &a) ==
          step_hash((float[]){1, 1}, (double[]){0, 2}, &b));
}

/* ---- rates and coefficients of a trainer */

typedef struct rate_case {
    const char *devices;
    dt_loss losses[2]; /* coefficients of the description */
    double lr[4];      /* before each step; a negative one: nothing is set */
    double coefficient[2];
    bool set;
} rate_case;

static uint64_t rate_hash(const rate_case *c, double *loss) {
    train_model m;
    dt_trainer *t = NULL;
    dt_train_report r = {0};
    uint64_t hash = 0;
    if (!CHECK_TEXT(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 0), "the model"))
        return 0;
    dt_trainer_desc d = train_desc(&m);
    d.loss = (dt_tensor){0};
    d.losses[0] = (dt_loss){m.loss, c->losses[0].coefficient};
    d.losses[1] = (dt_loss){dt_mean_loss(dt_square(m.logits)), c->losses[1].coefficient};
    d.devices = c->devices;
    d.parallel.batch_slices = 2;
    dt_result result = dt_trainer_create(m.graph, &d, &t);
    for (int i = 0; i < 2 && c->set && !result; i++)
        result = dt_trainer_set_coefficient(t, i, c->coefficient[i]);
    for (int i = 0; i < 4 && !result; i++) {
        if (c->lr[i] >= 0)
            result = dt_trainer_set_lr(t, c->lr[i]);
        if (!result)
            result = dt_trainer_step(t, &r);
    }
    if (!result)
        result = dt_store_hash(dt_trainer_store(t), &hash);
    CHECK_TEXT(result == DT_OK, "%s: %s", c->devices, dt_ctx_error(m.ctx));
    *loss = r.loss;
    dt_ctx_destroy(m.ctx);
    return hash;
}

TEST(a_trainer_s_rate_of_zero_changes_nothing_and_a_negative_one_means_the_optimizer_s_own) {
    double loss;
    rate_case none = {.devices = "cpu", .lr = {0, 0, 0, 0}}, half = none, own = none, as = none;
    memcpy(half.lr, (double[]){0, 0, 0.01, 0}, sizeof half.lr);
    memcpy(own.lr, (double[]){-1, -1, -1, -1}, sizeof own.lr);
    memcpy(as.lr, (double[]){0.01, -1, 0.01, 0.01}, sizeof as.lr);
    const uint64_t still = rate_hash(&none, &loss), moved = rate_hash(&own, &loss);
    CHECK(still != moved && rate_hash(&half, &loss) != still && rate_hash(&as, &loss) == moved);
    none.devices = "cpu:2";
    CHECK(rate_hash(&none, &loss) == still);
}

TEST(a_trainer_s_coefficients_reach_every_replica_and_the_report) {
    double a, b, c;
    const double lr[4] = {-1, -1, -1, -1};
    rate_case made = {.devices = "cpu", .losses = {{.coefficient = DT_ZERO}, {.coefficient = 2}}};
    rate_case set = {.devices = "cpu:2", .coefficient = {0, 2}, .set = true};
    memcpy(made.lr, lr, sizeof lr);
    memcpy(set.lr, lr, sizeof lr);
    const uint64_t want = rate_hash(&made, &a);
    CHECK(rate_hash(&set, &b) == want);
    CHECK_NEAR(a, b, 0);
    set.devices = "cpu", set.coefficient[0] = 1;
    CHECK(rate_hash(&set, &c) != want && c > b);
}

TEST(a_trainer_refuses_rates_and_coefficients_of_nan) {
    train_model m;
    dt_trainer *t;
    REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 0));
    m.adam.groups[0] = (dt_optim_group){.params = "*", .lr_scale = 10};
    dt_trainer_desc d = train_desc(&m);
    d.devices = "cpu";
    REQUIRE(dt_trainer_create(m.graph, &d, &t) == DT_OK);
    const double rates[] = {(double)NAN, (double)INFINITY, -1, 1e39, 1e38};
    for (int i = 0; i < 5; i++) {
        CHECK(dt_trainer_set_lr(t, rates[i]) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(m.ctx), "learning rate");
    }
    CHECK(dt_trainer_set_lr(t, DT_ZERO) == DT_OK);
    CHECK(dt_trainer_set_coefficient(t, 0, (double)NAN) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "finite");
    CHECK(dt_trainer_set_coefficient(t, 1, 1) == DT_ERROR_INVALID);
    CHECK(dt_trainer_set_coefficient(t, -1, 1) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "no such loss");
    CHECK(dt_trainer_step(t, NULL) == DT_OK);
    dt_ctx_destroy(m.ctx);
}

TEST(an_optimizer_s_numbers_are_finite_also_as_f32) {
    train_model m;
    dt_store *store;
    dt_program *p;
    REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 0));
    REQUIRE(dt_store_create(m.graph, &(dt_store_desc){.device = "cpu"}, &store) == DT_OK);
    const dt_optim_desc wrong[] = {
        {.lr = 1e39},
        {.lr = (double)INFINITY},
        {.weight_decay = 1e39},
        {.kind = DT_OPTIM_SGD, .momentum = (double)INFINITY},
        {.kind = DT_OPTIM_SGD, .momentum = 0.9, .dampening = (double)NAN},
        {.eps = 1e39},
        {.clip_norm = (double)INFINITY},
        {.clip_value = 1e39},
        {.beta1 = (double)NAN},
        {.lr = 1e30, .groups = {{.params = "*.bias", .lr_scale = 1e10}}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        dt_program_desc d = {.loss = m.loss, .optim = &wrong[i]};
        CHECK_TEXT(dt_program_create(store, &d, &p) == DT_ERROR_INVALID, "%d was taken", (int)i);
        CHECK_CONTAINS(dt_ctx_error(m.ctx), "optimizer: ");
    }
    dt_program_desc d = {.losses = {{m.loss, INFINITY}}, .optim = &(dt_optim_desc){0}};
    CHECK(dt_program_create(store, &d, &p) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "coefficient");
    dt_ctx_destroy(m.ctx);
}

/* ---- ranks */

typedef struct rate_rank {
    dt_comm *comm;
    bool odd; /* sets others at the steps 1 and 3 */
    dt_result result[5];
    uint64_t hash[6];
    char text[5][256];
} rate_rank;

static void rate_rank_set(dt_trainer *t, int step, bool odd) {
    CHECK(dt_trainer_set_lr(t, odd && step == 1 ? 0.02 : 0.01) == DT_OK);
    CHECK(dt_trainer_set_coefficient(t, 0, odd && step == 3 ? 0.5 : 1) == DT_OK);
}

static void *rate_rank_main(void *arg) {
    rate_rank *r = arg;
    train_model *m = calloc(1, sizeof *m);
    dt_trainer *t = NULL;
    if (!m || !CHECK_TEXT(train_model_make(m, &(dt_ctx_desc){.no_vulkan = true}, 0), "the model"))
        return NULL;
    dt_trainer_desc d = train_desc(m);
    d.devices = "cpu";
    d.comm = r->comm;
    if (CHECK_TEXT(dt_trainer_create(m->graph, &d, &t) == DT_OK, "%s", dt_ctx_error(m->ctx))) {
        dt_store_state_hash(dt_trainer_store(t), &r->hash[0]);
        for (int i = 0; i < 5; i++) {
            rate_rank_set(t, i, r->odd);
            r->result[i] = dt_trainer_step(t, NULL);
            snprintf(r->text[i], sizeof r->text[i], "%s", r->result[i] ? dt_ctx_error(m->ctx) : "");
            dt_store_state_hash(dt_trainer_store(t), &r->hash[i + 1]);
        }
        dt_trainer_destroy(t);
    }
    dt_ctx_destroy(m->ctx);
    free(m);
    return NULL;
}

TEST(ranks_with_different_rates_or_coefficients_get_an_error_and_no_step) {
    dt_comm *comms[2];
    pthread_t other;
    REQUIRE(dt_comm_create_threads(NULL, 2, comms) == DT_OK);
    rate_rank r[2] = {{.comm = comms[0]}, {.comm = comms[1], .odd = true}};
    REQUIRE(pthread_create(&other, NULL, rate_rank_main, &r[1]) == 0);
    rate_rank_main(&r[0]);
    pthread_join(other, NULL);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 5; i++) {
            const bool odd = i == 1 || i == 3;
            CHECK_TEXT(r[k].result[i] == (odd ? DT_ERROR_INVALID : DT_OK), "rank %d, step %d: %s",
                       k, i, r[k].text[i]);
            CHECK((r[k].hash[i] == r[k].hash[i + 1]) == odd);
            CHECK_CONTAINS(r[k].text[i], odd ? "different learning rates" : "");
        }
        dt_comm_destroy(comms[k]);
    }
    CHECK(!memcmp(r[0].hash, r[1].hash, sizeof r[0].hash));
}
