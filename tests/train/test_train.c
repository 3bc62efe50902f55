/* Training by several replicas: the same bits whatever their number, what checkpoints keep, and
 * what goes wrong. */
#include "train/train_model.h"

#include <unistd.h>

/* ---- the same bits */

typedef struct bits_case {
    int conv; /* train_model_make's kind */
    const char *devices;
    int batch_slices, batch, accumulate, steps, bucket_bytes;
    dt_tail tail;
} bits_case;

static uint64_t bits_hash(const bits_case *c, double *loss) {
    train_model m;
    dt_trainer *trainer = NULL;
    dt_train_report r = {0};
    uint64_t hash = 0;
    dt_ctx_desc ctx = {.no_vulkan = !strstr(c->devices, "vulkan")};
    if (!CHECK_TEXT(train_model_make(&m, &ctx, c->conv), "the model"))
        return 0;
    dt_trainer_desc d = train_desc(&m);
    d.devices = c->devices;
    d.parallel.batch_slices = c->batch_slices;
    d.batch = c->batch ? c->batch : d.batch;
    d.accumulate = c->accumulate;
    d.parallel.bucket_bytes = (size_t)c->bucket_bytes;
    d.tail = c->tail;
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    for (int i = 0; i < c->steps && !result; i++)
        result = dt_trainer_step(trainer, &r);
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(trainer), &hash);
    CHECK_TEXT(result == DT_OK, "%s, batch slices %d: %s", c->devices, c->batch_slices,
               dt_ctx_error(m.ctx));
    if (loss)
        *loss = r.loss;
    dt_ctx_destroy(m.ctx);
    return hash;
}

static void bits_equal(bits_case c, const char *const *devices, int count) {
    c.devices = devices[0];
    uint64_t want = bits_hash(&c, NULL);
    for (int i = 1; i < count; i++) {
        c.devices = devices[i];
        uint64_t got = bits_hash(&c, NULL);
        CHECK_TEXT(got == want && want,
                   "%s against %s, %d batch slices, batch %d, %d parts: %016llx %016llx",
                   devices[i], devices[0], c.batch_slices, c.batch, c.accumulate,
                   (unsigned long long)got, (unsigned long long)want);
    }
}

static const char *const cpus[] = {"cpu", "cpu:2", "cpu:3", "cpu:4", "cpu:8"};

TEST(replicas_one_to_eight_give_the_same_bits) {
    for (int conv = 0; conv < 4; conv++)
        bits_equal((bits_case){.conv = conv, .batch_slices = 8, .batch = 37, .steps = 9}, cpus, 5);
}

TEST(buffers_that_follow_weights_are_the_same_on_any_number_of_replicas) {
    bits_case c = {.conv = TRAIN_SPECTRAL, .batch = 40, .steps = 7, .bucket_bytes = 64};
    for (c.accumulate = 1; c.accumulate < 4; c.accumulate++)
        for (c.batch_slices = 2; c.batch_slices <= 4; c.batch_slices++)
            bits_equal(c, cpus, c.batch_slices);
    c.tail = DT_TAIL_PAD;
    bits_equal(c, cpus, 4);
}

TEST(parts_of_batch_slices_give_the_same_bits_on_any_number_of_replicas) {
    for (int parts = 2; parts <= 5; parts++)
        bits_equal(
            (bits_case){
                .conv = false, .batch_slices = 8, .batch = 64, .accumulate = parts, .steps = 6},
            cpus, 5);
    bits_equal(
        (bits_case){.conv = true, .batch_slices = 4, .batch = 50, .accumulate = 3, .steps = 6},
        cpus, 4);
}

/* A number of them whose sum keeps its rounding. */
TEST(more_parts_than_a_chain_adds_give_the_same_bits_on_any_number_of_replicas) {
    bits_equal((bits_case){.batch_slices = 2, .batch = 80, .accumulate = 20, .steps = 4}, cpus, 2);
    bits_equal((bits_case){.batch_slices = 4, .batch = 90, .accumulate = 17, .steps = 4}, cpus, 4);
    bits_equal(
        (bits_case){
            .conv = TRAIN_SUMS, .batch_slices = 20, .batch = 390, .accumulate = 18, .steps = 3},
        cpus, 3);
}

TEST(shared_gradients_and_class_weights_give_the_same_bits) {
    bits_case c = {.conv = TRAIN_SUMS, .batch = 40, .steps = 7, .bucket_bytes = 64};
    for (int parts = 1; parts < 4; parts++) {
        c.accumulate = parts;
        for (c.batch_slices = 1; c.batch_slices <= 8; c.batch_slices++)
            bits_equal(c, cpus, c.batch_slices < 5 ? c.batch_slices : c.batch_slices < 8 ? 4 : 5);
    }
}

