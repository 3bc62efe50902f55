/* The awkward programs. Each is built on the public API, and trained for 20 steps on each backend.
 * Losses are held against PyTorch's recorded ones (1e-5 relative), and so are final weights. And
 * the promises about a step that does not end. Cancelled or with a NaN, it leaves the store's bits
 * as they were. */
#include "golden/golden.h"

#define WEIGHTS_NEAR 1e-5 /* of a tensor's largest weight; float32's own drift is below 7e-7 */

/* A linear layer's two parameters, for use in more than one place. */
typedef struct layer {
    dt_tensor w, b;
} layer;

static layer make_layer(dt_graph *graph, const char *name, int64_t in, int64_t out) {
    char text[64];
    layer l;
    snprintf(text, sizeof text, "%s.weight", name);
    l.w = dt_param(graph, text, dt_dims(out, in), (dt_init){0});
    snprintf(text, sizeof text, "%s.bias", name);
    l.b = dt_param(graph, text, dt_dims(out), (dt_init){0});
    return l;
}

static dt_tensor apply(layer l, dt_tensor x) {
    return dt_linear(x, l.w, l.b);
}

/* A program's inputs by the names of their recorded arrays. */
typedef struct feed {
    const char *key;
    dt_tensor input;
} feed;

static bool feed_all(golden *g, dt_program *program, const feed *feeds, int count, int step) {
    for (int i = 0; i < count; i++)
        if (!golden_feed(g, program, feeds[i].input, feeds[i].key, step))
            return false;
    return true;
}

/* One step whose loss is recorded under `key`. */
static bool step_once(golden *g, dt_program *program, const feed *feeds, int count, int step,
                      const char *key, dt_report *report) {
    return feed_all(g, program, feeds, count, step) &&
           OK(g, dt_program_run(program, NULL, report)) && golden_loss(g, key, step, report->loss);
}

static void train_all(golden *g, dt_program *program, const feed *feeds, int count) {
    dt_report report;
    for (int step = 0; step < GOLDEN_STEPS; step++)
        if (!step_once(g, program, feeds, count, step, "loss", &report))
            return;
    golden_final(g, "", WEIGHTS_NEAR, false);
}

/* ---- One program, one loss */

typedef struct tied_net {
    dt_tensor x, t, loss;
} tied_net;

static tied_net make_tied(dt_graph *graph) {
    tied_net n = {
        dt_input(graph, "x", DT_F32, dt_dims(8)), dt_input(graph, "t", DT_I32, dt_dims()), {0}};
    layer block = make_layer(graph, "block", 8, 8);
    dt_tensor h = dt_relu(apply(block, dt_relu(apply(block, n.x))));
    dt_tensor y = dt_nn_linear(dt_add(n.x, h), "head", 5);
    n.loss = dt_cross_entropy(y, n.t, NULL);
    return n;
}

static const dt_optim_desc adam_1e2 = {.kind = DT_OPTIM_ADAM, .lr = 1e-2f};

GOLDEN(linear_used_twice_in_a_residual_block_trains_as_in_pytorch, "tied") {
    tied_net n = make_tied(g->graph);
    if (!golden_store(g))
        return;
    dt_program *p =
        golden_program(g, (dt_program_desc){.loss = n.loss, .batch = 6, .optim = &adam_1e2});
    if (p)
        train_all(g, p, (feed[]){{"x", n.x}, {"t", n.t}}, 2);
}

