/* Normalisation: layer, RMS, group and batch norm are one row, norm(x, stats, w, b), over groups of
 * elements that share a mean and a variance. A group is a run of `cols` elements of a sample
 * (NORM_STATS), or a channel over all samples (BATCH_STATS, which in a program that does not train
 * gives the running statistics instead). The weights go by channel: (element / spatial) % channels.
 *
 * The gradient of norm in x includes the path through the statistics, which get no gradient of
 * their own. attr.f[0] = eps; attr.i: op/attributes.h.
 *
 * SyncBatchNorm: the statistics, and the two means over the batch in the gradient in x, are those
 * of the whole job. Each is a sync point (collective.c) of the pieces' values. With mean and
 * variance of all, x's gradient is w / deviation * (dy - mean of dy - hat * mean of dy hat). So
 * nothing else is exchanged. */

/* ---- Shapes. The constructors have checked their arguments; only the result's shape is left. */

static bool dti_norm_stats_shape(dti_build *b) {
    if (!dti_build_f32(b))
        return false;
    int64_t cols = b->out.attr.i[DTI_NORM_COLS];
    b->out.shape = (dt_shape){2, {dti_shape_elements(b->in[0]->shape) / cols, 2}};
    return true;
}

static bool dti_batch_stats_shape(dti_build *b) {
    if (!dti_build_f32(b))
        return false;
    b->out.shape = (dt_shape){2, {b->out.attr.i[DTI_NORM_CHANNELS], 2}};
    b->out.samples = false;
    return true;
}

/* A program that does not train gives the running statistics instead. */
static bool dti_batch_stats_idle(const dti_node *n, bool train) {
    return !train;
}

static int64_t dti_batch_stats_values(const dti_node *n) {
    return n->attr.i[DTI_NORM_SPATIAL];
}

static dti_update dti_running_update(const dti_node *n) {
    return (dti_update){.channels = (uint32_t)n->attr.i[DTI_NORM_CHANNELS],
                        .spatial = (uint32_t)n->attr.i[DTI_NORM_SPATIAL],
                        .variance = n->attr.i[DTI_NORM_WHICH] != 0,
                        .momentum = n->attr.f[0]};
}

static bool dti_norm_dw_shape(dti_build *b) {
    if (!dti_build_f32(b))
        return false;
    b->out.shape = (dt_shape){2, {2, b->out.attr.i[DTI_NORM_CHANNELS]}};
    b->out.samples = false;
    return true;
}

/* dw and db */
static void dti_norm_dw_outputs(const dt_graph *g, const dti_node *n, dti_outputs *out) {
    out->count = 2;
    out->shape[0] = out->shape[1] = (dt_shape){1, {n->attr.i[DTI_NORM_CHANNELS]}};
}

/* ---- Gradients */

static void dti_norm_grad_rule(dti_grad *g) {
    const bool batch = g->node.attr.i[DTI_NORM_BATCH] != 0, has_w = g->node.count > 2;
    dt_tensor x = g->in[0], stats = g->in[1], dy = g->dy, dw = {0}, weights[2] = {{0}};
    if (g->wanted[2] || g->wanted[3] || (batch && g->wanted[0])) {
        dt_tensor in[3] = {x, stats, dy};
        if (!dti_append_outputs(g->graph, DTI_OP_NORM_DW, in, 3, &g->node.attr, &dw, weights))
            return;
    }
    dt_shape channels = {1, {g->node.attr.i[DTI_NORM_CHANNELS]}};
    for (int k = 0; k < 2; k++) {
        if (g->wanted[2 + k])
            g->dx[2 + k] = weights[k];
    }
    if (!g->wanted[0])
        return;
    if (batch) {
        dt_tensor w = has_w ? g->in[2] : dt_fill(g->graph, channels, 1.0f);
        if (g->node.attr.i[DTI_NORM_SYNC])
            dw = dti_append1(DTI_OP_ALL_MEAN, dw, &g->node.attr);
        dt_tensor in[5] = {x, dy, w, stats, dw};
        g->dx[0] = dti_append(g->graph, DTI_OP_BATCH_DX, in, 5, &g->node.attr);
    } else {
        dt_tensor in[3] = {x, dy, g->in[2]};
        g->dx[0] = dti_append(g->graph, DTI_OP_NORM_DX, in, has_w ? 3 : 2, &g->node.attr);
    }
}

