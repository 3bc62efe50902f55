/* A grid of tensor groups: what is its own of the commit protocol (protocol.h). The ranks of a
 * tensor group compute the same micro-batches concurrently, with a sync point after each sum
 * (tp_sync.c). Tensor groups compute batch slices of their own, one after the other; gradients are
 * summed over batch slices, tensor rank by tensor rank. Each device has a thread, which computes
 * its tensor ranks alternately: a segment of each, up to a sync point.
 *
 * Cost besides sync points: three small all-reduces of all ranks: errors and weights, pairs of
 * blocks, losses and findings. With several tensor groups on several ranks, one of a tensor rank's
 * gradients. */

static const dti_runs *dti_tp_runs_now(const dti_tp *tp, uint32_t m) {
    return &dti_tp_group_of(tp, m)->runs[tp->tail];
}

/* Its program has a single micro-batch slot, because other tensor ranks read operands from it. */
static dt_program *dti_tp_of(const dti_tp *tp, uint32_t m, uint32_t micro) {
    return tp->ranks[m].runs[tp->tail][micro];
}

/* The program whose step commits: of a tensor group without rows one of full batches. */
static dt_program *dti_tp_last(const dti_tp *tp, uint32_t m) {
    const dti_tp_rank *tp_rank = &tp->ranks[m];
    const uint32_t tail = dti_tp_runs_now(tp, m)->count ? tp->tail : 0;
    return tp_rank->runs[tail][tp->groups[tp_rank->group].runs[tail].count - 1];
}

static void dti_tp_ended(dti_tp *tp, uint32_t m, dt_result result) {
    tp->ranks[m].result = result;
    if (result)
        atomic_store(&tp->failed, true);
}

/* ---- inputs and weights */

static dt_result dti_tp_write(const dti_parallel *par, uint32_t m, uint32_t micro, dt_program *p) {
    const dti_micro_run *run = &dti_tp_runs_now(par->tp, m)->runs[micro];
    return dti_batch_write(par->batch, run->row, run->rows, p, par->tp->stands, false);
}

static double *dti_tp_leaf(const dti_parallel *par, const dti_scalar_sum *s, uint32_t m,
                           uint32_t micro) {
    const dti_micro_run *run = &dti_tp_runs_now(par->tp, m)->runs[micro];
    return s->leaves + (size_t)run->pieces[0].leaf * s->width;
}

/* Targets, and so weights and labels, are the same for all of a tensor group: its first tells
 * them. */
static void dti_tp_weigh(void *arg, uint32_t m) {
    dti_parallel *par = arg;
    dti_tp *tp = par->tp;
    dt_result result = DT_OK;
    const uint32_t count = tp->ranks[m].number ? 0 : dti_tp_runs_now(tp, m)->count;
    for (uint32_t i = 0; i < count && !result; i++) {
        dt_program *p = dti_tp_of(tp, m, i);
        double weights[DT_MAX_TERMS] = {0}, *leaf = dti_tp_leaf(par, &par->weights, m, i);
        if (dti_program_weighs(p) || dti_program_labels(p))
            result = dti_tp_write(par, m, i, p);
        if (!result)
            result = dti_program_weigh(p, weights);
        for (uint32_t k = 0; k < DT_MAX_TERMS; k++)
            leaf[k] += weights[k];
    }
    dti_tp_ended(tp, m, result);
}

