/* Makes a random model from a seed. A statement is built and computed at once, on the reference,
 * plain and shaken. One that is not finite, too large or depends on a rounding is taken back. So
 * values stay sane by construction. What each kind of row needs is in random_rows.h. */
#ifndef DTRAIN_TESTS_RANDOM_MAKE_H
#define DTRAIN_TESTS_RANDOM_MAKE_H

enum { RND_NODES_MAX = 500, RND_ELEMENTS_MAX = 500, RND_BATCH_MAX = 13 };

typedef struct rnd_maker {
    rnd_model *m;
    rnd_built b;
    ref_run plain, shaken;
    uint32_t done; /* nodes that are computed */
    int names;     /* handed out: also to values that were taken back */
    uint64_t state;
    double largest[RND_STMTS];
    int uses[RND_STMTS];
    bool positive[RND_STMTS]; /* 0.04 and more, by construction */
    bool apart[RND_STMTS];    /* class weights: nothing else is made of them */
    int gradients;
    bool broken; /* the library refused what it should take */
    bool small;  /* few and small rows */
    bool narrow; /* linear layers of one feature, often: their sums are of whole rows */
} rnd_maker;

/* ---- choices */

static uint64_t rnd_next(rnd_maker *k) {
    return rnd_mix(k->state++);
}
static int rnd_below(rnd_maker *k, int n) {
    return n > 0 ? (int)(rnd_next(k) % (uint64_t)n) : 0;
}
static int rnd_between(rnd_maker *k, int low, int high) {
    return low + rnd_below(k, high - low + 1);
}
static bool rnd_chance(rnd_maker *k, int percent) {
    return rnd_below(k, 100) < percent;
}
static float rnd_real(rnd_maker *k, double low, double high) {
    return (float)(low + (high - low) * rnd_unit(rnd_next(k)));
}

static int64_t rnd_size(rnd_maker *k) {
    static const int64_t sizes[] = {1, 1, 1, 2, 2, 3, 3, 4, 5, 5, 7, 8, 9, 11, 13, 16, 17, 33};
    return sizes[rnd_below(k, k->small ? 10 : (int)DTI_COUNT(sizes))];
}

static dt_shape rnd_any_shape(rnd_maker *k, int rank) {
    dt_shape s = {rank, {0}};
    for (int i = 0; i < rank; i++)
        s.dim[i] = rnd_size(k);
    for (int i = 0; rnd_elements(s) > (k->small ? 60 : RND_ELEMENTS_MAX / 2); i = (i + 1) % rank)
        s.dim[i] = (s.dim[i] + 1) / 2;
    return s;
}

static int rnd_any_rank(rnd_maker *k) {
    static const int ranks[] = {0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 5};
    return ranks[rnd_below(k, (int)DTI_COUNT(ranks))];
}

/* ---- statements that are there */

static dt_shape rnd_shape(const rnd_maker *k, int v) {
    return dt_tensor_shape(k->b.at[v]);
}
static bool rnd_samples(const rnd_maker *k, int v) {
    return dt_tensor_has_samples(k->b.at[v]);
}
static bool rnd_is_term(const rnd_maker *k, int v) {
    return !dti_is_nil(k->b.at[v]) && dti_node_of(k->b.at[v])->term;
}
static bool rnd_is_float(const rnd_maker *k, int v) {
    return !dti_is_nil(k->b.at[v]) && dti_node_of(k->b.at[v])->dtype == DT_F32 &&
           !rnd_is_term(k, v) && k->m->stmts[v].kind != RND_BUFFER && !k->apart[v];
}

/* ---- appending */

