/* Every row of the op table, from the inside: included by main.c after the implementation. The
 * reference is held against finite differences and against each composite row taken apart; the
 * devices are held against the reference, node by node. A node's inputs are the values that the
 * device itself computed. So its bound is that of one op (ops_bounds.h), and no error adds up. */

#include "ops/ops_cases.h"
#include "ops/ops_bounds.h"

#define OPS_BATCH 3
#define OPS_TINY 0x1p-123 /* devices may flush what is below 2^-126 to 0, also half way */

/* ---- models */

static dt_ctx *ops_ctx(void) {
    dt_ctx *ctx = NULL;
    dt_ctx_create(NULL, &ctx);
    return ctx;
}

static bool ops_open(ops_model *m, dt_ctx *ctx, dti_op op, bool small) {
    m->leaf_count = m->result_count = 0;
    m->op = op;
    m->small = small;
    m->eval = false;
    if (dt_graph_create(ctx, &m->graph) || !ops_case_of(op))
        return false;
    if (!dti_op_info_of(op)->family->shape) {
        test_off((void **)&dti_visits); /* the row was left out */
        return false;
    }
    ops_case_of(op)(m);
    const char *error = dt_graph_error(m->graph);
    test_check(!error, __FILE__, __LINE__, "the case of %s: %s", dti_op_info_of(op)->name,
               error ? error : "");
    test_check(m->result_count < OPS_RESULTS && m->leaf_count < OPS_LEAVES - 1, __FILE__, __LINE__,
               "the case of %s has too many parts", dti_op_info_of(op)->name);
    return !error;
}

/* Values that floats hold exactly, the same in every run. */
static double ops_float_value(const ops_leaf *leaf, int64_t i) {
    double u = dti_uniform01(2024, (uint64_t)i, leaf->x.id);
    double sign = (dti_philox(7, (uint64_t)i, leaf->x.id).v[0] & 1) ? 1 : -1;
    switch (leaf->range) {
    case OPS_AWAY: return (double)(float)(sign * (0.1 + 1.9 * u));
    case OPS_INSIDE: return (double)(float)(1.9 * u - 0.95);
    case OPS_POSITIVE: return (double)(float)(0.2 + 2.8 * u);
    case OPS_WIDE: return (double)(float)(60 * u - 30);
    case OPS_CLASSES: return leaf->ignores && i % 3 == 1 ? -100 : floor(u * leaf->classes);
    default: return (double)(float)(4 * u - 2);
    }
}

/* And that the leaf's own type holds. */
static double ops_value(const ops_leaf *leaf, int64_t i) {
    const float value = (float)ops_float_value(leaf, i);
    switch (dt_tensor_dtype(leaf->x)) {
    case DT_BF16: return (double)dti_f32_from_bf16(dti_bf16_from_f32(value));
    case DT_F16: return (double)dti_f32_from_f16(f16_from_f32(value));
    default: return (double)value;
    }
}

static void ops_fill(ops_model *m, ref_run *run) {
    for (int i = 0; i < m->leaf_count; i++) {
        ref_tensor *t = ref_tensor_of(run, m->leaves[i].x);
        for (int64_t k = 0; t && k < t->elements; k++)
            t->data[k] = ops_value(&m->leaves[i], k);
    }
}

static void ops_run_open(ops_model *m, ref_run *run) {
    ref_open(run, m->graph, OPS_BATCH);
    run->step.seed = 0x123456789abcdefull;
    run->step.step = 5;
    run->step.first_row = 7;
    run->train = !m->eval;
    ops_fill(m, run);
}

static const dti_node *ops_node(dt_tensor x) {
    return &x.graph->nodes[x.id];
}

static bool ops_is_float(dt_tensor x) {
    return !dti_is_whole(ops_node(x)->dtype);
}

/* A leaf of y's shape that weighs y's elements; for a term one number, which weighs its sum. */
static dt_tensor ops_weights(ops_model *m, dt_tensor y) {
    return ops_node(y)->term ? ops_shared(m, dt_dims(), OPS_POSITIVE) : ops_like(m, y, OPS_ANY);
}

/* d(sum of y * dy) by the first `leaves` leaves; nil where none flows, or where none is defined. */
static void ops_differentiate(ops_model *m, dt_tensor y, dt_tensor dy, int leaves, dt_tensor *dx) {
    dt_tensor wrt[OPS_LEAVES];
    for (int i = 0; i < leaves; i++) {
        const ops_leaf *leaf = &m->leaves[i];
        wrt[i] = ops_is_float(leaf->x) && !leaf->constant ? leaf->x : (dt_tensor){0};
    }
    dti_differentiate(m->graph, y, dy, wrt, (uint32_t)leaves, dx);
}

/* ---- finite differences */

typedef struct ops_probe { /* the objective: sum of y * dy */
    ops_model *m;
    ref_run *run;
    dt_tensor y, dy;
    bool second; /* y is a gradient itself */
} ops_probe;

static double ops_objective(ops_probe *p) {
    dt_tensor wanted[2] = {p->y, p->dy};
    ref_values(p->run, wanted, 2);
    const ref_tensor *y = ref_tensor_of(p->run, p->y);
    const ref_tensor *dy = ref_tensor_of(p->run, p->dy);
    if (ops_node(p->y)->term)
        return y->data[0] * dy->data[0];
    double sum = 0;
    for (int64_t i = 0; i < y->elements; i++)
        sum += y->data[i] * dy->data[i];
    return sum;
}

static void ops_check_slope(ops_probe *p, const ops_leaf *leaf, dt_tensor dx, int64_t i) {
    ref_tensor *x = ref_tensor_of(p->run, leaf->x);
    double at = x->data[i], h = 1e-5 * fmax(1, fabs(at));
    double g = dti_is_nil(dx) ? 0 : ref_tensor_of(p->run, dx)->data[i];
    x->data[i] = at + h;
    double above = ops_objective(p);
    x->data[i] = at - h;
    double below = ops_objective(p);
    x->data[i] = at;
    double slope = (above - below) / (2 * h);
    double bound = p->second ? 1e-5 : 1e-6;
    test_check(fabs(slope - g) <= bound * (1 + fabs(g)), __FILE__, __LINE__,
               "%s %s node %u, by %s [%d]: the gradient is %.9g, finite differences give %.9g",
               p->second ? "second derivative of" : "gradient of", dti_op_info_of(p->m->op)->name,
               p->y.id, ops_node(leaf->x)->label, (int)i, g, slope);
}

/* A few elements of each leaf that the objective is made of. */
static void ops_check_slopes(ops_probe *p, int leaves, const dt_tensor *dx) {
    ref_values(p->run, dx, (uint32_t)leaves);
    ops_objective(p); /* marks them */
    for (int i = 0; i < leaves; i++) {
        const ops_leaf *leaf = &p->m->leaves[i];
        ref_tensor *x = ref_tensor_of(p->run, leaf->x);
        if (!ops_is_float(leaf->x) || leaf->constant || !x)
            continue;
        if (!dti_is_nil(dx[i]))
            CHECK(dti_shape_equal(ops_node(dx[i])->shape, ops_node(leaf->x)->shape) &&
                  ops_node(dx[i])->samples == ops_node(leaf->x)->samples);
        if (!p->run->needed[leaf->x.id])
            continue;
        int64_t step = x->elements / (p->second ? 2 : 4) + 1;
        for (int64_t k = 0; k < x->elements; k += step)
            ops_check_slope(p, leaf, dx[i], (k * 7 + 1) % x->elements);
    }
}

static bool ops_is_flat(dti_op op) { /* the gradient is 0 by definition, or there is not one */
    switch (op) {
    case DTI_OP_SIGN:
    case DTI_OP_FLOOR:
    case DTI_OP_HEAVISIDE:
    case DTI_OP_EQ:
    case DTI_OP_LT:
    case DTI_OP_LE:
    case DTI_OP_GT:
    case DTI_OP_GE:
    case DTI_OP_CAST:
    case DTI_OP_DETACH:
    case DTI_OP_ALL_STATS: /* rules of those that read them append the gradient's own sync points */
    case DTI_OP_ALL_MEAN:
    case DTI_OP_SEED:
    case DTI_OP_FILL:
    case DTI_OP_IOTA:
    case DTI_OP_TRAIN_MODE:
    case DTI_OP_RUNNING:
    case DTI_OP_ACCURACY:
    case DTI_OP_WEIGHT_SUM:
    case DTI_OP_RECURRENCE_GRAD:
    case DTI_OP_CTC_GRAD:
    case DTI_OP_CROSS_ENTROPY_WEIGHT: return true;
    default: return false;
    }
}