GOLDEN(frozen_layer_and_biases_without_decay_train_as_in_pytorch, "frozen") {
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(12));
    dt_tensor t = dt_input(g->graph, "t", DT_F32, dt_dims(5));
    layer first = make_layer(g->graph, "fc1", 12, 9);
    first = (layer){dt_freeze(first.w), dt_freeze(first.b)};
    dt_tensor h = dt_tanh(dt_nn_linear(dt_tanh(apply(first, x)), "fc2", 7));
    dt_tensor loss = dt_mse(dt_nn_linear(h, "fc3", 5), t);
    if (!golden_store(g))
        return;
    dt_optim_desc adamw = {.lr = 1e-2f,
                           .weight_decay = 0.1f,
                           .groups = {{.params = "*.bias", .weight_decay = DT_ZERO}}};
    dt_program *p = golden_program(g, (dt_program_desc){.loss = loss, .batch = 8, .optim = &adamw});
    float before[12 * 9], after[12 * 9];
    int frozen = dt_store_find(g->store, "fc1.weight");
    OK(g, dt_store_read(g->store, frozen, DT_VALUE_PARAM, before, sizeof before));
    if (!p)
        return;
    train_all(g, p, (feed[]){{"x", x}, {"t", t}}, 2);
    OK(g, dt_store_read(g->store, frozen, DT_VALUE_PARAM, after, sizeof after));
    CHECK(!memcmp(before, after, sizeof before));
}

GOLDEN(penalty_on_the_gradient_norm_trains_as_in_pytorch, "penalty") {
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(6));
    dt_tensor h = dt_gelu(dt_nn_linear(dt_tanh(dt_nn_linear(x, "fc1", 9)), "fc2", 7));
    dt_tensor y = dt_nn_linear_with(h, "fc3", 1, &(dt_linear_desc){.no_bias = true});
    dt_tensor norm = dt_sqrt(dt_sum(dt_square(dt_gradient(y, x)), dt_dims(0), false));
    dt_tensor loss = dt_mean_loss(dt_square(dt_affine(norm, 1, -1)));
    if (!golden_store(g))
        return;
    dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 5e-3f};
    dt_program *p = golden_program(g, (dt_program_desc){.loss = loss, .batch = 5, .optim = &adam});
    if (p)
        train_all(g, p, (feed[]){{"x", x}}, 1);
}

GOLDEN(penalty_on_the_gradient_of_a_loss_trains_as_in_pytorch, "penalty_loss") {
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(6));
    dt_tensor t = dt_input(g->graph, "t", DT_I32, dt_dims());
    dt_tensor h = dt_sigmoid(dt_nn_linear(dt_silu(dt_nn_linear(x, "fc1", 9)), "fc2", 7));
    dt_tensor loss = dt_cross_entropy(dt_nn_linear(h, "fc3", 4), t, NULL);
    dt_tensor penalty = dt_mean_loss(dt_square(dt_gradient(loss, x)));
    if (!golden_store(g))
        return;
    dt_program *p = golden_program(
        g,
        (dt_program_desc){.losses = {{loss, 1}, {penalty, 0.1f}}, .batch = 6, .optim = &adam_1e2});
    if (p)
        train_all(g, p, (feed[]){{"x", x}, {"t", t}}, 2);
}

/* ---- Several losses, several programs */

GOLDEN(two_losses_with_their_own_denominators_train_as_in_pytorch, "two_losses") {
    dt_tensor xa = dt_input(g->graph, "xa", DT_F32, dt_dims(6));
    dt_tensor xb = dt_input(g->graph, "xb", DT_F32, dt_dims(5));
    dt_tensor ta = dt_input(g->graph, "ta", DT_I32, dt_dims());
    dt_tensor tb = dt_input(g->graph, "tb", DT_F32, dt_dims(3));
    dt_tensor weights = dt_input_shared(g->graph, "class_weights", DT_F32, dt_dims(4));
    dt_tensor h = dt_relu(dt_nn_linear(dt_concat((dt_tensor[]){xa, xb}, 2, 0), "trunk", 9));
    dt_cross_entropy_desc desc = {.label_smoothing = 0.1f, .class_weights = weights};
    dt_tensor a = dt_cross_entropy(dt_nn_linear(h, "head_a", 4), ta, &desc);
    dt_tensor b = dt_mse(dt_nn_linear(h, "head_b", 3), tb);
    if (!golden_store(g))
        return;
    dt_optim_desc sgd = {.kind = DT_OPTIM_SGD,
                         .lr = 0.05f,
                         .momentum = 0.9f,
                         .nesterov = true,
                         .weight_decay = 1e-3f};
    dt_program *p = golden_program(
        g, (dt_program_desc){.losses = {{a, 1}, {b, 0.5f}}, .batch = 8, .optim = &sgd});
    const golden_array *w = golden_get(g, "class_weights");
    if (!p || !w || !OK(g, dt_program_write(p, weights, w->f, w->count * 4)))
        return;
    feed feeds[] = {{"xa", xa}, {"xb", xb}, {"ta", ta}, {"tb", tb}};
    for (int step = 0; step < GOLDEN_STEPS; step++) {
        dt_report r;
        if (!step_once(g, p, feeds, 4, step, "loss", &r))
            return;
        golden_loss(g, "loss_a", step, r.loss_sum[0] / r.loss_weight[0]);
        golden_loss(g, "loss_b", step, r.loss_sum[1] / r.loss_weight[1]);
    }
    golden_final(g, "", WEIGHTS_NEAR, false);
}

