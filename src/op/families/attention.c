/* Attention in blocks. For each query, the row (q, k, v, mask) gives the heads' results side by
 * side, as the next projection reads them. Then come each head's largest score, and the logarithm
 * of each head's sum of e^(score - largest). The gradient's row makes the weights again from these
 * two; in one number the logarithm would be lost beside a mask of -1e9. Both rows come apart into
 * products and a softmax when they are differentiated again. attr.i: op/attributes.h; f[0] = scale,
 * f[1] = dropout. */

#define DTI_ATTENTION_MASKED (DTI_ATTENTION_ADD | DTI_ATTENTION_KEEP)
#define DTI_ATTENTION_WIDEST 256
#define DTI_ATTENTION_APART 128 /* columns of dk and dv that one workgroup sums */
/* Intel's Gen9 and Adreno 6xx have half the registers for each of more. */
#define DTI_ATTENTION_LANES_MOST 256

static dti_attention dti_attention_sizes(dt_shape q, dt_shape k, dt_shape v) {
    return (dti_attention){q.dim[0], k.dim[0], q.dim[1], k.dim[1], q.dim[2], v.dim[2]};
}

static dti_attention dti_attention_of(const dt_graph *g, const dti_node *n) {
    return dti_attention_sizes(g->nodes[dti_input_id(g, n, 0)].shape,
                               g->nodes[dti_input_id(g, n, 1)].shape,
                               g->nodes[dti_input_id(g, n, 2)].shape);
}

static uint32_t dti_attention_flags(const dti_node *n) {
    return (uint32_t)n->attr.i[DTI_ATTENTION_FLAGS];
}

/* ---- Shapes */

static bool dti_attention_fits(dti_build *b) {
    const dt_shape q = b->in[0]->shape, k = b->in[1]->shape;
    const dt_shape v = dti_node_of(b->inputs[2])->shape;
    if (q.rank != 3 || k.rank != 3 || v.rank != 3)
        return dti_build_fail(b, "q, k and v must be [heads, positions, size]");
    if (k.dim[0] != v.dim[0] || k.dim[1] != v.dim[1])
        return dti_build_fail(b, "k and v differ in heads or positions");
    if (q.dim[2] != k.dim[2])
        return dti_build_fail(b, "q and k differ in their last dimension");
    if (k.dim[0] < 1 || q.dim[0] % k.dim[0] != 0)
        return dti_build_fail(b, "the %lld heads of q are not a multiple of the %lld of k",
                              (long long)q.dim[0], (long long)k.dim[0]);
    if (q.dim[0] > UINT16_MAX)
        return dti_build_fail(b, "q has %lld heads; it must have at most %d", (long long)q.dim[0],
                              UINT16_MAX);
    if (q.dim[2] < 1 || q.dim[2] > DTI_ATTENTION_WIDEST || v.dim[2] < 1 ||
        v.dim[2] > DTI_ATTENTION_WIDEST)
        return dti_build_fail(b, "the last dimensions must be in [1, %d]", DTI_ATTENTION_WIDEST);
    if (q.dim[1] < 1 || k.dim[1] < 1)
        return dti_build_fail(b, "there are no queries, or no keys");
    return true;
}

static bool dti_attention_mask_fits(dti_build *b, const dti_node *mask) {
    const dt_shape q = b->in[0]->shape, k = b->in[1]->shape;
    const dt_shape scores = {3, {q.dim[0], q.dim[1], k.dim[1]}};
    dt_shape both;
    if (dti_shape_broadcast(mask->shape, scores, &both) && dti_shape_equal(both, scores))
        return true;
    return dti_build_fail(b, "the mask must broadcast to %s", dti_shape_print(scores, false).text);
}

static bool dti_attention_shape(dti_build *b) {
    if (!dti_build_low(b) || !dti_attention_fits(b) ||
        (b->count > 3 && !dti_attention_mask_fits(b, dti_node_of(b->inputs[3]))))
        return false;
    const dt_shape q = b->in[0]->shape, v = dti_node_of(b->inputs[2])->shape;
    const double weights = (double)q.dim[0] * (double)q.dim[1] * (double)v.dim[1];
    if (b->out.attr.f[1] > 0.0f && weights > INT32_MAX)
        return dti_build_fail(b, "dropout needs fewer than 2^31 attention weights in a sample");
    b->out.shape = (dt_shape){2, {q.dim[1], q.dim[0] * (v.dim[2] + 2)}};
    b->out.dtype = DT_F32; /* largest scores and logarithms need it */
    return true;
}

