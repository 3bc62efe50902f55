/* Evaluation and prediction of a grid: only forward parts, through its own chunks. A plan has
 * programs without gradients, lists and flows, which the first evaluation makes. So no rank needs
 * more values than its chunks have, and the host's store is not used.
 *
 * The set comes in groups of micro-batches, several for each replica, so stages overlap. A
 * micro-batch has the rows that one device computes at a time, and all micro-batches' sums are
 * added without rounding. So losses and metrics have the same bits on every grid. Programs have few
 * micro-batch slots for inputs and outputs. Transients are one micro-batch's. They are shared with
 * a step's program if those are large enough, as no step is in flight.
 *
 * Each group has two messages to all ranks: whether each can go on, and sums of losses and metrics.
 *
 * It cannot deadlock. Each device works in the order (group of devices, chunk, micro-batch). Each
 * of a group's micro-batches has a micro-batch slot. So a part waits only for earlier parts of that
 * order. */

#define DTI_FORWARD_AHEAD 2 /* micro-batches of a group for each stage, at most */

static uint32_t dti_forward_number(dt_tensor output) {
    return output.id ? DTI_PIPE_PREDICT : DTI_PIPE_EVALUATE;
}

static dti_pipe_evaluation *dti_forward_of(const dti_parallel *par, dt_tensor output) {
    return par->pipe->plans[dti_forward_number(output)].forward;
}

/* ---- groups */

/* Micro-batches of a replica, of `rows` rows of all. */
static uint32_t dti_forward_micros(const dti_parallel *par, const dti_grid_evaluation *d,
                                   uint64_t rows) {
    const uint64_t all = (rows + d->each - 1) / d->each;
    return (uint32_t)((all + par->mesh.data - 1) / par->mesh.data);
}

static uint32_t dti_forward_micros_full(const dti_parallel *par, const dti_grid_evaluation *d) {
    const uint32_t each = dti_forward_micros(par, d, d->rows),
                   most = INT32_MAX / par->mesh.data / d->each;
    return DTI_MAX(DTI_MIN(DTI_MIN(each, most), DTI_FORWARD_AHEAD * par->mesh.stages), 1u);
}

static uint32_t dti_forward_batch(const dti_parallel *par, const dti_grid_evaluation *d) {
    return dti_forward_micros_full(par, d) * par->mesh.data * d->each;
}

/* Micro-batches of a group are its batch slices, spread over replicas. */
static dti_partition dti_forward_grid(const dti_parallel *par, uint32_t micros, uint32_t each) {
    const uint32_t all = micros * par->mesh.data;
    return (dti_partition){.replicas = par->mesh.data,
                           .batch_slices = all,
                           .parts = 1,
                           .batch = all * each,
                           .apart = true};
}

static void dti_forward_rows(const dti_parallel *par, const dti_grid_evaluation *d, uint32_t rows,
                             uint32_t *first, uint32_t *count) {
    const dti_pipe_evaluation *f = dti_forward_of(par, d->output);
    const dt_comm_span own = dti_mesh_replicas(&par->mesh, par->mesh.rank);
    *first = *count = 0;
    if (!f || !f->reads)
        return;
    const dti_partition *grid = &f->grids[rows < f->grids[0].batch];
    const uint32_t each = grid->batch_slices / grid->replicas;
    *first = dti_partition_row(grid, own.first * each, rows);
    *count = dti_partition_row(grid, (own.first + own.count) * each, rows) - *first;
}

/* ---- programs */

static bool dti_forward_desc_of(dti_parallel *par, const dti_pipe_chunk *chunk, dt_program_desc *d,
                                dti_staged *staged) {
    const dti_pipe *pipe = par->pipe;
    const dti_pipe_evaluation *f = pipe->plan->forward;
    const dt_tensor output = {chunk->graph, f->node};
    uint8_t losses[DT_MAX_TERMS], metrics[DT_MAX_TERMS]; /* the same as in steps */
    int n = 0;
    *d = dti_pipe_model_desc(par);
    d->label = "evaluate";
    if (f->node)
        *d = (dt_program_desc){.label = "predict", .mode = DT_MODE_EVAL};
    d->optim = NULL;
    d->params = NULL;
    d->memory_bytes = 0;                             /* nothing is kept for a backward part */
    d->averaged = f->desc.averaged && !pipe->bounds; /* else they are in the weights' place */
    dti_pipe_cut_desc(&pipe->plan->cut, chunk->index, chunk->graph, d, staged, losses, metrics);
    while (n < DT_MAX_OUTPUTS && d->outputs[n].id && d->outputs[n].id != f->node)
        n++;
    if (f->node && f->home == chunk->index)
        d->outputs[n] = output;
    return d->losses[0].term.id || d->metrics[0].id || d->outputs[0].id;
}

