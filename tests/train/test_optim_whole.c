/* Optimizers that look at whole parameters (LAMB, LARS, Muon, Adafactor), of many blocks each,
 * against plain loops in double; steps that are refused; descriptions that are. */
#include "golden/golden.h"
#include "train/train_model.h"

#include <math.h>

enum { WHOLE_PARAMS = 10, WHOLE_MOST = 70 * 33, WHOLE_STEPS = 4 };

/* The first four are for all; what is after them is for factors of rows and columns. */
static const struct {
    const char *name;
    int rows, cols; /* cols 0: of one axis */
    int count;      /* 0: one matrix; otherwise that number, along two axes */
} whole_shapes[WHOLE_PARAMS] = {{"tall", 70, 33, 0},   {"wide", 20, 90, 0}, {"flat", 700, 0, 0},
                                {"plain", 30, 40, 0},  {"many", 5, 3, 40},  {"few", 40, 20, 2},
                                {"column", 512, 1, 0}, {"line", 1, 512, 0}, {"squares", 2, 2, 128},
                                {"ones", 1, 1, 6}};

/* Of factors m are those of rows and v those of columns. */
typedef struct whole_value {
    double w, m, v, g, u;
} whole_value;

typedef struct whole_net {
    dt_tensor x[WHOLE_PARAMS], loss;
    dt_program *program;
    dt_optim_desc optim;
    float data[WHOLE_PARAMS][WHOLE_MOST];
    whole_value value[WHOLE_PARAMS][WHOLE_MOST];
    uint32_t state;
    int steps, params;
} whole_net;

static int whole_elements(int i) {
    const int count = whole_shapes[i].count ? whole_shapes[i].count : 1;
    return count * whole_shapes[i].rows * (whole_shapes[i].cols ? whole_shapes[i].cols : 1);
}

static dt_shape whole_dims(int i) {
    const int rows = whole_shapes[i].rows, cols = whole_shapes[i].cols;
    if (whole_shapes[i].count)
        return dt_dims(2, whole_shapes[i].count / 2, rows, cols);
    return cols ? dt_dims(rows, cols) : dt_dims(rows);
}

static float whole_random(whole_net *n) {
    return (float)(train_random(&n->state) % 2000) / 1000.0f - 1;
}

/* A parameter's gradient is what is written as its input. */
static bool whole_open(golden *g, whole_net *n, dt_optim_desc optim) {
    const bool factors = optim.kind == DT_OPTIM_ADAFACTOR;
    *n = (whole_net){.optim = optim, .state = 5, .params = factors ? WHOLE_PARAMS : 4};
    for (int i = 0; i < n->params; i++) {
        char input[8];
        const dt_shape s = whole_dims(i);
        snprintf(input, sizeof input, "x%d", i);
        n->x[i] = dt_input_shared(g->graph, input, DT_F32, s);
        dt_tensor w =
            dt_param(g->graph, whole_shapes[i].name, s, (dt_init){DT_INIT_UNIFORM, -1, 1});
        dt_tensor sum = dt_sum(dt_mul(w, n->x[i]), dt_dims(), false);
        n->loss = i ? dt_add(n->loss, sum) : sum;
    }
    n->loss = dt_mean_loss(n->loss);
    if (!golden_store(g))
        return false;
    n->program = golden_program(g, (dt_program_desc){.loss = n->loss, .optim = &n->optim});
    for (int i = 0; i < n->params && n->program; i++) {
        float w[WHOLE_MOST];
        OK(g, dt_store_read(g->store, i, DT_VALUE_PARAM, w, 4 * (size_t)whole_elements(i)));
        for (int k = 0; k < whole_elements(i); k++)
            n->value[i][k] = (whole_value){.w = (double)w[k]};
    }
    return n->program != NULL;
}

static dt_result whole_step(golden *g, whole_net *n, float factor) {
    for (int i = 0; i < n->params; i++) {
        for (int k = 0; k < whole_elements(i); k++) {
            n->data[i][k] = factor * whole_random(n);
            n->value[i][k].g = (double)n->data[i][k];
        }
        OK(g, dt_program_write(n->program, n->x[i], n->data[i], 4 * (size_t)whole_elements(i)));
    }
    return dt_program_run(n->program, NULL, NULL);
}

