/* The reverse pass. It walks the nodes between x and y from the newest to the oldest. It asks each
 * row for its inputs' gradients, which are appended as rows themselves. So a gradient is a tensor
 * like any other and can be differentiated again. A row without a gradient rule is taken apart by
 * its `lower` rule, and the parts are differentiated.
 *
 * A step function (sign, round, relu's slope) has a gradient of 0, which nobody adds up: nil. Where
 * graph->steps is set it passes what it gets, so that dx shows whether a gradient exists at all.
 * Nothing computes such a dx. */

typedef struct dti_pass {
    dt_graph *graph;
    uint32_t first; /* older nodes are leaves: the pass does not see their inputs */
    uint32_t count; /* nodes that existed at the start; newer ones are gradients */
    const dt_tensor *wrt;
    uint32_t leaves;      /* of wrt, where some may be older than `first`; else 0 */
    uint32_t *adjoint;    /* by slot: d/d(node), 0 = none yet */
    uint8_t *reached;     /* by slot: depends on an element of wrt, through a differentiable path */
    uint32_t at;          /* the row whose gradients are made */
    dti_grad_pass *trace; /* of the whole graph; NULL: none */
} dti_pass;

/* A node's slot in the two lists, which are as long as the pass, not the graph. Slot 0 is for all
 * leaves whose gradient is not needed. */
static uint32_t dti_pass_slot(const dti_pass *p, uint32_t id) {
    id = dti_autocast_source(p->graph, id);
    if (id >= p->first)
        return 1 + p->leaves + id - p->first;
    for (uint32_t i = 0; i < p->leaves; i++) {
        if (dti_autocast_source(p->graph, p->wrt[i].id) == id)
            return 1 + i;
    }
    return 0;
}

static bool dti_pass_reached(const dti_pass *p, uint32_t id) {
    return p->reached[dti_pass_slot(p, id)];
}

/* Under autocast gradients add up in f32, and are rounded where a row's rule takes them. */
static dt_tensor dti_pass_sum(const dti_pass *p, dt_tensor a, dt_tensor b) {
    if (p->graph->autocast) {
        a = dti_autocast_to(a, DT_F32);
        b = dti_autocast_to(b, DT_F32);
    }
    return dt_add(a, b);
}

static dt_tensor dti_pass_taken(const dti_pass *p, uint32_t id) {
    const dt_tensor dy = {p->graph, p->adjoint[dti_pass_slot(p, id)]};
    return p->graph->autocast ? dti_autocast_to(dy, (dt_dtype)p->graph->nodes[id].dtype) : dy;
}

static void dti_pass_add(dti_pass *p, uint32_t id, dt_tensor dx) {
    if (dti_is_nil(dx))
        return;
    /* a parameter's is f32, whatever it is stored as */
    if (p->graph->nodes[dti_autocast_source(p->graph, id)].op == DTI_OP_PARAM)
        dx = dt_cast(dx, DT_F32);
    uint32_t *adjoint = &p->adjoint[dti_pass_slot(p, id)];
    dt_tensor old = {p->graph, *adjoint}, sum;
    if (p->trace && !old.id)
        p->trace->givers[id] = p->at;
    if (old.id && !dti_pads_join(old, dx, &sum))
        sum = dti_pass_sum(p, old, dx);
    *adjoint = (old.id ? sum : dx).id;
}

static bool dti_has_gradient(const dti_node *n) {
    const dti_op_family *f = dti_op_info_of(n->op)->family;
    return !dti_is_whole(n->dtype) && (f->grad || f->lower) && !(f->flat && f->flat(n));
}

static bool dti_pass_is_step(const dti_pass *p, const dti_node *n) {
    return p->graph->steps && dti_op_info_of(n->op)->family->steps && !dti_is_whole(n->dtype) &&
           !dti_has_gradient(n);
}

static void dti_pass_mark(dti_pass *p, const dt_tensor *wrt, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (!dti_is_nil(wrt[i]))
            p->reached[dti_pass_slot(p, wrt[i].id)] = 1;
    }
    for (uint32_t id = p->first; id < p->count; id++) {
        const dti_node *n = &p->graph->nodes[id];
        if (!dti_has_gradient(n) && !dti_pass_is_step(p, n))
            continue;
        uint8_t *reached = &p->reached[dti_pass_slot(p, id)];
        for (uint32_t i = 0; i < n->count && !*reached; i++)
            *reached = dti_pass_reached(p, dti_input_id(p->graph, n, i));
    }
}

