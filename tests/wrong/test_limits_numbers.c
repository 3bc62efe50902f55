/* Ranges of numbers: settings of optimizers and losses, and dropout, on both sides of each limit of
 * torch.optim and torch.nn.functional (PyTorch 2.15). Where dtrain differs the row says so. */
#include "golden/golden.h"

#include <math.h>

/* ---- optimizers */

typedef struct range_row {
    const char *kinds, *field; /* kinds: letters of range_kinds; "" = all */
    size_t at;
    double taken[4], refused[4]; /* to the first that is repeated; 0 is 0 itself */
} range_row;

static const struct {
    char letter;
    dt_optim_kind kind;
} range_kinds[] = {{'s', DT_OPTIM_SGD},      {'a', DT_OPTIM_ADAM},    {'w', DT_OPTIM_ADAMW},
                   {'g', DT_OPTIM_AMSGRAD},  {'r', DT_OPTIM_RMSPROP}, {'d', DT_OPTIM_ADAGRAD},
                   {'l', DT_OPTIM_ADADELTA}, {'x', DT_OPTIM_ADAMAX},  {'n', DT_OPTIM_NADAM},
                   {'R', DT_OPTIM_RADAM},    {'p', DT_OPTIM_RPROP},   {'i', DT_OPTIM_LION},
                   {'L', DT_OPTIM_LAMB},     {'S', DT_OPTIM_LARS},    {'m', DT_OPTIM_MUON},
                   {'f', DT_OPTIM_ADAFACTOR}};

#define RANGE(kinds, field) kinds, #field, offsetof(dt_optim_desc, field)
static const range_row ranges[] = {
    {RANGE("", lr), {0, 1e-30, 1e3, 1}, {-1e-3, -1, (double)INFINITY, (double)NAN}},
    {RANGE("sawgrdlxnRiLSmf", weight_decay),
     {0, 1e-3, 1, 10},
     {-1e-3, -1, (double)INFINITY, (double)NAN}},
    {RANGE("awgrdlxnRLSmf", eps), {0, 1e-20, 1, 10}, {-1e-8, -1, (double)INFINITY, (double)NAN}},
    {RANGE("srS", momentum), {0, 0.9, 1, 2}, {-0.1, -1, (double)INFINITY, (double)NAN}},
    {RANGE("s", dampening),
     {0, 0.5, -1, 2},
     {(double)INFINITY, (double)NAN, -(double)INFINITY, (double)NAN}},
    {RANGE("awgxnRiLm", beta1), {0, 0.5, 0.999, 0.9999}, {1, -0.1, 1.5, (double)NAN}},
    {RANGE("awgxnRiLm", beta2), {0, 0.3, 0.6, 0.9999}, {1, -0.1, 1.5, (double)NAN}},
    {RANGE("f", beta2), {0, 0.8, 1, 2.5}, {-0.1, -1, (double)INFINITY, (double)NAN}},
    /* PyTorch takes any from 0 on, but above 1 a mean of squares falls below 0 */
    {RANGE("r", alpha), {0, 0.5, 0.99, 1}, {-0.1, 1.5, (double)INFINITY, (double)NAN}},
    {RANGE("l", rho), {0, 0.5, 0.99, 1}, {-0.1, 1.5, (double)INFINITY, (double)NAN}},
    {RANGE("d", lr_decay), {0, 0.1, 1, 10}, {-0.1, -1, (double)INFINITY, (double)NAN}},
    {RANGE("d", initial_accumulator), {0, 0.1, 1, 10}, {-0.1, -1, (double)INFINITY, (double)NAN}},
    /* PyTorch takes 1 and more, but the mean of gradients then never moves, or grows for ever */
    {RANGE("m", momentum), {0, 0.5, 0.95, 0.999}, {1, -0.1, 2, (double)NAN}},
};

