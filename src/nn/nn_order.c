/* Ops that move elements by place or by order: flips, paddings, lookups along an axis, and sorting.
 * Short rows are sorted by the number of elements that come before each. Long ones are sorted by a
 * network that exchanges pairs (Batcher 1968). Both order by value, then place, so their results
 * are equal. */

#define DTI_ORDER_MOST (1 << 24) /* places are f32 */
#define DTI_ORDER_CHUNK 256      /* the leading elements of a row are among those of such parts */
#define DTI_ORDER_COMPARED (1 << 24) /* pairs that are compared at once at most: 64 MiB */

/* ---- along one axis */

/* i: axis; dim: shift */
static dt_tensor dti_roll_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0);
    dti_along a;
    if (!dti_along_of(c->name, x, c->attr.i[0], true, &a))
        return dti_nil(g);
    const int64_t n = a.size, by = n ? (c->attr.dim[0] % n + n) % n : 0;
    const dt_tensor parts[2] = {dt_slice(x, a.axis, n - by, by), dt_slice(x, a.axis, 0, n - by)};
    return dt_concat(parts, 2, a.axis);
}

DTI_COMPOSED(dt_roll, (dt_tensor x, int axis, int64_t shift), x, (x, axis, shift)) {
    return dti_compose("roll", dti_roll_make, 1, (dti_inputs){{x}},
                       (dti_attr){.i = {axis}, .dim = {shift}});
}

/* Exchanges halves, then halves of halves. The axis is extended to a power of two, and the
 * extension then comes first. */
static dt_tensor dti_flipped(dt_tensor x, const dti_along *a) {
    dt_shape s = dti_tensor_shape(x), split = {3, {1, 1, 1}};
    for (int i = 0; i < s.rank; i++)
        split.dim[i < a->axis ? 0 : 2] *= i == a->axis ? 1 : s.dim[i];
    int64_t whole = 1;
    while (whole < a->size)
        whole *= 2;
    dt_tensor y = whole > a->size ? dt_pad(x, a->axis, 0, whole - a->size) : x;
    for (int64_t half = whole / 2; half > 0; half /= 2) {
        const dt_shape parts = {4, {split.dim[0] * (whole / half / 2), 2, half, split.dim[2]}};
        y = dt_reshape(y, parts);
        const dt_tensor turned[2] = {dt_slice(y, 1, 1, 1), dt_slice(y, 1, 0, 1)};
        y = dt_concat(turned, 2, 1);
    }
    s.dim[a->axis] = whole;
    return dt_slice(dt_reshape(y, s), a->axis, whole - a->size, a->size);
}

static dt_tensor dti_flip_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0);
    dti_along a;
    if (!dti_along_of(c->name, x, c->attr.i[0], true, &a))
        return dti_nil(g);
    return a.size < 2 ? dt_copy(x) : dti_flipped(x, &a);
}

DTI_COMPOSED(dt_flip, (dt_tensor x, int axis), x, (x, axis)) {
    return dti_compose("flip", dti_flip_make, 1, (dti_inputs){{x}}, (dti_attr){.i = {axis}});
}

/* ---- paddings by existing elements */

static const char *const dti_pad_names[] = {"pad", "pad_reflect", "pad_replicate", "pad_circular"};

/* `n` elements next to x at one end. */
static dt_tensor dti_pad_part(dt_tensor x, const dti_along *a, int64_t n, bool end,
                              dt_padding_mode mode) {
    if (mode == DT_PADDING_REFLECT)
        return dt_flip(dt_slice(x, a->axis, end ? a->size - 1 - n : 1, n), a->axis);
    if (mode == DT_PADDING_CIRCULAR)
        return dt_slice(x, a->axis, end ? 0 : a->size - n, n);
    dt_shape s = dti_tensor_shape(x);
    s.dim[a->axis] = n;
    return dt_expand(dt_slice(x, a->axis, end ? a->size - 1 : 0, 1), s);
}

/* The most elements that a mode adds at one end of an axis of this size. */
static int64_t dti_pad_most(dt_padding_mode mode, int64_t size) {
    if (mode == DT_PADDING_CIRCULAR)
        return size;
    if (mode == DT_PADDING_REFLECT)
        return DTI_MAX(size - 1, 0);
    return size > 0 || mode == DT_PADDING_ZEROS ? INT32_MAX : 0;
}