/* ---- The rows taken apart: their derivatives when they are differentiated again. Tensors are seen
 * as [groups, elements] of a sample for the statistics, and as [outer, channels, spatial] for the
 * weights. */

static dt_tensor dti_norm_grouped(const dti_grad *g, dt_tensor x) {
    const int32_t *i = g->node.attr.i;
    const int64_t cols = i[DTI_NORM_BATCH] ? i[DTI_NORM_SPATIAL] : i[DTI_NORM_COLS];
    return dt_reshape(x, (dt_shape){2, {-1, cols}});
}

static dt_tensor dti_norm_channelled(const dti_grad *g, dt_tensor x) {
    const int32_t *i = g->node.attr.i;
    return dt_reshape(x, (dt_shape){3, {-1, i[DTI_NORM_CHANNELS], i[DTI_NORM_SPATIAL]}});
}

static dt_tensor dti_norm_by_channel(const dti_grad *g, dt_tensor w) {
    return dt_reshape(w, (dt_shape){2, {g->node.attr.i[DTI_NORM_CHANNELS], 1}});
}

static dt_tensor dti_norm_like(dt_tensor y, dt_tensor x) {
    return dti_is_nil(x) ? x : dt_reshape(y, dti_node_of(x)->shape);
}

static dt_tensor dti_norm_stats_lower(dti_grad *g) {
    dt_tensor x = dti_norm_grouped(g, g->in[0]), pair[2];
    if (g->node.attr.i[DTI_NORM_RMS]) {
        pair[1] = dt_mean(dt_square(x), dti_last_axis, true);
        pair[0] = dt_affine(pair[1], 0.0f, 0.0f);
    } else {
        pair[0] = dt_mean(x, dti_last_axis, true);
        pair[1] = dt_mean(dt_square(dt_sub(x, pair[0])), dti_last_axis, true);
    }
    return dt_concat(pair, 2, 1);
}

/* Sum over dimensions `mask` and the samples, if it has some. */
static dt_tensor dti_norm_sum(dt_tensor x, int mask, bool keep) {
    if (dti_is_nil(x))
        return x;
    bool samples = dti_node_of(x)->samples;
    return dti_append1(DTI_OP_SUM, x, &(dti_attr){.f = {1.0f}, .i = {mask, samples, keep}});
}

/* Elements of a channel in the whole batch: one number. */
static dt_tensor dti_norm_count(const dti_grad *g) {
    dt_tensor one = dt_fill(g->graph, (dt_shape){0}, 1.0f);
    dt_tensor samples = dt_sum_samples(dti_expand_to(one, (dt_shape){0}, true));
    return dt_affine(samples, (float)g->node.attr.i[DTI_NORM_SPATIAL], 0.0f);
}

static dt_tensor dti_train_mode(dt_graph *graph) {
    return dti_append(graph, DTI_OP_TRAIN_MODE, NULL, 0, NULL);
}

static dt_tensor dti_batch_stats_lower(dti_grad *g) {
    dt_tensor x = dti_norm_grouped(g, g->in[0]), count = dti_norm_count(g), pair[2];
    dt_tensor train = dti_train_mode(g->graph), eval = dt_affine(train, -1.0f, 1.0f);
    pair[0] = dt_div(dti_norm_sum(x, 2, true), count);
    pair[1] = dt_div(dti_norm_sum(dt_square(dt_sub(x, pair[0])), 2, true), count);
    for (int k = 0; k < 2; k++) {
        const dt_tensor running = dt_mul(eval, dti_norm_by_channel(g, g->in[1 + k]));
        pair[k] = dt_add(dt_mul(train, pair[k]), running);
    }
    return dt_concat(pair, 2, 1);
}

/* (x - mean) / sqrt(variance + eps), in groups, and only the factor. */
static dt_tensor dti_norm_hat(const dti_grad *g, dt_tensor x, dt_tensor stats, dt_tensor *factor) {
    dt_tensor mean = dt_slice(stats, 1, 0, 1), variance = dt_slice(stats, 1, 1, 1);
    *factor = dt_rsqrt(dt_affine(variance, 1.0f, g->node.attr.f[0]));
    return dt_mul(dt_sub(dti_norm_grouped(g, x), mean), *factor);
}

