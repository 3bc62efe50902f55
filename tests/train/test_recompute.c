/* Tensors that are not kept for the backward pass: the same bits in less memory. */
#include "train/train_model.h"

enum { AGAIN_BATCH = 16, AGAIN_MOST = 256, AGAIN_STEPS = 3 };

typedef enum again_kind { AGAIN_MLP, AGAIN_DROPOUT, AGAIN_RESNET, AGAIN_PENALTY } again_kind;

/* A network and how it is run. */
typedef struct again {
    again_kind kind;
    int keep;           /* marks all except every n-th block's results; 0 = no marks */
    const char *device; /* NULL = "cpu" */
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *program;
    dt_tensor x, t, loss;
    int width; /* of a sample of x */
    int classes;
    dt_program_info info;
    uint64_t hash;
} again;

static dt_tensor again_mark(const again *a, dt_tensor x) {
    return a->keep ? dt_recompute(x) : x;
}

/* A block's result: the checkpoints are among these. */
static dt_tensor again_end(const again *a, dt_tensor x, int block) {
    return a->keep && (block + 1) % a->keep ? dt_recompute(x) : x;
}

static dt_tensor again_mlp(const again *a) {
    dt_tensor h = a->x;
    for (int i = 0; i < 24; i++) {
        char name[16];
        snprintf(name, sizeof name, "fc%d", i);
        h = dt_nn_linear(h, name, 48);
        h = i % 3 == 1 ? dt_tanh(again_mark(a, h)) : dt_relu(h);
        if (a->kind == AGAIN_DROPOUT)
            h = dt_dropout(again_mark(a, h), 0.1f);
        h = again_end(a, h, i);
    }
    return h;
}

static dt_tensor again_conv(const again *a, dt_tensor x, const char *name, int out, int stride) {
    char norm[32];
    const dt_conv_layer_desc desc = {.conv = {.stride = {stride, stride}, .padding = {1, 1}},
                                     .no_bias = true};
    snprintf(norm, sizeof norm, "%s.bn", name);
    x = again_mark(a, dt_nn_conv2d(x, name, out, 3, &desc));
    return again_mark(a, dt_nn_batch_norm(x, norm, NULL));
}

/* He et al.'s ResNet-20 for small images, narrower. */
static dt_tensor again_resnet(const again *a) {
    dt_tensor h = dt_reshape(a->x, dt_dims(3, 12, 12));
    h = dt_relu(again_conv(a, h, "first", 6, 1));
    for (int block = 0; block < 9; block++) {
        const int out = 6 << block / 3, stride = block && block % 3 == 0 ? 2 : 1;
        char name[32];
        snprintf(name, sizeof name, "b%d.a", block);
        dt_tensor y = again_mark(a, dt_relu(again_conv(a, h, name, out, stride))), shortcut = h;
        snprintf(name, sizeof name, "b%d.b", block);
        y = again_conv(a, y, name, out, 1);
        snprintf(name, sizeof name, "b%d.s", block);
        if (stride == 2)
            shortcut = again_conv(a, h, name, out, stride);
        h = again_end(a, dt_relu(dt_add(y, shortcut)), block);
    }
    return dt_mean(h, dt_dims(1, 2), false);
}

/* Of second order: the loss sees the gradient in x. */
static dt_tensor again_penalty(const again *a) {
    dt_tensor h = a->x;
    for (int i = 0; i < 6; i++) {
        char name[16];
        snprintf(name, sizeof name, "fc%d", i);
        h = again_end(a, dt_tanh(again_mark(a, dt_nn_linear(h, name, 24))), i);
        if (i == 3)
            h = again_mark(a, dt_layer_norm(h, 1, (dt_tensor){0}, (dt_tensor){0}, 1e-5f));
    }
    dt_tensor slope = dt_gradient(dt_sum(h, dt_dims(), false), a->x);
    return dt_concat((dt_tensor[]){h, again_mark(a, dt_square(slope))}, 2, 0);
}

