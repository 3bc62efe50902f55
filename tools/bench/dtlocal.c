/* ./build.sh bench local and bench served run this on each rank. It is Fashion-MNIST's MLP. With
 * DTLOCAL_CNN set it is a small convolutional network, with DTLOCAL_TEXT a GPT over the bytes of
 * that file. It trains for some seconds: synchronously, by rounds of local steps, or with rank 0 as
 * the parameter server. Rank 0 writes a line of JSON after each exchange among all ranks. It has
 * seconds, step, and the loss of the samples since the line before; at the end the test set's
 * accuracy (of a text its last tenth). Each rank that computes sleeps for DTLOCAL_SLEEP_MS before
 * each step, the last one DTLOCAL_SLOW times as long: a slow rank.
 *
 * usage: dtlocal FOLDER SECONDS sync|local [STEPS [none|bf16|int8|topk [GOSSIP]]]
 *        dtlocal FOLDER SECONDS server STALENESS BATCH_SLICES */
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static dt_ctx *ctx;
static dt_comm *comm;

static void need(dt_result result, const char *what) {
    if (!result)
        return;
    fprintf(stderr, "dtlocal: %s: %s\n", what, ctx ? dt_ctx_error(ctx) : dt_comm_error(comm));
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static dt_dataset pictures(const char *folder, const char *set, dt_array file[2], dt_tensor x,
                           dt_tensor t) {
    char path[1024];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s-%s-ubyte", folder, set,
                 i ? "labels-idx1" : "images-idx3");
        need(dt_idx_load(ctx, path, &file[i]), path);
    }
    return (dt_dataset){.rows = file[1].bytes,
                        .columns = {{x, file[0].data, DT_U8, 1 / 255.0f, 0},
                                    {.input = t, .data = file[1].data, .dtype = DT_U8}}};
}

/* ---- a text */

enum { BYTES = 256, CONTEXT = 64, WIDTH = 64, LAYERS = 4, HEADS = 4 };

/* Window `row`, which begins elsewhere in each epoch; each byte's target is the next one. */
static dt_result window(void *from, const dt_sample *s, void *const *values) {
    const unsigned char *at = (const unsigned char *)from + s->row * CONTEXT;
    at += s->epoch * 7919 % CONTEXT;
    for (int i = 0; i < 2 * CONTEXT; i++)
        ((int32_t *)values[i % 2])[i / 2] = at[i / 2 + i % 2];
    return DT_OK;
}

/* The first nine tenths, or the rest; one window is for other beginnings. */
static dt_dataset text(const char *path, bool rest, dt_tensor x, dt_tensor t) {
    static unsigned char bytes[1 << 22];
    FILE *f = fopen(path, "rb");
    const size_t read = f ? fread(bytes, 1, sizeof bytes, f) : 0, learned = read / 10 * 9;
    const size_t count = rest ? read - learned : learned;
    need(count > 3 * CONTEXT ? DT_OK : DT_ERROR_IO, path);
    fclose(f);
    return (dt_dataset){(count - 1) / CONTEXT - 1,
                        {{.input = x}, {.input = t}},
                        window,
                        bytes + (rest ? learned : 0)};
}

static dt_tensor gpt(dt_graph *g, dt_tensor x) {
    const dt_init normal = {DT_INIT_NORMAL, 0, 0.02f};
    const dt_attention_layer_desc causal = {.attention = {.causal = true}};
    dt_tensor table = dt_param(g, "wte.weight", dt_dims(BYTES, WIDTH), normal), y;
    dt_tensor places = dt_param(g, "wpe.weight", dt_dims(CONTEXT, WIDTH), normal);
    dt_tensor h = dt_add(dt_embedding(table, x), places);
    for (int i = 0; i < LAYERS; i++) {
        char name[32];
        snprintf(name, sizeof name, "h.%d", i);
        dt_scope_push(g, name);
        y = dt_nn_layer_norm(h, "ln_1", 1);
        h = dt_add(h, dt_nn_multi_head_attention(y, y, "attn", HEADS, &causal));
        y = dt_gelu(dt_nn_linear(dt_nn_layer_norm(h, "ln_2", 1), "mlp.c_fc", 4 * WIDTH));
        h = dt_add(h, dt_nn_linear(y, "mlp.c_proj", WIDTH));
        dt_scope_pop(g);
    }
    return dt_linear(dt_nn_layer_norm(h, "ln_f", 1), table, (dt_tensor){0});
}

/* ---- steps */

/* All ranks end after the same step: when rank 0's clock says so. */
static bool over(double start, double seconds) {
    int32_t ends = now() - start >= seconds;
    need(dt_comm_broadcast(comm, &ends, 1, DT_I32, 0), "the end");
    return ends;
}

static int number_of(const char *variable, int other) {
    const char *text = getenv(variable);
    return text ? atoi(text) : other;
}

