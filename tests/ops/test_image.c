/* Networks of images as programs, from the inside (included by main.c). Epilogues change no value,
 * and buffers change only with a commit. Tensors that a device cannot bind are cut, and wrong
 * shapes are errors. */

typedef struct image_net {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
    dt_tensor x, t, y, loss;
} image_net;

#define IMAGE_BATCH 12
#define IMAGE_SIZE (3 * 12 * 12)

static bool image_ok(const image_net *n, dt_result result, int line) {
    const char *error = n->graph ? dt_graph_error(n->graph) : NULL;
    return test_check(result == DT_OK, __FILE__, line, "%s: %s", dt_result_text(result),
                      error ? error : dt_ctx_error(n->ctx));
}
#define IMAGE_OK(n, call) image_ok(n, call, __LINE__)

static bool image_graph(image_net *n) {
    *n = (image_net){0};
    if (dt_ctx_create(&(dt_ctx_desc){.threads = 2}, &n->ctx) ||
        !IMAGE_OK(n, dt_graph_create(n->ctx, &n->graph)))
        return false;
    n->x = dt_input(n->graph, "x", DT_F32, dt_dims(3, 12, 12));
    n->t = dt_input(n->graph, "t", DT_I32, dt_dims());
    return true;
}

static void image_close(image_net *n) {
    dt_program_destroy(n->program);
    dt_store_destroy(n->store);
    dt_graph_destroy(n->graph);
    dt_ctx_destroy(n->ctx);
}

static void image_pixels(float *x, size_t count, uint64_t seed) {
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(dti_uniform01(seed, i, 3) * 2 - 1);
}

/* Feeds the program its batch of that number; a NaN in pixel `broken`, if that is not 0. */
static bool image_feed(image_net *n, dt_program *p, int batch, uint64_t seed, int broken) {
    static float x[IMAGE_BATCH * IMAGE_SIZE];
    int32_t t[IMAGE_BATCH];
    image_pixels(x, (size_t)batch * IMAGE_SIZE, seed);
    if (broken)
        x[broken] = NAN;
    for (int i = 0; i < batch; i++)
        t[i] = (i * 7 + (int)seed) % 5;
    return IMAGE_OK(n, dt_program_write(p, n->x, x, (size_t)batch * IMAGE_SIZE * 4)) &&
           IMAGE_OK(n, dt_program_write(p, n->t, t, (size_t)batch * 4));
}

/* ---- epilogues */

/* x, or the same after a launch that takes no epilogue and cannot be one. */
static dt_tensor image_apart(dt_tensor x, bool apart) {
    return apart ? dt_affine(x, 1, 0) : x;
}

static dt_tensor image_relu(dt_tensor x, bool apart) {
    return image_apart(dt_relu(image_apart(x, apart)), apart);
}

static void image_relu_net(image_net *n, bool apart) {
    dt_conv_layer_desc strided = {.conv = {.stride = {2, 2}, .padding = {1, 1}}};
    dt_conv_layer_desc bare = {.no_bias = true};
    dt_tensor h = image_relu(dt_nn_conv2d(n->x, "conv1", 6, 3, &strided), apart);
    h = image_relu(dt_nn_conv2d(h, "conv2", 5, 3, &bare), apart);
    h = image_relu(dt_nn_batch_norm(h, "bn", NULL), apart);
    h = image_relu(dt_nn_conv_transpose2d(h, "up", 4, 2, NULL), apart);
    h = dt_max_pool2d(h, &(dt_pool_desc){.kernel = {2, 2}});
    h = image_relu(dt_nn_group_norm(h, "gn", 2), apart);
    h = image_relu(dt_nn_linear(dt_flatten(h), "fc1", 17), apart);
    h = image_relu(dt_nn_linear_with(h, "fc2", 9, &(dt_linear_desc){.no_bias = true}), apart);
    n->y = dt_nn_linear(h, "fc3", 5);
    n->loss = dt_cross_entropy(n->y, n->t, NULL);
}

static int image_epilogues(const dt_program *p) {
    int count = 0;
    for (uint32_t i = 0; i < p->code->list.launch_count; i++) {
        const dti_launch *l = &p->code->list.launches[i];
        bool may = l->kernel == DTI_K_GEMM || l->kernel == DTI_K_CONV ||
                   l->kernel == DTI_K_CONV_DX || l->kernel == DTI_K_NORM ||
                   l->kernel == DTI_K_NORM_GROUP || l->kernel == DTI_K_MAX_POOL_GRAD;
        count += may && l->spec[1] != DTI_EPILOGUE_NONE;
    }
    return count;
}

static bool image_relu_run(image_net *n, bool apart, dt_report *report) {
    if (!image_graph(n))
        return false;
    image_relu_net(n, apart);
    dt_program_desc desc = {
        .loss = n->loss, .outputs = {n->y}, .batch = IMAGE_BATCH, .gradients = true};
    return IMAGE_OK(n, dt_store_create(n->graph, &(dt_store_desc){.device = "cpu", .seed = 4},
                                       &n->store)) &&
           IMAGE_OK(n, dt_program_create(n->store, &desc, &n->program)) &&
           image_feed(n, n->program, IMAGE_BATCH, 1, 0) &&
           IMAGE_OK(n, dt_program_run(n->program, NULL, report));
}

