/* The promises about the library as a whole, on the public API and the CPU. The same bits for any
 * number of threads, and errors that name the fault. Memory is counted, bounded, and freed in every
 * failure. Each test was seen to fail with the code broken. */
#include "dtrain.h"

#include "harness.h"
#include "temp.h"

#include <pthread.h>

#define BATCH 48
#define IN 130
#define CLASSES 10

/* ---- A network that is large enough for the pool to cut its work, and everything around it */

typedef struct net {
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *train, *predict;
    dt_tensor x, t, y, loss;
} net;

static const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 1e-2, .clip_norm = 1};

static dt_result net_graph(net *n) {
    dt_result result = dt_graph_create(n->ctx, &n->graph);
    if (result)
        return result;
    n->x = dt_input(n->graph, "x", DT_F32, dt_dims(IN));
    n->t = dt_input(n->graph, "t", DT_I32, dt_dims());
    dt_tensor h = dt_dropout(dt_gelu(dt_nn_linear(n->x, "fc1", 300)), 0.2f);
    h = dt_add(h, dt_tanh(dt_nn_linear(h, "fc2", 300)));
    n->y = dt_nn_linear(dt_log_softmax(h, -1), "fc3", CLASSES);
    n->loss = dt_cross_entropy(n->y, n->t, &(dt_cross_entropy_desc){.label_smoothing = 0.1f});
    return DT_OK;
}

static dt_result net_programs(net *n) {
    dt_program_desc train = {.label = "train", .loss = n->loss, .batch = BATCH, .optim = &adam};
    dt_program_desc predict = {.label = "predict", .outputs = {n->y}, .batch = 1};
    /* The larger one last: the arenas grow under the first. */
    dt_result result = dt_program_create(n->store, &predict, &n->predict);
    return result ? result : dt_program_create(n->store, &train, &n->train);
}

/* On failure the objects made so far stay in *n, for net_close. */
static dt_result net_open(net *n, const dt_ctx_desc *desc) {
    *n = (net){0};
    dt_result result = dt_ctx_create(desc, &n->ctx);
    if (!result)
        result = net_graph(n);
    if (!result)
        result = dt_store_create(n->graph, &(dt_store_desc){.device = "cpu", .seed = 1}, &n->store);
    return result ? result : net_programs(n);
}

static void net_close(net *n) {
    dt_program_destroy(n->predict);
    dt_program_destroy(n->train);
    dt_store_destroy(n->store);
    dt_graph_destroy(n->graph);
    dt_ctx_destroy(n->ctx);
}

static void fill(float *x, int32_t *t, int rows, int step) {
    uint32_t state = (uint32_t)step + 77;
    for (int i = 0; i < rows * IN; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 8388608.0f - 1;
    }
    for (int i = 0; i < rows; i++)
        t[i] = (int32_t)((uint32_t)(i + step) * 2654435761u >> 16) % CLASSES;
}

static dt_result net_write(net *n, int step) {
    float x[BATCH * IN];
    int32_t t[BATCH];
    fill(x, t, BATCH, step);
    dt_result result = dt_program_write(n->train, n->x, x, sizeof x);
    return result ? result : dt_program_write(n->train, n->t, t, sizeof t);
}

static dt_result net_train(net *n, int steps) {
    dt_result result = DT_OK;
    for (int step = 0; step < steps && !result; step++) {
        result = net_write(n, step);
        if (!result)
            result = dt_program_run(n->train, NULL, NULL);
    }
    return result;
}

/* The state's hash after training in a context of its own; 0 when something failed. */
static uint64_t trained_hash(const dt_ctx_desc *desc, int steps) {
    net n;
    uint64_t hash = 0;
    if (net_open(&n, desc) || net_train(&n, steps) || dt_store_state_hash(n.store, &hash))
        hash = 0;
    net_close(&n);
    return hash;
}

/* ---- The same bits */

static void run_forward(void *user, int64_t count, void (*body)(void *, int64_t), void *arg) {
    ++*(int *)user;
    for (int64_t i = 0; i < count; i++)
        body(arg, i);
}

