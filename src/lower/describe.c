/* Checks a program's description, its terms, outputs and mode, and appends its gradients to the
 * work graph. One error lists all problems. */

/* ---- the description */

static bool dti_program_desc_tensor(dti_lowering *w, dt_tensor x, const char *what, uint32_t index,
                                    dti_text *problems) {
    if (x.graph == w->graph && !dti_is_nil(x))
        return true;
    if (x.graph == NULL || x.graph == w->graph)
        dti_text_add(problems, "\n- .%s[%u] is nil", what, index);
    else
        dti_text_add(problems, "\n- .%s[%u] is a tensor of another graph than the store's: %s",
                     what, index, dti_tensor_elsewhere(w->graph, x).text);
    return false;
}

/* The number of tensors in a list of at most `most`, with `size` bytes from one to the next. It
 * ends at its first nil; a tensor after that is an error. */
static uint32_t dti_desc_count(const dt_tensor *first, size_t size, uint32_t most, const char *what,
                               dti_text *problems) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < most; i++) {
        dt_tensor x;
        memcpy(&x, (const char *)first + i * size, sizeof x);
        if (dti_is_set(x) && count < i)
            dti_text_add(problems, "\n- .%s[%u] comes after a nil one", what, i);
        count += dti_is_set(x) && count == i;
    }
    return count;
}

static void dti_program_desc_terms(dti_lowering *w) {
    dti_code *code = w->code;
    dti_text *problems = &w->problems;
    dt_program_desc *d = &code->desc;
    if (dti_is_set(d->loss)) {
        if (dti_is_set(d->losses[0].term))
            dti_text_add(problems, "\n- .loss and .losses[0] are both set; give one");
        d->losses[0].term = d->loss;
    }
    code->loss_count =
        dti_desc_count(&d->losses[0].term, sizeof *d->losses, DT_MAX_TERMS, "losses", problems);
    code->metric_count =
        dti_desc_count(d->metrics, sizeof *d->metrics, DT_MAX_TERMS, "metrics", problems);
    for (uint32_t i = 0; i < code->loss_count; i++) {
        const double coefficient = (double)d->losses[i].coefficient;
        dt_tensor x = d->losses[i].term;
        if (!dti_fits_f32(coefficient))
            dti_text_add(problems, "\n- .losses[%u] has a coefficient that is not finite", i);
        if (!dti_program_desc_tensor(w, x, "losses", i, problems))
            continue;
        const dti_node *n = dti_node_of(x);
        if (!n->term || !dti_has_gradient(n)) {
            dti_text_add(problems,
                         "\n- .losses[%u], %s, is not a loss term; wrap it in dt_mean_loss", i,
                         dti_tensor_print(x).text);
        }
    }
    for (uint32_t i = 0; i < code->metric_count; i++) {
        dt_tensor x = d->metrics[i];
        if (dti_program_desc_tensor(w, x, "metrics", i, problems) && !dti_node_of(x)->term) {
            dti_text_add(problems, "\n- .metrics[%u], %s, is not a term; wrap it in dt_mean_loss",
                         i, dti_tensor_print(x).text);
        }
    }
}

static uint32_t dti_program_desc_list(dti_lowering *w, const dt_tensor *list, const char *what,
                                      dti_text *problems) {
    const uint32_t count = dti_desc_count(list, sizeof *list, DT_MAX_OUTPUTS, what, problems);
    for (uint32_t i = 0; i < count; i++) {
        dt_tensor x = list[i];
        if (dti_program_desc_tensor(w, x, what, i, problems) && dti_node_of(x)->term)
            dti_text_add(problems, "\n- .%s[%u] is a loss term; the report has its value", what, i);
    }
    return count;
}

