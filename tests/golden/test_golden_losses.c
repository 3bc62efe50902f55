/* Losses against PyTorch's recorded values and gradients (tools/golden/record_golden_losses.py),
 * and terms with weights: the same mean however a batch is cut. */
#include "golden/golden_op.h"

/* ---- Of each element. a, b, w, t: the inputs that are recorded, some with a gradient. */

typedef struct loss_case {
    const char *name, *inputs;
    dt_tensor (*make)(dt_tensor a, dt_tensor b, dt_tensor w, dt_tensor t);
    dt_shape shape; /* of a */
    int t_rank;     /* of t, and of what a loss over the last dimension gives */
    bool t_is_class, w_is_shared;
} loss_case;

#define LOSS(name, expression)                                                                     \
    static dt_tensor name(dt_tensor a, dt_tensor b, dt_tensor w, dt_tensor t) {                    \
        (void)a, (void)b, (void)w, (void)t;                                                        \
        return expression;                                                                         \
    }
#define NONE ((dt_tensor){0})
LOSS(l1, dt_l1(a, b))
LOSS(smooth_l1, dt_smooth_l1(a, b, 1))
LOSS(smooth_l1_half, dt_smooth_l1(a, b, 0.5f))
LOSS(huber, dt_huber(a, b, 1))
LOSS(huber_two, dt_huber(a, b, 2))
LOSS(bce, dt_bce(a, t))
LOSS(bce_logits, dt_bce_with_logits(a, t, NONE))
LOSS(bce_logits_weighted, dt_bce_with_logits(a, t, w))
LOSS(focal, dt_focal(a, t, 0.25f, 2))
LOSS(focal_other, dt_focal(a, t, -1, 1.5f))
LOSS(soft_margin, dt_soft_margin(a, t))
LOSS(multilabel_soft_margin, dt_multilabel_soft_margin(a, t))
LOSS(kl_div, dt_kl_div(a, t, false))
LOSS(kl_div_log, dt_kl_div(a, b, true))
LOSS(soft_cross_entropy, dt_soft_cross_entropy(a, t))
LOSS(each, dt_cross_entropy_each(a, t, NULL))
LOSS(each_more, dt_cross_entropy_each(a, t, &(dt_cross_entropy_desc){2, 0.2f, w}))
LOSS(distillation, dt_distillation(a, t, 3))
LOSS(info_nce, dt_info_nce(a, b, 0.25f))
LOSS(gaussian_nll, dt_gaussian_nll(a, b, w, 0.25f, false))
LOSS(gaussian_nll_full, dt_gaussian_nll(a, b, w, 0.25f, true))
LOSS(poisson_nll, dt_poisson_nll(a, t, true, 1e-8f, false))
LOSS(poisson_nll_full, dt_poisson_nll(a, t, true, 1e-8f, true))
LOSS(poisson_nll_rate, dt_poisson_nll(a, t, false, 1e-8f, false))
LOSS(cosine_embedding, dt_cosine_embedding(a, b, t, 0.1f))
LOSS(margin_ranking, dt_margin_ranking(a, b, t, 0.5f))
LOSS(hinge_embedding, dt_hinge_embedding(a, t, 0.75f))
LOSS(triplet, dt_triplet_margin(a, b, w, NULL))
LOSS(triplet_one, dt_triplet_margin(a, b, w, &(dt_triplet_desc){.p = 1, .margin = 0.5f}))
LOSS(triplet_three_swapped, dt_triplet_margin(a, b, w, &(dt_triplet_desc){.p = 3, .swap = true}))
LOSS(multi_margin, dt_multi_margin(a, t, 1, 1, NONE))
LOSS(multi_margin_two, dt_multi_margin(a, t, 2, 0.5f, w))
LOSS(multilabel_margin, dt_multilabel_margin(a, t))
LOSS(dice, dt_dice(a, t, 1))
LOSS(jaccard, dt_jaccard(a, t, 1))

#define ROW                                                                                        \
    {                                                                                              \
        1, {                                                                                       \
            5                                                                                      \
        }                                                                                          \
    }