static bool rnd_put_nodes(rnd_maker *k) {
    dt_graph *g = k->b.graph;
    bool sane = true;
    for (; k->done < g->count; k->done++) {
        const int op = g->nodes[k->done].op;
        if (op == DTI_OP_NIL)
            continue;
        if (op != DTI_OP_INPUT && op != DTI_OP_PARAM) {
            ref_node(&k->plain, k->done);
            ref_node(&k->shaken, k->done);
        }
        rnd_shake(&k->shaken, k->done, 1, false);
        const ref_tensor *x = ref_tensor_of(&k->plain, (dt_tensor){g, k->done});
        const ref_tensor *y = ref_tensor_of(&k->shaken, (dt_tensor){g, k->done});
        double largest = 0, moved = 0;
        for (int64_t i = 0; i < x->elements; i++) {
            const double off = fabs(x->data[i] - y->data[i]);
            sane = sane && isfinite(x->data[i]) && isfinite(y->data[i]);
            largest = fmax(largest, fabs(x->data[i]));
            moved = fmax(moved, off);
        }
        sane = sane && largest < 1e4 && moved <= 2e-4 * fmax(largest, 0.1);
    }
    return sane;
}

static void rnd_put_leaf(rnd_maker *k, int v) {
    const rnd_model *m = k->m;
    ref_run *runs[2] = {&k->plain, &k->shaken};
    for (int i = 0; i < 2; i++) {
        ref_tensor *t = ref_tensor_of(runs[i], k->b.at[v]);
        for (int64_t e = 0; e < t->elements; e++)
            t->data[e] = rnd_value(m, v, e);
    }
}

static double rnd_largest(rnd_maker *k, int v) {
    const ref_tensor *t = ref_tensor_of(&k->plain, k->b.at[v]);
    double largest = 0;
    for (int64_t i = 0; i < t->elements; i++)
        largest = fmax(largest, fabs(t->data[i]));
    return largest;
}

/* The statement's number; -1: it was taken back. */
static int rnd_put(rnd_maker *k, rnd_stmt s) {
    rnd_model *m = k->m;
    const int v = m->count;
    if (v >= RND_STMTS - 12 || k->b.graph->count > RND_NODES_MAX || k->broken)
        return -1;
    m->stmts[m->count++] = s;
    dt_tensor x = rnd_build_one(m, v, k->names++, &k->b);
    if (dti_is_nil(x)) {
        k->broken = true; /* the statement stays, to be shown */
        return -1;
    }
    if (rnd_is_leaf(s.kind))
        rnd_put_leaf(k, v);
    bool sane = rnd_put_nodes(k) && rnd_elements(rnd_shape(k, v)) <= 4 * RND_ELEMENTS_MAX;
    if (!sane) {
        m->count--;
        return -1;
    }
    k->uses[v] = 0;
    k->apart[v] = false;
    k->positive[v] = s.range == RND_POSITIVE && rnd_is_leaf(s.kind);
    k->largest[v] = rnd_largest(k, v);
    for (int i = 0; i < RND_INPUTS; i++)
        if (s.in[i] >= 0)
            k->uses[s.in[i]]++;
    return v;
}

static rnd_stmt rnd_new(int kind, int a, int b, int c) {
    return (rnd_stmt){.kind = (uint8_t)kind, .in = {(int16_t)a, (int16_t)b, (int16_t)c, -1, -1}};
}

/* NONE where a choice failed: ops of it fail too. */
static int rnd_put1(rnd_maker *k, int kind, int a) {
    return a < 0 ? -1 : rnd_put(k, rnd_new(kind, a, -1, -1));
}

static int rnd_leaf(rnd_maker *k, int kind, int range, dt_shape shape) {
    rnd_stmt s = rnd_new(kind, -1, -1, -1);
    s.range = (uint8_t)range;
    s.shape = shape;
    return rnd_put(k, s);
}

static int rnd_affine(rnd_maker *k, int x, float scale, float offset) {
    rnd_stmt s = rnd_new(RND_AFFINE, x, -1, -1);
    s.real[0] = scale;
    s.real[1] = offset;
    return x < 0 ? -1 : rnd_put(k, s);
}

