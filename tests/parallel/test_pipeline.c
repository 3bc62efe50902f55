/* Training by a pipeline of stages: the same bits as one device with the same micro-batches. Also
 * what files keep, and faults. */
#include "parallel/pipe_model.h"

typedef struct pipe_case {
    int kind; /* train_model_make's, or one of these */
    int accumulate, batch, steps;
    int stages, chunks;
    dt_pipeline_schedule schedule;
    dt_tail tail;
    const char *devices; /* NULL: as many CPUs as stages */
    const dt_optim_desc *optim;
    const char *load, *save; /* checkpoints */
    int save_after;
} pipe_case;

typedef struct pipe_end {
    uint64_t hash;
    dt_train_report report;
    double evaluated;
    dt_trainer_info info;
} pipe_end;

static dt_trainer_desc pipe_desc(train_model *m, const pipe_case *c, char devices[32]) {
    dt_trainer_desc d = train_desc(m);
    snprintf(devices, 32, "cpu:%d", c->stages > 1 ? c->stages : 1);
    d.devices = c->devices ? c->devices : devices;
    d.batch = c->batch ? c->batch : d.batch;
    d.accumulate = c->accumulate;
    d.parallel.pipeline = c->stages;
    d.parallel.schedule = c->schedule;
    d.parallel.chunks = c->chunks;
    d.tail = c->tail;
    d.optim = c->optim ? c->optim : d.optim;
    pipe_losses(m, c->kind, &d);
    return d;
}

static pipe_end pipe_train(const pipe_case *c) {
    train_model m = {0};
    dt_trainer *trainer = NULL;
    pipe_end end = {0};
    char devices[32];
    const bool vulkan = c->devices && strstr(c->devices, "vulkan");
    if (!CHECK_TEXT(pipe_model(&m, &(dt_ctx_desc){.no_vulkan = !vulkan}, c->kind), "the model"))
        return end;
    const dt_trainer_desc d = pipe_desc(&m, c, devices);
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    if (!result && c->load)
        result = dt_trainer_load(trainer, c->load);
    for (int i = 0; i < c->steps && !result; i++) {
        result = dt_trainer_step(trainer, &end.report);
        CHECK(result || (vulkan && c->stages < 2) || train_times_add_up(&end.report));
        if (!result && c->save && i + 1 == c->save_after)
            result = dt_trainer_save(trainer, c->save);
    }
    dt_train_report evaluated = {0};
    if (!result)
        result = dt_trainer_evaluate(trainer, &d.data, 20, &evaluated);
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(trainer), &end.hash);
    end.evaluated = evaluated.loss;
    dt_trainer_get_info(trainer, &end.info);
    CHECK_TEXT(result == DT_OK, "%d stages, schedule %d, model %d: %s", c->stages, c->schedule,
               c->kind, dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return end;
}

/* One device, and then stages: of all, the same hash, losses, norm and evaluation. */
static void pipe_equal(pipe_case c, int from, int to) {
    c.stages = 1;
    const dt_pipeline_schedule schedule = c.schedule;
    const int chunks = c.chunks;
    c.schedule = DT_PIPELINE_1F1B;
    c.chunks = 0;
    const pipe_end want = pipe_train(&c);
    c.schedule = schedule;
    c.chunks = chunks;
    for (c.stages = from; c.stages <= to; c.stages++) {
        const pipe_end got = pipe_train(&c);
        const bool same = got.hash == want.hash && got.report.loss == want.report.loss &&
                          got.report.metric[0] == want.report.metric[0] &&
                          got.report.gradient_norm == want.report.gradient_norm &&
                          got.evaluated == want.evaluated && want.hash;
        CHECK_TEXT(same,
                   "model %d, %d stages, schedule %d, %d parts of %d: %016llx, not %016llx; loss "
                   "%.17g, not %.17g; norm %.17g, not %.17g",
                   c.kind, c.stages, c.schedule, c.accumulate, c.batch,
                   (unsigned long long)got.hash, (unsigned long long)want.hash, got.report.loss,
                   want.report.loss, got.report.gradient_norm, want.report.gradient_norm);
    }
}

