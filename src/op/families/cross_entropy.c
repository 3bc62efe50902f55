/* Cross-entropy and accuracy: terms over (logits, targets), as in loss.c. attr.i[0] = ignore_index,
 * attr.f[0] = label smoothing. */

/* ---- cross_entropy (logits, target [, class weights]) */

/* `rows` of logits, and the targets that were given for them. */
static const char *dti_targets_hint(dt_shape rows, dt_shape targets) {
    if (dti_shape_elements(rows) == dti_shape_elements(targets))
        return "; dt_reshape them";
    return targets.rank == 0 ? "; for one a sample dt_flatten before the last layer" : "";
}

static bool dti_targets_fit(dti_build *b, const dti_node *x, const dti_node *t) {
    dt_shape rows = x->shape;
    if (x->dtype != DT_F32)
        return dti_build_fail(b, "logits must be f32");
    if (t->dtype != DT_I32)
        return dti_build_fail(
            b, "targets must be i32 class numbers; for probabilities use dt_soft_cross_entropy");
    if (rows.rank < 1 || rows.dim[rows.rank - 1] < 1)
        return dti_build_fail(b, "logits need a last dimension of classes");
    rows.rank--;
    rows.dim[rows.rank] = 0;
    if (!dti_shape_equal(rows, t->shape) || x->samples != t->samples) {
        return dti_build_fail(b, "targets must be %s: the logits without their last dimension%s",
                              dti_shape_print(rows, x->samples).text,
                              x->samples == t->samples ? dti_targets_hint(rows, t->shape) : "");
    }
    return true;
}

/* Input 1 of (logits, targets, ...). attr.i[0] = ignore_index. */
static bool dti_targets_labels(const dt_graph *g, const dti_node *n, dti_labels *out) {
    const dt_shape x = g->nodes[dti_input_id(g, n, 0)].shape;
    *out = (dti_labels){.input = 1,
                        .classes = (int32_t)x.dim[x.rank - 1],
                        .ignore_index = n->attr.i[0],
                        .ignores = true};
    return true;
}

static bool dti_cross_entropy_shape(dti_build *b) {
    const dti_node *x = b->in[0];
    float smoothing = b->out.attr.f[0];
    if (!dti_targets_fit(b, x, b->in[1]))
        return false;
    if (!(smoothing >= 0.0f && smoothing <= 1.0f))
        return dti_build_fail(b, "label_smoothing is %g; it must be in [0, 1]", (double)smoothing);
    if (b->count > 2) {
        const dti_node *w = dti_node_of(b->inputs[2]);
        if (b->count > 3 || w->dtype != DT_F32 || w->samples || w->shape.rank != 1 ||
            w->shape.dim[0] != x->shape.dim[x->shape.rank - 1]) {
            return dti_build_fail(b,
                                  "class weights must be [classes] f32, one for the whole batch");
        }
    }
    return dti_term_shape(b);
}

/* Whether there is a gradient to make: class weights have no gradient. */
static bool dti_xent_wants(dti_grad *g, const char *name) {
    if (g->wanted[2])
        dti_graph_fail(g->graph,
                       "%s: there is no gradient of class weights; dt_detach them, or dt_freeze "
                       "the parameter",
                       name);
    return g->wanted[0] && !g->wanted[2];
}

static void dti_cross_entropy_grad_rule(dti_grad *g) {
    if (!dti_xent_wants(g, "cross_entropy"))
        return;
    dt_tensor s = g->node.count > 2 ? dt_mul(g->dy, g->in[2]) : g->dy;
    dt_tensor in[3] = {g->in[0], g->in[1], s};
    g->dx[0] = dti_append(g->graph, DTI_OP_CROSS_ENTROPY_GRAD, in, 3, &g->node.attr);
}

/* Rows of pairs, then their sum. The selector: DTI_XENT_*. WEIGHT has no logits: targets are bound
 * in their place, and attr.i[1] = classes. */
