/* ./build.sh bench pipeline and bench models run this on each rank. It is a model that is split
 * across the ranks, with data in memory. Each rank writes a line of JSON. It has milliseconds of a
 * step, of the wait for another stage, and of the processor. It also has the process's peak memory.
 *
 * usage: dtbench_models gpt|gpt_small|mlp40m STRATEGY STEPS
 * STRATEGY: one (8 micro-batches, no other rank); gpipe, 1f1b, interleaved, zero_bubble (a stage a
 * rank, 8 micro-batches); tensor (a tensor rank a process), tensor4 (in 4 slices); data, zero1,
 * zero2, zero3 (a replica a rank); hsdp (zero3 in two shard groups); 1f1b_zero2, 1f1b_zero3 (two
 * stages of replicas) */
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MICROS = 8, CONTEXT = 64, HIDDEN = 3036, PIXELS = 784 };

typedef struct model {
    const char *name;
    int batch, width, blocks, heads; /* width 0: the MLP */
} model;

static const model models[] = {
    {"gpt", 32, 256, 6, 4}, {"gpt_small", 16, 768, 12, 12}, {"mlp40m", 256, 0, 0, 0}};

static dt_ctx *ctx;
static dt_comm *comm;

static void need(dt_result result) {
    if (!result)
        return;
    fprintf(stderr, "dtbench_models: %s\n", ctx ? dt_ctx_error(ctx) : dt_comm_error(comm));
    exit(1);
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dt_tensor linear(dt_tensor x, const char *name, int features, dt_tensor_style split) {
    return dt_nn_linear_with(x, name, features, &(dt_linear_desc){.tensor = split});
}

static dt_tensor gpt(dt_graph *g, dt_tensor x, const model *m) {
    const dt_init normal = {DT_INIT_NORMAL, 0, 0.05f};
    const dt_attention_layer_desc causal = {.attention = {.causal = true}};
    dt_tensor h = dt_embedding(dt_param(g, "bytes", dt_dims(256, m->width), normal), x);
    for (int i = 0; i < m->blocks; i++) {
        char name[16];
        snprintf(name, sizeof name, "block%d", i);
        dt_scope_push(g, name);
        dt_tensor y = dt_nn_layer_norm(h, "norm1", 1);
        h = dt_add(h, dt_nn_multi_head_attention(y, y, "attention", m->heads, &causal));
        y = linear(dt_nn_layer_norm(h, "norm2", 1), "up", 4 * m->width, DT_TENSOR_COLUMN);
        h = dt_add(h, linear(dt_gelu(y), "down", m->width, DT_TENSOR_ROW));
        dt_scope_pop(g);
    }
    return dt_nn_linear(dt_nn_layer_norm(h, "norm", 1), "out", 256);
}

static dt_tensor mlp(dt_tensor x) {
    for (int i = 0; i < 5; i++) {
        char name[16];
        snprintf(name, sizeof name, "fc%d", i);
        x = dt_relu(linear(x, name, HIDDEN, i % 2 ? DT_TENSOR_ROW : DT_TENSOR_COLUMN));
    }
    return linear(x, "out", 10, DT_TENSOR_ROW);
}

static void columns(dt_trainer_desc *d, dt_tensor x, dt_tensor t, bool text) {
    const size_t each = text ? CONTEXT : PIXELS, rows = (size_t)d->batch;
    int32_t *words = calloc(2 * rows * each, sizeof *words);
    for (size_t i = 0; words && i < rows * each && text; i++)
        words[i] = words[rows * each + i] = (int32_t)(i * 7 % 256);
    for (size_t i = 0; words && i < rows * each && !text; i++)
        ((float *)(void *)words)[i] = (float)(i % 256) / 256.0f;
    d->data.rows = rows;
    d->data.columns[0] = (dt_column){.input = x, .data = words, .dtype = text ? DT_I32 : DT_F32};
    d->data.columns[1] = (dt_column){t, words + rows * each, DT_I32, 0, 0};
}

static bool is(const char *strategy, const char *name) {
    return !strcmp(strategy, name);
}

/* false: there is no such strategy. */
static bool parallelize(dt_trainer_desc *d, const char *strategy) {
    static const char *schedule[] = {"1f1b", "gpipe", "interleaved", "zero_bubble"};
    for (int i = 0; i < 4; i++)
        if (is(strategy, schedule[i])) {
            d->parallel = (dt_parallel_desc){.pipeline = dt_comm_size(comm),
                                             .schedule = (dt_pipeline_schedule)i};
        }
    const bool zero_grid = !strncmp(strategy, "1f1b_zero", 9); /* two stages of replicas */
    if (zero_grid)
        d->parallel = (dt_parallel_desc){.pipeline = 2, .zero_stage = atoi(strategy + 9)};
    if (d->parallel.pipeline || is(strategy, "one"))
        d->accumulate = MICROS;
    else if (is(strategy, "hsdp")) /* two groups */
        d->parallel = (dt_parallel_desc){.zero_stage = 3, .shard_degree = dt_comm_size(comm) / 2};
    else if (!strncmp(strategy, "tensor", 6)) {
        d->parallel =
            (dt_parallel_desc){.tensor = dt_comm_size(comm), .tensor_slices = atoi(strategy + 6)};
    } else if (!strncmp(strategy, "zero", 4))
        d->parallel.zero_stage = atoi(strategy + 4);
    else
        return is(strategy, "data");
    return true;
}

static const model *model_of(const char *name) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (is(name, models[i].name))
            return &models[i];
    fprintf(stderr, "dtbench_models: no model '%s'\n", name);
    exit(2);
}

