/* Losses and metrics over a set, or the value of a tensor for each of its samples. Each rank
 * computes its rows of every batch. The sums are added at the end, so a slow rank delays the others
 * only there. With ZeRO-2 and 3 ranks need each other's parameters in every batch. */

/* kept: by replica, what stays. */
static void dti_evaluation_programs_free(dt_program **programs, dt_program **kept, uint32_t count) {
    for (uint32_t i = 0; programs && i < count; i++)
        dt_program_destroy(kept && kept[i] == programs[i] ? NULL : programs[i]);
}

static void dti_evaluation_free(dt_trainer *t) {
    dti_evaluation *v = &t->evaluation;
    if (t->par.replicas) {
        dti_evaluation_programs_free(v->tail, v->full, t->par.job.local);
        dti_evaluation_programs_free(v->full, NULL, t->par.job.local);
    }
    DTI_FREE(t->base, v->full, v->tail, v->terms);
    dti_unit_pass_free(&t->par, &v->pass);
    *v = (dti_evaluation){
        .each = v->each, .output = v->output, .out = v->out, .out_bytes = v->out_bytes};
}

/* The rows of a batch that a replica of this process computes. A short batch fills the first
 * replicas. So programs have the same rows of the set, and sums the same bits, for any number of
 * replicas. */
static uint32_t dti_evaluation_rows(const dt_trainer *t, uint32_t replica, uint32_t rows,
                                    uint32_t *first) {
    const uint64_t g = t->par.job.first + replica, each = t->evaluation.each;
    *first = (uint32_t)DTI_MIN(g * each, (uint64_t)rows);
    return (uint32_t)DTI_MIN((g + 1) * each, (uint64_t)rows) - *first;
}

/* Losses and metrics, or in their place the tensor that is predicted. */
static dt_program_desc dti_evaluation_desc(const dt_trainer *t, const dti_replica *r) {
    dt_program_desc d = dti_replica_desc(&t->par, r);
    d.label = "evaluate";
    if (t->evaluation.output.id) {
        d = (dt_program_desc){.label = "predict", .mode = DT_MODE_EVAL};
        d.outputs[0] = dti_replica_tensor(&t->par, r, t->evaluation.output);
    }
    return d;
}

static dt_result dti_evaluation_program(dt_trainer *t, uint32_t replica, uint32_t rows,
                                        dt_program **out) {
    const dti_replica *r = &t->par.replicas[replica];
    const bool units = dti_units_are(&t->par);
    dt_program_desc d = dti_evaluation_desc(t, r);
    uint32_t first;
    d.averaged =
        t->desc.averaged && !dti_is_sharded(&t->par); /* else they come to the weights' place */
    d.optim = NULL;
    d.params = NULL;
    d.memory_bytes = 0; /* nothing is kept for a backward pass */
    d.batch = (int)dti_evaluation_rows(t, replica, rows, &first);
    const dti_micro_run run = {.row = first, .rows = (uint32_t)d.batch};
    dt_program *full = t->evaluation.full[replica];
    if (!run.rows && !units)
        return DT_OK;
    d.batch = DTI_MAX(d.batch, 1);
    const dti_piece piece = {.rows = (uint32_t)d.batch, .begins = true, .ends = true};
    const dti_batch_slices slices = dti_unit_pass_slices(&t->par, &piece);
    const bool same = full && run.rows == t->evaluation.each;
    dt_result result = DT_OK;
    if (same)
        *out = full;
    else
        result = dti_program_create(r->store, &d, units ? &slices : NULL, out);
    if (!result && units)
        result = dti_unit_pass_put(&t->par, &t->evaluation.pass, rows != t->evaluation.batch,
                                   replica, *out, rows, run);
    return dti_replica_failed(&t->par, replica, result);
}

