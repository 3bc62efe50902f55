/* From the work graph to launches and segments: what is needed, where inputs and outputs lie on the
 * host's side, the launches of each node in order of creation, and the cuts between segments. */

/* ---- what is needed: the roots, then inputs of what is needed (they have smaller ids) */

static void dti_need_inputs(const dt_graph *g, uint8_t *needed) {
    for (uint32_t id = g->count - 1; id > 0; id--) {
        const dti_node *n = &g->nodes[id];
        for (uint32_t k = 0; needed[id] && k < n->count; k++)
            needed[dti_input_id(g, n, k)] = 1;
    }
}

static void dti_need_all(const dti_code *code, uint8_t *needed) {
    for (uint32_t i = 0; i < code->loss_count; i++)
        needed[code->desc.losses[i].term.id] = 1;
    for (uint32_t i = 0; i < code->metric_count; i++)
        needed[code->desc.metrics[i].id] = 1;
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        if (dti_is_set(code->desc.outputs[i]))
            needed[code->desc.outputs[i].id] = 1;
        if (dti_is_set(code->desc.host_gradients[i]))
            needed[code->desc.host_gradients[i].id] = 1;
    }
    for (uint32_t i = 0; i < code->layout->param_count; i++) {
        if (code->trained[i])
            needed[code->param_dx[i].id] = 1;
    }
    for (uint32_t i = 0; i < code->leaving_count; i++)
        needed[code->leaving_dx[i].id] = 1;
    dti_need_inputs(code->work, needed);
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

static uint64_t dti_node_elements(const dti_code *code, const dti_node *n) {
    return (uint64_t)dti_shape_elements(n->shape) * (n->samples ? (uint64_t)code->batch : 1u);
}

static uint64_t dti_node_bytes(const dti_code *code, const dti_node *n) {
    return dti_bytes(n->dtype, dti_node_elements(code, n));
}

static uint32_t dti_node_value(dti_code *code, dti_value_kind kind, const dti_node *n,
                               uint64_t offset) {
    return dti_listing_value(&code->list, kind, n->dtype, dti_node_elements(code, n), offset);
}

static bool dti_lowering_alloc(dti_lowering *w) {
    dti_code *code = w->code;
    uint32_t nodes = code->work->count, inputs = 0;
    for (uint32_t i = 0; i < nodes; i++)
        inputs += code->work->nodes[i].op == DTI_OP_INPUT;
    code->ports = dti_alloc_array(code->base, inputs + 2 * DT_MAX_OUTPUTS, sizeof *code->ports);
    w->needed = dti_alloc_array(code->base, nodes, 1);
    w->pin = dti_alloc_array(code->base, nodes, sizeof *w->pin);
    w->param_of = dti_alloc_array(code->base, nodes, sizeof *w->param_of);
    w->stat_of = dti_alloc_array(code->base, nodes, sizeof *w->stat_of);
    w->next_param =
        dti_alloc_array(code->base, code->layout->param_count + 1u, sizeof *w->next_param);
    w->e.views = dti_alloc_array(code->base, nodes, sizeof *w->e.views);
    w->own = dti_alloc_array(code->base, nodes, sizeof *w->own);
    w->bucket_left = dti_alloc_array(code->base, code->bucket_count + 1u, sizeof *w->bucket_left);
    return code->ports && w->needed && w->pin && w->param_of && w->stat_of && w->next_param &&
           w->e.views && w->own && w->bucket_left;
}

/* PyTorch refuses it too: the variance of one value is 0 whatever the value. */
static dt_result dti_lower_batch_values(const dti_code *code, const dti_node *n) {
    const dti_node *x = &code->work->nodes[dti_input_id(code->work, n, 0)];
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    if (!code->train || !family->values || code->batch * family->values(n) > 1)
        return DT_OK;
    return dti_fail(code->base, DT_ERROR_INVALID,
                    "program '%s': batch_norm(%s) at batch %lld has one value a channel, and a "
                    "training program needs more; use a larger batch, or dt_layer_norm",
                    code->label, dti_shape_print(x->shape, true).text, (long long)code->batch);
}

