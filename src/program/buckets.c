/* Buckets: which gradients are finished after which segment, and what a replica's last run sends to
 * the host's side of the gradient arena. A bucket is exchanged as a whole, and in order. */

/* Of a parameter; bucket_count: of none. */
static uint32_t dti_bucket_of(const dt_program *p, uint32_t param) {
    uint32_t b = 0;
    while (b < p->bucket_count && p->store->params[param].offset >= p->buckets[b].end)
        b++;
    return b;
}

/* Buckets are exchanged in order: one counts when those before it do. */
static void dti_bucket_advance(dti_lowering *w) {
    while (w->buckets_done < w->p->bucket_count && !w->bucket_left[w->buckets_done])
        w->buckets_done++;
}

/* A gradient is finished. */
static void dti_bucket_count(dti_lowering *w, uint32_t param) {
    uint32_t b = dti_bucket_of(w->p, param);
    if (b == w->p->bucket_count)
        return;
    w->bucket_left[b]--;
    dti_bucket_advance(w);
}

static void dti_buckets_begin(dti_lowering *w) {
    const dt_program *p = w->p;
    for (uint32_t i = 0; i < p->store->param_count; i++) {
        if (p->trained[i])
            w->bucket_left[dti_bucket_of(p, i)]++;
    }
    dti_bucket_advance(w);
}

/* Finished buckets go to the host, of every slot; what is in slot 0 at the commit comes from it. */
static void dti_segment_exchange(dt_program *p) {
    const dti_shards shards = {.pieces = p->pieces,
                               .piece_count = p->piece_count,
                               .leaves = p->leaves,
                               .before = p->subtrees};
    const uint32_t slots = p->any_part ? 1 : dti_subtrees_after(&shards).count;
    uint32_t done = 0;
    for (uint32_t i = 1; i < p->commit_segment; i++) {
        uint64_t from = done < p->bucket_count ? p->buckets[done].begin : 0, to = from;
        if (p->segment_buckets[i] > done)
            to = p->buckets[p->segment_buckets[i] - 1].end;
        done = p->segment_buckets[i];
        p->segments[i].fetch = (dti_fetch){.offset = dti_arena_bytes(from),
                                           .bytes = dti_arena_bytes(to - from),
                                           .stride = dti_arena_bytes(p->store->elements)};
        p->segments[i].fetch.count = to > from ? slots : 0;
    }
    p->segments[p->commit_segment].put = (dti_range){0, dti_arena_bytes(p->store->elements)};
    p->segments[p->commit_segment].upload = (dti_range){0, DTI_WORD_BYTES * DTI_STEP_WORDS};
}
