/* Ops that move data: copy, cast, concat and pad. All are the COPY kernel between strided views;
 * concat and pad copy into a part of their output. */

static bool dti_copy_source(const dt_graph *g, const dti_node *n, dti_element *e) {
    return true; /* in the same place */
}

DT_API dt_tensor dt_copy(dt_tensor x) {
    return dti_append1(DTI_OP_COPY, x, NULL);
}

/* ---- cast: attr.i[0] = dt_dtype. Between floats the gradient is cast back; a parameter's is f32,
 * whatever it is stored as. */
static bool dti_cast_shape(dti_build *b) {
    b->out.shape = b->in[0]->shape;
    if (!dti_dtype_of_tensors(b->out.attr.i[0]))
        return dti_build_fail(b, "dtype is %d; it must be " DTI_TENSOR_DTYPES,
                              (int)b->out.attr.i[0]);
    b->out.dtype = (uint8_t)b->out.attr.i[0];
    return true;
}

static void dti_cast_grad(dti_grad *g) {
    const dti_node *n = dti_node_of(g->in[0]);
    const dt_dtype from = n->op == DTI_OP_PARAM ? DT_F32 : (dt_dtype)n->dtype;
    if (!dti_is_whole(from))
        g->dx[0] = dt_cast(g->dy, from);
}

/* Whether a launch that binds value x, of this row or another, may have it in 16 bits. */
static bool dti_cast_launch_takes(const dti_emit *e, const dti_launch *l, uint32_t x) {
    const dti_node *n = &e->graph->nodes[l->node];
    for (int b = 0; b < dti_kernel_info_of(l->kernel)->bindings; b++) {
        if (l->value[b] == x && (!dti_launch_takes_half(l, b, e->workgroups) ||
                                 !(dti_op_info_of(n->op)->family->halves & DTI_HALF_OUT)))
            return false;
    }
    return true;
}

/* Whether the launches that make x, which nothing else reads, may write it in 16 bits. */
static bool dti_cast_writers_take(const dti_emit *e, const dti_view *x) {
    const uint32_t id = dti_input_id(e->graph, e->node, 0);
    const dti_value *v = &e->list->values[x->value];
    const dti_op_family *f = dti_op_info_of(e->graph->nodes[id].op)->family;
    if (e->own[id].uses != 1 || v->kind != DTI_VALUE_TRANSIENT || v->part_of != x->value ||
        v->has_parts || !dti_view_is_dense(x) || f->view || /* it shares another row's value */
        v->bytes != dti_bytes(DT_F32, (uint64_t)dti_view_elements(x)) ||
        !(f->halves & DTI_HALF_OUT))
        return false;
    /* a launch may have been taken back since x was made (norm_launch.c) */
    for (uint32_t k = v->first ? v->first - 1 : 0; k < e->list->launch_count; k++) {
        if (!dti_cast_launch_takes(e, &e->list->launches[k], x->value))
            return false;
    }
    return true;
}

#define DTI_CAST_ROUNDED_BY 3 /* more products read fewer bytes of a copy than of f32 */

/* Whether every reader of this cast to bf16 rounds by itself. Then no copy is kept from the forward
 * to the backward pass. */
static bool dti_cast_readers_round(const dti_emit *e, const dti_view *x) {
    const dti_span_of_node *own = &e->own[e->id];
    return e->node->dtype == DT_BF16 && x->dtype == DT_F32 && own->rounding >= own->uses &&
           own->uses <= DTI_CAST_ROUNDED_BY && dti_view_is_dense(x) &&
           e->list->values[x->value].kind != DTI_VALUE_TRANSIENT;
}

/* The same bytes as another value. */
static uint32_t dti_cast_rounded(dti_emit *e, uint32_t value) {
    const dti_value v = e->list->values[value];
    const uint64_t n = v.bytes / dti_dtype_bytes(v.dtype);
    const uint32_t rounded =
        dti_listing_value(e->list, (dti_value_kind)v.kind, v.dtype, n, v.offset);
    e->list->values[rounded].rounded = true;
    return rounded;
}

/* A cast between f32 and 16 bits that a kernel makes as it reads or writes: the same bits. */
static bool dti_cast_folds(dti_emit *e, const dti_view *x) {
    const dt_dtype to = (dt_dtype)e->node->dtype;
    if (!e->own || e->pinned || dti_is_whole(x->dtype) || dti_is_whole(to))
        return false;
    e->out = *x;
    if (to == DT_F32 && e->own[e->id].taking >= e->own[e->id].uses)
        return true;
    if (dti_cast_readers_round(e, x)) {
        e->out.value = dti_cast_rounded(e, x->value);
        return true;
    }
    if (x->dtype != DT_F32 || !dti_cast_writers_take(e, x))
        return false;
    dti_value *v = &e->list->values[x->value];
    v->dtype = (uint8_t)to;
    v->bytes = dti_bytes(to, (uint64_t)dti_view_elements(x));
    e->out.dtype = (uint8_t)to;
    return true;
}