TEST(pipelines_keep_buffers_with_their_updates_and_use_class_weights_of_another_stage) {
    pipe_equal((pipe_case){.kind = PIPE_NORM, .accumulate = 6, .batch = 12, .steps = 5}, 2, 2);
    pipe_equal((pipe_case){.kind = PIPE_CLASSES, .accumulate = 4, .batch = 40, .steps = 5}, 2, 2);
}

TEST(pipeline_of_two_stages_has_the_bits_of_one_device) {
    pipe_equal((pipe_case){.accumulate = 4, .batch = 40, .steps = 9}, 2, 2);
    pipe_equal(
        (pipe_case){.accumulate = 4, .batch = 40, .steps = 9, .schedule = DT_PIPELINE_FILL_DRAIN},
        2, 2);
}

/* A cut may come anywhere, also where what moves a buffer goes over it; and moments of weights
 * without a gradient have the same zeros. */
TEST(pipelines_of_random_layers_have_the_bits_of_one_device_wherever_they_are_cut) {
    static const dt_optim_desc optims[] = {
        {.kind = DT_OPTIM_ADAM, .lr = 0.01, .weight_decay = 0.1},
        {.kind = DT_OPTIM_SGD, .lr = 0.01, .momentum = 0.9},
        {.kind = DT_OPTIM_LION, .lr = 0.01, .clip_norm = 1},
        {.kind = DT_OPTIM_SGD, .lr = 0.01, .momentum = 0.9, .maximize = true}};
    const int most = getenv("DTRAIN_TEST_LONG") ? 300 : 30;
    for (int seed = 0; seed < most; seed++)
        pipe_equal((pipe_case){.kind = PIPE_RANDOM + seed,
                               .accumulate = 1 + seed % 4,
                               .batch = 16,
                               .steps = 4,
                               .schedule = seed % 3 ? DT_PIPELINE_1F1B : DT_PIPELINE_ZERO_BUBBLE,
                               .optim = &optims[seed / 4 % 4]},
                   2, 3);
}

TEST(pipeline_of_more_micro_batches_than_a_chain_adds_has_the_bits_of_one_device) {
    pipe_equal((pipe_case){.accumulate = 20, .batch = 40, .steps = 4}, 2, 2);
    pipe_equal((pipe_case){.kind = PIPE_TIED, .accumulate = 33, .batch = 37, .steps = 3}, 3, 3);
}

TEST(pipeline_of_any_model_and_number_of_micro_batches_has_the_bits_of_one_device) {
    static const int kinds[] = {0, 1, TRAIN_SUMS, TRAIN_SPECTRAL, PIPE_SKIP, PIPE_TIED};
    for (int i = 0; i < 6; i++)
        for (int parts = 1; parts <= 7; parts += 2)
            pipe_equal((pipe_case){.kind = kinds[i], .accumulate = parts, .batch = 37, .steps = 5},
                       2, i == 0 ? 3 : 2);
    for (int parts = 1; parts <= 6; parts++)
        pipe_equal((pipe_case){.kind = PIPE_SKIP, .accumulate = parts, .batch = 37, .steps = 6}, 3,
                   6);
    pipe_equal((pipe_case){.kind = PIPE_TIED, .accumulate = 5, .batch = 37, .steps = 6}, 3, 4);
}

TEST(pipeline_schedules_all_have_the_bits_of_one_device) {
    for (int schedule = 0; schedule <= DT_PIPELINE_ZERO_BUBBLE; schedule++)
        for (int parts = 1; parts <= 9; parts += 2)
            pipe_equal((pipe_case){.kind = PIPE_SKIP,
                                   .schedule = (dt_pipeline_schedule)schedule,
                                   .accumulate = parts,
                                   .batch = 45,
                                   .steps = 7},
                       2, schedule == DT_PIPELINE_INTERLEAVED ? 3 : 5);
    pipe_equal((pipe_case){.kind = PIPE_TIED,
                           .schedule = DT_PIPELINE_INTERLEAVED,
                           .accumulate = 6,
                           .batch = 30,
                           .steps = 6},
               2, 2);
}

