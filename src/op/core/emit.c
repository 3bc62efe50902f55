/* Listings, views and the walks of the map kernels. Indices in kernels have 32 bits. A shape has
 * fewer than 2^31 elements, and the program checks the product with the batch. */

static uint32_t dti_listing_value(dti_listing *list, dti_value_kind kind, dt_dtype dtype,
                                  uint64_t n, uint64_t offset) {
    if (!dti_array_reserve(list->base, (void **)&list->values, &list->value_capacity,
                           (size_t)list->value_count + 1, sizeof *list->values)) {
        list->result = DT_ERROR_MEMORY;
        return 0;
    }
    dti_value *v = &list->values[list->value_count];
    const uint64_t bytes = dti_bytes(dtype, n);
    *v = (dti_value){.kind = (uint8_t)kind,
                     .dtype = (uint8_t)dtype,
                     .bytes = bytes ? bytes : DTI_WORD_BYTES,
                     .first = list->launch_count,
                     .offset = offset};
    v->same_as = v->part_of = list->value_count;
    return list->value_count++;
}

static uint32_t dti_listing_part(dti_listing *list, uint32_t value, uint64_t offset,
                                 uint64_t bytes) {
    const dti_value whole = list->values[value];
    uint32_t part = dti_listing_value(list, (dti_value_kind)whole.kind, whole.dtype,
                                      bytes / dti_dtype_bytes(whole.dtype), whole.offset + offset);
    if (whole.kind == DTI_VALUE_TRANSIENT && part) {
        list->values[part].part_of = whole.part_of;
        list->values[whole.part_of].has_parts = true;
    }
    return part;
}

static dti_view dti_view_packed(uint32_t value, const dti_view *like, int64_t offset) {
    dti_view v = *like;
    int64_t step = 1;
    v.value = value;
    v.offset = offset;
    for (int axis = DTI_AXES - 1; axis >= 0; axis--) {
        v.stride[axis] = v.dim[axis] == 1 ? 0 : step;
        step *= v.dim[axis];
    }
    return v;
}

static dti_view dti_view_dense(uint32_t value, const dti_node *node, int64_t batch) {
    const dt_shape shape = node->shape;
    dti_view v = {.dtype = node->dtype};
    for (int axis = DTI_AXES - 1; axis >= 0; axis--) {
        int i = axis - (DTI_AXES - shape.rank);
        v.dim[axis] = axis == 0 ? (node->samples ? batch : 1) : i >= 0 ? shape.dim[i] : 1;
    }
    return dti_view_packed(value, &v, 0);
}

static dti_view dti_view_line(uint32_t value, int64_t n, int64_t stride, int64_t offset) {
    return (dti_view){.value = value,
                      .dtype = DT_F32,
                      .dim = {1, 1, 1, 1, 1, n},
                      .stride = {[DTI_AXES - 1] = n == 1 ? 0 : stride},
                      .offset = offset};
}

static int64_t dti_view_elements(const dti_view *v) {
    int64_t n = 1;
    for (int i = 0; i < DTI_AXES; i++)
        n *= v->dim[i];
    return n;
}

static int64_t dti_view_as_one(const dti_view *v, int first, int end) {
    int64_t stride = 0, next = -1;
    for (int axis = end - 1; axis >= first; axis--) {
        if (v->dim[axis] == 1)
            continue;
        if (next >= 0 && v->stride[axis] != next)
            return -1;
        if (next < 0)
            stride = v->stride[axis];
        next = v->stride[axis] * v->dim[axis];
    }
    return stride;
}

static bool dti_view_is_dense(const dti_view *v) {
    return dti_view_as_one(v, 0, DTI_AXES) == 1 || dti_view_elements(v) == 1;
}

static dti_view dti_view_broadcast(const dti_view *v, const int64_t dim[DTI_AXES]) {
    dti_view w = *v;
    for (int i = 0; i < DTI_AXES; i++) {
        w.dim[i] = dim[i];
        if (v->dim[i] == 1)
            w.stride[i] = 0;
    }
    return w;
}

/* Whether axis `outer` continues axis `inner` in every view: then both are one loop. */
static bool dti_walk_joins(const dti_view *const *views, int count, int outer, int inner,
                           int64_t inner_dim) {
    for (int t = 0; t < count; t++) {
        if (views[t]->stride[outer] != views[t]->stride[inner] * inner_dim)
            return false;
    }
    return true;
}

