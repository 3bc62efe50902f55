/* A trainer with steps under way: the bits of one at a time, with any calls between. Also the
 * meaning of a step that fails. Included by main.c, after test_parallel.c. */

typedef struct fly_case {
    int kind, in_flight, batch, accumulate;
    bool by_steps, skips;
    const char *checkpoint;
} fly_case;

typedef struct fly_result {
    uint64_t hash, step, samples;
    double loss[2], evaluated;
} fly_result;

static dt_result fly_epoch(const fly_case *c, dt_trainer *trainer, dt_train_report *sum) {
    dt_train_report r = {0};
    *sum = r;
    if (!c->by_steps)
        return dt_trainer_epoch(trainer, sum);
    dt_result result = DT_OK;
    for (int i = 0; i < 40 && !result && !r.epoch_ended; i++) {
        result = dt_trainer_step(trainer, &r);
        for (int k = 0; k < DT_MAX_TERMS; k++) {
            sum->loss_sum[k] += r.loss_sum[k];
            sum->loss_weight[k] += r.loss_weight[k];
        }
        sum->samples += r.samples;
        sum->step = r.step;
        CHECK(trainer->par.under_way == (c->in_flight == 2 && !r.epoch_ended) || i < 4);
    }
    sum->loss = sum->loss_sum[0] / sum->loss_weight[0];
    return result;
}

/* Two epochs with everything between them that may come there. */
static void fly(const fly_case *c, fly_result *out) {
    train_model m;
    dt_trainer *trainer = NULL;
    dt_train_report r;
    memset(out, 0, sizeof *out);
    REQUIRE(train_model_make(&m, &(dt_ctx_desc){.validation = true}, c->kind));
    dt_trainer_desc d = train_desc(&m);
    d.devices = "vulkan:0";
    d.batch = c->batch;
    d.accumulate = c->accumulate;
    d.limits.in_flight = c->in_flight;
    d.checkpoint.folder = c->checkpoint;
    d.checkpoint.every_steps = c->checkpoint ? 3 : 0;
    if (c->skips)
        m.data.x[60 * TRAIN_SIDE * TRAIN_SIDE] = NAN;
    REQUIRE(!dt_trainer_create(m.graph, &d, &trainer));
    CHECK(trainer->par.alone && trainer->par.desc.in_flight == c->in_flight);
    for (int epoch = 0; epoch < 2; epoch++) {
        dt_result result = fly_epoch(c, trainer, &r);
        CHECK(result == (c->skips ? DT_ERROR_NUMERIC : DT_OK));
        if (c->skips)
            CHECK_CONTAINS(dt_ctx_error(m.ctx), "input 'x'");
        CHECK(!trainer->par.under_way && r.epoch_ended + c->by_steps);
        out->loss[epoch] = c->skips ? 0 : r.loss;
        out->samples += r.samples;
        CHECK(!dt_trainer_set_lr(trainer, 0.02));
    }
    CHECK(trainer->saved == (c->checkpoint ? (trainer->par.replicas->store->steps / 3) * 3 : 0));
    dt_trainer_step(trainer, NULL); /* perhaps it is under way during all that follows */
    if (!c->skips) {
        CHECK(!dt_trainer_evaluate(trainer, &d.data, 0, &r));
        out->evaluated = r.loss;
    }
    dt_trainer_step(trainer, NULL);
    CHECK(!dt_store_state_hash(dt_trainer_store(trainer), &out->hash));
    dt_trainer_wait(trainer, &r);
    out->step = r.step;
    dt_ctx_destroy(m.ctx);
}

static void fly_alike(fly_case c) {
    fly_result one, other;
    c.in_flight = 1;
    fly(&c, &one);
    CHECK(one.hash && one.samples && one.step);
    for (int way = 0; way < 2 && one.step; way++) {
        c.in_flight = way ? 2 : 0;
        c.by_steps = way && !c.skips;
        fly(&c, &other);
        CHECK(one.hash == other.hash && one.step == other.step && one.samples == other.samples);
        CHECK(!memcmp(one.loss, other.loss, sizeof one.loss) && one.evaluated == other.evaluated);
    }
}

