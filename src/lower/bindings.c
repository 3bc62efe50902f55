/* Inputs and outputs, and their places on the host's side. Also the values that need a place of
 * their own: outputs, terms, gradients and the next values of buffers. */

/* 1 + the application's buffer for a tensor; 0 = none. */
static uint8_t dti_code_external(const dti_code *code, uint32_t node) {
    for (uint8_t i = 0; i < DT_MAX_OUTPUTS; i++)
        if (code->desc.external[i].tensor.id == node)
            return (uint8_t)(i + 1);
    return 0;
}

/* A binding of node `id`, and its value. `host`: the host's tensor for it; for a gradient, the
 * tensor whose gradient it is. */
static uint32_t dti_binding_add(dti_code *code, uint32_t id, uint32_t host, bool output,
                                bool gradient) {
    const dti_node *n = &code->work->nodes[id];
    uint64_t *at = output ? &code->out_bytes : &code->in_bytes;
    dti_binding *binding = &code->bindings[code->binding_count++];
    *binding = (dti_binding){.node = host,
                             .offset = *at,
                             .bytes = dti_node_bytes(code, n),
                             .segment = !output && gradient,
                             .output = output,
                             .gradient = gradient,
                             .external = gradient ? 0 : dti_code_external(code, host)};
    if (binding->external)
        return dti_node_value(code, (dti_value_kind)(DTI_ARENAS + binding->external - 1), n, 0);
    *at += dti_aligned(binding->bytes ? binding->bytes : DTI_WORD_BYTES);
    return dti_node_value(code, output ? DTI_VALUE_OUT : DTI_VALUE_IN, n, binding->offset);
}

static void dti_place_inputs(dti_code *code, dti_emit *e, const uint8_t *needed) {
    code->in_bytes = dti_aligned(DTI_WORD_BYTES * DTI_STEP_WORDS);
    for (int gradient = 0; gradient < 2;
         gradient++) { /* the host's gradients last: a range of their own */
        if (gradient)
            code->segments[1].upload.offset = code->in_bytes;
        for (uint32_t id = 1; id < code->work->count; id++) {
            const dti_node *n = &code->work->nodes[id];
            if (n->op != DTI_OP_INPUT || !needed[id] || (id >= code->backward_node) != gradient)
                continue;
            const uint32_t host = gradient ? (uint32_t)n->attr.i[0] : id;
            const uint32_t value = dti_binding_add(code, id, host, false, gradient);
            e->views[id] = dti_view_dense(value, n, code->batch);
        }
        if (!gradient)
            code->segments[0].upload = (dti_range){0, code->in_bytes};
    }
    code->segments[1].upload.bytes = code->in_bytes - code->segments[1].upload.offset;
}

/* One binding for each output, however often it is listed. */
static void dti_place_outputs(dti_code *code, uint32_t *pin) {
    code->out_bytes = dti_aligned(DTI_WORD_BYTES * DTI_STATUS_WORDS);
    for (uint32_t i = 0; i < DT_MAX_OUTPUTS && dti_is_set(code->desc.outputs[i]); i++) {
        const uint32_t id = code->desc.outputs[i].id, node = dti_code_node(code, id);
        if (!dti_code_binding(code, id, true, false))
            pin[node] = dti_binding_add(code, node, id, true, false);
    }
    for (uint32_t i = 0; i < code->leaving_count; i++) {
        const uint32_t dx = code->leaving_dx[i].id;
        if (dti_code_binding(code, code->leaving[i], true, true))
            continue;
        if (!pin[dx]) {
            pin[dx] = dti_binding_add(code, dx, code->leaving[i], true, true);
            continue;
        }
        dti_binding *binding =
            &code->bindings[code->binding_count++]; /* one value, two inputs' gradient */
        *binding = (dti_binding){.node = code->leaving[i], .output = true, .gradient = true};
        binding->offset = code->list.values[pin[dx]].offset;
        binding->bytes = dti_node_bytes(code, &code->work->nodes[dx]);
    }
}

/* ---- pins */

static uint32_t dti_param_value(dti_code *code, uint32_t index, dti_value_kind kind,
                                uint32_t slot) {
    const dti_param *param = &code->layout->params[index];
    const uint64_t at = param->offset + slot * code->layout->elements;
    const bool values = kind == DTI_VALUE_PARAM;
    return dti_listing_value(&code->list, kind, values ? param->dtype : DT_F32, param->elements,
                             dti_bytes(values ? code->layout->dtype : DT_F32, at));
}

static uint32_t dti_term_node(const dti_code *code, uint32_t i) {
    return dti_code_node(code, i < code->loss_count ? code->desc.losses[i].term.id
                                                    : code->desc.metrics[i - code->loss_count].id);
}

