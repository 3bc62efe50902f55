/* An application that is hard on what it includes: <complex.h> before it. Its arguments choose
 * flush-to-zero, a locale with a decimal comma, a thread with a stack of 64 KiB, two threads. It
 * trains a small network on the CPU for 30 steps and prints the hash of everything that training
 * changed. machines.sh builds it with all kinds of flags: the hash must be the same each time.
 *
 *     hostile_host [ftz] [comma] [stack] [threads N]      exit 2: this system has no such locale
 */
#include <complex.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined __x86_64__
#include <immintrin.h>
#endif

#define DT_IMPLEMENTATION
#include "dtrain.h"

#define STEPS 30
#define BATCH 33 /* odd: kernels meet their tails */
#define IN 37
#define CLASSES 7
#define STACK_BYTES (64 * 1024)

static int threads = 1;
static dt_ctx *ctx;
static int failed;

/* The host's own: I must still be the imaginary unit after the implementation. */
static double host_uses_complex(void) {
    double complex z = 3 + 4 * I;
    return creal(z * conj(z));
}

static bool ok(dt_result result, const char *what) {
    if (result == DT_OK)
        return true;
    fprintf(stderr, "%s: %s\n", what, ctx ? dt_ctx_error(ctx) : dt_result_text(result));
    failed = 1;
    return false;
}

/* Inputs only by integers, so that the host's flags cannot reach them. */
static void fill(float *x, int32_t *t, uint32_t step) {
    uint32_t state = step * 2654435761u + 12345u;
    for (int i = 0; i < BATCH * IN; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)((int32_t)(state >> 16) - 32768) / 32768.0f;
    }
    for (int i = 0; i < BATCH; i++) {
        state = state * 1664525u + 1013904223u;
        t[i] = (int32_t)((state >> 16) % CLASSES);
    }
}

typedef struct net {
    dt_tensor x, t, loss, small;
} net;

/* `small` keeps denormals alive: its values, gradients and moments are below 1.2e-38. Code that
 * flushes them to zero changes the hash. */
static net make_net(dt_graph *g) {
    net n = {.x = dt_input(g, "x", DT_F32, dt_dims(IN)), .t = dt_input(g, "t", DT_I32, dt_dims())};
    dt_tensor h = dt_dropout(dt_relu(dt_nn_linear(n.x, "fc1", 61)), 0.25f);
    h = dt_dropout(dt_gelu(dt_nn_linear(h, "fc2", 45)), 0.1f);
    n.loss = dt_cross_entropy(dt_nn_linear(h, "fc3", CLASSES), n.t, NULL);
    dt_init init = {.kind = DT_INIT_UNIFORM, .a = 2e-39f, .b = 9e-39f};
    n.small = dt_mean_loss(dt_param(g, "small", dt_dims(19), init));
    return n;
}

static void train(dt_program *p, net n) {
    static float x[BATCH * IN];
    static int32_t t[BATCH];
    for (uint32_t step = 0; step < STEPS && !failed; step++) {
        fill(x, t, step);
        if (ok(dt_program_write(p, n.x, x, sizeof x), "write x") &&
            ok(dt_program_write(p, n.t, t, sizeof t), "write t"))
            ok(dt_program_run(p, &(dt_step_desc){.seed = 5}, NULL), "run");
    }
}

static void *host_main(void *arg) {
    dt_graph *graph;
    dt_store *store = NULL;
    dt_program *program;
    uint64_t hash = 0;
    (void)arg;
    if (!ok(dt_ctx_create(&(dt_ctx_desc){.threads = threads, .no_vulkan = true}, &ctx), "ctx") ||
        !ok(dt_graph_create(ctx, &graph), "graph"))
        return NULL;
    net n = make_net(graph);
    /* Only a group's rate reaches `small`: far too low to lift it out of the denormals. */
    dt_optim_desc optim = {.kind = DT_OPTIM_SGD,
                           .lr = 0.05,
                           .momentum = 0.9,
                           .clip_norm = 1.5,
                           .groups = {{.params = "small", .lr_scale = 1e-39}}};
    dt_program_desc desc = {.losses = {{n.loss, 0}, {n.small, 0}}, .batch = BATCH, .optim = &optim};
    if (ok(dt_store_create(graph, &(dt_store_desc){.device = "cpu", .seed = 3}, &store), "store") &&
        ok(dt_program_create(store, &desc, &program), "program")) {
        train(program, n);
        ok(dt_store_state_hash(store, &hash), "hash");
        printf("%s %016llx\n", dt_store_device(store)->driver, (unsigned long long)hash);
    }
    dt_store_destroy(store);
    dt_graph_destroy(graph);
    dt_ctx_destroy(ctx);
    return NULL;
}

static void run_on_small_stack(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, STACK_BYTES) ||
        pthread_create(&thread, &attributes, host_main, NULL)) {
        fprintf(stderr, "no thread with a stack of %d bytes\n", STACK_BYTES);
        failed = 1;
        return;
    }
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    bool stack = false, ftz = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "comma") && !setlocale(LC_ALL, "de_DE.UTF-8"))
            return 2;
        if (!strcmp(argv[i], "threads") && i + 1 < argc)
            threads = atoi(argv[++i]);
        stack |= !strcmp(argv[i], "stack");
        ftz |= !strcmp(argv[i], "ftz");
    }
#if defined __x86_64__
    unsigned control = _mm_getcsr();
    if (ftz)
        _mm_setcsr(control | 0x8040); /* flush to zero, denormals are zero */
    control = _mm_getcsr();
#endif
    if (stack)
        run_on_small_stack();
    else
        host_main(NULL);
#if defined __x86_64__
    if ((_mm_getcsr() & ~0x3Fu) != (control & ~0x3Fu)) { /* all but the sticky flags */
        fprintf(stderr, "the host's floating-point control is not as it was\n");
        failed = 1;
    }
#endif
    return failed || host_uses_complex() != 25;
}
