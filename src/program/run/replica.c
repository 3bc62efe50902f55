/* The functions that a replica calls on a program that computes its share of a step
 * (lower/batch_slices.h). Segments run one by one, so that gradients are exchanged while later ones
 * run. Also losses and statistics of each piece, and the commit. It must not know other
 * replicas. */

static uint32_t dti_program_leaving(const dt_program *p) {
    return p->code->leaving_segments ? p->code->leaving_segments : p->code->commit_segment;
}

static float *dti_program_gradients(dt_program *p) {
    const dt_store *s = p->store;
    return s->device->backend->memory_host(
        dti_code_has_units(p->code) ? s->units[1] : s->memories[DTI_ARENA_GRADIENT]);
}

static void dti_program_pair(const dt_program *p, dti_out_words at, uint32_t piece,
                             double pair[2]) {
    for (int k = 0; k < 2; k++)
        pair[k] =
            p->code->slices.pieces[piece].rows ? (double)dti_program_words(p, at, piece)[k] : 0.0;
}

static void dti_program_term(const dt_program *p, uint32_t term, uint32_t piece, double pair[2]) {
    dti_program_pair(p, p->code->terms[term], piece, pair);
}

static float *dti_program_value(const dt_program *p, const dti_sync_point *m) {
    char *in = p->store->device->backend->memory_host(p->now->memories[DTI_ARENA_IN]);
    return (float *)(void *)(in + m->in);
}

/* ---- weights */

/* A loss that depends on no sample counts in each piece that is computed: so do its gradients. */
static double dti_program_count(const dt_program *p, uint32_t loss, uint32_t piece) {
    const dti_node *n = &p->code->work->nodes[p->code->desc.losses[loss].term.id];
    const bool samples = p->code->work->nodes[dti_input_id(p->code->work, n, 0)].samples;
    if (!p->code->slices.pieces[piece].rows)
        return 0.0;
    return samples ? p->code->static_weight[loss] / (double)p->code->batch *
                         p->code->slices.pieces[piece].rows
                   : p->code->static_weight[loss];
}

static bool dti_program_weighs_by(const dt_program *p, const dti_binding *binding) {
    const dti_code *code = p->code;
    const dti_segment *s = &code->segments[code->weigh_segment];
    bool reads = false;
    for (uint32_t i = 0; code->weighs && i < s->count * DTI_BINDINGS_MAX; i++) {
        const dti_launch *l = &code->list.launches[s->first + i / DTI_BINDINGS_MAX];
        const dti_value *v = &code->list.values[l->value[i % DTI_BINDINGS_MAX]];
        reads = reads || (v->kind == DTI_VALUE_IN && v->offset - binding->offset < binding->bytes);
    }
    return reads;
}

static bool dti_program_labels(const dt_program *p) {
    bool any = false;
    for (uint32_t i = 0; i < p->code->binding_count; i++)
        any = any || p->code->bindings[i].check_count;
    return any;
}

/* A piece's weight has its own place. The weight of all pieces is where weights are put, even if
 * the term itself differs from piece to piece. */
static double dti_program_weight(const dt_program *p, const uint32_t *out, uint32_t loss,
                                 uint32_t piece) {
    const dti_code *code = p->code;
    const dti_out_words all = {.word = DTI_STATUS_TERM(loss)};
    const dti_out_words at = code->weight_each[loss] ? code->terms[loss] : all;
    if (code->slices.piece_count && code->static_weight[loss] > 0.0)
        return dti_program_count(p, loss, piece);
    if (code->static_weight[loss] > 0.0)
        return code->static_weight[loss];
    const bool rows = !code->slices.piece_count || code->slices.pieces[piece].rows;
    return rows ? (double)dti_status_f32(out, at.word + piece * at.stride + 1) : 0.0;
}

static dt_result dti_program_weigh(dt_program *p, double *weights) {
    const uint32_t *out = dti_program_out(p), pieces = DTI_MAX(p->code->slices.piece_count, 1u);
    double ignored[DT_MAX_TERMS] = {0};
    dt_result result = !p->code->weighs  ? DT_OK
                       : p->host_weights ? dti_host_weights_run(p, &out)
                                         : dt_program_add_loss_weights(p, ignored);
    for (uint32_t i = 0; i < pieces && !result; i++)
        for (uint32_t loss = 0; loss < p->code->loss_count; loss++)
            weights[i * DT_MAX_TERMS + loss] += dti_program_weight(p, out, loss, i);
    return result;
}

static void dti_program_set_weights(dt_program *p, const double *weights) {
    uint32_t *w = p->store->device->backend->memory_host(p->now->memories[DTI_ARENA_IN]);
    for (uint32_t i = 0; i < p->code->loss_count; i++) {
        p->now->weights[i] = weights[i];
        dti_word_f32(w, DTI_STEP_WEIGHT + i, weights[i]);
    }
}

static dt_result dti_program_run_weighed(dt_program *p, const dt_step_desc *step,
                                         const double *weights, dt_report *report) {
    DTI_TRY(dt_program_begin(p, step));
    dti_program_set_weights(p, weights);
    DTI_TRY(dti_drive_start(p, p->now->end));
    DTI_TRY(dti_drive_wait(p));
    return dti_step_finish(p, report);
}

static dt_result dti_program_begin_commit(dt_program *p, const dt_step_desc *step) {
    p->now->commits = true;
    p->now->made = false;
    dti_step_rows(p, false);
    p->now->step = step->step;
    dti_step_block_fill(p, step);
    dti_drive_open(p, p->code->commit_segment, p->code->weigh_segment);
    return DT_OK;
}

/* ---- the end */

static dt_result dti_program_end(dt_program *p) {
    DTI_TRY(dti_drive_wait(p));
    dti_drive_close(p);
    if (p->now->made)
        dti_step_rows(p, true);
    dti_micro_done(p, p->now->micro + 1);
    return DT_OK;
}

static dt_result dti_program_measure(dt_program *p) {
    DTI_TRY(dti_drive_start(p, 1));
    return dti_drive_reach(p, p->code->commit_segment);
}

static dt_result dti_program_validate_start(dt_program *p, bool update) {
    return p->now->at < p->code->update_segment ? dti_drive_start(p, update ? 2 : 1) : DT_OK;
}

static dt_result dti_program_validate(dt_program *p, double *norm, bool *faulty) {
    DTI_TRY(dti_program_validate_start(p, false));
    DTI_TRY(dti_drive_reach(p, p->code->update_segment - 1));
    const uint32_t *status = dti_program_out(p);
    *norm = (double)dti_status_f32(status, DTI_STATUS_NORM);
    *faulty = status[DTI_STATUS_ABORT] != 0;
    if (*faulty && p->now->at > p->code->update_segment)
        dti_drive_close(p); /* the update has run, and has written nothing */
    return DT_OK;
}

static dt_result dti_program_commit_start(dt_program *p) {
    return p->now->at < p->now->end ? dti_drive_start(p, 1) : DT_OK;
}

static dt_result dti_program_commit(dt_program *p) {
    DTI_TRY(dti_program_commit_start(p));
    DTI_TRY(dti_program_end(p));
    p->store->steps++;
    dti_step_averaged(p);
    dti_store_remember(p, dti_program_out(p));
    return DT_OK;
}

static bool dti_program_attribute(dt_program *p) {
    dt_report report = {0};
    return dti_update_fault(p, &report, "the store is unchanged");
}