static void dti_pin_term(dti_lowering *w, uint32_t i) {
    dti_code *code = w->code;
    const uint32_t id = dti_term_node(code, i);
    for (uint32_t before = 0; before < i; before++) {
        if (dti_term_node(code, before) != id)
            continue;
        code->terms[i] = code->terms[before];
        return;
    }
    if (dti_pieces_have(w, id)) {
        code->terms[i] = dti_pieces_place_out(w, id);
        return;
    }
    uint32_t slot = i < code->loss_count ? i : DT_MAX_TERMS + i - code->loss_count;
    w->pin[id] = dti_listing_value(&code->list, DTI_VALUE_OUT, DT_F32, 2,
                                   DTI_WORD_BYTES * DTI_STATUS_TERM(slot));
    code->terms[i].word = DTI_STATUS_TERM(slot);
}

/* The host moves a running statistic. It reads the values of all replicas' pieces, or the one value
 * for all. */
static void dti_pin_stat(dti_lowering *w, uint32_t param) {
    dti_code *code = w->code;
    const dti_node *n = &code->work->nodes[code->update[param]];
    const uint32_t stats = dti_input_id(code->work, n, 1);
    dti_stat *s = &code->stats[code->stat_count++];
    const dti_update u = dti_op_info_of(n->op)->family->update(n);
    *s = (dti_stat){.param = param,
                    .channels = u.channels,
                    .spatial = u.spatial,
                    .variance = u.variance,
                    .momentum = u.momentum};
    if (w->stat_of[stats]) { /* mean and variance lie together */
        s->at = code->stats[w->stat_of[stats] - 1].at;
        return;
    }
    w->stat_of[stats] = code->stat_count;
    if (dti_pieces_have(w, stats)) {
        s->at = dti_pieces_place_out(w, stats);
        return;
    }
    if (!w->pin[stats] || code->list.values[w->pin[stats]].kind != DTI_VALUE_OUT) {
        const dti_node *of = &code->work->nodes[stats]; /* else an output, for another stage */
        w->pin[stats] = dti_node_value(code, DTI_VALUE_OUT, of, code->out_bytes);
        code->out_bytes += dti_aligned(dti_node_bytes(code, of));
    }
    s->at.word = (uint32_t)(code->list.values[w->pin[stats]].offset / DTI_WORD_BYTES);
}

/* A gradient is made where it must lie; but not where a finished bucket is exchanged while later
 * nodes still read it. */
static bool dti_pins_gradient(const dti_lowering *w, uint32_t id) {
    const dti_code *code = w->code;
    return !w->pin[id] && !code->desc.accumulate && !dti_pieces_fold(code) &&
           (!code->slices.piece_count || !w->own[id].uses);
}

/* Whether a pinned node's input is made in its place. Then the node is a view of the whole input,
 * in order, and nothing else reads that. */
static bool dti_pin_moves(const dti_lowering *w, uint32_t id) {
    const dt_graph *g = w->code->work;
    const dti_node *n = &g->nodes[id];
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    if (!w->pin[id] || !family->view || !family->packs || !family->packs(n) || w->extent)
        return false;
    const uint32_t from = dti_input_id(g, n, 0);
    const dti_node *in = &g->nodes[from];
    return in->count && !w->pin[from] && w->own[from].uses == 1 && !w->param_of[from] &&
           in->samples == n->samples &&
           dti_shape_elements(in->shape) == dti_shape_elements(n->shape);
}

static void dti_pins_through_views(dti_lowering *w) {
    const dt_graph *g = w->code->work;
    for (uint32_t i = g->count - 1; i > 0; i--) {
        const uint32_t id = w->order[i];
        if (w->needed[id] && dti_pin_moves(w, id))
            w->pin[dti_input_id(g, &g->nodes[id], 0)] = w->pin[id];
    }
}

static dt_result dti_pass_bindings(dti_lowering *w) {
    dti_code *code = w->code;
    dti_place_inputs(code, &w->e, w->needed);
    w->status = dti_listing_value(&code->list, DTI_VALUE_OUT, DT_I32, DTI_STATUS_WORDS, 0);
    dti_place_outputs(code, w->pin);
    for (uint32_t i = 0; i < code->loss_count + code->metric_count; i++)
        dti_pin_term(w, i);
    for (uint32_t i = 0; i < code->layout->param_count; i++) {
        if (!code->trained[i])
            continue;
        uint32_t id = code->param_dx[i].id;
        w->next_param[i] = w->param_of[id];
        w->param_of[id] = i + 1;
        if (dti_pins_gradient(w, id))
            w->pin[id] = dti_param_value(code, i, DTI_VALUE_GRADIENT, 0);
    }
    for (uint32_t i = 0; i < code->layout->param_count; i++) {
        if (code->update[i] && code->slices.piece_count)
            dti_pin_stat(w, i);
        else if (code->update[i]) /* over all micro-batches, so never a transient */
            w->pin[code->update[i]] = dti_param_value(code, i, DTI_VALUE_GRADIENT, 0);
    }
    dti_sync_points_place(w);
    dti_pins_through_views(w);
    return code->list.result;
}
