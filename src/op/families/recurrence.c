/* Recurrent nets, one row for each layer and direction. One product has the input's part of all
 * steps, and the row walks over the steps of each sample. Its gradient is that of the gates' sums
 * of all steps, and of the state before. The gradient of the weights is a product over all steps
 * again. Formulas, with PyTorch's order of gates: LSTM  i f g o; c = f c + i g, h = o tanh(c), h =
 * W_hr h where it is projected GRU   r z n;   n = tanh(x_n + r (W_hn h + b_hn)), h = (1 - z) n + z
 * h RNN   h = tanh(x + W h), or relu A sample of fewer steps keeps its state after them, and h is 0
 * there. There is no second derivative. attr.i: op/attributes.h. */

#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(RECURRENT)

#define DTI_RECURRENCE_LOW 11u /* inputs that are of one type: all but the state */

static int64_t dti_recurrence_kept(const dti_recurrence *a) {
    return a->units + (a->flags & DTI_RECURRENCE_PROJECTED ? a->hidden : 0) + a->size;
}
/* Elements of all results. */
static int64_t dti_recurrence_all(const dti_recurrence *a) {
    return a->steps * (a->size + dti_recurrence_kept(a)) + a->size + a->cell;
}
/* Of the gradient's. */
static int64_t dti_recurrence_grad_all(const dti_recurrence *a) {
    return a->steps * (a->slopes + (a->flags & DTI_RECURRENCE_PROJECTED ? a->size : 0)) +
           (a->flags & DTI_RECURRENCE_STATE ? a->state : 0);
}

/* All sizes except the steps. */
static dti_recurrence dti_recurrence_sizes(const dti_attr *attr, dt_shape w) {
    static const int8_t units[] = {5, 4, 0, 0};
    dti_recurrence a = {.kind = (uint32_t)attr->i[DTI_RECURRENCE_KIND],
                        .flags = (uint32_t)attr->i[DTI_RECURRENCE_FLAGS]};
    a.gates = dti_recurrence_gates[a.kind];
    a.hidden = w.dim[0] / a.gates;
    a.size = w.dim[1];
    a.cell = a.kind == DTI_RECURRENCE_LSTM ? a.hidden : 0;
    a.units = units[a.kind] * a.hidden;
    a.state = a.size + a.cell + (a.flags & DTI_RECURRENCE_LENGTHS ? 1 : 0);
    a.slopes = a.hidden * (a.kind == DTI_RECURRENCE_GRU ? 4 : a.gates);
    return a;
}

static dti_recurrence dti_recurrence_of(const dt_graph *g, const dti_node *n) {
    dti_recurrence a = dti_recurrence_sizes(&n->attr, g->nodes[dti_input_id(g, n, 1)].shape);
    const dt_shape first = g->nodes[dti_input_id(g, n, 0)].shape;
    a.steps = first.dim[0];
    if (n->op == DTI_OP_RECURRENCE_GRAD)
        a.steps = (a.steps - a.size - a.cell) / (a.size + dti_recurrence_kept(&a));
    return a;
}

/* ---- Shapes */

static bool dti_recurrence_weights_fit(dti_build *b, const dti_recurrence *a) {
    const bool projected = (a->flags & DTI_RECURRENCE_PROJECTED) != 0;
    const dt_shape w = b->in[1]->shape;
    if (w.dim[0] != a->hidden * a->gates || a->hidden < 1 || a->size < 1)
        return dti_build_fail(b, "the recurrent weight has %lld rows, not a multiple of %lld gates",
                              (long long)w.dim[0], (long long)a->gates);
    if (!projected && a->size != a->hidden)
        return dti_build_fail(
            b, "the recurrent weight has %lld units; the size of its state, %lld, must be the same",
            (long long)a->hidden, (long long)a->size);
    if (projected && a->size > a->hidden)
        return dti_build_fail(b, "a projection of %lld units must have at most that size, not %lld",
                              (long long)a->hidden, (long long)a->size);
    const uint32_t more = projected || a->kind == DTI_RECURRENCE_GRU;
    if (b->count != 3 + more)
        return dti_build_fail(b, "takes %u inputs", 3 + more);
    const dt_shape want =
        projected ? (dt_shape){2, {a->size, a->hidden}} : (dt_shape){1, {a->hidden}};
    if (more && (!dti_shape_equal(dti_node_of(b->inputs[3])->shape, want) ||
                 dti_node_of(b->inputs[3])->samples))
        return dti_build_fail(b, "input 4 must be %s, without samples",
                              dti_shape_print(want, false).text);
    return true;
}

