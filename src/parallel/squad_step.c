/* A step of a squad. Members compute the same micro-batches beside each other and meet behind each
 * sum: all wait for all, then each adds up everybody's operands, which lie on the host, in one tree
 * over members; between ranks the first of a process does, and speaks. So all have the same bits,
 * whoever is on which rank, and nothing else goes between them.
 *
 * Cost of a meeting of n elements: each member reads n elements of each of its process, and writes
 * n; between ranks an all-reduce of n. A step has three small ones besides: what failed, pairs of
 * blocks, verdicts. */

#define DTI_SQUAD_SLICE 16384 /* elements that are added up at a time */

static const dti_runs *dti_squad_runs_now(const dti_parallel *par) {
    const dti_replica *r = &par->replicas[0];
    return par->squad->tail ? &r->tail : &r->full;
}

/* Its one lane has been its turn since it was made: other members read operands of it. */
static dt_program *dti_squad_of(const dti_parallel *par, uint32_t m, uint32_t micro) {
    return par->squad->members[m].runs[par->squad->tail][micro];
}

static dt_program *dti_squad_last(const dti_parallel *par, uint32_t m) {
    return par->squad->members[m].runs[par->squad->tail][dti_squad_runs_now(par)->count - 1];
}

/* ---- inputs and weights */

static dt_result dti_squad_write(const dti_parallel *par, uint32_t m, uint32_t micro,
                                 dt_program *p) {
    const dti_micro_run *run = &dti_squad_runs_now(par)->runs[micro];
    const dti_batch *batch = par->batch;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < par->columns && !result; i++) {
        const size_t size = par->input_bytes[i];
        const char *data = batch->values[i];
        const dt_tensor input = {par->squad->members[m].graph,
                                 par->squad->stands[par->inputs[i].id]};
        const uint32_t at = run->row - batch->first;
        if (dti_code_port(dti_program_code(p), input.id, false, false))
            result = dti_program_write_rows(p, input, data + at * size, run->rows * size,
                                            batch->sources + at);
    }
    return result;
}

/* Targets, and so weights and labels, are the same for all. */
static dt_result dti_squad_weigh(dti_parallel *par) {
    dti_squad *squad = par->squad;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < dti_squad_runs_now(par)->count && !result; i++) {
        dt_program *p = dti_squad_of(par, 0, i);
        if (dti_program_weighs(p) || dti_program_labels(p))
            result = dti_squad_write(par, 0, i, p);
        if (!result)
            result = dti_program_weigh(p, squad->weights);
    }
    return result && squad->members[0].store->base->error[0]
               ? dti_fail(par->base, result, "%s", squad->members[0].store->base->error)
               : result;
}

/* ---- meetings */

static bool dti_squad_await(dti_squad *squad, _Atomic uint32_t *counter, uint32_t there) {
    while (atomic_load(counter) < there) {
        if (atomic_load(&squad->failed))
            return false;
        dti_thread_yield();
    }
    return true;
}

/* What members `span`, of this process, have, to `to`. */
static void dti_squad_fold(const dti_parallel *par, uint32_t micro, uint32_t meeting,
                           dt_comm_span span, uint32_t elements, float *to) {
    const dti_squad *squad = par->squad;
    for (uint32_t from = 0; from < elements; from += DTI_SQUAD_SLICE) {
        dti_operand operands[DTI_SQUAD_MAX];
        for (uint32_t k = 0; k < span.count; k++) {
            const uint32_t m = span.first + k;
            const dt_program *p = squad->members[m - squad->first].runs[squad->tail][micro];
            const float *data = dti_program_operand(p, &dti_program_code(p)->meetings[meeting], 0);
            operands[k] = (dti_operand){data + from, DT_F32, {m, 1}};
        }
        const uint64_t n = DTI_MIN(elements - from, (uint32_t)DTI_SQUAD_SLICE);
        dti_fold(to + from, operands, span.count, n, DT_F32, DT_COMM_SUM, !par->desc.comm, 1);
    }
}

