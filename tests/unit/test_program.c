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

TEST(an_elementwise_op_does_not_overwrite_an_operand_that_it_reads_transposed) {
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

TEST(a_chain_of_elementwise_ops_needs_the_memory_of_one) {
    plan_case c = plan_open();
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(1024)), y = x;
    for (int i = 0; i < 10; i++)
        y = dt_tanh(dt_affine(y, 0.5f, 0.1f));
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    REQUIRE(dt_program_create(c.store, &(dt_program_desc){.outputs = {y}}, &c.program) == DT_OK);
    dt_program_info info;
    dt_program_get_info(c.program, &info);
    CHECK(info.transient_bytes == 4096);
    CHECK(lower_used(c.program->code) == 4096);
    dt_ctx_destroy(c.ctx);
}

TEST(outputs_can_be_read_after_the_forward_segment_even_if_the_step_is_cancelled) {
    plan_case c = plan_open();
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(2)), y = dt_nn_linear(x, "a", 1);
    const dt_program_desc desc = {
        .loss = dt_mean_loss(y), .outputs = {y}, .optim = &(dt_optim_desc){0}};
    dt_step_state state = DT_STEP_RUNNING;
    float out;
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    REQUIRE(dt_program_create(c.store, &desc, &c.program) == DT_OK);
    CHECK(dt_program_write(c.program, x, (float[]){1, 2}, 8) == DT_OK);
    for (int forward = 0; forward < 2; forward++) {
        CHECK(dt_program_begin(c.program, NULL) == DT_OK);
        CHECK(dti_drive_is_open(c.program) && !dti_drive_is_busy(c.program));
        CHECK(dt_program_read(c.program, y, &out, sizeof out) == DT_ERROR_INVALID);
        while (forward && state != DT_STEP_READY)
            REQUIRE(dt_program_advance(c.program, &state) == DT_OK);
        CHECK(dt_program_cancel(c.program, NULL) == DT_OK && !dti_drive_is_open(c.program));
        CHECK(dt_program_read(c.program, y, &out, sizeof out) ==
              (forward ? DT_OK : DT_ERROR_INVALID));
    }
    dt_ctx_destroy(c.ctx);
}

TEST(iota_counts_in_row_major_order_and_an_embedding_takes_an_init) {
    plan_case c = plan_open();
    float got[8], rows[4];
    dt_tensor at = dt_cast(dt_iota(c.graph, dt_dims(2)), DT_I32);
    const dt_embedding_desc desc = {.weight = {DT_INIT_CONSTANT, 0.5f, 0}};
    dt_tensor row = dt_nn_embedding_with(at, "e", 3, 2, &desc), y = dt_iota(c.graph, dt_dims(2, 4));
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    const dt_program_desc d = {.outputs = {y, row}};
    REQUIRE(dt_program_create(c.store, &d, &c.program) == DT_OK);
    CHECK(dt_program_run(c.program, NULL, NULL) == DT_OK);
    CHECK(dt_program_read(c.program, y, got, sizeof got) == DT_OK);
    CHECK(dt_program_read(c.program, row, rows, sizeof rows) == DT_OK);
    for (int i = 0; i < 8; i++)
        CHECK(got[i] == (float)i && rows[i / 2] == 0.5f);
    dt_ctx_destroy(c.ctx);
}

TEST(a_linear_layer_of_no_inputs_is_its_bias) {
    plan_case c = plan_open();
    float got[12];
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(2, 0));
    dt_tensor w = dt_constant(c.graph, DT_F32, dt_dims(3, 0), got);
    dt_tensor y = dt_linear(x, w, dt_fill(c.graph, dt_dims(3), 2));
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    const dt_program_desc d = {.outputs = {y}, .batch = 2};
    REQUIRE(dt_program_create(c.store, &d, &c.program) == DT_OK);
    CHECK(dt_program_write(c.program, x, got, 0) == DT_OK);
    CHECK(dt_program_run(c.program, NULL, NULL) == DT_OK);
    CHECK(dt_program_read(c.program, y, got, sizeof got) == DT_OK);
    for (int i = 0; i < 12; i++)
        CHECK(got[i] == 2);
    dt_ctx_destroy(c.ctx);
}