static void run_backward(void *user, int64_t count, void (*body)(void *, int64_t), void *arg) {
    ++*(int *)user;
    for (int64_t i = count; i-- > 0;)
        body(arg, i);
}

TEST(training_gives_the_same_bits_for_1_2_3_and_8_threads) {
    uint64_t one = trained_hash(&(dt_ctx_desc){.no_vulkan = true}, 10);
    CHECK(one != 0);
    for (int threads = 2; threads <= 8; threads += threads == 3 ? 5 : 1)
        CHECK(trained_hash(&(dt_ctx_desc){.no_vulkan = true, .threads = threads}, 10) == one);
}

TEST(the_hosts_job_system_gives_the_same_bits_in_any_order) {
    int calls = 0;
    uint64_t one = trained_hash(&(dt_ctx_desc){.no_vulkan = true}, 6);
    dt_ctx_desc desc = {.no_vulkan = true, .jobs = {run_forward, &calls, 4}};
    CHECK(trained_hash(&desc, 6) == one);
    CHECK(calls > 0);
    calls = 0;
    desc.jobs.parallel_for = run_backward;
    desc.jobs.threads = 3;
    CHECK(trained_hash(&desc, 6) == one);
    CHECK(calls > 0);
}

static void *train_apart(void *arg) {
    *(uint64_t *)arg = trained_hash(&(dt_ctx_desc){.no_vulkan = true, .threads = 2}, 8);
    return NULL;
}

TEST(two_contexts_train_in_two_threads_at_once) {
    uint64_t alone = trained_hash(&(dt_ctx_desc){.no_vulkan = true}, 8), hash[2] = {0};
    pthread_t thread[2];
    for (int i = 0; i < 2; i++)
        REQUIRE(pthread_create(&thread[i], NULL, train_apart, &hash[i]) == 0);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    CHECK(alone != 0 && hash[0] == alone && hash[1] == alone);
}

/* ---- Memory */

typedef struct meter { /* an allocator that counts; tests/unit/test_fault.c has one that fails */
    int64_t bytes, calls;
} meter;

