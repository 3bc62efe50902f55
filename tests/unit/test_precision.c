/* .precision as an application meets it: what is refused, and what keeps its type and its bits.
 * Models of many kinds have nearly the values and gradients of f32 in mixed precision. */
#include "dtrain.h"
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 6, WIDTH = 8, STEPS = 5, CLASSES = 3 };

typedef struct model {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, y; /* y: an output */
    dt_store *store;
    dt_program *program;
} model;

static dt_tensor weights(dt_graph *g, const char *name, int64_t a, int64_t b) {
    return dt_param(g, name, dt_dims(a, b), (dt_init){DT_INIT_UNIFORM, -0.5f, 0.5f});
}

static dt_tensor make_mlp(dt_graph *g, dt_tensor x) {
    (void)g;
    return dt_nn_linear(dt_gelu(dt_nn_linear(x, "in", 16)), "out", WIDTH);
}
static dt_tensor make_wide(dt_graph *g, dt_tensor x) { /* products round the weights themselves */
    (void)g;
    x = dt_gelu(dt_nn_linear(dt_gelu(dt_nn_linear(x, "in", 70)), "hidden", 65));
    return dt_nn_linear(x, "out", WIDTH);
}
static dt_tensor make_tied(dt_graph *g, dt_tensor x) {
    const dt_tensor w = weights(g, "w", WIDTH, WIDTH);
    const dt_tensor h = dt_tanh(dt_linear(x, w, (dt_tensor){0}));
    return dt_add(dt_matmul(h, w), dt_mul(x, dt_mean(w, dt_dims(), false)));
}
static dt_tensor make_frozen(dt_graph *g, dt_tensor x) {
    const dt_tensor w = dt_freeze(weights(g, "w", WIDTH, WIDTH));
    return dt_nn_linear(dt_relu(dt_linear(x, w, (dt_tensor){0})), "out", WIDTH);
}
static dt_tensor make_images(dt_graph *g, dt_tensor x) {
    const dt_conv_layer_desc d = {.conv = {.padding = {1, 1}}, .no_bias = true};
    (void)g;
    x = dt_nn_conv2d(dt_reshape(x, dt_dims(1, STEPS, WIDTH)), "conv", 4, 3, &d);
    x = dt_relu(dt_nn_batch_norm(x, "norm", NULL));
    x = dt_max_pool2d(x, &(dt_pool_desc){.kernel = {2, 2}});
    return dt_nn_linear(dt_flatten(x), "out", WIDTH);
}
static dt_tensor make_gru(dt_graph *g, dt_tensor x) {
    (void)g;
    return dt_nn_linear(dt_nn_gru(x, "gru", 12, NULL).y, "out", WIDTH);
}
static dt_tensor make_lstm(dt_graph *g, dt_tensor x) {
    (void)g;
    return dt_nn_linear(dt_nn_lstm(x, "lstm", 12, NULL).y, "out", WIDTH);
}
static dt_tensor make_attention(dt_graph *g, dt_tensor x) {
    const dt_attention_layer_desc d = {.attention = {.causal = true}};
    (void)g;
    const dt_tensor y = dt_nn_layer_norm(x, "norm", 1);
    return dt_add(x, dt_nn_multi_head_attention(y, y, "attention", 2, &d));
}
static dt_tensor make_recompute(dt_graph *g, dt_tensor x) {
    (void)g;
    x = dt_recompute(dt_silu(dt_nn_linear(x, "in", 16)));
    return dt_nn_linear(dt_recompute(dt_nn_rms_norm(x, "norm", 1)), "out", WIDTH);
}
static dt_tensor make_slope(dt_graph *g, dt_tensor x) { /* a gradient of a gradient */
    const dt_tensor y = dt_tanh(dt_nn_linear(x, "in", WIDTH));
    return dt_gradient(dt_linear(y, weights(g, "w", WIDTH, WIDTH), (dt_tensor){0}), x);
}
static dt_tensor make_slope_of_attention(dt_graph *g, dt_tensor x) {
    const dt_tensor q = dt_linear(x, weights(g, "q", WIDTH, WIDTH), (dt_tensor){0});
    const dt_tensor h = dt_reshape(q, dt_dims(1, STEPS, WIDTH));
    return dt_gradient(dt_square(dt_attention(h, h, h, NULL)), x);
}
static dt_tensor make_16_bits(dt_graph *g, dt_tensor x) { /* types that the application chose */
    const dt_tensor a = dt_cast(x, DT_BF16), b = dt_cast(x, DT_F16);
    const dt_tensor w = dt_cast(weights(g, "w", WIDTH, WIDTH), DT_BF16);
    const dt_tensor v = dt_cast(weights(g, "v", WIDTH, WIDTH), DT_F16);
    const dt_tensor bias = dt_cast(dt_param(g, "bias", dt_dims(WIDTH), (dt_init){0}), DT_F16);
    return dt_add(dt_cast(dt_linear(a, w, (dt_tensor){0}), DT_F32),
                  dt_cast(dt_tanh(dt_linear(b, v, bias)), DT_F32));
}

