/* Types of 16 bits as a pass. It appends the application's rows again under autocast
 * (op/core/autocast.c), which inserts casts. The passes after it append the gradients' rows
 * likewise. Nodes of the application keep their numbers; inputs and outputs keep their types.
 *
 * Parameters that are stored in 16 bits are nodes of that type here. Without autocast all rows read
 * them as f32; with it, a row that works in their type reads them in place. */

/* The type of a node in the application's graph; parameters are f32. */
static dt_dtype dti_cast_own(const dti_node *n) {
    return n->op == DTI_OP_PARAM ? DT_F32 : (dt_dtype)n->dtype;
}

static void dti_cast_node(dt_graph *graph, uint32_t id, uint32_t *now, dt_tensor *in) {
    const dti_node n = graph->nodes[id]; /* appending moves them */
    bool same = !graph->autocast;
    now[id] = n.low ? dti_autocast_to((dt_tensor){graph, id}, (dt_dtype)graph->autocast).id : id;
    if (!n.count || graph->error[0])
        return;
    for (uint32_t i = 0; i < n.count; i++) {
        const uint32_t own = dti_input_id(graph, &n, i);
        in[i] = (dt_tensor){graph, now[own]};
        if (!graph->autocast)
            in[i] = dti_autocast_to(in[i], dti_cast_own(&graph->nodes[own]));
        same = same && in[i].id == own;
    }
    if (same)
        return;
    const dt_tensor y = dti_append(graph, (dti_op)n.op, in, n.count, &n.attr);
    if (dti_is_nil(y))
        return;
    now[id] = y.id;
    dti_node_of(y)->label = n.label;
    dti_node_of(y)->recompute = n.recompute;
}

/* The nodes of `graph` in mixed precision, or in their own types. now: by node, the node that has
 * its value in its own type. Errors, in graph->error: those of rows, MEMORY. */
static void dti_cast_graph(dt_graph *graph, dt_precision precision, uint32_t *now, dt_tensor *in) {
    const uint32_t count = graph->count;
    graph->autocast = precision == DT_PRECISION_BF16 ? DT_BF16 : DT_F32;
    for (uint32_t id = 1; id < count; id++)
        dti_cast_node(graph, id, now, in);
    for (uint32_t id = 1; id < count && !graph->error[0]; id++) {
        dti_node *n = &graph->nodes[id];
        if (n->buffer && n->attr.i[2])
            n->attr.i[2] = (int32_t)now[n->attr.i[2]];
    }
    for (uint32_t id = 1; id < count && !graph->error[0]; id++) {
        const dt_dtype own = dti_cast_own(&graph->nodes[id]);
        if (!dti_is_whole(own))
            now[id] = dti_autocast_to((dt_tensor){graph, now[id]}, own).id;
    }
}

static dt_result dti_cast_find_low(const dt_graph *g, uint8_t *low) {
    dt_graph *own = NULL;
    uint32_t *now = dti_alloc_array(g->base, g->count, sizeof *now);
    dt_tensor *in = dti_alloc_array(g->base, (size_t)g->input_count + 1, sizeof *in);
    dt_result result = now && in ? dti_graph_copy(g, g->ctx, &own) : DT_ERROR_MEMORY;
    if (!result) {
        dti_cast_graph(own, DT_PRECISION_BF16, now, in);
        result = own->result;
        for (uint32_t id = 1; id < g->count && !result; id++)
            low[id] = g->nodes[id].dtype == DT_F32 &&
                      own->nodes[dti_autocast_source(own, now[id])].dtype != DT_F32;
        dt_graph_destroy(own);
    }
    DTI_FREE(g->base, now, in);
    return result;
}

static dt_result dti_pass_cast(dti_lowering *w) {
    dti_code *code = w->code;
    dt_graph *graph = code->work;
    const dti_layout *l = code->layout;
    if (code->desc.precision == DT_PRECISION_F32 && l->dtype == DT_F32)
        return DT_OK;
    for (uint32_t i = 0; i < l->param_count; i++)
        graph->nodes[l->params[i].node].dtype =
            code->desc.averaged && l->params[i].average ? DT_F32 : l->params[i].dtype;
    dt_tensor *in = dti_alloc_array(graph->base, (size_t)graph->input_count + 1, sizeof *in);
    code->stands = dti_alloc_array(graph->base, graph->count, sizeof *code->stands);
    if (in && code->stands)
        dti_cast_graph(graph, code->desc.precision, code->stands, in);
    dti_free(graph->base, in);
    DTI_HAVE(in && code->stands);
    return dti_describe_result(w);
}