/* In rows of positions, where queries and keys have the same number. */
static dt_shape dti_attention_grad_rows(const dti_attention *a) {
    const int64_t q = a->heads * a->d, kv = a->kv_heads * (a->d + a->dv);
    if (a->tq == a->tk)
        return (dt_shape){2, {a->tq, q + kv}};
    return (dt_shape){2, {1, a->tq * q + a->tk * kv}};
}

static bool dti_attention_grad_shape(dti_build *b) {
    const dti_attention a =
        dti_attention_sizes(b->in[0]->shape, b->in[1]->shape, dti_node_of(b->inputs[2])->shape);
    const dt_shape dy = {2, {a.tq, a.heads * a.dv}}, logs = {2, {a.tq, 3 * a.heads}};
    if (!dti_build_low(b) || !dti_attention_fits(b))
        return false;
    if (!dti_shape_equal(dti_node_of(b->inputs[3])->shape, dy) ||
        !dti_shape_equal(dti_node_of(b->inputs[4])->shape, logs))
        return dti_build_fail(b, "dy or its sums do not fit q, k and v");
    b->out.shape = dti_attention_grad_rows(&a);
    return true;
}

static double dti_attention_macs(const dt_graph *g, const dti_node *n) {
    const dti_attention a = dti_attention_of(g, n);
    const bool causal = (dti_attention_flags(n) & DTI_ATTENTION_CAUSAL) != 0;
    const int64_t size = n->op == DTI_OP_ATTENTION ? a.d + a.dv : 3 * a.d + 2 * a.dv;
    const double pairs = (double)a.heads * (double)a.tq * (double)a.tk * (causal ? 0.5 : 1.0);
    return pairs * (double)size;
}

#include "attention_rows.c" /* the same from other rows */

/* ---- Gradients */

/* The gradient of the heads' results. Mostly their logarithms have no gradient: then dy is a
 * pad. */
static dt_tensor dti_attention_dy(const dti_grad *g, int64_t wide, bool *logs) {
    const dti_node *n = dti_node_of(g->dy);
    *logs = true;
    if (n->op == DTI_OP_PAD && n->attr.i[1] == 1 && n->attr.i[2] == 0) {
        dt_tensor inner = dti_input_of(g->graph, n, 0);
        *logs = dti_node_of(inner)->shape.dim[1] != wide;
        if (!*logs)
            return inner;
    }
    return dt_slice(g->dy, 1, 0, wide);
}

/* If the results are read in 16 bits, gradient rows read them too, as f32. They also read a copy of
 * the largest scores and logarithms. Else they would keep the results in f32. */
static bool dti_attention_kept(const dti_grad *g, dt_tensor *y, dt_tensor *logs) {
    const dt_graph *graph = g->graph;
    const uint32_t id = g->y.id; /* and what dti_attention_make makes after it */
    const dti_node *n = &graph->nodes[id];
    if (id + 3 >= graph->count || n[1].op != DTI_OP_SLICE || n[2].op != DTI_OP_SLICE ||
        n[3].op != DTI_OP_COPY || dti_input_id(graph, n + 1, 0) != id ||
        dti_input_id(graph, n + 2, 0) != id || dti_input_id(graph, n + 3, 0) != id + 2 ||
        !n[1].cast)
        return false;
    *y = dti_autocast_to((dt_tensor){g->graph, n[1].cast}, DT_F32);
    *logs = (dt_tensor){g->graph, id + 3};
    return true;
}

/* sum y dy of each head, less the gradient of its logarithm. The largest score only shifts. */
static dt_tensor dti_attention_sums(const dti_grad *g, const dti_attention *a, dt_tensor y,
                                    dt_tensor dy, bool logs) {
    const int64_t wide = a->heads * a->dv;
    const dt_shape heads = {3, {a->tq, a->heads, a->dv}};
    y = dt_reshape(y, heads);
    dt_tensor sums = dt_sum(dt_mul(y, dt_reshape(dy, heads)), dti_last_axis, false);
    return logs ? dt_sub(sums, dt_slice(g->dy, 1, wide + a->heads, a->heads)) : sums;
}

