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

static void dti_need_all(const dt_program *p, uint8_t *needed) {
    for (uint32_t i = 0; i < p->loss_count; i++)
        needed[p->desc.losses[i].term.id] = 1;
    for (uint32_t i = 0; i < p->metric_count; i++)
        needed[p->desc.metrics[i].id] = 1;
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        if (dti_is_set(p->desc.outputs[i]))
            needed[p->desc.outputs[i].id] = 1;
        if (dti_is_set(p->desc.host_gradients[i]))
            needed[p->desc.host_gradients[i].id] = 1;
    }
    for (uint32_t i = 0; i < p->store->param_count; i++) {
        if (p->trained[i])
            needed[p->param_dx[i].id] = 1;
    }
    dti_need_inputs(p->work, needed);
}

/* A running statistic moves where the step computes the batch's and commits. */
static void dti_need_updates(dt_program *p, uint8_t *needed) {
    const dt_graph *g = p->work;
    for (uint32_t i = 0; i < p->store->param_count && p->has_optim && p->train; i++) {
        const dti_node *n = &g->nodes[p->store->params[i].node];
        uint32_t update = n->buffer ? (uint32_t)n->attr.i[2] : 0;
        if (!update || !needed[dti_input_id(g, &g->nodes[update], 1)])
            continue;
        p->update[i] = update;
        needed[update] = needed[p->store->params[i].node] = 1;
    }
}

/* ---- ports: inputs and outputs and their places on the host's side */

static uint64_t dti_node_elements(const dt_program *p, const dti_node *n) {
    return (uint64_t)dti_shape_elements(n->shape) * (n->samples ? (uint64_t)p->batch : 1u);
}

static uint64_t dti_node_bytes(const dt_program *p, const dti_node *n) {
    return dti_bytes(n->dtype, dti_node_elements(p, n));
}

static uint32_t dti_node_value(dt_program *p, dti_value_kind kind, const dti_node *n,
                               uint64_t offset) {
    return dti_listing_value(&p->list, kind, n->dtype, dti_node_elements(p, n), offset);
}

static void dti_port_add(dt_program *p, dti_emit *e, uint32_t node, dti_value_kind kind,
                         uint64_t *at) {
    const dti_node *n = &p->work->nodes[node];
    dti_port *port = &p->ports[p->port_count++];
    *port = (dti_port){.node = node, .offset = *at, .bytes = dti_node_bytes(p, n)};
    uint32_t value = dti_node_value(p, kind, n, *at);
    if (kind == DTI_VALUE_IN)
        e->views[node] = dti_view_dense(value, n, p->batch);
    *at += dti_aligned(port->bytes ? port->bytes : DTI_WORD_BYTES);
}

static void dti_place_inputs(dt_program *p, dti_emit *e, const uint8_t *needed) {
    p->in_bytes = dti_aligned(DTI_WORD_BYTES * DTI_STEP_WORDS);
    for (int gradient = 0; gradient < 2;
         gradient++) { /* the host's gradients last: a range of their own */
        if (gradient)
            p->segments[1].upload.offset = p->in_bytes;
        for (uint32_t id = 1; id < p->work->count; id++) {
            const dti_node *n = &p->work->nodes[id];
            if (n->op != DTI_OP_INPUT || !needed[id] || (id >= p->backward_node) != gradient)
                continue;
            dti_port_add(p, e, id, DTI_VALUE_IN, &p->in_bytes);
            dti_port *port = &p->ports[p->port_count - 1];
            port->gradient = gradient != 0;
            if (gradient)
                port->node = (uint32_t)n->attr.i[0];
        }
        if (!gradient)
            p->segments[0].upload = (dti_range){0, p->in_bytes};
    }
    p->segments[1].upload.bytes = p->in_bytes - p->segments[1].upload.offset;
}

/* One port for each output, however often it is listed. */
static void dti_place_outputs(dt_program *p, uint32_t *pin) {
    p->out_bytes = dti_aligned(DTI_WORD_BYTES * DTI_STATUS_WORDS);
    for (uint32_t i = 0; i < DT_MAX_OUTPUTS && dti_is_set(p->desc.outputs[i]); i++) {
        uint32_t id = p->desc.outputs[i].id;
        if (pin[id])
            continue;
        const dti_node *n = &p->work->nodes[id];
        dti_port *port = &p->ports[p->port_count++];
        *port = (dti_port){
            .node = id, .offset = p->out_bytes, .bytes = dti_node_bytes(p, n), .output = true};
        pin[id] = dti_node_value(p, DTI_VALUE_OUT, n, p->out_bytes);
        p->out_bytes += dti_aligned(port->bytes ? port->bytes : DTI_WORD_BYTES);
    }
}