/* Rows 2 and 0 of a table, and a mask over samples; the arrays do not live as long as the graph. */
static void constant_run(const char *device) {
    plan_case c = {0};
    float table[] = {1, 2, 3, 4, 5, 6}, mask[] = {1, 0}, in[] = {7, 8, 9, 10}, rows[4], masked[4];
    int32_t index[] = {2, 0};
    const bool cpu = strcmp(device, "cpu") == 0;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = cpu}, &c.ctx) == DT_OK);
    REQUIRE(dt_graph_create(c.ctx, &c.graph) == DT_OK);
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(2));
    dt_tensor t = dt_constant(c.graph, DT_F32, dt_dims(3, 2), table);
    dt_tensor m = dt_constant(c.graph, DT_F32, dt_dims(2), mask), y = dt_mul(x, m);
    dt_tensor row = dt_embedding(t, dt_constant(c.graph, DT_I32, dt_dims(2), index));
    memset(table, 0xff, sizeof table);
    memset(mask, 0xff, sizeof mask);
    memset(index, 0xff, sizeof index);
    if (dt_store_create(c.graph, &(dt_store_desc){.device = device}, &c.store) == DT_ERROR_DEVICE) {
        dt_ctx_destroy(c.ctx);
        SKIP("no such device");
    }
    const dt_program_desc d = {.outputs = {row, y}, .batch = 2};
    for (int round = 0; round < 2; round++) { /* each program has them */
        REQUIRE(dt_program_create(c.store, &d, &c.program) == DT_OK);
        CHECK(dt_program_write(c.program, m, in, 8) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(c.ctx), "'constant' [2] is a constant");
        CHECK(dt_program_write(c.program, x, in, sizeof in) == DT_OK);
        for (int step = 0; step < 2; step++)
            CHECK(dt_program_run(c.program, NULL, NULL) == DT_OK);
        CHECK(dt_program_read(c.program, row, rows, sizeof rows) == DT_OK);
        CHECK(dt_program_read(c.program, y, masked, sizeof masked) == DT_OK);
        CHECK(rows[0] == 5 && rows[1] == 6 && rows[2] == 1 && rows[3] == 2);
        CHECK(masked[0] == 7 && masked[1] == 0 && masked[2] == 9 && masked[3] == 0);
    }
    dt_ctx_destroy(c.ctx);
}

TEST(a_constant_has_its_values_in_every_program) {
    constant_run("cpu");
}

TEST(a_constant_has_its_values_in_every_program_on_vulkan) {
    constant_run("vulkan");
}

TEST(a_constant_has_a_label_and_no_name_and_its_indices_are_checked_at_creation) {
    plan_case c = plan_open();
    const int32_t bad = 3;
    dt_tensor index = dt_constant(c.graph, DT_I32, dt_dims(), &bad);
    dt_tensor x = dt_input(c.graph, "constant", DT_F32, dt_dims(3, 1)); /* the name is free */
    CHECK(dt_label(index, "place").id == index.id && dt_input(c.graph, "x", DT_F32, dt_dims()).id);
    dt_tensor y = dt_embedding(dt_param(c.graph, "w", dt_dims(3, 1), (dt_init){0}), index);
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    dt_program_desc d = {.outputs = {y, x}, .shapes = {{index, dt_dims()}}};
    CHECK(dt_program_create(c.store, &d, &c.program) == DT_ERROR_INVALID && !c.program);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), ".shapes[0].input is not an input");
    d.shapes[0] = (dt_input_shape){0};
    CHECK(dt_program_create(c.store, &d, &c.program) == DT_ERROR_INVALID && !c.program);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "'place' row 0: 3 is not in [0, 3), which embedding needs");
    dt_ctx_destroy(c.ctx);
}

