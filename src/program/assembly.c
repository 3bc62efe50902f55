/* Creating and running assemblies. Each program is driven by drive.c; here is only the order
 * between them, which is found anew in each step: whatever has what it needs is started. */

/* ---- create */

static dt_result dti_assembly_refuse(const dti_assembly *a, uint32_t edge, const char *what) {
    return dti_fail(a->base, DT_ERROR_INVALID, "edge %u of an assembly: %s", edge, what);
}

static dt_result dti_assembly_wire(dti_assembly *a, uint32_t i, const dti_edge *e) {
    if (e->from >= a->program_count || e->to >= a->program_count || e->from == e->to)
        return dti_assembly_refuse(a, i, "it goes from one of the programs to another");
    const dti_code *from = a->programs[e->from]->code, *to = a->programs[e->to]->code;
    dti_wire *w = &a->wires[i];
    *w = (dti_wire){.from = e->from,
                    .to = e->to,
                    .out = dti_code_port(from, e->y.id, true, e->gradient),
                    .in = dti_code_port(to, e->x.id, false, e->gradient)};
    if (!w->out || e->y.graph != a->programs[e->from]->store->graph)
        return dti_assembly_refuse(a, i, "y is no output of the first program, and no joint input");
    if (!w->in || e->x.graph != a->programs[e->to]->store->graph)
        return dti_assembly_refuse(a, i,
                                   "x is no input of the second program, and no host gradient");
    if (w->out->bytes != w->in->bytes ||
        from->work->nodes[w->out->node].dtype != to->work->nodes[w->in->node].dtype)
        return dti_assembly_refuse(a, i, "x and y differ in size or type");
    for (uint32_t k = 0; k < i; k++) {
        if (a->wires[k].in == w->in)
            return dti_assembly_refuse(a, i, "x has an edge already");
    }
    return DT_OK;
}

static dt_result dti_assembly_program(const dti_assembly *a, uint32_t i) {
    const dt_program *p = a->programs[i];
    for (uint32_t k = 0; k < i; k++) {
        if (a->programs[k]->store == p->store)
            return dti_fail(a->base, DT_ERROR_INVALID,
                            "programs %u and %u of an assembly have one store", k, i);
    }
    if (!p->code->joint)
        return dti_fail(a->base, DT_ERROR_INVALID, "program '%s' was made to run alone",
                        p->code->label);
    if (p->code->optim.clip_norm > 0.0)
        return dti_fail(a->base, DT_ERROR_UNSUPPORTED,
                        "program '%s': .clip_norm is one over all programs of an assembly, which "
                        "is not done; use .clip_value",
                        p->code->label);
    return DT_OK;
}

/* Whether all that segment `segment` of a program needs is there when programs have got to `at`. */
static bool dti_assembly_fed(const dti_assembly *a, uint32_t program, const uint32_t *at) {
    bool fed = true;
    for (uint32_t i = 0; i < a->wire_count; i++) {
        const dti_wire *w = &a->wires[i];
        if (w->to == program && w->in->segment == at[program])
            fed = fed && at[w->from] > w->out->segment;
    }
    return fed;
}

/* Runs the segments in mind: whether they come to an end. */
static dt_result dti_assembly_ends(const dti_assembly *a) {
    uint32_t *at = dti_alloc_array(a->base, a->program_count, sizeof *at);
    uint32_t left = 0;
    if (!at)
        return DT_ERROR_MEMORY;
    for (bool moved = true; moved;) {
        moved = false;
        left = 0;
        for (uint32_t i = 0; i < a->program_count; i++) {
            const uint32_t end = a->programs[i]->code->commit_segment;
            for (; at[i] < end && dti_assembly_fed(a, i, at); moved = true)
                at[i]++;
            left += end - at[i];
        }
    }
    dti_free(a->base, at);
    if (!left)
        return DT_OK;
    return dti_fail(a->base, DT_ERROR_INVALID,
                    "an assembly whose edges go round in a circle: %u segments would wait for ever",
                    left);
}