static dti_walk dti_walk_make(const int64_t dim[DTI_AXES], const dti_view *const *views,
                              int count) {
    dti_walk w = {.n = 1};
    for (int i = 0; i < DTI_AXES; i++) {
        w.dim[i] = 1;
        w.n *= dim[i];
    }
    int at = DTI_AXES, inner = -1; /* inner: the axis whose strides the open loop has */
    for (int axis = DTI_AXES - 1; axis >= 0; axis--) {
        if (dim[axis] == 1)
            continue;
        if (inner >= 0 && dti_walk_joins(views, count, axis, inner, (int64_t)w.dim[at])) {
            w.dim[at] *= (uint32_t)dim[axis];
            continue;
        }
        at--;
        inner = axis;
        w.dim[at] = (uint32_t)dim[axis];
        for (int t = 0; t < count; t++)
            w.stride[t][at] = (uint32_t)views[t]->stride[axis];
    }
    w.axes = (uint32_t)DTI_MAX(DTI_AXES - at, 1);
    return w;
}

static dti_view dti_emit_in(const dti_emit *e, uint32_t i) {
    return e->views[dti_input_id(e->graph, e->node, i)];
}

static dti_view dti_emit_dense_view(dti_emit *e, const dti_view *v) {
    if (dti_view_is_dense(v))
        return *v;
    const uint32_t value = dti_emit_scratch(e, v->dtype, (uint64_t)dti_view_elements(v));
    const dti_view w = dti_view_packed(value, v, 0);
    dti_emit_copy(e, v, &w, DTI_COPY_WORD);
    e->list->values[value].rounded = e->list->values[v->value].rounded;
    return w;
}

static dti_view dti_emit_dense_in(dti_emit *e, uint32_t i) {
    dti_view *v = &e->views[dti_input_id(e->graph, e->node, i)];
    *v = dti_emit_dense_view(e, v); /* later users find it dense */
    return *v;
}

static uint32_t dti_emit_given(dti_emit *e, uint32_t i, uint32_t *offset) {
    if (i >= e->node->count)
        return DTI_UNBOUND;
    const dti_view v = dti_emit_dense_in(e, i);
    *offset = (uint32_t)v.offset;
    return v.value;
}

static uint32_t dti_emit_scratch(dti_emit *e, dt_dtype dtype, uint64_t n) {
    return dti_listing_value(e->list, DTI_VALUE_TRANSIENT, dtype, n, 0);
}

static dti_launch *dti_emit_launch(dti_emit *e, dti_kernel_id kernel, uint64_t items,
                                   const void *args, size_t args_bytes,
                                   const uint32_t values[DTI_BINDINGS_MAX]) {
    dti_listing *list = e->list;
    dti_launch *l = &list->spare;
    if (dti_array_reserve(list->base, (void **)&list->launches, &list->launch_capacity,
                          (size_t)list->launch_count + 1, sizeof *l)) {
        l = &list->launches[list->launch_count++];
    } else {
        list->result = DT_ERROR_MEMORY;
    }
    memset(l, 0, sizeof *l);
    l->kernel = (uint16_t)kernel;
    l->args_bytes = (uint8_t)args_bytes;
    l->node = e->id;
    l->items = items;
    memcpy(&l->args, args, args_bytes);
    for (int i = 0; i < DTI_BINDINGS_MAX; i++)
        l->value[i] = values[values[i] == DTI_UNBOUND ? 0 : i];
    return l;
}

/* The arguments of MAP1, MAP2 and similar kernels, by binding, in the same order. */
typedef struct dti_map_args {
    int count;
    const uint32_t *dim, *stride[3], *offset;
} dti_map_args;
_Static_assert(DTI_WORD(map1, x_offset) == 1 + 3 * DTI_AXES &&
                   DTI_WORD(map1, p0) == DTI_WORD(map1, x_offset) + 2 &&
                   DTI_WORD(map2, a_offset) == 1 + 4 * DTI_AXES &&
                   DTI_WORD(map2, p0) == DTI_WORD(map2, a_offset) + 3,
               "n, dim, the strides of each operand, their offsets, p0 and p1");

static dti_map_args dti_map_args_of(const dti_launch *l) {
    const uint32_t *words = (const uint32_t *)(const void *)&l->args;
    dti_map_args a = {.count = dti_kernel_info_of(l->kernel)->bindings, .dim = words + 1};
    a.offset = a.dim + (a.count + 1) * DTI_AXES;
    for (int b = 0; b < a.count; b++)
        a.stride[b] = a.dim + (b + 1) * DTI_AXES;
    return a;
}

