/* Balances a pole on a cart by proximal policy optimization (Schulman et al. 2017). 8 carts follow
 * the present policy for 128 steps each. Then clipped steps are made on these samples. The steps
 * are a trainer's, so devices and ranks share each batch, with the same weights on all. Physics:
 * Barto, Sutton and Anderson, "Neuronlike adaptive elements ..." (1983), without friction. An
 * episode is lost at 12 degrees or 2.4 m, and ends at 500 steps; at a mean of 475 it is learnt.
 *     build/cartpole [DEVICES [FOLDER]]      a log of the run, for dtplot
 *     build/cartpole cpu:2        build/dtrun -n 2 build/cartpole cpu        the same last line */
#define DT_IMPLEMENTATION
#include "dtrain.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CARTS = 8, STEPS = 128, ALL = CARTS * STEPS, PASSES = 10, LIMIT = 500, SEEN = 20 };
enum { SLICES = 4 }; /* at most 4 replicas; the bits depend on it */
static const float discount = 0.99f, decay = 0.95f, clip = 0.2f;
typedef struct cart {
    float at[4]; /* m, m/s, radians, radians/s */
    int steps;
} cart;

static dt_ctx *ctx;
static dt_tensor in, logits, value, action, before, advantage, target, losses[3];
static uint64_t state = 88172645463325252u;

static void stop(void *user, dt_result result, const char *text) { /* of any call that fails */
    (void)user, (void)result;
    fprintf(stderr, "cartpole: %s\n", text);
    exit(1);
}
#define PUT(program, x, a) dt_program_write(program, x, a, sizeof a)

static float uniform(void) { /* Marsaglia's xorshift */
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (float)(state >> 40) / 16777216.0f;
}

static void begin(cart *c) {
    for (int i = 0; i < 4; i++)
        c->at[i] = uniform() * 0.1f - 0.05f;
    c->steps = 0;
}

/* Pushes with 10 N for 0.02 s; whether the pole has fallen or the cart has left. */
static int push(cart *c, int right) {
    const float half = 0.5f, pole = 0.1f, both = 1.1f, tau = 0.02f;
    float *s = c->at, sine = sinf(s[2]), cosine = cosf(s[2]);
    float pull = ((right ? 10.0f : -10.0f) + pole * half * s[3] * s[3] * sine) / both;
    float turn =
        (9.8f * sine - cosine * pull) / (half * (4.0f / 3 - pole * cosine * cosine / both));
    float speed = pull - pole * half * turn * cosine / both;
    s[0] += tau * s[1], s[1] += tau * speed;
    s[2] += tau * s[3], s[3] += tau * turn;
    c->steps++;
    return fabsf(s[0]) > 2.4f || fabsf(s[2]) > 12 * 3.14159265f / 180;
}

static void build(dt_graph *g) {
    in = dt_input(g, "state", DT_F32, dt_dims(4));
    action = dt_input(g, "action", DT_I32, dt_dims());
    before = dt_input(g, "log probability", DT_F32, dt_dims());
    advantage = dt_input(g, "advantage", DT_F32, dt_dims());
    target = dt_input(g, "return", DT_F32, dt_dims(1));
    dt_tensor h = dt_tanh(dt_nn_linear(dt_tanh(dt_nn_linear(in, "p1", 64)), "p2", 64));
    logits = dt_nn_linear(h, "policy", 2);
    h = dt_tanh(dt_nn_linear(dt_tanh(dt_nn_linear(in, "v1", 64)), "v2", 64));
    value = dt_nn_linear(h, "value", 1);
    dt_tensor logs = dt_log_softmax(logits, 0);
    dt_tensor taken = dt_sum(dt_mul(logs, dt_one_hot(action, 2)), dt_dims(), false);
    dt_tensor ratio = dt_exp(dt_sub(taken, before));
    dt_tensor near = dt_mul(dt_clamp(ratio, 1 - clip, 1 + clip), advantage);
    losses[0] = dt_mean_loss(dt_neg(dt_minimum(dt_mul(ratio, advantage), near)));
    losses[1] = dt_mse(value, target);
    losses[2] = dt_mean_loss(dt_mul(dt_exp(logs), logs)); /* minus the entropy */
}

static cart carts[CARTS];
static float seen[ALL][4], logp[ALL], gain[ALL], wanted[ALL], values[STEPS + 1][CARTS];
static int32_t taken[ALL], ended[ALL]; /* 1: lost, 2: at the limit, where its value goes on */
static int scores[SEEN], episodes;