static dt_result dti_evaluation_make(dt_trainer *t, uint64_t rows, uint32_t batch) {
    dti_evaluation *v = &t->evaluation;
    const uint32_t local = t->par.job.local, tail = (uint32_t)(rows % batch);
    if (v->full && v->rows == rows && v->batch == batch)
        return DT_OK;
    dti_evaluation_free(t);
    v->full = dti_alloc_array(t->base, local, sizeof(dt_program *));
    v->tail = dti_alloc_array(t->base, local, sizeof(dt_program *));
    v->terms = dti_alloc_array(t->base, (size_t)local * DTI_TERMS_WIDTH, sizeof *v->terms);
    dt_result result = v->full && v->tail && v->terms ? DT_OK : DT_ERROR_MEMORY;
    v->rows = rows;
    v->batch = batch;
    if (!result && dti_units_are(&t->par))
        result = dti_unit_pass_make(&t->par, &v->pass, t->desc.averaged);
    for (uint32_t i = 0; i < local && !result; i++) {
        result = rows >= batch ? dti_evaluation_program(t, i, batch, &v->full[i]) : DT_OK;
        if (!result && tail)
            result = dti_evaluation_program(t, i, tail, &v->tail[i]);
    }
    if (!result)
        result = dti_shared_put(t);
    if (result)
        dti_evaluation_free(t); /* so that the next call tries again */
    return result;
}

/* Copies a replica's predictions to its samples' places. */
static dt_result dti_evaluation_take(const dt_trainer *t, uint32_t index, dt_program *p,
                                     uint32_t first, uint32_t rows) {
    const dti_evaluation *v = &t->evaluation;
    const uint64_t row = v->now->index * v->batch + first;
    const dt_tensor y = dti_replica_tensor(&t->par, &t->par.replicas[index], v->output);
    return dt_program_read(p, y, v->out + row * v->out_bytes, rows * v->out_bytes);
}

/* What the batch's programs draw random numbers by: seed and number of the next step, and rows of
 * the set. A program that begins at row `first` adds that to .first_row. */
static dt_step_desc dti_evaluation_step(const dt_trainer *t) {
    const dti_evaluation *v = &t->evaluation;
    return (dt_step_desc){.seed = t->desc.seed,
                          .step = t->par.replicas[0].store->steps + 1,
                          .first_row = (uint32_t)(v->now->index * v->batch)};
}

/* A program's output, as floats. */
static void dti_evaluation_add(dti_evaluation *v, uint32_t replica, const double *terms) {
    for (size_t k = 0; k < DTI_TERMS_FAULT; k++)
        dti_exact_add(v->terms[(size_t)replica * DTI_TERMS_WIDTH + k], (float)terms[k]);
}

/* With units all replicas run together, after all have written. */
static void dti_evaluation_run(void *arg, uint32_t index) {
    dt_trainer *t = arg;
    dti_evaluation *v = &t->evaluation;
    dti_replica *r = &t->par.replicas[index];
    const dti_batch *batch = v->now;
    uint32_t first;
    const uint32_t rows = dti_evaluation_rows(t, index, batch->rows, &first);
    dt_program *p = batch->rows == v->batch ? v->full[index] : v->tail[index];
    dt_step_desc step = v->step; /* devices run at once, and one counts in its store */
    dt_report report = {0};
    double terms[DTI_TERMS_WIDTH] = {0};
    step.first_row += first;
    r->result = DT_OK;
    if (rows) /* a column that the predicted tensor does not depend on has no place */
        r->result = dti_batch_write(batch, first, rows, p, NULL, !v->output.id, false);
    if (!rows || dti_units_are(&t->par))
        return;
    if (!r->result)
        r->result = dt_program_run(p, &step, &report);
    if (!r->result && v->output.id)
        r->result = dti_evaluation_take(t, index, p, first, rows);
    dti_terms_add(terms, &report);
    if (!v->output.id && (!r->result || r->result == DT_ERROR_NUMERIC))
        dti_evaluation_add(v, index, terms);
}

/* A batch that is not finite ends no evaluation: its sums count, and the first reason is kept. */
static dt_result dti_evaluation_result(dt_trainer *t) {
    char *said = t->evaluation.said;
    for (uint32_t i = 0; i < t->par.job.local; i++) {
        dti_replica *r = &t->par.replicas[i];
        if (r->result != DT_ERROR_NUMERIC)
            continue;
        if (!said[0]) {
            dti_replica_failed(&t->par, i, r->result);
            snprintf(said, sizeof t->evaluation.said, "%s", t->base->error);
        }
        r->result = DT_OK;
    }
    return dti_replicas_result(&t->par);
}