/* All of a micro-batch, and the sync points between them. */
static dt_result dti_tp_segments(dti_parallel *par, dt_comm_span tp_ranks, uint32_t micro,
                                 bool *go_on) {
    dti_tp_rank *first = &par->tp->ranks[tp_ranks.first];
    dt_program *programs[DTI_TP_MAX];
    for (uint32_t k = 0; k < tp_ranks.count; k++)
        programs[k] = dti_tp_of(par->tp, tp_ranks.first + k, micro);
    dti_tp_run run = {.place = &dti_tp_group_of(par->tp, tp_ranks.first)->place,
                      .number = first->number,
                      .count = tp_ranks.count,
                      .programs = programs,
                      .end = dti_program_forward(programs[0])};
    const uint64_t start = dti_now_ns();
    dt_result result = dti_tp_run_to(par, &run, &first->met, go_on);
    const uint64_t turned = dti_now_ns();
    run.from = run.end;
    run.end = dti_program_segments(programs[0]);
    if (!result && *go_on)
        result = dti_tp_run_to(par, &run, &first->met, go_on);
    if (tp_ranks.first == 0) {
        par->times.forward += turned - start;
        par->times.backward += dti_now_ns() - turned;
    }
    return result;
}

/* ---- a micro-batch */

/* Of its first tensor rank: all of a tensor group have the same. */
static void dti_tp_terms(dti_parallel *par, uint32_t m, uint32_t micro, const dt_program *p) {
    const dti_code *code = dti_program_code(p);
    double *leaf = dti_tp_leaf(par, &par->terms, m, micro);
    for (uint32_t i = 0; i < code->loss_count + code->metric_count; i++) {
        const uint32_t at = i < code->loss_count ? i : DTI_TERMS_METRIC + i - code->loss_count;
        double pair[2];
        dti_program_term(p, i, 0, pair);
        leaf[at] += pair[0];
        leaf[at + DTI_TERMS_WEIGHT] += pair[1];
    }
    dti_statistics_take(&par->tp->statistics, &dti_tp_runs_now(par->tp, m)->runs[micro], p);
}

/* Its gradients are there: of the last of a batch slice, the batch slice's. */
static dt_result dti_tp_over(dti_parallel *par, uint32_t m, uint32_t micro, dt_program *p) {
    dti_tp *tp = par->tp;
    const dti_runs *runs = dti_tp_runs_now(tp, m);
    const uint32_t batch_slice = runs->runs[micro].pieces[0].leaf;
    const bool last = micro + 1 == runs->count;
    if (!last)
        dti_micro_slot_end(p);
    if (!last && runs->runs[micro + 1].pieces[0].leaf == batch_slice)
        return DT_OK;
    return dti_batch_slice_pushed(par, &tp->ranks[m].sum, batch_slice, last);
}

static dt_result dti_tp_micro_begin(dti_parallel *par, uint32_t m, uint32_t micro) {
    dt_program *p = dti_tp_of(par->tp, m, micro);
    dt_step_desc step = par->step;
    dti_grid_number(dti_tp_runs_now(par->tp, m), micro, &step);
    dt_result result = dti_tp_write(par, m, micro, p);
    return result ? result : dti_micro_slot_begin(p, &step, par->weights.sum);
}

static dt_result dti_tp_micro(dti_parallel *par, dt_comm_span tp_ranks, uint32_t micro,
                              bool *go_on) {
    dti_tp *tp = par->tp;
    dt_result result = DT_OK;
    /* operands take the place of those of the micro-batch before */
    if (!dti_tp_left(par, &dti_tp_group_of(tp, tp_ranks.first)->place,
                     tp->ranks[tp_ranks.first].met)) {
        *go_on = false;
        return DT_OK;
    }
    for (uint32_t k = 0; k < tp_ranks.count && !result; k++)
        result = dti_tp_micro_begin(par, tp_ranks.first + k, micro);
    if (!result)
        result = dti_tp_segments(par, tp_ranks, micro, go_on);
    if (result || !*go_on)
        return result;
    for (uint32_t m = tp_ranks.first; m < tp_ranks.first + tp_ranks.count && !result; m++) {
        dt_program *p = dti_tp_of(tp, m, micro);
        if (tp->ranks[m].number == 0)
            dti_tp_terms(par, m, micro, p);
        result = dti_tp_over(par, m, micro, p);
    }
    return result;
}