/* A second derivative of such a row is an error. */
static bool ops_is_once(dti_op op) {
    return op == DTI_OP_RECURRENCE || op == DTI_OP_CTC;
}

/* For second derivatives dy comes of y, as under a loss: dx depends on x through both. */
static dt_tensor ops_output_gradient(ops_model *m, dt_tensor y, bool second) {
    dt_tensor w = ops_weights(m, y);
    return second && ops_is_float(y) && !ops_node(y)->term ? dt_mul(w, dt_cos(y)) : w;
}

/* The leaves that a result depends on come first in its probe only by number, so all are asked. */
static void ops_check_gradients(ops_model *m, dt_ctx *ctx, dti_op op, bool second, bool eval) {
    static dt_tensor dx[OPS_LEAVES], ddx[OPS_LEAVES];
    if (!ops_open(m, ctx, op, true))
        return;
    m->eval = eval;
    int leaves = m->leaf_count, results = m->result_count;
    for (int i = 0; i < results && !dt_graph_error(m->graph); i++) {
        dt_tensor y = m->results[i], dy = ops_output_gradient(m, y, second);
        ops_differentiate(m, y, dy, leaves, dx);
        for (int k = 0; k < leaves; k++) {
            if (!second || dti_is_nil(dx[k]))
                continue;
            dt_tensor u = ops_weights(m, dx[k]);
            ops_differentiate(m, dx[k], u, leaves, ddx);
            ref_run run;
            ops_run_open(m, &run);
            ops_probe p = {m, &run, dx[k], u, true};
            ops_check_slopes(&p, leaves, ddx);
            ref_close(&run);
        }
        ref_run run;
        ops_run_open(m, &run);
        ops_probe p = {m, &run, y, dy, false};
        if (!second)
            ops_check_slopes(&p, leaves, dx);
        ref_close(&run);
    }
    const char *error = dt_graph_error(m->graph);
    test_check(!error, __FILE__, __LINE__, "%s: %s", dti_op_info_of(op)->name, error ? error : "");
    dt_graph_destroy(m->graph);
}

static ops_model ops_model_now; /* too large for a small stack */

/* Rows that compute something else in a program that does not train. */
static bool ops_has_modes(dti_op op) {
    switch (op) {
    case DTI_OP_DROPOUT:
    case DTI_OP_ATTENTION:
    case DTI_OP_ATTENTION_GRAD:
    case DTI_OP_TRAIN_MODE:
    case DTI_OP_BATCH_STATS:
    case DTI_OP_ALL_STATS:
    case DTI_OP_ALL_MEAN:
    case DTI_OP_NORM:
    case DTI_OP_NORM_DW:
    case DTI_OP_BATCH_DX: return true;
    default: return false;
    }
}

TEST(every_row_of_the_op_table_has_a_case_and_a_reference) {
    for (int op = DTI_OP_NIL + 1; op < DTI_OP_COUNT; op++) {
        const dti_op_info *info = dti_op_info_of((uint32_t)op);
        test_check(ops_case_of((dti_op)op) != NULL, __FILE__, __LINE__, "%s has no case",
                   info->name);
        test_check(ref_table[op] != NULL, __FILE__, __LINE__, "%s has no reference", info->name);
    }
}

TEST(every_case_uses_its_row_and_gives_finite_values) {
    dt_ctx *ctx = ops_ctx();
    for (int op = DTI_OP_INPUT; op < DTI_OP_COUNT; op++) {
        ops_model *m = &ops_model_now;
        ref_run run;
        if (!ops_open(m, ctx, (dti_op)op, false))
            continue;
        bool used = false;
        for (uint32_t id = 1; id < m->graph->count; id++)
            used = used || m->graph->nodes[id].op == op;
        test_check(used, __FILE__, __LINE__, "the case of %s does not use it",
                   dti_op_info_of((uint32_t)op)->name);
        ops_run_open(m, &run);
        CHECK(ref_values(&run, m->results, (uint32_t)m->result_count) == DT_OK);
        for (int i = 0; i < m->result_count; i++) {
            const ref_tensor *y = ref_tensor_of(&run, m->results[i]);
            for (int64_t k = 0; k < y->elements; k++)
                test_check(isfinite(y->data[k]), __FILE__, __LINE__, "%s result %d [%d] is %g",
                           dti_op_info_of((uint32_t)op)->name, i, (int)k, y->data[k]);
        }
        ref_close(&run);
        dt_graph_destroy(m->graph);
    }
    dt_ctx_destroy(ctx);
}

TEST(gradients_match_finite_differences) {
    dt_ctx *ctx = ops_ctx();
    for (int op = DTI_OP_INPUT; op < DTI_OP_COUNT; op++)
        for (int eval = 0; eval <= ops_has_modes((dti_op)op) && !ops_is_flat((dti_op)op); eval++)
            ops_check_gradients(&ops_model_now, ctx, (dti_op)op, false, eval);
    dt_ctx_destroy(ctx);
}

TEST(second_derivatives_match_finite_differences) {
    dt_ctx *ctx = ops_ctx();
    for (int op = DTI_OP_INPUT; op < DTI_OP_COUNT; op++) {
        const bool none = ops_is_flat((dti_op)op) || ops_is_once((dti_op)op);
        for (int eval = 0; eval <= ops_has_modes((dti_op)op) && !none; eval++)
            ops_check_gradients(&ops_model_now, ctx, (dti_op)op, true, eval);
    }
    dt_ctx_destroy(ctx);
}

TEST(ops_without_a_gradient_end_a_gradients_path) {
    static dt_tensor dx[OPS_LEAVES];
    dt_ctx *ctx = ops_ctx();
    for (int op = DTI_OP_INPUT; op < DTI_OP_COUNT; op++) {
        ops_model *m = &ops_model_now;
        if (!ops_is_flat((dti_op)op) || !ops_open(m, ctx, (dti_op)op, true))
            continue;
        int leaves = m->leaf_count;
        for (int i = 0; i < m->result_count; i++) {
            if (!ops_is_float(m->results[i]))
                continue;
            ops_differentiate(m, m->results[i], ops_weights(m, m->results[i]), leaves, dx);
            for (int k = 0; k < leaves; k++)
                CHECK(dti_is_nil(dx[k]));
        }
        CHECK(!dt_graph_error(m->graph));
        dt_graph_destroy(m->graph);
    }
    dt_ctx_destroy(ctx);
}

/* Its own gradient is not what is asked for. */
TEST(a_gradient_by_the_result_of_an_op_without_one_is_the_incoming_gradient) {
    dt_ctx *ctx = ops_ctx();
    dt_graph *g;
    ref_run run;
    REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
    dt_tensor x = dt_input_shared(g, "x", DT_F32, dt_dims(2));
    dt_tensor of[] = {dt_floor(x), dt_heaviside(x), dt_ge(x, dt_neg(x)), dt_detach(x),
                      dt_cast(dt_cast(x, DT_I32), DT_F32)};
    ref_open(&run, g, 1);
    for (size_t i = 0; i < DTI_COUNT(of); i++) {
        dt_tensor dx = dt_gradient(dt_affine(of[i], 3, 0), of[i]);
        CHECK(ref_values(&run, &dx, 1) == DT_OK);
        for (int k = 0; k < 2; k++)
            CHECK_NEAR(ref_tensor_of(&run, dx)->data[k], 3, 0);
    }
    CHECK(!dt_graph_error(g));
    ref_close(&run);
    dt_ctx_destroy(ctx);
}

