/* Sync points: rows whose value all pieces of the job's batch, or all tensor ranks of a group, make
 * together (collective.c). A segment ends at such a row, forward and backward. Each piece's operand
 * is made in OUT where possible, and the value lies in IN. So backends know nothing of sync points.
 * The code that drives the step makes the value from all operands in between (sync_point.c,
 * tp_sync.c). A sync point is never recomputed, so their order is that of nodes, whatever memory a
 * replica has. */

static bool dti_meets(const dti_code *code, uint32_t id) {
    const dti_node *n = &code->work->nodes[id];
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    if (!family->meet || !code->slices.piece_count)
        return false;
    return family->meet(n).kind >= DTI_MEET_SUM ? code->tp_ranks > 0
                                                : code->train && !code->tp_ranks;
}

static dt_result dti_sync_points_refuse(const dti_lowering *w, uint32_t id) {
    const dti_code *code = w->code;
    const dti_node *n = &code->work->nodes[id];
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    if (!code->desc.accumulate || !code->train || !family->meet ||
        family->meet(n).kind >= DTI_MEET_SUM)
        return DT_OK;
    return dti_code_fail(
        code, DT_ERROR_UNSUPPORTED,
        "a batch_norm with .sync cannot be combined with .accumulate; leave one out");
}

static dt_result dti_sync_points_make(dti_lowering *w) {
    dti_code *code = w->code;
    dt_result result = DT_OK;
    for (uint32_t id = 1; id < code->work->count && !result; id++) {
        result = w->needed[id] ? dti_sync_points_refuse(w, id) : DT_OK;
        code->sync_point_count += w->needed[id] && dti_meets(code, id);
    }
    const size_t most = DTI_SEGMENTS_MAX + (size_t)code->sync_point_count;
    code->segments = dti_alloc_array(code->base, most, sizeof *code->segments);
    code->segment_buckets = dti_alloc_array(code->base, most, sizeof *code->segment_buckets);
    code->sync_points =
        dti_alloc_array(code->base, code->sync_point_count + 1u, sizeof *code->sync_points);
    DTI_HAVE(code->segments && code->segment_buckets && code->sync_points);
    return result;
}

/* ---- places */

/* Where a piece's operand is to be. */
static uint32_t dti_sync_point_operand(dti_lowering *w, const dti_sync_point *m, uint32_t piece) {
    return dti_listing_value(&w->code->list, DTI_VALUE_OUT, DT_F32, m->given,
                             DTI_WORD_BYTES * ((uint64_t)m->at.word + piece * m->at.stride));
}

static void dti_sync_point_place_operand(dti_lowering *w, dti_sync_point *m, uint32_t in) {
    dti_code *code = w->code;
    const dti_node *n = &code->work->nodes[in];
    const bool each = dti_pieces_have(w, in), view = dti_op_info_of(n->op)->family->view;
    if (w->stat_of[in]) { /* the host always reads it there */
        m->at = code->stats[w->stat_of[in] - 1].at;
        return;
    }
    if (each && !view && !dti_piece_view(w, in, 0)->dim[DTI_AXES - 1]) {
        m->at = dti_pieces_place_out(w, in);
    } else {
        const uint64_t bytes = dti_aligned(dti_node_bytes(code, n));
        m->at = dti_out_words_of(code->out_bytes, each ? bytes : 0);
        code->out_bytes += bytes * (each ? code->slices.piece_count : 1);
    }
    if (!each && !view && !w->pin[in] && !w->param_of[in])
        w->pin[in] = dti_sync_point_operand(w, m, 0);
}

static void dti_sync_points_place(dti_lowering *w) {
    dti_code *code = w->code;
    uint32_t count = 0;
    for (uint32_t i = 1; i < code->work->count && code->sync_point_count; i++) {
        const uint32_t id = w->order[i];
        const dti_node *n = &code->work->nodes[id];
        if (!w->needed[id] || !dti_meets(code, id))
            continue;
        dti_sync_point *m = &code->sync_points[count++];
        *m = (dti_sync_point){.node = id, .meet = dti_op_info_of(n->op)->family->meet(n)};
        m->elements = (uint32_t)dti_node_elements(code, n);
        m->given =
            (uint32_t)dti_node_elements(code, &code->work->nodes[dti_input_id(code->work, n, 0)]);
        dti_sync_point_place_operand(w, m, dti_input_id(code->work, n, 0));
        m->in = code->in_bytes;
        code->in_bytes += dti_aligned(dti_node_bytes(code, n));
    }
}

/* ---- launches */

static void dti_lower_sync_point(dti_lowering *w, uint32_t id) {
    dti_code *code = w->code;
    dti_sync_point *m = &code->sync_points[w->met++];
    const dti_node *n = &code->work->nodes[id];
    const uint32_t in = dti_input_id(code->work, n, 0);
    const bool each = dti_pieces_have(w, in);
    w->e.node = n;
    w->e.id = id;
    for (uint32_t i = 0; i < (each ? code->slices.piece_count : 1u); i++) {
        const uint32_t value = dti_sync_point_operand(w, m, i);
        const dti_view to = dti_view_dense(value, &code->work->nodes[in], code->batch);
        const dti_view *from = each ? dti_piece_view(w, in, i) : &w->e.views[in];
        if ((!each || code->slices.pieces[i].rows) && !dti_lies_at(&code->list, from, value))
            dti_emit_copy(&w->e, from, &to, DTI_COPY_WORD);
    }
    m->segment = code->segment_count;
    dti_segment_cut(w);
    const uint32_t value = dti_listing_value(&code->list, DTI_VALUE_IN, DT_F32, m->elements, m->in);
    w->e.views[id] = dti_view_dense(value, n, code->batch);
    w->own[id].first = w->own[id].last = code->list.launch_count;
}

/* A sync point that no launch follows: the segment after it is empty. */
static bool dti_sync_point_waits(const dti_code *code) {
    return code->sync_point_count &&
           code->sync_points[code->sync_point_count - 1].segment + 1 == code->segment_count;
}

static void dti_sync_points_ranges(dti_code *code) {
    for (uint32_t i = 0; i < code->sync_point_count; i++) {
        const dti_sync_point *m = &code->sync_points[i];
        const uint64_t one = dti_bytes(DT_F32, m->given), next = DTI_WORD_BYTES * m->at.stride;
        dti_segment *s = &code->segments[m->segment];
        if (s[0].download.bytes < code->out_bytes) /* else all of it comes */
            s[0].download = (dti_range){DTI_WORD_BYTES * (uint64_t)m->at.word,
                                        m->at.stride ? next * code->slices.piece_count : one};
        s[1].upload = (dti_range){m->in, dti_bytes(DT_F32, m->elements)};
    }
}
