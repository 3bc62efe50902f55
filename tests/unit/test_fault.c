/* What runs out: host memory at every single allocation of a whole life (context to weight files),
 * threads, and the disk. The call that meets it reports it (MEMORY or IO, with a text), and frees
 * what it took. It works when it is repeated, with the same bits, the same bytes and nothing left
 * at the end. On the public API, for the CPU and for a Vulkan device. A model is a function;
 * another one is a line of the list below it. */
#include "dtrain.h"

#include "harness.h"
#include "temp.h"

#include <signal.h>
#include <sys/resource.h>

#define IN 12
#define CLASSES 5
#define BATCH 4
#define BATCH_LARGE 24
#define TRACE_MAX 64
#define ALLOCATIONS_MAX 20000 /* far more than any life below needs */

/* ---- An allocator that counts, and fails from one call on: once, or until it is healed */

typedef struct meter {
    int64_t bytes, calls, fails_at; /* fails_at: 0 = never */
    bool lasting;                   /* it fails until it is healed */
    bool failed;
    char log[1024]; /* the newest error that a logger got */
} meter;

static void *meter_alloc(void *user, size_t bytes, size_t align) {
    meter *m = user;
    m->calls++;
    if (m->fails_at && (m->calls == m->fails_at || (m->lasting && m->calls > m->fails_at))) {
        m->failed = true;
        return NULL;
    }
    m->bytes += (int64_t)bytes;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void meter_free(void *user, void *memory, size_t bytes) {
    ((meter *)user)->bytes -= (int64_t)bytes;
    free(memory);
}

static void meter_log(void *user, dt_log_level level, const char *message) {
    meter *m = user;
    if (level == DT_LOG_ERROR)
        snprintf(m->log, sizeof m->log, "%s", message);
}

static void meter_warning(void *user, dt_log_level level, const char *message) {
    meter *m = user;
    if (level == DT_LOG_WARNING)
        snprintf(m->log, sizeof m->log, "%s", message);
}

/* ---- Models: x is [IN] f32 and t a class number, both of each sample */

typedef struct model {
    dt_tensor x, t;              /* given */
    dt_tensor y, loss, accuracy; /* asked for */
    dt_tensor penalty;           /* a second loss, or nil */
} model;

static void model_mlp(dt_graph *graph, model *m) {
    (void)graph;
    dt_tensor h = dt_relu(dt_nn_linear(m->x, "fc1", 16));
    m->y = dt_label(dt_nn_linear(dt_dropout(h, 0.25f), "fc2", CLASSES), "y");
    m->loss = dt_cross_entropy(m->y, m->t, NULL);
    m->accuracy = dt_accuracy(m->y, m->t);
}

/* One op of each family that has rules of its own, and a gradient of a gradient. */
static void model_families(dt_graph *graph, model *m) {
    dt_tensor parts[2] = {dt_tanh(dt_nn_linear(m->x, "fc1", 8)),
                          dt_nn_embedding(m->t, "table", CLASSES, 4)};
    dt_tensor h = dt_reshape(dt_concat(parts, 2, -1), dt_dims(3, 4));
    h = dt_matmul(dt_permute(h, dt_dims(1, 0)), dt_softmax(h, -1));
    h = dt_concat(
        (dt_tensor[]){dt_slice(h, 0, 1, 2), dt_expand(dt_mean(h, dt_dims(0), true), dt_dims(2, 4))},
        2, 0);
    h = dt_mul(h, dt_param(graph, "scale", dt_dims(4, 1), (dt_init){DT_INIT_CONSTANT, 0.5f, 0}));
    h = dt_maximum(h, dt_cast(dt_cast(h, DT_I32), DT_F32));
    m->y = dt_nn_linear(dt_flatten(h), "fc2", CLASSES);
    m->loss = dt_cross_entropy(m->y, m->t, &(dt_cross_entropy_desc){.label_smoothing = 0.1f});
    m->accuracy = dt_accuracy(m->y, m->t);
    dt_tensor slope = dt_gradient(dt_sum(dt_square(m->y), dt_dims(), false), m->x);
    m->penalty = dt_mse(slope, dt_affine(m->x, 0, 0.1f));
}

/* Layers with buffers, which a commit writes beside the parameters. */
static void model_image(dt_graph *graph, model *m) {
    (void)graph;
    dt_conv_layer_desc conv = {.conv = {.padding = {1, 1}}, .no_bias = true};
    dt_tensor h = dt_reshape(m->x, dt_dims(1, 2, IN / 2));
    h = dt_relu(dt_nn_batch_norm(dt_nn_conv2d(h, "conv1", 4, 3, &conv), "bn1", NULL));
    h = dt_max_pool2d(dt_recompute(h), &(dt_pool_desc){.kernel = {2, 2}});
    m->y = dt_nn_linear(dt_nn_layer_norm(dt_flatten(h), "norm", 1), "fc", CLASSES);
    m->loss = dt_cross_entropy(m->y, m->t, NULL);
    m->accuracy = dt_accuracy(m->y, m->t);
}

static const struct {
    const char *name;
    void (*build)(dt_graph *graph, model *m);
    dt_precision precision;
    dt_dtype parameter;
    dt_state_dtype state; /* on the CPU */
} models[] = {{"mlp", model_mlp, DT_PRECISION_F32, DT_F32, DT_STATE_F32},
              {"families", model_families, DT_PRECISION_F32, DT_F32, DT_STATE_F32},
              {"image", model_image, DT_PRECISION_F32, DT_F32, DT_STATE_F32},
              {"image in bf16", model_image, DT_PRECISION_BF16, DT_F32, DT_STATE_F32},
              {"image without masters", model_image, DT_PRECISION_BF16, DT_BF16, DT_STATE_BF16}};
#define MODELS (int)(sizeof models / sizeof models[0])

/* ---- A life: stages that may be tried again, and a trace of what they computed */

typedef struct life {
    meter meter;
    const char *device;
    const char *weights_path, *state_path, *idx_path;
    int model;
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    dt_program *train, *predict, *large;
    model m;
    uint64_t trace[TRACE_MAX]; /* losses, outputs and hashes, as bits */
    int traced;
    uint64_t device_bytes; /* before the end */
    int64_t live_bytes;
} life;

static void life_trace(life *l, double value) {
    if (l->traced < TRACE_MAX)
        memcpy(&l->trace[l->traced++], &value, sizeof value);
}

static dt_result life_context(life *l) {
    dt_ctx_desc desc = {.allocator = {meter_alloc, meter_free, &l->meter},
                        .logger = {meter_log, &l->meter},
                        .threads = 2,
                        .no_vulkan = !strcmp(l->device, "cpu"),
                        /* a check that memory fails is left out, and no error */
                        .kernel_check = DT_KERNEL_CHECK_NEVER,
                        .pipeline_cache = "nothing",
                        .pipeline_cache_bytes = 7};
    return dt_ctx_create(&desc, &l->ctx);
}

/* The graph and the store in one: ops report no error, the store does. */
static dt_result life_store(life *l) {
    dt_graph_destroy(l->graph);
    dt_result result = dt_graph_create(l->ctx, &l->graph);
    if (result)
        return result;
    l->m = (model){.x = dt_input(l->graph, "x", DT_F32, dt_dims(IN)),
                   .t = dt_input(l->graph, "t", DT_I32, dt_dims())};
    models[l->model].build(l->graph, &l->m);
    dt_store_desc desc = {
        .device = l->device, .seed = 3, .parameter_dtype = models[l->model].parameter};
    return dt_store_create(l->graph, &desc, &l->store);
}

static dt_result life_predict(life *l) {
    dt_program_desc desc = {.label = "predict",
                            .outputs = {l->m.y},
                            .batch = 2,
                            .precision = models[l->model].precision};
    return dt_program_create(l->store, &desc, &l->predict);
}

static dt_result life_train_of(life *l, int batch, dt_program **out) {
    const dt_optim_desc adam = {
        .kind = DT_OPTIM_ADAM, .lr = 1e-2, .clip_norm = 1, .state_dtype = models[l->model].state};
    dt_program_desc desc = {.label = "train",
                            .losses = {{l->m.loss, 0}, {l->m.penalty, 0.5f}},
                            .metrics = {l->m.accuracy},
                            .outputs = {l->m.y},
                            .batch = batch,
                            .optim = &adam,
                            .precision = models[l->model].precision};
    return dt_program_create(l->store, &desc, out);
}

static dt_result life_train(life *l) {
    return life_train_of(l, BATCH, &l->train);
}

/* The arena grows: the two others are compiled again. */
static dt_result life_large(life *l) {
    return life_train_of(l, BATCH_LARGE, &l->large);
}

static void life_fill(int rows, float *x, int32_t *t) {
    uint32_t state = 77;
    for (int i = 0; i < rows * IN; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 8388608.0f - 1;
    }
    for (int i = 0; i < rows; i++)
        t[i] = i * 7 % CLASSES;
}

static dt_result life_step(life *l, dt_program *program, int rows) {
    float x[BATCH_LARGE * IN];
    int32_t t[BATCH_LARGE];
    dt_report report;
    life_fill(rows, x, t);
    dt_result result = dt_program_write(program, l->m.x, x, (size_t)rows * IN * sizeof *x);
    if (!result)
        result = dt_program_write(program, l->m.t, t, (size_t)rows * sizeof *t);
    if (!result)
        result = dt_program_run(program, NULL, &report);
    if (!result)
        life_trace(l, report.loss);
    return result;
}

static dt_result life_answer(life *l) {
    float x[2 * IN], y[2 * CLASSES];
    int32_t t[2];
    life_fill(2, x, t);
    dt_result result = dt_program_write(l->predict, l->m.x, x, sizeof x);
    if (!result && l->model == 1) /* it looks t up */
        result = dt_program_write(l->predict, l->m.t, t, sizeof t);
    if (!result)
        result = dt_program_run(l->predict, NULL, NULL);
    if (!result)
        result = dt_program_read(l->predict, l->m.y, y, sizeof y);
    for (int i = 0; i < 2 * CLASSES && !result; i++)
        life_trace(l, (double)y[i]);
    return result;
}

static dt_result life_first_steps(life *l) {
    dt_result result = life_step(l, l->train, BATCH);
    return result ? result : life_answer(l);
}

static dt_result life_more_steps(life *l) {
    dt_result result = life_step(l, l->large, BATCH_LARGE);
    if (!result)
        result = life_step(l, l->train, BATCH);
    return result ? result : life_answer(l);
}

static dt_result life_save(life *l) {
    return dt_store_save(l->store, l->weights_path);
}

static dt_result life_load(life *l) {
    return dt_store_load(l->store, l->weights_path);
}

/* With moments, and into a store whose moments' type no program has set. */
static dt_result life_state(life *l) {
    dt_store *other = NULL;
    dt_store_desc desc = {.device = l->device, .parameter_dtype = models[l->model].parameter};
    dt_result result = dt_store_save_state(l->store, l->state_path);
    if (!result)
        result = dt_store_create(l->graph, &desc, &other);
    if (!result)
        result = dt_store_load_state(other, l->state_path);
    dt_store_destroy(other);
    return result ? result : dt_store_load_state(l->store, l->state_path);
}

static dt_result life_read_weights(life *l) {
    dt_safetensors *weights;
    dt_result result = dt_safetensors_open(l->ctx, l->weights_path, &weights);
    if (!result)
        life_trace(l, (double)dt_safetensors_count(weights));
    dt_safetensors_close(weights);
    return result;
}

static dt_result life_read_idx(life *l) {
    dt_array array;
    dt_result result = dt_idx_load(l->ctx, l->idx_path, &array);
    if (!result)
        life_trace(l, (double)array.bytes);
    dt_array_destroy(&array);
    return result;
}

static dt_result life_last_step(life *l) {
    uint64_t hash = 0;
    dt_result result = life_step(l, l->large, BATCH_LARGE);
    if (!result)
        result = dt_store_state_hash(l->store, &hash);
    if (l->traced < TRACE_MAX)
        l->trace[l->traced++] = hash;
    return result;
}

static const struct {
    const char *name;
    dt_result (*run)(life *l);
    bool keeps; /* memory stays taken after it */
} stages[] = {
    {"context", life_context, true},
    {"graph and store", life_store, true},
    {"predict program", life_predict, true},
    {"train program", life_train, true},
    {"first steps", life_first_steps, false},
    {"large program", life_large, true},
    {"more steps", life_more_steps, false},
    {"save", life_save, false},
    {"load", life_load, false},
    {"state", life_state, false},
    {"weights file", life_read_weights, false},
    {"idx file", life_read_idx, false},
    {"last step", life_last_step, false},
};
#define STAGES (int)(sizeof stages / sizeof stages[0])

static const char *life_error(const life *l) {
    return l->ctx ? dt_ctx_error(l->ctx) : l->meter.log; /* without a context a logger gets it */
}

/* Runs a stage. When memory runs out in it, it must have reported that; then memory is there again,
 * and the stage must succeed. */
static bool life_run_stage(life *l, int s, int64_t k) {
    const char *device = l->device, *name = models[l->model].name;
    int64_t before = l->meter.bytes;
    bool had_failed = l->meter.failed;
    dt_result result = stages[s].run(l);
    if (l->meter.failed && !had_failed) {
        bool told = result == DT_ERROR_MEMORY && strstr(life_error(l), "memory");
        bool gave_back = stages[s].keeps ? s > 0 || l->meter.bytes == 0 : l->meter.bytes == before;
        test_check(told && gave_back, __FILE__, __LINE__,
                   "%s, %s, allocation %d in '%s': %s: \"%s\", %d bytes of %d kept", device, name,
                   (int)k, stages[s].name, dt_result_text(result), life_error(l),
                   (int)l->meter.bytes, (int)before);
        l->meter.lasting = false;
        result = stages[s].run(l);
    }
    return test_check(!result, __FILE__, __LINE__, "%s, %s, allocation %d: '%s' gives %s: %s",
                      device, name, (int)k, stages[s].name, dt_result_text(result), life_error(l));
}

static void life_check_leak(const life *l, int64_t k, int64_t kept) {
    test_check(l->meter.bytes == kept, __FILE__, __LINE__, "%s, %s, allocation %d: %d bytes leaked",
               l->device, models[l->model].name, (int)k, (int)(l->meter.bytes - kept));
}

/* The stages from `first` on, with the k-th of their allocations failing. */
static bool life_run_from(life *l, int first, int64_t k, bool lasting) {
    bool ok = true;
    l->meter = (meter){.bytes = l->meter.bytes, .fails_at = k, .lasting = lasting};
    l->traced = 0;
    for (int s = first; s < STAGES && ok; s++)
        ok = life_run_stage(l, s, k);
    dt_ctx_info info = {0};
    if (l->ctx)
        dt_ctx_get_info(l->ctx, &info);
    l->device_bytes = info.device_bytes;
    l->live_bytes = l->meter.bytes;
    return ok;
}

static bool life_run(life *l, int64_t k, bool lasting) {
    bool ok = life_run_from(l, 0, k, lasting);
    dt_ctx_destroy(l->ctx);
    life_check_leak(l, k, 0);
    return ok;
}

static void life_compare(const life *a, const life *b, int64_t k) {
    bool same = a->traced == b->traced && !memcmp(a->trace, b->trace, sizeof a->trace);
    test_check(same, __FILE__, __LINE__, "%s, %s, allocation %d: other bits than undisturbed",
               a->device, models[a->model].name, (int)k);
    test_check(a->live_bytes == b->live_bytes && a->device_bytes == b->device_bytes, __FILE__,
               __LINE__, "%s, %s, allocation %d: %d bytes, %d on the device; undisturbed %d and %d",
               a->device, models[a->model].name, (int)k, (int)b->live_bytes, (int)b->device_bytes,
               (int)a->live_bytes, (int)a->device_bytes);
}

static life life_of(const char *device, int model) {
    static const unsigned char idx[] = {0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9};
    return (life){.device = device,
                  .model = model,
                  .weights_path = temp_path("fault.safetensors"),
                  .state_path = temp_path("fault_state.safetensors"),
                  .idx_path = temp_write("fault.idx", idx, sizeof idx)};
}

/* Every `stride`-th allocation fails: once, and for good; of a stride one or the other. */
static void fail_each(const char *device, int model, int64_t stride) {
    life whole = life_of(device, model);
    if (!life_run(&whole, 0, false))
        return;
    int64_t k = 1, all = whole.meter.calls;
    for (bool failed = true; failed && k < ALLOCATIONS_MAX; k += stride) {
        for (int lasting = stride > 1 ? k % 2 : 0; lasting<2; lasting += stride> 1 ? 2 : 1) {
            life l = life_of(device, model);
            if (life_run(&l, k, lasting))
                life_compare(&whole, &l, k);
            failed = l.meter.failed;
        }
    }
    CHECK(all > 100 && k > all);
}

TEST(every_host_allocation_that_fails_is_reported_freed_and_can_be_retried) {
    for (int model = 0; model < MODELS; model++)
        fail_each("cpu", model, test_takes(1, 1, 9) ? 1 : 9);
}

static bool has_vulkan(void) {
    dt_ctx *ctx = NULL;
    bool found = false;
    dt_ctx_create(NULL, &ctx);
    for (int i = 1; ctx && i < dt_ctx_device_count(ctx); i++)
        found = found || dt_ctx_device(ctx, i)->usable;
    dt_ctx_destroy(ctx);
    return found;
}

/* A driver that starts and compiles again for each of them takes its time, so these are few. */
TEST(host_allocations_that_fail_while_a_vulkan_device_opens_can_be_retried) {
    if (!has_vulkan())
        SKIP("no Vulkan driver");
    fail_each("vulkan", 0, getenv("DTRAIN_TEST_LONG") ? 7 : 59);
}

/* Once more on a context whose device is open and has its pipelines; each third, but in the long
 * form. */
static bool life_again(life *l, int64_t k, bool lasting) {
    dt_graph_destroy(l->graph);
    l->graph = NULL;
    return life_run_from(l, 1, k, lasting);
}

static void fail_each_again(const char *device, int model) {
    life l = life_of(device, model);
    if (!life_run_from(&l, 0, 0, false) || !life_again(&l, 0, false))
        return;
    life whole = l;
    int64_t k = 1, step = getenv("DTRAIN_TEST_LONG") ? 1 : 3;
    for (bool failed = true, ok = true; failed && ok && k < ALLOCATIONS_MAX; k += step) {
        ok = life_again(&l, k, (k + model) % 2); /* each kind is half the time */
        life_compare(&whole, &l, k);
        failed = l.meter.failed;
    }
    CHECK(k > 100 && k > whole.meter.calls);
    dt_ctx_destroy(l.ctx);
    life_check_leak(&l, 0, 0);
}

TEST(every_host_allocation_that_fails_on_an_open_vulkan_device_can_be_retried) {
    if (!has_vulkan())
        SKIP("no Vulkan driver");
    for (int model = 0; model < MODELS && models[model].parameter == DT_F32; model++)
        fail_each_again("vulkan", model);
}

/* ---- Threads: main.c stands between the library and pthread_create */

/* What a job of 6 threads computes, whatever the system gives. */
static uint64_t hash_with_threads(int threads, meter *m, int *leaked) {
    life l = life_of("cpu", 0);
    dt_ctx_desc desc = {.no_vulkan = true,
                        .threads = threads,
                        .allocator = {meter_alloc, meter_free, m},
                        .logger = {meter_warning, m}};
    uint64_t hash = 0;
    dt_result result = dt_ctx_create(&desc, &l.ctx);
    for (int s = 1; s < STAGES && !result; s++)
        result = stages[s].run(&l);
    if (!result)
        hash = l.trace[l.traced - 1];
    dt_ctx_destroy(l.ctx);
    *leaked = (int)m->bytes;
    return hash;
}

TEST(a_thread_that_the_system_refuses_is_a_warning_and_work_continues) {
    meter alone = {0};
    int leaked = 0;
    uint64_t hash = hash_with_threads(1, &alone, &leaked);
    CHECK(hash != 0 && !alone.log[0]);
    for (int given = 0; given <= 5; given++) {
        meter m = {0};
        char part[64];
        harness_threads_left = given;
        bool same = hash_with_threads(6, &m, &leaked) == hash;
        harness_threads_left = -1;
        snprintf(part, sizeof part, "6 threads requested, but the system started %d", given + 1);
        CHECK(same && leaked == 0);
        CHECK_CONTAINS(m.log, given < 5 ? part : "");
        CHECK(given < 5 || !m.log[0]);
    }
}

/* ---- The disk */

#define FILE_MAX 8192

/* The whole file at `path`, of at most FILE_MAX bytes; -1: there is no such one. */
static long file_bytes(const char *path, unsigned char *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file)
        return -1;
    size_t size = fread(bytes, 1, FILE_MAX, file);
    fclose(file);
    return (long)size;
}