TEST(a_trainer_has_constants_on_all_replicas_and_needs_no_input_for_them) {
    uint64_t hash[2] = {0};
    for (int shared = 0; shared < 2; shared++) {
        plan_case c = plan_open();
        const float mask[] = {1, 0.5f, 0, 2}, data[8][4] = {{1, 2, 3, 4}, {2, 3, 4, 5}, {1}, {5}};
        dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(4));
        dt_tensor m = shared ? dt_input_shared(c.graph, "m", DT_F32, dt_dims(4))
                             : dt_constant(c.graph, DT_F32, dt_dims(4), mask);
        dt_tensor loss = dt_mean_loss(dt_square(dt_nn_linear(dt_mul(x, m), "fc", 3)));
        const dt_trainer_desc d = {.loss = loss,
                                   .batch = 4,
                                   .data = {.rows = 8, .columns = {{.input = x, .data = data}}},
                                   .parallel.batch_slices = 2,
                                   .devices = "cpu:2"};
        dt_trainer *trainer;
        REQUIRE(dt_trainer_create(c.graph, &d, &trainer) == DT_OK);
        CHECK(dt_trainer_set_input(trainer, m, mask, sizeof mask) ==
              (shared ? DT_OK : DT_ERROR_INVALID));
        for (int step = 0; step < 3; step++)
            CHECK(dt_trainer_step(trainer, NULL) == DT_OK);
        CHECK(dt_store_hash(dt_trainer_store(trainer), &hash[shared]) == DT_OK);
        dt_ctx_destroy(c.ctx);
    }
    CHECK(hash[0] == hash[1]);
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

TEST(all_faults_of_a_description_are_reported_at_once) {
    plan_case c = plan_open();
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(4)),
              t = dt_input(c.graph, "t", DT_F32, dt_dims(2));
    dt_tensor y = dt_nn_linear(x, "used", 2);
    dt_nn_linear(x, "unused", 2);
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .nesterov = true, .eps = -1};
    dt_program_desc desc = {.loss = y, .optim = &sgd, .batch = -3};
    CHECK(dt_program_create(c.store, &desc, &c.program) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "is not a loss term");
    CHECK_CONTAINS(dt_ctx_error(c.ctx), ".nesterov needs .momentum");
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "eps is -1");
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "batch is -3");
    desc = (dt_program_desc){.loss = dt_mse(y, t), .optim = &(dt_optim_desc){.kind = DT_OPTIM_SGD}};
    CHECK(dt_program_create(c.store, &desc, &c.program) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "parameter 'unused.weight' has no gradient");
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "parameter 'unused.bias' has no gradient");
    dt_ctx_destroy(c.ctx);
}

/* ---- What a step leaves behind */

/* y = w x with w [1, 1] = 0 and a mean of y: with SGD at lr 1 a step takes x off w. */
static dt_result line_open(plan_case *c, dt_tensor *x, bool accumulate) {
    *x = dt_input(c->graph, "x", DT_F32, dt_dims(1));
    dt_tensor w = dt_param(c->graph, "w", dt_dims(1, 1), (dt_init){0});
    dt_tensor loss = dt_mean_loss(dt_linear(*x, w, (dt_tensor){0}));
    dt_program_desc desc = {.loss = loss,
                            .optim = &(dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 1},
                            .accumulate = accumulate};
    dt_result result = dt_store_create(c->graph, &(dt_store_desc){.device = "cpu"}, &c->store);
    if (!result)
        result = dt_program_create(c->store, &desc, &c->program);
    return result ? result : dt_program_write(c->program, *x, &(float){1}, sizeof(float));
}

static float line_weight(plan_case *c) {
    float w = NAN;
    CHECK(dt_store_read(c->store, 0, DT_VALUE_PARAM, &w, sizeof w) == DT_OK);
    return w;
}

TEST(a_metric_that_is_not_finite_does_not_stop_a_step) {
    plan_case c = plan_open();
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(1));
    dt_tensor y = dt_nn_linear(x, "y", 1);
    dt_program_desc desc = {.loss = dt_mean_loss(y),
                            .metrics = {dt_mean_loss(dt_log(x))},
                            .optim = &(dt_optim_desc){.kind = DT_OPTIM_SGD}};
    uint64_t before, after;
    dt_report report;
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    REQUIRE(dt_program_create(c.store, &desc, &c.program) == DT_OK);
    dt_store_hash(c.store, &before);
    CHECK(dt_program_write(c.program, x, &(float){-1}, sizeof(float)) == DT_OK);
    CHECK(dt_program_run(c.program, NULL, &report) == DT_OK);
    CHECK(!report.skipped && isnan(report.metric_sum[0]));
    dt_store_hash(c.store, &after);
    CHECK(before != after);
    CHECK(dt_program_run(c.program, NULL, &report) == DT_OK && report.step == 2);
    dt_ctx_destroy(c.ctx);
}

