/* What a program's description means: its terms, outputs and mode checked, its gradients appended
 * to the work graph. Every problem is listed, so that one error tells all that is wrong. */

/* ---- the description */

static bool dti_program_desc_tensor(dt_program *p, dt_tensor x, const char *what, int index,
                                    dti_text *problems) {
    if (x.graph == p->store->graph && !dti_is_nil(x))
        return true;
    if (x.graph == NULL || x.graph == p->store->graph)
        dti_text_add(problems, "\n- %s %d is nil", what, index);
    else
        dti_text_add(problems, "\n- %s %d is a tensor of another graph than the store's: %s", what,
                     index, dti_tensor_elsewhere(p->store->graph, x).text);
    return false;
}

static bool dti_is_set(dt_tensor x) {
    return x.graph != NULL || x.id != 0;
}

/* A list ends at its first nil; one in the middle is a mistake. */
static void dti_program_desc_gap(dt_tensor x, const char *what, uint32_t index,
                                 dti_text *problems) {
    if (dti_is_set(x))
        dti_text_add(problems, "\n- %s %u stands behind a nil one", what, index + 1);
}

static void dti_program_desc_terms(dt_program *p, dti_text *problems) {
    dt_program_desc *d = &p->desc;
    if (dti_is_set(d->loss)) {
        if (dti_is_set(d->losses[0].term))
            dti_text_add(problems, "\n- .loss is short for .losses[0]; give one of them");
        d->losses[0].term = d->loss;
    }
    while (p->loss_count < DT_MAX_TERMS && dti_is_set(d->losses[p->loss_count].term)) {
        const double coefficient = (double)d->losses[p->loss_count].coefficient;
        dt_tensor x = d->losses[p->loss_count++].term;
        if (!dti_fits_f32(coefficient))
            dti_text_add(problems, "\n- loss %u has a coefficient that is not finite",
                         p->loss_count);
        if (!dti_program_desc_tensor(p, x, "loss", (int)p->loss_count, problems))
            continue;
        const dti_node *n = dti_node_of(x);
        if (!n->term || !dti_has_gradient(n)) {
            dti_text_add(problems, "\n- loss %u, %s, is not a loss term; wrap it in dt_mean_loss",
                         p->loss_count, dti_tensor_print(x).text);
        }
    }
    while (p->metric_count < DT_MAX_TERMS && dti_is_set(d->metrics[p->metric_count])) {
        dt_tensor x = d->metrics[p->metric_count++];
        if (dti_program_desc_tensor(p, x, "metric", (int)p->metric_count, problems) &&
            !dti_node_of(x)->term) {
            dti_text_add(problems, "\n- metric %u, %s, is not a term; wrap it in dt_mean_loss",
                         p->metric_count, dti_tensor_print(x).text);
        }
    }
    for (uint32_t i = 0; i < DT_MAX_TERMS; i++) {
        if (i >= p->loss_count)
            dti_program_desc_gap(d->losses[i].term, "loss", i, problems);
        if (i >= p->metric_count)
            dti_program_desc_gap(d->metrics[i], "metric", i, problems);
    }
}

static uint32_t dti_program_desc_list(dt_program *p, const dt_tensor *list, const char *what,
                                      dti_text *problems) {
    uint32_t count = 0;
    while (count < DT_MAX_OUTPUTS && dti_is_set(list[count])) {
        dt_tensor x = list[count++];
        if (dti_program_desc_tensor(p, x, what, (int)count, problems) && dti_node_of(x)->term) {
            dti_text_add(problems, "\n- %s %u is a loss term; the report has its value", what,
                         count);
        }
    }
    for (uint32_t i = count; i < DT_MAX_OUTPUTS; i++)
        dti_program_desc_gap(list[i], what, i, problems);
    return count;
}

static void dti_program_desc_check(dt_program *p, dti_text *problems) {
    dt_program_desc *d = &p->desc;
    dti_program_desc_terms(p, problems);
    uint32_t outputs = dti_program_desc_list(p, d->outputs, "output", problems);
    uint32_t hosts = dti_program_desc_list(p, d->host_gradients, "host gradient", problems);
    p->has_optim = d->optim != NULL;
    p->has_gradients = d->optim || d->gradients || hosts;
    p->train = d->mode == DT_MODE_TRAIN || (d->mode == DT_MODE_DEFAULT && p->has_gradients);
    p->batch = d->batch ? d->batch : 1;
    if ((unsigned)d->mode > DT_MODE_EVAL)
        dti_text_add(problems, "\n- %d is no dt_mode", (int)d->mode);
    if (d->batch < 0)
        dti_text_add(problems, "\n- batch is %d; it must be at least 1", d->batch);
    if (p->has_gradients && !p->loss_count && !hosts)
        dti_text_add(problems, "\n- gradients of what? give .loss or .host_gradients");
    if (!p->loss_count && !outputs && !p->metric_count)
        dti_text_add(problems, "\n- it computes nothing: give .loss, .metrics or .outputs; a nil "
                               "tensor, as an op gives after an error, counts as none");
    if (d->accumulate && !p->has_gradients)
        dti_text_add(problems, "\n- .accumulate needs gradients: give .optim or .gradients");
    if (p->has_optim)
        dti_optim_resolve(p, problems);
}

