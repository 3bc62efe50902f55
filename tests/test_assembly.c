/* Programs on several devices that make one step together: the two halves of an MLP against the
 * same in one program. Included by main.c. */

enum { PARTS_BATCH = 5, PARTS_IN = 6, PARTS_HIDDEN = 16, PARTS_OUT = 3, PARTS_PARAMS = 4 };

/* x -> a, relu = h | h -> b -> loss. whole: both in one program. */
typedef struct parts {
    dt_ctx *ctx;
    dt_graph *graph[3];
    dt_store *store[3]; /* of a, of b, and of both */
    dt_program *program[3];
    dt_tensor x, h, h_in, t, whole_x, whole_t;
    dti_assembly *assembly;
} parts;

static dt_tensor parts_first(dt_graph *g, dt_tensor *x) {
    *x = dt_input(g, "x", DT_F32, dt_dims(PARTS_IN));
    return dt_relu(dt_nn_linear(*x, "a", PARTS_HIDDEN));
}

static dt_tensor parts_second(dt_graph *g, dt_tensor h, dt_tensor *t) {
    *t = dt_input(g, "t", DT_F32, dt_dims(PARTS_OUT));
    return dt_mse(dt_tanh(dt_nn_linear(h, "b", PARTS_OUT)), *t);
}

/* The stores of a and b get the values of the whole's. */
static bool parts_copy(parts *s) {
    float values[PARTS_HIDDEN * PARTS_IN];
    bool fine = true;
    for (int i = 0; i < PARTS_PARAMS && fine; i++) {
        dt_param_info info;
        fine = !dt_store_get_param(s->store[2], i, &info);
        const size_t bytes = (size_t)info.elements * sizeof *values;
        const int half = dt_store_find(s->store[0], info.name) < 0;
        fine = fine && !dt_store_read(s->store[2], i, DT_VALUE_PARAM, values, bytes) &&
               !dt_store_write(s->store[half], dt_store_find(s->store[half], info.name),
                               DT_VALUE_PARAM, values, bytes);
    }
    return fine;
}

static bool parts_programs(parts *s, const dt_optim_desc *optim, const char *devices[2]) {
    s->h = parts_first(s->graph[0], &s->x);
    s->h_in = dt_input(s->graph[1], "h", DT_F32, dt_dims(PARTS_HIDDEN));
    const dt_tensor loss = parts_second(s->graph[1], s->h_in, &s->t);
    const dt_tensor whole =
        parts_second(s->graph[2], parts_first(s->graph[2], &s->whole_x), &s->whole_t);
    const dt_program_desc first = {.batch = PARTS_BATCH,
                                   .label = "first",
                                   .outputs = {s->h},
                                   .host_gradients = {s->h},
                                   .optim = optim},
                          second = {.batch = PARTS_BATCH,
                                    .label = "second",
                                    .loss = loss,
                                    .optim = optim},
                          both = {.batch = PARTS_BATCH, .loss = whole, .optim = optim};
    const dti_joint alone = {0}, joint = {.inputs = {s->h_in}};
    for (int i = 0; i < 3; i++) {
        const dt_store_desc d = {.device = devices[i == 1], .seed = 7};
        if (dt_store_create(s->graph[i], &d, &s->store[i]))
            return false;
    }
    return parts_copy(s) &&
           !dti_program_create_joint(s->store[0], &first, &alone, &s->program[0]) &&
           !dti_program_create_joint(s->store[1], &second, &joint, &s->program[1]) &&
           !dt_program_create(s->store[2], &both, &s->program[2]);
}

static bool parts_open(parts *s, const dt_ctx_desc *ctx, const dt_optim_desc *optim,
                       const char *second) {
    *s = (parts){0};
    if (dt_ctx_create(ctx, &s->ctx))
        return false;
    for (int i = 0; i < 3; i++)
        dt_graph_create(s->ctx, &s->graph[i]);
    if (!parts_programs(s, optim, (const char *[]){"cpu", second}))
        return false;
    const dti_edge edges[] = {{0, 1, s->h, s->h_in, false}, {1, 0, s->h_in, s->h, true}};
    return !dti_assembly_create(s->program, 2, edges, 2, &s->assembly);
}

static void parts_close(parts *s) {
    dti_assembly_destroy(s->assembly);
    dt_ctx_destroy(s->ctx);
}

/* Inputs of step k, to both. */
static bool parts_write(parts *s, int k) {
    float x[PARTS_BATCH * PARTS_IN], t[PARTS_BATCH * PARTS_OUT];
    for (int i = 0; i < PARTS_BATCH * PARTS_IN; i++)
        x[i] = (float)((i * 7 + k * 3) % 11) / 5.0f - 1.0f;
    for (int i = 0; i < PARTS_BATCH * PARTS_OUT; i++)
        t[i] = (float)((i + k) % 5) / 4.0f - 0.5f;
    return !dt_program_write(s->program[0], s->x, x, sizeof x) &&
           !dt_program_write(s->program[1], s->t, t, sizeof t) &&
           !dt_program_write(s->program[2], s->whole_x, x, sizeof x) &&
           !dt_program_write(s->program[2], s->whole_t, t, sizeof t);
}

