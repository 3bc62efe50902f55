/* Appending nodes: the checks that every op has in common, then the row's own shape rule. */

static bool dti_build_fail(dti_build *b, const char *format, ...) {
    char text[256], shapes[256];
    size_t at = 0;
    shapes[0] = 0;
    for (uint32_t i = 0; i < b->count && i < 4; i++) {
        const dti_node *n = dti_node_of(b->inputs[i]);
        int size = snprintf(shapes + at, sizeof shapes - at, "%s%s%s%s", i ? ", " : "",
                            n->label ? n->label : "", n->label ? " " : "",
                            dti_shape_print(n->shape, n->samples).text);
        if (size > 0 && at + (size_t)size < sizeof shapes)
            at += (size_t)size;
    }
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return dti_graph_refuse(b->graph, "%s(%s): %s", dti_op_info_of(b->out.op)->name, shapes, text);
}

static bool dti_build_inputs_fit(dti_build *b, const dti_op_info *info) {
    if (b->count < info->inputs_min || (b->count > info->inputs_min && !info->inputs_more)) {
        b->count = 0;
        return dti_build_fail(b, "takes %s%d inputs", info->inputs_more ? "at least " : "",
                              info->inputs_min);
    }
    if (b->count > DTI_INPUTS_MAX && !info->family->many) {
        b->count = 0;
        return dti_build_fail(b, "takes at most %d inputs", DTI_INPUTS_MAX);
    }
    for (uint32_t i = 0; i < b->count; i++) {
        dt_tensor x = b->inputs[i];
        if (x.graph != b->graph)
            return dti_graph_refuse(
                b->graph, "%s: input %u is a tensor of another graph, %s; build both on one graph",
                info->name, i + 1, dti_tensor_elsewhere(b->graph, x).text);
        const dti_node *n = dti_node_of(x);
        if (n->term && !info->family->takes_terms) {
            return dti_build_fail(b,
                                  "input %u is a loss term (sum, weight); list it in "
                                  "dt_program_desc.losses, with a coefficient",
                                  i + 1);
        }
        b->out.samples = b->out.samples || n->samples;
    }
    return true;
}

static dt_tensor dti_append_in(dt_graph *graph, const dti_op_info *info, dti_op op,
                               const dt_tensor *in, uint32_t count, const dti_attr *attr) {
    for (uint32_t i = 0; i < count; i++) {
        if (!dti_is_nil(in[i]))
            continue;
        if (graph && !graph->error[0])
            dti_graph_fail(graph, "%s: input %u is nil", info->name, i + 1);
        return dti_nil(graph);
    }
    if (!graph || graph->error[0])
        return dti_nil(graph);
    dti_build b = {.graph = graph, .inputs = in, .count = count};
    b.out.op = (uint16_t)op;
    b.out.dtype = DT_F32;
    if (attr)
        b.out.attr = *attr;
    if (!dti_build_inputs_fit(&b, info))
        return dti_nil(graph);
    for (uint32_t i = 0; i < count && i < 2; i++)
        b.in[i] = dti_node_of(in[i]);
    if (!info->family->shape(&b))
        return dti_nil(graph);
    if (graph->autocast && info->samples == DTI_SAMPLES_REDUCES && !b.out.term)
        b.out.dtype = DT_F32; /* sums over samples: parameters' gradients */
    if (!dti_shape_valid(b.out.shape)) {
        dti_build_fail(&b,
                       "the result %s is not a valid shape: at most %d dimensions, none negative, "
                       "below 2^31 elements",
                       dti_shape_print(b.out.shape, b.out.samples).text, DT_MAX_DIMS);
        return dti_nil(graph);
    }
    return dti_graph_push(graph, &b.out, in, count);
}

/* The entrance of all ops: one that is refused is nil, and the owner hears of it. */
static dt_tensor dti_append(dt_graph *graph, dti_op op, const dt_tensor *in, uint32_t count,
                            const dti_attr *attr) {
    const dti_op_info *info = dti_op_info_of(op);
    dti_visit visit;
    for (uint32_t i = count; i-- > 0 && !graph;)
        graph = in[i].graph;
    if (!graph || !dti_enter(graph, &visit, DTI_OF(dt_graph), info->name))
        return dti_nil(graph);
    for (uint32_t i = count; i-- > 0;) /* a nil may have no graph, or another one: later inputs
                                        * report that */
        graph = !dti_is_nil(in[i]) ? in[i].graph : graph;
    dt_tensor *room = graph->autocast ? dti_alloc_array(graph->base, count, sizeof *room) : NULL;
    if (room)
        in = dti_autocast_inputs(info, in, count, room);
    const dt_tensor y =
        graph->autocast && count && !room
            ? dti_graph_no_memory(graph, "out of host memory for node %u", graph->count)
            : dti_append_in(graph, info, op, in, count, attr);
    dti_free(graph->base, room);
    dti_leave(&visit, DT_OK);
    return y;
}

static dt_tensor dti_compose(const char *name, dti_make_fn *make, uint32_t needed, dti_inputs in,
                             dti_attr attr) {
    dti_call call = {.name = name, .attr = attr, .make = make};
    dt_graph *g = NULL;
    for (uint32_t i = 0; i < DTI_CALL_INPUTS && !g; i++)
        g = in.x[i].graph;
    for (uint32_t i = 0; i < DTI_CALL_INPUTS; i++) {
        const dt_tensor x = in.x[i];
        if ((i < needed || x.graph) && dti_is_nil(x))
            return g ? dti_graph_fail(g, "%s: input %u is nil", name, i + 1) : x;
        if (x.graph && x.graph != g)
            return dti_graph_fail(
                g, "%s: input %u is a tensor of another graph, %s; build both on one graph", name,
                i + 1, dti_tensor_elsewhere(g, x).text);
        call.in[i] = x.id;
    }
    return g->error[0] ? dti_nil(g) : dti_call_make(g, &call);
}