/* ---- gradients */

static uint32_t dti_select_params(dt_program *p, dti_text *problems) {
    const dt_store *s = p->store;
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->param_count; i++) {
        const dti_node *n = &s->graph->nodes[s->params[i].node];
        p->trained[i] =
            !n->frozen && !n->buffer && (!p->desc.params || dti_glob(p->desc.params, n->label));
        count += p->trained[i];
        bool conflict = p->has_optim && p->trained[i] && s->params[i].optim &&
                        s->params[i].optim != p->optim.kind;
        if (conflict)
            dti_text_add(problems,
                         "\n- parameter '%s' has another optimizer's state, from another program "
                         "of this store; dt_program_destroy that, and dt_store_reset",
                         n->label);
    }
    if (!count)
        dti_text_add(problems, "\n- no parameter to train: none matches \"%s\" or all are frozen",
                     p->desc.params ? p->desc.params : "*");
    return count;
}

static bool dti_host_gradient_again(const dt_program_desc *d, uint32_t index) {
    for (uint32_t i = 0; i < index; i++) {
        if (d->host_gradients[i].id == d->host_gradients[index].id)
            return true;
    }
    return false;
}

/* The loss terms with their seeds, and the host's gradients as inputs: one for each y, however
 * often it is listed. */
static uint32_t dti_gradient_roots(dt_program *p, dt_tensor *y, dt_tensor *dy) {
    dt_graph *g = p->work;
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->loss_count; i++, count++) {
        y[count] = (dt_tensor){g, p->desc.losses[i].term.id};
        dy[count] = dti_seed(y[count], i);
    }
    for (uint32_t i = 0; i < DT_MAX_OUTPUTS && dti_is_set(p->desc.host_gradients[i]); i++) {
        if (dti_host_gradient_again(&p->desc, i))
            continue;
        y[count] = (dt_tensor){g, p->desc.host_gradients[i].id};
        dti_node n = {.op = DTI_OP_INPUT,
                      .samples = dti_node_of(y[count])->samples,
                      .shape = dti_node_of(y[count])->shape};
        n.attr.i[0] = (int32_t)y[count].id; /* whose gradient it is */
        n.label = dti_node_of(y[count])->label;
        dy[count++] = dti_graph_push(g, &n, NULL, 0);
    }
    return count;
}

static void dti_append_gradients(dt_program *p, dti_text *problems) {
    dt_graph *g = p->work;
    const dt_store *s = p->store;
    p->backward_node = g->count;
    if (!p->has_gradients || !dti_select_params(p, problems))
        return;
    dt_tensor y[2 * DT_MAX_TERMS], dy[2 * DT_MAX_TERMS];
    uint32_t roots = dti_gradient_roots(p, y, dy);
    dt_tensor *wrt = dti_alloc_array(p->base, s->param_count, sizeof *wrt);
    if (!wrt) {
        problems->ok = false;
        return;
    }
    for (uint32_t i = 0; i < s->param_count; i++) {
        if (p->trained[i])
            wrt[i] = (dt_tensor){g, s->params[i].node};
    }
    dti_differentiate_all(g, y, dy, roots, wrt, s->param_count, p->param_dx);
    dti_free(p->base, wrt);
    for (uint32_t i = 0; i < s->param_count && !g->error[0]; i++) {
        if (!p->trained[i] || !dti_is_nil(p->param_dx[i]))
            continue;
        dti_text_add(problems,
                     "\n- parameter '%s' has no gradient: no loss depends on it; dt_freeze it, or "
                     "leave it out of .params",
                     g->nodes[s->params[i].node].label);
    }
}

/* Nodes that give a loss's weight from targets alone, for dt_program_weigh. */
static void dti_append_weights(dt_program *p, uint32_t *weight_node) {
    dt_graph *g = p->work;
    for (uint32_t i = 0; i < p->loss_count; i++) {
        const dti_node *n = &g->nodes[p->desc.losses[i].term.id];
        const dti_op_family *family = dti_op_info_of(n->op)->family;
        const dti_node *x = &g->nodes[dti_input_id(g, n, 0)];
        weight_node[i] = 0;
        if (family->weight)
            weight_node[i] = family->weight(g, n).id;
        else
            p->static_weight[i] =
                (double)dti_shape_elements(x->shape) * (x->samples ? (double)p->batch : 1.0);
    }
}