/* All batch slices' gradients are there: the last of a number's tensor ranks here adds them up. */
static void dti_tp_sum_ready(dti_tp *tp, uint32_t m) {
    const uint32_t number = tp->ranks[m].number;
    const dt_comm_span tp_groups = dti_tp_groups_of(tp, number);
    dti_batch_slice_sum *sum = &tp->sums[number];
    dti_batch_slice_stack *of[DTI_REPLICAS_MAX];
    if (!sum->on || atomic_fetch_add(&sum->ready, 1) + 1 < tp_groups.count)
        return;
    for (uint32_t i = 0; i < tp_groups.count; i++)
        of[i] = &dti_tp_rank_of(tp, &tp->groups[tp_groups.first + i], number)->sum;
    dti_batch_slice_fold(sum, of, tp_groups.count);
}

/* All micro-batches of a device's tensor ranks. */
static void dti_tp_compute(void *arg, uint32_t device) {
    dti_parallel *par = arg;
    dti_tp *tp = par->tp;
    const dt_comm_span tp_ranks = {device * tp->each, tp->each};
    const uint32_t count = dti_tp_runs_now(tp, tp_ranks.first)->count;
    bool go_on = true;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < count && !result && go_on; i++)
        result = dti_tp_micro(par, tp_ranks, i, &go_on);
    for (uint32_t k = 0; k < tp_ranks.count && !count && !result; k++)
        result = dti_batch_slice_pushed_none(par, &tp->ranks[tp_ranks.first + k].sum);
    for (uint32_t k = 0; k < tp_ranks.count && go_on && !result; k++)
        dti_tp_sum_ready(tp, tp_ranks.first + k);
    dti_tp_ended(tp, tp_ranks.first, result); /* they have one context, and so one text */
}

/* ---- sums over tensor groups */

static dt_result dti_tp_sum_all(dti_parallel *par) {
    dti_tp *tp = par->tp;
    dt_result result = DT_OK;
    for (uint32_t k = 0; k < tp->size && !result; k++) {
        if (tp->sums[k].comm)
            result = dti_parallel_comm_failed(par, dti_batch_slice_sum_post(&tp->sums[k]));
    }
    for (uint32_t k = 0; k < tp->size && !result; k++)
        result = dti_batch_slice_sum_end(par, &tp->sums[k]);
    return result;
}

/* Of pieces of the whole job. */
static dt_result dti_tp_statistics(dti_parallel *par) {
    dti_statistics *s = &par->tp->statistics;
    const uint64_t pieces = (uint64_t)par->job.batch_slices * par->job.parts;
    dt_result result = DT_OK;
    if (!s->width)
        return DT_OK;
    if (par->desc.comm)
        result = dti_parallel_comm_failed(par, dt_comm_all_reduce(par->desc.comm, s->pieces,
                                                                  s->pieces, pieces * s->width,
                                                                  DT_F32, DT_COMM_SUM));
    if (!result)
        dti_statistics_move(s, &par->job, par->rows);
    return result;
}

/* The sum and the buffers to its arena, and the pairs of the gradient's blocks. */
static void dti_tp_norm(void *arg, uint32_t m) {
    dti_parallel *par = arg;
    dti_tp *tp = par->tp;
    dti_tp_rank *tp_rank = &tp->ranks[m];
    dt_program *p = dti_tp_last(tp, m);
    dt_result result = dti_batch_slice_sum_put(&tp->sums[tp_rank->number], tp_rank->store);
    if (!result)
        result = dti_statistics_write(&tp->statistics, tp_rank->store);
    if (!result && !dti_tp_runs_now(tp, m)->count) {
        result = dti_program_begin_commit(p, &par->step);
        p->store->running = NULL;
    }
    if (!result)
        result = dti_micro_slot_run(p, 1);
    dti_tp_ended(tp, m, result);
}

/* ---- the update */

/* Pairs of each number's blocks to `pairs`: the first tensor group's, so that all have the same
 * numbers; others' are zeros, and as whole numbers their sum has all bits. */