/* How many floats of a value are not equal in two stores; a zero has no sign here. */
static int image_differences(image_net *a, image_net *b, int index, dt_value_kind kind) {
    dt_param_info info = {0};
    int differ = 0;
    dt_store_get_param(a->store, index, &info);
    float *x = calloc(info.elements + 1, 4), *y = calloc(info.elements + 1, 4);
    IMAGE_OK(a, dt_store_read(a->store, index, kind, x, info.elements * 4));
    IMAGE_OK(b, dt_store_read(b->store, index, kind, y, info.elements * 4));
    for (uint64_t i = 0; i < info.elements; i++)
        differ += !(x[i] == y[i]);
    free(x);
    free(y);
    return differ;
}

TEST(a_relu_in_the_epilogue_of_a_product_has_the_bits_of_a_separate_relu) {
    image_net fused, apart;
    dt_report a = {0}, b = {0};
    float y[2][IMAGE_BATCH * 5];
    bool ran = image_relu_run(&fused, false, &a);
    ran = image_relu_run(&apart, true, &b) && ran;
    if (ran) {
        CHECK(image_epilogues(fused.program) >= 11 && image_epilogues(apart.program) == 0);
        CHECK(a.loss == b.loss);
        CHECK(!dt_program_read(fused.program, fused.y, y[0], sizeof y[0]));
        CHECK(!dt_program_read(apart.program, apart.y, y[1], sizeof y[1]));
        for (int i = 0; i < IMAGE_BATCH * 5; i++)
            CHECK(y[0][i] == y[1][i]);
        for (int i = 0; i < dt_store_param_count(fused.store); i++) {
            dt_param_info info;
            CHECK(!dt_store_get_param(fused.store, i, &info));
            int differ = info.buffer ? 0 : image_differences(&fused, &apart, i, DT_VALUE_GRADIENT);
            test_check(differ == 0, __FILE__, __LINE__, "%d gradients of %s differ", differ,
                       info.name);
        }
    }
    image_close(&fused);
    image_close(&apart);
}

/* ---- buffers */

static const dt_optim_desc image_sgd = {.kind = DT_OPTIM_SGD, .lr = 0.05};

static void image_norm_net(image_net *n, bool frozen) {
    dt_conv_layer_desc bare = {.no_bias = true};
    dt_tensor h = dt_nn_conv2d(n->x, "conv", 4, 3, &bare);
    h = dt_relu(dt_nn_batch_norm(h, "bn", &(dt_batch_norm_desc){.frozen = frozen}));
    n->y = dt_nn_linear(dt_flatten(dt_adaptive_avg_pool2d(h, 1, 1)), "fc", 5);
    n->loss = dt_cross_entropy(n->y, n->t, NULL);
}

static bool image_norm_open(image_net *n, const char *device, bool frozen, dt_program_desc desc) {
    if (!image_graph(n))
        return false;
    image_norm_net(n, frozen);
    desc.loss = n->loss;
    desc.optim = &image_sgd;
    desc.batch = desc.batch ? desc.batch : IMAGE_BATCH;
    return IMAGE_OK(n, dt_store_create(n->graph, &(dt_store_desc){.device = device, .seed = 4},
                                       &n->store)) &&
           IMAGE_OK(n, dt_program_create(n->store, &desc, &n->program));
}

/* Mean and variance of the 4 channels. */
static void image_running(image_net *n, float running[8]) {
    IMAGE_OK(n, dt_store_read(n->store, dt_store_find(n->store, "bn.running_mean"), DT_VALUE_PARAM,
                              running, 16));
    IMAGE_OK(n, dt_store_read(n->store, dt_store_find(n->store, "bn.running_var"), DT_VALUE_PARAM,
                              running + 4, 16));
}

static bool image_step(image_net *n, uint64_t seed) {
    return image_feed(n, n->program, IMAGE_BATCH, seed, 0) &&
           IMAGE_OK(n, dt_program_run(n->program, NULL, NULL));
}

/* A test's body on the CPU and on each Vulkan device. */
static void image_each_device(void (*body)(const char *device)) {
    char id[32];
    body("cpu");
    for (int i = 0; i < 3; i++)
        if (ops_vulkan(i, id))
            body(id);
}

static void image_check_commit(const char *device) {
    image_net n;
    float before[8], after[8];
    dt_step_state state = DT_STEP_RUNNING;
    if (image_norm_open(&n, device, false, (dt_program_desc){0}) && image_step(&n, 1)) {
        image_running(&n, before);
        for (int c = 0; c < 4; c++)
            CHECK(before[c] != 0 && before[4 + c] != 1);
        image_feed(&n, n.program, IMAGE_BATCH, 2, 77);
        CHECK(dt_program_run(n.program, NULL, NULL) == DT_ERROR_NUMERIC);
        image_running(&n, after);
        CHECK(!memcmp(before, after, sizeof before));
        for (int segments = 1; segments < 3; segments++) { /* after the forward one, and later */
            image_feed(&n, n.program, IMAGE_BATCH, 3, 0);
            CHECK(dt_program_begin(n.program, NULL) == DT_OK);
            for (int started = 0; started < segments;) {
                CHECK(dt_program_advance(n.program, &state) == DT_OK);
                started += state == DT_STEP_READY;
            }
            CHECK(dt_program_cancel(n.program, NULL) == DT_OK);
            image_running(&n, after);
            CHECK(!memcmp(before, after, sizeof before));
        }
        CHECK(image_step(&n, 3));
        image_running(&n, after);
        for (int i = 0; i < 8; i++)
            CHECK(before[i] != after[i]);
    }
    image_close(&n);
}

