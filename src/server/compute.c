/* A worker's programs by number of rows, its gradient of a batch slice, and a server's sum of
 * pushes. See compute.h. */

/* ---- shares */

/* Rows of a batch slice in a batch of `rows`. */
static uint32_t dti_shares_size(const dti_partition *job, uint32_t batch_slice, uint32_t rows) {
    return dti_partition_row(job, batch_slice + 1, rows) -
           dti_partition_row(job, batch_slice, rows);
}

static uint32_t dti_shares_most(const dti_partition *job) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < job->batch_slices; i++)
        most = DTI_MAX(most, dti_shares_size(job, i, job->batch));
    return most;
}

static dti_share_runs *dti_shares_find(dti_shares *s, uint32_t size, uint32_t rows) {
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->at[i].size == size && s->at[i].rows == rows)
            return &s->at[i];
    }
    return NULL;
}

static dt_result dti_shares_add(dti_parallel *par, dti_shares *s, uint32_t size, uint32_t rows) {
    const dti_partition one = {
        .replicas = 1, .local = 1, .batch_slices = 1, .parts = par->job.parts, .batch = size};
    dti_share_runs *share = &s->at[s->count];
    dti_replica *r = &par->replicas[0];
    if (!rows || dti_shares_find(s, size, rows))
        return DT_OK;
    if (s->count == DTI_SHARES_MAX)
        return dti_fail(par->base, DT_ERROR_INVALID,
                        "batch slices have more than %d different numbers of rows", DTI_SHARES_MAX);
    *share = (dti_share_runs){.size = size, .rows = rows, .runs = &share->own};
    s->count++;
    if (size == par->desc.batch && rows == size) {
        share->runs = &r->full;
        return DT_OK;
    }
    DTI_TRY(dti_runs_make(par->base, &one, 0, rows, &share->own));
    for (uint32_t i = 0; i < share->own.count; i++)
        DTI_TRY(dti_micro_program(par, r, &share->own, i));
    return dti_runs_list_make(par, r, &share->own);
}

static dt_result dti_shares_make(dti_parallel *par, dti_shares *s) {
    for (uint32_t i = 0; i < s->job.batch_slices; i++) {
        const uint32_t size = dti_shares_size(&s->job, i, s->job.batch);
        const uint32_t low = dti_partition_row(&s->job, i, s->job.batch);
        DTI_TRY(dti_shares_add(par, s, size, size));
        if (s->tail > low)
            DTI_TRY(dti_shares_add(par, s, size, DTI_MIN(size, s->tail - low)));
    }
    for (uint32_t i = 0; i < s->count; i++)
        s->weighs = s->weighs || dti_program_weighs(s->at[i].runs->runs[0].program);
    s->weights =
        dti_alloc_array(par->base, (size_t)s->job.batch_slices * DT_MAX_TERMS, sizeof(double));
    DTI_HAVE(s->weights);
    return DT_OK;
}

static void dti_shares_free(dti_parallel *par, dti_shares *s) {
    for (uint32_t k = 0; k < s->count; k++)
        dti_runs_unbuild(par, &s->at[k].own);
    dti_free(par->base, s->weights);
    s->weights = NULL;
    s->count = 0;
}

static void dti_shares_rows(const dti_shares *s, uint32_t batch_slice, uint32_t rows,
                            uint32_t *first, uint32_t *count) {
    *first = s->weighs ? 0 : dti_partition_row(&s->job, batch_slice, rows);
    *count = s->weighs ? rows : dti_shares_size(&s->job, batch_slice, rows);
}

/* Its runs, at the rows that the batch slice has in a batch of `rows`; NULL: it has none. */
static dti_runs *dti_shares_runs(dti_shares *s, uint32_t batch_slice, uint32_t rows) {
    const uint32_t count = dti_shares_size(&s->job, batch_slice, rows);
    const uint32_t full = dti_shares_size(&s->job, batch_slice, s->job.batch);
    const dti_share_runs *share = count ? dti_shares_find(s, full, count) : NULL;
    uint32_t row = dti_partition_row(&s->job, batch_slice, rows);
    if (!share)
        return NULL;
    for (uint32_t i = 0; i < share->runs->count; i++) {
        share->runs->runs[i].row = row;
        row += share->runs->runs[i].rows;
    }
    return share->runs;
}

