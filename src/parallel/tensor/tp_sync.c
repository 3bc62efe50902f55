/* Sync points of tensor ranks. All wait for all. Then each adds the operands of all, which lie on
 * the host, in one tree over tensor ranks. Between processes one thread of each does it, and
 * communicates. So the bits do not depend on how tensor ranks are spread over processes.
 *
 * A tensor rank that arrives at a sync point has left the one before, so two rows of operands
 * suffice. */

#define DTI_TP_SLICE 16384 /* elements that are added up at a time */

/* ---- making a place */

static size_t dti_tp_most(const dt_program *p, size_t most) {
    const dti_code *code = dti_program_code(p);
    for (uint32_t k = 0; k < code->sync_point_count; k++)
        most = DTI_MAX(most,
                       (size_t)DTI_MAX(code->sync_points[k].given, code->sync_points[k].elements));
    return most;
}

static dt_result dti_tp_place_make(dti_parallel *par, dti_tp_place *place, size_t most) {
    if (most <= place->most)
        return DT_OK;
    DTI_FREE(par->base, place->said, place->heard);
    place->most = 0;
    place->subtrees.count = 0;
    for (uint32_t m = 0; m < place->count; m++) {
        const dti_piece leaf = {.leaf = place->first + m, .begins = true};
        dti_subtrees_add(&place->subtrees, &leaf);
        while (dti_subtrees_join(&place->subtrees, place->size)) {
        }
    }
    place->said = dti_alloc_array(par->base, most * place->subtrees.count, sizeof(float));
    place->heard = dti_alloc_array(par->base, most, sizeof(float));
    if (!place->said || !place->heard)
        return DT_ERROR_MEMORY;
    place->most = most;
    return DT_OK;
}

static void dti_tp_place_free(dti_parallel *par, dti_tp_place *place) {
    dt_comm_destroy(place->comm);
    DTI_FREE(par->base, place->said, place->heard);
}

static void dti_tp_place_open(const dti_mesh *mesh, dti_tp_place *place, uint32_t position) {
    const dti_mesh_line line = dti_mesh_along(mesh, DTI_MESH_TENSOR, position);
    const dt_comm_span here = dti_mesh_share(mesh, line, mesh->rank);
    place->size = line.count;
    place->first = here.first;
    place->count = here.count;
    place->even = dti_mesh_is_even(mesh, line);
}

/* ---- a sync point */

typedef struct dti_tp_met {
    const dti_tp_run *run;
    const dti_tp_place *place; /* the run's */
    const dti_sync_point *m;
    const float *const *brought; /* by number of a tensor rank, here */
} dti_tp_met;

/* Adds elements [from, from + n) of the operands of tensor ranks `span` of a group, all here, to
 * `to`. */
static void dti_tp_fold(const dti_tp_met *at, dt_comm_span span, uint64_t from, uint64_t n,
                        float *to) {
    const dt_comm_reduction how = at->m->meet.kind == DTI_MEET_MOST ? DT_COMM_MAX : DT_COMM_SUM;
    dti_operand operands[DTI_TP_MAX];
    for (uint64_t i = 0; i < n; i += DTI_TP_SLICE) {
        for (uint32_t k = 0; k < span.count; k++)
            operands[k] =
                (dti_operand){at->brought[span.first + k] + from + i, DT_F32, {span.first + k, 1}};
        dti_fold(to + i, operands, span.count, DTI_MIN(n - i, (uint64_t)DTI_TP_SLICE), DT_F32, how,
                 !at->place->comm, 1);
    }
}

/* An operation of a tensor group's ranks, while no other thread uses the comm. *given_up: a device
 * here failed, and others may never come to it. */
static dt_result dti_tp_speak_in_turn(dti_parallel *par, const dti_tp_met *at, const dt_comm_op *op,
                                      bool *given_up) {
    dti_pipe *pipe = par->pipe;
    dt_comm *comm = at->run->place->comm;
    dt_comm_work work = {0};
    dt_result result = DT_OK;
    bool ended = false;
    while (!ended && !result && !*given_up) {
        dti_pipe_comm_lock(pipe);
        *given_up = atomic_load(&pipe->failed);
        if (!work.id && !*given_up)
            result = dt_comm_begin(comm, op, &work);
        if (!result && work.id)
            result = dt_comm_test(comm, work, &ended);
        if (!result && !ended && work.id && *given_up)
            dt_comm_cancel(comm, work);
        if (result)
            result = dti_parallel_comm_failed(par, result);
        dti_pipe_comm_unlock(pipe);
        if (!ended) { /* stages of other ranks go on meanwhile */
            dti_pipe_speak(par, at->run->device, NULL);
            dti_thread_yield();
        }
    }
    return result;
}

static dt_result dti_tp_speak(dti_parallel *par, const dti_tp_met *at, const dt_comm_op *op,
                              bool *given_up) {
    if (!par->pipe->locks_comm)
        return dti_parallel_comm_failed(par, dt_comm_run(at->run->place->comm, op));
    return dti_tp_speak_in_turn(par, at, op, given_up);
}