static dt_result dti_tp_pairs(dti_parallel *par) {
    const dti_tp *tp = par->tp;
    const size_t each = 2 * (size_t)tp->entries;
    memset(tp->pairs, 0, each * tp->size * sizeof *tp->pairs);
    for (uint32_t m = 0; m < tp->local; m++) {
        if (dti_tp_group_of(tp, m)->replica == 0)
            memcpy(tp->pairs + tp->ranks[m].number * each, dti_micro_slot_pairs(dti_tp_last(tp, m)),
                   each * sizeof *tp->pairs);
    }
    if (!par->desc.comm)
        return DT_OK;
    return dti_parallel_comm_failed(par, dt_comm_all_reduce(par->desc.comm, tp->pairs, tp->pairs,
                                                            each * tp->size, DT_I32, DT_COMM_SUM));
}

/* In the order of the first one's table; of parts, tensor rank by tensor rank. */
static void dti_tp_pairs_take(const dti_parallel *par, uint32_t to) {
    const dti_tp *tp = par->tp;
    float *all = dti_micro_slot_pairs_of_all(dti_tp_last(tp, to));
    uint32_t at = 0; /* in each tensor rank's table */
    for (int buffers = 0; buffers < 2; buffers++) {
        for (uint32_t i = tp->code->layout->param_count; i-- > 0;) {
            const uint32_t blocks = dti_tp_blocks(tp, i, buffers);
            const uint32_t count = tp->parts[i].of.axis >= 0 ? tp->size : 1;
            for (uint32_t m = 0; m < count; m++, all += 2 * (size_t)blocks)
                memcpy(all, tp->pairs + 2 * ((size_t)m * tp->entries + at),
                       2 * blocks * sizeof *all);
            at += blocks;
        }
    }
}

static void dti_tp_validate(void *arg, uint32_t m) {
    dti_parallel *par = arg;
    dti_tp_rank *tp_rank = &par->tp->ranks[m];
    dt_program *p = dti_tp_last(par->tp, m);
    dti_tp_pairs_take(par, m);
    tp_rank->result = dti_micro_slot_run(p, 1);
    if (tp_rank->result)
        return;
    const uint32_t *status = dti_program_out(p);
    tp_rank->norm = (double)dti_status_f32(status, DTI_STATUS_NORM);
    if (status[DTI_STATUS_ABORT])
        atomic_store(&par->faulty, true);
}

static void dti_tp_commit(void *arg, uint32_t m) {
    dti_parallel *par = arg;
    par->tp->ranks[m].result = dti_program_commit(dti_tp_last(par->tp, m));
}

/* ---- the step */

/* A comm that failed has said so already. */
static dt_result dti_tp_result(dti_parallel *par) {
    const dti_tp *tp = par->tp;
    for (uint32_t m = 0; m < tp->local; m++) {
        const dt_result result = tp->ranks[m].result;
        if (result)
            return par->lost ? result
                             : dti_fail(par->base, result, "tensor rank %u: %s", tp->first + m,
                                        dti_ctx_base(tp->ranks[m].ctx)->error);
    }
    return DT_OK;
}

/* A device's tensor ranks, one after the other. */
static void dti_tp_alternate(void *arg, uint32_t device) {
    dti_parallel *par = arg;
    const uint32_t each = par->tp->each;
    for (uint32_t m = device * each; m < (device + 1) * each; m++)
        par->tp->phase(par, m);
}

static void dti_tp_team(dti_parallel *par, dti_device_team_fn *fn) {
    par->tp->phase = fn;
    dti_device_team_run(par->tp->device_team, dti_tp_alternate, par);
}

static dt_result dti_tp_run_all(dti_parallel *par) {
    for (uint32_t m = 0; m < par->tp->local; m++)
        par->tp->ranks[m].result = DT_OK;
    dti_device_team_run(par->tp->device_team, dti_tp_compute, par);
    const dt_result result = dti_tp_result(par);
    return result ? result : dti_tp_sum_all(par);
}

