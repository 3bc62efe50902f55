/* What a newcomer does wrong, and reads then: each mistake is an error that names what is meant, in
 * the words of the caller's program. */
#include "dtrain.h"

#include "harness.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* ---- A small model, and a graph to make mistakes in */

typedef struct desk {
    dt_ctx *ctx;
    dt_graph *graph, *other;
    dt_tensor x, t, y, loss; /* [B, 3] -> fc -> [B, 2] */
    dt_store *store;
    dt_program *train;
} desk;

static void desk_open(desk *d) {
    *d = (desk){0};
    CHECK(!dt_ctx_create(NULL, &d->ctx));
    CHECK(!dt_graph_create(d->ctx, &d->graph));
    CHECK(!dt_graph_create(d->ctx, &d->other));
    d->x = dt_input(d->graph, "x", DT_F32, dt_dims(3));
    d->t = dt_input(d->graph, "t", DT_I32, dt_dims());
    d->y = dt_nn_linear(d->x, "fc", 2);
    d->loss = dt_cross_entropy(d->y, d->t, NULL);
}

static void desk_train(desk *d) {
    dt_program_desc desc = {
        .loss = d->loss, .batch = 2, .optim = &(dt_optim_desc){.kind = DT_SGD, .lr = 0.1}};
    CHECK(!dt_store_create(d->graph, &(dt_store_desc){.device = "cpu"}, &d->store));
    CHECK(!dt_program_create(d->store, &desc, &d->train));
}

static dt_result desk_step(desk *d) {
    const float x[6] = {1, 2, 3, 4, 5, 6};
    const int32_t t[2] = {0, 1};
    CHECK(!dt_program_write(d->train, d->x, x, sizeof x));
    CHECK(!dt_program_write(d->train, d->t, t, sizeof t));
    return dt_program_run(d->train, NULL, NULL);
}

static const char *desk_error(const desk *d) {
    const char *error = dt_graph_error(d->graph);
    return error ? error : "no error";
}

static bool is_nil(dt_tensor x) {
    return dt_tensor_shape(x).rank == -1;
}

/* ---- Going on after a wrong op */

TEST(a_wrong_op_is_cleared_and_a_trained_graph_takes_new_ones) {
    desk d;
    dt_program *program = NULL;
    float out[4], want[4];
    desk_open(&d);
    desk_train(&d);
    CHECK(!desk_step(&d));
    dt_tensor wrong = dt_add(d.y, d.x);
    CHECK(is_nil(wrong) && is_nil(dt_relu(d.y)));
    CHECK_CONTAINS(desk_error(&d), "do not broadcast");
    CHECK(!desk_step(&d)); /* what exists never knew of it */
    CHECK(dt_program_create(d.store, &(dt_program_desc){.outputs = {d.y}}, &program) ==
          DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(d.ctx), "dt_graph_clear_error");

    dt_graph_clear_error(d.graph);
    CHECK(!dt_graph_error(d.graph));
    dt_tensor probability = dt_softmax(d.y, -1);
    dt_program_desc desc = {.outputs = {d.y, probability}, .batch = 2};
    CHECK(!dt_program_create(d.store, &desc, &program));
    CHECK(program && !dt_program_write(program, d.x, (float[]){1, 2, 3, 4, 5, 6}, 24));
    CHECK(program && !dt_program_run(program, NULL, NULL));
    CHECK(program && !dt_program_read(program, probability, out, sizeof out));
    CHECK(program && !dt_program_read(program, d.y, want, sizeof want));
    CHECK_NEAR(out[0], 1 / (1 + exp((double)(want[1] - want[0]))), 1e-6);
    CHECK(!desk_step(&d));
    dt_graph_clear_error(d.graph);
    dt_graph_clear_error(NULL);
    CHECK(is_nil(dt_add(d.y, wrong))); /* what it gave stays nil, and is told where it is used */
    CHECK_CONTAINS(desk_error(&d), "input 2 is nil");
    dt_ctx_destroy(d.ctx);
}

