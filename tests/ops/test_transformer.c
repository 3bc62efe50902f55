/* Parts of transformers against sums in double: rotary positions, gated feed-forwards, and a table
 * that an embedding and a head share. */
#include "golden/golden.h"

enum { PLACES = 5, WIDTH = 6, PAIRS = WIDTH / 2, HIDDEN = 4 };

static void part_open(golden *g) {
    memset(g, 0, sizeof *g);
    g->device = "cpu";
    if (OK(g, dt_ctx_create(NULL, &g->ctx)))
        OK(g, dt_graph_create(g->ctx, &g->graph));
}

static dt_program *part_program(golden *g, dt_program_desc desc) {
    CHECK(!dt_graph_error(g->graph));
    if (!OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store)))
        return NULL;
    return golden_program(g, desc);
}

static float part_value(int i) {
    return (float)(i * 37 % 23) / 11.0f - 1.0f;
}

/* y of one row of PLACES x WIDTH; back: turned the other way, which is the gradient. */
static void rope_wanted(const float *x, double *y, int position, double base, bool interleaved,
                        bool back, int places) {
    for (int t = 0; t < places; t++)
        for (int i = 0; i < PAIRS; i++) {
            const double angle = (position + t) * pow(base, -2.0 * i / WIDTH);
            const double c = cos(angle), s = back ? -sin(angle) : sin(angle);
            const int a = t * WIDTH + (interleaved ? 2 * i : i);
            const int b = interleaved ? a + 1 : a + PAIRS;
            y[a] = x[a] * c - x[b] * s;
            y[b] = x[b] * c + x[a] * s;
        }
}

static void rope_compare(golden *g, dt_program *p, dt_tensor y, const double *want, int places,
                         int position) {
    float got[PLACES * WIDTH];
    if (OK(g, dt_program_read(p, y, got, (size_t)(places * WIDTH) * 4)))
        for (int i = 0; i < places * WIDTH; i++)
            CHECK_NEAR(got[i], want[i], 3e-6 + 1.5e-7 * (position + places));
}

static void rope_check(bool interleaved, float base, int places) {
    golden g;
    part_open(&g);
    dt_tensor x = dt_input(g.graph, "x", DT_F32, dt_dims(PLACES, WIDTH));
    dt_tensor dy = dt_input(g.graph, "dy", DT_F32, dt_dims(PLACES, WIDTH));
    dt_tensor at = dt_input_shared(g.graph, "at", DT_I32, dt_dims());
    const dt_rope_desc from = {.base = base, .interleaved = interleaved, .offset = at};
    const dt_rope_desc first = {.base = base, .interleaved = interleaved};
    dt_tensor y = dt_rope(x, &from), still = dt_rope(x, &first);
    dt_tensor sum = dt_sum(dt_mul(y, dy), dt_dims(), false), dx = dt_gradient(sum, x);
    dt_program_desc wanted = {.outputs = {y, dx, still, sum}};
    if (places != PLACES) {
        wanted.shapes[0] = (dt_input_shape){x, dt_dims(places, WIDTH)};
        wanted.shapes[1] = (dt_input_shape){dy, dt_dims(places, WIDTH)};
    }
    dt_program *p = part_program(&g, wanted);
    static const int32_t positions[] = {0, 1, 10000, 65000};
    float values[2][PLACES * WIDTH];
    for (int i = 0; i < PLACES * WIDTH; i++)
        values[0][i] = part_value(i), values[1][i] = part_value(i + 50);
    for (int k = 0; p && k < 4; k++) {
        double want[PLACES * WIDTH];
        const size_t bytes = (size_t)(places * WIDTH) * 4;
        OK(&g, dt_program_write(p, x, values[0], bytes));
        OK(&g, dt_program_write(p, dy, values[1], bytes));
        OK(&g, dt_program_write(p, at, &positions[k], 4));
        if (!OK(&g, dt_program_run(p, NULL, NULL)))
            break;
        const double b = base != 0 ? (double)base : 10000.0;
        rope_wanted(values[0], want, positions[k], b, interleaved, false, places);
        rope_compare(&g, p, y, want, places, positions[k]);
        rope_wanted(values[1], want, positions[k], b, interleaved, true, places);
        rope_compare(&g, p, dx, want, places, positions[k]);
        rope_wanted(values[0], want, 0, b, interleaved, false, places);
        rope_compare(&g, p, still, want, places, 0);
    }
    golden_close(&g);
}

