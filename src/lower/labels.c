/* Class numbers and indices: which elements of an i32 input some op needs in a range, and the check
 * of them when the host writes, so that kernels need no fault path. An op's needs hold for what
 * reaches it through views, copies and concat, element by element; what is computed is not checked.
 */

/* Whether a node takes class numbers or indices, and which it takes. */
static bool dti_label_user(const dt_graph *g, const dti_node *n, dti_labels *labels) {
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    return family->labels && family->labels(g, n, labels);
}

/* Marks the elements of `input` that those of `labels` are; how many are marked. */
static int64_t dti_label_reads(const dt_graph *g, uint32_t labels, uint32_t input, uint8_t *reads) {
    const int64_t count = dti_shape_elements(g->nodes[labels].shape);
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        dti_element e = {labels, i};
        while (e.node > input && dti_element_back(g, &e))
            continue;
        if (e.node != input || reads[e.at])
            continue;
        reads[e.at] = 1;
        found++;
    }
    return found;
}

static bool dti_label_known(const dti_port *port, const dti_label_check *c) {
    for (uint32_t i = 0; i < port->check_count; i++) {
        const dti_label_check *k = &port->checks[i];
        if (!k->reads && !c->reads && k->classes == c->classes && k->ignores == c->ignores &&
            k->ignore_index == c->ignore_index)
            return true;
    }
    return false;
}

/* Takes over c->reads. */
static bool dti_label_keep(dti_base *base, dti_port *port, const dti_label_check *c) {
    void *checks = port->checks;
    const bool room = dti_array_reserve(base, &checks, &port->check_capacity,
                                        (size_t)port->check_count + 1, sizeof *c);
    port->checks = checks;
    if (room)
        port->checks[port->check_count++] = *c;
    else
        dti_free(base, c->reads);
    return room;
}

static bool dti_label_add(dti_code *code, dti_port *port, dti_label_check c, uint32_t labels) {
    const size_t count = (size_t)dti_shape_elements(code->work->nodes[port->node].shape);
    c.reads = dti_alloc(code->base, count + 1);
    if (!c.reads)
        return false;
    const int64_t found = dti_label_reads(code->work, labels, port->node, c.reads);
    if (!found || (size_t)found == count) {
        dti_free(code->base, c.reads);
        c.reads = NULL; /* all of them */
    }
    return !found || dti_label_known(port, &c) || dti_label_keep(code->base, port, &c);
}

/* Gradients that a program appends read what their losses read. */
static dt_result dti_pass_labels(dti_lowering *w) {
    dti_code *code = w->code;
    const dt_graph *g = code->work;
    dti_labels labels;
    for (uint32_t id = 1; id < code->backward_node; id++) {
        const dti_node *n = &g->nodes[id];
        if (!w->needed[id] || !dti_label_user(g, n, &labels))
            continue;
        const dti_label_check c = {.op = dti_op_info_of(n->op)->name,
                                   .classes = labels.classes,
                                   .ignores = labels.ignores,
                                   .ignore_index = labels.ignore_index};
        for (uint32_t i = 0; i < code->port_count; i++) {
            dti_port *port = &code->ports[i];
            const bool number = g->nodes[port->node].op == DTI_OP_INPUT && !port->output &&
                                !port->gradient && g->nodes[port->node].dtype == DT_I32;
            if (number && !dti_label_add(code, port, c, dti_input_id(g, n, labels.input)))
                return DT_ERROR_MEMORY;
        }
    }
    return DT_OK;
}

static void dti_labels_free(dti_code *code) {
    for (uint32_t i = 0; i < code->port_count; i++) {
        for (uint32_t k = 0; k < code->ports[i].check_count; k++)
            dti_free(code->base, code->ports[i].checks[k].reads);
        dti_free(code->base, code->ports[i].checks);
    }
}

static bool dti_label_right(const dti_label_check *c, int32_t label) {
    return (label >= 0 && label < c->classes) || (c->ignores && label == c->ignore_index);
}

static dt_result dti_labels_check(const dti_code *code, const dti_port *port, const int32_t *data,
                                  const uint32_t *rows) {
    const dti_node *n = &code->work->nodes[port->node];
    const uint64_t size = (uint64_t)dti_shape_elements(n->shape),
                   count = port->bytes / sizeof *data;
    for (uint32_t k = 0; k < port->check_count; k++) {
        const dti_label_check *c = &port->checks[k];
        for (uint64_t i = 0; i < count; i++) {
            if ((c->reads && !c->reads[i % size]) || dti_label_right(c, data[i]))
                continue;
            const uint64_t row = n->samples ? i / size : 0;
            return dti_fail(code->base, DT_ERROR_INVALID,
                            "program '%s': '%s' row %llu%s: %d is not in [0, %d), which %s needs",
                            code->label, n->label, (unsigned long long)(rows ? rows[row] : row),
                            rows ? " of the data set" : "", (int)data[i], (int)c->classes, c->op);
        }
    }
    return DT_OK;
}

static bool dti_labels_ignore(const dti_port *port, int32_t *index) {
    for (uint32_t k = 0; k < port->check_count; k++) {
        const dti_label_check *c = &port->checks[k];
        if (!c->ignores || c->ignore_index != port->checks[0].ignore_index)
            return false;
        *index = c->ignore_index;
    }
    return port->check_count > 0;
}