static void *meter_alloc(void *user, size_t bytes, size_t align) {
    meter *m = user;
    m->calls++;
    m->bytes += (int64_t)bytes;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void meter_free(void *user, void *memory, size_t bytes) {
    ((meter *)user)->bytes -= (int64_t)bytes;
    free(memory);
}

static dt_ctx_desc metered(meter *m) {
    return (dt_ctx_desc){
        .no_vulkan = true, .threads = 2, .allocator = {meter_alloc, meter_free, m}};
}

TEST(fifty_runs_allocate_nothing) {
    net n;
    dt_ctx_info before, after;
    meter m = {0};
    dt_ctx_desc desc = metered(&m);
    REQUIRE(net_open(&n, &desc) == DT_OK);
    int64_t calls = m.calls;
    dt_ctx_get_info(n.ctx, &before);
    CHECK(net_train(&n, 50) == DT_OK);
    dt_ctx_get_info(n.ctx, &after);
    CHECK(after.host_alloc_calls == before.host_alloc_calls && m.calls == calls);
    CHECK(after.host_bytes == before.host_bytes && before.host_bytes > 0);
    net_close(&n);
}

TEST(planned_bytes_are_the_bytes_used) {
    net n;
    dt_program_info info;
    REQUIRE(net_open(&n, &(dt_ctx_desc){.no_vulkan = true}) == DT_OK);
    for (int i = 0; i < 2; i++) {
        dt_program_get_info(i ? n.predict : n.train, &info);
        CHECK(info.transient_bytes > 0);
    }
    dt_ctx_info before, after;
    dt_ctx_get_info(n.ctx, &before);
    net_train(&n, 1);
    dt_ctx_get_info(n.ctx, &after);
    CHECK(after.host_peak_bytes == before.host_peak_bytes);
    net_close(&n);
}

TEST(the_allocator_is_at_0_bytes_after_destroy) {
    net n;
    meter m = {0};
    dt_ctx_desc desc = metered(&m);
    REQUIRE(net_open(&n, &desc) == DT_OK);
    net_train(&n, 2);
    CHECK(m.bytes > 0);
    net_close(&n);
    CHECK(m.bytes == 0);
}

TEST(destroying_only_the_context_frees_everything) {
    net n;
    meter m = {0};
    dt_ctx_desc desc = metered(&m);
    REQUIRE(net_open(&n, &desc) == DT_OK);
    dt_ctx_destroy(n.ctx);
    CHECK(m.bytes == 0);
}

/* ---- Errors that say what is wrong */

/* The call failed with this result and its text has this part. */
#define CHECK_FAILS(net, call, expected, part)                                                     \
    do {                                                                                           \
        dt_result fails_result = (call);                                                           \
        test_check(fails_result == (expected), __FILE__, __LINE__, "%s: %s, not %s", #call,        \
                   dt_result_text(fails_result), dt_result_text(expected));                        \
        CHECK_CONTAINS(dt_ctx_error((net)->ctx), part);                                            \
    } while (0)

/* The body of a test with the network above. */
#define TEST_NET(sentence)                                                                         \
    static void net_##sentence(net *n);                                                            \
    TEST(sentence) {                                                                               \
        net n;                                                                                     \
        dt_result opened = net_open(&n, &(dt_ctx_desc){.no_vulkan = true});                        \
        if (test_check(!opened, __FILE__, __LINE__, "%s", dt_ctx_error(n.ctx)))                    \
            net_##sentence(&n);                                                                    \
        net_close(&n);                                                                             \
    }                                                                                              \
    static void net_##sentence(net *n)

TEST_NET(an_unknown_device_lists_those_that_there_are) {
    dt_store *store;
    CHECK_FAILS(n, dt_store_create(n->graph, &(dt_store_desc){.device = "tpu"}, &store),
                DT_ERROR_DEVICE, "'tpu'");
    CHECK_CONTAINS(dt_ctx_error(n->ctx), "cpu");
    CHECK(store == NULL);
}

TEST_NET(a_label_out_of_range_is_named_by_its_row) {
    int32_t t[BATCH] = {0};
    t[31] = CLASSES;
    CHECK_FAILS(n, dt_program_write(n->train, n->t, t, sizeof t), DT_ERROR_INVALID, "row 31: 10");
    CHECK_CONTAINS(dt_ctx_error(n->ctx), "[0, 10)");
    t[31] = -1;
    CHECK_FAILS(n, dt_program_write(n->train, n->t, t, sizeof t), DT_ERROR_INVALID, "row 31: -1");
    t[31] = -100; /* the default of ignore_index */
    CHECK(dt_program_write(n->train, n->t, t, sizeof t) == DT_OK);
}

TEST_NET(an_input_never_written_is_named) {
    float x[BATCH * IN] = {0};
    uint64_t before = 0, after = 1;
    dt_store_state_hash(n->store, &before);
    CHECK(dt_program_write(n->train, n->x, x, sizeof x) == DT_OK);
    CHECK_FAILS(n, dt_program_run(n->train, NULL, NULL), DT_ERROR_INVALID, "'t' was never written");
    dt_store_state_hash(n->store, &after);
    CHECK(before == after);
}

TEST_NET(a_wrong_byte_count_is_told_with_the_right_one) {
    float x[BATCH * IN] = {0};
    CHECK_FAILS(n, dt_program_write(n->train, n->x, x, sizeof x - 4), DT_ERROR_INVALID, "24960");
    CHECK_CONTAINS(dt_ctx_error(n->ctx), "24956");
    CHECK_FAILS(n, dt_store_read(n->store, 0, DT_VALUE_PARAM, x, 8), DT_ERROR_INVALID,
                "'fc1.weight'");
}

TEST_NET(a_tensor_of_another_graph_is_refused) {
    dt_graph *other;
    dt_program *program;
    float x[BATCH * IN] = {0};
    REQUIRE(dt_graph_create(n->ctx, &other) == DT_OK);
    dt_tensor foreign = dt_input(other, "x", DT_F32, dt_dims(IN));
    CHECK_FAILS(n, dt_program_write(n->train, foreign, x, sizeof x), DT_ERROR_INVALID,
                "another graph");
    dt_program_desc desc = {.outputs = {foreign}};
    CHECK_FAILS(n, dt_program_create(n->store, &desc, &program), DT_ERROR_INVALID, "another graph");
    dt_tensor mixed = dt_add(n->x, foreign); /* last: it leaves an error in a graph */
    CHECK(mixed.id == 0);
    dt_graph_destroy(other);
}

TEST_NET(all_problems_of_a_program_are_in_one_error) {
    dt_program *program;
    dt_program_desc desc = {.batch = -3,
                            .losses = {{n->y, 0}},
                            .outputs = {n->loss},
                            .metrics = {n->x},
                            .optim = &(dt_optim_desc){.lr = -1},
                            .params = "nothing.*"};
    CHECK_FAILS(n, dt_program_create(n->store, &desc, &program), DT_ERROR_INVALID, "batch is -3");
    CHECK_CONTAINS(dt_ctx_error(n->ctx), "is not a loss term");
    CHECK_CONTAINS(dt_ctx_error(n->ctx), ".outputs[0] is a loss term");
    CHECK_CONTAINS(dt_ctx_error(n->ctx), ".metrics[0], ");
    CHECK_CONTAINS(dt_ctx_error(n->ctx), "lr");
    CHECK(program == NULL);
    desc = (dt_program_desc){.loss = n->loss, .optim = &adam, .params = "nothing.*"};
    CHECK_FAILS(n, dt_program_create(n->store, &desc, &program), DT_ERROR_INVALID,
                "\"nothing.*\" matches the name of no parameter");
    CHECK(net_train(n, 1) == DT_OK); /* the others go on */
}

TEST_NET(no_other_program_runs_between_begin_and_end) {
    float x[IN] = {0}, y[CLASSES];
    dt_step_state state;
    dt_program *program;
    dt_program_desc desc = {.outputs = {n->y}};
    REQUIRE(net_write(n, 0) == DT_OK);
    REQUIRE(dt_program_write(n->predict, n->x, x, sizeof x) == DT_OK);
    REQUIRE(dt_program_begin(n->train, NULL) == DT_OK);
    CHECK_FAILS(n, dt_program_run(n->predict, NULL, NULL), DT_ERROR_INVALID, "'train'");
    CHECK_FAILS(n, dt_program_begin(n->train, NULL), DT_ERROR_INVALID, "'train'");
    CHECK_FAILS(n, dt_program_create(n->store, &desc, &program), DT_ERROR_INVALID, "'train'");
    CHECK_FAILS(n, net_write(n, 1), DT_ERROR_INVALID, "in use");
    CHECK_FAILS(n, dt_program_end(n->train, NULL), DT_ERROR_INVALID, "DT_STEP_DONE");
    CHECK(dt_program_advance(n->train, &state) == DT_OK);
    CHECK(dt_program_cancel(n->train, NULL) == DT_OK);
    CHECK_FAILS(n, dt_program_advance(n->train, &state), DT_ERROR_INVALID, "dt_program_begin");
    CHECK(dt_program_run(n->predict, NULL, NULL) == DT_OK);
    CHECK(dt_program_read(n->predict, n->y, y, sizeof y) == DT_OK);
}

TEST_NET(weights_of_another_model_name_the_first_that_does_not_fit) {
    const char *path = temp_path("other.safetensors");
    net other = {.ctx = n->ctx};
    uint64_t before = 0, after = 1;
    REQUIRE(dt_graph_create(n->ctx, &other.graph) == DT_OK);
    other.x = dt_input(other.graph, "x", DT_F32, dt_dims(IN));
    dt_nn_linear(dt_nn_linear(other.x, "fc1", 300), "fc2", 299);
    REQUIRE(dt_store_create(other.graph, &(dt_store_desc){.device = "cpu"}, &other.store) == DT_OK);
    REQUIRE(dt_store_save(other.store, path) == DT_OK);
    dt_store_hash(n->store, &before);
    CHECK_FAILS(n, dt_store_load(n->store, path), DT_ERROR_INVALID, "fc2.weight");
    CHECK_CONTAINS(dt_ctx_error(n->ctx), "299");
    dt_store_hash(n->store, &after);
    CHECK(before == after);
    dt_store_destroy(other.store);
    dt_graph_destroy(other.graph);
}

/* The same sample alone and as each row of a batch; kernels are chosen by shape, so not to the
 * bit. */
TEST_NET(predict_at_batch_1_is_a_row_of_a_batch) {
    float x[4 * IN], y1[CLASSES], y4[4 * CLASSES];
    int32_t t[4];
    dt_program *four;
    dt_program_desc desc = {.outputs = {n->y}, .batch = 4};
    fill(x, t, 4, 3);
    REQUIRE(net_train(n, 3) == DT_OK);
    REQUIRE(dt_program_create(n->store, &desc, &four) == DT_OK);
    REQUIRE(dt_program_write(four, n->x, x, sizeof x) == DT_OK);
    REQUIRE(dt_program_run(four, NULL, NULL) == DT_OK);
    REQUIRE(dt_program_read(four, n->y, y4, sizeof y4) == DT_OK);
    for (int row = 0; row < 4; row++) {
        REQUIRE(dt_program_write(n->predict, n->x, x + row * IN, IN * sizeof *x) == DT_OK);
        REQUIRE(dt_program_run(n->predict, NULL, NULL) == DT_OK);
        REQUIRE(dt_program_read(n->predict, n->y, y1, sizeof y1) == DT_OK);
        for (int i = 0; i < CLASSES; i++)
            CHECK_NEAR(y1[i], y4[row * CLASSES + i], 1e-5);
    }
    CHECK(y4[0] != y4[CLASSES]);
}

TEST_NET(accumulation_is_refused_where_it_was_not_asked_for) {
    dt_program *program;
    dt_step_desc half = {.micro_batch = 0, .micro_batches = 2},
                 beyond = {.micro_batch = 2, .micro_batches = 2};
    double zero = 0;
    REQUIRE(net_write(n, 0) == DT_OK);
    CHECK_FAILS(n, dt_program_run(n->train, &half, NULL), DT_ERROR_INVALID, ".accumulate");
    CHECK_FAILS(n, dt_program_run(n->train, &(dt_step_desc){.micro_batch = 1}, NULL),
                DT_ERROR_INVALID, ".micro_batch is 1");
    CHECK_FAILS(n, dt_program_run(n->train, &(dt_step_desc){.loss_weights = &zero}, NULL),
                DT_ERROR_INVALID, "dt_program_add_loss_weights");
    dt_program_desc desc = {.outputs = {n->y}, .accumulate = true};
    CHECK_FAILS(n, dt_program_create(n->store, &desc, &program), DT_ERROR_INVALID, ".accumulate");
    desc = (dt_program_desc){.loss = n->loss, .batch = 4, .optim = &adam, .accumulate = true};
    REQUIRE(dt_program_create(n->store, &desc, &program) == DT_OK);
    CHECK_FAILS(n, dt_program_run(program, &beyond, NULL), DT_ERROR_INVALID,
                ".micro_batch is 2; it must be below .micro_batches, 2");
}

TEST(a_half_filled_allocator_or_a_wrong_count_of_threads_is_refused) {
    meter m = {0};
    dt_ctx *ctx = NULL;
    CHECK(dt_ctx_create(&(dt_ctx_desc){.allocator = {meter_alloc, NULL, &m}}, &ctx) ==
          DT_ERROR_INVALID);
    CHECK(dt_ctx_create(&(dt_ctx_desc){.threads = -2}, &ctx) == DT_ERROR_INVALID);
    CHECK(ctx == NULL && m.bytes == 0);
}

/* ---- Shapes that no memory holds: their products must overflow nothing (the sanitizer looks) */

#define HUGE_DIM 2147483647 /* the largest of a dimension; three of them exceed 64 bits */

typedef dt_tensor absurd_fn(dt_graph *g, dt_tensor x, dt_tensor m, dt_shape s);

/* Made from x: [1], m: [1, 1] and an absurd shape. */
#define MAKE(name, expression)                                                                     \
    static dt_tensor absurd_##name(dt_graph *g, dt_tensor x, dt_tensor m, dt_shape s) {            \
        (void)g, (void)x, (void)m, (void)s;                                                        \
        return expression;                                                                         \
    }
