/* Sums over batch slices. What the arena has at a batch slice's end is pushed onto a stack of
 * subtrees on the host, as a replica's program has in slots of the arena. Then the stacks of this
 * rank are folded, and the ranks that have the part make one sum in tree mode, in a group of their
 * own. With one batch slice the arena has the sum.
 *
 * Cost: an all-reduce of a part's gradients over the ranks that have it; on the host a copy of them
 * for each subtree of a stack, and for the sum. */

/* ---- a stack */

/* How many slots it needs: one more than it ever has, for the newest. */
static uint32_t dti_batch_slice_depth(const dti_parallel *par, uint32_t first, uint32_t end) {
    dti_subtrees s = {.count = 0};
    uint32_t most = 1;
    for (uint32_t i = first; i < end; i++) {
        dti_subtrees_add(&s, &(dti_piece){.leaf = i, .begins = true});
        most = DTI_MAX(most, s.count);
        while (dti_subtrees_join(&s, par->job.batch_slices)) {
        }
    }
    return most;
}

static dt_result dti_batch_slice_stack_make(dti_parallel *par, dti_batch_slice_stack *s,
                                            dt_store *store, uint32_t replica) {
    const bool cpu = store->device->info.kind == DT_DEVICE_CPU;
    const dt_comm_span own =
        dti_mesh_batch_slices(&par->mesh, par->job.batch_slices, (dt_comm_span){replica, 1});
    s->store = store;
    s->first = own.first;
    s->end = own.first + own.count;
    s->elements = store->layout.elements;
    if (s->end - s->first == 1 &&
        (cpu || par->job.batch_slices == 1)) /* it is read where it lies */
        return DT_OK;
    const uint64_t bytes =
        dti_arena_bytes(s->elements) * dti_batch_slice_depth(par, s->first, s->end);
    s->slots = dti_alloc(par->base, (size_t)bytes);
    par->subtree_bytes += bytes;
    return s->slots ? DT_OK : DT_ERROR_MEMORY;
}

static void dti_batch_slice_stack_free(dti_parallel *par, dti_batch_slice_stack *s) {
    dti_free(par->base, s->slots);
    s->slots = NULL;
}

static void dti_batch_slice_stack_begin(dti_batch_slice_stack *s) {
    s->sums.count = 0;
    s->done = 0;
}

static float *dti_batch_slice_arena(const dti_batch_slice_stack *s) {
    return s->store->device->backend->memory_host(s->store->memories[DTI_ARENA_GRADIENT]);
}

static void dti_batch_slice_join(float *to, const dti_operand two[2], uint64_t n) {
    for (uint64_t at = 0; at < n; at += DTI_SLICE) {
        const uint64_t some = DTI_MIN(n - at, (uint64_t)DTI_SLICE);
        dti_operand now[2] = {two[0], two[1]};
        for (int i = 0; i < 2; i++)
            now[i].data = (const float *)two[i].data + at;
        dti_fold(to + at, now, 2, some, DT_F32, DT_COMM_SUM, false, 1);
    }
}

/* The next batch slice's sum: what the arena has, or zeros. Two siblings become one. */
static dt_result dti_batch_slice_push(const dti_parallel *par, dti_batch_slice_stack *s,
                                      bool zeros) {
    const uint32_t leaf = s->first + s->done++;
    const uint64_t n = s->elements;
    dt_result result = DT_OK;
    const uint32_t at = dti_subtrees_add(&s->sums, &(dti_piece){.leaf = leaf, .begins = true});
    float *to = s->slots + at * n;
    if (zeros)
        memset(to, 0, (size_t)dti_arena_bytes(n));
    else
        result = s->store->device->backend->memory_read(s->store->memories[DTI_ARENA_GRADIENT], 0,
                                                        to, (size_t)dti_arena_bytes(n));
    for (;;) {
        const dt_comm_span right = s->sums.at[s->sums.count - 1];
        if (!dti_subtrees_join(&s->sums, par->job.batch_slices))
            return result;
        float *a = s->slots + (s->sums.count - 1) * n;
        const dt_comm_span both = s->sums.at[s->sums.count - 1];
        const dti_operand two[2] = {{a, DT_F32, {both.first, both.count - right.count}},
                                    {a + n, DT_F32, right}};
        dti_batch_slice_join(a, two, n);
    }
}

static dt_result dti_batch_slice_pushed(const dti_parallel *par, dti_batch_slice_stack *s,
                                        uint32_t batch_slice, bool last) {
    dt_result result = DT_OK;
    while (s->slots && !result && s->first + s->done < batch_slice)
        result = dti_batch_slice_push(par, s, true);
    if (s->slots && !result)
        result = dti_batch_slice_push(par, s, false);
    while (s->slots && !result && last && s->first + s->done < s->end)
        result = dti_batch_slice_push(par, s, true);
    return result;
}

