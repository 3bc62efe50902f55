/* Nodes that every piece of the batch has by itself. They are sums over samples, ops that see other
 * samples, and nodes that depend on those. They are emitted for one piece after the other. A piece
 * has its rows of tensors with samples, and its own copy of other values. Everything else is
 * emitted once. So the result does not depend on which program computes how many pieces. */

static dti_view *dti_piece_view(const dti_lowering *w, uint32_t id, uint32_t piece) {
    return &w->piece_views[(size_t)id * w->code->slices.piece_count + piece];
}

/* ---- extents */

static uint8_t dti_extent_of(const dti_lowering *w, const dti_node *n) {
    if (n->samples)
        return DTI_EXTENT_SAMPLES;
    if (dti_op_info_of(n->op)->family->uniform || dti_op_info_of(n->op)->family->meet)
        return DTI_EXTENT_UNIFORM;
    for (uint32_t k = 0; k < n->count; k++) {
        if (w->extent[dti_input_id(w->code->work, n, k)] != DTI_EXTENT_UNIFORM)
            return DTI_EXTENT_PIECE;
    }
    return DTI_EXTENT_UNIFORM;
}

static bool dti_pieces_each(const dti_lowering *w, uint32_t id) {
    if (!w->extent)
        return false;
    const dti_node *n = &w->code->work->nodes[id];
    const bool uniform = dti_op_info_of(n->op)->family->uniform;
    bool each = w->extent[id] == DTI_EXTENT_PIECE;
    for (uint32_t k = 0; k < n->count && !uniform; k++)
        each = each || w->extent[dti_input_id(w->code->work, n, k)] == DTI_EXTENT_PIECE;
    return each;
}

/* Whether a row's value goes to a sync point, so that it belongs to the whole batch. */
static bool dti_pieces_meet(const dti_code *code, const dti_node *n) {
    const dt_graph *g = code->work;
    for (uint32_t id = 1; id < g->count; id++) {
        if (dti_meets(code, id) && &g->nodes[dti_input_id(g, &g->nodes[id], 0)] == n)
            return true;
    }
    return false;
}

/* A piece is a batch to batch norm. */
static dt_result dti_pieces_values(const dti_code *code, const dti_node *n) {
    if (!dti_op_info_of(n->op)->family->values ||
        (code->slices.leaves > 1 && dti_pieces_meet(code, n)))
        return DT_OK;
    const dti_node *x = &code->work->nodes[dti_input_id(code->work, n, 0)];
    const char *name = code->work->nodes[dti_input_id(code->work, n, 1)].label;
    for (uint32_t i = 0; i < code->slices.piece_count; i++) {
        if (!code->slices.pieces[i].rows ||
            !dti_sees_one_value(code, n, code->slices.pieces[i].rows))
            continue;
        return dti_code_fail(code, DT_ERROR_INVALID,
                             "batch_norm(%s) with '%s' has one value a channel in batch slice %u; "
                             "use a larger .batch, smaller .parallel.batch_slices or .accumulate, "
                             ".tail = DT_TAIL_DROP, or another norm",
                             dti_shape_print(x->shape, true).text, name ? name : "?",
                             code->slices.pieces[i].leaf);
    }
    return DT_OK;
}

static dt_result dti_pieces_check(const dti_lowering *w) {
    const dti_code *code = w->code;
    for (uint32_t i = 0; w->extent && i < DT_MAX_OUTPUTS && dti_is_set(code->desc.outputs[i]);
         i++) {
        if (w->extent[dti_code_node(code, code->desc.outputs[i].id)] != DTI_EXTENT_PIECE)
            continue;
        return dti_code_fail(code, DT_ERROR_INVALID,
                             ".outputs[%u] is a sum over samples, and each batch slice has its "
                             "own; make it a metric",
                             i);
    }
    for (uint32_t id = 1; id < code->work->count; id++) {
        DTI_TRY(w->needed[id] ? dti_pieces_values(code, &code->work->nodes[id]) : DT_OK);
    }
    return DT_OK;
}

static dt_result dti_pass_pieces(dti_lowering *w) {
    const dti_code *code = w->code;
    if (code->slices.piece_count > 1) {
        size_t nodes = code->work->count, most = 1;
        for (size_t id = 1; id < nodes; id++)
            most = DTI_MAX(most, (size_t)code->work->nodes[id].count);
        w->extent = dti_alloc_array(code->base, nodes, 1);
        w->piece_views =
            dti_alloc_array(code->base, nodes * code->slices.piece_count, sizeof *w->piece_views);
        w->saved = dti_alloc_array(code->base, most, sizeof *w->saved);
        DTI_HAVE(w->extent && w->piece_views && w->saved);
        for (uint32_t i = 1; i < nodes; i++)
            w->extent[w->order[i]] = dti_extent_of(w, &code->work->nodes[w->order[i]]);
    }
    return code->slices.piece_count ? dti_pieces_check(w) : DT_OK;
}

