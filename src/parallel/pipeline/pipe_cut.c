/* Cuts a graph. A node is computed by the chunk in whose range it was made. Inputs, views of them,
 * and what depends on neither samples nor parameters are computed wherever they are needed. A
 * parameter lies in the first chunk that reads it; a later one that reads it too receives it like a
 * tensor, and sends back its share of the gradient. No cut goes through the nodes that one API
 * function made (dti_call). So batch norm and its running statistics stay together.
 *
 * Without marks pipe_search.c finds the cuts. */

/* ---- needed nodes, and the chunks that may compute them */

static void dti_pipe_need(dti_pipe_cut *cut, const dt_graph *g, const dt_program_desc *d) {
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        cut->needed[d->losses[i].term.id] = 1; /* nil is 0 */
        cut->needed[d->metrics[i].id] = 1;
    }
    cut->needed[0] = 0;
    dti_need_inputs(g, NULL, cut->needed);
    for (uint32_t i = 0; i < g->param_count; i++) {
        const dti_node *n = &g->nodes[g->params[i]];
        const uint32_t update = n->buffer ? (uint32_t)n->attr.i[2] : 0;
        if (update && cut->needed[dti_input_id(g, &g->nodes[update], 1)])
            cut->needed[update] = 1;
    }
    dti_need_inputs(g, NULL, cut->needed);
}

static bool dti_pipe_is_anywhere(const dti_pipe_cut *cut, const dt_graph *g, const dti_node *n) {
    bool all = !n->term && n->op != DTI_OP_PARAM;
    const bool view = n->count && dti_op_info_of(n->op)->family->view;
    for (uint32_t k = 0; k < n->count; k++)
        all = all && cut->anywhere[dti_input_id(g, n, k)];
    return all && (n->op == DTI_OP_INPUT || view || !n->samples);
}

/* After the function that made the marked tensor. */
static uint32_t dti_pipe_behind(const dti_pipe_places *p, uint32_t id) {
    do
        id++;
    while (p->inside[id]);
    return id;
}

static dt_result dti_pipe_cut_marked(dti_base *base, const dt_graph *g, dti_pipe_cut *cut,
                                     const dti_pipe_places *p) {
    uint32_t now = 0;
    for (uint32_t id = 1; id < cut->nodes; id++) {
        const uint32_t stage = g->nodes[id].stage;
        if (!stage || stage == now)
            continue;
        if (stage >= cut->chunks)
            return dti_fail(base, DT_ERROR_INVALID,
                            "dt_stage marks stage %u, but the pipeline has %u (0 to %u)", stage,
                            cut->chunks, cut->chunks - 1);
        if (stage != now + 1)
            return dti_fail(base, DT_ERROR_INVALID,
                            "dt_stage marks stage %u after stage %u; mark each once, in order",
                            stage, now);
        cut->starts[++now] = dti_pipe_behind(p, id);
    }
    if (now + 1 == cut->chunks)
        return DT_OK;
    return dti_fail(base, DT_ERROR_INVALID,
                    "dt_stage marks %u stages, including stage 0, but the pipeline has %u", now + 1,
                    cut->chunks);
}

/* ---- homes and links */

static uint16_t dti_pipe_range(const dti_pipe_cut *cut, uint32_t id) {
    uint16_t chunk = 0;
    while (chunk + 1u < cut->chunks && id >= cut->starts[chunk + 1u])
        chunk++;
    return chunk;
}

static void dti_pipe_homes(dti_pipe_cut *cut, const dt_graph *g) {
    for (uint32_t id = 0; id < cut->nodes; id++)
        cut->home[id] = DTI_PIPE_NOWHERE;
    for (uint32_t id = 1; id < cut->nodes; id++) {
        const dti_node *n = &g->nodes[id];
        if (!cut->needed[id] || cut->anywhere[id] || n->op == DTI_OP_PARAM)
            continue;
        cut->home[id] = dti_pipe_range(cut, id);
        for (uint32_t k = 0; k < n->count; k++) {
            const uint32_t in = dti_input_id(g, n, k);
            if (g->nodes[in].op == DTI_OP_PARAM)
                cut->home[in] = DTI_MIN(cut->home[in], cut->home[id]);
        }
    }
}