static dt_result dti_lower_sizes(const dti_lowering *w) {
    const dti_code *code = w->code;
    for (uint32_t id = 1; id < code->work->count; id++) {
        const dti_node *n = &code->work->nodes[id];
        uint64_t elements = dti_node_elements(code, n);
        if (w->needed[id] && !code->piece_count) {
            dt_result result = dti_lower_batch_values(code, n);
            if (result)
                return result;
        }
        if (!w->needed[id] || elements <= INT32_MAX)
            continue;
        return dti_fail(code->base, DT_ERROR_INVALID,
                        "program '%s': %s %s has %llu elements at batch %lld, more than 2^31; "
                        "use a smaller batch",
                        code->label, dti_op_info_of(n->op)->name,
                        dti_shape_print(n->shape, n->samples).text, (unsigned long long)elements,
                        (long long)code->batch);
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
    if (!dti_lowering_alloc(w))
        return DT_ERROR_MEMORY;
    w->e = (dti_emit){.list = &code->list,
                      .graph = code->work,
                      .batch = code->batch,
                      .train = code->train,
                      .views = w->e.views};
    /* Value 0 stands for "none" in pins, and for those that memory ran out for. */
    dti_listing_value(&code->list, DTI_VALUE_OUT, DT_I32, 1, 0);
    dti_need_all(code, w->needed);
    dti_need_updates(code, w->needed);
    dti_need_readers(code->work, w->needed, w->own);
    return code->list.result ? code->list.result : dti_lower_sizes(w);
}

/* ---- ports: inputs and outputs and their places on the host's side */

static void dti_port_add(dti_code *code, dti_emit *e, uint32_t node, dti_value_kind kind,
                         uint64_t *at) {
    const dti_node *n = &code->work->nodes[node];
    dti_port *port = &code->ports[code->port_count++];
    *port = (dti_port){.node = node, .offset = *at, .bytes = dti_node_bytes(code, n)};
    uint32_t value = dti_node_value(code, kind, n, *at);
    if (kind == DTI_VALUE_IN)
        e->views[node] = dti_view_dense(value, n, code->batch);
    *at += dti_aligned(port->bytes ? port->bytes : DTI_WORD_BYTES);
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
            dti_port_add(code, e, id, DTI_VALUE_IN, &code->in_bytes);
            dti_port *port = &code->ports[code->port_count - 1];
            port->gradient = gradient != 0;
            port->segment = (uint8_t)gradient;
            if (gradient)
                port->node = (uint32_t)n->attr.i[0];
        }
        if (!gradient)
            code->segments[0].upload = (dti_range){0, code->in_bytes};
    }
    code->segments[1].upload.bytes = code->in_bytes - code->segments[1].upload.offset;
}

/* `node` is what the host calls it: of a gradient, whose. */
static void dti_place_output(dti_code *code, uint32_t *pin, uint32_t id, uint32_t node) {
    const dti_node *n = &code->work->nodes[id];
    dti_port *port = &code->ports[code->port_count++];
    *port = (dti_port){.node = node,
                       .offset = code->out_bytes,
                       .bytes = dti_node_bytes(code, n),
                       .output = true,
                       .gradient = node != id};
    pin[id] = dti_node_value(code, DTI_VALUE_OUT, n, code->out_bytes);
    code->out_bytes += dti_aligned(port->bytes ? port->bytes : DTI_WORD_BYTES);
}