static const loss_case cases[] = {
    {"l1", "ab", l1, ROW, 1, false, false},
    {"smooth_l1", "ab", smooth_l1, ROW, 1, false, false},
    {"smooth_l1_half", "ab", smooth_l1_half, ROW, 1, false, false},
    {"huber", "ab", huber, ROW, 1, false, false},
    {"huber_two", "ab", huber_two, ROW, 1, false, false},
    {"bce", "at", bce, ROW, 1, false, false},
    {"bce_ends", "at", bce, {0, {0}}, 0, false, false},
    {"bce_logits", "at", bce_logits, ROW, 1, false, false},
    {"bce_logits_weighted", "atw", bce_logits_weighted, ROW, 1, false, true},
    {"focal", "at", focal, ROW, 1, false, false},
    {"focal_other", "at", focal_other, ROW, 1, false, false},
    {"soft_margin", "at", soft_margin, ROW, 1, false, false},
    {"multilabel_soft_margin", "at", multilabel_soft_margin, ROW, 1, false, false},
    {"kl_div", "at", kl_div, ROW, 1, false, false},
    {"kl_div_log", "ab", kl_div_log, ROW, 1, false, false},
    {"soft_cross_entropy", "at", soft_cross_entropy, ROW, 1, false, false},
    {"each", "at", each, ROW, 0, true, false},
    {"each_more", "atw", each_more, ROW, 0, true, true},
    {"distillation", "at", distillation, ROW, 1, false, false},
    {"info_nce", "ab", info_nce, {2, {4, 5}}, 1, false, false},
    {"gaussian_nll", "abw", gaussian_nll, ROW, 1, false, false},
    {"gaussian_nll_full", "abw", gaussian_nll_full, ROW, 1, false, false},
    {"poisson_nll", "at", poisson_nll, ROW, 1, false, false},
    {"poisson_nll_full", "at", poisson_nll_full, ROW, 1, false, false},
    {"poisson_nll_rate", "at", poisson_nll_rate, ROW, 1, false, false},
    {"cosine_embedding", "abt", cosine_embedding, ROW, 0, false, false},
    {"margin_ranking", "abt", margin_ranking, ROW, 1, false, false},
    {"hinge_embedding", "at", hinge_embedding, ROW, 1, false, false},
    {"triplet", "abw", triplet, ROW, 1, false, false},
    {"triplet_one", "abw", triplet_one, ROW, 1, false, false},
    {"triplet_three_swapped", "abw", triplet_three_swapped, ROW, 1, false, false},
    {"multi_margin", "at", multi_margin, ROW, 0, true, false},
    {"multi_margin_two", "atw", multi_margin_two, ROW, 0, true, true},
    {"multilabel_margin", "at", multilabel_margin, ROW, 1, false, false},
    {"dice", "at", dice, {2, {3, 5}}, 2, false, false},
    {"jaccard", "at", jaccard, {2, {3, 5}}, 2, false, false},
};

static void loss_check(golden *g, const loss_case *c) {
    dt_graph *graph = op_graph(g);
    dt_shape t_shape = c->shape;
    t_shape.rank = c->t_rank;
    leaf leaves[4];
    dt_tensor x[4] = {NONE, NONE, NONE, NONE};
    int count = 0;
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"a", "b", "w", "t"};
        const char *name = names[i];
        if (!strchr(c->inputs, name[0]))
            continue;
        const bool shared = name[0] == 'w' && c->w_is_shared, is_t = name[0] == 't';
        x[i] = shared ? dt_input_shared(graph, name, DT_F32, c->shape)
                      : dt_input(graph, name, is_t && c->t_is_class ? DT_I32 : DT_F32,
                                 is_t ? t_shape : c->shape);
        leaves[count++] = (leaf){name, x[i]};
    }
    char key[64];
    snprintf(key, sizeof key, "ops.%s.y", c->name);
    const golden_array *y = golden_get(g, key);
    dt_tensor loss = c->make(x[0], x[1], x[2], x[3]);
    const dt_shape s = dt_tensor_shape(loss);
    size_t each = 1;
    for (int i = 0; i < s.rank; i++)
        each *= (size_t)s.dim[i];
    if (!y ||
        !test_check(s.rank >= 0, __FILE__, __LINE__, "%s: %s", c->name, dt_graph_error(graph)))
        return;
    op_check(g, c->name, (int)(y->count / each), loss, leaves, count);
}

