/* What calls accept, against PyTorch's rules: random arguments, on both sides of each limit. What
 * is taken has the shape, and of pools and lookups the values, that plain loops give. The rules are
 * those of PyTorch 2.15, read in its checks and tried there. */
#include "golden/golden.h"

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

/* aten/src/ATen/native/Pool.h: pooling_output_shape, pool2d_shape_check. But PyTorch's avg_pool3d
 * refuses a kernel beyond the volume without padding; here that is as in 1 and 2 dimensions. */
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
        c.stride[i] = !has      ? 1
                      : c.usual ? c.kernel[i]
                                : limits_draw(limits_draw(0, 29) ? 1 : -1, 4);
        c.padding[i] = has ? limits_draw(limits_draw(0, 29) ? 0 : -1, 3) * limits_draw(0, 1) : 0;
    }
    bool given = c.usual;
    for (int i = 3 - c.rank; i < 3; i++)
        given = given || c.stride[i];
    for (int i = 3 - c.rank; i < 3 && !given; i++) /* only zeros: ours for the kernel's */
        c.stride[i] = c.kernel[i];
    c.usual = c.usual || !given;
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

/* ---- convolutions: channels in groups, strides and paddings of either axis */

typedef struct limits_conv {
    int rank, size[3], kernel[3], stride[3], padding[3], dilation[3], more[3], out[3];
    int groups, in, of;
    bool transposed;
    char text[240];
} limits_conv;

/* aten/src/ATen/native/Convolution.cpp: check_shape_forward, and conv_output_size. Of a transposed
 * one PyTorch takes also a result without elements. */
static bool limits_conv_takes(limits_conv *c) {
    bool takes = c->groups > 0 && c->in % c->groups == 0 && c->of % c->groups == 0;
    for (int i = 0; i < c->rank; i++) {
        const int reach = c->dilation[i] * (c->kernel[i] - 1) + 1;
        takes = takes && c->stride[i] > 0 && c->dilation[i] > 0 && c->padding[i] >= 0;
        if (!takes)
            return false;
        const int room = c->size[i] + 2 * c->padding[i] - reach;
        c->out[i] = room < 0 ? 0 : room / c->stride[i] + 1;
        if (c->transposed) {
            c->out[i] = (c->size[i] - 1) * c->stride[i] - 2 * c->padding[i] + reach + c->more[i];
            takes = c->more[i] >= 0 && (c->more[i] < c->stride[i] || c->more[i] < c->dilation[i]);
        }
        takes = takes && c->out[i] > 0;
    }
    return takes;
}

/* One 0 among other sizes is an error, and only zeros are ours for 1. */
static int limits_conv_size(void) {
    return limits_draw(0, 29) ? limits_draw(1, 3) : limits_draw(-1, 0);
}

static void limits_conv_usual(int rank, int sizes[3]) {
    bool given = false;
    for (int i = 0; i < rank; i++)
        given = given || sizes[i];
    for (int i = 0; i < rank && !given; i++)
        sizes[i] = 1;
}

static limits_conv limits_conv_draw(void) {
    limits_conv c = {.rank = limits_draw(1, 3), .groups = limits_draw(1, 3)};
    c.transposed = c.rank < 3 && limits_draw(0, 1);
    c.in = c.groups * limits_draw(1, 2) + (limits_draw(0, 19) == 0);
    c.of = c.groups * limits_draw(1, 2) + (!c.transposed && limits_draw(0, 19) == 0);
    for (int i = 0; i < c.rank; i++) {
        c.size[i] = limits_draw(1, 6), c.kernel[i] = limits_draw(1, 4);
        c.stride[i] = limits_conv_size(), c.dilation[i] = limits_conv_size();
        c.padding[i] = limits_draw(0, 29) ? limits_draw(0, 1) * limits_draw(0, 4) : -1;
        c.more[i] = c.transposed && limits_draw(0, 1) ? limits_draw(-1, 3) : 0;
    }
    limits_conv_usual(c.rank, c.stride);
    limits_conv_usual(c.rank, c.dilation);
    snprintf(c.text, sizeof c.text,
             "%dd size %d %d %d kernel %d %d %d stride %d %d %d padding %d %d %d dilation %d %d %d "
             "more %d %d groups %d of %d to %d",
             c.rank, c.size[0], c.size[1], c.size[2], c.kernel[0], c.kernel[1], c.kernel[2],
             c.stride[0], c.stride[1], c.stride[2], c.padding[0], c.padding[1], c.padding[2],
             c.dilation[0], c.dilation[1], c.dilation[2], c.more[0], c.more[1], c.groups, c.in,
             c.of);
    return c;
}