static void dti_cast_emit(dti_emit *e) {
    const dti_view x = dti_emit_in(e, 0), out = e->out;
    if (dti_cast_folds(e, &x))
        return;
    e->out = out;
    const bool from_whole = dti_is_whole(x.dtype), to_whole = dti_is_whole(e->node->dtype);
    dti_emit_copy(e, &x, &e->out,
                  from_whole == to_whole ? DTI_COPY_WORD
                  : to_whole             ? DTI_COPY_F32_I32
                                         : DTI_COPY_I32_F32);
}

DT_API dt_tensor dt_cast(dt_tensor x, dt_dtype dtype) {
    if (!dti_is_nil(x) && dti_node_of(x)->dtype == dtype)
        return x; /* for nil the row's own check reports it */
    return dti_append1(DTI_OP_CAST, x, &(dti_attr){.i = {(int32_t)dtype}});
}

/* ---- concat: attr.i[0] = axis. */
static bool dti_concat_shape(dti_build *b) {
    dt_shape s = b->in[0]->shape;
    int axis = b->out.attr.i[0];
    b->out.dtype = b->in[0]->dtype;
    if (axis < 0 || axis >= s.rank)
        return dti_build_fail(b, "%s", dti_axis_text(axis, s.rank).text);
    for (uint32_t i = 1; i < b->count; i++) {
        const dti_node *n = dti_node_of(b->inputs[i]);
        dt_shape t = n->shape;
        if (t.rank == s.rank)
            t.dim[axis] = s.dim[axis];
        if (!dti_shape_equal(s, t) || n->dtype != b->in[0]->dtype) {
            return dti_build_fail(
                b, "input %u, %s, must have the type of input 1, and its shape except for axis %d",
                i + 1, dti_shape_print(n->shape, n->samples).text, axis);
        }
    }
    b->out.shape = s;
    for (uint32_t i = 1; i < b->count; i++)
        b->out.shape.dim[axis] += dti_node_of(b->inputs[i])->shape.dim[axis];
    return true;
}

static bool dti_concat_source(const dt_graph *g, const dti_node *n, dti_element *e) {
    const int axis = n->attr.i[0];
    int64_t before = 0;
    for (uint32_t k = 0; k < n->count; k++) {
        dti_element in = {dti_input_id(g, n, k), e->at};
        const int64_t size = g->nodes[in.node].shape.dim[axis];
        if (dti_element_shift(&in, n->shape, axis, -before, size)) {
            *e = in;
            return true;
        }
        before += size;
    }
    return false;
}

static void dti_concat_grad(dti_grad *g) {
    int axis = g->node.attr.i[0];
    int64_t before = 0; /* where the input starts */
    for (uint32_t i = 0; i < g->index; i++)
        before += dti_node_of(dti_input_of(g->graph, &g->node, i))->shape.dim[axis];
    dt_tensor part = dt_slice(g->dy, axis, before, dti_node_of(g->in[0])->shape.dim[axis]);
    g->dx[0] = dti_sum_to(part, g->in[0]);
}

/* Whether the parts already lie in memory as in the output: then they are the output. So are the
 * gradients of a packed projection's slices, if one row makes them all. */
static bool dti_concat_in_place(const dti_emit *e, int axis, dti_view *whole) {
    *whole = dti_emit_in(e, 0);
    int64_t length = whole->dim[axis];
    for (uint32_t i = 1; i < e->node->count; i++) {
        const dti_view v = dti_emit_in(e, i);
        const int64_t apart = v.offset - whole->offset;
        if (length == 1 && i == 1)
            whole->stride[axis] = apart;
        if (v.value != whole->value || v.dtype != whole->dtype || apart <= 0 ||
            apart != length * whole->stride[axis])
            return false;
        for (int k = 0; k < DTI_AXES; k++) {
            const bool alone = k == axis ? v.dim[k] == 1 : whole->dim[k] == 1;
            if ((k != axis && v.dim[k] != whole->dim[k]) ||
                (!alone && v.stride[k] != whole->stride[k]))
                return false;
        }
        length += v.dim[axis];
    }
    whole->dim[axis] = length;
    return memcmp(whole->dim, e->out.dim, sizeof whole->dim) == 0;
}

