/* A step of a grid of squads. Members of a line compute the same micro-batches beside each other
 * and meet behind each sum (squad_meet.c). Lines compute shards of their own, one after the other,
 * and their gradients are summed over shards, number by number. Each device has a thread, on which
 * its members compute in turns: a segment of each, up to a meeting.
 *
 * Cost besides meetings: three small all-reduces of all ranks: what failed and weights, pairs of
 * blocks, losses and verdicts; with several lines on several ranks one of a member's gradients. */

static const dti_runs *dti_squad_runs_now(const dti_squad *squad, uint32_t m) {
    return &dti_squad_line_of(squad, m)->runs[squad->tail];
}

/* Its one lane has been its turn since it was made: other members read operands of it. */
static dt_program *dti_squad_of(const dti_squad *squad, uint32_t m, uint32_t micro) {
    return squad->members[m].runs[squad->tail][micro];
}

/* The program whose step commits: of a line without rows one of full batches. */
static dt_program *dti_squad_last(const dti_squad *squad, uint32_t m) {
    const dti_squad_member *member = &squad->members[m];
    const uint32_t tail = dti_squad_runs_now(squad, m)->count ? squad->tail : 0;
    return member->runs[tail][squad->lines[member->line].runs[tail].count - 1];
}

static void dti_squad_ended(dti_squad *squad, uint32_t m, dt_result result) {
    squad->members[m].result = result;
    if (result)
        atomic_store(&squad->failed, true);
}

/* ---- inputs and weights */