/* The statistics of a node that reads them, made again from their inputs: so they have gradients.
 * Those of another pipeline stage are used as they are, and their gradient goes back there. */
static dt_tensor dti_norm_stats_again(dt_tensor stats) {
    if (dti_is_nil(stats))
        return stats;
    const dti_op_family *family = dti_op_info_of(dti_node_of(stats)->op)->family;
    if (family->meet)
        return dti_meet_again(stats.graph);
    if (!family->lower)
        return stats;
    dti_grad g = {.graph = stats.graph, .node = *dti_node_of(stats), .y = stats};
    for (uint32_t i = 0; i < g.node.count; i++)
        g.in[i] = dti_input_of(g.graph, &g.node, i);
    return family->lower(&g);
}

/* (x, dy, w) */
static dt_tensor dti_norm_dx_lower(dti_grad *g) {
    dt_tensor x = g->in[0], dy = dti_norm_channelled(g, g->in[1]), factor;
    if (g->node.count > 2)
        dy = dt_mul(dy, dti_norm_by_channel(g, g->in[2]));
    dy = dti_norm_grouped(g, dy);
    dti_grad of_stats = {.graph = g->graph, .node = g->node, .in = {x}};
    dt_tensor hat = dti_norm_hat(g, x, dti_norm_stats_lower(&of_stats), &factor);
    dt_tensor along = dt_mean(dt_mul(dy, hat), dti_last_axis, true);
    dt_tensor rest = dt_sub(dy, dt_mul(hat, along));
    if (!g->node.attr.i[DTI_NORM_RMS])
        rest = dt_sub(rest, dt_mean(dy, dti_last_axis, true));
    return dti_norm_like(dt_mul(rest, factor), x);
}

/* (x, stats, dy) -> [2, channels] */
static dt_tensor dti_norm_dw_lower(dti_grad *g) {
    dt_tensor factor, hat = dti_norm_hat(g, g->in[0], dti_norm_stats_again(g->in[1]), &factor);
    dt_tensor dy = dti_norm_channelled(g, g->in[2]), pair[2];
    pair[0] = dt_mul(dy, dti_norm_channelled(g, hat));
    pair[1] = dy;
    for (int k = 0; k < 2; k++) {
        dt_tensor sum = dti_norm_sum(pair[k], 5, false);
        pair[k] = dt_reshape(sum, (dt_shape){2, {1, g->node.attr.i[DTI_NORM_CHANNELS]}});
    }
    return dt_concat(pair, 2, 0);
}

/* (x, dy, w, stats, norm_dw): made from the first four. */
static dt_tensor dti_batch_dx_lower(dti_grad *g) {
    if (g->node.attr.i[DTI_NORM_SYNC])
        return dti_meet_again(g->graph);
    dt_tensor factor, hat = dti_norm_hat(g, g->in[0], dti_norm_stats_again(g->in[3]), &factor);
    dt_tensor dy = dti_norm_grouped(g, g->in[1]), train = dti_train_mode(g->graph);
    dt_tensor share = dt_div(train, dti_norm_count(g));
    dt_tensor dw = dti_norm_sum(dt_mul(dy, hat), 2, true), db = dti_norm_sum(dy, 2, true);
    dt_tensor through = dt_mul(share, dt_add(db, dt_mul(hat, dw)));
    dt_tensor scale = dt_mul(factor, dti_norm_by_channel(g, g->in[2]));
    return dti_norm_like(dt_mul(scale, dt_sub(dy, through)), g->in[0]);
}

#include "norm_launch.c" /* its functions are used in the rows below */

/* ---- Constructors */