static void dti_concat_emit(dti_emit *e) {
    int axis = DTI_AXES - e->node->shape.rank + e->node->attr.i[0];
    dti_view part = e->out, whole;
    if (!e->pinned && dti_concat_in_place(e, axis, &whole)) {
        e->out = whole;
        return;
    }
    for (uint32_t i = 0; i < e->node->count; i++) {
        dti_view x = dti_emit_in(e, i);
        memcpy(part.dim, e->out.dim, sizeof part.dim);
        part.dim[axis] = x.dim[axis];
        dti_view wide = dti_view_broadcast(&x, part.dim);
        dti_emit_copy(e, &wide, &part, DTI_COPY_WORD);
        part.offset += x.dim[axis] * e->out.stride[axis];
    }
}

DT_API dt_tensor dt_concat(const dt_tensor *x, int count, int axis) {
    if (!x || count < 1)
        return (dt_tensor){0};
    dti_attr attr = {.i = {dti_axis_of(x[0], axis)}};
    return dti_append(x[0].graph, DTI_OP_CONCAT, x, (uint32_t)count, &attr);
}

/* ---- pad: attr.dim, i[0] = the output's shape and rank, i[1] = axis, i[2] = start. */
static bool dti_pad_shape(dti_build *b) {
    b->out.shape = dti_attr_shape(&b->out.attr);
    b->out.dtype = b->in[0]->dtype;
    return true;
}

static bool dti_pad_source(const dt_graph *g, const dti_node *n, dti_element *e) {
    const int axis = n->attr.i[1];
    const int64_t size = g->nodes[e->node].shape.dim[axis];
    return dti_element_shift(e, n->shape, axis, -(int64_t)n->attr.i[2], size);
}

static void dti_pad_grad(dti_grad *g) {
    int axis = g->node.attr.i[1];
    g->dx[0] = dt_slice(g->dy, axis, g->node.attr.i[2], dti_node_of(g->in[0])->shape.dim[axis]);
}

static void dti_pad_emit(dti_emit *e) {
    dti_view x = dti_emit_in(e, 0), part = e->out;
    int axis = DTI_AXES - e->node->shape.rank + e->node->attr.i[1];
    dti_emit_fill(e, &e->out, DTI_COPY_FILL_F32, 0.0f);
    part.dim[axis] = x.dim[axis];
    part.offset += e->node->attr.i[2] * e->out.stride[axis];
    dti_emit_copy(e, &x, &part, DTI_COPY_WORD);
}

#define DTI_PAD_PARTS 16 /* put together as one; more are added */

/* The tensors inside a pad's zeros: its input, or the parts of a concat along the pad's axis. */
static int dti_pad_parts(dt_tensor pad, dt_tensor *parts) {
    dt_graph *g = pad.graph;
    const dti_node *n = dti_node_of(pad);
    const dt_tensor x = dti_input_of(g, n, 0);
    const dti_node *in = dti_node_of(x);
    const bool joined = in->op == DTI_OP_CONCAT && in->attr.i[0] == n->attr.i[1];
    parts[0] = x;
    for (uint32_t i = 0; joined && i < in->count && i < DTI_PAD_PARTS; i++)
        parts[i] = dti_input_of(g, in, i);
    return joined ? (int)in->count : 1;
}

static int64_t dti_pad_length(dt_tensor pad) {
    const dti_node *n = dti_node_of(pad);
    return dti_node_of(dti_input_of(pad.graph, n, 0))->shape.dim[n->attr.i[1]];
}

/* Whether b's elements begin where those of a end. */
static bool dti_pads_touch(dt_tensor a, dt_tensor b) {
    const dti_node *x = dti_node_of(a), *y = dti_node_of(b);
    return x->op == DTI_OP_PAD && y->op == DTI_OP_PAD && x->attr.i[1] == y->attr.i[1] &&
           x->attr.i[2] + dti_pad_length(a) == y->attr.i[2] && x->samples == y->samples &&
           x->dtype == y->dtype && dti_shape_equal(x->shape, y->shape);
}