/* Tensors of other chunks are inputs of this chunk's graph while a program of the plan is
 * compiled. */
static void dti_forward_receive(const dti_pipe_cut *cut, const dti_pipe_chunk *chunk,
                                dti_node *kept, bool back) {
    for (uint32_t i = 0, n = 0; i < cut->link_count; i++) {
        dti_node *node = &chunk->graph->nodes[cut->links[i].node];
        if (cut->links[i].to != chunk->index)
            continue;
        if (back)
            *node = kept[n];
        kept[n++] = *node;
        if (!back)
            dti_pipe_as_input(node, cut->low[cut->links[i].node]);
    }
}

static dt_result dti_forward_program(dti_parallel *par, dti_pipe_chunk *chunk,
                                     const dti_batch_slices *batch_slices, uint32_t micro_slots,
                                     dt_program **out) {
    const dti_pipe *pipe = par->pipe;
    dti_staged staged = {.blocks = (uint32_t)pipe->block_count, .tp_ranks = par->desc.tensor};
    dti_node kept[DT_MAX_OUTPUTS];
    dt_program_desc d;
    char label[32];
    if (!dti_forward_desc_of(par, chunk, &d, &staged))
        return DT_OK;
    snprintf(label, sizeof label, "%s of stage %u", d.label, chunk->index);
    d.label = pipe->chunk_count > 1 ? label : d.label;
    d.batch = (int)batch_slices->pieces[0].rows;
    dti_forward_receive(&pipe->plan->cut, chunk, kept, false);
    const dt_result result =
        dti_program_create_micro_slots(chunk->store, &d, batch_slices, &staged, micro_slots, out);
    dti_forward_receive(&pipe->plan->cut, chunk, kept, true);
    return dti_pipe_chunk_failed(par, chunk, result);
}

/* ---- inputs of programs */

static dt_result dti_forward_inputs(dti_parallel *par, const dti_grid_evaluation *d,
                                    const dt_dataset *data) {
    dti_pipe_evaluation *f = dti_forward_of(par, d->output);
    const uint32_t first = 2 * dti_forward_number(d->output),
                   *stands = par->pipe->shared ? par->pipe->shared->stands : NULL;
    dt_result result = DT_OK;
    f->reads = f->searched = false;
    for (dti_pipe_chunk *chunk = NULL; (chunk = dti_pipe_next(par->pipe, chunk)) != NULL;) {
        for (uint32_t i = 0; i < 2 && !result; i++) {
            const dti_pipe_run *runs = chunk->runs[first + i];
            if (runs && runs[0].program)
                result = dti_pipe_said(par, chunk,
                                       dti_program_set(runs[0].program, data, stands, &f->reads));
        }
    }
    return result;
}

/* ---- making */

/* The tensor to predict, in the graph that is cut. */
static dt_result dti_forward_output(dti_parallel *par, dti_pipe_evaluation *f) {
    const dti_pipe *pipe = par->pipe;
    const dt_tensor y = f->desc.output;
    f->node = y.id ? dti_pipe_node(pipe, y.id) : 0;
    if (!y.id || !pipe->shared || !pipe->shared->refused[y.id])
        return DT_OK;
    return dti_fail(par->base, DT_ERROR_UNSUPPORTED,
                    "%s = %u: %s is made by an op that cannot compute on a split input; gather it "
                    "by a DT_TENSOR_ROW layer before, or leave the layer's .tensor out",
                    dti_grid_setting(par), par->desc.tensor, dti_tensor_print(y).text);
}