static void range_try(golden *g, dt_tensor loss, const range_row *r, int kind, double value,
                      bool takes) {
    dt_optim_desc optim = {.kind = range_kinds[kind].kind};
    dt_program *p = NULL;
    const double given = value == 0.0 ? DT_ZERO : value;
    memcpy((char *)&optim + r->at, &given, sizeof given);
    const dt_program_desc desc = {.loss = loss, .optim = &optim};
    const bool took = dt_program_create(g->store, &desc, &p) == DT_OK;
    const char *error = took ? "" : dt_ctx_error(g->ctx);
    test_check(took == takes, __FILE__, __LINE__, "optimizer %c: %s %g %s: %s",
               range_kinds[kind].letter, r->field, value, took ? "is taken" : "is refused", error);
    test_check(took || strstr(error, r->field), __FILE__, __LINE__, "%s is not named: %s", r->field,
               error);
    dt_program_destroy(p);
    OK(g, dt_store_reset(g->store, DT_RESET_OPTIM));
}

static void optimizers_take_what_pytorchs_take(golden *g) {
    dt_tensor w = dt_param(g->graph, "w", dt_dims(2, 2), (dt_init){0});
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(2, 2));
    dt_tensor loss = dt_mean_loss(dt_mul(w, x));
    if (!golden_store(g))
        return;
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++)
        for (int k = 0; k < (int)(sizeof range_kinds / sizeof *range_kinds); k++)
            for (int i = 0; i < 4; i++) {
                if (ranges[r].kinds[0] && !strchr(ranges[r].kinds, range_kinds[k].letter))
                    continue;
                range_try(g, loss, &ranges[r], k, ranges[r].taken[i], true);
                range_try(g, loss, &ranges[r], k, ranges[r].refused[i], false);
            }
}

TEST(settings_of_optimizers_have_pytorchs_ranges) {
    golden_run("cpu", NULL, optimizers_take_what_pytorchs_take);
}

/* ---- what the ends of those ranges mean: steps of a vector whose gradient is given */

enum { EDGE_SIZE = 3, EDGE_STEPS = 6 };

typedef struct edge_row {
    const char *name;
    dt_optim_desc desc;
    void (*step)(const dt_optim_desc *d, int t, const double *g, double *w, double *m);
} edge_row;

static double edge_number(double value) {
    return value == DT_ZERO ? 0 : value;
}

/* torch.optim.Adafactor's step of a vector: m: the mean of squares, t^beta2_decay of it new. */
static void edge_adafactor(const dt_optim_desc *d, int t, const double *g, double *w, double *m) {
    const double share = pow(t, -edge_number(d->beta2)), rate = fmin(d->lr, 1 / sqrt(t));
    double size = 0, length = 0, way[EDGE_SIZE];
    for (int i = 0; i < EDGE_SIZE; i++) {
        m[i] += share * (g[i] * g[i] - m[i]);
        way[i] = g[i] / fmax(sqrt(m[i]), 1.1920929e-7);
        size += w[i] * w[i] / EDGE_SIZE, length += way[i] * way[i] / EDGE_SIZE;
    }
    for (int i = 0; i < EDGE_SIZE; i++)
        w[i] -= rate * fmax(1e-3, sqrt(size)) / fmax(1, sqrt(length)) * way[i];
}

/* RAdam's: with beta2 up to 2/3 no step has the second moment. */
static void edge_radam(const dt_optim_desc *d, int t, const double *g, double *w, double *m) {
    for (int i = 0; i < EDGE_SIZE; i++) {
        m[i] = 0.9 * m[i] + 0.1 * g[i];
        w[i] -= d->lr * m[i] / (1 - pow(0.9, t));
    }
}

static void edge_adadelta(const dt_optim_desc *d, int t, const double *g, double *w, double *m) {
    (void)t, (void)m;
    for (int i = 0; i < EDGE_SIZE; i++)
        w[i] -= d->lr * g[i];
}

static void edge_rmsprop(const dt_optim_desc *d, int t, const double *g, double *w, double *m) {
    (void)t, (void)m;
    for (int i = 0; i < EDGE_SIZE; i++)
        w[i] -= d->lr * g[i] / d->eps;
}