TEST(any_number_of_batch_slices_gives_the_same_bits) {
    for (int batch_slices = 5; batch_slices <= 13; batch_slices += 2)
        bits_equal((bits_case){.batch_slices = batch_slices, .batch = 41, .steps = 5}, cpus, 4);
}

/* The host moves it in place of the device: by all of the way, not by a difference that rounds. */
static uint64_t buffer_hash(float scale) {
    train_model m;
    dt_trainer *t;
    float v[48];
    uint64_t hash = 0;
    if (!CHECK_TEXT(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, TRAIN_SPECTRAL),
                    "made"))
        return 0;
    dt_trainer_desc d = train_desc(&m);
    d.parallel.batch_slices = 2;
    d.devices = "cpu";
    if (dt_trainer_create(m.graph, &d, &t) == DT_OK) {
        dt_store *s = dt_trainer_store(t);
        const int index = dt_store_find(s, "fc0.parametrizations.weight.0._v");
        CHECK(dt_store_read(s, index, DT_VALUE_PARAM, v, sizeof v) == DT_OK);
        for (int i = 0; i < 48; i++)
            v[i] *= scale;
        CHECK(dt_store_write(s, index, DT_VALUE_PARAM, v, sizeof v) == DT_OK);
        CHECK(dt_trainer_step(t, NULL) == DT_OK);
        CHECK(dt_store_state_hash(s, &hash) == DT_OK);
    }
    CHECK_STR(dt_ctx_error(m.ctx), "");
    dt_ctx_destroy(m.ctx);
    return hash;
}

TEST(a_spectral_norm_buffer_does_not_depend_on_its_initial_length) {
    CHECK(buffer_hash(1.0f) == buffer_hash(1099511627776.0f)); /* 2^40 */
}

TEST(short_batches_are_kept_dropped_or_filled_up) {
    for (int tail = 0; tail < 3; tail++)
        bits_equal((bits_case){.batch_slices = 8, .batch = 64, .steps = 7, .tail = (dt_tail)tail},
                   cpus, 5);
    /* what fills up weighs nothing: without batch norm it is the same gradient, up to rounding */
    double kept, filled;
    bits_case c = {.devices = "cpu", .batch_slices = 1, .batch = 64, .steps = 3};
    bits_hash(&c, &kept);
    c.tail = DT_TAIL_PAD;
    bits_hash(&c, &filled);
    CHECK_NEAR(kept, filled, 1e-6 * kept);
}

TEST(the_number_of_batch_slices_decides_the_order_of_additions) {
    bits_case one = {.devices = "cpu", .batch_slices = 1, .batch = 37, .steps = 3}, eight = one;
    double a, b;
    eight.batch_slices = 8;
    CHECK(bits_hash(&one, &a) != bits_hash(&eight, &b));
    CHECK_NEAR(a, b, 1e-5 * a);
}

/* ---- the same as a program by itself */

/* One step of plain SGD: the weights move by the gradient of the whole batch. */
static void exact_params(const char *devices, int batch_slices, float *out, size_t room) {
    train_model m;
    dt_trainer *trainer;
    REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, false));
    dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 1.0};
    dt_trainer_desc d = train_desc(&m);
    d.no_shuffle = true;
    d.optim = &sgd;
    d.batch = 128;
    d.devices = devices;
    d.parallel.batch_slices = batch_slices;
    for (int i = 0; i < 64; i++) /* the first half has 3 valid targets, the second all of its */
        m.data.t[i] = i < 3 ? i : -100;
    for (int i = 64; i < 128; i++)
        m.data.t[i] = i % TRAIN_CLASSES;
    if (dt_trainer_create(m.graph, &d, &trainer) == DT_OK &&
        dt_trainer_step(trainer, NULL) == DT_OK) {
        dt_store *s = dt_trainer_store(trainer);
        for (int i = 0; i < dt_store_param_count(s); i++) {
            dt_param_info p;
            dt_store_get_param(s, i, &p);
            REQUIRE(p.elements <= room);
            CHECK(dt_store_read(s, i, DT_VALUE_GRADIENT, out, 4 * p.elements) == DT_OK);
            out += p.elements;
            room -= p.elements;
        }
    }
    CHECK_STR(dt_ctx_error(m.ctx), "");
    dt_ctx_destroy(m.ctx);
}