static const struct kind {
    const char *name;
    dt_tensor (*make)(dt_graph *g, dt_tensor x);
    double most; /* error of a gradient, of its norm */
} kinds[] = {
    {"mlp", make_mlp, 0.02},
    {"wide layers", make_wide, 0.02},
    {"tied weights", make_tied, 0.02},
    {"frozen weights", make_frozen, 0.02},
    /* PyTorch's: 0.16 at most of 30 seeds, where rounding moves a maximum of the pool. */
    {"convolution and batch norm", make_images, 0.15},
    {"GRU", make_gru, 0.02},
    {"LSTM", make_lstm, 0.02},
    {"attention", make_attention, 0.02},
    {"recomputation", make_recompute, 0.02},
    {"a gradient of a gradient", make_slope, 0.03},
    {"a gradient of attention's", make_slope_of_attention, 0.05},
    {"types of the application", make_16_bits, 0.03},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static float input[BATCH * STEPS * WIDTH];

static dt_dtype model_parameters; /* what stores keep them as */
static int model_steps = STEPS;

static bool model_open(model *m, dt_tensor (*make)(dt_graph *g, dt_tensor x)) {
    *m = (model){0};
    for (int i = 0; i < BATCH * STEPS * WIDTH; i++)
        input[i] = (float)((i * 37 + i / 7) % 41) / 20 - 1;
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &m->ctx) ||
        dt_graph_create(m->ctx, &m->graph))
        return false;
    m->x = dt_input(m->graph, "x", DT_F32, dt_dims(model_steps, WIDTH));
    m->y = make(m->graph, m->x);
    const dt_store_desc store = {.device = "cpu", .seed = 3, .parameter_dtype = model_parameters};
    return dt_store_create(m->graph, &store, &m->store) == DT_OK;
}

static dt_result model_run(model *m, const dt_program_desc *desc, dt_report *report) {
    dt_result result = dt_program_create(m->store, desc, &m->program);
    if (!result)
        result = dt_program_write(m->program, m->x, input, sizeof input);
    return result ? result : dt_program_run(m->program, &(dt_step_desc){.step = 1}, report);
}

static double distance(const float *a, const float *b, size_t n) {
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)b[i] * (double)b[i];
    }
    return sqrt(off / (all > 0 ? all : 1));
}

static void check_gradients(const struct kind *kind, model *mixed, model *plain) {
    for (int i = 0; i < dt_store_param_count(plain->store); i++) {
        static float a[8192], b[8192];
        dt_param_info info;
        dt_store_get_param(plain->store, i, &info);
        size_t n = 1;
        for (int k = 0; k < info.shape.rank; k++)
            n *= (size_t)info.shape.dim[k];
        if (dt_store_read(plain->store, i, DT_VALUE_GRADIENT, b, n * 4))
            continue; /* frozen, or a buffer */
        CHECK(dt_store_read(mixed->store, i, DT_VALUE_GRADIENT, a, n * 4) == DT_OK);
        const double off = distance(a, b, n);
        test_check(off <= kind->most, __FILE__, __LINE__, "%s: the gradient of %s is off by %.3g",
                   kind->name, info.name, off);
    }
}

TEST(models_of_all_kinds_have_nearly_the_gradients_of_f32_in_mixed_precision) {
    for (int i = 0; i < KINDS; i++) {
        model m[2];
        dt_report report[2];
        for (int k = 0; k < 2; k++) {
            REQUIRE(model_open(&m[k], kinds[i].make));
            const dt_program_desc desc = {
                .loss = dt_mean_loss(dt_mul(dt_sigmoid(m[k].y), dt_exp(m[k].y))),
                .outputs = {m[k].y},
                .batch = BATCH,
                .gradients = true,
                .precision = k ? DT_PRECISION_F32 : DT_PRECISION_BF16};
            test_check(model_run(&m[k], &desc, &report[k]) == DT_OK, __FILE__, __LINE__, "%s: %s",
                       kinds[i].name, dt_ctx_error(m[k].ctx));
        }
        CHECK_NEAR(report[0].loss_sum[0], report[1].loss_sum[0],
                   0.01 * fabs(report[1].loss_sum[0]));
        CHECK(report[0].loss_sum[0] != report[1].loss_sum[0]);
        check_gradients(&kinds[i], &m[0], &m[1]);
        dt_ctx_destroy(m[0].ctx);
        dt_ctx_destroy(m[1].ctx);
    }
}

