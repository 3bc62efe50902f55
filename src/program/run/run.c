/* Runs a program: inputs in, segments in order, outputs and the report out. dt_program_begin,
 * _advance and _end are the parts of a step; dt_program_run is all three. Nothing here
 * allocates. */

/* ---- bindings */

static dt_result dti_binding_get(dt_program *p, dt_tensor x, bool output, bool gradient,
                                 size_t bytes, const dti_binding **out) {
    const char *what = output ? "output" : gradient ? "host gradient" : "input";
    if (dti_is_nil(x))
        return dti_code_fail(p->code, DT_ERROR_INVALID, "the %s is nil", what);
    if (x.graph != p->store->graph)
        return dti_code_fail(p->code, DT_ERROR_INVALID, "the %s is a tensor of another graph: %s",
                             what, dti_tensor_elsewhere(p->store->graph, x).text);
    const dti_name name = dti_tensor_name(x);
    const dti_binding *binding = dti_code_binding(p->code, x.id, output, gradient);
    if (!binding) {
        const bool unread = !output && !gradient && dti_node_of(x)->op == DTI_OP_INPUT;
        return dti_code_fail(p->code, DT_ERROR_INVALID, "%s is not an %s of this program%s",
                             name.text, what,
                             unread ? ": nothing that the program computes reads it" : "");
    }
    const dti_node *n = &p->code->work->nodes[x.id]; /* at the program's own shapes */
    if (bytes != binding->bytes)
        return dti_code_fail(p->code, DT_ERROR_INVALID,
                             "%s %s has %llu bytes at batch %lld, not %zu", name.text,
                             dti_shape_print(n->shape, n->samples).text,
                             (unsigned long long)binding->bytes, (long long)p->code->batch, bytes);
    if (binding->external)
        return dti_code_fail(p->code, DT_ERROR_INVALID,
                             "%s is in an external buffer (.external): write and read it there",
                             name.text);
    *out = binding;
    return DT_OK;
}

static dt_result dti_binding_write(dt_program *p, dt_tensor x, bool gradient, const void *data,
                                   size_t bytes, const uint32_t *rows) {
    DTI_NEED(p->base, data);
    const dti_binding *binding = NULL;
    DTI_TRY(dti_check_forked(p->base));
    DTI_TRY(dti_binding_get(p, x, false, gradient, bytes, &binding));
    if (!gradient && dti_node_of(x)->values)
        return dti_code_fail(p->code, DT_ERROR_INVALID,
                             "%s is a constant; the host can only write tensors of dt_input",
                             dti_tensor_print(x).text);
    const bool open = dti_drive_is_open(p) && !p->started;
    if (open && (p->now->busy || !gradient || (p->now->at && dti_drive_inside(p))))
        return dti_code_fail(p->code, DT_ERROR_INVALID, "inputs are in use until dt_program_end");
    DTI_TRY(dti_labels_check(p->code, binding, data, rows));
    DTI_TRY(dti_inflight_place(p));
    char *host = p->store->device->backend->memory_host(p->now->memories[DTI_ARENA_IN]);
    memcpy(host + binding->offset, data, bytes);
    if (p->host_weights && !p->code->work->nodes[binding->node].samples)
        dti_host_weights_copy(p, binding, data); /* samples come with each micro-batch */
    dti_step_slot_written(p, (uint32_t)(binding - p->code->bindings));
    return DT_OK;
}

DTI_PUBLIC(dt_program_write, (dt_program * p, dt_tensor input, const void *data, size_t bytes), p,
           DTI_OF(dt_program), (p, input, data, bytes)) {
    return dti_binding_write(p, input, false, data, bytes, NULL);
}

DTI_PUBLIC(dt_program_write_gradient, (dt_program * p, dt_tensor y, const void *data, size_t bytes),
           p, DTI_OF(dt_program), (p, y, data, bytes)) {
    return dti_binding_write(p, y, true, data, bytes, NULL);
}