TEST(a_replica_with_3_valid_targets_and_one_with_64_have_the_gradient_of_the_whole_batch) {
    enum { ROOM = 4096 };
    static float one[ROOM], two[ROOM], five[ROOM];
    exact_params("cpu", 1, one, ROOM);
    exact_params("cpu:2", 2, two, ROOM);
    exact_params("cpu:3", 5, five, ROOM);
    double worst = 0, largest = 0;
    for (int i = 0; i < ROOM; i++) {
        worst = fmax(worst, fmax(fabs((double)one[i] - two[i]), fabs((double)one[i] - five[i])));
        largest = fmax(largest, fabs((double)one[i]));
    }
    CHECK_TEXT(largest > 1e-3 && worst < 1e-6 * (1 + largest), "%g of %g", worst, largest);
}

/* Each batch slice has logits of its own, and all have the same targets. With two batch slices of
 * the same samples the gradient is that of one. */
static double shared_targets_norm(int batch_slices) {
    dt_ctx *ctx;
    dt_graph *g;
    dt_trainer *t;
    dt_train_report r = {0};
    static const float data[8] = {0.5f, -1, 2, 0.25f, 0.5f, -1, 2, 0.25f};
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) || dt_graph_create(ctx, &g))
        return 0;
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims());
    dt_tensor y = dt_input_shared(g, "y", DT_I32, dt_dims());
    dt_tensor w = dt_param(g, "w", dt_dims(3), (dt_init){DT_INIT_UNIFORM, -1, 1});
    dt_tensor logits = dt_sum_samples(dt_mul(x, dt_sin(w)));
    dt_trainer_desc d = {.loss = dt_cross_entropy(logits, y, NULL),
                         .batch = 4 * batch_slices,
                         .no_shuffle = true,
                         .parallel.batch_slices = batch_slices,
                         .devices = "cpu",
                         .data = {.rows = 8, .columns = {{.input = x, .data = data}}}};
    dt_result result = dt_trainer_create(g, &d, &t);
    if (!result)
        result = dt_trainer_set_input(t, y, &(int32_t){1}, 4);
    if (!result)
        result = dt_trainer_step(t, &r);
    CHECK_TEXT(result == DT_OK, "%d batch slices: %s", batch_slices, dt_ctx_error(ctx));
    CHECK(r.loss_weight[0] == batch_slices);
    dt_ctx_destroy(ctx);
    return r.gradient_norm;
}

TEST(targets_that_all_samples_share_weigh_each_batch_slices_own_logits) {
    const double want = shared_targets_norm(1);
    CHECK(want > 0.1);
    CHECK_NEAR(shared_targets_norm(2), want, 1e-6);
}

/* ---- checkpoints */

static uint64_t resumed_hash(const char *devices, int batch_slices, const char *load, int steps,
                             const char *save) {
    train_model m;
    dt_trainer *trainer = NULL;
    uint64_t hash = 0;
    if (!train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, true))
        return 0;
    dt_trainer_desc d = train_desc(&m);
    d.devices = devices;
    d.parallel.batch_slices = batch_slices;
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    if (!result && load)
        result = dt_trainer_load(trainer, load);
    for (int i = 0; i < steps && !result; i++)
        result = dt_trainer_step(trainer, NULL);
    if (!result && save)
        result = dt_trainer_save(trainer, save);
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(trainer), &hash);
    CHECK_TEXT(result == DT_OK, "%s: %s", devices, dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return hash;
}

TEST(a_checkpoint_of_4_replicas_resumes_on_2_or_1_with_the_same_bits) {
    const char *path = "build/test_train.safetensors";
    const uint64_t want = resumed_hash("cpu:4", 8, NULL, 11, NULL);
    resumed_hash("cpu:4", 8, NULL, 6, path);
    CHECK(resumed_hash("cpu:4", 8, path, 5, NULL) == want);
    CHECK(resumed_hash("cpu:2", 8, path, 5, NULL) == want);
    CHECK(resumed_hash("cpu", 0, path, 5, NULL) == want); /* the file says how many batch slices */
    CHECK(resumed_hash("cpu:3", 0, path, 5, NULL) == want);
    CHECK(resumed_hash("cpu:8", 0, path, 5, NULL) == want);
    remove(path);
}