/* ---- computing */

/* Weighs a batch slice that another worker computes; its weights count in every loss. */
static dt_result dti_shares_weigh(dti_parallel *par, dti_shares *s, uint32_t batch_slice) {
    dti_replica *r = &par->replicas[0];
    double *sum = s->weights + (size_t)batch_slice * DT_MAX_TERMS;
    memset(sum, 0, DT_MAX_TERMS * sizeof *sum);
    r->runs = dti_shares_runs(s, batch_slice, par->now->rows);
    for (uint32_t i = r->runs ? r->runs->count : 0; i-- > 0;) {
        const dti_micro_run *run = &r->runs->runs[i];
        if (dti_program_weighs(run->program))
            DTI_TRY(dti_micro_write(par, run));
        DTI_TRY(dti_micro_weigh(r, run));
    }
    for (uint32_t k = 0; r->runs && k < r->runs->piece_count; k++) {
        for (uint32_t i = 0; i < DT_MAX_TERMS; i++)
            sum[i] += r->weights[k * DT_MAX_TERMS + i];
    }
    return DT_OK;
}

/* The weights of the whole batch, in the tree over its batch slices; this batch slice's last, so
 * its inputs stay. */
static dt_result dti_shares_weigh_all(dti_parallel *par, dti_shares *s, uint32_t batch_slice) {
    dti_replica *r = &par->replicas[0];
    for (uint32_t i = 0; i < s->job.batch_slices; i++)
        if (i != batch_slice)
            DTI_TRY(dti_shares_weigh(par, s, i));
    r->runs = dti_shares_runs(s, batch_slice, par->now->rows);
    const dt_result result = dti_replicas_phase(par, dti_parallel_weigh);
    memcpy(s->weights + (size_t)batch_slice * DT_MAX_TERMS, par->weights.leaves,
           DT_MAX_TERMS * sizeof(double));
    dti_scalar_tree(s->weights, s->job.batch_slices, DT_MAX_TERMS);
    memcpy(par->weights.sum, s->weights, DT_MAX_TERMS * sizeof(double));
    return result;
}

static bool dti_shares_are_finite(const dti_parallel *par) {
    const float *g = par->replicas[0].gradients;
    bool fine = true;
    for (uint32_t b = 0; b < par->bucket_count && fine; b++)
        fine =
            dti_all_finite(g + par->buckets[b].begin, DT_F32, dti_bucket_elements(par->buckets[b]));
    for (uint32_t i = 0; i < 2 * DT_MAX_TERMS; i++)
        fine = fine && dti_finite_f64(par->terms.leaves[i]);
    return fine;
}

/* The op that made it, where one can be found; the step is given up then. */
static dt_result dti_shares_fault(dti_parallel *par) {
    DTI_TRY(dti_search_step(par));
    return dti_fail(
        par->base, DT_ERROR_NUMERIC,
        "step %llu: the gradient of a batch slice is not finite; the weights are unchanged",
        (unsigned long long)par->now->desc.step);
}

static dt_result dti_shares_compute(dti_parallel *par, dti_shares *s, const dti_batch *batch,
                                    uint32_t batch_slice, const dt_step_desc *step,
                                    dti_parallel_result *out) {
    *out = (dti_parallel_result){0};
    if (!dti_shares_runs(s, batch_slice, batch->rows))
        return dti_fail(
            par->base, DT_ERROR_CORRUPT,
            "received a work item for batch slice %u, which has no rows in a batch of %u",
            batch_slice, batch->rows);
    dti_parallel_prepare(par, batch, step);
    dt_result result = dti_shares_weigh_all(par, s, batch_slice);
    const bool computes = !result && !dti_parallel_leaves_out(par, out);
    if (computes)
        result = dti_replicas_phase(par, dti_parallel_forward);
    if (computes && !result)
        result = dti_replicas_phase(par, dti_parallel_backward);
    par->lost = par->lost || result == DT_ERROR_DEVICE_LOST;
    if (computes && !result && !dti_shares_are_finite(par))
        result = dti_shares_fault(par);
    const dti_error_text error = dti_error_of(par);
    dti_parallel_drop_all(par);
    dti_error_back(par, &error);
    return result;
}