static void dti_xent_emit(dti_emit *e) {
    const dti_node *n = e->node;
    const uint32_t mode = dti_op_info_of(n->op)->selector, at = mode != DTI_XENT_WEIGHT;
    const dti_view x = dti_emit_dense_in(e, 0), t = dti_emit_dense_in(e, at);
    uint32_t s_offset = 0;
    const uint32_t s = dti_emit_given(e, at + 1, &s_offset);
    const uint64_t rows = (uint64_t)dti_view_elements(&t);
    const uint32_t kept = mode == DTI_XENT_LOSS && e->workgroups ? DTI_XENT_KEPT : 0;
    const uint32_t pairs = dti_emit_scratch(e, DT_F32, (2 + kept) * rows);
    const dti_args_xent a = {.rows = (uint32_t)rows,
                             .classes = (uint32_t)(at ? x.dim[5] : n->attr.i[1]),
                             .ignore_index = n->attr.i[0],
                             .smoothing = n->attr.f[0],
                             .s_stride = s != DTI_UNBOUND,
                             .x_offset = (uint32_t)x.offset,
                             .t_offset = (uint32_t)t.offset,
                             .s_offset = s_offset};
    dti_launch *l = DTI_EMIT(e, DTI_K_XENT, rows, a, x.value, t.value, s, pairs);
    l->spec[0] = mode;
    l->spec[1] = a.s_stride;
    dti_emit_term_sum(e, pairs, (int64_t)rows);
}

static dt_tensor dti_class_term(dti_op op, dt_tensor x, dt_tensor target,
                                const dt_cross_entropy_desc *d) {
    dti_attr attr = {.f = {d->label_smoothing}, .i = {(int32_t)dti_or(d->ignore_index, -100)}};
    dt_tensor in[3] = {x, target, d->class_weights};
    bool weights = d->class_weights.graph != NULL || d->class_weights.id != 0;
    return dti_append(x.graph, op, in, weights ? 3 : 2, &attr);
}

DT_API dt_tensor dt_cross_entropy(dt_tensor logits, dt_tensor target,
                                  const dt_cross_entropy_desc *desc) {
    dt_cross_entropy_desc d = desc ? *desc : (dt_cross_entropy_desc){0};
    return dti_class_term(DTI_OP_CROSS_ENTROPY, logits, target, &d);
}

/* ---- one_hot, in rows */

/* dim: classes */
static dt_tensor dti_hot_make(dt_graph *g, const dti_call *c) {
    const dt_tensor index = dti_call_in(g, c, 0);
    const int64_t classes = c->attr.dim[0];
    dt_shape s = dti_tensor_shape(index);
    if (dti_tensor_dtype(index) != DT_I32 || s.rank == DT_MAX_DIMS || classes < 1)
        return dti_graph_fail(index.graph,
                              "one_hot: %s must be i32 of at most %d dimensions, and classes, "
                              "%lld, at least 1",
                              dti_tensor_print(index).text, DT_MAX_DIMS - 1, (long long)classes);
    s.dim[s.rank++] = 1;
    dt_tensor at = dt_reshape(dt_cast(index, DT_F32), s);
    return dt_eq(at, dt_iota(g, (dt_shape){1, {classes}}));
}

DT_API dt_tensor dt_one_hot(dt_tensor index, int64_t classes) {
    return dti_compose("one_hot", dti_hot_make, 1, (dti_inputs){{index}},
                       (dti_attr){.dim = {classes}});
}

/* ---- nll (log-probabilities, target [, class weights]): attr.i[0] as above */

/* -weight at each target that is not ignored. */
static void dti_nll_grad(dti_grad *g) {
    if (!dti_xent_wants(g, "nll"))
        return;
    const dt_shape x = dti_tensor_shape(g->in[0]);
    dt_tensor hot = dt_one_hot(g->in[1], x.dim[x.rank - 1]);
    if (g->node.attr.i[0] >= 0 && g->node.attr.i[0] < x.dim[x.rank - 1]) {
        dt_tensor ignored = dt_fill(g->graph, dt_dims(), (float)g->node.attr.i[0]);
        dt_tensor kept = dt_affine(
            dt_eq(dt_iota(g->graph, (dt_shape){1, {x.dim[x.rank - 1]}}), ignored), -1.0f, 1.0f);
        hot = dt_mul(hot, kept);
    }
    dt_tensor s = g->node.count > 2 ? dt_mul(g->dy, g->in[2]) : g->dy;
    g->dx[0] = dt_mul(hot, dt_neg(s));
}

