/* The CPU kernels: every instruction set that this machine has gives the same bits, those of the
 * scalar text; GEMM is within its error bound for every shape and the same for every partition;
 * the functions are within the errors that math_body.h claims. */
#include "shaders/lib/math.h"

enum { KERNEL_MAX = 512 };

static uint32_t kernel_seed = 1;
static uint32_t kernel_random(void) {
    kernel_seed = kernel_seed * 1664525u + 1013904223u;
    return kernel_seed ^ kernel_seed >> 15;
}
static float kernel_uniform(void) {
    return (float)(kernel_random() >> 8) * 0x1p-23f - 1.0f;
}

/* Ordinary values, every special one, and random bits. */
static void kernel_fill(float *x, int64_t n) {
    static const float special[] = {0.0f,  -0.0f,  1.0f,    -1.0f, INFINITY, -INFINITY,
                                    NAN,   1e-45f, -1e-40f, 3e38f, -3e38f,   20.0f,
                                    20.5f, 88.8f,  -104.5f, 0.5f};
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = kernel_random();
        if (i % 3 == 0)
            memcpy(&x[i], &bits, sizeof bits);
        else
            x[i] = i % 7 == 1 ? special[i % 16] : 10.0f * kernel_uniform();
    }
}

/* The same bits, or NaN both: a NaN's sign and payload are not promised. */
static bool kernel_same(const float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&x[i], &y[i], sizeof *x) && !(x[i] != x[i] && y[i] != y[i]))
            return false;
    return true;
}

/* Calls agree(best, other) for each other set of the same class. */
static int kernel_pairs(void (*agree)(const dti_isa_kernels *, const dti_isa_kernels *)) {
    const dti_isa_kernels *best = dti_isa_kernels_select(DTI_ISA_AVX512);
    int pairs = 0;
    for (int isa = DTI_ISA_PORTABLE; isa < best->isa; isa++) {
        const dti_isa_kernels *other = dti_isa_kernels_select(isa);
        if (other->isa != isa || other->fma != best->fma)
            continue;
        agree(best, other);
        pairs++;
    }
    return pairs;
}

static void kernel_maps_agree(const dti_isa_kernels *k, const dti_isa_kernels *other) {
    float x[KERNEL_MAX], d[KERNEL_MAX], y[KERNEL_MAX], z[KERNEL_MAX];
    for (int64_t n = 1; n <= KERNEL_MAX; n = n < 70 ? n + 1 : n * 2) {
        kernel_fill(x, n);
        kernel_fill(d, n);
        for (int f = 0; f < DTI_U_COUNT; f++) {
            k->unary[f](y, x, n, 0.3f, -1.5f);
            other->unary[f](z, x, n, 0.3f, -1.5f);
            test_check(kernel_same(y, z, n), __FILE__, __LINE__, "unary %d, n %d", f, (int)n);
            k->unary_grad[f](y, x, d, n, 0.3f, -1.5f);
            other->unary_grad[f](z, x, d, n, 0.3f, -1.5f);
            test_check(kernel_same(y, z, n), __FILE__, __LINE__, "unary_grad %d, n %d", f, (int)n);
        }
        for (int f = 0; f < DTI_B_COUNT; f++)
            for (int steps = 0; steps < 4; steps++) {
                k->binary[f](y, x, steps & 1, d, steps >> 1, n);
                other->binary[f](z, x, steps & 1, d, steps >> 1, n);
                test_check(kernel_same(y, z, n), __FILE__, __LINE__, "binary %d, n %d", f, (int)n);
            }
    }
}
TEST(elementwise_kernels_have_one_result_on_every_instruction_set) {
    if (!kernel_pairs(kernel_maps_agree))
        SKIP("this CPU has one instruction set of its class");
}

/* What the rows say of a description, after t steps. */
static dti_optim_rates_f32 kernel_rates_of(const dt_optim_desc *desc, float t, float clip,
                                           float limit) {
    const dt_optim_desc d = dti_optim_resolved(desc);
    const dti_optim_rates rates = {&d, d.lr, d.weight_decay};
    dti_optim_rates_f32 r = {.t = t, .clip = clip, .limit = limit};
    uint32_t words[DTI_GROUP_WORDS];
    dti_optim_words(&rates, words);
    memcpy(r.words, words, sizeof words);
    dti_isa_kernels_select(DTI_ISA_AVX512)->optim_constants[d.kind](&r);
    return r;
}
/* Whether a group's words or the moments of a kind depend on a member. */
static bool optim_member_counts(const dt_optim_desc *with, const dt_optim_desc *without) {
    uint32_t words[2][DTI_GROUP_WORDS];
    const dt_optim_desc d[2] = {dti_optim_resolved(with), dti_optim_resolved(without)};
    for (int i = 0; i < 2; i++)
        dti_optim_words(&(dti_optim_rates){&d[i], 0.5, 0}, words[i]);
    return memcmp(words[0], words[1], sizeof words[0]) != 0 ||
           dti_optim_moments(&d[0]) != dti_optim_moments(&d[1]);
}