GOLDEN(gan_of_two_programs_trains_as_in_pytorch, "gan") {
    dt_tensor real = dt_input(g->graph, "real", DT_F32, dt_dims(6));
    dt_tensor z = dt_input(g->graph, "z", DT_F32, dt_dims(4));
    dt_tensor one = dt_input(g->graph, "one", DT_F32, dt_dims(1));
    layer d1 = make_layer(g->graph, "disc.fc1", 6, 8), d2 = make_layer(g->graph, "disc.fc2", 8, 1);
    dt_tensor fake = dt_tanh(dt_nn_linear(dt_relu(dt_nn_linear(z, "gen.fc1", 8)), "gen.fc2", 6));
    dt_tensor on_real = apply(d2, dt_leaky_relu(apply(d1, real), 0.2f));
    dt_tensor on_fake = apply(d2, dt_leaky_relu(apply(d1, fake), 0.2f));
    dt_tensor real_loss = dt_mean_loss(dt_square(dt_affine(on_real, 1, -1)));
    dt_tensor fake_loss = dt_mean_loss(dt_square(on_fake));
    dt_tensor gen_loss = dt_mse(on_fake, one);
    if (!golden_store(g))
        return;
    dt_optim_desc adam = {.kind = DT_OPTIM_ADAM, .lr = 2e-3f, .beta1 = 0.5f};
    dt_program *disc =
        golden_program(g, (dt_program_desc){.label = "disc",
                                            .losses = {{real_loss, 1}, {fake_loss, 1}},
                                            .batch = 7,
                                            .optim = &adam,
                                            .params = "disc.*"});
    dt_program *gen = golden_program(
        g, (dt_program_desc){
               .label = "gen", .loss = gen_loss, .batch = 7, .optim = &adam, .params = "gen.*"});
    const float ones[7] = {1, 1, 1, 1, 1, 1, 1};
    if (!disc || !gen || !OK(g, dt_program_write(gen, one, ones, sizeof ones)))
        return;
    for (int step = 0; step < GOLDEN_STEPS; step++) {
        dt_report r;
        if (!step_once(g, disc, (feed[]){{"real", real}, {"zd", z}}, 2, step, "loss_d", &r) ||
            !step_once(g, gen, (feed[]){{"zg", z}}, 1, step, "loss_g", &r))
            return;
    }
    golden_final(g, "", WEIGHTS_NEAR, false);
}