/* The application's buffers; program/run/external.c checks the rest, once bindings are known. */
static void dti_program_desc_buffers(dti_lowering *w) {
    const dt_external_buffer *list = w->code->desc.external;
    const uint32_t count =
        dti_desc_count(&list[0].tensor, sizeof *list, DT_MAX_OUTPUTS, "external", &w->problems);
    for (uint32_t i = 0; i < count; i++) {
        const dt_external_buffer *b = &list[i];
        dti_program_desc_tensor(w, b->tensor, "external", i, &w->problems);
        if (!b->memory.buffer)
            dti_text_add(&w->problems, "\n- .external[%u].memory.buffer is 0, not a VkBuffer", i);
        for (uint32_t k = 0; k < i; k++)
            if (list[k].tensor.id == b->tensor.id)
                dti_text_add(&w->problems, "\n- .external[%u] and [%u] are both of %s", k, i,
                             dti_tensor_print(b->tensor).text);
    }
}

static void dti_program_desc_check(dti_lowering *w) {
    dti_code *code = w->code;
    dti_text *problems = &w->problems;
    dt_program_desc *d = &code->desc;
    dti_program_desc_terms(w);
    uint32_t outputs = dti_program_desc_list(w, d->outputs, "outputs", problems);
    uint32_t hosts = dti_program_desc_list(w, d->host_gradients, "host_gradients", problems);
    code->has_optim = d->optim != NULL;
    code->has_gradients = d->optim || d->gradients || hosts;
    code->train = d->mode == DT_MODE_TRAIN || (d->mode == DT_MODE_DEFAULT && code->has_gradients);
    code->batch = d->batch ? d->batch : 1;
    if (d->cached && code->train)
        dti_text_add(problems,
                     "\n- .cached cannot be combined with gradients, or with a .mode for training");
    if (d->cached && !code->work->cache_elements)
        dti_text_add(problems, "\n- .cached is set, but no attention of the graph has a cache");
    if (d->averaged && code->has_gradients)
        dti_text_add(problems, "\n- .averaged cannot be combined with gradients: it computes with "
                               "averages of weights");
    if (d->averaged && !dti_layout_averages(code->layout))
        dti_text_add(
            problems,
            "\n- .averaged is set, but no program of this store averages (dt_optim_desc.average)");
    if (d->concurrent && code->has_gradients)
        dti_text_add(problems, "\n- .concurrent cannot be combined with .optim or gradients");
    code->cache_bytes = d->cached ? dti_arena_bytes(code->work->cache_elements) : 0;
    if ((unsigned)d->mode > DT_MODE_EVAL)
        dti_text_add(problems, "\n- .mode is %d, not a dt_mode", (int)d->mode);
    if ((unsigned)d->precision > DT_PRECISION_BF16)
        dti_text_add(problems,
                     "\n- .precision is %d; it must be DT_PRECISION_F32 or DT_PRECISION_BF16",
                     (int)d->precision);
    if (d->batch < 0)
        dti_text_add(problems, "\n- .batch is %d; it must be at least 1", d->batch);
    if (d->in_flight < 0 || d->in_flight > 2)
        dti_text_add(problems, "\n- .in_flight is %d; it must be 1 or 2", d->in_flight);
    if (code->has_gradients && !code->loss_count && !hosts && !w->staged)
        dti_text_add(problems, "\n- .gradients needs .loss or .host_gradients");
    if (!code->loss_count && !outputs && !code->metric_count)
        dti_text_add(problems, "\n- it computes nothing: give .loss, .metrics or .outputs; a nil "
                               "tensor, as after an op's error, does not count");
    if (d->skip_empty && (!d->optim || !code->loss_count || hosts || d->in_flight == 2))
        dti_text_add(
            problems,
            "\n- .skip_empty needs .optim and a loss, no .host_gradients, and .in_flight = 1");
    if (d->accumulate && !code->has_gradients)
        dti_text_add(problems, "\n- .accumulate needs gradients: give .optim or .gradients");
    if (code->has_optim)
        dti_optim_resolve(code, problems);
    for (uint32_t i = 0; w->staged && i < DT_MAX_OUTPUTS && dti_is_set(w->staged->inputs[i]); i++)
        code->leaving[code->leaving_count++] = w->staged->inputs[i].id;
    dti_program_desc_buffers(w);
}

static dt_result dti_pass_describe(dti_lowering *w) {
    dti_program_desc_check(w);
    return dti_problems_fail(w->code->base, w->code->label, &w->problems);
}

/* ---- gradients */