DTI_PUBLIC(dt_program_read, (dt_program * p, dt_tensor output, void *data, size_t bytes), p,
           DTI_OF(dt_program), (p, output, data, bytes)) {
    DTI_NEED(p->base, data);
    const dti_binding *binding = NULL;
    DTI_TRY(dti_check_forked(p->base));
    DTI_TRY(dti_binding_get(p, output, true, false, bytes, &binding));
    if (p->shown->busy || !p->shown->forward_done)
        return dti_code_fail(p->code, DT_ERROR_INVALID, "its forward segment has not finished");
    const char *host = p->store->device->backend->memory_host(p->shown->memories[DTI_ARENA_OUT]);
    memcpy(data, host + binding->offset, bytes);
    return DT_OK;
}

/* ---- begin */

static dt_result dti_started_fail(const dt_program *p) {
    return dti_code_fail(
        p->code, DT_ERROR_INVALID,
        "%u steps of dt_program_start are under way; dt_program_wait for them first", p->started);
}

static dt_result dti_bindings_written(dt_program *p, bool gradient) {
    for (uint32_t i = 0; i < p->code->binding_count; i++) {
        const dti_binding *binding = &p->code->bindings[i];
        if (binding->output || binding->gradient != gradient || p->written[i] || binding->external)
            continue;
        return dti_code_fail(p->code, DT_ERROR_INVALID, "%s %s was never written",
                             gradient ? "the host gradient of" : "input",
                             dti_tensor_name((dt_tensor){p->code->work, binding->node}).text);
    }
    return DT_OK;
}

/* The sums of a step: gradients, and the running statistics that it moves. */
static uint64_t dti_micro_params(const dt_program *p) {
    uint32_t count = p->store->layout.param_count;
    uint64_t trained = dti_hash64(0, p->code->trained, count);
    return dti_hash64(trained, p->code->update, count * sizeof *p->code->update);
}

/* Micro-batches add up in the store's one gradient arena. So the sum could contain values of
 * another program, of an interrupted step, or of parameters that are new. */
static dt_result dti_micro_check(dt_program *p, const dt_step_desc *step) {
    const dt_store *s = p->store;
    const dti_step_slot *newest =
        dti_inflight_count(p) ? dti_step_slot_ahead(p, p->started - 1) : NULL;
    if (step->micro_batch == 0 ||
        (newest && step->micro_batches == newest->micros && step->micro_batch == newest->micro + 1))
        return DT_OK;
    if (step->micro_batch != s->summed || step->micro_batches != s->micros) {
        return dti_code_fail(
            p->code, DT_ERROR_INVALID,
            ".micro_batch is %u of %u, but must be %u of %u, which comes next, or 0",
            step->micro_batch, step->micro_batches, s->summed, s->summed ? s->micros : 0);
    }
    if (dti_micro_params(p) != s->summed_params) {
        return dti_code_fail(p->code, DT_ERROR_INVALID,
                             ".micro_batch is %u of %u; it must train the parameters, and update "
                             "the running statistics, of micro-batch 0",
                             step->micro_batch, step->micro_batches);
    }
    return DT_OK;
}

/* Once a step has begun, no sum can be continued until the step has ended. */
static void dti_micro_begin(dt_program *p, const dt_step_desc *step) {
    p->now->micro = step->micro_batch;
    p->now->micros = DTI_MAX(step->micro_batches, 1u);
    if (p->code->has_gradients)
        p->store->summed = 0;
}

static void dti_micro_done(dt_program *p, uint32_t summed) {
    dt_store *s = p->store;
    if (!p->code->has_gradients)
        return;
    s->summed = summed < p->now->micros ? summed : 0;
    s->micros = p->now->micros;
    s->summed_params = dti_micro_params(p);
}

static dt_result dti_sync_check(dt_program *p, const dt_step_desc *step) {
    const dti_device *device = p->store->device;
    const bool given = step->wait.semaphore || step->signal.semaphore;
    if (!given || (device->hosts && device->info.has_timeline))
        return DT_OK;
    return dti_code_fail(p->code, DT_ERROR_INVALID,
                         "a step with semaphores needs a store on a device of dt_ctx_desc.vulkan "
                         "with timeline_semaphore, not on %s",
                         device->info.id);
}