static dt_tensor make_norms(dt_graph *g, dt_tensor x) {
    (void)g;
    x = dt_nn_rms_norm(dt_nn_linear(dt_nn_layer_norm(x, "a", 1), "in", 16), "b", 1);
    return dt_nn_linear(dt_nn_group_norm(x, "c", 1), "out", WIDTH);
}

static int norm_kind;
static dt_tensor make_norm(dt_graph *g, dt_tensor x) {
    (void)g;
    x = dt_nn_linear(x, "trunk", 16);
    x = norm_kind == 0   ? dt_nn_layer_norm(x, "trunk.norm", 1)
        : norm_kind == 1 ? dt_nn_rms_norm(x, "trunk.norm", 1)
        : norm_kind == 2 ? dt_nn_group_norm(x, "trunk.norm", 1)
                         : dt_nn_batch_norm(x, "trunk.norm", NULL);
    return dt_nn_linear(x, "head", WIDTH);
}

/* A trunk that is not trained keeps nothing that the norm reads, so its result is kept. */
TEST(a_norm_in_16_bits_is_computed_again_with_the_same_bits_if_its_operands_are_kept) {
    for (norm_kind = 0; norm_kind < 4; norm_kind++) {
        static float got[2][16 * WIDTH];
        for (int k = 0; k < 2; k++) {
            model m;
            dt_program_info info;
            REQUIRE(model_open(&m, make_norm));
            const dt_program_desc desc = {.loss = dt_mean_loss(dt_square(m.y)),
                                          .batch = BATCH,
                                          .gradients = true,
                                          .params = k ? "head.*" : NULL,
                                          .precision = DT_PRECISION_BF16};
            REQUIRE(model_run(&m, &desc, NULL) == DT_OK);
            dt_program_get_info(m.program, &info);
            test_check(info.launches_recomputed == !k, __FILE__, __LINE__, "norm %d: %d launches",
                       norm_kind, info.launches_recomputed);
            CHECK(dt_store_read(m.store, dt_store_find(m.store, "head.weight"), DT_VALUE_GRADIENT,
                                got[k], sizeof got[k]) == DT_OK);
            dt_ctx_destroy(m.ctx);
        }
        CHECK(memcmp(got[0], got[1], sizeof got[0]) == 0);
    }
}

TEST(models_of_all_kinds_train_with_bf16_parameters_in_mixed_precision) {
    const dt_optim_desc adamw = {.kind = DT_OPTIM_ADAMW, .lr = 0.001};
    for (int i = 0; i <= KINDS; i++) {
        model m;
        dt_report report;
        model_parameters = DT_BF16;
        const bool open = model_open(&m, i < KINDS ? kinds[i].make : make_norms);
        model_parameters = DT_F32;
        REQUIRE(open);
        const dt_program_desc desc = {.loss = dt_mean_loss(dt_square(m.y)),
                                      .batch = BATCH,
                                      .optim = &adamw,
                                      .precision = DT_PRECISION_BF16};
        test_check(model_run(&m, &desc, &report) == DT_OK, __FILE__, __LINE__, "%s: %s",
                   i < KINDS ? kinds[i].name : "norms", dt_ctx_error(m.ctx));
        dt_ctx_destroy(m.ctx);
    }
}

TEST(a_precision_is_f32_or_bf16) {
    model m;
    dt_trainer *trainer;
    REQUIRE(model_open(&m, make_mlp));
    const dt_program_desc desc = {.outputs = {m.y}, .precision = (dt_precision)7};
    CHECK(dt_program_create(m.store, &desc, &m.program) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx),
                   ".precision is 7; it must be DT_PRECISION_F32 or DT_PRECISION_BF16");
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.1};
    const dt_trainer_desc job = {
        .loss = dt_mean_loss(m.y),
        .optim = &sgd,
        .data = {.rows = 6, .columns = {{.input = m.x, .data = input, .dtype = DT_F32}}},
        .precision = (dt_precision)7};
    CHECK(dt_trainer_create(m.graph, &job, &trainer) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), ".precision is 7");
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "DT_PRECISION_F32 or DT_PRECISION_BF16");
    dt_ctx_destroy(m.ctx);
}

