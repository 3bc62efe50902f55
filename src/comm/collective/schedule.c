/* The builder that algorithms use. It appends steps, sources and dependencies to a dti_schedule,
 * and cuts counts into segments and leaves into subtrees. It knows the places of `in` and `out`. It
 * must not know any algorithm, or move bytes. Arrays grow and are never given back before
 * dti_schedule_free, so a schedule that is built again allocates nothing. */

static void dti_schedule_clear(dti_schedule *s) {
    s->step_count = s->source_count = s->after_count = 0;
    s->work_bytes = 0;
    s->failed = false;
}

static void dti_schedule_free(dti_base *base, dti_schedule *s) {
    DTI_FREE(base, s->steps, s->sources, s->after);
    *s = (dti_schedule){0};
}

static bool dti_block_is_at(const void *part, const void *whole, const dti_collective *c) {
    uint64_t bytes = c->op.count * dti_dtype_bytes(c->op.dtype);
    return (uintptr_t)part == (uintptr_t)whole + (uintptr_t)(c->rank * bytes);
}

static dti_overlap dti_coll_overlap(const dti_collective *c) {
    const dt_comm_op *op = &c->op;
    if (!op->in || !op->out)
        return DTI_APART;
    if (op->in == op->out)
        return DTI_SAME;
    switch (op->kind) {
    case DT_COMM_GATHER:
    case DT_COMM_ALL_GATHER: return dti_block_is_at(op->in, op->out, c) ? DTI_OWN : DTI_APART;
    case DT_COMM_SCATTER:
    case DT_COMM_REDUCE_SCATTER: return dti_block_is_at(op->out, op->in, c) ? DTI_OWN : DTI_APART;
    default: return DTI_APART;
    }
}

static bool dti_schedule_same(const dti_collective *a, const dti_collective *b) {
    const dt_comm_op *x = &a->op, *y = &b->op;
    return x->kind == y->kind && x->count == y->count && x->dtype == y->dtype &&
           x->reduction == y->reduction && x->root == y->root && x->algorithm == y->algorithm &&
           x->tree == y->tree && a->rank == b->rank && a->size == b->size &&
           a->chunk_bytes == b->chunk_bytes && a->leaves == b->leaves &&
           a->leaf_total == b->leaf_total && a->local == b->local && a->each == b->each &&
           a->costs == b->costs && !x->out == !y->out && dti_coll_overlap(a) == dti_coll_overlap(b);
}

/* ---- Ranges, segments and leaves */

static dti_stretch dti_stretch_at(dti_region place, uint8_t dtype, uint64_t first, uint64_t count) {
    return (dti_stretch){(uint8_t)place, dtype, first * dti_dtype_bytes((dt_dtype)dtype), count};
}

static dti_stretch dti_stretch_of(const dti_collective *c, dti_region place, uint64_t first,
                                  uint64_t count) {
    return dti_stretch_at(place, (uint8_t)c->op.dtype, first, count);
}

static dti_stretch dti_stretch_all(const dti_collective *c, dti_region place) {
    return dti_stretch_of(c, place, 0, c->op.count);
}

static dti_stretch dti_stretch_part(dti_stretch range, uint64_t first, uint64_t count) {
    range.offset += first * dti_dtype_bytes((dt_dtype)range.dtype);
    range.count = count;
    return range;
}

static dti_part dti_part_of(uint64_t count, uint32_t part, uint32_t parts) {
    uint64_t units = count / DTI_UNIT + (count % DTI_UNIT != 0);
    uint64_t each = units / parts, longer = units % parts; /* the first ones have one unit more */
    uint64_t first = (part * each + DTI_MIN(part, longer)) * DTI_UNIT;
    uint64_t end = first + (each + (part < longer)) * DTI_UNIT;
    first = DTI_MIN(first, count);
    return (dti_part){first, DTI_MIN(end, count) - first};
}

static uint32_t dti_collective_spans(const dti_collective *c, uint32_t rank,
                                     dt_comm_span spans[DTI_TREE_SPANS]) {
    if (c->op.tree)
        return dti_tree_spans(c->leaves[rank].first, c->leaves[rank].count, c->leaf_total, spans);
    spans[0] = (dt_comm_span){rank, 1};
    return 1;
}