/* The last of `count` views is the output. */
static void dti_emit_map(dti_emit *e, dti_kernel_id kernel, uint32_t selector,
                         const dti_view *const *views, int count, const float p[2]) {
    const dti_walk w = dti_walk_make(views[count - 1]->dim, views, count);
    uint32_t words[DTI_ARGS_MOST / 4] = {(uint32_t)w.n}, value[DTI_BINDINGS_MAX] = {0};
    uint32_t *offset = words + 1 + (count + 1) * DTI_AXES;
    memcpy(words + 1, w.dim, sizeof w.dim);
    memcpy(words + 1 + DTI_AXES, w.stride, (size_t)count * sizeof *w.stride);
    for (int b = 0; b < count; b++) {
        offset[b] = (uint32_t)views[b]->offset;
        value[b] = views[b]->value;
    }
    memcpy(offset + count, p, 2 * sizeof *p);
    const size_t bytes = count == 2 ? sizeof(dti_args_map1) : sizeof(dti_args_map2);
    dti_launch *l = dti_emit_launch(e, kernel, (uint64_t)w.n, words, bytes, value);
    l->spec[0] = selector;
    l->spec[3] = w.axes;
}

static void dti_emit_map1(dti_emit *e, dti_kernel_id kernel, uint32_t selector, const dti_view *x,
                          const dti_view *y, const float p[2]) {
    dti_emit_map(e, kernel, selector, (const dti_view *const[]){x, y}, 2, p);
}

static void dti_emit_map2_views(dti_emit *e, dti_kernel_id kernel, uint32_t selector,
                                const dti_view *in0, const dti_view *in1, const dti_view *y,
                                const float p[2]) {
    const dti_view a = dti_view_broadcast(in0, y->dim), b = dti_view_broadcast(in1, y->dim);
    dti_emit_map(e, kernel, selector, (const dti_view *const[]){&a, &b, y}, 3, p);
}

static void dti_emit_map2(dti_emit *e, dti_kernel_id kernel, uint32_t selector) {
    dti_view a = dti_emit_in(e, 0), b = dti_emit_in(e, 1);
    dti_emit_map2_views(e, kernel, selector, &a, &b, &e->out, e->node->attr.f);
}

static bool dti_map_in_step(const dti_launch *l, int binding) {
    const dti_map_args a = dti_map_args_of(l);
    const int y = a.count - 1;
    return a.offset[binding] == a.offset[y] &&
           !memcmp(a.stride[binding], a.stride[y], DTI_AXES * sizeof *a.stride[y]);
}

/* The last axis is whole fours, or all that there is. */
static void dti_map_tile(const dti_launch *l, uint32_t variant, uint32_t spec[4]) {
    const dti_map_args a = dti_map_args_of(l);
    uint32_t lies = DTI_FOURS;
    for (int b = 0; b < a.count; b++) {
        uint32_t places = a.offset[b];
        for (int axis = 0; axis < DTI_AXES - 1; axis++)
            places |= a.stride[b][axis];
        if (b + 1 < a.count && a.stride[b][DTI_AXES - 1] == 0)
            lies |= b ? DTI_FOURS_OF_ONE_B : DTI_FOURS_OF_ONE_A;
        else if (a.stride[b][DTI_AXES - 1] != 1 || places % 4)
            return;
    }
    if (a.dim[DTI_AXES - 1] % 4 == 0)
        spec[2] = lies;
    else if (l->spec[3] == 1 && lies == DTI_FOURS)
        spec[2] = DTI_FOURS | DTI_FOURS_AND_REST;
}

static uint32_t dti_fours(uint32_t n, uint32_t offsets) {
    if (offsets % 4)
        return 0;
    return n % 4 ? DTI_FOURS | DTI_FOURS_AND_REST : DTI_FOURS;
}

static uint32_t dti_lies_size(uint32_t units) {
    uint32_t size = 0;
    while (size < 16 && units > 1u << size)
        size++;
    return size << DTI_LIES_SIZE;
}

static uint32_t dti_row_lies(uint32_t n, uint32_t places) {
    const bool fours = (n | places) % 4 == 0;
    return (fours ? DTI_ROW_FOURS : 0u) | dti_lies_size(fours ? n / 4 : n);
}

static uint64_t dti_fours_invocations(const dti_launch *l, uint32_t variant,
                                      const uint32_t spec[4]) {
    return spec[2] ? dti_ceil_div(l->items, 4) : l->items;
}

static uint64_t dti_quarter_invocations(const dti_launch *l, uint32_t variant,
                                        const uint32_t spec[4]) {
    return dti_ceil_div(l->items, 4);
}

