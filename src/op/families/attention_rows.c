/* Attention with the scores in memory: the rows of its gradient when that is differentiated again.
 * Heads are [K, H / K] here, K of keys. */

static dt_tensor dti_attention_line(dt_graph *g, int64_t n, dt_shape shape) {
    return dt_reshape(dt_iota(g, (dt_shape){1, {n}}), shape);
}

/* Slopes of ALiBi. After the largest power of two of heads, the rest have every other slope of
 * twice that number. */
static double dti_alibi_slope(int64_t heads, int64_t h) {
    double base = 1.0 / 256, slope = 1; /* 2^(-8 / n), by roots: libm's powers differ */
    int64_t n = 1, power = h + 1;
    for (; n * 2 <= heads; n *= 2)
        base = sqrt(base);
    if (h >= n) {
        base = sqrt(base);
        power = 2 * (h - n) + 1;
    }
    for (; power > 0; power--)
        slope *= base;
    return slope;
}

static dt_tensor dti_alibi_slopes(dt_graph *g, const dti_attention *a) {
    dt_tensor all = {0};
    for (int64_t h = 0; h < a->heads; h++) {
        dt_tensor one = dt_fill(g, (dt_shape){1, {1}}, (float)dti_alibi_slope(a->heads, h));
        dt_tensor two[2] = {all, one};
        all = h ? dt_concat(two, 2, 0) : one;
    }
    return dt_reshape(all, (dt_shape){4, {a->kv_heads, a->heads / a->kv_heads, 1, 1}});
}

/* 1 where a query sees a key, by their places. */
static dt_tensor dti_attention_seen(dt_graph *g, const dti_node *n, dt_tensor ahead) {
    const int64_t window = n->attr.i[DTI_ATTENTION_WINDOW];
    dt_tensor seen = dt_affine(ahead, 0.0f, 1.0f);
    if (dti_attention_flags(n) & DTI_ATTENTION_CAUSAL)
        seen = dt_ge(ahead, dt_fill(g, (dt_shape){0}, 0.0f));
    if (window) {
        dt_tensor w = dt_fill(g, (dt_shape){0}, (float)window), apart = dt_abs(ahead);
        seen = dt_mul(seen, dt_lt(apart, w));
    }
    return seen;
}

static dt_tensor dti_attention_by_group(dt_tensor x, const dti_attention *a) {
    const dt_shape s = dti_node_of(x)->shape; /* of heads or of none */
    const int64_t heads = s.rank > 2 ? s.dim[0] : 1, kv = heads == 1 ? 1 : a->kv_heads;
    const int64_t rows = s.rank > 1 ? s.dim[s.rank - 2] : 1;
    return dt_reshape(x, (dt_shape){4, {kv, heads / kv, rows, s.rank ? s.dim[s.rank - 1] : 1}});
}

/* k or v: one for each group. */
static dt_tensor dti_attention_shared(dt_tensor x) {
    const dt_shape s = dti_node_of(x)->shape;
    return dt_reshape(x, (dt_shape){4, {s.dim[0], 1, s.dim[1], s.dim[2]}});
}

/* [K, H / K, T, S] */
static dt_tensor dti_attention_scores(const dti_grad *g, const dti_attention *a,
                                      const dt_tensor *in, dt_tensor mask) {
    const dti_node *n = &g->node;
    dt_graph *graph = g->graph;
    dt_tensor rows = dti_attention_line(graph, a->tq, (dt_shape){2, {a->tq, 1}});
    dt_tensor cols = dti_attention_line(graph, a->tk, (dt_shape){2, {1, a->tk}});
    dt_tensor ahead = dt_sub(rows, cols), seen = dti_attention_seen(graph, n, ahead);
    dt_tensor q = dti_attention_by_group(in[0], a), k = dti_attention_shared(in[1]);
    dt_tensor s = dt_affine(dt_matmul_transposed(q, k, false, true), n->attr.f[0], 0.0f);
    if (dti_attention_flags(n) & DTI_ATTENTION_ALIBI) {
        dt_tensor slopes = dti_alibi_slopes(graph, a), apart = dt_abs(ahead);
        s = dt_sub(s, dt_mul(slopes, apart));
    }
    if (!dti_is_nil(mask))
        mask = dti_attention_by_group(mask, a);
    if (dti_attention_flags(n) & DTI_ATTENTION_ADD)
        s = dt_add(s, mask);
    dt_tensor one = dt_fill(graph, (dt_shape){0}, 1.0f);
    if (dti_attention_flags(n) & DTI_ATTENTION_KEEP) {
        dt_tensor hides = dt_eq(mask, dt_fill(graph, (dt_shape){0}, 0.0f));
        seen = dt_mul(seen, dt_sub(one, hides));
    }
    s = dt_mask(s, seen);
    return dt_add(s, dt_mask_inv(dt_fill(graph, (dt_shape){0}, -INFINITY), seen));
}

