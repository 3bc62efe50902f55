/* Training where gradients are views with gaps or repeated elements, and shapes in memory that is
 * not zero. It has the same bits on any number of replicas, and checkpoints that their own model
 * takes. Written against the public header, as a user would. */
#include "dtrain.h"
#include "harness.h"

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

enum { VIEW_ROWS = 40, VIEW_WIDTH = 48 };

/* x: [48] of each sample, t: a class of 3. */
typedef struct view_inputs {
    dt_graph *graph;
    dt_tensor x, t;
} view_inputs;

static dt_tensor view_param(dt_graph *g, const char *name, dt_shape shape) {
    return dt_param(g, name, shape, (dt_init){.kind = DT_INIT_UNIFORM, .a = -0.7f, .b = 0.9f});
}

static dt_tensor view_line(view_inputs in, dt_shape shape, int out) {
    const int64_t last = shape.dim[shape.rank - 1];
    dt_tensor w = view_param(in.graph, "w", dt_dims(out, last));
    return dt_linear(dt_reshape(in.x, shape), w, view_param(in.graph, "b", dt_dims(out)));
}

static dt_tensor view_conv(view_inputs in) {
    dt_tensor w = view_param(in.graph, "w", dt_dims(3, 3, 3, 3));
    dt_tensor b = view_param(in.graph, "b", dt_dims(3));
    return dt_conv2d(dt_reshape(in.x, dt_dims(3, 4, 4)), w, b, NULL);
}

static dt_tensor view_linear_mean(view_inputs in) {
    return dt_mean_loss(view_line(in, dt_dims(16, 1, 3), 1));
}

static dt_tensor view_conv_mean(view_inputs in) {
    return dt_mean_loss(view_conv(in));
}

static dt_tensor view_conv_softmax(view_inputs in) {
    dt_tensor y = dt_log_softmax(view_conv(in), 0);
    return dt_cross_entropy(dt_reshape(y, dt_dims(12)), in.t, NULL);
}

static dt_tensor view_linear_pad(view_inputs in) {
    return dt_cross_entropy(dt_pad(view_line(in, dt_dims(48), 3), 0, 1, 2), in.t, NULL);
}

static dt_tensor view_permuted(view_inputs in) {
    dt_tensor y = dt_permute(view_line(in, dt_dims(4, 3, 4), 5), dt_dims(2, 0, 1));
    return dt_mse(y, dt_sin(y));
}

static dt_tensor view_repeated(view_inputs in) {
    dt_tensor y = dt_expand(view_line(in, dt_dims(16, 1, 3), 2), dt_dims(16, 7, 2));
    dt_tensor sum = dt_sum(dt_permute(y, dt_dims(1, 0, 2)), dt_dims(1), true);
    return dt_mean_loss(dt_mul(y, dt_permute(sum, dt_dims(1, 0, 2))));
}

static dt_tensor view_pad_of_product(view_inputs in) {
    dt_tensor w = view_param(in.graph, "w", dt_dims(4, 3));
    dt_tensor y = dt_matmul(dt_reshape(in.x, dt_dims(12, 4)), w);
    return dt_mean_loss(dt_square(dt_pad(y, 0, 1, 0)));
}

static dt_tensor view_gradient_of_product(view_inputs in) {
    dt_tensor w = view_param(in.graph, "w", dt_dims(4, 3)), x = dt_reshape(in.x, dt_dims(12, 4));
    return dt_mean_loss(dt_square(dt_gradient(dt_tanh(dt_matmul(x, w)), x)));
}

typedef struct view_model {
    const char *name;
    dt_tensor (*loss)(view_inputs in);
} view_model;

static const view_model view_models[] = {
    {"linear, mean", view_linear_mean},
    {"conv, mean", view_conv_mean},
    {"conv, log_softmax of channels, cross-entropy", view_conv_softmax},
    {"linear, pad, cross-entropy", view_linear_pad},
    {"linear, permute, mse of what depends on it", view_permuted},
    {"linear, expand, sum of its permutation", view_repeated},
    {"pad of a product", view_pad_of_product},
    {"gradient of a product", view_gradient_of_product},
};

typedef struct view_run {
    dt_ctx *ctx;
    dt_trainer *trainer;
    float x[VIEW_ROWS * VIEW_WIDTH];
    int32_t t[VIEW_ROWS];
} view_run;