static int rnd_function(const char *const *names, int count, const char *name) {
    int i = 0;
    while (i < count - 1 && strcmp(names[i], name))
        i++;
    return i;
}

static int rnd_apply(rnd_maker *k, const char *name, int x) {
    rnd_stmt s = rnd_new(RND_UNARY, x, -1, -1);
    s.function = (uint8_t)rnd_function(rnd_unary_names, DTI_COUNT(rnd_unary_names), name);
    return x < 0 ? -1 : rnd_put(k, s);
}

static int rnd_apply2(rnd_maker *k, const char *name, int a, int b) {
    rnd_stmt s = rnd_new(RND_BINARY, a, b, -1);
    s.function = (uint8_t)rnd_function(rnd_binary_names, DTI_COUNT(rnd_binary_names), name);
    return a < 0 || b < 0 ? -1 : rnd_put(k, s);
}

/* ---- operands */

/* Any number; unused values and new ones come first. */
static int rnd_pick(rnd_maker *k) {
    const rnd_model *m = k->m;
    int last = m->count - 1;
    while (last >= 0 && !rnd_is_float(k, last))
        last--;
    if (last < 0)
        return rnd_leaf(k, RND_INPUT, RND_ANY, rnd_any_shape(k, rnd_any_rank(k)));
    if (rnd_chance(k, 45))
        return last;
    const bool unused = rnd_chance(k, 50);
    for (int tries = 0; tries < 30; tries++) {
        const int v = rnd_below(k, m->count);
        if (rnd_is_float(k, v) && (!unused || !k->uses[v]))
            return v;
    }
    return last;
}

/* A leaf of this shape: trained, mostly. */
static int rnd_weights(rnd_maker *k, dt_shape shape) {
    if (rnd_chance(k, 20)) /* one that is there: tied */
        for (int v = k->m->count - 1; v >= 0; v--)
            if (rnd_is_float(k, v) && !rnd_samples(k, v) && dti_shape_equal(rnd_shape(k, v), shape))
                return v;
    const int which = rnd_below(k, 100);
    const int kind = which < 80 ? RND_PARAM : which < 90 ? RND_FROZEN : RND_SHARED;
    int w = rnd_leaf(k, kind, rnd_chance(k, 85) ? RND_ANY : RND_POSITIVE, shape);
    if (w >= 0 && rnd_chance(k, 10)) /* one that is computed */
        w = rnd_apply(k, rnd_chance(k, 50) ? "tanh" : k->m->seed % 2 ? "sin" : "round", w);
    return w;
}

/* x again with that number of dimensions. */
static int rnd_with_rank(rnd_maker *k, int x, int rank) {
    if (x < 0 || rnd_shape(k, x).rank == rank)
        return x;
    int64_t left = rnd_elements(rnd_shape(k, x));
    rnd_stmt s = rnd_new(RND_RESHAPE, x, -1, -1);
    s.shape.rank = rank;
    if (rank == 0 && left != 1)
        return -1;
    for (int i = 0; i < rank - 1; i++) {
        int64_t d = 1 + rnd_below(k, (int)DTI_MIN(left, (int64_t)12));
        while (left % d)
            d--;
        s.shape.dim[i] = d;
        left /= d;
    }
    if (rank)
        s.shape.dim[rank - 1] = left;
    if (rank > 1 && rnd_chance(k, 50)) { /* the rest need not be last */
        const int at = rnd_below(k, rank);
        s.shape.dim[rank - 1] = s.shape.dim[at];
        s.shape.dim[at] = left;
    }
    return rnd_put(k, s);
}

static int rnd_pick_rank(rnd_maker *k, int low, int high) {
    int x = rnd_pick(k);
    if (x < 0 || (rnd_shape(k, x).rank >= low && rnd_shape(k, x).rank <= high))
        return x;
    if (rnd_chance(k, 25))
        return rnd_leaf(k, RND_INPUT, RND_ANY, rnd_any_shape(k, rnd_between(k, low, high)));
    return rnd_with_rank(k, x, rnd_between(k, low, high));
}

