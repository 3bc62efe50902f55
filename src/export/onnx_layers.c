/* Norms, attention and recurrent layers as ONNX operators, as one operator if ONNX has it. */

/* ---- norms. Batch norm's statistics are the running ones, which its operator takes as they are;
 * so the row in between is folded. */

/* The row of the statistics, before the row that joins those of replicas; its number. */
static uint32_t dti_export_stats(const dt_graph *g, const dti_node *n) {
    const uint32_t id = dti_input_id(g, n, 1);
    return g->nodes[id].op == DTI_OP_ALL_STATS ? dti_input_id(g, &g->nodes[id], 0) : id;
}

static uint32_t dti_onnx_weight(dti_onnx *o, const dti_node *n, uint32_t k, float otherwise) {
    return n->count > k ? dti_onnx_in(o, n, k)
                        : dti_onnx_filled(o, n->attr.i[DTI_NORM_CHANNELS], otherwise);
}

static uint32_t dti_onnx_batch_norm(dti_onnx *o, const dti_node *n) {
    const dti_node *stats = &o->g->nodes[dti_export_stats(o->g, n)], *in = dti_onnx_node(o, n, 0);
    const int32_t *i = n->attr.i;
    const dt_shape flat = {3, {1, i[DTI_NORM_CHANNELS], i[DTI_NORM_SPATIAL]}};
    const uint32_t w = dti_onnx_weight(o, n, 2, 1.0f), b = dti_onnx_weight(o, n, 3, 0.0f);
    uint32_t x = dti_onnx_in(o, n, 0);
    if (!in->samples)
        x = dti_onnx_reshape(o, x, false, flat);
    const uint32_t y = dti_onnx_op(o, "BatchNormalization", 5, x, w, b, dti_onnx_in(o, stats, 1),
                                   dti_onnx_in(o, stats, 2));
    dti_onnx_float(o, "epsilon", n->attr.f[0]);
    return in->samples ? y : dti_onnx_reshape(o, y, false, n->shape);
}

/* (x - mean) / sqrt(variance + eps) of each run of x, of shape [runs, elements]. */
static uint32_t dti_onnx_runs(dti_onnx *o, const dti_node *n, uint32_t x) {
    const int64_t last = -1;
    if (!n->attr.i[DTI_NORM_RMS]) {
        const uint32_t mean = dti_onnx_op(o, "ReduceMean", 1, x);
        dti_onnx_ints(o, "axes", &last, 1);
        x = dti_onnx_op(o, "Sub", 2, x, mean);
    }
    uint32_t by = dti_onnx_op(o, "ReduceMean", 1, dti_onnx_op(o, "Mul", 2, x, x));
    dti_onnx_ints(o, "axes", &last, 1);
    by = dti_onnx_op(o, "Add", 2, by, dti_onnx_scalar(o, n->attr.f[0]));
    return dti_onnx_op(o, "Div", 2, x, dti_onnx_op(o, "Sqrt", 1, by));
}

/* Group, RMS and layer norm: runs of a sample, and weights by channel. */
static uint32_t dti_onnx_run_norm(dti_onnx *o, const dti_node *n) {
    const int32_t *i = n->attr.i;
    const int64_t all = dti_shape_elements(n->shape), channels = i[DTI_NORM_CHANNELS];
    const dt_shape runs = {2, {all / i[DTI_NORM_COLS], i[DTI_NORM_COLS]}};
    const dt_shape parts = {3,
                            {all / channels / i[DTI_NORM_SPATIAL], channels, i[DTI_NORM_SPATIAL]}};
    const dt_shape line = {2, {channels, 1}};
    const bool layer = !i[DTI_NORM_RMS] && i[DTI_NORM_SPATIAL] == 1 && channels == i[DTI_NORM_COLS];
    uint32_t x = dti_onnx_reshape(o, dti_onnx_in(o, n, 0), n->samples, runs);
    if (layer) {
        x = dti_onnx_op(o, "LayerNormalization", 3, x, dti_onnx_weight(o, n, 2, 1.0f),
                        dti_onnx_weight(o, n, 3, 0.0f));
        dti_onnx_int(o, "axis", -1);
        dti_onnx_float(o, "epsilon", n->attr.f[0]);
        return dti_onnx_reshape(o, x, n->samples, n->shape);
    }
    x = dti_onnx_runs(o, n, x);
    if (n->count > 2)
        x = dti_onnx_reshape(o, x, n->samples, parts);
    for (uint32_t k = 2; k < n->count; k++)
        x = dti_onnx_op(o, k == 2 ? "Mul" : "Add", 2, x,
                        dti_onnx_reshape(o, dti_onnx_in(o, n, k), false, line));
    return dti_onnx_reshape(o, x, n->samples, n->shape);
}

