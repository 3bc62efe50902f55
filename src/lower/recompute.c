/* Recompute: values that dt_recompute marks are not kept for the backward pass. Gradient rows read
 * a copy of the marked node instead. The backward pass computes it from kept values. A copy is the
 * same row with the same attributes (also dropout's stream) over the same values, so it has the
 * same bits. Each is emitted just before the first gradient row that needs it. Numbers of nodes
 * stay; w->order has the order of emission.
 *
 * The program keeps leaves, outputs, nodes that see or add up samples (losses, the batch's
 * statistics), and unmarked values that gradient rows read. A mark holds for memory: a view marks
 * its source, and that source's other views. Mixed precision computes cheap values again without a
 * mark. */

typedef struct dti_recompute {
    dti_lowering *w;
    dt_graph *graph;
    uint32_t forward, end; /* gradient rows are [forward, end) */
    uint8_t *needed, *marked, *kept, *cheap;
    uint32_t *copy;    /* of a forward node; its own number while it waits for a copy; 0 = none */
    uint32_t *wait;    /* those that the next row needs and that do not exist yet */
    uint32_t *changer; /* by gradient row: the row that may become its epilogue; 0 = none */
    uint32_t *readers; /* by node: how many needed rows read it */
    uint32_t count;    /* of w->order */
} dti_recompute;

static bool dti_recompute_is_view(const dt_graph *g, uint32_t id) {
    return dti_op_info_of(g->nodes[id].op)->family->view;
}

/* Whether the forward pass and a copy give the same values, whatever else happens in between. */
static bool dti_recompute_can(const dt_graph *g, uint32_t id) {
    const dti_node *n = &g->nodes[id];
    const dti_op_info *info = dti_op_info_of(n->op);
    bool adds = false; /* over samples */
    for (uint32_t k = 0; k < n->count && !n->samples; k++)
        adds = adds || g->nodes[dti_input_id(g, n, k)].samples;
    return n->op != DTI_OP_INPUT && n->op != DTI_OP_PARAM && !n->term && !adds &&
           info->samples != DTI_SAMPLES_COUPLES && !info->family->update && !info->family->meet;
}

/* ---- kept values */

/* Marks the source of a view, then from there its other views. */
static void dti_recompute_spread(const dti_recompute *r) {
    const dt_graph *g = r->graph;
    for (uint32_t id = r->forward - 1; id > 0; id--) {
        r->marked[id] = r->marked[id] || g->nodes[id].recompute;
        if (r->marked[id] && dti_recompute_is_view(g, id))
            r->marked[dti_input_id(g, &g->nodes[id], 0)] = 1;
    }
    for (uint32_t id = 1; id < r->forward; id++) {
        if (dti_recompute_is_view(g, id))
            r->marked[id] = r->marked[dti_input_id(g, &g->nodes[id], 0)];
    }
}

static void dti_recompute_keep(const dti_recompute *r) {
    const dt_graph *g = r->graph;
    const dti_code *code = r->w->code;
    const dt_tensor *outputs = code->desc.outputs;
    for (uint32_t i = 0; i < DT_MAX_OUTPUTS && dti_is_set(outputs[i]); i++) {
        const uint32_t id = dti_code_node(code, outputs[i].id);
        r->kept[id] = !dti_recompute_is_view(g, id);
    }
    for (uint32_t id = r->forward; id < r->end; id++) {
        for (uint32_t k = 0; r->needed[id] && k < g->nodes[id].count; k++) {
            const uint32_t in = dti_input_id(g, &g->nodes[id], k);
            r->kept[in] = r->kept[in] || !r->marked[in];
        }
    }
    for (uint32_t id = r->forward - 1; id > 0; id--) {
        r->kept[id] = r->kept[id] || !dti_recompute_can(g, id);
        if (r->kept[id] && dti_recompute_is_view(g, id) && !r->marked[id])
            r->kept[dti_input_id(g, &g->nodes[id], 0)] = 1;
    }
}

/* ---- mixed precision */

static uint32_t dti_recompute_whole(const dt_graph *g, uint32_t id) { /* the source of a view */
    while (dti_recompute_is_view(g, id))
        id = dti_input_id(g, &g->nodes[id], 0);
    return id;
}

/* Whether one launch makes a node's 16 bits again from kept values: by rounding or normalising. An
 * operand that is not kept, as in a frozen trunk, might take many launches. Casts of leaves stay: a
 * small model's step would be some percent longer. */