/* ---- emission */

static uint32_t dti_param_value(dt_program *p, uint32_t index, dti_value_kind kind, uint32_t slot) {
    const dti_param *param = &p->store->params[index];
    uint64_t at = param->offset + slot * p->store->elements;
    return dti_listing_value(&p->list, kind, param->dtype, param->elements,
                             dti_bytes(param->dtype, at));
}

static uint32_t dti_term_node(const dt_program *p, uint32_t i) {
    return i < p->loss_count ? p->desc.losses[i].term.id : p->desc.metrics[i - p->loss_count].id;
}

static void dti_pin_term(dti_lowering *w, uint32_t i) {
    dt_program *p = w->p;
    const uint32_t id = dti_term_node(p, i);
    for (uint32_t before = 0; before < i; before++) {
        if (dti_term_node(p, before) != id)
            continue;
        p->term_slot[i] = p->term_slot[before];
        p->term_stride[i] = p->term_stride[before];
        return;
    }
    if (w->extent && w->extent[id] == DTI_EXTENT_PIECE) {
        uint64_t offset, stride;
        dti_pieces_place_out(w, id, &offset, &stride);
        p->term_slot[i] = (uint32_t)(offset / DTI_WORD_BYTES);
        p->term_stride[i] = (uint32_t)(stride / DTI_WORD_BYTES);
        return;
    }
    uint32_t slot = i < p->loss_count ? i : DT_MAX_TERMS + i - p->loss_count;
    w->pin[id] = dti_listing_value(&p->list, DTI_VALUE_OUT, DT_F32, 2,
                                   DTI_WORD_BYTES * DTI_STATUS_TERM(slot));
    p->term_slot[i] = DTI_STATUS_TERM(slot);
}

/* The host moves a running statistic, by what all replicas' pieces have: it reads those. */
static void dti_pin_stat(dti_lowering *w, uint32_t param) {
    dt_program *p = w->p;
    const dti_node *n = &p->work->nodes[p->update[param]];
    const uint32_t stats = dti_input_id(p->work, n, 1);
    dti_stat *s = &p->stats[p->stat_count++];
    const dti_update u = dti_op_info_of(n->op)->family->update(n);
    *s = (dti_stat){.param = param,
                    .channels = u.channels,
                    .spatial = u.spatial,
                    .variance = u.variance,
                    .momentum = u.momentum};
    for (uint32_t i = 0; i + 1 < p->stat_count; i++) { /* mean and variance lie together */
        const uint32_t other = p->update[p->stats[i].param];
        if (dti_input_id(p->work, &p->work->nodes[other], 1) != stats)
            continue;
        s->word = p->stats[i].word;
        s->stride = p->stats[i].stride;
        return;
    }
    uint64_t offset = p->out_bytes, stride = 0;
    if (w->extent) {
        dti_pieces_place_out(w, stats, &offset, &stride);
    } else {
        const dti_node *of = &p->work->nodes[stats];
        w->pin[stats] = dti_node_value(p, DTI_VALUE_OUT, of, p->out_bytes);
        p->out_bytes += dti_aligned(dti_node_bytes(p, of));
    }
    s->word = (uint32_t)(offset / DTI_WORD_BYTES);
    s->stride = (uint32_t)(stride / DTI_WORD_BYTES);
}

static bool dti_is_read(const dti_lowering *w, uint32_t id) {
    const dt_graph *g = w->p->work;
    for (uint32_t user = id + 1; user < g->count; user++) {
        const dti_node *n = &g->nodes[user];
        for (uint32_t k = 0; w->needed[user] && k < n->count; k++) {
            if (dti_input_id(g, n, k) == id)
                return true;
        }
    }
    return false;
}

/* A gradient is made where it must lie; but not where a finished bucket is exchanged while later
 * nodes still read it. */