GOLDEN(predict_at_batch_1_between_training_steps_sees_the_new_weights, "predict") {
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(6));
    dt_tensor t = dt_input(g->graph, "t", DT_I32, dt_dims());
    dt_tensor y = dt_nn_linear(dt_silu(dt_nn_linear(x, "fc1", 10)), "fc2", 4);
    dt_tensor loss = dt_cross_entropy(y, t, NULL);
    if (!golden_store(g))
        return;
    dt_program *train =
        golden_program(g, (dt_program_desc){.loss = loss, .batch = 9, .optim = &adam_1e2});
    dt_program *predict = golden_program(g, (dt_program_desc){.outputs = {y}, .batch = 1});
    const golden_array *wanted = golden_get(g, "prediction");
    if (!train || !predict || !wanted)
        return;
    for (int step = 0; step < GOLDEN_STEPS; step++) {
        dt_report r;
        float got[4] = {0};
        if (!step_once(g, train, (feed[]){{"x", x}, {"t", t}}, 2, step, "loss", &r) ||
            !golden_feed(g, predict, x, "probe", step) ||
            !OK(g, dt_program_run(predict, NULL, NULL)) ||
            !OK(g, dt_program_read(predict, y, got, sizeof got)))
            return;
        golden_same(wanted, (size_t)step * 4, got, 4, 1e-5);
    }
    golden_final(g, "", WEIGHTS_NEAR, false);
}

/* ---- Micro-batches */

typedef struct micro_net {
    dt_tensor x, t;
    dt_program *parts[3];
} micro_net;

static const int micro_rows[3] = {2, 7, 3}, micro_first[3] = {0, 2, 9};

/* Writes all parts and adds up the weight of the whole batch, then runs them. */
static bool micro_step(golden *g, const micro_net *n, int step) {
    double weight = 0, sum = 0;
    dt_report r = {0};
    for (int k = 0; k < 3; k++)
        if (!golden_feed_rows(g, n->parts[k], n->x, "x", step, micro_first[k], micro_rows[k], 12) ||
            !golden_feed_rows(g, n->parts[k], n->t, "t", step, micro_first[k], micro_rows[k], 12) ||
            !OK(g, dt_program_add_loss_weights(n->parts[k], &weight)))
            return false;
    for (uint32_t k = 0; k < 3; k++) {
        dt_step_desc desc = {.micro_batch = k,
                             .micro_batches = 3,
                             .loss_weights = &weight,
                             .first_row = (uint32_t)micro_first[k]};
        if (!OK(g, dt_program_run(n->parts[k], &desc, &r)))
            return false;
        sum += r.loss_sum[0]; /* each part reports its own rows */
    }
    return golden_loss(g, "loss", step, sum / weight) &&
           golden_loss(g, "norm", step, r.gradient_norm);
}

GOLDEN(three_unequal_micro_batches_are_one_batch, "micro") {
    micro_net n = {.x = dt_input(g->graph, "x", DT_F32, dt_dims(7)),
                   .t = dt_input(g->graph, "t", DT_I32, dt_dims())};
    dt_tensor y = dt_nn_linear(dt_relu(dt_nn_linear(n.x, "fc1", 10)), "fc2", 5);
    dt_tensor loss = dt_cross_entropy(y, n.t, NULL);
    if (!golden_store(g))
        return;
    dt_optim_desc adamw = {.lr = 1e-2f, .clip_norm = 0.5f};
    for (int k = 0; k < 3; k++) {
        n.parts[k] = golden_program(
            g, (dt_program_desc){
                   .loss = loss, .batch = micro_rows[k], .optim = &adamw, .accumulate = true});
        if (!n.parts[k])
            return;
    }
    for (int step = 0; step < GOLDEN_STEPS; step++)
        if (!micro_step(g, &n, step))
            return;
    golden_final(g, "", WEIGHTS_NEAR, false);
}

/* ---- Steps cut into segments */

/* Goes on to the next boundary between two segments, or the end. */
static bool advance(const golden *g, dt_program *program, dt_step_state *state) {
    do {
        if (!OK(g, dt_program_advance(program, state)))
            return false;
    } while (*state == DT_STEP_RUNNING);
    return true;
}

static bool finish(const golden *g, dt_program *program, dt_report *report) {
    dt_step_state state = DT_STEP_READY;
    while (state != DT_STEP_DONE)
        if (!advance(g, program, &state))
            return false;
    return OK(g, dt_program_end(program, report));
}