/* i: axis, mode; dim: before, after */
static dt_tensor dti_pad_with_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0);
    const int64_t before = c->attr.dim[0], after = c->attr.dim[1];
    const dt_padding_mode mode = (dt_padding_mode)c->attr.i[1];
    dti_along a;
    if (!dti_along_of(c->name, x, c->attr.i[0], true, &a))
        return dti_nil(g);
    const int64_t most = dti_pad_most(mode, a.size);
    if (before < 0 || after < 0 || before > most || after > most) {
        return dti_graph_fail(g,
                              "%s: %lld before and %lld after an axis of size %lld; each must be "
                              "between 0 and %lld",
                              c->name, (long long)before, (long long)after, (long long)a.size,
                              (long long)most);
    }
    dt_tensor parts[3];
    int count = 0;
    if (before)
        parts[count++] = dti_pad_part(x, &a, before, false, mode);
    parts[count++] = x;
    if (after)
        parts[count++] = dti_pad_part(x, &a, after, true, mode);
    return dt_concat(parts, count, a.axis);
}

static dt_tensor dti_pad_with(dt_tensor x, int axis, int64_t before, int64_t after,
                              dt_padding_mode mode) {
    return dti_compose(dti_pad_names[mode], dti_pad_with_make, 1, (dti_inputs){{x}},
                       (dti_attr){.i = {axis, (int32_t)mode}, .dim = {before, after}});
}

DTI_COMPOSED(dt_pad_reflect, (dt_tensor x, int axis, int64_t before, int64_t after), x,
             (x, axis, before, after)) {
    return dti_pad_with(x, axis, before, after, DT_PADDING_REFLECT);
}

DTI_COMPOSED(dt_pad_replicate, (dt_tensor x, int axis, int64_t before, int64_t after), x,
             (x, axis, before, after)) {
    return dti_pad_with(x, axis, before, after, DT_PADDING_REPLICATE);
}

DTI_COMPOSED(dt_pad_circular, (dt_tensor x, int axis, int64_t before, int64_t after), x,
             (x, axis, before, after)) {
    return dti_pad_with(x, axis, before, after, DT_PADDING_CIRCULAR);
}

/* ---- lookups and sorting along an axis */

/* x's axis as rows: [lines, n]. */
static dt_tensor dti_rows_of(dt_tensor x, int axis) {
    x = dti_swap_last(x, axis);
    const dt_shape s = dti_tensor_shape(x);
    int64_t lines = 1;
    for (int i = 0; i + 1 < s.rank; i++)
        lines *= s.dim[i];
    return s.rank < 1 ? x : dt_reshape(x, (dt_shape){2, {lines, s.dim[s.rank - 1]}});
}

/* Rows, [lines, n], as the axis of a tensor that is of shape s in its other dimensions. */
static dt_tensor dti_rows_back(dt_tensor rows, dt_shape s, int axis) {
    s.dim[axis] = s.dim[s.rank - 1];
    s.dim[s.rank - 1] = dti_tensor_shape(rows).dim[1];
    return dti_swap_last(dt_reshape(rows, s), axis);
}

/* [..., n] to [..., 1, n] or [..., n, 1]. */
static dt_tensor dti_beside(dt_tensor x, bool row) {
    dt_shape s = dti_tensor_shape(x);
    if (s.rank < 0)
        return x;
    const int64_t n = s.dim[s.rank - 1];
    s.dim[s.rank - 1] = row ? 1 : n;
    s.dim[s.rank++] = row ? n : 1;
    return dt_reshape(x, s);
}

static bool dti_along_takes(const char *op, dt_tensor x, dt_tensor index, int axis, dti_along *a) {
    if (!dti_along_of(op, x, axis, true, a))
        return false;
    dt_shape s = dti_tensor_shape(x), t = dti_tensor_shape(index);
    bool fits = s.rank == t.rank && a->size <= 1 << 24 && dti_tensor_dtype(x) == DT_F32 &&
                dti_tensor_dtype(index) == DT_I32;
    if (fits)
        t.dim[a->axis] = s.dim[a->axis];
    if (fits && dti_shape_equal(s, t))
        return true;
    return dti_graph_refuse(
        x.graph,
        "%s: x %s and index %s must be f32 and i32, equal except for axis %d, of which "
        "x has at most 2^24 elements",
        op, dti_tensor_print(x).text, dti_tensor_print(index).text, a->axis);
}

