/* A newcomer's mistakes, and the texts that they give. Each mistake is an error that names its
 * object, in the words of the caller's program. */
#include "dtrain.h"

#include "harness.h"
#include "temp.h"
#include "shaders/lib/map_body.h" /* the lists of functions */

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* ---- A small model, and a graph to make mistakes in */

typedef struct bench {
    dt_ctx *ctx;
    dt_graph *graph, *other;
    dt_tensor x, t, y, loss; /* [B, 3] -> fc -> [B, 2] */
    dt_store *store;
    dt_program *train;
    const char *params; /* that it trains; NULL = all */
} bench;

static void bench_open(bench *d) {
    *d = (bench){0};
    CHECK(!dt_ctx_create(NULL, &d->ctx));
    CHECK(!dt_graph_create(d->ctx, &d->graph));
    CHECK(!dt_graph_create(d->ctx, &d->other));
    d->x = dt_input(d->graph, "x", DT_F32, dt_dims(3));
    d->t = dt_input(d->graph, "t", DT_I32, dt_dims());
    d->y = dt_nn_linear(d->x, "fc", 2);
    d->loss = dt_cross_entropy(d->y, d->t, NULL);
}

static void bench_train(bench *d) {
    dt_program_desc desc = {.loss = d->loss,
                            .batch = 2,
                            .params = d->params,
                            .optim = &(dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 0.1}};
    CHECK(!dt_store_create(d->graph, &(dt_store_desc){.device = "cpu"}, &d->store));
    CHECK(!dt_program_create(d->store, &desc, &d->train));
}

static dt_result bench_step(bench *d) {
    const float x[6] = {1, 2, 3, 4, 5, 6};
    const int32_t t[2] = {0, 1};
    CHECK(!dt_program_write(d->train, d->x, x, sizeof x));
    CHECK(!dt_program_write(d->train, d->t, t, sizeof t));
    return dt_program_run(d->train, NULL, NULL);
}

static const char *bench_error(const bench *d) {
    const char *error = dt_graph_error(d->graph);
    return error ? error : "no error";
}

static bool is_nil(dt_tensor x) {
    return dt_tensor_shape(x).rank == -1;
}

/* ---- Going on after a wrong op */

TEST(a_wrong_op_is_cleared_and_a_trained_graph_takes_new_ones) {
    bench d;
    dt_program *program = NULL;
    float out[4], want[4];
    bench_open(&d);
    bench_train(&d);
    CHECK(!bench_step(&d));
    dt_tensor wrong = dt_add(d.y, d.x);
    CHECK(is_nil(wrong) && is_nil(dt_relu(d.y)));
    CHECK_CONTAINS(bench_error(&d), "do not broadcast");
    CHECK(!bench_step(&d)); /* what exists never knew of it */
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
    CHECK(!bench_step(&d));
    dt_graph_clear_error(d.graph);
    dt_graph_clear_error(NULL);
    CHECK(is_nil(dt_add(d.y, wrong))); /* its result stays nil, and is reported where it is used */
    CHECK_CONTAINS(bench_error(&d), "input 2 is nil");
    dt_ctx_destroy(d.ctx);
}

TEST(a_wrong_op_does_not_stop_a_trainer_of_the_same_graph) {
    const char *path = temp_path("mistake.safetensors");
    float x[24], loss[2];
    int32_t t[8];
    for (int again = 0; again < 2;
         again++) { /* saves with 2 batch slices; loads, for which it has 1 */
        bench d;
        dt_trainer *trainer = NULL;
        dt_train_report r;
        bench_open(&d);
        for (int i = 0; i < 24; i++)
            x[i] = (float)(i % 5), t[i / 3] = i / 3 % 2;
        dt_trainer_desc desc = {.loss = d.loss, .devices = "cpu", .batch = 4};
        desc.data = (dt_dataset){.rows = 8,
                                 .columns = {{.input = d.x, .data = x, .dtype = DT_F32},
                                             {.input = d.t, .data = t, .dtype = DT_I32}}};
        desc.parallel.batch_slices = again ? 0 : 2;
        CHECK(!dt_trainer_create(d.graph, &desc, &trainer));
        CHECK(is_nil(dt_add(d.x, d.y)));
        if (again)
            CHECK(!dt_trainer_load(trainer, path));
        CHECK(again || !dt_trainer_step(trainer, NULL));
        CHECK(!dt_trainer_evaluate(trainer, &desc.data, 0, &r));
        loss[again] = (float)r.loss;
        CHECK(again || !dt_trainer_save(trainer, path));
        dt_graph_clear_error(d.graph);
        CHECK(!is_nil(dt_softmax(d.y, 0)));
        CHECK(!dt_trainer_step(trainer, NULL));
        dt_ctx_destroy(d.ctx);
    }
    CHECK(loss[0] == loss[1]);
}

TEST(a_gradient_of_a_graph_with_an_error_is_never_a_missing_gradient) {
    bench d;
    bench_open(&d);
    dt_softmax(d.y, 7);
    dt_tensor gone = dt_gradient(d.y, d.x);
    dt_graph_clear_error(d.graph);
    CHECK(is_nil(gone) && is_nil(dt_layer_norm(d.x, 1, gone, (dt_tensor){0}, 0)));
    CHECK_CONTAINS(bench_error(&d), "layer_norm: input 2 is nil");
    dt_ctx_destroy(d.ctx);
}

