/* What a random model gives in float64, and how far a device may be off. Every node of the
 * reference is shaken by its own op's error (ops_bounds.h) and by the rounding of its result. How
 * far the end moves is the graph's condition. The gradients are held against finite differences of
 * the loss. */
#ifndef DTRAIN_TESTS_RANDOM_REF_H
#define DTRAIN_TESTS_RANDOM_REF_H

/* Times that the reference is shaken. They are few, and many when a model seems to fail, as a
 * number may by chance hardly have moved. */
enum { RND_SHAKES = 4, RND_SHAKES_MANY = 60 };
static uint64_t rnd_shakes = RND_SHAKES;

enum { RND_RESULTS = 3 * RND_LOSSES + RND_STMTS };

/* ---- shaking */

/* Values that every machine computes exactly, or to which a float's rounding would be a step. */
static bool rnd_is_exact(const dti_node *n) {
    const dti_op_family *f = dti_op_info_of(n->op)->family;
    const uint32_t selector = dti_op_info_of(n->op)->selector;
    if (n->dtype != DT_F32 || f->view)
        return true;
    if (f == &dti_family_unary)
        return selector == DTI_U_NEG || selector == DTI_U_ABS || selector == DTI_U_SIGN ||
               selector == DTI_U_RELU || selector == DTI_U_FLOOR || selector == DTI_U_HEAVISIDE ||
               selector == DTI_U_CEIL || selector == DTI_U_ROUND;
    if (f == &dti_family_binary)
        return selector >= DTI_B_MAXIMUM && selector != DTI_B_POW;
    if (f == &dti_family_reduce)
        return selector != DTI_R_SUM;
    return f == &dti_family_fill || f == &dti_family_cast || f == &dti_family_copy ||
           f == &dti_family_concat || f == &dti_family_pad || f == &dti_family_gather ||
           f == &dti_family_max_pool2d || f == &dti_family_max_pool2d_at ||
           f == &dti_family_accuracy;
}

/* How much each element of a node may be off by itself. */
static void rnd_bounds(ref_run *run, uint32_t id, bool cpu, double *bound) {
    const dti_node *n = &run->graph->nodes[id];
    ref_tensor in[DTI_INPUTS_MAX];
    ref_tensor *y = ref_tensor_of(run, (dt_tensor){(dt_graph *)run->graph, id});
    ref_call r = {.node = n, .in = in, .out = *y, .step = &run->step, .batch = run->batch};
    r.train = run->train;
    memset(bound, 0, (size_t)(y->elements + 2) * sizeof *bound);
    if (n->count > DTI_INPUTS_MAX || !n->count)
        return;
    for (uint32_t i = 0; i < n->count; i++)
        in[i] = *ref_tensor_of(run, dti_input_of((dt_graph *)run->graph, n, i));
    ops_bounds(&r, cpu, bound);
}

/* key 0: as it is. */
static void rnd_shake(ref_run *run, uint32_t id, uint64_t key, bool cpu) {
    const dti_node *n = &run->graph->nodes[id];
    if (!key || rnd_is_exact(n))
        return;
    ref_tensor *y = ref_tensor_of(run, (dt_tensor){(dt_graph *)run->graph, id});
    double *bound = malloc((size_t)(y->elements + 2) * sizeof *bound);
    rnd_bounds(run, id, cpu, bound);
    const uint64_t own = rnd_mix(key * 8191 + id);
    for (int64_t i = 0; i < y->elements; i++)
        y->data[i] += (2 * rnd_unit(own + (uint64_t)i) - 1) * (bound[i] + OPS_U * fabs(y->data[i]));
    free(bound);
}

/* ---- the reference of a model */

typedef struct rnd_result { /* losses' and metrics' (sum, weight), outputs, gradients */
    const char *what;
    int stmt;
    int64_t at, count;
    dt_tensor tensor; /* in the reference's graph */
} rnd_result;