/* The sum over all ranks' members to `heard`, by one tree. */
static dt_result dti_squad_reduce(dti_parallel *par, uint32_t micro, uint32_t meeting,
                                  uint32_t elements) {
    const dti_squad *squad = par->squad;
    for (uint32_t k = 0; k < squad->subtrees.count; k++)
        dti_squad_fold(par, micro, meeting, squad->subtrees.at[k], elements,
                       squad->said + (size_t)k * elements);
    const dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE,
                           .in = squad->said,
                           .out = squad->heard,
                           .count = elements,
                           .dtype = DT_F32,
                           .tree = true};
    return dti_parallel_comm_failed(par, dt_comm_run(par->desc.comm, &op));
}

/* The value of a meeting, number `number` of the step, to where the member finds it. Members of
 * this process wait for each other. *go_on: false where another one failed. */
static dt_result dti_squad_meet(dti_parallel *par, uint32_t m, uint32_t micro, uint32_t meeting,
                                uint32_t number, bool *go_on) {
    dti_squad *squad = par->squad;
    const dt_program *own = squad->members[m].runs[squad->tail][micro];
    const dti_meeting *at = &dti_program_code(own)->meetings[meeting];
    const dt_comm_span all = {squad->first, squad->local};
    const bool apart = par->desc.comm != NULL;
    float *to = dti_program_value(own, at);
    dt_result result = DT_OK;
    atomic_fetch_add(&squad->arrived, 1);
    *go_on = dti_squad_await(squad, &squad->arrived, (number + 1) * squad->local);
    if (*go_on && apart && m == 0) {
        result = dti_squad_reduce(par, micro, meeting, at->elements);
        atomic_fetch_add(&squad->summed, result ? 0 : 1);
    } else if (*go_on && apart) {
        *go_on = dti_squad_await(squad, &squad->summed, number + 1);
    }
    if (*go_on && !result && apart)
        memcpy(to, squad->heard, at->elements * sizeof *to);
    else if (*go_on && !result)
        dti_squad_fold(par, micro, meeting, all, at->elements, to);
    atomic_fetch_add(&squad->left, 1);
    return result;
}

/* All of a micro-batch, and the meetings between them. */
static dt_result dti_squad_segments(dti_parallel *par, uint32_t m, uint32_t micro, bool *go_on) {
    dt_program *p = dti_squad_of(par, m, micro);
    const dti_code *code = dti_program_code(p);
    uint32_t met = 0;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < dti_program_segments(p) && !result && *go_on; i++) {
        result = dti_lane_run(p, 1);
        if (result || met == code->meeting_count || code->meetings[met].segment != i)
            continue;
        const uint32_t number = micro * code->meeting_count + met;
        result = dti_squad_meet(par, m, micro, met++, number, go_on);
    }
    return result;
}

/* ---- a micro-batch */

static void dti_squad_terms(dti_squad *squad, const dt_program *p) {
    const dti_code *code = dti_program_code(p);
    for (uint32_t i = 0; i < code->loss_count + code->metric_count; i++) {
        const uint32_t at = i < code->loss_count ? i : DTI_TERMS_METRIC + i - code->loss_count;
        double pair[2];
        dti_program_term(p, i, 0, pair);
        squad->terms[at] += pair[0];
        squad->terms[at + DTI_TERMS_WEIGHT] += pair[1];
    }
}

