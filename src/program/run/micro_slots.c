/* The micro-batch slots of a stage's program. Several micro-batches are alive in a stage at once.
 * The values of each must stay between its forward and backward part. So each slot has transients,
 * inputs, outputs and launches of its own. Parameters, gradients and state exist once. Actions come
 * one at a time: between two of them no step of the store runs. Gradients are added in the order of
 * backward parts; the schedule (parallel/pipeline/pipe_schedule.c) decides that order. */

static dt_result dti_program_create_micro_slots(dt_store *store, const dt_program_desc *desc,
                                                const dti_batch_slices *batch_slices,
                                                const dti_staged *staged, uint32_t micro_slots,
                                                dt_program **out) {
    *out = NULL;
    if (micro_slots > DTI_MICRO_SLOTS_MAX)
        return dti_fail(store->base, DT_ERROR_UNSUPPORTED,
                        "program '%s': %u live micro-batches; at most %d: use another "
                        ".parallel.schedule, or a smaller .accumulate",
                        desc->label, micro_slots, DTI_MICRO_SLOTS_MAX);
    dt_result result = dti_program_make(store, desc, batch_slices, staged, micro_slots, out);
    for (uint32_t i = 0; !result && i < (*out)->code->binding_count; i++) {
        const dti_binding *binding = &(*out)->code->bindings[i]; /* the inputs from other stages */
        const dti_node *n = &(*out)->code->work->nodes[binding->node];
        if (!binding->output &&
            (binding->gradient || (n->op == DTI_OP_INPUT && !n->values && n->attr.i[2])))
            (*out)->written[i] = true;
    }
    return result;
}

static dt_result dti_micro_slot_begin(dt_program *p, const dt_step_desc *step,
                                      const double *weights) {
    DTI_TRY(dt_program_begin(p, step));
    dti_program_set_weights(p, weights);
    p->store->running = NULL;
    return DT_OK;
}

static dt_result dti_micro_slot_run(dt_program *p, uint32_t segments) {
    p->store->running = p;
    dt_result result = dti_drive_start(p, segments);
    if (!result)
        result = dti_drive_wait(p);
    p->store->running = NULL;
    return result;
}

static void dti_micro_slot_end(dt_program *p) {
    p->store->running = p;
    dti_drive_close(p);
}

static void *dti_micro_slot_host(const dt_program *p, uint32_t micro_slot,
                                 const dti_binding *binding) {
    const dti_arena arena = binding->output ? DTI_ARENA_OUT : DTI_ARENA_IN;
    char *host = p->store->device->backend->memory_host(p->step_slots[micro_slot].memories[arena]);
    return host + binding->offset;
}

static const float *dti_micro_slot_pairs(const dt_program *p) {
    return (const float *)(const void *)(dti_program_out(p) + p->code->pairs_out / DTI_WORD_BYTES);
}

static float *dti_micro_slot_pairs_of_all(const dt_program *p) {
    return (float *)(void *)(dti_program_in(p) + p->code->pairs_in);
}