static dt_tensor make_no_product(dt_graph *g, dt_tensor x) {
    return dt_softmax(
        dt_mul(dt_gelu(x), dt_param(g, "w", dt_dims(WIDTH), (dt_init){DT_INIT_UNIFORM, -1, 1})),
        -1);
}

TEST(a_model_without_a_product_has_the_bits_of_f32_in_mixed_precision) {
    static float got[2][BATCH * STEPS * WIDTH];
    uint64_t hash[2];
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.1};
    for (int k = 0; k < 2; k++) {
        model m;
        REQUIRE(model_open(&m, make_no_product));
        const dt_program_desc desc = {.loss = dt_mean_loss(dt_square(m.y)),
                                      .outputs = {m.y},
                                      .batch = BATCH,
                                      .optim = &sgd,
                                      .precision = k ? DT_PRECISION_BF16 : DT_PRECISION_F32};
        REQUIRE(model_run(&m, &desc, NULL) == DT_OK);
        CHECK(dt_program_read(m.program, m.y, got[k], sizeof got[k]) == DT_OK);
        CHECK(dt_store_hash(m.store, &hash[k]) == DT_OK);
        dt_ctx_destroy(m.ctx);
    }
    CHECK(memcmp(got[0], got[1], sizeof got[0]) == 0);
    CHECK(hash[0] == hash[1]);
}

static dt_tensor make_low_output(dt_graph *g, dt_tensor x) { /* exp is computed in f32 */
    const dt_tensor h = dt_linear(x, weights(g, "w", WIDTH, WIDTH), (dt_tensor){0});
    return dt_exp(dt_cast(h, DT_BF16));
}

/* Of heads of 32 over `positions`, with a gradient. */
static uint64_t transients_of_attention(int64_t positions, dt_precision precision) {
    model m = {0};
    dt_program_info info = {0};
    CHECK(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &m.ctx) == DT_OK);
    CHECK(dt_graph_create(m.ctx, &m.graph) == DT_OK);
    m.x = dt_input(m.graph, "x", DT_F32, dt_dims(positions, 64));
    for (int i = 0; i < 4; i++) {
        const dt_attention_layer_desc d = {.attention = {.causal = true}};
        const char *name = (const char *[]){"a", "b", "c", "d"}[i];
        m.y = dt_nn_multi_head_attention(i ? m.y : m.x, i ? m.y : m.x, name, 2, &d);
    }
    CHECK(dt_store_create(m.graph, &(dt_store_desc){.device = "cpu"}, &m.store) == DT_OK);
    const dt_program_desc desc = {.loss = dt_mean_loss(m.y),
                                  .optim = &(dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 0.1},
                                  .batch = 4,
                                  .precision = precision};
    if (dt_program_create(m.store, &desc, &m.program) == DT_OK)
        dt_program_get_info(m.program, &info);
    dt_program_destroy(m.program);
    dt_store_destroy(m.store);
    dt_graph_destroy(m.graph);
    dt_ctx_destroy(m.ctx);
    return info.transient_bytes;
}

TEST(attention_keeps_its_results_in_16_bits_for_the_backward_pass) {
    const uint64_t f32 = transients_of_attention(128, DT_PRECISION_F32);
    const uint64_t bf16 = transients_of_attention(128, DT_PRECISION_BF16);
    test_check(f32 && bf16 * 100 <= f32 * 60, __FILE__, __LINE__, "%llu of %llu bytes",
               (unsigned long long)bf16, (unsigned long long)f32);
}

TEST(outputs_keep_the_type_of_the_graph_in_mixed_precision) {
    model m;
    uint16_t low[BATCH * STEPS * WIDTH];
    REQUIRE(model_open(&m, make_low_output));
    const dt_program_desc desc = {.outputs = {m.y}, .batch = BATCH, .precision = DT_PRECISION_BF16};
    REQUIRE(model_run(&m, &desc, NULL) == DT_OK);
    CHECK(dt_program_read(m.program, m.y, low, sizeof low) == DT_OK);
    for (int i = 0; i < BATCH * STEPS * WIDTH; i++)
        CHECK(low[i] > 0x3e00 && low[i] < 0x4200); /* 0.125 to 32 */
    dt_ctx_destroy(m.ctx);
}

