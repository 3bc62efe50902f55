/* From needed nodes to launches and segments: the launches of each node in its order, and
 * the cuts between segments. */

/* ---- emission */

/* Whether a view's elements already lie in an arena's place. */
static bool dti_lies_at(const dti_listing *list, const dti_view *v, uint32_t place) {
    const dti_value *x = &list->values[v->value], *y = &list->values[place];
    const uint64_t from = dti_bytes(v->dtype, (uint64_t)v->offset);
    return x->kind == y->kind && x->offset + from == y->offset &&
           dti_bytes(v->dtype, (uint64_t)dti_view_elements(v)) == y->bytes && dti_view_is_dense(v);
}

/* Where outputs of a row must lie, their views' pins; 0 = anywhere. Replicas exchange a gradient
 * while later rows still read the packed value. */
static void dti_lower_outputs(dti_lowering *w, uint32_t id) {
    uint32_t places[2] = {0, 0};
    for (uint32_t k = 0; k < 2 && !w->code->slices.piece_count; k++) {
        if (dti_is_output(w->code->work, id, k))
            places[k] = w->pin[id + 1 + k];
    }
    if (!w->pin[id] && !dti_cut_needed(w->code, &w->e))
        dti_outputs_apart(&w->e, places, &w->e.out);
}

/* Where the rounding errors of a gradient's sums are kept; DTI_UNBOUND: so few are a plain
 * chain. */
static uint32_t dti_lower_rounding(dti_code *code, uint32_t index) {
    return dti_code_rounds(code) ? dti_param_value(code, index, DTI_VALUE_ROUNDING, 0)
                                 : DTI_UNBOUND;
}

/* Brings a finished gradient to its place in the gradient arena. */
static void dti_lower_param_gradient(dti_lowering *w, uint32_t index, const dti_view *dx) {
    dti_code *code = w->code;
    const dti_param *param = &code->layout->params[index];
    uint32_t value = dti_param_value(code, index, DTI_VALUE_GRADIENT, 0);
    dti_view y = dti_view_dense(value, &code->work->nodes[param->node], code->batch);
    y.dtype = DT_F32;
    w->bucket += dti_arena_bytes(param->elements);
    if (!code->desc.accumulate) {
        if (dti_lies_at(&code->list, dx, value))
            return;
        dti_emit_copy(&w->e, dx, &y, DTI_COPY_WORD);
        return;
    }
    dti_view x = dti_emit_dense_view(&w->e, dx);
    dti_emit_accumulate(&w->e, &x, value, dti_lower_rounding(code, index),
                        (uint32_t)param->elements, DTI_ACCUMULATE_BY_STEP);
}

/* Where a parameter's value is. */
static uint32_t dti_lower_weight(dti_code *code, uint32_t index) {
    const dti_param *param = &code->layout->params[index];
    if (!code->desc.averaged || !param->average)
        return dti_param_value(code, index, DTI_VALUE_PARAM, 0);
    const uint64_t array = dti_state_moment_offset(code->layout, param->average - 1u);
    return dti_listing_value(&code->list, DTI_VALUE_STATE, DT_F32, param->elements,
                             dti_arena_bytes(array + param->offset));
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
        const uint32_t at = dti_lower_weight(code, (uint32_t)n->attr.i[0]);
        e->views[id] = dti_view_dense(at, n, code->batch);
        return;
    }
    if (dti_meets(code, id)) {
        dti_lower_sync_point(w, id);
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
    dti_lower_outputs(w, id);
    if (e->own)
        e->own[id].first = code->list.launch_count;
    dti_sparse_offer(w, id);
    dti_cut_emit(code, e, family);
    dti_sparse_take(w, id);
    if (e->own)
        e->own[id].last = code->list.launch_count;
    e->views[id] = e->out;
}

#define DTI_ROUNDS_COLUMNS 16 /* fewer of a result: the product is that of the transposed */

