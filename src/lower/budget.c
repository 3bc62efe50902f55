/* Programs within dt_program_desc.memory_bytes: which tensors are computed again is chosen here,
 * and marked for recompute.c. The forward pass is cut into parts where little crosses; what crosses
 * is kept, all else within the first parts is computed again. The last part never is: its gradients
 * come at once. With n equal layers in about sqrt(n) parts the kept bytes grow with sqrt(n) (Chen
 * et al., "Training Deep Nets with Sublinear Memory Cost", 2016). Which numbers of parts fit is not
 * estimated but tried: a code's bytes are exact before it runs. At most 20 codes are made. */

/* ---- a choice as marks */

typedef struct dti_cuts {
    const dti_lowering *w;
    uint32_t *whole;            /* by node: the source of a view, or itself */
    uint32_t *last;             /* by node: the forward row that reads it or a view of it last */
    uint8_t *read;              /* by node: gradient rows do */
    int64_t *cost;              /* by node: the bytes that cross a cut before it */
    uint64_t bytes;             /* that gradient rows read */
    uint32_t at[DTI_PARTS_MAX]; /* the node before which each part ends */
} dti_cuts;

static uint64_t dti_cuts_bytes(const dti_cuts *c, uint32_t id) {
    const dti_code *code = c->w->code;
    const bool counts = c->whole[id] == id && dti_recompute_can(code->work, id);
    return counts ? dti_node_bytes(code, &code->work->nodes[id]) : 0;
}

static void dti_cuts_readers(dti_cuts *c, const uint8_t *needed) {
    const dt_graph *g = c->w->code->work;
    const uint32_t forward = c->w->code->backward_node;
    for (uint32_t id = 1; id < g->count; id++) {
        const dti_node *n = &g->nodes[id];
        const bool view = dti_op_info_of(n->op)->family->view;
        if (id < forward)
            c->whole[id] = view ? c->whole[dti_input_id(g, n, 0)] : id;
        for (uint32_t k = 0; needed[id] && k < n->count; k++) {
            const uint32_t in = dti_input_id(g, n, k);
            if (in < forward && id >= forward)
                c->read[c->whole[in]] = 1;
            else if (in < forward && !view)
                c->last[c->whole[in]] = id;
        }
    }
}

/* A value that crosses and that no gradient row reads costs twice: else it would not be kept. */
static void dti_cuts_costs(dti_cuts *c) {
    const uint32_t forward = c->w->code->backward_node;
    for (uint32_t id = 1; id < forward; id++) {
        const uint64_t bytes = dti_cuts_bytes(c, id);
        const int64_t cost = (int64_t)bytes * (c->read[id] ? 1 : 2);
        c->bytes += c->read[id] ? bytes : 0;
        if (c->last[id] <= id)
            continue;
        c->cost[id + 1] += cost;
        c->cost[c->last[id] + 1] -= cost;
    }
    for (uint32_t id = 1; id <= forward; id++)
        c->cost[id] += c->cost[id - 1];
}

/* The place where the least crosses, within a window around the given number of bytes; else where
 * that number is reached. */
static uint32_t dti_cuts_at(const dti_cuts *c, uint64_t goal, uint64_t window) {
    const uint32_t forward = c->w->code->backward_node;
    uint32_t found = 0, reached = forward;
    uint64_t before = 0;
    for (uint32_t id = 1; id < forward && before <= goal + window; id++) {
        if (before + window >= goal && (!found || c->cost[id] < c->cost[found]))
            found = id;
        if (before >= goal)
            reached = DTI_MIN(reached, id);
        before += c->read[id] ? dti_cuts_bytes(c, id) : 0;
    }
    return found ? found : reached;
}

/* Parts of about equal bytes. */
static void dti_cuts_choose(dti_cuts *c, uint32_t parts) {
    for (uint32_t k = 0; k + 1 < parts; k++)
        c->at[k] = dti_cuts_at(c, c->bytes / parts * (k + 1), c->bytes / (3 * parts));
    c->at[parts - 1] = c->w->code->backward_node;
}

static void dti_cuts_mark(const dti_cuts *c, uint32_t again, uint8_t *marked, uint8_t *kept) {
    uint32_t part = 0;
    for (uint32_t id = 1; id < c->w->code->backward_node; id++) {
        while (part < again && id >= c->at[part])
            part++;
        if (part == again)
            return;
        if (c->whole[id] != id || !dti_recompute_can(c->w->code->work, id))
            continue;
        const bool crosses = c->last[id] >= c->at[part];
        marked[id] = marked[id] || !crosses;
        kept[id] = kept[id] || crosses;
    }
}