static bool dti_recompute_is_cheap(const dti_recompute *r, uint32_t id) {
    const dt_graph *g = r->graph;
    const dti_node *n = &g->nodes[id];
    if (!dti_is_half(n->dtype))
        return false;
    if (n->source) {
        const uint32_t whole = dti_recompute_whole(g, n->source);
        if (r->kept[whole] && g->nodes[whole].count)
            return true;
        n = &g->nodes[n->source];
    }
    bool kept = dti_op_info_of(n->op)->family->cheap;
    for (uint32_t k = 0; k < n->count && kept; k++)
        kept = r->kept[dti_recompute_whole(g, dti_input_id(g, n, k))];
    return kept;
}

/* Neither they nor views of them are kept. */
static void dti_recompute_cheap(const dti_recompute *r) {
    const dt_graph *g = r->graph;
    for (uint32_t id = 1; id < r->forward; id++) {
        r->cheap[id] = dti_recompute_is_view(g, id) ? r->cheap[dti_input_id(g, &g->nodes[id], 0)]
                                                    : dti_recompute_is_cheap(r, id);
        r->kept[id] = r->kept[id] && !r->cheap[id];
    }
}

/* ---- which row reads which */

/* A row that changes a gradient element by element may become an epilogue of the launch that makes
 * it. So its other operands must come before that launch. */
static void dti_recompute_changers(const dti_recompute *r) {
    const dt_graph *g = r->graph;
    for (uint32_t id = 1; id < r->end; id++) {
        for (uint32_t k = 0; r->needed[id] && k < g->nodes[id].count; k++)
            r->readers[dti_input_id(g, &g->nodes[id], k)]++;
    }
    for (uint32_t id = r->forward; id < r->end; id++) {
        const dti_node *n = &g->nodes[id];
        for (uint32_t k = 0; r->needed[id] && n->count == 2 && k < 2; k++) {
            const uint32_t in = dti_input_id(g, n, k);
            if (in >= r->forward && r->readers[in] == 1 &&
                dti_shape_equal(g->nodes[in].shape, n->shape))
                r->changer[in] = id;
        }
    }
}

/* ---- copies */

static uint32_t dti_recompute_of(const dti_recompute *r, uint32_t id) {
    return id < r->forward && r->copy[id] ? r->copy[id] : id;
}

static void dti_recompute_want(const dti_recompute *r, uint32_t row, uint32_t *count) {
    const dti_node *n = &r->graph->nodes[row];
    for (uint32_t k = 0; k < n->count; k++) {
        const uint32_t id = dti_input_id(r->graph, n, k);
        if (id >= r->forward || r->kept[id] || r->copy[id])
            continue;
        r->copy[id] = id;
        r->wait[(*count)++] = id;
    }
}

static void dti_recompute_copy(dti_recompute *r, uint32_t id) {
    dt_graph *g = r->graph;
    const dti_node n = g->nodes[id]; /* appending moves the graph's */
    const dt_tensor copy = dti_graph_push(g, &n, NULL, 0);
    if (dti_is_nil(copy) ||
        !DTI_RESERVE(g->base, g->inputs, g->input_capacity, (size_t)g->input_count + n.count)) {
        dti_graph_no_memory(g, "out of host memory for recomputation");
        return;
    }
    for (uint32_t k = 0; k < n.count; k++)
        g->inputs[g->input_count++] = dti_recompute_of(r, g->inputs[n.first + k]);
    g->nodes[copy.id].count = n.count;
    r->copy[id] = copy.id;
}

