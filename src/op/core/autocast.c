/* Mixed precision (PyTorch's autocast). While a graph's .autocast is set, each row that is appended
 * gets its inputs in the types of its precision. LOW rows work in 16 bits, and F32 rows in f32.
 * WIDEST rows work in 16 bits if all their operands are in 16 bits. So gradient rows follow the
 * same table as those of the application. A row whose launches do not take 16 bits works in f32.
 * Parameters stay f32, and so do the sums that are their gradients. */

#define DTI_AUTOCAST_OPERANDS 2 /* of LOW rows: a bias is read as it is */
#define DTI_AUTOCAST_PARTS 4    /* a cast of a slice is a slice of the whole's cast */

/* Whether a cast goes before a view: views of one value need one cast, which has its layout. Of a
 * slice, if the value has few others. */
static bool dti_autocast_lifts(const dt_graph *g, const dti_node *n) {
    const dti_op_info *info = dti_op_info_of(n->op);
    if (info->family != dti_op_info_of(DTI_OP_RESHAPE)->family)
        return false;
    const dti_node *in = &g->nodes[dti_input_id(g, n, 0)];
    const int64_t all = dti_shape_elements(in->shape), own = dti_shape_elements(n->shape);
    return !in->term && in->dtype == n->dtype &&
           (all <= own || (all / DTI_AUTOCAST_PARTS <= own && all % own == 0));
}

static dt_tensor dti_autocast_to(dt_tensor x, dt_dtype to) {
    if (dti_is_nil(x))
        return x;
    const dti_node *n = dti_node_of(x);
    if (dti_is_whole(n->dtype) || n->dtype == to || n->term)
        return x;
    if (n->cast && x.graph->nodes[n->cast].dtype == to)
        return (dt_tensor){x.graph, n->cast};
    /* a stored parameter as f32 need not stay from the forward to the backward pass */
    const bool recompute = n->recompute || (n->op == DTI_OP_PARAM && to == DT_F32);
    const dti_attr attr = n->attr;
    const dti_op op = (dti_op)n->op;
    const dt_tensor y =
        dti_autocast_lifts(x.graph, n)
            ? dti_append1(op, dti_autocast_to(dti_input_of(x.graph, n, 0), to), &attr)
            : dt_cast(x, to);
    if (dti_is_nil(y))
        return y;
    dti_node_of(y)->recompute = recompute;
    dti_node_of(y)->label = dti_node_of(x)->label;
    dti_node_of(x)->cast = y.id;
    dti_node_of(y)->source = x.id;
    return y;
}

static uint32_t dti_autocast_source(const dt_graph *g, uint32_t id) {
    while (g->nodes[id].source)
        id = g->nodes[id].source;
    return id;
}

/* Whether a row's launches take input i in 16 bits. */
static bool dti_autocast_takes(const dti_op_info *info, uint32_t i) {
    const dti_op_family *f = info->family;
    const uint32_t bit = DTI_MIN(i, DTI_INPUTS_MAX);
    if (info->precision == DTI_PRECISION_LOW && f->low)
        return f->low >> bit & 1;
    const bool operand = info->precision != DTI_PRECISION_LOW || i < DTI_AUTOCAST_OPERANDS;
    return operand && (f->view || f->halves >> bit & 1);
}

/* Of a LOW row all operands must be taken in 16 bits; of a WIDEST row those that are decide. */
static dt_dtype dti_autocast_type(const dti_op_info *info, const dt_tensor *in, uint32_t count) {
    const dt_dtype low = (dt_dtype)in[0].graph->autocast;
    const bool widest = info->precision == DTI_PRECISION_WIDEST;
    const bool out = info->family->view || info->family->halves & DTI_HALF_OUT;
    uint32_t taken = 0;
    if (info->precision == DTI_PRECISION_LOW && info->family->low)
        return low;
    for (uint32_t i = 0; i < count; i++) {
        const dt_dtype dtype = dti_node_of(in[i])->dtype;
        const bool takes = dti_autocast_takes(info, i);
        if ((!takes && !widest && i < DTI_AUTOCAST_OPERANDS) ||
            (takes && widest && !dti_is_whole(dtype) && dtype != low))
            return DT_F32;
        taken += takes;
    }
    return info->precision == DTI_PRECISION_F32 || !out || !taken ? DT_F32 : low;
}

static const dt_tensor *dti_autocast_inputs(const dti_op_info *info, const dt_tensor *in,
                                            uint32_t count, dt_tensor *room) {
    for (uint32_t i = 0; i < count; i++) {
        if (dti_is_nil(in[i]) || in[i].graph != in[0].graph)
            return in; /* build.c reports it */
    }
    if (!count || info == dti_op_info_of(DTI_OP_CAST) || in[0].graph->error[0])
        return in;
    const dt_dtype to = dti_autocast_type(info, in, count);
    const bool product = info->precision == DTI_PRECISION_LOW && to != DT_F32 && !info->family->low;
    for (uint32_t i = 0; i < count; i++) {
        const bool bias = product && i >= DTI_AUTOCAST_OPERANDS;
        const dt_dtype own = bias ? (dt_dtype)dti_node_of(in[i])->dtype : DT_F32;
        if (bias && own == DT_F32)
            room[i] = in[i];
        else
            room[i] = dti_autocast_to(in[i], bias || dti_autocast_takes(info, i) ? to : DT_F32);
    }
    return room;
}