/* Columns, or elements, [at, at + n) as [heads, positions, size]. */
static dt_tensor dti_attention_part(dt_tensor all, int64_t *at, int64_t heads, int64_t positions,
                                    int64_t size) {
    const bool rows = dti_node_of(all)->shape.dim[0] == positions;
    const int64_t n = heads * size * (rows ? 1 : positions);
    dt_tensor part = dt_reshape(dt_slice(all, 1, *at, n), (dt_shape){3, {positions, heads, size}});
    *at += n;
    return dt_permute(part, (dt_shape){3, {1, 0, 2}});
}

static void dti_attention_grad_rule(dti_grad *g) {
    const dti_attention a = dti_attention_of(g->graph, &g->node);
    const bool masked = g->node.count > 3;
    bool to_logs;
    const int64_t wide = a.heads * a.dv;
    dt_tensor y, x[3] = {dti_attention_dy(g, wide, &to_logs)};
    if (dti_is_nil(x[0]))
        return;
    if (!dti_attention_kept(g, &y, &x[1])) {
        x[1] = dt_slice(g->y, 1, wide, 2 * a.heads);
        y = dt_slice(g->y, 1, 0, wide);
    }
    x[2] = dti_attention_sums(g, &a, y, x[0], to_logs);
    dt_tensor logs = dt_concat(x + 1, 2, 1); /* largest scores, logarithms, sums */
    dt_tensor in[6] = {g->in[0], g->in[1], g->in[2], x[0], logs, g->in[3]};
    if (g->wanted[0] || g->wanted[1] || g->wanted[2]) {
        dt_tensor all =
            dti_append(g->graph, DTI_OP_ATTENTION_GRAD, in, masked ? 6 : 5, &g->node.attr);
        if (dti_is_nil(all))
            return;
        int64_t at = 0;
        g->dx[0] = dti_sum_to(dti_attention_part(all, &at, a.heads, a.tq, a.d), in[0]);
        g->dx[1] = dti_sum_to(dti_attention_part(all, &at, a.kv_heads, a.tk, a.d), in[1]);
        g->dx[2] = dti_sum_to(dti_attention_part(all, &at, a.kv_heads, a.tk, a.dv), in[2]);
    }
    if (masked && g->wanted[3] && dti_attention_flags(&g->node) & DTI_ATTENTION_ADD) {
        const dti_attention_slopes s = dti_attention_slopes_of(g, &a, in);
        g->dx[3] = dti_sum_to(dt_reshape(s.ds, (dt_shape){3, {a.heads, a.tq, a.tk}}), g->in[3]);
    }
}

/* ---- Launches */

/* With elements side by side. */
static dti_view dti_attention_operand(dti_emit *e, uint32_t i) {
    dti_view v = dti_emit_in(e, i);
    return v.stride[5] == 1 || v.dim[5] == 1 ? v : dti_emit_dense_in(e, i);
}

/* All in one value, because a kernel binds four. Slices of one projection are. start: the first
 * begins where its value does. */
static void dti_attention_together(dti_emit *e, dti_view *v, int count, bool start) {
    int64_t all = 0, at = 0;
    bool one = !start || v[0].offset == 0;
    for (int i = 0; i < count; i++) {
        one = one && v[i].value == v[0].value;
        all += dti_view_elements(&v[i]);
    }
    const dt_dtype dtype = (dt_dtype)v[0].dtype;
    const uint32_t value = one ? v[0].value : dti_emit_scratch(e, dtype, (uint64_t)all);
    for (int i = 0; i < count && !one; i++) {
        const dti_view to = dti_view_packed(value, &v[i], at);
        dti_emit_copy(e, &v[i], &to, DTI_COPY_WORD);
        at += dti_view_elements(&v[i]);
        v[i] = to;
    }
}