TEST(an_optimizer_refuses_by_name_each_member_that_its_kind_does_not_use) {
#define MEMBER(name)                                                                               \
    { "does not use ." #name ";", offsetof(dt_optim_desc, name) }
    const struct {
        const char *refusal;
        size_t at;
    } members[] = {MEMBER(nesterov),
                   MEMBER(centered),
                   MEMBER(momentum),
                   MEMBER(dampening),
                   MEMBER(beta1),
                   MEMBER(beta2),
                   MEMBER(eps),
                   MEMBER(alpha),
                   MEMBER(rho),
                   MEMBER(lr_decay),
                   MEMBER(initial_accumulator),
                   MEMBER(trust_coefficient)};
    const double zero = (double)DT_ZERO, some = 0.25;
    const bool yes = true;
    double lr;
    dt_ctx *ctx;
    REQUIRE(dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &ctx) == DT_OK);
    for (int kind = 0; kind < DTI_OPTIM_KINDS; kind++) {
        const dt_optim_desc plain = {.kind = (dt_optim_kind)kind};
        for (size_t i = 0; i < DTI_COUNT(members); i++) {
            dt_optim_desc d = plain;
            char *at = (char *)&d + members[i].at;
            memcpy(at, i < 2 ? (const void *)&yes : &some, i < 2 ? sizeof yes : sizeof some);
            const bool uses = optim_member_counts(&d, &plain) ||
                              (d.nesterov && kind == DT_OPTIM_MUON); /* it is always Nesterov's */
            bool refused = dt_optim_lr(ctx, &d, 1, &lr) == DT_ERROR_INVALID &&
                           strstr(dt_ctx_error(ctx), members[i].refusal);
            test_check(uses != refused, __FILE__, __LINE__, "kind %d: '%s'", kind,
                       members[i].refusal);
            if (i >= 2)
                memcpy(at, &zero, sizeof zero);
            refused = dt_optim_lr(ctx, i < 2 ? &plain : &d, 1, &lr) != DT_OK;
            test_check(!refused, __FILE__, __LINE__, "kind %d, 0: %s", kind, dt_ctx_error(ctx));
        }
    }
    const dt_optim_desc rprop = {.kind = DT_OPTIM_RPROP, .weight_decay = 0.1};
    CHECK(dt_optim_lr(ctx, &rprop, 1, &lr) == DT_ERROR_INVALID);
    CHECK_CONTAINS(dt_ctx_error(ctx), "Rprop does not use .weight_decay");
    dt_ctx_destroy(ctx);
}

static dti_optim_rates_f32 kernel_rates(uint32_t kind, float t, bool nesterov) {
    const dt_optim_desc d = {.kind = (dt_optim_kind)kind,
                             .lr = 0.1,
                             .weight_decay = 0.01,
                             .momentum = 0.9,
                             .dampening = nesterov ? 0 : 0.1,
                             .nesterov = nesterov};
    return kernel_rates_of(&d, t, 0.5f, 0.4f);
}

static void kernel_rows_agree(const dti_isa_kernels *k, const dti_isa_kernels *other) {
    enum { N = 300 };
    float x[N], d[N], y[N], z[N], m[2][N], v[4][N];
    for (int n = 1; n <= N; n = n < 80 ? n + 1 : n + 73) {
        for (int i = 0; i < n; i++) {
            x[i] = 4.0f * kernel_uniform();
            d[i] = kernel_uniform();
            m[0][i] = m[1][i] = kernel_uniform();
            v[0][i] = v[1][i] = kernel_uniform() + 1.0f;
            v[2][i] = v[3][i] = v[0][i];
        }
        float a[4] = {k->row_sum(x, n), k->row_sum_sq(x, n), k->row_max(x, n),
                      k->log_sum_exp(x, n)};
        float b[4] = {other->row_sum(x, n), other->row_sum_sq(x, n), other->row_max(x, n),
                      other->log_sum_exp(x, n)};
        CHECK(kernel_same(a, b, 4));
        k->softmax(y, x, n);
        other->softmax(z, x, n);
        CHECK(kernel_same(y, z, n));
        k->softmax_grad(y, x, d, n);
        other->softmax_grad(z, x, d, n);
        CHECK(kernel_same(y, z, n));
        k->log_softmax(y, x, n);
        other->log_softmax(z, x, n);
        CHECK(kernel_same(y, z, n));
        k->log_softmax_grad(y, x, d, n);
        other->log_softmax_grad(z, x, d, n);
        CHECK(kernel_same(y, z, n));
        double sums[2][16] = {{0}};
        k->col_sum(sums[0], x, n / 7, 7, 7);
        other->col_sum(sums[1], x, n / 7, 7, 7);
        CHECK(!memcmp(sums[0], sums[1], sizeof sums[0]));
        memcpy(y, x, sizeof y);
        memcpy(z, x, sizeof z);
        k->axpy(y, 0.7f, d, n);
        other->axpy(z, 0.7f, d, n);
        CHECK(kernel_same(y, z, n));
        for (uint32_t kind = 1; kind < DTI_OPTIM_KINDS; kind++) {
            float *const va[] = {y, m[0], v[0], v[2]}, *const vb[] = {z, m[1], v[1], v[3]};
            _Static_assert(DTI_COUNT(va) == DTI_OPTIM_VALUES, "all that any row has");
            const dti_optim_rates_f32 r = kernel_rates(kind, n & 2 ? 0 : (float)n, n & 1);
            k->optim_update[kind](va, d, n, &r);
            other->optim_update[kind](vb, d, n, &r);
            CHECK(kernel_same(y, z, n) && kernel_same(m[0], m[1], n) && kernel_same(v[0], v[1], n));
        }
        dti_dropout drop = {77, (uint64_t)n * 5 + 0x3fffffff0u, 3, 9, 0x80000000u, 2.0f, 0};
        k->dropout(y, x, n, &drop);
        other->dropout(z, x, n, &drop);
        CHECK(kernel_same(y, z, n));
    }
}
TEST(row_and_optimizer_kernels_have_one_result_on_every_instruction_set) {
    if (!kernel_pairs(kernel_rows_agree))
        SKIP("this CPU has one instruction set of its class");
}

