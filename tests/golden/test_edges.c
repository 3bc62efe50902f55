/* Every function at the edges of float32, value and gradient, against PyTorch's in float32. The
 * edges are signed zeros, infinities, NaN, the largest and the smallest finite numbers, subnormals;
 * of two inputs all pairs (tools/golden/record_golden_edges.py). The table of
 * docs/coming-from-pytorch.md lists what differs and is read here: an entry that no longer differs
 * fails as well. */
#include "golden/golden.h"
#include "shaders/lib/map_body.h" /* the lists of functions */

#include <float.h>

typedef dt_tensor edge_op(dt_tensor a, dt_tensor b);

#define OF(name, expression)                                                                       \
    static dt_tensor edge_##name(dt_tensor a, dt_tensor b) {                                       \
        (void)a, (void)b;                                                                          \
        return expression;                                                                         \
    }
#define NUMBER(value) dt_fill(a.graph, dt_dims(), value)
#define NONE ((dt_tensor){0})
#define LAST dt_dims(-1)
#define X(ID, name, slope) OF(name, dt_##name(a))
DTI_UNARY_PLAIN(X)
#undef X
#define X(ID, name) OF(name, dt_##name(a, b))
DTI_BINARY_LIST(X)
#undef X

/* The first dimension is a channel for what wants one. */
static dt_tensor image_of(dt_tensor x) {
    return dt_reshape(x, dt_dims(1, 3));
}
static dt_tensor row_of(dt_tensor x) {
    return dt_reshape(x, dt_dims(dt_tensor_shape(x).dim[1]));
}
/* As x, each element this number: x's own value does not count, even if it is NaN. */
static dt_tensor constant_like(dt_tensor x, float value) {
    return dt_affine(dt_heaviside(dt_neg(dt_abs(x))), 1, value);
}
static dt_tensor constant_row(dt_tensor x, float first, float second, float third) {
    dt_tensor all[3] = {dt_slice(constant_like(x, first), 0, 0, 1)};
    all[1] = dt_slice(constant_like(x, second), 0, 0, 1);
    all[2] = dt_slice(constant_like(x, third), 0, 0, 1);
    return dt_concat(all, 3, 0);
}
static dt_tensor class_zero(dt_tensor x) {
    return dt_cast(constant_like(dt_sum(x, dt_dims(-1), false), 0), DT_I32);
}

