/* A GPT in stages on several devices. A small one learns to write down the bytes of this file's own
 * text. It is cut into as many stages as devices are named on all ranks, with 8 micro-batches a
 * step. The losses are the same to the last bit on any number of CPUs and ranks, and with any
 * schedule.
 *
 *     pipeline_gpt cpu:3 [0 to 3: a dt_pipeline_schedule] [steps]
 *     dtrun -n 2 pipeline_gpt cpu */
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 32, WIDTH = 48, BLOCKS = 6, ROWS = 64, BATCH = 32, MICROS = 8 };

static dt_ctx *ctx;
static dt_comm *comm;

static void check(dt_result result) {
    if (result) {
        fprintf(stderr, "pipeline_gpt: %s\n", ctx ? dt_ctx_error(ctx) : dt_comm_error(comm));
        exit(1);
    }
}

/* Each block's output is all that the next one needs: a good place to cut. Without the marks the
 * trainer finds such places by itself. */
static dt_tensor gpt(dt_graph *g, dt_tensor x, int stages) {
    const dt_init normal = {DT_INIT_NORMAL, 0, 0.05f};
    const dt_attention_layer_desc causal = {.attention = {.causal = true}};
    dt_tensor h = dt_embedding(dt_param(g, "bytes", dt_dims(256, WIDTH), normal), x);
    h = dt_add(h, dt_param(g, "places", dt_dims(CONTEXT, WIDTH), normal));
    for (int i = 0, stage = 0; i < BLOCKS; i++) {
        char name[16];
        if (i * stages / BLOCKS > stage)
            h = dt_stage(h, ++stage);
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

/* Stages in a list of devices: "cpu:3" is three, "vulkan:0,vulkan:1" two. */
static int count(const char *devices) {
    int n = 0;
    for (const char *at = devices; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        n += strncmp(at, "cpu:", 4) ? 1 : atoi(at + 4);
    return n;
}

static void log_line(void *user, dt_log_level level, const char *message) {
    (void)user;
    (void)level;
    if (!strncmp(message, "pipeline", 8)) /* which stage is where, and how long devices wait */
        fprintf(stderr, "%s\n", message);
}

/* The losses to compare. */
static dt_result tell(void *user, dt_fit_state *s) {
    (void)user;
    if (s->event == DT_FIT_STEP && dt_comm_rank(comm) == 0 &&
        (s->step % 10 == 0 || s->step == s->steps))
        printf("step %llu: loss %.9f\n", (unsigned long long)s->step, s->last.loss);
    return DT_OK;
}

int main(int argc, char **argv) {
    static int32_t data[2][ROWS][CONTEXT];
    const char *devices = argc > 1 ? argv[1] : "cpu:2";
    const int schedule = argc > 2 ? atoi(argv[2]) : 0, steps = argc > 3 ? atoi(argv[3]) : 40;
    const int chunks = schedule == DT_PIPELINE_INTERLEAVED ? 2 : 1;
    const dt_comm_desc job = dt_comm_desc_from_env();
    dt_graph *graph;
    dt_trainer *trainer;
    for (int i = 0; i < ROWS * CONTEXT; i++) { /* each byte's target is the next one */
        static const char text[] = "A GPT in stages on several devices learns this sentence. ";
        (&data[0][0][0])[i] = text[i % (sizeof text - 1)];
        (&data[1][0][0])[i] = text[(i + 1) % (sizeof text - 1)];
    }
    check(dt_comm_create(&job, &comm));
    const int stages = count(devices) * dt_comm_size(comm); /* each rank has that list */
    check(dt_ctx_create(&(dt_ctx_desc){.logger = {log_line, NULL}}, &ctx));
    check(dt_graph_create(ctx, &graph));
    dt_tensor x = dt_input(graph, "x", DT_I32, dt_dims(CONTEXT));
    dt_tensor t = dt_input(graph, "t", DT_I32, dt_dims(CONTEXT));
    dt_tensor logits = gpt(graph, x, stages * chunks);
    const dt_optim_desc adam = {.lr = 3e-3, .clip_norm = 1}; /* the norm is one over all stages */
    dt_trainer_desc desc = {.loss = dt_cross_entropy(logits, t, NULL), .batch = BATCH};
    desc.optim = &adam;
    desc.data.rows = ROWS;
    desc.data.columns[0] = (dt_column){.input = x, .data = data[0], .dtype = DT_I32};
    desc.data.columns[1] = (dt_column){.input = t, .data = data[1], .dtype = DT_I32};
    desc.accumulate = MICROS;
    desc.devices = devices;
    desc.comm = comm;
    if (stages > 1)
        desc.parallel =
            (dt_parallel_desc){.pipeline = stages, .schedule = (dt_pipeline_schedule)schedule};
    check(dt_trainer_create(graph, &desc, &trainer));
    dt_progress bar = {.file = stderr}; /* of rank 0 */
    const dt_fit_desc fit = {.steps = (uint64_t)steps,
                             .callbacks = {{dt_progress_show, &bar}, {tell, NULL}}};
    check(dt_trainer_fit(trainer, &fit, NULL));
    dt_ctx_destroy(ctx);
    dt_comm_destroy(comm);
    return 0;
}
