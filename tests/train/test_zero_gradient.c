/* Parameters whose gradient is 0 whatever their values are: after round, sign, floor. As in PyTorch
 * they are trained with zeros, so decay and old moments move them; in every mode alike. What no
 * loss depends on, or only through detach or a comparison, is an error (PyTorch: None). */
#include "train/train_modes.h"

/* Where they are. stage: of a pipeline, all whose parameters have none, and the others' gradients
 * go past it; first: and none flows to what is before. */
enum { ZERO_ALONG, ZERO_STAGE, ZERO_FIRST, ZERO_PLACES };

static dt_tensor zero_param(dt_graph *g, const char *name, int n) {
    return dt_param(g, name, dt_dims(n), (dt_init){.kind = DT_INIT_UNIFORM, .a = 0.8f, .b = 1.2f});
}

/* 1, by a step function; or by what is differentiated and gives 0. */
static dt_tensor zero_one(dt_tensor z, bool steps) {
    return steps ? dt_round(z) : dt_affine(z, 0.0f, 1.0f);
}

static bool zero_make(train_model *m, const dt_ctx_desc *ctx, int place, bool steps) {
    *m = (train_model){.adam = {.lr = 0.01, .weight_decay = 0.1, .clip_norm = 0.5}};
    if (dt_ctx_create(ctx, &m->ctx) || dt_graph_create(m->ctx, &m->graph))
        return false;
    dt_graph *g = m->graph;
    m->x = dt_input(g, "x", DT_F32, dt_dims(TRAIN_SIDE * TRAIN_SIDE));
    m->t = dt_input(g, "t", DT_I32, dt_dims());
    dt_tensor h = dt_nn_linear(m->x, "fc0", 24);
    if (place == ZERO_ALONG)
        h = dt_mul(h, zero_one(zero_param(g, "z0", 24), steps));
    h = dt_nn_swiglu(dt_tanh(h), "mlp", 24);
    dt_tensor z = dt_mul(dt_tanh(h), zero_param(g, "z1", 24));
    z = steps ? dt_floor(dt_sigmoid(z)) : dt_affine(z, 0.0f, 0.0f);
    h = place == ZERO_FIRST ? dt_add(z, dt_slice(m->x, 0, 0, 24)) : dt_add(h, z);
    h = dt_tanh(dt_nn_linear(dt_dropout(h, 0.2f), "fc1", 16));
    m->logits = dt_nn_linear(h, "fc2", TRAIN_CLASSES);
    if (place == ZERO_ALONG)
        m->logits = dt_mul(m->logits, zero_one(zero_param(g, "z2", 1), steps));
    m->loss = dt_cross_entropy(m->logits, m->t, NULL);
    m->accuracy = dt_accuracy(m->logits, m->t);
    train_data_fill(&m->data);
    return dt_graph_error(g) == NULL;
}

typedef struct zero_run {
    int place;
    bool steps;
    dt_optim_kind kind;
    uint64_t hash;
    float values[8192];
    int count;
    char text[1200];
} zero_run;

static dt_result zero_train(const train_mode *mode, dt_comm *comm, zero_run *r, train_model *m) {
    dt_trainer *t = NULL;
    dt_trainer_desc d = train_desc(m);
    if (r->kind)
        m->adam = (dt_optim_desc){
            .kind = r->kind, .lr = 0.01, .weight_decay = r->kind == DT_OPTIM_RPROP ? 0 : 0.1};
    train_mode_take(mode, comm, &d);
    d.parallel.batch_slices = d.parallel.batch_slices ? d.parallel.batch_slices : 1;
    dt_result result = dt_trainer_create(m->graph, &d, &t);
    for (int i = 0; i < 6 && !result; i++)
        result = dt_trainer_step(t, NULL);
    if (!result)
        r->count = train_values(t, r->values, 8192);
    return result ? result : train_mode_hash(mode, t, &r->hash);
}

