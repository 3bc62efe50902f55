/* Programs from inside: the plan's placement and the descriptions that it refuses. Included by
 * main.c; trained behaviour is in test_golden.c, the memory contract in test_contract.c. */

typedef struct plan_case {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
} plan_case;

static plan_case plan_open(void) {
    plan_case c = {0};
    test_check(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &c.ctx) == DT_OK, __FILE__,
               __LINE__, "no context");
    dt_graph_create(c.ctx, &c.graph);
    return c;
}

TEST(an_elementwise_op_does_not_overwrite_what_it_also_reads_transposed) {
    plan_case c = plan_open();
    enum { N = 40 }; /* more than the walk gathers before it writes */
    static float x[N * N], out[N * N];
    for (int i = 0; i < N * N; i++)
        x[i] = (float)(i + 1);
    dt_tensor in = dt_input(c.graph, "x", DT_F32, dt_dims(N, N));
    dt_tensor twice = dt_affine(in, 2.0f, 0.0f);
    dt_tensor sum = dt_affine(dt_add(twice, dt_permute(twice, dt_dims(1, 0))), 1.0f, 0.5f);
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    REQUIRE(dt_program_create(c.store, &(dt_program_desc){.outputs = {sum}}, &c.program) == DT_OK);
    CHECK(dt_program_write(c.program, in, x, sizeof x) == DT_OK);
    CHECK(dt_program_run(c.program, NULL, NULL) == DT_OK);
    CHECK(dt_program_read(c.program, sum, out, sizeof out) == DT_OK);
    for (int i = 0; i < N * N; i++)
        CHECK_NEAR(out[i], 2.0 * (double)(x[i] + x[i % N * N + i / N]) + 0.5, 0.0);
    dt_ctx_destroy(c.ctx);
}

TEST(a_chain_of_maps_needs_the_memory_of_one) {
    plan_case c = plan_open();
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(1024)), y = x;
    for (int i = 0; i < 10; i++)
        y = dt_tanh(dt_affine(y, 0.5f, 0.1f));
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    REQUIRE(dt_program_create(c.store, &(dt_program_desc){.outputs = {y}}, &c.program) == DT_OK);
    dt_program_info info;
    dt_program_info_get(c.program, &info);
    CHECK(info.transient_bytes == 4096);
    CHECK(info.used_bytes == 4096);
    dt_ctx_destroy(c.ctx);
}

TEST(an_arena_that_grows_keeps_the_other_programs_right) {
    plan_case c = plan_open();
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(8));
    dt_tensor y = dt_nn_linear(dt_tanh(dt_nn_linear(x, "a", 16)), "b", 3);
    dt_program *large;
    float in[8] = {1, -2, 3, -4, 5, -6, 7, -8}, before[3], after[3];
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    REQUIRE(dt_program_create(c.store, &(dt_program_desc){.outputs = {y}}, &c.program) == DT_OK);
    CHECK(dt_program_write(c.program, x, in, sizeof in) == DT_OK);
    CHECK(dt_program_run(c.program, NULL, NULL) == DT_OK);
    CHECK(dt_program_read(c.program, y, before, sizeof before) == DT_OK);
    REQUIRE(dt_program_create(c.store, &(dt_program_desc){.outputs = {y}, .batch = 100}, &large) ==
            DT_OK);
    CHECK(dt_program_run(c.program, NULL, NULL) == DT_OK);
    CHECK(dt_program_read(c.program, y, after, sizeof after) == DT_OK);
    CHECK(memcmp(before, after, sizeof before) == 0);
    dt_ctx_destroy(c.ctx);
}

TEST(everything_wrong_with_a_description_is_told_at_once) {
    plan_case c = plan_open();
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(4)),
              t = dt_input(c.graph, "t", DT_F32, dt_dims(2));
    dt_tensor y = dt_nn_linear(x, "used", 2);
    dt_nn_linear(x, "unused", 2);
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    dt_optim_desc sgd = {.kind = DT_SGD, .nesterov = true, .eps = -1};
    dt_program_desc desc = {.loss = y, .optim = &sgd, .batch = -3};
    CHECK(dt_program_create(c.store, &desc, &c.program) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "is not a loss term");
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "nesterov needs a momentum");
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "eps is -1");
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "batch is -3");
    desc = (dt_program_desc){.loss = dt_mse(y, t), .optim = &(dt_optim_desc){.kind = DT_SGD}};
    CHECK(dt_program_create(c.store, &desc, &c.program) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "parameter 'unused.weight' has no gradient");
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "parameter 'unused.bias' has no gradient");
    dt_ctx_destroy(c.ctx);
}