TEST(rope_rotates_halves_by_positions) {
    rope_check(false, 0, PLACES);
    rope_check(false, 500000.0f, PLACES);
}

TEST(rope_rotates_neighbours_by_positions) {
    rope_check(true, 0, PLACES);
}

TEST(rope_follows_a_program_of_another_length) {
    rope_check(false, 0, 3);
    rope_check(true, 0, 3);
}

/* `.rope = true`, which turned the rotation on in 0.1, still compiles in C: it sets the base. */
TEST(an_attention_layer_refuses_each_rope_member_without_use_rope) {
    golden g;
    part_open(&g);
    dt_tensor x = dt_input(g.graph, "x", DT_F32, dt_dims(PLACES, WIDTH));
    dt_tensor at = dt_input_shared(g.graph, "at", DT_I32, dt_dims());
    const dt_rope_desc set[] = {{.base = true}, {.interleaved = true}, {.offset = at}};
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
        const dt_attention_layer_desc off = {.rope = set[i]},
                                      on = {.use_rope = true, .rope = set[i]};
        CHECK(!dt_nn_multi_head_attention(x, x, "off", 1, &off).id);
        CHECK_CONTAINS(dt_graph_error(g.graph), "'off': .rope");
        CHECK_CONTAINS(dt_graph_error(g.graph), "needs .use_rope = true");
        dt_graph_clear_error(g.graph);
        if (!set[i].base)
            CHECK(dt_nn_multi_head_attention(x, x, i == 1 ? "on1" : "on2", 1, &on).id);
    }
    golden_close(&g);
}

static void part_param(golden *g, const char *name, int count, float *values) {
    for (int i = 0; i < count; i++)
        values[i] = part_value(i * 3 + (int)name[2]);
    OK(g, dt_store_write(g->store, dt_store_find(g->store, name), DT_VALUE_PARAM, values,
                         (size_t)count * 4));
}

static void gated_check(bool silu) {
    golden g;
    part_open(&g);
    dt_tensor x = dt_input(g.graph, "x", DT_F32, dt_dims(WIDTH));
    dt_tensor y = silu ? dt_nn_swiglu(x, "m", HIDDEN) : dt_nn_geglu(x, "m", HIDDEN);
    dt_program *p = part_program(&g, (dt_program_desc){.outputs = {y}});
    float w[3][HIDDEN * WIDTH], in[WIDTH], got[WIDTH];
    double hidden[HIDDEN];
    if (p) {
        part_param(&g, "m.gate_proj.weight", HIDDEN * WIDTH, w[0]);
        part_param(&g, "m.up_proj.weight", HIDDEN * WIDTH, w[1]);
        part_param(&g, "m.down_proj.weight", HIDDEN * WIDTH, w[2]);
        for (int i = 0; i < WIDTH; i++)
            in[i] = part_value(i + 7);
        for (int h = 0; h < HIDDEN; h++) {
            double gate = 0, up = 0;
            for (int i = 0; i < WIDTH; i++) {
                gate += (double)w[0][h * WIDTH + i] * in[i];
                up += (double)w[1][h * WIDTH + i] * in[i];
            }
            hidden[h] = up * (silu ? gate / (1 + exp(-gate)) : gate * erfc(-gate / sqrt(2.0)) / 2);
        }
        OK(&g, dt_program_write(p, x, in, sizeof in));
        OK(&g, dt_program_run(p, NULL, NULL));
        OK(&g, dt_program_read(p, y, got, sizeof got));
        for (int i = 0; i < WIDTH; i++) {
            double sum = 0;
            for (int h = 0; h < HIDDEN; h++)
                sum += w[2][i * HIDDEN + h] * hidden[h];
            CHECK_NEAR(got[i], sum, 1e-5);
        }
    }
    golden_close(&g);
}