TEST(a_nan_in_mixed_precision_is_named_and_the_weights_stay) {
    model m;
    uint64_t before, after;
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.1};
    REQUIRE(model_open(&m, make_mlp));
    const dt_tensor log = dt_log(dt_affine(m.y, 1, -1000));
    const dt_program_desc desc = {
        .loss = dt_mean_loss(log), .batch = BATCH, .optim = &sgd, .precision = DT_PRECISION_BF16};
    CHECK(dt_store_hash(m.store, &before) == DT_OK);
    CHECK(model_run(&m, &desc, NULL) == DT_ERROR_NUMERIC);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "log");
    input[3] = NAN;
    CHECK(dt_program_write(m.program, m.x, input, sizeof input) == DT_OK);
    CHECK(dt_program_run(m.program, NULL, NULL) == DT_ERROR_NUMERIC);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "input 'x' holds a NaN");
    CHECK(dt_store_hash(m.store, &after) == DT_OK && before == after);
    dt_ctx_destroy(m.ctx);
}

/* dL/dy is 1/256, which bf16 has: once by a loss, once written by the host. */
TEST(gradients_of_the_host_are_those_of_a_loss_in_mixed_precision) {
    static float ones[BATCH * STEPS * WIDTH], got[2][WIDTH * 16];
    for (int k = 0; k < 2; k++) {
        model m;
        dt_step_state state = DT_STEP_READY;
        REQUIRE(model_open(&m, make_mlp));
        dt_program_desc desc = {
            .outputs = {m.y}, .batch = BATCH, .gradients = true, .precision = DT_PRECISION_BF16};
        if (k)
            desc.host_gradients[0] = m.y;
        else
            desc.losses[0] = (dt_loss){dt_mean_loss(m.y), BATCH * STEPS * WIDTH / 256.0f};
        REQUIRE(dt_program_create(m.store, &desc, &m.program) == DT_OK);
        REQUIRE(dt_program_write(m.program, m.x, input, sizeof input) == DT_OK);
        for (int i = 0; i < BATCH * STEPS * WIDTH; i++)
            ones[i] = 1.0f / 256;
        REQUIRE(dt_program_begin(m.program, NULL) == DT_OK);
        for (bool first = true; state != DT_STEP_DONE; first = false) {
            REQUIRE(dt_program_advance(m.program, &state) == DT_OK);
            if (k && first && state == DT_STEP_READY)
                CHECK(dt_program_write_gradient(m.program, m.y, ones, sizeof ones) == DT_OK);
        }
        test_check(dt_program_end(m.program, NULL) == DT_OK, __FILE__, __LINE__, "%s",
                   dt_ctx_error(m.ctx));
        CHECK(dt_store_read(m.store, dt_store_find(m.store, "in.weight"), DT_VALUE_GRADIENT, got[k],
                            sizeof got[k]) == DT_OK);
        dt_ctx_destroy(m.ctx);
    }
    for (int i = 0; i < WIDTH * 16; i++)
        CHECK(got[0][i] == got[1][i]);
}

/* Fewer steps: once as .shapes, once of a graph that was made with them. */
TEST(programs_at_other_shapes_have_the_bits_of_a_graph_of_these_in_mixed_precision) {
    static float got[2][BATCH * 3 * WIDTH];
    for (int i = 0; i < KINDS; i++) {
        uint64_t hash[2];
        for (int k = 0; k < 2; k++) {
            const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.1};
            model m;
            if (kinds[i].make == make_images || kinds[i].make == make_slope ||
                kinds[i].make == make_slope_of_attention)
                continue; /* made for STEPS, as dt_gradient's first gradient is */
            model_steps = k ? 3 : STEPS;
            const bool open = model_open(&m, kinds[i].make);
            model_steps = STEPS;
            REQUIRE(open);
            dt_program_desc desc = {.loss = dt_mean_loss(dt_square(m.y)),
                                    .outputs = {m.y},
                                    .batch = BATCH,
                                    .optim = &sgd,
                                    .precision = DT_PRECISION_BF16};
            if (!k)
                desc.shapes[0] = (dt_input_shape){m.x, dt_dims(3, WIDTH)};
            test_check(!dt_program_create(m.store, &desc, &m.program), __FILE__, __LINE__, "%s: %s",
                       kinds[i].name, dt_ctx_error(m.ctx));
            CHECK(!dt_program_write(m.program, m.x, input, sizeof got[k]));
            CHECK(!dt_program_run(m.program, &(dt_step_desc){.step = 1}, NULL));
            CHECK(!dt_program_read(m.program, m.y, got[k], sizeof got[k]));
            CHECK(!dt_store_hash(m.store, &hash[k]));
            test_check(!k || (hash[0] == hash[1] && !memcmp(got[0], got[1], sizeof got[0])),
                       __FILE__, __LINE__, "%s", kinds[i].name);
            dt_ctx_destroy(m.ctx);
        }
    }
}