static uint8_t dti_in_dtype(const dti_collective *c) {
    return c->op.tree ? dti_fold_dtype(c->op.dtype, c->op.reduction) : (uint8_t)c->op.dtype;
}

/* ---- The builder */

static bool dti_schedule_build(dti_base *base, const dti_collective *c, dti_algorithm_fn *algorithm,
                               dti_schedule *s) {
    dti_builder b = {base, c, s, DTI_NO_STEP};
    dti_schedule_clear(s);
    s->sum_dtype = dti_fold_dtype(c->op.dtype, c->op.reduction);
    s->chunk_elements = DTI_MAX(c->chunk_bytes / dti_dtype_bytes(c->op.dtype), 1);
    algorithm(&b, c);
    return !s->failed;
}

static void dti_builder_partials(dti_builder *b) {
    const uint64_t most = b->c->chunk_bytes / dti_dtype_bytes((dt_dtype)b->s->sum_dtype);
    b->s->chunk_elements = DTI_MAX(DTI_MIN(b->s->chunk_elements, most), 1);
}

static bool dti_builder_fail(dti_builder *b, dt_result result, const char *what) {
    dti_fail(b->base, result, "%s over %u ranks: %s", dti_kind_name(b->c->op.kind), b->c->size,
             what);
    b->s->failed = true;
    b->last = DTI_NO_STEP;
    return false;
}

/* Room for one more than `count`. */
static bool dti_schedule_grow(dti_builder *b, void *items, size_t *room, size_t count,
                              size_t size) {
    if (dti_array_reserve(b->base, items, room, count + 1, size))
        return true;
    b->s->failed = true;
    b->last = DTI_NO_STEP;
    return false;
}

static uint32_t dti_add_step(dti_builder *b, dti_schedule_step step) {
    dti_schedule *s = b->s;
    b->last = DTI_NO_STEP;
    if (s->failed || step.count == 0)
        return DTI_NO_STEP;
    if (s->step_count >= DTI_AFTER_WHOLE - 1)
        dti_builder_fail(b, DT_ERROR_INVALID, "too many steps");
    else if (dti_schedule_grow(b, &s->steps, &s->step_room, s->step_count, sizeof *s->steps))
        b->last = (uint32_t)s->step_count;
    if (b->last == DTI_NO_STEP)
        return DTI_NO_STEP;
    step.first_source = (uint32_t)s->source_count;
    step.first_after = (uint32_t)s->after_count;
    s->steps[s->step_count++] = step;
    return b->last;
}

static dti_schedule_step dti_schedule_step_of(dti_schedule_step_kind kind, dti_stretch at) {
    return (dti_schedule_step){.kind = (uint8_t)kind,
                               .place = at.place,
                               .dtype = at.dtype,
                               .offset = at.place == DTI_REGION_SLOT ? 0 : at.offset,
                               .count = at.count};
}

static uint32_t dti_add_stream(dti_builder *b, dti_schedule_step step, uint32_t peer,
                               uint32_t stream, bool credited) {
    if (!b->s->failed && (peer > UINT16_MAX || stream > UINT16_MAX))
        dti_builder_fail(b, DT_ERROR_INVALID, "too many streams between two ranks");
    step.peer = (uint16_t)peer;
    step.stream = (uint16_t)stream;
    step.credited = credited;
    return dti_add_step(b, step);
}

static uint32_t dti_add_send(dti_builder *b, uint32_t peer, uint32_t stream, dti_stretch from,
                             bool credited) {
    return dti_add_stream(b, dti_schedule_step_of(DTI_SCHEDULE_SEND, from), peer, stream, credited);
}

static uint32_t dti_add_recv(dti_builder *b, uint32_t peer, uint32_t stream, dti_stretch to,
                             bool credited) {
    return dti_add_stream(b, dti_schedule_step_of(DTI_SCHEDULE_RECV, to), peer, stream, credited);
}