/* ---- a set */

static dti_grid_evaluation dti_evaluation_forward(const dt_trainer *t, uint64_t rows,
                                                  uint32_t each) {
    const dti_evaluation *v = &t->evaluation;
    return (dti_grid_evaluation){.rows = rows,
                                 .each = (uint32_t)DTI_MIN((uint64_t)each, DTI_MAX(rows, 1u)),
                                 .output = v->output,
                                 .out = v->out,
                                 .out_bytes = v->out_bytes,
                                 .averaged = t->desc.averaged};
}

static void dti_evaluation_share(void *user, uint32_t rows, uint32_t *first, uint32_t *count) {
    const dt_trainer *t = user;
    if (dti_pipe_of(&t->par)) {
        const dti_grid_evaluation d = dti_evaluation_forward(t, 0, 1);
        dti_forward_rows(&t->par, &d, rows, first, count);
        return;
    }
    uint32_t last, n = dti_evaluation_rows(t, t->par.job.local - 1, rows, &last);
    dti_evaluation_rows(t, 0, rows, first);
    *count = last + n - *first;
}

static dt_result dti_evaluation_columns(const dt_trainer *t, const dt_dataset *data) {
    if (data->stream)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "the set is a stream (dt_dataset.stream), which is only to train on; give "
                        "one with .rows and .columns[].data, or .sample");
    for (uint32_t c = 0; c < DT_MAX_COLUMNS && dti_is_set(data->columns[c].input); c++)
        DTI_TRY(dti_trainer_column(t, data->columns[c].input, c));
    return DT_OK;
}

/* threaded: for reading it. */
static dt_result dti_evaluation_open(dt_trainer *t, const dt_dataset *data, uint32_t batch,
                                     bool threaded, dti_loader **out) {
    dti_loader_desc d = {.data = data,
                         .seed = t->desc.seed,
                         .batch = batch,
                         .threaded = threaded,
                         .share = dti_evaluation_share,
                         .user = t,
                         .share_max = batch};
    const uint32_t replicas = t->par.job.replicas;
    uint32_t first;
    t->evaluation.each = (batch + replicas - 1) / replicas;
    if (dti_pipe_of(&t->par))
        dti_evaluation_share(t, batch, &first, &d.share_max);
    DTI_TRY(dti_evaluation_columns(t, data));
    return dti_loader_create(t->base, &d, out);
}

static dt_result dti_evaluation_set(dt_trainer *t, const dt_dataset *data) {
    const dti_evaluation *v = &t->evaluation;
    const uint32_t local = t->par.job.local;
    for (uint32_t i = 0; i < 2 * local; i++) {
        const dt_program *p = i < local ? v->full[i] : v->tail[i - local];
        bool reads = false;
        if (p)
            DTI_TRY(dti_replica_failed(&t->par, i % local, dti_program_set(p, data, NULL, &reads)));
    }
    return DT_OK;
}

/* Programs and samples before the first batch. */
static dt_result dti_evaluation_ready(dt_trainer *t, const dt_dataset *data, uint32_t batch,
                                      dti_loader **loader) {
    dti_evaluation *v = &t->evaluation;
    DTI_TRY(dti_shared_written(t));
    DTI_TRY(dti_evaluation_open(t, data, batch, true, loader));
    DTI_TRY(dti_evaluation_make(t, data->rows, batch));
    DTI_TRY(dti_evaluation_set(t, data));
    memset(v->terms, 0, (size_t)t->par.job.local * DTI_TERMS_WIDTH * sizeof *v->terms);
    return dti_loader_seek(*loader, 0, 0, 0);
}

/* ---- how a mesh goes through it */