/* Not larger than a few, where functions grow or lose their digits. */
static int rnd_bounded(rnd_maker *k, int x) {
    if (x < 0 || k->largest[x] <= 4)
        return x;
    switch (rnd_below(k, 4)) {
    case 0: return rnd_apply(k, "tanh", x);
    case 1: return rnd_apply(k, "sigmoid", x);
    case 2: return rnd_apply(k, "sin", x);
    default: return rnd_affine(k, x, (float)(2 / k->largest[x]), 0);
    }
}

/* In (-1.2, 1.2), whatever the values. */
static int rnd_squashed(rnd_maker *k, int x) {
    return rnd_apply(k, rnd_chance(k, 60) ? "tanh" : rnd_chance(k, 50) ? "erf" : "cos", x);
}

/* 0.04 and more, whatever the values. */
static int rnd_positive(rnd_maker *k, int x) {
    if (x < 0 || k->positive[x])
        return x;
    int y;
    switch (rnd_below(k, 6)) {
    case 0: y = rnd_apply(k, "exp", rnd_squashed(k, x)); break;
    case 1: y = rnd_affine(k, rnd_apply(k, "sigmoid", x), 1, 0.1f); break;
    case 2: y = rnd_affine(k, rnd_apply(k, "softplus", x), 1, 0.1f); break;
    case 3: y = rnd_affine(k, rnd_apply(k, "square", rnd_bounded(k, x)), 0.5f, 0.2f); break;
    case 4: y = rnd_affine(k, rnd_apply(k, "abs", x), 1, 0.3f); break;
    default: y = rnd_affine(k, rnd_squashed(k, x), 0.5f, 0.7f); break;
    }
    if (y >= 0)
        k->positive[y] = true;
    return y;
}

/* ---- what reaches what */

/* d(sum of y)/dx has a path. The probe's nodes stay after in the maker's graph, unseen. */
static bool rnd_reaches(rnd_maker *k, int y, int x) {
    dt_graph *g = k->b.graph;
    dt_tensor dx, to = k->b.at[x], from = k->b.at[y];
    dt_tensor one = dt_fill(g, dt_dims(), 1);
    dt_tensor dy =
        rnd_is_term(k, y) ? one : dti_expand_to(one, dt_tensor_shape(from), rnd_samples(k, y));
    dti_differentiate(g, from, dy, &to, 1, &dx);
    return !dti_is_nil(dx) && rnd_put_nodes(k);
}

/* ---- losses */

static bool rnd_loss(rnd_maker *k, int term) {
    rnd_model *m = k->m;
    if (term < 0 || m->loss_count == RND_LOSSES)
        return false;
    m->losses[m->loss_count] = term;
    m->coefficients[m->loss_count++] = rnd_chance(k, 40) ? 1 : rnd_real(k, 0.2, 2);
    return true;
}

/* What nobody uses is what losses are of. */
static int rnd_sink(rnd_maker *k) {
    for (int v = k->m->count - 1; v >= 0; v--)
        if (rnd_is_float(k, v) && !k->uses[v] && !rnd_is_leaf(k->m->stmts[v].kind))
            return v;
    return -1;
}

#include "random/random_rows.h"

/* ---- the rest of a model */

static bool rnd_any_trained(rnd_maker *k) {
    for (int i = 0; i < k->m->loss_count; i++)
        for (int v = 0; v < k->m->count; v++)
            if (k->m->stmts[v].kind == RND_PARAM && rnd_reaches(k, k->m->losses[i], v))
                return true;
    return false;
}