TEST(a_running_statistic_changes_with_a_commit_and_stays_when_a_step_is_dropped) {
    image_each_device(image_check_commit);
}

/* Two micro-batches; with `again` the second is cancelled after its forward segment and run
 * again. */
static void image_two_micros(bool again, float running[8]) {
    image_net n;
    dt_step_state state = DT_STEP_RUNNING;
    if (image_norm_open(&n, "cpu", false, (dt_program_desc){.accumulate = true})) {
        CHECK(image_feed(&n, n.program, IMAGE_BATCH, 1, 0));
        CHECK(!dt_program_run(n.program, &(dt_step_desc){.micro_batch = 0, .micro_batches = 2},
                              NULL));
        CHECK(image_feed(&n, n.program, IMAGE_BATCH, 2, 0));
        const dt_step_desc second = {.micro_batch = 1, .micro_batches = 2};
        if (again) {
            CHECK(!dt_program_begin(n.program, &second));
            while (state != DT_STEP_READY && !dt_program_advance(n.program, &state)) {
            }
            CHECK(!dt_program_cancel(n.program, NULL));
        }
        CHECK(!dt_program_run(n.program, &second, NULL));
        image_running(&n, running);
    }
    image_close(&n);
}

TEST(a_cancelled_micro_batch_does_not_update_a_running_statistic_twice) {
    float once[8] = {0}, repeated[8] = {1};
    image_two_micros(false, once);
    image_two_micros(true, repeated);
    CHECK(!memcmp(once, repeated, sizeof once));
}

TEST(micro_batches_that_update_other_statistics_are_refused) {
    image_net n;
    dt_program *eval = NULL;
    if (image_norm_open(&n, "cpu", false, (dt_program_desc){.accumulate = true})) {
        dt_program_desc desc = {.loss = n.loss,
                                .batch = IMAGE_BATCH,
                                .optim = &image_sgd,
                                .accumulate = true,
                                .mode = DT_MODE_EVAL};
        CHECK(!dt_program_create(n.store, &desc, &eval));
        CHECK(image_feed(&n, eval, IMAGE_BATCH, 1, 0));
        CHECK(image_feed(&n, n.program, IMAGE_BATCH, 1, 0));
        CHECK(!dt_program_run(eval, &(dt_step_desc){.micro_batch = 0, .micro_batches = 2}, NULL));
        CHECK(dt_program_run(n.program, &(dt_step_desc){.micro_batch = 1, .micro_batches = 2},
                             NULL) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(n.ctx), "running statistics");
    }
    image_close(&n);
}

/* The batch's statistics by hand: the variance is unbiased. */
TEST(a_running_statistic_takes_its_share_of_the_unbiased_variance) {
    image_net n;
    float got[2], x[] = {1, 2, 4, 9};
    if (!image_graph(&n))
        return;
    dt_tensor v = dt_input(n.graph, "v", DT_F32, dt_dims(1));
    n.loss = dt_mean_loss(dt_nn_batch_norm(v, "bn", NULL));
    dt_program_desc desc = {.loss = n.loss, .optim = &image_sgd, .batch = 4};
    if (IMAGE_OK(&n, dt_store_create(n.graph, &(dt_store_desc){.device = "cpu"}, &n.store)) &&
        IMAGE_OK(&n, dt_program_create(n.store, &desc, &n.program))) {
        CHECK(!dt_program_write(n.program, v, x, sizeof x));
        CHECK(!dt_program_run(n.program, NULL, NULL));
        for (int k = 0; k < 2; k++)
            CHECK(!dt_store_read(n.store, 2 + k, DT_VALUE_PARAM, &got[k], 4));
        CHECK_NEAR(got[0], 0.1 * 4, 1e-7);
        CHECK_NEAR(got[1], 0.9 + 0.1 * 38 / 3, 1e-6);
    }
    image_close(&n);
}

/* Frozen buffers stay, and no pattern of parameters trains one. */
TEST(frozen_statistics_stay_and_no_pattern_trains_a_buffer) {
    image_net n;
    float running[8];
    dt_program *none = NULL;
    if (image_norm_open(&n, "cpu", true, (dt_program_desc){.params = "*"})) {
        CHECK(image_step(&n, 1) && image_step(&n, 2));
        image_running(&n, running);
        for (int c = 0; c < 4; c++)
            CHECK(running[c] == 0 && running[4 + c] == 1);
        dt_program_desc desc = {.loss = n.loss,
                                .batch = 2,
                                .optim = &image_sgd,
                                .params = "bn.running_mean,bn.running_var"};
        CHECK(dt_program_create(n.store, &desc, &none) == DT_ERROR_INVALID && !none);
        CHECK_CONTAINS(dt_ctx_error(n.ctx), "\"bn.running_mean\" matches the name of no parameter");
    }
    image_close(&n);
}