typedef struct rnd_ref rnd_ref;
struct rnd_ref {
    const rnd_model *m;
    rnd_built b;
    rnd_ref *mixed; /* the same in mixed precision; NULL = nothing is computed in it */
    rnd_result results[RND_RESULTS];
    int count, gradients, buffers; /* results; the first gradient, the first buffer */
    int64_t total;                 /* numbers in all results */
};

static void rnd_ref_add(rnd_ref *r, const char *what, int stmt, dt_tensor x, int64_t count) {
    r->results[r->count++] = (rnd_result){what, stmt, r->total, count, x};
    r->total += count;
}

static int64_t rnd_tensor_elements(const rnd_model *m, dt_tensor x) {
    return rnd_elements(dt_tensor_shape(x)) * (dt_tensor_has_samples(x) ? m->batch : 1);
}

/* Parameters that losses depend on by step functions alone have a gradient of 0. */
static void rnd_ref_steps(rnd_ref *r, const dt_tensor *y, const dt_tensor *dy, const dt_tensor *wrt,
                          dt_tensor *dx) {
    dt_graph *g = r->b.graph;
    dt_tensor more[RND_STMTS], found[RND_STMTS];
    for (int i = 0; i < r->m->count; i++)
        more[i] = dti_is_nil(dx[i]) ? wrt[i] : (dt_tensor){0};
    g->steps = true;
    dti_differentiate_all(g, y, dy, (uint32_t)r->m->loss_count, more, (uint32_t)r->m->count, found);
    g->steps = false;
    for (int i = 0; i < r->m->count; i++)
        if (!dti_is_nil(found[i]))
            dx[i] = dt_fill(g, r->m->stmts[i].shape, 0);
}

/* As a program differentiates: from all losses at once. */
static void rnd_ref_differentiate(rnd_ref *r) {
    const rnd_model *m = r->m;
    dt_tensor y[RND_LOSSES], dy[RND_LOSSES], wrt[RND_STMTS], dx[RND_STMTS];
    for (int i = 0; i < m->loss_count; i++) {
        y[i] = r->b.at[m->losses[i]];
        dy[i] = dti_append1(DTI_OP_SEED, y[i], &(dti_attr){.i = {i}});
    }
    for (int i = 0; i < m->count; i++)
        wrt[i] = m->stmts[i].kind == RND_PARAM ? r->b.at[i] : (dt_tensor){0};
    dti_differentiate_all(r->b.graph, y, dy, (uint32_t)m->loss_count, wrt, (uint32_t)m->count, dx);
    rnd_ref_steps(r, y, dy, wrt, dx);
    r->gradients = r->count;
    for (int i = 0; i < m->count; i++)
        if (!dti_is_nil(dx[i]))
            rnd_ref_add(r, "gradient of", i, dx[i], rnd_elements(m->stmts[i].shape));
}

/* The new values of buffers: of those whose statistics are needed by anything else. */
static void rnd_ref_buffers(rnd_ref *r) {
    dt_graph *g = r->b.graph;
    ref_run run;
    dt_tensor wanted[RND_RESULTS] = {{0}};
    for (int i = 0; i < r->count; i++)
        wanted[i] = r->results[i].tensor;
    ref_open(&run, g, 1);
    ref_mark(&run, wanted, (uint32_t)r->count);
    r->buffers = r->count;
    for (int i = 0; i < r->m->count; i++) {
        const rnd_stmt *s = &r->m->stmts[i];
        const int32_t to = s->kind == RND_BUFFER ? dti_node_of(r->b.at[i])->attr.i[2] : 0;
        if (to && run.needed[dti_input_id(g, &g->nodes[to], 1)])
            rnd_ref_add(r, "buffer", i, (dt_tensor){g, (uint32_t)to}, rnd_elements(s->shape));
    }
    ref_close(&run);
}

/* Statements are what stands for them under autocast. */
static bool rnd_ref_cast(rnd_ref *r) {
    dt_graph *g = r->b.graph;
    uint32_t *now = calloc(g->count, sizeof *now);
    dt_tensor *in = calloc((size_t)g->input_count + 1, sizeof *in);
    dti_cast_graph(g, DT_PRECISION_BF16, now, in);
    for (int i = 0; i < r->m->count; i++)
        r->b.at[i].id = now[r->b.at[i].id];
    free(now);
    free(in);
    return dt_graph_error(g) == NULL;
}