static dt_tensor dti_take_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0), index = dti_call_in(g, c, 1);
    dti_along a;
    if (!dti_along_takes(c->name, x, index, c->attr.i[0], &a))
        return dti_nil(g);
    dt_tensor at = dti_beside(dti_rows_of(dt_cast(index, DT_F32), a.axis), false);
    dt_tensor hit = dt_eq(at, dt_iota(g, (dt_shape){1, {a.size}}));
    dt_tensor rows = dti_beside(dti_rows_of(x, a.axis), true);
    dt_tensor y = dti_sum_last(dt_mask(rows, hit));
    return dti_rows_back(y, dti_tensor_shape(x), a.axis);
}

DTI_COMPOSED(dt_gather, (dt_tensor x, int axis, dt_tensor index), x, (x, axis, index)) {
    return dti_compose("gather", dti_take_make, 2, (dti_inputs){{x, index}},
                       (dti_attr){.i = {axis}});
}

/* dt_gather's index, [M], for x: [..] as it has it, with M along the axis. */
static dt_tensor dti_select_index(dt_tensor index, dt_shape s, int axis) {
    const int64_t count = dti_tensor_shape(index).dim[0];
    dt_shape along = {.rank = s.rank};
    for (int i = 0; i < s.rank; i++)
        along.dim[i] = i == axis ? count : 1;
    s.dim[axis] = count;
    return dt_expand(dt_reshape(index, along), s);
}

/* x with the axis first, or moved back. */
static dt_tensor dti_axis_in_front(dt_tensor x, int axis, bool back) {
    dt_shape axes = {.rank = dti_tensor_shape(x).rank};
    for (int i = 0; i < axes.rank; i++) {
        const int from = i == 0 ? axis : i <= axis ? i - 1 : i;
        axes.dim[back ? from : i] = back ? i : from;
    }
    return axis == 0 || axes.rank < 1 ? x : dt_permute(x, axes);
}

static dt_tensor dti_select_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0), index = dti_call_in(g, c, 1);
    dti_along a;
    if (!dti_along_of(c->name, x, c->attr.i[0], true, &a))
        return dti_nil(g);
    if (dti_tensor_dtype(index) != DT_I32 || dti_tensor_shape(index).rank != 1)
        return dti_graph_fail(g, "%s: index %s must be i32, [M]", c->name,
                              dti_tensor_print(index).text);
    if (dti_tensor_has_samples(x))
        return dt_gather(x, a.axis, dti_select_index(index, dti_tensor_shape(x), a.axis));
    return dti_axis_in_front(dt_embedding(dti_axis_in_front(x, a.axis, false), index), a.axis,
                             true);
}

DTI_COMPOSED(dt_index_select, (dt_tensor x, int axis, dt_tensor index), x, (x, axis, index)) {
    return dti_compose("index_select", dti_select_make, 2, (dti_inputs){{x, index}},
                       (dti_attr){.i = {axis}});
}

/* i: axis; dim: size */
static dt_tensor dti_scatter_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0), index = dti_call_in(g, c, 1);
    const int64_t size = c->attr.dim[0];
    dti_along a;
    if (!dti_along_takes(c->name, x, index, c->attr.i[0], &a))
        return dti_nil(g);
    if (!dti_shape_equal(dti_tensor_shape(x), dti_tensor_shape(index)) || size < 0 ||
        size > 1 << 24) {
        return dti_graph_fail(g,
                              "scatter_add: x %s must have the shape of index %s, and "
                              "size, %lld, be between 0 and 2^24",
                              dti_tensor_print(x).text, dti_tensor_print(index).text,
                              (long long)size);
    }
    dt_tensor at = dti_beside(dti_rows_of(dt_cast(index, DT_F32), a.axis), true);
    dt_tensor hit = dt_eq(at, dt_iota(g, (dt_shape){2, {size, 1}}));
    dt_tensor rows = dti_beside(dti_rows_of(x, a.axis), true);
    dt_tensor y = dti_sum_last(dt_mask(rows, hit));
    return dti_rows_back(y, dti_tensor_shape(x), a.axis);
}

DTI_COMPOSED(dt_scatter_add, (dt_tensor x, int axis, dt_tensor index, int64_t size), x,
             (x, axis, index, size)) {
    return dti_compose("scatter_add", dti_scatter_make, 2, (dti_inputs){{x, index}},
                       (dti_attr){.i = {axis}, .dim = {size}});
}

/* How many elements of the last axis come before each: larger ones, and equal ones with a lower
 * index. NaN is larger than all. */
