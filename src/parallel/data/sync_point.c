/* Values that the pieces of a batch compute together in the middle of a step (lower/sync_points.c).
 * They are SyncBatchNorm's statistics, and the means of its gradient. Each batch slice has a row of
 * the operand, in double. Rows are joined in the tree over batch slices (statistics by Chan, Golub
 * and LeVeque, 1979). So the value depends only on the batch slices, not on the ranks that computed
 * them. Within a process the last replica to arrive lets the first one's thread join. Between
 * processes each sends the rows of its maximal subtrees.
 *
 * Cost of a sync point between N ranks: one all-gather. Each rank sends 8 bytes for each element of
 * the operand and each of its subtrees. It has one subtree if N divides the batch slices. */

static double *dti_sync_point_row(const dti_parallel *par, uint32_t batch_slice) {
    return par->sync_points.rows + (size_t)batch_slice * par->sync_points.width;
}

/* ---- the join */

/* Values of a channel in batch slices [first, first + count). */
static double dti_sync_point_values(const dti_parallel *par, const dti_sync_point *m,
                                    uint32_t first, uint32_t count) {
    const uint32_t rows = dti_partition_row(&par->job, first + count, par->now->rows) -
                          dti_partition_row(&par->job, first, par->now->rows);
    return (double)rows * m->meet.spatial;
}

/* Statistics are (mean, sum of squares around it) here. */
static void dti_sync_point_join(const dti_parallel *par, const dti_sync_point *m, uint32_t first,
                                uint32_t left, uint32_t count) {
    double *a = dti_sync_point_row(par, first), *b = dti_sync_point_row(par, first + left);
    const double na = dti_sync_point_values(par, m, first, left);
    const double nb = dti_sync_point_values(par, m, first + left, count - left);
    for (uint32_t i = 0; i < m->elements && m->meet.kind == DTI_MEET_MEAN; i++)
        a[i] += b[i];
    for (uint32_t i = 0; i < m->elements && m->meet.kind == DTI_MEET_STATS; i += 2) {
        const dti_welford all =
            dti_welford_join((dti_welford){na, a[i], a[i + 1]}, (dti_welford){nb, b[i], b[i + 1]});
        a[i] = all.mean;
        a[i + 1] = all.m2;
    }
}

/* The rank of a batch slice, by the replicas that come first. */
static uint32_t dti_sync_point_rank(const dti_parallel *par, uint32_t batch_slice) {
    const dti_mesh *mesh = &par->mesh;
    uint32_t rank = 0;
    while (rank + 1 < mesh->world &&
           batch_slice >= dti_partition_begin(&par->job, mesh->firsts[rank + 1]))
        rank++;
    return rank;
}

/* The tree over batch slices, in place: where the first was. joined: subtrees of one rank are. */
static void dti_sync_point_tree(const dti_parallel *par, const dti_sync_point *m, uint32_t first,
                                uint32_t count, bool joined) {
    if (count < 2 ||
        (joined && dti_sync_point_rank(par, first) == dti_sync_point_rank(par, first + count - 1)))
        return;
    const uint32_t left = dti_tree_split(count);
    dti_sync_point_tree(par, m, first, left, joined);
    dti_sync_point_tree(par, m, first + left, count - left, joined);
    dti_sync_point_join(par, m, first, left, count);
}

/* ---- between processes */

static dti_subtrees dti_sync_point_subtrees(const dti_parallel *par, uint32_t rank) {
    return dti_mesh_subtrees(par, dti_mesh_along(&par->mesh, DTI_MESH_DATA, 0), rank);
}

/* With ZeRO-2 or 3, others may need some of this rank before they reach the sync point. After a
 * replica's failure they need nothing. */
static dt_result dti_sync_point_wait(dti_parallel *par, dt_comm_work work) {
    dt_comm *comm = par->sync_points.comm;
    dt_result result = DT_OK;
    bool ended = false;
    if (!par->strategy->others_wait)
        return dt_comm_wait(comm, work, -1);
    while (!result && !ended) {
        if (dti_any_failed(par))
            return dt_comm_cancel(comm, work);
        dti_exchange_help(par, 0, false);
        result = dt_comm_test(comm, work, &ended);
        if (!ended)
            dti_thread_yield();
    }
    return result;
}