/* ---- places */

static dti_out_words dti_out_words_of(uint64_t offset, uint64_t stride) {
    return (dti_out_words){(uint32_t)(offset / DTI_WORD_BYTES),
                           (uint32_t)(stride / DTI_WORD_BYTES)};
}

static dti_out_words dti_pieces_place_out(dti_lowering *w, uint32_t id) {
    dti_code *code = w->code;
    const dti_node *n = &code->work->nodes[id];
    const uint64_t stride = dti_aligned(dti_node_bytes(code, n));
    const dti_out_words at = dti_out_words_of(code->out_bytes, stride);
    for (uint32_t i = 0; i < code->slices.piece_count; i++, code->out_bytes += stride) {
        uint32_t value = dti_node_value(code, DTI_VALUE_OUT, n, code->out_bytes);
        *dti_piece_view(w, id, i) = dti_view_dense(value, n, 1);
    }
    return at;
}

static void dti_pieces_place(dti_lowering *w, uint32_t id) {
    dti_code *code = w->code;
    const dti_node *n = &code->work->nodes[id];
    for (uint32_t i = 0; i < w->code->slices.piece_count; i++) {
        dti_view *view = dti_piece_view(w, id, i);
        if (view->dim[DTI_AXES - 1] || !code->slices.pieces[i].rows)
            continue;
        uint32_t value = dti_node_value(code, DTI_VALUE_TRANSIENT, n, 0);
        *view = dti_view_dense(value, n, 1);
    }
}

/* ---- one node for one piece */

static void dti_piece_inputs(dti_lowering *w, uint32_t piece, int64_t row, int64_t rows) {
    dti_emit *e = &w->e;
    for (uint32_t k = 0; k < e->node->count; k++)
        w->saved[k] = e->views[dti_input_id(e->graph, e->node, k)];
    for (uint32_t k = 0; k < e->node->count; k++) {
        uint32_t id = dti_input_id(e->graph, e->node, k);
        if (!w->extent || w->extent[id] == DTI_EXTENT_UNIFORM)
            continue;
        e->views[id] = w->extent[id] == DTI_EXTENT_PIECE ? *dti_piece_view(w, id, piece)
                                                         : dti_view_rows(&w->saved[k], row, rows);
    }
}

/* A value that is the same for all pieces may have been made dense on the way: that is kept. */
static void dti_piece_inputs_back(dti_lowering *w) {
    dti_emit *e = &w->e;
    for (uint32_t k = 0; k < e->node->count; k++) {
        uint32_t id = dti_input_id(e->graph, e->node, k);
        if (w->extent && w->extent[id] != DTI_EXTENT_UNIFORM)
            e->views[id] = w->saved[k];
    }
}

/* Emits node `id` for a piece, to `to`; returns where it lies: a view keeps its place, unless it
 * must be in `to`. */
static dti_view dti_piece_emit(dti_lowering *w, uint32_t id, uint32_t piece, const dti_view *to,
                               bool keep) {
    dti_code *code = w->code;
    dti_emit *e = &w->e;
    const dti_op_family *family = dti_op_info_of(code->work->nodes[id].op)->family;
    e->node = &code->work->nodes[id];
    e->id = id;
    e->pinned = true;
    e->batch = code->slices.pieces[piece].rows;
    e->first_row = dti_pieces_rows(code->slices.pieces, piece);
    e->out = *to;
    dti_piece_inputs(w, piece, e->first_row, e->batch);
    dti_cut_emit(code, e, family);
    dti_view out = e->out;
    if ((out.value != to->value || out.offset != to->offset) && !keep) {
        dti_emit_copy(e, &out, to, DTI_COPY_WORD);
        out = *to;
    }
    dti_piece_inputs_back(w);
    e->batch = code->batch;
    e->first_row = 0;
    return out;
}

