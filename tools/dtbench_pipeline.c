/* What ./build.sh bench pipeline runs on each rank: a model in as many stages as there are ranks, 8
 * micro-batches a step, data in memory. Each rank writes a line of JSON: milliseconds of a step,
 * for how many of them its device waited for another stage, and the processor's.
 *
 * usage: dtbench_pipeline gpt|mlp40m SCHEDULE STEPS */
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MICROS = 8, CONTEXT = 64, WIDTH = 256, BLOCKS = 6, HIDDEN = 3035, PIXELS = 784 };

static dt_ctx *ctx;
static dt_comm *comm;

static void need(dt_result result) {
    if (!result)
        return;
    fprintf(stderr, "dtbench_pipeline: %s\n", ctx ? dt_ctx_error(ctx) : dt_comm_error(comm));
    exit(1);
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dt_tensor gpt(dt_graph *g, dt_tensor x) {
    const dt_init normal = {DT_INIT_NORMAL, 0, 0.05f};
    const dt_attention_layer_desc causal = {.attention = {.causal = true}};
    dt_tensor h = dt_gather(dt_param(g, "bytes", dt_dims(256, WIDTH), normal), x);
    for (int i = 0; i < BLOCKS; i++) {
        char name[16];
        snprintf(name, sizeof name, "block%d", i);
        dt_scope_push(g, name);
        dt_tensor y = dt_nn_layer_norm(h, "norm1", 1);
        h = dt_add(h, dt_nn_multi_head_attention(y, y, "attention", 4, &causal));
        y = dt_gelu(dt_nn_linear(dt_nn_layer_norm(h, "norm2", 1), "up", 4 * WIDTH));
        h = dt_add(h, dt_nn_linear(y, "down", WIDTH));
        dt_scope_pop(g);
    }
    return dt_nn_linear(dt_nn_layer_norm(h, "norm", 1), "out", 256);
}

static dt_tensor mlp(dt_tensor x) {
    for (int i = 0; i < 5; i++) {
        char name[16];
        snprintf(name, sizeof name, "fc%d", i);
        x = dt_relu(dt_nn_linear(x, name, HIDDEN));
    }
    return dt_nn_linear(x, "out", 10);
}

static void columns(dt_trainer_desc *d, dt_tensor x, dt_tensor t, bool text) {
    const size_t each = text ? CONTEXT : PIXELS, rows = (size_t)d->batch;
    int32_t *words = calloc(2 * rows * each, sizeof *words);
    for (size_t i = 0; words && i < rows * each && text; i++)
        words[i] = words[rows * each + i] = (int32_t)(i * 7 % 256);
    for (size_t i = 0; words && i < rows * each && !text; i++)
        ((float *)(void *)words)[i] = (float)(i % 256) / 256.0f;
    d->data.rows = rows;
    d->data.columns[0] = (dt_column){x, words, text ? DT_I32 : DT_F32, 0, 0};
    d->data.columns[1] = (dt_column){t, words + rows * each, DT_I32, 0, 0};
}

int main(int argc, char **argv) {
    dt_graph *graph;
    dt_trainer *trainer;
    dt_train_report r;
    double seconds = 0, waited = 0, cpu = 0;
    if (argc < 4)
        return 2;
    const bool text = !strcmp(argv[1], "gpt");
    const dt_comm_desc job = dt_comm_desc_from_env();
    need(dt_comm_create(&job, &comm));
    need(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true, .threads = 1}, &ctx));
    need(dt_graph_create(ctx, &graph));
    const dt_tensor x = text ? dt_input(graph, "x", DT_I32, dt_dims(CONTEXT))
                             : dt_input(graph, "x", DT_F32, dt_dims(PIXELS));
    const dt_tensor t = dt_input(graph, "t", DT_I32, text ? dt_dims(CONTEXT) : dt_dims());
    const dt_tensor y = text ? gpt(graph, x) : mlp(x);
    const dt_optim_desc adam = {.lr = 1e-4, .clip_norm = 1};
    dt_trainer_desc d = {.loss = dt_cross_entropy(y, t, NULL), .optim = &adam, .devices = "cpu"};
    d.batch = text ? 32 : 256;
    d.accumulate = MICROS;
    d.comm = comm;
    d.pipeline = dt_comm_size(comm) > 1 ? dt_comm_size(comm) : 0;
    d.schedule = d.pipeline ? (dt_pipeline_schedule)atoi(argv[2]) : DT_PIPELINE_1F1B;
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
           "\"samples_per_s\": %.3f}\n",
           dt_comm_rank(comm), 1e3 * seconds / steps, 1e3 * waited / steps, 1e3 * cpu / steps,
           d.batch * steps / seconds);
    dt_ctx_destroy(ctx);
    dt_comm_destroy(comm);
    return 0;
}
