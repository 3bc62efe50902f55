/* Elementwise functions of two tensors with broadcasting. Gradients are rows of the same kind,
 * summed over the repeated axes. At ties maximum and minimum give each side half (PyTorch). */

static bool dti_binary_shape(dti_build *b) {
    if (!dti_build_real(b))
        return false;
    if (!dti_shape_broadcast(b->in[0]->shape, b->in[1]->shape, &b->out.shape)) {
        return dti_build_fail(
            b, "the shapes do not broadcast: sizes must be equal or 1, from the right");
    }
    return true;
}

/* dy where a wins over b, half of it at ties. */
static dt_tensor dti_winner(dt_tensor dy, dt_tensor wins, dt_tensor a, dt_tensor b) {
    return dt_mul(dy, dt_add(wins, dt_affine(dt_eq(a, b), 0.5f, 0.0f)));
}

/* 1 where x is 0. */
static dt_tensor dti_is_zero(dt_tensor x) {
    return dt_eq(x, dt_cast(dt_fill(x.graph, (dt_shape){0}, 0.0f), dti_tensor_dtype(x)));
}

/* Whether b is known not to be 0, as most exponents are: nothing is to be guarded. */
static bool dti_pow_plain(dt_tensor b) {
    const dti_node *n = dti_node_of(b);
    return n->op == DTI_OP_FILL && n->attr.f[0] != 0.0f;
}

/* For b = 0 it is 0, even if a is 0: 0 * a^-1 would be NaN there. So a^0 is multiplied instead, and
 * a second derivative meets no infinity either. */
static dt_tensor dti_pow_da(dti_grad *g) {
    dt_tensor a = g->in[0], b = g->in[1], less = dt_affine(b, 1.0f, -1.0f);
    if (!dti_pow_plain(b)) {
        less = dt_add(less, dti_is_zero(b));
        b = dt_mask(b, b); /* has no slope where it is 0 */
    }
    return dt_mul(g->dy, dt_mul(b, dt_pow(a, less)));
}

/* Where a is 0 and b is not negative the gradient is 0, not 0 * log 0. The logarithm is taken of
 * 1. */
static dt_tensor dti_pow_db(dti_grad *g) {
    dt_tensor a = g->in[0], b = g->in[1], none = dti_is_zero(a);
    none =
        dt_mul(none, dt_ge(b, dt_cast(dt_fill(b.graph, (dt_shape){0}, 0.0f), dti_tensor_dtype(b))));
    return dt_mul(g->dy, dt_mul(g->y, dt_log(dt_add(a, none))));
}

static dt_tensor dti_binary_da(dti_grad *g, uint32_t selector) {
    dt_tensor a = g->in[0], b = g->in[1], dy = g->dy;
    switch (selector) {
    case DTI_B_ADD:
    case DTI_B_SUB: return dy;
    case DTI_B_MUL: return dt_mul(dy, b);
    case DTI_B_DIV: return dt_div(dy, b);
    case DTI_B_MAXIMUM: return dti_winner(dy, dt_gt(a, b), a, b);
    case DTI_B_MINIMUM: return dti_winner(dy, dt_lt(a, b), a, b);
    case DTI_B_POW: return dti_pow_da(g);
    case DTI_B_MASK: return dt_mask(dy, b);
    case DTI_B_MASK_INV: return dt_mask_inv(dy, b);
    default: return (dt_tensor){0};
    }
}

static dt_tensor dti_binary_db(dti_grad *g, uint32_t selector) {
    dt_tensor a = g->in[0], b = g->in[1], dy = g->dy;
    switch (selector) {
    case DTI_B_ADD: return dy;
    case DTI_B_SUB: return dt_neg(dy);
    case DTI_B_MUL: return dt_mul(dy, a);
    case DTI_B_DIV: return dt_neg(dt_div(dt_mul(dy, g->y), b));
    case DTI_B_MAXIMUM: return dti_winner(dy, dt_gt(b, a), a, b);
    case DTI_B_MINIMUM: return dti_winner(dy, dt_lt(b, a), a, b);
    case DTI_B_POW: return dti_pow_db(g);
    default: return (dt_tensor){0};
    }
}

/* Comparisons. */
static bool dti_binary_flat(const dti_node *n) {
    const uint32_t selector = dti_op_info_of(n->op)->selector;
    return selector >= DTI_B_EQ && selector <= DTI_B_GE;
}