static dt_result dti_squad_write(const dti_parallel *par, uint32_t m, uint32_t micro,
                                 dt_program *p) {
    const dti_micro_run *run = &dti_squad_runs_now(par->squad, m)->runs[micro];
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

static double *dti_squad_leaf(const dti_parallel *par, const dti_scalar_sum *s, uint32_t m,
                              uint32_t micro) {
    const dti_micro_run *run = &dti_squad_runs_now(par->squad, m)->runs[micro];
    return s->leaves + (size_t)run->pieces[0].leaf * s->width;
}

/* Targets, and so weights and labels, are the same for all of a line: its first tells them. */
static void dti_squad_weigh(void *arg, uint32_t m) {
    dti_parallel *par = arg;
    dti_squad *squad = par->squad;
    dt_result result = DT_OK;
    const uint32_t count = squad->members[m].number ? 0 : dti_squad_runs_now(squad, m)->count;
    for (uint32_t i = 0; i < count && !result; i++) {
        dt_program *p = dti_squad_of(squad, m, i);
        double weights[DT_MAX_TERMS] = {0}, *leaf = dti_squad_leaf(par, &par->weights, m, i);
        if (dti_program_weighs(p) || dti_program_labels(p))
            result = dti_squad_write(par, m, i, p);
        if (!result)
            result = dti_program_weigh(p, weights);
        for (uint32_t k = 0; k < DT_MAX_TERMS; k++)
            leaf[k] += weights[k];
    }
    dti_squad_ended(squad, m, result);
}

/* All of a micro-batch, and the meetings between them. */
static dt_result dti_squad_segments(dti_parallel *par, dt_comm_span members, uint32_t micro,
                                    bool *go_on) {
    dti_squad_member *first = &par->squad->members[members.first];
    dt_program *programs[DTI_SQUAD_MAX];
    for (uint32_t k = 0; k < members.count; k++)
        programs[k] = dti_squad_of(par->squad, members.first + k, micro);
    dti_squad_run run = {.place = &dti_squad_line_of(par->squad, members.first)->place,
                         .number = first->number,
                         .count = members.count,
                         .programs = programs,
                         .end = dti_program_forward(programs[0])};
    const uint64_t start = dti_now_ns();
    dt_result result = dti_squad_run_to(par, &run, &first->met, go_on);
    const uint64_t turned = dti_now_ns();
    run.from = run.end;
    run.end = dti_program_segments(programs[0]);
    if (!result && *go_on)
        result = dti_squad_run_to(par, &run, &first->met, go_on);
    if (members.first == 0) {
        par->times.forward += turned - start;
        par->times.backward += dti_now_ns() - turned;
    }
    return result;
}

/* ---- a micro-batch */

/* Of its first member: all of a line have the same. */
static void dti_squad_terms(dti_parallel *par, uint32_t m, uint32_t micro, const dt_program *p) {
    const dti_code *code = dti_program_code(p);
    double *leaf = dti_squad_leaf(par, &par->terms, m, micro);
    for (uint32_t i = 0; i < code->loss_count + code->metric_count; i++) {
        const uint32_t at = i < code->loss_count ? i : DTI_TERMS_METRIC + i - code->loss_count;
        double pair[2];
        dti_program_term(p, i, 0, pair);
        leaf[at] += pair[0];
        leaf[at + DTI_TERMS_WEIGHT] += pair[1];
    }
    dti_statistics_take(&par->squad->statistics, &dti_squad_runs_now(par->squad, m)->runs[micro],
                        p);
}

/* Its gradients are there: of the last of a shard, the shard's. */
static dt_result dti_squad_over(dti_parallel *par, uint32_t m, uint32_t micro, dt_program *p) {
    dti_squad *squad = par->squad;
    const dti_runs *runs = dti_squad_runs_now(squad, m);
    const uint32_t shard = runs->runs[micro].pieces[0].leaf;
    const bool last = micro + 1 == runs->count;
    if (!last)
        dti_lane_end(p);
    if (!last && runs->runs[micro + 1].pieces[0].leaf == shard)
        return DT_OK;
    return dti_shard_pushed(par, &squad->members[m].sum, shard, last);
}

static dt_result dti_squad_micro_begin(dti_parallel *par, uint32_t m, uint32_t micro) {
    dt_program *p = dti_squad_of(par->squad, m, micro);
    dt_step_desc step = par->step;
    dti_grid_number(dti_squad_runs_now(par->squad, m), micro, &step);
    dt_result result = dti_squad_write(par, m, micro, p);
    return result ? result : dti_lane_begin(p, &step, par->weights.sum);
}

static dt_result dti_squad_micro(dti_parallel *par, dt_comm_span members, uint32_t micro,
                                 bool *go_on) {
    dti_squad *squad = par->squad;
    dt_result result = DT_OK;
    /* operands take the place of those of the micro-batch before */
    if (!dti_squad_left(par, &dti_squad_line_of(squad, members.first)->place,
                        squad->members[members.first].met)) {
        *go_on = false;
        return DT_OK;
    }
    for (uint32_t k = 0; k < members.count && !result; k++)
        result = dti_squad_micro_begin(par, members.first + k, micro);
    if (!result)
        result = dti_squad_segments(par, members, micro, go_on);
    if (result || !*go_on)
        return result;
    for (uint32_t m = members.first; m < members.first + members.count && !result; m++) {
        dt_program *p = dti_squad_of(squad, m, micro);
        if (squad->members[m].number == 0)
            dti_squad_terms(par, m, micro, p);
        result = dti_squad_over(par, m, micro, p);
    }
    return result;
}

/* All shards' gradients are there: the last of a number's members here adds them up. */
static void dti_squad_sum_ready(dti_squad *squad, uint32_t m) {
    const uint32_t number = squad->members[m].number;
    const dt_comm_span lines = dti_squad_lines_of(squad, number);
    dti_shard_sum *sum = &squad->sums[number];
    dti_shard_stack *of[DTI_REPLICAS_MAX];
    if (!sum->on || atomic_fetch_add(&sum->ready, 1) + 1 < lines.count)
        return;
    for (uint32_t i = 0; i < lines.count; i++)
        of[i] = &dti_squad_member_of(squad, &squad->lines[lines.first + i], number)->sum;
    dti_shard_fold(sum, of, lines.count);
}

/* All micro-batches of a device's members. */
static void dti_squad_compute(void *arg, uint32_t device) {
    dti_parallel *par = arg;
    dti_squad *squad = par->squad;
    const dt_comm_span members = {device * squad->each, squad->each};
    const uint32_t count = dti_squad_runs_now(squad, members.first)->count;
    bool go_on = true;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < count && !result && go_on; i++)
        result = dti_squad_micro(par, members, i, &go_on);
    for (uint32_t k = 0; k < members.count && !count && !result; k++)
        result = dti_shard_pushed_none(par, &squad->members[members.first + k].sum);
    for (uint32_t k = 0; k < members.count && go_on && !result; k++)
        dti_squad_sum_ready(squad, members.first + k);
    dti_squad_ended(squad, members.first, result); /* they have one context, and so one text */
}

/* ---- sums over lines */

static dt_result dti_squad_sum_all(dti_parallel *par) {
    dti_squad *squad = par->squad;
    dt_result result = DT_OK;
    for (uint32_t k = 0; k < squad->size && !result; k++) {
        if (squad->sums[k].comm)
            result = dti_parallel_comm_failed(par, dti_shard_sum_post(&squad->sums[k]));
    }
    for (uint32_t k = 0; k < squad->size && !result; k++)
        result = dti_shard_sum_end(par, &squad->sums[k]);
    return result;
}