MAKE(input, dt_input(g, "i", DT_F32, s))
MAKE(shared, dt_input_shared(g, "i", DT_I32, s))
MAKE(param, dt_param(g, "p", s, (dt_init){DT_INIT_KAIMING_NORMAL, 0, 0}))
MAKE(fill, dt_fill(g, s, 1))
MAKE(expand, dt_expand(x, s))
MAKE(reshape, dt_reshape(x, s))
MAKE(empty, dt_reshape(dt_slice(x, 0, 0, 0), s))
MAKE(permute, dt_permute(m, s))
MAKE(sum, dt_sum(m, s, true))
MAKE(slice, dt_slice(x, 0, s.dim[0], s.dim[1]))
MAKE(pad, dt_pad(dt_expand(x, dt_dims(s.dim[1])), 0, s.dim[0], HUGE_DIM))
MAKE(linear, dt_nn_linear(dt_expand(x, dt_dims(s.dim[1])), "l", s.dim[0]))
MAKE(embedding, dt_nn_embedding(dt_cast(x, DT_I32), "e", s.dim[0], s.dim[1]))
MAKE(concat, dt_concat((dt_tensor[]){dt_expand(x, s), dt_expand(x, s)}, 2, 0))
MAKE(sum_of_parts,
     dt_concat((dt_tensor[]){dt_expand(x, dt_dims(1 << 30)), dt_expand(x, dt_dims(1 << 30))}, 2, 0))
