/* Moments, averages and the steps made of them, against float64. Gradients rise and fall by up to
 * 1e8, with every beta from 0 to 0.999. The gradient of sum(x w) is x itself. */
#include "golden/golden.h"

#include <math.h>

enum { MOMENTS_ROWS = 16, MOMENTS_COLS = 24, MOMENTS_N = MOMENTS_ROWS * MOMENTS_COLS };
enum { MOMENTS_STEPS = 30 };
#define MOMENTS_NEAR 4e-6 /* of the sum of what a moment is made of, without its signs */

/* A moment in float64, and what it would be if nothing in it had a sign. */
typedef struct moment {
    double value, size;
} moment;

static void moment_take(moment *m, double part, double keep, double x) {
    m->value = keep * m->value + part * x;
    m->size = keep * m->size + part * fabs(x);
}

typedef struct moments_case {
    dt_optim_desc desc;
    bool matrix;
} moments_case;

typedef struct moments_state {
    moment m[3];
    double w, moved; /* the weight; how far it went in all */
    double slack;    /* of the weight, where a sign is in doubt */
} moments_state;

/* DT_ZERO is 0 in a description. */
static double moments_number(double x, double usual) {
    return x == 0.0 ? usual : x == DT_ZERO ? 0.0 : x;
}

static void moments_move(moments_state *s, double step, double size) {
    s->w -= step;
    s->moved += size;
}

static void moments_adam(moments_state *s, const dt_optim_desc *d, int t, double g) {
    const double beta1 = moments_number(d->beta1, 0.9), beta2 = moments_number(d->beta2, 0.999);
    const double rate = d->lr / (1.0 - pow(beta1, t + 1)), eps = moments_number(d->eps, 1e-8);
    double second = 0;
    moment_take(&s->m[0], 1.0 - beta1, beta1, g);
    if (d->kind == DT_OPTIM_ADAMAX) {
        s->m[1].value = s->m[1].size = fmax(beta2 * s->m[1].value, fabs(g) + eps);
        second = s->m[1].value;
    } else {
        moment_take(&s->m[1], 1.0 - beta2, beta2, g * g);
        second = sqrt(s->m[1].value / (1.0 - pow(beta2, t + 1))) + eps;
    }
    moments_move(s, rate * s->m[0].value / second, rate * s->m[0].size / second);
}

static void moments_sgd(moments_state *s, const dt_optim_desc *d, int t, double g) {
    const double damped = 1.0 - moments_number(d->dampening, 0.0);
    moment_take(&s->m[0], t ? damped : 1.0, t ? d->momentum : 0.0, g);
    const double step = d->nesterov ? g + d->momentum * s->m[0].value : s->m[0].value;
    const double size = d->nesterov ? fabs(g) + d->momentum * s->m[0].size : s->m[0].size;
    moments_move(s, d->lr * step, d->lr * size);
}

static void moments_lion(moments_state *s, const dt_optim_desc *d, double g) {
    const double beta1 = moments_number(d->beta1, 0.9), beta2 = moments_number(d->beta2, 0.99);
    moment lean = s->m[0];
    moment_take(&lean, 1.0 - beta1, beta1, g);
    moment_take(&s->m[0], 1.0 - beta2, beta2, g);
    moments_move(s, lean.value > 0 ? d->lr : lean.value < 0 ? -d->lr : 0, d->lr);
    if (fabs(lean.value) < MOMENTS_NEAR * lean.size)
        s->slack += 2 * d->lr;
}

static void moments_rmsprop(moments_state *s, const dt_optim_desc *d, double g) {
    const double alpha = moments_number(d->alpha, 0.99);
    moment_take(&s->m[0], 1.0 - alpha, alpha, g * g);
    moment_take(&s->m[2], 1.0 - alpha, alpha, g);
    s->slack = INFINITY; /* the variance may be 0 */
}