static uint32_t dti_onnx_norm(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    return n->attr.i[DTI_NORM_BATCH] ? dti_onnx_batch_norm(o, n) : dti_onnx_run_norm(o, n);
}

/* ---- attention: [heads, queries, keys] of scores; heads that share keys are neighbours */

#define DTI_ONNX_HIDDEN (-(float)INFINITY)

/* The part of the scores that depends only on places: [heads or 1, queries, keys]; 0: nothing. */
static uint32_t dti_onnx_places(dti_onnx *o, const dti_node *n, const dti_attention *a) {
    const uint32_t flags = dti_attention_flags(n);
    const int64_t window = n->attr.i[DTI_ATTENTION_WINDOW];
    const bool alibi = (flags & DTI_ATTENTION_ALIBI) != 0;
    const int64_t dim[3] = {alibi ? a->heads : 1, a->tq, a->tk};
    const size_t count = (size_t)(dim[0] * dim[1] * dim[2]);
    if (!(flags & DTI_ATTENTION_CAUSAL) && !window && !alibi)
        return 0;
    float *data = dti_alloc_array(o->base, count, sizeof *data);
    if (!data) {
        o->result = o->result ? o->result : DT_ERROR_MEMORY;
        return 0;
    }
    for (size_t at = 0; at < count; at++) {
        const int64_t j = (int64_t)at % a->tk, i = (int64_t)at / a->tk % a->tq;
        const int64_t apart = i > j ? i - j : j - i, h = (int64_t)at / a->tk / a->tq;
        const bool hidden = (flags & DTI_ATTENTION_CAUSAL && j > i) || (window && apart >= window);
        data[at] = hidden  ? DTI_ONNX_HIDDEN
                   : alibi ? -(float)dti_alibi_slope(a->heads, h) * (float)apart
                           : 0.0f;
    }
    const uint32_t bias = dti_onnx_tensor(o, DTI_ONNX_F32, 3, dim, data, count * sizeof *data);
    dti_free(o->base, data);
    return bias;
}

/* q, or k or v repeated for the heads of queries that read it. */
static uint32_t dti_onnx_heads(dti_onnx *o, const dti_node *n, uint32_t k, const dti_attention *a) {
    const dti_node *in = dti_onnx_node(o, n, k);
    const dt_shape s = in->shape;
    const int64_t group = k ? 1 : a->heads / a->kv_heads;
    const dt_shape grouped = {4, {a->kv_heads, group, s.dim[1], s.dim[2]}};
    if (a->heads == a->kv_heads)
        return dti_onnx_in(o, n, k);
    return dti_onnx_reshape(o, dti_onnx_in(o, n, k), in->samples, grouped);
}

static bool dti_onnx_scored_samples(const dti_onnx *o, const dti_node *n) {
    return dti_onnx_node(o, n, 0)->samples || dti_onnx_node(o, n, 1)->samples;
}

/* Scaled, plus masks and places. */
static uint32_t dti_onnx_scores(dti_onnx *o, const dti_node *n, const dti_attention *a) {
    const uint32_t places = dti_onnx_places(o, n, a);
    const bool grouped = a->heads != a->kv_heads;
    uint32_t k = dti_onnx_turned(o, dti_onnx_heads(o, n, 1, a), dti_onnx_node(o, n, 1)->samples,
                                 grouped ? 4 : 3);
    uint32_t x =
        dti_onnx_op(o, "Mul", 2, dti_onnx_heads(o, n, 0, a), dti_onnx_scalar(o, n->attr.f[0]));
    x = dti_onnx_op(o, "MatMul", 2, x, k);
    if (grouped)
        x = dti_onnx_reshape(o, x, dti_onnx_scored_samples(o, n),
                             (dt_shape){3, {a->heads, a->tq, a->tk}});
    if (places)
        x = dti_onnx_op(o, "Add", 2, x, places);
    if (n->count < 4)
        return x;
    const uint32_t mask = dti_onnx_lifted(o, n, 3, 3);
    if (dti_attention_flags(n) & DTI_ATTENTION_ADD)
        return dti_onnx_op(o, "Add", 2, x, mask);
    const uint32_t hidden = dti_onnx_op(o, "Equal", 2, mask, dti_onnx_scalar(o, 0.0f));
    return dti_onnx_op(o, "Where", 3, hidden, dti_onnx_scalar(o, DTI_ONNX_HIDDEN), x);
}