static bool dti_pins_gradient(const dti_lowering *w, uint32_t id) {
    const dt_program *p = w->p;
    return !w->pin[id] && !p->desc.accumulate && !dti_pieces_fold(p) &&
           (!p->piece_count || !dti_is_read(w, id));
}

static void dti_lower_pins(dti_lowering *w) {
    dt_program *p = w->p;
    w->status = dti_listing_value(&p->list, DTI_VALUE_OUT, DT_I32, DTI_STATUS_WORDS, 0);
    dti_place_outputs(p, w->pin);
    for (uint32_t i = 0; i < p->loss_count + p->metric_count; i++)
        dti_pin_term(w, i);
    for (uint32_t i = 0; i < p->store->param_count; i++) {
        if (!p->trained[i])
            continue;
        uint32_t id = p->param_dx[i].id;
        w->next_param[i] = w->param_of[id];
        w->param_of[id] = i + 1;
        if (dti_pins_gradient(w, id))
            w->pin[id] = dti_param_value(p, i, DTI_VALUE_GRADIENT, 0);
    }
    for (uint32_t i = 0; i < p->store->param_count; i++) {
        if (p->update[i] && p->piece_count)
            dti_pin_stat(w, i);
        else if (p->update[i]) /* over all micro-batches, so never a transient */
            w->pin[p->update[i]] = dti_param_value(p, i, DTI_VALUE_GRADIENT, 0);
    }
}

static bool dti_same_range(const dti_listing *list, uint32_t a, const dti_value *b) {
    const dti_value *x = &list->values[a];
    return x->kind == b->kind && x->offset == b->offset && x->bytes == b->bytes;
}

/* Brings a finished gradient to its place in the gradient arena. */
static void dti_lower_param_gradient(dti_lowering *w, uint32_t index, const dti_view *dx) {
    dt_program *p = w->p;
    const dti_param *param = &p->store->params[index];
    uint32_t value = dti_param_value(p, index, DTI_VALUE_GRADIENT, 0);
    dti_view y = dti_view_dense(value, &p->work->nodes[param->node], p->batch);
    w->bucket += dti_bytes(param->dtype, param->elements);
    if (!p->desc.accumulate) {
        if (dti_same_range(&p->list, dx->value, &p->list.values[value]))
            return;
        dti_emit_copy(&w->e, dx, &y, DTI_COPY_WORD);
        return;
    }
    dti_view x = dti_emit_dense_view(&w->e, dx);
    dti_emit_accumulate(&w->e, &x, value, (uint32_t)param->elements);
}

/* The node's own launches, or for a leaf the view of where it lies. */
static void dti_lower_value(dti_lowering *w, uint32_t id) {
    dt_program *p = w->p;
    dti_emit *e = &w->e;
    const dti_node *n = &p->work->nodes[id];
    uint32_t pin = w->pin[id];
    if (n->op == DTI_OP_INPUT)
        return; /* placed already */
    if (n->op == DTI_OP_PARAM) {
        uint32_t at = dti_param_value(p, (uint32_t)n->attr.i[0], DTI_VALUE_PARAM, 0);
        e->views[id] = dti_view_dense(at, n, p->batch);
        return;
    }
    if (dti_pieces_each(w, id)) {
        dti_lower_pieces(w, id);
        return;
    }
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    bool own = pin && !family->view;
    uint32_t value = own ? pin : dti_node_value(p, DTI_VALUE_TRANSIENT, n, 0);
    e->node = n;
    e->id = id;
    e->pinned = pin != 0;
    e->out = dti_view_dense(value, n, p->batch);
    if (e->own)
        e->own[id].first = p->list.launch_count;
    dti_cut_emit(p, e, family);
    if (e->own)
        e->own[id].last = p->list.launch_count;
    e->views[id] = e->out;
}

/* How often each node's value is read; what leaves the program counts as a reader more. */
static void dti_lower_uses(dti_lowering *w) {
    const dt_graph *g = w->p->work;
    for (uint32_t id = 1; id < g->count; id++) {
        const dti_node *n = &g->nodes[id];
        for (uint32_t k = 0; w->needed[id] && k < n->count; k++)
            w->own[dti_input_id(g, n, k)].uses++;
        w->own[id].uses += (w->pin[id] ? 1u : 0u) + (w->param_of[id] ? 1u : 0u);
    }
}