OF(leaky_relu, dt_leaky_relu(a, 0.01f))
OF(elu, dt_elu(a, 1))
OF(affine, dt_affine(a, 3, -0.5f))
OF(clamp, dt_clamp(a, -1, 3))
OF(celu, dt_celu(a, 0.5f))
OF(asin, dt_asin(a))
OF(acos, dt_acos(a))
OF(pow_0, dt_pow(a, NUMBER(0)))
OF(pow_2, dt_pow(a, NUMBER(2)))
OF(pow_half, dt_pow(a, NUMBER(0.5f)))
OF(pow_minus_1, dt_pow(a, NUMBER(-1)))
OF(masked_fill, dt_masked_fill(a, dt_heaviside(a), 7))
OF(where, dt_where(a, a, b))
OF(atan2, dt_atan2(a, b))
OF(fmod, dt_fmod(a, b))
OF(remainder, dt_remainder(a, b))
OF(mse, dt_square(dt_sub(a, b)))
OF(l1, dt_l1(a, b))
OF(smooth_l1, dt_smooth_l1(a, b, 1))
OF(huber, dt_huber(a, b, 2))
OF(bce, dt_bce(a, b))
OF(bce_logits, dt_bce_with_logits(a, b, NONE))
OF(kl_div, dt_kl_div(a, b, false))
OF(kl_div_log, dt_kl_div(a, b, true))
OF(poisson_nll, dt_poisson_nll(a, b, true, 1e-8f, false))
OF(poisson_nll_rate, dt_poisson_nll(a, b, false, 1e-8f, false))
OF(focal, dt_focal(a, b, 0.25f, 2))
OF(margin_ranking, dt_margin_ranking(a, b, constant_like(a, 1), 0.5f))
OF(gaussian_nll, dt_gaussian_nll(a, constant_like(a, 0), b, 1e-6f, false))
OF(soft_margin, dt_soft_margin(a, b))
OF(hinge_embedding, dt_hinge_embedding(a, b, 1))
OF(prelu, dt_reshape(dt_prelu(dt_reshape(a, dt_dims(1)), dt_reshape(b, dt_dims(1))), dt_dims()))
OF(sum, dt_sum(a, LAST, false))
OF(mean, dt_mean(a, LAST, false))
OF(max, dt_max(a, LAST, false))
OF(min, dt_min(a, LAST, false))
OF(prod, dt_prod(a, 0, false))
OF(var, dt_var(a, LAST, true, false))
OF(std, dt_std(a, LAST, true, false))
OF(logsumexp, dt_logsumexp(a, LAST, false))
OF(norm1, dt_vector_norm(a, 1, LAST, false))
OF(norm2, dt_vector_norm(a, 2, LAST, false))
OF(norm_inf, dt_vector_norm(a, INFINITY, LAST, false))
OF(cumsum, dt_cumsum(a, 0))
OF(softmax, dt_softmax(a, 0))
OF(log_softmax, dt_log_softmax(a, 0))
OF(layer_norm, dt_layer_norm(a, 1, NONE, NONE, 0))
OF(rms_norm, dt_rms_norm(a, 1, NONE, 0))
OF(group_norm, row_of(dt_group_norm(image_of(a), 1, NONE, NONE, 0)))
OF(instance_norm, row_of(dt_instance_norm(image_of(a), NONE, NONE, 0)))
OF(max_pool, row_of(dt_max_pool1d(image_of(a), &(dt_pool_desc){.kernel = {2}, .stride = {1}})))
OF(avg_pool, row_of(dt_avg_pool1d(image_of(a), &(dt_pool_desc){.kernel = {2}, .stride = {1}})))
OF(argmax, dt_cast(dt_argmax(a, 0), DT_F32))
OF(argmin, dt_cast(dt_argmin(a, 0), DT_F32))
OF(sort, dt_sort(a, 0, false, NULL))
OF(dot, dt_linear(a, dt_iota(a.graph, dt_dims(1, 3)), NONE))
OF(cross_entropy, dt_cross_entropy_each(a, class_zero(a), NULL))
OF(soft_cross_entropy, dt_soft_cross_entropy(a, constant_like(a, 0.25f)))
OF(cosine_embedding,
   dt_cosine_embedding(a, constant_like(a, 1), constant_like(dt_sum(a, LAST, false), 1), 0))
OF(triplet, dt_triplet_margin(a, constant_like(a, 1), constant_like(a, 0), NULL))
OF(multi_margin, dt_multi_margin(a, class_zero(a), 1, 1, NONE))
OF(multilabel_margin, dt_multilabel_margin(a, constant_row(a, 1, 0, 0)))
OF(multilabel_soft_margin, dt_multilabel_soft_margin(a, constant_row(a, 1, 0, 1)))
OF(distillation, dt_distillation(a, constant_row(a, 0, 1, 2), 3))
OF(weight_norm, row_of(dt_weight_norm(image_of(a), dt_fill(a.graph, dt_dims(1), 1))))
OF(topk, dt_topk(a, 0, 2, true, NULL))
OF(conv1d,
   dt_reshape(dt_conv1d(image_of(a), dt_iota(a.graph, dt_dims(1, 1, 2)), NONE, NULL), dt_dims(2)))
OF(adaptive_avg_pool, dt_reshape(dt_adaptive_avg_pool1d(image_of(a), 2), dt_dims(2)))
OF(tril, row_of(dt_tril(image_of(a), 0)))
OF(cross, dt_cross(a, constant_row(a, 1, 2, 3)))
OF(pad_reflect, dt_slice(dt_pad_reflect(a, 0, 0, 1), 0, 1, 3))