/* The rows of all ranks' subtrees, each where its first batch slice's is. */
static dt_result dti_sync_point_exchange(dti_parallel *par, const dti_sync_point *m) {
    dti_sync_points *all = &par->sync_points;
    const size_t n = m->elements, each = all->spans * n;
    for (uint32_t k = 0; k < par->subtrees.count; k++)
        memcpy(all->said + k * n, dti_sync_point_row(par, par->subtrees.at[k].first),
               n * sizeof(double));
    const dt_comm_op op = {.kind = DT_COMM_ALL_GATHER,
                           .in = all->said,
                           .out = all->heard,
                           .count = each,
                           .dtype = DT_F64};
    dt_comm_work work;
    dt_result result = dti_parallel_comm_failed(par, dt_comm_begin(all->comm, &op, &work));
    if (!result)
        result = dti_parallel_comm_failed(par, dti_sync_point_wait(par, work));
    for (uint32_t r = 0; r < par->mesh.world && !result; r++) {
        const dti_subtrees s = dti_sync_point_subtrees(par, r);
        for (uint32_t k = 0; k < s.count; k++)
            memcpy(dti_sync_point_row(par, s.at[k].first), all->heard + r * each + k * n,
                   n * sizeof(double));
    }
    return result;
}

/* All replicas of this process have brought their rows. */
static dt_result dti_sync_point_hold(dti_parallel *par, const void *of, bool *given_up) {
    dti_sync_points *all = &par->sync_points;
    const dti_sync_point *m = of;
    for (uint32_t k = 0; k < par->subtrees.count; k++)
        dti_sync_point_tree(par, m, par->subtrees.at[k].first, par->subtrees.at[k].count, false);
    DTI_TRY(all->comm ? dti_sync_point_exchange(par, m) : DT_OK);
    dti_sync_point_tree(par, m, 0, par->job.batch_slices, true);
    const double *row = dti_sync_point_row(par, 0);
    const double values = dti_sync_point_values(par, m, 0, par->job.batch_slices);
    for (uint32_t i = 0; i < m->elements; i++) {
        const bool whole = m->meet.kind == DTI_MEET_STATS && i % 2 == 0; /* a mean */
        all->value[i] = (float)(whole ? row[i] : row[i] / values);
    }
    *given_up = dti_any_failed(par);
    return DT_OK;
}

/* ---- on each replica's thread */

static void dti_sync_point_bring(dti_parallel *par, const dti_sync_point *m,
                                 const dti_micro_run *run) {
    for (uint32_t k = 0; k < run->piece_count; k++) {
        const float *from = dti_program_words(run->program, m->at, k);
        double *to = dti_sync_point_row(par, run->pieces[k].leaf);
        const double n = dti_sync_point_values(par, m, run->pieces[k].leaf, 1);
        for (uint32_t i = 0; i < m->elements && run->pieces[k].rows; i++) {
            const bool squares = m->meet.kind == DTI_MEET_STATS && i % 2;
            to[i] = squares ? (double)from[i] * n : (double)from[i];
        }
        if (!run->pieces[k].rows)
            memset(to, 0, m->elements * sizeof *to);
    }
}

static void dti_sync_point_bring_nothing(dti_parallel *par, const dti_sync_point *m,
                                         uint32_t index) {
    uint32_t first, end;
    dti_partition_batch_slices(&par->job, par->job.first + index, &first, &end);
    for (uint32_t batch_slice = first; batch_slice < end; batch_slice++)
        memset(dti_sync_point_row(par, batch_slice), 0, m->elements * sizeof(double));
}