/* Of pieces of the whole job. */
static dt_result dti_squad_statistics(dti_parallel *par) {
    dti_statistics *s = &par->squad->statistics;
    const uint64_t pieces = (uint64_t)par->job.shards * par->job.parts;
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
static void dti_squad_norm(void *arg, uint32_t m) {
    dti_parallel *par = arg;
    dti_squad *squad = par->squad;
    dti_squad_member *member = &squad->members[m];
    dt_program *p = dti_squad_last(squad, m);
    dt_result result = dti_shard_sum_put(&squad->sums[member->number], member->store);
    if (!result)
        result = dti_statistics_write(&squad->statistics, member->store);
    if (!result && !dti_squad_runs_now(squad, m)->count) {
        result = dti_program_begin_commit(p, &par->step);
        p->store->running = NULL;
    }
    if (!result)
        result = dti_lane_run(p, 1);
    dti_squad_ended(squad, m, result);
}

/* ---- the update */

/* Pairs of each number's blocks to `pairs`: the first line's, so that all have the same numbers;
 * others' are zeros, and as whole numbers their sum has all bits. */
static dt_result dti_squad_pairs(dti_parallel *par) {
    const dti_squad *squad = par->squad;
    const size_t each = 2 * (size_t)squad->entries;
    memset(squad->pairs, 0, each * squad->size * sizeof *squad->pairs);
    for (uint32_t m = 0; m < squad->local; m++) {
        if (dti_squad_line_of(squad, m)->replica == 0)
            memcpy(squad->pairs + squad->members[m].number * each,
                   dti_lane_pairs(dti_squad_last(squad, m)), each * sizeof *squad->pairs);
    }
    if (!par->desc.comm)
        return DT_OK;
    return dti_parallel_comm_failed(par,
                                    dt_comm_all_reduce(par->desc.comm, squad->pairs, squad->pairs,
                                                       each * squad->size, DT_I32, DT_COMM_SUM));
}

/* In the order of the first one's table; of parts, member by member. */
static void dti_squad_pairs_take(const dti_parallel *par, uint32_t to) {
    const dti_squad *squad = par->squad;
    float *all = dti_lane_pairs_of_all(dti_squad_last(squad, to));
    uint32_t at = 0; /* in each member's table */
    for (int buffers = 0; buffers < 2; buffers++) {
        for (uint32_t i = squad->code->layout->param_count; i-- > 0;) {
            const uint32_t blocks = dti_squad_blocks(squad, i, buffers);
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
    dt_program *p = dti_squad_last(par->squad, m);
    dti_squad_pairs_take(par, m);
    member->result = dti_lane_run(p, 1);
    if (member->result)
        return;
    const uint32_t *status = dti_program_out(p);
    member->norm = (double)dti_status_f32(status, DTI_STATUS_NORM);
    member->faulty = status[DTI_STATUS_ABORT] != 0;
}

static void dti_squad_commit(void *arg, uint32_t m) {
    dti_parallel *par = arg;
    par->squad->members[m].result = dti_program_commit(dti_squad_last(par->squad, m));
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

/* A device's members, in turns. */
static void dti_squad_turns(void *arg, uint32_t device) {
    dti_parallel *par = arg;
    const uint32_t each = par->squad->each;
    for (uint32_t m = device * each; m < (device + 1) * each; m++)
        par->squad->turn(par, m);
}

static dt_result dti_squad_phase(dti_parallel *par, dti_crew_fn *fn) {
    par->squad->turn = fn;
    dti_crew_run(par->squad->crew, dti_squad_turns, par);
    return dti_squad_result(par);
}

static dt_result dti_squad_computed(dti_parallel *par) {
    for (uint32_t m = 0; m < par->squad->local; m++)
        par->squad->members[m].result = DT_OK;
    dti_crew_run(par->squad->crew, dti_squad_compute, par);
    return dti_squad_result(par);
}

static void dti_squad_prepare(dti_parallel *par, const dti_batch *batch, const dt_step_desc *step) {
    dti_squad *squad = par->squad;
    const size_t pieces = (size_t)par->job.shards * par->job.parts;
    par->batch = batch;
    par->rows = batch->rows;
    par->step = *step;
    par->times = (dti_step_times){0};
    squad->tail = batch->rows != par->desc.batch && par->desc.tail;
    dti_grid_scalars_begin(par);
    memset(squad->statistics.pieces, 0, pieces * squad->statistics.width * sizeof(float));
    for (uint32_t i = 0; i < squad->line_count; i++) {
        dti_squad_place_begin(&squad->lines[i].place);
    }
    for (uint32_t k = 0; k < squad->size; k++)
        dti_shard_sum_begin(&squad->sums[k]);
    for (uint32_t m = 0; m < squad->local; m++) {
        squad->members[m].met = 0;
        dti_shard_stack_begin(&squad->members[m].sum);
    }
    atomic_store(&squad->failed, false);
    atomic_store(&squad->speaking, false);
}

static void dti_squad_drop(dti_parallel *par) {
    const dti_squad *squad = par->squad;
    for (uint32_t m = 0; m < squad->local; m++) {
        for (uint32_t i = 0; i < dti_squad_runs_now(squad, m)->count; i++)
            dti_lane_end(dti_squad_of(squad, m, i));
        dti_lane_end(dti_squad_last(squad, m));
    }
}

/* Whether a member finds the op or the parameter: it ran with the others' sums. */
static dt_result dti_squad_blame(dti_parallel *par, uint32_t m) {
    dt_report report = {0};
    dt_program *p = dti_squad_last(par->squad, m);
    if (!dti_squad_runs_now(par->squad, m)->count) {
        if (!dti_program_blame(p, false))
            return DT_OK;
        return dti_fail(par->base, DT_ERROR_NUMERIC, "%s", p->base->error);
    }
    const dt_result found = dti_step_fault(p, &report, dti_program_segments(p));
    return report.fault_op ? dti_fail(par->base, found, "%s", p->base->error) : DT_OK;
}

/* The first member that finds it is quoted. */
static dt_result dti_squad_not_finite(dti_parallel *par, dti_parallel_result *out) {
    dti_squad *squad = par->squad;
    const char *statistic = dti_statistics_fault(&squad->statistics, squad->members[0].graph);
    dt_result result = dti_squad_result(par); /* a device that failed while it judged */
    for (uint32_t m = 0; m < squad->local && !result; m++)
        result = dti_squad_blame(par, m);
    dti_squad_drop(par);
    dti_statistics_load(&squad->statistics, squad->members[0].store);
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
    for (uint32_t k = 0; k < par->squad->size; k++) {
        dti_shard_sum *sum = &par->squad->sums[k];
        if (sum->work.id)
            dt_comm_cancel(sum->comm, sum->work);
        sum->work.id = 0;
    }
    par->lost = true;
}

/* A device or a rank failed: before the update all stores are as they were. */
static dt_result dti_squad_failed(dti_parallel *par, dt_result result) {
    return dti_parallel_over(par, result, dti_squad_leave, dti_squad_drop);
}

static dt_result dti_squad_torn(dti_parallel *par, dt_result result) {
    return dti_parallel_apart(par, result, dti_squad_leave, "members");
}

/* A device that fails here is told like what is not finite: nothing has changed. */
static void dti_squad_judge_all(dti_parallel *par) {
    const dti_squad *squad = par->squad;
    bool faulty = dti_squad_phase(par, dti_squad_judge) != DT_OK;
    for (uint32_t m = 0; m < squad->local; m++)
        faulty = faulty || squad->members[m].faulty;
    if (faulty)
        par->terms.leaves[(size_t)par->first_shard * par->terms.width + DTI_TERMS_FAULT] = 1.0;
}

/* To where all members have judged, and know what all others say. */
static dt_result dti_squad_judged(dti_parallel *par) {
    dt_result result = dti_squad_computed(par);
    if (!result)
        result = dti_squad_sum_all(par);
    if (!result)
        result = dti_squad_statistics(par);
    if (!result)
        result = dti_squad_phase(par, dti_squad_norm);
    if (!result)
        result = dti_squad_pairs(par);
    if (result)
        return result;
    dti_squad_judge_all(par);
    return dti_grid_scalars(par, &par->terms); /* the commit barrier */
}

static dt_result dti_squad_update(dti_parallel *par, dti_parallel_result *out) {
    dti_squad *squad = par->squad;
    const uint64_t start = dti_now_ns();
    dt_result result = dti_squad_phase(par, dti_squad_commit);
    par->times.commit = dti_now_ns() - start;
    dti_whole_old(par);
    if (result)
        return dti_squad_torn(par, result);
    par->replicas[0].store->steps = squad->members[0].store->steps;
    out->norm = squad->members[0].norm;
    out->committed = true;
    result = par->whole.shown ? dti_whole_gather(par) : DT_OK;
    return result ? dti_squad_torn(par, result) : DT_OK;
}

static dt_result dti_squad_step(dti_parallel *par, const dti_batch *batch, dt_result own,
                                const dt_step_desc *step, dti_parallel_result *out) {
    dti_squad_prepare(par, batch, step);
    /* labels too are looked at: nothing has begun */
    dt_result result = dti_grid_agree(par, own ? own : dti_squad_phase(par, dti_squad_weigh));
    if (result || dti_parallel_leaves_out(par, out))
        return result;
    result = dti_squad_judged(par);
    if (result)
        return dti_squad_failed(par, result);
    dti_terms_report(par->terms.sum, out);
    if (par->terms.sum[DTI_TERMS_FAULT] > 0.0 ||
        (!par->desc.program.no_check && !dti_losses_finite(out)))
        return dti_squad_not_finite(par, out);
    return dti_squad_update(par, out);
}