TEST(buffers_are_saved_and_loaded_by_name) {
    image_net n, other;
    float before[8], after[8], moment;
    const char *path = "build/buffers.safetensors";
    if (image_norm_open(&n, "cpu", false, (dt_program_desc){0}) && image_step(&n, 1)) {
        int buffers = 0;
        for (int i = 0; i < dt_store_param_count(n.store); i++) {
            dt_param_info info;
            CHECK(!dt_store_get_param(n.store, i, &info));
            CHECK(info.buffer == (strstr(info.name, "running_") != NULL) && !info.frozen);
            buffers += info.buffer;
            if (info.buffer) {
                CHECK(dt_store_read(n.store, i, DT_VALUE_GRADIENT, &moment, 16) ==
                      DT_ERROR_INVALID);
                CHECK_CONTAINS(dt_ctx_error(n.ctx), "is a buffer");
            }
        }
        CHECK(buffers == 2);
        image_running(&n, before);
        CHECK(dt_store_save(n.store, path) == DT_OK);
    }
    if (image_norm_open(&other, "cpu", false, (dt_program_desc){0})) {
        CHECK(dt_store_load(other.store, path) == DT_OK);
        image_running(&other, after);
        CHECK(!memcmp(before, after, sizeof before));
    }
    remove(path);
    image_close(&n);
    image_close(&other);
}

static bool image_micro(image_net *n, uint32_t micro, uint64_t seed) {
    double weight = IMAGE_BATCH;
    dt_step_desc step = {.micro_batch = micro, .micro_batches = 2, .loss_weights = &weight};
    return image_feed(n, n->program, IMAGE_BATCH / 2, seed, 0) &&
           IMAGE_OK(n, dt_program_run(n->program, &step, NULL));
}

/* A sum of micro-batches that is begun again begins from the store's statistics. */
static void image_check_micro(const char *device) {
    image_net once, again;
    float a[8] = {0}, b[8] = {1};
    dt_program_desc desc = {.accumulate = true, .batch = IMAGE_BATCH / 2};
    if (image_norm_open(&once, device, false, desc)) {
        CHECK(image_micro(&once, 0, 5) && image_micro(&once, 1, 6));
        image_running(&once, a);
    }
    if (image_norm_open(&again, device, false, desc)) {
        CHECK(image_micro(&again, 0, 9) && image_micro(&again, 0, 5) && image_micro(&again, 1, 6));
        image_running(&again, b);
    }
    CHECK(!memcmp(a, b, sizeof a));
    image_close(&once);
    image_close(&again);
}

TEST(micro_batches_begun_again_update_the_statistics_once) {
    image_each_device(image_check_micro);
}

/* ---- cutting */

typedef struct image_run { /* what one run gave */
    float y[IMAGE_BATCH * 5];
    float *gradients;
    size_t count;
    double loss;
    int launches;
} image_run;

static void image_cut_net(image_net *n) {
    dt_conv_layer_desc padded = {.conv = {.padding = {1, 1}}};
    dt_tensor h = dt_relu(dt_nn_conv2d(n->x, "conv1", 6, 3, &padded));
    h = dt_nn_conv2d(h, "wide", 24, 1, NULL); /* dy may be cut where dx, with relu's mask, is not */
    h = dt_nn_conv2d(h, "narrow", 6, 1, NULL);
    h = dt_max_pool2d(dt_dropout(h, 0.25f), &(dt_pool_desc){.kernel = {2, 2}});
    h = dt_nn_conv2d(h, "conv2", 7, 3, NULL);
    h = dt_relu(dt_nn_layer_norm(h, "ln", 2));
    h = dt_add(h, dt_tanh(dt_nn_conv2d(h, "conv3", 7, 3, &padded)));
    h = dt_resize(dt_nn_group_norm(h, "gn", 7), 8, 9, DT_RESIZE_BILINEAR);
    h = dt_permute(h, dt_dims(1, 2, 0));
    h = dt_dropout(dt_gelu(dt_nn_linear(dt_flatten(h), "fc1", 3)), 0.5f);
    n->y = dt_nn_linear(h, "fc2", 5);
    n->loss = dt_cross_entropy(n->y, n->t, NULL);
}

static bool image_read_gradients(image_net *n, image_run *run) {
    bool ok = true;
    for (int i = 0; i < dt_store_param_count(n->store) && ok; i++) {
        dt_param_info info;
        ok = IMAGE_OK(n, dt_store_get_param(n->store, i, &info));
        run->gradients = realloc(run->gradients, (run->count + info.elements) * 4);
        ok = ok && IMAGE_OK(n, dt_store_read(n->store, i, DT_VALUE_GRADIENT,
                                             run->gradients + run->count, info.elements * 4));
        run->count += info.elements;
    }
    return ok;
}

/* range: bytes that the device says it can bind; 0 = its own. */
static bool image_cut_run(image_net *n, uint64_t range, image_run *run) {
    dt_report report = {0};
    dt_program_desc desc = {
        .loss = n->loss, .outputs = {n->y}, .batch = IMAGE_BATCH, .gradients = true};
    *run = (image_run){0};
    if (range)
        n->store->device->info.storage_range_bytes = range;
    bool ok = IMAGE_OK(n, dt_program_create(n->store, &desc, &n->program)) &&
              image_feed(n, n->program, IMAGE_BATCH, 1, 0) &&
              IMAGE_OK(n, dt_program_run(n->program, &(dt_step_desc){.seed = 3}, &report)) &&
              IMAGE_OK(n, dt_program_read(n->program, n->y, run->y, sizeof run->y)) &&
              image_read_gradients(n, run);
    run->loss = report.loss;
    run->launches = ok ? (int)n->program->code->list.launch_count : 0;
    dt_program_destroy(n->program);
    n->program = NULL;
    return ok;
}