static void ops_check_source(ref_run *run, dt_tensor y) {
    REQUIRE(ref_values(run, &y, 1) == DT_OK);
    for (int64_t i = 0; i < dti_shape_elements(ops_node(y)->shape); i++) { /* of the first sample */
        dti_element e = {y.id, i};
        const bool moved = dti_element_back(y.graph, &e);
        const ref_tensor *x = ref_tensor_of(run, (dt_tensor){y.graph, e.node});
        const double value = ref_tensor_of(run, y)->data[i];
        test_check(value == (moved ? x->data[e.at] : 0), __FILE__, __LINE__, "%s: element %d",
                   dti_op_info_of(ops_node(y)->op)->name, (int)i);
    }
}

TEST(ops_that_move_elements_know_the_source_of_each) {
    dt_ctx *ctx = ops_ctx();
    int rows = 0;
    for (int op = DTI_OP_INPUT; op < DTI_OP_COUNT; op++) {
        ops_model *m = &ops_model_now;
        ref_run run;
        if (!dti_op_info_of((uint32_t)op)->family->source || !ops_open(m, ctx, (dti_op)op, true))
            continue;
        ops_run_open(m, &run);
        for (uint32_t id = 1; id < m->graph->count; id++) {
            if (m->graph->nodes[id].op == op)
                ops_check_source(&run, (dt_tensor){m->graph, id});
        }
        ref_close(&run);
        dt_graph_destroy(m->graph);
        rows++;
    }
    CHECK(rows >= 9);
    dt_ctx_destroy(ctx);
}

/* ---- composite rows against the rows that they come apart into */

/* Constants in rows are floats, and so are 1 - eps and eps / classes; the fused ones are exact. */
static double ops_lower_tolerance(const dti_node *n) {
    switch (n->op) {
    case DTI_OP_UNARY_GRAD: {
        int selector = n->attr.i[0];
        bool rounds = selector == DTI_U_GELU || selector == DTI_U_GELU_TANH ||
                      selector == DTI_U_ERF || selector == DTI_U_SELU || selector == DTI_U_ERFINV ||
                      selector == DTI_U_HARDSIGMOID || selector == DTI_U_HARDSWISH;
        bool ends = selector == DTI_U_SOFTPLUS || selector == DTI_U_MISH;
        return rounds ? 1e-6 : ends ? 1e-8 : 1e-12;
    }
    case DTI_OP_CROSS_ENTROPY_GRAD: return n->attr.f[0] != 0 ? 1e-7 : 1e-12;
    case DTI_OP_NORM_STATS: /* a mean is a sum times a float 1 / n */
    case DTI_OP_NORM_DX:
    case DTI_OP_NORM_DW: return 1e-6;
    default: return 1e-12;
    }
}

static void ops_check_lower(ops_model *m, uint32_t id) {
    dti_grad g = {.graph = m->graph, .node = m->graph->nodes[id], .y = {m->graph, id}};
    for (uint32_t i = 0; i < g.node.count; i++)
        g.in[i] = dti_input_of(m->graph, &g.node, i);
    dt_tensor both[2] = {g.y, ref_apart(g.node.op)(&g)};
    const char *name = dti_op_info_of(g.node.op)->name;
    ref_run run;
    if (!test_check(!dti_is_nil(both[1]), __FILE__, __LINE__, "%s does not come apart: %s", name,
                    dt_graph_error(m->graph)))
        return;
    ops_run_open(m, &run);
    ref_values(&run, both, 2);
    const ref_tensor *fused = ref_tensor_of(&run, both[0]);
    const ref_tensor *apart = ref_tensor_of(&run, both[1]);
    CHECK(fused->elements == apart->elements);
    double tolerance = ops_lower_tolerance(&g.node);
    for (int64_t i = 0; i < fused->elements && fused->elements == apart->elements; i++) {
        double a = fused->data[i], b = apart->data[i];
        test_check(fabs(a - b) <= tolerance * (1 + fabs(a)), __FILE__, __LINE__,
                   "%s node %u [%d]: %.15g, from rows %.15g", name, id, (int)i, a, b);
    }
    ref_close(&run);
}

TEST(composite_rows_equal_the_rows_that_they_expand_to) {
    dt_ctx *ctx = ops_ctx();
    int compared = 0;
    for (int op = DTI_OP_INPUT; op < DTI_OP_COUNT; op++) {
        ops_model *m = &ops_model_now;
        if (!ref_apart((uint32_t)op) || !ops_open(m, ctx, (dti_op)op, true))
            continue;
        uint32_t count = m->graph->count;
        for (uint32_t id = 1; id < count; id++) {
            for (int eval = 0; eval < 2 && m->graph->nodes[id].op == op; eval++) {
                m->eval = eval;
                ops_check_lower(m, id);
                compared++;
            }
        }
        dt_graph_destroy(m->graph);
    }
    CHECK(compared > 100);
    dt_ctx_destroy(ctx);
}

/* ---- devices against the reference, node by node */

typedef struct ops_device {
    dt_ctx *ctx;
    dt_graph *graph; /* a store on the device keeps it open, and its kernels compiled */
    dt_store *store;
    char id[32];
    bool cpu;
    dt_dtype dtype; /* of the models */
    bool small;     /* which have only small shapes */
} ops_device;

static void ops_fail(const ops_device *d, const char *what, const ops_model *m) {
    test_check(false, __FILE__, __LINE__, "%s %s: %s: %s", d->id, dti_op_info_of(m->op)->name, what,
               dt_ctx_error(d->ctx));
}

static void ops_device_close(ops_device *d) {
    if (d->store)
        dt_store_destroy(d->store);
    dt_graph_destroy(d->graph);
    dt_ctx_destroy(d->ctx);
}

static bool ops_device_open(ops_device *d, const char *id, bool no_fast) {
    const dt_ctx_desc desc = {.threads = 2, .no_fast = no_fast};
    *d = (ops_device){.cpu = !strcmp(id, "cpu")};
    snprintf(d->id, sizeof d->id, "%s", id);
    if (dt_ctx_create(&desc, &d->ctx) || dt_graph_create(d->ctx, &d->graph))
        return false;
    dt_param(d->graph, "keep", dt_dims(1), (dt_init){0});
    dt_result result = dt_store_create(d->graph, &(dt_store_desc){.device = id}, &d->store);
    test_check(result == DT_OK, __FILE__, __LINE__, "%s: %s", id, dt_ctx_error(d->ctx));
    /* a pipeline takes it two seconds */
    if (result == DT_OK && !getenv("DTRAIN_TEST_LONG"))
        d->small = strstr(dt_store_device(d->store)->name, "SwiftShader") != NULL;
    return result == DT_OK;
}

/* A leaf's values as its type has them; free() it. */
static void *ops_words(const ops_leaf *leaf, int64_t elements, size_t *bytes) {
    const dt_dtype dtype = dt_tensor_dtype(leaf->x);
    const size_t size = dti_dtype_bytes(dtype);
    char *words = malloc((size_t)(elements + 1) * size);
    for (int64_t i = 0; i < elements; i++) {
        double value = ops_value(leaf, i);
        float f = (float)value;
        int32_t whole = (int32_t)value;
        uint16_t half = dtype == DT_F16 ? f16_from_f32(f) : dti_bf16_from_f32(f);
        memcpy(words + (size_t)i * size,
               dti_is_half(dtype)           ? (void *)&half
               : leaf->range == OPS_CLASSES ? (void *)&whole
                                            : (void *)&f,
               size);
    }
    *bytes = (size_t)elements * size;
    return words;
}

static void ops_write_params(ops_device *d, ops_model *m, ref_run *run, dt_store *store) {
    for (int i = 0; i < m->leaf_count; i++) {
        const dti_node *n = ops_node(m->leaves[i].x);
        size_t bytes;
        if (n->op != DTI_OP_PARAM)
            continue;
        void *words =
            ops_words(&m->leaves[i], ref_tensor_of(run, m->leaves[i].x)->elements, &bytes);
        if (dt_store_write(store, n->attr.i[0], DT_VALUE_PARAM, words, bytes))
            ops_fail(d, "store_write", m);
        free(words);
    }
}