static dt_tensor dti_ranks(dt_tensor x, int64_t n, bool descending) {
    dt_tensor nan = dti_isnan(x), mine = dti_beside(x, false), other = dti_beside(x, true);
    dt_tensor my_nan = dti_beside(nan, false), nans = dti_beside(nan, true);
    dt_tensor before = descending ? dt_gt(other, mine) : dt_lt(other, mine);
    before = dt_maximum(before, descending ? dt_gt(nans, my_nan) : dt_lt(nans, my_nan));
    dt_tensor same = dt_eq(other, mine), at = dt_iota(x.graph, (dt_shape){1, {n}});
    same = dt_maximum(same, dt_mul(nans, my_nan));
    dt_tensor in_front = dt_lt(at, dt_iota(x.graph, (dt_shape){2, {n, 1}}));
    return dti_sum_last(dt_maximum(before, dt_mul(same, in_front)));
}

/* The first k of rows [L, n] in order, those of rank 0 to k - 1, and as *places, unless NULL, their
 * places, f32. */
static dt_tensor dti_lead_short(dt_tensor rows, int64_t k, bool descending, dt_tensor *places) {
    const int64_t n = dti_tensor_shape(rows).dim[1];
    dt_tensor ranks = dti_ranks(dt_detach(rows), n, descending);
    dt_tensor place = dt_iota(rows.graph, (dt_shape){2, {k, 1}});
    dt_tensor hit = dt_eq(dti_beside(ranks, true), place);
    if (places)
        *places = dti_sum_last(dt_mask(dt_iota(rows.graph, (dt_shape){1, {n}}), hit));
    return dti_sum_last(dt_mask(dti_beside(rows, true), hit));
}

/* Rows [L, n] as [L * parts, chunk]: the filling of the last part orders after all elements. */
static dt_tensor dti_lead_parts(dt_tensor rows, int64_t parts, int64_t chunk, bool descending) {
    const dt_shape s = dti_tensor_shape(rows);
    const int64_t whole = parts * chunk, more = whole - s.dim[1];
    if (more > 0) {
        dt_tensor at = dt_iota(rows.graph, (dt_shape){1, {whole}});
        dt_tensor end = dt_fill(rows.graph, (dt_shape){0}, (float)s.dim[1]);
        dt_tensor last = dt_fill(rows.graph, (dt_shape){0}, descending ? -INFINITY : NAN);
        rows = dt_pad(rows, 1, 0, more);
        rows = dt_where(dt_lt(at, end), rows, last);
    }
    return dt_reshape(rows, (dt_shape){2, {s.dim[0] * parts, chunk}});
}

/* dti_lead_short of rows of any length. A row is cut into parts of at least 2 k elements. Only the
 * first k of each are kept. So at most half of the elements remain, and this repeats until the row
 * is short. Equal elements keep their order, in a part and from part to part. */
static dt_tensor dti_lead(dt_tensor rows, int64_t k, bool descending, dt_tensor *places) {
    const dt_shape s = dti_tensor_shape(rows);
    const int64_t chunk = DTI_MAX(2 * k, (int64_t)DTI_ORDER_CHUNK);
    const int64_t parts = (s.dim[1] + chunk - 1) / chunk;
    if (parts <= 2 || rows.graph->error[0])
        return dti_lead_short(rows, k, descending, places);
    dt_tensor at, second;
    dt_tensor all = dti_lead_parts(rows, parts, chunk, descending);
    all = dti_lead(all, k, descending, &at);
    dt_tensor begin = dt_iota(rows.graph, (dt_shape){2, {parts, 1}});
    at = dt_reshape(at, (dt_shape){3, {s.dim[0], parts, k}});
    at = dt_add(at, dt_affine(begin, (float)chunk, 0.0f));
    const dt_shape left = {2, {s.dim[0], parts * k}};
    all = dti_lead(dt_reshape(all, left), k, descending, places ? &second : NULL);
    if (places) {
        at = dt_reshape(at, left);
        *places = dt_gather(at, 1, dt_cast(second, DT_I32));
    }
    return all;
}

/* Rows [L, n] on their way through a network, as [L, chunk, parts]. An element comes before another
 * by its key, of equals by its place. The key is the value, or infinity for NaN. Elements that
 * always come first among equals have a place that is less by 2^24. */
typedef struct dti_order_rows {
    dt_tensor value, key, place;
    int64_t lines, chunk, parts;
    bool descending;
} dti_order_rows;