/* One port for each output, however often it is listed. */
static void dti_place_outputs(dti_code *code, uint32_t *pin) {
    code->out_bytes = dti_aligned(DTI_WORD_BYTES * DTI_STATUS_WORDS);
    for (uint32_t i = 0; i < DT_MAX_OUTPUTS && dti_is_set(code->desc.outputs[i]); i++) {
        uint32_t id = code->desc.outputs[i].id;
        if (!pin[id])
            dti_place_output(code, pin, id, id);
    }
    for (uint32_t i = 0; i < code->leaving_count; i++) {
        const uint32_t dx = code->leaving_dx[i].id;
        if (dti_code_port(code, code->leaving[i], true, true))
            continue;
        if (!pin[dx]) {
            dti_place_output(code, pin, dx, code->leaving[i]);
            continue;
        }
        dti_port *port = &code->ports[code->port_count++]; /* one value, two inputs' gradient */
        *port = (dti_port){.node = code->leaving[i], .output = true, .gradient = true};
        port->offset = code->list.values[pin[dx]].offset;
        port->bytes = dti_node_bytes(code, &code->work->nodes[dx]);
    }
}

/* ---- emission */

static uint32_t dti_param_value(dti_code *code, uint32_t index, dti_value_kind kind,
                                uint32_t slot) {
    const dti_param *param = &code->layout->params[index];
    uint64_t at = param->offset + slot * code->layout->elements;
    return dti_listing_value(&code->list, kind, param->dtype, param->elements,
                             dti_bytes(param->dtype, at));
}

static uint32_t dti_term_node(const dti_code *code, uint32_t i) {
    return i < code->loss_count ? code->desc.losses[i].term.id
                                : code->desc.metrics[i - code->loss_count].id;
}

static void dti_pin_term(dti_lowering *w, uint32_t i) {
    dti_code *code = w->code;
    const uint32_t id = dti_term_node(code, i);
    for (uint32_t before = 0; before < i; before++) {
        if (dti_term_node(code, before) != id)
            continue;
        code->term_slot[i] = code->term_slot[before];
        code->term_stride[i] = code->term_stride[before];
        return;
    }
    if (w->extent && w->extent[id] == DTI_EXTENT_PIECE) {
        uint64_t offset, stride;
        dti_pieces_place_out(w, id, &offset, &stride);
        code->term_slot[i] = (uint32_t)(offset / DTI_WORD_BYTES);
        code->term_stride[i] = (uint32_t)(stride / DTI_WORD_BYTES);
        return;
    }
    uint32_t slot = i < code->loss_count ? i : DT_MAX_TERMS + i - code->loss_count;
    w->pin[id] = dti_listing_value(&code->list, DTI_VALUE_OUT, DT_F32, 2,
                                   DTI_WORD_BYTES * DTI_STATUS_TERM(slot));
    code->term_slot[i] = DTI_STATUS_TERM(slot);
}

/* The host moves a running statistic, by what all replicas' pieces have: it reads those. */
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
        const dti_stat *other = &code->stats[w->stat_of[stats] - 1];
        s->word = other->word;
        s->stride = other->stride;
        return;
    }
    w->stat_of[stats] = code->stat_count;
    uint64_t offset = code->out_bytes, stride = 0;
    if (w->extent) {
        dti_pieces_place_out(w, stats, &offset, &stride);
    } else {
        const dti_node *of = &code->work->nodes[stats];
        w->pin[stats] = dti_node_value(code, DTI_VALUE_OUT, of, code->out_bytes);
        code->out_bytes += dti_aligned(dti_node_bytes(code, of));
    }
    s->word = (uint32_t)(offset / DTI_WORD_BYTES);
    s->stride = (uint32_t)(stride / DTI_WORD_BYTES);
}

/* A gradient is made where it must lie; but not where a finished bucket is exchanged while later
 * nodes still read it. */
static bool dti_pins_gradient(const dti_lowering *w, uint32_t id) {
    const dti_code *code = w->code;
    return !w->pin[id] && !code->desc.accumulate && !dti_pieces_fold(code) &&
           (!code->piece_count || !w->own[id].uses);
}