/* ---- the reference */

static double whole_norm(const whole_value *v, int n, bool of_u) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += of_u ? v[i].u * v[i].u : v[i].w * v[i].w;
    return sqrt(sum);
}

static void whole_adam(whole_value *v, int n, int t) {
    for (int i = 0; i < n; i++) {
        v[i].m += 0.1 * (v[i].g - v[i].m);
        v[i].v += 0.001 * (v[i].g * v[i].g - v[i].v);
        v[i].u = v[i].m / (1 - pow(0.9, t));
    }
}

static void whole_lamb(whole_value *v, int n, int t, bool plain) {
    whole_adam(v, n, t);
    for (int i = 0; i < n; i++)
        v[i].u = v[i].u / (sqrt(v[i].v / (1 - pow(0.999, t))) + 1e-6) + 0.01 * v[i].w;
    const double share = plain ? 1 : whole_norm(v, n, false) / whole_norm(v, n, true);
    for (int i = 0; i < n; i++)
        v[i].w -= 0.01 * share * v[i].u;
}

static void whole_lars(whole_value *v, int n, int t, bool plain) {
    for (int i = 0; i < n; i++)
        v[i].u = v[i].g;
    const double length = whole_norm(v, n, false), of_g = whole_norm(v, n, true);
    const double share = plain ? 1 : 0.01 * length / (of_g + 0.1 * length + 1e-8);
    for (int i = 0; i < n; i++) {
        const double d = share * (v[i].g + 0.1 * v[i].w);
        v[i].m = t > 1 ? 0.9 * v[i].m + d : d;
        v[i].w -= 0.5 * v[i].m;
    }
}

/* x = a x + (b G + c G G) x, G = x x^T, of rows by columns as they are; the product from the right
 * of a tall one's smaller square is the same. */
static void whole_round(double *x, int rows, int cols) {
    static double gram[70 * 70], both[70 * 70], y[WHOLE_MOST];
    for (int i = 0; i < rows * rows; i++) {
        gram[i] = 0;
        for (int k = 0; k < cols; k++)
            gram[i] += x[i / rows * cols + k] * x[i % rows * cols + k];
    }
    for (int i = 0; i < rows * rows; i++) {
        both[i] = -4.775 * gram[i];
        for (int k = 0; k < rows; k++)
            both[i] += 2.0315 * gram[i / rows * rows + k] * gram[k * rows + i % rows];
    }
    for (int i = 0; i < rows * cols; i++) {
        y[i] = 3.4445 * x[i];
        for (int k = 0; k < rows; k++)
            y[i] += both[i / cols * rows + k] * x[k * cols + i % cols];
    }
    memcpy(x, y, (size_t)(rows * cols) * sizeof *x);
}

static void whole_muon(whole_value *v, int param, int t, bool plain) {
    static double x[WHOLE_MOST];
    const int rows = whole_shapes[param].rows, cols = whole_shapes[param].cols;
    const int n = whole_elements(param);
    if (plain) {
        whole_adam(v, n, t);
        for (int i = 0; i < n; i++) {
            const double root = sqrt(v[i].v / (1 - pow(0.999, t)));
            v[i].w -= 0.02 * (v[i].u / (root + 1e-8) + 0.1 * v[i].w);
        }
        return;
    }
    for (int i = 0; i < n; i++) {
        v[i].m += 0.05 * (v[i].g - v[i].m);
        v[i].u = v[i].g + 0.95 * (v[i].m - v[i].g);
    }
    const double length = whole_norm(v, n, true);
    for (int i = 0; i < n; i++)
        x[i] = v[i].u / length;
    for (int i = 0; i < 5; i++)
        whole_round(x, rows, cols);
    const double scale = rows > cols ? sqrt((double)rows / cols) : 1;
    for (int i = 0; i < n; i++)
        v[i].w -= 0.02 * (0.1 * v[i].w + scale * x[i]);
}

