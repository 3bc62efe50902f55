/* Places transients. Each lives from the first launch that names it to the last. Two that never
 * live at once may share memory. An elementwise launch whose input dies with it writes in the
 * input's place. Largest first, each at the lowest offset that is free over its whole life (greedy
 * by size; Pisarchyk and Lee, 2020). The sum is exact and known before anything runs.
 *
 * On a device that runs launches side by side, one that writes where another has just read waits
 * for it. So memory rests for some launches before it is used again, where that takes little. */

#define DTI_PLAN_REST 3        /* launches */
#define DTI_PLAN_REST_SHARE 32 /* of the transients' bytes: it may take so much more */

static void dti_plan_lifetimes(dti_listing *list) {
    for (uint32_t v = 0; v < list->value_count; v++) {
        list->values[v].first = UINT32_MAX;
        list->values[v].last = 0;
        list->values[v].same_as = v;
    }
    for (uint32_t i = 0; i < list->launch_count; i++) {
        for (int b = 0; b < DTI_BINDINGS_MAX; b++) {
            uint32_t whole = list->values[list->launches[i].value[b]].part_of;
            dti_value *v = &list->values[whole];
            if (v->first == UINT32_MAX)
                v->first = i;
            v->last = i;
        }
    }
}

static uint32_t dti_plan_root(const dti_listing *list, uint32_t v) {
    while (list->values[v].same_as != v)
        v = list->values[v].same_as;
    return v;
}

/* Whether launch i may write its output in place of binding b. That must be a transient that ends
 * here. Every binding that reads it must read it in step with the output (x + x^T does not
 * qualify). */
static bool dti_plan_may_replace(const dti_listing *list, uint32_t i, int b, int out) {
    const dti_launch *l = &list->launches[i];
    const dti_kernel_info *kernel = dti_kernel_info_of(l->kernel);
    uint32_t root = dti_plan_root(list, l->value[b]);
    const dti_value *x = &list->values[root], *y = &list->values[l->value[out]];
    if (x->kind != DTI_VALUE_TRANSIENT || x->last != i || x->bytes != y->bytes || x->has_parts ||
        x->part_of != root || root == l->value[out])
        return false;
    for (int other = 0; other < out; other++) {
        if (dti_plan_root(list, l->value[other]) == root && !kernel->in_step(l, other))
            return false;
    }
    return true;
}

static void dti_plan_in_place(dti_listing *list) {
    for (uint32_t i = 0; i < list->launch_count; i++) {
        const dti_launch *l = &list->launches[i];
        const dti_kernel_info *kernel = dti_kernel_info_of(l->kernel);
        if (!kernel->in_step)
            continue;
        int out = kernel->bindings - 1;
        dti_value *y = &list->values[l->value[out]];
        if (y->kind != DTI_VALUE_TRANSIENT || y->first != i || y->same_as != l->value[out] ||
            y->has_parts)
            continue;
        for (int b = 0; b < out; b++) {
            if (!dti_plan_may_replace(list, i, b, out))
                continue;
            y->same_as = dti_plan_root(list, l->value[b]);
            list->values[y->same_as].last = y->last;
            break;
        }
    }
}

typedef struct dti_placed {
    uint32_t value;
    dti_space_block block;
} dti_placed;

static int dti_placed_larger(const void *a, const void *b) {
    const dti_placed *x = a, *y = b;
    if (x->block.bytes != y->block.bytes)
        return x->block.bytes < y->block.bytes ? 1 : -1;
    return x->value < y->value ? -1 : 1;
}

/* The values that need a place of their own, largest first. */
static uint32_t dti_plan_sort(const dti_listing *list, uint32_t rest, dti_placed *placed) {
    uint32_t count = 0;
    for (uint32_t v = 0; v < list->value_count; v++) {
        const dti_value *x = &list->values[v];
        if (x->kind != DTI_VALUE_TRANSIENT || x->same_as != v || x->first == UINT32_MAX)
            continue;
        placed[count++] = (dti_placed){v,
                                       {.first = x->first,
                                        .last = DTI_MIN(x->last + rest, list->launch_count - 1),
                                        .bytes = dti_aligned(x->bytes)}};
    }
    qsort(placed, count, sizeof *placed, dti_placed_larger);
    return count;
}

static dt_result dti_plan_place(dti_code *code, uint32_t rest) {
    dti_listing *list = &code->list;
    dti_placed *placed = dti_alloc_array(code->base, list->value_count + 1u, sizeof *placed);
    DTI_HAVE(placed);
    const uint32_t count = dti_plan_sort(list, rest, placed);
    dti_space space;
    code->transient_bytes = 0;
    bool good = dti_space_open(&space, code->base, list->launch_count, count);
    for (uint32_t i = 0; i < count && good; i++) {
        dti_space_block *b = &placed[i].block;
        b->offset = dti_space_fit(&space, b);
        good = dti_space_take(&space, b);
        list->values[placed[i].value].offset = b->offset;
        code->transient_bytes = DTI_MAX(code->transient_bytes, b->offset + b->bytes);
    }
    dti_space_close(&space);
    dti_free(code->base, placed);
    return good ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_plan_place_all(dti_code *code) {
    dt_result result = dti_plan_place(code, 0);
    if (result || !code->limits.apart || code->desc.memory_bytes)
        return result;
    const uint64_t least = code->transient_bytes;
    result = dti_plan_place(code, DTI_PLAN_REST);
    if (!result && code->transient_bytes > least + least / DTI_PLAN_REST_SHARE)
        result = dti_plan_place(code, 0);
    return result;
}

static dt_result dti_pass_in_place(dti_lowering *w) {
    dti_plan_lifetimes(&w->code->list);
    dti_plan_in_place(&w->code->list);
    return DT_OK;
}

static dt_result dti_pass_place(dti_lowering *w) {
    dti_code *code = w->code;
    dti_listing *list = &code->list;
    DTI_TRY(dti_plan_place_all(code));
    code->places = dti_alloc_array(code->base, list->value_count + 1u, sizeof *code->places);
    DTI_HAVE(code->places);
    for (uint32_t v = 0; v < list->value_count; v++) {
        const dti_value *x = &list->values[v], *root;
        root = &list->values[dti_plan_root(list, x->part_of)];
        code->places[v] =
            (dti_place){.memory = root->kind, .offset = root->offset, .bytes = x->bytes};
        if (x->part_of != v)
            code->places[v].offset += x->offset;
    }
    return DT_OK;
}
