/* A replica's part of a step, micro-batch by micro-batch: inputs, weights, forward, backward, and
 * its operands at sync points. protocol.c makes the whole step, and step/execute.c executes the
 * lists. */

#define DTI_MARKS 4
enum {
    DTI_WEIGHTS_FAULT = DT_MAX_TERMS, /* ranks that cannot go on, and the sum of their numbers */
    DTI_WEIGHTS_WHO,
    DTI_WEIGHTS_ASKED,
    /* A mark of rates and coefficients in parts: sums over ranks, of each and of its square. */
    DTI_WEIGHTS_MARK,
    DTI_WEIGHTS_SQUARE = DTI_WEIGHTS_MARK + DTI_MARKS,
    DTI_WEIGHTS_CALLED = DTI_WEIGHTS_SQUARE + DTI_MARKS, /* which trainer, and its square */
    DTI_WEIGHTS_WIDTH = DTI_WEIGHTS_CALLED + 2
};
enum {
    DTI_TERMS_WEIGHT = DT_MAX_TERMS, /* sums of losses, weights, sums of metrics, weights */
    DTI_TERMS_METRIC = 2 * DT_MAX_TERMS,
    DTI_TERMS_METRIC_WEIGHT = 3 * DT_MAX_TERMS,
    DTI_TERMS_FAULT = 4 * DT_MAX_TERMS, /* processes that cannot write the update */
    DTI_TERMS_WIDTH
};

static double *dti_scalar_leaf(const dti_parallel *par, const dti_scalar_sum *s,
                               uint32_t batch_slice) {
    return s->leaves + (size_t)(batch_slice - par->first_batch_slice) * s->width;
}

/* ---- inputs */

/* Rows of a batch to a program's inputs. stands: by node of the columns' graph, which one of the
 * program's graph it is; NULL: the same. all: also to inputs that the program does not read, which
 * is an error. weigh: to the host's copy, which weighs losses, instead. */
static dt_result dti_batch_write(const dti_batch *batch, uint32_t row, uint32_t rows, dt_program *p,
                                 const uint32_t *stands, bool all, bool weigh) {
    const uint32_t at = row - batch->first;
    for (int c = 0; c < batch->column_count; c++) {
        const dti_loader_column *column = &batch->columns[c];
        const size_t size = dti_column_bytes(column);
        const char *data = batch->values[c];
        const dt_tensor input = {p->store->graph,
                                 stands ? stands[column->input.id] : column->input.id};
        if (!all && !dti_code_binding(dti_program_code(p), input.id, false, false))
            continue;
        const uint32_t *sources = batch->sources + at;
        DTI_TRY(weigh ? dti_host_weights_write(p, input, data + at * size, rows * size, sources)
                      : dti_binding_write(p, input, false, data + at * size, rows * size, sources));
    }
    return DT_OK;
}

/* Before an evaluation: checks that each input of a program has a column in the set, or is shared
 * and has a value. Values of an older set do not count. *reads: true if there is a column. */
static dt_result dti_program_set(const dt_program *p, const dt_dataset *data,
                                 const uint32_t *stands, bool *reads) {
    const dti_code *code = dti_program_code(p);
    for (uint32_t i = 0; i < code->binding_count; i++) {
        const dti_binding *binding = &code->bindings[i];
        const dti_node *n = &code->work->nodes[binding->node];
        int c = dti_dataset_columns(data) - 1;
        if (binding->output || n->values || n->attr.i[2]) /* another chunk's */
            continue;
        while (c >= 0 && (stands ? stands[data->columns[c].input.id] : data->columns[c].input.id) !=
                             binding->node)
            c--;
        *reads = *reads || c >= 0;
        if (c < 0 && (n->samples || !p->written[i]))
            return dti_fail(p->base, DT_ERROR_INVALID,
                            n->samples ? "input '%s' has no column in the set; give one"
                                       : "input '%s' was never written",
                            n->label);
    }
    return DT_OK;
}

/* Checks the labels among them, as dti_batch_write checks its data. */
static dt_result dti_batch_look(const dti_batch *batch, uint32_t row, const dti_code *code,
                                const uint32_t *stands) {
    const uint32_t at = row - batch->first;
    for (int c = 0; c < batch->column_count; c++) {
        const dti_loader_column *column = &batch->columns[c];
        const uint32_t node = stands ? stands[column->input.id] : column->input.id;
        const dti_binding *binding = dti_code_binding(code, node, false, false);
        const char *data = batch->values[c];
        if (binding && binding->check_count)
            DTI_TRY(dti_labels_check(
                code, binding,
                (const int32_t *)(const void *)(data + at * dti_column_bytes(column)),
                batch->sources + at));
    }
    return DT_OK;
}