/* Whether the store may have been written to. */
static bool dti_step_commits(const dt_program *p) {
    return p->now->commits && p->now->at + dti_drive_inside(p) > p->code->update_segment;
}

static dt_result dti_step_shares(const dt_program *p, const dt_program *other) {
    return dti_fail(
        p->base, DT_ERROR_INVALID,
        "program '%s' has a step under way (between dt_program_begin and dt_program_end, or "
        "started and not waited for); the programs of a store share memory, so end it first%s",
        other->code->label,
        p->code->has_gradients || dti_is_concurrent(p)
            ? ""
            : ", or create this one with .concurrent, as it does not train");
}

/* For a program of .concurrent: its own step must not stay half done, because a commit may
 * follow. */
static dt_result dti_step_beside(const dt_program *p, const dt_program *other, bool whole) {
    if (!whole)
        return dti_fail(p->base, DT_ERROR_INVALID,
                        "program '%s' (.concurrent): program '%s' has a step under way, during "
                        "which only dt_program_run and dt_program_start work",
                        p->code->label, other->code->label);
    if (p->code->cache_bytes && other->code->cache_bytes)
        return dti_code_fail(p->code, DT_ERROR_INVALID,
                             "program '%s' has a step under way, and both are .cached: they share "
                             "one cache, so end it first",
                             other->code->label);
    return DT_OK;
}

/* Other programs' steps under way. A started step of .concurrent precedes all later work on the
 * device. */
static dt_result dti_step_others(const dt_program *p, bool whole) {
    const bool concurrent = dti_is_concurrent(p);
    const dt_program *same = *dti_running_of(p);
    const dt_program *other = concurrent ? p->store->running : p->store->reading;
    if (same && !(same == p && p->started))
        return dti_step_shares(p, same);
    if (other && concurrent)
        return dti_step_beside(p, other, whole);
    return other && !other->started ? dti_step_shares(p, other) : DT_OK;
}

static dt_result dti_store_finish_commit(const dt_store *s) {
    dt_program *p = s->running;
    return p && !p->started && dti_step_commits(p) ? dti_drive_rest(p) : DT_OK;
}

/* During a commit a program of .concurrent would see half of a step. */
static dt_result dti_step_sees_whole(const dt_program *p) {
    return dti_is_concurrent(p) ? dti_store_finish_commit(p->store) : DT_OK;
}

/* whole: nothing of another program comes between its segments. */
static dt_result dti_step_check(dt_program *p, const dt_step_desc *step, bool whole) {
    DTI_TRY(dti_step_others(p, whole));
    if (!dti_code_has_units(p->code))
        DTI_TRY(dti_store_whole(p->store));
    if (step->micro_batches > 1 && !p->code->desc.accumulate && !p->code->slices.piece_count)
        return dti_code_fail(p->code, DT_ERROR_INVALID,
                             ".micro_batches is %u, which needs dt_program_desc.accumulate",
                             step->micro_batches);
    if (step->micro_batch >= DTI_MAX(step->micro_batches, 1u)) {
        return dti_code_fail(p->code, DT_ERROR_INVALID,
                             ".micro_batch is %u; it must be below .micro_batches, %u",
                             step->micro_batch, step->micro_batches);
    }
    for (uint32_t i = 0; step->loss_weights && i < p->code->loss_count; i++) {
        const bool nothing = step->loss_weights[i] == 0.0 && p->code->static_weight[i] == 0.0;
        if (dti_fits_f32(step->loss_weights[i]) && ((float)step->loss_weights[i] > 0.0f || nothing))
            continue;
        return dti_code_fail(p->code, DT_ERROR_INVALID,
                             ".loss_weights[%u] is %g; it must be above 0 and finite: see "
                             "dt_program_add_loss_weights",
                             i, step->loss_weights[i]);
    }
    for (uint32_t i = 0; step->coefficients && i < p->code->loss_count; i++) {
        if (!dti_fits_f32(step->coefficients[i]))
            return dti_code_fail(p->code, DT_ERROR_INVALID,
                                 ".coefficients[%u] is %g; it must be finite as an f32", i,
                                 step->coefficients[i]);
    }
    const double lr = dti_optim_lr_at(&p->code->optim, step->lr, dti_step_number(p, step));
    if (!dti_optim_lr_fits(&p->code->optim, lr))
        return dti_code_fail(p->code, DT_ERROR_INVALID, ".lr is %g; it must be from 0 to %g", lr,
                             dti_optim_lr_max(&p->code->optim));
    DTI_TRY(p->code->has_gradients && !p->micro_slots ? dti_micro_check(p, step) : DT_OK);
    DTI_TRY(dti_bindings_written(p, false));
    DTI_TRY(dti_sync_check(p, step));
    return dti_step_sees_whole(p);
}