MAKE(add, dt_add(dt_expand(x, dt_dims(HUGE_DIM, 1)), dt_expand(x, dt_dims(1, HUGE_DIM))))
MAKE(product, dt_matmul(dt_expand(m, dt_dims(HUGE_DIM, 1)), dt_expand(m, dt_dims(1, HUGE_DIM))))
MAKE(products,
     dt_matmul(dt_expand(m, dt_dims(65536, 1, 1, 1)), dt_expand(m, dt_dims(1, 65536, 1, 1))))
MAKE(gather, dt_embedding(dt_param(g, "p", dt_dims(1, 1 << 20), (dt_init){0}),
                          dt_input(g, "i", DT_I32, dt_dims(1 << 20))))
MAKE(adaptive, dt_adaptive_avg_pool2d(dt_reshape(x, dt_dims(1, 1, 1)), s.dim[0], s.dim[1]))
MAKE(resize, dt_resize(dt_reshape(x, dt_dims(1, 1, 1)), s.dim[0], s.dim[1], DT_RESIZE_NEAREST))
#undef MAKE

static const dt_shape absurd_shapes[] = {
    {.rank = 6, .dim = {1, 1, 1, 1, 1}},
    {.rank = INT32_MAX},
    {.rank = -1},
    {.rank = 3, .dim = {HUGE_DIM, HUGE_DIM, HUGE_DIM}},
    {.rank = 4, .dim = {HUGE_DIM, HUGE_DIM, HUGE_DIM, 0}},
    {.rank = 4, .dim = {0, HUGE_DIM, HUGE_DIM, HUGE_DIM}},
    {.rank = 2, .dim = {(int64_t)1 << 32, (int64_t)1 << 32}}, /* wraps to 0 */
    {.rank = 2, .dim = {INT64_MAX, INT64_MAX}},
    {.rank = 2, .dim = {INT64_MIN, INT64_MIN}},
    {.rank = 2, .dim = {65536, 32768}}, /* one element too many */
};
#define SHAPES (int)(sizeof absurd_shapes / sizeof absurd_shapes[0])
#define SIZES 3 /* the first of them for an op that takes two sizes */