/* v: q, k and v */
static dti_args_attention dti_attention_args(const dti_emit *e, const dti_view *v) {
    const dti_attention s = dti_attention_of(e->graph, e->node);
    const dti_dropout_odds odds = dti_dropout_odds_of(e->node->attr.f[1]);
    dti_args_attention a = {.samples = (uint32_t)e->out.dim[0],
                            .heads = (uint16_t)s.heads,
                            .kv_heads = (uint16_t)s.kv_heads,
                            .tq = (uint32_t)s.tq,
                            .tk = (uint32_t)s.tk,
                            .d = (uint32_t)s.d,
                            .dv = (uint32_t)s.dv,
                            .scale = e->node->attr.f[0],
                            .window = (uint32_t)e->node->attr.i[DTI_ATTENTION_WINDOW],
                            .y_offset = (uint32_t)e->out.offset};
    a.q_offset = (uint32_t)v[0].offset, a.q_sample = (uint32_t)v[0].stride[0];
    a.q_head = (uint32_t)v[0].stride[3], a.q_row = (uint32_t)v[0].stride[4];
    a.k_offset = (uint32_t)v[1].offset, a.k_sample = (uint32_t)v[1].stride[0];
    a.k_head = (uint32_t)v[1].stride[3], a.k_row = (uint32_t)v[1].stride[4];
    a.v_offset = (uint32_t)v[2].offset, a.v_sample = (uint32_t)v[2].stride[0];
    a.v_head = (uint32_t)v[2].stride[3], a.v_row = (uint32_t)v[2].stride[4];
    a.stream = (uint32_t)e->node->attr.i[DTI_ATTENTION_STREAM];
    a.threshold = odds.threshold;
    a.keep_scale = odds.scale;
    a.first_row = e->node->samples ? (uint32_t)e->first_row : 0;
    return a;
}

static void dti_attention_put_mask(dti_args_attention *a, const dti_view *mask) {
    a->mask_offset = (uint32_t)mask->offset;
    a->mask_sample = (uint32_t)mask->stride[0];
    a->mask_head = (uint32_t)mask->stride[3];
    a->mask_row = (uint32_t)mask->stride[4];
    a->mask_col = (uint32_t)mask->stride[5];
}

static void dti_attention_launch(dti_emit *e, dti_kernel_id kernel, uint64_t items,
                                 const dti_args_attention *a, uint32_t mode,
                                 const uint32_t values[DTI_BINDINGS_MAX]) {
    uint32_t flags = dti_attention_flags(e->node);
    if (!e->train)
        flags &= ~DTI_ATTENTION_DROPOUT;
    if (e->node->samples && flags & DTI_ATTENTION_DROPOUT)
        flags |= DTI_ATTENTION_SAMPLES;
    dti_launch *l = dti_emit_launch(e, kernel, items, a, sizeof *a, values);
    l->spec[0] = flags;
    l->spec[1] = (uint32_t)dti_ceil_div(a->d, DTI_ATTENTION_BLOCK);
    l->spec[2] = (uint32_t)dti_ceil_div(a->dv, DTI_ATTENTION_BLOCK);
    l->spec[3] = mode;
}

static uint64_t dti_attention_blocks(uint32_t positions) {
    return dti_ceil_div(positions, DTI_ATTENTION_BLOCK);
}

static void dti_attention_emit(dti_emit *e) {
    dti_view v[3], mask = {.value = DTI_UNBOUND};
    for (uint32_t i = 0; i < 3; i++)
        v[i] = dti_attention_operand(e, i);
    dti_attention_together(e, v + 1, 2, false);
    dti_args_attention a = dti_attention_args(e, v);
    if (e->node->count > 3) {
        mask = dti_emit_in(e, 3);
        dti_attention_put_mask(&a, &mask);
    }
    const uint64_t blocks = dti_attention_blocks(a.tq);
    dti_attention_launch(e, DTI_K_ATTENTION, blocks * a.samples * a.heads, &a, 0,
                         (const uint32_t[]){v[0].value, v[1].value, mask.value, e->out.value});
}

