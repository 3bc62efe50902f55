/* Class numbers and indices: which elements of an i32 input an op needs in a range. They are
 * checked when the host writes them, so kernels need no fault path. An op's needs hold for elements
 * that reach it through views, copies and concat; computed values are not checked. */

static bool dti_label_user(const dt_graph *g, const dti_node *n, dti_labels *labels) {
    const dti_op_family *family = dti_op_info_of(n->op)->family;
    return family->labels && family->labels(g, n, labels);
}

/* An equal check of the binding; one that is not of all elements must be of the same op. */
static dti_label_check *dti_label_known(const dti_binding *binding, const dti_label_check *c) {
    for (uint32_t i = 0; i < binding->check_count; i++) {
        dti_label_check *k = &binding->checks[i];
        if ((!k->reads || !strcmp(k->op, c->op)) && k->classes == c->classes &&
            k->ignores == c->ignores && k->ignore_index == c->ignore_index)
            return k;
    }
    return NULL;
}

static dti_label_check *dti_label_add(dti_base *base, dti_binding *binding,
                                      const dti_label_check *c, size_t elements) {
    uint8_t *reads = dti_alloc(base, elements + 1);
    if (!reads || !DTI_RESERVE(base, binding->checks, binding->check_capacity,
                               (size_t)binding->check_count + 1)) {
        dti_free(base, reads);
        return NULL;
    }
    binding->checks[binding->check_count] = *c;
    binding->checks[binding->check_count].reads = reads;
    return &binding->checks[binding->check_count++];
}

/* One element more. Once all are read, no list of them is needed. */
static void dti_label_mark(dti_base *base, dti_label_check *c, int64_t at, int64_t elements) {
    if (!c->reads || c->reads[at])
        return;
    c->reads[at] = 1;
    if (++c->read_count < elements)
        return;
    dti_free(base, c->reads);
    c->reads = NULL;
}

/* Follows each of the labels to the input that it comes from, which is checked as `c` says. */
static bool dti_label_follow(dti_code *code, const uint32_t *binding_of, const dti_label_check *c,
                             uint32_t labels) {
    const dt_graph *g = code->work;
    const int64_t count = dti_shape_elements(g->nodes[labels].shape);
    uint32_t source = 0; /* of the element before */
    dti_label_check *check = NULL;
    for (int64_t i = 0; i < count; i++) {
        dti_element e = {labels, i};
        while (dti_element_back(g, &e))
            continue;
        if (!binding_of[e.node])
            continue;
        dti_binding *binding = &code->bindings[binding_of[e.node] - 1];
        const int64_t elements = dti_shape_elements(g->nodes[e.node].shape);
        if (e.node != source)
            check = dti_label_known(binding, c);
        if (!check)
            check = dti_label_add(code->base, binding, c, (size_t)elements);
        if (!check)
            return false;
        source = e.node;
        dti_label_mark(code->base, check, e.at, elements);
    }
    return true;
}

/* Gradients that a program appends read the inputs of their losses. */
static bool dti_labels_follow(dti_lowering *w, const uint32_t *binding_of) {
    dti_code *code = w->code;
    dti_labels labels;
    bool good = true;
    for (uint32_t id = 1; id < code->backward_node && good; id++) {
        const dti_node *n = &code->work->nodes[id];
        if (!w->needed[id] || !dti_label_user(code->work, n, &labels))
            continue;
        const dti_label_check c = {.op = dti_op_info_of(n->op)->name,
                                   .classes = labels.classes,
                                   .ignores = labels.ignores,
                                   .ignore_index = labels.ignore_index};
        good = dti_label_follow(code, binding_of, &c, dti_input_id(code->work, n, labels.input));
    }
    return good;
}

static dt_result dti_pass_labels(dti_lowering *w) {
    dti_code *code = w->code;
    uint32_t *binding_of = dti_alloc_array(code->base, code->work->count, sizeof *binding_of);
    DTI_HAVE(binding_of);
    for (uint32_t i = 0; i < code->binding_count; i++) {
        const dti_binding *binding = &code->bindings[i];
        const dti_node *n = &code->work->nodes[binding->node];
        if (n->op == DTI_OP_INPUT && n->dtype == DT_I32 && !binding->output && !binding->gradient)
            binding_of[binding->node] = i + 1;
    }
    const bool good = dti_labels_follow(w, binding_of);
    dti_free(code->base, binding_of);
    return good ? DT_OK : DT_ERROR_MEMORY;
}

static void dti_labels_free(const dti_code *code) {
    for (uint32_t i = 0; i < code->binding_count; i++) {
        for (uint32_t k = 0; k < code->bindings[i].check_count; k++)
            dti_free(code->base, code->bindings[i].checks[k].reads);
        dti_free(code->base, code->bindings[i].checks);
    }
}

static bool dti_label_right(const dti_label_check *c, int32_t label) {
    return (label >= 0 && label < c->classes) || (c->ignores && label == c->ignore_index);
}

static dt_result dti_labels_check(const dti_code *code, const dti_binding *binding,
                                  const int32_t *data, const uint32_t *rows) {
    const dti_node *n = &code->work->nodes[binding->node];
    const uint64_t size = (uint64_t)dti_shape_elements(n->shape),
                   count = binding->bytes / sizeof *data;
    for (uint32_t k = 0; k < binding->check_count; k++) {
        const dti_label_check *c = &binding->checks[k];
        for (uint64_t i = 0; i < count; i++) {
            if ((c->reads && !c->reads[i % size]) || dti_label_right(c, data[i]))
                continue;
            const uint64_t row = n->samples ? i / size : 0;
            return dti_code_fail(
                code, DT_ERROR_INVALID, "'%s' row %llu%s: %d is not in [0, %d), which %s needs",
                n->label, (unsigned long long)(rows ? rows[row] : row),
                rows ? " of the data set" : "", (int)data[i], (int)c->classes, c->op);
        }
    }
    return DT_OK;
}

static bool dti_labels_ignore(const dti_binding *binding, int32_t *index) {
    for (uint32_t k = 0; k < binding->check_count; k++) {
        const dti_label_check *c = &binding->checks[k];
        if (!c->ignores || c->ignore_index != binding->checks[0].ignore_index)
            return false;
        *index = c->ignore_index;
    }
    return binding->check_count > 0;
}