DT_API dt_tensor dt_nll(dt_tensor log_p, dt_tensor target, const dt_cross_entropy_desc *desc) {
    dt_cross_entropy_desc d = desc ? *desc : (dt_cross_entropy_desc){0};
    if (d.label_smoothing != 0.0f && !dti_is_nil(log_p))
        return dti_graph_fail(log_p.graph,
                              "dt_nll: label_smoothing is dt_cross_entropy's; leave it 0");
    return dti_class_term(DTI_OP_NLL, log_p, target, &d);
}

/* ---- cross_entropy_weight (target [, class weights]): attr as above, i[1] = classes. */
/* For a loss whose targets are input `at`, before its class weights. */
static dt_tensor dti_class_weight_of(dt_graph *g, const dti_node *n, uint32_t at, int32_t classes) {
    dti_attr attr = n->attr;
    attr.i[1] = classes;
    dt_tensor in[2] = {dti_input_of(g, n, at), {0}};
    if (n->count > at + 1)
        in[1] = dti_input_of(g, n, at + 1);
    return dti_append(g, DTI_OP_CROSS_ENTROPY_WEIGHT, in, n->count - at, &attr);
}

static dt_tensor dti_cross_entropy_weight_of(dt_graph *g, const dti_node *n) {
    const dt_shape x = g->nodes[dti_input_id(g, n, 0)].shape;
    return dti_class_weight_of(g, n, 1, (int32_t)x.dim[x.rank - 1]);
}

/* ---- cross_entropy_grad (logits, target, s): s is the seed, or the seed times the class
 * weights. */
static bool dti_cross_entropy_grad_shape(dti_build *b) {
    if (!dti_targets_fit(b, b->in[0], b->in[1]))
        return false;
    b->out.shape = b->in[0]->shape;
    return true;
}

/* The launch of the loss of the same rows. */
static dti_launch *dti_xent_loss_of(const dti_listing *list, const dti_view *x, const dti_view *t) {
    for (uint32_t k = list->launch_count; k-- > 0;) {
        dti_launch *l = &list->launches[k];
        const dti_args_xent *a = &l->args.xent;
        if (l->value[dti_launch_output(l)] == x->value)
            return NULL;
        if (l->kernel == DTI_K_XENT && l->spec[0] == DTI_XENT_LOSS && l->value[0] == x->value &&
            l->value[1] == t->value && a->x_offset == x->offset && a->t_offset == t->offset &&
            a->rows == dti_view_elements(t))
            return l;
    }
    return NULL;
}

/* Where each row has its maximum, sum and target kept, its gradient is element by element. The
 * sum of different weights is a workgroup's. */
static void dti_cross_entropy_grad_emit(dti_emit *e) {
    dti_view x = dti_emit_dense_in(e, 0), t = dti_emit_dense_in(e, 1), s = dti_emit_dense_in(e, 2);
    int64_t rows = dti_view_elements(&t);
    const bool smooth = e->node->attr.f[0] != 0.0f, weighted = dti_view_elements(&s) > 1;
    dti_launch *loss = NULL;
    if (e->workgroups && !(smooth && weighted))
        loss = dti_xent_loss_of(e->list, &x, &t);
    if (loss) {
        loss->spec[2] = 1;
        t.value = loss->value[3];
        t.offset = 2 * rows;
    }
    const dti_args_xent a = {.rows = (uint32_t)rows,
                             .classes = (uint32_t)x.dim[5],
                             .ignore_index = e->node->attr.i[0],
                             .smoothing = e->node->attr.f[0],
                             .s_stride = weighted,
                             .x_offset = (uint32_t)x.offset,
                             .t_offset = (uint32_t)t.offset,
                             .s_offset = (uint32_t)s.offset,
                             .y_offset = (uint32_t)e->out.offset};
    const uint64_t items = (uint64_t)rows * (loss ? a.classes : 1); /* of XENT_DX elements */
    DTI_EMIT(e, loss ? DTI_K_XENT_DX : DTI_K_XENT_GRAD, items, a, x.value, t.value, s.value,
             e->out.value);
}