static void ops_write_inputs(ops_device *d, ops_model *m, ref_run *run, dt_program *program) {
    for (int i = 0; i < m->leaf_count; i++) {
        dt_tensor x = m->leaves[i].x;
        size_t bytes;
        if (ops_node(x)->op != DTI_OP_INPUT || !run->needed[x.id])
            continue;
        void *words = ops_words(&m->leaves[i], ref_tensor_of(run, x)->elements, &bytes);
        if (dt_program_write(program, x, words, bytes))
            ops_fail(d, "program_write", m);
        free(words);
    }
}

/* What the rounding of the two to 16 bits may add. It is a unit in the last place, for values on
 * two sides of a tie. */
static double ops_storage_bound(dt_dtype dtype, double y) {
    return dtype == DT_BF16 ? 0x1p-7 * fabs(y) : dtype == DT_F16 ? 0x1p-10 * fabs(y) + 0x1p-24 : 0;
}

/* Compares a node with the reference of the same inputs; then it has the device's values. */
static void ops_compare(ops_device *d, ref_run *run, uint32_t id, const double *device) {
    const dti_node *node = &run->graph->nodes[id];
    ref_node(run, id);
    ref_tensor *y = ref_tensor_of(run, (dt_tensor){(dt_graph *)run->graph, id});
    ref_tensor in[DTI_INPUTS_MAX];
    double *bound = malloc((size_t)(y->elements + 2) * sizeof *bound);
    for (uint32_t i = 0; i < node->count && i < DTI_COUNT(in); i++)
        in[i] = *ref_tensor_of(run, dti_input_of((dt_graph *)run->graph, node, i));
    ref_call r = {.node = node, .in = in, .out = *y, .step = &run->step, .train = run->train};
    r.batch = run->batch;
    memset(bound, 0, (size_t)(y->elements + 2) * sizeof *bound);
    if (node->op != DTI_OP_CONCAT)
        ops_bounds(&r, d->cpu, bound);
    for (int64_t i = 0; i < y->elements; i++) {
        double off = fabs(device[i] - y->data[i]);
        double exact = node->dtype == DT_F32 ? (double)(float)y->data[i] : y->data[i];
        if (bound[i] > 0)
            bound[i] += ops_storage_bound(node->dtype, y->data[i]);
        bool ok = bound[i] > 0 ? off <= bound[i] + OPS_TINY : device[i] == exact;
        ok = ok || device[i] == exact || (isnan(device[i]) && isnan(exact)); /* infinities of f16 */
        /* A GPU may flush what is below the least normal number to 0. */
        ok = ok || (!d->cpu && device[i] == 0 && fabs(exact) < 0x1p-126);
        test_check(
            ok, __FILE__, __LINE__,
            "%s: %s%s node %u %s [%d] = %.9g, the reference says %.9g: off by %.3g, allowed %.3g",
            d->id, dti_op_info_of(node->op)->name, node->term ? " term" : "", id,
            dti_shape_print(node->shape, node->samples).text, (int)i, device[i], y->data[i], off,
            bound[i]);
        y->data[i] = device[i];
    }
    free(bound);
}

typedef struct ops_chunk { /* the nodes that one program gives */
    dt_program_desc desc;
    uint32_t from; /* the first node that has no value yet */
    dt_tensor wanted[2 * DT_MAX_TERMS];
    uint32_t count, outputs, metrics;
} ops_chunk;

static void ops_read_output(ops_device *d, ops_model *m, ref_run *run, dt_program *program,
                            dt_tensor x) {
    int64_t elements = ref_tensor_of(run, x)->elements;
    const dt_dtype dtype = dt_tensor_dtype(x);
    const size_t size = dti_dtype_bytes(dtype);
    char *words = malloc((size_t)(elements + 1) * size);
    double *values = malloc((size_t)(elements + 1) * sizeof *values);
    if (dt_program_read(program, x, words, (size_t)elements * size)) {
        ops_fail(d, "program_read", m);
    } else {
        for (int64_t i = 0; i < elements; i++) {
            float f;
            int32_t whole;
            uint16_t half;
            memcpy(&f, words + (size_t)i * size, DTI_MIN(size, sizeof f));
            memcpy(&whole, words + (size_t)i * size, DTI_MIN(size, sizeof whole));
            memcpy(&half, words + (size_t)i * size, sizeof half);
            values[i] = dtype == DT_BF16  ? (double)dti_f32_from_bf16(half)
                        : dtype == DT_F16 ? (double)dti_f32_from_f16(half)
                        : dtype == DT_F32 ? (double)f
                                          : (double)whole;
        }
        ops_compare(d, run, x.id, values);
    }
    free(values);
    free(words);
}

/* Views and constants are exact, and read only where they are what is tested. */
static bool ops_is_plain(const dti_node *n, dti_op tested) {
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    return (family->view || family == &dti_family_fill) && family != dti_op_info_of(tested)->family;
}

static void ops_run_chunk(ops_device *d, ops_model *m, ref_run *run, dt_store *store,
                          ops_chunk *c) {
    dt_program *program;
    dt_report report;
    dt_step_desc step = {.seed = run->step.seed, .step = run->step.step};
    step.first_row = run->step.first_row;
    c->desc.batch = (int)run->batch;
    c->desc.mode = m->eval ? DT_MODE_EVAL : DT_MODE_TRAIN;
    ref_mark(run, c->wanted, c->count);
    if (dt_program_create(store, &c->desc, &program)) {
        ops_fail(d, "program_create", m);
        return;
    }
    ops_write_inputs(d, m, run, program);
    if (dt_program_run(program, &step, &report)) {
        ops_fail(d, "program_run", m);
        dt_program_destroy(program);
        return;
    }
    for (uint32_t i = 0, metric = 0; i < c->count; i++) {
        for (; c->from < c->wanted[i].id; c->from++)
            if (ops_is_plain(&m->graph->nodes[c->from], m->op))
                ref_node(run, c->from);
        if (!ops_node(c->wanted[i])->term) {
            ops_read_output(d, m, run, program, c->wanted[i]);
            continue;
        }
        double pair[2] = {report.metric_sum[metric], report.metric_weight[metric]};
        ops_compare(d, run, c->wanted[i].id, pair);
        metric++;
    }
    dt_program_destroy(program);
}

static void ops_run_nodes(ops_device *d, ops_model *m, ref_run *run, dt_store *store) {
    ops_chunk c = {.from = 1};
    for (uint32_t id = 1; id < m->graph->count; id++) {
        const dti_node *n = &m->graph->nodes[id];
        dt_tensor x = {m->graph, id};
        if (n->op == DTI_OP_INPUT || n->op == DTI_OP_PARAM || n->op == DTI_OP_SEED)
            continue; /* seeds belong to a program's losses: tested below */
        if (n->op == DTI_OP_RUNNING)
            continue; /* runs with a commit alone: tested below */
        if (ops_is_plain(n, m->op))
            continue;
        c.wanted[c.count++] = x;
        if (n->term)
            c.desc.metrics[c.metrics++] = x;
        else
            c.desc.outputs[c.outputs++] = x;
        if (c.outputs == DT_MAX_OUTPUTS || c.metrics == DT_MAX_TERMS) {
            ops_run_chunk(d, m, run, store, &c);
            c = (ops_chunk){.from = id + 1};
        }
    }
    if (c.count)
        ops_run_chunk(d, m, run, store, &c);
}

static void ops_check_device(ops_device *d, dti_op op, bool eval) {
    static dt_tensor dx[OPS_LEAVES];
    ops_model *m = &ops_model_now;
    ref_run run;
    dt_store *store = NULL;
    m->dtype = d->dtype;
    if (!ops_open(m, d->ctx, op, d->small))
        return;
    m->eval = eval;
    int leaves = m->leaf_count;
    for (int i = 0; i < m->result_count && !ops_is_flat(op); i++)
        ops_differentiate(m, m->results[i], ops_weights(m, m->results[i]), leaves, dx);
    ops_run_open(m, &run);
    if (dt_store_create(m->graph, &(dt_store_desc){.device = d->id}, &store)) {
        ops_fail(d, "store_create", m);
    } else {
        ops_write_params(d, m, &run, store);
        ops_run_nodes(d, m, &run, store);
        dt_store_destroy(store);
    }
    ref_close(&run);
    dt_graph_destroy(m->graph);
    m->dtype = DT_F32;
}