/* Means of squares of the matrices of v, and over them u. */
static void whole_factors(whole_value *v, int count, int rows, int cols, double part) {
    for (int at = 0; at < count; at++, v += rows * cols) {
        double mean = 0;
        for (int r = 0; r < rows; r++) {
            double sum = 0;
            for (int c = 0; c < cols; c++)
                sum += pow(v[r * cols + c].g, 2);
            v[r].m += part * (sum / cols - v[r].m);
            mean += v[r].m / rows;
        }
        for (int c = 0; c < cols; c++) {
            double sum = 0;
            for (int r = 0; r < rows; r++)
                sum += pow(v[r * cols + c].g, 2);
            v[c].v += part * (sum / rows - v[c].v);
        }
        for (int i = 0; i < rows * cols; i++) {
            const double square = v[i / cols].m * v[i % cols].v / fmax(mean, 0x1p-23);
            v[i].u = v[i].g / sqrt(fmax(square, 0x1p-46));
        }
    }
}

static void whole_adafactor(const dt_optim_desc *d, whole_value *v, int param, int t) {
    const int n = whole_elements(param), cols = whole_shapes[param].cols;
    const int count = whole_shapes[param].count ? whole_shapes[param].count : 1;
    const double part = pow(t, -d->beta2), root = sqrt(n);
    for (int i = 0; i < n; i++) {
        if (d->clip_value > 0)
            v[i].g = fmin(fmax(v[i].g, -d->clip_value), d->clip_value);
        if (d->maximize)
            v[i].g = -v[i].g;
    }
    if (param != 3 && cols) {
        whole_factors(v, count, whole_shapes[param].rows, cols, part);
    } else {
        for (int i = 0; i < n; i++) {
            v[i].v += part * (v[i].g * v[i].g - v[i].v);
            v[i].u = v[i].g / sqrt(fmax(v[i].v, 0x1p-46));
        }
    }
    const double rate = fmin(d->lr, 1 / sqrt(t)),
                 size = fmax(d->eps, whole_norm(v, n, false) / root);
    const double share = size * rate / fmax(1, whole_norm(v, n, true) / root);
    for (int i = 0; i < n; i++)
        v[i].w -= d->lr * d->weight_decay * v[i].w + share * v[i].u;
}

static void whole_reference(whole_net *n) {
    n->steps++;
    for (int i = 0; i < n->params; i++) {
        const bool plain = i == 3, matrix = whole_shapes[i].cols > 0;
        const int count = whole_elements(i);
        if (n->optim.kind == DT_OPTIM_LAMB)
            whole_lamb(n->value[i], count, n->steps, plain);
        else if (n->optim.kind == DT_OPTIM_LARS)
            whole_lars(n->value[i], count, n->steps, plain);
        else if (n->optim.kind == DT_OPTIM_ADAFACTOR)
            whole_adafactor(&n->optim, n->value[i], i, n->steps);
        else
            whole_muon(n->value[i], i, n->steps, plain || !matrix);
    }
}

static void whole_compare(golden *g, const whole_net *n, double bound) {
    for (int i = 0; i < n->params; i++) {
        float w[WHOLE_MOST];
        double worst = 0, most = 1; /* bound: of the largest weight, or of 1 */
        OK(g, dt_store_read(g->store, i, DT_VALUE_PARAM, w, 4 * (size_t)whole_elements(i)));
        for (int k = 0; k < whole_elements(i); k++)
            worst = fmax(worst, fabs((double)w[k] - n->value[i][k].w)),
            most = fmax(most, fabs(n->value[i][k].w));
        test_check(worst <= bound * most, __FILE__, __LINE__,
                   "optimizer %d, step %d: '%s' is %.3g off", (int)n->optim.kind, n->steps,
                   whole_shapes[i].name, worst);
    }
}

static void whole_close(golden *g) {
    while (g->program_count > 0)
        dt_program_destroy(g->programs[--g->program_count]);
    dt_store_destroy(g->store);
    g->store = NULL;
}