/* Sums the operands of all ranks' tensor ranks, in one tree, to `heard`; or takes the largest. */
static dt_result dti_tp_reduce(dti_parallel *par, const dti_tp_met *at, bool *given_up) {
    const dti_tp_place *place = at->place;
    const bool most = at->m->meet.kind == DTI_MEET_MOST;
    const dt_comm_span here = {place->first, place->count};
    const uint32_t n = at->m->given;
    for (uint32_t k = 0; k < (most ? 1 : place->subtrees.count); k++)
        dti_tp_fold(at, most ? here : place->subtrees.at[k], 0, n, place->said + (size_t)k * n);
    const dt_comm_op op = {.kind = DT_COMM_ALL_REDUCE,
                           .in = place->said,
                           .out = place->heard,
                           .count = n,
                           .dtype = DT_F32,
                           .reduction = most ? DT_COMM_MAX : DT_COMM_SUM,
                           .tree = !most};
    return dti_tp_speak(par, at, &op, given_up);
}

/* Gathers the operands of all to `heard`, one after another. If ranks have different numbers of
 * tensor ranks, a rank sends zeros for the others'. Summed as whole numbers, all bits are kept. */
static dt_result dti_tp_collect(dti_parallel *par, const dti_tp_met *at, bool *given_up) {
    const dti_tp_place *place = at->place;
    const uint32_t first = place->first, n = at->m->given;
    float *to = place->even ? place->said : place->heard + (size_t)first * n;
    if (!place->even)
        memset(place->heard, 0, (size_t)place->size * n * sizeof *to);
    for (uint32_t k = 0; k < place->count; k++)
        memcpy(to + (size_t)k * n, at->brought[first + k], n * sizeof *to);
    const dt_comm_op op = {.kind = place->even ? DT_COMM_ALL_GATHER : DT_COMM_ALL_REDUCE,
                           .in = place->even ? place->said : place->heard,
                           .out = place->heard,
                           .count =
                               place->even ? (uint64_t)place->count * n : (uint64_t)place->size * n,
                           .dtype = place->even ? DT_F32 : DT_I32};
    return dti_tp_speak(par, at, &op, given_up);
}

static dt_result dti_tp_exchange(dti_parallel *par, const void *of, bool *given_up) {
    const dti_tp_met *at = of;
    return at->m->meet.kind == DTI_MEET_ROWS ? dti_tp_collect(par, at, given_up)
                                             : dti_tp_reduce(par, at, given_up);
}

/* A tensor rank's value, from the operands of tensor ranks here, or from `heard`. */
static void dti_tp_value(const dti_tp_met *at, uint32_t number, float *to) {
    const uint32_t size = at->place->size;
    const dt_comm_span all = {0, size};
    const float *heard = at->place->comm ? at->place->heard : NULL;
    const uint64_t run = at->m->meet.run ? (uint64_t)at->m->meet.run : at->m->elements;
    const bool rows = at->m->meet.kind == DTI_MEET_ROWS, own = at->m->meet.kind == DTI_MEET_SHARE;
    for (uint64_t i = 0; i < at->m->elements / run; i++) { /* runs of the value */
        const uint64_t from = own ? (i * size + number) * run : i * run;
        const uint32_t of = (uint32_t)(i % size);
        if (rows)
            memcpy(to + i * run,
                   (heard ? heard + (uint64_t)of * at->m->given : at->brought[of]) + i / size * run,
                   run * sizeof *to);
        else if (heard)
            memcpy(to + i * run, heard + from, run * sizeof *to);
        else
            dti_tp_fold(at, all, from, run, to + i * run);
    }
}

/* The value to where each of these tensor ranks finds it. */
static void dti_tp_values(const dti_tp_run *run, const dti_tp_met *at) {
    const float *first = NULL;
    for (uint32_t k = 0; k < run->count; k++) {
        float *to = dti_program_value(run->programs[k], at->m);
        if (first)
            memcpy(to, first, at->m->elements * sizeof *to);
        else
            dti_tp_value(at, run->number + k, to);
        if (at->m->meet.kind != DTI_MEET_SHARE &&
            run->programs[k]->store->device->info.kind == DT_DEVICE_CPU) /* quick to read */
            first = to;
    }
}

static dt_result dti_tp_meet(dti_parallel *par, const dti_tp_run *run, const dti_sync_point *m,
                             uint32_t met, bool *given_up) {
    dti_tp_place *place = run->place;
    _Atomic uint32_t *counters = par->counters + place->counters;
    const dti_tp_met at = {run, place, m, place->brought[met % 2]};
    for (uint32_t k = 0; k < run->count; k++)
        place->brought[met % 2][run->number + k] = dti_program_words(run->programs[k], m->at, 0);
    const dti_device_meet meet = {.arrived = &counters[DTI_TP_ARRIVED],
                                  .made = &counters[DTI_TP_SUMMED],
                                  .index = run->device,
                                  .brings = run->count,
                                  .here = place->count,
                                  .met = met,
                                  .makes = run->number == place->first,
                                  .make = place->comm ? dti_tp_exchange : NULL,
                                  .of = &at};
    const dt_result result = dti_meet_all(par, &meet, given_up);
    if (!*given_up && !result)
        dti_tp_values(run, &at);
    atomic_fetch_add(&counters[DTI_TP_LEFT], run->count);
    return result;
}