static bool dti_pipe_has_link(const dti_pipe_cut *cut, uint32_t node, uint16_t to) {
    for (uint32_t i = cut->link_count; i-- > 0 && cut->links[i].to == to;) {
        if (cut->links[i].node == node)
            return true;
    }
    return false;
}

/* The gradient goes to the chunk before that needs the node too, or home. */
static uint16_t dti_pipe_back(const dti_pipe_cut *cut, uint32_t node) {
    for (uint32_t i = cut->link_count; i-- > 0;) {
        if (cut->links[i].node == node)
            return cut->links[i].to;
    }
    return cut->home[node];
}

static dt_result dti_pipe_link_add(dti_base *base, dti_pipe_cut *cut, size_t *capacity,
                                   uint32_t node, uint16_t to) {
    if (dti_pipe_has_link(cut, node, to))
        return DT_OK;
    void *links = cut->links;
    const bool room =
        dti_array_reserve(base, &links, capacity, cut->link_count + 1u, sizeof *cut->links);
    cut->links = links;
    if (!room)
        return DT_ERROR_MEMORY;
    cut->links[cut->link_count] =
        (dti_pipe_link){.node = node,
                        .from = cut->home[node],
                        .to = to,
                        .back = dti_pipe_back(cut, node),
                        .gradient = cut->givers && cut->givers[node] >= cut->starts[to]};
    cut->link_count++;
    return DT_OK;
}

static dt_result dti_pipe_links(dti_base *base, dti_pipe_cut *cut, const dt_graph *g) {
    size_t capacity = 0;
    for (uint32_t id = 1; id < cut->nodes; id++) { /* so `to` ascends */
        const dti_node *n = &g->nodes[id];
        const uint16_t to = cut->home[id];
        for (uint32_t k = 0; k < n->count && n->op != DTI_OP_PARAM; k++) {
            const uint32_t in = dti_input_id(g, n, k);
            if (to != DTI_PIPE_NOWHERE && cut->home[in] != DTI_PIPE_NOWHERE && cut->home[in] != to)
                DTI_TRY(dti_pipe_link_add(base, cut, &capacity, in, to));
        }
    }
    return DT_OK;
}

/* ---- errors of a cut */

static uint32_t dti_pipe_outputs(const dti_pipe_cut *cut, uint32_t chunk, uint32_t *nodes) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < cut->link_count; i++) {
        const dti_pipe_link *l = &cut->links[i];
        uint32_t same = 0;
        while (same < i && (cut->links[same].from != chunk || cut->links[same].node != l->node))
            same++;
        if (l->from == chunk && same == i && count++ < DT_MAX_OUTPUTS && nodes)
            nodes[count - 1] = l->node;
    }
    return count;
}

/* output: a tensor that its chunk gives as well; 0: none. */
static dt_result dti_pipe_cut_check(dti_base *base, const dti_pipe_cut *cut, uint32_t output) {
    for (uint32_t c = 0; c < cut->chunks; c++) {
        uint32_t in = 0, back = 0, out = dti_pipe_outputs(cut, c, NULL);
        for (uint32_t i = 0; i < cut->link_count; i++) {
            in += cut->links[i].to == c;
            back += cut->links[i].gradient && cut->links[i].back == c;
        }
        out = DTI_MAX(back, out + (output && cut->home[output] == c));
        if (in > DT_MAX_OUTPUTS || out > DT_MAX_OUTPUTS)
            return dti_fail(base, DT_ERROR_UNSUPPORTED,
                            "stage %u of the pipeline receives %u tensors and sends %u; at most %d "
                            "each: cut where fewer cross",
                            c, in, out, DT_MAX_OUTPUTS);
    }
    return DT_OK;
}