/* Of a query that sees no key all weights are 0. */
static uint32_t dti_onnx_weights(dti_onnx *o, const dti_node *n, uint32_t scores) {
    uint32_t p = dti_onnx_op(o, "Softmax", 1, scores);
    dti_onnx_int(o, "axis", -1);
    if (n->count < 4 && !n->attr.i[DTI_ATTENTION_WINDOW])
        return p;
    const uint32_t limit = dti_onnx_scalar(o, DTI_ONNX_HIDDEN);
    const uint32_t hidden = dti_onnx_op(o, "Equal", 2, scores, limit);
    return dti_onnx_op(o, "Where", 3, hidden, dti_onnx_scalar(o, 0.0f), p);
}

static uint32_t dti_onnx_attention(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    const dti_attention a = dti_attention_of(o->g, n);
    const bool mask = n->count > 3 && dti_onnx_node(o, n, 3)->samples;
    const bool scored = dti_onnx_scored_samples(o, n) || mask;
    uint32_t p = dti_onnx_weights(o, n, dti_onnx_scores(o, n, &a));
    if (a.heads != a.kv_heads)
        p = dti_onnx_reshape(o, p, scored,
                             (dt_shape){4, {a.kv_heads, a.heads / a.kv_heads, a.tq, a.tk}});
    uint32_t y = dti_onnx_op(o, "MatMul", 2, p, dti_onnx_heads(o, n, 2, &a));
    y = dti_onnx_reshape(o, y, n->samples, (dt_shape){3, {a.heads, a.tq, a.dv}});
    y = dti_onnx_permute(o, y, n->samples, 3, (const int64_t[]){1, 0, 2});
    return dti_onnx_reshape(o, y, n->samples, (dt_shape){2, {a.tq, a.heads * a.dv}});
}

/* ---- recurrent layers: the operator takes the input's weight too, so the product before the row
 * is folded. ONNX's order of gates is i o f c and z r h. */

/* [gates * hidden, ...] in ONNX's order. */
static uint32_t dti_onnx_gates(dti_onnx *o, uint32_t x, const dti_recurrence *a) {
    static const int8_t orders[4][4] = {{0, 3, 1, 2}, {1, 0, 2, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}};
    uint32_t part[4] = {0};
    if (a->gates == 1)
        return x;
    for (int i = 0; i < a->gates; i++) {
        const int64_t start = orders[a->kind][i] * a->hidden;
        part[i] = dti_onnx_part(o, x, start, start + a->hidden, 0);
    }
    x = dti_onnx_op(o, "Concat", (uint32_t)a->gates, part[0], part[1], part[2], part[3]);
    dti_onnx_int(o, "axis", 0);
    return x;
}

/* With an axis of directions, of which there is one. */
static uint32_t dti_onnx_directed(dti_onnx *o, uint32_t x) {
    return dti_onnx_op(o, "Unsqueeze", 2, x, dti_onnx_one(o, 0));
}

static uint32_t dti_onnx_biases(dti_onnx *o, const dti_node *n, const dti_recurrence *a,
                                const dti_node *linear) {
    const int64_t all = a->gates * a->hidden;
    uint32_t more = dti_onnx_filled(o, all, 0.0f);
    const uint32_t bias = linear->count > 2 ? dti_onnx_gates(o, dti_onnx_in(o, linear, 2), a)
                                            : dti_onnx_filled(o, all, 0.0f);
    if (a->kind == DTI_RECURRENCE_GRU) {
        more = dti_onnx_op(o, "Concat", 2, dti_onnx_filled(o, 2 * a->hidden, 0.0f),
                           dti_onnx_in(o, n, 3));
        dti_onnx_int(o, "axis", 0);
    }
    const uint32_t both = dti_onnx_op(o, "Concat", 2, bias, more);
    dti_onnx_int(o, "axis", 0);
    return dti_onnx_directed(o, both);
}

static uint32_t dti_onnx_lengths(dti_onnx *o, uint32_t state, const dti_recurrence *a) {
    uint32_t line = dti_onnx_op(o, "Reshape", 2, dti_onnx_part(o, state, a->state - 1, a->state, 1),
                                dti_onnx_one(o, -1));
    line = dti_onnx_op(o, "Max", 2, line, dti_onnx_scalar(o, 0.0f));
    line = dti_onnx_op(o, "Min", 2, line, dti_onnx_scalar(o, (float)a->steps));
    const uint32_t lengths = dti_onnx_op(o, "Cast", 1, line);
    dti_onnx_int(o, "to", DTI_ONNX_I32);
    return lengths;
}