static double peak_mib(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)used.ru_maxrss / 1024;
}

int main(int argc, char **argv) {
    dt_graph *graph;
    dt_trainer *trainer;
    dt_train_report r;
    double seconds = 0, waited = 0, cpu = 0;
    if (argc < 4)
        return 2;
    const model *m = model_of(argv[1]);
    const bool text = m->width > 0;
    const dt_comm_desc job = dt_comm_desc_from_env();
    need(dt_comm_create(&job, &comm));
    need(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true, .threads = 1}, &ctx));
    need(dt_graph_create(ctx, &graph));
    const dt_tensor x = text ? dt_input(graph, "x", DT_I32, dt_dims(CONTEXT))
                             : dt_input(graph, "x", DT_F32, dt_dims(PIXELS));
    const dt_tensor t = dt_input(graph, "t", DT_I32, text ? dt_dims(CONTEXT) : dt_dims());
    const dt_tensor y = text ? gpt(graph, x, m) : mlp(x);
    const dt_optim_desc adam = {.lr = 1e-4};
    dt_trainer_desc d = {.loss = dt_cross_entropy(y, t, NULL), .optim = &adam, .devices = "cpu"};
    d.batch = m->batch;
    d.comm = comm;
    if (!parallelize(&d, argv[2]))
        return 2;
    columns(&d, x, t, text);
    need(dt_trainer_create(graph, &d, &trainer));
    const int steps = atoi(argv[3]);
    for (int i = -2; i < steps; i++) { /* two are not counted */
        const double start = cpu_seconds();
        need(dt_trainer_step(trainer, &r));
        cpu += i < 0 ? 0 : cpu_seconds() - start;
        seconds += i < 0 ? 0 : r.seconds;
        waited += i < 0 ? 0 : r.wait_seconds;
    }
    printf("{\"rank\": %d, \"step_ms\": %.3f, \"wait_ms\": %.3f, \"cpu_ms\": %.3f, "
           "\"samples_per_s\": %.3f, \"peak_mib\": %.1f}\n",
           dt_comm_rank(comm), 1e3 * seconds / steps, 1e3 * waited / steps, 1e3 * cpu / steps,
           d.batch * steps / seconds, peak_mib());
    dt_ctx_destroy(ctx);
    dt_comm_destroy(comm);
    return 0;
}
