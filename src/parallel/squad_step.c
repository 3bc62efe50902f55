/* A step of a squad. Members compute the same micro-batches beside each other and meet behind each
 * sum: all wait for all, then each adds up everybody's operands, which lie on the host, in one tree
 * over members. So all have the same bits, and nothing else goes between them.
 *
 * Cost of a meeting of n elements: each member reads n elements of each, and writes n. */

#define DTI_SQUAD_SLICE 16384 /* elements that are added up at a time */

static const dti_runs *dti_squad_runs_now(const dti_parallel *par) {
    const dti_replica *r = &par->replicas[0];
    return par->squad->tail ? &r->tail : &r->full;
}

static dt_program *dti_squad_take(const dti_parallel *par, uint32_t m, uint32_t micro) {
    dt_program *p = par->squad->members[m].runs[par->squad->tail][micro];
    dti_lane_take(p, 0);
    return p;
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
        dt_program *p = dti_squad_take(par, 0, i);
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

static void dti_squad_sum(const dti_parallel *par, uint32_t m, uint32_t micro, uint32_t meeting) {
    const dti_squad *squad = par->squad;
    const dt_program *own = squad->members[m].runs[squad->tail][micro];
    const dti_meeting *at = &dti_program_code(own)->meetings[meeting];
    float *to = dti_program_value(own, at);
    for (uint32_t from = 0; from < at->elements; from += DTI_SQUAD_SLICE) {
        dti_operand operands[DTI_SQUAD_MAX];
        for (uint32_t k = 0; k < squad->size; k++) {
            const dt_program *p = squad->members[k].runs[squad->tail][micro];
            const float *data = dti_program_operand(p, &dti_program_code(p)->meetings[meeting], 0);
            operands[k] = (dti_operand){data + from, DT_F32, {k, 1}};
        }
        const uint64_t n = DTI_MIN(at->elements - from, (uint32_t)DTI_SQUAD_SLICE);
        dti_fold(to + from, operands, squad->size, n, DT_F32, DT_COMM_SUM, true, 1);
    }
}

/* Segments [first, end), and the meetings behind them. *met: of the micro-batch; False: another
 * member failed. */
static dt_result dti_squad_segments(dti_parallel *par, uint32_t m, uint32_t micro, bool *go_on) {
    dti_squad *squad = par->squad;
    dt_program *p = dti_squad_take(par, m, micro);
    const dti_code *code = dti_program_code(p);
    uint32_t met = 0;
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < dti_program_segments(p) && !result && *go_on; i++) {
        result = dti_lane_run(p, 1);
        if (result || met == code->meeting_count || code->meetings[met].segment != i)
            continue;
        const uint32_t all = (micro * code->meeting_count + met + 1) * squad->size;
        atomic_fetch_add(&squad->arrived, 1);
        *go_on = dti_squad_await(squad, &squad->arrived, all);
        if (*go_on)
            dti_squad_sum(par, m, micro, met++);
        atomic_fetch_add(&squad->left, 1);
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
    dt_program *p = dti_squad_take(par, m, micro);
    const uint32_t met = micro * dti_program_code(p)->meeting_count * squad->size;
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

/* Everybody's pairs, in the order of the first one's table; of parts, member by member. */
static void dti_squad_pairs(const dti_parallel *par, uint32_t to) {
    const dti_squad *squad = par->squad;
    float *all = dti_lane_pairs_of_all(dti_squad_last(par, to));
    uint32_t at = 0; /* in each member's table */
    for (int buffers = 0; buffers < 2; buffers++) {
        for (uint32_t i = squad->code->layout->param_count; i-- > 0;) {
            const uint32_t blocks = dti_squad_blocks(par, i, buffers);
            const uint32_t count = squad->parts[i].of.axis >= 0 ? squad->size : 1;
            for (uint32_t m = 0; m < count; m++, all += 2 * (size_t)blocks)
                memcpy(all, dti_lane_pairs(dti_squad_last(par, m)) + 2 * (size_t)at,
                       2 * blocks * sizeof *all);
            at += blocks;
        }
    }
}

static void dti_squad_judge(void *arg, uint32_t m) {
    dti_parallel *par = arg;
    dti_squad_member *member = &par->squad->members[m];
    dt_program *p = dti_squad_last(par, m);
    dti_squad_pairs(par, m);
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

static dt_result dti_squad_result(dti_parallel *par) {
    const dti_squad *squad = par->squad;
    for (uint32_t m = 0; m < squad->size; m++) {
        if (squad->members[m].result)
            return dti_fail(par->base, squad->members[m].result, "member %u: %s", m,
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
    atomic_store(&squad->failed, false);
    for (uint32_t m = 0; m < squad->size; m++)
        squad->members[m].result = DT_OK;
}

static void dti_squad_drop(dti_parallel *par) {
    for (uint32_t m = 0; m < par->squad->size; m++) {
        for (uint32_t i = 0; i < dti_squad_runs_now(par)->count; i++)
            dti_lane_end(dti_squad_take(par, m, i));
    }
}

/* *fine: all is finite, and no member says no. */
static void dti_squad_report(const dti_parallel *par, dti_parallel_result *out, bool *fine) {
    const dti_squad *squad = par->squad;
    *fine = true;
    dti_terms_report(squad->terms, out);
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        if (squad->weights[i] > 0.0)
            out->loss += par->step.coefficients[i] * squad->terms[i] / squad->weights[i];
    }
    for (uint32_t m = 0; m < squad->size; m++)
        *fine = *fine && !squad->members[m].faulty;
    out->norm = squad->norm;
    *fine = *fine && (par->desc.program.no_check || dti_losses_finite(out));
}

/* The first member that finds the op is quoted: it ran with the others' sums. */
static dt_result dti_squad_not_finite(dti_parallel *par, dti_parallel_result *out) {
    const dti_squad *squad = par->squad;
    const char *statistic =
        dti_statistics_fault(&squad->members[0].statistics, squad->members[0].graph);
    dt_result result = DT_OK;
    for (uint32_t m = 0; m < squad->size && !result; m++) {
        dt_report report = {0};
        dt_program *p = dti_squad_last(par, m);
        dt_result found = dti_step_fault(p, &report, dti_program_segments(p));
        if (report.fault_op)
            result = dti_fail(par->base, found, "%s", p->base->error);
    }
    if (!result)
        result = dti_parallel_not_finite_text(par, statistic);
    dti_squad_drop(par);
    for (uint32_t m = 0; m < squad->size; m++)
        dti_statistics_load(&squad->members[m].statistics, squad->members[m].store);
    out->skipped = result == DT_ERROR_NUMERIC;
    return result;
}

/* A device failed: before the update all stores are as they were. */
static dt_result dti_squad_failed(dti_parallel *par, dt_result result) {
    char text[sizeof par->base->error];
    memcpy(text, par->base->error, sizeof text);
    par->lost = true;
    dti_squad_drop(par);
    memcpy(par->base->error, text, sizeof text);
    return result;
}

static dt_result dti_squad_torn(dti_parallel *par, dt_result result) {
    char text[sizeof par->base->error];
    memcpy(text, par->base->error, sizeof text);
    par->lost = true;
    return dti_fail(par->base, result,
                    "%.800s; members may be a step apart: make a new trainer and go on from a "
                    "checkpoint",
                    text);
}

static dt_result dti_squad_step(dti_parallel *par, const dti_batch *batch, dt_result own,
                                const dt_step_desc *step, dti_parallel_result *out) {
    bool fine;
    if (own)
        return own;
    dti_squad_prepare(par, batch, step);
    dt_result result = dti_squad_weigh(par); /* labels too: nothing has begun */
    if (result)
        return result;
    result = dti_squad_phase(par, dti_squad_compute);
    if (!result)
        result = dti_squad_phase(par, dti_squad_judge);
    if (result)
        return dti_squad_failed(par, result);
    dti_squad_report(par, out, &fine);
    if (!fine)
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