static uint32_t dti_add_fold(dti_builder *b, dti_stretch to, bool finish) {
    dti_schedule_step step = dti_schedule_step_of(DTI_SCHEDULE_FOLD, to);
    step.finish = finish;
    return dti_add_step(b, step);
}

static uint32_t dti_add_copy(dti_builder *b, dti_stretch to, dti_stretch from) {
    uint32_t copy = dti_add_step(b, dti_schedule_step_of(DTI_SCHEDULE_COPY, to));
    dti_add_source(b, from, DTI_NO_STEP, (dt_comm_span){0, 1});
    return copy;
}

static void dti_add_source(dti_builder *b, dti_stretch from, uint32_t step, dt_comm_span span) {
    dti_schedule *s = b->s;
    if (b->last == DTI_NO_STEP ||
        !dti_schedule_grow(b, &s->sources, &s->source_room, s->source_count, sizeof *s->sources))
        return;
    s->sources[s->source_count++] = (dti_source){
        from.place, from.dtype, step, from.place == DTI_REGION_SLOT ? 0 : from.offset, span};
    s->steps[b->last].source_count++;
}

static void dti_add_dependency(dti_builder *b, uint32_t step, uint32_t whole) {
    dti_schedule *s = b->s;
    if (b->last == DTI_NO_STEP || step == DTI_NO_STEP ||
        !dti_schedule_grow(b, &s->after, &s->after_room, s->after_count, sizeof *s->after))
        return;
    s->after[s->after_count++] = step | whole;
    s->steps[b->last].after_count++;
}

static void dti_add_after(dti_builder *b, uint32_t step) {
    dti_add_dependency(b, step, 0);
}

static void dti_add_after_whole(dti_builder *b, uint32_t step) {
    dti_add_dependency(b, step, DTI_AFTER_WHOLE);
}

static dti_stretch dti_add_work(dti_builder *b, uint8_t dtype, uint64_t count) {
    dti_schedule *s = b->s;
    dti_stretch range = {DTI_REGION_WORK, dtype, s->work_bytes, count};
    uint64_t bytes, end;
    if (__builtin_mul_overflow(count, (uint64_t)dti_dtype_bytes((dt_dtype)dtype), &bytes) ||
        __builtin_add_overflow(s->work_bytes, bytes, &end) || end > UINT64_MAX - 63) {
        if (!s->failed)
            dti_builder_fail(b, DT_ERROR_MEMORY, "the scratch memory exceeds 2^64 bytes");
        return range;
    }
    s->work_bytes = (end + 63) & ~(uint64_t)63; /* ranges share no cache line */
    return range;
}

/* ---- Blocks of gather and all-gather */

static dti_block dti_collective_block(dti_builder *b) {
    const dti_collective *c = b->c;
    dti_stretch in = dti_stretch_all(c, DTI_REGION_IN);
    dti_stretch out = dti_stretch_of(c, DTI_REGION_OUT, c->rank * c->op.count, c->op.count);
    dti_overlap overlap = dti_coll_overlap(c);
    if (overlap == DTI_OWN || (overlap == DTI_SAME && c->rank == 0))
        return (dti_block){out, DTI_NO_STEP};
    uint32_t copy = dti_add_copy(b, out, in);
    return overlap == DTI_SAME ? (dti_block){out, copy} : (dti_block){in, DTI_NO_STEP};
}

static uint32_t dti_recv_block(dti_builder *b, uint32_t peer, uint32_t stream, uint32_t block,
                               dti_block own) {
    const dt_comm_op *op = &b->c->op;
    dti_stretch out = dti_stretch_of(b->c, DTI_REGION_OUT, block * op->count, op->count);
    if (block != 0 || own.copy == DTI_NO_STEP)
        return dti_add_recv(b, peer, stream, out, false);
    dti_stretch work = dti_add_work(b, (uint8_t)op->dtype, op->count);
    uint32_t recv = dti_add_recv(b, peer, stream, work, false);
    uint32_t copy = dti_add_copy(b, out, work);
    dti_add_after(b, recv);
    dti_add_after(b, own.copy);
    return copy;
}