/* b: it is an input too, with a gradient where PyTorch has one. */
static const struct {
    const char *name, *set;
    edge_op *op;
} edges[] = {
#define X(ID, name, slope) {#name, "points", edge_##name},
    DTI_UNARY_PLAIN(X)
#undef X
#define X(ID, name) {#name, "pairs", edge_##name},
        DTI_BINARY_LIST(X)
#undef X
#define POINTS(name)                                                                               \
    { #name, "points", edge_##name }
#define PAIRS(name)                                                                                \
    { #name, "pairs", edge_##name }
#define ROWS(name)                                                                                 \
    { #name, "rows", edge_##name }
            POINTS(leaky_relu),
    POINTS(elu),
    POINTS(affine),
    POINTS(clamp),
    POINTS(celu),
    POINTS(asin),
    POINTS(acos),
    POINTS(pow_0),
    POINTS(pow_2),
    POINTS(pow_half),
    POINTS(pow_minus_1),
    POINTS(masked_fill),
    PAIRS(where),
    PAIRS(atan2),
    PAIRS(fmod),
    PAIRS(remainder),
    PAIRS(mse),
    PAIRS(l1),
    PAIRS(smooth_l1),
    PAIRS(huber),
    PAIRS(margin_ranking),
    {"gaussian_nll", "spreads", edge_gaussian_nll},
    {"poisson_nll_rate", "logits", edge_poisson_nll_rate},
    {"focal", "logits", edge_focal},
    {"bce", "chances", edge_bce},
    {"bce_logits", "logits", edge_bce_logits},
    {"kl_div", "chances", edge_kl_div},
    PAIRS(kl_div_log),
    {"poisson_nll", "logits", edge_poisson_nll},
    {"soft_margin", "signs", edge_soft_margin},
    {"hinge_embedding", "signs", edge_hinge_embedding},
    {"prelu", "signs", edge_prelu},
    ROWS(sum),
    ROWS(mean),
    ROWS(max),
    ROWS(min),
    ROWS(prod),
    ROWS(var),
    ROWS(std),
    ROWS(logsumexp),
    ROWS(norm1),
    ROWS(norm2),
    ROWS(norm_inf),
    ROWS(cumsum),
    ROWS(softmax),
    ROWS(log_softmax),
    ROWS(layer_norm),
    ROWS(rms_norm),
    ROWS(group_norm),
    ROWS(instance_norm),
    ROWS(max_pool),
    ROWS(avg_pool),
    ROWS(argmax),
    ROWS(argmin),
    ROWS(sort),
    ROWS(dot),
    ROWS(cross_entropy),
    ROWS(soft_cross_entropy),
    ROWS(cosine_embedding),
    ROWS(triplet),
    ROWS(multi_margin),
    ROWS(multilabel_margin),
    ROWS(multilabel_soft_margin),
    ROWS(distillation),
    ROWS(weight_norm),
    ROWS(topk),
    ROWS(conv1d),
    ROWS(adaptive_avg_pool),
    ROWS(tril),
    ROWS(cross),
    ROWS(pad_reflect),
};

/* ---- One function on one device */

typedef struct edge_case {
    const char *name, *set;
    bool normal; /* leaves out points of subnormals, infinities and NaN, which a device may lack */
    size_t count, width; /* how many points; numbers of each */
    golden_array a, b;
    float *y; /* what the device gave */
    size_t y_width;
} edge_case;

static golden_array edge_array(const golden *g, const char *name, const char *kind,
                               const char *rest) {
    char key[64];
    snprintf(key, sizeof key, "%s.%s%s", name, kind, rest);
    return dt_safetensors_find(g->file, key) >= 0 ? golden_load(g, key) : (golden_array){0};
}

/* The same number, NaN and infinity too. low: how far off what is near 0 may be. */
static bool edge_same(float got, float wanted, float low) {
    if (isnan(got) || isnan(wanted))
        return isnan(got) && isnan(wanted);
    if (isinf(got) || isinf(wanted))
        return got == wanted;
    return fabsf(got - wanted) <= 2e-5f * fabsf(wanted) + low;
}

/* Where a value is NaN its slope is not compared: the step ends in an error either way. */
static bool edge_has_slope(const edge_case *c, const golden_array *y, size_t point) {
    for (size_t i = point * c->y_width; i < (point + 1) * c->y_width; i++)
        if (isnan(c->y[i]) || isnan(y->f[i]))
            return false;
    return true;
}

static bool edge_is_normal(float x) {
    return x == 0 || (fabsf(x) > 4 * FLT_MIN && fabsf(x) < FLT_MAX / 4);
}

/* Whether a point, and what is to come of it, is compared. */
static bool edge_counts(const edge_case *c, const float *wanted, size_t width, size_t point) {
    const float *a = c->a.f + point * c->width;
    bool normal = !c->b.f || edge_is_normal(c->b.f[point]);
    for (size_t i = 0; i < c->width; i++)
        normal = normal && edge_is_normal(a[i]);
    for (size_t i = 0; i < width; i++)
        normal = normal && edge_is_normal(wanted[i]);
    return normal || !c->normal;
}

/* Slopes of a row are sums of its elements' and end where the largest of them does. */
static float edge_low(const edge_case *c, const float *wanted, bool slope) {
    float largest = strcmp(c->name, "distillation") ? 0 : 1; /* a difference of logarithms near 1 */
    for (size_t i = 0; slope && c->width > 1 && i < c->width; i++)
        if (!isinf(wanted[i]) && !isnan(wanted[i]))
            largest = fmaxf(largest, fabsf(wanted[i]));
    return 2e-6f * largest;
}

/* How many points of a kind ("y", "da", "db") differ. */
static int edge_differences(const golden *g, const edge_case *c, const char *kind, const float *got,
                            size_t width) {
    golden_array y = edge_array(g, c->name, "y", ""), wanted = edge_array(g, c->name, kind, "");
    golden_array exact = edge_array(g, c->name, kind, ".exact");
    const bool slope = strcmp(kind, "y") != 0;
    int count = 0;
    bool ok = test_check(wanted.count == c->count * width, __FILE__, __LINE__, "%s %s: %d values",
                         c->name, kind, (int)wanted.count);
    for (size_t p = 0; p < c->count && ok; p++) {
        bool same = true;
        const float *w = wanted.f + p * width;
        const float low = edge_low(c, w, slope);
        for (size_t i = 0; i < width; i++)
            same =
                same && (edge_same(got[p * width + i], w[i], low) ||
                         (exact.f && edge_same(got[p * width + i], exact.f[p * width + i], low)));
        if (same || !edge_counts(c, w, width, p) || (slope && !edge_has_slope(c, &y, p)))
            continue;
        count++;
        if (getenv("DTRAIN_TEST_EDGES")) /* shows the points */
            printf("%s %s of (%g, %g): %.9g, PyTorch's is %.9g\n", c->name, kind,
                   (double)c->a.f[p * c->width],
                   (double)(c->width > 1 ? c->a.f[p * c->width + 1]
                            : c->b.f     ? c->b.f[p]
                                         : 0),
                   (double)got[p * width], (double)w[0]);
    }
    free(y.data), free(wanted.data), free(exact.data);
    return count;
}

/* d(sum of y), or of a row's y * (1, 2, -1). */
static dt_tensor edge_slope(dt_tensor y, dt_tensor x) {
    const dt_shape s = dt_tensor_shape(y);
    if (s.rank == 0 || s.dim[0] == 1)
        return dt_gradient(y, x);
    dt_tensor at = dt_iota(y.graph, dt_dims(s.dim[0])), bent = dt_affine(dt_square(at), -2, 0);
    return dt_gradient(dt_mul(y, dt_add(dt_affine(at, 3, 1), bent)), x);
}

/* How many points the table lists for a function: of y, da and db. */
static void edge_listed(const char *name, int listed[3]) {
    char line[512], head[64];
    bool table = false;
    FILE *file = fopen("docs/coming-from-pytorch.md", "r");
    snprintf(head, sizeof head, "| `%s` |", name);
    memset(listed, 0, 3 * sizeof *listed);
    while (file && fgets(line, sizeof line, file)) {
        table = line[0] == '#' ? strstr(line, "At the edges of float32") != NULL : table;
        if (table && !strncmp(line, head, strlen(head)))
            test_check(
                sscanf(line + strlen(head), "%d | %d | %d |", listed, listed + 1, listed + 2) == 3,
                __FILE__, __LINE__, "no three numbers: %s", line);
    }
    if (test_check(file != NULL, __FILE__, __LINE__, "no docs/coming-from-pytorch.md"))
        fclose(file);
}

static void edge_report(const edge_case *c, const char *kind, int differences) {
    int listed[3];
    edge_listed(c->name, listed);
    const int wanted = listed[strcmp(kind, "y") ? strcmp(kind, "da") ? 2 : 1 : 0];
    test_check(c->normal ? differences <= wanted : differences == wanted, __FILE__, __LINE__,
               "%s of %s differs from PyTorch's at %d points; docs/coming-from-pytorch.md lists %d "
               "(DTRAIN_TEST_EDGES=1 shows them)",
               kind, c->name, differences, wanted);
}

static void edge_read(golden *g, dt_program *p, edge_case *c, dt_tensor x, const char *kind) {
    const dt_shape s = dt_tensor_shape(x);
    const size_t width = s.rank ? (size_t)s.dim[0] : 1, bytes = c->count * width * sizeof(float);
    float *got = malloc(bytes);
    if (OK(g, dt_program_read(p, x, got, bytes))) {
        if (!strcmp(kind, "y")) {
            c->y = malloc(bytes);
            memcpy(c->y, got, bytes);
            c->y_width = width;
        }
        edge_report(c, kind, edge_differences(g, c, kind, got, width));
    }
    free(got);
}

static void edge_run(golden *g, edge_case *c, const dt_tensor in[2], const dt_tensor outputs[3]) {
    static const char *const kinds[] = {"y", "da", "db"};
    dt_program_desc desc = {.label = c->name, .batch = (int)c->count};
    for (int k = 0, n = 0; k < 3; k++)
        if (outputs[k].graph)
            desc.outputs[n++] = outputs[k];
    dt_program *p = NULL;
    if (OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store)) &&
        (p = golden_program(g, desc)) &&
        OK(g, dt_program_write(p, in[0], c->a.data, c->a.count * 4)) &&
        (!c->b.f || OK(g, dt_program_write(p, in[1], c->b.data, c->b.count * 4))) &&
        OK(g, dt_program_run(p, NULL, NULL)))
        for (int k = 0; k < 3; k++)
            if (outputs[k].graph)
                edge_read(g, p, c, outputs[k], kinds[k]);
    while (g->program_count > 0)
        dt_program_destroy(g->programs[--g->program_count]);
    dt_store_destroy(g->store);
    g->store = NULL;
}

/* PyTorch has slopes of 0 where dtrain has no slope: they are not asked for. */
static bool edge_has(const golden *g, const edge_case *c, const char *kind) {
    golden_array slope = edge_array(g, c->name, kind, "");
    bool some = false;
    for (size_t i = 0; i < slope.count; i++)
        some = some || slope.f[i] != 0;
    free(slope.data);
    return some;
}

/* Software drivers of Vulkan compute as the CPU does. */
static bool edge_is_relaxed(const golden *g) {
    for (int i = 1; i < dt_ctx_device_count(g->ctx); i++) {
        const dt_device_info *d = dt_ctx_device(g->ctx, i);
        if (!strcmp(d->id, g->device))
            return !strstr(d->name, "llvmpipe");
    }
    return false;
}

static void edge_check(golden *g, const char *name, const char *set, edge_op *op) {
    edge_case c = {.name = name, .set = set, .width = strcmp(set, "rows") ? 1 : 3};
    c.normal = edge_is_relaxed(g);
    c.a = edge_array(g, "edges", set, ".a");
    c.b = edge_array(g, "edges", set, ".b");
    c.count = c.a.count / c.width;
    dt_graph_destroy(g->graph);
    g->graph = NULL;
    if (c.count && OK(g, dt_graph_create(g->ctx, &g->graph))) {
        dt_tensor in[2] = {dt_input(g->graph, "a", DT_F32, c.width > 1 ? dt_dims(3) : dt_dims())};
        if (c.b.f)
            in[1] = dt_input(g->graph, "b", DT_F32, dt_dims());
        dt_tensor outputs[3] = {op(in[0], in[1])};
        if (edge_has(g, &c, "da"))
            outputs[1] = edge_slope(outputs[0], in[0]);
        if (edge_has(g, &c, "db"))
            outputs[2] = edge_slope(outputs[0], in[1]);
        edge_run(g, &c, in, outputs);
    }
    free(c.a.data), free(c.b.data), free(c.y);
}

GOLDEN(every_function_is_pytorchs_at_the_edges_of_float32, "edges") {
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++)
        edge_check(g, edges[i].name, edges[i].set, edges[i].op);
}