TEST(pipeline_of_one_vulkan_device_has_the_bits_of_that_device) {
    if (!pipe_has_vulkan())
        SKIP("no Vulkan device");
    pipe_case c = {.kind = PIPE_SKIP, .accumulate = 4, .batch = 40, .steps = 4, .stages = 1};
    c.devices = "vulkan:0";
    const pipe_end want = pipe_train(&c);
    c.stages = 2;
    c.devices = "vulkan:0,vulkan:0";
    for (int schedule = 0; schedule <= DT_PIPELINE_ZERO_BUBBLE; schedule++) {
        c.schedule = (dt_pipeline_schedule)schedule;
        const pipe_end got = pipe_train(&c);
        CHECK_TEXT(got.hash == want.hash && want.hash, "schedule %d: %016llx, not %016llx",
                   schedule, (unsigned long long)got.hash, (unsigned long long)want.hash);
    }
}

TEST(pipeline_of_a_cpu_and_a_gpu_trains_as_one_device) {
    if (!pipe_has_vulkan())
        SKIP("no Vulkan device");
    pipe_case c = {.kind = PIPE_SKIP, .accumulate = 4, .batch = 40, .steps = 4, .stages = 1};
    const pipe_end want = pipe_train(&c);
    c.stages = 2;
    for (int first = 0; first < 2; first++) {
        c.devices = first ? "vulkan:0,cpu" : "cpu,vulkan:0";
        const pipe_end got = pipe_train(&c);
        CHECK_NEAR(got.report.loss, want.report.loss, 1e-4);
        CHECK_NEAR(got.report.gradient_norm, want.report.gradient_norm, 1e-3);
        CHECK_NEAR(got.evaluated, want.evaluated, 1e-4);
    }
}

TEST(pipeline_takes_short_batches_and_padded_ones) {
    for (int tail = 0; tail <= DT_TAIL_PAD; tail++)
        for (int batch = 35; batch < 60; batch += 11)
            pipe_equal((pipe_case){.kind = PIPE_SKIP,
                                   .tail = (dt_tail)tail,
                                   .accumulate = 5,
                                   .batch = batch,
                                   .steps = 9},
                       2, 3);
}