typedef struct dti_evaluation_kind {
    bool together; /* ranks wait for each other in every batch, and fail together */
    /* The values that are wanted are in place, and *loader at the first batch. */
    dt_result (*begin)(dt_trainer *t, const dt_dataset *data, uint32_t batch, dti_loader **loader);
    /* The batch `now`, to the terms or the prediction. own: what failed here before. */
    dt_result (*batch)(dt_trainer *t, dt_result own);
    dt_result (*end)(dt_trainer *t); /* also after an error: the weights are back in their place */
} dti_evaluation_kind;

/* ZeRO-1 has averages in shards. */
static bool dti_evaluation_shows(const dt_trainer *t) {
    return t->desc.averaged && dti_is_sharded(&t->par);
}

static dt_result dti_evaluation_replicas_begin(dt_trainer *t, const dt_dataset *data,
                                               uint32_t batch, dti_loader **loader) {
    DTI_TRY(dti_evaluation_shows(t) ? dti_owners_show(&t->par) : DT_OK);
    return dti_evaluation_ready(t, data, batch, loader);
}

static dt_result dti_evaluation_replicas_batch(dt_trainer *t, dt_result own) {
    DTI_TRY(own);
    t->evaluation.step = dti_evaluation_step(t);
    dti_device_team_run(t->par.device_team, dti_evaluation_run, t);
    return dti_evaluation_result(t);
}

static dt_result dti_evaluation_replicas_end(dt_trainer *t) {
    return dti_evaluation_shows(t) ? dti_owners_hide(&t->par) : DT_OK;
}

static const dti_evaluation_kind dti_evaluation_replicas = {.begin = dti_evaluation_replicas_begin,
                                                            .batch = dti_evaluation_replicas_batch,
                                                            .end = dti_evaluation_replicas_end};

static dt_result dti_evaluation_units_begin(dt_trainer *t, const dt_dataset *data, uint32_t batch,
                                            dti_loader **loader) {
    const dt_result own = dti_evaluation_ready(t, data, batch, loader);
    return dti_unit_pass_begin(&t->par, &t->evaluation.pass, own);
}

static dt_result dti_evaluation_units_fault(dt_trainer *t, const bool *faulty) {
    dti_evaluation *v = &t->evaluation;
    const dt_result result = dti_unit_pass_fault(&t->par, &v->pass, faulty);
    if (result != DT_ERROR_NUMERIC)
        return result;
    snprintf(v->said, sizeof v->said, "%s", t->base->error);
    return DT_OK;
}

static dt_result dti_evaluation_units_batch(dt_trainer *t, dt_result own) {
    dti_evaluation *v = &t->evaluation;
    bool faulty[DTI_REPLICAS_MAX] = {0};
    dt_result taken = DT_OK; /* others would wait in the next batch */
    if (!own) {
        v->step = dti_evaluation_step(t);
        dti_device_team_run(t->par.device_team, dti_evaluation_run, t);
        own = dti_replicas_result(&t->par);
    }
    const dt_step_desc step = own ? (dt_step_desc){0} : v->step;
    DTI_TRY(dti_unit_pass_batch(&t->par, &v->pass, v->now, &step, own));
    for (uint32_t i = 0; i < t->par.job.local; i++) {
        uint32_t first;
        const uint32_t rows = dti_evaluation_rows(t, i, v->now->rows, &first);
        double terms[DTI_TERMS_WIDTH] = {0};
        dt_program *p = rows ? t->par.replicas[i].runs->runs[0].program : NULL;
        if (rows && v->output.id && !taken)
            taken = dti_replica_failed(&t->par, i, dti_evaluation_take(t, i, p, first, rows));
        else if (rows && !v->output.id)
            faulty[i] = !dti_unit_pass_terms(&t->par, i, terms) && !t->par.desc.program.no_check;
        dti_evaluation_add(v, i, terms);
    }
    return v->output.id ? dti_agree_result(&t->par, taken) : dti_evaluation_units_fault(t, faulty);
}

static dt_result dti_evaluation_units_end(dt_trainer *t) {
    dti_unit_pass_end(&t->par);
    return DT_OK;
}

static const dti_evaluation_kind dti_evaluation_units = {.together = true,
                                                         .begin = dti_evaluation_units_begin,
                                                         .batch = dti_evaluation_units_batch,
                                                         .end = dti_evaluation_units_end};