static void zero_rank(const train_mode *mode, dt_comm *comm, void *user) {
    zero_run *r = user;
    static _Thread_local train_model m;
    const dt_ctx_desc ctx = {.no_vulkan = !mode->vulkan, .threads = 1};
    if (!zero_make(&m, &ctx, r->place, r->steps) || zero_train(mode, comm, r, &m))
        snprintf(r->text, sizeof r->text, "%s: %s", mode->name, dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
}

static void zero_job(const train_mode *mode, zero_run *r) {
    static zero_run all[MODE_RANKS];
    for (int i = 0; i < MODE_RANKS; i++)
        all[i] = *r;
    for (int i = train_mode_job(mode, zero_rank, all, sizeof *all); i-- > 0;) {
        CHECK_TEXT(!all[i].text[0], "%s", all[i].text);
        CHECK(all[i].hash == all[0].hash && all[i].hash);
    }
    *r = all[0];
}

static double zero_far(const zero_run *a, const zero_run *b) {
    double far = a->count == b->count && a->count ? 0.0 : INFINITY;
    for (int i = 0; i < a->count; i++)
        far = fmax(far, fabs((double)a->values[i] - (double)b->values[i]));
    return far;
}

/* As one device that multiplies by 0 has it; bits are those of the same batch slices and parts. */
TEST(parameters_before_step_functions_have_zero_gradients_in_every_mode) {
    const bool vulkan = train_has_vulkan();
    for (size_t i = 0; i < sizeof train_modes / sizeof *train_modes; i++) {
        static zero_run run, one, by_zero;
        train_mode mode = train_modes[i], alone = {.name = "alone", .devices = "cpu"};
        for (int place = 0; place < ZERO_PLACES && (vulkan || !mode.vulkan); place++) {
            run = one = by_zero = (zero_run){.place = place, .steps = true};
            by_zero.steps = false;
            alone.batch_slices = mode.batch_slices;
            alone.accumulate = mode.accumulate;
            zero_job(&mode, &run);
            zero_job(&alone, &one);
            zero_job(&alone, &by_zero);
            CHECK_TEXT(zero_far(&one, &by_zero) == 0.0, "%s, %d: %g from a product with 0",
                       mode.name, place, zero_far(&one, &by_zero));
            CHECK_TEXT(zero_far(&run, &one) < (mode.tensor || mode.vulkan ? 1e-4 : 1e-30),
                       "%s, %d: %g from one device", mode.name, place, zero_far(&run, &one));
        }
    }
}

TEST(every_optimizer_trains_a_parameter_with_a_gradient_of_0_as_by_a_product_with_0) {
    static zero_run run, by_zero;
    for (int kind = DT_OPTIM_SGD; kind <= DT_OPTIM_ADAFACTOR; kind++) {
        run = by_zero = (zero_run){.kind = (dt_optim_kind)kind, .steps = true};
        by_zero.steps = false;
        zero_job(&train_modes[0], &run);
        zero_job(&train_modes[0], &by_zero);
        CHECK_TEXT(zero_far(&run, &by_zero) == 0.0, "optimizer %d: %g", kind,
                   zero_far(&run, &by_zero));
        for (int i = 0; i < run.count; i++)
            CHECK(isfinite(run.values[i]));
    }
}

/* ---- programs */

typedef struct zero_net {
    dt_ctx *ctx;
    dt_graph *g;
    dt_store *s;
    dt_tensor x, w, v;
} zero_net;

static bool zero_open(zero_net *n) {
    if (dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &n->ctx) || dt_graph_create(n->ctx, &n->g))
        return false;
    n->x = dt_input(n->g, "x", DT_F32, dt_dims(3));
    n->w = zero_param(n->g, "w", 3);
    n->v = zero_param(n->g, "v", 3);
    return true;
}

/* Runs a step of the mean of y: DT_OK, or why there is no step; the gradient of w. */
static dt_result zero_step(zero_net *n, dt_tensor y, float *gradient, float *decayed) {
    const float in[6] = {1, -2, 3, -4, 5, 6};
    const dt_optim_desc optim = {.lr = 0.1, .weight_decay = 0.5};
    dt_program *p = NULL;
    float before[3], after[3];
    dt_result result = dt_store_create(n->g, &(dt_store_desc){.device = "cpu"}, &n->s);
    const dt_program_desc d = {.loss = dt_mean_loss(y), .batch = 2, .optim = &optim};
    if (!result)
        result = dt_program_create(n->s, &d, &p);
    if (result)
        return result;
    CHECK(!dt_store_read(n->s, 0, DT_VALUE_PARAM, before, sizeof before));
    CHECK(!dt_program_write(p, n->x, in, sizeof in));
    result = dt_program_run(p, NULL, NULL);
    CHECK(!dt_store_read(n->s, 0, DT_VALUE_GRADIENT, gradient, 12));
    CHECK(!dt_store_read(n->s, 0, DT_VALUE_PARAM, after, sizeof after));
    for (int i = 0; i < 3; i++)
        decayed[i] = after[i] / before[i];
    return result;
}

