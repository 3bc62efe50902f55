/* A tensor rank's graph: the model's nodes in their order, appended again. A marked parameter has a
 * part's shape. A row that reads parts is made by its family's rule (parted.c); a row without such
 * a rule is refused. A replicated operand beside parts is read through a copy, one for all its
 * readers. The copy's gradient is summed over tensor ranks. If tensor ranks add up a row's results,
 * a sum follows the row, and its bias follows the sum.
 *
 * With sequence parallelism the sum leaves each tensor rank its own rows of the sequence. A row
 * with a rule for rows reads them. A row of parts gathers all rows, and gives a part of their
 * gradient (spread). Anything else is computed by all, of all rows (gather). A replicated operand
 * beside rows is cut to the own rows. */

typedef struct dti_tp_cut {
    const char *setting; /* which says how many tensor ranks there are */
    const dt_graph *from;
    dt_graph *to;
    int64_t tp_ranks, tp_rank;
    bool rows;          /* of the sequence are split (sequence parallelism) */
    uint8_t *needed;    /* by the model's nodes, as all here */
    uint32_t *stands;   /* a tensor rank's node: dti_tp has it, as all tensor ranks have the same */
    uint32_t *firsts;   /* the first that came with it; likewise */
    uint32_t *copies;   /* a tensor rank's copy of it, or all rows for parts; 0 = not made yet */
    uint32_t *wholes;   /* of rows all, for what is whole */
    uint32_t *owns;     /* the own rows of a replicated tensor */
    dti_parted *parted; /* by the model's nodes, and */
    uint8_t *refused;   /* likewise: dti_tp has both */
    dt_tensor *in;      /* of a node: the largest number that a node has */
    dt_result result;   /* with its text in from->base */
} dti_tp_cut;

static dt_result dti_tp_cut_open(const dt_graph *g, const dt_program_desc *d, dti_tp_cut *c) {
    size_t most = 1;
    for (uint32_t id = 1; id < g->count; id++)
        most = DTI_MAX(most, (size_t)g->nodes[id].count);
    c->needed = dti_alloc_array(g->base, g->count, 1);
    c->copies = dti_alloc_array(g->base, g->count, sizeof *c->copies);
    c->wholes = dti_alloc_array(g->base, g->count, sizeof *c->wholes);
    c->owns = dti_alloc_array(g->base, g->count, sizeof *c->owns);
    c->in = dti_alloc_array(g->base, most, sizeof *c->in);
    if (!c->needed || !c->copies || !c->wholes || !c->owns || !c->in)
        return DT_ERROR_MEMORY;
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        c->needed[d->losses[i].term.id] = 1;
        c->needed[d->metrics[i].id] = 1;
    }
    dti_need_inputs(g, NULL, c->needed);
    return DT_OK;
}

static void dti_tp_cut_close(const dt_graph *g, dti_tp_cut *c) {
    DTI_FREE(g->base, c->needed, c->copies, c->wholes, c->owns, c->in);
}

/* ---- parameters */

static void dti_tp_cut_param(dti_tp_cut *c, uint32_t id, dti_node *n) {
    int64_t unit;
    const dti_parted p = dti_param_parted(n, &unit);
    bool fits = true;
    for (int i = 0; p.axis >= 0 && i < DTI_PARTED_GROUPS; i++)
        fits = fits && p.group[i] % (unit * c->tp_ranks) == 0;
    if (p.axis < 0 || n->buffer)
        return;
    if (!fits) {
        c->result =
            dti_fail(c->from->base, DT_ERROR_INVALID,
                     "%s = %d: parameter '%s' %s cannot be split into equal parts along axis %d, "
                     "in units of %lld; use another number, or leave its layer's .tensor out",
                     c->setting, (int)c->tp_ranks, n->label, dti_shape_print(n->shape, false).text,
                     (int)p.axis, (long long)unit);
        return;
    }
    n->shape.dim[p.axis] /= c->tp_ranks;
    n->attr.dim[0] = 0; /* values come from the host's store */
    c->parted[id] = p;
}

