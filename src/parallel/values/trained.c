/* The values of a store that a step changes, when replicas shard the state. Each replica writes its
 * own, and gets the others' from an arena on the host. */

/* The next range, after *i others. */
static bool dti_values_next_range(const dti_values_ranges *t, uint32_t *i, dti_bucket *range) {
    *range = (dti_bucket){0, 0};
    if (!t->code) {
        *range = *i < t->bucket_count ? t->buckets[*i] : *range;
        return (*i)++ < t->bucket_count;
    }
    const dti_layout *l = t->code->layout;
    for (; *i < l->param_count; ++*i) { /* the last parameter comes first in the arenas */
        const uint32_t param = l->param_count - 1 - *i;
        const dti_param *p = &l->params[param];
        const bool trained = dti_table_blocks(t->code, param, false) > 0;
        if (range->end && (!trained || p->offset != range->end))
            return true;
        if (!trained)
            continue;
        range->begin = range->end ? range->begin : p->offset;
        range->end = p->offset + dti_full_blocks(p->elements);
    }
    return range->end > 0;
}

static uint64_t dti_values_elements(const dti_values_ranges *t, dti_bucket part) {
    uint64_t n = 0;
    dti_bucket range;
    for (uint32_t i = 0; dti_values_next_range(t, &i, &range);)
        n += dti_bucket_elements(dti_bucket_overlap(range, part));
    return n;
}

static dt_result dti_values_copy_trained(dt_store *s, dti_values_copy c) {
    dti_bucket range;
    dt_result result = DT_OK;
    for (uint32_t i = 0; !result && dti_values_next_range(c.trained, &i, &range);) {
        const dti_bucket piece = dti_bucket_overlap(range, c.part);
        const uint64_t n = dti_bucket_elements(piece);
        float *host = c.host + (c.packed ? 0 : piece.begin);
        if (n)
            result = c.write ? dti_store_array_write(s, 0, piece.begin, n, host)
                             : dti_store_array_read(s, 0, piece.begin, n, host);
        c.host += c.packed ? n : 0;
    }
    return result;
}

static dti_bucket dti_values_own(const dt_store *s) {
    return (dti_bucket){s->layout.own_begin, s->layout.own_end};
}

static dt_result dti_values_give(const dti_values_update *u, dt_store *s) {
    return dti_values_copy_trained(
        s, (dti_values_copy){.trained = &u->trained, .part = dti_values_own(s), .host = u->host});
}

static dt_result dti_values_take(const dti_values_update *u, dt_store *s) {
    const dti_layout *l = &s->layout;
    dti_values_copy c = {&u->trained, {0, l->own_begin}, u->host, .write = true};
    DTI_TRY(dti_values_copy_trained(s, c));
    c.part = (dti_bucket){l->own_end, l->elements};
    return dti_values_copy_trained(s, c);
}

/* ---- between ranks */

#define DTI_VALUES_POSTED 16 /* operations under way at a time */

/* The next rank that has some of a range; before it: root -1. */
typedef struct dti_values_owner {
    int root;         /* in the line's group */
    uint32_t next;    /* position of the line */
    dti_bucket piece; /* within the range */
} dti_values_owner;

static bool dti_values_next_owner(const dti_mesh *mesh, const dti_values_shared *s,
                                  dti_bucket range, dti_values_owner *o) {
    do {
        const uint32_t first = o->next;
        if (first == s->line.count)
            return false;
        o->root++;
        o->next +=
            dti_mesh_share(mesh, s->line, dti_mesh_rank(mesh, s->line.first + first * s->line.step))
                .count;
        const dti_bucket has = {s->bounds[first], s->bounds[o->next]},
                         piece = dti_bucket_overlap(range, has);
        o->piece = (dti_bucket){piece.begin - range.begin, piece.end - range.begin};
    } while (o->piece.begin == o->piece.end);
    return true;
}

/* Each rank's piece of a range, which begins at `at`, to all. */
static dt_result dti_values_post_range(const dti_mesh *mesh, dt_comm *comm, dti_works *w,
                                       const dti_values_shared *s, dti_bucket range, float *at) {
    dt_result result = DT_OK;
    dti_values_owner own = {.root = -1};
    while (!result && dti_values_next_owner(mesh, s, range, &own)) {
        const dt_comm_op op = {.kind = DT_COMM_BROADCAST,
                               .in = at + own.piece.begin,
                               .out = at + own.piece.begin,
                               .count = dti_bucket_elements(own.piece),
                               .dtype = DT_F32,
                               .root = own.root};
        result = dti_works_post(comm, w, &op);
    }
    return result;
}

static dt_result dti_values_share(const dti_parallel *par, const dti_values_update *u) {
    dt_comm_work at[DTI_VALUES_POSTED];
    dti_works w = {.at = at, .room = DTI_VALUES_POSTED};
    dti_bucket range;
    dt_result result = DT_OK;
    for (uint32_t i = 0; u->comm && !result && dti_values_next_range(&u->trained, &i, &range);)
        result = dti_values_post_range(&par->mesh, u->comm, &w, &u->shared, range,
                                       u->host + range.begin);
    while (w.ended < w.count) { /* also after an error: all have to end */
        bool ended;
        const dt_result one = dti_works_end(u->comm, &w, true, &ended);
        result = result ? result : one;
    }
    return result;
}