static dt_result dti_micro_write(const dti_parallel *par, const dti_micro_run *run) {
    return dti_batch_write(par->now->batch, run->row, run->rows, run->program, NULL, true, false);
}

/* Whether the device need not have a run's inputs for its weights. */
static bool dti_micro_is_weighed_apart(const dti_micro_run *run) {
    return run->program->host_weights || !dti_program_weighs(run->program);
}

/* To where they are weighed, and labels are looked at. */
static dt_result dti_micro_write_host_weights(const dti_parallel *par, const dti_micro_run *run) {
    return dti_batch_write(par->now->batch, run->row, run->rows, run->program, NULL, true,
                           dti_micro_is_weighed_apart(run));
}

/* ---- weights */

static dt_result dti_micro_weigh(dti_replica *r, const dti_micro_run *run) {
    double *weights = r->weights + (run->pieces - r->runs->pieces) * DT_MAX_TERMS;
    memset(weights, 0, (size_t)run->piece_count * DT_MAX_TERMS * sizeof *weights);
    return dti_program_weigh(run->program, weights);
}

/* Piece by piece in their order, whatever runs they are computed in. */
static void dti_parallel_leaf_weights(dti_parallel *par, const dti_replica *r) {
    for (uint32_t k = 0; k < r->runs->piece_count && r->runs->count; k++) {
        double *leaf = dti_scalar_leaf(par, &par->weights, r->runs->pieces[k].leaf);
        for (uint32_t i = 0; i < DT_MAX_TERMS; i++)
            leaf[i] += r->weights[k * DT_MAX_TERMS + i];
    }
}

/* The first run comes last, and its inputs stay where they are. */
static dt_result dti_parallel_weigh(dti_parallel *par, uint32_t index) {
    dti_replica *r = &par->replicas[index];
    for (uint32_t i = r->runs->count; i-- > 0;) {
        const dti_micro_run *run = &r->runs->runs[i];
        DTI_TRY(dti_micro_write_host_weights(par, run));
        DTI_TRY(i == 0 && dti_micro_is_weighed_apart(run) ? dti_micro_write(par, run) : DT_OK);
        DTI_TRY(dti_micro_weigh(r, run));
    }
    dti_parallel_leaf_weights(par, r);
    return DT_OK;
}

/* ---- forward: begins while the weights are being exchanged */

static dt_result dti_parallel_forward(dti_parallel *par, uint32_t index) {
    dti_replica *r = &par->replicas[index];
    const uint64_t start = dti_now_ns();
    if (!r->runs->count)
        return DT_OK;
    const dt_result result = dti_list_run(par, index, dti_list_ahead(&r->runs->list));
    r->busy_ns = dti_now_ns() - start;
    if (!index)
        par->now->times.forward += r->busy_ns;
    return result;
}

static dt_result dti_parallel_weigh_forward(dti_parallel *par, uint32_t index) {
    DTI_TRY(dti_parallel_weigh(par, index));
    return dti_parallel_forward(par, index);
}

/* ---- backward */

/* A piece's; losses, metrics: which of the model's a stage's own are, or NULL. */
static void dti_leaf_terms(double *leaf, const dt_program *p, uint32_t piece, const uint8_t *losses,
                           const uint8_t *metrics) {
    const dti_code *code = dti_program_code(p);
    for (uint32_t i = 0; i < code->loss_count + code->metric_count; i++) {
        const bool metric = i >= code->loss_count;
        const uint32_t own = metric ? i - code->loss_count : i;
        const uint8_t *of = metric ? metrics : losses;
        const uint32_t at = (metric ? DTI_TERMS_METRIC : 0) + (of ? of[own] : own);
        double pair[2];
        dti_program_term(p, i, piece, pair);
        leaf[at] += pair[0];
        leaf[at + DTI_TERMS_WEIGHT] += pair[1];
    }
}

static dt_result dti_parallel_backward(dti_parallel *par, uint32_t index) {
    dti_replica *r = &par->replicas[index];
    const uint64_t start = dti_now_ns();
    const dt_result result = dti_list_run(par, index, r->runs->list.count);
    r->passed = dti_now_ns();
    r->busy_ns += r->passed - start;
    if (result)
        atomic_store(&r->failed, true);
    while (!dti_any_failed(par) && !dti_exchange_help(par, index, true))
        dti_thread_yield();
    return result;
}
