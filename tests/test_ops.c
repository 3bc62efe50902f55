/* Every row of the op table, from the inside: included by main.c behind the implementation. The
 * reference is held against finite differences and against each composite row taken apart; the
 * devices are held against the reference, node by node: a node's inputs are the values that the
 * device itself computed, so its bound is that of one op (ops_bounds.h) and no error adds up. */
#ifdef DT_REFERENCE

#include "ops_cases.h"
#include "ops_bounds.h"

#define OPS_BATCH 3

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
    if (dt_graph_create(ctx, &m->graph) || !ops_case_of(op))
        return false;
    ops_case_of(op)(m);
    const char *error = dt_graph_error(m->graph);
    test_check(!error, __FILE__, __LINE__, "the case of %s: %s", dti_op_info_of(op)->name,
               error ? error : "");
    test_check(m->result_count < OPS_RESULTS && m->leaf_count < OPS_LEAVES - 1, __FILE__, __LINE__,
               "the case of %s has too many parts", dti_op_info_of(op)->name);
    return !error;
}

/* Values that floats hold exactly, the same in every run. */
static double ops_value(const ops_leaf *leaf, int64_t i) {
    double u = dti_uniform01(2024, (uint64_t)i, leaf->x.id);
    double sign = (dti_philox(7, (uint64_t)i, leaf->x.id).v[0] & 1) ? 1 : -1;
    switch (leaf->range) {
    case OPS_AWAY: return (double)(float)(sign * (0.1 + 1.9 * u));
    case OPS_POSITIVE: return (double)(float)(0.2 + 2.8 * u);
    case OPS_WIDE: return (double)(float)(60 * u - 30);
    case OPS_CLASSES: return leaf->ignores && i % 3 == 1 ? -100 : floor(u * leaf->classes);
    default: return (double)(float)(4 * u - 2);
    }
}

static void ops_fill(ops_model *m, dti_ref_run *run) {
    for (int i = 0; i < m->leaf_count; i++) {
        dti_ref_tensor *t = dti_ref_tensor_of(run, m->leaves[i].x);
        for (int64_t k = 0; t && k < t->elements; k++)
            t->data[k] = ops_value(&m->leaves[i], k);
    }
}

static void ops_run_open(ops_model *m, dti_ref_run *run) {
    dti_ref_open(run, m->graph, OPS_BATCH);
    run->step.seed = 0x123456789abcdefull;
    run->step.step = 5;
    run->step.first_row = 7;
    ops_fill(m, run);
}

static const dti_node *ops_node(dt_tensor x) {
    return &x.graph->nodes[x.id];
}

static bool ops_is_float(dt_tensor x) {
    return ops_node(x)->dtype == DT_F32;
}

/* A leaf of y's shape that weighs y's elements; for a term one number, which weighs its sum. */
static dt_tensor ops_weights(ops_model *m, dt_tensor y) {
    return ops_node(y)->term ? ops_shared(m, dt_dims(), OPS_POSITIVE) : ops_like(m, y, OPS_ANY);
}

/* d(sum of y * dy) by the first `leaves` leaves; nil where none flows. */
static void ops_differentiate(ops_model *m, dt_tensor y, dt_tensor dy, int leaves, dt_tensor *dx) {
    dt_tensor wrt[OPS_LEAVES];
    for (int i = 0; i < leaves; i++)
        wrt[i] = ops_is_float(m->leaves[i].x) ? m->leaves[i].x : (dt_tensor){0};
    dti_differentiate(m->graph, y, dy, wrt, (uint32_t)leaves, dx);
}

/* ---- finite differences */

typedef struct ops_probe { /* the objective: sum of y * dy */
    ops_model *m;
    dti_ref_run *run;
    dt_tensor y, dy;
    const char *what;
} ops_probe;

static double ops_objective(ops_probe *p) {
    dt_tensor wanted[2] = {p->y, p->dy};
    dti_ref_values(p->run, wanted, 2);
    const dti_ref_tensor *y = dti_ref_tensor_of(p->run, p->y);
    const dti_ref_tensor *dy = dti_ref_tensor_of(p->run, p->dy);
    if (ops_node(p->y)->term)
        return y->data[0] * dy->data[0];
    double sum = 0;
    for (int64_t i = 0; i < y->elements; i++)
        sum += y->data[i] * dy->data[i];
    return sum;
}