/* What an error names, and the first shape that is absurd for it. */
static const struct {
    const char *op;
    absurd_fn *make;
    int first;
} absurd_ops[] = {
    {"input", absurd_input, 0},
    {"input", absurd_shared, 0},
    {"param", absurd_param, 0},
    {"fill", absurd_fill, 0},
    {"expand", absurd_expand, 0},
    {"reshape", absurd_reshape, 0},
    {"reshape", absurd_empty, 0},
    {"permute", absurd_permute, 0},
    {"sum", absurd_sum, 0},
    {"expand", absurd_concat, 0},
    {"slice", absurd_slice, SIZES},
    {"", absurd_pad, SIZES},
    {"", absurd_linear, SIZES},
    {"", absurd_embedding, SIZES + 3},
    {"pool", absurd_adaptive, SIZES},
    {"resize", absurd_resize, SIZES},
    /* These take what others gave, always the same. */
    {"add", absurd_add, SHAPES - 1},
    {"matmul", absurd_product, SHAPES - 1},
    {"matmul", absurd_products, SHAPES - 1},
    {"embedding", absurd_gather, SHAPES - 1},
    {"concat", absurd_sum_of_parts, SHAPES - 1},
};

/* Grants blocks below 16 MiB: a system that overcommits would give any. */
static void *small_alloc(void *user, size_t bytes, size_t align) {
    return bytes < 16u << 20 ? meter_alloc(user, bytes, align) : NULL;
}