TEST(a_trainer_with_two_steps_in_flight_has_the_bits_of_one_at_a_time) {
    if (!ahead_has_vulkan())
        SKIP("no Vulkan device");
    const char *folder = temp_path("fly");
    fly_alike((fly_case){.kind = 1, .batch = 37, .checkpoint = folder});
    temp_remove_folder(folder);
}

/* Parts of full batches are alike; some of short ones are not. */
TEST(a_trainer_with_micro_batches_in_flight_has_the_bits_of_one_step_at_a_time) {
    if (!ahead_has_vulkan())
        SKIP("no Vulkan device");
    fly_alike((fly_case){.kind = 0, .batch = 36, .accumulate = 3});
    fly_alike((fly_case){.kind = 0, .batch = 36, .accumulate = 4, .skips = true});
    fly_alike((fly_case){.kind = 0, .batch = 37, .accumulate = 2, .skips = true});
}

TEST(a_skipped_step_does_not_change_the_next_step_in_flight) {
    if (!ahead_has_vulkan())
        SKIP("no Vulkan device");
    fly_alike((fly_case){.kind = 0, .batch = 17, .skips = true});
}

/* One submission checks the sum and updates: values that are not finite are not written. */
TEST(a_skipped_step_of_batch_slices_on_one_device_leaves_the_weights) {
    train_model m;
    dt_trainer *trainer;
    dt_train_report r;
    uint64_t hash[3];
    if (!ahead_has_vulkan())
        SKIP("no Vulkan device");
    REQUIRE(train_model_make(&m, &(dt_ctx_desc){.validation = true}, 0));
    dt_trainer_desc d = train_desc(&m);
    d.devices = "vulkan:0";
    d.parallel.batch_slices = 4;
    REQUIRE(!dt_trainer_create(m.graph, &d, &trainer));
    CHECK(dti_parallel_keeps_gradients(&trainer->par) && !trainer->par.alone);
    CHECK(!dt_trainer_step(trainer, &r) && r.step == 1 && r.gradient_norm > 0);
    CHECK(!dt_store_state_hash(dt_trainer_store(trainer), &hash[0]));
    for (size_t i = 0; i < (size_t)TRAIN_ROWS * TRAIN_SIDE * TRAIN_SIDE; i += TRAIN_SIDE)
        m.data.x[i] = NAN;
    dt_result result = DT_OK;
    for (int i = 0; i < 4 && !result; i++) { /* the loader has read batches ahead */
        CHECK(!dt_store_state_hash(dt_trainer_store(trainer), &hash[0]));
        result = dt_trainer_step(trainer, &r);
    }
    CHECK(result == DT_ERROR_NUMERIC);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "input 'x'");
    CHECK(!dt_store_state_hash(dt_trainer_store(trainer), &hash[1]) && hash[0] == hash[1]);
    for (size_t i = 0; i < (size_t)TRAIN_ROWS * TRAIN_SIDE * TRAIN_SIDE; i += TRAIN_SIDE)
        m.data.x[i] = 0.5f;
    for (int i = 0; i < 4 && result; i++)
        result = dt_trainer_step(trainer, &r);
    CHECK(!result && !dt_store_state_hash(dt_trainer_store(trainer), &hash[2]));
    CHECK(hash[0] != hash[2]);
    dt_ctx_destroy(m.ctx);
}

#ifndef DT_NO_VULKAN
static bool fly_stub_open(train_model *m, dt_trainer_desc *d, dt_trainer **trainer) {
    static dt_vulkan_desc vulkan;
    vulkan = stub_vulkan();
    if (!train_model_make(m, &(dt_ctx_desc){.vulkan = &vulkan}, 0))
        return false;
    *d = train_desc(m);
    d->devices = "vulkan";
    d->batch = 30;
    d->limits.in_flight = 2;
    return !dt_trainer_create(m->graph, d, trainer);
}