static bool host_gradient_step(golden *g, dt_program *p, dt_tensor x, dt_tensor y, int step) {
    const golden_array *wanted = golden_get(g, "y");
    size_t count;
    const void *dy = golden_step(g, "dy", step, &count);
    float got[4 * 6] = {0};
    dt_step_state state;
    if (!wanted || !golden_feed(g, p, x, "x", step) || !OK(g, dt_program_begin(p, NULL)) ||
        !advance(g, p, &state) || !OK(g, dt_program_read(p, y, got, sizeof got)) ||
        !OK(g, dt_program_write_gradient(p, y, dy, 4 * count)) || !finish(g, p, NULL))
        return false;
    golden_same(wanted, (size_t)step * count, got, count, 1e-5);
    return true;
}

GOLDEN(gradient_given_by_the_host_trains_as_in_pytorch, "host_gradient") {
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(5));
    dt_tensor y = dt_nn_linear(dt_tanh(dt_nn_linear(x, "fc1", 8)), "fc2", 6);
    if (!golden_store(g))
        return;
    dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 0.05f, .momentum = 0.9f, .dampening = 0.1f};
    dt_program *p = golden_program(
        g, (dt_program_desc){.outputs = {y}, .host_gradients = {y}, .batch = 4, .optim = &sgd});
    for (int step = 0; p && step < GOLDEN_STEPS; step++)
        if (!host_gradient_step(g, p, x, y, step))
            return;
    if (p)
        golden_final(g, "", WEIGHTS_NEAR, false);
}

static uint64_t state_hash(const golden *g) {
    uint64_t hash = 0;
    OK(g, dt_store_state_hash(g->store, &hash));
    return hash;
}

/* Begins a step, does `segments` of it and cancels. */
static bool cancel_after(const golden *g, dt_program *p, int segments) {
    uint64_t before = state_hash(g);
    dt_step_state state = DT_STEP_READY;
    if (!OK(g, dt_program_begin(p, NULL)))
        return false;
    for (int i = 0; i < segments; i++)
        if (!advance(g, p, &state))
            return false;
    CHECK(state == DT_STEP_READY);
    bool cancelled = OK(g, dt_program_cancel(p, NULL));
    CHECK(state_hash(g) == before);
    return cancelled;
}

/* At each boundary of each step, and the run still is PyTorch's: no moment and no count moved. */
GOLDEN(step_cancelled_between_any_two_segments_leaves_the_store_as_it_was, "tied") {
    tied_net n = make_tied(g->graph);
    if (!golden_store(g))
        return;
    dt_program *p = golden_program(
        g, (dt_program_desc){.loss = n.loss, .batch = 6, .optim = &adam_1e2, .bucket_bytes = 64});
    if (!p)
        return;
    feed feeds[] = {{"x", n.x}, {"t", n.t}};
    dt_program_info info;
    dt_program_get_info(p, &info);
    CHECK(info.segments >= 4); /* forward, at least two of backward, commit */
    for (int step = 0; step < GOLDEN_STEPS; step++) {
        dt_report r;
        uint64_t before = state_hash(g);
        for (int cut = 0; cut < info.segments; cut++)
            if (!feed_all(g, p, feeds, 2, step) || !cancel_after(g, p, cut))
                return;
        if (!OK(g, dt_program_begin(p, NULL)) || !finish(g, p, &r))
            return;
        golden_loss(g, "loss", step, r.loss);
        CHECK(state_hash(g) != before);
    }
    golden_final(g, "", WEIGHTS_NEAR, false);
}

/* ---- NaN and infinity */

typedef struct log_net {
    dt_tensor x;
    dt_program *program;
} log_net;

/* loss = mean(log(0.5 (x0 + x1 + x2))), so that the sign of x decides. */
static log_net make_log(golden *g) {
    log_net n = {.x = dt_input(g->graph, "x", DT_F32, dt_dims(3))};
    dt_tensor w = dt_param(g->graph, "w", dt_dims(1, 3), (dt_init){DT_INIT_CONSTANT, 0.5f, 0});
    dt_tensor loss = dt_mean_loss(dt_log(dt_linear(n.x, w, (dt_tensor){0})));
    if (golden_store(g))
        n.program =
            golden_program(g, (dt_program_desc){.loss = loss, .batch = 2, .optim = &adam_1e2});
    return n;
}

