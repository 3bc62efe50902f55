/* A case for every row of the op table: small graphs that use the row on awkward shapes. A row
 * without a case fails test_ops.c. A case appends leaves and results to a model; values, gradients
 * and devices are test_ops.c's business. Included by test_ops.c, after the implementation. */
#ifndef DTRAIN_TESTS_OPS_CASES_H
#define DTRAIN_TESTS_OPS_CASES_H

#define OPS_LEAVES 512
#define OPS_RESULTS 160

typedef enum ops_range {
    OPS_ANY,      /* -2 .. 2 */
    OPS_AWAY,     /* the same without -0.1 .. 0.1, where many functions have a kink */
    OPS_POSITIVE, /* 0.2 .. 3 */
    OPS_INSIDE,   /* -0.95 .. 0.95 */
    OPS_WIDE,     /* -30 .. 30 */
    OPS_CLASSES   /* whole numbers 0 .. classes - 1 */
} ops_range;

typedef struct ops_leaf {
    dt_tensor x;
    ops_range range;
    int classes;
    bool ignores;  /* OPS_CLASSES: every third value is -100 */
    bool constant; /* no gradient flows to it by definition */
} ops_leaf;

typedef struct ops_model {
    dt_graph *graph;
    dti_op op;
    bool small;     /* only small shapes: for finite differences */
    bool eval;      /* as in a program that does not train */
    dt_dtype dtype; /* of values that are not whole numbers; parameters are cast to it */
    ops_leaf leaves[OPS_LEAVES];
    int leaf_count;
    dt_tensor results[OPS_RESULTS];
    int result_count;
} ops_model;

static ops_leaf *ops_leaf_add(ops_model *m, dt_tensor x, ops_range range) {
    ops_leaf *leaf = &m->leaves[m->leaf_count < OPS_LEAVES - 1 ? m->leaf_count++ : OPS_LEAVES - 1];
    *leaf = (ops_leaf){.x = x, .range = range};
    return leaf;
}

static const char *ops_name(const ops_model *m) {
    static char name[32];
    snprintf(name, sizeof name, "x%d", m->leaf_count);
    return name;
}

/* One value for each sample; one for the whole batch; a parameter; whole numbers. */
static dt_tensor ops_rows(ops_model *m, dt_shape s, ops_range range) {
    return ops_leaf_add(m, dt_input(m->graph, ops_name(m), m->dtype, s), range)->x;
}
static dt_tensor ops_shared(ops_model *m, dt_shape s, ops_range range) {
    return ops_leaf_add(m, dt_input_shared(m->graph, ops_name(m), m->dtype, s), range)->x;
}
static dt_tensor ops_param(ops_model *m, dt_shape s, ops_range range) {
    dt_tensor x = dt_param(m->graph, ops_name(m), s, (dt_init){0});
    return dt_cast(ops_leaf_add(m, x, range)->x, m->dtype);
}
static dt_tensor ops_whole(ops_model *m, bool samples, dt_shape s, int classes) {
    dt_tensor x = samples ? dt_input(m->graph, ops_name(m), DT_I32, s)
                          : dt_input_shared(m->graph, ops_name(m), DT_I32, s);
    ops_leaf_add(m, x, OPS_CLASSES)->classes = classes;
    return x;
}

static void ops_result(ops_model *m, dt_tensor y) {
    if (m->result_count < OPS_RESULTS)
        m->results[m->result_count++] = y;
}

static dt_tensor ops_like(ops_model *m, dt_tensor x, ops_range range) {
    dt_shape s = dt_tensor_shape(x);
    return dt_tensor_has_samples(x) ? ops_rows(m, s, range) : ops_shared(m, s, range);
}

/* The ways in which a tensor can lie in memory, and the lengths where workgroups end. */
enum {
    OPS_SAMPLES,
    OPS_SCALAR,
    OPS_ONE,
    OPS_EMPTY,
    OPS_PERMUTED,
    OPS_SLICED,  /* starts inside its memory */
    OPS_STRIDED, /* has gaps */
    OPS_EXPANDED,
    OPS_SAMPLES_STRIDED,
    OPS_PARAM,
    OPS_SMALL_FORMS,
    OPS_255 = OPS_SMALL_FORMS,
    OPS_256,
    OPS_257,
    OPS_FORMS
};

static dt_tensor ops_form(ops_model *m, int form, ops_range range) {
    switch (form) {
    case OPS_SAMPLES: return ops_rows(m, dt_dims(7), range);
    case OPS_SCALAR: return ops_rows(m, dt_dims(), range);
    case OPS_ONE: return ops_shared(m, dt_dims(1), range);
    case OPS_EMPTY: return ops_rows(m, dt_dims(0, 3), range);
    case OPS_PERMUTED: return dt_permute(ops_rows(m, dt_dims(5, 3, 2), range), dt_dims(2, 0, 1));
    case OPS_SLICED: return dt_slice(ops_shared(m, dt_dims(9, 5), range), 0, 2, 5);
    case OPS_STRIDED: return dt_slice(ops_shared(m, dt_dims(4, 7), range), 1, 1, 3);
    case OPS_EXPANDED: return dt_expand(ops_rows(m, dt_dims(5, 1, 3), range), dt_dims(5, 4, 3));
    case OPS_SAMPLES_STRIDED: return dt_slice(ops_rows(m, dt_dims(6, 5), range), 1, 2, 2);
    case OPS_PARAM: return ops_param(m, dt_dims(3, 11), range);
    case OPS_255: return ops_shared(m, dt_dims(255), range);
    case OPS_256: return ops_shared(m, dt_dims(256), range);
    default: return ops_shared(m, dt_dims(257), range);
    }
}

static int ops_forms(const ops_model *m) {
    return m->small ? OPS_SMALL_FORMS : OPS_FORMS;
}

static uint32_t ops_selector(const ops_model *m) {
    return dti_op_info_of(m->op)->selector;
}

/* ---- leaves */