static void ops_check_slope(ops_probe *p, const ops_leaf *leaf, dt_tensor dx, int64_t i) {
    dti_ref_tensor *x = dti_ref_tensor_of(p->run, leaf->x);
    double at = x->data[i], h = 1e-5 * fmax(1, fabs(at));
    double g = dti_is_nil(dx) ? 0 : dti_ref_tensor_of(p->run, dx)->data[i];
    x->data[i] = at + h;
    double above = ops_objective(p);
    x->data[i] = at - h;
    double below = ops_objective(p);
    x->data[i] = at;
    double slope = (above - below) / (2 * h);
    test_check(fabs(slope - g) <= 1e-6 * (1 + fabs(g)), __FILE__, __LINE__,
               "%s %s node %u, by %s [%d]: the gradient is %.9g, finite differences give %.9g",
               p->what, dti_op_info_of(p->m->op)->name, p->y.id, ops_node(leaf->x)->label, (int)i, g,
               slope);
}

/* A few elements of each leaf. */
static void ops_check_slopes(ops_probe *p, int leaves, const dt_tensor *dx) {
    dti_ref_values(p->run, dx, (uint32_t)leaves);
    for (int i = 0; i < leaves; i++) {
        const ops_leaf *leaf = &p->m->leaves[i];
        dti_ref_tensor *x = dti_ref_tensor_of(p->run, leaf->x);
        if (!ops_is_float(leaf->x) || leaf->constant || !x)
            continue;
        if (!dti_is_nil(dx[i]))
            CHECK(dti_shape_equal(ops_node(dx[i])->shape, ops_node(leaf->x)->shape) &&
                  ops_node(dx[i])->samples == ops_node(leaf->x)->samples);
        int64_t step = x->elements / 4 + 1;
        for (int64_t k = 0; k < x->elements; k += step)
            ops_check_slope(p, leaf, dx[i], (k * 7 + 1) % x->elements);
    }
}

static bool ops_is_flat(dti_op op) { /* the gradient is 0 by definition, or there is none */
    switch (op) {
    case DTI_OP_SIGN:
    case DTI_OP_FLOOR:
    case DTI_OP_STEP:
    case DTI_OP_EQ:
    case DTI_OP_LT:
    case DTI_OP_LE:
    case DTI_OP_GT:
    case DTI_OP_GE:
    case DTI_OP_CAST:
    case DTI_OP_DETACH:
    case DTI_OP_SEED:
    case DTI_OP_FILL:
    case DTI_OP_IOTA:
    case DTI_OP_ACCURACY:
    case DTI_OP_CROSS_ENTROPY_WEIGHT: return true;
    default: return false;
    }
}

/* The leaves that a result depends on come first in its probe only by number, so all are asked. */
static void ops_check_gradients(ops_model *m, dt_ctx *ctx, dti_op op, bool second) {
    static dt_tensor dx[OPS_LEAVES], ddx[OPS_LEAVES];
    if (!ops_open(m, ctx, op, true))
        return;
    int leaves = m->leaf_count, results = m->result_count;
    for (int i = 0; i < results && !dt_graph_error(m->graph); i++) {
        dt_tensor y = m->results[i], dy = ops_weights(m, y);
        ops_differentiate(m, y, dy, leaves, dx);
        for (int k = 0; k < leaves; k++) {
            if (!second || dti_is_nil(dx[k]))
                continue;
            dt_tensor u = ops_weights(m, dx[k]);
            ops_differentiate(m, dx[k], u, leaves, ddx);
            dti_ref_run run;
            ops_run_open(m, &run);
            ops_probe p = {m, &run, dx[k], u, "second derivative of"};
            ops_check_slopes(&p, leaves, ddx);
            dti_ref_close(&run);
        }
        dti_ref_run run;
        ops_run_open(m, &run);
        ops_probe p = {m, &run, y, dy, "gradient of"};
        if (!second)
            ops_check_slopes(&p, leaves, dx);
        dti_ref_close(&run);
    }
    const char *error = dt_graph_error(m->graph);
    test_check(!error, __FILE__, __LINE__, "%s: %s", dti_op_info_of(op)->name, error ? error : "");
    dt_graph_destroy(m->graph);
}

static ops_model ops_model_now; /* too large for a small stack */

TEST(every_row_of_the_op_table_has_a_case_and_a_reference) {
    for (int op = DTI_OP_NIL + 1; op < DTI_OP_COUNT; op++) {
        const dti_op_info *info = dti_op_info_of((uint32_t)op);
        test_check(ops_case_of((dti_op)op) != NULL, __FILE__, __LINE__, "%s has no case",
                   info->name);
        test_check(info->family->ref != NULL, __FILE__, __LINE__, "%s has no reference",
                   info->name);
    }
}