static dt_result dti_pass_ports(dti_lowering *w) {
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
        if (code->update[i] && code->piece_count)
            dti_pin_stat(w, i);
        else if (code->update[i]) /* over all micro-batches, so never a transient */
            w->pin[code->update[i]] = dti_param_value(code, i, DTI_VALUE_GRADIENT, 0);
    }
    return code->list.result;
}

static bool dti_same_range(const dti_listing *list, uint32_t a, const dti_value *b) {
    const dti_value *x = &list->values[a];
    return x->kind == b->kind && x->offset == b->offset && x->bytes == b->bytes;
}

/* Brings a finished gradient to its place in the gradient arena. */
static void dti_lower_param_gradient(dti_lowering *w, uint32_t index, const dti_view *dx) {
    dti_code *code = w->code;
    const dti_param *param = &code->layout->params[index];
    uint32_t value = dti_param_value(code, index, DTI_VALUE_GRADIENT, 0);
    dti_view y = dti_view_dense(value, &code->work->nodes[param->node], code->batch);
    w->bucket += dti_bytes(param->dtype, param->elements);
    if (!code->desc.accumulate) {
        if (dti_same_range(&code->list, dx->value, &code->list.values[value]))
            return;
        dti_emit_copy(&w->e, dx, &y, DTI_COPY_WORD);
        return;
    }
    dti_view x = dti_emit_dense_view(&w->e, dx);
    dti_emit_accumulate(&w->e, &x, value, (uint32_t)param->elements);
}

/* The node's own launches, or for a leaf the view of where it lies. */
static void dti_lower_value(dti_lowering *w, uint32_t id) {
    dti_code *code = w->code;
    dti_emit *e = &w->e;
    const dti_node *n = &code->work->nodes[id];
    uint32_t pin = w->pin[id];
    if (n->op == DTI_OP_INPUT)
        return; /* placed already */
    if (n->op == DTI_OP_PARAM) {
        uint32_t at = dti_param_value(code, (uint32_t)n->attr.i[0], DTI_VALUE_PARAM, 0);
        e->views[id] = dti_view_dense(at, n, code->batch);
        return;
    }
    if (dti_pieces_each(w, id)) {
        dti_lower_pieces(w, id);
        return;
    }
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    bool own = pin && !family->view;
    uint32_t value = own ? pin : dti_node_value(code, DTI_VALUE_TRANSIENT, n, 0);
    e->node = n;
    e->id = id;
    e->pinned = pin != 0;
    e->out = dti_view_dense(value, n, code->batch);
    if (e->own)
        e->own[id].first = code->list.launch_count;
    dti_cut_emit(code, e, family);
    if (e->own)
        e->own[id].last = code->list.launch_count;
    e->views[id] = e->out;
}

/* What leaves the program counts as a reader more. */
static dt_result dti_pass_fuse(dti_lowering *w) {
    for (uint32_t id = 1; id < w->code->work->count; id++)
        w->own[id].uses += (w->pin[id] ? 1u : 0u) + (w->param_of[id] ? 1u : 0u);
    w->e.own = w->own;
    return DT_OK;
}

static void dti_lower_node(dti_lowering *w, uint32_t id) {
    dti_code *code = w->code;
    const dti_node *n = &code->work->nodes[id];
    w->e.id = id;
    if (dti_pieces_fold(code) && dti_piece_fold_direct(w, id)) {
        dti_lower_fold(w, id, w->param_of[id] - 1, true);
        dti_bucket_count(w, w->param_of[id] - 1);
        return;
    }
    dti_lower_value(w, id);
    dti_view *view = &w->e.views[id];
    if (w->pin[id] && !dti_same_range(&code->list, view->value, &code->list.values[w->pin[id]])) {
        dti_view y = dti_view_dense(w->pin[id], n, code->batch);
        dti_emit_copy(&w->e, view, &y, DTI_COPY_WORD);
    }
    for (uint32_t i = w->param_of[id]; i; i = w->next_param[i - 1]) {
        if (dti_pieces_fold(code))
            dti_lower_fold(w, id, i - 1, false);
        else
            dti_lower_param_gradient(w, i - 1, view);
        dti_bucket_count(w, i - 1);
    }
}