/* Extended by elements that come last. */
static void dti_order_begin(dti_order_rows *r, dt_tensor x) {
    const int64_t n = dti_tensor_shape(x).dim[1], whole = r->chunk * r->parts;
    r->value = whole > n ? dt_pad(x, 1, 0, whole - n) : x;
    dt_tensor seen = dt_detach(r->value), nan = dti_isnan(seen);
    dt_tensor at = dt_iota(x.graph, (dt_shape){1, {whole}});
    dt_tensor more = dt_ge(at, dt_fill(x.graph, (dt_shape){0}, (float)n));
    dt_tensor late = r->descending ? dti_not(nan) : dt_maximum(nan, more);
    r->place = dt_sub(at, dt_affine(dti_not(late), (float)DTI_ORDER_MOST, 0.0f));
    r->key = dt_masked_fill(seen, nan, INFINITY);
    r->key = dt_masked_fill(r->key, more, r->descending ? -INFINITY : INFINITY);
}

/* 1 where x's value at 0 of an axis of two comes before its value at 1. */
static dt_tensor dti_order_before(const dti_order_rows *r, dt_shape pairs, int axis) {
    dt_tensor key = dt_reshape(r->key, pairs), place = dt_reshape(r->place, pairs);
    dt_tensor a = dt_slice(key, axis, 0, 1), b = dt_slice(key, axis, 1, 1);
    dt_tensor before = r->descending ? dt_gt(a, b) : dt_lt(a, b), same = dt_eq(a, b);
    dt_tensor p = dt_slice(place, axis, 0, 1), q = dt_slice(place, axis, 1, 1);
    return dt_maximum(before, dt_mul(same, dt_lt(p, q)));
}

/* For each pair, the element that `pick` names, and with `both` the other one after it. */
static dt_tensor dti_order_pick(dt_tensor x, dt_shape pairs, int axis, dt_tensor pick, bool both) {
    x = dt_reshape(x, pairs);
    dt_tensor a = dt_slice(x, axis, 0, 1), b = dt_slice(x, axis, 1, 1);
    dt_tensor parts[2] = {dt_where(pick, a, b)};
    if (!both)
        return parts[0];
    parts[1] = dt_where(pick, b, a);
    return dt_concat(parts, 2, axis);
}

static void dti_order_take(dti_order_rows *r, dt_shape pairs, int axis, dt_tensor pick, bool both) {
    r->value = dti_order_pick(r->value, pairs, axis, pick, both);
    r->key = dti_order_pick(r->key, pairs, axis, pick, both);
    r->place = dti_order_pick(r->place, pairs, axis, pick, both);
}

/* Exchanges pairs `step` apart in a chunk, whose blocks are alternately in order and in reverse.
 * With one block, the first half of the parts is in order, and the second in reverse. */
static void dti_order_exchange(dti_order_rows *r, int64_t block, int64_t step) {
    const int64_t all = r->lines * r->chunk, inner = step * r->parts;
    dt_shape pairs = {3, {all / (2 * step), 2, inner}}, turns = {0};
    int axis = 1;
    if (block < r->chunk) {
        pairs = (dt_shape){5, {all / (2 * block), 2, block / (2 * step), 2, inner}};
        turns = (dt_shape){4, {2, 1, 1, 1}};
        axis = 3;
    } else if (r->parts > 1) {
        pairs = (dt_shape){5, {all / (2 * step), 2, step, 2, r->parts / 2}};
        turns = (dt_shape){2, {2, 1}};
    }
    dt_tensor pick = dti_order_before(r, pairs, axis);
    if (turns.rank)
        pick = dt_abs(dt_sub(pick, dt_iota(pick.graph, turns)));
    dti_order_take(r, pairs, axis, pick, true);
}

/* Chunks are sorted, half of them in reverse. Each of those is joined with one of the others. The
 * first of each pair is kept, and the result is sorted again. This repeats until one chunk is
 * left. */
