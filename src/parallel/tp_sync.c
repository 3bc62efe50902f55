/* Sync points of tensor ranks. All wait for all; then each adds up the operands of all, which lie
 * on the host, in one tree over tensor ranks. Between processes one thread of each does it, and
 * communicates. So all have the same bits, whoever is on which rank.
 *
 * Whoever arrives at a sync point has left the one before, so operands need two rows. */

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
    place->subtrees.count = 0;
    for (uint32_t m = 0; m < place->count; m++) {
        const dti_piece leaf = {.leaf = place->first + m, .begins = true};
        dti_subtrees_add(&place->subtrees, &leaf);
        while (dti_subtrees_join(&place->subtrees, place->size)) {
        }
    }
    place->said = dti_alloc_array(par->base, most * place->subtrees.count, sizeof(float));
    place->heard = dti_alloc_array(par->base, most, sizeof(float));
    return place->said && place->heard ? DT_OK : DT_ERROR_MEMORY;
}

static void dti_tp_place_free(dti_parallel *par, dti_tp_place *place) {
    dt_comm_destroy(place->comm);
    dti_free(par->base, place->said);
    dti_free(par->base, place->heard);
}

static void dti_tp_place_begin(dti_tp_place *place) {
    atomic_store(&place->arrived, 0);
    atomic_store(&place->left, 0);
    atomic_store(&place->summed, 0);
}

static void dti_tp_place_open(const dti_mesh *mesh, dti_tp_place *place, uint32_t position) {
    const dti_mesh_line line = dti_mesh_along(mesh, DTI_MESH_TENSOR, position);
    const dt_comm_span here = dti_mesh_share(mesh, line, mesh->rank);
    place->size = line.count;
    place->first = here.first;
    place->count = here.count;
    place->even = dti_mesh_is_even(mesh, line);
}

static dt_result dti_tp_place_group(dti_parallel *par, uint32_t position, dti_tp_place *place) {
    dt_comm *elsewhere = NULL;
    return dti_mesh_group(par, DTI_MESH_TENSOR, position, place ? &place->comm : &elsewhere);
}

/* ---- waiting */

/* Stages of other ranks go on meanwhile. */
static void dti_tp_idle(dti_parallel *par) {
    if (par->pipe)
        dti_pipe_speak(par, NULL);
    dti_thread_yield();
}

static bool dti_tp_await(dti_parallel *par, const dti_tp_place *place, _Atomic uint32_t *counter,
                         uint32_t there) {
    while (atomic_load(counter) < there) {
        if (atomic_load(place->failed))
            return false;
        dti_tp_idle(par);
    }
    return true;
}

static bool dti_tp_left(dti_parallel *par, dti_tp_place *place, uint32_t met) {
    return dti_tp_await(par, place, &place->left, met * place->count);
}

/* ---- a sync point */

typedef struct dti_tp_met {
    dti_tp_place *place;
    const dti_sync_point *m;
    const float *const *brought; /* by number of a tensor rank, here */
} dti_tp_met;

/* Of what tensor ranks `span` of a tensor group, all here, have: elements [from, from + n), to
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

/* An operation of a tensor group's ranks, while no other thread uses the comm. *go_on: false where
 * a device here failed: others may never come to it. */
static dt_result dti_tp_speak_in_turn(dti_parallel *par, const dti_tp_place *place,
                                      const dt_comm_op *op, bool *go_on) {
    dt_comm_work work = {0};
    dt_result result = DT_OK;
    bool ended = false;
    while (!ended && !result && *go_on) {
        while (atomic_exchange(place->speaking, true))
            dti_thread_yield();
        *go_on = !atomic_load(place->failed);
        if (!work.id && *go_on)
            result = dt_comm_begin(place->comm, op, &work);
        if (!result && work.id)
            result = dt_comm_test(place->comm, work, &ended);
        if (!result && !ended && work.id && !*go_on)
            dt_comm_cancel(place->comm, work);
        if (result)
            result = dti_parallel_comm_failed(par, result);
        atomic_store(place->speaking, false);
        if (!ended)
            dti_tp_idle(par);
    }
    return result;
}

static dt_result dti_tp_speak(dti_parallel *par, const dti_tp_place *place, const dt_comm_op *op,
                              bool *go_on) {
    if (!place->apart)
        return dti_parallel_comm_failed(par, dt_comm_run(place->comm, op));
    return dti_tp_speak_in_turn(par, place, op, go_on);
}

/* The sum of all ranks' tensor ranks, by one tree, to `heard`; or the largest. */
static dt_result dti_tp_reduce(dti_parallel *par, const dti_tp_met *at, bool *go_on) {
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
    return dti_tp_speak(par, place, &op, go_on);
}

/* What all have, one behind the other, to `heard`. Where ranks have different numbers of tensor
 * ranks, others' are zeros, and as whole numbers their sum has all bits. */
static dt_result dti_tp_collect(dti_parallel *par, const dti_tp_met *at, bool *go_on) {
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
    return dti_tp_speak(par, place, &op, go_on);
}

static dt_result dti_tp_exchange(dti_parallel *par, const dti_tp_met *at, bool *go_on) {
    return at->m->meet.kind == DTI_MEET_ROWS ? dti_tp_collect(par, at, go_on)
                                             : dti_tp_reduce(par, at, go_on);
}

/* A tensor rank's value, of what tensor ranks here have, or of `heard`. */
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

/* Sync point number `met` of the step. Devices of a place here wait for each other. */
static dt_result dti_tp_meet(dti_parallel *par, const dti_tp_run *run, const dti_sync_point *m,
                             uint32_t met, bool *go_on) {
    dti_tp_place *place = run->place;
    const dti_tp_met at = {place, m, place->brought[met % 2]};
    dt_result result = DT_OK;
    for (uint32_t k = 0; k < run->count; k++)
        place->brought[met % 2][run->number + k] = dti_program_operand(run->programs[k], m, 0);
    atomic_fetch_add(&place->arrived, run->count);
    *go_on = dti_tp_await(par, place, &place->arrived, (met + 1) * place->count);
    if (*go_on && place->comm && run->number == place->first) {
        result = dti_tp_exchange(par, &at, go_on);
        atomic_fetch_add(&place->summed, result || !*go_on ? 0 : 1);
    } else if (*go_on && place->comm) {
        *go_on = dti_tp_await(par, place, &place->summed, met + 1);
    }
    if (*go_on && !result)
        dti_tp_values(run, &at);
    atomic_fetch_add(&place->left, run->count);
    return result;
}

static dt_result dti_tp_run_to(dti_parallel *par, const dti_tp_run *run, uint32_t *met,
                               bool *go_on) {
    const dti_code *code = dti_program_code(run->programs[0]);
    uint32_t at = run->from, i = 0;
    dt_result result = DT_OK;
    while (i < code->sync_point_count && code->sync_points[i].segment < at)
        i++;
    while (at < run->end && !result && *go_on) {
        const bool meets = i < code->sync_point_count && code->sync_points[i].segment < run->end;
        const uint32_t next = meets ? code->sync_points[i].segment + 1 : run->end;
        for (uint32_t k = 0; k < run->count && !result; k++)
            result = dti_micro_slot_run(run->programs[k], next - at);
        at = next;
        if (meets && !result)
            result = dti_tp_meet(par, run, &code->sync_points[i++], (*met)++, go_on);
    }
    return result;
}