static dt_result dti_forward_own(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_plan *plan = pipe->plan;
    dti_pipe_evaluation *f = plan->forward;
    const uint32_t batch = dti_forward_batch(par, &f->desc), each = f->desc.each,
                   tail = (uint32_t)(f->desc.rows % batch);
    const dt_program_desc d = dti_pipe_model_desc(par);
    const bool turns = pipe->chunk_count > pipe->mesh->stages;
    f->grids[0] = dti_forward_grid(par, dti_forward_micros_full(par, &f->desc), each);
    f->grids[1] = dti_forward_grid(par, dti_forward_micros(par, &f->desc, tail), each);
    f->micro_slots = turns ? DTI_MAX(pipe->mesh->stages, 2u) : 2;
    f->leaves = dti_alloc_array(par->base, (size_t)f->grids[0].batch_slices * DTI_TERMS_WIDTH,
                                sizeof *f->leaves);
    DTI_HAVE(f->leaves);
    DTI_TRY(dti_forward_output(par, f));
    DTI_TRY(dti_pipe_cut_forward(par->base, pipe->graph, &pipe->plans[DTI_PIPE_TRAIN].cut, &d,
                                 f->node, &plan->cut));
    f->home = plan->cut.home[f->node];
    if (f->desc.rows >= batch)
        DTI_TRY(dti_pipe_runs_make(par, &f->grids[0], batch, dti_pipe_shape(pipe, 0)));
    if (tail)
        DTI_TRY(dti_pipe_runs_make(par, &f->grids[1], tail, dti_pipe_shape(pipe, 1)));
    for (uint32_t i = 0; i < pipe->pipeline_count; i++)
        DTI_TRY(dti_pipeline_fill(par, i));
    dti_pipe_units_moved(par);
    return DT_OK;
}

static dt_result dti_forward_all(dti_parallel *par, dt_result own) {
    const dti_pipe *pipe = par->pipe;
    DTI_TRY(dti_agree_result(par, own ? own : dti_forward_own(par)));
    if (pipe->shared)
        DTI_TRY(dti_agree_result(par, dti_pipe_tp_rooms(par)));
    DTI_TRY(dti_pipe_wires_make(par));
    DTI_TRY(dti_agree_result(par, dti_pipe_lists_make(par)));
    return dti_pipe_units_agree(par);
}

static dt_result dti_forward_make(dti_parallel *par, const dti_grid_evaluation *d) {
    const uint32_t number = dti_forward_number(d->output);
    dti_pipe_plan *plan = &par->pipe->plans[number];
    if (plan->forward && plan->forward->desc.rows == d->rows && plan->forward->desc.each == d->each)
        return DT_OK;
    dti_forward_close(par, number);
    plan->forward = dti_alloc(par->base, sizeof *plan->forward);
    if (plan->forward)
        plan->forward->desc = *d;
    dti_pipe_use(par, number);
    const dt_result result = dti_forward_all(par, plan->forward ? DT_OK : DT_ERROR_MEMORY);
    dti_pipe_use(par, DTI_PIPE_TRAIN);
    if (result)
        dti_forward_close(par, number); /* so that the next call tries again */
    return result;
}

/* A chunk's programs of a shape: newest first, as they may have others' transients. */
static void dti_forward_chunk_close(dti_parallel *par, dti_pipe_chunk *chunk, uint32_t shape) {
    const dti_runs *runs = &par->pipe->pipelines[chunk->pipeline].runs[shape];
    dti_pipe_run *all = chunk->runs[shape];
    for (uint32_t i = DTI_MAX(runs->count, 1u); all && i-- > 0;) {
        uint32_t same = 0;
        while (same < i && all[same].program != all[i].program)
            same++;
        if (same == i)
            dt_program_destroy(all[i].program);
    }
    dti_free(par->base, all);
    chunk->runs[shape] = NULL;
}

static void dti_forward_close(dti_parallel *par, uint32_t number) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_plan *plan = &pipe->plans[number];
    if (!plan->forward)
        return;
    dti_pipe_use(par, number);
    dti_pipe_lists_free(par);
    dti_pipe_wires_free(par);
    for (uint32_t tail = 2; tail-- > 0;) {
        const uint32_t shape = dti_pipe_shape(pipe, tail);
        for (dti_pipe_chunk *chunk = NULL; (chunk = dti_pipe_next(pipe, chunk)) != NULL;)
            dti_forward_chunk_close(par, chunk, shape);
        for (uint32_t i = 0; i < pipe->pipeline_count; i++) {
            dti_pipe_schedule_free(par->base, &pipe->pipelines[i].schedules[shape]);
            dti_runs_free(par->base, &pipe->pipelines[i].runs[shape]);
        }
    }
    dti_pipe_cut_free(par->base, &plan->cut);
    DTI_FREE(par->base, plan->forward->leaves, plan->forward);
    *plan = (dti_pipe_plan){.number = number};
    dti_pipe_use(par, DTI_PIPE_TRAIN);
}