/* A call that fails before there is a report. */
TEST(a_call_without_a_report_leaves_an_empty_one) {
    static const dt_report none;
    plan_case c = plan_open();
    dt_profile *profile = NULL;
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(1));
    dt_program_desc desc = {.loss = dt_mean_loss(dt_nn_linear(x, "y", 1)), .gradients = true};
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    REQUIRE(dt_program_create(c.store, &desc, &c.program) == DT_OK);
    REQUIRE(dt_profile_create(c.ctx, NULL, &profile) == DT_OK);
    for (int way = 0; way < 6; way++) {
        dt_report r;
        memset(&r, 0x55, sizeof r);
        dt_result result = way == 0   ? dt_program_run(c.program, NULL, &r) /* no input */
                           : way == 1 ? dt_program_wait(c.program, &r)      /* no step */
                           : way == 2 ? dt_program_end(c.program, &r)
                           : way == 3 ? dt_program_cancel(c.program, &r)
                           : way == 4 ? dt_profile_run(profile, c.program, NULL, &r)
                                      : dt_program_run(NULL, NULL, &r);
        CHECK(result == DT_ERROR_INVALID && !memcmp(&r, &none, sizeof r));
    }
    dt_profile_destroy(profile);
    dt_ctx_destroy(c.ctx);
}

TEST(a_report_has_the_values_of_metrics) {
    plan_case c = plan_open();
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(2));
    dt_tensor t = dt_input(c.graph, "t", DT_I32, dt_dims());
    dt_program_desc desc = {
        .batch = 4, .metrics = {dt_accuracy(x, t), dt_mean_loss(x), dt_cross_entropy(x, t, NULL)}};
    dt_report report;
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    REQUIRE(dt_program_create(c.store, &desc, &c.program) == DT_OK);
    CHECK(!dt_program_write(c.program, x, (float[]){0, 1, 2, 0, 0, 3, 1, 0}, 32));
    CHECK(!dt_program_write(c.program, t, (int32_t[]){1, 0, 1, 1}, 16));
    CHECK(!dt_program_run(c.program, NULL, &report));
    CHECK(report.metric[0] == 0.75 && report.metric[1] == 7.0 / 8);
    CHECK(report.metric[2] > 0 &&
          report.metric[2] == report.metric_sum[2] / report.metric_weight[2]);
    CHECK(!dt_program_write(c.program, t, (int32_t[]){-100, -100, -100, -100}, 16));
    CHECK(!dt_program_run(c.program, NULL, &report));
    CHECK(report.metric[2] == 0 && report.metric_weight[2] == 0); /* nothing weighs */
    CHECK(report.metric[3] == 0);
    dt_ctx_destroy(c.ctx);
}

TEST(a_learning_rate_of_nan_is_refused) {
    plan_case c = plan_open();
    dt_tensor x;
    dt_program *other;
    dt_optim_desc groups = {.kind = DT_OPTIM_SGD,
                            .groups = {{.params = "*", .lr_scale = (double)NAN}}};
    REQUIRE(line_open(&c, &x, false) == DT_OK);
    CHECK(dt_program_run(c.program, &(dt_step_desc){.lr = NAN}, NULL) == DT_ERROR_INVALID);
    CHECK(dt_program_run(c.program, &(dt_step_desc){.lr = -1}, NULL) == DT_ERROR_INVALID);
    CHECK(line_weight(&c) == 0);
    dt_program_desc desc = {.outputs = {x}, .gradients = true, .optim = &groups};
    CHECK(dt_program_create(c.store, &desc, &other) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "lr_scale");
    dt_ctx_destroy(c.ctx);
}

/* Else each step would compute its update twice. Some decays are added to the gradient. They let a
 * bound that is only proven grow by a factor of thousands a step. */