TEST(a_checkpoint_of_another_model_or_job_is_refused_and_changes_nothing) {
    static const struct {
        int batch, accumulate;
        const char *text;
    } jobs[] = {{30, 1, ".batch is 37 in the checkpoint, but 30 here; use the same"},
                {37, 2, ".accumulate is 1 in the checkpoint, but 2 here; use the same"}};
    const char *path = "build/test_train_other.safetensors";
    train_model m;
    dt_trainer *trainer;
    uint64_t before, after;
    resumed_hash("cpu:2", 4, NULL, 2, path);
    REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, false));
    dt_trainer_desc d = train_desc(&m);
    REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
    CHECK(dt_store_state_hash(dt_trainer_store(trainer), &before) == DT_OK);
    CHECK(dt_trainer_load(trainer, path) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "parameter 'conv.weight'");
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "parameter 'fc0.weight'");
    dt_ctx_destroy(m.ctx);
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, true));
        d = train_desc(&m);
        d.batch = jobs[i].batch;
        d.accumulate = jobs[i].accumulate;
        d.parallel.batch_slices = 4;
        REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
        CHECK(dt_store_state_hash(dt_trainer_store(trainer), &before) == DT_OK);
        CHECK(dt_trainer_load(trainer, path) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(m.ctx), jobs[i].text);
        CHECK(dt_store_state_hash(dt_trainer_store(trainer), &after) == DT_OK && before == after);
        CHECK(dt_trainer_step(trainer, NULL) == DT_OK);
        dt_ctx_destroy(m.ctx);
    }
    remove(path);
}

TEST(a_damaged_checkpoint_names_the_newest_good_one_where_resuming_is_strict) {
    const char *folder = "build/test_train_folder";
    train_model m;
    dt_trainer *trainer;
    char newest[] = "build/test_train_folder/step-000000000004.safetensors", good[64];
    bool found = true;
    system("rm -rf build/test_train_folder");
    REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, true));
    dt_trainer_desc d = train_desc(&m);
    d.devices = "cpu:2";
    d.checkpoint.folder = folder;
    d.checkpoint.every_steps = 2;
    d.checkpoint.strict = true;
    REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
    CHECK(dt_trainer_resume(trainer, &found) == DT_OK && !found);
    for (int i = 0; i < 4; i++)
        CHECK(dt_trainer_step(trainer, NULL) == DT_OK);
    FILE *file = fopen(newest, "r+b");
    REQUIRE(file != NULL);
    fseek(file, -40, SEEK_END);
    int byte = fgetc(file);
    fseek(file, -1, SEEK_CUR);
    fputc(byte ^ 4, file);
    fclose(file);
    CHECK(dt_trainer_resume(trainer, &found) == DT_ERROR_FORMAT);
    snprintf(good, sizeof good, "%s/step-000000000002.safetensors", folder);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), good);
    CHECK(dt_trainer_load(trainer, good) == DT_OK);
    dt_trainer_info info;
    dt_trainer_get_info(trainer, &info);
    CHECK(info.step == 2);
    dt_trainer_request_checkpoint(trainer);
    CHECK(dt_trainer_step(trainer, NULL) == DT_OK);
    file = fopen("build/test_train_folder/step-000000000003.safetensors", "rb");
    CHECK(file != NULL);
    if (file)
        fclose(file);
    dt_ctx_destroy(m.ctx);
    system("rm -rf build/test_train_folder");
}

TEST(a_checkpoint_that_cannot_be_written_stops_no_training) {
    train_model m;
    dt_trainer *trainer;
    dt_train_report r;
    dt_trainer_info info;
    REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, true));
    dt_trainer_desc d = train_desc(&m);
    d.checkpoint.folder = "build/test_train_gone";
    d.checkpoint.every_steps = 2;
    system("rm -rf build/test_train_gone");
    REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
    CHECK(rmdir(d.checkpoint.folder) == 0); /* a file takes its place */
    FILE *file = fopen(d.checkpoint.folder, "wb");
    REQUIRE(file && fclose(file) == 0);
    CHECK(dt_trainer_step(trainer, &r) == DT_OK && r.checkpoints_failed == 0);
    CHECK(dt_trainer_step(trainer, &r) == DT_ERROR_IO && r.step == 2 && r.checkpoints_failed == 1);
    CHECK(dt_trainer_step(trainer, &r) == DT_OK && r.step == 3 && r.checkpoints_failed == 0);
    CHECK(dt_trainer_epoch(trainer, &r) == DT_ERROR_IO && r.epoch_ended && r.step == 5 &&
          r.checkpoints_failed == 1);
    dt_trainer_get_info(trainer, &info);
    CHECK(info.checkpoints_failed == 2);
    CHECK_CONTAINS(info.checkpoint_error, "build/test_train_gone/step-000000000004.safetensors");
    dt_ctx_destroy(m.ctx);
    remove(d.checkpoint.folder);
}