/* The result of appending to the work graph. */
static dt_result dti_describe_result(dti_lowering *w) {
    const dt_graph *g = w->code->work;
    if (g->error[0] && g->result != DT_ERROR_MEMORY)
        dti_text_add(&w->problems, "\n- gradient: %s", g->error);
    dt_result result = dti_problems_fail(w->code->base, w->code->label, &w->problems);
    if (!result && g->error[0])
        result = dti_code_fail(w->code, g->result, "gradient: %s", g->error);
    return result;
}

static bool dti_param_is_trained(const dti_node *param, const char *params) {
    return !param->frozen && !param->buffer && (!params || dti_glob(params, param->label));
}

/* The name that patterns of optimizers and programs match; NULL: a buffer. */
static const char *dti_code_param_name(const void *of, uint32_t i) {
    const dti_code *code = of;
    const dti_node *n = &code->work->nodes[code->layout->params[i].node];
    return n->buffer ? NULL : n->label;
}

static uint32_t dti_select_params(dti_code *code, dti_text *problems) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < code->layout->param_count; i++) {
        const dti_node *n = &code->work->nodes[code->layout->params[i].node];
        code->trained[i] = dti_param_is_trained(n, code->desc.params);
        count += code->trained[i];
    }
    const char *all = code->desc.params;
    const dti_hint missed =
        dti_glob_missed(code->stage_blocks ? NULL : all, "parameter", code,
                        code->layout->param_count, dti_code_param_name); /* of a stage: commit.c */
    if (missed.text[0])
        dti_text_add(problems, "\n- .params = \"%.100s\": %s", all, missed.text);
    else if (!count)
        dti_text_add(problems, "\n- no parameter to train: all that match \"%.100s\" are frozen",
                     all ? all : "*");
    return missed.text[0] ? 0 : count;
}

static bool dti_host_gradient_again(const dt_program_desc *d, uint32_t index) {
    for (uint32_t i = 0; i < index; i++) {
        if (d->host_gradients[i].id == d->host_gradients[index].id)
            return true;
    }
    return false;
}

/* The loss terms with their seeds, and the host's gradients as inputs. Each y comes once, even if
 * it is listed several times. */
static uint32_t dti_gradient_roots(dti_code *code, dt_tensor *y, dt_tensor *dy) {
    dt_graph *g = code->work;
    uint32_t count = 0;
    for (uint32_t i = 0; i < code->loss_count; i++, count++) {
        y[count] = (dt_tensor){g, dti_code_node(code, code->desc.losses[i].term.id)};
        dy[count] = dti_seed(y[count], i);
    }
    for (uint32_t i = 0; i < DT_MAX_OUTPUTS && dti_is_set(code->desc.host_gradients[i]); i++) {
        if (dti_host_gradient_again(&code->desc, i))
            continue;
        const uint32_t id = code->desc.host_gradients[i].id;
        y[count] = (dt_tensor){g, dti_code_node(code, id)};
        dti_node n = {.op = DTI_OP_INPUT,
                      .dtype = dti_node_of(y[count])->dtype,
                      .samples = dti_node_of(y[count])->samples,
                      .shape = dti_node_of(y[count])->shape};
        n.attr.i[0] = (int32_t)id; /* the source of the gradient */
        n.label = dti_node_of(y[count])->label;
        dy[count++] = dti_graph_push(g, &n, NULL, 0);
    }
    return count;
}

/* By parameter, then by input whose gradient is sent; nil: not needed. */
static void dti_gradient_leaves(const dti_code *code, dt_tensor *wrt) {
    const uint32_t params = code->layout->param_count;
    for (uint32_t i = 0; i < params; i++) {
        if (code->trained[i])
            wrt[i] = (dt_tensor){code->work, code->layout->params[i].node};
    }
    for (uint32_t i = 0; i < code->leaving_count; i++)
        wrt[params + i] = (dt_tensor){code->work, code->leaving[i]};
}

