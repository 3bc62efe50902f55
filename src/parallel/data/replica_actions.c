/* A replica's actions. Its thread waits bucket by bucket, so a bucket is sent while the next one is
 * computed. A thread that waits sums arrived buckets. The first replica's also services the
 * network. */

static const dti_micro_run *dti_list_micro_of(const dti_replica *r, const dti_action *a) {
    return r->runs->count ? &r->runs->runs[a->micro] : NULL;
}

/* ---- finished actions */

/* Buckets up to those of an action that has ended are with the host. */
static void dti_list_arrive(dti_parallel *par, uint32_t index, const dti_action *a) {
    dti_replica *r = &par->replicas[index];
    if (a->buckets <= r->arrived)
        return;
    dti_exchange_arrive(par, r->arrived, a->buckets);
    r->arrived = a->buckets;
    dti_exchange_help(par, index, false);
}

/* Waits for actions before `end`, and reports their buckets one by one. It waits for a forward
 * segment only if no later action does. */
static dt_result dti_list_reach(dti_parallel *par, uint32_t index, uint32_t end) {
    dti_replica *r = &par->replicas[index];
    const dti_list *list = r->walk.list;
    dt_result result = DT_OK;
    for (; r->walk.ended < end && !result; r->walk.ended++) {
        const dti_action *a = &list->actions[r->walk.ended];
        const bool last =
            a->kind == DTI_ACTION_FORWARD && list->actions[r->walk.ended + 1].after > r->walk.ended;
        if (a->kind == DTI_ACTION_BACKWARD || last)
            result = dti_drive_reach(dti_list_micro_of(r, a)->program, a->what);
        if (!result)
            dti_list_arrive(par, index, a);
    }
    return result;
}

/* Takes finished actions without waiting. */
static dt_result dti_list_poll(dti_parallel *par, uint32_t index, const dti_action *a) {
    dti_replica *r = &par->replicas[index];
    dt_program *p = dti_list_micro_of(r, a)->program;
    dt_result result = dti_drive_poll(p);
    for (; !result && !dti_drive_is_busy(p) && r->walk.ended <= r->walk.at; r->walk.ended++)
        dti_list_arrive(par, index, &r->walk.list->actions[r->walk.ended]);
    return result;
}

/* ---- the actions */

static dt_result dti_action_write(dti_parallel *par, uint32_t index, const dti_action *a) {
    return dti_micro_write(par, dti_list_micro_of(&par->replicas[index], a));
}

static dt_result dti_action_open(dti_parallel *par, uint32_t index, const dti_action *a) {
    const dti_replica *r = &par->replicas[index];
    const dti_micro_run *run = dti_list_micro_of(r, a);
    dt_step_desc step = par->now->desc;
    step.first_row += run->row;
    step.micro_batch = run->micro;
    step.micro_batches = r->runs->count;
    return dt_program_begin(run->program, &step);
}

static dt_result dti_action_forward(dti_parallel *par, uint32_t index, const dti_action *a) {
    return dti_drive_start(dti_list_micro_of(&par->replicas[index], a)->program, 1);
}

static dt_result dti_action_backward(dti_parallel *par, uint32_t index, const dti_action *a) {
    const dt_result result = dti_action_forward(par, index, a);
    return result ? result : dti_list_poll(par, index, a);
}

static dt_result dti_action_weights(dti_parallel *par, uint32_t index, const dti_action *a) {
    dti_program_set_weights(dti_list_micro_of(&par->replicas[index], a)->program, par->weights.sum);
    return DT_OK;
}

static dt_result dti_action_collective(dti_parallel *par, uint32_t index, const dti_action *a) {
    dti_replica *r = &par->replicas[index];
    return dti_sync_point_make(par, index, a->what, dti_list_micro_of(r, a), &r->walk.given_up);
}

static dt_result dti_action_close(dti_parallel *par, uint32_t index, const dti_action *a) {
    const dti_micro_run *run = dti_list_micro_of(&par->replicas[index], a);
    DTI_TRY(run->last ? DT_OK : dti_program_end(run->program));
    for (uint32_t k = 0; k < run->piece_count; k++)
        dti_leaf_terms(dti_scalar_leaf(par, &par->terms, run->pieces[k].leaf), run->program, k,
                       NULL, NULL);
    dti_statistics_take(&par->statistics, run, run->program);
    return DT_OK;
}