/* ---- pushes */

/* The buckets' part in [begin, end), number b. */
static dti_bucket dti_push_piece(const dti_parallel *par, const dti_push_shape *shape, uint32_t b) {
    return dti_bucket_overlap(par->buckets[b], (dti_bucket){shape->begin, shape->end});
}

static dti_push_shape dti_push_shape_of(const dti_parallel *par, uint64_t begin, uint64_t end) {
    dti_push_shape shape = {.begin = begin, .end = end};
    shape.statistics = (uint64_t)par->job.parts * par->statistics.width;
    for (uint32_t b = 0; b < par->bucket_count; b++) {
        const dti_bucket piece = dti_push_piece(par, &shape, b);
        shape.gradient += dti_bucket_elements(piece);
    }
    shape.bytes = sizeof(dti_push_head) + (shape.statistics + shape.gradient) * sizeof(float);
    return shape;
}

static void dti_push_write(const dti_parallel *par, const dti_push_shape *shape, uint64_t version,
                           void *to) {
    dti_push_head *head = to;
    float *at = (float *)(void *)(head + 1);
    head->version = version;
    memcpy(head->terms, par->terms.leaves, sizeof head->terms);
    memcpy(at, par->statistics.pieces, (size_t)shape->statistics * sizeof *at);
    at += shape->statistics;
    for (uint32_t b = 0; b < par->bucket_count; b++) {
        const dti_bucket piece = dti_push_piece(par, shape, b);
        memcpy(at, par->replicas[0].gradients + piece.begin,
               (size_t)dti_bucket_elements(piece) * sizeof *at);
        at += dti_bucket_elements(piece);
    }
}

static bool dti_push_is_finite(const dti_push_shape *shape, const void *push) {
    const dti_push_head *head = push;
    bool fine = dti_all_finite(head + 1, DT_F32, shape->statistics + shape->gradient);
    for (uint32_t i = 0; i < DTI_TERMS_WIDTH; i++)
        fine = fine && dti_finite_f64(head->terms[i]);
    return fine;
}

/* In the tree over batch slices, as replicas of a process add: one bucket after the other. */
static void dti_push_fold(dti_parallel *par, const dti_push_shape *shape, const char *pushes,
                          uint64_t stride) {
    const uint32_t batch_slices = par->job.batch_slices;
    uint64_t at = sizeof(dti_push_head) + shape->statistics * sizeof(float);
    dti_operand operands[DTI_OPERANDS_MAX];
    for (uint32_t b = 0; b < par->bucket_count; b++) {
        const dti_bucket piece = dti_push_piece(par, shape, b);
        const uint64_t n = dti_bucket_elements(piece);
        float *to = par->replicas[0].gradients + piece.begin;
        for (uint32_t i = 0; i < batch_slices; i++)
            operands[i] = (dti_operand){pushes + i * stride + at, DT_F32, {i, 1}};
        if (batch_slices > 1)
            dti_fold(to, operands, batch_slices, n, DT_F32, DT_COMM_SUM, true, 1);
        else
            memcpy(to, operands[0].data, (size_t)n * sizeof *to);
        at += n * sizeof *to;
    }
}

static void dti_push_take(dti_parallel *par, const dti_push_shape *shape, const char *push,
                          uint32_t batch_slice) {
    const dti_push_head *head = (const void *)push;
    memcpy(dti_scalar_leaf(par, &par->terms, batch_slice), head->terms, sizeof head->terms);
    memcpy(dti_statistics_row(&par->statistics, batch_slice * par->job.parts), head + 1,
           (size_t)shape->statistics * sizeof(float));
}

