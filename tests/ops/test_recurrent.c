/* Recurrent layers: states carried from batch to batch, samples that see no other, wrong arguments,
 * no second derivatives. Their values are test_ops.c's and test_golden_recurrent.c's business.
 * Included by main.c. */

enum { RECURRENT_T = 12, RECURRENT_IN = 3, RECURRENT_H = 5, RECURRENT_B = 4 };

typedef dt_recurrent recurrent_layer(dt_tensor x, const char *name, int64_t hidden,
                                     const dt_recurrent_desc *desc);

typedef struct recurrent_run {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x, h, c, dx;
    dt_recurrent out;
    dt_store *store;
    dt_program *program;
} recurrent_run;

static bool recurrent_open(recurrent_run *r, const char *device, int threads, recurrent_layer *make,
                           int steps, int batch) {
    const dt_shape rows = dt_dims(2, RECURRENT_H);
    dt_recurrent_desc desc = {.layers = 2};
    *r = (recurrent_run){0};
    if (dt_ctx_create(&(dt_ctx_desc){.threads = threads, .no_vulkan = !strcmp(device, "cpu")},
                      &r->ctx) ||
        dt_graph_create(r->ctx, &r->graph))
        return false;
    r->x = dt_input(r->graph, "x", DT_F32, dt_dims(steps, RECURRENT_IN));
    desc.h = r->h = dt_input(r->graph, "h", DT_F32, rows);
    if (make == dt_nn_lstm)
        desc.c = r->c = dt_input(r->graph, "c", DT_F32, rows);
    r->out = make(r->x, "net", RECURRENT_H, &desc);
    r->dx = dt_gradient(dt_mean_loss(dt_square(r->out.y)), r->x);
    dt_program_desc program = {.outputs = {r->out.y, r->dx, r->out.h, r->out.c}, .batch = batch};
    return !dt_store_create(r->graph, &(dt_store_desc){.device = device, .seed = 3}, &r->store) &&
           !dt_program_create(r->store, &program, &r->program);
}