TEST(a_trainer_on_one_device_takes_a_comm_of_one_rank) {
    train_model m;
    dt_trainer_desc d;
    dt_trainer *trainer;
    dt_comm *comm = NULL;
    dt_train_report r;
    REQUIRE(fly_stub_open(&m, &d, &trainer));
    dt_trainer_destroy(trainer);
    REQUIRE(!dt_comm_create_threads(NULL, 1, &comm));
    d.comm = comm;
    REQUIRE(!dt_trainer_create(m.graph, &d, &trainer));
    CHECK(trainer->par.alone && !dt_trainer_step(trainer, &r));
    CHECK(!dt_trainer_wait(trainer, &r) && r.step == 1);
    dt_ctx_destroy(m.ctx);
    dt_comm_destroy(comm);
}

TEST(a_trainer_with_a_step_in_flight_starts_the_next_and_allocates_nothing) {
    train_model m;
    dt_trainer_desc d;
    dt_trainer *trainer;
    dt_train_report r;
    dt_ctx_info before, after;
    REQUIRE(fly_stub_open(&m, &d, &trainer));
    CHECK(!dt_trainer_epoch(trainer, NULL) && !dt_trainer_step(trainer, &r));
    CHECK(trainer->par.under_way == 1 && r.steps == 0); /* it is under way */
    dt_ctx_get_info(m.ctx, &before);
    memset(stub.calls, 0, sizeof stub.calls);
    CHECK(!dt_trainer_step(trainer, &r));
    CHECK(trainer->par.under_way == 1 && r.steps == 1);
    CHECK(stub.calls[STUB_QueueSubmit] == 1 && stub.calls[STUB_ResetFences] == 1);
    CHECK(!dt_trainer_wait(trainer, &r) && r.steps == 1 && !trainer->par.under_way);
    CHECK(!dt_trainer_wait(trainer, &r) && r.steps == 0);
    CHECK(!dt_trainer_epoch(trainer, &r) && r.steps == 3);
    dt_ctx_get_info(m.ctx, &after);
    CHECK(before.host_alloc_calls == after.host_alloc_calls);
    dt_ctx_destroy(m.ctx);
}

/* The last one commits, and the device weighs nothing. */
TEST(a_step_of_micro_batches_is_one_submission_for_each) {
    for (int parts = 2; parts <= 8; parts *= 2) {
        train_model m;
        dt_trainer_desc d;
        dt_trainer *trainer;
        dt_ctx_info before, after;
        REQUIRE(fly_stub_open(&m, &d, &trainer));
        dt_trainer_destroy(trainer);
        d.batch = 4 * parts;
        d.accumulate = parts;
        REQUIRE(!dt_trainer_create(m.graph, &d, &trainer));
        CHECK(trainer->par.alone && !dt_trainer_step(trainer, NULL));
        CHECK(!dt_trainer_step(trainer, NULL));
        dt_ctx_get_info(m.ctx, &before);
        memset(stub.calls, 0, sizeof stub.calls);
        CHECK(!dt_trainer_step(trainer, NULL) && trainer->par.under_way == 1);
        CHECK(stub.calls[STUB_QueueSubmit] == (uint64_t)parts);
        CHECK(stub.calls[STUB_ResetFences] == (uint64_t)parts);
        CHECK(stub.calls[STUB_GetFenceStatus] <= (uint64_t)parts &&
              !stub.calls[STUB_WaitForFences]);
        CHECK(stub.copies == 2); /* no gradient leaves */
        CHECK(trainer->par.replicas[0].store->running->started == 2);
        dt_ctx_get_info(m.ctx, &after);
        CHECK(before.host_alloc_calls == after.host_alloc_calls);
        dt_ctx_destroy(m.ctx);
    }
}

static int fly_left; /* submissions until the device is lost */

static dti_VkResult DTI_VKAPI fly_submit(dti_VkQueue queue, uint32_t count,
                                         const dti_VkSubmitInfo *info, dti_VkFence fence) {
    return fly_left-- > 0 ? stub_QueueSubmit(queue, count, info, fence) : DTI_VK_ERROR_DEVICE_LOST;
}