static dt_tensor limits_conv_make(dt_graph *g, const limits_conv *c) {
    static int made;
    char x_name[32], w_name[32];
    const int first = c->transposed ? c->in : c->of, second = c->transposed ? c->of : c->in;
    dt_shape s = {.rank = 1 + c->rank, .dim = {c->in}};
    dt_shape k = {.rank = 2 + c->rank, .dim = {first, second / c->groups}};
    dt_conv_desc flat = {.groups = c->groups};
    dt_conv3d_desc deep = {.groups = c->groups};
    for (int i = 0; i < c->rank; i++) {
        s.dim[1 + i] = c->size[i], k.dim[2 + i] = c->kernel[i];
        (c->rank < 3 ? flat.stride : deep.stride)[i] = c->stride[i];
        (c->rank < 3 ? flat.padding : deep.padding)[i] = c->padding[i];
        (c->rank < 3 ? flat.dilation : deep.dilation)[i] = c->dilation[i];
        if (c->rank < 3)
            flat.output_padding[i] = c->more[i];
    }
    snprintf(x_name, sizeof x_name, "cx%d", made);
    snprintf(w_name, sizeof w_name, "cw%d", made++);
    dt_tensor x = dt_input(g, x_name, DT_F32, s);
    dt_tensor w = dt_param(g, w_name, k, (dt_init){0}), b = {0};
    if (c->rank == 3)
        return dt_conv3d(x, w, b, &deep);
    if (c->transposed)
        return c->rank == 2 ? dt_conv_transpose2d(x, w, b, &flat)
                            : dt_conv_transpose1d(x, w, b, &flat);
    return c->rank == 2 ? dt_conv2d(x, w, b, &flat) : dt_conv1d(x, w, b, &flat);
}

static dt_graph *limits_graph(dt_ctx **ctx) {
    dt_graph *g = NULL;
    test_check(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, ctx) == DT_OK &&
                   dt_graph_create(*ctx, &g) == DT_OK,
               __FILE__, __LINE__, "no graph");
    return g;
}

TEST(convolutions_accept_the_settings_that_pytorch_accepts) {
    static const char *const names[2][3] = {{"conv1d", "conv2d", "conv3d"},
                                            {"conv_transpose1d", "conv_transpose2d", ""}};
    dt_ctx *ctx = NULL;
    dt_graph *g = limits_graph(&ctx);
    int taken = 0;
    limits_state = 11;
    for (int i = 0; g && i < 3000; i++) {
        limits_conv c = limits_conv_draw();
        const bool takes = limits_conv_takes(&c);
        const char *name = names[c.transposed][c.rank - 1];
        dt_tensor y = limits_conv_make(g, &c);
        const bool took = limits_took(g, "conv", c.text, y);
        taken += took;
        if (!limits_agree(name, c.text, took, takes) || !took)
            continue;
        dt_shape s = dt_tensor_shape(y);
        bool same = s.rank == 1 + c.rank && s.dim[0] == c.of;
        for (int k = 0; k < c.rank; k++)
            same = same && s.dim[1 + k] == c.out[k];
        test_check(same, __FILE__, __LINE__, "%s %s: another shape", name, c.text);
    }
    CHECK(taken > 800);
    dt_ctx_destroy(ctx);
}

/* ---- lookups and orders along an axis of 1 to 5, with samples and without */

typedef struct limits_lookup {
    dt_shape x, index;
    int axis, size, count; /* of the axis: x's, and the index' or k */
    bool samples;
    char text[96];
} limits_lookup;

static limits_lookup limits_lookup_draw(int rank) {
    limits_lookup l = {.x = {.rank = rank}, .samples = limits_draw(0, 1)};
    for (int i = 0; i < rank; i++)
        l.x.dim[i] = limits_draw(1, 3);
    l.axis = limits_draw(0, rank - 1);
    l.x.dim[l.axis] = l.size = limits_draw(1, 5);
    l.index = l.x;
    l.index.dim[l.axis] = l.count = limits_draw(1, l.size);
    snprintf(l.text, sizeof l.text, "[%d %d %d %d %d] axis %d, %d", (int)l.x.dim[0],
             (int)l.x.dim[1], (int)l.x.dim[2], (int)l.x.dim[3], (int)l.x.dim[4], l.axis, l.count);
    return l;
}

static int limits_elements(dt_shape s) {
    int n = 1;
    for (int i = 0; i < s.rank; i++)
        n *= (int)s.dim[i];
    return n;
}

enum { LIMITS_MOST = 2 * 3 * 3 * 3 * 3 * 5, LIMITS_LOOKUPS = 5 };