static float *recurrent_values(size_t n) {
    float *x = malloc(n * sizeof *x);
    uint32_t state = 7;
    for (size_t i = 0; i < n && x; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
    return x;
}

/* Feeds h and c, runs `steps` steps from `first` on of all samples, and reads y, h and c. */
static void recurrent_chunk(recurrent_run *r, const float *x, int first, int steps, float *h,
                            float *c, float *y) {
    float part[RECURRENT_B * RECURRENT_T * RECURRENT_IN];
    const size_t row = RECURRENT_IN * sizeof *x, states = RECURRENT_B * 2 * RECURRENT_H * sizeof *h;
    for (int s = 0; s < RECURRENT_B; s++)
        memcpy(part + s * steps * RECURRENT_IN, x + (s * RECURRENT_T + first) * RECURRENT_IN,
               (size_t)steps * row);
    CHECK(!dt_program_write(r->program, r->x, part, RECURRENT_B * (size_t)steps * row));
    CHECK(!dt_program_write(r->program, r->h, h, states));
    CHECK(!r->c.graph || !dt_program_write(r->program, r->c, c, states));
    CHECK(!dt_program_run(r->program, NULL, NULL));
    CHECK(!dt_program_read(r->program, r->out.y, y, RECURRENT_B * (size_t)steps * RECURRENT_H * 4));
    CHECK(!dt_program_read(r->program, r->out.h, h, states));
    CHECK(!r->c.graph || !dt_program_read(r->program, r->out.c, c, states));
}

/* Chunks whose state is carried give what all steps at once give, to the bit. */
static void recurrent_carry(const char *device, recurrent_layer *make) {
    enum {
        CHUNK = 4,
        Y = RECURRENT_B * RECURRENT_T * RECURRENT_H,
        S = RECURRENT_B * 2 * RECURRENT_H
    };
    float h[2][S] = {{0}}, c[2][S] = {{0}}, whole[Y], part[Y];
    recurrent_run all, chunk;
    REQUIRE(recurrent_open(&all, device, 2, make, RECURRENT_T, RECURRENT_B));
    REQUIRE(recurrent_open(&chunk, device, 2, make, CHUNK, RECURRENT_B));
    float *x = recurrent_values(RECURRENT_B * RECURRENT_T * RECURRENT_IN);
    recurrent_chunk(&all, x, 0, RECURRENT_T, h[0], c[0], whole);
    for (int t = 0; t < RECURRENT_T; t += CHUNK) {
        recurrent_chunk(&chunk, x, t, CHUNK, h[1], c[1], part);
        for (int s = 0; s < RECURRENT_B; s++)
            CHECK(!memcmp(part + s * CHUNK * RECURRENT_H,
                          whole + (s * RECURRENT_T + t) * RECURRENT_H, CHUNK * RECURRENT_H * 4));
    }
    CHECK(!memcmp(h[0], h[1], sizeof h[0]) && !memcmp(c[0], c[1], sizeof c[0]));
    CHECK(h[0][0] != 0 && (make != dt_nn_lstm || c[0][0] != 0));
    free(x);
    dt_ctx_destroy(all.ctx);
    dt_ctx_destroy(chunk.ctx);
}

TEST(chunks_with_a_carried_state_equal_all_steps_at_once) {
    recurrent_carry("cpu", dt_nn_lstm);
    recurrent_carry("cpu", dt_nn_gru);
    recurrent_carry("cpu", dt_nn_rnn);
}

#ifndef DT_NO_VULKAN
TEST(chunks_with_a_carried_state_equal_all_steps_at_once_on_vulkan) {
    char device[32];
    if (!vulkan_device_count())
        SKIP("no Vulkan device");
    snprintf(device, sizeof device, "vulkan:%d", vulkan_quick_device());
    recurrent_carry(device, dt_nn_lstm);
}
#endif

/* y and dx of a batch, whatever the threads. */
#ifndef DT_NO_VULKAN
/* x of one sample, y and dx. NULL: the device does not take that number of steps. */
static float *recurrent_long(const char *device, recurrent_layer *make, int64_t steps,
                             int64_t hidden) {
    dt_ctx *ctx = NULL;
    dt_graph *graph = NULL;
    dt_store *store;
    dt_program *program;
    const size_t in = (size_t)steps * 2, out = (size_t)(steps * hidden);
    float *values = calloc(in + in + out, sizeof *values);
    CHECK(!dt_ctx_create(&(dt_ctx_desc){.threads = 2}, &ctx) && !dt_graph_create(ctx, &graph));
    const dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(steps, 2));
    const dt_tensor y = make(x, "r", hidden, NULL).y;
    const dt_tensor dx = dt_gradient(dt_mean_loss(dt_square(y)), x);
    const dt_program_desc desc = {.outputs = {y, dx}};
    for (size_t i = 0; i < in; i++)
        values[i] = (float)(i * 7 % 13) / 13.0f - 0.5f;
    CHECK(!dt_store_create(graph, &(dt_store_desc){.device = device, .seed = 3}, &store));
    const dt_result made = dt_program_create(store, &desc, &program);
    CHECK(!made || made == DT_ERROR_UNSUPPORTED);
    if (!made) {
        CHECK(!dt_program_write(program, x, values, in * 4) &&
              !dt_program_run(program, NULL, NULL));
        CHECK(!dt_program_read(program, y, values + in, out * 4));
        CHECK(!dt_program_read(program, dx, values + in + out, in * 4));
    }
    dt_ctx_destroy(ctx);
    free(made ? values : NULL);
    return made ? NULL : values;
}

/* lavapipe ends an invocation's loops after 65535 rounds, and says nothing. */
TEST(recurrences_of_many_steps_are_right_or_refused_on_vulkan) {
    static recurrent_layer *const make[] = {dt_nn_lstm, dt_nn_gru, dt_nn_rnn};
    const int64_t steps[] = {445, 570, 1500, 3000}; /* almost the number that it makes, and more */
    const int64_t hidden[] = {128, 128, 64, 64};
    char device[32];
    if (!vulkan_device_count())
        SKIP("no Vulkan device");
    snprintf(device, sizeof device, "vulkan:%d", vulkan_quick_device());
    for (int i = 0; i < 4; i++) {
        float *got = recurrent_long(device, make[i < 3 ? i : 2], steps[i], hidden[i]);
        CHECK(got || i == 3);
        float *is = got ? recurrent_long("cpu", make[i < 3 ? i : 2], steps[i], hidden[i]) : NULL;
        for (int64_t k = 0; got && is && k < steps[i] * (hidden[i] + 4); k++)
            CHECK_NEAR(got[k], is[k], 1e-5 + 1e-4 * fabs((double)is[k]));
        free(got), free(is);
    }
}
#endif