static void ops_case_fill(ops_model *m) {
    int64_t sizes[] = {1, 0, 7, 255, 256, 257};
    for (size_t i = 0; i < DTI_COUNT(sizes); i++)
        ops_result(m, dti_constant(m->graph, m->op, dt_dims(sizes[i]), 1.5f));
    ops_result(m, dti_constant(m->graph, m->op, dt_dims(3, 2, 1, 2, 5), -0.1f));
    ops_result(m, dti_constant(m->graph, m->op, dt_dims(), 0.1f));
}

static void ops_case_seed(ops_model *m) {
    dt_tensor term = dt_mean_loss(ops_rows(m, dt_dims(7), OPS_ANY));
    ops_result(m, dti_append1(DTI_OP_SEED, term, &(dti_attr){.i = {1}}));
}

/* ---- elementwise */

static const dti_attr ops_unary_attr[] = {
    [DTI_U_LEAKY_RELU] = {.f = {0.0625f}}, /* and so 1 - slope is exact */
    [DTI_U_ELU] = {.f = {1.25f}},           [DTI_U_AFFINE] = {.f = {-1.7f, 0.3f}},
    [DTI_U_LOG_FLOOR] = {.f = {-100}}, /* its slope below is not its value's */
    [DTI_U_CLAMP] = {.f = {-0.75f, 1.25f}}, [DTI_U_COUNT] = {.f = {0}},
};

static ops_range ops_unary_range(uint32_t selector) {
    switch (selector) {
    case DTI_U_LOG:
    case DTI_U_LOG_FLOOR:
    case DTI_U_LOG1P:
    case DTI_U_SQRT:
    case DTI_U_RSQRT: return OPS_POSITIVE;
    case DTI_U_ERFINV: return OPS_INSIDE;
    case DTI_U_ABS:
    case DTI_U_SIGN:
    case DTI_U_RECIPROCAL:
    case DTI_U_RELU:
    case DTI_U_LEAKY_RELU:
    case DTI_U_ELU:
    case DTI_U_SELU:
    case DTI_U_SOFTSIGN:
    case DTI_U_HEAVISIDE: return OPS_AWAY;
    default: return OPS_ANY;
    }
}

static bool ops_unary_saturates(uint32_t selector) {
    ops_range range = ops_unary_range(selector);
    return range != OPS_POSITIVE && range != OPS_INSIDE && selector != DTI_U_RECIPROCAL;
}

static void ops_case_unary(ops_model *m) {
    uint32_t selector = ops_selector(m);
    for (int form = 0; form < ops_forms(m); form++) {
        dt_tensor x = ops_form(m, form, ops_unary_range(selector));
        ops_result(m, dti_append1(m->op, x, &ops_unary_attr[selector]));
    }
    if (!m->small && ops_unary_saturates(selector)) {
        dt_tensor x = ops_shared(m, dt_dims(999), OPS_WIDE);
        ops_result(m, dti_append1(m->op, x, &ops_unary_attr[selector]));
    }
}

static void ops_unary_grad_of(ops_model *m, uint32_t selector, dt_tensor x) {
    dti_attr attr = ops_unary_attr[selector];
    attr.i[0] = (int32_t)selector;
    ops_result(m, dti_append2(DTI_OP_UNARY_GRAD, x, ops_like(m, x, OPS_ANY), &attr));
}

static void ops_case_unary_grad(ops_model *m) {
    const uint64_t one = 1;
    const uint64_t without = one << DTI_U_SIGN | one << DTI_U_FLOOR | one << DTI_U_HEAVISIDE |
                             one << DTI_U_CEIL | one << DTI_U_ROUND | one << DTI_U_NEG |
                             one << DTI_U_AFFINE | one << DTI_U_COPY | one << DTI_U_FILL;
    for (uint32_t selector = 0; selector < DTI_U_COUNT; selector++) {
        ops_range range = ops_unary_range(selector);
        if ((without >> selector) & 1u)
            continue;
        ops_unary_grad_of(m, selector, ops_form(m, OPS_SAMPLES, range));
        ops_unary_grad_of(m, selector, ops_form(m, OPS_STRIDED, range));
        if (!m->small && ops_unary_saturates(selector))
            ops_unary_grad_of(m, selector, ops_shared(m, dt_dims(257), OPS_WIDE));
    }
    for (int form = 0; form < ops_forms(m); form++)
        ops_unary_grad_of(m, DTI_U_TANH, ops_form(m, form, OPS_ANY));
}

static ops_range ops_binary_range(const ops_model *m, int side) {
    uint32_t selector = ops_selector(m);
    if (selector == DTI_B_POW)
        return side ? OPS_ANY : OPS_POSITIVE;
    if (selector == DTI_B_MASK || selector == DTI_B_MASK_INV)
        return side ? OPS_AWAY : OPS_ANY;
    return selector == DTI_B_DIV && side ? OPS_AWAY : OPS_ANY;
}

static void ops_binary_of(ops_model *m, dt_tensor a, dt_tensor b) {
    ops_result(m, dti_append2(m->op, a, b, NULL));
}

static void ops_case_binary(ops_model *m) {
    ops_range ra = ops_binary_range(m, 0), rb = ops_binary_range(m, 1);
    for (int form = 0; form < ops_forms(m); form++) {
        dt_tensor a = ops_form(m, form, ra);
        ops_binary_of(m, a, ops_like(m, a, rb));
        dt_tensor b = ops_form(m, form, rb);
        ops_binary_of(m, ops_like(m, b, ra), b);
    }
    /* broadcast: dimensions, samples, a scalar, and both sides at once */
    ops_binary_of(m, ops_rows(m, dt_dims(3, 1, 5), ra), ops_shared(m, dt_dims(4, 1), rb));
    ops_binary_of(m, ops_shared(m, dt_dims(7), ra), ops_rows(m, dt_dims(7), rb));
    ops_binary_of(m, ops_rows(m, dt_dims(), ra), ops_param(m, dt_dims(2, 3), rb));
    ops_binary_of(m, ops_shared(m, dt_dims(2, 3, 1, 2, 1), ra),
                  ops_shared(m, dt_dims(1, 2, 1, 5), rb));
    /* ties, as far as the op has no kink there; and one tensor on both sides */
    dt_tensor x = ops_rows(m, dt_dims(5), rb == OPS_AWAY ? OPS_AWAY : ra);
    if (!m->small || dti_op_info_of(m->op)->selector <= DTI_B_DIV)
        ops_binary_of(m, x, x);
}