static dt_result dti_squad_micro(dti_parallel *par, uint32_t m, uint32_t micro, bool *go_on) {
    dti_squad *squad = par->squad;
    const dti_runs *runs = dti_squad_runs_now(par);
    dt_program *p = dti_squad_of(par, m, micro);
    const uint32_t met = micro * dti_program_code(p)->meeting_count * squad->local;
    dt_step_desc step = par->step;
    step.first_row = runs->runs[micro].row;
    step.micro = micro;
    step.micros = runs->count;
    *go_on =
        dti_squad_await(squad, &squad->left, met); /* nobody reads operands of the one before */
    if (!*go_on)
        return DT_OK;
    dt_result result = dti_squad_write(par, m, micro, p);
    if (!result)
        result = dti_lane_begin(p, &step, squad->weights);
    if (!result)
        result = dti_squad_segments(par, m, micro, go_on);
    if (result || !*go_on)
        return result;
    if (m == 0)
        dti_squad_terms(squad, p);
    dti_statistics_take(&squad->members[m].statistics, &runs->runs[micro], p);
    if (micro + 1 < runs->count)
        dti_lane_end(p);
    return DT_OK;
}

/* A buffer's new value lies where its gradient would. */
static dt_result dti_squad_statistics(dti_parallel *par, dti_squad_member *member) {
    dti_statistics *s = &member->statistics;
    dt_store *store = member->store;
    dti_statistics_move(s, &par->job, par->rows);
    const float *value = s->buffers;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < s->count && !result; value += s->stats[i].channels, i++)
        result = store->device->backend->memory_write(
            store->memories[DTI_ARENA_GRADIENT],
            dti_arena_bytes(store->layout.params[s->stats[i].param].offset), value,
            dti_arena_bytes(s->stats[i].channels));
    return result;
}

/* All micro-batches, and the pairs of the gradient's blocks. */
static void dti_squad_compute(void *arg, uint32_t m) {
    dti_parallel *par = arg;
    dti_squad *squad = par->squad;
    dti_squad_member *member = &squad->members[m];
    bool go_on = true;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < dti_squad_runs_now(par)->count && !result && go_on; i++)
        result = dti_squad_micro(par, m, i, &go_on);
    if (!result && go_on)
        result = dti_squad_statistics(par, member);
    if (!result && go_on)
        result = dti_lane_run(dti_squad_last(par, m), 1);
    member->result = result;
    if (result)
        atomic_store(&squad->failed, true);
}

/* ---- the update */

/* Everybody's pairs to `pairs`: of members elsewhere zeros are added to. */
static dt_result dti_squad_pairs(dti_parallel *par) {
    const dti_squad *squad = par->squad;
    const size_t each = 2 * (size_t)squad->entries;
    memset(squad->pairs, 0, each * squad->size * sizeof *squad->pairs);
    for (uint32_t m = 0; m < squad->local; m++)
        memcpy(squad->pairs + (squad->first + m) * each, dti_lane_pairs(dti_squad_last(par, m)),
               each * sizeof *squad->pairs);
    if (!par->desc.comm)
        return DT_OK;
    return dti_parallel_comm_failed(par,
                                    dt_comm_all_reduce(par->desc.comm, squad->pairs, squad->pairs,
                                                       each * squad->size, DT_F32, DT_COMM_SUM));
}

/* In the order of the first one's table; of parts, member by member. */
static void dti_squad_pairs_take(const dti_parallel *par, uint32_t to) {
    const dti_squad *squad = par->squad;
    float *all = dti_lane_pairs_of_all(dti_squad_last(par, to));
    uint32_t at = 0; /* in each member's table */
    for (int buffers = 0; buffers < 2; buffers++) {
        for (uint32_t i = squad->code->layout->param_count; i-- > 0;) {
            const uint32_t blocks = dti_squad_blocks(par, i, buffers);
            const uint32_t count = squad->parts[i].of.axis >= 0 ? squad->size : 1;
            for (uint32_t m = 0; m < count; m++, all += 2 * (size_t)blocks)
                memcpy(all, squad->pairs + 2 * ((size_t)m * squad->entries + at),
                       2 * blocks * sizeof *all);
            at += blocks;
        }
    }
}