/* A grid computes by its own chunks. What a rank can find wrong by itself. */
static dt_result dti_evaluation_grid_ready(dt_trainer *t, const dt_dataset *data,
                                           dti_loader **loader) {
    dti_evaluation *v = &t->evaluation;
    v->terms = v->terms ? v->terms : dti_alloc_array(t->base, DTI_TERMS_WIDTH, sizeof *v->terms);
    DTI_HAVE(v->terms);
    memset(v->terms, 0, DTI_TERMS_WIDTH * sizeof *v->terms);
    DTI_TRY(dti_shared_put(t));
    DTI_TRY(dti_evaluation_columns(t, data));
    DTI_TRY(dti_forward_inputs(&t->par, &v->grid, data));
    DTI_TRY(dti_evaluation_open(t, data, dti_forward_batch(&t->par, &v->grid), true, loader));
    return dti_loader_seek(*loader, 0, 0, 0);
}

static dt_result dti_evaluation_grid_begin(dt_trainer *t, const dt_dataset *data, uint32_t batch,
                                           dti_loader **loader) {
    dti_evaluation *v = &t->evaluation;
    const dt_result written = dti_shared_written(t);
    v->grid = dti_evaluation_forward(t, data->rows, batch / t->par.mesh.data);
    DTI_TRY(dti_agree_result(&t->par, written ? written : dti_trainer_look(t)));
    DTI_TRY(dti_forward_make(&t->par, &v->grid));
    DTI_TRY(dti_agree_result(&t->par, dti_evaluation_grid_ready(t, data, loader)));
    return t->desc.averaged ? dti_forward_show(&t->par) : DT_OK;
}

static dt_result dti_evaluation_grid_batch(dt_trainer *t, dt_result own) {
    dti_evaluation *v = &t->evaluation;
    return dti_forward_run(&t->par, &v->grid, v->now, own, v->terms, v->said);
}

/* All ranks have all sums: the first one's count. */
static dt_result dti_evaluation_grid_end(dt_trainer *t) {
    dti_evaluation *v = &t->evaluation;
    if (v->terms && t->par.mesh.rank)
        memset(v->terms, 0, DTI_TERMS_WIDTH * sizeof *v->terms);
    return dti_forward_hide(&t->par);
}

static const dti_evaluation_kind dti_evaluation_grid = {.together = true,
                                                        .begin = dti_evaluation_grid_begin,
                                                        .batch = dti_evaluation_grid_batch,
                                                        .end = dti_evaluation_grid_end};

/* The result is that of all ranks. */
static dt_result dti_evaluation_loop(dt_trainer *t, const dt_dataset *data, uint32_t batch,
                                     dt_train_report *r) {
    const dti_evaluation_kind *kind = dti_pipe_of(&t->par)     ? &dti_evaluation_grid
                                      : dti_units_are(&t->par) ? &dti_evaluation_units
                                                               : &dti_evaluation_replicas;
    dti_loader *loader = NULL;
    t->evaluation.said[0] = 0;
    if (t->loader)
        dti_loader_rest(t->loader); /* .sample is called by one thread at a time */
    dt_result result = kind->begin(t, data, batch, &loader);
    const uint64_t batches = result ? 0 : dti_loader_epoch_batches(loader);
    for (uint64_t i = 0; i < batches && !result; i++) {
        result = kind->batch(t, dti_loader_next(loader, &t->evaluation.now));
        r->samples += result ? 0 : t->evaluation.now->rows;
    }
    dti_loader_destroy(loader);
    if (!kind->together)
        result = dti_agree_result(&t->par, result);
    const dt_result back = kind->end(t);
    return result ? result : dti_agree_result(&t->par, back);
}

/* The samples of a batch of all replicas, where `batch` is each one's. */
static uint32_t dti_evaluation_batch(const dt_trainer *t, int batch) {
    const uint64_t replicas = dti_pipe_of(&t->par) ? t->par.mesh.data : t->par.job.replicas;
    const uint64_t each = batch ? (uint64_t)batch : (t->par.desc.batch + replicas - 1) / replicas;
    return (uint32_t)DTI_MIN(each * replicas, (uint64_t)INT32_MAX);
}