/* The trainer of a folder, and what it must not mind: that files are still being written. */
static dt_trainer *train_in_folder(train_model *m, const char *folder, bool background) {
    dt_trainer *trainer = NULL;
    if (!train_model_make(m, &(dt_ctx_desc){.no_vulkan = true}, true))
        return NULL;
    dt_trainer_desc d = train_desc(m);
    d.devices = "cpu:2";
    d.checkpoint = (dt_checkpoint_desc){
        .folder = folder, .every_steps = 1, .keep = 2, .background = background};
    CHECK_TEXT(!dt_trainer_create(m->graph, &d, &trainer), "%s", dt_ctx_error(m->ctx));
    return trainer;
}

TEST(a_checkpoint_that_a_thread_writes_has_the_same_bytes) {
    static const char *const folders[] = {"build/test_train_here", "build/test_train_thread"};
    system("rm -rf build/test_train_here build/test_train_thread");
    for (int background = 0; background < 2; background++) {
        train_model m;
        bool found = false;
        dt_trainer *t = train_in_folder(&m, folders[background], background);
        REQUIRE(t);
        for (int i = 0; i < 4; i++)
            CHECK(dt_trainer_step(t, NULL) == DT_OK);
        CHECK(dt_trainer_wait(t, NULL) == DT_OK);
        CHECK(dt_trainer_step(t, NULL) == DT_OK); /* its file is written when it is read */
        CHECK(dt_trainer_resume(t, &found) == DT_OK && found);
        CHECK(dt_trainer_step(t, NULL) == DT_OK); /* or when the trainer ends */
        dt_ctx_destroy(m.ctx);
    }
    CHECK(system("ls build/test_train_here | wc -l | grep -qx 3") == 0);
    CHECK(system("diff -r build/test_train_here build/test_train_thread") == 0);
    system("rm -rf build/test_train_here build/test_train_thread");
}

TEST(a_checkpoint_that_a_thread_cannot_write_is_reported_by_the_next_one_or_a_wait) {
    const char *folder = "build/test_train_gone";
    train_model m;
    dt_train_report r;
    dt_trainer_info info;
    dt_trainer *t = train_in_folder(&m, folder, true);
    REQUIRE(t);
    CHECK(rmdir(folder) == 0); /* a file takes its place */
    FILE *file = fopen(folder, "wb");
    REQUIRE(file && fclose(file) == 0);
    CHECK(dt_trainer_step(t, &r) == DT_OK && r.checkpoints_failed == 0);
    CHECK(dt_trainer_step(t, &r) == DT_OK && r.checkpoints_failed == 1);
    CHECK(dt_trainer_wait(t, &r) == DT_ERROR_IO && r.checkpoints_failed == 1);
    CHECK_CONTAINS(dt_ctx_error(m.ctx), "build/test_train_gone/step-000000000002.safetensors");
    CHECK(dt_trainer_wait(t, &r) == DT_OK && r.checkpoints_failed == 0);
    dt_trainer_get_info(t, &info);
    CHECK(info.checkpoints_failed == 2 && info.step == 2);
    dt_ctx_destroy(m.ctx);
    remove(folder);
}

TEST(weights_of_a_file_reach_all_replicas) {
    const char *path = "build/test_train_weights.safetensors";
    uint64_t hash[2] = {0};
    for (int i = 0; i < 3; i++) {
        train_model m;
        dt_trainer *trainer;
        REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, true));
        dt_trainer_desc d = train_desc(&m);
        d.devices = i < 2 ? "cpu" : "cpu:4";
        d.parallel.batch_slices = 4;
        d.load = i ? path : NULL;
        REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
        for (int k = 0; k < 3; k++)
            CHECK(dt_trainer_step(trainer, NULL) == DT_OK);
        if (i == 0)
            CHECK(dt_store_save(dt_trainer_store(trainer), path) == DT_OK);
        else
            CHECK(dt_store_state_hash(dt_trainer_store(trainer), &hash[i - 1]) == DT_OK);
        dt_ctx_destroy(m.ctx);
    }
    CHECK(hash[0] && hash[0] == hash[1]);
    remove(path);
}

