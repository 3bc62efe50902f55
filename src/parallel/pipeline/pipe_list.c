/* The lists of a grid's devices, from its schedules. A forward part begins when its inputs have
 * arrived and its micro-batch slot is free. The slot is free when all outputs of its former
 * micro-batch have been taken. A backward part begins when the gradients of the part's outputs have
 * arrived. Nothing is decided while a step runs. */

typedef struct dti_pipe_list_of { /* a device's list of a shape of batch, which is written */
    const dti_parallel *par;
    const dti_pipe_device *device;
    uint32_t shape;
    uint32_t met; /* sync points so far */
} dti_pipe_list_of;

static const dti_pipe_flow *dti_pipe_flow_to(const dti_pipe *pipe, uint32_t pipeline,
                                             const dti_pipe_link *l, bool gradient) {
    const uint16_t from = gradient ? l->to : l->from, to = gradient ? l->back : l->to;
    for (uint32_t i = 0; i < pipe->plan->flow_count; i++) {
        const dti_pipe_flow *f = &pipe->plan->flows[i];
        if (!f->sends && f->pipeline == pipeline && f->here == to && f->there == from &&
            f->gradient == gradient)
            return f;
    }
    return NULL;
}

/* ---- needs; counts are of micro-batches, so `micro` is there when one more has ended */

/* The tensors that a link brings to a chunk: from a chunk here, or from another rank's. */
static void dti_pipe_need_link(const dti_pipe *pipe, dti_list *list, uint32_t pipeline,
                               const dti_pipe_link *l, bool gradient, uint32_t micro) {
    const dti_pipe_chunk *from = dti_pipe_chunk_of(pipe, pipeline, gradient ? l->to : l->from);
    const dti_pipe_flow *f = dti_pipe_flow_to(pipe, pipeline, l, gradient);
    if (from->store)
        dti_list_needs(list, dti_pipe_counter(pipe, from, gradient), micro + 1);
    else if (f)
        dti_list_needs(list, dti_pipe_flow_counter(pipe, f), micro + 1);
}

/* Number `before` of its micro-batches, from 1, has left the slot. */
static void dti_pipe_need_slot(const dti_pipe *pipe, dti_list *list, const dti_pipe_chunk *chunk,
                               uint32_t before) {
    for (uint32_t i = 0; i < pipe->plan->flow_count && before; i++) {
        const dti_pipe_flow *f = &pipe->plan->flows[i];
        if (f->sends && f->pipeline == chunk->pipeline && f->here == chunk->index)
            dti_list_needs(list, dti_pipe_flow_counter(pipe, f), before);
    }
    for (uint32_t i = 0; i < pipe->plan->cut.link_count && before; i++) {
        const dti_pipe_link *l = &pipe->plan->cut.links[i];
        const dti_pipe_chunk *to = dti_pipe_chunk_of(pipe, chunk->pipeline, l->to);
        if (l->from == chunk->index && to->store)
            dti_list_needs(list, dti_pipe_counter(pipe, to, false), before);
    }
}

static void dti_pipe_need_forward(const dti_pipe *pipe, dti_list *list, const dti_pipe_chunk *chunk,
                                  uint32_t shape, uint32_t micro) {
    dti_pipe_need_slot(pipe, list, chunk, chunk->runs[shape][micro].before);
    for (uint32_t i = 0; i < pipe->plan->cut.link_count; i++) {
        if (pipe->plan->cut.links[i].to == chunk->index)
            dti_pipe_need_link(pipe, list, chunk->pipeline, &pipe->plan->cut.links[i], false,
                               micro);
    }
}

/* Without a gradient it comes after the next chunk's. */
static void dti_pipe_need_backward(const dti_pipe *pipe, dti_list *list,
                                   const dti_pipe_chunk *chunk, uint32_t micro) {
    for (uint32_t i = 0; i < pipe->plan->cut.link_count; i++) {
        const dti_pipe_link *l = &pipe->plan->cut.links[i];
        if (l->gradient && l->back == chunk->index)
            dti_pipe_need_link(pipe, list, chunk->pipeline, l, true, micro);
    }
    const dti_pipe_chunk *next = chunk + 1;
    if (chunk->index + 1 < pipe->chunk_count && next->store)
        dti_list_needs(list, dti_pipe_counter(pipe, next, true), micro + 1);
}

/* No device still reads its operands of the sync points before: new ones take their place. */
static void dti_pipe_need_left(const dti_pipe_list_of *of, dti_list *list) {
    const dti_tp_place *place = of->device->tp;
    if (place && of->met)
        dti_list_needs(list, place->counters + DTI_TP_LEFT, of->met * place->count);
}

/* ---- actions */

static dti_action dti_pipe_action_of(const dti_pipe *pipe, const dti_pipe_list_of *of,
                                     const dti_pipe_chunk *chunk, uint32_t micro) {
    return (dti_action){.part = (uint16_t)(chunk - pipe->chunks), .micro = micro, .met = of->met};
}

