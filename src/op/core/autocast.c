/* Mixed precision (PyTorch's autocast): while a graph's .autocast is set, each row that is appended
 * gets its inputs in the types that its precision asks for. LOW rows work in 16 bits, F32 rows in
 * f32, WIDEST rows in 16 bits where all that they read is. So gradient rows follow the same table
 * as those of the application. A row whose launches do not take 16 bits works in f32. Parameters
 * stay f32, and so do the sums that are their gradients. */

#define DTI_AUTOCAST_OPERANDS 2 /* of LOW rows: a bias is read as it is */

static dt_tensor dti_autocast_to(dt_tensor x, dt_dtype to) {
    if (dti_is_nil(x))
        return x;
    const dti_node *n = dti_node_of(x);
    if (dti_is_whole(n->dtype) || n->dtype == to || n->term)
        return x;
    if (n->cast && x.graph->nodes[n->cast].dtype == to)
        return (dt_tensor){x.graph, n->cast};
    const bool recompute = n->recompute;
    const dt_tensor y = dt_cast(x, to);
    if (dti_is_nil(y))
        return y;
    dti_node_of(y)->recompute = recompute;
    dti_node_of(y)->label = dti_node_of(x)->label;
    dti_node_of(x)->cast = y.id;
    return y;
}

static uint32_t dti_autocast_source(const dt_graph *g, uint32_t id) {
    const dti_node *n = &g->nodes[id];
    while (g->autocast && n->op == DTI_OP_CAST) {
        const uint32_t in = dti_input_id(g, n, 0);
        if (g->nodes[in].cast != id)
            break;
        n = &g->nodes[id = in];
    }
    return id;
}

/* Whether a row's launches take all of its operands in 16 bits. */
static bool dti_autocast_takes(const dti_op_info *info, uint32_t count) {
    uint32_t wanted = DTI_HALF_OUT;
    if (info->precision == DTI_PRECISION_LOW && info->family->low)
        return true;
    for (uint32_t i = 0; i < count && i < DTI_INPUTS_MAX; i++)
        wanted |= info->precision != DTI_PRECISION_LOW || i < DTI_AUTOCAST_OPERANDS ? 1u << i : 0u;
    return info->family->view || (info->family->halves & wanted) == wanted;
}

static dt_dtype dti_autocast_type(const dti_op_info *info, const dt_tensor *in, uint32_t count) {
    const dt_dtype low = (dt_dtype)in[0].graph->autocast;
    if (info->precision == DTI_PRECISION_F32 || !dti_autocast_takes(info, count))
        return DT_F32;
    for (uint32_t i = 0; i < count && info->precision == DTI_PRECISION_WIDEST; i++) {
        const dt_dtype dtype = dti_node_of(in[i])->dtype;
        if (!dti_is_whole(dtype) && dtype != low)
            return DT_F32;
    }
    return low;
}

static const dt_tensor *dti_autocast_inputs(const dti_op_info *info, const dt_tensor *in,
                                            uint32_t count, dt_tensor *room) {
    for (uint32_t i = 0; i < count; i++) {
        if (dti_is_nil(in[i]) || in[i].graph != in[0].graph)
            return in; /* build.c refuses it */
    }
    if (!count || info == dti_op_info_of(DTI_OP_CAST) || in[0].graph->error[0])
        return in;
    const dt_dtype to = dti_autocast_type(info, in, count);
    const bool halves = info->precision == DTI_PRECISION_LOW && to != DT_F32;
    const uint32_t low = info->family->low;
    for (uint32_t i = 0; i < count; i++) {
        const bool bias = halves && !low && i >= DTI_AUTOCAST_OPERANDS;
        if (halves && low)
            room[i] = dti_autocast_to(in[i], low >> i & 1 ? to : DT_F32);
        else
            room[i] =
                bias && dti_node_of(in[i])->dtype == DT_F32 ? in[i] : dti_autocast_to(in[i], to);
    }
    return room;
}