static void dti_attention_grad_emit(dti_emit *e) {
    dti_view v[3], dy = dti_emit_dense_in(e, 3), x[2] = {dti_emit_dense_in(e, 4)};
    for (uint32_t i = 0; i < 3; i++)
        v[i] = dti_attention_operand(e, i);
    dti_attention_together(e, v, 3, false);
    dti_args_attention a = dti_attention_args(e, v);
    const bool masked = e->node->count > 5;
    for (int axis = 0; axis < DTI_AXES && masked; axis++) { /* repeated elements are not copied */
        x[1] = axis ? x[1] : dti_emit_in(e, 5);
        x[1].dim[axis] = x[1].stride[axis] ? x[1].dim[axis] : 1;
    }
    dti_attention_together(e, x, masked ? 2 : 1, true);
    if (masked)
        dti_attention_put_mask(&a, &x[1]);
    a.dy_offset = (uint32_t)dy.offset;
    const uint64_t q_items = dti_attention_blocks(a.tq) * a.samples * a.heads;
    const uint64_t kv_items = dti_attention_blocks(a.tk) * a.samples * a.kv_heads;
    const uint32_t kernel = DTI_K_ATTENTION_GRAD, dq = DTI_ATTENTION_DQ;
    const uint32_t dkv = DTI_ATTENTION_DK | DTI_ATTENTION_DV;
    const bool wide = a.d + a.dv > DTI_ATTENTION_APART;
    uint32_t modes[3] = {e->workgroups ? dq : dq | dkv, wide ? DTI_ATTENTION_DK : dkv,
                         wide ? DTI_ATTENTION_DV : 0};
    for (int i = 0; i < (e->workgroups ? 3 : 1) && modes[i]; i++) {
        const bool keys = i > 0 || !e->workgroups;
        dti_attention_launch(e, kernel, keys ? kv_items : q_items, &a, modes[i],
                             (const uint32_t[]){v[0].value, dy.value, x[0].value, e->out.value});
    }
}

#include "attention_cpu.c" /* its functions are used in the rows below */

/* ---- Constructor */

static bool dti_attention_desc_fits(dt_graph *g, const dt_attention_desc *d) {
    if (!dti_fits_f32((double)d->scale))
        dti_graph_fail(g, "attention: .scale is %g; it must be finite", (double)d->scale);
    else if (d->window < 0 || d->window > INT32_MAX)
        dti_graph_fail(g, "attention: .window is %lld; it must be 0 (all) or more",
                       (long long)d->window);
    else if (!(d->dropout >= 0.0f && d->dropout <= 1.0f))
        dti_graph_fail(g, "attention: .dropout is %g; it must be in [0, 1]", (double)d->dropout);
    else if (d->mask.graph && d->lengths.graph)
        dti_graph_fail(
            g, "attention: .mask cannot be combined with .lengths; put the lengths into the mask");
    else if (d->bool_mask && !d->mask.graph)
        dti_graph_fail(g, "attention: .bool_mask needs a .mask");
    return g->error[0] == 0;
}

/* 1 for keys before the length: [1, 1, S]. */
static dt_tensor dti_attention_before(dt_tensor lengths, int64_t tk) {
    DTI_NEED_TENSOR(lengths, "attention's lengths");
    const dti_node *n = dti_node_of(lengths);
    if (n->shape.rank != 0 || n->dtype != DT_I32)
        return dti_graph_fail(lengths.graph, "attention: .lengths %s must be i32 [], one a sample",
                              dti_shape_print(n->shape, n->samples).text);
    dt_tensor place = dti_attention_line(lengths.graph, tk, (dt_shape){3, {1, 1, tk}});
    return dt_lt(place, dt_cast(lengths, DT_F32));
}

static bool dti_is_kept_for_gradient(const dt_graph *g, uint32_t id) {
    const dti_node *n = &g->nodes[id];
    if (n->op == DTI_OP_COPY && n->count)
        n = &g->nodes[id = dti_input_id(g, n, 0)];
    return n->op == DTI_OP_SLICE && id > 2 && dti_input_id(g, n, 0) == id - 2 &&
           g->nodes[id - 2].op == DTI_OP_ATTENTION;
}

/* f: scale, dropout; i: flags, window, stream as given to the row. in: q, k, v, mask, lengths. */
static dt_tensor dti_attention_make(dt_graph *g, const dti_call *c) {
    dt_tensor in[4] = {dti_call_in(g, c, 0), dti_call_in(g, c, 1), dti_call_in(g, c, 2),
                       dti_call_in(g, c, 3)};
    const dt_tensor lengths = dti_call_in(g, c, 4);
    const dt_shape q = dti_node_of(in[0])->shape, k = dti_node_of(in[1])->shape;
    const dt_shape v = dti_node_of(in[2])->shape;
    dti_attr attr = c->attr;
    if (attr.f[0] == 0.0f && q.rank == 3 && q.dim[2] > 0)
        attr.f[0] = (float)(1.0 / sqrt((double)q.dim[2]));
    if (lengths.graph && k.rank == 3)
        in[3] = dti_attention_before(lengths, k.dim[1]);
    if (g->error[0])
        return dti_nil(g);
    dt_tensor rows = dti_append(g, DTI_OP_ATTENTION, in, in[3].graph ? 4 : 3, &attr);
    if (dti_is_nil(rows))
        return rows;
    const int64_t wide = q.dim[0] * v.dim[2];
    dt_tensor y = dt_slice(rows, 1, 0, wide);
    dt_copy(dt_slice(rows, 1, wide, 2 * q.dim[0])); /* for dti_attention_kept */
    y = dt_reshape(y, (dt_shape){3, {q.dim[1], q.dim[0], v.dim[2]}});
    return dt_permute(y, (dt_shape){3, {1, 0, 2}});
}