/* [channels] weights, both or the first or none; -1 after an error, else their number. */
static int dti_norm_weights(dt_tensor x, const char *op, dt_shape shape, dt_tensor *w) {
    int count = 0;
    dt_shape channels = {1, {dti_shape_elements(shape)}};
    for (int k = 0; k < 2; k++) {
        if (dti_is_nil(w[k]))
            continue;
        const dti_node *n = dti_node_of(w[k]);
        if (w[k].graph != x.graph || n->samples || !dti_shape_equal(n->shape, shape) ||
            n->dtype != DT_F32) {
            dti_graph_fail(x.graph, "%s(%s): %s must be %s, f32, without samples", op,
                           dti_shape_of(x).text, k ? "b" : "w", dti_shape_print(shape, false).text);
            return -1;
        }
        if (k > count) /* only a bias */
            w[count++] = dt_fill(x.graph, channels, 1.0f);
        w[count++] = dt_reshape(w[k], channels);
    }
    return count;
}

static dt_tensor dti_norm(dt_tensor x, dt_tensor stats, dt_tensor *w, int count,
                          const dti_attr *attr) {
    dt_tensor in[4] = {x, stats, w[0], w[1]};
    return count < 0 ? dti_nil(x.graph)
                     : dti_append(x.graph, DTI_OP_NORM, in, (uint32_t)(2 + count), attr);
}

static bool dti_norm_check(dt_tensor x, const char *op, bool fits, float eps, const char *why) {
    const dti_node *n = dti_node_of(x);
    const dti_shape_text printed = dti_shape_print(n->shape, n->samples);
    const char *shape = printed.text;
    if (n->dtype != DT_F32 || n->term)
        dti_graph_fail(x.graph, "%s(%s): x must be f32, and no loss term", op, shape);
    else if (!fits || dti_shape_elements(n->shape) == 0)
        dti_graph_fail(x.graph, "%s(%s): %s", op, shape, fits ? "has no elements" : why);
    else if (!(eps >= 0.0f) || !dti_fits_f32((double)eps))
        dti_graph_fail(x.graph, "%s(%s): eps %g; it must be finite and at least 0", op, shape,
                       (double)eps);
    return x.graph->error[0] == 0;
}

/* Over the last dimensions. attr.f[0] = eps, i[0] = how many, i[1] = without the mean. */
static dt_tensor dti_norm_last_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0);
    dt_tensor weights[2] = {dti_call_in(g, c, 1), dti_call_in(g, c, 2)};
    const int dims = c->attr.i[0];
    const float eps = c->attr.f[0];
    dt_shape s = dti_node_of(x)->shape, last = {.rank = dims};
    bool fits = dims >= 1 && dims <= s.rank;
    if (!dti_norm_check(x, c->name, fits, eps, "`dims` must be 1 up to the number of dimensions"))
        return dti_nil(g);
    memcpy(last.dim, s.dim + s.rank - dims, (size_t)dims * sizeof *last.dim);
    int32_t cols = (int32_t)dti_shape_elements(last);
    dti_attr attr = {.f = {eps}, .i = {0, cols, 1, cols, c->attr.i[1]}};
    int count = dti_norm_weights(x, c->name, last, weights);
    return dti_norm(x, dti_append1(DTI_OP_NORM_STATS, x, &attr), weights, count, &attr);
}

DT_API dt_tensor dt_layer_norm(dt_tensor x, int dims, dt_tensor w, dt_tensor b, float eps) {
    const dti_attr attr = {.f = {(float)dti_or((double)eps, 1e-5)}, .i = {dims}};
    return dti_compose("layer_norm", dti_norm_last_make, 1, (dti_inputs){{x, w, b}}, attr);
}

DT_API dt_tensor dt_rms_norm(dt_tensor x, int dims, dt_tensor w, float eps) {
    const dti_attr attr = {.f = {(float)dti_or((double)eps, 1.1920929e-7)}, .i = {dims, true}};
    return dti_compose("rms_norm", dti_norm_last_make, 1, (dti_inputs){{x, w}}, attr);
}