static dt_result run_log(golden *g, const log_net *n, float last, dt_report *report) {
    const float x[6] = {1, 2, 3, 1, 1, last};
    OK(g, dt_program_write(n->program, n->x, x, sizeof x));
    return dt_program_run(n->program, NULL, report);
}

GOLDEN(nan_is_named_by_op_and_leaves_the_store_as_it_was, NULL) {
    log_net n = make_log(g);
    dt_report r = {0};
    if (!n.program || !OK(g, run_log(g, &n, 1, &r)))
        return;
    CHECK(!r.skipped && !r.fault_op && r.step == 1);
    uint64_t before = state_hash(g);
    const float bad[] = {-5, -2, NAN, INFINITY}; /* log of -1.5, of 0, and what came in as wrong */
    for (int i = 0; i < 4; i++) {
        CHECK(run_log(g, &n, bad[i], &r) == DT_ERROR_NUMERIC);
        CHECK(r.skipped && r.fault_op);
        if (i < 2) {
            CHECK_CONTAINS(r.fault_op ? r.fault_op : "", "log");
            CHECK_CONTAINS(dt_ctx_error(g->ctx), "log");
        }
        CHECK(state_hash(g) == before);
    }
    CHECK(OK(g, run_log(g, &n, 1, &r)) && !r.skipped && r.step == 2);
    CHECK(state_hash(g) != before);
}

/* ---- Every optimizer */

static const struct {
    const char *name;
    dt_optim_desc desc;
} optimizers[] = {
    {"sgd", {.kind = DT_OPTIM_SGD, .lr = 0.1f}},
    {"momentum", {.kind = DT_OPTIM_SGD, .lr = 0.05f, .momentum = 0.9f}},
    {"nesterov", {.kind = DT_OPTIM_SGD, .lr = 0.05f, .momentum = 0.9f, .nesterov = true}},
    {"dampening", {.kind = DT_OPTIM_SGD, .lr = 0.05f, .momentum = 0.9f, .dampening = 0.5f}},
    {"decay", {.kind = DT_OPTIM_SGD, .lr = 0.05f, .momentum = 0.9f, .weight_decay = 0.01f}},
    {"adam", {.kind = DT_OPTIM_ADAM, .lr = 0.01f}},
    {"adam_decay", {.kind = DT_OPTIM_ADAM, .lr = 0.01f, .weight_decay = 0.1f}},
    {"adamw", {.kind = DT_OPTIM_ADAMW, .lr = 0.01f, .weight_decay = 0.1f}},
    {"adam_betas",
     {.kind = DT_OPTIM_ADAM, .lr = 0.01f, .beta1 = 0.8f, .beta2 = 0.95f, .eps = 1e-3f}},
    {"clip_norm", {.kind = DT_OPTIM_SGD, .lr = 0.2f, .clip_norm = 0.25f}},
    {"clip_value", {.kind = DT_OPTIM_ADAM, .lr = 0.01f, .clip_value = 0.02f}},
};

/* A store of its own, since moments belong to one. */
static void train_optimizer(golden *g, tied_net n, const char *name, const dt_optim_desc *desc) {
    char key[64];
    if (!golden_store(g))
        return;
    dt_program *p =
        golden_program(g, (dt_program_desc){.loss = n.loss, .batch = 10, .optim = desc});
    for (int step = 0; p && step < GOLDEN_STEPS; step++) {
        dt_report r;
        snprintf(key, sizeof key, "%s.loss", name);
        if (!step_once(g, p, (feed[]){{"x", n.x}, {"t", n.t}}, 2, step, key, &r))
            break;
    }
    snprintf(key, sizeof key, "%s.", name);
    if (p)
        golden_final(g, key, WEIGHTS_NEAR, false);
    while (g->program_count > 0)
        dt_program_destroy(g->programs[--g->program_count]);
    dt_store_destroy(g->store);
    g->store = NULL;
}