/* ---- views and movers */

static void ops_case_reshape(ops_model *m) {
    for (int form = 0; form < ops_forms(m); form++)
        ops_result(m, dt_flatten(ops_form(m, form, OPS_ANY)));
    ops_result(m, dt_reshape(ops_rows(m, dt_dims(6, 4), OPS_ANY), dt_dims(3, -1, 2)));
    ops_result(m, dt_reshape(ops_param(m, dt_dims(1), OPS_ANY), dt_dims()));
}

static void ops_case_permute(ops_model *m) {
    ops_result(m, dt_permute(ops_rows(m, dt_dims(4, 3), OPS_ANY), dt_dims(1, 0)));
    ops_result(m, dt_permute(ops_form(m, OPS_PERMUTED, OPS_ANY), dt_dims(1, 0, 2)));
    ops_result(m, dt_permute(ops_form(m, OPS_SLICED, OPS_ANY), dt_dims(1, 0)));
    ops_result(m, dt_permute(ops_form(m, OPS_EXPANDED, OPS_ANY), dt_dims(1, 2, 0)));
    ops_result(m, dt_permute(ops_form(m, OPS_EMPTY, OPS_ANY), dt_dims(1, 0)));
    ops_result(m,
               dt_permute(ops_shared(m, dt_dims(2, 3, 1, 2, 3), OPS_ANY), dt_dims(4, 2, 0, 3, 1)));
}

static void ops_case_slice(ops_model *m) {
    ops_result(m, dt_slice(ops_rows(m, dt_dims(7), OPS_ANY), 0, 3, 4));
    ops_result(m, dt_slice(ops_rows(m, dt_dims(3, 5), OPS_ANY), -1, 2, 1));
    ops_result(m, dt_slice(ops_form(m, OPS_PERMUTED, OPS_ANY), 1, 1, 3));
    ops_result(m, dt_slice(ops_form(m, OPS_STRIDED, OPS_ANY), 1, 2, 1));
    ops_result(m, dt_slice(ops_form(m, OPS_EXPANDED, OPS_ANY), 1, 1, 2));
    ops_result(m, dt_slice(ops_shared(m, dt_dims(5), OPS_ANY), 0, 5, 0));
}

static void ops_case_expand(ops_model *m) {
    ops_result(m, dt_expand(ops_rows(m, dt_dims(1), OPS_ANY), dt_dims(5)));
    ops_result(m, dt_expand(ops_shared(m, dt_dims(3, 1), OPS_ANY), dt_dims(2, 3, 4)));
    ops_result(m, dt_expand(ops_form(m, OPS_STRIDED, OPS_ANY), dt_dims(2, 4, 3)));
    ops_result(m, dt_expand(ops_rows(m, dt_dims(), OPS_ANY), dt_dims(2, 2)));
    ops_result(m, dt_expand(ops_rows(m, dt_dims(1), OPS_ANY), dt_dims(0)));
    dt_tensor x = ops_shared(m, dt_dims(2, 3), OPS_ANY); /* to a sample axis */
    ops_result(m, dti_expand_like(x, ops_rows(m, dt_dims(2, 3), OPS_ANY)));
}

static void ops_case_copy(ops_model *m) { /* and detach */
    for (int form = 0; form < ops_forms(m); form++)
        ops_result(m, dti_append1(m->op, ops_form(m, form, OPS_ANY), NULL));
    dt_tensor whole = ops_whole(m, true, dt_dims(4, 3), 1000);
    ops_result(m, dti_append1(m->op, dt_permute(whole, dt_dims(1, 0)), NULL));
}

static void ops_case_cast(ops_model *m) {
    ops_result(m, dt_cast(ops_whole(m, true, dt_dims(5), 1000), DT_F32));
    ops_result(m, dt_cast(ops_form(m, OPS_PERMUTED, OPS_WIDE), DT_I32));
    ops_result(m, dt_cast(ops_form(m, OPS_STRIDED, OPS_WIDE), DT_I32));
    ops_result(m, dt_cast(dt_affine(ops_rows(m, dt_dims(9), OPS_AWAY), 3e9f, 0), DT_I32));
    ops_result(m, dt_cast(ops_form(m, OPS_EMPTY, OPS_ANY), DT_I32));
    for (dt_dtype to = DT_F32; to <= DT_F16 && m->dtype != DT_F32; to++) {
        for (int form = 0; form < OPS_FORMS && to != DT_F64 && to != m->dtype; form++)
            ops_result(m, dt_cast(ops_form(m, form, OPS_WIDE), to));
    }
}

static void ops_case_concat(ops_model *m) {
    for (int form = 0; form < ops_forms(m); form++) {
        dt_tensor a = ops_form(m, form, OPS_ANY), x[3] = {a, ops_like(m, a, OPS_ANY), a};
        if (form != OPS_SCALAR)
            ops_result(m, dt_concat(x, 3, form % 2 ? -1 : 0));
    }
    dt_tensor mixed[3] = {ops_rows(m, dt_dims(2, 3), OPS_ANY), ops_param(m, dt_dims(2, 1), OPS_ANY),
                          ops_rows(m, dt_dims(2, 0), OPS_ANY)};
    ops_result(m, dt_concat(mixed, 3, 1));
    ops_result(m, dt_concat(mixed, 1, 0));
    dt_tensor whole[2] = {ops_whole(m, true, dt_dims(2), 9), ops_whole(m, false, dt_dims(3), 9)};
    ops_result(m, dt_concat(whole, 2, 0));
}

static void ops_pad_of(ops_model *m, dt_tensor x, dt_shape to, int axis, int start) {
    dti_attr attr = dti_shape_attr(to);
    attr.i[1] = axis;
    attr.i[2] = start;
    ops_result(m, dti_append1(DTI_OP_PAD, x, &attr));
}

