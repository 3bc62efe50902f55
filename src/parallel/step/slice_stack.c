/* A stack of subtrees on the host takes the gradients of each batch slice from the arena. A
 * replica's program has such a stack in slots of the arena. The stacks of this rank are then summed
 * (reducer.c). The ranks that have the part sum theirs in a group of their own. With one batch
 * slice the arena has the sum.
 *
 * Cost: an all-reduce of a part's gradients over the ranks that have it; on the host a copy of them
 * for each subtree of a stack, and for the sum. */

/* ---- a stack */

static dt_result dti_batch_slice_stack_make(dti_parallel *par, dti_batch_slice_stack *s,
                                            dt_program *p, uint32_t replica) {
    const dti_code *code = dti_program_code(p);
    const bool cpu = p->store->device->info.kind == DT_DEVICE_CPU, units = dti_code_has_units(code);
    const dt_comm_span own =
        dti_mesh_batch_slices(&par->mesh, par->job.batch_slices, (dt_comm_span){replica, 1});
    s->store = p->store;
    s->first = own.first;
    s->end = own.first + own.count;
    s->from = units ? dti_units_from(code) : 0;
    s->elements = units ? code->unit_stride : p->store->layout.elements;
    if (s->end - s->first == 1 &&
        (cpu || par->job.batch_slices == 1)) /* it is read where it lies */
        return DT_OK;
    uint32_t depth = 1; /* one more than it ever has, for the newest */
    for (uint32_t i = s->first; i < s->end; i++)
        depth = DTI_MAX(depth, dti_partition_subtrees(&par->job, s->first, i).count + 1);
    const uint64_t bytes = dti_arena_bytes(s->elements) * depth;
    s->slots = dti_alloc(par->base, (size_t)bytes);
    par->subtree_bytes += bytes;
    return s->slots ? DT_OK : DT_ERROR_MEMORY;
}

static void dti_batch_slice_stack_free(dti_parallel *par, dti_batch_slice_stack *s) {
    dti_free(par->base, s->slots);
    s->slots = NULL;
}

static void dti_batch_slice_stack_begin(dti_batch_slice_stack *s) {
    s->done = 0;
    s->sums.at[0] = (dt_comm_span){s->first, 1};
    s->sums.count = s->slots ? 0 : 1;
}

static dti_memory *dti_batch_slice_memory(const dti_batch_slice_stack *s) {
    return s->store->units[1] ? s->store->units[1] : s->store->memories[DTI_ARENA_GRADIENT];
}

static float *dti_batch_slice_arena(const dti_batch_slice_stack *s) {
    float *arena = s->store->device->backend->memory_host(dti_batch_slice_memory(s));
    return arena + s->from;
}

static dti_sums_operands dti_batch_slice_operands(const dti_batch_slice_stack *s) {
    return (dti_sums_operands){s->slots ? s->slots : dti_batch_slice_arena(s), s->elements,
                               &s->sums};
}

/* Where the next batch slice's sum is put. */
static float *dti_batch_slice_next(dti_batch_slice_stack *s) {
    const dti_piece piece = {.leaf = s->first + s->done++, .begins = true};
    return s->slots + dti_subtrees_add(&s->sums, &piece) * s->elements;
}

/* Two siblings become one. */
static void dti_batch_slice_join(const dti_parallel *par, dti_batch_slice_stack *s) {
    for (;;) {
        const dt_comm_span right = s->sums.at[s->sums.count - 1];
        if (!dti_subtrees_join(&s->sums, par->job.batch_slices))
            return;
        float *a = s->slots + (s->sums.count - 1) * s->elements;
        const dt_comm_span both = s->sums.at[s->sums.count - 1];
        const dti_operand two[2] = {{a, DT_F32, {both.first, both.count - right.count}},
                                    {a + s->elements, DT_F32, right}};
        dti_fold(a, two, 2, s->elements, DT_F32, DT_COMM_SUM, false, 1);
    }
}

/* Batch slices before `end` have no rows. */
static void dti_batch_slice_zeros(const dti_parallel *par, dti_batch_slice_stack *s, uint32_t end) {
    while (s->first + s->done < end) {
        memset(dti_batch_slice_next(s), 0, (size_t)dti_arena_bytes(s->elements));
        dti_batch_slice_join(par, s);
    }
}

static dt_result dti_batch_slice_pushed(const dti_parallel *par, dti_batch_slice_stack *s,
                                        uint32_t batch_slice, bool last) {
    if (!s->slots)
        return DT_OK;
    dti_batch_slice_zeros(par, s, batch_slice);
    const dt_result result = s->store->device->backend->memory_read(
        dti_batch_slice_memory(s), dti_arena_bytes(s->from), dti_batch_slice_next(s),
        (size_t)dti_arena_bytes(s->elements));
    if (!result)
        dti_batch_slice_join(par, s);
    if (!result && last)
        dti_batch_slice_zeros(par, s, s->end);
    return result;
}

static dt_result dti_batch_slice_pushed_none(const dti_parallel *par, dti_batch_slice_stack *s) {
    if (s->slots)
        dti_batch_slice_zeros(par, s, s->end);
    else
        memset(dti_batch_slice_arena(s), 0, (size_t)dti_arena_bytes(s->elements));
    return DT_OK;
}

/* ---- all stacks here, then all ranks */

static dt_result dti_batch_slice_sum_make(dti_parallel *par, dti_sum *s, uint32_t parts,
                                          uint64_t elements, uint32_t position,
                                          const dti_batch_slice_stack *first) {
    const dt_comm_span own = dti_mesh_slices_of(par, position);
    const bool others = own.count < par->job.batch_slices;
    if (!own.count || par->job.batch_slices == 1)
        return DT_OK;
    s->elements = elements;
    s->parts = parts;
    s->in_place = first != NULL;
    s->subtrees = dti_partition_subtrees(&par->job, own.first, own.first + own.count);
    const bool one = s->subtrees.count == 1, rounded = others && dti_sums_are_rounded(par);
    const bool merged = first && parts == 1 && one && !rounded; /* it is one already */
    const uint64_t bytes = dti_arena_bytes(elements),
                   partial = others && !merged && !(rounded && one) ? s->subtrees.count : 0;
    s->slices = merged ? 0 : (uint32_t)((elements + DTI_SLICE - 1) / DTI_SLICE);
    s->total = first ? dti_batch_slice_operands(first).data : dti_alloc(par->base, (size_t)bytes);
    s->partial = partial ? dti_alloc(par->base, (size_t)(bytes * partial)) : NULL;
    s->rounded = rounded ? dti_alloc_array(par->base, (size_t)elements, sizeof *s->rounded) : NULL;
    par->staging_bytes += bytes * ((first ? 0 : 1) + partial) + (rounded ? bytes / 2 : 0);
    return s->total && (s->partial || !partial) && (s->rounded || !rounded) ? DT_OK
                                                                            : DT_ERROR_MEMORY;
}

static void dti_batch_slice_sums_free(dti_parallel *par) {
    for (uint32_t i = par->sums.count; i-- > 0;) {
        dt_comm_destroy(par->sums.list[i].comm);
        DTI_FREE(par->base, par->sums.list[i].partial, par->sums.list[i].rounded,
                 par->sums.list[i].in_place ? NULL : par->sums.list[i].total);
    }
    dti_sums_free(par);
}

static dt_result dti_batch_slice_sum_put(const dti_sum *s, dt_store *store) {
    if (!s->total) /* the arena has it */
        return DT_OK;
    return store->device->backend->memory_write(store->memories[DTI_ARENA_GRADIENT], 0, s->total,
                                                (size_t)dti_arena_bytes(s->elements));
}