/* Each makes parameters before the op that fails, but for a name of its own. */
static dt_tensor desk_layer(const desk *d, int kind, const char *name, bool wrong) {
    dt_tensor image = dt_reshape(d->x, dt_dims(3, 1, 1)), line = dt_reshape(d->x, dt_dims(3, 1));
    dt_tensor number = wrong ? d->t : d->x; /* i32 in the place of f32 */
    dt_tensor pixel = dt_reshape(dt_cast(d->x, wrong ? DT_I32 : DT_F32), dt_dims(3, 1, 1));
    const dt_conv_layer_desc conv = {.conv = {.stride = {wrong ? -1 : 1, 1}}};
    switch (kind) {
    case 0: return dt_nn_linear(wrong ? dt_reshape(number, dt_dims(1)) : number, name, 2);
    case 1: return dt_nn_embedding(wrong ? d->x : d->t, name, 5, 2);
    case 2: return dt_nn_conv2d(image, name, 2, 1, &conv);
    case 3: return dt_nn_conv1d(line, name, 2, 1, &conv);
    case 4: return dt_nn_conv_transpose2d(image, name, 2, 1, &conv);
    case 5: return dt_nn_batch_norm(pixel, name, NULL);
    case 6: return dt_nn_layer_norm(pixel, name, 1);
    case 7: return dt_nn_group_norm(image, name, wrong ? 2 : 1);
    default: return dt_nn_rms_norm(pixel, name, 1);
    }
}

TEST(a_layer_that_failed_leaves_its_name_free) {
    for (int kind = 0; kind < 9; kind++) {
        desk d;
        dt_store *store = NULL;
        desk_open(&d);
        CHECK(is_nil(desk_layer(&d, kind, "layer", true)));
        CHECK(dt_graph_error(d.graph) != NULL);
        dt_graph_clear_error(d.graph);
        CHECK(!is_nil(desk_layer(&d, kind, "layer", false)));
        CHECK_STR(desk_error(&d), "no error");
        CHECK(!dt_store_create(d.graph, &(dt_store_desc){.device = "cpu"}, &store));
        CHECK(dt_store_find(store, "layer.weight") == 2); /* behind fc's two */
        dt_ctx_destroy(d.ctx);
    }
}

TEST(a_batch_norm_that_failed_moves_no_buffer) {
    desk d;
    desk_open(&d);
    dt_tensor mean = dt_buffer(d.graph, "mean", dt_dims(3), (dt_init){0});
    dt_tensor one = dt_buffer(d.graph, "one", dt_dims(3), (dt_init){0});
    dt_tensor two = dt_buffer(d.graph, "two", dt_dims(3), (dt_init){0}), none = {0};
    CHECK(is_nil(dt_batch_norm(d.x, none, none, mean, mean, NULL)));
    CHECK_CONTAINS(desk_error(&d), "buffer 'mean' is updated by an op already");
    dt_graph_clear_error(d.graph);
    CHECK(!is_nil(dt_batch_norm(d.x, none, none, mean, one, NULL)));
    CHECK(is_nil(dt_batch_norm(d.x, none, none, two, one, NULL)));
    CHECK_CONTAINS(desk_error(&d), "buffer 'one' is updated by an op already");
    dt_graph_clear_error(d.graph);
    CHECK(is_nil(dt_batch_norm(d.x, none, none, two, mean, NULL)));
    dt_graph_clear_error(d.graph);
    dt_tensor three = dt_buffer(d.graph, "three", dt_dims(3), (dt_init){0});
    CHECK(!is_nil(dt_batch_norm(d.x, none, none, two, three, NULL)));
    CHECK_STR(desk_error(&d), "no error");
    dt_ctx_destroy(d.ctx);
}

/* ---- Names, patterns and shapes that mean nothing, or two things */