TEST(an_ordinary_step_is_proven_to_be_finite_and_needs_no_dry_pass) {
    const dt_optim_desc optims[] = {
        {.kind = DT_OPTIM_SGD, .momentum = 0.9, .weight_decay = 1e-4, .nesterov = true},
        {.kind = DT_OPTIM_SGD},
        {.kind = DT_OPTIM_ADAM, .weight_decay = 1e-2},
        {.kind = DT_OPTIM_ADAMW, .clip_norm = 1}};
    for (size_t i = 0; i < DTI_COUNT(optims); i++) {
        plan_case c = plan_open();
        dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(8));
        dt_tensor y = dt_nn_linear(dt_tanh(dt_nn_linear(x, "a", 16)), "b", 3);
        dt_program_desc desc = {.loss = dt_mean_loss(dt_square(y)), .optim = &optims[i]};
        float in[8] = {1, -2, 3, -4, 5, -6, 7, -8}, weights[16 * 8];
        REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
        REQUIRE(dt_program_create(c.store, &desc, &c.program) == DT_OK);
        CHECK(dt_program_write(c.program, x, in, sizeof in) == DT_OK);
        for (int step = 0; step < 200; step++) {
            dt_report r;
            CHECK(dt_program_run(c.program, NULL, &r) == DT_OK);
            const bool known = step != 0 && step != 101; /* what the host wrote is not */
            CHECK((r.gradient_norm <= (double)c.program->now->proven) == known);
            const int w = dt_store_find(c.store, "a.weight");
            CHECK(dt_store_read(c.store, w, DT_VALUE_PARAM, weights, sizeof weights) == DT_OK);
            if (step == 100)
                CHECK(dt_store_write(c.store, w, DT_VALUE_PARAM, weights, sizeof weights) == DT_OK);
        }
        dt_ctx_destroy(c.ctx);
    }
}

/* A GAN's two sides: the store has moments that one of them does not. */
TEST(programs_with_other_optimizers_of_one_store_need_no_dry_pass) {
    const dt_optim_desc optims[2] = {{.kind = DT_OPTIM_SGD}, {.kind = DT_OPTIM_ADAM}};
    const char *const params[2] = {"a.*", "b.*"};
    plan_case c = plan_open();
    dt_program *p[2];
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(8));
    dt_tensor y = dt_nn_linear(dt_tanh(dt_nn_linear(x, "a", 16)), "b", 3);
    float in[8] = {1, -2, 3, -4, 5, -6, 7, -8};
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    for (int i = 0; i < 2; i++) {
        dt_program_desc d = {
            .loss = dt_mean_loss(dt_square(y)), .optim = &optims[i], .params = params[i]};
        REQUIRE(dt_program_create(c.store, &d, &p[i]) == DT_OK);
        CHECK(dt_program_write(p[i], x, in, sizeof in) == DT_OK);
    }
    for (int step = 0; step < 6; step++) {
        dt_report r;
        CHECK(dt_program_run(p[step % 2], NULL, &r) == DT_OK);
        CHECK((r.gradient_norm <= (double)p[step % 2]->now->proven) == (step >= 2));
    }
    dt_ctx_destroy(c.ctx);
}

TEST(a_micro_batch_continues_only_from_a_complete_sum) {
    plan_case c = plan_open();
    dt_tensor x;
    dt_step_state state;
    dt_step_desc first = {.micro_batch = 0, .micro_batches = 2},
                 second = {.micro_batch = 1, .micro_batches = 2};
    REQUIRE(line_open(&c, &x, true) == DT_OK);
    CHECK(dt_program_run(c.program, &second, NULL) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "which comes next, or 0");
    CHECK(dt_program_run(c.program, &first, NULL) == DT_OK);
    CHECK(dt_program_begin(c.program, &second) == DT_OK);
    CHECK(dt_program_advance(c.program, &state) == DT_OK);
    CHECK(dt_program_cancel(c.program, NULL) == DT_OK); /* in its forward part: the sum is whole */
    CHECK(dt_program_begin(c.program, &second) == DT_OK);
    CHECK(dt_program_advance(c.program, &state) == DT_OK);
    CHECK(dt_program_advance(c.program, &state) == DT_OK);
    CHECK(dt_program_cancel(c.program, NULL) == DT_OK); /* in its backward part: it is in the sum */
    CHECK(dt_program_run(c.program, &second, NULL) == DT_ERROR_INVALID);
    CHECK(dt_program_run(c.program, &first, NULL) == DT_OK);
    CHECK(dt_program_run(c.program, &second, NULL) == DT_OK);
    CHECK_NEAR(line_weight(&c), -2, 0);
    CHECK(dt_program_run(c.program, &second, NULL) == DT_ERROR_INVALID);
    dt_ctx_destroy(c.ctx);
}