static void moments_step(moments_state *s, const dt_optim_desc *d, int t, double g) {
    const double part = pow(t + 1, -moments_number(d->beta2, 0.8));
    switch (d->kind) {
    case DT_OPTIM_SGD: moments_sgd(s, d, t, g); break;
    case DT_OPTIM_LION: moments_lion(s, d, g); break;
    case DT_OPTIM_RMSPROP: moments_rmsprop(s, d, g); break;
    case DT_OPTIM_MUON: moment_take(&s->m[0], 1.0 - d->momentum, d->momentum, g); break;
    case DT_OPTIM_ADAFACTOR: moment_take(&s->m[0], part, 1.0 - part, g * g); break;
    default: moments_adam(s, d, t, g);
    }
    if (d->kind == DT_OPTIM_MUON || d->kind == DT_OPTIM_ADAFACTOR || d->kind == DT_OPTIM_LAMB ||
        d->kind == DT_OPTIM_NADAM || d->kind == DT_OPTIM_RADAM)
        s->slack = INFINITY; /* its direction does not depend on one element only */
}

/* The next gradients: each element's size goes up or down, by at most 1e8 in one step. */
static void moments_draw(uint32_t *seed, float *x) {
    for (int i = 0; i < MOMENTS_N; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        const double decade = (double)(*seed >> 8 & 0xff) / 255 * 8 - 4;
        const double sign = i % 3 == 0 && *seed >> 20 & 1 ? -1 : 1;
        x[i] = (float)(sign * pow(10, decade) * (1 + (double)(*seed >> 16) / 65536));
    }
}

static void moments_check(const char *what, int number, int step, int i, double is, double should,
                          double near) {
    test_check(fabs(is - should) <= near, __FILE__, __LINE__,
               "%s, case %d, step %d, element %d: %.9g instead of %.9g, %.2g off, %.2g allowed",
               what, number, step, i, is, should, fabs(is - should), near);
}

static void moments_compare(golden *g, const moments_case *c, int number, int step,
                            const moments_state *s) {
    static float values[MOMENTS_N];
    static const dt_value_kind kinds[4] = {DT_VALUE_MOMENT1, DT_VALUE_MOMENT2, DT_VALUE_MOMENT3,
                                           DT_VALUE_PARAM};
    for (int k = 0; k < 4; k++) {
        const bool moment = k < 3;
        if (moment && s[0].m[k].size == 0.0)
            continue;
        OK(g, dt_store_read(g->store, 0, kinds[k], values, sizeof values));
        for (int i = 0; i < MOMENTS_N; i++)
            moments_check(moment ? "moment" : "weight", number, step, i, (double)values[i],
                          moment ? s[i].m[k].value : s[i].w,
                          moment ? MOMENTS_NEAR * s[i].m[k].size + 1e-44
                                 : 2 * MOMENTS_NEAR * s[i].moved + s[i].slack);
    }
    (void)c;
}

static void moments_train(golden *g, const moments_case *c, int number) {
    static moments_state s[MOMENTS_N];
    static float x[MOMENTS_N];
    uint32_t seed = (uint32_t)number + 1;
    memset(s, 0, sizeof s);
    dt_graph_destroy(g->graph), g->graph = NULL;
    g->store = NULL;
    if (!OK(g, dt_graph_create(g->ctx, &g->graph)))
        return;
    const dt_shape shape = c->matrix ? dt_dims(MOMENTS_ROWS, MOMENTS_COLS) : dt_dims(MOMENTS_N);
    dt_tensor in = dt_input(g->graph, "x", DT_F32, shape);
    dt_tensor w = dt_param(g->graph, "w", shape, (dt_init){0});
    dt_tensor loss = dt_mean_loss(dt_sum(dt_mul(in, w), dt_dims(), false));
    const dt_store_desc store = {.device = g->device};
    dt_program *p = NULL;
    if (!OK(g, dt_store_create(g->graph, &store, &g->store)) ||
        !OK(g, dt_program_create(
                   g->store, &(dt_program_desc){.loss = loss, .batch = 1, .optim = &c->desc}, &p)))
        return;
    for (int step = 0; step < MOMENTS_STEPS; step++) {
        moments_draw(&seed, x);
        OK(g, dt_program_write(p, in, x, sizeof x));
        OK(g, dt_program_run(p, NULL, NULL));
        for (int i = 0; i < MOMENTS_N; i++)
            moments_step(&s[i], &c->desc, step, (double)x[i]);
        moments_compare(g, c, number, step, s);
    }
}