static void check_absurd(dt_ctx *ctx, const char *op, absurd_fn *make, dt_shape shape) {
    dt_graph *g;
    dt_store *store;
    if (dt_graph_create(ctx, &g))
        return;
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(1));
    dt_tensor y = make(g, x, dt_input(g, "m", DT_F32, dt_dims(1, 1)), shape);
    const char *error = dt_graph_error(g) ? dt_graph_error(g) : "no error";
    test_check(y.id == 0 && strstr(error, op), __FILE__, __LINE__,
               "%s, rank %d, dimension %lld: %s", op, (int)shape.rank, (long long)shape.dim[0],
               error);
    dt_result result = dt_store_create(g, &(dt_store_desc){.device = "cpu"}, &store);
    CHECK(result == DT_ERROR_INVALID && strstr(dt_ctx_error(ctx), op));
    dt_graph_destroy(g);
}

TEST(an_absurd_shape_is_an_error_of_the_op_that_is_given_it) {
    dt_ctx *ctx = NULL;
    meter m = {0};
    dt_ctx_desc desc = {.no_vulkan = true, .allocator = {small_alloc, meter_free, &m}};
    REQUIRE(dt_ctx_create(&desc, &ctx) == DT_OK);
    for (size_t i = 0; i < sizeof absurd_ops / sizeof absurd_ops[0]; i++)
        for (int j = absurd_ops[i].first; j < SHAPES; j++)
            check_absurd(ctx, absurd_ops[i].op, absurd_ops[i].make, absurd_shapes[j]);
    dt_ctx_destroy(ctx);
}

/* What the shapes allow can still be too much with a batch, or for the memory. */
TEST_NET(an_absurd_batch_is_refused_with_its_size) {
    dt_program *program;
    dt_program_desc desc = {.outputs = {n->y}, .batch = INT32_MAX};
    CHECK_FAILS(n, dt_program_create(n->store, &desc, &program), DT_ERROR_INVALID, "2147483647");
    CHECK_CONTAINS(dt_ctx_error(n->ctx), "more than 2^31");
    desc.batch = INT32_MIN;
    CHECK_FAILS(n, dt_program_create(n->store, &desc, &program), DT_ERROR_INVALID, "-2147483648");
    CHECK(program == NULL && net_train(n, 1) == DT_OK);
}

