/* The one state machine of a step: which of its segments were started, and which have ended.
 * dt_program_run, a step in parts (dt_program_begin) and a replica's step all drive it. Nothing
 * else touches a device's queue.
 *
 * closed -- open --> ready -- start --> busy -- poll, reach, wait --> ready -- close --> closed
 *
 * `part` starts less than a segment, so the next start begins inside of one. `drop` leads to closed
 * from any state, and so does every error: a step on a lost device has ended. */

static void dti_drive_open(dt_program *p, uint32_t first, uint32_t end) {
    p->now->at = first;
    p->now->end = end;
    p->now->cursor = (dti_exec_cursor){0, 0};
    p->now->busy = false;
    p->now->forward_done = p->now->forward_done && first > 0;
    *dti_running_of(p) = p;
}

/* Signals the semaphore after all started work. Called for every step, also one that ends early; at
 * most one of its calls does something. */
static dt_result dti_drive_signal(dt_program *p) {
    const dt_vulkan_semaphore none = {0}, signal = p->now->signal;
    p->now->signal = none;
    if (!signal.semaphore)
        return DT_OK;
    return p->store->device->backend->sync(p->store->device, &none, &signal);
}

static void dti_drive_close(dt_program *p) {
    dti_drive_signal(p); /* of a step that ends early; impossible on a lost device */
    p->now->busy = false;
    *dti_running_of(p) = NULL;
}

static dt_result dti_drive_drop(dt_program *p, dt_result result) {
    dti_drive_close(p);
    for (uint32_t i = 0; i < p->step_slot_count; i++)
        p->step_slots[i].busy = false;
    p->started = p->ended = 0;
    p->failed = false;
    dti_store_rows_lost(p->store);
    return result;
}

/* Segments up to one that has ended. */
static dt_result dti_drive_ended(dt_program *p, dt_result result, bool busy) {
    if (result)
        return dti_drive_drop(p, result);
    p->now->busy = busy;
    p->now->forward_done = p->now->forward_done || (!busy && p->now->at > 0);
    return DT_OK;
}

static dt_result dti_drive_started(dt_program *p, dt_result result) {
    p->now->busy = !result;
    if (!result && p->now->at == p->now->end)
        result = dti_drive_signal(p);
    return result ? dti_drive_drop(p, result) : DT_OK;
}

/* The commit may be the host's, which is through with it when it returns. */
static dt_result dti_drive_start(dt_program *p, uint32_t count) {
    const bool host = p->now->host && p->now->at >= p->code->commit_segment;
    dt_result result = host
                           ? dti_offload_start(p, p->now->at, count)
                           : p->store->device->backend->exec_start(p->now->exec, p->now->at, count);
    p->now->at += result ? 0 : count;
    return dti_drive_started(p, result);
}

static dt_result dti_drive_part(dt_program *p, uint32_t end, double ms) {
    dti_step_slot *t = p->now;
    return dti_drive_started(
        p, p->store->device->backend->exec_part(t->exec, &t->at, &t->cursor, end, ms));
}

static dt_result dti_drive_poll(dt_program *p) {
    bool busy = false;
    dt_result result =
        p->now->busy ? p->store->device->backend->exec_poll(p->now->exec, &busy) : DT_OK;
    return p->now->busy ? dti_drive_ended(p, result, busy) : DT_OK;
}

static dt_result dti_drive_reach(dt_program *p, uint32_t segment) {
    dt_result result = p->store->device->backend->exec_reach(p->now->exec, segment);
    dt_result dropped = dti_drive_ended(p, result, segment + 1 < p->now->at);
    p->now->forward_done = p->now->forward_done || !dropped;
    return dropped;
}

static dt_result dti_drive_wait(dt_program *p) {
    dt_result result = p->now->busy ? p->store->device->backend->exec_wait(p->now->exec) : DT_OK;
    return dti_drive_ended(p, result, false);
}

static dt_result dti_drive_rest(dt_program *p) {
    dt_result result = dti_drive_wait(p);
    while (!result && p->now->at < p->now->end) {
        result = dti_drive_part(p, p->now->end, (double)INFINITY);
        if (!result)
            result = dti_drive_wait(p);
    }
    return result;
}

static dt_result dti_drive_alone(dt_program *p, uint32_t segment) {
    const dti_backend *b = p->store->device->backend;
    dt_result result = b->exec_start(p->now->exec, segment, 1);
    return result ? result : b->exec_wait(p->now->exec);
}
