/* Tensors larger than a device can bind (128 MiB on some). A node with such operands is emitted for
 * parts of the batch, one after the other. Each is bound as a range of the whole. Values of a
 * sample are written to its part of the result. Sums over samples are made for each part, and the
 * parts are added in order. Bindings begin at multiples of 256 bytes, so a part's first element may
 * lie a little inside. It reports no errors: the device reports a node that cannot be cut. */

static bool dti_cut_is_large(const dti_code *code, const dti_view *v) {
    return code->list.values[v->value].bytes > code->limits.storage_range_bytes;
}

/* A view that repeats elements may be large though its value is not: a dense copy would be. */
static bool dti_cut_is_wide(const dti_code *code, const dti_view *v) {
    uint64_t bytes = dti_bytes(v->dtype, (uint64_t)dti_view_elements(v));
    return dti_cut_is_large(code, v) || bytes > code->limits.storage_range_bytes;
}

/* From the first to the last element that `rows` samples take, in elements. */
static int64_t dti_cut_extent(const dti_view *v, int64_t rows) {
    int64_t extent = 1 + (rows - 1) * v->stride[0];
    for (int axis = 1; axis < DTI_AXES; axis++)
        extent += (v->dim[axis] - 1) * v->stride[axis];
    return extent;
}

/* Samples [row, row + rows) of a view; one without samples is the same for all. */
static dti_view dti_view_rows(const dti_view *v, int64_t row, int64_t rows) {
    dti_view part = *v;
    if (v->dim[0] == 1)
        return part;
    part.dim[0] = rows;
    part.offset += row * v->stride[0];
    if (rows == 1)
        part.stride[0] = 0;
    return part;
}

/* The same with a value of its own, where the whole cannot be bound. */
static dti_view dti_cut_view(dti_code *code, const dti_view *v, int64_t row, int64_t rows) {
    dti_view part = dti_view_rows(v, row, rows);
    if (v->dim[0] == 1 || !dti_cut_is_large(code, v))
        return part;
    uint64_t first = dti_bytes(v->dtype, (uint64_t)part.offset) / DTI_PLACE_ALIGN * DTI_PLACE_ALIGN;
    uint64_t end = dti_bytes(v->dtype, (uint64_t)(part.offset + dti_cut_extent(v, rows)));
    part.value = dti_listing_part(&code->list, v->value, first, end - first);
    part.offset -= (int64_t)(first / dti_dtype_bytes(v->dtype));
    return part;
}

/* The most samples whose every operand can be bound; 0 = one sample is too large. */
static int64_t dti_cut_rows(const dti_code *code, const dti_view *v, int64_t rows) {
    uint64_t room = code->limits.storage_range_bytes;
    room = room > DTI_PLACE_ALIGN ? (room - DTI_PLACE_ALIGN) / dti_dtype_bytes(v->dtype) : 0;
    if (v->dim[0] == 1 || !dti_cut_is_wide(code, v))
        return rows;
    uint64_t one = (uint64_t)dti_cut_extent(v, 1), step = (uint64_t)DTI_MAX(v->stride[0], 1);
    if (!dti_cut_is_large(code, v))
        one = step = (uint64_t)(dti_view_elements(v) / v->dim[0]);
    if (one > room)
        return 0;
    return DTI_MIN(rows, (int64_t)((room - one) / step + 1));
}

typedef struct dti_cut {
    dti_code *code;
    dti_emit *e;
    const dti_op_family *family;
    dti_view out;
    int64_t rows;      /* of a part */
    uint32_t parts;    /* of how many */
    bool sums;         /* the result has no samples: parts' results are added, or joined */
    uint32_t partial;  /* value of one part's sums; to be joined, of all parts' */
    uint32_t elements; /* of one; a term is a pair */
    dti_view *inputs;  /* the whole views, by input */
    int64_t first_row; /* of the node's rows */
} dti_cut;

/* A node's inputs, once each: the views are replaced by their parts, and later restored. */
static void dti_cut_inputs(dti_cut *c, int64_t row, int64_t rows) {
    dti_emit *e = c->e;
    for (uint32_t k = 0; k < e->node->count; k++)
        e->views[dti_input_id(e->graph, e->node, k)] = c->inputs[k];
    for (uint32_t k = 0; k < e->node->count; k++) {
        dti_view *v = &e->views[dti_input_id(e->graph, e->node, k)];
        const dti_view *all = &c->inputs[k];
        if (v->value == all->value && v->offset == all->offset && v->dim[0] == all->dim[0])
            *v = dti_cut_view(c->code, all, row, rows);
    }
}

/* The first part's sums are the result, and the others' are added to it. */
static dti_view dti_cut_sum(const dti_cut *c, uint32_t i) {
    dti_view out = c->out;
    if (c->family->join || i > 0) {
        out.value = c->partial;
        out.offset = c->family->join ? (int64_t)i * c->elements : 0;
    }
    return out;
}