static dt_result dti_pipe_cut_trains(dti_base *base, const dti_pipe_cut *cut, const dt_graph *g,
                                     const char *params) {
    for (uint32_t c = 0; c < cut->chunks; c++) {
        uint32_t trained = 0;
        for (uint32_t i = 0; i < g->param_count; i++)
            trained += cut->home[g->params[i]] == c &&
                       dti_param_is_trained(&g->nodes[g->params[i]], params);
        if (!trained)
            return dti_fail(base, DT_ERROR_INVALID,
                            "stage %u of the pipeline has no parameter to train; use fewer stages, "
                            "or other cuts (dt_stage)",
                            c);
    }
    return DT_OK;
}

static dt_result dti_pipe_cut_places(dti_base *base, const dt_graph *g, const dt_program_desc *desc,
                                     uint32_t rows, uint32_t micros, dti_pipe_cut *cut) {
    dti_pipe_places p;
    bool marked = false;
    dt_result result = dti_pipe_places_open(base, g, &p) ? DT_OK : DT_ERROR_MEMORY;
    for (uint32_t id = 1; id < g->count; id++)
        marked = marked || (cut->chunks > 1 && g->nodes[id].stage);
    cut->starts[0] = 1;
    cut->starts[cut->chunks] = cut->nodes;
    if (!result)
        result = dti_pipe_gradients(cut, g, desc, rows, p.before + 1);
    if (!result) {
        dti_pipe_places_readers(cut, g, &p);
        dti_pipe_places_time(cut, g, desc->params, rows, micros, &p);
        dti_pipe_places_fill(cut, g, rows, &p);
        result = marked ? dti_pipe_cut_marked(base, g, cut, &p) : dti_pipe_cut_auto(base, cut, &p);
    }
    for (uint32_t c = 0; c < cut->chunks && !result; c++)
        cut->work[c] = (p.before[cut->starts[c + 1]] - p.before[cut->starts[c]]) /
                       DTI_MAX(p.before[cut->nodes], 1.0);
    DTI_FREE(base, p.before, p.cross, p.tensors, p.trained, p.inside, p.first, p.last);
    return result;
}

static dt_result dti_pipe_cut_open(dti_base *base, const dt_graph *g, const dt_program_desc *desc,
                                   uint32_t chunks, dti_pipe_cut *cut) {
    *cut = (dti_pipe_cut){.chunks = chunks, .nodes = g->count};
    cut->home = dti_alloc_array(base, g->count, sizeof *cut->home);
    cut->needed = dti_alloc_array(base, g->count, 1);
    cut->anywhere = dti_alloc_array(base, g->count, 1);
    cut->givers = dti_alloc_array(base, g->count, sizeof *cut->givers);
    cut->low = dti_alloc_array(base, g->count, 1);
    if (!cut->home || !cut->needed || !cut->anywhere || !cut->givers || !cut->low)
        return DT_ERROR_MEMORY;
    if (desc->precision)
        DTI_TRY(dti_cast_find_low(g, cut->low));
    dti_pipe_need(cut, g, desc);
    for (uint32_t id = 1; id < g->count; id++)
        cut->anywhere[id] = dti_pipe_is_anywhere(cut, g, &g->nodes[id]);
    return DT_OK;
}

static dt_result dti_pipe_cut_link(dti_base *base, const dt_graph *g, const dt_program_desc *desc,
                                   dti_pipe_cut *cut) {
    dti_pipe_homes(cut, g);
    const dt_result result = dti_pipe_links(base, cut, g);
    dti_free(base, cut->givers);
    cut->givers = NULL;
    DTI_TRY(result ? result : dti_pipe_cut_trains(base, cut, g, desc->params));
    return dti_pipe_cut_check(base, cut, 0);
}

