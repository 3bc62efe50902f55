/* Every elementwise function of one tensor, value and slope, over all floats. Each is within the
 * bounds of its row (reference/unary.h, printed in docs/ops.md) of the formula in double. It has
 * the same bits on every instruction set of a class. On Vulkan devices it is within what unary_near
 * allows. DTRAIN_TEST_LONG takes all 2^32 floats, else every 1009th, which are 4 million of all
 * exponents; always the neighbours of edges and thresholds. DTRAIN_TEST_ULPS prints the largest
 * errors. Included by main.c. */

#include "ops/unary_exact.h"

enum { UNARY_BLOCK = 4096, UNARY_EDGES = 1 << 16 };
static const float unary_p0 = -0.75f, unary_p1 = 2.5f;

static float unary_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static uint32_t unary_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* ---- which floats */

typedef struct unary_floats {
    float edges[UNARY_EDGES];
    int edge_count, edge; /* edge: the next */
    uint64_t bits, step;
} unary_floats;

/* x, -x and the 2 n floats around each. */
static void unary_add_edge(unary_floats *f, float x, int n) {
    for (int i = -n; i <= n; i++) {
        const uint32_t bits = unary_bits(x) + (uint32_t)i;
        REQUIRE(f->edge_count + 2 <= UNARY_EDGES);
        f->edges[f->edge_count++] = unary_of_bits(bits & 0x7fffffffu);
        f->edges[f->edge_count++] = unary_of_bits(bits | 0x80000000u);
    }
}

/* Where formulas change, or have their zeros and ends. */
static void unary_edges(unary_floats *f) {
    static const float at[] = {0,
                               1e-8f,
                               1e-12f,
                               0.414213562f,
                               0.5f,
                               0.58f,
                               0.75f,
                               0.927734375f,
                               1,
                               1.19246912f,
                               1.27832127f,
                               1.5f,
                               1.84474654e19f,
                               2.41421356f,
                               2.5f,
                               3,
                               4.5f,
                               5,
                               6,
                               10,
                               17,
                               20,
                               22.8f,
                               25,
                               87.3f,
                               88.7228394f,
                               89,
                               103.972f,
                               104,
                               110,
                               102400,
                               8388608,
                               0.999f,
                               FLT_MAX,
                               INFINITY,
                               1e18f};
    for (size_t i = 0; i < DTI_COUNT(at); i++)
        unary_add_edge(f, at[i], 300);
    for (uint32_t e = 0; e < 256; e++) /* powers of two, the smallest, infinity */
        unary_add_edge(f, unary_of_bits(e << 23), 3);
    for (int k = 1; k < 12000; k += k < 100 ? 1 : 97) /* zeros of sine and cosine */
        unary_add_edge(f, (float)(k * 1.5707963267948966), 1);
    unary_add_edge(f, 16367173.0f * 0x1p72f, 9); /* the nearest of all to one */
    unary_add_edge(f, 0x1.f3bdf8p-3f, 9);
    unary_add_edge(f, NAN, 9);
}

static void unary_start(unary_floats *f, uint64_t step) {
    f->edge_count = f->edge = 0;
    f->bits = 0;
    f->step = step;
    unary_edges(f);
}

/* The next block; returns how many. */
static int unary_next(unary_floats *f, float *x) {
    int n = 0;
    while (n < UNARY_BLOCK && f->edge < f->edge_count)
        x[n++] = f->edges[f->edge++];
    for (; n < UNARY_BLOCK && f->bits >> 32 == 0; f->bits += f->step)
        x[n++] = unary_of_bits((uint32_t)f->bits);
    return n;
}

static uint64_t unary_step(void) {
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ || !defined __OPTIMIZE__
    const uint64_t step = 40009;
#else
    const uint64_t step = 1009;
#endif
    return test_is_long() ? 1 : step;
}

/* ---- how far off */

/* A unit in the last place of the float next to want. */
static double unary_ulp(double want) {
    uint64_t bits;
    double ulp;
    memcpy(&bits, &want, sizeof bits);
    int e = (int)(bits >> 52 & 0x7ff) - 1023;
    e = e < -126 ? -126 : e > 127 ? 127 : e;
    bits = (uint64_t)(e - 23 + 1023) << 52;
    memcpy(&ulp, &bits, sizeof ulp);
    return ulp;
}

