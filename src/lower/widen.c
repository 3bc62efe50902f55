/* Launches whose kernels do not take 16 bits, on this device, in a binding that has them. They work
 * on an f32 copy of that value. A copy widens before the first reader, and narrows after each
 * writer. So each op computes on every device as its row says. */

typedef struct dti_widen {
    dti_lowering *w;
    uint32_t *copy;    /* by value: its newest f32 copy */
    uint32_t *version; /* by value that is not a part: counts launches that wrote to it */
    uint32_t *copied;  /* by value: 1 + the version of its copy; 0 = none */
    uint32_t *at;      /* by launch: its place in the new listing, with copies before it */
    dti_launch *old;
    uint32_t count;
} dti_widen;

static bool dti_widen_wants(const dti_widen *x, const dti_launch *l, int binding) {
    const bool unused = binding > 0 && l->value[binding] == l->value[0];
    return !dti_types_take(l, unused ? 0 : binding, &x->w->code->limits);
}

static void dti_widen_copy(dti_widen *x, uint32_t from, uint32_t to) {
    dti_emit *e = &x->w->e;
    const dti_value *v = &e->list->values[from];
    const int64_t n = (int64_t)(v->bytes / dti_dtype_bytes(v->dtype));
    dti_view a = dti_view_line(from, n, 1, 0), b = dti_view_line(to, n, 1, 0);
    a.dtype = v->dtype;
    b.dtype = e->list->values[to].dtype;
    dti_emit_copy(e, &a, &b, DTI_COPY_WORD);
}

/* The copy in place of binding b. One that is only written may have gaps that another launch has
 * filled. */
static uint32_t dti_widen_binding(dti_widen *x, const dti_launch *l, int b) {
    dti_listing *list = &x->w->code->list;
    const uint32_t value = l->value[b], root = list->values[value].part_of;
    const bool reads = dti_kernel_info_of(l->kernel)->access[b] != 'w';
    const uint64_t n = list->values[value].bytes / dti_dtype_bytes(list->values[value].dtype);
    if (x->copied[value] == x->version[root] + 1)
        return x->copy[value];
    x->copy[value] = dti_listing_value(list, DTI_VALUE_TRANSIENT, DT_F32, n, 0);
    if (reads || x->version[root])
        dti_widen_copy(x, value, x->copy[value]);
    x->copied[value] = x->version[root] + 1;
    return x->copy[value];
}

static void dti_widen_launch(dti_widen *x, dti_launch l) {
    dti_emit *e = &x->w->e;
    const dti_kernel_info *kernel = dti_kernel_info_of(l.kernel);
    const dti_launch given = l;
    e->id = l.node;
    for (int b = 0; b < kernel->bindings; b++)
        if (dti_widen_wants(x, &given, b))
            l.value[b] = dti_widen_binding(x, &given, b);
    for (int b = kernel->bindings; b < DTI_BINDINGS_MAX; b++)
        l.value[b] = l.value[0];
    *dti_emit_launch(e, (dti_kernel_id)l.kernel, l.items, &l.args, l.args_bytes, l.value) = l;
    for (int b = 0; b < kernel->bindings; b++) {
        if (kernel->access[b] == 'r')
            continue;
        const uint32_t value = given.value[b], root = e->list->values[value].part_of;
        x->version[root]++;
        if (l.value[b] != value) /* the next one reads the rounded value */
            dti_widen_copy(x, l.value[b], value);
    }
}

static uint32_t dti_widen_at(const dti_widen *x, uint32_t launch) {
    return launch < x->count ? x->at[launch] : x->w->code->list.launch_count;
}

static void dti_widen_segments(dti_widen *x) {
    dti_code *code = x->w->code;
    for (uint32_t s = 0; s < code->segment_count; s++) {
        const uint32_t end = dti_widen_at(x, code->segments[s].first + code->segments[s].count);
        code->segments[s].first = dti_widen_at(x, code->segments[s].first);
        code->segments[s].count = end - code->segments[s].first;
    }
    code->list.ended = dti_widen_at(x, code->list.ended);
    x->w->weigh_launches = dti_widen_at(x, x->w->weigh_launches);
}

/* Whether a segment begins at the launch, which then must find all values without copies. A step
 * may run without the segment of loss weights. And copies from the forward to the backward part
 * would keep both. */
static bool dti_widen_begins(const dti_widen *x, uint32_t launch) {
    const dti_code *code = x->w->code;
    const uint32_t forward = code->forward_segments;
    return launch == x->w->weigh_launches ||
           (forward && forward < code->segment_count && launch == code->segments[forward].first);
}

/* Appends all launches again. */
static void dti_widen_all(dti_widen *x, uint32_t values) {
    dti_listing *list = &x->w->code->list;
    list->launches = NULL;
    list->launch_capacity = list->launch_count = 0;
    for (uint32_t i = 0; i < x->count; i++) {
        if (dti_widen_begins(x, i))
            memset(x->copied, 0, values * sizeof *x->copied);
        x->at[i] = list->launch_count;
        dti_widen_launch(x, x->old[i]);
    }
    dti_widen_segments(x);
}

static dt_result dti_pass_widen(dti_lowering *w) {
    dti_listing *list = &w->code->list;
    dti_types_set(list);
    if (!dti_types_misfit(list, &w->code->limits))
        return DT_OK;
    dti_widen x = {.w = w, .old = list->launches, .count = list->launch_count};
    const uint32_t values = list->value_count;
    x.copy = dti_alloc_array(list->base, values, sizeof *x.copy);
    x.version = dti_alloc_array(list->base, values, sizeof *x.version);
    x.copied = dti_alloc_array(list->base, values, sizeof *x.copied);
    x.at = dti_alloc_array(list->base, x.count + 1u, sizeof *x.at);
    const bool room = x.copy && x.version && x.copied && x.at;
    if (room)
        dti_widen_all(&x, values);
    DTI_FREE(list->base, x.copy, x.version, x.copied, x.at);
    if (list->launches != x.old)
        dti_free(list->base, x.old);
    return room ? list->result : DT_ERROR_MEMORY;
}