static bool dti_pads_join(dt_tensor a, dt_tensor b, dt_tensor *sum) {
    const bool behind = dti_pads_touch(a, b);
    if (!behind && !dti_pads_touch(b, a))
        return false;
    const dt_tensor first = behind ? a : b, second = behind ? b : a;
    dt_tensor parts[2 * DTI_PAD_PARTS];
    const int count = dti_pad_parts(first, parts);
    const int all = count <= DTI_PAD_PARTS ? count + dti_pad_parts(second, parts + count) : count;
    const dti_attr attr = dti_node_of(first)->attr;
    const dt_shape s = dti_node_of(first)->shape;
    if (all > DTI_PAD_PARTS)
        return false;
    *sum = dt_concat(parts, all, attr.i[1]);
    if (!dti_is_nil(*sum) && dti_node_of(*sum)->shape.dim[attr.i[1]] < s.dim[attr.i[1]])
        *sum = dti_append1(DTI_OP_PAD, *sum, &attr);
    return true;
}

/* attr.i[0] = axis, attr.dim[0..1] = before and after. */
static dt_tensor dti_pad_make(dt_graph *g, const dti_call *c) {
    const dt_tensor x = dti_call_in(g, c, 0);
    const int axis = c->attr.i[0];
    const int64_t before = c->attr.dim[0], after = c->attr.dim[1];
    dt_shape s = dti_node_of(x)->shape;
    int at = dti_axis_of(x, axis);
    if (at < 0 || at >= s.rank || before < 0 || after < 0 || before > INT32_MAX ||
        after > INT32_MAX) {
        return dti_graph_fail(x.graph,
                              "pad(%s): %lld and %lld zeros along axis %d; the axis must exist, "
                              "the numbers be at least 0",
                              dti_shape_print(s, dti_node_of(x)->samples).text, (long long)before,
                              (long long)after, axis);
    }
    s.dim[at] += before + after;
    dti_attr attr = dti_shape_attr(s);
    attr.i[1] = at;
    attr.i[2] = (int32_t)before;
    return dti_append1(DTI_OP_PAD, x, &attr);
}

DT_API dt_tensor dt_pad(dt_tensor x, int axis, int64_t before, int64_t after) {
    return dti_compose("pad", dti_pad_make, 1, (dti_inputs){{x}},
                       (dti_attr){.i = {axis}, .dim = {before, after}});
}

/* ---- CPU */

static void dti_copy_words(const dti_cpu_task *task, const dti_run *r) {
    if (r->y != r->a)
        memmove(r->y, r->a, (size_t)r->n * sizeof *r->y);
}

static void dti_copy_i32_f32(const dti_cpu_task *task, const dti_run *r) {
    const dti_word *words = (const dti_word *)r->a;
    for (int64_t i = 0; i < r->n; i++)
        r->y[i] = (float)(int32_t)words[i];
}

/* Truncates toward zero and saturates; NaN gives 0. */
static int32_t dti_i32_of_f32(float x) {
    if (dti_nan_f32(x))
        return 0;
    if (x >= 2147483648.0f)
        return INT32_MAX;
    return x < -2147483648.0f ? INT32_MIN : (int32_t)x;
}

static void dti_copy_f32_i32(const dti_cpu_task *task, const dti_run *r) {
    dti_word *words = (dti_word *)r->y;
    for (int64_t i = 0; i < r->n; i++)
        words[i] = (dti_word)dti_i32_of_f32(r->a[i]);
}

/* To the nearest, ties to even. */
static int32_t dti_i32_rounded(float x) {
    int32_t whole = dti_i32_of_f32(x);
    if (!(x > -8388608.0f && x < 8388608.0f))
        return whole; /* beyond, and NaN: whole already */
    float rest = x - (float)whole;
    if (rest > 0.5f || (rest == 0.5f && whole % 2 != 0))
        return whole + 1;
    if (rest < -0.5f || (rest == -0.5f && whole % 2 != 0))
        return whole - 1;
    return whole;
}

static void dti_copy_fill(const dti_cpu_task *task, const dti_run *r) {
    float value = task->launch->args.map1.p0;
    dti_word word, *words = (dti_word *)r->y;
    memcpy(&word, &value, sizeof word);
    if (task->launch->spec[0] == DTI_COPY_FILL_I32)
        word = (dti_word)dti_i32_rounded(value);
    for (int64_t i = 0; i < r->n; i++)
        words[i] = word;
}

static void dti_copy_iota(const dti_cpu_task *task, const dti_run *r) {
    for (int64_t i = 0; i < r->n; i++)
        r->y[i] = (float)(r->first + i);
}

static void dti_cpu_copy(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    static dti_map_fn *const fn[] = {
        [DTI_COPY_WORD] = dti_copy_words,      [DTI_COPY_I32_F32] = dti_copy_i32_f32,
        [DTI_COPY_F32_I32] = dti_copy_f32_i32, [DTI_COPY_FILL_F32] = dti_copy_fill,
        [DTI_COPY_FILL_I32] = dti_copy_fill,   [DTI_COPY_IOTA_F32] = dti_copy_iota};
    const uint32_t mode = task->launch->spec[0];
    dti_map_launch(task, fn[mode], mode <= DTI_COPY_F32_I32, false, mode == DTI_COPY_WORD, begin,
                   end);
}