TEST(a_tensor_of_a_cleared_op_is_never_treated_as_nil) {
    const char *error[] = {
        "linear: input 3 is nil", "layer_norm: input 2 is nil", "cross_entropy: input 3",
        "conv2d: input 3 is nil", "add: input 1 is nil",        "gradient: x is nil",
        ".outputs[1] is nil",     ".losses[1] is nil",          "dataset column 2: its in",
        "relu: input 1 is nil",   "batch_norm: input 3 is nil", "sub: input 2 is nil",
        "sub: input 1 is nil"};
    for (size_t way = 0; way < COUNT(error); way++) {
        bench d;
        dt_program *program = NULL;
        dt_trainer *trainer = NULL;
        float rows[8] = {0};
        bench_open(&d);
        dt_tensor w = dt_fill(d.graph, dt_dims(2, 3), 1), nil = {0};
        dt_tensor c = dt_fill(d.graph, dt_dims(2, 3, 1, 1), 1);
        dt_tensor image = dt_reshape(d.x, dt_dims(3, 1, 1));
        dt_tensor mean = dt_buffer(d.graph, "mean", dt_dims(3), (dt_init){0});
        dt_tensor var = dt_buffer(d.graph, "var", dt_dims(3), (dt_init){0});
        dt_tensor gone = dt_sum(dt_tanh(dt_softmax(dt_add(d.y, d.x), 7)), dt_dims(9), true);
        dt_graph_clear_error(d.graph);
        CHECK(is_nil(gone) && !dt_store_create(d.graph, NULL, &d.store));
        dt_program_desc desc = {.outputs = {d.y}};
        dt_trainer_desc t = {.loss = d.loss, .devices = "cpu", .batch = 1};
        t.data = (dt_dataset){.rows = 1,
                              .columns = {{.input = d.x, .data = rows, .dtype = DT_F32},
                                          {.input = d.t, .data = rows, .dtype = DT_I32}}};
        switch (way) {
        case 0: dt_linear(d.x, w, gone); break;
        case 1: dt_layer_norm(d.x, 1, gone, nil, 0); break;
        case 2: dt_cross_entropy(d.y, d.t, &(dt_cross_entropy_desc){.class_weights = gone}); break;
        case 3: dt_conv2d(image, c, gone, NULL); break;
        case 4: dt_add(gone, d.y); break;
        case 5: dt_gradient(d.loss, gone); break;
        case 6: desc.outputs[1] = gone; break;
        case 7: desc.losses[0].term = d.loss, desc.losses[1].term = gone; break;
        case 8: t.data.columns[2].input = gone; break;
        case 9: dt_relu(gone); break;
        case 10: dt_batch_norm(d.x, nil, gone, mean, var, NULL); break;
        case 11: dt_sub(d.x, gone); break;
        default: /* it is reported where the other tensor is */
            gone = dt_input(d.other, "far", DT_F32, dt_dims(3));
            gone = dt_softmax(gone, 7);
            dt_sub(gone, d.x);
        }
        const bool program_said = way == 6 || way == 7, trainer_said = way == 8;
        const char *said = program_said || trainer_said ? dt_ctx_error(d.ctx) : bench_error(&d);
        if (program_said)
            CHECK(dt_program_create(d.store, &desc, &program) == DT_ERROR_INVALID);
        if (trainer_said)
            CHECK(dt_trainer_create(d.graph, &t, &trainer) == DT_ERROR_INVALID);
        CHECK_CONTAINS(said, error[way]);
        dt_ctx_destroy(d.ctx);
    }
}

#define DTX(ID, name, slope) X(dt_##name(nil))
#define DTY(ID, name) X(dt_##name(nil, y)) X(dt_##name(y, nil))
/* Each function that takes a tensor, with nil where it takes one. */
#define USES_OF_NIL                                                                                \
    DTI_UNARY_PLAIN(DTX)                                                                           \
    DTI_BINARY_LIST(DTY)                                                                           \
    X(dt_label(nil, "name"))                                                                       \
    X(dt_freeze(nil))                                                                              \
    X(dt_leaky_relu(nil, 1))                                                                       \
    X(dt_elu(nil, 1))                                                                              \
    X(dt_clamp(nil, 0, 1))                                                                         \
    X(dt_affine(nil, 1, 1))                                                                        \
    X(dt_cast(nil, DT_F32))                                                                        \
    X(dt_cast(nil, DT_I32))                                                                        \
    X(dt_copy(nil))                                                                                \
    X(dt_detach(nil))                                                                              \
    X(dt_reshape(nil, dt_dims(2)))                                                                 \
    X(dt_reshape(nil, (dt_shape){-1, {0}}))                                                        \
    X(dt_flatten(nil))                                                                             \
    X(dt_permute(nil, dt_dims(0)))                                                                 \
    X(dt_slice(nil, -1, 0, 1))                                                                     \
    X(dt_concat((dt_tensor[2]){nil, y}, 2, -1))                                                    \
    X(dt_concat((dt_tensor[2]){y, nil}, 2, -1))                                                    \
    X(dt_einsum("ij,j->i", (dt_tensor[2]){y, nil}, 2))                                             \
    X(dt_expand(nil, dt_dims(2)))                                                                  \
    X(dt_sum(nil, dt_dims(), false))                                                               \
    X(dt_mean(nil, dt_dims(), false))                                                              \
    X(dt_max(nil, dt_dims(0), true))                                                               \
    X(dt_min(nil, dt_dims(0), true))                                                               \
    X(dt_sum_samples(nil))                                                                         \
    X(dt_softmax(nil, 0))                                                                          \
    X(dt_log_softmax(nil, -1))                                                                     \
    X(dt_matmul(nil, y))                                                                           \
    X(dt_matmul(y, nil))                                                                           \
    X(dt_matmul_transposed(nil, y, true, false))                                                   \
    X(dt_linear(nil, y, none))                                                                     \
    X(dt_linear(y, nil, none))                                                                     \
    X(dt_embedding(nil, d->t))                                                                     \
    X(dt_embedding(y, nil))                                                                        \
    X(dt_dropout(nil, 0))                                                                          \
    X(dt_random_uniform(nil))                                                                      \
    X(dt_random_normal(nil))                                                                       \
    X(dt_dropout(nil, 0.5f))                                                                       \
    X(dt_cross_entropy(nil, d->t, NULL))                                                           \
    X(dt_cross_entropy(y, nil, NULL))                                                              \
    X(dt_ctc_loss(nil, d->t, NULL))                                                                \
    X(dt_ctc_loss(y, nil, NULL))                                                                   \
    X(dt_mse(nil, y))                                                                              \
    X(dt_mse(y, nil))                                                                              \
    X(dt_mean_loss(nil))                                                                           \
    X(dt_accuracy(nil, d->t))                                                                      \
    X(dt_accuracy(y, nil))                                                                         \
    X(dt_gradient(nil, y))                                                                         \
    X(dt_gradient(nil, none))                                                                      \
    X(dt_gradient(none, y))                                                                        \
    X(dt_gradient(none, nil))                                                                      \
    X(dt_gradient(y, nil))                                                                         \
    X(dt_gradient(y, none))                                                                        \
    X(dt_conv2d(nil, y, none, NULL))                                                               \
    X(dt_conv2d(y, nil, none, NULL))                                                               \
    X(dt_conv1d(nil, y, none, NULL))                                                               \
    X(dt_conv1d(y, nil, none, NULL))                                                               \
    X(dt_conv_transpose2d(nil, y, none, NULL))                                                     \
    X(dt_conv_transpose2d(y, nil, none, NULL))                                                     \
    X(dt_conv_transpose1d(nil, y, none, NULL))                                                     \
    X(dt_conv_transpose1d(y, nil, none, NULL))                                                     \
    X(dt_max_pool2d(nil, NULL))                                                                    \
    X(dt_avg_pool2d(nil, NULL))                                                                    \
    X(dt_adaptive_avg_pool2d(nil, 1, 1))                                                           \
    X(dt_resize(nil, 2, 2, DT_RESIZE_NEAREST))                                                     \
    X(dt_pad(nil, 0, 1, 1))                                                                        \
    X(dt_layer_norm(nil, 1, none, none, 0))                                                        \
    X(dt_layer_norm(y, 1, nil, none, 0))                                                           \
    X(dt_rms_norm(nil, 1, none, 0))                                                                \
    X(dt_rms_norm(y, 1, nil, 0))                                                                   \
    X(dt_group_norm(nil, 1, none, none, 0))                                                        \
    X(dt_group_norm(y, 1, none, nil, 0))                                                           \
    X(dt_batch_norm(nil, none, none, none, none, NULL))                                            \
    X(dt_batch_norm(y, none, none, nil, none, NULL))                                               \
    X(dt_nn_linear(nil, "layer", 1))                                                               \
    X(dt_nn_linear_with(nil, "layer", 1, NULL))                                                    \
    X(dt_nn_embedding(nil, "layer", 1, 1))                                                         \
    X(dt_nn_conv2d(nil, "layer", 1, 1, NULL))                                                      \
    X(dt_nn_conv1d(nil, "layer", 1, 1, NULL))                                                      \
    X(dt_nn_conv_transpose2d(nil, "layer", 1, 1, NULL))                                            \
    X(dt_nn_batch_norm(nil, "layer", NULL))                                                        \
    X(dt_nn_layer_norm(nil, "layer", 1))                                                           \
    X(dt_nn_group_norm(nil, "layer", 1))                                                           \
    X(dt_nn_rms_norm(nil, "layer", 1))