/* attr.f[0] = eps, i[0] = groups. */
static dt_tensor dti_norm_groups_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0);
    dt_tensor weights[2] = {dti_call_in(g, c, 1), dti_call_in(g, c, 2)};
    const int groups = c->attr.i[0];
    const float eps = c->attr.f[0];
    dt_shape s = dti_node_of(x)->shape;
    bool fits = s.rank >= 1 && groups >= 1 && s.dim[0] % groups == 0;
    if (!dti_norm_check(x, "group_norm", fits, eps, "the groups do not divide the channels"))
        return dti_nil(g);
    int32_t all = (int32_t)dti_shape_elements(s), channels = (int32_t)s.dim[0];
    dti_attr attr = {.f = {eps}, .i = {0, channels, all / channels, all / groups}};
    int count = dti_norm_weights(x, "group_norm", (dt_shape){1, {channels}}, weights);
    return dti_norm(x, dti_append1(DTI_OP_NORM_STATS, x, &attr), weights, count, &attr);
}

DT_API dt_tensor dt_group_norm(dt_tensor x, int groups, dt_tensor w, dt_tensor b, float eps) {
    const dti_attr attr = {.f = {(float)dti_or((double)eps, 1e-5)}, .i = {groups}};
    return dti_compose("group_norm", dti_norm_groups_make, 1, (dti_inputs){{x, w, b}}, attr);
}

static dt_tensor dti_buffer_becomes(dt_tensor buffer, dt_tensor value) {
    if (dti_is_nil(buffer) || dti_is_nil(value))
        return dti_nil(buffer.graph);
    const dt_shape shape = dti_node_of(value)->shape;
    const int64_t n = dti_shape_elements(shape);
    dt_tensor pair = dt_reshape(value, (dt_shape){2, {n, 1}});
    pair = dt_expand(pair, (dt_shape){2, {n, 2}});
    const dti_attr moving = {.f = {1.0f}, .i = {0, (int32_t)n, 1}};
    dti_graph_update(buffer, dti_append2(DTI_OP_RUNNING, buffer, pair, &moving));
    return dt_reshape(dt_slice(pair, 1, 0, 1), shape);
}

/* Two updates of one buffer: neither is right. Said before anything is appended. */
static bool dti_batch_norm_moves(const dt_tensor *running) {
    for (int k = 0; k < 2; k++) {
        const dti_node *n = dti_node_of(running[k]);
        if (!n->attr.i[2] && running[0].id != running[1].id)
            continue;
        return dti_graph_refuse(
            running[k].graph,
            "buffer '%s' is already updated by another op; freeze the statistics there", n->label);
    }
    return true;
}

static bool dti_batch_norm_buffers(dt_tensor x, const dt_tensor *running, int64_t channels) {
    for (int k = 0; k < 2; k++) {
        if (dti_is_nil(running[k]))
            return dti_graph_refuse(x.graph, "batch_norm: the running %s is nil",
                                    k ? "variance" : "mean");
        const dti_node *n = dti_node_of(running[k]);
        if (running[k].graph == x.graph && n->buffer && n->shape.rank == 1 &&
            n->shape.dim[0] == channels)
            continue;
        return dti_graph_refuse(x.graph,
                                "batch_norm(%s): the running %s must be a dt_buffer of [%lld]",
                                dti_shape_print(dti_node_of(x)->shape, true).text,
                                k ? "variance" : "mean", (long long)channels);
    }
    return true;
}

/* attr.f = eps, momentum; i = frozen, sync. */
static dt_tensor dti_batch_norm_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0);
    dt_tensor weights[2] = {dti_call_in(g, c, 1), dti_call_in(g, c, 2)};
    const dt_tensor running[2] = {dti_call_in(g, c, 3), dti_call_in(g, c, 4)};
    const bool frozen = c->attr.i[0] != 0, sync = c->attr.i[1] != 0;
    const float eps = c->attr.f[0], momentum = c->attr.f[1];
    dt_shape s = dti_node_of(x)->shape;
    bool fits = s.rank >= 1 && dti_node_of(x)->samples;
    if (!dti_norm_check(x, "batch_norm", fits, eps, "x must be [channels, ...] of each sample"))
        return dti_nil(x.graph);
    if (!(momentum > 0.0f && momentum <= 1.0f))
        return dti_graph_fail(x.graph, "batch_norm: momentum %g; it must be in (0, 1]",
                              (double)momentum);
    int32_t channels = (int32_t)s.dim[0];
    dti_attr attr = {.f = {eps}, .i = {1, channels, (int32_t)dti_shape_elements(s) / channels}};
    attr.i[DTI_NORM_SYNC] = sync;
    int count = dti_norm_weights(x, "batch_norm", (dt_shape){1, {channels}}, weights);
    if (count < 0 || !dti_batch_norm_buffers(x, running, channels) ||
        (!frozen && !dti_batch_norm_moves(running)))
        return dti_nil(x.graph);
    dt_tensor in[3] = {x, running[0], running[1]};
    dt_tensor stats = dti_append(x.graph, DTI_OP_BATCH_STATS, in, 3, &attr);
    for (int k = 0; k < 2 && !frozen; k++) {
        dti_attr moving = attr;
        moving.f[0] = momentum;
        moving.i[DTI_NORM_WHICH] = k;
        dti_graph_update(running[k], dti_append2(DTI_OP_RUNNING, running[k], stats, &moving));
    }
    if (sync)
        stats = dti_append1(DTI_OP_ALL_STATS, stats, &attr);
    return dti_norm(x, stats, weights, count, &attr);
}