static void dti_squad_judge(void *arg, uint32_t m) {
    dti_parallel *par = arg;
    dti_squad_member *member = &par->squad->members[m];
    dt_program *p = dti_squad_last(par, m);
    dti_squad_pairs_take(par, m);
    member->result = dti_lane_run(p, 1);
    if (member->result)
        return;
    const uint32_t *status = dti_program_out(p);
    if (m == 0)
        par->squad->norm = (double)dti_status_f32(status, DTI_STATUS_NORM);
    member->faulty = status[DTI_STATUS_ABORT] != 0;
}

static void dti_squad_commit(void *arg, uint32_t m) {
    dti_parallel *par = arg;
    par->squad->members[m].result = dti_program_commit(dti_squad_last(par, m));
}

/* ---- the step */

/* A comm that failed has said so already. */
static dt_result dti_squad_result(dti_parallel *par) {
    const dti_squad *squad = par->squad;
    for (uint32_t m = 0; m < squad->local; m++) {
        const dt_result result = squad->members[m].result;
        if (result)
            return par->lost ? result
                             : dti_fail(par->base, result, "member %u: %s", squad->first + m,
                                        dti_ctx_base(squad->members[m].ctx)->error);
    }
    return DT_OK;
}

static dt_result dti_squad_phase(dti_parallel *par, dti_crew_fn *fn) {
    dti_crew_run(par->squad->crew, fn, par);
    return dti_squad_result(par);
}

static void dti_squad_prepare(dti_parallel *par, const dti_batch *batch, const dt_step_desc *step) {
    dti_squad *squad = par->squad;
    par->batch = batch;
    par->rows = batch->rows;
    par->step = *step;
    squad->tail = batch->rows != par->replicas[0].full.rows;
    memset(squad->weights, 0, sizeof squad->weights);
    memset(squad->terms, 0, sizeof squad->terms);
    atomic_store(&squad->arrived, 0);
    atomic_store(&squad->left, 0);
    atomic_store(&squad->summed, 0);
    atomic_store(&squad->failed, false);
    for (uint32_t m = 0; m < squad->local; m++)
        squad->members[m].result = DT_OK;
}

static void dti_squad_drop(dti_parallel *par) {
    for (uint32_t m = 0; m < par->squad->local; m++) {
        for (uint32_t i = 0; i < dti_squad_runs_now(par)->count; i++)
            dti_lane_end(dti_squad_of(par, m, i));
    }
}

/* Before anything has begun: what failed on one rank, on all. */
static dt_result dti_squad_agree(dti_parallel *par, dt_result own) {
    double tell[DTI_WEIGHTS_WIDTH] = {0};
    if (!par->desc.comm)
        return own;
    tell[DTI_WEIGHTS_FAULT] = own ? 1.0 : 0.0;
    tell[DTI_WEIGHTS_WHO] = own ? par->rank : 0.0;
    tell[DTI_WEIGHTS_ASKED] = par->asked ? 1.0 : 0.0;
    dti_mark_put(dti_parallel_mark(par), tell + DTI_WEIGHTS_MARK);
    dt_result result =
        dti_parallel_comm_failed(par, dt_comm_all_reduce(par->desc.comm, tell, par->weights.sum,
                                                         DTI_WEIGHTS_WIDTH, DT_F64, DT_COMM_SUM));
    par->asked = !result && par->weights.sum[DTI_WEIGHTS_ASKED] > 0.0;
    if (result || own)
        return own ? own : result;
    if (par->weights.sum[DTI_WEIGHTS_FAULT] > 0.0)
        return dti_parallel_given_up(par);
    return dti_parallel_same(par);
}

/* Members that say no, of all ranks: who knows has everybody's judgement. */
static dt_result dti_squad_verdict(dti_parallel *par, double *no) {
    const dti_squad *squad = par->squad;
    double own = 0.0;
    for (uint32_t m = 0; m < squad->local; m++)
        own += squad->members[m].faulty ? 1.0 : 0.0;
    *no = own;
    if (!par->desc.comm)
        return DT_OK;
    return dti_parallel_comm_failed(
        par, dt_comm_all_reduce(par->desc.comm, &own, no, 1, DT_F64, DT_COMM_SUM));
}