static void dti_forward_free(dti_parallel *par, const dti_grid_evaluation *d) {
    dti_forward_close(par, dti_forward_number(d->output));
}

/* ---- a group's actions, where they are not a step's */

static dt_result dti_forward_open(dti_parallel *par, dti_pipe_chunk *chunk, const dti_action *a) {
    static const double none[DT_MAX_TERMS]; /* each micro-batch has its own weights */
    dt_step_desc step = par->now->desc;
    step.first_row += dti_pipe_runs_now(par, chunk)->runs[a->micro].row;
    return dti_micro_slot_begin(dti_pipe_take(par, chunk, a->micro), &step, none);
}

/* A tensor rank's part of rows of samples to its places in them. */
static void dti_forward_join(const dti_parted *part, dt_shape s, uint32_t rows, uint32_t size,
                             uint32_t tp_rank, const char *from, char *to) {
    int64_t outer = rows, inner = 4;
    for (int k = 0; k < s.rank; k++) {
        outer *= k < part->axis ? s.dim[k] : 1;
        inner *= k > part->axis ? s.dim[k] : 1;
    }
    for (int64_t o = 0; o < outer; o++) {
        for (int i = 0; i < DTI_PARTED_GROUPS; i++) {
            const int64_t run = part->group[i] / size * inner;
            memcpy(to + tp_rank * run, from, (size_t)run);
            from += run;
            to += part->group[i] * inner;
        }
    }
}

/* Rows of a tensor, or of a tensor rank's part of it, to the set's. */
static void dti_forward_put(const dti_parallel *par, const dti_pipe_chunk *chunk,
                            const dti_micro_run *run, const char *from, size_t bytes) {
    const dti_pipe *pipe = par->pipe;
    const dti_grid_evaluation *d = &pipe->plan->forward->desc;
    const uint64_t row = par->now->batch->index * pipe->plan->forward->grids[0].batch + run->row;
    char *to = d->out + row * d->out_bytes;
    const dti_parted *part = pipe->shared ? &pipe->shared->parted[d->output.id] : NULL;
    if (part && part->axis >= 0)
        dti_forward_join(part, dti_node_of(d->output)->shape, run->rows, pipe->shared->size,
                         pipe->pipelines[chunk->pipeline].tp_rank, from, to);
    else if (!pipe->pipelines[chunk->pipeline].tp_rank)
        memcpy(to, from, bytes);
}

static dt_result dti_forward_done(dti_parallel *par, dti_pipe_chunk *chunk, const dti_action *a) {
    const dti_pipe_evaluation *f = par->pipe->plan->forward;
    const dti_pipe_stage *stage = dti_pipe_stage_of(par->pipe, chunk);
    const dti_micro_run *run = &dti_pipe_runs_now(par, chunk)->runs[a->micro];
    const dti_pipe_run *slot = dti_pipe_run_of(par, chunk, a->micro);
    dt_program *p = dti_pipe_take(par, chunk, a->micro);
    if (f->node && f->home == chunk->index) {
        const dti_binding *out = dti_code_binding(dti_program_code(p), f->node, true, false);
        dti_forward_put(par, chunk, run, dti_micro_slot_host(p, slot->micro_slot, out),
                        (size_t)out->bytes);
    }
    if (!par->pipe->pipelines[chunk->pipeline].tp_rank)
        dti_leaf_terms(f->leaves + (size_t)run->pieces[0].leaf * DTI_TERMS_WIDTH, p, 0,
                       stage->losses, stage->metrics);
    dti_micro_slot_end(p);
    return DT_OK;
}

/* ---- a group */

/* Finds a failed callback or a wrong label before any exchange. */
static dt_result dti_forward_look(dti_parallel *par, const dti_batch *batch) {
    const dti_pipe *pipe = par->pipe;
    dt_result result = DT_OK;
    for (dti_pipe_chunk *chunk = NULL; (chunk = dti_pipe_next(pipe, chunk)) != NULL;) {
        const dti_runs *runs = dti_pipe_runs_now(par, chunk);
        for (uint32_t m = 0; m < runs->count && !result; m++) {
            const dt_program *p = dti_pipe_run_of(par, chunk, m)->program;
            if (p && dti_program_labels(p))
                result = dti_batch_look(batch, runs->runs[m].row, dti_program_code(p),
                                        pipe->shared ? pipe->shared->stands : NULL);
        }
        if (result)
            return dti_pipe_said(par, chunk, result);
    }
    return DT_OK;
}