TEST(recurrent_layers_have_the_same_bits_for_any_number_of_threads) {
    enum { B = 53, Y = B * RECURRENT_T * RECURRENT_H, X = B * RECURRENT_T * RECURRENT_IN };
    const int threads[] = {1, 2, 5};
    float *x = recurrent_values(X), *got = malloc(2 * (X + Y) * sizeof *got);
    for (int i = 0; i < 3; i++) {
        recurrent_run r;
        float *to = got + (i ? X + Y : 0);
        REQUIRE(recurrent_open(&r, "cpu", threads[i], dt_nn_lstm, RECURRENT_T, B));
        CHECK(!dt_program_write(r.program, r.x, x, X * sizeof *x));
        CHECK(!dt_program_write(r.program, r.h, x, B * 2 * RECURRENT_H * 4));
        CHECK(!dt_program_write(r.program, r.c, x + 9, B * 2 * RECURRENT_H * 4));
        CHECK(!dt_program_run(r.program, NULL, NULL));
        CHECK(!dt_program_read(r.program, r.out.y, to, Y * sizeof *x));
        CHECK(!dt_program_read(r.program, r.dx, to + Y, X * sizeof *x));
        CHECK(!i || !memcmp(got, to, (X + Y) * sizeof *x));
        dt_ctx_destroy(r.ctx);
    }
    free(got);
    free(x);
}

TEST(a_second_derivative_of_a_recurrent_layer_is_an_error) {
    static dt_recurrent (*const layers[])(dt_tensor, const char *, int64_t,
                                          const dt_recurrent_desc *) = {dt_nn_lstm, dt_nn_gru,
                                                                        dt_nn_rnn};
    for (int i = 0; i < 6; i++) {
        dt_ctx *ctx;
        dt_graph *g;
        REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
        REQUIRE(!dt_graph_create(ctx, &g));
        const dt_recurrent_desc two = {.layers = 2};
        dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(3, 2));
        dt_tensor dx = dt_gradient(layers[i % 3](x, "net", 2, i < 3 ? NULL : &two).y, x);
        CHECK(dt_tensor_shape(dx).rank == 2 && !dt_graph_error(g));
        CHECK(!dt_gradient(dt_square(dx), x).id);
        const char *says = dt_graph_error(g) ? dt_graph_error(g) : "";
        CHECK_CONTAINS(says, "no second derivatives of LSTM, GRU and RNN; dt_detach the gradient");
        dt_ctx_destroy(ctx);
    }
}

TEST(recurrent_layers_refuse_states_and_lengths_of_other_shapes) {
    dt_ctx *ctx;
    dt_graph *g;
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    REQUIRE(!dt_graph_create(ctx, &g));
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(3, 2)),
              line = dt_input(g, "line", DT_F32, dt_dims(2));
    const dt_recurrent_desc wrong[] = {{.h = line}, {.c = line}, {.lengths = line}, {.relu = true}};
    const char *const says[] = {"h is [B, 2]; it must be f32 [1, 4]",
                                "c is [B, 2]; it must be f32 [1, 4]", "lengths is [B, 2]",
                                "only dt_nn_rnn"};
    for (int i = 0; i < 4; i++) {
        const dt_recurrent r = dt_nn_lstm(x, "net", 4, &wrong[i]);
        CHECK(!r.y.id && !r.h.id && !r.c.id);
        CHECK_CONTAINS(dt_graph_error(g) ? dt_graph_error(g) : "", says[i]);
        dt_graph_clear_error(g);
    }
    CHECK(!dt_nn_gru(x, "net", 4, &(dt_recurrent_desc){.c = line}).y.id);
    CHECK_CONTAINS(dt_graph_error(g) ? dt_graph_error(g) : "", "only LSTM has cells");
    dt_graph_clear_error(g);
    CHECK(dt_nn_lstm(x, "net", 4, NULL).y.id && !dt_graph_error(g)); /* the name is free */
    dt_ctx_destroy(ctx);
}

/* Dropout is between layers: it does not change the first one's state, and nothing in
 * evaluation. */
