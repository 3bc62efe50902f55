/* Initial values by their properties: bases that are orthogonal, shares of zeros, bounds and
 * moments, the identity. Also values that the application puts there. */
#include "golden/golden.h"

#include <math.h>

enum { INIT_MOST = 300 * 200 };

static float init_values[INIT_MOST];

static const float *init_of(golden *g, dt_store_desc desc, dt_shape shape, dt_init init) {
    dt_store_destroy(g->store), g->store = NULL;
    dt_graph_destroy(g->graph), g->graph = NULL;
    int64_t all = 1;
    for (int i = 0; i < shape.rank; i++)
        all *= shape.dim[i];
    desc.device = g->device;
    desc.seed = 5;
    if (!OK(g, dt_graph_create(g->ctx, &g->graph)))
        return init_values;
    dt_param(g->graph, "before", dt_dims(3), (dt_init){0});
    dt_param(g->graph, "w", shape, init);
    CHECK(!dt_graph_error(g->graph));
    memset(init_values, 0x55, sizeof init_values);
    if (OK(g, dt_store_create(g->graph, &desc, &g->store)))
        OK(g, dt_store_read(g->store, 1, DT_VALUE_PARAM, init_values, (size_t)all * 4));
    return init_values;
}

static double init_dot(const float *w, int64_t a, int64_t b, int64_t n, int64_t step,
                       int64_t next) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)w[a * next + i * step] * (double)w[b * next + i * step];
    return sum;
}

GOLDEN(orthogonal_values_are_bases, NULL) {
    static const dt_shape shapes[] = {{2, {40, 30}},     {2, {30, 40}}, {2, {33, 33}},
                                      {4, {6, 4, 3, 2}}, {2, {1, 1}},   {2, {300, 200}}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        const dt_shape shape = shapes[s];
        int64_t cols = 1;
        for (int i = 1; i < shape.rank; i++)
            cols *= shape.dim[i];
        const float *w = init_of(g, (dt_store_desc){0}, shape, (dt_init){DT_INIT_ORTHOGONAL, 3, 0});
        const int64_t rows = shape.dim[0], count = rows < cols ? rows : cols;
        for (int64_t a = 0; a < count; a++)
            for (int64_t b = a; b < count; b++)
                CHECK_NEAR(rows > cols ? init_dot(w, a, b, rows, cols, 1)
                                       : init_dot(w, a, b, cols, 1, cols),
                           a == b ? 9.0 : 0.0, 3e-5);
    }
}

GOLDEN(a_truncated_normal_lies_within_two_deviations, NULL) {
    const float *w = init_of(g, (dt_store_desc){0}, dt_dims(300, 200),
                             (dt_init){DT_INIT_TRUNCATED_NORMAL, 1, 0.5f});
    double sum = 0, squares = 0;
    float most = 0;
    for (int i = 0; i < INIT_MOST; i++) {
        const double x = ((double)w[i] - 1) / 0.5;
        most = fmaxf(most, (float)fabs(x));
        sum += x, squares += x * x;
    }
    CHECK(most <= 2.0f && most > 1.99f);
    CHECK_NEAR(sum / INIT_MOST, 0.0, 0.015);
    CHECK_NEAR(squares / INIT_MOST, 0.773741, 0.015); /* 1 - 4 pdf(2) / (1 - 2 cdf(-2)) */
}

GOLDEN(a_sparse_matrix_has_its_share_of_zeros_in_each_column, NULL) {
    const float *w =
        init_of(g, (dt_store_desc){0}, dt_dims(37, 50), (dt_init){DT_INIT_SPARSE, 0.3f, 0});
    double squares = 0;
    int same = 0;
    for (int col = 0; col < 50; col++) {
        int zeros = 0;
        for (int row = 0; row < 37; row++) {
            zeros += w[row * 50 + col] == 0.0f;
            same += col > 0 && (w[row * 50 + col] == 0.0f) == (w[row * 50 + col - 1] == 0.0f);
            squares += (double)w[row * 50 + col] * (double)w[row * 50 + col];
        }
        CHECK(zeros == 12); /* of 11.1 */
    }
    CHECK(same < 37 * 49 * 7 / 10); /* each column has its own */
    CHECK_NEAR(sqrt(squares / (50 * 25)), 0.01, 0.001);
}

/* math.ceil(sparsity * rows) of the decimal number, not of the float next to it. */
GOLDEN(a_sparse_share_that_fills_whole_rows_has_none_more, NULL) {
    for (int tenths = 0; tenths <= 10; tenths++)
        for (int rows = 10; rows <= 50; rows += 40) {
            const dt_init init = {DT_INIT_SPARSE, (float)tenths / 10, 0};
            const float *w = init_of(g, (dt_store_desc){0}, dt_dims(rows, 1), init);
            int zeros = 0;
            for (int row = 0; row < rows; row++)
                zeros += w[row] == 0.0f;
            CHECK(zeros == rows / 10 * tenths);
        }
}

GOLDEN(an_identity_lets_channels_through, NULL) {
    const float *w =
        init_of(g, (dt_store_desc){0}, dt_dims(3, 5), (dt_init){DT_INIT_IDENTITY, 2, 0});
    for (int i = 0; i < 15; i++)
        CHECK(w[i] == (i / 5 == i % 5 ? 2.0f : 0.0f));
    w = init_of(g, (dt_store_desc){0}, dt_dims(4, 2, 3, 4), (dt_init){DT_INIT_IDENTITY, 0, 0});
    for (int i = 0; i < 4 * 2 * 12; i++) /* the middle of 3 x 4 is (1, 2) */
        CHECK(w[i] == (i / 24 == i / 12 % 2 && i % 12 == 6 ? 1.0f : 0.0f));
}

static void init_steps(void *user, const char *name, dt_shape shape, float *values) {
    int *calls = user;
    (*calls)++;
    CHECK(!strcmp(name, "w") ? shape.rank == 2 : shape.rank == 1);
    for (int i = 0; !strcmp(name, "w") && i < 6; i++)
        values[i] += (float)i;
}

GOLDEN(an_application_fills_parameters_itself, NULL) {
    int calls = 0;
    const dt_store_desc desc = {.init = init_steps, .init_user = &calls};
    const float *w = init_of(g, desc, dt_dims(2, 3), (dt_init){DT_INIT_CONSTANT, 10, 0});
    for (int i = 0; i < 6; i++)
        CHECK(w[i] == 10.0f + (float)i);
    CHECK(calls == 2);
    OK(g, dt_store_reset(g->store, DT_RESET_ALL));
    CHECK(calls == 4);
}

GOLDEN(initial_values_of_matrices_refuse_other_shapes, NULL) {
    static const struct {
        dt_shape shape;
        dt_init init;
    } wrong[] = {{{1, {4}}, {DT_INIT_ORTHOGONAL, 0, 0}},
                 {{1, {4}}, {DT_INIT_IDENTITY, 0, 0}},
                 {{3, {4, 4, 4}}, {DT_INIT_SPARSE, 0.5f, 0}},
                 {{2, {4, 4}}, {DT_INIT_SPARSE, 1.5f, 0}},
                 {{2, {4, 4}}, {DT_INIT_SPARSE, -0.5f, 0}}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        dt_param(g->graph, "w", wrong[i].shape, wrong[i].init);
        CHECK(dt_graph_error(g->graph) && strstr(dt_graph_error(g->graph), "dt_init"));
        dt_graph_clear_error(g->graph);
    }
}
