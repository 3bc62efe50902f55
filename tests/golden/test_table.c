/* Tables with a row for padding, against PyTorch's recorded values and gradients
 * (tools/golden/record_golden_table.py), and by their properties. */
#include "golden/golden_op.h"

enum { ROWS = 5, WIDTH = 3, BATCH = 3, BAG = 4, STEPS = 4, PAD = 1 };

GOLDEN(bags_without_their_padding_are_pytorchs, "table") {
    for (int mean = 0; mean < 2; mean++)
        for (int from_end = 0; from_end < 2; from_end++) {
            dt_graph *graph = op_graph(g);
            dt_tensor index = dt_input(graph, "index", DT_I32, dt_dims(BAG));
            dt_tensor table = dt_input_shared(graph, "table", DT_F32, dt_dims(ROWS, WIDTH));
            dt_tensor y = dt_embedding_bag_padded(table, index, mean, PAD - from_end * ROWS);
            op_check_with(g, mean ? "bag_mean" : "bag_sum", BATCH, y, &(leaf){"table", table}, 1,
                          (leaf){"index", index});
        }
}

GOLDEN(an_embedding_with_padding_trains_as_pytorchs, "table") {
    const dt_optim_desc adamw = {.kind = DT_OPTIM_ADAMW, .lr = 0.1, .weight_decay = 0.5};
    dt_tensor index = dt_input(g->graph, "index", DT_I32, dt_dims(BAG));
    dt_tensor dy = dt_input(g->graph, "dy", DT_F32, dt_dims(BAG, WIDTH));
    const dt_embedding_desc desc = {.padding_idx = PAD};
    dt_tensor y = dt_nn_embedding_with(index, "e", ROWS, WIDTH, &desc);
    dt_tensor loss = dt_mean_loss(dt_mul(dt_square(y), dy));
    const golden_array *at = golden_get(g, "index"), *by = golden_get(g, "dy");
    const golden_array *wanted = golden_get(g, "y");
    dt_program *p = NULL;
    if (at && by && wanted && golden_store(g))
        p = golden_program(
            g, (dt_program_desc){.loss = loss, .batch = BATCH, .optim = &adamw, .outputs = {y}});
    if (!p || !OK(g, dt_program_write(p, index, at->i, at->count * 4)) ||
        !OK(g, dt_program_write(p, dy, by->f, by->count * 4)))
        return;
    for (size_t s = 0; s < STEPS; s++) {
        float got[BATCH * BAG * WIDTH];
        OK(g, dt_program_run(p, &(dt_step_desc){0}, NULL));
        OK(g, dt_program_read(p, y, got, sizeof got));
        golden_same(wanted, s * sizeof got / 4, got, sizeof got / 4, 2e-6);
    }
    golden_final(g, "", 2e-6, false);
}

/* Row `row` of a table of ROWS x WIDTH is 0 and no other is; -1: none is. */
static void padding_row(int32_t padding_idx, dt_init init, int row) {
    golden g = {.device = "cpu"};
    float w[ROWS * WIDTH];
    OK(&g, dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &g.ctx));
    OK(&g, dt_graph_create(g.ctx, &g.graph));
    dt_tensor index = dt_input(g.graph, "index", DT_I32, dt_dims());
    const dt_embedding_desc desc = {.weight = init, .padding_idx = padding_idx};
    CHECK(dt_nn_embedding_with(index, "e", ROWS, WIDTH, &desc).id);
    if (OK(&g, dt_store_create(g.graph, NULL, &g.store)) &&
        OK(&g, dt_store_read(g.store, 0, DT_VALUE_PARAM, w, sizeof w)))
        for (int i = 0; i < ROWS * WIDTH; i++)
            test_check((w[i] == 0) == (i / WIDTH == row), __FILE__, __LINE__, "row %d of %d: %g",
                       i / WIDTH, (int)padding_idx, (double)w[i]);
    golden_close(&g);
}

TEST(the_row_of_padding_is_zero_at_first) {
    static const dt_init inits[] = {
        {0}, {DT_INIT_CONSTANT, 2, 0}, {DT_INIT_UNIFORM, 1, 2}, {DT_INIT_ORTHOGONAL, 0, 0}};
    for (size_t i = 0; i < sizeof inits / sizeof inits[0]; i++) {
        padding_row(0, inits[i], -1);
        padding_row((int32_t)DT_ZERO, inits[i], 0);
        padding_row(3, inits[i], 3);
        padding_row(-1, inits[i], ROWS - 1);
    }
}

/* The row of padding is looked up, even if it is infinite; what is not finite does not flow into a
 * bag. */
TEST(padding_hides_values_that_are_not_finite_at_other_shapes_too) {
    golden g = {.device = "cpu"};
    float table[ROWS * WIDTH] = {0}, y[2 * 2 * WIDTH];
    OK(&g, dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &g.ctx));
    OK(&g, dt_graph_create(g.ctx, &g.graph));
    dt_tensor index = dt_input(g.graph, "index", DT_I32, dt_dims(2, BAG));
    dt_tensor rows = dt_input_shared(g.graph, "table", DT_F32, dt_dims(ROWS, WIDTH));
    dt_tensor bag = dt_embedding_bag_padded(rows, index, true, PAD);
    const int32_t at[2 * 2 * 2] = {PAD, 0, 2, PAD, PAD, PAD, 3, 4};
    for (int i = 0; i < ROWS * WIDTH; i++)
        table[i] = i / WIDTH == PAD ? NAN : (float)i;
    dt_program *p = NULL;
    if (OK(&g, dt_store_create(g.graph, NULL, &g.store)))
        p = golden_program(
            &g,
            (dt_program_desc){.outputs = {bag}, .batch = 2, .shapes = {{index, dt_dims(2, 2)}}});
    if (p && OK(&g, dt_program_write(p, index, at, sizeof at)) &&
        OK(&g, dt_program_write(p, rows, table, sizeof table)) &&
        OK(&g, dt_program_run(p, NULL, NULL)) && OK(&g, dt_program_read(p, bag, y, sizeof y)))
        for (int i = 0; i < WIDTH; i++)
            CHECK(y[i] == (float)i && y[WIDTH + i] == (float)(2 * WIDTH + i) &&
                  y[2 * WIDTH + i] == 0 && y[3 * WIDTH + i] == (float)(3 * WIDTH + i) + 1.5f);
    golden_close(&g);
}