/* Rows are the same to the bit; sums are made of parts, in another order. */
static void image_same_run(const image_run *whole, const image_run *cut, uint64_t range) {
    double largest = 0;
    CHECK(!memcmp(whole->y, cut->y, sizeof cut->y));
    CHECK(fabs(whole->loss - cut->loss) <= 1e-6 * fabs(whole->loss));
    for (size_t k = 0; k < whole->count; k++)
        largest = fmax(largest, fabs((double)whole->gradients[k]));
    for (size_t k = 0; k < whole->count; k++)
        test_check(fabs((double)whole->gradients[k] - (double)cut->gradients[k]) <= 1e-6 * largest,
                   __FILE__, __LINE__, "range %d: gradient [%d] is %.9g, whole %.9g", (int)range,
                   (int)k, (double)cut->gradients[k], (double)whole->gradients[k]);
}

static void image_check_cut(const char *device) {
    const uint64_t ranges[] = {1 << 20, 60000, 20000, 15000};
    image_net n;
    image_run whole, cut;
    if (!image_graph(&n))
        return;
    image_cut_net(&n);
    if (IMAGE_OK(&n, dt_store_create(n.graph, &(dt_store_desc){.device = device, .seed = 4},
                                     &n.store))) {
        bool ran = image_cut_run(&n, 0, &whole);
        for (size_t i = 0; i < DTI_COUNT(ranges) && ran; i++) {
            if (image_cut_run(&n, ranges[i], &cut)) {
                CHECK(i == 0 ? cut.launches == whole.launches : cut.launches > whole.launches);
                image_same_run(&whole, &cut, ranges[i]);
            }
            free(cut.gradients);
        }
        free(whole.gradients);
    }
    image_close(&n);
}

TEST(a_tensor_that_cannot_be_bound_is_cut_and_its_rows_have_the_same_bits) {
    image_each_device(image_check_cut);
}

/* Gradients and running statistics after a step over a batch. */
static bool image_norm_parts(const char *device, uint64_t range, float *values, double *loss) {
    static const char *const names[] = {"conv.weight", "bn.weight", "bn.bias"};
    static const size_t sizes[] = {4 * 27, 4, 4};
    image_net n;
    dt_report report = {0};
    bool ok = image_graph(&n);
    if (!ok)
        return false;
    image_norm_net(&n, false);
    dt_program_desc desc = {.loss = n.loss, .batch = IMAGE_BATCH, .optim = &image_sgd};
    ok = IMAGE_OK(
        &n, dt_store_create(n.graph, &(dt_store_desc){.device = device, .seed = 4}, &n.store));
    if (ok && range)
        n.store->device->info.storage_range_bytes = range;
    ok = ok && IMAGE_OK(&n, dt_program_create(n.store, &desc, &n.program)) &&
         image_feed(&n, n.program, IMAGE_BATCH, 1, 0) &&
         IMAGE_OK(&n, dt_program_run(n.program, NULL, &report));
    for (int i = 0; i < 3 && ok; values += sizes[i++])
        ok = IMAGE_OK(&n, dt_store_read(n.store, dt_store_find(n.store, names[i]),
                                        DT_VALUE_GRADIENT, values, sizes[i] * 4));
    if (ok)
        image_running(&n, values);
    *loss = report.loss;
    image_close(&n);
    return ok;
}

TEST(batch_norm_of_a_batch_in_parts_has_the_statistics_of_the_whole) {
    enum { VALUES = 4 * 27 + 8 + 8 };
    float whole[VALUES], parts[VALUES];
    double loss[2];
    if (!image_norm_parts("cpu", 0, whole, &loss[0]) ||
        !image_norm_parts("cpu", 9000, parts, &loss[1]))
        return;
    CHECK_NEAR(loss[0], loss[1], 1e-6);
    for (int i = 0; i < VALUES; i++)
        CHECK_NEAR(whole[i], parts[i], 1e-6 + 1e-5 * fabs((double)whole[i]));
}

#define IMAGE_LARGE_BATCH 600

/* 600 samples of [64, 32, 32] are 157 MB; each becomes 64 means. */
static bool image_large_run(const char *device, float *y) {
    image_net n;
    if (!image_graph(&n))
        return false;
    size_t count = (size_t)IMAGE_LARGE_BATCH * 4 * 32 * 32;
    float *pixels = malloc(count * 4);
    dt_tensor x = dt_input(n.graph, "large", DT_F32, dt_dims(4, 32, 32));
    dt_tensor h = dt_relu(dt_nn_conv2d(x, "conv", 64, 1, NULL));
    dt_tensor mean = dt_adaptive_avg_pool2d(h, 1, 1);
    dt_program_desc desc = {.outputs = {mean}, .batch = IMAGE_LARGE_BATCH};
    image_pixels(pixels, count, 8);
    bool ok =
        IMAGE_OK(&n, dt_store_create(n.graph, &(dt_store_desc){.device = device}, &n.store)) &&
        IMAGE_OK(&n, dt_program_create(n.store, &desc, &n.program)) &&
        IMAGE_OK(&n, dt_program_write(n.program, x, pixels, count * 4)) &&
        IMAGE_OK(&n, dt_program_run(n.program, NULL, NULL)) &&
        IMAGE_OK(&n, dt_program_read(n.program, mean, y, IMAGE_LARGE_BATCH * 64 * 4));
    free(pixels);
    image_close(&n);
    return ok;
}