TEST(every_case_uses_its_row_and_gives_finite_values) {
    dt_ctx *ctx = ops_ctx();
    for (int op = DTI_OP_INPUT; op < DTI_OP_COUNT; op++) {
        ops_model *m = &ops_model_now;
        dti_ref_run run;
        if (!ops_open(m, ctx, (dti_op)op, false))
            continue;
        bool used = false;
        for (uint32_t id = 1; id < m->graph->count; id++)
            used = used || m->graph->nodes[id].op == op;
        test_check(used, __FILE__, __LINE__, "the case of %s does not use it",
                   dti_op_info_of((uint32_t)op)->name);
        ops_run_open(m, &run);
        CHECK(dti_ref_values(&run, m->results, (uint32_t)m->result_count) == DT_OK);
        for (int i = 0; i < m->result_count; i++) {
            const dti_ref_tensor *y = dti_ref_tensor_of(&run, m->results[i]);
            for (int64_t k = 0; k < y->elements; k++)
                test_check(isfinite(y->data[k]), __FILE__, __LINE__, "%s result %d [%d] is %g",
                           dti_op_info_of((uint32_t)op)->name, i, (int)k, y->data[k]);
        }
        dti_ref_close(&run);
        dt_graph_destroy(m->graph);
    }
    dt_ctx_destroy(ctx);
}

TEST(gradients_match_finite_differences) {
    dt_ctx *ctx = ops_ctx();
    for (int op = DTI_OP_INPUT; op < DTI_OP_COUNT; op++)
        if (!ops_is_flat((dti_op)op))
            ops_check_gradients(&ops_model_now, ctx, (dti_op)op, false);
    dt_ctx_destroy(ctx);
}

TEST(second_derivatives_match_finite_differences) {
    static const dti_op ops[] = {DTI_OP_MUL,          DTI_OP_DIV,    DTI_OP_POW,
                                 DTI_OP_SUM,          DTI_OP_MATMUL, DTI_OP_LINEAR,
                                 DTI_OP_SOFTMAX,      DTI_OP_MSE,    DTI_OP_LOG_SOFTMAX,
                                 DTI_OP_GATHER,       DTI_OP_CONCAT, DTI_OP_DROPOUT,
                                 DTI_OP_CROSS_ENTROPY};
    dt_ctx *ctx = ops_ctx();
    for (int op = DTI_OP_INPUT; op < DTI_OP_COUNT; op++)
        if (dti_op_info_of((uint32_t)op)->family == &dti_family_unary && !ops_is_flat((dti_op)op))
            ops_check_gradients(&ops_model_now, ctx, (dti_op)op, true);
    for (size_t i = 0; i < DTI_COUNT(ops); i++)
        ops_check_gradients(&ops_model_now, ctx, ops[i], true);
    dt_ctx_destroy(ctx);
}

