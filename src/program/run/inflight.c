/* Steps that are started before the one before has ended. It owns the ring of step slots: each has
 * inputs, outputs and recorded launches of its own. The device runs steps in order, so each sees
 * what the one before it wrote. A step after an aborted one writes nothing. So the store stays as
 * before the aborted step, which can be run again to find the op at fault. */

static uint32_t dti_step_slot_index(const dt_program *p) {
    return (uint32_t)(p->now - p->step_slots);
}

/* ---- inputs: written values stay for later steps, in every slot */

static void dti_step_slot_written(dt_program *p, uint32_t binding) {
    p->written[binding] = true;
    const uint64_t all = UINT64_MAX >> (64 - p->step_slot_count);
    p->stale[binding] = all & ~(UINT64_C(1) << dti_step_slot_index(p));
}

/* A step slot that has the newest values of a binding. */
static const dti_step_slot *dti_step_slot_fresh(const dt_program *p, uint32_t binding) {
    uint32_t i = 0;
    while (p->stale[binding] >> i & 1u)
        i++;
    return &p->step_slots[i];
}

/* Copies from another step slot, which may be in flight: both only read it. */
static void dti_step_slot_refresh(dt_program *p) {
    const uint32_t now = dti_step_slot_index(p);
    const dti_backend *b = p->store->device->backend;
    for (uint32_t i = 0; i < p->code->binding_count; i++) {
        const dti_binding *binding = &p->code->bindings[i];
        if (!(p->stale[i] >> now & 1u))
            continue;
        const dti_step_slot *other = dti_step_slot_fresh(p, i);
        char *to = b->memory_host(p->now->memories[DTI_ARENA_IN]);
        const char *from = b->memory_host(other->memories[DTI_ARENA_IN]);
        memcpy(to + binding->offset, from + binding->offset, (size_t)binding->bytes);
        p->stale[i] &= ~(UINT64_C(1) << now);
    }
}

/* ---- the end of the oldest */

static dt_result dti_step_not_run(dt_program *p, dt_report *r) {
    *r = (dt_report){.step = p->now->step, .skipped = true, .not_run = true};
    return dti_code_fail(
        p->code, DT_ERROR_NUMERIC,
        "step %llu was not run, because the step before it failed; the store is unchanged",
        (unsigned long long)p->now->step);
}

/* Waits for the oldest step that has not ended, and handles its end. Its report is kept until it is
 * read. */
static dt_result dti_inflight_settle(dt_program *p) {
    dti_step_slot *next = p->now, *t = dti_step_slot_ahead(p, p->ended);
    p->now = t;
    dt_result result = dti_drive_wait(p);
    if (!result) {
        p->ended++;
        t->result = dti_step_finish(p, &t->report);
        p->failed = p->failed || (t->result && p->code->has_optim);
        p->store->summed = t->result ? 0 : p->store->summed;
        snprintf(t->said, sizeof t->said, "%s", t->result ? p->base->error : "");
        *dti_running_of(p) = p;
    }
    p->now = next;
    return result;
}

/* Of the oldest step: ends it. */
static dt_result dti_inflight_end(dt_program *p, dt_report *report) {
    dti_step_slot *t = dti_step_slot_ahead(p, 0);
    DTI_TRY(p->ended ? DT_OK : dti_inflight_settle(p));
    p->oldest = (p->oldest + 1) % p->step_slot_count;
    p->started--;
    p->ended--;
    p->failed = p->failed && p->started;
    *dti_running_of(p) = p->started ? p : NULL;
    p->shown = t;
    if (report)
        *report = t->report;
    return t->result ? dti_fail(p->base, t->result, "%s", t->said) : DT_OK;
}

/* All step slots are under way: the oldest step ends, for the sake of the next one. */
static dt_result dti_inflight_place(dt_program *p) {
    return p->started == p->step_slot_count ? dti_inflight_end(p, NULL) : DT_OK;
}

/* ---- start */

static uint64_t dti_inflight_commits(dt_program *p) {
    uint64_t count = 0;
    for (uint32_t i = p->ended; i < p->started; i++)
        count += dti_step_slot_ahead(p, i)->commits;
    return count;
}

/* A step runs alone if it leaves gradients to be read, or if the state is kept after it
 * (host_copy.c). Also if it is not known whether its update can overflow; that is known once the
 * steps before it have ended. */
static bool dti_inflight_alone(dt_program *p, const dt_step_desc *step) {
    const uint64_t commits = dti_inflight_commits(p);
    if (!p->code->has_optim)
        return p->code->has_gradients;
    p->now->step = dti_step_number(p, step);
    p->now->lr = dti_optim_lr_at(&p->code->optim, step->lr, p->now->step);
    const bool last = step->micro_batch + 1 >= step->micro_batches;
    return (commits && dti_host_copy_due(p->store, p->store->steps + commits)) ||
           dti_step_weighs(p, step) ||
           (last && !p->code->desc.no_check && dti_step_proven(p) < 0.0);
}

static bool dti_inflight_waits(dt_program *p, const dt_step_desc *step) {
    return p->started == p->step_slot_count || p->failed ||
           (p->ended < p->started && dti_inflight_alone(p, step));
}

/* Makes room for a step, and waits for those that it may not overtake. */
static dt_result dti_inflight_room(dt_program *p, const dt_step_desc *step) {
    dt_result result = dti_inflight_place(p);
    while (!result && p->ended < p->started && dti_inflight_alone(p, step))
        result = dti_inflight_settle(p);
    while (!result && p->failed) /* one that failed is among them */
        result = dti_inflight_end(p, NULL);
    return result;
}

static dt_result dti_program_start(dt_program *p, const dt_step_desc *desc, const double *weights) {
    const dt_step_desc step = desc ? *desc : (dt_step_desc){0};
    DTI_TRY(dti_check_forked(p->base));
    DTI_TRY(dti_step_check(p, &step, true));
    if (p->code->has_gradients)
        DTI_TRY(dti_bindings_written(p, true));
    DTI_TRY(dti_inflight_room(p, &step));
    DTI_TRY(dti_step_open(p, &step));
    if (weights)
        dti_program_set_weights(p, weights);
    DTI_TRY(dti_drive_start(p, p->now->end));
    p->started++;
    p->now = dti_step_slot_ahead(p, p->started);
    return DT_OK;
}

DTI_PUBLIC(dt_program_start, (dt_program * p, const dt_step_desc *desc), p, DTI_OF(dt_program),
           (p, desc)) {
    return dti_program_start(p, desc, NULL);
}

DTI_PUBLIC_REPORT(dt_program_wait, (dt_program * p, dt_report *report), p, DTI_OF(dt_program),
                  (p, report)) {
    DTI_TRY(dti_check_forked(p->base));
    if (!p->started)
        return dti_code_fail(p->code, DT_ERROR_INVALID, "no step of dt_program_start is under way");
    return dti_inflight_end(p, report);
}