TEST(a_device_that_binds_128_MiB_computes_a_tensor_of_157_MB) {
    static float y[2][IMAGE_LARGE_BATCH * 64];
    char id[32] = "";
    dt_ctx *ctx = ops_ctx();
    for (int i = 0; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *info = dt_ctx_device(ctx, i);
        if (info->usable && strstr(info->name, "llvmpipe"))
            snprintf(id, sizeof id, "%s", info->id);
    }
    dt_ctx_destroy(ctx);
    if (!id[0])
        SKIP("no lavapipe");
    REQUIRE(image_large_run("cpu", y[0]) && image_large_run(id, y[1]));
    for (int i = 0; i < IMAGE_LARGE_BATCH * 64; i++)
        CHECK_NEAR(y[0][i], y[1][i], 1e-6);
}

/* ---- wrong shapes */

typedef struct image_bad {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_tensor x;    /* "x" [B, 4, 8, 6] */
    dt_tensor s;    /* "s" [B, 4, 9] */
    dt_tensor w;    /* "w" [6, 4, 3, 3] */
    dt_tensor t;    /* "t" [B, 4, 8, 6] i32 */
    dt_tensor v;    /* "v" [3] */
    dt_tensor none; /* nil */
} image_bad;

static image_bad image_bad_open(void) {
    image_bad b = {.ctx = ops_ctx()};
    dt_graph_create(b.ctx, &b.graph);
    b.x = dt_input(b.graph, "x", DT_F32, dt_dims(4, 8, 6));
    b.s = dt_input(b.graph, "s", DT_F32, dt_dims(4, 9));
    b.w = dt_param(b.graph, "w", dt_dims(6, 4, 3, 3), (dt_init){0});
    b.t = dt_input(b.graph, "t", DT_I32, dt_dims(4, 8, 6));
    b.v = dt_param(b.graph, "v", dt_dims(3), (dt_init){0});
    return b;
}

/* One wrong call: nil, and an error with these two parts. */
#define IMAGE_BAD(expression, first, second)                                                       \
    do {                                                                                           \
        image_bad b = image_bad_open();                                                            \
        CHECK(!dt_graph_error(b.graph));                                                           \
        dt_tensor bad = (expression);                                                              \
        const char *error = dt_graph_error(b.graph);                                               \
        CHECK(dti_is_nil(bad));                                                                    \
        CHECK_CONTAINS(error ? error : "no error", first);                                         \
        CHECK_CONTAINS(error ? error : "no error", second);                                        \
        dt_graph_destroy(b.graph);                                                                 \
        dt_ctx_destroy(b.ctx);                                                                     \
    } while (0)

#define IMAGE_CONV(...) dt_conv2d(b.x, b.w, b.none, &(dt_conv_desc){__VA_ARGS__})
#define IMAGE_UP(...)                                                                              \
    dt_conv_transpose2d(b.x, dt_permute(b.w, dt_dims(1, 0, 2, 3)), b.none,                         \
                        &(dt_conv_desc){__VA_ARGS__})
#define IMAGE_MAX(...) dt_max_pool2d(b.x, &(dt_pool_desc){__VA_ARGS__})

TEST(convolutions_name_windows_that_do_not_fit) {
    const char *inputs = "conv2d(x [B, 4, 8, 6], w [6, 4, 3, 3])";
    IMAGE_BAD(IMAGE_CONV(.dilation = {1, 3}), inputs, "covers 7, and the width with padding has 6");
    IMAGE_BAD(IMAGE_CONV(.dilation = {5, 1}, .padding = {1, 0}), inputs,
              "covers 11, and the height with padding has 10");
    IMAGE_BAD(IMAGE_CONV(.stride = {2, 0}), inputs, "stride {2, 0}");
    IMAGE_BAD(IMAGE_CONV(.stride = {-1, 1}), inputs, "stride {-1, 1}");
    IMAGE_BAD(IMAGE_CONV(.dilation = {0, 2}), inputs, "dilation {0, 2}");
    IMAGE_BAD(IMAGE_CONV(.padding = {0, -1}), inputs, "padding {0, -1}");
    IMAGE_BAD(IMAGE_CONV(.groups = -2), inputs, "groups is -2");
    IMAGE_BAD(IMAGE_CONV(.groups = 3), inputs, "4 channels in and 6 out in 3 groups");
    IMAGE_BAD(IMAGE_CONV(.groups = 2), inputs, "a weight of 4 input channels a group");
    IMAGE_BAD(IMAGE_CONV(.stride = {1, 1}, .padding = {INT32_MAX, INT32_MAX}), inputs,
              "elements, more than 2^31");
    IMAGE_BAD(dt_conv2d(b.x, dt_slice(b.w, 2, 0, 0), b.none, NULL), "conv2d(x [B, 4, 8, 6]",
              "the kernel is 0 x 3");
}