static dti_view dti_cut_flat(const dti_view *v, uint32_t elements) {
    dti_view flat = {.value = v->value,
                     .dtype = v->dtype,
                     .offset = v->offset,
                     .dim = {1, 1, 1, 1, 1, elements}};
    flat.stride[DTI_AXES - 1] = elements > 1;
    return flat;
}

static void dti_cut_part(dti_cut *c, uint32_t i) {
    dti_emit *e = c->e;
    int64_t row = i * c->rows, rows = DTI_MIN(c->rows, e->batch - row);
    dti_cut_inputs(c, row, rows);
    e->first_row = c->first_row + row;
    e->out = c->sums ? dti_cut_sum(c, i) : dti_cut_view(c->code, &c->out, row, rows);
    c->family->emit(e);
    if (!c->sums || c->family->join || i == 0)
        return;
    dti_view sum = dti_cut_flat(&c->out, c->elements), more = dti_cut_flat(&e->out, c->elements);
    dti_emit_add(e, &sum, &more, &sum);
}

static void dti_cut_all(dti_cut *c) {
    dti_emit *e = c->e;
    for (uint32_t k = 0; k < e->node->count; k++)
        c->inputs[k] = e->views[dti_input_id(e->graph, e->node, k)];
    if (c->sums)
        c->partial = dti_emit_scratch(e, c->out.dtype,
                                      (uint64_t)c->elements * (c->family->join ? c->parts : 1u));
    for (uint32_t i = 0; i < c->parts; i++)
        dti_cut_part(c, i);
    for (uint32_t k = 0; k < e->node->count; k++)
        e->views[dti_input_id(e->graph, e->node, k)] = c->inputs[k];
    e->first_row = c->first_row;
    e->out = c->out;
    if (c->family->join)
        c->family->join(e, c->partial, c->parts, c->rows);
}

static bool dti_cut_needed(const dti_code *code, const dti_emit *e) {
    bool large = dti_cut_is_large(code, &e->out), samples = e->node->samples;
    for (uint32_t k = 0; k < e->node->count; k++) {
        uint32_t id = dti_input_id(e->graph, e->node, k);
        large = large || dti_cut_is_wide(code, &e->views[id]);
        samples = samples || e->graph->nodes[id].samples;
    }
    return large && samples;
}

/* Copies a view with gaps that are not allowed: in parts as well. */
static void dti_cut_pack(dti_code *code, dti_emit *e) {
    uint32_t id = dti_input_id(e->graph, e->node, 0);
    const dti_node *in = &e->graph->nodes[id];
    dti_view x = e->views[id];
    if (!dti_cut_is_wide(code, &x) || x.dim[0] < 2 || dti_view_is_dense(&x))
        return;
    const uint32_t value = dti_emit_scratch(e, x.dtype, (uint64_t)dti_view_elements(&x));
    dti_view y = dti_view_dense(value, in, e->batch);
    int64_t rows = dti_cut_rows(code, &y, dti_cut_rows(code, &x, e->batch));
    for (int64_t row = 0; row < e->batch && rows > 0; row += rows) {
        int64_t n = DTI_MIN(rows, e->batch - row);
        dti_view from = dti_cut_view(code, &x, row, n), to = dti_cut_view(code, &y, row, n);
        dti_emit_copy(e, &from, &to, DTI_COPY_WORD);
    }
    if (rows > 0)
        e->views[id] = y;
}

static void dti_cut_emit(dti_code *code, dti_emit *e, const dti_op_family *family) {
    if (family->packs && family->packs(e->node))
        dti_cut_pack(code, e);
    bool idle = family->view || (family->idle && family->idle(e->node, e->train));
    if (idle || e->batch < 2 || !dti_cut_needed(code, e)) {
        family->emit(e);
        return;
    }
    dti_cut c = {.code = code, .e = e, .family = family, .out = e->out, .rows = e->batch};
    c.first_row = e->first_row;
    for (uint32_t k = 0; k < e->node->count; k++)
        c.rows = dti_cut_rows(code, &e->views[dti_input_id(e->graph, e->node, k)], c.rows);
    c.sums = !e->node->samples;
    c.elements = e->node->term ? 2 : (uint32_t)dti_view_elements(&e->out);
    if (!c.sums)
        c.rows = dti_cut_rows(code, &e->out, c.rows);
    c.inputs = dti_alloc_array(code->base, e->node->count + 1u, sizeof *c.inputs);
    if (!c.inputs)
        code->list.result = DT_ERROR_MEMORY;
    if (!c.inputs || c.rows == 0) {
        family->emit(e);
    } else {
        c.parts = (uint32_t)((e->batch + c.rows - 1) / c.rows);
        e->pinned = true; /* a part is not a node's whole value */
        dti_cut_all(&c);
    }
    dti_free(code->base, c.inputs);
}