/* One input at a time: for rows of any number of inputs. */
static void dti_pass_each_input(dti_pass *p, dti_grad *g) {
    dt_graph *graph = p->graph;
    for (uint32_t i = 0; i < g->node.count; i++) {
        g->in[0] = (dt_tensor){graph, graph->inputs[g->node.first + i]};
        g->index = i;
        g->dx[0] = (dt_tensor){0};
        if (dti_pass_reached(p, g->in[0].id)) {
            dti_op_info_of(g->node.op)->family->grad(g);
            dti_pass_add(p, g->in[0].id, g->dx[0]);
        }
    }
}

static void dti_pass_lowered(dti_grad *g);

/* Whether the node `k` after a row's is a view of one of its outputs. */
static bool dti_pass_is_output(const dti_pass *p, uint32_t id, uint32_t k) {
    return id + 1 + k < p->count && dti_op_info_of(p->graph->nodes[id].op)->family->outputs &&
           dti_is_output(p->graph, id, k);
}

/* Something flows to the node, or to one of its outputs. */
static bool dti_pass_flows(const dti_pass *p, uint32_t id) {
    bool flows = p->adjoint[dti_pass_slot(p, id)] != 0;
    for (uint32_t k = 0; !flows && k < DTI_OUTPUTS_MAX; k++)
        flows = dti_pass_is_output(p, id, k) && p->adjoint[dti_pass_slot(p, id + 1 + k)] != 0;
    return flows;
}

static void dti_pass_node(dti_pass *p, uint32_t id) {
    dt_graph *graph = p->graph;
    dti_grad g = {.graph = graph, .node = graph->nodes[id], .y = {graph, id}};
    const dti_op_family *family = dti_op_info_of(g.node.op)->family;
    p->at = id;
    g.dy = dti_pass_taken(p, id);
    if (family->many) {
        dti_pass_each_input(p, &g);
        return;
    }
    for (uint32_t i = 0; i < g.node.count; i++) {
        g.in[i] = (dt_tensor){graph, graph->inputs[g.node.first + i]};
        g.wanted[i] = dti_pass_reached(p, g.in[i].id);
    }
    for (uint32_t k = 0; k < DTI_OUTPUTS_MAX && family->outputs; k++) {
        if (dti_pass_is_output(p, id, k))
            g.dys[k] = dti_pass_taken(p, id + 1 + k);
    }
    dti_grad_outputs(&g);
    if (dti_pass_is_step(p, &g.node))
        g.dx[0] = g.dy;
    else if (family->grad)
        family->grad(&g);
    else
        dti_pass_lowered(&g);
    for (uint32_t i = 0; i < g.node.count; i++) {
        if (g.wanted[i])
            dti_pass_add(p, g.in[i].id, g.dx[i]);
    }
}

/* From dy of each y to dx of each wrt, over the nodes from `first` on. */
static void dti_pass_run(dt_graph *graph, uint32_t first, const dt_tensor *y, const dt_tensor *dy,
                         uint32_t y_count, const dt_tensor *wrt, uint32_t count, dt_tensor *dx) {
    dti_pass p = {.graph = graph, .first = first, .count = graph->count, .wrt = wrt};
    p.leaves = first > 1 ? count : 0;
    p.trace = first > 1 ? NULL : graph->trace;
    graph->trace = NULL; /* nobody needs the nodes of a pass within this one */
    const size_t slots = (size_t)1 + p.leaves + p.count - first;
    p.adjoint = dti_alloc_array(graph->base, slots, sizeof *p.adjoint);
    p.reached = dti_alloc_array(graph->base, slots, 1);
    if (p.adjoint && p.reached) {
        dti_pass_mark(&p, wrt, count);
        for (uint32_t i = 0; i < y_count; i++)
            dti_pass_add(&p, y[i].id, dy[i]);
        for (uint32_t id = p.count - 1; id >= first; id--) {
            /* x itself may be a leaf, or an op without a gradient */
            const dti_node *n = &graph->nodes[id];
            bool through = n->count && (dti_has_gradient(n) || dti_pass_is_step(&p, n)) &&
                           dti_autocast_source(graph, id) == id;
            const uint32_t slot = dti_pass_slot(&p, id);
            if (!through || !p.reached[slot] || !dti_pass_flows(&p, id))
                continue;
            dti_pass_node(&p, id);
            if (p.trace)
                p.trace->ends[id] = graph->count;
        }
        for (uint32_t i = 0; i < count; i++) {
            if (!dti_is_nil(wrt[i]))
                dx[i] = (dt_tensor){graph, p.adjoint[dti_pass_slot(&p, wrt[i].id)]};
            if (dti_is_nil(dx[i]))
                dx[i] = (dt_tensor){0};
        }
    } else {
        dti_graph_no_memory(graph, "out of host memory for the gradient of %u nodes", p.count);
    }
    DTI_FREE(graph->base, p.adjoint, p.reached);
}

/* Differentiates the parts of a node that its `lower` rule makes. Only the parts are walked: the
 * outer pass walks paths from one input to another. An input that comes twice gets its gradient
 * once. */