static bool rnd_ref_open_in(rnd_ref *r, const rnd_model *m, dt_precision precision) {
    *r = (rnd_ref){.m = m};
    if (!rnd_build(m, &(dt_ctx_desc){.no_vulkan = true}, NULL, &r->b))
        return false;
    if (precision && !rnd_ref_cast(r))
        return false;
    for (int i = 0; i < m->loss_count; i++)
        rnd_ref_add(r, "loss", m->losses[i], r->b.at[m->losses[i]], 2);
    for (int i = 0; i < m->metric_count; i++)
        rnd_ref_add(r, "metric", m->metrics[i], r->b.at[m->metrics[i]], 2);
    for (int i = 0; i < m->output_count; i++) {
        dt_tensor x = r->b.at[m->outputs[i]];
        rnd_ref_add(r, "output", m->outputs[i], x, rnd_tensor_elements(m, x));
    }
    rnd_ref_differentiate(r);
    rnd_ref_buffers(r);
    return dt_graph_error(r->b.graph) == NULL;
}

static void rnd_ref_close(rnd_ref *r) {
    rnd_unbuild(&r->b);
    if (r->mixed)
        rnd_ref_close(r->mixed);
    free(r->mixed);
}

static bool rnd_ref_open(rnd_ref *r, const rnd_model *m) {
    if (!rnd_ref_open_in(r, m, DT_PRECISION_F32))
        return false;
    if (rnd_precision == DT_PRECISION_F32)
        return true;
    r->mixed = calloc(1, sizeof *r->mixed);
    return r->mixed && rnd_ref_open_in(r->mixed, m, rnd_precision) && r->mixed->count == r->count &&
           r->mixed->total == r->total;
}

static const char *rnd_ref_error(const rnd_ref *r) {
    const rnd_ref *of = r->mixed ? r->mixed : r;
    return dt_graph_error(of->b.graph) ? dt_graph_error(of->b.graph)
                                       : "other results are in mixed precision";
}

/* What is computed: rows [first, first + rows), in one piece. */
typedef struct rnd_piece {
    int first, rows;
    bool eval, cpu;
    bool forward;          /* no gradients */
    const double *weights; /* of the losses, of all pieces; NULL = its own */
    uint64_t key;          /* of shaking; 0 = none */
    uint64_t near;         /* of values beside those of the leaves; 0 = none */
} rnd_piece;

/* Another value, less than a rounding to bf16 away. */
static double rnd_near(double value, uint64_t key) {
    return (double)(float)(value * (1 + 0x1p-9 * (2 * rnd_unit(key) - 1)));
}

static void rnd_ref_fill(const rnd_model *m, const rnd_built *b, ref_run *run, int first,
                         uint64_t near) {
    for (int i = 0; i < m->count; i++) {
        if (!rnd_is_leaf(m->stmts[i].kind))
            continue;
        ref_tensor *t = ref_tensor_of(run, b->at[i]);
        const int64_t each = rnd_elements(m->stmts[i].shape);
        const int64_t from = dt_tensor_has_samples(b->at[i]) ? each * first : 0;
        for (int64_t k = 0; k < t->elements; k++)
            t->data[k] = rnd_value(m, i, from + k);
        for (int64_t k = 0; near && !rnd_is_index(m->stmts[i].kind) && k < t->elements; k++)
            t->data[k] =
                rnd_near(t->data[k], rnd_mix(near * 127 + (uint64_t)i) + (uint64_t)(from + k));
    }
}

static void rnd_ref_begin(const rnd_ref *r, const rnd_piece *p, ref_run *run) {
    ref_open(run, r->b.graph, p->rows);
    run->train = !p->eval;
    run->step.seed = r->m->seed;
    run->step.step = 1;
    run->step.first_row = (uint32_t)p->first;
    for (int i = 0; i < r->m->loss_count; i++) {
        run->step.coefficient[i] = (double)r->m->coefficients[i];
        run->step.weight[i] = p->weights ? p->weights[i] : 0;
    }
    rnd_ref_fill(r->m, &r->b, run, p->first, p->near);
}