/* ---- Masks of attention */

#define MASK_D 4 /* of a query, a key and a value */
#define MASK_ROWS 3

typedef struct mask_case {
    int keys;
    float *x[4], *dy; /* q, k, v, mask */
    double *y, *slope[4];
    size_t size[4];
} mask_case;

static void mask_open(mask_case *c, int keys, float masked) {
    const size_t size[4] = {MASK_ROWS * MASK_D, (size_t)keys * MASK_D, (size_t)keys * MASK_D,
                            (size_t)(MASK_ROWS * keys)};
    c->keys = keys;
    for (int k = 0; k < 4; k++) {
        c->size[k] = size[k];
        c->x[k] = malloc(size[k] * sizeof(float));
        c->slope[k] = calloc(size[k], sizeof(double));
        for (size_t i = 0; i < size[k]; i++)
            c->x[k][i] = (float)sin((double)(i * 7 + 3 * (size_t)k + 1));
    }
    c->y = calloc(size[0], sizeof(double));
    c->dy = malloc(size[0] * sizeof(float));
    for (size_t i = 0; i < size[0]; i++)
        c->dy[i] = (float)cos((double)(5 * i));
    for (int j = 0; j < keys; j++) { /* a whole row, half of one, and beside hidden keys */
        c->x[3][j] = masked;
        c->x[3][keys + j] = j < keys / 2 ? masked : 0;
        c->x[3][2 * keys + j] = j % 2 ? masked : -INFINITY;
    }
}