static void dti_pipe_list_put(dti_list *list, dti_action action, dti_action_kind kind) {
    action.kind = (uint8_t)kind;
    dti_list_put(list, action);
}

/* The last one that was put. */
static void dti_pipe_list_ends(dti_list *list, dti_action_time ends, uint32_t raises) {
    if (!list->actions)
        return;
    list->actions[list->count - 1].ends = (uint8_t)ends;
    list->actions[list->count - 1].raises = raises;
}

/* Nothing has been gathered yet. */
static void dti_pipe_list_units_open(const dti_pipe_list_of *of) {
    const dti_pipe *pipe = of->par->pipe;
    const dti_pipe_device *device = of->device;
    for (uint32_t c = device->place; c < pipe->chunk_count; c += pipe->mesh->stages) {
        dti_pipe_stage *stage =
            dti_pipe_stage_of(pipe, dti_pipe_chunk_of(pipe, device->pipeline, c));
        stage->gathered =
            (dti_list_units){.counters = stage->units.counters, .ranks = stage->units.comm != NULL};
    }
}

/* The units of a chunk gathered so far; NULL: it has none. */
static dti_list_units *dti_pipe_list_units(const dti_pipe *pipe, uint32_t part,
                                           const dti_code *code) {
    dti_pipe_stage *stage = dti_pipe_stage_of(pipe, &pipe->chunks[part]);
    if (!stage->buckets)
        return NULL;
    dti_runs_list_units(&stage->gathered, code);
    return &stage->gathered;
}

static void dti_pipe_put_segments(dti_pipe_list_of *of, dti_list *list, dti_action action,
                                  uint32_t from, uint32_t end) {
    const dti_pipe *pipe = of->par->pipe;
    const dt_program *p = pipe->chunks[action.part].runs[of->shape][action.micro].program;
    const dti_code *code = dti_program_code(p);
    dti_list_units *units = dti_pipe_list_units(pipe, action.part, code);
    const dti_list_micro micro = {.whole = !units,
                                  .units = units,
                                  .forward = dti_program_forward(p),
                                  .segments = dti_program_segments(p),
                                  .sync_points = code->sync_points,
                                  .sync_point_count = code->sync_point_count};
    const uint32_t first = list->count, met = of->met;
    dti_list_segments(list, action, &micro, from, end);
    for (uint32_t i = 0; i < code->sync_point_count; i++)
        of->met += code->sync_points[i].segment >= from && code->sync_points[i].segment < end;
    for (uint32_t i = first, before = met; i < list->count && list->actions; i++) {
        if (list->actions[i].kind != DTI_ACTION_GATHER)
            list->actions[i].met = before;
        before += list->actions[i].kind == DTI_ACTION_COLLECTIVE;
    }
}

/* For a micro-batch that only replicas on other ranks have: gathers with them, for later parts. */
static void dti_pipe_put_gathers(dti_pipe_list_of *of, dti_list *list, const dti_pipe_chunk *chunk,
                                 const dti_pipe_action *a) {
    const dti_pipe *pipe = of->par->pipe;
    const dt_program *p = dti_pipe_units_program(pipe, chunk, of->shape, a->micro);
    const dti_action action = dti_pipe_action_of(pipe, of, chunk, a->micro);
    dti_list_units *units = p ? dti_pipe_list_units(pipe, action.part, dti_program_code(p)) : NULL;
    const dti_list_micro micro = {.idle = true, .units = units};
    if (!units || !units->ranks)
        return;
    const uint32_t parts[] = {0, dti_program_forward(p), dti_program_leaving(p),
                              dti_program_segments(p)},
                   first = list->count;
    dti_list_segments(list, action, &micro, parts[a->kind], parts[a->kind + 1]);
    for (uint32_t i = first; i < list->count && list->actions; i++)
        list->actions[i].kind = DTI_ACTION_GATHER;
}

/* A forward part; a backward part, or only the part that other chunks need; and its rest: gradients
 * of parameters. */