/* In units in the last place; infinity counts as 2^128. 0 where want is rounded to got. */
static double unary_ulps(float got, double want) {
    if (isnan(got) || isnan(want))
        return isnan(got) && isnan(want) ? 0 : INFINITY;
    if ((float)want == got)
        return 0;
    if (isinf(want))
        return INFINITY;
    const double g = isinf(got) ? copysign(0x1p128, (double)got) : (double)got;
    const double w = fmax(-0x1p128, fmin(want, 0x1p128));
    return fabs(g - w) / unary_ulp(w);
}

/* Whether got is within the bounds: {ulps, distance}. An exact function gives zeros their sign. */
static bool unary_within(float got, double want, const double *bounds) {
    if (bounds[0] == 0)
        return unary_bits(got) == unary_bits((float)want) || (isnan(got) && isnan(want));
    const double ulps = unary_ulps(got, want);
    return ulps <= bounds[0] || fabs((double)got - want) <= bounds[1];
}

typedef struct unary_worst {
    double ulps; /* of those beyond the distance */
    float at;
} unary_worst;

static void unary_check(unary_worst *worst, const char *what, float x, float got, double want,
                        const double *bounds) {
    if ((float)want == got && bounds[0] > 0)
        return;
    if (fabs((double)got - want) > bounds[1]) {
        const double ulps = unary_ulps(got, want);
        worst->at = ulps > worst->ulps ? x : worst->at;
        worst->ulps = fmax(ulps, worst->ulps);
    }
    if (!unary_within(got, want, bounds))
        test_check(false, __FILE__, __LINE__, "%s of %.9g (%a) is %.9g, not %.9g: %.3g ulps", what,
                   (double)x, (double)x, (double)got, want, unary_ulps(got, want));
}

/* The formulas in double are as good as measuring takes: a thousandth of each bound. */
TEST(unary_formulas_in_double_are_a_thousand_times_nearer_than_the_bounds) {
    for (size_t i = 0; i < DTI_COUNT(unary_exact); i++) {
        const ref_unary_row *row = &ref_unary_rows[unary_exact[i].selector];
        const double x = (double)unary_of_bits(unary_exact[i].bits), p0 = (double)unary_p0;
        for (int slope = 0; slope < 2; slope++) {
            const double exact = unary_exact[i].value[slope], *bounds = row->bounds[slope];
            const double y = slope ? row->slope(x, p0, 0) : row->value(x, p0, 0);
            const double most = fmax(fmax(bounds[0], 0.5) * unary_ulp(exact), bounds[1]);
            const bool large = fabs(exact) > (double)FLT_MAX && fabs(y) > (double)FLT_MAX;
            test_check(large || fabs(y - exact) <= most / 1000, __FILE__, __LINE__,
                       "function %d%s of %a is %a, exactly %a", unary_exact[i].selector,
                       slope ? "'s slope" : "", x, y, exact);
        }
    }
}

/* ---- the CPU */

static const char *unary_name(int selector) {
    static const char *const names[DTI_U_COUNT] = {
#define UNARY_NAME(ID, name, slope) [DTI_U_##ID] = #name,
        DTI_UNARY_PLAIN(UNARY_NAME) DTI_UNARY_WITH(UNARY_NAME)
#undef UNARY_NAME
    };
    return names[selector]; /* NULL: only of launches */
}

/* y = the function, or its slope. */
static void unary_run(const dti_isa_kernels *k, int selector, bool slope, float *y, const float *x,
                      int n) {
    static float ones[UNARY_BLOCK];
    for (int i = 0; i < UNARY_BLOCK && ones[UNARY_BLOCK - 1] == 0; i++)
        ones[i] = 1;
    if (slope)
        k->unary_grad[selector](y, x, ones, n, unary_p0, unary_p1);
    else
        k->unary[selector](y, x, n, unary_p0, unary_p1);
}

