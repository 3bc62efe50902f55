/* A trainer's samples: the columns of inputs, the padding of a short batch, and the loader. */

static void dti_trainer_share(void *user, uint32_t rows, uint32_t *first, uint32_t *count) {
    const dt_trainer *t = user;
    const dti_parallel *par = &t->par;
    if (dti_worker_of(t)) {
        dti_server_worker.rows(t, rows, first, count);
        return;
    }
    dti_parallel_rows(par, rows, first, count);
}

/* The column of the input with that node; -1: none. */
static int dti_dataset_column(const dt_dataset *data, uint32_t node) {
    int c = dti_dataset_columns(data) - 1;
    while (c >= 0 && data->columns[c].input.id != node)
        c--;
    return c;
}

/* Rows that fill up a batch must weigh nothing, whatever else is in them. */
static dt_result dti_trainer_pads(dt_trainer *t, int32_t *pad) {
    const dti_code *code = dti_parallel_code(&t->par);
    bool batch_norm = false;
    for (uint32_t id = 1; id < t->graph->count; id++) {
        const dti_op_info *info = dti_op_info_of(t->graph->nodes[id].op);
        batch_norm = batch_norm || info->samples == DTI_SAMPLES_COUPLES;
    }
    for (uint32_t i = 0; i < code->loss_count; i++) {
        const dti_node *n = &t->graph->nodes[code->desc.losses[i].term.id];
        dti_labels labels;
        const bool ignores = dti_label_user(t->graph, n, &labels) && labels.ignores;
        const uint32_t target = ignores ? dti_input_id(t->graph, n, labels.input) : 0;
        const int c = dti_dataset_column(&t->desc.data, target);
        const dti_binding *binding = c >= 0 ? dti_code_binding(code, target, false, false) : NULL;
        if (!binding || !dti_labels_ignore(binding, &pad[c]) || batch_norm)
            return dti_fail(
                t->base, DT_ERROR_INVALID,
                ".tail is DT_TAIL_PAD, but .losses[%u] %s; use DT_TAIL_KEEP", i,
                batch_norm
                    ? "depends on batch norm, which would include the padding rows"
                    : "is not a cross-entropy with targets from a column that it can ignore");
    }
    return DT_OK;
}

/* Replicas find an input by its node's number, so it must be of the graph that they copy. */
static dt_result dti_trainer_column(const dt_trainer *t, dt_tensor x, uint32_t c) {
    if (x.graph != t->graph)
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            "dataset column %u: its input belongs to another graph than the trainer's: %s", c,
            dti_tensor_elsewhere(t->graph, x).text);
    if (dti_is_nil(x))
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "dataset column %u: its input is nil; see dt_graph_error", c);
    if (dti_node_of(x)->op != DTI_OP_INPUT || dti_node_of(x)->values)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "dataset column %u: %s is not an input; give a tensor of dt_input", c,
                        dti_tensor_print(x).text);
    if (!dti_node_of(x)->samples)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "input %s is shared by all samples, and cannot have a column in .data; use "
                        "dt_trainer_set_input",
                        dti_tensor_name(x).text);
    return DT_OK;
}

/* A column that nothing reads is a mistake: a mask that is not applied. */
static dt_result dti_column_is_read(const dt_trainer *t, uint32_t c) {
    const dti_code *code = dti_parallel_code(&t->par);
    const dt_tensor x = t->desc.data.columns[c].input;
    if (dti_code_binding(code, x.id, false, false))
        return DT_OK;
    return dti_fail(t->base, DT_ERROR_INVALID,
                    "dataset column %u: no loss and no metric reads %s; leave it out", c,
                    dti_tensor_print(x).text);
}

/* Every input of samples has a column among these. */
static dt_result dti_trainer_inputs(const dt_trainer *t, const dt_dataset *data, const char *set) {
    const dti_code *code = dti_parallel_code(&t->par);
    for (uint32_t k = 0; k < code->binding_count; k++) {
        const dti_binding *binding = &code->bindings[k];
        const dti_node *n = &code->work->nodes[binding->node];
        if (n->samples && !binding->output && dti_dataset_column(data, binding->node) < 0)
            return dti_fail(t->base, DT_ERROR_INVALID, "input '%s' has no column in %s; give one",
                            n->label, set);
    }
    return DT_OK;
}

/* Every column needs an input that is read, and every input of samples a column; and targets must
 * be known before the forward part. */
static dt_result dti_trainer_columns(const dt_trainer *t) {
    const dti_code *code = dti_parallel_code(&t->par);
    dt_result result = DT_OK;
    for (uint32_t i = 0; i < code->loss_count; i++) {
        if (code->static_weight[i] < 0.0)
            return dti_fail(t->base, DT_ERROR_UNSUPPORTED,
                            "the targets of .losses[%u] are computed in the graph, so its weight "
                            "is not known before the step; give targets as an input",
                            i);
    }
    const dt_column *columns = t->desc.data.columns;
    for (uint32_t c = 0; c < DT_MAX_COLUMNS && dti_is_set(columns[c].input) && !result; c++) {
        result = dti_trainer_column(t, columns[c].input, c);
        result = result ? result : dti_column_is_read(t, c);
    }
    return result ? result : dti_trainer_inputs(t, &t->desc.data, ".data");
}

_Static_assert(DTI_STREAM_KEPT > DTI_STEP_SLOTS_MAX, "steps in flight are made again");

static dt_result dti_trainer_loader(dt_trainer *t) {
    dti_loader_desc d = {
        .data = &t->desc.data,
        .seed = t->desc.seed,
        .batch = (uint32_t)t->desc.batch,
        .tail = t->desc.tail,
        .shuffle = !t->desc.no_shuffle,
        .threaded = !dti_worker_of(t) && !dti_serves(t) && /* tickets name the next batch */
                    !t->desc.no_prefetch,
        .share = dti_trainer_share,
        .user = t,
        .share_max = dti_worker_of(t) ? dti_server_worker.rows_max(t) : t->par.desc.batch};
    if (t->desc.parallel.balance == DT_BALANCE_EQUAL && !dti_worker_of(t)) {
        uint32_t first;
        dti_trainer_share(t, t->par.desc.batch, &first, &d.share_max);
    }
    DTI_TRY(dti_trainer_columns(t));
    DTI_TRY(dti_shared_make(t));
    DTI_TRY(dti_shared_put(t));
    if (t->desc.tail == DT_TAIL_PAD)
        DTI_TRY(dti_trainer_pads(t, d.pad));
    d.kept = dti_loader_keep(t->loader);
    dti_loader_destroy(t->loader);
    t->loader = NULL;
    return dti_loader_create(t->base, &d, &t->loader);
}
