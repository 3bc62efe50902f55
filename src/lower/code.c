/* The end of a code, and looking things up in one. */

static void dti_code_free(const dti_code *code) {
    if (!code)
        return;
    dti_labels_free(code);
    DTI_FREE(code->base, (void *)code->slices.pieces, (void *)code->slices.buckets, code->stats,
             code->trained, code->update, code->stands, code->places, code->param_dx,
             code->list.launches, code->list.values, code->bindings, code->table, code->directions,
             code->segments, code->segment_buckets, code->sync_points, code->unit_reads,
             code->fetches, code->device_segments, code->host_segments, code->sparse);
    dt_graph_destroy(code->work);
    dti_free(code->base, (dti_code *)code);
}

static dt_result dti_code_fail(const dti_code *code, dt_result result, const char *format, ...) {
    char text[sizeof code->base->error];
    DTI_FORMAT(text, format);
    return dti_fail(code->base, result, "program '%s': %s", code->label, text);
}

static dt_result dti_problems_fail(dti_base *base, const char *label, const dti_text *problems) {
    DTI_HAVE(problems->ok);
    return problems->size ? dti_fail(base, DT_ERROR_INVALID, "program '%s' cannot be created:%s",
                                     label ? label : "program", problems->data)
                          : DT_OK;
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
    const bool adds = code->desc.accumulate || (parts && code->slices.piece_count);
    return code->has_gradients && adds && (!parts || parts > DTI_CHAIN_MAX);
}