static void mask_close(mask_case *c) {
    for (int k = 0; k < 4; k++)
        free(c->x[k]), free(c->slope[k]);
    free(c->y), free(c->dy);
}

static double mask_dot(const float *a, const float *b) {
    double sum = 0;
    for (int i = 0; i < MASK_D; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* What PyTorch gives for query i, scores in float32 and all else in double; nothing for a row whose
 * keys are all hidden. */
static void mask_row(mask_case *c, int i) {
    const float *q = c->x[0] + i * MASK_D, *dy = c->dy + i * MASK_D;
    double *p = calloc((size_t)c->keys, sizeof *p), most = -INFINITY, sum = 0, mean = 0;
    for (int j = 0; j < c->keys; j++) {
        p[j] =
            (double)((float)(0.5 * mask_dot(q, c->x[1] + j * MASK_D)) + c->x[3][i * c->keys + j]);
        most = fmax(most, p[j]);
    }
    for (int j = 0; j < c->keys && most > -INFINITY; j++)
        sum += p[j] = exp(p[j] - most);
    for (int j = 0; j < c->keys && sum > 0; j++)
        mean += (p[j] /= sum) * mask_dot(dy, c->x[2] + j * MASK_D);
    for (int j = 0; j < c->keys && sum > 0; j++) {
        const double ds = p[j] * (mask_dot(dy, c->x[2] + j * MASK_D) - mean);
        c->slope[3][i * c->keys + j] = ds;
        for (int e = 0; e < MASK_D; e++) {
            c->y[i * MASK_D + e] += p[j] * (double)c->x[2][j * MASK_D + e];
            c->slope[0][i * MASK_D + e] += 0.5 * ds * (double)c->x[1][j * MASK_D + e];
            c->slope[1][j * MASK_D + e] += 0.5 * ds * (double)q[e];
            c->slope[2][j * MASK_D + e] += p[j] * (double)dy[e];
        }
    }
    free(p);
}

static void mask_read(golden *g, dt_program *p, dt_tensor x, const double *wanted, size_t count,
                      float masked, const char *what) {
    float *got = malloc(count * sizeof *got);
    const double off = masked < -1e5f ? 1e-5 : 3e-3; /* beside 1e4 scores are rounded to 1e-3 */
    if (OK(g, dt_program_read(p, x, got, count * sizeof *got)))
        for (size_t i = 0; i < count; i++)
            test_check(fabs((double)got[i] - wanted[i]) <= off * (1 + fabs(wanted[i])), __FILE__,
                       __LINE__, "%s [%d] of masks of %g, %d elements: %.9g, and not %.9g", what,
                       (int)i, (double)masked, (int)count, (double)got[i], wanted[i]);
    free(got);
}

static void mask_check(golden *g, int keys, float masked) {
    static const char *const names[] = {"q", "k", "v", "mask", "dq", "dk", "dv", "dmask"};
    mask_case c;
    dt_tensor in[4], dx[4];
    mask_open(&c, keys, masked);
    for (int i = 0; i < MASK_ROWS; i++)
        mask_row(&c, i);
    dt_graph_destroy(g->graph);
    g->graph = NULL;
    if (OK(g, dt_graph_create(g->ctx, &g->graph))) {
        for (int k = 0; k < 4; k++)
            in[k] =
                dt_input(g->graph, names[k], DT_F32,
                         dt_dims(1, k == 1 || k == 2 ? keys : MASK_ROWS, k == 3 ? keys : MASK_D));
        dt_tensor dy = dt_input(g->graph, "dy", DT_F32, dt_dims(1, MASK_ROWS, MASK_D));
        dt_tensor y = dt_attention(in[0], in[1], in[2], &(dt_attention_desc){.mask = in[3]});
        dt_tensor sum = dt_mul(y, dy);
        for (int k = 0; k < 4; k++)
            dx[k] = dt_gradient(sum, in[k]);
        dt_program *p = NULL;
        bool ok =
            OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store));
        ok = ok &&
             (p = golden_program(
                  g, (dt_program_desc){.batch = 1, .outputs = {y, dx[0], dx[1], dx[2], dx[3]}}));
        for (int k = 0; k < 4 && ok; k++)
            ok = OK(g, dt_program_write(p, in[k], c.x[k], c.size[k] * sizeof(float)));
        if (ok && OK(g, dt_program_write(p, dy, c.dy, c.size[0] * sizeof(float))) &&
            OK(g, dt_program_run(p, NULL, NULL))) {
            mask_read(g, p, y, c.y, c.size[0], masked, "y");
            for (int k = 0; k < 4; k++)
                mask_read(g, p, dx[k], c.slope[k], c.size[k], masked, names[4 + k]);
        }
    }
    while (g->program_count > 0)
        dt_program_destroy(g->programs[--g->program_count]);
    dt_store_destroy(g->store);
    g->store = NULL;
    mask_close(&c);
}