static void dti_pass_lowered(dti_grad *g) {
    dt_tensor wanted[DTI_INPUTS_MAX] = {{0}};
    for (uint32_t i = 0; i < DTI_INPUTS_MAX; i++) {
        bool again = false;
        for (uint32_t k = 0; k < i; k++)
            again = again || (g->wanted[k] && g->in[k].id == g->in[i].id);
        if (g->wanted[i] && !again)
            wanted[i] = g->in[i];
    }
    const uint32_t first = g->graph->count;
    dt_tensor y = dti_op_info_of(g->node.op)->family->lower(g);
    if (!dti_is_nil(y) && !g->graph->error[0])
        dti_pass_run(g->graph, first, &y, &g->dy, 1, wanted, DTI_INPUTS_MAX, g->dx);
}

static void dti_differentiate_all(dt_graph *graph, const dt_tensor *y, const dt_tensor *dy,
                                  uint32_t y_count, const dt_tensor *wrt, uint32_t count,
                                  dt_tensor *dx) {
    for (uint32_t i = 0; i < count; i++)
        dx[i] = (dt_tensor){0};
    if (!graph->error[0])
        dti_pass_run(graph, 1, y, dy, y_count, wrt, count, dx);
}

static void dti_differentiate(dt_graph *graph, dt_tensor y, dt_tensor dy, const dt_tensor *wrt,
                              uint32_t count, dt_tensor *dx) {
    dti_differentiate_all(graph, &y, &dy, 1, wrt, count, dx);
}

/* By node, 1: it depends on x by whatever op; 2: and y on it. The first of 3 without a gradient, or
 * 0. */
static uint32_t dti_gradient_block(const dt_graph *g, uint32_t y, uint32_t x, uint8_t *between) {
    uint32_t block = 0;
    between[x] = 1;
    for (uint32_t id = x + 1; id <= y; id++) {
        for (uint32_t i = 0; i < g->nodes[id].count; i++)
            between[id] |= between[dti_input_id(g, &g->nodes[id], i)];
    }
    between[y] |= 2;
    for (uint32_t id = y; id > x; id--) {
        for (uint32_t i = 0; between[id] & 2 && i < g->nodes[id].count; i++)
            between[dti_input_id(g, &g->nodes[id], i)] |= 2;
        const dti_node *n = &g->nodes[id];
        if (between[id] == 3 && !dti_has_gradient(n))
            block = id;
    }
    return block;
}

/* Why y has no gradient in x. It does not depend on x at all, or only through an op without a
 * gradient. */
static dt_tensor dti_gradient_none(dt_tensor y, dt_tensor x) {
    dt_graph *g = y.graph;
    uint8_t *between = dti_alloc(g->base, g->count);
    uint32_t block = 0;
    bool depends = false;
    if (between && y.id > x.id) {
        block = dti_gradient_block(g, y.id, x.id, between);
        depends = between[y.id] == 3;
    }
    dti_free(g->base, between);
    return dti_graph_fail(g, "gradient: %s does not depend on %s%s%s%s", dti_tensor_print(y).text,
                          dti_tensor_print(x).text, depends ? " in a differentiable way" : "",
                          block ? ", since no gradient flows through " : "",
                          block ? dti_tensor_name((dt_tensor){g, block}).text : "");
}

/* in: y, x */
static dt_tensor dti_gradient_make(dt_graph *g, const dti_call *c) {
    const dt_tensor y = dti_call_in(g, c, 0), x = dti_call_in(g, c, 1);
    const dti_node n = *dti_node_of(y);
    dt_tensor one = dt_cast(dt_fill(g, dt_dims_of(0, NULL), 1.0f), (dt_dtype)n.dtype), dx;
    dt_tensor dy = n.term ? one : dti_expand_to(one, n.shape, n.samples);
    dti_differentiate(g, y, dy, &x, 1, &dx);
    return !dti_is_nil(dx) ? dx : g->error[0] ? dti_nil(g) : dti_gradient_none(y, x);
}

DT_API dt_tensor dt_gradient(dt_tensor y, dt_tensor x) {
    if (dti_is_nil(y)) /* a {0} has no graph, but x has */
        return dti_nil_of(y.graph ? y : x, "gradient");
    if (dti_is_nil(x))
        return dti_graph_fail(y.graph, "gradient: x is nil");
    if (y.graph != x.graph)
        return dti_graph_fail(y.graph,
                              "gradient: y and x are tensors of two graphs: x is a tensor of "
                              "another graph, %s",
                              dti_tensor_elsewhere(y.graph, x).text);
    return dti_compose("dt_gradient", dti_gradient_make, 2, (dti_inputs){{y, x}}, (dti_attr){0});
}