/* Micro-batches of the step, and of the one before, are in flight then. */
TEST(a_device_that_is_lost_between_micro_batches_ends_training_with_its_name) {
    for (int at = 0; at < 4; at++) {
        train_model m;
        dt_trainer_desc d;
        dt_trainer *trainer;
        REQUIRE(fly_stub_open(&m, &d, &trainer));
        dt_trainer_destroy(trainer);
        d.batch = 16;
        d.accumulate = 4;
        REQUIRE(!dt_trainer_create(m.graph, &d, &trainer));
        CHECK(!dt_trainer_step(trainer, NULL) && !dt_trainer_step(trainer, NULL));
        fly_left = at;
        ((dti_vk_device *)trainer->par.replicas[0].store->device)->vk.QueueSubmit = fly_submit;
        for (int again = 0; again < 2; again++) {
            CHECK(dt_trainer_step(trainer, NULL) != DT_OK);
            CHECK_CONTAINS(dt_ctx_error(m.ctx), "lost");
        }
        dt_ctx_destroy(m.ctx);
    }
}

static void fly_nothing(void *user) {
    (void)user;
}

/* Forward, backward, the check of the sum, the update: all are started before any is waited for,
 * and the host weighs. */
TEST(a_step_of_two_small_replicas_on_vulkan_is_driven_by_one_thread) {
    train_model m;
    dt_trainer *trainer;
    dt_vulkan_desc vulkan = stub_vulkan();
    dt_train_report r;
    dt_ctx_info before, after;
    vulkan.lock = vulkan.unlock = fly_nothing;
    REQUIRE(train_model_make(&m, &(dt_ctx_desc){.vulkan = &vulkan}, 0));
    dt_trainer_desc d = train_desc(&m);
    d.devices = "vulkan,vulkan";
    d.batch = 30;
    REQUIRE(!dt_trainer_create(m.graph, &d, &trainer));
    const dti_parallel *par = &trainer->par;
    REQUIRE(par->job.local == 2 && par->one_thread &&
            par->replicas[0].full.runs[0].program->host_weights);
    const uint32_t each = dti_program_segments(par->replicas[0].full.runs[0].program) + 2;
    CHECK(!dt_trainer_step(trainer, NULL));
    dt_ctx_get_info(m.ctx, &before);
    memset(stub.calls, 0, sizeof stub.calls);
    CHECK(!dt_trainer_step(trainer, &r) && train_times_add_up(&r));
    CHECK(stub.calls[STUB_QueueSubmit] == 2 * each && stub.calls[STUB_ResetFences] == 2 * each);
    CHECK(stub.calls[STUB_GetFenceStatus] <= 2 * each && !stub.calls[STUB_WaitForFences]);
    dt_ctx_get_info(m.ctx, &after);
    CHECK(before.host_alloc_calls == after.host_alloc_calls);
    dt_ctx_destroy(m.ctx);
}

TEST(gradients_of_a_trainer_with_one_device_stay_there) {
    train_model m;
    dt_trainer_desc d;
    dt_trainer *trainer;
    dt_trainer_info info;
    REQUIRE(fly_stub_open(&m, &d, &trainer));
    dt_trainer_get_info(trainer, &info);
    CHECK(trainer->par.alone && info.staging_bytes == 0);
    dt_trainer_destroy(trainer);
    d.parallel.batch_slices = 2; /* a tree of sums, in which only the device has a part */
    REQUIRE(!dt_trainer_create(m.graph, &d, &trainer));
    dt_trainer_get_info(trainer, &info);
    CHECK(!trainer->par.alone && info.staging_bytes == 0);
    memset(stub.calls, 0, sizeof stub.calls);
    CHECK(!dt_trainer_step(trainer, NULL)); /* forward, backward, commit */
    CHECK(stub.calls[STUB_QueueSubmit] == 3 && stub.calls[STUB_ResetFences] == 3);
    CHECK(stub.calls[STUB_GetFenceStatus] <= 3 && !stub.calls[STUB_WaitForFences]);
    CHECK(!dt_trainer_epoch(trainer, NULL) && !trainer->par.under_way);
    dt_trainer_destroy(trainer);
    d.limits.in_flight = 3;
    CHECK(dt_trainer_create(m.graph, &d, &trainer) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "in_flight is 3");
    dt_ctx_destroy(m.ctx);
}
#endif

typedef struct fly_seen {
    uint64_t steps, samples, stop_at;
    bool in_turn;
} fly_seen;