/* NULL: there are no more. */
static const char *use_nil(const bench *d, dt_tensor nil, int row, dt_tensor *out) {
    const dt_tensor y = d->y, none = {0};
    int at = 0;
#define X(...)                                                                                     \
    if (at++ == row) {                                                                             \
        *out = __VA_ARGS__;                                                                        \
        return #__VA_ARGS__;                                                                       \
    }
    USES_OF_NIL
#undef X
    return NULL;
}

TEST(a_tensor_of_a_cleared_op_is_an_error_in_every_function) {
    bench d;
    int row = 0;
    bench_open(&d);
    dt_tensor gone = dt_add(d.y, d.x), out = d.y;
    for (;; row++) {
        dt_graph_clear_error(d.graph);
        const char *call = use_nil(&d, gone, row, &out);
        if (!call)
            break;
        const char *error = dt_graph_error(d.graph);
        test_check(is_nil(out) && error && strstr(error, "is nil"), __FILE__, __LINE__, "%s: %s",
                   call, error ? error : "no error");
    }
    CHECK(row > 100 && !dt_store_create(d.graph, NULL, &d.store));
    CHECK(dt_store_find(d.store, "layer.weight") < 0);
    dt_ctx_destroy(d.ctx);
}

TEST(a_trainer_takes_no_loss_or_metric_of_another_graph) {
    for (int way = 0; way < 3; way++) {
        bench d, far;
        dt_trainer *trainer = NULL;
        float x[6] = {0};
        int32_t t[2] = {0};
        bench_open(&d);
        bench_open(&far); /* the same ops, and so the same numbers of nodes */
        dt_trainer_desc desc = {.loss = d.loss, .devices = "cpu:2", .batch = 2};
        desc.data = (dt_dataset){.rows = 2,
                                 .columns = {{.input = d.x, .data = x, .dtype = DT_F32},
                                             {.input = d.t, .data = t, .dtype = DT_I32}}};
        if (way == 0)
            desc.loss = far.loss;
        if (way == 1)
            desc.metrics[0] = far.loss;
        if (way == 2) {
            desc.losses[0].term = d.loss, desc.losses[1].term = far.loss;
            desc.loss = (dt_tensor){0};
        }
        CHECK(dt_trainer_create(d.graph, &desc, &trainer) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(d.ctx), "is a tensor of another graph than the store's");
        dt_ctx_destroy(far.ctx);
        dt_ctx_destroy(d.ctx);
    }
}