/* Leaves something in the memory that the next calls have on their stack. */
static __attribute__((noinline)) void view_dirty(unsigned char with) {
    volatile unsigned char dirt[8192];
    for (size_t i = 0; i < sizeof dirt; i++)
        dirt[i] = with;
}

static dt_result view_open(view_run *r, const view_model *m, const char *devices, int batch,
                           int batch_slices) {
    uint32_t state = 17;
    view_inputs in = {0};
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &r->ctx) ||
        dt_graph_create(r->ctx, &in.graph))
        return DT_ERROR_MEMORY;
    for (int i = 0; i < VIEW_ROWS * VIEW_WIDTH; i++) {
        state = state * 1664525u + 1013904223u;
        r->x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
    for (int i = 0; i < VIEW_ROWS; i++)
        r->t[i] = i * 7 % 3;
    in.x = dt_input(in.graph, "x", DT_F32, dt_dims(VIEW_WIDTH));
    in.t = dt_input(in.graph, "t", DT_I32, dt_dims());
    dt_trainer_desc d = {.loss = m->loss(in),
                         .optim = &(dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 0.1},
                         .batch = batch,
                         .parallel.batch_slices = batch_slices,
                         .devices = devices,
                         .data = {.rows = VIEW_ROWS,
                                  .columns = {{.input = in.x, .data = r->x},
                                              {.input = in.t, .data = r->t, .dtype = DT_I32}}}};
    if (m->loss != view_conv_softmax && m->loss != view_linear_pad)
        d.data.columns[1] = (dt_column){0};
    return dt_trainer_create(in.graph, &d, &r->trainer);
}

static uint64_t view_hash(const view_model *m, const char *devices, int batch, int batch_slices) {
    view_run *r = calloc(1, sizeof *r);
    uint64_t hash = 0;
    dt_result result = r ? view_open(r, m, devices, batch, batch_slices) : DT_ERROR_MEMORY;
    for (int i = 0; i < 3 && !result; i++)
        result = dt_trainer_step(r->trainer, NULL);
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(r->trainer), &hash);
    test_check(!result, __FILE__, __LINE__, "%s: %s", m->name, r ? dt_ctx_error(r->ctx) : "memory");
    dt_ctx_destroy(r ? r->ctx : NULL);
    free(r);
    return hash;
}

TEST(gradients_that_are_views_have_the_same_bits_on_any_number_of_replicas) {
    static const int sizes[][2] = {{9, 4}, {5, 5}, {11, 3}, {16, 8}, {37, 4}};
    for (size_t k = 0; k < sizeof view_models / sizeof *view_models; k++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            const view_model *m = &view_models[k];
            uint64_t want = view_hash(m, "cpu", sizes[s][0], sizes[s][1]);
            for (int n = 2; n <= sizes[s][1] && n <= 4; n++) {
                const char devices[] = {'c', 'p', 'u', ':', (char)('0' + n), 0};
                test_check(view_hash(m, devices, sizes[s][0], sizes[s][1]) == want, __FILE__,
                           __LINE__, "%s, batch %d, %d batch slices: %s differs from one replica",
                           m->name, sizes[s][0], sizes[s][1], devices);
            }
        }
    }
}

TEST(a_model_loads_its_checkpoint_under_any_memory_budget) {
    char path[] = "/tmp/dtrain-views-XXXXXX";
    int file = mkstemp(path);
    REQUIRE(file >= 0);
    close(file);
    for (size_t k = 0; k < sizeof view_models / sizeof *view_models; k++) {
        for (int again = 0; again < 2; again++) {
            view_run *r = calloc(1, sizeof *r);
            REQUIRE(r != NULL);
            view_dirty(again ? 0xa5 : 0x3c);
            CHECK(view_open(r, &view_models[k], "cpu", 8, 2) == DT_OK);
            if (r->trainer && !again)
                CHECK(dt_trainer_save(r->trainer, path) == DT_OK);
            else if (r->trainer)
                test_check(dt_trainer_load(r->trainer, path) == DT_OK, __FILE__, __LINE__, "%s: %s",
                           view_models[k].name, dt_ctx_error(r->ctx));
            dt_ctx_destroy(r->ctx);
            free(r);
        }
    }
    unlink(path);
}
