/* Buckets: which gradients are finished after which segment. Also which ones a replica's last run
 * sends to the host's side of the gradient arena. A bucket is exchanged as a whole, and in
 * order. */

/* Of a parameter; bucket_count: of none. */
static uint32_t dti_bucket_of(const dti_code *code, uint32_t param) {
    uint32_t from = 0, to = code->slices.bucket_count;
    while (from < to) {
        const uint32_t middle = from + (to - from) / 2;
        if (code->layout->params[param].offset >= code->slices.buckets[middle].end)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* Buckets are exchanged in order: one counts when those before it do. */
static void dti_bucket_advance(dti_lowering *w) {
    while (w->buckets_done < w->code->slices.bucket_count && !w->bucket_left[w->buckets_done])
        w->buckets_done++;
}

/* A gradient is finished. */
static void dti_bucket_count(dti_lowering *w, uint32_t param) {
    uint32_t b = dti_bucket_of(w->code, param);
    if (b == w->code->slices.bucket_count)
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

/* Where a bucket lies, in every slot. */
static dti_fetch dti_bucket_fetch(const dti_code *code, uint32_t b, uint32_t slots) {
    const bool units = dti_code_has_units(code);
    const uint64_t at = units ? code->unit_gradient[b] : code->slices.buckets[b].begin;
    const uint64_t stride = units ? code->unit_stride : code->layout->elements;
    return (dti_fetch){.offset = dti_arena_bytes(at),
                       .bytes = dti_arena_bytes(dti_bucket_elements(code->slices.buckets[b])),
                       .stride = dti_arena_bytes(stride),
                       .count = slots};
}

/* Finished buckets go to the host, in every slot; the commit reads the host's. */
static dt_result dti_segment_exchange(dti_code *code) {
    const uint32_t slots = code->slices.any_part ? 1 : dti_subtrees_after(&code->slices).count;
    dti_segment *commit = &code->segments[code->commit_segment];
    uint32_t done = 0;
    code->fetches =
        dti_alloc_array(code->base, code->slices.bucket_count + 1u, sizeof *code->fetches);
    DTI_HAVE(code->fetches);
    for (uint32_t b = 0; b < code->slices.bucket_count; b++)
        code->fetches[b] = dti_bucket_fetch(code, b, slots);
    for (uint32_t i = code->forward_segments; i < code->commit_segment; i++) {
        code->segments[i].fetch = code->fetches + done;
        code->segments[i].fetch_count = code->segment_buckets[i] - done;
        done = code->segment_buckets[i];
    }
    if (!code->layout->offload)
        commit->put =
            (dti_range){0, dti_arena_bytes(dti_code_has_units(code) ? code->layout->fixed
                                                                    : code->layout->elements)};
    commit->upload = (dti_range){0, DTI_WORD_BYTES * DTI_STEP_WORDS};
    return DT_OK;
}