static bool dti_recurrence_weight_is(dti_build *b) {
    if (b->in[1]->shape.rank == 2 && !b->in[1]->samples)
        return true;
    return dti_build_fail(b, "the recurrent weight must be [gates * units, size of the state], "
                             "without samples");
}

static bool dti_recurrence_shape(dti_build *b) {
    const dt_shape x = b->in[0]->shape, state = dti_node_of(b->inputs[2])->shape;
    if (!dti_build_low(b) || !dti_recurrence_weight_is(b))
        return false;
    dti_recurrence a = dti_recurrence_sizes(&b->out.attr, b->in[1]->shape);
    if (!dti_recurrence_weights_fit(b, &a))
        return false;
    if (x.rank != 2 || x.dim[0] < 1 || x.dim[1] != b->in[1]->shape.dim[0])
        return dti_build_fail(b, "x must be [steps, %lld], of one step or more",
                              (long long)b->in[1]->shape.dim[0]);
    if (state.rank != 1 || state.dim[0] != a.state)
        return dti_build_fail(b, "the state must be [%lld]", (long long)a.state);
    a.steps = x.dim[0];
    b->out.shape = (dt_shape){1, {dti_recurrence_all(&a)}};
    return true;
}

/* All outputs except the saved values, which follow them and are read only by the gradient. */
static void dti_recurrence_outputs(const dt_graph *g, const dti_node *n, dti_outputs *out) {
    const dti_recurrence a = dti_recurrence_of(g, n);
    *out = (dti_outputs){2, {{2, {a.steps, a.size}}, {1, {a.size}}}};
    if (a.cell)
        out->shape[out->count++] = (dt_shape){1, {a.cell}};
}

static bool dti_recurrence_grad_shape(dti_build *b) {
    const dti_recurrence s = dti_recurrence_sizes(&b->out.attr, b->in[1]->shape);
    dti_recurrence a = s;
    if (!dti_build_low(b) || !dti_recurrence_weights_fit(b, &s))
        return false;
    a.steps = (b->in[0]->shape.dim[0] - a.size - a.cell) / (a.size + dti_recurrence_kept(&a));
    b->out.shape = (dt_shape){1, {dti_recurrence_grad_all(&a)}};
    return true;
}

static double dti_recurrence_macs(const dt_graph *g, const dti_node *n) {
    const dti_recurrence a = dti_recurrence_of(g, n);
    const double projection = a.flags & DTI_RECURRENCE_PROJECTED ? (double)a.hidden : 0;
    return (double)a.steps * (double)a.size * ((double)(a.gates * a.hidden) + projection);
}

/* ---- Gradient */

/* Elements [at, at + rows * cols) of a line, as rows. */
static dt_tensor dti_recurrence_rows(dt_tensor line, int64_t at, int64_t rows, int64_t cols) {
    return dt_reshape(dt_slice(line, 0, at, rows * cols), (dt_shape){2, {rows, cols}});
}