static void dti_lower_node(dti_lowering *w, uint32_t id) {
    dt_program *p = w->p;
    const dti_node *n = &p->work->nodes[id];
    w->e.id = id;
    if (dti_pieces_fold(p) && dti_piece_fold_direct(w, id)) {
        dti_lower_fold(w, id, w->param_of[id] - 1, true);
        dti_bucket_count(w, w->param_of[id] - 1);
        return;
    }
    dti_lower_value(w, id);
    dti_view *view = &w->e.views[id];
    if (w->pin[id] && !dti_same_range(&p->list, view->value, &p->list.values[w->pin[id]])) {
        dti_view y = dti_view_dense(w->pin[id], n, p->batch);
        dti_emit_copy(&w->e, view, &y, DTI_COPY_WORD);
    }
    for (uint32_t i = w->param_of[id]; i; i = w->next_param[i - 1]) {
        if (dti_pieces_fold(p))
            dti_lower_fold(w, id, i - 1, false);
        else
            dti_lower_param_gradient(w, i - 1, view);
        dti_bucket_count(w, i - 1);
    }
}

/* ---- segments */

static void dti_segment_end(dt_program *p, dti_phase phase, uint32_t first) {
    dti_segment *s = &p->segments[p->segment_count];
    p->phases[p->segment_count++] = (uint8_t)phase;
    s->first = first;
    s->count = p->list.launch_count - first;
}

/* Whether the gradients that are finished since the last cut are worth a segment's end. */
static bool dti_bucket_full(const dti_lowering *w) {
    const dt_program *p = w->p;
    uint64_t bytes = p->desc.bucket_bytes ? p->desc.bucket_bytes : 25u << 20;
    if (p->segment_count >= DTI_SEGMENTS_MAX - 4)
        return false;
    if (p->piece_count)
        return p->segment_count && p->segment_buckets[p->segment_count - 1] < w->buckets_done;
    return w->bucket >= bytes;
}

static void dti_lower_weigh(dti_lowering *w, const uint32_t *weight_node) {
    dt_program *p = w->p;
    for (uint32_t i = 0; i < p->loss_count; i++) {
        if (!weight_node[i])
            continue;
        const dti_node *n = &p->work->nodes[weight_node[i]];
        bool direct = true;                       /* targets are inputs, or views of inputs */
        for (uint32_t k = 0; k < n->count; k++) { /* class weights may be values of the store */
            const dti_node *in = &p->work->nodes[dti_input_id(p->work, n, k)];
            if (!in->count && in->op != DTI_OP_INPUT)
                dti_lower_value(w, dti_input_id(p->work, n, k));
        }
        for (uint32_t k = 0; k < n->count; k++)
            direct = direct && w->e.views[dti_input_id(p->work, n, k)].dim[5] > 0;
        p->weighs = p->weighs || direct;
        if (!direct) {
            p->static_weight[i] = -1.0;
            continue;
        }
        p->weight_each[i] = dti_pieces_each(w, weight_node[i]);
        if (p->weight_each[i]) {
            for (uint32_t k = 0; k < p->piece_count; k++)
                *dti_piece_view(w, weight_node[i], k) =
                    *dti_piece_view(w, p->desc.losses[i].term.id, k);
        } else {
            w->pin[weight_node[i]] = dti_listing_value(&p->list, DTI_VALUE_OUT, DT_F32, 2,
                                                       DTI_WORD_BYTES * DTI_STATUS_TERM(i));
        }
        dti_lower_value(w, weight_node[i]);
    }
}

/* Inputs and views of inputs have a view before anything runs: all that the weights may need. */
static void dti_lower_views_of_inputs(dti_lowering *w) {
    const dt_graph *g = w->p->work;
    for (uint32_t id = 1; id < w->p->backward_node; id++) {
        const dti_node *n = &g->nodes[id];
        if (!w->needed[id] || !dti_op_info_of(n->op)->family->view)
            continue;
        if (w->e.views[dti_input_id(g, n, 0)].dim[5] > 0 &&
            dti_view_is_dense(&w->e.views[dti_input_id(g, n, 0)])) {
            dti_lower_value(w, id);
        }
    }
}