/* Writes a description into the call; false: it does not fit. */
static bool dti_attention_call(dt_graph *g, const dt_attention_desc *d, dti_call *call) {
    if (!dti_attention_desc_fits(g, d))
        return false;
    const uint32_t flags = (d->causal ? DTI_ATTENTION_CAUSAL : 0) |
                           (d->alibi ? DTI_ATTENTION_ALIBI : 0) |
                           (d->dropout > 0.0f ? DTI_ATTENTION_DROPOUT : 0) |
                           (d->bool_mask || d->lengths.graph ? DTI_ATTENTION_KEEP : 0) |
                           (d->mask.graph && !d->bool_mask ? DTI_ATTENTION_ADD : 0);
    const int32_t stream = d->dropout > 0.0f ? (int32_t)g->streams++ : 0;
    *call = (dti_call){
        .name = "attention",
        .attr = {.f = {d->scale, d->dropout}, .i = {(int32_t)flags, (int32_t)d->window, stream}},
        .make = dti_attention_make};
    return true;
}

DT_API dt_tensor dt_attention(dt_tensor q, dt_tensor k, dt_tensor v,
                              const dt_attention_desc *desc) {
    const dt_attention_desc none = {0}, d = desc ? *desc : none;
    const dt_tensor in[5] = {q, k, v, d.mask, d.lengths};
    dt_graph *g = q.graph;
    for (int i = 0; i < 5; i++) {
        if (i < 3 ? dti_is_nil(in[i]) : in[i].graph && dti_is_nil(in[i]))
            return dti_nil_of(in[i], "attention");
        const dt_tensor given[4] = {q, k, v, in[i]};
        if (in[i].graph && in[i].graph != g)
            return dti_append(g, DTI_OP_ATTENTION, given, i < 3 ? 3 : 4, NULL); /* reports which */
    }
    dti_call call;
    if (g->error[0] || !dti_attention_call(g, &d, &call))
        return dti_nil(g);
    for (int i = 0; i < 5; i++)
        call.in[i] = in[i].id;
    return dti_call_make(g, &call);
}

/* ---- Rows of the tables */

/* Blocks of the other side that a workgroup goes over, of all heads that it sums. */
static uint64_t dti_attention_others(const dti_launch *l) {
    const dti_args_attention *a = &l->args.attention;
    const bool keys = l->kernel == DTI_K_ATTENTION_GRAD && !(l->spec[3] & DTI_ATTENTION_DQ);
    const uint64_t group = keys ? a->heads / a->kv_heads : 1;
    return group * dti_attention_blocks(keys ? a->tq : a->tk);
}

/* Blocks of columns that are summed. */
static uint32_t dti_attention_chunks(const dti_launch *l) {
    const uint32_t mode = l->spec[3], both = DTI_ATTENTION_DQ | DTI_ATTENTION_DK;
    return (mode & both ? l->spec[1] : 0) + (!mode || mode & DTI_ATTENTION_DV ? l->spec[2] : 0);
}

/* A group of invocations for each of them, or for each two. */
static uint64_t dti_attention_width(const dti_launch *l) {
    uint64_t width = DTI_ATTENTION_LANES;
    const uint64_t most = DTI_ATTENTION_LANES * (uint64_t)dti_attention_chunks(l);
    while (width < DTI_MIN(most, DTI_ATTENTION_LANES_MOST))
        width *= 2;
    return width;
}