/* The gradients of the results, and of the state before, on one line. */
static dt_tensor dti_recurrence_flow(dti_grad *g, const dti_recurrence *a, uint32_t *flags) {
    const int64_t n = a->steps * a->size;
    dt_tensor part[4] = {g->dys[DTI_RECURRENCE_Y]};
    int count = 1;
    part[0] = dti_is_nil(part[0]) ? dt_fill(g->graph, (dt_shape){1, {n}}, 0.0f)
                                  : dt_reshape(part[0], (dt_shape){1, {n}});
    for (int k = DTI_RECURRENCE_LAST_H; k <= (a->cell ? 2 : 1); k++) {
        if (dti_is_nil(g->dys[k]))
            continue;
        *flags |= k == DTI_RECURRENCE_LAST_H ? DTI_RECURRENCE_DH : DTI_RECURRENCE_DC;
        part[count++] = g->dys[k];
    }
    part[count++] = g->in[2];
    return dt_concat(part, count, 0);
}

/* slopes: of the gates' sums, as the product with the state gave them. */
static void dti_recurrence_weights(dti_grad *g, const dti_recurrence *a, dt_tensor slopes,
                                   dt_tensor kept) {
    const int64_t before = dti_recurrence_kept(a) - a->size, h = a->hidden;
    dt_tensor state = dt_slice(kept, 1, before, a->size), part[2];
    if (a->kind != DTI_RECURRENCE_GRU) {
        g->dx[1] = dti_append2(DTI_OP_LINEAR_DW, slopes, state, NULL);
        return;
    }
    part[0] = dti_append2(DTI_OP_LINEAR_DW, dt_slice(slopes, 1, 0, 2 * h), state, NULL);
    part[1] = dti_append2(DTI_OP_LINEAR_DW, dt_slice(slopes, 1, 3 * h, h), state, NULL);
    g->dx[1] = dt_concat(part, 2, 0);
}

static void dti_recurrence_grad_rule(dti_grad *g) {
    dti_recurrence a = dti_recurrence_of(g->graph, &g->node);
    const bool projected = (a.flags & DTI_RECURRENCE_PROJECTED) != 0;
    const int64_t kept_at = a.steps * a.size + a.size + a.cell, t = a.steps;
    a.flags |= g->wanted[2] ? DTI_RECURRENCE_STATE : 0;
    dt_tensor in[4] = {g->y, g->in[1], dti_recurrence_flow(g, &a, &a.flags), g->in[3]};
    dti_attr attr = g->node.attr;
    attr.i[DTI_RECURRENCE_FLAGS] = (int32_t)a.flags;
    dt_tensor all = dti_append(g->graph, DTI_OP_RECURRENCE_GRAD, in, g->node.count, &attr);
    if (dti_is_nil(all))
        return;
    dt_tensor slopes = dti_recurrence_rows(all, 0, t, a.slopes);
    dt_tensor kept = dti_recurrence_rows(g->y, kept_at, t, dti_recurrence_kept(&a));
    if (g->wanted[0])
        g->dx[0] = dti_sum_to(dt_slice(slopes, 1, 0, a.gates * a.hidden), g->in[0]);
    if (g->wanted[1])
        dti_recurrence_weights(g, &a, slopes, kept);
    if (g->wanted[2])
        g->dx[2] = dt_cast(
            dti_sum_to(dt_slice(all, 0, dti_recurrence_grad_all(&a) - a.state, a.state), g->in[2]),
            DT_F32);
    if (g->wanted[3] && projected) {
        dt_tensor dh = dti_recurrence_rows(all, t * a.slopes, t, a.size);
        dt_tensor unit = dt_slice(kept, 1, a.units, a.hidden);
        g->dx[3] = dti_append2(DTI_OP_LINEAR_DW, dh, unit, NULL);
    } else if (g->wanted[3])
        g->dx[3] = dti_sum_to(dt_slice(slopes, 1, 3 * a.hidden, a.hidden), g->in[3]);
}

static void dti_recurrence_grad_twice(dti_grad *g) {
    dti_graph_fail(g->graph, "recurrence_grad: there are no second derivatives of LSTM, GRU and "
                             "RNN; dt_detach the gradient, or build the cells from single ops");
}

