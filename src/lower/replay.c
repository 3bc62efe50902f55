/* The same graph at other shapes of its inputs, or for a program of .cached. Every node is appended
 * again, in its order, from its op, inputs and attributes. So tensors keep their numbers. Some
 * functions derive attributes from shapes: the factor of a mean, the channels of a norm, all of a
 * gradient. They have recorded a call, which is made again instead of its rows. Nodes that the
 * description does not need are copied. A function that makes other rows for the new shapes is an
 * error. */

typedef struct dti_replay {
    const dt_graph *from;
    dt_graph *to;
    const dt_program_desc *desc;
    uint8_t *needed;     /* by node */
    uint32_t *call_of;   /* by node: 1 + the outermost call that begins with it */
    dt_tensor *in;       /* of a node; room for the most that any has */
    const char *differs; /* the function that made other rows */
} dti_replay;

/* ---- needed nodes: roots, their inputs, and updates of buffers whose statistics are needed */

static void dti_replay_need(dti_replay *r) {
    dti_need_roots(r->from, r->desc, NULL, r->needed);
    dti_need_inputs(r->from, NULL, r->needed);
}

/* A call is made again where one of its rows is needed. */
static void dti_replay_calls(dti_replay *r) {
    for (uint32_t i = 0; i < r->from->call_count; i++) {
        const dti_call *c = &r->from->calls[i];
        bool needed = false;
        for (uint32_t id = c->first; id < c->end; id++)
            needed = needed || r->needed[id];
        if (needed) /* a call within another was recorded before it */
            r->call_of[c->first] = i + 1;
    }
}

/* ---- nodes */

static dt_shape dti_replay_shape(const dti_replay *r, uint32_t id) {
    for (int i = 0; i < DT_MAX_OUTPUTS && r->desc->shapes[i].input.id; i++) {
        if (r->desc->shapes[i].input.id == id)
            return r->desc->shapes[i].shape;
    }
    return r->from->nodes[id].shape;
}

static void dti_replay_node(dti_replay *r, uint32_t id) {
    const dti_node *n = &r->from->nodes[id];
    for (uint32_t k = 0; k < n->count; k++)
        r->in[k] = (dt_tensor){r->to, dti_input_id(r->from, n, k)};
    if (n->count == 0 || !r->needed[id]) {
        dti_node copy = *n;
        copy.shape = dti_replay_shape(r, id);
        dti_graph_push(r->to, &copy, r->in, n->count);
        return;
    }
    dt_tensor x = dti_append(r->to, (dti_op)n->op, r->in, n->count, &n->attr);
    if (dti_is_nil(x))
        return;
    dti_node_of(x)->label = n->label;
    dti_node_of(x)->recompute = n->recompute;
}

/* The buffers that a call moves are free again: the new call says what their values become. */
static void dti_replay_free_buffers(dti_replay *r, const dti_call *c) {
    for (uint32_t i = 0; i < DTI_CALL_INPUTS; i++) {
        dti_node *n = &r->to->nodes[c->in[i]];
        if (c->in[i] && n->buffer && (uint32_t)n->attr.i[2] >= c->first &&
            (uint32_t)n->attr.i[2] < c->end)
            n->attr.i[2] = 0;
    }
}

static void dti_replay_call(dti_replay *r, const dti_call *c) {
    dt_graph *to = r->to;
    dti_replay_free_buffers(r, c);
    dti_call_make(to, c);
    if (to->error[0])
        return;
    bool same = to->count == c->end;
    for (uint32_t id = c->first; id < c->end && same; id++) {
        same = to->nodes[id].op == r->from->nodes[id].op;
        to->nodes[id].label = r->from->nodes[id].label;
        to->nodes[id].recompute = r->from->nodes[id].recompute;
    }
    if (!same)
        r->differs = c->name;
}