/* Steps of an invocation: blocks of the other side, for each the products' sums. */
static dti_effort dti_attention_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const uint64_t blocks = dti_attention_others(l), b = DTI_ATTENTION_BLOCK;
    const uint64_t groups = DTI_MAX(local / DTI_ATTENTION_LANES, 1), wide = dti_attention_chunks(l);
    const uint64_t deep = l->spec[1] + (l->spec[3] & ~DTI_ATTENTION_DV ? l->spec[2] : 0);
    return (dti_effort){blocks * b * (dti_ceil_div(deep, groups) + dti_ceil_div(wide, groups)),
                        l->items * blocks * b * b * b * (deep + wide)};
}

static void dti_attention_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_attention *a = &l->args.attention;
    const uint32_t places = a->d | a->dv | a->q_offset | a->q_sample | a->q_head | a->q_row |
                            a->k_offset | a->k_sample | a->k_head | a->k_row | a->v_offset |
                            a->v_sample | a->v_head | a->v_row | a->dy_offset;
    if (places % 4 == 0)
        spec[0] |= DTI_ATTENTION_FOURS;
}

/* Of each block the fours of d and dv that are summed, and some more. */
static uint64_t dti_attention_rounds(const dti_launch *l, uint32_t local) {
    const uint64_t fours = DTI_ATTENTION_BLOCK / 4 + 2, d = l->spec[1], dv = l->spec[2];
    const uint64_t deep = d + (l->spec[3] & ~DTI_ATTENTION_DV ? dv : 0);
    const uint64_t wide = dti_attention_chunks(l);
    return dti_attention_others(l) * (fours * (deep + wide) + 12) + DTI_ROUNDS_FEW;
}

/* In f32 if a launch reads back what it has stored. */
static bool dti_attention_grid_halves(const dti_launch *l, int binding) {
    return binding < 2 || (binding == 3 && l->kernel == DTI_K_ATTENTION_GRAD &&
                           dti_attention_others(l) <= DTI_ATTENTION_BLOCKS);
}

/* (q, k and v, mask, rows of y, largest scores and logarithms) */
DTI_KERNEL(ATTENTION, attention, "rrrw", GROUP, .run = dti_cpu_attention,
           .outer = dti_cpu_items_attention, .grain_of = dti_cpu_grain_attention,
           .scratch_bytes = dti_cpu_scratch_attention, .local = {DTI_ATTENTION_LANES},
           .width = dti_attention_width, .tile = dti_attention_tile, .rounds = dti_attention_rounds,
           .effort = dti_attention_effort, .halves = true,
           .grid_halves = dti_attention_grid_halves);

/* (q, k and v, dy, largest scores and logarithms and sums and mask, dq dk dv) */
DTI_KERNEL(ATTENTION_GRAD, attention_grad, "rrrw", GROUP, .run = dti_cpu_attention_grad,
           .grain_of = dti_cpu_grain_attention, .outer = dti_cpu_items_attention_grad,
           .scratch_bytes = dti_cpu_scratch_attention, .local = {DTI_ATTENTION_LANES},
           .width = dti_attention_width, .tile = dti_attention_tile, .rounds = dti_attention_rounds,
           .effort = dti_attention_effort, .halves = true,
           .grid_halves = dti_attention_grid_halves);

/* By heads: of queries, keys and values alike. Slopes and drawn weights depend on a head's number,
 * which a tensor rank does not know. */
static bool dti_attention_parted(dti_parting *s) {
    const uint32_t heads = DTI_ATTENTION_ALIBI | DTI_ATTENTION_DROPOUT;
    const dti_attention a = dti_attention_of(s->g, s->n);
    for (int k = 0; k < 3; k++) {
        if (s->in[k].axis != 0 || s->in[k].rows || s->in[k].group[1])
            return false;
    }
    if (s->n->count > 3) {
        const dt_shape mask = dti_parted_input(s, 3)->shape;
        if (s->in[3].axis >= 0 || (mask.rank == 3 && mask.dim[0] != 1))
            return false;
    }
    s->out = (dti_parted){.axis = 1, .group = {a.heads * a.dv, a.heads, a.heads}};
    return !(dti_attention_flags(s->n) & heads) && a.kv_heads % s->tp_ranks == 0;
}

DTI_FAMILY(attention, .low = 7, .shape = dti_attention_shape, .grad = dti_attention_grad_rule,
           .macs = dti_attention_macs, .part = dti_attention_parted);

DTI_FAMILY(attention_grad, .low = 15, .shape = dti_attention_grad_shape,
           .lower = dti_attention_grad_lower, .macs = dti_attention_macs);