static const double moments_betas[] = {DT_ZERO, 0.1, 0.5, 0.9, 0.999};

/* Number `number` of all; false: there are no more. */
static bool moments_case_of(int number, moments_case *c) {
    static const dt_optim_kind kinds[] = {DT_OPTIM_ADAMW, DT_OPTIM_ADAM,     DT_OPTIM_ADAMAX,
                                          DT_OPTIM_NADAM, DT_OPTIM_RADAM,    DT_OPTIM_LAMB,
                                          DT_OPTIM_LION,  DT_OPTIM_RMSPROP,  DT_OPTIM_SGD,
                                          DT_OPTIM_MUON,  DT_OPTIM_ADAFACTOR};
    const int betas = sizeof moments_betas / sizeof moments_betas[0];
    const int kind = number / betas;
    if (kind >= (int)(sizeof kinds / sizeof kinds[0]))
        return false;
    const double first = moments_betas[number % betas],
                 second = moments_betas[(number + 2) % betas];
    *c = (moments_case){.desc = {.kind = kinds[kind],
                                 .lr = 1e-3,
                                 .weight_decay = DT_ZERO,
                                 .alpha = kinds[kind] == DT_OPTIM_RMSPROP ? first : 0,
                                 .centered = kinds[kind] == DT_OPTIM_RMSPROP}};
    if (kinds[kind] != DT_OPTIM_RMSPROP && kinds[kind] != DT_OPTIM_SGD) {
        c->desc.beta1 = kinds[kind] == DT_OPTIM_ADAFACTOR ? 0 : first;
        c->desc.beta2 = kinds[kind] == DT_OPTIM_RADAM ? 0.9 : second;
    }
    if (kinds[kind] == DT_OPTIM_SGD || kinds[kind] == DT_OPTIM_MUON) {
        c->desc.momentum = first == DT_ZERO ? 0.3 : first;
        c->desc.nesterov = number % 2;
        c->desc.dampening = number % 2 || kinds[kind] == DT_OPTIM_MUON ? 0 : second;
    }
    c->desc.beta2 =
        kinds[kind] == DT_OPTIM_ADAFACTOR ? 0.5 + 0.1 * (number % betas) : c->desc.beta2;
    c->matrix = kinds[kind] == DT_OPTIM_MUON;
    return true;
}

GOLDEN(moments_of_gradients_that_rise_and_fall_are_those_of_float64, NULL) {
    moments_case c;
    for (int number = 0; moments_case_of(number, &c); number++)
        moments_train(g, &c, number);
}

/* SGD of rate 1 by what leads to the next weights: those are random, rise and fall. */
static void moments_average(golden *g, double decay) {
    static float w[MOMENTS_N], x[MOMENTS_N], average[MOMENTS_N];
    static moment m[MOMENTS_N];
    uint32_t seed = 5;
    const dt_optim_desc sgd = {
        .kind = DT_OPTIM_SGD, .lr = 1, .average = {.kind = DT_AVERAGE_EMA, .decay = decay}};
    dt_graph_destroy(g->graph), g->graph = NULL;
    if (!OK(g, dt_graph_create(g->ctx, &g->graph)))
        return;
    dt_tensor in = dt_input(g->graph, "x", DT_F32, dt_dims(MOMENTS_N));
    dt_tensor param = dt_param(g->graph, "w", dt_dims(MOMENTS_N), (dt_init){0});
    dt_tensor loss = dt_mean_loss(dt_sum(dt_mul(in, param), dt_dims(), false));
    dt_program *p = NULL;
    if (!OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store)) ||
        !OK(g, dt_program_create(g->store,
                                 &(dt_program_desc){.loss = loss, .batch = 1, .optim = &sgd}, &p)))
        return;
    memset(w, 0, sizeof w);
    for (int step = 0; step < MOMENTS_STEPS; step++) {
        const double rest = step ? 1.0 - moments_number(decay, 0.999) : 1.0;
        moments_draw(&seed, x);
        for (int i = 0; i < MOMENTS_N; i++)
            x[i] = w[i] - x[i];
        OK(g, dt_program_write(p, in, x, sizeof x));
        OK(g, dt_program_run(p, NULL, NULL));
        OK(g, dt_store_read(g->store, 0, DT_VALUE_PARAM, w, sizeof w));
        OK(g, dt_store_read(g->store, 0, DT_VALUE_AVERAGE, average, sizeof average));
        for (int i = 0; i < MOMENTS_N; i++) {
            moment_take(&m[i], rest, 1.0 - rest, (double)w[i]);
            moments_check("average", 0, step, i, (double)average[i], m[i].value,
                          MOMENTS_NEAR * m[i].size);
        }
    }
}