static dt_tensor dti_order_network(dt_tensor rows, int64_t k, bool descending, dt_tensor *places) {
    const dt_shape s = dti_tensor_shape(rows);
    dti_order_rows r = {.lines = s.dim[0], .chunk = 1, .parts = 1, .descending = descending};
    while (r.chunk < k)
        r.chunk *= 2;
    while (r.chunk * r.parts < s.dim[1])
        r.parts *= 2;
    dti_order_begin(&r, rows);
    for (int64_t block = 2; block <= r.chunk; block *= 2)
        for (int64_t step = block / 2; step; step /= 2)
            dti_order_exchange(&r, block, step);
    while (r.parts > 1) {
        const dt_shape pairs = {3, {r.lines * r.chunk, 2, r.parts / 2}};
        dti_order_take(&r, pairs, 1, dti_order_before(&r, pairs, 1), false);
        r.parts /= 2;
        for (int64_t step = r.chunk / 2; step; step /= 2)
            dti_order_exchange(&r, r.chunk, step);
    }
    const dt_shape out = {2, {r.lines, r.chunk}};
    if (places) {
        dt_tensor at = dt_slice(dt_reshape(r.place, out), 1, 0, k);
        dt_tensor less = dt_lt(at, dti_number(at, 0.0f));
        *places = dt_add(at, dt_affine(less, (float)DTI_ORDER_MOST, 0.0f));
    }
    return dt_slice(dt_reshape(r.value, out), 1, 0, k);
}

/* The first k along an axis. */
static dt_tensor dti_first_of(dt_tensor x, int axis, int64_t k, bool descending, dt_tensor *index) {
    dt_tensor rows = dti_rows_of(x, axis), places;
    if (rows.graph->error[0])
        return rows;
    const dt_shape s = dti_tensor_shape(rows);
    const int64_t chunk = DTI_MAX(2 * k, (int64_t)DTI_ORDER_CHUNK);
    const int64_t each = s.dim[1] > 2 * chunk ? chunk : s.dim[1];
    const bool many = s.dim[0] * s.dim[1] > DTI_ORDER_COMPARED / DTI_MAX(each, 1);
    rows = (many ? dti_order_network : dti_lead)(rows, k, descending, index ? &places : NULL);
    if (index)
        *index = dti_rows_back(dt_cast(places, DT_I32), dti_tensor_shape(x), axis);
    return dti_rows_back(rows, dti_tensor_shape(x), axis);
}

/* i: axis, all of them, descending, with index; dim: k */
static dt_tensor dti_order_make(dt_graph *g, const dti_call *c) {
    dt_tensor x = dti_call_in(g, c, 0), index;
    const dt_shape s = dti_tensor_shape(x);
    const int64_t k = c->attr.i[1] ? s.dim[c->attr.i[0]] : c->attr.dim[0];
    return dti_first_of(x, c->attr.i[0], k, c->attr.i[2], c->attr.i[3] ? &index : NULL);
}

static dt_tensor dti_order(const char *op, dt_tensor x, int axis, int64_t k, bool descending,
                           dt_tensor *index) {
    dti_along a;
    if (index)
        *index = (dt_tensor){0};
    if (!DTI_HERE)
        return dti_graph_off(x.graph, k == INT64_MIN ? "dt_sort" : "dt_topk", DTI_HERE_OFF);
    DTI_NEED_TENSOR(x, op);
    if (!dti_along_of(op, x, axis, true, &a))
        return dti_nil(x.graph);
    const bool all = k == INT64_MIN;
    if (all)
        k = a.size;
    const uint32_t first = x.graph->count;
    const dti_call call = {.name = op,
                           .in = {x.id},
                           .attr = {.i = {a.axis, all, descending, index != NULL}, .dim = {k}},
                           .make = dti_order_make};
    if (dti_tensor_dtype(x) == DT_F32 && a.size <= DTI_ORDER_MOST && k >= 0 && k <= a.size)
        return dti_graph_called(x.graph, first, &call,
                                dti_first_of(x, a.axis, k, descending, index));
    if (dti_tensor_dtype(x) == DT_F32 && a.size <= DTI_ORDER_MOST)
        return dti_graph_fail(x.graph, "%s: k is %lld, but axis %d of %s has %lld elements", op,
                              (long long)k, a.axis, dti_tensor_print(x).text, (long long)a.size);
    return dti_graph_fail(
        x.graph,
        "%s: %lld along axis %d of %s; it takes f32, and up to all elements of an "
        "axis of at most 2^24",
        op, (long long)k, a.axis, dti_tensor_print(x).text);
}

DT_API dt_tensor dt_topk(dt_tensor x, int axis, int64_t k, bool largest, dt_tensor *index) {
    return dti_order("topk", x, axis, k == INT64_MIN ? -1 : k, largest, index);
}

DT_API dt_tensor dt_sort(dt_tensor x, int axis, bool descending, dt_tensor *index) {
    return dti_order("sort", x, axis, INT64_MIN, descending, index);
}