static dt_tensor dti_attention_dropped(const dti_grad *g, const dti_attention *a, dt_tensor p) {
    const dti_attr attr = {.f = {g->node.attr.f[1]}, .i = {g->node.attr.i[DTI_ATTENTION_STREAM]}};
    const dt_shape heads = {3, {a->heads, a->tq, a->tk}};
    if (!(dti_attention_flags(&g->node) & DTI_ATTENTION_DROPOUT))
        return p;
    return dti_attention_by_group(dti_append1(DTI_OP_DROPOUT, dt_reshape(p, heads), &attr), a);
}

/* [K, G, T, E] -> [T, K G E], and back. */
static dt_tensor dti_attention_rows(dt_tensor x) {
    const dt_shape s = dti_node_of(x)->shape;
    return dt_reshape(dt_permute(x, (dt_shape){4, {2, 0, 1, 3}}),
                      (dt_shape){2, {s.dim[2], s.dim[0] * s.dim[1] * s.dim[3]}});
}

static dt_tensor dti_attention_unrow(dt_tensor x, int64_t kv_heads, int64_t group) {
    const dt_shape s = dti_node_of(x)->shape;
    const int64_t size = s.dim[1] / (kv_heads * group);
    x = dt_reshape(x, (dt_shape){4, {s.dim[0], kv_heads, group, size}});
    return dt_permute(x, (dt_shape){4, {1, 2, 0, 3}});
}

/* The weights and the scores' gradients, of (q, k, v, dy, largest scores with logarithms and sums,
 * mask). */
typedef struct dti_attention_slopes {
    dt_tensor dy, p, ds;
} dti_attention_slopes;

static dti_attention_slopes dti_attention_slopes_of(const dti_grad *g, const dti_attention *a,
                                                    const dt_tensor *in) {
    const int64_t group = a->heads / a->kv_heads;
    const dt_tensor s = dti_attention_scores(g, a, in, in[5]);
    dt_tensor part[4] = {in[3]};
    for (int i = 0; i < 3; i++)
        part[1 + i] = dt_slice(in[4], 1, i * a->heads, a->heads);
    for (int i = 0; i < 4; i++)
        part[i] = dti_attention_unrow(part[i], a->kv_heads, group);
    dt_tensor p = dt_exp(dt_sub(dt_sub(s, dt_detach(part[1])), part[2]));
    dt_tensor dp = dt_matmul_transposed(part[0], dti_attention_shared(in[2]), false, true);
    dt_tensor ds = dt_mul(p, dt_sub(dti_attention_dropped(g, a, dp), part[3]));
    return (dti_attention_slopes){part[0], dti_attention_dropped(g, a, p), ds};
}

static dt_tensor dti_attention_grad_lower(dti_grad *g) {
    const dti_attention a = dti_attention_of(g->graph, &g->node);
    const dti_attention_slopes s = dti_attention_slopes_of(g, &a, g->in);
    const dt_shape groups = {1, {1}};
    const float scale = g->node.attr.f[0];
    dt_tensor q = dti_attention_by_group(g->in[0], &a), part[3];
    part[0] = dt_affine(dt_matmul(s.ds, dti_attention_shared(g->in[1])), scale, 0.0f);
    part[1] = dt_affine(dt_sum(dt_matmul_transposed(s.ds, q, true, false), groups, true), scale, 0);
    part[2] = dt_sum(dt_matmul_transposed(s.p, s.dy, true, false), groups, true);
    for (int i = 0; i < 3; i++) {
        part[i] = dti_attention_rows(part[i]);
        if (a.tq != a.tk && !dti_is_nil(part[i]))
            part[i] = dt_reshape(
                part[i], (dt_shape){2, {1, dti_shape_elements(dti_node_of(part[i])->shape)}});
    }
    return dt_concat(part, 3, 1);
}
