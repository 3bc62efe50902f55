/* How lists are written. The order of a micro-batch is that of its code: forward segments, the
 * weights of its losses, backward segments. A sync point stands after the segment that ends with
 * its operand. */

static void dti_list_put(dti_list *list, dti_action action) {
    if (list->actions)
        list->actions[list->count] = action;
    list->count++;
}

static void dti_list_add(dti_list *list, uint32_t kind, uint32_t micro, uint32_t what) {
    /* the device's operands, or all that the micro-batch gives, must be there */
    const bool waits = kind == DTI_ACTION_COLLECTIVE || kind == DTI_ACTION_CLOSE;
    dti_list_put(
        list, (dti_action){
                  .kind = (uint8_t)kind, .waits = waits, .micro = micro, .what = (uint16_t)what});
}

/* Segments [from, end), and the sync points after them. */
static void dti_list_segments(dti_list *list, uint32_t micro, const dti_list_micro *of,
                              uint32_t from, uint32_t end, uint32_t *sync_point) {
    for (uint32_t i = from; i < end; i++) {
        const bool backward = i >= of->forward;
        dti_list_put(list, (dti_action){.kind = backward ? DTI_ACTION_BACKWARD : DTI_ACTION_FORWARD,
                                        .micro = micro,
                                        .what = (uint16_t)i,
                                        .buckets = of->buckets ? (uint16_t)of->buckets[i] : 0});
        while (*sync_point < of->sync_point_count && of->sync_points[*sync_point].segment == i)
            dti_list_add(list, DTI_ACTION_COLLECTIVE, micro, (*sync_point)++);
    }
}

static void dti_list_add_micro(dti_list *list, uint32_t micro, const dti_list_micro *of) {
    uint32_t sync_point = 0;
    if (!of->written)
        dti_list_add(list, DTI_ACTION_WRITE, micro, 0);
    dti_list_add(list, DTI_ACTION_OPEN, micro, 0);
    dti_list_segments(list, micro, of, 0, of->forward, &sync_point);
    dti_list_add(list, DTI_ACTION_WEIGHTS, micro, 0);
    dti_list_segments(list, micro, of, of->forward, of->segments, &sync_point);
    dti_list_add(list, DTI_ACTION_CLOSE, micro, 0);
}

static void dti_list_add_none(dti_list *list, uint32_t buckets, uint32_t sync_points) {
    if (buckets)
        dti_list_put(list, (dti_action){.kind = DTI_ACTION_ZEROS, .buckets = (uint16_t)buckets});
    for (uint32_t i = 0; i < sync_points; i++)
        dti_list_add(list, DTI_ACTION_COLLECTIVE, 0, i);
}

/* The first forward segment: while it runs the weights are on their way. */
static uint32_t dti_list_ahead(const dti_list *list) {
    uint32_t at = 0;
    while (at < list->count && list->actions[at].kind < DTI_ACTION_FORWARD)
        at++;
    return at < list->count && list->actions[at].kind == DTI_ACTION_FORWARD ? at + 1 : 0;
}
