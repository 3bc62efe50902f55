/* Prepares a grid of pipelines, in which several devices train one replica. It makes each replica's
 * run of batch slices and the whole model's code. It refuses fewer batch slices than replicas. */

static bool dti_grid_is(const dti_parallel *par) {
    return DTI_HAS_MODEL_PARALLEL && par->desc.stages > 0; /* for tensor ranks only: 1 */
}

static const char *dti_grid_setting(const dti_parallel *par) {
    return par->desc.slices > 1 ? ".parallel.tensor_slices"
           : par->desc.tensor   ? ".parallel.tensor"
                                : ".parallel.pipeline";
}

static dt_result dti_grid_begin(dti_parallel *par, uint32_t batch_slices) {
    par->job.batch_slices = batch_slices;
    par->job.parts = par->desc.parts;
    par->job.batch = par->desc.batch;
    par->given = false; /* chunks are made without values */
    return dti_batch_slices_fit(par, batch_slices);
}

static dti_partition dti_grid_partition(const dti_parallel *par) {
    dti_partition grid = par->job;
    grid.replicas = par->mesh.data;
    grid.apart = true;
    return grid;
}

static dt_result dti_grid_runs_make(dti_parallel *par, const dti_partition *grid, uint32_t replica,
                                    uint32_t rows, dti_runs *runs) {
    dt_result result = dti_runs_make(par->base, grid, replica, rows, runs);
    for (uint32_t i = 0; i < runs->count && !result; i++) {
        dti_micro_run *run = &runs->runs[i];
        for (; !run->pieces[0].rows; run->pieces++)
            run->first_piece++;
        run->piece_count = 1;
    }
    return result;
}

static void dti_parallel_rows(const dti_parallel *par, uint32_t rows, uint32_t *first,
                              uint32_t *count) {
    const uint32_t end =
        dti_partition_row(&par->job, par->first_batch_slice + par->batch_slices, rows);
    *first = dti_partition_row(&par->job, par->first_batch_slice, rows);
    *count = par->pipe && !par->pipe->reads ? 0 : end - *first;
}

static dt_result dti_grid_code(dti_parallel *par, const dti_code **out) {
    dti_replica *r = &par->replicas[0];
    const uint32_t rows = r->full.runs[0].rows;
    dt_program_desc d = dti_replica_desc(par, r);
    d.batch = (int)rows;
    d.memory_bytes = 0; /* of a stage or a tensor rank, and nothing runs */
    const bool parts = par->desc.parts > 1;
    const dti_piece piece = {.rows = rows, .begins = !parts, .ends = !parts};
    const dti_batch_slices batch_slices = {
        .pieces = &piece, .piece_count = 1, .leaves = 1, .any_part = parts};
    r->store->layout.parts = par->desc.parts;
    dt_result result = dti_code_take(r->store, &d, &batch_slices, NULL, out);
    if (!result)
        dti_store_train_elsewhere(r->store, *out);
    return result;
}

static void dti_grid_number(const dti_runs *runs, uint32_t micro, dt_step_desc *step) {
    const uint32_t leaf = runs->runs[micro].pieces[0].leaf;
    uint32_t first = micro;
    while (first > 0 && runs->runs[first - 1].pieces[0].leaf == leaf)
        first--;
    step->first_row = runs->runs[micro].row;
    step->micro_batch = micro - first;
    step->micro_batches = step->micro_batch + (micro + 1 == runs->count ? 1 : 2);
}