static dt_result dti_assembly_make(dti_assembly *a, dt_program *const *programs,
                                   const dti_edge *edges) {
    a->programs = dti_alloc_array(a->base, a->program_count, sizeof(dt_program *));
    a->wires = dti_alloc_array(a->base, a->wire_count + 1u, sizeof *a->wires);
    dt_result result = a->programs && a->wires ? DT_OK : DT_ERROR_MEMORY;
    for (uint32_t i = 0; i < a->program_count && !result; i++)
        a->programs[i] = programs[i];
    for (uint32_t i = 0; i < a->program_count && !result; i++)
        result = dti_assembly_program(a, i);
    for (uint32_t i = 0; i < a->wire_count && !result; i++)
        result = dti_assembly_wire(a, i, &edges[i]);
    if (!result)
        result = dti_assembly_ends(a);
    for (uint32_t i = 0; i < a->wire_count && !result; i++) {
        dt_program *to = a->programs[a->wires[i].to];
        to->written[a->wires[i].in - to->code->ports] = true; /* by every step */
    }
    return result;
}

static dt_result dti_assembly_create(dt_program *const *programs, uint32_t program_count,
                                     const dti_edge *edges, uint32_t edge_count,
                                     dti_assembly **out) {
    dti_base *base = programs[0]->base;
    dti_assembly *a = dti_alloc(base, sizeof *a);
    *out = NULL;
    if (!a)
        return DT_ERROR_MEMORY;
    *a = (dti_assembly){.base = base, .program_count = program_count, .wire_count = edge_count};
    dt_result result = dti_assembly_make(a, programs, edges);
    if (result) {
        dti_assembly_destroy(a);
        return result;
    }
    *out = a;
    return DT_OK;
}

static void dti_assembly_destroy(dti_assembly *a) {
    if (!a)
        return;
    dti_free(a->base, a->programs);
    dti_free(a->base, a->wires);
    dti_free(a->base, a);
}

/* ---- one step */

/* A result of program i's, whose text is its own context's. */
static dt_result dti_assembly_said(const dti_assembly *a, uint32_t i, dt_result result) {
    const dti_base *base = a->programs[i]->base;
    return result && base != a->base ? dti_fail(a->base, result, "%s", base->error) : result;
}

static dt_result dti_assembly_begin(dti_assembly *a, const dt_step_desc *step) {
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < a->wire_count; i++)
        a->wires[i].delivered = false;
    for (uint32_t i = 0; i < a->program_count && !result; i++)
        result = dti_assembly_said(a, i, dt_program_begin(a->programs[i], step));
    return result;
}

static void *dti_assembly_host(const dt_program *p, dti_arena arena, const dti_port *port) {
    char *host = p->store->device->backend->memory_host(p->now->memories[arena]);
    return host + port->offset;
}

/* What the segments of a program that have ended give. The one that it goes to has not been
 * started: it waits for this. */
static void dti_assembly_deliver(dti_assembly *a, uint32_t program) {
    const dt_program *from = a->programs[program];
    for (uint32_t i = 0; i < a->wire_count; i++) {
        dti_wire *w = &a->wires[i];
        if (w->from != program || w->delivered || w->out->segment >= from->now->at)
            continue;
        memcpy(dti_assembly_host(a->programs[w->to], DTI_ARENA_IN, w->in),
               dti_assembly_host(from, DTI_ARENA_OUT, w->out), w->in->bytes);
        w->delivered = true;
    }
}

static bool dti_assembly_ready(const dti_assembly *a, uint32_t program) {
    bool ready = true;
    for (uint32_t i = 0; i < a->wire_count; i++) {
        const dti_wire *w = &a->wires[i];
        if (w->to == program && w->in->segment == a->programs[program]->now->at)
            ready = ready && w->delivered;
    }
    return ready;
}

/* Starts what can be; *open: a program has segments left, or runs one. */
static dt_result dti_assembly_look(dti_assembly *a, bool *open, bool *moved) {
    *open = *moved = false;
    for (uint32_t i = 0; i < a->program_count; i++) {
        dt_program *p = a->programs[i];
        dt_result result = dti_drive_poll(p);
        if (!result && !dti_drive_is_busy(p)) {
            dti_assembly_deliver(a, i);
            if (p->now->at < p->code->commit_segment && dti_assembly_ready(a, i)) {
                result = dti_drive_start(p, 1);
                *moved = true;
            }
        }
        if (result)
            return dti_assembly_said(a, i, result);
        *open = *open || dti_drive_is_busy(p) || p->now->at < p->code->commit_segment;
    }
    return DT_OK;
}