static void rnd_make_losses(rnd_maker *k) {
    const int wanted = rnd_chance(k, 60) ? 1 : rnd_between(k, 2, RND_LOSSES);
    for (int tries = 0; k->m->loss_count < wanted && tries < 12; tries++) {
        int x = rnd_sink(k);
        if (x < 0 && k->m->loss_count)
            break;
        rnd_loss(k, rnd_term_of(k, x >= 0 ? x : rnd_pick(k)));
    }
    for (int tries = 0; !rnd_any_trained(k) && tries < 8; tries++) {
        int x = rnd_pick(k);
        if (x < 0)
            continue;
        x = rnd_apply2(k, rnd_chance(k, 50) ? "mul" : "add", x,
                       rnd_leaf(k, RND_PARAM, RND_ANY, rnd_shape(k, x)));
        k->m->loss_count = DTI_MIN(k->m->loss_count, RND_LOSSES - 1);
        rnd_loss(k, rnd_term_of(k, x));
    }
}

static void rnd_make_reads(rnd_maker *k) {
    rnd_model *m = k->m;
    for (int i = rnd_below(k, 3); i > 0; i--) {
        const int v = rnd_below(k, m->count);
        bool twice = !rnd_is_float(k, v) || rnd_is_leaf(m->stmts[v].kind);
        for (int j = 0; j < m->output_count; j++)
            twice = twice || m->outputs[j] == v;
        if (!twice)
            m->outputs[m->output_count++] = v;
    }
    for (int i = rnd_below(k, 3); i > 0; i--) {
        const int v = rnd_metric_of(k, rnd_pick(k));
        if (v >= 0)
            m->metrics[m->metric_count++] = v;
    }
}

/* ---- only what is needed, and parameters that are trained only where there is a gradient */

static void rnd_mark(const rnd_model *m, int v, bool *needed) {
    if (v < 0 || needed[v])
        return;
    needed[v] = true;
    for (int i = 0; i < RND_INPUTS; i++)
        rnd_mark(m, m->stmts[v].in[i], needed);
}

static void rnd_keep(rnd_model *m, const bool *needed) {
    int at[RND_STMTS], count = 0;
    for (int v = 0; v < m->count; v++) {
        at[v] = count;
        if (!needed[v])
            continue;
        rnd_stmt s = m->stmts[v];
        for (int i = 0; i < RND_INPUTS; i++)
            s.in[i] = s.in[i] < 0 ? -1 : (int16_t)at[s.in[i]];
        m->stmts[count++] = s;
    }
    m->count = count;
    for (int i = 0; i < m->loss_count; i++)
        m->losses[i] = at[m->losses[i]];
    for (int i = 0; i < m->metric_count; i++)
        m->metrics[i] = at[m->metrics[i]];
    for (int i = 0; i < m->output_count; i++)
        m->outputs[i] = at[m->outputs[i]];
}

static void rnd_prune(rnd_model *m) {
    bool needed[RND_STMTS] = {false};
    for (int i = 0; i < m->loss_count; i++)
        rnd_mark(m, m->losses[i], needed);
    for (int i = 0; i < m->metric_count; i++)
        rnd_mark(m, m->metrics[i], needed);
    for (int i = 0; i < m->output_count; i++)
        rnd_mark(m, m->outputs[i], needed);
    rnd_keep(m, needed);
}

/* A parameter that no loss reaches may not be trained. False: none is left. */
static bool rnd_freeze_unreached(rnd_model *m) {
    rnd_ref r;
    bool reached[RND_STMTS] = {false}, any = false;
    if (rnd_ref_open(&r, m))
        for (int i = r.gradients; i < r.buffers; i++)
            reached[r.results[i].stmt] = any = true;
    rnd_ref_close(&r);
    for (int v = 0; v < m->count; v++)
        if (m->stmts[v].kind == RND_PARAM && !reached[v])
            m->stmts[v].kind = RND_FROZEN;
    return any;
}

static bool rnd_has(const rnd_model *m, int kind) {
    for (int v = 0; v < m->count; v++)
        if (m->stmts[v].kind == kind)
            return true;
    return false;
}