/* Batch slices without rows, which no worker computed. */
static void dti_push_fill(const dti_parallel *par, const dti_push_shape *shape, char *pushes,
                          uint64_t stride, uint32_t rows) {
    for (uint32_t i = 0; i < par->job.batch_slices; i++) {
        if (!dti_shares_size(&par->job, i, rows))
            memset(pushes + i * stride, 0, (size_t)shape->bytes);
    }
}

static uint64_t dti_push_blocks(uint64_t begin, uint64_t end) {
    return (end - begin + DTI_BLOCK - 1) / DTI_BLOCK;
}

/* NaN: not all elements are finite. Squares of finite ones may still overflow. */
static float dti_push_square(const dti_isa_kernels *k, const float *g, uint64_t n) {
    const float sum = k->row_sum_sq(g, (int64_t)n);
    return dti_finite_f32(sum) || dti_all_finite(g, DT_F32, n) ? sum : NAN;
}

/* As a commit measures the norm: block by block, by the device's kernel. */
static void dti_push_measure(dti_parallel *par, const dti_push_shape *shape, char *pushes,
                             uint64_t stride, uint32_t rows, float *squares) {
    const dt_store *s = par->replicas[0].store;
    const dti_isa_kernels *k = dti_cpu_kernels(s->device);
    const dti_code *code = dti_parallel_code(par);
    dti_push_fill(par, shape, pushes, stride, rows);
    memset(squares, 0, dti_push_blocks(shape->begin, shape->end) * sizeof *squares);
    dti_push_fold(par, shape, pushes, stride);
    for (uint32_t i = 0; i < s->layout.param_count; i++) {
        const dti_param *p = &s->layout.params[i];
        for (uint64_t at = 0; at < p->elements && code->trained[i] && !code->update[i];
             at += DTI_BLOCK) {
            const uint64_t from = p->offset + at;
            if (from >= shape->begin && from < shape->end)
                squares[(from - shape->begin) / DTI_BLOCK] =
                    dti_push_square(k, par->replicas[0].gradients + from,
                                    DTI_MIN(p->elements - at, (uint64_t)DTI_BLOCK));
        }
    }
}

/* As a commit does (optim_cpu.c): blocks are added in the arena's order. */
static float dti_push_clip(const float *squares, uint64_t blocks, float limit) {
    double sum = 0.0;
    for (uint64_t i = 0; i < blocks; i++)
        sum += (double)squares[i];
    const float clip = limit / ((float)sqrt(sum) + 1e-6f);
    return clip < 1.0f || !dti_finite_f32(clip) ? clip : 1.0f;
}

static void dti_push_scale(dti_parallel *par, const dti_push_shape *shape, float clip) {
    for (uint32_t b = 0; b < par->bucket_count && clip != 1.0f; b++) {
        const dti_bucket piece = dti_push_piece(par, shape, b);
        for (uint64_t i = piece.begin; i < piece.end; i++)
            par->replicas[0].gradients[i] *= clip;
    }
}

static dt_result dti_push_apply(dti_parallel *par, const dti_push_shape *shape, char *pushes,
                                uint64_t stride, uint32_t rows, float clip,
                                const dt_step_desc *step, dti_parallel_result *out) {
    const dti_batch batch = {.rows = rows, .real = rows};
    *out = (dti_parallel_result){0};
    dti_parallel_prepare(par, &batch, step);
    par->replicas[0].runs = &par->round.none;
    dti_push_fill(par, shape, pushes, stride, rows);
    for (uint32_t i = 0; i < par->job.batch_slices; i++)
        dti_push_take(par, shape, pushes + i * stride, i);
    dti_push_fold(par, shape, pushes, stride);
    dti_push_scale(par, shape, clip);
    return dti_parallel_conclude(par, out);
}