GOLDEN(every_loss_of_elements_and_its_gradient_is_pytorchs, "losses") {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        loss_check(g, &cases[i]);
}

/* ---- Terms: y is the mean, dx the gradient of the sum */

static void term_check(golden *g, const char *name, int batch, dt_tensor loss, dt_tensor x,
                       dt_tensor t, dt_tensor w) {
    dt_tensor dx = dt_gradient(loss, x);
    if (!OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store)))
        return;
    dt_program *p = golden_program(
        g, (dt_program_desc){.label = name, .loss = loss, .outputs = {dx}, .batch = batch});
    dt_report r = {0};
    if (p && op_write(g, p, x, name, "x") && (!t.id || op_write(g, p, t, name, "t")) &&
        (!w.id || op_write(g, p, w, name, "w")) && OK(g, dt_program_run(p, NULL, &r))) {
        float mean = (float)r.loss;
        op_compare(g, name, "y", &mean, 1);
        op_read(g, p, dx, name, "dx", batch);
    }
    op_end(g);
}

GOLDEN(nll_with_class_weights_and_an_ignored_class_is_pytorchs, "losses") {
    static const char *const names[] = {"nll", "nll_weighted", "nll_ignored"};
    for (int i = 0; i < 3; i++) {
        dt_graph *graph = op_graph(g);
        dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(5));
        dt_tensor t = dt_input(graph, "t", DT_I32, dt_dims());
        dt_tensor w = i ? dt_input_shared(graph, "w", DT_F32, dt_dims(5)) : NONE;
        dt_cross_entropy_desc d = {.class_weights = w, .ignore_index = i == 2 ? 2 : 0};
        term_check(g, names[i], 10, dt_nll(x, t, &d), x, t, w);
    }
}

GOLDEN(a_weighted_mean_divides_by_the_sum_of_the_weights, "losses") {
    dt_graph *graph = op_graph(g);
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(5));
    dt_tensor w = dt_input(graph, "w", DT_F32, dt_dims());
    term_check(g, "weighted", 6, dt_weighted_loss(x, w), x, NONE, w);
}

/* ---- A weighted mean is over the whole job */

#define CUT_ROWS 11

static void cut_train(const char *devices, int batch_slices, int accumulate, float *weights) {
    float x[CUT_ROWS][3], t[CUT_ROWS], w[CUT_ROWS];
    for (int i = 0; i < CUT_ROWS; i++) {
        for (int k = 0; k < 3; k++)
            x[i][k] = (float)sin(i * 3 + k);
        t[i] = (float)cos(i), w[i] = i == 1 || i == 2 ? 0 : 0.25f * (float)(i + 1);
    }
    dt_ctx *ctx;
    dt_graph *graph;
    dt_trainer *trainer;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &graph) == DT_OK);
    dt_tensor in = dt_input(graph, "x", DT_F32, dt_dims(3)),
              target = dt_input(graph, "t", DT_F32, dt_dims(1));
    dt_tensor weight = dt_input(graph, "w", DT_F32, dt_dims());
    dt_tensor y = dt_nn_linear(in, "fc", 1);
    dt_trainer_desc desc = {
        .loss = dt_weighted_loss(dt_huber(y, target, 0.5f), weight),
        .batch = 8, /* the second step has 3 samples, so batch slices differ, some are empty */
        .optim = &(dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 0.5},
        .data = {.rows = CUT_ROWS,
                 .columns = {{.input = in, .data = x, .dtype = DT_F32},
                             {.input = target, .data = t, .dtype = DT_F32},
                             {.input = weight, .data = w, .dtype = DT_F32}}},
        .seed = 3,
        .no_shuffle = true,
        .accumulate = accumulate,
        .parallel.batch_slices = batch_slices,
        .devices = devices};
    if (test_check(dt_trainer_create(graph, &desc, &trainer) == DT_OK, __FILE__, __LINE__, "%s",
                   dt_ctx_error(ctx))) {
        for (int i = 0; i < 4; i++)
            CHECK(dt_trainer_step(trainer, NULL) == DT_OK);
        CHECK(dt_store_read(dt_trainer_store(trainer), 0, DT_VALUE_PARAM, weights, 12) == DT_OK);
    }
    dt_ctx_destroy(ctx);
}