static const dt_optim_desc whole_optims[] = {
    {.kind = DT_OPTIM_LAMB, .lr = 0.01, .groups = {{.params = "plain", .elementwise = true}}},
    {.kind = DT_OPTIM_LARS,
     .lr = 0.5,
     .trust_coefficient = 0.01,
     .momentum = 0.9,
     .weight_decay = 0.1,
     .groups = {{.params = "plain", .elementwise = true}}},
    {.kind = DT_OPTIM_MUON, .lr = 0.02, .groups = {{.params = "plain", .elementwise = true}}},
    {.kind = DT_OPTIM_ADAFACTOR,
     .lr = 0.6,
     .beta2 = 0.8,
     .eps = 1e-3,
     .weight_decay = 0.1,
     .groups = {{.params = "plain", .elementwise = true}}},
    {.kind = DT_OPTIM_ADAFACTOR,
     .lr = 0.01,
     .beta2 = 0.5,
     .eps = 2,
     .maximize = true,
     .clip_value = 0.7,
     .groups = {{.params = "plain", .elementwise = true}}},
};

/* How large gradients are; Adafactor's two epsilons are for very small ones. */
static float whole_factor(const whole_net *n, int step) {
    static const float small[WHOLE_STEPS] = {1e-6f, 1e-4f, 1, 100};
    if (n->optim.kind == DT_OPTIM_ADAFACTOR)
        return small[step];
    return step == 1 ? 100.0f : 1.0f;
}

/* In the third step an infinite gradient, which changes nothing. At a tiny rate it is not proven
 * that the step is finite. It takes the dry pass, and changes nothing either. */
static void whole_train(golden *g, const dt_optim_desc *optim) {
    static whole_net n;
    dt_graph *first = g->graph;
    dt_result result = dt_graph_create(g->ctx, &g->graph);
    if (OK(g, result) && whole_open(g, &n, *optim)) {
        for (int i = 0; i < WHOLE_STEPS; i++) {
            uint64_t before = 0, after = 1;
            if (i == 2) {
                dt_store_state_hash(g->store, &before);
                CHECK(whole_step(g, &n, INFINITY) == DT_ERROR_NUMERIC);
                dt_store_state_hash(g->store, &after);
                CHECK(before == after);
            }
            if (!OK(g, whole_step(g, &n, whole_factor(&n, i))))
                break;
            whole_reference(&n);
            whole_compare(g, &n, optim->kind == DT_OPTIM_MUON ? 2e-5 : 1e-6);
        }
    }
    whole_close(g);
    dt_graph_destroy(g->graph);
    g->graph = first;
}

GOLDEN(optimizers_of_whole_parameters_are_their_formulas, NULL) {
    for (size_t i = 0; i < sizeof whole_optims / sizeof *whole_optims; i++)
        whole_train(g, &whole_optims[i]);
}

/* By the dry pass, for so long a weight is not proven to stay finite. */
GOLDEN(optimizers_of_whole_parameters_refuse_a_weight_that_overflows, NULL) {
    for (size_t i = 0; i < sizeof whole_optims / sizeof *whole_optims; i++) {
        static whole_net n;
        uint64_t before = 0, after = 1;
        dt_graph *first = g->graph;
        dt_optim_desc optim = whole_optims[i];
        optim.lr = 1e38;
        optim.weight_decay = 50;
        if (OK(g, dt_graph_create(g->ctx, &g->graph)) && whole_open(g, &n, optim)) {
            dt_store_state_hash(g->store, &before);
            CHECK(whole_step(g, &n, 1) == DT_ERROR_NUMERIC);
            CHECK_CONTAINS(dt_ctx_error(g->ctx), "its value");
            dt_store_state_hash(g->store, &after);
            CHECK(before == after);
        }
        whole_close(g);
        dt_graph_destroy(g->graph);
        g->graph = first;
    }
}