/* relu's slope: the bias in a penalty on the gradient, as in WGAN-GP. */
static dt_tensor zero_penalty(const zero_net *n) {
    dt_tensor h = dt_relu(dt_add(dt_mul(n->x, n->v), n->w));
    return dt_square(dt_gradient(h, n->x));
}

TEST(a_gradient_through_step_functions_is_0_and_detach_has_no_gradient) {
    for (int way = 0; way < 11; way++) {
        zero_net n;
        float gradient[3] = {9, 9, 9}, decayed[3] = {0};
        if (!CHECK_TEXT(zero_open(&n), "a graph"))
            return;
        const dt_tensor ways[] = {dt_sign(n.w),
                                  dt_round(n.w),
                                  dt_floor(n.w),
                                  dt_ceil(n.w),
                                  dt_heaviside(dt_mul(n.w, n.x)),
                                  dt_affine(n.w, 0.0f, 2.0f),
                                  dt_detach(n.w),
                                  dt_gt(n.w, n.x),
                                  n.x,
                                  dt_mul(dt_detach(dt_round(n.w)), dt_sign(dt_detach(n.w)))};
        dt_tensor y = way < 10 ? dt_mul(n.v, dt_mul(n.x, ways[way])) : zero_penalty(&n);
        const dt_result result = zero_step(&n, y, gradient, decayed);
        const bool none = way >= 6 && way < 10;
        CHECK_TEXT(result == (none ? DT_ERROR_INVALID : DT_OK), "way %d: %s", way,
                   dt_ctx_error(n.ctx));
        CHECK_TEXT(!none || strstr(dt_ctx_error(n.ctx), "parameter 'w' has no gradient"), "%s",
                   dt_ctx_error(n.ctx));
        for (int i = 0; i < 3 && !none; i++)
            CHECK_TEXT(gradient[i] == 0.0f && fabsf(decayed[i] - 0.95f) < 1e-6f, "way %d: %g, %g",
                       way, (double)gradient[i], (double)decayed[i]);
        dt_ctx_destroy(n.ctx);
    }
}

/* A table of rows that are left alone where they have no gradient: all are. */
TEST(a_lazy_parameter_with_a_gradient_of_0_is_not_changed) {
    zero_net n;
    dt_program *p = NULL;
    if (!CHECK_TEXT(zero_open(&n), "a graph"))
        return;
    const dt_optim_desc optim = {.lr = 0.1, .weight_decay = 0.5, .groups = {{"w", .sparse = true}}};
    dt_tensor y = dt_mul(n.v, dt_mul(n.x, dt_round(n.w)));
    CHECK(!dt_store_create(n.g, &(dt_store_desc){.device = "cpu"}, &n.s));
    const dt_program_desc d = {.loss = dt_mean_loss(y), .optim = &optim};
    CHECK_TEXT(!dt_program_create(n.s, &d, &p), "%s", dt_ctx_error(n.ctx));
    float before[2][3], after[2][3];
    const float in[3] = {1, 2, 3};
    for (int i = 0; i < 2; i++)
        CHECK(!dt_store_read(n.s, i, DT_VALUE_PARAM, before[i], 12));
    CHECK(!dt_program_write(p, n.x, in, 12) && !dt_program_run(p, NULL, NULL));
    for (int i = 0; i < 2; i++)
        CHECK(!dt_store_read(n.s, i, DT_VALUE_PARAM, after[i], 12));
    CHECK(!memcmp(before[0], after[0], 12) && memcmp(before[1], after[1], 12));
    dt_ctx_destroy(n.ctx);
}