static dt_result dti_batch_slice_pushed_none(const dti_parallel *par, dti_batch_slice_stack *s) {
    dt_result result = DT_OK;
    if (!s->slots)
        memset(dti_batch_slice_arena(s), 0, (size_t)dti_arena_bytes(s->elements));
    while (s->slots && !result && s->first + s->done < s->end)
        result = dti_batch_slice_push(par, s, true);
    return result;
}

/* ---- all stacks here, then all ranks */

static dt_result dti_batch_slice_sum_make(dti_parallel *par, dti_batch_slice_sum *s,
                                          uint64_t elements, uint32_t position) {
    const dt_comm_span own = dti_mesh_slices_of(par, position);
    if (!own.count)
        return DT_OK;
    s->elements = elements;
    if (par->job.batch_slices == 1)
        return DT_OK;
    s->on = true;
    s->subtrees = dti_partition_subtrees(&par->job, own.first, own.first + own.count);
    s->total = dti_alloc(par->base, (size_t)dti_arena_bytes(elements));
    par->staging_bytes += dti_arena_bytes(elements);
    if (s->total && own.count < par->job.batch_slices) {
        const uint64_t bytes = dti_arena_bytes(elements) * s->subtrees.count;
        s->partial = dti_alloc(par->base, (size_t)bytes);
        par->staging_bytes += bytes;
        return s->partial ? DT_OK : DT_ERROR_MEMORY;
    }
    return s->total ? DT_OK : DT_ERROR_MEMORY;
}

static void dti_batch_slice_sum_free(dti_parallel *par, dti_batch_slice_sum *s) {
    dt_comm_destroy(s->comm);
    dti_free(par->base, s->partial);
    dti_free(par->base, s->total);
}

static void dti_batch_slice_sum_begin(dti_batch_slice_sum *s) {
    atomic_store(&s->ready, 0);
    s->work.id = 0;
}

/* What stacks have of subtree `span`, from an element on. */
static uint32_t dti_batch_slice_operands(dti_batch_slice_stack *const *of, uint32_t stacks,
                                         dt_comm_span span, uint64_t at, dti_operand *operands) {
    uint32_t count = 0;
    for (uint32_t k = 0; k < stacks; k++) {
        const dti_subtrees one = {.at = {{of[k]->first, 1}}, .count = 1};
        const dti_subtrees *own = of[k]->slots ? &of[k]->sums : &one;
        const float *from = of[k]->slots ? of[k]->slots : dti_batch_slice_arena(of[k]);
        for (uint32_t i = 0; i < own->count; i++) {
            if (own->at[i].first >= span.first && own->at[i].first < span.first + span.count)
                operands[count++] =
                    (dti_operand){from + i * of[k]->elements + at, DT_F32, own->at[i]};
        }
    }
    return count;
}

static void dti_batch_slice_fold(dti_batch_slice_sum *s, dti_batch_slice_stack *const *of,
                                 uint32_t count) {
    dti_operand operands[DTI_OPERANDS_MAX];
    for (uint32_t k = 0; k < s->subtrees.count; k++) {
        float *to = s->partial ? s->partial + k * s->elements : s->total;
        for (uint64_t at = 0; at < s->elements; at += DTI_SLICE) {
            const uint64_t n = DTI_MIN(s->elements - at, (uint64_t)DTI_SLICE);
            const uint32_t some =
                dti_batch_slice_operands(of, count, s->subtrees.at[k], at, operands);
            dti_fold(to + at, operands, some, n, DT_F32, DT_COMM_SUM, !s->partial, 1);
        }
    }
}

static dt_result dti_batch_slice_sum_post(dti_batch_slice_sum *s) {
    const dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE,
                           .in = s->partial,
                           .out = s->total,
                           .count = s->elements,
                           .dtype = DT_F32,
                           .tree = true};
    return dt_comm_begin(s->comm, &op, &s->work);
}

static dt_result dti_batch_slice_sum_end(dti_parallel *par, dti_batch_slice_sum *s) {
    dt_result result = DT_OK;
    if (s->work.id)
        result = dti_parallel_comm_failed(par, dt_comm_wait(s->comm, s->work, -1));
    s->work.id = 0;
    return result;
}

static dt_result dti_batch_slice_sum_put(const dti_batch_slice_sum *s, dt_store *store) {
    if (!s->on)
        return DT_OK;
    return store->device->backend->memory_write(store->memories[DTI_ARENA_GRADIENT], 0, s->total,
                                                (size_t)dti_arena_bytes(s->elements));
}