static void ops_case_pad(ops_model *m) {
    ops_pad_of(m, ops_rows(m, dt_dims(3), OPS_ANY), dt_dims(7), 0, 2);
    ops_pad_of(m, ops_shared(m, dt_dims(2, 3), OPS_ANY), dt_dims(2, 4), 1, 1);
    ops_pad_of(m, ops_form(m, OPS_PERMUTED, OPS_ANY), dt_dims(2, 6, 3), 1, 0);
    ops_pad_of(m, ops_form(m, OPS_SLICED, OPS_ANY), dt_dims(9, 5), 0, 4);
    ops_pad_of(m, ops_form(m, OPS_EMPTY, OPS_ANY), dt_dims(2, 3), 0, 1);
    ops_pad_of(m, ops_form(m, OPS_EXPANDED, OPS_ANY), dt_dims(5, 4, 9), 2, 6);
}

/* ---- reductions */

static void ops_reduce_of(ops_model *m, dt_tensor x, dt_shape axes, bool keep) {
    ops_result(m, dti_reduce(m->op, x, axes, keep, m->op == DTI_OP_SUM && keep));
}

static void ops_case_reduce(ops_model *m) {
    const int64_t lengths[] = {1, 15, 63, 64, 65, 255, 256, 257, 1025};
    bool sum = m->op == DTI_OP_SUM;
    for (int form = 0; form < ops_forms(m); form++) {
        if (sum || form != OPS_EMPTY)
            ops_reduce_of(m, ops_form(m, form, OPS_ANY), dt_dims(), false);
    }
    ops_reduce_of(m, ops_form(m, OPS_EMPTY, OPS_ANY), dt_dims_of(1, (const int64_t[]){0, 1}), true);
    ops_reduce_of(m, ops_form(m, OPS_PERMUTED, OPS_ANY), dt_dims(1), true);
    ops_reduce_of(m, ops_form(m, OPS_PERMUTED, OPS_ANY), dt_dims(0, 2), false);
    ops_reduce_of(m, ops_form(m, OPS_EXPANDED, OPS_ANY), dt_dims(1), false);
    ops_reduce_of(m, ops_form(m, OPS_STRIDED, OPS_ANY), dt_dims_of(1, (const int64_t[]){0, -1}),
                  true);
    ops_reduce_of(m, ops_shared(m, dt_dims(2, 3, 2, 3, 2), OPS_ANY), dt_dims(0, 2, 4), false);
    for (size_t i = 0; i < DTI_COUNT(lengths) && !(m->small && i > 4); i++) {
        dt_tensor x = ops_rows(m, dt_dims(3, lengths[i]), OPS_ANY);
        ops_reduce_of(m, x, dt_dims(1), false);
        ops_reduce_of(m, dt_permute(x, dt_dims(1, 0)), dt_dims(0), false);
    }
    if (!sum)
        return;
    ops_result(m, dt_sum_samples(ops_rows(m, dt_dims(5), OPS_ANY)));
    ops_result(m, dt_sum_samples(ops_form(m, OPS_PERMUTED, OPS_ANY)));
    ops_result(
        m, dti_sum_to(ops_rows(m, dt_dims(4, 67), OPS_ANY), ops_shared(m, dt_dims(67), OPS_ANY)));
    ops_result(
        m, dti_sum_to(ops_rows(m, dt_dims(67, 2), OPS_ANY), ops_shared(m, dt_dims(1), OPS_ANY)));
}

/* ---- products */

typedef struct ops_gemm {
    int64_t m, k, n;
} ops_gemm;

static const ops_gemm ops_gemms[] = {
    {3, 5, 2},    {1, 1, 1},    {4, 0, 3},    {0, 2, 3}, /* the first four are the small ones */
    {15, 16, 17}, {16, 17, 15}, {17, 15, 16}, {63, 64, 65}, {65, 63, 64},
    {1, 257, 7},  {7, 255, 1},  {5, 256, 9},  {2, 1031, 3},
};
static size_t ops_gemm_count(const ops_model *m) {
    return m->small ? 4 : DTI_COUNT(ops_gemms);
}

static void ops_case_matmul(ops_model *m) {
    for (size_t i = 0; i < ops_gemm_count(m); i++) {
        ops_gemm g = ops_gemms[i];
        for (int t = 0; t < 4; t++) {
            bool ta = t & 1, tb = t & 2;
            dt_shape a = ta ? dt_dims(g.k, g.m) : dt_dims(g.m, g.k);
            dt_shape b = tb ? dt_dims(g.n, g.k) : dt_dims(g.k, g.n);
            dt_tensor x = i % 2 ? ops_shared(m, a, OPS_ANY) : ops_rows(m, a, OPS_ANY);
            ops_result(m, dt_matmul_transposed(x, ops_param(m, b, OPS_ANY), ta, tb));
        }
    }
    dt_tensor wide = ops_shared(m, dt_dims(3, 5, 4), OPS_ANY);
    ops_result(m, dt_matmul(ops_rows(m, dt_dims(2, 1, 4, 5), OPS_ANY), wide)); /* batches */
    ops_result(m, dt_matmul(wide, ops_rows(m, dt_dims(4, 2), OPS_ANY)));
    ops_result(m, dt_matmul(ops_rows(m, dt_dims(2, 1, 2, 4, 5), OPS_ANY), /* looped on the host */
                            ops_shared(m, dt_dims(1, 3, 1, 5, 2), OPS_ANY)));
    dt_tensor turned = dt_permute(ops_rows(m, dt_dims(5, 3), OPS_ANY), dt_dims(1, 0));
    ops_result(m, dt_matmul(turned, ops_form(m, OPS_SLICED, OPS_ANY)));
    ops_result(m, dt_matmul_transposed(ops_form(m, OPS_STRIDED, OPS_ANY),
                                       ops_form(m, OPS_STRIDED, OPS_ANY), false, true));
    ops_result(m, dt_matmul(ops_rows(m, dt_dims(2, 5), OPS_ANY),
                            dt_expand(ops_shared(m, dt_dims(5, 1), OPS_ANY), dt_dims(5, 4))));
}