static void unary_sweep(const dti_isa_kernels *k, int selector, bool slope, uint64_t step) {
    static unary_floats floats;
    static float x[UNARY_BLOCK], y[UNARY_BLOCK];
    const ref_unary_row *row = &ref_unary_rows[selector];
    char what[64];
    unary_worst worst = {0};
    snprintf(what, sizeof what, "%s: %s%s", k->name, unary_name(selector), slope ? "'s slope" : "");
    unary_start(&floats, step);
    for (int n; (n = unary_next(&floats, x)) > 0;) {
        unary_run(k, selector, slope, y, x, n);
        for (int i = 0; i < n; i++) {
            const double at = (double)x[i], p0 = (double)unary_p0, p1 = (double)unary_p1;
            const double want = slope ? row->slope(at, p0, p1) : row->value(at, p0, p1);
            unary_check(&worst, what, x[i], y[i], want, row->bounds[slope]);
        }
    }
    if (getenv("DTRAIN_TEST_ULPS"))
        printf("  %-24s %8.4g of %.3g ulps at %.9g\n", what, worst.ulps, row->bounds[slope][0],
               (double)worst.at);
}

static void unary_sweep_all(const dti_isa_kernels *k, uint64_t step) {
    for (int f = 0; f < DTI_U_COUNT; f++)
        for (int slope = 0; slope < 2 && unary_name(f); slope++)
            if (!slope || !dti_unary_rows[f].flat)
                unary_sweep(k, f, slope, step);
}

TEST(unary_functions_and_their_slopes_are_within_their_bounds_over_all_floats) {
    unary_sweep_all(dti_isa_kernels_select(DTI_ISA_AVX512), unary_step());
}

/* With or without FMA: the same bounds. */
TEST(portable_unary_functions_are_within_the_same_bounds) {
    unary_sweep_all(dti_isa_kernels_select(DTI_ISA_PORTABLE), 100 * unary_step());
}

static void unary_agree(const dti_isa_kernels *k, const dti_isa_kernels *other) {
    static unary_floats floats;
    static float x[UNARY_BLOCK], y[UNARY_BLOCK], z[UNARY_BLOCK];
    for (int f = 0; f < DTI_U_COUNT; f++)
        for (int slope = 0; slope < 2 && unary_name(f); slope++) {
            const bool same =
                slope ? k->unary_grad[f] == other->unary_grad[f] : k->unary[f] == other->unary[f];
            unary_start(&floats, unary_step());
            for (int n; !same && (n = unary_next(&floats, x)) > 0;) {
                unary_run(k, f, slope, y, x, n);
                unary_run(other, f, slope, z, x, n);
                test_check(kernel_same(y, z, n), __FILE__, __LINE__, "%s%s: %s and %s differ",
                           unary_name(f), slope ? "'s slope" : "", k->name, other->name);
            }
        }
}
TEST(unary_functions_have_one_result_on_every_instruction_set_over_all_floats) {
    if (!kernel_pairs(unary_agree))
        SKIP("this CPU has one instruction set of its class");
}

/* sin and cos reduce large arguments one by one: a vector with one of them, at each place. */
TEST(a_large_angle_does_not_change_its_neighbours) {
    const dti_isa_kernels *k = dti_isa_kernels_select(DTI_ISA_AVX512);
    float x[37], y[37], near[37];
    for (int i = 0; i < 37; i++)
        x[i] = (float)i - 18.5f;
    k->unary[DTI_U_SIN](near, x, 37, 0, 0);
    for (int i = 0; i < 37; i++) {
        const float kept = x[i];
        x[i] = i % 2 ? 1e8f : -3.4e38f;
        k->unary[DTI_U_SIN](y, x, 37, 0, 0);
        for (int j = 0; j < 37; j++)
            CHECK(j == i ? unary_ulps(y[j], sin((double)x[j])) <= 1.5 : y[j] == near[j]);
        x[i] = kept;
    }
}

/* ---- Vulkan devices */
#ifndef DT_NO_VULKAN

static dti_op unary_op(int selector) {
    for (int op = 0; op < DTI_OP_COUNT; op++) {
        const dti_op_info *info = dti_op_info_of((uint32_t)op);
        if (info->family == &dti_family_unary && info->selector == selector)
            return (dti_op)op;
    }
    return DTI_OP_NIL;
}