static bool again_build(again *a) {
    a->width = a->kind == AGAIN_RESNET ? 3 * 12 * 12 : 48;
    a->classes = 5;
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = !a->device}, &a->ctx) ||
        dt_graph_create(a->ctx, &a->graph))
        return false;
    a->x = dt_input(a->graph, "x", DT_F32, dt_dims(a->width));
    a->t = dt_input(a->graph, "t", DT_I32, dt_dims());
    dt_tensor h = a->kind == AGAIN_RESNET    ? again_resnet(a)
                  : a->kind == AGAIN_PENALTY ? again_penalty(a)
                                             : again_mlp(a);
    a->loss = dt_cross_entropy(dt_nn_linear(h, "head", a->classes), a->t, NULL);
    return test_check(!dt_graph_error(a->graph), __FILE__, __LINE__, "%s",
                      dt_graph_error(a->graph) ? dt_graph_error(a->graph) : "");
}

static void again_fill(const again *a, int step, float *x, int32_t *t, int rows) {
    uint32_t state = (uint32_t)step + 1;
    for (int i = 0; i < rows * a->width; i++)
        x[i] = (float)(train_random(&state) % 2000) / 1000.0f - 1.0f;
    for (int i = 0; i < rows; i++)
        t[i] = (int32_t)(train_random(&state) % (uint32_t)a->classes);
}

static dt_result again_step(again *a, int step, const dt_step_desc *desc) {
    static float x[AGAIN_BATCH * AGAIN_MOST * 2];
    static int32_t t[AGAIN_BATCH];
    again_fill(a, step, x, t, a->info.batch);
    dt_result result =
        dt_program_write(a->program, a->x, x, (size_t)a->info.batch * (size_t)a->width * sizeof *x);
    if (!result)
        result = dt_program_write(a->program, a->t, t, (size_t)a->info.batch * sizeof *t);
    return result ? result : dt_program_run(a->program, desc, NULL);
}

static const dt_optim_desc again_adam = {.kind = DT_OPTIM_ADAM, .lr = 1e-3};

static bool again_open(again *a, const dt_program_desc *more) {
    dt_program_desc desc = more ? *more : (dt_program_desc){.batch = AGAIN_BATCH};
    if (!again_build(a) ||
        dt_store_create(a->graph,
                        &(dt_store_desc){.device = a->device ? a->device : "cpu", .seed = 5},
                        &a->store))
        return false;
    desc.loss = a->loss;
    desc.optim = &again_adam;
    const dt_result result = dt_program_create(a->store, &desc, &a->program);
    dt_program_get_info(a->program, &a->info);
    return test_check(!result, __FILE__, __LINE__, "%s", dt_ctx_error(a->ctx));
}

/* Some steps, each in micro-batches; more: settings of the program. */
static void again_run(again *a, const dt_program_desc *more, int micros) {
    bool fine = again_open(a, more);
    for (int i = 0; i < AGAIN_STEPS * micros && fine; i++) {
        const dt_step_desc step = {.seed = 3,
                                   .first_row = (uint32_t)(i % micros * a->info.batch),
                                   .micro_batch = (uint32_t)(i % micros),
                                   .micro_batches = (uint32_t)micros};
        fine = test_check(!again_step(a, i, &step), __FILE__, __LINE__, "%s", dt_ctx_error(a->ctx));
    }
    CHECK(fine && !dt_store_state_hash(a->store, &a->hash));
    dt_ctx_destroy(a->ctx);
}

static void again_compare(again_kind kind, int keep, const dt_program_desc *more, int micros,
                          double most) {
    again whole = {.kind = kind}, less = {.kind = kind, .keep = keep};
    again_run(&whole, more, micros);
    again_run(&less, more, micros);
    CHECK(whole.hash == less.hash);
    CHECK_TEXT((double)less.info.transient_bytes <= most * (double)whole.info.transient_bytes,
               "%llu transient bytes of %llu", (unsigned long long)less.info.transient_bytes,
               (unsigned long long)whole.info.transient_bytes);
    CHECK(!whole.info.launches_recomputed && less.info.launches_recomputed > 0);
    CHECK(less.info.launches == whole.info.launches + less.info.launches_recomputed);
}

TEST(an_mlp_of_24_layers_trains_to_the_same_bits_in_half_of_its_memory) {
    again_compare(AGAIN_MLP, 5, NULL, 1, 0.5);
}