/* How the node reads its inputs. Readers come after it, so a view knows its own. */
static void dti_fuse_reads(dti_lowering *w, const dti_node *n, const dti_span_of_node *own) {
    const dt_graph *g = w->code->work;
    const dti_op_family *f = dti_op_info_of(n->op)->family;
    const bool view = f->view && own->taking >= own->uses;
    const bool rounds = w->e.rounds && f->rounds && n->shape.rank > 0 &&
                        n->shape.dim[n->shape.rank - 1] > DTI_ROUNDS_COLUMNS &&
                        g->nodes[dti_input_id(g, n, 0)].dtype == DT_BF16;
    for (uint32_t k = 0; k < n->count && k < DTI_INPUTS_MAX; k++) {
        dti_span_of_node *in = &w->own[dti_input_id(g, n, k)];
        in->taking += view || f->halves >> k & 1;
        in->rounding += rounds && f->rounds >> k & 1;
    }
}

/* An output of the program counts as one more reader. */
static dt_result dti_pass_fuse(dti_lowering *w) {
    const dt_graph *g = w->code->work;
    for (uint32_t id = 1; id < g->count; id++)
        w->own[id].uses += (w->pin[id] ? 1u : 0u) + (w->param_of[id] ? 1u : 0u);
    for (uint32_t id = g->count - 1; id > 0; id--) {
        if (w->needed[id])
            dti_fuse_reads(w, &g->nodes[id], &w->own[id]);
    }
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
    if (w->pin[id] && !dti_lies_at(&code->list, view, w->pin[id])) {
        const dti_view y = dti_view_dense(w->pin[id], n, code->batch);
        dti_emit_copy(&w->e, view, &y, DTI_COPY_WORD);
        *view = y; /* its readers find it there, as if it were made in its place */
    }
    for (uint32_t i = w->param_of[id]; i; i = w->next_param[i - 1]) {
        if (dti_pieces_fold(code))
            dti_lower_fold(w, id, i - 1, false);
        else
            dti_lower_param_gradient(w, i - 1, view);
        dti_bucket_count(w, i - 1);
    }
}

/* A value that was made dense for a reader is dense for a copy's reader too. These have the same
 * launches. */
static void dti_lower_copied(dti_lowering *w, uint32_t id, uint32_t before) {
    const dti_view *view = &w->e.views[w->copy_of[id]];
    if (view->dim[DTI_AXES - 1] && dti_view_is_dense(view) && !dti_cut_is_wide(w->code, view))
        w->e.views[id] = dti_emit_dense_view(&w->e, &w->e.views[id]);
    w->code->launches_recomputed += w->code->list.launch_count - before;
}

/* ---- segments */

static void dti_segment_end(dti_code *code) {
    dti_segment *s = &code->segments[code->segment_count++];
    s->first = code->list.ended;
    s->count = code->list.launch_count - s->first;
    code->list.ended = code->list.launch_count;
}

static void dti_segment_cut(dti_lowering *w) {
    dti_code *code = w->code;
    code->segment_buckets[code->segment_count] = code->forward_segments ? w->buckets_done : 0;
    dti_segment_end(code);
    w->bucket = 0;
}

/* Whether the gradients that are finished since the last cut are worth a segment's end. */
static bool dti_bucket_full(const dti_lowering *w) {
    const dti_code *code = w->code;
    uint64_t bytes = code->desc.bucket_bytes ? code->desc.bucket_bytes : DTI_BUCKET_BYTES;
    if (code->segment_count >= DTI_SEGMENTS_MAX - 4 + w->met)
        return false;
    if (code->slices.piece_count)
        return code->forward_segments &&
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
            for (uint32_t k = 0; k < code->slices.piece_count; k++)
                *dti_piece_view(w, weight_node[i], k) =
                    *dti_piece_view(w, dti_term_node(code, i), k);
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

/* The step computes the segment of loss weights again. */
static dt_result dti_pass_weigh_segment(dti_lowering *w) {
    const dti_code *code = w->code;
    dti_lower_views_of_inputs(w);
    dti_lower_weights(w);
    w->weigh_launches = w->code->list.ended = code->list.launch_count;
    for (uint32_t id = 1; id < code->work->count; id++) {
        if (code->work->nodes[id].op != DTI_OP_INPUT)
            w->e.views[id] = (dti_view){0};
    }
    return code->list.result;
}

static dt_result dti_pass_emit(dti_lowering *w) {
    dti_code *code = w->code;
    for (uint32_t i = 1; i < code->work->count; i++) {
        const uint32_t id = w->order[i], before = code->list.launch_count;
        if (i == code->backward_node && code->has_gradients) {
            dti_segment_cut(w);
            code->forward_segments = code->segment_count;
        }
        if (i == w->split && code->has_gradients) {
            dti_segment_cut(w);
            code->leaving_segments = code->segment_count;
        }
        if (w->needed[id] && !dti_op_info_of(code->work->nodes[id].op)->family->update)
            dti_lower_node(w, id);
        if (w->copy_of && w->copy_of[id])
            dti_lower_copied(w, id, before);
        if (dti_bucket_full(w))
            dti_segment_cut(w);
    }
    /* last: a step that is cancelled after its forward segment has moved nothing */
    for (uint32_t i = 0; i < code->layout->param_count && !code->slices.piece_count; i++) {
        if (code->update[i])
            dti_lower_node(w, code->update[i]);
    }
    const uint32_t forward = code->forward_segments;
    if (!forward || code->list.ended < code->list.launch_count || code->segment_count == forward ||
        dti_sync_point_waits(code))
        dti_segment_cut(w);
    code->forward_segments = forward ? forward : code->segment_count;
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
        for (uint32_t k = 0; k < code->binding_count; k++) {
            dti_binding *binding = &code->bindings[k];
            if (binding->output && binding->gradient && binding->node == code->leaving[i])
                binding->segment = s;
        }
        code->segments[s].download = (dti_range){0, code->out_bytes};
    }
}