static dt_result dti_evaluation_check(dt_trainer *t, const dt_dataset *data, int batch) {
    dti_loader *loader = NULL;
    dt_result result = dti_evaluation_open(t, data, dti_evaluation_batch(t, batch), false, &loader);
    dti_loader_destroy(loader);
    return result ? result : dti_trainer_inputs(t, data, "it");
}

/* A rank that evaluates something else would take part in other operations, and end the job. */
static dt_result dti_evaluation_same(dt_trainer *t, const dt_dataset *data, int batch,
                                     const char *what) {
    static const char *const of[] = {"sets of different numbers of rows",
                                     "batches of different sizes", "different tensors"};
    enum { ALL = DTI_COUNT(of) };
    const int64_t own[ALL] = {(int64_t)data->rows,
                              batch < 0 ? -1 : (int64_t)dti_evaluation_batch(t, batch),
                              t->evaluation.output.id};
    int64_t most[2 * ALL];
    for (int i = 0; i < ALL; i++) {
        most[i] = own[i];
        most[ALL + i] = -own[i];
    }
    DTI_TRY(dti_ranks_reduce(&t->par, t->par.desc.comm, most, 2 * ALL, DT_I64, DT_COMM_MAX));
    for (int i = 0; i < ALL; i++) {
        if (most[i] != -most[ALL + i])
            return dti_fail(t->base, DT_ERROR_INVALID,
                            "%s: the ranks evaluate %s; give all ranks the same", what, of[i]);
    }
    return batch >= 0 ? DT_OK
                      : dti_fail(t->base, DT_ERROR_INVALID,
                                 "%s: batch is %d; it must be at least 0", what, batch);
}

static dt_result dti_evaluation_all(dt_trainer *t, const dt_dataset *data, int batch,
                                    const char *what, dt_train_report *r) {
    DTI_TRY(dti_check_forked(t->base));
    DTI_TRY(dti_trainer_whole(t, "be evaluated"));
    dti_trainer_drain(t);
    if (dti_units_are(&t->par))
        DTI_TRY(dti_units_lost(&t->par));
    if (t->par.lost && (t->par.desc.comm || dti_pipe_of(&t->par)))
        return dti_trainer_lost(t);
    DTI_TRY(dti_evaluation_same(t, data, batch, what));
    return dti_evaluation_loop(t, data, dti_evaluation_batch(t, batch), r);
}

/* All ranks see it in the sums; the lowest one that knows why is quoted. */
static dt_result dti_evaluation_finite(dt_trainer *t, const double *terms) {
    const char *said = t->evaluation.said;
    if (dti_losses_finite(terms))
        return DT_OK;
    const dt_result own = said[0] ? dti_fail(t->base, DT_ERROR_NUMERIC, "%s", said) : DT_OK;
    const dt_result result = dti_agree_result(&t->par, own);
    return result ? result
                  : dti_fail(t->base, DT_ERROR_NUMERIC,
                             "evaluate: the sum of a loss over all samples is not finite; predict "
                             "its values to find the cause");
}

/* Over replicas and ranks; one rounding each. */
static dt_result dti_evaluation_sum(dt_trainer *t, double *sum) {
    dti_exact *terms = t->evaluation.terms;
    int64_t *words = (int64_t *)(void *)terms;
    const size_t all = (size_t)DTI_TERMS_WIDTH * DTI_EXACT_WORDS;
    for (size_t k = all; k < t->par.job.local * all; k++)
        words[k % all] += words[k];
    const dt_result result =
        dti_ranks_reduce(&t->par, t->par.desc.comm, words, all, DT_I64, DT_COMM_SUM);
    for (size_t k = 0; k < DTI_TERMS_FAULT; k++)
        sum[k] = dti_exact_value(terms[k]);
    return result;
}