/* ---- rows of a sequence */

static dt_tensor dti_tp_cut_along(const dti_tp_cut *c, dti_parted_way way, dt_tensor x, int axis) {
    return dti_parted_along(way, x, axis, c->tp_ranks, c->tp_rank);
}

/* Whether all can get all of it. */
static bool dti_tp_cut_gathers(const dti_tp_cut *c, uint32_t id) {
    const dti_parted *p = &c->parted[id];
    return p->rows || (!p->group[1] && c->from->nodes[id].dtype == DT_F32);
}

/* As a replicated tensor: gathers all rows, also of parts that no loss reads. */
static dt_tensor dti_tp_cut_whole(dti_tp_cut *c, uint32_t id) {
    const dt_tensor x = {c->to, c->stands[id]};
    if (c->parted[id].axis < 0 || !dti_tp_cut_gathers(c, id))
        return x;
    if (!c->wholes[id])
        c->wholes[id] = dti_tp_cut_along(c, DTI_PARTED_GATHER, x, c->parted[id].axis).id;
    return (dt_tensor){c->to, c->wholes[id]};
}

/* The own rows of a replicated tensor. */
static dt_tensor dti_tp_cut_own(dti_tp_cut *c, uint32_t id, int axis) {
    if (!c->owns[id])
        c->owns[id] =
            dti_tp_cut_along(c, DTI_PARTED_OWN, (dt_tensor){c->to, c->stands[id]}, axis).id;
    return (dt_tensor){c->to, c->owns[id]};
}

/* A summed row: for all, or the own rows of a sequence that divides. */
static dt_tensor dti_tp_cut_sum(dti_tp_cut *c, dt_tensor y, dti_parted *out) {
    const dt_shape s = dti_is_nil(y) ? (dt_shape){0} : dti_tensor_shape(y);
    if (!c->rows || s.rank < 2 || s.dim[0] % c->tp_ranks || dti_is_nil(y) ||
        !dti_node_of(y)->samples)
        return dti_parted_summed(y);
    *out = dti_parted_of(0, s.dim[0]);
    out->rows = true;
    return dti_tp_cut_along(c, DTI_PARTED_SHARE, y, 0);
}

/* As it is, but for its inputs. */
static dt_tensor dti_tp_cut_push(dti_tp_cut *c, uint32_t id) {
    dti_node n = c->from->nodes[id];
    for (uint32_t k = 0; k < n.count; k++)
        c->in[k] = dti_tp_cut_whole(c, dti_input_id(c->from, &n, k));
    if (n.op == DTI_OP_PARAM)
        dti_tp_cut_param(c, id, &n);
    dt_tensor x = dti_graph_push(c->to, &n, c->in, n.count);
    if (n.op == DTI_OP_PARAM && !dti_is_nil(x))
        c->to->params[n.attr.i[0]] = x.id;
    return x;
}

/* ---- rows that read parts */

static bool dti_tp_cut_reads(const dti_tp_cut *c, const dti_node *n) {
    bool any = false;
    for (uint32_t k = 0; k < n->count; k++)
        any = any || c->parted[dti_input_id(c->from, n, k)].axis >= 0;
    return any;
}

/* The operand beside parts: replicated, or all rows. */
static dt_tensor dti_tp_cut_copy(dti_tp_cut *c, uint32_t id) {
    const dt_tensor x = {c->to, c->stands[id]};
    if (c->from->nodes[id].dtype != DT_F32)
        return x;
    if (!c->copies[id])
        c->copies[id] = c->parted[id].rows
                            ? dti_tp_cut_along(c, DTI_PARTED_SPREAD, x, c->parted[id].axis).id
                            : dti_parted_copied(x).id;
    return (dt_tensor){c->to, c->copies[id]};
}

