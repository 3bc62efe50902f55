/* Meetings of a squad's members. All of a line wait for all, then each device adds up everybody's
 * operands, which lie on the host, in one tree over members; between ranks the first of a process
 * does, and speaks. So all have the same bits, whoever is on which rank, and on whichever device.
 *
 * Cost of a meeting of n elements: each device reads n elements of each member of its process, and
 * writes n for each of its own; between ranks an all-reduce of n. */

#define DTI_SQUAD_RUN 16384 /* elements that are added up at a time */

static bool dti_squad_await(dti_squad *squad, _Atomic uint32_t *counter, uint32_t there) {
    while (atomic_load(counter) < there) {
        if (atomic_load(&squad->failed))
            return false;
        dti_thread_yield();
    }
    return true;
}

typedef struct dti_squad_met { /* a meeting */
    const dti_squad_line *line;
    uint32_t micro, meeting;
    const dti_meeting *m;
} dti_squad_met;

/* What a member that is here brings. */
static const float *dti_squad_brought(const dti_squad *squad, const dti_squad_met *at,
                                      uint32_t number) {
    const dti_squad_member *member = dti_squad_member_of(squad, at->line, number);
    const dt_program *p = member->runs[squad->tail][at->micro];
    return dti_program_operand(p, &dti_program_code(p)->meetings[at->meeting], 0);
}

/* Of what members `span` of a line, all here, have: elements [from, from + n), to `to`. */
static void dti_squad_fold(const dti_parallel *par, const dti_squad_met *at, dt_comm_span span,
                           uint64_t from, uint64_t n, float *to) {
    const dt_comm_reduction how = at->m->meet.kind == DTI_MEET_MOST ? DT_COMM_MAX : DT_COMM_SUM;
    dti_operand operands[DTI_SQUAD_MAX];
    for (uint64_t i = 0; i < n; i += DTI_SQUAD_RUN) {
        for (uint32_t k = 0; k < span.count; k++)
            operands[k] =
                (dti_operand){dti_squad_brought(par->squad, at, span.first + k) + from + i,
                              DT_F32,
                              {span.first + k, 1}};
        dti_fold(to + i, operands, span.count, DTI_MIN(n - i, (uint64_t)DTI_SQUAD_RUN), DT_F32, how,
                 !at->line->comm, 1);
    }
}

/* An operation of a line's ranks. Where several lines here speak, their threads take turns. */
static dt_result dti_squad_speak(dti_parallel *par, const dti_squad_line *line,
                                 const dt_comm_op *op) {
    dti_squad *squad = par->squad;
    dt_comm_work work = {0};
    dt_result result = DT_OK;
    bool ended = false;
    if (!squad->apart)
        return dti_parallel_comm_failed(par, dt_comm_run(line->comm, op));
    while (!ended && !result) {
        while (atomic_exchange(&squad->speaking, true))
            dti_thread_yield();
        if (!work.id)
            result = dt_comm_begin(line->comm, op, &work);
        if (!result)
            result = dt_comm_test(line->comm, work, &ended);
        if (result)
            dti_parallel_comm_failed(par, result);
        atomic_store(&squad->speaking, false);
        if (!ended)
            dti_thread_yield();
    }
    return result;
}

/* The sum of all ranks' members, by one tree, to `heard`; or the largest. */
static dt_result dti_squad_reduce(dti_parallel *par, const dti_squad_met *at) {
    const dti_squad_line *line = at->line;
    const bool most = at->m->meet.kind == DTI_MEET_MOST;
    const dt_comm_span here = {par->squad->members[line->first].number, line->count};
    const uint32_t n = at->m->given;
    for (uint32_t k = 0; k < (most ? 1 : line->subtrees.count); k++)
        dti_squad_fold(par, at, most ? here : line->subtrees.at[k], 0, n,
                       line->said + (size_t)k * n);
    const dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE,
                           .in = line->said,
                           .out = line->heard,
                           .count = n,
                           .dtype = DT_F32,
                           .reduction = most ? DT_COMM_MAX : DT_COMM_SUM,
                           .tree = !most};
    return dti_squad_speak(par, line, &op);
}

/* What all have, one behind the other, to `heard`. Where ranks have different numbers of members,
 * others' are zeros, and as whole numbers their sum has all bits. */