static void dti_forward_drop(dti_parallel *par) {
    for (dti_pipe_chunk *chunk = NULL; (chunk = dti_pipe_next(par->pipe, chunk)) != NULL;) {
        for (uint32_t m = 0; m < dti_pipe_runs_now(par, chunk)->count; m++) {
            dt_program *p = dti_pipe_run_of(par, chunk, m)->program;
            if (p)
                dti_micro_slot_end(p);
        }
    }
}

static const dti_strategy dti_forward_strategy = {.others_wait = true,
                                                  .split = true,
                                                  .calls = &dti_pipe_calls,
                                                  .team = dti_pipe_team,
                                                  .result = dti_pipe_result,
                                                  .rewind = dti_pipe_prepare,
                                                  .lists = dti_pipe_lists,
                                                  .drop = dti_forward_drop,
                                                  .leave = dti_pipe_leave,
                                                  .parts = "stages"};

static void dti_forward_add(const dti_pipe_evaluation *f, uint32_t micros, dti_exact *terms) {
    for (uint32_t i = 0; i < micros * DTI_TERMS_WIDTH; i++)
        dti_exact_add(terms[i % DTI_TERMS_WIDTH], (float)f->leaves[i]);
}

/* The first micro-batch with a loss that is not finite; `micros` if all are finite. */
static uint32_t dti_forward_faulty(const dti_pipe_evaluation *f, uint32_t micros) {
    uint32_t m = 0;
    while (m < micros && dti_losses_finite(f->leaves + (size_t)m * DTI_TERMS_WIDTH))
        m++;
    return m;
}

/* Computes the group again to find the first cause. Samples and drawn numbers are the same. */
static dt_result dti_forward_search(dti_parallel *par, uint32_t micro, char said[1024]) {
    dti_pipe_evaluation *f = par->pipe->plan->forward;
    const dti_finding *first;
    f->searched = true;
    f->fault = micro + 1;
    DTI_TRY(dti_search_lists(par, &first));
    if (first)
        snprintf(said, 1024, "%s", first->text);
    return DT_OK;
}

static dt_result dti_forward_group(dti_parallel *par, const dti_batch *batch, dt_result own,
                                   dti_exact *terms, char said[1024]) {
    dti_pipe *pipe = par->pipe;
    dti_pipe_evaluation *f = pipe->plan->forward;
    if (!own)
        own = dti_forward_look(par, batch);
    DTI_TRY(dti_agree_result(par, own));
    const uint32_t micros = f->grids[pipe->shape % 2].batch_slices;
    memset(f->leaves, 0, (size_t)micros * DTI_TERMS_WIDTH * sizeof *f->leaves);
    dti_pipe_prepare(par);
    DTI_TRY(dti_protocol_lists(par));
    if (f->node)
        return DT_OK;
    /* each is one rank's */
    DTI_TRY(dti_ranks_reduce(par, par->desc.comm, f->leaves, (uint64_t)micros * DTI_TERMS_WIDTH,
                             DT_F64, DT_COMM_SUM));
    dti_forward_add(f, micros, terms);
    const uint32_t faulty = dti_forward_faulty(f, micros);
    return faulty < micros && !f->searched ? dti_forward_search(par, faulty, said) : DT_OK;
}

static dt_result dti_forward_run(dti_parallel *par, const dti_grid_evaluation *d,
                                 const dti_batch *batch, dt_result own, dti_exact *terms,
                                 char said[1024]) {
    dti_pipe *pipe = par->pipe;
    const dti_strategy *strategy = par->strategy;
    dti_step *now = par->now;
    dti_pipe_use(par, dti_forward_number(d->output));
    dti_pipe_evaluation *f = pipe->plan->forward;
    const uint32_t full = f->grids[0].batch;
    f->desc.out = d->out;
    f->step = (dti_step){.batch = batch,
                         .rows = own ? 0 : batch->rows,
                         .desc = {.seed = par->desc.seed,
                                  .step = dti_pipe_first(pipe)->store->steps + 1,
                                  .first_row = own ? 0 : (uint32_t)(batch->index * full)}};
    pipe->shape = dti_pipe_shape(pipe, f->step.rows < full);
    par->now = &f->step;
    par->strategy = &dti_forward_strategy;
    const dt_result result = dti_forward_group(par, batch, own, terms, said);
    par->strategy = strategy;
    par->now = now;
    dti_pipe_use(par, DTI_PIPE_TRAIN);
    pipe->shape = 0;
    return result;
}