static const edge_row edges[] = {
    {"Adafactor 0", {.kind = DT_OPTIM_ADAFACTOR, .lr = 0.2, .beta2 = DT_ZERO}, edge_adafactor},
    {"Adafactor 1", {.kind = DT_OPTIM_ADAFACTOR, .lr = 0.2, .beta2 = 1}, edge_adafactor},
    {"Adafactor 2.5", {.kind = DT_OPTIM_ADAFACTOR, .lr = 0.2, .beta2 = 2.5}, edge_adafactor},
    {"RAdam 0", {.kind = DT_OPTIM_RADAM, .lr = 0.1, .beta2 = DT_ZERO}, edge_radam},
    {"RAdam 0.5", {.kind = DT_OPTIM_RADAM, .lr = 0.1, .beta2 = 0.5}, edge_radam},
    {"RAdam 0.6", {.kind = DT_OPTIM_RADAM, .lr = 0.1, .beta2 = 0.6}, edge_radam},
    {"Adadelta 1", {.kind = DT_OPTIM_ADADELTA, .lr = 0.1, .rho = 1}, edge_adadelta},
    {"RMSprop 1", {.kind = DT_OPTIM_RMSPROP, .lr = 0.1, .alpha = 1, .eps = 0.25}, edge_rmsprop},
};

static void edge_run(golden *g, const edge_row *e, dt_tensor x, dt_tensor loss) {
    double w[EDGE_SIZE] = {0.75, -1.5, 0.5}, m[EDGE_SIZE] = {0}, slope[EDGE_SIZE];
    float start[EDGE_SIZE] = {0.75f, -1.5f, 0.5f}, values[EDGE_SIZE], got[EDGE_SIZE] = {0};
    dt_program *p = golden_store(g)
                        ? golden_program(g, (dt_program_desc){.loss = loss, .optim = &e->desc})
                        : NULL;
    bool ok = p && OK(g, dt_store_write(g->store, 0, DT_VALUE_PARAM, start, sizeof start));
    for (int t = 1; t <= EDGE_STEPS && ok; t++) {
        for (int i = 0; i < EDGE_SIZE; i++)
            values[i] = (float)((t * 7 + i * 5) % 11 - 5) / 4.0f, slope[i] = (double)values[i];
        ok = OK(g, dt_program_write(p, x, values, sizeof values)) &&
             OK(g, dt_program_run(p, NULL, NULL));
        e->step(&e->desc, t, slope, w, m);
    }
    ok = ok && OK(g, dt_store_read(g->store, 0, DT_VALUE_PARAM, got, sizeof got));
    for (int i = 0; i < EDGE_SIZE && ok; i++)
        golden_near((double)got[i], w[i], 1e-5, e->name, i);
    while (g->program_count > 0)
        dt_program_destroy(g->programs[--g->program_count]);
    dt_store_destroy(g->store);
    g->store = NULL;
}

GOLDEN(settings_at_the_end_of_their_range_mean_what_they_do_in_pytorch, NULL) {
    dt_tensor w = dt_param(g->graph, "w", dt_dims(EDGE_SIZE), (dt_init){0});
    dt_tensor x = dt_input(g->graph, "x", DT_F32, dt_dims(EDGE_SIZE));
    dt_tensor loss = dt_mean_loss(dt_sum(dt_mul(w, x), dt_dims(), false));
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        edge_run(g, &edges[i], x, loss);
}

/* ---- losses, and dropout. y, t: [4]; k: [] class numbers. */