static void dti_replay_all(dti_replay *r) {
    dti_replay_need(r);
    dti_replay_calls(r);
    r->to->count = 1;
    r->to->input_count = 0;
    for (uint32_t id = 1; id < r->from->count && !r->to->error[0] && !r->differs;) {
        const dti_call *c = r->call_of[id] ? &r->from->calls[r->call_of[id] - 1] : NULL;
        if (c)
            dti_replay_call(r, c);
        else
            dti_replay_node(r, id);
        id = c ? c->end : id + 1;
    }
}

/* ---- the description */

static void dti_shapes_check_one(const dt_graph *g, const dt_input_shape *all, int i,
                                 dti_text *problems) {
    const dt_input_shape *s = &all[i];
    const dt_tensor x = s->input;
    const dti_node *n = x.graph == g && !dti_is_nil(x) ? dti_node_of(x) : NULL;
    if (!n || n->op != DTI_OP_INPUT || n->values)
        dti_text_add(problems, "\n- .shapes[%d].input is not an input of the store's graph", i);
    else if (s->shape.rank != n->shape.rank || !dti_shape_valid(s->shape))
        dti_text_add(problems,
                     "\n- .shapes[%d] is %s for input '%s' %s; it must have the same number of "
                     "dimensions, none negative",
                     i, dti_shape_print(s->shape, n->samples).text, n->label,
                     dti_shape_print(n->shape, n->samples).text);
    for (int k = 0; k < i && n; k++) {
        if (all[k].input.id == x.id)
            dti_text_add(problems, "\n- .shapes[%d] and [%d] are both of input '%s'", k, i,
                         n->label);
    }
}

static dt_result dti_shapes_check(const dt_graph *g, const dt_program_desc *desc) {
    dti_text problems = dti_text_open(g->base);
    const dt_input_shape *all = desc->shapes;
    const uint32_t count =
        dti_desc_count(&all[0].input, sizeof *all, DT_MAX_OUTPUTS, "shapes", &problems);
    for (uint32_t i = 0; i < count; i++)
        dti_shapes_check_one(g, all, (int)i, &problems);
    const dt_result result = dti_problems_fail(g->base, desc->label, &problems);
    dti_text_free(&problems);
    return result;
}

static dt_result dti_replay_result(const dti_replay *r) {
    const char *label = r->desc->label ? r->desc->label : "program";
    if (r->to->error[0])
        return dti_fail(r->from->base, r->to->result, "program '%s': %s, %s", label,
                        r->desc->cached ? "with .cached" : "at .shapes", r->to->error);
    if (r->differs)
        return dti_fail(
            r->from->base, DT_ERROR_UNSUPPORTED,
            "program '%s': %s, %s needs other ops; build another graph for these shapes", label,
            r->desc->cached ? "with .cached" : "at .shapes", r->differs);
    return DT_OK;
}

static dt_result dti_graph_replay(const dt_graph *g, const dt_program_desc *desc, dt_graph **out) {
    dti_replay r = {.from = g, .desc = desc};
    uint32_t most = 1;
    for (uint32_t id = 1; id < g->count; id++)
        most = DTI_MAX(most, g->nodes[id].count);
    dt_result result = dti_shapes_check(g, desc);
    if (!result)
        result = dti_graph_clone(g, g->ctx, &r.to);
    *out = NULL;
    if (result)
        return result;
    r.to->cached = desc->cached;
    if (!desc->shapes[0].input.graph && !desc->cached) {
        *out = r.to;
        return DT_OK;
    }
    r.needed = dti_alloc_array(g->base, g->count, 1);
    r.call_of = dti_alloc_array(g->base, g->count, sizeof *r.call_of);
    r.in = dti_alloc_array(g->base, most, sizeof *r.in);
    result = r.needed && r.call_of && r.in ? DT_OK : DT_ERROR_MEMORY;
    if (!result) {
        dti_replay_all(&r);
        result = dti_replay_result(&r);
    }
    DTI_FREE(g->base, r.needed, r.call_of, r.in);
    if (result)
        dt_graph_destroy(r.to);
    else
        *out = r.to;
    return result;
}