DTI_PUBLIC_REPORT(dt_trainer_evaluate,
                  (dt_trainer * t, const dt_dataset *data, int batch, dt_train_report *report), t,
                  DTI_OF(dt_trainer) | DTI_WITH, (t, data, batch, report)) {
    DTI_NEED(t->base, data);
    dt_train_report local, *r = report ? report : &local;
    const uint64_t start = dti_now_ns();
    *r = (dt_train_report){.epoch = t->epoch};
    DTI_TRY(dti_evaluation_all(t, data, batch, "evaluate", r));
    double sum[DTI_TERMS_WIDTH] = {0};
    const dt_result result = dti_evaluation_sum(t, sum);
    dti_report_add_terms(r, sum);
    dti_report_close(t, r);
    r->seconds = 1e-9 * (double)(dti_now_ns() - start);
    return result ? result : dti_evaluation_finite(t, sum);
}

/* ---- predicting */

static dt_result dti_predict_check(const dt_trainer *t, const dt_dataset *data, dt_tensor y,
                                   size_t bytes) {
    if (y.graph && y.graph != t->graph)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "predict: the tensor belongs to another graph than the trainer's: %s",
                        dti_tensor_elsewhere(t->graph, y).text);
    if (dti_is_nil(y) || !dti_node_of(y)->samples || dti_node_of(y)->term)
        return dti_fail(t->base, DT_ERROR_INVALID, "predict: %s has no value for each sample",
                        dti_is_nil(y) ? "a nil tensor" : dti_tensor_print(y).text);
    if (y.id >= t->nodes && (t->par.job.replicas > 1 || dti_pipe_of(&t->par)))
        return dti_fail(
            t->base, DT_ERROR_INVALID,
            "predict: %s was made after the trainer, so other devices lack it; make it before",
            dti_tensor_print(y).text);
    const uint64_t each =
        dti_bytes(dti_tensor_dtype(y), (uint64_t)dti_shape_elements(dti_tensor_shape(y)));
    if (each % 4)
        return dti_fail(t->base, DT_ERROR_UNSUPPORTED,
                        "predict: %s is neither f32 nor i32; dt_cast it to DT_F32",
                        dti_tensor_print(y).text);
    if (bytes != each * data->rows)
        return dti_fail(t->base, DT_ERROR_INVALID,
                        "predict: %llu samples of %s take %llu bytes, but out has room for %zu",
                        (unsigned long long)data->rows, dti_tensor_print(y).text,
                        (unsigned long long)(each * data->rows), bytes);
    return DT_OK;
}

/* Each rank has its samples, and zeros for others': their sum as whole numbers has all bits. */
static dt_result dti_predict_gather(dt_trainer *t, char *out, size_t bytes) {
    const size_t most = (size_t)1 << 28;
    for (size_t at = 0; t->par.desc.comm && at < bytes; at += most) {
        const size_t n = DTI_MIN(bytes - at, most) / 4;
        DTI_TRY(dti_ranks_reduce(&t->par, t->par.desc.comm, out + at, n, DT_I32, DT_COMM_SUM));
    }
    return DT_OK;
}

DTI_PUBLIC(dt_trainer_predict,
           (dt_trainer * t, const dt_dataset *data, dt_tensor output, int batch, void *out,
            size_t bytes),
           t, DTI_OF(dt_trainer) | DTI_WITH, (t, data, output, batch, out, bytes)) {
    DTI_NEED(t->base, data);
    DTI_NEED(t->base, out);
    dt_train_report report = {0};
    DTI_TRY(dti_agree_result(&t->par, dti_predict_check(t, data, output, bytes)));
    const dti_evaluation kept = t->evaluation;
    t->evaluation = (dti_evaluation){.output = output, .out = out};
    t->evaluation.out_bytes = data->rows ? (size_t)(bytes / data->rows) : 0;
    if (t->par.desc.comm)
        memset(out, 0, bytes);
    dt_result result = dti_evaluation_all(t, data, batch, "predict", &report);
    if (dti_pipe_of(&t->par))
        dti_forward_free(&t->par, &(dti_grid_evaluation){.output = output});
    dti_evaluation_free(t);
    t->evaluation = kept;
    return result ? result : dti_predict_gather(t, out, bytes);
}
