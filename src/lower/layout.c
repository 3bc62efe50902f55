/* Places a graph's parameters. */

static dt_result dti_layout_make(dti_base *base, const dt_graph *graph, dt_dtype dtype,
                                 dti_layout *layout) {
    *layout = (dti_layout){.param_count = graph->param_count, .dtype = dtype};
    layout->params = dti_alloc_array(base, graph->param_count + 1u, sizeof *layout->params);
    DTI_HAVE(layout->params);
    for (uint32_t i = graph->param_count; i-- > 0;) {
        dti_param *p = &layout->params[i];
        const dti_node *n = &graph->nodes[graph->params[i]];
        const bool wide = n->buffer && dtype != DT_F32;
        *p = (dti_param){.node = graph->params[i],
                         .offset = layout->elements,
                         .elements = (uint64_t)dti_shape_elements(n->shape),
                         .dtype = (uint8_t)(n->buffer ? DT_F32 : dtype),
                         .rest = DTI_NO_REST};
        layout->elements += dti_full_blocks(p->elements) * (wide ? 2 : 1);
    }
    if (layout->elements == 0)
        layout->elements = DTI_BLOCK;
    layout->own_end = layout->elements;
    return DT_OK;
}

static void dti_layout_set_state(dti_layout *layout, dt_state_dtype state) {
    uint64_t words = 0;
    layout->state = state;
    for (uint32_t i = layout->param_count; i-- > 0;) {
        dti_param *p = &layout->params[i];
        const uint64_t each = dti_stored_words(dti_layout_state(layout, p));
        const uint64_t end = p->offset + dti_full_blocks(p->elements);
        const uint64_t begin = DTI_MIN(DTI_MAX(layout->own_begin, p->offset), end);
        const uint64_t own_end = DTI_MIN(DTI_MAX(layout->own_end, begin), end);
        p->state = words - (begin - p->offset) / DTI_BLOCK * each;
        words += (own_end - begin) / DTI_BLOCK * each;
    }
    layout->state_words = dti_ceil_div(words, 4) * 4; /* arrays are counted in fours */
}

static bool dti_layout_averages(const dti_layout *layout) {
    bool any = false;
    for (uint32_t i = 0; i < layout->param_count; i++)
        any = any || layout->params[i].average;
    return any;
}