/* The largest difference between the halves' values and the whole's. */
static double parts_apart(parts *s) {
    double apart = 0.0;
    for (int i = 0; i < PARTS_PARAMS; i++) {
        float whole[PARTS_HIDDEN * PARTS_IN], half[PARTS_HIDDEN * PARTS_IN];
        dt_param_info info;
        dt_store_get_param(s->store[2], i, &info);
        const size_t bytes = (size_t)info.elements * sizeof *whole;
        dt_store *store = s->store[dt_store_find(s->store[0], info.name) < 0];
        CHECK(!dt_store_read(s->store[2], i, DT_VALUE_PARAM, whole, bytes));
        CHECK(!dt_store_read(store, dt_store_find(store, info.name), DT_VALUE_PARAM, half, bytes));
        for (uint64_t k = 0; k < info.elements; k++)
            apart = fmax(apart, fabs((double)whole[k] - (double)half[k]));
    }
    return apart;
}

static void parts_train(const char *second, const dt_optim_desc *optim, double tolerance) {
    parts s;
    dt_report report, halves[2];
    REQUIRE(parts_open(&s, &(dt_ctx_desc){.no_vulkan = !strcmp(second, "cpu")}, optim, second));
    const double before = parts_apart(&s);
    CHECK(before == 0.0);
    for (int k = 0; k < 6; k++) {
        CHECK(parts_write(&s, k));
        CHECK(dt_program_run(s.program[2], NULL, &report) == DT_OK);
        CHECK(dti_assembly_run(s.assembly, NULL, halves) == DT_OK);
        CHECK_NEAR(halves[1].loss, report.loss, tolerance);
        CHECK(halves[0].step == report.step && halves[1].step == report.step);
        CHECK(parts_apart(&s) <= tolerance);
    }
    parts_close(&s);
}

TEST(two_halves_of_a_model_on_two_devices_train_as_the_whole) {
    parts_train("cpu", &(dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 0.1, .momentum = 0.9}, 0.0);
    parts_train("cpu", &(dt_optim_desc){.lr = 0.01}, 0.0);
}

TEST(two_halves_of_a_model_train_on_the_cpu_and_a_gpu) {
    char id[32];
    if (!ops_vulkan(0, id))
        SKIP("no Vulkan device");
    parts_train(id, &(dt_optim_desc){.kind = DT_OPTIM_SGD, .lr = 0.1, .momentum = 0.9}, 1e-5);
}

static uint64_t parts_digest(parts *s) {
    uint64_t hash[2] = {0};
    CHECK(!dt_store_state_hash(s->store[0], &hash[0]));
    CHECK(!dt_store_state_hash(s->store[1], &hash[1]));
    return hash[0] * 31 + hash[1];
}

/* A NaN in the first half's input, an overflow in its forward part, a NaN in the second's targets.
 */
TEST(a_half_that_is_not_finite_leaves_both_as_they_were) {
    static const struct {
        int half;
        float value;
        const char *program, *what;
    } cases[] = {{0, NAN, "program 'first'", "input 'x' holds a NaN"},
                 {0, 3e38f, "program 'first'", "gave a NaN or an infinity first, in the forward"},
                 {1, NAN, "program 'second'", "input 't' holds a NaN"}};
    parts s;
    dt_report reports[2];
    REQUIRE(parts_open(&s, &(dt_ctx_desc){.no_vulkan = true}, &(dt_optim_desc){.lr = 0.01}, "cpu"));
    CHECK(parts_write(&s, 0) && dti_assembly_run(s.assembly, NULL, NULL) == DT_OK);
    for (uint64_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float twos[PARTS_HIDDEN * PARTS_IN];
        for (int k = 0; k < PARTS_HIDDEN * PARTS_IN; k++)
            twos[k] = 2.0f;
        CHECK(!dt_store_write(s.store[0], 0, DT_VALUE_PARAM, twos, sizeof twos));
        const uint64_t digest = parts_digest(&s);
        const int half = cases[i].half;
        float bad[PARTS_BATCH * PARTS_IN];
        for (int k = 0; k < PARTS_BATCH * PARTS_IN; k++)
            bad[k] = cases[i].value;
        CHECK(parts_write(&s, 1));
        CHECK(!dt_program_write(s.program[half], half ? s.t : s.x, bad,
                                PARTS_BATCH * (half ? PARTS_OUT : PARTS_IN) * sizeof *bad));
        CHECK(dti_assembly_run(s.assembly, NULL, reports) == DT_ERROR_NUMERIC);
        CHECK_CONTAINS(dt_ctx_error(s.ctx), cases[i].program);
        CHECK_CONTAINS(dt_ctx_error(s.ctx), cases[i].what);
        CHECK(reports[half].skipped && parts_digest(&s) == digest);
        CHECK(s.store[0]->steps == 1 + i && s.store[1]->steps == 1 + i);
        CHECK(parts_write(&s, 2) && dti_assembly_run(s.assembly, NULL, NULL) == DT_OK);
        CHECK(parts_digest(&s) != digest);
    }
    parts_close(&s);
}