TEST(evaluation_is_the_same_on_any_number_of_replicas) {
    double loss[3], right[3];
    static const char *const devices[] = {"cpu", "cpu:3", "cpu:8"};
    for (int i = 0; i < 3; i++) {
        train_model m;
        dt_trainer *trainer;
        dt_train_report r;
        REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, true));
        dt_trainer_desc d = train_desc(&m);
        d.devices = devices[i];
        d.parallel.batch_slices = 8;
        REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
        CHECK(dt_trainer_step(trainer, &r) == DT_OK);
        CHECK(r.metric[0] > 0 && r.metric[0] == r.metric_sum[0] / r.metric_weight[0]);
        CHECK(dt_trainer_epoch(trainer, &r) == DT_OK);
        CHECK(r.metric[0] > 0 && r.metric[0] == r.metric_sum[0] / r.metric_weight[0]);
        CHECK(dt_trainer_evaluate(trainer, &d.data, 7, &r) == DT_OK);
        CHECK(r.metric[0] > 0 && r.metric[0] == r.metric_sum[0] / r.metric_weight[0]);
        CHECK(r.samples == TRAIN_ROWS && r.loss_weight[0] == 137);
        loss[i] = r.loss;
        right[i] = r.metric_sum[0];
        CHECK(dt_trainer_evaluate(trainer, &d.data, 0, &r) == DT_OK);
        CHECK_NEAR(loss[i], r.loss, 1e-5 * r.loss);
        dt_ctx_destroy(m.ctx);
    }
    CHECK_NEAR(loss[0], loss[1], 1e-6 * loss[0]);
    CHECK_NEAR(loss[0], loss[2], 1e-6 * loss[0]);
    CHECK(right[0] == right[1] && right[0] == right[2]);
}

/* ---- what a step takes */

TEST(a_step_allocates_nothing) {
    train_model m;
    dt_trainer *trainer;
    atomic_int calls = 0;
    const dt_ctx_desc ctx = {.no_vulkan = true, .allocator = {train_alloc, train_free, &calls}};
    REQUIRE(train_model_make(&m, &ctx, true));
    dt_trainer_desc d = train_desc(&m);
    d.devices = "cpu:3";
    d.accumulate = 2;
    REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
    const int before = atomic_load(&calls);
    for (int i = 0; i < 12; i++)
        CHECK(dt_trainer_step(trainer, NULL) == DT_OK);
    CHECK(atomic_load(&calls) == before);
    dt_ctx_destroy(m.ctx);
}

/* staging: none without ranks and other devices; subtrees: gradients of the slots after the first,
 * the number that the replicas' batch slices leave apart. */
TEST(memory_of_the_exchange_equals_the_formula) {
    static const struct {
        const char *devices;
        int batch_slices, extra;
    } cases[] = {{"cpu", 8, 0},   {"cpu:2", 8, 0}, {"cpu:3", 8, 2},
                 {"cpu:3", 3, 0}, {"cpu:2", 3, 1}, {"cpu:3", 16, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        train_model m;
        dt_trainer *trainer;
        dt_trainer_info info;
        REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, false));
        dt_trainer_desc d = train_desc(&m);
        d.devices = cases[i].devices;
        d.parallel.batch_slices = cases[i].batch_slices;
        REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
        dt_trainer_get_info(trainer, &info);
        CHECK_TEXT(info.staging_bytes == 0 &&
                       info.partial_sum_bytes == (uint64_t)cases[i].extra * info.gradient_bytes,
                   "%s of %d batch slices: %llu + %llu bytes, gradients %llu", cases[i].devices,
                   cases[i].batch_slices, (unsigned long long)info.staging_bytes,
                   (unsigned long long)info.partial_sum_bytes,
                   (unsigned long long)info.gradient_bytes);
        dt_ctx_destroy(m.ctx);
    }
}

/* ---- the error names the fault */

static void wrong_trainer(dt_trainer_desc d, train_model *m, const char *want) {
    dt_trainer *trainer;
    CHECK(dt_trainer_create(m->graph, &d, &trainer) == DT_ERROR_INVALID && trainer == NULL);
    CHECK_CONTAINS(dt_ctx_error(m->ctx), want);
}

