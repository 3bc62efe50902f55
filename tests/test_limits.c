/* What calls accept, against PyTorch's rules: random arguments, on both sides of each limit. What
 * is taken has the shape, and of pools and lookups the values, that plain loops give. The rules are
 * those of PyTorch 2.15, read in its checks and tried there. */
#include "golden.h"

#include <math.h>

static uint32_t limits_state;

static int limits_draw(int from, int to) {
    limits_state = limits_state * 1664525u + 1013904223u;
    return from + (int)((limits_state >> 8) % (uint32_t)(to - from + 1));
}

/* Whether a graph took a call; a graph goes on after a refusal, which has a text that names it. */
static bool limits_took(dt_graph *g, const char *name, const char *what, dt_tensor y) {
    const char *error = dt_graph_error(g);
    test_check(!error == (y.id != 0) && (!error || strstr(error, name)), __FILE__, __LINE__,
               "%s %s: a refusal without a name: %s", name, what, error ? error : "none");
    dt_graph_clear_error(g);
    return !error;
}

static bool limits_agree(const char *name, const char *what, bool took, bool takes) {
    return test_check(took == takes, __FILE__, __LINE__, "%s %s: %s, and PyTorch %s it", name, what,
                      took ? "accepted" : "refused", takes ? "takes" : "refuses");
}

/* ---- pools of 1 to 3 axes; axes that a pool lacks are of size 1, before the others */

typedef struct limits_pool {
    int rank, size[3], kernel[3], stride[3], padding[3], out[3];
    bool ceil_mode, exclude_pad, max, usual; /* usual: no stride is given */
    char text[160];
} limits_pool;

/* aten/src/ATen/native/Pool.h: pooling_output_shape and pool2d_shape_check. */
static bool limits_pool_takes(limits_pool *c) {
    for (int i = 0; i < 3; i++) {
        const int kernel = c->kernel[i], stride = c->stride[i], padding = c->padding[i];
        if (kernel < 1 || stride < 1 || padding < 0 || padding > kernel / 2)
            return false;
        const double room = c->size[i] + 2 * padding - kernel + (c->ceil_mode ? stride - 1 : 0);
        c->out[i] = (int)floor(room / stride) + 1;
        if (c->ceil_mode && (c->out[i] - 1) * stride >= c->size[i] + padding)
            c->out[i]--;
        if (c->out[i] < 1)
            return false;
    }
    return true;
}

static limits_pool limits_pool_draw(void) {
    limits_pool c = {.rank = limits_draw(1, 3)};
    c.ceil_mode = limits_draw(0, 1), c.exclude_pad = limits_draw(0, 1), c.max = limits_draw(0, 1);
    c.usual = limits_draw(0, 3) == 0;
    for (int i = 0; i < 3; i++) {
        const bool has = i >= 3 - c.rank;
        c.size[i] = has ? limits_draw(1, 6) : 1;
        c.kernel[i] = has ? limits_draw(limits_draw(0, 29) ? 1 : -1, 5) : 1;
        c.stride[i] = !has ? 1 : c.usual ? c.kernel[i] : limits_draw(limits_draw(0, 29) ? 1 : -1, 4);
        if (c.stride[i] == 0 && !c.usual) /* that is ours for the kernel's */
            c.stride[i] = 1;
        c.padding[i] = has ? limits_draw(limits_draw(0, 29) ? 0 : -1, 3) * limits_draw(0, 1) : 0;
    }
    snprintf(c.text, sizeof c.text,
             "%dd size %d %d %d kernel %d %d %d stride %d %d %d padding %d %d %d%s%s", c.rank,
             c.size[0], c.size[1], c.size[2], c.kernel[0], c.kernel[1], c.kernel[2], c.stride[0],
             c.stride[1], c.stride[2], c.padding[0], c.padding[1], c.padding[2],
             c.ceil_mode ? " ceil" : "", c.exclude_pad ? " exclude" : "");
    return c;
}

static const char *limits_pool_name(const limits_pool *c) {
    static const char *const names[2][3] = {{"avg_pool1d", "avg_pool2d", "avg_pool3d"},
                                            {"max_pool1d", "max_pool2d", "max_pool3d"}};
    return names[c->max][c->rank - 1];
}

static dt_tensor limits_pool_make(dt_graph *g, const limits_pool *c, dt_tensor *x) {
    static int made;
    char name[32];
    const int from = 3 - c->rank;
    dt_shape s = {.rank = 1 + c->rank, .dim = {2}};
    dt_pool_desc flat = {.ceil_mode = c->ceil_mode, .exclude_pad = c->exclude_pad};
    dt_pool3d_desc deep = {.ceil_mode = c->ceil_mode, .exclude_pad = c->exclude_pad};
    for (int i = 0; i < c->rank; i++) {
        int32_t *kernel = c->rank < 3 ? flat.kernel : deep.kernel;
        int32_t *stride = c->rank < 3 ? flat.stride : deep.stride;
        s.dim[1 + i] = c->size[from + i];
        kernel[i] = c->kernel[from + i], stride[i] = c->usual ? 0 : c->stride[from + i];
        (c->rank < 3 ? flat.padding : deep.padding)[i] = c->padding[from + i];
    }
    snprintf(name, sizeof name, "x%d", made++);
    *x = dt_input(g, name, DT_F32, s);
    if (c->rank == 3)
        return c->max ? dt_max_pool3d(*x, &deep) : dt_avg_pool3d(*x, &deep);
    if (c->rank == 2)
        return c->max ? dt_max_pool2d(*x, &flat) : dt_avg_pool2d(*x, &flat);
    return c->max ? dt_max_pool1d(*x, &flat) : dt_avg_pool1d(*x, &flat);
}