static void dti_lower_steps(dti_lowering *w) {
    dt_program *p = w->p;
    uint32_t first = p->list.launch_count;
    for (uint32_t id = 1; id < p->work->count; id++) {
        if (id == p->backward_node && p->has_gradients) {
            dti_segment_end(p, DTI_PHASE_FORWARD, first);
            first = p->list.launch_count;
        }
        if (w->needed[id] && !dti_op_info_of(p->work->nodes[id].op)->family->update)
            dti_lower_node(w, id);
        if (dti_bucket_full(w)) {
            p->segment_buckets[p->segment_count] = w->buckets_done;
            dti_segment_end(p, DTI_PHASE_BACKWARD, first);
            first = p->list.launch_count;
            w->bucket = 0;
        }
    }
    /* last: a step that is cancelled after its forward segment has moved nothing */
    for (uint32_t i = 0; i < p->store->param_count && !p->piece_count; i++) {
        if (p->update[i])
            dti_lower_node(w, p->update[i]);
    }
    p->segment_buckets[p->segment_count] = w->buckets_done;
    bool backward = p->segment_count > 0;
    if (!backward)
        dti_segment_end(p, DTI_PHASE_FORWARD, first);
    else if (first < p->list.launch_count || p->segment_count == 1)
        dti_segment_end(p, DTI_PHASE_BACKWARD, first);
}

static void dti_lower_commit(dti_lowering *w) {
    dt_program *p = w->p;
    uint32_t first = p->list.launch_count;
    p->commit_segment = UINT32_MAX;
    if (!p->has_optim)
        return;
    uint32_t table =
        dti_listing_value(&p->list, DTI_VALUE_TABLE, DT_I32, p->table_bytes / DTI_WORD_BYTES, 0);
    w->e.id = 0;
    p->commit_segment = p->update_segment = p->segment_count;
    dti_commit_judge(p, &w->e, table, w->status);
    if (p->piece_count) { /* whether all may write is agreed in between */
        dti_segment_end(p, DTI_PHASE_COMMIT, first);
        first = p->list.launch_count;
        p->update_segment = p->segment_count;
    }
    dti_commit_update(p, &w->e, table, w->status);
    dti_segment_end(p, DTI_PHASE_COMMIT, first);
}

/* The last segment of a step brings the status back, the forward one the outputs too. */
static void dti_segment_copies(dt_program *p) {
    dti_range status = {0, DTI_WORD_BYTES * DTI_STATUS_WORDS};
    for (uint32_t i = 0; i < p->segment_count; i++)
        p->segments[i].download = status;
    for (uint32_t i = 2; i < p->segment_count; i++)
        p->segments[i].upload = (dti_range){0, 0};
    p->segments[0].download = (dti_range){0, p->out_bytes};
    if (p->segment_count == 1)
        p->segments[1].upload = (dti_range){0, 0};
    if (p->piece_count) /* the weights of the whole job come after the forward segment */
        p->segments[1].upload = (dti_range){0, DTI_WORD_BYTES * DTI_STEP_WORDS};
    if (p->last_run)
        dti_segment_exchange(p);
}

static void dti_lower_all(dti_lowering *w, const uint32_t *weight_node) {
    dt_program *p = w->p;
    dti_place_inputs(p, &w->e, w->needed);
    dti_lower_pins(w);
    dti_lower_views_of_inputs(w);
    dti_lower_weigh(w, weight_node);
    uint32_t weigh_launches = p->list.launch_count;
    for (uint32_t id = 1; id < p->work->count; id++) {
        if (p->work->nodes[id].op != DTI_OP_INPUT)
            w->e.views[id] = (dti_view){0};
    }
    dti_lower_uses(w);
    w->e.own = w->own;
    dti_lower_steps(w);
    dti_lower_commit(w);
    dti_segment_copies(p);
    p->weigh_segment = p->segment_count;
    if (!p->weighs)
        return;
    p->phases[p->segment_count] = DTI_PHASE_WEIGH;
    p->segments[p->segment_count++] = (dti_segment){
        .first = 0,
        .count = weigh_launches,
        .upload = p->segments[0].upload,
        .download = {0, p->piece_count ? p->out_bytes : DTI_WORD_BYTES * DTI_STATUS_WORDS}};
}