static void dti_binary_grad(dti_grad *g) {
    uint32_t selector = dti_op_info_of(g->node.op)->selector;
    if (g->wanted[0])
        g->dx[0] = dti_sum_to(dti_binary_da(g, selector), g->in[0]);
    if (g->wanted[1] && selector < DTI_B_EQ) /* keep and drop only look at b */
        g->dx[1] = dti_sum_to(dti_binary_db(g, selector), g->in[1]);
}

static void dti_emit_add(dti_emit *e, const dti_view *a, const dti_view *b, const dti_view *y) {
    dti_emit_map2_views(e, DTI_K_MAP2, DTI_B_ADD, a, b, y, (const float[2]){0.0f, 0.0f});
}

/* Whether input i of a sum may be a product's addend. Its value is known from the step's start,
 * or a launch writes it. (A sync point's value lies in IN too, but comes between two segments.) */
static bool dti_sum_is_addend(const dti_emit *e, uint32_t i) {
    const uint32_t id = dti_input_id(e->graph, e->node, i);
    const dti_view *v = &e->views[id];
    return v->dtype == DT_F32 && !memcmp(v->dim, e->out.dim, sizeof v->dim) &&
           (e->list->values[v->value].kind == DTI_VALUE_TRANSIENT ||
            e->graph->nodes[id].op == DTI_OP_INPUT);
}

/* The sum of a product and another operand of its shape, on either side, is the product's epilogue.
 * Only on a device that runs workgroups. The CPU would save no memory traffic, as it goes over the
 * rows again. */
static bool dti_sum_fuse(dti_emit *e) {
    for (uint32_t i = 0; i < 2 && e->workgroups; i++) {
        const dti_view x = dti_emit_in(e, i), other = dti_emit_in(e, 1 - i);
        if (dti_sum_is_addend(e, 1 - i) && x.dtype == DT_F32 &&
            !memcmp(x.dim, e->out.dim, sizeof x.dim) &&
            dti_emit_fuse(e, i, DTI_EPILOGUE_ADD, &other))
            return true;
    }
    return false;
}

static void dti_binary_emit(dti_emit *e) {
    if (e->node->op == DTI_OP_ADD && dti_sum_fuse(e))
        return;
    dti_emit_map2(e, DTI_K_MAP2, dti_op_info_of(e->node->op)->selector);
}

#define DTI_X(ID, name)                                                                            \
    DT_API dt_tensor dt_##name(dt_tensor a, dt_tensor b) {                                         \
        return dti_append2(DTI_OP_##ID, a, b, NULL);                                               \
    }
DTI_BINARY_LIST(DTI_X)
#undef DTI_X

/* ---- CPU */

static void dti_map2_flat(const dti_cpu_task *task, const dti_run *r) {
    task->k->binary[task->launch->spec[0]](r->y, r->a, r->a_step, r->b, r->b_step, r->n);
    if (task->launch->spec[1] == DTI_EPILOGUE_RELU)
        task->k->unary[DTI_U_RELU](r->y, r->y, r->n, 0.0f, 0.0f);
}

static void dti_cpu_map2(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    dti_map_launch(task, dti_map2_flat, 2, true, false, begin, end);
}

static int64_t dti_cpu_grain_map2(const dti_cpu_task *task) {
    return task->launch->spec[0] == DTI_B_POW ? 2048 : 16384;
}

/* ---- Rows of the tables */

static bool dti_map2_takes(const dti_launch *l, uint32_t epilogue, const dti_view *mask) {
    return epilogue == DTI_EPILOGUE_RELU;
}

/* spec0: DTI_B_*; spec1 */
DTI_KERNEL(MAP2, map2, "rrw", ITEM, .walks = true, .run = dti_cpu_map2, .halves = true,
           .grid_halves = dti_launch_any_half, .grain_of = dti_cpu_grain_map2,
           .in_step = dti_map_in_step, .takes = dti_map2_takes, .tile = dti_map_tile,
           .invocations = dti_fours_invocations);

DTI_FAMILY(binary, .halves = DTI_HALF_ALL, .shape = dti_binary_shape, .grad = dti_binary_grad,
           .flat = dti_binary_flat, .part = dti_parted_broadcast);