DT_API dt_tensor dt_batch_norm(dt_tensor x, dt_tensor w, dt_tensor b, dt_tensor running_mean,
                               dt_tensor running_var, const dt_batch_norm_desc *desc) {
    dt_batch_norm_desc d = desc ? *desc : (dt_batch_norm_desc){0};
    const dti_attr attr = {
        .f = {(float)dti_or((double)d.eps, 1e-5), (float)dti_or((double)d.momentum, 0.1)},
        .i = {d.frozen, d.sync}};
    return dti_compose("batch_norm", dti_batch_norm_make, 1,
                       (dti_inputs){{x, w, b, running_mean, running_var}}, attr);
}

/* ---- Rows of the tables */

/* With whole groups, and weights of whole channels, each rank normalises its own rows. */
static bool dti_norm_rows_parted(dti_parting *s) {
    const int32_t *i = s->n->attr.i;
    const dt_shape x = dti_parted_input(s, 0)->shape;
    const int64_t run = x.rank ? dti_shape_elements(x) / s->tp_ranks : 0;
    const int64_t channels = (int64_t)i[DTI_NORM_CHANNELS] * i[DTI_NORM_SPATIAL];
    return dti_parted_rows_alone(s) && !i[DTI_NORM_BATCH] && i[DTI_NORM_COLS] > 0 &&
           run % i[DTI_NORM_COLS] == 0 && (channels == 0 || run % channels == 0);
}

static bool dti_norm_stats_parted(dti_parting *s) {
    if (!dti_norm_rows_parted(s))
        return false;
    s->out.group[0] = s->n->shape.dim[0];
    return true;
}

static bool dti_norm_parted(dti_parting *s) {
    bool whole = true;
    for (uint32_t k = 2; k < s->n->count; k++)
        whole = whole && s->in[k].axis < 0;
    return whole && dti_norm_rows_parted(s) && s->in[1].axis == 0;
}

DTI_FAMILY(norm_stats, .halves = 1, .shape = dti_norm_stats_shape, .lower = dti_norm_stats_lower,
           .part = dti_norm_stats_parted);

DTI_FAMILY(batch_stats, .halves = 1, .shape = dti_batch_stats_shape, .lower = dti_batch_stats_lower,
           .join = dti_batch_stats_join, .idle = dti_batch_stats_idle,
           .values = dti_batch_stats_values);

DTI_FAMILY(norm, .cheap = true, .halves = DTI_HALF_OUT | 1, .shape = dti_shape_same,
           .grad = dti_norm_grad_rule, .part = dti_norm_parted);

DTI_FAMILY(norm_dx, .halves = DTI_HALF_OUT | 3, .shape = dti_shape_same,
           .lower = dti_norm_dx_lower);

DTI_FAMILY(norm_dw, .halves = 5, .apart = true, .shape = dti_norm_dw_shape,
           .outputs = dti_norm_dw_outputs, .lower = dti_norm_dw_lower);

DTI_FAMILY(batch_dx, .halves = DTI_HALF_OUT | 3, .shape = dti_shape_same,
           .lower = dti_batch_dx_lower);

DTI_FAMILY(running, .shape = dti_shape_same, .update = dti_running_update);