static void dti_onnx_recurrence_attributes(dti_onnx *o, const dti_recurrence *a) {
    dti_onnx_int(o, "hidden_size", a->hidden);
    if (a->flags & DTI_RECURRENCE_REVERSE)
        dti_onnx_word(o, "direction", "reverse", false);
    if (a->kind == DTI_RECURRENCE_GRU)
        dti_onnx_int(o, "linear_before_reset", 1);
    if (a->kind == DTI_RECURRENCE_RELU)
        dti_onnx_word(o, "activations", "Relu", true);
}

/* [1, samples, size] -> [samples, size], and all steps [steps, 1, samples, size]. */
static void dti_onnx_recurrence_results(dti_onnx *o, uint32_t y, uint32_t h, uint32_t c) {
    const uint32_t steps = dti_onnx_op(o, "Squeeze", 2, y, dti_onnx_one(o, 1));
    o->outputs[DTI_RECURRENCE_Y] = dti_onnx_permute(o, steps, false, 3, (const int64_t[]){1, 0, 2});
    o->outputs[DTI_RECURRENCE_LAST_H] = dti_onnx_op(o, "Squeeze", 2, h, dti_onnx_one(o, 0));
    if (c)
        o->outputs[DTI_RECURRENCE_LAST_C] = dti_onnx_op(o, "Squeeze", 2, c, dti_onnx_one(o, 0));
}

static uint32_t dti_onnx_recurrence(dti_onnx *o, const dti_node *n, const dti_onnx_row *row) {
    static const char *const names[] = {"LSTM", "GRU", "RNN", "RNN"};
    const dti_recurrence a = dti_recurrence_of(o->g, n);
    const dti_node *linear = dti_onnx_node(o, n, 0);
    const int64_t turn[3] = {1, 0, 2};
    if (a.flags & DTI_RECURRENCE_PROJECTED)
        return dti_onnx_refuse(o, n, "ONNX's LSTM has no projection");
    if (!dti_onnx_folds(o, n, 0) || !linear->samples)
        return dti_onnx_refuse(o, n, "its input is not a linear layer of a tensor with samples");
    const uint32_t x = dti_onnx_permute(o, dti_onnx_in(o, linear, 0), false, 3, turn);
    const uint32_t w = dti_onnx_directed(o, dti_onnx_gates(o, dti_onnx_in(o, linear, 1), &a));
    const uint32_t r = dti_onnx_directed(o, dti_onnx_gates(o, dti_onnx_in(o, n, 1), &a));
    const uint32_t b = dti_onnx_biases(o, n, &a, linear), state = dti_onnx_spread(o, n, 2);
    const uint32_t lengths = a.flags & DTI_RECURRENCE_LENGTHS ? dti_onnx_lengths(o, state, &a) : 0;
    const uint32_t h = dti_onnx_directed(o, dti_onnx_part(o, state, 0, a.size, 1));
    const uint32_t c =
        a.cell ? dti_onnx_directed(o, dti_onnx_part(o, state, a.size, a.size + a.cell, 1)) : 0;
    const uint32_t y = dti_onnx_op(o, names[a.kind], a.cell ? 7 : 6, x, w, r, b, lengths, h, c);
    const uint32_t last = dti_onnx_more(o), cell = a.cell ? dti_onnx_more(o) : 0;
    dti_onnx_recurrence_attributes(o, &a);
    dti_onnx_recurrence_results(o, y, last, cell);
    o->packed = (uint32_t)(n - o->g->nodes);
    return y;
}

/* ---- folded ops */

static bool dti_onnx_folds(const dti_onnx *o, const dti_node *n, uint32_t k) {
    const dti_node *in = dti_onnx_node(o, n, k);
    if (n->op == DTI_OP_RECURRENCE && k == 0)
        return in->op == DTI_OP_LINEAR;
    return n->op == DTI_OP_NORM && k == 1;
}

/* Its own inputs except the normalised one: a norm measures its run of folded ops. */
static bool dti_onnx_folded_reads(const dti_node *folded, uint32_t k) {
    return folded->op == DTI_OP_LINEAR || (folded->op == DTI_OP_BATCH_STATS && k > 0);
}