GOLDEN(averages_of_weights_that_rise_and_fall_are_those_of_float64, NULL) {
    for (size_t i = 0; i < sizeof moments_betas / sizeof moments_betas[0]; i++)
        moments_average(g, moments_betas[i]);
}

/* ---- accumulated micro-batches */

enum { MICROS = 4096, MICRO_N = 300 };

/* The sum of `micros` gradients by micro-batches of one sample each. equal: all values are 0.1. */
static double micros_error(golden *g, int micros, bool equal) {
    static float x[MICRO_N], sum[MICRO_N];
    static double should[MICRO_N], size[MICRO_N];
    uint32_t seed = 3;
    double worst = 0;
    dt_graph_destroy(g->graph), g->graph = NULL;
    if (!OK(g, dt_graph_create(g->ctx, &g->graph)))
        return INFINITY;
    dt_tensor in = dt_input(g->graph, "x", DT_F32, dt_dims(MICRO_N));
    dt_tensor w = dt_param(g->graph, "w", dt_dims(MICRO_N), (dt_init){0});
    dt_tensor one = dt_sum(dt_mul(in, w), dt_dims(), false);
    dt_program *p = NULL;
    const dt_optim_desc sgd = {.kind = DT_OPTIM_SGD, .lr = 1e-3};
    const dt_program_desc desc = {
        .loss = dt_mean_loss(one), .batch = 1, .optim = &sgd, .accumulate = true};
    if (!OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store)) ||
        !OK(g, dt_program_create(g->store, &desc, &p)))
        return INFINITY;
    const double weights[DT_MAX_TERMS] = {1};
    memset(should, 0, sizeof should), memset(size, 0, sizeof size);
    for (int micro = 0; micro < micros; micro++) {
        for (int i = 0; i < MICRO_N; i++) {
            seed = seed * 1664525u + 1013904223u;
            x[i] = equal ? 0.1f : (float)(seed >> 8) * 0x1p-24f - (i % 2 ? 0.5f : 0.0f);
            should[i] += (double)x[i];
            size[i] += fabs((double)x[i]);
        }
        const dt_step_desc step = {.micro_batch = (uint32_t)micro,
                                   .micro_batches = (uint32_t)micros,
                                   .loss_weights = weights};
        if (!OK(g, dt_program_write(p, in, x, sizeof x)) || !OK(g, dt_program_run(p, &step, NULL)))
            return INFINITY;
    }
    OK(g, dt_store_read(g->store, 0, DT_VALUE_GRADIENT, sum, sizeof sum));
    for (int i = 0; i < MICRO_N; i++)
        worst = fmax(worst, fabs((double)sum[i] - should[i]) / size[i]);
    return worst;
}

GOLDEN(gradients_of_4096_micro_batches_add_up_as_in_float64, NULL) {
    for (int equal = 0; equal < 2; equal++) {
        const double worst = micros_error(g, MICROS, equal);
        test_check(worst <= 2e-7, __FILE__, __LINE__, "%s values: %.2g off",
                   equal ? "equal" : "random", worst);
    }
}