/* Input k of a row. */
static dt_tensor dti_tp_cut_input(dti_tp_cut *c, const dti_parting *s, uint32_t k) {
    const uint32_t id = dti_input_id(c->from, s->n, k);
    const dt_shape x = c->from->nodes[id].shape;
    if (s->own >> k & 1)
        return dti_tp_cut_own(c, id, s->out.axis - (s->n->shape.rank - x.rank));
    if (s->make || (s->in[k].axis >= 0 && !(s->all >> k & 1)))
        return (dt_tensor){c->to, c->stands[id]};
    return dti_tp_cut_copy(c, id);
}

static dt_tensor dti_tp_cut_refuse(dti_tp_cut *c, uint32_t id) {
    const dt_tensor y = {(dt_graph *)c->from, id};
    c->result = dti_fail(c->from->base, DT_ERROR_UNSUPPORTED,
                         "%s = %d: %s cannot compute on a split input; gather it by a "
                         "DT_TENSOR_ROW layer before, or leave the layer's .tensor out",
                         c->setting, (int)c->tp_ranks, dti_tensor_print(y).text);
    return dti_nil(c->to);
}

/* Finds how the row computes on inputs that are parts. rows: also on own rows, instead of all rows.
 * False: it cannot. */
static bool dti_tp_cut_rule(const dti_tp_cut *c, uint32_t id, bool rows, dti_parting *s) {
    const dti_node *n = &c->from->nodes[id];
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    bool any = false;
    *s = (dti_parting){
        .g = c->from, .n = n, .tp_ranks = c->tp_ranks, .tp_rank = c->tp_rank, .attr = n->attr};
    for (uint32_t k = 0; k < n->count && k < DTI_INPUTS_MAX; k++) {
        const dti_parted p = c->parted[dti_input_id(c->from, n, k)];
        s->in[k] = p.rows && !rows ? dti_parted_whole : p;
        any = any || s->in[k].axis >= 0;
    }
    return any && family->part && n->count <= DTI_INPUTS_MAX && family->part(s);
}

/* Whether all that is in parts among its inputs is rows, or any that can be gathered. */
static bool dti_tp_cut_all_rows(const dti_tp_cut *c, const dti_node *n, bool any) {
    bool all = true;
    for (uint32_t k = 0; k < n->count; k++) {
        const uint32_t id = dti_input_id(c->from, n, k);
        const dti_parted *p = &c->parted[id];
        all = all && (p->axis < 0 || p->rows || (any && dti_tp_cut_gathers(c, id)));
    }
    return all;
}

static dt_tensor dti_tp_cut_make(dti_tp_cut *c, uint32_t id, dti_parting *s) {
    const dti_node *n = s->n;
    const bool biased = s->sum && !s->make && n->count > 2;
    const uint32_t bias = biased ? dti_input_id(c->from, n, n->count - 1) : 0;
    const uint32_t count = n->count - biased;
    for (uint32_t k = 0; k < count; k++)
        c->in[k] = dti_tp_cut_input(c, s, k);
    dt_tensor y =
        s->make ? s->make(s, c->in) : dti_append(c->to, (dti_op)n->op, c->in, count, &s->attr);
    if (s->sum)
        y = dti_tp_cut_sum(c, y, &s->out);
    if (biased)
        y = dt_add(y, s->out.rows ? dti_tp_cut_copy(c, bias) : (dt_tensor){c->to, c->stands[bias]});
    if (!dti_is_nil(y)) {
        dti_node_of(y)->label = n->label;
        dti_node_of(y)->recompute = n->recompute;
    }
    c->parted[id] = s->out;
    return y;
}

static dt_tensor dti_tp_cut_row(dti_tp_cut *c, uint32_t id) {
    dti_parting s;
    if (dti_tp_cut_rule(c, id, true, &s) || dti_tp_cut_rule(c, id, false, &s))
        return dti_tp_cut_make(c, id, &s);
    const bool whole = dti_tp_cut_all_rows(c, &c->from->nodes[id], !c->needed[id]);
    c->refused[id] = c->refused[id] || !whole;
    return c->needed[id] && !whole ? dti_tp_cut_refuse(c, id) : dti_tp_cut_push(c, id);
}

/* ---- the graph */