static void dti_step_coefficients(dt_program *p, const dt_step_desc *step) {
    for (uint32_t i = 0; i < p->code->loss_count; i++)
        p->now->coefficients[i] = step->coefficients
                                      ? dti_or(step->coefficients[i], 0.0)
                                      : dti_or((double)p->code->desc.losses[i].coefficient, 1.0);
}

/* Adds the weights of this batch's losses, of targets that are written. */
static dt_result dti_step_weigh(dt_program *p, double *weights) {
    DTI_TRY(dti_bindings_written(p, false));
    dti_step_slot_refresh(p);
    if (p->code->weighs)
        DTI_TRY(dti_drive_alone(p, p->code->weigh_segment));
    const uint32_t *status = dti_program_out(p);
    for (uint32_t i = 0; i < p->code->loss_count; i++) {
        bool counted = p->code->static_weight[i] > 0.0;
        weights[i] += counted ? p->code->static_weight[i]
                              : (double)dti_status_f32(status, DTI_STATUS_TERM(i) + 1);
    }
    return DT_OK;
}

/* Whether the number of targets that count must be known before the step begins. A weight of the
 * global batch is 0 (not given), or the step is skipped if no target counts. */
static bool dti_step_weighs(const dt_program *p, const dt_step_desc *step) {
    bool weighs = p->code->desc.skip_empty && !step->loss_weights;
    for (uint32_t i = 0; step->loss_weights && i < p->code->loss_count; i++)
        weighs = weighs || step->loss_weights[i] == 0.0;
    return weighs;
}

/* *empty: no loss has a target that counts; false if that is not needed. */
static dt_result dti_step_look(dt_program *p, const dt_step_desc *step, bool *empty) {
    double own[DT_MAX_TERMS] = {0};
    const bool weighs = dti_step_weighs(p, step);
    dt_result result = weighs ? dti_step_weigh(p, own) : DT_OK;
    *empty = p->code->loss_count > 0 && (weighs || step->loss_weights);
    for (uint32_t i = 0; i < p->code->loss_count && !result; i++) {
        const double weight = step->loss_weights ? step->loss_weights[i] : own[i];
        *empty = *empty && weight == 0.0;
        if (step->loss_weights && weight == 0.0 && own[i] != 0.0)
            result = dti_code_fail(p->code, DT_ERROR_INVALID,
                                   ".loss_weights[%u] is 0, but this batch's is %g: add up all "
                                   "micro-batches' by dt_program_add_loss_weights",
                                   i, own[i]);
    }
    return result;
}

/* Opens a step in the slot that inputs were written to. Steps in flight count as committed. */
static dt_result dti_step_open(dt_program *p, const dt_step_desc *step) {
    bool empty;
    DTI_TRY(dti_step_look(p, step, &empty));
    DTI_TRY(dti_step_average_begin(p));
    if (!dti_inflight_count(p) && !(dti_is_concurrent(p) && p->store->running))
        DTI_TRY(dti_host_copy_before(p->store));
    if (p->code->desc.averaged)
        DTI_TRY(dti_store_average(p->store));
    dt_result result = DT_OK;
    uint32_t micros = DTI_MAX(step->micro_batches, 1u);
    if (p->code->has_gradients) /* an evaluation between two micro-batches changes nothing */
        p->store->empty = (!step->micro_batch || p->store->empty) && empty;
    p->now->commits = p->code->has_optim && step->micro_batch == micros - 1 &&
                      !(p->code->desc.skip_empty && p->store->empty);
    p->now->made = p->code->has_gradients;
    p->now->step = dti_step_number(p, step);
    for (uint32_t i = 0; i < p->code->loss_count; i++)
        p->now->weights[i] = step->loss_weights ? step->loss_weights[i] : 0.0;
    dti_step_coefficients(p, step);
    dti_step_slot_refresh(p);
    dti_step_block_fill(p, step);
    if (p->code->has_gradients)
        dti_step_rows(p, false);
    const dt_vulkan_semaphore none = {0};
    if (step->wait.semaphore)
        result = p->store->device->backend->sync(p->store->device, &step->wait, &none);
    if (result)
        return result;
    p->now->signal = step->signal;
    dti_drive_open(p, 0,
                   p->code->has_optim && !p->now->commits ? p->code->commit_segment
                                                          : p->code->weigh_segment);
    dti_micro_begin(p, step);
    return DT_OK;
}

