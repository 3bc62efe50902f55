/* Mixed precision as a pass: what the description asks for is computed by other nodes, each in the
 * type that its row's precision says: LOW rows in 16 bits, F32 rows in f32, WIDEST rows in 16 bits
 * where all that they read is. Casts stand between them, one for each value and type. Parameters
 * stay f32, so their gradients come back in f32, by the casts' own. Nodes are appended, and those
 * of the application keep their numbers; what the program reads and writes keeps its type. Before
 * gradients are made: those follow the types that they find. */

typedef struct dti_casting {
    dt_graph *graph;
    dt_dtype low;
    uint32_t *now;     /* by node: the one in its place */
    uint32_t *cast[2]; /* by node: that one as f32, and as `low`; 0 = not needed yet */
    dt_tensor *in;     /* room for a node's inputs */
} dti_casting;

static uint32_t dti_casting_to(dti_casting *c, uint32_t id, dt_dtype to) {
    const uint32_t now = c->now[id];
    const dt_dtype dtype = c->graph->nodes[now].dtype;
    if (dti_is_whole(dtype) || dtype == to)
        return now;
    uint32_t *cast = &c->cast[to != DT_F32][id];
    if (!*cast) {
        const bool recompute = c->graph->nodes[now].recompute;
        *cast = dt_cast((dt_tensor){c->graph, now}, to).id;
        c->graph->nodes[*cast].recompute = recompute;
    }
    return *cast;
}

/* What a row of inputs in these types works in. */
static dt_dtype dti_casting_type(const dti_casting *c, const dti_node *n) {
    const uint8_t precision = dti_op_info_of(n->op)->precision;
    if (precision != DTI_PRECISION_WIDEST)
        return precision == DTI_PRECISION_LOW ? c->low : DT_F32;
    for (uint32_t i = 0; i < n->count; i++) {
        const dt_dtype dtype = c->graph->nodes[c->now[dti_input_id(c->graph, n, i)]].dtype;
        if (!dti_is_whole(dtype) && dtype != c->low)
            return DT_F32;
    }
    return c->low;
}

static void dti_casting_node(dti_casting *c, uint32_t id) {
    const dti_node n = c->graph->nodes[id]; /* appending moves them */
    c->now[id] = id;
    if (!n.count || c->graph->error[0])
        return;
    const dt_dtype to = dti_casting_type(c, &n);
    for (uint32_t i = 0; i < n.count; i++)
        c->in[i] = (dt_tensor){c->graph, dti_casting_to(c, dti_input_id(c->graph, &n, i), to)};
    const dt_tensor y = dti_append(c->graph, (dti_op)n.op, c->in, n.count, &n.attr);
    if (dti_is_nil(y))
        return;
    c->now[id] = y.id;
    dti_node_of(y)->label = n.label;
    dti_node_of(y)->recompute = n.recompute;
}

/* The nodes of `graph` in mixed precision; *stands: by each of them, the one that gives its value
 * in its own type. The caller frees it. Errors: MEMORY, and in graph->error what a row refuses. */
static dt_result dti_cast_graph(dt_graph *graph, dt_dtype low, uint32_t **stands) {
    const uint32_t count = graph->count;
    dti_casting c = {.graph = graph, .low = low};
    c.now = dti_alloc_array(graph->base, count, sizeof *c.now);
    c.cast[0] = dti_alloc_array(graph->base, count, sizeof *c.cast[0]);
    c.cast[1] = dti_alloc_array(graph->base, count, sizeof *c.cast[1]);
    c.in = dti_alloc_array(graph->base, (size_t)graph->input_count + 1, sizeof *c.in);
    const bool room = c.now && c.cast[0] && c.cast[1] && c.in;
    for (uint32_t id = 1; room && id < count; id++)
        dti_casting_node(&c, id);
    for (uint32_t id = 1; room && id < count && !graph->error[0]; id++) {
        dti_node *n = &graph->nodes[id];
        if (n->buffer && n->attr.i[2])
            n->attr.i[2] = (int32_t)c.now[n->attr.i[2]];
    }
    for (uint32_t id = 1; room && id < count && !graph->error[0]; id++)
        c.now[id] = dti_casting_to(&c, id, graph->nodes[id].dtype);
    DTI_FREE(graph->base, c.cast[0], c.cast[1], c.in);
    *stands = c.now;
    return room ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_pass_cast(dti_lowering *w) {
    if (w->low == DT_F32)
        return DT_OK;
    const dt_result result = dti_cast_graph(w->code->work, w->low, &w->code->stands);
    return result ? result : dti_describe_result(w);
}
