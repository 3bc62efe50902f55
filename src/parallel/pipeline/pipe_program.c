/* Programs of a plan's chunks and their schedules, for full batches and for short ones.
 * Micro-batches with the same number of rows have one program. */

/* The nodes of the graph that is cut. */
static dt_program_desc dti_pipe_model_desc(dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    return pipe->shared ? dti_tp_desc(par, pipe->shared, pipe->graph)
                        : dti_replica_desc(par, &par->replicas[0]);
}

static dt_program_desc dti_pipe_desc(dti_parallel *par, const dti_pipe_chunk *chunk,
                                     dti_staged *staged) {
    dti_pipe_stage *stage = dti_pipe_stage_of(par->pipe, chunk);
    dt_program_desc d = dti_pipe_model_desc(par);
    *staged = (dti_staged){.blocks = (uint32_t)par->pipe->block_count,
                           .tp_ranks = par->desc.tensor,
                           .split = par->desc.parallel.schedule == DT_PIPELINE_ZERO_BUBBLE};
    dti_pipe_cut_desc(&par->pipe->plan->cut, chunk->index, chunk->graph, &d, staged, stage->losses,
                      stage->metrics);
    return d;
}

/* Among all micro-batches with the rows of run i: the first, and the number before this one. */
static uint32_t dti_pipe_alike(const dti_runs *runs, uint32_t i, uint32_t *first) {
    uint32_t number = 0;
    *first = i;
    for (uint32_t k = i; k-- > 0;) {
        const bool alike = runs->runs[k].rows == runs->runs[i].rows;
        *first = alike ? k : *first;
        number += alike;
    }
    return number;
}

static dt_result dti_pipe_program(dti_parallel *par, dti_pipe_chunk *chunk, uint32_t rows,
                                  uint32_t micro_slots, dt_program **out) {
    const bool parts = !par->pipe->plan->forward && par->desc.parts > 1;
    const dti_piece piece = {.rows = rows, .begins = !parts, .ends = !parts};
    const dti_pipe_stage *stage = dti_pipe_stage_of(par->pipe, chunk);
    const dti_batch_slices batch_slices = {.pieces = &piece,
                                           .piece_count = 1,
                                           .leaves = 1,
                                           .any_part = parts,
                                           .buckets = stage->buckets,
                                           .bucket_count = stage->bucket_count};
    dti_staged staged;
    if (par->pipe->plan->forward)
        return dti_forward_program(par, chunk, &batch_slices, micro_slots, out);
    chunk->store->layout.parts = par->desc.parts;
    dt_program_desc d = dti_pipe_desc(par, chunk, &staged);
    char label[32];
    snprintf(label, sizeof label, "stage %u", chunk->index);
    d.label = par->pipe->chunk_count > 1 ? label : d.label;
    d.batch = (int)piece.rows;
    return dti_pipe_chunk_failed(
        par, chunk,
        dti_program_create_micro_slots(chunk->store, &d, &batch_slices, &staged, micro_slots, out));
}

/* The micro-batch that had the micro-batch slot of number i before, from 1; 0: none. */
static uint32_t dti_pipe_before(const dti_pipe_run *all, uint32_t i) {
    for (uint32_t k = i; k > 0; k--) {
        if (all[k - 1].program == all[i].program && all[k - 1].micro_slot == all[i].micro_slot)
            return k;
    }
    return 0;
}

typedef struct dti_pipe_rows_of { /* micro-batches of a chunk with the same number of rows */
    const dti_runs *runs;
    uint32_t chunk, rows;
} dti_pipe_rows_of;

static bool dti_pipe_lives_with_rows(const void *of, const dti_pipe_action *a) {
    const dti_pipe_rows_of *r = of;
    return a->chunk == r->chunk && a->micro < r->runs->count &&
           r->runs->runs[a->micro].rows == r->rows;
}

static dt_result dti_pipe_programs(dti_parallel *par, dti_pipe_chunk *chunk, uint32_t shape) {
    const dti_pipeline *pipeline = &par->pipe->pipelines[chunk->pipeline];
    const dti_runs *runs = &pipeline->runs[shape];
    const dti_pipe_schedule *s = &pipeline->schedules[shape];
    dti_pipe_run *all = dti_alloc_array(par->base, runs->count + 1u, sizeof *all);
    dt_result result = all ? DT_OK : DT_ERROR_MEMORY;
    const dti_pipe_evaluation *forward = par->pipe->plan->forward;
    chunk->runs[shape] = all;
    if (!runs->count && !result)
        return dti_pipe_program(par, chunk, DTI_MIN(forward->desc.each, runs->rows), 1,
                                &all[0].program);
    for (uint32_t i = 0; i < runs->count && !result; i++) {
        uint32_t first;
        const uint32_t number = dti_pipe_alike(runs, i, &first), rows = runs->runs[i].rows;
        const dti_pipe_rows_of of = {runs, chunk->index, rows};
        const uint32_t micro_slots = forward ? forward->micro_slots
                                             : dti_pipe_most_alive(s, chunk->index % s->devices,
                                                                   dti_pipe_lives_with_rows, &of);
        if (first == i)
            result = dti_pipe_program(par, chunk, rows, micro_slots, &all[i].program);
        all[i].program = all[first].program;
        all[i].micro_slot = number % micro_slots;
        all[i].before = dti_pipe_before(all, i);
    }
    return result;
}