TEST(a_legal_shape_beyond_memory_is_refused_with_its_bytes) {
    meter m = {0};
    dt_ctx *ctx = NULL;
    dt_graph *g = NULL;
    dt_store *store = NULL;
    dt_program *program = NULL;
    dt_ctx_desc desc = {.no_vulkan = true, .allocator = {small_alloc, meter_free, &m}};
    REQUIRE(dt_ctx_create(&desc, &ctx) == DT_OK);
    if (!dt_graph_create(ctx, &g)) {
        dt_tensor x = dt_input(g, "x", DT_F32, dt_dims());
        dt_tensor y = dt_mul(x, dt_param(g, "p", dt_dims(1), (dt_init){0}));
        CHECK(dt_store_create(g, &(dt_store_desc){.device = "cpu"}, &store) == DT_OK);
        dt_program_desc whole = {.outputs = {y}, .batch = INT32_MAX};
        CHECK(dt_program_create(store, &whole, &program) == DT_ERROR_MEMORY && !program);
        CHECK_CONTAINS(dt_ctx_error(ctx), "out of host memory");
        dt_store_destroy(store);
        dt_param(g, "q", dt_dims(46340, 46340), (dt_init){0});
        CHECK(dt_store_create(g, &(dt_store_desc){.device = "cpu"}, &store) == DT_ERROR_MEMORY);
        CHECK_CONTAINS(dt_ctx_error(ctx), "85895"); /* 8589582400 bytes and what is rounded up */
    }
    dt_ctx_destroy(ctx);
    CHECK(m.bytes == 0);
}

TEST_NET(a_concat_of_nothing_is_told_where_it_is_used) {
    dt_program *program;
    dt_tensor none = dt_concat(NULL, 0, 0);
    CHECK(none.id == 0 && dt_concat(&n->x, -1, 0).id == 0 && !dt_graph_error(n->graph));
    dt_program_desc desc = {.outputs = {dt_relu(none)}};
    CHECK_FAILS(n, dt_program_create(n->store, &desc, &program), DT_ERROR_INVALID, "nil tensor");
    dt_tensor sum = dt_add(n->y, none); /* last: it leaves an error in the graph */
    CHECK(sum.id == 0 && strstr(dt_graph_error(n->graph), "add: input 2 is nil"));
}

/* ---- The log says how many of the processors compute */

static void keep_cpu_line(void *user, dt_log_level level, const char *message) {
    if (level == DT_LOG_INFO && !strncmp(message, "device cpu: cpu,", 16))
        snprintf(user, 256, "%s", message);
}

/* The line that a context of `desc` logs when a store opens the CPU. */
static void cpu_line(dt_ctx_desc desc, char line[256]) {
    dt_graph *graph;
    dt_store *store;
    dt_ctx *ctx;
    *line = 0;
    desc.logger = (dt_logger){keep_cpu_line, line};
    REQUIRE(dt_ctx_create(&desc, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &graph) == DT_OK);
    REQUIRE(dt_store_create(graph, &(dt_store_desc){.device = "cpu"}, &store) == DT_OK);
    CHECK_CONTAINS(line, dt_store_device(store)->driver);
    dt_ctx_destroy(ctx);
}

static void run_each(void *user, int64_t count, void (*body)(void *arg, int64_t i), void *arg) {
    (void)user;
    for (int64_t i = 0; i < count; i++)
        body(arg, i);
}

TEST(the_log_has_the_number_of_processors_that_compute) {
    char line[256], expected[64];
    int threads = 0, processors = 0;
    cpu_line((dt_ctx_desc){.threads = DT_THREADS_ALL}, line);
    const char *numbers = strrchr(line, ',');
    REQUIRE(numbers && sscanf(numbers, ", %d of %d processor", &threads, &processors) == 2);
    CHECK(threads == processors && processors >= 1);
    cpu_line((dt_ctx_desc){0}, line);
    snprintf(expected, sizeof expected, ", 1 of %d processor%s", processors,
             processors == 1 ? "" : "s");
    CHECK_CONTAINS(line, expected);
    cpu_line((dt_ctx_desc){.jobs = {.parallel_for = run_each, .threads = processors + 1}}, line);
    snprintf(expected, sizeof expected, ", %d threads on %d processor%s", processors + 1,
             processors, processors == 1 ? "" : "s");
    CHECK_CONTAINS(line, expected);
}
