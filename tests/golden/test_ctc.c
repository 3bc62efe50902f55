/* Connectionist temporal classification: PyTorch's recorded losses and gradients of logits
 * (tools/golden/record_golden_ctc.py), and what a few paths that can be counted by hand give. */
#include "golden/golden_op.h"

#include <math.h>

#define NONE ((dt_tensor){0})

/* ---- PyTorch */

typedef struct ctc_case {
    const char *name;
    int blank;
    bool zero, by_length;
} ctc_case;

enum { CTC_BATCH = 5, CTC_T = 9, CTC_C = 6, CTC_S = 4 };

static void ctc_check(golden *g, const ctc_case *c) {
    dt_graph *graph = op_graph(g);
    const dt_shape one = dt_dims();
    leaf in[4] = {{"a", dt_input(graph, "a", DT_F32, dt_dims(CTC_T, CTC_C))},
                  {"t", dt_input(graph, "t", DT_I32, dt_dims(CTC_S))},
                  {"n", dt_input(graph, "n", DT_I32, one)},
                  {"m", dt_input(graph, "m", DT_I32, one)}};
    const dt_ctc_desc desc = {.steps = in[2].x,
                              .labels = in[3].x,
                              .blank = c->blank,
                              .zero_infinity = c->zero,
                              .by_length = c->by_length};
    dt_tensor loss = dt_ctc_loss(dt_log_softmax(in[0].x, -1), in[1].x, &desc);
    op_check(g, c->name, CTC_BATCH, loss, in, 4);
    CHECK(!dt_graph_error(graph));
}

GOLDEN(ctc_gives_pytorchs_losses_and_gradients_of_logits, "ctc") {
    static const ctc_case cases[] = {
        {"ctc", 0, false, false}, {"ctc_mean", 0, false, true}, {"ctc_zero", 2, true, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ctc_check(g, &cases[i]);
}

/* Sums of a loss of about 2,000 are 1e-4 off, and what they give is not. */
GOLDEN(ctc_shares_of_a_step_add_up_to_one_in_long_walks, NULL) {
    enum { T = 400, C = 4, S = 40 };
    static float x[T * C], dx[T][C];
    int32_t t[S];
    uint32_t state = 7;
    dt_tensor in = dt_input(g->graph, "x", DT_F32, dt_dims(T, C)),
              labels = dt_input(g->graph, "t", DT_I32, dt_dims(S));
    dt_tensor slope = dt_gradient(dt_ctc_loss(in, labels, NULL), in);
    dt_program *p = golden_store(g)
                        ? golden_program(g, (dt_program_desc){.outputs = {slope}, .batch = 1})
                        : NULL;
    for (int i = 0; i < T * C; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / -2097152.0f - 2;
    }
    for (int i = 0; i < S; i++)
        t[i] = 1 + i * i % 3;
    if (!p || !OK(g, dt_program_write(p, in, x, sizeof x)) ||
        !OK(g, dt_program_write(p, labels, t, sizeof t)) || !OK(g, dt_program_run(p, NULL, NULL)) ||
        !OK(g, dt_program_read(p, slope, dx, sizeof dx)))
        return;
    for (int i = 0; i < T; i++)
        CHECK_NEAR(dx[i][0] + dx[i][1] + dx[i][2] + dx[i][3], -1, 2e-6);
}

/* ---- By hand */

typedef struct ctc_run {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
    dt_tensor x, t, loss, dx;
} ctc_run;

/* [T, C] log-probabilities and S labels of each of `batch` samples. */
static bool ctc_open(ctc_run *r, int steps, int classes, int labels, int batch,
                     const dt_ctc_desc *desc) {
    *r = (ctc_run){0};
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &r->ctx) ||
        dt_graph_create(r->ctx, &r->graph))
        return false;
    r->x = dt_input(r->graph, "x", DT_F32, dt_dims(steps, classes));
    r->t = dt_input(r->graph, "t", DT_I32, dt_dims(labels));
    r->loss = dt_ctc_loss(r->x, r->t, desc);
    r->dx = dt_gradient(r->loss, r->x);
    return !dt_store_create(r->graph, &(dt_store_desc){.device = "cpu"}, &r->store) &&
           !dt_program_create(r->store,
                              &(dt_program_desc){.outputs = {r->loss, r->dx}, .batch = batch},
                              &r->program);
}

/* Of two steps that find three classes alike: nine ways, each 1 / 9. */
TEST(ctc_sums_over_all_alignments_and_gives_infinity_for_impossible_targets) {
    enum { B = 7 };
    static const int32_t t[B][2] = {{1, -1}, {1, 2}, {-1, 1}, {1, 1}, {0, 1}, {2, 0}, {-1, -1}};
    const float want[B] = {logf(3), logf(9), logf(9), INFINITY, NAN, NAN, logf(9)};
    float x[B * 2 * 3], loss[B], dx[B][2][3];
    ctc_run r;
    REQUIRE(ctc_open(&r, 2, 3, 2, B, NULL));
    for (int i = 0; i < B * 2 * 3; i++)
        x[i] = -logf(3);
    CHECK(!dt_program_write(r.program, r.x, x, sizeof x));
    CHECK(!dt_program_write(r.program, r.t, t, sizeof t));
    CHECK(!dt_program_run(r.program, NULL, NULL));
    CHECK(!dt_program_read(r.program, r.loss, loss, sizeof loss));
    CHECK(!dt_program_read(r.program, r.dx, dx, sizeof dx));
    for (int i = 0; i < B; i++)
        CHECK(isnan(want[i]) ? isnan(loss[i])
                             : loss[i] == want[i] || fabsf(loss[i] - want[i]) < 1e-6f);
    CHECK_NEAR(dx[0][0][1], -2.0 / 3, 1e-6); /* (1, 1), (1, blank), (blank, 1) */
    CHECK_NEAR(dx[0][1][0], -1.0 / 3, 1e-6);
    CHECK(dx[0][0][2] == 0 && dx[1][0][2] == 0 && fabsf(dx[1][1][2] + 1) < 1e-6f);
    CHECK(isnan(dx[3][0][1]) && isnan(dx[4][0][0]) && isnan(dx[5][1][2]));
    dt_ctx_destroy(r.ctx);
}