/* A life with a store that has a weight file, and this file's bytes. */
static long disk_open(life *l, int model, const dt_save_desc *save, unsigned char *bytes) {
    *l = life_of("cpu", model);
    for (int s = 0; s < 5; s++)
        if (stages[s].run(l))
            return -1;
    l->weights_path = temp_path("disk.safetensors");
    return dt_store_save_matching(l->store, l->weights_path, save)
               ? -1
               : file_bytes(l->weights_path, bytes);
}

/* Saves where a file may have `bytes` at most: then the system says EFBIG. */
static dt_result save_within(life *l, const dt_save_desc *save, rlim_t bytes) {
    struct rlimit old, now;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    now = (struct rlimit){bytes, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
    dt_result result = dt_store_save_matching(l->store, l->weights_path, save);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    return result;
}

static void disk_full(int model, const dt_save_desc *save) {
    static unsigned char before[FILE_MAX], after[FILE_MAX];
    life l;
    long size = disk_open(&l, model, save, before);
    CHECK(size > 700 && size < FILE_MAX);
    life_step(&l, l.train, BATCH); /* so that another file would have other bytes */
    for (long limit = 0; limit < size; limit += limit < 16 ? 1 : 97) {
        int64_t bytes = l.meter.bytes;
        CHECK(save_within(&l, save, (rlim_t)limit) == DT_ERROR_IO);
        CHECK_CONTAINS(dt_ctx_error(l.ctx), "disk.safetensors: cannot be written: ");
        CHECK(file_bytes(l.weights_path, after) == size && !memcmp(before, after, (size_t)size));
        CHECK(temp_unfinished(l.weights_path) == 0 && l.meter.bytes == bytes);
    }
    CHECK(save_within(&l, save, (rlim_t)size) == DT_OK);
    CHECK(file_bytes(l.weights_path, after) == size && memcmp(before, after, (size_t)size));
    dt_ctx_destroy(l.ctx);
}

TEST(a_file_at_the_size_limit_is_an_io_error_and_the_old_one_stays) {
    disk_full(0, NULL);
    disk_full(0, &(dt_save_desc){.dtype = DT_BF16});
    disk_full(0, &(dt_save_desc){.dtype = DT_F16});
    disk_full(MODELS - 1, NULL); /* stored in 16 bits */
}