static dt_result dti_step_begin(dt_program *p, const dt_step_desc *desc, bool whole) {
    dt_step_desc step = desc ? *desc : (dt_step_desc){0};
    DTI_TRY(dti_check_forked(p->base));
    if (p->started)
        return dti_started_fail(p);
    DTI_TRY(dti_step_check(p, &step, whole));
    p->shown = p->now;
    return dti_step_open(p, &step);
}

DTI_PUBLIC(dt_program_begin, (dt_program * p, const dt_step_desc *desc), p, DTI_OF(dt_program),
           (p, desc)) {
    return dti_step_begin(p, desc, false);
}

/* ---- advance, cancel */

static dt_result dti_check_running(dt_program *p) {
    dt_result result = dti_check_forked(p->base);
    if (!result && p->started)
        return dti_started_fail(p);
    if (result || dti_drive_is_open(p))
        return result;
    return dti_code_fail(p->code, DT_ERROR_INVALID, "no step is under way; call dt_program_begin");
}

static dt_result dti_step_poll(dt_program *p, dt_step_state *state) {
    DTI_TRY(dti_drive_poll(p));
    *state = p->now->busy || dti_drive_inside(p) ? DT_STEP_RUNNING
             : p->now->at == p->now->end         ? DT_STEP_DONE
                                                 : DT_STEP_READY;
    return DT_OK;
}

/* Whether the next segment, or the rest of one, may be started now. */
static dt_result dti_step_may_start(dt_program *p, dt_step_state *state, bool *may) {
    const bool was_busy = p->now->busy;
    dt_result result = dti_check_running(p);
    if (!result)
        result = dti_step_poll(p, state);
    *may = !result && !was_busy && *state != DT_STEP_DONE;
    if (*may && p->now->at >= p->code->forward_segments && p->now->at < p->code->commit_segment)
        result = dti_bindings_written(p, true);
    return result;
}

DTI_PUBLIC(dt_program_advance, (dt_program * p, dt_step_state *state), p, DTI_OF(dt_program),
           (p, state)) {
    DTI_NEED(p->base, state);
    bool may;
    dt_result result = dti_step_may_start(p, state, &may);
    if (result || !may)
        return result;
    DTI_TRY(dti_drive_inside(p) ? dti_drive_part(p, p->now->at + 1, (double)INFINITY)
                                : dti_drive_start(p, 1));
    return dti_step_poll(p, state);
}

/* The host's gradients come between the forward segment and the others. */
static uint32_t dti_step_reach(const dt_program *p) {
    for (uint32_t i = 0; i < p->code->binding_count && !p->now->at; i++)
        if (p->code->bindings[i].gradient && !p->code->bindings[i].output)
            return 1;
    return p->now->end;
}

DTI_PUBLIC(dt_program_advance_for, (dt_program * p, double ms, dt_step_state *state), p,
           DTI_OF(dt_program), (p, ms, state)) {
    DTI_NEED(p->base, state);
    bool may;
    DTI_TRY(dti_check_running(p));
    if (!(ms > 0.0))
        return dti_code_fail(p->code, DT_ERROR_INVALID, "ms is %g; it must be above 0", ms);
    DTI_TRY(dti_step_may_start(p, state, &may));
    if (!may)
        return DT_OK;
    DTI_TRY(dti_drive_part(p, dti_step_reach(p), ms));
    return dti_step_poll(p, state);
}

