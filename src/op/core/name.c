/* How messages name a tensor: by its label, else by its op and its layer's parameter, else by its
 * input. A node's number would mean nothing to a caller. */

/* The source of a view. */
static const dti_node *dti_name_viewed(const dt_graph *g, uint32_t id) {
    const dti_node *n = &g->nodes[id];
    while (n->count == 1 && dti_op_info_of(n->op)->family->view)
        n = &g->nodes[dti_input_id(g, n, 0)];
    return n;
}

static const char *dti_name_param(const dt_graph *g, const dti_node *n) {
    for (uint32_t k = 0; k < n->count; k++) {
        const dti_node *in = dti_name_viewed(g, dti_input_id(g, n, k));
        if (in->op == DTI_OP_PARAM)
            return in->label;
    }
    return NULL;
}

static dti_name dti_tensor_name(dt_tensor x) {
    const dt_graph *g = x.graph;
    const dti_node *n = dti_node_of(x);
    dti_name name;
    if (n->label) {
        snprintf(name.text, sizeof name.text, "'%.180s'", n->label);
        return name;
    }
    const char *op = dti_op_info_of(n->op)->name, *of = dti_name_param(g, n);
    int steps = of ? 1 : 0;
    while (!of && n->count) { /* along the first inputs */
        n = &g->nodes[dti_input_id(g, n, 0)];
        of = n->label ? n->label : dti_name_param(g, n);
        steps += n->label ? 1 : 2;
    }
    snprintf(name.text, sizeof name.text, "%s%s%.140s%s", op,
             !of          ? ""
             : steps == 1 ? " of '"
                          : " after '",
             of ? of : "", of ? "'" : "");
    return name;
}

static dti_name dti_tensor_print(dt_tensor x) {
    const dti_node *n = dti_node_of(x);
    dti_name name = dti_tensor_name(x);
    if (n->term) /* its pair is internal */
        return name;
    const size_t at = strlen(name.text);
    snprintf(name.text + at, sizeof name.text - at, " %s",
             dti_shape_print(n->shape, n->samples).text);
    return name;
}

/* Only a graph of the same context can be known to be alive. */
static dti_name dti_tensor_elsewhere(const dt_graph *mine, dt_tensor x) {
    for (const dti_owned *o = mine->base->owned; o; o = o->next) {
        if (o == &x.graph->owned && x.id && x.id < x.graph->count)
            return dti_tensor_print(x);
    }
    return (dti_name){"(its graph was destroyed, or is of another context)"};
}

static dti_name dti_axis_text(int64_t axis, int rank) {
    dti_name text;
    if (rank == 0)
        snprintf(text.text, sizeof text.text,
                 "there is no axis %lld: the only axis is the sample axis", (long long)axis);
    else
        snprintf(text.text, sizeof text.text,
                 "there is no axis %lld: 0 to %d, or -%d to -1; the sample axis (B) is not counted",
                 (long long)axis, rank - 1, rank);
    return text;
}