TEST(pipeline_has_the_bits_of_every_kind_of_update) {
    const dt_optim_desc all[] = {
        {.kind = DT_OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .clip_norm = 0.05},
        {.kind = DT_OPTIM_LAMB, .lr = 0.01, .clip_norm = 0.5},
        {.kind = DT_OPTIM_ADAMW,
         .lr = 0.01,
         .clip_value = 0.01,
         .groups = {{.params = "*.bias", .weight_decay = DT_ZERO},
                    {.params = "out*", .lr_scale = 0.5}},
         .average = {.kind = DT_AVERAGE_EMA, .decay = 0.9}}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pipe_equal(
            (pipe_case){
                .kind = PIPE_SKIP, .accumulate = 4, .batch = 40, .steps = 6, .optim = &all[i]},
            2, 4);
}

TEST(pipeline_resumes_from_the_checkpoint_of_another_number_of_stages) {
    static const char *file = "build/pipeline.checkpoint";
    for (int kind = 1; kind <= PIPE_SKIP; kind += PIPE_SKIP - 1) {
        pipe_case c = {.kind = kind, .accumulate = 3, .batch = 36, .steps = 8, .stages = 1};
        const pipe_end want = pipe_train(&c);
        c.save = file;
        c.save_after = c.steps = 4;
        for (int stages = 1; stages <= 2; stages++) {
            c.stages = stages;
            pipe_train(&c);
            for (int after = 1; after <= (kind == 1 ? 2 : 3); after++) {
                const pipe_end got = pipe_train(&(pipe_case){.kind = kind,
                                                             .accumulate = 3,
                                                             .batch = 36,
                                                             .steps = 4,
                                                             .stages = after,
                                                             .load = file});
                CHECK_TEXT(got.hash == want.hash, "model %d, saved by %d stages, %d go on", kind,
                           stages, after);
            }
        }
    }
    remove(file);
}

TEST(pipeline_info_has_the_cost_of_a_schedule) {
    pipe_case c = {.kind = PIPE_SKIP, .accumulate = 6, .batch = 36, .steps = 1, .stages = 3};
    const dt_trainer_info one = pipe_train(&c).info;
    c.schedule = DT_PIPELINE_FILL_DRAIN;
    const dt_trainer_info all = pipe_train(&c).info;
    c.schedule = DT_PIPELINE_INTERLEAVED;
    const dt_trainer_info turns = pipe_train(&c).info;
    CHECK_NEAR(one.bubble, 2.0 / 6.0, 1e-12);
    CHECK(one.stages == 3 && one.live_micro_batches == 3 && one.micro_batches == 6);
    CHECK_NEAR(all.bubble, 2.0 / 6.0, 1e-12);
    CHECK(all.live_micro_batches == 6 && all.transient_bytes > one.transient_bytes);
    CHECK_NEAR(turns.bubble, 2.0 / 12.0, 1e-12);
    CHECK(turns.stages == 6);
}

TEST(a_step_of_a_pipeline_allocates_nothing) {
    train_model m = {0};
    dt_trainer *trainer = NULL;
    atomic_int calls = 0;
    char devices[32];
    const dt_ctx_desc ctx = {.no_vulkan = true, .allocator = {train_alloc, train_free, &calls}};
    pipe_case c = {.kind = PIPE_SKIP, .accumulate = 5, .batch = 50, .stages = 3};
    for (int schedule = 0; schedule <= DT_PIPELINE_ZERO_BUBBLE; schedule++) {
        c.schedule = (dt_pipeline_schedule)schedule;
        REQUIRE(pipe_model(&m, &ctx, c.kind));
        const dt_trainer_desc d = pipe_desc(&m, &c, devices);
        REQUIRE(!dt_trainer_create(m.graph, &d, &trainer));
        const int before = atomic_load(&calls);
        for (int i = 0; i < 10; i++)
            CHECK(!dt_trainer_step(trainer, NULL));
        CHECK_TEXT(atomic_load(&calls) == before, "schedule %d: %d calls", schedule,
                   atomic_load(&calls) - before);
        dt_ctx_destroy(m.ctx);
    }
}

/* ---- what goes wrong */

/* A second step of three stages over spoilt data: what it says; and nothing has changed. */
static void pipe_spoilt(float x, int32_t label, float fc, dt_result want, const char *text) {
    train_model m = {0};
    dt_trainer *trainer = NULL;
    char devices[32];
    const pipe_case c = {.kind = PIPE_SKIP, .accumulate = 5, .batch = 50, .stages = 3};
    uint64_t before = 0, after = 1;
    REQUIRE(pipe_model(&m, &(dt_ctx_desc){.no_vulkan = true}, c.kind));
    dt_trainer_desc d = pipe_desc(&m, &c, devices);
    d.no_shuffle = true;
    m.data.x[99 * TRAIN_SIDE * TRAIN_SIDE] += x;
    m.data.t[99] = label ? label : m.data.t[99];
    REQUIRE(!dt_trainer_create(m.graph, &d, &trainer));
    CHECK(!dt_trainer_step(trainer, NULL));
    float w[20];
    dt_store *store = dt_trainer_store(trainer);
    const int bias = dt_store_find(store, "block3.bias");
    CHECK(!dt_store_read(store, bias, DT_VALUE_PARAM, w, sizeof w));
    w[0] += fc;
    CHECK(!dt_store_write(store, bias, DT_VALUE_PARAM, w, sizeof w));
    CHECK(!dt_store_state_hash(store, &before));
    dt_result result = dt_trainer_step(trainer, NULL);
    CHECK_TEXT(result == want && strstr(dt_ctx_error(m.ctx), text), "%d: %s", result,
               dt_ctx_error(m.ctx));
    CHECK(!dt_store_state_hash(dt_trainer_store(trainer), &after));
    CHECK(before == after);
    w[0] = 0.0f;
    CHECK(!dt_store_write(store, bias, DT_VALUE_PARAM, w, sizeof w));
    CHECK_TEXT(dt_trainer_step(trainer, NULL) == (label ? DT_ERROR_INVALID : DT_OK), "%s",
               dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

TEST(pipeline_names_the_op_that_is_not_finite_and_its_stage_and_changes_nothing) {
    pipe_spoilt(NAN, 0, 0.0f, DT_ERROR_NUMERIC, "input 'x' holds a NaN");
    pipe_spoilt(0.0f, 0, INFINITY, DT_ERROR_NUMERIC, "stage 2', step 2: parameter 'block3.bias'");
    pipe_spoilt(3e38f, 0, 0.0f, DT_ERROR_NUMERIC, "stage 2', step 2: op mul");
}

TEST(pipeline_finds_a_label_out_of_range_before_anything_is_computed) {
    pipe_spoilt(0.0f, 77, 0.0f, DT_ERROR_INVALID, "77");
}

TEST(pipeline_takes_a_value_that_was_written_between_two_steps) {
    uint64_t hash[2];
    for (int stages = 1; stages <= 2; stages++) {
        train_model m = {0};
        dt_trainer *trainer = NULL;
        char devices[32];
        const pipe_case c = {.kind = PIPE_SKIP, .accumulate = 3, .batch = 30, .stages = stages};
        REQUIRE(pipe_model(&m, &(dt_ctx_desc){.no_vulkan = true}, c.kind));
        const dt_trainer_desc d = pipe_desc(&m, &c, devices);
        REQUIRE(!dt_trainer_create(m.graph, &d, &trainer));
        CHECK(!dt_trainer_step(trainer, NULL));
        float w[20] = {0.25f, -1.0f};
        dt_store *store = dt_trainer_store(trainer);
        CHECK(!dt_trainer_step(trainer, NULL));
        CHECK(!dt_store_write(store, dt_store_find(store, "block2.bias"), DT_VALUE_PARAM, w,
                              sizeof w));
        CHECK(!dt_trainer_step(trainer, NULL));
        CHECK(!dt_store_state_hash(dt_trainer_store(trainer), &hash[stages - 1]));
        dt_ctx_destroy(m.ctx);
    }
    CHECK(hash[0] == hash[1]);
}

static void pipe_refused(const dt_trainer_desc *change, int marks, dt_result want,
                         const char *text) {
    train_model m = {0};
    dt_trainer *trainer = NULL;
    char devices[32];
    const pipe_case c = {.kind = PIPE_SKIP, .accumulate = 4, .batch = 40, .stages = 2};
    REQUIRE(pipe_model(&m, &(dt_ctx_desc){.no_vulkan = true}, c.kind));
    dt_trainer_desc d = pipe_desc(&m, &c, devices);
    d.parallel.pipeline =
        change->parallel.pipeline ? change->parallel.pipeline : d.parallel.pipeline;
    d.devices = change->devices ? change->devices : d.devices;
    d.parallel.schedule = change->parallel.schedule;
    d.parallel.chunks = change->parallel.chunks;
    d.parallel.batch_slices = change->parallel.batch_slices;
    d.parallel.balance = change->parallel.balance;
    d.mode = change->mode;
    d.parallel.replicas = change->parallel.replicas;
    d.parallel.zero_stage = change->parallel.zero_stage;
    d.parallel.offload = change->parallel.offload;
    d.params = change->params;
    if (marks)
        dt_stage(m.logits, marks);
    const dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    CHECK_TEXT(result == want && strstr(dt_ctx_error(m.ctx), text), "%d: %s", result,
               dt_ctx_error(m.ctx));
    CHECK(!trainer);
    dt_ctx_destroy(m.ctx);
}

TEST(pipeline_names_the_settings_that_it_refuses) {
    const struct {
        dt_trainer_desc desc;
        int mark;
        dt_result result;
        const char *text;
    } all[] = {
        {{.devices = "cpu:3"}, 0, DT_ERROR_INVALID, "2 stages needs 2 devices"},
        {{.parallel.replicas = 2},
         0,
         DT_ERROR_INVALID,
         "2 replicas x 2 stages needs 4 devices, but the .devices of the job's 1 "},
        {{.parallel.replicas = -2},
         0,
         DT_ERROR_INVALID,
         ".parallel.replicas is -2; it must be at least 0"},
        {{.parallel = {.zero_stage = 2, .offload = true}},
         0,
         DT_ERROR_UNSUPPORTED,
         ".parallel.offload cannot be combined with .parallel.pipeline = 2: only a replica"},
        {{.parallel.pipeline = -1},
         0,
         DT_ERROR_INVALID,
         ".parallel.pipeline is -1; it must be at least 0 and at most 64"},
        {{.parallel.pipeline = 65, .devices = "cpu:64"},
         0,
         DT_ERROR_INVALID,
         ".parallel.pipeline is 65; it must be at least 0 and at most 64"},
        {{.parallel.pipeline = 20, .devices = "cpu:20"}, 0, DT_ERROR_INVALID, "can be cut into"},
        {{.parallel.schedule = (dt_pipeline_schedule)4},
         0,
         DT_ERROR_INVALID,
         "DT_PIPELINE_INTERLEAVED or DT_PIPELINE_ZERO_BUBBLE"},
        {{.parallel.chunks = 2},
         0,
         DT_ERROR_INVALID,
         ".parallel.chunks = 2 needs .parallel.schedule = DT_PIPELINE_INTERLEAVED"},
        {{.parallel.pipeline = 1, .devices = "cpu", .parallel.chunks = 2},
         0,
         DT_ERROR_INVALID,
         ".parallel.chunks = 2 needs .parallel.pipeline"},
        {{.parallel.batch_slices = 41},
         0,
         DT_ERROR_INVALID,
         ".parallel.batch_slices is 41 and .batch is 40"},
        {{.devices = "cpu:4", .parallel.batch_slices = 1},
         0,
         DT_ERROR_INVALID,
         ".parallel.batch_slices is 1 for 2 replicas of a"},
        {{.parallel.balance = DT_BALANCE_MEASURED},
         0,
         DT_ERROR_INVALID,
         ".parallel.pipeline = 2 cannot be combined with .parallel.balance = DT_BALANCE_MEASURED"},
        {{.mode = DT_TRAIN_LOCAL},
         0,
         DT_ERROR_INVALID,
         ".parallel.pipeline = 2 cannot be combined with .mode = DT_TRAIN_LOCAL"},
        {{.params = "block0.*"}, 0, DT_ERROR_INVALID, "can be cut into at most 1"},
        {{.parallel.pipeline = 0},
         1,
         DT_ERROR_INVALID,
         "stage 1 of the pipeline has no parameter to train"},
        {{.parallel.pipeline = 0}, 2, DT_ERROR_INVALID, "stage 2, but the pipeline has 2"},
        {{.parallel.pipeline = 3, .devices = "cpu:3"},
         1,
         DT_ERROR_INVALID,
         "2 stages, including stage 0"},
        {{.parallel.pipeline = 3, .devices = "cpu:3"}, 2, DT_ERROR_INVALID, "once, in order"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        pipe_refused(&all[i].desc, all[i].mark, all[i].result, all[i].text);
}

/* A refusal names the largest number below that works: all between are refused, it is not. */
TEST(a_pipeline_of_too_many_stages_names_the_largest_number_that_works) {
    for (int layers = 2; layers <= 5; layers++) {
        train_model m = {0};
        dt_trainer *t = NULL;
        int most = 0;
        REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 0));
        dt_tensor h = m.x;
        for (int i = 0; i < layers; i++) {
            char name[16];
            snprintf(name, sizeof name, "deep%d", i);
            h = dt_tanh(dt_nn_linear(h, name, i + 1 < layers ? 8 : TRAIN_CLASSES));
        }
        dt_trainer_desc d = train_desc(&m);
        d.metrics[0] = (dt_tensor){0};
        d.params = "deep*";
        d.loss = dt_cross_entropy(h, m.t, NULL);
        for (int stages = 2 * layers + 3; stages > 1; stages--) {
            char devices[16];
            snprintf(devices, sizeof devices, "cpu:%d", stages);
            d.devices = devices;
            d.parallel.pipeline = stages;
            const dt_result result = dt_trainer_create(m.graph, &d, &t);
            const char *text = strstr(dt_ctx_error(m.ctx), "into at most ");
            if (result == DT_OK) {
                CHECK_TEXT(stages == most, "%d layers: %d stages, not %d", layers, most, stages);
                break;
            }
            CHECK_TEXT(text, "%s", dt_ctx_error(m.ctx));
            most = text ? atoi(text + 13) : 0;
            CHECK_TEXT(most < stages, "%d layers, %d stages: %d", layers, stages, most);
        }
        CHECK_TEXT(most >= layers, "%d layers: %d", layers, most);
        dt_trainer_destroy(t);
        dt_ctx_destroy(m.ctx);
    }
}

/* ---- marks */

/* The log's lines of stages: which nodes each has. */
static void pipe_log(void *user, dt_log_level level, const char *message) {
    char *at = user;
    (void)level;
    if (strstr(message, "pipeline: stage") && strlen(at) < 2000)
        snprintf(at + strlen(at), 2000, "%.60s\n", message);
}

TEST(pipeline_is_cut_after_tensors_that_dt_stage_marks) {
    static char text[4096];
    for (int marked = 0; marked < 2; marked++) {
        train_model m = {0};
        dt_trainer *trainer = NULL;
        char devices[32], want[64];
        const pipe_case c = {.kind = PIPE_SKIP, .accumulate = 4, .batch = 40, .stages = 2};
        const dt_ctx_desc ctx = {.no_vulkan = true, .logger = {pipe_log, text}};
        REQUIRE(pipe_model(&m, &ctx, c.kind));
        const dt_tensor h = {m.graph, 9}; /* early: no balance would cut there */
        if (marked)
            CHECK(dt_stage(h, 1).id == h.id);
        const dt_trainer_desc d = pipe_desc(&m, &c, devices);
        text[0] = 0;
        REQUIRE(!dt_trainer_create(m.graph, &d, &trainer));
        snprintf(want, sizeof want, "stage 1 on device 1, cpu: nodes %u to", h.id + 1);
        CHECK_TEXT(!!strstr(text, want) == marked, "%s", text);
        dt_ctx_destroy(m.ctx);
    }
}

/* What the log says of the job. */
static void pipe_log_job(void *user, dt_log_level level, const char *message) {
    (void)level;
    if (strstr(message, "training: "))
        snprintf(user, 800, "%.799s", message);
}

TEST(the_log_has_buckets_and_bytes_of_a_replica_only_where_one_device_has_it) {
    static char text[800];
    for (int stages = 1; stages <= 2; stages++) {
        train_model m = {0};
        dt_trainer *trainer = NULL;
        char devices[32];
        const pipe_case c = {.kind = PIPE_SKIP, .accumulate = 4, .batch = 40, .stages = 2};
        const dt_ctx_desc ctx = {.no_vulkan = true, .logger = {pipe_log_job, text}};
        REQUIRE(pipe_model(&m, &ctx, c.kind));
        dt_trainer_desc d = pipe_desc(&m, &c, devices);
        d.parallel.pipeline = stages;
        REQUIRE(!dt_trainer_create(m.graph, &d, &trainer));
        CHECK_TEXT(strstr(text, " bytes of staging, ") != NULL, "%s", text);
        CHECK_TEXT(!strstr(text, "buckets of") == (stages > 1), "%s", text);
        CHECK_TEXT(!strstr(text, "a replica has") == (stages > 1), "%s", text);
        dt_ctx_destroy(m.ctx);
    }
}

/* What the log says of the first replica's first stage. */
static void pipe_log_bytes(void *user, dt_log_level level, const char *message) {
    const char *at = strstr(message, "parameters; ");
    (void)level;
    if (strstr(message, "pipeline: stage 0 of replica 0") && at)
        snprintf(user, 200, "%.199s", at);
}

TEST(the_log_has_the_memory_of_a_stage_with_zero_2_and_3) {
    static char text[200];
    for (int level = DT_SHARD_GRADIENTS; level <= DT_SHARD_PARAMETERS; level++) {
        train_model m = {0};
        dt_trainer *trainer = NULL;
        dt_trainer_info info;
        char devices[32], want[200];
        const pipe_case c = {.kind = PIPE_SKIP, .accumulate = 4, .batch = 40, .stages = 2};
        const dt_ctx_desc ctx = {.no_vulkan = true, .logger = {pipe_log_bytes, text}};
        REQUIRE(pipe_model(&m, &ctx, c.kind));
        dt_trainer_desc d = pipe_desc(&m, &c, devices);
        d.devices = "cpu:4";
        d.parallel.zero_stage = level;
        REQUIRE(!dt_trainer_create(m.graph, &d, &trainer));
        dt_trainer_get_info(trainer, &info);
        snprintf(want, sizeof want,
                 "parameters; %llu bytes of parameters, %llu of gradients, %llu of state (a shard)",
                 (unsigned long long)info.replica_param_bytes,
                 (unsigned long long)info.replica_gradient_bytes,
                 (unsigned long long)info.state_bytes);
        CHECK_TEXT(!strncmp(text, want, strlen(want)), "'%s', not '%s'", text, want);
        dt_ctx_destroy(m.ctx);
    }
}