/* softmax(x) * sum q - q with q = ((1 - eps) * onehot + eps / K * valid) * s */
static dt_tensor dti_cross_entropy_grad_lower(dti_grad *g) {
    dt_tensor x = g->in[0], t = g->in[1], s = g->in[2];
    if (dti_is_nil(x))
        return x;
    dt_shape column = dti_node_of(t)->shape, last = dt_dims_of(1, (const int64_t[]){0, -1});
    int64_t classes = dti_node_of(x)->shape.dim[dti_node_of(x)->shape.rank - 1];
    float eps = g->node.attr.f[0];
    column.dim[column.rank++] = 1;
    dt_tensor label = dt_reshape(dt_cast(t, DT_F32), column);
    dt_tensor hot =
        dt_eq(label, dti_constant(x.graph, DTI_OP_IOTA, (dt_shape){1, {classes}}, 0.0f));
    dt_tensor ignored = dt_fill(x.graph, dt_dims_of(0, NULL), (float)g->node.attr.i[0]);
    hot = dt_mul(hot, dt_affine(dt_eq(label, ignored), -1.0f, 1.0f));
    dt_tensor taken = dt_sum(dt_mul(hot, s), last, true);
    dt_tensor q = dt_mul(dt_affine(hot, 1.0f - eps, 0.0f), taken);
    if (eps != 0.0f) {
        dt_tensor valid = dt_sum(hot, last, true);
        q = dt_add(q, dt_mul(dt_affine(valid, eps / (float)classes, 0.0f), s));
    }
    dt_tensor all = dt_sum(q, last, true);
    return dt_sub(dt_mul(dt_softmax(x, -1), all), q);
}

/* ---- accuracy (logits, target) */
static bool dti_accuracy_shape(dti_build *b) {
    return dti_targets_fit(b, b->in[0], b->in[1]) && dti_term_shape(b);
}

DT_API dt_tensor dt_accuracy(dt_tensor logits, dt_tensor target) {
    return dti_append2(DTI_OP_ACCURACY, logits, target, &(dti_attr){.i = {-100}});
}

/* ---- of a tensor group whose ranks have parts of the classes (Shoeybi et al., "Megatron-LM",
 * 2019). The logits stay where they are. Only the largest of each row and three sums are
 * exchanged. */

static int64_t dti_classes_own(const dti_parting *s) {
    const dt_shape x = dti_parted_input(s, 0)->shape;
    return x.dim[x.rank - 1] / s->tp_ranks;
}

static dt_tensor dti_classes_at(const dti_parting *s, dt_tensor target) {
    const dti_labels of = {.classes = (int32_t)(dti_classes_own(s) * s->tp_ranks),
                           .ignore_index = s->n->attr.i[0],
                           .ignores = true};
    return dti_parted_labels(target, &of);
}

/* The numbers of the own classes. */
static dt_tensor dti_classes_numbers(const dti_parting *s, dt_graph *g) {
    const int64_t own = dti_classes_own(s);
    return dt_affine(dt_iota(g, (dt_shape){1, {own}}), 1.0f, (float)(s->tp_rank * own));
}

/* 1 for targets that count. */
static dt_tensor dti_classes_counts(const dti_parting *s, dt_tensor at) {
    dt_tensor ignored = dt_fill(at.graph, (dt_shape){0}, (float)s->n->attr.i[0]);
    return dt_affine(dt_eq(at, ignored), -1.0f, 1.0f);
}

/* That; with class weights, theirs. */
static dt_tensor dti_classes_weights(const dti_parting *s, const dt_tensor *in, dt_tensor at) {
    const float classes = (float)(dti_classes_own(s) * s->tp_ranks);
    dt_tensor counts = dti_classes_counts(s, at);
    if (s->n->count < 3)
        return counts;
    dt_tensor index = dt_cast(dt_clamp(at, 0.0f, classes - 1.0f), DT_I32);
    return dt_mul(counts, dt_embedding(dt_detach(in[2]), index));
}