/* One window: at[]: its place in the result. */
static double limits_pool_window(const limits_pool *c, const float *x, const int at[3]) {
    int from[3], to[3], divisor = 1;
    for (int i = 0; i < 3; i++) {
        const int start = at[i] * c->stride[i] - c->padding[i];
        const int stop = (int)fmin(start + c->kernel[i], c->size[i] + c->padding[i]);
        from[i] = start < 0 ? 0 : start, to[i] = stop < c->size[i] ? stop : c->size[i];
        divisor *= c->exclude_pad ? to[i] - from[i] : stop - start;
    }
    double sum = 0, most = -INFINITY;
    for (int i = from[0]; i < to[0]; i++)
        for (int j = from[1]; j < to[1]; j++)
            for (int k = from[2]; k < to[2]; k++) {
                const float value = x[(i * c->size[1] + j) * c->size[2] + k];
                sum += (double)value, most = fmax(most, (double)value);
            }
    return c->max ? most : sum / divisor;
}

static void limits_pool_values(const limits_pool *c, const float *x, const float *y) {
    const int in = c->size[0] * c->size[1] * c->size[2], out = c->out[0] * c->out[1] * c->out[2];
    int wrong = 0;
    for (int e = 0; e < 2 * out; e++) {
        const int place = e % out, last = c->out[2];
        const int at[3] = {place / last / c->out[1], place / last % c->out[1], place % last};
        const double want = limits_pool_window(c, x + e / out * in, at);
        wrong += !(fabs((double)y[e] - want) <= 1e-5);
    }
    test_check(!wrong, __FILE__, __LINE__, "%s %s: %d wrong", limits_pool_name(c), c->text, wrong);
}

/* As many pools as a program has outputs, those that are taken. */
static void limits_pools_run(golden *g, const limits_pool *c, const dt_tensor *x,
                             const dt_tensor *y, int count) {
    static float values[DT_MAX_OUTPUTS][2 * 216], out[2 * 4096];
    dt_program_desc desc = {.batch = 1};
    memcpy(desc.outputs, y, (size_t)count * sizeof *y);
    dt_program *p = golden_store(g) ? golden_program(g, desc) : NULL;
    bool ok = p != NULL;
    for (int i = 0; i < count && ok; i++) {
        const size_t n = 2u * (size_t)(c[i].size[0] * c[i].size[1] * c[i].size[2]);
        for (size_t e = 0; e < n; e++)
            values[i][e] = (float)limits_draw(-99, 99) / 16.0f;
        ok = OK(g, dt_program_write(p, x[i], values[i], n * sizeof(float)));
    }
    ok = ok && OK(g, dt_program_run(p, NULL, NULL));
    for (int i = 0; i < count && ok; i++) {
        const size_t n = 2u * (size_t)(c[i].out[0] * c[i].out[1] * c[i].out[2]);
        if (OK(g, dt_program_read(p, y[i], out, n * sizeof(float))))
            limits_pool_values(&c[i], values[i], out);
    }
}

static void limits_new_graph(golden *g) {
    while (g->program_count > 0)
        dt_program_destroy(g->programs[--g->program_count]);
    dt_store_destroy(g->store);
    dt_graph_destroy(g->graph);
    g->store = NULL, g->graph = NULL;
    OK(g, dt_graph_create(g->ctx, &g->graph));
}

GOLDEN(pools_accept_what_pytorch_accepts_and_give_its_values, NULL) {
    limits_pool c[DT_MAX_OUTPUTS];
    dt_tensor x[DT_MAX_OUTPUTS], y[DT_MAX_OUTPUTS];
    const bool cpu = strcmp(g->device, "cpu") == 0;
    int count = 0, taken = 0;
    limits_state = 7;
    for (int i = 0; i < (cpu ? 4000 : 400); i++) {
        c[count] = limits_pool_draw();
        const bool takes = limits_pool_takes(&c[count]);
        y[count] = limits_pool_make(g->graph, &c[count], &x[count]);
        const char *name = limits_pool_name(&c[count]);
        const bool took = limits_took(g->graph, name, c[count].text, y[count]);
        taken += took;
        if (!limits_agree(name, c[count].text, took, takes) || !took || ++count < DT_MAX_OUTPUTS)
            continue;
        limits_pools_run(g, c, x, y, count);
        limits_new_graph(g);
        count = 0;
    }
    CHECK(taken > (cpu ? 1000 : 100));
}