TEST(a_weighted_mean_is_the_same_bits_on_one_two_and_four_replicas) {
    float one[3], two[3], four[3];
    cut_train("cpu", 4, 0, one);
    cut_train("cpu:2", 4, 0, two);
    cut_train("cpu:4", 4, 0, four);
    CHECK(!memcmp(one, two, sizeof one) && !memcmp(one, four, sizeof one));
}

TEST(a_weighted_mean_does_not_depend_on_batch_slices_and_micro_batches) {
    float whole[3], parts[3], batch_slices[3];
    cut_train("cpu", 1, 0, whole);
    cut_train("cpu", 1, 3, parts);
    cut_train("cpu:2", 2, 2, batch_slices);
    for (int i = 0; i < 3; i++) {
        CHECK(fabsf(whole[i] - parts[i]) <= 1e-6f && fabsf(whole[i] - batch_slices[i]) <= 1e-6f);
    }
}

TEST(a_weighted_mean_of_computed_weights_is_refused_where_the_host_needs_the_weight) {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
    double weight = 0;
    float x[2] = {1, -2};
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &graph) == DT_OK);
    dt_tensor in = dt_input(graph, "x", DT_F32, dt_dims());
    dt_tensor w = dt_param(graph, "w", dt_dims(), (dt_init){0});
    dt_tensor loss = dt_weighted_loss(dt_mul(in, w), dt_heaviside(in));
    REQUIRE(dt_store_create(graph, &(dt_store_desc){.device = "cpu"}, &store) == DT_OK);
    REQUIRE(dt_program_create(store,
                              &(dt_program_desc){.loss = loss, .batch = 2, .gradients = true},
                              &program) == DT_OK);
    CHECK(dt_program_write(program, in, x, sizeof x) == DT_OK);
    CHECK(dt_program_add_loss_weights(program, &weight) == DT_ERROR_UNSUPPORTED);
    dt_report report;
    CHECK(dt_program_run(program, NULL, &report) == DT_OK && report.loss_weight[0] == 1);
    dt_ctx_destroy(ctx);
}

TEST(a_weighted_mean_of_no_elements_has_weight_0_and_changes_no_other) {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
    double weight[2] = {0, 0};
    const float x[3] = {1, -2, 4};
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &graph) == DT_OK);
    dt_tensor none = dt_input(graph, "none", DT_F32, dt_dims(0));
    dt_tensor in = dt_input(graph, "x", DT_F32, dt_dims());
    dt_tensor y = dt_mul(in, dt_param(graph, "w", dt_dims(), (dt_init){DT_INIT_CONSTANT, 2, 0}));
    REQUIRE(dt_store_create(graph, &(dt_store_desc){.device = "cpu"}, &store) == DT_OK);
    const dt_program_desc desc = {
        .losses = {{dt_weighted_loss(none, dt_square(none)), 1}, {dt_mean_loss(y), 1}},
        .batch = 3,
        .gradients = true};
    REQUIRE(dt_program_create(store, &desc, &program) == DT_OK);
    CHECK(dt_program_write(program, in, x, sizeof x) == DT_OK);
    CHECK(dt_program_write(program, none, x, 0) == DT_OK);
    CHECK(dt_program_add_loss_weights(program, weight) == DT_OK && weight[0] == 0 &&
          weight[1] == 3);
    dt_report report;
    float slope = 0;
    CHECK(dt_program_run(program, NULL, &report) == DT_OK && report.loss == 2);
    CHECK(dt_store_read(store, 0, DT_VALUE_GRADIENT, &slope, 4) == DT_OK && slope == 1);
    dt_ctx_destroy(ctx);
}

TEST(a_loss_of_tensors_of_two_shapes_names_the_shapes) {
    dt_ctx *ctx;
    dt_graph *graph;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &graph) == DT_OK);
    dt_tensor y = dt_input(graph, "y", DT_F32, dt_dims(1)),
              t = dt_input(graph, "t", DT_F32, dt_dims());
    CHECK(!dt_huber(y, t, 1).id);
    CHECK(
        strstr(dt_graph_error(graph), "huber: input 2 [B] must have the shape of input 1, [B, 1]"));
    dt_ctx_destroy(ctx);
}