/* ---- Launches */

/* Weights as the kernel reads them, followed by those of input 3; turned: columns as rows. */
static uint32_t dti_recurrence_weights_emit(dti_emit *e, dti_args_recurrence *a, bool turned) {
    dti_view v[2] = {dti_emit_in(e, 1)};
    const uint32_t count = e->node->count > 3 ? 2 : 1;
    if (count > 1)
        v[1] = dti_emit_in(e, 3);
    for (uint32_t i = 0; i < count && turned; i++) {
        const dti_view was = v[i];
        if (was.dim[4] == 1 && i)
            continue; /* the bias */
        v[i].dim[4] = was.dim[5], v[i].dim[5] = was.dim[4];
        v[i].stride[4] = was.stride[5], v[i].stride[5] = was.stride[4];
    }
    /* rows a power of two apart would share a few sets of a CPU's caches */
    a->w_row = (uint32_t)(v[0].dim[5] + (e->workgroups ? 0 : 16));
    a->e_offset = (uint32_t)v[0].dim[4] * a->w_row;
    const uint64_t more = count > 1 ? (uint64_t)dti_view_elements(&v[1]) : 0;
    const uint32_t value = dti_emit_scratch(e, (dt_dtype)v[0].dtype, a->e_offset + more);
    for (uint32_t i = 0; i < count; i++) {
        dti_view to = v[i];
        to.value = value;
        to.offset = i ? a->e_offset : 0;
        to.stride[5] = to.dim[5] == 1 ? 0 : 1;
        to.stride[4] = to.dim[4] == 1 ? 0 : i ? to.dim[5] : (int64_t)a->w_row;
        dti_emit_copy(e, &v[i], &to, DTI_COPY_WORD);
    }
    return value;
}

static void dti_recurrence_emit(dti_emit *e) {
    const bool forward = e->node->op == DTI_OP_RECURRENCE;
    const dti_recurrence s = dti_recurrence_of(e->graph, e->node);
    dti_view x = dti_emit_dense_in(e, 0), state = dti_emit_dense_in(e, 2);
    dti_args_recurrence a = {.samples = (uint32_t)e->out.dim[0],
                             .steps = (uint32_t)s.steps,
                             .hidden = (uint32_t)s.hidden,
                             .size = (uint32_t)s.size,
                             .flags = s.flags,
                             .x_offset = (uint32_t)x.offset,
                             .x_sample = (uint32_t)x.stride[0],
                             .s_offset = (uint32_t)state.offset,
                             .s_sample = (uint32_t)state.stride[0],
                             .y_offset = (uint32_t)e->out.offset,
                             .y_sample = (uint32_t)e->out.stride[0]};
    const uint32_t weights = dti_recurrence_weights_emit(e, &a, forward);
    a.block = DTI_MAX(1, DTI_MIN(DTI_RECURRENCE_SAMPLES, a.samples / 128));
    const uint64_t groups = dti_ceil_div(a.samples, a.block);
    e->list->flops += (uint64_t)(2 * dti_recurrence_macs(e->graph, e->node)) * a.samples;
    DTI_EMIT(e, forward ? DTI_K_RECURRENCE : DTI_K_RECURRENCE_GRAD, groups, a, x.value, weights,
             state.value, e->out.value)
        ->spec[0] = s.kind;
}

#include "recurrence_cpu.c" /* its functions are used in the rows below */

/* ---- A row for callers */

static bool dti_recurrence_append(const dt_tensor *in, uint32_t count, uint32_t kind,
                                  uint32_t flags, dt_tensor out[3]) {
    const dti_attr attr = {.i = {(int32_t)kind, (int32_t)flags}};
    dt_tensor packed, made[DTI_OUTPUTS_MAX];
    if (!dti_append_outputs(in[0].graph, DTI_OP_RECURRENCE, in, count, &attr, &packed, made))
        return false;
    for (int i = 0; i < 3; i++)
        out[i] = i < 2 || kind == DTI_RECURRENCE_LSTM ? made[i] : (dt_tensor){0};
    return true;
}