/* A class of probability 0 is not on any path, and values on no path are not read. */
TEST(ctc_takes_log_probabilities_of_minus_infinity) {
    const float x[2 * 2 * 3] = {-INFINITY, 0, NAN, 0, -INFINITY, NAN, -INFINITY, 0, NAN, 0, 0, NAN};
    const int32_t t[2][1] = {{1}, {-1}};
    float loss[2], dx[2][2][3];
    ctc_run r;
    REQUIRE(ctc_open(&r, 2, 3, 1, 2, NULL));
    CHECK(!dt_program_write(r.program, r.x, x, sizeof x));
    CHECK(!dt_program_write(r.program, r.t, t, sizeof t));
    CHECK(!dt_program_run(r.program, NULL, NULL));
    CHECK(!dt_program_read(r.program, r.loss, loss, sizeof loss));
    CHECK(!dt_program_read(r.program, r.dx, dx, sizeof dx));
    CHECK(loss[0] == 0 && isinf(loss[1]));
    CHECK(dx[0][0][0] == 0 && dx[0][0][1] == -1 && dx[0][1][0] == -1 && dx[0][1][1] == 0);
    CHECK(dx[0][0][2] == 0);
    dt_ctx_destroy(r.ctx);
}

TEST(ctc_refuses_labels_out_of_range_when_they_are_written) {
    static const int32_t more[2] = {1, 3}, less[2] = {1, -2}, good[2] = {1, -1};
    ctc_run r;
    REQUIRE(ctc_open(&r, 2, 3, 2, 1, NULL));
    CHECK(dt_program_write(r.program, r.t, more, sizeof more) == DT_ERROR_INVALID);
    CHECK(strstr(dt_ctx_error(r.ctx), "3 is not in [0, 3), which ctc needs"));
    CHECK(dt_program_write(r.program, r.t, less, sizeof less) == DT_ERROR_INVALID);
    CHECK(dt_program_write(r.program, r.t, good, sizeof good) == DT_OK);
    dt_ctx_destroy(r.ctx);
}

/* The steps of a program's shapes take the place of the graph's. */
TEST(ctc_is_rebuilt_for_another_number_of_steps) {
    const float x[4 * 2] = {0};
    const int32_t t[1] = {1};
    float loss = 0;
    dt_program *longer;
    ctc_run r;
    REQUIRE(ctc_open(&r, 2, 2, 1, 1, NULL));
    REQUIRE(!dt_program_create(
        r.store,
        &(dt_program_desc){.outputs = {r.loss}, .batch = 1, .shapes = {{r.x, dt_dims(4, 2)}}},
        &longer));
    CHECK(!dt_program_write(longer, r.x, x, sizeof x));
    CHECK(!dt_program_write(longer, r.t, t, sizeof t));
    CHECK(!dt_program_run(longer, NULL, NULL));
    CHECK(!dt_program_read(longer, r.loss, &loss, sizeof loss));
    CHECK_NEAR(loss, -log(10), 1e-5); /* runs of one label within four steps */
    dt_ctx_destroy(r.ctx);
}

TEST(ctc_refuses_second_derivatives_and_shapes_that_do_not_fit) {
    ctc_run r;
    REQUIRE(ctc_open(&r, 2, 3, 2, 1, NULL));
    dt_graph *g;
    CHECK(!dt_gradient(r.dx, r.x).id);
    CHECK(strstr(dt_graph_error(r.graph), "no second derivatives of ctc_loss"));
    REQUIRE(!dt_graph_create(r.ctx, &g));
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(4, 3)), t = dt_input(g, "t", DT_I32, dt_dims(2));
    CHECK(!dt_ctc_loss(x, t, &(dt_ctc_desc){.blank = 3}).id);
    CHECK(strstr(dt_graph_error(g), "blank is 3; it must be one of the 3 classes"));
    REQUIRE(!dt_graph_create(r.ctx, &g));
    x = dt_input(g, "x", DT_F32, dt_dims(4, 3)), t = dt_input(g, "t", DT_I32, dt_dims(2));
    CHECK(!dt_ctc_loss(x, t, &(dt_ctc_desc){.steps = t}).id);
    CHECK(strstr(dt_graph_error(g), "steps [B, 2] must be i32 [], one a sample"));
    const int64_t sizes[][2] = {{(1 << 24) + 1, 1}, {1, (1 << 24) + 1}, {INT32_MAX, INT32_MAX}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        REQUIRE(!dt_graph_create(r.ctx, &g));
        x = dt_input(g, "x", DT_F32, dt_dims(sizes[i][0], 1));
        CHECK(!dt_ctc_loss(x, dt_input(g, "t", DT_I32, dt_dims(sizes[i][1])), NULL).id);
        CHECK_CONTAINS(dt_graph_error(g), "more than 16777216 steps, classes or labels");
    }
    dt_ctx_destroy(r.ctx);
}
