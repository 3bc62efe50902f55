/* Places a graph's parameters. */

static dt_result dti_layout_make(dti_base *base, const dt_graph *graph, dti_layout *layout) {
    *layout = (dti_layout){.param_count = graph->param_count};
    layout->params = dti_alloc_array(base, graph->param_count + 1u, sizeof *layout->params);
    DTI_HAVE(layout->params);
    for (uint32_t i = graph->param_count; i-- > 0;) {
        dti_param *p = &layout->params[i];
        const dti_node *n = &graph->nodes[graph->params[i]];
        *p = (dti_param){.node = graph->params[i],
                         .offset = layout->elements,
                         .elements = (uint64_t)dti_shape_elements(n->shape),
                         .dtype = n->dtype,
                         .rest = DTI_NO_REST};
        layout->elements += (p->elements + DTI_BLOCK - 1) / DTI_BLOCK * DTI_BLOCK;
    }
    if (layout->elements == 0)
        layout->elements = DTI_BLOCK;
    layout->own_end = layout->elements;
    return DT_OK;
}

static bool dti_layout_averages(const dti_layout *layout) {
    bool any = false;
    for (uint32_t i = 0; i < layout->param_count; i++)
        any = any || layout->params[i].average;
    return any;
}

static uint64_t dti_full_blocks(uint64_t n) {
    return (n + DTI_BLOCK - 1) / DTI_BLOCK * DTI_BLOCK;
}

static uint64_t dti_state_share_offset(void) {
    return DTI_CONTROL_WORDS;
}

static uint64_t dti_state_pair_offset(const dti_layout *layout) {
    return dti_state_share_offset() + dti_full_blocks(layout->param_count);
}

static uint64_t dti_state_t_offset(const dti_layout *layout) {
    return dti_state_pair_offset(layout) + dti_full_blocks(2 * layout->elements / DTI_BLOCK);
}

static uint64_t dti_state_size(const dti_layout *layout, uint32_t moments) {
    const uint64_t t = dti_full_blocks(layout->param_count);
    return dti_state_t_offset(layout) + t + moments * (layout->own_end - layout->own_begin);
}

static uint64_t dti_state_moment_offset(const dti_layout *layout, uint32_t moment) {
    return dti_state_size(layout, moment) - layout->own_begin;
}

static uint64_t dti_state_bytes(const dti_layout *layout, uint32_t moments) {
    return DTI_WORD_BYTES * dti_state_size(layout, moments);
}