static bool dti_choice_mark(const dti_lowering *w, const uint8_t *needed, uint8_t *marked,
                            uint8_t *kept) {
    dti_base *base = w->code->base;
    const uint32_t nodes = w->code->work->count;
    dti_cuts c = {.w = w};
    c.whole = dti_alloc_array(base, nodes, sizeof *c.whole);
    c.last = dti_alloc_array(base, nodes, sizeof *c.last);
    c.read = dti_alloc_array(base, nodes, 1);
    c.cost = dti_alloc_array(base, (size_t)nodes + 1, sizeof *c.cost);
    const bool room = c.whole && c.last && c.read && c.cost;
    if (room) {
        dti_cuts_readers(&c, needed);
        dti_cuts_costs(&c);
        dti_cuts_choose(&c, w->choice.parts);
        dti_cuts_mark(&c, w->choice.again, marked, kept);
    }
    DTI_FREE(base, c.whole, c.last, c.read, c.cost);
    return room;
}

/* ---- the search */

typedef struct dti_search {
    dti_base *base;
    const dti_code_desc *desc;
    const dti_code *best; /* of those that fit, the one with the fewest launches; NULL: none fits */
    uint64_t least, whole;
    bool gradients;
    dt_result result;
} dti_search;

/* Whether it fits. */
static bool dti_search_try(dti_search *s, uint32_t parts, uint32_t again) {
    dti_code_desc desc = *s->desc;
    const dti_code *code = NULL;
    s->result = dti_graph_clone(s->desc->work, s->desc->work->ctx, &desc.work);
    if (!s->result)
        s->result = dti_code_make(s->base, &desc, (dti_choice){parts, again}, &code);
    if (s->result)
        return false;
    const bool fits = code->transient_bytes <= s->desc->program->memory_bytes;
    s->least = DTI_MIN(s->least, code->transient_bytes);
    if (!parts) {
        s->whole = code->transient_bytes;
        s->gradients = code->has_gradients;
    }
    const dti_code *out = code;
    if (fits && (!s->best || code->launches_recomputed < s->best->launches_recomputed)) {
        out = s->best;
        s->best = code;
    }
    dti_code_free(out);
    return fits;
}

/* The fewest parts to compute again, out of `parts`. */
static void dti_search_fewest(dti_search *s, uint32_t parts) {
    uint32_t low = 1, high = parts - 1;
    while (low < high && !s->result) {
        const uint32_t middle = low + (high - low) / 2;
        if (dti_search_try(s, parts, middle))
            high = middle;
        else
            low = middle + 1;
    }
}

static void dti_search_run(dti_search *s) {
    static const uint32_t parts[] = {2, 3, 4, 6, 8, 12, 16, DTI_PARTS_MAX};
    if (dti_search_try(s, 0, 0) || s->result || !s->gradients)
        return;
    uint32_t i = 0;
    while (i < DTI_COUNT(parts) && !dti_search_try(s, parts[i], parts[i] - 1) && !s->result)
        i++;
    for (uint32_t k = i; k < i + 2 && k < DTI_COUNT(parts) && !s->result; k++)
        dti_search_fewest(s, parts[k]);
}

static dt_result dti_code_create(dti_base *base, const dti_code_desc *desc, const dti_code **out) {
    *out = NULL;
    if (!desc->program->memory_bytes)
        return dti_code_make(base, desc, (dti_choice){0, 0}, out);
    dti_search s = {.base = base, .desc = desc, .least = UINT64_MAX};
    dti_search_run(&s);
    dt_graph_destroy(desc->work);
    if (s.result) {
        dti_code_free(s.best);
        return s.result;
    }
    *out = s.best;
    if (s.best)
        return DT_OK;
    return dti_fail(base, DT_ERROR_DEVICE_MEMORY,
                    "program '%s': .memory_bytes is %llu, but the least found is %llu transient "
                    "bytes (%llu without recomputation): allow that much, or use a smaller batch",
                    desc->program->label ? desc->program->label : "program",
                    (unsigned long long)desc->program->memory_bytes, (unsigned long long)s.least,
                    (unsigned long long)s.whole);
}