TEST(micro_batches_that_train_other_parameters_are_refused) {
    plan_case c = plan_open();
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(2));
    dt_tensor y = dt_nn_linear(dt_nn_linear(x, "a", 2), "b", 1);
    dt_program *both;
    dt_optim_desc sgd = {.kind = DT_OPTIM_SGD};
    dt_program_desc desc = {.loss = dt_mean_loss(y), .optim = &sgd, .accumulate = true};
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    REQUIRE(dt_program_create(c.store, &desc, &both) == DT_OK);
    desc.params = "a.*";
    REQUIRE(dt_program_create(c.store, &desc, &c.program) == DT_OK);
    CHECK(dt_program_write(both, x, (float[]){1, 2}, 8) == DT_OK);
    CHECK(dt_program_write(c.program, x, (float[]){1, 2}, 8) == DT_OK);
    CHECK(dt_program_run(c.program, &(dt_step_desc){.micro_batches = 2}, NULL) == DT_OK);
    dt_result result =
        dt_program_run(both, &(dt_step_desc){.micro_batch = 1, .micro_batches = 2}, NULL);
    CHECK(result == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "must train the parameters");
    dt_ctx_destroy(c.ctx);
}

TEST(an_evaluation_reports_the_weight_of_each_loss) {
    plan_case c = plan_open();
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(2)),
              t = dt_input(c.graph, "t", DT_I32, dt_dims());
    dt_tensor mse = dt_mse(x, dt_neg(x)), xent = dt_cross_entropy(x, t, NULL);
    double weights[2] = {0};
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    dt_program_desc desc = {.losses = {{mse, 0}, {xent, 0}}, .batch = 3};
    REQUIRE(dt_program_create(c.store, &desc, &c.program) == DT_OK);
    CHECK(dt_program_write(c.program, x, (float[6]){0}, 24) == DT_OK);
    CHECK(dt_program_write(c.program, t, (int32_t[]){0, -100, 1}, 12) == DT_OK);
    CHECK(dt_program_add_loss_weights(c.program, weights) == DT_OK);
    CHECK_NEAR(weights[0], 6, 0);
    CHECK_NEAR(weights[1], 2, 0);
    dt_ctx_destroy(c.ctx);
}

/* ---- Lists of a description */

TEST(a_host_gradient_listed_twice_is_written_once) {
    plan_case c = plan_open();
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(1));
    dt_tensor y = dt_linear(x, dt_param(c.graph, "w", dt_dims(1, 1), (dt_init){0}), (dt_tensor){0});
    dt_program_desc desc = {.outputs = {y},
                            .host_gradients = {y, y},
                            .optim = &(dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 1}};
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    REQUIRE(dt_program_create(c.store, &desc, &c.program) == DT_OK);
    CHECK(dt_program_write(c.program, x, &(float){3}, 4) == DT_OK);
    CHECK(dt_program_write_gradient(c.program, y, &(float){2}, 4) == DT_OK);
    CHECK(dt_program_run(c.program, NULL, NULL) == DT_OK);
    CHECK_NEAR(line_weight(&c), -6, 0);
    CHECK(dt_program_write_gradient(c.program, y, &(float){NAN}, 4) == DT_OK);
    CHECK(dt_program_run(c.program, NULL, NULL) == DT_ERROR_NUMERIC);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "the host gradient of linear of 'w'");
    dt_ctx_destroy(c.ctx);
}