static void ops_case_linear(ops_model *m) {
    dt_tensor none = {0};
    for (size_t i = 0; i < ops_gemm_count(m); i++) {
        ops_gemm g = ops_gemms[i];
        dt_tensor w = ops_param(m, dt_dims(g.n, g.k), OPS_ANY);
        dt_tensor x = ops_shared(m, dt_dims(g.m, g.k), OPS_ANY);
        ops_result(m, dt_linear(x, w, i % 2 ? none : ops_param(m, dt_dims(g.n), OPS_ANY)));
    }
    dt_tensor w = ops_param(m, dt_dims(4, 7), OPS_ANY), bias = ops_param(m, dt_dims(4), OPS_ANY);
    ops_result(m, dt_linear(ops_rows(m, dt_dims(7), OPS_ANY), w, bias));
    ops_result(m, dt_linear(ops_rows(m, dt_dims(2, 3, 7), OPS_ANY), w, none)); /* w used twice */
    dt_tensor turned = dt_permute(ops_rows(m, dt_dims(3, 4), OPS_ANY), dt_dims(1, 0));
    dt_tensor part = dt_slice(ops_param(m, dt_dims(9, 3), OPS_ANY), 0, 2, 5);
    ops_result(m, dt_linear(turned, part, dt_slice(ops_param(m, dt_dims(8), OPS_ANY), 0, 3, 5)));
}

static void ops_case_linear_dx(ops_model *m) {
    for (size_t i = 0; i < ops_gemm_count(m); i++) {
        ops_gemm g = ops_gemms[i];
        dt_tensor dy = ops_shared(m, dt_dims(g.m, g.n), OPS_ANY);
        ops_result(m, dti_append2(m->op, dy, ops_param(m, dt_dims(g.n, g.k), OPS_ANY), NULL));
    }
    dt_tensor dy = ops_form(m, OPS_SAMPLES_STRIDED, OPS_ANY);
    ops_result(m, dti_append2(m->op, dy, ops_param(m, dt_dims(2, 7), OPS_ANY), NULL));
}

static void ops_case_linear_dw(ops_model *m) {
    for (size_t i = 0; i < ops_gemm_count(m); i++) {
        ops_gemm g = ops_gemms[i];
        dt_tensor dy = ops_shared(m, dt_dims(g.k, g.m), OPS_ANY);
        ops_result(m, dti_append2(m->op, dy, ops_shared(m, dt_dims(g.k, g.n), OPS_ANY), NULL));
    }
    dt_tensor dy = ops_form(m, OPS_SAMPLES_STRIDED, OPS_ANY);
    ops_result(m, dti_append2(m->op, dy, ops_rows(m, dt_dims(6, 5), OPS_ANY), NULL));
}

/* ---- softmax */

static void ops_case_softmax(ops_model *m) {
    const int64_t lengths[] = {1, 2, 15, 17, 64, 255, 256, 257, 1025};
    for (size_t i = 0; i < DTI_COUNT(lengths) && !(m->small && i > 3); i++)
        ops_result(m, dti_append1(m->op, ops_rows(m, dt_dims(2, lengths[i]), OPS_ANY), NULL));
    ops_result(m, dti_softmax_along(m->op, ops_form(m, OPS_PERMUTED, OPS_ANY), 0));
    ops_result(m, dti_softmax_along(m->op, ops_form(m, OPS_SLICED, OPS_ANY), -1));
    ops_result(m, dti_softmax_along(m->op, ops_form(m, OPS_EXPANDED, OPS_ANY), 1));
    ops_result(m, dti_append1(m->op, ops_form(m, OPS_STRIDED, OPS_ANY), NULL));
    ops_result(m, dti_append1(m->op, ops_form(m, OPS_EMPTY, OPS_ANY), NULL));
    if (!m->small)
        ops_result(m, dti_append1(m->op, ops_rows(m, dt_dims(33), OPS_WIDE), NULL));
}

static void ops_case_softmax_grad(ops_model *m) {
    dti_op forward = ops_selector(m) ? DTI_OP_LOG_SOFTMAX : DTI_OP_SOFTMAX;
    const int64_t lengths[] = {1, 2, 15, 17, 64, 255, 256, 257, 1025};
    for (size_t i = 0; i < DTI_COUNT(lengths) && !(m->small && i > 3); i++) {
        dt_tensor y = dti_append1(forward, ops_rows(m, dt_dims(2, lengths[i]), OPS_ANY), NULL);
        ops_result(m, dti_append2(m->op, y, ops_like(m, y, OPS_ANY), NULL));
    }
    for (int form = OPS_PERMUTED; form < OPS_SMALL_FORMS; form++) {
        dt_tensor dy = ops_form(m, form, OPS_ANY);
        ops_result(m, dti_append2(m->op, ops_like(m, dy, OPS_ANY), dy, NULL));
    }
}

/* ---- tables */

static void ops_case_gather(ops_model *m) {
    dt_tensor table = ops_param(m, dt_dims(5, 3), OPS_ANY);
    ops_result(m, dt_embedding(table, ops_whole(m, true, dt_dims(), 5)));
    ops_result(m, dt_embedding(table, ops_whole(m, true, dt_dims(2, 4), 5))); /* repeats indices */
    ops_result(m, dt_embedding(table, ops_whole(m, false, dt_dims(1), 5)));
    ops_result(m, dt_embedding(table, ops_whole(m, false, dt_dims(0), 5)));
    ops_result(m,
               dt_embedding(ops_shared(m, dt_dims(7), OPS_ANY), ops_whole(m, true, dt_dims(3), 7)));
    ops_result(m,
               dt_embedding(ops_form(m, OPS_SLICED, OPS_ANY), ops_whole(m, true, dt_dims(3), 5)));
    ops_result(m, dt_embedding(ops_shared(m, dt_dims(1, 2, 3), OPS_ANY),
                               ops_whole(m, false, dt_dims(4), 1)));
    dt_tensor part = dt_slice(ops_whole(m, false, dt_dims(9), 5), 0, 4, 3);
    ops_result(m, dt_embedding(table, part));
    dt_tensor index = dt_permute(ops_whole(m, true, dt_dims(3, 2), 257), dt_dims(1, 0));
    if (!m->small)
        ops_result(m, dt_embedding(ops_param(m, dt_dims(257, 17), OPS_ANY), index));
}