/* ---- segments */

static void dti_segment_end(dti_code *code, dti_phase phase, uint32_t first) {
    dti_segment *s = &code->segments[code->segment_count];
    code->phases[code->segment_count++] = (uint8_t)phase;
    s->first = first;
    s->count = code->list.launch_count - first;
}

/* Whether the gradients that are finished since the last cut are worth a segment's end. */
static bool dti_bucket_full(const dti_lowering *w) {
    const dti_code *code = w->code;
    uint64_t bytes = code->desc.bucket_bytes ? code->desc.bucket_bytes : 25u << 20;
    if (code->segment_count >= DTI_SEGMENTS_MAX - 4)
        return false;
    if (code->piece_count)
        return code->segment_count &&
               code->segment_buckets[code->segment_count - 1] < w->buckets_done;
    return w->bucket >= bytes;
}

static void dti_lower_weights(dti_lowering *w) {
    dti_code *code = w->code;
    const uint32_t *weight_node = w->weight_node;
    for (uint32_t i = 0; i < code->loss_count; i++) {
        if (!weight_node[i])
            continue;
        const dti_node *n = &code->work->nodes[weight_node[i]];
        bool direct = true;                       /* targets are inputs, or views of inputs */
        for (uint32_t k = 0; k < n->count; k++) { /* class weights may be values of the store */
            const dti_node *in = &code->work->nodes[dti_input_id(code->work, n, k)];
            if (!in->count && in->op != DTI_OP_INPUT)
                dti_lower_value(w, dti_input_id(code->work, n, k));
        }
        for (uint32_t k = 0; k < n->count; k++)
            direct = direct && w->e.views[dti_input_id(code->work, n, k)].dim[5] > 0;
        code->weighs = code->weighs || direct;
        if (!direct) {
            code->static_weight[i] = -1.0;
            continue;
        }
        code->weight_each[i] = dti_pieces_each(w, weight_node[i]);
        if (code->weight_each[i]) {
            for (uint32_t k = 0; k < code->piece_count; k++)
                *dti_piece_view(w, weight_node[i], k) =
                    *dti_piece_view(w, code->desc.losses[i].term.id, k);
        } else {
            w->pin[weight_node[i]] = dti_listing_value(&code->list, DTI_VALUE_OUT, DT_F32, 2,
                                                       DTI_WORD_BYTES * DTI_STATUS_TERM(i));
        }
        dti_lower_value(w, weight_node[i]);
    }
}

/* Inputs and views of inputs have a view before anything runs: all that the weights may need. */
static void dti_lower_views_of_inputs(dti_lowering *w) {
    const dt_graph *g = w->code->work;
    for (uint32_t id = 1; id < w->code->backward_node; id++) {
        const dti_node *n = &g->nodes[id];
        if (!w->needed[id] || !dti_op_info_of(n->op)->family->view)
            continue;
        if (w->e.views[dti_input_id(g, n, 0)].dim[5] > 0 &&
            dti_view_is_dense(&w->e.views[dti_input_id(g, n, 0)])) {
            dti_lower_value(w, id);
        }
    }
}

/* What weigh has run is computed again by the step. */
static dt_result dti_pass_weigh_segment(dti_lowering *w) {
    const dti_code *code = w->code;
    dti_lower_views_of_inputs(w);
    dti_lower_weights(w);
    w->weigh_launches = code->list.launch_count;
    for (uint32_t id = 1; id < code->work->count; id++) {
        if (code->work->nodes[id].op != DTI_OP_INPUT)
            w->e.views[id] = (dti_view){0};
    }
    return code->list.result;
}