/* hold: detached values stay what they were. */
static void rnd_ref_nodes(ref_run *run, uint64_t key, bool cpu, bool hold) {
    for (uint32_t id = 1; id < run->graph->count; id++) {
        const int op = run->graph->nodes[id].op;
        if (!run->needed[id] || (hold && op == DTI_OP_DETACH))
            continue;
        if (op != DTI_OP_INPUT && op != DTI_OP_PARAM)
            ref_node(run, id);
        rnd_shake(run, id, key, cpu);
    }
}

/* Adds to out[]; outputs are set. */
static void rnd_ref_run(const rnd_ref *r, const rnd_piece *p, double *out) {
    ref_run run;
    dt_tensor wanted[RND_RESULTS] = {{0}};
    const int count = p->forward ? r->gradients : r->count;
    for (int i = 0; i < count; i++)
        wanted[i] = r->results[i].tensor;
    rnd_ref_begin(r, p, &run);
    ref_mark(&run, wanted, (uint32_t)count);
    rnd_ref_nodes(&run, p->key, p->cpu, false);
    for (int i = 0; i < count; i++) {
        const rnd_result *result = &r->results[i];
        const ref_tensor *t = ref_tensor_of(&run, result->tensor);
        for (int64_t k = 0; k < result->count && k < t->elements; k++)
            out[result->at + k] += t->data[k];
    }
    ref_close(&run);
}

/* ---- what is expected: values, and how far off each may be */

typedef struct rnd_expected {
    double *value, *allowed;
    double norm[RND_RESULTS]; /* allowed of a result's error, in mixed precision */
    bool ill;                 /* the condition is too bad to decide */
} rnd_expected;

static void rnd_expected_free(rnd_expected *e) {
    free(e->value);
    free(e->allowed);
    *e = (rnd_expected){0};
}

/* The pieces' sum. Their losses' weights are known before, as to a program. */
static void rnd_ref_sum(const rnd_ref *r, const rnd_piece *pieces, int count, const double *weights,
                        uint64_t key, double *out) {
    memset(out, 0, (size_t)r->total * sizeof *out);
    for (int i = 0; i < count; i++) {
        rnd_piece p = pieces[i];
        p.weights = weights;
        p.key = key ? key + (uint64_t)i : 0;
        if (p.rows)
            rnd_ref_run(r, &p, out);
    }
}

static void rnd_ref_weights(const rnd_ref *r, const rnd_piece *pieces, int count, double *weights) {
    double *sums = calloc((size_t)r->total + 1, sizeof *sums);
    for (int i = 0; i < count; i++) {
        rnd_piece p = pieces[i];
        p.forward = true;
        if (p.rows)
            rnd_ref_run(r, &p, sums);
    }
    for (int i = 0; i < r->m->loss_count; i++)
        weights[i] = sums[2 * i + 1];
    free(sums);
}

#define RND_FACTOR 4.0 /* of the largest shake */

/* From the largest shake of each number. A share of all of its tensor counts too, as one number may
 * by chance hardly have moved. */
static void rnd_expected_close(const rnd_ref *r, rnd_expected *e, const double *shaken) {
    for (int i = 0; i < r->count; i++) {
        const rnd_result *x = &r->results[i];
        double squares = 0, largest = 0, moved = 0;
        for (int64_t k = x->at; k < x->at + x->count; k++) {
            squares += shaken[k] * shaken[k];
            largest = fmax(largest, fabs(e->value[k]));
            moved = fmax(moved, shaken[k]);
            e->ill = e->ill || !isfinite(e->value[k]) || !isfinite(shaken[k]);
        }
        const double typical = x->count ? sqrt(squares / (double)x->count) : 0;
        for (int64_t k = x->at; k < x->at + x->count; k++)
            e->allowed[k] =
                RND_FACTOR * (fmax(shaken[k], 0.5 * typical) + OPS_U * fabs(e->value[k])) +
                OPS_TINY;
        /* a hit or miss says nothing; a sum that is 0 in truth moves by what cancels in it */
        if (dti_node_of(r->b.at[x->stmt])->op != DTI_OP_ACCURACY)
            e->ill = e->ill || moved > 1e-3 * fmax(largest, 0.05);
    }
}