static void ops_scatter_of(ops_model *m, dt_tensor dy, dt_tensor index, dt_shape table) {
    dti_attr attr = dti_shape_attr(table);
    ops_result(m, dti_append2(DTI_OP_SCATTER_ADD, dy, index, &attr));
}

static void ops_case_scatter_add(ops_model *m) {
    ops_scatter_of(m, ops_rows(m, dt_dims(4, 3), OPS_ANY), ops_whole(m, true, dt_dims(4), 2),
                   dt_dims(5, 3));
    ops_scatter_of(m, ops_shared(m, dt_dims(1), OPS_ANY), ops_whole(m, false, dt_dims(1), 7),
                   dt_dims(7));
    ops_scatter_of(m, ops_shared(m, dt_dims(0, 2), OPS_ANY), ops_whole(m, false, dt_dims(0), 3),
                   dt_dims(3, 2));
    ops_scatter_of(m, dt_slice(ops_shared(m, dt_dims(5, 3), OPS_ANY), 0, 3, 2),
                   dt_slice(ops_whole(m, false, dt_dims(9), 5), 0, 4, 2), dt_dims(5, 3));
    dt_tensor index = ops_whole(m, true, dt_dims(2), 4);
    ops_scatter_of(m, ops_form(m, OPS_PERMUTED, OPS_ANY), index, dt_dims(4, 5, 3));
    if (!m->small)
        ops_scatter_of(m, ops_shared(m, dt_dims(257, 3), OPS_ANY),
                       ops_whole(m, false, dt_dims(257), 65), dt_dims(65, 3));
}

static void ops_case_dropout(ops_model *m) {
    for (int form = 0; form < ops_forms(m); form++)
        ops_result(m, dt_dropout(ops_form(m, form, OPS_AWAY), form % 2 ? 0.3f : 0.5f));
    ops_result(m, dt_dropout(ops_rows(m, dt_dims(5, 5), OPS_AWAY), 0.99f));
}

static void ops_case_random(ops_model *m) {
    for (int form = 0; form < ops_forms(m); form++) {
        const float scale = form % 2 ? 0x1p-24f : 0x1p-23f;
        const dti_attr attr = {.f = {scale, form % 2 ? 0.5f : 0}, .i = {form}};
        ops_result(m, dti_append1(m->op, ops_form(m, form, OPS_ANY), &attr));
    }
    ops_result(m, dt_random_uniform(ops_whole(m, true, dt_dims(3), 3)));
}

/* ---- terms */

static dt_tensor ops_logits(ops_model *m, int i, int classes) {
    return i % 2 ? ops_shared(m, dt_dims(5, classes), OPS_ANY)
                 : ops_rows(m, dt_dims(2, classes), OPS_ANY);
}

static dt_tensor ops_target(ops_model *m, dt_tensor logits, int classes) {
    dt_shape s = dt_tensor_shape(logits);
    s.rank--;
    return ops_whole(m, dt_tensor_has_samples(logits), s, classes);
}

static dt_tensor ops_class_weights(ops_model *m, int classes) {
    dt_tensor w = ops_shared(m, dt_dims(classes), OPS_POSITIVE);
    m->leaves[m->leaf_count - 1].constant = true;
    return w;
}

static void ops_case_cross_entropy(ops_model *m) {
    const int classes[] = {3, 10, 1, 2, 63, 64, 65, 255, 256, 257};
    for (int i = 0; i < (int)DTI_COUNT(classes) && !(m->small && i > 3); i++) {
        int c = classes[i];
        dt_tensor x = ops_logits(m, i, c), t = ops_target(m, x, c);
        ops_result(m, dt_cross_entropy(x, t, NULL));
        dt_cross_entropy_desc d = {.label_smoothing = 0.125f};
        ops_result(m, dt_cross_entropy(x, t, &d));
        d.class_weights = ops_class_weights(m, c);
        ops_result(m, dt_cross_entropy(x, t, &d));
        d = (dt_cross_entropy_desc){.class_weights = d.class_weights, .ignore_index = 1};
        ops_result(m, dt_cross_entropy(x, t, &d));
    }
    dt_tensor x = ops_rows(m, dt_dims(3, 4, 7), OPS_ANY), t = ops_target(m, x, 7);
    m->leaves[m->leaf_count - 1].ignores = true;
    ops_result(m, dt_cross_entropy(x, t, NULL));
    dt_cross_entropy_desc d = {.label_smoothing = 1};
    ops_result(m, dt_cross_entropy(x, t, &d));
    dt_tensor turned = ops_form(m, OPS_PERMUTED, OPS_ANY);
    ops_result(m, dt_cross_entropy(turned, ops_target(m, turned, 3), NULL));
    dt_tensor part =
        dt_slice(ops_shared(m, dt_dims(7, 3), OPS_ANY), 0, 3, 4); /* all with offsets */
    t = dt_slice(ops_whole(m, false, dt_dims(9), 3), 0, 5, 4);
    d = (dt_cross_entropy_desc){.label_smoothing = 0.125f};
    d.class_weights = dt_slice(ops_class_weights(m, 5), 0, 2, 3);
    ops_result(m, dt_cross_entropy(part, t, &d));
    d = (dt_cross_entropy_desc){.ignore_index = DT_ZERO};
    dt_tensor row = ops_rows(m, dt_dims(4), OPS_ANY);
    ops_result(m, dt_cross_entropy(row, ops_target(m, row, 4), &d));
}

static void ops_case_nll(ops_model *m) {
    const int classes[] = {3, 10, 1, 257};
    for (int i = 0; i < (int)DTI_COUNT(classes) && !(m->small && i > 2); i++) {
        dt_tensor x = ops_logits(m, i, classes[i]), t = ops_target(m, x, classes[i]);
        m->leaves[m->leaf_count - 1].ignores = i != 1;
        ops_result(m, dt_nll(x, t, NULL));
        dt_cross_entropy_desc d = {.class_weights = ops_class_weights(m, classes[i])};
        d.ignore_index = i == 1 ? 2 : 0;
        ops_result(m, dt_nll(x, t, &d));
    }
}