static dt_result dti_pass_emit(dti_lowering *w) {
    dti_code *code = w->code;
    uint32_t first = code->list.launch_count;
    for (uint32_t id = 1; id < code->work->count; id++) {
        if (id == code->backward_node && code->has_gradients) {
            dti_segment_end(code, DTI_PHASE_FORWARD, first);
            first = code->list.launch_count;
        }
        if (w->needed[id] && !dti_op_info_of(code->work->nodes[id].op)->family->update)
            dti_lower_node(w, id);
        if (dti_bucket_full(w)) {
            code->segment_buckets[code->segment_count] = w->buckets_done;
            dti_segment_end(code, DTI_PHASE_BACKWARD, first);
            first = code->list.launch_count;
            w->bucket = 0;
        }
    }
    /* last: a step that is cancelled after its forward segment has moved nothing */
    for (uint32_t i = 0; i < code->layout->param_count && !code->piece_count; i++) {
        if (code->update[i])
            dti_lower_node(w, code->update[i]);
    }
    code->segment_buckets[code->segment_count] = w->buckets_done;
    bool backward = code->segment_count > 0;
    if (!backward)
        dti_segment_end(code, DTI_PHASE_FORWARD, first);
    else if (first < code->list.launch_count || code->segment_count == 1)
        dti_segment_end(code, DTI_PHASE_BACKWARD, first);
    return code->list.result;
}

/* The segment that writes a value last. */
static uint32_t dti_segment_of(const dti_code *code, uint32_t value) {
    uint32_t found = 0;
    for (uint32_t s = 0; s < code->segment_count; s++) {
        const dti_launch *l = &code->list.launches[code->segments[s].first];
        for (uint32_t i = 0; i < code->segments[s].count; i++) {
            for (int b = 0; b < DTI_BINDINGS_MAX; b++)
                found = l[i].value[b] == value ? s : found;
        }
    }
    return found;
}

/* Gradients that leave come to the host with the segment that made them. */
static void dti_segment_leaving(dti_lowering *w) {
    dti_code *code = w->code;
    for (uint32_t i = 0; i < code->leaving_count; i++) {
        const uint32_t s = dti_segment_of(code, w->pin[code->leaving_dx[i].id]);
        for (uint32_t k = 0; k < code->port_count; k++) {
            dti_port *port = &code->ports[k];
            if (port->output && port->gradient && port->node == code->leaving[i])
                port->segment = (uint8_t)s;
        }
        code->segments[s].download = (dti_range){0, code->out_bytes};
    }
}

/* The last segment of a step brings the status back, the forward one the outputs too. */
static dt_result dti_pass_segments(dti_lowering *w) {
    dti_code *code = w->code;
    dti_range status = {0, DTI_WORD_BYTES * DTI_STATUS_WORDS};
    for (uint32_t i = 0; i < code->segment_count; i++)
        code->segments[i].download = status;
    for (uint32_t i = 2; i < code->segment_count; i++)
        code->segments[i].upload = (dti_range){0, 0};
    code->segments[0].download = (dti_range){0, code->out_bytes};
    dti_segment_leaving(w);
    if (code->segment_count == 1)
        code->segments[1].upload = (dti_range){0, 0};
    if (code->piece_count) /* the weights of the whole job come after the forward segment */
        code->segments[1].upload = (dti_range){0, DTI_WORD_BYTES * DTI_STEP_WORDS};
    if (code->last_run)
        dti_segment_exchange(code);
    code->weigh_segment = code->segment_count;
    if (!code->weighs)
        return DT_OK;
    code->phases[code->segment_count] = DTI_PHASE_WEIGH;
    code->segments[code->segment_count++] = (dti_segment){
        .first = 0,
        .count = w->weigh_launches,
        .upload = code->segments[0].upload,
        .download = {0, code->piece_count ? code->out_bytes : DTI_WORD_BYTES * DTI_STATUS_WORDS}};
    return DT_OK;
}
