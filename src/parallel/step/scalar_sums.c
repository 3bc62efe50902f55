/* Sums of a few doubles over the batch slices of a job: weights, losses, findings. */

/* The tree over `count` leaves, in place: the sum is where the first was. */
static void dti_scalar_tree(double *leaves, uint32_t count, uint32_t width) {
    if (count < 2)
        return;
    const uint32_t left = dti_tree_split(count);
    double *right = leaves + (size_t)left * width;
    dti_scalar_tree(leaves, left, width);
    dti_scalar_tree(right, count - left, width);
    for (uint32_t i = 0; i < width; i++)
        leaves[i] += right[i];
}

static dt_result dti_scalar_sum_begin(dti_parallel *par, dti_scalar_sum *s) {
    const bool alone = !par->desc.comm;
    for (uint32_t k = 0; k < par->subtrees.count; k++) {
        const dt_comm_span span = par->subtrees.at[k];
        double *to = alone ? s->sum : s->spans + (size_t)k * s->width;
        double *leaves = s->leaves + (size_t)(span.first - par->first_batch_slice) * s->width;
        dti_scalar_tree(leaves, span.count, s->width);
        memcpy(to, leaves, s->width * sizeof *to);
    }
    if (alone)
        return DT_OK;
    const dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE,
                           .in = s->spans,
                           .out = s->sum,
                           .count = s->width,
                           .dtype = DT_F64,
                           .tree = true};
    return dti_parallel_comm_failed(par, dt_comm_begin(par->desc.comm, &op, &s->work));
}

static dt_result dti_scalar_sum_end(dti_parallel *par, dti_scalar_sum *s) {
    const dt_comm_work work = s->work;
    if (!par->desc.comm)
        return DT_OK;
    s->work = (dt_comm_work){0}; /* it has ended, so no cleanup may cancel it */
    return dti_parallel_comm_failed(par, dt_comm_wait(par->desc.comm, work, -1));
}

/* Leaves are by batch slice: a grid's ranks have room for all of them. */
static bool dti_scalar_sum_make(dti_parallel *par, dti_scalar_sum *s, uint32_t width) {
    const size_t leaves = dti_grid_is(par) ? par->job.batch_slices : par->batch_slices;
    s->width = width;
    s->leaves = dti_alloc_array(par->base, leaves * width, sizeof(double));
    s->spans = dti_alloc_array(par->base, par->subtrees.count * (size_t)width + 1, sizeof(double));
    s->sum = dti_alloc_array(par->base, width, sizeof(double));
    return s->leaves && s->spans && s->sum;
}

static dt_result dti_scalar_sums_make(dti_parallel *par) {
    return dti_scalar_sum_make(par, &par->weights, DTI_WEIGHTS_WIDTH) &&
                   dti_scalar_sum_make(par, &par->terms, dti_round_terms(par))
               ? DT_OK
               : DT_ERROR_MEMORY;
}

static void dti_scalar_sum_free(dti_parallel *par, dti_scalar_sum *s) {
    DTI_FREE(par->base, s->leaves, s->spans, s->sum);
    *s = (dti_scalar_sum){0};
}

/* Each number is one rank's, so it does not matter in which order they are added. */
static dt_result dti_grid_scalars(dti_parallel *par, dti_scalar_sum *s) {
    const dt_result result =
        dti_ranks_reduce(par, par->desc.comm, s->leaves, (uint64_t)par->job.batch_slices * s->width,
                         DT_F64, DT_COMM_SUM);
    dti_scalar_tree(s->leaves, par->job.batch_slices, s->width);
    memcpy(s->sum, s->leaves, s->width * sizeof *s->sum);
    return result;
}