TEST(a_layer_without_a_name_is_told) {
    for (int kind = 0; kind < 9; kind++) {
        for (int empty = 0; empty < 2; empty++) {
            desk d;
            desk_open(&d);
            CHECK(is_nil(desk_layer(&d, kind, empty ? "" : NULL, false)));
            CHECK_CONTAINS(desk_error(&d), "dt_nn_");
            CHECK_CONTAINS(desk_error(&d), empty ? "name is empty" : "name is NULL");
            dt_ctx_destroy(d.ctx);
        }
    }
}

TEST(two_inputs_of_one_name_are_refused) {
    desk d;
    desk_open(&d);
    CHECK(is_nil(dt_input(d.graph, "t", DT_F32, dt_dims(4))));
    CHECK_CONTAINS(desk_error(&d), "input 't': the name is taken by an input [B]");
    dt_graph_clear_error(d.graph);
    CHECK(is_nil(dt_input_shared(d.graph, "x", DT_F32, dt_dims(3))));
    CHECK_CONTAINS(desk_error(&d), "input 'x': the name is taken by an input [B, 3]");
    dt_ctx_destroy(d.ctx);
}

TEST(samples_on_one_side_of_a_loss_are_told) {
    desk d;
    desk_open(&d);
    dt_tensor one = dt_fill(d.graph, dt_dims(3), 1);
    CHECK(is_nil(dt_mse(d.x, one)));
    CHECK_CONTAINS(desk_error(&d), "mse(x [B, 3], [3]): y has samples (B) and t has none");
    CHECK_CONTAINS(desk_error(&d), "dt_mean_loss(dt_square(dt_sub(y, t)))");
    dt_graph_clear_error(d.graph);
    CHECK(is_nil(dt_mse(one, d.x)));
    CHECK_CONTAINS(desk_error(&d), "t has samples (B) and y has none");
    dt_graph_clear_error(d.graph);
    CHECK(!is_nil(dt_mse(one, one)));
    CHECK(!is_nil(dt_mean_loss(dt_square(dt_sub(d.x, one)))));
    dt_tensor few = dt_input_shared(d.graph, "few", DT_I32, dt_dims());
    CHECK(is_nil(dt_cross_entropy(d.y, few, NULL)));
    CHECK_CONTAINS(desk_error(&d), "targets must be [B]");
    dt_graph_clear_error(d.graph);
    CHECK(is_nil(dt_accuracy(d.y, few)));
    dt_ctx_destroy(d.ctx);
}

TEST(a_group_of_no_parameter_is_refused) {
    const struct {
        const char *first, *second, *error; /* NULL: it is right */
    } cases[] = {
        {"fc.bias", NULL, NULL},
        {"fc1.bias", NULL, "group 1, \"fc1.bias\", matches the name of no parameter"},
        {"*.bias", "*.wieght", "group 2, \"*.wieght\", matches the name of no parameter"},
        {"fc.*", "*.bias", "group 2, \"*.bias\", gets no parameter: groups before it"},
        {"*.bias,nothing", "*", NULL},
        {"frozen", "*.bias", NULL}, /* of the graph, though not of this program */
        {"*running", NULL, "group 1, \"*running\", matches"},
    };
    desk d;
    desk_open(&d);
    dt_freeze(dt_param(d.graph, "frozen", dt_dims(3), (dt_init){0}));
    dt_buffer(d.graph, "running", dt_dims(3), (dt_init){0});
    desk_train(&d);
    for (size_t i = 0; i < COUNT(cases); i++) {
        dt_optim_desc optim = {.groups = {{cases[i].first, .lr_scale = 2},
                                          {cases[i].second, .lr_scale = cases[i].second ? 3 : 0}}};
        dt_program *program = NULL;
        dt_program_desc desc = {.loss = d.loss, .optim = &optim};
        optim.kind = DT_SGD;
        dt_result result = dt_program_create(d.store, &desc, &program);
        CHECK(result == (cases[i].error ? DT_ERROR_INVALID : DT_OK));
        if (cases[i].error)
            CHECK_CONTAINS(dt_ctx_error(d.ctx), cases[i].error);
    }
    dt_ctx_destroy(d.ctx);
}