TEST(a_resnet_20_trains_to_the_same_bits_in_half_of_its_memory) {
    again_compare(AGAIN_RESNET, 2, NULL, 1, 0.5);
}

TEST(dropout_drops_the_same_when_it_is_computed_again) {
    again_compare(AGAIN_DROPOUT, 5, NULL, 1, 0.5);
}

TEST(recompute_gives_the_same_bits_in_micro_batches) {
    const dt_program_desc micro = {.batch = AGAIN_BATCH / 2, .accumulate = true};
    again_compare(AGAIN_DROPOUT, 4, &micro, 2, 0.6);
    again_compare(AGAIN_RESNET, 2, &micro, 2, 0.6);
}

TEST(recompute_gives_the_same_bits_through_a_gradient_of_second_order) {
    again_compare(AGAIN_PENALTY, 2, NULL, 1, 1.0);
}

/* ---- a budget instead of marks */

/* Half of what keeping everything takes. */
static void again_budget(again_kind kind, double share) {
    again whole = {.kind = kind}, less = {.kind = kind};
    again_run(&whole, NULL, 1);
    const uint64_t budget = (uint64_t)(share * (double)whole.info.transient_bytes);
    again_run(&less, &(dt_program_desc){.batch = AGAIN_BATCH, .memory_bytes = budget}, 1);
    CHECK(whole.hash == less.hash);
    CHECK_TEXT(less.info.transient_bytes <= budget && less.info.launches_recomputed > 0,
               "%llu transient bytes of %llu, %d launches of %d again",
               (unsigned long long)less.info.transient_bytes, (unsigned long long)budget,
               less.info.launches_recomputed, less.info.launches);
    CHECK(2 * less.info.launches_recomputed < whole.info.launches);
}

TEST(an_mlp_of_24_layers_fits_half_of_its_memory_without_marks) {
    again_budget(AGAIN_MLP, 0.5);
    again_budget(AGAIN_DROPOUT, 0.5);
}

TEST(a_resnet_20_fits_half_of_its_memory_without_marks) {
    again_budget(AGAIN_RESNET, 0.5);
}

TEST(a_large_memory_budget_changes_nothing_and_one_of_0_reports_the_least) {
    again whole = {.kind = AGAIN_MLP};
    REQUIRE(again_open(&whole, NULL));
    dt_program_desc desc = {.loss = whole.loss, .optim = &again_adam, .batch = AGAIN_BATCH};
    dt_program *program = NULL;
    dt_program_info info;
    desc.memory_bytes = whole.info.transient_bytes;
    CHECK(!dt_program_create(whole.store, &desc, &program));
    dt_program_get_info(program, &info);
    CHECK(info.launches == whole.info.launches && !info.launches_recomputed);
    desc.memory_bytes = whole.info.transient_bytes * 9 / 10;
    CHECK(!dt_program_create(whole.store, &desc, &program));
    dt_program_get_info(program, &info);
    const int few = info.launches_recomputed;
    desc.memory_bytes = whole.info.transient_bytes / 2;
    CHECK(!dt_program_create(whole.store, &desc, &program));
    dt_program_get_info(program, &info);
    CHECK(few > 0 && few < info.launches_recomputed);
    desc.memory_bytes = 1000;
    CHECK(dt_program_create(whole.store, &desc, &program) == DT_ERROR_DEVICE_MEMORY && !program);
    CHECK_CONTAINS(dt_ctx_error(whole.ctx), ".memory_bytes is 1000, but the least");
    dt_ctx_destroy(whole.ctx);
}

/* ---- programs of one graph */

static uint64_t again_bytes(dt_store *store, const dt_program_desc *desc, dt_ctx *ctx) {
    dt_program *program = NULL;
    dt_program_info info;
    CHECK_TEXT(!dt_program_create(store, desc, &program), "%s", dt_ctx_error(ctx));
    dt_program_get_info(program, &info);
    return info.transient_bytes;
}