static bool dti_build_f32(dti_build *b) {
    for (uint32_t i = 0; i < b->count; i++) {
        if (dti_node_of(b->inputs[i])->dtype != DT_F32) {
            return dti_build_fail(b, "input %u is %s; it must be f32: dt_cast it", i + 1,
                                  dti_dtype_name(dti_node_of(b->inputs[i])->dtype));
        }
    }
    return true;
}

/* Inputs are floats of one type, which is the result's. If the row's launches do not take all of
 * them in 16 bits, the others are f32. */
static bool dti_build_real(dti_build *b) {
    const uint16_t halves = dti_op_info_of(b->out.op)->family->halves;
    const dt_dtype first = b->count ? dti_node_of(b->inputs[0])->dtype : DT_F32;
    for (uint32_t i = 0; i < b->count; i++) {
        const dt_dtype dtype = dti_node_of(b->inputs[i])->dtype;
        const bool float32 = halves && i < DTI_INPUTS_MAX && !(halves >> i & 1);
        if (float32 && dtype == DT_F32)
            continue;
        if (dti_is_whole(dtype) || float32)
            return dti_build_fail(b, "input %u is %s; it must be f32: dt_cast it", i + 1,
                                  dti_dtype_name(dtype));
        if (dtype != first)
            return dti_build_fail(b, "input 1 is %s and input %u is %s: dt_cast one of them",
                                  dti_dtype_name(first), i + 1, dti_dtype_name(dtype));
    }
    b->out.dtype = (uint8_t)first;
    return true;
}

/* For a product: its operands have one type, and a bias may be f32. */
static bool dti_build_product(dti_build *b) {
    const uint32_t count = b->count;
    if (count > 2 && dti_node_of(b->inputs[2])->dtype == DT_F32)
        b->count = 2;
    const bool real = dti_build_real(b);
    b->count = count;
    return real;
}

/* For a family with .low: those inputs are floats of one type, which is the result's; others are
 * f32. */
static bool dti_build_low(dti_build *b) {
    const uint32_t low = dti_op_info_of(b->out.op)->family->low;
    const dt_dtype first = dti_node_of(b->inputs[0])->dtype;
    for (uint32_t i = 0; i < b->count; i++) {
        const dt_dtype dtype = dti_node_of(b->inputs[i])->dtype;
        const bool one = low >> i & 1;
        if (dti_is_whole(dtype) || (!one && dtype != DT_F32))
            return dti_build_fail(b, "input %u is %s; it must be f32: dt_cast it", i + 1,
                                  dti_dtype_name(dtype));
        if (one && dtype != first)
            return dti_build_fail(b, "input 1 is %s and input %u is %s: dt_cast one of them",
                                  dti_dtype_name(first), i + 1, dti_dtype_name(dtype));
    }
    b->out.dtype = (uint8_t)first;
    return true;
}

/* The result has the first input's shape. */
static bool dti_shape_same(dti_build *b) {
    if (!dti_build_real(b))
        return false;
    b->out.shape = b->in[0]->shape;
    return true;
}

/* NumPy's broadcasting; false when the shapes do not fit. */
static bool dti_shape_broadcast(dt_shape a, dt_shape b, dt_shape *out) {
    out->rank = a.rank > b.rank ? a.rank : b.rank;
    for (int i = 1; i <= out->rank; i++) {
        int64_t x = i <= a.rank ? a.dim[a.rank - i] : 1;
        int64_t y = i <= b.rank ? b.dim[b.rank - i] : 1;
        if (x != y && x != 1 && y != 1)
            return false;
        out->dim[out->rank - i] = x == 1 ? y : x;
    }
    return true;
}

/* Each element of y meets one weight of its output, forward and in both gradients. */
static double dti_macs_of(const dt_shape *y, const dt_shape *w) {
    return (double)dti_shape_elements(*y) * (double)dti_shape_elements(*w) /
           (double)DTI_MAX(w->dim[0], 1);
}

static double dti_weighted_macs(const dt_graph *g, const dti_node *n) {
    return dti_macs_of(&n->shape, &g->nodes[dti_input_id(g, n, 1)].shape);
}

static double dti_weighted_dx_macs(const dt_graph *g, const dti_node *n) {
    return dti_macs_of(&g->nodes[dti_input_id(g, n, 0)].shape,
                       &g->nodes[dti_input_id(g, n, 1)].shape);
}

static double dti_weighted_dw_macs(const dt_graph *g, const dti_node *n) {
    return dti_macs_of(&g->nodes[dti_input_id(g, n, 0)].shape, &n->shape);
}

/* Of a loss or metric: a pair (sum, weight). */
static bool dti_term_shape(dti_build *b) {
    b->out.shape = (dt_shape){.rank = 1, .dim = {2}};
    b->out.samples = false;
    b->out.term = true;
    return true;
}

static bool dti_shape_of_input(dti_build *b) {
    b->out.shape = b->in[0]->shape;
    b->out.dtype = b->in[0]->dtype;
    return true;
}

static void dti_grad_of_result(dti_grad *g) {
    g->dx[0] = g->dy;
}