/* Blocks of the CPU end at 256 keys, those of Vulkan at 32. */
GOLDEN(keys_are_hidden_by_masks_of_minus_infinity_alone, NULL) {
    static const float masks[] = {-1e4f, -1e9f, -1e30f, -1e38f, -FLT_MAX, -INFINITY};
    static const int keys[] = {1, 5, 33, 300, 1000};
    for (size_t m = 0; m < sizeof masks / sizeof masks[0]; m++)
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
            mask_check(g, keys[k], masks[m]);
}

/* ---- Overflow */

typedef struct norm_case {
    const char *name;
    dt_tensor (*make)(dt_tensor x, int64_t n);
} norm_case;

static dt_tensor over_layer(dt_tensor x, int64_t n) {
    (void)n;
    return dt_layer_norm(x, 2, NONE, NONE, 0);
}
static dt_tensor over_rms(dt_tensor x, int64_t n) {
    (void)n;
    return dt_rms_norm(x, 2, NONE, 0);
}
static dt_tensor over_group(dt_tensor x, int64_t n) {
    (void)n;
    return dt_group_norm(x, 1, NONE, NONE, 0);
}
static dt_tensor over_instance(dt_tensor x, int64_t n) {
    (void)n;
    return dt_instance_norm(x, NONE, NONE, 0);
}
static dt_tensor over_batch(dt_tensor x, int64_t n) {
    (void)n;
    const dt_shape one = dt_dims(2);
    dt_tensor mean = dt_buffer(x.graph, "mean", one, (dt_init){0});
    dt_tensor variance = dt_buffer(x.graph, "variance", one, (dt_init){DT_INIT_CONSTANT, 1, 0});
    return dt_batch_norm(x, NONE, NONE, mean, variance, &(dt_batch_norm_desc){.frozen = true});
}
static dt_tensor over_std(dt_tensor x, int64_t n) {
    dt_tensor spread = dt_std(x, dt_dims(), false, true);
    return dt_div(x, dt_expand(spread, dt_dims(2, n)));
}