static void dti_emit_copy(dti_emit *e, const dti_view *x, const dti_view *y, uint32_t selector) {
    dti_emit_map1(e, DTI_K_COPY, selector, x, y, (const float[2]){0.0f, 0.0f});
}

static void dti_emit_fill(dti_emit *e, const dti_view *y, uint32_t selector, float value) {
    dti_emit_map1(e, DTI_K_COPY, selector, y, y, (const float[2]){value, 0.0f});
}

static void dti_emit_accumulate(dti_emit *e, const dti_view *x, uint32_t value, uint32_t rounding,
                                uint32_t n, uint32_t first) {
    const dti_kernel_id kernel = rounding == DTI_UNBOUND ? DTI_K_ACCUMULATE : DTI_K_ACCUMULATE_LONG;
    const dti_args_accumulate a = {.n = n, .x_offset = (uint32_t)x->offset};
    DTI_EMIT(e, kernel, n, a, x->value, value, rounding)->spec[0] = first;
}

static bool dti_emit_crosses(const dti_listing *list, const dti_value *first, uint64_t end) {
    bool crosses = false;
    for (uint32_t i = 0; i < list->border_count && first->kind == DTI_VALUE_PARAM; i++)
        crosses = crosses || (list->borders[i] > first->offset && list->borders[i] < end);
    return crosses;
}

static bool dti_emit_span(dti_emit *e, const dti_view *a, const dti_view *b, uint32_t *value,
                          uint32_t *a_at, uint32_t *b_at) {
    const dti_value x = e->list->values[a->value], y = e->list->values[b->value];
    const bool swapped = y.offset < x.offset;
    const dti_value *first = swapped ? &y : &x, *second = swapped ? &x : &y;
    const uint64_t end = second->offset + second->bytes, gap = second->offset - first->offset;
    const uint64_t block = DTI_WORD_BYTES * DTI_BLOCK; /* the bytes between them are unused */
    if (x.kind == DTI_VALUE_TRANSIENT || x.kind != y.kind || x.dtype != DT_F32 ||
        y.dtype != DT_F32 || gap < first->bytes || gap - first->bytes >= block ||
        end - first->offset > e->range_bytes || dti_emit_crosses(e->list, first, end))
        return false;
    *value = dti_listing_value(e->list, (dti_value_kind)x.kind, DT_F32,
                               (end - first->offset) / DTI_WORD_BYTES, first->offset);
    *a_at = (uint32_t)a->offset + (uint32_t)((x.offset - first->offset) / DTI_WORD_BYTES);
    *b_at = (uint32_t)b->offset + (uint32_t)((y.offset - first->offset) / DTI_WORD_BYTES);
    return true;
}

static uint32_t dti_emit_join(dti_emit *e, const dti_view *views, uint32_t count) {
    dti_args_join a = {.cols = {1, 1, 1}};
    uint32_t ends[3] = {0};
    for (uint32_t k = 0; k < 3; k++) {
        if (k < count) {
            a.n += (uint32_t)dti_view_elements(&views[k]);
            a.cols[k] = (uint32_t)views[k].dim[DTI_AXES - 1];
            a.stride[k] = (uint32_t)views[k].stride[DTI_AXES - 2];
            a.offset[k] = (uint32_t)views[k].offset;
        }
        ends[k] = a.n;
    }
    a.a_end = ends[0];
    a.b_end = ends[1];
    const uint32_t value = dti_emit_scratch(e, DT_F32, a.n);
    DTI_EMIT(e, DTI_K_JOIN, a.n, a, views[0].value, count > 1 ? views[1].value : DTI_UNBOUND,
             count > 2 ? views[2].value : DTI_UNBOUND, value);
    return value;
}

static dti_launch *dti_emit_sum_parts(dti_emit *e, uint32_t value, uint32_t parts, uint32_t n,
                                      const dti_view *out, float scale) {
    const dti_args_reduce a = {.n = n,
                               .r = parts,
                               .kept = DTI_AXES - 1,
                               .dim = {1, 1, 1, 1, n, parts},
                               .x_stride = {0, 0, 0, 0, 1, n},
                               .y_offset = (uint32_t)out->offset,
                               .scale = scale};
    const dti_kernel_id kernel = parts < 64 ? DTI_K_REDUCE : DTI_K_REDUCE_COLUMN;
    dti_launch *l = DTI_EMIT(e, kernel, n, a, value, out->value);
    l->spec[0] = DTI_R_SUM;
    return l;
}