static dt_result dti_pipeline_schedule(dti_parallel *par, dti_pipeline *pipeline, uint32_t shape) {
    const dti_pipe *pipe = par->pipe;
    const dti_runs *runs = &pipeline->runs[shape];
    const dti_pipe_evaluation *forward = pipe->plan->forward;
    const dti_partition grid = forward ? forward->grids[shape % 2] : dti_grid_partition(par);
    uint32_t micros = runs->count;
    DTI_TRY(dti_pipe_units_micros(par, &grid, runs->rows, &micros));
    if (!micros)
        return DT_OK;
    uint8_t *begins = dti_alloc(par->base, micros);
    for (uint32_t i = 1; begins && i < runs->count; i++)
        begins[i] = runs->runs[i].pieces[0].leaf != runs->runs[i - 1].pieces[0].leaf;
    const dt_result result =
        begins
            ? dti_pipe_schedule_make(par->base,
                                     forward ? DTI_PIPELINE_FORWARD : par->desc.parallel.schedule,
                                     pipe->mesh->stages, pipe->chunk_count / pipe->mesh->stages,
                                     micros, begins, &pipeline->schedules[shape])
            : DT_ERROR_MEMORY;
    dti_free(par->base, begins);
    return result;
}

static dt_result dti_pipeline_fill(dti_parallel *par, uint32_t i) {
    dti_pipe *pipe = par->pipe;
    dti_pipeline *pipeline = &pipe->pipelines[i];
    for (uint32_t tail = 0; tail < 2; tail++) {
        const uint32_t shape = dti_pipe_shape(pipe, tail);
        const dti_runs *runs = &pipeline->runs[shape];
        if (runs->rows)
            DTI_TRY(dti_pipeline_schedule(par, pipeline, shape));
        /* one that gathers alike, of a replica without rows */
        const bool idle = runs->rows && pipe->plan->forward && dti_pipe_has_units(par);
        for (uint32_t c = 0; c < pipe->chunk_count && (runs->count || idle); c++) {
            dti_pipe_chunk *chunk = dti_pipe_chunk_of(pipe, i, c);
            DTI_TRY(chunk->store ? dti_pipe_programs(par, chunk, shape) : DT_OK);
        }
    }
    return DT_OK;
}

static const dt_program *dti_pipe_any(const dti_pipe *pipe, uint32_t c) {
    const dt_program *any = NULL;
    for (dti_pipe_chunk *chunk = NULL; !any && (chunk = dti_pipe_next(pipe, chunk)) != NULL;) {
        for (uint32_t i = 0; i < 2 && chunk->index == c && !any; i++) {
            const dti_pipe_run *runs = chunk->runs[dti_pipe_shape(pipe, i)];
            any = runs ? runs[0].program : NULL;
        }
    }
    return any;
}

/* A rank whose stages get all from others need not read samples. */
static bool dti_pipe_reads(const dti_parallel *par) {
    const dti_pipe *pipe = par->pipe;
    const dt_dataset *data = par->desc.data;
    bool reads = false;
    for (uint32_t c = 0; c < pipe->chunk_count; c++) {
        const dt_program *p = dti_pipe_any(pipe, c);
        for (int i = 0; p && i < dti_dataset_columns(data); i++)
            reads = reads ||
                    dti_code_binding(dti_program_code(p),
                                     dti_pipe_node(pipe, data->columns[i].input.id), false, false);
    }
    return reads;
}

static dt_result dti_pipe_fill(dti_parallel *par) {
    dti_pipe *pipe = par->pipe;
    for (uint32_t i = 0; i < pipe->pipeline_count; i++)
        DTI_TRY(dti_pipeline_fill(par, i));
    for (uint32_t s = 0; s < pipe->stage_count; s++) {
        dti_pipe_stage *stage = &pipe->stages[s];
        if (stage->chunk)
            DTI_TRY(dti_statistics_make(par->base, &par->job,
                                        dti_program_code(stage->chunk->runs[0][0].program),
                                        &stage->statistics));
    }
    return DT_OK;
}
