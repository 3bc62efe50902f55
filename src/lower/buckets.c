/* Buckets: which gradients are finished after which segment, and what a replica's last run sends to
 * the host's side of the gradient arena. A bucket is exchanged as a whole, and in order. */

/* Of a parameter; bucket_count: of none. */
static uint32_t dti_bucket_of(const dti_code *code, uint32_t param) {
    uint32_t from = 0, to = code->bucket_count;
    while (from < to) {
        const uint32_t middle = from + (to - from) / 2;
        if (code->layout->params[param].offset >= code->buckets[middle].end)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* Buckets are exchanged in order: one counts when those before it do. */
static void dti_bucket_advance(dti_lowering *w) {
    while (w->buckets_done < w->code->bucket_count && !w->bucket_left[w->buckets_done])
        w->buckets_done++;
}

/* A gradient is finished. */
static void dti_bucket_count(dti_lowering *w, uint32_t param) {
    uint32_t b = dti_bucket_of(w->code, param);
    if (b == w->code->bucket_count)
        return;
    w->bucket_left[b]--;
    dti_bucket_advance(w);
}

static dt_result dti_pass_buckets(dti_lowering *w) {
    const dti_code *code = w->code;
    for (uint32_t i = 0; i < code->layout->param_count; i++) {
        if (code->trained[i])
            w->bucket_left[dti_bucket_of(code, i)]++;
    }
    dti_bucket_advance(w);
    return DT_OK;
}

/* Finished buckets go to the host, of every slot; what is in slot 0 at the commit comes from it. */
static void dti_segment_exchange(dti_code *code) {
    const dti_shards shards = {.pieces = code->pieces,
                               .piece_count = code->piece_count,
                               .leaves = code->leaves,
                               .before = code->subtrees};
    const uint32_t slots = code->any_part ? 1 : dti_subtrees_after(&shards).count;
    uint32_t done = 0;
    for (uint32_t i = code->forward_segments; i < code->commit_segment; i++) {
        uint64_t from = done < code->bucket_count ? code->buckets[done].begin : 0, to = from;
        if (code->segment_buckets[i] > done)
            to = code->buckets[code->segment_buckets[i] - 1].end;
        done = code->segment_buckets[i];
        code->segments[i].fetch = (dti_fetch){.offset = dti_arena_bytes(from),
                                              .bytes = dti_arena_bytes(to - from),
                                              .stride = dti_arena_bytes(code->layout->elements)};
        code->segments[i].fetch.count = to > from ? slots : 0;
    }
    code->segments[code->commit_segment].put =
        (dti_range){0, dti_arena_bytes(code->layout->elements)};
    code->segments[code->commit_segment].upload = (dti_range){0, DTI_WORD_BYTES * DTI_STEP_WORDS};
}
