/* A model that tensor ranks split: the parts of its parameters, their blocks, and the description
 * of a rank's programs. */

static uint32_t dti_tp_blocks(const dti_tp *tp, uint32_t i, bool buffers) {
    const uint64_t all = tp->code->layout->params[i].elements;
    const uint64_t own = tp->parts[i].of.axis >= 0 ? all / tp->size : all;
    return dti_table_blocks(tp->code, i, buffers) ? (uint32_t)((own + DTI_BLOCK - 1) / DTI_BLOCK)
                                                  : 0;
}

static dt_result dti_tp_alike(dti_parallel *par, const dti_device *a, const dti_device *b) {
    if (a->backend == b->backend && a->info.kind == b->info.kind)
        return DT_OK;
    return dti_fail(par->base, DT_ERROR_INVALID,
                    "%s = %u: devices %s and %s round differently, but replicated tensors must be "
                    "equal on all tensor ranks; name devices of one kind",
                    dti_grid_setting(par), par->desc.tensor, a->info.id, b->info.id);
}

static dt_program_desc dti_tp_desc(const dti_parallel *par, const dti_tp *tp, dt_graph *graph) {
    const uint32_t *stands = tp->stands;
    dt_program_desc d = dti_replica_desc(par, &par->replicas[0]);
    d.loss = (dt_tensor){0};
    for (int i = 0; i < DT_MAX_TERMS; i++) {
        if (d.losses[i].term.id)
            d.losses[i].term = (dt_tensor){graph, stands[d.losses[i].term.id]};
        if (d.metrics[i].id)
            d.metrics[i] = (dt_tensor){graph, stands[d.metrics[i].id]};
    }
    return d;
}

static dt_result dti_tp_same(dti_parallel *par, const dti_device *device) {
    const dt_device_info *info = &device->info;
    const bool cpu = info->kind == DT_DEVICE_CPU;
    char text[400];
    const int size = snprintf(text, sizeof text, "tensor on devices of kind %d%s%.300s\n",
                              (int)info->kind, cpu ? "" : ", ", cpu ? "" : info->driver);
    return dti_agree_text(par, text, (size_t)size);
}

static dt_result dti_tp_model(dti_parallel *par, dti_tp *tp) {
    const dt_graph *g = par->replicas[0].graph;
    const dti_layout *layout = &par->replicas[0].store->layout;
    uint64_t most = 1;
    for (uint32_t i = 0; i < layout->param_count; i++)
        most = DTI_MAX(most, layout->params[i].elements);
    tp->stands = dti_alloc_array(par->base, g->count, sizeof *tp->stands);
    tp->parted = dti_alloc_array(par->base, g->count, sizeof *tp->parted);
    tp->refused = dti_alloc_array(par->base, g->count, 1);
    tp->parts = dti_alloc_array(par->base, g->param_count + 1u, sizeof *tp->parts);
    tp->firsts = dti_alloc_array(par->base, g->count + 1u, sizeof *tp->firsts);
    tp->whole = dti_alloc_array(par->base, (size_t)most, sizeof(float));
    tp->part = dti_alloc_array(par->base, (size_t)most, sizeof(float));
    return tp->stands && tp->parts && tp->firsts && tp->whole && tp->part && tp->parted &&
                   tp->refused
               ? DT_OK
               : DT_ERROR_MEMORY;
}

static void dti_tp_model_free(dti_parallel *par, dti_tp *tp) {
    DTI_FREE(par->base, tp->stands, tp->firsts, tp->parts, tp->whole, tp->part, tp->parted,
             tp->refused);
}