static void dti_tp_prepare(dti_parallel *par) {
    dti_tp *tp = par->tp;
    const size_t pieces = (size_t)par->job.batch_slices * par->job.parts;
    tp->tail = par->rows != par->desc.batch && par->desc.tail;
    memset(tp->statistics.pieces, 0, pieces * tp->statistics.width * sizeof(float));
    for (uint32_t i = 0; i < tp->group_count; i++)
        dti_tp_place_begin(&tp->groups[i].place);
    for (uint32_t k = 0; k < tp->size; k++)
        dti_batch_slice_sum_begin(&tp->sums[k]);
    for (uint32_t m = 0; m < tp->local; m++) {
        tp->ranks[m].met = 0;
        dti_batch_slice_stack_begin(&tp->ranks[m].sum);
    }
    atomic_store(&tp->failed, false);
    atomic_store(&tp->speaking, false);
}

static void dti_tp_report(dti_parallel *par, dti_parallel_result *out) {
    par->replicas[0].store->steps = par->tp->ranks[0].store->steps;
    out->norm = par->tp->ranks[0].norm;
}

/* ---- a step that is not made */

static void dti_tp_drop(dti_parallel *par) {
    const dti_tp *tp = par->tp;
    for (uint32_t m = 0; m < tp->local; m++) {
        for (uint32_t i = 0; i < dti_tp_runs_now(tp, m)->count; i++)
            dti_micro_slot_end(dti_tp_of(tp, m, i));
        dti_micro_slot_end(dti_tp_last(tp, m));
    }
}

/* Whether a tensor rank finds the op or the parameter: it ran with the others' sums. */
static dt_result dti_tp_attribute_one(dti_parallel *par, uint32_t m) {
    dt_report report = {0};
    dt_program *p = dti_tp_last(par->tp, m);
    if (!dti_tp_runs_now(par->tp, m)->count) {
        if (!dti_program_attribute(p, false))
            return DT_OK;
        return dti_fail(par->base, DT_ERROR_NUMERIC, "%s", p->base->error);
    }
    const dt_result found = dti_step_fault(p, &report, dti_program_segments(p));
    return report.fault_op ? dti_fail(par->base, found, "%s", p->base->error) : DT_OK;
}

/* The first tensor rank that finds it is quoted. */
static dt_result dti_tp_attribute(dti_parallel *par) {
    dt_result result = DT_OK;
    for (uint32_t m = 0; m < par->tp->local && !result; m++)
        result = dti_tp_attribute_one(par, m);
    return result;
}

static const char *dti_tp_statistic(const dti_parallel *par) {
    return dti_statistics_fault(&par->tp->statistics, par->tp->ranks[0].graph);
}

static dt_result dti_tp_load(dti_parallel *par) {
    return dti_statistics_load(&par->tp->statistics, par->tp->ranks[0].store);
}

/* Others wait for what never comes: the operation that they are in, or come to, is given up. */
static void dti_tp_leave(dti_parallel *par) {
    dti_comm_give_up(par->desc.comm);
    for (uint32_t k = 0; k < par->tp->size; k++) {
        dti_batch_slice_sum *sum = &par->tp->sums[k];
        if (sum->work.id)
            dt_comm_cancel(sum->comm, sum->work);
        sum->work.id = 0;
    }
    par->lost = true;
}

static const dti_strategy dti_tp_strategy = {.others_wait = true,
                                             .split = true,
                                             .prepare = dti_tp_prepare,
                                             .team = dti_tp_team,
                                             .result = dti_tp_result,
                                             .weigh = dti_tp_weigh,
                                             .run = dti_tp_run_all,
                                             .statistics = dti_tp_statistics,
                                             .norm = dti_tp_norm,
                                             .pairs = dti_tp_pairs,
                                             .validate = dti_tp_validate,
                                             .write = dti_tp_commit,
                                             .report = dti_tp_report,
                                             .statistic = dti_tp_statistic,
                                             .attribute = dti_tp_attribute,
                                             .load = dti_tp_load,
                                             .drop = dti_tp_drop,
                                             .leave = dti_tp_leave,
                                             .parts = "tensor ranks"};
