/* The lanes of a stage's program. Several micro-batches are alive in a stage at once: what one of
 * them has between its forward and its backward part must stay, so each has transients, inputs,
 * outputs and launches of its own, as a program in flight has for its steps. Parameters, gradients
 * and state are one. Actions come one at a time: between two of them no step of the store is under
 * way, though those of several lanes are not over. Gradients are added up in the order of backward
 * parts, which is the schedule's to keep. */

static dt_result dti_program_create_lanes(dt_store *store, const dt_program_desc *desc,
                                          const dti_shards *shards, const dti_joint *joint,
                                          uint32_t lanes, dt_program **out) {
    *out = NULL;
    if (lanes > DTI_LANES_MAX)
        return dti_fail(store->base, DT_ERROR_UNSUPPORTED,
                        "program '%s': %u micro-batches alive at once; at most %d: take another "
                        "schedule, or fewer micro-batches",
                        desc->label, lanes, DTI_LANES_MAX);
    dt_result result = dti_program_make(store, desc, shards, joint, lanes, out);
    for (uint32_t i = 0; !result && i < (*out)->code->port_count; i++) {
        const dti_port *port = &(*out)->code->ports[i]; /* what other stages write */
        const dti_node *n = &(*out)->code->work->nodes[port->node];
        if (!port->output &&
            (port->gradient || (n->op == DTI_OP_INPUT && !n->values && n->attr.i[2])))
            (*out)->written[i] = true;
    }
    return result;
}

static void dti_lane_take(dt_program *p, uint32_t lane) {
    p->now = p->shown = &p->turns[lane];
}

static dt_result dti_lane_begin(dt_program *p, const dt_step_desc *step, const double *weights) {
    dt_result result = dt_program_begin(p, step);
    if (result)
        return result;
    dti_program_set_weights(p, weights);
    p->store->running = NULL;
    return DT_OK;
}

static dt_result dti_lane_run(dt_program *p, uint32_t segments) {
    p->store->running = p;
    dt_result result = dti_drive_start(p, segments);
    if (!result)
        result = dti_drive_wait(p);
    p->store->running = NULL;
    return result;
}

static void dti_lane_end(dt_program *p) {
    p->store->running = p;
    dti_drive_close(p);
}

static void *dti_lane_host(const dt_program *p, uint32_t lane, const dti_port *port) {
    const dti_arena arena = port->output ? DTI_ARENA_OUT : DTI_ARENA_IN;
    char *host = p->store->device->backend->memory_host(p->turns[lane].memories[arena]);
    return host + port->offset;
}

static const float *dti_lane_pairs(const dt_program *p) {
    const char *out = p->store->device->backend->memory_host(p->now->memories[DTI_ARENA_OUT]);
    return (const float *)(const void *)(out + p->code->pairs_out);
}

static float *dti_lane_pairs_of_all(const dt_program *p) {
    return (float *)(void *)(dti_program_in(p) + p->code->pairs_in);
}