/* Half of a commit would be neither step. */
static dt_result dti_step_complete(dt_program *p, dt_report *report) {
    DTI_TRY(dti_drive_rest(p));
    return dt_program_end(p, report);
}

DTI_PUBLIC_REPORT(dt_program_cancel, (dt_program * p, dt_report *report), p, DTI_OF(dt_program),
                  (p, report)) {
    DTI_TRY(dti_check_running(p));
    if (report)
        *report = (dt_report){.step = p->now->step};
    if (dti_step_commits(p))
        return dti_step_complete(p, report);
    dt_result result = dti_drive_wait(p);
    if (p->now->at + dti_drive_inside(p) <= 1) /* only the forward segment: the sum is as it was */
        dti_micro_done(p, p->now->micro);
    return dti_drive_drop(p, result);
}

/* ---- the report */

/* Without weight there is no value: 0. A NaN weight counts as a weight. */
static double dti_term_value(double sum, double weight) {
    const bool weighs = weight > 0.0 || isnan(weight);
    return (weighs ? sum : 0.0) / (weighs ? weight : 1.0); /* not 0 / 0, which no mode may see */
}

static void dti_report_fill(const dt_program *p, const uint32_t *status, dt_report *r) {
    *r = (dt_report){.step = p->now->step, .empty = p->code->loss_count > 0};
    for (uint32_t i = 0; i < p->code->loss_count; i++) {
        r->loss_sum[i] = (double)dti_status_f32(status, p->code->terms[i].word);
        r->loss_weight[i] = (double)dti_status_f32(status, p->code->terms[i].word + 1);
        double weight = p->now->weights[i] > 0.0 ? p->now->weights[i] : r->loss_weight[i];
        r->empty = r->empty && weight == 0.0;
        if (weight > 0.0 || isnan(weight))
            r->loss += p->now->coefficients[i] * r->loss_sum[i] / weight;
    }
    for (uint32_t i = 0; i < p->code->metric_count; i++) {
        r->metric_sum[i] =
            (double)dti_status_f32(status, p->code->terms[p->code->loss_count + i].word);
        r->metric_weight[i] =
            (double)dti_status_f32(status, p->code->terms[p->code->loss_count + i].word + 1);
        r->metric[i] = dti_term_value(r->metric_sum[i], r->metric_weight[i]);
    }
    if (p->now->commits) {
        r->gradient_norm = (double)dti_status_f32(status, DTI_STATUS_NORM);
        r->lr = p->now->lr;
    }
}

static bool dti_step_faulty(const dt_program *p, const uint32_t *status) {
    if (p->now->commits && status[DTI_STATUS_ABORT])
        return true;
    if (p->code->desc.no_check)
        return false;
    for (uint32_t i = 0; i < p->code->loss_count; i++) {
        if (!dti_all_finite(status + p->code->terms[i].word, DT_F32, 2))
            return true;
    }
    return false;
}

/* An input that is not finite is reported before any op. */
static const dti_binding *dti_fault_input(const dt_program *p, uint32_t segments) {
    const char *host = p->store->device->backend->memory_host(p->now->memories[DTI_ARENA_IN]);
    for (uint32_t i = 0; i < p->code->binding_count; i++) {
        const dti_binding *binding = &p->code->bindings[i];
        const dt_dtype dtype = p->code->work->nodes[binding->node].dtype;
        if (binding->output || binding->segment >= segments || dti_is_whole(dtype) ||
            binding->external)
            continue;
        if (!dti_all_finite(host + binding->offset, dtype, binding->bytes / dti_dtype_bytes(dtype)))
            return binding;
    }
    return NULL;
}