/* Functions that are rarely used are compiled only for AVX2; those of every step are not. */
TEST(avx512_takes_rare_functions_from_avx2_and_has_the_others) {
    const dti_isa_kernels *k = dti_isa_kernels_select(DTI_ISA_AVX512);
    const dti_isa_kernels *other = dti_isa_kernels_select(DTI_ISA_AVX2);
    if (k->isa != DTI_ISA_AVX512)
        SKIP("this CPU has no AVX-512");
    CHECK(k->unary[DTI_U_SIN] == other->unary[DTI_U_SIN]);
    CHECK(k->unary_grad[DTI_U_ERFINV] == other->unary_grad[DTI_U_ERFINV]);
    CHECK(k->binary[DTI_B_POW] == other->binary[DTI_B_POW]);
    CHECK(k->optim_update[DT_OPTIM_LION] == other->optim_update[DT_OPTIM_LION]);
    CHECK(k->normal_quantile == other->normal_quantile && k->rnn_tanh == other->rnn_tanh);
    CHECK(k->unary[DTI_U_EXP] != other->unary[DTI_U_EXP]);
    CHECK(k->unary_grad[DTI_U_GELU] != other->unary_grad[DTI_U_GELU]);
    CHECK(k->binary[DTI_B_ADD] != other->binary[DTI_B_ADD]);
    CHECK(k->optim_update[DT_OPTIM_ADAMW] != other->optim_update[DT_OPTIM_ADAMW]);
    CHECK(k->softmax != other->softmax);
    CHECK(!DTI_HAS_RECURRENT || k->lstm != other->lstm);
    CHECK(!DTI_HAS_CTC || k->ctc_step != other->ctc_step);
}