/* ---- Epilogues: a result that only one node reads, and changes element by element, is changed
 * before it is written. */

static int dti_launch_output(const dti_launch *l) {
    const char *access = dti_kernel_info_of(l->kernel)->access;
    int b = 0;
    while (access[b] == 'r')
        b++;
    return b;
}

/* The operand takes the place of the bias, which ADD lets go to another. A sum of 16 bits is of a
 * product that was rounded before. */
static bool dti_product_takes(const dti_launch *l, uint32_t epilogue, const dti_view *operand) {
    if (epilogue == DTI_EPILOGUE_ADD)
        return dti_kernel_info_of(l->kernel)->free_bias && !dti_is_half(operand->dtype);
    return epilogue == DTI_EPILOGUE_RELU || l->spec[0] == 0;
}

static bool dti_launch_takes(const dti_launch *l, uint32_t epilogue, const dti_view *operand) {
    const dti_kernel_info *kernel = dti_kernel_info_of(l->kernel);
    return l->spec[1] == DTI_EPILOGUE_NONE && kernel->takes && kernel->takes(l, epilogue, operand);
}

/* A launch cannot read an operand that is written after it. */
static bool dti_emit_written_since(const dti_listing *list, uint32_t first, uint32_t value) {
    const uint32_t whole = list->values[value].part_of;
    for (uint32_t k = first; k < list->launch_count; k++) {
        const dti_launch *l = &list->launches[k];
        if (list->values[l->value[dti_launch_output(l)]].part_of == whole)
            return true;
    }
    return false;
}

static bool dti_emit_may_fuse(const dti_emit *e, uint32_t id, const dti_view *operand) {
    const dti_view *x = &e->views[id];
    if (!e->own || e->pinned || e->own[id].uses != 1 || !dti_view_is_dense(x))
        return false;
    return !operand || (dti_view_is_dense(operand) &&
                        !dti_emit_written_since(e->list, e->own[id].first, operand->value));
}

/* Whether all launches that write x take an epilogue. A bias in the operand's place is bound
 * elsewhere, which is of no matter where it then comes to nothing. */
static bool dti_emit_writers_take(dti_emit *e, uint32_t id, uint32_t epilogue,
                                  const dti_view *operand) {
    uint32_t writers = 0;
    for (uint32_t k = e->own[id].first; k < e->own[id].last; k++) {
        const dti_launch *l = &e->list->launches[k];
        if (l->value[dti_launch_output(l)] != e->views[id].value)
            continue;
        if (!dti_launch_takes(l, epilogue, operand))
            return false;
        if (operand && l->spec[0] == DTI_BIAS && epilogue == DTI_EPILOGUE_ADD &&
            !dti_kernel_info_of(l->kernel)->free_bias(e, k))
            return false;
        writers++;
    }
    return writers > 0;
}

static bool dti_emit_fuse(dti_emit *e, uint32_t i, uint32_t epilogue, const dti_view *operand) {
    const uint32_t id = dti_input_id(e->graph, e->node, i);
    const dti_view *x = &e->views[id];
    if (!dti_emit_may_fuse(e, id, operand) || !dti_emit_writers_take(e, id, epilogue, operand))
        return false;
    for (uint32_t k = e->own[id].first; k < e->own[id].last; k++) {
        dti_launch *l = &e->list->launches[k];
        const dti_kernel_info *kernel = dti_kernel_info_of(l->kernel);
        if (l->value[dti_launch_output(l)] != x->value)
            continue;
        l->spec[1] = epilogue;
        if (!operand || !kernel->put_operand)
            continue;
        l->value[3] = operand->value;
        /* from where this launch's share of the result begins: one product of a batch, some
         * samples */
        kernel->put_operand(l, (uint32_t)operand->offset - (uint32_t)x->offset);
    }
    e->out = *x;
    return true;
}

/* Sums `pairs` pairs to the term. */
static void dti_emit_term_sum(dti_emit *e, uint32_t pairs_value, int64_t pairs) {
    const dti_args_term a = {.n = (uint32_t)pairs, .y_offset = (uint32_t)e->out.offset};
    DTI_EMIT(e, DTI_K_TERM_SUM, 1, a, pairs_value, e->out.value);
}

static void dti_copy_emit(dti_emit *e) {
    const dti_view x = dti_emit_in(e, 0);
    dti_emit_copy(e, &x, &e->out, DTI_COPY_WORD);
}

static void dti_same_emit(dti_emit *e) {
    e->out = dti_emit_in(e, 0);
}