/* Whether the buffer's new value is finite; true if it cannot be read. */
static bool dti_fault_is_finite(const dt_program *p, uint32_t param) {
    const dti_param *of = &p->store->layout.params[param];
    const uint64_t bytes = dti_bytes(DT_F32, of->elements);
    float *next = dti_alloc(p->base, (size_t)bytes);
    bool finite =
        !next || p->store->device->backend->memory_read(p->store->memories[DTI_ARENA_GRADIENT],
                                                        dti_bytes(DT_F32, of->offset), next, bytes);
    finite = finite || dti_all_finite(next, DT_F32, of->elements);
    dti_free(p->base, next);
    return finite;
}

/* A launch may move both running statistics of a norm: which of them it is. */
static uint32_t dti_fault_update(const dt_program *p, uint32_t node) {
    const dt_graph *g = p->code->work;
    const dti_node *n = &g->nodes[node];
    for (uint32_t i = 0; i < p->store->layout.param_count && dti_op_info_of(n->op)->family->update;
         i++) {
        const uint32_t other = p->code->update[i];
        if (other && dti_input_id(g, &g->nodes[other], 1) == dti_input_id(g, n, 1) &&
            !dti_fault_is_finite(p, i))
            return other;
    }
    return node;
}

/* The op, and the layer that it is of: a parameter's gradient is that parameter's. */
static dti_name dti_fault_name(const dt_program *p, uint32_t node) {
    const dti_node *n = &p->code->work->nodes[node];
    const char *op = dti_op_info_of(n->op)->name;
    dti_name name = dti_tensor_print((dt_tensor){p->code->work, node});
    if (n->label) { /* it may say nothing of the op */
        const dti_name label = name;
        snprintf(name.text, sizeof name.text, "%s %.200s", op, label.text);
    }
    for (uint32_t i = 0; i < p->store->layout.param_count; i++) {
        if (p->code->update[i] == node)
            snprintf(name.text, sizeof name.text, "%s %s, the next value of '%.150s',", op,
                     dti_shape_print(n->shape, n->samples).text,
                     p->code->work->nodes[p->store->layout.params[i].node].label);
        if (p->code->trained[i] && p->code->param_dx[i].id == node)
            snprintf(name.text, sizeof name.text, "%s %s, the gradient of '%.150s',", op,
                     dti_shape_print(n->shape, n->samples).text,
                     p->code->work->nodes[p->store->layout.params[i].node].label);
    }
    return name;
}

static const char *dti_fault_kept(const dt_program *p) {
    return p->code->has_optim ? "the store is unchanged" : "nothing is written to the store";
}

/* Faults that are found without another run. */
static bool dti_fault_is_known(dt_program *p, dt_report *r, uint32_t segments) {
    r->skipped = true;
    if (dti_update_fault(p, r, dti_fault_kept(p)))
        return true;
    const dti_binding *binding = dti_fault_input(p, segments);
    if (!binding)
        return false;
    r->fault_op = "input";
    dti_fail(p->base, DT_ERROR_NUMERIC,
             "program '%s', step %llu: %s %s holds a NaN or an infinity; %s", p->code->label,
             (unsigned long long)p->now->step, binding->gradient ? "the host gradient of" : "input",
             dti_tensor_name((dt_tensor){p->code->work, binding->node}).text, dti_fault_kept(p));
    return true;
}

static dt_result dti_step_fault_at(dt_program *p, dt_report *r, uint32_t launch) {
    const uint32_t node = dti_fault_update(p, p->code->list.launches[launch].node);
    r->fault_op = dti_op_info_of(p->code->work->nodes[node].op)->name;
    return dti_fail(p->base, DT_ERROR_NUMERIC,
                    "program '%s', step %llu: op %s gave a NaN or an infinity first, in the %s "
                    "pass; %s",
                    p->code->label, (unsigned long long)p->now->step, dti_fault_name(p, node).text,
                    node < p->code->backward_node ? "forward" : "backward", dti_fault_kept(p));
}

static dt_result dti_step_search(dt_program *p, dt_report *r, uint32_t from, uint32_t end,
                                 uint32_t *fault) {
    const uint32_t first = p->code->segments[from].first;
    uint32_t count = 0;
    for (uint32_t s = from; s < p->code->weigh_segment && s < end; s++)
        count += p->code->segments[s].count;
    *fault = first;
    if (dti_fault_is_known(p, r, end))
        return DT_ERROR_NUMERIC;
    DTI_TRY(p->store->device->backend->exec_find_fault(p->now->exec, first, count, fault));
    return *fault < first + count ? dti_step_fault_at(p, r, *fault) : DT_OK;
}