/* x: -size and size in turn, which is -1 and 1 when it is normalised. */
static void over_check(golden *g, const norm_case *c, int64_t n, float size, bool fits) {
    dt_graph_destroy(g->graph);
    g->graph = NULL;
    if (!OK(g, dt_graph_create(g->ctx, &g->graph)))
        return;
    const size_t count = (size_t)(4 * n);
    float *x = malloc(count * sizeof *x);
    for (size_t i = 0; i < count; i++)
        x[i] = i % 2 ? size : -size;
    dt_tensor in = dt_input(g->graph, "x", DT_F32, dt_dims(2, n)), y = c->make(in, n);
    dt_program *p = NULL;
    if (OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store)) &&
        (p = golden_program(
             g, (dt_program_desc){.outputs = {y}, .batch = 2, .mode = DT_MODE_TRAIN})) &&
        OK(g, dt_program_write(p, in, x, count * sizeof *x)) &&
        OK(g, dt_program_run(p, NULL, NULL)) && OK(g, dt_program_read(p, y, x, count * sizeof *x)))
        for (size_t i = 0; i < count; i++)
            test_check(fits ? fabsf(x[i] - (i % 2 ? 1 : -1)) <= 1e-3f : isnan(x[i]), __FILE__,
                       __LINE__, "%s of %d times %g: %g", c->name, (int)n, (double)size,
                       (double)x[i]);
    free(x);
    while (g->program_count > 0)
        dt_program_destroy(g->programs[--g->program_count]);
    dt_store_destroy(g->store);
    g->store = NULL;
}