static dt_result fly_see(void *user, dt_fit_state *s) {
    fly_seen *seen = user;
    if (s->event != DT_FIT_STEP)
        return DT_OK;
    seen->in_turn = seen->in_turn && s->last.steps && s->step == seen->steps + s->last.steps;
    seen->steps = s->step;
    seen->samples += s->last.samples;
    s->stop = seen->stop_at && s->step >= seen->stop_at ? DT_FIT_STOP_CALLBACK : s->stop;
    return DT_OK;
}

/* The steps made in all. */
static uint64_t fly_fit(int in_flight, uint64_t stop_at, fly_seen *seen, uint64_t *hash) {
    train_model m;
    dt_trainer *trainer = NULL;
    *seen = (fly_seen){.in_turn = true, .stop_at = stop_at};
    CHECK(train_model_make(&m, &(dt_ctx_desc){.validation = true}, 0));
    dt_trainer_desc d = train_desc(&m);
    d.devices = "vulkan:0";
    d.batch = 17;
    d.limits.in_flight = in_flight;
    CHECK(!dt_trainer_create(m.graph, &d, &trainer));
    dt_history history;
    const dt_fit_desc fit = {.epochs = 2, .callbacks = {{fly_see, seen}}};
    CHECK(!dt_trainer_fit(trainer, &fit, &history));
    CHECK(history.stop == (stop_at ? DT_FIT_STOP_CALLBACK : DT_FIT_STOP_DONE));
    CHECK(!trainer->par.under_way && !dt_store_state_hash(dt_trainer_store(trainer), hash));
    const uint64_t steps = history.steps;
    dt_history_destroy(&history);
    dt_ctx_destroy(m.ctx);
    return steps;
}

TEST(callbacks_see_all_steps_with_two_in_flight_and_stop_after_the_next) {
    fly_seen one, two;
    uint64_t hash[2];
    if (!ahead_has_vulkan())
        SKIP("no Vulkan device");
    const uint64_t steps = fly_fit(0, 0, &one, &hash[0]);
    CHECK(fly_fit(2, 0, &two, &hash[1]) == steps && hash[0] == hash[1]);
    CHECK(one.in_turn && two.in_turn && one.steps == steps && two.steps == steps);
    CHECK(one.samples == two.samples);
    CHECK(fly_fit(1, 3, &one, &hash[0]) == 3 && fly_fit(2, 3, &two, &hash[1]) == 4);
    CHECK(one.steps == 3 && two.steps == 3);
}

/* ---- a net whose classes are weighed by an input that all samples share */

enum { WEIGHED_ROWS = 48, WEIGHED_IN = 4 };

typedef struct weighed_case {
    dt_ctx *ctx;
    dt_trainer *trainer;
    dt_tensor x, y;
    float data[WEIGHED_ROWS * WEIGHED_IN];
    int32_t targets[WEIGHED_ROWS];
} weighed_case;

static bool weighed_open(weighed_case *c, const char *devices, int accumulate, int slices,
                         int bad_row) {
    static const float weights[3] = {1, 2, 5};
    dt_graph *g = NULL;
    *c = (weighed_case){.ctx = NULL};
    for (int i = 0; i < WEIGHED_ROWS * WEIGHED_IN; i++)
        c->data[i] = i / WEIGHED_IN == bad_row ? NAN : (float)(i % 7) * 0.1f;
    for (int i = 0; i < WEIGHED_ROWS; i++)
        c->targets[i] = i % 3;
    if (dt_ctx_create(NULL, &c->ctx) || dt_graph_create(c->ctx, &g))
        return false;
    c->x = dt_input(g, "x", DT_F32, dt_dims(WEIGHED_IN));
    dt_tensor t = dt_input(g, "t", DT_I32, dt_dims());
    dt_tensor w = dt_input_shared(g, "w", DT_F32, dt_dims(3));
    c->y = dt_nn_linear(c->x, "a", 3);
    const dt_optim_desc optim = {.lr = 0.1};
    const dt_trainer_desc d = {
        .loss = dt_cross_entropy(c->y, t, &(dt_cross_entropy_desc){.class_weights = w}),
        .optim = &optim,
        .no_shuffle = true,
        .data = {.columns = {{.input = c->x, .data = c->data},
                             {.input = t, .data = c->targets, .dtype = DT_I32}},
                 .rows = WEIGHED_ROWS},
        .batch = 12,
        .accumulate = accumulate,
        .parallel.batch_slices = slices,
        .devices = devices};
    return !dt_trainer_create(g, &d, &c->trainer) &&
           !dt_trainer_set_input(c->trainer, w, weights, sizeof weights);
}