static void ops_case_weighted_loss(ops_model *m) {
    for (int form = 0; form < ops_forms(m); form++) {
        dt_tensor x = ops_form(m, form, OPS_ANY);
        dt_tensor w = ops_like(m, x, OPS_POSITIVE);
        m->leaves[m->leaf_count - 1].constant = true;
        ops_result(m, dt_weighted_loss(x, w));
    }
    dt_tensor w = ops_rows(m, dt_dims(), OPS_POSITIVE); /* one for a sample */
    m->leaves[m->leaf_count - 1].constant = true;
    ops_result(m, dt_weighted_loss(ops_rows(m, dt_dims(3, 5), OPS_ANY), w));
    w = ops_shared(m, dt_dims(1, 5), OPS_POSITIVE); /* one for all samples */
    m->leaves[m->leaf_count - 1].constant = true;
    ops_result(m, dt_weighted_loss(ops_rows(m, dt_dims(3, 5), OPS_ANY), w));
    w = ops_rows(m, dt_dims(1025), OPS_POSITIVE);
    m->leaves[m->leaf_count - 1].constant = true;
    if (!m->small)
        ops_result(m, dt_weighted_loss(ops_shared(m, dt_dims(1025), OPS_ANY), w));
}

static void ops_case_weight_sum(ops_model *m) {
    for (int form = 0; form < ops_forms(m); form++)
        ops_result(m, dti_append1(m->op, ops_form(m, form, OPS_POSITIVE), NULL));
    if (!m->small)
        ops_result(m, dti_append1(m->op, ops_rows(m, dt_dims(1025), OPS_POSITIVE), NULL));
}

static void ops_case_cross_entropy_weight(ops_model *m) {
    dti_attr attr = {.i = {-100, 5}};
    dt_tensor t = ops_whole(m, true, dt_dims(7), 5);
    m->leaves[m->leaf_count - 1].ignores = true;
    ops_result(m, dti_append1(m->op, t, &attr));
    ops_result(m, dti_append2(m->op, t, ops_class_weights(m, 5), &attr));
}

static void ops_case_cross_entropy_grad(ops_model *m) {
    const int classes[] = {3, 10, 1, 65, 257};
    for (int i = 0; i < (int)DTI_COUNT(classes) && !(m->small && i > 2); i++) {
        dt_tensor x = ops_logits(m, i, classes[i]), t = ops_target(m, x, classes[i]);
        for (int variant = 0; variant < 4; variant++) {
            dti_attr attr = {.f = {variant & 1 ? 0.125f : 0.0f}, .i = {variant == 3 ? 1 : -100}};
            dt_shape s = variant & 2 ? dt_dims(classes[i]) : dt_dims();
            dt_tensor in[3] = {x, t, ops_shared(m, s, OPS_POSITIVE)};
            ops_result(m, dti_append(m->graph, m->op, in, 3, &attr));
        }
    }
}

static void ops_case_accuracy(ops_model *m) {
    const int classes[] = {1, 2, 10, 63, 64, 65, 255, 256, 257};
    for (int i = 0; i < (int)DTI_COUNT(classes); i++) {
        dt_tensor x = ops_logits(m, i, classes[i]), t = ops_target(m, x, classes[i]);
        m->leaves[m->leaf_count - 1].ignores = i == 2;
        ops_result(m, dt_accuracy(x, t));
    }
    dt_tensor part = dt_slice(ops_shared(m, dt_dims(7, 3), OPS_ANY), 0, 3, 4);
    ops_result(m, dt_accuracy(part, dt_slice(ops_whole(m, false, dt_dims(9), 3), 0, 5, 4)));
    dt_tensor ties = dt_floor(ops_rows(m, dt_dims(9, 10), OPS_ANY)); /* the first one wins */
    ops_result(m, dt_accuracy(ties, ops_target(m, ties, 3)));
}

static void ops_case_mse(ops_model *m) {
    for (int form = 0; form < ops_forms(m); form++) {
        dt_tensor y = ops_form(m, form, OPS_ANY);
        ops_result(m, dt_mse(y, ops_like(m, y, OPS_ANY)));
    }
    ops_result(m, dt_mse(ops_param(m, dt_dims(5), OPS_ANY), ops_param(m, dt_dims(5), OPS_ANY)));
    dt_tensor y = ops_rows(m, dt_dims(3), OPS_ANY); /* a target that depends on y, and y itself */
    ops_result(m, dt_mse(y, dt_sin(y)));
    ops_result(m, dt_mse(y, y));
    if (!m->small)
        ops_result(
            m, dt_mse(ops_rows(m, dt_dims(1025), OPS_ANY), ops_rows(m, dt_dims(1025), OPS_ANY)));
}

static void ops_case_mse_grad(ops_model *m) {
    for (int form = 0; form < ops_forms(m); form++) {
        dt_tensor y = ops_form(m, form, OPS_ANY), t = ops_like(m, y, OPS_ANY);
        dt_tensor in[3] = {y, t, ops_shared(m, dt_dims(), OPS_POSITIVE)};
        ops_result(m, dti_append(m->graph, m->op, in, 3, NULL));
    }
}

static void ops_case_mean_loss(ops_model *m) {
    for (int form = 0; form < ops_forms(m); form++)
        ops_result(m, dt_mean_loss(ops_form(m, form, OPS_ANY)));
    if (!m->small)
        ops_result(m, dt_mean_loss(ops_rows(m, dt_dims(1025), OPS_ANY)));
}

static void ops_case_test_mix(ops_model *m) {
    dt_tensor in[7];
    for (int i = 0; i < 7; i++)
        in[i] = ops_rows(m, dt_dims(5), OPS_AWAY);
    ops_result(m, dti_append(m->graph, m->op, in, 7, NULL));
    in[6] = in[5]; /* the same twice */
    ops_result(m, dti_append(m->graph, m->op, in, 7, NULL));
}