/* What computes on values in 16 bits. */
static bool ops_takes_halves(const dti_op_info *row) {
    static const dti_op_family *const families[] = {
        &dti_family_unary,  &dti_family_unary_grad, &dti_family_binary,    &dti_family_view,
        &dti_family_copy,   &dti_family_cast,       &dti_family_concat,    &dti_family_pad,
        &dti_family_matmul, &dti_family_linear,     &dti_family_linear_dx, &dti_family_linear_dw,
        &dti_family_conv2d, &dti_family_conv2d_dx,  &dti_family_conv2d_dw};
    bool takes = false;
    for (size_t i = 0; i < DTI_COUNT(families); i++)
        takes = takes || row->family == families[i];
    return takes;
}

/* Functions of elements are a pipeline or more each. All of them are compared with PyTorch's on
 * Vulkan elsewhere, so one in four is enough here. */
static bool ops_is_left_out(bool cpu, dti_op op) {
    return !cpu && dti_op_info_of((uint32_t)op)->family == &dti_family_unary &&
           !test_takes(op, 4, 4);
}

static void ops_check_halves(const char *id, dt_dtype dtype, bool no_fast) {
    ops_device d;
    if (ops_device_open(&d, id, no_fast)) {
        d.dtype = dtype;
        for (int op = 0; op < DTI_OP_COUNT; op++) {
            if (ops_takes_halves(dti_op_info_of((uint32_t)op)) &&
                !ops_is_left_out(d.cpu, (dti_op)op) && (d.cpu || test_takes(op, 1, 2)))
                ops_check_device(&d, (dti_op)op, false);
        }
    }
    ops_device_close(&d);
}

TEST(the_cpu_computes_on_bf16_within_the_bound_of_each_op_and_a_rounding) {
    ops_check_halves("cpu", DT_BF16, false);
}

TEST(the_portable_class_computes_on_f16_within_the_bound_of_each_op_and_a_rounding) {
    ops_check_halves("cpu", DT_F16, true);
}

/* SwiftShader takes minutes for all, most of them for compiling: all are in the long tests. */
static bool ops_is_slow(const char *id) {
    dt_ctx *ctx = ops_ctx();
    bool slow = false;
    for (int i = 0; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *info = dt_ctx_device(ctx, i);
        slow = slow || (!strcmp(info->id, id) && strstr(info->name, "SwiftShader"));
    }
    dt_ctx_destroy(ctx);
    return slow && !test_is_long();
}

TEST(vulkan_computes_on_16_bits_within_the_bound_of_each_op_and_a_rounding) {
    dt_ctx *ctx = ops_ctx();
    for (int i = 0; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *info = dt_ctx_device(ctx, i);
        if (info->usable && info->kind != DT_DEVICE_CPU && !ops_is_slow(info->id))
            ops_check_halves(info->id, i % 2 ? DT_BF16 : DT_F16, false);
    }
    dt_ctx_destroy(ctx);
}

/* All ops, and one in three of a slow device. Under a sanitizer each has one class of the CPU. */
static void ops_check_rows(const char *id, bool no_fast, dti_op first, dti_op end) {
    ops_device d;
    int at = 0;
    const int each = ops_is_slow(id) ? 3 : 1;
    if (ops_device_open(&d, id, no_fast))
        for (int op = first; op < (int)end; op++)
            for (int eval = 0; eval <= ops_has_modes((dti_op)op); eval++)
                if (!ops_is_left_out(d.cpu, (dti_op)op) && test_takes(op + no_fast, 1, 2) &&
                    at++ % each == 0)
                    ops_check_device(&d, (dti_op)op, eval);
    ops_device_close(&d);
}

TEST(the_cpu_computes_every_op_within_its_bound) {
    ops_check_rows("cpu", false, DTI_OP_INPUT, DTI_OP_COUNT);
}

/* What a CPU without SIMD or FMA runs. */
TEST(the_portable_class_computes_every_op_within_its_bound) {
    ops_check_rows("cpu", true, DTI_OP_INPUT, DTI_OP_COUNT);
}

/* The id of the Vulkan device with this number; false when there is no device that works. */
static bool ops_vulkan(int number, char id[32]) {
    dt_ctx *ctx = ops_ctx();
    bool found = false;
    snprintf(id, 32, "vulkan:%d", number);
    for (int i = 0; i < dt_ctx_device_count(ctx); i++) {
        const dt_device_info *info = dt_ctx_device(ctx, i);
        found = found || (!strcmp(info->id, id) && info->usable);
    }
    dt_ctx_destroy(ctx);
    return found;
}

#define OPS_VULKAN_TEST(number)                                                                    \
    TEST(vulkan_device_##number##_computes_every_op_within_its_bound) {                            \
        char id[32];                                                                               \
        if (!ops_vulkan(number, id))                                                               \
            SKIP("no such device");                                                                \
        ops_check_rows(id, false, DTI_OP_INPUT, DTI_OP_COUNT);                                     \
    }
OPS_VULKAN_TEST(0)
OPS_VULKAN_TEST(1)
OPS_VULKAN_TEST(2)

/* ---- what needs a program of its own */

/* A loss's seed is coefficient / weight. The gradients of two losses with different weights, with
 * the batch's own weights and with those of a global batch. */
static void ops_check_seeds(ops_device *d, dt_graph *graph, dt_store *store, const dt_tensor *terms,
                            const double *weights) {
    dt_program_desc desc = {.losses = {{terms[0], 0}, {terms[1], 0.25f}}, .batch = 2};
    dt_program *program;
    float gradient[2], p[2] = {0.5f, -1};
    double x[2] = {1.5, -2}, own[2] = {4, 2}, batch[2], expected[2];
    desc.gradients = true;
    dt_step_desc step = {.loss_weights = weights};
    test_check(dt_program_create(store, &desc, &program) == DT_OK, __FILE__, __LINE__, "%s: %s",
               d->id, dt_ctx_error(d->ctx));
    if (!program)
        return;
    CHECK(dt_program_write(program, (dt_tensor){graph, 2}, (float[]){1.5f, -2}, 8) == DT_OK);
    CHECK(dt_program_run(program, &step, NULL) == DT_OK);
    CHECK(dt_store_read(store, 0, DT_VALUE_GRADIENT, gradient, sizeof gradient) == DT_OK);
    for (int i = 0; i < 2; i++)
        batch[i] = weights ? weights[i] : own[i];
    for (int i = 0; i < 2; i++) {
        double slope = 0; /* of (p - x)^2, and of the sum of p by x */
        for (int row = 0; row < 2; row++)
            slope += 2 * ((double)p[i] - x[row]) / batch[0];
        expected[i] = slope + 0.25 * (x[0] + x[1]) / batch[1];
        CHECK_NEAR(gradient[i], expected[i], 1e-6);
    }
    double weighed[2] = {0};
    CHECK(dt_program_add_loss_weights(program, weighed) == DT_OK);
    CHECK(weighed[0] == own[0] && weighed[1] == own[1]);
    dt_program_destroy(program);
}

static void ops_check_seed_device(const char *id) {
    ops_device d;
    dt_graph *graph;
    dt_store *store = NULL;
    if (ops_device_open(&d, id, false) && dt_graph_create(d.ctx, &graph) == DT_OK) {
        dt_tensor p = dt_param(graph, "p", dt_dims(2), (dt_init){0});
        dt_tensor x = dt_input(graph, "x", DT_F32, dt_dims());
        dt_tensor terms[2] = {dt_mse(dt_add(p, dt_affine(x, 0, 0)), dt_expand(x, dt_dims(2))),
                              dt_mean_loss(dt_mul(dt_sum(p, dt_dims(), false), x))};
        CHECK(p.id == 1 && x.id == 2);
        if (!dt_store_create(graph, &(dt_store_desc){.device = id}, &store)) {
            CHECK(!dt_store_write(store, 0, DT_VALUE_PARAM, (float[]){0.5f, -1}, 8));
            ops_check_seeds(&d, graph, store, terms, NULL);
            ops_check_seeds(&d, graph, store, terms, (double[]){12, 5});
            dt_store_destroy(store);
        }
        CHECK(!dt_graph_error(graph));
        dt_graph_destroy(graph);
    }
    ops_device_close(&d);
}