/* The source that begins at element `from`, up to element `end`. */
static void dti_join_one(const dti_cpu_task *task, int k, int64_t from, int64_t begin,
                         int64_t end) {
    const dti_args_join *a = &task->launch->args.join;
    const int64_t cols = a->cols[k], stride = (int32_t)a->stride[k];
    const dti_word *x = (const dti_word *)(const void *)dti_cpu_in(task, k, a->offset[k]);
    dti_word *y = (dti_word *)(void *)dti_cpu_out(task, 3, a->y_offset);
    for (int64_t i = begin; i < end; i++)
        y[i] = x[(i - from) / cols * stride + (i - from) % cols];
}

static void dti_cpu_join(const dti_cpu_task *task, int64_t begin, int64_t end, void *scratch) {
    const dti_args_join *a = &task->launch->args.join;
    const int64_t ends[4] = {0, a->a_end, a->b_end, a->n};
    for (int k = 0; k < 3; k++)
        dti_join_one(task, k, ends[k], DTI_MAX(begin, ends[k]), DTI_MIN(end, ends[k + 1]));
}

/* ---- Rows of the tables */

/* (a, b, c, y) */
DTI_KERNEL(JOIN, join_rows, "rrrw", ITEM, .run = dti_cpu_join, .grain = DTI_GRAIN_COPY,
           .moves = dti_launch_only_moves);

/* Whole numbers look like NaN to a scan, and a plain copy makes no new value; a cast from one type
 * of floats to another may. */
static bool dti_copy_moves(const dti_launch *l) {
    if (l->spec[0] == DTI_COPY_WORD)
        return l->dtype[0] == l->dtype[1];
    return l->spec[0] != DTI_COPY_I32_F32 && l->spec[0] != DTI_COPY_FILL_F32;
}

/* A part of its value, as the columns of a matrix: the period where it leaves out most says so. */
static dti_stripe dti_copy_stripe(const dti_launch *l) {
    const dti_args_map1 *a = &l->args.map1;
    dti_stripe best = {0};
    double least = 1;
    for (int i = 0; i < 6; i++) {
        const uint64_t period = a->dim[i] > 1 ? a->y_stride[i] : 0;
        uint64_t span = 1;
        for (int k = 0; k < 6 && period; k++) {
            if (a->dim[k] > 1 && a->y_stride[k] < period)
                span += (a->dim[k] - 1ull) * a->y_stride[k];
            else if (a->dim[k] > 1 && a->y_stride[k] % period)
                span = period;
        }
        const uint64_t from = period ? a->y_offset % period : 0;
        if (from + span > period || (double)span >= least * (double)period)
            continue;
        least = (double)span / (double)period;
        best = (dti_stripe){period, from, from + span};
    }
    return best;
}

/* spec0: DTI_COPY_* */
DTI_KERNEL(COPY, copy, "rw", ITEM, .walks = true, .far = true, .run = dti_cpu_copy, .halves = true,
           .grid_halves = dti_launch_any_half, .grain = DTI_GRAIN_COPY, .moves = dti_copy_moves,
           .stripe = dti_copy_stripe, .tile = dti_map_tile, .invocations = dti_fours_invocations);

DTI_FAMILY(copy, .halves = DTI_HALF_ALL, .shape = dti_shape_of_input, .grad = dti_grad_of_result,
           .source = dti_copy_source, .part = dti_parted_same);

DTI_FAMILY(cast, .halves = DTI_HALF_ALL, .shape = dti_cast_shape, .grad = dti_cast_grad);

/* Along another axis than that of the parts. */
static bool dti_concat_part(dti_parting *s) {
    s->out = s->in[0];
    for (uint32_t k = 0; k < s->n->count; k++) {
        if (k >= DTI_INPUTS_MAX || !dti_parted_equal(&s->in[k], &s->out))
            return false;
    }
    return s->n->attr.i[0] != s->out.axis;
}

DTI_FAMILY(concat, .halves = DTI_HALF_ALL, .shape = dti_concat_shape, .grad = dti_concat_grad,
           .many = true, .part = dti_concat_part, .source = dti_concat_source);

DTI_FAMILY(pad, .halves = DTI_HALF_ALL, .shape = dti_pad_shape, .grad = dti_pad_grad,
           .source = dti_pad_source);