TEST(convolutions_name_operands_of_another_rank_or_type) {
    IMAGE_BAD(dt_conv2d(b.s, b.w, b.none, NULL), "conv2d(s [B, 4, 9], w [6, 4, 3, 3])",
              "the image must be [channels, height, width]");
    IMAGE_BAD(dt_conv2d(b.x, b.v, b.none, NULL), "conv2d(x [B, 4, 8, 6], v [3])",
              "the weight must be [out, in / groups, height, width]");
    IMAGE_BAD(dt_conv2d(b.x, dti_expand_to(b.w, dt_tensor_shape(b.w), true), b.none, NULL),
              "conv2d(x [B, 4, 8, 6]", "without samples");
    IMAGE_BAD(dt_conv2d(b.x, b.w, b.v, NULL), "v [3])", "the bias must be [6], without samples");
    IMAGE_BAD(dt_conv2d(b.t, b.w, b.none, NULL), "conv2d(t [B, 4, 8, 6]", "input 1 is i32");
    IMAGE_BAD(dt_conv1d(b.x, b.w, b.none, NULL), "conv1d([B, 4, 8, 6], [6, 4, 3, 3])",
              "x must be [channels, length]");
    IMAGE_BAD(dt_nn_conv2d(b.s, "c", 3, 3, NULL), "conv2d 'c': x [B, 4, 9]",
              "must be [channels, height, width]");
    IMAGE_BAD(dt_nn_conv2d(b.x, "c", 6, 3, &(dt_conv_layer_desc){.conv = {.groups = 3}}),
              "conv2d 'c'", "3 groups do not divide 4 channels in and 6 out");
    IMAGE_BAD(dt_nn_conv1d(b.s, "c", 0, 3, NULL), "conv1d 'c'", "4 channels in, 0 out");
}

TEST(transposed_convolutions_refuse_an_impossible_output_size) {
    IMAGE_BAD(IMAGE_UP(.stride = {2, 2}, .output_padding = {0, 2}), "conv_transpose",
              "output_padding 2 must be below the stride 2 or the dilation 1");
    IMAGE_BAD(IMAGE_UP(.output_padding = {-1, 0}), "conv_transpose", "output_padding -1");
    IMAGE_BAD(IMAGE_UP(.padding = {5, 0}), "conv_transpose([B, 4, 8, 6])",
              "the result would have size 0");
    IMAGE_BAD(IMAGE_UP(.stride = {1 << 30, 1}), "conv_transpose([B, 4, 8, 6])",
              "the result would have size 7516192771");
    IMAGE_BAD(dt_conv_transpose2d(b.x, b.w, b.none, NULL), "conv2d_dx(x [B, 4, 8, 6]",
              "4 channels do not fit a weight of 6");
}

TEST(pools_and_resizes_name_windows_and_sizes_that_do_not_fit) {
    const char *inputs = "max_pool2d(x [B, 4, 8, 6])";
    IMAGE_BAD(IMAGE_MAX(.kernel = {2, 0}), inputs, "kernel {2, 0}");
    IMAGE_BAD(dt_max_pool2d(b.x, NULL), inputs, "kernel {0, 0}");
    IMAGE_BAD(IMAGE_MAX(.kernel = {2, 2}, .stride = {0, 2}), inputs, "stride {0, 2}");
    IMAGE_BAD(IMAGE_MAX(.kernel = {3, 3}, .padding = {2, 1}), inputs, "padding {2, 1}");
    IMAGE_BAD(IMAGE_MAX(.kernel = {3, 3}, .padding = {0, -1}), inputs, "at most half");
    IMAGE_BAD(IMAGE_MAX(.kernel = {3, 7}), inputs,
              "the kernel {3, 7} is larger than the padded image");
    IMAGE_BAD(dt_avg_pool2d(b.s, &(dt_pool_desc){.kernel = {2, 2}}), "avg_pool2d(s [B, 4, 9])",
              "the image must be [channels, height, width]");
    IMAGE_BAD(dt_max_pool2d(b.t, &(dt_pool_desc){.kernel = {2, 2}}), "max_pool2d(t [B, 4, 8, 6])",
              "i32");
    IMAGE_BAD(dt_adaptive_avg_pool2d(b.x, 0, 3), "avg_pool2d(x [B, 4, 8, 6])", "a size of 0 x 3");
    IMAGE_BAD(dt_adaptive_avg_pool2d(b.x, 1 << 20, 1 << 20), "avg_pool2d(x [B, 4, 8, 6])",
              "below 2^31 elements");
    IMAGE_BAD(dt_resize(b.x, 4, -1, DT_RESIZE_NEAREST), "resize(x [B, 4, 8, 6])",
              "a size of 4 x -1");
    IMAGE_BAD(dt_resize(b.x, INT64_MAX, 2, DT_RESIZE_NEAREST), "resize(x [B, 4, 8, 6])",
              "a size of 9223372036854775807 x 2");
    IMAGE_BAD(dt_resize(b.x, 4, 4, (dt_resize_mode)7), "resize(x [B, 4, 8, 6])",
              "mode 7 is unknown");
    IMAGE_BAD(dt_max_pool2d(dt_slice(b.x, 1, 0, 0), &(dt_pool_desc){{2, 2}, {1, 1}, {1, 1}, 0, 0}),
              "max_pool2d([B, 4, 0, 6])", "no elements");
}