TEST(a_seed_is_the_coefficient_over_the_weight_of_the_global_batch) {
    char id[32];
    ops_check_seed_device("cpu");
    for (int i = 0; i < 3; i++)
        if (ops_vulkan(i, id))
            ops_check_seed_device(id);
}

/* Cross-entropy's weight comes only from targets, before any forward pass. */
static void ops_check_weigh(const char *id) {
    ops_device d;
    dt_graph *graph;
    dt_store *store = NULL;
    dt_program *program = NULL;
    if (ops_device_open(&d, id, false) && dt_graph_create(d.ctx, &graph) == DT_OK) {
        dt_tensor p = dt_param(graph, "p", dt_dims(4), (dt_init){0});
        dt_tensor t = dt_input(graph, "t", DT_I32, dt_dims());
        dt_tensor w = dt_input_shared(graph, "w", DT_F32, dt_dims(4));
        dt_tensor logits = dti_expand_to(p, dt_dims(4), true);
        dt_tensor plain = dt_cross_entropy(logits, t, NULL);
        dt_tensor weighted =
            dt_cross_entropy(logits, t, &(dt_cross_entropy_desc){.class_weights = w});
        dt_program_desc desc = {
            .losses = {{plain, 0}, {weighted, 0}}, .batch = 5, .gradients = true};
        double weights[2] = {100, 100};
        if (!dt_store_create(graph, &(dt_store_desc){.device = id}, &store) &&
            !dt_program_create(store, &desc, &program)) {
            CHECK(!dt_program_write(program, t, (int32_t[]){3, -100, 0, 3, 1}, 20));
            CHECK(!dt_program_write(program, w, (float[]){0.5f, 2, 8, 1.25f}, 16));
            CHECK(!dt_program_add_loss_weights(program, weights));
            CHECK(weights[0] == 104 && weights[1] == 105);
        }
        test_check(program != NULL, __FILE__, __LINE__, "%s: %s", id, dt_ctx_error(d.ctx));
        dt_program_destroy(program);
        if (store)
            dt_store_destroy(store);
        dt_graph_destroy(graph);
    }
    ops_device_close(&d);
}

TEST(the_weight_of_a_cross_entropy_is_known_from_its_targets) {
    char id[32];
    ops_check_weigh("cpu");
    for (int i = 0; i < 3; i++)
        if (ops_vulkan(i, id))
            ops_check_weigh(id);
}

/* More workgroups than one axis of a grid may have: 65535, of 128 invocations. */
static void ops_check_large(const char *id) {
    const int64_t n = 65535 * 128 + 77;
    ops_device d;
    dt_graph *graph;
    dt_store *store = NULL;
    dt_program *program = NULL;
    float *x = malloc((size_t)n * 4), *y = malloc((size_t)n * 4);
    if (ops_device_open(&d, id, false) && dt_graph_create(d.ctx, &graph) == DT_OK) {
        dt_tensor in = dt_input(graph, "x", DT_F32, dt_dims(n)), out = dt_neg(in);
        dt_program_desc desc = {.outputs = {out}};
        for (int64_t i = 0; i < n; i++)
            x[i] = (float)(i % 8388593);
        if (!dt_store_create(graph, &(dt_store_desc){.device = id}, &store) &&
            !dt_program_create(store, &desc, &program)) {
            CHECK(!dt_program_write(program, in, x, (size_t)n * 4));
            CHECK(!dt_program_run(program, NULL, NULL));
            CHECK(!dt_program_read(program, out, y, (size_t)n * 4));
            int64_t wrong = 0;
            for (int64_t i = 0; i < n; i++)
                wrong += y[i] != -x[i];
            CHECK(wrong == 0);
        }
        test_check(program != NULL, __FILE__, __LINE__, "%s: %s", id, dt_ctx_error(d.ctx));
        dt_program_destroy(program);
        if (store)
            dt_store_destroy(store);
        dt_graph_destroy(graph);
    }
    ops_device_close(&d);
    free(x);
    free(y);
}

TEST(a_tensor_may_need_more_workgroups_than_one_axis_allows) {
    char id[32];
    ops_check_large("cpu");
    for (int i = 0; i < 3; i++)
        if (ops_vulkan(i, id))
            ops_check_large(id);
}

/* ---- definitions by hand, where the reference and a device could be wrong together */

/* The values of one tensor on the reference, with the graph's only leaf filled with x. */
static const double *ops_by_hand(ref_run *run, dt_tensor leaf, const double *x, dt_tensor y) {
    ref_tensor *t = ref_tensor_of(run, leaf);
    memcpy(t->data, x, (size_t)t->elements * sizeof *x);
    ref_values(run, &y, 1);
    return ref_tensor_of(run, y)->data;
}

TEST(ties_share_their_gradient_and_kinks_have_the_gradient_of_pytorch) {
    dt_ctx *ctx = ops_ctx();
    dt_graph *g;
    ref_run run;
    REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
    dt_tensor x = dt_input_shared(g, "x", DT_F32, dt_dims(5));
    const double values[5] = {0, 2, -1, 2, 0};
    dt_tensor zero = dt_fill(g, dt_dims(), 0);
    dt_tensor of[6] = {dt_gradient(dt_max(x, dt_dims(), false), x),
                       dt_gradient(dt_maximum(x, zero), x),
                       dt_gradient(dt_minimum(x, zero), x),
                       dt_gradient(dt_relu(x), x),
                       dt_gradient(dt_abs(x), x),
                       dt_gradient(dt_leaky_relu(x, 0.25f), x)};
    const double expected[6][5] = {{0, .5, 0, .5, 0}, {.5, 1, 0, 1, .5}, {.5, 0, 1, 0, .5},
                                   {0, 1, 0, 1, 0},   {0, 1, -1, 1, 0},  {.25, 1, .25, 1, .25}};
    ref_open(&run, g, 1);
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 5; k++)
            CHECK_NEAR(ops_by_hand(&run, x, values, of[i])[k], expected[i][k], 0);
    CHECK(!dt_graph_error(g));
    ref_close(&run);
    dt_graph_destroy(g);
    dt_ctx_destroy(ctx);
}

TEST(dropout_keeps_its_share_scales_it_and_depends_only_on_the_row) {
    enum { ROWS = 64, COLS = 100 };
    dt_ctx *ctx = ops_ctx();
    dt_graph *g;
    ref_run whole, part;
    REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(COLS)), y = dt_dropout(x, 0.25f);
    dt_tensor again = dt_dropout(x, 0.25f);
    static double ones[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++)
        ones[i] = 1;
    ref_open(&whole, g, ROWS);
    whole.step.seed = 99;
    const double *all = ops_by_hand(&whole, x, ones, y);
    int kept = 0, same = 0;
    for (int i = 0; i < ROWS * COLS; i++) {
        kept += all[i] != 0;
        CHECK(all[i] == 0 || fabs(all[i] - 4.0 / 3) < 1e-12);
    }
    CHECK(kept > 0.75 * ROWS * COLS - 140 && kept < 0.75 * ROWS * COLS + 140); /* 4 sigma */
    ref_open(&part, g, 16); /* rows 48 to 63 of the same batch */
    part.step = whole.step;
    part.step.first_row = 48;
    const double *last = ops_by_hand(&part, x, ones, y);
    CHECK(!memcmp(last, all + 48 * COLS, 16 * COLS * sizeof *last));
    const double *other = ops_by_hand(&whole, x, ones, again); /* another stream, another mask */
    for (int i = 0; i < ROWS * COLS; i++)
        same += (other[i] != 0) == (all[i] != 0);
    CHECK(same < 0.7 * ROWS * COLS);
    part.train = false;
    CHECK(!memcmp(ops_by_hand(&part, x, ones, y), ones, 16 * COLS * sizeof *ones));
    ref_close(&whole);
    ref_close(&part);
    dt_graph_destroy(g);
    dt_ctx_destroy(ctx);
}

