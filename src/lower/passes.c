/* The passes in their order, and running them. A pass that changes the graph stands behind what
 * makes the nodes that it changes and in front of "need": from there on nodes have numbers that
 * arrays are indexed by. */

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
    {"ports", dti_pass_ports},
    {"weigh segment", dti_pass_weigh_segment},
    {"fuse", dti_pass_fuse},
    {"emit", dti_pass_emit}, /* cut as it goes */
    {"units", dti_pass_units},
    {"commit", dti_pass_commit},
    {"segments", dti_pass_segments},
    {"labels", dti_pass_labels},
    {"types", dti_pass_types},
    {"in place", dti_pass_in_place},
    {"place", dti_pass_place},
};

/* A copy: what the description points to is not kept. */
static dt_result dti_lowering_shards(dti_code *code, const dti_shards *shards) {
    code->pieces = dti_alloc_array(code->base, shards->piece_count + 1u, sizeof *code->pieces);
    code->buckets = dti_alloc_array(code->base, shards->bucket_count + 1u, sizeof *code->buckets);
    code->stats = dti_alloc_array(code->base, code->layout->param_count + 1u, sizeof *code->stats);
    if (!code->pieces || !code->buckets || !code->stats)
        return DT_ERROR_MEMORY;
    code->piece_count = shards->piece_count;
    code->bucket_count = shards->bucket_count;
    memcpy(code->pieces, shards->pieces, code->piece_count * sizeof *code->pieces);
    for (uint32_t i = 0; i < code->bucket_count; i++)
        code->buckets[i] = shards->buckets[i];
    code->leaves = shards->leaves;
    code->subtrees = shards->before;
    code->any_part = code->desc.accumulate = shards->any_part;
    code->last_run = shards->last;
    code->one_run = shards->one_run;
    return DT_OK;
}

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
    w->joint = desc->joint;
    w->low = desc->low;
    code->stage_blocks = desc->joint ? desc->joint->blocks : 0;
    code->members = desc->joint ? desc->joint->members : 0;
    code->label = dti_graph_string(code->work, code->desc.label ? code->desc.label : "program");
    code->trained = dti_alloc_array(base, params, sizeof *code->trained);
    code->sparse = dti_alloc_array(base, params, sizeof *code->sparse);
    code->directions = dti_alloc_array(base, params, 2 * sizeof *code->directions);
    code->param_dx = dti_alloc_array(base, params, sizeof *code->param_dx);
    code->update = dti_alloc_array(base, params, sizeof *code->update);
    if (!code->label || !code->trained || !code->sparse || !code->param_dx || !code->update ||
        !code->directions)
        return DT_ERROR_MEMORY;
    return desc->shards ? dti_lowering_shards(code, desc->shards) : DT_OK;
}

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

static void dti_lowering_close(dti_lowering *w) {
    void *all[] = {w->needed,  w->pin,   w->stat_of,     w->param_of, w->next_param,
                   w->e.views, w->own,   w->bucket_left, w->extent,   w->piece_views,
                   w->saved,   w->order, w->copy_of,     w->borders};
    for (size_t i = 0; i < DTI_COUNT(all); i++)
        dti_free(w->problems.base, all[i]);
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