/* Divisions and roots are not rounded correctly there, and fma() may be two operations. A subnormal
 * on the way may count as 0: silu multiplies one by up to 104. */
static bool unary_near(float got, double want, const double *bounds) {
    const double far[2] = {4 * bounds[0] + 4, 4 * bounds[1] + 0x1p-119};
    return unary_within(got, want, far) || fabs((double)got - want) <= far[1];
}

/* Subnormals may count as 0. */
static void unary_check_device(const char *what, float x, float got, int selector, bool slope) {
    const ref_unary_row *row = &ref_unary_rows[selector];
    double (*of)(double, double, double) = slope ? row->slope : row->value;
    const double at = (double)x, p0 = (double)unary_p0, p1 = (double)unary_p1;
    const double want = of(at, p0, p1), *bounds = row->bounds[slope];
    const bool tiny = fabs(at) < 0x1p-126;
    if (!unary_near(got, want, bounds) && !(tiny && unary_near(got, of(0 * at, p0, p1), bounds)))
        test_check(false, __FILE__, __LINE__, "%s of %.9g (%a) is %.9g, not %.9g: %.3g ulps", what,
                   at, at, (double)got, want, unary_ulps(got, want));
}

/* The values that devices are asked for; returns how many. */
static int unary_some(float **x) {
    static unary_floats floats;
    int n = 0, count;
    *x = malloc((1u << 19) * sizeof **x);
    unary_start(&floats, 100003);
    while (*x && n + UNARY_BLOCK < 1 << 19 && (count = unary_next(&floats, *x + n)) > 0)
        n += count;
    return n;
}

static void unary_on_device(dt_ctx *ctx, const char *device, int selector, const float *values,
                            int n) {
    const dti_unary_row *row = &dti_unary_rows[selector];
    const dti_attr attr = {.f = {unary_p0, unary_p1}, .i = {selector}};
    const bool slopes = !row->flat && !row->linear;
    dt_graph *g = NULL;
    dt_store *store = NULL;
    dt_program *p = NULL;
    float *y = malloc((size_t)n * sizeof *y);
    char what[64];
    REQUIRE(y && !dt_graph_create(ctx, &g));
    dt_tensor x = dt_input_shared(g, "x", DT_F32, dt_dims(n));
    dt_tensor out = dti_append1(unary_op(selector), x, &(dti_attr){.f = {unary_p0, unary_p1}});
    dt_tensor one = dt_fill(g, dt_dims(n), 1);
    dt_tensor dx = slopes ? dti_append2(DTI_OP_UNARY_GRAD, x, one, &attr) : out;
    const dt_program_desc desc = {.batch = 1, .outputs = {out, slopes ? dx : (dt_tensor){0}}};
    if (dt_store_create(g, &(dt_store_desc){.device = device}, &store)) {
        test_check(false, __FILE__, __LINE__, "%s: %s", unary_name(selector), dt_ctx_error(ctx));
        return;
    }
    REQUIRE(!dt_program_create(store, &desc, &p));
    CHECK(!dt_program_write(p, x, values, (size_t)n * sizeof *values));
    CHECK(!dt_program_run(p, NULL, NULL));
    for (int slope = 0; slope <= slopes; slope++) {
        snprintf(what, sizeof what, "%s: %s%s", device, unary_name(selector),
                 slope ? "'s slope" : "");
        CHECK(!dt_program_read(p, slope ? dx : out, y, (size_t)n * sizeof *y));
        for (int i = 0; i < n; i++)
            unary_check_device(what, values[i], y[i], selector, slope);
    }
    dt_graph_destroy(g);
    free(y);
}

TEST(vulkan_unary_functions_and_their_slopes_are_within_four_times_the_bounds) {
    dt_ctx *ctx = NULL;
    float *values;
    const int n = unary_some(&values);
    REQUIRE(values && !dt_ctx_create(NULL, &ctx));
    for (int i = 0; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *info = dt_ctx_device(ctx, i);
        for (int f = 0; f < DTI_U_COUNT && strcmp(info->id, "cpu") && info->usable; f++)
            if (unary_name(f))
                unary_on_device(ctx, info->id, f, values, n);
    }
    dt_ctx_destroy(ctx);
    free(values);
}

#endif