TEST(random_numbers_have_their_distribution_and_the_same_values_for_any_cut_of_a_batch) {
    enum { ROWS = 64, COLS = 300, N = ROWS * COLS };
    dt_ctx *ctx = ops_ctx();
    dt_graph *g;
    ref_run whole, part;
    REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
    dt_tensor x = dt_input(g, "x", DT_F32, dt_dims(COLS));
    const dt_tensor drawn[] = {dt_random_uniform(x), dt_random_uniform(x), dt_random_normal(x)};
    static double of_x[N];
    static const double mean[3] = {0.5, 0.5, 0}, variance[3] = {1.0 / 12, 1.0 / 12, 1};
    static double first[N];
    for (int i = 0; i < 3; i++) {
        double sum = 0, square = 0, least = 9, most = -9;
        int outside = 0;
        ref_open(&whole, g, ROWS);
        whole.step.seed = 99;
        const double *y = ops_by_hand(&whole, x, of_x, drawn[i]);
        for (int k = 0; k < N; k++) {
            sum += y[k], square += (y[k] - mean[i]) * (y[k] - mean[i]);
            least = fmin(least, y[k]), most = fmax(most, y[k]);
            outside += fabs(y[k]) > 1.959963985;
        }
        CHECK_NEAR(sum / N, mean[i], 4 * sqrt(variance[i] / N));
        CHECK_NEAR(square / N, variance[i], 4 * variance[i] * sqrt(2.0 / N));
        CHECK(i == 2 || (least > 0 && least < 1e-3 && most < 1 && most > 0.999));
        CHECK(i < 2 || (outside > 0.05 * N - 120 && outside < 0.05 * N + 120)); /* 4 sigma */
        CHECK(i != 1 || memcmp(y, first, sizeof first) != 0);
        memcpy(first, y, sizeof first);
        ref_open(&part, g, 16); /* rows 48 to 63, of a program that does not train */
        part.step = whole.step;
        part.step.first_row = 48;
        part.train = false;
        const double *last = ops_by_hand(&part, x, of_x, drawn[i]);
        CHECK(!memcmp(last, first + 48 * COLS, 16 * COLS * sizeof *last));
        ref_close(&part);
        ref_close(&whole);
    }
    CHECK(!dt_graph_error(g));
    dt_graph_destroy(g);
    dt_ctx_destroy(ctx);
}

TEST(a_seed_without_weight_is_zero_and_the_global_weight_comes_first) {
    dt_ctx *ctx = ops_ctx();
    dt_graph *g;
    ref_run run;
    REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
    dt_tensor t = dt_input(g, "t", DT_I32, dt_dims());
    dt_tensor term = dt_cross_entropy(dt_input(g, "x", DT_F32, dt_dims(3)), t, NULL);
    dt_tensor seed = dti_append1(DTI_OP_SEED, term, &(dti_attr){.i = {1}});
    ref_open(&run, g, 4);
    run.step.coefficient[1] = 6;
    CHECK_NEAR(ops_by_hand(&run, t, (const double[]){2, -100, 0, 1}, seed)[0], 2, 0);
    CHECK_NEAR(ops_by_hand(&run, t, (const double[]){-100, -100, -100, -100}, seed)[0], 0, 0);
    run.step.weight[1] = 12;
    CHECK_NEAR(ops_by_hand(&run, t, (const double[]){2, -100, 0, 1}, seed)[0], 0.5, 0);
    CHECK(!dt_graph_error(g));
    ref_close(&run);
    dt_graph_destroy(g);
    dt_ctx_destroy(ctx);
}

TEST(maxima_and_relu_pass_a_nan_on) {
    dt_ctx *ctx = ops_ctx();
    dt_graph *g;
    ref_run run;
    REQUIRE(dt_graph_create(ctx, &g) == DT_OK);
    dt_tensor x = dt_input_shared(g, "x", DT_F32, dt_dims(3)), one = dt_fill(g, dt_dims(), 1);
    dt_tensor of[5] = {dt_max(x, dt_dims(), false), dt_min(x, dt_dims(), false), dt_relu(x),
                       dt_maximum(x, one), dt_minimum(one, x)};
    ref_open(&run, g, 1);
    for (int i = 0; i < 5; i++)
        CHECK(isnan(ops_by_hand(&run, x, (const double[]){NAN, -1, 4}, of[i])[0]));
    ref_close(&run);
    dt_graph_destroy(g);
    dt_ctx_destroy(ctx);
}

/* ---- bad input: nil, and an error with the op, the shapes and what to do */

typedef struct ops_bad {
    dt_ctx *ctx;
    dt_graph *g, *other;
    dt_tensor x;     /* "x" [B, 3] */
    dt_tensor t;     /* "t" [B] i32 */
    dt_tensor w;     /* "w" [2, 3] */
    dt_tensor s;     /* "s" [4] */
    dt_tensor m;     /* "m" [B, 2, 3] */
    dt_tensor term;  /* of x */
    dt_tensor alien; /* of the other graph */
    dt_tensor nil;
} ops_bad;

static ops_bad ops_bad_open(void) {
    ops_bad b = {.ctx = ops_ctx()};
    dt_graph_create(b.ctx, &b.g);
    dt_graph_create(b.ctx, &b.other);
    b.x = dt_input(b.g, "x", DT_F32, dt_dims(3));
    b.t = dt_input(b.g, "t", DT_I32, dt_dims());
    b.w = dt_param(b.g, "w", dt_dims(2, 3), (dt_init){0});
    b.s = dt_input_shared(b.g, "s", DT_F32, dt_dims(4));
    b.m = dt_input(b.g, "m", DT_F32, dt_dims(2, 3));
    b.term = dt_mean_loss(b.x);
    b.alien = dt_input(b.other, "alien", DT_F32, dt_dims(3));
    return b;
}

/* The error of one wrong call, on graphs of its own; then an op on what it gave adds nothing. */
#define BAD(expression, first, second)                                                             \
    do {                                                                                           \
        ops_bad b = ops_bad_open();                                                                \
        CHECK(!dt_graph_error(b.g));                                                               \
        dt_tensor bad = (expression);                                                              \
        const char *error = dt_graph_error(b.g);                                                   \
        CHECK(dt_tensor_shape(bad).rank == -1);                                                    \
        CHECK_CONTAINS(error ? error : "no error", first);                                         \
        CHECK_CONTAINS(error ? error : "no error", second);                                        \
        char kept[512];                                                                            \
        snprintf(kept, sizeof kept, "%s", error ? error : "");                                     \
        CHECK(dt_tensor_shape(dt_exp(bad)).rank == -1);                                            \
        CHECK(dt_tensor_shape(dt_matmul(b.x, b.x)).rank == -1);                                    \
        CHECK_STR(dt_graph_error(b.g) ? dt_graph_error(b.g) : "", kept);                           \
        dt_graph_destroy(b.g);                                                                     \
        dt_graph_destroy(b.other);                                                                 \
        dt_ctx_destroy(b.ctx);                                                                     \
    } while (0)