/* In place of what a larger model, or another machine, would compute. */
static void slow_down(const dt_comm_desc *job) {
    const long ms = number_of("DTLOCAL_SLEEP_MS", 0) *
                    (job->rank == job->world_size - 1 ? number_of("DTLOCAL_SLOW", 1) : 1L);
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static void train(dt_trainer *trainer, const dt_comm_desc *job, bool local, double seconds) {
    const bool tells = dt_comm_rank(comm) == 0;
    const double start = now();
    dt_train_report r;
    for (bool ends = false; !ends;) {
        slow_down(job);
        need(dt_trainer_step(trainer, &r), "a step");
        if (local && !r.round_ended)
            continue;
        ends = over(start, seconds);
        if (tells)
            printf("{\"seconds\": %.3f, \"step\": %.0f, \"samples\": %.0f, \"loss\": %.5f}\n",
                   now() - start, (double)r.step, (double)r.samples, r.loss);
    }
}

/* ---- parameter servers */

static void serve(dt_graph *graph, const dt_comm_desc *job, dt_trainer_desc d,
                  const dt_dataset *test, double seconds, char **argv) {
    dt_server *server;
    dt_server_info info;
    dt_train_report r;
    uint64_t before = 0;
    d.parallel.batch_slices = atoi(argv[5]);
    const dt_server_desc desc = {
        .trainer = d, .listen = job->rendezvous, .security = job, .staleness = atoi(argv[4])};
    need(dt_server_create(graph, &desc, &server), "a server");
    do
        need(dt_server_run(server, 10), "serving");
    while (dt_server_get_info(server, &info), info.workers < job->world_size - 1);
    for (const double start = now(); now() - start < seconds;) {
        need(dt_server_run(server, 20), "serving");
        dt_server_get_info(server, &info);
        if (info.step > before)
            printf("{\"seconds\": %.3f, \"step\": %.0f, \"samples\": %.0f, \"loss\": %.5f, "
                   "\"stalest\": %.0f}\n",
                   now() - start, (double)info.step, d.batch * (double)(info.step - before),
                   info.loss, (double)info.max_staleness);
        before = info.step;
    }
    need(dt_trainer_evaluate(dt_server_trainer(server), test, 0, &r), "the test");
    printf("{\"test_accuracy\": %.4f, \"test_loss\": %.4f}\n", r.metric[0], r.loss);
}

/* Until the server has gone. */
static void work(dt_graph *graph, const dt_comm_desc *job, dt_trainer_desc d) {
    dt_trainer *trainer;
    d.mode = DT_TRAIN_SERVER;
    d.server = (dt_worker_desc){.addresses = job->rendezvous, .security = job};
    need(dt_trainer_create(graph, &d, &trainer), "a worker");
    do
        slow_down(job);
    while (!dt_trainer_step(trainer, NULL));
}

/* ---- all ways */

static dt_tensor model(dt_graph *graph, dt_tensor x) {
    if (getenv("DTLOCAL_TEXT"))
        return gpt(graph, x);
    if (!getenv("DTLOCAL_CNN"))
        return dt_nn_linear(dt_relu(dt_nn_linear(dt_flatten(x), "fc1", 128)), "fc2", 10);
    const dt_pool_desc half = {.kernel = {2, 2}};
    dt_tensor h = dt_reshape(x, dt_dims(1, 28, 28));
    h = dt_max_pool2d(dt_relu(dt_nn_conv2d(h, "conv1", 8, 3, NULL)), &half);
    h = dt_max_pool2d(dt_relu(dt_nn_conv2d(h, "conv2", 16, 3, NULL)), &half);
    return dt_nn_linear(dt_flatten(h), "fc", 10);
}

int main(int argc, char **argv) {
    static const char *const kinds[] = {"none", "bf16", "int8", "topk"};
    dt_graph *graph;
    dt_trainer *trainer;
    dt_array file[4];
    dt_train_report r;
    if (argc < 4)
        return 2;
    const dt_comm_desc job = dt_comm_desc_from_env();
    const bool served = !strcmp(argv[3], "server") && argc > 5;
    if (!served)
        need(dt_comm_create(&job, &comm), "joining");
    need(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true, .threads = 1}, &ctx), "a context");
    need(dt_graph_create(ctx, &graph), "a graph");
    const char *of_text = getenv("DTLOCAL_TEXT");
    dt_tensor x = of_text ? dt_input(graph, "x", DT_I32, dt_dims(CONTEXT))
                          : dt_input(graph, "x", DT_F32, dt_dims(28, 28));
    dt_tensor t = dt_input(graph, "t", DT_I32, of_text ? dt_dims(CONTEXT) : dt_dims());
    dt_tensor y = model(graph, x);
    const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 1e-3};
    dt_trainer_desc d = {.loss = dt_cross_entropy(y, t, NULL),
                         .metrics = {dt_accuracy(y, t)},
                         .batch = of_text ? 24 : 64,
                         .optim = &adam,
                         .data = of_text ? text(of_text, false, x, t)
                                         : pictures(argv[1], "train", file, x, t),
                         .devices = "cpu",
                         .comm = comm};
    const dt_dataset test =
        of_text ? text(of_text, true, x, t) : pictures(argv[1], "t10k", file + 2, x, t);
    const bool local = !strcmp(argv[3], "local");
    if (local) {
        d.mode = DT_TRAIN_LOCAL;
        d.local = (dt_local_desc){.steps = argc > 4 ? atoi(argv[4]) : 0,
                                  .gossip = argc > 6 ? atoi(argv[6]) : 0};
    }
    for (int i = 0; !served && argc > 5 && i < 4; i++)
        d.parallel.compress = strcmp(argv[5], kinds[i]) ? d.parallel.compress : (dt_compress)i;
    if (served) {
        if (job.rank)
            work(graph, &job, d);
        else
            serve(graph, &job, d, &test, atof(argv[2]), argv);
        dt_ctx_destroy(ctx);
        return 0;
    }
    need(dt_trainer_create(graph, &d, &trainer), "a trainer");
    train(trainer, &job, local, atof(argv[2]));
    need(dt_trainer_evaluate(trainer, &test, 0, &r), "the test");
    if (dt_comm_rank(comm) == 0)
        printf("{\"test_accuracy\": %.4f, \"test_loss\": %.4f}\n", r.metric[0], r.loss);
    dt_ctx_destroy(ctx);
    dt_comm_destroy(comm);
    return 0;
}