static dt_result dti_action_zeros(dti_parallel *par, uint32_t index, const dti_action *a) {
    for (uint32_t b = par->replicas[index].arrived; b < a->buckets; b++) {
        const dti_sums_operands to = par->sums.kind->operands(par, b, index);
        for (uint32_t i = 0; i < to.subtrees->count; i++)
            memset(to.data + i * to.stride, 0,
                   dti_bucket_elements(par->buckets[b]) * sizeof(float));
    }
    dti_list_arrive(par, index, a);
    return DT_OK;
}

/* A counter that it raises says so. */
static dt_result dti_action_pass(dti_parallel *par, uint32_t index, const dti_action *a) {
    return DT_OK;
}

static dt_result dti_replica_search(dti_parallel *par, uint32_t index, const dti_action *a) {
    return dti_search_segments(par, index, dti_list_micro_of(&par->replicas[index], a)->program, a,
                               a->kind == DTI_ACTION_BACKWARD);
}

static dti_action_fn *const dti_replica_acts[DTI_ACTION_KINDS] = {
    [DTI_ACTION_WRITE] = dti_action_write,
    [DTI_ACTION_OPEN] = dti_action_open,
    [DTI_ACTION_FORWARD] = dti_action_forward,
    [DTI_ACTION_WEIGHTS] = dti_action_weights,
    [DTI_ACTION_BACKWARD] = dti_action_backward,
    [DTI_ACTION_COLLECTIVE] = dti_action_collective,
    [DTI_ACTION_CLOSE] = dti_action_close,
    [DTI_ACTION_ZEROS] = dti_action_zeros,
    [DTI_ACTION_GATHER] = DTI_HAS_ZERO ? dti_unit_gather : NULL,
    [DTI_ACTION_PASS] = dti_action_pass,
};

static dt_result dti_replica_act(dti_parallel *par, uint32_t index, const dti_action *a) {
    return dti_replica_acts[a->kind](par, index, a);
}

/* Sets the runs that it has now: a worker's change within a step. */
static dti_list_walk *dti_replica_walk(const dti_parallel *par, uint32_t index) {
    dti_replica *r = &par->replicas[index];
    r->walk.list = &r->runs->list;
    DTI_ASSERT(r->walk.list->count || !r->runs->count);
    return &r->walk;
}

static void dti_replica_help(dti_parallel *par, uint32_t index, const dti_action *wait) {
    dti_exchange_help(par, index, false);
}

static const dti_action_calls dti_replica_calls = {.walk = dti_replica_walk,
                                                   .act = dti_replica_act,
                                                   .search = dti_replica_search,
                                                   .reach = dti_list_reach,
                                                   .failed = dti_any_failed,
                                                   .help = dti_replica_help};

/* ---- all replicas on one thread */

/* Waits for the needs of action `end` of a replica's list, bucket by bucket on all of them. */
static dt_result dti_replicas_reach(dti_parallel *par, uint32_t end) {
    dt_result result = DT_OK;
    for (uint32_t k = 1; k <= end; k++)
        for (uint32_t i = 0; i < par->job.local && !result; i++)
            if (par->replicas[i].runs->list.count >= k)
                result = par->replicas[i].result = dti_list_reach(par, i, k);
    return result;
}

/* Action by action, so that each device has its segments before any is waited for. */
static dt_result dti_replicas_walk(dti_parallel *par) {
    dt_result result = DT_OK;
    uint32_t most = 0;
    for (uint32_t i = 0; i < par->job.local; i++)
        most = DTI_MAX(most, dti_replica_walk(par, i)->list->count);
    for (uint32_t k = 0; k < most && !result; k++) {
        for (uint32_t i = 0; i < par->job.local && !result; i++) {
            const dti_list *list = &par->replicas[i].runs->list;
            if (k >= list->count)
                continue;
            result = dti_replicas_reach(par, list->actions[k].after);
            if (!result)
                result = par->replicas[i].result = dti_list_run(par, i, k + 1);
            par->replicas[i].passed = dti_now_ns();
        }
    }
    return result ? dti_replicas_result(par) : DT_OK;
}