TEST(ops_reject_shapes_that_do_not_fit_and_print_them) {
    BAD(dt_add(b.x, b.s), "add(x [B, 3], s [4])", "do not broadcast");
    BAD(dt_matmul(b.m, b.w), "matmul(m [B, 2, 3], w [2, 3])", "the inner sizes 3 and 2 differ");
    BAD(dt_matmul(b.x, b.w), "matmul(x [B, 3], w [2, 3])", "need 2 dimensions");
    BAD(dt_matmul(dt_reshape(b.m, dt_dims(2, 1, 3)), dt_fill(b.g, dt_dims(3, 3, 1), 1)),
        "matmul([B, 2, 1, 3], [3, 3, 1])", "leading dimensions");
    BAD(dt_linear(b.s, b.w, b.nil), "linear(s [4], w [2, 3])", "4 of x is not the weight's in, 3");
    BAD(dt_linear(b.x, b.s, b.nil), "linear(x [B, 3], s [4])", "must be [out, in]");
    BAD(dt_linear(b.x, b.w, b.s), "linear(x [B, 3], w [2, 3], s [4])", "bias must be [out]");
    BAD(dt_mse(b.x, b.s), "mse(x [B, 3]", "must have one shape");
    BAD(dt_cross_entropy(b.m, b.t, NULL), "cross_entropy(m [B, 2, 3], t [B])",
        "targets must be [B, 2]");
    BAD(dt_cross_entropy(b.x, b.t, &(dt_cross_entropy_desc){.class_weights = b.s}),
        "cross_entropy(x [B, 3], t [B], s [4])", "class weights must be [classes]");
    BAD(dt_embedding(b.x, b.t), "embedding(x [B, 3], t [B])", "without samples");
    BAD(dt_concat((dt_tensor[]){b.x, b.m}, 2, 0), "concat(x [B, 3], m [B, 2, 3])", "input 2");
    BAD(dt_expand(b.x, dt_dims(4)), "expand(x [B, 3])", "does not expand to [B, 4]");
    BAD(dt_reshape(b.m, dt_dims(4, 2)), "reshape(m [B, 2, 3])",
        "6 elements cannot have the shape [B, 4, 2]");
    BAD(dt_reshape(b.m, dt_dims(-1, 4)), "reshape(m [B, 2, 3])",
        "6 elements cannot have the shape [B, 1, 4]");
    BAD(dt_reshape(b.m, dt_dims(-1, -1)), "reshape(m [B, 2, 3])", "dimension 1");
    BAD(dt_reshape(b.m, dt_dims_of(6, (const int64_t[]){0, 1, 1, 1, 1, 2, 3})), "reshape",
        "rank is 6; it must be from 0 to 5");
    BAD(dt_slice(b.x, 0, 2, 2), "slice(x [B, 3])", "2 elements from element 2 on");
    BAD(dt_slice(b.x, 0, -1, 2), "slice(x [B, 3])", "-1");
    BAD(dt_permute(b.m, dt_dims(0, 0)), "permute(m [B, 2, 3])", "[0, 0]");
    BAD(dt_sum_samples(b.s), "sum_samples([4])", "no sample axis");
    BAD(dt_max(dt_slice(b.x, 0, 0, 0), dt_dims(), false), "max([B, 0])", "no elements");
    BAD(dt_expand(dt_slice(b.x, 0, 0, 1), dt_dims(65536, 32768)), "expand", "below 2^31 elements");
    BAD(dt_fill(b.g, dt_dims_of(6, (const int64_t[]){0, 1, 1, 1, 1, 1, 1}), 0), "fill",
        "at most 5 dimensions");
    BAD(dt_fill(b.g, dt_dims(-3), 0), "fill", "[-3]");
}

TEST(ops_reject_axes_that_do_not_exist) {
    BAD(dt_sum(b.x, dt_dims(1), false), "sum([B, 3])", "no axis 1");
    BAD(dt_mean(b.m, dt_dims_of(1, (const int64_t[]){0, -3}), false), "mean([B, 2, 3])",
        "no axis -3");
    BAD(dt_softmax(b.x, 1), "softmax([B, 3])", "no axis 1");
    BAD(dt_log_softmax(b.m, -3), "log_softmax([B, 2, 3])", "no axis -3");
    BAD(dt_softmax(dt_sum(b.x, dt_dims(), false), -1), "softmax([B])", "no axis -1");
    BAD(dt_slice(b.x, 1, 0, 1), "slice(x [B, 3])", "no axis 1");
    BAD(dt_slice(b.x, -2, 0, 1), "slice(x [B, 3])", "no axis -1");
    BAD(dt_concat(&b.x, 1, 1), "concat(x [B, 3])", "no axis 1");
}

TEST(ops_reject_types_and_values_that_they_cannot_take) {
    BAD(dt_exp(b.t), "exp(t [B])", "input 1 is i32; it must be f32: dt_cast it");
    BAD(dt_mul(b.x, b.t), "mul(x [B, 3], t [B])", "input 2 is i32");
    BAD(dt_matmul(b.w, b.t), "matmul(w [2, 3], t [B])", "input 2 is i32");
    BAD(dt_sum(b.t, dt_dims(), false), "sum(t [B])", "i32");
    BAD(dt_cross_entropy(b.x, b.x, NULL), "cross_entropy(x [B, 3], x [B, 3])",
        "targets must be i32");
    BAD(dt_accuracy(b.t, b.t), "accuracy(t [B], t [B])", "logits must be f32");
    BAD(dt_embedding(b.w, b.x), "embedding(w [2, 3], x [B, 3])", "an i32 index");
    BAD(dt_dropout(b.x, 1.25f), "dropout(x [B, 3])", "p is 1.25; it must be in [0, 1]");
    BAD(dt_dropout(b.x, -0.5f), "dropout(x [B, 3])", "p is -0.5");
    BAD(dt_dropout(b.x, NAN), "dropout(x [B, 3])", "nan");
    BAD(dt_cross_entropy(b.x, b.t, &(dt_cross_entropy_desc){.label_smoothing = 1.5f}),
        "cross_entropy(x [B, 3], t [B])", "label_smoothing is 1.5; it must be in [0, 1]");
}

TEST(ops_reject_nil_loss_terms_and_tensors_of_another_graph) {
    BAD(dt_add(b.x, b.alien), "add", "input 2 is a tensor of another graph");
    BAD(dt_linear(b.x, b.w, b.alien), "linear", "input 3 is a tensor of another graph");
    BAD(dt_add(b.x, b.nil), "add", "input 2 is nil");
    BAD(dt_linear(b.x, b.nil, b.nil), "linear", "input 2 is nil");
    BAD(dt_exp(b.term), "exp([2])", "input 1 is a loss term");
    BAD(dt_mean_loss(b.term), "mean_loss([2])", "dt_program_desc.losses");
    BAD(dt_gradient(b.x, b.alien), "gradient", "two graphs");
    BAD(dt_gradient(b.term, b.w), "gradient", "mean_loss of 'x' does not depend on 'w' [2, 3]");
    BAD(dt_gradient(dt_sign(b.x), b.x), "gradient", "differentiable");
    BAD(dt_gradient(dt_detach(b.x), b.x), "gradient", "differentiable");
    BAD(dt_freeze(b.x), "freeze", "'x' is not a parameter");
    BAD(dt_param(b.g, "w", dt_dims(1), (dt_init){0}), "param 'w'",
        "another parameter has this name");
    BAD(dt_param(b.g, "", dt_dims(1), (dt_init){0}), "param", "a name is needed");
    BAD(dt_input(b.g, "y", DT_F32, dt_dims(65536, 65536)), "input 'y'", "[B, 65536, 65536]");
}

TEST(ops_on_nil_are_nil_and_harmless) {
    dt_tensor nil = {0};
    CHECK(dt_tensor_shape(nil).rank == -1 && !dt_tensor_has_samples(nil));
    dt_tensor of[] = {dt_exp(nil),
                      dt_add(nil, nil),
                      dt_sum(nil, dt_dims(), false),
                      dt_sum_samples(nil),
                      dt_softmax(nil, 0),
                      dt_reshape(nil, dt_dims(1)),
                      dt_permute(nil, dt_dims(0)),
                      dt_slice(nil, -1, 0, 1),
                      dt_expand(nil, dt_dims(1)),
                      dt_concat(&nil, 1, -1),
                      dt_cast(nil, DT_I32),
                      dt_copy(nil),
                      dt_detach(nil),
                      dt_label(nil, "no"),
                      dt_matmul(nil, nil),
                      dt_linear(nil, nil, nil),
                      dt_embedding(nil, nil),
                      dt_dropout(nil, 0.5f),
                      dt_cross_entropy(nil, nil, NULL),
                      dt_mse(nil, nil),
                      dt_mean_loss(nil),
                      dt_accuracy(nil, nil),
                      dt_gradient(nil, nil),
                      dt_freeze(nil)};
    for (size_t i = 0; i < DTI_COUNT(of); i++)
        CHECK(dti_is_nil(of[i]));
}