TEST(optimizers_of_whole_parameters_refuse_settings_that_they_cannot_do) {
    const struct {
        dt_optim_desc desc;
        const char *text;
    } wrong[] = {
        {{.kind = DT_OPTIM_LAMB, .groups = {{.params = "*", .sparse = true}}},
         ".groups[0].sparse cannot be combined with LAMB"},
        {{.kind = DT_OPTIM_MUON, .groups = {{.params = "*", .sparse = true}}},
         ".groups[0].sparse cannot be combined with Muon"},
        {{.kind = DT_OPTIM_LION, .groups = {{.params = "*", .elementwise = true}}},
         ".groups[0].elementwise: Lion is elementwise already"},
        {{.kind = DT_OPTIM_ADAFACTOR, .groups = {{.params = "*", .sparse = true}}},
         ".groups[0].sparse"},
        {{.kind = DT_OPTIM_ADAFACTOR, .beta2 = -1}, "beta2 is -1"},
        {{.kind = DT_OPTIM_MUON, .momentum = 1}, ".momentum of Muon is 1"},
        {{.kind = DT_OPTIM_LARS, .trust_coefficient = -1}, "trust_coefficient is -1"},
        {{.kind = DT_OPTIM_LARS, .groups = {{.elementwise = true}}},
         ".groups[0] has settings, but no .params"},
    };
    dt_ctx *ctx;
    dt_graph *graph;
    dt_store *store;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    REQUIRE(dt_graph_create(ctx, &graph) == DT_OK);
    dt_tensor w = dt_param(graph, "w", dt_dims(3, 2), (dt_init){DT_INIT_CONSTANT, 1, 0});
    dt_tensor loss = dt_mean_loss(dt_sum(w, dt_dims(), false));
    REQUIRE(dt_store_create(graph, NULL, &store) == DT_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const dt_program_desc desc = {.loss = loss, .optim = &wrong[i].desc};
        dt_program *p = NULL;
        CHECK(dt_program_create(store, &desc, &p) == DT_ERROR_INVALID);
        CHECK_CONTAINS(dt_ctx_error(ctx), wrong[i].text);
    }
    dt_ctx_destroy(ctx);
}

/* Replicas know each parameter's whole gradient, so they make the same shares and directions. */
static uint64_t whole_replicas(const dt_ctx_desc *ctx, const dt_optim_desc *optim,
                               const char *devices) {
    static train_model m;
    dt_trainer *trainer = NULL;
    uint64_t hash = 0;
    if (!test_check(train_model_make(&m, ctx, 1), __FILE__, __LINE__, "no model"))
        return 0;
    m.adam = *optim;
    dt_trainer_desc d = train_desc(&m);
    d.devices = devices;
    d.parallel.batch_slices = 4;
    d.batch = 32;
    dt_result result = dt_trainer_create(m.graph, &d, &trainer);
    for (int i = 0; i < 6 && !result; i++)
        result = dt_trainer_step(trainer, NULL);
    if (!result)
        result = dt_store_state_hash(dt_trainer_store(trainer), &hash);
    test_check(!result, __FILE__, __LINE__, "%s: %s", devices, dt_ctx_error(m.ctx));
    dt_ctx_destroy(m.ctx);
    return hash;
}

TEST(optimizers_of_whole_parameters_have_the_same_bits_on_any_number_of_replicas) {
    const dt_ctx_desc cpu = {.no_vulkan = true};
    for (size_t i = 0; i < sizeof whole_optims / sizeof *whole_optims; i++) {
        dt_optim_desc optim = whole_optims[i];
        optim.groups[0] = (dt_optim_group){.params = "*.bias", .elementwise = true};
        const uint64_t one = whole_replicas(&cpu, &optim, "cpu");
        CHECK(one && one == whole_replicas(&cpu, &optim, "cpu,cpu"));
        CHECK(one == whole_replicas(&cpu, &optim, "cpu,cpu,cpu,cpu"));
    }
}

TEST(optimizers_of_whole_parameters_have_the_same_bits_on_two_vulkan_replicas) {
    dt_ctx *ctx = NULL;
    REQUIRE(!dt_ctx_create(NULL, &ctx));
    const bool vulkan = dt_ctx_device_count(ctx) > 1 && dt_ctx_device(ctx, 1)->usable;
    dt_ctx_destroy(ctx);
    if (!vulkan)
        SKIP("no Vulkan device");
    dt_optim_desc muon = whole_optims[2];
    muon.groups[0] = (dt_optim_group){.params = "*.bias", .elementwise = true};
    const uint64_t one = whole_replicas(NULL, &muon, "vulkan");
    CHECK(one && one == whole_replicas(NULL, &muon, "vulkan,vulkan"));
}