TEST(ops_without_a_gradient_give_no_path) {
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

/* ---- composite rows against the rows that they come apart into */

/* Constants in rows are floats, and so are 1 - eps and eps / classes; the fused ones are exact. */
static double ops_lower_tolerance(const dti_node *n) {
    switch (n->op) {
    case DTI_OP_UNARY_GRAD: {
        int selector = n->attr.i[0];
        bool rounds = selector == DTI_U_GELU || selector == DTI_U_GELU_TANH || selector == DTI_U_ERF;
        return rounds ? 1e-6 : selector == DTI_U_SOFTPLUS ? 1e-8 : 1e-12;
    }
    case DTI_OP_CROSS_ENTROPY_GRAD: return n->attr.f[0] != 0 ? 1e-7 : 1e-12;
    default: return 1e-12;
    }
}

static void ops_check_lower(ops_model *m, uint32_t id) {
    dti_grad g = {.graph = m->graph, .node = m->graph->nodes[id], .y = {m->graph, id}};
    for (uint32_t i = 0; i < g.node.count && i < DTI_BINDINGS_MAX; i++)
        g.in[i] = dti_input_of(m->graph, &g.node, i);
    dt_tensor both[2] = {g.y, dti_op_info_of(g.node.op)->family->lower(&g)};
    const char *name = dti_op_info_of(g.node.op)->name;
    dti_ref_run run;
    if (!test_check(!dti_is_nil(both[1]), __FILE__, __LINE__, "%s does not come apart: %s", name,
                    dt_graph_error(m->graph)))
        return;
    ops_run_open(m, &run);
    dti_ref_values(&run, both, 2);
    const dti_ref_tensor *fused = dti_ref_tensor_of(&run, both[0]);
    const dti_ref_tensor *apart = dti_ref_tensor_of(&run, both[1]);
    CHECK(fused->elements == apart->elements);
    double tolerance = ops_lower_tolerance(&g.node);
    for (int64_t i = 0; i < fused->elements && fused->elements == apart->elements; i++) {
        double a = fused->data[i], b = apart->data[i];
        test_check(fabs(a - b) <= tolerance * (1 + fabs(a)), __FILE__, __LINE__,
                   "%s node %u [%d]: %.15g, from rows %.15g", name, id, (int)i, a, b);
    }
    dti_ref_close(&run);
}

TEST(composite_rows_equal_the_rows_that_they_come_apart_into) {
    dt_ctx *ctx = ops_ctx();
    int compared = 0;
    for (int op = DTI_OP_INPUT; op < DTI_OP_COUNT; op++) {
        ops_model *m = &ops_model_now;
        if (!dti_op_info_of((uint32_t)op)->family->lower || !ops_open(m, ctx, (dti_op)op, true))
            continue;
        uint32_t count = m->graph->count;
        for (uint32_t id = 1; id < count; id++) {
            if (m->graph->nodes[id].op == op) {
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

static bool ops_device_open(ops_device *d, const char *id) {
    *d = (ops_device){.cpu = !strcmp(id, "cpu")};
    snprintf(d->id, sizeof d->id, "%s", id);
    if (dt_ctx_create(&(dt_ctx_desc){.threads = 2}, &d->ctx) || dt_graph_create(d->ctx, &d->graph))
        return false;
    dt_param(d->graph, "keep", dt_dims(1), (dt_init){0});
    dt_result result = dt_store_create(d->graph, &(dt_store_desc){.device = id}, &d->store);
    test_check(result == DT_OK, __FILE__, __LINE__, "%s: %s", id, dt_ctx_error(d->ctx));
    return result == DT_OK;
}

/* A leaf's values as its type has them; free() it. */
static void *ops_words(const ops_leaf *leaf, int64_t elements, size_t *bytes) {
    uint32_t *words = malloc((size_t)(elements + 1) * 4);
    for (int64_t i = 0; i < elements; i++) {
        double value = ops_value(leaf, i);
        float f = (float)value;
        int32_t whole = (int32_t)value;
        memcpy(words + i, leaf->range == OPS_CLASSES ? (void *)&whole : (void *)&f, 4);
    }
    *bytes = (size_t)elements * 4;
    return words;
}

static void ops_write_params(ops_device *d, ops_model *m, dti_ref_run *run, dt_store *store) {
    for (int i = 0; i < m->leaf_count; i++) {
        const dti_node *n = ops_node(m->leaves[i].x);
        size_t bytes;
        if (n->op != DTI_OP_PARAM)
            continue;
        void *words = ops_words(&m->leaves[i], dti_ref_tensor_of(run, m->leaves[i].x)->elements, &bytes);
        if (dt_store_write(store, n->attr.i[0], DT_VALUE_PARAM, words, bytes))
            ops_fail(d, "store_write", m);
        free(words);
    }
}

static void ops_write_inputs(ops_device *d, ops_model *m, dti_ref_run *run, dt_program *program) {
    for (int i = 0; i < m->leaf_count; i++) {
        dt_tensor x = m->leaves[i].x;
        size_t bytes;
        if (ops_node(x)->op != DTI_OP_INPUT || !run->needed[x.id])
            continue;
        void *words = ops_words(&m->leaves[i], dti_ref_tensor_of(run, x)->elements, &bytes);
        if (dt_program_write(program, x, words, bytes))
            ops_fail(d, "program_write", m);
        free(words);
    }
}

/* Compares a node with the reference of the same inputs, and takes the device's values from there. */
static void ops_compare(ops_device *d, dti_ref_run *run, uint32_t id, const double *device) {
    const dti_node *node = &run->graph->nodes[id];
    dti_ref_node(run, id);
    dti_ref_tensor *y = dti_ref_tensor_of(run, (dt_tensor){(dt_graph *)run->graph, id}), in[3];
    double *bound = malloc((size_t)(y->elements + 2) * sizeof *bound);
    for (uint32_t i = 0; i < node->count && i < 3; i++)
        in[i] = *dti_ref_tensor_of(run, dti_input_of((dt_graph *)run->graph, node, i));
    dti_ref r = {.node = node, .in = in, .out = *y, .step = &run->step, .train = run->train};
    memset(bound, 0, (size_t)(y->elements + 2) * sizeof *bound);
    if (node->op != DTI_OP_CONCAT)
        ops_bounds(&r, d->cpu, bound);
    for (int64_t i = 0; i < y->elements; i++) {
        double off = fabs(device[i] - y->data[i]);
        double exact = node->dtype == DT_F32 ? (double)(float)y->data[i] : y->data[i];
        bool ok = bound[i] > 0 ? off <= bound[i] + 0x1p-126 : device[i] == exact;
        test_check(ok, __FILE__, __LINE__,
                   "%s: %s%s node %u %s [%d] = %.9g, the reference says %.9g: off by %.3g, allowed %.3g",
                   d->id, dti_op_info_of(node->op)->name, node->term ? " term" : "", id,
                   dti_shape_print(node->shape, node->samples).text, (int)i, device[i], y->data[i],
                   off, bound[i]);
        y->data[i] = device[i];
    }
    free(bound);
}

typedef struct ops_chunk { /* the nodes that one program gives */
    dt_program_desc desc;
    dt_tensor wanted[2 * DT_MAX_TERMS];
    uint32_t count, outputs, metrics;
} ops_chunk;

static void ops_read_output(ops_device *d, ops_model *m, dti_ref_run *run, dt_program *program,
                            dt_tensor x) {
    int64_t elements = dti_ref_tensor_of(run, x)->elements;
    uint32_t *words = malloc((size_t)(elements + 1) * 4);
    double *values = malloc((size_t)(elements + 1) * sizeof *values);
    if (dt_program_read(program, x, words, (size_t)elements * 4)) {
        ops_fail(d, "program_read", m);
    } else {
        for (int64_t i = 0; i < elements; i++) {
            float f;
            memcpy(&f, words + i, 4);
            values[i] = ops_is_float(x) ? (double)f : (double)(int32_t)words[i];
        }
        ops_compare(d, run, x.id, values);
    }
    free(values);
    free(words);
}

static void ops_run_chunk(ops_device *d, ops_model *m, dti_ref_run *run, dt_store *store,
                          ops_chunk *c) {
    dt_program *program;
    dt_report report;
    dt_step_desc step = {.seed = run->step.seed, .step = run->step.step};
    step.first_row = run->step.first_row;
    c->desc.batch = (int)run->batch;
    c->desc.mode = DT_MODE_TRAIN;
    dti_ref_mark(run, c->wanted, c->count);
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

static void ops_run_nodes(ops_device *d, ops_model *m, dti_ref_run *run, dt_store *store) {
    ops_chunk c = {.count = 0};
    for (uint32_t id = 1; id < m->graph->count; id++) {
        const dti_node *n = &m->graph->nodes[id];
        dt_tensor x = {m->graph, id};
        bool leaf = n->op == DTI_OP_INPUT || n->op == DTI_OP_PARAM;
        if (leaf || n->op == DTI_OP_SEED) /* seeds belong to a program's losses: tested below */
            continue;
        c.wanted[c.count++] = x;
        if (n->term)
            c.desc.metrics[c.metrics++] = x;
        else
            c.desc.outputs[c.outputs++] = x;
        if (c.outputs == DT_MAX_TERMS || c.metrics == DT_MAX_TERMS) {
            ops_run_chunk(d, m, run, store, &c);
            c = (ops_chunk){.count = 0};
        }
    }
    if (c.count)
        ops_run_chunk(d, m, run, store, &c);
}

static void ops_check_device(ops_device *d, dti_op op) {
    static dt_tensor dx[OPS_LEAVES];
    ops_model *m = &ops_model_now;
    dti_ref_run run;
    dt_store *store = NULL;
    if (!ops_open(m, d->ctx, op, false))
        return;
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
    dti_ref_close(&run);
    dt_graph_destroy(m->graph);
}

static void ops_check_rows(const char *id, dti_op first, dti_op end) {
    ops_device d;
    if (ops_device_open(&d, id))
        for (int op = first; op < (int)end; op++)
            ops_check_device(&d, (dti_op)op);
    ops_device_close(&d);
}

TEST(the_cpu_computes_every_op_within_its_bound) {
    ops_check_rows("cpu", DTI_OP_INPUT, DTI_OP_COUNT);
}

/* The id of the Vulkan device with this number; false when there is none that works. */
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
        ops_check_rows(id, DTI_OP_INPUT, DTI_OP_COUNT);                                            \
    }
OPS_VULKAN_TEST(0)
OPS_VULKAN_TEST(1)
OPS_VULKAN_TEST(2)

#endif