static void drive(dt_program *act) {
    float p[CARTS][2], states[CARTS][4];
    for (int t = 0; t <= STEPS; t++) {
        for (int c = 0; c < CARTS; c++)
            memcpy(states[c], carts[c].at, sizeof states[c]);
        PUT(act, in, states);
        dt_program_run(act, NULL, NULL);
        dt_program_read(act, logits, p, sizeof p);
        dt_program_read(act, value, values[t], sizeof values[t]);
        for (int c = 0, at = t * CARTS; c < CARTS && t < STEPS; c++, at++) {
            const float right = 1 / (1 + expf(p[c][0] - p[c][1]));
            memcpy(seen[at], states[c], sizeof states[c]);
            taken[at] = uniform() < right;
            logp[at] = logf(taken[at] ? right : 1 - right);
            ended[at] = push(&carts[c], taken[at]) ? 1 : carts[c].steps == LIMIT ? 2 : 0;
            if (ended[at]) {
                scores[episodes++ % SEEN] = carts[c].steps;
                begin(&carts[c]);
            }
        }
    }
    for (int at = ALL - 1, c = CARTS - 1; at >= 0; at--, c = at % CARTS) {
        const int t = at / CARTS;
        const float next = ended[at] == 1 ? 0 : values[t + !ended[at]][c];
        gain[at] = 0.1f + discount * next - values[t][c]; /* 0.1 for each step */
        if (!ended[at] && t + 1 < STEPS)
            gain[at] += discount * decay * gain[at + CARTS];
        wanted[at] = gain[at] + values[t][c];
    }
}

/* The samples are new in each call: .no_prefetch. All ranks drive the same carts with the same
 * weights, so all have the same batch. Each computes its part of it. */
static dt_trainer_desc steps_of_all(const char *devices, dt_comm *comm, const dt_optim_desc *adam) {
    return (dt_trainer_desc){
        .losses = {{losses[0]}, {losses[1]}, {losses[2], 0.01f}},
        .optim = adam,
        .data = {.rows = ALL,
                 .columns = {{.input = in, .data = seen},
                             {.input = before, .data = logp},
                             {.input = advantage, .data = gain},
                             {.input = target, .data = wanted},
                             {.input = action, .data = taken, .dtype = DT_I32}}},
        .batch = ALL,
        .seed = 1,
        .no_shuffle = true,
        .no_prefetch = true,
        .devices = devices,
        .comm = comm,
        .parallel = {.batch_slices = SLICES}};
}

static double mean_score(void) {
    double mean = 0;
    for (int k = 0; k < SEEN && episodes >= SEEN; k++)
        mean += (double)scores[k] / SEEN;
    return mean;
}

int main(int argc, char **argv) {
    dt_graph *g;
    dt_comm *comm;
    dt_trainer *train;
    dt_program *act;
    dt_run_log *log = NULL;
    double mean = 0;
    uint64_t hash;
    const dt_comm_desc job = dt_comm_desc_from_env(); /* a single process if no launcher started
                                                       * it */
    const dt_result joined = dt_comm_create(&job, &comm);
    if (joined)
        stop(NULL, joined, dt_comm_error(comm));
    dt_ctx_create(&(dt_ctx_desc){.on_error = {stop, NULL}}, &ctx); /* small: one thread */
    dt_graph_create(ctx, &g);
    build(g);
    const dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 1e-3, .clip_norm = 0.5};
    const dt_trainer_desc steps = steps_of_all(argc > 1 ? argv[1] : "cpu", comm, &adam);
    dt_trainer_create(g, &steps, &train);
    dt_store *store = dt_trainer_store(train); /* the first replica's: it drives */
    dt_program_create(store, &(dt_program_desc){.outputs = {logits, value}, .batch = CARTS}, &act);
    if (argc > 2 && dt_comm_rank(comm) == 0)
        dt_run_log_create(ctx, &(dt_run_log_desc){.folder = argv[2]}, &log);
    for (int c = 0; c < CARTS; c++)
        begin(&carts[c]);
    for (uint64_t i = 1; i <= 400 && mean < 475; i++) {
        drive(act);
        for (int k = 0; k < PASSES; k++)
            dt_trainer_step(train, NULL);
        mean = mean_score();
        if (dt_comm_rank(comm) == 0)
            printf("%6d steps, %4d episodes, of %.1f steps\n", (int)i * ALL, episodes, mean);
        if (log)
            dt_run_log_scalar(log, "steps of an episode", i * ALL, mean);
    }
    dt_store_hash(store, &hash);
    if (dt_comm_rank(comm) == 0)
        fprintf(stderr, "weights %016llx\n", (unsigned long long)hash);
    dt_run_log_destroy(log);
    dt_ctx_destroy(ctx);
    dt_comm_destroy(comm);
    return mean < 475;
}