static dt_result dti_tp_cut_all(dti_tp_cut *c) {
    const dt_graph *g = c->from;
    c->to->count = 1;
    c->to->input_count = 0;
    c->to->call_count = 0; /* other shapes are asked of no tensor rank */
    for (uint32_t id = 1; id < g->count && !c->result; id++) {
        const dti_node *n = &g->nodes[id];
        c->parted[id] = dti_parted_whole;
        c->firsts[id] = c->to->count;
        /* the gradient's row may need outputs that are not needed here: attention's sums */
        const bool row = n->count && dti_tp_cut_reads(c, n);
        c->refused[id] = false;
        for (uint32_t k = 0; k < n->count; k++)
            c->refused[id] = c->refused[id] || c->refused[dti_input_id(g, n, k)];
        c->stands[id] = (row ? dti_tp_cut_row(c, id) : dti_tp_cut_push(c, id)).id;
        if (!c->result && !c->stands[id])
            c->result = dti_fail(g->base, c->to->error[0] ? c->to->result : DT_ERROR_MEMORY,
                                 "%s = %d: %s", c->setting, (int)c->tp_ranks, c->to->error);
    }
    c->firsts[g->count] = c->to->count;
    for (uint32_t i = 0; i < g->param_count && !c->result; i++) { /* buffers' new values */
        dti_node *n = &c->to->nodes[c->to->params[i]];
        n->attr.i[2] = n->buffer ? (int32_t)c->stands[n->attr.i[2]] : n->attr.i[2];
    }
    return c->result;
}

/* Terms are whole. */
static dt_result dti_tp_cut_terms(dti_tp_cut *c, const dt_program_desc *d) {
    for (int i = 0; i < DT_MAX_TERMS && !c->result; i++) {
        const uint32_t all[2] = {d->losses[i].term.id, d->metrics[i].id};
        for (int k = 0; k < 2; k++) {
            if (all[k] && c->parted[all[k]].axis >= 0)
                dti_tp_cut_refuse(c, all[k]);
        }
    }
    return c->result;
}

/* Finds the split of each parameter. False: no parameter is marked. */
static bool dti_tp_cut_parts(const dti_tp_cut *c, dti_tp *tp) {
    const dt_graph *g = c->from;
    bool any = false;
    for (uint32_t i = 0; i < g->param_count; i++) {
        const dti_node *n = &g->nodes[g->params[i]];
        dti_tp_part *part = &tp->parts[i];
        *part = (dti_tp_part){.of = c->parted[g->params[i]], .outer = 1, .inner = 1};
        for (int k = 0; k < n->shape.rank; k++) {
            part->outer *= k < part->of.axis ? n->shape.dim[k] : 1;
            part->inner *= k > part->of.axis ? n->shape.dim[k] : 1;
        }
        any = any || part->of.axis >= 0;
    }
    return any;
}

static dt_result dti_tp_graph(dti_parallel *par, dti_tp *tp, dt_ctx *ctx, uint32_t number,
                              dt_graph **out) {
    const dt_graph *g = par->replicas[0].graph;
    const dt_program_desc d = dti_replica_desc(par, &par->replicas[0]);
    dti_tp_cut c = {.setting = dti_grid_setting(par),
                    .from = g,
                    .stands = tp->stands,
                    .firsts = tp->firsts,
                    .parted = tp->parted,
                    .refused = tp->refused,
                    .tp_ranks = tp->size,
                    .tp_rank = number,
                    .rows = par->desc.parallel.sequence_parallel};
    dt_result result = dti_tp_cut_open(g, &d, &c);
    if (!result)
        result = dti_graph_copy(g, ctx, &c.to);
    if (!result)
        result = dti_tp_cut_all(&c);
    if (!result)
        result = dti_tp_cut_terms(&c, &d);
    if (!result && !dti_tp_cut_parts(&c, tp))
        result =
            dti_fail(par->base, DT_ERROR_INVALID,
                     "%s = %u: no layer is split; set .tensor of layers (dt_linear_desc.tensor)",
                     c.setting, tp->size);
    *out = c.to;
    dti_tp_cut_close(g, &c);
    return result;
}