static dt_result dti_assembly_compute(dti_assembly *a) {
    bool open = true, moved = true;
    dt_result result = DT_OK;
    while (open && !result) {
        if (!moved)
            dti_thread_yield();
        result = dti_assembly_look(a, &open, &moved);
    }
    return result;
}

/* All devices judge at once. *faulty: one of them says no. */
static dt_result dti_assembly_judge(dti_assembly *a, bool *faulty) {
    dt_result result = DT_OK;
    *faulty = false;
    for (uint32_t i = 0; i < a->program_count && !result; i++)
        result = dti_assembly_said(a, i, dti_drive_start(a->programs[i], 1));
    for (uint32_t i = 0; i < a->program_count && !result; i++) {
        bool no = false;
        double norm;
        result = dti_assembly_said(a, i, dti_program_judged(a->programs[i], &norm, &no));
        *faulty = *faulty || no;
    }
    return result;
}

/* Before any update: nothing has changed. */
static void dti_assembly_drop(dti_assembly *a) {
    char text[sizeof a->base->error];
    memcpy(text, a->base->error, sizeof text);
    for (uint32_t i = 0; i < a->program_count; i++) {
        if (dti_drive_is_open(a->programs[i]))
            dt_program_cancel(a->programs[i], NULL);
    }
    memcpy(a->base->error, text, sizeof text);
}

/* The program that gave something not finite first, and in which of its segments: by what went over
 * the wires, earliest segments first; else the first whose judge said no. */
static uint32_t dti_assembly_culprit(const dti_assembly *a, uint32_t *segments) {
    const dti_wire *first = NULL;
    for (uint32_t i = 0; i < a->wire_count; i++) {
        const dti_wire *w = &a->wires[i];
        const void *data = dti_assembly_host(a->programs[w->to], DTI_ARENA_IN, w->in);
        const dt_dtype dtype = a->programs[w->to]->code->work->nodes[w->in->node].dtype;
        const uint64_t count = w->in->bytes / dti_dtype_bytes(dtype);
        if (dti_is_whole(dtype) || dti_all_finite(data, dtype, count))
            continue;
        if (!first || w->in->segment < first->in->segment)
            first = w;
    }
    if (first) {
        *segments = first->out->segment + 1u;
        return first->from;
    }
    uint32_t i = 0;
    while (i + 1 < a->program_count && !dti_program_out(a->programs[i])[DTI_STATUS_ABORT])
        i++;
    *segments = a->programs[i]->code->commit_segment;
    return i;
}

static dt_result dti_assembly_fault(dti_assembly *a, dt_report *reports) {
    dt_report local = {0};
    uint32_t segments;
    const uint32_t i = dti_assembly_culprit(a, &segments);
    dt_program *p = a->programs[i];
    dt_result result = dti_step_fault(p, reports ? &reports[i] : &local, segments);
    return dti_assembly_said(a, i, result);
}

static dt_result dti_assembly_update(dti_assembly *a) {
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < a->program_count && !result; i++)
        result = dti_assembly_said(a, i, dti_drive_start(a->programs[i], 1));
    for (uint32_t i = 0; i < a->program_count && !result; i++)
        result = dti_assembly_said(a, i, dti_program_committed(a->programs[i]));
    if (!result)
        return DT_OK;
    char text[sizeof a->base->error];
    memcpy(text, a->base->error, sizeof text);
    return dti_fail(a->base, result, "%.800s; other devices may be a step further: load them anew",
                    text);
}

static dt_result dti_assembly_run(dti_assembly *a, const dt_step_desc *step, dt_report *reports) {
    bool faulty = false;
    dt_result result = dti_assembly_begin(a, step);
    if (!result)
        result = dti_assembly_compute(a);
    if (!result)
        result = dti_assembly_judge(a, &faulty);
    for (uint32_t i = 0; i < a->program_count && !result && reports; i++)
        dti_report_fill(a->programs[i], dti_program_out(a->programs[i]), &reports[i]);
    if (!result && !faulty)
        return dti_assembly_update(a);
    if (!result)
        result = dti_assembly_fault(a, reports);
    dti_assembly_drop(a);
    return result;
}