TEST(recompute_marks_apply_to_later_programs_and_at_other_shapes) {
    dt_ctx *ctx = NULL;
    dt_graph *graph = NULL;
    dt_store *store = NULL;
    const dt_conv_layer_desc same = {.conv = {.padding = {1, 1}}};
    dt_tensor h[13];
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx));
    REQUIRE(!dt_graph_create(ctx, &graph));
    dt_tensor x = h[0] = dt_input(graph, "x", DT_F32, dt_dims(3, 12, 12));
    for (int i = 1; i < 13; i++) {
        char name[16];
        snprintf(name, sizeof name, "c%d", i);
        h[i] = dt_relu(dt_nn_conv2d(h[i - 1], name, 3, 3, &same));
    }
    const dt_program_desc desc = {.loss = dt_mean_loss(dt_square(dt_mean(h[12], dt_dims(), false))),
                                  .gradients = true};
    dt_program_desc large = desc;
    large.shapes[0] = (dt_input_shape){x, dt_dims(3, 24, 24)};
    REQUIRE(!dt_store_create(graph, &(dt_store_desc){.device = "cpu"}, &store));
    const uint64_t whole[2] = {again_bytes(store, &desc, ctx), again_bytes(store, &large, ctx)};
    for (int i = 1; i < 13; i++) {
        if (i % 4)
            dt_recompute(h[i]);
    }
    CHECK(3 * again_bytes(store, &desc, ctx) < 2 * whole[0]);
    CHECK(3 * again_bytes(store, &large, ctx) < 2 * whole[1]);
    large.memory_bytes = whole[1] / 8 * 5;
    CHECK(again_bytes(store, &large, ctx) <= whole[1] / 8 * 5);
    dt_ctx_destroy(ctx);
}

/* ---- memory that runs out */

typedef struct again_memory {
    int left; /* allocations until one fails; -1: none will */
    int held;
} again_memory;

static void *again_alloc(void *user, size_t bytes, size_t align) {
    again_memory *m = user;
    if (m->left == 0)
        return NULL;
    m->left -= m->left > 0;
    m->held++;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void again_release(void *user, void *memory, size_t bytes) {
    (void)bytes;
    ((again_memory *)user)->held--;
    free(memory);
}

/* The same program, in less memory than it likes, for other shapes, or both. It is made with memory
 * for 0, 1, 2, ... allocations until they suffice. */
static void again_starve(bool budget, bool shapes) {
    again_memory memory = {.left = -1};
    dt_ctx *ctx = NULL;
    dt_graph *graph = NULL;
    dt_store *store = NULL;
    dt_program *program = NULL;
    const dt_allocator allocator = {again_alloc, again_release, &memory};
    REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.allocator = allocator, .no_vulkan = true}, &ctx));
    REQUIRE(!dt_graph_create(ctx, &graph));
    dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims(6, 16)), y = x;
    for (int i = 0; i < 6; i++) {
        char name[16];
        snprintf(name, sizeof name, "l%d", i);
        y = dt_tanh(dt_nn_linear(y, name, 16));
    }
    dt_program_desc desc = {.loss = dt_mean_loss(dt_square(y)), .batch = 8, .gradients = true};
    REQUIRE(!dt_store_create(graph, &(dt_store_desc){.device = "cpu"}, &store));
    if (shapes)
        desc.shapes[0] = (dt_input_shape){x, dt_dims(9, 16)};
    if (budget)
        desc.memory_bytes = again_bytes(store, &desc, ctx) / 4 * 3;
    dt_result result = DT_ERROR_MEMORY;
    for (int until = 0; result == DT_ERROR_MEMORY && until < 1000; until++) {
        memory.left = until;
        result = dt_program_create(store, &desc, &program);
        memory.left = -1;
        CHECK_TEXT(!result == !!program && (!result || dt_ctx_error(ctx)[0]),
                   "no memory after %d allocations: %d", until, result);
    }
    CHECK_TEXT(!result, "%s", dt_ctx_error(ctx));
    dt_ctx_destroy(ctx);
    CHECK(memory.held == 0);
}

TEST(a_program_whose_memory_runs_out_while_it_is_fitted_or_reshaped_leaves_nothing) {
    for (int way = 0; way < 4; way++)
        again_starve(way & 1, way & 2);
}

/* ---- trainers: marks and the budget hold for every replica */