/* One line along the axis: x of `size`, places `at` of `count`, each `step` apart. */
static void limits_lookup_line(const limits_lookup *l, const float *x, const int32_t *at,
                               const float *picked, int step, float *const want[LIMITS_LOOKUPS]) {
    int rank_of[5];
    for (int i = 0; i < l->size; i++) {
        rank_of[i] = 0;
        for (int j = 0; j < l->size; j++)
            rank_of[i] += x[j * step] > x[i * step] || (x[j * step] == x[i * step] && j < i);
        want[1][i * step] = 0;
    }
    for (int i = 0; i < l->count; i++) {
        want[0][i * step] = x[at[i * step] * step];
        want[1][at[i * step] * step] += picked[i * step];
    }
    for (int i = 0; i < l->size; i++) {
        want[4][rank_of[i] * step] = x[i * step];
        if (rank_of[i] < l->count)
            want[3][rank_of[i] * step] = x[i * step];
    }
}

/* Of all lines: gather, scatter_add, index_select by places[], topk, sort. */
static void limits_lookup_want(const limits_lookup *l, const float *x, const int32_t *at,
                               const float *picked, const int32_t *places,
                               float *const want[LIMITS_LOOKUPS]) {
    int inner = 1, outer = l->samples ? 2 : 1;
    for (int i = 0; i < l->x.rank; i++)
        *(i < l->axis ? &outer : &inner) *= i == l->axis ? 1 : (int)l->x.dim[i];
    for (int o = 0; o < outer; o++)
        for (int i = 0; i < inner; i++) {
            const int in = o * l->size * inner + i, out = o * l->count * inner + i;
            float *const line[] = {want[0] + out, want[1] + in, NULL, want[3] + out, want[4] + in};
            limits_lookup_line(l, x + in, at + out, picked + out, inner, line);
            for (int k = 0; k < l->count; k++)
                want[2][out + k * inner] = x[in + places[k] * inner];
        }
}

static void limits_lookup_run(golden *g, const limits_lookup *l) {
    static float x[LIMITS_MOST], picked[LIMITS_MOST], got[LIMITS_MOST];
    static float want[LIMITS_LOOKUPS][LIMITS_MOST];
    static int32_t at[LIMITS_MOST], places[5];
    const int batch = l->samples ? 2 : 1;
    const int n = batch * limits_elements(l->x), m = batch * limits_elements(l->index);
    const dt_shape line = {.rank = 1, .dim = {l->count}};
    dt_tensor (*input)(dt_graph *, const char *, dt_dtype, dt_shape) =
        l->samples ? dt_input : dt_input_shared;
    limits_new_graph(g);
    dt_tensor in = input(g->graph, "x", DT_F32, l->x);
    dt_tensor index = input(g->graph, "index", DT_I32, l->index);
    dt_tensor from = input(g->graph, "from", DT_F32, l->index);
    dt_tensor along = dt_input_shared(g->graph, "along", DT_I32, line);
    const dt_tensor y[LIMITS_LOOKUPS] = {
        dt_gather(in, l->axis, index), dt_scatter_add(from, l->axis, index, l->size),
        dt_index_select(in, l->axis, along), dt_topk(in, l->axis, l->count, true, NULL),
        dt_sort(in, l->axis, true, NULL)};
    dt_program_desc desc = {.batch = batch};
    memcpy(desc.outputs, y, sizeof y);
    for (int i = 0; i < n; i++)
        x[i] = (float)limits_draw(-9, 9);
    for (int i = 0; i < m; i++)
        at[i] = limits_draw(0, l->size - 1), picked[i] = (float)limits_draw(-9, 9);
    for (int i = 0; i < l->count; i++)
        places[i] = limits_draw(0, l->size - 1);
    dt_program *p = golden_store(g) ? golden_program(g, desc) : NULL;
    if (!p || !OK(g, dt_program_write(p, in, x, (size_t)n * 4)) ||
        !OK(g, dt_program_write(p, index, at, (size_t)m * 4)) ||
        !OK(g, dt_program_write(p, from, picked, (size_t)m * 4)) ||
        !OK(g, dt_program_write(p, along, places, (size_t)l->count * 4)) ||
        !OK(g, dt_program_run(p, NULL, NULL)))
        return;
    float *const wants[] = {want[0], want[1], want[2], want[3], want[4]};
    limits_lookup_want(l, x, at, picked, places, wants);
    for (int k = 0; k < LIMITS_LOOKUPS; k++) {
        const int count = k == 1 || k == 4 ? n : m;
        int wrong = 0;
        OK(g, dt_program_read(p, y[k], got, (size_t)count * 4));
        for (int i = 0; i < count; i++)
            wrong += got[i] != want[k][i];
        test_check(!wrong, __FILE__, __LINE__, "%d of %s%s: %d wrong", k, l->text,
                   l->samples ? " samples" : "", wrong);
    }
}

GOLDEN(lookups_and_sorts_take_one_to_five_dimensions_with_samples, NULL) {
    const int times = strcmp(g->device, "cpu") == 0 ? 40 : 3;
    limits_state = 13;
    for (int i = 0; i < times; i++)
        for (int rank = 1; rank <= DT_MAX_DIMS; rank++) {
            const limits_lookup l = limits_lookup_draw(rank);
            limits_lookup_run(g, &l);
        }
}