static int dti_recompute_before(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* A gradient row, after the copies that it needs, and those after the copies that they need. */
static void dti_recompute_row(dti_recompute *r, uint32_t row) {
    dt_graph *g = r->graph;
    uint32_t count = 0;
    if (r->needed[row])
        dti_recompute_want(r, row, &count);
    if (r->needed[row] && r->changer[row])
        dti_recompute_want(r, r->changer[row], &count);
    for (uint32_t i = 0; i < count; i++)
        dti_recompute_want(r, r->wait[i], &count);
    qsort(r->wait, count, sizeof *r->wait, dti_recompute_before);
    for (uint32_t i = 0; i < count && !g->error[0]; i++) {
        dti_recompute_copy(r, r->wait[i]);
        r->w->order[r->count++] = r->copy[r->wait[i]];
    }
    for (uint32_t k = 0; r->needed[row] && k < g->nodes[row].count; k++) {
        uint32_t *in = &g->inputs[g->nodes[row].first + k];
        *in = dti_recompute_of(r, *in);
    }
    r->w->order[r->count++] = row;
}

/* ---- the pass */

static bool dti_recompute_open(dti_recompute *r, dti_lowering *w) {
    dt_graph *g = w->code->work;
    *r = (dti_recompute){.w = w, .graph = g, .forward = w->code->backward_node, .end = g->count};
    r->needed = dti_alloc_array(g->base, g->count, 1);
    r->marked = dti_alloc_array(g->base, g->count, 1);
    r->kept = dti_alloc_array(g->base, g->count, 1);
    r->cheap = dti_alloc_array(g->base, g->count, 1);
    r->copy = dti_alloc_array(g->base, g->count, sizeof *r->copy);
    r->wait = dti_alloc_array(g->base, g->count, sizeof *r->wait);
    r->changer = dti_alloc_array(g->base, g->count, sizeof *r->changer);
    r->readers = dti_alloc_array(g->base, g->count, sizeof *r->readers);
    return r->needed && r->marked && r->kept && r->cheap && r->copy && r->wait && r->changer &&
           r->readers;
}

static void dti_recompute_close(dti_recompute *r) {
    DTI_FREE(r->graph->base, r->needed, r->marked, r->kept, r->cheap, r->copy, r->wait, r->changer,
             r->readers);
}

static dt_result dti_recompute_run(dti_recompute *r) {
    dti_lowering *w = r->w;
    dti_need_all(w, r->needed);
    if (w->choice.parts && !dti_choice_mark(w, r->needed, r->marked, r->kept))
        return DT_ERROR_MEMORY;
    dti_recompute_spread(r);
    dti_recompute_keep(r);
    if (w->code->desc.precision != DT_PRECISION_F32)
        dti_recompute_cheap(r);
    dti_recompute_changers(r);
    r->count = r->forward;
    for (uint32_t row = r->forward; row < r->end && !r->graph->error[0]; row++)
        dti_recompute_row(r, row);
    w->copy_of = dti_alloc_array(r->graph->base, r->graph->count, sizeof *w->copy_of);
    if (r->graph->error[0] || !w->copy_of)
        return DT_ERROR_MEMORY;
    for (uint32_t id = 1; id < r->forward; id++) {
        if (r->copy[id])
            w->copy_of[r->copy[id]] = id;
    }
    return DT_OK;
}

static dt_result dti_pass_recompute(dti_lowering *w) {
    const dti_code *code = w->code;
    const dt_graph *g = code->work;
    bool marks = w->choice.parts > 0 || code->desc.precision != DT_PRECISION_F32;
    dti_recompute r;
    /* every forward node may get one copy */
    w->order =
        dti_alloc_array(code->base, (size_t)g->count + code->backward_node, sizeof *w->order);
    DTI_HAVE(w->order);
    for (uint32_t id = 0; id < g->count; id++)
        w->order[id] = id;
    for (uint32_t id = 1; id < code->backward_node; id++)
        marks = marks || g->nodes[id].recompute;
    if (!marks || !code->has_gradients)
        return DT_OK;
    dt_result result = dti_recompute_open(&r, w) ? dti_recompute_run(&r) : DT_ERROR_MEMORY;
    dti_recompute_close(&r);
    return result;
}

/* ---- sent values first */

/* A row stays after its inputs: if a row moves forward, so do all its inputs. */
static dt_result dti_pass_split(dti_lowering *w) {
    const dt_graph *g = w->code->work;
    const uint32_t begin = w->code->backward_node;
    if (!w->staged || !w->staged->split)
        return DT_OK;
    uint8_t *leaves = dti_alloc(g->base, g->count);
    uint32_t *behind = dti_alloc_array(g->base, g->count, sizeof *behind), count = 0;
    if (leaves && behind) {
        for (uint32_t i = 0; i < w->code->leaving_count; i++)
            leaves[w->code->leaving_dx[i].id] = 1;
        dti_need_inputs(g, w->order, leaves);
        w->split = begin;
        for (uint32_t i = begin; i < g->count; i++) {
            if (leaves[w->order[i]])
                w->order[w->split++] = w->order[i];
            else
                behind[count++] = w->order[i];
        }
        memcpy(w->order + w->split, behind, count * sizeof *behind);
    }
    const dt_result result = leaves && behind ? DT_OK : DT_ERROR_MEMORY;
    DTI_FREE(g->base, leaves, behind);
    return result;
}