typedef struct again_trained {
    dt_result result;
    uint64_t hash, transient_bytes;
    char text[512];
} again_trained;

/* A second model over the same data, of that number of layers: names begin with "d". */
static dt_tensor again_deep(const train_model *m, int layers) {
    dt_tensor h = m->x;
    for (int i = 0; i < layers; i++) {
        char name[16];
        snprintf(name, sizeof name, "d%d", i);
        h = dt_tanh(dt_nn_linear(dt_dropout(h, 0.1f), name, TRAIN_SIDE * TRAIN_SIDE));
    }
    return dt_cross_entropy(dt_nn_linear(h, "d", TRAIN_CLASSES), m->t, NULL);
}

static again_trained again_train(const char *devices, bool marks, int layers,
                                 uint64_t memory_bytes) {
    again_trained out = {0};
    train_model m;
    dt_trainer *trainer = NULL;
    dt_trainer_info info;
    const bool made = train_model_make(&m, &(dt_ctx_desc){.no_vulkan = true}, 1);
    for (uint32_t id = 1; id < m.logits.id && marks; id++) {
        if (id % 7)
            dt_recompute((dt_tensor){m.graph, id});
    }
    dt_trainer_desc desc = train_desc(&m);
    desc.devices = devices;
    desc.parallel.batch_slices = 4;
    desc.accumulate = 2;
    desc.limits.memory_bytes = memory_bytes;
    if (layers) {
        desc.loss = again_deep(&m, layers);
        desc.params = "d*";
    }
    out.result = made ? dt_trainer_create(m.graph, &desc, &trainer) : DT_ERROR_INVALID;
    snprintf(out.text, sizeof out.text, "%s", dt_ctx_error(m.ctx));
    dt_trainer_get_info(trainer, &info);
    out.transient_bytes = info.transient_bytes;
    for (int i = 0; i < 4 && trainer; i++)
        CHECK_TEXT(!dt_trainer_step(trainer, NULL), "%s", dt_ctx_error(m.ctx));
    CHECK(!trainer || !dt_store_state_hash(dt_trainer_store(trainer), &out.hash));
    dt_ctx_destroy(m.ctx);
    return out;
}

TEST(two_replicas_with_recompute_have_the_bits_of_one_without) {
    const uint64_t hash = again_train("cpu", false, 0, 0).hash;
    CHECK(hash && again_train("cpu", true, 0, 0).hash == hash);
    CHECK(again_train("cpu:2", true, 0, 0).hash == hash);
}

TEST(a_trainer_with_a_memory_budget_has_the_same_bits_and_reports_the_least_that_fits) {
    const again_trained whole = again_train("cpu", false, 16, 0);
    const uint64_t budget = whole.transient_bytes / 3 * 2;
    const again_trained less = again_train("cpu", false, 16, budget);
    CHECK_TEXT(!less.result, "%s", less.text);
    CHECK(whole.transient_bytes > 0 && less.transient_bytes <= budget);
    CHECK(whole.hash && less.hash == whole.hash);
    const again_trained none = again_train("cpu", false, 16, 1);
    CHECK(none.result == DT_ERROR_DEVICE_MEMORY);
    CHECK_CONTAINS(none.text, ".memory_bytes is 1, but the least found is");
}

/* ---- Vulkan */
#ifndef DT_NO_VULKAN

TEST(recompute_gives_the_same_bits_on_vulkan) {
    again whole = {.kind = AGAIN_RESNET, .device = "vulkan"};
    again less = {.kind = AGAIN_RESNET, .keep = 2, .device = "vulkan"};
    dt_ctx *ctx = NULL;
    bool there = false;
    REQUIRE(!dt_ctx_create(NULL, &ctx));
    for (int i = 0; i < dt_ctx_device_count(ctx); i++)
        there = there ||
                (!strncmp(dt_ctx_device(ctx, i)->id, "vulkan", 6) && dt_ctx_device(ctx, i)->usable);
    dt_ctx_destroy(ctx);
    if (!there)
        SKIP("no Vulkan device");
    again_run(&whole, NULL, 1);
    again_run(&less, NULL, 1);
    CHECK(whole.hash == less.hash && less.info.launches_recomputed > 0);
}

#endif
