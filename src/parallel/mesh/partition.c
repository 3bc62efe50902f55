/* Batch slices, parts and runs of a job: see partition.h. */

static uint32_t dti_partition_begin(const dti_partition *job, uint32_t replica) {
    return (uint32_t)((uint64_t)replica * job->batch_slices / job->replicas);
}

static void dti_partition_batch_slices(const dti_partition *job, uint32_t replica, uint32_t *first,
                                       uint32_t *end) {
    *first = dti_partition_begin(job, replica);
    *end = dti_partition_begin(job, replica + 1);
}

static uint32_t dti_partition_bound(const dti_partition *job, uint32_t batch_slice) {
    return job->bounds ? job->bounds[batch_slice]
                       : (uint32_t)((uint64_t)batch_slice * job->batch / job->batch_slices);
}

static uint32_t dti_partition_row(const dti_partition *job, uint32_t batch_slice, uint32_t rows) {
    return DTI_MIN(dti_partition_bound(job, batch_slice), rows);
}

static dti_subtrees dti_partition_subtrees(const dti_partition *job, uint32_t first, uint32_t end) {
    dti_subtrees s = {.count = 0};
    for (uint32_t i = first; i < end; i++) {
        dti_subtrees_add(&s, &(dti_piece){.leaf = i, .begins = true});
        while (dti_subtrees_join(&s, job->batch_slices)) {
        }
    }
    return s;
}

static uint32_t dti_partition_piece(const dti_partition *job, uint32_t piece, uint32_t rows) {
    const uint32_t batch_slice = piece / job->parts, part = piece % job->parts;
    const uint64_t low = dti_partition_bound(job, batch_slice),
                   size = dti_partition_bound(job, batch_slice + 1) - low;
    const uint64_t from = DTI_MIN(low + part * size / job->parts, (uint64_t)rows);
    return (uint32_t)(DTI_MIN(low + (part + 1) * size / job->parts, (uint64_t)rows) - from);
}

/* The pieces of a replica: each batch slice's parts, cut where the batch ends. */
static void dti_runs_pieces(const dti_partition *job, uint32_t first, uint32_t end, dti_runs *r) {
    for (uint32_t i = first * job->parts; i < end * job->parts; i++) {
        const uint32_t part = i % job->parts;
        r->pieces[r->piece_count++] = (dti_piece){.rows = dti_partition_piece(job, i, r->rows),
                                                  .leaf = i / job->parts,
                                                  .begins = part == 0,
                                                  .ends = part + 1 == job->parts};
    }
}

/* How many of the remaining pieces one run takes: enough for `parts` runs. A run has whole batch
 * slices or parts of one batch slice, so a sum is of one kind. */
static uint32_t dti_runs_take(const dti_partition *job, uint32_t batch_slices, uint32_t at) {
    const uint32_t parts = job->parts, total = batch_slices * parts;
    if (job->apart)
        return 1;
    if (parts == 1)
        return total;
    if (batch_slices >= parts)
        return DTI_MIN(batch_slices / parts * parts, total - at);
    return DTI_MIN(batch_slices, parts - at % parts);
}

/* Runs without rows make no program. Their pieces, which add zeros, join the next run, or the
 * last. */
static void dti_runs_cut(const dti_partition *job, uint32_t first, uint32_t batch_slices,
                         dti_runs *r) {
    uint32_t begin = 0;
    for (uint32_t at = 0; at < r->piece_count;) {
        at += dti_runs_take(job, batch_slices, at);
        const uint32_t rows = dti_pieces_rows(r->pieces + begin, at - begin);
        dti_micro_run *run = &r->runs[r->count];
        if (!rows && r->count)
            run[-1].piece_count += at - begin;
        if (!rows && !r->count)
            continue;
        if (rows)
            *run = (dti_micro_run){.rows = rows,
                                   .pieces = r->pieces + begin,
                                   .piece_count = at - begin,
                                   .first_piece = first * job->parts + begin,
                                   .micro = r->count++};
        begin = at;
    }
}

static void dti_runs_finish(const dti_partition *job, uint32_t first, uint32_t batch_slices,
                            dti_runs *r) {
    dti_subtrees s = {.count = 0};
    uint32_t row = dti_partition_row(job, first, r->rows);
    r->slots = dti_partition_subtrees(job, first, first + batch_slices).count;
    for (uint32_t i = 0; i < r->count; i++) {
        dti_micro_run *run = &r->runs[i];
        run->row = row;
        row += run->rows;
        run->last = i + 1 == r->count;
        run->before = s;
        run->any_part = batch_slices == 1 && job->parts > 1 && run->piece_count == 1;
        const dti_batch_slices one = {
            run->pieces, run->piece_count, job->batch_slices, s, 0, 0, NULL, 0, 0};
        s = dti_subtrees_after(&one);
        r->slots = DTI_MAX(r->slots, s.count);
    }
}

static dt_result dti_runs_make(dti_base *base, const dti_partition *job, uint32_t replica,
                               uint32_t rows, dti_runs *out) {
    uint32_t first, end;
    dti_partition_batch_slices(job, replica, &first, &end);
    *out = (dti_runs){.rows = rows};
    const size_t most = (size_t)(end - first) * job->parts + 1;
    out->pieces = dti_alloc_array(base, most, sizeof *out->pieces);
    out->runs = dti_alloc_array(base, most, sizeof *out->runs);
    if (!out->pieces || !out->runs) {
        dti_runs_free(base, out);
        return DT_ERROR_MEMORY;
    }
    dti_runs_pieces(job, first, end, out);
    dti_runs_cut(job, first, end - first, out);
    dti_runs_finish(job, first, end - first, out);
    return DT_OK;
}

static void dti_runs_free(dti_base *base, dti_runs *runs) {
    DTI_FREE(base, runs->pieces, runs->runs);
    dti_list_free(base, &runs->list);
    *runs = (dti_runs){0};
}

static dt_result dti_runs_most(dti_base *base, const dti_partition *job, uint32_t rows,
                               uint32_t *most) {
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < job->replicas && !result; i++) {
        dti_runs runs;
        result = dti_runs_make(base, job, i, rows, &runs);
        if (result)
            continue;
        *most = DTI_MAX(*most, runs.count);
        dti_runs_free(base, &runs);
    }
    return result;
}
