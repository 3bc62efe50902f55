/* The nodes that a code computes: the roots, then the inputs of needed nodes (emitted before them),
 * and how often each is read. From here on nodes have numbers that index the lowering's arrays. */

static void dti_need_inputs(const dt_graph *g, const uint32_t *order, uint8_t *needed) {
    for (uint32_t i = g->count - 1; i > 0; i--) {
        const uint32_t id = order ? order[i] : i;
        const dti_node *n = &g->nodes[id];
        for (uint32_t k = 0; needed[id] && k < n->count; k++)
            needed[dti_input_id(g, n, k)] = 1;
    }
}

/* stands: by node, the node that has its value; NULL: itself. */
static void dti_need_root(const dt_graph *g, const uint32_t *stands, dt_tensor x, uint8_t *needed) {
    if (x.graph == g && !dti_is_nil(x))
        needed[stands ? stands[x.id] : x.id] = 1;
}

static void dti_need_roots(const dt_graph *g, const dt_program_desc *d, const uint32_t *stands,
                           uint8_t *needed) {
    dti_need_root(g, stands, d->loss, needed);
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        dti_need_root(g, stands, d->losses[i].term, needed);
        dti_need_root(g, stands, d->metrics[i], needed);
    }
    for (int i = 0; i < DT_MAX_OUTPUTS; i++) {
        dti_need_root(g, stands, d->outputs[i], needed);
        dti_need_root(g, stands, d->host_gradients[i], needed);
    }
}

static void dti_need_all(const dti_lowering *w, uint8_t *needed) {
    const dti_code *code = w->code;
    dti_need_roots(w->graph, &code->desc, code->stands, needed);
    for (uint32_t i = 0; i < code->layout->param_count; i++) {
        if (code->trained[i])
            needed[code->param_dx[i].id] = 1;
    }
    for (uint32_t i = 0; i < code->leaving_count; i++)
        needed[code->leaving_dx[i].id] = 1;
    dti_need_inputs(code->work, w->order, needed);
}

/* A running statistic moves where the step computes the batch's and commits. */
static void dti_need_updates(dti_code *code, uint8_t *needed) {
    const dt_graph *g = code->work;
    for (uint32_t i = 0; i < code->layout->param_count && code->has_optim && code->train; i++) {
        const dti_node *n = &g->nodes[code->layout->params[i].node];
        uint32_t update = n->buffer ? (uint32_t)n->attr.i[2] : 0;
        if (!update || !needed[dti_input_id(g, &g->nodes[update], 1)])
            continue;
        code->update[i] = update;
        needed[update] = needed[code->layout->params[i].node] = 1;
    }
}

static bool dti_lowering_alloc(dti_lowering *w) {
    dti_code *code = w->code;
    uint32_t nodes = code->work->count, inputs = 0;
    for (uint32_t i = 0; i < nodes; i++)
        inputs += code->work->nodes[i].op == DTI_OP_INPUT;
    code->bindings =
        dti_alloc_array(code->base, inputs + 2 * DT_MAX_OUTPUTS, sizeof *code->bindings);
    w->needed = dti_alloc_array(code->base, nodes, 1);
    w->pin = dti_alloc_array(code->base, nodes, sizeof *w->pin);
    w->param_of = dti_alloc_array(code->base, nodes, sizeof *w->param_of);
    w->stat_of = dti_alloc_array(code->base, nodes, sizeof *w->stat_of);
    w->next_param =
        dti_alloc_array(code->base, code->layout->param_count + 1u, sizeof *w->next_param);
    w->e.views = dti_alloc_array(code->base, nodes, sizeof *w->e.views);
    w->own = dti_alloc_array(code->base, nodes, sizeof *w->own);
    w->bucket_left =
        dti_alloc_array(code->base, code->slices.bucket_count + 1u, sizeof *w->bucket_left);
    return code->bindings && w->needed && w->pin && w->param_of && w->stat_of && w->next_param &&
           w->e.views && w->own && w->bucket_left;
}

/* Batch norm over one value a channel, which PyTorch rejects too: its variance is always 0. */
static bool dti_sees_one_value(const dti_code *code, const dti_node *n, int64_t rows) {
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    return code->train && family->values && rows * family->values(n) <= 1;
}

static dt_result dti_lower_batch_values(const dti_code *code, const dti_node *n) {
    const dti_node *x = &code->work->nodes[dti_input_id(code->work, n, 0)];
    if (!dti_sees_one_value(code, n, code->batch))
        return DT_OK;
    return dti_code_fail(code, DT_ERROR_INVALID,
                         "batch_norm(%s) at batch %lld has one value a channel; to train use a "
                         "larger batch, or dt_layer_norm",
                         dti_shape_print(x->shape, true).text, (long long)code->batch);
}

/* The largest batch that a node takes. */
static int64_t dti_lower_room(const dti_node *n) {
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    return family->room ? family->room(n) : INT64_MAX;
}

static dt_result dti_lower_sizes(const dti_lowering *w) {
    const dti_code *code = w->code;
    for (uint32_t id = 1; id < code->work->count; id++) {
        const dti_node *n = &code->work->nodes[id];
        uint64_t elements = dti_node_elements(code, n);
        if (w->needed[id] && !code->slices.piece_count) {
            DTI_TRY(dti_lower_batch_values(code, n));
        }
        if (w->needed[id] && dti_lower_room(n) < code->batch)
            return dti_code_fail(
                code, DT_ERROR_INVALID,
                ".batch is %lld, but its caches have room for %lld samples (dt_cache_desc.samples)",
                (long long)code->batch, (long long)dti_lower_room(n));
        if (!w->needed[id] || elements <= INT32_MAX)
            continue;
        return dti_code_fail(
            code, DT_ERROR_INVALID,
            "%s %s has %llu elements at batch %lld, more than 2^31; use a smaller batch",
            dti_op_info_of(n->op)->name, dti_shape_print(n->shape, n->samples).text,
            (unsigned long long)elements, (long long)code->batch);
    }
    return DT_OK;
}

/* How often each node's value is read. */
static void dti_need_readers(const dt_graph *g, const uint8_t *needed, dti_span_of_node *own) {
    for (uint32_t id = 1; id < g->count; id++) {
        for (uint32_t k = 0; needed[id] && k < g->nodes[id].count; k++)
            own[dti_input_id(g, &g->nodes[id], k)].uses++;
    }
}

static dt_result dti_pass_need(dti_lowering *w) {
    dti_code *code = w->code;
    DTI_HAVE(dti_lowering_alloc(w));
    w->e = (dti_emit){.list = &code->list,
                      .graph = code->work,
                      .batch = code->batch,
                      .train = code->train,
                      .rounds = !code->limits.workgroups && code->slices.piece_count <= 1,
                      .workgroups = code->limits.workgroups,
                      .apart = code->limits.apart,
                      .range_bytes = code->limits.storage_range_bytes,
                      .views = w->e.views};
    /* Value 0 means "none" in pins, and replaces values for which memory ran out. */
    dti_listing_value(&code->list, DTI_VALUE_OUT, DT_I32, 1, 0);
    dti_need_all(w, w->needed);
    dti_need_updates(code, w->needed);
    dti_need_readers(code->work, w->needed, w->own);
    dt_result result = code->list.result ? code->list.result : dti_lower_sizes(w);
    return result ? result : dti_sync_points_make(w);
}
