/* Keys and values that a store keeps between the runs of programs with .cached, in an arena of
 * their own. There the row takes (x, at) and gives all positions; in other programs it takes only x
 * and gives it. attr.dim: positions, where the cache lies (in elements), and from one position of
 * it to the next; i[0] = samples that there is room for, i[1] = which of these x's elements follow.
 * A run writes only its own positions, never earlier ones. So a run that is cancelled, or made
 * again, does no harm. */

enum { DTI_CACHE_POSITIONS = 0, DTI_CACHE_PLACE = 1, DTI_CACHE_ROW = 2 }; /* dim */
enum { DTI_CACHE_SAMPLES = 0, DTI_CACHE_COLUMN = 1 };                     /* i */

static bool dti_cache_keeps(const dti_node *n) {
    return n->count > 1;
}

static bool dti_cache_shape(dti_build *b) {
    const int64_t positions = b->out.attr.dim[DTI_CACHE_POSITIONS];
    dt_shape s = b->in[0]->shape;
    b->out.shape = s;
    b->out.dtype = b->in[0]->dtype;
    if (b->count < 2)
        return true;
    if (b->count > 2 || b->in[0]->dtype != DT_F32 || b->in[1]->dtype != DT_I32 ||
        b->in[1]->shape.rank != 0 || s.rank != 3)
        return dti_build_fail(b, "needs f32 [heads, positions, size] and an i32 [], one a sample");
    if (s.dim[1] > positions)
        return dti_build_fail(b, "%lld positions, but the cache has %lld", (long long)s.dim[1],
                              (long long)positions);
    s.dim[1] = positions;
    b->out.shape = s;
    return true;
}

static void dti_cache_grad(dti_grad *g) {
    if (!dti_cache_keeps(&g->node))
        g->dx[0] = g->dy;
    else
        dti_graph_fail(g->graph, "cache: a program with .cached has no gradients");
}

/* The place of x's first position, so that its last has room. */
static bool dti_cache_labels(const dt_graph *g, const dti_node *n, dti_labels *out) {
    if (!dti_cache_keeps(n))
        return false;
    const int64_t tokens = g->nodes[dti_input_id(g, n, 0)].shape.dim[1];
    const int64_t last = n->attr.dim[DTI_CACHE_POSITIONS] - tokens;
    *out = (dti_labels){.input = 1, .classes = (int32_t)last + 1};
    return true;
}

static int64_t dti_cache_room(const dti_node *n) {
    return dti_cache_keeps(n) ? n->attr.i[DTI_CACHE_SAMPLES] : INT64_MAX;
}

/* Rows of one cache are one value, so that keys and values are bound once. */
static uint32_t dti_cache_value(dti_listing *list, uint64_t n, uint64_t offset) {
    for (uint32_t v = 0; v < list->value_count; v++) {
        if (list->values[v].kind == DTI_VALUE_CACHE && list->values[v].offset == offset)
            return v;
    }
    return dti_listing_value(list, DTI_VALUE_CACHE, DT_F32, n, offset);
}

/* All positions as [heads, positions, size] of each sample. */
static dti_view dti_cache_view(dti_emit *e) {
    const dti_attr *attr = &e->node->attr;
    const int64_t row = attr->dim[DTI_CACHE_ROW], sample = attr->dim[DTI_CACHE_POSITIONS] * row;
    const uint64_t n = (uint64_t)(attr->i[DTI_CACHE_SAMPLES] * sample);
    const int64_t strides[DTI_AXES] = {sample, 0, 0, e->out.dim[5], row, 1};
    dti_view y = e->out;
    y.value = dti_cache_value(e->list, n, DTI_WORD_BYTES * (uint64_t)attr->dim[DTI_CACHE_PLACE]);
    y.offset = attr->i[DTI_CACHE_COLUMN];
    for (int axis = 0; axis < DTI_AXES; axis++)
        y.stride[axis] = y.dim[axis] == 1 ? 0 : strides[axis];
    return y;
}

static void dti_cache_emit(dti_emit *e) {
    const dti_view x = dti_emit_in(e, 0);
    if (!dti_cache_keeps(e->node)) {
        e->out = x;
        return;
    }
    const dti_view at = dti_emit_in(e, 1);
    const int64_t *dim = e->node->attr.dim;
    e->out = dti_cache_view(e);
    const dti_args_cache a = {.samples = (uint32_t)e->out.dim[0],
                              .heads = (uint32_t)e->out.dim[3],
                              .tokens = (uint32_t)x.dim[4],
                              .size = (uint32_t)e->out.dim[5],
                              .positions = (uint32_t)dim[DTI_CACHE_POSITIONS],
                              .x_offset = (uint32_t)x.offset,
                              .x_sample = (uint32_t)x.stride[0],
                              .x_head = (uint32_t)x.stride[3],
                              .x_row = (uint32_t)x.stride[4],
                              .x_col = (uint32_t)x.stride[5],
                              .at_offset = (uint32_t)at.offset,
                              .at_sample = (uint32_t)at.stride[0],
                              .y_row = (uint32_t)dim[DTI_CACHE_ROW],
                              .y_offset = (uint32_t)e->out.offset};
    const uint64_t n = (uint64_t)a.samples * a.heads * a.tokens * a.size;
    DTI_EMIT(e, DTI_K_CACHE, n, a, x.value, at.value, e->out.value);
}

/* ---- CPU */

/* Items are elements of x; a row of a head at a time. */
static void dti_cpu_cache(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_cache *a = &task->launch->args.cache;
    const dti_word *at = (const dti_word *)task->buf[1] + a->at_offset;
    const int64_t size = a->size;
    for (int64_t i = begin; i < end;) {
        const int64_t row = i / size, col = i % size, n = DTI_MIN(size - col, end - i);
        const int64_t token = row % a->tokens, head = row / a->tokens % a->heads;
        const int64_t sample = row / a->tokens / a->heads;
        const int64_t place = (int64_t)at[sample * a->at_sample] + token;
        const float *x = dti_cpu_in(task, 0, a->x_offset) + sample * a->x_sample +
                         head * a->x_head + token * a->x_row + col * a->x_col;
        float *y = dti_cpu_out(task, 2, a->y_offset) + (sample * a->positions + place) * a->y_row +
                   head * size + col;
        for (int64_t k = 0; k < n && place < a->positions; k++) /* a negative one is beyond it */
            y[k] = x[k * a->x_col];
        i += n;
    }
}

/* ---- Rows of the tables */

/* (x, at, cache) item = element of x */
DTI_KERNEL(CACHE, cache, "rrw", ITEM, .run = dti_cpu_cache, .grain = DTI_GRAIN_COPY,
           .moves = dti_launch_only_moves);

/* The reference is of programs that keep nothing; the others are held against those. */
DTI_FAMILY_BY(cache, cache, .shape = dti_cache_shape, .grad = dti_cache_grad,
              .labels = dti_cache_labels, .room = dti_cache_room, .view = true);