/* Each makes parameters before the op that fails, but for a name of its own. */
static dt_tensor bench_layer(const bench *d, int kind, const char *name, bool wrong) {
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

TEST(losses_of_tensors_without_a_graph_are_nil) {
    const dt_tensor none = {0};
    CHECK(!dt_l1(none, none).graph && !dt_mse(none, none).graph);
    CHECK(!dt_gaussian_nll(none, none, none, 0, false).graph);
    CHECK(!dt_multi_margin(none, none, 1, 1, none).graph);
}

TEST(a_layer_that_failed_does_not_reserve_its_name) {
    for (int kind = 0; kind < 9; kind++) {
        bench d;
        dt_store *store = NULL;
        bench_open(&d);
        CHECK(is_nil(bench_layer(&d, kind, "layer", true)));
        CHECK(dt_graph_error(d.graph) != NULL);
        dt_graph_clear_error(d.graph);
        CHECK(!is_nil(bench_layer(&d, kind, "layer", false)));
        CHECK_STR(bench_error(&d), "no error");
        CHECK(!dt_store_create(d.graph, &(dt_store_desc){.device = "cpu"}, &store));
        CHECK(dt_store_find(store, "layer.weight") == 2); /* after fc's two */
        dt_ctx_destroy(d.ctx);
    }
}

TEST(a_batch_norm_that_failed_changes_no_buffer) {
    bench d;
    bench_open(&d);
    dt_tensor mean = dt_buffer(d.graph, "mean", dt_dims(3), (dt_init){0});
    dt_tensor one = dt_buffer(d.graph, "one", dt_dims(3), (dt_init){0});
    dt_tensor two = dt_buffer(d.graph, "two", dt_dims(3), (dt_init){0}), none = {0};
    CHECK(is_nil(dt_batch_norm(d.x, none, none, mean, mean, NULL)));
    CHECK_CONTAINS(bench_error(&d), "buffer 'mean' is already updated by another op");
    dt_graph_clear_error(d.graph);
    CHECK(!is_nil(dt_batch_norm(d.x, none, none, mean, one, NULL)));
    CHECK(is_nil(dt_batch_norm(d.x, none, none, two, one, NULL)));
    CHECK_CONTAINS(bench_error(&d), "buffer 'one' is already updated by another op");
    dt_graph_clear_error(d.graph);
    CHECK(is_nil(dt_batch_norm(d.x, none, none, two, mean, NULL)));
    dt_graph_clear_error(d.graph);
    dt_tensor three = dt_buffer(d.graph, "three", dt_dims(3), (dt_init){0});
    CHECK(!is_nil(dt_batch_norm(d.x, none, none, two, three, NULL)));
    CHECK_STR(bench_error(&d), "no error");
    dt_ctx_destroy(d.ctx);
}

/* ---- Names, patterns and shapes that mean nothing, or two things */

TEST(a_layer_without_a_name_is_reported) {
    for (int kind = 0; kind < 9; kind++) {
        for (int empty = 0; empty < 2; empty++) {
            bench d;
            bench_open(&d);
            CHECK(is_nil(bench_layer(&d, kind, empty ? "" : NULL, false)));
            CHECK_CONTAINS(bench_error(&d), "dt_nn_");
            CHECK_CONTAINS(bench_error(&d), empty ? "name is empty" : "name is NULL");
            dt_ctx_destroy(d.ctx);
        }
    }
}

TEST(two_inputs_of_one_name_are_refused) {
    bench d;
    bench_open(&d);
    CHECK(is_nil(dt_input(d.graph, "t", DT_F32, dt_dims(4))));
    CHECK_CONTAINS(bench_error(&d), "input 't': an input [B] has this name");
    dt_graph_clear_error(d.graph);
    CHECK(is_nil(dt_input_shared(d.graph, "x", DT_F32, dt_dims(3))));
    CHECK_CONTAINS(bench_error(&d), "input 'x': an input [B, 3] has this name");
    dt_ctx_destroy(d.ctx);
}

TEST(samples_on_only_one_side_of_a_loss_are_an_error) {
    bench d;
    bench_open(&d);
    dt_tensor one = dt_fill(d.graph, dt_dims(3), 1);
    CHECK(is_nil(dt_mse(d.x, one)));
    CHECK_CONTAINS(bench_error(&d), "mse(x [B, 3], [3]): y has samples (B) and t has none");
    CHECK_CONTAINS(bench_error(&d), "dt_mean_loss(dt_square(dt_sub(y, t)))");
    dt_graph_clear_error(d.graph);
    CHECK(is_nil(dt_mse(one, d.x)));
    CHECK_CONTAINS(bench_error(&d), "t has samples (B) and y has none");
    dt_graph_clear_error(d.graph);
    CHECK(!is_nil(dt_mse(one, one)));
    CHECK(!is_nil(dt_mean_loss(dt_square(dt_sub(d.x, one)))));
    dt_tensor few = dt_input_shared(d.graph, "few", DT_I32, dt_dims());
    CHECK(is_nil(dt_cross_entropy(d.y, few, NULL)));
    CHECK_CONTAINS(bench_error(&d), "targets must be [B]");
    dt_graph_clear_error(d.graph);
    CHECK(is_nil(dt_accuracy(d.y, few)));
    dt_ctx_destroy(d.ctx);
}

TEST(an_optimizer_group_without_parameters_is_refused) {
    const struct {
        const char *first, *second, *error; /* NULL: it is right */
    } cases[] = {
        {"fc.bias", NULL, NULL},
        {"fc1.bias", NULL,
         ".groups[0].params = \"fc1.bias\": \"fc1.bias\" matches the name of "
         "no parameter; did you mean 'fc.bias'?"},
        {"*.bias", "*.wieght", ".groups[1].params = \"*.wieght\": \"*.wieght\" matches"},
        {"fc.*", "*.bias",
         ".groups[1].params = \"*.bias\": the group is empty: earlier groups match all"},
        {"*.bias,nothing", "*", "\"nothing\" matches the name of no parameter"},
        {"*.bias, ", "*", NULL},
        {"frozen", "*.bias", NULL}, /* of the graph, though not of this program */
        {"*running", NULL, "\"*running\" matches the name of no parameter"},
        {" , ", NULL, ".groups[0].params = \" , \": \"\" matches the name of no parameter"},
    };
    bench d;
    bench_open(&d);
    dt_freeze(dt_param(d.graph, "frozen", dt_dims(3), (dt_init){0}));
    dt_buffer(d.graph, "running", dt_dims(3), (dt_init){0});
    bench_train(&d);
    for (size_t i = 0; i < COUNT(cases); i++) {
        dt_optim_desc optim = {.groups = {{cases[i].first, .lr_scale = 2},
                                          {cases[i].second, .lr_scale = cases[i].second ? 3 : 0}}};
        dt_program *program = NULL;
        dt_program_desc desc = {.loss = d.loss, .optim = &optim};
        optim.kind = DT_OPTIM_SGD;
        dt_result result = dt_program_create(d.store, &desc, &program);
        CHECK(result == (cases[i].error ? DT_ERROR_INVALID : DT_OK));
        if (cases[i].error)
            CHECK_CONTAINS(dt_ctx_error(d.ctx), cases[i].error);
    }
    dt_ctx_destroy(d.ctx);
}

static dt_result pattern_trainer(const bench *d, const char *list, int devices, bool tensor) {
    const float rows[12] = {0};
    dt_trainer *trainer = NULL;
    dt_trainer_desc desc = {.loss = d->loss, .batch = 2, .params = list};
    desc.devices = devices == 2 ? "cpu:2" : "cpu";
    desc.parallel.tensor = tensor ? 2 : 0;
    desc.parallel.pipeline = devices == 2 && !tensor ? 2 : 0;
    desc.data = (dt_dataset){.rows = 2,
                             .columns = {{.input = d->x, .data = rows, .dtype = DT_F32},
                                         {.input = d->t, .data = rows, .dtype = DT_I32}}};
    const dt_result result = dt_trainer_create(d->graph, &desc, &trainer);
    dt_trainer_destroy(trainer);
    return result;
}

/* A list goes all ways that take one. */
static dt_result pattern_way(bench *d, const char *list, int way, const char *path) {
    dt_optim_desc optim = {.kind = DT_OPTIM_SGD};
    dt_program_desc desc = {.loss = d->loss, .optim = &optim, .batch = 2};
    dt_program *program = NULL;
    if (way == 0)
        desc.params = list;
    if (way == 1)
        optim.groups[0] = (dt_optim_group){.params = list, .lr_scale = 2};
    if (way <= 1)
        return dt_program_create(d->store, &desc, &program);
    if (way == 2)
        return dt_store_load_matching(d->store, path, &(dt_load_desc){.params = list}, NULL);
    if (way == 3)
        return dt_store_save_matching(d->store, path, &(dt_save_desc){list});
    return pattern_trainer(d, list, way == 4 ? 1 : 2, way == 6);
}

TEST(a_pattern_of_a_list_that_matches_nothing_is_an_error_that_names_it) {
    const char *const lists[][2] = {{"fc.*, up.*", NULL},
                                    {" fc.weigh?,,up.*,", NULL},
                                    {"fc.*, fc3.*", "\"fc.*, fc3.*\": \"fc3.*\" matches"},
                                    {"fc.bais, up.*",
                                     "\"fc.bais\" matches the name of no parameter; "
                                     "did you mean 'fc.bias'?; there are 'up.weight'"},
                                    {"fc.*,*.norm", "\"*.norm\" matches the name of no parameter"}};
    const char *path = temp_path("patterns.safetensors");
    bench d;
    bench_open(&d);
    dt_graph *g = d.other; /* a graph of its own, with two layers */
    d.x = dt_input(g, "x", DT_F32, dt_dims(3));
    d.t = dt_input(g, "t", DT_I32, dt_dims());
    dt_tensor h = dt_nn_linear_with(d.x, "up", 8, &(dt_linear_desc){.tensor = DT_TENSOR_COLUMN});
    h = dt_nn_linear_with(dt_relu(h), "fc", 2, &(dt_linear_desc){.tensor = DT_TENSOR_ROW});
    d.loss = dt_cross_entropy(h, d.t, NULL);
    d.graph = g;
    REQUIRE(!dt_store_create(g, &(dt_store_desc){.device = "cpu"}, &d.store));
    CHECK(!dt_store_save(d.store, path));
    for (int way = 0; way < 7; way++) {
        for (size_t i = 0; i < COUNT(lists); i++) {
            const dt_result result = pattern_way(&d, lists[i][0], way, path);
            test_check(result == (lists[i][1] ? DT_ERROR_INVALID : DT_OK), __FILE__, __LINE__,
                       "way %d, %s: %s", way, lists[i][0], dt_ctx_error(d.ctx));
            if (lists[i][1])
                CHECK_CONTAINS(dt_ctx_error(d.ctx), lists[i][1]);
        }
    }
    dt_ctx_destroy(d.ctx);
}

/* ---- Class numbers and indices on their way from an input to the op */

#define NUMBERS 6

/* A way from numbers [2, 3] to what an op takes: '1' for each of the six that arrives. */
static dt_tensor number_way(dt_graph *graph, dt_tensor n, int way, const char **arrives) {
    dt_tensor zero = dt_cast(dt_fill(graph, dt_dims(2, 1), 0), DT_I32), row, column;
    *arrives = "111111";
    switch (way) {
    case 0: return n;
    case 1: return dt_reshape(n, dt_dims(3, 2));
    case 2: return dt_copy(dt_detach(dt_flatten(n)));
    case 3: return dt_expand(n, dt_dims(2, 2, 3));
    case 4: *arrives = "011011"; return dt_slice(n, 1, 1, 2);
    case 5: *arrives = "000111"; return dt_slice(n, 0, 1, 1);
    case 6: *arrives = "000010"; return dt_slice(dt_slice(n, 0, 1, 1), 1, 1, 1);
    case 7: *arrives = "010010"; return dt_slice(dt_permute(n, dt_dims(1, 0)), 0, 1, 1);
    case 8: *arrives = "001100"; return dt_slice(dt_reshape(n, dt_dims(6)), 0, 2, 2);
    case 9: *arrives = "110110"; return dt_concat((dt_tensor[]){zero, dt_slice(n, 1, 0, 2)}, 2, 1);
    case 10: *arrives = "100001"; break;
    case 11: *arrives = "010010"; return dt_pad(dt_slice(n, 1, 1, 1), 1, 2, 1);
    case 12: *arrives = "001001"; return dt_expand(dt_slice(n, 1, 2, 1), dt_dims(2, 3));
    default: *arrives = "000000"; return dt_cast(dt_cast(n, DT_F32), DT_I32);
    }
    row = dt_reshape(dt_slice(dt_slice(n, 0, 0, 1), 1, 0, 1), dt_dims(1));
    column = dt_reshape(dt_slice(dt_slice(n, 0, 1, 1), 1, 2, 1), dt_dims(1));
    return dt_concat((dt_tensor[]){column, row}, 2, 0);
}

/* A program that takes them in the given op, of 5 classes. */
static dt_program_desc number_use(dt_graph *graph, dt_tensor x, dt_tensor n, int op) {
    dt_program_desc desc = {.batch = 2};
    dt_shape rows = dt_tensor_shape(n);
    dt_tensor table = dt_fill(graph, dt_dims(5, 2), 1), logits, loss;
    rows.dim[rows.rank++] = 5;
    logits = dt_expand(x, rows);
    if (op == 0)
        desc.outputs[0] = dt_embedding(table, n);
    else if (op == 1)
        desc.loss = dt_cross_entropy(logits, n, NULL);
    else if (op == 2)
        desc.metrics[0] = dt_accuracy(logits, n);
    else if (op == 3) { /* the loss itself is not computed */
        loss = dt_cross_entropy(logits, n, NULL);
        desc.outputs[0] = dt_gradient(loss, x);
    }
    return desc;
}

static void number_check(int way, int op) {
    bench d;
    dt_store *store = NULL;
    dt_program *program = NULL;
    const char *arrives;
    bench_open(&d);
    dt_tensor x = dt_input(d.graph, "logits", DT_F32, dt_dims(5));
    dt_tensor input = dt_input(d.graph, "numbers", DT_I32, dt_dims(2, 3));
    dt_tensor n = number_way(d.graph, input, way, &arrives);
    dt_program_desc desc = number_use(d.graph, x, n, op);
    CHECK(!dt_store_create(d.graph, &(dt_store_desc){.device = "cpu"}, &store));
    CHECK(store && !dt_program_create(store, &desc, &program));
    for (int i = 0; program && i < NUMBERS; i++) {
        int32_t numbers[2 * NUMBERS] = {0};
        numbers[NUMBERS + i] = 5;
        bool told = dt_program_write(program, input, numbers, sizeof numbers) == DT_ERROR_INVALID;
        test_check(told == (arrives[i] == '1'), __FILE__, __LINE__, "way %d op %d element %d: %s",
                   way, op, i, told ? "told" : "not told");
        if (told)
            CHECK_CONTAINS(dt_ctx_error(d.ctx), "'numbers' row 1: 5 is not in [0, 5)");
        numbers[NUMBERS + i] = 4;
        CHECK(!dt_program_write(program, input, numbers, sizeof numbers));
    }
    dt_ctx_destroy(d.ctx);
}

TEST(class_numbers_are_checked_when_they_are_written_by_any_function) {
    for (int way = 0; way < 14; way++) {
        for (int op = 0; op < 4; op++)
            number_check(way, op);
    }
}

TEST(each_part_of_an_input_is_checked_for_the_op_that_reads_it) {
    bench d;
    dt_store *store = NULL;
    dt_program *program = NULL;
    const struct {
        int32_t row[3];
        const char *error;
    } cases[] = {{{8, 1, 77}, NULL},
                 {{8, -100, -3}, NULL}, /* what nobody reads is free, and a target may be ignored */
                 {{9, 1, 0}, "9 is not in [0, 9), which embedding"},
                 {{-100, 1, 0}, "-100 is not in [0, 9), which embedding"},
                 {{1, 2, 0}, "2 is not in [0, 2), which cross_entropy"}};
    bench_open(&d);
    dt_tensor row = dt_input(d.graph, "row", DT_I32, dt_dims(3));
    dt_tensor token = dt_reshape(dt_slice(row, 0, 0, 1), dt_dims());
    dt_tensor target = dt_reshape(dt_slice(row, 0, 1, 1), dt_dims());
    dt_tensor y = dt_nn_linear(dt_nn_embedding(token, "token", 9, 4), "head", 2);
    dt_program_desc desc = {.loss = dt_cross_entropy(y, target, NULL),
                            .metrics = {dt_accuracy(y, target)}};
    CHECK(!dt_store_create(d.graph, &(dt_store_desc){.device = "cpu"}, &store));
    CHECK(!dt_program_create(store, &desc, &program));
    for (size_t i = 0; program && i < COUNT(cases); i++) {
        dt_result result = dt_program_write(program, row, cases[i].row, sizeof cases[i].row);
        CHECK(result == (cases[i].error ? DT_ERROR_INVALID : DT_OK));
        if (cases[i].error)
            CHECK_CONTAINS(dt_ctx_error(d.ctx), cases[i].error);
    }
    dt_ctx_destroy(d.ctx);
}

/* ---- What a text calls things */

TEST(tensors_of_two_graphs_are_named) {
    bench d;
    dt_program *program = NULL;
    bench_open(&d);
    dt_tensor a = dt_input(d.other, "a", DT_F32, dt_dims(3)), h = dt_relu(a);
    bench_train(&d);
    CHECK(is_nil(dt_add(d.x, h)));
    CHECK_CONTAINS(bench_error(&d),
                   "add: input 2 is a tensor of another graph, relu of 'a' [B, 3]");
    dt_graph_clear_error(d.graph);
    CHECK(is_nil(dt_gradient(d.y, a)));
    CHECK_CONTAINS(bench_error(&d), "another graph, 'a' [B, 3]");
    dt_graph_clear_error(d.graph);
    CHECK(dt_program_create(d.store, &(dt_program_desc){.outputs = {h}}, &program) ==
          DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(d.ctx), "another graph than the store's: relu of 'a' [B, 3]");
    CHECK(dt_program_write(d.train, a, (float[6]){0}, 24) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(d.ctx), "the input is a tensor of another graph: 'a' [B, 3]");
    CHECK(dt_program_write(d.train, (dt_tensor){0}, (float[6]){0}, 24) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(d.ctx), "the input is nil");
    bench far;
    bench_open(&far);
    CHECK(is_nil(dt_add(d.x, far.x))); /* what it is is not looked at */
    CHECK_CONTAINS(bench_error(&d), "its graph was destroyed, or is of another context");
    dt_ctx_destroy(far.ctx);
    dt_ctx_destroy(d.ctx);
}

TEST(a_missing_gradient_names_both_tensors_and_the_reason) {
    bench d;
    bench_open(&d);
    const dt_tensor x = d.x, y = dt_relu(d.y), step = dt_heaviside(d.y);
    const dt_tensor kept = dt_detach(x), gate = dt_add(kept, dt_heaviside(x)); /* in this order */
    dt_tensor other = dt_input(d.graph, "other", DT_F32, dt_dims(3));
    dt_tensor table = dt_fill(d.graph, dt_dims(4, 2), 1), rows = dt_embedding(table, d.t);
    const struct {
        dt_tensor y, x;
        const char *error;
    } cases[] = {
        {y, other, "relu after 'fc.weight' [B, 2] does not depend on 'other' [B, 3]"},
        {x, d.y, "'x' [B, 3] does not depend on linear of 'fc.weight' [B, 2]"},
        {dt_exp(step), x,
         "[B, 3] in a differentiable way, since no gradient flows through heaviside"},
        {gate, x, "differentiable way, since no gradient flows through detach of 'x'"},
        {d.loss, other, "cross_entropy after 'fc.weight' does not depend on 'other' [B, 3]"},
        {rows, d.t, "does not depend on 't' [B] in a differentiable way"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        CHECK(is_nil(dt_gradient(cases[i].y, cases[i].x)));
        CHECK_CONTAINS(bench_error(&d), cases[i].error);
        CHECK(!strstr(bench_error(&d), "node"));
        dt_graph_clear_error(d.graph);
    }
    CHECK(!is_nil(dt_gradient(d.loss, d.y))); /* of a tensor that is neither input nor parameter */
    dt_ctx_destroy(d.ctx);
}

/* What a newcomer brings from TensorFlow, JAX or a PNG. */
TEST(an_image_with_its_channels_last_is_an_error_that_names_the_permutation) {
    const char *image = "dt_permute(x, dt_dims(2, 0, 1)) first", *none = "no error";
    for (int way = 0; way < 9; way++) {
        bench d;
        bench_open(&d);
        dt_tensor x = dt_input(d.graph, "image", DT_F32, dt_dims(28, 30, 3)), nil = {0};
        dt_tensor w = dt_param(d.graph, "w", dt_dims(8, 3, 5, 5), (dt_init){0});
        dt_tensor w1 = dt_param(d.graph, "w1", dt_dims(8, 7, 5), (dt_init){0});
        dt_tensor line = dt_input(d.graph, "line", DT_F32, dt_dims(100, 7));
        dt_tensor one = dt_reshape(line, dt_dims(10, 70, 1));
        const dt_pool_desc pool = {.kernel = {4, 4}};
        const dt_conv_desc groups = {.groups = 2};
        const char *want = image;
        switch (way) {
        case 0: dt_conv2d(x, w, nil, NULL); break;
        case 1: dt_nn_conv2d(x, "c", 8, 5, NULL); break;
        case 2: dt_max_pool2d(x, &pool); break;
        case 3: dt_avg_pool2d(one, &pool); break;
        case 4: dt_conv2d(dt_reshape(x, dt_dims(30, 14, 6)), w, nil, &groups); break;
        case 5: dt_conv1d(line, w1, nil, NULL), want = "dt_permute(x, dt_dims(1, 0)) first"; break;
        case 6: dt_conv_transpose2d(dt_reshape(x, dt_dims(63, 5, 8)), w, nil, NULL); break;
        case 7: dt_conv2d(dt_permute(x, dt_dims(2, 0, 1)), w, nil, NULL), want = none; break;
        default: /* wrong in another way */
            dt_conv2d(dt_permute(x, dt_dims(1, 2, 0)), w, nil, NULL);
            want = "of 3 input channels a group";
            CHECK(!strstr(bench_error(&d), "permute"));
        }
        CHECK_CONTAINS(bench_error(&d), want);
        dt_ctx_destroy(d.ctx);
    }
}

static void keep_warning(void *user, dt_log_level level, const char *message) {
    if (level == DT_LOG_WARNING)
        snprintf(user, 256, "%s", message);
}

TEST(an_input_with_its_channels_last_that_happens_to_fit_is_a_warning) {
    char warning[256] = "";
    const dt_logger logger = {keep_warning, warning};
    dt_ctx *ctx;
    dt_graph *graph;
    CHECK(!dt_ctx_create(&(dt_ctx_desc){.logger = logger}, &ctx));
    CHECK(!dt_graph_create(ctx, &graph));
    dt_tensor x = dt_input(graph, "image", DT_F32, dt_dims(32, 32, 3));
    dt_tensor h = dt_nn_conv2d(dt_permute(x, dt_dims(2, 0, 1)), "right", 8, 3, NULL);
    dt_nn_conv2d(dt_avg_pool2d(h, &(dt_pool_desc){.kernel = {10, 10}}), "deep", 9, 3, NULL);
    CHECK_STR(warning, "");
    CHECK(!is_nil(dt_nn_conv2d(x, "wrong", 8, 3, NULL)));
    CHECK_CONTAINS(warning, "conv2d 'wrong': x [B, 32, 32, 3] is taken as 32 channels");
    CHECK_CONTAINS(warning, "dt_permute(x, dt_dims(2, 0, 1)) first");
    dt_ctx_destroy(ctx);
}

/* ---- A NaN is of a layer */

/* A model whose step gives a NaN or an infinity first in the op that `want` names. */
static dt_tensor nan_model(bench *d, int way, const char **want) {
    const dt_init zero = {DT_INIT_CONSTANT, 0, 0}, huge = {DT_INIT_CONSTANT, 2e38f, 0};
    const dt_linear_desc zeros = {.weight = zero, .no_bias = true};
    const dt_conv_layer_desc wide = {.weight = huge, .no_bias = true};
    const dt_linear_desc huges = {.weight = huge, .no_bias = true};
    dt_tensor h = dt_nn_linear_with(d->x, "a", 3, &zeros);
    switch (way) {
    case 0:
        *want = "op linear of 'b.weight' [B, 2] gave a NaN or an infinity first, in the forward";
        return dt_mean_loss(dt_nn_linear_with(dt_exp(h), "b", 2, &huges));
    case 1: *want = "op log after 'a.weight' [B, 3] gave"; return dt_mean_loss(dt_log(dt_relu(h)));
    case 2:
        *want = "op log 'surprise' [B, 3] gave";
        return dt_mean_loss(dt_label(dt_log(h), "surprise"));
    case 3:
        *want = "op linear_dw [3, 3], the gradient of 'a.weight', gave a NaN or an infinity first, "
                "in the backward";
        return dt_mean_loss(dt_affine(h, 3e38f, 0));
    case 4:
        *want = "op unary_grad after 'a.weight' [B, 3] gave";
        return dt_mean_loss(dt_sqrt(dt_abs(dt_affine(h, 2, 0))));
    case 5:
        *want = "op conv2d of 'c.weight' [B, 2, 1, 1] gave";
        h = dt_reshape(dt_add(h, d->x), dt_dims(3, 1));
        return dt_mean_loss(dt_nn_conv1d(h, "c", 2, 1, &wide));
    default:
        *want = "op reciprocal after 'x' [B, 3] gave";
        return dt_mean_loss(dt_mul(h, dt_reciprocal(dt_sub(d->x, d->x))));
    }
}

TEST(a_nan_names_the_layer_as_well_as_the_op) {
    for (int way = 0; way < 7; way++) {
        bench d;
        dt_report report;
        const char *want;
        bench_open(&d);
        d.loss = nan_model(&d, way, &want);
        d.params = "?.*";
        bench_train(&d);
        CHECK(d.train && !dt_program_write(d.train, d.x, (float[]){1, 2, 3, 4, 5, 6}, 24));
        CHECK(d.train && dt_program_run(d.train, NULL, &report) == DT_ERROR_NUMERIC);
        CHECK_CONTAINS(dt_ctx_error(d.ctx), want);
        CHECK(report.fault_op && strstr(want, report.fault_op));
        dt_ctx_destroy(d.ctx);
    }
}

/* ---- Columns of a trainer's data */

TEST(a_column_that_nothing_reads_is_named) {
    bench d;
    dt_trainer *trainer;
    float rows[12] = {0};
    bench_open(&d);
    dt_tensor mask = dt_input(d.graph, "mask", DT_F32, dt_dims(2));
    dt_tensor alien = dt_input(d.other, "alien", DT_F32, dt_dims(3)); /* of the same number as x */
    const dt_tensor more[] = {mask, d.y, dt_input(d.other, "far", DT_F32, dt_dims(3))};
    const char *const error[] = {
        "dataset column 2: no loss and no metric reads 'mask' [B, 2]; leave it out",
        "dataset column 2: linear of 'fc.weight' [B, 2] is not an input",
        "dataset column 2: its input belongs to another graph than the trainer's: 'far' [B, 3]"};
    dt_trainer_desc desc = {.loss = d.loss, .devices = "cpu", .batch = 2};
    desc.data = (dt_dataset){.rows = 2,
                             .columns = {{.input = d.x, .data = rows, .dtype = DT_F32},
                                         {.input = d.t, .data = rows, .dtype = DT_I32}}};
    for (size_t i = 0; i < COUNT(more); i++) {
        desc.data.columns[2] = (dt_column){.input = more[i], .data = rows, .dtype = DT_F32};
        CHECK(dt_trainer_create(d.graph, &desc, &trainer) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(d.ctx), error[i]);
    }
    desc.data.columns[2] = (dt_column){0};
    desc.data.columns[0].input = alien;
    CHECK(dt_trainer_create(d.graph, &desc, &trainer) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(d.ctx), "dataset column 0: its input belongs to another graph");
    desc.data.columns[0].input = d.x;
    CHECK(!dt_trainer_create(d.graph, &desc, &trainer));
    dt_dataset data = desc.data;
    data.columns[0].input = alien;
    data.columns[1].input = dt_input(d.other, "label", DT_I32, dt_dims());
    CHECK(dt_trainer_evaluate(trainer, &data, 0, NULL) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(d.ctx), "dataset column 0: its input belongs to another graph");
    CHECK(!dt_trainer_evaluate(trainer, &desc.data, 0, NULL));
    dt_ctx_destroy(d.ctx);
}

/* ---- What is promised where one may guess wrong */

TEST(a_batch_norm_that_a_program_does_not_compute_keeps_its_statistics) {
    for (int way = 0; way < 5;
         way++) { /* nobody needs it; an output; a metric; a loss; eval mode */
        bench d;
        dt_store *store = NULL;
        dt_program *program = NULL;
        float mean[3] = {9, 9, 9};
        bench_open(&d);
        dt_tensor side = dt_nn_batch_norm(d.x, "side", NULL);
        dt_program_desc desc = {.loss = d.loss, .batch = 2, .params = "fc.*"};
        desc.optim = &(dt_optim_desc){.kind = DT_OPTIM_SGD};
        if (way == 1)
            desc.outputs[0] = side;
        if (way == 2)
            desc.metrics[0] = dt_mean_loss(side);
        if (way >= 3) {
            desc.loss = (dt_tensor){0};
            desc.losses[0].term = d.loss;
            desc.losses[1].term = dt_mean_loss(side);
        }
        desc.mode = way == 4 ? DT_MODE_EVAL : DT_MODE_DEFAULT;
        CHECK(!dt_store_create(d.graph, &(dt_store_desc){.device = "cpu"}, &store));
        CHECK(!dt_program_create(store, &desc, &program));
        CHECK(program && !dt_program_write(program, d.x, (float[]){1, 2, 3, 4, 5, 6}, 24));
        CHECK(program && !dt_program_write(program, d.t, (int32_t[]){0, 1}, 8));
        CHECK(program && !dt_program_run(program, NULL, NULL));
        CHECK(!dt_store_read(store, dt_store_find(store, "side.running_mean"), DT_VALUE_PARAM, mean,
                             sizeof mean));
        CHECK_NEAR(mean[0], way == 0 || way == 4 ? 0 : 0.25, 1e-6);
        dt_ctx_destroy(d.ctx);
    }
}

TEST(a_gradient_of_an_intermediate_tensor_counts_all_its_uses) {
    bench d;
    dt_program *program = NULL;
    float dh[6], dx[6];
    const float x[6] = {1, -2, 3, 4, 5, -6};
    bench_open(&d);
    dt_tensor h = dt_relu(d.x), y = dt_mul(dt_square(h), d.x); /* and another relu is another */
    y = dt_add(y, dt_relu(d.x));
    dt_tensor to_h = dt_gradient(y, h), to_x = dt_gradient(y, d.x);
    CHECK(!dt_store_create(d.graph, &(dt_store_desc){.device = "cpu"}, &d.store));
    CHECK(!dt_program_create(d.store, &(dt_program_desc){.outputs = {to_h, to_x}, .batch = 2},
                             &program));
    CHECK(program && !dt_program_write(program, d.x, x, sizeof x));
    CHECK(program && !dt_program_run(program, NULL, NULL));
    CHECK(program && !dt_program_read(program, to_h, dh, sizeof dh));
    CHECK(program && !dt_program_read(program, to_x, dx, sizeof dx));
    for (int i = 0; i < 6; i++) {
        const float r = x[i] > 0 ? x[i] : 0;
        CHECK_NEAR(dh[i], 2 * r * x[i], 1e-5);
        CHECK_NEAR(dx[i], x[i] > 0 ? 3 * r * r + 1 : 0, 1e-4);
    }
    dt_ctx_destroy(d.ctx);
}

TEST(common_wrong_shapes_are_errors_that_say_what_to_do) {
    const char *error[] = {
        "targets must be [B]: the logits without their last dimension; dt_reshape them",
        "[B, 4, 5]: the logits without their last dimension; for one a sample dt_flatten before "
        "the last layer",
        "conv2d 'c': x [B, 28, 28] must be [channels, height, width]; one channel needs a "
        "dimension",
        "must be [channels, height, width]; the axis of samples is implied: leave it out",
        "the image must be [channels, height, width]; one channel needs a dimension too",
        "the image must be [channels, height, width]; the axis of samples is implied",
        "conv1d 'c': x [B, 28] must be [channels, length]; one channel needs a dimension too",
        "there is no axis 1: 0 to 0, or -1 to -1; the sample axis (B) is not counted",
        "there is no axis 3: 0 to 2, or -3 to -1; the sample axis (B) is not counted",
        "there is no axis 0: the only axis is the sample axis",
        "dt_freeze: linear of 'fc.weight' is not a parameter",
        "dt_permute(x, dt_dims(1, 0)) first",
    };
    for (size_t way = 0; way < COUNT(error); way++) {
        bench d;
        bench_open(&d);
        const dt_pool_desc pool = {.kernel = {2, 2}};
        dt_tensor one = dt_input(d.graph, "one", DT_I32, dt_dims(1));
        dt_tensor plane = dt_input(d.graph, "plane", DT_F32, dt_dims(28, 28));
        dt_tensor batch = dt_input(d.graph, "batch", DT_F32, dt_dims(64, 1, 28, 28));
        dt_tensor cube = dt_input(d.graph, "cube", DT_F32, dt_dims(4, 5, 6));
        switch (way) {
        case 0: dt_cross_entropy(d.y, one, NULL); break;
        case 1: dt_cross_entropy(cube, d.t, NULL); break;
        case 2: dt_nn_conv2d(plane, "c", 8, 3, NULL); break;
        case 3: dt_nn_conv2d(batch, "c", 8, 3, NULL); break;
        case 4: dt_max_pool2d(plane, &pool); break;
        case 5: dt_avg_pool2d(batch, &pool); break;
        case 6: dt_nn_conv1d(dt_slice(dt_flatten(plane), 0, 0, 28), "c", 8, 3, NULL); break;
        case 7: dt_mean(d.y, dt_dims(1), false); break;
        case 8: dt_softmax(cube, 3); break;
        case 9: dt_slice(dt_sum(d.y, dt_dims(), false), 0, 0, 1); break;
        case 10: dt_freeze(d.y); break;
        default: dt_nn_conv1d(dt_reshape(plane, dt_dims(784, 1)), "c", 8, 3, NULL);
        }
        CHECK_CONTAINS(bench_error(&d), error[way]);
        dt_ctx_destroy(d.ctx);
    }
}

/* Each value is out of a range at the end that callers rarely reach. */
TEST(a_text_states_the_range_that_the_value_is_out_of) {
    for (int i = 0; i < 5; i++) {
        static const char *const want[] = {"rank is -1; it must be from 0 to 5",
                                           "axes has rank -1; it must be from 0 to 5",
                                           "hidden is 1e+09; it must be from 1 to 2^28 - 1",
                                           "height times width, must be from 1 to 2^31 - 1",
                                           ".batch_hint is -1; it must be at least 0 (0 = 64)"};
        bench d;
        dt_store *store;
        bench_open(&d);
        dt_tensor volume = dt_input(d.graph, "v", DT_F32, dt_dims(1, 2, 2, 2)),
                  sequence = dt_input(d.graph, "s", DT_F32, dt_dims(2, 3));
        if (i == 0)
            dt_reshape(d.x, (dt_shape){.rank = -1});
        else if (i == 1)
            dt_sum(d.x, (dt_shape){.rank = -1}, false);
        else if (i == 2)
            dt_nn_lstm(sequence, "lstm", 1000000000, NULL);
        else if (i == 3)
            dt_adaptive_avg_pool3d(volume, 1, 1 << 20, 1 << 20);
        else
            CHECK(dt_store_create(d.graph, &(dt_store_desc){.batch_hint = -1}, &store));
        const char *error = dt_graph_error(d.graph);
        CHECK_CONTAINS(error ? error : dt_ctx_error(d.ctx), want[i]);
        dt_ctx_destroy(d.ctx);
    }
}