TEST(a_list_with_a_nil_in_the_middle_is_refused) {
    plan_case c = plan_open();
    dt_graph *graph;
    dt_graph_create(c.ctx, &graph);
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(1)),
              far = dt_input(graph, "far", DT_F32, dt_dims(1));
    dt_tensor loss = dt_mean_loss(x);
    for (int i = 0; i < 1000; i++) /* an id that the store's graph does not have */
        far = dt_neg(far);
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    dt_program_desc desc = {.outputs = {x, {0}, far},
                            .losses = {{loss, 0}, {{0}, 0}, {loss, 0}},
                            .metrics = {{0}, loss}};
    CHECK(dt_program_create(c.store, &desc, &c.program) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), ".outputs[2] comes after a nil one");
    CHECK_CONTAINS(dt_ctx_error(c.ctx), ".losses[2] comes after a nil one");
    CHECK_CONTAINS(dt_ctx_error(c.ctx), ".metrics[1] comes after a nil one");
    dt_ctx_destroy(c.ctx);
}

/* ---- Ops' rules that a program meets */

TEST(an_index_must_be_right_for_every_op_that_takes_it) {
    plan_case c = plan_open();
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(4)),
              t = dt_input(c.graph, "t", DT_I32, dt_dims()),
              table = dt_input_shared(c.graph, "table", DT_F32, dt_dims(2, 3));
    dt_tensor loss = dt_cross_entropy(x, t, NULL), rows = dt_embedding(table, t);
    dt_program *plain;
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    dt_program_desc desc = {.loss = loss, .metrics = {dt_accuracy(x, t)}};
    REQUIRE(dt_program_create(c.store, &desc, &plain) == DT_OK);
    desc.outputs[0] = rows;
    REQUIRE(dt_program_create(c.store, &desc, &c.program) == DT_OK);
    CHECK(dt_program_write(plain, t, &(int32_t){3}, 4) == DT_OK);
    CHECK(dt_program_write(plain, t, &(int32_t){-100}, 4) == DT_OK);
    CHECK(dt_program_write(c.program, t, &(int32_t){1}, 4) == DT_OK);
    CHECK(dt_program_write(c.program, t, &(int32_t){3}, 4) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "[0, 2), which embedding needs");
    CHECK(dt_program_write(c.program, t, &(int32_t){-100}, 4) == DT_ERROR_INVALID);
    dt_ctx_destroy(c.ctx);
}

TEST(class_weights_that_are_trained_are_refused) {
    plan_case c = plan_open();
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(3)),
              t = dt_input(c.graph, "t", DT_I32, dt_dims());
    dt_tensor k = dt_param(c.graph, "k", dt_dims(3), (dt_init){DT_INIT_CONSTANT, 1, 0});
    dt_cross_entropy_desc learned = {.class_weights = dt_square(k)},
                          detached = {.class_weights = dt_detach(dt_square(k))};
    dt_tensor y = dt_mul(x, k);
    dt_program_desc desc = {.loss = dt_cross_entropy(y, t, &learned),
                            .optim = &(dt_optim_desc){.kind = DT_OPTIM_SGD}};
    dt_tensor fine = dt_cross_entropy(y, t, &detached);
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    CHECK(dt_program_create(c.store, &desc, &c.program) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(c.ctx), "no gradient of class weights");
    desc.loss = fine;
    CHECK(dt_program_create(c.store, &desc, &c.program) == DT_OK);
    dt_ctx_destroy(c.ctx);
}

TEST(a_reshape_to_an_absurd_size_is_an_error) {
    plan_case c = plan_open();
    dt_tensor x = dt_input(c.graph, "x", DT_F32, dt_dims(2, 0));
    dt_tensor y = dt_reshape(x, dt_dims(INT64_C(1) << 32, INT64_C(1) << 32));
    CHECK(y.id == 0);
    CHECK_CONTAINS(dt_graph_error(c.graph), "more than 2^31 elements");
    dt_ctx_destroy(c.ctx);
}

TEST(a_job_system_without_its_function_is_refused) {
    dt_ctx *ctx;
    dt_ctx_desc desc = {.no_vulkan = true, .jobs = {.threads = 4}};
    CHECK(dt_ctx_create(&desc, &ctx) == DT_ERROR_INVALID && ctx == NULL);
}