/* ---- lengths and sizes */

typedef struct sums { /* y = x w^T and dL/dw of L = mean(y), of positive numbers */
    int rows, length;
    float x_size, w_size;
} sums;

static float sums_value(int i, int j, float size) {
    return size * (0.5f + (float)((i * 131 + j * 71 + i * j) % 97) / 97);
}

static void sums_check(const sums *s, model *m, const float *got_y, const float *got_dw) {
    double off[2] = {0}, all[2] = {0};
    for (int i = 0; i < s->rows; i++) {
        double y = 0;
        for (int k = 0; k < s->length; k++)
            y += (double)sums_value(i, k, s->x_size) * (double)sums_value(3, k, s->w_size);
        off[0] += ((double)got_y[i] - y) / y * (((double)got_y[i] - y) / y);
        all[0]++;
    }
    for (int k = 0; k < s->length; k++) {
        double dw = 0;
        for (int i = 0; i < s->rows; i++)
            dw += (double)sums_value(i, k, s->x_size) / s->rows;
        off[1] += ((double)got_dw[k] - dw) / dw * (((double)got_dw[k] - dw) / dw);
        all[1]++;
    }
    for (int i = 0; i < 2; i++)
        test_check(sqrt(off[i] / all[i]) <= 0x1.8p-8, __FILE__, __LINE__,
                   "%d rows of %d, of %g and %g: %s is off by %.3g (%s)", s->rows, s->length,
                   (double)s->x_size, (double)s->w_size, i ? "the gradient" : "the value",
                   sqrt(off[i] / all[i]), dt_ctx_error(m->ctx));
}

static void sums_run(const sums *s) {
    model m = {0};
    float *x = malloc(sizeof *x * (size_t)(s->rows * s->length)),
          *y = malloc(sizeof *y * (size_t)s->rows), *w = malloc(sizeof *w * (size_t)s->length);
    REQUIRE(x && y && w && !dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &m.ctx));
    REQUIRE(!dt_graph_create(m.ctx, &m.graph));
    m.x = dt_input(m.graph, "x", DT_F32, dt_dims(s->length));
    m.y = dt_linear(m.x, weights(m.graph, "w", 1, s->length), (dt_tensor){0});
    for (int i = 0; i < s->rows * s->length; i++)
        x[i] = sums_value(i / s->length, i % s->length, s->x_size);
    for (int k = 0; k < s->length; k++)
        w[k] = sums_value(3, k, s->w_size);
    const dt_program_desc desc = {.loss = dt_mean_loss(m.y),
                                  .outputs = {m.y},
                                  .batch = s->rows,
                                  .gradients = true,
                                  .precision = DT_PRECISION_BF16};
    const size_t bytes = sizeof *w * (size_t)s->length;
    REQUIRE(!dt_store_create(m.graph, &(dt_store_desc){.device = "cpu"}, &m.store));
    REQUIRE(!dt_store_write(m.store, 0, DT_VALUE_PARAM, w, bytes));
    REQUIRE(!dt_program_create(m.store, &desc, &m.program));
    CHECK(!dt_program_write(m.program, m.x, x, bytes * (size_t)s->rows));
    CHECK(!dt_program_run(m.program, NULL, NULL));
    CHECK(!dt_program_read(m.program, m.y, y, sizeof *y * (size_t)s->rows));
    CHECK(!dt_store_read(m.store, 0, DT_VALUE_GRADIENT, w, bytes));
    sums_check(s, &m, y, w);
    dt_ctx_destroy(m.ctx);
    free(x);
    free(y);
    free(w);
}

TEST(sums_of_every_length_and_size_are_made_in_f32_in_mixed_precision) {
    static const int lengths[] = {1, 2, 7, 31, 64, 257, 1000, 4097};
    static const float sizes[][2] = {{1, 1}, {1e18f, 1e-18f}, {1e28f, 1e4f}, {1e-30f, 1e-4f}};
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 4; k++) {
            sums_run(&(sums){1 + 3 * k, lengths[i], sizes[k][0], sizes[k][1]});
            sums_run(&(sums){lengths[i], 1 + 4 * k, sizes[k][0], sizes[k][1]});
        }
}