static dt_result dti_sync_point_make(dti_parallel *par, uint32_t index, uint32_t sync_point,
                                     const dti_micro_run *run, bool *given_up) {
    dti_sync_points *all = &par->sync_points;
    const dti_sync_point *m = &all->list[sync_point];
    if (run) {
        m = &dti_program_code(run->program)->sync_points[sync_point];
        dti_sync_point_bring(par, m, run);
    } else {
        dti_sync_point_bring_nothing(par, m, index);
    }
    const dti_device_meet meet = {.arrived = &all->arrived,
                                  .made = &all->made,
                                  .index = index,
                                  .brings = 1,
                                  .here = par->job.local,
                                  .met = sync_point,
                                  .makes = index == 0,
                                  .make = dti_sync_point_hold,
                                  .of = m};
    const dt_result result = dti_meet_all(par, &meet, given_up);
    if (run && !result && !*given_up)
        memcpy(dti_program_value(run->program, m), all->value, m->elements * sizeof(float));
    return result;
}

static void dti_sync_points_begin(dti_parallel *par) {
    atomic_store(&par->sync_points.arrived, 0);
    atomic_store(&par->sync_points.made, 0);
}

/* ---- making */

static dt_result dti_sync_points_open(dti_parallel *par) {
    dti_sync_points *all = &par->sync_points;
    const dti_code *code = dti_parallel_code(par);
    all->list = code->sync_points;
    all->count = code->sync_point_count;
    all->width = all->spans = 0;
    const uint32_t least =
        par->desc.tail ? DTI_MIN(par->desc.tail, par->desc.batch) : par->desc.batch;
    for (uint32_t i = 0; i < all->count; i++) {
        all->width = DTI_MAX(all->width, all->list[i].elements);
        if ((uint64_t)least * all->list[i].meet.spatial < 2)
            return dti_fail(par->base, DT_ERROR_INVALID,
                            "a batch_norm with .sync has only one value per channel in a batch of "
                            "%u sample; use a larger .batch, or .tail = DT_TAIL_DROP",
                            least);
    }
    for (uint32_t r = 0; r < par->mesh.world; r++)
        all->spans = DTI_MAX(all->spans, dti_sync_point_subtrees(par, r).count);
    if (!all->count)
        return DT_OK;
    const size_t width = all->width, spans = par->desc.comm ? all->spans : 0;
    all->rows = dti_alloc_array(par->base, par->job.batch_slices * width, sizeof(double));
    all->said = dti_alloc_array(par->base, spans * width + 1, sizeof(double));
    all->heard = dti_alloc_array(par->base, par->mesh.world * spans * width + 1, sizeof(double));
    all->value = dti_alloc_array(par->base, width, sizeof(float));
    return all->rows && all->said && all->heard && all->value ? DT_OK : DT_ERROR_MEMORY;
}

/* Kind, elements and place of each: a rank with others would take one value for another. */
static dt_result dti_sync_points_agree(dti_parallel *par) {
    dti_sync_points *all = &par->sync_points;
    dti_text text = dti_text_open(par->base);
    for (uint32_t i = 0; i < all->count; i++)
        dti_text_add(&text, "sync point %u: kind %u of node %u, %u elements\n", i,
                     (unsigned)all->list[i].meet.kind, all->list[i].node, all->list[i].elements);
    dt_result result = dti_agree_result(par, text.ok ? DT_OK : DT_ERROR_MEMORY);
    if (!result && par->desc.comm)
        result = dti_agree_text(par, text.data ? text.data : "", text.size);
    dti_text_free(&text);
    if (result || !par->desc.comm || !all->count || all->comm)
        return result;
    return dti_mesh_line_group(par, (dti_mesh_line){0, 1, dti_mesh_size(&par->mesh)}, &all->comm);
}

static void dti_sync_points_free(dti_parallel *par) {
    dti_sync_points *all = &par->sync_points;
    DTI_FREE(par->base, all->rows, all->said, all->heard, all->value);
    all->rows = all->said = all->heard = NULL;
    all->value = NULL;
}

static void dti_sync_points_close(dti_parallel *par) {
    dt_comm_destroy(par->sync_points.comm);
    par->sync_points.comm = NULL;
}