TEST(gated_feed_forward_layers_equal_llamas) {
    gated_check(true);
    gated_check(false);
}

/* loss = sum over c of e_row . e_c, whose gradient to table row r has two parts. By the embedding
 * it is the sum of all rows where r is looked up. By the head it is the row that was looked up. */
TEST(a_table_that_embedding_and_head_share_gets_both_gradients) {
    enum { ROWS = 3 };
    golden g;
    part_open(&g);
    dt_tensor index = dt_input(g.graph, "index", DT_I32, dt_dims());
    dt_tensor table =
        dt_param(g.graph, "wte.weight", dt_dims(ROWS, WIDTH), (dt_init){DT_INIT_NORMAL, 0, 1});
    dt_tensor logits = dt_linear(dt_embedding(table, index), table, (dt_tensor){0});
    dt_tensor sum = dt_sum(logits, dt_dims(), false);
    dt_tensor grad = dt_gradient(sum, table);
    dt_program *p = part_program(&g, (dt_program_desc){.outputs = {grad}});
    float w[ROWS * WIDTH], got[ROWS * WIDTH];
    const int32_t row = 1;
    if (p) {
        part_param(&g, "wte.weight", ROWS * WIDTH, w);
        OK(&g, dt_program_write(p, index, &row, sizeof row));
        OK(&g, dt_program_run(p, NULL, NULL));
        OK(&g, dt_program_read(p, grad, got, sizeof got));
        for (int i = 0; i < ROWS * WIDTH; i++) {
            const int c = i % WIDTH;
            double want = w[row * WIDTH + c];
            for (int r = 0; r < ROWS && i / WIDTH == row; r++)
                want += w[r * WIDTH + c];
            CHECK_NEAR(got[i], want, 1e-6);
        }
    }
    golden_close(&g);
}

TEST(bilinear_layers_equal_the_sums_of_their_definition) {
    enum { IN1 = 3, IN2 = 2, OUT = 4 };
    golden g;
    part_open(&g);
    dt_tensor x1 = dt_input(g.graph, "x1", DT_F32, dt_dims(PLACES, IN1));
    dt_tensor x2 = dt_input(g.graph, "x2", DT_F32, dt_dims(PLACES, IN2));
    dt_tensor y = dt_nn_bilinear(x1, x2, "both", OUT);
    dt_program *p = part_program(&g, (dt_program_desc){.outputs = {y}});
    float w[OUT * IN1 * IN2], b[OUT], a1[PLACES * IN1], a2[PLACES * IN2], got[PLACES * OUT];
    for (int i = 0; i < OUT * IN1 * IN2; i++)
        w[i] = part_value(i);
    for (int i = 0; i < PLACES * IN1; i++)
        a1[i] = part_value(i + 50);
    for (int i = 0; i < PLACES * IN2; i++)
        a2[i] = part_value(i + 90);
    for (int i = 0; i < OUT; i++)
        b[i] = part_value(i + 130);
    if (p && OK(&g, dt_store_write(g.store, 0, DT_VALUE_PARAM, w, sizeof w)) &&
        OK(&g, dt_store_write(g.store, 1, DT_VALUE_PARAM, b, sizeof b)) &&
        OK(&g, dt_program_write(p, x1, a1, sizeof a1)) &&
        OK(&g, dt_program_write(p, x2, a2, sizeof a2)) && OK(&g, dt_program_run(p, NULL, NULL)) &&
        OK(&g, dt_program_read(p, y, got, sizeof got)))
        for (int t = 0; t < PLACES; t++)
            for (int o = 0; o < OUT; o++) {
                double sum = b[o];
                for (int i = 0; i < IN1; i++)
                    for (int j = 0; j < IN2; j++)
                        sum +=
                            (double)a1[t * IN1 + i] * w[(o * IN1 + i) * IN2 + j] * a2[t * IN2 + j];
                CHECK_NEAR(got[t * OUT + o], sum, 1e-6);
            }
    golden_close(&g);
}