GOLDEN(every_optimizer_trains_as_in_pytorch, "optim") {
    tied_net n = {dt_input(g->graph, "x", DT_F32, dt_dims(6)),
                  dt_input(g->graph, "t", DT_I32, dt_dims()),
                  {0}};
    dt_tensor y = dt_nn_linear(dt_tanh(dt_nn_linear(n.x, "fc1", 8)), "fc2", 4);
    n.loss = dt_cross_entropy(y, n.t, NULL);
    for (size_t i = 0; i < sizeof optimizers / sizeof optimizers[0]; i++)
        train_optimizer(g, n, optimizers[i].name, &optimizers[i].desc);
}

/* ---- The main job's first 100 steps */

/* The formula of tools/golden/record_golden.py. */
static void fashion_init(golden *g) {
    static const struct {
        const char *name;
        size_t count, in;
    } params[] = {{"fc1.weight", 128 * 784, 784},
                  {"fc1.bias", 128, 784},
                  {"fc2.weight", 10 * 128, 128},
                  {"fc2.bias", 10, 128}};
    uint32_t state = 1;
    float *values = malloc(128 * 784 * sizeof *values);
    for (int p = 0; p < 4; p++) {
        for (size_t i = 0; i < params[p].count; i++) {
            state = state * 1664525u + 1013904223u;
            values[i] = (float)(((state >> 8) / 8388608.0 - 1) / sqrt((double)params[p].in));
        }
        OK(g, dt_store_write(g->store, dt_store_find(g->store, params[p].name), DT_VALUE_PARAM,
                             values, params[p].count * 4));
    }
    free(values);
}

static bool fashion_step(golden *g, dt_program *p, tied_net n, const dt_array *images,
                         const dt_array *labels, int step) {
    static float pixels[64 * 784];
    int32_t targets[64];
    dt_report r;
    const uint8_t *rows = (const uint8_t *)images->data + (size_t)step * 64 * 784;
    dt_gather_rows_u8_to_f32(pixels, rows, NULL, 64, 784, 1.0f / 255.0f, 0);
    dt_gather_rows_u8_to_i32(targets, (const uint8_t *)labels->data + step * 64, NULL, 64, 1);
    return OK(g, dt_program_write(p, n.x, pixels, sizeof pixels)) &&
           OK(g, dt_program_write(p, n.t, targets, sizeof targets)) &&
           OK(g, dt_program_run(p, NULL, &r)) && golden_loss(g, "loss", step, r.loss);
}

GOLDEN(fashion_mnist_first_100_losses_are_pytorchs, "fashion100") {
    dt_array images = {0}, labels = {0};
    bool found = dt_idx_load(g->ctx, "build/data/train-images-idx3-ubyte", &images) == DT_OK &&
                 dt_idx_load(g->ctx, "build/data/train-labels-idx1-ubyte", &labels) == DT_OK;
    tied_net n = {dt_input(g->graph, "x", DT_F32, dt_dims(784)),
                  dt_input(g->graph, "t", DT_I32, dt_dims()),
                  {0}};
    dt_tensor y = dt_nn_linear(dt_relu(dt_nn_linear(n.x, "fc1", 128)), "fc2", 10);
    n.loss = dt_cross_entropy(y, n.t, NULL);
    dt_optim_desc adam = {.kind = DT_OPTIM_ADAM};
    dt_program *p = NULL;
    if (found &&
        OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store))) {
        fashion_init(g);
        p = golden_program(g, (dt_program_desc){.loss = n.loss, .batch = 64, .optim = &adam});
    }
    for (int step = 0; p && step < 100; step++)
        if (!fashion_step(g, p, n, &images, &labels, step))
            break;
    if (p)
        golden_final(g, "", 5e-5, true); /* float32's own drift is 2e-6 by then */
    dt_array_destroy(&images);
    dt_array_destroy(&labels);
    if (!found)
        SKIP("no build/data; ./build.sh train gets it");
}