#define RND_MIXED_FACTOR 1.5
#define RND_MIXED_FLOOR 0x1p-7 /* of a result's norm: two units in the last place of bf16 */
enum { RND_MIXED_RUNS = 6 };

static double rnd_norm(const rnd_result *x, const double *a, const double *b) {
    double squares = 0;
    for (int64_t k = x->at; k < x->at + x->count; k++)
        squares += (a[k] - (b ? b[k] : 0)) * (a[k] - (b ? b[k] : 0));
    return sqrt(squares);
}

static void rnd_near_sum(const rnd_ref *r, const rnd_piece *pieces, int count, uint64_t near,
                         double *out) {
    rnd_piece own[64];
    double weights[RND_LOSSES];
    for (int i = 0; i < count; i++) {
        own[i] = pieces[i];
        own[i].near = near;
    }
    rnd_ref_weights(r, own, count, weights);
    rnd_ref_sum(r, own, count, count > 1 ? weights : NULL, 0, out);
}

/* The error that mixed precision has by its meaning. It is the largest of that of the model and of
 * some neighbours. A single one may by chance be small. */
static void rnd_expect_mixed(const rnd_ref *r, const rnd_piece *pieces, int count,
                             rnd_expected *e) {
    const size_t n = (size_t)r->total + 1;
    double *exact = calloc(n, sizeof *exact), *mixed = calloc(n, sizeof *mixed);
    for (uint64_t near = 0; near < RND_MIXED_RUNS; near++) {
        rnd_near_sum(r, pieces, count, near, exact);
        rnd_near_sum(r->mixed, pieces, count, near, mixed);
        for (int i = 0; i < r->count; i++) {
            const double off = rnd_norm(&r->results[i], mixed, exact);
            e->ill = e->ill || !isfinite(off);
            e->norm[i] = fmax(e->norm[i], off);
        }
    }
    for (int i = 0; i < r->count; i++)
        e->norm[i] = RND_MIXED_FACTOR * e->norm[i] +
                     RND_MIXED_FLOOR * rnd_norm(&r->results[i], e->value, NULL) +
                     rnd_norm(&r->results[i], e->allowed, NULL);
    free(exact);
    free(mixed);
}

static rnd_expected rnd_expect(const rnd_ref *r, const rnd_piece *pieces, int count) {
    const size_t n = (size_t)r->total + 1;
    rnd_expected e = {.value = calloc(n, sizeof(double)), .allowed = calloc(n, sizeof(double))};
    double *shaken = calloc(n, sizeof *shaken), *moved = calloc(n, sizeof *moved);
    double weights[RND_LOSSES];
    rnd_ref_weights(r, pieces, count, weights);
    const double *given = count > 1 ? weights : NULL;
    rnd_ref_sum(r, pieces, count, given, 0, e.value);
    for (uint64_t key = 1; key <= rnd_shakes; key++) {
        rnd_ref_sum(r, pieces, count, given, key * 1000, shaken);
        for (int64_t i = 0; i < r->total; i++)
            moved[i] =
                fmax(moved[i], isfinite(shaken[i]) ? fabs(shaken[i] - e.value[i]) : INFINITY);
    }
    rnd_expected_close(r, &e, moved);
    if (r->mixed)
        rnd_expect_mixed(r, pieces, count, &e);
    free(shaken);
    free(moved);
    return e;
}

/* ---- finite differences */

typedef enum rnd_slope { RND_SLOPE_OK, RND_SLOPE_KINK, RND_SLOPE_WRONG } rnd_slope;

typedef struct rnd_walk { /* along one direction of all parameters */
    const rnd_ref *r;
    ref_run run;
    double *direction[RND_STMTS], *start[RND_STMTS];
} rnd_walk;