TEST(vector_functions_have_the_bits_of_the_scalar_code) {
    const dti_isa_kernels *k = dti_isa_kernels_select(DTI_ISA_AVX512);
    if (!k->fma)
        SKIP("no FMA: a class of its own");
    float x[KERNEL_MAX], d[KERNEL_MAX], y[KERNEL_MAX], z[KERNEL_MAX];
    kernel_fill(x, KERNEL_MAX);
    kernel_fill(d, KERNEL_MAX);
#define KERNEL_MAP(ID, name, slope)                                                                \
    k->unary[DTI_U_##ID](y, x, KERNEL_MAX, 0.3f, -1.5f);                                           \
    for (int i = 0; i < KERNEL_MAX; i++)                                                           \
        z[i] = dti_m_map_##name(x[i], 0.3f, -1.5f);                                                \
    test_check(kernel_same(y, z, KERNEL_MAX), __FILE__, __LINE__, "%s", #ID);                      \
    k->unary_grad[DTI_U_##ID](y, x, d, KERNEL_MAX, 0.3f, -1.5f);                                   \
    for (int i = 0; i < KERNEL_MAX; i++)                                                           \
        z[i] = dti_m_grad_##name(x[i], d[i], 0.3f, -1.5f);                                         \
    test_check(kernel_same(y, z, KERNEL_MAX), __FILE__, __LINE__, "gradient of %s", #ID);
    DTI_UNARY_LIST(KERNEL_MAP)
#undef KERNEL_MAP
#define KERNEL_PAIR(ID, name)                                                                      \
    k->binary[DTI_B_##ID](y, x, 1, d, 1, KERNEL_MAX);                                              \
    for (int i = 0; i < KERNEL_MAX; i++)                                                           \
        z[i] = dti_m_pair_##name(x[i], d[i]);                                                      \
    test_check(kernel_same(y, z, KERNEL_MAX), __FILE__, __LINE__, "%s", #ID);
    DTI_BINARY_LIST(KERNEL_PAIR)
#undef KERNEL_PAIR
}

/* |got - want| in units of the last place of want. */
static double kernel_ulps(float got, double want) {
    if (want != want)
        return got != got ? 0 : INFINITY;
    if ((double)got == want || (double)got == (double)(float)want)
        return fabs((double)got) > FLT_MAX ? 0 : fabs((double)got - want) > 0 ? 0.5 : 0;
    int e;
    frexp(want, &e);
    return fabs((double)got - want) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

static double kernel_sigmoid(double x) {
    return 1 / (1 + exp(-x));
}
static double kernel_softplus(double x) {
    return x > 20 ? x : log1p(exp(x));
}
static double kernel_erfinv(double x) {
    return fabs(x) == 1 ? x * (double)INFINITY : fabs(x) < 1 ? ref_erfinv_f64(x) : (double)NAN;
}
static double kernel_rsqrt(double x) {
    return 1 / sqrt(x);
}

static const struct {
    int id;
    double (*exact)(double);
    double fused, unfused, range; /* bounds with and without FMA */
} kernel_functions[] = {{DTI_U_EXP, exp, 1, 1.5, 1e39},
                        {DTI_U_LOG, log, 1, 1.5, 1e39},
                        {DTI_U_EXPM1, expm1, 2, 2, 1e39},
                        {DTI_U_LOG1P, log1p, 2, 2, 1e39},
                        {DTI_U_TANH, tanh, 2, 2, 1e39},
                        {DTI_U_SIGMOID, kernel_sigmoid, 2.5, 2.5, 1e39},
                        {DTI_U_ERF, erf, 1.5, 1.5, 1e39},
                        {DTI_U_ERFINV, kernel_erfinv, 3, 3, 1},
                        {DTI_U_ATAN, atan, 2, 2, 1e39},
                        {DTI_U_SIN, sin, 1.5, 1.5, 1e39},
                        {DTI_U_COS, cos, 1.5, 1.5, 1e39},
                        {DTI_U_SQRT, sqrt, 0.5, 0.5, 1e39},
                        {DTI_U_RSQRT, kernel_rsqrt, 2, 2, 1e39},
                        {DTI_U_FLOOR, floor, 0, 0, 1e39},
                        {DTI_U_SOFTPLUS, kernel_softplus, 2, 2, 1e39}};

static void kernel_check_errors(int isa) {
    const dti_isa_kernels *k = dti_isa_kernels_select(isa);
    for (size_t f = 0; f < DTI_COUNT(kernel_functions); f++) {
        double worst = 0, bound = k->fma ? kernel_functions[f].fused : kernel_functions[f].unfused;
        float x[KERNEL_MAX], y[KERNEL_MAX], at = 0;
        for (uint64_t bits = f; bits < 1ull << 32;) {
            for (int i = 0; i < KERNEL_MAX; i++, bits += 40009) {
                uint32_t b = (uint32_t)bits;
                memcpy(&x[i], &b, sizeof b);
                if (fabs((double)x[i]) > kernel_functions[f].range)
                    x[i] = 1;
            }
            k->unary[kernel_functions[f].id](y, x, KERNEL_MAX, 0, 0);
            for (int i = 0; i < KERNEL_MAX; i++) {
                double error = kernel_ulps(y[i], kernel_functions[f].exact((double)x[i]));
                at = error > worst ? x[i] : at;
                worst = error > worst ? error : worst;
            }
        }
        test_check(worst <= bound, __FILE__, __LINE__, "%s, function %d: %.3f ulp at %a", k->name,
                   kernel_functions[f].id, worst, (double)at);
    }
}

TEST(functions_are_within_their_error_bounds) {
    kernel_check_errors(DTI_ISA_PORTABLE);
    kernel_check_errors(DTI_ISA_AVX512);
}

TEST(pow_has_the_special_cases_of_C) {
    static const float v[] = {0,    -0.0f, 1,        -1,        2,   -2,     3,      -3,
                              0.5f, -0.5f, INFINITY, -INFINITY, NAN, 1e-40f, -1e38f, 16777216.0f};
    const dti_isa_kernels *k = dti_isa_kernels_select(DTI_ISA_AVX512);
    for (size_t i = 0; i < DTI_COUNT(v); i++)
        for (size_t j = 0; j < DTI_COUNT(v); j++) {
            float y, want = (float)pow((double)v[i], (double)v[j]);
            k->binary[DTI_B_POW](&y, &v[i], 1, &v[j], 1, 1);
            bool ok = want != want
                          ? y != y
                          : signbit(want) == signbit(y) && kernel_ulps(y, (double)want) <= 2;
            test_check(ok || !k->fma, __FILE__, __LINE__, "pow(%g, %g) = %g, not %g", (double)v[i],
                       (double)v[j], (double)y, (double)want);
        }
}

/* The last of them: e^x alone would overflow by the rounding of x. */
TEST(pow_is_within_its_error_bound_up_to_the_largest_float) {
    const dti_isa_kernels *k = dti_isa_kernels_select(DTI_ISA_AVX512);
    for (int i = 0; i < 200000; i++) {
        const float a = ldexpf(1.5f + 0.49f * kernel_uniform(), i % 250 - 125);
        const double power = (i & 1 ? 127.9999 : 127.5) + 1e-4 * (double)kernel_uniform();
        const float b = (float)(power / log2((double)a));
        float y;
        k->binary[DTI_B_POW](&y, &a, 1, &b, 1, 1);
        const double want = pow((double)a, (double)b);
        const bool ok = (float)want == y || kernel_ulps(y, want) <= 2;
        test_check(ok || !k->fma, __FILE__, __LINE__, "pow(%a, %a) = %g, not %g", (double)a,
                   (double)b, (double)y, want);
    }
}

/* ---- GEMM */
typedef struct kernel_case {
    dti_gemm g;
    float *a, *b, *c, *bias, *mask, *first; /* mask: laid out as C; first: C before */
} kernel_case;

static float *kernel_floats(int64_t n) {
    float *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; x && i <= n; i++)
        x[i] = kernel_uniform();
    return x;
}

/* trans: bit 0 A, bit 1 B, bit 2 C are stored transposed; rows are longer than they need be. */
static kernel_case kernel_gemm_case(int64_t m, int64_t n, int64_t k, int trans) {
    kernel_case t = {.g = {m, n, k, NULL, k + 3, 1, NULL, n + 1, 1, NULL, n + 2, 1, NULL, 1, false,
                           0, NULL, NULL, NULL}};
    if (trans & 1)
        t.g.a_row = 1, t.g.a_col = m + 5;
    if (trans & 2)
        t.g.b_row = 1, t.g.b_col = k + 2;
    if (trans & 4)
        t.g.c_row = 1, t.g.c_col = m + 3;
    t.g.a = t.a = kernel_floats((m + 5) * (k + 5));
    t.g.b = t.b = kernel_floats((n + 5) * (k + 5));
    t.g.c = t.c = kernel_floats((m + 5) * (n + 5));
    t.first = malloc((size_t)((m + 5) * (n + 5)) * sizeof *t.first);
    memcpy(t.first, t.c, (size_t)((m + 5) * (n + 5)) * sizeof *t.first);
    t.bias = kernel_floats(n);
    t.mask = kernel_floats((m + 5) * (n + 5));
    for (int64_t i = 0; i < (m + 5) * (n + 5); i += 3)
        t.mask[i] = i % 2 ? 0.0f : NAN;
    return t;
}
static void kernel_case_free(kernel_case *t) {
    free(t->a);
    free(t->b);
    free(t->c);
    free(t->first);
    free(t->bias);
    free(t->mask);
}

/* In tiles for `threads`, in calls of `step` tiles, the last first. */
static void kernel_gemm_run(const dti_isa_kernels *k, const dti_gemm *g, int threads,
                            int64_t step) {
    size_t bytes = (dti_gemm_scratch_bytes(g) + 63) / 64 * 64;
    float *scratch = aligned_alloc(64, bytes + 64);
    memset(scratch, 0xff, bytes + 64);
    int64_t tiles = dti_gemm_tiles(g, threads);
    for (int64_t begin = (tiles - 1) / step * step; begin >= 0; begin -= step)
        dti_gemm_run(k, g, threads, begin, DTI_MIN(begin + step, tiles), scratch);
    uint64_t beyond;
    memcpy(&beyond, (char *)scratch + bytes, sizeof beyond);
    CHECK(beyond == UINT64_MAX);
    free(scratch);
}

/* Within the bound of any summation order, element by element; what is not C is untouched. */
static void kernel_gemm_check(const kernel_case *t, const char *what) {
    const dti_gemm *g = &t->g;
    int64_t bad = 0;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            int64_t at = i * g->c_row + j * g->c_col;
            double sum = g->accumulate ? (double)t->first[at] : 0, size = fabs(sum);
            for (int64_t p = 0; p < g->k; p++) {
                double ab = (double)t->a[i * g->a_row + p * g->a_col] *
                            (double)t->b[p * g->b_row + j * g->b_col];
                sum += ab;
                size += fabs(ab);
            }
            if (g->bias) {
                sum += (double)g->bias[j * g->bias_stride];
                size += fabs((double)g->bias[j * g->bias_stride]);
            }
            if (g->epilogue == DTI_GEMM_RELU && sum < 0)
                sum = 0;
            if (g->mask && !(g->mask[at] > 0))
                sum = size = 0; /* exactly */
            bad += !(fabs((double)g->c[at] - sum) <= (double)(g->k + 2) * 0x1p-24 * size);
        }
    test_check(bad == 0, __FILE__, __LINE__, "gemm %d x %d x %d %s: %d elements are wrong",
               (int)g->m, (int)g->n, (int)g->k, what, (int)bad);
    for (int64_t i = 0; i < (g->m + 5) * (g->n + 5); i++) {
        int64_t row = g->c_row == 1 ? i % g->c_col : i / g->c_row;
        int64_t col = g->c_row == 1 ? i / g->c_col : i % g->c_row;
        if (row >= g->m || col >= g->n)
            bad += memcmp(&t->c[i], &t->first[i], sizeof(float)) != 0;
    }
    test_check(bad == 0, __FILE__, __LINE__, "gemm %d x %d x %d %s wrote outside of C", (int)g->m,
               (int)g->n, (int)g->k, what);
}

static const int kernel_shapes[][3] = {{1, 1, 1},
                                       {1, 17, 5},
                                       {3, 2, 7},
                                       {11, 31, 13},
                                       {12, 32, 16},
                                       {13, 33, 17},
                                       {4, 16, 2},
                                       {64, 10, 128},
                                       {32, 64, 32},
                                       {10, 128, 64},
                                       {37, 1, 29},
                                       {1, 64, 300},
                                       {6, 15, 256},
                                       {25, 49, 257},
                                       {97, 131, 53},
                                       {96, 520, 33},
                                       {130, 66, 513},
                                       {5, 5, 0},
                                       {140, 150, 160},
                                       /* of several spans of k, in parts */ {13, 37, 4097},
                                       {2, 18, 8192},
                                       {1027, 1, 4200},
                                       {1, 520, 4352}};

TEST(gemm_is_within_its_bound_for_every_shape_and_transposition) {
    const dti_isa_kernels *best = dti_isa_kernels_select(DTI_ISA_AVX512);
    for (int isa = 0; isa <= best->isa; isa++)
        for (size_t s = 0; s < DTI_COUNT(kernel_shapes); s++)
            for (int trans = 0; trans < 8; trans++) {
                if (!test_takes((long)s + trans + isa, 1, 3)) /* others of each shape and set */
                    continue;
                const int *d = kernel_shapes[s];
                kernel_case t = kernel_gemm_case(d[0], d[1], d[2], trans);
                t.g.accumulate = (trans + (int)s) % 3 == 1;
                t.g.bias = (trans + (int)s) % 2 ? t.bias : NULL;
                t.g.epilogue = (trans + (int)s) % 4 == 1 ? DTI_GEMM_RELU : DTI_GEMM_NONE;
                t.g.mask = (trans / 2 + (int)s) % 3 == 0 ? t.mask : NULL;
                kernel_gemm_run(dti_isa_kernels_select(isa), &t.g, 1, 1);
                kernel_gemm_check(&t, dti_isa_kernels_select(isa)->name);
                kernel_case_free(&t);
            }
}

TEST(gemm_takes_any_strides) {
    float a[3 * 4 * 5], b[4 * 3 * 7], c[3 * 3 * 2];
    for (int i = 0; i < 60; i++)
        a[i] = (float)i;
    for (int i = 0; i < 84; i++)
        b[i] = (float)(i % 11);
    float bias[4] = {1, 0, 2, 0};
    dti_gemm g = {3, 3, 4, a, 20, 5, b, 21, 7, c, 6, 2, bias, 0, false, 0, NULL, NULL, NULL};
    kernel_gemm_run(dti_isa_kernels_select(DTI_ISA_AVX512), &g, 1, 1);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            double sum = 1;
            for (int p = 0; p < 4; p++)
                sum += (double)a[i * 20 + p * 5] * (double)b[p * 21 + j * 7];
            CHECK_NEAR(c[i * 6 + j * 2], sum, 0);
        }
}

/* One case in every way it can be run: C stays the same. */
static void kernel_gemm_same(kernel_case *t) {
    const dti_isa_kernels *best = dti_isa_kernels_select(DTI_ISA_AVX512);
    const int64_t size = (t->g.m + 5) * (t->g.n + 5);
    memcpy(t->c, t->first, (size_t)size * sizeof *t->c);
    kernel_gemm_run(best, &t->g, 1, 1);
    float *want = malloc((size_t)size * sizeof *want);
    memcpy(want, t->c, (size_t)size * sizeof *want);
    for (int isa = 0; isa <= best->isa; isa++) {
        const dti_isa_kernels *k = dti_isa_kernels_select(isa);
        for (int threads = 1; threads <= 7 && k->fma == best->fma; threads += 2)
            for (int64_t step = 1; step <= 4; step++) {
                memcpy(t->c, t->first, (size_t)size * sizeof *want);
                kernel_gemm_run(k, &t->g, threads, step);
                test_check(kernel_same(t->c, want, size), __FILE__, __LINE__,
                           "gemm %d x %d x %d differs: %s, %d threads, %d tiles a call",
                           (int)t->g.m, (int)t->g.n, (int)t->g.k, k->name, threads, (int)step);
            }
    }
    free(want);
}
TEST(gemm_has_one_result_for_every_set_partition_and_thread_count) {
    for (size_t s = 0; s < DTI_COUNT(kernel_shapes); s++) {
        if (!test_takes((long)s, 1, 3))
            continue;
        const int *d = kernel_shapes[s];
        kernel_case t = kernel_gemm_case(d[0], d[1], d[2], (int)s % 4);
        t.g.accumulate = s % 2;
        t.g.bias = t.bias;
        kernel_gemm_same(&t);
        t.g.bias = NULL;
        t.g.mask = t.mask;
        kernel_gemm_same(&t);
        t.g.mask = NULL;
        t.g.addend = t.mask;
        kernel_gemm_same(&t);
        kernel_case_free(&t);
    }
}

TEST(gemm_element_does_not_depend_on_its_neighbours) {
    const dti_isa_kernels *k = dti_isa_kernels_select(DTI_ISA_AVX512);
    kernel_case t = kernel_gemm_case(150, 140, 600, 0);
    kernel_gemm_run(k, &t.g, 1, 1);
    for (int64_t i = 0; i < 150; i += 37)
        for (int64_t j = 0; j < 140; j += 29) {
            float one;
            dti_gemm g = t.g;
            g.m = g.n = 1;
            g.a += i * g.a_row;
            g.b += j * g.b_col;
            g.c = &one;
            kernel_gemm_run(k, &g, 1, 1);
            CHECK(kernel_same(&one, &t.c[i * t.g.c_row + j], 1));
        }
    kernel_case_free(&t);
}

/* ---- rows, optimizers, random numbers against plain double */
TEST(softmax_rows_match_double) {
    enum { N = 77 };
    float x[N], y[N], l[N];
    double sum = 0;
    for (int i = 0; i < N; i++) {
        x[i] = 30.0f * kernel_uniform() + 200.0f;
        sum += exp((double)x[i] - 200);
    }
    const dti_isa_kernels *k = dti_isa_kernels_select(DTI_ISA_AVX512);
    k->softmax(y, x, N);
    k->log_softmax(l, x, N);
    for (int i = 0; i < N; i++) {
        double p = exp((double)x[i] - 200) / sum;
        CHECK_NEAR(y[i], p, 4e-6 * p);
        CHECK_NEAR(l[i], log(p), 1e-5);
    }
    CHECK_NEAR(k->log_sum_exp(x, N), 200 + log(sum), 2e-5);
    x[3] = INFINITY;
    CHECK(k->row_max(x, N) == INFINITY);
    x[70] = NAN;
    CHECK(k->row_max(x, N) != k->row_max(x, N));
    CHECK(k->row_max(x, 0) == -INFINITY);
}

TEST(column_sums_do_not_depend_on_where_columns_are_cut) {
    enum { ROWS = 79, COLS = 150 };
    static float x[ROWS * COLS];
    double whole[COLS + 10] = {0}, cut[COLS + 10] = {0};
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = kernel_uniform();
    const dti_isa_kernels *k = dti_isa_kernels_select(DTI_ISA_AVX512);
    k->col_sum(whole, x, ROWS, COLS, COLS);
    for (int j = 0; j < COLS; j += 7) {
        double part[16] = {0};
        k->col_sum(part, x + j, ROWS, DTI_MIN(7, COLS - j), COLS);
        memcpy(cut + j, part, (size_t)DTI_MIN(7, COLS - j) * sizeof *cut);
    }
    CHECK(!memcmp(whole, cut, COLS * sizeof *cut));
    double sum = 0;
    for (int i = 0; i < ROWS; i++)
        sum += (double)x[i * COLS + 149];
    CHECK_NEAR(whole[149], sum, 1e-5);
}

TEST(adamw_step_matches_double) {
    enum { N = 37 };
    float p[N], g[N], m[N], v[N];
    double want[N];
    const dt_optim_desc d = {.kind = DT_OPTIM_ADAMW, .lr = 0.01, .weight_decay = 0.1};
    const dti_optim_rates_f32 r = kernel_rates_of(&d, 1, 0.5f, 0);
    float *const all[DTI_OPTIM_VALUES] = {p, m, v};
    for (int i = 0; i < N; i++) {
        p[i] = kernel_uniform();
        g[i] = kernel_uniform();
        m[i] = kernel_uniform();
        v[i] = kernel_uniform() + 1.1f;
        double e = 0.5 * (double)g[i], m1 = 0.9 * (double)m[i] + 0.1 * e;
        double v1 = 0.999 * (double)v[i] + 0.001 * e * e;
        want[i] = (double)p[i] * (1 - 0.01 * 0.1) - 0.01 / 0.19 * m1 / (sqrt(v1 / 0.001999) + 1e-8);
    }
    dti_isa_kernels_select(DTI_ISA_AVX512)->optim_update[d.kind](all, g, N, &r);
    for (int i = 0; i < N; i++)
        CHECK_NEAR(p[i], want[i], 2e-7);
}

/* The third moment: of two elements one is below what there has been. */
TEST(amsgrad_divides_by_the_largest_second_moment_so_far) {
    float p[] = {1, 1}, g[] = {2, 2}, m[] = {0, 0}, v[] = {0, 0}, most[] = {1, 1e-6f};
    float *const all[DTI_OPTIM_VALUES] = {p, m, v, most};
    const dt_optim_desc d = {.kind = DT_OPTIM_AMSGRAD, .lr = 0.5};
    const dti_optim_rates_f32 r = kernel_rates_of(&d, 0, 1, 0);
    dti_isa_kernels_select(DTI_ISA_AVX512)->optim_update[d.kind](all, g, 2, &r);
    for (int i = 0; i < 2; i++) {
        const double second = i ? 0.004 : 1; /* 0.001 * 2 * 2 */
        CHECK_NEAR(m[i], 0.2, 1e-7);
        CHECK_NEAR(v[i], 0.004, 1e-9);
        CHECK_NEAR(most[i], second, 1e-9);
        CHECK_NEAR(p[i], 1 - 0.5 / 0.1 * 0.2 / (sqrt(second / 0.001) + 1e-8), 2e-7);
    }
}

TEST(the_largest_of_a_row_is_found_by_its_bits_at_every_place) {
    const dti_isa_kernels *best = dti_isa_kernels_select(DTI_ISA_AVX512);
    const float most[] = {-3, 1e-45f, FLT_MAX, -(float)INFINITY, -(float)NAN};
    float x[70] = {0};
    for (int isa = 0; isa <= best->isa; isa++)
        for (size_t m = 0; m < DTI_COUNT(most); m++)
            for (int64_t n = 1, bad = 0; n < 70; n++) {
                uint32_t want;
                memcpy(&want, &most[m], sizeof want);
                for (int64_t i = 0; i < n; i++) {
                    x[i] = most[m];
                    x[n] = (float)NAN; /* not of the row */
                    bad += dti_isa_kernels_select(isa)->row_largest(x, n) != (want & 0x7fffffffu);
                    x[i] = x[n] = 0;
                }
                test_check(bad == 0, __FILE__, __LINE__, "set %d, %g of %d", isa, (double)most[m],
                           (int)n);
            }
}

TEST(sgd_first_step_ignores_dampening) {
    float p = 1, g = 2, m = 5;
    float *const all[DTI_OPTIM_VALUES] = {&p, &m};
    dt_optim_desc d = {.kind = DT_OPTIM_SGD, .lr = 0.5, .momentum = 0.5, .dampening = 0.75};
    dti_optim_rates_f32 r = kernel_rates_of(&d, 0, 1, 0);
    const dti_isa_kernels *k = dti_isa_kernels_select(DTI_ISA_AVX512);
    k->optim_update[d.kind](all, &g, 1, &r);
    CHECK(m == 2 && p == 0);
    d.nesterov = true;
    r = kernel_rates_of(&d, 1, 1, 0);
    k->optim_update[d.kind](all, &g, 1, &r); /* m = 0.5 * 2 + 0.25 * 2; d = 2 + 0.5 * m */
    CHECK(m == 1.5f && p == -1.375f);
}

TEST(dropout_words_are_philox_of_the_element_index) {
    const dti_isa_kernels *best = dti_isa_kernels_select(DTI_ISA_AVX512);
    const uint64_t seed = 0x123456789abcdefu, starts[] = {0, 3, 0x3fffffffeu, 0xfffffffffffffff1u};
    float x[333], y[333];
    for (int i = 0; i < 333; i++)
        x[i] = 1;
    for (int isa = 0; isa <= best->isa; isa++)
        for (size_t s = 0; s < DTI_COUNT(starts); s++) {
            dti_dropout d = {seed, starts[s], 7, 11, 0x40000000u, 4.0f, 0};
            dti_isa_kernels_select(isa)->dropout(y, x, 333, &d);
            int bad = 0;
            for (uint64_t i = 0; i < 333; i++) {
                uint64_t index = starts[s] + i;
                uint32_t word = dti_philox(seed, index >> 2, (uint64_t)11 << 32 | 7).v[index & 3];
                bad += y[i] != (word < 0x40000000u ? 4.0f : 0.0f);
            }
            test_check(bad == 0, __FILE__, __LINE__, "set %d, start %d: %d words differ", isa,
                       (int)s, bad);
        }
}

/* ---- Initial values: quantiles in vectors, draws by all threads */

TEST(quantiles_in_vectors_have_the_bits_of_the_scalar_one_for_every_class) {
    enum { N = 40000 };
    static double p[N], z[N];
    for (int i = 0; i < N; i++) {
        p[i] = dti_uniform01(3, (uint64_t)i, 1);
        if (i % 4 == 1) /* both ends, as far as a draw may lie: 2^-53 */
            p[i] = ldexp(1 + p[i], -1 - i / 4 % 53);
        if (i % 8 == 5)
            p[i] = 1 - p[i] == 1 ? 1 - 0x1p-53 : 1 - p[i];
    }
    memcpy(p, (const double[]){0.5, 0.075, 0.925, 0x1p-53, 1 - 0x1p-53}, 5 * sizeof *p);
    for (int isa = DTI_ISA_PORTABLE; isa <= DTI_ISA_AVX512; isa++) {
        const dti_isa_kernels *k = dti_isa_kernels_select(isa);
        int wrong = 0;
        k->normal_quantile(z, p, N - 3); /* not a whole number of blocks */
        for (int i = 0; i < N - 3; i++) {
            const double right = dti_normal_quantile(p[i]);
            wrong += memcmp(&right, &z[i], sizeof right) != 0;
        }
        CHECK(wrong == 0);
    }
}

TEST(a_store_has_the_same_initial_values_with_any_number_of_threads) {
    const dt_init init[] = {{.kind = DT_INIT_NORMAL, .a = 0.5f, .b = 0.1f},
                            {.kind = DT_INIT_UNIFORM, .a = -1.0f, .b = 3.0f},
                            {.kind = DT_INIT_KAIMING_NORMAL},
                            {.kind = DT_INIT_CONSTANT, .a = 7.0f}};
    enum { ROWS = 1100, COLUMNS = 1001 }; /* more than a piece, and no multiple of anything */
    static float x[ROWS * COLUMNS];
    for (int threads = 1; threads <= 3; threads += 2) {
        dt_ctx *ctx;
        dt_graph *graph;
        dt_store *store;
        REQUIRE(!dt_ctx_create(&(dt_ctx_desc){.threads = threads, .no_vulkan = true}, &ctx));
        REQUIRE(!dt_graph_create(ctx, &graph));
        for (int i = 0; i < 4; i++)
            dt_param(graph, (const char *[]){"a", "b", "c", "d"}[i],
                     dt_dims(i ? 31 : ROWS, COLUMNS), init[i]);
        REQUIRE(!dt_store_create(graph, &(dt_store_desc){.device = "cpu", .seed = 9}, &store));
        for (uint32_t i = 0; i < 4; i++) {
            const size_t count = (size_t)(i ? 31 : ROWS) * COLUMNS;
            int wrong = 0;
            REQUIRE(!dt_store_read(store, (int)i, DT_VALUE_PARAM, x, count * sizeof *x));
            for (uint64_t k = 0; k < count; k += 1 + k % 29) {
                double a = i == 0 ? 0.5f : i == 1 ? -1.0 : i == 2 ? 0.0 : 7.0;
                double b = i == 0   ? (double)0.1f
                           : i == 1 ? 4.0
                           : i == 2 ? sqrt(2.0 / COLUMNS)
                                    : 0.0;
                double product = b * (i == 1 ? dti_uniform01(9, k, i) : dti_normal(9, k, i));
                DTI_FENCE(product);
                wrong += x[k] != (float)(a + product);
            }
            CHECK(wrong == 0);
        }
        dt_ctx_destroy(ctx);
    }
}