/* ---- Rows of the tables */

/* Steps of an invocation: of each step the products of its units. */
static dti_effort dti_recurrence_effort(const dti_launch *l, uint32_t variant, uint32_t local) {
    const dti_args_recurrence *a = &l->args.recurrence;
    const uint64_t columns = (uint64_t)dti_recurrence_gates[l->spec[0]] * a->hidden, size = a->size;
    const uint64_t blocks = dti_ceil_div(columns, local) * size;
    return (dti_effort){a->steps * blocks, l->items * a->steps * columns * size * a->block};
}

/* The number of blocks for units, elements of the state and gates' slopes; a loop ends in a round
 * of its own. */
static uint64_t dti_recurrence_rounds(const dti_launch *l, uint32_t local) {
    const dti_args_recurrence *a = &l->args.recurrence;
    const uint64_t u = dti_ceil_div(a->hidden, local), c = dti_ceil_div(a->size, local);
    const bool projected = (a->flags & DTI_RECURRENCE_PROJECTED) != 0;
    uint64_t step = 3 + u * (10 * c + a->size / 4 + 8 * a->block + 4);
    step += projected ? c * (7 * u + a->hidden + a->block + 4) + 1 : 0;
    return a->steps * step + (c + u + 3) * a->block + 16;
}

static uint64_t dti_recurrence_grad_rounds(const dti_launch *l, uint32_t local) {
    const dti_args_recurrence *a = &l->args.recurrence;
    const uint64_t u = dti_ceil_div(a->hidden, local), c = dti_ceil_div(a->size, local);
    const uint64_t columns = (uint64_t)dti_recurrence_gates[l->spec[0]] * a->hidden;
    const uint64_t blocks = dti_ceil_div(columns, local);
    const bool projected = (a->flags & DTI_RECURRENCE_PROJECTED) != 0;
    uint64_t step = 3 + u * (7 * a->block + 3);
    step += c * (16 * blocks + columns / 8 + a->block + 4);
    step += projected ? c * (a->block + 2) + u * (7 * c + a->size + 7 * a->block + 4) : 0;
    return a->steps * step + a->block + 16;
}

/* (x, weights, state, results) */
DTI_KERNEL(RECURRENCE, recurrence, "rrrw", GROUP, .run = dti_cpu_recurrence,
           .outer = dti_cpu_items_recurrence, .scratch_bytes = dti_cpu_scratch_recurrence,
           .local = {128}, .rounds = dti_recurrence_rounds, .effort = dti_recurrence_effort,
           .halves = true);

/* (results, weights, incoming gradients and the state, gradients) */
DTI_KERNEL(RECURRENCE_GRAD, recurrence_grad, "rrrw", GROUP, .run = dti_cpu_recurrence_grad,
           .outer = dti_cpu_items_recurrence, .scratch_bytes = dti_cpu_scratch_recurrence,
           .local = {128}, .rounds = dti_recurrence_grad_rounds, .effort = dti_recurrence_effort,
           .halves = true);

DTI_FAMILY(recurrence, .low = DTI_RECURRENCE_LOW, .shape = dti_recurrence_shape,
           .outputs = dti_recurrence_outputs, .grad = dti_recurrence_grad_rule,
           .macs = dti_recurrence_macs);

DTI_FAMILY_BY(recurrence_grad, recurrence, .low = DTI_RECURRENCE_LOW,
              .shape = dti_recurrence_grad_shape, .grad = dti_recurrence_grad_twice,
              .macs = dti_recurrence_macs);

#undef DTI_OPTIONAL
#define DTI_OPTIONAL(X) X(ALWAYS)