TEST(a_wrong_trainer_description_is_refused_with_the_reason) {
    train_model m;
    REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, true));
    const dt_trainer_desc good = train_desc(&m);
    dt_trainer_desc d = good;
    d.devices = "cpu:4";
    d.parallel.batch_slices = 3;
    wrong_trainer(d, &m, ".parallel.batch_slices is 3 for 4 replicas");
    d = good;
    d.devices = "cpu:8";
    d.batch = 5;
    wrong_trainer(d, &m, ".batch is 5 for 8 replicas");
    d = good;
    static const char *const devices[][2] = {
        {"cpu,,cpu", "a name is empty"},    {"cpu:2,", "a name is empty"},
        {",cpu", "a name is empty"},        {"cpu:x", "N in cpu:N must be a number"},
        {"cpu:0", "N in cpu:N must be a"},  {"cpu:2,cpu:0", "N in cpu:N must be a number"},
        {"cpu:-1", "N in cpu:N must be a"}, {"cpu:60,cpu:60", "too many replicas; give 1 to"}};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        d.devices = devices[i][0];
        wrong_trainer(d, &m, devices[i][1]);
    }
    d = good;
    d.threads = -2;
    wrong_trainer(d, &m, ".threads is -2; it must be DT_THREADS_ALL");
    d = good;
    d.checkpoint.folder = "";
    wrong_trainer(d, &m, ".checkpoint.folder is empty");
    for (int mode = 0; mode < 2; mode++) {
        d = good;
        d.mode = mode ? DT_TRAIN_LOCAL : DT_TRAIN_SYNCHRONOUS;
        d.parallel.compress = mode ? DT_COMPRESS_INT8 : DT_COMPRESS_NONE;
        d.parallel.compress_ratio = 0.5;
        wrong_trainer(d, &m, ".parallel.compress_ratio = 0.5 needs .parallel.compress = DT_COMP");
    }
    d = good;
    d.batch = -1;
    wrong_trainer(d, &m, ".batch is -1");
    d = good;
    d.losses[0].term = d.loss;
    wrong_trainer(d, &m, ".loss and .losses[0] are both set");
    d = good;
    d.parallel.balance = DT_BALANCE_MEASURED;
    d.parallel.batch_slices = 4;
    wrong_trainer(d, &m, "DT_BALANCE_MEASURED cannot be combined with .parallel.batch_slices = 4");
    d = good;
    d.tail = DT_TAIL_PAD;
    wrong_trainer(d, &m, "batch norm");
    d = good;
    d.data.columns[1].input = (dt_tensor){0};
    wrong_trainer(d, &m, "input 't' has no column");
    dt_ctx_destroy(m.ctx);
}

/* A class that does not exist, in one row. A step and an evaluation name that row, in any replica,
 * part and place of a batch. */
static void wrong_row(train_model *m, int row, const char *devices, int accumulate) {
    const int32_t kept = m->data.t[row];
    char want[64];
    snprintf(want, sizeof want, "'t' row %d of the data set: 77 is", row);
    m->data.t[row] = 77;
    dt_trainer_desc d = train_desc(m);
    d.devices = devices;
    d.accumulate = accumulate;
    dt_trainer *trainer = NULL;
    dt_result result = dt_trainer_create(m->graph, &d, &trainer);
    CHECK_TEXT(!result, "%s", dt_ctx_error(m->ctx));
    for (int pass = 0; pass < 2 && trainer; pass++) {
        result = pass ? dt_trainer_evaluate(trainer, &d.data, 50, NULL)
                      : dt_trainer_epoch(trainer, NULL);
        CHECK_TEXT(result == DT_ERROR_INVALID && strstr(dt_ctx_error(m->ctx), want),
                   "%s, row %d, pass %d: %s", devices, row, pass, dt_ctx_error(m->ctx));
    }
    dt_trainer_destroy(trainer);
    m->data.t[row] = kept;
}

TEST(a_class_number_out_of_range_is_named_with_its_row_of_the_data_set) {
    train_model m;
    if (!CHECK_TEXT(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 0), "the model"))
        return;
    for (int row = 0; row < TRAIN_ROWS; row += 16) {
        wrong_row(&m, row, "cpu", 1);
        wrong_row(&m, row, "cpu:3", 2);
    }
    dt_ctx_destroy(m.ctx);
}

/* 60,000 samples, batch 64, 8 batch slices: the last batch has 32, so half of the batch slices are
 * empty. */
TEST(batch_norm_with_empty_batch_slices_at_the_end_of_fashion_mnist_sizes) {
    enum { ROWS = 60000 };
    train_model m;
    uint64_t hash[3] = {0};
    static const char *const devices[] = {"cpu", "cpu:4", "cpu:3"};
    float *x = calloc(ROWS * TRAIN_SIDE * TRAIN_SIDE, sizeof *x);
    int32_t *t = calloc(ROWS, sizeof *t);
    REQUIRE(x && t);
    for (int i = 0; i < 3; i++) {
        dt_trainer *trainer;
        if (!test_takes(i, 1, 2))
            continue;
        REQUIRE(train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, true));
        for (int k = 0; k < ROWS; k++) {
            t[k] = m.data.t[k % TRAIN_ROWS];
            memcpy(x + k * TRAIN_SIDE * TRAIN_SIDE,
                   m.data.x + k % TRAIN_ROWS * TRAIN_SIDE * TRAIN_SIDE,
                   TRAIN_SIDE * TRAIN_SIDE * sizeof *x);
        }
        dt_trainer_desc d = train_desc(&m);
        d.data.rows = ROWS;
        d.data.columns[0].data = x;
        d.data.columns[1].data = t;
        d.batch = 64;
        d.parallel.batch_slices = 8;
        d.devices = devices[i];
        REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
        dt_train_report r;
        CHECK(dt_trainer_epoch(trainer, &r) == DT_OK);
        CHECK(r.steps == 938 && r.samples == ROWS && r.epoch_ended);
        CHECK(dt_store_state_hash(dt_trainer_store(trainer), &hash[i]) == DT_OK);
        dt_ctx_destroy(m.ctx);
    }
    CHECK((hash[0] == hash[1] || !test_takes(1, 1, 2)) && hash[0] == hash[2]);
    free(x);
    free(t);
}