TEST(a_step_on_several_devices_allocates_nothing) {
    parts s;
    dt_ctx_info before, after;
    REQUIRE(parts_open(&s, &(dt_ctx_desc){.no_vulkan = true}, &(dt_optim_desc){.lr = 0.01}, "cpu"));
    dt_ctx_get_info(s.ctx, &before);
    for (int k = 0; k < 10; k++)
        CHECK(parts_write(&s, k) && dti_assembly_run(s.assembly, NULL, NULL) == DT_OK);
    dt_ctx_get_info(s.ctx, &after);
    CHECK(after.host_alloc_calls == before.host_alloc_calls);
    parts_close(&s);
}

TEST(an_edge_that_does_not_fit_is_refused) {
    parts s;
    dti_assembly *a = NULL;
    dt_program *program;
    REQUIRE(parts_open(&s, &(dt_ctx_desc){.no_vulkan = true}, &(dt_optim_desc){.lr = 0.01}, "cpu"));
    const struct {
        dti_edge edges[2];
        const char *text;
    } cases[] = {
        {{{0, 1, s.h, s.h_in, false}, {1, 1, s.h_in, s.h, true}}, "one of the programs to another"},
        {{{0, 1, s.x, s.h_in, false}, {1, 0, s.h_in, s.h, true}}, "y is no output"},
        {{{0, 1, s.h, s.h, false}, {1, 0, s.h_in, s.h, true}}, "x is no input"},
        {{{0, 1, s.h, s.t, false}, {1, 0, s.h_in, s.h, true}}, "differ in size"},
        {{{0, 1, s.h, s.h_in, false}, {0, 1, s.h, s.h_in, false}}, "an edge already"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(dti_assembly_create(s.program, 2, cases[i].edges, 2, &a) == DT_ERROR_INVALID && !a);
        CHECK_CONTAINS(dt_ctx_error(s.ctx), cases[i].text);
    }
    CHECK(dti_assembly_create((dt_program *[]){s.program[0], s.program[2]}, 2, NULL, 0, &a) ==
          DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(s.ctx), "made to run alone");
    CHECK(dti_assembly_create((dt_program *[]){s.program[0], s.program[0]}, 2, NULL, 0, &a) ==
          DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(s.ctx), "have one store");
    const dt_program_desc bad = {.outputs = {s.h}, .host_gradients = {s.h}};
    CHECK(dti_program_create_joint(s.store[0], &bad, &(dti_joint){.inputs = {s.h}}, &program) ==
          DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(s.ctx), "is no input of f32");
    CHECK_CONTAINS(dt_ctx_error(s.ctx), "joint programs have an optimizer");
    parts_close(&s);
}

/* Two programs that each need the other's forward part. */
TEST(segments_that_would_wait_for_ever_are_refused) {
    dt_graph *graph[2];
    dt_store *store[2];
    dt_program *program[2] = {NULL, NULL};
    dt_tensor x[2], y[2];
    dt_ctx *ctx;
    dti_assembly *a = NULL;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    for (int i = 0; i < 2; i++) {
        dt_graph_create(ctx, &graph[i]);
        x[i] = dt_input(graph[i], "x", DT_F32, dt_dims(2));
        y[i] = dt_nn_linear(x[i], "a", 2);
        const dt_program_desc d = {
            .loss = dt_mean_loss(y[i]), .outputs = {y[i]}, .optim = &(dt_optim_desc){.lr = 0.1}};
        REQUIRE(dt_store_create(graph[i], &(dt_store_desc){.device = "cpu"}, &store[i]) == DT_OK);
        REQUIRE(dti_program_create_joint(store[i], &d, &(dti_joint){0}, &program[i]) == DT_OK);
    }
    const dti_edge edges[] = {{0, 1, y[0], x[1], false}, {1, 0, y[1], x[0], false}};
    CHECK(dti_assembly_create(program, 2, edges, 2, &a) == DT_ERROR_INVALID && !a);
    CHECK_CONTAINS(dt_ctx_error(ctx), "go round in a circle");
    CHECK(dti_assembly_create(program, 2, edges, 1, &a) == DT_OK);
    dti_assembly_destroy(a);
    dt_ctx_destroy(ctx);
}