static dt_result dti_step_fault(dt_program *p, dt_report *r, uint32_t segments) {
    uint32_t launch;
    DTI_TRY(dti_step_search(p, r, 0, segments, &launch));
    return dti_fail(p->base, DT_ERROR_NUMERIC,
                    "program '%s', step %llu: the gradient's norm is not finite; %s",
                    p->code->label, (unsigned long long)p->now->step, dti_fault_kept(p));
}

static dt_result dti_step_finish(dt_program *p, dt_report *report) {
    dt_report local, *r = report ? report : &local;
    const uint32_t *status = dti_program_out(p);
    dti_drive_close(p);
    if (p->now->made)
        dti_step_rows(p, true);
    const bool looks = p->now->commits || p->code->check_segment < p->code->commit_segment;
    /* a slot whose own losses are not finite also finds that, if the micro-batch commits */
    if (looks && p->failed && status[DTI_STATUS_ABORT] == DTI_ABORT_BEHIND)
        return dti_step_not_run(p, r);
    dti_report_fill(p, status, r);
    if (dti_step_faulty(p, status))
        return dti_step_fault(p, r, p->code->check_segment);
    p->store->steps += p->now->commits;
    r->committed = p->now->commits;
    if (p->now->commits) {
        dti_step_averaged(p);
        dti_store_remember(p, status);
    }
    if (!dti_inflight_count(p))
        dti_micro_done(p, p->now->micro + 1);
    return p->now->commits && !dti_inflight_count(p) ? dti_host_copy_after(p->store) : DT_OK;
}

DTI_PUBLIC_REPORT(dt_program_end, (dt_program * p, dt_report *report), p, DTI_OF(dt_program),
                  (p, report)) {
    DTI_TRY(dti_check_running(p));
    if (p->now->at != p->now->end) {
        return dti_code_fail(p->code, DT_ERROR_INVALID,
                             "segment %u of %u has not been %s; advance until DT_STEP_DONE",
                             p->now->at + 1, p->now->end,
                             dti_drive_inside(p) ? "finished" : "started");
    }
    DTI_TRY(dti_drive_wait(p));
    return dti_step_finish(p, report);
}

static void dti_step_settle(dt_program *p) {
    if (!dti_forked(p->base) && !p->started && dti_drive_is_open(p) && dti_step_commits(p))
        dti_step_complete(p, NULL);
}

DTI_PUBLIC_REPORT(dt_program_run, (dt_program * p, const dt_step_desc *step, dt_report *report), p,
                  DTI_OF(dt_program), (p, step, report)) {
    DTI_TRY(p->code->has_gradients ? dti_bindings_written(p, true) : DT_OK);
    DTI_TRY(dti_step_begin(p, step, true));
    DTI_TRY(dti_drive_start(p, p->now->end));
    DTI_TRY(dti_drive_wait(p));
    return dti_step_finish(p, report);
}

/* ---- weigh */

DTI_PUBLIC(dt_program_add_loss_weights, (dt_program * p, double *weights), p, DTI_OF(dt_program),
           (p, weights)) {
    DTI_NEED(p->base, weights);
    DTI_TRY(dti_check_forked(p->base));
    if (!dti_code_has_units(p->code) && dti_store_whole(p->store))
        return DT_ERROR_INVALID;
    if (dti_store_open(p->store) && p->started)
        return dti_started_fail(p);
    if (dti_store_open(p->store))
        DTI_TRY(dti_step_others(p, true));
    DTI_TRY(dti_step_sees_whole(p));
    for (uint32_t i = 0; i < p->code->loss_count; i++) {
        if (p->code->static_weight[i] >= 0.0)
            continue;
        return dti_code_fail(p->code, DT_ERROR_UNSUPPORTED,
                             "the targets of .losses[%u] are computed in the graph, so its weight "
                             "is not known before the step; give targets as an input",
                             i);
    }
    return dti_step_weigh(p, weights);
}