/* ---- devices */

TEST(replicas_on_vulkan_give_the_same_bits_as_one) {
    dt_ctx *ctx;
    bits_case c = {.conv = true, .batch_slices = 4, .batch = 37, .steps = 6};
    REQUIRE(dt_ctx_create(NULL, &ctx) == DT_OK);
    const int count = dt_ctx_device_count(ctx);
    char list[3][128];
    int tried = 0;
    for (int i = 1; i < count; i++) {
        const char *id = dt_ctx_device(ctx, i)->id;
        const bool slow = strstr(dt_ctx_device(ctx, i)->name, "SwiftShader") != NULL;
        if (!dt_ctx_device(ctx, i)->usable)
            continue;
        for (int n = 0; n < 3; n++)
            snprintf(list[n], sizeof list[n], "%s%s%s%s%s", id, n > 0 ? "," : "", n > 0 ? id : "",
                     n > 1 ? "," : "", n > 1 ? id : "");
        c.conv = !slow; /* it compiles for long */
        bits_equal(c, (const char *const[]){list[0], list[1], list[2]}, slow ? 2 : 3);
        c.conv = TRAIN_SPECTRAL;
        bits_equal(c, (const char *const[]){list[0], list[1], list[2]}, slow ? 2 : 3);
        tried++;
    }
    dt_ctx_destroy(ctx);
    if (!tried)
        SKIP("no Vulkan device");
}

TEST(the_cpu_and_vulkan_train_together) {
    dt_ctx *ctx;
    REQUIRE(dt_ctx_create(NULL, &ctx) == DT_OK);
    bool there = dt_ctx_device_count(ctx) > 1 && dt_ctx_device(ctx, 1)->usable;
    dt_ctx_destroy(ctx);
    if (!there)
        SKIP("no Vulkan device");
    double one, mixed;
    bits_case c = {.conv = true, .devices = "cpu", .batch_slices = 4, .batch = 37, .steps = 8};
    bits_hash(&c, &one);
    c.devices = "vulkan:0,cpu,vulkan:0,cpu";
    bits_hash(&c, &mixed);
    CHECK_NEAR(one, mixed, 2e-3 * one);
}

/* lavapipe needs some ten times as long for a sample: the CPU ends up with nearly all of them. */
TEST(measured_shares_follow_the_replicas_speed) {
    dt_ctx *ctx;
    REQUIRE(dt_ctx_create(NULL, &ctx) == DT_OK);
    const dt_device_info *info = dt_ctx_device(ctx, 1);
    bool there = info && info->usable && info->kind == DT_DEVICE_SOFTWARE;
    dt_ctx_destroy(ctx);
    if (!there)
        SKIP("no software Vulkan device");
    train_model m;
    dt_trainer *trainer;
    dt_trainer_info before, after;
    dt_train_report first, last;
    REQUIRE(train_model_make(&m, NULL, true));
    dt_trainer_desc d = train_desc(&m);
    d.devices = "cpu,vulkan:0";
    d.parallel.balance = DT_BALANCE_MEASURED;
    d.batch = 100;
    REQUIRE(dt_trainer_create(m.graph, &d, &trainer) == DT_OK);
    dt_trainer_get_info(trainer, &before);
    CHECK(dt_trainer_step(trainer, &first) == DT_OK);
    after = before;
    for (int i = 0; i < 16 || (i < 160 && after.replica_batch <= 60); i++) { /* a busy machine */
        CHECK(dt_trainer_step(trainer, &last) == DT_OK);
        dt_trainer_get_info(trainer, &after);
    }
    CHECK(before.replica_batch == 50);
    CHECK_TEXT(after.replica_batch > 60, "%d of 100", after.replica_batch);
    CHECK(last.step >= 17 && last.loss < first.loss);
    dt_ctx_destroy(m.ctx);
}