static dt_result dti_pipe_cut_make(dti_base *base, const dt_graph *g, const dt_program_desc *desc,
                                   uint32_t chunks, uint32_t rows, uint32_t micros,
                                   dti_pipe_cut *cut) {
    DTI_TRY(dti_pipe_cut_open(base, g, desc, chunks, cut));
    DTI_TRY(dti_pipe_cut_places(base, g, desc, rows, micros, cut));
    return dti_pipe_cut_link(base, g, desc, cut);
}

static dt_result dti_pipe_cut_like(dti_base *base, const dt_graph *g, const dt_program_desc *desc,
                                   const dti_pipe_cut *like, const uint32_t *begin,
                                   dti_pipe_cut *cut) {
    DTI_TRY(dti_pipe_cut_open(base, g, desc, like->chunks, cut));
    for (uint32_t c = 0; c <= like->chunks; c++)
        cut->starts[c] = begin[like->starts[c]];
    memcpy(cut->work, like->work, sizeof cut->work);
    DTI_TRY(dti_pipe_gradients(cut, g, desc, 1, NULL));
    return dti_pipe_cut_link(base, g, desc, cut);
}

/* ---- a cut of forward parts by themselves */

/* The chunk of a node: its step's, else that of the last of its inputs. */
static dt_result dti_pipe_forward_home(dti_base *base, const dt_graph *g, const dti_pipe_cut *steps,
                                       uint32_t id, dti_pipe_cut *cut) {
    const dti_node *n = &g->nodes[id];
    cut->home[id] = steps->home[id];
    if (steps->home[id] != DTI_PIPE_NOWHERE)
        return DT_OK;
    if (n->op == DTI_OP_PARAM)
        return dti_fail(base, DT_ERROR_UNSUPPORTED,
                        "the tensor depends on parameter '%s', which no loss and no metric reads, "
                        "so no stage has it; give a metric that reads it",
                        n->label);
    cut->home[id] = 0;
    for (uint32_t k = 0; k < n->count; k++) {
        const uint16_t home = cut->home[dti_input_id(g, n, k)];
        if (home != DTI_PIPE_NOWHERE)
            cut->home[id] = DTI_MAX(cut->home[id], home);
    }
    return DT_OK;
}

static dt_result dti_pipe_forward_links(dti_base *base, const dt_graph *g, dti_pipe_cut *cut) {
    size_t capacity = 0;
    for (uint32_t to = 0; to < cut->chunks; to++) {
        for (uint32_t id = 1; id < cut->nodes; id++) {
            const dti_node *n = &g->nodes[id];
            for (uint32_t k = 0; k < n->count && cut->home[id] == to; k++) {
                const uint32_t in = dti_input_id(g, n, k);
                if (cut->home[in] != DTI_PIPE_NOWHERE && cut->home[in] != to)
                    DTI_TRY(dti_pipe_link_add(base, cut, &capacity, in, (uint16_t)to));
            }
        }
    }
    return DT_OK;
}

static dt_result dti_pipe_cut_forward(dti_base *base, const dt_graph *g, const dti_pipe_cut *steps,
                                      const dt_program_desc *desc, uint32_t output,
                                      dti_pipe_cut *cut) {
    *cut = (dti_pipe_cut){.chunks = steps->chunks, .nodes = steps->nodes};
    cut->home = dti_alloc_array(base, g->count, sizeof *cut->home);
    cut->needed = dti_alloc_array(base, g->count, 1);
    cut->low = dti_alloc_array(base, g->count, 1);
    if (!cut->home || !cut->needed || !cut->low)
        return DT_ERROR_MEMORY;
    memcpy(cut->starts, steps->starts, sizeof cut->starts);
    memcpy(cut->low, steps->low, steps->nodes);
    for (int i = 0; i < DT_MAX_TERMS && !output; i++)
        cut->needed[desc->losses[i].term.id] = cut->needed[desc->metrics[i].id] = 1;
    cut->needed[output] = 1;
    cut->needed[0] = 0;
    dti_need_inputs(g, NULL, cut->needed);
    for (uint32_t id = 0; id < cut->nodes; id++) {
        cut->home[id] = DTI_PIPE_NOWHERE;
        if (cut->needed[id] && !steps->anywhere[id])
            DTI_TRY(dti_pipe_forward_home(base, g, steps, id, cut));
    }
    DTI_TRY(dti_pipe_forward_links(base, g, cut));
    if (output && cut->home[output] == DTI_PIPE_NOWHERE)
        cut->home[output] = 0; /* each could compute it */
    return dti_pipe_cut_check(base, cut, output);
}

