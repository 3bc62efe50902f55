/* How lists are written. The order of a micro-batch is that of its code: forward segments, the
 * weights of its losses, backward segments. An evaluation's ends with the forward segments. A sync
 * point stands after the segment that ends with its operand. */

static dt_result dti_list_make(dti_base *base, dti_list *list, dti_list_write *write, void *of) {
    write(of, list);
    dti_action *actions = dti_alloc_array(base, list->count + 1u, sizeof *actions);
    list->needs = dti_alloc_array(base, list->need_count + 1u, sizeof *list->needs);
    list->actions = actions;
    list->count = list->need_count = list->taken = 0;
    if (!list->actions || !list->needs)
        return DT_ERROR_MEMORY;
    write(of, list);
    return DT_OK;
}

static void dti_list_free(dti_base *base, dti_list *list) {
    DTI_FREE(base, list->actions, list->needs);
    *list = (dti_list){0};
}

static void dti_list_put(dti_list *list, dti_action action) {
    action.need = list->taken;
    action.need_count = (uint16_t)(list->need_count - list->taken);
    list->taken = list->need_count;
    if (list->actions)
        list->actions[list->count] = action;
    list->count++;
}

static void dti_list_needs(dti_list *list, uint32_t counter, uint32_t value) {
    for (uint32_t i = list->taken; list->needs && i < list->need_count; i++) {
        if (list->needs[i].counter == counter) {
            list->needs[i].value = DTI_MAX(list->needs[i].value, value);
            return;
        }
    }
    if (list->needs)
        list->needs[list->need_count] = (dti_need){counter, value};
    list->need_count++;
}

static void dti_list_add(dti_list *list, dti_action_kind kind, uint32_t micro) {
    /* all that the micro-batch gives must be there */
    dti_list_put(list, (dti_action){.kind = (uint8_t)kind,
                                    .after = kind == DTI_ACTION_CLOSE ? list->count : 0,
                                    .ends = kind == DTI_ACTION_WEIGHTS ? DTI_ENDS_FORWARD
                                            : kind == DTI_ACTION_CLOSE ? DTI_ENDS_BACKWARD
                                                                       : DTI_ENDS_NOTHING,
                                    .micro = micro});
}

/* The device's operand must be there. */
static void dti_list_meet(dti_list *list, dti_action action, uint32_t sync_point) {
    action.kind = DTI_ACTION_COLLECTIVE;
    action.after = list->count;
    action.what = (uint16_t)sync_point;
    dti_list_put(list, action);
}

/* A unit takes the place of others, so collectives that were begun have ended. */
static void dti_list_unit(dti_list *list, dti_action action, const dti_list_micro *of,
                          uint32_t unit) {
    dti_list_units *u = of->units;
    u->resident = (u->resident & ~u->code->unit_evicts[unit]) | dti_unit_bit(unit);
    action.kind = of->idle ? DTI_ACTION_PASS : DTI_ACTION_GATHER;
    action.what = (uint16_t)unit;
    action.after = of->idle ? 0 : list->count;
    action.met = u->count++;
    if (u->ranks) {
        action.raises = u->counters + DTI_UNITS_TAKEN + action.met % DTI_UNITS_STAGED + 1;
        dti_list_needs(list, u->counters + DTI_UNITS_ARRIVED, u->count);
    }
    if (u->ranks || !of->idle)
        dti_list_put(list, action);
}

static void dti_list_gather(dti_list *list, dti_action action, const dti_list_micro *of,
                            uint32_t segment) {
    const uint64_t missing = of->units->code->unit_reads[segment] & ~of->units->resident;
    for (uint32_t unit = 0; unit < of->units->code->slices.bucket_count; unit++) {
        if (missing & dti_unit_bit(unit))
            dti_list_unit(list, action, of, unit);
    }
}

/* The gradients whose place a segment takes have left: first the device has to give them. Returns
 * the action's `after`. */
static uint32_t dti_list_leave(dti_list *list, dti_list_units *u, uint32_t segment) {
    const uint32_t ahead = DTI_UNITS_AHEAD, each = DTI_COUNT(u->begun);
    const uint32_t gone =
        u->code->units_leave && segment > ahead ? u->code->segment_buckets[segment - 1 - ahead] : 0;
    u->begun[segment % each] = list->count;
    if (!gone)
        return 0;
    dti_list_needs(list, u->counters + DTI_UNITS_SUMMED, gone);
    return u->begun[(segment - ahead) % each];
}

/* Segments [from, end) without a sync point: each by itself where buckets leave after them. */
static void dti_list_stretch(dti_list *list, dti_action action, const dti_list_micro *of,
                             uint32_t from, uint32_t end) {
    const uint32_t each = of->whole ? end - from : 1;
    for (uint32_t i = from; i < end; i += each) {
        dti_action a = action;
        if (of->units)
            dti_list_gather(list, a, of, i);
        a.kind = of->idle             ? DTI_ACTION_ZEROS
                 : from < of->forward ? DTI_ACTION_FORWARD
                                      : DTI_ACTION_BACKWARD;
        a.from = (uint16_t)i;
        a.what = (uint16_t)(i + each - 1);
        a.buckets = of->buckets ? (uint16_t)of->buckets[i] : 0;
        if (of->idle && a.buckets == (of->buckets && i ? of->buckets[i - 1] : 0))
            continue;
        const uint32_t after = of->units ? dti_list_leave(list, of->units, i) : 0;
        a.after = of->idle ? 0 : after;
        dti_list_put(list, a);
    }
}

static void dti_list_segments(dti_list *list, dti_action action, const dti_list_micro *of,
                              uint32_t from, uint32_t end) {
    uint32_t i = 0, at = from;
    while (i < of->sync_point_count && of->sync_points[i].segment < from)
        i++;
    while (at < end) {
        const bool meets = i < of->sync_point_count && of->sync_points[i].segment < end;
        const uint32_t next = meets ? of->sync_points[i].segment + 1 : end;
        dti_list_stretch(list, action, of, at, next);
        for (at = next; i < of->sync_point_count && of->sync_points[i].segment + 1 == at; i++)
            dti_list_meet(list, action, i);
    }
}

static void dti_list_add_micro(dti_list *list, uint32_t micro, const dti_list_micro *of) {
    const dti_action action = {.micro = micro};
    if (!of->written)
        dti_list_add(list, DTI_ACTION_WRITE, micro);
    dti_list_add(list, DTI_ACTION_OPEN, micro);
    dti_list_segments(list, action, of, 0, of->forward);
    if (of->segments > of->forward)
        dti_list_add(list, DTI_ACTION_WEIGHTS, micro);
    dti_list_segments(list, action, of, of->forward, of->segments);
    dti_list_add(list, DTI_ACTION_CLOSE, micro);
}

static void dti_list_add_none(dti_list *list, uint32_t micro, const dti_list_micro *of,
                              uint32_t buckets) {
    if (buckets)
        dti_list_put(list, (dti_action){.kind = DTI_ACTION_ZEROS, .buckets = (uint16_t)buckets});
    dti_list_segments(list, (dti_action){.micro = micro}, of, 0, of->segments);
}

/* The first forward segment: while it runs the weights are on their way. */
static uint32_t dti_list_ahead(const dti_list *list) {
    uint32_t at = 0;
    while (at < list->count && list->actions[at].kind < DTI_ACTION_FORWARD)
        at++;
    return at < list->count && list->actions[at].kind == DTI_ACTION_FORWARD ? at + 1 : 0;
}
