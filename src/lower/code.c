/* The end of a code, and looking things up in one. */

static void dti_code_free(const dti_code *code) {
    if (!code)
        return;
    dti_labels_free(code);
    DTI_FREE(code->base, code->pieces, code->buckets, code->stats, code->trained, code->update,
             code->stands, code->places, code->param_dx, code->list.launches, code->list.values,
             code->bindings, code->table, code->directions, code->segments, code->phases,
             code->segment_buckets, code->sync_points, code->unit_reads, code->fetches,
             code->device_segments, code->host_segments, code->sparse);
    dt_graph_destroy(code->work);
    dti_free(code->base, (dti_code *)code);
}

static const dti_binding *dti_code_binding(const dti_code *code, uint32_t node, bool output,
                                           bool gradient) {
    for (uint32_t i = 0; i < code->binding_count; i++) {
        const dti_binding *binding = &code->bindings[i];
        if (binding->node == node && binding->output == output && binding->gradient == gradient)
            return binding;
    }
    return NULL;
}

static bool dti_code_rounds(const dti_code *code) {
    const uint32_t parts = code->layout->parts;
    const bool adds = code->desc.accumulate || (parts && code->piece_count);
    return code->has_gradients && adds && (!parts || parts > DTI_CHAIN_MAX);
}