static void dti_gradients_found(dti_code *code, const dt_tensor *wrt, const dt_tensor *dx,
                                dti_text *problems) {
    const uint32_t params = code->layout->param_count;
    memcpy(code->param_dx, dx, params * sizeof *dx);
    memcpy(code->leaving_dx, dx + params, code->leaving_count * sizeof *dx);
    for (uint32_t i = 0; i < params + code->leaving_count; i++) {
        if (!wrt[i].id || !dti_is_nil(dx[i]))
            continue;
        const char *label = code->work->nodes[wrt[i].id].label;
        if (i < params)
            dti_text_add(problems,
                         "\n- parameter '%s' has no gradient: no loss depends on it, or only "
                         "through ops without a gradient (dt_detach, comparisons, class numbers); "
                         "dt_freeze it, or leave it out of .params",
                         label);
        else
            dti_text_add(problems,
                         "\n- input '%s' of a stage has no gradient: no loss depends on it", label);
    }
}

/* Zeros for a parameter's gradient that passes only through step functions: it is 0, whatever its
 * value. In a stage the whole model decides whether there is a gradient. more: room for 2 *
 * params. */
static void dti_gradients_zero(const dti_lowering *w, const dt_tensor *y, const dt_tensor *dy,
                               uint32_t roots, const dt_tensor *wrt, dt_tensor *dx,
                               dt_tensor *more) {
    const dti_code *code = w->code;
    const uint32_t params = code->layout->param_count;
    dt_graph *g = code->work;
    bool any = false;
    for (uint32_t i = 0; i < params; i++) {
        const bool none = wrt[i].id && dti_is_nil(dx[i]);
        more[i] = more[params + i] = none ? wrt[i] : (dt_tensor){0};
        any = any || none;
    }
    g->steps = any && !w->staged;
    if (g->steps)
        dti_differentiate_all(g, y, dy, roots, more, params, more + params);
    g->steps = false;
    for (uint32_t i = 0; i < params && any && !g->error[0]; i++) {
        if (more[i].id && !dti_is_nil(more[params + i]))
            dx[i] = dt_fill(g, g->nodes[wrt[i].id].shape, 0.0f);
    }
}

static void dti_append_gradients(const dti_lowering *w, dti_text *problems) {
    dti_code *code = w->code;
    dt_graph *g = code->work;
    const uint32_t count = code->layout->param_count + code->leaving_count;
    code->backward_node = g->count;
    if (!code->has_gradients || !dti_select_params(code, problems))
        return;
    dt_tensor y[2 * DT_MAX_TERMS], dy[2 * DT_MAX_TERMS];
    uint32_t roots = dti_gradient_roots(code, y, dy);
    dt_tensor *wrt = dti_alloc_array(code->base, 4 * (size_t)count, sizeof *wrt);
    if (!wrt) {
        problems->ok = false;
        return;
    }
    dti_gradient_leaves(code, wrt);
    dti_differentiate_all(g, y, dy, roots, wrt, count, wrt + count);
    for (uint32_t i = count; i < 2 * count && g->autocast; i++)
        wrt[i] = dti_autocast_to(wrt[i], DT_F32);
    if (!g->error[0])
        dti_gradients_zero(w, y, dy, roots, wrt, wrt + count, wrt + 2 * (size_t)count);
    if (!g->error[0])
        dti_gradients_found(code, wrt, wrt + count, problems);
    dti_free(code->base, wrt);
}

static dt_result dti_pass_differentiate(dti_lowering *w) {
    dti_append_gradients(w, &w->problems);
    return dti_describe_result(w);
}

/* Nodes that compute a loss's weight only from targets, for dt_program_add_loss_weights. Without
 * elements the weight is 0. */
static dt_result dti_pass_weigh(dti_lowering *w) {
    dti_code *code = w->code;
    dt_graph *g = code->work;
    for (uint32_t i = 0; i < code->loss_count; i++) {
        const dti_node *n = &g->nodes[dti_code_node(code, code->desc.losses[i].term.id)];
        const dti_op_family *family = dti_op_info_of(n->op)->family;
        const dti_node *x = &g->nodes[dti_input_id(g, n, 0)];
        w->weight_node[i] = 0;
        if (family->weight && dti_shape_elements(x->shape) > 0)
            w->weight_node[i] = family->weight(g, n).id;
        else
            code->static_weight[i] =
                (double)dti_shape_elements(x->shape) * (x->samples ? (double)code->batch : 1.0);
    }
    return dti_describe_result(w);
}