/* ---- The index that transients are placed with */

/* The answer by asking every block, again after each that is in the way. */
static uint64_t space_naive(const dti_space *s, const dti_space_block *item) {
    uint64_t at = 0;
    for (uint64_t before = 1; at != before;) {
        before = at;
        for (uint32_t i = 1; i <= s->count; i++) {
            const dti_space_block *b = &s->blocks[i];
            bool together = b->first <= item->last && item->first <= b->last;
            if (together && b->offset < at + item->bytes && at < b->offset + b->bytes)
                at = b->offset + b->bytes;
        }
    }
    return at;
}

TEST(transients_are_placed_at_the_lowest_offset_that_is_free_over_their_life) {
    enum { BLOCKS = 300 };
    plan_case c = plan_open();
    for (uint64_t seed = 0; seed < 40; seed++) {
        uint32_t launches = 1 + (uint32_t)(dti_uniform01(seed, 0, 1) * 900), wrong = 0;
        dti_space s;
        REQUIRE(dti_space_open(&s, dti_ctx_base(c.ctx), launches, BLOCKS));
        for (uint32_t i = 0; i < BLOCKS; i++) {
            double length = dti_uniform01(seed, i, 2) * (i % 3 ? 30 : launches);
            dti_space_block b = {.first = (uint32_t)(dti_uniform01(seed, i, 3) * launches)};
            b.last = DTI_MIN(b.first + (uint32_t)length, launches - 1);
            b.bytes = 256 * (1 + (uint64_t)(dti_uniform01(seed, i, 4) * 40));
            b.offset = dti_space_fit(&s, &b);
            wrong += b.offset != space_naive(&s, &b);
            REQUIRE(dti_space_take(&s, &b));
        }
        CHECK(wrong == 0);
        dti_space_close(&s);
    }
    dt_ctx_destroy(c.ctx);
}

/* As a chain's forward values do: each lives from its own launch to its gradient's. */
TEST(placing_a_transient_takes_a_bounded_number_of_steps) {
    enum { BLOCKS = 20000 };
    plan_case c = plan_open();
    dti_space s;
    REQUIRE(dti_space_open(&s, dti_ctx_base(c.ctx), 2 * BLOCKS, BLOCKS));
    for (uint32_t i = 0; i < BLOCKS; i++) {
        dti_space_block b = {.first = i, .last = 2 * BLOCKS - 1 - i, .bytes = 256};
        b.offset = dti_space_fit(&s, &b);
        REQUIRE(b.offset == 256ull * i && dti_space_take(&s, &b));
    }
    CHECK(s.steps / BLOCKS < 100);
    dti_space_close(&s);
    dt_ctx_destroy(c.ctx);
}

/* ---- Names */

TEST(a_leaf_is_found_by_its_name_among_thousands_and_a_name_is_taken_once) {
    enum { PARAMS = 3000 };
    plan_case c = plan_open();
    char name[32];
    for (int i = 0; i < PARAMS; i++) {
        snprintf(name, sizeof name, "h.%d.weight", i);
        dt_tensor x = dt_label(dt_fill(c.graph, dt_dims(), 1.0f), "a fill's label is no name");
        CHECK(!dti_is_nil(dt_param(c.graph, name, dt_dims(1), (dt_init){0})) && !dti_is_nil(x));
    }
    CHECK(!dti_is_nil(dt_input(c.graph, "h.7.weight", DT_F32, dt_dims(1)))); /* another kind */
    REQUIRE(dt_store_create(c.graph, &(dt_store_desc){.device = "cpu"}, &c.store) == DT_OK);
    for (int i = 0; i < PARAMS; i++) {
        snprintf(name, sizeof name, "h.%d.weight", i);
        CHECK(dt_store_find(c.store, name) == i);
    }
    CHECK(dt_store_find(c.store, "h.3000.weight") == -1 && dt_store_find(c.store, "") == -1);
    dt_input(c.graph, "h.7.weight", DT_F32, dt_dims(1));
    CHECK_CONTAINS(dt_graph_error(c.graph), "has this name");
    dt_ctx_destroy(c.ctx);
}