/* How it is trained. Where batch norm may see one value of a channel, pieces have two rows. */
static void rnd_make_job(rnd_maker *k) {
    rnd_model *m = k->m;
    const bool couples = rnd_has(m, RND_BATCH_NORM);
    const int least = couples ? 2 : 1;
    m->batch_slices = rnd_between(k, rnd_chance(k, 90) ? 2 : 1, couples ? m->batch / 2 : 6);
    m->batch_slices = DTI_MIN(m->batch_slices, m->batch);
    m->accumulate = couples || rnd_chance(k, 60) ? 1 : rnd_between(k, 2, 3);
    m->accumulate = DTI_MIN(m->accumulate, m->batch);
    m->rows = couples ? 2 * m->batch : m->batch + rnd_between(k, 0, m->batch);
    m->steps = 3;
    m->optim = (dt_optim_kind)rnd_between(k, DT_OPTIM_SGD, DT_OPTIM_ADAFACTOR);
    for (int left = m->batch; left > 0 && m->micro_count < 8;) {
        int take = rnd_between(k, DTI_MIN(least, left), left);
        if (left - take < least || m->micro_count == 7)
            take = left;
        m->micros[m->micro_count++] = take;
        left -= take;
    }
}

static void rnd_maker_open(rnd_maker *k, rnd_model *m, uint64_t seed, bool brief) {
    *m = (rnd_model){.seed = seed};
    *k = (rnd_maker){.m = m, .state = rnd_mix(seed) ^ 0x5eed};
    k->small = rnd_chance(k, 50) || brief;
    m->batch = rnd_chance(k, 12) ? 1 : rnd_between(k, 2, RND_BATCH_MAX);
    dt_ctx_create(&(dt_ctx_desc){.no_vulkan = true}, &k->b.ctx);
    dt_graph_create(k->b.ctx, &k->b.graph);
    k->done = 1;
    ref_run *runs[2] = {&k->plain, &k->shaken};
    for (int i = 0; i < 2; i++) {
        ref_open(runs[i], k->b.graph, m->batch);
        runs[i]->step.seed = seed;
        runs[i]->step.step = 1;
    }
}

static void rnd_maker_close(rnd_maker *k) {
    ref_close(&k->plain);
    ref_close(&k->shaken);
    dt_ctx_destroy(k->b.ctx);
}

static void rnd_make_rows(rnd_maker *k, bool brief) {
    const int size = rnd_below(k, brief ? 75 : 100);
    const int focus = (int)(k->m->seed % (uint64_t)rnd_row_count());
    if (size < 20)
        rnd_short(k);
    else if (size < 35)
        rnd_penalty(k);
    const int rows = size < 35   ? 0
                     : size < 57 ? rnd_between(k, 1, 5)
                     : size < 85 ? rnd_between(k, 4, 14)
                                 : rnd_between(k, 12, 36);
    for (int i = 0; i < rows && !k->broken; i++)
        rnd_any_row(k, rnd_chance(k, 20) ? focus : -1);
    const int gradients = size >= 35 && rnd_chance(k, 40) ? rnd_between(k, 1, 2) : 0;
    for (int i = 0; i < gradients && !k->broken; i++)
        rnd_row_gradient(k);
}

/* The model of a seed; brief: a small one. False: a call was refused; the model ends with it. */
static bool rnd_make(rnd_model *m, uint64_t seed, bool brief, char error[512]) {
    rnd_maker k;
    rnd_maker_open(&k, m, seed, brief);
    rnd_make_rows(&k, brief);
    if (!k.broken)
        rnd_make_losses(&k);
    if (!k.broken)
        rnd_make_reads(&k);
    snprintf(error, 512, "%s", k.broken ? dt_graph_error(k.b.graph) : "");
    if (!k.broken && m->loss_count) {
        rnd_prune(m);
        if (!rnd_freeze_unreached(m))
            m->loss_count = 0;
        rnd_make_job(&k);
    }
    const bool ok = !k.broken;
    rnd_maker_close(&k);
    return ok;
}

#endif