static double weighed_loss(const char *devices, int accumulate, int slices) {
    weighed_case c;
    dt_train_report r = {0};
    if (CHECK_TEXT(weighed_open(&c, devices, accumulate, slices, -1), "%s", devices))
        for (int i = 0; i < 3; i++)
            CHECK(!dt_trainer_step(c.trainer, &r) && !dt_trainer_wait(c.trainer, &r) && !r.empty);
    dt_ctx_destroy(c.ctx);
    return r.loss;
}

TEST(losses_are_weighed_by_shared_inputs_on_vulkan_as_on_the_cpu) {
    static const struct {
        const char *devices;
        int accumulate, slices;
    } cases[] = {{"cpu", 3, 0},         {"vulkan:0", 1, 0}, {"vulkan:0", 3, 0},
                 {"vulkan:0", 1, 2},    {"vulkan:0", 3, 2}, {"vulkan:0,vulkan:0", 1, 0},
                 {"vulkan:0,cpu", 1, 0}};
    if (!ahead_has_vulkan())
        SKIP("no Vulkan device");
    const double wanted = weighed_loss("cpu", 1, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double loss = weighed_loss(cases[i].devices, cases[i].accumulate, cases[i].slices);
        CHECK_TEXT(fabs(loss - wanted) < 1e-5, "%s, accumulate %d, slices %d: %.9g, not %.9g",
                   cases[i].devices, cases[i].accumulate, cases[i].slices, loss, wanted);
    }
}

/* Whichever micro-batch it is in, the step is left out and training goes on. */
TEST(a_trainer_on_vulkan_continues_after_a_nan_in_any_micro_batch) {
    if (!ahead_has_vulkan())
        SKIP("no Vulkan device");
    for (int row = 1; row < 24; row += 4) { /* of both of the first steps */
        weighed_case c;
        dt_train_report r = {0};
        int failed = 0;
        REQUIRE(weighed_open(&c, "vulkan:0", 3, 0, row));
        for (int i = 0; i < 8 && r.step < 3; i++) {
            const dt_result result = dt_trainer_step(c.trainer, &r);
            CHECK(!result || result == DT_ERROR_NUMERIC);
            failed += result != DT_OK;
        }
        CHECK_TEXT(failed == 1 && r.step == 3, "row %d: %d failed, step %d", row, failed,
                   (int)r.step);
        dt_ctx_destroy(c.ctx);
    }
}

TEST(a_trainer_on_vulkan_refuses_a_step_while_a_program_of_its_store_is_under_way) {
    if (!ahead_has_vulkan())
        SKIP("no Vulkan device");
    for (int accumulate = 1; accumulate <= 2; accumulate++) {
        weighed_case c;
        dt_program *p = NULL;
        REQUIRE(weighed_open(&c, "vulkan:0", accumulate, 0, -1));
        CHECK(!dt_trainer_step(c.trainer, NULL) && !dt_trainer_wait(c.trainer, NULL));
        const dt_program_desc d = {.outputs = {c.y}, .batch = 4};
        REQUIRE(!dt_program_create(dt_trainer_store(c.trainer), &d, &p));
        CHECK(!dt_program_write(p, c.x, c.data, 4 * WEIGHED_IN * sizeof(float)));
        CHECK(!dt_program_start(p, NULL));
        CHECK(dt_trainer_step(c.trainer, NULL) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(c.ctx), "under way");
        CHECK(!dt_program_wait(p, NULL));
        CHECK(!dt_trainer_step(c.trainer, NULL) && !dt_trainer_wait(c.trainer, NULL));
        CHECK(!dt_program_begin(p, NULL));
        CHECK(dt_trainer_step(c.trainer, NULL) == DT_ERROR_INVALID);
        CHECK(!dt_program_cancel(p, NULL));
        CHECK(!dt_trainer_step(c.trainer, NULL));
        dt_ctx_destroy(c.ctx);
    }
}
