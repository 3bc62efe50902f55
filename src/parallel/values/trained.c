/* Of a store's values those that a step changes, where replicas share the state: each writes its
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

static dt_result dti_values_take(dt_store *s, const dti_values_ranges *t, dti_bucket own,
                                 float *host) {
    const dti_bucket before = {0, own.begin}, after = {own.end, s->layout.elements};
    const dt_result result =
        dti_values_copy_trained(s, (dti_values_copy){t, before, host, .write = true});
    return result ? result
                  : dti_values_copy_trained(s, (dti_values_copy){t, after, host, .write = true});
}

/* ---- between ranks */

#define DTI_VALUES_POSTED 16 /* operations under way at a time */

typedef struct dti_values_posts {
    dt_comm *comm;
    dt_comm_work work[DTI_VALUES_POSTED];
    uint32_t posted, ended;
} dti_values_posts;

static dt_result dti_values_wait(dti_values_posts *p) {
    return dt_comm_wait(p->comm, p->work[p->ended++ % DTI_VALUES_POSTED], -1);
}

static dt_result dti_values_post(dti_values_posts *p, int root, float *at, uint64_t n) {
    const dt_comm_op op = {
        .kind = DT_COMM_BROADCAST, .in = at, .out = at, .count = n, .dtype = DT_F32, .root = root};
    dt_result result = p->posted - p->ended == DTI_VALUES_POSTED ? dti_values_wait(p) : DT_OK;
    if (!result)
        result = dt_comm_begin(p->comm, &op, &p->work[p->posted % DTI_VALUES_POSTED]);
    p->posted += !result;
    return result;
}

/* What is in a range, rank by rank, whose positions follow each other. */
static dt_result dti_values_post_range(const dti_mesh *mesh, dti_values_posts *p,
                                       dti_mesh_line line, const uint64_t *bounds, dti_bucket range,
                                       float *host) {
    dt_result result = DT_OK;
    uint32_t d = 0;
    for (int root = 0; d < line.count && !result; root++) {
        const uint32_t first = d, rank = dti_mesh_rank(mesh, line.first + d * line.step);
        d += dti_mesh_share(mesh, line, rank).count;
        const dti_bucket piece = dti_bucket_overlap(range, (dti_bucket){bounds[first], bounds[d]});
        if (piece.begin < piece.end)
            result = dti_values_post(p, root, host + piece.begin, dti_bucket_elements(piece));
    }
    return result;
}

static dt_result dti_values_share(dti_parallel *par, dt_comm *comm, dti_mesh_line line,
                                  const uint64_t *bounds, const dti_values_ranges *t, float *host) {
    dti_values_posts p = {.comm = comm};
    dti_bucket range;
    dt_result result = DT_OK;
    for (uint32_t i = 0; !result && dti_values_next_range(t, &i, &range);)
        result = dti_values_post_range(&par->mesh, &p, line, bounds, range, host);
    while (p.ended < p.posted) { /* also after an error: all have to end */
        const dt_result one = dti_values_wait(&p);
        result = result ? result : one;
    }
    return result;
}