/* log sum e^z - (1 - eps) z[target] - eps mean z, of z = x - the largest; of a row that does not
 * count z is 0, whatever its logits are. */
static dt_tensor dti_cross_entropy_parts(const dti_parting *s, const dt_tensor *in) {
    const double eps = (double)s->n->attr.f[0], all = (double)(dti_classes_own(s) * s->tp_ranks);
    const dt_shape last = dt_dims(-1);
    dt_tensor at = dti_classes_at(s, in[1]), numbers = dti_classes_numbers(s, in[0].graph);
    dt_tensor z = dt_sub(in[0], dti_parted_most(dt_detach(dt_max(in[0], last, true))));
    z = dt_mask(z, dti_classes_counts(s, at));
    dt_tensor sums[3] = {dt_sum(dt_exp(z), last, true)};
    sums[1] = dt_sum(dt_mask(z, dt_eq(at, numbers)), last, true);
    if (eps != 0.0)
        sums[2] = dt_sum(z, last, true);
    dt_tensor total = dti_parted_summed(dt_concat(sums, eps != 0.0 ? 3 : 2, -1));
    dt_tensor loss = dt_log(dt_slice(total, -1, 0, 1));
    loss = dt_sub(loss, dt_affine(dt_slice(total, -1, 1, 1), (float)(1.0 - eps), 0.0f));
    if (eps != 0.0)
        loss = dt_sub(loss, dt_affine(dt_slice(total, -1, 2, 1), (float)(eps / all), 0.0f));
    dt_tensor of[4] = {loss, dti_classes_weights(s, in, at), in[1], {0}};
    if (s->n->count > 2)
        of[3] = in[2];
    dti_attr attr = s->n->attr;
    attr.i[1] = (int32_t)all;
    return dti_append(loss.graph, DTI_OP_TP_LOSS, of, s->n->count + 1, &attr);
}

/* The first of the largest, of all tensor ranks. */
static dt_tensor dti_accuracy_parts(const dti_parting *s, const dt_tensor *in) {
    const float all = (float)(dti_classes_own(s) * s->tp_ranks);
    const dt_shape last = dt_dims(-1);
    dt_tensor at = dti_classes_at(s, in[1]), numbers = dti_classes_numbers(s, in[0].graph);
    dt_tensor is = dt_eq(in[0], dti_parted_most(dt_max(in[0], last, true)));
    dt_tensor first = dt_min(dt_add(numbers, dt_affine(is, -all, all)), last, true);
    first = dt_neg(dti_parted_most(dt_neg(first)));
    dt_tensor right = dt_eq(first, at);
    return dt_weighted_loss(right, dti_classes_weights(s, in, at));
}

/* Numbers of classes are compared as f32. */
static bool dti_classes_parted(const dti_parting *s) {
    const dt_shape x = dti_parted_input(s, 0)->shape;
    bool others = false;
    for (uint32_t k = 1; k < s->n->count; k++)
        others = others || s->in[k].axis >= 0;
    return s->in[0].axis == x.rank - 1 && !s->in[0].group[1] && !others &&
           x.dim[x.rank - 1] <= (1 << 24);
}

/* Smoothing by class weights is not supported. */
static bool dti_cross_entropy_parted(dti_parting *s) {
    s->out = dti_parted_whole;
    s->make = dti_cross_entropy_parts;
    return dti_classes_parted(s) && (s->n->count < 3 || s->n->attr.f[0] == 0.0f);
}

static bool dti_accuracy_parted(dti_parting *s) {
    s->out = dti_parted_whole;
    s->make = dti_accuracy_parts;
    return dti_classes_parted(s);
}

#include "cross_entropy_cpu.c"

/* ---- Rows of the tables */