/* The device's part of the segments, and the host's, if the host makes the update. */
static dt_result dti_segments_apart(dti_code *code) {
    const uint32_t n = code->segment_count;
    if (!code->layout->offload || !code->has_optim || !dti_code_has_units(code))
        return DT_OK;
    code->device_segments = dti_alloc_array(code->base, n, sizeof *code->segments);
    code->host_segments = dti_alloc_array(code->base, n, sizeof *code->segments);
    DTI_HAVE(code->device_segments && code->host_segments);
    code->host_first = code->segments[code->commit_segment].first;
    for (uint32_t i = 0; i < n; i++) {
        const dti_segment *s = &code->segments[i];
        if (i >= code->commit_segment && i < code->weigh_segment)
            code->host_segments[i] =
                (dti_segment){.first = s->first - code->host_first, .count = s->count};
        else
            code->device_segments[i] = *s;
    }
    return DT_OK;
}

/* The last segment of a step brings the status back, the forward one the outputs too. */
static dt_result dti_pass_segments(dti_lowering *w) {
    dti_code *code = w->code;
    dti_range status = {0, DTI_WORD_BYTES * DTI_STATUS_WORDS};
    const uint32_t backward = code->forward_segments;
    const dti_range gradients = code->segments[1].upload; /* the host's: see bindings.c */
    for (uint32_t i = 0; i < code->segment_count; i++)
        code->segments[i].download = status;
    for (uint32_t i = 1; i < code->segment_count; i++)
        code->segments[i].upload = i == backward ? gradients : (dti_range){0, 0};
    code->segments[backward - 1].download = (dti_range){0, code->out_bytes};
    dti_segment_leaving(w);
    if (code->segment_count == 1)
        code->segments[1].upload = (dti_range){0, 0};
    dti_sync_points_ranges(code);
    if (code->pairs_all) {
        dti_segment *norm = &code->segments[code->commit_segment];
        norm[0].download = (dti_range){code->pairs_out, dti_bytes(DT_F32, 2ull * code->pairs_own)};
        norm[1].upload = (dti_range){code->pairs_in, dti_bytes(DT_F32, 2ull * code->pairs_all)};
    }
    /* the weights of the whole job come after the forward segment; those of a stage before it */
    if (code->slices.piece_count && !code->stage_blocks)
        code->segments[backward].upload = (dti_range){0, DTI_WORD_BYTES * DTI_STEP_WORDS};
    const dt_result result = code->slices.last ? dti_segment_exchange(code) : DT_OK;
    code->weigh_segment = code->segment_count;
    if (result)
        return result;
    if (!code->weighs)
        return dti_segments_apart(code);
    code->segments[code->segment_count++] = (dti_segment){
        .first = 0,
        .count = w->weigh_launches,
        .upload = code->segments[0].upload,
        .download = {0, code->slices.piece_count ? code->out_bytes
                                                 : DTI_WORD_BYTES * DTI_STATUS_WORDS}};
    return dti_segments_apart(code);
}