static void dti_squad_report(const dti_parallel *par, dti_parallel_result *out) {
    const dti_squad *squad = par->squad;
    dti_terms_report(squad->terms, out);
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        if (squad->weights[i] > 0.0)
            out->loss += par->step.coefficients[i] * squad->terms[i] / squad->weights[i];
    }
    out->norm = squad->norm;
}

/* The first member that finds the op is quoted: it ran with the others' sums. */
static dt_result dti_squad_not_finite(dti_parallel *par, dti_parallel_result *out) {
    const dti_squad *squad = par->squad;
    const char *statistic =
        dti_statistics_fault(&squad->members[0].statistics, squad->members[0].graph);
    dt_result result = DT_OK;
    for (uint32_t m = 0; m < squad->local && !result; m++) {
        dt_report report = {0};
        dt_program *p = dti_squad_last(par, m);
        dt_result found = dti_step_fault(p, &report, dti_program_segments(p));
        if (report.fault_op)
            result = dti_fail(par->base, found, "%s", p->base->error);
    }
    dti_squad_drop(par);
    for (uint32_t m = 0; m < squad->local; m++)
        dti_statistics_load(&squad->members[m].statistics, squad->members[m].store);
    result = dti_agree_result(par, result);
    if (!result)
        result = dti_parallel_not_finite_text(par, statistic);
    out->skipped = result == DT_ERROR_NUMERIC;
    return result;
}

/* Others wait for what never comes: the operation that they are in, or come to, is given up. */
static void dti_squad_leave(dti_parallel *par) {
    const dt_comm_op op = {.kind = DT_COMM_BARRIER};
    dt_comm_work work;
    if (par->desc.comm && !par->lost && !dt_comm_begin(par->desc.comm, &op, &work))
        dt_comm_cancel(par->desc.comm, work);
    par->lost = true;
}

/* A device or a rank failed: before the update all stores are as they were. */
static dt_result dti_squad_failed(dti_parallel *par, dt_result result) {
    return dti_parallel_over(par, result, dti_squad_leave, dti_squad_drop);
}

static dt_result dti_squad_torn(dti_parallel *par, dt_result result) {
    return dti_parallel_apart(par, result, dti_squad_leave, "members");
}

/* To where all members have judged, and know what all others say. */
static dt_result dti_squad_judged(dti_parallel *par, double *no) {
    dt_result result = dti_squad_phase(par, dti_squad_compute);
    if (!result)
        result = dti_squad_pairs(par);
    if (!result)
        result = dti_squad_phase(par, dti_squad_judge);
    return result ? result : dti_squad_verdict(par, no);
}

static dt_result dti_squad_step(dti_parallel *par, const dti_batch *batch, dt_result own,
                                const dt_step_desc *step, dti_parallel_result *out) {
    double no = 0.0;
    dti_squad_prepare(par, batch, step);
    dt_result result = dti_squad_agree(par, own ? own : dti_squad_weigh(par)); /* and labels */
    if (result)
        return result;
    result = dti_squad_judged(par, &no);
    if (result)
        return dti_squad_failed(par, result);
    dti_squad_report(par, out);
    if (no > 0.0 || (!par->desc.program.no_check && !dti_losses_finite(out)))
        return dti_squad_not_finite(par, out);
    result = dti_squad_phase(par, dti_squad_commit);
    par->squad->ahead = true;
    if (result)
        return dti_squad_torn(par, result);
    par->replicas[0].store->steps = par->squad->members[0].store->steps;
    out->committed = true;
    result = par->squad->shown ? dti_squad_gather(par) : DT_OK;
    return result ? dti_squad_torn(par, result) : DT_OK;
}