GOLDEN(a_variance_that_overflows_is_nan_and_no_number, NULL) {
    static const norm_case norms[] = {{"layer_norm", over_layer}, {"rms_norm", over_rms},
                                      {"group_norm", over_group}, {"instance_norm", over_instance},
                                      {"batch_norm", over_batch}, {"std", over_std}};
    static const int64_t sizes[] = {2, 100, 70000};
    for (size_t i = 0; i < sizeof norms / sizeof norms[0]; i++)
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            const bool scaled = norms[i].make == over_std;
            over_check(g, &norms[i], sizes[k], 1e15f, true);
            over_check(g, &norms[i], sizes[k], 1e20f, scaled);
            over_check(g, &norms[i], sizes[k], scaled ? 1e-30f : 3e38f, scaled);
        }
}

/* ---- Slopes at 0 */

/* Generalised mean pooling after relu: (mean x^p)^(1/p) with a p that learns; slopes in double. */
GOLDEN(a_learned_exponent_trains_on_zeros, NULL) {
    const float x[4] = {0, 2, 0, 0.5f};
    const double p = 3, mean = (8 + 0.125) / 4, y = pow(mean, 1 / p);
    const double of_mean = (8 * log(2) + 0.125 * log(0.5)) / 4;
    const double slope = y * (of_mean / mean / p - log(mean) / (p * p));
    dt_tensor in = dt_input(g->graph, "x", DT_F32, dt_dims(4));
    dt_tensor e = dt_param(g->graph, "p", dt_dims(), (dt_init){DT_INIT_CONSTANT, 3, 0});
    dt_tensor m = dt_mean(dt_pow(dt_relu(in), e), dt_dims(), false);
    dt_tensor out = dt_pow(m, dt_reciprocal(e));
    dt_program *program = NULL;
    float got = NAN;
    if (OK(g, dt_store_create(g->graph, &(dt_store_desc){.device = g->device}, &g->store)) &&
        (program = golden_program(g, (dt_program_desc){.losses = {{dt_mean_loss(out), 1}},
                                                       .batch = 1,
                                                       .gradients = true})) &&
        OK(g, dt_program_write(program, in, x, sizeof x)) &&
        OK(g, dt_program_run(program, NULL, NULL)) &&
        OK(g, dt_store_read(g->store, 0, DT_VALUE_GRADIENT, &got, sizeof got)))
        golden_near((double)got, slope, 1e-5, "the slope of p", 0);
}