static void dti_pipe_cut_free(dti_base *base, dti_pipe_cut *cut) {
    DTI_FREE(base, cut->home, cut->needed, cut->anywhere, cut->low, cut->givers, cut->links);
    *cut = (dti_pipe_cut){0};
}

/* ---- a chunk by itself */

/* An input that another stage writes: attr.i[2] distinguishes it from the application's inputs. */
static void dti_pipe_as_input(dti_node *n, bool low) {
    n->op = DTI_OP_INPUT;
    n->low = low;
    n->count = 0;
    n->frozen = n->buffer = n->recompute = false;
    n->values = NULL;
    n->attr = (dti_attr){.i = {0, 0, 1}};
}

static dt_result dti_pipe_cut_graph(const dti_pipe_cut *cut, const dt_graph *g, uint32_t chunk,
                                    dt_ctx *ctx, dt_graph **out) {
    DTI_TRY(dti_graph_copy(g, ctx, out));
    dt_graph *own = *out;
    own->call_count = 0; /* other shapes are asked of no stage */
    own->param_count = 0;
    for (uint32_t i = 0; i < g->param_count; i++) {
        if (cut->home[g->params[i]] != chunk)
            continue;
        own->nodes[g->params[i]].attr.i[0] = (int32_t)own->param_count;
        own->params[own->param_count++] = g->params[i];
    }
    for (uint32_t i = 0; i < cut->link_count; i++) {
        if (cut->links[i].to == chunk)
            dti_pipe_as_input(&own->nodes[cut->links[i].node], cut->low[cut->links[i].node]);
    }
    return DT_OK;
}

static void dti_pipe_cut_desc(const dti_pipe_cut *cut, uint32_t chunk, dt_graph *g,
                              dt_program_desc *d, dti_staged *staged, uint8_t *losses,
                              uint8_t *metrics) {
    const dt_program_desc all = *d;
    uint32_t n = 0, outputs[DT_MAX_OUTPUTS];
    d->loss = (dt_tensor){0};
    memset(d->losses, 0, sizeof d->losses);
    memset(d->metrics, 0, sizeof d->metrics);
    for (uint8_t i = 0; i < DT_MAX_TERMS; i++) {
        const dt_loss *l = &all.losses[i];
        if (!l->term.id || cut->home[l->term.id] != chunk)
            continue;
        losses[n] = i;
        d->losses[n++] = (dt_loss){{g, l->term.id}, l->coefficient};
    }
    n = 0;
    for (uint8_t i = 0; i < DT_MAX_TERMS; i++) {
        if (!all.metrics[i].id || cut->home[all.metrics[i].id] != chunk)
            continue;
        metrics[n] = i;
        d->metrics[n++] = (dt_tensor){g, all.metrics[i].id};
    }
    n = dti_pipe_outputs(cut, chunk, outputs);
    for (uint32_t i = 0; i < n; i++)
        d->outputs[i] = (dt_tensor){g, outputs[i]};
    n = 0;
    uint32_t in = 0;
    for (uint32_t i = 0; i < cut->link_count; i++) {
        const dti_pipe_link *l = &cut->links[i];
        if (l->gradient && l->back == chunk)
            d->host_gradients[n++] = (dt_tensor){g, l->node};
        if (l->gradient && l->to == chunk)
            staged->inputs[in++] = (dt_tensor){g, l->node};
    }
}