TEST(norms_name_weights_groups_and_buffers_that_do_not_fit) {
    dt_batch_norm_desc much = {.momentum = 1.5f};
    IMAGE_BAD(dt_layer_norm(b.x, 4, b.none, b.none, 0), "layer_norm([B, 4, 8, 6])", "`dims`");
    IMAGE_BAD(dt_layer_norm(b.x, 0, b.none, b.none, 0), "layer_norm([B, 4, 8, 6])", "`dims`");
    IMAGE_BAD(dt_layer_norm(b.x, 1, b.v, b.none, 0), "layer_norm([B, 4, 8, 6])", "w must be [6]");
    IMAGE_BAD(dt_layer_norm(b.x, 1, b.none, dt_slice(b.s, 1, 0, 6), 0), "layer_norm([B, 4, 8, 6])",
              "b must be [6]");
    IMAGE_BAD(dt_layer_norm(b.x, 1, b.none, b.none, -1), "layer_norm([B, 4, 8, 6])", "eps -1");
    IMAGE_BAD(dt_rms_norm(b.t, 1, b.none, 0), "rms_norm([B, 4, 8, 6])", "f32");
    IMAGE_BAD(dt_group_norm(b.x, 3, b.none, b.none, 0), "group_norm([B, 4, 8, 6])",
              "the groups do not divide the channels");
    IMAGE_BAD(dt_group_norm(b.x, 0, b.none, b.none, 0), "group_norm", "do not divide");
    IMAGE_BAD(dt_batch_norm(b.v, b.none, b.none, b.v, b.v, NULL), "batch_norm([3])",
              "of each sample");
    IMAGE_BAD(dt_batch_norm(b.x, b.none, b.none, b.v, b.v, NULL), "batch_norm([B, 4, 8, 6])",
              "the running mean must be a dt_buffer of [4]");
    IMAGE_BAD(dt_batch_norm(b.x, b.none, b.none, b.none, b.v, NULL), "batch_norm",
              "the running mean is nil");
    IMAGE_BAD(dt_nn_batch_norm(b.x, "n", &much), "batch_norm", "momentum 1.5");
    IMAGE_BAD(dt_nn_group_norm(dt_sum(b.v, dt_dims(), false), "n", 1), "group_norm 'n'",
              "has no channels");
}

TEST(batch_norm_of_one_value_a_channel_is_refused_only_in_training) {
    image_net n;
    if (!image_graph(&n))
        return;
    dt_tensor h = dt_adaptive_avg_pool2d(n.x, 1, 1);
    n.y = dt_nn_batch_norm(h, "bn", NULL);
    n.loss = dt_mean_loss(n.y);
    dt_program_desc desc = {.label = "one", .loss = n.loss, .optim = &image_sgd, .batch = 1};
    if (IMAGE_OK(&n, dt_store_create(n.graph, &(dt_store_desc){.device = "cpu"}, &n.store))) {
        CHECK(dt_program_create(n.store, &desc, &n.program) == DT_ERROR_INVALID && !n.program);
        CHECK_CONTAINS(dt_ctx_error(n.ctx), "'one': batch_norm([B, 3, 1, 1]) at batch 1");
        CHECK_CONTAINS(dt_ctx_error(n.ctx), "one value a channel");
        desc = (dt_program_desc){.outputs = {n.y}, .batch = 1};
        CHECK(dt_program_create(n.store, &desc, &n.program) == DT_OK);
    }
    image_close(&n);
}

/* ---- ties */

typedef struct image_tie {
    float x[9];
    float y; /* the largest */
    int at;  /* where its gradient goes */
} image_tie;

static void image_check_ties(const char *device) {
    const image_tie ties[] = {
        {{1, 3, 3, 0, 3, 2, 1, 1, 3}, 3, 1},
        {{-1, -1, -1, -1, -1, -1, -1, -1, -1}, -1, 0},
        {{0, -0.0f, 0, -2, 0, 0, 0, 0, 0}, 0, 0},
        {{-INFINITY, -INFINITY, 1, 1, 0, 0, 0, 0, 0}, 1, 2},
        {{1, 5, 7, 2, NAN, 9, 1, 1, 9}, NAN, 4},
        {{NAN, 5, 7, 2, NAN, 9, 1, 1, 9}, NAN, 4}}; /* the last NaN: as in PyTorch */
    image_net n;
    if (!image_graph(&n))
        return;
    dt_tensor v = dt_input(n.graph, "v", DT_F32, dt_dims(1, 3, 3));
    n.y = dt_max_pool2d(v, &(dt_pool_desc){.kernel = {3, 3}});
    dt_tensor dx = dt_gradient(n.y, v);
    dt_program_desc desc = {.outputs = {n.y, dx}, .no_check = true};
    if (IMAGE_OK(&n, dt_store_create(n.graph, &(dt_store_desc){.device = device}, &n.store)) &&
        IMAGE_OK(&n, dt_program_create(n.store, &desc, &n.program))) {
        for (size_t i = 0; i < DTI_COUNT(ties); i++) {
            float y = 0, g[9];
            CHECK(!dt_program_write(n.program, v, ties[i].x, sizeof ties[i].x));
            CHECK(!dt_program_run(n.program, NULL, NULL));
            CHECK(!dt_program_read(n.program, n.y, &y, 4));
            CHECK(!dt_program_read(n.program, dx, g, sizeof g));
            CHECK(isnan(ties[i].y) ? isnan(y) : y == ties[i].y);
            for (int k = 0; k < 9; k++)
                test_check(g[k] == (k == ties[i].at), __FILE__, __LINE__, "%s tie %d: g[%d] is %g",
                           device, (int)i, k, (double)g[k]);
        }
    }
    image_close(&n);
}

TEST(max_pool_takes_the_first_of_equals_and_any_nan) {
    image_each_device(image_check_ties);
}