TEST(dropout_between_recurrent_layers_acts_only_in_training_and_after_the_first_layer) {
    enum { B = 64, Y = B * RECURRENT_T * RECURRENT_H, S = B * 2 * RECURRENT_H };
    static float y[3][Y], h[3][S];
    dt_ctx *ctx = NULL;
    dt_graph *graph = NULL;
    dt_store *store = NULL;
    dt_program *p = NULL;
    float *x = recurrent_values(B * RECURRENT_T * RECURRENT_IN);
    REQUIRE(x && !dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    REQUIRE(!dt_graph_create(ctx, &graph));
    dt_tensor in = dt_input(graph, "x", DT_F32, dt_dims(RECURRENT_T, RECURRENT_IN));
    const dt_recurrent_desc desc = {.layers = 2, .dropout = 0.5f};
    const dt_recurrent out = dt_nn_gru(in, "net", RECURRENT_H, &desc);
    REQUIRE(!dt_store_create(graph, &(dt_store_desc){.device = "cpu", .seed = 3}, &store));
    for (int i = 0; i < 3; i++) { /* evaluation, and two steps of training */
        const dt_program_desc program = {
            .outputs = {out.y, out.h}, .batch = B, .mode = i ? DT_MODE_TRAIN : DT_MODE_EVAL};
        REQUIRE(!dt_program_create(store, &program, &p));
        CHECK(!dt_program_write(p, in, x, B * RECURRENT_T * RECURRENT_IN * 4));
        CHECK(!dt_program_run(p, &(dt_step_desc){.step = (uint64_t)i}, NULL));
        CHECK(!dt_program_read(p, out.y, y[i], sizeof y[i]));
        CHECK(!dt_program_read(p, out.h, h[i], sizeof h[i]));
    }
    CHECK(memcmp(y[0], y[1], sizeof y[0]) && memcmp(y[1], y[2], sizeof y[0]));
    double mean[2] = {0};
    for (int s = 0; s < B; s++)
        for (int i = 1; i < 3; i++) {
            const float *a = h[0] + s * 2 * RECURRENT_H, *b = h[i] + s * 2 * RECURRENT_H;
            CHECK(!memcmp(a, b, RECURRENT_H * 4));
            CHECK(memcmp(a + RECURRENT_H, b + RECURRENT_H, RECURRENT_H * 4));
        }
    for (int i = 0; i < Y; i++)
        mean[0] += (double)y[0][i] / Y, mean[1] += (double)y[1][i] / Y;
    CHECK(fabs(mean[0] - mean[1]) < 0.05);
    dt_ctx_destroy(ctx);
    free(x);
}

typedef struct recurrent_size {
    uint32_t kind, hidden, samples;
} recurrent_size;

/* A launch of zeros, with a guard after its scratch. */
static void recurrent_guarded(const recurrent_size *size, dt_dtype type, int set, bool back) {
    enum { T = 2, GUARD = 1 << 20, MARK = 0x5a };
    const uint32_t kind = size->kind, hidden = size->hidden, B = size->samples;
    const dti_attr attr = {.i = {(int32_t)kind}};
    const uint32_t all = (uint32_t)dti_recurrence_gates[kind] * hidden;
    const uint32_t row = (back ? hidden : all) + 16, end = (back ? all : hidden) * row;
    dti_recurrence s = dti_recurrence_sizes(&attr, dt_dims(all, hidden));
    s.steps = T;
    const uint32_t y = (uint32_t)dti_recurrence_all(&s), d = (uint32_t)dti_recurrence_grad_all(&s);
    const uint32_t state = (uint32_t)(s.state + T * s.size);
    const uint32_t n[4] = {B * (back ? y : T * all), end + hidden, B * state, B * (back ? d : y)};
    dti_launch launch = {.kernel = back ? DTI_K_RECURRENCE_GRAD : DTI_K_RECURRENCE,
                         .spec = {kind},
                         .dtype = {(uint8_t)type, (uint8_t)type, DT_F32, (uint8_t)type}};
    launch.args.recurrence = (dti_args_recurrence){.samples = B,
                                                   .steps = T,
                                                   .hidden = hidden,
                                                   .size = hidden,
                                                   .x_sample = n[0] / B,
                                                   .w_row = row,
                                                   .e_offset = end,
                                                   .s_sample = state,
                                                   .y_sample = n[3] / B};
    dti_cpu_task task = {.launch = &launch, .k = dti_isa_kernels_select(set), .threads = 1};
    const size_t bytes = dti_cpu_scratch(&launch, 1);
    char *memory = malloc(bytes + GUARD + 64), *scratch = memory + 64 - (uintptr_t)memory % 64;
    memset(scratch + bytes, MARK, GUARD - 64);
    for (int i = 0; i < 4; i++)
        task.buf[i] = calloc(n[i], sizeof(float));
    (back ? dti_cpu_recurrence_grad : dti_cpu_recurrence)(&task, 0, 1, scratch);
    size_t kept = 0;
    while (kept < GUARD - 64 && scratch[bytes + kept] == MARK)
        kept++;
    test_check(kept == GUARD - 64, __FILE__, __LINE__,
               "kind %u of %u units, type %d, set %d, back %d: byte %zu after its scratch", kind,
               hidden, (int)type, set, back, kept);
    for (int i = 0; i < 4; i++)
        free(task.buf[i]);
    free(memory);
}

TEST(recurrences_write_nothing_after_their_scratch) {
    /* Kernels pack weights where there are 19 samples or more. */
    static const recurrent_size sizes[] = {{DTI_RECURRENCE_LSTM, 512, 20},
                                           {DTI_RECURRENCE_GRU, 150, 3},
                                           {DTI_RECURRENCE_TANH, 33, 25}};
    static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F16};
    for (size_t i = 0; i < 2 * DTI_COUNT(sizes) * DTI_COUNT(types); i++)
        for (int set = DTI_ISA_PORTABLE; set <= DTI_ISA_BEST; set++)
            recurrent_guarded(&sizes[i / 6], types[i / 2 % 3], set, i % 2);
}