static void dti_lower_pieces(dti_lowering *w, uint32_t id) {
    dti_code *code = w->code;
    const dti_node *n = &code->work->nodes[id];
    dti_view whole = {0};
    if (w->e.own)
        w->own[id].first = code->list.launch_count;
    if (n->samples) {
        uint32_t value = w->pin[id] ? w->pin[id] : dti_node_value(code, DTI_VALUE_TRANSIENT, n, 0);
        whole = dti_view_dense(value, n, code->batch);
    }
    bool view = dti_op_info_of(n->op)->family->view;
    bool fixed = !n->samples && dti_piece_view(w, id, 0)->dim[DTI_AXES - 1];
    if (!n->samples && !view)
        dti_pieces_place(w, id);
    for (uint32_t i = 0; i < w->code->slices.piece_count; i++) {
        int64_t rows = code->slices.pieces[i].rows;
        if (!rows)
            continue;
        dti_view to = *dti_piece_view(w, id, i);
        if (!to.dim[DTI_AXES - 1]) /* a view starts from its own dense layout */
            to = dti_view_dense(0, n, 1);
        if (n->samples)
            to = dti_view_rows(&whole, dti_pieces_rows(code->slices.pieces, i), rows);
        dti_view out = dti_piece_emit(w, id, i, &to, view && !n->samples && !fixed);
        if (!n->samples)
            *dti_piece_view(w, id, i) = out;
    }
    if (n->samples)
        w->e.views[id] = whole;
    if (w->e.own)
        w->own[id].last = code->list.launch_count;
}

/* ---- gradients added up */

static bool dti_pieces_fold(const dti_code *code) {
    bool plain = code->slices.piece_count == 1 && code->slices.pieces[0].begins &&
                 code->slices.before.count == 0;
    return code->slices.piece_count && !code->slices.any_part && !plain;
}

static bool dti_piece_fold_direct(const dti_lowering *w, uint32_t id) {
    const dti_node *n = &w->code->work->nodes[id];
    return w->own[id].uses == 1 && w->param_of[id] && !w->next_param[w->param_of[id] - 1] &&
           !w->pin[id] && n->count > 0 && !n->samples && !dti_op_info_of(n->op)->family->view &&
           dti_pieces_each(w, id);
}

/* Brings a piece's gradient to `value`. */
static void dti_piece_fold(dti_lowering *w, uint32_t id, uint32_t piece, uint32_t value,
                           bool direct) {
    const dti_node *n = &w->code->work->nodes[id];
    dti_view to = dti_view_dense(value, n, 1);
    if (!w->code->slices.pieces[piece].rows) {
        dti_emit_fill(&w->e, &to, DTI_COPY_FILL_F32, 0.0f);
    } else if (direct) {
        dti_piece_emit(w, id, piece, &to, false);
    } else {
        dti_emit_copy(&w->e,
                      dti_pieces_have(w, id) ? dti_piece_view(w, id, piece) : &w->e.views[id], &to,
                      DTI_COPY_WORD);
    }
}

/* The next part of a leaf, or a subtree's sum; with many parts, `rounding` keeps the error from
 * growing. */
static void dti_piece_fold_part(dti_lowering *w, const dti_node *n, uint32_t to, uint32_t more,
                                uint32_t rounding) {
    dti_view a = dti_view_dense(to, n, 1), b = dti_view_dense(more, n, 1);
    if (rounding == DTI_UNBOUND)
        dti_emit_add(&w->e, &a, &b, &a);
    else
        dti_emit_accumulate(&w->e, &b, to, rounding, (uint32_t)dti_view_elements(&b),
                            DTI_ACCUMULATE_ADD);
}

static void dti_lower_fold(dti_lowering *w, uint32_t id, uint32_t param, bool direct) {
    dti_code *code = w->code;
    const dti_node *n = &code->work->nodes[id];
    dti_subtrees s = code->slices.before;
    const uint32_t slots = DTI_MAX(s.count, dti_subtrees_after(&code->slices).count);
    const uint32_t rounding = dti_lower_rounding(code, param);
    uint32_t entry[DTI_SUBTREES_MAX];
    w->e.node = n;
    w->e.id = id;
    for (uint32_t i = 0; i < slots; i++)
        entry[i] = dti_param_value(code, param, DTI_VALUE_GRADIENT, i);
    for (uint32_t i = 0; i < code->slices.piece_count; i++) {
        const dti_piece *piece = &code->slices.pieces[i];
        uint32_t at = dti_subtrees_add(&s, piece);
        if (piece->begins && at >= slots)
            entry[at] = dti_node_value(code, DTI_VALUE_TRANSIENT, n, 0);
        if (piece->begins) {
            dti_piece_fold(w, id, i, entry[at], direct);
            const dti_view lost = dti_view_dense(rounding, n, 1);
            if (rounding != DTI_UNBOUND)
                dti_emit_fill(&w->e, &lost, DTI_COPY_FILL_F32, 0.0f);
        } else if (piece->rows) {
            uint32_t more = dti_node_value(code, DTI_VALUE_TRANSIENT, n, 0);
            dti_piece_fold(w, id, i, more, direct);
            dti_piece_fold_part(w, n, entry[at], more, rounding);
        }
        while (piece->ends && dti_subtrees_join(&s, code->slices.leaves))
            dti_piece_fold_part(w, n, entry[s.count - 1], entry[s.count], DTI_UNBOUND);
    }
}
