/* The settings and the model that must be the same on all ranks, as text. Each fact is a line, so
 * that an error can show the first difference. Nothing here depends on devices. */

/* Ranks must have the same nodes under the same numbers. */
static void dti_describe_node(const dt_graph *g, uint32_t id, dti_text *text) {
    const dti_node *n = &g->nodes[id];
    dti_text_add(text, "node %u: %s %s%s%s %s", id, dti_op_info_of(n->op)->name,
                 n->label ? "'" : "", n->label ? n->label : "", n->label ? "'" : "",
                 dti_shape_print(n->shape, n->samples).text);
    for (uint32_t k = 0; k < n->count; k++)
        dti_text_add(text, "%s%u", k ? ", " : " of ", dti_input_id(g, n, k));
    dti_model_text_attr(&n->attr, text);
    dti_text_add(text, "\n");
}

static void dti_describe_model(const dt_trainer *t, dti_text *text) {
    const dt_graph *g = t->graph;
    dti_model_text_params(g, text);
    for (uint32_t id = 1; id < g->count; id++) { /* parameters begin as rank 0's do */
        if (g->nodes[id].op != DTI_OP_PARAM)
            dti_describe_node(g, id, text);
    }
}

static void dti_describe_number(dti_text *text, const char *name, double value) {
    dti_text_add(text, "%s ", name);
    dti_text_add_number(text, value);
    dti_text_add(text, "\n");
}

static void dti_describe_optim(const dt_optim_desc *d, dti_text *text) {
    char prefix[32];
    dti_fields_describe(text, ".optim->", &dti_optim_fields, d, true);
    dti_fields_describe(text, ".optim->average", &dti_average_fields, &d->average, true);
    for (int i = 0; i < DT_MAX_PHASES; i++) {
        snprintf(prefix, sizeof prefix, ".optim->schedule[%d]", i);
        if (d->schedule[i].kind || d->schedule[i].steps)
            dti_fields_describe(text, prefix, &dti_schedule_fields, &d->schedule[i], true);
    }
    for (int i = 0; i < DT_MAX_GROUPS - 1 && d->groups[i].params; i++) {
        snprintf(prefix, sizeof prefix, ".optim->groups[%d]", i);
        dti_fields_describe(text, prefix, &dti_group_fields, &d->groups[i], true);
    }
}

/* Which samples an epoch has, and how they are preprocessed. Values may differ between ranks. */
static void dti_describe_samples(const dt_dataset *d, dti_text *text) {
    const size_t bytes = (size_t)d->rows * 4;
    const struct {
        const char *name;
        const void *values;
    } all[] = {{"picked", d->indices}, {"weighted", d->weights}, {"by lengths", d->lengths}};
    for (size_t i = 0; i < DTI_COUNT(all); i++) {
        if (all[i].values && !d->stream) /* it is refused with them, and may have no .rows */
            dti_text_add(text, "samples %s: %016llx\n", all[i].name,
                         (unsigned long long)dti_hash64(DTI_HASH_START, all[i].values, bytes));
    }
    if (d->stream)
        dti_text_add(text, ".data.stream->shuffle %u\n", d->stream->shuffle);
    if (DTI_HAS_AUGMENT && d->augment)
        dti_fields_describe(text, ".data.augment->", &dti_augment_fields, d->augment, true);
}

/* Losses, metrics and columns, by node. */
static void dti_describe_terms(const dt_trainer *t, dti_text *text) {
    const dt_trainer_desc *d = &t->desc;
    for (int i = 0; i < DT_MAX_TERMS && dti_is_set(d->losses[i].term); i++) {
        dti_text_add(text, "loss of node %u\n", d->losses[i].term.id);
        dti_describe_number(text, "coefficient", t->coefficients[i]);
    }
    for (int i = 0; i < DT_MAX_TERMS && dti_is_set(d->metrics[i]); i++)
        dti_text_add(text, "metric of node %u\n", d->metrics[i].id);
    for (int i = 0; i < DT_MAX_COLUMNS && dti_is_set(d->data.columns[i].input); i++)
        dti_text_add(text, "column for node %u\n", d->data.columns[i].input.id);
}

static void dti_describe_params(const dt_trainer *t, dti_text *text) {
    for (uint32_t i = 0; i < t->graph->param_count; i++) {
        const dti_node *n = &t->graph->nodes[t->graph->params[i]];
        int64_t unit;
        const dti_parted part = dti_param_parted(n, &unit);
        if (t->par.desc.tensor && part.axis >= 0)
            dti_text_add(text, "'%s' in parts along axis %d, in units of %lld\n", n->label,
                         (int)part.axis, (long long)unit);
        if (n->frozen && !n->buffer)
            dti_text_add(text, "frozen '%s'\n", n->label);
    }
}

static void dti_describe_settings(const dt_trainer *t, dti_text *text) {
    dti_text_add(text, "dtrain " DT_VERSION "\n");
    dti_fields_describe(text, "", &dti_trainer_fields, &t->desc, dti_worker_of(t) || dti_serves(t));
    dti_text_add(text, "trainer %u of its replicas (.replicas_of)\n", t->par.number);
    dti_text_add(text, ".data.rows %llu\n", (unsigned long long)t->desc.data.rows);
    dti_describe_samples(&t->desc.data, text);
    dti_describe_terms(t, text);
    dti_describe_params(t, text);
    dti_describe_optim(&t->optim, text);
    dti_describe_model(t, text);
}