static void dti_pipe_put_part(dti_pipe_list_of *of, dti_list *list, const dti_pipe_chunk *chunk,
                              const dti_pipe_action *a) {
    const dti_pipe *pipe = of->par->pipe;
    const dt_program *p = chunk->runs[of->shape][a->micro].program;
    const uint32_t parts[] = {0, dti_program_forward(p), dti_program_leaving(p),
                              dti_program_segments(p)};
    const dti_action action = dti_pipe_action_of(pipe, of, chunk, a->micro);
    const bool forward = a->kind == DTI_PIPE_FORWARD, backward = a->kind == DTI_PIPE_BACKWARD,
               split = of->par->desc.parallel.schedule == DT_PIPELINE_ZERO_BUBBLE;
    dti_pipe_need_left(of, list);
    if (backward)
        dti_pipe_need_backward(pipe, list, chunk, a->micro);
    if (forward) {
        dti_pipe_need_forward(pipe, list, chunk, of->shape, a->micro);
        dti_pipe_list_put(list, action, DTI_ACTION_WRITE);
        dti_pipe_list_put(list, action, DTI_ACTION_OPEN);
    }
    if (forward && pipe->plan->cut.link_count)
        dti_pipe_list_put(list, action, DTI_ACTION_RECEIVE);
    dti_pipe_put_segments(of, list, action, parts[a->kind], parts[a->kind + 1]);
    if (backward && pipe->plan->cut.link_count)
        dti_pipe_list_put(list, action, DTI_ACTION_SEND);
    if (backward || pipe->plan->forward)
        dti_pipe_list_put(list, action, DTI_ACTION_CLOSE);
    if (a->kind == (split ? DTI_PIPE_WEIGHT : DTI_PIPE_BACKWARD))
        dti_pipe_list_put(list, action, DTI_ACTION_SUM);
    dti_pipe_list_ends(list, forward ? DTI_ENDS_FORWARD : DTI_ENDS_BACKWARD,
                       a->kind == DTI_PIPE_WEIGHT ? 0
                                                  : dti_pipe_counter(pipe, chunk, backward) + 1);
}

/* ---- a list */

/* Without rows its gradients are zeros. */
static void dti_pipe_put_none(const dti_pipe_list_of *of, dti_list *list) {
    const dti_pipe *pipe = of->par->pipe;
    const dti_pipe_device *device = of->device;
    for (uint32_t c = device->place; c < pipe->chunk_count; c += pipe->mesh->stages)
        dti_pipe_list_put(
            list, dti_pipe_action_of(pipe, of, dti_pipe_chunk_of(pipe, device->pipeline, c), 0),
            DTI_ACTION_ZEROS);
}

static void dti_pipe_list_write(void *arg, dti_list *list) {
    dti_pipe_list_of *of = arg;
    const dti_pipe *pipe = of->par->pipe;
    const dti_pipe_device *device = of->device;
    const dti_pipeline *pipeline = &pipe->pipelines[device->pipeline];
    const dti_pipe_schedule *s = &pipeline->schedules[of->shape];
    const uint32_t micros = pipeline->runs[of->shape].count;
    of->met = 0;
    dti_pipe_list_units_open(of);
    if (!micros && !pipe->plan->forward)
        dti_pipe_put_none(of, list);
    for (uint32_t i = 0; i < s->each; i++) {
        const dti_pipe_action a = dti_pipe_list(s, device->place)[i];
        const dti_pipe_chunk *chunk = dti_pipe_chunk_of(pipe, device->pipeline, a.chunk);
        if (a.micro >= micros)
            dti_pipe_put_gathers(of, list, chunk, &a);
        else if (chunk->runs[of->shape][a.micro].program) /* it has something to compute */
            dti_pipe_put_part(of, list, chunk, &a);
    }
}

/* ---- all of them */

static dt_result dti_pipe_counters_make(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_plan *plan = pipe->plan;
    uint32_t at = 2 * pipe->pipeline_count * pipe->chunk_count;
    for (uint32_t i = 0; i < pipe->tp_count; i++, at += DTI_TP_COUNTERS)
        pipe->tp_groups[i].counters = at;
    for (uint32_t s = 0; s < pipe->stage_count; s++, at += DTI_UNITS_COUNTERS)
        pipe->stages[s].units.counters = at;
    par->sums.ended = at++;
    plan->flow_counters = at;
    plan->counter_count = at + plan->flow_count;
    plan->counters = dti_alloc_array(par->base, plan->counter_count, sizeof *plan->counters);
    for (uint32_t i = 0; i < plan->flow_count && plan->counters; i++)
        plan->flows[i].done = &plan->counters[at + i];
    par->counters = plan->counters;
    return plan->counters ? DT_OK : DT_ERROR_MEMORY;
}

static dt_result dti_pipe_lists_make(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const uint32_t first = dti_pipe_shape(pipe, 0);
    dt_result result = dti_pipe_counters_make(par);
    for (uint32_t i = 0; i < 2 * pipe->device_count && !result; i++) {
        dti_pipe_device *device = &pipe->devices[i / 2];
        dti_pipe_list_of of = {.par = par, .device = device, .shape = first + i % 2};
        if (pipe->pipelines[device->pipeline].runs[of.shape].rows)
            result = dti_list_make(par->base, &device->lists[of.shape], dti_pipe_list_write, &of);
    }
    return result;
}

static void dti_pipe_lists_free(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    const uint32_t first = dti_pipe_shape(pipe, 0);
    for (uint32_t d = 0; pipe->devices && d < pipe->device_count; d++) {
        dti_list_free(par->base, &pipe->devices[d].lists[first]);
        dti_list_free(par->base, &pipe->devices[d].lists[first + 1]);
    }
    dti_free(par->base, pipe->plan->counters);
    pipe->plan->counters = par->counters = NULL;
}