static double rnd_walk_loss(rnd_walk *w, double h) {
    const rnd_ref *r = w->r;
    double loss = 0;
    for (int i = r->gradients; i < r->buffers; i++) {
        ref_tensor *t = ref_tensor_of(&w->run, r->b.at[r->results[i].stmt]);
        for (int64_t k = 0; k < t->elements; k++)
            t->data[k] = w->start[i][k] + h * w->direction[i][k];
    }
    rnd_ref_nodes(&w->run, 0, true, true);
    for (int i = 0; i < r->m->loss_count; i++) {
        const double *pair = ref_tensor_of(&w->run, r->results[i].tensor)->data;
        loss += pair[1] > 0 ? (double)r->m->coefficients[i] * pair[0] / pair[1] : 0;
    }
    return loss;
}

static void rnd_walk_open(rnd_walk *w, const rnd_ref *r, uint64_t key) {
    dt_tensor wanted[RND_RESULTS] = {{0}};
    *w = (rnd_walk){.r = r};
    for (int i = 0; i < r->m->loss_count; i++)
        wanted[i] = r->results[i].tensor;
    rnd_ref_begin(r, &(rnd_piece){.rows = r->m->batch, .cpu = true}, &w->run);
    ref_mark(&w->run, wanted, (uint32_t)r->m->loss_count);
    rnd_ref_nodes(&w->run, 0, true, false);
    for (int i = r->gradients; i < r->buffers; i++) {
        const ref_tensor *t = ref_tensor_of(&w->run, r->b.at[r->results[i].stmt]);
        const size_t bytes = (size_t)(t->elements + 1) * sizeof(double);
        w->start[i] = malloc(bytes);
        w->direction[i] = malloc(bytes);
        memcpy(w->start[i], t->data, (size_t)t->elements * sizeof(double));
        for (int64_t k = 0; k < t->elements; k++)
            w->direction[i][k] = 2 * rnd_unit(rnd_mix(key + (uint64_t)i) + (uint64_t)k) - 1;
    }
}

static void rnd_walk_close(rnd_walk *w) {
    for (int i = 0; i < RND_STMTS; i++) {
        free(w->start[i]);
        free(w->direction[i]);
    }
    ref_close(&w->run);
}

/* The slope from two step sizes; *doubt: how far they are apart. */
static double rnd_walk_slope(rnd_walk *w, double h, double *doubt) {
    const double far = (rnd_walk_loss(w, h) - rnd_walk_loss(w, -h)) / (2 * h);
    const double near = (rnd_walk_loss(w, h / 2) - rnd_walk_loss(w, -h / 2)) / h;
    *doubt = fabs(far - near);
    return (4 * near - far) / 3;
}

typedef struct rnd_slopes {
    rnd_slope verdict;
    double said, found, scale;
} rnd_slopes;

/* The gradient along a direction against the loss's slope. The constants of some rows are floats,
 * which shows in second derivatives. */
static rnd_slopes rnd_check_slope(const rnd_ref *r, const double *values, uint64_t key) {
    rnd_walk w;
    rnd_slopes s = {RND_SLOPE_KINK, 0, 0, 0};
    rnd_walk_open(&w, r, key);
    for (int i = r->gradients; i < r->buffers; i++)
        for (int64_t k = 0; k < r->results[i].count; k++) {
            const double part = values[r->results[i].at + k] * w.direction[i][k];
            s.said += part;
            s.scale += fabs(part);
        }
    const double loss = fabs(rnd_walk_loss(&w, 0));
    for (double h = 1e-4; h > 1e-7 && s.verdict != RND_SLOPE_OK; h /= 10) {
        double doubt, slope = rnd_walk_slope(&w, h, &doubt);
        const double allowed = 3e-5 * s.scale + 1e-7 + 1e-13 * loss / h;
        if (!(doubt <= 0.3 * allowed) && !(doubt <= 0.01 * fabs(slope - s.said)))
            continue;
        s.found = slope;
        s.verdict = fabs(slope - s.said) <= allowed ? RND_SLOPE_OK : RND_SLOPE_WRONG;
    }
    rnd_walk_close(&w);
    return s;
}

#endif