static bool dti_lowering_alloc(dti_lowering *w) {
    dt_program *p = w->p;
    uint32_t nodes = p->work->count, inputs = 0;
    for (uint32_t i = 0; i < nodes; i++)
        inputs += p->work->nodes[i].op == DTI_OP_INPUT;
    p->ports = dti_alloc_array(p->base, inputs + DT_MAX_OUTPUTS, sizeof *p->ports);
    w->needed = dti_alloc_array(p->base, nodes, 1);
    w->pin = dti_alloc_array(p->base, nodes, sizeof *w->pin);
    w->param_of = dti_alloc_array(p->base, nodes, sizeof *w->param_of);
    w->next_param = dti_alloc_array(p->base, p->store->param_count + 1u, sizeof *w->next_param);
    w->e.views = dti_alloc_array(p->base, nodes, sizeof *w->e.views);
    w->own = dti_alloc_array(p->base, nodes, sizeof *w->own);
    w->bucket_left = dti_alloc_array(p->base, p->bucket_count + 1u, sizeof *w->bucket_left);
    return p->ports && w->needed && w->pin && w->param_of && w->next_param && w->e.views &&
           w->own && w->bucket_left;
}

/* PyTorch refuses it too: the variance of one value is 0 whatever the value. */
static dt_result dti_lower_batch_values(const dt_program *p, const dti_node *n) {
    const dti_node *x = &p->work->nodes[dti_input_id(p->work, n, 0)];
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    if (!p->train || !family->values || p->batch * family->values(n) > 1)
        return DT_OK;
    return dti_fail(p->base, DT_ERROR_INVALID,
                    "program '%s': batch_norm(%s) at batch %lld has one value a channel, and a "
                    "training program needs more; use a larger batch, or dt_layer_norm",
                    p->label, dti_shape_print(x->shape, true).text, (long long)p->batch);
}

static dt_result dti_lower_sizes(const dti_lowering *w) {
    const dt_program *p = w->p;
    for (uint32_t id = 1; id < p->work->count; id++) {
        const dti_node *n = &p->work->nodes[id];
        uint64_t elements = dti_node_elements(p, n);
        if (w->needed[id] && !p->piece_count) {
            dt_result result = dti_lower_batch_values(p, n);
            if (result)
                return result;
        }
        if (!w->needed[id] || elements <= INT32_MAX)
            continue;
        return dti_fail(p->base, DT_ERROR_INVALID,
                        "program '%s': %s %s has %llu elements at batch %lld, more than 2^31; "
                        "use a smaller batch",
                        p->label, dti_op_info_of(n->op)->name,
                        dti_shape_print(n->shape, n->samples).text, (unsigned long long)elements,
                        (long long)p->batch);
    }
    return DT_OK;
}

/* Fills the program's listing, ports and segments. weight_node: by loss, see dti_append_weights. */
static dt_result dti_lower_program(dt_program *p, const uint32_t *weight_node) {
    dti_lowering w = {.p = p};
    dt_result result = DT_ERROR_MEMORY;
    p->list.base = p->base;
    if (dti_lowering_alloc(&w)) {
        w.e = (dti_emit){.list = &p->list,
                         .graph = p->work,
                         .batch = p->batch,
                         .train = p->train,
                         .views = w.e.views};
        /* Value 0 stands for "none" in pins, and for those that memory ran out for. */
        dti_listing_value(&p->list, DTI_VALUE_OUT, DT_I32, 1, 0);
        dti_need_all(p, w.needed);
        dti_need_updates(p, w.needed);
        result = p->list.result ? p->list.result : dti_lower_sizes(&w);
        if (!result)
            result = dti_pieces_prepare(&w);
        dti_buckets_begin(&w);
        if (!result && p->has_optim)
            result = dti_commit_table(p);
        if (!result) {
            dti_lower_all(&w, weight_node);
            result = p->list.result ? p->list.result : dti_labels_find(p, w.needed);
        }
    }
    dti_free(p->base, w.needed);
    dti_free(p->base, w.pin);
    dti_free(p->base, w.param_of);
    dti_free(p->base, w.next_param);
    dti_free(p->base, w.e.views);
    dti_free(p->base, w.own);
    dti_free(p->base, w.bucket_left);
    dti_free(p->base, w.extent);
    dti_free(p->base, w.piece_views);
    dti_free(p->base, w.saved);
    return result;
}