static dt_result dti_squad_collect(dti_parallel *par, const dti_squad_met *at) {
    const dti_squad *squad = par->squad;
    const dti_squad_line *line = at->line;
    const uint32_t first = squad->members[line->first].number, n = at->m->given;
    float *to = line->even ? line->said : line->heard + (size_t)first * n;
    if (!line->even)
        memset(line->heard, 0, (size_t)squad->size * n * sizeof *to);
    for (uint32_t k = 0; k < line->count; k++)
        memcpy(to + (size_t)k * n, dti_squad_brought(squad, at, first + k), n * sizeof *to);
    const dt_comm_op op = {.kind = line->even ? DT_COMM_ALL_GATHER : DT_COMM_ALL_REDUCE,
                           .in = line->even ? line->said : line->heard,
                           .out = line->heard,
                           .count =
                               line->even ? (uint64_t)line->count * n : (uint64_t)squad->size * n,
                           .dtype = line->even ? DT_F32 : DT_I32};
    return dti_squad_speak(par, line, &op);
}

static dt_result dti_squad_exchange(dti_parallel *par, const dti_squad_met *at) {
    return at->m->meet.kind == DTI_MEET_ROWS ? dti_squad_collect(par, at)
                                             : dti_squad_reduce(par, at);
}

/* Member m's value, of what members here have, or of `heard`. */
static void dti_squad_value(const dti_parallel *par, uint32_t m, const dti_squad_met *at,
                            float *to) {
    const dti_squad *squad = par->squad;
    const dt_comm_span all = {0, squad->size};
    const float *heard = at->line->comm ? at->line->heard : NULL;
    const uint32_t number = squad->members[m].number;
    const uint64_t run = at->m->meet.run ? (uint64_t)at->m->meet.run : at->m->elements;
    const bool rows = at->m->meet.kind == DTI_MEET_ROWS, own = at->m->meet.kind == DTI_MEET_SHARE;
    for (uint64_t i = 0; i < at->m->elements / run; i++) { /* runs of the value */
        const uint64_t from = own ? (i * squad->size + number) * run : i * run;
        const uint32_t of = (uint32_t)(i % squad->size);
        if (rows)
            memcpy(
                to + i * run,
                (heard ? heard + (uint64_t)of * at->m->given : dti_squad_brought(squad, at, of)) +
                    i / squad->size * run,
                run * sizeof *to);
        else if (heard)
            memcpy(to + i * run, heard + from, run * sizeof *to);
        else
            dti_squad_fold(par, at, all, from, run, to + i * run);
    }
}

/* The value to where each of these members finds it. */
static void dti_squad_values(const dti_parallel *par, dt_comm_span members,
                             const dti_squad_met *at) {
    const dti_squad *squad = par->squad;
    const float *first = NULL;
    for (uint32_t m = members.first; m < members.first + members.count; m++) {
        float *to = dti_program_value(squad->members[m].runs[squad->tail][at->micro], at->m);
        if (first)
            memcpy(to, first, at->m->elements * sizeof *to);
        else
            dti_squad_value(par, m, at, to);
        if (at->m->meet.kind != DTI_MEET_SHARE &&
            squad->members[m].store->device->info.kind == DT_DEVICE_CPU) /* quick to read */
            first = to;
    }
}

/* Meeting `meeting` of a micro-batch. Devices of a line here wait for each other. *go_on: false
 * where another one failed. */
static dt_result dti_squad_meet(dti_parallel *par, dt_comm_span members, uint32_t micro,
                                uint32_t meeting, bool *go_on) {
    dti_squad *squad = par->squad;
    dti_squad_line *line = dti_squad_line_of(squad, members.first);
    const dti_code *code = dti_program_code(squad->members[members.first].runs[squad->tail][micro]);
    const dti_squad_met at = {line, micro, meeting, &code->meetings[meeting]};
    const uint32_t number = micro * code->meeting_count + meeting; /* of the step */
    dt_result result = DT_OK;
    atomic_fetch_add(&line->arrived, members.count);
    *go_on = dti_squad_await(squad, &line->arrived, (number + 1) * line->count);
    if (*go_on && line->comm && members.first == line->first) {
        result = dti_squad_exchange(par, &at);
        atomic_fetch_add(&line->summed, result ? 0 : 1);
    } else if (*go_on && line->comm) {
        *go_on = dti_squad_await(squad, &line->summed, number + 1);
    }
    if (*go_on && !result)
        dti_squad_values(par, members, &at);
    atomic_fetch_add(&line->left, members.count);
    return result;
}

/* Whether nobody reads operands of the micro-batch before, of which the next one's take the place.
 * False: another device failed. */
static bool dti_squad_may_begin(dti_squad *squad, uint32_t m, uint32_t micro) {
    dti_squad_line *line = dti_squad_line_of(squad, m);
    const dti_code *code = dti_program_code(squad->members[m].runs[squad->tail][micro]);
    return dti_squad_await(squad, &line->left, micro * code->meeting_count * line->count);
}
