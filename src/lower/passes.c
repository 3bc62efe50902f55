/* The passes in their order, and their execution. A pass that changes the graph comes after the
 * passes that make its nodes, and before "need". From there on nodes have numbers that index
 * arrays. */

static const dti_lower_pass dti_passes[] = {
    {"describe", dti_pass_describe},
    {"cast", dti_pass_cast},
    {"differentiate", dti_pass_differentiate},
    {"weigh", dti_pass_weigh},
    {"recompute", dti_pass_recompute},
    {"split", dti_pass_split},
    {"need", dti_pass_need},
    {"pieces", dti_pass_pieces},
    {"buckets", dti_pass_buckets},
    {"borders", dti_pass_borders},
    {"table", dti_pass_table},
    {"bindings", dti_pass_bindings},
    {"weigh segment", dti_pass_weigh_segment},
    {"fuse", dti_pass_fuse},
    {"emit", dti_pass_emit}, /* cuts as it goes */
    {"widen", dti_pass_widen},
    {"units", dti_pass_units},
    {"commit", dti_pass_commit},
    {"segments", dti_pass_segments},
    {"labels", dti_pass_labels},
    {"types", dti_pass_types},
    {"in place", dti_pass_in_place},
    {"place", dti_pass_place},
};

/* A copy: the description's pointers are not kept. */
static dt_result dti_lowering_batch_slices(dti_code *code, const dti_batch_slices *b) {
    dti_piece *pieces = dti_alloc_array(code->base, b->piece_count + 1u, sizeof *pieces);
    dti_bucket *buckets = dti_alloc_array(code->base, b->bucket_count + 1u, sizeof *buckets);
    code->slices = *b;
    code->slices.pieces = pieces;
    code->slices.buckets = buckets;
    code->stats = dti_alloc_array(code->base, code->layout->param_count + 1u, sizeof *code->stats);
    DTI_HAVE(pieces && buckets && code->stats);
    memcpy(pieces, b->pieces, b->piece_count * sizeof *pieces);
    for (uint32_t i = 0; i < b->bucket_count; i++)
        buckets[i] = b->buckets[i];
    code->desc.accumulate = b->any_part;
    return DT_OK;
}

/* Before any pass. MEMORY; close it in any case. */
static dt_result dti_lowering_open(dti_lowering *w, dti_base *base, const dti_code_desc *desc) {
    dti_code *code = dti_alloc(base, sizeof *code);
    *w = (dti_lowering){.code = code, .graph = desc->graph, .problems = dti_text_open(base)};
    if (!code) {
        dt_graph_destroy(desc->work);
        return DT_ERROR_MEMORY;
    }
    const size_t params = desc->layout->param_count + 1u;
    code->base = code->list.base = base;
    code->work = desc->work;
    code->layout = desc->layout;
    code->limits = desc->limits;
    code->desc = *desc->program;
    w->staged = desc->staged;
    code->stage_blocks = desc->staged ? desc->staged->blocks : 0;
    code->tp_ranks = desc->staged ? desc->staged->tp_ranks : 0;
    code->label = dti_graph_string(code->work, code->desc.label ? code->desc.label : "program");
    code->trained = dti_alloc_array(base, params, sizeof *code->trained);
    code->sparse = dti_alloc_array(base, params, sizeof *code->sparse);
    code->directions = dti_alloc_array(base, params, 2 * sizeof *code->directions);
    code->param_dx = dti_alloc_array(base, params, sizeof *code->param_dx);
    code->update = dti_alloc_array(base, params, sizeof *code->update);
    DTI_HAVE(code->label && code->trained && code->sparse && code->param_dx && code->update &&
             code->directions);
    return desc->batch_slices ? dti_lowering_batch_slices(code, desc->batch_slices) : DT_OK;
}

/* Passes [*next, the one of this name], or to the last one for NULL; *next is 0 at first. */
static dt_result dti_lowering_run(dti_lowering *w, uint32_t *next, const char *name) {
    dt_result result = DT_OK;
    bool there = false;
    while (!result && !there && *next < DTI_COUNT(dti_passes)) {
        const dti_lower_pass *pass = &dti_passes[(*next)++];
        there = name && strcmp(pass->name, name) == 0;
        result = pass->run(w);
    }
    return result;
}

/* Ends it, and the code, but where the caller has taken that (w->code = NULL). */
static void dti_lowering_close(dti_lowering *w) {
    DTI_FREE(w->problems.base, w->needed, w->pin, w->stat_of, w->param_of, w->next_param,
             w->e.views, w->own, w->bucket_left, w->extent, w->piece_views, w->saved, w->order,
             w->copy_of, w->borders);
    dti_text_free(&w->problems);
    dti_code_free(w->code);
}

static dt_result dti_code_make(dti_base *base, const dti_code_desc *desc, dti_choice choice,
                               const dti_code **out) {
    dti_lowering w;
    uint32_t next = 0;
    *out = NULL;
    dt_result result = dti_lowering_open(&w, base, desc);
    w.choice = choice;
    if (!result)
        result = dti_lowering_run(&w, &next, NULL);
    if (!result) {
        *out = w.code;
        w.code->desc.label = w.code->desc.params = NULL;
        w.code->desc.optim = NULL;
        w.code = NULL;
    }
    dti_lowering_close(&w);
    return result;
}