static void dti_xent_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_args_xent *a = &l->args.xent;
    spec[3] = dti_row_lies(a->classes, a->x_offset); /* the gradient works on the elements that the
                                                      * loss sums */
    if (l->kernel == DTI_K_XENT_GRAD && a->y_offset % 4)
        spec[3] |= DTI_ROW_APART;
    if (l->kernel == DTI_K_XENT_GRAD && (spec[3] & DTI_ROW_FOURS) && a->s_stride == 1 &&
        a->s_offset % 4 == 0)
        spec[3] |= DTI_ROW_SEED_FOURS;
    if (l->kernel == DTI_K_XENT_DX && a->y_offset % 4)
        spec[3] = 0;
}

/* With smoothing four passes. */
static uint64_t dti_xent_rounds(const dti_launch *l, uint32_t local) {
    return dti_rounds_of(dti_row_width(l), 4, local);
}

/* Logits and their gradient; pairs, and saved values of rows, are f32. */
static bool dti_xent_grid_halves(const dti_launch *l, int binding) {
    return binding == 0 || (binding == 3 && l->kernel != DTI_K_XENT);
}

/* Of WEIGHT binding 0 are targets. */
static dti_stage dti_xent_stage(const dti_launch *l, int b) {
    const dti_args_xent *a = &l->args.xent;
    const bool dx = b == 3 && l->kernel == DTI_K_XENT_GRAD;
    return (dti_stage){b == 0 || dx ? (int64_t)a->classes : DTI_STAGE_NONE,
                       b ? a->y_offset : a->x_offset};
}

/* -> pairs [rows, 2]; spec0: DTI_XENT_*, spec1: s, spec2: 1 = rows are kept after the pairs */
DTI_KERNEL(XENT, xent, "rrrw", GROUP, .run = dti_cpu_xent, .halves = true, .stage = dti_xent_stage,
           .grain = 4096, .grid_halves = dti_xent_grid_halves, .each = DTI_WORD(xent, classes),
           .width = dti_row_width, .tile = dti_xent_tile, .rounds = dti_xent_rounds, .passes = 3,
           .effort = dti_row_effort);

/* (logits, target, s, dlogits) */
DTI_KERNEL(XENT_GRAD, xent_grad, "rrrw", GROUP, .run = dti_cpu_xent_grad, .halves = true,
           .stage = dti_xent_stage, .grain = 4096, .grid_halves = dti_xent_grid_halves,
           .each = DTI_WORD(xent, classes), .width = dti_row_width, .tile = dti_xent_tile,
           .rounds = dti_xent_rounds, .passes = 3, .effort = dti_row_effort);

static bool dti_xent_dx_in_step(const dti_launch *l, int binding) {
    return binding == 0 && l->args.xent.x_offset == l->args.xent.y_offset;
}

/* (logits, XENT's saved values, s, dlogits), where workgroups run */
DTI_KERNEL(XENT_DX, xent_dx, "rrrw", ITEM, .invocations = dti_quarter_invocations,
           .grid_halves = dti_xent_grid_halves, .tile = dti_xent_tile, .rounds = dti_rounds_few,
           .in_step = dti_xent_dx_in_step);

DTI_FAMILY_BY(cross_entropy, xent, .halves = 1, .shape = dti_cross_entropy_shape,
              .grad = dti_cross_entropy_grad_rule, .labels = dti_targets_labels,
              .weight = dti_cross_entropy_weight_of, .part = dti_cross_entropy_parted);

DTI_FAMILY_BY(nll, xent, .halves = 1, .shape = dti_cross_entropy_shape, .grad = dti_nll_grad,
              .labels = dti_targets_labels, .weight = dti_cross_entropy_weight_of);

DTI_FAMILY_BY(cross_entropy_weight, xent, .shape = dti_term_shape);

DTI_FAMILY(cross_entropy_grad, .halves = DTI_HALF_OUT | 1, .shape = dti_cross_entropy_grad_shape,
           .lower = dti_cross_entropy_grad_lower, .labels = dti_targets_labels);

DTI_FAMILY_BY(accuracy, xent, .halves = 1, .shape = dti_accuracy_shape,
              .labels = dti_targets_labels, .part = dti_accuracy_parted);