/* All of the outputs, and a single one: nothing flows to the others. */
static void ops_case_test_split(ops_model *m) {
    dt_tensor packed, out[3];
    for (int form = 0; form < ops_forms(m); form++) {
        dt_tensor x = ops_form(m, form, OPS_ANY);
        if (!dti_append_outputs(m->graph, DTI_OP_TEST_SPLIT, &x, 1, NULL, &packed, out))
            return;
        ops_result(m, dt_mul(out[1], dt_reshape(out[2], dti_node_of(out[1])->shape)));
        ops_result(m, out[form % 3]);
    }
    /* torn apart, in another order, and one twice */
    dt_tensor x = ops_rows(m, dt_dims(4), OPS_ANY), own = dti_append1(DTI_OP_TEST_SPLIT, x, NULL);
    const int which[] = {1, 0, 1, 2};
    for (int i = 0; i < 4; i++)
        out[i % 3] = dti_append1(DTI_OP_OUTPUT_OF, own, &(dti_attr){.i = {which[i]}});
    ops_result(
        m, dt_mul(dt_reshape(out[0], dt_dims(4)), dt_mul(out[1], dt_reshape(out[2], dt_dims(4)))));
}

#include "ops/ops_cases_attention.h"
#include "ops/ops_cases_recurrence.h"
#include "ops/ops_cases_ctc.h"
#include "ops/ops_cases_image.h"

/* ---- the table: a builder for each row. NIL, INPUT and PARAM are what all others are built of. */
static void ops_case_leaf(ops_model *m) {
    ops_result(m, dt_add(ops_rows(m, dt_dims(3), OPS_ANY), ops_param(m, dt_dims(3), OPS_ANY)));
}

static void (*ops_case_of(dti_op op))(ops_model *) {
    const dti_op_family *family = dti_op_info_of(op)->family;
    static const struct {
        const dti_op_family *family;
        void (*build)(ops_model *m);
    } cases[] = {
        {&dti_family_leaf, ops_case_leaf},
        {&dti_family_test_mix, ops_case_test_mix},
        {&dti_family_test_split, ops_case_test_split},
        {&dti_family_output_of, ops_case_test_split},
        {&dti_family_fill, ops_case_fill},
        {&dti_family_seed, ops_case_seed},
        {&dti_family_unary, ops_case_unary},
        {&dti_family_unary_grad, ops_case_unary_grad},
        {&dti_family_binary, ops_case_binary},
        {&dti_family_copy, ops_case_copy},
        {&dti_family_cast, ops_case_cast},
        {&dti_family_concat, ops_case_concat},
        {&dti_family_pad, ops_case_pad},
        {&dti_family_reduce, ops_case_reduce},
        {&dti_family_matmul, ops_case_matmul},
        {&dti_family_linear, ops_case_linear},
        {&dti_family_linear_dx, ops_case_linear_dx},
        {&dti_family_linear_dw, ops_case_linear_dw},
        {&dti_family_softmax, ops_case_softmax},
        {&dti_family_softmax_grad, ops_case_softmax_grad},
        {&dti_family_attention, ops_case_attention},
        {&dti_family_attention_grad, ops_case_attention},
        {&dti_family_cache, ops_case_copy}, /* of programs that keep nothing */
        {&dti_family_recurrence, ops_case_recurrence},
        {&dti_family_recurrence_grad, ops_case_recurrence},
        {&dti_family_ctc, ops_case_ctc},
        {&dti_family_ctc_grad, ops_case_ctc},
        {&dti_family_gather, ops_case_gather},
        {&dti_family_scatter_add, ops_case_scatter_add},
        {&dti_family_dropout, ops_case_dropout},
        {&dti_family_random, ops_case_random},
        {&dti_family_cross_entropy, ops_case_cross_entropy},
        {&dti_family_cross_entropy_weight, ops_case_cross_entropy_weight},
        {&dti_family_cross_entropy_grad, ops_case_cross_entropy_grad},
        {&dti_family_accuracy, ops_case_accuracy},
        {&dti_family_mse, ops_case_mse},
        {&dti_family_mse_grad, ops_case_mse_grad},
        {&dti_family_mean_loss, ops_case_mean_loss},
        {&dti_family_weighted_loss, ops_case_weighted_loss},
        {&dti_family_weight_sum, ops_case_weight_sum},
        {&dti_family_nll, ops_case_nll},
        {&dti_family_conv2d, ops_case_conv2d},
        {&dti_family_conv2d_dx, ops_case_conv2d_dx},
        {&dti_family_conv2d_dw, ops_case_conv2d_dw},
        {&dti_family_max_pool2d, ops_case_max_pool2d},
        {&dti_family_max_pool2d_at, ops_case_max_pool2d_at},
        {&dti_family_max_pool2d_grad, ops_case_max_pool2d_at},
        {&dti_family_avg_pool2d, ops_case_avg_pool2d},
        {&dti_family_avg_pool2d_grad, ops_case_avg_pool2d_grad},
        {&dti_family_resize, ops_case_resize},
        {&dti_family_resize_grad, ops_case_resize_grad},
        {&dti_family_norm_stats, ops_case_norm_stats},
        {&dti_family_batch_stats, ops_case_batch_stats},
        {&dti_family_norm, ops_case_norm},
        {&dti_family_norm_dx, ops_case_norm_dx},
        {&dti_family_norm_dw, ops_case_norm_dw},
        {&dti_family_batch_dx, ops_case_batch_dx},
        {&dti_family_meet, ops_case_meet},
        {&dti_family_parted_sum, ops_case_tp_sum},
        {&dti_family_parted_copy, ops_case_tp_copy},
        {&dti_family_parted_most, ops_case_tp_most},
        {&dti_family_parted_whole, ops_case_tp_along},
        {&dti_family_parted_own, ops_case_tp_along},
        {&dti_family_parted_cut, ops_case_tp_own},
        {&dti_family_parted_labels, ops_case_tp_most},
        {&dti_family_parted_loss, ops_case_tp_loss},
        {&dti_family_running, ops_case_running},
    };
    switch (op) { /* rows of one family that differ too much */
    case DTI_OP_RESHAPE: return ops_case_reshape;
    case DTI_OP_PERMUTE: return ops_case_permute;
    case DTI_OP_SLICE: return ops_case_slice;
    case DTI_OP_EXPAND: return ops_case_expand;
    case DTI_OP_DETACH: return ops_case_copy;
    default: break;
    }
    for (size_t i = 0; i < DTI_COUNT(cases); i++)
        if (cases[i].family == family)
            return cases[i].build;
    return NULL;
}

#endif