/* name, call with v, what PyTorch takes of finite numbers */
#define LOSS_RANGES(X)                                                                             \
    X(smooth_l1, dt_smooth_l1(y, t, v), v >= 0)                                                    \
    X(huber, dt_huber(y, t, v), v > 0)                                                             \
    X(focal, dt_focal(y, t, v, 2), (v >= 0 && v <= 1) || v == -1)                                  \
    X(gaussian_nll, dt_gaussian_nll(y, t, t, v, true), v > 0)                                      \
    X(cosine_embedding, dt_cosine_embedding(y, t, dt_mean(t, dt_dims(0), false), v), true)         \
    X(margin_ranking, dt_margin_ranking(y, t, t, v), true)                                         \
    X(hinge_embedding, dt_hinge_embedding(y, t, v), true)                                          \
    X(multi_margin, dt_multi_margin(y, k, 1, v, (dt_tensor){0}), true)                             \
    X(cross_entropy, dt_cross_entropy(y, k, &(dt_cross_entropy_desc){.label_smoothing = v}),       \
      v >= 0 && v <= 1)                                                                            \
    X(dropout, dt_dropout(y, v), v >= 0 && v <= 1)                                                 \
    X(dropout_channels, dt_dropout_channels(y, v), v >= 0 && v <= 1)                               \
    X(drop_path, dt_drop_path(y, v), v >= 0 && v <= 1)                                             \
    X(alpha_dropout, dt_alpha_dropout(y, v), v >= 0 && v <= 1)                                     \
    /* PyTorch takes a gamma and an eps below 0 as well, whose loss is mostly NaN */               \
    X(focal, dt_focal(y, t, 0.25f, v), v >= 0)                                                     \
    X(poisson_nll, dt_poisson_nll(y, t, false, v, true), v >= 0)                                   \
    /* PyTorch refuses a margin of 0 and less */                                                   \
    X(triplet_margin, dt_triplet_margin(y, t, y, &(dt_triplet_desc){.margin = v}), true)

TEST(settings_of_losses_and_dropout_have_pytorchs_ranges) {
    static const float values[] = {-2,   -1, -1e-3f,          0,         1e-3f, 0.5f, 1.0f,
                                   1.5f, 2,  (float)INFINITY, (float)NAN};
    dt_ctx *ctx = NULL;
    dt_graph *g = NULL;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
    dt_tensor y = dt_input(g, "y", DT_F32, dt_dims(4)), t = dt_input(g, "t", DT_F32, dt_dims(4));
    dt_tensor k = dt_input(g, "k", DT_I32, dt_dims());
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        const float v = values[i];
        const bool finite = v - v == 0.0f;
#define TRY(name, call, takes)                                                                     \
    test_check(((call).id != 0) == (finite && (takes)), __FILE__, __LINE__, "%s of %g", #name,     \
               (double)v);                                                                         \
    dt_graph_clear_error(g);
        LOSS_RANGES(TRY)
#undef TRY
    }
    dt_ctx_destroy(ctx);
}

/* p = 1: all is 0 in training, the gradient too, and nothing is dropped elsewhere. */
GOLDEN(dropout_of_everything_gives_zeros, NULL) {
    enum { SIZE = 5000 };
    static float x[SIZE], y[SIZE];
    dt_tensor in = dt_input(g->graph, "x", DT_F32, dt_dims(10, SIZE / 10));
    dt_tensor out[] = {dt_dropout(in, 1), dt_dropout_channels(in, 1), dt_drop_path(in, 1),
                       dt_alpha_dropout(in, 1),
                       dt_gradient(dt_sum(dt_dropout(in, 1), dt_dims(), false), in)};
    for (int i = 0; i < SIZE; i++)
        x[i] = (float)(i % 13) - 5.5f;
    if (!golden_store(g))
        return;
    for (int train = 0; train < 2; train++) {
        dt_program_desc desc = {.mode = train ? DT_MODE_TRAIN : DT_MODE_EVAL};
        memcpy(desc.outputs, out, sizeof out);
        dt_program *p = golden_program(g, desc);
        if (!p || !OK(g, dt_program_write(p, in, x, sizeof x)) ||
            !OK(g, dt_program_run(p, NULL, NULL)))
            return;
        for (int k = 0; k < 5; k++) {
            int wrong = 0;
            OK(g, dt_program_read(p, out[k], y, sizeof y));
            for (int i = 0; i < SIZE; i++)
                wrong += y[i] != (train ? 0.0f : k == 4 ? 1.0f : x[i]);
            test_check(!wrong, __FILE__, __LINE__, "%d, train %d: %d wrong", k, train, wrong);
        }
    }
}
